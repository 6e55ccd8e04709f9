"""Entries that are brought again where their copies have rotted: they are stored, and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from storing import SMALL, Crash, add, add_durably, add_frame, payload_of, read, read_all, running
from trio.testing import wait_all_tasks_blocked

from bookie.core import rows
from bookie.core.frames import salvage
from bookie.core.journal_items import EntryRun
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import StorageCorrupt
from ledgerlog.wire.frame import HEADER_BYTES, Status

STAYS = attrs.evolve(SMALL, small_run_bytes=0, scrub=False)
L = 1


class Machine:
    def __init__(self) -> None:
        self.disk, self.indexes = MemoryDisk(), MemoryIndexes()

    def rot(self, entry_id: int, *, back: int = 0) -> None:
        """Change a byte of the entry, or one that lies ``back`` bytes before it."""
        needle = payload_of(L, entry_id)
        ((content, at),) = [(c, c.find(needle)) for c in self.disk.files.values() if needle in c]
        content[at - back] ^= 0xFF


@pytest.fixture
async def machine() -> Machine:
    """Runs of five entries each, 0..29, and the even ones from 40 to 58; none of them in memory."""
    machine = Machine()
    for begin in (0, 15):
        async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
            for first in range(begin, begin + 15, 5):
                await add_durably(engine, L, range(first, first + 5))
            if begin:
                await add_durably(engine, L, range(40, 60, 2))
    return machine


async def check(engine: Engine, *, but: Sequence[int] = ()) -> None:
    for entry_id in (*range(30), *range(40, 60, 2)):
        result = await read(engine, L, entry_id, entry_id)
        if entry_id in but:
            assert result.status is Status.CORRUPT, entry_id
        else:
            expected = (Status.OK, [payload_of(L, entry_id)])
            assert (result.status, result.entries.payloads()) == expected, entry_id


async def fill_memory(engine: Engine) -> None:
    """Move all added entries out of memory."""
    for number in range(40):
        await add_durably(engine, 2, [number], payloads=[bytes(4000)])
    await wait_all_tasks_blocked()


async def test_what_took_the_place_of_a_rotten_run_is_not_mended_before_it_is_on_the_disk(
    machine: Machine,
) -> None:
    """The flush puts it together with what follows it, under the id that both begin with."""
    machine.rot(0)
    machine.rot(1)
    flushed = attrs.evolve(STAYS, small_run_bytes=20_000)
    async with running("b", flushed, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, L, [0], recovery=True)
        machine.rot(5)
        await add_durably(engine, L, [5], recovery=True)  # The run behind it, so that the two are one.
        await add_durably(engine, 2, range(100, 103), payloads=[bytes(6000)] * 3)
        engine.add(*add_frame(L, [1], recovery=True))
        await fill_memory(engine)
        await check(engine, but=[1])
        await add_durably(engine, L, [1], recovery=True)
        await fill_memory(engine)
        await check(engine)


@pytest.mark.parametrize("recovery", [True, False])
@pytest.mark.parametrize("ids", [[6], range(5, 10), range(4, 12), range(30), [2, 6, 8]])
async def test_a_good_copy_of_a_rotten_entry_takes_its_place_for_good(
    machine: Machine, ids: Sequence[int], recovery: bool
) -> None:
    machine.rot(6)
    disk, indexes = machine.disk, machine.indexes
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine, but=[6])
        await add_durably(engine, L, ids, recovery=recovery)
        await check(engine)
        await engine.flush()
        await check(engine)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)
        assert await engine.scrubber.scrub() == 0


async def test_an_add_beside_a_rotten_entry_leaves_it_as_it_is(machine: Machine) -> None:
    machine.rot(6)
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        before = engine.statistics()["journal_bytes_written"]
        await add_durably(engine, L, [5, 7, 9], recovery=True)
        assert engine.statistics()["journal_bytes_written"] == before, "they are stored"
        await check(engine, but=[6])


async def test_of_two_rotten_entries_of_a_run_each_is_mended_when_it_is_brought(machine: Machine) -> None:
    machine.rot(6)
    machine.rot(8)
    disk, indexes = machine.disk, machine.indexes
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, L, [8], recovery=True)
        await check(engine, but=[6])  # This entry is read from memory, and the other one is carried on.
        assert engine.add(*add_frame(L, [6], recovery=True)) is Status.CORRUPT, "it is on its way to the disk"
        await check(engine, but=[6])
        await fill_memory(engine)
        await add_durably(engine, L, [6], recovery=True)
        await check(engine)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)


async def test_what_is_carried_on_stays_damaged_and_is_never_denied(machine: Machine) -> None:
    machine.rot(6)
    machine.rot(8)
    disk, indexes = machine.disk, machine.indexes
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, L, [8], recovery=True)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine, but=[6])
        assert await engine.scrubber.scrub() == 1


async def test_another_payload_in_the_place_of_a_rotten_one_is_a_conflict(machine: Machine) -> None:
    machine.rot(6)
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        for ids, wrong in (([6], 6), ([6, 7], 7), (range(5, 10), 9)):
            payloads = [b"another" if e == wrong else payload_of(L, e) for e in ids]
            assert engine.add(*add_frame(L, ids, payloads, recovery=True)) is Status.CONFLICT
        await check(engine, but=[6])


async def test_a_frame_without_a_head_is_replaced_by_all_of_its_entries(machine: Machine) -> None:
    machine.rot(5, back=5 * 8 + 20)  # In the header.
    disk, indexes = machine.disk, machine.indexes
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine, but=range(5, 10))
        # Each entry proves itself, so one of another payload is refused, and any of them mends the frame.
        assert engine.add(*add_frame(L, [7], [b"another"], recovery=True)) is Status.CONFLICT
        await check(engine, but=range(5, 10))
        await add_durably(engine, L, [9], recovery=True)
        await check(engine)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)


async def test_a_frame_that_proves_nothing_is_replaced_by_all_of_its_entries_and_by_no_fewer(
    machine: Machine,
) -> None:
    machine.rot(5, back=5 * 8)  # The length of its first entry.
    disk, indexes = machine.disk, machine.indexes
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        for ids in ([5], [9], range(5, 9), range(7, 12)):
            assert engine.add(*add_frame(L, ids, recovery=True)) is Status.CORRUPT
        await check(engine, but=range(5, 10))
        await add_durably(engine, L, range(3, 12), recovery=True)
        await check(engine)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)


async def test_a_frame_with_gaps_is_mended_as_far_as_it_says_what_it_holds(machine: Machine) -> None:
    disk, indexes = machine.disk, machine.indexes
    machine.rot(44)
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, L, [42, 43, 44], recovery=True)
        assert await read_all(engine, L, 60) == {
            e: payload_of(L, e) for e in (*range(30), *range(40, 60, 2), 43)
        }
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)
    machine = Machine()
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, L, range(40, 60, 2))
    machine.rot(40, back=1)  # The last of the ids.
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        assert engine.add(*add_frame(L, range(40, 60, 2), recovery=True)) is Status.CORRUPT
        assert engine.add(*add_frame(L, [41], recovery=True)) is Status.CORRUPT, "it may be one of them"


async def test_what_cannot_be_read_is_replaced_by_all_of_it_and_refused_otherwise(machine: Machine) -> None:
    disk, indexes = machine.disk, machine.indexes
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        ((path, _),) = [(p, c) for p, c in disk.files.items() if payload_of(L, 6) in c]
        content = disk.files.pop(path)
        assert engine.add(*add_frame(L, [6], recovery=True)) is Status.IO_ERROR
        await add_durably(engine, L, range(5, 10), recovery=True)
        disk.files[path] = content
        await check(engine)


async def test_a_mended_run_is_not_found_rotten_nor_stored_again_before_it_is_indexed(
    machine: Machine,
) -> None:
    machine.rot(6)
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        assert await engine.scrubber.scrub() == 1
        (rotten,) = engine.scrubber.rotten.values()
        await add_durably(engine, L, [6], recovery=True)
        assert not engine.scrubber.rotten
        assert await engine.scrubber.scrub() == 0
        assert not await engine.scrubber.restore(rotten, [add_frame(L, range(5, 10))[1]], lac=-1, lafr=-1), (
            "it was stored again already"
        )


async def test_the_file_of_what_was_mended_is_held_until_the_copy_is_indexed(machine: Machine) -> None:
    """What could not be read for a moment, and was put together with others, must not lose its row."""
    disk, indexes = machine.disk, machine.indexes
    moving = attrs.evolve(STAYS, small_run_bytes=20_000, merge_width=2)
    machine.rot(1)
    async with running("b", moving, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, L, [1], recovery=True)
        for content in disk.files.values():  # The damage was not on the disk, but on the way from it.
            at = content.find(bytes([payload_of(L, 1)[0] ^ 0xFF]) + payload_of(L, 1)[1:])
            if at >= 0:
                content[at] ^= 0xFF
        await engine.compactor.compact(is_eventual=True)
        await fill_memory(engine)
        await engine.compactor.compact(is_eventual=True)
        await check(engine)


async def test_nothing_is_mended_in_a_file_that_is_being_written_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.rot(6)
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        monkeypatch.setattr(engine.compactor, "_sources", frozenset(range(-9, 9)))
        assert engine.add(*add_frame(L, [6], recovery=True)) is Status.CORRUPT
        monkeypatch.setattr(engine.compactor, "_sources", frozenset())
        await add_durably(engine, L, [6], recovery=True)
        await check(engine)


async def test_a_mended_run_counts_after_a_crash(machine: Machine) -> None:
    machine.rot(6)
    disk, indexes = machine.disk, machine.indexes

    async def mend_and_crash() -> None:
        async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
            await add_durably(engine, L, [6], recovery=True)
            raise Crash

    with pytest.raises(Crash):
        await mend_and_crash()
    async with running("b", STAYS, disk=disk, indexes=indexes) as engine:
        await check(engine)


async def test_without_the_journals_copy_what_is_mended_goes_through_the_journal(machine: Machine) -> None:
    machine.rot(6)
    unsynced = attrs.evolve(STAYS, journal_write_data=False)
    async with running("b", unsynced, disk=machine.disk, indexes=machine.indexes) as engine:
        position = add(engine, L, [6, 70], recovery=True)
        assert position > engine.durable_position
        await engine.wait_durable(position)
        await check(engine)


def test_of_a_frame_without_a_head_each_entry_that_proves_itself_is_believed() -> None:
    frame, _ = add_frame(L, range(5, 10))
    run = EntryRun(L, 5, 9, 5, file=1, offset=0, length=len(frame.raw), sequence=0)
    whole = bytes(frame.raw)
    assert {e: payload for e, (_, payload) in salvage(run, whole).items()} == {
        e: payload_of(L, e) for e in range(5, 10)
    }
    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 0x10
        found = salvage(run, bytes(bad))
        assert all(payload == payload_of(L, e) for e, (_, payload) in found.items()), at
        if at < HEADER_BYTES:
            assert len(found) == 5
        elif at >= HEADER_BYTES + 20:
            assert len(found) == 4
    assert not salvage(run, whole[:-1])
    assert not salvage(run, whole[:50])


async def test_an_add_that_cannot_look_into_the_index_before_it_repairs_has_a_status(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that no longer fits one frame is replaced by two, so the index is asked where they would lie."""
    ids = range(100, 300)
    payloads = [b"%05d" % entry_id + bytes(86) for entry_id in ids]
    async with running("b", STAYS, disk=machine.disk, indexes=machine.indexes) as engine:
        await add_durably(engine, L, ids, payloads=payloads)
    ((content, at),) = [(c, c.find(payloads[7])) for c in machine.disk.files.values() if payloads[7] in c]
    content[at] ^= 0xFF
    smaller = attrs.evolve(STAYS, frame_bytes_max=15_000)
    async with running("b", smaller, disk=machine.disk, indexes=machine.indexes) as engine:
        index = engine.index
        get_now = index.get_now

        def damaged(key: bytes) -> bytes | None:
            if rows.is_run_key(key):
                raise StorageCorrupt("b/index", None, "a damaged block")
            return get_now(key)

        frame, entries = add_frame(L, ids, payloads, recovery=True)
        with monkeypatch.context() as patches:
            patches.setattr(index, "get_now", damaged)
            assert engine.add(frame, entries) is Status.CORRUPT
        position = engine.add(frame, entries)
        assert not isinstance(position, Status)
        await engine.wait_durable(position)
        assert (await read(engine, L, 100, 299)).entries.payloads()[:8] == payloads[:8]
