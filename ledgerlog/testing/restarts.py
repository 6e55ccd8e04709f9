"""Restart processes that are down. A bookie may refuse to start only because of damage that its disk has."""

from __future__ import annotations

import trio

from ledgerlog.errors import LedgerLogError, StorageCorrupt, StorageError
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.world import World

__all__ = ["require_rot", "try_restart"]

RESTART_S = 20.0
"""If a process has not started after this time, the nemesis waits for its next try."""


async def try_restart(world: World, name: str) -> None:
    """Try to restart a process. If it does not start and no injected fault explains that, raise Violation."""
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
    """Raise Violation if a bookie refuses to start because of damage, but its disk has no injected damage."""
    if bookie not in world.rotten:
        raise Violation(f"{bookie} finds damage on a disk that has none: {error}") from error
    world.counts["refused to start on a rotten disk"] += 1
