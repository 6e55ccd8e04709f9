"""The list of a log's snapshots in the metadata store (``model.snapshots``), changed by compare-and-set.

State machines make and read snapshots (``ledgerlog.machine``). This module is here because two operations on
logs need it: deleting a log deletes its snapshots, and the sweep finds snapshots that no replica will use.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.takeover import delete_ledgers
from ledgerlog.meta.settle import remove, settle
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import snapshots_path
from ledgerlog.model.snapshots import ListedSnapshot, encode_snapshot_list, read_snapshot_list

__all__ = ["SnapshotList", "delete_snapshots"]


class SnapshotList:
    """The list of one incarnation of a log. Every method may raise MetadataUnavailable and
    MetadataCorrupt."""

    def __init__(self, store: MetadataStore, incarnation: int) -> None:
        self._store = store
        self._incarnation = incarnation
        self._path = snapshots_path(incarnation)

    async def read(self, *, fresh: bool = True) -> list[ListedSnapshot]:
        """Return the list.

        Args:
            fresh: Return a list at least as new as every write that ended before the call. That costs a sync
                of the store.
        """
        if fresh:
            await self._store.sync()
        return (await self._read())[0]

    async def change(
        self, change: Callable[[list[ListedSnapshot]], list[ListedSnapshot]]
    ) -> list[ListedSnapshot]:
        """Change the list by compare-and-set, again and again until it takes effect.

        Args:
            change: Takes the current list and returns the new one. This function may be called several times,
                also on a list that it has changed already, so a second call must do no harm.

        Returns:
            The list after the change.

        Raises:
            MetadataOutcomeUnknown: The change may or may not have happened (``meta.settle``).
        """

        async def write(_: bool) -> list[ListedSnapshot]:
            listed, version, unknown = await self._read()
            changed = change(list(listed))
            if changed == listed:
                return listed
            value = encode_snapshot_list(changed, unknown=unknown)
            if version < 0:
                await self._store.create(self._path, value)
            else:
                await self._store.set(self._path, value, version=version)
            return changed

        return await settle(self._store, write, what=f"a change of {self._path}")

    async def delete(self) -> None:
        """Remove the list, even if it is not empty. Errors as for ``change``."""
        await remove(self._store, self._path)

    async def _read(self) -> tuple[list[ListedSnapshot], int, bytes]:
        node = await self._store.get(self._path)
        if node is None:
            return [], -1, b""
        listed, unknown = read_snapshot_list(node.value, self._incarnation)
        return listed, node.version, unknown


async def delete_snapshots(client: LedgerClient, incarnation: int) -> None:
    """Delete the snapshots of a log that is gone. Snapshots that are made meanwhile are left to a sweep."""
    snapshots = SnapshotList(client.store, incarnation)
    listed = await snapshots.read()
    await snapshots.delete()
    await delete_ledgers(client.ledgers, [snapshot.ledger_id for snapshot in listed])
