"""The reply to SCRUB: a bookie's sound and unsound entries in a range, and sums of digests.

An entry is *sound* if the bookie reads it as it was written, which means that it matches its digest.

The bookie reads the requested entries from its disk, checks each against its digest, and sends no data:

    offset  size  field
    0       4     sound      how many ranges of entries are as they were written
    4       4     unsound    how many ranges of entries the index names that cannot be read as written
    8             ranges     pairs (first, last) of i64, the sound ones and then the others; each list grows
                  sums       rows of 24 bytes, growing, to the end of the body:
                                 block  i64    entry ids block * 4096 to block * 4096 + 4095
                                 class  u32    only ids with this remainder, modulo the request's ``count``
                                 count  u32    how many of these entries are sound here, at least one
                                 sum    u64    of their digests, each times its weight, modulo 2**64

The reply is complete through the entry in ``argument``. An entry up to there that is in neither list is not
on the bookie. An unsound range may be wider than the stored entries: if a frame cannot be read, the ids of
its entries are unknown.

**Why sums.** Bookies that have the same entries have the same digests, and so the same sums, even if they
store the entries in different orders. And sums can be added. A bookie may end its reply in the middle of a
block, after its share of work for one request. The client then adds the sums of the next reply for the rest
of the block. A digest binds ledger, entry and payload (``wire.checksum``), so a sum shows one differing entry
as reliably as the entry's digest does.

**Why weights.** Digests are CRCs, and the CRCs of neighbours with similar payloads differ in simple ways. For
example, two damaged entries could each have the other's digest, and a plain sum would not change. So each
digest is multiplied by a weight that depends only on the entry's place in its block (``scrub_weights``: the
upper half of the outputs of SplitMix64, made odd). A difference stays hidden with a chance of about one in
2**32.

**Why classes.** In a striped ledger the bookies have different entries. Entry ids that leave the same
remainder when divided by the ensemble size form a class. All entries of a class have the same write set, so
the bookies' sums of a class can be compared. With ``count`` = 4096 each entry of a block is a class of its
own. So if the sums of a block differ, such a request compares the block entry by entry.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Sequence

import attrs

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.limits import ENTRY_ID_MAX, SCRUB_BLOCK_ENTRIES, SCRUB_RANGES_MAX, SCRUB_SUMS_MAX
from ledgerlog.wire.frame import decode_pairs_untrusted, encode_pairs

__all__ = [
    "ScrubReport",
    "ScrubSum",
    "add_sums",
    "decode_scrub_untrusted",
    "encode_scrub",
    "scrub_weights",
]

_COUNTS = struct.Struct("<II")
_SUM = struct.Struct("<qIIQ")
_PAIR_BYTES = 16
_MASK = 0xFFFFFFFFFFFFFFFF


def _weight(place: int) -> int:
    z = (place + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return (z ^ z >> 31) >> 32 | 1


@functools.cache
def scrub_weights() -> Sequence[int]:
    """Return the weights of digests, by the entry's id modulo 4096: odd numbers of 32 bits.

    The weights are made at the first scrub, so that importing this module costs nothing.
    """
    return tuple(_weight(place) for place in range(SCRUB_BLOCK_ENTRIES))


ScrubSum = tuple[int, int, int, int]
"""Block, class, count, sum."""

Ranges = Sequence[tuple[int, int]]


@attrs.frozen
class ScrubReport:
    """The result of a scrub on one bookie. See the module docstring for its parts."""

    sound: Ranges
    unsound: Ranges
    sums: Sequence[ScrubSum]


def add_sums(one: int, other: int) -> int:
    """Return the sum of two parts of a block."""
    return (one + other) & _MASK


def encode_scrub(report: ScrubReport) -> bytes:
    """Encode the body of a reply. Raise InvalidArgument if no reply can hold the report."""
    if max(len(report.sound), len(report.unsound)) > SCRUB_RANGES_MAX or len(report.sums) > SCRUB_SUMS_MAX:
        raise InvalidArgument(
            f"a report of {len(report.sound)} and {len(report.unsound)} ranges and {len(report.sums)} sums"
        )
    _check_sums(report.sums, InvalidArgument)
    return b"".join(
        (
            _COUNTS.pack(len(report.sound), len(report.unsound)),
            encode_pairs(report.sound),
            encode_pairs(report.unsound),
            *itertools.starmap(_SUM.pack, report.sums),
        )
    )


def _check_sums(sums: Sequence[ScrubSum], error: Callable[[str], Exception]) -> None:
    before = (-1, 0)
    for block, remainder, count, total in sums:
        if not before < (block, remainder) or not 0 <= remainder < SCRUB_BLOCK_ENTRIES:
            raise error(f"the sum of class {remainder} of block {block} after {before}")
        if not 0 <= block <= ENTRY_ID_MAX // SCRUB_BLOCK_ENTRIES:
            raise error(f"block {block} of scrubbed entries is out of range")
        if not 1 <= count <= SCRUB_BLOCK_ENTRIES or not 0 <= total <= _MASK:
            raise error(f"{count} entries of block {block}, with a sum of {total}")
        before = block, remainder


def decode_scrub_untrusted(body: memoryview) -> ScrubReport:
    """Decode the bytes of ``encode_scrub``. Raise WireError if they are malformed or contradictory."""
    if len(body) < _COUNTS.size:
        raise WireError(f"a report of {len(body)} bytes on scrubbed entries")
    sound, unsound = _COUNTS.unpack_from(body)
    if sound > SCRUB_RANGES_MAX or unsound > SCRUB_RANGES_MAX:
        raise WireError(f"{sound} and {unsound} ranges of scrubbed entries; {SCRUB_RANGES_MAX} are the most")
    middle = _COUNTS.size + _PAIR_BYTES * sound
    end = middle + _PAIR_BYTES * unsound
    if end > len(body) or (len(body) - end) % _SUM.size:
        raise WireError(f"{sound} and {unsound} ranges of scrubbed entries do not fit {len(body)} bytes")
    if len(body) - end > SCRUB_SUMS_MAX * _SUM.size:
        raise WireError(f"sums of {len(body) - end} bytes; {SCRUB_SUMS_MAX} rows are the most")
    sums: list[ScrubSum] = list(_SUM.iter_unpack(body[end:]))
    _check_sums(sums, WireError)
    return ScrubReport(
        decode_pairs_untrusted(body[_COUNTS.size : middle]),
        decode_pairs_untrusted(body[middle:end]),
        sums,
    )
