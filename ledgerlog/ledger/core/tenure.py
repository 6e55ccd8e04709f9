"""A bookie's *tenure* of one slot of an ensemble: which entries the bookie confirmed, and whether it lacks
some.

In the plain mode (without guaranteed write quorum), the protocol machine (``ledger.core.pending``) is done
with an entry at the ack quorum, and then forgets which bookies confirmed the entry. A copy that is on its way
at that moment may arrive later, or never. A ``Tenure`` continues counting: *every* confirmation of the bookie
counts, no matter how late, and even while the slot is being replaced. It records which entries the bookie
has, not which entries may be acknowledged.

The cost depends on the number of confirmations, not on the number of entries. Confirmations come nearly
always in order, so they usually make one range. Each interruption may leave one more. If there are more than
``_RANGES_MAX`` ranges, the oldest are forgotten, and their entries count as lacking. That may cause an
unnecessary task for repair, but no missing copy is overlooked.
"""

from __future__ import annotations

from ledgerlog.ledger.core.ranges import RangeSet
from ledgerlog.model.quorum import Replication

__all__ = ["Tenure"]

_RANGES_MAX = 64


class Tenure:
    """The confirmations of one bookie in one slot, from the entry ``first`` on."""

    __slots__ = ("_confirmed", "_first", "_is_striped", "_replication", "_slot")

    def __init__(self, replication: Replication, slot: int, first: int) -> None:
        self._replication = replication
        self._is_striped = replication.is_striped
        self._slot = slot
        self._first = first
        self._confirmed = RangeSet()

    def on_add_ok(self, first: int, last: int) -> None:
        """The bookie has durably stored the entries of first..last that its slot holds.

        Args:
            first: The first entry.
            last: The last entry. The answer to a frame without entries has ``first`` = ``last`` + 1, and does
                not count.
        """
        if first > last:
            return
        if self._is_striped:
            # Entries just before ``first`` that only other slots hold are in no frame for this slot. They
            # leave no gap.
            first = self._after_gap(first)
        if first < self._first:
            first = self._first
        if first <= last:
            confirmed = self._confirmed
            if confirmed.add(first, last) and confirmed.count > _RANGES_MAX:
                confirmed.discard_first()

    def lacks_any(self, last: int) -> bool:
        """Return whether the bookie failed to confirm an entry up to ``last`` that its slot holds."""
        reach = self._confirmed.reach(self._first_held())
        return any(
            self._replication.holds(self._slot, entry_id)
            for entry_id in range(reach + 1, min(last, reach + self._replication.ensemble) + 1)
        )

    def has_gap(self, last: int) -> bool:
        """Return whether the bookie failed to confirm an entry up to ``last`` that its slot holds, and
        confirmed a later one.

        Bookies confirm in order. So the copy was lost on its way, or the bookie refused it, and it is not
        sent again once the entry has its ack quorum."""
        ranges = self._confirmed.ranges()
        return bool(ranges) and self.lacks_any(min(last, ranges[-1][1]))

    def _first_held(self) -> int:
        first = self._first
        while not self._replication.holds(self._slot, first):
            first += 1
        return first

    def _after_gap(self, first: int) -> int:
        """Return the entry after the last entry below ``first`` that the slot holds."""
        while first > self._first and not self._replication.holds(self._slot, first - 1):
            first -= 1
        return first
