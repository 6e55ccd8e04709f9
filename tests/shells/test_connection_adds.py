"""Adds over a connection: numbers, acknowledgements, refusals, losses and the send queue."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from scripted_bookie import RecordingSink, Scene, acknowledgement, add_frame, opened_scene, refusal

from ledgerlog.limits import (
    ADD_TIMEOUT_S,
    CONNECTION_SEND_QUEUE_BYTES,
    FRAME_PROGRESS_TIMEOUT_S,
    MIB,
)
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.wire.frame import Kind, Status


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


# --- order, acknowledgements, bursts --------------------------------------------------------------


async def test_adds_arrive_in_the_order_they_were_given(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(0, 3000, 3):
        scene.send(sink, first, 3)
    assert [entries.first for entries in await peer.next_adds(1000)] == list(range(0, 3000, 3))


async def test_one_acknowledgement_tells_several_sinks_and_merges_what_is_adjacent(scene: Scene) -> None:
    one, peer = await scene.connected_sink()
    other = RecordingSink()
    scene.connection.attach(other)
    for sink, first, count in (
        (one, 0, 2),
        (one, 2, 3),
        (other, 0, 1),
        (one, 5, 1),
        (one, 7, 1),  # entry 6 is elsewhere, or is sent later: not adjacent
        (other, 1, 4),
        (other, 0, 1),  # sent again
    ):
        scene.send(sink, first, count)
    await peer.next_adds(7)
    assert not one.calls
    await peer.acknowledge(7)
    await one.until("ok", 3)
    await other.until("ok", 3)
    assert one.calls == [("ok", 0, 4), ("ok", 5, 5), ("ok", 7, 7), ("end",)]
    assert other.calls == [("ok", 0, 0), ("ok", 1, 4), ("ok", 0, 0), ("end",)]
    assert scene.connection.statistics().unanswered_adds == 0


async def test_acknowledgements_tell_each_add_once_and_may_repeat(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(4):
        scene.send(sink, first)
    await peer.next_adds(4)
    await peer.send(*map(acknowledgement, (0, 2, 2, 1, 3)))
    await sink.until("ok", 2)
    await peer.acknowledge(4)
    await sink.until("ok", 3)
    assert [call for call in sink.calls if call[0] == "ok"] == [("ok", 0, 1), ("ok", 2, 2), ("ok", 3, 3)]
    assert scene.connection.is_connected


async def test_a_sink_acts_once_for_all_that_arrived_together(local_scene: Scene) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    for first in range(0, 20, 2):
        scene.send(sink, first)
    await peer.next_adds(10)
    await peer.send(*[acknowledgement(number) for number in range(1, 11)])
    await sink.until("ok", 10)
    assert sink.count("end") == 1


async def test_what_sinks_send_in_a_burst_leaves_in_order_behind_it(scene: Scene) -> None:
    sent = iter(range(1, 100))

    def send_two(sink: RecordingSink) -> None:
        for _ in range(2):
            scene.send(sink, next(sent))
        assert scene.connection.queued_bytes > 0, "it gathers until the burst is over"

    sink, peer = await scene.connected_sink()
    sink.act = send_two
    scene.send(sink, 0)
    await peer.next_adds(1)
    await peer.acknowledge()
    await sink.until("ok")
    sink.act = None
    assert [entries.first for entries in await peer.next_adds(2)] == [1, 2]
    assert scene.connection.queued_bytes == 0


async def test_an_add_without_entries_is_counted_and_acknowledged(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    scene.connection.send_add(add_frame(41, 0), sink, 42, 41)
    frame = await peer.next_frame()
    assert (frame.header.lac, frame.header.entry_count) == (41, 0)
    await peer.acknowledge(1)
    await sink.until("ok")
    assert sink.calls == [("ok", 42, 41), ("end",)]


# --- refusals -------------------------------------------------------------------------------------


async def test_a_refusal_names_one_add_and_the_acknowledgement_behind_it_skips_it(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(5):
        scene.send(sink, first)
    await peer.next_adds(5)
    await peer.send(refusal(2, Status.READ_ONLY), refusal(4, Status.CONFLICT), acknowledgement(5))
    await sink.until("ok", 3)
    assert sink.calls == [
        ("refused", 1, 1, Status.READ_ONLY),
        ("refused", 3, 3, Status.CONFLICT),
        ("ok", 0, 0),
        ("ok", 2, 2),
        ("ok", 4, 4),
        ("end",),
    ]


async def test_a_bookie_that_refuses_everything_acknowledges_nothing_and_leaves_nothing(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(100):
        scene.send(sink, first)
    await peer.next_adds(100)
    for number in (3, 1, 2, *range(4, 101)):
        await peer.refuse(number)
    await sink.until("refused", 100)
    statistics = scene.connection.statistics()
    assert (statistics.unanswered_adds, statistics.adds_refused, statistics.adds_answered) == (0, 100, 100)
    # An acknowledgement that covers a refused add says nothing about it.
    await peer.acknowledge(100)
    scene.send(sink, 100)
    await peer.next_adds(1)
    await peer.acknowledge(101)
    await sink.until("ok")
    assert sink.count("lost") == 0


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ([acknowledgement(4)], "acknowledged add 4, but only 3 were sent"),
        ([acknowledgement(2**64 - 1)], "acknowledged add"),
        ([refusal(4)], "refused add 4"),
        ([refusal(0)], "refused add 0"),
        ([acknowledgement(3), refusal(2)], "refused add 2"),
        ([refusal(2), refusal(2)], "refused add 2 twice"),
        ([refusal(1), refusal(1)], "refused add 1"),
        ([refusal(2, Status.OK)], "refused add 2 (OK)"),
        ([acknowledgement(1) + b"\xff"], "closed the connection|protocol"),
        ([b"\x00\x00\x00\x00"], "length of 0 bytes"),
        ([b"\xff\xff\xff\xff"], "out of range"),
    ],
    ids=itertools.count(),
)
async def test_what_no_bookie_says_breaks_the_connection(scene: Scene, lies: list[bytes], why: str) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(3):
        scene.send(sink, first)
    await peer.next_adds(3)
    await peer.send(*lies)
    if "closed" in why:
        peer.close()  # a part of a frame, and then the end
    await sink.until("lost")
    assert sink.count("lost") == 1
    reason = next(call[1] for call in sink.calls if call[0] == "lost")
    assert any(each in reason for each in why.split("|")), reason


# --- detaching ------------------------------------------------------------------------------------


async def test_after_detaching_nothing_reaches_a_sink_and_its_adds_are_still_counted(scene: Scene) -> None:
    leaving, peer = await scene.connected_sink()
    staying = RecordingSink()
    scene.connection.attach(staying)
    scene.send(leaving, 0)
    scene.send(staying, 0)
    scene.send(leaving, 1)
    scene.connection.detach(leaving)
    scene.connection.detach(leaving)
    await peer.next_adds(3)
    await peer.send(refusal(3), acknowledgement(2))
    await staying.until("ok")
    peer.close()
    await staying.until("lost")
    assert not leaving.calls


async def test_a_sink_that_comes_back_does_not_hear_of_its_former_adds(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    scene.send(sink, 0)
    scene.connection.detach(sink)
    scene.connection.attach(sink)
    scene.send(sink, 10)
    await peer.next_adds(2)
    await peer.acknowledge(2)
    await sink.until("ok")
    assert sink.calls == [("ok", 10, 10), ("end",)]


async def test_sinks_may_come_and_go_while_they_are_told(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    other, newcomer = RecordingSink(), RecordingSink()
    scene.connection.attach(other)

    def swap(_: RecordingSink) -> None:
        scene.connection.detach(sink)
        scene.connection.detach(other)
        scene.connection.attach(newcomer)

    sink.act = swap
    scene.send(sink, 0)
    scene.send(other, 0)
    await peer.next_adds(2)
    await peer.acknowledge(2)
    await sink.until("ok")
    assert other.calls == [("ok", 0, 0)], "it left before the burst was over"
    scene.send(newcomer, 5)
    await peer.next_adds(1)
    await peer.acknowledge(3)
    await newcomer.until("ok")


# --- losses ---------------------------------------------------------------------------------------


async def test_a_loss_is_told_once_and_numbers_start_again_on_the_next_connection(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    idle = RecordingSink()
    scene.connection.attach(idle)
    for first in range(5):
        scene.send(sink, first)
    await peer.next_adds(5)
    await peer.acknowledge(2)
    await sink.until("ok")
    peer.close()
    await sink.until("lost")
    assert not scene.connection.is_connected
    again = await scene.bookie.next()
    await sink.until("connected")
    assert [call[0] for call in sink.calls if call[0] != "end"] == ["ok", "lost", "connected"]
    assert [call[0] for call in idle.calls if call[0] != "end"] == ["lost", "connected"]
    # Nothing is sent again by itself, and the first add is number 1.
    scene.send(sink, 2)
    assert [entries.first for entries in await again.next_adds(1)] == [2]
    await again.acknowledge(1)
    await sink.until("ok", 2)


async def test_adds_given_in_the_moment_of_the_loss_are_part_of_it(local_scene: Scene) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    peer.close()
    # The connection's task has not run: it still looks connected.
    assert scene.connection.is_connected
    scene.send(sink, 0)
    assert not scene.connection.is_connected
    scene.send(sink, 1)
    assert not sink.calls, "no sink is called from inside a send"
    await sink.until("lost")
    assert sink.count("lost") == 1
    assert scene.connection.statistics().adds_sent == 1, "the second never was an add of that connection"


async def test_a_send_that_breaks_inside_a_burst_is_told_after_it(local_scene: Scene) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    scene.send(sink, 0)
    await peer.next_adds(1)

    def send(_: RecordingSink) -> None:
        sink.act = None
        scene.send(sink, 1)

    sink.act = send
    await peer.acknowledge(1)
    peer.close()
    await sink.until("lost")
    assert sink.calls[:2] == [("ok", 0, 0), ("end",)]
    assert sink.count("lost") == 1


# --- the send queue -------------------------------------------------------------------------------


async def test_what_the_socket_does_not_take_is_queued_and_arrives_whole_and_in_order(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    for first in range(0, 48 * 8, 8):
        scene.send(sink, first, 8, size=MIB // 8)
    assert scene.connection.queued_bytes > 8 * MIB
    for first, entries in zip(range(0, 48 * 8, 8), await peer.next_adds(48), strict=True):
        assert (entries.first, entries.last, entries.first_damaged()) == (first, first + 7, None)
        if first % 80 == 0:
            await peer.acknowledge()
    await peer.acknowledge()
    while not any(call[0] == "ok" and call[2] == 48 * 8 - 1 for call in sink.calls):
        await sink.until("ok", sink.count("ok") + 1)
    assert scene.connection.queued_bytes == 0


async def test_a_bookie_that_reads_too_slowly_is_given_up_at_the_bound(scene: Scene) -> None:
    sink, _peer = await scene.connected_sink()
    most = first = 0
    while scene.connection.is_connected:
        scene.send(sink, first, 4, size=MIB)
        most = max(most, scene.connection.queued_bytes)
        first += 4
    assert CONNECTION_SEND_QUEUE_BYTES - 5 * MIB < most <= CONNECTION_SEND_QUEUE_BYTES
    await sink.until("lost")
    assert "too slow" in sink.calls[0][1]
    assert scene.connection.queued_bytes == 0


async def test_requests_and_adds_keep_their_order_through_the_queue(scene: Scene) -> None:
    sink, peer = await scene.connected_sink()
    async with trio.open_nursery() as nursery:
        for first in range(12):
            scene.send(sink, first, size=MIB)
        nursery.start_soon(_request, scene)
        await trio.testing.wait_all_tasks_blocked()
        scene.send(sink, 12, size=MIB)
        kinds = [(await peer.next_frame()).header.kind for _ in range(14)]
        assert kinds == [Kind.ADD] * 12 + [Kind.READ_LAC, Kind.ADD]
        nursery.cancel_scope.cancel()


async def _request(scene: Scene) -> None:
    await scene.connection.request(Kind.READ_LAC, timeout_s=60, ledger_id=7)


# --- deadlines ------------------------------------------------------------------------------------


async def test_an_add_without_an_answer_breaks_the_connection_in_time(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    started = trio.current_time()
    scene.send(sink, 0)
    scene.send(sink, 1)
    await peer.next_adds(2)
    await peer.acknowledge(1)
    await sink.until("lost")
    assert ADD_TIMEOUT_S <= trio.current_time() - started <= ADD_TIMEOUT_S + 0.75
    assert "add 2 of 2" in sink.calls[-2][1]


async def test_answers_that_come_late_but_in_time_break_nothing(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()

    async def answer_late() -> None:
        for number in range(1, 101):
            sent_at = float(number)
            await trio.sleep_until(started + sent_at + ADD_TIMEOUT_S - 0.1)
            await peer.acknowledge(number)

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_late)
        for number in range(1, 101):
            await trio.sleep_until(started + number)
            scene.send(sink, number)
    await sink.until("ok", 100)
    assert sink.count("lost") == 0


async def test_one_late_answer_among_prompt_ones_is_noticed_in_time(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    started = trio.current_time()
    for number in range(1, 40):
        if not scene.connection.is_connected:
            break
        scene.send(sink, number)
        await peer.acknowledge(min(number, 20))  # From the 21st on, which is sent at 2.0 s: silence.
        await trio.sleep(0.1)
    await sink.until("lost")
    assert 2.0 + ADD_TIMEOUT_S <= trio.current_time() - started <= 2.0 + ADD_TIMEOUT_S + 0.75


async def test_one_add_without_an_answer_among_late_ones_is_noticed_in_time(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    started = trio.current_time()

    async def answer_late() -> None:
        for number in range(1, 31):  # The 31st, which is sent at 31 s, and all later ones: never.
            await trio.sleep_until(started + number + ADD_TIMEOUT_S - 0.5)
            await peer.acknowledge(number)

    async def send() -> None:
        for number in itertools.count(1):
            await trio.sleep_until(started + number)
            if scene.connection.is_connected:
                scene.send(sink, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_late)
        nursery.start_soon(send)
        await sink.until("lost")
        nursery.cancel_scope.cancel()
    assert 31 + ADD_TIMEOUT_S <= trio.current_time() - started <= 31 + ADD_TIMEOUT_S + 0.75


async def test_a_message_that_never_gets_finished_breaks_the_connection(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    started = trio.current_time()

    async def trickle() -> None:
        for byte in acknowledgement(0):
            await peer.send(bytes([byte]))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        await sink.until("lost")
        nursery.cancel_scope.cancel()
    assert "in the middle of a message" in sink.calls[0][1]
    late = trio.current_time() - started - FRAME_PROGRESS_TIMEOUT_S
    assert 0 <= late <= 0.75


async def test_slow_but_whole_messages_break_nothing(
    local_scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene = local_scene
    sink, peer = await scene.connected_sink()
    stream = acknowledgement(0) * 6
    for at in range(7, len(stream), 12):  # At every look, the bookie is in the middle of a message.
        await peer.send(stream[max(at - 12, 0) : at])
        await trio.sleep(0.6)
    assert scene.connection.is_connected
    assert not sink.calls
