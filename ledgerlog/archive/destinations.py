"""Where archived files lie: a directory, anywhere that ``pyarrow.fs`` reaches.

A destination is a path of this machine, or a URL of pyarrow's (``file:``, ``s3:``, ``gs:``, ``hdfs:``,
``abfs:``). Below it each log has a directory, and each archived part of it a file:

    LOG-INCARNATION-CLUSTER/FIRST-END-DIGEST-NONCE.parquet

LOG is the log's name with ``~`` for each slash (200 characters of it at most), INCARNATION and DIGEST are 16
hexadecimal digits (of the digest the first ones), CLUSTER the first 16 of the cluster's id, so that clusters
that share a destination do not meet; FIRST and END are offsets of 20 digits. Files of the same records are
known by the digest. NONCE is another one for each attempt, so no name comes twice: a file that no log names,
and that is old, will never be named.

**Names never leave their destination.** A record comes out of the metadata store: it is data, and no order.
So what it names is taken for a destination and a name below it, and the name must be the one that the file of
just this record has (``name_of_record``). Every name, whoever gives it, becomes a path in one place
(``Destination._path``). That refuses whatever is no plain name of two parts at most, and on a disk of this
machine a name that a symbolic link leads elsewhere.

**Whole or not there.** A file is written under a name that begins with a dot and ends with ``.tmp``, which
readers of directories pass over, synced where it lies on a disk of this machine, and then moved to its name,
and so are the directories on the way to it: copies are given up for a file that is there after a power cut.
Object stores have no rename; theirs is a copy that appears when it is complete.

Everything here blocks and is to be run in a thread. The errors of file systems are translated here:
``FileNotFoundError`` and every other ``OSError`` become ``ArchiveUnavailable``. So does a file that a record
names and that lies where pyarrow finds no files here; a destination that somebody has asked for is
``InvalidArgument`` then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
from pyarrow import fs

from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, InvalidArgument
from ledgerlog.model.archive import ArchiveRecord
from ledgerlog.redact import redact

__all__ = [
    "Destination",
    "StoredFile",
    "base_name",
    "delete_file",
    "file_name",
    "files_as_errors",
    "log_directory",
    "name_of_record",
    "offsets_of_name",
    "open_input",
    "recorded",
]


_NAME = re.compile(r"[^/\0]+(/[^/\0]+)?\Z")
_NONCE = re.compile(r"[0-9a-f]+\Z")
_CLUSTER_DIGITS = 16
_LOG_NAME_MAX = 200
"""Characters of a log's name in that of its directory; incarnation and cluster tell it from others."""


def log_directory(log: str, incarnation: int, cluster: str) -> str:
    """The directory of a log below a destination. ``cluster`` is the cluster's id."""
    # With the rest it must be a name for file systems, which have 255 bytes at most.
    return f"{log.replace('/', '~')[:_LOG_NAME_MAX]}-{incarnation:016x}-{cluster[:_CLUSTER_DIGITS]}"


def file_name(first_offset: int, end_offset: int, digest: bytes, nonce: str) -> str:
    """The name of a file in its log's directory."""
    return f"{first_offset:020d}-{end_offset:020d}-{digest[:8].hex()}-{nonce}.parquet"


def _divided(url: str) -> tuple[str, str]:
    """The URL of the destination that an archived file lies in, two levels above it, and its name there."""
    base, mark, query = url.partition("?")
    where, *name = base.rsplit("/", 2)
    return where + mark + query, "/".join(name)


def name_of_record(record: ArchiveRecord) -> tuple[str, str]:
    """The URL of the destination that a record's file lies in, and the file's name there. ArchiveCorrupt
    unless the name is one that a file of this record was given: what a record names is read, and deleted."""
    where, name = _divided(record.file)
    directory, _, file = name.partition("/")
    directory_start = log_directory(record.log, record.incarnation, "")
    file_start = file_name(record.first_offset, record.end_offset, record.digest, "").removesuffix(".parquet")
    nonce = file.removeprefix(file_start).removesuffix(".parquet")
    if (
        not directory.startswith(directory_start)
        or len(directory) > len(directory_start) + _CLUSTER_DIGITS
        or file != f"{file_start}{nonce}.parquet"
        or not _NONCE.match(nonce)
    ):
        raise ArchiveCorrupt(
            record.file,
            f"its record names no file that holds offsets {record.first_offset} to {record.end_offset - 1} "
            f"of log {record.log!r}: such a file is {directory_start}CLUSTER/{file_start}NONCE.parquet below "
            "its destination. Nothing was read or deleted",
        )
    return where, name


def offsets_of_name(name: str) -> tuple[int, int] | None:
    """The first offset of a file by the last part of its name, and the one after its last; None where the
    name is not one of ``file_name``."""
    first, _, rest = name.partition("-")
    end = rest.partition("-")[0]
    return (int(first), int(end)) if first.isdecimal() and end.isdecimal() else None


def base_name(url: str) -> str:
    """The last part of a file's name, by which it is known wherever it lies."""
    return url.partition("?")[0].rpartition("/")[2]


@attrs.frozen(kw_only=True)
class StoredFile:
    """A file of a destination."""

    name: str
    """Below the destination."""
    modified: datetime
    size: int


@contextmanager
def files_as_errors(url: str) -> Iterator[None]:
    """What goes wrong with a file inside, as ArchiveUnavailable."""
    try:
        yield
    except FileNotFoundError as cause:
        raise ArchiveUnavailable(url, "it is not there; bring it back to where it was") from cause
    except OSError as cause:
        raise ArchiveUnavailable(url, str(cause)) from cause
    except pa.ArrowException as cause:
        raise ArchiveUnavailable(url, str(cause)) from cause


@contextmanager
def recorded(url: str) -> Iterator[None]:
    """What a record names, inside, is ArchiveUnavailable where pyarrow knows no such place."""
    try:
        yield
    except InvalidArgument as cause:
        raise ArchiveUnavailable(url, f"it cannot be reached from here: {cause}") from cause


def _resolve(url: str) -> tuple[Any, str]:
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, NotImplementedError) as cause:
        # Without its cause: that quotes the URL with its password.
        raise InvalidArgument(f"{url!r} is not where pyarrow finds files: {cause}") from None
    return filesystem, path


def open_input(file: str | ArchiveRecord) -> Any:
    """The archived file that a record names, or that was just written under that URL, for reading at any
    place. ArchiveUnavailable; ArchiveCorrupt where a record names no file of its own."""
    url, (where, name) = (
        (file, _divided(file)) if isinstance(file, str) else (file.file, name_of_record(file))
    )
    with recorded(url):
        return Destination(where).open(name)


class Destination:
    """A directory for archives. InvalidArgument where pyarrow knows no such place; ArchiveUnavailable."""

    def __init__(self, where: str) -> None:
        if "://" not in where and not where.startswith("file:"):
            where = Path(where).absolute().as_uri()
        base, mark, query = where.partition("?")
        self.url = base.rstrip("/") + mark + query
        with files_as_errors(self.url):
            self._filesystem, self._root = _resolve(self.url)
        if "\0" in self._root:
            raise InvalidArgument(f"{where!r} is no place for files: a path has no zeros in it")
        self._is_local = isinstance(self._filesystem, fs.LocalFileSystem)

    def __repr__(self) -> str:
        return f"<Destination {redact(self.url)}>"

    def url_of(self, name: str) -> str:
        """The URL of a file by its name below here."""
        base, mark, query = self.url.partition("?")
        return f"{base}/{name}{mark}{query}"

    def name_of(self, url: str) -> str | None:
        """The inverse of ``url_of``; None for a file that lies elsewhere."""
        base, _, query = self.url.partition("?")
        path, _, its_query = url.partition("?")
        if not path.startswith(f"{base}/") or its_query != query:
            return None
        return path[len(base) + 1 :]

    def where(self) -> str:
        """What tells the place from others, in whatever words it was given: without options and passwords,
        and on disks of this machine without links. This asks the file system."""
        if self._is_local:
            return Path(os.path.realpath(self._root)).as_uri()
        scheme, mark, rest = self.url.partition("?")[0].partition("://")
        host, slash, path = rest.partition("/")
        user, at, host = host.rpartition("@")
        return f"{scheme}{mark}{user.partition(':')[0]}{at}{host}{slash}{path}"

    def holds(self, url: str) -> bool:
        """Whether a file lies below here, be it there or not. On disks of this machine also where the place
        is given in other words, through a link perhaps; this asks the file system."""
        if self.name_of(url) is not None:
            return True
        if not self._is_local or not url.startswith("file:"):
            return False
        try:
            _, path = _resolve(url)
        except InvalidArgument:
            return False  # A file of another machine, by its name.
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._root))

    def _path(self, name: str) -> str:
        """Where a name below the destination lies. ArchiveCorrupt for one that would lead out of it."""
        parts = name.split("/")
        if not _NAME.match(name) or "." in parts or ".." in parts:
            raise ArchiveCorrupt(self.url, f"{name!r} is no name of a file in a destination")
        path = f"{self._root.rstrip('/')}/{name}"
        if self._is_local:
            here, there = os.path.realpath(self._root), os.path.realpath(path)
            if there != os.path.join(here, name):
                raise ArchiveCorrupt(
                    self.url_of(name),
                    f"a symbolic link leads from there to {there}. Files are read and deleted in the "
                    f"destination itself only, which is {here}",
                )
        return path

    def open(self, name: str) -> Any:
        """A file, for reading at any place. ArchiveUnavailable."""
        with files_as_errors(self.url_of(name)):
            return self._filesystem.open_input_file(self._path(name))

    def create(self, name: str) -> Any:
        """A new file, its directory made where it is missing, open for writing."""
        with files_as_errors(self.url_of(name)):
            path = self._path(name)
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            return self._filesystem.open_output_stream(path)

    def publish(self, temporary: str, name: str) -> None:
        """Give a file that is written and closed its name. It is durable under that name afterwards."""
        with files_as_errors(self.url_of(name)):
            if self._is_local:
                _sync(self._path(temporary))
            self._filesystem.move(self._path(temporary), self._path(name))
            if self._is_local:
                _sync_directories(Path(self._path(name)).parent)

    def delete(self, name: str) -> bool:
        """Delete a file; whether there was one."""
        try:
            self._filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            return False
        except (OSError, pa.ArrowException) as cause:
            raise ArchiveUnavailable(self.url_of(name), str(cause)) from cause
        return True

    def list(self, directory: str) -> list[StoredFile]:
        """The files right below a directory of the destination; none where there is none."""
        with files_as_errors(self.url_of(directory)):
            selector = fs.FileSelector(self._path(directory), allow_not_found=True)
            found = self._filesystem.get_file_info(selector)
        return sorted(
            (
                StoredFile(
                    name=f"{directory}/{info.base_name}",
                    modified=info.mtime or datetime.now(UTC),
                    size=info.size or 0,
                )
                for info in found
                if info.type == fs.FileType.File
            ),
            key=lambda file: file.name,
        )


def delete_file(record: ArchiveRecord) -> bool:
    """Delete the file that a record names; whether there was one. ArchiveUnavailable; ArchiveCorrupt where it
    names no file of its own, and nothing is deleted."""
    where, name = name_of_record(record)
    with recorded(record.file):
        return Destination(where).delete(name)


def _sync_directories(directory: Path) -> None:
    """Make the names on the way to a file durable. Any of these directories may be new, made by this job or
    by another just now, and the file is lost with the name of any of them."""
    _sync(str(directory))
    for above in directory.parents:
        # One that cannot be written to has got no directory for an archive.
        if os.access(above, os.W_OK):
            _sync(str(above))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
