"""Recorders that let something happen at one step of a run: the process is killed, or a call fails.

The steps are the beginnings and ends of all effects on the disk and the index, in their order. So a test runs
a scenario once to count them, and then once for each of them.
"""

from __future__ import annotations

from recording_disk import Effect, Recorder

from ledgerlog.errors import DiskFull, StorageError


class Killed(Exception):
    """Effects that a killed process no longer has."""


class KillingRecorder(Recorder):
    """Kills the process at the n-th beginning or end of an effect, of a directory's sync where those count
    alone; or never, where n is None."""

    def __init__(self, kill_at: int | None, *, only_syncs: bool = True) -> None:
        super().__init__()
        self.is_dead = False
        self.count = 0
        self.kill_at = kill_at
        self._only_syncs = only_syncs

    def live_again(self, kill_at: int | None = None) -> None:
        """Let the next process run, until it comes to its step of this number."""
        self.is_dead, self.kill_at, self.count = False, kill_at, 0

    def step(self) -> None:
        """Count a step that is not an effect. Raise Killed if the process ends there."""
        self.is_dead = self.is_dead or self.count == self.kill_at
        self.count += 1
        if self.is_dead:
            raise Killed

    def _look(self, effect: Effect) -> None:
        if effect.kind == "sync_directory" or not self._only_syncs:
            self.is_dead = self.is_dead or self.count == self.kill_at
            self.count += 1

    def begin(self, effect: Effect) -> None:
        self._look(effect)
        if self.is_dead:
            raise Killed
        super().begin(effect)

    def end(self, effect: Effect) -> None:
        self._look(effect)
        if self.is_dead and effect.kind == "sync_directory":
            effect.dropped = self.position
        elif not (self.is_dead and effect.kind in ("write", "truncate")):
            super().end(effect)  # New names are in the cache, and an index keeps its rows.
        if self.is_dead:
            raise Killed


class FailingRecorder(Recorder):
    """Lets the n-th effect fail, once.

    Args:
        fail_at: The number of the effect; None: none fails.
        error: What kind of error.
        happens: The effect is there for this process although the call failed, as in a page cache. After a
            crash any part of it may be there.
    """

    def __init__(self, fail_at: int | None, error: type[StorageError], *, happens: bool = False) -> None:
        super().__init__()
        self.begun: list[Effect] = []
        """All effects, those that failed by themselves included."""
        self.failed: Effect | None = None
        self._fail_at = fail_at
        self._error = error
        self._happens = happens

    def begin(self, effect: Effect) -> None:
        if len(self.begun) == self._fail_at:
            self.failed = effect
        self.begun.append(effect)
        # A creation that finds no room leaves no file behind.
        leaves_nothing = effect.kind == "create" and self._error is DiskFull
        if effect is self.failed and (leaves_nothing or not self._happens):
            raise self._error(f"cannot {effect.kind} {effect.path}: the {self._error.__name__} of this test")
        super().begin(effect)

    def end(self, effect: Effect) -> None:
        if effect is not self.failed:
            super().end(effect)
            return
        self.position += 1  # It is in flight from now on.
        raise self._error(f"cannot {effect.kind} {effect.path}: the {self._error.__name__} of this test")
