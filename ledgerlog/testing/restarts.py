"""How whoever is down is started again, and what may keep a bookie from it: only damage to its disk, and only
where there is some."""

from __future__ import annotations

import trio

from ledgerlog.errors import LedgerLogError, StorageCorrupt, StorageError
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.world import World

__all__ = ["require_rot", "try_restart"]

RESTART_S = 20.0
"""A process that has not started by then is left alone until the next try."""


async def try_restart(world: World, name: str) -> None:
    """Start a process again. It may fail for a reason; Violation where there is none."""
    try:
        with trio.move_on_after(RESTART_S):
            await world.cluster.restart(name)
            world.counts["restarts"] += 1
    except StorageCorrupt as error:
        require_rot(world, name, error)
    except StorageError as error:
        world.event("not restarted", name, type(error).__name__)
    except LedgerLogError:
        world.event("not restarted", name)


def require_rot(world: World, bookie: str, error: StorageCorrupt) -> None:
    """A bookie that finds damage refuses to start, which is right where there is damage."""
    if bookie not in world.rotten:
        raise Violation(f"{bookie} finds damage on a disk that has none: {error}") from error
    world.counts["refused to start on a rotten disk"] += 1
