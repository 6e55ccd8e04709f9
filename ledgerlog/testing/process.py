"""The processes of a simulated cluster, and their crashes.

Each life of a process is an ``Incarnation``. Every effect of a process on the world passes through a *door*:
the process's network, disk, metadata store or random bytes. Each door first asks the incarnation whether it
is alive. A crash marks the incarnation as dead, and then cancels its tasks. The ``finally`` blocks and
``__aexit__`` methods of these tasks still run, because Python cannot drop a running coroutine, but every door
raises ``NodeCrashed``. So nothing that a process does while it unwinds has an effect, as after a SIGKILL.
``NodeCrashed`` is not an ``Exception``, so that code that handles faults does not handle the death of its own
process.

The simulation cannot interrupt Python between two awaits, but a real kill can come anywhere.
``crash_at_door`` makes up for that: the process dies at its n-th effect, just before or just after it.

A **paused** process (SIGSTOP) gets no answer from any door. Messages to it and from it are held back until it
is resumed. Its own timers fire meanwhile; a real stopped process would see them only after it continues.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from ledgerlog.testing.deterministic import Simulation, Timer

__all__ = ["Incarnation", "NodeCrashed"]


class NodeCrashed(BaseException):
    """The caller's simulated process is dead.

    ``SimulatedCluster.client`` raises it if you kill that client's process. It is not an ``Exception``, so
    that handlers of faults do not catch it.
    """


class Incarnation:
    """One life of a process."""

    def __init__(
        self, simulation: Simulation, process: str, number: int, on_crash: Callable[[bool], None]
    ) -> None:
        self.simulation = simulation
        self.process = process
        self.number = number
        """1 for the first life of the process."""
        self.is_dead = False
        self.is_paused = False
        self.scope = trio.CancelScope()
        """All tasks of the process run inside it."""
        self.random: Random = simulation.random(f"process {process} {number}")
        """The process's own random choices: ids, keys, jitter."""
        self._on_crash = on_crash
        self._changed = trio.Event()
        self._waiters: dict[trio.lowlevel.Task, Timer] = {}
        self._doors_left = 0
        self._dies_before = False
        self._dies_after = False
        self._dies_by_power_cut = False
        self._counts_writes_only = False

    def check(self) -> None:
        """Raise NodeCrashed if the process is dead. Every door calls it first."""
        if self.is_dead:
            raise NodeCrashed(f"{self.process} is dead")

    def enter_door(self, *, is_write: bool = False) -> None:
        """Check as ``check`` does, before an effect, and crash here if a crash is planned before this effect.

        Args:
            is_write: The effect is a write to a disk.
        """
        self.check()
        if self._doors_left and (is_write or not self._counts_writes_only):
            self._doors_left -= 1
            if not self._doors_left:
                if self._dies_before:
                    self._on_crash(self._dies_by_power_cut)
                    self.check()
                self._dies_after = True

    def leave_door(self) -> None:
        """Crash here if a crash is planned after this effect. No other process knows yet that the effect
        happened."""
        if self._dies_after:
            self._dies_after = False
            self._on_crash(self._dies_by_power_cut)
        self.check()

    def crash_at_door(
        self, count: int, *, before: bool, power_cut: bool = False, writes_only: bool = False
    ) -> None:
        """Plan a crash at the ``count``-th effect from now on.

        A write to the disk reaches the page cache before it passes its door.

        Args:
            count: The number of the effect; 1 is the next one.
            before: Crash before the effect, not after it.
            power_cut: Crash the machine too.
            writes_only: Count only writes to the disk.
        """
        assert count > 0
        self._counts_writes_only = writes_only
        self._dies_by_power_cut = power_cut
        self._doors_left = count
        self._dies_before = before

    def cancel_planned_crash(self) -> None:
        """Cancel the crash that ``crash_at_door`` planned, if it has not happened yet."""
        self._doors_left = 0
        self._dies_after = False

    # --- called by the cluster ------------------------------------------------------------------

    def die(self) -> None:
        """Close all doors, then cancel all tasks."""
        self.is_dead, self.is_paused = True, False
        self._wake()
        self.scope.cancel()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self.is_dead:
            for task in list(self._waiters):
                self._wake_waiter(task)

    def _wake_waiter(self, task: trio.lowlevel.Task) -> None:
        self._waiters.pop(task).cancel()
        trio.lowlevel.reschedule(task)

    # --- waiting ------------------------------------------------------------------------------

    async def wait_running(self) -> None:
        """Wait while the process is paused. If it dies, raise NodeCrashed."""
        while self.is_paused and not self.is_dead:
            await self._changed.wait()
        self.check()

    async def delay(self, seconds: float) -> None:
        """Wait as long as an event in the simulated world takes. You can cancel the wait."""
        await self.wait_until(self.simulation.now + seconds)
        if self.is_paused:
            await self.wait_running()

    async def wait_until(self, when: float, *, is_shielded: bool = False) -> None:
        """Wait until a time. If the process dies, raise NodeCrashed, even inside a shield.

        Almost everything in the simulated world waits here, so this costs one step of the task and nothing
        else: no event, and no cancel scope.

        Args:
            when: The simulated time.
            is_shielded: Wait to the end even if the task is cancelled.
        """
        self.check()
        task = trio.lowlevel.current_task()
        self._waiters[task] = self.simulation.at(when, self._wake_waiter, task)

        def abort(_: object) -> trio.lowlevel.Abort:
            if is_shielded:
                return trio.lowlevel.Abort.FAILED
            self._waiters.pop(task).cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self.check()
