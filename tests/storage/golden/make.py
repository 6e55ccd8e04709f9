"""Makes the directory of a bookie that the tests keep: ``python tests/storage/golden/make.py``.

What lies beside this file was made with it by the first version that had these formats, and every later
version must read it (tests/storage/test_golden.py). It is not to be made again: a later version of a format
gets a directory of its own, beside the ones before.

It has a segment that stayed, one that is the journal's end after a crash (a torn block behind the last whole
one), entry logs of two levels, a fence, a deleted ledger, entries with gaps, and LevelDB's files.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import trio
from attrs import evolve

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from storing import KEY, SMALL, Crash, ToldOracle, add_durably, opened  # noqa: E402 (found by that path)

from bookie.storage.engine.opening import open_engine  # noqa: E402 (as above)

CONFIG = evolve(SMALL, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)
VERSION = HERE / "version-1"

ENTRIES = {1: range(80), 2: range(0, 160, 2), 4: range(400), 5: range(3)}
"""The entries of each ledger that is there."""

FENCED = (2, 9)
DELETED = (3,)
LAC = (1, 70, 60)
"""A ledger, and its LAC and LAFR."""


async def make(path: Path) -> None:
    async with (
        opened(str(path)) as directory,
        open_engine(
            directory, CONFIG, oracle=ToldOracle(DELETED), new_nonce=lambda: b"golden directory"
        ) as engine,
    ):
        for first in range(0, 80, 2):
            await add_durably(engine, 1, [first, first + 1], lac=min(first, LAC[1]), lafr=min(first, LAC[2]))
            await add_durably(engine, 2, [2 * first, 2 * first + 2])
            await add_durably(engine, 3, [first])
        await engine.fence(2, KEY)
        await engine.fence(9, KEY)
        await engine.flush()
        assert engine.collector is not None
        await engine.collector.collect()
        await engine.compactor.compact(is_eventual=True)
    # Large runs stay: the next life writes a segment that is kept.
    with contextlib.suppress(Crash):
        async with (
            opened(str(path)) as directory,
            open_engine(directory, evolve(CONFIG, small_run_bytes=0)) as engine,
        ):
            for first in range(0, 400, 20):
                await add_durably(engine, 4, range(first, first + 20))
            await add_durably(engine, 5, range(3))
            raise Crash


def tear(path: Path) -> None:
    """Leave the rest of a write that was torn behind the journal's last block, and cut what is only zeros."""
    for segment in sorted((path / "journal").glob("*.journal")):
        content = segment.read_bytes()
        used = len(content.rstrip(b"\0"))
        if used <= 4096:
            segment.unlink()  # Prepared and never written to.
            continue
        last = segment, content
    segment, content = last
    end = -(-len(content.rstrip(b"\0")) // 4096) * 4096
    block = content[end - 4096 : end]
    torn = content[:end] + bytes(512) + block[512:]
    segment.write_bytes(torn.ljust(len(content), b"\0"))


if __name__ == "__main__":
    if VERSION.exists():
        sys.exit(f"{VERSION} is there already, and is kept as it is")
    trio.run(make, VERSION)
    (VERSION / "lock").unlink()
    for name in ("LOCK", "LOG", "LOG.old"):
        (VERSION / "index" / name).unlink(missing_ok=True)
    tear(VERSION)
