"""Peers that have not proved who they are cannot take service away from peers that have."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from raw_client import RawClient, add, figures
from serving import Bookie, Machine

from bookie.server.strangers import Strangers
from ledgerlog import limits
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.wire.frame import FRAME_BYTES_MAX, Kind, Status, encode_head
from ledgerlog.wire.hello import Hello, encode_hello

LARGE = add(7, 0, [b"y" * 1_000_000])
HELLO = encode_hello(Hello("b1", None, None))
Say = Callable[[RawClient], Awaitable[None]]


async def nothing(peer: RawClient) -> None:
    pass


async def four_bytes_of_the_largest_frame(peer: RawClient) -> None:
    await peer.send(struct.pack("<I", FRAME_BYTES_MAX))


async def four_bytes_of_a_frame_that_is_a_little_too_large(peer: RawClient) -> None:
    await peer.send(struct.pack("<I", limits.HELLO_BYTES_MAX - 3))


async def most_of_a_large_frame(peer: RawClient) -> None:
    await peer.send(*(bytes(part)[:500_000] for part in LARGE))


async def a_large_hello(peer: RawClient) -> None:
    await peer.send(encode_head(Kind.HELLO, index=bytes(1_000_000)))


async def half_a_hello(peer: RawClient) -> None:
    await peer.send(HELLO[:-1])


async def a_byte_a_second(peer: RawClient) -> None:
    for position in range(len(HELLO)):
        await peer.send(HELLO[position : position + 1])
        await trio.sleep(1)


@asynccontextmanager
async def besieged(bookie: Bookie, say: Say, count: int) -> AsyncIterator[None]:
    """``count`` peers. Each does ``say``, stays, and comes again if it is cut off."""

    async def peer() -> None:
        while True:
            stranger = await bookie.connect()
            try:
                await say(stranger)
                await stranger.ended()
            except ConnectionLost:
                pass
            finally:
                stranger.stream.close()
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(peer)
        await trio.sleep(0.5)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "say",
    [
        nothing,
        four_bytes_of_the_largest_frame,
        four_bytes_of_a_frame_that_is_a_little_too_large,
        most_of_a_large_frame,
        a_large_hello,
        half_a_hello,
        a_byte_a_second,
    ],
)
@pytest.mark.parametrize("count", [limits.BOOKIE_LARGE_FRAMES, 60])
async def test_strangers_take_nothing_from_a_neighbour(
    say: Say, count: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A neighbour adds large frames, and newcomers read, while strangers hold what they can."""
    monkeypatch.setattr(limits, "BOOKIE_CONNECTIONS_MAX", 40)
    monkeypatch.setattr(limits, "BOOKIE_UNIDENTIFIED_PER_ADDRESS", 30)
    async with Machine().bookie() as bookie:
        old = await bookie.client()
        async with besieged(bookie, say, count):
            for number in range(1, 4):
                begun = trio.current_time()
                await old.send(*add(7, number, [b"y" * 1_000_000]))
                await old.acknowledged(number)
                newcomer = await bookie.client()
                header, entries = await newcomer.read(7, number, number)
                assert header.status == Status.OK
                assert len(entries) == 1
                assert trio.current_time() == begun, "nobody was waited for"
                assert bookie.node.server.connections <= limits.BOOKIE_UNIDENTIFIED_PER_ADDRESS + 5
                await trio.sleep(1)
        newcomer.stream.close()
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("say", [nothing, half_a_hello, a_byte_a_second])
async def test_a_stranger_has_a_deadline(say: Say, autojump_clock: trio.testing.MockClock) -> None:
    async with Machine().bookie() as bookie:
        peer = await bookie.connect()
        begun = trio.current_time()
        with pytest.raises(ConnectionLost) if say is a_byte_a_second else trio.CancelScope():
            await say(peer)
            await peer.ended()
        assert trio.current_time() - begun == pytest.approx(limits.HANDSHAKE_TIMEOUT_S, abs=1.5)
        assert bookie.node.server.connections == 0


@pytest.mark.parametrize(
    "say",
    [
        four_bytes_of_the_largest_frame,
        four_bytes_of_a_frame_that_is_a_little_too_large,
        most_of_a_large_frame,
        a_large_hello,
    ],
)
async def test_what_is_no_small_hello_is_cut_off_at_once(
    say: Say, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Machine().bookie() as bookie:
        peer = await bookie.connect()
        begun = trio.current_time()
        with contextlib.suppress(ConnectionLost):
            await say(peer)
        await peer.ended()
        assert trio.current_time() == begun
        assert "where 4096 are the most" in caplog.text


async def test_a_bookie_that_is_full_of_strangers_has_room_for_one_who_says_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of three connections, no quarter and no sixteenth is kept for others (see ``bookie.server.fair``).
    monkeypatch.setattr(limits, "BOOKIE_CONNECTIONS_MAX", 3)
    async with Machine().bookie() as bookie:
        friends = [await bookie.client()]
        for _ in range(20):
            await bookie.connect()
        friends += [await bookie.client() for _ in range(2)]
        for friend in friends:
            assert figures(await friend.ask(Kind.INFO))["connections_refused"] == 0
        late = await bookie.connect()  # Only friends are left.
        assert (await late.receive()).header.status == Status.TOO_MANY_REQUESTS


async def test_a_large_frame_may_follow_hello_at_once() -> None:
    async with Machine().bookie() as bookie:
        client = await bookie.connect()
        await client.send(HELLO, *LARGE)
        assert (await client.receive()).header.status == Status.OK
        await client.acknowledged(1)


def test_the_oldest_of_an_address_makes_place_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BOOKIE_UNIDENTIFIED_PER_ADDRESS", 2)
    strangers: Strangers[int] = Strangers()
    assert strangers.enter(0, "[::1]:1") is None
    assert [strangers.enter(n, f"10.0.0.1:{n}") for n in (1, 2, 3, 4)] == [None, None, 1, 2]
    strangers.leave(3)
    assert strangers.enter(5, "10.0.0.1:5") is None
    strangers.leave(1)  # The peer left before that.
    assert len(strangers) == 3
    assert [strangers.take_oldest() for _ in range(4)] == [0, 4, 5, None]
