"""No matter how much one connection sends at once, other connections get their turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from raw_client import add
from serving import Machine

from bookie.server.connection import Connection
from bookie.server.requests import Requests
from ledgerlog.limits import MIB, TURN_BYTES, TURN_FRAMES
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.turns import Turns
from ledgerlog.wire.entries import encode_lac
from ledgerlog.wire.frame import Frame, Kind, encode_head

FLOOD_BYTES = MIB


def one_entry_adds(size: int) -> Callable[[], bytes]:
    def flood() -> bytes:
        frames: list[bytes] = []
        length = 0
        while length < FLOOD_BYTES:
            frames += [bytes(part) for part in add(1, len(frames) // 2, [b"x" * size])]
            length += len(frames[-1]) + len(frames[-2])
        return b"".join(frames)

    return flood


def requests() -> bytes:
    return b"".join(encode_head(Kind.INFO, request=number) for number in range(1, FLOOD_BYTES // 100))


def told_lacs() -> bytes:
    frame = b"".join(bytes(part) for part in encode_lac(1, lac=-1, lafr=-1, key=b"k" * 16))
    return frame * (FLOOD_BYTES // len(frame))


@pytest.mark.parametrize(
    "flood",
    [
        one_entry_adds(1),
        one_entry_adds(1_000),
        one_entry_adds(60_000),
        one_entry_adds(300_000),
        requests,
        told_lacs,
    ],
    ids=["adds of 1", "adds of 1 kB", "adds of 60 kB", "adds of 300 kB", "requests", "LACs"],
)
@pytest.mark.parametrize("piece", [100, 10_000, FLOOD_BYTES * 2], ids=["small", "middling", "all at once"])
async def test_a_flood_is_served_a_turn_at_a_time(
    flood: Callable[[], bytes], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrived at once from one connection is handled in turns: between two chances of any other task it
    is so many frames or bytes at most, or one frame that is larger than that."""
    handled: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: object, frame: Frame, *rest: Any) -> Any:
            handled.append(len(frame.raw))
            return function(self, frame, *rest)

        return call

    monkeypatch.setattr(Connection, "_on_add", counted(Connection._on_add))
    monkeypatch.setattr(Requests, "begin", counted(Requests.begin))
    machine = Machine(network=LocalNetwork(buffer_bytes=8 * MIB))
    async with machine.bookie() as bookie:
        client = await bookie.client()
        data = flood()
        pieces: Sequence[bytes] = [data[at : at + piece] for at in range(0, len(data), piece)]
        assert client.stream.send_nowait(pieces) == len(data)
        turns: list[list[int]] = []
        idle = 0
        while idle < 100:  # The bookie waits for nothing but its memory "disk".
            before = len(handled)
            await trio.lowlevel.checkpoint()
            turns.append(handled[before:])
            idle = 0 if turns[-1] else idle + 1
        assert len(handled) > 2
        for turn in turns:
            # Two turns may adjoin: the order in which tasks run changes.
            assert len(turn) <= 2 * TURN_FRAMES
            assert sum(turn) - max(turn, default=0) <= 2 * TURN_BYTES + max(turn, default=0)


async def test_a_neighbour_is_answered_while_a_flood_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flooded: list[str] = []
    on_add = Connection._on_add

    def note(self: Connection, frame: Frame) -> None:
        flooded.append(self.peer)
        on_add(self, frame)

    monkeypatch.setattr(Connection, "_on_add", note)
    machine = Machine(network=LocalNetwork(buffer_bytes=8 * MIB))
    async with machine.bookie() as bookie:
        flooder, neighbour = await bookie.client(), await bookie.client()
        flooder.stream.send_nowait([told_lacs()])
        for _ in range(20):
            before = len(flooded)
            await neighbour.ask(Kind.INFO)
            # To the bookie, to the task that answers, to the one that sends, and back: a turn for each.
            assert len(flooded) - before <= 8 * TURN_FRAMES
        assert flooded, "the flood was served as well"


@pytest.mark.parametrize("least", [1, 1_000, TURN_BYTES])
@pytest.mark.parametrize("count", [1, 3_000, TURN_BYTES - 1, TURN_BYTES, 10 * TURN_BYTES])
async def test_turns_are_counted_in_bytes_and_each_thing_counts_for_something(least: int, count: int) -> None:
    turns = Turns(least=least)
    spent = most = runs = 0

    async def spend() -> None:
        nonlocal spent
        for _ in range(1_000):
            await turns.take()
            turns.spend(count)
            spent += max(count, least)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spend)
        await trio.lowlevel.checkpoint()
        while nursery.child_tasks:
            before = spent
            await trio.lowlevel.checkpoint()
            most, runs = max(most, spent - before), runs + 1
    assert most <= 2 * (TURN_BYTES + max(count, least))
    assert runs >= 1_000 * max(count, least) // (2 * (TURN_BYTES + max(count, least)))


async def test_whoever_waited_begins_a_turn_anew() -> None:
    turns = Turns(least=1)
    turns.spend(10 * TURN_BYTES)
    assert turns.left <= 0
    turns.renew()
    assert turns.left > 0
