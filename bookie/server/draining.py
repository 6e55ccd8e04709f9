"""If an operator wants a bookie emptied, the bookie takes no more ordinary adds.

The operator writes a request into the metadata store (``ledgerlog bookie decommission``), with this bookie's
id and the instance of its data. While the request is there, the bookie is read-only. It gets no new ledgers,
and its writers get a refusal and continue with another bookie, without a pause. The bookie still serves
reads, fences and recovery, so it can be a source of the copies too. Auto-recovery copies the bookie's entries
to other bookies, and reports when no ledger refers to this bookie.

If the request names another instance, the bookie ignores it, because it is about an earlier bookie with the
same id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ledgerlog.meta.settle import follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.layout import draining_path
from ledgerlog.model.repair import Draining

logger = logging.getLogger(__name__)


async def follow_draining(
    store: MetadataStore, cookie: Cookie, set_read_only: Callable[[bool], None]
) -> None:
    """Tell ``set_read_only`` at each change whether an operator wants the bookie emptied. This never returns.

    If the store cannot be reached or its record is damaged, the last valid answer holds.
    """
    path = draining_path(cookie.bookie_id)
    is_draining = False

    async def look() -> None:
        nonlocal is_draining
        node = await store.get(path)
        is_wanted = (
            node is not None
            and Draining.decode_untrusted(node.value, cookie.bookie_id).instance == cookie.instance
        )
        if is_wanted != is_draining:
            what = "it is being emptied, and read-only" if is_wanted else "it stays in service"
            logger.warning("bookie=%s: %s", cookie.bookie_id, what)
            is_draining = is_wanted
            set_read_only(is_wanted)

    what = f"bookie={cookie.bookie_id}: it is not known whether an operator wants the bookie emptied"
    await follow(store, path, look, what=what, log=logger)
