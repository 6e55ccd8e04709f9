"""Which files compaction rewrites, and which it leaves."""

from __future__ import annotations

import random

import pytest

from bookie.core.rows import FileRow
from bookie.core.space import Job, JobSearch, SpacePolicy, SpaceUse
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import KIB, MIB

POLICY = SpacePolicy()


def row(
    file: int, *, live: float = 1.0, size: int = 16 * MIB, run: int = 64 * KIB, level: int = 0
) -> FileRow:
    return FileRow(file, size, 0, max(1, size // run), size, int(size * live), 3, level)


def next_job(rows: list[FileRow], policy: SpacePolicy, *, is_eventual: bool) -> Job | None:
    search = JobSearch(policy, is_eventual=is_eventual)
    search.take(rows)
    return search.job()


def files_of(rows: list[FileRow], policy: SpacePolicy = POLICY, *, is_eventual: bool = False) -> list[int]:
    job = next_job(rows, policy, is_eventual=is_eventual)
    return [] if job is None else sorted(source.file for source in job.sources)


def test_segments_of_large_runs_stay_and_those_of_small_ones_do_not() -> None:
    assert POLICY.stays(100, 100 * 8 * KIB)
    assert not POLICY.stays(100, 100 * 8 * KIB - 1)
    assert POLICY.stays(0, 0)


def test_where_the_journal_is_apart_nothing_stays_in_it() -> None:
    policy = SpacePolicy(is_journal_apart=True)
    assert not policy.stays(1, 64 * MIB)
    assert files_of([row(4), row(-4)], policy) == [4]


def test_files_that_count_are_left_alone() -> None:
    assert files_of([row(-number, live=0.81) for number in range(1, 50)], is_eventual=True) == []


def test_a_file_of_which_little_counts_goes_soon_and_one_of_which_most_counts_eventually() -> None:
    rows = [row(-1, live=0.19), row(-2, live=0.21), row(-3, live=0.79), row(-4, live=0.81)]
    assert files_of(rows) == [-1]
    assert files_of(rows[1:]) == []
    assert files_of(rows[1:], is_eventual=True) == [-3, -2]


def test_dead_files_go_before_all_others() -> None:
    rows = [row(-1, live=0.1), row(5, live=0), row(-2, live=0)]
    assert files_of(rows) == [-2, 5]


def test_small_runs_are_put_together_once_there_are_enough_files_of_a_level() -> None:
    rows = [row(-number, run=KIB, level=1) for number in range(1, 8)]
    assert files_of([*rows, row(-8, run=KIB)]) == []
    job = next_job([*rows, row(-8, run=KIB, level=1)], POLICY, is_eventual=False)
    assert job is not None
    assert len(job.sources) == 8
    assert job.level == 2


def test_small_files_are_put_together_too_those_without_any_runs_included() -> None:
    rows = [FileRow(number, 8192) for number in range(1, 9)]
    assert files_of(rows) == list(range(1, 9))


def test_a_job_is_no_larger_than_a_log_may_be() -> None:
    rows = [row(-number, live=0.19, size=400 * MIB) for number in range(1, 9)]
    assert len(files_of(rows)) == 3
    assert len(files_of(rows, SpacePolicy(log_bytes_max=1))) == 1
    many = [row(-number, live=0.1, run=KIB, size=40 * MIB) for number in range(1, 9)]
    assert len(files_of(many, SpacePolicy(log_runs_max=100_000))) == 2


def test_one_small_file_alone_is_no_job_however_large_it_is() -> None:
    rows = [row(-number, run=KIB, size=400 * MIB) for number in range(1, 20)]
    assert files_of(rows) == []


def test_small_files_behind_large_ones_that_fit_no_log_together_are_put_together() -> None:
    large = [row(-number, run=4 * KIB, size=220 * MIB) for number in (1, 2)]
    tiny = [row(-number, size=90 * KIB) for number in range(3, 3003)]
    found = files_of([*large, *tiny])
    assert len(found) == 8
    assert -3 in found
    assert files_of([*large, *tiny[:6]]) == [], "there are enough files, but not enough behind the first"


def test_small_files_between_large_ones_are_put_together() -> None:
    rows = [row(-number, run=4 * KIB, size=220 * MIB) for number in range(1, 20)]
    rows[10] = row(-11, size=90 * KIB)
    assert files_of(rows) == [-11, -10]


@pytest.mark.parametrize("wrong", [{"merge_width": 1}, {"soon_ratio": 0.9}, {"eventual_ratio": 1.1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        SpacePolicy(**wrong)


def test_a_search_that_takes_files_in_pieces_finds_what_one_at_once_finds() -> None:
    dice = random.Random(1)
    for _ in range(50):
        shares = dice.choice(([0.0, 0.1], [0.1, 0.5, 0.9], [0.5, 0.9], [1.0]))
        rows = [
            row(-number, live=dice.choice(shares), run=dice.choice((KIB, MIB))) for number in range(1, 200)
        ]
        search = JobSearch(POLICY, is_eventual=True)
        space = SpaceUse()
        for start in range(0, len(rows), 7):
            search.take(rows[start : start + 7])
            space = space.plus(rows[start : start + 7])
        assert search.job() == next_job(rows, POLICY, is_eventual=True)
        assert space == SpaceUse().plus(rows)
