"""Which entries of a ledger belong to a bookie, and which of them are missing."""

from __future__ import annotations

import random

import attrs

from ledgerlog.model.ledger import Fragment, LedgerState
from ledgerlog.model.missing import Share, gaps, shares
from ledgerlog.model.quorum import Replication
from tests.cores import bookies, new_metadata


def test_a_share_is_what_the_slot_of_a_fragment_holds_as_far_as_the_end_is_known() -> None:
    fragments = (Fragment(0, bookies(3)), Fragment(5, ("b0", "b1", "b7")), Fragment(9, ("b2", "b0", "b1")))
    metadata = new_metadata((3, 3, 2), fragments=fragments, state=LedgerState.IN_RECOVERY)
    assert [(s.first, s.last, s.slot) for s in shares(metadata, "b2")] == [(0, 4, 2)], "its last is open"
    closed = attrs.evolve(metadata, state=LedgerState.CLOSED, last_entry=11)
    assert [(s.first, s.last, s.slot) for s in shares(closed, "b2")] == [(0, 4, 2), (9, 11, 0)]
    assert [(s.first, s.last, s.slot) for s in shares(closed, "b7")] == [(5, 8, 2)]
    assert shares(closed, "stranger") == []


def test_an_empty_ledger_has_no_shares() -> None:
    assert shares(new_metadata((3, 3, 2), state=LedgerState.CLOSED, last_entry=-1), "b0") == []


def test_gaps_cover_exactly_what_is_missing_of_the_share() -> None:
    chance = random.Random(3)
    for _ in range(500):
        ensemble = chance.randrange(1, 6)
        replication = Replication(ensemble, quorum := chance.randrange(1, ensemble + 1), quorum)
        first = chance.randrange(10)
        share = Share(first, first + chance.randrange(30), chance.randrange(ensemble), replication)
        stored = {e for e in range(50) if chance.random() < 0.5}
        ranges = [(e, e) for e in sorted(stored)]
        due = set(share.ids(0, 60))
        assert due == {e for e in range(share.first, share.last + 1) if replication.holds(share.slot, e)}
        found: set[int] = set()
        for low, high in gaps(share, ranges):
            assert low in due
            assert high in due
            part = set(share.ids(low, high))
            assert not part & stored
            assert not part & found
            found |= part
        assert found == due - stored


def test_a_striped_share_of_which_nothing_is_there_is_one_gap() -> None:
    assert gaps(Share(0, 99, 2, Replication(5, 2, 2)), []) == [(1, 97)]
