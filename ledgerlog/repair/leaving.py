"""Waiting until no client uses a read-only bookie, so that a restart disturbs no writer.

Writers leave a read-only bookie by themselves: a busy writer when the bookie refuses an add, an idle writer
when it sees that the bookie is registered as read-only (``ledger.member_watch``). Both need another bookie
that can take its place. So this module only looks at the metadata. It never fences a ledger, because that
would end the ledger's writer.
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
"""After this time, every writer sees the present registrations, and the bookies that writers chose before are
in the stored metadata."""
_LEDGERS_AT_ONCE = 8


async def wait_until_free(
    client: LedgerClient, bookie_id: BookieId, *, within_s: float, say: Callable[[str], None]
) -> Leaving:
    """Wait until no ledger that is not closed names a read-only bookie in its last fragment.

    A closed ledger stays closed, so each is read only once.

    Args:
        client: The client to work with.
        bookie_id: The bookie. Make it read-only before you call this.
        within_s: How long to wait at most.
        say: Called after each look, with the reason why the bookie is not free; "" if it is free.

    Returns:
        The result of the last look. Its ``is_free`` is False if the bookie was still in use when the time was
        over.

    Raises:
        InvalidArgument: ``bookie_id`` is not a valid bookie id.
        MetadataCorrupt: A node below ``ledgers`` is not the node of a ledger. (If a ledger's metadata is
            damaged, nothing is raised: the ledger counts as one that uses the bookie.)
        MetadataUnavailable: The metadata store could not be reached.

    Cancelling: changes nothing, because this only reads.
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
