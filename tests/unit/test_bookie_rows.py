"""Rows of the index: they decode to the same values, they sort, and every flipped byte is noticed."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from bookie.core import rows
from bookie.core.boot import ReplayStart
from bookie.core.journal_items import EntryRun, JournalPosition
from bookie.core.ledger import StoredLedger
from bookie.core.rows import FileRow
from ledgerlog.errors import StorageCorrupt

u63 = st.integers(0, 2**63 - 2)
runs = st.builds(
    EntryRun,
    ledger_id=u63,
    first=u63,
    last=u63,
    entry_count=st.integers(1, 2**32 - 1),
    file=st.integers(-(2**62), 2**62),
    offset=u63,
    length=st.integers(0, 2**32 - 1),
    sequence=u63,
)
MARK = ReplayStart(7, 41, is_optional=True, end=JournalPosition(6, 8192, 40))
LEDGER = StoredLedger(key=b"k" * 16, is_fenced=True, lac=5, lafr=-1, last_entry=9, widest=332, straddle=0)


@given(runs)
def test_a_run_comes_back(run: EntryRun) -> None:
    assert rows.decode_run(*rows.encode_run(run), "i") == run


@given(st.lists(runs, max_size=20))
def test_runs_sort_by_ledger_and_first_entry(found: list[EntryRun]) -> None:
    keys = sorted((rows.run_key(run.ledger_id, run.first), run.ledger_id, run.first) for run in found)
    assert [key[1:] for key in keys] == sorted((run.ledger_id, run.first) for run in found)


def test_every_kind_of_row_comes_back() -> None:
    assert rows.decode_mark(rows.encode_mark(MARK)[1], "i") == MARK
    assert rows.decode_instance(rows.encode_instance("inst")[1], "i") == "inst"
    assert rows.decode_ledger(*rows.encode_ledger(3, LEDGER), "i") == LEDGER
    for file in (3, -3):
        row = FileRow(file, 4096, 8, runs=2, run_bytes=500, live_bytes=300, ledgers=2, level=1)
        assert rows.decode_file(*rows.encode_file(row), "i") == row
        usage = {2**63 - 1: 1, 0: 2**40}
        assert rows.decode_usage(*rows.encode_usage(file, usage), "i") == usage
    deleted = evolve(LEDGER, is_deleted=True)
    assert rows.decode_ledger(*rows.encode_ledger(3, deleted), "i") == deleted


def test_every_flipped_byte_of_a_row_is_noticed_in_its_key_too() -> None:
    run = EntryRun(1, 2, 3, 2, 4, 5, 6, 7)
    key, value = rows.encode_run(run)
    for at in range(len(key) + len(value)):
        damaged = bytearray(key + value)
        damaged[at] ^= 0x20
        with pytest.raises(StorageCorrupt):
            rows.decode_run(bytes(damaged[: len(key)]), bytes(damaged[len(key) :]), "i")
    key, value = rows.encode_ledger(3, LEDGER)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 0x20
        with pytest.raises(StorageCorrupt):
            rows.decode_ledger(key, bytes(damaged), "i")


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_corruption_and_nothing_else(value: bytes) -> None:
    for decode in (
        lambda: rows.decode_mark(value, "i"),
        lambda: rows.decode_ledger(rows.ledger_key(1), value, "i"),
        lambda: rows.decode_run(rows.run_key(1, 2), value, "i"),
        lambda: rows.decode_file(rows.segment_key(1), value, "i"),
        lambda: rows.decode_usage(rows.usage_key(1), value, "i"),
        lambda: rows.decode_instance(value, "i"),
    ):
        with pytest.raises(StorageCorrupt):
            decode()
