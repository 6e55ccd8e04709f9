"""The file of a metadata backup. It is written whole or not at all. It is read only if no part is damaged.

    offset  size  field
         0     8  magic, b"LLBACKUP"
         8     4  format, 1
        12     4  CRC-32 of the 12 bytes before
        16     -  records

A record is the size of its content (4 bytes), the CRC-32 of its content (4 bytes), and the content, whose
first byte is its kind. Numbers are little endian.

    H   first: a CBOR map: cluster (its id), made_ms (wall clock)
    N   a node: size of its path (2 bytes), path, value. If a path comes twice, the later record counts
    E   last: a CBOR map: nodes (the number of N records), counters (text -> the highest number given out, -1
        if none), sha256 (of everything in the file before this record). Nothing follows it

A file is written under another name in the same directory, synced, and linked. ``open_backup`` reads the
whole file before it returns. If the file is cut short or any bit is flipped, it raises an error with the
offset. Reading and writing take memory for one record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NoReturn

import attrs

from ledgerlog.errors import IncompatibleVersion, InvalidArgument, StorageCorrupt, StorageError
from ledgerlog.limits import METADATA_BYTES_MAX, METADATA_PATH_BYTES_MAX
from ledgerlog.meta.arguments import check_path
from ledgerlog.model.codec import decode_record_untrusted, encode_record

__all__ = ["Backup", "BackupWriter", "open_backup", "write_backup"]

_MAGIC = b"LLBACKUP"
_FORMAT = 1
_HEAD = struct.Struct("<8sII")
_RECORD = struct.Struct("<II")
_PATH = struct.Struct("<H")
_CONTENT_MAX = METADATA_BYTES_MAX + METADATA_PATH_BYTES_MAX + 64


@attrs.frozen
class Backup:
    """A backup file that was read to its end and is not damaged."""

    path: str
    """The path of the file."""
    cluster: str
    """The id of the cluster that was saved."""
    made_ms: int
    """When the cluster was saved, in milliseconds since 1970."""
    nodes: int
    """The number of nodes in the backup."""
    counters: Mapping[str, int]
    """For each counter, the highest number that was given out; -1 if none."""

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yield path and value of each node.

        Raises:
            StorageCorrupt: The file was damaged since it was opened.
        """
        with _opened(self.path) as file:
            for _, content in _records(file, self.path):
                if content[:1] == b"N":
                    yield _node(content)


class BackupWriter:
    """Writes the records of one file. ``write_backup`` makes it."""

    def __init__(self, file: BinaryIO) -> None:
        self.nodes = 0
        self._file = file
        self._digest = hashlib.sha256()
        head = _HEAD.pack(_MAGIC, _FORMAT, 0)[:-4]
        self._write(head + struct.pack("<I", zlib.crc32(head)))

    def begin(self, cluster: str, made_ms: int) -> None:
        """Write the first record."""
        self._put(b"H" + encode_record({"cluster": cluster, "made_ms": made_ms}))

    def node(self, path: str, value: bytes) -> None:
        """Write a node."""
        self.nodes += 1
        name = path.encode()
        self._put(b"N" + _PATH.pack(len(name)) + name + value)

    def end(self, counters: Mapping[str, int]) -> None:
        """Write the last record."""
        fields = {"nodes": self.nodes, "counters": dict(counters), "sha256": self._digest.digest()}
        self._put(b"E" + encode_record(fields))

    def _put(self, content: bytes) -> None:
        self._write(_RECORD.pack(len(content), zlib.crc32(content)))
        self._write(content)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


@contextlib.contextmanager
def write_backup(path: str) -> Iterator[BackupWriter]:
    """Write a backup file in the body. The file appears when the body ends without an error.

    Raises:
        InvalidArgument: The file exists already. It stays as it is.
        StorageError: The file system refuses.
    """
    if os.path.lexists(path):
        raise InvalidArgument(f"{path} already exists, and a backup overwrites nothing: give another name")
    temporary = f"{path}.{secrets.token_hex(8)}.new"
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                yield BackupWriter(file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # Unlike a rename, a link never replaces a file.
        finally:
            os.unlink(temporary)
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StorageError(f"the backup {path} cannot be written: {error}") from error


def _damaged(path: str, offset: int | None, why: str) -> StorageCorrupt:
    return StorageCorrupt(path, offset, why, advice="use another backup file")


def open_backup(path: str) -> Backup:
    """Read and check a whole backup file.

    Raises:
        StorageCorrupt: The file is cut short or damaged, or it is not a backup.
        IncompatibleVersion: A newer version has written it.
        StorageError: It cannot be read.
    """

    def fail(why: str) -> NoReturn:
        raise _damaged(path, None, why)

    digest = hashlib.sha256()
    nodes = 0
    header = end = None
    with _opened(path) as file:
        digest.update(_read_head(file, path))
        for offset, content in _records(file, path):
            kind = content[:1]
            if end is not None:
                raise _damaged(path, offset, "there are more bytes after the end of the backup")
            if (header is None) != (kind == b"H") or kind not in (b"H", b"N", b"E"):
                raise _damaged(path, offset, "a record that is out of place")
            if kind == b"H":
                fields = decode_record_untrusted(content[1:], "the head of the backup", fail)
                header = fields.get("cluster", str), fields.integer("made_ms")
            elif kind == b"N":
                nodes += 1
                try:
                    check_path(_node(content)[0])
                except (InvalidArgument, UnicodeDecodeError, struct.error) as error:
                    raise _damaged(path, offset, f"a node without a proper path: {error}") from error
            else:
                end = decode_record_untrusted(content[1:], "the end of the backup", fail)
                if end.get("sha256", bytes) != digest.digest() or end.integer("nodes") != nodes:
                    raise _damaged(path, offset, "its end does not match the records before it")
            digest.update(_RECORD.pack(len(content), zlib.crc32(content)))
            digest.update(content)
    if header is None or end is None:
        fail("it is cut short: the end of the backup is missing")
    counters = end.get("counters", dict)
    if not all(type(name) is str and type(last) is int and last >= -1 for name, last in counters.items()):
        fail("its counters do not map names to numbers")
    return Backup(path, *header, nodes, counters)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise StorageError(f"the backup {path} cannot be read: {error}") from error


def _read_head(file: BinaryIO, path: str) -> bytes:
    head = file.read(_HEAD.size)
    if head[:8] != _MAGIC:
        raise _damaged(path, 0, "this is not a backup of a metadata store")
    if len(head) < _HEAD.size or _HEAD.unpack(head)[2] != zlib.crc32(head[:12]):
        raise _damaged(path, 8, "the head of the backup is damaged")
    version = _HEAD.unpack(head)[1]
    if version != _FORMAT:
        raise IncompatibleVersion(path, (version, version), (_FORMAT, _FORMAT))
    return head


def _records(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of each record."""
    offset = _HEAD.size
    file.seek(offset)
    while head := file.read(_RECORD.size):
        if len(head) < _RECORD.size:
            raise _damaged(path, offset, "it is cut short within a record")
        size, checksum = _RECORD.unpack(head)
        if not 0 < size <= _CONTENT_MAX:
            raise _damaged(path, offset, f"a record of {size} bytes")
        content = file.read(size)
        if len(content) < size:
            raise _damaged(path, offset, "it is cut short within a record")
        if zlib.crc32(content) != checksum:
            raise _damaged(path, offset, "a record fails its checksum")
        yield offset, content
        offset += _RECORD.size + size


def _node(content: bytes) -> tuple[str, bytes]:
    (size,) = _PATH.unpack_from(content, 1)
    start = 1 + _PATH.size
    return content[start : start + size].decode(), content[start + size :]
