"""The disk capability on the file system.

**Synced writes.** ``write_sync`` is one hop to a thread and back and, if the file system supports it, one
system call: ``pwritev`` with RWF_DSYNC on a file that is open with O_DIRECT, from page-aligned memory.
Nothing is copied into the page cache, and no second call flushes it. One trial write in each directory finds
out what its file system supports (``_Method``). The fallback is a plain ``pwritev`` and an ``fdatasync``.

The hop goes to a thread that does nothing else, through a SimpleQueue, and comes back by ``run_sync_soon``.
The hop takes about 55 microseconds; ``trio.to_thread.run_sync`` takes 65 to 85 (tests/bench/bench_journal.py
prints both, and the time of the bare call). The thread is a daemon, so it does not hold up a process that
dies on an exception.

**Small writes on a quick disk skip the hop** (``_Haste``). For a single append of a few hundred bytes, the
hop costs about as much as the write, because two threads on different processors have to wake up. So a write
of up to INLINE_BYTES_MAX is made in the event loop itself, as long as the disk answers within INLINE_S. If
INLINE_SLOW_WRITES writes in a row take longer, the next INLINE_PENALTY writes go to the thread, and then one
write is tried in the loop again. So a slow disk holds up the loop for at most one such write in
INLINE_PENALTY + 1. On a busy machine, even a quick disk seems slow, because the process has to wait for a
processor, and the thread would have to wait for it, too. So one slow write does not count yet, and from the
next write the time that the process waited is subtracted (``_waited_s``). It is not asked for at each write,
because asking takes a tenth of the time of a write. Large groups always go to the thread, because the loop
can gather the next group during the write.

**Writes that no caller waits for** (``write_behind``, for entry logs) are made in the same way, one piece at
a time, in one of trio's threads. So they run beside the journal's writes. Each piece is synced on its own.
Otherwise the pieces would gather in the page cache, and flushing them would delay the journal's next sync.

**Reads** and everything else go through trio's threads, at most ``_READERS`` at a time. So a slow read never
delays the journal.

**No descriptor left** (EMFILE, ENFILE) is not a failure of the disk. A call that needs to open a file waits
until a descriptor is free. A read in the event loop cannot wait, so it uses a descriptor that is kept for
this case (``SpareDescriptor``).

**A short write** is continued after the part that was written. With RWF_DSYNC that part is durable, so no
failed write is repeated. After an error, no code above writes the file again.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
import logging
import mmap
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import attrs
import outcome
import trio

from bookie.core.fullness import DiskSpace
from bookie.storage.disk.descriptors import RETRY_S, OutOfDescriptors, SpareDescriptor, is_exhaustion
from bookie.storage.disk.disk import File, FileMissing
from ledgerlog.durable_directories import make_directories, sync_directory
from ledgerlog.errors import DiskFull, StorageError, StorageLocked

T = TypeVar("T")

logger = logging.getLogger(__name__)

INLINE_BYTES_MAX = 32 * 1024
"""The largest write that may be made in the event loop. A block with one entry of 16 KiB fits."""
INLINE_S = 0.002
"""A write in the event loop that takes more seconds than this is slow."""
INLINE_SLOW_WRITES = 2
"""The disk counts as slow after this many slow writes in a row."""
INLINE_PENALTY = 128
"""While the disk is slow, this many writes go to the thread before one is tried in the loop again."""

_READERS = 4
_PAGE_BYTES = 4096
_PROBE_NAME = "probe"
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTSUP})


class _Method(enum.Enum):
    """The ways to write a file durably, the best one first."""

    DIRECT_DSYNC = "O_DIRECT, RWF_DSYNC"
    DSYNC = "RWF_DSYNC"
    FDATASYNC = "fdatasync"


def raise_ours(action: str, path: str, cause: OSError) -> NoReturn:
    """Translate an error of the operating system into a StorageError."""
    text = f"cannot {action} {path}: {cause.strerror or cause}"
    if is_exhaustion(cause):
        raise OutOfDescriptors(text) from cause
    if cause.errno in _NO_ROOM:
        raise DiskFull(text) from cause
    if cause.errno in (errno.ENOENT, errno.ENOTDIR):
        raise FileMissing(text) from cause
    raise StorageError(text) from cause


@attrs.define(eq=False)
class RealFile:
    """An open file."""

    path: str
    descriptor: int
    """The descriptor for reading, and for writing if ``method`` is not DIRECT_DSYNC. -1 once the file is
    closed."""
    direct: int = -1
    """The descriptor for writing, opened with O_DIRECT; -1 if there is none."""
    method: _Method | None = None
    """How the file is written, or None if it is open for reading only."""


class _RealLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Writer:
    """The thread of synced writes."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="bookie-journal", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, token, done = job
            token.run_sync_soon(done, outcome.capture(function))
            # Drop these references. Otherwise the waiting thread keeps the old job alive.
            del job, function, token, done

    async def run(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the thread. If you cancel this, it still waits for the end of ``function``."""
        task = trio.lowlevel.current_task()

        def done(result: outcome.Outcome[None]) -> None:
            trio.lowlevel.reschedule(task, result)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.FAILED

        await trio.lowlevel.checkpoint_if_cancelled()
        self._jobs.put((function, trio.lowlevel.current_trio_token(), done))
        await trio.lowlevel.wait_task_rescheduled(abort)

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._jobs.put(None)
        self._thread.join()


class _Haste:
    """Whether the next synced write may be made in the event loop."""

    def __init__(self) -> None:
        self._penalty = 0
        self._slow = 0
        """How many writes in the event loop were slow since the last quick one."""

    def allows(self, size: int) -> bool:
        """Decide about one write of ``size`` bytes. Call this once for each write that could also go to the
        thread."""
        if self._penalty:
            self._penalty -= 1
            return False
        return size <= INLINE_BYTES_MAX

    def would_allow(self, size: int) -> bool:
        """Return the answer that ``allows`` would give, without counting the write."""
        return not self._penalty and size <= INLINE_BYTES_MAX

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last write in the event loop was slow. Then find out how long the next one waits for a
        processor."""
        return self._slow > 0

    def on_written(self, took_s: float) -> None:
        """Note that a write in the event loop took ``took_s`` seconds, in which the process did not wait for
        a processor, as far as this is known."""
        if took_s <= INLINE_S:
            self._slow = 0
            return
        self._slow += 1
        if self._slow >= INLINE_SLOW_WRITES:
            self._penalty = INLINE_PENALTY


class RealDisk:
    """``Disk`` on the file system of this machine. Each bookie has its own object; ``aclose`` ends its
    thread."""

    def __init__(self) -> None:
        self._writer: _Writer | None = None
        self._haste = _Haste()
        self._methods: dict[str, _Method] = {}
        self._limiter = trio.CapacityLimiter(_READERS)
        self._behind = trio.CapacityLimiter(1)
        self._spare = SpareDescriptor()
        self._is_exhausted = False

    async def aclose(self) -> None:
        self._spare.close()
        if self._writer is not None:
            self._writer.stop()
            self._writer = None

    async def _run(self, action: str, path: str, function: Callable[[], T]) -> T:
        """Run ``function`` in a thread. If no descriptor is free, wait and run it again."""
        while True:
            try:
                result = await trio.to_thread.run_sync(function, limiter=self._limiter)
            except OSError as cause:
                if not is_exhaustion(cause):
                    raise_ours(action, path, cause)
                if not self._is_exhausted:
                    logger.error("cannot %s %s for now: %s", action, path, cause.strerror)
                self._is_exhausted = True
                await trio.sleep(RETRY_S)
            else:
                if self._is_exhausted:
                    logger.warning("file descriptors are available again")
                self._is_exhausted = False
                return result

    # --- directories and names --------------------------------------------------------------------

    async def make_directory(self, path: str) -> None:
        await self._run("make", path, lambda: make_directories(Path(path)))

    async def lock_directory(self, path: str) -> _RealLock:
        return await self._run("lock", path, lambda: _lock(path))

    async def list_directory(self, path: str) -> list[str]:
        return sorted(await self._run("list", path, lambda: os.listdir(path)))

    async def sync_directory(self, path: str) -> None:
        await self._run("sync", path, lambda: sync_directory(path))

    async def rename(self, source: str, target: str) -> None:
        await self._run("rename", source, lambda: os.replace(source, target))

    async def unlink(self, path: str) -> None:
        await self._run("remove", path, lambda: os.unlink(path))

    async def remove_directory(self, path: str) -> None:
        def remove() -> None:
            if os.path.lexists(path):
                shutil.rmtree(path)

        await self._run("remove", path, remove)

    async def truncate(self, path: str, size: int) -> None:
        def cut() -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        await self._run("truncate", path, cut)

    # --- small files ------------------------------------------------------------------------------

    async def space(self, path: str) -> DiskSpace:
        def ask() -> DiskSpace:
            found = os.statvfs(path)
            # Space that only root may use counts as used, as in df.
            used = found.f_blocks - found.f_bfree
            return DiskSpace((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)

        return await self._run("look at the space of", path, ask)

    async def write_file(self, path: str, data: bytes) -> None:
        def write() -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        await self._run("write", path, write)

    async def read_file(self, path: str, bytes_max: int) -> bytes:
        def read() -> bytes:
            with open(path, "rb") as file:
                return file.read(bytes_max)

        return await self._run("read", path, read)

    # --- segments ---------------------------------------------------------------------------------

    async def create(self, path: str, size: int) -> RealFile:
        method = await self._method(path)
        return await self._run("create", path, lambda: _create(path, size, method))

    async def open(self, path: str, *, for_writing: bool = False) -> RealFile:
        method = await self._method(path) if for_writing else None
        return await self._run("open", path, lambda: _open(path, method))

    def open_now(self, path: str) -> RealFile:
        try:
            return self._spare.lend(lambda: _open(path, None))
        except OSError as cause:
            raise_ours("open", path, cause)

    async def _method(self, path: str) -> _Method:
        """Return how files in the directory of ``path`` are written. The first call for a directory makes the
        trial write."""
        directory = os.path.dirname(path)
        method = self._methods.get(directory)
        if method is None:
            method = await self._run("write to", directory, lambda: _probe(directory))
            self._methods[directory] = method
        return method

    async def make_buffer(self, size: int) -> memoryview:
        try:
            return await trio.to_thread.run_sync(lambda: _make_buffer(size), limiter=self._limiter)
        except OSError as cause:
            raise StorageError(
                f"no memory for a buffer of {size} bytes: {cause.strerror or cause}"
            ) from cause

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        assert isinstance(file, RealFile)
        if self._haste.allows(len(view)):
            await trio.lowlevel.checkpoint_if_cancelled()
            self.write_now(file, offset, view)
            return
        if self._writer is None:
            self._writer = _Writer()
        try:
            await self._writer.run(lambda: _write_sync(file, offset, view))
        except OSError as cause:
            raise_ours("write", file.path, cause)

    def may_write_now(self, size: int) -> bool:
        return self._haste.would_allow(size)

    def write_now(self, file: File, offset: int, view: memoryview) -> float:
        assert isinstance(file, RealFile)
        haste = self._haste
        in_doubt = haste.is_in_doubt
        waited_s = _waited_s() if in_doubt else 0.0
        began = trio.current_time()
        try:
            _write_sync(file, offset, view)
        except OSError as cause:
            raise_ours("write", file.path, cause)
        took_s = trio.current_time() - began
        haste.on_written(took_s - (_waited_s() - waited_s) if in_doubt else took_s)
        return took_s

    async def write_behind(self, file: File, offset: int, view: memoryview) -> None:
        assert isinstance(file, RealFile)
        try:
            await trio.to_thread.run_sync(lambda: _write_sync(file, offset, view), limiter=self._behind)
        except OSError as cause:
            raise_ours("write", file.path, cause)

    async def read(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        assert isinstance(file, RealFile)
        return await self._run(
            "read",
            file.path,
            lambda: [_read(file.descriptor, offset, length) for offset, length in ranges],
        )

    async def read_many(
        self, requests: Sequence[tuple[File, Sequence[tuple[int, int]]]]
    ) -> list[list[bytes]]:
        def read(file: RealFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            try:
                return [_read(file.descriptor, offset, length) for offset, length in ranges]
            except OSError as cause:
                raise_ours("read", file.path, cause)

        files: list[tuple[RealFile, Sequence[tuple[int, int]]]] = []
        for file, ranges in requests:
            assert isinstance(file, RealFile)
            files.append((file, ranges))
        return await trio.to_thread.run_sync(
            lambda: [read(file, ranges) for file, ranges in files], limiter=self._limiter
        )

    def read_now(self, file: File, offset: int, length: int) -> bytes:
        assert isinstance(file, RealFile)
        try:
            return _read(file.descriptor, offset, length)
        except OSError as cause:
            raise_ours("read", file.path, cause)

    async def size(self, file: File) -> int:
        assert isinstance(file, RealFile)
        return await self._run("measure", file.path, lambda: os.fstat(file.descriptor).st_size)

    def close(self, file: File) -> None:
        assert isinstance(file, RealFile)
        for descriptor in {file.descriptor, file.direct}:
            if descriptor >= 0:
                os.close(descriptor)
        file.descriptor = file.direct = -1
        self._spare.keep()


def _waited_s() -> float:
    """Return for how many seconds the calling thread has waited for a processor so far, although it could
    run; 0 if the kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


# --- in threads -----------------------------------------------------------------------------------


def _lock(path: str) -> _RealLock:
    name = os.path.join(path, "lock")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            raise StorageLocked(path, _holder(descriptor)) from cause
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except OSError as cause:
            # The process id is only for an error message, so it may be missing on a full disk. At this point
            # the start has not given up the ballast yet.
            if cause.errno not in _NO_ROOM:
                raise
    except BaseException:
        os.close(descriptor)
        raise
    return _RealLock(descriptor)


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _probe(directory: str) -> _Method:
    """Find out, by a trial write, how files in this directory are written durably."""
    path = os.path.join(directory, _PROBE_NAME)
    with mmap.mmap(-1, _PAGE_BYTES) as page:  # O_DIRECT needs memory that begins at a page.
        try:
            for method in (_Method.DIRECT_DSYNC, _Method.DSYNC):
                flags = _O_DIRECT if method is _Method.DIRECT_DSYNC else 0
                if not _RWF_DSYNC or (method is _Method.DIRECT_DSYNC and not flags):
                    continue
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
                    try:
                        if os.pwritev(descriptor, [page], 0, _RWF_DSYNC) == _PAGE_BYTES:
                            return method
                    finally:
                        os.close(descriptor)
                except OSError as cause:
                    if cause.errno not in _UNSUPPORTED:
                        raise
            return _Method.FDATASYNC
        finally:
            if os.path.exists(path):
                os.unlink(path)


def _create(path: str, size: int, method: _Method) -> RealFile:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            _write_zeros(descriptor, size)
        os.fsync(descriptor)
        return _with_direct(RealFile(path, descriptor, method=method))
    except BaseException:
        os.close(descriptor)
        os.unlink(path)
        raise


def _write_zeros(descriptor: int, size: int) -> None:
    zeros = bytes(1024 * 1024)
    at = 0
    while at < size:
        at += os.pwrite(descriptor, zeros[: size - at], at)


def _open(path: str, method: _Method | None) -> RealFile:
    descriptor = os.open(path, (os.O_RDONLY if method is None else os.O_RDWR) | os.O_CLOEXEC)
    try:
        return _with_direct(RealFile(path, descriptor, method=method))
    except BaseException:
        os.close(descriptor)
        raise


def _with_direct(file: RealFile) -> RealFile:
    if file.method is _Method.DIRECT_DSYNC:
        file.direct = os.open(file.path, os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT)
    return file


def _make_buffer(size: int) -> memoryview:
    """Return memory that begins at a page, as O_DIRECT needs it.

    Every page is touched now, and not in an add. C code does that without the interpreter's lock, so that the
    event loop goes on meanwhile. A copy of zeros in Python would stop the loop for 5 to 10 ms again and
    again.
    """
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(pages)), 0, size)
    return memoryview(pages)


def _write_sync(file: RealFile, offset: int, view: memoryview) -> None:
    assert file.method is not None
    descriptor = file.direct if file.method is _Method.DIRECT_DSYNC else file.descriptor
    flags = 0 if file.method is _Method.FDATASYNC else _RWF_DSYNC
    while view:
        written = os.pwritev(descriptor, [view], offset, flags)
        if written <= 0 or (file.method is _Method.DIRECT_DSYNC and written % _PAGE_BYTES):
            raise OSError(errno.EIO, f"{written} of {len(view)} bytes were written")
        offset += written
        view = view[written:]
    if file.method is _Method.FDATASYNC:
        os.fdatasync(descriptor)


def _read(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    missing = length - len(data)
    while missing and (data := os.pread(descriptor, missing, offset + length - missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
