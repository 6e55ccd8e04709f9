"""The snapshots of a replica: when they are taken, what is kept of them, and how a replica becomes one again.

A snapshot is due every so many records. It is the state at one moment: the head and the table of
requests are copied, the machine is asked for its chunks, and all of that is written out while commands
are applied on. One is written at a time. Where the store is shared the leader alone takes them, else
each replica does for itself.

**Truncation** is done by the leader alone, and only behind snapshots in a store that every replica can
read: up to where the oldest snapshot that is kept reaches, so that the newest one may turn out to be
damaged and nothing is lost. It goes through the leader's writer and never through the log: ``Log.truncate``
is anybody's, while the writer's fails at its compare-and-set once somebody else leads. A replica that was
deposed while it wrote a snapshot knows nothing of what the new leader keeps, and so gives nothing up.

**Restoring** takes the newest snapshot that is whole. One that is damaged is told and passed over. With
a gap to cross only one that reaches to the far side will do; where there is none, the replica stops. One that
cannot be read at the moment is not none: it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import attrs
import trio

from ledgerlog.errors import (
    EntryCorrupt,
    EntryNotFound,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    RecordsLost,
    ReplicaStopped,
    StorageCorrupt,
    Truncated,
    WireError,
)
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.machine.core.replica import ReplicaCore, RequestTable
from ledgerlog.machine.events import EventKind, Listeners
from ledgerlog.machine.snapshots import SnapshotInfo, SnapshotStore
from ledgerlog.wire.snapshots import SnapshotHead, decode_snapshot_untrusted, encode_snapshot

__all__ = ["SnapshotKeeper"]

_DAMAGE = (StorageCorrupt, EntryCorrupt, EntryNotFound, LedgerNotFound, WireError)
"""Who meets one of these with a snapshot would meet it again: it is damaged, or gone."""

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True)
class SnapshotKeeper:
    """Takes, keeps and restores the snapshots of one replica."""

    log: Log
    core: ReplicaCore
    store: SnapshotStore | None
    listeners: Listeners
    every: int
    kept: int
    truncates: bool
    leader: LogWriter | None = None
    """The log's writer, while this replica leads. It truncates: one who was deposed gives nothing up."""
    nursery: trio.Nursery | None = None
    """Where snapshots are written, while the replica runs."""
    taken: int = 0
    restores: int = 0
    reaches: int = 0
    """Where the newest snapshot that was taken or restored reaches."""
    _tried_at: int = 0
    """Where the newest one reaches that was begun."""
    _is_saving: bool = False
    _is_learning: bool = False
    """It is not known yet how far the snapshots of the leaders before reach."""
    _saved: trio.Event = attrs.Factory(trio.Event)
    _unreachable: LedgerLogError | None = None
    """Why a snapshot could not be read now, damage aside."""

    # --- taking -------------------------------------------------------------------------------

    def on_leading(self, leader: LogWriter) -> None:
        """This replica takes the snapshots from now on, and truncates. The next is due ``every`` records
        after the newest that is there, whoever took it; until that is known none is taken. No checkpoint."""
        self.leader = leader
        if self.store is not None and self.store.is_shared and self.nursery is not None:
            self._is_learning = True
            self.nursery.start_soon(self._learn, self.store, leader)

    def on_following(self) -> None:
        self.leader = None

    async def _learn(self, store: SnapshotStore, leader: LogWriter) -> None:
        newest = 0
        try:
            found = await store.find(self.log.incarnation)
            newest = found[0].next_offset if found else 0
        except LedgerLogError as error:
            # Then one is taken too early, which harms nobody.
            logger.info("log=%s: its snapshots cannot be listed now: %s", self.log.name, error)
        if self.leader is leader:
            self._is_learning = False
            self._tried_at = max(self._tried_at, newest)
            self.on_applied()

    def on_applied(self) -> None:
        """A record was applied: take a snapshot if one is due. No checkpoint."""
        store = self.store
        if store is None or self.core.next_offset - self._tried_at < self.every:
            return
        if self._is_saving or self.nursery is None or (store.is_shared and self.leader is None):
            return
        if self._is_learning:
            return
        try:
            next_offset, stream = self._begin()
        except Exception as error:
            # The machine's own code, up to its first chunk. What it raises later is told in the same way.
            self._tell_failed(self.core.next_offset, error)
            return
        self.nursery.start_soon(self._save_quietly, store, next_offset, stream)

    async def take(self) -> SnapshotInfo:
        """Take one now, after the one that is being taken; returns once it is durable."""
        if self.store is None:
            raise InvalidArgument("this replica has no store for snapshots")
        while self._is_saving:
            await self._saved.wait()
        return await self._save(self.store, *self._begin())

    def _begin(self) -> tuple[int, Iterator[bytes]]:
        """The state now, as a stream that may be taken later."""
        core = self.core
        count, requests = core.requests.pieces()
        head = SnapshotHead(
            log=self.log.name,
            incarnation=self.log.incarnation,
            next_offset=core.next_offset,
            timestamp_ms=core.timestamp_ms,
            requests=count,
        )
        self._tried_at = core.next_offset
        stream = encode_snapshot(head, requests, core.chunks())
        self._is_saving = True
        return core.next_offset, stream

    async def _save_quietly(self, store: SnapshotStore, next_offset: int, stream: Iterator[bytes]) -> None:
        try:
            await self._save(store, next_offset, stream)
        except Exception as error:
            # The machine's own code runs in here as well. It is told, and tried again when the next is due.
            self._tell_failed(next_offset, error)

    def _tell_failed(self, next_offset: int, error: Exception) -> None:
        logger.warning("log=%s: a snapshot was not made: %s", self.log.name, error)
        self.listeners.tell(EventKind.SNAPSHOT_FAILED, next_offset, f"{type(error).__name__}: {error}")

    async def _save(self, store: SnapshotStore, next_offset: int, stream: Iterator[bytes]) -> SnapshotInfo:
        try:
            info = await store.save(self.log.name, self.log.incarnation, next_offset, stream)
        finally:
            self._is_saving = False
            self._saved.set()
            self._saved = trio.Event()
        self.taken += 1
        self.reaches = max(self.reaches, next_offset)
        self.listeners.tell(EventKind.SNAPSHOT, next_offset)
        try:
            await self._forget_old(store)
        except LedgerLogError as error:
            # The next one will do it.
            logger.warning("log=%s: it is not truncated behind its snapshots: %s", self.log.name, error)
            self.listeners.tell(EventKind.NOT_TRUNCATED, next_offset, str(error))
        return info

    async def _forget_old(self, store: SnapshotStore) -> None:
        incarnation = self.log.incarnation
        await store.prune(incarnation, self.kept)
        if self.truncates and self.leader is not None:
            kept = await store.find(incarnation)
            leader = self.leader
            if len(kept) >= self.kept and leader is not None:
                before = kept[-1].next_offset
                await leader.truncate(before)
                self.listeners.tell(EventKind.TRUNCATED, before)

    # --- restoring ----------------------------------------------------------------------------

    async def restore(self, gap: Truncated | None = None) -> int | None:
        """Become what the newest whole snapshot says that is ahead of us; where it reaches, None where
        there is none. With a gap one that covers it, or ReplicaStopped; what else the store raises passes,
        and then it is worth trying again."""
        core, store = self.core, self.store
        least = core.next_offset + 1 if gap is None else gap.first_offset
        found: list[SnapshotInfo] | None = None
        while store is not None:
            before, found = found, await store.find(self.log.incarnation)
            if found == before:
                break
            self._unreachable = None
            for info in found:
                if info.next_offset < least:
                    break
                if await self._restore_from(store, info):
                    return info.next_offset
            if gap is None:
                return None
            if self._unreachable is not None:
                raise self._unreachable
            # The leader may have taken others meanwhile and dropped these: look again.
        if gap is not None:
            what = "lost" if isinstance(gap, RecordsLost) else "truncated"
            raise ReplicaStopped(
                self.log.name,
                f"records {core.next_offset} to {gap.first_offset - 1} are {what}, "
                "and no snapshot that can be read covers them",
            )
        return None

    async def _restore_from(self, store: SnapshotStore, info: SnapshotInfo) -> bool:
        name = self.log.name
        try:
            found = decode_snapshot_untrusted(await store.load(info))
            table = RequestTable.decode_untrusted(found.requests)
            if (found.head.incarnation, found.head.next_offset) != (self.log.incarnation, info.next_offset):
                raise WireError(f"it is of {found.head}")
        except LedgerLogError as error:
            logger.warning("log=%s: snapshot %s cannot be used: %s", name, info.place, error)
            self.listeners.tell(EventKind.SNAPSHOT_FAILED, info.next_offset, str(error))
            if not isinstance(error, _DAMAGE):
                self._unreachable = error
            return False
        self.core.restore(found.head.next_offset, found.head.timestamp_ms, table, found.chunks)
        self._tried_at = self.reaches = info.next_offset
        self.restores += 1
        self.listeners.tell(EventKind.RESTORED, info.next_offset, info.place)
        logger.info("log=%s: restored up to %d from %s", name, info.next_offset, info.place)
        return True
