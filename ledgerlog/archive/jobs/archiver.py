"""Archiving one log: the steps that ``archive.core.lifecycle`` plans, each carried out so that a crash at any
moment leaves something that a later run finishes.

    copy      1  every bookie of the ledger's write sets says that it has its entries; else the ledger is left
                 to auto-recovery
              2  the entries are read, and written to a temporary file
              3  the file gets its name
              4  the file is read again, whole, and is what was written
              5  its record is created, in a transaction that checks the log's record: the ledger is listed
    give up   1  the file is read again, whole, and is what was recorded
              2  the ledger's metadata are deleted, in a transaction that checks the file's record
    withdraw     where 1 finds that the file is gone or damaged, and bookies give all entries: the record is
                 deleted, in a transaction that checks the ledger's metadata, and the ledger is copied again
    retire    1  the log's record, read after the archive's, does not name the ledger
              2  the file is deleted, then its record
    clean        files in the log's directory that no record names (``archive.jobs.cleaning``)

What a file says is believed where the marker of its destination is there (``archive.jobs.claiming``): copy
asks for it behind 4, give up before 1 and behind it, and retire where it finds no file to delete.

A crash before copy's step 5 leaves a file that nothing names, for ``clean``; one anywhere else leaves a state
that the plan knows. Two jobs at once do some work twice: of two records for one ledger the first stands, and
the second job deletes its own file, which nothing has named.

Steps are told to ``environment.mark`` as they are done, under names that begin with "archive:".
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs

from ledgerlog.archive.core.lifecycle import ArchivePlan, plan_archive
from ledgerlog.archive.jobs.claiming import Markers
from ledgerlog.archive.reader import check_archive, in_thread
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    LedgerLogError,
    LedgerNotFound,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import ARCHIVE_READ_TIMEOUT_S, ARCHIVE_STRAY_AGE_S, MIB, READ_REPLY_BYTES_TARGET
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Check, Create, Delete, NodeMissing, Operation, VersionConflict
from ledgerlog.model.archive import ArchivedLedger, ArchiveRecord
from ledgerlog.model.layout import archive_path, ledger_path, log_record_path
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.record import RecordBatch
from ledgerlog.model.repair import RepairSettings
from ledgerlog.model.segments import Segment
from ledgerlog.redact import redact
from ledgerlog.repair.checking import check_ledger
from ledgerlog.wire.records import decode_entry

if TYPE_CHECKING:
    from ledgerlog.archive.destinations import Destination
    from ledgerlog.archive.parquet import ArchiveWriter, Facts

__all__ = ["Archiver", "LogState", "OnStep", "Step", "done", "guarded"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Step:
    """What became of one ledger, or one file."""

    what: str
    """``copied``, ``given up``, ``withdrawn``, ``retired``, ``merged``, ``compacted``, ``cleaned``; or
    ``unchanged``, ``skipped`` and ``failed``, which changed nothing."""
    ledger_id: int | None
    records: int = 0
    bytes: int = 0
    """Of the file."""
    file: str = attrs.field(default="", converter=redact)
    """Its URL, for people: without a password."""
    why: str = attrs.field(default="", converter=redact)
    """For what changed nothing."""


@attrs.frozen(kw_only=True)
class LogState:
    """What the metadata store says of a log and its archive."""

    metadata: LogMetadata | None
    """None: the log is gone."""
    version: int
    records: tuple[tuple[ArchiveRecord, int], ...]
    """With their versions, by offset."""
    with_copies: frozenset[int]
    """The ledgers, of the list and of files, that have metadata."""

    def version_of(self, record: ArchiveRecord) -> int:
        return next(version for found, version in self.records if found == record)


OnStep = Callable[[Step], None]

LATE = "its new file was made too long ago, and may be cleaned away as one that no log names"
_STRAY_MARGIN_S = ARCHIVE_STRAY_AGE_S / 24
"""What the clocks of a job, of a cleaner and of the destination may differ by."""
_BYTES_PER_S_MIN = 4 * MIB
"""A destination that takes a whole file more slowly than this counts as one that does not answer."""


class Archiver:
    """The archive of one log at one destination. From ``open_archiver``; for one task at a time."""

    def __init__(
        self,
        client: LedgerClient,
        name: str,
        incarnation: int,
        destination: Destination,
        *,
        cluster: str,
        keep_copies_s: float,
    ) -> None:
        from ledgerlog.archive import destinations, footer, parquet

        self._footer = footer
        self._parquet = parquet
        self._destinations = destinations
        self.client = client
        self.name = name
        self.incarnation = incarnation
        self.destination = destination
        self.markers = Markers(client, cluster)
        self.directory = destinations.log_directory(name, incarnation, cluster)
        """Where its files lie below the destination."""
        self.archives = ArchiveRegistry(client.store)
        self.logs = LogRegistry(client.store, client.environment)
        self.ledgers = LedgerRegistry(client.store, client.environment)
        self._keep_copies_ms = round(1000 * keep_copies_s)
        self._pace = Pace(RepairSettings().checks_per_s)

    def mark(self, step: str) -> None:
        self.client.environment.mark(f"archive: {step}")

    # --- looking ------------------------------------------------------------------------------

    async def look(self) -> LogState:
        """The log and its archive as they are now. MetadataUnavailable."""
        await self.client.store.sync()
        records = await self.archives.of_log(self.incarnation)
        metadata, version = await self.logs.read(self.incarnation)
        wanted = {segment.ledger_id for segment in ([] if metadata is None else metadata.segments)}
        wanted.update(ledger.ledger_id for record, _ in records for ledger in record.ledgers)
        with_copies = [each for each in sorted(wanted) if await self.ledgers.find(each) is not None]
        return LogState(
            metadata=metadata, version=version, records=tuple(records), with_copies=frozenset(with_copies)
        )

    async def look_at(self, ledger_id: int) -> LogState:
        """The same with no more of the archive than one ledger's part, and as if no other ledger had
        metadata. LogState.metadata is the whole list."""
        await self.client.store.sync()
        found = await self.archives.find(self.incarnation, ledger_id)
        metadata, version = await self.logs.read(self.incarnation)
        is_there = await self.ledgers.find(ledger_id) is not None
        return LogState(
            metadata=metadata,
            version=version,
            records=() if found is None else (found,),
            with_copies=frozenset((ledger_id,) if is_there else ()),
        )

    def plan(self, state: LogState) -> ArchivePlan:
        """What may be done."""
        return plan_archive(
            state.metadata,
            [record for record, _ in state.records],
            state.with_copies,
            now_ms=self.client.environment.now_ms(),
            keep_copies_ms=self._keep_copies_ms,
        )

    # --- copying ------------------------------------------------------------------------------

    async def copy(self, segment: Segment) -> Step:
        """Archive one counted ledger of the log. What cannot be archived now is skipped, and says why.
        ArchiveUnavailable, ArchiveCorrupt, EntryCorrupt, MetadataUnavailable; LogNotFound."""
        ledger_id = segment.ledger_id
        assert segment.record_count, "a ledger with records, and counted"
        assert segment.first_offset is not None
        assert segment.end_offset is not None
        existing = await self.archives.find(self.incarnation, ledger_id)
        if existing is not None:
            return done("skipped", existing[0], why="it is archived already")
        faults = await check_ledger(self.client, ledger_id, check_all=True, pace=self._pace)
        if faults.doubtful:
            bookies = ", ".join(faults.doubtful)
            return Step(
                what="skipped",
                ledger_id=ledger_id,
                why=f"it is not fully replicated, or not known to be: see to {bookies} (ledgerlog repair)",
            )
        try:
            metadata = await self.client.ledgers.metadata(ledger_id)
        except LedgerNotFound:
            return Step(what="skipped", ledger_id=ledger_id, why="it was deleted meanwhile")
        if not metadata.is_closed or metadata.last_entry is None:
            raise EntryCorrupt(ledger_id, 0, f"log {self.name!r} counts it as closed, and it is not")
        ledger = ArchivedLedger(
            ledger_id=ledger_id,
            first_offset=segment.first_offset,
            end_offset=segment.end_offset,
            last_entry=metadata.last_entry,
        )
        try:
            async with self.writing([ledger], compacted=False) as file:
                async for batches in self._entries(segment, metadata.last_entry):
                    await file.add(batches)
                record = await file.finish()
        except (LedgerNotFound, EntryNotFound, EntryUnavailable) as failure:
            return Step(what="skipped", ledger_id=ledger_id, why=str(failure))
        return await self._record(record)

    async def _entries(self, segment: Segment, last: int) -> AsyncIterator[list[RecordBatch]]:
        reader = await self.client.ledgers.open(segment.ledger_id)
        entry_id, offset = 0, segment.first_offset
        while entry_id <= last:
            payloads = await reader.read_batch(entry_id, last, bytes_max=READ_REPLY_BYTES_TARGET)
            batches = []
            for payload in payloads:
                header, batch = decode_entry(
                    payload, ledger_id=segment.ledger_id, entry_id=entry_id, spliced=segment.spliced
                )
                if header.first_offset != offset:
                    raise EntryCorrupt(
                        segment.ledger_id,
                        entry_id,
                        f"its first offset is {header.first_offset} where log {self.name!r} goes on at "
                        f"{offset}",
                    )
                offset = header.end_offset
                entry_id += 1
                if not header.is_checkpoint:
                    batches.append(batch)
            yield batches
        if offset != segment.end_offset:
            raise EntryCorrupt(
                segment.ledger_id,
                last,
                f"it ends with offset {offset} where log {self.name!r} says {segment.end_offset}",
            )

    @asynccontextmanager
    async def writing(self, ledgers: Sequence[ArchivedLedger], *, compacted: bool) -> AsyncIterator[_Writing]:
        """A new file for these ledgers, for the body of the ``async with``, which adds records and ends with
        ``finish``. ArchiveUnavailable."""
        nonce = self.client.environment.new_token()[:8].hex()
        url = self.destination.url

        def create() -> ArchiveWriter:
            made: ArchiveWriter = self._parquet.ArchiveWriter(
                self.destination,
                directory=self.directory,
                log=self.name,
                incarnation=self.incarnation,
                ledgers=ledgers,
                compacted=compacted,
                nonce=nonce,
            )
            return made

        writer = await in_thread(create, file=url)
        self.mark("file begun")
        writing = _Writing(self, writer, url)
        try:
            yield writing
        except LedgerLogError:
            # Where a thread did not come back from it, or when this is killed, the file is left to ``clean``.
            if not writing.is_published and not writing.is_busy:
                await in_thread(writer.discard, file=url)
            raise

    async def _record(self, record: ArchiveRecord) -> Step:
        """Copy's step 5."""
        path = archive_path(self.incarnation, record.ledger_id)

        async def write(is_unsure: bool) -> Step:
            # Once an answer was lost the record may come yet, and its file must stay.
            metadata, version = await self.logs.read(self.incarnation)
            existing = await self.archives.find(self.incarnation, record.ledger_id)
            if existing is not None:
                found = existing[0]
                if found.token == record.token:
                    return done("copied", record)
                is_rewritten = len(found.ledgers) > 1 or found.compacted
                if found.ledgers[0] != record.ledgers[0] or not (
                    is_rewritten or found.digest == record.digest
                ):
                    raise ArchiveCorrupt(
                        found.file,
                        f"another job archived ledger {record.ledger_id} of log {self.name!r} with other "
                        f"records than bookies gave for {record.file}",
                    )
                if not is_unsure:
                    await self.delete_file(record)
                return done("skipped", found, why="another job has archived it")
            if metadata is None or metadata.index_of(record.ledger_id) is None:
                if not is_unsure:
                    await self.delete_file(record)
                return done("skipped", record, why="its records were truncated away meanwhile")
            if not is_unsure and self.is_late(record):
                await self.delete_file(record)
                return done("skipped", record, why=LATE)
            await self.client.store.transaction(
                [Check(log_record_path(self.incarnation), version), Create(path, record.encode())]
            )
            return done("copied", record)

        step = await settle(self.client.store, write, what=f"the record of archive file {record.file}")
        if step.what == "copied":
            self.mark("recorded")
            logger.info("ledger=%d log=%s archived to %s", record.ledger_id, self.name, redact(record.file))
        return step

    # --- giving up ----------------------------------------------------------------------------

    async def give_up(self, record: ArchiveRecord, ledger_id: int) -> Step:
        """Delete the ledger, whose records are in the file: bookies collect their copies. ``withdrawn`` where
        the file is not what was recorded any more, or is gone. ArchiveUnavailable, MetadataUnavailable."""
        found = await self.archives.find(self.incarnation, record.ledger_id)
        if found is None or found[0] != record:
            return done("skipped", record, why="its archive has changed meanwhile")
        version = found[1]
        ledger = record.ledger(ledger_id)
        assert ledger is not None
        gone: str | None = None
        # Before the look at the file and behind it: what was there may have gone away under it, and what was
        # looked at may have been what lies below a mount point.
        await self.markers.expect(record.file)
        try:
            await check_archive(record)
        except (ArchiveCorrupt, ArchiveUnavailable) as failure:
            if isinstance(failure, ArchiveUnavailable) and not isinstance(
                failure.__cause__, FileNotFoundError
            ):
                raise
            gone = str(failure)
        await self.markers.expect(record.file)
        if gone is not None:
            return await self._withdraw(record, version, ledger_id, gone)
        self.mark("checked again")
        given_up = attrs.evolve(done("given up", record), ledger_id=ledger_id)

        async def write(_: bool) -> Step:
            stored = await self.ledgers.find(ledger_id)
            if stored is None:
                return given_up  # Perhaps by our own transaction, whose answer was lost.
            if stored[0].last_entry != ledger.last_entry:
                raise EntryCorrupt(
                    ledger_id,
                    ledger.last_entry,
                    f"it was archived up to there and ends with {stored[0].last_entry}",
                )
            # Again, for a record that was withdrawn and made anew may have the version of the old one, and
            # its own delay to wait for.
            found = await self.archives.find(self.incarnation, record.ledger_id)
            if found is None or found[0] != record:
                return done("skipped", record, why="its archive has changed meanwhile")
            await self.client.store.transaction(
                [
                    Check(archive_path(self.incarnation, record.ledger_id), found[1]),
                    Delete(ledger_path(ledger_id), stored[1]),
                ]
            )
            return given_up

        step = await settle(self.client.store, write, what=f"giving up the copies of ledger {ledger_id}")
        if step is given_up:
            self.mark("copies given up")
            logger.info("ledger=%d log=%s is in %s alone", ledger_id, self.name, redact(record.file))
        return step

    async def _withdraw(self, record: ArchiveRecord, version: int, ledger_id: int, why: str) -> Step:
        stored = await self.ledgers.find(ledger_id)
        if stored is None or len(record.ledgers) > 1:
            # Nobody else has the records: the file is all there is, and it must be restored.
            raise ArchiveCorrupt(record.file, f"{why}; no bookie has its records any more")
        metadata, _ = await self.logs.read(self.incarnation)
        index = None if metadata is None else metadata.index_of(ledger_id)
        if metadata is None or index is None:
            return done("skipped", record, why="its records were truncated away meanwhile")
        # Who has the metadata of a ledger may have lost its entries. What is left of the file, or a copy of
        # it that is brought back, may be all that there is then, and it is the record that makes it count.
        try:
            async for _ in self._entries(metadata.segments[index], record.ledgers[0].last_entry):
                pass
        except (LedgerNotFound, EntryNotFound, EntryUnavailable, EntryCorrupt) as failure:
            raise ArchiveCorrupt(record.file, f"{why}; and bookies do not give it: {failure}") from failure
        operations: tuple[Operation, ...] = (
            Check(ledger_path(ledger_id), stored[1]),
            Delete(archive_path(self.incarnation, record.ledger_id), version),
        )

        async def write(is_unsure: bool) -> bool:
            try:
                await self.client.store.transaction(operations)
            except (VersionConflict, NodeMissing):
                return is_unsure and await self.archives.find(self.incarnation, record.ledger_id) is None
            return True

        what = f"the withdrawal of archive file {record.file}"
        if not await settle(self.client.store, write, what=what):
            return done("skipped", record, why="its archive has changed meanwhile")
        self.mark("withdrawn")
        logger.warning("ledger=%d log=%s is to be archived again: %s", ledger_id, self.name, why)
        return done("withdrawn", record, why=why)

    # --- what nobody needs --------------------------------------------------------------------

    async def retire(self, record: ArchiveRecord) -> Step:
        """Delete the file of a ledger that its log names no more, and its record. ArchiveUnavailable."""
        found = await self.archives.find(self.incarnation, record.ledger_id)
        if found is None or found[0] != record:
            return done("skipped", record, why="its archive has changed meanwhile")
        metadata, _ = await self.logs.read(self.incarnation)
        if metadata is not None and metadata.index_of(record.ledger_id) is not None:
            return done("skipped", record, why="its log names it")
        # Only files of this log go, in a place that is vouched for: a record is no order.
        self.expect_own(record)
        await self.markers.expect(record.file)
        if not await self.delete_file(record):
            # A job that ended here may have deleted it. Or it is where nobody looks just now, and nobody
            # would ever come back for it.
            await self.markers.expect(record.file)
        self.mark("file deleted")
        path = archive_path(self.incarnation, record.ledger_id)

        async def write(_: bool) -> None:
            with contextlib.suppress(NodeMissing, VersionConflict):  # Another job may have done it.
                await self.client.store.delete(path, version=found[1])

        await settle(self.client.store, write, what=f"the end of the record of archive file {record.file}")
        self.mark("record deleted")
        return done("retired", record)

    def is_late(self, record: ArchiveRecord) -> bool:
        """Whether a file was made so long ago that a cleaner may be about to delete it, since no record names
        it. Then it must not get one any more."""
        age_ms = self.client.environment.now_ms() - record.archived_ms
        return age_ms > 1000 * (ARCHIVE_STRAY_AGE_S - _STRAY_MARGIN_S)

    async def expect_file(self, record: ArchiveRecord) -> None:
        """ArchiveUnavailable where the file of a record that is about to be written is gone; ArchiveCorrupt
        where it is another."""
        _, footer = await in_thread(lambda: self._footer.end_of(record), file=record.file)
        if footer != record.footer:
            raise ArchiveCorrupt(record.file, "it is not the file that was written")

    def expect_own(self, record: ArchiveRecord) -> None:
        """ArchiveCorrupt unless a record names a file of this log and this cluster."""
        _, name = self._destinations.name_of_record(record)
        directory = name.partition("/")[0]
        if directory != self.directory:
            raise ArchiveCorrupt(
                record.file, f"its record names a file in {directory}, and this log's are in {self.directory}"
            )

    async def delete_file(self, record: ArchiveRecord) -> bool:
        """Delete the file that a record names; whether there was one. ArchiveUnavailable, ArchiveCorrupt."""
        return await in_thread(lambda: self._destinations.delete_file(record), file=record.file)


class _Writing:
    """A file that is being written. From ``Archiver.writing``."""

    def __init__(self, archiver: Archiver, writer: ArchiveWriter, url: str) -> None:
        self._archiver = archiver
        self._writer = writer
        self._url = url
        self.is_published = False
        self.is_busy = False
        """Whether a thread is in the file, or was left there."""

    async def add(self, batches: Sequence[RecordBatch]) -> None:
        """The next records."""
        if batches:
            await self._run(lambda: self._writer.add(batches))

    async def _run(self, work: Callable[[], T], *, is_for_all: bool = False) -> T:
        """``work`` on the file; with ``is_for_all`` it has to do with all that was written, and takes its
        time: what is synced, copied or sent to the end is as long as the file."""

        def step() -> T:
            try:
                return work()
            finally:
                self.is_busy = False

        self.is_busy = True
        timeout_s = ARCHIVE_READ_TIMEOUT_S
        if is_for_all:
            timeout_s += self._writer.file_bytes / _BYTES_PER_S_MIN
        return await in_thread(step, file=self._url, timeout_s=timeout_s)

    async def finish(self) -> ArchiveRecord:
        """Give the file its name, read it again, and say what is to be recorded. ArchiveCorrupt where it is
        not what was written."""
        archiver, writer = self._archiver, self._writer
        facts: Facts = await self._run(writer.close, is_for_all=True)
        archiver.mark("file written")
        url = await self._run(lambda: writer.publish(facts), is_for_all=True)
        self.is_published = True
        archiver.mark("file named")
        environment = archiver.client.environment
        file_bytes, footer = await in_thread(lambda: archiver._footer.end_of(url), file=url)
        record = ArchiveRecord(
            log=facts.log,
            incarnation=facts.incarnation,
            file=url,
            file_bytes=file_bytes,
            footer=footer,
            ledgers=facts.ledgers,
            record_count=facts.record_count,
            compacted=facts.compacted,
            digest=facts.digest,
            archived_ms=environment.now_ms(),
            token=environment.new_token(),
        )
        await check_archive(record)
        # A destination that was unmounted under the job has got the file below its mount point.
        await archiver.markers.expect(url)
        archiver.mark("verified")
        return record


def done(what: str, record: ArchiveRecord, *, why: str = "") -> Step:
    """A step about a file."""
    return Step(
        what=what,
        ledger_id=record.ledger_id,
        records=record.record_count,
        bytes=record.file_bytes,
        file=record.file,
        why=why,
    )


async def guarded(work: Awaitable[Step], ledger_id: int) -> Step:
    """What the step says, or that it failed. MetadataUnavailable and the like pass: nothing else would do
    either."""
    try:
        return await work
    except (ArchiveCorrupt, ArchiveUnavailable, EntryCorrupt) as failure:
        logger.error("ledger=%d: %s", ledger_id, failure)
        return Step(what="failed", ledger_id=ledger_id, why=str(failure))
