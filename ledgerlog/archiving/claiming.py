"""Whether a destination is the one that the cluster's files lie in (``archive.marker`` says why it is asked).

    marker   records name files there   a job that opens the destination
    there    either                     works
    missing  no                         makes the marker, and works: the destination is new
    missing  yes                        refuses with ArchiveUnavailable, before it has looked at any file

The third line is a destination that is not mounted, or not the one that it is taken for. It is also one that
was used before there were markers, or was restored without it: who knows that says so once
(``accept_destination``), and the marker is made.

A destination may go away under a job, and a record may name a file of another destination than the job's. So
a step that is about to conclude something from a file (it is gone, it is new and whole) asks for the marker
of the place *where that file lies*, after it has looked at the file.

Two jobs that both find a new destination: one may see records of the other, which were not there before the
other's marker was. So the marker is looked for again after records were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ledgerlog.archive.reader import in_thread
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.archiving.archiver import Archiver
from ledgerlog.errors import ArchiveUnavailable

__all__ = ["claim_destination"]


async def claim_destination(archiver: Archiver, *, accept: bool = False) -> None:
    """Have the marker of the job's destination, which is made where it may be (see above) or where
    ``accept`` says so. ArchiveUnavailable, MetadataUnavailable. Cancelling leaves the marker there or not."""
    if await archiver.has_marker():
        return
    if not accept:
        named = await _file_there(archiver)
        if named is not None and not await archiver.has_marker():
            where = archiver.destination.url
            raise ArchiveUnavailable(
                named,
                f"it was archived to {where}, and the marker of this cluster's archive, "
                f"{archiver.marker_name}, is not there. Is {where} mounted, and the right place? Mount it. "
                "If it is, and has no marker because it was restored or is older than markers, accept it "
                "once: ledgerlog spark archive --accept-destination (accept_destination=True)",
            )
    await archiver.make_marker()


async def _file_there(archiver: Archiver) -> str | None:
    """A file below the destination that a record of any log names."""
    registry = ArchiveRegistry(archiver.client.store)
    await archiver.client.store.sync()
    for incarnation in await registry.incarnations():
        files = [record.file for record, _ in await registry.of_log(incarnation)]
        found = await in_thread(partial(_first_below, archiver, files), file=archiver.destination.url)
        if found is not None:
            return found
    return None


def _first_below(archiver: Archiver, files: Sequence[str]) -> str | None:
    return next((file for file in files if archiver.destination.holds(file)), None)
