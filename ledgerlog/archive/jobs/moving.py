"""Telling the cluster that an archive was moved to another disk, bucket or URL.

Records of files have the id of a destination, and the store says at which URL the files of this id are. So a
move changes one record, no matter how many files there are:

    1  Check that the new place has the marker of the archive, and every file that a record names. If the
       marker is missing and the caller accepts that, make another marker, but only after this check. So a
       place that lacks the files gets no marker.
    2  In one transaction, give the id to the new place, and write into the record of the old place that its
       archive was moved. Jobs that were told the old place then refuse.
    3  Look at the records again. A job may have made one between 1 and 2. Check its file, too.
    4  Records of version 0.1 have no id but a whole URL. Give each of them the id.

Copy the files before the move. If a job makes a file meanwhile, it does not record the file after step 2
(``Archiver.check_place``). A crash leaves the archive at the old place, or at the new one with records that
still have a whole URL. Run the move again then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from ledgerlog.archive.jobs.archiver import ArchiveStep, OnStep, Steps, done
from ledgerlog.archive.jobs.claiming import Markers, load_destination
from ledgerlog.archive.jobs.job import cluster_id
from ledgerlog.archive.reader import in_thread
from ledgerlog.archive.registry import ArchiveRegistry, DestinationRegistry
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.meta.settle import CONFLICTS, settle
from ledgerlog.meta.store import Create, Operation, Set
from ledgerlog.model.archive import DESTINATION_ID_BYTES, MARKER_BYTES, ArchivedFile
from ledgerlog.model.layout import archive_path, destination_path

if TYPE_CHECKING:
    from ledgerlog.archive.destinations import Destination

__all__ = ["move_archive"]

_HOW_TO_ACCEPT = (
    "`ledgerlog archive move FROM TO --accept-destination`, or move_archive with accept_destination=True "
    "from Python"
)


async def move_archive(
    client: LedgerClient,
    source: str,
    target: str,
    *,
    accept_destination: bool = False,
    on_step: OnStep | None = None,
) -> list[ArchiveStep]:
    """Tell the cluster that the files of an archive are at another place now. Copy them there before.

    The files of all logs are moved together. No job may archive, merge or compact meanwhile.

    Args:
        client: The cluster.
        source: The destination where the archive was. The old place need not exist any more.
        target: The destination where it is now: a directory, or a URL that ``pyarrow.fs`` knows.
        accept_destination: The target is the right place although the marker was not copied; make a new
            marker if the files are there.
        on_step: Called with each step when it is done.

    Returns:
        A ``moved`` step for each file. Or a ``failed`` step for each file that is not at the target or is
        damaged there; then nothing was changed. If a job made the file meanwhile, the archive was moved:
        copy that file, too, and run the move again.

    Raises:
        InvalidArgument: There is no archive at ``source``, ``target`` holds another archive, or ``target``
            holds a secret or is not known to pyarrow.
        ArchiveUnavailable: The target does not answer, or its marker is missing and ``accept_destination`` is
            not set.
        ArchiveSupportMissing: pyarrow is not installed.
        MetadataUnavailable: The metadata store did not answer. Run it again.
        MetadataOutcomeUnknown: The archive was moved or not. Run it again.

    Cancelling: harmless. Run it again.
    """
    destination = await load_destination(target)
    mover = _Mover(client, await cluster_id(client), destination, source)
    await mover.begin()
    await mover.check_marker(accept=accept_destination)
    steps = Steps(on_step)
    checked: set[bytes] = set()
    while True:
        records = [each for each in await mover.records() if each[0].token not in checked]
        for record, _ in records:
            step = await mover.check(record)
            checked.add(record.token)
            if step is not None:
                steps.tell(step)
        if steps:
            return steps
        if mover.is_switched:
            break
        await mover.switch()
    for record, version in await mover.records():
        if not record.destination:
            await mover.give_id(record, version)
        steps.tell(done("moved", record.below(destination.url)))
    return steps


class _Mover:
    """One move of an archive. ``move_archive`` calls the methods in their order.

    Args:
        client: The cluster.
        cluster: The cluster's id.
        destination: The new place.
        source: The old place, as the caller named it.
    """

    def __init__(self, client: LedgerClient, cluster: str, destination: Destination, source: str) -> None:
        from ledgerlog.archive import destinations, footer

        self._client = client
        self._destination = destination
        self._source = source
        self._destinations = destinations
        self._footer = footer
        self._markers = Markers(client, cluster)
        self._places = DestinationRegistry(client.store)
        self._archives = ArchiveRegistry(client.store)
        self._is_marker_missing = False
        """Whether ``switch`` has to make a marker at the new place."""
        self.is_switched = False
        """Whether the new place has the id now."""

    async def begin(self) -> None:
        """Find the record of the archive at the old place.

        Raises:
            InvalidArgument: There is none, or the new place has another archive.
        """
        await self._client.store.sync()
        self._from = await in_thread(partial(self._destinations.where_of, self._source), file=self._source)
        self._to = await in_thread(self._destination.where, file=self._destination.url)
        self._old = await self._places.find(self._from)
        self._new = await self._places.find(self._to)
        old, new = self._old and self._old[0], self._new and self._new[0]
        if old is None:
            known = ", ".join(
                each.url or each.where for each in await self._places.all() if not each.moved_to
            )
            raise InvalidArgument(
                f"there is no archive of this cluster at {self._source}; known archives: {known or 'none'}"
            )
        token = self._client.environment.new_token()
        place = attrs.evolve(
            old,
            where=self._to,
            id=old.id or token[:DESTINATION_ID_BYTES],
            url=self._destination.url,
            moved_to="",
        )
        if self._from != self._to and new is not None and not new.moved_to:
            if not old.moved_to or new.id != old.id:
                raise InvalidArgument(f"{self._destination.url} holds another archive of this cluster")
            place = attrs.evolve(new, url=self._destination.url)
            self.is_switched = place == new  # An earlier run came as far as this.
        elif old.moved_to:
            raise InvalidArgument(f"the archive was moved from here to {old.moved_to}: name that place")
        self._place = place

    async def check_marker(self, *, accept: bool) -> None:
        """Check that the new place has the marker of the archive.

        Args:
            accept: If it is missing, ``switch`` makes another one. The old id then vouches for nothing.

        Raises:
            ArchiveUnavailable: It is missing, and ``accept`` is not set; or the file system failed.
        """
        try:
            if await self._markers.is_marked(self._destination, self._place):
                return
        except ArchiveUnavailable:
            if not accept:
                raise
        if not accept:
            raise self._markers.refusal(
                self._destination, self._destination.url, self._place, how_to_accept=_HOW_TO_ACCEPT
            )
        environment = self._client.environment
        marker = environment.new_token()[:MARKER_BYTES]
        self._place = attrs.evolve(self._place, marker=marker, made_ms=environment.now_ms())
        self._is_marker_missing, self.is_switched = True, False

    async def records(self) -> list[tuple[ArchivedFile, int]]:
        """Return the records of the archive's files, with their versions."""
        found = []
        for incarnation in await self._archives.incarnations():
            for record, version in await self._archives.of_log(incarnation):
                if await in_thread(partial(self._is_moved, record), file=record.file):
                    found.append((record, version))
        return found

    def _is_moved(self, record: ArchivedFile) -> bool:
        if record.destination:
            return record.destination == self._place.id
        return self._destinations.lies_at(record.file, self._from)

    async def check(self, record: ArchivedFile) -> ArchiveStep | None:
        """Check the end of a file at the new place. Return a ``failed`` step if it is not right."""
        moved = record.below(self._destination.url)
        try:
            size, footer = await in_thread(partial(self._footer.end_of, moved), file=moved.file)
        except (ArchiveCorrupt, ArchiveUnavailable) as failure:
            await in_thread(self._destination.expect_answer, file=self._destination.url)
            return done("failed", moved, why=str(failure))
        if (size, footer) != (record.file_bytes, record.footer):
            return done("failed", moved, why="it is not the file that was archived")
        return None

    async def switch(self) -> None:
        """Give the id of the archive to the new place, in one transaction."""
        assert self._old is not None
        if self._is_marker_missing:
            await self._markers.mark(self._destination, self._place.marker)
        old, old_version = self._old
        operations: list[Operation] = []
        if self._from != self._to:
            left = attrs.evolve(old, id=self._place.id, url=old.url or old.where, moved_to=self._place.url)
            operations.append(Set(destination_path(self._from), left.encode(), old_version))
        path, value = destination_path(self._to), self._place.encode()
        operations.append(Create(path, value) if self._new is None else Set(path, value, self._new[1]))

        async def write(is_unsure: bool) -> None:
            try:
                await self._client.store.transaction(operations)
            except CONFLICTS:
                found = await self._places.find(self._to)
                if not is_unsure or found is None or found[0] != self._place:
                    raise InvalidArgument(
                        f"another job changed what is known of {self._from} or {self._to}: run it again"
                    ) from None

        await settle(self._client.store, write, what=f"the move to {self._place.url}")
        self._client.environment.mark("archive: moved")
        self.is_switched = True

    async def give_id(self, record: ArchivedFile, version: int) -> None:
        """Replace the whole URL in a record by the id and the name."""
        moved = attrs.evolve(record, destination=self._place.id)
        path = archive_path(record.incarnation, record.ledger_id)

        async def write(_: bool) -> None:
            try:
                await self._client.store.set(path, moved.encode(), version=version)
            except CONFLICTS:
                found = await self._archives.find(record.incarnation, record.ledger_id)
                if found is not None and not found[0].destination:
                    raise

        await settle(self._client.store, write, what=f"the record of archive file {record.file}")
