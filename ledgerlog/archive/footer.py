"""The end of a Parquet file. It says where the row groups lie and which offsets and times they hold.

    footer   Thrift          length   4 bytes, little-endian          PAR1

Pages carry checksums, but the footer has none, and pyarrow decodes a damaged footer without a check. If one
bit is wrong, pyarrow may give bounds that skip records, or it may end the whole process. So the metadata
record of the file (``model.archive``) keeps a digest of the end: SHA-256 of the three parts above. Readers
decode the end only if its digest is the recorded one.

Everything here blocks.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ledgerlog.archive.destinations import files_as_errors, open_input
from ledgerlog.errors import ArchiveCorrupt
from ledgerlog.limits import KIB, MIB
from ledgerlog.model.archive import ArchivedFile

__all__ = ["digest_of", "end_of", "read_end", "read_recorded_end"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_READ_BYTES = 64 * KIB
_END_BYTES_MAX = 64 * MIB
"""The largest allowed size of an end. A file has such an end if it has some hundred thousand row groups."""


def read_end(stream: Any) -> bytes:
    """Read the end of an open file. Errors of the stream pass through.

    Raises:
        ValueError: The file does not end as a Parquet file does.
    """
    size = stream.size()
    start = max(0, size - _READ_BYTES)
    stream.seek(start)
    data: bytes = stream.read(size - start)
    if len(data) < _TAIL_BYTES or data[-4:] != _MAGIC:
        raise ValueError("it does not end as Parquet files do")
    length = int.from_bytes(data[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
    if length > min(size, _END_BYTES_MAX):
        raise ValueError(f"its end would have {length} bytes")
    if length > len(data):
        stream.seek(size - length)
        data = stream.read(length)
        if len(data) != length:
            raise ValueError(f"it gives {len(data)} of the {length} bytes of its end")
    return data[-length:]


def read_recorded_end(stream: Any, record: ArchivedFile) -> bytes:
    """Read the end of the open file of a record. Errors of the stream pass through.

    Raises:
        ValueError: It is not the end that was recorded.
    """
    end = read_end(stream)
    if digest_of(end) != record.footer:
        raise ValueError("its end is damaged, or it is not the file that was archived")
    return end


def digest_of(end: bytes) -> bytes:
    """Return the digest of an end, as a file's record keeps it."""
    return hashlib.sha256(end).digest()


def end_of(file: str | ArchivedFile) -> tuple[int, bytes]:
    """Return the size of a file and the digest of its end.

    Args:
        file: The file's record, or its URL.

    Raises:
        ArchiveUnavailable: The file is not there or cannot be read.
        ArchiveCorrupt: The file does not end as a Parquet file does, or the record names a file that cannot
            be its own.
    """
    url = file if isinstance(file, str) else file.file
    with open_input(file) as stream, files_as_errors(url):
        try:
            return int(stream.size()), digest_of(read_end(stream))
        except ValueError as cause:
            raise ArchiveCorrupt(url, f"it is damaged: {cause}") from cause
