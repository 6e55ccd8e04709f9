"""The ledger states in memory: one object for each ledger, read from the index when it is touched.

Loading is one step without a wait, together with the verdict that it is for; so there are never two objects
for one ledger, and no lock (rule 3; two objects have lost acknowledged entries elsewhere, #4701). The price
is a read of the index in the loop's thread on the first touch of a ledger: a few microseconds when it is
cached or when the filter rules the key out, a disk read otherwise.

When there are more than ``maximum`` states, those that were not used since the last look leave memory, the
oldest first, if nothing would be lost with them (``LedgerState.is_evictable``). Each new state looks at a
few, so that the work is spread; when a segment leaves memory, and with it what held many states, all are
looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from bookie.core import rows
from bookie.core.ledger import LedgerState, StoredLedger
from bookie.core.records import Run
from bookie.storage.index.catalogue import Catalogue

_SWEEP = 16
_STEP = 256
_PIECE_ROWS = 1024


class InMemory(Protocol):
    """What holds runs in memory: a segment of the journal, or an arena of the write cache."""

    @property
    def number(self) -> int: ...

    @property
    def runs(self) -> Sequence[Run]: ...


def _nobody() -> None:
    """Whoever brings a bounded number of ledgers saves them when he is through."""


class Ledgers:
    """``durable`` says which journal block is the last durable one; ``on_crowded`` is called when a state has
    come that makes it worth saving the dirty ones."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        maximum: int,
        durable: Callable[[], int],
        on_crowded: Callable[[], object] = _nobody,
    ) -> None:
        self.loaded: OrderedDict[int, LedgerState] = OrderedDict()
        """The states in memory; the hot path looks here before it asks ``get``."""
        self.unsaved = 0
        """How many states came into memory, while there were too many, since ``saved``."""
        self._catalogue = catalogue
        self._maximum = maximum
        self._durable = durable
        self._on_crowded = on_crowded
        self._saving = trio.Lock()

    @property
    def is_crowded(self) -> bool:
        """So many states came and could not leave that it is worth saving the dirty ones."""
        return self.unsaved > self._maximum // 4

    def get(self, ledger_id: int) -> LedgerState | None:
        """The state of a ledger, None if nothing is known of it. StorageError if the index cannot say."""
        state = self.loaded.get(ledger_id)
        if state is None:
            stored = self._catalogue.ledger_now(ledger_id)
            if stored is None:
                return None
            state = LedgerState.restore(ledger_id, stored)
            self._put(state)
        state.was_used = True
        return state

    def add(self, state: LedgerState) -> None:
        """A ledger that was unknown."""
        assert state.ledger_id not in self.loaded
        self._put(state)

    def drop(self, state: LedgerState) -> None:
        """A ledger that was added, and of which there is nothing to know after all."""
        assert state.is_blank
        assert not state.pins
        del self.loaded[state.ledger_id]

    def _put(self, state: LedgerState) -> None:
        # Before the new one is in, so that it cannot be what leaves.
        if len(self.loaded) >= self._maximum and not self._sweep(_SWEEP):
            self.unsaved += 1
        self.loaded[state.ledger_id] = state
        if self.is_crowded:
            self._on_crowded()

    def _sweep(self, count: int) -> int:
        """Look at the ``count`` oldest states, and let go of those that may leave; how many did."""
        loaded, durable = self.loaded, self._durable()
        evicted = 0
        for _ in range(min(count, len(loaded))):
            ledger_id, state = loaded.popitem(last=False)
            if not state.was_used and state.is_evictable(durable):
                evicted += 1
            else:
                state.was_used = False
                loaded[ledger_id] = state  # Now the youngest.
        return evicted

    async def shrink(self) -> None:
        """Look at every state once, as long as there are too many."""
        left = len(self.loaded)
        while left > 0 and len(self.loaded) > self._maximum:
            self._sweep(_STEP)
            left -= _STEP
            await trio.lowlevel.checkpoint()

    def stored(self, ledger_id: int) -> StoredLedger | None:
        """What the index should say of a ledger, whose state stays where it is. StorageError as ``get``."""
        state = self.loaded.get(ledger_id)
        if state is None:
            return self._catalogue.ledger_now(ledger_id)
        state.settle_fence(self._durable())
        return state.to_store()

    async def save(self) -> None:
        """Write all states that changed to the index, in pieces, one caller after the other."""
        async with self._saving:
            states = self._dirty()
            for start in range(0, len(states), _PIECE_ROWS):
                await self._save(states[start : start + _PIECE_ROWS])

    async def _save(self, piece: Sequence[LedgerState]) -> None:
        batch = []
        for state in piece:
            batch.append(rows.encode_ledger(state.ledger_id, state.to_store()))
            # What changes it from here on makes it dirty again. A fence that is left out keeps it so.
            state.is_dirty = state.is_fence_unwritten
            state.pins += 1  # It must not be read back before it is written.
        try:
            await self._catalogue.write(batch)
        except BaseException:
            for state in piece:
                state.is_dirty = True  # The index may have it or not.
            raise
        finally:
            for state in piece:
                state.pins -= 1

    def _dirty(self) -> list[LedgerState]:
        """The states that the index does not have; they are taken to be saved now."""
        self.unsaved = 0
        durable = self._durable()
        states = [state for state in self.loaded.values() if state.is_dirty]
        for state in states:
            state.settle_fence(durable)
        return states

    async def forget(self, segment: InMemory) -> None:
        """The segment's runs are in the index and leave memory."""
        ledger_ids = {run.ledger_id for run in segment.runs}
        for count, ledger_id in enumerate(ledger_ids):
            self.loaded[ledger_id].forget_runs(segment.number)
            if count % _STEP == _STEP - 1:
                await trio.lowlevel.checkpoint()
        await self.shrink()
