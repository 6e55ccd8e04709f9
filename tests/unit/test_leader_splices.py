"""The leader's chain and its appends while ledgers are spliced (``log.core.chain``)."""

from __future__ import annotations

import itertools

import attrs
import pytest

from ledgerlog.errors import LostLeadership, OffsetMismatch
from ledgerlog.log.core.append_queue import AppendQueue
from ledgerlog.log.core.attach import Commit, Splice, SpliceNeed, SpliceRefused, Staged, StagedLedger
from ledgerlog.log.core.chain import ChainNeed, ChainSplice, LeaderChain
from ledgerlog.log.core.leadership import Leadership
from ledgerlog.model.ids import check_bookie_id
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import NOTHING, SegmentCounts

_TOKENS = itertools.count()
STAGED = ((70, 3, 30), (71, 2, 20))
COMMIT = Commit(producer="p", source="s", run="r", batch=0, staged=(Staged(70, 3, 30, 0),))
LEDGER = StagedLedger(
    LedgerMetadata.create(
        ledger_id=70,
        replication=Replication(1, 1, 1),
        ensemble=[check_bookie_id("b1")],
        key=bytes(16),
        token=b"t",
        created_ms=0,
    ).closed(0, b"t"),
    4,
    is_spliced=False,
)


def new_token() -> bytes:
    return b"%d" % next(_TOKENS)


def led() -> LogMetadata:
    """The record of a log with ten records, whose leader has ledger 2."""
    made = LogMetadata.create(
        name="log", incarnation=1, created_ms=0, token=b"t", replication=Replication(1, 1, 1)
    )
    first = made.taken_over([], 1, b"t").counted(1, SegmentCounts(10, 100, 5, 9), b"t")
    return first.taken_over([], 2, b"t")


def leader() -> LeaderChain:
    return LeaderChain(led(), 7, 2, new_token=new_token)


def admitted(chain: LeaderChain) -> LeaderChain:
    """A leader that has been asked, and has everything that it needs to splice."""
    chain.want_splice()
    assert chain.need is ChainNeed.ADMIT
    chain.on_admitted(ChainSplice(staged=STAGED, now_ms=50))
    assert not chain.is_holding
    assert chain.need is ChainNeed.SPARE
    chain.on_spare(3)
    return chain


def closed(chain: LeaderChain) -> LeaderChain:
    """A leader that has closed its ledger for a splice."""
    admitted(chain)
    chain.on_drained(2)
    assert chain.need is ChainNeed.CLOSE
    chain.on_closed(SegmentCounts(4, 40, 20, 30))
    return chain


def listed(metadata: LogMetadata) -> list[tuple[int, int | None, int | None]]:
    return [(s.ledger_id, s.first_offset, s.record_count) for s in metadata.segments]


def test_a_leader_sends_nothing_from_the_close_of_its_ledger_until_the_splice_is_written() -> None:
    chain = admitted(leader())
    assert chain.is_holding
    assert chain.closing == 2
    assert chain.need is ChainNeed.NOTHING, "it waits for the records that are on their way"
    chain.on_drained(2)
    chain.on_closed(SegmentCounts(4, 40, 20, 30))
    assert chain.need is ChainNeed.WRITE
    assert chain.is_splicing
    record = chain.record
    assert chain.record is record, "it stays the same until the write is settled"
    assert listed(record) == [(1, 0, 10), (2, 10, 4), (70, 14, 3), (71, 17, 2), (3, 19, None)]
    assert record.epoch == led().epoch
    assert {record.segments[2].first_ms, record.segments[3].last_ms} == {50}
    chain.on_written(8)
    assert not chain.is_holding
    assert (chain.current, chain.spare, chain.draining, chain.closing) == (3, None, None, None)
    assert chain.need is ChainNeed.NOTHING
    assert chain.may_roll_by_policy


def test_a_leader_that_finds_nothing_to_splice_closes_nothing() -> None:
    chain = leader()
    chain.want_splice()
    chain.on_admitted(None)
    assert chain.need is ChainNeed.NOTHING
    assert (chain.is_holding, chain.current) == (False, 2)


def test_a_splice_and_a_roll_do_not_run_at_once() -> None:
    chain = leader()
    chain.want_roll()
    chain.want_splice()
    assert chain.need is ChainNeed.SPARE
    chain.on_spare(3)
    assert chain.need is ChainNeed.WRITE
    assert not chain.is_splicing
    assert chain.record
    chain.on_written(8)
    assert chain.need is ChainNeed.NOTHING
    chain.on_drained(2)
    chain.on_closed(NOTHING)
    assert chain.record
    chain.on_written(9)
    assert chain.need is ChainNeed.ADMIT
    chain.on_admitted(ChainSplice(staged=STAGED))
    assert not chain.may_roll_by_policy
    chain.want_roll()
    chain.on_spare(4)
    assert chain.is_holding, "the splice is the roll"
    chain.on_drained(3)
    chain.on_closed(NOTHING)
    assert chain.record
    chain.on_written(10)
    assert not chain.is_rolling


def test_a_refused_transaction_is_admitted_again_and_the_leader_goes_on_without_it() -> None:
    chain = closed(leader())
    assert chain.record
    chain.on_refused()
    assert chain.need is ChainNeed.SETTLE
    chain.on_record(chain.metadata, 7)
    assert chain.need is ChainNeed.ADMIT
    chain.on_admitted(None)
    assert chain.need is ChainNeed.WRITE
    assert not chain.is_splicing
    assert listed(chain.record) == [(1, 0, 10), (2, 10, 4), (3, 14, None)]
    chain.on_written(8)
    assert chain.current == 3


def test_a_transaction_whose_answer_was_lost_is_repeated_unchanged_until_it_is_settled() -> None:
    chain = closed(leader())
    record = chain.record
    chain.on_unsettled()
    chain.on_record(chain.metadata, 7)
    assert chain.record is record
    chain.on_refused()  # The first attempt took effect.
    chain.on_record(record, 8)
    assert chain.failure is None
    assert (chain.current, chain.version) == (3, 8)


def test_a_record_that_was_truncated_meanwhile_is_written_with_the_splice() -> None:
    chain = closed(leader())
    assert chain.record
    truncated, _ = chain.metadata.truncated(10, 10, b"other")
    chain.on_unsettled()
    chain.on_record(truncated, 8)
    assert chain.need is ChainNeed.ADMIT, "the mark may have moved, too"
    chain.on_admitted(ChainSplice(staged=STAGED, now_ms=50))
    assert listed(chain.record) == [(2, 10, 4), (70, 14, 3), (71, 17, 2), (3, 19, None)]


def with_the_staged_ledger(metadata: LogMetadata) -> LogMetadata:
    """The record after somebody else has replaced the first ledger by one that is to be spliced."""
    changed = metadata.gathered(metadata.segments[:1], STAGED[0][0], b"other")
    assert changed is not None
    return changed


@pytest.mark.parametrize("at", ["without a spare", "draining", "drained", "closed"])
def test_a_splice_is_admitted_again_if_the_record_changes_before_it_is_written(at: str) -> None:
    chain = leader()
    chain.want_splice()
    chain.on_admitted(ChainSplice(staged=STAGED, now_ms=50))
    if at != "without a spare":
        chain.on_spare(3)
    if at in ("drained", "closed"):
        chain.on_drained(2)
    if at == "closed":
        chain.on_closed(SegmentCounts(4, 40, 20, 30))
    chain.on_record(with_the_staged_ledger(chain.metadata), 8)
    assert chain.need is ChainNeed.ADMIT
    chain.on_admitted(None)
    if at == "without a spare":
        assert chain.need is ChainNeed.SPARE
        chain.on_spare(3)
    if at in ("without a spare", "draining"):
        chain.on_drained(2)
    if at != "closed":
        assert chain.need is ChainNeed.CLOSE
        chain.on_closed(SegmentCounts(4, 40, 20, 30))
    assert listed(chain.record) == [(70, 0, 10), (2, 10, 4), (3, 14, None)]


def test_a_transaction_that_is_too_large_stays_refused_if_the_record_changes() -> None:
    chain = closed(leader())
    assert chain.record
    chain.on_too_large()
    chain.on_record(with_the_staged_ledger(chain.metadata), 8)
    assert chain.need is ChainNeed.ADMIT


def test_a_leader_that_leaves_while_a_splice_is_admitted_again_drops_it() -> None:
    chain = admitted(leader())
    chain.on_record(with_the_staged_ledger(chain.metadata), 8)
    chain.finish()
    chain.on_admitted(ChainSplice(staged=STAGED[1:]))
    assert chain.take_spare() == 3
    chain.on_drained(2)
    assert chain.need is ChainNeed.CLOSE


def test_a_transaction_that_is_too_large_is_dropped() -> None:
    chain = closed(leader())
    assert chain.record
    chain.on_too_large()
    assert chain.need is ChainNeed.ADMIT
    chain.on_admitted(None)
    assert listed(chain.record)[-1] == (3, 14, None)


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_leader_that_leaves_drops_a_splice_unless_its_ledger_is_closed_for_it(is_drained: bool) -> None:
    chain = admitted(leader())
    if is_drained:
        chain.on_drained(2)
    chain.finish()
    assert chain.is_holding is is_drained
    if not is_drained:
        assert chain.take_spare() == 3
        chain.on_drained(2)
    else:
        assert chain.take_spare() is None
        chain.on_closed(NOTHING)
        assert chain.record
        chain.on_written(8)
        assert (chain.is_finished, chain.closing) == (False, 3)
        chain.on_drained(3)
    chain.on_closed(NOTHING)
    assert chain.record
    chain.on_written(9)
    assert chain.is_finished


def test_a_leader_that_is_deposed_during_a_splice_gives_its_spare_back_unless_it_may_be_listed() -> None:
    chain = closed(leader())
    successor = chain.metadata.taken_over([SegmentCounts(4, 40, 20, 30)], 9, b"other")
    chain.on_record(successor, 8)
    assert isinstance(chain.failure, LostLeadership)
    assert chain.take_spare() == 3
    chain = closed(leader())
    spliced = chain.record
    chain.on_unsettled()
    chain.on_record(spliced.taken_over([NOTHING], 9, b"other"), 9)
    assert isinstance(chain.failure, LostLeadership)
    assert chain.take_spare() is None


def test_queued_records_go_behind_the_spliced_ones_and_a_condition_that_fails_is_told() -> None:
    queue = AppendQueue("log", epoch=1, next_offset=10)
    queue.add(b"a", 1)
    bound = queue.add(b"b", 1, expected=11)
    queue.add(b"c", 1)
    queue.skip_to(15)
    assert (queue.durable_offset, queue.tail) == (15, 17)
    batch = queue.first_to_send(full_only=False)
    assert batch is bound
    assert (batch.first_offset, batch.live_records()) == (15, [b"a", b"c"])
    queue.on_sent(batch, 3, 0)
    queue.on_confirmed(3, 0)
    assert [batch.ack(0).offset, batch.ack(2).offset] == [15, 16]
    with pytest.raises(OffsetMismatch):
        batch.ack(1)


def test_a_leadership_counts_its_own_records_and_never_goes_back_in_time() -> None:
    metadata = led()
    queue = AppendQueue("log", epoch=metadata.epoch, next_offset=metadata.counted_end)
    core = Leadership(metadata, 7, 2, new_token=new_token, queue=queue)
    queue.add(b"abcd", 4)
    batch = queue.first_to_send(full_only=False)
    assert batch is not None
    core.on_first(0.0)
    core.on_sent(batch, 0, 20)
    core.chain.want_splice()
    core.chain.on_admitted(ChainSplice(staged=STAGED, now_ms=50))
    core.chain.on_spare(3)
    core.look(0.0)
    assert core.chain.need is ChainNeed.NOTHING, "a record is on its way"
    queue.add(b"held", 4)
    queue.on_confirmed(2, 0)
    core.look(0.0)
    assert core.chain.need is ChainNeed.CLOSE, "a queued record waits for the next ledger"
    core.on_closed()
    assert core.chain.record
    core.chain.on_written(8)
    core.look(0.0)
    assert (core.segment.ledger_id, queue.next_offset, queue.tail) == (3, 16, 17)
    assert (core.records_appended, core.bytes_appended, core.bytes_total) == (1, 4, 154)
    assert core.durable_bytes == 154
    assert core.last_ms == 50


def test_a_process_asks_a_leader_again_only_if_another_one_leads() -> None:
    splice = Splice("log", COMMIT, new_token=new_token)

    def read(metadata: LogMetadata) -> SpliceNeed:
        splice.on_read(metadata, 7, None, -1, [LEDGER], 0)
        return splice.need

    assert read(led()) is SpliceNeed.ASK
    splice.on_asked()
    splice.on_unanswered()
    assert read(led()) is SpliceNeed.RECOVER
    splice.on_changed()
    assert read(led().taken_over([NOTHING], 9, b"t")) is SpliceNeed.ASK
    splice.on_asked()
    splice.on_refused("too large", is_full=False)
    assert splice.need is SpliceNeed.FAILED
    assert isinstance(splice.failure, SpliceRefused)


def test_a_leader_that_answers_and_never_splices_is_taken_over_from() -> None:
    splice = Splice("log", COMMIT, new_token=new_token)
    asked = 0
    while True:
        splice.on_read(led(), 7, None, -1, [LEDGER], 0)
        if splice.need is not SpliceNeed.ASK:
            break
        splice.on_asked()
        asked += 1
    assert splice.need is SpliceNeed.RECOVER
    assert asked == 3


def test_a_batch_without_rows_asks_nobody() -> None:
    commit = Commit(producer="p", source="s", run="r", batch=0, staged=())
    splice = Splice("log", commit, new_token=new_token)
    splice.on_read(led(), 7, None, -1, [], 0)
    assert splice.need is SpliceNeed.WRITE
    assert splice.record is not None
    assert attrs.evolve(splice.record, token=b"t") == led()
