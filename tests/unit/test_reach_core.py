"""Which bookies a stalled writer can reach: slow ones give signs of life, and others do not."""

from __future__ import annotations

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from ledgerlog.ledger.core.reach import Member, Reach
from ledgerlog.limits import REACH_ASK_S, REACH_LOOK_S, REACH_LOST_S
from ledgerlog.model.quorum import Replication
from ledgerlog.model.reach import OutOfReach

R332 = Replication(3, 3, 2)


@attrs.define
class Stall:
    """A stalled ledger. The bookies in ``alive`` answer what they are asked, at once."""

    replication: Replication = R332
    spares: list[str] = attrs.Factory(list)
    alive: set[str] = attrs.Factory(set)
    sends: set[str] = attrs.Factory(set)
    """Bookies that send a frame before each look."""
    lost: set[str] = attrs.Factory(set)
    """Bookies whose connection is broken."""
    frames: dict[str, int] = attrs.Factory(dict)
    now: float = 100.0
    doubtful: list[str] = attrs.Factory(list)
    asked: list[str] = attrs.Factory(list)
    members: list[str] = attrs.field(init=False)
    core: Reach = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.core = Reach(self.replication)
        self.members = [f"b{slot + 1}" for slot in range(self.replication.ensemble)]

    def look(self, after_s: float = REACH_LOOK_S) -> None:
        self.now += after_s
        for bookie in self.sends:
            self.frames[bookie] = self.frames.get(bookie, 0) + 1
        members = [Member(b, b not in self.lost, self.frames.get(b, 0)) for b in self.members]
        self.core.look(self.now, members, self.spares)
        for bookie in self.core.take_asks():
            self.asked.append(bookie)
            if bookie in self.alive:
                self.core.on_sign(bookie)
        self.doubtful += self.core.take_doubtful()

    def last(self, duration_s: float) -> None:
        """Look until the stall has lasted for so long."""
        if self.now == 100.0:
            self.look()
            duration_s -= REACH_ASK_S
        for _ in range(round(duration_s / REACH_LOOK_S)):
            self.look()


def test_a_bookie_that_gives_no_sign_of_life_for_a_second_is_silent_and_no_sooner() -> None:
    stall = Stall(alive={"b1"}, sends={"b2"})
    stall.last(REACH_LOST_S - REACH_LOOK_S)
    assert stall.core.silent == ()
    stall.look()
    assert stall.core.silent == ("b3",)


def test_a_bookie_that_answers_is_never_silent_however_long_it_acknowledges_nothing() -> None:
    stall = Stall(alive={"b1", "b2", "b3"})
    stall.last(60)
    assert stall.core.silent == ()
    assert stall.core.out_of_reach is None
    assert stall.asked.count("b1") <= 60 / REACH_ASK_S, "it is not asked all the time"


def test_a_bookie_that_sends_anything_is_not_silent_and_not_asked_again() -> None:
    stall = Stall(sends={"b1", "b2", "b3"})
    stall.last(60)
    assert stall.core.silent == ()
    assert stall.asked == ["b1", "b2", "b3"], "only at the beginning, when nobody knew"


def test_replacements_are_asked_only_if_the_members_are_too_few() -> None:
    stall = Stall(alive={"b1", "b2"}, spares=["b4"])
    stall.last(5)
    assert "b4" not in stall.asked
    stall = Stall(alive={"b1"}, spares=["b4"])
    stall.last(REACH_ASK_S + REACH_LOOK_S)
    assert "b4" in stall.asked


def test_a_replacement_that_does_not_answer_is_doubtful() -> None:
    stall = Stall(spares=["b4", "b5"], alive={"b5"})
    stall.last(2 * REACH_LOST_S)
    assert "b4" in stall.doubtful
    assert "b5" not in stall.doubtful


@pytest.mark.parametrize(
    ("alive", "spares", "expected"),
    [
        ({"b1", "b2"}, [], None),
        ({"b1"}, [], OutOfReach(("b2", "b3"), 1)),
        ({"b1", "b4"}, ["b4"], None),
        ({"b1"}, ["b4"], OutOfReach(("b2", "b3", "b4"), 1)),
        ({"b4", "b5"}, ["b4", "b5"], None),
        (set(), ["b4"], OutOfReach(("b1", "b2", "b3", "b4"), 2)),
    ],
)
def test_out_of_reach_is_who_lacks_an_ack_quorum_of_members_and_replacements(
    alive: set[str], spares: list[str], expected: OutOfReach | None
) -> None:
    stall = Stall(alive=alive, spares=spares)
    stall.last(REACH_LOST_S - REACH_LOOK_S)
    assert stall.core.out_of_reach is None, "not for a whole second yet"
    stall.look()
    assert stall.core.out_of_reach == expected
    stall.last(5)
    assert stall.core.out_of_reach == expected


def test_an_ack_quorum_counts_in_each_write_set() -> None:
    stall = Stall(Replication(4, 2, 2), alive={"b1", "b2", "b3"})
    stall.last(REACH_LOST_S)
    assert stall.core.out_of_reach == OutOfReach(("b4",), 1)


def test_bookies_that_can_be_reached_again_end_it() -> None:
    stall = Stall(lost={"b1", "b2", "b3"})
    stall.last(REACH_LOST_S)
    assert stall.core.silent == (), "there is no connection to break off"
    assert stall.core.out_of_reach is not None
    stall.alive = {"b2", "b3"}
    stall.last(REACH_ASK_S + REACH_LOOK_S)
    assert stall.core.out_of_reach is None


def test_a_replacement_that_registers_late_is_asked_before_the_verdict() -> None:
    stall = Stall()
    stall.last(REACH_LOST_S - REACH_LOOK_S)
    stall.spares = ["b4", "b5"]
    stall.look()
    assert stall.core.out_of_reach is None
    stall.last(REACH_ASK_S)
    assert stall.core.out_of_reach == OutOfReach(("b1", "b2", "b3", "b4", "b5"), 2)


def test_a_member_that_joins_during_the_stall_has_its_own_second() -> None:
    stall = Stall(alive={"b1", "b2"})
    stall.last(30)
    stall.members[2] = "b7"
    stall.look()
    assert "b7" in stall.asked
    stall.last(REACH_LOST_S - REACH_LOOK_S)
    assert stall.core.silent == ()
    stall.look()
    assert stall.core.silent == ("b7",)


def test_a_replacement_that_does_not_answer_makes_nothing_better_by_becoming_a_member() -> None:
    stall = Stall(alive={"b1"}, spares=["b4"])
    stall.last(REACH_LOST_S)
    before = stall.core.out_of_reach
    assert before == OutOfReach(("b2", "b3", "b4"), 1)
    stall.members[1], stall.spares = "b4", ["b2"]
    for _ in range(30):
        stall.look()
        assert stall.core.out_of_reach == before


def test_the_time_of_a_suspended_process_does_not_count() -> None:
    stall = Stall()
    stall.look()
    stall.look(after_s=3600.0)
    assert stall.core.silent == ()
    stall.sends = {"b1", "b2", "b3"}  # What waited in the sockets is read now.
    stall.last(5)
    assert stall.core.silent == ()


def test_progress_forgets_everything() -> None:
    stall = Stall()
    stall.last(5)
    assert stall.core.out_of_reach is not None
    assert stall.core.silent
    stall.core.on_progress()
    assert stall.core.out_of_reach is None
    assert stall.core.silent == ()
    stall.look()
    assert stall.core.silent == ()
    assert stall.core.out_of_reach is None


@given(st.data())
def test_nobody_who_gives_signs_often_enough_is_ever_lost(data: st.DataObject) -> None:
    ensemble = data.draw(st.integers(1, 5))
    write_quorum = data.draw(st.integers(1, ensemble))
    replication = Replication(ensemble, write_quorum, data.draw(st.integers(1, write_quorum)))
    stall = Stall(replication, spares=[f"s{n}" for n in range(data.draw(st.integers(0, 3)))])
    everybody = [*stall.members, *stall.spares]
    stall.alive = set(data.draw(st.lists(st.sampled_from(everybody))))
    for _ in range(data.draw(st.integers(1, 40))):
        stall.sends = set(data.draw(st.lists(st.sampled_from(stall.members))))
        stall.look(data.draw(st.floats(0, 2)))
        assert not stall.alive & {*stall.core.silent}
        found = stall.core.out_of_reach
        if found is not None:
            assert not stall.alive & {*found.bookies}
            assert 1 <= found.needed <= len(found.bookies)
            alive = [member in stall.alive for member in stall.members]
            spares = len(stall.alive & {*stall.spares})
            sets = (replication.write_set(first) for first in range(ensemble))
            assert any(sum(alive[slot] for slot in slots) + spares < replication.ack_quorum for slots in sets)
