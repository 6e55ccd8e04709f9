"""What the auditor concludes: which bookies are lost, and which ledgers suffer from it (rules 20 to 22, 24).

``Absences`` knows since when each bookie has been missed. A bookie is *absent* while it is not registered and
*lost* once it was absent for the delay without a break; one that returns before is as if it had never gone.
An auditor that has just begun misses everybody who is not there from that moment on (rule 22): it cannot know
for how long they had been away, and waits the whole delay again.

``ends`` are the entries that a check of a fragment's ends looks at, on each bookie. Holes between them are
not seen (rule 24); a list of all that a bookie has shows them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, shares

__all__ = ["Absences", "ends", "named_bookies", "shares_of"]


class Absences:
    """Since when bookies have been missed, by a clock that does not go back."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}

    def look(self, absent: Collection[BookieId], now: float) -> None:
        """These are not there now, and all others are."""
        self._since = {bookie: self._since.get(bookie, now) for bookie in sorted(absent)}

    def since(self) -> Mapping[BookieId, float]:
        """Who is absent, and since when."""
        return self._since

    def lost(self, now: float, delay_s: float) -> frozenset[BookieId]:
        """Who has been absent for the delay."""
        return frozenset(bookie for bookie, since in self._since.items() if since + delay_s <= now)

    def next_lost_at(self, now: float, delay_s: float) -> float | None:
        """When the next one will be lost if it does not return; None where nobody else is absent."""
        return min((at for t in self._since.values() if (at := t + delay_s) > now), default=None)


def named_bookies(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """All that any fragment of the ledger names."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)


def shares_of(metadata: LedgerMetadata) -> dict[BookieId, list[Share]]:
    """What each bookie is to have of the ledger, as far as the fragments' ends are known."""
    return {bookie: shares(metadata, bookie) for bookie in sorted(named_bookies(metadata))}


def ends(share: Share) -> list[int]:
    """The first and the last entry of a bookie's share of a fragment: two, one, or none (rule 21)."""
    first = next(share.ids(share.first, share.last), None)
    if first is None:
        return []
    last = next(e for e in range(share.last, first - 1, -1) if share.replication.holds(share.slot, e))
    return [first] if first == last else [first, last]
