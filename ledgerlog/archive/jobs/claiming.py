"""Whether a destination is the one that the cluster's files lie in (``archive.marker`` says why it is asked).

The metadata store names, for each destination, the marker that vouches for it. A job that opens one:

    the store   its marker        a job
    knows it    there             works
    knows it    missing           refuses with ArchiveUnavailable, before it has looked at any file
    does not    another's there   works: a destination that the store knows, in other words or at another host
    does not    missing           refuses where records name files there; else the destination is new: the job
                                  leaves a marker, tells the store of it, and works

"Missing" is a destination that is not mounted, or not the one that it is taken for. It is also one that was
restored without its marker: who knows that says so once (``accept_destination``). A new marker is made, and
the store told of it; what was made elsewhere under the old id, below a mount point perhaps, vouches for
nothing from then on.

**The file comes first**, and then its node. So a crash leaves a file that nobody knows, and never a
destination that is known and lacks its marker. Of two jobs that both find a new one, one makes the node; the
other finds that, and the marker, and takes its own away.

A destination may go away under a job, and a record may name a file of another destination than the job's. So
a step that is about to conclude something from a file (it is gone, it is new and whole) asks for the marker
of the place *where that file lies*, after it has looked at the file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ledgerlog.archive.reader import in_thread, pyarrow_needed
from ledgerlog.archive.registry import ArchiveRegistry, PlaceRegistry
from ledgerlog.errors import ArchiveUnavailable
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.meta.settle import CONFLICTS, settle
from ledgerlog.model.archive import MARKER_BYTES, ArchivePlace
from ledgerlog.redact import redact

if TYPE_CHECKING:
    from ledgerlog.archive.destinations import Destination

__all__ = ["Markers", "load_destination"]

logger = logging.getLogger(__name__)

_HOW_TO_ACCEPT = "ledgerlog spark archive --accept-destination (accept_destination=True)"


async def load_destination(where: str) -> Destination:
    """A destination by its name, with what it takes to read and write files. Some file systems are asked for
    that, so it is done in a thread and has a deadline. InvalidArgument, ArchiveUnavailable,
    ArchiveSupportMissing."""

    def load() -> Destination:
        with pyarrow_needed(where):
            from ledgerlog.archive import destinations, marker, parquet  # noqa: F401 (jobs need all three)
        return destinations.Destination(where)

    return await in_thread(load, file=where)


class Markers:
    """The markers of one cluster. pyarrow must be there (``load_destination``). Every method may raise
    ArchiveUnavailable, MetadataUnavailable and MetadataCorrupt."""

    def __init__(self, client: LedgerClient, cluster: str) -> None:
        from ledgerlog.archive import marker

        self._marker = marker
        self._client = client
        self._cluster = cluster
        """The cluster's id."""
        self._places = PlaceRegistry(client.store)

    async def claim(self, destination: Destination, *, accept: bool = False) -> None:
        """Have the destination vouched for; its marker is made where it may be (see above), or where
        ``accept`` says so. Cancelling leaves a marker there or not."""
        where = await in_thread(destination.where, file=destination.url)
        while True:
            await self._client.store.sync()
            found = await self._places.find(where)
            try:
                if await self._is_vouched(destination, found and found[0]):
                    return
            except ArchiveUnavailable:
                if not accept:
                    raise  # Else one that was changed is replaced; what fails for good fails then as well.
            if not accept:
                if found is not None:
                    raise self._refusal(destination, destination.url, found[0])
                named = await self._file_below(destination)
                if named is not None:
                    # Another job may have begun it meanwhile: its node was there before its first record.
                    if await self._places.find(where) is not None:
                        continue
                    raise self._refusal(destination, named, None)
            if await self._make(destination, where, None if found is None else found[1]):
                return

    async def expect(self, file: str) -> None:
        """ArchiveUnavailable unless the destination that a file lies in, or ought to, is vouched for."""

        def find() -> tuple[Destination, str]:
            destination = self._marker.destination_of_file(file)
            return destination, destination.where()

        destination, where = await in_thread(find, file=file)
        found = await self._places.find(where)
        if not await self._is_vouched(destination, found and found[0]):
            raise self._refusal(destination, file, found and found[0])

    async def _is_vouched(self, destination: Destination, known: ArchivePlace | None) -> bool:
        candidates = [known] if known is not None else await self._places.all()
        for place in candidates:
            if await in_thread(
                partial(self._marker.has_marker, destination, self._cluster, place.marker),
                file=destination.url,
            ):
                return True
        return False

    async def _make(self, destination: Destination, where: str, version: int | None) -> bool:
        """Make a marker, and tell the store; whether ours is the one that it knows."""
        environment = self._client.environment
        marker = environment.new_token()[:MARKER_BYTES]
        place = ArchivePlace(where=where, marker=marker, made_ms=environment.now_ms())
        cluster = self._cluster
        await in_thread(lambda: self._marker.make_marker(destination, cluster, marker), file=destination.url)
        environment.mark("archive: marker made")
        name = self._marker.marker_name(cluster, marker)

        async def write(is_unsure: bool) -> bool:
            try:
                # The same each time: whichever write arrives, it is one and the same.
                await self._places.write(place, version)
            except CONFLICTS:
                # Whoever's the store knows, it is looked for again; ours stays where it may be that.
                if not is_unsure:
                    await in_thread(lambda: destination.delete(name), file=destination.url)
                return False
            return True

        if not await settle(self._client.store, write, what=f"the claim of {destination.url}"):
            return False
        logger.info("%s is an archive of cluster %s from now on", redact(destination.url), cluster)
        return True

    def _refusal(self, destination: Destination, file: str, known: ArchivePlace | None) -> ArchiveUnavailable:
        if known is None:
            lacks = "no marker of this cluster's archives is there"
        else:
            lacks = f"its marker, {self._marker.marker_name(self._cluster, known.marker)}, is not there"
        return ArchiveUnavailable(
            file,
            f"its destination is {destination.url}, and {lacks}. Is it mounted, and the right place? Mount "
            "it. If it is, and lacks its marker because it was restored without it, accept it once: "
            f"{_HOW_TO_ACCEPT}",
        )

    async def _file_below(self, destination: Destination) -> str | None:
        """A file below the destination that a record of any log names."""
        registry = ArchiveRegistry(self._client.store)
        for incarnation in await registry.incarnations():
            files = [record.file for record, _ in await registry.of_log(incarnation)]
            found = await in_thread(partial(_first_below, destination, files), file=destination.url)
            if found is not None:
                return found
        return None


def _first_below(destination: Destination, files: Sequence[str]) -> str | None:
    return next((file for file in files if destination.holds(file)), None)
