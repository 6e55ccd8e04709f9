"""Joined bytes: split them into their pieces, or compute the CRC-32C of each piece.

Such pieces are the payloads of a frame, the records of a batch and the pages of a journal's block. One
function computes the checksums of all pieces together. For small entries, this is most of the work that a
bookie does with their bytes. So the function exists twice, with the same results:

- in C (``_pieces.c``). It is used if it was compiled when ledgerlog was installed. It takes 0.01 µs for a
  piece of 100 bytes;
- in Python, over C iterators. It is used otherwise, and if the environment variable ``LEDGERLOG_PURE`` is set
  and not empty. It takes 0.2 to 0.5 µs.
"""

from __future__ import annotations

import functools
import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator

from google_crc32c import extend

from ledgerlog.limits import KIB

_CONTRACT = 1
"""Raise this number, and the one in ``_pieces.c``, whenever that file changes what it takes or returns. An
editable installation may still have the module of an older source. That module is then not used."""

try:
    from ledgerlog.wire import _pieces
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = getattr(_pieces, "CONTRACT", None) == _CONTRACT and not _pieces.IS_SWITCHED_OFF

__all__ = ["IS_COMPILED", "each_piece", "piece_checksums", "split_pieces"]

_MASK = 0xFFFFFFFF
_PIECE_BYTES = 32 * KIB
"""How many bytes ``each_piece`` splits at a time. A larger value would not be faster. If memory of this size
is freed, the allocator keeps it. So it does not ask the system for memory at each frame."""


def piece_checksums_in_python(
    seeds: int | array[int],
    data: bytes | memoryview,
    lengths: array[int],
    pieces: Iterable[bytes] | None = None,
) -> array[int]:
    """Return the CRC-32C of each piece.

    Args:
        seeds: The value from which each CRC starts. If it is a number, it is the seed of the first piece, and
            the seed of each following piece is one more, modulo 2**32.
        data: The joined pieces.
        lengths: The length of each piece, as an array of unsigned 32-bit numbers.
        pieces: The pieces themselves, if you have them. Then the Python function need not split the data.

    Raises:
        ValueError: The lengths do not add up to the size of ``data``, there are not as many seeds as lengths,
            or the seed is not an unsigned 32-bit number.
    """
    count = len(lengths)
    starts: Iterable[int]
    if not isinstance(seeds, int):
        if len(seeds) != count:
            raise ValueError(f"{len(seeds)} seeds for {count} pieces")
        starts = seeds
    elif not 0 <= seeds <= _MASK:
        raise ValueError("a seed must be an unsigned 32-bit number")
    elif seeds + count <= _MASK:
        starts = range(seeds, seeds + count)
    else:
        starts = [(seeds + index) & _MASK for index in range(count)]
    if sum(lengths) != len(data):
        raise ValueError(f"the lengths of the pieces do not add up to the {len(data)} bytes")
    return array("I", map(extend, starts, each_piece(data, lengths) if pieces is None else pieces))


def piece_checksums_compiled(
    seeds: int | array[int],
    data: bytes | memoryview,
    lengths: array[int],
    pieces: Iterable[bytes] | None = None,
) -> array[int]:
    """Return the same as ``piece_checksums_in_python``, with the compiled function."""
    return array("I", _pieces.piece_checksums(seeds, data, lengths))


piece_checksums = piece_checksums_compiled if IS_COMPILED else piece_checksums_in_python
"""Return the CRC-32C of each piece; see ``piece_checksums_in_python``."""


def split_pieces(data: bytes | memoryview, lengths: array[int]) -> list[bytes]:
    """Split joined pieces. One call in C splits pieces of equal size; slices split others."""
    count = len(lengths)
    if not count:
        return []
    if count > 1 and _is_uniform(lengths):
        return list(_uniform_splitter(lengths[0], count).unpack(data))
    whole = data if isinstance(data, bytes) else bytes(data)
    ends = list(itertools.accumulate(lengths))
    return [whole[end - size : end] for end, size in zip(ends, lengths, strict=True)]


def each_piece(data: bytes | memoryview, lengths: array[int]) -> Iterable[bytes]:
    """Return the same pieces as ``split_pieces``, but split only a few of them at a time. If you look at each
    piece once and keep none, the memory for this does not grow with the data."""
    if len(lengths) == 1:
        return (bytes(data),)
    view = memoryview(data)
    length = lengths[0] if lengths else 0
    if length and _is_uniform(lengths):
        at_once = min(len(lengths), max(1, _PIECE_BYTES // length))
        middle = len(view) - len(view) % (length * at_once)
        pieces = _uniform_splitter(length, at_once).iter_unpack(view[:middle])
        rest = _uniform_splitter(length, 1).iter_unpack(view[middle:])
        return itertools.chain.from_iterable(itertools.chain(pieces, rest))
    return _sliced(view, lengths)


@functools.lru_cache(maxsize=64)
def _uniform_splitter(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)


def _is_uniform(lengths: array[int]) -> bool:
    return lengths.tobytes() == lengths[:1].tobytes() * len(lengths)


def _sliced(view: memoryview, lengths: array[int]) -> Iterator[bytes]:
    start = stop = at = 0
    piece = b""
    for length in lengths:
        if at + length > stop:
            start, stop = at, at + max(length, _PIECE_BYTES)
            piece = bytes(view[start:stop])
        yield piece[at - start : at - start + length]
        at += length
