"""Clients choose bookies that speak their version of the protocol, and say so if too few do."""

from __future__ import annotations

import attrs
import cbor2
import pytest
from trio.testing import MockClock

from ledgerlog.cli.bookie import bookie_states
from ledgerlog.cluster import Cluster
from ledgerlog.errors import BookieReadOnly, IncompatibleVersion, NotEnoughBookies
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.codec import encode_record
from ledgerlog.model.layout import REPAIR_SETTINGS, ledger_path, read_only_path, snapshots_path, writable_path
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.model.quorum import Replication
from ledgerlog.model.snapshots import ListedSnapshot
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.memory_cluster import Client, eventually, open_cluster
from ledgerlog.versions import SPOKEN

FUTURE = ProtocolSupport(SPOKEN.highest + 1, SPOKEN.highest + 2, ("later",))
R332 = Replication(3, 3, 2)


async def register(client: Client, bookie_id: str, support: ProtocolSupport, *, read_only: bool) -> None:
    """Register a bookie that serves nowhere."""
    path = read_only_path(bookie_id) if read_only else writable_path(bookie_id)
    await client.store.create(path, BookieInfo(bookie_id, f"{bookie_id}:1", "i", speaks=support).encode())
    await client.opened.bookies.refresh()


async def test_a_bookie_of_another_version_is_not_chosen(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        directory = client.opened.bookies
        await register(client, "b9", FUTURE, read_only=False)
        assert {info.bookie_id for info in directory.writable()} == {"b1", "b2", "b3"}
        assert {info.bookie_id for info in directory.registered()} == {"b1", "b2", "b3", "b9"}
        assert directory.is_registered("b9"), "repair does not take it for lost"
        for _ in range(20):
            assert {*directory.choose(3, write_quorum=3)} == {"b1", "b2", "b3"}
        found = directory.replacements(["b1", "b2", "b3"], [0], write_quorum=3, even_doubtful=True)
        assert found == {}


async def test_too_few_bookies_of_this_version_says_which_were_left_out(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        directory = client.opened.bookies
        await register(client, "b9", FUTURE, read_only=False)
        told = rf"left out, because this client speaks protocol {SPOKEN}: b9 \({FUTURE}\)"
        with pytest.raises(NotEnoughBookies, match=told):
            directory.choose(4, write_quorum=3)
        with pytest.raises(NotEnoughBookies, match=told):
            await directory.wait_writable(4)
        assert told.replace("\\", "") in str(directory.why_no_replacement(["b1", "b2", "b3"]))
        assert "left out" not in str(directory.why_no_replacement(["b1", "b2", "b3", "b9"]))


async def test_a_read_only_bookie_of_another_version_makes_up_for_nothing(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        await register(client, "b9", FUTURE, read_only=True)
        with pytest.raises(NotEnoughBookies) as caught:
            client.opened.bookies.choose(4, write_quorum=3)
        assert not isinstance(caught.value, BookieReadOnly)


async def test_a_bookie_of_another_version_is_not_called(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        directory = client.opened.bookies
        await register(client, "b9", FUTURE, read_only=False)
        with pytest.raises(IncompatibleVersion, match=f"bookie b9 speaks protocol {FUTURE}; this"):
            await directory.resolve("b9")


async def test_a_bookie_that_was_upgraded_is_called_before_the_view_says_so(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        directory = client.opened.bookies
        await register(client, "b9", FUTURE, read_only=False)
        info = next(info for info in directory.registered() if info.bookie_id == "b9")
        node = await client.store.get(writable_path("b9"))
        assert node is not None
        upgraded = attrs.evolve(info, speaks=SPOKEN)
        await client.store.set(writable_path("b9"), upgraded.encode(), version=node.version)
        assert await directory.resolve("b9") == upgraded


async def test_a_registration_of_version_0_1_is_chosen(clock: MockClock) -> None:
    async with open_cluster(2) as cluster, cluster.client() as client:
        fields = cbor2.loads(BookieInfo("b9", "b9:1", "i").encode())
        for name in ("protocol", "protocol_max", "features"):
            del fields[name]
        await client.store.create(writable_path("b9"), encode_record(fields))
        await client.opened.bookies.refresh()
        assert {*client.opened.bookies.choose(3, write_quorum=3)} == {"b1", "b2", "b9"}


async def test_the_list_of_bookies_shows_one_of_another_version_as_incompatible(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        await register(client, "b9", FUTURE, read_only=False)
        states = {state.bookie_id: state for state in await bookie_states(Cluster("memory:", client.opened))}
        assert states["b1"].state == "writable"
        assert states["b1"].speaks == SPOKEN
        assert states["b9"].state == "incompatible"
        assert states["b9"].words == f"incompatible: it speaks protocol {FUTURE}, this command {SPOKEN}"


async def test_a_session_knows_what_both_ends_agreed_on(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(R332)
        connections = [client.opened.pool.connection(bookie) for bookie in ("b1", "b2", "b3")]
        await eventually(lambda: all(connection.is_connected for connection in connections))
        for connection in connections:
            assert connection.agreed == SPOKEN.common(SPOKEN)
        await writer.close()


async def test_recovery_keeps_the_keys_of_a_later_version_in_a_ledgers_metadata(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await open_ledger_of_a_later_version(client)
        await client.ledgers.open(ledger_id, recover=True)
        node = await client.store.get(ledger_path(ledger_id))
        assert node is not None
        fields = cbor2.loads(node.value)
        assert fields["state"] == "CLOSED"
        assert fields["later"] == "kept"


async def test_moving_a_cursor_keeps_the_keys_of_a_later_version(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        log = await Cluster("memory:", client.opened).create_log("orders", replication=R332)
        cursor = log.cursor("billing")
        await cursor.move(1, expected=None)
        (path,) = [f"cursors/{name}/billing" for name in await client.store.children("cursors")]
        await add_key(client, path)
        await cursor.move(2, expected=await cursor.get())
        assert await key_of(client, path) == "kept"


async def test_a_change_of_the_list_of_snapshots_keeps_the_keys_of_a_later_version(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        snapshots = SnapshotList(client.store, 7)
        await snapshots.change(lambda listed: [*listed, ListedSnapshot(1, 2)])
        await add_key(client, snapshots_path(7))
        await snapshots.change(lambda listed: [*listed, ListedSnapshot(3, 4)])
        assert await key_of(client, snapshots_path(7)) == "kept"


async def test_a_change_of_the_settings_of_repair_keeps_the_keys_of_a_later_version(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        queue = RepairQueue(client.opened)
        await queue.change_settings(lambda now: attrs.evolve(now, grace_ms=1))
        await add_key(client, REPAIR_SETTINGS)
        await queue.change_settings(lambda now: attrs.evolve(now, grace_ms=2))
        assert await key_of(client, REPAIR_SETTINGS) == "kept"


async def add_key(client: Client, path: str) -> None:
    node = await client.store.get(path)
    assert node is not None
    value = encode_record({**cbor2.loads(node.value), "later": "kept"})
    await client.store.set(path, value, version=node.version)


async def key_of(client: Client, path: str) -> object:
    node = await client.store.get(path)
    assert node is not None
    return cbor2.loads(node.value).get("later")


async def open_ledger_of_a_later_version(client: Client) -> int:
    writer = await client.ledgers.create(R332)
    await writer.append(b"one")
    await add_key(client, ledger_path(writer.ledger_id))
    return writer.ledger_id
