"""Metadata in the memory of one process, for tests, simulations and ``memory:`` clusters.

A ``MemoryTree`` is the server. It holds the nodes, the counters and the list of live sessions. A
``MemoryStore`` is one client of the tree, with one session at a time. To imitate several processes, open
several stores on one tree. Every operation runs in the trio loop without a checkpoint inside, so every
operation is atomic.

**No more than the contract promises.** Versions are ZooKeeper's: 0 at creation, one more at each write of the
node, and 0 again if the path is created again. So if a program relies on versions that never come back, the
program fails here, in a fast test, before it fails on a cluster.

**Deterministic.** The tree uses no clock, no randomness and no hash order. Under a deterministic scheduler,
one seed gives one history. Sessions never expire by themselves; a test or a simulation ends them.

Faults, for tests and simulations:

* ``store.disconnect()``: contact is lost. The session is SUSPENDED and every call raises
  ``MetadataUnavailable``. The ephemeral nodes stay, because the tree does not know yet that contact is lost.
* ``store.expire_session()``: the tree gives the session up, and its ephemeral nodes vanish at once. A
  connected client learns it at once (LOST, and a new session). A disconnected client learns it when it
  reconnects, as with a real ensemble.
* ``store.reconnect()``: CONNECTED again in the old session, or LOST and a new session.
* ``tree.exchange(content)``: all stores of the tree now lead to other content: an empty tree, another
  cluster's tree, or an earlier state.

Invariants: ``_paths`` is the sorted list of the keys of ``_nodes``; an ephemeral node has no children; every
ephemeral node names a session in ``_sessions``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import attrs
import trio

from ledgerlog.errors import InvalidArgument, MetadataUnavailable, SessionExpired
from ledgerlog.meta.arguments import AFTER_SLASH, ancestors, check_operations, check_path
from ledgerlog.meta.bases import SessionBase, SingleWrites
from ledgerlog.meta.belonging import Belonging
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    NodeExists,
    NodeHasChildren,
    NodeMissing,
    Operation,
    SessionState,
    Set,
    VersionConflict,
    Versioned,
    Watch,
)
from ledgerlog.meta.watches import WatchSet
from ledgerlog.model.layout import CLUSTER

__all__ = ["Content", "MemorySession", "MemoryStore", "MemoryTree"]


@attrs.frozen
class _Node:
    value: bytes
    version: int
    owner: MemorySession | None


@attrs.frozen
class Content:
    """The nodes of a tree, without the ephemeral ones, and its counters. See ``MemoryTree.exchange``.

    ``Content()`` is an empty tree.
    """

    nodes: dict[str, _Node] = attrs.field(factory=dict)
    counters: dict[str, int] = attrs.field(factory=dict)


class MemorySession(SessionBase):
    """One session with a tree (``store.MetadataSession``)."""

    def __init__(self, session_id: str) -> None:
        super().__init__()
        self._session_id = session_id

    def __repr__(self) -> str:
        return f"<MemorySession {self._session_id} {self._state.value}>"

    @property
    def session_id(self) -> str:
        """The tree's sessions are numbered from 1: "memory-1", "memory-2" ..."""
        return self._session_id

    def _become(self, state: SessionState) -> None:
        assert self._state is not SessionState.LOST or state is SessionState.LOST
        self._change(state)


class MemoryTree:
    """The server: the tree that several stores share. You need not close it.

    Args:
        cluster: The id of a cluster that the tree holds from the start; None for an empty tree.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._nodes: dict[str, _Node] = {}
        self._paths: list[str] = []
        if cluster is not None:
            self._put(CLUSTER, _Node(cluster.encode(), 0, None))
        self._counters: dict[str, int] = {}
        self._sessions: dict[MemorySession, None] = {}
        self._sessions_opened = 0
        self._stores: dict[MemoryStore, None] = {}
        """The open stores."""
        self._watches = WatchSet()

    def open_store(self) -> MemoryStore:
        """Return a new client with a session of its own. Close it with ``close()`` or ``async with``."""
        return MemoryStore(self)

    @property
    def content(self) -> Content:
        """The tree's present content."""
        nodes = {path: node for path, node in self._nodes.items() if node.owner is None}
        return Content(nodes, dict(self._counters))

    def exchange(self, content: Content) -> Content:
        """Replace the tree's content, as if the stores' address led to another server.

        All sessions end. Connected stores learn it at once, the others when they reconnect.

        Args:
            content: The new content.

        Returns:
            The old content, which you can pass to another ``exchange``.
        """
        held = self.content
        self._nodes, self._paths = dict(content.nodes), sorted(content.nodes)
        self._counters = dict(content.counters)
        self._sessions.clear()
        for store in list(self._stores):
            if store._reachable:
                store._look_at_session()
        self._watches.changed_somewhere()
        return held

    # --- sessions --------------------------------------------------------------------------------

    def _open_session(self) -> MemorySession:
        self._sessions_opened += 1
        session = MemorySession(f"memory-{self._sessions_opened}")
        self._sessions[session] = None
        return session

    def _end_session(self, session: MemorySession) -> None:
        if session not in self._sessions:
            return
        del self._sessions[session]
        gone = [path for path in self._paths if self._nodes[path].owner is session]
        for path in gone:
            self._put(path, None)
        self._watches.changed(gone)

    # --- nodes -----------------------------------------------------------------------------------

    def _put(self, path: str, node: _Node | None) -> None:
        """Set or remove a node.

        Except for ``exchange``, no other method changes ``_nodes`` and ``_paths``.
        """
        if node is None:
            del self._nodes[path]
            del self._paths[bisect_left(self._paths, path)]
            return
        if path not in self._nodes:
            insort(self._paths, path)
        self._nodes[path] = node

    def _has_children(self, path: str) -> bool:
        at = bisect_left(self._paths, path + "/")
        return at < len(self._paths) and self._paths[at] < path + AFTER_SLASH

    def _children(self, path: str) -> list[str]:
        names = set()
        prefix, end = path + "/", path + AFTER_SLASH
        at = bisect_left(self._paths, prefix)
        while at < len(self._paths) and self._paths[at] < end:
            name, slash, _ = self._paths[at][len(prefix) :].partition("/")
            names.add(name)
            # Skip the whole subtree with one search. A level costs the same with a million nodes below it.
            at = bisect_left(self._paths, prefix + name + AFTER_SLASH) if slash else at + 1
        return sorted(names)

    def _apply(self, operations: Sequence[Operation], session: MemorySession) -> list[int]:
        """Do all operations or none.

        Each step remembers the node that it replaces. If a step fails, all replaced nodes are put back.
        """
        undo: list[tuple[str, _Node | None]] = []
        versions = []
        try:
            for operation in operations:
                before = self._nodes.get(operation.path)
                after, version = self._step(operation, before, session)
                versions.append(version)
                if after is not before:
                    undo.append((operation.path, before))
                    self._put(operation.path, after)
        except BaseException:
            for path, before in reversed(undo):
                self._put(path, before)
            raise
        self._watches.changed(path for path, _ in undo)
        return versions

    def _step(
        self, operation: Operation, node: _Node | None, session: MemorySession
    ) -> tuple[_Node | None, int]:
        """Return the node after the operation and the version to report; raise if the operation fails.

        The node is None if the operation deletes it.
        """
        path = operation.path
        if isinstance(operation, Create):
            if operation.ephemeral and session not in self._sessions:
                raise SessionExpired(f"session {session.session_id} is over; {path!r} was not created")
            if node is not None:
                raise NodeExists(f"{path!r} exists already")
            for above in ancestors(path):
                holder = self._nodes.get(above)
                if holder is not None and holder.owner is not None:
                    raise InvalidArgument(f"{path!r} would be a child of {above!r}, which is ephemeral")
            if operation.ephemeral and self._has_children(path):
                raise InvalidArgument(f"{path!r} has children, so it cannot be ephemeral")
            return _Node(operation.value, 0, session if operation.ephemeral else None), 0
        if node is None:
            raise NodeMissing(f"there is no node at {path!r}")
        if operation.version is not None and operation.version != node.version:
            raise VersionConflict(f"{path!r} is at version {node.version}, not at {operation.version}")
        match operation:
            case Set(value=value):
                return _Node(value, node.version + 1, node.owner), node.version + 1
            case Delete():
                if self._has_children(path):
                    raise NodeHasChildren(f"{path!r} has children; nothing was deleted")
                return None, 0
            case Check():
                return node, node.version


class MemoryStore(SingleWrites):
    """One client of a ``MemoryTree``: the metadata capability (``store.MetadataStore``).

    Every call is a checkpoint before it acts, and never after. So a call that raises ``Cancelled`` has
    changed nothing. While the store is disconnected, and after ``close``, calls raise
    ``MetadataUnavailable``.
    """

    _checkpoint = staticmethod(trio.lowlevel.checkpoint)

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._session = tree._open_session()
        self._belonging = Belonging("memory:")
        self._reachable = True
        self._closed = False
        tree._stores[self] = None

    async def __aenter__(self) -> MemoryStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish, it becomes LOST, and no new session follows."""
        self._closed = True
        self._tree._stores.pop(self, None)
        self._tree._end_session(self._session)
        self._session._become(SessionState.LOST)

    # --- faults ----------------------------------------------------------------------------------

    def expire_session(self) -> None:
        """Let the tree give this store's session up, as if the client had been silent for too long."""
        self._tree._end_session(self._session)
        if self._reachable:
            self._look_at_session()

    def disconnect(self) -> None:
        """Lose contact with the tree until ``reconnect``."""
        self._reachable = False
        if self._session.state is SessionState.CONNECTED:
            self._session._become(SessionState.SUSPENDED)

    def reconnect(self) -> None:
        """Restore contact: in the old session, or in a new one if the old one has ended."""
        self._reachable = True
        self._look_at_session()

    def _look_at_session(self) -> None:
        if self._closed:
            return
        if self._session in self._tree._sessions:
            if self._session.state is SessionState.SUSPENDED:
                self._session._become(SessionState.CONNECTED)
        else:
            ended, self._session = self._session, self._tree._open_session()
            ended._become(SessionState.LOST)
        # While contact was lost, a change may have woken a task that could not read. Wake it again.
        self._tree._watches.changed_somewhere()

    async def _contact(self) -> MemoryTree:
        """Pass a checkpoint and return the tree. The caller must act on it without waiting in between."""
        await self._checkpoint()
        if self._closed:
            raise MetadataUnavailable("this metadata store is closed")
        if not self._reachable:
            raise MetadataUnavailable("the metadata tree is not reachable; nothing happened")
        node = self._tree._nodes.get(CLUSTER)
        self._belonging.judge(None if node is None else node.value)
        return self._tree

    # --- the capability --------------------------------------------------------------------------

    @property
    def session(self) -> MemorySession:
        """The current session."""
        return self._session

    @property
    def cluster(self) -> str | None:
        return self._belonging.cluster

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        self._belonging.belong_to(cluster, through_restores=through_restores)

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        node = (await self._contact())._nodes.get(path)
        return None if node is None else Versioned(node.value, node.version)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return (await self._contact())._children(path)

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        check_operations(operations)
        # Take the session that the store had when it was called. If that session ends during the checkpoint,
        # the new session must not own the ephemeral node: the caller knows only the old one.
        session = self._session
        return (await self._contact())._apply(operations, session)

    async def next_id(self, counter: str) -> int:
        check_path(counter)
        counters = (await self._contact())._counters
        counters[counter] = counters.get(counter, -1) + 1
        return counters[counter]

    async def highest_id(self, counter: str) -> int:
        check_path(counter)
        return (await self._contact())._counters.get(counter, -1)

    async def skip_ids(self, counter: str, through: int) -> None:
        check_path(counter)
        counters = (await self._contact())._counters
        counters[counter] = max(counters.get(counter, -1), through)

    async def sync(self) -> None:
        await self._contact()

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        return self._tree._watches.open(path)
