"""Phase one of a start: if a bookie may have lost data, loss marks must be durable before it answers (D27).

    unclean bit in the marks, or no marks   the previous run acknowledged entries before they were synced, and
                                            ended without a complete flush
    a cookie that was fixed                 the disk was emptied or exchanged (``identity``)
    no file of gone ledgers, or a           the bookie has forgotten which deleted ledgers it must refuse
      damaged one                           (``bookie.core.gone_ledgers``)

In each case the bookie syncs with the metadata store and reads the highest ledger id ever given out. It marks
all ledgers up to this id as fenced and in limbo, durably. *Fenced*: the bookie refuses ordinary adds. *In
limbo*: it never answers that an entry does not exist (``bookie.core.loss_marks``). Only then may it write a
cookie, open the journal, answer clients and register. This takes one read and one write, no matter how many
ledgers there are. It needs no listing, which could be incomplete, and no search for the ledgers that name the
bookie. Phase two (``limbo``) runs while the bookie serves.

Because of the sync, the highest id covers every ledger whose entries the previous run may have taken. The
directory's lock ensures that the previous run is over. If an id is given out after the read, no writer has
written to its ledger yet.
"""

from __future__ import annotations

import logging

import attrs

from bookie.core.gone_ledgers import GoneLedgers
from bookie.core.loss_marks import LossMarks
from bookie.storage.disk.gone_ledgers import read_gone, write_gone
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.engine.directory import StorageDirectory
from ledgerlog.errors import StorageCorrupt
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import LEDGER_COUNTER

logger = logging.getLogger(__name__)


async def marks_after_loss(store: MetadataStore, marks: LossMarks | None) -> LossMarks:
    """Return ``marks`` with every ledger that exists now fenced and in limbo.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
    """
    await store.sync()
    return (marks or LossMarks()).after_loss(await store.highest_id(LEDGER_COUNTER))


async def settle_marks(store: MetadataStore, directory: StorageDirectory) -> LossMarkStore:
    """Do phase one if it is needed, and return the loss marks for serving this directory.

    Args:
        store: The cluster's metadata store.
        directory: The directory. It must be formatted.

    Raises:
        StorageCorrupt: The marks are damaged. The bookie must not serve.
        StorageError: The marks cannot be read or written. The bookie must not serve.
        MetadataUnavailable: The metadata store could not be reached. The bookie must not serve.

    After a cancellation or an error, you may call this again.
    """
    found = await read_marks(directory.disk, directory.path)
    kept = LossMarkStore(directory.disk, directory.path, found or LossMarks(is_unclean=True))
    instance = await directory.read_instance()
    try:
        gone = await read_gone(directory.disk, directory.path, instance, kept.now)
    except StorageCorrupt as damage:
        # Write the marks before the new file of gone ledgers: while the old file is damaged, each start comes
        # here again.
        after = await marks_after_loss(store, found)
        await kept.change(lambda _: after)
        await write_gone(directory.disk, directory.path, instance, GoneLedgers())
        logger.warning(
            "%s; the list of deleted ledgers is lost: adds to ledgers up to %d are refused, and no entry of "
            "them is denied until repair has checked each ledger",
            damage,
            kept.now.fenced_through,
        )
        return kept
    has_gone = kept.now.has_gone_file or bool(gone.bounds)  # Lost marks do not know of the file.
    await kept.change(lambda marks: attrs.evolve(marks, has_gone_file=has_gone))
    if kept.now.is_unclean:
        after = await marks_after_loss(store, kept.now if found else None)
        await kept.change(lambda _: attrs.evolve(after, has_gone_file=has_gone))
        logger.warning(
            "%s: the last stop was not clean, and acknowledged entries may be lost: adds to ledgers up to "
            "%d are refused, and no entry of them is denied until repair has checked each ledger",
            directory.path,
            kept.now.fenced_through,
        )
    return kept
