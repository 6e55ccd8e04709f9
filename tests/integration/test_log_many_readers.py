"""Several processes read one log at once, while another one writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from integration.running_cluster import LEDGERLOG, ledgerlog_ok, running_cluster

import ledgerlog

pytestmark = pytest.mark.processes


async def test_processes_that_follow_and_replay_see_the_same_log(tmp_path: Path) -> None:
    count = 20_000
    expected = b"".join(b"record %d\n" % number for number in range(count))
    outputs: dict[str, bytes] = {}

    async def read(name: str, uri: str, *options: str) -> None:
        command = [*LEDGERLOG, "log", "read", "orders", "--raw", "--uri", uri, *options]
        ran = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
        assert ran.stderr == b"", ran.stderr
        outputs[name] = ran.stdout

    async with running_cluster(tmp_path / "cluster") as cluster:
        await ledgerlog_ok("log", "create", "orders", uri=cluster.uri)
        await ledgerlog_ok("log", "configure", "orders", "--roll-records", "3000", uri=cluster.uri)
        async with ledgerlog.connect(cluster.uri) as connected:
            log = await connected.open_log("orders")
            async with trio.open_nursery() as nursery:
                for number in range(2):
                    nursery.start_soon(
                        read, f"follower {number}", cluster.uri, "--follow", "--until", str(count)
                    )
                lines = expected.splitlines()
                for half in (lines[: count // 2], lines[count // 2 :]):  # Two leaders, one after the other.
                    async with log.writer() as writer:
                        for at in range(0, len(half), 500):
                            await writer.append_many(half[at : at + 500])
                for number in range(2):
                    nursery.start_soon(read, f"replay {number}", cluster.uri)
                nursery.start_soon(read, "part", cluster.uri, "--start", "10000", "--until", "10002")
    assert outputs.pop("part") == b"record 10000\nrecord 10001\n"
    assert len(outputs) == 4
    for name, output in outputs.items():
        assert output == expected, name
