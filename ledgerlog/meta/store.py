"""The metadata capability: a small tree of versioned values with compare-and-set.

The protocol needs no other service from a metadata store. Ledger metadata, log lists, cookies, registrations
and task lists live in it as opaque bytes of at most ``limits.METADATA_BYTES_MAX``. The implementations
(memory, SQLite, ZooKeeper) pass one contract suite, so other code never asks which store it talks to.

**Paths** are relative and separated by slashes, without empty components, for example "ledgers/0000/0007".
You need not create a parent first. A node may have a value and children at the same time. Deleting a node
that has children is refused (``NodeHasChildren``).

**Versions** are opaque integers that grow with every write of a node. An equal version means that the node is
unchanged. If a node is deleted and created again, it may show a version that it had before. For this reason,
nothing that matters is created twice at one path: ledger ids and log incarnations are never reused.

**Lost answers.** If the answer to a write was lost, the call raises ``MetadataOutcomeUnknown``: the write may
have been applied. Writers put a token into their values, read again and look for the token (``meta.settle``).
Every other exception means that nothing was changed.

**Ephemeral nodes** belong to the store's session and vanish with it. They have no children: a create() that
would give an ephemeral node a child, or that would make a node with children ephemeral, raises
``InvalidArgument``. A create() applies to the session that the store had when create() was called.

**Belonging.** After ``belong_to``, the store answers a call only if its server or file shows the right
cluster id. The store checks the id at each new session, after a sync, and in each write. If the data was
emptied or exchanged, or if the address leads elsewhere now, calls raise ``WrongCluster``: nothing was read,
written or deleted. When the right store is back, calls succeed again, in a new session, and every watch wakes
(``belonging``).

**Watches are level-triggered and carry no data.** After ``Watch.wait`` returns, look at the nodes again. A
watch may wake you without a change, but it never misses a change.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from ledgerlog.errors import LedgerLogError


class NodeExists(LedgerLogError):
    """create() found a node at the path. Nothing was changed."""


class NodeMissing(LedgerLogError):
    """set(), delete() or a Check found no node at the path. Nothing was changed."""


class NodeHasChildren(LedgerLogError):
    """delete() found children below the node. Nothing was changed."""


class VersionConflict(LedgerLogError):
    """The node is not at the expected version. Nothing was changed."""


@attrs.frozen
class Versioned:
    """A value and the version at which it was read."""

    value: bytes
    version: int


@attrs.frozen
class Create:
    """Make a node. Fails with ``NodeExists`` if the path has a node."""

    path: str
    value: bytes
    ephemeral: bool = False
    """Whether the node belongs to the store's session and vanishes with it."""


@attrs.frozen
class Set:
    """Replace the node's value if the node is at ``version``."""

    path: str
    value: bytes
    version: int


@attrs.frozen
class Delete:
    """Remove a node that has no children."""

    path: str
    version: int | None = None
    """The version that the node must have; None for any."""


@attrs.frozen
class Check:
    """Change nothing, but fail the transaction unless the node exists at ``version``."""

    path: str
    version: int


Operation = Create | Set | Delete | Check


class SessionState(enum.Enum):
    """The state of a session, as far as the client knows."""

    CONNECTED = "connected"
    """The session is alive."""
    SUSPENDED = "suspended"
    """Contact is lost, and the session may be over already. Assume that you own nothing until CONNECTED
    again.
    """
    LOST = "lost"
    """The session is over for good. Its ephemeral nodes are gone, or will be soon."""


class MetadataSession(Protocol):
    """One session with the store. After LOST, ``MetadataStore.session`` is a new object."""

    @property
    def session_id(self) -> str:
        """The name of the session in logs and in the store's own tools."""
        ...

    @property
    def state(self) -> SessionState:
        """The present state."""
        ...

    async def wait_not(self, state: SessionState) -> SessionState:
        """Wait until the state differs from ``state``, and return the new state."""
        ...


class Watch(Protocol):
    """An open watch on a path and everything below it; see ``MetadataStore.watch``."""

    async def wait(self) -> None:
        """Return once anything at or below the watched path may have changed.

        Changes count since the watch was opened, or since the previous return. Look at the nodes again after
        each return.
        """
        ...


class MetadataStore(Protocol):
    """One client of a metadata store, with one session at a time.

    Every call has a deadline of its own (``limits.METADATA_TIMEOUT_S``) and may raise
    ``MetadataUnavailable``: nothing happened. Writes may raise ``MetadataOutcomeUnknown``: the write may have
    been applied. Calls that need the session may raise ``SessionExpired``: nothing happened. Every call
    raises ``WrongCluster``, which is a ``MetadataUnavailable``, if the store does not belong to the right
    cluster. A store on a file may raise ``StorageCorrupt`` if the file is damaged: nothing happened. A bookie
    meets it as ``MetadataUnavailable`` (``outside_store``), because its own files are not damaged.

    Cancelling: a write has been applied or not, never half of it.
    """

    @property
    def session(self) -> MetadataSession:
        """The current session."""
        ...

    @property
    def cluster(self) -> str | None:
        """The id of the cluster that the store belongs to; None before ``belong_to``."""
        ...

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        """Accept answers only from the store of this cluster, from now on.

        If another cluster's store answers, every call raises ``WrongCluster`` and does nothing.

        Args:
            cluster: The id of the cluster.
            through_restores: Accept the store even if it is restored from a backup meanwhile. Only a caller
                that holds no versions of nodes for long may ask for this.

        Raises:
            InvalidArgument: The store belongs to another cluster already.
        """
        ...

    async def get(self, path: str) -> Versioned | None:
        """Return the node's value and version; None if the path has no node."""
        ...

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a node and return its version.

        Args:
            path: Where to make it. Parents need not exist.
            value: At most ``limits.METADATA_BYTES_MAX`` bytes.
            ephemeral: Whether the node vanishes with the session that the store has now.

        Raises:
            NodeExists: The path has a node. Nothing was changed.
            InvalidArgument: The path or the value is not acceptable, or an ephemeral node would have a child.
            SessionExpired: The session of an ephemeral node is over. Nothing was changed.
        """
        ...

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        """Replace the value if the node is at ``version``, and return the new version.

        Args:
            path: The node.
            value: At most ``limits.METADATA_BYTES_MAX`` bytes.
            version: The version that the node must have.

        Raises:
            VersionConflict: The node is at another version. Nothing was changed.
            NodeMissing: The path has no node. Nothing was changed.
        """
        ...

    async def delete(self, path: str, *, version: int | None = None) -> None:
        """Remove a node that has no children.

        Args:
            path: The node.
            version: The version that the node must have; None for any.

        Raises:
            VersionConflict: The node is at another version. Nothing was changed.
            NodeMissing: The path has no node. Nothing was changed.
            NodeHasChildren: There are nodes below it. Nothing was changed.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names directly below a path, sorted; empty if there are none.

        The list is always complete; otherwise the call raises an error.
        """
        ...

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        """Do all operations in order, or none of them.

        Args:
            operations: What to do. Each operation sees the effects of the operations before it.

        Returns:
            A number for each operation: the new version for Create and Set, the node's version for Check, 0
            for Delete.

        Raises:
            NodeExists, NodeMissing, NodeHasChildren, VersionConflict: The first failing operation raised it.
                Nothing was changed.
            InvalidArgument: An operation is not acceptable, or the transaction is over
                ``limits.METADATA_TRANSACTION_BYTES_MAX``.
        """
        ...

    async def next_id(self, counter: str) -> int:
        """Return a number that this counter has never given out before.

        The first number is 0. Numbers grow, but may have gaps.
        """
        ...

    async def highest_id(self, counter: str) -> int:
        """Return the highest number that this counter has given out; -1 if it has given out none."""
        ...

    async def skip_ids(self, counter: str, through: int) -> None:
        """Give out no number up to ``through`` from now on; a restore calls this.

        The store may skip more numbers. If the counter is past ``through`` already, nothing changes. If
        clients may be connected, change the cluster's id first, so that they notice; see ``meta.restore``.
        """
        ...

    async def sync(self) -> None:
        """Bring the store up to date.

        Reads after this call see every write that had finished before it.
        """
        ...

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        """Watch a node and everything below it for the body of the ``async with``."""
        ...
