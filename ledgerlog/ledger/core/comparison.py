"""What a bookie should have, and what its answer says that it has: the one comparison of copies.

Verification, the auditor's checks, repair and the audit of all copies ask bookies in ways of their own: by
reads, by lists of their indexes, by scrubs. ``Holdings`` keeps what one bookie answered, and says what that
means:

    the bookie                                  an entry that should be there       is certain
    names it                                    no fault
    has it, and it fails its digest             CORRUPT                             yes
    says "no such entry", "no such ledger"      MISSING                             yes
    is in limbo, and does not name it           LIMBO                               no
    did not answer, or could not look           UNREACHABLE                         no
    has a sound copy that others outvote        DIVERGING (``ledger.core.copies``)         no

**What should be there** is a ``model.missing.Share``: the entries of a fragment that the bookie's slot
holds, up to the fragment's last one. So nothing is due above the end of a closed ledger, whatever lies
there. In the last fragment of a ledger that is not closed nothing is due either: its entries may be on their
way, and where it ends is known when it is closed. An entry that only an ack quorum has is due on its whole
write quorum.

**Certain** means: no sound copy of the entry is on this bookie. Only that may count against an entry
(rule 8). For example, three bookies should have entry 7: one lacks it, one has it damaged, one is silent. No
copy was seen, and nobody may say that it is lost: the silent one may have it.

**Limbo** changes only what a bookie does not name. What it names it has (A.3). A bookie that was in limbo in
one of several answers counts as in limbo for all of them.

**Silence** changes only what a bookie has not told yet. What it told before it fell silent stands.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import attrs

from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ids import BookieId
from ledgerlog.model.missing import Share, gaps

__all__ = ["CopyAnswer", "CopyAsk", "FaultKind", "Holdings", "absence", "joined"]

Ranges = Sequence[tuple[int, int]]
Sums = Sequence[tuple[int, int, int, int]]
Stretch = tuple[int, int, "FaultKind"]


class FaultKind(enum.Enum):
    """Why a copy does not count."""

    MISSING = "missing"
    """The bookie says that it does not have the entry."""
    CORRUPT = "corrupt"
    """It has the entry, and it does not read as it was written."""
    DIVERGING = "diverging"
    """Its copy is sound by itself, and another one than others have."""
    LIMBO = "limbo"
    """It may have lost the entry, and does not know."""
    UNREACHABLE = "unreachable"
    """It did not answer: nothing is known of the copy."""

    @property
    def is_certain(self) -> bool:
        """Whether there certainly is no sound copy on the bookie."""
        return self in (FaultKind.MISSING, FaultKind.CORRUPT)


def absence(negative: Negative) -> FaultKind:
    """What it means that a complete answer does not name an entry."""
    return FaultKind.MISSING if negative is Negative.ABSENT else FaultKind.LIMBO


@attrs.frozen
class CopyAsk:
    """Ask a bookie what it has of entries ``first`` to ``last``. ``classes`` is 0 for a list, which may go
    further than ``last``; else it is that of a scrub."""

    bookie: BookieId
    first: int
    last: int
    classes: int = 0


@attrs.frozen(kw_only=True)
class CopyAnswer:
    """A bookie's word on an ask, complete through ``through``."""

    through: int
    negative: Negative
    """What it means that an entry is in none of the ranges."""
    sound: Ranges
    """Growing; of a list, what the index names."""
    unsound: Ranges = ()
    sums: Sums = ()

    def is_about(self, first: int) -> bool:
        """Whether this answers an ask for entries from ``first`` on: it is complete through that entry at
        least, and names none that was not asked for. Else it says nothing, as silence does."""
        return self.through >= first and all(
            not ranges or (first <= ranges[0][0] and ranges[-1][1] <= self.through)
            for ranges in (self.sound, self.unsound)
        )


@attrs.define(eq=False)
class Holdings:
    """What one bookie has, as far as it said."""

    through: int
    """It has told all up to here. At first this is the entry before the one that it is asked for first."""
    sound: list[tuple[int, int]] = attrs.Factory(list)
    unsound: list[tuple[int, int]] = attrs.Factory(list)
    diverging: set[int] = attrs.Factory(set)
    """Entries whose copy here is sound and outvoted."""
    in_limbo: bool = False
    is_silent: bool = False
    """It did not answer the last time."""

    @property
    def is_doubtful(self) -> bool:
        """Whether it may have entries that it does not name."""
        return self.is_silent or self.in_limbo

    def on_answer(self, first: int, answer: CopyAnswer) -> None:
        """The bookie's answer about entries from ``first`` on."""
        if not answer.is_about(first):
            self.on_silent()
            return
        self.through = answer.through
        self.in_limbo = self.in_limbo or absence(answer.negative) is FaultKind.LIMBO
        self.sound += answer.sound
        self.unsound += answer.unsound

    def on_silent(self) -> None:
        """It did not answer, or could not look."""
        self.is_silent = True

    def forget_before(self, entry_id: int) -> None:
        """Nobody will ask for smaller entries any more."""
        del self.sound[: bisect_left(self.sound, entry_id, key=lambda pair: pair[1])]

    def next_named(self, entry_id: int) -> int | None:
        """The first entry that it names, from this one on."""
        index = bisect_left(self.sound, entry_id, key=lambda pair: pair[1])
        return max(self.sound[index][0], entry_id) if index < len(self.sound) else None

    def faults(self, share: Share) -> list[Stretch]:
        """The stretches of the share in which the bookie's copies are at fault, in order. Entries in between
        that are not the bookie's count for nothing."""
        told_through = min(share.last, self.through)
        found: list[Stretch] = []
        if told_through >= share.first:
            found = self._faults_of_told(attrs.evolve(share, last=told_through))
        if told_through < share.last:
            untold = attrs.evolve(share, first=max(share.first, told_through + 1))
            found += [(low, high, FaultKind.UNREACHABLE) for low, high in gaps(untold, ())]
        return found

    def _faults_of_told(self, share: Share) -> list[Stretch]:
        absent = FaultKind.LIMBO if self.in_limbo else FaultKind.MISSING
        if not self.unsound and not self.diverging:
            return [(low, high, absent) for low, high in gaps(share, self.sound)]
        unsound = joined(self.unsound)
        named = joined(sorted((*self.sound, *unsound)))
        found = [(low, high, absent) for low, high in gaps(share, named)]
        # An entry may have come, or rotted, since it was told for the first time: one word on each.
        diverging = [e for e in sorted(self.diverging) if _names(self.sound, e) and not _names(unsound, e)]
        for kind, ranges in (
            (FaultKind.CORRUPT, unsound),
            (FaultKind.DIVERGING, joined((e, e) for e in diverging)),
        ):
            # What lies in none of these is passed over, as a list's gaps are passed over the other way.
            others = _between(ranges, share.first, share.last)
            found += [(low, high, kind) for low, high in gaps(share, others)]
        return sorted(found, key=lambda stretch: stretch[0])


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges, with those that touch or overlap put together."""
    found: list[tuple[int, int]] = []
    for low, high in ranges:
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def _names(ranges: Ranges, entry_id: int) -> bool:
    """Whether an entry is in one of the ranges, which grow."""
    index = bisect_left(ranges, entry_id, key=lambda pair: pair[1])
    return index < len(ranges) and ranges[index][0] <= entry_id


def _between(ranges: Ranges, low: int, high: int) -> list[tuple[int, int]]:
    """What of low..high lies in none of the ranges, which grow."""
    found = []
    for first, last in ranges:
        if low < first:
            found.append((low, min(first - 1, high)))
        low = max(low, last + 1)
    if low <= high:
        found.append((low, high))
    return found
