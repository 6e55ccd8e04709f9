"""Check which event loop the caller runs in, for each of the three ways to connect.

``ledgerlog`` runs under trio, ``ledgerlog.aio`` under asyncio, and ``ledgerlog.blocking`` in ordinary
threads. Without these checks, in an asyncio program ``ledgerlog`` would fail somewhere deep in trio, and
``ledgerlog.blocking`` would stop the asyncio loop.
"""

from __future__ import annotations

import sys

import trio

from ledgerlog.errors import InvalidArgument

__all__ = ["refuse_asyncio", "refuse_other_loops", "refuse_outside_of_asyncio"]

_IN_A_THREAD = "'await asyncio.to_thread(work)', and let work() use ledgerlog.blocking"
_AIO = "use ledgerlog.aio, which has the same names"


def in_asyncio() -> bool:
    """Return whether an asyncio loop runs in this thread. In a cell of a notebook, an asyncio loop always
    runs."""
    asyncio = sys.modules.get("asyncio")  # A module that was never imported has no running loop.
    return asyncio is not None and asyncio._get_running_loop() is not None


def refuse_other_loops(what: str) -> None:
    """Raise InvalidArgument unless the caller is a task of trio. ``what`` names the refused call."""
    if trio.lowlevel.in_trio_task():
        return
    if in_asyncio():
        raise InvalidArgument(f"{what} runs under trio, but this is an asyncio loop: {_AIO}")
    raise InvalidArgument(
        f"{what} needs a trio loop: enter it in an async function that trio.run runs, or use "
        "ledgerlog.blocking"
    )


def refuse_asyncio() -> None:
    """Raise InvalidArgument if an asyncio loop runs in this thread."""
    if in_asyncio():
        raise InvalidArgument(
            "a blocking call would stop the asyncio loop that runs in this thread (in a notebook one always "
            f"does): {_AIO}, or call it from a thread, for example {_IN_A_THREAD}"
        )


def refuse_outside_of_asyncio(what: str) -> None:
    """Raise InvalidArgument unless an asyncio loop runs in this thread. ``what`` names the refused call."""
    if trio.lowlevel.in_trio_task():
        raise InvalidArgument(f"{what} is for asyncio, but this is a trio task: use ledgerlog.connect")
    if not in_asyncio():
        raise InvalidArgument(
            f"{what} needs an asyncio loop: call it in an async function that asyncio.run runs, or use "
            "ledgerlog.blocking"
        )
