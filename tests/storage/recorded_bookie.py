"""The process whose system calls test_crash_calls records: a bookie on real files that works, stops, starts
and works again.

    python recorded_bookie.py PATH KIND

What it promised is appended to PATH/../notes, one expression of Python a line, so that the promises have
their places among the calls. Nothing is synced there: notes never get lost."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial

import trio
from attrs import evolve
from crashing import NotedOracle, add_noted, fence_noted
from recording_disk import Recorder
from storing import SMALL, Crash, opened
from trio.testing import wait_all_tasks_blocked

from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine

CONFIG = evolve(SMALL, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40, ballast_bytes=0)
LIVES = 3


class WrittenNotes(Recorder):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: object) -> None:
        super().note(what)
        os.write(self._file, f"{what!r}\n".encode())


async def work(engine: Engine, notes: Recorder, oracle: NotedOracle, life: int) -> None:
    assert engine.collector is not None
    for turn in range(4 * life, 4 * life + 4):
        for ledger in range(1, 5):
            if ledger not in oracle.gone:
                await add_noted(engine, notes, ledger, range(12 * turn, 12 * turn + 6))
                await add_noted(engine, notes, ledger, range(12 * turn + 6, 12 * turn + 12))
        await fence_noted(engine, notes, 20 + turn)
        await wait_all_tasks_blocked()
        if turn % 2:
            await engine.flush()
            await engine.index.refresh()
        if turn % 4 == 1:
            oracle.gone |= {1 + life, 20 + turn}
            await engine.collector.collect()
            notes.note(("deleted", tuple(oracle.gone)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.compactor.compact, is_eventual=True))
            await add_noted(engine, notes, 50 + turn, range(4))


async def main(path: str, kind: str) -> None:
    notes = WrittenNotes(os.path.join(os.path.dirname(path), "notes"))
    oracle = NotedOracle(notes)
    for life in range(LIVES):
        with contextlib.suppress(Crash):
            async with (
                opened(path, index=kind) as directory,
                open_engine(directory, evolve(CONFIG, index=kind), oracle=oracle) as engine,
            ):
                notes.note(("formatted",))
                await work(engine, notes, oracle, life)
                if life % 2:
                    raise Crash


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
