"""Repair of a directory that is too damaged for its bookie to start.

    1  try: start, read the whole index and stop cleanly, without clients. If that succeeds, nothing is
       repaired
    2  mark the loss, durably: every ledger that exists is fenced and in limbo (``phase_one``). If the marks
       themselves are damaged, they are set aside first. A start never takes missing marks for sound marks
    3  salvage the files (``bookie.storage.upkeep.salvage``)

The order matters. From step 2 on, the result of step 3 does not matter for safety: if the bookie may have
acknowledged an entry, it never answers that the entry does not exist. It also takes no add that a lost fence
would have refused. While the bookie serves, the repair of ledgers in limbo (``bookie.server.limbo``) copies
missing entries from other bookies. When no ledger is in limbo, the files that were set aside are removed.

**A damaged index** alone loses nothing, because the index can be made again from the files (``heal_index``).
The steps above are needed only if a file is damaged too.

**A damaged or lost cookie** is restored before these steps, because the cookie says which bookie the files
belong to (``restore_cookie``). Files of a newer format are refused as always, and never treated as damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from bookie.core.block import NONCE_BYTES, PAGE_BYTES
from bookie.core.salvage import owner_of
from bookie.server.generations import RandomBytes
from bookie.server.phase_one import marks_after_loss, settle_marks
from bookie.server.registration import wait_unregistered
from bookie.storage.disk.disk import FileMissing
from bookie.storage.disk.loss_marks import marks_path, read_marks, write_marks
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.engine.opening import open_engine, refuse_newer
from bookie.storage.upkeep.rebuild import rebuild_index
from bookie.storage.upkeep.salvage import Salvaged, salvage, set_aside
from ledgerlog.errors import CookieMismatch, IncompatibleVersion, StorageCorrupt
from ledgerlog.meta.belonging import join_cluster
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.ledger import MetadataCorrupt

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
        The steps that were done; None if the directory starts without a repair.

    Raises:
        IncompatibleVersion: A newer version wrote one of the files. Nothing was changed.
        StorageError: The disk failed or is full. You may call it again.
        MetadataUnavailable: The metadata store could not be reached. Nothing was repaired.
    """
    new_nonce = partial(random_bytes, NONCE_BYTES)
    await refuse_newer(directory)
    try:
        marks = await settle_marks(store, directory)
        async with open_engine(directory, config, new_nonce=new_nonce, marks=marks) as engine:
            await engine.scrubber.check_index()
    except StorageCorrupt as damage:
        logger.warning("%s is repaired: %s", directory.path, damage)
    else:
        return None
    return await _mark_and_salvage(store, directory, new_nonce)


async def heal_index(
    store: MetadataStore, directory: StorageDirectory, *, random_bytes: RandomBytes, may_salvage: bool
) -> bool:
    """Make the index of a directory again, because the index was found damaged.

    If a file is damaged as well, no index can be made from the files. Then the directory is salvaged as in
    ``repair_directory``, or left as it is.

    Args:
        store: The metadata store of the cluster that the directory belongs to.
        directory: The locked directory. Its identity is established, and it has no file of a newer format.
        random_bytes: Makes nonces.
        may_salvage: Whether to salvage a directory with a damaged file.

    Returns:
        Whether the index is sound now. If not, nothing was changed.

    Raises:
        StorageError: The disk failed or is full. You may call it again.
        MetadataUnavailable: The metadata store could not be reached. Nothing was changed.
    """
    try:
        runs = await rebuild_index(directory)
    except StorageCorrupt as damage:
        if may_salvage:
            logger.warning("%s is repaired: %s", directory.path, damage)
            await _mark_and_salvage(store, directory, partial(random_bytes, NONCE_BYTES))
            return True
        logger.error(
            "%s: the index is not rebuilt, because a file is damaged too: %s; stop the bookie and run "
            "'bookie repair %s'",
            *(directory.path, damage, directory.path),
        )
        return False
    logger.warning("%s: the index was rebuilt; runs=%d", directory.path, runs)
    return True


async def _mark_and_salvage(
    store: MetadataStore, directory: StorageDirectory, new_nonce: Callable[[], bytes]
) -> Salvaged:
    await _mark_all_lost(store, directory)
    return await salvage(directory, new_nonce)


async def _mark_all_lost(store: MetadataStore, directory: StorageDirectory) -> None:
    try:
        known = await read_marks(directory.disk, directory.path)
        is_unreadable = False
    except StorageCorrupt:
        known, is_unreadable = None, True
    after = await marks_after_loss(store, known)
    if is_unreadable:
        await set_aside(directory, marks_path(directory.path))
    await write_marks(directory.disk, directory.path, after)


async def restore_cookie(store: MetadataStore, directory: StorageDirectory, *, place: str = "") -> bool:
    """Restore a directory's cookie if it is damaged or missing.

    The headers of the files name the bookie's instance, and the metadata store has the cookie of each
    instance. The store's cookie says which generation the store has counted. But only the directory's lost
    cookie said which generation the directory had reached (``generations``). Without the generation, the
    directory may be an old copy, so it is first marked as if it had lost data.

    Args:
        store: The cluster's metadata store.
        directory: The locked directory.
        place: Our place (``BookieInfo.place``).

    Returns:
        Whether a cookie was restored. False: the cookie is sound, or the directory holds no data. Nothing was
        changed then.

    Raises:
        CookieMismatch: The files do not name their bookie, or the store does not know that bookie, or a live
            process is registered under its id. Nothing was changed.
        IncompatibleVersion: A newer version wrote the cookie or a file. Nothing was changed.
        StorageError: The disk failed or is full. You may call it again.
        MetadataUnavailable: The store could not be reached. Nothing was changed.
    """
    lost = await directory.lost_cookies()
    if not lost or not await directory.has_data():
        return False
    await refuse_newer(directory)
    found = {path: await _owners(directory, path) for path in lost}
    owners = set[str]().union(*found.values())
    if len(owners) != 1 or not all(found.values()):
        raise CookieMismatch(
            f"the cookie of {' and that of '.join(lost)} cannot be restored: the files there must name one "
            f"bookie instance, but they name {' and '.join(sorted(owners)) or 'none'}. Is the right disk "
            "mounted? If its data is lost, empty the directory, and 'bookie cookie fix' takes it into service"
        )
    (instance,) = owners
    store.belong_to(await join_cluster(store), through_restores=True)
    cookie = await _cookie_of(store, instance)
    if cookie is None:
        raise CookieMismatch(
            f"the cookie of {lost[0]} cannot be restored: the metadata store knows no bookie of instance "
            f"{instance}. It was decommissioned, or --metadata names another cluster"
        )
    await wait_unregistered(store, cookie.bookie_id, place)
    await _mark_all_lost(store, directory)
    await directory.replace_cookie(cookie)
    logger.warning(
        "bookie=%s: the cookie of %s was lost and is restored; the directory may be an old copy, so the "
        "loss is marked",
        *(cookie.bookie_id, " and ".join(lost)),
    )
    return True


async def _owners(directory: StorageDirectory, path: str) -> set[str]:
    """Return the bookie instances named by the files in one of the bookie's directories."""
    owners = set()
    for place in (directory.journal_path, directory.entries_path):
        if not place.startswith(f"{path}/"):
            continue
        try:
            names = await directory.disk.list_directory(place)
        except FileMissing:
            continue
        for name in names:
            if name.endswith((".journal", ".entries")):
                page = await directory.disk.read_file(f"{place}/{name}", PAGE_BYTES)
                owners.add(owner_of(page, f"{place}/{name}"))
    return {owner for owner in owners if owner is not None}


async def _cookie_of(store: MetadataStore, instance: str) -> Cookie | None:
    """Return the cookie of a bookie instance from the store."""
    await store.sync()
    for bookie_id in await store.children(layout.COOKIES):
        node = await store.get(layout.cookie_path(bookie_id))
        if node is None:
            continue
        try:
            cookie = Cookie.decode_untrusted(node.value, bookie_id)
        except (MetadataCorrupt, IncompatibleVersion) as unreadable:
            logger.warning("%s", unreadable)  # The damaged cookie may belong to any other bookie.
            continue
        if cookie.instance == instance:
            return cookie
    return None
