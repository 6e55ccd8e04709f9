"""Digests: they show whether bytes are still as they were written.

Every entry carries a CRC-32C over ledger id, entry id and payload (rule 17). The two ids do not go through
the CRC as bytes, because that would take two more calls for each entry. Instead the CRC starts from a value
that is computed from them:

    seed(ledger, entry) = (crc32c(ledger id, 8 bytes little endian) + entry + (entry >> 32)) mod 2**32
    digest              = crc32c of the payload, started from the seed

For given bytes, a CRC is a bijection of its starting value. So the same payload under two entry ids of a
ledger never has the same digest, if the ids are less than 2**32 apart: a misplaced entry is always noticed.

The digests of a whole frame are computed together (``pieces.piece_checksums``).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence

from google_crc32c import extend, value

from ledgerlog.wire.pieces import piece_checksums

__all__ = ["checksum", "entry_digest", "entry_digests", "u32_array"]

_MASK = 0xFFFFFFFF


checksum: Callable[[bytes], int] = value
"""Return the CRC-32C of some bytes."""


def _seed(ledger_crc: int, entry_id: int) -> int:
    return (ledger_crc + entry_id + (entry_id >> 32)) & _MASK


def entry_digest(ledger_id: int, entry_id: int, payload: bytes) -> int:
    """Return the digest of one entry."""
    seed = _seed(value(ledger_id.to_bytes(8, "little")), entry_id)
    return extend(seed, payload)  # type: ignore[no-any-return]  # the library is untyped


def entry_digests(
    ledger_id: int,
    entry_ids: Sequence[int],
    payload: bytes | memoryview,
    lengths: array[int],
    payloads: Iterable[bytes] | None = None,
) -> array[int]:
    """Return the digests of many entries of a ledger, in order.

    Args:
        ledger_id: The ledger.
        entry_ids: The ids of the entries. They may be a range.
        payload: The payloads, joined.
        lengths: The length of each payload.
        payloads: The payloads themselves, if you have them; see ``piece_checksums``.

    Raises:
        ValueError: There are not as many lengths as ids, or they do not add up to the size of ``payload``.
    """
    if len(lengths) != len(entry_ids):
        raise ValueError(f"{len(lengths)} payloads for {len(entry_ids)} entries")
    ledger_crc = value(ledger_id.to_bytes(8, "little"))
    seeds: int | array[int]
    if isinstance(entry_ids, range) and entry_ids and entry_ids[0] >> 32 == entry_ids[-1] >> 32:
        seeds = _seed(ledger_crc, entry_ids[0])  # The seed of each following entry is one more.
    else:
        seeds = array("I", [_seed(ledger_crc, entry_id) for entry_id in entry_ids])
    return piece_checksums(seeds, payload, lengths, payloads)


def u32_array(data: bytes | memoryview | None = None) -> array[int]:
    """Decode an array of unsigned 32-bit numbers from little-endian bytes."""
    numbers = array("I")
    if data is not None:
        numbers.frombytes(data)
        if sys.byteorder == "big":
            numbers.byteswap()
    return numbers


def u32_bytes(numbers: array[int]) -> bytes:
    """Encode an array of unsigned 32-bit numbers as little-endian bytes."""
    if sys.byteorder == "big":
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers.tobytes()


assert array("I").itemsize == 4, "this platform's unsigned int is not 32 bits"
