"""Stores for snapshots: their interface, and a store in ledgers of the cluster itself.

A store keeps snapshots of logs. Each snapshot is a stream of bytes (``wire.snapshots``), stored under the
offset that it reaches: it has the effect of all records before that offset. The store does not look into the
streams. A snapshot is listed only if it is durable and whole, and small enough to be loaded again
(``limits.REPLICA_SNAPSHOT_BYTES_MAX``).

**Shared or not.** The records that a snapshot has may be truncated from the log only if every replica can
read that snapshot. ``is_shared`` says whether every replica can. All replicas that reach the cluster share a
store in ledgers. All replicas that mount a directory share that directory.

**In ledgers.** Each snapshot has a ledger of its own. The stream is cut into entries, which are replicated as
in any other ledger. A record in the metadata store, ``snapshots/INCARNATION``, lists the ledgers of a log's
snapshots:

    save    create the ledger; list it as unfinished; write; close; list it as finished
    prune   take the ledger off the list, then delete it

So a crash of ``save`` leaves a ledger that is listed as unfinished. The next ``prune`` deletes it. A crash
between the first two steps of ``save`` leaves an empty ledger that is not listed; its own metadata name the
log. If the log is gone or no longer takes snapshots, no ``prune`` follows. Then the sweep finds these
ledgers (``log.sweep``).
Several replicas may save at the same time and all succeed, because the list is changed by compare-and-set
(``log.snapshot_list``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol, runtime_checkable

import attrs
import trio

from ledgerlog.errors import LedgerLogError, LedgerNotFound, StorageCorrupt, StorageError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import KIB, REPLICA_SNAPSHOT_BYTES_MAX
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.model.checks import check_kind
from ledgerlog.model.quorum import Replication
from ledgerlog.model.snapshots import ListedSnapshot, snapshot_labels

__all__ = ["LedgerSnapshots", "SnapshotInfo", "SnapshotStore", "SnapshotTooLarge", "within_limit"]

_ENTRY_BYTES = 256 * KIB
_ENTRIES_AT_ONCE = 16
"""The number of entries in one write or one read."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class SnapshotInfo:
    """A snapshot in a store."""

    next_offset: int
    """The first record of the log that is not in the snapshot."""
    size: int
    """The size of the snapshot's stream, in bytes."""
    place: str
    """Where the snapshot is, for example a file name or a ledger. Only the store uses this text."""


@runtime_checkable
class SnapshotStore(Protocol):
    """Keeps snapshots of logs. Methods raise LedgerLogError if the store fails."""

    @property
    def is_shared(self) -> bool:
        """Whether every replica of a log can read the snapshots that any of them saved here."""
        ...

    async def find(self, incarnation: int) -> list[SnapshotInfo]:
        """Return the snapshots of a log, newest first.

        Args:
            incarnation: The incarnation of the log.
        """
        ...

    async def save(
        self, name: str, incarnation: int, next_offset: int, stream: Iterable[bytes]
    ) -> SnapshotInfo:
        """Save a snapshot.

        The store takes the stream piece by piece, with checkpoints between the pieces. If the call raises or
        is cancelled, the snapshot is not listed.

        Args:
            name: The name of the log, for people.
            incarnation: The incarnation of the log.
            next_offset: The first record of the log that is not in the snapshot.
            stream: The bytes of the snapshot.

        Returns:
            The snapshot. It is durable.

        Raises:
            StorageError: The snapshot is larger than the store can load again.
        """
        ...

    async def load(self, info: SnapshotInfo) -> bytes:
        """Return the whole stream of a snapshot.

        Args:
            info: The snapshot, as ``find`` or ``save`` returned it.

        Raises:
            StorageCorrupt: The stored stream cannot be the one that was saved.
        """
        ...

    async def prune(self, incarnation: int, keep: int) -> None:
        """Delete all snapshots of a log except the newest ``keep``. Also delete unfinished snapshots whose
        writers have died.

        Args:
            incarnation: The incarnation of the log.
            keep: How many snapshots to keep.
        """
        ...


class SnapshotTooLarge(StorageError):
    """A snapshot is not stored, because no replica could restore it."""


def within_limit(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a snapshot's stream.

    Args:
        stream: The bytes of the snapshot.

    Raises:
        SnapshotTooLarge: The stream is larger than ``limits.REPLICA_SNAPSHOT_BYTES_MAX``. A replica could not
            restore it.
    """
    size = 0
    for piece in stream:
        size += len(piece)
        if size > REPLICA_SNAPSHOT_BYTES_MAX:
            raise SnapshotTooLarge(
                f"a snapshot of more than {REPLICA_SNAPSHOT_BYTES_MAX} bytes is not stored: no replica could "
                "restore it"
            )
        yield piece


@runtime_checkable
class HasClient(Protocol):
    """An object with a client of a cluster, for example ``ledgerlog.Cluster``."""

    @property
    def client(self) -> LedgerClient:
        """The client of the cluster."""
        ...


class LedgerSnapshots:
    """Snapshots in ledgers of a cluster, for ``Replica(snapshots=...)``. Every replica can read them.

    Every method may raise MetadataUnavailable (the metadata store did not answer) and the errors of ledgers.

    Args:
        cluster: The cluster.
        replication: The replication of the ledgers. None: the cluster's default.

    Raises:
        InvalidArgument: ``cluster`` is no cluster of this API.
    """

    def __init__(self, cluster: HasClient, *, replication: Replication | None = None) -> None:
        check_kind(cluster, HasClient, "cluster", "a ledgerlog.Cluster")
        self._client = cluster.client
        self._replication = replication

    @property
    def is_shared(self) -> bool:
        """Always True: every replica reaches the cluster."""
        return True

    async def find(self, incarnation: int) -> list[SnapshotInfo]:
        """Return the snapshots of a log, newest first. See ``SnapshotStore.find`` for the details.

        Args:
            incarnation: The incarnation of the log.
        """
        listed = await self._list(incarnation).read()
        finished = sorted((s for s in listed if s.is_finished), key=lambda s: s.next_offset, reverse=True)
        return [
            SnapshotInfo(next_offset=s.next_offset, size=s.size, place=f"ledger {s.ledger_id}")
            for s in finished
        ]

    async def save(
        self, name: str, incarnation: int, next_offset: int, stream: Iterable[bytes]
    ) -> SnapshotInfo:
        """Save a snapshot. See ``SnapshotStore.save`` for the details.

        Args:
            name: The name of the log, for people.
            incarnation: The incarnation of the log.
            next_offset: The first record of the log that is not in the snapshot.
            stream: The bytes of the snapshot.

        Returns:
            The snapshot. It is durable.

        Raises:
            StorageError: The snapshot is larger than ``limits.REPLICA_SNAPSHOT_BYTES_MAX``.
        """
        snapshots = self._list(incarnation)
        writer = await self._client.ledgers.create(
            replication=self._replication,
            metadata=snapshot_labels(name, incarnation),
        )
        ledger_id = writer.ledger_id
        size = 0
        try:
            async with writer:
                unfinished = ListedSnapshot(ledger_id, next_offset)
                await snapshots.change(lambda listed: _with(listed, unfinished))
                buffer = bytearray()
                for piece in within_limit(stream):
                    buffer += piece
                    await trio.lowlevel.checkpoint()
                    if len(buffer) >= _ENTRIES_AT_ONCE * _ENTRY_BYTES:
                        size += len(buffer)
                        await writer.append_many(_entries(buffer))
                        buffer = bytearray()
                size += len(buffer)
                if buffer:
                    await writer.append_many(_entries(buffer))
            finished = ListedSnapshot(ledger_id, next_offset, size)
            await snapshots.change(lambda listed: _finish(listed, finished))
        except BaseException:
            with trio.move_on_after(2.0, shield=True):
                await self._drop(incarnation, {ledger_id})
            raise
        return SnapshotInfo(next_offset=next_offset, size=size, place=f"ledger {ledger_id}")

    async def load(self, info: SnapshotInfo) -> bytes:
        """Return the whole stream of a snapshot. See ``SnapshotStore.load`` for the details.

        Args:
            info: The snapshot, as ``find`` or ``save`` returned it.

        Raises:
            StorageCorrupt: The stored stream cannot be the one that was saved.
        """
        if info.size > REPLICA_SNAPSHOT_BYTES_MAX:
            raise StorageCorrupt(info.place, None, f"a snapshot of {info.size} bytes is over the limit")
        reader = await self._client.ledgers.open(int(info.place.removeprefix("ledger ")))
        last = await reader.last_add_confirmed()
        parts: list[bytes] = []
        while len(parts) <= last:
            parts += await reader.read_batch(len(parts), last, bytes_max=_ENTRIES_AT_ONCE * _ENTRY_BYTES)
        return b"".join(parts)

    async def prune(self, incarnation: int, keep: int) -> None:
        """Delete old snapshots. See ``SnapshotStore.prune`` for the details.

        Args:
            incarnation: The incarnation of the log.
            keep: How many snapshots to keep.
        """
        listed = await self._list(incarnation).read(fresh=False)
        finished = sorted((s for s in listed if s.is_finished), key=lambda s: s.next_offset, reverse=True)
        kept = {s.ledger_id for s in finished[:keep]}
        newest = finished[0].next_offset if finished else -1
        # If an unfinished snapshot reaches no further than a finished one, its writer is dead or is no
        # longer needed.
        gone = {s.ledger_id for s in listed if s.ledger_id not in kept and s.next_offset <= newest}
        if gone:
            await self._drop(incarnation, gone)

    def _list(self, incarnation: int) -> SnapshotList:
        return SnapshotList(self._client.store, incarnation)

    async def _drop(self, incarnation: int, ledger_ids: set[int]) -> None:
        """Take ledgers off the list and delete them. A failure is logged."""
        try:
            await self._list(incarnation).change(
                lambda listed: [s for s in listed if s.ledger_id not in ledger_ids]
            )
            for ledger_id in sorted(ledger_ids):
                with suppress(LedgerNotFound):
                    await self._client.ledgers.delete(ledger_id)
        except LedgerLogError as cause:
            logger.warning("snapshots of incarnation=%d were not dropped: %s", incarnation, cause)


def _with(listed: list[ListedSnapshot], unfinished: ListedSnapshot) -> list[ListedSnapshot]:
    return listed if unfinished in listed else [*listed, unfinished]


def _finish(listed: list[ListedSnapshot], finished: ListedSnapshot) -> list[ListedSnapshot]:
    """Return the list with a snapshot marked as finished.

    Raises:
        LedgerNotFound: Another replica took the snapshot off the list.
    """
    if finished in listed:
        return listed
    if all(s.ledger_id != finished.ledger_id for s in listed):
        raise LedgerNotFound(finished.ledger_id)
    return [finished if s.ledger_id == finished.ledger_id else s for s in listed]


def _entries(data: bytearray) -> list[bytes]:
    return [bytes(data[at : at + _ENTRY_BYTES]) for at in range(0, len(data), _ENTRY_BYTES)]
