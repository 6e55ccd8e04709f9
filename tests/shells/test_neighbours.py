"""What a bookie does for a greedy client between two chances of its neighbour, counted in bytes and items.

A neighbour waits for the pass of the event loop in which its add arrives, for the sync, and for what others
have done in these passes. So each test counts the work for the greedy client in each pass. No time is looked
at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from raw_client import RawClient, add
from serving import Bookie, Machine
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.core.examining import Examination
from bookie.core.reading import RangeLister, RangeReader
from bookie.server.connection import Connection
from bookie.server.requests import Requests
from bookie.server.shared import Shared
from bookie.storage.disk.disk import Disk
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from ledgerlog import limits
from ledgerlog.limits import KIB, MIB, PARTY_UNSYNCED_BYTES, TURN_BYTES, TURN_FRAMES, TURN_REQUEST_BYTES
from ledgerlog.model.principal import Principal
from ledgerlog.net.local import LocalNetwork
from ledgerlog.testing.faulty_disk import FaultyDisk, Gate
from ledgerlog.wire.frame import FrameBuffer, Kind, Status, encode_head

GREEDY, NEIGHBOUR = map(Principal.parse, ("admin/greedy", "admin/neighbour"))
L, OWN, MINE = 7, 8, 9
RUN_BYTES = 64 * KIB
RUNS = 48


@attrs.define
class Scene:
    """A bookie with a ledger of ``RUNS`` runs, a neighbour that has just added, and what was done."""

    machine: Machine
    bookie: Bookie
    neighbour: RawClient
    done: list[int] = attrs.Factory(list)
    """The sizes of the pieces of work that ``counts`` saw."""
    added: int = 0
    kept: list[RawClient] = attrs.Factory(list)
    """All connections: one that nobody refers to is closed."""

    async def greedy(self) -> RawClient:
        """One more connection of the greedy client."""
        self.kept.append(await connection(self.machine, self.bookie, GREEDY))
        return self.kept[-1]

    async def add(self) -> None:
        """Add an entry of the neighbour's."""
        self.added += 1
        await self.neighbour.add(MINE, self.added - 1, [b"n"], lac=self.added - 2)
        await self.neighbour.acknowledged(self.added)

    async def passes(self) -> list[int]:
        """Let the bookie work until it is done. Return the sizes of the work in each pass."""
        found: list[int] = []
        idle = 0
        while idle < 20:
            before = len(self.done)
            await trio.lowlevel.checkpoint()
            found.append(sum(self.done[before:]))
            idle = 0 if found[-1] else idle + 1
        return found


async def connection(machine: Machine, bookie: Bookie, principal: Principal) -> RawClient:
    assert isinstance(machine.network, LocalNetwork)
    client = RawClient(await machine.network.connect(bookie.node.address, principal=principal))
    assert (await client.hello())[0] is Status.OK
    return client


@asynccontextmanager
async def scene(disk: Disk | None = None) -> AsyncIterator[Scene]:
    machine = Machine(disk=disk or MemoryDisk(), network=LocalNetwork(buffer_bytes=8 * MIB))
    async with machine.bookie() as bookie:
        filler = await bookie.client()
        for number in range(RUNS):
            await filler.add(L, 16 * number, [bytes(RUN_BYTES // 16)] * 16, lac=16 * number - 1)
        await filler.acknowledged(RUNS)
        filler.stream.close()
        made = Scene(machine, bookie, await connection(machine, bookie, NEIGHBOUR))
        await made.add()
        await wait_all_tasks_blocked()
        yield made


def counted(
    monkeypatch: pytest.MonkeyPatch, done: list[int], owner: type, name: str, size: Callable[..., int]
) -> None:
    """Have ``done`` grow with each call of a method, by what ``size`` says of its arguments and result."""
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        done.append(size(result, *args))
        return result

    monkeypatch.setattr(owner, name, call)


def read(number: int) -> bytes:
    return encode_head(Kind.READ, count=1, request=number, ledger_id=L, first=0, last=1 << 30, argument=MIB)


async def test_reads_of_many_connections_are_done_a_piece_at_a_time(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied costs a quarter, so a turn is four times as many bytes, and a run."""
    async with scene() as it:
        counted(
            monkeypatch, it.done, RangeReader, "on_entries", lambda _result, _self, run, *_rest: run.length
        )
        for _ in range(8):
            (await it.greedy()).stream.send_nowait([read(number) for number in range(1, 6)])
        passes = await it.passes()
        assert sum(passes) >= 8 * MIB, "it was served"
        # Two turns may adjoin: the order in which tasks run changes.
        assert max(passes) <= 2 * (4 * TURN_BYTES + 2 * RUN_BYTES)


async def test_lists_of_many_connections_are_done_a_piece_at_a_time(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.storage.engine.reader._EFFORT_COST", TURN_BYTES // 16)
    async with scene() as it:
        counted(monkeypatch, it.done, RangeLister, "add", lambda *_: 1)
        for client in [await it.greedy() for _ in range(8)]:
            client.stream.send_nowait([encode_head(Kind.LIST, request=n, ledger_id=L) for n in range(1, 6)])
        passes = await it.passes()
        assert sum(passes) == 8 * 5 * RUNS
        assert max(passes) <= 2 * 2 * 16, "a turn is sixteen runs, and so is a piece"


async def test_infos_of_many_connections_are_paid_for(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as it:
        counted(monkeypatch, it.done, Shared, "figures", lambda *_: 1)
        for client in [await it.greedy() for _ in range(8)]:
            client.stream.send_nowait([encode_head(Kind.INFO, request=number) for number in range(1, 21)])
        passes = await it.passes()
        assert sum(passes) == 8 * 20
        # A turn of 64 KiB pays for five, and parts of three turns may come together.
        assert max(passes) <= 3 * (TURN_BYTES // (3 * TURN_REQUEST_BYTES) + 1)


async def test_a_scrub_is_done_a_piece_at_a_time_and_paid_for(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.storage.engine.reader._RUN_COST", 3 * TURN_BYTES)
    async with scene() as it:
        counted(monkeypatch, it.done, Examination, "add", lambda *_: 1)
        scrub = encode_head(
            Kind.SCRUB, count=1, request=1, ledger_id=L, first=0, last=1 << 30, argument=8 * MIB
        )
        (await it.greedy()).stream.send_nowait([scrub])
        passes = await it.passes()
        assert sum(passes) == RUNS
        assert max(passes) == 1
        assert len(passes) >= 4 * RUNS, "each run costs four turns"


async def test_one_party_waits_with_one_scrub_in_the_line_of_all(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as it:
        counted(monkeypatch, it.done, Examination, "close", lambda *_: 1)
        asked = {"count": 1, "ledger_id": L, "first": 0, "last": 1 << 30, "argument": 8 * MIB}
        for greedy in [await it.greedy() for _ in range(4)]:
            greedy.stream.send_nowait([encode_head(Kind.SCRUB, request=n, **asked) for n in range(1, 9)])
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        await it.neighbour.ask(Kind.SCRUB, **asked)
        # One that was under way, the neighbour's own, and one that began meanwhile.
        assert len(it.done) <= 3


async def test_frames_of_many_connections_are_taken_apart_a_turn_at_a_time(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames cost as much to take apart as to handle. So they lie in the buffer until the party's turn."""
    async with scene() as it:
        clients = [await it.greedy() for _ in range(32)]
        for number, client in enumerate(clients):
            frames = [b"".join(bytes(part) for part in add(20 + number, n, [b"x"])) for n in range(400)]
            client.stream.send_nowait(frames)
        counted(monkeypatch, it.done, FrameBuffer, "take_frames", lambda result, *_: len(result))
        passes = await it.passes()
        assert sum(passes) == 32 * 400
        # Two turns may adjoin, and each may begin the last frames of one buffer and the first of another.
        assert max(passes) <= 2 * 2 * TURN_FRAMES


async def test_connections_that_waited_for_room_go_on_a_turn_at_a_time(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are woken when the journal has room again."""
    async with scene() as it:
        clients = [await it.greedy() for _ in range(32)]
        room = trio.Event()

        async def wait_room(_engine: Engine) -> bool:
            await room.wait()
            return True

        monkeypatch.setattr(Engine, "has_room_for", lambda _engine, _size: room.is_set())
        monkeypatch.setattr(Engine, "wait_room", wait_room)
        for number, client in enumerate(clients):
            client.stream.send_nowait(
                [bytes(part) for n in range(64) for part in add(20 + number, n, [b"x"])]
            )
        await wait_all_tasks_blocked()
        counted(monkeypatch, it.done, Connection, "_on_add", lambda *_: 1)
        room.set()
        passes = await it.passes()
        assert sum(passes) == 32 * 64
        assert max(passes) <= 2 * 2 * TURN_FRAMES


async def test_a_party_that_shares_the_bookie_puts_few_unsynced_bytes_before_its_neighbours_add(
    clock: MockClock,
) -> None:
    """However many connections add as fast as they can, while the disk does not answer."""
    disk = FaultyDisk()
    async with scene(disk) as it:
        clients = [await it.greedy() for _ in range(8)]
        disk.faults.append(gate := Gate("write_sync"))
        await it.neighbour.add(MINE, it.added, [b"n"], lac=it.added - 1)  # The bookie is shared from now on.
        for number, client in enumerate(clients):
            for n in range(20):
                client.stream.send_nowait([bytes(part) for part in add(20 + number, n, [bytes(64 * KIB)])])
        await wait_all_tasks_blocked()
        party = it.bookie.node.server._shared.fair.enter(it.neighbour.stream.peer, GREEDY)
        engine = it.bookie.node.server._shared.engine
        waiting = engine.statistics()["pending_bytes"]
        assert PARTY_UNSYNCED_BYTES <= waiting < PARTY_UNSYNCED_BYTES + 64 * KIB + 8 * KIB
        gate.open()
        for client in clients:
            await client.acknowledged(20)
        await it.neighbour.acknowledged(it.added + 1)
        assert not party.unsynced_bytes


async def test_a_party_alone_fills_the_journal(clock: MockClock) -> None:
    disk = FaultyDisk()
    async with scene(disk) as it:
        client = await it.greedy()
        await trio.sleep(10)
        disk.faults.append(gate := Gate("write_sync"))
        for n in range(64):
            client.stream.send_nowait([bytes(part) for part in add(20, n, [bytes(64 * KIB)])])
        await wait_all_tasks_blocked()
        assert it.bookie.node.server._shared.engine.statistics()["pending_bytes"] > 64 * 64 * KIB
        gate.open()
        await client.acknowledged(64)


@pytest.mark.parametrize("keeps_one", [True, False])
async def test_the_unsynced_bytes_of_connections_that_end_count_until_their_sync(
    clock: MockClock, keeps_one: bool
) -> None:
    """Otherwise a party that connects, adds and ends its connection, again and again, fills the journal."""
    disk = FaultyDisk()
    async with scene(disk) as it:
        fair, engine = (getattr(it.bookie.node.server._shared, name) for name in ("fair", "engine"))
        kept = [await it.greedy()] if keeps_one else []
        disk.faults.append(gate := Gate("write_sync"))
        await it.neighbour.add(MINE, it.added, [b"n"], lac=it.added - 1)
        for number in range(20, 30):
            client = await it.greedy()
            for n in range(4):
                client.stream.send_nowait([bytes(part) for part in add(number, n, [bytes(64 * KIB)])])
            await wait_all_tasks_blocked()
            client.stream.close()
            await wait_all_tasks_blocked()
        waiting = engine.statistics()["pending_bytes"]
        assert PARTY_UNSYNCED_BYTES <= waiting < PARTY_UNSYNCED_BYTES + 64 * KIB + 8 * KIB
        (party,) = (found for (principal, _), found in fair._parties.items() if principal == GREEDY)
        assert party.own.connections - party.own.greeted == 2, "the first two have ended, the others wait"
        last = await it.greedy()
        last.stream.send_nowait([bytes(part) for part in add(21, 9, [bytes(64 * KIB)])])
        await wait_all_tasks_blocked()
        gate.open()
        await last.acknowledged(1)
        await wait_all_tasks_blocked()
        assert not party.unsynced_bytes
        assert party.own.connections == party.own.greeted == len(kept) + 1
        for client in [*kept, last]:
            client.stream.close()
        await wait_all_tasks_blocked()
        assert all(principal != GREEDY for principal, _ in fair._parties)
        assert GREEDY not in fair._principals


async def test_a_neighbour_waits_for_a_few_turns_of_a_flood_on_many_connections(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as it:
        fair = it.bookie.node.server._shared.fair
        counted(monkeypatch, it.done, type(fair._shares), "pay", lambda _r, _s, _party, cost, **_: cost)
        clients = [await it.greedy() for _ in range(16)]
        for client in clients:
            client.stream.send_nowait([read(number) for number in range(1, 200)])
        for _ in range(20):
            before = it.bookie.node.server._shared.engine.statistics()["runs_read_from_memory"]
            await it.add()
            after = it.bookie.node.server._shared.engine.statistics()["runs_read_from_memory"]
            # To the bookie, to the journal's task, and back: a few passes, with a turn of four runs each.
            assert after - before <= 8 * 6


async def test_a_client_that_reads_no_reply_has_the_bookie_read_little(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(network=LocalNetwork(buffer_bytes=KIB))
    async with machine.bookie() as bookie:
        filler = await bookie.client()
        for number in range(RUNS):
            await filler.add(L, 16 * number, [bytes(RUN_BYTES // 16)] * 16, lac=16 * number - 1)
        await filler.acknowledged(RUNS)
        greedy = await connection(machine, bookie, GREEDY)
        done: list[int] = []
        counted(monkeypatch, done, Requests, "_reply", lambda *_: 1)
        numbers = [
            await greedy.request(Kind.READ, count=1, ledger_id=L, first=0, last=1 << 30, argument=MIB)
            for _ in range(30)
        ]
        await wait_all_tasks_blocked()
        assert len(done) <= limits.BOOKIE_CONNECTION_WORKING + 1
        for number in numbers:
            assert (await greedy.reply_to(number)).header.status == Status.OK
        assert len(done) == 30, "who reads on is served on"


async def test_a_client_that_asks_much_and_leaves_ends_few_tasks(clock: MockClock) -> None:
    async with scene() as it:
        asked = limits.BOOKIE_CONNECTION_REQUESTS - 1
        greedy = await it.greedy()
        greedy.stream.send_nowait([read(number) for number in range(1, asked)])
        (connection_,) = [c for c in it.bookie.node.server._connections if c.principal == GREEDY]
        while connection_._requests.under_way < asked // 2:
            await trio.lowlevel.checkpoint()
        assert connection_._nursery is not None
        assert len(connection_._nursery.child_tasks) <= 2 + limits.BOOKIE_CONNECTION_WORKING
        greedy.stream.close()
        await wait_all_tasks_blocked()
        assert it.bookie.node.server._shared.fair.requests == 0
        assert it.bookie.node.server._shared.fair.reply_bytes == 0


async def test_answers_without_data_that_nobody_reads_are_bounded(clock: MockClock) -> None:
    """Each holds memory, and no bytes of the budgets. So the bookie stops reading from such a client."""
    machine = Machine(network=LocalNetwork(buffer_bytes=KIB))
    async with machine.bookie() as bookie:
        greedy = await connection(machine, bookie, GREEDY)
        with trio.move_on_after(1):
            for _ in range(5_000):
                await greedy.request(Kind.FENCE, ledger_id=1 << 40)
        (connection_,) = bookie.node.server._connections
        # What was begun is still answered.
        each = 512 + 96
        most = limits.BOOKIE_CONNECTION_ANSWER_BYTES + each * (
            limits.BOOKIE_CONNECTION_REQUESTS + TURN_FRAMES
        )
        assert 0 < connection_._outbox.answer_bytes <= most
