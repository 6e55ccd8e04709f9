"""``ledgerlog cluster run`` as a process, for tests; and runs of the ``ledgerlog`` command."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from tests.commands import Ran, run_command
from tests.waiting import PATIENCE_S, until

LEDGERLOG = (sys.executable, "-m", "ledgerlog")


@attrs.frozen
class RunningCluster:
    uri: str
    pids: dict[str, int]
    """The addresses of its bookies."""
    child: Child
    zookeepers: dict[str, int] = attrs.field(factory=dict)
    """The addresses of its ZooKeeper servers, if it has some."""
    admin: dict[str, str] = attrs.field(factory=dict)
    """The addresses of its bookies' administration ports, if they have some."""

    def says(self) -> str:
        """The lines that it has written to standard error so far."""
        assert self.child.log_path is not None
        return self.child.log_path.read_text(encoding="utf-8")

    async def wait_for(self, words: str) -> None:
        """Return once its standard error has ``text``."""
        await until(lambda: words in self.says())


async def start_cluster(children: ChildProcesses, path: Path, *options: str) -> RunningCluster:
    """Start a cluster below ``path`` and return once it serves."""
    command = [*LEDGERLOG, "cluster", "run", str(path), "--json", *options]
    log_path = path.with_name(f"{path.name}.stderr")
    child = await children.start("cluster", command, pipe_out=True, log_path=log_path)
    assert child.stdout is not None
    line = b""
    with trio.fail_after(PATIENCE_S):
        while not line.endswith(b"\n"):
            more = await child.stdout.receive_some()
            assert more, log_path.read_text(encoding="utf-8")
            line += more
    said = json.loads(line)
    return RunningCluster(
        said["uri"], said["bookies"], child, said.get("zookeepers", {}), said.get("admin", {})
    )


@asynccontextmanager
async def running_cluster(path: Path, *options: str) -> AsyncIterator[RunningCluster]:
    async with open_children() as children:
        yield await start_cluster(children, path, *options)


async def ledgerlog(*args: str, uri: str, stdin: bytes | None = None) -> Ran:
    """Run the command to its end."""
    return await run_command("ledgerlog", *args, "--uri", uri, stdin=stdin or b"")


async def ledgerlog_ok(*args: str, uri: str, stdin: bytes | None = None) -> bytes:
    """Return the standard output of a command that must succeed with an empty standard error."""
    ran = await ledgerlog(*args, uri=uri, stdin=stdin)
    assert ran.status == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout
