"""From the rows of an audit to tasks for auto-recovery: the one step of an audit that changes anything.

    missing      the bookie is given what it lacks
    corrupt      the bookie is replaced in the fragments that name it, like one that is lost, so that takes a
                 bookie more than the ensemble has; if its own scrubbing is faster nothing is left to do
    diverging    nothing: a person has to look. No disk and no network makes copies that are sound by
                 themselves and differ. Whatever did, to copy one of them over the others would destroy what
                 tells of it, and be right by chance
    limbo        nothing: the bookie brings itself what it lost
    unreachable  nothing: whether a bookie is lost is decided by its registration

A task is a hint (``model.repair``): whoever works on it looks for himself, so one too many costs a look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ledgerlog.blocking.portal import Portal
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.comparison import FaultKind
from ledgerlog.model.ids import BookieId
from ledgerlog.repair.queue import Board
from ledgerlog.spark.source import connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Ailments", "Marked", "mark_for_repair", "post_tasks"]


@attrs.frozen
class Marked:
    """What became of the rows."""

    ledgers: int
    """Ledgers that have a task now for what was found."""
    changed: int
    """Of these, those whose task is new or was added to."""
    undecided: int
    """Ledgers with copies that differ, which are for a person to look at."""


@attrs.define
class Ailments:
    """What rows say of each ledger, gathered a row at a time, in any order."""

    incomplete: dict[int, set[BookieId]] = attrs.Factory(dict)
    damaged: dict[int, set[BookieId]] = attrs.Factory(dict)
    undecided: set[int] = attrs.Factory(set)

    def add(self, ledger_id: int, bookie: str | None, kind: str) -> None:
        """One row; of a kind that there is nothing to do about, nothing."""
        if bookie is not None and kind == FaultKind.MISSING.value:
            self.incomplete.setdefault(ledger_id, set()).add(bookie)
        elif bookie is not None and kind == FaultKind.CORRUPT.value:
            self.damaged.setdefault(ledger_id, set()).add(bookie)
        elif kind == FaultKind.DIVERGING.value:
            self.undecided.add(ledger_id)

    @property
    def ledgers(self) -> list[int]:
        """Those to make tasks of, growing."""
        return sorted({*self.incomplete, *self.damaged})


async def post_tasks(client: LedgerClient, ailments: Ailments) -> Marked:
    """Make a task for each ledger, or add to the one that is there. MetadataUnavailable: some were made, and
    to do it again harms nothing."""
    board = Board(client)
    changed = 0
    for ledger_id in ailments.ledgers:
        changed += await board.post(
            ledger_id,
            incomplete=sorted(ailments.incomplete.get(ledger_id, ())),
            damaged=sorted(ailments.damaged.get(ledger_id, ())),
        )
    return Marked(len(ailments.ledgers), changed, len(ailments.undecided))


def mark_for_repair(table: DataFrame, uri: str) -> Marked:
    """Make tasks for auto-recovery of the rows of an audit, or of some of them.

    A table that is not persisted is computed for this, which is another audit. Each ledger of the rows takes
    some tens of bytes here. MetadataUnavailable."""
    ailments = Ailments()
    for row in table.select("ledger_id", "bookie", "kind").toLocalIterator():
        ailments.add(row["ledger_id"], row["bookie"], row["kind"])
    portal = Portal()
    try:
        client, _ = portal.enter(connected(uri))
        return portal.run(lambda: post_tasks(client, ailments))
    finally:
        portal.close()
