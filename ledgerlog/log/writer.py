"""The ``LogWriter``: appending to a log while you lead it.

A record joins the open batch of ``log.core.append_queue``, and the caller waits for the record's ticket. That
costs one switch between tasks and nothing else. The ``LogLeader`` does the rest. This module serves the
callers. It checks records before they are taken. While the window (the bound on records that are not yet
durable) is full, it makes callers wait in order. If a caller is cancelled, it takes the caller's records
back. It also chooses the error that tells a record's outcome.

**Numbered records.** If a record comes with its producer's sequence, ``log.core.producers`` says whether the
record is new. Calls with sequences are served one after the other: a call takes all its new records before
the next call asks. If a record is in the log already, the answer is its offset. If the record is still on its
way, the caller waits for it.

**Which error.** AppendUnknown means that a record was sent, and that the leader could not find out in time
whether it is in the log. Every other error means that the record is not in the log.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence

import attrs
import trio

from ledgerlog.concurrency.watermark import fresh
from ledgerlog.counts import LedLog
from ledgerlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LedgerLogError,
    OutOfSequence,
    RecordTooLarge,
)
from ledgerlog.log.core.append_queue import Batch, BatchState, cumulative, group_cost
from ledgerlog.log.core.producers import Known
from ledgerlog.log.leader import LogLeader
from ledgerlog.model.attributes import Attributes, HeadersLike, attributes_column, attributes_of
from ledgerlog.model.ids import check_offset
from ledgerlog.model.producer import check_producer_id, check_sequence
from ledgerlog.model.record import Ack

_BYTES = frozenset({bytes})

__all__ = ["LogWriter", "Submission", "WriterStatistics"]


@attrs.frozen(kw_only=True)
class WriterStatistics:
    """Counts since the writer was entered, and its current state. ``LogWriter.statistics`` returns it."""

    epoch: int
    """The number of this leadership; see ``LogWriter.epoch``."""
    next_offset: int
    """The offset of the next record, if all records that are on their way arrive."""
    durable_offset: int
    """The offset after the last acknowledged record."""
    records_appended: int
    """How many records this writer has sent."""
    bytes_appended: int
    """The bytes of these records."""
    entries_appended: int
    """How many entries they were packed into."""
    records_outstanding: int
    """Records that the writer has taken and not yet acknowledged."""
    bytes_outstanding: int
    """The bytes of these records."""
    rolls: int
    """How often this writer has continued in a new ledger."""
    ledger_id: int
    """The ledger that new records go to."""


class Submission:
    """A record that ``LogWriter.submit`` has taken. It goes into the log whether or not you wait for it."""

    __slots__ = ("_batch", "_is_duplicate", "_slot", "_ticket", "_writer")

    def __init__(
        self, writer: LogWriter, batch: Batch, slot: int, ticket: int, *, is_duplicate: bool = False
    ) -> None:
        self._writer = writer
        self._batch = batch
        self._slot = slot
        self._ticket = ticket
        self._is_duplicate = is_duplicate

    async def wait(self) -> Ack:
        """Wait until the record is durable.

        You may call it several times, and from several tasks.

        Returns:
            The record's ``Ack``, with its offset.

        Raises:
            AppendUnknown: The record was sent and the leadership ended; the record may or may not be in the
                log.
            LostLeadership: The leadership ended; the record is not in the log. LogSealed, NotEnoughBookies
                and PermissionDenied say the same with another reason.

        Cancelling: abandons the wait. The record still goes into the log.
        """
        await self._writer._wait(self._batch, self._ticket)
        ack = self._batch.ack(self._slot)
        return ack._replace(duplicate=True) if self._is_duplicate else ack


class _Answered(Submission):
    """A record that was in the log before it was submitted."""

    __slots__ = ("_ack",)

    def __init__(self, ack: Ack) -> None:
        self._ack = ack

    async def wait(self) -> Ack:
        await trio.lowlevel.checkpoint()
        return self._ack


class LogWriter:
    """The leader of a log: it appends records. Enter ``Log.writer`` to get one.

    Any number of tasks may append at the same time. Records get their offsets in the order in which the
    writer takes them.

    ``append`` writes one record and waits. ``append_many`` writes a list. ``submit`` takes a record and lets
    you wait for it later.
    """

    def __init__(self, name: str, leader: LogLeader, producer: str | None = None) -> None:
        self._name = name
        self._leader = leader
        self._core = leader.core
        self._producer = producer
        self._numbered_gate = trio.StrictFIFOLock()
        """Held by a call with sequences while the call asks which records are new and takes the new ones."""
        # Every append reads these.
        self._queue = leader.queue
        self._record_bytes_max = leader.record_bytes_max
        self._answered = leader.answered
        self._gate = trio.StrictFIFOLock()
        self._at_gate = 0
        """How many tasks stand in line for a place in the window. No other task may pass them."""
        self._left_with: LedgerLogError | None = None
        """The error of records that were still on their way when the writer was left. ``lead`` sets it, also
        if leaving was cancelled."""

    # --- what callers read --------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of this leadership. It grows by one with each takeover of the log.

        You may use it elsewhere as a fencing token: for example, a storage service can refuse requests with
        an older epoch.
        """
        return self._core.epoch

    @property
    def next_offset(self) -> int:
        """The offset of the next record, if all records that are on their way arrive."""
        return self._queue.tail

    @property
    def failure(self) -> LedgerLogError | None:
        """The reason why nothing more can be appended; None while the leadership lasts."""
        return self._core.refusal

    async def wait_over(self) -> None:
        """Wait until the leadership has ended and every append is answered. ``failure`` then says why."""
        await self._leader.wait_over()

    def statistics(self) -> WriterStatistics:
        """Return counts and the current state of the writer. Cheap; not a checkpoint."""
        queue = self._queue
        return WriterStatistics(
            epoch=self._core.epoch,
            next_offset=queue.tail,
            durable_offset=queue.durable_offset,
            records_appended=self._core.records_appended,
            bytes_appended=self._core.bytes_appended,
            entries_appended=self._core.entries_appended,
            records_outstanding=queue.records_outstanding,
            bytes_outstanding=queue.bytes_outstanding,
            rolls=self._core.rolls,
            ledger_id=self._core.segment.ledger_id,
        )

    def _describe(self) -> LedLog:
        """Describe the log and this leadership, for monitoring."""
        queue, core = self._queue, self._core
        metadata = core.chain.metadata
        return LedLog(
            name=self._name,
            first_offset=metadata.first_offset,
            durable_offset=queue.durable_offset,
            epoch=core.epoch,
            segments=len(metadata.segments),
            records_appended=core.records_appended,
            bytes_appended=core.bytes_appended,
            entries_appended=core.entries_appended,
            records_outstanding=queue.records_outstanding,
            bytes_outstanding=queue.bytes_outstanding,
            window_records=queue.window_records,
            window_bytes=queue.window_bytes,
            rolls=core.rolls,
        )

    # --- appending ----------------------------------------------------------------------------

    async def append(
        self,
        data: bytes,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        expected_offset: int | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Ack:
        """Append one record and wait until it is durable.

        The record is durable once an ack quorum of bookies has synced it and every record before it. If the
        window is full, the call waits for a place first.

        Args:
            data: The record, 0 to ``limits.RECORD_BYTES_MAX`` bytes (4 MiB).
            key: The record's key, which readers get back as ``Record.key``. None: it has none. Together with
                the headers at most ``limits.RECORD_ATTRIBUTES_BYTES_MAX`` bytes (256 KiB), which count
                towards the size of the record.
            headers: The record's headers, which readers get back as ``Record.headers``: a mapping from names
                to bytes, or pairs of a name and bytes. At most ``limits.RECORD_HEADERS_MAX`` (256). Their
                order is kept, and a name may occur more than once.
            expected_offset: Write the record at this offset or not at all. Excludes ``sequence``.
            sequence: The number of the record among all records of its producer, from 0. The log then holds
                the record once, even if you append it several times or the leader changes. Needs
                deduplication (see ``Log.writer``).
            producer: The producer of the record. None: the producer that you gave to ``Log.writer``. Needs
                ``sequence``.

        Returns:
            The record's ``Ack``. If the record was in the log already, ``duplicate`` is set, and ``offset``
            is the offset that the record got the first time.

        Raises:
            AppendUnknown: The record was sent and the leadership ended; the record may or may not be in the
                log.
            LostLeadership: The leadership ended, usually because another writer took the log over, or because
                this one was left; the record is not in the log.
            LogSealed: The log was sealed; the record is not in the log.
            NotEnoughBookies: The leadership ended because too few bookies were writable; the record is not in
                the log.
            PermissionDenied: The leadership ended because this principal may not write, or no longer may; the
                record is not in the log.
            OffsetMismatch: The record would not get ``expected_offset``; it was not written. The writer
                continues.
            OutOfSequence: ``sequence`` does not continue the producer's sequences; this call wrote nothing.
                The writer continues.
            TooManyProducers: The log remembers as many producers as it may; the record was not written. The
                writer continues.
            RecordTooLarge: The record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are over
                ``limits.RECORD_ATTRIBUTES_BYTES_MAX``; it was not written. The writer continues.
            InvalidArgument: An argument is malformed, or arguments exclude each other; the record was not
                written. The writer continues.

        Cancelling: if the record was not sent yet, it is not written. If it was sent, or if it has a
        sequence, it may or may not be in the log. If it has a sequence, append it again to find out. The
        writer stays usable in every case.

        Example:
            ```python
            async with log.writer(producer="billing") as writer:
                ack = await writer.append(b"invoice 7", sequence=7)
                again = await writer.append(b"invoice 7", sequence=7)
                assert again.duplicate and again.offset == ack.offset
            ```
        """
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        attributes = None
        if key is not None or headers is not None:
            attributes = attributes_of(size, key, headers)
            size += 0 if attributes is None else attributes.size
        if size > self._record_bytes_max:
            raise RecordTooLarge(size, self._record_bytes_max)
        if expected_offset is not None:
            check_offset(expected_offset)
        if sequence is not None or producer is not None:
            if expected_offset is not None:
                raise InvalidArgument("a record has a sequence or an expected offset, not both")
            if self._numbered_gate.locked() or not self._is_free_for(size):
                (ack,) = await self._append_numbered(
                    [data], [size], _column_of(attributes), sequence, producer, atomic=True
                )
                return ack
            return await self._append_one_numbered(
                data, size, attributes, *self._numbering(sequence, producer, 1)
            )
        queue = self._queue
        if self._at_gate or self._core.refusal is not None or not queue.has_room(size):
            await self._wait_room(size)
        if expected_offset is not None:
            queue.check_expected(expected_offset)
        batch = queue.add(data, size, expected_offset, attributes)
        slot = len(batch.records) - 1
        ticket = queue.next_ticket - 1
        if slot == 0 or queue.is_sendable:  # The leader notes when a batch begins.
            self._leader.pump()
        try:
            await self._answered.wait(ticket)
        except trio.Cancelled:
            self._take_back(batch, slot, slot + 1)
            raise
        except LedgerLogError:
            failure = self._verdict(batch)
            if batch.state is BatchState.UNKNOWN:
                failure = batch.mismatch(slot) or failure  # The batch was sent, but not with this record.
        else:
            return batch.ack(slot)
        raise failure

    async def append_many(
        self,
        datas: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        atomic: bool = False,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> list[Ack]:
        """Append records in their order and wait until all of them are durable.

        The records are pipelined through the window. Without ``atomic``, records of other tasks may come
        between them.

        Args:
            datas: The records, each 0 to ``limits.RECORD_BYTES_MAX`` bytes. An empty sequence does nothing.
            keys: The key of each record, or None for a record without one; as many as records. None: no
                record has a key. See ``append``.
            headers: The headers of each record, or None for a record without any; as many as records. None:
                no record has headers. See ``append``.
            atomic: Put the records into one entry. They are then in the log all together or not at all, at
                consecutive offsets.
            sequence: The sequence of the first record; the next records count up from there. If the first
                records are in the log already, they are answered as duplicates, and the others are written.
                With ``atomic``, all records must be new or all must be duplicates. See ``append``.
            producer: The producer of the records, as for ``append``.

        Returns:
            One ``Ack`` for each record, in their order.

        Raises:
            AppendUnknown: A prefix of the records may be in the log. The message says how many records are
                surely in the log, how many may be, and how many are not.
            LostLeadership: Another writer took the log over, or this one was left; none of the new records is
                in the log. LogSealed, NotEnoughBookies and PermissionDenied say the same with another reason.
            OutOfSequence: ``sequence`` does not continue the producer's sequences, or only a part of the
                atomic group is in the log already; this call wrote nothing. The writer continues.
            TooManyProducers: The log remembers as many producers as it may; nothing was written. The writer
                continues.
            RecordTooLarge: A record is over ``limits.RECORD_BYTES_MAX``, its key and headers are over
                ``limits.RECORD_ATTRIBUTES_BYTES_MAX``, or the atomic group is over about
                ``limits.ENTRY_BYTES_MAX``; nothing was written. The writer continues.
            InvalidArgument: An argument is malformed; nothing was written. The writer continues.

        Cancelling: a prefix of the records may be in the log.

        Example:
            ```python
            acks = await writer.append_many([b"debit", b"credit"], atomic=True)
            ```
        """
        records = list(datas)
        if not _BYTES.issuperset(map(type, records)):
            records = [_as_bytes(data) for data in records]
        sizes = list(map(len, records))
        attributes = attributes_column(sizes, keys, headers)
        if not records:
            await trio.lowlevel.checkpoint()
            return []
        if attributes is not None:
            sizes = [size + (each.size if each else 0) for size, each in zip(sizes, attributes, strict=True)]
        if max(sizes) > self._record_bytes_max:
            raise RecordTooLarge(max(sizes), self._record_bytes_max)
        if sequence is not None or producer is not None:
            return await self._append_numbered(records, sizes, attributes, sequence, producer, atomic=atomic)
        parts: list[tuple[Batch, int, int]] = []
        try:
            is_complete = await self._take_many(records, sizes, attributes, atomic, parts)
            await self._answered.wait(parts[-1][0].end_ticket - 1)
        except trio.Cancelled:
            for batch, start, stop in reversed(parts):
                self._take_back(batch, start, stop)
            raise
        except LedgerLogError:
            if not parts:
                raise
            is_complete = False
        if not is_complete:
            raise self._verdict_of_many(parts, len(records))
        acks: list[Ack] = []
        for batch, start, stop in parts:
            acks += batch.acks(start, stop)
        return acks

    async def submit(
        self,
        data: bytes,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Submission:
        """Take one record and return without waiting until it is durable.

        The call waits only for a place in the window, then takes the record. Always a checkpoint, before
        the record is taken: if you cancel it there, the record is not written. After that, ``await
        submission.wait()`` gives the record's ``Ack``.

        Args:
            data: The record, 0 to ``limits.RECORD_BYTES_MAX`` bytes.
            key: The key of the record, as for ``append``.
            headers: The headers of the record, as for ``append``.
            sequence: The sequence of the record, as for ``append``.
            producer: The producer of the record, as for ``append``.

        Returns:
            The ``Submission`` to wait for. You may drop it: the record goes into the log all the same.

        Raises:
            LostLeadership: The leadership has ended; the record was not taken. LogSealed, NotEnoughBookies
                and PermissionDenied say the same with another reason.
            OutOfSequence: ``sequence`` does not continue the producer's sequences; the record was not taken.
                The writer continues.
            TooManyProducers: The log remembers as many producers as it may; the record was not taken. The
                writer continues.
            RecordTooLarge: The record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are over
                ``limits.RECORD_ATTRIBUTES_BYTES_MAX``; it was not taken. The writer continues.
            InvalidArgument: An argument is malformed; the record was not taken. The writer continues.
        """
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        attributes = None
        if key is not None or headers is not None:
            attributes = attributes_of(size, key, headers)
            size += 0 if attributes is None else attributes.size
        if size > self._record_bytes_max:
            raise RecordTooLarge(size, self._record_bytes_max)
        await trio.lowlevel.checkpoint()
        if sequence is not None or producer is not None:
            numbering = self._numbering(sequence, producer, 1)
            parts: list[tuple[Batch, int, int]] = []
            async with self._numbered_gate:
                known = self._admit(numbering, 1)
                if not known:
                    await self._take_many([data], [size], _column_of(attributes), True, parts, numbering)
            if parts:
                batch, slot, _ = parts[0]
                return Submission(self, batch, slot, batch.first_ticket + slot)
            if isinstance(known[0], int):
                return _Answered(self._ack_of(known[0]))
            batch, slot = known[0]
            return Submission(self, batch, slot, batch.first_ticket + slot, is_duplicate=True)
        queue = self._queue
        if not self._is_free_for(size):
            await self._wait_room(size)
        batch = queue.add(data, size, None, attributes)
        slot = len(batch.records) - 1
        ticket = queue.next_ticket - 1
        self._leader.pump()
        return Submission(self, batch, slot, ticket)

    async def flush(self) -> None:
        """Wait until every record that was taken before the call is durable.

        Records that linger are sent at once. Always a checkpoint.

        Raises:
            AppendUnknown: The leadership ended, and some of the records may or may not be in the log; the
                message says how many.
            LostLeadership: The leadership ended, and some of the records are not in the log. LogSealed,
                NotEnoughBookies and PermissionDenied say the same with another reason.
        """
        self._leader.hurry()
        try:
            await self._answered.wait(self._queue.next_ticket - 1)
        except LedgerLogError:
            failure = self._verdict_of_the_rest()
        else:
            return
        raise failure

    async def roll(self) -> None:
        """Continue in a new ledger.

        Returns once new records go to the new ledger and the ledger before it is closed. Appends continue
        meanwhile. If the current ledger is empty, nothing happens.

        Raises:
            LostLeadership: The leadership ended first. LogSealed, NotEnoughBookies and PermissionDenied say
                the same with another reason.

        Cancelling: abandons the wait. The roll still happens.
        """
        await trio.lowlevel.checkpoint()
        await self._leader.roll()

    async def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``, but only while this writer leads.

        This is ``Log.truncate`` for a leader. A leader that was deposed gives up nothing. Use it to truncate
        records that are already part of your own state, for example of a snapshot.

        Args:
            before_offset: The first offset to keep, at most the offset after the last durable record.
            ignore_pins: Truncate even if a cursor pins records below ``before_offset``.

        Raises:
            LostLeadership: This writer no longer leads; nothing was given up. LogSealed, NotEnoughBookies and
                PermissionDenied say the same with another reason.
            InvalidArgument: ``before_offset`` is not an offset, or lies beyond the durable end; nothing was
                given up.
            TruncationPinned: A cursor pins a record below ``before_offset``; nothing was given up.
            LogNotFound: The log no longer exists.
            MetadataUnavailable: The metadata store could not be reached; nothing was given up.
            MetadataOutcomeUnknown: The records may or may not be given up.

        Cancelling: the records may or may not be given up, as for ``Log.truncate``.
        """
        check_offset(before_offset)
        durable = self._queue.durable_offset
        if before_offset > durable:
            raise InvalidArgument(
                f"the durable records of log {self._name!r} end at offset {durable}: it cannot be truncated "
                f"at {before_offset}"
            )
        await trio.lowlevel.checkpoint()
        await self._leader.refuse()
        await self._leader.truncate(before_offset, ignore_pins=ignore_pins)

    # --- numbered records -----------------------------------------------------------------------

    def _numbering(self, sequence: int | None, producer: str | None, count: int) -> tuple[str, int]:
        """Return the producer of the records and the sequence of the first one.

        Raises:
            InvalidArgument: The log has no deduplication, or the producer or the sequence is missing or
                malformed.
        """
        if sequence is None:
            raise InvalidArgument("a record with a producer needs a sequence")
        producers = self._core.producers
        if producers is None:
            raise InvalidArgument(
                f"log {self._name!r}: a sequence needs deduplication; enter log.writer(dedupe=True)"
            )
        producer_id = self._producer if producer is None else producer
        if producer_id is None:
            raise InvalidArgument("a record with a sequence needs a producer")
        if not isinstance(producer_id, str) or producer_id not in producers:
            check_producer_id(producer_id)
        return producer_id, check_sequence(sequence, count)

    def _admit(self, numbering: tuple[str, int], count: int) -> list[Known]:
        assert self._core.producers is not None
        return self._core.producers.admit(*numbering, count, self._leader.now_ms())

    def _ack_of(self, offset: int) -> Ack:
        return Ack(offset, None, self._core.epoch, duplicate=True)

    async def _append_one_numbered(
        self, data: bytes, size: int, attributes: Attributes | None, producer_id: str, sequence: int
    ) -> Ack:
        """Append one numbered record. The window has room for it, and no other call holds the gate."""
        known = self._admit((producer_id, sequence), 1)
        if known:
            return await self._known_ack(known[0])
        batch = self._queue.add(data, size, None, attributes)
        slot = len(batch.records) - 1
        self._number((batch, slot, slot + 1), producer_id, sequence)
        if slot == 0 or self._queue.is_sendable:
            self._leader.pump()
        await self._wait(batch, batch.first_ticket + slot)
        return batch.ack(slot)

    async def _known_ack(self, place: Known) -> Ack:
        """Return the Ack of a record that was appended before, once the record is durable. Always a
        checkpoint."""
        if isinstance(place, int):
            await trio.lowlevel.checkpoint()
            return self._ack_of(place)
        batch, slot = place
        await self._wait(batch, batch.first_ticket + slot)
        return batch.ack(slot)._replace(duplicate=True)

    async def _append_numbered(
        self,
        records: list[bytes],
        sizes: list[int],
        attributes: list[Attributes | None] | None,
        sequence: int | None,
        producer: str | None,
        *,
        atomic: bool,
    ) -> list[Ack]:
        """Append the records that are new, and return an Ack for every record."""
        producer_id, first = self._numbering(sequence, producer, len(records))
        parts: list[tuple[Batch, int, int]] = []
        is_complete = True
        async with self._numbered_gate:
            known = self._admit((producer_id, first), len(records))
            fresh_count = len(records) - len(known)
            if atomic and known and fresh_count:
                raise OutOfSequence(
                    self._name,
                    producer_id,
                    first,
                    first + len(known) - 1,
                    "a part of the group is in the log already",
                )
            if fresh_count:
                at = len(known)
                is_complete = await self._take_many(
                    records[at:],
                    sizes[at:],
                    None if attributes is None else attributes[at:],
                    atomic,
                    parts,
                    (producer_id, first + at),
                )
        acks = [
            self._ack_of(place) if isinstance(place, int) else await self._known_ack(place) for place in known
        ]
        if parts:
            try:
                await self._answered.wait(parts[-1][0].end_ticket - 1)
            except LedgerLogError:
                is_complete = False
        else:
            await trio.lowlevel.checkpoint()
        if not is_complete:
            raise self._verdict_of_many(parts, fresh_count)
        for batch, start, stop in parts:
            acks += batch.acks(start, stop)
        return acks

    # --- waiting ------------------------------------------------------------------------------

    async def _wait(self, batch: Batch, ticket: int) -> None:
        try:
            await self._answered.wait(ticket)
        except LedgerLogError:
            failure = self._verdict(batch)
        else:
            return
        raise failure

    async def _wait_room(self, size: int) -> None:
        """Wait in line for a place in the window.

        The caller must take the place without another checkpoint in between.
        """
        await self._leader.refuse()
        self._at_gate += 1
        try:
            async with self._gate:
                while self._core.refusal is None and not self._queue.has_room(size):
                    with contextlib.suppress(LedgerLogError):  # The refusal, raised below.
                        await self._answered.wait(self._answered.value + 1)
        finally:
            self._at_gate -= 1
        await self._leader.refuse()

    async def _take_many(
        self,
        records: list[bytes],
        sizes: list[int],
        attributes: list[Attributes | None] | None,
        atomic: bool,
        parts: list[tuple[Batch, int, int]],
        numbering: tuple[str, int] | None = None,
    ) -> bool:
        """Take all records, as the window lets them in.

        Args:
            records: The records.
            sizes: The sizes of the records in bytes, keys and headers included.
            attributes: The keys and headers of the records; None if no record has any.
            atomic: Put all records into one entry.
            parts: Whenever records are taken, this method appends their batch, their first slot and the slot
                after the last one.
            numbering: The producer of the records and the sequence of the first one, if they are numbered.

        Returns:
            True if all records are taken. False if the leadership ended after the first of them were taken.

        Raises:
            RecordTooLarge: No entry can hold the atomic group.
            LedgerLogError: The refusal, if the leadership ended before any record was taken.
        """
        queue = self._queue
        total = len(records)
        if atomic:
            group_cost(sizes, has_attributes=attributes is not None, record_bytes_max=self._record_bytes_max)
            if not self._is_free_for(sum(sizes)):
                await self._wait_room(sum(sizes))
            batch = queue.add_group(records, sum(sizes), attributes)
            parts.append((batch, len(batch.records) - total, len(batch.records)))
            if numbering is not None:
                self._number(parts[-1], *numbering)
            self._leader.pump()
            return True
        ends = cumulative(sizes)
        at = 0
        while at < total:
            if not self._is_free_for(sizes[at]):
                try:
                    await self._wait_room(sizes[at])
                except LedgerLogError:
                    if not parts:
                        raise
                    return False
            places, room = queue.room()
            before = ends[at - 1] if at else 0
            limit = max(at + 1, bisect_right(ends, before + room, at, min(total, at + max(1, places))))
            stop = queue.add_many(records, ends, at, limit, attributes)
            batch = queue.last_batch
            parts.append((batch, len(batch.records) - (stop - at), len(batch.records)))
            if numbering is not None:
                self._number(parts[-1], numbering[0], numbering[1] + at)
            at = stop
            self._leader.pump()
            if at < total:
                await trio.lowlevel.checkpoint()
        return True

    def _number(self, part: tuple[Batch, int, int], producer_id: str, first_sequence: int) -> None:
        assert self._core.producers is not None
        batch, start, stop = part
        self._core.producers.on_taken(
            producer_id, first_sequence, batch, start, stop - start, self._leader.now_ms()
        )

    def _is_free_for(self, size: int) -> bool:
        """Whether a record of ``size`` bytes may be taken now, without passing a task that waits in line."""
        return not (self._core.refusal or self._at_gate) and self._queue.has_room(size)

    def _verdict(self, batch: Batch) -> LedgerLogError:
        """Return the error for a record that was taken and has failed."""
        if batch.state is BatchState.UNKNOWN:
            return self._unknown(
                f"the record was sent to ledger {batch.ledger_id} in epoch {self._core.epoch} "
                "and may or may not be in the log"
            )
        assert batch.state is BatchState.LOST
        return fresh(self._why())

    def _verdict_of_many(self, parts: list[tuple[Batch, int, int]], total: int) -> LedgerLogError:
        durable = sum(stop - start for batch, start, stop in parts if batch.state is BatchState.DURABLE)
        unknown = sum(stop - start for batch, start, stop in parts if batch.state is BatchState.UNKNOWN)
        if not durable and not unknown:
            return fresh(self._why())
        return self._unknown(
            f"of {total} records the first {durable} are in the log, "
            f"the next {unknown} may or may not be, and the others are not"
        )

    def _verdict_of_the_rest(self) -> LedgerLogError:
        """Return the error for all records that were still on their way when the leadership ended."""
        lost, unknown = self._queue.lost_count, self._queue.unknown_count
        if not unknown:
            return fresh(self._why())
        return self._unknown(f"{unknown} records may or may not be in the log, {lost} are not")

    def _why(self) -> LedgerLogError:
        why = self._core.failure or self._core.refusal
        assert why is not None, "an append fails only when the leadership ends"
        return why

    def _unknown(self, what: str) -> AppendUnknown:
        unknown = AppendUnknown(f"log {self._name!r}: {what}")
        unknown.__cause__ = fresh(self._why())
        return unknown

    def _take_back(self, batch: Batch, start: int, stop: int) -> None:
        if self._queue.take_back(batch, start, stop):
            self._leader.on_taken_back()


def _column_of(attributes: Attributes | None) -> list[Attributes | None] | None:
    return None if attributes is None else [attributes]


def _as_bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgument(f"a record is bytes, not {type(data).__name__}")
