"""Compression of bytes that are kept: one zstd frame, and nothing that the other end must guess.

zstd because a quarter of a megabyte costs half a millisecond to pack and a fifth of that to unpack; one
level, the fastest of the ordinary ones, since what is packed here is packed while somebody waits.

Unpacking is for untrusted bytes: the size that the frame claims is looked at before anything is built, it
must be what the caller says it is, and the frame must end where the bytes do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import zstandard

__all__ = ["pack", "unpack"]

_LEVEL = 1


def pack(data: bytes) -> bytes:
    """One zstd frame that says the size of its content."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)


def unpack(data: bytes, size: int, fail: Callable[[str], NoReturn]) -> bytes:
    """The ``size`` bytes in a frame; ``fail`` is called, and raises, where it is no frame of so many."""
    try:
        if zstandard.frame_content_size(data) != size:
            fail(f"its packed part does not say that it holds {size} bytes")
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        unpacked = unpacker.decompress(data)
    except zstandard.ZstdError as cause:
        fail(f"its packed part is damaged: {cause}")
    if len(unpacked) != size or not unpacker.eof or unpacker.unused_data:
        fail("its packed part is not one whole frame")
    return unpacked
