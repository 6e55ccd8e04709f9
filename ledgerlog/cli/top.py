"""``ledgerlog top``: the cluster in a terminal."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from ledgerlog.cli.options import connect, uri_option
from ledgerlog.cli.running import Interrupted, unwrap
from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.optional_packages import how_to_install, is_installed
from ledgerlog.signals import stop_signals, surviving_others

__all__ = ["top"]


@click.command("top")
@uri_option
def top(uri: str) -> None:
    """Show the cluster in the terminal until you press q: bookies, logs, cursors, repair.

    It shows the same as 'ledgerlog console', and changes nothing."""
    if not is_installed("textual"):
        raise InvalidArgument(f"top needs textual: {how_to_install('textual')}")
    from ledgerlog.console.terminal import Terminal

    @asynccontextmanager
    async def client() -> AsyncIterator[LedgerClient]:
        async with connect(uri) as cluster:
            yield cluster.client

    terminal = Terminal(client, now_s=time.time, stop_signals=stop_signals())
    with surviving_others():
        terminal.run()
    if terminal.failure is not None:
        raise unwrap(terminal.failure)
    if terminal.stopped_by is not None:
        raise Interrupted(signal.Signals(terminal.stopped_by))
    if terminal.return_code:
        raise SystemExit(terminal.return_code)  # The terminal has shown what failed.
