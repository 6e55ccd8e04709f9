"""Rules for bookies whose bits rot at rest, and whose indexes are lost.

    RebuildWhole    an index that a start made again from the files names every entry and every fence that is
                    durable on the bookie
    RotFound        some time after the faults, a bookie knows each damaged copy of a closed ledger. It has
                    restored the copy from others, or it reports why it cannot

``wire_rules`` also checks these bookies, except for what they may have lost when they were repaired
(``loss_rules``).
"""

from __future__ import annotations

from bisect import bisect_right

from bookie.core import rows
from ledgerlog.cluster import Cluster
from ledgerlog.errors import EntryCorrupt, LedgerNotFound
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.world import World, retry

__all__ = ["RebuildRule", "judge_rot"]


class RebuildRule:
    """Checks the index of one bookie. Make this before the start that makes the index again.

    Args:
        world: The run.
        bookie: The bookie. It is down.
    """

    def __init__(self, world: World, bookie: str) -> None:
        god, loss = world.god, world.wire.loss
        self._god = god
        self._bookie = bookie
        self._disk = world.cluster.disk(bookie)
        self._held = {
            ledger_id: entries
            for ledger_id, entries in god.held_on(bookie).items()
            if not loss.may_lack(bookie, ledger_id)
        }
        self._fenced = [ledger for ledger in god.fenced_on(bookie) if not loss.may_lack(bookie, ledger)]

    def check(self) -> None:
        """Check the index. The start has just succeeded.

        Raises:
            Violation: The index lacks an entry or a fence.
        """
        god = self._god
        runs: dict[int, list[tuple[int, int]]] = {}
        fenced: dict[int, bool] = {}
        for path, index in self._disk.indexes.items():
            for key, value in index.scan_now(b"", rows.BEHIND_ALL_KEYS, floor=b"", limit=1 << 30):
                if rows.is_run_key(key):
                    run = rows.decode_run(key, value, path)
                    runs.setdefault(run.ledger_id, []).append((run.first, run.last))
                elif key.startswith(b"L"):
                    fenced[rows.ledger_of_key(key)] = rows.decode_ledger(key, value, path).is_fenced
        for ledger_id, entries in self._held.items():
            if ledger_id not in god.ledgers:
                continue
            known = runs.get(ledger_id, [])
            for entry_id in entries:
                god.checks["RebuildWhole"] += 1
                if not any(first <= entry_id <= last for first, last in known):
                    god.violate(
                        "RebuildWhole",
                        f"the new index of {self._bookie} lacks entry {entry_id} of ledger {ledger_id}",
                    )
        for ledger_id in self._fenced:
            if ledger_id in god.ledgers and not fenced.get(ledger_id):
                god.violate(
                    "RebuildWhole", f"the new index of {self._bookie} lacks the fence of ledger {ledger_id}"
                )


async def judge_rot(world: World, client: Cluster) -> None:
    """Wait until each bookie knows all damage of its copies. Call it after everything was healed.

    Raises:
        Violation: A bookie does not know a damaged copy within ``CONVERGE_S``.
    """
    left = {ledger_id for ledger_id, each in world.god.ledgers.items() if each.last_entry is not None}

    if world.swarm.size is Size.LONG:
        # The next pass may be minutes away.
        for bookie in world.cluster.bookies:
            node = world.cluster.process(bookie).node
            if node is not None:
                node.engine.scrubber.prompt()

    async def all_known() -> None:
        for ledger_id in sorted(left):
            try:
                found = await client.ledgers.verify(ledger_id)
            except LedgerNotFound:
                left.discard(ledger_id)
                continue
            for entry_id, bookie in found.damaged:
                if not _knows(world, bookie, ledger_id, entry_id):
                    raise EntryCorrupt(ledger_id, entry_id, f"{bookie} does not know it")
                world.counts["damage reported"] += 1
            world.god.checks["RotFound"] += 1
            left.discard(ledger_id)

    await retry(world, "for bookies to restore or to report each damaged copy (RotFound)", all_known)


def _knows(world: World, bookie: str, ledger_id: int, entry_id: int) -> bool:
    """Whether a bookie reports the run that holds an entry as damaged."""
    node = world.cluster.process(bookie).node
    if node is None:
        return True  # It has refused to start on its disk, and says so.
    known = sorted(first for ledger, first in node.corruption_repair.unrepaired if ledger == ledger_id)
    return bisect_right(known, entry_id) > 0
