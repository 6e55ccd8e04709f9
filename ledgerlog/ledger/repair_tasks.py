"""Filing a ledger for repair: what a writer or a recoverer knows, and nobody else would find soon (rule 24).

The plain mode acknowledges and closes at the ack quorum. If a bookie did not confirm its copies, only the
ledger's writer knows it, and only until it ends. So the process that ends a ledger makes a task for the
workers of auto-recovery (``repair.queue`` has the rest of a task's life):

    a writer that closed the ledger             names the bookies that did not confirm all of their entries
    a writer whose close has an unknown outcome names the same bookies
    a recoverer that closed it                  names nobody: it cannot know what the writer's bookies have of
                                                the entries that were acknowledged before

A recoverer makes the task in the transaction that closes the ledger (``filing``): if it dies, both are there
or none. A writer cannot, because it waits for late copies after the close.

In guaranteed mode, and if the ack quorum is the write quorum, an acknowledged entry lacks no copy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Unpack

import trio

from ledgerlog.errors import IncompatibleVersion, LedgerLogError
from ledgerlog.ledger.environment import Environment
from ledgerlog.limits import FILING_TIMEOUT_S
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Create, MetadataStore, NodeMissing, Set
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import repair_task_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import FoundBookies, RepairTask

__all__ = ["drop_task", "file_for_repair", "filing", "may_lack_copies", "post_task"]

logger = logging.getLogger(__name__)


def may_lack_copies(replication: Replication) -> bool:
    """Return whether an entry may be acknowledged below the write quorum."""
    return not replication.guaranteed and replication.ack_quorum < replication.write_quorum


async def file_for_repair(
    store: MetadataStore, environment: Environment, ledger_id: int, incomplete: Collection[BookieId]
) -> None:
    """Make a task for a ledger that may lack copies, within ``FILING_TIMEOUT_S``.

    The end of a ledger does not depend on it. If it fails, that is logged, and the auditor's check of all
    entries finds what is missing.

    Args:
        store: The metadata store.
        environment: Its clock dates the task.
        ledger_id: The ledger.
        incomplete: The bookies that may lack entries; empty if nobody knows.
    """
    why: object = f"no answer of the metadata store within {FILING_TIMEOUT_S:g} s"
    with trio.move_on_after(FILING_TIMEOUT_S):
        try:
            await post_task(store, environment, ledger_id, incomplete=incomplete)
        except LedgerLogError as trouble:
            why = trouble
        else:
            return
    logger.warning(
        "ledger=%d may lack copies on=%s and could not be filed for repair: %s. "
        "A check of all entries finds them",
        ledger_id,
        ",".join(incomplete) or "unknown",
        why,
    )


async def filing(store: MetadataStore, environment: Environment, ledger_id: int) -> Create | Set | None:
    """Return the operation that files a ledger as part of another transaction.

    If the ledger has a task, the operation writes it again. So if a worker ends that task in the meantime,
    having seen an earlier state of the ledger, the transaction fails.

    Returns:
        The operation; None if a newer version wrote the task: it is left to that version.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
    """
    operation, _ = await _wanted(store, environment, ledger_id)
    return operation


async def post_task(
    store: MetadataStore,
    environment: Environment,
    ledger_id: int,
    **found: Unpack[FoundBookies],
) -> bool:
    """Make sure that the ledger has a task that names all of these bookies.

    A task whose record is damaged is made anew. Nothing is lost by that: tasks are hints, the new one too.

    Args:
        store: The metadata store.
        environment: Its clock dates a new task.
        ledger_id: The ledger.
        **found: The bookies; see ``RepairTask``.

    Returns:
        Whether anything was written.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
        MetadataOutcomeUnknown: The answer was lost; the task may have been written.
    """

    async def write(_: bool) -> bool:
        operation, is_news = await _wanted(store, environment, ledger_id, **found)
        if not is_news:
            return False
        if isinstance(operation, Create):
            await store.create(operation.path, operation.value)
        elif operation is not None:
            await store.set(operation.path, operation.value, version=operation.version)
        return True

    return await settle(store, write, what=f"the repair task of ledger {ledger_id}")


async def _wanted(
    store: MetadataStore, environment: Environment, ledger_id: int, **found: Unpack[FoundBookies]
) -> tuple[Create | Set | None, bool]:
    """Return the operation that makes or writes the ledger's task, naming all of these bookies, and whether
    it changes anything."""
    path = repair_task_path(ledger_id)
    node = await store.get(path)
    there: RepairTask | None = None
    if node is not None:
        try:
            there = RepairTask.decode_untrusted(node.value, ledger_id)
        except IncompatibleVersion as newer:
            logger.warning("%s; it is left to a newer version", newer)
            return None, False
        except MetadataCorrupt as damage:
            logger.error("%s; it is made anew", damage)
    fresh = RepairTask(ledger_id=ledger_id, made_at_ms=environment.now_ms())
    wanted = (there or fresh).merged(**found)
    if node is None:
        return Create(path, wanted.encode()), True
    return Set(path, wanted.encode(), node.version), wanted != there


async def drop_task(store: MetadataStore, ledger_id: int) -> None:
    """Remove the task of a ledger that was just deleted, if it has one.

    A worker that is at this task finds the ledger gone, and ends the task. If the task cannot be removed now,
    that is logged, and the next worker that looks at it removes it.
    """
    path = repair_task_path(ledger_id)
    try:
        node = await store.get(path)
        if node is not None:
            await store.delete(path)
    except NodeMissing:
        pass  # A worker was quicker.
    except LedgerLogError as trouble:
        logger.warning("ledger=%d is deleted, and its task for repair stays: %s", ledger_id, trouble)
