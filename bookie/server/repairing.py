"""Repair of a directory with which a bookie does not start.

    1  try: a start and a clean stop, without clients. If it succeeds, nothing is repaired
    2  mark the loss, durably: every ledger that exists is fenced and in limbo. If the marks themselves are
       damaged, they are set aside first; no start takes missing marks for sound ones
    3  salvage the files (``bookie.storage.upkeep.salvage``)

The order matters: from step 2 on, the bookie denies no entry that it may have acknowledged and takes no add
that a lost fence would have refused, whatever step 3 finds. While it serves, the repair of ledgers in limbo
copies what is missing from other bookies (``limbo``), and then what was set aside is removed.

Repair touches only directories whose cookie is sound: the cookie says whose files they are. A newer format
is refused as always, and never taken for damage.
"""

from __future__ import annotations

import logging
from functools import partial

from bookie.core.block import NONCE_BYTES
from bookie.server.generations import RandomBytes
from bookie.server.phase_one import marks_after_loss, settle_marks
from bookie.storage.disk.loss_marks import marks_path, read_marks, write_marks
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.engine.opening import open_engine, refuse_newer
from bookie.storage.upkeep.salvage import Salvaged, salvage, set_aside
from ledgerlog.errors import StorageCorrupt
from ledgerlog.meta.store import MetadataStore

logger = logging.getLogger(__name__)


async def repair_directory(
    store: MetadataStore,
    directory: StorageDirectory,
    *,
    random_bytes: RandomBytes,
    config: StorageConfig | None = None,
) -> Salvaged | None:
    """Make a directory startable, and mark its loss if something was damaged.

    Args:
        store: The metadata store of the cluster that the directory belongs to.
        directory: The locked directory. Its identity is established.
        random_bytes: Makes nonces.
        config: The settings of the storage. None: the defaults.

    Returns:
        What was done; None if the directory starts as it is.

    Raises:
        IncompatibleVersion: A newer version wrote one of the files. Nothing was changed.
        StorageError: The disk failed or is full. You may call it again.
        MetadataUnavailable: The metadata store could not be reached. Nothing was changed.
    """
    new_nonce = partial(random_bytes, NONCE_BYTES)
    await refuse_newer(directory)
    try:
        marks = await settle_marks(store, directory)
        async with open_engine(directory, config, new_nonce=new_nonce, marks=marks):
            pass
    except StorageCorrupt as damage:
        logger.warning("%s is repaired: %s", directory.path, damage)
    else:
        return None
    try:
        known = await read_marks(directory.disk, directory.path)
        is_unreadable = False
    except StorageCorrupt:
        known, is_unreadable = None, True
    after = await marks_after_loss(store, known)
    if is_unreadable:
        await set_aside(directory, marks_path(directory.path))
    await write_marks(directory.disk, directory.path, after)
    return await salvage(directory, new_nonce)
