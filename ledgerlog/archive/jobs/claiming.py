"""Checking that a destination is the right one for the cluster's files (``archive.marker`` says why).

A *marker* is a small file with a random id at a destination. For each known destination, the metadata store
has a node with the id of its marker. If the marker with this id is there, it vouches for the destination: the
destination is mounted and is the right one. A job that opens a destination acts as follows:

    destination is  its marker is            the job
    known           there                    works
    known           missing                  refuses with ArchiveUnavailable, before it looks at any file
    not known       there, with the id of a  works: this is the known destination under another name, for
                    known destination        example another path or another host
    not known       missing                  refuses if records name files there, or if the log has files at
                                             another destination. Otherwise the destination is new: the job
                                             makes a marker, records it in the store, and works

If a marker is missing, the destination is not mounted, or it is the wrong one. Or the destination was
restored without its marker, or the log is to have files at a second destination. In these two cases, pass
``accept_destination`` once. The job then makes a new marker and records the new id. From then on a marker
with the old id, for example below a mount point, vouches for nothing.

**The marker comes first**, and then its node in the store. So a crash leaves a marker that no node names,
never a known destination without its marker. If two jobs find a new destination at once, one of them makes
the node. The other job finds the node and the first job's marker, and deletes its own marker.

A destination may be unmounted while a job works, and a record may name a file at another destination than the
job's. So before a step concludes that a file is gone, or that it is new and whole, the step looks at the file
and then checks the marker of the destination *in which that file lies*.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ledgerlog.archive.reader import in_thread, pyarrow_needed
from ledgerlog.archive.registry import ArchiveRegistry, DestinationRegistry
from ledgerlog.errors import ArchiveUnavailable, InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.meta.settle import CONFLICTS, settle
from ledgerlog.model.archive import DESTINATION_ID_BYTES, MARKER_BYTES, ArchiveDestination
from ledgerlog.redact import has_secret, redact

if TYPE_CHECKING:
    from ledgerlog.archive.destinations import Destination

__all__ = ["Markers", "load_destination"]

logger = logging.getLogger(__name__)

_HOW_TO_ACCEPT = (
    "`ledgerlog spark archive NAME --destination WHERE --accept-destination`, or archive_log with "
    "accept_destination=True from Python"
)
"""No other job of a log accepts a destination."""


async def load_destination(where: str) -> Destination:
    """Make a destination from its name, and import the modules that read and write files.

    This runs in a thread with a deadline, because some file systems need a request over the network.

    Args:
        where: A path on this machine, or a URL that ``pyarrow.fs`` knows.

    Raises:
        InvalidArgument: pyarrow cannot find files at ``where``, or ``where`` holds a secret.
        ArchiveUnavailable: The file system failed or did not answer in time.
        ArchiveSupportMissing: pyarrow is not installed.
    """
    if has_secret(where):
        raise InvalidArgument(
            f"{where!r} holds a secret, and the metadata store would keep it. Leave it out. Credentials come "
            "from the environment (for s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), from a profile, or "
            "from the machine"
        )

    def load() -> Destination:
        with pyarrow_needed(where):
            # Jobs use all of these. Importing them takes long, so it is done in this thread.
            from ledgerlog.archive import (  # noqa: F401 (jobs need them all)
                destinations,
                file_reader,
                file_writer,
                marker,
            )

        return destinations.Destination(where)

    return await in_thread(load, file=where)


class Markers:
    """The markers of one cluster. Call ``load_destination`` first; it imports pyarrow.

    Every method may raise ArchiveUnavailable (see each), MetadataUnavailable (the store did not answer) and
    MetadataCorrupt (a record does not decode).

    Args:
        client: The cluster.
        cluster: The cluster's id.
    """

    def __init__(self, client: LedgerClient, cluster: str) -> None:
        from ledgerlog.archive import destinations, marker

        self._destination_url = destinations.destination_url
        self._marker = marker
        self._client = client
        self.cluster = cluster
        self._places = DestinationRegistry(client.store)

    async def claim(
        self, destination: Destination, *, incarnation: int, accept: bool = False
    ) -> ArchiveDestination:
        """Check that a marker vouches for the destination. If the destination is new, make its marker.

        If the destination has no id yet, it gets one.

        Args:
            destination: The destination.
            incarnation: The log whose files will be there.
            accept: Make a new marker even if the destination's marker is missing, and even if the destination
                is new and the log has files elsewhere.

        Returns:
            The store's record of the destination. The files are at its ``url``, which is the same place as
            ``destination``.

        Raises:
            InvalidArgument: The destination is new, the log has files elsewhere, and ``accept`` is not set.
            ArchiveUnavailable: The marker is missing and ``accept`` is not set, or the file system failed. Or
                the archive was moved away, or the store has another URL for it.
            MetadataOutcomeUnknown: The new marker may be recorded or not. Call it again.

        Cancelling: a new marker may be there or not.
        """
        where = await in_thread(destination.where, file=destination.url)
        while True:
            await self._client.store.sync()
            found = await self._places.find(where)
            if found is not None and found[0].moved_to:
                raise ArchiveUnavailable(
                    destination.url,
                    f"the archive was moved from here to {found[0].moved_to}: name that place",
                )
            vouching: ArchiveDestination | None = None
            try:
                vouching = await self._vouching(destination, found and found[0])
            except ArchiveUnavailable:
                if not accept:
                    raise
                # Continue, even if the marker has other contents: ``_make`` makes a new one. If the file
                # system failed, ``_make`` fails too.
            if vouching is not None:
                place = await self._addressed(destination, vouching)
                if place is None:
                    continue
                return place
            if not accept:
                if found is not None:
                    raise self.refusal(destination, destination.url, found[0])
                named = await self._file_below(destination)
                elsewhere = await self._elsewhere(incarnation)
                if named is not None or elsewhere:
                    # Another job may have claimed the destination in the meantime: every job makes the node
                    # before its first record. So look for the node again.
                    if await self._places.find(where) is not None:
                        continue
                    if named is not None:
                        raise self.refusal(destination, named, None)
                    raise InvalidArgument(
                        f"{destination.url} is a new destination, but this log has archived files at "
                        f"{', '.join(elsewhere)}. Give a destination where it has files. If the log is to "
                        f"have files at the new one, too, accept it once: {_HOW_TO_ACCEPT}"
                    )
            made = await self._make(destination, where, found)
            if made is not None:
                return made

    async def expect(self, file: str) -> None:
        """Check that a marker vouches for the destination in which a file lies or should lie.

        Args:
            file: The URL of the file.

        Raises:
            ArchiveUnavailable: No marker vouches for the destination, or the file system failed.
        """

        def find() -> tuple[Destination, str]:
            destination = self._marker.destination_of_file(file)
            return destination, destination.where()

        destination, where = await in_thread(find, file=file)
        found = await self._places.find(where)
        if await self._vouching(destination, found and found[0]) is None:
            raise self.refusal(destination, file, found and found[0])

    async def _addressed(
        self, destination: Destination, place: ArchiveDestination
    ) -> ArchiveDestination | None:
        """Return the record of a destination with its id and its URL; None if another job has changed it.

        If the record has no URL, this job writes its own URL into it.

        Raises:
            ArchiveUnavailable: The record has another URL. These may be two places, although the marker is at
                both: one may be a copy of the other.
        """
        if place.id:
            if not await in_thread(lambda: destination.is_at(place.url), file=destination.url):
                raise ArchiveUnavailable(
                    destination.url,
                    f"it has the marker of the archive at {place.url}. If the archive was moved, run "
                    "`ledgerlog archive move FROM TO` once. If not, name it as it is recorded",
                )
            return place
        found = await self._places.find(place.where)
        if found is None or found[0] != place:
            return None
        token = self._client.environment.new_token()
        addressed = attrs.evolve(place, id=token[:DESTINATION_ID_BYTES], url=destination.url)
        return addressed if await self._write(addressed, found[1]) else None

    async def _write(self, place: ArchiveDestination, version: int | None) -> bool:
        """Write the record of a destination; return False if another job has written it."""

        async def write(_: bool) -> bool:
            try:
                await self._places.write(place, version)
            except CONFLICTS:  # After a lost answer, the caller finds our record.
                return False
            return True

        return await settle(self._client.store, write, what=f"the record of destination {place.url}")

    async def _vouching(
        self, destination: Destination, known: ArchiveDestination | None
    ) -> ArchiveDestination | None:
        """Return the destination whose marker is there, or None.

        Only ``known`` counts. If it is None, all known destinations count, except destinations that were
        moved away.
        """
        everywhere = [] if known is not None else await self._places.all()
        candidates = [known] if known is not None else [each for each in everywhere if not each.moved_to]
        for place in candidates:
            if await self.is_marked(destination, place):
                return place
        return None

    async def is_marked(self, destination: Destination, place: ArchiveDestination) -> bool:
        """Whether the marker of ``place`` is at a destination.

        Raises:
            ArchiveUnavailable: The file system failed.
        """
        has_marker = partial(self._marker.has_marker, destination, self.cluster, place.marker)
        return await in_thread(has_marker, file=destination.url)

    async def mark(self, destination: Destination, marker: bytes) -> None:
        """Leave a marker at a destination.

        Raises:
            ArchiveUnavailable: The file system failed.
        """
        make = partial(self._marker.make_marker, destination, self.cluster, marker)
        await in_thread(make, file=destination.url)

    async def _make(
        self, destination: Destination, where: str, found: tuple[ArchiveDestination, int] | None
    ) -> ArchiveDestination | None:
        """Make a marker and record it in the store. Return the record; None if another job has made one."""
        environment = self._client.environment
        marker = environment.new_token()[:MARKER_BYTES]
        known, version = (None, None) if found is None else found
        if known is None:
            known = ArchiveDestination(where=where, marker=marker, made_ms=0)
        place = attrs.evolve(
            known,
            marker=marker,
            made_ms=environment.now_ms(),
            id=known.id or environment.new_token()[:DESTINATION_ID_BYTES],
            url=known.url or destination.url,
        )
        cluster = self.cluster
        await self.mark(destination, marker)
        environment.mark("archive: marker made")
        name = self._marker.marker_name(cluster, marker)

        async def write(is_unsure: bool) -> bool:
            try:
                # Each attempt writes the same value, so it does not matter which attempt succeeds.
                await self._places.write(place, version)
            except CONFLICTS:
                # The caller then looks for the marker that the store names. After a lost answer, that may be
                # the marker that we just made. So keep ours.
                if not is_unsure:
                    await in_thread(lambda: destination.delete(name), file=destination.url)
                return False
            return True

        if not await settle(self._client.store, write, what=f"the claim of {destination.url}"):
            return None
        logger.info("%s is an archive of cluster %s from now on", redact(destination.url), cluster)
        return place

    def refusal(
        self,
        destination: Destination,
        file: str,
        known: ArchiveDestination | None,
        *,
        how_to_accept: str = _HOW_TO_ACCEPT,
    ) -> ArchiveUnavailable:
        """Return the error for a destination without the marker of ``known``, or without any."""
        if known is None:
            lacks = "no marker of this cluster's archives is there"
        else:
            lacks = f"its marker, {self._marker.marker_name(self.cluster, known.marker)}, is not there"
        return ArchiveUnavailable(
            file,
            f"its destination is {destination.url}, but {lacks}. Mount it, or give the right destination. If "
            f"the destination was restored without its marker, accept it once: {how_to_accept}",
        )

    async def _file_below(self, destination: Destination) -> str | None:
        """Return a file below the destination that a record of any log names; None if there is none."""
        registry = ArchiveRegistry(self._client.store)
        for incarnation in await registry.incarnations():
            files = [record.file for record, _ in await registry.of_log(incarnation)]
            found = await in_thread(partial(_first_below, destination, files), file=destination.url)
            if found is not None:
                return found
        return None

    async def _elsewhere(self, incarnation: int) -> list[str]:
        """Return the destinations of a log's files, without secrets."""
        records = await ArchiveRegistry(self._client.store).of_log(incarnation)
        places = {self._destination_url(record.file) for record, _ in records}
        return sorted(redact(place) for place in places)


def _first_below(destination: Destination, files: Sequence[str]) -> str | None:
    return next((file for file in files if destination.holds(file)), None)
