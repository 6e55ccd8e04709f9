"""Taking a log over, and ending it: the shell around ``log.core.chain.Takeover``.

One task does one step at a time, and the core names the step. If anything goes wrong, the task deletes the
ledger that it made, but only if no list can name that ledger. A ledger that may be listed is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from ledgerlog.errors import (
    EntryNotFound,
    LedgerLogError,
    LedgerNotFound,
    LogListFull,
    MetadataCorrupt,
    MetadataError,
    MetadataUnavailable,
    RecoveryFailed,
    SessionExpired,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.recovery import may_be_short
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import METADATA_TIMEOUT_S
from ledgerlog.log.core.chain import CountsOpenLedgers, LedgerSpan, Takeover, TakeoverAim, TakeoverNeed
from ledgerlog.log.core.producers import Producers
from ledgerlog.log.registry import GONE, LogRegistry, ledger_labels
from ledgerlog.meta.settle import on_unsettled, settle
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import Gap
from ledgerlog.wire.records import decode_checkpoint, decode_header, decode_numbering

logger = logging.getLogger(__name__)


async def take_over(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    *,
    dedupe: bool | None = None,
) -> tuple[LogMetadata, int, LedgerWriter]:
    """Become the leader of a log.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        dedupe: Switch deduplication on or off from this takeover on; None keeps the log's setting.

    Returns:
        The log's record with the new epoch, the version of that record, and the writer of the new ledger.

    Raises:
        LogNotFound: The log no longer exists.
        MetadataCorrupt: The log's record does not decode, or it is lost.
        LogSealed: The log is sealed.
        LogListFull: The log's list has no room for another ledger.
        RecoveryFailed: Too few bookies answer to end the previous leader's ledgers. Try again.
        NotEnoughBookies: Too few bookies are writable for a new ledger. Try again.
        EntryUnavailable: No bookie answers for the first or last entry of a ledger of the previous leader.
            Try again.
        EntryCorrupt: Such an entry is damaged or does not belong to this log.
        EntryNotFound: Bookies have lost such an entry.
        LossUndecided: An operator has to decide about a loss first.
        MetadataUnavailable: The metadata store cannot be reached.
        MetadataOutcomeUnknown: The log may have the new epoch. No process writes in that epoch.

    After any error but MetadataOutcomeUnknown, this call has not changed the epoch. The previous leader's
    ledgers may be fenced or closed.

    Cancelling: the log may or may not have the new epoch. At most one ledger is left behind, for a sweep or
    for the next leader.
    """
    core = Takeover(name, new_token=client.environment.new_token, dedupe=dedupe)
    writer = await _run(
        client,
        registry,
        core,
        incarnation,
        f"the takeover of log {name!r}",
        on_part=client.counts.on_takeover_part,
    )
    assert core.record is not None
    assert writer is not None
    return core.record, core.version, writer


async def seal(client: LedgerClient, registry: LogRegistry, name: str, incarnation: int) -> LogMetadata:
    """End the log: fence and close its ledgers, then write that the log is sealed. Errors as for
    ``take_over``."""
    core = Takeover(name, new_token=client.environment.new_token, aim=TakeoverAim.SEAL)
    await _run(client, registry, core, incarnation, f"the end of log {name!r}")
    assert core.record is not None
    return core.record


async def recover(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    *,
    accept_loss: bool,
    accept_unreachable: bool,
) -> tuple[LogMetadata, tuple[Gap, ...]]:
    """End the current leadership: fence, close and count its ledgers. Errors as for ``take_over``.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        accept_loss: Also end ledgers whose end no bookie can know. Records after such an end stay, and
            the log has a gap before them.
        accept_unreachable: Treat bookies that do not answer as gone for good.

    Returns:
        The record after the recovery, and the gaps that the recovery made.
    """
    core = Takeover(
        name, new_token=client.environment.new_token, aim=TakeoverAim.RECOVER, accept_loss=accept_loss
    )
    await _run(
        client,
        registry,
        core,
        incarnation,
        f"the recovery of log {name!r}",
        accept_loss=accept_loss,
        accept_unreachable=accept_unreachable,
    )
    assert core.record is not None
    return core.record, core.gaps_made


async def _run(
    client: LedgerClient,
    registry: LogRegistry,
    core: Takeover,
    incarnation: int,
    what: str,
    *,
    accept_loss: bool = False,
    accept_unreachable: bool = False,
    on_part: Callable[[str, float], None] | None = None,
) -> LedgerWriter | None:
    writer: LedgerWriter | None = None

    async def recover_open(ledger_id: int) -> LedgerMetadata:
        try:
            return await client.ledgers.recover(ledger_id)
        except RecoveryFailed:
            if not accept_loss:
                raise
        accepted = await client.ledgers.recover_accepting_loss(
            ledger_id, accept_unreachable=accept_unreachable
        )
        return accepted.metadata

    async def drive(_: bool) -> LedgerWriter | None:
        nonlocal writer
        began, doing = trio.current_time(), core.need
        while True:
            if on_part is not None and doing is not core.need:
                now = trio.current_time()
                on_part(doing.name.lower(), now - began)
                began, doing = now, core.need
            match core.need:
                case TakeoverNeed.READ | TakeoverNeed.SETTLE:
                    core.on_record(*await registry.read(incarnation))
                    if core.ledger_id is None and writer is not None:
                        await writer.aclose()
                        writer = None
                        await delete_ledgers(client.ledgers, core.take_garbage())
                case TakeoverNeed.RECOVER:
                    await count_open(client, registry, core, recover_open, accept_loss=accept_loss)
                case TakeoverNeed.CREATE:
                    assert core.base is not None
                    writer = await client.ledgers.create(
                        replication=core.base.replication,
                        metadata=ledger_labels(core.base, core.base.epoch + 1),
                    )
                    core.on_created(writer.ledger_id)
                case TakeoverNeed.WRITE:
                    assert core.record is not None
                    try:
                        with on_unsettled(core.on_unsettled):
                            core.on_written(await registry.write(core.record, core.version))
                    except (MetadataUnavailable, LogListFull):
                        core.on_not_written()
                        raise
                case TakeoverNeed.DONE:
                    return writer
                case TakeoverNeed.FAILED:
                    assert core.failure is not None
                    raise await registry.explained(core.failure, incarnation)

    try:
        return await settle(client.store, drive, what=what)
    except BaseException:
        core.abandon()
        with trio.move_on_after(METADATA_TIMEOUT_S, shield=True):
            if writer is not None:
                await writer.aclose()
            await delete_ledgers(client.ledgers, core.take_garbage())
        raise


async def count_open(
    client: LedgerClient,
    registry: LogRegistry,
    core: CountsOpenLedgers,
    recover: Callable[[int], Awaitable[LedgerMetadata]],
    *,
    accept_loss: bool = False,
) -> None:
    """Do the step RECOVER: recover the ledger that the core names, and tell the core its content.

    With ``accept_loss``, a ledger that may be short counts as empty if its first or last entry is lost.
    """
    try:
        metadata = await recover(core.recovering)
        try:
            contents = await read_contents(client.ledgers, metadata)
        except EntryNotFound:
            if not (accept_loss and may_be_short(metadata)):
                raise
            contents = None
    except GONE as failure:
        # If the record lists the ledger no more, a rival took over, and retention has dropped the ledger.
        assert core.base is not None
        if not await registry.has_dropped(core.base, failure.ledger_id):
            raise
        core.on_changed()
    else:
        core.on_recovered(contents, is_short=may_be_short(metadata))


async def read_contents(ledgers: Ledgers, metadata: LedgerMetadata) -> LedgerSpan | None:
    """Return the facts from the first and last entry of a closed ledger; None if the ledger is empty. Errors
    as for reading (see ``log.positions``)."""
    ledger_id, last = metadata.ledger_id, metadata.last_entry
    assert last is not None, "a recovered ledger is closed"
    if last == NO_ENTRY:
        return None
    reader = await ledgers.open(ledger_id)
    (payload,) = await reader.read(last, last)
    bottom = top = decode_header(payload, ledger_id=ledger_id, entry_id=last)
    if last > 0:
        (payload,) = await reader.read(0, 0)
        bottom = decode_header(payload, ledger_id=ledger_id, entry_id=0)
    return LedgerSpan(
        first_offset=bottom.first_offset,
        end_offset=top.end_offset,
        bytes_before=bottom.bytes_before,
        bytes_after=top.bytes_after,
        first_ms=bottom.timestamp_ms,
        last_ms=top.timestamp_ms,
    )


async def load_producers(ledgers: Ledgers, metadata: LogMetadata, producers: Producers) -> None:
    """Load the table of producers as of the end of the counted segments.

    This reads the newest checkpoint (an entry that holds the whole table) and the entries after it. Errors as
    for reading (see ``log.positions``); LedgerNotFound if retention has dropped the ledger meanwhile.
    """
    assert metadata.dedupe_epoch is not None
    for segment in reversed(metadata.segments):
        if not segment.record_count:
            continue  # If this segment holds a checkpoint, the segment before it yields the same table.
        if segment.epoch < metadata.dedupe_epoch:
            return
        reader = await ledgers.open(segment.ledger_id)
        last = await reader.last_add_confirmed()
        if last != NO_ENTRY:
            await _replay(reader, last, producers)
        return


async def _replay(reader: LedgerReader, last: int, producers: Producers) -> None:
    ledger_id = reader.ledger_id
    (payload,) = await reader.read(last, last)
    _, numbering = decode_numbering(payload, ledger_id=ledger_id, entry_id=last)
    at = numbering.checkpoint_entry
    is_checkpoint = True
    while at <= last:
        for payload in await reader.read_batch(at, last):
            header, numbering = decode_numbering(payload, ledger_id=ledger_id, entry_id=at)
            if is_checkpoint:
                producers.load(decode_checkpoint(payload, ledger_id=ledger_id, entry_id=at))
                is_checkpoint = False
            else:
                producers.replay(numbering.numbered, header.first_offset, header.timestamp_ms)
            at += 1


@contextmanager
def left_to_a_sweep(what: str) -> Iterator[None]:
    """Wrap the clean-up after an operation that has happened. If the store is away, or does not tell what to
    delete because a record is damaged, log that a sweep will do the clean-up."""
    try:
        yield
    except (MetadataCorrupt, MetadataError, SessionExpired) as cause:
        logger.warning("%s is not deleted now and is left to a sweep: %s", what, cause)


async def delete_ledgers(ledgers: Ledgers, ledger_ids: list[int]) -> None:
    """Delete ledgers that no list names. A ledger that cannot be deleted now is left to a sweep."""
    for ledger_id in ledger_ids:
        try:
            await ledgers.delete(ledger_id)
        except LedgerNotFound:
            pass
        except LedgerLogError as cause:
            logger.warning("ledger=%d belongs to no log and was not deleted: %s", ledger_id, cause)
