"""Where snapshots are kept: the capability, and snapshots in ledgers of the cluster itself.

A store keeps streams of bytes (``wire.snapshots``) for logs, each under the offset up to which it reaches. It
knows nothing of what is in them. A snapshot that was saved is durable and whole, or is not listed.

**Shared or not.** A log may be truncated behind a snapshot only if every replica can get at that
snapshot. ``is_shared`` says so: a store in ledgers is shared by all who reach the cluster; a directory
by those who have it mounted.

**In ledgers.** One ledger for a snapshot, its stream cut into entries, replicated as any other ledger. A
record in the metadata store, ``snapshots/INCARNATION``, lists the ledgers of a log's snapshots:

    save    make the ledger; list it as unfinished; write; close; list it as finished
    prune   take it off the list, then delete the ledger

so a crash leaves a ledger that is listed as unfinished, which the next ``prune`` deletes (or, between
the first two steps, an empty ledger that names its log in its own metadata). What no ``prune`` comes by any
more, because the log is gone or takes no snapshots, the sweep finds (``log.sweep``). Replicas that save at
once all succeed; the list is changed by compare-and-set (``log.snapshot_list``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import attrs
import trio

from ledgerlog.errors import LedgerLogError, LedgerNotFound, StorageCorrupt
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import KIB, REPLICA_SNAPSHOT_BYTES_MAX
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.model.quorum import Replication
from ledgerlog.model.snapshots import ListedSnapshot, snapshot_labels

__all__ = ["LedgerSnapshots", "SnapshotInfo", "SnapshotStore"]

_ENTRY_BYTES = 256 * KIB
_ENTRIES_AT_ONCE = 16

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class SnapshotInfo:
    """A snapshot that a store has."""

    next_offset: int
    """The first record of the log that is not in it."""
    size: int
    """Bytes of its stream."""
    place: str
    """Where it is, in the store's own words."""


class SnapshotStore(Protocol):
    """Snapshots of logs. Methods raise LedgerLogError where the store fails."""

    @property
    def is_shared(self) -> bool:
        """Whether every replica of a log finds here what any of them saved."""
        ...

    async def find(self, incarnation: int) -> list[SnapshotInfo]:
        """The snapshots of a log, newest first."""
        ...

    async def save(
        self, name: str, incarnation: int, next_offset: int, stream: Iterable[bytes]
    ) -> SnapshotInfo:
        """Keep a stream. It is taken piece by piece, with checkpoints between. Once this returns it is
        durable; if it raises or is cancelled, it is not listed."""
        ...

    async def load(self, info: SnapshotInfo) -> bytes:
        """A whole stream. StorageCorrupt where what is there cannot be what was saved."""
        ...

    async def prune(self, incarnation: int, keep: int) -> None:
        """Forget all but the newest ``keep``, and what was never finished."""
        ...


class HasClient(Protocol):
    """A ``ledgerlog.Cluster``."""

    @property
    def client(self) -> LedgerClient: ...


class LedgerSnapshots:
    """Snapshots as ledgers of a cluster, which every replica reaches (``SnapshotStore``).

    ``replication`` is that of the ledgers; the cluster's default where it is not given."""

    def __init__(self, cluster: HasClient, *, replication: Replication | None = None) -> None:
        self._client = cluster.client
        self._replication = replication

    @property
    def is_shared(self) -> bool:
        return True

    async def find(self, incarnation: int) -> list[SnapshotInfo]:
        listed = await self._list(incarnation).read()
        finished = sorted((s for s in listed if s.is_finished), key=lambda s: s.next_offset, reverse=True)
        return [
            SnapshotInfo(next_offset=s.next_offset, size=s.size, place=f"ledger {s.ledger_id}")
            for s in finished
        ]

    async def save(
        self, name: str, incarnation: int, next_offset: int, stream: Iterable[bytes]
    ) -> SnapshotInfo:
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
                for piece in stream:
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
        if info.size > REPLICA_SNAPSHOT_BYTES_MAX:
            raise StorageCorrupt(info.place, None, f"a snapshot of {info.size} bytes is over the limit")
        reader = await self._client.ledgers.open(int(info.place.removeprefix("ledger ")))
        last = await reader.last_add_confirmed()
        parts: list[bytes] = []
        while len(parts) <= last:
            parts += await reader.read_batch(len(parts), last, bytes_max=_ENTRIES_AT_ONCE * _ENTRY_BYTES)
        return b"".join(parts)

    async def prune(self, incarnation: int, keep: int) -> None:
        listed = await self._list(incarnation).read(fresh=False)
        finished = sorted((s for s in listed if s.is_finished), key=lambda s: s.next_offset, reverse=True)
        kept = {s.ledger_id for s in finished[:keep]}
        newest = finished[0].next_offset if finished else -1
        # What is not finished and reaches no further than what is: its writer has died, or comes too late.
        gone = {s.ledger_id for s in listed if s.ledger_id not in kept and s.next_offset <= newest}
        if gone:
            await self._drop(incarnation, gone)

    def _list(self, incarnation: int) -> SnapshotList:
        return SnapshotList(self._client.store, incarnation)

    async def _drop(self, incarnation: int, ledger_ids: set[int]) -> None:
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
    """The list with this one finished; LedgerNotFound where somebody took it off."""
    if finished in listed:
        return listed
    if all(s.ledger_id != finished.ledger_id for s in listed):
        raise LedgerNotFound(finished.ledger_id)
    return [finished if s.ledger_id == finished.ledger_id else s for s in listed]


def _entries(data: bytearray) -> list[bytes]:
    return [bytes(data[at : at + _ENTRY_BYTES]) for at in range(0, len(data), _ENTRY_BYTES)]
