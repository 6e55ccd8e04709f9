"""The record of a log: its transitions, and its bytes."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument, LogListFull
from ledgerlog.limits import (
    LOG_RECORD_BYTES_MAX,
    LOG_SEGMENTS_MAX,
    LOG_SEGMENTS_ROLL_MAX,
    LOG_SEGMENTS_SPLICE_MAX,
    LOG_SPLICE_LEDGERS_MAX,
)
from ledgerlog.model.codec import decode_record_untrusted, encode_record
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.packing import pack
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import milliseconds, moment
from ledgerlog.model.segments import NOTHING, LogSegment, SegmentCounts

NOW = 1_700_000_000_000


def new_log(**changes: object) -> LogMetadata:
    options: dict[str, object] = {
        "name": "orders/eu",
        "incarnation": 5,
        "created_ms": NOW,
        "token": b"made",
        "replication": Replication(3, 3, 2),
    }
    return LogMetadata.create(**{**options, **changes})


def counts(records: int, size: int = 100, at: int = NOW) -> SegmentCounts:
    return SegmentCounts(records, size, at, at + 5) if records else NOTHING


def closed_chain(segments: int) -> LogMetadata:
    """Return a log with ledgers of 10 records each, all but the last counted."""
    log = new_log().taken_over([], 100, b"t")
    for number in range(1, segments):
        log = log.rolled(100 + number, b"r")
        log = log.counted(99 + number, counts(10, 1000, NOW + 10 * number), b"c")
    return log


def test_a_ledger_that_comes_back_behind_a_gap_begins_behind_it() -> None:
    log = closed_chain(2).recovered([counts(0)], b"r")
    back = log.brought_back(
        900, 1, attrs.evolve(counts(5, at=NOW + 100), lost_before=7), b"b", names_producers=False
    )
    assert (back.segments[-1].first_offset, back.counted_end) == (log.counted_end + 7, log.counted_end + 12)
    assert LogMetadata.decode_untrusted(back.encode(), log.incarnation) == back


def test_a_new_log_is_empty_and_led_by_nobody() -> None:
    log = new_log()
    assert (log.epoch, log.segments, log.first_offset, log.counted_end, log.sealed) == (0, (), 0, 0, False)


def test_a_takeover_raises_the_epoch_counts_what_was_open_and_appends_one_ledger() -> None:
    log = new_log().taken_over([], 7, b"a")
    assert log.epoch == 1
    assert log.segments == (LogSegment(7, 1, 0),)
    log = log.taken_over([counts(4)], 3, b"b")
    assert log.epoch == 2
    assert [s.ledger_id for s in log.segments] == [7, 3], "the order is that of the list, not of the ids"
    assert log.segments[0].record_count == 4
    assert log.segments[1] == LogSegment(3, 2, 4)
    assert log.token == b"b"


def test_a_roll_keeps_the_epoch_and_the_start_of_its_ledger_is_known_once_the_old_one_is_counted() -> None:
    log = new_log().taken_over([], 1, b"").rolled(2, b"")
    assert log.epoch == 1
    assert log.segments[1] == LogSegment(2, 1, None)
    log = log.counted(1, counts(6), b"")
    assert log.segments[1] == LogSegment(2, 1, 6)
    assert log.counted_end == 6


def test_a_takeover_during_a_roll_counts_both_ledgers() -> None:
    log = new_log().taken_over([], 1, b"").rolled(2, b"").taken_over([counts(6), counts(2)], 3, b"")
    assert [(s.first_offset, s.record_count) for s in log.segments] == [(0, 6), (6, 2), (8, None)]


def test_no_second_roll_begins_before_the_first_has_ended() -> None:
    log = new_log().taken_over([], 1, b"").rolled(2, b"")
    with pytest.raises(AssertionError, match="C03"):
        log.rolled(3, b"")


def test_a_roll_needs_a_leader_and_no_ledger_is_listed_twice() -> None:
    with pytest.raises(AssertionError, match="C03"):
        new_log().rolled(1, b"")
    with pytest.raises(AssertionError, match="listed twice"):
        new_log().taken_over([], 1, b"").taken_over([NOTHING], 1, b"")


def test_segments_are_counted_in_order() -> None:
    log = new_log().taken_over([], 1, b"").rolled(2, b"")
    with pytest.raises(AssertionError, match="in order"):
        log.counted(2, counts(1), b"")
    with pytest.raises(AssertionError, match="in order"):
        attrs.evolve(log, segments=(log.segments[0], LogSegment(2, 1, 0, 0, 0)))


def test_only_the_last_two_ledgers_may_be_open() -> None:
    log = new_log().taken_over([], 1, b"").rolled(2, b"")
    with pytest.raises(AssertionError, match="C03"):
        attrs.evolve(log, segments=(*log.segments, LogSegment(3, 1, None)))


def test_sealing_counts_everything_raises_the_epoch_and_is_final() -> None:
    log = new_log().taken_over([], 1, b"").sealed_now([counts(3)], b"s")
    assert (log.sealed, log.epoch, log.counted_end, log.open_segments) == (True, 2, 3, ())
    for change in (lambda: log.taken_over([], 2, b""), lambda: log.sealed_now([], b"")):
        with pytest.raises(AssertionError):
            change()


def test_truncation_keeps_the_offsets_of_what_remains_and_drops_whole_ledgers() -> None:
    log = closed_chain(4)
    assert log.counted_end == 30
    shorter, dropped = log.truncated(25, 30, b"x")
    assert dropped == [100, 101]
    assert shorter.first_offset == 25
    assert [s.first_offset for s in shorter.segments] == [20, 30]
    assert (shorter.counted_end, shorter.counted_bytes) == (log.counted_end, log.counted_bytes)
    assert shorter.counted_ms == log.counted_ms
    assert LogMetadata.decode_untrusted(shorter.encode(), 5) == shorter
    empty, dropped = shorter.truncated(30, 30, b"y")
    assert dropped == [102]
    assert [s.ledger_id for s in empty.segments] == [103], "the current ledger stays"


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_log_that_ends_below_its_truncation_goes_on_at_its_first_offset(dedupe: bool) -> None:
    log = new_log().taken_over([], 7, b"a", dedupe=dedupe).rolled(8, b"b").counted(7, counts(10), b"c")
    log, _ = log.truncated(80, 100, b"d")
    kept = [counts(20, 100, NOW + 10)]
    for changed in (log.taken_over(kept, 9, b"e"), log.recovered(kept, b"e").taken_over([], 9, b"f")):
        assert changed.segments[-1].first_offset == 80
        assert changed.gaps == ()
        assert LogMetadata.decode_untrusted(changed.encode(), 5) == changed
        left = changed.truncated(81, 100, b"g")[0].segments
        assert [segment.ledger_id for segment in left] == ([8, 9] if dedupe else [9])
    sealed = log.sealed_now(kept, b"e")
    assert (sealed.first_offset, sealed.counted_end) == (80, 80)


def test_a_log_whose_ledgers_are_all_truncated_still_knows_where_it_ends() -> None:
    log = closed_chain(3).counted(102, counts(7), b"")
    empty, dropped = log.truncated(27, 27, b"")
    assert (len(dropped), empty.segments) == (3, ())
    assert (empty.counted_end, empty.counted_bytes, empty.counted_ms) == (27, 2100, log.counted_ms)
    again = LogMetadata.decode_untrusted(empty.encode(), 5).taken_over([], 200, b"")
    assert again.segments == (LogSegment(200, 2, 27),)


def test_with_deduplication_the_newest_segment_with_records_stays_in_the_list() -> None:
    log = new_log().taken_over([], 1, b"", dedupe=True)
    assert log.dedupe_epoch == 1
    log = (
        log.taken_over([counts(5)], 2, b"")
        .taken_over([counts(5, 9, NOW + 9)], 3, b"")
        .taken_over([NOTHING], 4, b"")
    )
    assert log.dedupe_epoch == 1, "it is kept by leaders who do not ask for it"
    shorter, dropped = log.truncated(10, 10, b"x")
    assert dropped == [1]
    assert [s.ledger_id for s in shorter.segments] == [2, 3, 4]
    assert LogMetadata.decode_untrusted(shorter.encode(), 5) == shorter
    off = shorter.taken_over([NOTHING], 6, b"", dedupe=False)
    assert (off.dedupe_epoch, off.truncated(10, 10, b"x")[1]) == (None, [2, 3, 4])
    assert off.taken_over([NOTHING], 7, b"", dedupe=True).dedupe_epoch == 6


def test_truncation_goes_neither_back_nor_beyond_the_end() -> None:
    log, _ = closed_chain(3).truncated(5, 20, b"")
    with pytest.raises(AssertionError):
        log.truncated(4, 20, b"")
    with pytest.raises(AssertionError):
        log.truncated(21, 20, b"")


def test_the_segment_of_an_offset_is_found() -> None:
    log = closed_chain(5)
    assert [log.index_at(offset) for offset in (0, 9, 10, 25, 39, 40, 1000)] == [0, 0, 1, 2, 3, 4, 4]
    rolling = log.rolled(900, b"")
    assert rolling.index_at(1000) == 4, "where the newest starts is not known yet"
    assert log.index_of(102) == 2
    assert log.index_of(7) is None


def test_an_empty_ledger_is_a_segment_like_another() -> None:
    log = new_log().taken_over([], 1, b"").taken_over([NOTHING], 2, b"").taken_over([counts(2)], 3, b"")
    assert [s.first_offset for s in log.segments] == [0, 0, 2]
    assert log.index_at(0) == 1
    assert LogMetadata.decode_untrusted(log.encode(), 5) == log


def test_the_chain_is_the_same_after_a_truncation_and_not_after_a_takeover_a_roll_or_a_seal() -> None:
    log = closed_chain(3)
    assert log.has_same_chain(log.truncated(15, 20, b"x")[0])
    assert log.has_same_chain(log.with_properties({"a": "b"}, b"x"))
    assert not log.has_same_chain(log.rolled(7, b"x"))
    assert not log.has_same_chain(log.taken_over([NOTHING], 7, b"x"))
    assert not log.has_same_chain(log.sealed_now([NOTHING], b"x"))
    assert not log.has_same_chain(log.counted(102, counts(1), b"x"))


@pytest.mark.parametrize("bad", [2**63, 10**30, 1e9, 1.5, float("nan"), float("inf"), "1", True])
def test_a_policy_takes_no_number_that_its_record_cannot_hold(bad: Any) -> None:
    for policy in (RollPolicy, RetentionPolicy):
        with pytest.raises(InvalidArgument, match="max_bytes must be a whole number"):
            policy(max_bytes=bad)
    with pytest.raises(InvalidArgument, match="max_records must be a whole number"):
        RollPolicy(max_records=bad)


@pytest.mark.parametrize("bad", [2**63, 1e300, float("nan"), float("inf"), "1", True, 0, -1.0])
def test_a_policy_takes_no_age_that_its_record_cannot_hold(bad: Any) -> None:
    for policy in (RollPolicy, RetentionPolicy):
        with pytest.raises(InvalidArgument, match="max_age_s must be a positive number of seconds"):
            policy(max_age_s=bad)


@pytest.mark.parametrize("age_s", [1e-9, 1, 1.5, (2**63 - 1) / 1000, None])
@pytest.mark.parametrize("bound", [1, 2**63 - 1, None])
def test_whatever_a_policy_takes_its_record_gives_back(bound: int | None, age_s: float | None) -> None:
    log = new_log(
        roll=RollPolicy(max_bytes=bound, max_records=bound, max_age_s=age_s),
        retention=RetentionPolicy(max_bytes=bound, max_age_s=age_s),
    )
    again = LogMetadata.decode_untrusted(log.encode(), log.incarnation)
    assert (again.roll.max_bytes, again.roll.max_records, again.retention.max_bytes) == (bound,) * 3
    rounded = None if age_s is None else max(0.001, age_s)
    assert again.roll.max_age_s == again.retention.max_age_s == rounded


def test_arguments_are_checked() -> None:
    for bad in (0, -1):
        with pytest.raises(InvalidArgument):
            RollPolicy(max_bytes=bad)
        with pytest.raises(InvalidArgument):
            RetentionPolicy(max_age_s=bad)
    with pytest.raises(InvalidArgument):
        new_log(name="no//good")
    with pytest.raises(InvalidArgument):
        new_log(properties={"size": 3})
    with pytest.raises(InvalidArgument):
        new_log(properties={"a": "x" * 100_000})


def test_ten_thousand_segments_are_small_and_the_worst_ones_still_fit() -> None:
    log = closed_chain(3)
    long = log.segments[:2] + tuple(
        LogSegment(
            1000 + 3 * n,
            1 + n // 7,
            20 + n * 1_000_000,
            1_000_000,
            2**30,
            NOW + 1000 + n * 10**6,
            NOW + 1000 + n * 10**6 + 999_000,
        )
        for n in range(10_000)
    )
    log = attrs.evolve(log, segments=long, epoch=5000)
    data = log.encode()
    assert len(data) < 110_000
    assert LogMetadata.decode_untrusted(data, 5).segments == long
    worst = tuple(
        LogSegment(
            (n % 2) * (2**62) + n,
            2**40 + n,
            n * 2**40,
            2**40,
            2**45,
            NOW + n * 2**33,
            NOW + n * 2**33 + 2**32,
        )
        for n in range(LOG_SEGMENTS_ROLL_MAX)
    )
    log = attrs.evolve(log, segments=worst, epoch=2**41, properties={"p": "x" * 65_000})
    assert len(log.encode()) < LOG_RECORD_BYTES_MAX


def test_a_list_that_does_not_fit_is_refused_by_name() -> None:
    dice = random.Random(1)
    many = tuple(
        LogSegment(n, 1, 0, dice.randrange(1, 2**40), dice.randrange(2**60), NOW, NOW) for n in range(100_000)
    )
    with pytest.raises(LogListFull, match="orders/eu"):
        attrs.evolve(new_log(), segments=many, epoch=1).encode()


def alike(segments: int) -> tuple[LogSegment, ...]:
    """Return spliced ledgers that are so similar that hundreds of thousands pack into a few kilobytes."""
    return tuple(LogSegment(n, 1, 10 * n, 10, 1000, NOW, NOW) for n in range(segments))


def test_a_list_is_bounded_by_its_segments_however_well_they_are_packed() -> None:
    log = attrs.evolve(new_log(), segments=alike(LOG_SEGMENTS_MAX), epoch=1)
    data = log.encode()
    assert len(data) < LOG_RECORD_BYTES_MAX // 10
    assert LogMetadata.decode_untrusted(data, 5) == log
    with pytest.raises(LogListFull, match=f"{LOG_SEGMENTS_MAX + 1} ledgers"):
        attrs.evolve(log, segments=alike(LOG_SEGMENTS_MAX + 1)).encode()


def test_a_list_that_version_0_1_wrote_and_did_not_read_is_read_and_made_short() -> None:
    """Version 0.1 read lists of at most 163,840 segments. It wrote longer lists if the rest packed well."""
    log = attrs.evolve(new_log(), segments=alike(163_840 + 256), epoch=1)
    read = LogMetadata.decode_untrusted(log.encode(), 5)
    assert read == log
    with pytest.raises(LogListFull):
        read.check_room(1)
    opened = LogMetadata.decode_untrusted(read.taken_over([], 2**40, b"a").encode(), 5)
    assert opened.counted_end == log.counted_end
    shorter, dropped = opened.truncated(10 * 163_000, log.counted_end, b"b")
    assert len(dropped) == 163_000
    assert LogMetadata.decode_untrusted(shorter.encode(), 5) == shorter


def test_a_splice_is_refused_while_writers_still_find_room() -> None:
    log = attrs.evolve(new_log(), segments=alike(LOG_SEGMENTS_SPLICE_MAX - 256), epoch=1)
    log.check_room(256)
    with pytest.raises(LogListFull, match="truncate"):
        log.check_room(257)
    full = log.spliced([(2**40 + n, 1, 1) for n in range(256)], NOW, b"s", counts=None)
    with pytest.raises(AssertionError, match="room for writers"):
        full.spliced([(2**41, 1, 1)], NOW, b"s", counts=None)
    full.taken_over([], 2**42, b"t").encode()


def test_a_splice_is_refused_where_the_packed_list_has_no_room_for_a_batch() -> None:
    dice = random.Random(1)
    log = new_log()
    for many in (60_000, 80_000):
        sizes = [dice.randrange(2**40) for _ in range(many)]
        segments = tuple(LogSegment(n, 1, n, 1, size, NOW, NOW) for n, size in enumerate(sizes))
        log = attrs.evolve(log, segments=segments, epoch=1)
        if many == 60_000:
            log.check_room(256)
            continue
        log.encode()
        with pytest.raises(LogListFull):
            log.check_room(LOG_SPLICE_LEDGERS_MAX)


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 2**63},
        {"incarnation": -1},
        {"created_ms": -1},
        {"created_ms": 2**63},
        {"first_offset": 2**63},
        {"first_offset": 4, "before": (5, 0, 0)},
        {"before": (0, -1, 0)},
        {"before": (0, 0, 2**63)},
        {"dedupe_epoch": -1},
        {"name": "a b"},
        {"properties": {"a": "b" * 70_000}},
        {"segments": (LogSegment(-1, 1, 0),)},
        {"segments": (LogSegment(2**63, 1, 0),)},
        {"segments": (LogSegment(1, 0, 0),)},
        {"segments": (LogSegment(1, 1, 0, 1, 1, NOW, NOW), LogSegment(1, 1, 1, 1, 1, NOW, NOW))},
        {"segments": (LogSegment(1, 1, 0, 1, 1, NOW, NOW), LogSegment(2, 1, 1, 1, 1, NOW - 1, NOW))},
        {"segments": (LogSegment(1, 1, 0, 1, 1, NOW, NOW - 1),)},
        {"segments": (LogSegment(1, 1, 0, 2**63 - 1, 1, NOW, NOW), LogSegment(2, 1, 1, 1, 1, NOW, NOW))},
        {"segments": (LogSegment(1, 1, 0, 1, 2**63, NOW, NOW),)},
        {"segments": (LogSegment(1, 1, 0, 1, -1, NOW, NOW),)},
    ],
    ids=str,
)
def test_what_could_not_be_read_again_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        attrs.evolve(new_log(), **{"epoch": 1, **changes}).encode()


@st.composite
def logs(draw: st.DrawFn) -> LogMetadata:
    log = new_log(
        roll=RollPolicy(
            max_bytes=draw(st.none() | st.integers(1, 2**40)), max_age_s=draw(st.none() | st.just(1.5))
        ),
        retention=RetentionPolicy(max_bytes=draw(st.none() | st.integers(1, 2**40))),
        properties=draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)),
    )
    ids = iter(draw(st.lists(st.integers(0, 2**40), min_size=12, max_size=12, unique=True)))
    at = NOW
    for _ in range(draw(st.integers(0, 10))):
        fresh = [
            counts(draw(st.integers(0, 9)), draw(st.integers(0, 9)), at := at + 100)
            for _ in log.open_segments
        ]
        match draw(st.sampled_from(["take over", "roll", "count", "truncate", "seal"])):
            case "take over" if not log.sealed:
                log = log.taken_over(fresh, next(ids), b"t")
            case "roll" if not log.sealed and len(log.open_segments) == 1:
                log = log.rolled(next(ids), b"r")
            case "count" if log.open_segments:
                log = log.counted(log.open_segments[0].ledger_id, fresh[0], b"c")
            case "truncate":
                log, _ = log.truncated(
                    draw(st.integers(log.first_offset, log.counted_end)), log.counted_end, b"x"
                )
            case "seal" if not log.sealed:
                log = log.sealed_now(fresh, b"s")
            case _:
                pass
    return log


@given(logs())
def test_every_reachable_record_survives_its_bytes_and_keeps_the_rules(log: LogMetadata) -> None:
    assert LogMetadata.decode_untrusted(log.encode(), 5) == log
    assert len({s.ledger_id for s in log.segments}) == len(log.segments)
    assert len(log.open_segments) <= 2
    assert all(s.is_counted for s in log.segments[:-2])
    offset = log.before[0]
    for segment in log.segments:
        if segment.first_offset is not None:
            assert segment.first_offset == offset
            offset += segment.record_count or 0
    assert offset == log.counted_end
    assert [s.epoch for s in log.segments] == sorted(s.epoch for s in log.segments)


def damaged(**changes: object) -> bytes:
    fields = decode_record_untrusted(closed_chain(3).encode(), "record", MetadataCorrupt)._value
    return encode_record({**fields, **changes})


def as_lists(**changes: object) -> bytes:
    """Return the record in format 1, which had the columns of the list as lists."""
    fields = dict(decode_record_untrusted(closed_chain(3).encode(), "record", MetadataCorrupt)._value)
    del fields["segments"], fields["dedupe_epoch"]
    lists = {"ledgers": [100, 1, 1], "epochs": [1, 0, 0], "counts": [10, 10], "bytes": [1000, 1000]}
    times = [NOW + 10, 5, 5, 5]
    return encode_record({**fields, "v": 1, **lists, "times": times, **changes})


def test_a_record_of_format_1_is_read_as_it_was_meant() -> None:
    assert LogMetadata.decode_untrusted(as_lists(), 5) == closed_chain(3)


@pytest.mark.parametrize(
    "segments",
    [
        [3, 2, 2, 0],
        [3, 2, 2, 0, b""],
        [3, 2, 2, 2, b""],
        [3, 2, 2, 1, b"(\xb5/\xfd not a frame"],
        [3, 2, 2, 1, b""],
        [3, 2, -2, 0, b""],
        [2**40, 2**40, 0, 1, b""],
        [3, 2, 2, 0, bytes(8 * 14)],
        [3, 2, 2, 1, pack(bytes(8 * 13))],
        [3, 2, 2, 1, pack(bytes(8 * 14)) + b"x"],
        [3, 2, 2, 1, pack(bytes(8 * 14))[:-1]],
        [3.0, 2, 2, 0, bytes(8 * 14)],
    ],
    ids=str,
)
def test_damaged_columns_are_refused_with_the_name_of_the_log(segments: object) -> None:
    with pytest.raises(MetadataCorrupt, match="log incarnation 5"):
        LogMetadata.decode_untrusted(damaged(segments=segments), 5)


def test_packed_columns_are_read_back_and_small_ones_are_kept_as_they_are() -> None:
    for length, is_packed in ((3, 0), (30, 1)):
        log = closed_chain(length)
        fields = decode_record_untrusted(log.encode(), "record", MetadataCorrupt)._value
        assert fields["segments"][3] == is_packed
        assert LogMetadata.decode_untrusted(log.encode(), 5) == log


@pytest.mark.parametrize(
    "changes",
    [
        {"v": 4},
        {"incarnation": 6},
        {"name": "/"},
        {"epoch": -1},
        {"epoch": 0},
        {"epoch": True},
        {"before": [0, 0]},
        {"before": [-1, 0, 0]},
        {"first_offset": -3},
        {"before": [5, 0, 0]},
        {"sealed": True},
        {"roll": {"bytes": 0, "records": None, "age_ms": None}},
        {"properties": {"a": b"b"}},
        {"ensemble": 1},
        {"token": "text"},
        {"dedupe_epoch": "1"},
    ],
    ids=str,
)
def test_a_damaged_record_is_refused_with_the_name_of_the_log(changes: dict[str, object]) -> None:
    with pytest.raises(MetadataCorrupt, match="log incarnation 5"):
        LogMetadata.decode_untrusted(damaged(**changes), 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"ledgers": [100, 1]},
        {"ledgers": [100, 0, 1]},
        {"ledgers": [-100, 1, 1]},
        {"epochs": [1, -1, 1]},
        {"epochs": [0, 0, 0]},
        {"counts": [10]},
        {"counts": [10, -10]},
        {"counts": []},
        {"counts": [10, 10, 10, 10]},
        {"bytes": [-1, 0]},
        {"times": [1, 1]},
        {"times": [1, 1, 1, -1]},
    ],
    ids=str,
)
def test_a_damaged_list_of_format_1_is_refused_with_the_name_of_the_log(changes: dict[str, object]) -> None:
    with pytest.raises(MetadataCorrupt, match="log incarnation 5"):
        LogMetadata.decode_untrusted(as_lists(**changes), 5)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt):
        LogMetadata.decode_untrusted(data, 5)


def test_moments_and_milliseconds_are_inverse_and_round_towards_the_later() -> None:
    assert moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert milliseconds(moment(NOW + 7)) == NOW + 7
    assert milliseconds(datetime(1970, 1, 1, microsecond=1)) == 1
    assert moment(2**62) == datetime.max.replace(tzinfo=UTC)


def test_a_gap_is_kept_in_the_record_and_by_every_change() -> None:
    log = new_log().taken_over([], 7, b"a").rolled(8, b"b")
    assert "gaps" not in decode_record_untrusted(log.encode(), "it", MetadataCorrupt)._value
    behind = attrs.evolve(counts(20, at=NOW + 9), lost_before=49)
    found = log.taken_over([counts(51), behind], 9, b"c")
    assert [(s.first_offset, s.end_offset) for s in found.segments] == [(0, 51), (100, 120), (120, None)]
    assert found.counted_end == 120
    # A version that knows no gaps would count without them, and give their offsets out again.
    formats = [
        decode_record_untrusted(each.encode(), "it", MetadataCorrupt)._value["v"] for each in (log, found)
    ]
    assert formats == [2, 3]
    assert log.recovered([counts(51), behind], b"c").segments == found.segments[:-1]
    assert log.sealed_now([counts(51), behind], b"c").segments == found.segments[:-1]
    for offset, gaps in ((0, [(51, 100)]), (51, [(51, 100)]), (60, [(60, 100)]), (100, []), (101, [])):
        cut, _ = found.truncated(offset, 120, b"d")
        assert [(gap.first_offset, gap.end_offset) for gap in cut.gaps] == gaps
        assert LogMetadata.decode_untrusted(cut.encode(), 5) == cut
        assert cut.index_at(100) == cut.index_of(8)
    with pytest.raises(AssertionError, match="across a gap"):
        found.merged(7, 120, b"e")


def test_a_gap_may_lie_before_and_between_ledgers_without_records() -> None:
    nothing_behind = SegmentCounts(0, 0, lost_before=5)
    log = new_log().taken_over([], 7, b"a").rolled(8, b"b").taken_over([NOTHING, nothing_behind], 9, b"c")
    assert [segment.first_offset for segment in log.segments] == [0, 5, 5]
    assert LogMetadata.decode_untrusted(log.encode(), 5) == log


@pytest.mark.parametrize("gaps", [[8], [8, 0], [8, -1], [9, 3], [77, 3], [7, 1, 7, 1], ["8", 3]])
def test_gaps_that_cannot_be_are_damage(gaps: list[Any]) -> None:
    log = new_log().taken_over([], 7, b"a").rolled(8, b"b")
    log = log.taken_over([counts(51), attrs.evolve(counts(20, at=NOW + 9), lost_before=49)], 9, b"c")
    value = dict(decode_record_untrusted(log.encode(), "it", MetadataCorrupt)._value)
    with pytest.raises(MetadataCorrupt, match="gaps"):
        LogMetadata.decode_untrusted(encode_record({**value, "gaps": gaps}), 5)
