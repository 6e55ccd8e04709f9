"""Known bugs of the chain of ledgers, put back one at a time; see ``tests.scenarios.mutants`` for the form.

Where production code holds a rule a second time by an assertion, that is taken out as well: the checker must
see what comes of the bug, and not a guard that stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from ledgerlog.log.core import chain as log_chain
from ledgerlog.log.core.append_queue import AppendQueue, BatchState
from ledgerlog.log.core.chain import ChainNeed, Counting, LeaderChain, LedgerSpan, Takeover, TakeoverNeed
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import NOTHING, LogSegment, SegmentCounts
from tests.model import chain_invariants
from tests.model.chain_world import ChainWorld

Mutant = Callable[[], AbstractContextManager[Any]]


def a_takeover_recovers_the_last_ledger_only() -> AbstractContextManager[Any]:
    """C01."""
    original = Takeover._go_on

    def go_on(self: Takeover) -> None:
        assert self.base is not None
        assert self._counting is not None
        if not self._counting.counts:
            self._counting.counts = [NOTHING] * (len(self.base.open_segments) - 1)
        original(self)

    return patch.object(Takeover, "_go_on", go_on)


def a_conflict_on_the_list_is_answered_by_its_version_alone() -> AbstractContextManager[Any]:
    """C02."""
    original = Takeover.on_record

    def on_record(self: Takeover, metadata: LogMetadata | None, version: int) -> None:
        is_conflict = (
            self.need is TakeoverNeed.SETTLE
            and metadata is not None
            and self.record is not None
            and not metadata.sealed
            and metadata.token != self.record.token
            and version != self.version
        )
        if not is_conflict:
            original(self, metadata, version)
            return
        assert metadata is not None
        self.base, self.version = metadata, version
        self._counting = Counting(metadata)
        self._counting.counts = [NOTHING] * len(metadata.open_segments)
        self._go_on()

    return patch.object(Takeover, "on_record", on_record)


@contextmanager
def a_second_roll_does_not_wait_for_the_first() -> Iterator[None]:
    """C03."""
    original_need = LeaderChain.need
    original_counted = LogMetadata._counting

    def need(self: LeaderChain) -> ChainNeed:
        found = original_need.fget(self)
        if found is ChainNeed.NOTHING and self.failure is None and self._roll_wanted:
            return ChainNeed.WRITE if self.spare is not None else ChainNeed.SPARE
        return found

    def record(self: LeaderChain) -> LogMetadata:
        if self._tried is None:
            if self._counts is not None:
                assert self.closing is not None
                self._tried = self.metadata.counted(self.closing, self._counts, self._new_token())
            else:
                assert self.spare is not None
                self._tried = self.metadata.rolled(self.spare, self._new_token())
        return self._tried

    def rolled(self: LogMetadata, ledger_id: int, token: bytes) -> LogMetadata:
        segment = LogSegment(ledger_id, self.epoch, None)
        return attrs.evolve(self, segments=(*self.segments, segment), token=token)

    with (
        patch.object(LeaderChain, "need", property(need)),
        patch.object(LeaderChain, "record", property(record)),
        patch.object(LogMetadata, "rolled", rolled),
        patch.object(LogMetadata, "__attrs_post_init__", lambda self: None),
        patch.object(LogMetadata, "_counting", original_counted),
    ):
        yield


def serving_before_the_list_is_written() -> AbstractContextManager[Any]:
    """C04."""
    original = Takeover._go_on

    def go_on(self: Takeover) -> None:
        original(self)
        if self.need is TakeoverNeed.WRITE and self.ledger_id is not None:
            self.need = TakeoverNeed.DONE

    return patch.object(Takeover, "_go_on", go_on)


def a_newer_ledger_acknowledges_before_the_older() -> AbstractContextManager[Any]:
    """C05."""

    def on_confirmed(self: AppendQueue, ledger_id: int, last_confirmed: int) -> int:
        for batch in [one for one in self._sent if one.ledger_id == ledger_id]:
            if batch.entry_id <= last_confirmed:
                self._sent.remove(batch)
                self._retire(batch, BatchState.DURABLE)
        return self.answered

    return patch.object(AppendQueue, "on_confirmed", on_confirmed)


def a_newer_ledger_counts_though_the_older_lost_some() -> AbstractContextManager[Any]:
    original = log_chain.count_segment

    def count(ledger_id: int, start: int, contents: LedgerSpan | None, **options: bool) -> SegmentCounts:
        if contents is not None and options["follows_open"] and contents.first_offset > start:
            start = contents.first_offset
        return original(ledger_id, start, contents, **options)

    return patch.object(log_chain, "count_segment", count)


def a_newer_ledger_is_durable_though_the_older_lost_some() -> AbstractContextManager[Any]:
    def resolve(self: AppendQueue, ends: Mapping[int, int], short: Collection[int] = ()) -> int:
        while self._sent:
            batch = self._sent.popleft()
            end = ends.get(batch.ledger_id)
            if end is None:
                verdict = BatchState.UNKNOWN
            else:
                verdict = BatchState.LOST if batch.entry_id > end else BatchState.DURABLE
            self._retire(batch, verdict)
        return self.answered

    return patch.object(AppendQueue, "resolve", resolve)


def what_nobody_knows_is_told_as_lost() -> AbstractContextManager[Any]:
    original = AppendQueue.resolve

    def resolve(self: AppendQueue, ends: Mapping[int, int], short: Collection[int] = ()) -> int:
        return original(self, {batch.ledger_id: -1 for batch in self._sent} | dict(ends), short)

    return patch.object(AppendQueue, "resolve", resolve)


def a_ledger_is_closed_before_it_is_drained() -> AbstractContextManager[Any]:
    original = LeaderChain.need

    def need(self: LeaderChain) -> ChainNeed:
        is_due = self.failure is None and not self.is_finished and self.closing is not None
        if is_due and self._tried is None and self._counts is None and not self._settling:
            return ChainNeed.CLOSE
        return original.fget(self)

    return patch.object(LeaderChain, "need", property(need))


def a_deposed_leader_goes_on() -> AbstractContextManager[Any]:
    return patch.object(LogMetadata, "has_same_chain", lambda self, other: self.sealed == other.sealed)


def a_takeover_given_up_deletes_what_it_made() -> AbstractContextManager[Any]:
    return patch.object(Takeover, "abandon", Takeover._discard_ledger)


def a_deposed_leader_deletes_his_spare_whatever_is_listed() -> AbstractContextManager[Any]:
    original = LeaderChain.on_record

    def on_record(self: LeaderChain, metadata: LogMetadata | None, version: int) -> None:
        spare = self.spare
        original(self, metadata, version)
        if self.failure is not None:
            self.spare = spare

    return patch.object(LeaderChain, "on_record", on_record)


def a_ledger_that_was_ended_short_counts_as_any_other() -> AbstractContextManager[Any]:
    original = Counting.on_recovered

    def on_recovered(self: Counting, contents: LedgerSpan | None, *, is_short: bool = False) -> None:
        original(self, contents)

    return patch.object(Counting, "on_recovered", on_recovered)


def an_accepted_loss_joins_what_is_behind_it() -> AbstractContextManager[Any]:
    original = log_chain.count_segment

    def count(ledger_id: int, start: int, contents: LedgerSpan | None, **options: bool) -> SegmentCounts:
        counts = original(ledger_id, start, contents, **options)
        return attrs.evolve(counts, lost_before=0)

    return patch.object(log_chain, "count_segment", count)


def what_is_behind_an_accepted_loss_is_told_as_lost() -> AbstractContextManager[Any]:
    original = AppendQueue.resolve

    def resolve(self: AppendQueue, ends: Mapping[int, int], short: Collection[int] = ()) -> int:
        return original(self, ends)

    return patch.object(AppendQueue, "resolve", resolve)


def what_no_operator_accepted_is_kept_behind_a_gap() -> AbstractContextManager[Any]:
    """Any newer ledger that does not continue the older one is kept, its older one short or not."""
    original = log_chain.count_segment

    def count(ledger_id: int, start: int, contents: LedgerSpan | None, **options: bool) -> SegmentCounts:
        return original(ledger_id, start, contents, **{**options, "keep_behind_gap": True})

    return patch.object(log_chain, "count_segment", count)


def a_reader_goes_on_in_a_newer_ledger_whatever_it_saw_of_the_older() -> AbstractContextManager[Any]:
    return patch.object(chain_invariants, "continues", lambda ledger, offset: True)


def a_leader_gives_the_offsets_of_spliced_records_again() -> AbstractContextManager[Any]:
    return patch.object(AppendQueue, "skip_to", lambda self, offset: None)


def a_splice_does_not_ask_whether_its_request_is_still_there() -> AbstractContextManager[Any]:
    return patch.object(ChainWorld, "_has_request", lambda self, places, staged: True)
