"""Entries that stand in two files: which of their runs an index counts that is made anew.

No id is stored twice, but for rot: what does not read as it was written is stored again
(``bookie.storage.upkeep.scrub``, ``bookie.storage.upkeep.read_repair``), and the rotten run stays in its file
until compaction has written that again. The index forgets it at once, because the copy's row takes the place
of its own; an index that is made from the files meets both. With both in it a reader would meet the rotten
copy, and a run would hide another that begins before it.

So a run is *forgotten* if newer ones hold all of its entries: that is what the bookie went by. It need not
be known which of them is damaged, and no entry is denied by it, since the newest run that holds one stays.
Where two runs that begin alike are left (the rest of the copies was lost in a crash), the newest stays that
holds what no other does.

**Which is newer.** A copy comes to the journal when the file of what it replaces is complete. So it is in a
later segment, or in a log that replaced a later segment than that file is or replaced, or is the later of two
logs that replaced the same. One case is not told: the entries stayed in a segment, and the copy was made by a
bookie that had been told meanwhile not to write data to its journal. Then the rotten run may stay: its
entry is damaged again, and scrubbing has it restored again.

All rows are gone through once, in order; in memory are the runs that reach over the next one, and the doubles
among them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

import attrs
import trio

from bookie.core import rows
from bookie.core.frames import decode_head
from bookie.core.records import Run
from bookie.core.rows import Change
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.index.catalogue import Catalogue
from ledgerlog.errors import StorageCorrupt

Age = tuple[int, ...]


class AllRuns(Catalogue):
    """An index that is made anew. Two runs that begin alike cannot both have the row: one of them is put
    ``aside``."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue.index)
        self.aside: list[Run] = []

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

    run: Run
    ids: Sequence[int]


class Doubles:
    """``newness`` says of a run how new it is: greater is newer."""

    def __init__(self, index: AllRuns, pool: FilePool, newness: Callable[[Run], Age]) -> None:
        self._index = index
        self._pool = pool
        self._newness = newness

    async def settle(self) -> None:
        """Take the rows of runs that are to be forgotten out of the index. StorageError if a file cannot be
        read, StorageCorrupt where entries of one of two runs would be denied."""
        open_runs: list[_Held] = []
        doubled: dict[Run, _Held] = {}
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

    async def _runs(self) -> AsyncGenerator[Run, None]:
        """All runs, those that were put aside included, by ledger and first id."""
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

    async def _ids(self, run: Run) -> Sequence[int]:
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
        # Past the check of which run has the row: it was made just now.
        await Catalogue.write(self._index, [*batch, rows.encode_ledger(ledger_id, stored)])

    def _without_forgotten(self, doubled: Iterable[_Held]) -> list[_Held]:
        """Those of which an entry is in no newer one, the newest first."""
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
            if not found:
                one, other = alike[0].run, alike[1].run
                raise StorageCorrupt(
                    self._pool.path_of(one.file),
                    one.offset,
                    f"entries {one.first}..{one.last} of ledger {one.ledger_id} stand here, and entries "
                    f"{other.first}..{other.last} of it at byte {other.offset} of "
                    f"{self._pool.path_of(other.file)}: each has some that the other has not, and the index "
                    "has room for one run that begins so",
                )
            kept = [found[0], *others]
        return kept


def _reaches(run: Run, following: Run) -> bool:
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
