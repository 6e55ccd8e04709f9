"""Bytes that are kept small: zstd frames, and columns of numbers as bytes.

zstd because a quarter of a megabyte costs half a millisecond to pack and a fifth of that to unpack; one
level, the fastest of the ordinary ones, since what is packed here is packed while somebody waits.

Unpacking is for untrusted bytes. The caller knows how much it unpacks, and has held that to the bound of what
it is (an entry, a table, a list). The frame must claim just that size, it is unpacked in one step into room
for that size and never by a stream, and it must end where the bytes do. What a frame claims is no bound by
itself: 64 KB of blocks that repeat a byte can claim 4 MiB, and a stream would give 2 GiB before it noticed.

A column is little-endian 64-bit numbers. Its *planes* are the lowest bytes of all its numbers, then the
next, and so on: numbers that are of similar size have planes that are almost constant, which packs a fifth
better and three times as fast.
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
    """One zstd frame that says the size of its content."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)


def unpack(data: bytes, size: int, fail: Callable[[str], NoReturn]) -> bytes:
    """The ``size`` bytes in a frame; ``fail`` is called, and raises, where it is no frame of so many. Takes
    memory for about ``size`` bytes, whatever the frame holds."""
    if size < 1:
        fail("nothing is packed")  # No frame is written for nothing; the library looks at none, either.
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
    """A column in bytes."""
    values = array("q", column)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def numbers(data: bytes) -> Sequence[int]:
    """The inverse; ``data`` is a whole number of numbers long."""
    values = array("q", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def planes(data: bytes) -> bytes:
    """A column's bytes by planes."""
    return b"".join(data[plane::8] for plane in range(8))


def unplaned(data: bytes) -> bytes:
    """The inverse."""
    count = len(data) // 8
    column = bytearray(len(data))
    for plane in range(8):
        column[plane::8] = data[plane * count : (plane + 1) * count]
    return bytes(column)
