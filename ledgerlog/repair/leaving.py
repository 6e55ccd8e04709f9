"""Waiting until nobody uses a read-only bookie, so that a restart disturbs no writer.

Writers leave a read-only bookie by themselves: a busy one when the bookie refuses an add, an idle one when
it sees the registration move (``ledger.member_watch``). Both need another bookie to go to. So this only
looks. It never fences a ledger: the ledger's writer would end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.repair.core.leaving import Leaving, is_in_use

__all__ = ["wait_until_free"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_SETTLED_S = 2.0
"""After this time, writers' views of the registrations are up to date, and what they chose is stored."""
_LEDGERS_AT_ONCE = 8


async def wait_until_free(
    client: LedgerClient, bookie_id: BookieId, *, within_s: float, say: Callable[[str], None]
) -> Leaving:
    """Wait until no ledger that is not closed names a read-only bookie in its last fragment.

    A closed ledger stays closed, so each is read only once.

    Args:
        client: The client to work with.
        bookie_id: The bookie. Somebody has made it read-only.
        within_s: How long to wait at most.
        say: Called after each look with what is waited for.

    Returns:
        What the last look found. It is not free if the time was over.

    Raises:
        InvalidArgument: The id is none of a bookie.
        MetadataCorrupt: A node below ``ledgers`` is no ledger's. A ledger with damaged metadata counts as
            one that uses the bookie.
        MetadataUnavailable: The metadata store could not be reached.

    If this is cancelled, nothing has changed.
    """
    check_bookie_id(bookie_id)
    registry = LedgerRegistry(client.store, client.environment)
    leaving = Leaving(settled_s=_SETTLED_S)
    closed: set[int] = set()
    damaged: dict[int, str] = {}
    used_by: set[int] = set()

    async def look(ledger_id: int) -> None:
        try:
            found = await registry.find(ledger_id)
        except MetadataCorrupt as damage:
            if damaged.get(ledger_id) != str(damage):
                damaged[ledger_id] = str(damage)
                logger.warning("ledger=%d may use bookie=%s: %s", ledger_id, bookie_id, damage)
            used_by.add(ledger_id)
            return
        if found is None:
            return
        if found[0].is_closed:
            closed.add(ledger_id)
        elif is_in_use(found[0], bookie_id):
            used_by.add(ledger_id)

    with trio.move_on_after(within_s):
        while True:
            began = trio.current_time()
            await client.bookies.refresh()
            is_read_only = client.bookies.is_read_only(bookie_id)
            used_by.clear()
            unknown = [ledger for ledger in await registry.list() if ledger not in closed]
            await gather_each(unknown, look, at_once=_LEDGERS_AT_ONCE)
            leaving.on_look(began, is_read_only=is_read_only, used_by=used_by)
            say(leaving.waits_for)
            if leaving.is_free:
                break
            await trio.sleep(_LOOK_S)
    return leaving
