"""Answers of a bookie's storage to fences, reads, lists and scrubs."""

from __future__ import annotations

import attrs

from ledgerlog.errors import StorageCorrupt, StorageError
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status
from ledgerlog.wire.scrub import ScrubReport


@attrs.frozen
class FenceResult:
    """``status`` OK: the ledger is fenced, durably, and ``lac`` and ``lafr`` are the greatest known here.
    Otherwise UNAUTHORIZED (wrong key; nothing changed), DISK_FULL, CORRUPT or IO_ERROR (what is known of the
    ledger cannot be read), NOT_READY (the bookie is being stopped)."""

    status: Status
    lac: int
    lafr: int


@attrs.frozen
class ReadResult:
    """What was found of the entries asked for.

    ``entries`` are copies, ids ascending. Every asked entry up to ``through`` that is not among them does
    not exist here. ``status``: OK; NO_SUCH_LEDGER (nothing is known of the ledger); UNKNOWN: the ledger is in
    limbo, and what is not among the entries may have been here; CORRUPT or IO_ERROR: the
    entry asked for next after ``through`` exists or may exist and cannot be read; UNAUTHORIZED or
    DISK_FULL for a recovery read that could not fence (``through`` says nothing then)."""

    status: Status
    entries: Entries
    through: int
    lac: int
    lafr: int

    def undenied(self, first: int) -> ReadResult:
        """The same of a ledger in limbo that was asked from ``first`` on: nothing is denied (protocol A.3).

        Also if an entry cannot be read: what is missing *before* it would be taken for absent. So the answer
        ends before that entry, and whoever asks for it next is told what it is. For example 0 is here, 1 to 3
        may have been lost, and 4 is rotten: UNKNOWN through 3."""
        denies = self.status in _DENIALS or (self.status in _UNREADABLE and self.through >= first)
        return attrs.evolve(self, status=Status.UNKNOWN) if denies else self


@attrs.frozen
class ListResult:
    """``pairs``: ranges (first, last) of ids that are stored, growing and not adjacent, complete from the id
    asked for through ``through``, which is the last asked for where there are none. ``status`` as in
    ``ReadResult``."""

    status: Status
    pairs: list[tuple[int, int]]
    through: int

    def undenied(self) -> ListResult:
        """As that of ``ReadResult``."""
        return attrs.evolve(self, status=Status.UNKNOWN) if self.status in _DENIALS else self


@attrs.frozen
class ScrubResult:
    """``report``: what was found of the entries asked for, complete through ``through``. ``status`` as in
    ``ReadResult``; with CORRUPT or IO_ERROR nothing was found out, because the index cannot be read."""

    status: Status
    report: ScrubReport
    through: int

    def undenied(self) -> ScrubResult:
        """As that of ``ReadResult``."""
        return attrs.evolve(self, status=Status.UNKNOWN) if self.status in _DENIALS else self


_DENIALS = frozenset((Status.OK, Status.NO_SUCH_LEDGER, Status.NO_SUCH_ENTRY))
"""What a reply says when whatever it does not show is not there."""

_UNREADABLE = frozenset((Status.CORRUPT, Status.IO_ERROR))
"""What a reply says of the entry behind those that it answers for."""


def status_of(error: StorageError) -> Status:
    """How a failure to read what is stored is told to the client."""
    return Status.CORRUPT if isinstance(error, StorageCorrupt) else Status.IO_ERROR
