"""Fences: the bookie refuses ordinary adds of a ledger, and answers once that promise is durable.

    fenced in memory --> FENCE record in the journal --> its sync --> the answer, with the LAC and the LAFR

From the first step on, the bookie refuses every later ordinary add. That step comes before the record is
written, so no add gets between the two (rule 2). Every answer waits for the sync, even if an earlier fence of
the same ledger is still under way: the answer promises that the fence survives a crash. Fences always go
through the journal, even if entries do not. A ledger that this bookie has never seen can be fenced too (T24).

**No room.** If the journal has no room for a fence's record, the fence is undone and the ledger is as before.
There is one exception: if the bookie has already refused an add because of this fence, the fence stays in
memory, so that the refusal stays true.
"""

from __future__ import annotations

import trio

from bookie.core.journal_items import FENCE, encode_fence
from bookie.core.ledger import BookieLedger
from bookie.core.results import FenceResult, status_of
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.journal.journal import Journal
from ledgerlog.errors import StorageError
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.frame import Status


class Fencer:
    """Fences ledgers."""

    def __init__(self, journal: Journal, ledgers: LedgerTable) -> None:
        self.fences = 0
        self._journal = journal
        self._commit = journal.commit
        self._ledgers = ledgers

    async def fence(self, ledger_id: int, key: bytes) -> FenceResult:
        """Do ``Engine.fence``."""
        try:
            state = self._ledgers.get(ledger_id)
        except StorageError as error:
            return FenceResult(status_of(error), NO_ENTRY, NO_ENTRY)
        if state is None:
            state = BookieLedger(ledger_id, key)
            self._ledgers.add(state)
        refusal = state.fence_refusal(key)
        if refusal is None and self._journal.stopped is not None:
            refusal = self._journal.stopped
        if refusal is not None:
            await trio.lowlevel.checkpoint()
            return FenceResult(refusal, NO_ENTRY, NO_ENTRY)
        self.fences += 1
        state.pins += 1
        state.fencers += 1
        try:
            refusal = await self._fence(state)
        finally:
            state.pins -= 1
            state.fencers -= 1
            if not state.fencers:
                state.give_up_fence()
                if state.is_blank and not state.pins:
                    self._ledgers.drop(state)
        return FenceResult(refusal or Status.OK, state.lac, state.lafr)

    async def _fence(self, state: BookieLedger) -> Status | None:
        """Wait until the fence is durable, and return None. If it cannot become durable, return a status that
        says why."""
        if state.is_fence_settled(self._commit.durable):
            await trio.lowlevel.checkpoint()
            return None
        if not state.is_fenced:
            state.on_fence()
        while not state.fence_sequence:
            if self._journal.append(FENCE, encode_fence(state.ledger_id, state.key)) is not None:
                self._journal.active.marked.add(state.ledger_id)
                state.fence_sequence = self._commit.sequence
                if state.key_sequence is None:
                    state.key_sequence = state.fence_sequence
            elif self._journal.is_disk_full:
                await trio.lowlevel.checkpoint()
                return Status.DISK_FULL
            else:
                await self._journal.progress.park()
        # If a caller finds the ledger fenced already, it also waits for the first fencer's sync (rule 2).
        await self._journal.wait_durable(state.fence_sequence)
        return None
