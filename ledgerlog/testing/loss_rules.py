"""Bookies that acknowledge before they sync (``journal_write_data = false``), judged from above.

What such a bookie acknowledged, and what it gives out, it *claims* to hold, and ``GodView`` takes its word:
nothing on its disk proves it, and a crash may take it away. Quorums are counted with claims, and a claim that
was lost is not taken back: at most ``ack quorum - 1`` bookies of a run are of this kind (``swarm``), so
behind every quorum of claims there is a copy that was synced. That nothing acknowledged is lost is judged by
the rules for all bookies, which hold as ever: NoTruncation, NegativeReadFinal, ClosedImmutable, ContentAgree.

What is asked of the bookie itself, from its crash on, about the ledgers that existed then (C.3):

    BootMarks           it acknowledges no ordinary add of any of them
    LimboNoNegative     of one that is not closed it never says that an entry is not there
    LimboClear          nor of a closed one, of an entry that is its to hold: before it says so of any other,
                        it has got all of those back

Fences are synced by every bookie; FenceBeforeReply holds for these as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.testing import quorums
from ledgerlog.testing.invariants import GodView
from ledgerlog.wire.frame import RECOVERY, Header

__all__ = ["LossRules"]

NO_LEDGER = -1


class LossRules:
    """Asked by ``wire_rules`` about the bookies of a cluster that do not sync what they acknowledge."""

    def __init__(self, god: GodView) -> None:
        self.losses = 0
        """How many times one of them ended without a clean stop."""
        self._god = god
        self._lost_through: dict[str, int] = {}

    def on_unsynced(self, bookie: str) -> None:
        """A bookie is of this kind."""
        self._lost_through.setdefault(bookie, NO_LEDGER)

    def is_unsynced(self, bookie: str) -> bool:
        return bookie in self._lost_through

    def on_loss(self, bookie: str) -> None:
        """It served, and ended otherwise than by a clean stop."""
        if bookie in self._lost_through:
            self.losses += 1
            self._lost_through[bookie] = max(self._god.creators, default=NO_LEDGER)

    def _may_have_lost(self, bookie: str, ledger_id: int) -> bool:
        return ledger_id <= self._lost_through.get(bookie, NO_LEDGER)

    def on_acknowledged(self, bookie: str, header: Header, content: Iterable[tuple[int, int]]) -> None:
        """The bookie acknowledges an add of entries with these ids and digests."""
        god, ledger_id = self._god, header.ledger_id
        god.checks["BootMarks"] += 1
        if self._may_have_lost(bookie, ledger_id) and not header.flags & RECOVERY:
            god.violate(
                "BootMarks",
                f"{bookie} acknowledges entries {header.first}..{header.last} of ledger {ledger_id}, whose "
                "fence it may have lost",
            )
        for entry_id, digest in content:
            god.on_held(bookie, ledger_id, entry_id, digest)

    def on_answer(
        self, bookie: str, ledger_id: int, asked: range, found: Collection[int], highest: int
    ) -> None:
        """The bookie says of the entries ``asked`` that it has those that it ``found``, and no others.
        ``highest`` is the last entry of the ledger that anybody ever sent."""
        god, metadata = self._god, self._god.ledgers.get(ledger_id)
        if metadata is None or not self._may_have_lost(bookie, ledger_id):
            return  # What is deleted may be denied.
        last = metadata.last_entry
        rule, end = ("LimboNoNegative", highest + asked.step) if last is None else ("LimboClear", last)
        god.checks[rule] += 1
        for entry_id in asked[: max(1, (end - asked.start) // asked.step + 1)]:
            if entry_id in found or (last is not None and entry_id > last):
                continue
            if last is None or bookie in quorums.bookies_of(metadata, entry_id):
                god.violate(
                    rule,
                    f"{bookie} may have lost entry {entry_id} of ledger {ledger_id} ({metadata.state.value}, "
                    f"last entry {NO_ENTRY if last is None else last}), and says that it is not there",
                )
