"""The reply to LEDGERS: the ledgers that have entries on a bookie, with their keys.

    offset  size  field
    0       8     ledger      i64, growing from row to row
    8       8     last_entry  i64, the highest durable entry
    16      16    key         the ledger's key

The rows follow each other to the end of the body, at most ``LEDGERS_MAX``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.limits import ENTRY_ID_MAX, LEDGER_ID_MAX, LEDGER_KEY_BYTES

__all__ = ["LEDGERS_MAX", "LedgerOnBookie", "decode_ledgers_untrusted", "encode_ledgers"]

LEDGERS_MAX = 4096
"""The most ledgers in a reply."""

_ROW = struct.Struct(f"<qq{LEDGER_KEY_BYTES}s")


class LedgerOnBookie(NamedTuple):
    """A ledger that has entries on a bookie."""

    ledger_id: int
    last_entry: int
    """The highest durable entry."""
    key: bytes
    """The ledger's key, which is a secret."""


def encode_ledgers(held: Sequence[LedgerOnBookie]) -> bytes:
    """Encode the body of a reply. Raise InvalidArgument if no reply can hold the rows."""
    _check(held, InvalidArgument)
    return b"".join(_ROW.pack(*ledger) for ledger in held)


def decode_ledgers_untrusted(body: memoryview) -> list[LedgerOnBookie]:
    """Decode the bytes of ``encode_ledgers``. Raise WireError if the bytes are malformed."""
    if len(body) % _ROW.size:
        raise WireError("a list of ledgers has a part of a row")
    held = [LedgerOnBookie(*row) for row in _ROW.iter_unpack(body)]
    _check(held, WireError)
    return held


def _check(held: Sequence[LedgerOnBookie], error: Callable[[str], Exception]) -> None:
    if len(held) > LEDGERS_MAX:
        raise error(f"a list of {len(held)} ledgers")
    previous = -1
    for ledger_id, last_entry, key in held:
        if not previous < ledger_id <= LEDGER_ID_MAX:
            raise error(f"ledger {ledger_id} after {previous}")
        if not 0 <= last_entry <= ENTRY_ID_MAX:
            raise error(f"ledger {ledger_id} ends at {last_entry}")
        if len(key) != LEDGER_KEY_BYTES:
            raise error(f"the key of ledger {ledger_id} has {len(key)} bytes")
        previous = ledger_id
