"""What the journal costs: an add, a lone group commit beside the bare write, a full load, a replay.

    python tests/bench/bench_journal.py [DIRECTORY]

Prints one figure a line. Wall times say something only beside each other in one run, on a quiet machine; the
directory (a temporary one by default) decides which disk is measured."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

import trio

from bookie.storage.disk.real import RealDisk, RealFile
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from ledgerlog.limits import MIB
from ledgerlog.model.bookie import Cookie
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import HEADER, Frame, Status, decode_frame_untrusted

KEY = b"k" * 16
ENTRIES = 333
PAYLOAD = 100


class Crash(Exception):
    """Leaves an engine without a clean stop."""


def frame_of(ledger_id: int, first: int, count: int, size: int) -> tuple[Frame, Entries]:
    entries = Entries.build(ledger_id, first, [os.urandom(size) for _ in range(count)])
    raw = b"".join(encode_add(entries, lac=first - 1, lafr=first - 1, key=KEY, recovery=False))
    frame = decode_frame_untrusted(memoryview(raw))
    return frame, decode_entries_untrusted(frame)


def renumbered(frame: Frame, ledger_id: int, first: int) -> Frame:
    """The frame with other ids and stale checksums, which the engine does not look at: cheap to make many
    of."""
    count = frame.header.entry_count
    header = frame.header._replace(ledger_id=ledger_id, first=first, last=first + count - 1)
    raw = bytearray(frame.raw)
    HEADER.pack_into(raw, 0, *header)
    return Frame(header, memoryview(raw))


def report(name: str, microseconds: list[float], per: int = 1) -> float:
    ordered = sorted(value / per for value in microseconds)
    middle = statistics.median(ordered)
    p99 = ordered[len(ordered) * 99 // 100]
    print(f"{name:58} p50 {middle:9.2f} us   p99 {p99:9.2f} us")
    return middle


async def timed(count: int, step: Callable[[int], Awaitable[object]]) -> list[float]:
    times = []
    for number in range(count):
        start = time.perf_counter()
        await step(number)
        times.append((time.perf_counter() - start) * 1e6)
    return times


async def bench_write_sync(path: str) -> float:
    """The bare synced write of a page, in place and through each kind of thread hop."""
    disk = RealDisk()
    file = await disk.create(f"{path}/raw", 16 * MIB)
    assert isinstance(file, RealFile)
    assert file.method is not None
    buffer = await disk.make_buffer(4096)
    buffer[:] = os.urandom(4096)
    print(f"files are written with {file.method.value}")
    descriptor = file.direct if file.direct >= 0 else file.descriptor
    flags = getattr(os, "RWF_DSYNC", 0)

    def bare(offset: int) -> None:
        os.pwritev(descriptor, [buffer], offset, flags)

    async def inline(number: int) -> None:
        bare(4096 * number)

    async def to_thread(number: int) -> None:
        await trio.to_thread.run_sync(bare, 4096 * (1000 + number))

    async def write_sync(number: int) -> None:
        await disk.write_sync(file, 4096 * (2000 + number), buffer)

    report("one page, pwritev in place", await timed(500, inline))
    report("one page, trio.to_thread", await timed(500, to_thread))
    middle = report("one page, write_sync (dedicated thread)", await timed(500, write_sync))
    disk.close(file)
    os.unlink(f"{path}/raw")
    await disk.aclose()
    return middle


async def bench_lone(engine: Engine, bare: float) -> None:
    """One small add at a time, as a writer without a window does."""

    async def lone(number: int) -> None:
        position = engine.add(*frames[number])
        assert not isinstance(position, Status)
        await engine.wait_durable(position)

    frames = [frame_of(1, number, 1, 96) for number in range(500)]
    middle = report("a lone frame of 200 bytes, add to durable", await timed(500, lone))
    print(f"{'':58} {middle / bare:.2f} times the bare write_sync")


async def bench_add(engine: Engine) -> None:
    """The cost of ``add`` itself, the copy included, and of the copy alone."""
    frame, entries = frame_of(2, 0, ENTRIES, PAYLOAD)
    adds, copies = [], []
    arena = memoryview(bytearray(64 * MIB))
    first = 0
    for _ in range(30):
        frames = [renumbered(frame, 2, first + ENTRIES * number) for number in range(20)]
        first += 20 * ENTRIES
        await engine.flush()
        start = time.perf_counter()
        for each in frames:
            assert not isinstance(engine.add(each, entries), Status)
        adds.append((time.perf_counter() - start) * 1e6)
        at = first * 100 % (32 * MIB)
        start = time.perf_counter()
        for number, each in enumerate(frames):
            begin = at + number * len(each.raw)
            arena[begin : begin + len(each.raw)] = each.raw
        copies.append((time.perf_counter() - start) * 1e6)
    report(f"add of {ENTRIES} entries of {PAYLOAD} B ({len(frame.raw)} bytes)", adds, 20)
    report("  of which the copy", copies, 20)


async def bench_load(
    engine: Engine, base: int, ledgers: int, frames: int, entries_per_frame: int, size: int
) -> None:
    """As fast as the journal takes it: ``ledgers`` writers with up to 8 frames each under way."""
    frame, entries = frame_of(0, 0, entries_per_frame, size)
    before = engine.statistics()
    cpu, wall = time.process_time(), time.perf_counter()
    sent = 0
    firsts = [0] * ledgers
    while sent < frames:
        if not engine.has_room:
            await engine.wait_room()
        position: int | Status = 0
        for _ in range(min(8 * ledgers, 64)):
            ledger = sent % ledgers
            position = engine.add(renumbered(frame, base + ledger, firsts[ledger]), entries)
            if position is Status.TOO_MANY_REQUESTS:
                break
            assert not isinstance(position, Status), position
            firsts[ledger] += entries_per_frame
            sent += 1
        if not isinstance(position, Status):
            await engine.wait_durable(position - 1)
    await engine.flush()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = engine.statistics()
    count = sent * entries_per_frame
    written = after["journal_bytes_written"] - before["journal_bytes_written"]
    name = f"{ledgers} ledgers, {entries_per_frame} x {size} B a frame, indexed"
    print(
        f"{name:58} {count / wall:,.0f} entries/s, {cpu / count * 1e6:.3f} us CPU an entry, "
        f"{(after['syncs'] - before['syncs'])} syncs, {written / (count * size):.2f} bytes written a byte"
    )


async def bench_replay(path: str) -> None:
    """A start after a crash, with 90 MiB to replay."""
    frame, entries = frame_of(5, 0, ENTRIES, PAYLOAD)

    async def fill_and_crash() -> None:
        async with open_directory(path) as directory, open_engine(directory) as engine:
            for number in range(2_400):
                if not engine.has_room:
                    await engine.wait_room()
                position = engine.add(renumbered(frame, 5, number * ENTRIES), entries)
                assert not isinstance(position, Status), position
                await engine.wait_durable(position - 1)
            raise Crash

    with contextlib.suppress(Crash):
        await fill_and_crash()
    cpu, wall = time.process_time(), time.perf_counter()
    async with open_directory(path) as directory, open_engine(directory) as engine:
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        listed = await engine.list_entries(5, first=0, pairs_max=10)
    print(f"{'start after a crash, up to 90 MiB to replay':58} {wall:.2f} s wall, {cpu:.2f} s CPU")
    assert len(listed.pairs) == 1, "all is there"


async def write_valid(engine: Engine, ledger: int) -> None:
    """Twelve thousand entries whose checksums are right, for reading."""
    for first in range(0, 12_000, ENTRIES):
        assert not isinstance(engine.add(*frame_of(ledger, first, ENTRIES, PAYLOAD)), Status)
    await engine.flush()


async def bench_read(engine: Engine, ledger: int, where: str) -> None:
    async def read(_number: int) -> None:
        result = await engine.read(ledger, first=100, last=10**6, stride=1, bytes_max=MIB)
        assert len(result.entries) > 10_000, result.status

    report(f"read of 1 MiB of 100 B entries from {where}", await timed(20, read))


async def main(base: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=base) as path:
        bare = await bench_write_sync(path)
        async with open_directory(f"{path}/b") as directory:
            await directory.format(Cookie("bench", "instance", "cluster"))
            async with open_engine(directory, StorageConfig()) as engine:
                await bench_lone(engine, bare)
                await bench_add(engine)
                await write_valid(engine, 3)
                await bench_read(engine, 3, "memory")
                await bench_load(engine, 10**6, 1, 12_000, ENTRIES, PAYLOAD)
                await bench_load(engine, 2 * 10**6, 1, 4_000, 64, 1024)
                await bench_load(engine, 3 * 10**6, 100, 12_000, ENTRIES, PAYLOAD)
                await bench_read(engine, 3, "disk")
                await bench_load(engine, 4 * 10**6, 10_000, 20_000, 33, PAYLOAD)
        await bench_replay(f"{path}/b")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", help="where to write; a temporary directory by default")
    trio.run(main, parser.parse_args().directory)
