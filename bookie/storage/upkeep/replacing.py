"""Replacing a damaged run: store its entries again in the journal.

A *run* is a frame of entries of one ledger, stored in one piece. The index names a run by its ledger and its
first id. So a new run with the same first id overwrites the damaged run's row. Until the new run is indexed,
readers take the new run from memory and ignore that row (``BookieLedger.is_replaced``). The entries come from
one of two sources: scrubbing brings copies of a whole run from other bookies
(``bookie.storage.upkeep.scrub``), and an add brings some of the entries again
(``bookie.storage.upkeep.read_repair``). Both replace runs here, under three rules:

**Last part first.** If the entries need several frames, the last part is appended first. The first part
overwrites the damaged run's row, so it must not be durable before the others. A crash in between leaves the
damaged row, and two copies of some entries.

**No other row is overwritten.** A later part must not begin at the first id of another run of the ledger,
because it would overwrite that run's row (``fits``). If a crash or a full disk stops a replacement, its last
parts are such runs. So scrubbing leaves out the parts that are stored already.

**The file stays unchanged** until the copies are indexed (``Compactor.hold``). Bytes that cannot be read now
may be readable a second later. Compaction could then merge the damaged run with the runs after it under one
row, and the row of the copies would overwrite that row. The runs after the damaged one would be lost. Once
the copies are indexed, compaction rewrites the file as soon as all its live entries can be read
(``Compactor.suspect``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bookie.core import rows
from bookie.core.journal_items import ADD, EntryRun
from bookie.core.ledger import BookieLedger
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.compaction import Compactor
from ledgerlog.wire.entries import Entries, encode_add


@attrs.frozen
class DamagedRun:
    """A damaged run: some of its bytes cannot be read as they were written."""

    run: EntryRun
    why: str


class Replacer:
    """Replaces damaged runs."""

    def __init__(self, journal: Journal, catalogue: Catalogue, compactor: Compactor) -> None:
        self.rotten: dict[tuple[int, int], DamagedRun] = {}
        """Damaged runs that are not replaced yet, by ledger and first id."""
        self.replaced = 0
        """Number of runs that were replaced."""
        self._journal = journal
        self._catalogue = catalogue
        self._compactor = compactor

    def fits(self, state: BookieLedger, parts: Sequence[Entries]) -> bool:
        """Whether these parts may replace the run that begins with the first part's first id. They may if no
        later part begins at the first id of another run of the ledger, pending runs included."""
        return not any(self._begins(state, part.first) for part in parts[1:])

    def _begins(self, state: BookieLedger, first: int) -> bool:
        if state.is_replaced(first, self._journal.commit.newest):
            return True
        return self._catalogue.index.get_now(rows.run_key(state.ledger_id, first)) is not None

    def replace(
        self, state: BookieLedger, run: EntryRun, parts: list[Entries], *, lac: int, lafr: int
    ) -> bool:
        """Append the parts that replace a run. Other tasks do not run during this call.

        The run is replaced once the appended parts are durable.

        Args:
            state: The ledger.
            run: The damaged run.
            parts: Its entries, in parts that fit (``fits``). Appended parts are removed from the list.
            lac: The LAC that the new records carry.
            lafr: The LAFR that the new records carry.

        Returns:
            False if the journal has no room now. Then ``parts`` holds the parts that were not appended, and
            the run is not replaced yet.
        """
        for part in parts[::-1]:
            if not self._append(state, part, lac, lafr):
                return False
            parts.pop()
        self._compactor.hold(run.file)
        self._compactor.suspect(run.file)
        self.replaced += 1
        self.rotten.pop((run.ledger_id, run.first), None)
        return True

    def _append(self, state: BookieLedger, part: Entries, lac: int, lafr: int) -> bool:
        journal = self._journal
        raw = b"".join(encode_add(part, lac=lac, lafr=lafr, key=state.key, recovery=True))
        offset = journal.append(ADD, raw)
        if offset is None:
            return False
        segment = journal.active
        run = EntryRun(
            part.ledger_id,
            part.first,
            part.last,
            len(part),
            segment.image.number,
            offset,
            len(raw),
            journal.commit.sequence,
        )
        segment.runs.append(run)
        segment.restored.add((run.ledger_id, run.first))
        state.on_run(run)
        return True
