"""The demo's account of its records, and the comparison of the log with it.

``Account`` keeps a checksum of every record that was given to a leader, and the record's offset once the
offset is known. The offset comes from a leader's acknowledgement. If the leader was lost, the driver reads
the log to find out which of the leader's records are there, and at which offsets. ``DemoAudit`` then gets the
whole log from its first offset on and compares:

    lost           acknowledged, but not at its offset with its bytes
    duplicated     found a second time
    out of order   found after a record with a higher number
    foreign        found, but never given to the leader that was entitled to append it (a deposed leader
                   appended it, or the record is damaged)

This module does not deal with processes or clusters. All correctness figures of the demo come from here.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import attrs

from ledgerlog.cli.demo_text import number_of
from ledgerlog.errors import LedgerLogError

__all__ = ["Account", "DemoAudit", "DemoBatch", "Contradiction"]

_NOWHERE = -1


class Contradiction(LedgerLogError):
    """Two sources disagree about a record's offset. The message names the record and both offsets."""


@attrs.frozen
class DemoBatch:
    """Records with consecutive numbers that are handed to a leader together."""

    number: int
    first: int
    """The number of the first record."""
    records: Sequence[bytes]
    digest: str


class Account:
    """The records by number. ``take`` assigns the numbers in order."""

    def __init__(self) -> None:
        self._checksums = array("I")
        self._offsets = array("q")
        self.acknowledged = 0
        """How many records a leader acknowledged, or the driver found in the log after their leader was
        lost."""

    def __len__(self) -> int:
        return len(self._offsets)

    def take(self, records: Sequence[bytes]) -> int:
        """Remember the next records. Return the number of the first one."""
        first = len(self)
        self._checksums.extend(map(zlib.crc32, records))
        self._offsets.extend([_NOWHERE] * len(records))
        return first

    def acknowledge(self, first: int, count: int, first_offset: int) -> None:
        """Note that records from ``first`` on are at offsets from ``first_offset`` on.

        Raises:
            Contradiction: One of them was noted at another offset earlier.
        """
        for number, offset in zip(
            range(first, first + count), range(first_offset, first_offset + count), strict=True
        ):
            before = self._offsets[number]
            if before == _NOWHERE:
                self._offsets[number] = offset
                self.acknowledged += 1
            elif before != offset:
                raise Contradiction(f"record {number} was reported at offset {before} and at {offset}")

    def is_acknowledged(self, number: int) -> bool:
        """Whether the record's offset is known."""
        return self._offsets[number] != _NOWHERE

    def is_at(self, number: int, offset: int) -> bool:
        """Whether the record's offset is known to be this one."""
        return self._offsets[number] == offset

    def has_bytes(self, number: int, record: bytes) -> bool:
        """Whether these are the record's bytes, by their checksum."""
        return self._checksums[number] == zlib.crc32(record)


class DemoAudit:
    """Compares a whole log with an account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._seen = bytearray(len(account))
        self._intact = 0
        self._highest = -1
        self.read = 0
        self.duplicated = 0
        self.out_of_order = 0
        self.foreign = 0

    def feed(self, first_offset: int, records: Sequence[bytes]) -> list[tuple[int, int]]:
        """Check the next records of the log.

        Return (number, offset) of each record that was not acknowledged.
        """
        account, seen = self._account, self._seen
        unexpected = []
        self.read += len(records)
        for offset, record in enumerate(records, first_offset):
            number = number_of(record)
            if number is None or number >= len(seen) or not account.has_bytes(number, record):
                self.foreign += 1
                continue
            if seen[number]:
                self.duplicated += 1
                continue
            seen[number] = 1
            if number < self._highest:
                self.out_of_order += 1
            else:
                self._highest = number
            if account.is_at(number, offset):
                self._intact += 1
            elif not account.is_acknowledged(number):
                unexpected.append((number, offset))
        return unexpected

    @property
    def lost(self) -> int:
        return self._account.acknowledged - self._intact

    @property
    def is_clean(self) -> bool:
        """Whether the log agrees with the account."""
        return not (self.lost or self.duplicated or self.out_of_order or self.foreign)
