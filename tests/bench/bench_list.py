"""What many small batches leave in the list of a log.

    python tests/bench/bench_list.py [--batches 1000000] [--tasks 8] [--bytes 20000] [--commits 2000]

Two parts:

- *cluster*: ``--commits`` splices on three bookies in memory: ledgers, transactions, gathering. Prints the
  time of a commit, of a takeover, and of opening a reader at the start, in the middle and at the end.
- *list*: the record of a log after ``--batches`` splices of ``--tasks`` ledgers each. This runs the code that
  changes the record and decides what is gathered, without ledgers. Prints the size of the record, the time to
  encode and to decode it (the part of a takeover and of opening a reader that grows with the list), and how
  many bytes gathering copies. Nothing is extrapolated. The same is done without gathering, up to the number
  of ledgers at which a log takes no more splices.
"""

from __future__ import annotations

import argparse
import statistics
import time
from random import Random

import attrs
import trio

from ledgerlog.limits import LOG_SEGMENTS_SPLICE_MAX
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit, Staged
from ledgerlog.log.core.gather import plan_gather
from ledgerlog.log.log import Log, create_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, open_cluster

_RECORD_BYTES = 100
_LUMP = 8192


def measure_list(batches: int, tasks: int, size: int, *, gathers: bool) -> None:
    if not gathers:  # The same ledgers in fewer splices: a splice takes time in proportion to the list.
        batches, tasks = batches * tasks // _LUMP, _LUMP
    dice = Random(1)
    log = LogMetadata.create(
        name="log", incarnation=1, created_ms=0, token=bytes(16), replication=Replication(3, 3, 2)
    )
    log = attrs.evolve(log, epoch=1)
    added = copied = runs = longest = largest = next_id = done = 0
    began = time.process_time()
    for number in range(batches):
        if not gathers and len(log.segments) + tasks > LOG_SEGMENTS_SPLICE_MAX:
            break
        staged = []
        for _ in range(tasks):
            records = max(1, round(dice.uniform(0.5, 1.5) * size / _RECORD_BYTES))
            staged.append((next_id, records, records * _RECORD_BYTES + dice.randrange(_RECORD_BYTES)))
            next_id += 1
        log = log.spliced(staged, 1_700_000_000_000 + 1000 * number, bytes(16), counts=None)
        added += sum(each[2] for each in staged)
        done += 1
        while gathers and (parts := plan_gather(log, ())):
            joined = log.gathered(parts, next_id, bytes(16))
            assert joined is not None
            log, next_id, runs = joined, next_id + 1, runs + 1
            copied += sum(part.byte_length or 0 for part in parts)
        longest = max(longest, len(log.segments))
        if number % 1000 == 0:
            largest = max(largest, len(log.encode()))
    spent = time.process_time() - began
    data = log.encode()
    began = time.process_time()
    for _ in range(10):
        log.encode()
    encoding = (time.process_time() - began) / 10
    began = time.process_time()
    for _ in range(10):
        LogMetadata.decode_untrusted(data, 1)
    decoding = (time.process_time() - began) / 10
    print(
        f"{'gathered' if gathers else 'not gathered'}: {done:,} batches of {tasks} ledgers, "
        f"{added / 2**30:.1f} GiB; "
        f"{len(log.segments):,} ledgers listed (at most {longest:,}), record {len(data):,} bytes "
        f"(at most {max(largest, len(data)):,}); encoding {encoding * 1e3:.2f} ms, decoding "
        f"{decoding * 1e3:.2f} ms; {runs:,} runs gathered, each byte copied {copied / added:.2f} times; "
        f"{spent / done * 1e6:.0f} us CPU a batch",
        flush=True,
    )


async def staged_ledger(client: Client, log: Log, values: list[bytes]) -> Staged:
    registry = LogRegistry(client.opened.store, client.opened.environment)
    async with stage(client.opened, registry, log.name, log.incarnation) as opened:
        await opened.append_many(values)
        made = await opened.close()
    assert made is not None
    return made


async def measure_cluster(commits: int, tasks: int) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2))
        registry = LogRegistry(client.opened.store, client.opened.environment)
        times = []
        for number in range(commits):
            ledgers = [await staged_ledger(client, log, [bytes(_RECORD_BYTES)] * 10) for _ in range(tasks)]
            batch = Commit(producer="p", source="s", run="r", batch=number, staged=tuple(ledgers))
            began = time.perf_counter()
            await splice(client.opened, registry, log.name, log.incarnation, batch)
            times.append(time.perf_counter() - began)
        metadata, _ = await registry.read(log.incarnation)
        assert metadata is not None
        end = metadata.counted_end
        opening = {}
        for start in (0, end // 2, end - 1):
            began = time.perf_counter()
            async with log.read(start) as records:
                await anext(records)
            opening[start] = time.perf_counter() - began
        began = time.perf_counter()
        async with log.writer():
            taking_over = time.perf_counter() - began
        times.sort()
        print(
            f"cluster: {commits:,} commits of {tasks} ledgers: {len(metadata.segments)} ledgers listed, "
            f"record {len(metadata.encode()):,} bytes; a commit {statistics.median(times) * 1e3:.1f} ms, "
            f"with gathering up to {times[-1] * 1e3:.0f} ms, on average {statistics.mean(times) * 1e3:.1f} "
            "ms; "
            f"takeover {taking_over * 1e3:.1f} ms; opening at "
            + ", ".join(f"{at:,}: {taken * 1e3:.1f} ms" for at, taken in opening.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=20_000, help="bytes of a task, on average")
    parser.add_argument("--commits", type=int, default=2000)
    args = parser.parse_args()
    if args.commits:
        trio.run(measure_cluster, args.commits, args.tasks)
    for gathers in (False, True):
        measure_list(args.batches, args.tasks, args.bytes, gathers=gathers)


if __name__ == "__main__":
    main()
