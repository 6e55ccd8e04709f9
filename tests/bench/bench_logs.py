"""What the log layer costs: run by hand, ``python -m tests.bench.bench_logs [WHAT ...]``.

Each part starts a throw-away cluster of three bookie processes and prints a few lines:

    rolls       latency of lone appends while the log rolls, against the same run without rolls
    follow      from an acknowledgement to the follower that sees the record, on an otherwise idle log
    replay      five million records of 100 bytes, by the batch, by one process and by three at once
    takeover    entering a writer, with so many entries that no bookie knows to be confirmed
    segments    a log of ten thousand ledgers: its record, opening it, taking it over, rolling it
    producers   ten thousand producers: the table in memory and in the log, and opening with it
    open        how long entering takes with deduplication, by what there is to replay
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import tracemalloc
import uuid
from collections.abc import Awaitable, Callable

import attrs
import trio

from ledgerlog.cli.bench_cluster import BenchCluster, open_bench_cluster
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.log.core.producers import Producers
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.producer import Dedupe, NumberedRecords
from ledgerlog.model.segments import LogSegment
from ledgerlog.wire.producers import encode_table

RECORD = bytes(100)


def ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"


def typical(values: list[int]) -> str:
    """The best and the median: between the two lies what else the machine did."""
    return f"{ms(min(values))} to {ms(statistics.median(values))}"


def percentile(values: list[int], part: float) -> int:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


async def rolls(bench: BenchCluster) -> None:
    """The same load on two logs in turns, so that what else happens on the machine happens to both."""
    logs = {
        "steady": await bench.cluster.create_log("steady"),
        "rolling": await bench.cluster.create_log("rolling"),
    }
    taken: dict[str, list[int]] = {name: [] for name in logs}

    async def append(name: str, writer: object, until: float) -> None:
        while trio.current_time() < until:
            began = time.perf_counter_ns()
            await writer.append(RECORD)
            taken[name].append(time.perf_counter_ns() - began)

    async with logs["steady"].writer() as steady, logs["rolling"].writer() as rolling:
        for _ in range(12):
            for name, writer in (("steady", steady), ("rolling", rolling)):
                async with trio.open_nursery() as nursery:
                    until = trio.current_time() + 1.5
                    for _ in range(8):
                        nursery.start_soon(append, name, writer, until)
                    while name == "rolling" and trio.current_time() < until:
                        await trio.sleep(0.15)
                        await writer.roll()
        count = rolling.statistics().rolls
    for name, values in taken.items():
        print(
            f"rolls: {name:8} {len(values):7} appends by 8 tasks, p50 {ms(percentile(values, 0.5))}, "
            f"p99 {ms(percentile(values, 0.99))}, p99.9 {ms(percentile(values, 0.999))}"
        )
    ratio = percentile(taken["rolling"], 0.99) / percentile(taken["steady"], 0.99)
    print(f"rolls: {count} rolls; p99 during rolls = {ratio:.2f} x steady")


async def follow(bench: BenchCluster) -> None:
    log = await bench.cluster.create_log("follow")
    lags: list[int] = []
    seen: dict[int, int] = {}
    acked: dict[int, int] = {}
    count = 400
    async with log.writer() as writer, log.read(follow=True, until=count) as records:

        async def watch() -> None:
            async for record in records:
                seen[record.offset] = time.perf_counter_ns()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(0.5)
            for _ in range(count):
                ack = await writer.append(RECORD)
                acked[ack.offset] = time.perf_counter_ns()
                await trio.sleep(0.02)
    lags = [seen[offset] - acked[offset] for offset in acked]
    print(
        f"follow: p50 {ms(percentile(lags, 0.5))}, p99 {ms(percentile(lags, 0.99))}, "
        f"worst {ms(max(lags))} after the acknowledgement ({count} records, one every 20 ms)"
    )


async def replay(bench: BenchCluster) -> None:
    count = 5_000_000
    log = await bench.cluster.create_log("replay", roll=RollPolicy(max_bytes=128 * 2**20))
    batch = [RECORD] * 10_000
    async with log.writer() as writer:
        meter = await bench.meter()
        began = time.perf_counter()
        for _ in range(count // len(batch)):
            await writer.append_many(batch)
        seconds = time.perf_counter() - began
        spent = await meter.spent()
        print(f"replay: written at {count / seconds:,.0f} records/s, CPU {_cpu(spent.cpu_us(count))}")

    async def read() -> None:
        found = 0
        async with log.read() as records:
            async for one in records.batches():
                found += len(one)
        assert found == count

    for readers in (1, 3):
        meter = await bench.meter()
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(readers):
                nursery.start_soon(read)
        seconds = time.perf_counter() - began
        spent = await meter.spent()
        total = readers * count
        print(
            f"replay: {readers} readers, {total / seconds:,.0f} records/s, "
            f"{total / spent.here_ns * 1e9:,.0f} records a CPU second of the reader, "
            f"CPU {_cpu(spent.cpu_us(total))}; {len((await log.info()).segments)} ledgers"
        )


def _cpu(cpu: dict[str, object]) -> str:
    here, total = cpu["client"], cpu["sum"]
    return f"{here:.2f} us a record here, {total:.2f} with the bookies"


async def _timed(call: Callable[[], Awaitable[object]]) -> int:
    began = time.perf_counter_ns()
    await call()
    return time.perf_counter_ns() - began


def _keep_quiet(writer: LedgerWriter) -> None:
    """Let a ledger's writer tell no bookie how far it is confirmed, which it does with every frame."""
    frame = writer._encoder._frame
    writer._encoder._frame = lambda entries, lac, lafr: frame(entries, -1, -1)
    writer._publish_lac = lambda: None


async def takeover(bench: BenchCluster) -> None:
    for entries in (0, 1_000, 100_000):
        taken = []
        for number in range(5 if entries < 100_000 else 3):
            log = await bench.cluster.create_log(f"takeover-{entries}-{number}")
            with trio.CancelScope() as life:
                async with log.writer(entry_bytes=1) as writer:
                    _keep_quiet(writer._leader._writer)
                    for at in range(0, entries, 10_000):
                        await writer.append_many([RECORD] * min(entries - at, 10_000))
                    life.cancel()
            began = time.perf_counter_ns()
            async with log.writer() as writer:
                taken.append(time.perf_counter_ns() - began)
                assert writer.next_offset == entries
        print(f"takeover: {entries} entries after the LAC: {typical(taken)}")


async def segments(bench: BenchCluster) -> None:
    """The list is made up, and its ledgers are not there; taking over looks at the last ones only."""
    log = await bench.cluster.create_log("segments")
    async with log.writer() as writer:
        await writer.append(RECORD)
    metadata, version = await log._read()
    made_up = []
    offset, at = 0, metadata.created_ms
    dice = random.Random(1)
    ledger_id = 10**6
    for _ in range(10_000):
        count, first_ms = dice.randint(10**6, 10**7), at + dice.randint(0, 200)
        at = first_ms + dice.randint(10_000, 4_000_000)
        made_up.append(LogSegment(ledger_id, 1, offset, count, 2**30 + dice.randrange(2**18), first_ms, at))
        offset, ledger_id = offset + count, ledger_id + dice.randint(1, 3)
    changed = attrs.evolve(metadata, segments=tuple(made_up), epoch=metadata.epoch)
    await log._registry.write(changed, version)
    encoded = changed.encode()
    encode, decode = [], []
    for _ in range(10):  # CPU time: it is what stands in the way of appends.
        began = time.process_time_ns()
        changed.encode()
        encode.append(time.process_time_ns() - began)
        began = time.process_time_ns()
        LogMetadata.decode_untrusted(encoded, metadata.incarnation)
        decode.append(time.process_time_ns() - began)
    print(f"segments: 10,000 ledgers in {len(encoded):,} bytes")
    print(f"segments: encoded in {ms(min(encode))}, decoded in {ms(min(decode))}")

    async def open_it() -> None:
        again = await bench.cluster.open_log("segments")
        assert (await again.info()).next_offset == offset

    opened = [await _timed(open_it) for _ in range(7)]
    print(f"segments: opened and its tail found in {typical(opened)}")
    entered, rolled, latencies = [], [], []
    for _ in range(5):
        began = time.perf_counter_ns()
        async with log.writer() as writer:
            entered.append(time.perf_counter_ns() - began)
            await writer.append(RECORD)
            async with trio.open_nursery() as nursery:

                async def append() -> None:
                    while True:
                        latencies.append(await _timed(lambda: writer.append(RECORD)))

                nursery.start_soon(append)
                rolled.append(await _timed(writer.roll))
                nursery.cancel_scope.cancel()
    print(f"segments: taken over in {typical(entered)}")
    print(f"segments: rolled in {typical(rolled)}, worst append meanwhile {ms(max(latencies))}")


async def producers(bench: BenchCluster) -> None:
    dice = random.Random(1)
    names = [str(uuid.UUID(int=dice.getrandbits(128))) for _ in range(10_000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for runs in (1, 16):
        table = Producers("log", Dedupe())
        for round_number in range(runs):
            for number, name in enumerate(names):
                sequence = 1000 * round_number + dice.randrange(1000)
                offset = round_number * 10_000_000 + 1000 * number
                table.replay([NumberedRecords(name, 0, 1, sequence)], offset, 10**12 + 300 * number)
        memory = tracemalloc.get_traced_memory()[0] - before
        states = table.checkpoint(10**12)
        encoded = encode_table(states)
        print(
            f"producers: 10,000 with {runs} runs each: {memory / 1e6:.1f} MB in memory, "
            f"{len(encoded):,} bytes in a checkpoint"
        )
        del table, states
        before = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    log = await bench.cluster.create_log("producers")
    async with log.writer(dedupe=True) as writer:
        for name in names:
            await writer.submit(RECORD, sequence=0, producer=name)
        await writer.flush()
        checkpoint = [await _timed(lambda: _encoded(writer)) for _ in range(5)]
        print(f"producers: a checkpoint of 10,000 is made in {typical(checkpoint)}")
    total = 1_000_000
    for is_numbered in (False, True):
        async with log.writer(entry_bytes=256 * 1024) as writer:
            meter = await bench.meter()
            began = time.perf_counter()
            for at in range(0, total, 10_000):
                if is_numbered:
                    await writer.append_many([RECORD] * 10_000, sequence=1 + at, producer=names[0])
                else:
                    await writer.append_many([RECORD] * 10_000)
            seconds = time.perf_counter() - began
            spent = await meter.spent()
        print(
            f"producers: append_many of 10,000, {'numbered' if is_numbered else 'plain'}: "
            f"{total / seconds:,.0f} records/s, CPU {_cpu(spent.cpu_us(total))}"
        )


async def _encoded(writer: object) -> None:
    table = writer._core.producers
    encode_table(table.checkpoint(writer._leader.now_ms()))


async def open_(bench: BenchCluster) -> None:
    for count in (1, 10_000):
        for records in (0, 4_000, 500_000):
            name = f"open-{count}-{records}"
            log = await bench.cluster.create_log(name)
            async with log.writer(dedupe=True) as writer:
                for number in range(count):
                    await writer.submit(RECORD, sequence=0, producer=f"producer-{number}")
                await writer.flush()
                small = records == 4_000
                sequence = 1
                while sequence <= records:
                    size = 1 if small else 5_000
                    if small:
                        await writer.submit(RECORD, sequence=sequence, producer="producer-0")
                    else:
                        await writer.append_many([RECORD] * size, sequence=sequence, producer="producer-0")
                    sequence += size
                await writer.flush()
            entered = []
            for _ in range(5):
                began = time.perf_counter_ns()
                async with log.writer():
                    entered.append(time.perf_counter_ns() - began)
            print(
                f"open: {count} producers, then {records} records of one of them"
                f"{' one by one' if small else ''}: taken over in {typical(entered)}"
            )


PARTS: dict[str, Callable[[BenchCluster], Awaitable[None]]] = {
    "rolls": rolls,
    "follow": follow,
    "replay": replay,
    "takeover": takeover,
    "segments": segments,
    "producers": producers,
    "open": open_,
}


async def main(names: list[str]) -> None:
    for name in names or PARTS:
        async with open_bench_cluster(None, bookies=3) as bench:
            await PARTS[name](bench)


if __name__ == "__main__":
    trio.run(main, sys.argv[1:])
