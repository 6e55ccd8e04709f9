"""The options that the two commands with an administration port share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["admin_options", "reads_are_open"]

F = TypeVar("F", bound=Callable[..., Any])


def admin_options(function: F) -> F:
    """Add ``--admin`` and ``--admin-reads``."""
    for option in (
        click.option(
            "--admin-reads",
            type=click.Choice(["open", "proven"]),
            help=(
                "Who may read metrics and configuration there: all clients, or only processes that prove to "
                "be a bookie or an admin. Default: all clients, unless the cluster is closed."
            ),
        ),
        click.option(
            "--admin",
            metavar="HOST:PORT",
            help="The address for metrics, health and administration over HTTP. Port 0 picks a free port.",
        ),
    ):
        function = option(function)
    return function


def reads_are_open(admin: str | None, admin_reads: str | None) -> bool | None:
    """Return the value of ``--admin-reads``. None: the option is not given.

    Raises:
        click.UsageError: ``--admin-reads`` is given without ``--admin``.
    """
    if admin_reads is None:
        return None
    if admin is None:
        raise click.UsageError("--admin-reads needs --admin")
    return admin_reads == "open"
