"""The records of archived ledgers in the metadata store, read and written as typed values.

If the metadata of a ledger are gone, a reader looks here for the record of the ledger's file. A job writes
this record before it deletes the ledger. It deletes the record only when the log's list no longer names the
ledger, or when it withdraws a damaged file while bookies still have the ledger.

A merge puts several ledgers into one file. The record of that file is stored under the first of these
ledgers. One transaction writes this record, deletes the records of the other files, and leaves only the first
ledger in the log's list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from ledgerlog.errors import PermissionDenied
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.archive import ArchiveDestination, ArchivedFile
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

__all__ = ["ArchiveRegistry", "DestinationRegistry"]


class ArchiveRegistry:
    """The records of all archives.

    Every method may raise MetadataUnavailable (the store did not answer) and MetadataCorrupt (a record does
    not decode).
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def find(self, incarnation: int, ledger_id: int) -> tuple[ArchivedFile, int] | None:
        """Return the record that is stored under a ledger, and its version; None if there is none."""
        return await self._find(incarnation, ledger_id, _Urls(self._store))

    async def _find(self, incarnation: int, ledger_id: int, urls: _Urls) -> tuple[ArchivedFile, int] | None:
        node = await self._store.get(archive_path(incarnation, ledger_id))
        if node is None:
            return None
        record = ArchivedFile.decode_untrusted(node.value, incarnation, ledger_id)
        return await urls.resolve(record), node.version

    async def resolve(self, record: ArchivedFile) -> ArchivedFile:
        """Return a record with the URL of its file, according to the store's present record of its
        destination.

        If the store does not know the destination, the URL stays ``destination://ID/NAME``. Nothing can be
        read there, so readers get ``ArchiveUnavailable`` with this URL.
        """
        return await _Urls(self._store).resolve(record)

    async def holding(self, incarnation: int, ledger_id: int, offset: int) -> ArchivedFile | None:
        """Return the record of the file that holds an offset of a log.

        This reads the log's list and at most two records, no matter how large the archive is. It starts again
        only if a merge happens at the same time. Readers call this for every ledger that no bookie can give,
        whether the ledger is archived or not.

        Args:
            incarnation: The incarnation of the log.
            ledger_id: The ledger in which the reader last saw the offset.
            offset: The offset.

        Returns:
            The record; None if the offset is not archived, was truncated away, or the log is gone.
        """
        while True:
            found = await self.find(incarnation, ledger_id)
            if found is not None and found[0].holds(offset):
                return found[0]
            # A merge may have joined the ledger with earlier ledgers. Then the list names the first of these.
            # Read the list after the record: if the list still names a ledger that had no record, the ledger
            # is not archived.
            node = await self._store.get(log_record_path(incarnation))
            if node is None:
                return None
            listed = _listed_at(LogMetadata.decode_untrusted(node.value, incarnation), offset)
            if listed is None or (listed == ledger_id and found is None):
                return None
            if listed == ledger_id:
                # A merge added ledgers after the record was read, or the record never reached this offset.
                found = await self.find(incarnation, ledger_id)
                return found[0] if found is not None and found[0].holds(offset) else None
            ledger_id = listed

    async def of_log(self, incarnation: int) -> list[tuple[ArchivedFile, int]]:
        """Return all records of a log with their versions, by offset.

        If a merge happens at the same time, the result shows the state before it or after it.
        """
        while True:
            components = await self._store.children(archives_path(incarnation))
            found = []
            urls = _Urls(self._store)
            for component in components:
                try:
                    ledger_id = archived_ledger_of(incarnation, component)
                except ValueError as cause:
                    raise MetadataCorrupt(str(cause)) from cause
                read = await self._find(incarnation, ledger_id, urls)
                if read is not None:
                    found.append(read)
            if len(found) == len(components):
                break
            # A record that was listed is gone now. A merge may have put its ledger into another record, and
            # that record may have been read before the merge. Look again.
        found.sort(key=lambda read: (read[0].first_offset, -read[0].end_offset))
        return found

    async def ledgers(self, incarnation: int) -> list[int]:
        """Return the ledgers under which records of a log are stored, even if a record does not decode.

        Nodes with other names are skipped.
        """
        return [ledger_id for _, ledger_id in (await self.survey((incarnation,)))[0]]

    async def survey(
        self,
        incarnations: Collection[int] | None = None,
        *,
        on_denied: Callable[[str], object] | None = None,
    ) -> tuple[list[tuple[int, int]], list[str]]:
        """List the records of archived files, even if they do not decode.

        Args:
            incarnations: The logs; None: all that have archived ledgers, deleted logs included.
            on_denied: Called with the reason for each log whose records this client may not list. None: that
                is an error.

        Returns:
            The incarnation and the ledger of each record, sorted; and what is wrong with each node that is
            not such a record.

        Raises:
            MetadataUnavailable: The metadata store did not answer.
            PermissionDenied: This client may not list the records of a log, and ``on_denied`` is None.
        """
        strays: list[str] = []
        if incarnations is None:
            incarnations = set[int]()
            for component in await self._store.children(ARCHIVES):
                try:
                    incarnations.add(incarnation_of(component))
                except ValueError as cause:
                    strays.append(f"{ARCHIVES}/{component}: {cause}")
        found: list[tuple[int, int]] = []
        for incarnation in sorted(incarnations):
            try:
                components = await self._store.children(archives_path(incarnation))
            except PermissionDenied as denial:
                if on_denied is None:
                    raise
                on_denied(f"{archives_path(incarnation)}: {denial}")
                continue
            for component in components:
                try:
                    found.append((incarnation, archived_ledger_of(incarnation, component)))
                except ValueError as cause:
                    strays.append(f"{archives_path(incarnation)}/{component}: {cause}")
        return sorted(found), strays

    async def incarnations(self) -> list[int]:
        """Return the logs that have archived ledgers, deleted logs included."""
        records, _ = await self.survey()
        return sorted({incarnation for incarnation, _ in records})

    async def of_ledger(self, ledger_id: int) -> ArchivedFile | None:
        """Return the record of the file that holds a ledger of any log; None if there is none."""
        for incarnation in await self.incarnations():
            found = await self.find(incarnation, ledger_id)
            if found is not None:
                return found[0]
            for record, _ in await self.of_log(incarnation):
                if record.ledger(ledger_id) is not None:
                    return record
        return None


def _listed_at(metadata: LogMetadata, offset: int) -> int | None:
    """Return the ledger that the list names for an offset; None if the offset is not counted."""
    if not metadata.segments:
        return None
    segment = metadata.segments[metadata.index_at(offset)]
    if segment.first_offset is None or segment.end_offset is None:
        return None
    return segment.ledger_id if segment.first_offset <= offset < segment.end_offset else None


class _Urls:
    """The URLs of destinations. They are read when the first record needs one, and kept."""

    def __init__(self, store: MetadataStore) -> None:
        self._places = DestinationRegistry(store)
        self._known: dict[bytes, str] = {}

    async def resolve(self, record: ArchivedFile) -> ArchivedFile:
        if not record.destination:
            return record
        # If the archive is moved during the first reading, this may read the old place's record after it
        # lost the archive, and the new place's record before it got the archive.
        for _ in range(2):
            if record.destination not in self._known:
                self._known = await self._places.urls()
        url = self._known.get(record.destination)
        return record if url is None else record.below(url)


class DestinationRegistry:
    """The records of destinations.

    Every method may raise MetadataUnavailable: the store did not answer, and nothing was written.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def find(self, where: str) -> tuple[ArchiveDestination, int] | None:
        """Return the record of a destination and its version; None if there is none.

        Args:
            where: The destination, as ``Destination.where`` returns it.

        Raises:
            MetadataCorrupt: The record does not decode, or it is of another destination.
        """
        path = destination_path(where)
        node = await self._store.get(path)
        if node is None:
            return None
        place = ArchiveDestination.decode_untrusted(node.value, path)
        if place.where != where:
            raise MetadataCorrupt(f"destination of archives {path}: it is of {place.where}, not {where}")
        return place, node.version

    async def all(self) -> list[ArchiveDestination]:
        """Return the records of all destinations.

        Raises:
            MetadataCorrupt: A record does not decode.
        """
        found = []
        for component in await self._store.children(DESTINATIONS):
            path = f"{DESTINATIONS}/{component}"
            node = await self._store.get(path)
            if node is not None:
                found.append(ArchiveDestination.decode_untrusted(node.value, path))
        return found

    async def urls(self) -> dict[bytes, str]:
        """Return the place of the files of each destination, by its id. Leave out records that do not
        decode."""
        found = {}
        for component in await self._store.children(DESTINATIONS):
            path = f"{DESTINATIONS}/{component}"
            node = await self._store.get(path)
            if node is not None:
                with contextlib.suppress(MetadataCorrupt):
                    place = ArchiveDestination.decode_untrusted(node.value, path)
                    if place.id and not place.moved_to:
                        found[place.id] = place.url
        return found

    async def write(self, place: ArchiveDestination, version: int | None) -> None:
        """Write the record of a destination.

        Args:
            place: The record.
            version: The version to replace; None: create the record.

        Raises:
            NodeExists: Another job has created the record; nothing was written.
            NodeMissing: There is no record to replace; nothing was written.
            VersionConflict: Another job has changed the record; nothing was written.
            MetadataOutcomeUnknown: The answer was lost; the record may be written or not.
        """
        path = destination_path(place.where)
        if version is None:
            await self._store.create(path, place.encode())
        else:
            await self._store.set(path, place.encode(), version=version)
