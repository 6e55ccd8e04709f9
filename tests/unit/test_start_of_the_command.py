"""A command imports only its own packages, because every process pays for its imports."""

from __future__ import annotations

import subprocess
import sys

from ledgerlog.cli.main import COMMANDS, cli

START = """
import sys
from ledgerlog.cli.main import cli
with_none = set(sys.modules)
cli.commands["log"]
print(*sorted(with_none), "|", *sorted(sys.modules))
"""
HEAVY = {"rich", "importlib.metadata", "pyarrow", "pyspark", "bookie", "ledgerlog.spark", "ledgerlog.testing"}


def test_a_command_is_imported_when_it_is_asked_for_and_no_other() -> None:
    said = subprocess.run(
        [sys.executable, "-P", "-c", START], capture_output=True, text=True, check=True
    ).stdout
    with_none, with_log = (set(part.split()) for part in said.split("|"))
    modules = {name: f"ledgerlog.cli.{name}" for name in COMMANDS}
    assert not with_none & set(modules.values())
    # The commands of logs print ledgers with the functions of the commands of ledgers.
    assert with_log & set(modules.values()) == {modules["log"], modules["ledger"]}
    assert not with_log & HEAVY
    assert not {name for name in with_none if name.startswith(("ledgerlog.ledger", "ledgerlog.log."))}


def test_a_bookie_starts_without_the_client() -> None:
    words = "import sys, bookie.server.main; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-P", "-c", words], capture_output=True, text=True, check=True
    ).stdout
    loaded = said.split()
    assert "bookie.server.node" in loaded
    assert not [name for name in loaded if name.startswith(("ledgerlog.ledger", "ledgerlog.log."))]


def test_every_command_is_there_by_its_name() -> None:
    assert sorted(cli.commands) == sorted(COMMANDS)
    for name in COMMANDS:
        assert cli.commands[name].name == name
    assert "nothing" not in cli.commands
    assert cli.commands.get("nothing") is None
