"""Leaders as processes that are killed, or stopped and continued."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog.cli.bench_failover import PARTS
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.limits import ELECTION_TENURE_S
from tests.commands import run_command
from tests.integration.running_cluster import RunningCluster, start_cluster
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("fault", "rounds"),
    [
        ("kill", 2),
        # Another test, below, has a leader that is stopped and goes on.
        pytest.param("stop", 1, marks=pytest.mark.soak),
        ("cut-bookies", 1),
        ("cut-store", 1),
    ],
)
async def test_the_failover_benchmark_tells_how_long_each_part_takes(
    shared: RunningCluster, fault: str, rounds: int
) -> None:
    # Only a cluster of its own has its metadata in ZooKeeper.
    where = () if fault == "cut-store" else ("--uri", shared.uri)
    ran = await run_command(
        *("ledgerlog", "bench", "failover", "--rounds", str(rounds), "--fault", fault, "--json"), *where
    )
    assert ran.status == 0, ran.stderr
    *each, summary = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(each) == summary["rounds"] == rounds
    for one in each:
        assert tuple(one["parts_ms"]) == PARTS
        assert all(ms > 0 for ms in one["parts_ms"].values())
        assert one["total_ms"] == pytest.approx(sum(one["parts_ms"].values()), rel=0.01)
        if fault == "cut-store":
            assert 0 < one["gap_ms"] < one["total_ms"], "its open ledger needed no store"
        else:
            assert one["gap_ms"] == one["total_ms"]
    assert sum(part["share"] for part in summary["parts"].values()) == pytest.approx(1, abs=0.01)
    assert summary["fault"] == fault
    assert summary["gap_p50_ms"] > 0


async def test_the_failover_benchmark_cuts_no_store_off_that_is_a_file(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    async with ledgerlog.connect(uri, create=True):
        pass
    ran = await run_command("ledgerlog", "bench", "failover", "--fault", "cut-store", "--uri", uri)
    assert ran.status == 1
    assert "--fault cut-store needs a cluster with its metadata in ZooKeeper" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


async def start_candidate(children: ChildProcesses, uri: str, name: str, directory: Path) -> Child:
    return await children.start(
        name,
        [sys.executable, "-m", "ledgerlog.cli.bench_candidate", uri, "log", name],
        pipe_in=True,
        pipe_out=True,
        log_path=directory / f"{name}.log",
    )


async def says(child: Child, event: str) -> None:
    assert child.stdout is not None
    heard = b""
    with trio.fail_after(PATIENCE_S):
        while f'"event": "{event}"'.encode() not in heard:
            more = await child.stdout.receive_some()
            assert more, child.how_it_ended()
            heard += more


async def test_a_stopped_leader_that_goes_on_has_written_nothing_after_its_successor(tmp_path: Path) -> None:
    async with open_children() as children:
        running = await start_cluster(children, tmp_path / "cluster")
        async with ledgerlog.connect(running.uri) as cluster:
            log = await cluster.create_log("log")
            first = await start_candidate(children, running.uri, "first", tmp_path)
            await says(first, "leading")
            second = await start_candidate(children, running.uri, "second", tmp_path)
            await says(second, "standing")
            await trio.sleep(2 * ELECTION_TENURE_S)
            first.send_signal(signal.SIGSTOP)
            await says(second, "leading")
            first.send_signal(signal.SIGCONT)
            await trio.sleep(2 * ELECTION_TENURE_S)
            second.kill()
            await says(first, "leading")
            assert first.stdin is not None
            first.stdin.close()
            await first.wait()
            async with log.writer(), log.read(0) as records:  # A takeover shows all that was acknowledged.
                history = [(record.epoch, record.data) async for record in records]
    epochs = [epoch for epoch, _ in history]
    assert epochs == sorted(epochs), "nothing of a leader stands behind the first record of the next one"
    assert dict(history) == {1: b"first", 2: b"second", 3: b"first"}
