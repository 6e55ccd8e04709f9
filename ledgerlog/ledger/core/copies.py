"""Checking every copy of a ledger: compare the answers of the bookies with the entries that they should have.

The metadata say which bookies should have each entry. ``CopyCheck`` asks all these bookies, one window of
entry ids after the other, and finds the copies that have faults. It can ask in two ways:

    list    bookies name the entries in their index. This shows missing copies. No entry is read
    scrub   bookies read their copies and check them. This also shows corrupt copies, and copies that are
            sound but differ from each other, by sums of digests (``wire.scrub``)

The shell calls these methods:

    take_asks -> on_answer, on_silent       until ``is_done``
    take_faults                             take the faults found since the last call
    checked                                 (an attribute) how many copies each bookie answered about

**Meaning of answers.** ``ledger.core.comparison`` says which entries are due (should be on a bookie) and what
an answer means. If a bookie does not answer, the check asks it again in the next window.

**A fault** covers a run: consecutive entries of one bookie whose copies there have the same kind of fault
(``FaultKind``), and equally many sound copies on other bookies. Consecutive means: among the entries that the
bookie should hold. So if a bookie lost all its entries of a striped ledger (whose write sets differ), that is
one fault for each fragment. A fault never crosses a fragment's end. ``copies_left`` counts only copies that
were seen sound, not copies that may be on a silent bookie. In a striped ledger, the entries of one run have
different write sets; ``copies_left`` is then the lowest count.

**Diverging copies.** Bookies of one write set send sums of the digests of the same entries, block by block.
If the sums or counts of a block differ, the check asks for the digest of each entry of the block. If several
bookies have sound copies of an entry with different digests, the digests are votes. If one digest has the
most votes, only the outvoted copies are diverging. If there is a tie, it is unknown which copy is right: all
copies are diverging, and none counts as sound.

**Memory** is bounded by the answers about one window, however long the ledger is.

**Time** is bounded by the answers too, not by the metadata. If no bookie named an entry of a window, the next
window is the rest of the fragment, up to the next entry that a bookie names. A scrub asks for lists to find
this entry, because a bookie scrubs only so many entry ids in one request, even if it has none of them. So a
check ends even if the metadata say that a ledger of ten entries ends at entry 2**62: the rest of these
entries is one fault for each bookie.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk, FaultKind, Holdings, Stretch
from ledgerlog.limits import SCRUB_BLOCK_ENTRIES
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.missing import Share, shares
from ledgerlog.model.quorum import Replication

__all__ = [
    "CopyCheck",
    "CopyFault",
    "count_held",
    "count_lacking",
    "entries_of",
    "is_due",
    "replicas_of",
]

_SUM_MODULUS = 2**64
"""Sums of digests are numbers of 64 bits (``wire.scrub``)."""

WINDOW_ENTRIES = 64 * SCRUB_BLOCK_ENTRIES


@attrs.frozen(kw_only=True)
class CopyFault:
    """A run of faulty copies on one bookie."""

    ledger_id: int
    bookie: BookieId
    first_entry: int
    last_entry: int
    copies: int
    """How many of the entries first..last the bookie should hold."""
    copies_left: int
    """How many sound copies these entries have on other bookies; the lowest number if the entries differ."""
    write_quorum: int
    kind: FaultKind


def count_held(replication: Replication, slot: int, first: int, last: int) -> int:
    """Count the entries of first..last that a slot holds."""
    if last < first:
        return 0
    rounds, rest = divmod(last - first + 1, replication.ensemble)
    return rounds * replication.write_quorum + sum(
        replication.holds(slot, entry_id) for entry_id in range(first, first + rest)
    )


def replicas_of(metadata: LedgerMetadata) -> int:
    """Count the copies that a check covers."""
    end = metadata.last_entry
    count = metadata.last_fragment.first_entry if end is None else end + 1
    return count * metadata.replication.write_quorum


def entries_of(metadata: LedgerMetadata, fault: CopyFault) -> Iterator[int]:
    """Return the entries whose copies on the faulty bookie have this fault."""
    slot = metadata.fragment_of(fault.first_entry).ensemble.index(fault.bookie)
    share = Share(fault.first_entry, fault.last_entry, slot, metadata.replication)
    return share.ids(fault.first_entry, fault.last_entry)


def count_lacking(metadata: LedgerMetadata, faults: Iterable[CopyFault]) -> Iterator[tuple[int, int, int]]:
    """Count the faulty copies of each entry that has any.

    Yield stretches ``(first, last, copies)`` in ascending order: each of the entries first..last has
    ``copies`` faulty copies. A stretch of entries that no bookie has is one item, however long it is.
    """
    holds, ensemble = metadata.replication.holds, metadata.replication.ensemble
    changes: dict[int, Counter[int]] = {}
    for fault in faults:
        slot = metadata.fragment_of(fault.first_entry).ensemble.index(fault.bookie)
        changes.setdefault(fault.first_entry, Counter())[slot] += 1
        changes.setdefault(fault.last_entry + 1, Counter())[slot] -= 1
    open_runs: Counter[int] = Counter()
    """For each slot, the number of its faults that contain the present entry: 0 or 1."""
    for low, following in itertools.pairwise(sorted(changes)):
        open_runs.update(changes[low])
        slots = [slot for slot, runs in open_runs.items() if runs]
        # Write sets repeat every ``ensemble`` entries.
        counts = [sum(holds(slot, remainder) for slot in slots) for remainder in range(ensemble)]
        if min(counts) == max(counts):
            if slots:
                yield low, following - 1, counts[0]
            continue
        for entry_id in range(low, following):
            if copies := counts[entry_id % ensemble]:
                yield entry_id, entry_id, copies


def is_due(metadata: LedgerMetadata, fault: CopyFault) -> bool:
    """Whether the bookie should still have these copies, by the metadata."""
    return any(
        share.first <= fault.first_entry
        and fault.last_entry <= share.last
        and share.replication.holds(share.slot, fault.first_entry)
        for share in shares(metadata, fault.bookie)
    )


@attrs.define(eq=False, kw_only=True)
class _Side(Holdings):
    """The answers of one bookie about the window's fragment."""

    slot: int
    bookie: BookieId
    sums: dict[tuple[int, int], tuple[int, int]] = attrs.Factory(dict)
    ask: CopyAsk | None = None
    """The outstanding ask; None if there is none."""
    digests: dict[int, int] = attrs.Factory(dict)
    """Digests by entry, for the block that is being compared entry by entry."""
    block_through: int | None = None
    """The bookie has sent the digests of the block up to this entry; None if the bookie takes no part in the
    comparison."""

    def first_named(self, entry_id: int) -> int | None:
        """The first entry at or above ``entry_id`` of which the bookie has a copy, sound or not."""
        unsound = next((max(low, entry_id) for low, high in self.unsound if high >= entry_id), None)
        return min((e for e in (self.next_named(entry_id), unsound) if e is not None), default=None)


class CopyCheck:
    """The check of one ledger. The shell answers each ask by ``on_answer`` or ``on_silent``."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        scrub: bool,
        tail: int | None = None,
        window_entries: int = WINDOW_ENTRIES,
    ) -> None:
        """Begin a check.

        Args:
            metadata: The ledger.
            scrub: Ask by scrubs instead of lists.
            tail: If the ledger is not closed, check its last fragment too, up to this entry. Entries that are
                missing in that fragment may be on their way, so do not repair them.
            window_entries: How many entry ids to check at a time.
        """
        assert window_entries % SCRUB_BLOCK_ENTRIES == 0 or not scrub, "blocks lie within windows"
        self.metadata = metadata
        self.checked: Counter[BookieId] = Counter()
        self.is_done = False
        self._scrub = scrub
        self._tail = tail
        self._window_entries = window_entries
        self._replication = metadata.replication
        self._classes = metadata.replication.ensemble if metadata.replication.is_striped else 1
        self._faults: list[CopyFault] = []
        self._runs: dict[int, CopyFault] = {}
        """The last run of each slot. The next window may extend it."""
        self._said: dict[BookieId, _Side] = {}
        """The answers of each bookie in its newest window. A list may go beyond the window."""
        self._index = -1
        self._fragment: Fragment
        self._low = self._high = self._end = -1
        self._was_empty = False
        """No bookie named an entry of the last window, or of the next one."""
        self._is_searching = False
        """A scrub asks for lists in this window."""
        self._sides: list[_Side] = []
        self._blocks: list[int] | None = None
        """The blocks still to be compared entry by entry; the first one is being compared. None before the
        sums were compared."""
        self._next_window()
        self._look()

    # --- asking -----------------------------------------------------------------------------------

    def take_asks(self) -> list[CopyAsk]:
        """Take the asks to send now. No bookie is asked twice at the same time."""
        asks = []
        for side in self._sides:
            if side.ask is None:
                ask = self._next_ask(side)
                if ask is not None:
                    side.ask = ask
                    asks.append(ask)
        return asks

    def _next_ask(self, side: _Side) -> CopyAsk | None:
        if self._blocks is not None:
            stop = min(self._high, (self._blocks[0] + 1) * SCRUB_BLOCK_ENTRIES - 1)
            if side.block_through is None or side.block_through >= stop:
                return None
            return CopyAsk(side.bookie, side.block_through + 1, stop, SCRUB_BLOCK_ENTRIES)
        if side.is_silent or side.through >= self._high:
            return None
        classes = self._classes if self._scrub and not self._is_searching else 0
        return CopyAsk(side.bookie, side.through + 1, self._high, classes)

    def on_answer(self, ask: CopyAsk, answer: CopyAnswer) -> None:
        """A bookie answered.

        If the answer does not cover the first entry asked for, or names entries that were not asked for, it
        counts as silence."""
        if not answer.is_about(ask.first):
            self.on_silent(ask)
            return
        side = self._side_of(ask)
        if ask.classes == SCRUB_BLOCK_ENTRIES:
            side.block_through = answer.through
            for block, remainder, _, digest in answer.sums:  # Each is the sum of one digest.
                side.digests[block * SCRUB_BLOCK_ENTRIES + remainder] = digest
        else:
            side.on_answer(ask.first, answer)
            for block, remainder, count, total in answer.sums:
                counted, summed = side.sums.get((block, remainder), (0, 0))
                side.sums[block, remainder] = counted + count, (summed + total) % _SUM_MODULUS
            self._shorten(side)
        self._look()

    def on_silent(self, ask: CopyAsk) -> None:
        """A bookie did not answer, or could not look."""
        side = self._side_of(ask)
        if ask.classes == SCRUB_BLOCK_ENTRIES:
            side.block_through = None  # Keep its earlier answers, but do not compare its digests.
            side.digests.clear()
        else:
            side.on_silent()
        self._look()

    def _side_of(self, ask: CopyAsk) -> _Side:
        side = next(side for side in self._sides if side.bookie == ask.bookie)
        assert side.ask is ask, "an answer to what was not asked"
        side.ask = None
        return side

    def take_faults(self) -> list[CopyFault]:
        """Take the faults that are complete and were not taken yet, in the order in which their windows were
        judged."""
        faults, self._faults = self._faults, []
        return faults

    # --- windows ----------------------------------------------------------------------------------

    def _next_window(self) -> None:
        while self._high >= self._end:
            self._flush()
            self._index += 1
            if self._index == len(self.metadata.fragments):
                self.is_done = True
                self._sides = []
                return
            end = self.metadata.fragment_end(self._index)
            self._fragment = self.metadata.fragments[self._index]
            if end is None:
                end = self._tail
            self._end = -1 if end is None else end
            self._high = self._fragment.first_entry - 1
            self._was_empty = False
        self._low = self._high + 1
        self._high = self._end if self._was_empty else min(self._end, self._window_end(self._low))
        self._is_searching = self._scrub and self._was_empty
        self._blocks = None
        self._sides = [self._begin(slot, bookie) for slot, bookie in enumerate(self._fragment.ensemble)]
        for side in self._sides:
            self._shorten(side)

    def _window_end(self, entry_id: int) -> int:
        """Return the last entry of the window with an entry. Windows end at block ends, so one window has
        all sums of a block."""
        return (entry_id // self._window_entries + 1) * self._window_entries - 1

    def _shorten(self, side: _Side) -> None:
        """If the window is longer than others, end it before the window of the first entry that a bookie
        names."""
        if self._high > self._window_end(self._low) and (named := side.first_named(self._low)) is not None:
            before = self._window_end(named) - self._window_entries
            self._high = min(self._high, max(before, self._window_end(self._low)))

    def _begin(self, slot: int, bookie: BookieId) -> _Side:
        side = _Side(slot=slot, bookie=bookie, through=self._low - 1)
        if not self._scrub:
            before = self._said.get(bookie)
            if before is not None and before.through >= self._low:
                # The bookie's last list reached beyond the last window.
                before.forget_before(self._low)
                side.through, side.sound, side.in_limbo = before.through, before.sound, before.in_limbo
            self._said[bookie] = side
        return side

    def _look(self) -> None:
        """Begin the next step if this one has nothing more to ask."""
        while not self.is_done and all(
            side.ask is None and self._next_ask(side) is None for side in self._sides
        ):
            if self._blocks is None:
                self._blocks = self._suspects() if self._scrub else []
            else:
                self._compare_entries()
                del self._blocks[0]
            if self._blocks:
                self._begin_block(self._blocks[0])
            elif self._is_searching and self._names_any():
                self._was_empty = False
                self._high = self._low - 1  # Now scrub it.
                self._next_window()
            else:
                self._judge()
                self._next_window()

    def _names_any(self) -> bool:
        """Whether a bookie named an entry of the window."""
        firsts = (side.first_named(self._low) for side in self._sides)
        return any(first is not None and first <= self._high for first in firsts)

    # --- copies that differ -----------------------------------------------------------------------

    def _members(self, remainder: int) -> Iterator[_Side]:
        """Yield the sides that have answered and whose slots hold the entries of a class."""
        for side in self._sides:
            if not side.is_silent and self._replication.holds(side.slot, remainder):
                yield side

    def _suspects(self) -> list[int]:
        """Find the blocks for which the bookies of a write set sent different sums."""
        found: set[int] = set()
        for block, remainder in {key for side in self._sides if not side.is_silent for key in side.sums}:
            said = {
                side.sums[block, remainder]
                for side in (self._members(remainder) if self._classes > 1 else self._answering())
                if (block, remainder) in side.sums
            }
            if len(said) > 1:
                found.add(block)
        return sorted(found)

    def _answering(self) -> Iterator[_Side]:
        return (side for side in self._sides if not side.is_silent)

    def _begin_block(self, block: int) -> None:
        first = max(self._low, block * SCRUB_BLOCK_ENTRIES)
        for side in self._sides:
            side.digests = {}
            takes_part = not side.is_silent and any(key[0] == block for key in side.sums)
            side.block_through = first - 1 if takes_part else None

    def _compare_entries(self) -> None:
        assert self._blocks
        first = max(self._low, self._blocks[0] * SCRUB_BLOCK_ENTRIES)
        stop = min(self._high, (self._blocks[0] + 1) * SCRUB_BLOCK_ENTRIES - 1)
        for entry_id in sorted(set().union(*(side.digests for side in self._sides))):
            if not first <= entry_id <= stop:
                continue
            told = {
                side.slot: side.digests[entry_id]
                for side in self._members(entry_id)
                if entry_id in side.digests
            }
            votes = Counter(told.values()).most_common(2)
            if len(votes) < 2:
                continue
            right = votes[0][0] if votes[0][1] > votes[1][1] else None
            for slot, digest in told.items():
                if digest != right:
                    self._sides[slot].diverging.add(entry_id)

    # --- judging a window -------------------------------------------------------------------------

    def _judge(self) -> None:
        pieces: dict[int, list[Stretch]] = {}
        firsts = [side.first_named(self._low) for side in self._sides]
        nearest = min((first for first in firsts if first is not None), default=self._end + 1)
        self._was_empty = nearest > self._window_end(self._high + 1)
        for side in self._sides:
            told = min(side.through, self._high)
            if told >= self._low:
                self.checked[side.bookie] += count_held(self._replication, side.slot, self._low, told)
            found = side.faults(Share(self._low, self._high, side.slot, self._replication))
            if found:
                pieces[side.slot] = found
        if pieces:
            self._emit(pieces)

    def _emit(self, pieces: Mapping[int, list[Stretch]]) -> None:
        """Cut the stretches wherever another bookie's stretch begins or ends, and add the pieces as
        faults."""
        opening: dict[int, list[tuple[int, FaultKind]]] = {}
        closing: dict[int, list[int]] = {}
        for slot, found in pieces.items():
            for low, high, kind in found:
                opening.setdefault(low, []).append((slot, kind))
                closing.setdefault(high + 1, []).append(slot)
        cuts = sorted({*opening, *closing})
        faulty: dict[int, FaultKind] = {}
        for low, following in zip(cuts, [*cuts[1:], self._high + 1], strict=True):
            for slot in closing.get(low, ()):
                del faulty[slot]
            faulty.update(opening.get(low, ()))
            for slot, kind in faulty.items():
                self._add(slot, kind, low, following - 1, faulty)

    def _add(self, slot: int, kind: FaultKind, low: int, high: int, faulty: Mapping[int, object]) -> None:
        """Add a fault of the slot: the entries of low..high that the slot holds. ``faulty`` has all slots
        with faults in this piece."""
        holds, ensemble = self._replication.holds, self._replication.ensemble
        # Write sets repeat every ``ensemble`` entries.
        held = [e for e in range(low, min(high, low + ensemble - 1) + 1) if holds(slot, e)]
        if not held:
            return
        last = next(e for e in range(high, low - 1, -1) if holds(slot, e))
        left = min(
            sum(other not in faulty for other in self._replication.write_set(entry_id)) for entry_id in held
        )
        count = count_held(self._replication, slot, low, high)
        run = self._runs.get(slot)
        if run is not None:
            following = next(
                e for e in range(run.last_entry + 1, run.last_entry + 1 + ensemble) if holds(slot, e)
            )
            if (run.kind, run.copies_left, following) == (kind, left, held[0]):
                self._runs[slot] = attrs.evolve(run, last_entry=last, copies=run.copies + count)
                return
            self._faults.append(run)
        self._runs[slot] = CopyFault(
            ledger_id=self.metadata.ledger_id,
            bookie=self._fragment.ensemble[slot],
            first_entry=held[0],
            last_entry=last,
            copies=count,
            copies_left=left,
            write_quorum=self._replication.write_quorum,
            kind=kind,
        )

    def _flush(self) -> None:
        self._faults += self._runs.values()
        self._runs = {}
