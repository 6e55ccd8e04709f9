"""The key-value example: its command line, and its history while replicas are killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from tests.machine.kv_run import EXAMPLE, Verdict, example, run_kv

pytestmark = pytest.mark.processes


def judge(verdict: Verdict) -> None:
    assert verdict.not_linearizable == ""
    assert len(set(verdict.digests)) == 1, "every replica reached the same state"
    assert "none" not in verdict.digests
    assert verdict.snapshots, "snapshots were taken"
    assert verdict.first_offset > 0, "the log was truncated behind the snapshots"


async def test_the_example_keeps_what_it_answered_while_replicas_are_killed(tmp_path: Path) -> None:
    verdict = await run_kv(
        tmp_path, seconds=0, operations=500, kills=2, kill_every_s=3.0, clients=4, keys=3, seed=1
    )
    judge(verdict)


@pytest.mark.soak
async def test_two_minutes_of_kills(tmp_path: Path) -> None:
    verdict = await run_kv(
        tmp_path, seconds=120, operations=2000, kills=20, kill_every_s=3.0, clients=6, keys=5, seed=2
    )
    print(verdict)
    assert verdict.leaders_killed >= 3
    judge(verdict)


async def test_the_command_line_of_the_example_asks_and_tells(tmp_path: Path) -> None:
    from tests.machine.kv_run import free_addresses, open_children, start_cluster

    async with open_children() as children:
        running = await start_cluster(children, tmp_path / "cluster")
        addresses = free_addresses(2)
        for address in addresses:
            await children.start(address, [sys.executable, str(EXAMPLE), "serve", running.uri, address])

        async def ask(*words: str) -> object:
            command = [sys.executable, str(EXAMPLE), "ask", ",".join(addresses), *words]
            ran = await trio.run_process(command, capture_stdout=True)
            return json.loads(ran.stdout)

        assert await ask("GET", "colour") is None
        assert await ask("SET", "colour", "red") == "OK"
        assert await ask("CAS", "colour", "blue", "green") is False
        assert await ask("CAS", "colour", "red", "green") is True
        assert await ask("GET", "colour") == "green"
        client = example().Client(addresses)
        with pytest.raises(ValueError, match="not a command"):
            await client.ask("NONSENSE")
