"""What many interleaved ledgers cost a bookie's storage, and what one ledger among them costs its reader.

    python tests/bench/bench_storage.py [--ledgers 10000] [--entries 10000000] [--size 100] [--frame 10]
                                        [--directory PATH] [--small-run-bytes N]
                                        [--index leveldb|rocksdb]

Writes so many entries of so many ledgers, in turn, in frames of ``--frame`` entries, then lets compaction do
what it wants, and reads ledgers one after the other; beside it one ledger alone, written in large frames.
Prints memory, bytes written per byte of payload (as the kernel counts them, the index's included), the
index's size, how long it takes to make it again, and how long starts take, after a clean stop and after a
crash. Times are followed by the CPU time of all threads. Needs about four times the payload on the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory, open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.upkeep.rebuild import rebuild_index
from ledgerlog.limits import MIB, READ_REPLY_BYTES_TARGET
from ledgerlog.model.bookie import Cookie
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import Frame, Status, decode_frame_untrusted

KEY = b"k" * 16
_LEDGERS_READ = 200
_LONE_FRAME = 1000


class Crash(Exception):
    pass


def frame_of(ledger_id: int, first: int, payloads: list[bytes]) -> tuple[Frame, Entries]:
    raw = b"".join(
        encode_add(Entries.build(ledger_id, first, payloads), lac=-1, lafr=-1, key=KEY, recovery=False)
    )
    frame = decode_frame_untrusted(memoryview(raw))
    return frame, decode_entries_untrusted(frame)


def memory_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def bytes_written() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise AssertionError("no write_bytes")


def size_of(path: str) -> int:
    return sum(file.stat().st_blocks * 512 for file in Path(path).rglob("*") if file.is_file())


def tell(name: str, value: str) -> None:
    print(f"{name:44} {value}", flush=True)


async def write(engine: Engine, *, ledgers: int, entries: int, frame: int, size: int) -> None:
    payloads = [os.urandom(size) for _ in range(frame)]
    payload = entries * size
    written, cpu, began = bytes_written(), time.process_time(), time.perf_counter()
    peak = 0.0
    position = done = encoding = 0
    for first in range(0, entries // ledgers, frame):
        for ledger_id in range(ledgers):
            if not engine.has_room:
                await engine.wait_room()
            before = time.process_time_ns()
            add = frame_of(ledger_id, first, payloads)
            encoding += time.process_time_ns() - before
            result = engine.add(*add)
            assert not isinstance(result, Status), result
            position = result
            done += 1
            if done % 64 == 0:
                await trio.lowlevel.checkpoint()
            if done % 20_000 == 0:
                peak = max(peak, memory_mib())
    await engine.wait_durable(position)
    took = time.perf_counter() - began
    used = time.process_time() - cpu - encoding / 1e9
    tell("written", f"{entries / took:,.0f} entries/s, CPU {used / entries * 1e6:.2f} us an entry")
    tell("memory, greatest seen", f"{peak:,.0f} MiB")
    await engine.flush()
    began = time.perf_counter()
    jobs = await engine.compactor.compact(is_eventual=False)
    tell("compaction", f"{jobs} jobs in {time.perf_counter() - began:.1f} s")
    tell("bytes written per byte of payload", f"{(bytes_written() - written) / payload:.2f}")
    figures = engine.statistics()
    tell("  of these the journal", f"{figures['journal_bytes_written'] / payload:.2f}")
    tell("  of these entry logs", f"{figures['log_bytes_written'] / payload:.2f}")
    tell("segments flushed of", f"{figures['segments_flushed']} of {figures['checkpoints']}")


async def read(engine: Engine, ledger_ids: list[int], name: str) -> float:
    """Read one ledger after the other; microseconds of CPU an entry."""
    count = 0
    began, cpu = time.perf_counter(), time.process_time()
    for ledger_id in ledger_ids:
        first = 0
        while True:
            result = await engine.read(
                ledger_id, first=first, last=2**40, stride=1, bytes_max=READ_REPLY_BYTES_TARGET
            )
            assert result.status is Status.OK, result.status
            if not len(result.entries):
                break
            count += len(result.entries)
            first = result.through + 1
    used = (time.process_time() - cpu) / count * 1e6
    tell(name, f"{count / (time.perf_counter() - began):,.0f} entries/s, CPU {used:.2f} us an entry")
    return used


@asynccontextmanager
async def opened(directory: StorageDirectory, config: StorageConfig, name: str) -> AsyncIterator[Engine]:
    began, cpu = time.perf_counter(), time.process_time()
    async with open_engine(directory, config) as engine:
        tell(name, f"{time.perf_counter() - began:.2f} s, CPU {time.process_time() - cpu:.2f} s")
        yield engine


async def measure(arguments: argparse.Namespace, path: str) -> None:
    config = StorageConfig(
        small_run_bytes=arguments.small_run_bytes, compact_interval_s=5, compact_bytes_per_s=256 * MIB
    )
    index = arguments.index
    many, lone = f"{path}/many", f"{path}/lone"
    entries, ledgers, size = arguments.entries, arguments.ledgers, arguments.size
    tell("memory before", f"{memory_mib():,.0f} MiB")
    async with open_directory(many, index=index) as directory:
        await directory.format(Cookie(bookie_id="b1", instance="bench", cluster="bench"))
        async with opened(directory, config, "first start"):
            pass
        async with opened(directory, config, "start of an empty bookie") as engine:
            await write(engine, ledgers=ledgers, entries=entries, frame=arguments.frame, size=size)
        tell("index", f"{size_of(directory.index_path) / entries:.2f} bytes an entry")
        tell("all files", f"{size_of(many) / entries / size:.2f} bytes per byte of payload")
        async with opened(directory, config, "start after a clean stop") as engine:
            chosen = Random(1).sample(range(ledgers), min(ledgers, 2 * _LEDGERS_READ))
            # A store tidies up after it was opened, which is not what is to be measured.
            await read(engine, chosen[_LEDGERS_READ:], "others of them, right after the start")
            chosen = chosen[:_LEDGERS_READ]
            among = await read(engine, chosen, f"one of {ledgers} interleaved ledgers read")
        with contextlib.suppress(Crash):
            async with open_engine(directory, config) as engine:
                crashed = min(entries, 200_000)
                payloads = [os.urandom(size)] * arguments.frame
                for first in range(0, crashed, arguments.frame):
                    await engine.wait_room()
                    engine.add(*frame_of(10**9 + first % 1000, first, payloads))
                    if first % 64 == 0:
                        await trio.lowlevel.checkpoint()
                await engine.wait_durable(engine.durable_position + 1)
                replayed = engine.statistics()["runs_in_memory"]
                raise Crash
        began = time.perf_counter()
        async with open_engine(directory, config):
            took = time.perf_counter() - began
            tell(
                "start after a crash",
                f"{took:.2f} s, {replayed} runs in the segments in memory, {replayed / took:,.0f} runs/s",
            )
        began, cpu = time.perf_counter(), time.process_time()
        runs = await rebuild_index(directory)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        tell(
            "index made again",
            f"{runs} runs in {took:.1f} s, CPU {used:.1f} s, {used / runs * 1e6:.1f} us a run",
        )
        tell("  its size", f"{size_of(directory.index_path) / runs:.1f} bytes a run")
    async with open_directory(lone, index=index) as directory:
        await directory.format(Cookie(bookie_id="b2", instance="bench", cluster="bench"))
        count = min(entries, 1_000_000)
        each = entries // ledgers
        async with open_engine(directory, config) as engine:
            await write(engine, ledgers=1, entries=count, frame=_LONE_FRAME, size=size)
            payloads = [os.urandom(size) for _ in range(min(each, _LONE_FRAME))]
            for ledger_id in range(1, 1 + _LEDGERS_READ):
                for first in range(0, each, len(payloads)):
                    await engine.wait_room()
                    engine.add(*frame_of(ledger_id, first, payloads))
        async with open_engine(directory, config) as engine:
            await read(engine, [0], f"a lone ledger of {count} entries read")
            alone = await read(
                engine, list(range(1, 1 + _LEDGERS_READ)), f"lone ledgers of {each} entries read"
            )
            tell("speed among many against alone", f"{alone / among:.2f} (by CPU)")
    tell(
        "memory, greatest by the kernel",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--frame", type=int, default=10)
    parser.add_argument("--small-run-bytes", type=int, default=StorageConfig().small_run_bytes)
    parser.add_argument("--index", default="", help="the kind of index; that of `bookie run` by default")
    parser.add_argument("--directory", help="where to write; a temporary one by default")
    arguments = parser.parse_args()
    path = tempfile.mkdtemp(prefix="bench-storage-", dir=arguments.directory)
    try:
        trio.run(measure, arguments, path)
    finally:
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
