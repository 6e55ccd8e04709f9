"""Faults of stores and disks by themselves: their order, what they leave, and that simulated stores take
them too."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from bookie.storage.disk.disk import Disk
from ledgerlog.errors import LogNotFound, MetadataOutcomeUnknown, MetadataUnavailable, StorageError
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.testing import SimulatedCluster, simulate
from ledgerlog.testing.faulty_disk import Fails, FaultyDisk, Gate
from ledgerlog.testing.faulty_store import (
    Call,
    Fate,
    FaultyStore,
    GoOn,
    StaleReplica,
    before,
    fates,
    unreachable_after,
)


async def test_the_first_fault_sees_a_call_first_and_its_result_last() -> None:
    seen: list[str] = []

    def noting(name: str):
        async def fault(call: Call, go_on: GoOn) -> Any:
            seen.append(f"{name}: {call}")
            found = await go_on()
            seen.append(name)
            return found

        return fault

    store = FaultyStore(MemoryTree(), noting("outer"), noting("inner"))
    await store.create("a", b"")
    assert seen == ["outer: create a", "inner: create a", "inner", "outer"]


async def test_a_lost_write_did_not_happen_and_an_unanswered_one_did() -> None:
    tree = MemoryTree()
    for fate, happened in ((Fate.LOST, False), (Fate.UNANSWERED, True)):
        store = FaultyStore(tree, fates(lambda call, fate=fate: fate))
        with pytest.raises(MetadataOutcomeUnknown):
            await store.create("a", b"")
        assert (await store.get("a") is not None) is happened


async def test_a_stale_replica_shows_what_it_has_seen_until_sync() -> None:
    tree = MemoryTree()
    others, store = tree.open_store(), FaultyStore(tree)
    await others.create("a", b"old")
    store.faults.append(StaleReplica(tree.content))
    await others.set("a", b"new", version=0)
    await others.create("b", b"")
    assert (await store.get("a")).value == b"old"
    assert await store.get("b") is None
    await store.sync()
    assert (await store.get("a")).value == b"new"
    assert await store.get("b") is not None


async def test_a_store_is_unreachable_from_some_call_on() -> None:
    store = FaultyStore(MemoryTree(), unreachable_after(1))
    await store.sync()
    for _ in range(2):
        with pytest.raises(MetadataUnavailable):
            await store.sync()


def test_the_store_of_a_simulated_process_takes_faults() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def refuse(call: Call) -> None:
            if call.is_write:
                raise MetadataUnavailable("the test refuses it")

        async with cluster.client("a") as client:
            store = cluster.process("a").store
            assert store is not None
            store.faults.append(before(refuse))
            with pytest.raises(MetadataUnavailable, match="refuses it"):
                await client.create_log("orders")
            store.faults.clear()
            with pytest.raises(LogNotFound):
                await client.open_log("orders")
            await client.create_log("orders")

    simulate(scenario, seed=1, bookies=3)


async def written(disk: Disk, text: bytes) -> None:
    view = await disk.make_buffer(4096)
    view[: len(text)] = text
    await disk.write_sync(await disk.open("f", for_writing=True), 0, view)


async def test_a_power_cut_takes_what_a_failed_write_left_but_not_what_was_written_after_it() -> None:
    for rewrites, found in ((False, b"\0\0\0"), (True, b"new")):
        disk = FaultyDisk(Fails("write_sync", happens=True))
        file = await disk.create("f", 4096)
        with pytest.raises(StorageError):
            await written(disk, b"old")
        assert disk.read_now(file, 0, 3) == b"old"
        if rewrites:
            disk.faults.clear()
            await written(disk, b"new")
        disk.cut_power()
        assert disk.read_now(file, 0, 3) == found


async def test_a_gate_lets_through_as_many_calls_as_it_was_told(nursery: trio.Nursery) -> None:
    gate = Gate("write_sync")
    disk = FaultyDisk(gate)
    file = await disk.create("f", 4096)
    nursery.start_soon(written, disk, b"one")
    await trio.testing.wait_all_tasks_blocked()
    assert disk.read_now(file, 0, 3) == b"\0\0\0"
    gate.let_one_through()
    await trio.testing.wait_all_tasks_blocked()
    assert disk.read_now(file, 0, 3) == b"one"
    nursery.start_soon(written, disk, b"two")
    await trio.testing.wait_all_tasks_blocked()
    assert disk.read_now(file, 0, 3) == b"one"
    gate.open()
    await trio.testing.wait_all_tasks_blocked()
    assert disk.read_now(file, 0, 3) == b"two"
