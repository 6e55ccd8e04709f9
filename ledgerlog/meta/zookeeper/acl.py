"""ZooKeeper's access control lists: the rights of each user on a znode. This module only computes.

**One list for all znodes of a cluster.** It is the list of the znode that holds the cluster's id. Every
process reads that list when it connects, and gives it to each znode that it makes: values, directories,
ephemerals, counters. So the list is stored in the tree itself. No process needs the list as a setting, and a
change of the list reaches every process (``securing``).

**Principals** are written as ``SCHEME:ID``:

    digest:USER:HASH        the user of a digest; HASH is the base64 of the SHA-1 of USER:PASSWORD
    sasl:USER               a user whom SASL has identified
    x509:CN=b1,O=example    the subject of a TLS certificate
    ip:10.0.0.0/8           an address
    world:anyone            all users

A principal may do everything, or may only read. ZooKeeper knows finer permissions, but a process of a cluster
that writes needs all of them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

import attrs

from ledgerlog.errors import InvalidArgument

__all__ = [
    "ALL",
    "OPEN",
    "READ",
    "THE_CREATOR",
    "Acl",
    "Allowed",
    "ZkPrincipal",
    "acl_for",
    "digest_principal",
    "hides_digests",
    "is_same",
    "parse_principal",
    "shown",
]

READ = 1
ALL = 31
"""Read, write, create, delete, and change the list."""

_SCHEMES = ("digest", "sasl", "x509", "ip", "world", "super")
_PRINCIPAL_BYTES_MAX = 1024

_HIDDEN = ":x"
"""ZooKeeper shows the hash of a digest only to principals that may change the list. Others see this."""


@attrs.frozen(order=True)
class ZkPrincipal:
    """A user, a certificate or an address that ZooKeeper can identify."""

    scheme: str
    identity: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.identity}"


@attrs.frozen(order=True)
class Allowed:
    """One entry of a list."""

    principal: ZkPrincipal
    permissions: int


Acl = tuple[Allowed, ...]

THE_CREATOR = ZkPrincipal("auth", "")
"""In a list, the server replaces this by each identity that the connection has proved."""

EVERYBODY = ZkPrincipal("world", "anyone")

OPEN: Acl = (Allowed(EVERYBODY, ALL),)


def parse_principal(text: str) -> ZkPrincipal:
    """Read ``SCHEME:ID``.

    Raises:
        InvalidArgument: The text is not a principal.
    """
    scheme, colon, identity = text.partition(":")
    if not colon or scheme not in _SCHEMES or not identity or len(text.encode()) > _PRINCIPAL_BYTES_MAX:
        raise InvalidArgument(
            f"{text[:200]!r} is not a ZooKeeper principal: write SCHEME:ID, for example sasl:reader, or "
            f"digest:USER:HASH; the schemes are {', '.join(_SCHEMES)}"
        )
    if scheme == "digest" and not _is_digest(identity):
        raise InvalidArgument(
            "a digest principal is digest:USER:HASH, where HASH is the base64 of the SHA-1 of "
            "USER:PASSWORD; 'ledgerlog metadata principal' prints the principal of a credentials file"
        )
    return ZkPrincipal(scheme, identity)


def _is_digest(identity: str) -> bool:
    user, colon, digest = identity.partition(":")
    try:
        return bool(user and colon) and len(base64.b64decode(digest, validate=True)) == 20
    except ValueError:
        return False


def digest_principal(user: str, password: str) -> ZkPrincipal:
    """Return the principal that a server computes from a user and a password."""
    digest = hashlib.sha1(f"{user}:{password}".encode()).digest()
    return ZkPrincipal("digest", f"{user}:{base64.b64encode(digest).decode()}")


def acl_for(all_of: Iterable[ZkPrincipal], readers: Iterable[ZkPrincipal]) -> Acl:
    """Return the list that lets ``all_of`` do everything and ``readers`` read. Each is named once."""
    everything = list(dict.fromkeys(all_of))
    if EVERYBODY in everything:
        return OPEN
    reading = [reader for reader in dict.fromkeys(readers) if reader not in everything]
    return tuple(Allowed(each, ALL) for each in everything) + tuple(Allowed(each, READ) for each in reading)


def is_same(one: Acl, other: Acl) -> bool:
    """Return whether two lists allow the same. Order does not matter."""
    return set(one) == set(other)


def hides_digests(acl: Acl) -> bool:
    """Return whether the server hid the hashes of digests. No other znode can be given such a list."""
    principals = [each.principal for each in acl]
    return any(each.scheme == "digest" and each.identity.endswith(_HIDDEN) for each in principals)


def shown(acl: Acl) -> list[str]:
    """Return the list as text for people: the rights of each user."""
    may = {ALL: "all", READ: "read"}
    return [f"{each.principal} {may.get(each.permissions, each.permissions)}" for each in acl]
