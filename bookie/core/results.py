"""Answers of a bookie's storage to fences, reads, lists and scrubs."""

from __future__ import annotations

import attrs

from ledgerlog.errors import StorageCorrupt, StorageError
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status
from ledgerlog.wire.scrub import ScrubReport


@attrs.frozen
class FenceResult:
    """The answer to a fence.

    ``status`` is one of:

    - OK: the ledger is durably fenced. ``lac`` and ``lafr`` are the greatest that this bookie knows.
    - UNAUTHORIZED: the key is wrong; nothing changed.
    - DISK_FULL: the disk has no space for the fence.
    - CORRUPT or IO_ERROR: the bookie cannot read its state of the ledger.
    - NOT_READY: the bookie is being stopped.
    """

    status: Status
    lac: int
    lafr: int


@attrs.frozen
class ReadResult:
    """The entries that a read found.

    ``entries`` are copies, in ascending order of their ids. If a requested entry up to ``through`` is missing
    from them, it does not exist here, unless the status is UNKNOWN. ``status`` is one of:

    - OK.
    - NO_SUCH_LEDGER: this bookie knows nothing of the ledger.
    - UNKNOWN: the ledger is in limbo. An entry that is missing from the answer may have been here.
    - CORRUPT or IO_ERROR: the next requested entry after ``through`` exists or may exist, but cannot be read.
    - UNAUTHORIZED or DISK_FULL: a recovery read could not fence. ``through`` means nothing then.
    """

    status: Status
    entries: Entries
    through: int
    lac: int
    lafr: int


@attrs.frozen
class ListResult:
    """The ids that are stored, as ranges.

    ``pairs`` are ranges (first, last) in ascending order and not adjacent. They are complete from the first
    requested id through ``through``. If there are no ranges, ``through`` is the last requested id, or the id
    before the first requested one if the bookie could not read even that. ``status`` is as in ``ReadResult``.
    """

    status: Status
    pairs: list[tuple[int, int]]
    through: int


@attrs.frozen
class ScrubResult:
    """The findings of a scrub.

    ``report`` covers the requested entries through ``through``. ``status`` is as in ``ReadResult``, except
    that CORRUPT and IO_ERROR mean that the scrub has no result, because the index cannot be read.
    """

    status: Status
    report: ScrubReport
    through: int


def status_of(error: StorageError) -> Status:
    """Return the status that tells a client about a failed read of the storage."""
    return Status.CORRUPT if isinstance(error, StorageCorrupt) else Status.IO_ERROR
