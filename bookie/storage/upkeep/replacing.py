"""Another run in the place of one that is rotten: the same entries, stored again in the journal.

The index names a run by its ledger and its first id. So a run that begins with the same id takes the place of
the rotten one: its row takes that of the rotten one, and before it is indexed whoever reads goes by it
(``LedgerState.is_replaced``). Two bring the entries: scrubbing, with copies of a whole run that others have
(``bookie.storage.upkeep.scrub``), and an add that brings some of them once more
(``bookie.storage.upkeep.read_repair``). Both replace a run here, under the same three rules:

**The last part first.** Entries that need more than one frame are appended last part first: what takes the
row's place must not be durable before the rest of what the row named. A crash in between leaves the rotten
row, and two copies of some entries.

**No other row is taken.** A part behind the first that begins where another run of the ledger does would take
the row of that one (``fits``).

**The file stays as it is** until the copies are indexed (``Compactor.hold``). What cannot be read now may be
read a second later: compaction would then put the rotten run together with what follows it, under one row for
all of it, and the row of the copies would take the place of that one. Once they are indexed, the file is
written again as soon as all that counts of it can be read (``Compactor.suspect``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bookie.core import rows
from bookie.core.ledger import LedgerState
from bookie.core.records import ADD, Run
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.journal.journal import Journal
from bookie.storage.upkeep.compaction import Compactor
from ledgerlog.wire.entries import Entries, encode_add


@attrs.frozen
class Rotten:
    """A run of which something does not read as it was written."""

    run: Run
    why: str


class Replacer:
    """Puts other runs in the place of rotten ones."""

    def __init__(self, journal: Journal, catalogue: Catalogue, compactor: Compactor) -> None:
        self.rotten: dict[tuple[int, int], Rotten] = {}
        """Runs that were found rotten and still are, by ledger and first id."""
        self.replaced = 0
        """How many runs were."""
        self._journal = journal
        self._catalogue = catalogue
        self._compactor = compactor

    def fits(self, state: LedgerState, parts: Sequence[Entries]) -> bool:
        """Whether these parts may take the place of a run that begins as the first of them does: none of the
        others begins where another run of the ledger does, pending ones included."""
        return not any(self._begins(state, part.first) for part in parts[1:])

    def _begins(self, state: LedgerState, first: int) -> bool:
        if state.is_replaced(first, self._journal.commit.newest):
            return True
        return self._catalogue.index.get_now(rows.run_key(state.ledger_id, first)) is not None

    def replace(self, state: LedgerState, run: Run, parts: list[Entries], *, lac: int, lafr: int) -> bool:
        """Append parts that fit, in the place of a run. False if the journal has no room now: ``parts`` are
        those that are left, and nothing has the run's place yet.

        Does not let other tasks run. The run is replaced once what was appended is durable."""
        for part in parts[::-1]:
            if not self._append(state, part, lac, lafr):
                return False
            parts.pop()
        self._compactor.hold(run.file)
        self._compactor.suspect(run.file)
        self.replaced += 1
        self.rotten.pop((run.ledger_id, run.first), None)
        return True

    def _append(self, state: LedgerState, part: Entries, lac: int, lafr: int) -> bool:
        journal = self._journal
        raw = b"".join(encode_add(part, lac=lac, lafr=lafr, key=state.key, recovery=True))
        offset = journal.append(ADD, raw)
        if offset is None:
            return False
        segment = journal.active
        run = Run(
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
