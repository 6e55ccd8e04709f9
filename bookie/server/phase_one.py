"""Phase one of a boot: what must be durable before a bookie that may have lost data answers anybody (D27).

    unclean bit in the marks, or no marks   the last life acknowledged entries before they were synced, and
                                            ended without a complete flush
    a cookie that was fixed                 the disk was emptied or exchanged (``identity``)

In both cases: sync with the metadata store, read the highest ledger id ever given out, and mark everything up
to it, fenced and in limbo (``bookie.core.loss_marks``), durably. Only then may a cookie be written, the
journal be opened, the port, the registration. That takes one read and one write however many ledgers there
are: no listing that could be incomplete, no question which ledgers name the bookie. Phase two (``limbo``)
goes on beside serving.

The sync makes the number at least as new as any that a ledger had which this bookie's former life was written
to. The directory's lock makes sure that that life is over. Ids that are given out after the read belong to
ledgers that nobody has written to yet.
"""

from __future__ import annotations

import logging

from bookie.core.loss_marks import Marks
from bookie.storage.disk.loss_marks import KeptMarks, read_marks
from bookie.storage.engine.directory import StorageDirectory
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import LEDGER_COUNTER

logger = logging.getLogger(__name__)


async def marks_after_loss(store: MetadataStore, marks: Marks | None) -> Marks:
    """``marks``, and every ledger that exists now, fenced and in limbo. MetadataUnavailable."""
    await store.sync()
    return (marks or Marks()).after_loss(await store.highest_id(LEDGER_COUNTER))


async def settle_marks(store: MetadataStore, directory: StorageDirectory) -> KeptMarks:
    """The marks that a bookie serves this formatted directory with, after phase one where it is needed.

    Raises StorageCorrupt where the marks are damaged, StorageError, and MetadataUnavailable: then it must
    not serve. Cancelled or failed, it may be done again."""
    found = await read_marks(directory.disk, directory.path)
    kept = KeptMarks(directory.disk, directory.path, found or Marks(is_unclean=True))
    if kept.now.is_unclean:
        await kept.replace(await marks_after_loss(store, found))
        logger.warning(
            "%s: the last stop was not clean, and acknowledged entries may be lost: adds of ledgers up to %d "
            "are refused, and nothing of them is denied until repair has looked at each",
            directory.path,
            kept.now.fenced_through,
        )
    return kept
