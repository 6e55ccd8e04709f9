"""A log's metadata: the ordered list of ledgers that compare-and-set protects (protocol A.6, C.4).

A log is a chain of ledgers, its *segments*. ``LogMetadata`` is the one record that lists them in order and
says who leads. Each legal change of the record is a method that returns the next value. The methods assert
the rules that must hold before the record is written:

    taken_over   a new leader: epoch + 1, everything before is counted, one new ledger at the end
    rolled       the leader continues in a new ledger: same epoch, one new ledger at the end
    counted      the ledger before the current one (or the last one) is closed: its size is written down
    truncated    records below an offset are given up; ledgers that hold only these records leave the list
    touched      only the version changes: a writer that read the record before must read it again
    spliced      CLOSED ledgers that were written apart become part of the log, counted at once
    continued    the leader has closed its only open ledger and continues in a new one; CLOSED ledgers that
                 were written apart come between the two
    brought_back a CLOSED ledger that a restore from a backup had forgotten is in the list again
    merged       neighbours whose records lie in one archived file become one segment, named by the first
    gathered     a new CLOSED ledger, which holds the records of neighbours, takes their place
    recovered    the log has no leader: epoch + 1, everything is counted, the next leader adds a ledger
    sealed_now   the log is complete: epoch + 1, everything is counted, no ledger is added after this

**Rules.** No ledger id is listed twice, and a change appends at most one (ListCas). Only a splice appends
several: closed ledgers, which it lists together with their record counts and sizes. The order of the list
decides the order of the records, never the order of the ids. A segment is *counted* if its record count is
known; it is counted only after its ledger is CLOSED. Counted segments come first. At most two are not counted
(OnlyLastTwoOpen): the current one, and during a roll the one before it. So a roll needs exactly one segment
that is not counted (C03). The epoch grows by one with each leader and never with a roll.

**Offsets** are dense, so a segment starts where the one before it ends. During a roll the end of the older
segment is not known yet, so the start of the newer one is not known either: its ``first_offset`` is None
until the older one is counted. Each entry carries its own first offset, and an entry of the newer segment
belongs to the log only if it continues the older one. A leader may die while it drains the older ledger. Then
the newer ledger can hold entries whose predecessors are lost. None of them was acknowledged (C05), and the
next leader counts that segment as empty.

**Gaps.** An accepted loss is the exception: it ends an older ledger early. The lost records may have been
acknowledged, and so may the records of the newer ledger. If an operator says so, the newer ledger is kept
(``log.core.chain``). The offsets between the two ledgers are a gap, ``LogSegment.lost_before``. These offsets
belong to the lost records forever.

**A loss below a truncation.** A log may be truncated within an open ledger. An accepted loss may then end
that ledger below ``first_offset``. The offsets between that end and ``first_offset`` belong to truncated
records, so the log continues at ``first_offset``. No segment can store this jump, because an open segment
starts where the one before it ends. So ``before`` moves forward, and all listed segments move with it.
The entries of the moved segments still carry the old offsets. So nobody may read a segment that ends at or
below ``first_offset`` by the offsets in the list (``has_truncated``). All its records are truncated.

**Deduplication.** Since ``dedupe_epoch`` every leader has recorded in the entries of its ledgers which
producer appended which record (``log.core.producers``). None means that deduplication is off. If it is on,
the newest segment with records knows all producers. So truncation always leaves that segment in the list.

**Bytes.** Canonical CBOR, format 2, or format 3 if there are gaps:

    v            2 or 3                          epoch           of the present leader, 0 before the first
    name, incarnation, created_ms                first_offset    the first that is readable
    token        of this write                   sealed          bool
    ensemble, write_quorum, ack_quorum, guaranteed               replication of new ledgers
    roll         {bytes, records, age_ms}        retention       {bytes, age_ms}; null: no bound
    properties   text -> text                    dedupe_epoch    null: off
    before       [offset, bytes, ms]             totals before the first segment of the list
    segments     [n, m, t, packed, bytes]        n segments, m of them counted, t of those with records
    gaps         [ledger, lost, ...]             offsets lost before these segments; absent: none

``model.segments`` describes the columns in ``segments``, and ``model.policies`` the maps ``roll`` and
``retention``.

A segment takes about 10 bytes packed and at worst 48. So 10,000 segments take about 100 KB, and never more
than 500 KB; ZooKeeper lets a node have 1 MiB. But segments with similar numbers may take less than a byte
each. So the number of segments has its own bound, ``limits.LOG_SEGMENTS_MAX``, for writing and for reading.
Format 1 has longer columns; it is read and never written. Version 0.1 does not read format 3: if it ignored
the gaps, it would give their offsets to other records.

At ``limits.LOG_SEGMENTS_ROLL_MAX`` segments a log stops rolling by its policy, and its ledgers grow instead.
At ``limits.LOG_SEGMENTS_SPLICE_MAX`` the log takes no more splices. So there is still room for takeovers.
Retention or truncation makes the list shorter. A record that still does not fit raises ``LogListFull``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument, LogListFull
from ledgerlog.limits import (
    LOG_PROPERTIES_BYTES_MAX,
    LOG_RECORD_BYTES_MAX,
    LOG_SEGMENTS_MAX,
    LOG_SEGMENTS_ROLL_MAX,
    LOG_SEGMENTS_SPLICE_MAX,
    LOG_SPLICE_LABELS_MAX,
    METADATA_TRANSACTION_BYTES_MAX,
)
from ledgerlog.model.checks import checked_properties, require
from ledgerlog.model.codec import RecordTooLong, decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ids import check_log_name
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.policies import (
    RetentionPolicy,
    RollPolicy,
    read_retention,
    read_roll,
    retention_fields,
    roll_fields,
)
from ledgerlog.model.quorum import Replication, read_replication, replication_fields
from ledgerlog.model.segments import (
    Gap,
    LogSegment,
    SegmentCounts,
    gap_column,
    joined,
    read_segments,
    segment_columns,
)

_FORMAT = 2
_FORMAT_OF_LISTS = 1
_FORMAT_OF_GAPS = 3
_NUMBER_MAX = 2**63 - 1
_SEGMENT_BYTES = 54
"""About how many bytes a ledger adds to the list at worst."""
_LABELLED_BYTES = 600
"""About how many bytes a ledger adds to the transaction that labels it: its metadata."""


@attrs.frozen(kw_only=True)
class LogMetadata:
    """The record of one incarnation of a log. See ``ledgerlog.model.log`` for the rules."""

    name: str
    incarnation: int
    """A number that is never used again. A log that is deleted and made again is another log with another
    number."""
    created_ms: int
    """Wall-clock time of creation, in milliseconds since 1970. It is only shown to people; no decision
    depends on it."""
    replication: Replication
    roll: RollPolicy
    retention: RetentionPolicy
    properties: dict[str, str]
    epoch: int
    segments: tuple[LogSegment, ...]
    first_offset: int
    """The first offset that is still readable."""
    sealed: bool
    token: bytes
    """A random value of the process that wrote this version. If the answer to a write is lost, it shows
    whether the write succeeded."""
    before: tuple[int, int, int] = (0, 0, 0)
    """Offset, record bytes and last timestamp before the first listed segment."""
    dedupe_epoch: int | None = None
    """Since this epoch every segment records which producer appended which record; None: deduplication is
    off."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __attrs_post_init__(self) -> None:
        # Every change runs these checks, so they are cheap. Decoding does the checks that go over the whole
        # list.
        tail = self.segments[-3:]
        require(all(s.is_counted for s in tail[:-2]), "only the last two ledgers may be open (C03)")
        if len(tail) > 1 and not tail[-2].is_counted:
            require(not tail[-1].is_counted, "segments are counted in order")
            require(tail[-1].first_offset is None, "a segment starts where the one before it ends")
        require(not (self.sealed and self.open_segments), "a sealed log is counted to its end")
        require(self.epoch >= (tail[-1].epoch if tail else 0), "no segment is from a later epoch")

    @classmethod
    def create(
        cls,
        *,
        name: str,
        incarnation: int,
        created_ms: int,
        token: bytes,
        replication: Replication,
        roll: RollPolicy | None = None,
        retention: RetentionPolicy | None = None,
        properties: dict[str, str] | None = None,
    ) -> LogMetadata:
        """Return the record of a new, empty log.

        Raises:
            InvalidArgument: The name is malformed, or the properties are not text or are larger than
                ``limits.LOG_PROPERTIES_BYTES_MAX`` together.
        """
        return cls(
            name=check_log_name(name),
            incarnation=incarnation,
            created_ms=created_ms,
            replication=replication,
            roll=roll or RollPolicy(),
            retention=retention or RetentionPolicy(),
            properties=check_properties(properties or {}),
            epoch=0,
            segments=(),
            first_offset=0,
            sealed=False,
            token=token,
        )

    # --- questions ----------------------------------------------------------------------------

    @property
    def open_segments(self) -> tuple[LogSegment, ...]:
        """The segments, at most two, that are not counted. The ledgers of all others are CLOSED."""
        return tuple(segment for segment in self.segments[-2:] if not segment.is_counted)

    @property
    def counted_end(self) -> int:
        """The offset after the last record of the last counted segment."""
        for segment in reversed(self.segments):
            end = segment.end_offset
            if end is not None:
                return end
        return self.before[0]

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps in order, without their truncated part."""
        return tuple(
            Gap(max(segment.first_offset - segment.lost_before, self.first_offset), segment.first_offset)
            for segment in self.segments
            if segment.lost_before and segment.first_offset is not None
            if segment.first_offset > self.first_offset
        )

    @property
    def counted_bytes(self) -> int:
        """Bytes of all records ever appended before ``counted_end``, truncated ones included."""
        return self.before[1] + sum(segment.byte_length or 0 for segment in self.segments)

    @property
    def counted_ms(self) -> int:
        """The timestamp of the last record before ``counted_end``; 0 if there was none."""
        for segment in reversed(self.segments):
            if segment.last_ms is not None:
                return segment.last_ms
        return self.before[2]

    def has_same_chain(self, other: LogMetadata) -> bool:
        """Return whether both records name the same leader and the same current ledger.

        The log may have been truncated between the two records, for example, but there was no takeover, roll
        or seal.
        """
        return (
            self.incarnation == other.incarnation
            and self.epoch == other.epoch
            and self.sealed == other.sealed
            and [s.ledger_id for s in self.segments[-1:]] == [s.ledger_id for s in other.segments[-1:]]
            and len(self.open_segments) == len(other.open_segments)
        )

    @property
    def dedupe_index(self) -> int | None:
        """The index of the segment that deduplication needs; None if deduplication is off.

        This is the newest counted segment with records. That segment knows all producers up to its end, so it
        must stay in the list. If no segment has records, this is the index of the first segment.
        """
        if self.dedupe_epoch is None:
            return None
        for index in range(len(self.segments) - 1, -1, -1):
            if self.segments[index].record_count:
                return index
        return 0

    def index_of(self, ledger_id: int) -> int | None:
        """Return the index of a ledger in the list; None if it is not listed."""
        for index in range(len(self.segments) - 1, -1, -1):
            if self.segments[index].ledger_id == ledger_id:
                return index
        return None

    def index_at(self, offset: int) -> int:
        """Return the index of the last segment that is known to start at or before ``offset``.

        This segment holds the offset, unless there is a next segment whose start is not known yet: then that
        one may hold it. The list must not be empty. For an offset before the first segment, the index is 0.
        """
        assert self.segments
        low, high = 0, len(self.segments) - 1
        if self.segments[high].first_offset is None:
            high -= 1
        while low < high:
            middle = (low + high + 1) // 2
            start = self.segments[middle].first_offset
            assert start is not None, "only the last segment may have an unknown start"
            if start <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def has_truncated(self, segment: LogSegment) -> bool:
        """Return whether all records of a listed segment are truncated.

        Such a segment may be listed at other offsets than its entries carry. See "A loss below a truncation"
        in the module docstring.
        """
        return segment.end_offset is not None and segment.end_offset <= self.first_offset

    def check_room(self, ledgers: int) -> None:
        """Raise LogListFull unless a splice can still add ``ledgers`` ledgers to the log.

        Check this before you write the ledgers: a later refusal would waste that work.
        """
        listed = len(self.segments) + ledgers
        if listed <= LOG_SEGMENTS_ROLL_MAX:
            return  # So few segments always fit.
        size = len(self.encode()) + _SEGMENT_BYTES * ledgers
        size += _LABELLED_BYTES * min(ledgers, LOG_SPLICE_LABELS_MAX)
        if listed > LOG_SEGMENTS_SPLICE_MAX or size > METADATA_TRANSACTION_BYTES_MAX:
            raise LogListFull(self.name, len(self.segments))

    # --- changes ------------------------------------------------------------------------------

    def taken_over(
        self, counts: Sequence[SegmentCounts], ledger_id: int, token: bytes, *, dedupe: bool | None = None
    ) -> LogMetadata:
        """Return the record of a new leader.

        Args:
            counts: The counts of the segments that were not counted, in order. All their ledgers must be
                CLOSED.
            ledger_id: The new leader's ledger.
            token: A random value of the caller.
            dedupe: Switch deduplication on or off from here; None leaves it as it is.
        """
        assert not self.sealed, "a sealed log is never led again"
        counted = self._all_counted(counts)
        segment = LogSegment(ledger_id, self.epoch + 1, counted.counted_end)
        dedupe_epoch = self.dedupe_epoch
        if dedupe is not None and dedupe != (dedupe_epoch is not None):
            dedupe_epoch = self.epoch + 1 if dedupe else None
        return attrs.evolve(
            counted,
            epoch=self.epoch + 1,
            segments=(*counted._without(ledger_id), segment),
            dedupe_epoch=dedupe_epoch,
            token=token,
        )

    def rolled(self, ledger_id: int, token: bytes) -> LogMetadata:
        """Return the record after the leader continued in the new ledger ``ledger_id``."""
        assert not self.sealed, "a sealed log takes no ledger"
        assert len(self.open_segments) == 1, "a roll waits until the one before it is closed (C03)"
        segment = LogSegment(ledger_id, self.epoch, None)
        return attrs.evolve(self, segments=(*self._without(ledger_id), segment), token=token)

    def spliced(
        self,
        staged: Sequence[tuple[int, int, int]],
        now_ms: int,
        token: bytes,
        *,
        counts: Sequence[SegmentCounts] | None = None,
    ) -> LogMetadata:
        """Return the record after a splice of closed ledgers.

        Args:
            staged: The ledgers in their order in the log: id, records and bytes of each. All are CLOSED and
                hold records.
            now_ms: Wall clock, in milliseconds since 1970. It becomes the timestamp of the records, or the
                log's last timestamp if that is later.
            token: A random value of the caller.
            counts: If given, the caller first ends the leadership, with these counts of the open ledgers, as
                in ``recovered``. If None, no ledger is open, or ``staged`` is empty. Then the epoch stays,
                but a log that never had a leader gets epoch 1.
        """
        assert not self.sealed, "a sealed log takes no ledger"
        assert counts is not None or not staged or not self.open_segments, "a splice deposes or asks a leader"
        counted = self if counts is None else self._all_counted(counts)
        epoch = max(self.epoch, 1) if counts is None else self.epoch + 1
        return attrs.evolve(
            counted, epoch=epoch, segments=counted._with_staged(staged, now_ms, epoch), token=token
        )

    def continued(
        self,
        counts: SegmentCounts,
        staged: Sequence[tuple[int, int, int]],
        now_ms: int,
        token: bytes,
        *,
        ledger_id: int,
    ) -> LogMetadata:
        """Return the record after the leader closed its only open ledger and continued in ``ledger_id``.

        Args:
            counts: The counts of the closed ledger.
            staged: Ledgers to splice between the two, as for ``spliced``; may be empty.
            now_ms: Wall clock, as for ``spliced``.
            token: A random value of the caller.
            ledger_id: The new ledger.
        """
        assert not self.sealed, "a sealed log takes no ledger"
        assert len(self.open_segments) == 1, "the leader waits until its roll has ended"
        counted = attrs.evolve(self, segments=self._counting([counts]))
        behind = attrs.evolve(counted, segments=counted._with_staged(staged, now_ms, self.epoch))
        segment = LogSegment(ledger_id, self.epoch, behind.counted_end)
        return attrs.evolve(behind, segments=(*behind._without(ledger_id), segment), token=token)

    def _with_staged(
        self, staged: Sequence[tuple[int, int, int]], now_ms: int, epoch: int
    ) -> tuple[LogSegment, ...]:
        """Return the segments, all of them counted, followed by spliced ones."""
        if not staged:
            return self.segments
        assert len(self.segments) + len(staged) <= LOG_SEGMENTS_SPLICE_MAX, "a splice leaves room for writers"
        assert self.dedupe_epoch is None, (
            "ledgers that were written apart do not say which producer appended which record"
        )
        at, ms = self.counted_end, max(now_ms, self.counted_ms)
        segments = list(self.segments)
        for ledger_id, record_count, byte_length in staged:
            assert record_count > 0, "a ledger without records is not worth a segment"
            segments.append(LogSegment(ledger_id, epoch, at, record_count, byte_length, ms, ms))
            at += record_count
        assert len({segment.ledger_id for segment in segments}) == len(segments), "no ledger is listed twice"
        return tuple(segments)

    def counted(self, ledger_id: int, counts: SegmentCounts, token: bytes) -> LogMetadata:
        """Return the record with the counts of the first open segment, whose ledger is CLOSED now."""
        assert self.open_segments, "there is a segment to count"
        assert self.open_segments[0].ledger_id == ledger_id, "segments are counted in order"
        return attrs.evolve(self, segments=self._counting([counts]), token=token)

    def truncated(self, before_offset: int, end_offset: int, token: bytes) -> tuple[LogMetadata, list[int]]:
        """Give up the records below ``before_offset``.

        Args:
            before_offset: The first offset to keep.
            end_offset: The confirmed end of the log.
            token: A random value of the caller.

        Returns:
            The record, and the ids of the ledgers that left the list. Delete these once the record is
            written.
        """
        assert self.first_offset <= before_offset <= max(end_offset, self.counted_end)
        offset, size, last_ms = self.before
        keep = 0
        told_by = self.dedupe_index
        for segment in self.segments[:told_by]:
            end = segment.end_offset
            if end is None or end > before_offset:
                break
            assert segment.byte_length is not None
            offset, size = end, size + segment.byte_length
            last_ms = last_ms if segment.last_ms is None else segment.last_ms
            keep += 1
        changed = attrs.evolve(
            self,
            segments=self.segments[keep:],
            first_offset=before_offset,
            before=(offset, size, last_ms),
            token=token,
        )
        return changed, [segment.ledger_id for segment in self.segments[:keep]]

    def brought_back(
        self, ledger_id: int, epoch: int, counts: SegmentCounts, token: bytes, *, names_producers: bool
    ) -> LogMetadata:
        """Return the record with a CLOSED ledger at its end that a restore had forgotten.

        If the ledger's leader had switched deduplication on or off, it is on or off in the record, too.

        Args:
            ledger_id: The ledger.
            epoch: The epoch of the leader that made it, at most the present one.
            counts: The size of the ledger, which holds at least one record, and of the gap before it.
            token: A random value of the caller.
            names_producers: Whether the ledger's entries say which producer appended which record.
        """
        assert not self.sealed, "a sealed log takes no ledger"
        assert not self.open_segments, "segments are counted in order"
        assert counts.record_count > 0, "a ledger without records is not worth a segment"
        start = self.counted_end + counts.lost_before
        segment = LogSegment(ledger_id, epoch, start).with_counts(counts)
        return attrs.evolve(
            self,
            segments=(*self._without(ledger_id), segment),
            dedupe_epoch=(epoch if self.dedupe_epoch is None else self.dedupe_epoch)
            if names_producers
            else None,
            token=token,
        )

    def merged(self, first_ledger: int, end_offset: int, token: bytes) -> tuple[LogMetadata, list[int]]:
        """Merge the counted segments from ``first_ledger`` up to ``end_offset`` into one.

        One archived file holds all their records now (``model.archive``). Readers take them from this file
        and no longer from bookies.

        Args:
            first_ledger: The ledger of the first segment. The merged segment keeps this id.
            end_offset: The end of the last segment.
            token: A random value of the caller.

        Returns:
            The record, and the ids of the ledgers that left the list.
        """
        start = self.index_of(first_ledger)
        assert start is not None, "only listed ledgers are merged"
        assert self.segments[start].record_count, "an archived ledger holds records"
        stop = start + 1
        while (self.segments[stop - 1].end_offset or 0) < end_offset:
            stop += 1
        parts = self.segments[start:stop]
        assert parts[-1].end_offset == end_offset, "whole ledgers are merged"
        one = joined(parts, first_ledger)
        changed = attrs.evolve(
            self, segments=(*self.segments[:start], one, *self.segments[stop:]), token=token
        )
        return changed, [part.ledger_id for part in parts[1:]]

    def gathered(self, parts: Sequence[LogSegment], ledger_id: int, token: bytes) -> LogMetadata | None:
        """Replace several neighbours by one ledger.

        Args:
            parts: The counted segments whose records the ledger holds.
            ledger_id: The ledger, which must be CLOSED.
            token: A random value of the caller.

        Returns:
            The record; None if the list no longer has all of ``parts``, or has changed any of them.
        """
        start = self.index_of(parts[0].ledger_id)
        if start is None or self.segments[start : start + len(parts)] != tuple(parts):
            return None
        self._without(ledger_id)
        rest = self.segments[start + len(parts) :]
        segments = (*self.segments[:start], joined(parts, ledger_id), *rest)
        return attrs.evolve(self, segments=segments, token=token)

    def sealed_now(self, counts: Sequence[SegmentCounts], token: bytes) -> LogMetadata:
        """Return the record of the sealed log. All its ledgers must be CLOSED.

        Later changes, for example truncations, add no records to a sealed log.
        """
        assert not self.sealed
        return attrs.evolve(self._all_counted(counts), epoch=self.epoch + 1, sealed=True, token=token)

    def recovered(self, counts: Sequence[SegmentCounts], token: bytes) -> LogMetadata:
        """Return the record with no leader.

        Args:
            counts: The counts of the segments that were not counted, in order. All ledgers must be CLOSED.
            token: A random value of the caller.
        """
        assert not self.sealed, "a sealed log has nothing to recover"
        return attrs.evolve(self._all_counted(counts), epoch=self.epoch + 1, token=token)

    def with_properties(self, properties: dict[str, str], token: bytes) -> LogMetadata:
        """Return the record with these properties. Raise InvalidArgument as ``create`` does."""
        return attrs.evolve(self, properties=check_properties(properties), token=token)

    def with_policies(
        self, roll: RollPolicy | None, retention: RetentionPolicy | None, token: bytes
    ) -> LogMetadata:
        """Return the record with each policy replaced that is not None."""
        return attrs.evolve(self, roll=roll or self.roll, retention=retention or self.retention, token=token)

    def touched(self, token: bytes) -> LogMetadata:
        """Return the same record with another token. Writing the new record only moves the version."""
        return attrs.evolve(self, token=token)

    def _all_counted(self, counts: Sequence[SegmentCounts]) -> LogMetadata:
        assert len(counts) == len(self.open_segments), "every open segment is counted, and no other"
        counted = attrs.evolve(self, segments=self._counting(counts))
        return counted._moved_on(self.first_offset - counted.counted_end)

    def _moved_on(self, by: int) -> LogMetadata:
        """Return the record with every listed ledger moved ``by`` offsets forward, if ``by`` is positive.

        All records in these ledgers are truncated, and the log continues at ``first_offset``."""
        if by <= 0:
            return self
        assert not self.open_segments, "the entries of an open segment say where it starts"
        offset, size, last_ms = self.before
        return attrs.evolve(
            self,
            before=(offset + by, size, last_ms),
            segments=tuple(
                segment._replace(first_offset=segment.first_offset + by)
                for segment in self.segments
                if segment.first_offset is not None
            ),
        )

    def _counting(self, counts: Sequence[SegmentCounts]) -> tuple[LogSegment, ...]:
        """Return the segments with the first ``len(counts)`` open ones counted.

        The segment after them gets its start.
        """
        if not counts:
            return self.segments
        at = len(self.segments) - len(self.open_segments)
        changed: list[LogSegment] = []
        start: int | None = self.segments[at].first_offset
        for index, segment in enumerate(self.segments[at:]):
            segment = segment._replace(first_offset=start)
            if index < len(counts):
                assert start is not None, "segments are counted in order"
                lost = counts[index].lost_before
                segment = segment._replace(first_offset=start + lost).with_counts(counts[index])
            changed.append(segment)
            start = segment.end_offset
        return (*self.segments[:at], *changed)

    def _without(self, ledger_id: int) -> tuple[LogSegment, ...]:
        assert all(segment.ledger_id != ledger_id for segment in self.segments), "no ledger is listed twice"
        return self.segments

    # --- bytes --------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Encode the record as canonical CBOR.

        Raises:
            LogListFull: The record is larger than ``limits.LOG_RECORD_BYTES_MAX``, or lists more than
                ``limits.LOG_SEGMENTS_MAX`` ledgers.
            InvalidArgument: A number is outside of the range that a record can hold.
        """
        if len(self.segments) > LOG_SEGMENTS_MAX:
            raise LogListFull(self.name, len(self.segments))
        self._check_numbers()
        fields: dict[str, Any] = {
            "v": _FORMAT,
            "name": self.name,
            "incarnation": self.incarnation,
            "created_ms": self.created_ms,
            **replication_fields(self.replication),
            "roll": roll_fields(self.roll),
            "retention": retention_fields(self.retention),
            "properties": self.properties,
            "epoch": self.epoch,
            "first_offset": self.first_offset,
            "sealed": self.sealed,
            "token": self.token,
            "before": list(self.before),
            "dedupe_epoch": self.dedupe_epoch,
            "segments": segment_columns(
                self.segments,
                len(self.open_segments),
                epoch=self.epoch,
                offset=self.before[0],
                last_ms=self.before[2],
            ),
        }
        if gaps := gap_column(self.segments):
            fields |= {"v": _FORMAT_OF_GAPS, "gaps": gaps}
        try:
            data = encode_record(fields, unknown=self.unknown)
        except RecordTooLong:
            raise LogListFull(self.name, len(self.segments)) from None
        if len(data) > LOG_RECORD_BYTES_MAX:
            raise LogListFull(self.name, len(self.segments))
        return data

    def _check_numbers(self) -> None:
        """Raise InvalidArgument for a value that decoding would refuse.

        A long list is not read back after encoding, so this check is needed. The policies and the list of
        segments have checks of their own.
        """
        numbers = {
            "incarnation": self.incarnation,
            "created_ms": self.created_ms,
            "epoch": self.epoch,
            "first_offset": self.first_offset,
            "dedupe_epoch": self.dedupe_epoch or 0,
            **{f"before[{at}]": number for at, number in enumerate(self.before)},
        }
        for what, number in numbers.items():
            if not 0 <= number <= _NUMBER_MAX:
                raise InvalidArgument(f"log {self.name!r}: {what} is {number}, outside 0..{_NUMBER_MAX}")
        if self.first_offset < self.before[0]:
            raise InvalidArgument(
                f"log {self.name!r}: first_offset is {self.first_offset}, below the list's {self.before[0]}"
            )
        check_log_name(self.name)
        check_properties(self.properties)

    @classmethod
    def decode_untrusted(cls, data: bytes, incarnation: int) -> LogMetadata:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the log and the field."""
        what = f"record of log incarnation {incarnation}"
        fields = decode_record_untrusted(data, what, MetadataCorrupt)
        version = fields.format(_FORMAT_OF_LISTS, _FORMAT_OF_GAPS)
        if fields.integer("incarnation") != incarnation:
            fields.fail("it describes another incarnation")
        before = fields.sequence("before", int)
        if len(before) != 3 or not all(0 <= number <= _NUMBER_MAX for number in before):
            fields.fail("the field 'before' is not an offset, a length and a time")
        try:
            metadata = cls(
                name=check_log_name(fields.get("name", str)),
                incarnation=incarnation,
                created_ms=fields.integer("created_ms"),
                replication=read_replication(fields),
                roll=read_roll(fields),
                retention=read_retention(fields),
                properties=check_properties(fields.strings("properties")),
                epoch=fields.integer("epoch"),
                segments=read_segments(
                    fields, listed=version == _FORMAT_OF_LISTS, offset=before[0], last_ms=before[2]
                ),
                first_offset=fields.integer("first_offset"),
                sealed=fields.get("sealed", bool),
                token=fields.get("token", bytes),
                before=(before[0], before[1], before[2]),
                dedupe_epoch=(
                    None if fields.optional("dedupe_epoch", int) is None else fields.integer("dedupe_epoch")
                ),
                unknown=fields.unknown(),
            )
            require(metadata.first_offset >= before[0], "the list reaches back to the first offset")
        except (ValueError, AssertionError) as cause:
            raise MetadataCorrupt(f"{what}: {cause}") from cause
        return metadata


def check_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return a copy of ``properties``. Raise InvalidArgument if they are not text or too large."""
    return checked_properties(properties, "a log", LOG_PROPERTIES_BYTES_MAX)
