"""The table of producers: which records are new, known or neither, and when a producer is forgotten."""

from __future__ import annotations

import math
import random

import pytest

from ledgerlog.errors import InvalidArgument, OutOfSequence, TooManyProducers
from ledgerlog.limits import LOG_PRODUCER_RUNS_MAX, LOG_PRODUCERS_MAX
from ledgerlog.log.core.append_queue import AppendQueue, Batch
from ledgerlog.log.core.producers import Producers
from ledgerlog.model.policies import AGE_MAX_S
from ledgerlog.model.producer import Dedupe, NumberedRecords, ProducerState, SequenceRange, check_producer_id
from ledgerlog.wire.producers import decode_table, encode_table

DAY_MS = 86_400_000


class Leader:
    """A queue and a table, used like a leader uses them."""

    def __init__(self, policy: Dedupe | None = None) -> None:
        self.queue = AppendQueue("log", epoch=1, next_offset=0)
        self.table = Producers("log", policy or Dedupe())
        self.now_ms = 0
        self.entries: list[tuple[list[NumberedRecords], int, int]] = []

    def take(self, producer: str, sequence: int, count: int = 1) -> tuple[Batch, int]:
        known = self.table.admit(producer, sequence, count, self.now_ms)
        assert not known
        batch = self.queue.add_group([b"x"] * count, count)
        slot = len(batch.records) - count
        self.table.on_taken(producer, sequence, batch, slot, count, self.now_ms)
        return batch, slot

    def send(self) -> int:
        batch = self.queue.first_to_send(full_only=False)
        assert batch is not None
        numbered = batch.live_numbered()
        self.table.on_sent(numbered, batch.first_offset, self.now_ms)
        self.entries.append((numbered, batch.first_offset, self.now_ms))
        self.queue.on_sent(batch, 0, len(self.entries) - 1)
        return len(self.entries) - 1

    def confirm(self) -> None:
        self.queue.on_confirmed(0, len(self.entries) - 1)

    def append(self, producer: str, sequence: int, count: int = 1) -> None:
        self.take(producer, sequence, count)
        self.send()
        self.confirm()


def test_a_repeat_is_found_while_it_gathers_while_it_is_under_way_and_for_good() -> None:
    leader = Leader()
    place = leader.take("p", 5)
    assert leader.table.admit("p", 5, 1, 0) == [place]
    leader.send()
    assert leader.table.admit("p", 5, 1, 0) == [place]
    leader.confirm()
    assert leader.table.admit("p", 5, 1, 0) == [0]


def test_of_a_repeated_group_the_known_part_is_told_and_the_rest_may_follow() -> None:
    leader = Leader()
    leader.append("other", 0)
    leader.append("p", 10, 3)
    assert leader.table.admit("p", 11, 5, 0) == [2, 3]
    leader.append("p", 13, 3)
    assert leader.table.admit("p", 10, 6, 0) == [1, 2, 3, 4, 5, 6]


def test_the_first_sequence_may_be_any_and_each_other_one_follows() -> None:
    leader = Leader()
    leader.append("p", 7)
    with pytest.raises(OutOfSequence, match="records before it are missing") as caught:
        leader.take("p", 9)
    assert (caught.value.sequence, caught.value.last, caught.value.producer) == (9, 7, "p")
    with pytest.raises(OutOfSequence, match="was skipped"):
        leader.take("p", 6)
    leader.append("p", 8)


def test_with_gaps_a_sequence_need_only_grow_and_what_was_left_out_cannot_come_later() -> None:
    leader = Leader(Dedupe(gaps=True))
    leader.append("p", 7)
    leader.append("p", 90)
    assert leader.table.admit("p", 7, 1, 0) == [0]
    with pytest.raises(OutOfSequence, match="was skipped"):
        leader.take("p", 8)


def test_a_repeat_whose_offset_is_forgotten_is_refused_and_never_written_again() -> None:
    leader = Leader()
    for sequence in range(2 * LOG_PRODUCER_RUNS_MAX):
        leader.append("p", sequence)
        leader.append("q", sequence)
    oldest = LOG_PRODUCER_RUNS_MAX
    assert leader.table.admit("p", oldest, 1, 0) == [2 * oldest]
    with pytest.raises(OutOfSequence, match="no longer remembered"):
        leader.take("p", oldest - 1)


def test_one_who_has_the_log_for_himself_is_remembered_for_ever_in_one_run() -> None:
    leader = Leader()
    for sequence in range(1000):
        leader.append("p", sequence)
    assert leader.table.checkpoint(0) == [ProducerState("p", 0, (SequenceRange(0, 1000, 0),))]
    assert leader.table.admit("p", 3, 1, 0) == [3]


def test_nobody_is_forgotten_early_and_whoever_finds_no_place_is_refused() -> None:
    leader = Leader(Dedupe(max_producers=2, keep_s=60))
    leader.append("a", 0)
    leader.now_ms = 30_000
    leader.append("b", 0)
    leader.now_ms = 60_000
    with pytest.raises(TooManyProducers):
        leader.take("c", 0)
    leader.now_ms = 60_001
    leader.append("c", 0)
    assert [state.producer_id for state in leader.table.checkpoint(leader.now_ms)] == ["b", "c"]
    leader.append("b", 1)
    leader.now_ms = 120_002
    leader.append("d", 0)
    assert [state.producer_id for state in leader.table.checkpoint(leader.now_ms)] == ["d"]


def test_a_record_that_moved_up_when_another_was_taken_back_is_found_where_it_is() -> None:
    leader = Leader()
    plain = leader.queue.add(b"plain", 5)
    leader.take("p", 0, 2)
    assert leader.queue.take_back(plain, 0, 1)
    leader.send()
    leader.confirm()
    assert leader.table.admit("p", 0, 2, 0) == [0, 1]
    assert leader.entries == [([NumberedRecords("p", 0, 2, 0)], 0, 0)]


def test_one_with_a_record_under_way_is_not_forgotten() -> None:
    leader = Leader(Dedupe(max_producers=1, keep_s=60))
    leader.take("a", 0)
    leader.now_ms = DAY_MS
    with pytest.raises(TooManyProducers):
        leader.take("b", 0)
    assert leader.table.checkpoint(leader.now_ms) == [], "nothing of it was sent"
    leader.send()
    leader.confirm()
    leader.now_ms = 3 * DAY_MS
    leader.append("b", 0)


def test_a_checkpoint_and_what_follows_it_give_the_same_table() -> None:
    dice = random.Random(7)
    leader = Leader(Dedupe(gaps=True))
    next_sequence = dict.fromkeys("abcdefg", 0)
    saved: list[tuple[list[ProducerState], int]] = []
    for step in range(400):
        leader.now_ms += dice.randrange(100)
        for _ in range(dice.randrange(1, 6)):
            producer = dice.choice("abcdefg")
            count = dice.randrange(1, 4)
            if dice.random() < 0.3:
                plain = leader.queue.add(b"plain", 5)
                if dice.random() < 0.5:
                    leader.queue.take_back(plain, len(plain.records) - 1, len(plain.records))
            leader.take(producer, next_sequence[producer], count)
            next_sequence[producer] += count + dice.choice([0, 0, 3])
        if step % 50 == 0:
            saved.append((leader.table.checkpoint(leader.now_ms), len(leader.entries)))
        leader.send()
        if dice.random() < 0.3:
            leader.confirm()
    leader.confirm()
    for states, at in saved:
        table = Producers("log", Dedupe(gaps=True))
        table.load(states)
        for numbered, first_offset, now_ms in leader.entries[at:]:
            table.replay(numbered, first_offset, now_ms)
        assert table.checkpoint(leader.now_ms) == leader.table.checkpoint(leader.now_ms)


def test_a_table_that_is_replayed_forgets_whom_the_leader_before_had_forgotten() -> None:
    """The leader before forgot old producers after its last checkpoint. The next one would keep them."""
    table = Producers("log", Dedupe(keep_s=DAY_MS))
    table.load(ProducerState(f"p{n}", n, (SequenceRange(0, 1, n),)) for n in range(LOG_PRODUCERS_MAX))
    for n in range(LOG_PRODUCERS_MAX, LOG_PRODUCERS_MAX + 100):
        table.replay([NumberedRecords(f"p{n}", 0, 1, 0)], n, n)
    table.replay([NumberedRecords("p100", 0, 1, 1)], n + 1, n + 1)
    states = table.checkpoint(n + 1)
    assert [state.producer_id for state in states[:2] + states[-2:]] == ["p101", "p102", f"p{n}", "p100"]
    assert len(states) == LOG_PRODUCERS_MAX
    assert len(decode_table(encode_table(states), pytest.fail)) == LOG_PRODUCERS_MAX


@pytest.mark.parametrize("keep_s", [math.inf, 1e306, 2**63])
def test_a_time_that_no_clock_can_subtract_is_no_time_to_keep_producers(keep_s: float) -> None:
    with pytest.raises(InvalidArgument, match="keep_s"):
        Dedupe(keep_s=keep_s)


def test_the_longest_time_to_keep_producers_forgets_none() -> None:
    table = Producers("log", Dedupe(keep_s=AGE_MAX_S, max_producers=1))
    table.replay([NumberedRecords("a", 0, 1, 0)], 0, 0)
    assert len(table.checkpoint(10**15)) == 1
    with pytest.raises(TooManyProducers):
        table.admit("b", 0, 1, 10**15)


def test_arguments_are_checked() -> None:
    for bad in ({"max_producers": 0}, {"keep_s": -1}, {"max_producers": 10**6}, {"keep_s": True}):
        with pytest.raises(InvalidArgument):
            Dedupe(**bad)
    for name in ("", "x" * 65, "\ud800", 7):
        with pytest.raises(InvalidArgument):
            check_producer_id(name)
