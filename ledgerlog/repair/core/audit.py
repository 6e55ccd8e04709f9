"""The auditor's decisions: which bookies are lost, and which entries it checks (rules 20 to 22, 24).

A bookie is *absent* while it is not registered. ``Absences`` remembers when each absence began. A bookie is
*lost* once it was absent for the whole delay without a break. If the bookie returns before that, its absence
is forgotten. An auditor that has just started counts every absence from its own start (rule 22): it cannot
know when a bookie went away, so it waits the whole delay again.

A bookie's *share* of a fragment is the entries that the bookie should have (``model.missing``). ``ends``
gives the first and the last entry of a share. The cheap check reads only these two entries, so it does not
see holes between them (rule 24). Only the bookie's list of its entries shows the holes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, shares

__all__ = ["Absences", "ends", "named_bookies", "shares_of"]


class Absences:
    """The absent bookies, each with the time when its absence began, by a clock that does not go back."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}

    def look(self, absent: Collection[BookieId], now: float) -> None:
        """Note that exactly the bookies in ``absent`` are absent at the time ``now``."""
        self._since = {bookie: self._since.get(bookie, now) for bookie in sorted(absent)}

    def since(self) -> Mapping[BookieId, float]:
        """Return each absent bookie with the time when its absence began."""
        return self._since

    def lost(self, now: float, delay_s: float) -> frozenset[BookieId]:
        """Return the bookies that have been absent for ``delay_s`` seconds or longer."""
        return frozenset(bookie for bookie, since in self._since.items() if since + delay_s <= now)

    def next_lost_at(self, now: float, delay_s: float) -> float | None:
        """Return the time when the next absent bookie will count as lost; None if no bookie will."""
        return min((at for t in self._since.values() if (at := t + delay_s) > now), default=None)


def named_bookies(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Return every bookie that any fragment of the ledger names."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)


def shares_of(metadata: LedgerMetadata) -> dict[BookieId, list[Share]]:
    """Return each bookie's shares of the ledger. Fragments whose end is not known are left out."""
    return {bookie: shares(metadata, bookie) for bookie in sorted(named_bookies(metadata))}


def ends(share: Share) -> list[int]:
    """Return the first and the last entry of a bookie's share of a fragment (rule 21).

    If the share has only one entry, return that one; if it has none, return an empty list.
    """
    first = next(share.ids(share.first, share.last), None)
    if first is None:
        return []
    last = next(e for e in range(share.last, first - 1, -1) if share.replication.holds(share.slot, e))
    return [first] if first == last else [first, last]
