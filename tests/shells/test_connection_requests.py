"""Requests over a connection: pairing, deadlines, cancellation, losses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from scripted_bookie import Peer, Scene, opened_scene

from bookie.storage.engine.config import StorageConfig
from ledgerlog.errors import BookieUnavailable
from ledgerlog.limits import MIB, RECONNECT_DELAY_MIN_S
from ledgerlog.model.quorum import Replication
from ledgerlog.net import session as session_module
from ledgerlog.net.connection import BookieConnection
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.pool import open_pool
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.testing.memory_cluster import open_cluster
from ledgerlog.wire.entries import Entries, decode_entries_untrusted
from ledgerlog.wire.frame import RECOVERY, REPLY, Frame, Kind, Status, encode_head


@pytest.fixture(params=["local", "tcp"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    network, address = (
        (LocalNetwork(), "bookie:0") if request.param == "local" else (TcpNetwork(), "127.0.0.1:0")
    )
    async with opened_scene(network, address) as scene:
        yield scene


@pytest.fixture
async def local_scene() -> AsyncIterator[Scene]:
    async with opened_scene(LocalNetwork(), "bookie:0") as scene:
        yield scene


class Ask:
    """A request in a task of its own, and what came of it."""

    def __init__(
        self, scene: Scene, nursery: trio.Nursery, kind: Kind = Kind.READ_LAC, **fields: Any
    ) -> None:
        self.frame: Frame | None = None
        self.error: BookieUnavailable | None = None
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        nursery.start_soon(self._run, partial(scene.connection.request, kind, **{"timeout_s": 60, **fields}))

    async def _run(self, call: Any) -> None:
        with self.scope:
            try:
                self.frame = await call()
            except BookieUnavailable as error:
                self.error = error
        self.over.set()

    async def answer(self) -> Frame:
        await self.over.wait()
        assert self.frame is not None, self.error
        return self.frame

    async def failure(self) -> str:
        await self.over.wait()
        assert self.error is not None
        return str(self.error)


async def test_a_request_connects_by_itself_and_carries_its_fields(scene: Scene) -> None:
    key = bytes(range(16))
    async with trio.open_nursery() as nursery:
        ask = Ask(
            scene,
            nursery,
            Kind.READ,
            flags=RECOVERY,
            count=3,
            ledger_id=7,
            first=10,
            last=40,
            lac=9,
            lafr=8,
            argument=1000,
            wait_ms=250,
            key=key,
        )
        peer = await scene.bookie.next()
        request = (await peer.next_frame()).header
        assert request.kind == Kind.READ
        assert (request.flags, request.entry_count, request.ledger_id) == (RECOVERY, 3, 7)
        assert (request.first, request.last, request.lac, request.lafr) == (10, 40, 9, 8)
        assert (request.argument, request.wait_ms, request.key) == (1000, 250, key)
        await peer.send(
            encode_head(Kind.READ | REPLY, request=request.request, ledger_id=7, status=Status.UNKNOWN)
        )
        assert (await ask.answer()).header.status == Status.UNKNOWN


async def test_replies_find_their_requests_in_any_order(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        asks = {ledger_id: Ask(scene, nursery, ledger_id=ledger_id) for ledger_id in range(20)}
        peer = await scene.bookie.next()
        requests = [await peer.next_frame() for _ in asks]
        for request in reversed(requests):
            await peer.reply(request, lac=request.header.ledger_id * 10)
        for ledger_id, ask in asks.items():
            assert (await ask.answer()).header.lac == ledger_id * 10


async def test_a_reply_belongs_to_its_caller(scene: Scene) -> None:
    entries = Entries.build(7, 0, [bytes([n]) * 1000 for n in range(50)])
    async with trio.open_nursery() as nursery:
        ask = Ask(scene, nursery, Kind.READ, ledger_id=7)
        peer = await scene.bookie.next()
        request = await peer.next_frame()
        head = encode_head(
            Kind.READ | REPLY,
            request=request.header.request,
            ledger_id=7,
            count=50,
            first=0,
            last=49,
            index=entries.index_part(),
            payload_bytes=len(entries.payload),
        )
        await peer.send(head, entries.payload)
        first = await ask.answer()
        # A megabyte of other replies goes through the same buffer afterwards.
        for _ in range(20):
            ask = Ask(scene, nursery, Kind.READ, ledger_id=7)
            request = await peer.next_frame()
            await peer.reply(request, first=-1, last=-1)
            await ask.answer()
            ask = Ask(scene, nursery, Kind.LIST, ledger_id=7)
            request = await peer.next_frame()
            await peer.reply(request, index=bytes(50_000))
            await ask.answer()
    assert decode_entries_untrusted(first).first_damaged() is None


async def test_a_time_out_names_the_bookie_and_the_late_reply_is_dropped(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        ask = Ask(scene, nursery, Kind.FENCE, timeout_s=2.5)
        peer = await scene.bookie.next()
        request = await peer.next_frame()
        failure = await ask.failure()
        assert trio.current_time() - started == pytest.approx(2.5)
        assert failure == f"bookie b1 at {scene.bookie.address}: no answer to FENCE within 2.5 s"
        await peer.reply(request)
        ask = Ask(scene, nursery, Kind.READ_LAC)
        await peer.reply(await peer.next_frame(), lac=5)
        assert (await ask.answer()).header.lac == 5
    assert scene.connection.statistics().connects == 1


async def test_a_second_reply_to_a_request_breaks_the_connection(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        ask = Ask(scene, nursery)
        peer = await scene.bookie.next()
        request = await peer.next_frame()
        await peer.reply(request)
        await ask.answer()
        waiting = Ask(scene, nursery)
        await peer.next_frame()
        await peer.reply(request)
        assert "answers the unknown request 1" in await waiting.failure()


async def test_a_cancelled_request_drops_its_reply_once(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        ask = Ask(scene, nursery)
        peer = await scene.bookie.next()
        request = await peer.next_frame()
        ask.scope.cancel()
        await ask.over.wait()
        assert ask.frame is None
        assert ask.error is None
        await peer.reply(request)
        other = Ask(scene, nursery)
        await peer.reply(await peer.next_frame(), lac=3)
        assert (await other.answer()).header.lac == 3
        last = Ask(scene, nursery)
        await peer.next_frame()
        await peer.reply(request)
        assert "unknown" in await last.failure()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kind": Kind.FENCE | REPLY}, "a message of kind 132 about ledger 7 answers request 1"),
        ({"kind": Kind.READ_LAC}, "a message of kind 6 about ledger 7 answers request 1"),
        ({"kind": Kind.HELLO | REPLY}, "a message of kind 129"),
        ({"ledger_id": 8}, "about ledger 8 answers request 1, of kind 6 about ledger 7"),
        ({"request": 2}, "answers the unknown request 2"),
        ({"request": 0}, "answers the unknown request 0"),
    ],
)
async def test_a_reply_that_does_not_fit_breaks_the_connection(
    scene: Scene, fields: dict[str, Any], why: str
) -> None:
    async with trio.open_nursery() as nursery:
        ask = Ask(scene, nursery, ledger_id=7)
        peer = await scene.bookie.next()
        await peer.next_frame()
        fields = {"kind": Kind.READ_LAC | REPLY, "request": 1, "ledger_id": 7, **fields}
        await peer.send(encode_head(fields.pop("kind"), **fields))
        assert why in await ask.failure()


async def test_a_loss_fails_every_waiting_request_with_its_reason(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        asks = [Ask(scene, nursery) for _ in range(5)]
        peer = await scene.bookie.next()
        for _ in asks:
            await peer.next_frame()
        peer.close()
        for ask in asks:
            failure = await ask.failure()
            assert failure.startswith(f"bookie b1 at {scene.bookie.address}: ")
            assert "closed" in failure or "reset" in failure


async def test_nobody_listening_fails_a_request_at_once(scene: Scene) -> None:
    scene.bookie.listener.close()
    with pytest.raises(
        BookieUnavailable, match=f"bookie b1 at {re.escape(scene.bookie.address)}: cannot connect"
    ):
        await scene.connection.request(Kind.INFO, timeout_s=60)


async def test_an_unregistered_bookie_fails_a_request_with_the_resolvers_reason(scene: Scene) -> None:
    scene.bookie.registered = False
    with pytest.raises(BookieUnavailable, match="b1 is not registered"):
        await scene.connection.request(Kind.INFO, timeout_s=60)


async def test_a_request_does_not_sit_out_the_back_off(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    scene.bookie.registered = False
    for _ in range(10):  # The back-off is at its longest after these.
        started = trio.current_time()
        with pytest.raises(BookieUnavailable):
            await scene.connection.request(Kind.INFO, timeout_s=60)
        assert trio.current_time() - started <= RECONNECT_DELAY_MIN_S + 0.001
    assert scene.bookie.resolved == 10
    scene.bookie.registered = True
    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        ask = Ask(scene, nursery)
        peer = await scene.bookie.next()
        await peer.reply(await peer.next_frame())
        await ask.answer()
        assert trio.current_time() - started <= RECONNECT_DELAY_MIN_S + 0.001


async def test_the_deadline_covers_connecting(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    started = trio.current_time()
    with pytest.raises(BookieUnavailable, match=r"no answer to INFO within 1\.5 s"):
        await scene.connection.request(Kind.INFO, timeout_s=1.5)  # Nobody accepts.
    assert trio.current_time() - started == pytest.approx(1.5)


async def test_a_bookie_that_answers_nothing_for_ever_is_left(
    local_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = local_scene
    monkeypatch.setattr(session_module, "_ABANDONED_MAX", 20)

    async def swallow(peer: Peer) -> None:
        await peer.wait_lost()

    async with trio.open_nursery() as nursery:
        waiting = Ask(scene, nursery)
        nursery.start_soon(swallow, await scene.bookie.next())
        for _ in range(21):
            ask = Ask(scene, nursery)
            await trio.testing.wait_all_tasks_blocked()
            ask.scope.cancel()
        assert "did not answer 21 requests" in await waiting.failure()


async def test_requests_that_wait_fail_when_the_pool_is_left() -> None:
    network = LocalNetwork()
    async with opened_scene(network, "bookie:0") as scene, trio.open_nursery() as nursery:
        async with open_pool(network, scene.bookie.resolve) as pool:
            scene.connection = pool.connection("b1")
            waiting = Ask(scene, nursery)
            peer = await scene.bookie.next()
            await peer.next_frame()
        assert "the connection pool is closed" in await waiting.failure()
        assert "the connection pool is closed" in await Ask(scene, nursery).failure()
        await peer.wait_lost()


async def test_a_reply_stays_what_it_was_when_another_connection_gets_its_memory() -> None:
    config = StorageConfig(segment_bytes=8 * MIB, arenas=2, frame_bytes_max=3 * MIB)
    async with open_cluster(2, config=config) as cluster, cluster.client() as client:
        payloads = [b"1" * 2_000_000, b"2" * 2_000_000]
        writer = await client.ledgers.create(replication=Replication(2, 2, 2))
        await writer.append_many(payloads)
        one, other = (client.opened.pool.connection(bookie) for bookie in ("b1", "b2"))

        async def read(connection: BookieConnection, entry_id: int) -> Frame:
            fields = {"ledger_id": writer.ledger_id, "first": entry_id, "last": entry_id, "count": 1}
            return await connection.request(Kind.READ, timeout_s=60, argument=1, **fields)

        first = await read(one, 0)
        await one.request(Kind.INFO, timeout_s=60)  # With this receive, the large buffer is a spare one.
        second = await read(other, 1)
        assert bytes(second.raw).endswith(payloads[1])
        assert bytes(first.raw).endswith(payloads[0]), "the reply lies in memory that is used again"
        await writer.close()
