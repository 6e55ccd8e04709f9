"""A writer tells slow bookies from bookies that it cannot reach."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import ADD_TIMEOUT_S, FRAME_BYTES_TARGET, REACH_LOST_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.testing.faulty_disk import DiskCall, Gate, GoOn
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster

R332 = Replication(3, 3, 2)


def losses(client: Client) -> int:
    """How many connections with bookies were lost so far."""
    return sum(one.losses for one in client.opened.pool.statistics().connections)


def stalled(writer: LedgerWriter) -> bool:
    return writer.last_add_confirmed < writer.last_add_pushed


async def blocked(cluster: MemoryCluster, writer: LedgerWriter, bookies: list[BookieId]) -> list[Gate]:
    """Stop the disks of bookies, and append until they read nothing more from any client."""
    gates = []
    for bookie in bookies:
        gates.append(Gate("write_sync"))
        cluster.bookies[bookie].disk.faults.append(gates[-1])
    payload = bytes(FRAME_BYTES_TARGET)
    while any(cluster.bookies[bookie].node.engine.has_room for bookie in bookies):
        writer.push([payload])
        await trio.testing.wait_all_tasks_blocked()
    writer.push([payload])
    return gates


async def slow(call: DiskCall, go_on: GoOn) -> Any:
    """A fault: a sync takes a tenth of a second."""
    if call.verb == "write_sync":
        await trio.sleep(0.1)
    return await go_on()


async def test_a_bookie_that_reads_nothing_more_for_want_of_room_is_slow_and_not_out_of_reach(
    clock: MockClock,
) -> None:
    """The bookie answers no request of the connections that it does not read."""
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        gates = await blocked(cluster, writer, ["b1", "b2", "b3"])
        with pytest.raises(trio.TooSlowError), trio.fail_after(ADD_TIMEOUT_S - 1):
            await writer.flush()
        assert losses(client) == 0
        assert writer.out_of_reach is None
        for gate in gates:
            gate.open()
        await writer.flush()
        assert losses(client) == 0
        await writer.aclose()


async def test_slow_disks_break_no_connection_off(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        for _ in range(3):
            gates = [Gate("write_sync") for _ in cluster.bookies]
            for gate, bookie in zip(gates, cluster.bookies.values(), strict=True):
                bookie.disk.faults = [gate]
            entry_id = writer.push([b"y"])
            await trio.sleep(ADD_TIMEOUT_S - 1)
            assert stalled(writer)
            assert writer.out_of_reach is None
            for gate in gates:
                gate.open()
            await writer.wait_confirmed(entry_id)
        assert losses(client) == 0
        await writer.aclose()


async def test_a_bookie_with_as_many_connections_as_it_takes_is_not_out_of_reach(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        for bookie in cluster.bookies.values():
            bookie.disk.faults = [Gate("write_sync")]
            monkeypatch.setattr(bookie.node.server, "_connections_max", 0)
        writer.push([b"y"])
        await trio.sleep(ADD_TIMEOUT_S - 1)
        assert losses(client) == 0
        assert writer.out_of_reach is None
        await writer.aclose()


async def test_while_an_ack_quorum_acknowledges_nobody_is_asked(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await eventually(lambda: client.opened.pool.statistics().connected == 3)
        before = cluster.network.connects
        cluster.network.stall(client.host, writer.metadata.last_fragment.ensemble[0])
        for bookie in cluster.bookies.values():  # So appends are under way at every look.
            bookie.disk.faults.append(slow)
        began = trio.current_time()
        while trio.current_time() - began < ADD_TIMEOUT_S - 1:
            writer.push([b"x"])
            await trio.sleep(0.05)
            assert stalled(writer)
        assert writer.last_add_pushed - writer.last_add_confirmed < 10
        assert cluster.network.connects == before
        assert losses(client) == 0
        await writer.aclose()


@pytest.mark.parametrize("cut", list(itertools.combinations(["b1", "b2", "b3", "b4"], 2)))
@pytest.mark.parametrize("spares_known", [False, True])
async def test_two_of_four_bookies_cut_off_cost_little_more_than_a_second(
    clock: MockClock, cut: tuple[str, str], spares_known: bool
) -> None:
    """No bookie answers, and no connection breaks."""
    async with open_cluster(4) as cluster, cluster.client() as client:
        if spares_known:  # Connections with all bookies stand.
            for _ in range(8):
                async with await client.ledgers.create(replication=R332) as other:
                    await other.append(b"x")
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        for bookie in cut:
            cluster.network.stall(client.host, bookie)
        began = trio.current_time()
        for _ in range(20):
            await writer.append(b"y")
        assert trio.current_time() - began < 1.5
        assert writer.out_of_reach is None
        await writer.aclose()


async def test_after_a_pause_the_first_append_that_meets_the_cut_waits_no_longer(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(30)
        for bookie in writer.metadata.last_fragment.ensemble[:2]:
            cluster.network.stall(client.host, bookie)
        await trio.sleep(30.3)
        began = trio.current_time()
        await writer.append(b"y")
        assert trio.current_time() - began < 1.5
        await writer.aclose()


@pytest.mark.parametrize("fault", ["stall", "cut"])
async def test_a_writer_says_what_it_cannot_reach_until_it_can(
    clock: MockClock, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        told = []
        writer.set_reach_callback(lambda: told.append(writer.out_of_reach))
        for bookie in cluster.bookies:
            getattr(cluster.network, fault)(client.host, bookie)
        began = trio.current_time()
        entry_id = writer.push([b"y"])
        await eventually(lambda: bool(told))
        assert REACH_LOST_S - 0.01 < trio.current_time() - began < REACH_LOST_S + 0.3
        assert told[0] is not None
        assert told[0] == writer.out_of_reach
        assert set(told[0].bookies) == {"b1", "b2", "b3", "b4"}
        assert told[0].needed == 2
        assert "no ack quorum is in reach" in caplog.text
        await trio.sleep(3)
        assert writer.out_of_reach is not None
        cluster.network.heal()
        await writer.wait_confirmed(entry_id)
        assert writer.out_of_reach is None
        assert told[-1] is None
        await writer.aclose()


async def test_a_bookie_that_is_asked_by_many_at_once_is_greeted_once(clock: MockClock) -> None:
    async with open_cluster(1) as cluster, cluster.client() as client:
        pool = client.opened.pool
        signs: list[BookieId] = []
        before = cluster.network.connects
        for _ in range(100):
            pool.ask("b1", signs.append)
        await eventually(lambda: len(signs) == 100)
        assert cluster.network.connects == before + 1
        assert cluster.bookies["b1"].node.server.connections == 0


async def test_who_is_not_there_or_is_somebody_else_gives_no_sign(clock: MockClock) -> None:
    async with open_cluster(2) as cluster, cluster.client() as client:
        pool = client.opened.pool
        signs: list[BookieId] = []
        await cluster.bookies["b1"].stop()
        listener = await cluster.network.at("b1").listen("b1")
        pool.ask("b1", signs.append)  # A listener that accepts and sends nothing.
        pool.ask("b3", signs.append)  # Nobody has heard of it.
        await trio.sleep(5)
        assert signs == []
        stream = await listener.accept()
        with pytest.raises(ConnectionLost):
            await stream.send_all([b"x"])
        listener.close()


async def test_a_writer_that_rested_finds_out_as_soon_as_a_busy_one(clock: MockClock) -> None:
    """An idle writer looks at no clock. Its next add must make it look again."""
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(10)
        for bookie in writer.metadata.last_fragment.ensemble[:2]:
            cluster.network.stall(client.host, bookie)
        writer.push([b"y"])
        with trio.fail_after(REACH_LOST_S + 1):
            await eventually(lambda: writer.out_of_reach is not None)
        await writer.aclose()


async def test_a_spare_that_fences_the_ledger_is_no_spare(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        members = writer.metadata.last_fragment.ensemble
        (spare,) = {*cluster.bookies} - {*members}
        await cluster.bookies[spare].lose_disk()
        await cluster.bookies[spare].start()
        info = cluster.bookies[spare].node.info
        assert info.fences_through == writer.ledger_id
        await eventually(lambda: info in client.opened.bookies.writable())
        for member in members[:2]:
            cluster.network.stall(client.host, member)
        writer.push([b"y"])
        await eventually(lambda: writer.out_of_reach is not None)
        assert writer.out_of_reach is not None
        assert {*writer.out_of_reach.bookies} == {*members[:2]}
        await writer.aclose()
