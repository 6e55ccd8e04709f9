"""What a bookie finds when it is asked to read a range for itself: what is sound, what is not, and sums that
another bookie's can be compared with."""

from __future__ import annotations

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from storing import SMALL, ToldOracle, add, add_durably, add_frame, opened, payload_of, running
from trio.testing import wait_all_tasks_blocked

from bookie.core.examining import Examination
from bookie.core.journal_items import EntryRun
from bookie.core.results import ScrubResult
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.limits import SCRUB_BLOCK_ENTRIES, SCRUB_RANGES_MAX
from ledgerlog.wire.checksum import entry_digest
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status
from ledgerlog.wire.scrub import (
    ScrubReport,
    add_sums,
    decode_scrub_untrusted,
    encode_scrub,
    scrub_weights,
)

STAYS = attrs.evolve(SMALL, small_run_bytes=0, scrub=False)
L = 1


@attrs.define
class Whole:
    """The answers to as many requests as a range takes, put together."""

    sound: set[int] = attrs.Factory(set)
    unsound: set[int] = attrs.Factory(set)
    sums: dict[tuple[int, int], tuple[int, int]] = attrs.Factory(dict)
    requests: int = 0

    def take(self, report: ScrubReport) -> None:
        assert decode_scrub_untrusted(memoryview(encode_scrub(report))) == report
        for ids, ranges in ((self.sound, report.sound), (self.unsound, report.unsound)):
            for low, high in ranges:
                assert ids.isdisjoint(range(low, high + 1)), "entries are told once"
                ids.update(range(low, high + 1))
        for block, remainder, count, total in report.sums:
            counted, summed = self.sums.get((block, remainder), (0, 0))
            self.sums[block, remainder] = counted + count, add_sums(summed, total)
        self.requests += 1


def sums_of(digests: dict[int, int], classes: int) -> dict[tuple[int, int], tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for entry_id, digest in digests.items():
        key = entry_id // SCRUB_BLOCK_ENTRIES, entry_id % classes
        count, total = found.get(key, (0, 0))
        weight = scrub_weights()[entry_id % SCRUB_BLOCK_ENTRIES]
        found[key] = count + 1, (total + digest * weight) % 2**64
    return found


async def scrubbed(
    engine: Engine, *, first: int = 0, last: int = 99, classes: int = 1, bytes_max: int = 10**6
) -> Whole:
    whole = Whole()
    while first <= last:
        result = await engine.scrub(L, first=first, last=last, classes=classes, bytes_max=bytes_max)
        assert result.status is Status.OK
        assert first <= result.through <= last
        whole.take(result.report)
        first = result.through + 1
    return whole


def digests(ids: range | list[int]) -> dict[int, int]:
    return {entry_id: entry_digest(L, entry_id, payload_of(L, entry_id)) for entry_id in ids}


async def files_that_take_turns() -> tuple[MemoryDisk, MemoryIndexes]:
    """The second file has the entries 3 to 5 and 9 to 11 of the first twelve."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    for parts in ([range(3), range(6, 9)], [range(3, 6), range(9, 12)]):
        async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
            for ids in parts:
                await add_durably(engine, L, ids)
    return disk, indexes


def rot(disk: MemoryDisk, entry_id: int, at: int = 0) -> None:
    needle = payload_of(L, entry_id)
    ((content, place),) = [(c, c.find(needle)) for c in disk.files.values() if needle in c]
    content[place + at] ^= 0xFF


async def test_what_is_on_disk_is_read_in_as_many_requests_as_it_takes_and_says_the_same() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    ids = [*range(30), *range(33, 60)]
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        for first in range(0, 60, 3):
            if first != 30:
                await add_durably(engine, L, range(first, first + 3))
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        for classes in (1, 3, SCRUB_BLOCK_ENTRIES):
            for bytes_max in (1, 10_000, 10**6):
                whole = await scrubbed(engine, classes=classes, bytes_max=bytes_max)
                assert whole.sound == set(ids)
                assert not whole.unsound
                assert whole.sums == sums_of(digests(ids), classes)
                assert (whole.requests == 1) == (bytes_max == 10**6)
        part = await scrubbed(engine, first=7, last=40)
        assert part.sound == set(ids) & set(range(7, 41))
        assert part.sums == sums_of(digests([e for e in ids if 7 <= e <= 40]), 1)


async def test_files_that_take_turns_in_a_ledger_are_examined_in_the_order_of_the_entries() -> None:
    """Seed 20000046 of the long simulations: an entry was repaired between two that another file holds."""
    disk, indexes = await files_that_take_turns()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        whole = await scrubbed(engine, last=20)
        assert whole.sound == set(range(12))
        assert whole.sums == sums_of(digests(range(12)), 1)


async def test_a_file_that_cannot_be_read_between_two_others_does_not_end_the_bookie() -> None:
    disk, indexes = await files_that_take_turns()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        path = sorted(path for path in disk.files if path.endswith(".journal"))[1]
        missing = disk.files.pop(path)
        whole = await scrubbed(engine, last=20)
        disk.files[path] = missing
        assert whole.sound == {0, 1, 2, 6, 7, 8}
        assert whole.unsound == {3, 4, 5, 9, 10, 11}


async def test_a_ledger_that_is_deleted_while_its_scrub_waits_is_not_scrubbed() -> None:
    """Its rows may still name a file that compaction has removed."""
    oracle = ToldOracle()
    async with (
        opened("b", MemoryDisk(), MemoryIndexes()) as directory,
        open_engine(directory, STAYS, oracle=oracle) as engine,
    ):
        await add_durably(engine, L, range(3))
        await engine.flush()
        found: list[ScrubResult] = []

        async def scrub() -> None:
            found.append(await engine.scrub(L, first=0, last=9, classes=1, bytes_max=10**6))

        async with trio.open_nursery() as nursery, engine._reader._scrubbing:
            nursery.start_soon(scrub)
            await wait_all_tasks_blocked()
            oracle.gone.add(L)
            assert engine.collector is not None
            await engine.collector.collect()
        assert found == [ScrubResult(Status.NO_SUCH_LEDGER, ScrubReport((), (), ()), 9)]


async def test_what_rotted_is_unsound_even_where_it_was_read_a_moment_ago() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        for first in range(0, 30, 3):
            await add_durably(engine, L, range(first, first + 3))
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        result = await engine.read(L, first=0, last=29, stride=1, bytes_max=10**6)
        assert len(result.entries) == 30
        rot(disk, 4)
        rot(disk, 20)
        whole = await scrubbed(engine, last=29)
        assert whole.unsound == {4, 20}
        assert whole.sound == set(range(30)) - {4, 20}
        assert whole.sums == sums_of(digests([e for e in range(30) if e not in (4, 20)]), 1)


async def test_of_a_frame_that_cannot_be_read_all_of_its_span_is_unsound() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, L, range(3))
        await add_durably(engine, L, [3, 5, 9])
        await add_durably(engine, L, [6, 7])
    raw = b"".join(bytes(part) for part in [add_frame(L, [3, 5, 9])[0].raw])
    ((content, at),) = [(c, c.find(raw)) for c in disk.files.values() if raw in c]
    content[at + 97] ^= 1  # A length in the head of the frame.
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        whole = await scrubbed(engine, last=20)
        assert whole.sound == {0, 1, 2, 6, 7}
        assert whole.unsound == {3, 4, 5, 8, 9}


async def test_what_is_in_memory_and_what_is_unknown_has_its_answer() -> None:
    async with running("b", STAYS, disk=MemoryDisk(), indexes=MemoryIndexes()) as engine:
        nothing = await engine.scrub(L, first=3, last=9, classes=1, bytes_max=1000)
        assert (nothing.status, nothing.through) == (Status.NO_SUCH_LEDGER, 9)
        assert nothing.report == ScrubReport((), (), ())
        await engine.wait_durable(add(engine, L, range(5)))
        add(engine, L, range(5, 8))  # Not durable yet: it does not exist yet.
        whole = await scrubbed(engine, last=4)
        assert whole.sound == set(range(5))
        assert whole.sums == sums_of(digests(range(5)), 1)


# --- what runs come to ----------------------------------------------------------------------------


def examined(
    runs: list[tuple[list[int], set[int] | None]], *, first: int, last: int, classes: int, bytes_max: int
) -> Whole:
    """Sorted runs with their damaged ids, None for one that cannot be read; all requests that it takes."""
    whole = Whole()
    while first <= last:
        examination = Examination(first=first, last=last, classes=classes, bytes_max=bytes_max)
        horizon = last
        for ids, damaged in runs:
            if ids[-1] < first:
                continue
            if not examination.has_room and ids[0] > first:
                horizon = ids[0] - 1
                break
            run = EntryRun(L, ids[0], ids[-1], len(ids), 1, 0, 100 * len(ids), 0)
            if damaged is None:
                examination.add_unreadable(run)
            else:
                examination.add(run, Entries.gather(L, {e: b"%d" % e for e in ids}), damaged)
        report, through = examination.close(horizon)
        assert first <= through <= last
        whole.take(report)
        first = through + 1
    return whole


@st.composite
def some_runs(draw: st.DrawFn) -> list[tuple[list[int], set[int] | None]]:
    runs = []
    for begin in sorted(draw(st.sets(st.integers(0, 120), max_size=8))):
        extra = draw(st.sets(st.integers(begin + 1, begin + 30), max_size=12))
        dense = draw(st.booleans())
        ids = list(range(begin, begin + 1 + len(extra))) if dense else sorted({begin, *extra})
        damaged = draw(st.none() | st.sets(st.sampled_from(ids), max_size=3))
        runs.append((ids, damaged))
    return runs


@given(some_runs(), st.integers(0, 60), st.sampled_from([1, 3, 4096]), st.sampled_from([1, 9000, 10**6]))
def test_every_run_counts_once_and_what_anybody_has_damaged_is_unsound(
    runs: list[tuple[list[int], set[int] | None]], first: int, classes: int, bytes_max: int
) -> None:
    whole = examined(runs, first=first, last=140, classes=classes, bytes_max=bytes_max)
    asked = set(range(first, 141))
    damaged = {e for _, bad in runs for e in bad or ()}
    readable = {e for ids, bad in runs for e in ids if bad is not None}
    spans = {e for ids, bad in runs if bad is None for e in range(ids[0], ids[-1] + 1)}
    assert whole.sound == (readable - damaged) & asked
    assert whole.unsound == ((damaged | spans) - (readable - damaged)) & asked
    expected = {e: entry_digest(L, e, b"%d" % e) for e in whole.sound}
    assert whole.sums == sums_of(expected, classes)


def test_a_reply_ends_where_its_ranges_or_its_sums_are_full() -> None:
    striped = [e for e in range(6 * SCRUB_RANGES_MAX) if e % 3 != 2]
    whole = examined([(striped, set())], first=0, last=striped[-1], classes=3, bytes_max=10**9)
    assert whole.sound == set(striped)
    assert whole.requests >= 2
    dense = list(range(10 * SCRUB_BLOCK_ENTRIES))
    whole = examined([(dense, set())], first=5, last=dense[-1], classes=SCRUB_BLOCK_ENTRIES, bytes_max=10**9)
    assert whole.sound == set(dense[5:])
    assert whole.requests >= 2
    assert len(whole.sums) == len(dense) - 5
