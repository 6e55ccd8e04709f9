"""Where archived files lie: a directory in any place that ``pyarrow.fs`` reaches.

A destination is a path on this machine, or a URL that pyarrow knows (``file:``, ``s3:``, ``gs:``, ``hdfs:``,
``abfs:``). Each log has a directory below it, and each archived part of the log has a file there:

    LOG-INCARNATION-CLUSTER/FIRST-END-DIGEST-NONCE.parquet

- LOG is the log's name with ``~`` for each slash, cut to 200 characters.
- INCARNATION is 16 hexadecimal digits.
- CLUSTER is the first 16 digits of the cluster's id, so several clusters may share a destination.
- FIRST and END are offsets of 20 digits.
- DIGEST is the first 16 hexadecimal digits of the digest. Files with the same records have the same digest.
- NONCE is new for each attempt, so no name is used twice. If no metadata record names an old file now, none
  ever will.

**Names never leave their destination.** This module does not trust a record from the metadata store. It
splits the URL in the record into a destination and a name below it. It accepts the name only if the file of
this very record can have that name (``name_of_record``). One method turns every name into a path
(``Destination._path``). A name must be a plain name of one or two parts, or name a file in ``metadata/`` of a
log's directory; ``_path`` refuses every other name. On a local disk ``_path`` also refuses a name that leads
elsewhere through a symbolic link.

**Whole or not there.** A job writes a file under a name that begins with a dot and ends with ``.tmp``;
readers of directories skip these names. On a local disk the job then syncs the file, moves it to its final
name, and syncs the directories above it. Bookies give up their copies for this file, so it must survive a
power cut. Object stores have no rename: there, moving is a copy, and the copy appears once it is complete.

**Object stores that do not answer.** By default, pyarrow waits minutes for the answer of a dead server, and a
process that ends waits with it. So each request has ``limits.ARCHIVE_REQUEST_TIMEOUT_S``, and is sent
``limits.ARCHIVE_REQUEST_ATTEMPTS`` times at most. All of this takes less than the deadline of a whole step,
``limits.ARCHIVE_READ_TIMEOUT_S``.

Everything here blocks; run it in a thread. This module translates the errors of file systems:
``FileNotFoundError`` and every other ``OSError`` become ``ArchiveUnavailable``. If pyarrow cannot find files
at a URL, the error depends on the origin of the URL: ``ArchiveUnavailable`` if a record names it,
``InvalidArgument`` if a caller asked for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
from pyarrow import fs

from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, InvalidArgument
from ledgerlog.limits import ARCHIVE_REQUEST_ATTEMPTS, ARCHIVE_REQUEST_TIMEOUT_S
from ledgerlog.model.archive import ArchivedFile, url_below
from ledgerlog.redact import redact

__all__ = [
    "Destination",
    "TABLE_DIRECTORY",
    "StoredFile",
    "base_name",
    "delete_file",
    "destination_url",
    "file_name",
    "files_as_errors",
    "lies_at",
    "log_directory",
    "name_of_record",
    "offsets_of_name",
    "open_input",
    "recorded",
    "where_of",
]


TABLE_DIRECTORY = "metadata"
"""The directory, in a log's directory, with the own files of the log's table."""
_NAME = re.compile(rf"[^/\0]+(/({TABLE_DIRECTORY}/)?[^/\0]+)?\Z")
"""The allowed names: a file in a log's directory, a file of the log's table (``archive.table``), or one plain
name."""
_NONCE = re.compile(r"[0-9a-f]+\Z")
_CLUSTER_DIGITS = 16
_LOG_NAME_MAX = 200
"""How many characters of the log's name a directory's name has at most. Incarnation and cluster make the
directory's name unique."""


def log_directory(log: str, incarnation: int, cluster: str) -> str:
    """Return the name of a log's directory below a destination. ``cluster`` is the cluster's id."""
    # File systems allow names of at most 255 bytes, and the name has more parts.
    return f"{log.replace('/', '~')[:_LOG_NAME_MAX]}-{incarnation:016x}-{cluster[:_CLUSTER_DIGITS]}"


def file_name(first_offset: int, end_offset: int, digest: bytes, nonce: str) -> str:
    """Return the name of a file in its log's directory."""
    return f"{first_offset:020d}-{end_offset:020d}-{digest[:8].hex()}-{nonce}.parquet"


def _divided(url: str) -> tuple[str, str]:
    """Split a file's URL into the URL of its destination, two levels above it, and its name there."""
    base, mark, query = url.partition("?")
    where, *name = base.rsplit("/", 2)
    return where + mark + query, "/".join(name)


def name_of_record(record: ArchivedFile) -> tuple[str, str]:
    """Return the URL of the destination of a record's file, and the file's name below it.

    Raises:
        ArchiveCorrupt: The record names a file that cannot be its own. Callers read and delete the named
            file, so only the record's own file may pass.
    """
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
    """Return a file's first offset and the offset after its last one, from the last part of the file's name.

    None if ``file_name`` does not make names of this form.
    """
    first, _, rest = name.partition("-")
    end = rest.partition("-")[0]
    return (int(first), int(end)) if first.isdecimal() and end.isdecimal() else None


def base_name(url: str) -> str:
    """Return the last part of a file's name, which identifies the file at any destination."""
    return url.partition("?")[0].rpartition("/")[2]


@attrs.frozen(kw_only=True)
class StoredFile:
    """A file at a destination."""

    name: str
    """The name below the destination."""
    modified: datetime
    """When it was last changed."""
    size: int
    """Its size in bytes."""


@contextmanager
def files_as_errors(url: str) -> Iterator[None]:
    """Raise the errors of file systems, inside the body, as ArchiveUnavailable."""
    try:
        yield
    except FileNotFoundError as cause:
        raise ArchiveUnavailable(url, "it is missing; put it back where it was") from cause
    except (OSError, pa.ArrowException) as cause:
        raise ArchiveUnavailable(url, f"{cause}; mend the cause, then try again") from cause


@contextmanager
def recorded(url: str) -> Iterator[None]:
    """Raise ArchiveUnavailable if the body uses a URL from a record that pyarrow does not know."""
    try:
        yield
    except InvalidArgument as cause:
        raise ArchiveUnavailable(
            url, f"it cannot be reached from here: {cause}; mend that, or use a machine that reaches it"
        ) from cause


def _resolve(url: str) -> tuple[Any, str]:
    if url.startswith("destination:"):
        raise InvalidArgument(f"the metadata store does not say where {url!r} is")
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, NotImplementedError) as cause:
        # Drop the cause: it quotes the URL with its password.
        raise InvalidArgument(f"pyarrow finds no files at {url!r}: {cause}") from None
    if "\0" in path:
        raise InvalidArgument(f"{url!r} is not a path: it contains a zero byte")
    return _with_deadlines(filesystem), path


def _with_deadlines(filesystem: Any) -> Any:
    """Return the same file system, with a deadline for each request, if it is an object store.

    URLs have no options for these deadlines. So take all options of the file system, as pickle does, and make
    another one.
    """
    if filesystem.type_name == "s3":
        _, (options,) = filesystem.__reduce__()
        options["connect_timeout"] = options["request_timeout"] = ARCHIVE_REQUEST_TIMEOUT_S
        return fs.S3FileSystem(
            **options, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ARCHIVE_REQUEST_ATTEMPTS)
        )
    if filesystem.type_name == "gcs":
        _, (options,) = filesystem.__reduce__()
        options["retry_time_limit"] = options["retry_time_limit"] or timedelta(
            seconds=ARCHIVE_REQUEST_TIMEOUT_S
        )
        return fs.GcsFileSystem(**options)
    return filesystem


def where_of(url: str) -> str:
    """Return the canonical URL of a destination, as ``Destination.where`` does. It need not be reachable.

    Raises:
        InvalidArgument: The URL names a file system of this machine, and has no path.
    """
    if url.startswith("file:"):
        return Path(os.path.realpath(_resolve(url)[1])).as_uri()
    scheme, mark, rest = url.partition("?")[0].rstrip("/").partition("://")
    if not mark:
        return Path(os.path.realpath(url)).as_uri()
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    return f"{scheme}{mark}{user.partition(':')[0]}{at}{host}{slash}{path}"


def destination_url(file: str) -> str:
    """Return the URL of the destination of a file, two levels above it."""
    return _divided(file)[0]


def lies_at(file: str, where: str) -> bool:
    """Whether a file lies at the destination with a canonical URL (``where_of``), by the file's URL.

    The file need not exist. This asks the file system.
    """
    try:
        return where_of(destination_url(file)) == where
    except InvalidArgument:
        return False  # A record of version 0.1 may name a place that is not known on this machine.


def open_input(file: str | ArchivedFile) -> Any:
    """Open an archived file for random access.

    Args:
        file: The record that names the file, or the URL under which it was just written.

    Raises:
        ArchiveUnavailable: The file is not there or cannot be read.
        ArchiveCorrupt: The record names a file that cannot be its own.
    """
    url, (where, name) = (
        (file, _divided(file)) if isinstance(file, str) else (file.file, name_of_record(file))
    )
    with recorded(url):
        return Destination(where).open(name)


class Destination:
    """A directory for archives.

    Args:
        where: A path on this machine, or a URL that ``pyarrow.fs`` knows.

    Raises:
        InvalidArgument: pyarrow cannot find files at ``where``.
        ArchiveUnavailable: The file system failed.
    """

    def __init__(self, where: str) -> None:
        if "://" not in where and not where.startswith("file:"):
            where = Path(where).absolute().as_uri()
        base, mark, query = where.partition("?")
        self.url = base.rstrip("/") + mark + query
        with files_as_errors(self.url):
            self._filesystem, self._root = _resolve(self.url)
        self._is_local = isinstance(self._filesystem, fs.LocalFileSystem)

    def __repr__(self) -> str:
        return f"<Destination {redact(self.url)}>"

    def url_of(self, name: str) -> str:
        """Return the URL of a file, by its name below the destination."""
        return url_below(self.url, name)

    def name_of(self, url: str) -> str | None:
        """Return the name of a file below the destination, by its URL; None if the file lies elsewhere."""
        base, _, query = self.url.partition("?")
        path, _, its_query = url.partition("?")
        if not path.startswith(f"{base}/") or its_query != query:
            return None
        return path[len(base) + 1 :]

    def local_path(self, name: str) -> str | None:
        """Return the path of a name below the destination; None if that is not on a local file system.

        Raises:
            ArchiveCorrupt: The name leads out of the destination.
        """
        return self._path(name) if self._is_local else None

    def table_url(self, name: str) -> str:
        """Return the URL of a name below the destination, in the form that tables have.

        The URL has no options and no passwords. On a local disk the URL is ``file://`` and then the path,
        without symbolic links. The path is not percent-encoded, because other programs do not decode ``%20``.
        This asks the file system.
        """
        if self._is_local:
            return f"file://{os.path.realpath(self._root)}/{name}"
        scheme, mark, rest = self.url.partition("?")[0].partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}/{name}"

    def table_properties(self) -> dict[str, str]:
        """Return the properties with which pyiceberg finds the files of a table in this object store.

        They have no credentials, which pyiceberg takes from its configuration or from the environment. Empty
        if this is not S3.
        """
        if self._filesystem.type_name != "s3":
            return {}
        _, (options,) = self._filesystem.__reduce__()
        endpoint = options["endpoint_override"]
        if endpoint and "://" not in endpoint:
            endpoint = f"{options['scheme']}://{endpoint}"
        found = {
            "s3.endpoint": endpoint,
            "s3.region": options["region"],
            "s3.connect-timeout": f"{options['connect_timeout']:g}",
            "s3.request-timeout": f"{options['request_timeout']:g}",
            "s3.retry-strategy-impl": "pyarrow.fs.AwsStandardS3RetryStrategy",
        }
        return {name: value for name, value in found.items() if value}

    def where(self) -> str:
        """Return the canonical URL of the destination. It is the same for all spellings of ``where``.

        The URL has no options and no passwords, and on a local disk no symbolic links. This asks the file
        system.
        """
        return where_of(self.url)

    def is_at(self, url: str) -> bool:
        """Whether this destination and the destination at another URL are the same place. This asks the file
        system."""
        if url == self.url:
            return True
        if not self._is_local or not url.startswith("file:"):
            return False
        try:
            return os.path.samefile(self._root, _resolve(url)[1])
        except (OSError, InvalidArgument):
            return False

    def holds(self, url: str) -> bool:
        """Whether a URL lies below this destination. The file need not exist.

        On a local disk this also finds a URL that names the destination in another way, for example through a
        symbolic link. This asks the file system.
        """
        if self.name_of(url) is not None:
            return True
        if not self._is_local or not url.startswith("file:"):
            return False
        try:
            _, path = _resolve(url)
        except InvalidArgument:
            return False  # The name says that the file lies on another machine.
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._root))

    def _path(self, name: str) -> str:
        """Return the path of a name below the destination.

        Raises:
            ArchiveCorrupt: The name would lead out of the destination.
        """
        parts = name.split("/")
        if not _NAME.match(name) or "." in parts or ".." in parts:
            raise ArchiveCorrupt(self.url, f"{name!r} is not the name of a file in a destination")
        path = f"{self._root.rstrip('/')}/{name}"
        if self._is_local:
            here, there = os.path.realpath(self._root), os.path.realpath(path)
            if there != os.path.join(here, name):
                raise ArchiveCorrupt(
                    self.url_of(name),
                    f"a symbolic link leads from there to {there}. Files are only read and deleted inside "
                    f"the destination itself, which is {here}",
                )
        return path

    def expect_answer(self) -> None:
        """Ask the file system about a file that is never there.

        Raises:
            ArchiveUnavailable: The file system failed.
        """
        with files_as_errors(self.url):
            self._filesystem.get_file_info(self._path("_ledgerlog-nothing"))

    def open(self, name: str) -> Any:
        """Open a file for random access.

        Raises:
            ArchiveUnavailable: The file is not there or cannot be read.
            ArchiveCorrupt: The name leads out of the destination.
        """
        with files_as_errors(self.url_of(name)):
            return self._filesystem.open_input_file(self._path(name))

    def create(self, name: str) -> Any:
        """Create a file and open it for writing. A missing directory is created first.

        Raises:
            ArchiveUnavailable: The file system failed.
            ArchiveCorrupt: The name leads out of the destination.
        """
        with files_as_errors(self.url_of(name)):
            path = self._path(name)
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            return self._filesystem.open_output_stream(path)

    def publish(self, temporary: str, name: str) -> None:
        """Move a complete, closed file to its final name. Afterwards the file is durable under that name.

        Args:
            temporary: The name under which the file was written.
            name: The final name.

        Raises:
            ArchiveUnavailable: The file system failed. The file may have either name.
            ArchiveCorrupt: A name leads out of the destination.
        """
        with files_as_errors(self.url_of(name)):
            if self._is_local:
                _sync(self._path(temporary))
            self._filesystem.move(self._path(temporary), self._path(name))
            if self._is_local:
                _sync_directories(Path(self._path(name)).parent)

    def delete(self, name: str) -> bool:
        """Delete a file; return whether it was there.

        Raises:
            ArchiveUnavailable: The file system failed. The file may be gone or not.
            ArchiveCorrupt: The name leads out of the destination. Nothing was deleted.
        """
        with files_as_errors(self.url_of(name)):
            try:
                self._filesystem.delete_file(self._path(name))
            except FileNotFoundError:
                return False
        return True

    def list(self, directory: str) -> list[StoredFile]:
        """List the files directly in a directory of the destination; empty if there is no such directory.

        Raises:
            ArchiveUnavailable: The file system failed.
            ArchiveCorrupt: The name leads out of the destination.
        """
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


def delete_file(record: ArchivedFile) -> bool:
    """Delete the file that a record names; return whether it was there.

    Raises:
        ArchiveUnavailable: The file system failed. The file may be gone or not.
        ArchiveCorrupt: The record names a file that cannot be its own. Nothing was deleted.
    """
    where, name = name_of_record(record)
    with recorded(record.file):
        return Destination(where).delete(name)


def _sync_directories(directory: Path) -> None:
    """Make all directory names on the path to a file durable.

    This job or another job may have made any of these directories just now. If a power cut loses one of the
    directories, the file is lost too.
    """
    _sync(str(directory))
    for above in directory.parents:
        # If this process cannot write to a directory, it made no directory of an archive there.
        if os.access(above, os.W_OK):
            _sync(str(above))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
