"""Compact bytes: zstd frames, and columns of numbers as bytes.

zstd packs a quarter of a megabyte in half a millisecond and unpacks it in a fifth of that. The compression
level is the fastest of the ordinary levels, because a caller waits for the packing.

Unpacking takes untrusted bytes. The caller knows the size of the result, and has checked it against the limit
for an entry, a table or a list. The frame must claim exactly that size, and must end where the bytes end. The
frame is unpacked in one step into a buffer of that size, never by a stream. The claimed size alone is not a
bound: 64 KB of blocks that repeat a byte can claim 4 MiB, and a streaming decoder would write 2 GiB before it
noticed.

A column is little-endian 64-bit numbers. Its *planes* are the lowest bytes of all its numbers, then the next
higher bytes of all, and so on. Numbers of similar size have planes that are almost constant. Such planes pack
to a fifth less, three times as fast.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NoReturn

import zstandard

__all__ = ["number_bytes", "numbers", "pack", "planes", "unpack", "unplaned"]

_LEVEL = 1


def pack(data: bytes) -> bytes:
    """Pack bytes into one zstd frame that says the size of its content."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)


def unpack(data: bytes, size: int, fail: Callable[[str], NoReturn]) -> bytes:
    """Unpack a frame of exactly ``size`` bytes.

    This takes about ``size`` bytes of memory, even if a hostile frame would unpack to more.

    Args:
        data: The frame.
        size: The expected size of the result. The caller has checked that it is acceptable.
        fail: Called with the reason if ``data`` is not a frame of that size. It must raise.
    """
    if size < 1:
        fail("nothing is packed")  # ``pack`` never gets empty bytes, and zstandard ignores such a frame.
    try:
        if zstandard.frame_content_size(data) != size:
            fail(f"its packed part does not say that it holds {size} bytes")
        unpacked = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as cause:
        fail(f"its packed part is not one whole frame: {cause}")
    if len(unpacked) != size:
        fail(f"its packed part holds {len(unpacked)} bytes, not {size}")
    return unpacked


def number_bytes(column: Sequence[int]) -> bytes:
    """Encode a column as bytes."""
    values = array("q", column)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def numbers(data: bytes) -> Sequence[int]:
    """Decode the bytes of ``number_bytes``. Their length must be a multiple of 8."""
    values = array("q", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def planes(data: bytes) -> bytes:
    """Reorder a column's bytes by planes."""
    return b"".join(data[plane::8] for plane in range(8))


def unplaned(data: bytes) -> bytes:
    """Undo ``planes``."""
    count = len(data) // 8
    column = bytearray(len(data))
    for plane in range(8):
        column[plane::8] = data[plane * count : (plane + 1) * count]
    return bytes(column)
