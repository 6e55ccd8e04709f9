"""Real ZooKeeper servers for tests: one for the whole session, and ensembles whose members can be killed.

**A quick start.** Most of a server's start is Java's loading of classes. A Java from 25 on keeps what one
server loaded in a file, and the next ones take it from there, in less than half of the time. The first test
that starts a server makes the file, in the virtual environment, and later runs find it. With an older Java
the servers start without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path

import attrs
import trio
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient

from ledgerlog.cli import exit_with_parent
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.cli.zookeeper import (
    ZookeeperServer,
    free_port,
    hosts_of,
    prepare_servers,
    server_command,
    wait_serving,
)
from ledgerlog.meta.zookeeper.store import ZooKeeperStore
from ledgerlog.model.credentials import TLS
from tests import certificates
from tests.waiting import PATIENCE_S

SHARED_PROCESSES: set[int] = set()
"""Servers of the whole session: started for the first test that asks, and left by none."""

_numbers = itertools.count(1)


@contextmanager
def one_server(path: Path) -> Iterator[str]:
    """A server that outlives the event loops of the tests: the session's. Its ``host:port``."""
    (server,) = prepare_servers(path, 1)
    with (path / "zookeeper-1.log").open("wb") as log:
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", exit_with_parent.__file__, str(os.getpid()), str(writer)),
                *quick_command(server),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            pass_fds=(writer,),
        )
    os.close(writer)
    SHARED_PROCESSES.add(process.pid)
    try:
        trio.run(_serving, [server])
        yield hosts_of([server])
    finally:
        os.close(reader)
        process.kill()
        process.wait()


async def _serving(servers: list[ZookeeperServer]) -> list[str]:
    with trio.fail_after(PATIENCE_S):
        return [await wait_serving(server) for server in servers]


def new_chroot() -> str:
    """One that no other test of this process has."""
    return f"/test-{os.getpid()}-{next(_numbers)}"


async def expire_session(store: ZooKeeperStore, hosts: str) -> None:
    """End the session of a store behind its back, as the ensemble does that has not heard from it."""
    credentials = store._conversation.link.credentials
    assert credentials is not None

    def end() -> None:
        is_ended = False
        while not is_ended:
            # The store's own client may take the session back before ours has closed it. A client that comes
            # with the id of a session that is over gets another session.
            other = KazooClient(hosts=hosts, client_id=credentials)
            other.start()
            is_ended = other.client_id[0] != credentials[0]
            other.stop()
            other.close()

    await trio.to_thread.run_sync(end)


# --- a quick start --------------------------------------------------------------------------------


def quick_command(server: ZookeeperServer) -> list[str]:
    """The command of a server that takes the loaded classes from the file, if there is one."""
    java, *rest = server_command(server.config_path)
    return [java, *_options_of_a_quick_start(), *rest]


@cache
def _options_of_a_quick_start() -> tuple[str, ...]:
    """Makes the file if nobody has made it yet."""
    java, *rest = server_command(Path("zoo.cfg"))
    known_by = repr([java, Path(java).stat().st_mtime_ns, *rest])
    path = Path(sys.prefix) / f"zookeeper-{hashlib.sha256(known_by.encode()).hexdigest()[:12]}.aot"
    try:
        with path.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write_loaded_classes(path)
    except OSError:
        return ()  # The environment is not ours to write to.
    # Whatever Java thinks of the file is not the server's to say.
    return (f"-XX:AOTCache={path}", "-Xlog:disable") if path.stat().st_size else ()


def _write_loaded_classes(path: Path) -> None:
    """What a server has loaded when it serves; an empty file if this Java cannot do it."""
    with tempfile.TemporaryDirectory(prefix="ledgerlog-zookeeper-") as directory:
        (server,) = prepare_servers(Path(directory), 1)
        java, *rest = server_command(server.config_path)
        made = Path(directory) / "classes.aot"
        process = subprocess.Popen(
            [java, f"-XX:AOTCacheOutput={made}", *rest],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while process.poll() is None and not _has_mode(server) and time.monotonic() < deadline:
                time.sleep(0.05)
            process.terminate()
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        content = made.read_bytes() if made.exists() else b""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)


def _has_mode(server: ZookeeperServer) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.client_port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return False


# --- ensembles ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Ensemble:
    """Servers that a test may kill, stop and start."""

    servers: list[ZookeeperServer]
    children: ChildProcesses
    running: dict[int, Child] = attrs.field(factory=dict)
    """By the server's number."""

    @property
    def hosts(self) -> str:
        return hosts_of(self.servers)

    async def start(self, *numbers: int) -> None:
        """Start these servers, all where none is named; they need not serve yet."""
        for server in self.servers:
            if server.number in numbers or not numbers:
                self.running[server.number] = await self.children.start(
                    server.name,
                    quick_command(server),
                    log_path=server.directory.with_name(f"{server.name}.log"),
                )

    async def wait_serving(self) -> dict[int, str]:
        """Return once all serve: what each is."""
        with trio.fail_after(PATIENCE_S):
            return {server.number: await wait_serving(server) for server in self.servers}

    async def leader(self) -> int:
        """The number of the leading server."""
        modes = await self.wait_serving()
        return next(number for number, mode in modes.items() if mode in ("leader", "standalone"))

    async def kill(self, *numbers: int) -> None:
        """kill -9, all where none is named."""
        chosen = [self.running[number] for number in numbers or self.running]
        for child in chosen:
            child.kill()
        for child in chosen:
            await child.wait()

    def stop(self, *numbers: int) -> None:
        """SIGSTOP, all where none is named."""
        for number in numbers or self.running:
            self.running[number].send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        for child in self.running.values():
            child.send_signal(signal.SIGCONT)


@asynccontextmanager
async def open_ensemble(path: Path, count: int) -> AsyncIterator[Ensemble]:
    """``count`` servers, all serving, for the body of the ``async with``."""
    async with open_children(grace_s=1.0) as children:
        ensemble = Ensemble(prepare_servers(path, count), children)
        await ensemble.start()
        await ensemble.wait_serving()
        yield ensemble


# --- a server that identifies its clients ---------------------------------------------------------

SASL_USERS = {"ledgerlog": "a secret pass", "reader": "another"}
"""Whom the server of ``secured_server`` knows by SASL; any digest is somebody to it."""


@attrs.frozen
class SecuredServer:
    """One server with SASL, digests and, at another port, TLS with certificates."""

    hosts: str
    tls_hosts: str
    directory: Path
    """``ca.pem``, and a key and certificate for the client: ``client.key``, ``client.pem``. The authority of
    ``tests.certificates`` is also in ``ca.pem``."""

    @property
    def tls(self) -> TLS:
        return TLS(
            cert=self.directory / "client.pem",
            key=self.directory / "client.key",
            ca=self.directory / "ca.pem",
        )

    def tls_of(self, principal: str) -> TLS:
        """The files of a principal, for this server and for bookies that trust the same authorities."""
        return attrs.evolve(certificates.files(principal), ca=self.directory / "ca.pem")


@contextmanager
def secured_server(path: Path) -> Iterator[SecuredServer]:
    """Such a server for the body of the ``with``."""
    authority = trustme.CA()
    ours = Path(certificates.files("client/client").ca).read_bytes()
    (path / "ca.pem").write_bytes(authority.cert_pem.bytes() + ours)
    client = authority.issue_cert("client@example.org", common_name="client")
    client.private_key_pem.write_to_path(str(path / "client.key"))
    (path / "client.pem").write_bytes(b"".join(pem.bytes() for pem in client.cert_chain_pems))
    (path / "server.pem").write_bytes(_key_store(authority.issue_cert("localhost", "127.0.0.1")))
    users = "".join(f' user_{name}="{password}"\n' for name, password in SASL_USERS.items())
    (path / "jaas.conf").write_text(
        f"Server {{\n org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n"
    )
    (server,) = prepare_servers(path, 1)
    tls_port = free_port()
    server.config_path.write_text(server.config_path.read_text() + _secure_configuration(path, tls_port))
    java, *options, main, config = server_command(server.config_path)
    place = options.index("-cp") + 1
    jars = sorted(Path(options[place].split(os.pathsep)[0]).parent.glob("netty-*.jar"))
    options[place] = os.pathsep.join([options[place], *map(str, jars)])
    with (path / "zookeeper-1.log").open("wb") as log:
        process = subprocess.Popen(
            [java, f"-Djava.security.auth.login.config={path / 'jaas.conf'}", *options, main, config],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    SHARED_PROCESSES.add(process.pid)
    try:
        trio.run(_serving, [server])
        yield SecuredServer(hosts_of([server]), f"127.0.0.1:{tls_port}", path)
    finally:
        process.kill()
        process.wait()


def _key_store(identity: trustme.LeafCert) -> bytes:
    """The key in the form that Java reads, and the certificates."""
    key = load_pem_private_key(identity.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + b"".join(each.bytes() for each in identity.cert_chain_pems)


def _secure_configuration(path: Path, tls_port: int) -> str:
    return f"""\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={tls_port}
secureClientPortAddress=127.0.0.1
ssl.keyStore.location={path / "server.pem"}
ssl.keyStore.type=PEM
ssl.trustStore.location={path / "ca.pem"}
ssl.trustStore.type=PEM
ssl.clientAuth=need
authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider
"""
