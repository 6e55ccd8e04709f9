"""What the bytes of a window of entries cost on this machine without ledgerlog.

    python -m tests.bench.bench_floor [SECONDS]

A client sends frames to three servers over TCP, as a writer with the replication 3/3/2 does, and keeps a
window of them on their way. A server does with a frame what no bookie can leave out, and nothing else: no
event loop, no protocol, no index. The table has the CPU of all four processes for an entry, in microseconds:

    sockets      sends and receives into memory that is kept
    checksums    and one pass over the payload on each side, and one over the pages on each server
    writes       and one synced write past the page cache for each frame, as a journal makes it

A log that copies, checks and syncs its entries in this way needs at least about as much as the last column.
The servers receive each frame into the same memory, which stays in the processor's cache; a bookie does not.
Compare with ``ledgerlog bench write`` in the same minutes.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs

from ledgerlog.limits import KIB, MIB
from ledgerlog.wire.pieces import piece_checksums

SERVERS = 3
PAGE = 4 * KIB
FILE_BYTES = 64 * MIB
PARTS = ("sockets", "checksums", "writes")
_ANSWER = struct.Struct("<Qd")


@attrs.frozen
class Load:
    """A window of entries."""

    entry_bytes: int
    entries: int
    """How many entries there are in a frame."""
    frames: int
    """How many frames are on their way at most."""

    @property
    def frame_bytes(self) -> int:
        """The bytes of a frame, in whole pages."""
        return -(-self.entry_bytes * self.entries // PAGE) * PAGE


LOADS = (Load(100, 330, 3), Load(1024, 330, 3), Load(16384, 32, 32))
"""About the frames that a writer makes of a window of 1,000 entries."""


def serve(parts: int, frame_bytes: int, path: str) -> None:
    """Answer every frame of one client with the number of frames and the CPU time so far."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    arena = memoryview(mmap.mmap(-1, frame_bytes))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(file, 0, FILE_BYTES)
    for at in range(0, FILE_BYTES, MIB):
        os.pwrite(file, mmap.mmap(-1, MIB), at)
    whole, pages = array("I", [frame_bytes]), array("I", [PAGE] * (frame_bytes // PAGE))
    count = at = 0
    while True:
        filled = 0
        while filled < frame_bytes:
            received = peer.recv_into(arena[filled:])
            if not received:
                return
            filled += received
        if parts > 1:
            piece_checksums(0, arena, whole)
            piece_checksums(0, arena, pages)
        if parts > 2:
            at = at if at + frame_bytes <= FILE_BYTES else 0
            os.pwritev(file, [arena], at, os.RWF_DSYNC)
            at += frame_bytes
        count += 1
        peer.sendall(_ANSWER.pack(count, time.process_time()))


def measure(load: Load, parts: int, seconds: float, folder: Path) -> float:
    """CPU microseconds for an entry, over all processes."""
    frame, whole = os.urandom(load.frame_bytes), array("I", [load.frame_bytes])
    with ExitStack() as stack:
        peers = []
        for number in range(SERVERS):
            arguments = (str(parts), str(load.frame_bytes), str(folder / f"{load.entry_bytes}-{number}"))
            server = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.bench.bench_floor", "serve", *arguments],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert server.stdout is not None
            peer = socket.create_connection(("127.0.0.1", int(server.stdout.readline())))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peers.append(stack.enter_context(peer))
        answered = [0] * SERVERS
        cpu = [0.0] * SERVERS

        def answer(index: int) -> None:
            data = peers[index].recv(_ANSWER.size, socket.MSG_WAITALL)
            answered[index], cpu[index] = _ANSWER.unpack(data)

        sent = 0
        began: tuple[float, int] | None = None
        start = time.monotonic()
        while True:
            if parts > 1:
                piece_checksums(0, frame, whole)
            for peer in peers:
                peer.sendall(frame)
            sent += 1
            # Wait for the servers in turn: none is further behind than the window.
            for index in range(SERVERS):
                while sent - answered[index] >= load.frames:
                    answer(index)
            now = time.monotonic() - start
            if began is None and now > seconds / 4:
                began = sum(cpu) + time.process_time(), sent
            elif began is not None and now > seconds:
                break
        spent = sum(cpu) + time.process_time() - began[0]
        return spent / ((sent - began[1]) * load.entries) * 1e6


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with tempfile.TemporaryDirectory() as folder:
        print("| bytes | " + " | ".join(PARTS) + " |\n|---" + "|---" * len(PARTS) + "|")
        for load in LOADS:
            found = [measure(load, parts, seconds, Path(folder)) for parts in range(1, len(PARTS) + 1)]
            print(f"| {load.entry_bytes} | " + " | ".join(f"{each:.2f}" for each in found) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        with suppress(ConnectionError):  # The client has measured enough.
            serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
