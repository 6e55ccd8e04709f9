"""What appending costs by each face of the library, in CPU time.

    python -m tests.bench.bench_faces [ROUNDS]

For 64 tasks that append, for one task that appends alone, and for ``append_many`` of 1,000 records: CPU
microseconds a record of the whole process, in turns of the faces, so that a busy machine disturbs all of them
alike. The figures are medians over the rounds; the bars are those of docs/PERFORMANCE.md.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.contract.faces import AioFace, Face, TrioFace

FACES: tuple[Face, ...] = (
    TrioFace(),
    AioFace("aio"),
    AioFace("aio-guest", guest=True),
    AioFace("aio-uvloop", is_uvloop=True),
)
DATA = bytes(100)


async def of_64_tasks(face: Face, writer: Any, count: int) -> None:
    async def work() -> None:
        for _ in range(count // 64):
            await writer.append(DATA)

    await face.together(*[work] * 64)


async def of_one_task(face: Face, writer: Any, count: int) -> None:
    for _ in range(count):
        await writer.append(DATA)


async def of_many_at_once(face: Face, writer: Any, count: int) -> None:
    for _ in range(count // 1000):
        await writer.append_many([DATA] * 1000)


MODES: dict[str, tuple[Callable[[Face, Any, int], Any], int]] = {
    "64 tasks": (of_64_tasks, 64 * 150),
    "one task": (of_one_task, 500),
    "append_many(1000)": (of_many_at_once, 30_000),
}


def measure(face: Face, mode: str) -> float:
    """CPU microseconds a record."""
    append, count = MODES[mode]
    cost = 0.0

    async def main() -> None:
        nonlocal cost
        with tempfile.TemporaryDirectory() as folder:
            async with face.connect(f"file:{folder}/data") as cluster:
                log = await cluster.create_log("log")
                async with log.writer() as writer:
                    await append(face, writer, max(1000, count // 10))
                    before = time.process_time()
                    await append(face, writer, count)
                    cost = (time.process_time() - before) / count * 1e6

    face.run(main)
    return cost


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for mode in MODES:
        found: dict[str, list[float]] = {face.name: [] for face in FACES}
        for _ in range(rounds):
            for face in FACES:
                found[face.name].append(measure(face, mode))
        base = statistics.median(found["trio"])
        for name, costs in found.items():
            middle = statistics.median(costs)
            print(
                f"{mode:18} {name:11} {middle:8.1f} us  x{middle / base:.2f}  {middle - base:+7.1f} us"
                f"   ({min(costs):.1f} to {max(costs):.1f})"
            )


if __name__ == "__main__":
    main()
