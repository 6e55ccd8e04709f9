"""A cache of entries from files, for clients that read the next entries or read the same entries again.

A frame on the disk holds up to some hundreds of entries. Suppose that a client asks for one entry after the
other. Without the cache, the bookie would read and verify the whole frame for each entry. For each run (a
frame of entries, at its address), the cache keeps the verified entries, or the raw frame if it was read
ahead. If the cache holds more than ``bytes_max``, it drops the least recently used runs. An address (file and
offset) never changes its meaning, so nothing here goes out of date. No read asks for an address in a removed
file.
"""

from __future__ import annotations

from collections import OrderedDict

from bookie.core.journal_items import EntryRun
from ledgerlog.wire.entries import Entries


class ReadCache:
    """A cache of at most ``bytes_max`` bytes; 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_held = 0
        self.hits = 0
        self._bytes_max = bytes_max
        self._frames: OrderedDict[tuple[int, int], tuple[int, bytes | Entries]] = OrderedDict()

    def get(self, run: EntryRun) -> bytes | Entries | None:
        """Return the run's verified entries, or its raw frame. None: the cache does not have the run."""
        key = (run.file, run.offset)
        found = self._frames.get(key)
        if found is None:
            return None
        self._frames.move_to_end(key)
        self.hits += 1
        return found[1]

    def holds_verified(self, run: EntryRun) -> bool:
        """Whether the cache has the run's verified entries."""
        found = self._frames.get((run.file, run.offset))
        return found is not None and isinstance(found[1], Entries)

    def put(self, run: EntryRun, content: bytes | Entries) -> None:
        """Keep a run's verified entries or its raw frame, unless it is over an eighth of ``bytes_max``."""
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
