"""So many bytes a second, for work that goes on beside adds and must not take the disk from them.

Whoever is about to move some bytes passes through first, and waits until those before him are paid for. What
was not used is worth a second at most, so that after a pause nobody catches up at the disk's full speed.
"""

from __future__ import annotations

import trio

from ledgerlog.limits import MIB

PACED_PIECE_BYTES = MIB
"""What is read at once of a file that is read at a pace."""

_SAVED_S = 1.0


class Pace:
    """``bytes_per_s`` for all who pass through one."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def pass_through(self, size: int) -> None:
        """Wait until so many more bytes may be moved. Cancelled, they count as moved."""
        now = trio.current_time()
        self._free_at = max(self._free_at, now - _SAVED_S) + size / self._bytes_per_s
        await trio.sleep(max(0.0, self._free_at - now))
