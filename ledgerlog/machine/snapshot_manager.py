"""The snapshots of a replica: when to take them, which ones to keep, and how to restore from them.

A snapshot is due after a number of records. It is the state at one moment: it *reaches* an offset, and has
the effect of all records before that offset. At that moment the manager copies the head and the table of
requests, and asks the machine for its chunks. It writes the chunks while the replica applies further
commands. It writes one snapshot at a time. If every replica can read the store (it is *shared*), only the
leader takes snapshots; otherwise each replica takes its own.

**Too large.** How large a snapshot is turns out only while it is written. So after each snapshot that was too
large to be stored, the next one is due after twice as many records, until one is stored again.

**Truncation.** Only the leader truncates the log. By default it does so only if the store is shared. It
truncates up to the offset that the oldest kept snapshot reaches. For example, if two snapshots reach offsets
1000 and 2000, it truncates before offset 1000. So nothing is lost if the newest snapshot turns out to be
damaged. The manager truncates through the leader's writer and never by ``Log.truncate``: if another replica
leads by then, the writer's ``truncate`` fails at its compare-and-set, and ``Log.truncate`` would not fail. If
a replica is deposed while it writes a snapshot, it does not know which snapshots the new leader keeps. So the
deposed replica truncates nothing.

**Restoring** uses the newest whole snapshot. A damaged one is reported as an event and skipped. There are two
cases:

* The log has a gap at the replica's place: it was truncated, or records were lost. The snapshot must reach at
  least the first record after the gap. If every such snapshot is damaged or missing, the replica stops. If
  one is unreadable only for the moment, the replica tries again.
* The log has no gap there. If no snapshot can be used, the replica applies the log from its place on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

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
from ledgerlog.machine.core.replica import ReplicaCore, RequestTable, text_of
from ledgerlog.machine.events import EventKind, Listeners
from ledgerlog.machine.snapshots import SnapshotInfo, SnapshotStore, SnapshotTooLarge
from ledgerlog.wire.snapshots import SnapshotHead, decode_snapshot_untrusted, encode_snapshot

__all__ = ["SnapshotManager"]

_DAMAGE = (StorageCorrupt, EntryCorrupt, EntryNotFound, LedgerNotFound, WireError)
"""Errors that say that a snapshot is damaged or gone. Another read would raise the same error."""

_DOUBLINGS_MAX = 8
"""While the state is too large, a snapshot is tried after at most 2 to this power times ``every`` records."""

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True)
class SnapshotManager:
    """Takes, keeps and restores the snapshots of one replica."""

    log: Log
    """The log."""
    core: ReplicaCore
    """The replica's machine and its place in the log."""
    store: SnapshotStore | None
    """Where snapshots are kept; None: the replica has none."""
    listeners: Listeners
    """The listeners that get an event for each snapshot."""
    every: int
    """After how many records a snapshot is due."""
    kept: int
    """How many snapshots to keep."""
    truncates: bool
    """Whether to truncate the log before the offset that the oldest kept snapshot reaches."""
    stop: Callable[[BaseException], None]
    """Stops the replica for good. Called if the machine's ``restore`` raises."""
    check: Callable[[], None]
    """Raises ReplicaStopped if the replica has stopped."""
    leader: LogWriter | None = None
    """The log's writer while this replica leads. Truncation goes through it, so a deposed leader truncates
    nothing."""
    nursery: trio.Nursery | None = None
    """The nursery in which snapshots are written, while the replica runs."""
    taken: int = 0
    """How many snapshots were taken."""
    restores: int = 0
    """How often the replica was restored from a snapshot."""
    reaches: int = 0
    """The offset that the newest snapshot reaches, of the snapshots that this replica took or restored."""
    _tried_at: int = 0
    """The offset that the newest snapshot reaches, of the snapshots that this replica began or restored or
    that an earlier leader saved. The next snapshot is due ``every`` records later."""
    _too_large: int = 0
    """How many snapshots in a row were too large to be stored."""
    _is_saving: bool = False
    _is_learning: bool = False
    """True until the manager has found out how far the snapshots of earlier leaders reach."""
    _saved: trio.Event = attrs.Factory(trio.Event)
    _unreachable: LedgerLogError | None = None
    """Why a snapshot could not be read this time. The snapshot may be whole; a later try may succeed."""

    # --- taking -------------------------------------------------------------------------------

    def on_leading(self, leader: LogWriter) -> None:
        """Note that this replica leads now: it takes snapshots and truncates the log.

        The next snapshot is due ``every`` records after the newest existing one, even if another replica took
        that one. So if the store is shared, the manager first asks the store for the newest snapshot. Until
        the store has answered, no snapshot is due. This call is not a checkpoint.

        Args:
            leader: The log's writer.
        """
        self.leader = leader
        if self.store is not None and self.store.is_shared and self.nursery is not None:
            self._is_learning = True
            self.nursery.start_soon(self._learn, self.store, leader)

    def on_following(self) -> None:
        """Note that this replica no longer leads."""
        self.leader = None

    async def _learn(self, store: SnapshotStore, leader: LogWriter) -> None:
        """Find out how far the newest snapshot in the store reaches."""
        newest = 0
        try:
            found = await store.find(self.log.incarnation)
            newest = found[0].next_offset if found else 0
        except LedgerLogError as error:
            # The next snapshot may then be taken too early. That does no harm.
            logger.info("log=%s: its snapshots cannot be listed now: %s", self.log.name, error)
        if self.leader is leader:
            self._is_learning = False
            self._tried_at = max(self._tried_at, newest)
            self.on_applied()

    def on_applied(self) -> None:
        """Note that a record was applied, and begin a snapshot if one is due. Not a checkpoint."""
        store, every = self.store, self.every << min(self._too_large, _DOUBLINGS_MAX)
        if store is None or self.core.next_offset - self._tried_at < every:
            return
        if self._is_saving or self.nursery is None or (store.is_shared and self.leader is None):
            return
        if self._is_learning:
            return
        try:
            next_offset, stream = self._begin()
        except Exception as error:
            # The machine's ``snapshot`` raised before its first chunk. If it raises at a later chunk,
            # ``_save`` raises.
            self._tell_failed(self.core.next_offset, error)
            return
        self.nursery.start_soon(self._save_quietly, store, next_offset, stream)

    async def take(self) -> SnapshotInfo:
        """Take a snapshot now, and wait until it is durable.

        If another one is being taken, wait for that first.

        Raises:
            InvalidArgument: The replica has no store for snapshots.
            LedgerLogError: The store failed. The snapshot is not listed.
            ReplicaStopped: The replica has stopped meanwhile.
        """
        if self.store is None:
            raise InvalidArgument("this replica has no store for snapshots")
        while self._is_saving:
            await self._saved.wait()
        self.check()
        return await self._save(self.store, *self._begin())

    def _begin(self) -> tuple[int, Iterator[bytes]]:
        """Capture the present state; return its offset, and a stream that may be read later."""
        core = self.core
        count, requests = core.requests.pieces()
        head = SnapshotHead(
            log=self.log.name,
            incarnation=self.log.incarnation,
            next_offset=core.next_offset,
            timestamp_ms=core.timestamp_ms,
            requests=count,
            epoch=core.epoch,
        )
        self._tried_at = core.next_offset
        stream = encode_snapshot(head, requests, core.chunks())
        self._is_saving = True
        return core.next_offset, stream

    async def _save_quietly(self, store: SnapshotStore, next_offset: int, stream: Iterator[bytes]) -> None:
        """Save a snapshot; report a failure as an event."""
        try:
            await self._save(store, next_offset, stream)
        except Exception as error:
            # The user's machine runs here too, and may raise any error. The next due snapshot tries again.
            self._tell_failed(next_offset, error)

    def _tell_failed(self, next_offset: int, error: Exception) -> None:
        """Log a failed snapshot and report it as an event."""
        why = text_of(error)
        logger.warning("log=%s: a snapshot was not made: %s", self.log.name, why)
        self.listeners.tell(EventKind.SNAPSHOT_FAILED, next_offset, f"{type(error).__name__}: {why}")

    async def _save(self, store: SnapshotStore, next_offset: int, stream: Iterator[bytes]) -> SnapshotInfo:
        """Save a snapshot; then delete old ones and truncate the log."""
        try:
            info = await store.save(self.log.name, self.log.incarnation, next_offset, stream)
        except SnapshotTooLarge:
            self._too_large += 1
            raise
        finally:
            self._is_saving = False
            self._saved.set()
            self._saved = trio.Event()
        self.taken += 1
        self._too_large = 0
        self.reaches = max(self.reaches, next_offset)
        self.listeners.tell(EventKind.SNAPSHOT, next_offset)
        try:
            await self._forget_old(store)
        except LedgerLogError as error:
            # The next snapshot tries again.
            logger.warning("log=%s: it is not truncated after its snapshot: %s", self.log.name, error)
            self.listeners.tell(EventKind.NOT_TRUNCATED, next_offset, str(error))
        return info

    async def _forget_old(self, store: SnapshotStore) -> None:
        """Delete old snapshots, and truncate the log before the offset that the oldest kept one reaches."""
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
        """Restore from the newest whole snapshot that reaches further than the replica.

        Args:
            gap: A gap in the log that the replica has met. The snapshot must reach at least the first record
                after the gap.

        Returns:
            The offset that the snapshot reaches; None if there is no gap and no snapshot could be used.

        Raises:
            ReplicaStopped: No snapshot that can be read covers the gap.
            LedgerLogError: The store failed. Try again.
            BaseException: The machine's ``restore`` raised this. The replica was stopped with ``stop``.
        """
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
            # The leader may have taken newer snapshots and deleted these meanwhile. Look again.
        if gap is not None:
            what = "lost" if isinstance(gap, RecordsLost) else "truncated"
            raise ReplicaStopped(
                self.log.name,
                f"records {core.next_offset} to {gap.first_offset - 1} are {what}, "
                "and no snapshot that can be read covers them",
            )
        return None

    async def _restore_from(self, store: SnapshotStore, info: SnapshotInfo) -> bool:
        """Restore from one snapshot; return whether it could be used."""
        name = self.log.name
        try:
            found = decode_snapshot_untrusted(await store.load(info))
            table = RequestTable.decode_untrusted(found.requests)
            if (found.head.incarnation, found.head.next_offset) != (self.log.incarnation, info.next_offset):
                raise WireError(f"its head is {found.head}")
        except LedgerLogError as error:
            logger.warning("log=%s: snapshot %s cannot be used: %s", name, info.place, error)
            self.listeners.tell(EventKind.SNAPSHOT_FAILED, info.next_offset, str(error))
            if not isinstance(error, _DAMAGE):
                self._unreachable = error
            return False
        try:
            self.core.restore(found.head.next_offset, found.head.timestamp_ms, table, found.chunks)
            self.core.epoch = found.head.epoch
        except BaseException as error:
            # The machine may have a part of the snapshot. So nobody may read it.
            self.stop(error)
            raise
        self._tried_at = self.reaches = info.next_offset
        self.restores += 1
        self.listeners.tell(EventKind.RESTORED, info.next_offset, info.place)
        logger.info("log=%s: restored up to %d from %s", name, info.next_offset, info.place)
        return True
