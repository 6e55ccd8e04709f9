"""A serving bookie counts generations. So it notices if an old copy of its directory is put back."""

from __future__ import annotations

from copy import deepcopy

import attrs
import pytest
import trio
from serving import Machine
from trio.testing import MockClock

from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import CookieMismatch
from ledgerlog.meta.store import MetadataStore, Versioned
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie

INTERVAL_S = 600.0
COOKIE = layout.cookie_path("b1")


async def generation(machine: Machine) -> int:
    node = await machine.tree.open_store().get(COOKIE)
    assert node is not None
    return Cookie.decode_untrusted(node.value, "b1").generation


def copied(machine: Machine) -> Machine:
    """The machine with a copy of the directory as it is now, whether it is served or not."""
    assert isinstance(machine.disk, MemoryDisk)
    assert isinstance(machine.indexes, MemoryIndexes)
    disk, indexes = MemoryDisk(), MemoryIndexes()
    disk.files.update({path: bytearray(data) for path, data in machine.disk.files.items()})
    disk.directories.update(machine.disk.directories)
    indexes.indexes.update(deepcopy(machine.indexes.indexes))
    return attrs.evolve(machine, disk=disk, indexes=indexes, listen="copy")


async def is_rolled_back(machine: Machine) -> bool:
    """Start the bookie. Return whether it treats its data as lost."""
    async with machine.bookie() as bookie:
        return bool(bookie.node.engine.loss_marks.now.limbo)


@pytest.fixture
async def machine() -> Machine:
    """A bookie whose cluster has a ledger that can be lost."""
    machine = Machine()
    await machine.tree.open_store().next_id(layout.LEDGER_COUNTER)
    return machine


async def test_a_generation_is_counted_at_a_start_every_ten_minutes_and_at_a_stop(
    machine: Machine, autojump_clock: MockClock
) -> None:
    async with machine.bookie():
        assert await generation(machine) == 1
        await trio.sleep(INTERVAL_S + 1)
        assert await generation(machine) == 2
        await trio.sleep(3 * INTERVAL_S)
        assert await generation(machine) == 5
    assert await generation(machine) == 6
    assert not await is_rolled_back(machine)
    assert await generation(machine) == 8


async def test_a_copy_that_was_made_while_the_bookie_served_is_behind_after_its_stop(
    machine: Machine, autojump_clock: MockClock
) -> None:
    async with machine.bookie():
        copy = copied(machine)
    assert await is_rolled_back(copy)


async def uncount(machine: Machine, counted: Versioned | None) -> None:
    """Put the store back to its state at the bookie's crash, before the bookie counted the generation of its
    stop."""
    store = machine.tree.open_store()
    now = await store.get(COOKIE)
    assert counted is not None
    assert now is not None
    await store.set(COOKIE, counted.value, version=now.version)


@pytest.mark.parametrize("age_s", [0, INTERVAL_S + 1])
async def test_a_copy_that_is_older_than_ten_minutes_is_behind_after_a_crash(
    machine: Machine, age_s: float, autojump_clock: MockClock
) -> None:
    async with machine.bookie():
        await trio.sleep(1)
        copy = copied(machine)
        await trio.sleep(age_s)
        counted = await machine.tree.open_store().get(COOKIE)
    await uncount(machine, counted)
    assert await is_rolled_back(copy) == (age_s > 0)


async def test_a_copy_that_is_started_while_its_original_serves_does_the_original_no_harm(
    machine: Machine, autojump_clock: MockClock
) -> None:
    async with machine.bookie():
        copy = copied(machine)
        with pytest.raises(CookieMismatch, match="by another process, which is alive"):
            async with copy.bookie():
                raise AssertionError("it serves")
        assert await generation(machine) == 1
        crashed = copied(machine)
        counted = await machine.tree.open_store().get(COOKIE)
    await uncount(machine, counted)
    assert not await is_rolled_back(crashed)


async def test_a_generation_that_cannot_be_counted_is_told_and_the_bookie_serves_on(
    machine: Machine, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine.bookie() as bookie:
        store = machine.tree.open_store()
        node = await store.get(COOKIE)
        assert node is not None
        elsewhere = attrs.evolve(
            Cookie.decode_untrusted(node.value, "b1"), generation=9, generation_token="elsewhere"
        )
        await store.set(COOKIE, elsewhere.encode(), version=node.version)
        await trio.sleep(INTERVAL_S + 1)
        assert (
            "a generation was not counted: the cookie of bookie b1 in the metadata store is not the"
            in caplog.text
        )
        assert await generation(machine) == 9, "what another process counted stays"
        await bookie.client()


@pytest.mark.parametrize("other", ["new data", "a copy"])
async def test_a_bookie_that_was_cut_off_stops_if_other_data_was_served_under_its_id(
    machine: Machine, other: str, autojump_clock: MockClock
) -> None:
    """It lacks what the other one acknowledged, so its "no such entry" could end a ledger before that."""
    store = machine.tree.open_store()
    rival = attrs.evolve(machine, disk=MemoryDisk(), indexes=MemoryIndexes(), listen="new")

    async def serve_and_come_back() -> None:
        nonlocal rival
        async with machine.bookie() as bookie:
            if other == "a copy":
                rival = copied(machine)
            else:
                await trio.sleep(9 * INTERVAL_S)  # So the new data has a lower generation.
                await store.delete(COOKIE)
            bookie.store.disconnect()
            bookie.store.inner.expire_session()
            async with rival.bookie():
                assert await registered(store) == ["b1"]
            bookie.store.reconnect()
            await trio.sleep(INTERVAL_S)
            raise AssertionError("it serves")

    with pytest.raises(CookieMismatch, match="is not the one that /data/b1 counted last"):
        await serve_and_come_back()
    assert await registered(store) == []
    async with rival.bookie():
        assert await registered(store) == ["b1"]


async def registered(store: MetadataStore) -> list[str]:
    lists = layout.WRITABLE_BOOKIES, layout.READ_ONLY_BOOKIES
    return [bookie for path in lists for bookie in await store.children(path)]


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_bookie_that_was_cut_off_registers_again_if_the_store_has_no_sound_cookie_of_it(
    machine: Machine, is_damaged: bool, autojump_clock: MockClock
) -> None:
    store = machine.tree.open_store()
    async with machine.bookie() as bookie:
        if is_damaged:
            node = await store.get(COOKIE)
            assert node is not None
            await store.set(COOKIE, b"?", version=node.version)
        else:
            await store.delete(COOKIE)
        bookie.store.disconnect()
        bookie.store.inner.expire_session()
        bookie.store.reconnect()
        await trio.sleep(60)
        assert await registered(store) == ["b1"]
        assert bookie.node.is_read_only is not is_damaged


async def test_a_bookie_that_was_decommissioned_while_it_served_gets_no_cookie_again(
    machine: Machine, autojump_clock: MockClock
) -> None:
    async with machine.bookie():
        await machine.tree.open_store().delete(COOKIE)
        await trio.sleep(INTERVAL_S + 1)
    assert await machine.tree.open_store().get(COOKIE) is None
