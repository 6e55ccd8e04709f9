"""The comparison of copies: the entries that a bookie should have, and the entries that it says it has.

Verification, the auditor's checks, repair and the audit of all copies ask bookies in different ways: by
reads, by lists of their indexes, or by scrubs (the bookie reads and checks its own copies). ``Holdings``
keeps the answers of one bookie and says what they mean:

    the bookie                                  fault of an entry that it should have   is certain
    names the entry                             none
    has the entry, but the digest fails         CORRUPT                                 yes
    says "no such entry", "no such ledger"      MISSING                                 yes
    is in limbo, and does not name the entry    LIMBO                                   no
    did not answer, or could not look           UNREACHABLE                             no
    has a sound copy that others outvote        DIVERGING (``ledger.core.copies``)      no

**Due entries.** An entry is *due* on a bookie if it should be there. A ``model.missing.Share`` says which
entries these are: the entries of a fragment that the bookie's slot holds, up to the fragment's last entry. No
entry after the end of a closed ledger is due, even if bookies have some. No entry of the last fragment of an
open ledger is due either: entries may be on their way, and the end is unknown until the ledger is closed. An
entry is due on its whole write quorum even if only an ack quorum has it.

**A certain fault** proves that this bookie has no sound copy of the entry. Only a certain fault may count as
proof that an entry has no copy there (rule 8). For example, three bookies should have entry 7. The first
lacks it, the second has a damaged copy, the third is silent. No sound copy was seen, but it is not certain
that the entry is lost: the silent bookie may have it.

**Limbo.** A bookie in limbo may have lost entries that it had (A.3). This casts doubt only on entries that
the bookie does not name: it has every entry that it names. If a bookie was in limbo during one of its
answers, it counts as in limbo for all of them.

**Silence** casts doubt only on entries that the bookie has not reported yet. Its earlier answers stand.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Sequence

import attrs

from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.id_ranges import joined
from ledgerlog.model.ids import BookieId
from ledgerlog.model.missing import Share, gaps

__all__ = ["CopyAnswer", "CopyAsk", "FaultKind", "Holdings", "absence"]

Ranges = Sequence[tuple[int, int]]
Sums = Sequence[tuple[int, int, int, int]]
Stretch = tuple[int, int, "FaultKind"]


class FaultKind(enum.Enum):
    """Why a copy does not count as sound."""

    MISSING = "missing"
    """The bookie says that it does not have the entry."""
    CORRUPT = "corrupt"
    """The bookie has the entry, but its copy fails the digest."""
    DIVERGING = "diverging"
    """The copy passes its digest, but differs from the copies on other bookies."""
    LIMBO = "limbo"
    """The bookie is in limbo: it may have lost the entry."""
    UNREACHABLE = "unreachable"
    """The bookie did not answer. It is unknown whether it has the copy."""

    @property
    def is_certain(self) -> bool:
        """Whether the fault proves that the bookie has no sound copy."""
        return self in (FaultKind.MISSING, FaultKind.CORRUPT)


def absence(negative: Negative) -> FaultKind:
    """Return the fault of an entry that a complete answer does not name."""
    return FaultKind.MISSING if negative is Negative.ABSENT else FaultKind.LIMBO


@attrs.frozen
class CopyAsk:
    """A question to a bookie: which of the entries ``first`` to ``last`` does it have?

    ``classes`` is 0 for a list; the answer to a list may go beyond ``last``. For a scrub it is the number of
    classes (``wire.scrub``)."""

    bookie: BookieId
    first: int
    last: int
    classes: int = 0


@attrs.frozen(kw_only=True)
class CopyAnswer:
    """A bookie's answer to an ask. It is complete up to the entry ``through``."""

    through: int
    negative: Negative
    """Whether the bookie certainly lacks the entries outside the ranges (ABSENT), or is in limbo and may have
    lost them (UNKNOWN)."""
    sound: Ranges
    """Ranges of entries with sound copies, in ascending order. In the answer to a list: the entries that the
    index names."""
    unsound: Ranges = ()
    sums: Sums = ()

    def is_about(self, first: int) -> bool:
        """Whether this answers an ask for entries from ``first`` on.

        Such an answer covers at least ``first``, and names only entries from ``first`` to ``through``. Any
        other answer counts as silence."""
        return self.through >= first and all(
            not ranges or (first <= ranges[0][0] and ranges[-1][1] <= self.through)
            for ranges in (self.sound, self.unsound)
        )


@attrs.define(eq=False)
class Holdings:
    """The entries of one bookie, as far as the bookie has answered."""

    through: int
    """The bookie has answered for every entry up to this one. Before the first answer, this is the entry
    before the first one asked for."""
    sound: list[tuple[int, int]] = attrs.Factory(list)
    unsound: list[tuple[int, int]] = attrs.Factory(list)
    diverging: set[int] = attrs.Factory(set)
    """Entries whose copy here is sound but outvoted."""
    in_limbo: bool = False
    is_silent: bool = False
    """The bookie did not answer the last ask."""

    @property
    def is_doubtful(self) -> bool:
        """Whether the bookie may have entries that it does not name."""
        return self.is_silent or self.in_limbo

    def on_answer(self, first: int, answer: CopyAnswer) -> None:
        """Take in the bookie's answer about entries from ``first`` on."""
        if not answer.is_about(first):
            self.on_silent()
            return
        self.through = answer.through
        self.in_limbo = self.in_limbo or absence(answer.negative) is FaultKind.LIMBO
        self.sound += answer.sound
        self.unsound += answer.unsound

    def on_silent(self) -> None:
        """The bookie did not answer, or could not look."""
        self.is_silent = True

    def forget_before(self, entry_id: int) -> None:
        """Drop the ranges that end before ``entry_id``: they are no longer needed."""
        del self.sound[: bisect_left(self.sound, entry_id, key=lambda pair: pair[1])]

    def next_named(self, entry_id: int) -> int | None:
        """The first entry at or above ``entry_id`` that the bookie names; None if there is none."""
        index = bisect_left(self.sound, entry_id, key=lambda pair: pair[1])
        return max(self.sound[index][0], entry_id) if index < len(self.sound) else None

    def faults(self, share: Share) -> list[Stretch]:
        """Return the stretches of the share in which the bookie's copies have faults, in order.

        A stretch is a range of entry ids. Entries in it that the bookie should not hold do not count."""
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
        named = joined((*self.sound, *unsound))
        found = [(low, high, absent) for low, high in gaps(share, named)]
        # An entry may have arrived or rotted since the bookie first answered. Report each entry once.
        diverging = [e for e in sorted(self.diverging) if _names(self.sound, e) and not _names(unsound, e)]
        for kind, ranges in (
            (FaultKind.CORRUPT, unsound),
            (FaultKind.DIVERGING, joined((e, e) for e in diverging)),
        ):
            # ``gaps`` yields the ids of the share outside the given ranges. Pass the complement.
            others = _between(ranges, share.first, share.last)
            found += [(low, high, kind) for low, high in gaps(share, others)]
        return sorted(found, key=lambda stretch: stretch[0])


def _names(ranges: Ranges, entry_id: int) -> bool:
    """Whether an entry is in one of the ranges, which are in ascending order."""
    index = bisect_left(ranges, entry_id, key=lambda pair: pair[1])
    return index < len(ranges) and ranges[index][0] <= entry_id


def _between(ranges: Ranges, low: int, high: int) -> list[tuple[int, int]]:
    """The parts of low..high outside the ranges, which are in ascending order."""
    found = []
    for first, last in ranges:
        if low < first:
            found.append((low, min(first - 1, high)))
        low = max(low, last + 1)
    if low <= high:
        found.append((low, high))
    return found
