"""Serving a bookie, and making its index again if the index is found damaged.

The index holds only facts that the segments and entry logs hold too. So if one of its blocks is damaged, the
bookie needs no operator and no other bookie:

    1  scrubbing, a read or a flush finds the damage, and the index remembers it
       (``bookie.storage.index.patient``)
    2  the bookie stops, as on a signal. Clients use other bookies
    3  the index is made again from the files (``bookie.storage.upkeep.rebuild``)
    4  the bookie starts again, in the same process and at the same address

No loss is marked, because nothing is lost. If a segment or an entry log is damaged too, no index can be made
from the files. Then ``heal_index`` (``repairing``) salvages the directory, if the operator allowed that.
Otherwise the bookie continues with the damaged index, answers CORRUPT if it needs a damaged part of the
index, and logs what to do.

The bookie heals only an index that this process has opened. If the index is damaged at a start, the bookie
does not start. Then a person must check that all other files are there, because only the index knows which
file is the newest.

If the index is damaged again within an hour, the disk or the memory is bad. The bookie then continues serving
until the hour is over. If the bookie can no longer write its index, it ends with that error.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from math import inf
from typing import Protocol

import trio

from bookie.server.node import BookieNode
from ledgerlog.concurrency.gathering import race
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import StorageError
from ledgerlog.event_log import INDEX_HEALS, tell

logger = logging.getLogger(__name__)

_AT_MOST_EVERY_S = 3600.0


class OpenNode(Protocol):
    """Opens the bookie, as ``open_bookie`` does."""

    def __call__(self, *, again_at: str | None) -> AbstractAsyncContextManager[BookieNode]:
        """Open the bookie. ``again_at`` is the address at which the bookie listened before its index was
        found damaged: listen there again, and make the index again. None: this is the first start."""
        ...


async def serve_and_heal(open_node: OpenNode, body: Callable[[BookieNode], Awaitable[None]]) -> None:
    """Serve a bookie until ``body`` returns.

    Args:
        open_node: Opens the bookie.
        body: Runs while the bookie serves. If the index is made again, ``body`` is cancelled, and called
            again with the new node.

    Raises:
        StorageCorrupt: A flush met a damaged index, and the index cannot be made again now.
        LedgerLogError: The errors of ``open_node`` and ``body``.
    """
    again_at: str | None = None
    heals_from = -inf
    while True:
        node: BookieNode | None = None
        is_over = False

        async def serve(opened: BookieNode) -> None:
            nonlocal is_over
            await body(opened)
            is_over = True

        async def wait_damaged(opened: BookieNode, heals_from: float) -> None:
            await opened.engine.index.damaged.wait()
            await trio.sleep_until(heals_from)

        try:
            async with open_node(again_at=again_at) as node:
                if not node.has_sound_index:
                    heals_from = inf
                await race(partial(serve, node), partial(wait_damaged, node, heals_from))
        except StorageError:
            # The bookie could not write the index, or one of its upkeep tasks could not read it.
            is_hopeless = trio.current_time() < heals_from
            if is_over or is_hopeless or node is None or node.engine.index.damage is None:
                raise
        if is_over:
            return
        tell(
            logger,
            INDEX_HEALS,
            "bookie=%(bookie)s: it stops and rebuilds its index",
            bookie=node.bookie_id,
        )
        again_at = node.listens_at
        heals_from = trio.current_time() + _AT_MOST_EVERY_S


@asynccontextmanager
async def healing_bookie(open_node: OpenNode) -> AsyncIterator[None]:
    """Serve a bookie for the body of the ``async with``, as ``serve_and_heal`` does.

    The bookie serves when the body begins, but not while its index is made again.

    Args:
        open_node: Opens the bookie.

    Raises:
        LedgerLogError: The errors of ``serve_and_heal``. If an error comes while the body runs, the body is
            cancelled.
    """
    serves, stopping, ended = trio.Event(), trio.Event(), trio.Event()

    async def body(node: BookieNode) -> None:
        serves.set()
        await stopping.wait()

    async def serve() -> None:
        try:
            await serve_and_heal(open_node, body)
        finally:
            ended.set()

    async with open_nursery() as nursery:
        nursery.start_soon(serve)
        await serves.wait()
        try:
            yield
        finally:
            # Let the bookie stop gracefully, unless this is a cancellation.
            stopping.set()
            await ended.wait()
