"""Watching a bookie's disk: the bookie becomes read-only before the disk is full.

``DiskWatch`` looks at the space of every directory that the bookie writes to. It looks every
``disk_watch_interval_s``. It also looks when the storage begins, fills or rewrites a file of entries, because
a fast writer can fill a small disk between two timed looks. ``bookie.core.fullness`` judges the space, and
the watch acts:

    short of space      writes a log line; asks for collection and compaction
    read-only           refuses ordinary adds, and moves the registration to the other list in one step of the
                        metadata store. New ledgers and existing writers go to other bookies
    roomy again         undoes both, without an operator

The first look comes before the registration, so a bookie that starts on a full disk is never registered as
writable. If the space cannot be read, nothing changes, and one log line says so. A disk without bounds is
not watched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from bookie.core.fullness import DiskSpace, Fullness, FullnessPolicy
from bookie.storage.disk.disk import Disk
from bookie.storage.engine.engine import Engine
from ledgerlog.errors import StorageError
from ledgerlog.event_log import DISK_READ_ONLY, DISK_ROOMY, DISK_SHORT, tell
from ledgerlog.limits import MIB
from ledgerlog.model.ids import BookieId

logger = logging.getLogger(__name__)


class DiskWatch:
    """Watches the disk of one bookie. Call ``look`` once, then run ``run`` while the bookie serves."""

    def __init__(
        self,
        bookie_id: BookieId,
        engine: Engine,
        disk: Disk,
        paths: Sequence[str],
        *,
        policy: FullnessPolicy,
        interval_s: float,
        set_read_only: Callable[[bool], None],
    ) -> None:
        self.fullness = Fullness.ROOMY
        """The result of the last look."""
        self.spaces: dict[str, DiskSpace] = {}
        """The space of each watched directory at the last look; empty if no disk has bounds."""
        self._bookie_id = bookie_id
        self._engine = engine
        self._disk = disk
        self._paths = paths
        self._policy = policy
        self._interval_s = interval_s
        self._set_read_only = set_read_only
        self._is_troubled = False

    async def look(self) -> bool:
        """Look once and act on the result. Return False if no disk has bounds."""
        spaces: dict[str, DiskSpace] = {}
        try:
            for path in self._paths:
                space = await self._disk.space(path)
                if space is not None:
                    spaces[path] = space
        except StorageError as trouble:
            if not self._is_troubled:
                logger.error("bookie=%s: the space on its disk cannot be read: %s", self._bookie_id, trouble)
            self._is_troubled = True
            return True
        self._is_troubled = False
        self.spaces = spaces
        was, self.fullness = self.fullness, self._policy.judge(spaces.values(), was=self.fullness)
        if self.fullness is not was:
            self._tell(was, spaces)
        if self.fullness is not Fullness.ROOMY:
            self._engine.reclaimer.prompt()
        is_read_only = self.fullness is Fullness.READ_ONLY
        if is_read_only != (was is Fullness.READ_ONLY):
            self._set_read_only(is_read_only)
        return bool(spaces)

    def _tell(self, was: Fullness, spaces: dict[str, DiskSpace]) -> None:
        if self.fullness is Fullness.READ_ONLY:
            event, what = (
                DISK_READ_ONLY,
                "its disk is nearly full: read-only until space is freed",
            )
        elif was is Fullness.READ_ONLY:
            event, what = DISK_ROOMY, "its disk has room: writable again"
        elif self.fullness is Fullness.SHORT:
            event, what = DISK_SHORT, "its disk is short of space"
        else:
            event, what = DISK_ROOMY, "its disk is no longer short of space"
        tell(
            logger,
            event,
            f"bookie=%(bookie)s: {what}; %(spaces)s",
            bookie=self._bookie_id,
            spaces="; ".join(
                f"{path}: {space.free // MIB} of {space.total // MIB} MiB free, read-only below "
                f"{self._policy.read_only_below(space.total) // MIB}, writable from "
                f"{self._policy.writable_from(space.total) // MIB}"
                for path, space in spaces.items()
            ),
        )

    async def run(self) -> None:
        """Look regularly, and after each change in the use of the disk. This returns only if no disk has
        bounds."""
        while True:
            changed = self._engine.files_changed
            if not await self.look():
                return
            with trio.move_on_after(self._interval_s):
                await changed.wait()
