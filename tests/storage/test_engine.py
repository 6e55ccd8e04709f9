"""The engine keeps the rules of a bookie (protocol A.2, rules 1 to 10), no matter which entries are in memory
and which on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from storing import (
    KEY,
    OTHER_KEY,
    SMALL,
    Crash,
    add,
    add_durably,
    add_frame,
    lac_frame,
    opened,
    payload_of,
    payloads,
    read,
    read_all,
    running,
)
from trio.testing import wait_all_tasks_blocked

from bookie.core.rows import MARK_KEY, decode_mark, ledger_key, run_key
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import Change, MemoryIndexes
from bookie.storage.upkeep.read_repair import cut_to_size
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.errors import InvalidArgument, StorageError
from ledgerlog.limits import ENSEMBLE_MAX, FRAME_BYTES_MAX, FRAME_ENTRIES_MAX, MIB, WRITER_WINDOW_ENTRIES
from ledgerlog.testing.faulty_disk import DiskCall, FaultyDisk, Gate, GoOn
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import HEADER_BYTES, SPARSE, Frame, Status, decode_frame_untrusted, encode_head


@pytest.fixture
def gate() -> Gate:
    """Of all writes. Open at first."""
    gate = Gate("write_sync")
    gate.open()
    return gate


@pytest.fixture
def disk(gate: Gate) -> FaultyDisk:
    return FaultyDisk(gate)


@pytest.fixture
async def engine(disk: FaultyDisk, gate: Gate) -> AsyncIterator[Engine]:
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        yield engine
        gate.open()


def status(engine: Engine, ledger_id: int, ids: list[int] | range, **more: object) -> Status | int:
    return engine.add(*add_frame(ledger_id, ids, **more))


# --- durability -----------------------------------------------------------------------------------


async def test_an_add_is_durable_only_once_its_write_returned(engine: Engine, gate: Gate) -> None:
    gate.shut()
    moved: list[int] = []
    engine.on_durable(lambda: moved.append(engine.durable_position))
    position = add(engine, 1, range(3))
    assert engine.pending_bytes > 0
    await wait_all_tasks_blocked()
    assert engine.durable_position < position
    assert not moved
    gate.open()
    await engine.wait_durable(position)
    assert moved == [position]
    assert engine.pending_bytes == 0


async def test_what_arrives_during_a_write_shares_the_next_one(engine: Engine, gate: Gate) -> None:
    gate.shut()
    first = add(engine, 1, [0])
    await wait_all_tasks_blocked()
    before = engine.statistics()["syncs"]
    positions = [add(engine, ledger, [5]) for ledger in range(2, 40)]
    assert set(positions) == {first + 1}
    gate.open()
    await engine.wait_durable(first + 1)
    assert engine.statistics()["syncs"] == before + 2


async def test_an_entry_is_not_readable_before_it_is_durable(engine: Engine, gate: Gate) -> None:
    await add_durably(engine, 1, [0])
    gate.shut()
    position = add(engine, 1, [1])
    result = await read(engine, 1)
    assert list(result.entries.ids) == [0]
    gate.open()
    await engine.wait_durable(position)
    assert await read_all(engine, 1) == payloads(1, [0, 1])


async def test_positions_never_decrease(engine: Engine) -> None:
    positions = []
    for first in range(0, 60, 3):
        await engine.wait_room()
        positions.append(add(engine, 1, range(first, first + 3)))
        if first % 2:
            await engine.wait_durable(positions[-1])
            positions.append(add(engine, 1, range(first)))  # All these entries are stored already.
    assert positions == sorted(positions)
    assert positions[0] >= 1


async def test_the_frame_is_copied_before_add_returns(engine: Engine) -> None:
    frame, entries = add_frame(1, [0])
    engine.add(frame, entries)
    frame.raw[:] = bytes(len(frame.raw))
    await engine.flush()
    assert await read_all(engine, 1) == payloads(1, [0])


async def test_callbacks_end_when_they_are_removed(engine: Engine) -> None:
    calls: list[int] = []

    def callback() -> None:
        calls.append(1)

    engine.on_durable(callback)
    engine.remove_on_durable(callback)
    await add_durably(engine, 1, [0])
    assert not calls


# --- fences ---------------------------------------------------------------------------------------


async def test_rule_1_a_fence_of_an_unknown_ledger_refuses_its_late_first_add(engine: Engine) -> None:
    assert (await engine.fence(7, KEY)).status is Status.OK
    assert status(engine, 7, [0]) is Status.FENCED


async def test_rule_2_adds_fail_at_once_and_the_fence_is_answered_after_its_sync(
    engine: Engine, gate: Gate
) -> None:
    await add_durably(engine, 1, [0])
    gate.shut()
    async with trio.open_nursery() as nursery:
        answered: list[Status] = []

        async def fence() -> None:
            answered.append((await engine.fence(1, KEY)).status)

        nursery.start_soon(fence)
        await wait_all_tasks_blocked()
        assert status(engine, 1, [1]) is Status.FENCED
        assert not answered
        gate.open()
    assert answered == [Status.OK]


async def test_rule_2_a_second_fencer_waits_for_the_first_sync_and_adds_none(
    engine: Engine, gate: Gate
) -> None:
    gate.shut()
    syncs = engine.statistics()["syncs"]
    answered: list[int] = []

    async def fence() -> None:
        await engine.fence(1, KEY)
        answered.append(1)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(fence)
        await wait_all_tasks_blocked()
        assert not answered
        gate.open()
    assert len(answered) == 5
    assert engine.statistics()["syncs"] == syncs + 1
    await engine.fence(1, KEY)
    assert engine.statistics()["syncs"] == syncs + 1, "a fence that is durable is answered from memory"


async def test_rule_2_a_cancelled_fencer_leaves_a_fence_that_the_next_one_waits_for(
    engine: Engine, gate: Gate
) -> None:
    gate.shut()
    with trio.move_on_after(0):
        await engine.fence(1, KEY)
    assert status(engine, 1, [0]) is Status.FENCED
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.fence, 1, KEY)
        await wait_all_tasks_blocked()
        gate.open()


async def test_rule_2_a_recovery_read_answers_after_the_fence_is_durable_and_sees_every_earlier_add(
    engine: Engine, gate: Gate
) -> None:
    gate.shut()
    add(engine, 1, [0])
    await wait_all_tasks_blocked()
    add(engine, 1, [1])
    results = []

    async def recover() -> None:
        results.append(await engine.recovery_read(1, KEY, first=0, last=9, stride=1, bytes_max=10**6))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover)
        await wait_all_tasks_blocked()
        assert status(engine, 1, [2]) is Status.FENCED
        assert not results
        gate.open()
    (result,) = results
    assert list(result.entries.ids) == [0, 1]
    assert result.through == 9


async def test_a_recovery_read_of_an_unknown_ledger_fences_it_and_says_that_it_has_nothing(
    engine: Engine,
) -> None:
    result = await engine.recovery_read(5, KEY, first=0, last=3, stride=1, bytes_max=100)
    assert (result.status, len(result.entries), result.through) == (Status.OK, 0, 3)
    assert status(engine, 5, [0]) is Status.FENCED


@pytest.mark.parametrize("stored", [5, 0, 899])
async def test_an_add_that_fits_one_frame_only_without_gaps_is_taken(engine: Engine, stored: int) -> None:
    ids, payload = range(900), b"fourteen bytes"
    await add_durably(engine, 1, [stored], payloads=[payload])
    frame = add_frame(1, ids, [payload] * 900)
    assert len(frame[0].raw) <= SMALL.frame_bytes_max < len(frame[0].raw) + 4 * 899
    position = engine.add(*frame)
    assert isinstance(position, int)
    await engine.wait_durable(position)
    assert await read_all(engine, 1) == dict.fromkeys(ids, payload)


def test_a_part_is_no_larger_than_the_largest_frame_whatever_is_configured() -> None:
    count = FRAME_ENTRIES_MAX
    size = (FRAME_BYTES_MAX + 4 - HEADER_BYTES) // count - 8
    entries = Entries.gather(1, {number: bytes(size) for number in range(count)})
    rest = entries.select([number for number in range(count) if number != 5])
    parts = cut_to_size(rest, 2 * FRAME_BYTES_MAX)
    assert [len(part) for part in parts] != [count - 1]
    for part in parts:
        encode_add(part, lac=-1, lafr=-1, key=KEY, recovery=False)


async def test_rule_5_recovery_adds_pass_the_fence_and_read_only(engine: Engine) -> None:
    await engine.fence(1, KEY)
    engine.is_read_only = True
    assert status(engine, 2, [0]) is Status.READ_ONLY
    add(engine, 1, [0], recovery=True)
    add(engine, 2, [0], recovery=True)


async def test_a_fence_outlives_stops_of_both_kinds(disk: FaultyDisk) -> None:
    indexes = MemoryIndexes()

    async def fence_and_crash() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            await engine.fence(1, KEY)
            raise Crash

    with pytest.raises(Crash):
        await fence_and_crash()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert status(engine, 1, [0]) is Status.FENCED
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert status(engine, 1, [0]) is Status.FENCED
        assert (await engine.fence(1, KEY)).status is Status.OK


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["pending", "memory", "disk"])
async def test_rule_6_the_same_entry_again_is_fine_and_another_under_its_id_is_a_conflict(
    engine: Engine, where: str
) -> None:
    add(engine, 1, range(5))
    if where != "pending":
        await engine.flush()
    if where == "disk":
        await fill_memory(engine)
    stored = engine.statistics()["entries"]
    add(engine, 1, range(5))
    assert engine.statistics()["entries"] == stored, "nothing is stored twice"
    assert status(engine, 1, [3], payloads=[b"another"]) is Status.CONFLICT
    assert status(engine, 1, [3, 4, 5], payloads=[b"another", b"x", b"y"]) is Status.CONFLICT
    await engine.flush()
    assert await read_all(engine, 1) == payloads(1, range(5)), "a refused add stored nothing"


async def test_rule_6_gaps_and_disorder_are_normal(engine: Engine) -> None:
    for ids in ([4, 5], [0, 2], [1, 3], [9], [6, 7, 8]):
        await add_durably(engine, 1, ids)
    assert await read_all(engine, 1) == payloads(1, range(10))
    listed = await engine.list_entries(1, first=0, pairs_max=5)
    assert (listed.status, listed.pairs) == (Status.OK, [(0, 9)])


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_rule_6_only_the_ids_that_are_new_are_stored(engine: Engine, where: str) -> None:
    await add_durably(engine, 1, [2, 3, 6])
    if where == "disk":
        await fill_memory(engine)
    before = engine.statistics()["entries"]
    await add_durably(engine, 1, range(8))
    assert engine.statistics()["entries"] - before == 5
    assert await read_all(engine, 1) == payloads(1, range(8))


async def test_rule_7_an_entry_sent_again_waits_for_the_sync_of_the_first(engine: Engine, gate: Gate) -> None:
    gate.shut()
    add(engine, 1, [0])
    await wait_all_tasks_blocked()
    again = add(engine, 1, [0])
    assert again > engine.durable_position
    gate.open()
    await engine.wait_durable(again)


@pytest.mark.parametrize("recovery", [False, True])
async def test_a_sparse_add_whose_ids_lie_further_apart_than_striping_can_leave_them_is_refused(
    engine: Engine, recovery: bool
) -> None:
    bound = 2 * ENSEMBLE_MAX + 2 * (WRITER_WINDOW_ENTRIES + FRAME_ENTRIES_MAX)
    assert engine.add(*add_frame(1, [0, bound + 1], recovery=recovery)) is Status.BAD_REQUEST
    assert engine.statistics()["ledgers_in_memory"] == 0
    await add_durably(engine, 1, [0, bound], recovery=recovery)
    assert engine.add(*add_frame(1, [1, bound + 2], recovery=recovery)) is Status.BAD_REQUEST
    assert await read_all(engine, 1) == payloads(1, [0, bound])


async def test_a_sparse_frame_that_names_consecutive_ids_is_stored_like_any_other(engine: Engine) -> None:
    entries = Entries.build(1, 0, [b"a", b"b"])
    index = entries.index_part() + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    head = encode_head(
        2, flags=SPARSE, count=2, ledger_id=1, first=0, last=1, key=KEY, index=index, payload_bytes=2
    )
    frame: Frame = decode_frame_untrusted(memoryview(head + b"ab"))
    position = engine.add(frame, decode_entries_untrusted(frame))
    assert not isinstance(position, Status)
    await engine.flush()
    assert await read_all(engine, 1) == {0: b"a", 1: b"b"}


# --- LAC, keys ------------------------------------------------------------------------------------


async def test_rule_9_lac_and_lafr_are_the_greatest_told(engine: Engine) -> None:
    assert engine.lac(1) == (-1, -1)
    add(engine, 1, [0], lac=5, lafr=2)
    add(engine, 1, [1], lac=3, lafr=4)
    assert engine.lac(1) == (5, 4)
    position = engine.add(*lac_frame(1, lac=8, lafr=4))
    assert position == engine.durable_position, "telling the LAC needs no sync"
    assert engine.lac(1) == (8, 4)
    result = await engine.fence(1, KEY)
    assert (result.lac, result.lafr) == (8, 4)


async def test_rule_9_the_lac_outlives_stops(disk: FaultyDisk) -> None:
    indexes = MemoryIndexes()

    async def add_and_crash() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0], lac=7, lafr=3)
            raise Crash

    with pytest.raises(Crash):
        await add_and_crash()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert engine.lac(1) == (7, 3)
        engine.add(*lac_frame(1, lac=9))
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert engine.lac(1) == (9, 3)


async def test_a_lac_for_an_unknown_ledger_is_accepted_and_remembers_nothing(engine: Engine) -> None:
    assert engine.add(*lac_frame(1, lac=9)) == engine.durable_position
    assert engine.lac(1) == (-1, -1)
    assert engine.statistics()["ledgers_in_memory"] == 0


class LacWaiter:
    def __init__(self) -> None:
        self.told = 0

    def wake(self) -> None:
        self.told += 1


async def test_who_waits_for_a_lac_is_told_once_when_it_has_come(engine: Engine) -> None:
    waiters = {entry_id: LacWaiter() for entry_id in (5, 3, 4)}

    def told() -> list[int]:
        return sorted(entry_id for entry_id, waiter in waiters.items() if waiter.told)

    for entry_id, waiter in waiters.items():
        assert engine.await_lac(1, entry_id, waiter)
    add(engine, 1, [0], lac=2)
    assert told() == []
    engine.add(*lac_frame(1, lac=4))
    assert told() == [3, 4]
    engine.add(*lac_frame(2, lac=9))
    assert told() == [3, 4]
    engine.add(*lac_frame(1, lac=5))
    engine.add(*lac_frame(1, lac=6))
    assert [waiter.told for waiter in waiters.values()] == [1, 1, 1]
    assert not engine._lac_watch._waiters


async def test_a_lac_that_has_come_is_not_waited_for_and_what_is_given_up_is_not_told(engine: Engine) -> None:
    add(engine, 1, [0], lac=2)
    waiter, other = LacWaiter(), LacWaiter()
    assert not engine.await_lac(1, 2, waiter)
    assert engine.await_lac(1, 3, waiter)
    assert engine.await_lac(1, 3, other)
    engine.forget_lac(1, waiter)
    engine.add(*lac_frame(1, lac=3))
    assert (waiter.told, other.told) == (0, 1)
    assert engine.await_lac(2, 3, waiter)
    engine.forget_lac(2, waiter)
    assert not engine._lac_watch._waiters, "of ledgers for which nobody waits, nothing is kept"


async def test_rule_10_a_wrong_key_changes_nothing(engine: Engine) -> None:
    await add_durably(engine, 1, [0], lac=0)
    before = engine.statistics()
    assert status(engine, 1, [1], key=OTHER_KEY, lac=9) is Status.UNAUTHORIZED
    assert status(engine, 1, [1], key=OTHER_KEY, recovery=True) is Status.UNAUTHORIZED
    assert engine.add(*lac_frame(1, lac=9, key=OTHER_KEY)) is Status.UNAUTHORIZED
    assert (await engine.fence(1, OTHER_KEY)).status is Status.UNAUTHORIZED
    result = await engine.recovery_read(1, OTHER_KEY, first=0, last=9, stride=1, bytes_max=100)
    assert (result.status, len(result.entries)) == (Status.UNAUTHORIZED, 0)
    assert engine.lac(1) == (0, -1)
    assert engine.statistics()["frames"] == before["frames"]
    add(engine, 1, [1])


# --- reading --------------------------------------------------------------------------------------


async def fill_memory(engine: Engine) -> None:
    """Write other ledgers until nothing written before is in memory."""
    segment = engine.statistics()["segment"]
    number = 10**6
    while engine.statistics()["segment"] < segment + 4:
        await add_durably(engine, number, range(8))
        number += 1
        await wait_all_tasks_blocked()


async def test_entries_are_read_from_memory_and_from_disk_alike(engine: Engine) -> None:
    for first in range(0, 30, 5):
        await add_durably(engine, 1, range(first, first + 5))
    assert await read_all(engine, 1) == payloads(1, range(30))
    assert engine.statistics()["runs_read_from_disk"] == 0
    await fill_memory(engine)
    assert await read_all(engine, 1) == payloads(1, range(30))
    assert engine.statistics()["runs_read_from_disk"] > 0


async def test_a_ledger_that_lies_in_both_is_read_in_one_go(engine: Engine) -> None:
    await add_durably(engine, 1, range(0, 20, 2))
    await fill_memory(engine)
    await add_durably(engine, 1, range(1, 20, 2))
    await add_durably(engine, 1, range(20, 25))
    result = await read(engine, 1)
    assert list(result.entries.ids) == list(range(25))
    assert result.entries.payloads() == [payload_of(1, entry_id) for entry_id in range(25)]
    assert result.through == 10**6


async def test_a_read_with_a_stride_asks_for_every_so_many_th(engine: Engine) -> None:
    await add_durably(engine, 1, range(20))
    result = await read(engine, 1, 1, 15, stride=4)
    assert list(result.entries.ids) == [1, 5, 9, 13]
    assert result.through == 15


async def test_a_reply_ends_at_its_bytes_but_one_entry_always_fits(engine: Engine) -> None:
    await add_durably(engine, 1, range(10))
    result = await read(engine, 1, bytes_max=0)
    assert list(result.entries.ids) == [0]
    assert result.through == 0
    sizes = [len(payload_of(1, entry_id)) for entry_id in range(10)]
    result = await read(engine, 1, bytes_max=sum(sizes[:4]))
    assert list(result.entries.ids) == [0, 1, 2, 3]


async def test_an_unknown_ledger_is_said_to_be_unknown(engine: Engine) -> None:
    result = await read(engine, 99, 3, 8)
    assert (result.status, result.through, len(result.entries)) == (Status.NO_SUCH_LEDGER, 8, 0)
    assert (await engine.list_entries(99, first=0, pairs_max=3)).status is Status.NO_SUCH_LEDGER


async def test_lists_go_through_memory_and_disk_and_say_how_far_they_are_complete(engine: Engine) -> None:
    await add_durably(engine, 1, [0, 1, 5, 6, 7])
    await fill_memory(engine)
    await add_durably(engine, 1, [8, 12, 20])
    listed = await engine.list_entries(1, first=1, pairs_max=10)
    assert listed.pairs == [(1, 1), (5, 8), (12, 12), (20, 20)]
    listed = await engine.list_entries(1, first=1, pairs_max=2)
    assert (listed.pairs, listed.through) == ([(1, 1), (5, 8)], 8)


async def test_reads_during_checkpoints_and_changes_of_memory_miss_nothing(disk: FaultyDisk) -> None:
    """Runs move from memory to the index under the reader."""
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                for first in range(0, 200, 5):
                    await add_durably(engine, 1, range(first, first + 5))
                nursery.cancel_scope.cancel()

            async def keep_reading() -> None:
                while True:
                    durable = engine.statistics()["entries"]
                    durable -= 0 if not engine.pending_bytes else 5
                    found = await read_all(engine, 1, last=max(0, durable - 1))
                    assert len(found) >= durable
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(keep_reading)
            nursery.start_soon(write)
        assert engine.statistics()["runs_read_from_disk"] > 0
        assert engine.statistics()["checkpoints"] > 2


# --- bounds ---------------------------------------------------------------------------------------


async def test_adds_without_room_are_refused_and_room_comes_back(engine: Engine, gate: Gate) -> None:
    gate.shut()
    ledger = 0
    while engine.has_room:
        add(engine, ledger, range(10))
        ledger += 1
        await wait_all_tasks_blocked()
    refusal: Status | int = 0
    while not isinstance(refusal, Status):
        ledger += 1
        refusal = status(engine, ledger, range(10))
    assert refusal is Status.TOO_MANY_REQUESTS
    assert (await read(engine, ledger)).status is Status.NO_SUCH_LEDGER, "a refused add leaves no trace"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.wait_room)
        await wait_all_tasks_blocked()
        gate.open()
    add(engine, ledger, range(10))


async def test_a_fence_waits_for_room_and_refuses_adds_meanwhile(engine: Engine, gate: Gate) -> None:
    gate.shut()
    ledger = 1
    while not isinstance(status(engine, ledger, range(10)), Status):
        ledger += 1
    while not isinstance(status(engine, ledger, [0], payloads=[b""]), Status):
        ledger += 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.fence, 1, KEY)
        await wait_all_tasks_blocked()
        assert status(engine, 1, [100]) is Status.FENCED
        gate.open()


async def test_a_fence_that_waited_for_room_is_answered_once_it_is_durable(
    disk: FaultyDisk, gate: Gate
) -> None:
    indexes = MemoryIndexes()

    async def fence_and_crash() -> None:
        async with running("b", disk=disk, indexes=indexes) as engine:
            gate.shut()
            ledger = 1
            while not isinstance(status(engine, ledger, range(10)), Status):
                ledger += 1
            while not isinstance(status(engine, ledger, [0], payloads=[b""]), Status):
                ledger += 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.fence, 1, KEY)
                await wait_all_tasks_blocked()
                gate.open()
            assert status(engine, 1, [100]) is Status.FENCED
            raise Crash

    with pytest.raises(Crash):
        await fence_and_crash()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert status(engine, 1, [100]) is Status.FENCED


async def test_a_fence_that_was_answered_for_is_in_the_journal_and_not_in_the_index_alone(
    disk: FaultyDisk, gate: Gate
) -> None:
    indexes = MemoryIndexes()
    async with running("b", disk=disk, indexes=indexes) as engine:
        gate.shut()
        ledger = 1
        while not isinstance(status(engine, ledger, range(10)), Status):
            ledger += 1
        while not isinstance(status(engine, ledger, [0], payloads=[b""]), Status):
            ledger += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.fence, 1, KEY)
            await wait_all_tasks_blocked()
            assert status(engine, 1, [100]) is Status.FENCED
            nursery.cancel_scope.cancel()  # It found no room for its record.
        assert status(engine, 1, [100]) is Status.FENCED
        gate.open()
    async with running("b", disk=disk, indexes=indexes) as engine:
        assert (await engine.fence(1, KEY)).status is Status.OK
    indexes.indexes.clear()
    async with opened("b", disk, indexes) as directory:
        await rebuild_index(directory)
        async with open_engine(directory, SMALL) as engine:
            assert status(engine, 1, [100]) is Status.FENCED


async def test_a_frame_over_the_configured_size_is_refused(engine: Engine) -> None:
    room = SMALL.frame_bytes_max - 104  # The header, and the length and digest of one entry.
    assert status(engine, 1, [0], payloads=[bytes(room + 1)]) is Status.BAD_REQUEST
    assert engine.lac(1) == (-1, -1)
    await add_durably(engine, 1, [0], payloads=[bytes(room)])


async def test_ten_thousand_ledgers_do_not_stay_in_memory(disk: FaultyDisk) -> None:
    config = StorageConfig(segment_bytes=64 * 4096, arenas=2, frame_bytes_max=20_000, ledgers_max=100)
    indexes = MemoryIndexes()
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        for ledger in range(10_000):
            if not engine.has_room:
                await engine.wait_room()
            add(engine, ledger, [0], payloads=[b"%d" % ledger])
            if ledger % 500 == 0:
                await engine.flush()
        await engine.flush()
        statistics = engine.statistics()
        assert statistics["runs_in_memory"] < 5_000
        assert statistics["ledgers_in_memory"] <= statistics["runs_in_memory"] + 200
        for ledger in range(0, 10_000, 97):
            assert await read_all(engine, ledger, last=5) == {0: b"%d" % ledger}
        assert status(engine, 17, [0], payloads=[b"other"]) is Status.CONFLICT


async def test_a_flush_ends_although_another_segment_fills_during_each_checkpoint() -> None:
    disk, indexes = FaultyDisk(), MemoryIndexes()
    filled = 0
    flushed = trio.Event()
    async with (
        opened("b", disk, indexes) as directory,
        trio.open_nursery() as nursery,
        open_engine(directory, evolve(SMALL, arenas=3, small_run_bytes=0)) as engine,
    ):
        (index,) = indexes.indexes.values()
        write = index.write

        async def flush() -> None:
            await engine.flush()
            flushed.set()

        async def fill_segment() -> None:
            nonlocal filled
            number = engine.statistics()["segment"]
            while engine.statistics()["segment"] == number:
                await add_durably(engine, 1, [engine.statistics()["entries"]])
            filled += 1

        async def slow(batch: Sequence[Change]) -> None:
            if MARK_KEY in dict(batch) and filled < 20 and not flushed.is_set():
                if filled == 1:
                    nursery.start_soon(flush)
                await fill_segment()
            await write(batch)

        index.write = slow
        await fill_segment()
        await flushed.wait()
        assert filled < 5


async def test_a_segment_with_too_many_records_is_left(disk: FaultyDisk) -> None:
    config = StorageConfig(segment_bytes=64 * 4096, arenas=3, frame_bytes_max=20_000, segment_records_max=10)
    async with running("b", config, disk=disk, indexes=MemoryIndexes()) as engine:
        for entry_id in range(100):
            await add_durably(engine, 1, [entry_id], payloads=[b"x"])
        assert engine.statistics()["segment"] >= 9
        assert len(await read_all(engine, 1)) == 100


def test_a_configuration_that_cannot_work_is_refused() -> None:
    for wrong in (
        {"segment_bytes": 5000},
        {"segment_bytes": 8192},
        {"arenas": 1},
        {"segment_bytes": 16 * 4096},
        {"ledgers_max": 0},
        {"segment_bytes": 1024 * MIB, "group_bytes_max": 1024 * MIB},
    ):
        with pytest.raises(InvalidArgument):
            StorageConfig(**wrong)


def test_a_group_may_be_limited_by_the_segment_alone() -> None:
    StorageConfig(group_bytes_max=1024 * MIB)


# --- stops ----------------------------------------------------------------------------------------


async def test_after_a_clean_stop_nothing_is_replayed_and_all_is_there(tmp_path: Path) -> None:
    async with running(str(tmp_path / "b")) as engine:
        for first in range(0, 100, 10):
            await add_durably(engine, 1 + first // 50, range(first, first + 10))
    async with running(str(tmp_path / "b")) as engine:
        assert await read_all(engine, 1) == payloads(1, range(50))
        assert await read_all(engine, 2) == payloads(2, range(50, 100))
        add(engine, 2, range(100, 105))
        await engine.flush()
        assert await read_all(engine, 2) == payloads(2, range(50, 105))


async def test_nothing_is_taken_while_the_engine_is_being_closed(disk: FaultyDisk) -> None:
    async with running("b", disk=disk, indexes=MemoryIndexes()) as engine:
        pass
    assert status(engine, 1, [0]) is Status.NOT_READY
    assert (await engine.fence(1, KEY)).status is Status.NOT_READY


async def test_an_exception_in_the_body_comes_out_as_itself(disk: FaultyDisk) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running("b", disk=disk, indexes=MemoryIndexes()):
            raise ZeroDivisionError


async def test_a_directory_that_is_not_formatted_is_not_opened(tmp_path: Path) -> None:
    from bookie.storage.engine.directory import open_directory

    async with open_directory(str(tmp_path / "b")) as directory:
        with pytest.raises(StorageError, match="not formatted"):
            async with open_engine(directory, SMALL):
                pass


async def test_a_segment_keeps_its_size_when_the_configuration_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "b")
    for pages in (12, 20, 16, 40):
        config = StorageConfig(segment_bytes=pages * 4096, arenas=2, frame_bytes_max=20_000)
        async with running(path, config) as engine:
            for first in range(0, 60, 10):
                await add_durably(engine, pages, range(first, first + 10))
    async with opened(path) as directory, open_engine(directory, SMALL) as engine:
        for pages in (12, 20, 16, 40):
            assert await read_all(engine, pages) == payloads(pages, range(60))


async def test_the_mark_passes_a_segment_only_when_the_index_has_its_runs_and_ledgers() -> None:
    """A start replays nothing before the mark: whatever the index lacked then would be lost."""
    disk, indexes = FaultyDisk(), MemoryIndexes()
    blocks: dict[int, int] = {}
    marks = 0
    async with opened("b", disk, indexes) as directory:
        (index,) = indexes.indexes.values()
        write = index.write

        async def looking(batch: Sequence[Change]) -> None:
            nonlocal marks
            value = dict(batch).get(MARK_KEY)
            if value is not None:
                mark = decode_mark(value, "index")
                behind = [entry_id for entry_id, block in blocks.items() if block < mark.sequence]
                marks += bool(behind)
                for entry_id in behind:
                    assert index.get_now(run_key(1, entry_id)) is not None, f"entry {entry_id} would be lost"
                assert index.get_now(ledger_key(1)) is not None or not behind
            await write(batch)

        index.write = looking
        async with open_engine(directory, evolve(SMALL, small_run_bytes=0)) as engine:
            for entry_id in range(200):
                await add_durably(engine, 1, [entry_id])
                blocks[entry_id] = engine._journal.commit.durable
                await wait_all_tasks_blocked()
    assert marks >= 2


async def test_a_segment_is_trimmed_when_the_next_one_has_a_block(disk: FaultyDisk) -> None:
    """After a crash, the index could not be rebuilt from a journal that ends with a trimmed segment."""
    indexes, config, count = MemoryIndexes(), evolve(SMALL, small_run_bytes=0), 0

    async def second_waits(call: DiskCall, go_on: GoOn) -> Any:
        if call.verb == "write_sync" and call.path.endswith("2.journal"):
            await trio.sleep_forever()
        return await go_on()

    disk.faults.append(second_waits)
    with suppress(Crash):
        async with opened("b", disk, indexes) as directory, open_engine(directory, config) as engine:
            while engine.statistics()["segment"] == 1:
                add(engine, 1, [count])
                count += 1
                await wait_all_tasks_blocked()
            raise Crash
    disk.faults.clear()
    async with opened("b", disk, indexes) as directory:
        assert await rebuild_index(directory) == count - 1
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        assert await read_all(engine, 1) == payloads(1, range(count - 1))


@pytest.mark.parametrize("kind", ["read", "list", "scrub"])
async def test_who_waits_for_a_turn_keeps_no_segment_in_memory_for_long(disk: FaultyDisk, kind: str) -> None:
    """The arenas would stay full, and nobody could add. The call ends early, and the client asks for the
    rest."""
    turns = trio.Semaphore(0)
    over: list[int] = []

    async def pace(cost: int) -> None:
        await turns.acquire()

    async def call(engine: Engine) -> None:
        match kind:
            case "read":
                read = await engine.read(1, first=0, last=10**9, stride=2, bytes_max=10**6, pace=pace)
                assert read.status is Status.OK
                assert list(read.entries.ids) == [*range(0, read.through + 1, 2)]
                over.append(read.through)
            case "list":
                listed = await engine.list_entries(1, first=0, last=10**9, pairs_max=9, pace=pace)
                assert listed.pairs == [(0, listed.through)]
                over.append(listed.through)
            case _:
                scrubbed = await engine.scrub(1, first=0, last=10**9, classes=1, bytes_max=10**6, pace=pace)
                assert scrubbed.report.sound == [(0, scrubbed.through)]
                over.append(scrubbed.through)

    config = evolve(SMALL, small_run_bytes=0)
    async with running("b", config, disk=disk, indexes=MemoryIndexes()) as engine:
        for entry_id in range(100):
            await add_durably(engine, 1, [entry_id])
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, engine)
            for _ in range(4):  # It has found the first entries.
                await wait_all_tasks_blocked()
                turns.release()
            entry_id = 0
            while engine.has_room:
                await add_durably(engine, 2, [entry_id])
                entry_id += 1
                await wait_all_tasks_blocked()
            assert not over
            for _ in range(3):
                turns.release()
                await wait_all_tasks_blocked()
            assert over
            assert 0 <= over[0] < 99
            with trio.fail_after(1):
                await engine.wait_room()
            await add_durably(engine, 2, [entry_id])
