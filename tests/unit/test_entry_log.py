"""Entry logs: bytes round-trip, every changed byte is noticed, and combined frames keep their entries."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core import entry_log
from bookie.core.block import PAGE_BYTES
from bookie.core.entry_log import LoggedLedger, LogHeader, RecordHead
from bookie.core.file_set import FileSet
from bookie.core.journal_items import EntryRun
from bookie.core.merging import FRAME_BYTES, PARTS_MAX, merge_frames, merge_runs
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import decode_frame_untrusted

KEY = b"k" * 16
NONCE = bytes(range(16))
HEADER = LogHeader(number=7, size=3 * PAGE_BYTES, nonce=NONCE, instance="inst", level=2)


# --- the format -----------------------------------------------------------------------------------


def test_a_header_comes_back_and_no_changed_byte_of_it_goes_unnoticed() -> None:
    page = HEADER.encode()
    assert LogHeader.decode(page, path="p", number=7, instance="inst") == HEADER
    for at in range(0, len(page), 3):
        damaged = bytearray(page)
        damaged[at] ^= 1
        with pytest.raises(StorageCorrupt):
            LogHeader.decode(bytes(damaged), path="p", number=7, instance="inst")


def test_a_header_of_another_log_or_bookie_is_refused() -> None:
    page = HEADER.encode()
    with pytest.raises(StorageCorrupt, match="entry log 7, not 8"):
        LogHeader.decode(page, path="p", number=8, instance="inst")
    with pytest.raises(StorageCorrupt, match="belongs to bookie instance"):
        LogHeader.decode(page, path="p", number=7, instance="other")


@given(st.binary(max_size=200), st.integers(0, 255), st.integers(0, 2**40))
def test_a_record_is_whole_only_where_it_was_written(body: bytes, kind: int, offset: int) -> None:
    head = entry_log.decode_head(entry_log.encode_head(NONCE, offset, kind, body))
    assert entry_log.is_whole(NONCE, offset, head, body)
    assert not entry_log.is_whole(NONCE, offset + 1, head, body)
    assert not entry_log.is_whole(bytes(16), offset, head, body)
    assert not entry_log.is_whole(NONCE, offset, RecordHead(kind ^ 1, head.length, head.checksum), body)
    assert not entry_log.is_whole(NONCE, offset, head, body + b"x")


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_is_known_of_a_ledger_comes_back(is_fenced: bool, is_deleted: bool) -> None:
    ledger = LoggedLedger(5, KEY, is_fenced, is_deleted, 8, -1)
    assert entry_log.decode_ledger(entry_log.encode_ledger(ledger), "p", 0) == ledger


def test_footer_and_tail_come_back_and_damage_of_the_tail_is_noticed() -> None:
    usage = {3: 500, 2**62: 7}
    footer = entry_log.encode_footer(9, usage)
    assert len(footer) == entry_log.footer_length(len(usage))
    assert entry_log.decode_footer(footer, "p", 0) == (9, usage)
    tail = entry_log.encode_tail(NONCE, PAGE_BYTES, 80)
    assert entry_log.decode_tail(tail, HEADER, "p") == (PAGE_BYTES, 80)
    for at in range(len(tail)):
        damaged = bytearray(tail)
        damaged[at] ^= 4
        with pytest.raises(StorageCorrupt):
            entry_log.decode_tail(bytes(damaged), HEADER, "p")
    with pytest.raises(StorageCorrupt, match="missing"):
        entry_log.decode_tail(tail[:-1], HEADER, "p")


# --- sets of files --------------------------------------------------------------------------------


@given(st.sets(st.integers(-40, 40)), st.sets(st.integers(-40, 40)))
def test_a_file_set_has_what_was_put_into_it_and_comes_back(some: set[int], more: set[int]) -> None:
    files = FileSet.of(some) | FileSet.of(more)
    assert {number for number in range(-50, 50) if number in files} == some | more
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(files.ranges))
    assert entry_log.decode_replaces(entry_log.encode_replaces(files), "p", 0) == files
    assert bool(files) == bool(some | more)


# --- putting runs together ------------------------------------------------------------------------


def frame_of(ids: list[int], payloads: list[bytes], ledger_id: int = 1) -> tuple[EntryRun, bytes]:
    entries = Entries.gather(ledger_id, dict(zip(ids, payloads, strict=True)))
    raw = b"".join(encode_add(entries, lac=3, lafr=2, key=KEY, recovery=False))
    return EntryRun(ledger_id, ids[0], ids[-1], len(ids), 9, 4096, len(raw), 5), raw


def merge(found: list[tuple[EntryRun, bytes]]) -> list[tuple[EntryRun, Entries]]:
    frames = dict(found)
    merged = list(merge_runs(sorted(run for run, _ in found)))
    assert [part for each in merged for part in each.parts] == sorted(frames)
    result = []
    for each in merged:
        raw = merge_frames(each, [frames[part] for part in each.parts], KEY)
        frame = decode_frame_untrusted(memoryview(raw))
        assert frame.header.key == KEY
        entries = decode_entries_untrusted(frame)
        assert entries.first_damaged() is None
        run = each.placed(-4, 8192)
        assert (run.length, run.entry_count, run.first, run.last) == (
            len(raw),
            len(entries),
            entries.first,
            entries.last,
        )
        result.append((run, entries))
    return result


def test_runs_that_follow_one_another_become_one() -> None:
    merged = merge([frame_of([at], [b"%d" % at * 20]) for at in range(100)])
    ((run, entries),) = merged
    assert run.is_dense
    assert entries.payloads() == [b"%d" % at * 20 for at in range(100)]


def test_runs_of_different_ledgers_and_runs_far_apart_do_not() -> None:
    merged = merge([frame_of([0], [b"a"]), frame_of([1], [b"b"], 2), frame_of([500], [b"c"])])
    assert len(merged) == 3


def test_one_run_alone_stays_as_it_was() -> None:
    run, raw = frame_of([4, 6], [b"a", b"b"])
    (each,) = merge_runs([run])
    assert merge_frames(each, [raw], KEY) == raw


def test_a_merged_frame_is_about_as_large_as_it_may_be() -> None:
    merged = merge([frame_of([at], [b"x" * 1000]) for at in range(200)])
    assert len(merged) == 4
    assert max(run.length for run, _ in merged) <= FRAME_BYTES + 1000
    assert [e for _, entries in merged for e in entries.ids] == list(range(200))


def test_of_tiny_runs_so_many_become_one_that_merging_them_is_a_short_step() -> None:
    merged = merge([frame_of([at], [b"x"]) for at in range(2 * PARTS_MAX + 1)])
    assert [run.entry_count for run, _ in merged] == [PARTS_MAX, PARTS_MAX, 1]


@given(st.sets(st.integers(0, 60), min_size=1), st.lists(st.integers(1, 7), min_size=60, max_size=60))
def test_whatever_the_gaps_every_entry_is_kept_once(ids: set[int], sizes: list[int]) -> None:
    left = sorted(ids)
    found = []
    for size in sizes:
        if left:
            found.append(frame_of(left[:size], [b"%d" % e * (e % 5) for e in left[:size]]))
            left = left[size:]
    merged = merge(found)
    pairs = [pair for _, entries in merged for pair in zip(entries.ids, entries.payloads(), strict=True)]
    assert pairs == [(e, b"%d" % e * (e % 5)) for e in sorted(ids)]
