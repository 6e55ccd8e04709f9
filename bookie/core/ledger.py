"""What a bookie knows of one ledger, and its verdicts about adds, fences and reads.

There is one ``LedgerState`` object per ledger, and each verdict is taken together with its effect in one step
on it, never with a wait in between (rule 3): once a fence was decided, no ordinary add can slip past
it, and every add decided before stands in front of the fence record in the journal.

**Key** (rule 10). The first add or fence brings the ledger's key, later ones must bring the same; one that
does not changes nothing at all. ``key_sequence`` is the journal block that carries it: an add that is not
itself in the journal is acknowledged no earlier.

**Fence** (rules 1, 2, 5). ``is_fenced`` is set in memory first, so that ordinary adds fail at once.
``fence_sequence`` is the journal block that carries the fence record, 0 until there is one; whoever
answers a fence or a recovery read waits for that block, second fencers included. Adds with the
recovery flag pass. A fence that got no block, and that nobody was told of, is taken back
(``give_up_fence``).

**LAC and LAFR** (rule 9) are the greatest values told, by ordinary and recovery adds alike (recovery sends
its frozen start values, D11). They are facts about what the writer saw acknowledged elsewhere, so they
hold whether or not the add that told them is durable here.

**Ids** (rules 6, 7). No id is stored twice, which is what ``Engine.add`` sees to with the help of the bounds
kept here:

    last_entry  no higher id was ever accepted, pending adds included (it may be too high after a crash):
                a frame that begins above it meets nothing and is simply appended
    index_last  no higher id lies in runs that only the index knows
    widest      the largest ``last - first`` of any run
    straddle    how far before an entry the run that holds it may begin although another run begins in
                between; 0 while runs never overlapped, as striping and resends alone make them do

Runs that lie in segments which are still in memory are listed in ``runs``, sorted by their first id.

**Eviction.** A state may leave memory when ``is_evictable``: nothing is in flight, the index has all of it,
and no run of it is known in memory only. It is then read from the index again on the next touch, in one step
with the verdict, so that there are never two objects for one ledger.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from hmac import compare_digest

import attrs

from bookie.core.records import Run
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.frame import Status


@attrs.frozen
class StoredLedger:
    """The part of a ledger's state that the index keeps."""

    key: bytes
    is_fenced: bool
    lac: int
    lafr: int
    last_entry: int
    widest: int
    straddle: int
    is_deleted: bool = False
    is_purged: bool = False


@attrs.define(eq=False)
class LedgerState:
    ledger_id: int
    key: bytes
    is_fenced: bool = False
    key_sequence: int | None = None
    """The journal block that brought the key; 0 where a former life's did, None while none does."""
    fence_sequence: int = 0
    """The journal block with the fence record; 0 while it is not written, or it is from a former life."""
    lac: int = NO_ENTRY
    lafr: int = NO_ENTRY
    last_entry: int = NO_ENTRY
    index_last: int = NO_ENTRY
    widest: int = 0
    straddle: int = 0
    runs: list[Run] = attrs.field(factory=list)
    is_deleted: bool = False
    """The metadata store said that it is gone, and the journal says so, durably. What is kept is the
    tombstone, which refuses late adds (rule 4); it says nothing of any entry."""
    is_purged: bool = False
    """It is deleted, and nothing but this state is left of it in the index."""
    is_dirty: bool = False
    """The index does not have this state."""
    is_fence_durable: bool = False
    """The journal has the fence, durably; ``fence_sequence`` does not matter then."""
    is_fence_told: bool = False
    """An ordinary add was refused because of the fence."""
    fencers: int = 0
    """Fences under way."""
    pins: int = 0
    """Operations that hold this object across a wait."""
    was_used: bool = True
    """Touched since the eviction last came by."""

    @classmethod
    def restore(cls, ledger_id: int, stored: StoredLedger) -> LedgerState:
        """The state as the index has it."""
        return cls(
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
            is_deleted=stored.is_deleted,
            is_purged=stored.is_purged,
        )

    def to_store(self) -> StoredLedger:
        """For the index. It can be made again from the journal, so it may not say what that does not: a
        fence that has no durable record there is left out."""
        return StoredLedger(
            key=self.key,
            is_fenced=self.is_fenced and self.is_fence_durable,
            lac=self.lac,
            lafr=self.lafr,
            last_entry=self.last_entry,
            widest=self.widest,
            straddle=self.straddle,
            is_deleted=self.is_deleted,
            is_purged=self.is_purged,
        )

    # --- verdicts ---------------------------------------------------------------------------------

    def add_refusal(self, key: bytes, is_recovery: bool) -> Status | None:
        """Why an add is refused, None if it is not. Nothing is changed."""
        if not compare_digest(key, self.key):
            return Status.UNAUTHORIZED
        if self.is_fenced and not is_recovery:
            return Status.FENCED
        if self.is_deleted:
            return Status.NO_SUCH_LEDGER
        return None

    def fence_refusal(self, key: bytes) -> Status | None:
        """Why a fence or a recovery read is refused, None if it is not. Nothing is changed."""
        return None if compare_digest(key, self.key) else Status.UNAUTHORIZED

    @property
    def is_fence_unwritten(self) -> bool:
        """Whether the ledger is fenced in memory only, as far as ``settle_fence`` was told."""
        return self.is_fenced and not self.is_fence_durable

    def is_fence_settled(self, durable: int) -> bool:
        """Whether the ledger is fenced durably, where ``durable`` is the journal's last durable block."""
        return self.is_fenced and (self.is_fence_durable or 0 < self.fence_sequence <= durable)

    # --- effects ----------------------------------------------------------------------------------

    def tell(self, lac: int, lafr: int) -> bool:
        """Keep the greater of the values known and told; whether the LAC moved."""
        if lafr > self.lafr:
            self.lafr = lafr
            self.is_dirty = True
        if lac > self.lac:
            self.lac = lac
            self.is_dirty = True
            return True
        return False

    def on_run(self, run: Run) -> None:
        """A run of this ledger, of ids that are not stored yet, was appended to the journal."""
        if run.first > self.last_entry:
            self.runs.append(run)
            self.last_entry = run.last
        else:
            insort(self.runs, run)
            self.last_entry = max(self.last_entry, run.last)
            self.straddle = max(self.straddle, self.widest, run.last - run.first)
        self.widest = max(self.widest, run.last - run.first)
        self.is_dirty = True

    def on_found(self, run: Run) -> None:
        """A run of this ledger lies in an entry log. Other than the journal's, these come in no order of
        time, so it is taken to reach over others if it has gaps."""
        self.last_entry = max(self.last_entry, run.last)
        self.widest = max(self.widest, run.last - run.first)
        if not run.is_dense:
            self.straddle = max(self.straddle, run.last - run.first)
        self.is_dirty = True

    def on_fence(self) -> None:
        """The ledger is fenced from now on; the record is yet to be written."""
        self.is_fenced = True
        self.is_dirty = True

    def on_fence_found(self) -> None:
        """A file says, durably, that the ledger is fenced."""
        self.on_fence()
        self.is_fence_durable = True

    def give_up_fence(self) -> None:
        """A fence that was under way has ended, well or not. Where it was the last one, got no place in the
        journal and was answered to nobody, there is no fence: what is only in memory must not refuse a
        writer who is not deposed, for as long as this process lives."""
        assert not self.fencers
        if self.is_fenced and not (self.fence_sequence or self.is_fence_durable or self.is_fence_told):
            self.is_fenced = False

    @property
    def is_blank(self) -> bool:
        """Whether this is a ledger of which nothing is known but a key that somebody named."""
        return self.last_entry == self.lac == self.lafr == NO_ENTRY and not self.is_fenced

    def settle_fence(self, durable: int) -> None:
        """The journal is durable up to that block: from here on the index may have the fence, if it has one
        there."""
        self.is_fence_durable = self.is_fence_settled(durable)

    def on_delete(self) -> None:
        """The ledger is gone from the metadata store, and the journal says so, durably."""
        self.is_deleted = True
        self.is_purged = False
        self.is_fenced = self.is_fence_durable = True  # The same record is its fence.
        self.is_dirty = True

    def on_merge(self, width: int) -> None:
        """A sparse run of that width (last - first) takes the place of several."""
        self.widest = max(self.widest, width)
        if width > self.straddle:
            self.straddle = width
            self.is_dirty = True

    def forget_runs(self, segment: int) -> None:
        """Runs of that segment are in the index and leave memory."""
        kept = []
        for run in self.runs:
            if run.file == segment:
                self.index_last = max(self.index_last, run.last)
            else:
                kept.append(run)
        self.runs = kept

    # --- questions --------------------------------------------------------------------------------

    def runs_between(self, first: int, last: int) -> list[Run]:
        """The runs known in memory that may hold an id from ``first`` to ``last``, by first id."""
        return runs_between(self.runs, self.ledger_id, first, last, self.straddle)

    def is_replaced(self, first: int, durable: int) -> bool:
        """Whether a run known in memory, of a block up to ``durable``, begins with that id. It stands, with
        others in memory, for all that the index has under the same id, even where it is shorter: what was
        rotten is stored again in parts."""
        runs = self.runs
        at = bisect_left(runs, (self.ledger_id, first))
        while at < len(runs) and runs[at].first == first:
            if runs[at].sequence <= durable:
                return True
            at += 1
        return False

    def horizon(self, first: int, last: int, runs_max: int) -> int:
        """The last id up to ``last`` such that no more than about ``runs_max`` runs known in memory begin
        from ``first`` to it."""
        at = bisect_left(self.runs, (self.ledger_id, first)) + runs_max
        if at >= len(self.runs) or self.runs[at].first > last:
            return last
        # Runs that begin alike stay together.
        return max(first, self.runs[at].first - 1, self.runs[at - 1].first)

    def last_durable(self, durable: int) -> int:
        """The highest id in a durable run, where ``durable`` is the journal's last durable block."""
        highest = self.index_last
        for run in reversed(self.runs):
            if run.first + self.widest <= highest:
                break  # Neither this run nor any before it reaches further.
            if run.sequence <= durable:
                highest = max(highest, run.last)
        return highest

    def is_evictable(self, durable: int) -> bool:
        """Whether nothing would be lost with this object (see the module's text)."""
        if self.is_dirty or self.runs or self.pins:
            return False
        return not self.is_fenced or self.is_fence_settled(durable)


def runs_between(runs: list[Run], ledger_id: int, first: int, last: int, straddle: int) -> list[Run]:
    """Those of a ledger's sorted runs that may hold an id from ``first`` to ``last``."""
    low = bisect_right(runs, (ledger_id, first - straddle, _ID_BEYOND)) - 1
    high = bisect_left(runs, (ledger_id, last + 1), low + 1)
    return [run for run in runs[max(low, 0) : high] if run.last >= first]


_ID_BEYOND = 2**64
