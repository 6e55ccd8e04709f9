"""Leadership of a log for the body of an ``async with``: how it is entered, served and left.

Entering takes the log over (``log.takeover``) and, where the log tells who appended what, reads that before
the first append. Then one task, the ``Leader``'s, serves the leadership beside the body. A body that ends,
in whatever way but cancellation, sends and acknowledges what was taken and closes the ledger, within
``limits.LOG_CLOSE_TIMEOUT_S``; a cancelled one leaves at once. Either way every append is answered before
the ``async with`` is over, and one that nobody waits for any more and that failed is told by an exception
from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ledgerlog.concurrency.nurseries import beside, is_cancelled
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import LOG_CLOSE_TIMEOUT_S
from ledgerlog.log.core.producers import Producers
from ledgerlog.log.leader import Leader, SendOptions
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.takeover import load_producers, take_over
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.producer import Dedupe

__all__ = ["WriterOptions", "lead"]


@attrs.frozen(kw_only=True)
class WriterOptions:
    """What ``Log.writer`` was asked for; see there."""

    send: SendOptions = attrs.field(factory=SendOptions)
    producer: str | None = None
    dedupe: Dedupe | bool | None = None

    @property
    def switches_dedupe(self) -> bool | None:
        """Whether the takeover turns deduplication on or off; None: it stays as it is."""
        if self.dedupe is None:
            return True if self.producer is not None else None
        return self.dedupe is not False


@asynccontextmanager
async def lead(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    *,
    options: WriterOptions | None = None,
) -> AsyncIterator[LogWriter]:
    """Leadership of a log for the body of the ``async with``; see ``Log.writer``."""
    options = options or WriterOptions()
    metadata, version, ledger = await take_over(
        client, registry, name, incarnation, dedupe=options.switches_dedupe
    )
    producers = None
    if metadata.dedupe_epoch is not None:
        producers = Producers(name, options.dedupe if isinstance(options.dedupe, Dedupe) else Dedupe())
        try:
            await load_producers(client.ledgers, metadata, producers)
        except BaseException:
            # The next leader ends the ledger, which is empty and in the list.
            await ledger.aclose()
            raise
    leader = Leader(
        metadata,
        version,
        ledger,
        client=client,
        registry=registry,
        options=options.send,
        producers=producers,
    )
    writer = LogWriter(name, leader, options.producer)
    outstanding = 0
    try:
        async with beside(leader.run, name=f"log writer {name}"):
            try:
                yield writer
            finally:
                outstanding = leader.queue.records_outstanding
                # A cancelled body leaves at once, and the ledger to the next leader's recovery.
                if not await is_cancelled():
                    with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                        await leader.leave()
    finally:
        await leader.abandon()
    if outstanding and (leader.queue.unknown_count or leader.queue.lost_count):
        raise writer._verdict_of_the_rest()
