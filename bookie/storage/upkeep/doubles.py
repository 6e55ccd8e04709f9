"""Doubles: if a rebuilt index finds entries in two files, decide which run keeps its row.

A bookie stores an entry id twice only after damage. A *run* is a frame of entries of one ledger, stored in
one piece. If a run is damaged, the bookie stores its entries again (``bookie.storage.upkeep.scrub``,
``bookie.storage.upkeep.read_repair``), and the damaged run stays in its file until compaction rewrites the
file. The index of a running bookie forgets the damaged run at once, because the copy's row overwrites the
damaged run's row. But a rebuild finds both runs in the files. If the new index kept both, a reader could get
the damaged copy, and one run could hide another that begins before it.

So a run is *forgotten* if newer runs hold all of its entries. The index of the running bookie did the same.
It does not matter which run is damaged. No entry is denied, because for each entry, the newest run that holds
the entry stays.

After a crash that lost a part of the copies, two runs with the same first id may be left, but only one of
them can have the row. For each of the two, ask: would this run and the runs with other first ids hold every
entry? If only one of the two passes, it gets the row. If both pass, the newer one gets the row. If both fail,
the files are damaged. There is one exception: if this bookie's loss is marked, the bookie denies nothing
anyway. Then the run with most entries gets the row.

**Which run is newer.** The file of a damaged run is complete before its copy enters the journal. So the copy
was written to a later segment. If a run was later moved to an entry log, the last segment that the log
replaced counts instead. If both runs are in logs that replaced the same last segment, the copy is in the
later log. In one case it is impossible to tell which run is newer: the entries stayed in a segment, and the
bookie was configured not to write data to its journal before it made the copy. Then the damaged run may keep
its row. Scrubbing finds the damaged run and restores its entries again.

The search goes through all rows once, in order. In memory it holds the runs that end after the beginning of
the next run, and the doubles among them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

import attrs
import trio

from bookie.core import rows
from bookie.core.frames import decode_head
from bookie.core.journal_items import EntryRun
from bookie.core.rows import Change
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageCorrupt

Age = tuple[int, ...]


class AllRuns(Catalogue):
    """An index that is being rebuilt. Two runs of a ledger with the same first id cannot share a row. If a
    second such run is written, the first one goes to ``aside``."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue.index)
        self.aside: list[EntryRun] = []

    async def write(self, batch: Sequence[Change]) -> None:
        taken: dict[bytes, Change] = {}
        for key, value in batch:
            known = None
            if value is not None and rows.is_run_key(key):
                known = taken[key][1] if key in taken else self.index.get_now(key)
            if known is None or value is None:
                taken[key] = (key, value)
                continue
            one, other = (rows.decode_run(key, each, self.path) for each in (known, value))
            self.aside.append(one)
            taken[key] = rows.encode_run(other)
        await super().write(list(taken.values()))


@attrs.define(eq=False)
class _Held:
    """A run and its ids."""

    run: EntryRun
    ids: Sequence[int]


class Doubles:
    """Finds doubles in a rebuilt index.

    Args:
        index: The index, with all runs of all files.
        pool: The files.
        newness: Returns the age of a run. Greater is newer.
        is_lost_marked: Whether the loss of this bookie's entries is marked. Then no answer denies an entry.
    """

    def __init__(
        self,
        index: AllRuns,
        pool: FilePool,
        newness: Callable[[EntryRun], Age],
        *,
        is_lost_marked: bool = False,
    ) -> None:
        self._index = index
        self._pool = pool
        self._newness = newness
        self._is_lost_marked = is_lost_marked

    async def settle(self) -> None:
        """Delete the rows of forgotten runs from the index.

        Raises:
            StorageError: A file cannot be read.
            StorageCorrupt: Two runs need the same row, and without either of them entries would be denied.
        """
        open_runs: list[_Held] = []
        doubled: dict[EntryRun, _Held] = {}
        async with aclosing(self._runs()) as runs:
            async for run in runs:
                open_runs = [each for each in open_runs if _reaches(each.run, run)]
                if not open_runs:
                    await self._decide(list(doubled.values()))
                    doubled.clear()
                held = _Held(run, await self._ids(run))
                for other in open_runs:
                    if _share(held.ids, other.ids):
                        doubled[run], doubled[other.run] = held, other
                open_runs.append(held)
        await self._decide(list(doubled.values()))

    async def _runs(self) -> AsyncGenerator[EntryRun, None]:
        """Yield all runs, including those in ``aside``, by ledger and first id."""
        aside = iter(sorted(self._index.aside))
        other = next(aside, None)
        start, stop = rows.run_key(0, 0), rows.run_key(2**64 - 1, 2**64 - 1)
        async with aclosing(self._index.pages(start, stop)) as pages:
            async for page in pages:
                for key, value in page:
                    run = rows.decode_run(key, value, self._index.path)
                    while other is not None and other < run:
                        yield other
                        other = next(aside, None)
                    yield run
                await trio.lowlevel.checkpoint()
        while other is not None:
            yield other
            other = next(aside, None)

    async def _ids(self, run: EntryRun) -> Sequence[int]:
        if run.is_dense:
            return range(run.first, run.last + 1)
        (head,) = await self._pool.read(run.file, [(run.offset, run.head_length)])
        return decode_head(run, head, self._pool.path_of(run.file))[0]

    async def _decide(self, doubled: list[_Held]) -> None:
        if not doubled:
            return
        kept = self._one_for_each_row(self._without_forgotten(doubled))
        batch: list[Change] = [(rows.run_key(held.run.ledger_id, held.run.first), None) for held in doubled]
        batch += [rows.encode_run(held.run) for held in kept]
        ledger_id = doubled[0].run.ledger_id
        stored = self._index.ledger_now(ledger_id)
        assert stored is not None, "a run without its ledger"
        width = max((held.run.last - held.run.first for held in kept), default=0)
        stored = attrs.evolve(stored, straddle=max(stored.straddle, width))
        # Do not call ``AllRuns.write``: it would put runs aside, but the rows were just decided.
        await Catalogue.write(self._index, [*batch, rows.encode_ledger(ledger_id, stored)])

    def _without_forgotten(self, doubled: Iterable[_Held]) -> list[_Held]:
        """Return each run that has an entry that no newer run holds, newest first."""
        kept: list[_Held] = []
        known: set[int] = set()
        for held in sorted(doubled, key=lambda held: self._newness(held.run), reverse=True):
            if not known.issuperset(held.ids):
                kept.append(held)
                known.update(held.ids)
        return kept

    def _one_for_each_row(self, kept: list[_Held]) -> list[_Held]:
        known = _all_ids(kept)
        for first in {held.run.first for held in kept}:
            alike = [held for held in kept if held.run.first == first]
            others = [held for held in kept if held.run.first != first]
            found = [held for held in alike if _all_ids([held, *others]) == known]
            if not found and self._is_lost_marked:
                found = [max(alike, key=lambda held: len(held.ids))]
            if not found:
                one, other = alike[0].run, alike[1].run
                raise StorageCorrupt(
                    self._pool.path_of(one.file),
                    one.offset,
                    f"entries {one.first}..{one.last} of ledger {one.ledger_id} are here, and entries "
                    f"{other.first}..{other.last} of it at byte {other.offset} of "
                    f"{self._pool.path_of(other.file)}: each has entries that the other lacks, but the "
                    f"index can hold only one run that begins with this entry",
                )
            kept = [found[0], *others]
        return kept


def _reaches(run: EntryRun, following: EntryRun) -> bool:
    return run.ledger_id == following.ledger_id and run.last >= following.first


def _share(some: Sequence[int], others: Sequence[int]) -> bool:
    if isinstance(some, range) and isinstance(others, range):
        return some[0] <= others[-1] and others[0] <= some[-1]
    if isinstance(some, range):
        some, others = others, some
    inside = others if isinstance(others, range) else frozenset(others)
    return any(each in inside for each in some)


def _all_ids(those: Iterable[_Held]) -> set[int]:
    return {entry_id for held in those for entry_id in held.ids}
