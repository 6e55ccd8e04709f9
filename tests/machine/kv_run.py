"""Run the key-value example, and kill its replicas.

Three replicas and a cluster run as processes. Clients record every answer, and a replica is killed now and
then. At the end, the history is judged.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import trio

import ledgerlog
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.cli.zookeeper import free_ports
from ledgerlog.testing.history import History, NotLinearizable
from tests.integration.running_cluster import start_cluster
from tests.waiting import PATIENCE_S, until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kv.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kv_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def free_addresses(count: int) -> list[str]:
    """Return addresses that are free at the moment."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


Command = tuple[str, str, str | None, str | None]
"""A verb, a key, the value that a CAS expects, and the value that a SET or CAS writes."""


def apply(value: str | None, command: Command) -> tuple[str | None, Any]:
    """Specify one key: return its new value and the answer to the command."""
    verb, _, old, new = command
    match verb:
        case "GET":
            return value, value
        case "SET":
            return new, None
        case _:
            return (new, True) if value == old else (value, False)


@attrs.define(eq=False)
class Verdict:
    operations: int = 0
    kills: int = 0
    leaders_killed: int = 0
    longest_ms: float = 0.0
    not_linearizable: str = ""
    digests: list[str] = attrs.Factory(list)
    first_offset: int = 0
    next_offset: int = 0
    snapshots: list[int] = attrs.Factory(list)


@attrs.define(eq=False)
class Run:
    uri: str
    addresses: list[str]
    children: ChildProcesses
    directory: Path
    rng: random.Random
    kv: ModuleType
    replicas: dict[str, Child] = attrs.Factory(dict)
    history: History[Command] = attrs.Factory(History)
    verdict: Verdict = attrs.Factory(Verdict)
    is_over: bool = False
    numbers: int = 0

    async def start(self, address: str) -> None:
        command = [sys.executable, str(EXAMPLE), "serve", self.uri, address]
        log_path = self.directory / f"{address}.log"
        self.replicas[address] = await self.children.start(address, command, log_path=log_path)

    async def client(self, keys: list[str]) -> None:
        """Send one command after another, and record when each began and ended."""
        client = self.kv.Client(self.rng.sample(self.addresses, len(self.addresses)))
        last: dict[str, str | None] = {}
        while not self.is_over:
            key = self.rng.choice(keys)
            self.numbers += 1
            new = str(self.numbers)
            verb = self.rng.choice(["GET", "SET", "CAS"])
            old = last.get(key) if verb == "CAS" else None
            words = {"GET": ["GET", key], "SET": ["SET", key, new], "CAS": ["CAS", key, old, new]}[verb]
            call = self.history.begin((verb, key, old, None if verb == "GET" else new))
            begun = time.monotonic()
            answer = await client.ask(*words)
            call.answered(None if verb == "SET" else answer)
            self.verdict.longest_ms = max(self.verdict.longest_ms, 1000 * (time.monotonic() - begun))
            last[key] = answer if verb == "GET" else new
            await trio.sleep(0.02 * self.rng.random())  # Leave the replicas some of the machine.

    async def state(self, address: str) -> dict[str, Any] | None:
        answered = await self.kv.ask_at(address, b'{"id": "", "do": ["STATE"]}\n')
        return answered.get("ok")

    async def kill_one(self) -> None:
        address = self.rng.choice(self.addresses)
        state = await self.state(address)
        self.verdict.leaders_killed += bool(state and state["leads"])
        self.replicas[address].kill()
        await self.replicas[address].wait()
        self.verdict.kills += 1
        await trio.sleep(self.rng.random())
        await self.start(address)


async def run_kv(
    directory: Path,
    *,
    seconds: float,
    operations: int,
    kills: int,
    kill_every_s: float,
    clients: int,
    keys: int,
    seed: int,
) -> Verdict:
    """Run everything for at least ``seconds``, ``operations`` and ``kills``, and return the verdict."""
    async with open_children() as children:
        running = await start_cluster(children, directory / "cluster")
        addresses = free_addresses(3)
        run = Run(running.uri, addresses, children, directory, random.Random(seed), example())
        for address in addresses:
            await run.start(address)
        names = [f"key-{number}" for number in range(keys)]
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(run.client, names)
            end = trio.current_time() + seconds
            while trio.current_time() < end or run.verdict.kills < kills:
                await trio.sleep(kill_every_s * (0.5 + run.rng.random()))
                await run.kill_one()
            await until(lambda: len(run.history.calls) >= operations)
            run.is_over = True
        verdict = run.verdict
        verdict.operations = len(run.history.calls)
        try:
            run.history.check(apply, initial=None, key=lambda command: command[1])
        except NotLinearizable as error:
            verdict.not_linearizable = str(error)
        with trio.move_on_after(PATIENCE_S):
            while True:
                states = [await run.state(address) for address in addresses]
                verdict.digests = ["none" if state is None else state["digest"] for state in states]
                if len(set(verdict.digests)) == 1 and "none" not in verdict.digests:
                    break
                await trio.sleep(0.1)
        async with ledgerlog.connect(running.uri) as cluster:
            log = await cluster.open_log("kv")
            info = await log.info()
            verdict.first_offset, verdict.next_offset = info.first_offset, info.next_offset
            found = await ledgerlog.LedgerSnapshots(cluster).find(log.incarnation)
            verdict.snapshots = [snapshot.next_offset for snapshot in found]
        return verdict
