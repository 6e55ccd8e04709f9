"""Disks under simulated time: crashes, failing writes, full disks and bit rot.

A ``Platter`` is a machine's disk and outlives the machine's processes. ``SimDisk`` and ``SimIndexes`` are its
views for one life of a process (``bookie.storage.disk.disk.Disk``, ``bookie.storage.index.index.Indexes``).
The model keeps the promises of those contracts, and breaks everything that they do not promise:

* **Contents.** ``write_sync`` makes its bytes visible to reads (in the page cache), and takes some time. When
  it returns, its bytes are durable, and so is everything that was written to the file before. A *power cut*
  during the write keeps none of the write, all of it, its first sectors, or any of its sectors of 512 bytes.
  If the *process is killed* during the write, the write is in the page cache or was never made. Data in the
  cache becomes durable only with the next sync of the file, and a power cut before that may lose the data.
* **Names.** Changes of names become durable with ``sync_directory``, in order. Of the changes that are not
  durable, a power cut keeps only the first few, perhaps none or all. If a directory's own name is lost, its
  files are lost too.
* **The index.** A batch is durable when ``write`` returns. If a crash interrupts ``write``, the index has the
  whole batch, or nothing of it.

Faults, which the cluster injects:

* ``fail_syncs(n)``: the n-th write from now on fails with an error, and its data is dropped. Reads may still
  see the data, but no later sync makes it durable, as in real kernels. If a bookie continues after that, it
  loses the data.
* ``stall(seconds)``, ``is_full``, ``slow``: latency and space.
* ``rot``: flip one bit of a page that was written, but not of the last write of its file. Damage to the very
  last block of a journal looks like a torn write, and no protocol survives that on all copies.
* ``damage``: flip a bit, cut a file short, remove it, overwrite it, exchange two files, or lose an index or
  the cookie.
  Except for the flipped bit, it spares the journal segment that was written last, for the same reason.
* ``take_image``, ``put_back``: an older image of the disk replaces its present content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import attrs
import trio

from bookie.core.fullness import DiskSpace
from bookie.core.rows import Change, Row, decode_run, is_run_key
from bookie.storage.disk.disk import File, FileMissing
from bookie.storage.index.index import Index, MemoryIndex
from ledgerlog.errors import DiskFull, StorageError, StorageLocked
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.process import Incarnation

__all__ = ["EMPTY_IMAGE", "DiskImage", "Platter", "SimDisk", "SimIndexes"]

SECTOR = 512
PAGE = 4096

_LAST_KEY = b"\xff" * 64
_ROWS_MAX = 1 << 30
_SEGMENT, _ENTRY_LOG = ".journal", ".entries"
_DAMAGED = (_SEGMENT, _ENTRY_LOG, "/cookie", "/marks")
"""The ends of the paths of files that ``damage`` may damage."""

OnDurable = Callable[[str, int, bytes], None]


@attrs.define(eq=False)
class _Write:
    """Bytes in the page cache that are not durable."""

    offset: int
    data: bytes
    is_dropped: bool = False
    """The kernel dropped the write after an error: reads see its bytes, but they never become durable."""


@attrs.define(eq=False)
class _Inode:
    path: str
    data: bytearray
    """The durable content."""
    cache: list[_Write] = attrs.Factory(list)
    written: list[tuple[int, int]] = attrs.Factory(list)
    """Offset and length of the durable writes, in order."""

    def cut(self, size: int) -> None:
        """Keep only the first ``size`` bytes."""
        del self.data[size:]
        self.written = [(offset, length) for offset, length in self.written if offset + length <= size]

    def read(self, offset: int, length: int) -> bytes:
        stop = min(len(self.data), offset + length)
        found = bytearray(self.data[offset:stop])
        for write in self.cache:
            low, high = max(offset, write.offset), min(stop, write.offset + len(write.data))
            if low < high:
                found[low - offset : high - offset] = write.data[low - write.offset : high - write.offset]
        return bytes(found)


@attrs.frozen
class _NameChange:
    directory: str
    kind: str
    path: str
    target: str = ""
    inode: _Inode | None = None


@attrs.frozen
class _OpenFile:
    path: str
    inode: _Inode


@attrs.frozen
class DiskImage:
    """The durable content of a disk at one moment, like a snapshot of its machine."""

    files: tuple[tuple[str, bytes, tuple[tuple[int, int], ...]], ...]
    """Path, content, and offset and length of the durable writes."""
    directories: tuple[str, ...]
    indexes: tuple[tuple[str, tuple[Row, ...]], ...]


EMPTY_IMAGE = DiskImage((), (), ())
"""A new disk."""


class _Lock:
    def __init__(self, platter: Platter, path: str) -> None:
        self._platter = platter
        self._path = path

    def release(self) -> None:
        self._platter.locks.pop(self._path, None)


class Platter:
    """One machine's disk."""

    def __init__(
        self,
        simulation: Simulation,
        machine: str,
        *,
        latency_s: tuple[float, float] = (0.0002, 0.002),
        on_durable: OnDurable | None = None,
    ) -> None:
        self.simulation = simulation
        self.machine = machine
        self.random: Random = simulation.random(f"disk {machine}")
        self.latency_s = latency_s
        self.slow = 1.0
        """The factor for all latencies."""
        self.is_full = False
        """Whether every new allocation fails with DiskFull."""
        self.capacity_bytes: int | None = None
        """The disk's capacity. None: unlimited."""
        self.locks: dict[str, None] = {}
        self.indexes: dict[str, MemoryIndex] = {}
        self.torn_writes = 0
        self.lost_writes = 0
        self.failed_syncs = 0
        self._on_durable = on_durable
        self._files: dict[str, _Inode] = {}
        self._directories: dict[str, None] = {}
        self._durable_files: dict[str, _Inode] = {}
        self._durable_directories: dict[str, None] = {}
        self._changes: list[_NameChange] = []
        self._index_writes: list[tuple[MemoryIndex, Sequence[Change]]] = []
        self._busy_until = 0.0
        self._stalled_until = 0.0
        self._fails_in = 0

    # --- faults -------------------------------------------------------------------------------

    def stall(self, seconds: float) -> None:
        """Delay new operations: each of them ends after ``seconds`` at the earliest."""
        self._stalled_until = max(self._stalled_until, self.simulation.now + seconds)

    def fail_syncs(self, count: int = 1) -> None:
        """Let the ``count``-th write from now on fail; 1 is the next one."""
        self._fails_in = count

    def heal(self) -> None:
        """End all faults. Data that is damaged stays damaged."""
        self.slow, self.is_full, self._stalled_until, self._fails_in = 1.0, False, 0.0, 0

    def rot(self) -> bool:
        """Flip one bit in a write that is not the last of its file. Return whether there was one."""
        choices = []
        for path in sorted(self._files):
            written = self._files[path].written
            last = max((offset for offset, _ in written), default=0)
            choices += [(path, offset, length) for offset, length in written if offset + length <= last]
        if not choices:
            return False
        self._flip(*self.random.choice(choices))
        return True

    def rot_entries(self) -> bool:
        """Flip one bit in the entries of a run that the index names. Return whether there was one."""
        choices = []
        for name, index in self.indexes.items():
            for key, value in index.scan_now(b"", _LAST_KEY, floor=b"", limit=_ROWS_MAX):
                if not is_run_key(key):
                    continue
                run = decode_run(key, value, name)
                suffix = f"/{abs(run.file):016x}{_SEGMENT if run.file > 0 else _ENTRY_LOG}"
                size = run.length - run.head_length
                choices += [
                    (path, run.offset + run.head_length, size)
                    for path in self._files
                    if path.endswith(suffix) and size
                ]
        if not choices:
            return False
        self._flip(*self.random.choice(choices))
        return True

    def _flip(self, path: str, offset: int, length: int) -> None:
        at = offset + self.random.randrange(length)
        self._files[path].data[at] ^= 1 << self.random.randrange(8)
        self.simulation.event("rot", self.machine, path, at)

    def lose_index(self) -> bool:
        """Lose the index. Return whether there was one. No process may use the disk."""
        assert not self.locks, "a process uses the disk"
        was_there = bool(self.indexes)
        self.indexes.clear()
        self.simulation.event("index lost", self.machine)
        return was_there

    def take_image(self) -> DiskImage:
        """Return the durable content, as if a power cut came now and kept nothing of the page cache."""
        known = self._durable_directories
        directories = tuple(path for path in known if all(above in known for above in _above(path)))
        return DiskImage(
            tuple(
                (path, bytes(inode.data), tuple(inode.written))
                for path, inode in self._durable_files.items()
                if _parent(path) in directories
            ),
            directories,
            tuple(
                (path, tuple(index.scan_now(b"", _LAST_KEY, floor=b"", limit=_ROWS_MAX)))
                for path, index in self.indexes.items()
                if _parent(path) in directories
            ),
        )

    def put_back(self, image: DiskImage) -> None:
        """Replace the content of the disk by the content of an image. No process may use the disk."""
        assert not self.locks, "a process uses the disk"
        self._files = {
            path: _Inode(path, bytearray(data), written=list(written)) for path, data, written in image.files
        }
        self._directories = dict.fromkeys(image.directories)
        self._durable_files, self._durable_directories = dict(self._files), dict(self._directories)
        self._changes.clear()
        self.indexes = {path: MemoryIndex(path) for path, _ in image.indexes}
        for path, stored in image.indexes:
            self.indexes[path].apply(stored)
        self.simulation.event("disk put back", self.machine, len(image.files))

    def damage(self, random: Random) -> str | None:
        """Damage one file, exchange two files, or lose an index or the cookie. No process may use the disk.

        Returns:
            The damage that was done. None: the disk has no file that the chosen kind of damage can hit.
        """
        assert not self.locks, "a process uses the disk"
        files = [path for path in sorted(self._files) if path.endswith(_DAMAGED)]
        journals = [path for path in files if path.endswith(".journal")]
        written = [path for path in journals if any(offset for offset, _ in self._files[path].written)]
        prepared = [path for path in journals if not written or path > written[-1]]
        whole = [path for path in files if path not in (*written[-1:], *prepared)]
        cookies = [path for path in files if path.endswith("/cookie")]
        kind = random.choice(
            ("flip", "flip", "cut", "remove", "garbage", "exchange", "prepared", "index", "cookie")
        )
        what: str | None = None
        if kind == "flip":
            return "a bit is flipped" if self.rot() else None
        if kind == "index" and self.indexes:
            what = random.choice(sorted(self.indexes))
            del self.indexes[what]
        elif kind == "prepared" and prepared:
            what = random.choice(prepared)
            self._overwrite(what, random)
        elif kind == "cookie" and cookies:
            what = random.choice(cookies)
            if random.random() < 0.5:
                self._overwrite(what, random)
            else:
                self._remove(what)
        elif kind == "exchange" and len(whole) > 1:
            what, other = random.sample(whole, 2)
            here, there = self._files[what], self._files[other]
            here.data, there.data = there.data, here.data
            here.written, there.written = there.written, here.written
        elif whole and kind in ("cut", "remove", "garbage"):
            what = random.choice(whole)
            if kind == "garbage":
                self._overwrite(what, random)
            elif kind == "cut":
                self._files[what].cut(random.randrange(len(self._files[what].data) + 1))
            else:
                self._remove(what)
        if what is None:
            return None
        self.simulation.event("damage", self.machine, kind, what)
        return f"{kind} {what}"

    def _remove(self, path: str) -> None:
        del self._files[path]
        self._durable_files.pop(path, None)

    def _overwrite(self, path: str, random: Random) -> None:
        data = self._files[path].data
        at = random.randrange(max(1, len(data))) // SECTOR * SECTOR
        length = min(random.choice((SECTOR, PAGE)), len(data) - at)
        data[at : at + length] = random.randbytes(length)

    def on_process_end(self, *, power_cut: bool) -> None:
        """The process has ended. With ``power_cut``, everything that was not durable is lost too."""
        self.locks.clear()
        for index, rows in self._index_writes:
            if self.random.random() < 0.5:
                index.apply(rows)
        self._index_writes.clear()
        inodes = dict.fromkeys([*self._files.values(), *self._durable_files.values()])
        for inode in inodes:
            if power_cut:
                self._lose_cache(inode)
            elif inode.cache and self.random.random() < 0.5 and not inode.cache[-1].is_dropped:
                inode.cache.pop()  # The kill came before the system call.
        if power_cut:
            self._lose_names()

    def _lose_cache(self, inode: _Inode) -> None:
        cache, inode.cache = inode.cache, []
        for write in cache:
            fate = self.random.choice(("lost", "lost", "kept", "first", "any"))
            count = len(write.data) // SECTOR
            if write.is_dropped or fate == "lost":
                kept: list[int] = []
            elif fate == "kept":
                kept = list(range(count))
            elif fate == "first":
                kept = list(range(self.random.randrange(count + 1)))
            else:
                kept = [sector for sector in range(count) if self.random.random() < 0.5]
            for sector in kept:
                start = sector * SECTOR
                at = write.offset + start
                inode.data[at : at + SECTOR] = write.data[start : start + SECTOR]
            if len(kept) == count:
                self._note_durable(inode, write)
            elif kept:
                self.torn_writes += 1
            else:
                self.lost_writes += 1
            self.simulation.event("power cut", self.machine, inode.path, write.offset, len(kept), count)

    def _lose_names(self) -> None:
        for directory in dict.fromkeys(change.directory for change in self._changes):
            changes = [change for change in self._changes if change.directory == directory]
            for change in changes[: self.random.randrange(len(changes) + 1)]:
                self._make_durable(change)
        self._changes.clear()
        known = self._durable_directories
        for path in [path for path in known if any(above not in known for above in _above(path))]:
            del known[path]
        for path in [path for path in self._durable_files if _parent(path) not in known]:
            del self._durable_files[path]
        self._files, self._directories = dict(self._durable_files), dict(known)
        for path in [path for path in self.indexes if _parent(path) not in known]:
            del self.indexes[path]

    # --- names --------------------------------------------------------------------------------

    def _change(self, change: _NameChange) -> None:
        _apply(change, self._files, self._directories)
        self._changes.append(change)

    def _make_durable(self, change: _NameChange) -> None:
        _apply(change, self._durable_files, self._durable_directories)

    def make_directory(self, path: str) -> None:
        *above, last = [*_above(path), path]
        for each in above:  # The parents count as durable: a process synced them when it made them.
            self._directories[each] = self._durable_directories[each] = None
        if last not in self._directories:
            self._change(_NameChange(_parent(last), "directory", last))

    def sync_directory(self, path: str) -> None:
        path = "" if path in ("/", ".") else path
        for change in [change for change in self._changes if change.directory == path]:
            self._make_durable(change)
            self._changes.remove(change)

    def rename(self, source: str, target: str) -> None:
        self.inode(source)
        self._change(_NameChange(_parent(source), "rename", source, target))

    def unlink(self, path: str) -> None:
        self.inode(path)
        self._change(_NameChange(_parent(path), "unlink", path))

    @property
    def used_bytes(self) -> int:
        """How many bytes all files have together."""
        return sum(len(inode.data) for inode in self._files.values())

    def space(self) -> DiskSpace | None:
        """Return the capacity and the free space. None if the capacity is unlimited."""
        if self.capacity_bytes is None:
            return None
        return DiskSpace(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes))

    def add_file(self, path: str, data: bytearray) -> _Inode:
        space = self.space()
        if self.is_full or (space is not None and len(data) > space.free):
            raise DiskFull(f"cannot create {path}: the disk of {self.machine} is full")
        inode = _Inode(path, data)
        self._change(_NameChange(_parent(path), "file", path, inode=inode))
        return inode

    def inode(self, path: str) -> _Inode:
        inode = self._files.get(path)
        if inode is None:
            raise FileMissing(f"cannot open {path}: no such file")
        return inode

    def has_file(self, path: str) -> bool:
        return path in self._files

    def list_directory(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileMissing(f"cannot list {path}: no such directory")
        names = [name for name in (*self._files, *self._directories, *self.indexes) if _parent(name) == path]
        return sorted({name.rpartition("/")[2] for name in names})

    def remove_directory(self, path: str) -> None:
        for name in [name for name in self._files if _parent(name) == path]:
            self.unlink(name)
        if path in self._directories:
            self._change(_NameChange(_parent(path), "no directory", path))

    # --- contents -----------------------------------------------------------------------------

    def begin_write(self, inode: _Inode, offset: int, data: bytes) -> _Write:
        write = _Write(offset, data)
        inode.cache.append(write)
        return write

    def end_write(self, inode: _Inode, write: _Write) -> None:
        """End a write: make it durable, with everything that was written to the file before.

        Raises:
            StorageError: The write has to fail, because of ``fail_syncs``.
        """
        if write not in inode.cache:
            return  # The machine has lost power since.
        if self._fails_in:
            self._fails_in -= 1
            if not self._fails_in:
                self.failed_syncs += 1
                self.simulation.event("sync failed", self.machine, inode.path, write.offset)
                if self.random.random() < 0.5:
                    inode.cache.remove(write)
                else:
                    write.is_dropped = True
                raise StorageError(f"cannot write {inode.path}: Input/output error")
        for each in [each for each in inode.cache if not each.is_dropped]:
            inode.data[each.offset : each.offset + len(each.data)] = each.data
            inode.cache.remove(each)
            self._note_durable(inode, each)

    def _note_durable(self, inode: _Inode, write: _Write) -> None:
        inode.written.append((write.offset, len(write.data)))
        if self._on_durable is not None:
            self._on_durable(inode.path, write.offset, write.data)

    def note_file(self, path: str, data: bytes) -> None:
        """Report a file that was written as a whole. Its name becomes durable later."""
        if self._on_durable is not None:
            self._on_durable(path, 0, data)

    def begin_index_write(
        self, index: MemoryIndex, rows: Sequence[Change]
    ) -> tuple[MemoryIndex, Sequence[Change]]:
        write = (index, list(rows))
        self._index_writes.append(write)
        return write

    def end_index_write(self, write: tuple[MemoryIndex, Sequence[Change]]) -> None:
        self._index_writes.remove(write)
        write[0].apply(write[1])

    def end_of_operation(self, *, is_queued: bool) -> float:
        """Return the time at which an operation that begins now ends. Writes queue up."""
        low, high = self.latency_s
        now = self.simulation.now
        seconds = (low + (high - low) * self.random.random()) * self.slow
        end = max(self._busy_until if is_queued else now, self._stalled_until, now) + seconds
        if is_queued:
            self._busy_until = end
        return end


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _apply(change: _NameChange, files: dict[str, _Inode], directories: dict[str, None]) -> None:
    match change.kind:
        case "directory":
            directories[change.path] = None
        case "no directory":
            directories.pop(change.path, None)
        case "file":
            assert change.inode is not None
            files[change.path] = change.inode
        case "unlink":
            files.pop(change.path, None)
        case "rename":
            inode = files.pop(change.path, None)
            if inode is not None:
                files[change.target] = inode
                inode.path = change.target


class _Door:
    """The base of the disk and the indexes of one life of a process.

    Each call takes time and passes a *door*: the check that the process is alive (see ``testing.process``).
    """

    def __init__(self, platter: Platter, incarnation: Incarnation) -> None:
        self.platter = platter
        self.incarnation = incarnation

    async def take_time(self, *, is_queued: bool = False, is_write: bool = False) -> None:
        """Wait as long as one operation takes. Cancelling does not shorten this; the process's death does."""
        incarnation = self.incarnation
        incarnation.enter_door(is_write=is_write)
        await trio.lowlevel.checkpoint_if_cancelled()  # After this, it always waits.
        end = self.platter.end_of_operation(is_queued=is_queued)
        await incarnation.wait_until(end, is_shielded=True)
        if incarnation.is_paused:
            with trio.CancelScope(shield=True):
                await incarnation.wait_running()

    def done(self) -> None:
        """The effect has happened: leave the door."""
        self.incarnation.leave_door()


class SimDisk(_Door):
    """The ``Disk`` of one life of a process."""

    async def make_directory(self, path: str) -> None:
        await self.take_time()
        self.platter.make_directory(path)
        self.done()

    async def lock_directory(self, path: str) -> _Lock:
        await self.take_time()
        if path in self.platter.locks:
            raise StorageLocked(path, None)
        self.platter.locks[path] = None
        return _Lock(self.platter, path)

    async def list_directory(self, path: str) -> list[str]:
        await self.take_time()
        return self.platter.list_directory(path)

    async def sync_directory(self, path: str) -> None:
        await self.take_time(is_queued=True)
        self.platter.sync_directory(path)
        self.done()

    async def rename(self, source: str, target: str) -> None:
        await self.take_time()
        self.platter.rename(source, target)
        self.done()

    async def unlink(self, path: str) -> None:
        await self.take_time()
        self.platter.unlink(path)
        self.done()

    async def remove_directory(self, path: str) -> None:
        await self.take_time()
        self.platter.remove_directory(path)
        self.done()

    async def truncate(self, path: str, size: int) -> None:
        await self.take_time()
        self.platter.inode(path).cut(size)
        self.done()

    async def space(self, path: str) -> DiskSpace | None:
        if self.platter.capacity_bytes is None:
            await trio.lowlevel.checkpoint()
            return None
        await self.take_time()
        space = self.platter.space()
        self.done()
        return space

    async def write_file(self, path: str, data: bytes) -> None:
        await self.take_time(is_queued=True)
        self.platter.add_file(path, bytearray(data))
        self.platter.note_file(path, data)
        self.done()

    async def read_file(self, path: str, bytes_max: int) -> bytes:
        await self.take_time()
        return self.platter.inode(path).read(0, bytes_max)

    async def create(self, path: str, size: int) -> _OpenFile:
        await self.take_time(is_queued=True)
        if self.platter.has_file(path):
            raise StorageError(f"cannot create {path}: it exists")
        inode = self.platter.add_file(path, bytearray(size))
        self.done()
        return _OpenFile(path, inode)

    async def open(self, path: str, *, for_writing: bool = False) -> _OpenFile:
        await self.take_time()
        return self.open_now(path)

    def open_now(self, path: str) -> _OpenFile:
        self.incarnation.check()
        return _OpenFile(path, self.platter.inode(path))

    async def make_buffer(self, size: int) -> memoryview:
        self.incarnation.check()
        await trio.lowlevel.checkpoint()
        return memoryview(bytearray(size))

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        assert isinstance(file, _OpenFile)
        assert offset % PAGE == len(view) % PAGE == 0, "writes are of whole pages"
        platter, data = self.platter, bytes(view)
        self.incarnation.check()
        write = platter.begin_write(file.inode, offset, data)
        await self.take_time(is_queued=True, is_write=True)
        assert bytes(view) == data, "the bytes of a write changed while it was under way"
        platter.simulation.event("sync", platter.machine, offset, len(data))
        platter.end_write(file.inode, write)
        self.done()

    def may_write_now(self, size: int) -> bool:
        return False  # Every write takes simulated time.

    def write_now(self, file: File, offset: int, view: memoryview) -> float:
        raise AssertionError("may_write_now says no")

    async def write_behind(self, file: File, offset: int, view: memoryview) -> None:
        await self.write_sync(file, offset, view)

    async def read(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        await self.take_time()
        return [self.read_now(file, offset, length) for offset, length in ranges]

    async def read_many(
        self, requests: Sequence[tuple[File, Sequence[tuple[int, int]]]]
    ) -> list[list[bytes]]:
        return [await self.read(file, ranges) for file, ranges in requests]

    def read_now(self, file: File, offset: int, length: int) -> bytes:
        assert isinstance(file, _OpenFile)
        self.incarnation.check()
        return file.inode.read(offset, length)

    async def size(self, file: File) -> int:
        assert isinstance(file, _OpenFile)
        await self.take_time()
        return len(file.inode.data)

    def close(self, file: File) -> None:
        pass

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class _SimIndex(_Door):
    """An ``Index`` of one life of a process."""

    def __init__(self, platter: Platter, incarnation: Incarnation, rows: MemoryIndex) -> None:
        super().__init__(platter, incarnation)
        self._rows = rows
        self.path = rows.path
        self.if_behind = rows.if_behind

    def get_now(self, key: bytes) -> bytes | None:
        self.incarnation.check()
        return self._rows.get_now(key)

    def scan_now(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        self.incarnation.check()
        return self._rows.scan_now(start, stop, floor=floor, limit=limit)

    async def scan(self, start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
        await self.take_time()
        return self._rows.scan_now(start, stop, floor=floor, limit=limit)

    async def write(self, rows: Sequence[Change]) -> None:
        self.incarnation.check()
        write = self.platter.begin_index_write(self._rows, rows)
        await self.take_time(is_queued=True)
        self.platter.end_index_write(write)
        self.done()

    async def refresh(self) -> None:
        await self.take_time()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class SimIndexes(_Door):
    """The ``Indexes`` of one life of a process."""

    async def create(self, path: str) -> Index:
        await self.take_time()
        if path in self.platter.indexes:
            raise StorageError(f"there is an index at {path} already")
        index = self.platter.indexes[path] = MemoryIndex(path)
        return _SimIndex(self.platter, self.incarnation, index)

    async def open(self, path: str) -> Index:
        await self.take_time()
        if path not in self.platter.indexes:
            raise FileMissing(f"there is no index at {path}")
        return _SimIndex(self.platter, self.incarnation, self.platter.indexes[path])

    async def remove(self, path: str) -> None:
        await self.take_time()
        self.platter.indexes.pop(path, None)
        self.done()

    async def replace(self, source: str, target: str) -> None:
        await self.take_time()
        self.platter.indexes[target] = self.platter.indexes.pop(source)
        self.done()
