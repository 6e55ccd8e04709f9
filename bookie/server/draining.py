"""If an operator wants a bookie emptied, the bookie takes no more ordinary adds.

The operator writes a request into the metadata store (``ledgerlog bookie decommission``), with this bookie's
id and the instance of its data. While the request is there, the bookie is read-only. It gets no new ledgers,
and its writers get a refusal and continue with another bookie, without a pause. The bookie still serves
reads, fences and recovery, so it can be a source of the copies too. Auto-recovery copies the bookie's entries
to other bookies, and reports when no ledger refers to this bookie.

A bookie whose cookie is gone from the store is read-only without a request, because no process may serve its
directory again. Perhaps the bookie was cut off from the store while it was decommissioned, so it counted as
stopped, and the request was removed. Or the store was restored, and its backup is older than the bookie.

If the request names another instance, the bookie ignores it, because it is about an earlier bookie with the
same id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from ledgerlog.errors import MetadataCorrupt
from ledgerlog.meta.settle import follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import Cookie
from ledgerlog.model.layout import cookie_path, draining_path
from ledgerlog.model.repair import Draining

logger = logging.getLogger(__name__)


class DrainingWatch:
    """Tells ``set_read_only`` at each change whether the bookie is to be emptied, or is decommissioned.

    If the store cannot be reached or its record is damaged, the last valid answer holds.
    """

    def __init__(self, store: MetadataStore, cookie: Cookie, set_read_only: Callable[[bool], None]) -> None:
        self._store = store
        self._cookie = cookie
        self._path = draining_path(cookie.bookie_id)
        self._set_read_only = set_read_only
        self._is_draining = False

    async def begin(self) -> None:
        """Look for the first time. Call it before the bookie is registered, so that a bookie that is being
        emptied is never registered as writable.

        Raises:
            MetadataUnavailable: The store cannot be reached.
            SessionExpired: The session ended.
        """
        with suppress(MetadataCorrupt):  # ``run`` finds and logs it.
            await self._look()

    async def run(self) -> NoReturn:
        """Look at each change, until cancelled."""
        what = (
            f"bookie={self._cookie.bookie_id}: it is not known whether an operator wants the bookie emptied"
        )
        await follow(self._store, self._path, self._look, what=what, log=logger)

    async def _look(self) -> None:
        cookie = self._cookie
        node = await self._store.get(self._path)
        is_wanted = (
            node is not None
            and Draining.decode_untrusted(node.value, cookie.bookie_id).instance == cookie.instance
        )
        what = "it is being emptied, and read-only" if is_wanted else "it stays in service"
        # Read the cookie second: it is removed before the request.
        if not is_wanted and await self._store.get(cookie_path(cookie.bookie_id)) is None:
            is_wanted = True
            what = (
                "it is read-only, because the metadata store has no cookie of it: it was decommissioned, or "
                "the store lost the cookie. If the store lost it, stop the bookie and run 'bookie cookie fix'"
            )
        if is_wanted != self._is_draining:
            logger.warning("bookie=%s: %s", cookie.bookie_id, what)
            self._is_draining = is_wanted
            self._set_read_only(is_wanted)
