"""What rotted here is copied again from bookies that have it.

Scrubbing (``bookie.storage.upkeep.scrub``) finds runs that do not read as they were written; here their
entries are fetched from the other members of the ledger, checked against the digests that its writer made,
and stored in the place of the rotten ones. Until then, and where nobody has them, the bookie says of each
such entry that it is damaged, and never that it does not exist.

Only what the metadata says is this bookie's can be copied, of fragments whose end is known: of a closed
ledger, or before the last fragment of an open one (rule 23). What lies in the last fragment of an open ledger
waits until it is closed. A run is restored as a whole or not at all. What could not be had is tried again
every ``_RETRY_S``, since bookies that were down come back. Auto-recovery is told of it meanwhile: it may find
another place for the ledger, and its operators see what is not mended.
"""

from __future__ import annotations

import logging

import trio

from bookie.server.limbo import OpenPeers, Peers
from bookie.storage.engine.engine import Engine
from bookie.storage.upkeep.replacing import Rotten
from ledgerlog.errors import (
    DiskFull,
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
    """A run cannot be restored as things are."""


class RotRepair:
    """Restores the rotten runs of one bookie. ``run`` it while the bookie serves."""

    def __init__(self, bookie_id: BookieId, engine: Engine, open_peers: OpenPeers | None) -> None:
        self.unrepaired: dict[tuple[int, int], str] = {}
        """Why runs are rotten still, by ledger and first id, as of the last attempt."""
        self._bookie_id = bookie_id
        self._engine = engine
        self._open_peers = open_peers

    async def run(self) -> None:
        """Restore what scrubbing finds, for ever. StorageError where the bookie's own storage fails; a full
        disk is waited for."""
        scrubber = self._engine.scrubber
        while True:
            found = scrubber.found
            if scrubber.rotten and self._open_peers is not None:
                try:
                    async with self._open_peers() as peers:
                        await self._repair(peers)
                except LedgerLogError as trouble:
                    if isinstance(trouble, StorageError) and not isinstance(trouble, DiskFull):
                        raise
                    logger.warning("bookie=%s: repair of rot waits: %s", self._bookie_id, trouble)
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
                        "bookie=%s: ledger=%d entries=%d..%d stay rotten: %s",
                        *(self._bookie_id, rotten.run.ledger_id, rotten.run.first, rotten.run.last, trouble),
                    )
                self.unrepaired[key] = str(trouble)
                if isinstance(trouble, EntryCorrupt | EntryNotFound | EntryUnavailable):
                    stuck.add(rotten.run.ledger_id)
            else:
                self.unrepaired.pop(key, None)
        if self._engine.replacer.replaced != restored_before:
            await self._engine.flush()  # The index names the copies, and nothing rotten any more.
        for ledger_id in sorted(stuck):
            await peers.ask_for_repair(ledger_id, self._bookie_id)

    async def _restore(self, peers: Peers, rotten: Rotten) -> None:
        run = rotten.run
        metadata = await peers.metadata(run.ledger_id)
        if metadata is None:
            return  # It is deleted, and collection has yet to find out.
        share = next(
            (s for s in shares(metadata, self._bookie_id) if s.first <= run.first and run.last <= s.last),
            None,
        )
        ids = [] if share is None else list(share.ids(run.first, run.last))
        # All that the run holds must be among what is stored in its place: what is named is never denied.
        if share is None or len(ids) < run.entry_count or (ids[0], ids[-1]) != (run.first, run.last):
            raise _NotNow(
                "the metadata does not name this bookie for all of them, or their end is not known yet"
            )
        copies: dict[int, bytes] = {}
        for entry_id in ids:
            while entry_id not in copies:
                last = min(run.last, entry_id + _FETCH_ENTRIES - 1)
                found, failure = await peers.fetch(metadata, self._bookie_id, entry_id, last)
                copies.update((e, payload) for e, payload in found.items() if run.first <= e <= run.last)
                if entry_id not in found and last > entry_id:
                    # The failure may be about an entry of another write set: ask for this one alone.
                    found, failure = await peers.fetch(metadata, self._bookie_id, entry_id, entry_id)
                    copies.update(found)
                if entry_id not in copies:
                    raise failure or _NotNow(f"no copy of entry {entry_id} could be had")
        parts = [Entries.gather(run.ledger_id, part) for part in cut_to_frames({e: copies[e] for e in ids})]
        lac = share.last if metadata.last_entry is None else metadata.last_entry
        lafr = lac if metadata.replication.guaranteed else -1
        if await self._engine.scrubber.restore(rotten, parts, lac=lac, lafr=lafr):
            logger.info(
                "bookie=%s: ledger=%d entries=%d..%d were rotten and are whole again",
                *(self._bookie_id, run.ledger_id, run.first, run.last),
            )
