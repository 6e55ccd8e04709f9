"""The arithmetic of quorums, written a second time for the checkers (protocol A.0).

A checker must not share a mistake with the code that it checks. So this module uses no code of
``model.quorum``. It is written to be obviously right rather than fast. ``GodView`` and the other checkers use
it.
"""

from __future__ import annotations

from collections.abc import Collection

from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication

__all__ = ["bookies_of", "covers", "holds", "negatives_needed"]


def _slots(replication: Replication, entry_id: int) -> list[int]:
    """Return the slots of an entry's write set."""
    slot = entry_id % replication.ensemble
    slots = []
    for _ in range(replication.write_quorum):
        slots.append(slot)
        slot = 0 if slot == replication.ensemble - 1 else slot + 1
    return slots


def holds(replication: Replication, slot: int, entry_id: int) -> bool:
    """Whether the entry is written to the slot."""
    return slot in _slots(replication, entry_id)


def bookies_of(metadata: LedgerMetadata, entry_id: int) -> list[BookieId]:
    """Return the bookies of an entry's write set."""
    ensemble = next(each for each in reversed(metadata.fragments) if each.first_entry <= entry_id).ensemble
    return [ensemble[slot] for slot in _slots(metadata.replication, entry_id)]


def negatives_needed(replication: Replication) -> int:
    """Return how many bookies of a write set must lack an entry, so that fewer than an ack quorum can have
    it."""
    return next(
        absent
        for absent in range(replication.write_quorum + 1)
        if replication.write_quorum - absent < replication.ack_quorum
    )


def covers(replication: Replication, fenced: Collection[int]) -> bool:
    """Whether no write set has an ack quorum of slots that are not fenced."""
    for entry_id in range(replication.ensemble):
        free = [slot for slot in _slots(replication, entry_id) if slot not in fenced]
        if len(free) >= replication.ack_quorum:
            return False
    return True
