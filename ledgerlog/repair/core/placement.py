"""Which copies lie in too few racks: the audit of placement (``model.placement``).

Auto-recovery looks for *narrow* write sets: the copies of an entry lie in fewer racks than the placement
policy wants. This happens if the policy or the labels are set later, if a rack was down while bookies were
chosen, or if no better bookies were there. Workers move such copies to other racks (``repair.ledger``).

A bookie says in its registration in which rack it is. A bookie without the label ``rack``, or one that is not
registered, counts as if it had a rack of its own. The choice of bookies uses the same rule for the label.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ledgerlog.ledger.core.placement import narrow_write_sets, rack_of
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata

__all__ = ["NarrowFragment", "narrow_fragments"]


@attrs.frozen
class NarrowFragment:
    """A fragment with entries whose copies lie in too few racks."""

    index: int
    first_entry: int
    last_entry: int | None
    """None if the fragment may still grow."""
    bookies: tuple[BookieId, ...]
    """The bookies of its narrow write sets, in slot order."""
    racks: tuple[str, ...]
    """The known racks of these bookies, sorted."""


def narrow_fragments(
    metadata: LedgerMetadata, infos: Mapping[BookieId, BookieInfo], *, min_racks: int
) -> list[NarrowFragment]:
    """Find the fragments of a ledger with entries whose copies lie in too few racks.

    Args:
        metadata: The ledger's metadata.
        infos: The registered bookies. Others count as if each had a rack of its own.
        min_racks: In how many racks the copies of an entry must lie.
    """
    replication = metadata.replication
    found: list[NarrowFragment] = []
    for index, fragment in enumerate(metadata.fragments):
        first, last = fragment.first_entry, metadata.fragment_end(index)
        ensemble = [infos.get(bookie) or BookieInfo(bookie, "", "") for bookie in fragment.ensemble]
        slots: set[int] = set()
        for write_set in narrow_write_sets(
            ensemble, write_quorum=replication.write_quorum, at_least=min_racks
        ):
            # The first entry of the fragment that goes to this write set.
            entry = first + (write_set[0] - first) % replication.ensemble
            if replication.write_quorum == replication.ensemble:
                entry = first
            if last is None or entry <= last:
                slots.update(write_set)
        if slots:
            racks = {rack for slot in slots if (rack := rack_of(ensemble[slot])) is not None}
            bookies = tuple(fragment.ensemble[slot] for slot in sorted(slots))
            found.append(NarrowFragment(index, first, last, bookies, tuple(sorted(racks))))
    return found
