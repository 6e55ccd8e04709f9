"""Which files hold the archived beginning of a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.archive.core.prefix import leading_files
from ledgerlog.model.archive import ArchivedFile, ArchivedLedger


def file_of(first: int, end: int) -> ArchivedFile:
    ledger = ArchivedLedger(ledger_id=first, first_offset=first, end_offset=end, last_entry=0)
    return ArchivedFile(
        log="log",
        incarnation=1,
        file=f"file:///{first}",
        file_bytes=1,
        footer=bytes(32),
        ledgers=(ledger,),
        record_count=end - first,
        compacted=False,
        digest=bytes(32),
        archived_ms=0,
        token=b"",
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))), st.integers(0, 30))
def test_leading_files_hold_each_offset_once_and_without_a_hole(
    spans: list[tuple[int, int]], start: int
) -> None:
    records = [file_of(first, first + count) for first, count in dict(spans).items()]
    found, end = leading_files(start, records)
    held = [at for record in found for at in range(record.first_offset, record.end_offset) if at >= start]
    assert held == list(range(start, end))
    assert not any(record.first_offset == end for record in records)
    if not found:
        assert not any(record.holds(start) for record in records)


def test_the_beginning_ends_at_a_gap_and_may_begin_within_a_file() -> None:
    records = [file_of(20, 30), file_of(0, 10), file_of(10, 15), file_of(31, 40)]
    found, end = leading_files(4, records)
    assert ([record.first_offset for record in found], end) == ([0, 10], 15)
    assert leading_files(15, records) == ([], 15)
