"""Identities: the names of ledgers, entries, bookies and logs, and the position of a record.

``NO_ENTRY`` (-1) means "before the first entry" and nothing else. An unknown value is None, never -1. A
*slot* of an ensemble is an index in it; a *bookie* is the identity that has the slot.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import LEDGER_ID_MAX

NO_ENTRY = -1

BookieId = str
"""A bookie's identity: 1 to 128 letters, digits and ``. _ : -``. It never changes."""

_BOOKIE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}\Z")
_POSITION = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,19})\Z")
_LOG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-/]{0,254}\Z")


def _quoted(value: object) -> str:
    """Return a value for an error. A damaged record may hold a text of a megabyte in place of a name."""
    return f"{value!r:.300}"


def check_bookie_id(value: str) -> BookieId:
    """Return ``value`` if it is a well-formed bookie id; else raise InvalidArgument."""
    if not isinstance(value, str) or not _BOOKIE_ID.match(value):
        raise InvalidArgument(
            f"{_quoted(value)} is not a bookie id: 1 to 128 letters, digits and . _ : -, "
            "starting with a letter or digit"
        )
    return value


def check_log_name(value: str, what: str = "a log name") -> str:
    """Return ``value`` if it is a well-formed log name; else raise InvalidArgument.

    Other things have names by the same rules. For these, ``what`` says what ``value`` should be.
    """
    if not isinstance(value, str) or not _LOG_NAME.match(value) or "//" in value or value.endswith("/"):
        raise InvalidArgument(
            f"{_quoted(value)} is not {what}: 1 to 255 letters, digits and . _ - /, "
            "starting with a letter, digit or _, without empty components"
        )
    return value


def check_ledger_id(value: int) -> int:
    """Return ``value`` if it is in 0..2**63-1; else raise InvalidArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LEDGER_ID_MAX:
        raise InvalidArgument(f"{value!r} is not a ledger id (0 to {LEDGER_ID_MAX})")
    return value


def is_offset(value: object) -> bool:
    """Return whether ``value`` is a number in 0..2**63-1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LEDGER_ID_MAX


def check_offset(value: int) -> int:
    """Return ``value`` if it is in 0..2**63-1; else raise InvalidArgument."""
    if not is_offset(value):
        raise InvalidArgument(f"{value!r} is not an offset")
    return value


class Position(NamedTuple):
    """Where a record lies: its ledger, the entry in the ledger, and the slot in the entry.

    Compare only positions of the same ledger. Across ledgers the log's list of segments decides the order;
    ledger ids usually have the same order, but not always.

        >>> str(Position(17, 4, 0))
        '17:4:0'

    A position is a named tuple like ``Ack`` and ``Record``, because each of these holds a position (see
    ``model.record``).

    Attributes:
        ledger_id: The ledger.
        entry_id: The entry in the ledger, from 0.
        slot: The index of the record in its entry, from 0.
    """

    ledger_id: int
    entry_id: int
    slot: int = 0

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text that ``str()`` gives, for example ``"17:4:0"``.

        Args:
            text: ``ledger:entry:slot``, three decimal numbers.

        Returns:
            The position.

        Raises:
            InvalidArgument: ``text`` does not have this form.
        """
        match = _POSITION.match(text)
        if match is None:
            raise InvalidArgument(f"{text!r} is not a position (ledger:entry:slot)")
        return cls(*map(int, match.groups()))
