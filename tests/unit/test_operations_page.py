"""docs/OPERATIONS.md describes every command and every error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ledgerlog import errors
from ledgerlog.cli.main import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path


def test_every_command_has_its_place_on_the_page() -> None:
    missing = [" ".join(path) for path in leaves(cli, ("ledgerlog",)) if " ".join(path) not in PAGE]
    assert not missing


def test_every_command_says_in_its_help_what_it_does() -> None:
    for path in leaves(cli, ()):
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert command.help, path


def test_every_error_has_its_place_on_the_page() -> None:
    missing = [name for name in errors.__all__ if name != "LedgerLogError" and name not in PAGE]
    assert not missing
