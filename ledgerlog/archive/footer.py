"""The end of a Parquet file: where its groups lie, which offsets and moments they hold, and what it is.

    footer   Thrift          length   4 bytes, little-endian          PAR1

Pages carry checksums, and this has none. Nor does what decodes it doubt it: of a footer with one bit wrong it
gives bounds that lead past records, or it ends the whole process. So the digest of a file's end, SHA-256 of
the three parts above, is kept in the file's record (``model.archive``), and the end is decoded only when it
is the one that was recorded.

Everything here blocks.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ledgerlog.archive.destinations import files_as_errors, open_input
from ledgerlog.errors import ArchiveCorrupt
from ledgerlog.limits import KIB, MIB
from ledgerlog.model.archive import ArchiveRecord

__all__ = ["digest_of", "end_of", "read_end"]

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_READ_BYTES = 64 * KIB
_END_BYTES_MAX = 64 * MIB
"""Some hundred thousand groups have as much."""


def read_end(stream: Any) -> bytes:
    """The end of an open file. ValueError where it is none; errors of the stream pass."""
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


def digest_of(end: bytes) -> bytes:
    """What a record says of an end."""
    return hashlib.sha256(end).digest()


def end_of(file: str | ArchiveRecord) -> tuple[int, bytes]:
    """The size of a file, by its record or its URL, and the digest of its end. ArchiveUnavailable,
    ArchiveCorrupt."""
    url = file if isinstance(file, str) else file.file
    with open_input(file) as stream, files_as_errors(url):
        try:
            return int(stream.size()), digest_of(read_end(stream))
        except ValueError as cause:
            raise ArchiveCorrupt(url, f"it is damaged: {cause}") from cause
