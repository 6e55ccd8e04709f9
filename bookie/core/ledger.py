"""The state of one ledger on a bookie, and the verdicts on its adds, fences and reads.

There is one ``BookieLedger`` object for each ledger. The engine takes a verdict and carries out its effect in
one step on this object, without a wait in between (rule 3). So no ordinary add can slip past a fence once the
fence is decided. Every add that was decided before the fence comes before the fence record in the journal.

**Key** (rule 10). The first add or fence brings the ledger's key, and every later add or fence must carry the
same key. A request with another key changes nothing. If a ledger is deleted, its key does not matter: no
request can still change the ledger. ``key_sequence`` is the journal block that carries the key. If an add
skips the journal, it is acknowledged only after this block is durable.

**Fence** (rules 1, 2, 5). ``is_fenced`` is set in memory first, and ordinary adds fail from then on.
``fence_sequence`` is the journal block that carries the fence record; it is 0 until there is such a block. A
fence or a recovery read is answered only after this block is durable, even if another client had fenced the
ledger before. Adds with the recovery flag pass the fence. If a fence got no block and no client was told of
it, the bookie undoes the fence (``give_up_fence``).

**LAC and LAFR** (rule 9): the last entry that is confirmed, and the last that is fully replicated. The state
keeps the greatest values that any add brought, ordinary or recovery (a recovery sends the values that it
froze when it began, D11). These values are facts about acknowledgements that the writer got from other
bookies. So the values hold even if the add that brought them is not durable here.

**Ids** (rules 6, 7). A *run* is a frame of entries of one ledger at its place in a file. No id is stored in
two runs, except while damaged runs are replaced or runs are moved. ``Engine.add`` ensures this with the help
of these bounds:

    last_entry  the highest id that was ever accepted, pending adds included; after a crash the bound may be
                too high. If a frame begins after this id, the engine appends the frame without a search for
                duplicates
    index_last  no run that only the index knows holds a higher id than this
    widest      the largest ``last - first`` of any run
    straddle    how far before an entry its run may begin, if another run begins in between. For example, run
                A holds the ids 0 and 6, and run B holds 4. A begins 6 ids before its entry 6, and B begins
                in between, so ``straddle`` is 6. It is 0 if no runs have overlapped. Striping and resends
                alone never make runs overlap

``runs`` lists the runs that the index does not have yet, sorted by first id. Their segments are still in
memory.

**Eviction.** A state may leave memory if ``is_evictable`` is true: nothing is in flight, the index has the
whole state, and no run is known only in memory. The next request for the ledger reads the state from the
index again, and takes its verdict in the same step. So there are never two objects for one ledger.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest

import attrs

from bookie.core.journal_items import EntryRun
from ledgerlog.limits import LEDGER_KEY_BYTES
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.frame import Status


@attrs.frozen
class StoredLedger:
    """The part of a ledger's state that the index keeps. See ``BookieLedger`` for the fields."""

    key: bytes
    is_fenced: bool
    lac: int
    lafr: int
    last_entry: int
    widest: int
    straddle: int
    is_deleted: bool = False


@attrs.define(eq=False)
class BookieLedger:
    """One ledger on this bookie, in memory; see the module docstring for the rules."""

    ledger_id: int
    key: bytes
    is_fenced: bool = False
    key_sequence: int | None = None
    """The journal block that brought the key. It is 0 if an earlier process of the bookie stored the key, and
    None if no block carries the key yet."""
    fence_sequence: int = 0
    """The journal block with the fence record. It is 0 while the record has no block, and if an earlier
    process of the bookie wrote the record."""
    lac: int = NO_ENTRY
    lafr: int = NO_ENTRY
    last_entry: int = NO_ENTRY
    index_last: int = NO_ENTRY
    widest: int = 0
    straddle: int = 0
    runs: list[EntryRun] = attrs.field(factory=list)
    is_deleted: bool = False
    """The metadata store said that the ledger is gone, and a DELETE record in the journal is durable. This
    state is now the ledger's tombstone: it refuses late adds (rule 4) and knows no entry and no LAC."""
    is_leaving: bool = False
    """A DELETE record of the ledger may be on its way to the disk, or is there. Adds are refused already."""
    is_dirty: bool = False
    """The index does not have this version of the state."""
    is_fence_durable: bool = False
    """The fence is durable in the journal. Then ``fence_sequence`` does not matter."""
    is_fence_told: bool = False
    """An ordinary add was refused because of the fence, so its client knows of the fence."""
    fencers: int = 0
    """How many fences are under way."""
    pins: int = 0
    """How many operations wait now and need this object afterwards. It stays in memory for them."""
    was_used: bool = True
    """The ledger was used since the last round of eviction."""

    @classmethod
    def restore(cls, ledger_id: int, stored: StoredLedger) -> BookieLedger:
        """Make the state from the stored state in the index."""
        state = cls(
            ledger_id,
            stored.key,
            is_fenced=stored.is_fenced,
            key_sequence=0,
            is_fence_durable=stored.is_fenced,
            lac=stored.lac,
            lafr=stored.lafr,
            last_entry=stored.last_entry,
            index_last=stored.last_entry,
            widest=stored.widest,
            straddle=stored.straddle,
        )
        if stored.is_deleted:
            state.on_delete()
            state.is_dirty = False
        return state

    @classmethod
    def tombstone(cls, ledger_id: int) -> BookieLedger:
        """Make the state of a ledger that is gone (``bookie.core.gone_ledgers``). Its key is forgotten."""
        state = cls(ledger_id, bytes(LEDGER_KEY_BYTES), key_sequence=0)
        state.on_delete()
        state.is_dirty = False  # The file of gone ledgers has it already.
        return state

    def to_store(self) -> StoredLedger:
        """Return the part of the state that the index keeps.

        The index can be rebuilt from the journal, so it must not say more than the journal does. So a fence
        without a durable record in the journal is left out.
        """
        return StoredLedger(
            key=self.key,
            is_fenced=self.is_fenced and self.is_fence_durable,
            lac=self.lac,
            lafr=self.lafr,
            last_entry=self.last_entry,
            widest=self.widest,
            straddle=self.straddle,
            is_deleted=self.is_deleted,
        )

    # --- verdicts ---------------------------------------------------------------------------------

    def add_refusal(self, key: bytes, is_recovery: bool) -> Status | None:
        """Return the reason if an add is refused, or None if it is accepted. Nothing changes."""
        if self.is_leaving:
            # The key is not compared: nothing can change after this, and the key may be forgotten.
            return Status.NO_SUCH_LEDGER if is_recovery else Status.FENCED
        if not compare_digest(key, self.key):
            return Status.UNAUTHORIZED
        return Status.FENCED if self.is_fenced and not is_recovery else None

    def fence_refusal(self, key: bytes) -> Status | None:
        """Return the reason if a fence or a recovery read is refused, or None if not. Nothing changes."""
        return None if self.is_deleted or compare_digest(key, self.key) else Status.UNAUTHORIZED

    @property
    def is_fence_unwritten(self) -> bool:
        """Whether the ledger is fenced in memory only, as of the last ``settle_fence``."""
        return self.is_fenced and not self.is_fence_durable

    def is_fence_settled(self, durable: int) -> bool:
        """Whether the ledger is fenced durably. ``durable`` is the journal's last durable block."""
        return self.is_fenced and (self.is_fence_durable or 0 < self.fence_sequence <= durable)

    # --- effects ----------------------------------------------------------------------------------

    def tell(self, lac: int, lafr: int) -> bool:
        """Raise the LAC and the LAFR to these values if they are greater. Return whether the LAC moved."""
        if self.is_deleted:
            return False
        if lafr > self.lafr:
            self.lafr = lafr
            self.is_dirty = True
        if lac > self.lac:
            self.lac = lac
            self.is_dirty = True
            return True
        return False

    def on_run(self, run: EntryRun) -> None:
        """A run of this ledger was appended to the journal.

        Its ids were not stored before, unless the run replaces a damaged one.
        """
        if run.first > self.last_entry:
            self.runs.append(run)
            self.last_entry = run.last
        else:
            insort(self.runs, run)
            self.last_entry = max(self.last_entry, run.last)
            self.straddle = max(self.straddle, self.widest, run.last - run.first)
        self.widest = max(self.widest, run.last - run.first)
        self.is_dirty = True

    def on_found(self, run: EntryRun) -> None:
        """A run of this ledger was found in an entry log.

        Runs of the journal are found in the order in which they were written, but runs of entry logs are not.
        So if this run has gaps, assume that other runs begin inside it.
        """
        self.last_entry = max(self.last_entry, run.last)
        self.widest = max(self.widest, run.last - run.first)
        if not run.is_dense:
            self.straddle = max(self.straddle, run.last - run.first)
        self.is_dirty = True

    def on_fence(self) -> None:
        """The ledger is fenced from now on. The fence record is not written yet."""
        self.is_fenced = True
        self.is_dirty = True

    def on_fence_found(self) -> None:
        """A file says, durably, that the ledger is fenced."""
        self.on_fence()
        self.is_fence_durable = True

    def give_up_fence(self) -> None:
        """Undo the fence if it did not take effect. Call this after the last fence under way has ended.

        A fence did not take effect if its record got no place in the journal and no client was told of it. If
        such a fence stayed in memory, the bookie would refuse the adds of a writer that was not deposed,
        until this process ends.
        """
        assert not self.fencers
        if self.is_fenced and not (self.fence_sequence or self.is_fence_durable or self.is_fence_told):
            self.is_fenced = False

    @property
    def is_blank(self) -> bool:
        """Whether the bookie knows nothing of this ledger but the key in some client's request."""
        return self.last_entry == self.lac == self.lafr == NO_ENTRY and not self.is_fenced

    def settle_fence(self, durable: int) -> None:
        """Note that the journal is durable up to block ``durable``.

        If the fence record is in one of these blocks, the index may record the fence from now on.
        """
        self.is_fence_durable = self.is_fence_settled(durable)

    def on_leave(self) -> None:
        """A DELETE record of the ledger is about to be written. From now on adds are refused, so no add comes
        after the record (rule 4). Reads still find the entries."""
        self.is_leaving = True

    def on_delete(self) -> None:
        """The ledger is gone from the metadata store, and that is durable in the journal.

        Its LAC goes too. If a restored metadata store brings the ledger back, a recovery must not close the
        ledger at an entry that no bookie has any more.
        """
        self.is_leaving = self.is_deleted = True
        self.lac = self.lafr = NO_ENTRY
        self.is_fenced = self.is_fence_durable = True  # The DELETE record fences the ledger too.
        self.is_dirty = True

    def on_merge(self, width: int) -> None:
        """A sparse run of this width (last - first) replaces several runs."""
        self.widest = max(self.widest, width)
        if width > self.straddle:
            self.straddle = width
            self.is_dirty = True

    def forget_runs(self, segment: int) -> None:
        """Drop the runs of this segment from memory. The index has them."""
        kept = []
        for run in self.runs:
            if run.file == segment:
                self.index_last = max(self.index_last, run.last)
            else:
                kept.append(run)
        self.runs = kept

    # --- questions --------------------------------------------------------------------------------

    def runs_between(self, first: int, last: int) -> list[EntryRun]:
        """Return the runs in memory that may hold an id from ``first`` to ``last``, sorted by first id."""
        return runs_between(self.runs, self.ledger_id, first, last, self.straddle)

    def is_replaced(self, first: int, durable: int) -> bool:
        """Whether a run in memory, of a block up to ``durable``, begins with the id ``first``.

        Such a run, together with others in memory, replaces the run that the index has under this first id,
        even if the new run is shorter. For example, the bookie stores the entries of a damaged run again in
        several parts.
        """
        runs = self.runs
        at = bisect_left(runs, (self.ledger_id, first))
        while at < len(runs) and runs[at].first == first:
            if runs[at].sequence <= durable:
                return True
            at += 1
        return False

    def horizon(self, first: int, last: int, runs_max: int) -> int:
        """Return the id through which one search from ``first`` may go; at most ``last``.

        At most about ``runs_max`` runs in memory begin from ``first`` through this id.
        """
        at = bisect_left(self.runs, (self.ledger_id, first)) + runs_max
        if at >= len(self.runs) or self.runs[at].first > last:
            return last
        # Keep runs with the same first id together.
        return max(first, self.runs[at].first - 1, self.runs[at - 1].first)

    def last_durable(self, durable: int) -> int:
        """Return the highest id in a durable run. ``durable`` is the journal's last durable block."""
        highest = self.index_last
        for run in reversed(self.runs):
            if run.first + self.widest <= highest:
                break  # This run and all earlier ones end here or before.
            if run.sequence <= durable:
                highest = max(highest, run.last)
        return highest

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep this object in memory during the body, even if the body waits."""
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1

    def is_evictable(self, durable: int) -> bool:
        """Whether this object may leave memory and nothing is lost (see the module's text)."""
        if self.is_dirty or self.runs or self.pins:
            return False
        return not self.is_fenced or self.is_fence_settled(durable)


def runs_between(
    runs: list[EntryRun], ledger_id: int, first: int, last: int, straddle: int
) -> list[EntryRun]:
    """Return the runs, of a ledger's sorted ``runs``, that may hold an id from ``first`` to ``last``."""
    low = bisect_right(runs, (ledger_id, first - straddle, _ID_BEYOND)) - 1
    high = bisect_left(runs, (ledger_id, last + 1), low + 1)
    return [run for run in runs[max(low, 0) : high] if run.last >= first]


_ID_BEYOND = 2**64
