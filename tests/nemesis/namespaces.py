"""Give every process of a cluster its own network: namespaces, and cables between them that you can cut.

A proxy (``proxies``) is no cable: behind a partition, the kernel still accepts connections and confirms data.
Here nothing does. Every host is a network namespace with one interface, ``e0``, on a bridge in another
namespace. Frames on a cut cable vanish: no connection is made, TCP sends segments again and again until it
gives up, and neither side is told.

    198.18.77.1       the driver, in the machine's own namespace, on one more interface
    198.18.77.2, ...  the hosts

**Cutting** is one way for each pair: a permanent neighbour entry of the sender gives its peer a hardware
address that nobody has, so the frames arrive nowhere. This needs neither nftables nor a queueing discipline;
a machine may lack both. ``heal`` deletes the entry, and the kernel asks for the address again. There are no
slow links here and no resets.

You need root and the programs ``ip`` and ``nsenter``; ``why_not`` says what is missing. The names of the
namespaces contain the number of this process. ``open_namespaces`` deletes them after its body.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

import attrs

__all__ = ["DRIVER", "Cable", "Namespaces", "open_namespaces", "why_not"]

DRIVER = "driver"
"""The host without a namespace of its own."""

_NETWORK = "198.18.77."
_NOBODY = "02:00:00:00:00:99"
_HUB = "hub"


@attrs.define(eq=False)
class Cable:
    """The connection between one client and one server."""

    client: str
    server: str
    _namespaces: Namespaces

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Start a partition, in both directions or in one."""
        if to_server:
            self._namespaces._cut(self.client, self.server)
        if to_client:
            self._namespaces._cut(self.server, self.client)

    def heal(self) -> None:
        self._namespaces._heal(self.client, self.server)
        self._namespaces._heal(self.server, self.client)


@attrs.define(eq=False)
class Namespaces:
    """The network of a cluster, made by ``open_namespaces``. Methods block for some milliseconds."""

    addresses: dict[str, str]
    """The IP address of each host."""
    links: dict[tuple[str, str], Cable] = attrs.Factory(dict)
    """Cables by client and server."""
    _is_cut: dict[tuple[str, str], None] = attrs.Factory(dict)

    def command(self, host: str) -> list[str]:
        """Return the prefix of a command that runs on this host."""
        return [_program("nsenter"), f"--net=/run/netns/{_name(host)}"]

    def of(self, *, client: str | None = None, server: str | None = None) -> Iterator[Cable]:
        """Yield the cables of a client, of a server, of both, or all."""
        for (begins_at, ends_at), cable in self.links.items():
            if client in (None, begins_at) and server in (None, ends_at):
                yield cable

    def heal(self) -> None:
        """Heal all cables."""
        for source, target in list(self._is_cut):
            self._heal(source, target)

    def _cut(self, source: str, target: str) -> None:
        if (source, target) not in self._is_cut:
            self._is_cut[source, target] = None
            self._neighbour("replace", source, target, "lladdr", _NOBODY, "nud", "permanent")

    def _heal(self, source: str, target: str) -> None:
        if (source, target) in self._is_cut:
            self._neighbour("del", source, target)
            del self._is_cut[source, target]

    def _neighbour(self, verb: str, source: str, target: str, *what: str) -> None:
        device = [_driver_device()] if source == DRIVER else ["e0"]
        where = [] if source == DRIVER else ["-n", _name(source)]
        _ip(*where, "neigh", verb, self.addresses[target], *what, "dev", *device)


@contextmanager
def open_namespaces(bookies: list[str], clients: list[str]) -> Iterator[Namespaces]:
    """Open a namespace for each name, and cables from every client, bookie and the driver to every bookie."""
    hosts = [*bookies, *clients]
    addresses = {DRIVER: f"{_NETWORK}1"} | {host: f"{_NETWORK}{n}" for n, host in enumerate(hosts, 2)}
    namespaces = Namespaces(addresses)
    with ExitStack() as stack:
        for host in (_HUB, *hosts):
            _ip("netns", "add", _name(host))
            stack.callback(_ip, "netns", "del", _name(host))
        hub = _name(_HUB)
        _ip("-n", hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", hub, "link", "set", "switch", "up")
        for number, host in enumerate(hosts):
            _ip(
                "-n",
                hub,
                "link",
                "add",
                f"p{number}",
                "type",
                "veth",
                "peer",
                "name",
                "e0",
                "netns",
                _name(host),
            )
            _ip("-n", hub, "link", "set", f"p{number}", "master", "switch", "up")
            _ip("-n", _name(host), "address", "add", f"{addresses[host]}/24", "dev", "e0")
            _ip("-n", _name(host), "link", "set", "e0", "up")
            _ip("-n", _name(host), "link", "set", "lo", "up")
        # This interface is deleted with the namespace of its other end.
        _ip("link", "add", _driver_device(), "type", "veth", "peer", "name", "driver", "netns", hub)
        _ip("-n", hub, "link", "set", "driver", "master", "switch", "up")
        _ip("address", "add", f"{addresses[DRIVER]}/24", "dev", _driver_device())
        _ip("link", "set", _driver_device(), "up")
        for client in (*clients, *bookies, DRIVER):
            for bookie in bookies:
                if client != bookie:
                    namespaces.links[client, bookie] = Cable(client, bookie, namespaces)
        yield namespaces


@cache
def why_not() -> str | None:
    """Return why this machine cannot make such networks; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "nsenter") if shutil.which(name) is None]:
        return f"there is no {missing[0]}"
    try:
        with open_namespaces(["probe"], []) as namespaces:
            subprocess.run([*namespaces.command("probe"), "true"], check=True, capture_output=True)
            return None
    except (OSError, subprocess.CalledProcessError) as failure:
        said = failure.stderr.strip() if isinstance(failure, subprocess.CalledProcessError) else failure
        with suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "del", _driver_device())
        return f"network namespaces cannot be made: {said}"


def _name(host: str) -> str:
    return f"ledgerlog-{os.getpid()}-{host}"


def _driver_device() -> str:
    return f"ll{os.getpid()}"


def _ip(*arguments: str) -> None:
    subprocess.run([_program("ip"), *arguments], check=True, capture_output=True, text=True)


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, "see why_not"
    return found
