"""Making tasks for auto-recovery from the rows of an audit. Only this step of an audit changes anything.

Each row has a kind of fault. The kind decides about the task:

    missing      The task gives the bookie its missing entries.
    corrupt      The task replaces the bookie in the ledger's fragments that name it, as if the bookie were
                 lost. (A fragment is a range of entries with one list of bookies, the ensemble.) This needs
                 one more bookie than the ensemble has. If the bookie's own scrubbing repairs the copy first,
                 nothing is left to do.
    diverging    Sound copies differ. No task: a person has to look, because disks and networks do not cause
                 this. If a repair copied one copy over the others, it would destroy the evidence, and might
                 keep the wrong copy.
    limbo        The bookie may have lost the entries and knows it. No task: the bookie itself copies what it
                 lost.
    unreachable  The bookie did not answer. No task: the bookie's registration decides whether it is lost.

A task is a hint (``model.repair``). The repair worker checks the ledger itself, so an unnecessary task costs
only one check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.comparison import FaultKind
from ledgerlog.model.ids import BookieId
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.spark.connection import run_connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Ailments", "MarkedForRepair", "mark_for_repair", "post_tasks"]


@attrs.frozen
class MarkedForRepair:
    """The result of ``mark_for_repair``."""

    ledgers: int
    """How many ledgers now have a task for the audit's findings."""
    changed: int
    """How many of these tasks are new or have new findings."""
    undecided: int
    """How many ledgers have copies that differ. A person has to look at them."""


@attrs.define
class Ailments:
    """The findings of each ledger, collected from rows in any order."""

    incomplete: dict[int, set[BookieId]] = attrs.Factory(dict)
    """The bookies that lack entries of a ledger, by ledger."""
    damaged: dict[int, set[BookieId]] = attrs.Factory(dict)
    """The bookies with damaged entries of a ledger, by ledger."""
    undecided: set[int] = attrs.Factory(set)
    """The ledgers with copies that differ."""

    def add(self, ledger_id: int, bookie: str | None, kind: str) -> None:
        """Take one row. Kinds that need no action are ignored."""
        if bookie is not None and kind == FaultKind.MISSING.value:
            self.incomplete.setdefault(ledger_id, set()).add(bookie)
        elif bookie is not None and kind == FaultKind.CORRUPT.value:
            self.damaged.setdefault(ledger_id, set()).add(bookie)
        elif kind == FaultKind.DIVERGING.value:
            self.undecided.add(ledger_id)

    @property
    def ledgers(self) -> list[int]:
        """The ledgers that need a task, in order."""
        return sorted({*self.incomplete, *self.damaged})


async def post_tasks(client: LedgerClient, ailments: Ailments) -> MarkedForRepair:
    """Make a task for each ledger, or add to the ledger's task.

    Args:
        client: The cluster.
        ailments: The findings.

    Raises:
        MetadataUnavailable: The metadata store did not answer. Some tasks may have been made; you may call
            this again.
    """
    queue = RepairQueue(client)
    changed = 0
    for ledger_id in ailments.ledgers:
        changed += await queue.post(
            ledger_id,
            incomplete=sorted(ailments.incomplete.get(ledger_id, ())),
            damaged=sorted(ailments.damaged.get(ledger_id, ())),
        )
    return MarkedForRepair(len(ailments.ledgers), changed, len(ailments.undecided))


def mark_for_repair(table: DataFrame, uri: str) -> MarkedForRepair:
    """Make tasks for auto-recovery from the rows of an audit, or from some of them.

    If you have not persisted the table, Spark computes it again here, which runs another audit. This process
    needs a few dozen bytes of memory for each ledger in the rows.

    Args:
        table: Rows of an audit, with the columns ``ledger_id``, ``bookie`` and ``kind``.
        uri: The URI of the cluster.

    Returns:
        How many ledgers have tasks now.

    Raises:
        MetadataUnavailable: The metadata store did not answer. Some tasks may have been made; you may call
            this again.
    """
    ailments = Ailments()
    for row in table.select("ledger_id", "bookie", "kind").toLocalIterator():
        ailments.add(row["ledger_id"], row["bookie"], row["kind"])
    return run_connected(uri, lambda client: post_tasks(client, ailments))
