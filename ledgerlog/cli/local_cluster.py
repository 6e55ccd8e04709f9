"""A cluster of real bookie processes on this machine, below one directory.

    PATH/lock                 held by the process that runs the cluster; its pid is inside
    PATH/metadata.sqlite      the metadata, unless it is kept in ZooKeeper
    PATH/metadata.sqlite.secret, PATH/cluster.secret
                              the cluster's secret, with SQLite and with ZooKeeper. The cluster serves only
                              processes that have the secret. Processes of this user on this machine find it
                              by themselves
    PATH/zookeeper-N/         the directory of server N of the ZooKeeper ensemble (``cli.zookeeper``)
    PATH/zookeeper-N.log      the log of that server
    PATH/bookie-N/            the directory of bookie ``bookie-N``, N from 1
    PATH/bookie-N.log         the standard error of that bookie

``local_cluster`` starts the bookies and is ready when all serve: each has answered a request over its own
connection. A registration in the metadata does not prove that: after a crash, the registration of the
previous process may still be there.

**Starting again after a kill.** If a runner is killed, its bookies are killed with it, but they may hold
their directories for a moment longer. So if a bookie ends before it has served, it is started again, with
growing pauses. After ``START_ATTEMPTS`` failed starts in a row, the cluster gives up. So the tries also end
if a fault never heals, such as a damaged directory or a directory of another bookie. If a bookie reports
wrong usage (for example, a mistake in its configuration file), it is not started again.

**Supervision** (``supervise``) restarts a bookie or a ZooKeeper server that ended after it had served. The
demo and tests run without it, because they kill processes on purpose.

**The kind of metadata store** is chosen when the cluster is made. Later starts find it from the contents of
the directory. A directory with one kind is never started with the other kind: such a cluster would have lost
all metadata.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from ledgerlog.cli.processes import GRACE_S, Child, ChildFailed, ChildProcesses, open_children, python_command
from ledgerlog.cli.running import ungrouped
from ledgerlog.cli.trial_certificates import make_certificates, tls_files
from ledgerlog.cli.zookeeper import (
    ZookeeperServer,
    existing_servers,
    hosts_of,
    ports_are_free,
    prepare_servers,
    server_command,
    wait_serving,
)
from ledgerlog.cluster import Cluster, open_cluster
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.durable_directories import make_directories
from ledgerlog.errors import BookieUnavailable, InvalidArgument, StorageLocked
from ledgerlog.limits import MIB, SHARED_DISK
from ledgerlog.meta.uri import ClusterUri, FileUri, SqliteUri, make_cluster_at, parse_uri
from ledgerlog.model.admission import ProvenBy
from ledgerlog.model.credentials import NO_CREDENTIALS, Credentials
from ledgerlog.model.ids import BookieId
from ledgerlog.model.principal import Principal, PrincipalKind
from ledgerlog.proving import make_closed_cluster, secret_beside
from ledgerlog.wire.frame import Kind, Status

__all__ = ["START_ATTEMPTS", "LocalCluster", "existing_bookies", "existing_metadata", "local_cluster"]

CONFIG_NAME = "bookie.toml"
START_ATTEMPTS = 7
_DELAY_MIN_S = 0.1
_DELAY_MAX_S = 3.2
"""The longest pause. Seven starts have the pauses 0.1 + 0.2 + ... + 3.2 s: a dying process gets some 6 s."""

_DYING_S = 3.0
"""If a server's port is still taken after this time, another process uses it, and we choose other ports."""

_PORTS_TRIES = 5
"""How many times we choose ports for the ZooKeeper servers."""

_ENSEMBLE_S = 60.0
"""ZooKeeper servers that do not serve within this time count as failed."""

_LASTING_S = 10.0
"""A server that ran for this long has served."""

_WRONG_USAGE = 2
"""The exit status of a command with wrong arguments or configuration. Trying again would not help."""

_SECRET_NAME = "cluster.secret"

_ANSWER_S = 2.0
_LOOK_S = 0.2

Report = Callable[[str], None]


@attrs.define(eq=False)
class LocalCluster:
    """A running cluster. ``local_cluster`` makes it."""

    path: Path
    uri: str
    cluster: Cluster
    """A connection to the cluster. It is open while the cluster runs."""
    children: ChildProcesses
    """Starts processes that end with the bookies. You may start other processes too."""
    server_children: ChildProcesses
    """The same for ZooKeeper servers, which end after the bookies."""
    config: Path
    """The bookies' configuration file."""
    auto_recovery: bool = False
    """Whether every bookie also runs auto-recovery."""
    credentials: Credentials = NO_CREDENTIALS
    """The credentials of this cluster's clients."""
    credentials_of: Callable[[BookieId], Credentials] = lambda _: NO_CREDENTIALS
    """Returns the credentials of a bookie. Called at each start."""
    options_of: Callable[[BookieId], Sequence[str]] = lambda _: ()
    """Returns more options of ``bookie run`` for a bookie. Called at each start; later options win."""
    prefix_of: Callable[[BookieId], Sequence[str]] = lambda _: ()
    """Returns words to put before a bookie's command: a program that turns into it, like nsenter."""
    bookies: dict[BookieId, Child] = attrs.field(factory=dict)
    """The last process that was started for each bookie."""
    down: list[BookieId] = attrs.field(factory=list)
    """The bookies that stay down, because they did not start to serve."""
    zookeepers: dict[str, Child] = attrs.field(factory=dict)
    """The last process that was started for each ZooKeeper server, by name (``zookeeper-1``)."""
    servers: dict[str, ZookeeperServer] = attrs.field(factory=dict)
    """Each ZooKeeper server's directory and ports; empty if the metadata is in SQLite."""

    @property
    def bookie_ids(self) -> list[BookieId]:
        return list(self.bookies)

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment for a child process that connects to the cluster."""
        return self.credentials.environment_of_child(os.environ)

    def data_path(self, bookie_id: BookieId) -> Path:
        """Return the path of the bookie's directory."""
        return self.path / bookie_id

    def log_path(self, bookie_id: BookieId) -> Path:
        """Return the path of the bookie's standard error."""
        return self.path / f"{bookie_id}.log"

    async def start_bookie(self, bookie_id: BookieId) -> Child:
        """Start the bookie's process once. It does not serve yet."""
        command = [
            *self.prefix_of(bookie_id),
            *python_command("bookie", "run", str(self.data_path(bookie_id))),
            *("--metadata", self.uri, "--listen", "127.0.0.1:0", "--id", bookie_id),
            *("--config", str(self.config)),
        ]
        if self.auto_recovery:
            command += ["--auto-recovery"]
        command += self.options_of(bookie_id)
        child = await self.children.start(
            bookie_id,
            command,
            log_path=self.log_path(bookie_id),
            environment=self.credentials_of(bookie_id).environment_of_child(os.environ),
        )
        self.bookies[bookie_id] = child
        return child

    async def start_serving(self, bookie_id: BookieId, *, attempts: int | None = None) -> Child:
        """Start the bookie's process until it serves.

        Args:
            bookie_id: The bookie.
            attempts: How many starts to try; None: ``START_ATTEMPTS``.

        Raises:
            ChildFailed: The bookie did not serve after this many starts, or it reported wrong usage.
        """
        attempts = START_ATTEMPTS if attempts is None else attempts
        backoff = Backoff(_DELAY_MIN_S, _DELAY_MAX_S)
        why = ""
        for attempt in range(1, attempts + 1):
            try:
                child = await self.start_bookie(bookie_id)
            except ChildFailed as refused:  # For example, the machine has no room for another process now.
                why = str(refused)
            else:
                if await self._serves(child):
                    return child
                why = child.how_it_ended()
                if child.exit_status == _WRONG_USAGE:
                    break
            if attempt < attempts:
                await trio.sleep(backoff.next_s())
        else:
            why += f"; given up after {attempts} starts"
        raise ChildFailed(why)

    async def start_zookeeper(self, name: str) -> Child:
        """Start the process of a ZooKeeper server once. It does not serve yet."""
        self.zookeepers[name] = await _start_server(self.server_children, self.servers[name])
        return self.zookeepers[name]

    async def _serves(self, child: Child) -> bool:
        """Wait until the bookie has answered or its process has ended. Return whether it serves."""
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
                # Ask for the connection each time: a connection for replaced data never answers again.
                reply = await pool.connection(bookie_id).request(Kind.INFO, timeout_s=_ANSWER_S)
                if reply.header.status == Status.OK:
                    return True
            except BookieUnavailable:
                pass  # It does not serve yet. Another task watches its process.
            with trio.move_on_after(_LOOK_S):
                await self.cluster.bookies.wait_change()

    async def supervise(self, report: Report) -> None:
        """Keep all processes running until cancelled.

        A bookie that fails ``START_ATTEMPTS`` starts in a row stays down.

        Args:
            report: Called with a line about each event.

        Raises:
            ChildFailed: All bookies stay down.
        """

        async def keep_server(server: ZookeeperServer) -> None:
            backoff = Backoff(_DELAY_MIN_S, _DELAY_MAX_S)
            while True:
                child, began = self.zookeepers[server.name], trio.current_time()
                await child.wait()
                report(f"{child.how_it_ended()}; starting it again")
                # If a server ends right after its start, wait longer each time, but never give up: the other
                # servers may be a majority without it.
                if trio.current_time() - began > _LASTING_S:
                    backoff.reset()
                while True:
                    await trio.sleep(backoff.next_s())
                    try:
                        await self.start_zookeeper(server.name)
                        break
                    except ChildFailed as refused:
                        report(f"{refused}; trying again")

        async def keep(bookie_id: BookieId) -> None:
            while True:
                child = self.bookies[bookie_id]
                await child.wait()
                report(f"{child.how_it_ended()}; starting it again")
                try:
                    await self.start_serving(bookie_id)
                except ChildFailed as failure:
                    self.stays_down(bookie_id, failure, report)
                    return
                report(f"{bookie_id} serves again")

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for server in self.servers.values():
                    nursery.start_soon(keep_server, server)
                for bookie_id in self.bookie_ids:
                    if bookie_id not in self.down:
                        nursery.start_soon(keep, bookie_id)

    def stays_down(self, bookie_id: BookieId, failure: ChildFailed, report: Report) -> None:
        """Note that a bookie stays down. If it was the last one, raise ``failure``."""
        report(f"{failure}; {bookie_id} stays down")
        self.down.append(bookie_id)
        if {*self.bookies} <= {*self.down}:
            raise failure


ADMIN = Principal(PrincipalKind.ADMIN, "admin")
CLIENT = Principal(PrincipalKind.CLIENT, "client")
"""In a local cluster with certificates, ``ADMIN`` and ``CLIENT`` have one, besides the bookies."""


def certificates_path(path: Path) -> Path:
    """Return the directory of the certificates of the cluster in a directory."""
    return path / "certificates"


def _certified(path: Path, bookies: int) -> tuple[Credentials, Callable[[BookieId], Credentials]]:
    """Make new certificates for a cluster in the directory ``path``, and an authority if it has none.

    Args:
        path: The cluster's directory. This process has its lock.
        bookies: How many bookies it has.

    Returns:
        The credentials of this process, and a function that returns those of a bookie.

    Raises:
        CryptographyMissing: The package ``cryptography`` is not installed.
        InvalidArgument: A file cannot be read or written, or the authority's files are damaged.
    """
    directory = certificates_path(path)
    certificates = {
        _bookie_id(n): Principal(PrincipalKind.BOOKIE, _bookie_id(n)) for n in range(1, bookies + 1)
    }
    make_certificates(directory, [*certificates.values(), ADMIN, CLIENT], again=True)

    def credentials_of(bookie_id: BookieId) -> Credentials:
        return Credentials(tls=tls_files(directory, certificates[bookie_id]))

    return Credentials(tls=tls_files(directory, ADMIN)), credentials_of


@asynccontextmanager
async def local_cluster(
    path: Path,
    *,
    bookies: int,
    config: Path | None = None,
    zookeepers: int = 0,
    grace_s: float = GRACE_S,
    auto_recovery: bool = False,
    is_closed: bool = True,
    with_tls: bool = False,
    options_of: Callable[[BookieId], Sequence[str]] = lambda _: (),
    prefix_of: Callable[[BookieId], Sequence[str]] = lambda _: (),
    report: Report | None = None,
) -> AsyncIterator[LocalCluster]:
    """Run bookies ``bookie-1`` to ``bookie-N`` for the body of the ``async with``.

    All of them serve at its start, unless you pass ``report``. Credentials in the environment are ignored,
    because they belong to another cluster.

    At the end of the body, the bookies stop gracefully, then the ZooKeeper servers. No process is left.

    Args:
        path: The cluster's directory. It is made if it does not exist.
        bookies: How many bookies.
        config: The bookies' configuration file. None: ``bookie.toml`` in the directory, which is made if it
            does not exist.
        zookeepers: 0: the metadata is in SQLite. Otherwise it is in this many ZooKeeper servers, or in as
            many as the directory has already.
        grace_s: How long processes may take to end.
        auto_recovery: Run auto-recovery in every bookie.
        is_closed: Whether a new cluster without certificates gets a secret, and serves only processes that
            have the secret.
        with_tls: Make new certificates in the directory, from its authority, and use TLS.
        options_of: See ``LocalCluster.options_of``.
        prefix_of: See ``LocalCluster.prefix_of``.
        report: Called with a line about each bookie that does not start to serve. Such a bookie stays down.
            None: then the cluster does not start.

    Raises:
        StorageLocked: Another process runs a cluster in the directory.
        InvalidArgument: The cluster's metadata is in the other kind of store, or the certificates cannot be
            made.
        CryptographyMissing: The package ``cryptography``, which makes certificates, is not installed.
        ChildFailed: A ZooKeeper server or a bookie does not start to serve; with ``report``, no bookie does.
        ZooKeeperMissing: ZooKeeper's jars or a Java are missing.

    Errors of ``ledgerlog.connect`` pass through.
    """
    wanted, existing = "zookeeper" if zookeepers else "sqlite", existing_metadata(path)
    if existing not in (None, wanted):
        raise InvalidArgument(
            f"the metadata of the cluster in {path} is in {existing}, not in {wanted}: run it with "
            f"--metadata {existing}, or choose another directory"
        )
    with _lock(path), ungrouped():
        config = config or _own_config(path)
        credentials, credentials_of = _certified(path, bookies) if with_tls else (NO_CREDENTIALS, None)
        # Keep the servers apart from the bookies' processes: bookies unregister while they end.
        async with open_children(grace_s=grace_s) as server_children:
            with trio.move_on_after(_DYING_S):
                # If a runner is killed, its servers are killed with it, but that may take a moment.
                while not ports_are_free(path):  # noqa: ASYNC110 (a port cannot be waited for)
                    await trio.sleep(_DELAY_MIN_S)
            servers, running = await _start_ensemble(server_children, path, zookeepers)
            uri = f"zk://{hosts_of(servers)}" if servers else str(_sqlite_uri(path))
            await _make_cluster(parse_uri(uri), path, credentials, is_closed)
            async with (
                open_cluster(uri, credentials) as cluster,
                open_children(grace_s=grace_s) as children,
            ):
                local = LocalCluster(path, uri, cluster, children, server_children, config, auto_recovery)
                local.credentials = credentials
                local.credentials_of = credentials_of or local.credentials_of
                local.options_of, local.prefix_of = options_of, prefix_of
                local.zookeepers, local.servers = running, {server.name: server for server in servers}
                await _start_bookies(local, [_bookie_id(n) for n in range(1, bookies + 1)], report)
                yield local


async def _start_bookies(local: LocalCluster, bookie_ids: list[BookieId], report: Report | None) -> None:
    failures: dict[BookieId, ChildFailed] = {}

    async def start(bookie_id: BookieId) -> None:
        try:
            await local.start_serving(bookie_id)
        except ChildFailed as failure:
            if report is None:
                raise
            failures[bookie_id] = failure

    async with trio.open_nursery() as nursery:
        for bookie_id in bookie_ids:
            nursery.start_soon(start, bookie_id)
    local.bookies = {each: local.bookies[each] for each in bookie_ids if each in local.bookies}
    for bookie_id in bookie_ids:
        if report is not None and bookie_id in failures:
            local.stays_down(bookie_id, failures[bookie_id], report)


async def _start_ensemble(
    children: ChildProcesses, path: Path, count: int
) -> tuple[list[ZookeeperServer], dict[str, Child]]:
    """Start the ZooKeeper servers, and wait until they serve.

    Another process may take a port before its server does. Then all servers get other ports.

    Raises:
        ChildFailed: A server does not start to serve.
    """
    tries = 0
    while True:
        tries += 1
        servers = prepare_servers(path, count) if count else []
        running = {server.name: await _start_server(children, server) for server in servers}
        try:
            await _wait_ensemble(servers, running)
        except ChildFailed:
            for child in running.values():
                child.kill()
                await child.wait()
            if tries == _PORTS_TRIES or ports_are_free(path):
                raise
        else:
            return servers, running


async def _start_server(children: ChildProcesses, server: ZookeeperServer) -> Child:
    log_path = server.directory.with_name(f"{server.name}.log")
    return await children.start(server.name, server_command(server.config_path), log_path=log_path)


async def _wait_ensemble(servers: list[ZookeeperServer], running: dict[str, Child]) -> None:
    """Wait until all servers serve. ChildFailed: one ended before that, or it took too long."""

    async def watch_end(child: Child) -> None:
        await child.wait()
        raise ChildFailed(child.how_it_ended())

    with trio.move_on_after(_ENSEMBLE_S):
        async with open_nursery() as nursery:
            for child in running.values():
                nursery.start_soon(watch_end, child)
            for server in servers:
                await wait_serving(server)
            nursery.cancel_scope.cancel()
            return
    logs = servers[0].directory.with_name("zookeeper-*.log")
    raise ChildFailed(f"ZooKeeper does not serve after {_ENSEMBLE_S:g} s; see {logs}")


def existing_metadata(path: Path) -> str | None:
    """Return the kind of metadata store of the cluster in a directory: sqlite, zookeeper, or None."""
    if existing_servers(path):
        return "zookeeper"
    return "sqlite" if Path(FileUri(str(path.absolute())).metadata_path).exists() else None


def existing_bookies(path: Path) -> int:
    """Return the highest number of a bookie that has a directory there; 0 if there is none."""
    numbers = (child.name.removeprefix("bookie-") for child in path.glob("bookie-*") if child.is_dir())
    return max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0)


async def _make_cluster(uri: ClusterUri, path: Path, credentials: Credentials, is_closed: bool) -> None:
    """Make the cluster in the directory ``path``, unless it is there.

    A new closed cluster without credentials gets a secret. Processes of this machine find the secret: it lies
    beside the SQLite file, or the metadata in ZooKeeper say where it is."""
    if not is_closed:
        await make_cluster_at(uri, credentials=credentials)
        return
    if credentials.tls is not None:
        await make_closed_cluster(uri, credentials, by=ProvenBy.TLS)
        return
    file = credentials.secret_file
    if file is None:
        file = secret_beside(uri) if isinstance(uri, SqliteUri) else str(path / _SECRET_NAME)
    credentials = attrs.evolve(credentials, secret_file=file)
    await make_closed_cluster(uri, credentials, by=ProvenBy.SECRET, names_file=not isinstance(uri, SqliteUri))


def _sqlite_uri(path: Path) -> SqliteUri:
    return SqliteUri(FileUri(str(path.absolute())).metadata_path)


def _own_config(path: Path) -> Path:
    """Return the configuration file in a cluster's own directory.

    The first start writes it. After that it belongs to the user: edit it, and start the cluster again.
    """
    config = path / CONFIG_NAME
    if not config.exists():
        write_config(config, segment_bytes=16 * MIB)
    return config


def write_config(config: Path, **options: float) -> None:
    """Write a configuration file for bookies that share a machine, with these options added."""
    lines = [f"{name} = {value}\n" for name, value in {**SHARED_DISK, **options}.items()]
    whole = config.with_suffix(".new")
    whole.write_text("".join(lines), encoding="utf-8")
    whole.replace(config)


def _bookie_id(number: int) -> BookieId:
    return f"bookie-{number}"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    make_directories(path)
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
