"""What a bookie should have of a ledger, and what of it is missing.

The metadata says which entries are a bookie's: in each fragment that names it, those whose write set has its
slot. Whose last entry is not known yet, the last fragment of a ledger that is not CLOSED, nothing can be said
of: its recovery comes first. All before it is committed and complete (R-B3), so it can be checked at any
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication


@attrs.frozen
class Share:
    """A bookie's part of one fragment: of entries first..last those that its slot holds."""

    first: int
    last: int
    slot: int
    replication: Replication

    def ids(self, first: int, last: int) -> Iterator[int]:
        """Its entries from ``first`` to ``last``."""
        for entry_id in range(max(first, self.first), min(last, self.last) + 1):
            if self.replication.holds(self.slot, entry_id):
                yield entry_id


def shares(metadata: LedgerMetadata, bookie_id: BookieId) -> list[Share]:
    """What the bookie is to have of the ledger, as far as its end is known; in order."""
    found = []
    for index, fragment in enumerate(metadata.fragments):
        end = metadata.fragment_end(index)
        if end is not None and bookie_id in fragment.ensemble and fragment.first_entry <= end:
            slot = fragment.ensemble.index(bookie_id)
            found.append(Share(fragment.first_entry, end, slot, metadata.replication))
    return found


def gaps(share: Share, stored: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of the share, from one of its entries to another, in which all of its entries are missing.

    ``stored`` are ranges of ids, growing, as the index has them. What lies in a gap and is not the bookie's
    is passed over, so a striped ledger of which all is missing is one gap."""
    found: list[tuple[int, int]] = []
    at = share.first
    for first, last in (*stored, (share.last + 1, share.last + 1)):
        if last < at:
            continue
        stop = min(first - 1, share.last)
        low = at
        while low <= stop and not share.replication.holds(share.slot, low):
            low += 1  # Of a striped ledger most of what is not stored is another bookie's.
        if low <= stop:
            high = next(e for e in range(stop, low - 1, -1) if share.replication.holds(share.slot, e))
            found.append((low, high))
        at = last + 1
        if at > share.last:
            break
    return found
