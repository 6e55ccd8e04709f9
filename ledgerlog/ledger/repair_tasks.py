"""Filing a ledger for repair: tell auto-recovery that copies may be missing, before this knowledge is lost
(rule 24).

In the plain mode (without guaranteed write quorum), entries are acknowledged and ledgers closed at the ack
quorum. If a bookie did not confirm its copies, only the ledger's writer knows this, and only until the writer
ends. So the process that ends a ledger files the ledger: it makes a task for the workers of auto-recovery.
``repair.queue`` describes what happens to the task afterwards. The task depends on who makes it:

    a writer that closed the ledger             names the bookies that did not confirm all of their entries
    a writer whose close has an unknown outcome names the same bookies
    a recoverer that closed the ledger          says that any bookie may lack entries: it cannot know which
                                                of them have the entries that were acknowledged before

A recoverer makes the task in the transaction that closes the ledger (``filing``). So even if the recoverer
dies, there is no closed ledger without its task. A writer does the same with the bookies that may never
confirm the entries that they lack: they left, are not connected, or have confirmed later entries. After the
close it waits for late copies, and makes a task for the bookies that still lack some. If the writer dies
before that, these bookies lack only the last of their entries, and a check of the ends finds that.

In guaranteed mode, or if the ack quorum equals the write quorum, no acknowledged entry lacks a copy, and no
task is made.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Unpack

import attrs
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

    The end of a ledger does not depend on this. A failure is only logged: the auditor's check of all entries
    will find the missing copies.

    Args:
        store: The metadata store.
        environment: The clock for the task's date.
        ledger_id: The ledger.
        incomplete: The bookies that may lack entries; empty if any of them may.
    """
    why: object = f"no answer of the metadata store within {FILING_TIMEOUT_S:g} s"
    with trio.move_on_after(FILING_TIMEOUT_S):
        try:
            await post_task(store, environment, ledger_id, incomplete=incomplete, asks_all=not incomplete)
        except LedgerLogError as trouble:
            why = trouble
        else:
            return
    logger.warning(
        "ledger=%d may lack copies on=%s and could not be filed for repair: %s. A check of all entries will "
        "find them",
        ledger_id,
        ",".join(incomplete) or "unknown",
        why,
    )


async def filing(
    store: MetadataStore, environment: Environment, ledger_id: int, **found: Unpack[FoundBookies]
) -> Create | Set | None:
    """Return the operation that files a ledger with these findings, as part of another transaction.

    If the ledger already has a task, the operation writes the task again. So the transaction fails if a
    worker, which saw an earlier state of the ledger, ends that task in the meantime.

    Returns:
        The operation; None if a newer version of ledgerlog wrote the task. The task is then left to that
        version.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
    """
    operation, _ = await _wanted(store, environment, ledger_id, **found)
    return operation


async def post_task(
    store: MetadataStore,
    environment: Environment,
    ledger_id: int,
    **found: Unpack[FoundBookies],
) -> bool:
    """Make sure that the ledger has a task with all of these findings.

    A task whose record is damaged is replaced by a new one. Nothing is lost by that: a task is only a hint.
    If the task has the findings already, it is written again. So a worker that looked at an earlier state of
    the ledger cannot remove it.

    Args:
        store: The metadata store.
        environment: The clock for the date of a new task.
        ledger_id: The ledger.
        **found: The findings; see ``RepairTask``.

    Returns:
        Whether the task is new or has new findings.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
        MetadataOutcomeUnknown: The answer was lost; the task may have been written.
    """

    sent: Create | Set | None = None
    was_news = False

    async def write(is_unsure: bool) -> bool:
        nonlocal sent, was_news
        operation, is_news = await _wanted(store, environment, ledger_id, **found)
        if is_unsure and not is_news and _version(operation) != _version(sent):
            return was_news  # The task has been written since, and has the findings.
        sent, was_news = operation, is_news or (is_unsure and was_news)
        if isinstance(operation, Create):
            await store.create(operation.path, operation.value)
        elif operation is not None:
            await store.set(operation.path, operation.value, version=operation.version)
        return was_news

    return await settle(store, write, what=f"the repair task of ledger {ledger_id}")


def _version(operation: Create | Set | None) -> int:
    """Return the version at which an operation replaces the task; -1 if there is no task."""
    return operation.version if isinstance(operation, Set) else -1


async def _wanted(
    store: MetadataStore, environment: Environment, ledger_id: int, **found: Unpack[FoundBookies]
) -> tuple[Create | Set | None, bool]:
    """Return the operation that makes or rewrites the ledger's task so that the task has all of these
    findings, and whether the task is new or gets new findings."""
    path = repair_task_path(ledger_id)
    node = await store.get(path)
    there: RepairTask | None = None
    if node is not None:
        try:
            there = RepairTask.decode_untrusted(node.value, ledger_id)
        except IncompatibleVersion as newer:
            logger.warning("%s; it is left for a newer version", newer)
            return None, False
        except MetadataCorrupt as damage:
            logger.error("%s; a new one is made", damage)
    if there is not None and there.is_about_all:
        there = attrs.evolve(there, asks_all=True)  # It must not end with the bookies that it names now.
    fresh = RepairTask(ledger_id=ledger_id, made_at_ms=environment.now_ms())
    wanted = (there or fresh).merged(**found)
    if node is None:
        return Create(path, wanted.encode()), True
    return Set(path, wanted.encode(), node.version), wanted != there


async def drop_task(store: MetadataStore, ledger_id: int) -> None:
    """Remove the task of a ledger that was just deleted, if it has one.

    A worker that is working on the task finds that the ledger is gone, and ends the task. If the task cannot
    be removed now, this is logged, and the next worker that looks at the task removes it.
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
