"""Asking the leader of a log to splice: the request, and the wait for its answer (``log.core.attach``).

The process that splices makes an ephemeral node with its batch (``model.splice_request``). The leader watches
the parent of such nodes (``log.splice_desk``). It removes the node in the transaction that splices the batch,
or when it finds that there is nothing to splice. Then the asking process reads the outcome. If no answer
comes within ``limits.LOG_SPLICE_ANSWER_S``, the asking process withdraws the request: it deletes the node.
After that the leader cannot splice the batch any more, because its transaction would have to remove the node.

The wait also ends if no ledger of the log is open any more, for example because the leader has left. Then the
splice needs no leader.
"""

from __future__ import annotations

import enum
import logging
from contextlib import suppress

import trio

from ledgerlog.concurrency.gathering import race
from ledgerlog.errors import MetadataOutcomeUnknown, SessionExpired
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import LOG_SPLICE_ANSWER_S, METADATA_TIMEOUT_S
from ledgerlog.log.core.attach import Commit, Staged
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.settle import AWAY, follow, remove, settle
from ledgerlog.meta.store import NodeExists
from ledgerlog.model.layout import log_record_path, request_path
from ledgerlog.model.splice_request import SpliceRequest

__all__ = ["RequestEnd", "ask_leader", "commit_of", "request_of"]

logger = logging.getLogger(__name__)


class RequestEnd(enum.Enum):
    """How a request ended, if the leader gave no reason."""

    GONE = "gone"
    """The request is gone, or no process leads any more."""
    UNANSWERED = "unanswered"
    """The leader did not answer in time, and the request is withdrawn."""


def request_of(commit: Commit) -> SpliceRequest:
    """Return the request for a batch."""
    return SpliceRequest(
        producer=commit.producer,
        source=commit.source,
        run=commit.run,
        batch=commit.batch,
        gaps=commit.gaps,
        staged=tuple((s.ledger_id, s.record_count, s.byte_length, s.last_entry) for s in commit.staged),
    )


def commit_of(request: SpliceRequest) -> Commit:
    """Return the batch of a request."""
    return Commit(
        producer=request.producer,
        source=request.source,
        run=request.run,
        batch=request.batch,
        gaps=request.gaps,
        staged=tuple(Staged(*ledger) for ledger in request.staged),
    )


async def ask_leader(
    client: LedgerClient, registry: LogRegistry, incarnation: int, commit: Commit
) -> RequestEnd | SpliceRequest:
    """Ask the leader of a log to splice a batch, and wait for the end of the request.

    Returns:
        The request with the leader's reason, if the leader refused the batch; otherwise a ``RequestEnd``.

    Raises:
        MetadataUnavailable: The request could not be made. The batch was not spliced by it.
        MetadataOutcomeUnknown: The request may still be there, so the leader may splice the batch.

    Cancelling: withdraws the request if the store answers soon. The batch may or may not be spliced.
    """
    store = client.store
    path = request_path(incarnation, client.environment.new_token().hex())
    value = request_of(commit).encode()
    refused: SpliceRequest | None = None

    async def make(_: bool) -> None:
        with suppress(NodeExists):  # The name is random, so a node that exists is ours.
            await store.create(path, value, ephemeral=True)

    async def until_it_ends() -> None:
        nonlocal refused
        ended = trio.Event()

        async def look() -> None:
            nonlocal refused
            node = await store.get(path)
            if node is not None and node.value != value:
                refused = SpliceRequest.decode_untrusted(node.value)
            if node is None or refused is not None:
                ended.set()

        await race(
            ended.wait,
            lambda: follow(store, path, look, what=f"{path} is not watched", log=logger, survives=AWAY),
        )

    async def until_nobody_leads() -> None:
        ended = trio.Event()

        async def look() -> None:
            record, _ = await registry.read(incarnation, fresh=False)
            if record is None or not record.open_segments:
                ended.set()

        watched = log_record_path(incarnation)
        await race(
            ended.wait,
            lambda: follow(store, watched, look, what=f"{watched} is not watched", log=logger, survives=AWAY),
        )

    is_over = False
    try:
        await settle(store, make, what=f"the request {path}")
        with trio.move_on_after(LOG_SPLICE_ANSWER_S) as waiting:
            await race(until_it_ends, until_nobody_leads)
        try:
            await remove(store, path)
        except AWAY as away:
            raise MetadataOutcomeUnknown(
                f"batch {commit.batch} may be spliced by the leader of its log: the request for it cannot be "
                f"withdrawn: {away}"
            ) from away
        is_over = True
    except SessionExpired:
        return RequestEnd.GONE  # The request was not made. The store has another session now.
    finally:
        if not is_over:
            with trio.move_on_after(METADATA_TIMEOUT_S, shield=True):
                await _withdraw(client, path)
    if refused is not None:
        return refused
    return RequestEnd.UNANSWERED if waiting.cancelled_caught else RequestEnd.GONE


async def _withdraw(client: LedgerClient, path: str) -> None:
    try:
        await remove(client.store, path)
    except AWAY as away:
        logger.info("%s is left to the end of the session: %s", path, away)
