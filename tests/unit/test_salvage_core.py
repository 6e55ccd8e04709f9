"""What a salvage keeps of runs that it cannot keep all."""

from __future__ import annotations

from bookie.core.journal_items import EntryRun
from bookie.core.salvage import fullest


def run(first: int, last: int, count: int, *, ledger_id: int = 7, offset: int = 0) -> EntryRun:
    return EntryRun(ledger_id, first, last, count, 1, offset, 100, sequence=1)


def test_of_runs_that_begin_with_one_entry_the_one_with_most_entries_is_kept() -> None:
    long, short = run(0, 9, 10), run(0, 4, 5, offset=4096)
    assert fullest([long, short]) == fullest([short, long]) == [long]
    sparse = run(0, 90, 4, offset=8192)
    assert fullest([long, sparse]) == [long], "entries count, not the range"


def test_of_runs_with_as_many_entries_the_later_is_kept() -> None:
    first, second = run(0, 9, 10), run(0, 9, 10, offset=4096)
    assert fullest([first, second]) == [second]


def test_runs_that_begin_elsewhere_or_belong_to_other_ledgers_all_stay_and_are_sorted() -> None:
    runs = [run(5, 9, 5), run(0, 4, 5, ledger_id=8), run(0, 9, 10)]
    assert fullest(runs) == [run(0, 9, 10), run(5, 9, 5), run(0, 4, 5, ledger_id=8)]
