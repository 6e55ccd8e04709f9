"""Checkpoints: bringing what the journal holds into the index, so that replay need not.

A segment that is full is its entries' home for good; what a checkpoint adds is the index's knowledge of where
in it each run lies. The order of durability:

    1  the segment's last block             (the journal's own sync)
    2  rows of its runs                     each batch synced, in pieces
    3  rows of all ledgers that changed
    4  the segment's row and the mark       from here on replay begins at the next segment
    5  the segment's file is trimmed        what was allocated and never written is given back

A crash in between repeats some of it: rows are the same again, and ledger states only grow. States may run
ahead of the mark, and may speak of adds that were not durable yet: as bounds they are right all the same
(``LedgerState``). A fence they have only where the journal has it, durably: one that stood in the index alone
would be answered for after a start, and be gone when the index is made again.

It runs beside the journal, in pieces of ``_PIECE_ROWS`` rows with a wait after each, and never holds it up.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from bookie.core import rows
from bookie.core.boot import Mark
from bookie.core.ledger import LedgerState
from bookie.core.records import Place
from bookie.core.rows import FileRow
from bookie.storage.catalogue import Catalogue
from bookie.storage.journal import Journal
from bookie.storage.ledgers import Ledgers
from bookie.storage.segments import Segment, SegmentFiles

_PIECE_ROWS = 1024


class Checkpointer:
    def __init__(
        self, *, journal: Journal, files: SegmentFiles, ledgers: Ledgers, catalogue: Catalogue
    ) -> None:
        self.checkpoints = 0
        self._journal = journal
        self._files = files
        self._ledgers = ledgers
        self._catalogue = catalogue
        self._lock = trio.Lock()

    async def run(self) -> None:
        """Checkpoint segments as they fill up, for ever. StorageError if the index fails."""
        journal = self._journal
        while True:
            if journal.sealed:
                async with self._lock:
                    await self._checkpoint_oldest()
            elif self._ledgers.is_crowded:
                async with self._lock:
                    await save_ledgers(self._catalogue, self._ledgers.dirty())
                await self._ledgers.shrink()
            else:
                await journal.progress.park()

    async def flush(self) -> None:
        """Returns once everything appended so far is durable and in the index. The mark stays: replay after a
        crash still begins at the oldest segment that was not full."""
        journal = self._journal
        sequence = journal.commit.newest
        await journal.wait_durable(sequence)
        async with self._lock:
            while journal.sealed:
                await self._checkpoint_oldest()
            await self._index_runs(journal.active, sequence)
            await save_ledgers(self._catalogue, self._ledgers.dirty())

    async def close(self) -> None:
        """The clean stop: everything is made durable and indexed, and the index says where the journal ends.
        Nothing may be appended any more."""
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
        await self._pass(segment, is_optional=False)
        self._journal.sealed.popleft()
        segment.is_indexed = True
        self.checkpoints += 1
        self._journal.progress.unpark_all()

    async def _pass(self, segment: Segment, *, is_optional: bool) -> None:
        """Bring the rest of a segment that takes no more records into the index, and move the mark behind
        it."""
        assert segment.final_sequence is not None
        assert segment.final_sequence <= self._journal.commit.durable
        await self._index_runs(segment, segment.final_sequence)
        await save_ledgers(self._catalogue, self._ledgers.dirty())
        end = Place(segment.number, segment.end, segment.final_sequence)
        usage = rows.usage_of(segment.runs)
        row = FileRow.of(
            segment.number, end=end.offset, last_sequence=end.sequence, runs=segment.runs, usage=usage
        )
        mark = Mark(segment.number + 1, end.sequence + 1, is_optional=is_optional, end=end)
        await self._catalogue.write([*rows.encode_file_and_usage(row, usage), rows.encode_mark(mark)])
        await self._files.trim(segment.number, segment.end)

    async def _index_runs(self, segment: Segment, sequence: int) -> None:
        """Bring the segment's runs up to the block ``sequence``, which is durable, into the index."""
        runs = segment.runs
        while segment.indexed < len(runs):
            piece = runs[segment.indexed : segment.indexed + _PIECE_ROWS]
            piece = [run for run in piece if run.sequence <= sequence]
            if not piece:
                return
            await self._catalogue.write([rows.encode_run(run) for run in piece])
            segment.indexed += len(piece)


async def save_ledgers(catalogue: Catalogue, states: Sequence[LedgerState]) -> None:
    """Write the states, which ``Ledgers.dirty`` gave, to the index."""
    for start in range(0, len(states), _PIECE_ROWS):
        piece = states[start : start + _PIECE_ROWS]
        batch = []
        for state in piece:
            batch.append(rows.encode_ledger(state.ledger_id, state.to_store()))
            # What changes it from here on makes it dirty again. A fence that is left out keeps it so.
            state.is_dirty = state.is_fence_unwritten
            state.pins += 1  # It must not be read back before it is written.
        try:
            await catalogue.write(batch)
        except BaseException:
            for state in piece:
                state.is_dirty = True  # The index may have it or not.
            raise
        finally:
            for state in piece:
                state.pins -= 1
