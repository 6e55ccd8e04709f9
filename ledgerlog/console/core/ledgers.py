"""The board of ledgers: their states, fragments, and the copies of their entries that are in reach.

A copy counts as *there* (in reach) if its bookie answers. A reader would find it now, unless it is damaged:
the board does not look for damage. ``ledgerlog ledger verify`` reads every copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgerlog.console.core.bookies import serves_reads
from ledgerlog.console.core.picture import Row
from ledgerlog.model.access import log_of_labels
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata

__all__ = ["copies_there", "fragment_rows", "ledger_row"]


def copies_there(ledger: LedgerMetadata, index: int, is_there: Callable[[BookieId], bool]) -> int:
    """Return the least number of copies in reach that an entry of the fragment has."""
    ensemble, replication = ledger.fragments[index].ensemble, ledger.replication
    last = ledger.fragment_end(index)
    first = ledger.fragments[index].first_entry
    entries = len(ensemble) if last is None else max(1, min(len(ensemble), last - first + 1))
    return min(
        sum(is_there(ensemble[slot]) for slot in replication.write_set(entry))
        for entry in range(first, first + entries)
    )


def ledger_row(
    ledger_id: int, ledger: LedgerMetadata | None, why: str | None, is_there: Callable[[BookieId], bool]
) -> Row:
    """Return the row of a ledger in a list.

    Args:
        ledger_id: The ledger.
        ledger: The ledger's metadata. None: the metadata is missing or cannot be read.
        why: The reason if ``ledger`` is None.
        is_there: Whether a bookie answers.
    """
    if ledger is None:
        return {"ledger": ledger_id, "state": None, "why": why}
    copies = [copies_there(ledger, index, is_there) for index in range(len(ledger.fragments))]
    wanted = ledger.replication.write_quorum
    return {
        "ledger": ledger_id,
        "state": ledger.state.value,
        "why": None,
        "log": log_of_labels(ledger.custom) or None,
        "last_entry": ledger.last_entry,
        "replication": str(ledger.replication),
        "fragments": len(ledger.fragments),
        "bookies": list(ledger.last_fragment.ensemble),
        "copies": min(copies),
        "copies_wanted": wanted,
        "created_ms": ledger.created_ms,
    }


def fragment_rows(ledger: LedgerMetadata, state_of: Callable[[BookieId], str]) -> dict[str, Row]:
    """Return the rows of the fragments of a ledger.

    Args:
        ledger: The ledger.
        state_of: Returns the state of a bookie.
    """

    def is_there(bookie_id: BookieId) -> bool:
        return serves_reads(state_of(bookie_id))

    def bookies(ensemble: Sequence[BookieId]) -> list[Row]:
        return [{"id": bookie_id, "state": state_of(bookie_id)} for bookie_id in ensemble]

    return {
        str(fragment.first_entry): {
            "first_entry": fragment.first_entry,
            "last_entry": ledger.fragment_end(index),
            "bookies": bookies(fragment.ensemble),
            "copies": copies_there(ledger, index, is_there),
            "copies_wanted": ledger.replication.write_quorum,
        }
        for index, fragment in enumerate(ledger.fragments)
    }
