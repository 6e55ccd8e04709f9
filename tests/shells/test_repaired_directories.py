"""A bookie with a damaged directory is repaired. It serves, gives no wrong answer, denies nothing, and gets
everything back that its peers have. Each kind of file meets each kind of damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import attrs
import cbor2
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.server.node import BookieNode, open_bookie
from bookie.server.repairing import repair_directory, restore_cookie
from bookie.storage.engine.directory import open_directory
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep.salvage import ASIDE
from ledgerlog.errors import CookieMismatch, IncompatibleVersion, StorageCorrupt
from ledgerlog.model import layout
from ledgerlog.model.quorum import Replication
from ledgerlog.net.local import LocalNetwork
from ledgerlog.testing.faulty_disk import FaultyDisk
from ledgerlog.testing.memory_cluster import (
    SMALL,
    Bookie,
    Client,
    MemoryCluster,
    eventually,
    new_tree,
    open_cluster,
)
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import Status, decode_frame_untrusted

R332 = Replication(3, 3, 2)
TINY = attrs.evolve(SMALL, segment_bytes=12 * 4096, frame_bytes_max=20_000)
LEDGERS = 3
ENTRIES = 12

Damage = Callable[[bytearray], object]


def payload_of(ledger: int, entry: int) -> bytes:
    return b"ledger %d entry %d|" % (ledger, entry) * 80


def flip(content: bytearray) -> None:
    content[len(content) // 2] ^= 0x10


def flip_head(content: bytearray) -> None:
    content[30] ^= 1


def flip_first_block(content: bytearray) -> None:
    content[4096 + 9 if len(content) > 4096 else 12] ^= 1


def tear(content: bytearray) -> None:
    content[4096 + 512 : 4096 + 2048] = bytes(1536)
    content[-1:] = b""


def truncate(content: bytearray) -> None:
    del content[len(content) // 2 :]


def empty(content: bytearray) -> None:
    content.clear()


def garble(content: bytearray) -> None:
    content[:] = bytes(at * 37 % 251 for at in range(len(content)))


DAMAGE: dict[str, Damage] = {
    each.__name__: each for each in (flip, flip_head, flip_first_block, tear, truncate, empty, garble)
}
FILES = (
    "first segment",
    "middle segment",
    "last written segment",
    "prepared segment",
    "first log",
    "last log",
)


def paths(bookie: Bookie, kind: str) -> list[str]:
    return sorted(path for path in bookie.disk.files if path.endswith(kind))


def find(bookie: Bookie, which: str) -> str:
    segments, logs = paths(bookie, ".journal"), paths(bookie, ".entries")
    written = [path for path in segments if any(bookie.disk.files[path][4096:])]
    pristine = [path for path in segments if path not in written]
    return {
        "first segment": written[:1],
        "middle segment": written[len(written) // 2 :],
        "last written segment": written[-1:],
        "prepared segment": pristine or segments[-1:],
        "first log": logs[:1],
        "last log": logs[-1:],
    }[which][0]


async def fill(cluster: MemoryCluster, client: Client) -> list[int]:
    """Write ledgers, so that b1 has entry logs, and segments that its index does not have yet; kill b1."""
    found: list[int] = []
    for number in range(LEDGERS):
        writer = await client.ledgers.create(replication=R332)
        for entry in range(ENTRIES):
            await writer.append(payload_of(number, entry))
        if number == 0:
            await cluster.bookies["b1"].node.engine.flush()
        await writer.close()
        found.append(writer.ledger_id)
    await cluster.bookies["b1"].kill(session_s=0)
    return found


def contents(bookie: Bookie) -> dict[str, bytes]:
    """All files but those that hold nothing."""
    idle = ("/lock", "/ballast")
    return {path: bytes(each) for path, each in bookie.disk.files.items() if not path.endswith(idle)}


async def start_repaired(bookie: Bookie) -> None:
    bookie.repair_damage = True
    await bookie.start()


async def check_all_is_back(
    cluster: MemoryCluster, client: Client, ledgers: list[int], *, deleted: int = 0
) -> None:
    """All but the first ``deleted`` ledgers are whole."""
    bookie = cluster.bookies["b1"]
    with trio.fail_after(300):
        await bookie.node.repair.wait_done()
    # Rot in a file that the index knows stops no start; scrubbing begins at once and copies it again.
    scrubber = bookie.node.engine.scrubber
    await eventually(lambda: scrubber.passes >= bookie.repair_damage and not scrubber.rotten)
    for number, ledger_id in list(enumerate(ledgers))[deleted:]:
        written = [payload_of(number, entry) for entry in range(ENTRIES)]
        assert await client.contents(ledger_id) == written
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []
    await eventually(lambda: not any(path.endswith(ASIDE) for path in bookie.disk.files))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("which", FILES)
async def test_any_damage_of_any_file_is_repaired(which: str, damage: str, clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        DAMAGE[damage](bookie.disk.files[find(bookie, which)])
        await start_repaired(bookie)
        await check_all_is_back(cluster, client, ledgers)
        # It also starts again like any other bookie.
        await bookie.stop()
        bookie.repair_damage = False
        await bookie.start()
        await check_all_is_back(cluster, client, ledgers)


@pytest.mark.parametrize("which", FILES)
async def test_a_missing_file_is_repaired(which: str, clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        del bookie.disk.files[find(bookie, which)]
        await start_repaired(bookie)
        await check_all_is_back(cluster, client, ledgers)


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (0, 4), (2, 3), (2, 5), (4, 5)])
async def test_two_files_with_each_others_names_are_repaired(pair: tuple[int, int], clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        one, other = (find(bookie, FILES[each]) for each in pair)
        files = bookie.disk.files
        files[one], files[other] = files[other], files[one]
        await start_repaired(bookie)
        await check_all_is_back(cluster, client, ledgers)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "garble"])
async def test_damaged_marks_are_set_aside_and_all_is_marked(damage: str, clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        DAMAGE[damage](bookie.disk.files["/b1/marks"])
        with pytest.raises(StorageCorrupt):
            await bookie.start()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await start_repaired(bookie)
        engine = bookie.node.engine
        now = engine.loss_marks.now
        assert all(now.refuses_adds(each) for each in ledgers)
        assert any(now.denies_nothing(each) for each in ledgers)
        for ledger_id in ledgers:
            found = await engine.list_entries(ledger_id, first=0, last=ENTRIES, pairs_max=100)
            held = sum(last - first + 1 for first, last in found.pairs)
            assert held == ENTRIES or now.denies_nothing(ledger_id), "it is whole, or nothing is denied"
        assert "/b1/marks" + ASIDE in bookie.disk.files
        cluster.network.heal()
        await check_all_is_back(cluster, client, ledgers)


@pytest.mark.parametrize("damage", ["missing", "flip", "truncate", "empty", "garble"])
async def test_a_bookie_that_has_forgotten_its_deleted_ledgers_is_marked_as_after_a_loss(
    damage: str, clock: MockClock
) -> None:
    """Otherwise it would take a deleted ledger for a new one."""
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        await bookie.start()
        await client.ledgers.delete(ledgers[0])
        collector = bookie.node.engine.collector
        assert collector is not None
        await bookie.node.engine.flush()
        assert await collector.collect() == 1
        await bookie.kill(session_s=0)
        if damage == "missing":
            del bookie.disk.files["/b1/gone"]
        else:
            DAMAGE[damage](bookie.disk.files["/b1/gone"])
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await bookie.start()
        now = bookie.node.engine.loss_marks.now
        assert all(now.refuses_adds(each) for each in ledgers)
        assert all(now.denies_nothing(each) for each in ledgers[1:])
        cluster.network.heal()
        await check_all_is_back(cluster, client, ledgers, deleted=1)
        await bookie.stop()
        await bookie.start()
        assert not bookie.node.engine.loss_marks.now.limbo


async def test_a_lost_index_is_made_anew_and_the_loss_is_marked(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        bookie.indexes.indexes.clear()
        with pytest.raises(StorageCorrupt, match="index is missing"):
            await bookie.start()
        await start_repaired(bookie)
        assert bookie.node.engine.loss_marks.now.refuses_adds(ledgers[-1])
        await check_all_is_back(cluster, client, ledgers)


async def test_sound_records_around_the_damage_are_kept(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        segments = [path for path in paths(bookie, ".journal") if any(bookie.disk.files[path][4096:])]
        for path in segments:
            flip_first_block(bookie.disk.files[path])
        await start_repaired(bookie)
        await check_all_is_back(cluster, client, ledgers)
        # Only what was in the first block of each.
        assert 0 < bookie.node.repair.copied <= len(segments) < LEDGERS * ENTRIES // 2


async def test_what_was_lost_is_unknown_and_never_denied(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        garble(bookie.disk.files[find(bookie, "middle segment")])
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await start_repaired(bookie)
        await wait_all_tasks_blocked()
        engine = bookie.node.engine
        now = engine.loss_marks.now
        assert all(now.refuses_adds(each) for each in ledgers)
        assert any(now.denies_nothing(each) for each in ledgers)
        for ledger_id in ledgers:
            found = await engine.list_entries(ledger_id, first=0, last=ENTRIES, pairs_max=100)
            held = sum(last - first + 1 for first, last in found.pairs)
            assert held == ENTRIES or now.denies_nothing(ledger_id), "it is whole, or nothing is denied"
        assert any(path.endswith(ASIDE) for path in bookie.disk.files)


async def test_a_sound_directory_is_left_as_it_is(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        await start_repaired(bookie)
        assert not bookie.node.engine.loss_marks.now.limbo
        assert bookie.node.repair.copied == 0
        await check_all_is_back(cluster, client, ledgers)


async def test_a_newer_format_is_refused_and_nothing_is_changed(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        content = bookie.disk.files[find(bookie, "last written segment")]
        content[8:12] = (2).to_bytes(4, "little")
        content[4092:4096] = checksum(bytes(content[:4092])).to_bytes(4, "little")
        garble(bookie.disk.files[find(bookie, "first log")])
        garble(bookie.disk.files["/b1/marks"])
        before = contents(bookie)
        with pytest.raises(IncompatibleVersion):
            await start_repaired(bookie)
        assert contents(bookie) == before
        async with (
            open_directory("/b1", disk=bookie.disk, indexes=bookie.indexes) as directory,
            cluster.tree.open_store() as store,
        ):
            with pytest.raises(IncompatibleVersion):  # The command does not open a bookie.
                await repair_directory(store, directory, random_bytes=cluster.random_bytes)
        assert contents(bookie) == before


@pytest.mark.parametrize("damage", [None, "flip", "truncate", "empty", "garble"])
async def test_a_lost_cookie_is_restored_and_all_is_marked(damage: str | None, clock: MockClock) -> None:
    """The generation of the directory is not known any more."""
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        ledgers = await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        if damage is None:
            del bookie.disk.files["/b1/cookie"]
        else:
            DAMAGE[damage](bookie.disk.files["/b1/cookie"])
        with pytest.raises(CookieMismatch if damage is None else StorageCorrupt):
            await bookie.start()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await start_repaired(bookie)
        engine = bookie.node.engine
        now = engine.loss_marks.now
        assert all(now.refuses_adds(each) for each in ledgers)
        assert any(now.denies_nothing(each) for each in ledgers)
        for ledger_id in ledgers:
            found = await engine.list_entries(ledger_id, first=0, last=ENTRIES, pairs_max=100)
            held = sum(last - first + 1 for first, last in found.pairs)
            assert held == ENTRIES or now.denies_nothing(ledger_id), "it is whole, or nothing is denied"
        cluster.network.heal()
        await check_all_is_back(cluster, client, ledgers)
        await bookie.stop()
        bookie.repair_damage = False
        await bookie.start()


async def refused(bookie: Bookie, why: str) -> None:
    before = contents(bookie)
    with pytest.raises(CookieMismatch, match=why):
        await start_repaired(bookie)
    assert contents(bookie) == before


async def test_no_cookie_is_restored_if_the_files_are_of_two_bookies(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        bookie, other = cluster.bookies["b1"], cluster.bookies["b2"]
        del bookie.disk.files["/b1/cookie"]
        bookie.disk.files[f"/b1/journal/{99:016x}.journal"] = bytearray(
            other.disk.files[paths(other, ".journal")[0]]
        )
        await refused(bookie, "must name one bookie instance")


async def test_a_cookie_is_restored_though_that_of_another_bookie_cannot_be_read(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        await cluster.bookies["b2"].kill(session_s=0)
        damaged, newer = layout.cookie_path("b2"), layout.cookie_path("b0")
        node = await client.store.get(damaged)
        assert node is not None
        await client.store.set(damaged, b"damage", version=node.version)
        await client.store.create(newer, cbor2.dumps({"v": 99}, canonical=True))
        del cluster.bookies["b1"].disk.files["/b1/cookie"]
        await start_repaired(cluster.bookies["b1"])


async def test_no_cookie_is_restored_beside_a_file_of_a_newer_format(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        content = bookie.disk.files[find(bookie, "last written segment")]
        content[8:12] = (2).to_bytes(4, "little")
        content[4092:4096] = checksum(bytes(content[:4092])).to_bytes(4, "little")
        del bookie.disk.files["/b1/cookie"]
        before = contents(bookie)
        async with (
            open_directory("/b1", disk=bookie.disk, indexes=bookie.indexes) as directory,
            cluster.tree.open_store() as store,
        ):
            with pytest.raises(IncompatibleVersion):
                await restore_cookie(store, directory)
        assert contents(bookie) == before


async def test_no_cookie_is_restored_if_no_file_says_whose_it_was(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        del bookie.disk.files["/b1/cookie"]
        for path in (*paths(bookie, ".journal"), *paths(bookie, ".entries")):
            garble(bookie.disk.files[path])
        await refused(bookie, "they name none")


async def test_no_cookie_is_restored_of_a_bookie_that_the_store_does_not_know(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        del bookie.disk.files["/b1/cookie"]
        await client.store.delete(layout.cookie_path("b1"))
        await refused(bookie, "knows no bookie of instance")


async def test_no_cookie_is_restored_in_a_copy_of_a_directory_that_is_served(clock: MockClock) -> None:
    async with open_cluster(config=TINY) as cluster, cluster.client() as client:
        await fill(cluster, client)
        bookie = cluster.bookies["b1"]
        disk, indexes = bookie.snapshot()
        await bookie.start()
        del disk.files["/b1/cookie"]
        before = {path: bytes(each) for path, each in disk.files.items()}
        async with (
            cluster.tree.open_store() as store,
            open_directory("/b1", disk=disk, indexes=indexes) as directory,
        ):
            with pytest.raises(CookieMismatch, match="is registered"):
                await restore_cookie(store, directory)
        assert {path: bytes(each) for path, each in disk.files.items() if path in before} == before


@pytest.mark.parametrize("lost", ["/b1/cookie", "/j/cookie"])
async def test_the_cookie_of_a_journal_of_its_own_is_restored_too(lost: str, clock: MockClock) -> None:
    tree, disk, indexes = new_tree(), FaultyDisk(), MemoryIndexes()

    def node(*, repair_damage: bool = False) -> AbstractAsyncContextManager[BookieNode]:
        return open_bookie(
            "/b1",
            store,
            bookie_id="b1",
            network=LocalNetwork(),
            listen="b1",
            random_bytes=os.urandom,
            config=TINY,
            disk=disk,
            indexes=indexes,
            journal_directory="/j",
            repair_damage=repair_damage,
        )

    async with tree.open_store() as store:
        async with node() as bookie:
            for entry in range(40):  # So many that there is an entry log.
                added = encode_add(
                    Entries.build(5, entry, [bytes(2000)]), lac=-1, lafr=-1, key=bytes(16), recovery=False
                )
                frame = decode_frame_untrusted(memoryview(bytearray(b"".join(added))))
                await bookie.engine.wait_room()
                position = bookie.engine.add(frame, decode_entries_untrusted(frame))
                assert not isinstance(position, Status)
                await bookie.engine.wait_durable(position)
            await bookie.engine.flush()
            instance = bookie.cookie.instance
        del disk.files[lost]
        with pytest.raises(CookieMismatch):
            async with node():
                pass
        async with node(repair_damage=True) as bookie:
            assert bookie.cookie.instance == instance
            assert bookie.engine.loss_marks.now.fenced_through == -1, "no ledger was made yet"
