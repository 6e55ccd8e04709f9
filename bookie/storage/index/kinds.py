"""The kinds of index on a disk: which one a directory has, and which ones this installation can open.

    kind      store     package    files that only it makes
    leveldb   LevelDB   plyvel     (all other indexes)
    rocksdb   RocksDB   rocksdict  IDENTITY, OPTIONS-*, rocksdict-config.json

A directory of version 0.1 has LevelDB. RocksDB writes IDENTITY and OPTIONS-* durably while it makes a
database, and each of these files alone says that the index is RocksDB's. So if one of them is lost, the
bookie still knows the kind.

The default kind is LevelDB if plyvel can be imported, otherwise RocksDB. plyvel has wheels for Python 3.11
and 3.12 on x86-64 only.

Opening an index never converts it. If another kind is asked for, or if the package for the present kind
cannot be imported, opening the index fails. ``bookie rebuild-index PATH --index KIND`` makes an index of
another kind from the journal and the entry logs.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable

import attrs
import trio

from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.disk.real import raise_ours
from bookie.storage.index.index import remedy
from bookie.storage.index.stored import Store, StoredIndex, create, open_stored
from ledgerlog.errors import StorageError
from ledgerlog.optional_packages import how_to_install


@attrs.frozen
class IndexKind:
    """A kind of index."""

    name: str
    """The name of the kind in options."""
    title: str
    """The name of the store, for messages."""
    package: str
    """The package that opens such an index."""
    marks: tuple[str, ...]
    """Patterns of files that only this store makes."""
    load: Callable[[], Store]
    """Imports the store. Raises ImportError."""


def _leveldb() -> Store:
    from bookie.storage.index.leveldb import LevelDb

    return LevelDb()


def _rocksdb() -> Store:
    from bookie.storage.index.rocksdb import RocksDb

    return RocksDb()


LEVELDB = IndexKind("leveldb", "LevelDB", "plyvel", (), _leveldb)
ROCKSDB = IndexKind(
    "rocksdb", "RocksDB", "rocksdict", ("IDENTITY", "OPTIONS-*", "rocksdict-config.json"), _rocksdb
)
KINDS = (LEVELDB, ROCKSDB)
"""All kinds; the first that can be imported is the default."""
NAMES = tuple(kind.name for kind in KINDS)


def kind_of(path: str) -> IndexKind | None:
    """Return the kind of the index at ``path``; None if there is none."""
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not names:
        return None
    for kind in KINDS:
        if any(fnmatch.filter(names, mark) for mark in kind.marks):
            return kind
    return LEVELDB


def default_kind() -> IndexKind:
    """Return the kind of a new index.

    Raises:
        StorageError: No kind has a package that can be imported.
    """
    failures = []
    for kind in KINDS:
        try:
            kind.load()
        except ImportError as cause:
            failures.append(f"{kind.package} for {kind.title} ({cause})")
        else:
            return kind
    raise StorageError(
        "a bookie needs a store for its index, but none of these can be imported: "
        f"{', '.join(failures)}. {how_to_install(ROCKSDB.package)}"
    )


class StoredIndexes:
    """``Indexes`` in directories of a disk.

    Args:
        disk: The disk, which must be the real one.
        beside: The path of the bookie's index. If that index exists when this object is made, new indexes get
            the same kind.
        asked: The name of the kind that is asked for. An index of another kind is not opened. None: any kind
            is opened.
    """

    def __init__(self, disk: Disk, beside: str | None = None, *, asked: str | None = None) -> None:
        self._disk = disk
        self._asked = None if asked is None else KINDS[NAMES.index(asked)]
        self._present = None if beside is None else kind_of(beside)

    async def create(self, path: str) -> StoredIndex:
        def create_it() -> StoredIndex:
            kind = self._asked or self._present or default_kind()
            return create(_load(kind, path), path)

        return await trio.to_thread.run_sync(_translated, path, create_it)

    async def open(self, path: str) -> StoredIndex:
        def open_it() -> StoredIndex:
            kind = kind_of(path)
            if kind is not None and self._asked is not None and self._asked is not kind:
                asked = self._asked
                raise _refusal(path, kind, asked, f"{asked.title} is asked for (index = {asked.name!r})")
            if kind is None or not os.path.isfile(os.path.join(path, "CURRENT")):
                raise FileMissing(f"there is no {path}/CURRENT; {remedy(path)}")
            return open_stored(_load(kind, path), path)

        return await trio.to_thread.run_sync(_translated, path, open_it)

    async def remove(self, path: str) -> None:
        await self._disk.remove_directory(path)

    async def replace(self, source: str, target: str) -> None:
        """Replace an index. A crash in the middle may leave no index at ``target``. The next start notices
        that; nothing else is lost."""
        await self._disk.remove_directory(target)
        await self._disk.rename(source, target)
        await self._disk.sync_directory(os.path.dirname(target))


def _translated(path: str, make: Callable[[], StoredIndex]) -> StoredIndex:
    """Call ``make``. If the operating system refuses something, for example to list the directory, raise
    StorageError."""
    try:
        return make()
    except OSError as cause:
        raise_ours("open", path, cause)


def _load(kind: IndexKind, path: str) -> Store:
    try:
        return kind.load()
    except ImportError as cause:
        (other,) = (each for each in KINDS if each is not kind)
        raise _refusal(path, kind, other, f"{kind.package} cannot be imported here ({cause})") from cause


def _refusal(path: str, present: IndexKind, wanted: IndexKind, why: str) -> StorageError:
    command = f"bookie rebuild-index {os.path.dirname(path) or '.'} --index {wanted.name}"
    return StorageError(
        f"{path} is an index of {present.title}, and {why}: `{command}` makes it one of {wanted.title}"
    )
