"""Copies on their way to bookies: entries are cut into frames, and each copy waits for its confirmation.

The repair of a fragment (``repair.core.repair``) and the filling of a share (``repair.core.backfill``) read
entries and put them into a ``CopyQueue``. The queue bounds their memory: they begin no read while the queue
is full. When it becomes full, each read that is under way still brings at most one reply.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ledgerlog.limits import FRAME_BYTES_TARGET
from ledgerlog.model.ids import BookieId
from ledgerlog.wire.entries import cut_to_frames

__all__ = ["COPY_BYTES", "Copy", "CopyQueue"]

COPY_BYTES = 16 * FRAME_BYTES_TARGET
"""A queue is full while this many bytes, or more, are not confirmed."""


@attrs.frozen(eq=False)
class Copy:
    """Entries to store on a bookie by a recovery add. ``entries`` is in order of ids."""

    bookie: BookieId
    entries: Mapping[int, bytes]
    byte_count: int


class CopyQueue:
    """The copies of one repair that are not confirmed yet. The queue is false (in a boolean context) if it is
    empty."""

    def __init__(self) -> None:
        self._due: list[Copy] = []
        self._unconfirmed: list[Copy] = []

    def __bool__(self) -> bool:
        return bool(self._unconfirmed)

    def __contains__(self, copy: Copy) -> bool:
        return copy in self._unconfirmed

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read now."""
        return sum(copy.byte_count for copy in self._unconfirmed) >= COPY_BYTES

    def add(self, bookie: BookieId, found: Mapping[int, bytes]) -> None:
        """Queue entries for a bookie."""
        for entries in cut_to_frames(found):
            copy = Copy(bookie, entries, sum(map(len, entries.values())))
            self._due.append(copy)
            self._unconfirmed.append(copy)

    def take(self) -> list[Copy]:
        """Return the copies to store now, each once."""
        due, self._due = self._due, []
        return due

    def on_copied(self, copy: Copy) -> None:
        """Note that the bookie has stored the copy durably."""
        self._unconfirmed.remove(copy)

    def clear(self) -> None:
        """Drop all copies: the repair has failed."""
        self._due, self._unconfirmed = [], []
