"""The chain of ledgers: every rule of takeover and rolling, and the schedules that break a wrong build.

The world below is the minimum that the machines act on: one record under compare-and-set, and ledgers that
are open or closed and hold offsets. Schedules C01 to C05 run on it step by step.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import attrs
import pytest

from ledgerlog.errors import EntryCorrupt, LogNotFound, LogSealed, LostLeadership
from ledgerlog.log.core.chain import (
    ChainNeed,
    Counting,
    LeaderChain,
    LedgerSpan,
    Takeover,
    TakeoverAim,
    TakeoverNeed,
    count_segment,
)
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import NOTHING, SegmentCounts

_tokens = itertools.count()


def new_token() -> bytes:
    return str(next(_tokens)).encode()


@attrs.define
class Ledger:
    first: int = 0
    end: int = 0
    closed: bool = False


class World:
    """The store and the ledgers. A closed ledger holds offsets ``first`` to ``end`` - 1."""

    def __init__(self) -> None:
        self.record: LogMetadata | None = LogMetadata.create(
            name="log", incarnation=1, created_ms=0, token=b"made", replication=Replication(1, 1, 1)
        )
        self.version = 0
        self.ledgers: dict[int, Ledger] = {}
        self.writes: list[list[int]] = []

    def create(self) -> int:
        ledger_id = len(self.ledgers)
        self.ledgers[ledger_id] = Ledger()
        return ledger_id

    def append(self, ledger_id: int, first: int, end: int) -> None:
        """Store offsets ``first`` to ``end`` - 1 in an open ledger."""
        ledger = self.ledgers[ledger_id]
        assert not ledger.closed, f"ledger {ledger_id} is closed"
        if ledger.first == ledger.end:
            ledger.first = first
        ledger.end = end

    def contents(self, ledger_id: int) -> LedgerSpan | None:
        ledger = self.ledgers[ledger_id]
        assert ledger.closed
        if ledger.first == ledger.end:
            return None
        return LedgerSpan(
            first_offset=ledger.first,
            end_offset=ledger.end,
            bytes_before=10 * ledger.first,
            bytes_after=10 * ledger.end,
            first_ms=1,
            last_ms=2,
        )

    def write(self, record: LogMetadata, version: int) -> int | None:
        """Write by compare-and-set. Return the new version, or None. Check ListCas and OnlyLastTwoOpen."""
        assert self.record is not None
        if version != self.version:
            return None
        before = [s.ledger_id for s in self.record.segments]
        after = [s.ledger_id for s in record.segments]
        assert after[: len(before)] == before
        assert len(after) - len(before) <= 1
        assert len(set(after)) == len(after)
        for ledger_id in after[:-2]:
            assert self.ledgers[ledger_id].closed, "OnlyLastTwoOpen"
        self.record, self.version = record, self.version + 1
        self.writes.append(after)
        return self.version

    @property
    def listed(self) -> list[int]:
        assert self.record is not None
        return [s.ledger_id for s in self.record.segments]


def step(world: World, takeover: Takeover) -> None:
    """Carry out the one step that a takeover needs now."""
    match takeover.need:
        case TakeoverNeed.READ | TakeoverNeed.SETTLE:
            takeover.on_record(world.record, world.version)
        case TakeoverNeed.RECOVER:
            ledger_id = takeover.recovering
            world.ledgers[ledger_id].closed = True
            takeover.on_recovered(world.contents(ledger_id))
        case TakeoverNeed.CREATE:
            takeover.on_created(world.create())
        case TakeoverNeed.WRITE:
            assert takeover.record is not None
            version = world.write(takeover.record, takeover.version)
            if version is None:
                takeover.on_unsettled()
            else:
                takeover.on_written(version)
        case _:
            raise AssertionError(takeover.need)


def run_until(world: World, takeover: Takeover, *needs: TakeoverNeed) -> Takeover:
    for _ in range(50):
        if takeover.need in needs:
            return takeover
        step(world, takeover)
    raise AssertionError(f"never needs {needs}")


def lead(world: World) -> LeaderChain:
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.DONE)
    assert takeover.record is not None
    assert takeover.ledger_id is not None
    return LeaderChain(takeover.record, takeover.version, takeover.ledger_id, new_token=new_token)


def give_spare(world: World, leader: LeaderChain) -> None:
    assert leader.need is ChainNeed.SPARE
    leader.on_spare(world.create())


def write(world: World, leader: LeaderChain) -> None:
    """Carry out the write that a leader needs."""
    assert leader.need is ChainNeed.WRITE
    version = world.write(leader.record, leader.version)
    if version is None:
        leader.on_unsettled()
        leader.on_record(world.record, world.version)
    else:
        leader.on_written(version)


def roll(world: World, leader: LeaderChain) -> None:
    """Begin a roll: new appends go to a new ledger, and the old ledger is still open."""
    leader.want_roll()
    give_spare(world, leader)
    write(world, leader)


def end_roll(world: World, leader: LeaderChain, counts: SegmentCounts) -> None:
    assert leader.draining is not None
    leader.on_drained(leader.draining)
    assert leader.need is ChainNeed.CLOSE
    world.ledgers[leader.draining].closed = True
    leader.on_closed(counts)
    write(world, leader)


# --- taking over ----------------------------------------------------------------------------------


def test_the_first_leader_of_a_log_makes_its_first_ledger() -> None:
    world = World()
    leader = lead(world)
    assert (leader.epoch, leader.current, world.listed) == (1, 0, [0])


def test_nothing_is_served_before_the_list_is_written() -> None:
    """C04: only after the write does the caller know the ledger and may begin to append."""
    world = World()
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    assert world.listed == []
    step(world, takeover)
    assert takeover.need is TakeoverNeed.DONE
    assert world.listed == [takeover.ledger_id]


def test_a_takeover_recovers_what_is_open_before_it_makes_a_ledger() -> None:
    world = World()
    lead(world)
    world.append(0, 0, 5)
    takeover = Takeover("log", new_token=new_token)
    seen = []
    while takeover.need is not TakeoverNeed.DONE:
        seen.append(takeover.need)
        step(world, takeover)
    assert seen == [TakeoverNeed.READ, TakeoverNeed.RECOVER, TakeoverNeed.CREATE, TakeoverNeed.WRITE]
    assert takeover.record is not None
    assert takeover.record.counted_end == 5
    assert takeover.record.epoch == 2


def test_what_is_counted_is_closed_and_not_recovered_again() -> None:
    world = World()
    leader = lead(world)
    leader.finish()
    leader.on_drained(0)
    world.ledgers[0].closed = True
    leader.on_closed(NOTHING)
    write(world, leader)
    assert leader.is_finished
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.CREATE)
    assert takeover.failure is None


def test_c01_a_takeover_during_a_roll_recovers_both_ledgers() -> None:
    world = World()
    a = lead(world)
    world.append(0, 0, 1)
    roll(world, a)
    takeover = Takeover("log", new_token=new_token)
    step(world, takeover)
    recovered = []
    while takeover.need is TakeoverNeed.RECOVER:
        recovered.append(takeover.recovering)
        step(world, takeover)
    assert recovered == [0, 1]
    with pytest.raises(AssertionError, match="is closed"):
        world.append(0, 1, 2)
    run_until(world, takeover, TakeoverNeed.DONE)
    assert world.listed == [0, 1, 2]


def test_c02_a_lost_compare_and_set_starts_over_with_recovery() -> None:
    world = World()
    lead(world)
    world.append(0, 0, 1)
    b = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    loser = b.ledger_id
    a = lead(world)
    world.append(a.current, 1, 2)
    step(world, b)
    assert b.need is TakeoverNeed.SETTLE
    step(world, b)
    assert b.need is TakeoverNeed.RECOVER, "the ledger that the rival made is fenced first"
    assert b.recovering == a.current
    assert b.take_garbage() == [loser], "it surely is in no list"
    run_until(world, b, TakeoverNeed.DONE)
    assert world.listed == [0, a.current, b.ledger_id]
    assert b.record is not None
    assert (b.record.epoch, b.record.counted_end) == (3, 2)


def test_two_who_take_over_in_turns_both_come_to_lead_one_after_the_other() -> None:
    world = World()
    rivals = [Takeover("log", new_token=new_token) for _ in range(2)]
    for _ in range(100):
        for rival in rivals:
            if rival.need is not TakeoverNeed.DONE:
                step(world, rival)
    assert [rival.need for rival in rivals] == [TakeoverNeed.DONE, TakeoverNeed.DONE]
    epochs = [rival.record.epoch for rival in rivals if rival.record is not None]
    assert sorted(epochs) == [1, 2]


def test_a_takeover_whose_answer_was_lost_knows_its_own_write() -> None:
    world = World()
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    assert takeover.record is not None
    version = world.write(takeover.record, takeover.version)
    takeover.on_unsettled()
    takeover.on_record(world.record, world.version)
    assert takeover.need is TakeoverNeed.DONE
    assert takeover.version == version
    assert takeover.take_garbage() == []


def test_a_takeover_whose_write_did_not_happen_yet_writes_the_same_again() -> None:
    world = World()
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    record, version = takeover.record, takeover.version
    assert record is not None
    takeover.on_unsettled()
    takeover.on_record(world.record, world.version)
    assert takeover.need is TakeoverNeed.WRITE
    assert (takeover.record, takeover.version) == (record, version)
    # The first request arrives late. The second request conflicts with it, and finds that it is its own
    # write.
    world.write(record, version)
    step(world, takeover)
    step(world, takeover)
    assert takeover.need is TakeoverNeed.DONE


def test_a_leader_deposed_before_he_learned_that_he_led_keeps_his_ledger_in_the_list() -> None:
    world = World()
    a = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    assert a.record is not None
    world.write(a.record, a.version)
    a.on_unsettled()
    lead(world)
    a.on_record(world.record, world.version)
    assert a.take_garbage() == [], "it is in the list"
    run_until(world, a, TakeoverNeed.DONE)
    assert world.listed == [0, 1, 2]


def test_a_takeover_given_up_leaves_no_ledger_unless_it_may_be_listed() -> None:
    world = World()
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    takeover.on_unsettled()
    takeover.abandon()
    assert takeover.take_garbage() == []
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.CREATE)
    takeover.on_created(7)
    takeover.need = TakeoverNeed.RECOVER
    takeover.abandon()
    assert takeover.take_garbage() == [7]


def test_a_takeover_whose_write_surely_did_nothing_leaves_no_ledger() -> None:
    world = World()
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    made = takeover.ledger_id
    takeover.on_not_written()
    takeover.abandon()
    assert takeover.take_garbage() == [made]
    # If the answer to an earlier write was lost, that write may still take effect.
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.WRITE)
    takeover.on_unsettled()
    takeover.on_record(world.record, world.version)
    assert takeover.need is TakeoverNeed.WRITE
    takeover.on_not_written()
    takeover.abandon()
    assert takeover.take_garbage() == []


def test_a_log_that_is_gone_or_sealed_is_not_led() -> None:
    world = World()
    sealer = run_until(world, Takeover("log", new_token=new_token, aim=TakeoverAim.SEAL), TakeoverNeed.DONE)
    assert sealer.ledger_id is None
    assert world.record is not None
    assert world.record.sealed
    assert world.record.epoch == 1
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.FAILED)
    assert isinstance(takeover.failure, LogSealed)
    world.record = None
    takeover = run_until(world, Takeover("log", new_token=new_token), TakeoverNeed.FAILED)
    assert isinstance(takeover.failure, LogNotFound)


def test_sealing_brings_the_open_ledgers_to_an_end_first() -> None:
    world = World()
    leader = lead(world)
    world.append(0, 0, 3)
    run_until(world, Takeover("log", new_token=new_token, aim=TakeoverAim.SEAL), TakeoverNeed.DONE)
    assert world.ledgers[0].closed
    assert world.record is not None
    assert world.record.counted_end == 3
    leader.on_record(world.record, world.version)
    assert isinstance(leader.failure, LogSealed)


# --- rolling --------------------------------------------------------------------------------------


def test_a_roll_moves_the_appends_and_then_closes_and_counts_the_old_ledger() -> None:
    world = World()
    leader = lead(world)
    leader.want_spare()
    give_spare(world, leader)
    assert leader.need is ChainNeed.NOTHING
    leader.want_roll()
    assert leader.current == 0, "appends go on in the old ledger until the list is written"
    write(world, leader)
    assert (leader.current, leader.draining, world.listed) == (1, 0, [0, 1])
    assert leader.need is ChainNeed.NOTHING, "nothing is closed before it is drained"
    end_roll(world, leader, SegmentCounts(5, 50, 1, 2))
    assert leader.draining is None
    assert leader.metadata.segments[1].first_offset == 5
    assert leader.metadata.epoch == 1


def test_c03_no_second_roll_while_the_ledger_before_the_current_one_is_open() -> None:
    world = World()
    leader = lead(world)
    roll(world, leader)
    leader.want_roll()
    give_spare(world, leader)
    assert leader.need is ChainNeed.NOTHING
    leader.on_drained(0)
    assert leader.need is ChainNeed.CLOSE
    world.ledgers[0].closed = True
    leader.on_closed(NOTHING)
    assert leader.record.segments[0].record_count == 0
    assert len(leader.record.segments) == 2, "counting comes before the next roll"
    write(world, leader)
    assert leader.need is ChainNeed.WRITE
    write(world, leader)
    assert world.listed == [0, 1, 2]


def test_a_roll_that_meets_a_takeover_ends_the_leadership_with_the_new_epoch() -> None:
    world = World()
    leader = lead(world)
    leader.want_roll()
    give_spare(world, leader)
    lead(world)
    write(world, leader)
    assert isinstance(leader.failure, LostLeadership)
    assert leader.failure.epoch == 2
    assert leader.need is ChainNeed.NOTHING
    assert leader.take_spare() == 1, "surely in no list"


def test_a_roll_that_meets_a_truncation_is_formed_anew_on_what_is_there() -> None:
    world = World()
    leader = lead(world)
    roll(world, leader)
    end_roll(world, leader, SegmentCounts(5, 50, 1, 2))
    leader.want_roll()
    give_spare(world, leader)
    assert world.record is not None
    _ = leader.record
    world.record, _ = world.record.truncated(5, 5, b"somebody else")
    world.version += 1
    write_conflict = world.write(leader.record, leader.version)
    assert write_conflict is None
    leader.on_unsettled()
    leader.on_record(world.record, world.version)
    assert leader.failure is None
    write(world, leader)
    assert world.listed == [1, 2]
    assert leader.current == 2
    assert world.record.first_offset == 5


@pytest.mark.parametrize("then_truncated", [False, True])
def test_a_roll_whose_answer_was_lost_is_settled_by_reading(then_truncated: bool) -> None:
    world = World()
    leader = lead(world)
    leader.want_roll()
    give_spare(world, leader)
    world.write(leader.record, leader.version)
    leader.on_unsettled()
    assert leader.need is ChainNeed.SETTLE
    assert leader.current == 0, "not before it is known"
    if then_truncated:
        assert world.record is not None
        world.record = world.record.with_properties({"by": "another"}, b"somebody else")
        world.version += 1
    leader.on_record(world.record, world.version)
    assert (leader.current, leader.draining, leader.failure) == (1, 0, None)
    assert leader.metadata == world.record
    assert leader.version == world.version


def test_a_roll_that_did_not_happen_yet_is_written_again_as_it_was() -> None:
    world = World()
    leader = lead(world)
    leader.want_roll()
    give_spare(world, leader)
    record = leader.record
    leader.on_unsettled()
    leader.on_record(world.record, world.version)
    assert leader.need is ChainNeed.WRITE
    assert leader.record is record


def test_a_write_that_may_arrive_yet_stays_the_same_if_the_next_attempt_fails() -> None:
    world = World()
    leader = lead(world)
    leader.want_roll()
    give_spare(world, leader)
    tried = leader.record
    leader.on_unsettled()
    leader.on_record(world.record, world.version)
    assert leader.record == tried
    leader.on_not_written()
    assert leader.record == tried
    leader.finish()
    assert leader.need is ChainNeed.WRITE, "it may be written, so it has to be settled"
    assert leader.take_spare() is None


def test_a_spare_that_an_unsettled_write_may_have_listed_is_not_deleted() -> None:
    world = World()
    leader = lead(world)
    leader.want_roll()
    give_spare(world, leader)
    _ = leader.record
    leader.on_unsettled()
    leader.on_lost(LostLeadership("log"))
    assert leader.take_spare() is None


def test_a_deposed_leader_does_not_give_back_a_spare_that_his_successor_found_in_the_list() -> None:
    """Found by the model checker: the answer to the roll is lost, and a successor takes over after it. The
    leader then believed that the ledger that its roll had listed was unused.
    """
    world = World()
    a = lead(world)
    a.want_roll()
    give_spare(world, a)
    world.write(a.record, a.version)
    a.on_unsettled()
    b = lead(world)
    assert [s.ledger_id for s in b.metadata.segments] == [0, 1, 2]
    a.on_record(world.record, world.version)
    assert isinstance(a.failure, LostLeadership)
    assert a.take_spare() is None


def test_a_leader_that_leaves_ends_its_roll_closes_its_ledger_and_gives_back_the_spare() -> None:
    world = World()
    leader = lead(world)
    roll(world, leader)
    leader.want_spare()
    give_spare(world, leader)
    leader.finish()
    assert leader.closing == 0
    end_roll(world, leader, SegmentCounts(5, 50, 1, 2))
    assert leader.closing == 1
    leader.on_drained(1)
    world.ledgers[1].closed = True
    leader.on_closed(NOTHING)
    write(world, leader)
    assert leader.is_finished
    assert leader.metadata.open_segments == ()
    assert leader.take_spare() == 2


def test_a_roll_wanted_but_not_written_is_dropped_by_leaving() -> None:
    world = World()
    leader = lead(world)
    leader.want_roll()
    give_spare(world, leader)
    leader.finish()
    assert leader.need is ChainNeed.NOTHING
    assert leader.take_spare() == 1


def test_a_roll_wanted_while_the_one_before_it_is_counted_is_dropped_by_leaving_too() -> None:
    world = World()
    leader = lead(world)
    roll(world, leader)
    leader.want_roll()
    give_spare(world, leader)
    leader.on_drained(0)
    world.ledgers[0].closed = True
    leader.on_closed(SegmentCounts(5, 50, 1, 2))
    assert leader.record.segments[0].is_counted, "it is being written"
    leader.finish()
    write(world, leader)
    assert leader.need is ChainNeed.NOTHING
    leader.on_drained(1)
    world.ledgers[1].closed = True
    leader.on_closed(NOTHING)
    write(world, leader)
    assert leader.is_finished
    assert leader.take_spare() == 2


def test_what_comes_after_the_end_changes_nothing() -> None:
    world = World()
    leader = lead(world)
    first = LostLeadership("log", 9)
    leader.on_lost(first)
    leader.on_lost(LostLeadership("log", 10))
    leader.on_record(None, -1)
    leader.on_closed(NOTHING)
    assert leader.failure is first
    assert leader.need is ChainNeed.NOTHING


def test_a_deleted_log_ends_its_leadership() -> None:
    leader = lead(World())
    leader.on_record(None, -1)
    assert isinstance(leader.failure, LostLeadership)


# --- counting -------------------------------------------------------------------------------------


def contents(first: int, end: int) -> LedgerSpan:
    return LedgerSpan(
        first_offset=first,
        end_offset=end,
        bytes_before=10 * first,
        bytes_after=10 * end,
        first_ms=1,
        last_ms=2,
    )


def test_a_ledger_counts_what_it_holds() -> None:
    assert count_segment(1, 5, contents(5, 8), follows_open=False) == SegmentCounts(3, 30, 1, 2)
    assert count_segment(1, 5, None, follows_open=False) == NOTHING
    assert count_segment(1, 5, contents(5, 5), follows_open=False) == NOTHING, "a checkpoint and no record"


def test_a_ledger_that_does_not_continue_an_open_one_before_it_counts_as_empty() -> None:
    assert count_segment(1, 5, contents(6, 8), follows_open=True) == NOTHING


@pytest.mark.parametrize(
    ("found", "follows_open"), [((6, 8), False), ((4, 8), False), ((4, 8), True), ((5, 4), True)]
)
def test_a_ledger_that_cannot_belong_there_is_corrupt(found: tuple[int, int], follows_open: bool) -> None:
    with pytest.raises(EntryCorrupt):
        count_segment(1, 5, contents(*found), follows_open=follows_open)


def test_a_ledger_whose_bytes_count_backwards_is_corrupt() -> None:
    with pytest.raises(EntryCorrupt, match="49 after"):
        count_segment(1, 5, attrs.evolve(contents(5, 8), bytes_after=49), follows_open=False)


def test_records_of_a_newer_ledger_whose_older_one_lost_some_are_not_in_the_log() -> None:
    """The leader dies while it drains: nobody kept offset 2 of ledger 0, but ledger 1 kept offset 3."""
    world = World()
    a = lead(world)
    world.append(0, 0, 2)
    roll(world, a)
    world.append(1, 3, 4)
    b = lead(world)
    assert [(s.first_offset, s.record_count) for s in b.metadata.segments] == [(0, 2), (2, 0), (2, None)]


def test_records_of_a_newer_ledger_that_continues_the_older_one_are_in_the_log() -> None:
    world = World()
    a = lead(world)
    world.append(0, 0, 2)
    roll(world, a)
    world.append(1, 2, 4)
    b = lead(world)
    assert [s.record_count for s in b.metadata.segments] == [2, 2, None]


def test_records_that_continue_a_ledger_that_was_ended_short_are_behind_no_loss() -> None:
    world = World()
    a = lead(world)
    roll(world, a)
    counting = Counting(a.metadata)
    counting.on_recovered(contents(0, 2), is_short=True)
    counting.on_recovered(contents(2, 4))
    assert [counts.record_count for counts in counting.counts] == [2, 2]


def test_every_interleaving_of_two_takeovers_and_a_roll_keeps_the_rules() -> None:
    """Run many orders of the steps of a rolling leader and of two processes that take over from it.

    ``World.write`` checks ListCas and OnlyLastTwoOpen at each write. At the end one process leads, and all
    ledgers before its own are closed.
    """
    actors = "aaaaa" + "bbbbbbbbb" + "ccccccccc"
    orders = set(itertools.islice(_interleavings(actors), 4_000))
    for order in orders:
        world = World()
        a = lead(world)
        a.want_roll()
        b, c = (Takeover("log", new_token=new_token) for _ in range(2))

        def a_step(a: LeaderChain = a, world: World = world) -> None:
            match a.need:
                case ChainNeed.SPARE:
                    give_spare(world, a)
                case ChainNeed.WRITE:
                    write(world, a)
                case ChainNeed.NOTHING if a.draining is not None and not world.ledgers[a.draining].closed:
                    a.on_drained(a.draining)
                case ChainNeed.CLOSE if a.closing is not None:
                    if world.ledgers[a.closing].closed:
                        a.on_lost(LostLeadership("log"))
                    else:
                        world.ledgers[a.closing].closed = True
                        a.on_closed(NOTHING)
                case _:
                    pass

        def takeover_step(takeover: Takeover, world: World = world) -> None:
            if takeover.need is not TakeoverNeed.DONE:
                step(world, takeover)

        steps: dict[str, Callable[[], None]] = {
            "a": a_step,
            "b": lambda b=b: takeover_step(b),
            "c": lambda c=c: takeover_step(c),
        }
        for actor in order:
            steps[actor]()
        run_until(world, b, TakeoverNeed.DONE)
        run_until(world, c, TakeoverNeed.DONE)
        assert world.record is not None
        assert world.record.epoch == 3
        assert all(world.ledgers[ledger_id].closed for ledger_id in world.listed[:-1])
        unlisted = set(world.ledgers) - set(world.listed)
        spare = a.take_spare() if a.failure is not None else a.spare
        assert unlisted == {*b.take_garbage(), *c.take_garbage(), *([] if spare is None else [spare])}


def _interleavings(actors: str) -> itertools.chain[str]:
    """Yield seeded shuffles of the actors' steps."""
    dice = random.Random(7)
    pool = list(actors)

    def shuffled() -> str:
        dice.shuffle(pool)
        return "".join(pool)

    return itertools.chain(["".join(sorted(actors))], (shuffled() for _ in itertools.count()))
