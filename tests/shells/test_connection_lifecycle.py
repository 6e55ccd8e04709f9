"""A connection's rounds: handshakes, identities, back-off, idling, leaving the pool."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing
from scripted_bookie import ME, RecordingSink, Scene, ScriptedBookie, opened_scene

from ledgerlog.errors import BookieUnavailable, InvalidArgument, MetadataUnavailable
from ledgerlog.limits import (
    CONNECT_TIMEOUT_S,
    CONNECTION_IDLE_S,
    HANDSHAKE_TIMEOUT_S,
    RECONNECT_DELAY_MAX_S,
    RECONNECT_DELAY_MIN_S,
)
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.pool import open_pool
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.wire.frame import Kind, Status, encode_head
from ledgerlog.wire.hello import Hello, encode_hello_reply
from tests.steps import counted_steps


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened_scene(LocalNetwork(), "bookie:0") as scene:
        yield scene


# --- the handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["local", "tcp"])
async def test_the_client_says_whom_it_means(over: str) -> None:
    network, address = (LocalNetwork(), "b:0") if over == "local" else (TcpNetwork(), "127.0.0.1:0")
    async with (
        opened_scene(network, address) as scene,
        open_pool(network, scene.bookie.resolve, cluster="cluster-1") as pool,
    ):
        sink = RecordingSink()
        pool.connection("b1").attach(sink)
        peer = await scene.bookie.next()
        await sink.until("connected")
        assert peer.hello == Hello(bookie_id="b1", instance="instance-1", cluster="cluster-1")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            encode_hello_reply(Status.OK, attrs.evolve(ME, bookie_id="b2")),
            "another bookie serves at that address: b2",
        ),
        (
            encode_hello_reply(Status.OK, attrs.evolve(ME, instance="instance-2")),
            "b1 instance 'instance-2', but b1 instance 'instance-1' was expected",
        ),
        (
            encode_hello_reply(Status.WRONG_BOOKIE, attrs.evolve(ME, bookie_id="b3")),
            "serves at that address: b3",
        ),
        (
            encode_hello_reply(Status.OK, attrs.evolve(ME, protocol=2, protocol_max=2)),
            "it speaks protocol 2; this version of ledgerlog speaks 1",
        ),
        (encode_hello_reply(Status.BAD_REQUEST, ME), "BAD_REQUEST"),
        (encode_hello_reply(Status.NOT_READY, ME), "NOT_READY"),
        (encode_hello_reply(Status.OK, ME) * 2, "more than HELLO"),
        (encode_hello_reply(Status.OK, ME) + b"\x00", "more than HELLO"),
        (encode_head(Kind.INFO | 0x80), "kind 136 in place of an answer to HELLO"),
        (encode_head(Kind.HELLO | 0x80, index=b"\xa0"), "the field 'protocol' is missing"),
        (encode_head(Kind.HELLO | 0x80, index=bytes(5000)), "a HELLO of 5000 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "out of range"),
        (b"", "closed the connection instead of answering HELLO"),
    ],
    ids=itertools.count(),
)
async def test_whoever_is_not_the_bookie_is_left_with_a_reason(scene: Scene, answer: bytes, why: str) -> None:
    sink = RecordingSink()
    scene.connection.attach(sink)
    peer = await scene.bookie.accept()
    await peer.next_frame()
    await peer.send(answer)
    if not answer:
        peer.close()
    await sink.until("lost")
    assert [call[0] for call in sink.calls] == ["lost", "end"]
    assert why in sink.calls[0][1]
    assert not scene.connection.is_connected
    with pytest.raises(BookieUnavailable, match="bookie b1 at bookie:"):
        await scene.connection.request(Kind.INFO, timeout_s=0.001)


async def test_a_bookie_that_does_not_answer_hello_is_left_in_time(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    sink = RecordingSink()
    started = trio.current_time()
    scene.connection.attach(sink)
    await sink.until("lost")
    assert trio.current_time() - started == pytest.approx(HANDSHAKE_TIMEOUT_S)
    assert "no answer to HELLO" in sink.calls[0][1]


async def test_a_resolver_that_does_not_answer_is_left_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def resolve(bookie_id: BookieId) -> BookieInfo:
        await trio.sleep_forever()
        raise AssertionError

    async with open_pool(LocalNetwork(), resolve) as pool:
        sink = RecordingSink()
        started = trio.current_time()
        pool.connection("b1").attach(sink)
        await sink.until("lost")
        assert trio.current_time() - started == pytest.approx(CONNECT_TIMEOUT_S)
        assert "no connection within 3 s" in sink.calls[0][1]


async def test_asking_for_the_troubles_of_bookies_connects_to_none(scene: Scene) -> None:
    async with open_pool(LocalNetwork(), scene.bookie.resolve) as pool:
        assert pool.troubles(["b1"]) == {}
        assert pool.statistics().connections == ()


async def test_trouble_with_the_metadata_store_and_malformed_addresses_are_failed_attempts() -> None:
    answers = iter(
        [
            MetadataUnavailable("the store is away"),
            BookieInfo("b1", "no port", "i"),
            BookieInfo("b1", "", "i"),
        ]
    )

    async def resolve(bookie_id: BookieId) -> BookieInfo:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with open_pool(TcpNetwork(), resolve) as pool:
        for why in ("the store is away", "'no port' is not an address", "'' is not an address"):
            with pytest.raises(BookieUnavailable, match=why):
                await pool.connection("b1").request(Kind.INFO, timeout_s=5)


# --- coming back ----------------------------------------------------------------------------------


async def attempt_times(seed: int, count: int) -> list[float]:
    async with opened_scene(LocalNetwork(), "bookie:0", seed=seed) as scene:
        scene.bookie.registered = False
        sink = RecordingSink()
        started = trio.current_time()
        times: list[float] = []
        sink.act = lambda _: times.append(trio.current_time() - started)
        scene.connection.attach(sink)
        await sink.until("lost", count)
        assert [call[0] for call in sink.calls] == ["lost", "end"] * count, "once for each attempt"
        return times


async def test_attempts_back_off_up_to_a_bound_with_chance_from_the_given_source(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times = await attempt_times(1, 20)
    delays = [b - a for a, b in itertools.pairwise(times)]
    for failures, delay in enumerate(delays, 1):
        ideal = min(RECONNECT_DELAY_MIN_S * 2**failures, RECONNECT_DELAY_MAX_S)
        assert max(ideal / 2, RECONNECT_DELAY_MIN_S) - 1e-6 <= delay <= ideal + 1e-6
    assert len({round(delay, 6) for delay in delays[8:]}) > 5
    assert await attempt_times(1, 20) == pytest.approx(times)
    assert await attempt_times(2, 20) != pytest.approx(times)


async def test_each_connection_that_is_made_is_a_sign_of_life(scene: Scene) -> None:
    """Otherwise a writer would break it off at once, for the silence before it."""
    sink, peer = await scene.connected_sink()
    assert scene.connection.frames_received == 1
    peer.close()
    await scene.bookie.next()
    await sink.until("connected")
    assert scene.connection.frames_received == 2


async def test_a_bookie_that_moved_is_found_at_its_new_address(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    elsewhere = ScriptedBookie(scene.bookie.network, await scene.bookie.network.listen("elsewhere:0"))
    scene.bookie.info = elsewhere.info
    peer.close()
    await elsewhere.next()
    await sink.until("connected")
    assert scene.connection.statistics().address == elsewhere.address
    elsewhere.close()


async def test_a_connection_that_answers_nothing_is_no_success_for_the_back_off(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    sink = RecordingSink()
    scene.connection.attach(sink)
    started = trio.current_time()
    for _ in range(8):
        (await scene.bookie.next()).close()
    await sink.until("lost", 8)
    assert trio.current_time() - started > 2 * RECONNECT_DELAY_MAX_S
    assert sink.count("connected") == 8


async def test_an_answer_makes_the_next_back_off_short_again(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene.bookie.registered = False
    sink = RecordingSink()
    scene.connection.attach(sink)
    await sink.until("lost", 12)
    scene.bookie.registered = True
    peer = await scene.bookie.next()
    await sink.until("connected")
    scene.send(sink, 0)
    await peer.next_adds(1)
    await peer.acknowledge()
    await sink.until("ok")
    lost = trio.current_time()
    peer.close()
    await scene.bookie.next()
    assert trio.current_time() - lost <= 2 * RECONNECT_DELAY_MIN_S


async def test_a_failing_bookie_is_reported_once_in_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    scene.bookie.registered = False
    sink = RecordingSink()
    with caplog.at_level(logging.INFO, logger="ledgerlog.net"):
        scene.connection.attach(sink)
        await sink.until("lost", 10)
    assert [record.getMessage() for record in caplog.records] == [
        "lost: bookie b1: bookie b1 is not registered"
    ]


async def test_nobody_connects_while_nobody_needs_it(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(100)
    assert scene.bookie.resolved == 0
    sink = RecordingSink()
    scene.bookie.registered = False
    scene.connection.attach(sink)
    await sink.until("lost", 2)
    scene.connection.detach(sink)
    await trio.sleep(10)
    resolved = scene.bookie.resolved
    await trio.sleep(100)
    assert scene.bookie.resolved == resolved


# --- idling ---------------------------------------------------------------------------------------


async def test_a_connection_that_nobody_needs_is_closed_after_a_while_and_made_again(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    sink, peer = await scene.connected_sink()
    await trio.sleep(10 * CONNECTION_IDLE_S)
    assert scene.connection.is_connected, "a sink is attached"
    scene.connection.detach(sink)
    started = trio.current_time()
    await trio.sleep(CONNECTION_IDLE_S / 2)
    scene.connection.attach(sink)
    scene.connection.detach(sink)
    await peer.wait_lost()
    assert 1.5 * CONNECTION_IDLE_S <= trio.current_time() - started <= 1.5 * CONNECTION_IDLE_S + 0.75
    await trio.testing.wait_all_tasks_blocked()
    statistics = scene.connection.statistics()
    assert (statistics.connects, statistics.losses) == (1, 0)
    scene.connection.attach(sink)
    await scene.bookie.next()
    await sink.until("connected")
    assert sink.count("lost") == 0


async def test_an_idle_process_does_not_wake(scene: Scene, autojump_clock: trio.testing.MockClock) -> None:
    sink, peer = await scene.connected_sink()
    scene.send(sink, 0)
    await peer.next_adds(1)
    await peer.acknowledge(1)
    await sink.until("ok")
    await trio.sleep(1)

    with counted_steps() as steps:
        await trio.sleep(3600)
    assert steps.total() < 5, steps


# --- instances ------------------------------------------------------------------------------------


async def test_sinks_never_meet_another_instance_of_their_bookie(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    scene.bookie.info = attrs.evolve(scene.bookie.info, instance="instance-2")
    other = attrs.evolve(ME, instance="instance-2")
    peer.close()
    await sink.until("lost")
    assert scene.pool.connection("b1") is scene.connection
    await scene.bookie.next(other)
    await sink.until("lost", 2)
    assert "its data was replaced: it is instance 'instance-2' now" in sink.calls[-2][1]
    # Everybody else gets a connection to the new one.
    newer = scene.pool.connection("b1")
    assert newer is not scene.connection
    newcomer = RecordingSink()
    newer.attach(newcomer)
    while newcomer.count("connected") == 0:
        await scene.bookie.next(other)
        await trio.testing.wait_all_tasks_blocked()
    assert sink.count("connected") == 0
    # Once the old ones have left, the old connection is as good as any.
    scene.connection.detach(sink)
    late = RecordingSink()
    scene.connection.attach(late)
    while late.count("connected") == 0:
        await scene.bookie.next(other)
        await trio.testing.wait_all_tasks_blocked()


async def test_a_replaced_instance_is_nothing_to_those_who_only_read(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        for instance in ("instance-1", "instance-2"):
            scene.bookie.info = attrs.evolve(scene.bookie.info, instance=instance)

            async def serve(instance: str = instance) -> None:
                peer = await scene.bookie.next(attrs.evolve(ME, instance=instance))
                await peer.reply(await peer.next_frame())
                peer.close()

            nursery.start_soon(serve)
            await scene.connection.request(Kind.INFO, timeout_s=5)
            while scene.connection.is_connected:
                await trio.lowlevel.checkpoint()


async def test_a_sink_that_joins_a_connection_in_use_relies_on_its_instance(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    scene.connection.detach(sink)
    scene.connection.attach(sink)
    scene.bookie.info = attrs.evolve(scene.bookie.info, instance="instance-2")
    peer.close()
    await scene.bookie.next(attrs.evolve(ME, instance="instance-2"))
    await sink.until("lost", 2)
    assert "its data was replaced" in sink.calls[-2][1]


# --- the pool -------------------------------------------------------------------------------------


async def test_everybody_gets_the_same_connection_and_malformed_ids_get_none(scene: Scene) -> None:
    assert scene.pool.connection("b1") is scene.connection
    assert scene.pool.connection("b2") is not scene.connection
    with pytest.raises(InvalidArgument, match="not a bookie id"):
        scene.pool.connection("no id")


async def test_leaving_the_pool_closes_connections_and_calls_no_sink() -> None:
    async with opened_scene(LocalNetwork(), "bookie:0") as scene:
        sink, peer = await scene.connected_sink()
        scene.send(sink, 0)
    assert not scene.connection.is_connected
    assert not sink.calls
    with pytest.raises(ConnectionLost):
        await peer.next_adds(2)


async def test_an_error_in_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with opened_scene(LocalNetwork(), "bookie:0"):
            raise KeyError("mine")


async def test_a_bug_in_a_sink_ends_the_pool() -> None:
    def bug(_: RecordingSink) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with opened_scene(LocalNetwork(), "bookie:0") as scene:
            scene.connection.attach(RecordingSink(act=bug))
            await scene.bookie.next()
            await trio.sleep(5)

    with pytest.raises(BaseExceptionGroup) as caught:
        await scenario()
    assert caught.group_contains(ZeroDivisionError)


async def test_statistics_count_over_the_losses(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(3):
        scene.send(sink, first)
    await peer.next_adds(3)
    await peer.refuse(1)
    await peer.acknowledge(2)
    await sink.until("ok")
    peer.close()
    peer = await scene.bookie.next()
    await sink.until("connected")
    scene.send(sink, 3)
    await peer.next_adds(1)
    statistics = scene.pool.statistics()
    assert (statistics.connected, statistics.unanswered_adds, statistics.queued_bytes) == (1, 1, 0)
    (one,) = statistics.connections
    assert (one.bookie_id, one.address, one.is_connected, one.sinks) == ("b1", scene.bookie.address, True, 1)
    assert (one.adds_sent, one.adds_answered, one.adds_refused) == (4, 2, 1)
    assert (one.connects, one.losses, one.failed_attempts) == (2, 1, 0)
