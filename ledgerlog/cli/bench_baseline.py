"""The machine's own figures: the time of one synced write and of one loopback round trip.

A lone append cannot be faster than a synced write on the bookies' disks plus a round trip. So its latency is
given as a multiple of these two, measured in the same run. Absolute figures say more about the machine than
about the program.

The write is 4 KiB into a file that was preallocated and written before, like a journal segment. It uses
``pwritev`` with RWF_DSYNC and O_DIRECT if the file system supports them, otherwise ``pwrite`` and
``fdatasync``. The round trip is 128 bytes each way between two processes over blocking sockets.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from pathlib import Path

import attrs
import trio

from ledgerlog.cli.bench_figures import median_ns
from ledgerlog.cli.processes import ChildProcesses

__all__ = ["Baseline", "measure_baseline"]

_BLOCK = 4096
_BLOCKS = 1024
_WRITES = 400
_ROUND_TRIPS = 2000
_BUDGET_S = 1.0
"""Each of the two measurements ends after this time at the latest."""

_ECHO = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(4096):
    peer.sendall(data)
"""


@attrs.frozen
class Baseline:
    """Medians, in milliseconds."""

    sync_ms: float
    round_trip_ms: float

    @property
    def sum_ms(self) -> float:
        """One synced write and one round trip."""
        return self.sync_ms + self.round_trip_ms


async def measure_baseline(directory: Path, children: ChildProcesses) -> Baseline:
    """Measure both; this takes about two seconds. ``directory`` is on the bookies' file system."""
    sync_ms = await trio.to_thread.run_sync(_synced_write_ms, directory)
    echo = await children.start("echo", [sys.executable, "-I", "-S", "-c", _ECHO], pipe_out=True)
    assert echo.stdout is not None
    port = b""
    while not port.endswith(b"\n"):
        port += await echo.stdout.receive_some()
    round_trip_ms = await trio.to_thread.run_sync(_round_trip_ms, int(port))
    await echo.stop()
    return Baseline(sync_ms, round_trip_ms)


def _synced_write_ms(directory: Path) -> float:
    path = directory / "baseline"
    block = mmap.mmap(-1, _BLOCK)  # Aligned, because O_DIRECT needs that.
    block.write(os.urandom(_BLOCK))
    try:
        for flags, sync_flag in ((os.O_DIRECT, os.RWF_DSYNC), (0, os.RWF_DSYNC), (0, 0)):
            try:
                return _time_writes(path, block, flags, sync_flag)
            except OSError:
                if not flags and not sync_flag:
                    raise
        raise AssertionError("the last method either works or raises")
    finally:
        path.unlink(missing_ok=True)
        block.close()


def _time_writes(path: Path, block: mmap.mmap, flags: int, sync_flag: int) -> float:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(_BLOCK * _BLOCKS))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    try:
        durations = []
        end = time.perf_counter_ns() + int(_BUDGET_S * 1e9)
        for number in range(_WRITES):
            began = time.perf_counter_ns()
            os.pwritev(descriptor, [block], number % _BLOCKS * _BLOCK, sync_flag)
            if not sync_flag:
                os.fdatasync(descriptor)
            now = time.perf_counter_ns()
            durations.append(now - began)
            if now > end:
                break
        return median_ns(durations) / 1e6
    finally:
        os.close(descriptor)


def _round_trip_ms(port: int) -> float:
    message = bytes(128)
    durations = []
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter_ns() + int(_BUDGET_S * 1e9)
        for _ in range(_ROUND_TRIPS):
            began = time.perf_counter_ns()
            peer.sendall(message)
            left = len(message)
            while left:
                left -= len(peer.recv(left))
            now = time.perf_counter_ns()
            durations.append(now - began)
            if now > end:
                break
    return median_ns(durations) / 1e6
