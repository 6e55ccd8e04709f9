"""Segments as files: their names, making them, reading them whole.

``bookie.storage.entrylog.file_pool`` reads single entries from them.

A new segment is made under a name that a start ignores. The file gets its size and its header. Only then does
it get its real name, durably. So every segment has its full size and a valid header, even after a crash.
"""

from __future__ import annotations

import contextlib
import re

import attrs

from bookie.core.journal import SegmentImage
from bookie.core.journal_items import EntryRun
from bookie.core.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.disk import Disk, File, FileMissing
from bookie.storage.journal.recycling import SPARE, Recycler
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import DiskFull
from ledgerlog.limits import MIB

_NAME = re.compile(r"([0-9a-f]{16})\.journal\Z")
_UNFINISHED = ".new"

_PACED_PIECE_BYTES = MIB
"""How many bytes are read at once if a file is read at a pace."""


@attrs.define(eq=False)
class JournalSegment:
    """A segment in memory: being written, or recently written."""

    image: SegmentImage
    file: File
    runs: list[EntryRun] = attrs.field(factory=list)
    """Its runs (frames of entries of one ledger), in the order in which they were appended."""
    marked: set[int] = attrs.field(factory=set)
    """The ledgers with a record in the segment that is not an add, for example a fence."""
    restored: set[tuple[int, int]] = attrs.field(factory=set)
    """Ledger and first id of the runs in the segment that replaced damaged ones
    (``bookie.storage.upkeep.replacing``)."""
    records: int = 0
    """How many records were appended to it."""
    indexed: int = 0
    """How many of ``runs`` the index has."""
    end: int = SEGMENT_HEADER_BYTES
    """The end of the last durable block."""
    last_sequence: int = 0
    """The sequence of the last durable block."""
    final_sequence: int | None = None
    """The sequence of the last block that the segment will ever have; None while it takes records."""
    flushed_to: int | None = None
    """The number of the entry log with its entries; None if they are not flushed."""
    is_indexed: bool = False
    """Whether the index has everything in the segment and the mark has passed it."""

    @property
    def number(self) -> int:
        return self.image.number


class SegmentFiles:
    """The journal directory.

    Args:
        disk: The disk with the directory.
        directory: The path of the directory.
        instance: The bookie's instance, which every segment names.
        ballast: Decides whether the disk has room for another segment. None: do not ask.
        recycler: Takes files that are no longer needed, and provides files for new segments. None: no
            recycling.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        instance: str,
        *,
        ballast: Ballast | None = None,
        recycler: Recycler | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.instance = instance
        self._ballast = ballast
        """Decides whether the disk has room for another segment."""
        self._recycler = recycler
        """Takes files that are no longer needed, and provides files for new segments."""

    def path(self, number: int) -> str:
        """Return the path of a segment's file."""
        return f"{self.directory}/{number:016x}.journal"

    async def numbers(self) -> list[int]:
        """Return the numbers of all segments, sorted. Files with other names are ignored."""
        names = await self._names()
        return sorted(int(match[1], 16) for name in names if (match := _NAME.match(name)))

    async def _names(self) -> list[str]:
        try:
            return await self.disk.list_directory(self.directory)
        except FileMissing as missing:
            raise FileMissing(
                f"{missing}. If the journal lies in a directory of its own, name that with --journal-dir DIR"
            ) from missing

    async def prepare(self) -> None:
        """Clean the directory up before anything is built on its segments.

        This makes the names durable: if the last process was killed between a rename and the sync of its
        directory, the name may only be in a cache. This also removes the leftovers of an interrupted
        ``create``. And it removes spare files, because it cannot know which part of a spare file is filled
        with zeros.
        """
        names = await self._names()
        await self.disk.sync_directory(self.directory)
        for name in names:
            bare = name.removesuffix(_UNFINISHED).removesuffix(SPARE)
            if bare != name and _NAME.match(bare):
                await self.disk.unlink(f"{self.directory}/{name}")

    async def create(
        self, number: int, view: memoryview, nonce: bytes, *, is_last_resort: bool = False
    ) -> JournalSegment:
        """Make the file of a new segment that will be written from ``view``.

        Args:
            number: The segment's number.
            view: The segment's memory, as large as the new file.
            nonce: 16 random bytes.
            is_last_resort: Whether the file may take room that is kept for other files.

        Raises:
            DiskFull: There is no room. Nothing was made.
        """
        path = self.path(number)
        unfinished = path + _UNFINISHED
        header = SegmentHeader(number=number, size=len(view), nonce=nonce, instance=self.instance)
        view[:SEGMENT_HEADER_BYTES] = header.encode()
        spare = None if self._recycler is None else self._recycler.take_out(len(view))
        if spare is None:
            if self._ballast is not None and not is_last_resort:
                await self._ballast.check(len(view))
            file = await self.disk.create(unfinished, len(view))
        else:
            unfinished = spare
            file = await self.disk.open(spare, for_writing=True)
        try:
            await self.disk.write_sync(file, 0, view[:SEGMENT_HEADER_BYTES])
            await self.disk.rename(unfinished, path)
        except DiskFull:
            # The caller tries again when there is room. The file may have its final name already.
            with contextlib.suppress(FileMissing):
                await self.disk.unlink(unfinished)
            raise
        finally:
            self.disk.close(file)
        await self.disk.sync_directory(self.directory)
        file = await self.disk.open(path, for_writing=True)
        return JournalSegment(SegmentImage(number, nonce, view), file)

    async def reopen(self, header: SegmentHeader, view: memoryview) -> JournalSegment:
        """Open the segment with this header, which was never written to, to write it from ``view``."""
        assert len(view) == header.size
        view[:SEGMENT_HEADER_BYTES] = header.encode()
        file = await self.disk.open(self.path(header.number), for_writing=True)
        return JournalSegment(SegmentImage(header.number, header.nonce, view), file)

    async def remove(self, number: int, *, used: int | None = None) -> None:
        """Remove a segment's file, durably, or recycle it.

        The file can be recycled only if ``used`` says how many of its first bytes were written.
        """
        recycler = self._recycler
        if recycler is None or used is None or not await recycler.take_in(self.path(number), used):
            await self.disk.unlink(self.path(number))
            await self.disk.sync_directory(self.directory)

    async def trim(self, number: int, end: int) -> None:
        """Give back the space after the last block of a segment. The mark must have passed the segment."""
        await self.disk.truncate(self.path(number), end)

    async def size(self, number: int) -> int:
        """Return the size of a segment's file in bytes."""
        file = await self.disk.open(self.path(number))
        try:
            return await self.disk.size(file)
        finally:
            self.disk.close(file)

    async def read(
        self,
        number: int,
        bytes_max: int | None = None,
        *,
        pace: Pace | None = None,
    ) -> tuple[SegmentHeader, memoryview]:
        """Read a segment.

        Args:
            number: The segment's number.
            bytes_max: Read only this many bytes from the start; None: the whole file.
            pace: Read piece by piece at this pace; None: all at once.

        Returns:
            The header, and the bytes read, header included.

        Raises:
            StorageCorrupt: The header is damaged.
        """
        path = self.path(number)
        file = await self.disk.open(path)
        try:
            size = await self.disk.size(file) if bytes_max is None else bytes_max
            if pace is None:
                (image,) = await self.disk.read(file, [(0, size)])
            else:
                pieces = []
                for at in range(0, size, _PACED_PIECE_BYTES):
                    length = min(_PACED_PIECE_BYTES, size - at)
                    await pace.pass_through(length)
                    pieces += await self.disk.read(file, [(at, length)])
                image = b"".join(pieces)
        finally:
            self.disk.close(file)
        page = image[:SEGMENT_HEADER_BYTES]
        header = SegmentHeader.decode(page, path=path, number=number, instance=self.instance)
        return header, memoryview(image)

    async def read_raw(self, number: int) -> memoryview:
        """Read the whole file of a segment, and check nothing."""
        file = await self.disk.open(self.path(number))
        try:
            (image,) = await self.disk.read(file, [(0, await self.disk.size(file))])
        finally:
            self.disk.close(file)
        return memoryview(image)
