"""The process that test_kill kills: adds entries of a few ledgers and writes what is durable to its output.

    python killed_bookie.py PATH BOOT

Prints ``ready``, then a line ``ledger first last`` for each add once it is durable and ``fence ledger`` for
each fence, in pieces that a single write to a pipe keeps whole."""

from __future__ import annotations

import os
import sys

import trio
from storing import KEY, add, running

from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.engine import Engine

CONFIG = StorageConfig(segment_bytes=64 * 4096, arenas=2, frame_bytes_max=60_000)
LEDGERS = 5


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def write(engine: Engine, ledger: int, first: int) -> None:
    while True:
        await engine.wait_room()
        last = first + (first + ledger) % 30
        await engine.wait_durable(add(engine, ledger, range(first, last + 1)))
        say(f"{ledger} {first} {last}")
        first = last + 1


async def main(path: str, boot: int) -> None:
    async with running(path, CONFIG) as engine:
        say("ready")
        await engine.fence(1000 + boot, KEY)
        say(f"fence {1000 + boot}")
        async with trio.open_nursery() as nursery:
            for ledger in range(LEDGERS):
                listed = await engine.list_entries(ledger, first=0, pairs_max=10**6)
                nursery.start_soon(write, engine, ledger, listed.pairs[-1][1] + 1 if listed.pairs else 0)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
