"""What one bookie confirmed while it sat in one slot of an ensemble, and whether it lacks entries.

The plain mode retires an entry at the ack quorum, and the protocol machine (``ledger.core.pending``) then
forgets which bookies confirmed it. A copy that was on its way at that moment may arrive later, or never. A
``Tenure`` goes on counting: *every* confirmation of the bookie counts, no matter how late, and also while the
slot is being replaced. It records which entries the bookie has, not which entries may be acknowledged.

The cost is per confirmation, no matter how many entries it covers. Confirmations come nearly always in order,
so they usually make one range. Each interruption may leave one more. Beyond ``_RANGES_MAX`` ranges the oldest
are forgotten, and their entries count as lacking. That may cause an unnecessary task for repair, but
overlooks no hole.
"""

from __future__ import annotations

from ledgerlog.ledger.core.ranges import RangeSet
from ledgerlog.model.quorum import Replication

__all__ = ["Tenure"]

_RANGES_MAX = 64


class Tenure:
    """The confirmations of one bookie in one slot, from the entry ``first`` on."""

    __slots__ = ("_confirmed", "_first", "_replication", "_slot")

    def __init__(self, replication: Replication, slot: int, first: int) -> None:
        self._replication = replication
        self._slot = slot
        self._first = first
        self._confirmed = RangeSet()

    def on_add_ok(self, first: int, last: int) -> None:
        """The bookie has durably stored the entries of first..last that its slot holds.

        Args:
            first: The first entry.
            last: The last entry. The answer to a frame without entries has ``first`` = ``last`` + 1, and
                counts nothing.
        """
        if first > last:
            return
        # Just before ``first``, no frame carries the entries that only other slots hold. They are no gap.
        first = self._after_gap(first)
        if first <= last:
            confirmed = self._confirmed
            confirmed.add(first, last)
            if confirmed.count > _RANGES_MAX:
                confirmed.discard_first()

    def lacks_any(self, last: int) -> bool:
        """Return whether the bookie failed to confirm an entry up to ``last`` that its slot holds."""
        reach = self._confirmed.reach(self._first_held())
        return any(
            self._replication.holds(self._slot, entry_id)
            for entry_id in range(reach + 1, min(last, reach + self._replication.ensemble) + 1)
        )

    def _first_held(self) -> int:
        first = self._first
        while not self._replication.holds(self._slot, first):
            first += 1
        return first

    def _after_gap(self, first: int) -> int:
        """Return the entry after the last entry below ``first`` that the slot holds."""
        replication = self._replication
        if replication.is_striped:
            while first > self._first and not replication.holds(self._slot, first - 1):
                first -= 1
        return max(first, self._first)
