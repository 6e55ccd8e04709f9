"""Taking a bookie out of service for good.

    ask       the board says that it is to be emptied: it turns read-only, and the auditor makes tasks
    wait      until it takes no new ledgers and no fragment of any ledger names it, twice in a row
    forget    remove its cookie, so that its directory is never served again

It may be alive, and is then read from and goes on serving what it has; or dead, and is then not waited for.
A writer that chose it before it turned read-only may still make a ledger that names it, and a recoverer may
have it in private until it closes; which is why the look is repeated, and after longer where ledgers are in
recovery. The request stays on the board for as long as the bookie is registered, since without it the
bookie would take new ledgers again; the auditor takes it away afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import attrs
import trio

from ledgerlog.errors import InvalidArgument, MetadataError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import APPEND_DEADLINE_S, METADATA_TIMEOUT_S
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import Draining
from ledgerlog.repair.auditor import pass_over_metadata
from ledgerlog.repair.queue import Board

__all__ = ["Emptying", "decommission"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_SETTLED_S = 2.0
"""Views of the registrations have followed by then, and ledgers made by older ones are stored."""
_RECOVERED_S = APPEND_DEADLINE_S + METADATA_TIMEOUT_S
"""A recovery that was under way has closed its ledger by then, or has given up."""


@attrs.frozen(kw_only=True)
class Emptying:
    """How far it is."""

    bookie_id: BookieId
    ledgers_left: int
    """Ledgers that name it, or whose metadata is damaged, so that nobody can tell."""
    workers: int
    """Workers that live; without one nothing moves."""
    troubles: dict[int, str]
    """Of the ledgers left: why some are not done."""


async def decommission(
    client: LedgerClient, bookie_id: BookieId, *, say: Callable[[Emptying], None]
) -> Draining:
    """Empty a bookie and forget it. ``say`` is told how far it is, about once a second.

    Returns when no ledger refers to it and its cookie is gone. InvalidArgument where nobody knows the bookie,
    or somebody takes the request back meanwhile; MetadataCorrupt where the request, or the bookie's cookie,
    cannot be read any more (calling this again makes a damaged request anew). MetadataUnavailable: its cookie
    is still there; MetadataOutcomeUnknown: it may be gone. Cancelled or failed, it goes on being emptied
    until ``Board.keep`` takes that back; calling this again waits on."""
    board = Board(client)
    draining = await board.drain(check_bookie_id(bookie_id))
    looks = 0
    while looks < 2:
        found = await pass_over_metadata(client, bookie_id.__eq__)
        emptying = await _emptying(board, bookie_id, list(found.affected), found.damaged)
        say(emptying)
        asked, unknown = await board.requests()
        if bookie_id in unknown:
            raise MetadataCorrupt(f"whether bookie {bookie_id} is to be emptied: {unknown[bookie_id]}")
        if bookie_id not in asked:
            raise InvalidArgument(f"bookie {bookie_id} is to be kept: somebody took the request back")
        is_clean = not found.affected and not found.damaged and not await board.is_writable(bookie_id)
        looks = looks + 1 if is_clean else 0
        if not looks:
            await trio.sleep(_LOOK_S)
        elif looks == 1:
            await trio.sleep(_RECOVERED_S if found.in_recovery else _SETTLED_S)
    await board.forget_cookie(draining)
    try:
        if not await board.is_registered(bookie_id):
            await board.end_request(draining)
    except (MetadataError, MetadataCorrupt) as cause:
        logger.warning("bookie=%s is out of service; the auditor tidies up behind it: %s", bookie_id, cause)
    return draining


async def _emptying(board: Board, bookie_id: BookieId, left: list[int], damaged: Collection[int]) -> Emptying:
    troubles = dict.fromkeys(damaged, "its metadata is damaged: nobody can tell whom it names")
    for ledger_id in left[:100]:
        try:
            task = await board.task(ledger_id)
        except MetadataCorrupt as damage:
            troubles[ledger_id] = str(damage)
            continue
        if task is not None and task[0].trouble is not None:
            troubles[ledger_id] = task[0].trouble
    workers = await board.workers()
    count = len(left) + len(damaged)
    return Emptying(bookie_id=bookie_id, ledgers_left=count, workers=len(workers), troubles=troubles)
