"""The replication worker: takes tasks from the repair queue and works on them.

Any number of processes may run a worker.

    register    create the worker's own node for as long as the session lives; a new session is a new worker
    look        list the tasks when the queue changes, and from time to time
    hurry       try failed tasks again when bookies come or go
    lanes       several lanes work at the same time. Each takes a free task: lock, read the task, work, remove
                the task, unlock (rule 22)
    follow      read the settings: the rate and the pause. The worker takes no task before it has read them.
                If the store does not answer, it makes no guess. See ``repair.settings`` for damaged settings
    say         publish the worker's progress, for people

A task that could not be done stays in the queue, with the reason written into it. The worker tries it again
after a growing pause, or at once when bookies come or go or the settings change. The worker of any process
may make the next try.

**Repeated failures are few**, even if many tasks wait. For example, with too few bookies every ledger of the
cluster may have a task that fails. Each try sends a dozen requests to the metadata store, which writers need
as well. So repeated failures have their own rate limit (``_FAILURES_PER_S``). This limit does not slow down
tries that succeed.

**The safety of ledgers does not depend on this module.** Two workers may work on one ledger: one of them was
cut off and does not know that it lost the lock. Then they do the same work twice, and the compare-and-set of
the ledger's metadata decides.
The lock only saves work. A task is removed before its lock is released, so no task is forgotten.
"""

from __future__ import annotations

import logging

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.core.rate import TokenBucket
from ledgerlog.errors import IncompatibleVersion, LedgerLogError
from ledgerlog.event_log import REPAIR_PAUSED, tell
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import RECONNECT_DELAY_MAX_S
from ledgerlog.meta.settle import follow, go_on
from ledgerlog.meta.store import SessionState
from ledgerlog.model.layout import REPAIR_SETTINGS, REPAIR_TASKS
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import LedgerWork, RepairSettings, WorkerProgress
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.repair.queue import RepairQueue, WorkerKey
from ledgerlog.repair.settings import SettingsInForce

__all__ = ["Worker"]

LANES = 2
"""How many ledgers one process works on at a time. While one lane waits for the metadata store, the others
copy."""

_LOOK_S = 10.0
"""The worker lists the tasks at least this often, even if no watch reports a change."""

_LISTED_S = 0.5
"""The worker lists the tasks at most this often."""

_AGAIN_MIN_S = 1.0
_AGAIN_MAX_S = 60.0
_TAKEN_S = 2.0
"""If another worker has a task's lock, try the task again after this time."""

_FAILURES_PER_S = 10
"""How many repeated failures one process may cause per second."""

_SAY_S = 2.0
_LEAVE_S = 2.0

logger = logging.getLogger(__name__)


@attrs.define
class _Waiting:
    """A task to leave alone until a given time."""

    until: float
    may_hurry: bool = True
    """Whether to try it as soon as bookies come or go or the settings change."""
    backoff: Backoff = attrs.field(factory=lambda: Backoff(_AGAIN_MIN_S, _AGAIN_MAX_S))


class Worker:
    """Works on tasks of the repair queue. ``run`` is its task."""

    def __init__(self, client: LedgerClient, *, name: str, lanes: int = LANES) -> None:
        self.name = name
        self.repaired = 0
        """How many tasks this worker has finished."""
        self._client = client
        self._queue = RepairQueue(client)
        self._in_force = SettingsInForce(self._queue, name=f"worker={name}")
        self._settings = RepairSettings()
        self.pacer = Pacer(self._settings.bytes_per_s)
        self.copying = Copying(client, self.pacer)
        self._repair = LedgerRepair(client, self._queue, self.copying)
        self._lanes = lanes
        self._workers = 1
        """How many worker processes share the cluster's rate of copying."""
        self._tasks: list[int] = []
        self._busy: dict[int, str] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._changed = trio.Event()
        self._failures = TokenBucket(_FAILURES_PER_S, trio.current_time(), burst_s=1.0)

    async def run(self) -> None:
        """Work until cancelled. During an outage of the store, the worker waits."""
        backoff = Backoff(0.2, RECONNECT_DELAY_MAX_S)
        while True:
            what = f"worker={self.name} waits for the metadata store"
            if await go_on(self._live, what=what, backoff=backoff, log=logger, survives=(LedgerLogError,)):
                backoff.reset()

    async def _live(self) -> None:
        """Work as one registered worker until the session ends.

        Raises the errors of reading settings and of registering.
        """
        # Read the settings first: never copy at an unknown rate, or during an unknown pause.
        self._workers = await self._queue.worker_count() + 1
        await self._heed()
        session = self._client.store.session
        key = await self._queue.register_worker()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look)
                nursery.start_soon(self._hurry)
                nursery.start_soon(self._follow)
                nursery.start_soon(self._say, key)
                for _ in range(self._lanes):
                    nursery.start_soon(self._work, key)
                state = session.state
                while state is not SessionState.LOST and self._client.store.session is session:
                    state = await session.wait_not(state)
                logger.info("worker=%s: its session is over; it starts again", self.name)
                nursery.cancel_scope.cancel()
        finally:
            # The node may belong to a session that followed this one while the worker registered.
            if self._client.store.session.state is SessionState.CONNECTED:
                with trio.move_on_after(_LEAVE_S, shield=True):
                    try:
                        await self._queue.unregister_worker(key)
                    except LedgerLogError as trouble:
                        logger.info("worker=%s is still registered: %s", self.name, trouble)

    @property
    def task_count(self) -> int:
        """How many ledgers have a task, as this worker last listed them."""
        return len(self._tasks)

    @property
    def busy_count(self) -> int:
        """How many ledgers this worker works on now."""
        return len(self._busy)

    # --- the list of tasks and the settings -----------------------------------------------------

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _look(self) -> None:
        async def look() -> None:
            await self._list()
            await trio.sleep(_LISTED_S)

        await follow(
            self._client.store,
            REPAIR_TASKS,
            look,
            what=f"worker={self.name} cannot list the tasks",
            log=logger,
            every_s=_LOOK_S,
        )

    async def _list(self) -> None:
        found = await self._queue.tasks()
        self._workers = await self._queue.worker_count()
        self._set_pace()
        open_tasks = frozenset(found)
        self._waiting = {e: waiting for e, waiting in self._waiting.items() if e in open_tasks}
        self._repair.keep_only(open_tasks)
        # Each worker goes through the tasks in its own random order, so workers seldom meet at a task.
        self._client.environment.random.shuffle(found)
        self._tasks = found
        self._tell()

    async def _hurry(self) -> None:
        """Try all failed tasks again when bookies come or go: they may succeed now."""
        while True:
            await self._client.bookies.wait_change()
            self._try_again()

    def _try_again(self) -> None:
        for waiting in self._waiting.values():
            if waiting.may_hurry:
                waiting.until = -1.0
        self._tell()

    async def _follow(self) -> None:
        await follow(
            self._client.store,
            REPAIR_SETTINGS,
            self._heed,
            what=f"worker={self.name} uses its last settings",
            log=logger,
        )

    async def _heed(self) -> None:
        """Read the settings and apply them from now on.

        Raises:
            MetadataUnavailable: The metadata store could not be reached.
        """
        before, settings = self._settings, await self._in_force.read()
        self._settings = settings
        if settings.paused != self.pacer.is_paused:
            tell(
                logger,
                REPAIR_PAUSED,
                f"worker=%(worker)s: {'paused' if settings.paused else 'resumed'}",
                worker=self.name,
                paused=settings.paused,
            )
        self._set_pace()
        if settings != before:
            self._try_again()  # For example, the grace period of a writer may be over now.

    def _set_pace(self) -> None:
        settings = self._settings
        self.pacer.set(bytes_per_s=settings.worker_bytes_per_s(self._workers), paused=settings.paused)

    # --- working on tasks -----------------------------------------------------------------------

    async def _next(self) -> int:
        """Wait for a task that may be tried now and that no other lane works on. Return its ledger."""
        while True:
            await self.pacer.wait_resumed()
            now, wake_at = trio.current_time(), trio.current_time() + _LOOK_S
            changed = self._changed
            again_at = now + self._failures.delay(now)
            for ledger_id in self._tasks:
                waiting = self._waiting.get(ledger_id)
                if ledger_id in self._busy:
                    continue
                due_at = now if waiting is None else max(waiting.until, again_at)
                if due_at <= now:
                    return ledger_id
                wake_at = min(wake_at, due_at)
            with trio.move_on_at(wake_at):
                await changed.wait()

    async def _work(self, key: WorkerKey) -> None:
        while True:
            ledger_id = await self._next()
            self._busy[ledger_id] = "looking"
            try:
                await self._attempt(ledger_id, key)
            except LedgerLogError as trouble:
                logger.info("worker=%s ledger=%d is left for now: %s", self.name, ledger_id, trouble)
                self._wait(ledger_id)
            finally:
                del self._busy[ledger_id]

    async def _attempt(self, ledger_id: int, key: WorkerKey) -> None:
        if not await self._queue.lock(ledger_id, key):
            self._waiting[ledger_id] = _Waiting(trio.current_time() + _TAKEN_S, may_hurry=False)
            return
        try:
            # Read the task after locking. If we read it before, another worker that still had the lock could
            # finish and remove the task meanwhile.
            try:
                found = await self._queue.task(ledger_id)
            except IncompatibleVersion:
                raise  # A newer version wrote the task; try it again later.
            except MetadataCorrupt:
                await self._repair.make_anew(ledger_id)
                found = await self._queue.task(ledger_id)
            if found is None:
                self._forget(ledger_id)
                return
            task, version = found

            def say(what: str) -> None:
                self._busy[ledger_id] = what

            verdict = await self._repair.run(task, grace_s=self._settings.grace_ms / 1000, say=say)
            if verdict.task is not None:
                await self._queue.note(task, version, verdict.task, key)
                self._wait(ledger_id, verdict.again_in_s)
            elif await self._queue.remove(ledger_id, version, key):
                self.repaired += 1
                self._forget(ledger_id)
        finally:
            # Unlock only after the removal (rule 22).
            with trio.move_on_after(_LEAVE_S, shield=True):
                await self._queue.unlock(ledger_id, key)

    def _forget(self, ledger_id: int) -> None:
        self._waiting.pop(ledger_id, None)
        if ledger_id in self._tasks:
            self._tasks.remove(ledger_id)

    def _wait(self, ledger_id: int, again_in_s: float | None = None) -> None:
        before = self._waiting.get(ledger_id)
        if before is not None:  # The first try of each task is free: thousands of tasks build up no debt.
            self._failures.spend(1, trio.current_time())
        if again_in_s is not None:
            self._waiting[ledger_id] = _Waiting(trio.current_time() + again_in_s)
            return
        waiting = self._waiting[ledger_id] = before or _Waiting(0.0)
        waiting.until, waiting.may_hurry = trio.current_time() + waiting.backoff.next_s(), True

    # --- publishing progress --------------------------------------------------------------------

    async def _say(self, key: WorkerKey) -> None:
        bytes_before, at_before = self.copying.byte_count, trio.current_time()
        while True:
            now = trio.current_time()
            rate = (self.copying.byte_count - bytes_before) / max(now - at_before, 1e-3)
            bytes_before, at_before = self.copying.byte_count, now
            progress = WorkerProgress(
                name=self.name,
                repaired=self.repaired,
                entries=self.copying.entries,
                copied_bytes=self.copying.byte_count,
                bytes_per_s=round(rate),
                work=tuple(LedgerWork(ledger_id=e, doing=what) for e, what in sorted(self._busy.items())),
            )
            try:
                await self._queue.say_progress(key, progress)
            except LedgerLogError as trouble:
                logger.debug("worker=%s: its progress cannot be stored: %s", self.name, trouble)
            await trio.sleep(_SAY_S)
