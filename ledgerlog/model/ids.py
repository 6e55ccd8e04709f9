"""Identities: what names a ledger, an entry, a bookie and a place in a log.

``NO_ENTRY`` (-1) means "before the first entry" and nothing else: an unknown value is None.
A *slot* is an index in an ensemble, a *bookie* is an identity that sits in it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LEDGER_ID_MAX

NO_ENTRY = -1

BookieId = str
"""A bookie's identity: 1 to 128 of letters, digits, and ``. _ : -``; stable for ever."""

_BOOKIE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}\Z")
_POSITION = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,19})\Z")
_LOG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-/]{0,254}\Z")


def check_bookie_id(value: str) -> BookieId:
    """``value`` if it is a well-formed bookie id; InvalidArgument otherwise."""
    if not isinstance(value, str) or not _BOOKIE_ID.match(value):
        raise InvalidArgument(
            f"{value!r} is not a bookie id: 1 to 128 letters, digits and . _ : -, "
            "starting with a letter or digit"
        )
    return value


def check_log_name(value: str) -> str:
    """``value`` if it is a well-formed log name; InvalidArgument otherwise."""
    if not isinstance(value, str) or not _LOG_NAME.match(value) or "//" in value or value.endswith("/"):
        raise InvalidArgument(
            f"{value!r} is not a log name: 1 to 255 letters, digits and . _ - /, "
            "starting with a letter, digit or _, without empty components"
        )
    return value


def check_ledger_id(value: int) -> int:
    """``value`` if it is in 0..2**63-1; InvalidArgument otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LEDGER_ID_MAX:
        raise InvalidArgument(f"{value!r} is not a ledger id (0 to {LEDGER_ID_MAX})")
    return value


class Position(NamedTuple):
    """Where a record lies: ledger, entry and the slot inside the entry. Ordered within one ledger's
    life in a log; across ledgers the log's segment list orders them, and ids usually agree with it.

    A named tuple, as ``Ack`` and ``Record`` are: each of them has one."""

    ledger_id: int
    entry_id: int
    slot: int = 0

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The inverse of ``str()``. InvalidArgument if the text is not ``ledger:entry:slot``."""
        match = _POSITION.match(text)
        if match is None:
            raise InvalidArgument(f"{text!r} is not a position (ledger:entry:slot)")
        return cls(*map(int, match.groups()))
