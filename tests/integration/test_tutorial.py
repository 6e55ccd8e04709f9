"""The tutorial runs as it stands there: its programs are saved, its commands are run, and what they print is
compared.

A page says in the paragraph before a program under which name to save it: ``Save this as `write.py```. In a
block of the language ``console``, a line that begins with ``$`` is a command, and the lines up to the next
command are its whole output.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
_STEP = re.compile(
    r"Save this as `(?P<name>[\w.]+)`[^`]*```python\n(?P<code>.*?)^```|^```console\n(?P<console>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def run(command: str, folder: Path) -> str:
    name, *arguments = shlex.split(command)
    program = {"python": [sys.executable], "ledgerlog": [sys.executable, "-m", "ledgerlog"]}[name]
    ran = subprocess.run([*program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.stderr == "", command
    return ran.stdout


def test_the_tutorial_runs_in_order_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
                assert run(command[0], tmp_path) == command[1], f"{page.name}: {command[0]}"
                ran += 1
    assert ran > 8
