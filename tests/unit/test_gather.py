"""Which ledgers of a log are gathered: few stay, each record is copied a few times, others are left alone."""

from __future__ import annotations

import random

import attrs
import pytest

from ledgerlog.limits import (
    LOG_GATHER_BYTES_MAX,
    LOG_GATHER_GROWTH,
    LOG_GATHER_LEDGERS_MAX,
    LOG_GATHER_LEDGERS_MIN,
    MIB,
)
from ledgerlog.log.core.gather import plan_gather
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import LogSegment

MANY = LOG_GATHER_LEDGERS_MIN


def new_log(segments: tuple[LogSegment, ...] = (), **changes: object) -> LogMetadata:
    log = LogMetadata.create(
        name="log", incarnation=5, created_ms=1, token=b"t", replication=Replication(3, 3, 2)
    )
    return attrs.evolve(log, segments=segments, epoch=1, **changes)


def listed(sizes: list[int], *, step_ms: int = 1) -> tuple[LogSegment, ...]:
    """Ledgers of one record each, of these sizes."""
    return tuple(
        LogSegment(100 + at, 1, at, 1, size, at * step_ms, at * step_ms) for at, size in enumerate(sizes)
    )


def gathered(log: LogMetadata, ledger_id: int, archived: frozenset[int] = frozenset()) -> LogMetadata | None:
    parts = plan_gather(log, archived)
    return log.gathered(parts, ledger_id, b"g") if parts else None


@pytest.mark.parametrize("skew", [False, True], ids=["alike", "skewed"])
def test_ledgers_that_come_without_end_leave_few_and_each_record_is_copied_a_few_times(skew: bool) -> None:
    dice = random.Random(1)
    log = new_log()
    next_id = copied = added = longest = 0
    for _ in range(3000):
        sizes = [dice.choice([1, 100, 10_000, 3 * MIB]) if skew else 50_000 for _ in range(8)]
        staged = [(next_id + at, 10, size) for at, size in enumerate(sizes)]
        next_id += len(staged)
        log = log.spliced(staged, 1, b"s", counts=None)
        added += sum(sizes)
        while parts := plan_gather(log, ()):
            assert MANY <= len(parts) <= LOG_GATHER_LEDGERS_MAX
            copied += sum(part.byte_length or 0 for part in parts)
            joined = log.gathered(parts, next_id, b"g")
            assert joined is not None
            assert (joined.counted_end, joined.counted_bytes) == (log.counted_end, log.counted_bytes)
            log, next_id = joined, next_id + 1
        longest = max(longest, len(log.segments))
    large = added // (LOG_GATHER_BYTES_MAX // LOG_GATHER_GROWTH)
    assert longest <= 3 * MANY + large, "of 24,000"
    assert copied <= 8 * added
    assert LogMetadata.decode_untrusted(log.encode(), 5) == log


def test_a_run_that_one_ledger_outweighs_waits_until_its_neighbours_have_grown() -> None:
    assert gathered(new_log(listed([100 * MIB // MANY] + [1] * (MANY - 1))), 1) is None
    assert gathered(new_log(listed([1] * (MANY - 1))), 1) is None
    parts = plan_gather(new_log(listed([MIB] + [1] * MANY)), ())
    assert [part.byte_length for part in parts] == [1] * MANY


def test_nothing_is_gathered_across_what_stays_where_it_is() -> None:
    segments = listed([1] * (2 * MANY - 1))
    middle = segments[MANY - 1].ledger_id
    assert plan_gather(new_log(segments), ()) == segments
    assert plan_gather(new_log(segments), {middle}) == ()
    assert plan_gather(new_log(segments, dedupe_epoch=1), ()) == ()
    after_gap = tuple(
        part if part.ledger_id < middle else part._replace(first_offset=(part.first_offset or 0) + 5)
        for part in segments
    )
    gap = after_gap[MANY - 1]._replace(lost_before=5)
    after_gap = (*after_gap[: MANY - 1], gap, *after_gap[MANY:])
    log = new_log(after_gap)
    assert plan_gather(log, ()) == after_gap[MANY - 1 :]
    joined = gathered(log, 7)
    assert joined is not None
    assert joined.segments[-1].lost_before == 5
    assert joined.gaps == log.gaps
    assert LogMetadata.decode_untrusted(joined.encode(), 5) == joined
    opened = new_log(segments[: MANY - 1]).taken_over([], 1, b"t")
    assert plan_gather(opened, ()) == ()
    assert plan_gather(new_log(listed([1] * MANY)).taken_over([], 1, b"t"), ()) != ()


def test_a_gathered_ledger_keeps_to_the_policies_of_its_log() -> None:
    segments = listed([MIB] * 400, step_ms=1000)
    assert len(plan_gather(new_log(segments), ())) == 256
    for changes, most in (
        ({"roll": RollPolicy(max_bytes=100 * MIB)}, 100),
        ({"roll": RollPolicy(max_records=99)}, 99),
        ({"roll": RollPolicy(max_age_s=100)}, 101),
        ({"retention": RetentionPolicy(max_bytes=800 * MIB)}, 100),
        ({"retention": RetentionPolicy(max_age_s=800)}, 101),
    ):
        assert len(plan_gather(new_log(segments, **changes), ())) == most
    assert plan_gather(new_log(segments, roll=RollPolicy(max_records=20)), ()) == ()


def test_ledgers_that_left_the_list_or_changed_are_not_replaced() -> None:
    log = new_log(listed([1] * MANY))
    parts = plan_gather(log, ())
    assert log.gathered(parts, 7, b"g") is not None
    shorter, _ = log.truncated(3, log.counted_end, b"t")
    assert shorter.gathered(parts, 7, b"g") is None
    within = attrs.evolve(log, first_offset=0, segments=(*parts[:5], parts[5]._replace(epoch=1), *parts[6:]))
    assert within.gathered(parts, 7, b"g") is not None
    assert attrs.evolve(log, segments=parts[:-1]).gathered(parts, 7, b"g") is None
