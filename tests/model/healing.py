"""The end of limbo in the model (protocol A.3, phase two): what a bookie copies back of a closed ledger."""

from __future__ import annotations

from collections.abc import Callable

from ledgerlog.ledger.core.reader import RangeRead
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import gaps, shares
from tests.model.bookie_node import BookieNode

Copy = tuple[tuple[tuple[int, bytes], ...], int, int]
"""The arguments of ``BookieNode.copy_back``: an entry with its payload, the LAC, the LAFR."""


def copies_back(
    metadata: LedgerMetadata, bookie: str, node: Callable[[str], BookieNode]
) -> tuple[list[Copy], bool]:
    """Return what a bookie in limbo copies back, and whether it then has all that it should have.

    Args:
        metadata: The metadata of the closed ledger.
        bookie: The name of the bookie.
        node: Returns the bookie of a name.
    """
    assert metadata.last_entry is not None
    lac = metadata.last_entry
    lafr = lac if metadata.replication.guaranteed else NO_ENTRY
    stored = [(each, each) for each in sorted(node(bookie).durable_entries)]
    copies: list[Copy] = []
    is_whole = True
    for share in shares(metadata, bookie):
        for low, high in gaps(share, stored):
            for entry_id in share.ids(low, high):
                read = RangeRead(metadata, entry_id, entry_id, holder=bookie)
                while not read.is_done:
                    for ask in read.take_asks():
                        other = node(ask.bookie)
                        held = {e: p for e, p in other.durable_entries.items() if e == entry_id}
                        negative = Negative.UNKNOWN if other.in_limbo else Negative.ABSENT
                        read.on_reply(ask, held, entry_id, negative)
                if read.failure is None:
                    copies.append((tuple(read.found.items()), lac, lafr))
                else:
                    is_whole = False
    return copies, is_whole
