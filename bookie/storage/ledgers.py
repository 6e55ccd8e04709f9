"""The ledger states in memory: one object for each ledger, read from the index when it is touched.

Loading is one step without a wait, together with the verdict that it is for; so there are never two objects
for one ledger, and no lock (rule 3; two objects have lost acknowledged entries elsewhere, #4701). The price
is a read of the index in the loop's thread on the first touch of a ledger: a few microseconds when it is
cached or when the filter rules the key out, a disk read otherwise.

When there are more than ``maximum`` states, the oldest that were not used since the last look leave memory,
if nothing would be lost with them (``LedgerState.is_evictable``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import trio

from bookie.core.ledger import LedgerState
from bookie.storage.catalogue import Catalogue
from bookie.storage.segments import Segment

_SWEEP = 64
_FORGET_STEP = 256


class Ledgers:
    def __init__(self, catalogue: Catalogue, *, maximum: int) -> None:
        self.loaded: dict[int, LedgerState] = {}
        """The states in memory; the hot path looks here before it asks ``get``."""
        self.is_crowded = False
        """There are too many and the last sweep could not help it: saving the dirty ones would."""
        self._catalogue = catalogue
        self._maximum = maximum

    def get(self, ledger_id: int) -> LedgerState | None:
        """The state of a ledger, None if nothing is known of it. StorageError if the index cannot say."""
        state = self.loaded.get(ledger_id)
        if state is None:
            stored = self._catalogue.ledger_now(ledger_id)
            if stored is None:
                return None
            state = LedgerState.restore(ledger_id, stored)
            self.loaded[ledger_id] = state
        state.was_used = True
        return state

    def add(self, state: LedgerState) -> None:
        """A ledger that was unknown."""
        assert state.ledger_id not in self.loaded
        self.loaded[state.ledger_id] = state

    def sweep(self, durable: int) -> None:
        """Let some states leave memory if there are too many. Call it once per batch or so, never per
        entry."""
        loaded = self.loaded
        surplus = len(loaded) - self._maximum
        if surplus <= 0:
            self.is_crowded = False
            return
        evicted = 0
        for ledger_id in _first(loaded, _SWEEP + 2 * surplus):
            state = loaded.pop(ledger_id)
            if not state.was_used and state.is_evictable(durable):
                evicted += 1
                if evicted == surplus:
                    break
            else:
                state.was_used = False
                loaded[ledger_id] = state  # Now the youngest.
        self.is_crowded = evicted < surplus

    def dirty(self) -> list[LedgerState]:
        """The states that the index does not have."""
        return [state for state in self.loaded.values() if state.is_dirty]

    async def forget(self, segment: Segment) -> None:
        """The segment's runs are in the index and leave memory."""
        ledger_ids = {run.ledger_id for run in segment.runs}
        for count, ledger_id in enumerate(ledger_ids):
            self.loaded[ledger_id].forget_runs(segment.number)
            if count % _FORGET_STEP == _FORGET_STEP - 1:
                await trio.lowlevel.checkpoint()


def _first(keys: Iterable[int], count: int) -> Iterator[int]:
    """A copy of the first keys, to be able to change what they are keys of."""
    return iter([key for key, _ in zip(keys, range(count), strict=False)])
