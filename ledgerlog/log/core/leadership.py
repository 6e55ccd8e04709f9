"""One leadership of a log. Only this object tracks the leadership's records (taken, sent, confirmed) and its
end.

A leadership has three parts, and each part keeps its own rules:

    queue        records that were taken and are not yet answered      (``log.core.append_queue``)
    chain        the log's ledgers: their list, rolls and closes       (``log.core.chain``)
    producers    which producer appended what, with deduplication      (``log.core.producers``)

This module does everything that concerns more than one part. It knows what was sent to each ledger, when a
roll is due, when a ledger is *drained* (every append sent to it is answered), and why nothing more is taken
or sent.

    on_sent         a batch became an entry of the current ledger
    look            bring the parts in line; call it whenever one of them may have changed
    look_at         the time at which to call ``look`` even if nothing else happens
    on_lost         the leadership is over
    leave           the user leaves the writer
    end             give every append that is not answered its verdict

**Rolls by policy.** For each bound of the roll policy, the current ledger has used up some fraction. When the
largest fraction reaches ``SPARE_AT``, the leadership asks for the next ledger. At 1 it asks for the roll. For
example, with ``max_records=100`` the 75th record asks for the ledger and the 100th for the roll. If the roll
must wait for the one before it, the next ``look`` asks again.

**The end.** ``refusal`` says why nothing more is taken, ``failure`` why nothing more is sent. The first
failure stays; ``on_successor`` may only make it more precise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import attrs

from ledgerlog.errors import (
    LedgerLogError,
    LogSealed,
    LostLeadership,
    NotEnoughBookies,
    PermissionDenied,
)
from ledgerlog.limits import LOG_CHECKPOINT_BYTES, LOG_CHECKPOINT_ENTRIES
from ledgerlog.log.core.append_queue import AppendQueue, Batch
from ledgerlog.log.core.chain import LeaderChain, deposed_by
from ledgerlog.log.core.producers import Producers
from ledgerlog.log.core.retention import is_current_expired, let_go
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.producer import NumberedRecords
from ledgerlog.model.segments import NOTHING, SegmentCounts

__all__ = ["SPARE_AT", "Leadership", "SentSegment"]

SPARE_AT = 0.75
"""The next ledger is made when this fraction of a bound of the roll policy is used up."""


@attrs.define
class SentCheckpoint:
    """A table of producers that was sent to a ledger, and the amount of records sent after it."""

    entry_id: int
    """The entry that holds the table."""
    size: int
    """The size of that entry in bytes."""
    byte_length: int = 0
    """Bytes of the records sent after it."""
    entries: int = 0
    """Entries sent after it."""

    @property
    def is_old(self) -> bool:
        """Whether a takeover would be slow, because it replays all entries after the checkpoint.

        The checkpoint of a large table counts as old later: after 32 times the table's size in bytes of
        records, or after one entry for each 32 bytes of the table. For example, if the table has 64 KiB, its
        checkpoint is old after 2 MiB of records, or after 2048 entries.
        """
        return self.byte_length >= max(LOG_CHECKPOINT_BYTES, 32 * self.size) or self.entries >= max(
            LOG_CHECKPOINT_ENTRIES, self.size // 32
        )


@attrs.define
class SentSegment:
    """The entries that this leadership has sent to one ledger."""

    ledger_id: int
    record_count: int = 0
    byte_length: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    since: float = math.inf
    """When the first entry was sent, by the clock of ``look``. inf for an empty ledger, which does not
    age."""
    checkpoint: SentCheckpoint | None = None

    def counts(self) -> SegmentCounts:
        """Return the entry of the ledger in the log's list once the ledger is closed."""
        if not self.record_count:
            return NOTHING
        return SegmentCounts(self.record_count, self.byte_length, self.first_ms, self.last_ms)

    def used(self, policy: RollPolicy) -> float:
        """Return the largest used fraction among the policy's bounds, age left out."""
        used = 0.0
        if policy.max_bytes is not None:
            used = self.byte_length / policy.max_bytes
        if policy.max_records is not None:
            used = max(used, self.record_count / policy.max_records)
        return used


class Leadership:
    """One leadership, from the takeover's write to the answer to its last append.

    Args:
        metadata: The record that the takeover wrote.
        version: The version of that record.
        ledger_id: The ledger that the takeover made.
        new_token: Makes the random token of a write.
        queue: The appends.
        producers: The table of producers; None if the log has no deduplication.
    """

    def __init__(
        self,
        metadata: LogMetadata,
        version: int,
        ledger_id: int,
        *,
        new_token: Callable[[], bytes],
        queue: AppendQueue,
        producers: Producers | None = None,
    ) -> None:
        self.name = metadata.name
        self.epoch = metadata.epoch
        self.queue = queue
        self.chain = LeaderChain(metadata, version, ledger_id, new_token=new_token)
        self.producers = producers
        self.segment = SentSegment(ledger_id)
        """The records that were sent to the current ledger."""
        self._draining: SentSegment | None = None
        self.rolls = 0
        self.entries_appended = 0
        self.records_appended = 0
        self._bytes_before = metadata.counted_bytes
        """Bytes of the records that this leadership did not append."""
        self.bytes_total = self._bytes_before
        """Bytes of all records of the log, including the last one that was sent."""
        self.last_ms = metadata.counted_ms
        """The time of the newest entry. The next entry's time is not before it."""
        self.refusal: LedgerLogError | None = None
        """Why nothing more is taken: the user leaves the writer, or ``failure``."""
        self.failure: LedgerLogError | None = None
        """Why nothing more is sent."""

    # --- sending ------------------------------------------------------------------------------

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the table of producers must go into the current ledger before its next records.

        That is so if the ledger has no table yet, or if its newest one is old (``SentCheckpoint.is_old``).
        """
        checkpoint = self.segment.checkpoint
        return checkpoint is None or checkpoint.is_old

    def on_checkpoint(self, entry_id: int, size: int) -> None:
        """The table of producers became an entry of the current ledger."""
        self.segment.checkpoint = SentCheckpoint(entry_id, size)

    def on_first(self, now: float) -> None:
        """Note that the first entry of the current ledger is about to be sent. The ledger begins to age, by
        the clock of ``look``."""
        self.segment.since = now

    def on_sent(
        self,
        batch: Batch,
        entry_id: int,
        now_ms: int,
        numbered: Collection[NumberedRecords] | None = None,
    ) -> bool:
        """A batch became an entry of the current ledger.

        Args:
            batch: The batch.
            entry_id: The entry.
            now_ms: The wall clock.
            numbered: Which records belong to which producer; None if the log has no deduplication.

        Returns:
            Whether the chain needs something now, or ``look_at`` has changed.
        """
        segment = self.segment
        if numbered is not None:
            assert self.producers is not None
            assert segment.checkpoint is not None
            if numbered:
                self.producers.on_sent(numbered, batch.first_offset, now_ms)
            segment.checkpoint.byte_length += batch.size
            segment.checkpoint.entries += 1
        self.entries_appended += 1
        self.records_appended += batch.live_count
        self.bytes_total += batch.size
        segment.record_count += batch.live_count
        segment.byte_length += batch.size
        self.last_ms = segment.last_ms = now_ms
        policy = self.chain.metadata.roll
        is_news = False
        if segment.first_ms is None:
            assert segment.since < math.inf, "on_first comes first"
            segment.first_ms = now_ms
            is_news = policy.max_age_s is not None
        self.queue.on_sent(batch, segment.ledger_id, entry_id)
        used = segment.used(policy)
        return (used >= SPARE_AT and self._want_roll(used)) or is_news

    @property
    def bytes_appended(self) -> int:
        """Bytes of the records that were sent."""
        return self.bytes_total - self._bytes_before

    # --- the chain ----------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Bring the parts in line.

        Follow a roll that was written, end the leadership if the chain has failed, report a drained ledger to
        the chain, and ask for a roll that is due.
        """
        chain = self.chain
        if chain.current != self.segment.ledger_id:
            self.rolls += 1
            self._draining, self.segment = self.segment, SentSegment(chain.current)
            if chain.draining is None:
                self._follow_splice(chain.metadata)
        if chain.failure is not None:
            self.on_lost(chain.failure)
        if chain.closing is not None and self._is_drained(chain.closing):
            chain.on_drained(chain.closing)
        policy, segment = chain.metadata.roll, self.segment
        used = segment.used(policy)
        if policy.max_age_s is not None:
            if now >= segment.since + policy.max_age_s:
                used = 1.0
            elif now >= segment.since + policy.max_age_s * SPARE_AT:
                used = max(used, SPARE_AT)
        self._want_roll(used)

    def _follow_splice(self, metadata: LogMetadata) -> None:
        """Continue after the records that were spliced. All records that were sent before are durable."""
        spliced = metadata.counted_bytes - self.bytes_total
        assert spliced >= 0
        self.bytes_total += spliced
        self._bytes_before += spliced
        self.last_ms = max(self.last_ms, metadata.counted_ms)
        self.queue.skip_to(metadata.counted_end)

    def look_at(self, now: float) -> float:
        """Return when the age of the current ledger makes another ``look`` necessary; inf if it never
        does."""
        age_s = self.chain.metadata.roll.max_age_s
        if age_s is None:
            return math.inf
        near, due = self.segment.since + age_s * SPARE_AT, self.segment.since + age_s
        return near if now < near else due if now < due else math.inf

    def _want_roll(self, used: float) -> bool:
        chain = self.chain
        if used < SPARE_AT or not chain.may_roll_by_policy:
            return False
        if used >= 1:
            chain.want_roll()
        elif not chain.has_spare:
            chain.want_spare()
        else:
            return False
        return True

    def _is_drained(self, ledger_id: int) -> bool:
        if ledger_id == self.segment.ledger_id:
            # During a splice, queued records wait for the next ledger.
            is_last = self.chain.is_holding or not self.queue.has_queued
            return is_last and not self.queue.entries_sent
        return self.queue.is_drained(ledger_id)

    def on_closed(self) -> None:
        """We have closed the ledger that the chain wanted closed, at the last entry that we sent."""
        for segment in (self.segment, self._draining):
            if segment is not None and segment.ledger_id == self.chain.closing:
                self.chain.on_closed(segment.counts())
                return
        raise AssertionError(f"ledger {self.chain.closing} is not of this leadership")

    # --- retention ----------------------------------------------------------------------------

    @property
    def durable_bytes(self) -> int:
        """Bytes of all records of the log that are known to be durable."""
        return self._bytes_before + self.queue.durable_bytes

    def may_let_go(self, now_ms: int) -> bool:
        """Whether retention lets a ledger go, if cursors pin nothing."""
        return let_go(self.chain.metadata, None, now_ms, durable_bytes=self.durable_bytes) > 0

    def want_roll_of_expired(self, now_ms: int) -> bool:
        """Ask for a roll if retention would let everything in the current ledger go. Return whether it
        asks."""
        chain = self.chain
        is_wanted = (
            is_current_expired(chain.metadata, now_ms, self.segment.last_ms) and chain.may_roll_by_policy
        )
        if is_wanted:
            chain.want_roll()
        return is_wanted

    # --- the end ------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the chain needs nothing more, because it is finished or lost."""
        return self.chain.failure is not None or self.chain.is_finished

    def on_lost(self, failure: LedgerLogError) -> None:
        """The leadership is over: take and send nothing more."""
        if self.failure is None:
            if not isinstance(failure, LostLeadership | LogSealed | NotEnoughBookies | PermissionDenied):
                failure = LostLeadership(self.name, None, str(failure))
            self.failure = self.refusal = failure
            self.chain.on_lost(failure)

    def leave(self) -> None:
        """The user leaves the writer: take nothing more, and close the ledgers once they are drained."""
        if self.refusal is None:
            self.refusal = self._left()
        self.chain.finish()

    @property
    def wants_successor(self) -> bool:
        """Whether another leader may have taken over whose epoch is not known yet; see ``on_successor``."""
        return isinstance(self.failure, LostLeadership) and self.failure.epoch is None

    def on_successor(self, record: LogMetadata | None, why_gone: LedgerLogError | None = None) -> None:
        """Learn from the log's record which process leads now. Several tasks may report a record; the first
        answer counts. ``why_gone`` as for ``LeaderChain.on_record``."""
        if not self.wants_successor:
            return
        if record is None or record.sealed or record.epoch > self.epoch:
            self.failure = self.refusal = deposed_by(self.name, record, why_gone)

    def end(self, ends: Mapping[int, int], short: Collection[int] = ()) -> LedgerLogError:
        """Give every append that is not answered its verdict; see ``AppendQueue.resolve`` for the arguments.

        Returns:
            The error for the appends that are not durable.
        """
        if self.failure is None:
            self.failure = self.refusal = self._left()
        if not self.chain.is_finished:
            self.chain.on_lost(self.failure)
        self.queue.resolve(ends, short)
        return self.failure

    def _left(self) -> LostLeadership:
        return LostLeadership(self.name, None, "its writer was left")
