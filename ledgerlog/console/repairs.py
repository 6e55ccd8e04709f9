"""Look at repair: the tasks, the workers, the auditor and the settings.

The page shows the records that repair itself keeps in the metadata store. The console never passes over all
ledgers; ``ledgerlog repair status`` does that.
"""

from __future__ import annotations

import trio

from ledgerlog.console.core.picture import Picture
from ledgerlog.console.core.repairs import RepairBoard
from ledgerlog.console.looks import Looking
from ledgerlog.election.election import Election
from ledgerlog.model.layout import REPAIR, REPAIR_AUDIT, REPAIR_SETTINGS, election_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.repair.auditor import AUDITOR_ELECTION
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.settings import SettingsInForce

__all__ = ["RepairFollower"]

_AGAIN_S = 5.0
"""The least time between two reads of a shown task, in seconds."""


class RepairFollower:
    """Follows repair. ``run`` runs until cancelled."""

    def __init__(self, looking: Looking, *, with_tasks: bool) -> None:
        """``with_tasks``: the page shows single tasks. Otherwise the page needs only their number."""
        self.board = RepairBoard(looking.waiting)
        self._looking = looking
        self._with_tasks = with_tasks
        self._queue = RepairQueue(looking.client)
        self._settings = SettingsInForce(self._queue, name="the console")
        self._election = Election(looking.client, AUDITOR_ELECTION)
        self._read_again_at = 0.0
        self._auditor: str | None = None

    def picture(self) -> Picture:
        """Return the page."""
        return self.board.sections(with_tasks=self._with_tasks)

    async def run(self) -> None:
        """Follow repair."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._looking.follow, election_path(AUDITOR_ELECTION), self._look_at_auditor)
            nursery.start_soon(self._looking.follow, REPAIR, self._look)

    async def _look_at_auditor(self) -> None:
        leader = await self._election.leader()
        self._auditor = leader.candidate if leader is not None and leader.is_registered else None
        self.board.on_auditor(self._auditor)

    async def _look(self) -> None:
        queue, board, looking = self._queue, self.board, self._looking
        damaged = []
        audit = None
        try:
            audit = await queue.audit_record()
        except MetadataCorrupt as damage:
            damaged.append(f"{REPAIR_AUDIT}: {damage}")
        settings = await self._settings.read()
        if self._settings.damage is not None:
            damaged.append(f"{REPAIR_SETTINGS}: {self._settings.damage}")
        draining, unknown = await queue.requests()
        damaged += [f"bookie {bookie_id}: {why}" for bookie_id, why in unknown.items()]
        workers = await queue.workers()
        board.on_state(
            workers=workers, audit=audit, settings=settings, draining=sorted(draining), damaged=damaged
        )
        looking.bookies.on_draining(draining)
        board.on_tasks(await queue.tasks(), await queue.locks(), looking.now_s())
        if self._with_tasks:
            await self._look_at_tasks()

    async def _look_at_tasks(self) -> None:
        is_due = trio.current_time() >= self._read_again_at
        if is_due:
            self._read_again_at = trio.current_time() + _AGAIN_S
        for ledger_id in self.board.shown:
            if not is_due and self.board.is_read(ledger_id):
                continue
            try:
                found = await self._queue.task(ledger_id)
            except MetadataCorrupt as damage:
                self.board.on_task(ledger_id, None, str(damage))
            else:
                if found is not None:
                    self.board.on_task(ledger_id, found[0])
