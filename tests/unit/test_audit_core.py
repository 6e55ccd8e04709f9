"""``repair.core.audit``: which bookies are lost, and which entries a check of a fragment's ends looks at."""

from __future__ import annotations

import pytest

from ledgerlog.model.ledger import Fragment, LedgerState
from ledgerlog.model.missing import Share
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.core.audit import Absences, ends, named_bookies, shares_of
from tests.cores import bookies, new_metadata

B0, B1, B2, B3 = bookies(4)


def test_a_bookie_is_lost_when_it_was_absent_for_the_whole_delay() -> None:
    absences = Absences()
    absences.look([B0], 10.0)
    assert absences.lost(14.9, 5.0) == frozenset()
    assert absences.next_lost_at(14.9, 5.0) == 15.0
    assert absences.lost(15.0, 5.0) == {B0}
    assert absences.next_lost_at(15.0, 5.0) is None


def test_one_that_was_back_meanwhile_has_its_whole_delay_again() -> None:
    absences = Absences()
    absences.look([B0, B1], 0.0)
    absences.look([B1], 4.0)
    absences.look([B0, B1], 5.0)
    assert absences.lost(6.0, 5.0) == {B1}
    assert absences.since() == {B0: 5.0, B1: 0.0}


def test_at_the_time_that_was_told_a_bookie_is_lost_however_the_times_are_rounded() -> None:
    absences = Absences()
    since = 4.788664571382029
    absences.look({"b1"}, since)
    at = absences.next_lost_at(since, 0.3)
    assert at is not None
    assert at - since < 0.3
    assert absences.lost(at, 0.3) == {"b1"}
    assert absences.next_lost_at(at, 0.3) is None


def test_the_delay_may_change_at_any_time() -> None:
    absences = Absences()
    absences.look([B0], 0.0)
    assert absences.lost(1.0, 60.0) == frozenset()
    assert absences.lost(1.0, 0.0) == {B0}


@pytest.mark.parametrize(
    ("shape", "slot", "first", "last", "expected"),
    [
        (Replication(3, 3, 2), 0, 0, 9, [0, 9]),
        (Replication(3, 3, 2), 2, 4, 4, [4]),
        (Replication(4, 2, 2), 0, 0, 9, [0, 8]),
        (Replication(4, 2, 2), 2, 0, 9, [1, 9]),
        (Replication(4, 2, 2), 3, 0, 1, []),
    ],
)
def test_the_ends_of_a_share_are_the_first_and_the_last_entry_that_its_slot_holds(
    shape: Replication, slot: int, first: int, last: int, expected: list[int]
) -> None:
    assert ends(Share(first, last, slot, shape)) == expected


def test_shares_go_as_far_as_the_ends_of_fragments_are_known() -> None:
    metadata = new_metadata(
        (3, 3, 2), state=LedgerState.OPEN, fragments=(Fragment(0, (B0, B1, B2)), Fragment(4, (B0, B3, B2)))
    )
    assert named_bookies(metadata) == {B0, B1, B2, B3}
    found = shares_of(metadata)
    assert [(share.first, share.last) for share in found[B0]] == [(0, 3)]
    assert found[B3] == []
