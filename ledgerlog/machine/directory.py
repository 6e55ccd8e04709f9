"""Snapshots as files in a directory.

    PATH/snapshot-IIIIIIIIIIIIIIII-OOOOOOOOOOOOOOOO     the log's incarnation and the next offset, hexadecimal

A file is first written under a temporary name, which ends with ``.TOKEN.new``. Then it is synced and renamed,
and the directory is synced. So a snapshot that is listed is whole, and a saved snapshot survives a power cut.
A crash may leave a file under its temporary name. A living writer holds a lock on such a file. If the file is
not locked, the next ``prune`` deletes it. Files with any other name are left alone.

This module translates every OSError: a full disk is DiskFull, any other error is StorageError. Worker threads
do the writing, one batch of pieces at a time, so the event loop never waits for the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import trio

from ledgerlog.durable_directories import make_directories, sync_directory
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from ledgerlog.limits import MIB, REPLICA_SNAPSHOT_BYTES_MAX
from ledgerlog.machine.snapshots import SnapshotInfo, within_limit

__all__ = ["DirectorySnapshots"]

T = TypeVar("T")

_NAME = re.compile(r"snapshot-([0-9a-f]{16})-([0-9a-f]{16})\Z")
_UNFINISHED = re.compile(r"snapshot-[0-9a-f]{16}-[0-9a-f]{16}\.[0-9a-f]+\.new\Z")
_BATCH_BYTES = MIB


class DirectorySnapshots:
    """Snapshots in a directory, for ``Replica(snapshots=...)``. A missing directory is created.

    Every method may raise StorageError (the disk or the file system failed) and DiskFull.

    Args:
        path: The directory.
        shared: Whether every replica of the log sees this directory. Pass True if there is only one replica,
            or if all of them mount the same file system. By default, a replica truncates the log only if the
            directory is shared.
    """

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False) -> None:
        self._path = Path(path)
        self._shared = shared

    def __repr__(self) -> str:
        return f"<DirectorySnapshots {str(self._path)!r}>"

    @property
    def is_shared(self) -> bool:
        """Whether every replica of the log sees this directory: the value of ``shared``."""
        return self._shared

    async def find(self, incarnation: int) -> list[SnapshotInfo]:
        """Return the snapshots of a log, newest first. See ``SnapshotStore.find`` for the details.

        Args:
            incarnation: The incarnation of the log.
        """
        return await self._in_thread(lambda: self._list(incarnation))

    async def save(
        self, name: str, incarnation: int, next_offset: int, stream: Iterable[bytes]
    ) -> SnapshotInfo:
        """Save a snapshot. See ``SnapshotStore.save`` for the details.

        Args:
            name: The name of the log, for people.
            incarnation: The incarnation of the log.
            next_offset: The first record of the log that is not in the snapshot.
            stream: The bytes of the snapshot.

        Returns:
            The snapshot. It is durable.

        Raises:
            StorageError: The snapshot is larger than ``limits.REPLICA_SNAPSHOT_BYTES_MAX``.
        """
        file_name = f"snapshot-{incarnation:016x}-{next_offset:016x}"
        descriptor, unfinished = await self._in_thread(lambda: self._create(file_name))
        size = 0
        try:
            batch = bytearray()
            for piece in within_limit(stream):
                batch += piece
                await trio.lowlevel.checkpoint()
                if len(batch) >= _BATCH_BYTES:
                    size += len(batch)
                    await self._write(descriptor, batch)
                    batch = bytearray()
            size += len(batch)
            await self._write(descriptor, batch)
            await self._in_thread(lambda: self._finish(descriptor, unfinished, file_name))
        except BaseException:
            with contextlib.suppress(OSError):
                (self._path / unfinished).unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return SnapshotInfo(next_offset=next_offset, size=size, place=file_name)

    async def load(self, info: SnapshotInfo) -> bytes:
        """Return the whole stream of a snapshot. See ``SnapshotStore.load`` for the details.

        Args:
            info: The snapshot, as ``find`` or ``save`` returned it.

        Raises:
            StorageCorrupt: The stored stream is not the stream that was saved.
        """
        if info.size > REPLICA_SNAPSHOT_BYTES_MAX:
            raise StorageCorrupt(info.place, None, f"a snapshot of {info.size} bytes is over the limit")
        return await self._in_thread((self._path / info.place).read_bytes)

    async def prune(self, incarnation: int, keep: int) -> None:
        """Delete old snapshots. See ``SnapshotStore.prune`` for the details.

        Args:
            incarnation: The incarnation of the log.
            keep: How many snapshots to keep.
        """
        await self._in_thread(lambda: self._prune(incarnation, keep))

    # --- in a thread --------------------------------------------------------------------------

    def _list(self, incarnation: int) -> list[SnapshotInfo]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._path):
                match = _NAME.match(entry.name)
                if match is None or int(match[1], 16) != incarnation:
                    continue
                # Another replica may delete a file meanwhile. Still list the others.
                with contextlib.suppress(FileNotFoundError):
                    size = entry.stat().st_size
                    found.append(SnapshotInfo(next_offset=int(match[2], 16), size=size, place=entry.name))
        return sorted(found, key=lambda info: info.next_offset, reverse=True)

    def _create(self, file_name: str) -> tuple[int, str]:
        """Create an unfinished file and lock it; return its descriptor and its name."""
        make_directories(self._path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while True:
            name = f"{file_name}.{os.urandom(8).hex()}.new"
            descriptor = os.open(self._path / name, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Another replica's ``prune`` may have deleted the file before it was locked.
                if os.fstat(descriptor).st_nlink:
                    return descriptor, name
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    async def _write(self, descriptor: int, data: bytearray) -> None:
        def write() -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]

        await self._in_thread(write)

    def _finish(self, descriptor: int, unfinished: str, name: str) -> None:
        os.fsync(descriptor)
        is_new = not (self._path / name).exists()
        (self._path / unfinished).rename(self._path / name)
        try:
            sync_directory(self._path)
        except OSError:
            # The snapshot must not be listed if a power cut can still remove it. If it has replaced an older
            # one, a power cut leaves one of the two. Both reach the same offset.
            if is_new:
                (self._path / name).unlink(missing_ok=True)
            raise

    def _prune(self, incarnation: int, keep: int) -> None:
        for info in self._list(incarnation)[keep:]:
            (self._path / info.place).unlink(missing_ok=True)
        for entry in os.scandir(self._path):
            if _UNFINISHED.match(entry.name):
                self._remove_if_dead(entry.path)

    def _remove_if_dead(self, path: str) -> None:
        """Delete an unfinished file if no process still writes it: a writer holds a lock on its file."""
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        with self._translated():
            return await trio.to_thread.run_sync(work)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
            raise kind(f"snapshots in {self._path}: {error.strerror or error}") from error
