"""Which event loop the caller runs in: a check for ``ledgerlog.connect`` and ``ledgerlog.blocking``.

``ledgerlog`` runs under trio, and ``ledgerlog.blocking`` in ordinary threads. In the wrong place the first
would fail somewhere deep in trio, and the second would stop the caller's loop."""

from __future__ import annotations

import sys

import trio

from ledgerlog.errors import InvalidArgument

__all__ = ["refuse_asyncio", "refuse_other_loops"]

_IN_A_THREAD = "'await asyncio.to_thread(work)', and let work() use ledgerlog.blocking"


def in_asyncio() -> bool:
    """Whether an asyncio loop runs in this thread: in an asyncio program, and in every cell of a notebook."""
    asyncio = sys.modules.get("asyncio")  # What was never imported does not run.
    return asyncio is not None and asyncio._get_running_loop() is not None


def refuse_other_loops(what: str) -> None:
    """InvalidArgument unless this is a task of trio."""
    if trio.lowlevel.in_trio_task():
        return
    if in_asyncio():
        raise InvalidArgument(
            f"{what} runs under trio, and this is an asyncio loop: call it from a thread, for example "
            f"{_IN_A_THREAD}"
        )
    raise InvalidArgument(
        f"{what} needs a trio loop: enter it in an async function that trio.run runs, or use "
        "ledgerlog.blocking"
    )


def refuse_asyncio() -> None:
    """InvalidArgument where an asyncio loop runs in this thread."""
    if in_asyncio():
        raise InvalidArgument(
            "a blocking call would stop the asyncio loop that runs in this thread (in a notebook one always "
            f"does): call it from a thread, for example {_IN_A_THREAD}"
        )
