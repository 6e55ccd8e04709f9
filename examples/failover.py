"""Leader election and failover: one of three processes writes; if it is killed, another one continues.

    python examples/failover.py

This starts a temporary cluster and three copies of itself. It kills the leading copy with SIGKILL, twice, and
reads the log. It starts a copy with

    python examples/failover.py NAME URI

What to look at, in ``serve``: ``log.lead`` campaigns, takes over the log, steps down and tries again. The
election decides which process *should* write. The takeover decides which process *can* write, because it
fences the previous writer. So if a leader only seemed to be dead, it cannot write any more, and no
acknowledged record is lost or in the log twice.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from itertools import groupby
from subprocess import PIPE
from typing import Any

import trio

import ledgerlog


async def serve(name: str, uri: str) -> None:
    """Write a record every 20 ms while leading."""
    async with ledgerlog.connect(uri) as cluster:
        log = await cluster.create_log("ticks", exist_ok=True)
        async with log.lead(cluster.election("ticks", candidate=name)) as campaign:
            while True:
                await campaign.writer()  # Waits until this process leads.
                try:
                    ack = await campaign.append(name.encode())
                except (ledgerlog.NotLeader, ledgerlog.AppendUnknown) as why:
                    print(f"{name}: {why}", file=sys.stderr)  # Another process leads.
                    continue
                print(json.dumps({"name": name, "offset": ack.offset}), flush=True)
                await trio.sleep(0.02)


async def pass_on(process: trio.Process, events: trio.MemorySendChannel[dict[str, Any]]) -> None:
    """Read the output of a process, one JSON object a line."""
    assert process.stdout is not None
    rest = b""
    async for data in process.stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            await events.send(json.loads(line))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with trio.open_nursery() as nursery:
            say, events = trio.open_memory_channel[dict[str, Any]](1000)

            async def start(*arguments: str) -> trio.Process:
                run = partial(trio.run_process, [sys.executable, *arguments], stdout=PIPE, check=False)
                process: trio.Process = await nursery.start(run)
                nursery.start_soon(pass_on, process, say)
                return process

            cluster = await start("-m", "ledgerlog", "cluster", "run", directory, "--json")
            uri = (await events.receive())["uri"]
            processes = {name: await start(__file__, name, uri) for name in ("anna", "bert", "cleo")}
            for _ in range(2):
                leader = (await events.receive())["name"]
                await trio.sleep(1)
                killed = time.monotonic()
                processes[leader].kill()
                while (event := await events.receive())["name"] == leader:
                    pass
                took_ms = 1000 * (time.monotonic() - killed)
                print(
                    f"{leader} killed; {event['name']} wrote record {event['offset']} after {took_ms:.0f} ms"
                )
            for process in processes.values():
                process.kill()
            async with ledgerlog.connect(uri) as connected:
                log = await connected.open_log("ticks")
                async with log.writer(), log.read() as records:  # Takes over once more, to see all of it.
                    names = [record.data.decode() async for record in records]
            print(f"{len(names)} records, written by {', then '.join(name for name, _ in groupby(names))}")
            cluster.terminate()


if __name__ == "__main__":
    trio.run(serve if len(sys.argv) == 3 else main, *sys.argv[1:])
