"""Archiving one log: the steps that ``archive.core.lifecycle`` plans.

The metadata store has a *record* for each archived file: the file's URL, its digest and its ledgers. Below,
"the file's record" means this record. "The log's record" has the log's list of ledgers.

A job may crash at any moment of a step. A later run then finishes the step.

    copy      1  Ask every bookie that should have entries of the ledger whether it has them. If one does not
                 say yes, leave the ledger to auto-recovery.
              2  Read the entries, and write them to a temporary file.
              3  Give the file its name.
              4  Read the whole file again, and check that it has the content that was written.
              5  Create the file's record. The same transaction checks that the log's record has not changed
                 since the job found the ledger in its list.
    give up   1  Read the whole file again, and check that it has the recorded content.
              2  Delete the ledger's metadata, in a transaction that checks the file's record.
    withdraw     If step 1 of "give up" finds the file gone or damaged, and bookies give all entries: delete
                 the file's record, in a transaction that checks the ledger's metadata. A later step copies
                 the ledger again.
    retire    1  Read the file's record and then the log's record. Check that the log's list does not name the
                 ledger.
              2  Delete the file, then its record.
    clean        Delete files in the log's directory that no record names (``archive.jobs.cleaning``).

A destination that is not mounted looks as if its files were gone. So the first job leaves a *marker* at the
destination, a small file (``archive.jobs.claiming``). A step trusts what it reads of a file only if this
marker is there. "Copy" checks the marker after step 4. "Give up" checks the marker before and after step 1.
"Retire" checks the marker before it deletes the file, and again if there is no file to delete.

A crash before step 5 of "copy" leaves a file that no record names; "clean" deletes this file. After a crash
at any other moment, the next plan continues from the state that is left. Two jobs at the same time do some
work twice. If both copy one ledger, the first record stays, and the second job deletes its own file.

Each step reports its progress to ``environment.mark``, under names that begin with "archive:". Tests inject
faults there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs

from ledgerlog.archive.core.lifecycle import ArchivePlan, plan_archive
from ledgerlog.archive.jobs.claiming import Markers, load_destination
from ledgerlog.archive.reader import check_archive, in_thread
from ledgerlog.archive.registry import ArchiveRegistry, DestinationRegistry
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    LedgerLogError,
    LedgerNotFound,
    LogNotFound,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import ARCHIVE_READ_TIMEOUT_S, ARCHIVE_STRAY_AGE_S, MIB, READ_REPLY_BYTES_TARGET
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Check, Create, Delete, NodeMissing, VersionConflict
from ledgerlog.model.archive import ArchiveDestination, ArchivedFile, ArchivedLedger
from ledgerlog.model.layout import archive_path, destination_path, ledger_path, log_record_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.record import RecordBatch
from ledgerlog.model.repair import RepairSettings
from ledgerlog.model.segments import LogSegment
from ledgerlog.redact import redact
from ledgerlog.repair.checking import check_ledger
from ledgerlog.wire.records import decode_entry

if TYPE_CHECKING:
    from ledgerlog.archive.destinations import Destination
    from ledgerlog.archive.file_writer import ArchiveWriter
    from ledgerlog.archive.parquet import Facts

__all__ = ["Archiver", "LogState", "OnStep", "ArchiveStep", "Steps", "done", "guarded"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class ArchiveStep:
    """The result of one step of a job, about one ledger or one file."""

    what: str
    """What happened: ``copied``, ``given up``, ``withdrawn``, ``retired``, ``merged``, ``compacted``,
    ``published``, ``moved`` or ``cleaned``. ``unchanged``, ``skipped`` and ``failed`` mean that no record
    changed."""
    ledger_id: int | None
    """The ledger; for a merged file, the file's first ledger. None for a file without a record and for a
    published table."""
    records: int = 0
    """How many records the file has."""
    bytes: int = 0
    """The size of the file, in bytes."""
    file: str = attrs.field(default="", converter=redact)
    """The URL of the file, without a password. For people."""
    why: str = attrs.field(default="", converter=redact)
    """The reason, for a step that was withdrawn or that changed nothing."""


@attrs.frozen(kw_only=True)
class LogState:
    """The content of the metadata store about a log and its archive."""

    metadata: LogMetadata | None
    """The record of the log; None if the log is gone."""
    version: int
    """The version of this record."""
    records: tuple[tuple[ArchivedFile, int], ...]
    """The records of the archive with their versions, by offset."""
    with_copies: frozenset[int]
    """The ledgers that have metadata, out of those that the log's list or a file's record names. Bookies have
    copies of them."""

    def version_of(self, record: ArchivedFile) -> int:
        """Return the version of one of ``records``."""
        return next(version for found, version in self.records if found == record)


OnStep = Callable[[ArchiveStep], None]
"""Called with each step when it is done."""


class Steps(list[ArchiveStep]):
    """The steps of a job, in order.

    Args:
        on_step: Called with each step; None: nothing is called.
    """

    def __init__(self, on_step: OnStep | None) -> None:
        super().__init__()
        self._on_step = on_step

    def tell(self, step: ArchiveStep) -> None:
        """Add a step that is done."""
        self.append(step)
        if self._on_step is not None:
            self._on_step(step)


LATE = "its new file is too old: a cleaner may delete it as a file that no log names"
_STRAY_MARGIN_S = ARCHIVE_STRAY_AGE_S / 24
"""The largest allowed difference between the clocks of a job, of a cleaner and of the destination, in
seconds."""
_BYTES_PER_S_MIN = 4 * MIB
"""If a destination takes a whole file more slowly than this, it counts as not answering."""


class Archiver:
    """The archive of one log at one destination. ``open_archiver`` makes one. For one task at a time.

    Args:
        client: The cluster.
        name: The name of the log.
        incarnation: The incarnation of the log.
        destination: Where new files go.
        cluster: The cluster's id.
        keep_copies_s: How long bookies keep their copies of an archived ledger, in seconds.
    """

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
        from ledgerlog.archive import destinations, file_writer, footer

        self._footer = footer
        self._file_writer = file_writer
        self._destinations = destinations
        self.client = client
        self.name = name
        self.incarnation = incarnation
        self.destination = destination
        self.markers = Markers(client, cluster)
        self.directory = destinations.log_directory(name, incarnation, cluster)
        """The log's directory below the destination."""
        self._place: ArchiveDestination | None = None
        self.archives = ArchiveRegistry(client.store)
        self.logs = LogRegistry(client.store, client.environment)
        self.ledgers = LedgerRegistry(client.store, client.environment)
        self._keep_copies_ms = round(1000 * keep_copies_s)
        self._pace = Pace(RepairSettings().checks_per_s)

    async def claim(self, *, accept: bool = False) -> None:
        """Claim the destination (``Markers.claim``). Call it before the first step that makes a file.

        From then on the archiver works at the URL that the store has for the destination.
        """
        place = await self.markers.claim(self.destination, incarnation=self.incarnation, accept=accept)
        if place.url != self.destination.url:
            self.destination = await load_destination(place.url)
        self._place = place

    @property
    def destination_id(self) -> bytes:
        """The id of the destination."""
        assert self._place is not None, "claimed"
        return self._place.id

    async def is_here(self, record: ArchivedFile) -> bool:
        """Whether the file of a record lies at this destination."""
        if record.destination:
            return record.destination == self.destination_id
        return await in_thread(
            lambda: self._destinations.lies_at(record.file, self.destination.where()), file=record.file
        )

    async def check_place(self) -> Check:
        """Return the operation that lets a transaction fail if the archive is moved to another place.

        Raises:
            ArchiveUnavailable: It was moved since it was claimed. The new file is at the old place.
        """
        assert self._place is not None, "claimed"
        found = await DestinationRegistry(self.client.store).find(self._place.where)
        if found is None or (found[0].id, found[0].url, found[0].moved_to) != (
            self._place.id,
            self._place.url,
            "",
        ):
            raise ArchiveUnavailable(
                self.destination.url, "the archive was moved from here meanwhile; run the job again"
            )
        return Check(destination_path(self._place.where), found[1])

    def mark(self, step: str) -> None:
        """Report progress to the environment. Tests inject faults here."""
        self.client.environment.mark(f"archive: {step}")

    # --- looking ------------------------------------------------------------------------------

    async def look(self) -> LogState:
        """Read the current state of the log and its archive.

        Raises:
            MetadataUnavailable: The metadata store did not answer.
            MetadataCorrupt: The record of the log or of a file does not decode.
        """
        await self.client.store.sync()
        records = await self.archives.of_log(self.incarnation)
        metadata, version = await self.read_log()
        wanted = {segment.ledger_id for segment in ([] if metadata is None else metadata.segments)}
        wanted.update(ledger.ledger_id for record, _ in records for ledger in record.ledgers)
        with_copies = [each for each in sorted(wanted) if await self._has_metadata(each)]
        return LogState(
            metadata=metadata, version=version, records=tuple(records), with_copies=frozenset(with_copies)
        )

    async def read_log(self) -> tuple[LogMetadata | None, int]:
        """Read the log's record and its version; (None, -1) if the log was deleted.

        Raises:
            MetadataCorrupt: The record does not decode. Or it is lost: the log's name still leads to it.
        """
        metadata, version = await self.logs.read(self.incarnation)
        if metadata is None:
            why = await self.logs.why_missing(self.name, self.incarnation)
            if not isinstance(why, LogNotFound):
                raise why
        return metadata, version

    async def _has_metadata(self, ledger_id: int) -> bool:
        """Whether a ledger has metadata, even if they do not decode. In that case the ledger's step fails."""
        try:
            return await self.ledgers.find(ledger_id) is not None
        except MetadataCorrupt:
            return True

    async def look_at(self, ledger_id: int) -> LogState:
        """Read the current state of the log, and of one ledger's part of the archive.

        ``LogState.metadata`` is the whole list. ``LogState.records`` has at most the record that is stored
        under the ledger, and ``LogState.with_copies`` at most this ledger.

        Raises:
            MetadataUnavailable: The metadata store did not answer.
            MetadataCorrupt: The record of the log or of the file does not decode.
        """
        await self.client.store.sync()
        found = await self.archives.find(self.incarnation, ledger_id)
        metadata, version = await self.read_log()
        is_there = await self._has_metadata(ledger_id)
        return LogState(
            metadata=metadata,
            version=version,
            records=() if found is None else (found,),
            with_copies=frozenset((ledger_id,) if is_there else ()),
        )

    def plan(self, state: LogState) -> ArchivePlan:
        """Decide which steps may be done now."""
        return plan_archive(
            state.metadata,
            [record for record, _ in state.records],
            state.with_copies,
            now_ms=self.client.environment.now_ms(),
            keep_copies_ms=self._keep_copies_ms,
        )

    # --- copying ------------------------------------------------------------------------------

    async def copy(self, segment: LogSegment) -> ArchiveStep:
        """Archive one counted ledger of the log. Counted: the ledger is closed, and the log's list says how
        many records it has.

        Args:
            segment: The ledger's segment in the log's list. It must have records.

        Returns:
            A step that was ``copied``; or ``skipped``, with the reason, if the ledger cannot be archived now.

        Raises:
            ArchiveUnavailable: The destination failed, did not answer in time, or its marker is missing.
            ArchiveCorrupt: The new file does not have the content that was written, or another job archived
                other records.
            EntryCorrupt: The ledger's entries are not the entries that the log counts.
            MetadataUnavailable: The metadata store did not answer. The ledger is not archived by this call.
            MetadataOutcomeUnknown: The ledger may be archived or not. Run the job again.
        """
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
            return ArchiveStep(
                what="skipped",
                ledger_id=ledger_id,
                why=f"it may not be fully replicated: {bookies} may lack entries. `ledgerlog repair audit "
                "--entries all` makes a task for auto-recovery, which must repair it first",
            )
        try:
            metadata = await self.client.ledgers.metadata(ledger_id)
        except LedgerNotFound:
            return ArchiveStep(what="skipped", ledger_id=ledger_id, why="it was deleted in the meantime")
        if not metadata.is_closed or metadata.last_entry is None:
            raise EntryCorrupt(ledger_id, 0, f"log {self.name!r} counts it as closed, but it is not closed")
        ledger = ArchivedLedger(
            ledger_id=ledger_id,
            first_offset=segment.first_offset,
            end_offset=segment.end_offset,
            last_entry=metadata.last_entry,
        )
        last_entry = metadata.last_entry
        try:
            record = await self.write_file(
                [ledger], lambda: self._entries(segment, last_entry), compacted=False
            )
        except (LedgerNotFound, EntryNotFound, EntryUnavailable) as failure:
            return ArchiveStep(what="skipped", ledger_id=ledger_id, why=str(failure))
        return await self._record(record)

    async def _entries(self, segment: LogSegment, last: int) -> AsyncGenerator[list[RecordBatch], None]:
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
                        f"its first offset is {header.first_offset}, but log {self.name!r} continues at "
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

    async def write_file(
        self,
        ledgers: Sequence[ArchivedLedger],
        pages: Callable[[], AsyncGenerator[list[RecordBatch], None]],
        *,
        compacted: bool,
    ) -> ArchivedFile:
        """Write a file of records.

        A file has columns for keys and headers only if a record has a key or headers. This method begins
        without these columns. At the first record with a key or headers, it drops the file, begins a new one
        with these columns, and reads the records a second time.

        Args:
            ledgers: The ledgers, in the order of the log.
            pages: Reads the records, from the first one on.
            compacted: Whether records may be missing because of compaction.

        Returns:
            The record of the file, which is not stored yet.

        Raises:
            ArchiveUnavailable: The destination failed, did not answer in time, or its marker is missing.
            ArchiveCorrupt: The file does not have the content that was written.
        """
        try:
            return await self._write_file(ledgers, pages, compacted=compacted, has_attributes=False)
        except self._file_writer.AttributesFound:
            return await self._write_file(ledgers, pages, compacted=compacted, has_attributes=True)

    async def _write_file(
        self,
        ledgers: Sequence[ArchivedLedger],
        pages: Callable[[], AsyncGenerator[list[RecordBatch], None]],
        *,
        compacted: bool,
        has_attributes: bool,
    ) -> ArchivedFile:
        async with (
            self._writing(ledgers, compacted=compacted, has_attributes=has_attributes) as file,
            aclosing(pages()) as read,
        ):
            async for batches in read:
                await file.add(batches)
            return await file.finish()

    @asynccontextmanager
    async def _writing(
        self, ledgers: Sequence[ArchivedLedger], *, compacted: bool, has_attributes: bool
    ) -> AsyncIterator[_Writing]:
        """Create a file for some ledgers, for the body of the ``async with``.

        The body adds the records and ends with ``finish``. If the body raises an error before the file has
        its name, the file is deleted.

        Args:
            ledgers: The ledgers, in the order of the log.
            compacted: Whether records may be missing because of compaction.
            has_attributes: Whether the file gets columns for keys and headers.

        Raises:
            ArchiveUnavailable: The destination failed or did not answer in time.
        """
        nonce = self.client.environment.new_token()[:8].hex()
        url = self.destination.url

        def create() -> ArchiveWriter:
            made: ArchiveWriter = self._file_writer.ArchiveWriter(
                self.destination,
                directory=self.directory,
                log=self.name,
                incarnation=self.incarnation,
                ledgers=ledgers,
                compacted=compacted,
                nonce=nonce,
                has_attributes=has_attributes,
            )
            return made

        writer = await in_thread(create, file=url)
        self.mark("file begun")
        writing = _Writing(self, writer, url)
        try:
            yield writing
        except LedgerLogError:
            # If a thread is still busy with the file, leave the file to ``clean``. ``clean`` also deletes it
            # if this process is killed.
            if not writing.is_published and not writing.is_busy:
                await in_thread(writer.discard, file=url)
            raise

    async def _record(self, record: ArchivedFile) -> ArchiveStep:
        """Create the record of a new file: step 5 of "copy"."""
        path = archive_path(self.incarnation, record.ledger_id)

        async def write(is_unsure: bool) -> ArchiveStep:
            # After a lost answer (``is_unsure``), the store may have created the record or may still create
            # it. The new file must then stay.
            metadata, version = await self.read_log()
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
                        f"another job archived ledger {record.ledger_id} of log {self.name!r} with records "
                        f"that differ from those that bookies returned for {record.file}",
                    )
                if not is_unsure:
                    await self.delete_file(record)
                return done("skipped", found, why="another job has archived it")
            if metadata is None or metadata.index_of(record.ledger_id) is None:
                if not is_unsure:
                    await self.delete_file(record)
                return done("skipped", record, why="its records were truncated in the meantime")
            if not is_unsure and self.is_late(record):
                await self.delete_file(record)
                return done("skipped", record, why=LATE)
            await self.client.store.transaction(
                [
                    Check(log_record_path(self.incarnation), version),
                    await self.check_place(),
                    Create(path, record.encode()),
                ]
            )
            return done("copied", record)

        step = await settle(self.client.store, write, what=f"the record of archive file {record.file}")
        if step.what == "copied":
            self.mark("recorded")
            logger.info("ledger=%d log=%s archived to %s", record.ledger_id, self.name, redact(record.file))
        return step

    # --- giving up ----------------------------------------------------------------------------

    async def give_up(self, record: ArchivedFile, ledger_id: int) -> ArchiveStep:
        """Delete the metadata of a ledger whose records are in a file. Bookies then collect their copies.

        Args:
            record: The record of the file.
            ledger_id: A ledger of the file.

        Returns:
            A step that was ``given up``. ``withdrawn``: the file is gone or damaged, so its record was
            deleted; bookies have all entries. ``skipped``: the archive or the log has changed meanwhile.

        Raises:
            ArchiveUnavailable: The file could not be read, or the marker of its destination is missing.
            ArchiveCorrupt: The file is gone or damaged, and bookies do not have all its entries either.
            EntryCorrupt: The ledger does not end with the entry that was archived last.
            MetadataUnavailable: The metadata store did not answer. This call changed nothing.
            MetadataOutcomeUnknown: The change may have happened or not. Run the job again.
        """
        found = await self.archives.find(self.incarnation, record.ledger_id)
        if found is None or found[0] != record:
            return done("skipped", record, why="its archive changed in the meantime")
        ledger = record.ledger(ledger_id)
        assert ledger is not None
        gone: str | None = None
        # Check the marker before the read and again after it. If the destination is unmounted in between,
        # another file may appear in this place: one that lies below the mount point.
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
            return await self._withdraw(record, ledger_id, gone)
        self.mark("checked again")
        given_up = attrs.evolve(done("given up", record), ledger_id=ledger_id)

        async def write(_: bool) -> ArchiveStep:
            stored = await self.ledgers.find(ledger_id)
            if stored is None:
                return given_up  # Perhaps our own transaction deleted it, and its answer was lost.
            if stored[0].last_entry != ledger.last_entry:
                raise EntryCorrupt(
                    ledger_id,
                    ledger.last_entry,
                    f"it was archived up to this entry and now ends with entry {stored[0].last_entry}",
                )
            # Read the file's record again. Jobs may have withdrawn it and made a new one. The new record may
            # have the same version number, and its delay is not over.
            found = await self.archives.find(self.incarnation, record.ledger_id)
            if found is None or found[0] != record:
                return done("skipped", record, why="its archive changed in the meantime")
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
            logger.info("ledger=%d log=%s is only in %s now", ledger_id, self.name, redact(record.file))
        return step

    async def _withdraw(self, record: ArchivedFile, ledger_id: int, why: str) -> ArchiveStep:
        """Delete the record of a file that is gone or damaged, if bookies have all its entries."""
        stored = await self.ledgers.find(ledger_id)
        if stored is None or len(record.ledgers) > 1:
            # Only the file has all the records, so it must be restored.
            raise ArchiveCorrupt(record.file, f"{why}; no bookie has its records now")
        metadata, _ = await self.read_log()
        index = None if metadata is None else metadata.index_of(ledger_id)
        if metadata is None or index is None:
            return done("skipped", record, why="its records were truncated in the meantime")
        # The metadata of a ledger may exist although its entries are lost. Then only the damaged file, or a
        # copy of this file that an operator restores, may hold the records. Readers find a file only by its
        # record, so keep the record.
        try:
            async for _ in self._entries(metadata.segments[index], record.ledgers[0].last_entry):
                pass
        except (LedgerNotFound, EntryNotFound, EntryUnavailable, EntryCorrupt) as failure:
            raise ArchiveCorrupt(
                record.file, f"{why}; and it cannot be read from bookies: {failure}"
            ) from failure

        is_same_ledger = Check(ledger_path(ledger_id), stored[1])

        async def write(is_unsure: bool) -> bool:
            # Read the file's record again, for the reason that ``give_up`` gives.
            found = await self.archives.find(self.incarnation, record.ledger_id)
            if found is None or found[0] != record:
                return is_unsure and found is None
            withdrawal = Delete(archive_path(self.incarnation, record.ledger_id), found[1])
            try:
                await self.client.store.transaction([is_same_ledger, withdrawal])
            except (VersionConflict, NodeMissing):
                return is_unsure and await self.archives.find(self.incarnation, record.ledger_id) is None
            return True

        what = f"the withdrawal of archive file {record.file}"
        if not await settle(self.client.store, write, what=what):
            return done("skipped", record, why="its archive changed in the meantime")
        self.mark("withdrawn")
        logger.warning("ledger=%d log=%s will be archived again: %s", ledger_id, self.name, why)
        return done("withdrawn", record, why=why)

    # --- retiring, and checks of files --------------------------------------------------------

    async def retire(self, record: ArchivedFile) -> ArchiveStep:
        """Delete a file whose ledgers are no longer in the log's list, then delete the file's record.

        Returns:
            A step that was ``retired``; or ``skipped``, with the reason.

        Raises:
            ArchiveUnavailable: The file could not be deleted, or the marker of its destination is missing.
            ArchiveCorrupt: The record names a file that is not this log's. Nothing was deleted.
            MetadataUnavailable: The metadata store did not answer. The record is still there.
            MetadataOutcomeUnknown: The record may be deleted or not. Run the job again.
        """
        found = await self.archives.find(self.incarnation, record.ledger_id)
        if found is None or found[0] != record:
            return done("skipped", record, why="its archive changed in the meantime")
        metadata, _ = await self.read_log()
        if metadata is not None and metadata.index_of(record.ledger_id) is not None:
            return done("skipped", record, why="its log names it")
        # The record is data and is not trusted: delete only files of this log, at a destination with its
        # marker.
        self.expect_own(record)
        await self.markers.expect(record.file)
        if not await self.delete_file(record):
            # The file is not there. Perhaps a job deleted it and then crashed. Or the destination was just
            # unmounted. In that case keep the record; without it, no job would ever delete the file.
            await self.markers.expect(record.file)
        self.mark("file deleted")
        path = archive_path(self.incarnation, record.ledger_id)

        async def write(_: bool) -> None:
            with contextlib.suppress(NodeMissing, VersionConflict):  # Another job may have deleted it.
                await self.client.store.delete(path, version=found[1])

        await settle(self.client.store, write, what=f"the end of the record of archive file {record.file}")
        self.mark("record deleted")
        return done("retired", record)

    def is_late(self, record: ArchivedFile) -> bool:
        """Whether a file without a record is so old that a cleaner may be about to delete it.

        Such a file must not get a record after this.
        """
        age_ms = self.client.environment.now_ms() - record.archived_ms
        return age_ms > 1000 * (ARCHIVE_STRAY_AGE_S - _STRAY_MARGIN_S)

    async def expect_file(self, record: ArchivedFile) -> None:
        """Check that a file is there, before its record is written.

        Raises:
            ArchiveUnavailable: The file is gone or cannot be read.
            ArchiveCorrupt: Another file is in its place.
        """
        _, footer = await in_thread(lambda: self._footer.end_of(record), file=record.file)
        if footer != record.footer:
            raise ArchiveCorrupt(record.file, "it is not the file that was written")

    def expect_own(self, record: ArchivedFile) -> None:
        """Check that a record names a file of this log and this cluster.

        Raises:
            ArchiveCorrupt: It names another file.
        """
        _, name = self._destinations.name_of_record(record)
        directory = name.partition("/")[0]
        if directory != self.directory:
            raise ArchiveCorrupt(
                record.file,
                (
                    f"its record names a file in {directory}, but the files of this log are in "
                    f"{self.directory}"
                ),
            )

    async def expect_answer_after(self, failure: LedgerLogError) -> None:
        """If a step failed because a file is unavailable, check that the destination answers at all.

        Otherwise a job would try thousands of files, and would wait for a dead server at each of them.

        Raises:
            ArchiveUnavailable: The destination does not answer. End the job.
        """
        if isinstance(failure, ArchiveUnavailable):
            await in_thread(self.destination.expect_answer, file=self.destination.url)

    async def delete_file(self, record: ArchivedFile) -> bool:
        """Delete the file that a record names; return whether it was there.

        Raises:
            ArchiveUnavailable: The destination failed or did not answer in time.
            ArchiveCorrupt: The record names a file that cannot be its own. Nothing was deleted.
        """
        return await in_thread(lambda: self._destinations.delete_file(record), file=record.file)


class _Writing:
    """A file that is being written. ``Archiver._writing`` makes one."""

    def __init__(self, archiver: Archiver, writer: ArchiveWriter, url: str) -> None:
        self._archiver = archiver
        self._writer = writer
        self._url = url
        self.is_published = False
        self.is_busy = False
        """Whether a thread uses the file, perhaps after its caller stopped waiting."""

    async def add(self, batches: Sequence[RecordBatch]) -> None:
        """Add the next records."""
        if batches:
            await self._run(lambda: self._writer.add(batches))

    async def _run(self, work: Callable[[], T], *, is_for_all: bool = False) -> T:
        """Run ``work`` on the file, in a thread.

        With ``is_for_all``, ``work`` handles all bytes of the file; for example, it syncs or uploads the
        file. The deadline then grows with the size of the file.
        """

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

    async def finish(self) -> ArchivedFile:
        """Give the file its name, and read it again.

        Returns:
            The record of the file, which is not stored yet.

        Raises:
            ArchiveUnavailable: The destination failed, did not answer in time, or its marker is missing.
            ArchiveCorrupt: The file does not have the content that was written.
        """
        archiver, writer = self._archiver, self._writer
        facts: Facts = await self._run(writer.close, is_for_all=True)
        archiver.mark("file written")
        url = await self._run(lambda: writer.publish(facts), is_for_all=True)
        self.is_published = True
        archiver.mark("file named")
        environment = archiver.client.environment
        file_bytes, footer = await in_thread(lambda: archiver._footer.end_of(url), file=url)
        if footer != writer.end:
            # Do not decode it: a damaged end may end this process (``archive.footer``).
            raise ArchiveCorrupt(url, "it is damaged: its end is not the one that was written")
        record = ArchivedFile(
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
            destination=archiver.destination_id,
        )
        await check_archive(record)
        # Without the marker, the destination may have been unmounted during the write. Then the new file lies
        # below the mount point.
        await archiver.markers.expect(url)
        archiver.mark("verified")
        return record


def done(what: str, record: ArchivedFile, *, why: str = "") -> ArchiveStep:
    """Make a step about a file."""
    return ArchiveStep(
        what=what,
        ledger_id=record.ledger_id,
        records=record.record_count,
        bytes=record.file_bytes,
        file=record.file,
        why=why,
    )


async def guarded(archiver: Archiver, work: Awaitable[ArchiveStep], ledger_id: int) -> ArchiveStep:
    """Wait for a step. If a file, an entry or the ledger's metadata are at fault, return a ``failed`` step.

    Other errors, for example MetadataUnavailable, are raised: every later step would fail the same way.

    Raises:
        ArchiveUnavailable: The destination does not answer.
    """
    try:
        return await work
    except (ArchiveCorrupt, ArchiveUnavailable, EntryCorrupt, MetadataCorrupt) as failure:
        logger.error("ledger=%d: %s", ledger_id, failure)
        await archiver.expect_answer_after(failure)
        return ArchiveStep(what="failed", ledger_id=ledger_id, why=str(failure))
