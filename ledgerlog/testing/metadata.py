"""The metadata store of a simulated cluster: latency, partitions, sessions that end, lost answers.

One ``MemoryTree`` is the store. It is on its own host, ``METADATA``, which never fails. Every process
has a ``SimStore``, a client of the store across the simulated network. A call travels to the store and takes
effect, and the answer travels back. If that takes too long, a read raises MetadataUnavailable. A write then
raises MetadataOutcomeUnknown, whether or not the write took effect. If a process dies while an answer travels
to it, it never sees the answer.

**Sessions.** A process loses contact with the store if its link is blocked in either direction, or if the
process is paused or dead. The process's client suspends the session after ``SUSPECT_S`` without contact.
After ``SESSION_TIMEOUT_S`` the store ends the session and deletes the session's ephemeral nodes. If the
process regains contact, it continues in its old session, or learns that the session was lost.

**Replicas that lag.** From ``lag`` on, a process reads the tree as it was at that moment, like a client of a
replica that does not hear from its leader. ``catch_up`` ends the lag. The lag also ends with anything that
brings the replica up to date: a ``sync`` or a write of the process, a new session, or another store in place
of this one.

``SimTree`` tells an observer (``invariants.GodView``) of every write, with the values before and after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import trio

from ledgerlog.errors import LedgerLogError, MetadataOutcomeUnknown, MetadataUnavailable, SessionExpired
from ledgerlog.limits import METADATA_TIMEOUT_S, SESSION_TIMEOUT_S
from ledgerlog.meta.memory import MemorySession, MemoryStore, MemoryTree
from ledgerlog.meta.store import Create, Operation, Watch
from ledgerlog.meta.watches import TreeWatch
from ledgerlog.testing.deterministic import Timer
from ledgerlog.testing.faulty_store import Call, CalledStore, GoOn
from ledgerlog.testing.network import SimNetwork
from ledgerlog.testing.process import Incarnation

__all__ = ["METADATA", "SimStore", "SimTree"]

METADATA = "metadata"
"""The name of the metadata store's host."""

SUSPECT_S = SESSION_TIMEOUT_S / 3
"""After this many seconds without contact, a client suspends its session."""

OnWrite = Callable[[str, bytes | None, bytes | None], None]


class SimTree(MemoryTree):
    """A ``MemoryTree`` that tells an observer of its writes."""

    def __init__(self, on_write: OnWrite | None = None, *, cluster: str | None = None) -> None:
        super().__init__(cluster)
        self.writer: Incarnation | None = None
        """The process that makes the current write. Valid while the observer is called."""
        self._on_write = on_write
        self._owners: dict[MemorySession, Incarnation] = {}

    def on_behalf_of(self, session: MemorySession, incarnation: Incarnation) -> None:
        """Writes in this session are made by this process."""
        self._owners[session] = incarnation

    def _apply(self, operations: Sequence[Operation], session: MemorySession) -> list[int]:
        before = {operation.path: self.value(operation.path) for operation in operations}
        versions = super()._apply(operations, session)
        if self._on_write is not None:
            self.writer = self._owners.get(session)
            for path, old in before.items():
                new = self.value(path)
                if new != old:
                    self._on_write(path, old, new)
            self.writer = None
        return versions

    def value(self, path: str) -> bytes | None:
        """Return the current value of a node. None if it does not exist."""
        node = self._nodes.get(path)
        return None if node is None else node.value

    def replica(self) -> MemoryStore:
        """Return a store whose reads always show the present state of the tree, even after later writes."""
        tree = MemoryTree()
        tree._nodes, tree._paths = dict(self._nodes), list(self._paths)
        return _Server(tree)

    def wake_all(self) -> None:
        """Wake every watch."""
        self._watches.changed_somewhere()

    def paths(self, prefix: str) -> list[str]:
        """Return all paths that begin with ``prefix``, sorted."""
        return [path for path in self._paths if path.startswith(prefix)]


class _Server(MemoryStore):
    """The store on its own host. It carries out every call that arrives, even if the caller is gone."""

    _checkpoint = staticmethod(trio.lowlevel.cancel_shielded_checkpoint)


def _no_answer(call: Call) -> LedgerLogError:
    kind = MetadataOutcomeUnknown if call.is_write else MetadataUnavailable
    return kind(f"{call}: no answer within {METADATA_TIMEOUT_S:g} s")


class SimStore(CalledStore):
    """The metadata store of one life of a process (``store.MetadataStore``)."""

    _client_of = _Server

    def __init__(self, tree: SimTree, network: SimNetwork, incarnation: Incarnation) -> None:
        super().__init__(tree)
        self._tree = tree
        self.lost_share = 0.0
        """The share of writes, from 0 to 1, that fail. Half of them never arrive, half lose their answers."""
        self.lost_writes = 0
        self.lost_answers = 0
        self.is_ended = False
        self.stale_reads = 0
        """How many reads a lagging replica has answered."""
        self._replica: MemoryStore | None = None
        self._network = network
        self._incarnation = incarnation
        self._host = incarnation.process
        self._random: Random = incarnation.simulation.random(f"metadata {incarnation.process}")
        self._timers: list[Timer] = []
        self._is_cut_off = False
        network.watch(self.look)

    # --- sessions -----------------------------------------------------------------------------

    def look(self) -> None:
        """Check whether the process is still in contact with the store, and act on a change."""
        if self.is_ended:
            return
        incarnation = self._incarnation
        is_cut_off = (
            incarnation.is_dead or incarnation.is_paused or self._network.is_blocked(self._host, METADATA)
        )
        if is_cut_off == self._is_cut_off:
            return
        self._is_cut_off = is_cut_off
        if is_cut_off:
            after = incarnation.simulation.after
            self._timers = [after(SUSPECT_S, self._suspect), after(SESSION_TIMEOUT_S, self.expire)]
            return
        for timer in self._timers:
            timer.cancel()
        self.inner.reconnect()

    def _suspect(self) -> None:
        self.inner.disconnect()

    def expire(self) -> None:
        """Make the store end the session."""
        self._incarnation.simulation.event("session lost", self._host)
        self.catch_up()
        self.inner.expire_session()
        if self._incarnation.is_dead:
            self.is_ended = True

    def end(self) -> None:
        """End the session, as a stopping process does."""
        self.is_ended = True
        self.inner.close()

    def lag(self) -> None:
        """Let the process read the present state of the tree until ``catch_up``."""
        self._replica = self._tree.replica()

    def catch_up(self) -> None:
        """End ``lag``. The process's watches then report the changes that the process has not seen."""
        if self._replica is not None:
            self._replica = None
            self._tree.wake_all()

    # --- calls --------------------------------------------------------------------------------

    async def _carry(self, call: Call, act: GoOn) -> Any:
        network, incarnation = self._network, self._incarnation
        incarnation.enter_door()
        fate = self._random.random() if call.is_write and self.lost_share else 1.0
        until = incarnation.simulation.now + METADATA_TIMEOUT_S
        if not await network.travel(incarnation, self._host, METADATA, until=until):
            raise _no_answer(call)
        if fate < self.lost_share / 2:
            self.lost_writes += 1
            incarnation.simulation.event("metadata write lost", self._host)
            raise MetadataOutcomeUnknown(f"{call}: the connection broke")
        failure: LedgerLogError | None = None
        try:
            # A ``_Server`` cannot be cancelled. So no crash or cancellation can come before the answer of the
            # server is known here.
            self._tree.on_behalf_of(self.inner.session, incarnation)
            result = await self._act(call, act)
            if call.is_write:
                incarnation.simulation.event("metadata write", self._host, str(call))
        except LedgerLogError as error:
            failure = error
        if call.is_write:
            incarnation.leave_door()
        if not await network.travel(incarnation, METADATA, self._host, until=until):
            raise _no_answer(call)
        if failure is not None:
            raise failure
        if fate < self.lost_share:
            self.lost_answers += 1
            incarnation.simulation.event("metadata answer lost", self._host)
            raise MetadataOutcomeUnknown(f"{call}: the connection broke before the answer")
        return result

    async def _act(self, call: Call, act: GoOn) -> Any:
        if call.is_write or call.verb == "sync":
            self.catch_up()
        result = await act()  # The tree refuses the write itself, for example if the session is suspended.
        if self._replica is None or call.verb not in ("get", "children"):
            return result
        self.stale_reads += 1
        return await getattr(self._replica, call.verb)(call.path)

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        return (await self.transaction([Create(path, value, ephemeral)]))[0]

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        operations = tuple(operations)
        is_ephemeral = any(isinstance(each, Create) and each.ephemeral for each in operations)
        session = self.inner.session

        async def apply() -> list[int]:
            if is_ephemeral and self.inner.session is not session:
                await trio.lowlevel.cancel_shielded_checkpoint()
                raise SessionExpired(f"session {session.session_id} is over; nothing was created")
            return await self.inner.transaction(operations)

        versions: list[int] = await self._call(Call("transaction", operations=operations), apply)
        return versions

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        return self._watch(path)

    @asynccontextmanager
    async def _watch(self, path: str) -> AsyncIterator[Watch]:
        self._incarnation.check()
        async with self.inner.watch(path) as watch:
            assert isinstance(watch, TreeWatch)
            yield _SimWatch(self, watch)


class _SimWatch:
    """A watch whose notifications travel across the simulated network."""

    def __init__(self, store: SimStore, inner: TreeWatch) -> None:
        self._store = store
        self._inner = inner

    async def wait(self) -> None:
        store = self._store
        store._incarnation.check()
        await self._inner.wait()
        try:
            await store._network.travel(store._incarnation, METADATA, store._host)
        except trio.Cancelled:
            # A cancelled waiter consumed the notification; pass it on to the next waiter.
            self._inner.mark()
            raise
