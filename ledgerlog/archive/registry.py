"""Records of archived ledgers in the store: the typed face of the metadata capability for archives.

Who looks for a ledger whose metadata are gone finds its record here if it was archived: the record is written
before the ledger is deleted, and deleted only when the log's list names the ledger no more. A ledger that was
merged with the ones before it has no record of its own any more; it is then found by offset among those of
its log.
"""

from __future__ import annotations

from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.archive import ArchiveRecord
from ledgerlog.model.layout import (
    ARCHIVES,
    archive_path,
    archived_ledger_of,
    archives_path,
    incarnation_of,
)
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["ArchiveRegistry"]


class ArchiveRegistry:
    """All archives' records. Every method may raise MetadataUnavailable, and MetadataCorrupt."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def find(self, incarnation: int, ledger_id: int) -> tuple[ArchiveRecord, int] | None:
        """The record that a ledger names, and its version."""
        node = await self._store.get(archive_path(incarnation, ledger_id))
        if node is None:
            return None
        return ArchiveRecord.decode_untrusted(node.value, incarnation, ledger_id), node.version

    async def holding(self, incarnation: int, ledger_id: int, offset: int) -> ArchiveRecord | None:
        """The record of the file that holds an offset of a log, which was last seen in that ledger."""
        found = await self.find(incarnation, ledger_id)
        if found is not None and found[0].holds(offset):
            return found[0]
        for record, _ in await self.of_log(incarnation):
            if record.holds(offset):
                return record
        return None

    async def of_log(self, incarnation: int) -> list[tuple[ArchiveRecord, int]]:
        """All records of a log with their versions, by offset. Of a merge that happens meanwhile it shows the
        state before it, or after it."""
        while True:
            components = await self._store.children(archives_path(incarnation))
            found = []
            for component in components:
                try:
                    ledger_id = archived_ledger_of(incarnation, component)
                except ValueError as cause:
                    raise MetadataCorrupt(str(cause)) from cause
                read = await self.find(incarnation, ledger_id)
                if read is not None:
                    found.append(read)
            if len(found) == len(components):
                break
            # One has gone since: it may be in another now, which was read before. Look again.
        found.sort(key=lambda read: (read[0].first_offset, -read[0].end_offset))
        return found

    async def incarnations(self) -> list[int]:
        """The logs of which anything is archived, those that are deleted included."""
        found = []
        for component in await self._store.children(ARCHIVES):
            try:
                incarnation = incarnation_of(component)
            except ValueError:
                continue
            if await self._store.children(archives_path(incarnation)):
                found.append(incarnation)
        return found

    async def of_ledger(self, ledger_id: int) -> ArchiveRecord | None:
        """The record of the file that a ledger lies in, whichever log it was of."""
        for incarnation in await self.incarnations():
            found = await self.find(incarnation, ledger_id)
            if found is not None:
                return found[0]
            for record, _ in await self.of_log(incarnation):
                if record.ledger(ledger_id) is not None:
                    return record
        return None
