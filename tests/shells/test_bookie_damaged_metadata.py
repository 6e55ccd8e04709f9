"""Damage of the metadata store's own file is trouble of the store. It ends no bookie."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from serving import SMALL, Bookie, Machine, ledger
from trio.testing import MockClock

from bookie.core.loss_marks import LossMarks
from bookie.server.phase_one import settle_marks
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.directory import StorageDirectory
from ledgerlog.errors import MetadataUnavailable, StorageCorrupt
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import READ_ONLY_BOOKIES, ledger_path
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn

INTERVAL_S = 10.0


async def damaged(call: Call, act: GoOn) -> Any:
    raise StorageCorrupt("metadata.sqlite", None, "a row fails its checksum")


@pytest.fixture
def machine() -> Machine:
    config = attrs.evolve(SMALL, collect_interval_s=INTERVAL_S)
    return Machine(config=config, ledgers={1: ledger(1), 2: ledger(2)})


async def with_two_ledgers(bookie: Bookie) -> None:
    client = await bookie.client()
    for number in (1, 2):
        await client.add(number, 0, [b"x"])
        await client.acknowledged(number)
    await bookie.node.engine.flush()


async def test_a_collection_that_meets_damage_of_the_metadata_store_waits(
    machine: Machine, autojump_clock: MockClock
) -> None:
    async with machine.bookie() as bookie:
        await with_two_ledgers(bookie)
        await bookie.store.delete(ledger_path(1))
        bookie.store.faults.append(damaged)
        await trio.sleep(3 * INTERVAL_S)
        assert bookie.node.engine.collector.deleted == 0
        bookie.store.faults.clear()
        await trio.sleep(3 * INTERVAL_S)
        assert bookie.node.engine.collector.deleted == 1


async def test_a_registration_that_meets_damage_of_the_metadata_store_is_renewed_later(
    machine: Machine, autojump_clock: MockClock
) -> None:
    async with machine.bookie() as bookie:
        bookie.store.faults.append(damaged)
        bookie.node.set_read_only(True)
        await trio.sleep(60)
        bookie.store.faults.clear()
        await trio.sleep(60)
        assert await bookie.store.children(READ_ONLY_BOOKIES) == ["b1"]


async def test_damage_of_the_metadata_store_is_not_taken_for_damage_of_the_directory(
    machine: Machine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is damaged when the repair reads it. The repair would set the directory's files aside."""
    async with machine.bookie() as bookie:
        await with_two_ledgers(bookie)
    assert isinstance(machine.disk, MemoryDisk)
    files = set(machine.disk.files)

    async def settle(store: MetadataStore, directory: StorageDirectory) -> LossMarks:
        monkeypatch.setattr(FaultyStore, "_carry", lambda _, call, act: damaged(call, act))
        await store.sync()
        return await settle_marks(store, directory)

    monkeypatch.setattr("bookie.server.repairing.settle_marks", settle)
    with pytest.raises(MetadataUnavailable, match="a row fails its checksum"):
        async with attrs.evolve(machine, repair_damage=True).bookie():
            pass
    assert {path for path in machine.disk.files if path.endswith(".damaged")} == set()
    assert files <= set(machine.disk.files)
