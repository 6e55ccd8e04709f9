"""Processes of a simulated cluster: what ends when one is killed, and what it can no longer do.

Each life of a process is an ``Incarnation``. Everything that a process does to the world goes through a door:
its network, its disk, its metadata store, its random bytes. Each door asks the incarnation first. A crash
makes the incarnation dead and then cancels its tasks. Their ``finally`` blocks and ``__aexit__`` methods
still run, because coroutines cannot simply be dropped, and they find every door closed: ``NodeCrashed``. So
nothing that a process does while it unwinds reaches anybody, just as nothing is done by a process after
SIGKILL. ``NodeCrashed`` is no ``Exception``: code that handles faults does not handle its own death.

Python between two awaits cannot be interrupted here, while a real kill can come anywhere. ``crash_at_door``
makes up for that: the process dies at its n-th effect, before or right after it.

**Paused** (SIGSTOP) is a process to which no door answers: what it waited for from the world is held back
until it is resumed, and what it sends stays with it. Its own timers fire meanwhile, which a real stopped
process would see only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from ledgerlog.testing.deterministic import Simulation

__all__ = ["Incarnation", "NodeCrashed"]


class NodeCrashed(BaseException):
    """The process that the caller belongs to is dead: it can do nothing any more."""


class Incarnation:
    """One life of a process."""

    def __init__(
        self, simulation: Simulation, process: str, number: int, on_crash: Callable[[bool], None]
    ) -> None:
        self.simulation = simulation
        self.process = process
        self.number = number
        """1 for the first life."""
        self.is_dead = False
        self.is_paused = False
        self.scope = trio.CancelScope()
        """Everything that the process runs is inside it."""
        self.random: Random = simulation.random(f"process {process} {number}")
        """For what the process draws itself: ids, keys, jitter."""
        self._on_crash = on_crash
        self._changed = trio.Event()
        self._waiters: dict[trio.Event, None] = {}
        self._doors_left = 0
        self._dies_before = False
        self._dies_after = False
        self._dies_by_power_cut = False
        self._counts_writes_only = False

    def check(self) -> None:
        """Every door begins with this."""
        if self.is_dead:
            raise NodeCrashed(f"{self.process} is dead")

    def enter_door(self, *, is_write: bool = False) -> None:
        """As ``check``, in front of an effect at which a crash may be planned. ``is_write``: on a disk."""
        self.check()
        if self._doors_left and (is_write or not self._counts_writes_only):
            self._doors_left -= 1
            if not self._doors_left:
                if self._dies_before:
                    self._on_crash(self._dies_by_power_cut)
                    self.check()
                self._dies_after = True

    def leave_door(self) -> None:
        """The effect has happened, and nobody knows of it yet."""
        if self._dies_after:
            self._dies_after = False
            self._on_crash(self._dies_by_power_cut)
        self.check()

    def crash_at_door(
        self, count: int, *, before: bool, power_cut: bool = False, writes_only: bool = False
    ) -> None:
        """Die at the ``count``-th effect from now on, before it or right after it; with ``power_cut`` the
        machine as well; with ``writes_only`` only writes to the disk count. A write to the disk is in the
        page cache before its door."""
        assert count > 0
        self._counts_writes_only = writes_only
        self._dies_by_power_cut = power_cut
        self._doors_left = count
        self._dies_before = before

    def cancel_planned_crash(self) -> None:
        """Undo ``crash_at_door``, if it has not come to pass."""
        self._doors_left = 0
        self._dies_after = False

    # --- what the supervisor does ---------------------------------------------------------------

    def die(self) -> None:
        """Close all doors, then end all tasks."""
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
            for waiter in self._waiters:
                waiter.set()

    # --- waiting ------------------------------------------------------------------------------

    async def wait_running(self) -> None:
        """Return at once unless the process is paused; then once it is resumed. NodeCrashed if it dies."""
        while self.is_paused and not self.is_dead:
            await self._changed.wait()
        self.check()

    async def delay(self, seconds: float) -> None:
        """The time that something in the world takes. It can be cancelled."""
        await self.wait_until(self.simulation.now + seconds)
        if self.is_paused:
            await self.wait_running()

    async def wait_until(self, when: float) -> None:
        """As ``delay``, up to a time, and over at once if the process dies. For use inside a shield."""
        self.check()
        is_over = trio.Event()
        timer = self.simulation.at(when, is_over.set)
        self._waiters[is_over] = None
        try:
            await is_over.wait()
        finally:
            del self._waiters[is_over]
            timer.cancel()
        self.check()
