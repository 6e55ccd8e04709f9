"""Rebuilding ledger states from files that the index does not know yet.

Replay passes in the facts of segments (see ``take``); the take-over of entry logs passes in the facts of
logs. The resulting states go to the index at once. A state holds only bounds (such as the LAC) and refusals
(such as a fence). So a crash in between costs nothing: taking the same file again gives the same states.

A segment lists its runs (frames of entries of one ledger) in the order in which they came, and each run
carries its ledger's key. In an entry log, each ledger begins with a record of its state at the time when the
log was written.
"""

from __future__ import annotations

from bookie.core.entry_log import LoggedLedger
from bookie.core.facts import Add, Deletion, Fact
from bookie.core.journal_items import EntryRun, Fence
from bookie.core.ledger import BookieLedger
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageCorrupt
from ledgerlog.limits import LEDGER_KEY_BYTES


class FoundLedgers:
    """The ledger states that result from a file's facts, starting from the states in the index."""

    def __init__(self, catalogue: Catalogue) -> None:
        # No journal is running here. A fence is durable because a file has it.
        self._ledgers = LedgerTable(catalogue, maximum=2**63, durable=lambda: 0)

    def take(self, fact: Fact, path: str) -> EntryRun | None:
        """Apply one fact from the file at ``path``.

        Returns:
            The run in the fact, or None if the fact has no run.

        Raises:
            StorageCorrupt: An entry log has entries of a ledger before the ledger's own record.
            StorageError: The index cannot be read.
        """
        match fact:
            case Add(run, header):
                if run.file > 0:
                    state = self._state(run.ledger_id, header.key)
                    state.on_run(run)
                    state.tell(header.lac, header.lafr)
                    return run
                known = self._ledgers.loaded.get(run.ledger_id)
                if known is None:
                    raise StorageCorrupt(
                        path, run.offset, f"entries of ledger {run.ledger_id} before its record"
                    )
                known.on_found(run)
                return run
            case Fence():
                self._state(fact.ledger_id, fact.key).on_fence_found()
            case Deletion(ledger_ids):
                for ledger_id in ledger_ids:
                    # The files with the ledger's state and its key may be gone already.
                    self._state(ledger_id, bytes(LEDGER_KEY_BYTES)).on_delete()
            case LoggedLedger():
                state = self._state(fact.ledger_id, fact.key)
                state.tell(fact.lac, fact.lafr)
                if fact.is_deleted and not state.is_deleted:
                    state.on_delete()
                elif fact.is_fenced and not state.is_fenced:
                    state.on_fence_found()
        return None

    def _state(self, ledger_id: int, key: bytes) -> BookieLedger:
        state = self._ledgers.get(ledger_id)
        if state is None:
            state = BookieLedger(ledger_id, key)
            self._ledgers.add(state)
        return state

    def is_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger is deleted. An earlier fact must have been about it."""
        return self._ledgers.loaded[ledger_id].is_deleted

    async def save(self) -> None:
        """Write the states to the index."""
        await self._ledgers.save()

    def logged(self) -> dict[int, LoggedLedger]:
        """Return the states in the form in which an entry log stores them."""
        found: dict[int, LoggedLedger] = {}
        for ledger_id in self._ledgers.loaded:
            stored = self._ledgers.stored(ledger_id)
            if stored is not None:
                found[ledger_id] = LoggedLedger(
                    ledger_id, stored.key, stored.is_fenced, stored.is_deleted, stored.lac, stored.lafr
                )
        return found
