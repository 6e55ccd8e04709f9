"""Known bugs, put back into production code one at a time: each removes one rule of the protocol.

A mutant is a context manager. It patches the method that holds the rule. If production code holds the same
rule a second time (an assertion, a second guard), it patches that too, because a test of the rule must not
pass by luck. A few rules live in the code around the cores; their mutants patch the model's bookie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from bookie.core.ledger import BookieLedger
from ledgerlog.errors import LedgerClosed
from ledgerlog.ledger.core.pending import PendingAdds, Slot
from ledgerlog.ledger.core.recovery import LedgerRecovery, Negative, Phase, ReadAsk
from ledgerlog.ledger.core.writer import MetadataIntent, WriterCore
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from tests.model.bookie_node import BookieNode
from tests.model.messages import Fence, FenceAnswer, Read, ReadAnswer

Mutant = Callable[[], AbstractContextManager[Any]]


def _patched(owner: type, **methods: Any) -> AbstractContextManager[Any]:
    return patch.multiple(owner, **methods)


# --- bookies --------------------------------------------------------------------------------------


def recovery_reads_do_not_fence() -> AbstractContextManager[Any]:
    original = BookieNode.handle

    def handle(self: BookieNode, request: Any) -> Any:
        if not isinstance(request, Read):
            return original(self, request)
        held = self.durable_entries
        ask = request.ask
        found = tuple((e, held[e]) for e in range(ask.first, ask.last + 1, ask.stride) if e in held)
        return [ReadAnswer(request.client, self.name, ask, found, ask.last, Negative.ABSENT)]

    return _patched(BookieNode, handle=handle)


def fence_is_answered_before_it_is_durable() -> AbstractContextManager[Any]:
    return _patched(BookieLedger, is_fence_settled=lambda self, durable: self.is_fenced)


def regular_adds_pass_the_fence() -> AbstractContextManager[Any]:
    return _patched(BookieLedger, add_refusal=lambda self, key, is_recovery: None)


def fence_of_an_unknown_ledger_is_forgotten() -> AbstractContextManager[Any]:
    original = BookieNode.handle

    def handle(self: BookieNode, request: Any) -> Any:
        if self.ledger is not None or not isinstance(request, Fence | Read):
            return original(self, request)
        if isinstance(request, Fence):
            return [FenceAnswer(request.client, self.name, request.slot, -1, -1)]
        return [ReadAnswer(request.client, self.name, request.ask, (), request.ask.last, Negative.ABSENT)]

    return _patched(BookieNode, handle=handle)


# --- quorums --------------------------------------------------------------------------------------


def negative_quorum_is_one_too_small() -> AbstractContextManager[Any]:
    return _patched(Replication, negative_quorum=property(lambda self: self.write_quorum - self.ack_quorum))


def coverage_is_a_negative_quorum_of_the_ensemble() -> AbstractContextManager[Any]:
    return _patched(Replication, covers=lambda self, slots: len(slots) >= self.negative_quorum)


class _WholeEnsemble(Replication):
    def write_set(self, entry_id: int) -> tuple[int, ...]:
        return tuple(range(self.ensemble))


def recovery_reads_ask_the_whole_ensemble() -> AbstractContextManager[Any]:
    def widened(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: LedgerRecovery, *arguments: Any) -> Any:
            replication = self.replication
            self.replication = _WholeEnsemble(**attrs.asdict(replication))
            try:
                return method(self, *arguments)
            finally:
                self.replication = replication

        return run

    return _patched(
        LedgerRecovery,
        _ask_round=widened(LedgerRecovery._ask_round),
        _judge=widened(LedgerRecovery._judge),
    )


# --- verdicts -------------------------------------------------------------------------------------


def time_outs_are_negative() -> AbstractContextManager[Any]:
    def on_read_failed(self: LedgerRecovery, ask: ReadAsk) -> None:
        self.on_read(ask, {}, ask.last, Negative.ABSENT)

    return _patched(LedgerRecovery, on_read_failed=on_read_failed)


def limbo_is_negative() -> AbstractContextManager[Any]:
    original = LedgerRecovery.on_read

    def on_read(self: LedgerRecovery, ask: ReadAsk, found: Any, through: int, negative: Negative) -> None:
        original(self, ask, found, through, Negative.ABSENT)

    return _patched(LedgerRecovery, on_read=on_read)


def an_ack_quorum_of_copies_is_wanted() -> AbstractContextManager[Any]:
    """A single copy counts as unknown."""
    original = LedgerRecovery.on_read

    def on_read(self: LedgerRecovery, ask: ReadAsk, found: Any, through: int, negative: Negative) -> None:
        if found:
            self.on_read_failed(ask)
        else:
            original(self, ask, found, through, negative)

    return _patched(LedgerRecovery, on_read=on_read)


# --- the owner ------------------------------------------------------------------------------------


@contextmanager
def closing_at_the_last_add_pushed() -> Iterator[None]:
    original = WriterCore._begin_close

    def begin_close(self: WriterCore, failure: Any) -> None:
        last = self.last_add_pushed
        original(self, failure)
        self.close_at = last
        self._form_intent()

    with _patched(WriterCore, _begin_close=begin_close, check=lambda self: None):
        yield


def acknowledging_after_the_end_was_fixed() -> AbstractContextManager[Any]:
    return _patched(
        WriterCore,
        on_add_ok=lambda self, bookie, first, last: self.pending.on_add_ok(bookie, first, last),
    )


def a_gap_is_acknowledged_over() -> AbstractContextManager[Any]:
    def reach(self: PendingAdds, base: int, quorum: int, without: Any = ()) -> int:
        for entry_id in range(self.lap, base, -1):
            holders = [
                slot
                for slot in self.slots
                if self.replication.holds(slot.index, entry_id) and entry_id in slot.confirmed
            ]
            if len(holders) >= quorum:
                return entry_id
        return base

    return _patched(PendingAdds, _quorum_reach=reach)


@contextmanager
def confirmations_outlive_their_bookie() -> Iterator[None]:
    """The confirmations of a replaced bookie still count for its slot."""
    original = PendingAdds.install

    def strip(self: PendingAdds, slots: Any, **options: Any) -> None:
        for index in slots:
            self.slots[index].replacing = True

    def install(self: PendingAdds, replacements: Any, fragments: Any) -> None:
        kept = {index: self.slots[index].confirmed.ranges() for index in replacements}
        original(self, replacements, fragments)
        for index, ranges in kept.items():
            for low, high in ranges:
                self.slots[index].confirmed.add(low, high)

    with _patched(PendingAdds, strip=strip, install=install):
        yield


@contextmanager
def confirmations_are_stripped_after_the_write() -> Iterator[None]:
    original = PendingAdds.install

    def install(self: PendingAdds, replacements: Any, fragments: Any) -> None:
        for index in replacements:
            self.slots[index].replacing = True
        original(self, replacements, fragments)

    with _patched(PendingAdds, strip=lambda self, slots, **options: None, install=install):
        yield


def nobody_is_pinned() -> AbstractContextManager[Any]:
    def replaceable(self: PendingAdds, *, full_pinning: bool = False) -> list[int]:
        slots: list[Slot] = self.slots
        return [slot.index for slot in slots if slot.failed and not slot.replacing]

    return _patched(PendingAdds, replaceable=replaceable)


def adds_that_recovery_may_keep_are_denied() -> AbstractContextManager[Any]:
    def closed_elsewhere(self: WriterCore, last_entry: int) -> Any:
        return LedgerClosed(self.ledger_id, last_entry)

    return _patched(WriterCore, _closed_elsewhere=closed_elsewhere)


def giving_up_in_guaranteed_mode_denies_what_is_pending() -> AbstractContextManager[Any]:
    return _patched(WriterCore, give_up=lambda self, reason: self._fail(reason))


@contextmanager
def the_owner_writes_whatever_it_reads() -> Iterator[None]:
    """The owner writes the ensemble change again at the version that it just read, and ignores the state."""
    original = WriterCore.on_metadata_read

    def on_metadata_read(self: WriterCore, stored: LedgerMetadata | None, version: int) -> None:
        assert stored is not None
        original(self, attrs.evolve(stored, state=LedgerState.OPEN, last_entry=None), version)

    with _patched(WriterCore, on_metadata_read=on_metadata_read):
        yield


# --- recoverers -----------------------------------------------------------------------------------


@contextmanager
def private_changes_are_published_at_once() -> Iterator[None]:
    original = LedgerRecovery.change_ensemble

    def change_ensemble(self: LedgerRecovery, replacements: Any) -> None:
        original(self, replacements)
        published = attrs.evolve(self.metadata, fragments=self.pending.fragments)
        self.intent = MetadataIntent(published, self.version)

    with _patched(LedgerRecovery, change_ensemble=change_ensemble):
        yield


@contextmanager
def guaranteed_recovery_starts_after_the_lac() -> Iterator[None]:
    original = LedgerRecovery.on_fence_ok

    def on_fence_ok(self: LedgerRecovery, slot: int, lac: int, lafr: int) -> None:
        original(self, slot, lac, lac)

    with _patched(LedgerRecovery, on_fence_ok=on_fence_ok):
        yield


@contextmanager
def recovery_closes_before_its_write_backs_are_confirmed() -> Iterator[None]:
    def maybe_close(self: LedgerRecovery) -> None:
        if self.phase is Phase.CLOSING and self.intent is None:
            assert self.last_recoverable is not None
            closed = self.metadata.closed(self.last_recoverable, b"token", self.pending.fragments)
            self.intent = MetadataIntent(closed, self.version)

    with _patched(LedgerRecovery, _maybe_close=maybe_close):
        yield


@contextmanager
def the_closing_race_is_won_by_the_last() -> Iterator[None]:
    """On a conflict the recoverer writes the end again at the version that it just read."""
    original = LedgerRecovery.on_metadata_read

    def on_metadata_read(self: LedgerRecovery, stored: LedgerMetadata | None, version: int) -> None:
        assert stored is not None
        if self.phase is Phase.CLOSING and stored.last_entry not in (None, self.last_recoverable):
            mine = attrs.evolve(stored, last_entry=self.last_recoverable, fragments=self.pending.fragments)
            self.intent = MetadataIntent(mine, version)
        else:
            original(self, stored, version)

    with _patched(LedgerRecovery, on_metadata_read=on_metadata_read):
        yield


@contextmanager
def reading_starts_below_the_last_fragment() -> Iterator[None]:
    original = LedgerRecovery._begin_fencing

    def begin_fencing(self: LedgerRecovery) -> None:
        original(self)
        self.start = self.frozen_lac = -1

    # The metadata object must not refuse to end before its last fragment, either.
    unchecked = _patched(LedgerMetadata, __attrs_post_init__=lambda self: None, closed=_closed_anywhere)
    with _patched(LedgerRecovery, _begin_fencing=begin_fencing), unchecked:
        yield


def _closed_anywhere(
    self: LedgerMetadata, last_entry: int, token: bytes, fragments: Any = None
) -> LedgerMetadata:
    return attrs.evolve(
        self, state=LedgerState.CLOSED, last_entry=last_entry, fragments=fragments or self.fragments
    )


@contextmanager
def write_backs_carry_the_progress_of_recovery() -> Iterator[None]:
    original = LedgerRecovery.on_add_ok

    def on_add_ok(self: LedgerRecovery, bookie: str, first: int, last: int) -> None:
        original(self, bookie, first, last)
        self.frozen_lac = max(self.frozen_lac, self.pending.lac)

    def frozen_lafr(self: LedgerRecovery) -> int:
        return self.pending.lafr if self.replication.guaranteed else -1

    with _patched(LedgerRecovery, on_add_ok=on_add_ok, frozen_lafr=property(frozen_lafr)):
        yield
