"""What the stores of a bookie's index cost, in turns.

    python tests/bench/bench_index.py [--rounds 5] [--rows 150000] [--directory PATH]

Each round writes the same rows of runs into an index of each kind, in synced batches of a thousand, and reads
them. Prints the median of the rounds, the least and the most, as CPU time of all threads, and the bytes on
the disk.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

import trio

from bookie.core.rows import BEHIND_ALL_KEYS, Change, run_key
from bookie.storage.disk.real import RealDisk
from bookie.storage.index.kinds import NAMES, StoredIndexes

_BATCH_ROWS = 1000
_LEDGERS = 2000
_GETS = 20_000
_SCANS = 3000
_SCAN_ROWS = 20
_SMALL_BATCHES = 300
_VALUE_BYTES = 44


def batches_of(rows: int) -> list[list[Change]]:
    random = Random(1)
    return [
        [
            (run_key(random.randrange(_LEDGERS), first + number), random.randbytes(_VALUE_BYTES))
            for number in range(_BATCH_ROWS)
        ]
        for first in range(0, rows, _BATCH_ROWS)
    ]


def size_of(path: Path) -> int:
    """The bytes of all files but RocksDB's messages for its developers."""
    return sum(file.stat().st_size for file in path.iterdir() if not file.name.startswith("LOG"))


async def measure(kind: str, path: Path, rows: int) -> dict[str, float]:
    disk = RealDisk()
    indexes = StoredIndexes(disk, asked=kind)
    index = await indexes.create(str(path))
    found: dict[str, float] = {}
    batches = batches_of(rows)
    began = time.process_time()
    for batch in batches:
        await index.write(batch)
    found["us a row written"] = (time.process_time() - began) / rows * 1e6
    began = time.process_time()
    await index.aclose()
    found["bytes a row"] = size_of(path) / rows
    index = await indexes.open(str(path))
    found["ms for a stop and a start"] = (time.process_time() - began) * 1e3
    keys = [key for batch in batches for key, _ in batch]
    chosen = Random(2).choices(keys, k=_GETS)
    began = time.process_time()
    for key in chosen:
        assert index.get_now(key) is not None
    found["us a lookup"] = (time.process_time() - began) / _GETS * 1e6
    began = time.process_time()
    for key in chosen[:_SCANS]:
        index.scan_now(key, BEHIND_ALL_KEYS, floor=key, limit=_SCAN_ROWS)
    found[f"us a range of {_SCAN_ROWS} rows"] = (time.process_time() - began) / _SCANS * 1e6
    began = time.process_time()
    for number in range(_SMALL_BATCHES):
        await index.write([(run_key(_LEDGERS, number), bytes(_VALUE_BYTES))])
    found["us a batch of one row"] = (time.process_time() - began) / _SMALL_BATCHES * 1e6
    await index.aclose()
    await disk.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--directory", help="where to write; a temporary one by default")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in NAMES}
    path = Path(tempfile.mkdtemp(prefix="bench-index-", dir=arguments.directory))
    try:
        for number in range(arguments.rounds):
            for kind in NAMES:
                place = path / f"{kind}-{number}"
                found[kind].append(trio.run(measure, kind, place, arguments.rows))
                shutil.rmtree(place)
    finally:
        shutil.rmtree(path)
    for name in found[NAMES[0]][0]:
        for kind, rounds in found.items():
            values = [each[name] for each in rounds]
            least, most = min(values), max(values)
            print(f"{name:28} {kind:8} {statistics.median(values):8.1f}  ({least:.1f} to {most:.1f})")


if __name__ == "__main__":
    main()
