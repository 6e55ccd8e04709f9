"""A bookie that sends arbitrary bytes: the client cuts it off and says why, and the client's memory is
bounded.

``LEDGERLOG_HOSTILE_FRAMES`` says how many frames are sent (4,000 by default, and in the soak five times as
many); one seed makes one sequence.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import struct
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from scripted_bookie import ME, RecordingSink, ScriptedBookie, acknowledgement, add_frame, refusal

from ledgerlog.errors import BookieUnavailable
from ledgerlog.limits import FRAME_BYTES_MAX, MIB
from ledgerlog.net.connection import logger as connection_logger
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.pool import open_pool
from ledgerlog.net.transport import ConnectionLost
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import NO_KEY, REPLY, FrameBuffer, Kind, Status, encode_head, index_bytes
from ledgerlog.wire.hello import encode_hello_reply

FRAMES = int(os.environ.get("LEDGERLOG_HOSTILE_FRAMES", "4000"))
RSS_GROWTH_BYTES_MAX = 32 * MIB


class LogOfLosses(logging.Handler):
    """Counts the log lines about bookies that were cut off, by reason. It keeps no line."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.reasons: Counter[str] = Counter()
        self.alarms: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("lost: "):
            assert "\n" not in line
            assert len(line) < 600
            # Numbers apart, so that what is counted here does not grow with what is sent.
            self.reasons[re.sub(r"-?[0-9]+", "#", line.split(": ", 2)[2])] += 1
        if record.levelno >= logging.ERROR:
            self.alarms.append(line)


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def honest_frames(rng: Random) -> bytes:
    entries = Entries.build(7, rng.randrange(100), [rng.randbytes(rng.randrange(50)) for _ in range(5)])
    head, payload = encode_add(entries, lac=3, lafr=2, key=NO_KEY, recovery=False)
    read_reply = encode_head(
        Kind.READ | REPLY,
        request=rng.randrange(5),
        ledger_id=7,
        count=5,
        first=entries.first,
        last=entries.last,
        index=entries.index_part(),
        payload_bytes=len(entries.payload),
    )
    return rng.choice(
        [
            acknowledgement(rng.randrange(6)),
            refusal(rng.randrange(6), rng.choice(list(Status))),
            encode_hello_reply(Status.OK, ME),
            bytes(head) + bytes(payload),
            read_reply + bytes(payload),
            encode_head(Kind.READ_LAC | REPLY, request=rng.randrange(5), ledger_id=7, lac=4),
            encode_head(Kind.LIST | REPLY, request=rng.randrange(5), ledger_id=7, index=rng.randbytes(32)),
        ]
    )


def hostile_frame(rng: Random) -> bytes:
    """A frame that was changed, with a checksum that fits in half of the cases, or nothing like a frame."""
    shape = rng.random()
    if shape < 0.1:
        return rng.randbytes(rng.randrange(1, 300))
    if shape < 0.2:
        return struct.pack("<I", rng.choice((92, 93, FRAME_BYTES_MAX, rng.randrange(2**32)))) + rng.randbytes(
            96
        )
    frame = bytearray(honest_frames(rng))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(frame))
        change = rng.random()
        if change < 0.5:
            frame[at] ^= 1 << rng.randrange(8)
        elif change < 0.7:
            frame[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif change < 0.85:
            del frame[at : at + rng.randrange(1, 20)]
            frame = frame or bytearray(b"\0")
        else:
            frame[at:at] = rng.randbytes(rng.randrange(1, 20))
    if rng.random() < 0.5 and len(frame) > 96:
        frame[:4] = struct.pack("<I", len(frame) - 4)
        covered = index_bytes(frame[8], frame[9], struct.unpack_from("<I", frame, 12)[0], len(frame) - 96)
        frame[4:8] = struct.pack("<I", checksum(bytes(frame[8 : 96 + covered])))
    return bytes(frame)


@pytest.mark.parametrize("frames", [FRAMES, pytest.param(5 * FRAMES, marks=pytest.mark.soak)])
async def test_hostile_frames_crash_nothing_and_are_cut_off_with_a_logged_reason(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    told = LogOfLosses()
    monkeypatch.setattr(connection_logger, "propagate", False)  # Thousands of records would be captured.
    connection_logger.addHandler(told)
    level = connection_logger.level
    connection_logger.setLevel(logging.DEBUG)
    try:
        await _attack_a_client(told, frames)
    finally:
        connection_logger.removeHandler(told)
        connection_logger.setLevel(level)


async def _attack_a_client(told: LogOfLosses, frames: int) -> None:
    rng = Random(20_000)
    network = LocalNetwork()
    bookie = ScriptedBookie(network, await network.listen("bookie:0"))
    sent = lives = rss_before = rss_after = 0
    sink = RecordingSink()

    async def ask_on_and_on() -> None:
        while True:
            try:
                frame = await pool.connection("b1").request(Kind.READ_LAC, timeout_s=60, ledger_id=7)
                assert frame.header.kind == Kind.READ_LAC | REPLY
            except BookieUnavailable as error:
                failures.add(str(error).startswith("bookie b1 at bookie:49152: "))

    async def serve_lies() -> None:
        nonlocal sent, lives, rss_before, rss_after
        while sent < frames:
            if sent >= frames // 20 and not rss_before:
                rss_before = rss_bytes()
            peer = await bookie.accept()
            bookie.peers.clear()
            lives += 1
            if sent > frames * 0.9 and not rss_after:
                rss_after = rss_bytes()
            if sent > frames * 0.9 and not tracemalloc.is_tracing():
                # Tracing makes everything slow, and the last tenth is enough to see growth.
                tracemalloc.start()
            try:
                if rng.random() < 0.8:
                    await peer.shake_hands()
                    for _ in range(rng.choice((0, 0, 6))):
                        frame = await peer.next_frame()
                        if frame.header.kind == Kind.ADD:
                            await peer.acknowledge()
                        else:
                            await peer.reply(frame)
                # Do not go on for ever: after a false length, all further bytes count as a part of that
                # frame.
                for _ in range(rng.randrange(1, 20)):
                    await peer.send(hostile_frame(rng))
                    sent += 1
                    await trio.lowlevel.checkpoint()
            except ConnectionLost:
                pass
            peer.close()

    def add_five(sink: RecordingSink) -> None:
        if sink.calls[-2][0] == "connected":
            for first in range(5):
                if connection.is_connected:
                    connection.send_add(add_frame(first), sink, first, first)
        sink.calls = [call for call in sink.calls[-10:] if call[0] == "lost"]
        reasons.update(re.sub(r"-?[0-9]+", "#", call[1]) for call in sink.calls)

    reasons: set[str] = set()
    failures: set[bool] = set()
    sink.act = add_five
    try:
        async with open_pool(network, bookie.resolve, rng=Random(1)) as pool:
            connection = pool.connection("b1")
            connection.attach(sink)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_on_and_on)
                await serve_lies()
                nursery.cancel_scope.cancel()
        # Only now: while the pool is open, the end of the last life may be logged after this look.
        statistics = connection.statistics()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        bookie.close()
    assert sent >= frames
    # Not vacuous: many lives, some of which got past the handshake, heard true answers, and were long.
    assert lives > frames // 10
    assert statistics.connects > frames // 20
    assert statistics.adds_answered > frames // 20
    assert statistics.requests_answered > frames // 100
    assert statistics.losses + statistics.failed_attempts >= lives - 2
    # Each of them was cut off with one line in the log that says why.
    assert told.reasons.total() == statistics.losses + statistics.failed_attempts
    assert told.alarms == []
    assert len(told.reasons) > 20, told.reasons
    assert rss_after - rss_before < RSS_GROWTH_BYTES_MAX, f"{rss_after - rss_before} bytes"
    assert all(reasons)
    assert failures == {True}, "every failure names the bookie and its address"
    kinds = {reason.split(":")[0][:40] for reason in reasons}
    assert len(kinds) >= 3, kinds
    assert peak < 16 * MIB
    print(
        f"{sent} frames in {lives} connections: {statistics.connects} shook hands, {told.reasons.total()} "
        f"cut off for {len(told.reasons)} reasons; {rss_after - rss_before} bytes grown, {peak} at most"
    )


@pytest.mark.parametrize("announced", [FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 2**32 - 1])
async def test_a_large_announcement_costs_only_what_arrives(announced: int) -> None:
    buffer = FrameBuffer()
    start = struct.pack("<I", announced) + bytes(1000)
    room = buffer.writable()
    room[: len(start)] = start
    buffer.received(len(start))
    if announced > FRAME_BYTES_MAX:
        with pytest.raises(Exception, match="out of range"):
            buffer.take_frames()
    else:
        assert buffer.take_frames() == []
    for _ in itertools.repeat(None, 3):
        buffer.writable()
    assert buffer.capacity <= 2 * 256 * 1024
