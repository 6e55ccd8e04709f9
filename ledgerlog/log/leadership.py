"""Leading a log for the body of an ``async with``: how a leadership is entered, served and left.

Entering takes the log over (``log.takeover``). If the log has deduplication, it also reads the table of
producers (``log.core.producers``) before the first append. Then one task, ``LogLeader.run``, serves the
leadership while the body runs.

If the body ends, normally or by an exception, the writer sends the records that it has taken, waits for the
acknowledgements and closes the ledger, within ``limits.LOG_CLOSE_TIMEOUT_S``. If the body is cancelled, the
writer leaves at once. In every case each append is answered before the ``async with`` is over. Records may
still be on their way when the body ends. If one of them is not in the log or its outcome is unknown, the
``async with`` itself raises, because perhaps no task waits for that record.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from ledgerlog.concurrency.nurseries import background, is_cancelled
from ledgerlog.counts import ClientCounts
from ledgerlog.errors import LedgerLogError, LostLeadership
from ledgerlog.event_log import LOG_TAKEN_OVER, tell
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import LOG_CLOSE_TIMEOUT_S
from ledgerlog.log.core.producers import Producers
from ledgerlog.log.leader import LogLeader, SendOptions
from ledgerlog.log.registry import GONE, LogRegistry
from ledgerlog.log.takeover import load_producers, take_over
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.producer import Dedupe

__all__ = ["WriterOptions", "lead"]

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class WriterOptions:
    """The arguments of ``Log.writer``."""

    send: SendOptions = attrs.field(factory=SendOptions)
    """How records become entries."""
    producer: str | None = None
    """The producer of records, unless an append names another one."""
    dedupe: Dedupe | bool | None = None
    """Whether and how the log remembers producers; None keeps the log's setting."""

    @property
    def switches_dedupe(self) -> bool | None:
        """Whether the takeover turns deduplication on or off; None keeps the log's setting."""
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
    """Lead a log for the body of an ``async with``; see ``Log.writer`` for the errors.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        options: The arguments of ``Log.writer``; None for the defaults.
    """
    options = options or WriterOptions()
    began_all = trio.current_time()
    with _counted(client.counts):
        metadata, version, ledger = await take_over(
            client, registry, name, incarnation, dedupe=options.switches_dedupe
        )
        producers = None
        if metadata.dedupe_epoch is not None:
            producers = Producers(name, options.dedupe if isinstance(options.dedupe, Dedupe) else Dedupe())
            began = trio.current_time()
            try:
                await load_producers(client.ledgers, metadata, producers)
            except BaseException as cause:
                # The next leader recovers and closes the ledger, which is empty and in the list.
                await ledger.aclose()
                if isinstance(cause, GONE) and await registry.has_dropped(metadata, cause.ledger_id):
                    raise LostLeadership(name, None, "another writer has taken over") from None
                raise
            client.counts.on_takeover_part("producers", trio.current_time() - began)
    leader = LogLeader(
        metadata,
        version,
        ledger,
        client=client,
        registry=registry,
        options=options.send,
        producers=producers,
    )
    writer = LogWriter(name, leader, options.producer)
    tell(
        logger,
        LOG_TAKEN_OVER,
        "log=%(log)s: taken over in epoch %(epoch)d, ledger=%(ledger)d, in %(seconds).3f s",
        log=name,
        epoch=metadata.epoch,
        ledger=ledger.ledger_id,
        seconds=trio.current_time() - began_all,
    )
    client.counts.begin_leading(writer, writer._describe)
    outstanding = 0
    try:
        async with background(leader.run, name=f"log writer {name}"):
            try:
                yield writer
            finally:
                outstanding = leader.queue.records_outstanding
                # A cancelled body leaves at once. The next leader recovers the ledger.
                if not await is_cancelled():
                    with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                        await leader.leave()
    finally:
        await leader.abandon()
        client.counts.end_leading(writer)
        if outstanding and (leader.queue.unknown_count or leader.queue.lost_count):
            writer._left_with = writer._verdict_of_the_rest()
    if writer._left_with is not None:
        raise writer._left_with


@contextmanager
def _counted(counts: ClientCounts) -> Iterator[None]:
    """Count the takeover in the body: a failure, or the time of a success. A cancelled takeover does not
    count."""
    began = trio.current_time()
    try:
        yield
    except LedgerLogError:
        counts.takeovers_failed += 1
        raise
    counts.on_takeover_part("all", trio.current_time() - began)
