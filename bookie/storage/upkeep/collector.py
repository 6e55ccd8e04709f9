"""Garbage collection: what the metadata store no longer has is given up here too.

A bookie does not hear of deletions; it looks. A *pass* goes through the ledgers of the index, a page at a
time, and asks a ``Witness`` which of them are surely gone. When it has asked about all, it deletes. Only that
word deletes anything (rule 25): a store that cannot be asked, a listing that is cut short, a record that does
not parse, an id that was never given out are no such word, and then nothing happens until the next pass.

**A mass deletion waits.** Where more than ``MASS_LEDGERS`` ledgers are gone all at once, and more than one in
``MASS_SHARE`` of those that the bookie holds, something may be wrong with the store that its word does not
show. Such ledgers stay, a line in the log says so, and the next pass deletes those of them that are still
gone then.

A ledger that is gone is deleted in steps, each of which may be repeated after a crash:

    1  a DELETE record in the journal, durable. It is the ledger's fence for good: no add of it is taken any
       more, whatever flag it has, and no file may forget that (rule 4)
    2  the state says so, in memory and in the index: nothing is read any more
    3  the files in which it had runs are charged for fewer live bytes; compaction does the rest
    4  its runs leave the index
    5  the state says that this is all done. A later pass does 3 to 5 for states that do not say so

What stays is the state itself, some sixty bytes in the index. In memory are one page of ledgers, one file's
list of them, and eight bytes for each ledger that a pass finds gone, however many there are.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Protocol

import trio
from attrs import evolve

from bookie.core import rows
from bookie.core.records import DELETE, encode_delete
from bookie.core.rows import Change
from bookie.storage.engine.ledgers import Ledgers
from bookie.storage.entrylog.rewriting import Rewriter
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.journal import Journal
from ledgerlog.errors import MetadataUnavailable

logger = logging.getLogger(__name__)

MASS_LEDGERS, MASS_SHARE = 100, 10
"""A pass deletes so many ledgers at once, or one in so many of those that the bookie holds; a second pass
must have found what is more."""

_PAGE_LEDGERS = 1024
_PIECE_ROWS = 1024


class Witness(Protocol):
    """The metadata store's word on ledgers; handed in by whoever has the store."""

    async def surely_gone(self, ledger_ids: Sequence[int]) -> Collection[int]:
        """Those of some ledgers (growing ids) that were given out as ids, and of which the store itself says
        now, as of after the call, that there is none. MetadataUnavailable if it does not say."""
        ...


class Collector:
    def __init__(
        self,
        *,
        journal: Journal,
        catalogue: Catalogue,
        ledgers: Ledgers,
        rewriter: Rewriter,
        witness: Witness,
    ) -> None:
        self.deleted = 0
        self.passes = 0
        self._journal = journal
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._rewriter = rewriter
        self.witness = witness
        self._suspected = array("Q")
        """What the last pass found gone and left for this one to find again; growing."""
        self._lock = trio.Lock()
        self._passing = trio.CancelScope()
        """Around the pass that is under way, or the last one."""
        self._is_stopped = False

    async def run(self, *, interval_s: float) -> None:
        """A pass now and then, for ever. StorageError if the journal or the index fails."""
        while True:
            await trio.sleep(interval_s)
            try:
                await self.collect()
            except MetadataUnavailable as trouble:
                logger.warning("nothing is collected, the metadata store cannot be asked: %s", trouble)

    async def collect(self) -> int:
        """One pass; how many ledgers were deleted, 0 where ``stop`` ended it. MetadataUnavailable: it was not
        finished. One caller after the other."""
        async with self._lock:
            with trio.CancelScope() as self._passing:
                if self._is_stopped:
                    self._passing.cancel()
                return await self._collect()
            return 0

    async def stop(self) -> None:
        """End the pass that is under way, and begin no other: a DELETE record must not get behind the end of
        a clean stop. What the pass has begun, a later one does again."""
        self._is_stopped = True
        self._passing.cancel()
        async with self._lock:
            pass  # It has unwound, and appends nothing any more.

    async def _collect(self) -> int:
        held, gone = await self._find_gone()
        gone = self._without_suspects(held, gone)
        for start in range(0, len(gone), _PAGE_LEDGERS):
            page = gone[start : start + _PAGE_LEDGERS]
            await self._delete(page)
            self.deleted += len(page)
            await self._purge(page)
        self.passes += 1
        return len(gone)

    async def _find_gone(self) -> tuple[int, array[int]]:
        """How many ledgers there are, and which of them are gone, growing. What was deleted before and is not
        purged is purged."""
        held, gone = 0, array("Q")
        async with aclosing(self._catalogue.ledgers()) as pages:
            async for page in pages:
                asked: list[int] = []
                unfinished: list[int] = []
                for ledger_id, stored in page:
                    if not stored.is_purged:
                        (unfinished if stored.is_deleted else asked).append(ledger_id)
                if asked:
                    held += len(asked)
                    gone.extend(sorted(set(await self.witness.surely_gone(asked)) & set(asked)))
                if unfinished:
                    await self._purge(unfinished)
        return held, gone

    def _without_suspects(self, held: int, gone: array[int]) -> array[int]:
        """What may be deleted now. Where that is not all, the rest is suspected until the next pass."""
        fresh = array("Q", (ledger_id for ledger_id in gone if not self._is_suspected(ledger_id)))
        if len(fresh) <= MASS_LEDGERS or len(fresh) * MASS_SHARE <= held:
            self._suspected = array("Q")
            return gone
        logger.warning(
            "collection: %d of %d ledgers are gone from the metadata store, first=%d last=%d; they are "
            "deleted if the next pass finds the same. If nobody deleted them, look at the metadata store now",
            len(fresh),
            held,
            fresh[0],
            fresh[-1],
        )
        confirmed = array("Q", (ledger_id for ledger_id in gone if self._is_suspected(ledger_id)))
        self._suspected = fresh
        return confirmed

    def _is_suspected(self, ledger_id: int) -> bool:
        at = bisect_left(self._suspected, ledger_id)
        return at < len(self._suspected) and self._suspected[at] == ledger_id

    async def _delete(self, ledger_ids: Sequence[int]) -> None:
        """Steps 1 and 2."""
        journal = self._journal
        while journal.append(DELETE, encode_delete(ledger_ids)) is None:
            await journal.progress.park()
        segment, sequence = journal.active, journal.commit.sequence
        segment.marked.update(ledger_ids)
        await journal.wait_durable(sequence)
        async with self._catalogue.lock:
            for ledger_id in ledger_ids:
                state = self._ledgers.get(ledger_id)
                assert state is not None, "it is in the index"
                state.on_delete()
            self._rewriter.on_deleted(ledger_ids)
        await self._ledgers.save()
        logger.info("deleted ledgers=%d first=%d last=%d", len(ledger_ids), ledger_ids[0], ledger_ids[-1])

    async def _purge(self, ledger_ids: Sequence[int]) -> None:
        """Steps 3 to 5."""
        gone = frozenset(ledger_ids)
        for row in (*await self._catalogue.segments(), *await self._catalogue.logs()):
            await self._discharge(row.file, gone)
        for ledger_id in ledger_ids:
            await self._remove_runs(ledger_id)
        for ledger_id in ledger_ids:
            state = self._ledgers.get(ledger_id)
            assert state is not None
            state.is_purged = state.is_dirty = True
        await self._ledgers.save()

    async def _discharge(self, file: int, gone: Collection[int]) -> None:
        async with self._catalogue.lock:
            row = await self._catalogue.file(file)
            if row is None:
                return  # Compaction was faster.
            usage = await self._catalogue.usage(file)
            if usage.keys().isdisjoint(gone):
                return
            usage = {ledger_id: size for ledger_id, size in usage.items() if ledger_id not in gone}
            row = evolve(row, live_bytes=sum(usage.values()))
            await self._catalogue.write(rows.encode_file_and_usage(row, usage))

    async def _remove_runs(self, ledger_id: int) -> None:
        start, stop = rows.run_key(ledger_id, 0), rows.run_key(ledger_id, 2**64 - 1)
        while True:
            async with self._catalogue.lock:
                part = await self._catalogue.index.scan(start, stop, floor=start, limit=_PIECE_ROWS)
                removals: list[Change] = [(key, None) for key, _ in part]
                if removals:
                    await self._catalogue.write(removals)
            if len(part) < _PIECE_ROWS:
                return
