"""The key of a log's ledger, which identifies the log.

Bookies keep the key of each ledger, but not its labels. If the metadata of a ledger are lost, only the key
says which log it belongs to. So the key of a log's ledger is 8 random bytes, followed by 8 bytes of a hash.
The hash covers the random bytes and the log's incarnation. An attacker still has to guess 8 random bytes, and
has to ask a bookie over a network for each guess. The key of any other ledger is random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ledgerlog.limits import LEDGER_KEY_BYTES

__all__ = ["INCARNATION_LABEL", "NAME_LABEL", "is_key_of_log", "key_for"]

INCARNATION_LABEL = "log-incarnation"
"""On a ledger: the incarnation of the log that it was made for."""

NAME_LABEL = "log-name"
"""On a ledger: the name of that log. By this name bookies find the grants that hold for the ledger. The
incarnation decides everything else."""

_RANDOM_BYTES = 8


def key_for(random_key: bytes, labels: Mapping[str, bytes]) -> bytes:
    """Return the key of a new ledger.

    Args:
        random_key: Random bytes, as many as a key has.
        labels: The ledger's labels, which name its log if it has one.
    """
    incarnation = labels.get(INCARNATION_LABEL)
    if incarnation is None:
        return random_key
    start = random_key[:_RANDOM_BYTES]
    return start + _tag(start, incarnation)


def is_key_of_log(key: bytes, incarnation: int) -> bool:
    """Return whether a ledger with this key was made for the log. For a random key the answer is wrong once
    in 2**64."""
    start = key[:_RANDOM_BYTES]
    return key[_RANDOM_BYTES:] == _tag(start, str(incarnation).encode())


def _tag(start: bytes, incarnation: bytes) -> bytes:
    return hashlib.sha256(b"ledger of log " + start + incarnation).digest()[
        : LEDGER_KEY_BYTES - _RANDOM_BYTES
    ]
