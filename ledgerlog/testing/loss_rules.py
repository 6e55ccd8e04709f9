"""Rules for bookies that acknowledge before they sync (``journal_write_data = false``).

Such a bookie *claims* to hold every entry that it acknowledged or gave out, and ``GodView`` believes the
claim. Nothing on the bookie's disk proves the claim, and a crash may lose the entry. Claims count in quorums,
and a claim stays even if the entry is lost. At most ``ack quorum - 1`` bookies of a run are of this kind
(``swarm``), so each quorum with claims also has a synced copy. The rules for all bookies, which show that
nothing acknowledged is lost, hold here too: NoTruncation, NegativeReadFinal, ClosedImmutable, ContentAgree.

Other bookies lose entries by the mistakes of people: their directories are rolled back, or damaged and
repaired (``people``). These bookies sync, so an ordinary crash costs them nothing.

After a crash of a bookie that does not sync, or after a mistake of people, these rules apply to the bookie,
for the ledgers that existed then (C.3). A ledger is in *limbo* on a bookie if the bookie may have lost some
of the ledger's entries and has not copied them back yet:

    BootMarks           it acknowledges no ordinary add to any of them
    LimboNoNegative     if the ledger is not closed, it never denies an entry
    LimboClear          if the ledger is closed, it never denies an entry that it should hold. It denies other
                        entries only after it has copied back all that it should hold

Every bookie syncs fences, so FenceBeforeReply holds for these bookies as well.
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
    """Checks the bookies that acknowledge before they sync. ``wire_rules`` calls it."""

    def __init__(self, god: GodView) -> None:
        self.losses = 0
        """How often one of them ended without a clean stop."""
        self._god = god
        self._lost_through: dict[str, int] = {}
        self._syncs: dict[str, None] = {}
        """The bookies in ``_lost_through`` that sync: a crash costs them nothing."""

    def on_unsynced(self, bookie: str) -> None:
        """This bookie acknowledges before it syncs."""
        self._lost_through.setdefault(bookie, NO_LEDGER)

    def on_careless(self, bookie: str) -> None:
        """People may make this bookie lose entries (``on_mishap``)."""
        if bookie not in self._lost_through:
            self._lost_through[bookie], self._syncs[bookie] = NO_LEDGER, None

    def may_lose(self, bookie: str) -> bool:
        """Whether the bookie may lose entries in this run."""
        return bookie in self._lost_through

    def may_lack(self, bookie: str, ledger_id: int) -> bool:
        """Whether the bookie may lack entries of the ledger that it once held."""
        return self.may_lose(bookie) and (bookie not in self._syncs or self._may_have_lost(bookie, ledger_id))

    def on_loss(self, bookie: str) -> None:
        """A serving bookie has ended without a clean stop."""
        if bookie in self._lost_through and bookie not in self._syncs:
            self.losses += 1
            self._lost_through[bookie] = self.newest_ledger

    @property
    def newest_ledger(self) -> int:
        """The newest ledger that was ever made; -1 if there is none."""
        return max(self._god.creators, default=NO_LEDGER)

    def on_mishap(self, bookie: str, *, through: int | None = None) -> None:
        """The directory of a bookie was rolled back, or was repaired because it was damaged.

        Args:
            bookie: The bookie.
            through: The newest ledger of which the bookie may have lost entries. None: the newest one.
        """
        assert bookie in self._lost_through, f"{bookie} is not in the budget for losses"
        self._lost_through[bookie] = max(
            self._lost_through[bookie], self.newest_ledger if through is None else through
        )

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
        """The bookie answers that it has the entries ``found``, and lacks the other entries in ``asked``.

        Args:
            bookie: The bookie.
            ledger_id: The ledger.
            asked: The entries that it was asked for.
            found: The entries that it has.
            highest: The last entry of the ledger that any process ever sent.
        """
        god, metadata = self._god, self._god.ledgers.get(ledger_id)
        if metadata is None or not self._may_have_lost(bookie, ledger_id):
            return  # A bookie may deny entries of a deleted ledger.
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
