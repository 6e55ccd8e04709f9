"""The entries of a ledger that a bookie should have, and the entries that it lacks.

The metadata says which entries belong on a bookie: in each fragment that names the bookie, the entries whose
write set has its slot. For example, with E=3 and a write quorum of 2, slot 0 should have the entries 0, 2, 3,
5, ...

The last fragment of a ledger that is not CLOSED has no known end, so it cannot be checked before recovery.
All entries before that fragment are committed and complete (R-B3), so they can be checked at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication


@attrs.frozen
class Share:
    """A bookie's part of one fragment: the entries from ``first`` to ``last`` that its slot holds."""

    first: int
    last: int
    slot: int
    replication: Replication

    def ids(self, first: int, last: int) -> Iterator[int]:
        """Yield the entries of the share from ``first`` to ``last``."""
        for entry_id in range(max(first, self.first), min(last, self.last) + 1):
            if self.replication.holds(self.slot, entry_id):
                yield entry_id


def shares(metadata: LedgerMetadata, bookie_id: BookieId) -> list[Share]:
    """Return the bookie's shares of the ledger, in order, as far as the ledger's end is known."""
    found = []
    for index, fragment in enumerate(metadata.fragments):
        end = metadata.fragment_end(index)
        if end is not None and bookie_id in fragment.ensemble and fragment.first_entry <= end:
            slot = fragment.ensemble.index(bookie_id)
            found.append(Share(fragment.first_entry, end, slot, metadata.replication))
    return found


def gaps(share: Share, stored: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of the share in which all of its entries are missing.

    A range begins and ends with an entry of the share. Entries of other bookies inside a range do not split
    it, so a striped ledger that is missing entirely is one range.

    Args:
        share: The entries that the bookie should have.
        stored: The ranges of ids that the bookie's index has, growing.
    """
    found: list[tuple[int, int]] = []
    at = share.first
    for first, last in (*stored, (share.last + 1, share.last + 1)):
        if last < at:
            continue
        stop = min(first - 1, share.last)
        low = at
        while low <= stop and not share.replication.holds(share.slot, low):
            low += 1  # Skip the entries of other bookies in a striped ledger.
        if low <= stop:
            high = next(e for e in range(stop, low - 1, -1) if share.replication.holds(share.slot, e))
            found.append((low, high))
        at = last + 1
        if at > share.last:
            break
    return found
