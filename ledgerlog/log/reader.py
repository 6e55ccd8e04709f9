"""Reading a log: its records in order, across its ledgers, fetched ahead of the user's iteration.

One task fetches. It reads ranges of entries, decodes them by the batch, and puts the batches into a buffer of
at most ``limits.LOG_READ_AHEAD_BYTES``. The user's iteration takes the batches out. If several readers of
this process follow the same ledger, they share the waiting, the reading and the decoding (``ledger.tail``).
The task goes from ledger to ledger by itself. It reads an open ledger up to the ledger's LAC (last add
confirmed), so it never shows a record that could still be lost. With ``follow``, it waits at the end of an
open ledger for a higher LAC. At the end of a closed ledger, it waits until the log's record lists the next
ledger.

**Order.** Every entry carries the offset of its first record. That offset must be the one that the reader
expects, so the reader skips no record and shows none twice. There is one exception: two ledgers were open
together, and the newer one does not continue the older one. Nothing in the newer ledger was ever
acknowledged, and the next leader counts the newer ledger as empty. So the reader skips the newer ledger.

**A loss at the end.** If an operator accepts a loss at the end of a log, new records get the offsets of the
lost ones. A reader may have read the lost records before. If the next ledger then begins with an offset that
the reader has read already, it raises EntryCorrupt: it would otherwise skip the new records with those
offsets. If the ledger that it has read has left the list meanwhile, it compares the epoch of the last record
that it has read with the log's record at that offset. Only this reader can know that. A new reader, which
starts at an offset that it is given, cannot.

**A roll that takes long.** After a roll, the older ledger may stay open for long: until its last entries have
their write quorum, or until the metadata store is back. Meanwhile the leader acknowledges records in the
newer ledger. The reader need not wait for the close, because a leader sends nothing to the older ledger once
it has sent to the newer one. If the newer ledger begins with the offset at which the confirmed records of the
older one end, no record lies between them, and the reader continues in the newer ledger. For example, the
older ledger is confirmed up to offset 99 and the newer one begins with offset 100.

**Archives.** If no bookie serves a ledger, the reader reads its archive file instead (``archive.reader``),
from the offset that it has reached. That happens if the bookies' copies were deleted after archiving, if no
bookie answers, or if every copy of an entry is lost or damaged. The records are the same: bytes, positions
and timestamps. Only a compacted file lacks records. Offsets then grow with gaps, and a ``dense`` reader
raises Truncated instead.

**Lost records.** If an operator accepted a loss in the middle of a log, the segment after the gap says how
many offsets were lost (``model.log``). Every reader raises ``RecordsLost`` once when it comes to such a gap.
If you iterate again, it continues after the gap. After a restore of the metadata, a log may have such a loss
too. Until the operator has decided, no reader shows the records after the loss. A reader that would end there
raises ``LossUndecided``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from typing import Literal, Protocol

import trio

from ledgerlog.archive.reader import open_archive
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import race
from ledgerlog.concurrency.nurseries import background, holds_cancellation
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import (
    ArchiveUnavailable,
    ConnectionClosed,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    MetadataUnavailable,
    RecordsLost,
    Truncated,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.tail import LedgerTail
from ledgerlog.limits import LOG_READ_AHEAD_BYTES, READ_REPLY_BYTES_TARGET
from ledgerlog.log.positions import (
    NOT_ON_BOOKIES,
    ReadPosition,
    continues,
    find_moment,
    find_offset,
    find_offset_in_ledger,
    find_position,
    find_tail,
    find_undecided_loss,
)
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.ids import Position, is_offset
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.record import Record, RecordBatch, milliseconds
from ledgerlog.model.segments import LogSegment
from ledgerlog.wire.records import EntryHeader, decode_entry

__all__ = ["Batches", "LogReader", "Start", "check_start", "in_use", "open_reader"]

Start = int | Position | datetime | Literal["earliest", "latest"]
"""Where reading begins: an offset, a position, a time, the first record or the tail. See ``Log.read``."""

_RECORD_COST_BYTES = 48
"""Memory that a record costs in addition to its bytes. Counting it keeps the buffer within its bound even if
records are tiny."""

_NO_RECORDS: Iterator[Record] = iter(())

_Entry = tuple[EntryHeader, RecordBatch, int]
"""A decoded entry: its header, its records, and the bytes that they take."""


def check_start(start: Start, until: int | None) -> None:
    """Raise InvalidArgument if ``start`` is not a valid start, or ``until`` is not an offset."""
    is_place = is_offset(start) or isinstance(start, datetime) or start in ("earliest", "latest")
    if not (is_place or (isinstance(start, Position) and all(map(is_offset, start)))):
        raise InvalidArgument(
            f"{start!r} does not say where to start: an offset, a Position, a datetime, 'earliest' or "
            f"'latest'"
        )
    if until is not None and not is_offset(until):
        raise InvalidArgument(f"{until!r} is not an offset to stop at")


def in_use() -> InvalidArgument:
    """Return the error of a call on a reader while another call is under way."""
    return InvalidArgument(
        "another call on this reader is under way: a reader is for one task or thread at a time, so open one "
        "for each"
    )


class LogReader:
    """The records of a log, as an async iterator. Enter ``Log.read`` to get one.

    One task at a time may use it. If another task calls it meanwhile, that call raises InvalidArgument and
    changes nothing. Iterating gives ``Record`` objects; ``batches`` gives the same records by the batch.

    Offsets grow by one from record to record, except where compaction of the archive has removed records, and
    at a gap of lost records.

    The reader fetches ahead. If it meets an error, you first get the records that it fetched before the
    error. If nothing is fetched ahead, iterating is a checkpoint. Cancelling loses no record.

    Iterating raises:

    - Truncated: records that you have not read yet have been truncated. The error's ``first_offset`` is the
      first offset that you can still read.
    - RecordsLost, a subclass of Truncated: the reader came to a gap of lost records. Raised once for each
      gap; iterate again to continue after the gap.
    - LossUndecided: an operator has not decided about a loss yet, and reading would end at that loss.
    - EntryUnavailable: no bookie answers for an entry. Or a reader without ``follow`` has read all that it
      knows, and too few bookies can say whether there is more. Retryable.
    - EntryNotFound: bookies have lost an entry.
    - LedgerNotFound: the metadata store has lost a ledger of the log.
    - EntryCorrupt: every copy of an entry is damaged, or the entry does not continue the log. The latter also
      if the log has lost records that this reader has read, and gives their offsets to other records.
    - PermissionDenied: this client has no right to read the log, or has lost it.
    - MetadataUnavailable: the metadata store cannot be reached. A reader that follows an open ledger goes on
      without it, unless there is no new record for ``limits.METADATA_TIMEOUT_S``. Retryable.
    - LogNotFound: the log was deleted.
    - ArchiveUnavailable: the archive file cannot be read now. Retryable.
    - ArchiveCorrupt: the archive file is damaged.
    - ArchiveSupportMissing: the records are in an archive, and the packages that read it are not installed.
    - ConnectionClosed: the ``async with`` was left.
    - InvalidArgument: another task waits for a record of this reader. The reader continues.

    After any error but RecordsLost and InvalidArgument the reader has ended, and iterating raises the same
    error again. Enter ``Log.read`` again: after Truncated from ``first_offset``, otherwise from
    ``next_offset``. After a loss of records that you have read, start at the offset that the error names.
    """

    def __init__(
        self,
        client: LedgerClient,
        registry: LogRegistry,
        metadata: LogMetadata,
        version: int,
        place: ReadPosition,
        *,
        first_offset: int,
        not_before_ms: int,
        until: int | None,
        follow: bool,
        dense: bool,
    ) -> None:
        self._client = client
        self._archives = ArchiveRegistry(client.store)
        self._dense = dense
        self._registry = registry
        self._metadata = metadata
        self._version = version
        self._place = place
        self._first_offset = first_offset
        self._not_before_ms = not_before_ms
        self._until = until
        self._follow = follow
        self._buffer: deque[tuple[RecordBatch | RecordsLost, int]] = deque()
        self._buffered_bytes = 0
        self._filled = trio.Event()
        self._taken = trio.Event()
        self._is_complete = False
        self._failure: LedgerLogError | None = None
        self._batch: RecordBatch | None = None
        self._records = _NO_RECORDS
        self._is_in_use = False
        self._next_offset = max(first_offset, place.offset)
        self._offset = place.offset
        """The offset of the first record of the next entry to fetch."""
        self._last: tuple[int, int] | None = None
        """Offset and epoch of the last record that was fetched; None before the first."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record, as far as the reader knows.

        It is the offset after the last record that you got. Before the first record, it is the offset where
        reading starts.
        """
        return self._next_offset

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> Record:
        for record in self._records:
            self._next_offset = record.offset + 1
            return record
        while True:
            batch = await self._take()
            if batch is None:
                raise StopAsyncIteration
            self._batch = batch
            self._records = iter(batch)
            for record in self._records:
                self._next_offset = record.offset + 1
                return record

    def batches(self) -> AsyncIterator[RecordBatch]:
        """Iterate by the batch, for example for a replay.

        Both ways of iterating share one place in the log. If you take a few records one by one and then a
        batch, the batch begins with the next record.

        Returns:
            An async iterator of ``RecordBatch``. It raises the same errors as iterating over records.
        """
        return Batches(self)

    async def _next_batch(self) -> RecordBatch | None:
        begun, self._batch, self._records = self._batch, None, _NO_RECORDS
        if begun is not None and self._next_offset < begun.end_offset:
            batch: RecordBatch | None = begun.between(self._next_offset)
        else:
            batch = await self._take()
        if batch is not None:
            self._next_offset = batch.end_offset
        return batch

    async def _take(self) -> RecordBatch | None:
        """Take the next batch from the buffer; None at the end."""
        if self._is_in_use:
            raise in_use()
        self._is_in_use = True
        try:
            while not self._buffer:
                if self._is_complete:
                    await trio.lowlevel.checkpoint()
                    if self._failure is not None:
                        raise fresh(self._failure)
                    return None
                self._filled = trio.Event()
                await self._filled.wait()
        finally:
            self._is_in_use = False
        taken, cost = self._buffer.popleft()
        self._buffered_bytes -= cost
        self._taken.set()
        if isinstance(taken, RecordsLost):
            self._next_offset = max(self._next_offset, taken.first_offset)
            raise taken
        return taken

    def _leave(self) -> None:
        """Drop what was fetched: the ``async with`` has ended, and iterating says so."""
        self._batch, self._records = None, _NO_RECORDS
        self._buffer.clear()
        self._failure = self._was_left()

    def _was_left(self) -> ConnectionClosed:
        return ConnectionClosed(f"the reader of log {self._metadata.name!r} was left")

    # --- the task that fetches ----------------------------------------------------------------

    async def _fetch(self) -> None:
        try:
            await self._walk()
        except LedgerLogError as failure:
            self._failure = failure
        except BaseException as error:
            if holds_cancellation(error):
                self._failure = self._was_left()
            raise
        finally:
            self._is_complete = True
            self._filled.set()

    async def _walk(self) -> None:
        segment, entry_id = self._place.segment, self._place.entry_id
        while not self._is_past_until():
            if segment is not None and entry_id is not None and segment.record_count != 0:
                try:
                    goes_on = await self._read_segment(segment, entry_id)
                except NOT_ON_BOOKIES as failure:
                    goes_on = await self._read_elsewhere(segment, failure)
                if not goes_on:
                    return
            segment, entry_id = await self._next_segment(segment), 0
            if segment is None:
                return
            self._pass_gap(segment)

    def _pass_gap(self, segment: LogSegment) -> None:
        """Report the records that were lost before a segment, if the reader comes to the start of that
        segment."""
        first = segment.first_offset
        if segment.lost_before and first is not None and self._offset < first:
            lost_from = first - segment.lost_before
            self._buffer.append((RecordsLost(self._metadata.name, lost_from, first), 0))
            self._filled.set()
            self._offset = first

    def _is_past_until(self) -> bool:
        return self._until is not None and self._offset >= self._until

    async def _read_segment(self, segment: LogSegment, entry_id: int) -> bool:
        """Read one ledger from an entry to its end; False if reading ends with it."""
        reader = await self._client.ledgers.open(segment.ledger_id)

        def decode(entry_id: int, payload: bytes) -> tuple[_Entry, int]:
            header, batch = decode_entry(
                payload, ledger_id=segment.ledger_id, entry_id=entry_id, spliced=segment.spliced
            )
            size = max(len(payload), header.byte_length)
            return (header, batch, size), size + _RECORD_COST_BYTES * len(batch)

        if not self._follow:
            return await self._read_ledger(segment, entry_id, LedgerTail(reader, decode))
        with self._client.tails.follow(segment.ledger_id, segment.spliced, reader, decode) as tail:
            return await self._read_ledger(segment, entry_id, tail)

    async def _read_ledger(self, segment: LogSegment, entry_id: int, tail: LedgerTail[_Entry]) -> bool:
        reader = tail.reader
        doubt: EntryUnavailable | None = None
        if self._follow:
            last = await reader.find_readable()
        else:
            last, doubt = await reader.known_end()
        if entry_id == 0 and segment.first_offset is not None and self._offset > segment.first_offset:
            # The place was found in the archive file, and bookies answer again: in the ledger it may lie
            # within an entry. Or the ledger that was read last has left the list.
            place = await find_offset_in_ledger(self._client.ledgers, segment, self._step_back())
            assert place.entry_id is not None
            entry_id, self._offset = place.entry_id, place.offset

        def take(taken: int, entry: _Entry) -> bool:
            """Take an entry in another follower's task, unless this reader has to look at it itself."""
            nonlocal entry_id
            header, _, _ = entry
            is_last = self._until is not None and header.end_offset >= self._until
            is_read = self._last is not None and self._last[0] >= header.first_offset
            if is_last or is_read or self._is_full or header.first_offset != self._offset:
                return False  # If the entry has a record that was read before, ``_note`` may raise.
            if not self._deliver(segment, taken, entry):
                return False
            entry_id = taken + 1
            return True

        before = entry_id
        is_idle = is_looking = is_continued = False

        def has_news() -> bool:
            return entry_id > before or reader.readable >= entry_id or reader.is_closed

        async def wait() -> None:
            """Follow the ledger for one poll; if a look is under way, until it ends or there is news."""
            while True:
                await tail.follow(entry_id, take)
                await self._wait_taken()
                if has_news() or not is_looking:
                    return

        async def look() -> None:
            """Return once it is known that the log is continued in a newer ledger."""
            nonlocal is_looking, is_continued
            # ``tail.follow`` raises MetadataUnavailable when it is time. If bookies are away, wait for them.
            with suppress(MetadataUnavailable, EntryUnavailable):
                is_continued = await self._is_continued(segment)
            is_looking = False
            if not is_continued:
                await trio.sleep_forever()

        while True:
            while entry_id <= last:
                for entry in await tail.read(entry_id, last):
                    if not self._deliver(segment, entry_id, entry):
                        return True
                    entry_id += 1
                    if self._is_full:
                        await self._wait_taken()  # Decompressed entries are larger than the reply.
                if self._is_past_until():
                    return False
            if reader.is_closed:
                end = reader.metadata.last_entry
                assert end is not None
                if entry_id > end:
                    self._check_end(segment, end)
                    return True
                last = end
            elif not self._follow:
                is_continued = await self._is_continued(segment)
                if doubt is not None and not is_continued:
                    raise doubt  # There may be more acknowledged records.
                return is_continued
            else:
                before = entry_id
                # Look if the last poll brought nothing. Wait for entries meanwhile: a look may take long.
                is_looking, is_continued = is_idle, False
                await (race(wait, look) if is_idle else wait())
                last = reader.readable
                is_idle = not has_news()
                if is_idle and is_continued:
                    return True

    def _check_end(self, segment: LogSegment, last_entry: int) -> None:
        """Raise EntryNotFound if a ledger ends before the end at which the list counts its records. The rest
        may be in an archive."""
        end = segment.end_offset
        if end is not None and end > max(self._offset, self._metadata.first_offset):
            raise EntryNotFound(
                segment.ledger_id,
                last_entry + 1,
                f"log {self._metadata.name!r} counts its records up to offset {end}, but the ledger was "
                f"closed at offset {self._offset}",
            )

    async def _is_continued(self, segment: LogSegment) -> bool:
        """Whether the next ledger is known to begin at the current offset, although this ledger is not
        closed."""
        await self._refresh()
        following = self._after(segment)
        return following is not None and await continues(self._client.ledgers, following, self._offset)

    def _deliver(self, segment: LogSegment, entry_id: int, entry: _Entry) -> bool:
        """Put the records of one entry into the buffer; False if the ledger does not continue the log."""
        header, batch, size = entry
        if header.first_offset != self._offset:
            if entry_id == 0 and not segment.is_counted and header.first_offset > self._offset:
                return False
            raise EntryCorrupt(
                segment.ledger_id,
                entry_id,
                f"its first offset is {header.first_offset}, but log {self._metadata.name!r} continues at "
                f"{self._offset}",
            )
        self._note(segment.ledger_id, batch)
        self._offset = header.end_offset
        if header.timestamp_ms < self._not_before_ms or header.is_checkpoint:
            return True
        self._put(batch.between(self._first_offset, self._until), size)
        return True

    def _step_back(self) -> int:
        """Return the offset from which to read a ledger or file that does not begin where the reader is.

        If the reader has read a record, this is the offset of the last one, so that ``_note`` can compare it
        with the log. This record is not delivered again.
        """
        self._first_offset = max(self._first_offset, self._offset)
        has_read = self._last is not None and self._last[0] == self._offset - 1
        return self._offset - has_read

    def _note(self, ledger_id: int, batch: RecordBatch) -> None:
        """Note the last record of a batch. If the batch has the record that was read last, compare them.

        Raises:
            EntryCorrupt: The log has lost the record that was read last, and another leader has given its
                offset to another record.
        """
        if self._last is not None:
            offset, epoch = self._last
            if batch.first_offset <= offset < batch.end_offset and batch.epoch != epoch:
                raise EntryCorrupt(
                    ledger_id,
                    0,
                    f"log {self._metadata.name!r} was read with record {offset} of epoch {epoch}, and now "
                    f"has one of epoch {batch.epoch} there: it has lost that record, and perhaps others",
                )
        if len(batch):
            self._last = batch.end_offset - 1, batch.epoch

    def _put(self, batch: RecordBatch, size: int) -> None:
        if len(batch):
            cost = size + _RECORD_COST_BYTES * len(batch)
            self._buffer.append((batch, cost))
            self._buffered_bytes += cost
            self._filled.set()

    @property
    def _is_full(self) -> bool:
        """Whether the buffer has no room for the reply to another request."""
        return self._buffered_bytes + READ_REPLY_BYTES_TARGET > LOG_READ_AHEAD_BYTES and bool(self._buffer)

    async def _wait_taken(self) -> None:
        while self._is_full:
            self._taken = trio.Event()
            await self._taken.wait()

    # --- archives -----------------------------------------------------------------------------

    async def _read_elsewhere(self, segment: LogSegment, failure: LedgerLogError) -> bool:
        """Continue with a ledger that no bookie serves, if its records are in an archive.

        Args:
            segment: The segment of the ledger.
            failure: The error that reading from bookies raised.

        Returns:
            False if reading ends with this ledger.

        Raises:
            LedgerLogError: ``failure``, if the records are in no archive.
            Truncated: The records were truncated meanwhile.
        """
        await self._look_for_truncation()
        metadata = self._metadata
        index = metadata.index_of(segment.ledger_id)
        end = None if index is None else metadata.segments[index].end_offset
        if end is not None and max(self._offset, metadata.first_offset) >= end:
            return True  # The reader had read all that it needs, but did not know that this was the end.
        if index is not None and end is None:
            raise failure  # A segment that is not counted is not archived.
        record = await self._archives.holding(metadata.incarnation, segment.ledger_id, self._offset)
        if record is None and index is None:
            # The ledger's file was merged with others. All its records are read, so a listed segment
            # continues here.
            return True
        if record is None:
            raise failure
        while True:
            try:
                return await self._read_archive(record)
            except ArchiveUnavailable:
                moved = await self._archives.holding(metadata.incarnation, segment.ledger_id, self._offset)
                if moved is None or moved.file == record.file:
                    await self._look_for_truncation()
                    raise
                record = moved  # The file was merged with others since.

    async def _read_archive(self, record: ArchivedFile) -> bool:
        """Read a file from the current offset to its end; False if reading ends with it."""
        start = self._step_back() if self._offset > record.first_offset else self._offset
        async with open_archive(record) as archive, aclosing(archive.batches(start)) as groups:
            async for batches in groups:
                for batch in batches:
                    if self._dense and batch.first_offset > self._offset:
                        break
                    self._note(record.ledger_id, batch)
                    self._offset = max(self._offset, batch.end_offset)
                    if batch.timestamp_ms >= self._not_before_ms:
                        batch = batch.between(self._first_offset, self._until)
                        self._put(batch, batch.byte_length)
                        await self._wait_taken()
                    if self._is_past_until():
                        return False
                else:
                    continue
                break
        if self._dense and self._offset < record.end_offset:
            raise Truncated(self._metadata.name, record.end_offset)
        self._offset = record.end_offset
        return not self._is_past_until()

    # --- from ledger to ledger ----------------------------------------------------------------

    async def _next_segment(self, segment: LogSegment | None) -> LogSegment | None:
        """Return the segment after one that is read to its end.

        Return None at the end of a sealed log; without ``follow``, also at the tail of an open one.
        """
        found = self._after(segment)
        if found is not None and self._is_behind(found, segment):
            await self._refresh()  # The reader may have read a file that was merged after the list was read.
            found = self._after(segment)
        if found is None and not self._metadata.sealed:
            found = await self._wait_after(segment)
        if found is not None and self._is_behind(found, segment):
            raise EntryCorrupt(
                found.ledger_id,
                0,
                f"its first offset is {found.first_offset}, but log {self._metadata.name!r} was read up to "
                f"offset {self._offset}: it has lost the records from {found.first_offset} on, and gives "
                "their offsets to other records",
            )
        return found

    async def _wait_after(self, segment: LogSegment | None) -> LogSegment | None:
        """Wait until the list names the segment after ``segment``, as ``_next_segment``."""

        async def look(metadata: LogMetadata, version: int) -> LogSegment | None:
            self._metadata, self._version = metadata, version
            found = self._after(segment)
            if found is None and not (metadata.sealed or self._follow):
                undecided = await find_undecided_loss(self._client.ledgers, metadata)
                if undecided is not None:
                    raise undecided
            return found

        async with self._client.store.watch(log_record_path(self._metadata.incarnation)) as watch:
            while True:
                found = await self._registry.look(
                    self._metadata.name,
                    self._metadata.incarnation,
                    look,
                    known=(self._metadata, self._version),
                )
                if found is not None or self._metadata.sealed or not self._follow:
                    return found
                await watch.wait()

    def _is_behind(self, following: LogSegment, segment: LogSegment | None) -> bool:
        """Whether the segment after ``segment`` begins with offsets that were read already.

        Then an accepted loss has ended ``segment`` before the end that the reader has read. If ``segment``
        has left the list, this is unknown: the following one may hold its records, too.
        """
        return (
            segment is not None
            and following.ledger_id != segment.ledger_id
            and following.first_offset is not None
            and following.first_offset < self._offset
            and self._metadata.index_of(segment.ledger_id) is not None
        )

    def _after(self, segment: LogSegment | None) -> LogSegment | None:
        """Return the next segment with records to read after one that is read to its end; None if it is not
        listed yet.

        Raises:
            Truncated: Records that the reader has not reached are truncated.
        """
        metadata = self._metadata
        segments = metadata.segments
        index = -1 if segment is None else metadata.index_of(segment.ledger_id)
        if index is not None and index >= 0:
            end = segments[index].end_offset
            if end is not None and end > max(self._offset, metadata.first_offset):
                return segments[index]  # The next segments were merged with it since.
        if index is None or (index == -1 and metadata.before[0] > self._offset):
            # The segment that was read last has left the list. The next segment may have left it too.
            if metadata.first_offset > self._offset:
                raise Truncated(metadata.name, metadata.first_offset)
            index = -1
            while index + 1 < len(segments):
                end = segments[index + 1].end_offset
                if end is None or end > self._offset:
                    break
                index += 1
        while index + 1 < len(segments) and metadata.has_truncated(segments[index + 1]):
            index += 1
        self._pass_truncated(segments[index] if index >= 0 else None)
        return segments[index + 1] if index + 1 < len(segments) else None

    def _pass_truncated(self, segment: LogSegment | None) -> None:
        """Move to the end of a segment if all its records are truncated, so that no entry of it is read."""
        metadata = self._metadata
        if segment is None or segment.end_offset is None or not metadata.has_truncated(segment):
            return
        if segment.end_offset > self._offset:
            self._check_truncation()
            self._offset = segment.end_offset

    async def _refresh(self) -> None:
        known = (self._metadata, self._version)
        self._metadata, self._version = await self._registry.existing(
            self._metadata.name, self._metadata.incarnation, known=known
        )

    async def _look_for_truncation(self) -> None:
        await self._refresh()
        self._check_truncation()

    def _check_truncation(self) -> None:
        # The next entry may begin before the start of the reader, and before the start of the log.
        if max(self._offset, self._first_offset) < self._metadata.first_offset:
            raise Truncated(self._metadata.name, self._metadata.first_offset)


class _BatchReader(Protocol):
    async def _next_batch(self) -> RecordBatch | None: ...


class Batches:
    """An async iterator over the batches of a ``LogReader``, also of that for asyncio. ``batches`` returns
    it."""

    def __init__(self, reader: _BatchReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> RecordBatch:
        batch = await self._reader._next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


@asynccontextmanager
async def open_reader(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    *,
    start: Start,
    until: int | None,
    follow: bool,
    dense: bool = False,
) -> AsyncIterator[LogReader]:
    """Open a reader for the body of an ``async with``; see ``Log.read`` for the arguments and errors."""
    ledgers, archives = client.ledgers, ArchiveRegistry(client.store)

    async def look(metadata: LogMetadata, version: int) -> LogReader:
        first_offset, not_before_ms = metadata.first_offset, 0
        if isinstance(start, Position):
            place, first_offset = await find_position(ledgers, archives, metadata, start)
        elif isinstance(start, datetime):
            not_before_ms = max(0, milliseconds(start))
            place = await find_moment(ledgers, archives, metadata, not_before_ms)
        elif start == "latest":
            place = await find_tail(ledgers, metadata)
            first_offset = place.offset
        else:
            if isinstance(start, int):
                if start < first_offset:
                    raise Truncated(name, first_offset)
                first_offset = start
            place = await find_offset(ledgers, archives, metadata, first_offset)
        return LogReader(
            client,
            registry,
            metadata,
            version,
            place,
            first_offset=first_offset,
            not_before_ms=not_before_ms,
            until=until,
            follow=follow,
            dense=dense,
        )

    reader = await registry.look(name, incarnation, look)
    try:
        async with background(reader._fetch, name=f"log reader {name}"):
            yield reader
    finally:
        reader._leave()
