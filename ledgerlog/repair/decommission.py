"""Taking a bookie out of service for good.

    ask       store the request to empty the bookie. The bookie turns read-only, and the auditor makes tasks
    wait      look at all metadata until two looks in a row find that the bookie takes no new ledgers and no
              fragment of any ledger names it
    forget    remove the bookie's cookie, so its directory is never served again

If the bookie is alive, it keeps serving its entries, and workers read from it. If it is dead, nothing waits
for it.

Two looks are needed, because a fragment may still get the bookie after the first look. A writer that chose
the bookie before it turned read-only may create a ledger with it. A recoverer may use the bookie, and the
metadata names it only when the recoverer closes the ledger. So if ledgers are in recovery, the second look
comes later. A recovery that takes even longer can still name the bookie after the second look. The auditor
then finds that the bookie is lost, and workers replace it.

The request stays stored while the bookie is registered: without the request, the bookie would take new
ledgers again. The auditor removes the request afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs
import trio

from ledgerlog.errors import InvalidArgument, MetadataError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import APPEND_DEADLINE_S, METADATA_TIMEOUT_S
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import Draining
from ledgerlog.repair.auditor import pass_over_metadata
from ledgerlog.repair.queue import RepairQueue

__all__ = ["Emptying", "decommission"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_SETTLED_S = 2.0
"""After this time, every writer sees the present registrations, and the ledgers that writers created before
are stored."""
_RECOVERED_S = APPEND_DEADLINE_S + METADATA_TIMEOUT_S
"""After this time, a recovery that was under way has closed its ledger or given up, unless it has so much to
write back that it takes longer."""


@attrs.frozen(kw_only=True)
class Emptying:
    """The progress of emptying a bookie."""

    bookie_id: BookieId
    ledgers_left: int
    """Ledgers that name the bookie, or may name it because their metadata cannot be read."""
    workers: int
    """The number of live workers. If there are none, nothing is copied."""
    troubles: dict[int, str]
    """By ledger, the reason why the ledger still names the bookie, if a reason is known. At most 100 ledgers
    with intact metadata are asked for a reason."""


async def decommission(
    client: LedgerClient, bookie_id: BookieId, *, say: Callable[[Emptying], None]
) -> Draining:
    """Empty a bookie and remove its cookie.

    Args:
        client: The client to work with.
        bookie_id: The bookie.
        say: Called with the progress about once a second.

    Returns:
        The fulfilled request. No ledger refers to the bookie, and its cookie is gone.

    Raises:
        InvalidArgument: ``bookie_id`` is malformed, no bookie of this id is known, or the request was taken
            back in the meantime.
        MetadataCorrupt: The request or the bookie's cookie cannot be read. If the request is damaged, call
            this function again: it replaces the request. Or a node below ``ledgers`` does not belong to a
            ledger: it may be left from a ledger that names the bookie.
        MetadataUnavailable: The metadata store could not be reached; the cookie is still there.
        MetadataOutcomeUnknown: The cookie may or may not be gone.

    If this call is cancelled or fails, the bookie is still being emptied. To stop that, take the request back
    with ``RepairQueue.keep``. To wait again, call this function again.
    """
    queue = RepairQueue(client)
    draining = await queue.drain(check_bookie_id(bookie_id))
    looks = 0
    while looks < 2:
        found = await pass_over_metadata(client, bookie_id.__eq__)
        if found.strays:
            raise MetadataCorrupt(found.strays[0])
        emptying = await _emptying(queue, bookie_id, list(found.affected), found.unreadable)
        say(emptying)
        asked, unknown = await queue.requests()
        if bookie_id in unknown:
            raise MetadataCorrupt(
                f"it is not known whether an operator wants bookie {bookie_id} emptied: {unknown[bookie_id]}"
            )
        if bookie_id not in asked:
            if await queue.is_forgotten(draining):
                return draining  # Another process has decommissioned the bookie in the meantime.
            raise InvalidArgument(f"bookie {bookie_id} will be kept: the request was withdrawn")
        is_clean = not found.affected and not found.unreadable and not await queue.is_writable(bookie_id)
        looks = looks + 1 if is_clean else 0
        if not looks:
            await trio.sleep(_LOOK_S)
        elif looks == 1:
            await trio.sleep(_RECOVERED_S if found.in_recovery else _SETTLED_S)
    await queue.forget_cookie(draining)
    try:
        if not await queue.is_registered(bookie_id):
            await queue.end_request(draining)
    except (MetadataError, MetadataCorrupt) as cause:
        logger.warning(
            "bookie=%s is out of service; the auditor will clean up after it: %s", bookie_id, cause
        )
    return draining


async def _emptying(
    queue: RepairQueue, bookie_id: BookieId, left: list[int], unreadable: Mapping[int, str]
) -> Emptying:
    troubles = {ledger_id: f"it may name the bookie: {why}" for ledger_id, why in unreadable.items()}
    for ledger_id in left[:100]:
        try:
            task = await queue.task(ledger_id)
        except MetadataCorrupt as damage:
            troubles[ledger_id] = str(damage)
            continue
        if task is not None and task[0].trouble is not None:
            troubles[ledger_id] = task[0].trouble
    workers = await queue.workers()
    count = len(left) + len(unreadable)
    return Emptying(bookie_id=bookie_id, ledgers_left=count, workers=len(workers), troubles=troubles)
