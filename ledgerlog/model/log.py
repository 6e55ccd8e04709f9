"""A log's metadata: the ordered list of ledgers that compare-and-set protects (protocol A.6, C.4).

A log is a chain of ledgers, its *segments*. ``LogMetadata`` is the one record that says which, in
which order, and who leads; each legal change of it is a method that returns the next value and
asserts the rules that must hold before the record is written:

    taken_over   a new leader: epoch + 1, everything before is counted, one new ledger at the end
    rolled       the leader goes on in a new ledger: same epoch, one new ledger at the end
    counted      the ledger before the current one (or the last one) is closed: its size is written down
    truncated    records below an offset are given up; ledgers that hold nothing else leave the list
    touched      nothing but the version: whoever read it before must read it again
    spliced      ledgers that were written apart and are CLOSED become part of the log, counted at once
    merged       neighbours whose records lie in one archived file become one segment, named by the first
    recovered    nobody leads any more: epoch + 1, everything is counted, the next leader adds a ledger
    sealed       the log is complete: epoch + 1, everything is counted, no ledger is added any more

**Rules.** Ledger ids are listed once, and a change appends at most one (ListCas); a splice appends any number
of closed ones, whose records and sizes it writes down with them. Order is the order of the list, never of the
ids. A segment is *counted* when its record count is known, and it is counted only after its ledger is CLOSED;
counted segments come first and at most two are not counted (OnlyLastTwoOpen): the current one, and during a
roll the one before it. A roll therefore needs exactly one segment that is not counted (C03). The epoch grows
by one with each leader and never with a roll.

**Offsets** are dense, so a segment starts where the one before it ends. While a roll is under way the
end of the older segment is not known yet, and neither is the start of the newer one: its
``first_offset`` is None until the older is counted. Entries carry their own first offset, and an
entry of the newer segment belongs to the log only if it continues the older one: a leader that dies
while it drains the older ledger can leave entries behind in the newer one that followed others which
nobody kept. None of them was acknowledged (C05), and the next leader counts that segment as empty.

**Gaps.** One thing breaks that: an older ledger that was ended short by an accepted loss. What it lost may
have been acknowledged, and so may what the newer one holds. The newer one is then kept if an operator says so
(``log.core.chain``), and the offsets between are a gap, ``Segment.lost_before``: they belong to the records
that were lost, for ever.

**Deduplication.** ``dedupe_epoch`` says since which epoch every leader has written down, in the entries of
its ledgers, who appended what (``log.core.producers``); None where it is off. The newest segment with records
then tells the whole of it, so truncation leaves that one in the list, whatever is given up.

**Bytes.** Canonical CBOR, format 2, and 3 if there are gaps:

    v            2 or 3                          epoch           of the present leader, 0 before the first
    name, incarnation, created_ms                first_offset    the first that is readable
    token        of this write                   sealed          bool
    ensemble, write_quorum, ack_quorum, guaranteed               replication of new ledgers
    roll         {bytes, records, age_ms}        retention       {bytes, age_ms}; null: no bound
    properties   text -> text                    dedupe_epoch    null: off
    before       [offset, bytes, ms]             what lay before the first segment of the list
    segments     [n, m, t, packed, bytes]        n segments, m of them counted, t of those with records
    gaps         [ledger, lost, ...]             offsets lost before these segments; absent: none

``model.segments`` tells the columns in those bytes, ``model.policies`` the two maps.

A segment takes about 10 bytes packed and 48 at the very worst: 10,000 segments are 100 KB and, whatever
their numbers, below 500 KB of the 1 MiB that ZooKeeper lets a node have. Segments that are like each other
take less than a byte, so their number has a bound of its own, ``limits.LOG_SEGMENTS_MAX``, the same for
writing and for reading. Format 1, which had longer columns, is read and never written. Version 0.1 knows no
format 3: without the gaps it would give their offsets out again.

A log of ``limits.LOG_SEGMENTS_ROLL_MAX`` segments stops rolling by its policy, so that growth goes into the
ledgers, and one of ``limits.LOG_SEGMENTS_SPLICE_MAX`` takes no splices: takeovers still find room. Retention
or truncation make the list short again. A record that does not fit all the same is ``LogListFull``.
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
    METADATA_TRANSACTION_BYTES_MAX,
)
from ledgerlog.model.checks import require, utf8_size
from ledgerlog.model.codec import RecordTooLong, decode_record_untrusted, encode_record
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
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import (
    Gap,
    Segment,
    SegmentCounts,
    gap_column,
    read_segments,
    segment_columns,
)

_FORMAT = 2
_FORMAT_OF_LISTS = 1
_FORMAT_OF_GAPS = 3
_NUMBER_MAX = 2**63 - 1
_SPLICED_BYTES = 640
"""About what a ledger takes in the transaction that splices it: its place in the list, and its metadata."""


@attrs.frozen(kw_only=True)
class LogMetadata:
    """The record of one incarnation of a log. See the module for its rules."""

    name: str
    incarnation: int
    """A number never used again: a log that is deleted and made anew is another log."""
    created_ms: int
    """Wall-clock time of creation; for people, never for decisions."""
    replication: Replication
    roll: RollPolicy
    retention: RetentionPolicy
    properties: dict[str, str]
    epoch: int
    segments: tuple[Segment, ...]
    first_offset: int
    """The first offset that is still readable."""
    sealed: bool
    token: bytes
    """A random value of whoever wrote this version: it settles a write whose answer was lost."""
    before: tuple[int, int, int] = (0, 0, 0)
    """Offset, record bytes and last timestamp at the start of the first listed segment."""
    dedupe_epoch: int | None = None
    """The epoch since which every segment tells who appended what; None: deduplication is off."""

    def __attrs_post_init__(self) -> None:
        # Every change costs this much at least, so what needs a walk over the list is left to decoding.
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
        """The record of a new, empty log. InvalidArgument for a malformed name and for properties that
        are not text or are over ``limits.LOG_PROPERTIES_BYTES_MAX`` together."""
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
    def open_segments(self) -> tuple[Segment, ...]:
        """The segments, at most two, that are not counted. Every other one's ledger is CLOSED."""
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
        """The offsets that were lost, of those that are not truncated, in order."""
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
        """The timestamp of the last record before ``counted_end``; 0 where there was none."""
        for segment in reversed(self.segments):
            if segment.last_ms is not None:
                return segment.last_ms
        return self.before[2]

    def has_same_chain(self, other: LogMetadata) -> bool:
        """Whether the two name the same leader and the same current ledger: what lies between them is
        truncation or the like, and no takeover, roll or seal."""
        return (
            self.incarnation == other.incarnation
            and self.epoch == other.epoch
            and self.sealed == other.sealed
            and [s.ledger_id for s in self.segments[-1:]] == [s.ledger_id for s in other.segments[-1:]]
            and len(self.open_segments) == len(other.open_segments)
        )

    @property
    def dedupe_index(self) -> int | None:
        """With deduplication, the index of the newest counted segment with records, which tells who
        appended what up to its end and must stay in the list for that; without records in any, of the first
        segment. None where deduplication is off."""
        if self.dedupe_epoch is None:
            return None
        for index in range(len(self.segments) - 1, -1, -1):
            if self.segments[index].record_count:
                return index
        return 0

    def index_of(self, ledger_id: int) -> int | None:
        """The index of a ledger in the list, None where it is not listed."""
        for index in range(len(self.segments) - 1, -1, -1):
            if self.segments[index].ledger_id == ledger_id:
                return index
        return None

    def index_at(self, offset: int) -> int:
        """The index of the last segment that is known to start at or before ``offset``. It is the one
        that holds the offset unless a segment after it does whose start is not known yet. The list
        must not be empty; an offset before it gives 0."""
        assert self.segments
        low, high = 0, len(self.segments) - 1
        if self.segments[high].first_offset is None:
            high -= 1
        while low < high:
            middle = (low + high + 1) // 2
            start = self.segments[middle].first_offset
            assert start is not None, "only the last segment may not know where it starts"
            if start <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def check_room(self, ledgers: int) -> None:
        """LogListFull unless so many ledgers can still become part of the log by a splice. For whoever is
        about to write them: afterwards it costs their work."""
        listed = len(self.segments) + ledgers
        if listed <= LOG_SEGMENTS_ROLL_MAX:
            return  # These fit, whatever their numbers are.
        size = len(self.encode()) + _SPLICED_BYTES * ledgers
        if listed > LOG_SEGMENTS_SPLICE_MAX or size > METADATA_TRANSACTION_BYTES_MAX:
            raise LogListFull(self.name, len(self.segments))

    # --- changes ------------------------------------------------------------------------------

    def taken_over(
        self, counts: Sequence[SegmentCounts], ledger_id: int, token: bytes, *, dedupe: bool | None = None
    ) -> LogMetadata:
        """A new leader's record: ``counts`` for the segments that were not counted, in order, and a new
        ledger. All ledgers before it must be CLOSED. ``dedupe`` switches deduplication on or off from
        here; None leaves it as it is."""
        assert not self.sealed, "a sealed log is never led again"
        counted = self._all_counted(counts)
        segment = Segment(ledger_id, self.epoch + 1, counted.counted_end)
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
        """The leader's record as it goes on in a new ledger."""
        assert not self.sealed, "a sealed log takes no ledger"
        assert len(self.open_segments) == 1, "a roll waits until the one before it is closed (C03)"
        segment = Segment(ledger_id, self.epoch, None)
        return attrs.evolve(self, segments=(*self._without(ledger_id), segment), token=token)

    def spliced(
        self,
        staged: Sequence[tuple[int, int, int]],
        now_ms: int,
        token: bytes,
        *,
        counts: Sequence[SegmentCounts] | None,
    ) -> LogMetadata:
        """Ledgers become part of the log, in this order: ``staged`` is the id, the records and the bytes of
        each; all are CLOSED and hold records. Where ``counts`` is given the one who does so becomes the
        leader first, as in ``taken_over``; else it leads already and no ledger is open."""
        assert not self.sealed, "a sealed log takes no ledger"
        assert len(self.segments) + len(staged) <= LOG_SEGMENTS_SPLICE_MAX, "a splice leaves room for writers"
        assert self.dedupe_epoch is None, "ledgers that were written apart do not say who appended what"
        assert counts is not None or not self.open_segments, "whose ledger is open leads"
        counted = self if counts is None else self._all_counted(counts)
        epoch = self.epoch + (counts is not None)
        at, ms = counted.counted_end, max(now_ms, counted.counted_ms)
        segments = list(counted.segments)
        for ledger_id, record_count, byte_length in staged:
            assert record_count > 0, "a ledger without records is not worth a segment"
            counted._without(ledger_id)
            segments.append(Segment(ledger_id, epoch, at, record_count, byte_length, ms, ms))
            at += record_count
        assert len({ledger_id for ledger_id, _, _ in staged}) == len(staged), "no ledger is listed twice"
        return attrs.evolve(counted, epoch=epoch, segments=tuple(segments), token=token)

    def counted(self, ledger_id: int, counts: SegmentCounts, token: bytes) -> LogMetadata:
        """The first open segment, whose ledger is CLOSED now, gets its counts."""
        assert self.open_segments, "there is a segment to count"
        assert self.open_segments[0].ledger_id == ledger_id, "segments are counted in order"
        return attrs.evolve(self, segments=self._counting([counts]), token=token)

    def truncated(self, before_offset: int, end_offset: int, token: bytes) -> tuple[LogMetadata, list[int]]:
        """Give up the records below ``before_offset``; also the ids of the ledgers that left the list,
        to be deleted once this is written. ``end_offset`` is the confirmed end of the log."""
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

    def merged(self, first_ledger: int, end_offset: int, token: bytes) -> tuple[LogMetadata, list[int]]:
        """The counted segments from ``first_ledger`` on up to ``end_offset`` become one, under its id, for it
        is one file that holds their records now (``model.archive``); also the ids of the ledgers that left
        the list. Nobody reads any of them from bookies any more."""
        start = self.index_of(first_ledger)
        assert start is not None, "what is merged is listed"
        assert self.segments[start].record_count, "an archived ledger holds records"
        stop = start + 1
        while (self.segments[stop - 1].end_offset or 0) < end_offset:
            stop += 1
        parts = self.segments[start:stop]
        assert parts[-1].end_offset == end_offset, "whole ledgers are merged"
        assert all(part.is_counted for part in parts), "what is merged is closed"
        assert not any(part.lost_before for part in parts[1:]), "nothing is merged across a gap"
        with_records = [part for part in parts if part.record_count]
        one = Segment(
            first_ledger,
            parts[0].epoch,
            parts[0].first_offset,
            sum(part.record_count or 0 for part in parts),
            sum(part.byte_length or 0 for part in parts),
            with_records[0].first_ms,
            with_records[-1].last_ms,
            parts[0].lost_before,
        )
        changed = attrs.evolve(
            self, segments=(*self.segments[:start], one, *self.segments[stop:]), token=token
        )
        return changed, [part.ledger_id for part in parts[1:]]

    def sealed_now(self, counts: Sequence[SegmentCounts], token: bytes) -> LogMetadata:
        """The log's last record but for truncations. All its ledgers must be CLOSED."""
        assert not self.sealed
        return attrs.evolve(self._all_counted(counts), epoch=self.epoch + 1, sealed=True, token=token)

    def recovered(self, counts: Sequence[SegmentCounts], token: bytes) -> LogMetadata:
        """The record with nobody leading: ``counts`` for the segments that were not counted, in order. All
        its ledgers must be CLOSED."""
        assert not self.sealed, "a sealed log has nothing to recover"
        return attrs.evolve(self._all_counted(counts), epoch=self.epoch + 1, token=token)

    def with_properties(self, properties: dict[str, str], token: bytes) -> LogMetadata:
        """Other properties in place of the old. InvalidArgument as in ``create``."""
        return attrs.evolve(self, properties=check_properties(properties), token=token)

    def with_policies(
        self, roll: RollPolicy | None, retention: RetentionPolicy | None, token: bytes
    ) -> LogMetadata:
        """Another policy in place of the old, for each that is not None."""
        return attrs.evolve(self, roll=roll or self.roll, retention=retention or self.retention, token=token)

    def touched(self, token: bytes) -> LogMetadata:
        """The same record under another token: writing it moves the version and nothing else."""
        return attrs.evolve(self, token=token)

    def _all_counted(self, counts: Sequence[SegmentCounts]) -> LogMetadata:
        assert len(counts) == len(self.open_segments), "every open segment is counted, and no other"
        return attrs.evolve(self, segments=self._counting(counts))

    def _counting(self, counts: Sequence[SegmentCounts]) -> tuple[Segment, ...]:
        """The segments, with the first ``len(counts)`` open ones counted and the next one's start known."""
        if not counts:
            return self.segments
        at = len(self.segments) - len(self.open_segments)
        changed: list[Segment] = []
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

    def _without(self, ledger_id: int) -> tuple[Segment, ...]:
        assert all(segment.ledger_id != ledger_id for segment in self.segments), "no ledger is listed twice"
        return self.segments

    # --- bytes --------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Canonical CBOR. LogListFull where it is over ``limits.LOG_RECORD_BYTES_MAX``, or lists more than
        ``limits.LOG_SEGMENTS_MAX`` ledgers; InvalidArgument for a number that no record can hold."""
        if len(self.segments) > LOG_SEGMENTS_MAX:
            raise LogListFull(self.name, len(self.segments))
        self._check_numbers()
        fields: dict[str, Any] = {
            "v": _FORMAT,
            "name": self.name,
            "incarnation": self.incarnation,
            "created_ms": self.created_ms,
            "ensemble": self.replication.ensemble,
            "write_quorum": self.replication.write_quorum,
            "ack_quorum": self.replication.ack_quorum,
            "guaranteed": self.replication.guaranteed,
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
            data = encode_record(fields)
        except RecordTooLong:
            raise LogListFull(self.name, len(self.segments)) from None
        if len(data) > LOG_RECORD_BYTES_MAX:
            raise LogListFull(self.name, len(self.segments))
        return data

    def _check_numbers(self) -> None:
        """InvalidArgument where decoding would refuse what is neither a policy nor the list; each checks
        its own. A long list is not read back before each write."""
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
        """The inverse of ``encode``; MetadataCorrupt names the log and the field."""
        what = f"record of log incarnation {incarnation}"
        fields = decode_record_untrusted(data, what, MetadataCorrupt)
        version = fields.integer("v")
        if not _FORMAT_OF_LISTS <= version <= _FORMAT_OF_GAPS:
            fields.fail(
                f"format {version}; this version reads formats {_FORMAT_OF_LISTS} to {_FORMAT_OF_GAPS}"
            )
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
                replication=Replication(
                    ensemble=fields.integer("ensemble"),
                    write_quorum=fields.integer("write_quorum"),
                    ack_quorum=fields.integer("ack_quorum"),
                    guaranteed=fields.get("guaranteed", bool),
                ),
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
            )
            require(metadata.first_offset >= before[0], "the list reaches back to the first offset")
        except (ValueError, AssertionError) as cause:
            raise MetadataCorrupt(f"{what}: {cause}") from cause
        return metadata


def check_properties(properties: dict[str, str]) -> dict[str, str]:
    """A copy of ``properties``; InvalidArgument where they are not text or too large."""
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in properties.items()):
        raise InvalidArgument("the properties of a log are text, keys and values alike")
    size = sum(utf8_size(k) + utf8_size(v) for k, v in properties.items())
    if size > LOG_PROPERTIES_BYTES_MAX:
        raise InvalidArgument(f"properties of {size} bytes, over the limit of {LOG_PROPERTIES_BYTES_MAX}")
    return dict(properties)
