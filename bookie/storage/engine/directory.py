"""A bookie's directory: its files, its lock, and the cookie that names its bookie.

    PATH/lock        held with flock by the process that uses the directory; its pid
    PATH/cookie      the identity of the data, see below
    PATH/marks       whether data may have been lost, and which answers are forbidden (``loss_marks``)
    PATH/journal/    segments, named by their number: %016x.journal
    PATH/entries/    entry logs, named by their number: %016x.entries
    PATH/index/      the index, a directory of LevelDB or RocksDB (``bookie.storage.index.kinds``)
    PATH/ballast     a file that is given up to make room on a full disk (``ballast``)

**A separate journal.** The journal may lie in another directory (``journal_directory``), on its own device.
That directory is locked too and has the same cookie. So before the bookie opens anything, it notices if a
journal is not mounted, was emptied or belongs to another bookie. Formatting writes the cookie there before it
writes the one in PATH. If formatting is interrupted, it leaves at most a cookie beside an empty journal, and
the directory is formatted again. Each new generation (``bookie.server.generations``) replaces both cookies,
first the one in PATH. So the generations of the two cookies may differ. "The same cookie" means the same
bookie, instance and cluster.

The cookie file is 8 bytes of magic, a length (u32), the cookie's own bytes (``model.bookie.Cookie``), and a
CRC-32C of all these. Before it serves, the bookie compares this cookie with the one in the metadata store
(``bookie.server.identity``). This module only stores the cookie.

**Formatting** makes the index, which holds only the bookie's instance and a mark. It writes the cookie under
the name ``cookie.new``, and gives it the name ``cookie`` last. If a directory has only ``cookie.new``, its
formatting was interrupted. Such a directory holds no data and is formatted again from the start. So a
directory with a cookie always has an index. If the index or the journal is gone, the directory has lost data,
and ``open_engine`` refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.core import rows
from bookie.core.boot import ReplayStart
from bookie.core.journal_items import JournalPosition
from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.ballast import Ballast
from bookie.storage.disk.disk import Disk, FileMissing, Lock
from bookie.storage.disk.loss_marks import write_marks
from bookie.storage.disk.real import RealDisk
from bookie.storage.index.index import Indexes
from bookie.storage.index.kinds import StoredIndexes
from ledgerlog.errors import CookieMismatch, IncompatibleVersion, StorageCorrupt, StorageError
from ledgerlog.limits import METADATA_BYTES_MAX, MIB
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.wire.checksum import checksum

_MAGIC = b"LLCOOKI1"
_FORMAT = 1
"""The last byte of the magic is the format, as a digit."""
_HEAD = struct.Struct("<8sI")
_CHECKSUM = struct.Struct("<I")
_BYTES_MAX = _HEAD.size + METADATA_BYTES_MAX + _CHECKSUM.size
_JOURNAL_BALLAST_BYTES = MIB
"""The ballast in a directory that has only the journal."""
_DATA = frozenset(("journal", "index", "entries"))

NOTHING_YET = JournalPosition(0, 0, 0)
"""The end of a journal that has not begun yet."""


class StorageDirectory:
    """A directory that this process has locked."""

    def __init__(
        self, path: str, disk: Disk, indexes: Indexes, *, journal_directory: str | None = None
    ) -> None:
        self.path = path
        self._journal_directory = journal_directory
        self.disk = disk
        self.indexes = indexes
        self.ballast = Ballast(disk, path)
        """Gives up room for the index."""
        self.journal_ballast = self.ballast
        """Gives up room for the segment that a start needs."""
        if journal_directory is not None:
            self.journal_ballast = Ballast(disk, journal_directory, _JOURNAL_BALLAST_BYTES)

    @property
    def ballasts(self) -> tuple[Ballast, ...]:
        """All ballasts, each once."""
        if self.journal_ballast is self.ballast:
            return (self.ballast,)
        return (self.ballast, self.journal_ballast)

    @property
    def journal_path(self) -> str:
        return f"{self._journal_directory or self.path}/journal"

    @property
    def is_journal_apart(self) -> bool:
        """Whether the journal has its own directory."""
        return self._journal_directory is not None

    @property
    def written_paths(self) -> tuple[str, ...]:
        """The directories that the bookie writes to. Their file systems may differ."""
        return (self.path,) if self._journal_directory is None else (self.path, self._journal_directory)

    @property
    def entries_path(self) -> str:
        return f"{self.path}/entries"

    @property
    def index_path(self) -> str:
        return f"{self.path}/index"

    @property
    def _cookie_path(self) -> str:
        return f"{self.path}/cookie"

    async def read_cookie(self) -> bytes | None:
        """Read the cookie's bytes.

        Returns:
            The bytes, or None if the directory was not formatted.

        Raises:
            StorageCorrupt: The cookie file is damaged.
            IncompatibleVersion: A newer version has written it.
            CookieMismatch: The journal has its own directory, with another cookie.
        """
        here = await self._read_cookie(self._cookie_path)
        if self._journal_directory is None:
            return here
        there = await self.read_journal_cookie()
        if self._names(here) != self._names(there) and (here is not None or await self._has_segments()):
            raise CookieMismatch(
                f"{self.path} and its journal in {self._journal_directory} do not belong to the same bookie: "
                f"{self._whose(self.path, here)}, {self._whose(self._journal_directory, there)}. Mount the "
                f"right "
                "ones; if one of them is lost, empty both, and 'bookie cookie fix' takes them into service"
            )
        return here

    async def read_journal_cookie(self) -> bytes | None:
        """Read the cookie's bytes in the journal's own directory; None if that directory or its cookie is
        missing.

        The generation of this cookie may differ from the generation of the other cookie, because the two are
        replaced one after the other, and because one of the directories may have been rolled back.
        """
        if self._journal_directory is None:
            return None
        return await self._read_cookie(f"{self._journal_directory}/cookie")

    def _names(self, cookie: bytes | None) -> tuple[str, ...] | None:
        if cookie is None:
            return None

        def corrupt(why: str) -> StorageCorrupt:
            return StorageCorrupt(self._cookie_path, None, why)

        fields = decode_record_untrusted(cookie, "cookie", corrupt)
        return tuple(fields.get(name, str) for name in ("id", "instance", "cluster"))

    async def lost_cookies(self) -> list[str]:
        """Return the directories, of ``written_paths``, whose cookie is damaged or missing."""
        lost = []
        for path in self.written_paths:
            try:
                if await self._read_cookie(f"{path}/cookie") is None:
                    lost.append(path)
            except StorageCorrupt:
                lost.append(path)
        return lost

    async def replace_cookie(self, cookie: Cookie) -> None:
        """Replace the cookie durably, also in the journal's own directory. After a crash, each cookie is
        either the old or the new one. The unfinished file is not named ``cookie.new``: if the cookie is lost,
        a directory with ``cookie.new`` would count as a directory without data.
        """
        for path in (self.path, self._journal_directory):
            if path is not None:
                await self.disk.write_file(f"{path}/cookie.next", _file_of(cookie))
                await self.disk.rename(f"{path}/cookie.next", f"{path}/cookie")
                await self.disk.sync_directory(path)

    def _whose(self, path: str, cookie: bytes | None) -> str:
        if cookie is None:
            return f"{path} has no cookie"

        def corrupt(why: str) -> StorageCorrupt:
            return StorageCorrupt(f"{path}/cookie", None, why)

        fields = decode_record_untrusted(cookie, "cookie", corrupt)
        return (
            f"{path} has the cookie of bookie {fields.get('id', str)}, instance {fields.get('instance', str)}"
        )

    async def _has_segments(self) -> bool:
        try:
            return bool(await self.disk.list_directory(self.journal_path))
        except FileMissing:
            return False

    async def _read_cookie(self, path: str) -> bytes | None:
        try:
            data = await self.disk.read_file(path, _BYTES_MAX + 1)
        except FileMissing:
            return None
        if len(data) < _HEAD.size + _CHECKSUM.size:
            raise StorageCorrupt(path, 0, f"a cookie file of {len(data)} bytes")
        magic, length = _HEAD.unpack_from(data)
        stop = _HEAD.size + length
        digit = magic[-1:]
        is_newer = magic[:-1] == _MAGIC[:-1] and digit.isdigit() and int(digit) > _FORMAT
        if (magic != _MAGIC and not is_newer) or len(data) != stop + _CHECKSUM.size:
            raise StorageCorrupt(path, 0, "not a cookie file")
        if _CHECKSUM.unpack_from(data, stop)[0] != checksum(data[:stop]):
            raise StorageCorrupt(path, 0, "the checksum of the cookie does not match")
        if is_newer:
            raise IncompatibleVersion(path, (int(digit), int(digit)), (_FORMAT, _FORMAT))
        return data[_HEAD.size : stop]

    async def read_instance(self) -> str:
        """Return the instance that the cookie names. Raises StorageError if there is no cookie."""
        data = await self.read_cookie()
        if data is None:
            raise StorageError(f"{self.path} is not formatted: it has no cookie")

        def corrupt(why: str) -> StorageCorrupt:
            return StorageCorrupt(self._cookie_path, None, why)

        return decode_record_untrusted(data, "cookie", corrupt).get("instance", str)

    async def has_data(self) -> bool:
        """Whether the directory has a journal, an index or entry logs. Leftovers of an interrupted formatting
        do not count."""
        names = await self.disk.list_directory(self.path)
        if "cookie.new" in names and "cookie" not in names:
            return False
        if self._journal_directory is not None and await self._has_segments():
            return True
        return not _DATA.isdisjoint(names)

    async def format(self, cookie: Cookie, marks: LossMarks | None = None) -> None:
        """Make this the directory of the bookie that the cookie names, durably.

        This makes an empty index, then the marks, and the cookie last. After a failure or a crash you may
        call it again.

        Args:
            cookie: The identity of the bookie.
            marks: The loss marks. None: the marks of a bookie that has never lost anything.

        Raises:
            StorageError: The directory has a cookie already, or has data.
        """
        if await self.read_cookie() is not None:
            raise StorageError(f"{self.path} is already formatted")
        if await self.has_data():
            raise StorageError(f"{self.path} has data but no cookie; it is not formatted again")
        disk = self.disk
        unfinished = f"{self._cookie_path}.new"
        await disk.write_file(unfinished, _file_of(cookie))
        await disk.sync_directory(self.path)
        await self.indexes.remove(self.index_path)
        await disk.make_directory(self.journal_path)
        index = await self.indexes.create(self.index_path)
        try:
            mark = ReplayStart(1, NOTHING_YET.sequence + 1, is_optional=True, end=NOTHING_YET)
            await index.write([rows.encode_instance(cookie.instance), rows.encode_mark(mark)])
        finally:
            await index.aclose()
        await write_marks(disk, self.path, marks or LossMarks())
        if self._journal_directory is not None:
            await disk.write_file(f"{self._journal_directory}/cookie", _file_of(cookie))
            await disk.sync_directory(self._journal_directory)
            await disk.sync_directory(_parent(self._journal_directory))
        await disk.rename(unfinished, self._cookie_path)
        await disk.sync_directory(self.path)
        await disk.sync_directory(_parent(self.path))


def _file_of(cookie: Cookie) -> bytes:
    body = _HEAD.pack(_MAGIC, len(encoded := cookie.encode())) + encoded
    return body + _CHECKSUM.pack(checksum(body))


def _parent(path: str) -> str:
    before, slash, _ = path.rstrip("/").rpartition("/")
    return before or slash or "."


@asynccontextmanager
async def open_directory(
    path: str,
    *,
    disk: Disk | None = None,
    indexes: Indexes | None = None,
    journal_directory: str | None = None,
    index: str = "",
) -> AsyncIterator[StorageDirectory]:
    """Make the directory if it is missing, and lock it against other processes inside the context.

    Args:
        path: The bookie's directory.
        disk: The disk to use. None: the real one.
        indexes: Makes and opens indexes. None: on the real disk.
        journal_directory: A separate directory for the journal, made and locked too. None: inside ``path``.
        index: The kind of index that is asked for, if ``indexes`` is None (``StorageConfig.index``).

    Raises:
        StorageLocked: Another process uses the directory. The message names its pid.
        StorageError: The disk failed. If the body raises FileMissing, this raises a StorageError instead.
    """
    own_disk = RealDisk() if disk is None else None
    used = own_disk or disk
    assert used is not None
    try:
        locks: list[Lock] = []
        try:
            for each in (path, journal_directory):
                if each is not None:
                    await used.make_directory(each)
                    locks.append(await used.lock_directory(each))
            stored = indexes or StoredIndexes(used, f"{path}/index", asked=index or None)
            directory = StorageDirectory(path, used, stored, journal_directory=journal_directory)
            for ballast in directory.ballasts:
                await ballast.make_way()
            for each in (path, journal_directory):
                if each is not None:
                    # A bookie that was killed may have renamed files, such as its marks, without a sync. We
                    # read the new names now, and a power cut must not restore the old ones.
                    await used.sync_directory(each)
            yield directory
            for ballast in directory.ballasts:
                await ballast.leave()
        finally:
            for lock in locks:
                lock.release()
    except FileMissing as missing:
        # FileMissing is for callers that can do without the file. For users, a missing file is a fault of the
        # disk.
        raise StorageError(str(missing)) from missing
    finally:
        if own_disk is not None:
            await own_disk.aclose()
