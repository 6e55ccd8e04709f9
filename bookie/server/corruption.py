"""Copying damaged entries again, from bookies that have them intact.

A *run* is a frame of entries of one ledger, stored in one piece. Scrubbing (``bookie.storage.upkeep.scrub``)
finds damaged runs: they no longer have the bytes that were written. ``CorruptionRepair`` fetches copies of
the entries from other bookies of the ledger, checks the copies against the digests that the writer made, and
replaces the damaged entries. Until an entry is replaced, the bookie answers that the entry is damaged, never
that it does not exist. If no bookie has a copy, this answer stays.

The repair copies only entries of fragments with a known end (rule 23): all fragments of a closed ledger, and
all but the last fragment of an open one. A run in the last fragment of an open ledger waits until the ledger
is closed. The repair restores a whole run or nothing of it.

**Stale copies.** The metadata may not assign all entries of a run to this bookie. For example, another bookie
took its place while it was down. In a closed ledger, such entries are restored, too. The bookie must not
forget them, because it would then deny them. A reader with older metadata may still need them, and so may a
worker that is about to name this bookie. In an open ledger, such a run waits until the ledger is closed.

This bookie may have stored entries after the end of a closed ledger: no client had got an acknowledgement for
them, and recovery did not see them. Such entries do not belong to the ledger, so no other bookie needs to
have them. If a run extends past the end, the repair restores the run up to the end. If a run begins after the
end, the bookie forgets the run.

The repair tries again every ``_RETRY_S``, because bookies that were down come back. In the meantime it
reports the ledger to auto-recovery, which may move the ledger to another bookie. Auto-recovery also shows
operators the runs that are not repaired.
"""

from __future__ import annotations

import logging

import attrs
import trio

from bookie.server.limbo import OpenPeers, Peers
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import NOT_NOW
from bookie.storage.upkeep.replacing import DamagedRun
from ledgerlog.errors import (
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    LedgerLogError,
    StorageError,
)
from ledgerlog.model.ids import BookieId
from ledgerlog.model.missing import shares
from ledgerlog.wire.entries import Entries, cut_to_frames

logger = logging.getLogger(__name__)

_RETRY_S = 600.0
_FETCH_ENTRIES = 4096


class _NotNow(LedgerLogError):
    """A run cannot be restored now."""


class CorruptionRepair:
    """Restores the damaged runs of one bookie. Run ``run`` while the bookie serves."""

    def __init__(self, bookie_id: BookieId, engine: Engine, open_peers: OpenPeers | None) -> None:
        self.unrepaired: dict[tuple[int, int], str] = {}
        """By ledger id and first entry of a run, the reason why the last attempt could not restore the
        run."""
        self._bookie_id = bookie_id
        self._engine = engine
        self._open_peers = open_peers

    async def run(self) -> None:
        """Restore the runs that scrubbing finds damaged. Wait while the disk is full or no descriptor is
        left. This never returns.

        Raises:
            StorageError: The bookie's own storage failed.
        """
        scrubber = self._engine.scrubber
        while True:
            found = scrubber.found
            if scrubber.rotten and self._open_peers is not None:
                try:
                    async with self._open_peers() as peers:
                        await self._repair(peers)
                except LedgerLogError as trouble:
                    if isinstance(trouble, StorageError) and not isinstance(trouble, NOT_NOW):
                        raise
                    logger.warning("bookie=%s: repair of damaged entries waits: %s", self._bookie_id, trouble)
            with trio.move_on_after(_RETRY_S if scrubber.rotten else float("inf")):
                await found.wait()

    async def _repair(self, peers: Peers) -> None:
        restored_before = self._engine.replacer.replaced
        stuck: set[int] = set()
        for key, rotten in sorted(self._engine.scrubber.rotten.items()):
            try:
                await self._restore(peers, rotten)
            except StorageError:
                raise
            except LedgerLogError as trouble:
                if self.unrepaired.get(key) != str(trouble):
                    logger.error(
                        "bookie=%s: ledger=%d entries=%d..%d stay damaged: %s",
                        *(self._bookie_id, rotten.run.ledger_id, rotten.run.first, rotten.run.last, trouble),
                    )
                self.unrepaired[key] = str(trouble)
                if isinstance(trouble, EntryCorrupt | EntryNotFound | EntryUnavailable):
                    stuck.add(rotten.run.ledger_id)
            else:
                self.unrepaired.pop(key, None)
        if self._engine.replacer.replaced != restored_before:
            await self._engine.flush()  # Afterwards the index names the copies instead of the damaged runs.
        for ledger_id in sorted(stuck):
            await peers.ask_for_repair(ledger_id, self._bookie_id)

    async def _restore(self, peers: Peers, rotten: DamagedRun) -> None:
        run = rotten.run
        metadata = await peers.metadata(run.ledger_id)
        if metadata is None:
            return  # The ledger is deleted, and garbage collection has not found out yet.
        if metadata.last_entry is not None and run.first > metadata.last_entry:
            if await self._engine.scrubber.forget(rotten):
                logger.info(
                    "bookie=%s: ledger=%d entries=%d..%d were damaged; they are after the ledger's end and "
                    "were dropped",
                    *(self._bookie_id, run.ledger_id, run.first, run.last),
                )
            return
        # Find the entry ids of the run as if the ledger continued to the end of the run. The copies must
        # cover all of these entries that the ledger has, because the bookie never denies an entry that the
        # index names. If the metadata does not assign all entries of the run to this bookie, nobody knows
        # which ids the run has. So copy every id from its first to its last.
        end = metadata.last_entry
        known = metadata if end is None else attrs.evolve(metadata, last_entry=max(end, run.last))
        held = shares(known, self._bookie_id)
        ids = [entry_id for share in held for entry_id in share.ids(run.first, run.last)]
        if len(ids) < run.entry_count or (ids[0], ids[-1]) != (run.first, run.last):
            if end is None:
                raise _NotNow(
                    "the ledger is not closed, and its metadata does not assign all of them to this bookie, "
                    "or their end is not known yet"
                )
            ids = list(range(run.first, run.last + 1))
        through = run.last
        if end is not None:
            through = min(run.last, end)
            ids = [entry_id for entry_id in ids if entry_id <= end]
        copies: dict[int, bytes] = {}
        for entry_id in ids:
            while entry_id not in copies:
                last = min(through, entry_id + _FETCH_ENTRIES - 1)
                found, failure = await peers.fetch(metadata, self._bookie_id, entry_id, last)
                copies.update((e, payload) for e, payload in found.items() if run.first <= e <= through)
                if entry_id not in found and last > entry_id:
                    # The failure may be about an entry of another write set. Ask for ``entry_id`` alone.
                    found, failure = await peers.fetch(metadata, self._bookie_id, entry_id, entry_id)
                    copies.update(found)
                if entry_id not in copies:
                    raise failure or _NotNow(f"no copy of entry {entry_id} could be read")
        parts = [Entries.gather(run.ledger_id, part) for part in cut_to_frames({e: copies[e] for e in ids})]
        lac = held[-1].last if end is None else end
        lafr = lac if metadata.replication.guaranteed else -1
        if await self._engine.scrubber.restore(rotten, parts, lac=lac, lafr=lafr):
            logger.info(
                "bookie=%s: ledger=%d entries=%d..%d were damaged and are restored",
                *(self._bookie_id, run.ledger_id, run.first, run.last),
            )
