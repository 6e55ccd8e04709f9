"""The metadata capability: a small tree of versioned values with compare-and-set.

This is all that the protocol asks of a metadata store: ledger metadata, log records, cookies,
registrations and task lists live in it as opaque bytes of at most ``limits.METADATA_BYTES_MAX``. The
implementations (memory, SQLite, ZooKeeper) pass one contract suite, so code above never asks which
one it talks to.

**Paths** are relative, slash-separated, without empty components ("ledgers/0000/0007"). A parent
need not be created first; a node may have a value and children at once. Deleting a node that has
children is refused (``NodeHasChildren``).

**Versions** are integers that grow with every write of a node. They are opaque: equal means
unchanged. A node that was deleted and created again may show a version it had before, so nothing
that matters is ever created twice at one path (ledger ids and log incarnations are never reused).

**Lost answers.** A write whose answer was lost raises ``MetadataOutcomeUnknown``: it may have been
applied. Writers put a token into their values and settle it by reading again (``meta.settle``). Every
other exception means that nothing was changed.

**Ephemeral nodes** belong to the store's session and vanish with it. They have no children: a
create() that would give one a child, or make a node with children ephemeral, is an
``InvalidArgument``. A create() speaks for the session that the store had when it was called.

**Belonging.** A store that was told whose it is (``belong_to``) answers no call unless what is behind it
shows that cluster's id: at each new session, after a sync, and in each write. A store that was emptied or
exchanged, or an address that leads elsewhere now, is ``WrongCluster``: nothing was read, written or deleted.
When the right store is back calls succeed again, in a new session, and every watch wakes (``belonging``).

**Watches are level-triggered and carry no data**: after ``Watch.wait`` returns, look again. Spurious
returns are allowed, missed changes are not.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from ledgerlog.errors import LedgerLogError


class NodeExists(LedgerLogError):
    """create() found a node at the path; nothing was changed."""


class NodeMissing(LedgerLogError):
    """set() or delete() found no node at the path; nothing was changed."""


class NodeHasChildren(LedgerLogError):
    """delete() found children below the node; nothing was changed."""


class VersionConflict(LedgerLogError):
    """The node is not at the expected version; nothing was changed."""


@attrs.frozen
class Versioned:
    """A value and the version at which it was read."""

    value: bytes
    version: int


@attrs.frozen
class Create:
    path: str
    value: bytes
    ephemeral: bool = False


@attrs.frozen
class Set:
    path: str
    value: bytes
    version: int


@attrs.frozen
class Delete:
    path: str
    version: int | None = None


@attrs.frozen
class Check:
    """The node must exist at this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check


class SessionState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """Contact is lost; the session may already be over. Own nothing until CONNECTED again."""
    LOST = "lost"
    """The session is over, for good; its ephemeral nodes are gone or going."""


class Session(Protocol):
    """One session with the store. After LOST, ``MetadataStore.session`` is a new object."""

    @property
    def session_id(self) -> str: ...

    @property
    def state(self) -> SessionState: ...

    async def wait_not(self, state: SessionState) -> SessionState:
        """Wait until the state differs from ``state``; the new state."""
        ...


class Watch(Protocol):
    async def wait(self) -> None:
        """Return once anything at or below the watched path may have changed since the watch was
        opened or since the previous return."""
        ...


class MetadataStore(Protocol):
    """Every call may raise ``MetadataUnavailable`` (nothing happened); writes may raise
    ``MetadataOutcomeUnknown``; calls that need the session may raise ``SessionExpired``. Every call
    has a deadline of its own (``limits.METADATA_TIMEOUT_S``). Cancelling a write leaves it applied
    or not, never half."""

    @property
    def session(self) -> Session: ...

    @property
    def cluster(self) -> str | None:
        """The id of the cluster that it belongs to, None while nobody has said so."""
        ...

    def belong_to(self, cluster: str) -> None:
        """From now on every call is ``WrongCluster``, and does nothing, unless what answers is the store of
        the cluster with this id. ``InvalidArgument`` where it belongs to another one already."""
        ...

    async def get(self, path: str) -> Versioned | None:
        """The node's value, or None where there is no node."""
        ...

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a node; its version. ``NodeExists`` where there is one."""
        ...

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        """Replace the value if the node is at ``version``; the new version. ``VersionConflict``,
        ``NodeMissing``."""
        ...

    async def delete(self, path: str, *, version: int | None = None) -> None:
        """Remove a node, if at ``version`` where one is given. ``VersionConflict``, ``NodeMissing``,
        ``NodeHasChildren``."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names directly below a path, sorted; complete, or an error. Empty where there are none."""
        ...

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        """Do all or none, in order; the new version for each (0 for Delete, the version for Check).
        Raises what the first failing operation would raise."""
        ...

    async def next_id(self, counter: str) -> int:
        """A number never given out before under this counter; starts at 0 and grows."""
        ...

    async def highest_id(self, counter: str) -> int:
        """The highest number given out under this counter so far, -1 where none was."""
        ...

    async def sync(self) -> None:
        """What is read afterwards is at least as new as every write finished before this call."""
        ...

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        """Watch a node and everything below it."""
        ...
