"""A cluster of real bookie processes on this machine, below one directory.

    PATH/lock                 held by the process that runs the cluster; its pid is inside
    PATH/metadata.sqlite      the metadata; or, where that is kept in ZooKeeper,
    PATH/zookeeper-N/         the directory of server N of the ensemble, and
    PATH/zookeeper-N.log      what it says (``zookeeper``)
    PATH/bookie-N/            the directory of bookie ``bookie-N``, N from 1
    PATH/bookie-N.log         what it says on its standard error

``local_cluster`` starts the bookies and is done when all serve: each has answered a request over its own
connection. A registration in the metadata is not enough, because after a crash one of the process before may
still be there.

**Starting over what was killed.** The bookies of a runner that was killed are killed with it, but may hold
their directories for a moment longer. A bookie that ends before it served is therefore started again, with
growing pauses. That gives up after ``START_ATTEMPTS`` starts in a row that came to nothing, which
covers what never gets better (a damaged or foreign directory) without knowing what it was. One that
says that it was called wrongly (a configuration file with a mistake) is not started again.

**Supervision** (``supervise``) starts a bookie or a ZooKeeper server again that ended after it had served.
Without it, who kills one means it: the demo and tests do.

**Where the metadata is** is decided when the cluster is made, and found out by looking afterwards: a
directory that holds the one kind is not started with the other, which would be a cluster that has forgotten
everything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

import ledgerlog
from ledgerlog.cli.processes import GRACE_S, Child, ChildFailed, Children, open_children, python_command
from ledgerlog.cli.running import ungrouped
from ledgerlog.cli.zookeeper import (
    Server,
    existing_servers,
    hosts_of,
    ports_are_free,
    prepare_servers,
    server_command,
    wait_serving,
)
from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import BookieUnavailable, InvalidArgument, StorageLocked
from ledgerlog.limits import MIB, SHARED_DISK
from ledgerlog.meta.uri import FileUri, SqliteUri
from ledgerlog.model.ids import BookieId
from ledgerlog.wire.frame import Kind, Status

__all__ = ["START_ATTEMPTS", "LocalCluster", "existing_bookies", "existing_metadata", "local_cluster"]

CONFIG_NAME = "bookie.toml"
START_ATTEMPTS = 7
_DELAY_MIN_S = 0.1
_DELAY_MAX_S = 3.2
"""0.1 + 0.2 + ... + 3.2 s, the pauses between seven starts, give a dying process some six seconds."""

_DYING_S = 3.0
"""After that a port of ours is in somebody else's hands, and others are taken."""

_ENSEMBLE_S = 60.0
"""ZooKeeper servers that do not come to serve within this time do not come."""

_LASTING_S = 10.0
"""A server that ran for so long had served."""

_WRONG_USAGE = 2
"""The exit status of a command whose arguments or configuration are wrong: they are so the next time."""

_ANSWER_S = 2.0
_LOOK_S = 0.2

Report = Callable[[str], None]


@attrs.define(eq=False)
class LocalCluster:
    """Made by ``local_cluster``."""

    path: Path
    uri: str
    cluster: Cluster
    """A connection to it, open as long as it runs."""
    children: Children
    """More processes may be started here; none is left when the cluster ends."""
    server_children: Children
    """The same for ZooKeeper servers, which end after the others."""
    config: Path
    """The bookies' configuration file."""
    auto_recovery: bool = False
    """Whether every bookie runs auto-recovery, too."""
    options_of: Callable[[BookieId], Sequence[str]] = lambda _: ()
    """More options of ``bookie run`` for a bookie, asked for at each start; the last of a kind counts."""
    prefix_of: Callable[[BookieId], Sequence[str]] = lambda _: ()
    """What stands before the command of a bookie: a program that becomes it, as nsenter does."""
    bookies: dict[BookieId, Child] = attrs.field(factory=dict)
    """The process of each bookie that was started last."""
    zookeepers: dict[str, Child] = attrs.field(factory=dict)
    """The process of each ZooKeeper server that was started last, by its name (``zookeeper-1``)."""
    servers: dict[str, Server] = attrs.field(factory=dict)
    """Where each ZooKeeper server is; none where the metadata is in SQLite."""

    @property
    def bookie_ids(self) -> list[BookieId]:
        return list(self.bookies)

    def data_path(self, bookie_id: BookieId) -> Path:
        return self.path / bookie_id

    def log_path(self, bookie_id: BookieId) -> Path:
        """Where its process says what it does."""
        return self.path / f"{bookie_id}.log"

    async def start_bookie(self, bookie_id: BookieId) -> Child:
        """Start its process once; it does not serve yet."""
        command = [
            *self.prefix_of(bookie_id),
            *python_command("bookie", "run", str(self.data_path(bookie_id))),
            *("--metadata", self.uri, "--listen", "127.0.0.1:0", "--id", bookie_id),
            *("--config", str(self.config)),
        ]
        if self.auto_recovery:
            command += ["--auto-recovery"]
        command += self.options_of(bookie_id)
        child = await self.children.start(bookie_id, command, log_path=self.log_path(bookie_id))
        self.bookies[bookie_id] = child
        return child

    async def start_serving(self, bookie_id: BookieId, *, attempts: int | None = None) -> Child:
        """Start its process, as often as it takes, until it serves. ChildFailed after so many starts, by
        default START_ATTEMPTS."""
        attempts = START_ATTEMPTS if attempts is None else attempts
        backoff = Backoff(_DELAY_MIN_S, _DELAY_MAX_S)
        for attempt in range(1, attempts + 1):
            child = await self.start_bookie(bookie_id)
            if await self._serves(child):
                return child
            if child.exit_status == _WRONG_USAGE:
                raise ChildFailed(child.how_it_ended())
            if attempt < attempts:
                await trio.sleep(backoff.next_s())
        raise ChildFailed(f"{child.how_it_ended()}; given up after {attempts} starts")

    async def start_zookeeper(self, name: str) -> Child:
        """Start the process of a ZooKeeper server once; it does not serve yet."""
        self.zookeepers[name] = await _start_server(self.server_children, self.servers[name])
        return self.zookeepers[name]

    async def _serves(self, child: Child) -> bool:
        """Wait until a bookie has answered or its process has ended; whether it has answered."""
        answered = False
        async with trio.open_nursery() as nursery:

            async def watch_end() -> None:
                await child.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch_end)
            answered = await self._wait_answer(child.name)
            nursery.cancel_scope.cancel()
        return answered and child.is_running

    async def _wait_answer(self, bookie_id: BookieId) -> bool:
        pool = self.cluster.client.pool
        while True:
            try:
                # Each time anew: one that was made for data that has been replaced never answers again.
                reply = await pool.connection(bookie_id).request(Kind.INFO, timeout_s=_ANSWER_S)
                if reply.header.status == Status.OK:
                    return True
            except BookieUnavailable:
                pass  # Not yet; its process is watched beside this.
            with trio.move_on_after(_LOOK_S):
                await self.cluster.bookies.wait_change()

    async def supervise(self, report: Report) -> None:
        """Keep every bookie running until cancelled; tell ``report`` what happens.

        A bookie whose START_ATTEMPTS come to nothing stays down. ChildFailed once all are down so."""
        down: list[str] = []

        async def keep_server(server: Server) -> None:
            backoff = Backoff(_DELAY_MIN_S, _DELAY_MAX_S)
            while True:
                child, began = self.zookeepers[server.name], trio.current_time()
                await child.wait()
                report(f"{child.how_it_ended()}; starting it again")
                # One that ends as soon as it was started is started ever more rarely, and never given up:
                # the others may be a majority without it.
                if trio.current_time() - began > _LASTING_S:
                    backoff.reset()
                await trio.sleep(backoff.next_s())
                await self.start_zookeeper(server.name)

        async def keep(bookie_id: BookieId) -> None:
            while True:
                child = self.bookies[bookie_id]
                await child.wait()
                report(f"{child.how_it_ended()}; starting it again")
                try:
                    await self.start_serving(bookie_id)
                except ChildFailed as failure:
                    report(f"{failure}; it stays down")
                    down.append(bookie_id)
                    if len(down) == len(self.bookies):
                        raise
                    return
                report(f"{bookie_id} serves again")

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for server in self.servers.values():
                    nursery.start_soon(keep_server, server)
                for bookie_id in self.bookie_ids:
                    nursery.start_soon(keep, bookie_id)


@asynccontextmanager
async def local_cluster(
    path: Path,
    *,
    bookies: int,
    config: Path | None = None,
    zookeepers: int = 0,
    grace_s: float = GRACE_S,
    auto_recovery: bool = False,
    options_of: Callable[[BookieId], Sequence[str]] = lambda _: (),
    prefix_of: Callable[[BookieId], Sequence[str]] = lambda _: (),
) -> AsyncIterator[LocalCluster]:
    """Bookies ``bookie-1`` to ``bookie-N``, all serving, for the body of the ``async with``.

    The directory is made if there is none, and so is ``bookie.toml`` in it, the bookies' options, unless
    ``config`` names another file. The metadata is in SQLite, or in ``zookeepers`` servers of
    ZooKeeper (as many as the directory has, where it has some). StorageLocked if another process runs a
    cluster there; InvalidArgument if its metadata is of the other kind; ChildFailed if a bookie or a server
    does not come to serve; ZooKeeperMissing; what ``ledgerlog.connect`` raises. Leaving stops the bookies
    gracefully, for ``grace_s``, and then the servers; none is left."""
    wanted, existing = "zookeeper" if zookeepers else "sqlite", existing_metadata(path)
    if existing not in (None, wanted):
        raise InvalidArgument(
            f"the metadata of the cluster in {path} is in {existing}, not in {wanted}: run it with "
            f"--metadata {existing}, or choose another directory"
        )
    with _lock(path), ungrouped():
        config = config or _own_config(path)
        # Their own children, outside the bookies': these unregister while they end.
        async with open_children(grace_s=grace_s) as server_children:
            with trio.move_on_after(_DYING_S):
                # Servers of a runner that was killed are killed with it, and may take a moment.
                while not ports_are_free(path):  # noqa: ASYNC110 (a port cannot be waited for)
                    await trio.sleep(_DELAY_MIN_S)
            servers = prepare_servers(path, zookeepers) if zookeepers else []
            running = {server.name: await _start_server(server_children, server) for server in servers}
            await _wait_ensemble(servers, running)
            uri = f"zk://{hosts_of(servers)}" if servers else _sqlite_uri(path)
            async with (
                ledgerlog.connect(uri, create=True) as cluster,
                open_children(grace_s=grace_s) as children,
            ):
                local = LocalCluster(path, uri, cluster, children, server_children, config, auto_recovery)
                local.options_of, local.prefix_of = options_of, prefix_of
                local.zookeepers, local.servers = running, {server.name: server for server in servers}
                async with trio.open_nursery() as nursery:
                    for number in range(1, bookies + 1):
                        nursery.start_soon(local.start_serving, _bookie_id(number))
                local.bookies = {_bookie_id(n): local.bookies[_bookie_id(n)] for n in range(1, bookies + 1)}
                yield local


async def _start_server(children: Children, server: Server) -> Child:
    log_path = server.directory.with_name(f"{server.name}.log")
    return await children.start(server.name, server_command(server.config_path), log_path=log_path)


async def _wait_ensemble(servers: list[Server], running: dict[str, Child]) -> None:
    """Return once all serve. ChildFailed if one ends before, or it takes too long."""

    async def watch_end(child: Child) -> None:
        await child.wait()
        raise ChildFailed(child.how_it_ended())

    with trio.move_on_after(_ENSEMBLE_S):
        async with trio.open_nursery() as nursery:
            for child in running.values():
                nursery.start_soon(watch_end, child)
            for server in servers:
                await wait_serving(server)
            nursery.cancel_scope.cancel()
            return
    logs = servers[0].directory.with_name("zookeeper-*.log")
    raise ChildFailed(f"ZooKeeper does not serve after {_ENSEMBLE_S:g} s; see {logs}")


def existing_metadata(path: Path) -> str | None:
    """Where a cluster in that directory keeps its metadata: sqlite, zookeeper, or None for no cluster."""
    if existing_servers(path):
        return "zookeeper"
    return "sqlite" if Path(FileUri(str(path.absolute())).metadata_path).exists() else None


def existing_bookies(path: Path) -> int:
    """The highest number of a bookie that has a directory there; 0 where there is none."""
    numbers = (child.name.removeprefix("bookie-") for child in path.glob("bookie-*") if child.is_dir())
    return max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0)


def _sqlite_uri(path: Path) -> str:
    return str(SqliteUri(FileUri(str(path.absolute())).metadata_path))


def _own_config(path: Path) -> Path:
    """The file of options in a cluster's own directory. The first start writes it, and from then on it is its
    owner's: edit it, and start again."""
    config = path / CONFIG_NAME
    if not config.exists():
        write_config(config, segment_bytes=16 * MIB)
    return config


def write_config(config: Path, **options: float) -> None:
    """Write a file of options for bookies that share a machine, and these."""
    lines = [f"{name} = {value}\n" for name, value in {**SHARED_DISK, **options}.items()]
    whole = config.with_suffix(".new")
    whole.write_text("".join(lines), encoding="utf-8")
    whole.replace(config)


def _bookie_id(number: int) -> BookieId:
    return f"bookie-{number}"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).strip()
            raise StorageLocked(str(path), int(holder) if holder.isdigit() else None) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
