"""The units, the image and the compose file of docs/deploy use commands and options that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import bookie.server.main
from ledgerlog.cli.main import cli

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMMANDS: dict[str, click.Command] = {"ledgerlog": cli, "bookie": bookie.server.main.main}


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def check(words: list[str]) -> None:
    """Fail unless the words are a command with options that it has."""
    command = COMMANDS[words.pop(0).rpartition("/")[2]]
    known: set[str] = set()
    while True:
        known |= {option for parameter in command.params for option in parameter.opts}
        if not isinstance(command, click.Group):
            break
        while words[0].startswith("-"):
            del words[:2]  # An option of the group, and its value.
        command = command.commands[words.pop(0)]
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_there_is(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    check(shlex.split(line))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd's tools are not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit_and_finds_it_hardened(unit: Path, tmp_path: Path) -> None:
    text = re.sub(
        r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    copy = tmp_path / unit.name.replace("@", "@b1")
    copy.write_text(text, encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    ours = [line for line in verified.stderr.splitlines() if copy.name in line]
    assert (ours, verified.returncode) == ([], 0), verified.stderr
    graded = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert graded.returncode == 0, graded.stdout[-400:]


def test_the_services_of_the_compose_file_start_commands_that_there_are_on_ports_of_this_machine() -> None:
    services = compose()["services"]
    seen = 0
    for name, service in services.items():
        words = service.get("command")
        if words is None:
            continue
        if words[0] == "sh":
            words = shlex.split(words[2].rpartition("||")[2])
        check(list(words))
        seen += 1
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
    assert seen == 4


def test_each_bookie_of_the_compose_file_has_an_id_an_address_and_a_volume_of_its_own() -> None:
    bookies = {name: s for name, s in compose()["services"].items() if name.startswith("bookie")}
    assert len(bookies) == 3
    for name, service in bookies.items():
        words = service["command"]
        assert words[words.index("--id") + 1] == name
        assert words[words.index("--advertise") + 1] == f"{name}:3181"
        assert f"{name}:/var/lib/ledgerlog" in service["volumes"]
        assert name in compose()["volumes"]


def test_the_image_copies_what_the_package_is_built_from() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert "USER ledgerlog" in text
    assert re.search(r"^FROM \S+python:3\.1[12]-slim$", text, re.MULTILINE), "plyvel has wheels for these"
