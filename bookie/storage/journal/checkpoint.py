"""Checkpoints: bring full segments into the index, so that replay can begin after them.

The entries of a full segment may *stay*: the segment is kept for good (``bookie.core.space`` decides). Then
the checkpoint tells the index where in the segment each run (a frame of entries of one ledger) lies. The
*mark* is the row of the index that says where replay begins. Things become durable in this order:

    1  the segment's last block             (the journal's own sync)
    2  rows of its runs                     each batch synced, in pieces
    3  rows of all ledgers that changed
    4  the segment's row and the mark       from here on replay begins at the next segment
    5  the first block of the next segment  (the journal's own sync)
    6  the segment's file is trimmed        space that was allocated but never written is given back

If the entries do not stay, the segment is *flushed*: its entries are written from memory into an entry log,
sorted (``bookie.storage.entrylog.rewriting``). One batch adds the log to the index and moves the mark. Then
the segment's file is removed. If there is no room or no descriptor for the log, the entries stay in the
segment after all.

After a crash in between, some of the steps are done again. That is safe: the rows are the same again, and
ledger states only grow. A state in the index may be ahead of the mark and may include adds that are not
durable yet. Its values are bounds, so they are still right (``BookieLedger``). A state includes a fence only
if the fence is durable in the journal. Otherwise only the index might have the fence. The bookie would then
report the fence after a restart, and forget it if the index is rebuilt.

Checkpoints run beside the journal, in pieces of ``STEP_RUNS`` rows with a wait after each piece. They never
delay the journal.
"""

from __future__ import annotations

import logging
from operator import attrgetter

import trio

from bookie.core import rows
from bookie.core.boot import ReplayStart
from bookie.core.file_set import FileSet
from bookie.core.journal_items import JournalPosition
from bookie.core.rows import Change, FileRow
from bookie.core.space import SpacePolicy
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.entrylog.entry_logs import STEP_RUNS
from bookie.storage.entrylog.rewriting import Rewriter
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.index import NOT_NOW
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.segments import JournalSegment, SegmentFiles

logger = logging.getLogger(__name__)

_LENGTH = attrgetter("length")


class Checkpointer:
    """The task that checkpoints segments; also the last part of a clean stop."""

    def __init__(
        self,
        *,
        journal: Journal,
        files: SegmentFiles,
        ledgers: LedgerTable,
        catalogue: Catalogue,
        rewriter: Rewriter,
        policy: SpacePolicy,
    ) -> None:
        self.checkpoints = 0
        """How many segments were checkpointed."""
        self.flushes = 0
        """How many segments were flushed: their entries went to an entry log."""
        self._journal = journal
        self._files = files
        self._ledgers = ledgers
        self._catalogue = catalogue
        self.rewriter = rewriter
        self._policy = policy
        self._lock = trio.Lock()

    async def run(self) -> None:
        """Checkpoint segments as they fill up, forever.

        Raises:
            StorageError: The index failed.
        """
        journal = self._journal
        while True:
            if journal.sealed:
                async with self._lock:
                    await self._checkpoint_oldest()
            elif self._ledgers.is_crowded:
                async with self._lock:
                    await self._ledgers.save()
                await self._ledgers.shrink()
            else:
                await journal.progress.park()

    async def flush(self) -> None:
        """Wait until everything appended so far is durable and in the index.

        The mark stays. After a crash, replay still begins at the oldest segment that was not full.
        """
        journal = self._journal
        sequence, last = journal.commit.newest, journal.active
        await journal.wait_durable(sequence)
        async with self._lock:
            # Segments that are sealed later do not count: while adds come, there is always another one.
            while journal.sealed and journal.sealed[0].number <= last.number:
                await self._checkpoint_oldest()
            if not last.is_indexed:
                await self._index_runs(last, sequence)
            await self._ledgers.save()

    async def close(self) -> None:
        """Finish a clean stop: make everything durable, index it, and store the journal's end in the index.

        Nothing may be appended.
        """
        journal = self._journal
        await self.flush()
        journal.append_close()
        await journal.wait_durable(journal.commit.newest)
        async with self._lock:
            active = journal.active
            active.final_sequence = journal.commit.newest
            await self._pass(active, is_optional=True)

    async def _checkpoint_oldest(self) -> None:
        if not self._journal.sealed:
            return
        segment = self._journal.sealed[0]
        assert segment.final_sequence is not None
        await self._journal.wait_durable(segment.final_sequence)
        if not await self._flush(segment):
            await self._pass(segment, is_optional=False)
        self._journal.sealed.popleft()
        segment.is_indexed = True
        self.checkpoints += 1
        self._journal.progress.unpark_all()
        self._journal.on_files_changed()

    async def _flush(self, segment: JournalSegment) -> bool:
        """Move the entries of a full segment into an entry log, and move the mark past the segment. Return
        False if the entries stay."""
        runs = segment.runs
        if self._policy.stays(len(runs), sum(map(_LENGTH, runs))):
            return False
        assert segment.final_sequence is not None
        assert segment.final_sequence <= self._journal.commit.durable
        end = JournalPosition(segment.number, segment.end, segment.final_sequence)
        mark = ReplayStart(segment.number + 1, end.sequence + 1, is_optional=False, end=end)

        def changes(log: int) -> list[Change]:
            segment.flushed_to = log
            return [rows.encode_mark(mark)]

        try:
            await self.rewriter.flush(
                runs=runs,
                marked=segment.marked,
                view=segment.image.view,
                replaced=FileSet.of([segment.number]),
                indexed=segment.indexed,
                rows_elsewhere=segment.restored,
                changes=changes,
            )
        except NOT_NOW as trouble:
            logger.warning("segment=%d is not rewritten: %s", segment.number, trouble)
            return False
        self.flushes += 1
        await self.rewriter.remove([segment.number], used=segment.end)
        return True

    async def _pass(self, segment: JournalSegment, *, is_optional: bool) -> None:
        """Bring the rest of a segment that takes no more records into the index. Move the mark past it."""
        assert segment.final_sequence is not None
        assert segment.final_sequence <= self._journal.commit.durable
        await self._index_runs(segment, segment.final_sequence)
        await self._ledgers.save()
        end = JournalPosition(segment.number, segment.end, segment.final_sequence)
        mark = ReplayStart(segment.number + 1, end.sequence + 1, is_optional=is_optional, end=end)
        async with self._catalogue.lock:
            usage = rows.usage_of(run for run in segment.runs if not self._is_deleted(run.ledger_id))
            row = FileRow.of(
                segment.number, end=end.offset, last_sequence=end.sequence, runs=segment.runs, usage=usage
            )
            await self._catalogue.write([*rows.encode_file_and_usage(row, usage), rows.encode_mark(mark)])
        if not is_optional:
            # A rebuild of the index takes a trimmed segment for a damaged one if nothing follows it.
            await self._journal.wait_durable(segment.final_sequence + 1)
        await self._files.trim(segment.number, segment.end)

    async def _index_runs(self, segment: JournalSegment, sequence: int) -> None:
        """Bring the segment's runs up to the block ``sequence``, which is durable, into the index."""
        runs = segment.runs
        while segment.indexed < len(runs):
            piece = runs[segment.indexed : segment.indexed + STEP_RUNS]
            piece = [run for run in piece if run.sequence <= sequence]
            if not piece:
                return
            async with self._catalogue.lock:
                batch = [rows.encode_run(run) for run in piece if not self._is_deleted(run.ledger_id)]
                await self._catalogue.write(batch)
            segment.indexed += len(piece)

    def _is_deleted(self, ledger_id: int) -> bool:
        # If a ledger has runs in memory, its state is in memory too.
        return self._ledgers.loaded[ledger_id].is_deleted
