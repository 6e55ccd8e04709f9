"""Writing ledgers apart from their log, and making them part of it: the shell around ``log.core.attach``.

Many processes may ``stage`` at the same time. Each process writes a ledger of its own, which no list names,
and closes it. Then one process calls ``splice``. In one transaction, it makes either all of the given ledgers
part of the log, in their order, or none of them.

**A leader.** If the log has one, the leader splices on request (``log.splice_requests``). It runs the same
core, and puts the same changes into a transaction with its own change of the list (``log.splice_desk``).

**Labels.** The metadata of a staged ledger names the log and the incarnation for which it was written, and
says that it is staged. The transaction replaces these labels by the labels of a leader's ledger
(``registry``), but only for the last ``LOG_SPLICE_LABELS_MAX`` ledgers of the batch. The labels show whether
the transaction took effect, even after the list has changed. All other ledgers keep their labels.

**A sweep at the same time.** A sweep deletes a staged ledger only in a transaction that also changes the
version of the log's record (``log.sweep``). So if a splice and a sweep have both read the ledger and the
record, only the first transaction succeeds. The sweep of version 0.1 deletes the ledger alone. The
transaction of a splice changes the version of the ledgers that it labels, so that delete fails for them too.

**Bounds.** A batch has at most ``LOG_SPLICE_LEDGERS_MAX`` ledgers. The transaction carries their places in
the list, and the metadata of the ledgers that it labels. It stays below the size that a ZooKeeper server
takes, unless the list is nearly full or ensembles are large. A larger transaction is refused before it is
sent. Each stage also checks that the list has room for a splice (LogListFull), so no task writes its rows for
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LogListFull,
    MetadataError,
    MetadataOutcomeUnknown,
    RecordTooLarge,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import (
    LOG_ENTRY_BYTES_TARGET,
    LOG_SPLICE_LABELS_MAX,
    LOG_SPLICE_LEDGERS_MAX,
)
from ledgerlog.log.core.append_queue import Batch
from ledgerlog.log.core.attach import Commit, Splice, SpliceNeed, Staged, StagedLedger
from ledgerlog.log.gather import gather_after_splice
from ledgerlog.log.registry import (
    INCARNATION_LABEL,
    NAME_LABEL,
    STAGED_LABEL,
    LogRegistry,
    ledger_labels,
)
from ledgerlog.log.splice_requests import RequestEnd, ask_leader
from ledgerlog.log.takeover import count_open
from ledgerlog.meta.settle import AWAY, on_unsettled, remove, settle
from ledgerlog.meta.store import Create, Operation, Set, VersionConflict
from ledgerlog.model.attach import SpliceMark, check_splicer
from ledgerlog.model.attributes import HeadersLike, attributes_column
from ledgerlog.model.layout import ledger_path, log_record_path, splice_path, splices_path
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.splice_request import SpliceRequest
from ledgerlog.wire.records import encode_entry

__all__ = ["Spliced", "Stage", "delete_marks", "splice", "stage"]

logger = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 16
"""How many ledgers' metadata a commit reads at the same time."""


@attrs.frozen(kw_only=True)
class Spliced:
    """The result of a commit."""

    was_there: bool
    """Whether the batch was in the log already. The commit changed nothing then."""
    epoch: int
    """The epoch of the log after the commit."""
    end_offset: int
    """The offset after the last record of the log at that time."""


class Stage:
    """A ledger that is written for a log and that no list names. Enter ``stage`` to get one."""

    def __init__(self, client: LedgerClient, metadata: LogMetadata) -> None:
        self._client = client
        self._metadata = metadata
        self._writer: LedgerWriter | None = None
        self._batch: Batch | None = None
        """The records of the next entry."""
        self._count = 0
        """How many records are written."""
        self._bytes = 0
        """The bytes of these records."""

    async def append_many(
        self,
        records: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
    ) -> None:
        """Write records in their order. They are durable once ``close`` returns.

        Args:
            records: The data of each record.
            keys: The key of each record, or None for a record without one. None: no record has a key.
            headers: The headers of each record, or None for a record without any. None: no record has any.

        Raises:
            RecordTooLarge: A record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are over
                ``limits.RECORD_ATTRIBUTES_BYTES_MAX``.
            InvalidArgument: A key or a header is malformed, or ``keys`` or ``headers`` has another length
                than ``records``.
            LedgerLogError: The ledger failed, for example with NotEnoughBookies or AppendUnknown. Discard the
                stage and begin again.
        """
        column = attributes_column(list(map(len, records)), keys, headers) or [None] * len(records)
        size_max = self._client.environment.record_bytes_max
        for record, attributes in zip(records, column, strict=True):
            size = len(record) + (0 if attributes is None else attributes.size)
            if size > size_max:
                raise RecordTooLarge(size, size_max)
            batch = self._batch
            # A record of the greatest size fits into an entry, but not together with others.
            if batch is not None and not batch.has_room(
                size, 1, size_max, for_attributes=attributes is not None
            ):
                await self._write(batch)
                batch = None
            if batch is None:
                batch = self._batch = Batch(0, 0, has_attributes=attributes is not None)
            batch.extend([record], size, None if attributes is None else [attributes])
            if batch.cost >= LOG_ENTRY_BYTES_TARGET:
                await self._write(batch)

    async def close(self) -> Staged | None:
        """Close the ledger and return the ledger to splice; None if no record was appended."""
        if self._batch is not None:
            await self._write(self._batch)
        if self._writer is None:
            return None
        # After a timeout, closing would give up the entries that are not acknowledged.
        await self._writer.flush()
        last = await self._writer.close()
        return Staged(self._writer.ledger_id, self._count, self._bytes, last)

    async def _write(self, batch: Batch) -> None:
        if self._writer is None:
            # The ledger is made with the first entry, so a task without rows leaves nothing to sweep.
            self._writer = await self._client.ledgers.create(
                replication=self._metadata.replication,
                metadata={
                    NAME_LABEL: self._metadata.name.encode(),
                    INCARNATION_LABEL: str(self._metadata.incarnation).encode(),
                    STAGED_LABEL: b"1",
                },
            )
        self._batch = None
        payload = encode_entry(
            batch.records,
            epoch=0,
            first_offset=self._count,
            timestamp_ms=self._client.environment.now_ms(),
            bytes_before=self._bytes,
            staged=True,
            attributes=batch.live_attributes(),
        )
        self._count += batch.live_count
        self._bytes += batch.size
        if not self._writer.has_room:
            await self._writer.wait_room()
        self._writer.push([payload])

    async def leave(self) -> None:
        """End the ledger writer, whether or not the ledger is closed."""
        if self._writer is not None:
            await self._writer.aclose()


@asynccontextmanager
async def stage(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    *,
    room: int = LOG_SPLICE_LABELS_MAX,
) -> AsyncIterator[Stage]:
    """Open a stage for the body of an ``async with``.

    If the body has written entries and does not reach ``close``, it leaves a ledger for a sweep.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        room: How many ledgers the batch may have, as far as the caller knows.

    Raises:
        LogNotFound: The log no longer exists.
        LogListFull: The log's list may have no room for ``room`` more ledgers. Raised before anything is
            written.
        MetadataUnavailable: The metadata store cannot be reached. Nothing was written.
    """
    metadata, _ = await registry.existing(name, incarnation)
    metadata.check_room(room)
    opened = Stage(client, metadata)
    try:
        yield opened
    finally:
        await opened.leave()


async def splice(
    client: LedgerClient, registry: LogRegistry, name: str, incarnation: int, commit: Commit
) -> Spliced:
    """Make all of the staged ledgers part of the log, exactly once; see ``log.core.attach``.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        commit: The batch.

    Raises:
        SpliceRefused: Nothing was spliced, and trying again will not change that.
        LostLeadership: Another run of the same producer has followed. Nothing was spliced.
        LogSealed: The log is sealed. Nothing was spliced.
        LogNotFound: The log no longer exists. Nothing was spliced.
        LogListFull: The log's list has no room for the ledgers. Nothing was spliced.
        InvalidArgument: The producer's id is malformed, or one transaction cannot hold so many ledgers.
            Nothing was spliced.
        RecoveryFailed: Too few bookies answer to end the previous leader's ledgers. Nothing was spliced; try
            again.
        EntryUnavailable: No bookie answers for an entry that tells where the log ends. Nothing was spliced;
            try again.
        EntryCorrupt: An entry that tells where the log ends is damaged. Nothing was spliced.
        LossUndecided: An operator has to decide about a loss first. Nothing was spliced.
        MetadataUnavailable: The metadata store cannot be reached. Nothing was spliced.
        MetadataOutcomeUnknown: The ledgers may or may not be spliced. Repeat the same commit to find out.

    Cancelling: the ledgers may or may not be spliced. Repeat the same commit to find out.
    """
    if commit.producer is not None:
        check_splicer(commit.producer)
    if len(commit.staged) > LOG_SPLICE_LEDGERS_MAX:
        raise InvalidArgument(
            f"{len(commit.staged)} ledgers in one batch, over the limit of {LOG_SPLICE_LEDGERS_MAX}: "
            "write with fewer tasks (coalesce)"
        )
    core = Splice(name, commit, new_token=client.environment.new_token)

    async def drive(_: bool) -> None:
        while True:
            match core.need:
                case SpliceNeed.READ:
                    try:
                        await _read(client, registry, incarnation, core, commit)
                    except AWAY as away:
                        if not core.was_tried:
                            raise
                        raise MetadataOutcomeUnknown(f"batch {commit.batch} may be spliced: {away}") from away
                case SpliceNeed.ASK:
                    core.on_asked()
                    answer = await ask_leader(client, registry, incarnation, commit)
                    if isinstance(answer, SpliceRequest) and answer.refused is not None:
                        core.on_refused(answer.refused, is_full=answer.is_full)
                    elif answer is RequestEnd.UNANSWERED:
                        core.on_unanswered()
                case SpliceNeed.RECOVER:
                    await count_open(client, registry, core, client.ledgers.recover)
                case SpliceNeed.WRITE:
                    operations = splice_operations(core, commit, core.version)
                    try:
                        with on_unsettled(core.on_unsettled):
                            await client.store.transaction(operations)
                    except InvalidArgument as too_large:
                        assert core.base is not None
                        raise too_large_for(core.base, commit, operations) from too_large
                    core.on_written()
                case SpliceNeed.DONE:
                    return
                case SpliceNeed.FAILED:
                    assert core.failure is not None
                    if isinstance(core.failure, MetadataOutcomeUnknown):
                        return  # Asking again gives no better answer.
                    raise await registry.explained(core.failure, incarnation)

    await settle(client.store, drive, what=f"batch {commit.batch} of log {name!r}")
    if core.failure is not None:
        raise core.failure
    await _delete_garbage(client, core)
    record = core.base if core.record is None else core.record
    assert record is not None
    await gather_after_splice(client, registry, record)
    return Spliced(was_there=core.was_there, epoch=record.epoch, end_offset=record.counted_end)


async def delete_marks(client: LedgerClient, incarnation: int) -> None:
    """Delete the producers' marks (``log.core.attach``) of a log that is gone, and all other nodes next to
    them."""
    for component in await client.store.children(splices_path(incarnation)):
        await remove(client.store, f"{splices_path(incarnation)}/{component}")


async def _read(
    client: LedgerClient, registry: LogRegistry, incarnation: int, core: Splice, commit: Commit
) -> None:
    await client.store.sync()
    mark, mark_version = await read_mark(client, incarnation, commit)
    metadata, version = await registry.read(incarnation, fresh=False)
    ledgers = await read_staged(client, commit)
    core.on_read(metadata, version, mark, mark_version, ledgers, client.environment.now_ms())


async def read_mark(client: LedgerClient, incarnation: int, commit: Commit) -> tuple[SpliceMark | None, int]:
    """Return the mark of a batch's producer and its version; (None, -1) if there is none."""
    if commit.producer is None:
        return None, -1
    node = await client.store.get(splice_path(incarnation, commit.producer))
    if node is None:
        return None, -1
    return SpliceMark.decode_untrusted(node.value, commit.producer), node.version


async def read_staged(client: LedgerClient, commit: Commit) -> list[StagedLedger | None]:
    """Return the metadata of the staged ledgers in their order; None for a ledger that is gone."""
    ledgers = LedgerRegistry(client.store, client.environment)
    found: dict[int, StagedLedger] = {}

    async def find(staged: Staged) -> None:
        read = await ledgers.find(staged.ledger_id)
        if read is not None:
            found[staged.ledger_id] = StagedLedger(*read, is_spliced=STAGED_LABEL not in read[0].custom)

    await gather_each(commit.staged, find, at_once=_LEDGERS_AT_ONCE)
    return [found.get(staged.ledger_id) for staged in commit.staged]


def splice_operations(core: Splice, commit: Commit, version: int) -> list[Operation]:
    """Return the transaction that writes the record and the mark of a splice, and labels its ledgers.

    Args:
        core: The splice, with the record to write.
        commit: Its batch.
        version: The version of the log's record that the transaction replaces.
    """
    record, mark = core.record, core.mark
    assert record is not None
    operations: list[Operation] = [Set(log_record_path(record.incarnation), record.encode(), version)]
    if mark is not None:
        path = splice_path(record.incarnation, mark.producer)
        if core.base_mark is None:
            operations.append(Create(path, mark.encode()))
        else:
            operations.append(Set(path, mark.encode(), core.mark_version))
    labels = ledger_labels(record, record.epoch)
    for staged in core.witnesses:
        ledger = core.ledgers[staged.ledger_id]
        operations.append(
            Set(
                ledger_path(staged.ledger_id),
                ledger.metadata.with_labels(labels, record.token).encode(),
                ledger.version,
            )
        )
    return operations


def too_large_for(base: LogMetadata, commit: Commit, operations: Sequence[Operation]) -> LedgerLogError:
    """Return the error for a splice whose transaction is too large.

    If the log's record (the first operation) takes more than half of it, the list of ledgers is too long.
    """
    first, *others = (len(each.value) for each in operations if isinstance(each, Create | Set))
    if first > sum(others):
        return LogListFull(base.name, len(base.segments))
    return InvalidArgument(
        f"log {base.name!r}: {len(commit.staged)} ledgers and a list of {len(base.segments)} do not fit into "
        "one transaction: write with fewer tasks (coalesce), or truncate it"
    )


async def _delete_garbage(client: LedgerClient, core: Splice) -> None:
    """Delete the staged ledgers of an attempt that came too late.

    A ledger that cannot be deleted now is left to a sweep, because the batch is in the log in any case.
    """
    ledgers = LedgerRegistry(client.store, client.environment)
    for ledger in core.garbage():
        ledger_id = ledger.metadata.ledger_id
        try:
            await ledgers.delete(ledger_id, version=ledger.version)
        except (LedgerNotFound, VersionConflict):
            continue
        except MetadataError as cause:
            logger.warning(
                "ledger=%d was staged but is not needed, and was not deleted: %s", ledger_id, cause
            )
            return
        logger.info("ledger=%d was staged for a batch that is already in the log", ledger_id)
