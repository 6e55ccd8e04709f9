"""What the demo remembers of its records, and what it concludes from reading the log back.

``Account`` keeps for every record that was handed out a checksum, and the offset that somebody vouched for:
a leader's acknowledgement, or the log itself when it was read to settle what a lost leader had on its
way. ``Audit`` is then fed the whole log from its first offset and compares:

    lost           acknowledged, and not at its offset with its bytes
    duplicated     found a second time
    out of order   found after a record with a higher number
    foreign        found, though nobody was to append it (a deposed leader's, or damage)

It knows nothing of processes and clusters: the figures of the demo come from here alone.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import attrs

from ledgerlog.cli.demo_text import number_of
from ledgerlog.errors import LedgerLogError

__all__ = ["Account", "Audit", "Batch", "Contradiction"]

_NOWHERE = -1


class Contradiction(LedgerLogError):
    """Two that vouch for a record disagree about where it is; the message says who and where."""


@attrs.frozen
class Batch:
    """Some records with consecutive numbers, as they are handed to a leader."""

    number: int
    first: int
    """The number of the first record."""
    records: Sequence[bytes]
    digest: str


class Account:
    """Records by their numbers, which are given in the order of ``take``."""

    def __init__(self) -> None:
        self._checksums = array("I")
        self._offsets = array("q")
        self.acknowledged = 0
        """Records that a leader acknowledged, or that were found when a lost leader's were settled."""

    def __len__(self) -> int:
        return len(self._offsets)

    def take(self, records: Sequence[bytes]) -> int:
        """Remember the next records; the number of the first."""
        first = len(self)
        self._checksums.extend(map(zlib.crc32, records))
        self._offsets.extend([_NOWHERE] * len(records))
        return first

    def acknowledge(self, first: int, count: int, first_offset: int) -> None:
        """Records ``first`` and on are at ``first_offset`` and on. Contradiction if one was said to be
        elsewhere."""
        for number, offset in zip(
            range(first, first + count), range(first_offset, first_offset + count), strict=True
        ):
            before = self._offsets[number]
            if before == _NOWHERE:
                self._offsets[number] = offset
                self.acknowledged += 1
            elif before != offset:
                raise Contradiction(f"record {number} is said to be at offset {before} and at {offset}")

    def is_acknowledged(self, number: int) -> bool:
        return self._offsets[number] != _NOWHERE

    def is_at(self, number: int, offset: int) -> bool:
        return self._offsets[number] == offset

    def has_bytes(self, number: int, record: bytes) -> bool:
        return self._checksums[number] == zlib.crc32(record)


class Audit:
    """The comparison of a whole log with an account."""

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
        """The next records of the log; (number, offset) of each that was not acknowledged."""
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
        return not (self.lost or self.duplicated or self.out_of_order or self.foreign)
