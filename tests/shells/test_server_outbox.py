"""What a bookie's connection sends, in which order, and what it costs if the client does not read."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from bookie.server.outbox import BATCH_BYTES, ClientTooSlow, Outbox
from ledgerlog import limits
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.transport import ConnectionLost, Stream
from ledgerlog.wire.frame import REPLY, FrameBuffer, Header, Kind, Status, encode_head
from tests.waiting import PATIENCE_S


async def stream_pair(buffer_bytes: int = 1 << 20) -> tuple[Stream, Stream]:
    """The bookie's end and the client's."""
    network = LocalNetwork(buffer_bytes=buffer_bytes)
    listener = await network.listen("bookie")
    client = await network.connect("bookie")
    return await listener.accept(), client


async def receive(stream: Stream, count: int) -> list[Header]:
    """Return the headers of the next ``count`` frames. Fail if more frames have come."""
    buffer = FrameBuffer(1 << 16)
    headers: list[Header] = []
    while len(headers) < count:
        got = await stream.receive_into(buffer.writable())
        assert got, "the stream ended"
        buffer.received(got)
        headers += [frame.header for frame in buffer.take_frames()]
    assert len(headers) == count
    return headers


def never(lost: ConnectionLost) -> None:
    raise AssertionError(lost)


def reply(number: int, body: bytes = b"") -> bytes:
    return encode_head(Kind.INFO | REPLY, request=number, index=body)


def refuse(outbox: Outbox, number: int) -> None:
    outbox.refuse(number, Status.FENCED, ledger_id=7, first=1, last=2)


async def test_a_message_goes_straight_into_the_socket_when_nothing_waits(nursery: trio.Nursery) -> None:
    bookie, client = await stream_pair()
    outbox = Outbox(bookie, never)
    nursery.start_soon(outbox.run)
    await trio.testing.wait_all_tasks_blocked()
    outbox.acknowledge(3)
    assert outbox.unsent_bytes == 0
    refuse(outbox, 4)
    outbox.reply([reply(9)])
    headers = await receive(client, 3)
    assert [(h.kind, h.request) for h in headers] == [
        (Kind.ADD | REPLY, 3),
        (Kind.REFUSED, 4),
        (Kind.INFO | REPLY, 9),
    ]
    assert headers[1].status == Status.FENCED
    assert (headers[1].ledger_id, headers[1].first, headers[1].last) == (7, 1, 2)


async def test_what_waited_is_sent_a_turn_at_a_time(nursery: trio.Nursery) -> None:
    bookie, client = await stream_pair(buffer_bytes=1 << 22)
    asked: list[int] = []
    going = trio.Event()

    async def take_turn(count: int) -> None:
        asked.append(count)
        await going.wait()

    outbox = Outbox(bookie, never, take_turn)
    for number in range(3):
        outbox.reply([reply(number, bytes(BATCH_BYTES - 96))])
    nursery.start_soon(outbox.run)
    await trio.testing.wait_all_tasks_blocked()
    assert asked == [BATCH_BYTES]
    assert outbox.unsent_bytes == 3 * BATCH_BYTES
    going.set()
    assert [header.request for header in await receive(client, 3)] == [0, 1, 2]
    assert asked == [BATCH_BYTES] * 3


async def test_an_acknowledgement_that_finds_no_room_is_sent_once_at_its_newest(
    nursery: trio.Nursery,
) -> None:
    bookie, client = await stream_pair(buffer_bytes=100)
    outbox = Outbox(bookie, never)
    nursery.start_soon(outbox.run)
    await trio.testing.wait_all_tasks_blocked()
    for number in range(1, 1_000):
        outbox.acknowledge(number)
    assert outbox.unsent_bytes < 200
    headers = await receive(client, 3)
    # The first call sent one frame, the full socket cut the second one, and one call sent the rest.
    assert [h.request for h in headers] == [1, 2, 999]


async def test_a_refusal_goes_out_before_an_acknowledgement_that_passes_it(nursery: trio.Nursery) -> None:
    bookie, client = await stream_pair(buffer_bytes=100)
    outbox = Outbox(bookie, never)
    nursery.start_soon(outbox.run)
    await trio.testing.wait_all_tasks_blocked()
    outbox.reply([reply(1, bytes(500))])
    outbox.acknowledge(1)
    refuse(outbox, 2)
    outbox.reply([reply(2)])
    outbox.acknowledge(3)
    refuse(outbox, 4)
    outbox.acknowledge(5)
    headers = await receive(client, 5)
    assert [(h.kind, h.request) for h in headers] == [
        (Kind.INFO | REPLY, 1),
        (Kind.REFUSED, 2),
        (Kind.REFUSED, 4),
        (Kind.ADD | REPLY, 5),
        (Kind.INFO | REPLY, 2),
    ]


async def test_in_any_order_of_events_each_add_has_one_outcome_and_replies_come_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        buffer_bytes = rng.choice([1, 97, 300, 5_000])
        # A byte at a time, 300 bytes are cut 300 times; 3,000 would take ten times as long and prove no more.
        long = 300 if buffer_bytes == 1 else 3_000
        bookie, client = await stream_pair(buffer_bytes=buffer_bytes)
        outbox = Outbox(bookie, never)
        refused: list[int] = []
        last = rng.randrange(50, 150)
        replies = 0

        async def client_side(client: Stream, frames: list[Header]) -> None:
            buffer = FrameBuffer(1 << 16)
            while True:
                got = await client.receive_into(buffer.writable())
                if not got:
                    return
                buffer.received(got)
                frames += [frame.header for frame in buffer.take_frames()]

        frames: list[Header] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client_side, client, frames)
            nursery.start_soon(outbox.run)
            for number in range(1, last):
                match rng.randrange(4):
                    case 0:
                        refuse(outbox, number)
                        refused.append(number)
                    case 1:
                        replies += 1
                        outbox.reply([reply(replies, rng.randbytes(rng.choice([0, 10, long])))])
                        outbox.acknowledge(number)
                    case 2:
                        outbox.acknowledge(number)
                    case 3:
                        await trio.lowlevel.checkpoint()
            outbox.acknowledge(last)
            await outbox.wait_all_sent()
            assert outbox.unsent_bytes == 0
            bookie.close()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert sorted(h.request for h in frames if h.kind == Kind.INFO | REPLY) == list(range(1, replies + 1))
        assert [h.request for h in frames if h.kind == Kind.REFUSED] == refused
        acknowledged = 0
        for header in frames:
            if header.kind == Kind.ADD | REPLY:
                assert header.request > acknowledged
                acknowledged = header.request
            elif header.kind == Kind.REFUSED:
                assert header.request > acknowledged, "a refusal behind the acknowledgement that passes it"
        assert acknowledged == last


async def test_bytes_count_as_unsent_until_the_network_took_them(nursery: trio.Nursery) -> None:
    bookie, client = await stream_pair(buffer_bytes=1_000)
    outbox = Outbox(bookie, never)
    nursery.start_soon(outbox.run)
    await trio.testing.wait_all_tasks_blocked()
    sent: list[int] = []
    for number in range(5):
        outbox.reply([reply(number, bytes(1_000))], lambda number=number: sent.append(number))
    assert outbox.unsent_bytes == 5 * 1_096 - 1_000
    assert sent == []
    with trio.fail_after(PATIENCE_S):
        nursery.start_soon(receive, client, 5)
        await outbox.wait_below(2_000)
        await outbox.wait_all_sent()
    assert sent == [0, 1, 2, 3, 4]


async def test_a_client_that_does_not_take_its_replies_in_time_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bookie, _client = await stream_pair(buffer_bytes=1_000)
    outbox = Outbox(bookie, never)
    outbox.reply([reply(1, bytes(5_000))])
    with pytest.raises(ClientTooSlow, match="in 10 s"):
        await outbox.run()
    assert trio.current_time() == pytest.approx(limits.FRAME_PROGRESS_TIMEOUT_S)


async def test_a_broken_connection_is_told_to_the_owner_whichever_way_a_message_goes(
    nursery: trio.Nursery,
) -> None:
    bookie, client = await stream_pair()
    told: list[ConnectionLost] = []
    outbox = Outbox(bookie, told.append)
    nursery.start_soon(outbox.run)
    await trio.testing.wait_all_tasks_blocked()
    client.close()
    outbox.acknowledge(1)
    assert len(told) == 1

    bookie, client = await stream_pair()
    queued = Outbox(bookie, never)
    queued.acknowledge(1)
    client.close()
    with pytest.raises(ConnectionLost):
        await queued.run()
