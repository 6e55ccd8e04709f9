"""The systems that ``python -m tests.bench.peers`` measures: three servers each, on this machine.

An open system has its servers running. It runs loads and returns their figures. The client is a separate
process. Its CPU time counts like the CPU time of the servers. The clients of the peers print ``begin`` when
the warm-up is over, and ``end`` with the figures as JSON when the load is over. Then they wait until their
standard input ends, so that their CPU time can be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from ledgerlog.cli.bench_figures import CpuClock
from ledgerlog.cli.processes import Child, ChildFailed, ChildProcesses, open_children, python_command
from ledgerlog.cli.zookeeper import HOST, free_ports, hosts_of, prepare_servers, server_command, wait_serving
from tests.bench.peers.programs import bookkeeper_classes, go_programs, program

__all__ = ["SYSTEMS", "Figures", "Load", "Open", "Peer", "System", "Times"]

_SERVERS = 3
_READY_S = 120.0
_JVM = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseG1GC")
_BOOKKEEPER_TUNED = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "journalFlushWhenQueueEmpty": "true",
}


@attrs.frozen
class Load:
    """Records of one size, with a number of them in flight."""

    size: int
    window: int

    @property
    def title(self) -> str:
        flight = "one at a time" if self.window == 1 else f"window {self.window}"
        return f"{self.size:,} B, {flight}"


@attrs.frozen
class Times:
    """How long a load runs, in seconds."""

    warm_up: float
    measured: float


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of one run of a load. CPU is that of the client and all servers, for each record."""

    records_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


class Open(Protocol):
    """A system whose servers run."""

    async def run(self, loads: Sequence[Load], times: Times) -> list[Figures]:
        """Run the loads one after the other."""
        ...


@attrs.frozen
class System:
    """A system to measure."""

    name: str
    title: str
    get: Callable[[Path], Callable[[Path], AbstractAsyncContextManager[Open]]]
    """Gets the programs, in the directory that it is called with. Returns a function that opens the system in
    another directory. NotHere: it cannot get the programs."""


# --- our own ------------------------------------------------------------------------------------------


@attrs.frozen
class _Ours:
    """``ledgerlog bench write`` starts a cluster and measures itself."""

    children: ChildProcesses
    directory: Path

    async def run(self, loads: Sequence[Load], times: Times) -> list[Figures]:
        found: dict[Load, Figures] = {}
        for size in dict.fromkeys(load.size for load in loads):
            windows = [load.window for load in loads if load.size == size]
            for line in await self._bench(size, [w for w in windows if w > 1] or [1000], times):
                run = json.loads(line)
                found[Load(size, run["window"])] = Figures(
                    records_per_s=run["records_per_s"],
                    p50_ms=run["p50_ms"],
                    p99_ms=run["p99_ms"],
                    cpu_us=run["cpu_us"]["sum"],
                )
        return [found[load] for load in loads]

    async def _bench(self, size: int, windows: list[int], times: Times) -> list[str]:
        command = python_command("ledgerlog", "bench", "write", "--json", "--seconds", str(times.measured))
        command += ["--size", str(size), "--window", ",".join(map(str, windows))]
        log = self.directory / "ledgerlog.log"
        environment = {**os.environ, "TMPDIR": str(self.directory)}
        child = await self.children.start(
            "ledgerlog bench", command, pipe_out=True, log_path=log, environment=environment
        )
        assert child.stdout is not None
        text = b"".join([chunk async for chunk in child.stdout])
        if await child.wait() != 0:
            raise ChildFailed(child.how_it_ended())
        return text.decode().splitlines()


@asynccontextmanager
async def _open_ours(directory: Path) -> AsyncIterator[Open]:
    async with open_children() as children:
        yield _Ours(children, directory)


# --- the others ---------------------------------------------------------------------------------------


@attrs.frozen
class Peer:
    """Running servers, and the command of a client."""

    children: ChildProcesses
    servers: Sequence[Child]
    client: Callable[[Load, Times], Sequence[str]]
    directory: Path

    async def run(self, loads: Sequence[Load], times: Times) -> list[Figures]:
        return [await self._run(load, times) for load in loads]

    async def _run(self, load: Load, times: Times) -> Figures:
        client = await self.children.start(
            "client",
            self.client(load, times),
            pipe_in=True,
            pipe_out=True,
            log_path=self.directory / "client.log",
        )
        assert client.stdin is not None
        said: dict[str, Any] = {}
        with trio.fail_after(_READY_S + times.warm_up + times.measured):
            async with aclosing(_words(client)) as words:
                async for word, figures in words:
                    if word == "begin":
                        clock = self._clock(client)
                    elif word == "end":
                        self._check_running(client)
                        said = {**json.loads(figures), "cpu_ns": sum(clock.spent_ns()[1].values())}
                        await client.stdin.aclose()
            await client.wait()
        if not said:
            raise ChildFailed(client.how_it_ended())
        return Figures(
            records_per_s=said["records"] / said["seconds"],
            p50_ms=said["p50_ms"],
            p99_ms=said["p99_ms"],
            cpu_us=said["cpu_ns"] / 1000 / said["records"],
        )

    def _clock(self, client: Child) -> CpuClock:
        self._check_running(client)
        return CpuClock({child.name: child.pid for child in [*self.servers, client]})

    def _check_running(self, client: Child) -> None:
        """Raise ChildFailed if a process has ended: then nobody can read its CPU time any more."""
        for child in [*self.servers, client]:
            if child.exit_status is not None:
                raise ChildFailed(child.how_it_ended())


async def _words(client: Child) -> AsyncGenerator[tuple[str, str], None]:
    """Yield the first word of each line that the client prints, and the rest of the line."""
    assert client.stdout is not None
    text = ""
    async for chunk in client.stdout:
        *lines, text = (text + chunk.decode()).split("\n")
        for line in lines:
            word, _, rest = line.partition(" ")
            yield word, rest


def _numbers(load: Load, times: Times) -> list[str]:
    return [str(load.size), str(load.window), str(times.warm_up), str(times.measured)]


async def _wait_listening(child: Child, port: int) -> None:
    with trio.fail_after(_READY_S):
        while True:
            if not child.is_running:
                raise ChildFailed(child.how_it_ended())
            try:
                await (await trio.open_tcp_stream(HOST, port)).aclose()
                return
            except OSError:
                await trio.sleep(0.1)


@asynccontextmanager
async def _open_bookkeeper(classes: str, java: str, tuned: bool, directory: Path) -> AsyncIterator[Open]:
    async with open_children() as children:
        (zookeeper,) = prepare_servers(directory, 1)
        log = directory / "zookeeper.log"
        servers = [await children.start("zookeeper", server_command(zookeeper.config_path), log_path=log)]
        with trio.fail_after(_READY_S):
            await wait_serving(zookeeper)
        uri = f"zk+hierarchical://{hosts_of([zookeeper])}/ledgers"
        load = [java, *_JVM, "-cp", classes, "LedgerLoad"]
        made = await children.start("init", [*load, "init", uri], log_path=directory / "init.log")
        if await made.wait() != 0:
            raise ChildFailed(made.how_it_ended())
        ports = free_ports(_SERVERS)
        for number, port in enumerate(ports, 1):
            place = directory / f"bookie-{number}"
            place.mkdir()
            config = {
                "metadataServiceUri": uri,
                "bookiePort": port,
                "advertisedAddress": HOST,
                "allowLoopback": "true",
                "httpServerEnabled": "false",
                "diskUsageThreshold": "0.99",
                "journalDirectories": place / "journal",
                "ledgerDirectories": place / "ledgers",
                **(_BOOKKEEPER_TUNED if tuned else {}),
            }
            path = place / "bookie.conf"
            path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
            command = [java, *_JVM, "-cp", classes, "org.apache.bookkeeper.server.Main", "--conf", str(path)]
            log = directory / f"bookie-{number}.log"
            servers.append(await children.start(f"bookie-{number}", command, log_path=log))
            await _wait_listening(servers[-1], port)
        yield Peer(
            children,
            servers,
            lambda at, times: [*load, uri, str(tuned).lower(), *_numbers(at, times)],
            directory,
        )


@asynccontextmanager
async def _open_nats(programs: Path, sync: str, directory: Path) -> AsyncIterator[Open]:
    async with open_children() as children:
        all_ports = free_ports(2 * _SERVERS)
        ports, routes = all_ports[:_SERVERS], all_ports[_SERVERS:]
        servers = []
        for number, (port, route) in enumerate(zip(ports, routes, strict=True), 1):
            path = directory / f"nats-{number}.conf"
            path.write_text(
                f'listen: "{HOST}:{port}"\nserver_name: "nats-{number}"\n'
                f'jetstream {{ store_dir: "{directory / f"nats-{number}"}", sync_interval: {sync} }}\n'
                f'cluster {{ name: "load", listen: "{HOST}:{route}", routes: ['
                + ", ".join(f'"nats-route://{HOST}:{each}"' for each in routes)
                + "] }\n"
            )
            command = [str(programs / "nats-server"), "--config", str(path)]
            log = directory / f"nats-{number}.log"
            servers.append(await children.start(f"nats-{number}", command, log_path=log))
        for child, port in zip(servers, ports, strict=True):
            await _wait_listening(child, port)
        yield _go_peer("nats", [f"{HOST}:{port}" for port in ports], programs, children, servers, directory)


@asynccontextmanager
async def _open_redis(programs: Path, server: str, directory: Path) -> AsyncIterator[Open]:
    async with open_children() as children:
        ports = free_ports(_SERVERS)
        servers = []
        for number, port in enumerate(ports, 1):
            place = directory / f"redis-{number}"
            place.mkdir()
            options = {
                "bind": HOST,
                "port": str(port),
                "dir": str(place),
                "save": "",
                "appendonly": "yes",
                "appendfsync": "always",
                "repl-diskless-sync-delay": "0",
            }
            command = [server, *(part for key, value in options.items() for part in (f"--{key}", value))]
            if number > 1:
                command += ["--replicaof", HOST, str(ports[0])]
            log = directory / f"redis-{number}.log"
            servers.append(await children.start(f"redis-{number}", command, log_path=log))
            await _wait_listening(servers[-1], port)
        yield _go_peer("redis", [f"{HOST}:{ports[0]}"], programs, children, servers, directory)


@asynccontextmanager
async def _open_etcd(programs: Path, directory: Path) -> AsyncIterator[Open]:
    async with open_children() as children:
        all_ports = free_ports(2 * _SERVERS)
        ports, peers = all_ports[:_SERVERS], all_ports[_SERVERS:]
        members = ",".join(f"etcd-{n}=http://{HOST}:{port}" for n, port in enumerate(peers, 1))
        servers = []
        for number, (port, peer) in enumerate(zip(ports, peers, strict=True), 1):
            options = {
                "name": f"etcd-{number}",
                "data-dir": str(directory / f"etcd-{number}"),
                "listen-client-urls": f"http://{HOST}:{port}",
                "advertise-client-urls": f"http://{HOST}:{port}",
                "listen-peer-urls": f"http://{HOST}:{peer}",
                "initial-advertise-peer-urls": f"http://{HOST}:{peer}",
                "initial-cluster": members,
                "quota-backend-bytes": str(8 << 30),
                "log-level": "error",
            }
            command = [str(programs / "etcd"), *(f"--{key}={value}" for key, value in options.items())]
            log = directory / f"etcd-{number}.log"
            servers.append(await children.start(f"etcd-{number}", command, log_path=log))
        for child, port in zip(servers, ports, strict=True):
            await _wait_listening(child, port)
        yield _go_peer("etcd", [f"{HOST}:{port}" for port in ports], programs, children, servers, directory)


def _go_peer(
    name: str,
    addresses: Sequence[str],
    programs: Path,
    children: ChildProcesses,
    servers: Sequence[Child],
    directory: Path,
) -> Open:
    start = [str(programs / "load"), name, ",".join(addresses)]
    return Peer(children, servers, lambda load, times: [*start, *_numbers(load, times)], directory)


def _get_bookkeeper(tuned: bool, programs: Path) -> Callable[[Path], AbstractAsyncContextManager[Open]]:
    java = program("java", "default-jre-headless")
    return partial(_open_bookkeeper, bookkeeper_classes(programs), java, tuned)


def _get_nats(sync: str, programs: Path) -> Callable[[Path], AbstractAsyncContextManager[Open]]:
    return partial(_open_nats, go_programs(programs), sync)


def _get_redis(programs: Path) -> Callable[[Path], AbstractAsyncContextManager[Open]]:
    server = program("redis-server", "redis-server")
    return partial(_open_redis, go_programs(programs), server)


def _get_etcd(programs: Path) -> Callable[[Path], AbstractAsyncContextManager[Open]]:
    return partial(_open_etcd, go_programs(programs))


SYSTEMS = (
    System("ledgerlog", "ledgerlog, ledger API", lambda _: _open_ours),
    System("bookkeeper", "Apache BookKeeper, tuned", partial(_get_bookkeeper, True)),
    System("bookkeeper-defaults", "Apache BookKeeper, defaults", partial(_get_bookkeeper, False)),
    System("nats", "NATS JetStream R3, sync always", partial(_get_nats, "always")),
    System("nats-unsynced", "NATS JetStream R3, sync every 2 min", partial(_get_nats, '"2m"')),
    System("redis", "Redis Streams, fsync always + WAIT 1", _get_redis),
    System("etcd", "etcd", _get_etcd),
)
