"""Properties of the arithmetic that cuts a scan into parts and says how far a micro-batch goes."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.limits import SCAN_PIECES_MAX
from ledgerlog.log.core.scan import LEDGER_WEIGHT, RECORD_WEIGHT, Backlog, Piece, Stretch, admit, cut, share

MIB = 1024 * 1024


@st.composite
def logs(draw: st.DrawFn) -> list[Stretch]:
    stretches = []
    at = draw(st.integers(0, 50))
    for ledger_id in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 2000))
        size = draw(st.integers(0, 300)) * count
        lost = draw(st.sampled_from([0, 0, 0, 1, 40])) if stretches else 0
        at += lost
        stretches.append(
            Stretch(
                ledger_id=ledger_id,
                start=at,
                end=at + count,
                byte_length=size,
                last_entry=None,
                lost_before=lost,
            )
        )
        at += count
    if draw(st.integers(0, 3)) == 0:
        at += 7  # Offsets lost at the end of the log.
        stretches.append(
            Stretch(ledger_id=len(stretches), start=at, end=at, byte_length=0, last_entry=None, lost_before=7)
        )
    return stretches


def stretch(start: int, end: int, byte_length: int = 0, ledger_id: int = 0) -> Stretch:
    return Stretch(ledger_id=ledger_id, start=start, end=end, byte_length=byte_length, last_entry=None)


def readable(stretches: list[Stretch]) -> set[int]:
    return {offset for stretch in stretches for offset in range(stretch.start, stretch.end)}


def covered(parts: list[tuple[Piece, ...]]) -> list[int]:
    return [offset for part in parts for piece in part for offset in range(piece.start, piece.end)]


@given(logs(), st.data())
def test_the_parts_hold_every_offset_of_the_range_once_and_in_order(
    stretches: list[Stretch], data: st.DataObject
) -> None:
    first, last = stretches[0].start, stretches[-1].end
    start = data.draw(st.integers(first, last))
    end = data.draw(st.integers(start, last))
    pieces = cut("log", 1, stretches, start, end)
    parts = share(
        pieces,
        max_bytes=data.draw(st.sampled_from([1, 1000, 100_000, 64 * MIB])),
        max_records=data.draw(st.sampled_from([None, 1, 7, 500])),
        min_parts=data.draw(st.integers(1, 20)),
    )
    assert covered(parts) == [offset for offset in range(start, end) if offset in readable(stretches)]
    for piece in itertools.chain.from_iterable(parts):
        assert piece.stretch.start <= piece.start < piece.end <= piece.stretch.end


@pytest.mark.parametrize("max_records", [None, 1])
@pytest.mark.parametrize("min_parts", [4, 2**40])
def test_absurd_numbers_of_a_log_record_or_an_option_give_a_bounded_plan(
    max_records: int | None, min_parts: int
) -> None:
    stretches = [stretch(0, 5, 100), stretch(5, 2**62, 2**62, 1), stretch(2**62, 2**62 + 5, 100, 2)]
    pieces = cut("log", 1, stretches, 0, 2**62 + 5)
    parts = share(pieces, max_bytes=64 * MIB, max_records=max_records, min_parts=min_parts)
    assert SCAN_PIECES_MAX // 2 <= len(parts) <= SCAN_PIECES_MAX + len(pieces)
    flat = list(itertools.chain.from_iterable(parts))
    assert (flat[0].start, flat[-1].end) == (0, 2**62 + 5)
    assert all(one.end == other.start for one, other in itertools.pairwise(flat))


def test_many_wanted_parts_are_made_soon() -> None:
    pieces = cut("log", 1, [stretch(0, 2**20, 2**20)], 0, 2**20)
    begun = time.process_time()
    assert len(share(pieces, max_bytes=64 * MIB, min_parts=90_000)) == 90_000
    assert time.process_time() - begun < 20, "not with a look at all parts for each one"


@given(logs(), st.integers(1, 30), st.sampled_from([1, 13, 700]))
def test_no_part_is_over_its_limits_and_there_are_as_many_as_wanted(
    stretches: list[Stretch], min_parts: int, max_records: int
) -> None:
    pieces = cut("log", 1, stretches, stretches[0].start, stretches[-1].end)
    parts = share(pieces, max_bytes=10_000, max_records=max_records, min_parts=min_parts)
    assert all(sum(piece.records for piece in part) <= max_records for part in parts)
    assert len(parts) >= min(min_parts, len(readable(stretches)))
    for part in parts:
        weight = sum(piece.byte_length + RECORD_WEIGHT * piece.records for piece in part)
        assert len(part) == 1 or weight <= 10_000 + LEDGER_WEIGHT


def test_a_range_that_ends_where_it_begins_has_no_parts() -> None:
    assert cut("log", 1, [stretch(0, 10)], 4, 4) == []
    assert share([], max_bytes=1000, min_parts=8) == []


def test_a_thousand_small_ledgers_are_packed_and_not_a_thousand_tasks() -> None:
    stretches = [stretch(at, at + 10, 1000, ledger_id=at) for at in range(0, 10_000, 10)]
    parts = share(cut("log", 1, stretches, 0, 10_000), max_bytes=64 * MIB)
    assert len(parts) == 4
    assert covered(parts) == list(range(10_000))


def test_one_large_ledger_is_split_evenly() -> None:
    parts = share(cut("log", 1, [stretch(0, 1_000_000, 500 * MIB)], 0, 1_000_000), max_bytes=64 * MIB)
    counts = [sum(piece.records for piece in part) for part in parts]
    assert len(parts) == 9
    assert max(counts) - min(counts) <= 1


@given(st.dictionaries(st.sampled_from("abcd"), logs(), min_size=1), st.data())
def test_admission_stays_within_its_bound_and_always_moves(
    all_logs: dict[str, list[Stretch]], data: st.DataObject
) -> None:
    backlogs = {}
    for name, stretches in all_logs.items():
        start = data.draw(st.integers(stretches[0].start, stretches[-1].end))
        backlogs[name] = Backlog(stretches, start, data.draw(st.integers(start, stretches[-1].end)))
    max_records = data.draw(st.none() | st.integers(1, 5000))
    max_bytes = data.draw(st.none() | st.integers(1, 1_000_000))
    ends = admit(backlogs, max_records=max_records, max_bytes=max_bytes)
    moved = sum(ends[name] - backlog.start for name, backlog in backlogs.items())
    there = sum(backlog.records for backlog in backlogs.values())
    assert all(backlog.start <= ends[name] <= backlog.end for name, backlog in backlogs.items())
    assert (moved > 0) == (there > 0)
    if max_records is not None:
        assert moved <= max_records
    if max_records is None and max_bytes is None:
        assert moved == there
    if max_bytes is not None and moved > 1:
        size = sum(
            piece.byte_length
            for name, backlog in backlogs.items()
            for piece in Backlog(backlog.stretches, backlog.start, ends[name]).pieces()
        )
        assert size <= max_bytes + 300  # Only a ledger's bytes are known: one record more or less.


def test_admission_gives_each_log_its_share_of_the_backlog() -> None:
    backlogs = {"large": Backlog([stretch(0, 9000)], 0, 9000), "small": Backlog([stretch(0, 1000)], 0, 1000)}
    assert admit(backlogs, max_records=100) == {"large": 90, "small": 10}


def test_a_stream_gets_to_the_end_by_steps_that_never_go_back() -> None:
    stretches = [stretch(0, 700, 70_000), stretch(700, 701, 90_000, 1), stretch(701, 1500, 0, 2)]
    at, steps = 0, 0
    while at < 1500:
        end = admit({"log": Backlog(stretches, at, 1500)}, max_bytes=10_000)["log"]
        assert end > at
        at, steps = end, steps + 1
    assert steps > 10
