"""What files say of ledgers, brought into an index that does not know these files yet.

Replay takes the facts of segments, the taking over of entry logs takes those of logs. The states that come of
it are saved to the index at once: only bounds and refusals are in them, so a crash in between costs nothing,
and the same file taken again gives the same.

A segment tells its runs in the order in which they came, and each brings its ledger's key. An entry log says
of each ledger first what was known of it when the log was written.
"""

from __future__ import annotations

from bookie.core.entry_log import LoggedLedger
from bookie.core.facts import Add, Deletion, Fact
from bookie.core.ledger import LedgerState
from bookie.core.records import Fence, Run
from bookie.storage.engine.ledgers import Ledgers
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageCorrupt
from ledgerlog.limits import LEDGER_KEY_BYTES


class FoundLedgers:
    """The states of the ledgers of a file, on top of what the index knows of them."""

    def __init__(self, catalogue: Catalogue) -> None:
        # No journal runs: a fence is durable because a file says so.
        self._ledgers = Ledgers(catalogue, maximum=2**63, durable=lambda: 0)

    def take(self, fact: Fact, path: str) -> Run | None:
        """Bring the states up to what a file at ``path`` says; the run that it tells of."""
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
                    # Whatever was known of it, its key included, may have gone with the files that said so.
                    self._state(ledger_id, bytes(LEDGER_KEY_BYTES)).on_delete()
            case LoggedLedger():
                state = self._state(fact.ledger_id, fact.key)
                state.tell(fact.lac, fact.lafr)
                if fact.is_deleted and not state.is_deleted:
                    state.on_delete()
                elif fact.is_fenced and not state.is_fenced:
                    state.on_fence_found()
        return None

    def _state(self, ledger_id: int, key: bytes) -> LedgerState:
        state = self._ledgers.get(ledger_id)
        if state is None:
            state = LedgerState(ledger_id, key)
            self._ledgers.add(state)
        return state

    def is_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger that a fact was about is deleted."""
        return self._ledgers.loaded[ledger_id].is_deleted

    async def save(self) -> None:
        """Write the states to the index."""
        await self._ledgers.save()
