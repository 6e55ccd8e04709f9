"""The one comparison of copies: what a bookie's answer means."""

from __future__ import annotations

import pytest

from ledgerlog.ledger.core.comparison import CopyAnswer, FaultKind, Holdings, absence
from ledgerlog.ledger.core.copies import CopyCheck
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ledger import Fragment, LedgerState
from ledgerlog.model.missing import Share
from ledgerlog.model.quorum import Replication
from tests.cores import bookies, new_metadata

ABSENT, UNKNOWN = Negative.ABSENT, Negative.UNKNOWN
SHARE = Share(0, 9, 0, Replication(3, 3, 2))
STRIPED = Share(0, 9, 1, Replication(4, 2, 2))
"""Its slot holds entries 0, 1, 4, 5, 8 and 9."""

Stretches = list[tuple[int, int, str]]


def said(*answers: CopyAnswer, silent: bool = False) -> Holdings:
    """Return what is known of a bookie that was asked from entry 0 on, gave these answers, and then may be
    silent.
    """
    holdings = Holdings(-1)
    for answer in answers:
        holdings.on_answer(holdings.through + 1, answer)
    if silent:
        holdings.on_silent()
    return holdings


def faults(holdings: Holdings, share: Share = SHARE) -> Stretches:
    return [(low, high, kind.value) for low, high, kind in holdings.faults(share)]


def answer(
    *sound: tuple[int, int],
    through: int = 9,
    negative: Negative = ABSENT,
    unsound: tuple[tuple[int, int], ...] = (),
) -> CopyAnswer:
    return CopyAnswer(through=through, negative=negative, sound=list(sound), unsound=unsound)


def test_what_a_bookie_names_is_no_fault_and_what_it_denies_is_missing() -> None:
    assert faults(said(answer((0, 9)))) == []
    assert faults(said(answer((0, 2), (6, 6)))) == [(3, 5, "missing"), (7, 9, "missing")]
    assert faults(said(answer())) == [(0, 9, "missing")], "an unknown ledger is no other matter"


def test_limbo_changes_only_what_is_not_named() -> None:
    assert faults(said(answer((0, 9), negative=UNKNOWN))) == []
    assert faults(said(answer((0, 6), unsound=((8, 8),), negative=UNKNOWN))) == [
        (7, 7, "limbo"),
        (8, 8, "corrupt"),
        (9, 9, "limbo"),
    ]


def test_who_was_in_limbo_in_one_answer_was_in_limbo_in_all() -> None:
    first, then = answer(through=4, negative=UNKNOWN), answer()
    assert faults(said(first, then)) == [(0, 9, "limbo")]
    assert faults(said(answer(through=4), answer(negative=UNKNOWN))) == [(0, 9, "limbo")]


def test_damage_is_no_absence() -> None:
    assert faults(said(answer((0, 3), unsound=((4, 5),)))) == [(4, 5, "corrupt"), (6, 9, "missing")]
    # The entry rotted between two answers: it is reported once.
    assert faults(said(answer((0, 9), unsound=((4, 4),)))) == [(4, 4, "corrupt")]


def test_silence_changes_only_what_was_not_told() -> None:
    assert faults(said(silent=True)) == [(0, 9, "unreachable")]
    assert faults(said(answer((0, 1), through=3), silent=True)) == [
        (2, 3, "missing"),
        (4, 9, "unreachable"),
    ]
    assert faults(said(answer((0, 9)), silent=True)) == []


@pytest.mark.parametrize("stray", [answer((0, 9), through=-2), answer((0, 10)), answer(unsound=((0, 10),))])
def test_an_answer_about_something_else_is_silence(stray: CopyAnswer) -> None:
    holdings = said(stray)
    assert holdings.is_silent
    assert faults(holdings) == [(0, 9, "unreachable")]


def test_an_answer_that_begins_before_what_was_asked_is_silence() -> None:
    assert faults(said(answer((0, 4), through=4), answer((4, 9)))) == [(5, 9, "unreachable")]


def test_only_absence_and_damage_are_certain() -> None:
    certain = {kind for kind in FaultKind if kind.is_certain}
    assert certain == {FaultKind.MISSING, FaultKind.CORRUPT}
    assert (absence(ABSENT), absence(UNKNOWN)) == (FaultKind.MISSING, FaultKind.LIMBO)
    assert said(answer((0, 9))).is_doubtful is False
    assert said(answer((0, 9), negative=UNKNOWN)).is_doubtful
    assert said(answer((0, 9)), silent=True).is_doubtful


def test_nothing_is_due_that_is_not_the_slots_or_lies_above_the_end() -> None:
    assert faults(said(answer((0, 1), (4, 5), (8, 9))), STRIPED) == []
    assert faults(said(answer((1, 1), (5, 5), (9, 9))), STRIPED) == [
        (0, 0, "missing"),
        (4, 4, "missing"),
        (8, 8, "missing"),
    ]
    assert faults(said(answer((0, 99), through=99))) == []
    assert faults(said(answer((5, 99), through=99))) == [(0, 4, "missing")]


def test_what_is_forgotten_is_not_named_and_the_rest_is() -> None:
    holdings = said(answer((0, 3), (6, 9)))
    assert [holdings.next_named(e) for e in (0, 2, 4, 6, 9, 10)] == [0, 2, 6, 6, 9, None]
    holdings.forget_before(4)
    assert holdings.sound == [(6, 9)]
    holdings.forget_before(7)
    assert holdings.next_named(7) == 7


def test_the_last_fragment_of_an_open_ledger_is_looked_at_only_by_who_says_so() -> None:
    names = bookies(4)
    fragments = (Fragment(0, names[:3]), Fragment(4, names[1:]))

    def asked(tail: int | None, state: LedgerState = LedgerState.OPEN) -> int:
        last_entry = 9 if state is LedgerState.CLOSED else None
        metadata = new_metadata((3, 3, 2), state=state, fragments=fragments, last_entry=last_entry)
        check = CopyCheck(metadata, scrub=False, tail=tail)
        highest = -1
        while not check.is_done:
            for ask in check.take_asks():
                highest = max(highest, ask.last)
                check.on_answer(
                    ask, CopyAnswer(through=ask.last, negative=ABSENT, sound=[(ask.first, ask.last)])
                )
        assert check.take_faults() == []
        return highest

    assert (asked(None), asked(6), asked(3)) == (3, 6, 3)
    assert asked(12, LedgerState.CLOSED) == 9, "nothing is due above the close"
