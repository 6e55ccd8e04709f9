"""The ledger states in memory: one object for each ledger, read from the index at its first use.

Loading a state never waits, and the verdict that needs it follows in the same step. So a ledger never has two
objects, and no lock is needed (rule 3; in Apache BookKeeper, two objects for one ledger have lost
acknowledged entries, #4701). The price: the first use of a ledger reads the index in the event loop's thread.
That takes a few microseconds if the row is cached or the filter excludes the key, and a disk read otherwise.

If there are more than ``maximum`` states, the *sweep* evicts states, oldest first. The sweep keeps a state
that was used since the last sweep, or that holds facts that would be lost (``BookieLedger.is_evictable``).
Each new state makes the sweep look at a few others, which spreads the work. When a segment leaves memory,
many states with runs (frames of entries) in that segment become evictable. Then the sweep looks at all
states.

A ledger that is gone (``bookie.core.gone_ledgers``) has no row in the index and no state in memory. For each
``get`` of such a ledger, the table makes a new state that says that the ledger is deleted. No verdict on a
deleted ledger ever changes, so these states need not be kept. A rebuild of the index may find rows of a gone
ledger in old files. The ledger still counts as deleted.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

import trio

from bookie.core import rows
from bookie.core.gone_ledgers import GoneLedgers
from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger, StoredLedger
from bookie.storage.disk.gone_ledgers import GoneLedgerStore
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageError
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.ledgers import LedgerOnBookie

_SWEEP = 16
_STEP = 256
_PIECE_ROWS = 1024


class InMemory(Protocol):
    """A holder of runs in memory: a segment of the journal, or an arena of the write cache."""

    @property
    def number(self) -> int: ...

    @property
    def runs(self) -> Sequence[EntryRun]: ...


def _nobody() -> None:
    """Do nothing. Callers that load a bounded number of ledgers and save them at the end use this."""


class LedgerTable:
    """The ledger states in memory.

    Args:
        catalogue: The index, for states that are not in memory.
        maximum: The most states that should stay in memory.
        durable: Returns the sequence of the last durable journal block.
        gone: The ledgers that are gone. None: no caller asks for such a ledger.
        on_crowded: Called for each new state while ``is_crowded``. It should have the dirty states saved:
            those that the index does not have yet.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        maximum: int,
        durable: Callable[[], int],
        gone: GoneLedgerStore | None = None,
        on_crowded: Callable[[], object] = _nobody,
    ) -> None:
        self.loaded: OrderedDict[int, BookieLedger] = OrderedDict()
        """The states in memory, by ledger id. The hot path looks here before it calls ``get``."""
        self.unsaved = 0
        """The number of states that came into memory since the last ``save`` while the sweep could evict no
        other."""
        self._catalogue = catalogue
        self._maximum = maximum
        self._durable = durable
        self._gone = gone
        self._settling = GoneLedgers()
        self._on_crowded = on_crowded
        self._saving = trio.Lock()

    @property
    def is_crowded(self) -> bool:
        """Whether so many states cannot be evicted that it is worth saving the dirty ones."""
        return self.unsaved > self._maximum // 4

    def get(self, ledger_id: int) -> BookieLedger | None:
        """Return the state of a ledger; None if the ledger is unknown.

        Raises:
            StorageError: The index cannot be read, or the ledger is just being noted as gone.
        """
        state = self.loaded.get(ledger_id)
        if state is None:
            stored = self._catalogue.ledger_now(ledger_id)
            if stored is None:
                if self.is_gone(ledger_id):
                    return BookieLedger.tombstone(ledger_id)
                if ledger_id in self._settling:
                    raise StorageError(f"ledger {ledger_id} is just being noted as gone")
                return None
            state = BookieLedger.restore(ledger_id, stored)
            if not state.is_deleted and self.is_gone(ledger_id):
                state.on_delete()
            self._put(state)
        state.was_used = True
        return state

    def is_gone(self, ledger_id: int) -> bool:
        """Whether the ledger is among the gone ledgers."""
        return self._gone is not None and ledger_id in self._gone.now

    def add(self, state: BookieLedger) -> None:
        """Add the state of a ledger that was unknown."""
        assert state.ledger_id not in self.loaded
        self._put(state)

    def drop(self, state: BookieLedger) -> None:
        """Undo ``add`` of a state that is still blank."""
        assert state.is_blank
        assert not state.pins
        del self.loaded[state.ledger_id]

    def _put(self, state: BookieLedger) -> None:
        # Sweep before the new state is in, so that it cannot be evicted itself.
        if len(self.loaded) >= self._maximum and not self._sweep(_SWEEP):
            self.unsaved += 1
        self.loaded[state.ledger_id] = state
        if self.is_crowded:
            self._on_crowded()

    def _sweep(self, count: int) -> int:
        """Look at the ``count`` oldest states and evict the states that may leave. Return how many left."""
        loaded, durable = self.loaded, self._durable()
        evicted = 0
        for _ in range(min(count, len(loaded))):
            ledger_id, state = loaded.popitem(last=False)
            if not state.was_used and state.is_evictable(durable):
                evicted += 1
            else:
                state.was_used = False
                loaded[ledger_id] = state  # It is the youngest now.
        return evicted

    async def shrink(self) -> None:
        """Sweep until there are at most ``maximum`` states. Look at each state at most once."""
        left = len(self.loaded)
        while left > 0 and len(self.loaded) > self._maximum:
            self._sweep(_STEP)
            left -= _STEP
            await trio.lowlevel.checkpoint()

    async def held_from(self, first: int, maximum: int) -> tuple[list[LedgerOnBookie], int]:
        """List the ledgers with durable entries, from ``first`` on, in order.

        Args:
            first: The first ledger.
            maximum: The most ledgers to return.

        Returns:
            The ledgers, and the ledger id up to which the list is complete.

        Raises:
            StorageError: The index cannot be read.
        """
        held: dict[int, LedgerOnBookie] = {}

        def look_at_memory() -> None:
            durable = self._durable()
            for ledger_id, state in self.loaded.items():
                if ledger_id >= first:
                    last = NO_ENTRY if state.is_deleted else state.last_durable(durable)
                    held[ledger_id] = LedgerOnBookie(ledger_id, last, state.key)

        # Look before and after: a state may be saved and leave memory while the index is read.
        look_at_memory()
        rows_found, through = await self._catalogue.ledgers_from(first, maximum)
        for ledger_id, row in rows_found:
            last = NO_ENTRY if row.is_deleted else row.last_entry
            held.setdefault(ledger_id, LedgerOnBookie(ledger_id, last, row.key))
        look_at_memory()
        found = [
            ledger
            for number, ledger in sorted(held.items())
            if number <= through and ledger.last_entry >= 0 and not self.is_gone(number)
        ]
        if len(found) > maximum:
            return found[:maximum], found[maximum - 1].ledger_id
        return found, through

    def stored(self, ledger_id: int) -> StoredLedger | None:
        """Return the state that the index should have for a ledger, without loading the ledger.

        Raises:
            StorageError: The index cannot be read.
        """
        state = self.loaded.get(ledger_id)
        if state is None:
            return self._catalogue.ledger_now(ledger_id)
        state.settle_fence(self._durable())
        return state.to_store()

    def is_deleted(self, ledger_id: int) -> bool:
        """Whether the ledger is deleted, without loading it. Its rows may still be in the index.

        Raises:
            StorageError: The index cannot be read.
        """
        if self.is_gone(ledger_id):
            return True
        stored = self.stored(ledger_id)
        return stored is not None and stored.is_deleted

    async def save(self) -> None:
        """Write all changed states to the index, in batches. Calls run one after the other."""
        async with self._saving:
            states = self._dirty()
            for start in range(0, len(states), _PIECE_ROWS):
                await self._save(states[start : start + _PIECE_ROWS])

    async def _save(self, piece: Sequence[BookieLedger]) -> None:
        batch = []
        for state in piece:
            batch.append(rows.encode_ledger(state.ledger_id, state.to_store()))
            # Any later change makes the state dirty again. If its fence is not written yet, it stays dirty.
            state.is_dirty = state.is_fence_unwritten
            state.pins += 1  # Otherwise it could be evicted now, and its old version read back.
        try:
            await self._catalogue.write(batch)
        except BaseException:
            for state in piece:
                state.is_dirty = True  # The index may or may not have this version.
            raise
        finally:
            for state in piece:
                state.pins -= 1

    def _dirty(self) -> list[BookieLedger]:
        """Return the states that the index does not have. The caller saves them now."""
        self.unsaved = 0
        durable = self._durable()
        states = [state for state in self.loaded.values() if state.is_dirty]
        for state in states:
            state.settle_fence(durable)
        return states

    # --- ledgers that are gone --------------------------------------------------------------------

    @contextmanager
    def settling(self, candidates: GoneLedgers) -> Iterator[None]:
        """During the body, refuse each request about a candidate that is unknown here. So no candidate
        becomes known while the file of the gone ledgers is written.

        If the body fails, the file may name the candidates already, and the next start would take them for
        gone. So they are refused until a later body succeeds."""
        self._settling = candidates.joined(self._settling.ranges)
        yield
        self._settling = GoneLedgers()

    async def living_between(self, first: int, last: int) -> array[int]:
        """Return the ledgers from ``first`` to ``last`` that are known here and not deleted, ascending."""
        found: set[int] = set()

        def look_at_memory() -> None:
            found.update(
                ledger_id
                for ledger_id, state in self.loaded.items()
                if first <= ledger_id <= last and not state.is_deleted
            )

        # Look before and after: a state may be saved and leave memory while the index is read.
        look_at_memory()
        async with aclosing(self._catalogue.ledgers(first, last)) as pages:
            async for page in pages:
                found.update(ledger_id for ledger_id, stored in page if not stored.is_deleted)
        look_at_memory()
        return array("Q", sorted(found))

    async def remove(self, ledger_ids: Sequence[int]) -> None:
        """Remove the rows and the states of ledgers that are gone. If something uses a ledger's state, or if
        its runs are in memory, the ledger stays for a later call."""
        async with self._saving:
            for start in range(0, len(ledger_ids), _PIECE_ROWS):
                durable = self._durable()
                piece = []
                for ledger_id in ledger_ids[start : start + _PIECE_ROWS]:
                    assert self.is_gone(ledger_id)
                    state = self.loaded.get(ledger_id)
                    if state is None or state.is_evictable(durable):
                        piece.append(ledger_id)
                await self._catalogue.write([(rows.ledger_key(ledger_id), None) for ledger_id in piece])
                for ledger_id in piece:
                    self.loaded.pop(ledger_id, None)

    async def forget(self, segment: InMemory) -> None:
        """Drop the runs of a segment from memory. They are in the index."""
        ledger_ids = {run.ledger_id for run in segment.runs}
        for count, ledger_id in enumerate(ledger_ids):
            self.loaded[ledger_id].forget_runs(segment.number)
            if count % _STEP == _STEP - 1:
                await trio.lowlevel.checkpoint()
        await self.shrink()
