"""Arbitrary bytes on the wire: a bookie cuts off a client that sends nonsense, says why, and serves all
others.

A seeded generator makes frames that are valid, nearly valid, valid with absurd fields (their checksums made
right again), cut, glued together, or noise. ``LEDGERLOG_HOSTILE_FRAMES`` says how many are sent (4,000 by
default); one seed makes one sequence of bytes.
"""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest
import trio
from raw_client import RawClient, add
from serving import Bookie, Machine, ledger

from ledgerlog import limits
from ledgerlog.concurrency import complaints
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.entries import Entries, encode_add, encode_lac
from ledgerlog.wire.frame import (
    HEADER,
    HEADER_BYTES,
    RECOVERY,
    REPLY,
    FrameBuffer,
    Header,
    Kind,
    Status,
    encode_head,
    index_bytes,
)
from ledgerlog.wire.hello import Hello, encode_hello

FRAMES = int(os.environ.get("LEDGERLOG_HOSTILE_FRAMES", "4000"))
RSS_GROWTH_BYTES_MAX = 64 * limits.MIB

_EDGES = (
    0,
    1,
    2,
    7,
    8,
    95,
    96,
    97,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 2,
    2**63 - 1,
)
_WIDTHS = {
    "length": 32,
    "checksum": 32,
    "kind": 8,
    "flags": 8,
    "status": 16,
    "entry_count": 32,
    "request": 64,
}
_UNSIGNED = {**_WIDTHS, "wait_ms": 32}


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Generator:
    """Frames by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"hostile/{seed}")

    def frame(self) -> bytes:
        draw = self.random
        frame = self.valid()
        match draw.randrange(10):
            case 0 | 1:
                return frame
            case 2:
                return self.flipped(frame, draw.randint(1, 4))
            case 3 | 4 | 5:
                return self.absurd(frame)
            case 6:
                return self.resealed(self.flipped(frame, 1))
            case 7:
                return frame[: draw.randrange(1, len(frame) + 1)]
            case 8:
                return draw.randbytes(draw.choice([1, 3, 96, 200, 5_000]))
            case _:
                start = draw.randrange(len(frame))
                return frame + frame[start:] + self.valid()

    def valid(self) -> bytes:
        """A frame that a client might send."""
        draw = self.random
        ledger_id = draw.choice([0, 1, 2, 3, draw.getrandbits(63)])
        key = draw.choice([b"k" * 16, b"w" * 16, draw.randbytes(16)])
        first = draw.choice([0, 1, 5, draw.randrange(1_000), draw.getrandbits(62)])
        match draw.randrange(10):
            case 0 | 1 | 2:
                payloads = [draw.randbytes(draw.choice([0, 1, 10, 100])) for _ in range(draw.randint(1, 20))]
                entries = Entries.build(ledger_id, first, payloads)
                if draw.random() < 0.3:
                    kept = sorted(draw.sample(range(len(payloads)), draw.randint(1, len(payloads))))
                    entries = entries.select(kept)
                buffers = encode_add(entries, lac=first - 1, lafr=-1, key=key, recovery=draw.random() < 0.2)
                return b"".join(bytes(buffer) for buffer in buffers)
            case 3:
                return b"".join(bytes(b) for b in encode_lac(ledger_id, lac=first, lafr=-1, key=key))
            case 4:
                return encode_head(Kind.FENCE, request=draw.getrandbits(64), ledger_id=ledger_id, key=key)
            case 5 | 6:
                return encode_head(
                    Kind.READ,
                    flags=draw.choice([0, 0, RECOVERY]),
                    count=draw.choice([0, 1, 2, 2**32 - 1]),
                    request=draw.getrandbits(64),
                    ledger_id=ledger_id,
                    first=first,
                    last=first + draw.choice([0, 10, 2**61]),
                    argument=draw.choice([-(2**63), 0, 1, 1_000, 2**63 - 1]),
                    wait_ms=draw.choice([0, 0, 1, 50, 2**32 - 1]),
                    key=key,
                )
            case 7:
                wait_ms = draw.choice([0, 1, 2**32 - 1])
                return encode_head(Kind.READ_LAC, ledger_id=ledger_id, first=first, wait_ms=wait_ms)
            case 8:
                kind = draw.choice([Kind.LIST, Kind.INFO])
                return encode_head(kind, ledger_id=ledger_id, first=first)
            case _:
                cluster = draw.choice([None, "c", "\n" * 50])
                return encode_hello(Hello(draw.choice(["b1", "b2"]), draw.choice([None, "i"]), cluster))

    def flipped(self, frame: bytes, count: int) -> bytes:
        changed = bytearray(frame)
        for _ in range(count):
            changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    def absurd(self, frame: bytes) -> bytes:
        """One or two fields of the header at an edge of their range, and the checksum right."""
        header = Header._make(HEADER.unpack_from(frame))
        for _ in range(self.random.randint(1, 2)):
            name = self.random.choice([name for name in Header._fields if name not in ("checksum", "key")])
            value = self.random.choice(_EDGES)
            if name in _UNSIGNED:
                value %= 2 ** _UNSIGNED[name]
            elif self.random.random() < 0.5:
                value = -value
            header = header._replace(**{name: value})
        return self.resealed(HEADER.pack(*header) + frame[HEADER_BYTES:])

    def resealed(self, frame: bytes) -> bytes:
        """With the checksum that its kind, flags and count ask for."""
        header = Header._make(HEADER.unpack_from(frame))
        covered = index_bytes(header.kind, header.flags, header.entry_count, len(frame) - HEADER_BYTES)
        sealed = bytearray(frame)
        sealed[4:8] = checksum(bytes(frame[8 : HEADER_BYTES + covered])).to_bytes(4, "little")
        return bytes(sealed)


class Attack:
    """Sends frames over as many connections as it takes."""

    def __init__(self, bookie: Bookie, seed: int, frames: int) -> None:
        self._bookie = bookie
        self._generator = Generator(seed)
        self._left = frames
        self.cut_off = 0
        """Connections that the bookie ended."""

    async def run(self) -> None:
        while self._left > 0:
            client = await self._bookie.connect()
            try:
                await self._converse(client)
            except (ConnectionLost, EOFError):
                self.cut_off += 1
            finally:
                client.stream.close()

    async def _converse(self, client: RawClient) -> None:
        draw = self._generator.random
        if draw.random() < 0.9:
            assert (await client.hello())[0] is Status.OK
        async with open_nursery() as nursery:
            ended: list[bool] = []

            async def listen() -> None:
                """Receives everything, so that it notices when the bookie closes."""
                room = memoryview(bytearray(1 << 16))
                try:
                    while await client.stream.receive_into(room):
                        pass
                except ConnectionLost:
                    pass
                ended.append(True)
                nursery.cancel_scope.cancel()

            if draw.random() < 0.8:
                nursery.start_soon(listen)
            for _ in range(draw.randint(1, 20)):
                frame = self._generator.frame()
                self._left -= 1
                at = draw.randrange(len(frame) + 1) if draw.random() < 0.2 else len(frame)
                for part in (frame[:at], frame[at:]):
                    if part:
                        # The bookie stops reading from a client that does not read.
                        with trio.move_on_after(0.5):
                            await client.stream.send_all([part])
                    await trio.lowlevel.checkpoint()
            await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        if ended:
            raise ConnectionLost("the bookie ended it")


HONEST_LEDGER = 10**6
HONEST_KEY = b"honest".ljust(16)


async def be_honest(bookie: Bookie, rounds: list[int], done: trio.Event) -> None:
    """Appends and reads back a ledger of its own, all the time, on one connection."""
    client = await bookie.client()
    key, ledger_id, number = HONEST_KEY, HONEST_LEDGER, 0
    try:
        while not done.is_set():
            payloads = [b"%d" % (10 * number + index) for index in range(10)]
            await client.add(ledger_id, 10 * number, payloads, lac=10 * number - 1, key=key)
            number += 1
            await client.acknowledged(number)
            _, entries = await client.read(ledger_id, 10 * number - 10, 10 * number - 1)
            assert entries.payloads() == payloads
            rounds.append(number)
        header, entries = await client.read(ledger_id, 0, 10 * number)
        assert header.status == Status.OK
        assert list(entries.ids) == list(range(10 * number))[: len(entries)]
    finally:
        client.stream.close()


async def test_any_bytes_end_at_most_the_connection_that_brought_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complaints, "LINES", 10**9)
    caplog.set_level(logging.WARNING)
    machine = Machine.real(tmp_path / "b1", network=TcpNetwork(), listen="127.0.0.1:0")
    machine.ledgers[HONEST_LEDGER] = ledger(HONEST_LEDGER, key=HONEST_KEY)
    attackers = 8
    async with machine.bookie() as bookie:
        rounds: list[int] = []
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_honest, bookie, rounds, done)
            warm = Attack(bookie, 0, 200)
            await warm.run()
            before = rss_bytes()
            attacks = [Attack(bookie, 1 + number, FRAMES // attackers) for number in range(attackers)]
            async with trio.open_nursery() as attacking:
                for attack in attacks:
                    attacking.start_soon(attack.run)
            grown = rss_bytes() - before
            done.set()
        cut_off = sum(attack.cut_off for attack in (warm, *attacks))
        lines = [record.getMessage() for record in caplog.records if ": cut off: " in record.getMessage()]
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
        assert len(rounds) > FRAMES // 500
        assert bookie.node.server.counts["peers_cut_off"] == len(lines) >= cut_off > FRAMES // 100
        assert all("\n" not in line and len(line) < 600 for line in lines)
        assert len({line.partition(": cut off: ")[2][:12] for line in lines}) > 5
        assert grown < RSS_GROWTH_BYTES_MAX, f"{grown} bytes"
    # Everything that was stored meanwhile can be replayed.
    async with machine.bookie() as bookie:
        (await bookie.client()).stream.close()


async def test_a_thousand_idle_and_half_sent_connections_cost_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All must be connected at the same time, no matter how long a busy machine takes to connect them.
    monkeypatch.setattr(limits, "FRAME_PROGRESS_TIMEOUT_S", 600.0)
    machine = Machine()
    head, payload = add(1, 0, [b"x" * 4_000_000])
    async with machine.bookie() as bookie:
        honest = await bookie.client()
        await honest.add(2, 0, [b"x"])
        await honest.acknowledged(1)
        before = rss_bytes()
        clients = []
        for number in range(1_000):
            client = await bookie.client()
            clients.append(client)
            # Half announce the largest frames; they send what fits a first receive, or nothing.
            if number % 2:
                await client.send(head, bytes(payload[:2_000]))
        # The clients are in this process as well, each with a buffer of its own.
        theirs = sum(client._buffer.capacity for client in clients)
        assert bookie.node.server.connections == 1_001
        assert rss_bytes() - before - theirs < RSS_GROWTH_BYTES_MAX
        await honest.add(2, 1, [b"y"])
        await honest.acknowledged(2)


async def test_those_who_fill_large_frames_halfway_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    head, payload = add(1, 0, [b"x" * 4_000_000])
    data = bytes(head) + bytes(payload[:3_000_000])
    async with machine.bookie() as bookie:
        before = rss_bytes()
        clients = [await bookie.client() for _ in range(60)]
        for client in clients:
            client._buffer = FrameBuffer(1024)

        async def send(client: RawClient) -> None:
            with trio.move_on_after(2):
                await client.stream.send_all([data])

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(send, client)
        large = limits.BOOKIE_LARGE_FRAMES * 8 * limits.MIB
        # The in-process network holds up to one mebibyte for each connection. That memory is not the
        # bookie's.
        assert rss_bytes() - before < large + len(clients) * limits.MIB + RSS_GROWTH_BYTES_MAX
        honest = await bookie.client()
        await honest.add(2, 0, [b"x"])
        await honest.acknowledged(1)


def test_the_generator_makes_frames_of_every_kind_and_repeats_itself() -> None:
    frames = [Generator(5).frame() for _ in range(1)]
    first, second = Generator(7), Generator(7)
    frames = [first.frame() for _ in range(2_000)]
    assert frames == [second.frame() for _ in range(2_000)]
    kinds = {frame[8] for frame in frames if len(frame) > 8}
    assert {kind.value for kind in Kind} - {Kind.REFUSED} <= kinds
    assert any(kind & REPLY for kind in kinds)
