"""Replicas of state machines for asyncio.

The replica, its machine and its store of snapshots run under trio. Only trio calls the machine: ``apply``,
``snapshot``, ``restore``, and the functions that you pass to ``read``. So they never run at the same time,
and a machine needs no locks. Only bytes and results cross to the asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

from ledgerlog import cluster
from ledgerlog.aio.base import AioFace, inner_of
from ledgerlog.aio.bridge import Bridge, HeldContext
from ledgerlog.election import election as elections
from ledgerlog.limits import REPLICA_SNAPSHOT_RECORDS
from ledgerlog.log import log as logs
from ledgerlog.machine import replica, snapshots
from ledgerlog.machine.events import ReplicaEvent
from ledgerlog.machine.machine import StateMachine
from ledgerlog.model.quorum import Replication

__all__ = ["AioReplica", "LedgerSnapshots", "M"]

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")


class LedgerSnapshots(snapshots.LedgerSnapshots):
    """Snapshots in ledgers of a cluster, for ``Replica(snapshots=...)``. Every replica can read them.

    Give it to a ``Replica``, which calls its methods in trio's loop. Do not call them yourself.

    Args:
        cluster: The cluster.
        replication: The replication of the ledgers. None: the cluster's default.
    """

    def __init__(self, cluster: AioFace[cluster.Cluster], *, replication: Replication | None = None) -> None:
        super().__init__(inner_of(cluster, "cluster"), replication=replication)


class AioReplica(AioFace[replica.Replica[M]], Generic[M]):
    """The part of ``Replica`` that is written by hand."""

    def __init__(
        self,
        log: AioFace[logs.Log],
        machine: M,
        *,
        election: AioFace[elections.Election] | None = None,
        snapshots: snapshots.SnapshotStore | None = None,
        leads: bool = True,
        snapshot_every: int = REPLICA_SNAPSHOT_RECORDS,
        snapshots_kept: int = 2,
        truncate: bool | None = None,
    ) -> None:
        inner = replica.Replica(
            inner_of(log, "log"),
            machine,
            election=None if election is None else inner_of(election, "election"),
            snapshots=snapshots,
            leads=leads,
            snapshot_every=snapshot_every,
            snapshots_kept=snapshots_kept,
            truncate=truncate,
        )
        super().__init__(log._portal, inner)
        self._held: HeldContext[replica.Replica[M]] | None = None

    async def __aenter__(self) -> Self:
        _, self._held = await self._portal.enter(self._inner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None
        await self._held.leave(error)

    def events(self) -> AsyncIterator[ReplicaEvent]:
        """Return an async iterator over the events from now on. It ends with the replica."""
        return _Events(self._portal, self._inner)

    async def digest(self) -> tuple[int, str]:
        """Return ``next_offset`` and a digest of the whole state there.

        All replicas at the same offset have the same digest. This takes a snapshot of the machine in one
        step.
        """

        async def take() -> tuple[int, str]:
            return self._inner.digest()

        return await self._run(take)

    async def read(self, fn: Callable[[M], T], *, consistency: Literal["local", "linear"] = "local") -> T:
        """Call a function with the machine, and return its result.

        Args:
            fn: Called with the machine, in trio's loop, so keep it short. It must not change the machine, nor
                keep parts of it that commands change.
            consistency: ``local``: read the present state of this replica, which may be an old state of the
                log. ``linear``: read a state with every command that was acknowledged before the call, by any
                leader. Only the leader can do that.

        Returns:
            The result of ``fn``.

        Raises:
            NotLeader: The read is ``linear`` and this replica does not lead. Ask ``NotLeader.leader``.
            AppendUnknown: The read is ``linear`` and the leadership ended. Ask again.
            LogSealed: The read is ``linear`` and the log is sealed.
            InvalidArgument: ``consistency`` is not ``local`` or ``linear``.
            ReplicaStopped: The replica has stopped.
        """
        return await self._run(partial(self._inner.read, fn, consistency=consistency))


class _Events(Generic[M]):
    """The events of a replica. This creates trio's iterator at once. Each step runs in trio's loop.

    A caller may be cancelled after its step has taken an event in trio, for example by a timeout. Then the
    next step returns this event.
    """

    def __init__(self, portal: Bridge, inner: replica.Replica[M]) -> None:
        self._portal = portal
        self._inner = inner
        self._events: AsyncIterator[ReplicaEvent] | None = None
        self._taken: deque[ReplicaEvent | None] = deque()
        """What trio has taken and the caller has not received."""
        self._one_step = asyncio.Lock()
        portal.check()
        portal.tell_trio(self._begin)

    def _begin(self) -> None:
        self._events = self._inner.events()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReplicaEvent:
        async with self._one_step:
            event = await self._portal.run(self._next)
            self._taken.popleft()
        if event is None:
            raise StopAsyncIteration
        return event

    async def _next(self) -> ReplicaEvent | None:
        assert self._events is not None, "it begins before its first step"
        if not self._taken:
            self._taken.append(await anext(self._events, None))
        return self._taken[0]
