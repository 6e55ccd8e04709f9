"""The archives of a cluster: where they are, and how much they hold."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ledgerlog.archive.reader import in_thread
from ledgerlog.archive.registry import ArchiveRegistry, DestinationRegistry
from ledgerlog.errors import InvalidArgument
from ledgerlog.redact import redact

if TYPE_CHECKING:
    from ledgerlog.ledger.client import LedgerClient
    from ledgerlog.model.archive import ArchivedFile

__all__ = ["ListedArchive", "list_archives"]


@attrs.frozen(kw_only=True)
class ListedArchive:
    """An archive, at one destination."""

    url: str
    """Where it is, without secrets."""
    moved_to: str
    """Where it was moved, without secrets; "": it was not moved."""
    logs: int
    """How many logs have files there. A log that was deleted and made again counts twice."""
    files: int
    """How many files there are."""
    records: int
    """How many records these files hold."""
    byte_count: int
    """How many bytes these files have."""


async def list_archives(client: LedgerClient) -> list[ListedArchive]:
    """List the archives of a cluster, by URL. This sends no requests to the destinations.

    Args:
        client: The cluster.

    Raises:
        MetadataCorrupt: A record does not decode. ``ledgerlog spark audit`` names all such records.
        ArchiveSupportMissing: pyarrow is not installed.
        MetadataUnavailable: The metadata store did not answer.

    Cancelling: harmless.
    """
    from ledgerlog.archive.destinations import destination_url, where_of

    await client.store.sync()
    places = {place.where: place for place in await DestinationRegistry(client.store).all()}
    by_id = {place.id: place.where for place in places.values() if place.id and not place.moved_to}
    archives = ArchiveRegistry(client.store)
    files: dict[str, list[ArchivedFile]] = defaultdict(list)
    for incarnation in await archives.incarnations():
        for record, _ in await archives.of_log(incarnation):
            where = by_id.get(record.destination)
            if where is None:
                where = destination_url(record.file)
                if not record.destination:
                    # A record of version 0.1 may name a place that is not known on this machine.
                    with suppress(InvalidArgument):
                        where = await in_thread(partial(where_of, where), file=where)
            files[where].append(record)
    found = []
    for where in sorted({*places, *files}):
        place = places.get(where)
        found.append(
            ListedArchive(
                url=redact(where if place is None else place.url or where),
                moved_to="" if place is None else redact(place.moved_to),
                logs=len({record.incarnation for record in files[where]}),
                files=len(files[where]),
                records=sum(record.record_count for record in files[where]),
                byte_count=sum(record.file_bytes for record in files[where]),
            )
        )
    return found
