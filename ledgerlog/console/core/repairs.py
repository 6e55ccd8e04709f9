"""The board of repair: the waiting tasks, the workers and their speed, and the history of the task count."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.console.core.picture import Happenings, Row
from ledgerlog.limits import CONSOLE_PAGE_ROWS
from ledgerlog.model.ids import BookieId
from ledgerlog.model.repair import AuditState, RepairSettings, RepairTask, WorkerProgress

__all__ = ["RepairBoard", "WaitingCount"]

_HISTORY = 120
"""How many past task counts the curve shows."""


@attrs.frozen
class _Task:
    task: RepairTask | None
    why: str | None


@attrs.define(eq=False)
class WaitingCount:
    """How many ledgers waited at the last look of any page. All boards of repair share it, so that each
    change is told once."""

    _happenings: Happenings
    _count: int | None = None

    def on_count(self, count: int, at_s: float) -> None:
        """Take the number of ledgers that wait now."""
        before, self._count = self._count, count
        if before is not None and before != count:
            if not count:
                self._happenings.add(at_s, "repair", "is done: no ledger waits", tone="good")
            elif not before:
                self._happenings.add(at_s, "repair", f"has {count} ledgers to look after", tone="bad")


class RepairBoard:
    """Folds the observations of repair into rows. All times are in seconds since 1970."""

    def __init__(self, count: WaitingCount) -> None:
        self._count = count
        self._waiting: tuple[int, ...] | None = None
        self._tasks: dict[int, _Task] = {}
        self._history: deque[tuple[float, int]] = deque(maxlen=_HISTORY)
        self._workers: Mapping[str, WorkerProgress] = {}
        self._locks: Mapping[int, str] = {}
        self._audit: AuditState | None = None
        self._auditor: str | None = None
        self._settings: RepairSettings | None = None
        self._draining: tuple[BookieId, ...] = ()
        self._damaged: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[int, ...]:
        """The ledgers whose tasks are shown: first ledgers that a worker works on, then ledgers with low
        ids."""
        waiting = self._waiting or ()
        at_work = [ledger_id for ledger_id in waiting if ledger_id in self._locks]
        others = (ledger_id for ledger_id in waiting if ledger_id not in self._locks)
        return (*at_work, *others)[:CONSOLE_PAGE_ROWS]

    def is_read(self, ledger_id: int) -> bool:
        """Whether the task of a ledger was read already."""
        return ledger_id in self._tasks

    def on_tasks(self, waiting: Sequence[int], locks: Mapping[int, str], at_s: float) -> None:
        """Take the ledgers that have tasks, and the workers that hold the locks of ledgers."""
        self._waiting, self._locks = tuple(waiting), dict(locks)
        count = len(self._waiting)
        if not self._history or self._history[-1][1] != count:
            self._history.append((at_s, count))
        self._count.on_count(count, at_s)
        shown = {*self.shown}
        self._tasks = {ledger_id: task for ledger_id, task in self._tasks.items() if ledger_id in shown}

    def on_task(self, ledger_id: int, task: RepairTask | None, why: str | None = None) -> None:
        """Take a task. None: the task cannot be read, and ``why`` says why."""
        self._tasks[ledger_id] = _Task(task, why)

    def on_state(
        self,
        *,
        workers: Mapping[str, WorkerProgress],
        audit: AuditState | None,
        settings: RepairSettings | None,
        draining: Sequence[BookieId],
        damaged: Sequence[str],
    ) -> None:
        """Take everything but the tasks and the auditor.

        Args:
            workers: The workers by their tokens.
            audit: The auditor's record.
            settings: The settings in force.
            draining: The bookies that operators want emptied.
            damaged: The records that cannot be read, each with the reason.
        """
        self._workers, self._audit = dict(workers), audit
        self._settings, self._draining = settings, tuple(draining)
        self._damaged = tuple(damaged)

    def on_auditor(self, auditor: str | None) -> None:
        """Take the name of the auditor; None: there is none."""
        self._auditor = auditor

    def sections(self, *, with_tasks: bool) -> dict[str, Mapping[str, Row]]:
        """Return the sections of a page."""
        sections: dict[str, Mapping[str, Row]] = {"repair": {"": self._summary()}}
        if with_tasks:
            sections["tasks"] = {str(ledger_id): self._task_row(ledger_id) for ledger_id in self.shown}
            sections["workers"] = {token: self._worker_row(token) for token in self._workers}
        return sections

    def _summary(self) -> Row:
        audit = self._audit
        return {
            "waiting": None if self._waiting is None else len(self._waiting),
            "at_work": len(self._locks),
            "workers": len(self._workers),
            "bytes_per_s": sum(worker.bytes_per_s for worker in self._workers.values()),
            "paused": self._settings is not None and self._settings.paused,
            "auditor": self._auditor,
            "draining": list(self._draining),
            "absent": [] if audit is None else sorted(audit.absent),
            "ledgers": None if audit is None else audit.ledgers,
            "affected": None if audit is None else audit.affected,
            "metadata_ms": audit.metadata_at_ms or None if audit is not None else None,
            "entries_ms": audit.entries_at_ms or None if audit is not None else None,
            "damaged": list(self._damaged),
            "history": [[round(at_s, 1), count] for at_s, count in self._history],
        }

    def _task_row(self, ledger_id: int) -> Row:
        holder = self._workers.get(self._locks.get(ledger_id, ""))
        doing = {work.ledger_id: work.doing for work in holder.work} if holder is not None else {}
        found = self._tasks.get(ledger_id)
        task = None if found is None else found.task
        return {
            "ledger": ledger_id,
            "lost": [] if task is None else list(task.lost),
            "damaged": [] if task is None else list(task.damaged),
            "incomplete": [] if task is None else list(task.incomplete),
            "misplaced": [] if task is None else list(task.misplaced),
            "made_ms": None if task is None else task.made_at_ms,
            "trouble": task.trouble if task is not None else None if found is None else found.why,
            "worker": None if holder is None else holder.name,
            "doing": doing.get(ledger_id),
        }

    def _worker_row(self, token: str) -> Row:
        worker = self._workers[token]
        return {
            "name": worker.name,
            "ledgers": [work.ledger_id for work in worker.work[:CONSOLE_PAGE_ROWS]],
            "repaired": worker.repaired,
            "entries": worker.entries,
            "bytes": worker.copied_bytes,
            "bytes_per_s": worker.bytes_per_s,
        }
