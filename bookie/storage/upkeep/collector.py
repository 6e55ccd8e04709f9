"""Garbage collection: deleting ledgers that the metadata store no longer has.

A bookie is not told about deletions, so it looks for them. A *pass* goes through the ledgers of the index,
page by page, and asks the deletion oracle (``DeletionOracle``) which of them are certainly gone. After it has
asked about all of them, it deletes. A ledger is deleted only if the oracle says that it is gone (rule 25). If
the store cannot be asked, a listing is cut short, a record does not parse, or an id was never given out, the
ledger stays until a later pass.

**A mass deletion waits.** Suppose that more than ``MASS_LEDGERS`` ledgers are newly gone, and that they are
more than one in ``MASS_SHARE`` of all ledgers that the bookie holds: for example, 150 of 1,000. Then the
store itself may have lost data. These ledgers stay, the bookie logs a warning, and the next pass deletes each
of them that is still gone.

A ledger is deleted in steps. Each step may be repeated after a crash:

    1  refuse all adds of the ledger, recovery adds included. Then write a DELETE record to the journal and
       wait until it is durable. It fences the ledger for good: the bookie must never forget that (rule 4)
    2  mark the state as deleted, in memory and in the index: from now on reads find nothing
    3  subtract the ledger from the live bytes of the files with its runs (frames of its entries); compaction
       frees the space later
    4  delete the rows of its runs from the index
    5  note the ledger among the gone ledgers, durably (``bookie.core.gone_ledgers``)
    6  remove its state from the index and from memory

If a state cannot be removed yet, for example because a read uses that state, a later pass does steps 3 to 6
again. At the end only the ledger's id is left, as a part of a range.

**The ids in between.** The gone ledgers are noted as ranges of ids. To keep the ranges few, an id between two
deleted ledgers is noted too, if the metadata store does not list it and this bookie does not know it. For
example, if the bookie deletes ledgers 10 and 14, and 11 to 13 were on other bookies and are deleted too, it
notes the one range 10 to 14. A listing is weak evidence, but no ledger is deleted because of a listing. If
the listing is wrong, the bookie refuses a ledger of which it has nothing. While such ids are being noted, the
bookie refuses requests about every noted ledger that it does not know. Otherwise it might accept an entry of
such a ledger at that moment, and delete the entry later.

A pass needs memory for one page of ledgers and for one file's list of ledgers. It also needs eight bytes for
each ledger that is gone, and for each listed ledger between two gone ones.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from contextlib import ExitStack, aclosing
from typing import Protocol

import trio
from attrs import evolve

from bookie.core import rows
from bookie.core.gone_ledgers import Range
from bookie.core.journal_items import DELETE, encode_delete
from bookie.core.ledger import BookieLedger
from bookie.core.rows import Change
from bookie.storage.disk.gone_ledgers import GoneLedgerStore
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.entrylog.rewriting import Rewriter
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import NOT_NOW
from bookie.storage.journal.journal import Journal
from ledgerlog.errors import MetadataUnavailable
from ledgerlog.event_log import LEDGERS_GONE, tell
from ledgerlog.model.id_ranges import ranges_of, without

logger = logging.getLogger(__name__)

MASS_LEDGERS, MASS_SHARE = 100, 10
"""A pass deletes up to ``MASS_LEDGERS`` newly gone ledgers at once, or up to one in ``MASS_SHARE`` of all
ledgers that the bookie holds. If more are gone, a second pass must find them gone too."""

_PAGE_LEDGERS = 1024
_PURGED_TOGETHER = 16 * _PAGE_LEDGERS
"""Each file's list of ledgers is read and written once for this many deleted ledgers together."""
_PIECE_ROWS = 1024


class DeletionOracle(Protocol):
    """The deletion oracle: asks the metadata store which ledgers are gone. The store's owner provides it."""

    async def surely_gone(self, ledger_ids: Sequence[int]) -> Collection[int]:
        """Return the ledgers that are certainly gone.

        A ledger is certainly gone if its id was given out and the store itself says that the ledger does not
        exist. The answer must not be older than this call.

        Args:
            ledger_ids: The ledgers to ask about, in ascending order.

        Raises:
            MetadataUnavailable: The store does not say.
        """
        ...

    async def absent(self, first: int, last: int) -> Sequence[Range]:
        """Return the ranges of ids from ``first`` to ``last`` that the store does not list, ascending.

        All these ids were given out. Unlike ``surely_gone``, a listing proves no deletion.

        Raises:
            MetadataUnavailable: The store does not say.
        """
        ...


class Collector:
    """Deletes the ledgers of one bookie that the metadata store no longer has."""

    def __init__(
        self,
        *,
        journal: Journal,
        catalogue: Catalogue,
        ledgers: LedgerTable,
        gone: GoneLedgerStore,
        rewriter: Rewriter,
        oracle: DeletionOracle,
    ) -> None:
        self.deleted = 0
        self.passes = 0
        self._journal = journal
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._gone = gone
        self._rewriter = rewriter
        self.oracle = oracle
        self._suspected = array("Q")
        """The ledgers that the last pass found gone and left for the next pass to confirm, in ascending
        order."""
        self._lock = trio.Lock()
        self._passing = trio.CancelScope()
        """The cancel scope of the current pass, or of the last one."""
        self._is_stopped = False

    async def run(self, *, interval_s: float) -> None:
        """Do a pass every ``interval_s`` seconds, forever. Raises StorageError if the journal or the index
        fails."""
        while True:
            await trio.sleep(interval_s)
            try:
                await self.collect()
            except MetadataUnavailable as trouble:
                logger.warning(
                    "collection ends early, because the metadata store cannot be asked: %s", trouble
                )
            except NOT_NOW as trouble:
                logger.warning("collection waits: %s", trouble)

    async def collect(self) -> int:
        """Do one pass. Calls run one after the other.

        Returns:
            The number of deleted ledgers. 0 if ``stop`` ended the pass, even if it had deleted some.

        Raises:
            MetadataUnavailable: The store could not be asked. The pass may have deleted some ledgers before.
                A later pass does the rest.
            StorageError: The journal or the index failed.
        """
        async with self._lock:
            with trio.CancelScope() as self._passing:
                if self._is_stopped:
                    self._passing.cancel()
                return await self._collect()
            return 0

    async def stop(self) -> None:
        """End the current pass and begin no other, because no DELETE record may come after the end of a clean
        stop. A later pass repeats the unfinished work."""
        self._is_stopped = True
        self._passing.cancel()
        async with self._lock:
            pass  # The pass has ended and no longer appends.

    async def _collect(self) -> int:
        held, gone, begun = await self._find_gone()
        for start in range(0, len(begun), _PURGED_TOGETHER):
            await self._purge(begun[start : start + _PURGED_TOGETHER])
        gone = self._without_suspects(held, gone)
        for start in range(0, len(gone), _PURGED_TOGETHER):
            piece = gone[start : start + _PURGED_TOGETHER]
            for at in range(0, len(piece), _PAGE_LEDGERS):
                page = piece[at : at + _PAGE_LEDGERS]
                await self._delete(page)
                self.deleted += len(page)
            await self._purge(piece)
        self.passes += 1
        return len(gone)

    async def _find_gone(self) -> tuple[int, array[int], array[int]]:
        """Ask the oracle about all ledgers.

        Returns:
            The number of ledgers that the oracle was asked about; the ledgers that are gone; and the ledgers
            of which an earlier pass left something. Both lists are in ascending order.
        """
        held, gone, begun = 0, array("Q"), array("Q")
        async with aclosing(self._catalogue.ledgers()) as pages:
            async for page in pages:
                asked: list[int] = []
                for ledger_id, stored in page:
                    is_begun = stored.is_deleted or self._ledgers.is_gone(ledger_id)
                    (begun if is_begun else asked).append(ledger_id)
                if asked:
                    held += len(asked)
                    gone.extend(sorted(set(await self.oracle.surely_gone(asked)) & set(asked)))
        return held, gone, begun

    def _without_suspects(self, held: int, gone: array[int]) -> array[int]:
        """Return the ledgers that may be deleted now. The others stay suspected until the next pass."""
        fresh = array("Q", (ledger_id for ledger_id in gone if not self._is_suspected(ledger_id)))
        if len(fresh) <= MASS_LEDGERS or len(fresh) * MASS_SHARE <= held:
            self._suspected = array("Q")
            return gone
        tell(
            logger,
            LEDGERS_GONE,
            "collection: %(gone)d of %(held)d ledgers are gone from the metadata store, first=%(first)d "
            "last=%(last)d; they are deleted if the next pass finds the same. If no client deleted these "
            "ledgers, check the metadata store now",
            gone=len(fresh),
            held=held,
            first=fresh[0],
            last=fresh[-1],
        )
        confirmed = array("Q", (ledger_id for ledger_id in gone if self._is_suspected(ledger_id)))
        self._suspected = fresh
        return confirmed

    def _is_suspected(self, ledger_id: int) -> bool:
        at = bisect_left(self._suspected, ledger_id)
        return at < len(self._suspected) and self._suspected[at] == ledger_id

    async def _delete(self, ledger_ids: Sequence[int]) -> None:
        """Do steps 1 and 2."""
        journal = self._journal
        with ExitStack() as pins:
            # Find all states first: if the index cannot be read, no ledger is deleted, and the next pass
            # deletes all. A state that is found must not leave memory before it is marked as deleted.
            states: list[BookieLedger] = []
            for ledger_id in ledger_ids:
                state = self._ledgers.get(ledger_id)
                assert state is not None, "it is in the index"
                pins.enter_context(state.pinned())
                states.append(state)
            for state in states:
                state.on_leave()
            while journal.append(DELETE, encode_delete(ledger_ids)) is None:
                await journal.progress.park()
            segment, sequence = journal.active, journal.commit.sequence
            segment.marked.update(ledger_ids)
            await journal.wait_durable(sequence)
            async with self._catalogue.lock:
                for state in states:
                    state.on_delete()
                self._rewriter.on_deleted(ledger_ids)
        await self._ledgers.save()
        logger.info("deleted ledgers=%d first=%d last=%d", len(ledger_ids), ledger_ids[0], ledger_ids[-1])

    async def _purge(self, ledger_ids: Sequence[int]) -> None:
        """Do steps 3 to 6 for ledgers in ascending order."""
        gone = frozenset(ledger_ids)
        for row in (*await self._catalogue.segments(), *await self._catalogue.logs()):
            await self._discharge(row.file, gone)
        await self._remove_runs(ledger_ids)
        await self._note(ledger_ids)
        await self._ledgers.remove(ledger_ids)

    async def _note(self, ledger_ids: Sequence[int]) -> None:
        """Do step 5."""
        known = self._gone.now
        if all(ledger_id in known for ledger_id in ledger_ids):
            return
        low, high = known.gap_around(ledger_ids[0], ledger_ids[-1])
        between = await self.oracle.absent(low, high)
        with self._ledgers.settling(known.joined(between)):
            between = without(between, ranges_of(await self._ledgers.living_between(low, high)))
            await self._gone.replace(known.joined(between).joined(ranges_of(ledger_ids)))

    async def _discharge(self, file: int, gone: Collection[int]) -> None:
        async with self._catalogue.lock:
            row = await self._catalogue.file(file)
            if row is None:
                return  # Compaction has removed the file in the meantime.
            usage = await self._catalogue.usage(file)
            if usage.keys().isdisjoint(gone):
                return
            usage = {ledger_id: size for ledger_id, size in usage.items() if ledger_id not in gone}
            row = evolve(row, live_bytes=sum(usage.values()))
            await self._catalogue.write(rows.encode_file_and_usage(row, usage))

    async def _remove_runs(self, ledger_ids: Sequence[int]) -> None:
        """Delete the rows of the runs of these ledgers, many ledgers with each write."""
        gone = frozenset(ledger_ids)
        start, stop = rows.run_key(ledger_ids[0], 0), rows.run_key(ledger_ids[-1], 2**64 - 1)
        while True:
            async with self._catalogue.lock:
                part = await self._catalogue.index.scan(start, stop, floor=start, limit=_PIECE_ROWS)
                removals: list[Change] = [
                    (key, None) for key, _ in part if rows.ledger_of_run_key(key) in gone
                ]
                if removals:
                    await self._catalogue.write(removals)
            if len(part) < _PIECE_ROWS:
                return
            last_key = part[-1][0]
            last = rows.ledger_of_run_key(last_key)
            # Skip the remaining rows of a ledger that stays.
            following = ledger_ids[bisect_right(ledger_ids, last)] if last not in gone else None
            start = last_key + b"\0" if following is None else rows.run_key(following, 0)
