"""Entries that were read from files: kept for whoever reads on, or reads the same again.

A frame on the disk holds up to some hundreds of entries; who asks for one of them, or follows a ledger in
steps, would have it read and verified each time. So what was read is kept, verified or, where it was read
ahead, as it came, and the least recently used goes when it is more than ``bytes_max``. An address (file and
offset) never means something else, so nothing here is ever out of date; of files that are gone nobody asks.
"""

from __future__ import annotations

from collections import OrderedDict

from bookie.core.records import Run
from ledgerlog.wire.entries import Entries


class ReadCache:
    """``bytes_max`` 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_held = 0
        self.hits = 0
        self._bytes_max = bytes_max
        self._frames: OrderedDict[tuple[int, int], tuple[int, bytes | Entries]] = OrderedDict()

    def get(self, run: Run) -> bytes | Entries | None:
        """The run's verified entries, or its frame as it was read, if either is here."""
        key = (run.file, run.offset)
        found = self._frames.get(key)
        if found is None:
            return None
        self._frames.move_to_end(key)
        self.hits += 1
        return found[1]

    def put(self, run: Run, content: bytes | Entries) -> None:
        """Keep a run's verified entries, or its frame. One that takes much of the room is not kept."""
        if 8 * run.length > self._bytes_max:
            return
        key = (run.file, run.offset)
        before = self._frames.pop(key, None)
        if before is None:
            self.bytes_held += run.length
        self._frames[key] = (run.length, content)
        while self.bytes_held > self._bytes_max:
            _, (length, _) = self._frames.popitem(last=False)
            self.bytes_held -= length
