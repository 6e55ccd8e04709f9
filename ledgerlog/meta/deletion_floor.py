"""Which ledgers nobody may delete for want of a record that names them.

A store that was restored from a backup has forgotten ledgers and lists. Until an operator accepts that loss,
bookies and sweeps leave every ledger from before the restore alone (protocol A.8).
"""

from __future__ import annotations

from ledgerlog.errors import IncompatibleVersion, MetadataCorrupt, MetadataUnavailable
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import RESTORED
from ledgerlog.model.restoration import Restoration

__all__ = ["deletion_floor"]


async def deletion_floor(store: MetadataStore) -> int:
    """Return the lowest id of a ledger that may count as deleted, or as an orphan.

    Call this before the other questions and after them, and use the greater answer. After: a restore writes
    its record before it changes a ledger. So if any of the answers came from the restored store, the record
    is there. Before: an operator may bring ledgers back and accept the loss of the others after you have
    asked about one of those ledgers.

    Raises:
        MetadataUnavailable: The store did not answer, or the record of the restore is damaged or of a newer
            version.
    """
    node = await store.get(RESTORED)
    try:
        return 0 if node is None else Restoration.decode_untrusted(node.value).floor
    except (MetadataCorrupt, IncompatibleVersion) as damage:
        raise MetadataUnavailable(f"no ledger counts as deleted: {damage}") from damage
