"""Restart processes that are down. A bookie may refuse to start only if its disk has injected damage."""

from __future__ import annotations

import trio

from ledgerlog.errors import CookieMismatch, IncompatibleVersion, LedgerLogError, StorageCorrupt, StorageError
from ledgerlog.testing.disk import EMPTY_IMAGE
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.process import NodeCrashed
from ledgerlog.testing.rot_rules import RebuildRule
from ledgerlog.testing.world import World

__all__ = ["RESTART_S", "repair", "require_rot", "start_again", "try_restart"]

RESTART_S = 20.0
"""If a process has not started after this time, the nemesis waits for its next try."""

_DAMAGE = (StorageCorrupt, IncompatibleVersion, CookieMismatch)
"""The errors that damage can cause. A flipped bit may look like a newer format, or hide the file's owner."""


async def try_restart(world: World, name: str) -> None:
    """Try to restart a process. If it does not start and no injected fault explains that, raise Violation."""
    if world.in_hands[name]:
        return
    try:
        with trio.move_on_after(RESTART_S):
            await start_again(world, name)
    except StorageCorrupt as error:
        if name not in world.damaged:
            require_rot(world, name, error)
    except StorageError as error:
        world.event("not restarted", name, type(error).__name__)
    except LedgerLogError:
        world.event("not restarted", name)


async def start_again(world: World, name: str) -> None:
    """Restart a process. If people have damaged its files and the process refuses to start, repair it first.

    Raises:
        LedgerLogError: The process does not start.
    """
    rebuild = RebuildRule(world, name) if world.cluster.process(name).heals_index else None
    try:
        await world.cluster.restart(name)
        if rebuild is not None and world.cluster.process(name).node is not None:
            rebuild.check()
    except _DAMAGE:
        if name not in world.damaged:
            raise
        await repair(world, name)
        await world.cluster.restart(name)
    world.counts["restarts"] += 1


async def repair(world: World, bookie: str) -> None:
    """Repair the files of a bookie that is down. If the damage is beyond repair, replace the bookie's disk.

    Raises:
        LedgerLogError: The repair did not succeed for another reason.
    """
    cluster, newest = world.cluster, world.wire.loss.newest_ledger
    try:
        if not await cluster.repair(bookie):
            return
        world.counts["repaired"] += 1
    except NodeCrashed:
        return  # Another fault has killed it.
    except _DAMAGE as refusal:
        world.counts["repair refused"] += 1
        world.event("repair refused", bookie, type(refusal).__name__)
        cluster.put_disk_back(bookie, EMPTY_IMAGE)
    cluster.process(bookie).heals_index = False
    world.wire.loss.on_mishap(bookie, through=newest)


def require_rot(world: World, bookie: str, error: StorageCorrupt) -> None:
    """Raise Violation if a bookie refuses to start because of damage, but its disk has no injected damage."""
    if bookie not in world.rotten:
        raise Violation(f"{bookie} finds damage on a disk that has none: {error}") from error
    world.counts["refused to start on a rotten disk"] += 1
