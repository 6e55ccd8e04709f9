"""Retention: which ledgers it lets go, what holds a ledger, and what an operator is told."""

from __future__ import annotations

from collections.abc import Collection

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.log.core.retention import Hold, first_pin, holds, is_current_expired, let_go, why_kept
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RetentionPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import SegmentCounts

NOW = 1_700_000_000_000


def log_of(retention: RetentionPolicy, *, dedupe: bool = False) -> LogMetadata:
    """Return a log with three counted ledgers of 10 records, 100 bytes and a minute, and an empty one."""
    log = LogMetadata.create(
        name="log",
        incarnation=1,
        created_ms=NOW,
        token=b"",
        replication=Replication(1, 1, 1),
        retention=retention,
    ).taken_over([], 0, b"", dedupe=dedupe)
    for number in range(3):
        begun = NOW + 60_000 * number
        log = log.rolled(number + 1, b"").counted(number, SegmentCounts(10, 100, begun, begun + 59_000), b"")
    return log


@pytest.mark.parametrize(
    ("retention", "after_s", "open_bytes", "cut"),
    [
        (RetentionPolicy(), 10**9, 0, 0),
        (RetentionPolicy(max_age_s=60), 119, 0, 0),
        (RetentionPolicy(max_age_s=60), 119.001, 0, 10),
        (RetentionPolicy(max_age_s=60), 10**6, 0, 30),
        (RetentionPolicy(max_bytes=300), 0, 0, 0),
        (RetentionPolicy(max_bytes=201), 0, 0, 0),
        (RetentionPolicy(max_bytes=200), 0, 0, 10),
        (RetentionPolicy(max_bytes=201), 0, 1, 10),
        (RetentionPolicy(max_bytes=1), 0, 0, 20),
        (RetentionPolicy(max_bytes=1), 0, 1, 30),
        (RetentionPolicy(max_bytes=200, max_age_s=60), 180, 0, 20),
    ],
)
def test_whole_ledgers_go_as_soon_as_one_bound_lets_them(
    retention: RetentionPolicy, after_s: float, open_bytes: int, cut: int
) -> None:
    log = log_of(retention)
    assert (
        10 * let_go(log, None, NOW + round(after_s * 1000), durable_bytes=log.counted_bytes + open_bytes)
        == cut
    )


def test_the_newest_ledger_with_records_stays_where_it_tells_who_appended_what() -> None:
    log = log_of(RetentionPolicy(max_age_s=60), dedupe=True)
    assert let_go(log, None, NOW + 10**9) == 2
    shorter, _ = log.truncated(30, 30, b"")
    assert "deduplication" in why_kept(shorter, [], NOW + 10**9)[0]


def test_a_current_ledger_is_expired_when_its_newest_record_is() -> None:
    log = log_of(RetentionPolicy(max_age_s=60))
    assert not is_current_expired(log, NOW + 60_000, NOW)
    assert is_current_expired(log, NOW + 60_001, NOW)
    assert not is_current_expired(log, NOW + 60_001, None)
    assert not is_current_expired(log_of(RetentionPolicy(max_bytes=1)), NOW + 10**9, NOW)


def test_the_cursor_that_pins_most_is_the_lowest_that_pins() -> None:
    cursors = [
        CursorState(name="a", offset=5),
        CursorState(name="b", offset=15, pins=True),
        CursorState(name="c", offset=12, pins=True),
    ]
    assert first_pin(cursors) == cursors[2]
    assert first_pin(cursors[:1]) is None


def test_an_operator_is_told_why_each_ledger_is_there() -> None:
    later = NOW + 240_000
    assert why_kept(log_of(RetentionPolicy()), [], later) == [
        *["the log has no retention"] * 3,
        "new records go there",
    ]
    assert why_kept(log_of(RetentionPolicy(max_age_s=110)), [], later) == [
        *["retention lets it be dropped: by the leader, or by 'log retain'"] * 2,
        "retention keeps 110 s",
        "new records go there",
    ]
    pin = CursorState(name="billing", offset=15, pins=True)
    assert why_kept(log_of(RetentionPolicy(max_bytes=100)), [pin], later) == [
        "retention lets it be dropped: by the leader, or by 'log retain'",
        "cursor 'billing' pins the records from offset 15 on",
        "retention keeps 100 bytes; cursor 'billing' pins the records from offset 15 on",
        "new records go there",
    ]
    other = CursorState(name="audit", offset=25, pins=True)
    assert [
        why.split("; ")[-1] for why in why_kept(log_of(RetentionPolicy(max_bytes=100)), [other, pin], later)
    ][1:3] == [
        "cursor 'billing' pins the records from offset 15 on",
        "cursor 'billing' pins the records from offset 15 on (other cursors that pin it: 1)",
    ]
    rolling = log_of(RetentionPolicy()).rolled(9, b"")
    assert why_kept(rolling, [], later)[-2:] == [
        "its last records are still being written",
        "new records go there",
    ]


def test_a_cursor_survives_its_bytes_and_damage_is_refused() -> None:
    state = CursorState(
        name="a/b", offset=7, pins=True, properties={"k": "v"}, updated_ms=NOW, token=b"t", version=3
    )
    assert CursorState.decode_untrusted(state.encode(), "a/b", 3) == state
    for name, data in (("other", state.encode()), ("a/b", state.encode()[:-1]), ("a/b", b"\xa1\x61v\x02")):
        with pytest.raises(MetadataCorrupt):
            CursorState.decode_untrusted(data, name, 3)


def test_the_worked_example_of_a_cursor_is_what_is_written() -> None:
    state = CursorState(name="billing", offset=1000, pins=True, updated_ms=NOW, token=b"tok1")
    assert state.encode().hex(" ") == (
        "a7 61 76 01 64 6e 61 6d 65 67 62 69 6c 6c 69 6e 67 64 70 69 6e 73 f5 65 74 6f 6b 65 6e 44 74 6f "
        "6b 31 66 6f 66 66 73 65 74 19 03 e8 6a 70 72 6f 70 65 72 74 69 65 73 a0 6a 75 70 64 61 74 65 64 "
        "5f 6d 73 1b 00 00 01 8b cf e5 68 00"
    )


def test_the_first_ledger_of_a_list_that_deduplication_holds_says_so() -> None:
    log = log_of(RetentionPolicy(max_age_s=60), dedupe=True)
    later = NOW + 10**9
    shorter, _ = log.truncated(20, 30, b"")
    assert shorter.dedupe_index == 0
    assert let_go(shorter, None, later) == 0
    assert why_kept(shorter, [], later)[0] == (
        "deduplication needs it to know which producer appended which record"
    )
    assert why_kept(log, [], later)[2] == (
        "deduplication needs it to know which producer appended which record"
    )


def test_a_ledger_that_nothing_holds_is_there_for_one_before_it() -> None:
    log = log_of(RetentionPolicy(max_bytes=150))
    # There are 300 bytes. Dropping the first ledger leaves 200, dropping the second leaves 100, below the
    # bound.
    assert why_kept(log, [], NOW)[:3] == [
        "retention lets it be dropped: by the leader, or by 'log retain'",
        "retention keeps 150 bytes",
        "retention keeps 150 bytes",
    ]
    empty = log.counted(3, SegmentCounts(0, 0), b"").taken_over([], 4, b"")
    assert why_kept(empty, [], NOW)[3] == "a ledger before it is kept"


@st.composite
def logs(draw: st.DrawFn) -> LogMetadata:
    """A log of up to six ledgers, some empty, the last one or two open, truncated anywhere."""
    bound = st.one_of(st.none(), st.integers(1, 400))
    log = LogMetadata.create(
        name="log",
        incarnation=1,
        created_ms=NOW,
        token=b"",
        replication=Replication(1, 1, 1),
        retention=RetentionPolicy(max_age_s=draw(bound), max_bytes=draw(bound)),
    ).taken_over([], 0, b"", dedupe=draw(st.booleans()))
    count = draw(st.integers(0, 5))
    at_ms = NOW
    for number in range(count):
        records = draw(st.integers(0, 3))
        begun, at_ms = at_ms, at_ms + draw(st.integers(0, 100_000))
        counts = SegmentCounts(records, 50 * records, *((begun, at_ms) if records else ()))
        log = log.rolled(number + 1, b"").counted(number, counts, b"")
    if draw(st.booleans()):
        log = log.rolled(count + 1, b"")
    before = draw(st.integers(log.first_offset, log.counted_end))
    return log.truncated(before, log.counted_end, b"")[0]


cursor_lists = st.lists(
    st.builds(CursorState, name=st.just("c"), offset=st.integers(0, 20), pins=st.booleans()), max_size=3
)


def without(log: LogMetadata, released: Collection[Hold]) -> LogMetadata:
    """Return the log as it would be without these holds. PIN is not part of the log."""
    if Hold.RETENTION in released:
        log = attrs.evolve(log, retention=RetentionPolicy(max_age_s=0.001))
    if Hold.DEDUPE in released:
        log = attrs.evolve(log, dedupe_epoch=None)
    return log


@given(logs(), cursor_lists, st.integers(0, 600_000), st.integers(0, 200))
def test_whatever_holds_a_ledger_alone_keeps_it_and_without_all_that_it_goes(
    log: LogMetadata, cursors: list[CursorState], after_ms: int, open_bytes: int
) -> None:
    pin, now_ms = first_pin(cursors), NOW + 600_000 + after_ms

    def dropped(released: Collection[Hold]) -> int:
        held_by = None if Hold.PIN in released else pin
        return let_go(without(log, released), held_by, now_ms, durable_bytes=log.counted_bytes + open_bytes)

    found = list(holds(log, pin, now_ms, durable_bytes=log.counted_bytes + open_bytes))
    count = let_go(log, pin, now_ms, durable_bytes=log.counted_bytes + open_bytes)
    whys = why_kept(log, cursors, now_ms, durable_bytes=log.counted_bytes + open_bytes)
    removable = {Hold.DEDUPE, Hold.RETENTION, Hold.PIN}
    for index, here in enumerate(found):
        is_dropped = index < count
        assert is_dropped == whys[index].startswith("retention lets it be dropped")
        assert is_dropped == (not here and not any(found[:index]))
        if not here:
            continue
        if not here <= removable:
            assert dropped(removable) <= index, "an open ledger is kept, whatever the policy"
            continue
        # Each single hold keeps the ledger, even if all other holds of it and of earlier ledgers are gone.
        for hold in here:
            assert dropped(removable - {hold}) <= index, hold
        # Without its own holds and those of the ledgers before it, the ledger goes.
        before = frozenset().union(*found[:index])
        if before <= removable:
            assert dropped(here | before) > index
    # The list loses exactly the ledgers that retention lets go.
    if count:
        end = log.segments[count - 1].end_offset
        assert end is not None
        _, gone = log.truncated(max(end, log.first_offset), log.counted_end, b"")
        assert gone == [segment.ledger_id for segment in log.segments[:count]]
