"""The simulated disk: the contract of disks, and what is left after a crash."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

import pytest
import trio
from storage import test_disk_contract as contract

from bookie.storage.disk.disk import FileMissing
from ledgerlog.errors import DiskFull, StorageError
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.disk import Platter, SimDisk, SimIndexes
from ledgerlog.testing.process import Incarnation, NodeCrashed

CONTRACT = {
    name: test
    for name, test in vars(contract).items()
    if name.startswith("test_")
    and list(inspect.signature(test).parameters) == ["disk", "tmp_path"]
    and "locked" not in name  # It asks a second, real disk.
}


class Machine:
    """A disk, and the process that uses it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.durable: list[tuple[str, int, int]] = []
        self.platter = Platter(
            simulation,
            "m",
            on_durable=lambda path, offset, data: self.durable.append((path, offset, len(data))),
        )
        self.restart()

    def restart(self) -> None:
        self.process = Incarnation(self.simulation, "m", 1, lambda power_cut: self.crash(power_cut=power_cut))
        self.disk = SimDisk(self.platter, self.process)
        self.indexes = SimIndexes(self.platter, self.process)

    def crash(self, *, power_cut: bool) -> None:
        self.process.die()
        self.platter.on_process_end(power_cut=power_cut)

    async def crash_during(self, work: Callable[[], Awaitable[object]], *, power_cut: bool) -> None:
        """Crash somewhere in the middle of something, and be there again."""

        async def run() -> None:
            with pytest.raises(NodeCrashed):
                await work()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.sleep(0.0001)
            self.crash(power_cut=power_cut)
        self.restart()


def simulated(scenario: Callable[[Machine], Awaitable[object]], seeds: range = range(5)) -> list[object]:
    async def main(simulation: Simulation) -> object:
        return await scenario(Machine(simulation))

    return [Simulation(seed).run(main, cpu_s_max=10).value for seed in seeds]


@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_of_disks(name: str) -> None:
    async def scenario(machine: Machine) -> None:
        await machine.disk.make_directory("/data")
        await CONTRACT[name](disk=machine.disk, tmp_path=PurePosixPath("/data"))

    assert len(CONTRACT) >= 5
    simulated(scenario)


async def new_file(machine: Machine, pages: int = 4) -> tuple[object, memoryview]:
    await machine.disk.make_directory("/d")
    await machine.disk.sync_directory("/")
    file = await machine.disk.create("/d/f", pages * 4096)
    await machine.disk.sync_directory("/d")
    buffer = await machine.disk.make_buffer(pages * 4096)
    buffer[:] = b"x" * len(buffer)
    return file, buffer


async def content(machine: Machine) -> bytes:
    return await machine.disk.read_file("/d/f", 1 << 20)


def test_a_power_cut_leaves_any_sectors_of_a_write_and_all_that_was_synced() -> None:
    async def scenario(machine: Machine) -> tuple[bool, ...]:
        file, buffer = await new_file(machine)
        await machine.disk.write_sync(file, 0, buffer[:4096])
        disk = machine.disk
        await machine.crash_during(
            lambda: disk.write_sync(file, 4096, buffer[4096:]),
            power_cut=True,
        )
        found = await content(machine)
        assert found[:4096] == b"x" * 4096
        assert machine.durable[0] == ("/d/f", 0, 4096)
        sectors = [found[at : at + 512] for at in range(4096, 16384, 512)]
        assert all(sector in (bytes(512), b"x" * 512) for sector in sectors)
        kept = tuple(sector != bytes(512) for sector in sectors)
        assert (len(machine.durable) == 2) == all(kept)
        return kept

    fates = simulated(scenario, range(40))
    assert {all(fate) for fate in fates} == {True, False}
    assert not all(any(fate) for fate in fates)
    assert any(list(fate) != sorted(fate, reverse=True) for fate in fates)


def test_what_a_killed_process_wrote_stays_in_the_cache_until_the_power_fails() -> None:
    async def scenario(machine: Machine) -> tuple[bool, bool]:
        file, buffer = await new_file(machine)
        disk = machine.disk
        await machine.crash_during(
            lambda: disk.write_sync(file, 0, buffer),
            power_cut=False,
        )
        before = (await content(machine)).startswith(b"x")
        assert machine.durable == []
        machine.crash(power_cut=True)
        machine.restart()
        after = b"x" in await content(machine)
        assert before or not after
        return before, after

    assert set(simulated(scenario, range(40))) == {(False, False), (True, True), (True, False)}


def test_names_that_were_not_synced_survive_as_far_as_they_came() -> None:
    async def scenario(machine: Machine) -> tuple[str, ...]:
        await new_file(machine)
        for number in range(3):
            await machine.disk.write_file(f"/d/{number}", b"data")
        await machine.disk.rename("/d/0", "/d/renamed")
        machine.crash(power_cut=True)
        machine.restart()
        return tuple(await machine.disk.list_directory("/d"))

    assert set(simulated(scenario, range(40))) == {
        ("f",),
        ("0", "f"),
        ("0", "1", "f"),
        ("0", "1", "2", "f"),
        ("1", "2", "f", "renamed"),
    }


def test_a_failed_sync_loses_its_data_for_good_whatever_is_synced_later() -> None:
    async def scenario(machine: Machine) -> bool:
        file, buffer = await new_file(machine)
        machine.platter.fail_syncs(1)
        with pytest.raises(StorageError, match="Input/output"):
            await machine.disk.write_sync(file, 0, buffer[:4096])
        seen = (await content(machine)).startswith(b"x")
        await machine.disk.write_sync(file, 4096, buffer[4096:8192])
        machine.crash(power_cut=True)
        machine.restart()
        assert (await content(machine))[:8192] == bytes(4096) + b"x" * 4096
        return seen

    assert set(simulated(scenario, range(20))) == {True, False}


def test_an_index_batch_is_there_whole_or_not_at_all() -> None:
    async def kept(machine: Machine) -> int:
        await new_file(machine)
        index = await machine.indexes.create("/d/index")
        await index.write([(b"a", b"1")])
        await machine.crash_during(lambda: index.write([(b"b", b"2"), (b"c", b"3")]), power_cut=True)
        again = await machine.indexes.open("/d/index")
        rows = again.scan_now(b"a", b"z", floor=b"a", limit=9)
        assert rows[0] == (b"a", b"1")
        return len(rows)

    assert set(simulated(kept, range(20))) == {1, 3}


def test_a_planned_crash_comes_before_or_right_after_an_effect() -> None:
    async def scenario(machine: Machine) -> list[str]:
        await new_file(machine)
        found = []
        for before in (True, False):
            machine.process.crash_at_door(1, before=before)
            with pytest.raises(NodeCrashed):
                await machine.disk.write_file(f"/d/{before}", b"")
            assert machine.process.is_dead
            machine.restart()
        found += await machine.disk.list_directory("/d")
        return found

    assert simulated(scenario, range(1)) == [["False", "f"]]


def test_full_disks_stalled_disks_and_bits_that_flip() -> None:
    async def scenario(machine: Machine) -> None:
        file, buffer = await new_file(machine)
        assert not machine.platter.rot()
        for at in (0, 4096, 8192):
            await machine.disk.write_sync(file, at, buffer[at : at + 4096])
        machine.platter.is_full = True
        with pytest.raises(DiskFull):
            await machine.disk.create("/d/g", 4096)
        machine.platter.heal()
        with pytest.raises(FileMissing):
            await machine.disk.open("/d/g")
        start = machine.simulation.now
        machine.platter.stall(3)
        await machine.disk.write_sync(file, 8192, buffer[8192:12288])
        assert machine.simulation.now - start >= 3
        assert machine.platter.rot()
        found = await content(machine)
        assert found[8192:12288] == b"x" * 4096, "the last write is spared"
        assert sum(byte not in b"x\0" for byte in found) == 1

    simulated(scenario)
