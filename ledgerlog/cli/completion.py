"""``ledgerlog completion``: a script that lets a shell complete commands, options and names of logs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ledgerlog.cli.output import print_as_is

__all__ = ["completion"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For example, add to ~/.bashrc:

        eval "$(ledgerlog completion bash)"

    Names of logs are completed if the cluster in --uri or LEDGERLOG_URI answers at once."""
    kind = get_completion_class(shell)
    assert kind is not None
    command = click.get_current_context().find_root().command
    print_as_is(kind(command, {}, "ledgerlog", "_LEDGERLOG_COMPLETE").source())
