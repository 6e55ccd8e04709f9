"""The one owner of a log's leadership: due rolls, drained ledgers, and how the leadership ends."""

from __future__ import annotations

import math

from ledgerlog.errors import LedgerFenced, LostLeadership
from ledgerlog.log.core.append_queue import AppendQueue
from ledgerlog.log.core.chain import ChainNeed
from ledgerlog.log.core.leadership import SPARE_AT, Leadership
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import NOTHING
from tests.cores import new_token


def lead(policy: RollPolicy) -> Leadership:
    metadata = LogMetadata.create(
        name="log", incarnation=1, created_ms=0, token=b"", replication=Replication(1, 1, 1), roll=policy
    ).taken_over([], 0, b"")
    queue = AppendQueue("log", epoch=metadata.epoch, next_offset=0)
    return Leadership(metadata, 1, 0, new_token=new_token("leader"), queue=queue)


def send(leader: Leadership, now: float = 0.0) -> bool:
    """Send a record as an entry of its own. Return the result of ``on_sent``."""
    leader.queue.add(b"x", 1)
    batch = leader.queue.first_to_send(full_only=False)
    assert batch is not None
    if leader.segment.first_ms is None:
        leader.on_first(now)
    return leader.on_sent(batch, leader.segment.record_count, 1000)


def roll(leader: Leadership, ledger_id: int) -> None:
    """Carry out the wanted roll, up to its write."""
    if leader.chain.need is ChainNeed.SPARE:
        leader.chain.on_spare(ledger_id)
    assert leader.chain.record
    leader.chain.on_written(leader.chain.version + 1)
    leader.look(0.0)


def test_a_bound_that_is_nearly_used_up_wants_a_ledger_and_one_that_is_wants_the_roll() -> None:
    leader = lead(RollPolicy(max_records=4))
    assert [send(leader) for _ in range(4)] == [False, False, True, True]
    assert leader.chain.is_rolling


def test_an_age_is_told_by_the_clock_alone_and_an_empty_ledger_has_none() -> None:
    leader = lead(RollPolicy(max_age_s=100))
    leader.look(1000.0)
    assert leader.look_at(1000.0) == math.inf
    assert send(leader, 1000.0), "look_at has changed"
    near = leader.look_at(1000.0)
    assert near == 1000.0 + 100 * SPARE_AT
    leader.look(near)
    assert leader.chain.has_spare
    assert not leader.chain.is_rolling
    assert leader.look_at(near) == 1100.0
    leader.look(1100.0)
    assert leader.chain.is_rolling
    assert leader.look_at(1100.0) == math.inf


def test_a_roll_that_had_to_wait_for_the_one_before_it_is_wanted_by_the_next_look() -> None:
    leader = lead(RollPolicy(max_records=1))
    send(leader)
    roll(leader, 1)
    assert (leader.rolls, leader.segment.ledger_id, leader.segment.record_count) == (1, 1, 0)
    assert not send(leader), "the roll before has not ended"
    leader.queue.on_confirmed(0, 0)
    leader.look(0.0)
    assert leader.chain.need is ChainNeed.CLOSE, "all of the older ledger is acknowledged"
    leader.on_closed()
    assert leader.chain.record.segments[0].record_count == 1, (
        "the counts are those of the ledger that drained"
    )
    leader.chain.on_written(leader.chain.version + 1)
    leader.look(0.0)
    assert leader.chain.need is ChainNeed.SPARE


def test_the_first_failure_stands_and_only_becomes_more_precise() -> None:
    leader = lead(RollPolicy())
    leader.leave()
    assert isinstance(leader.refusal, LostLeadership)
    assert leader.failure is None
    leader.on_lost(LedgerFenced(0, "somebody took over"))
    first = leader.failure
    assert isinstance(first, LostLeadership)
    leader.on_lost(LedgerFenced(0, "again"))
    assert leader.failure is first is leader.refusal
    assert leader.wants_successor
    leader.on_successor(leader.chain.metadata.taken_over([NOTHING], 1, b""))
    assert isinstance(leader.failure, LostLeadership)
    assert leader.failure.epoch == leader.epoch + 1
    leader.on_successor(None)
    assert leader.failure.epoch == leader.epoch + 1, "another task had read the record as well"
    assert leader.end({}) is leader.failure
