"""A bookie that is killed without warning, again and again, keeps everything that it acknowledged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from killed_bookie import CONFIG
from storing import add_frame, payload_of, read, running

from ledgerlog.wire.frame import Status
from tests.waiting import PATIENCE_S

ROUNDS = 6


class Promised:
    """What the killed processes said."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}
        self.fences: set[int] = set()
        self.lines = 0

    def take(self, line: bytes) -> None:
        words = line.split()
        if words[0] == b"fence":
            self.fences.add(int(words[1]))
        elif words[0] != b"ready":
            # Adds that became durable but were not printed any more are there too. The next bookie goes on
            # after them.
            ledger, _first, last = map(int, words)
            self.entries[ledger] = last
            self.lines += 1


async def run_and_kill(path: Path, boot: int, promised: Promised, lines: int) -> None:
    """Let a bookie work until it has printed ``lines`` lines, then kill it. Return all its lines."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(Path(__file__).with_name("killed_bookie.py")), str(path), str(boot)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert process.stdout is not None
    try:
        rest = b""
        goal = promised.lines + lines
        is_killed = False
        async for chunk in process.stdout:
            rest += chunk
            *whole, rest = rest.split(b"\n")
            for line in whole:
                promised.take(line)
            if promised.lines >= goal and not is_killed:
                process.kill()
                is_killed = True
    finally:
        process.kill()
        await process.wait()


@pytest.mark.processes
async def test_a_killed_bookie_boots_with_everything_it_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(3)
    promised = Promised()
    with trio.fail_after(PATIENCE_S):
        for boot in range(ROUNDS):
            await run_and_kill(tmp_path / "b", boot, promised, dice.choice([1, 40, 150, 400]))
        async with running(str(tmp_path / "b"), CONFIG) as engine:
            assert promised.lines > ROUNDS
            for ledger, last in promised.entries.items():
                first = 0
                while first <= last:
                    result = await read(engine, ledger, first, last, bytes_max=100_000)
                    assert result.status is Status.OK
                    assert list(result.entries.ids) == list(range(first, result.through + 1))
                    for entry_id, payload in zip(result.entries.ids, result.entries.payloads(), strict=True):
                        assert payload == payload_of(ledger, entry_id)
                    first = result.through + 1
            assert len(promised.fences) == ROUNDS
            for ledger in promised.fences:
                assert engine.add(*add_frame(ledger, [0])) is Status.FENCED
