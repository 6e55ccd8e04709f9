"""AddsWithoutGap: what the simulator expects of an owner when bookies join, leave and come back."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest

from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.invariants import GodView, Violation
from ledgerlog.testing.wire_rules import WireView

LEDGER = 1


class Owner:
    """An open ledger over three bookies, each of which has every entry, and what its owner sends."""

    def __init__(self, *members: str) -> None:
        self.god = GodView()
        self.view = WireView(self.god)
        self.metadata = LedgerMetadata(
            ledger_id=LEDGER,
            replication=Replication(3, 3, 2),
            state=LedgerState.OPEN,
            fragments=(Fragment(0, tuple(map(BookieId, members))),),
            last_entry=None,
            key=bytes(16),
            token=bytes(16),
            created_ms=0,
        )
        self.god.on_metadata(ledger_path(LEDGER), None, self.metadata.encode())

    def write(self, *fragments: tuple[int, str]) -> None:
        """Write the ledger's fragments: for each, the first entry and the bookies, separated by spaces."""
        changed = tuple(
            Fragment(first, tuple(map(BookieId, members.split()))) for first, members in fragments
        )
        before, self.metadata = self.metadata, attrs.evolve(self.metadata, fragments=changed)
        self.god.on_metadata(ledger_path(LEDGER), before.encode(), self.metadata.encode())

    def sends(self, bookie: str, first: int, last: int) -> None:
        self.view._require_no_gap(bookie, SimpleNamespace(ledger_id=LEDGER, first=first, last=last))


@pytest.fixture
def owner() -> Owner:
    return Owner("a", "b", "c")


def test_the_next_entries_and_earlier_ones_are_sent(owner: Owner) -> None:
    owner.sends("a", 0, 9)
    owner.sends("a", 5, 12)
    owner.sends("a", 13, 13)
    with pytest.raises(Violation, match=r"AddsWithoutGap: a joined .* and never was \[14\]"):
        owner.sends("a", 15, 15)


def test_a_bookie_that_joins_is_sent_its_fragment_from_the_start(owner: Owner) -> None:
    owner.write((0, "a b c"), (10, "a b d"))
    owner.sends("d", 10, 11)
    owner.write((0, "a b c"), (10, "a e d"))
    with pytest.raises(Violation, match=r"never was \[10\]"):
        owner.sends("e", 11, 11)


def test_a_bookie_that_comes_back_to_the_same_fragment_is_sent_all_again(owner: Owner) -> None:
    owner.sends("a", 0, 20)
    owner.write((0, "a b c"), (10, "d b c"))
    owner.write((0, "a b c"), (10, "a b c"))
    with pytest.raises(Violation, match=r"never was \[10, 11, .*20\]"):
        owner.sends("a", 21, 21)


def test_a_bookie_that_comes_back_to_another_place_is_sent_all_again(owner: Owner) -> None:
    owner.write((0, "a b c"), (10, "a b d"))
    owner.sends("a", 0, 20)
    owner.write((0, "a b c"), (10, "e b d"))
    owner.write((0, "a b c"), (10, "e a d"))
    with pytest.raises(Violation, match=r"never was \[10, "):
        owner.sends("a", 21, 21)


def test_repair_of_earlier_fragments_changes_nothing(owner: Owner) -> None:
    for entry_id in range(15):
        owner.god._holders[LEDGER, entry_id] = {"e": 0} if entry_id >= 10 else {"a": 0, "e": 0}
    owner.write((0, "a b c"), (10, "a b d"))
    owner.sends("a", 0, 20)
    owner.write((0, "e b c"), (10, "a b d"))
    owner.sends("a", 20, 21)
    owner.write((0, "e b c"), (10, "a b d"), (15, "a f d"))
    owner.write((0, "e b c"), (10, "e b d"), (15, "a f d"))
    owner.sends("a", 22, 22)
    owner.write((0, "a b c"), (10, "e b d"), (15, "a f d"))
    owner.sends("a", 23, 23)
