"""The tutorial runs as it stands there: its programs are saved, its commands are run, and what they print is
compared.

A page says in the paragraph before a program under which name to save it: ``Save this as `write.py```. In a
block of the language ``console``, a line that begins with ``$`` is a command, and the lines up to the next
command are its whole output. ``/home/you/tutorial`` stands for the directory. ``cluster run`` goes on beside
what follows, as in a second terminal. Standard error must be empty if it is not redirected.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
_STEP = re.compile(
    r"Save this as `(?P<name>[\w.]+)`[^`]*```python\n(?P<code>.*?)^```|^```console\n(?P<console>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


FOLDER = "/home/you/tutorial"
PROGRAMS = {"python": [sys.executable], "ledgerlog": [sys.executable, "-m", "ledgerlog"]}


class Terminals:
    """Where commands are typed. ``serving``: the clusters that were started, in terminals of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._variables: dict[str, str] = {}
        self.serving: list[subprocess.Popen[str]] = []

    def run(self, command: str) -> str:
        """Run a command, and return what it prints."""
        name, *arguments = shlex.split(command)
        if name == "export":
            self._variables.update([arguments[0].split("=", 1)])
            return ""
        redirected = arguments.pop().removeprefix("2>") if arguments[-1:] and "2>" in arguments[-1] else None
        words, environment = [*PROGRAMS[name], *arguments], os.environ | self._variables
        if arguments[:2] == ["cluster", "run"]:
            cluster = subprocess.Popen(
                words,
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.serving.append(cluster)
            assert cluster.stdout is not None
            return cluster.stdout.readline().replace(str(self._folder), FOLDER)
        ran = subprocess.run(
            words, cwd=self._folder, env=environment, capture_output=True, text=True, check=False
        )
        assert redirected or ran.stderr == "", command
        assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
        return ran.stdout


@pytest.fixture
def terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminals]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("LEDGERLOG_URI", raising=False)
    opened = Terminals(tmp_path)
    yield opened
    for cluster in opened.serving:
        with cluster:
            try:
                cluster.send_signal(signal.SIGINT)
                cluster.wait(PATIENCE_S)
            finally:
                cluster.kill()


def test_the_tutorial_runs_in_order_and_prints_what_it_shows(tmp_path: Path, terminals: Terminals) -> None:
    ran = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        steps = list(_STEP.finditer(text))
        assert len(steps) == text.count("\n```python\n") + text.count("\n```console\n"), "nothing is left out"
        for step in steps:
            if step["name"]:
                (tmp_path / step["name"]).write_text(step["code"], encoding="utf-8")
                continue
            for command in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", step["console"], re.MULTILINE):
                assert terminals.run(command[0]) == command[1], f"{page.name}: {command[0]}"
                ran += 1
    assert ran > 15
    died, serves = terminals.serving
    assert died.wait(PATIENCE_S) == -signal.SIGKILL
    assert serves.poll() is None
