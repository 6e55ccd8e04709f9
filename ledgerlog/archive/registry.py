"""Records of archived ledgers in the store: the typed face of the metadata capability for archives.

Who looks for a ledger whose metadata are gone finds its record here if it was archived: the record is written
before the ledger is deleted, and deleted only when the log's list names the ledger no more. A ledger that was
merged with the ones before it has no record of its own any more; the log's list then names the ledger that
the file is recorded under, in one transaction with the record itself.
"""

from __future__ import annotations

import contextlib

from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.archive import ArchivePlace, ArchiveRecord
from ledgerlog.model.layout import (
    ARCHIVES,
    DESTINATIONS,
    archive_path,
    archived_ledger_of,
    archives_path,
    destination_path,
    incarnation_of,
    log_record_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata

__all__ = ["ArchiveRegistry", "PlaceRegistry"]


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
        """The record of the file that holds an offset of a log, which was last seen in that ledger. None
        where the offset is not archived; also where it was truncated away, or the log is gone.

        The log's list and one or two records are read, however much is archived, and again only where a merge
        came between: this is asked for every ledger that no bookie gives, archived or not."""
        while True:
            found = await self.find(incarnation, ledger_id)
            if found is not None and found[0].holds(offset):
                return found[0]
            # It was merged with the ones before it, perhaps, and is listed under the first of them. The list
            # is read behind the record: a ledger that it names and that had no record then is not archived.
            node = await self._store.get(log_record_path(incarnation))
            if node is None:
                return None
            listed = _listed_at(LogMetadata.decode_untrusted(node.value, incarnation), offset)
            if listed is None or (listed == ledger_id and found is None):
                return None
            if listed == ledger_id:
                # Others were merged into it since its record was read, or it never reached so far.
                found = await self.find(incarnation, ledger_id)
                return found[0] if found is not None and found[0].holds(offset) else None
            ledger_id = listed

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

    async def ledgers(self, incarnation: int) -> list[int]:
        """The ledgers that name the records of a log, be these readable or not. Nodes of other names are not
        ours."""
        found = []
        for component in await self._store.children(archives_path(incarnation)):
            with contextlib.suppress(ValueError):
                found.append(archived_ledger_of(incarnation, component))
        return sorted(found)

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


def _listed_at(metadata: LogMetadata, offset: int) -> int | None:
    """The ledger that the list names for an offset, if that is counted."""
    if not metadata.segments:
        return None
    segment = metadata.segments[metadata.index_at(offset)]
    if segment.first_offset is None or segment.end_offset is None:
        return None
    return segment.ledger_id if segment.first_offset <= offset < segment.end_offset else None


class PlaceRegistry:
    """What is known of destinations. Every method may raise MetadataUnavailable; the writes
    MetadataOutcomeUnknown."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def find(self, where: str) -> tuple[ArchivePlace, int] | None:
        """What is known of a destination, and its version. MetadataCorrupt."""
        path = destination_path(where)
        node = await self._store.get(path)
        if node is None:
            return None
        place = ArchivePlace.decode_untrusted(node.value, path)
        if place.where != where:
            raise MetadataCorrupt(f"destination of archives {path}: it is of {place.where}, not {where}")
        return place, node.version

    async def all(self) -> list[ArchivePlace]:
        """Every destination. MetadataCorrupt."""
        found = []
        for component in await self._store.children(DESTINATIONS):
            path = f"{DESTINATIONS}/{component}"
            node = await self._store.get(path)
            if node is not None:
                found.append(ArchivePlace.decode_untrusted(node.value, path))
        return found

    async def write(self, place: ArchivePlace, version: int | None) -> None:
        """Make it known (``version`` None), or put it in place of what was. NodeExists, NodeMissing,
        VersionConflict: somebody else has done so."""
        path = destination_path(place.where)
        if version is None:
            await self._store.create(path, place.encode())
        else:
            await self._store.set(path, place.encode(), version=version)
