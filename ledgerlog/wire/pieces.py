"""Joined bytes: split them into their pieces, or compute the CRC-32C of each piece.

The payloads of a frame, the records of a batch and the pages of a journal's block are such pieces. The
checksums of all pieces are computed together. This is most of what a bookie does with the bytes of a small
entry, so the function exists twice, with the same results:

- ``_pieces.c``, if it was compiled when ledgerlog was installed. It takes 0.01 µs for a piece of 100 bytes.
- Python over C iterators, otherwise. It takes 0.2 to 0.5 µs. The environment variable ``LEDGERLOG_PURE``
  chooses it, too, if it is set and not empty.
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
"""How many bytes ``each_piece`` splits at a time. A larger value would not be faster. The allocator keeps
freed memory of this size, instead of giving it back to the system for each frame."""


def piece_checksums_in_python(
    seeds: int | array[int],
    data: bytes | memoryview,
    lengths: array[int],
    pieces: Iterable[bytes] | None = None,
) -> array[int]:
    """Return the CRC-32C of each piece.

    Args:
        seeds: What each CRC starts from. A number is the seed of the first piece, and the seed of each
            following piece is one more, modulo 2**32.
        data: The joined pieces.
        lengths: The length of each piece, as an array of unsigned 32-bit numbers.
        pieces: The pieces themselves, if you have them. This saves the Python function from splitting.

    Raises:
        ValueError: The lengths do not add up to the size of ``data``, there are not as many seeds as lengths,
            or the seed is no unsigned 32-bit number.
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
    """Return what ``piece_checksums_in_python`` returns, by the compiled function."""
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
    """Return what ``split_pieces`` returns, but split only a few pieces at a time. If you look at each piece
    once and keep none, the memory that this takes does not grow with the data."""
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
