"""The decisions of one commit, which makes whole ledgers part of a log exactly once.

A job that writes in parallel may have to write everything again after a failure. So it writes to ledgers that
are in no log (*staged* ledgers), closes them, and then splices them. The splice is one transaction on the
metadata store. It appends the ledgers to the log's list, labels the last of them as the log's
(``witnesses``), and moves their producer's *mark*: a record of the producer's last batch (``model.attach``).
The batch is in the log if and only if that transaction took effect. If a task comes too late, or runs twice,
it has only written to ledgers that no list names.

    READ      read the log's record, the producer's mark and the staged ledgers    -> on_read
    ASK       ask the leader to splice: ``on_asked``; then on_unanswered, on_refused, or nothing
    RECOVER   recover ``recovering`` to CLOSED and look at its entries             -> on_recovered
    WRITE     the transaction: ``record``, ``mark``, and labels of ``witnesses``   -> on_written, else
                                                                                      on_unsettled
    DONE      the batch is in the log; ``was_there`` tells whether it was there before this commit
    FAILED    ``failure`` says why; this commit spliced nothing

**Once.** The mark shows which batches are in the log. A batch is in the log if it has the mark's number and
the mark's count of records. Every older batch of the same run is in the log too. If the answer to a
transaction was lost, reading everything again shows in the same way whether the batch is in the log. The lost
transaction may still reach the store. If anything that it replaces has changed by then, it fails. Otherwise
it does the same as its repetition. If it takes effect after the mark was read, the labels of the ledgers show
that. Without a producer there is no mark. Then only the labels count: the last ledgers of the batch carry the
log's labels if and only if their transaction took effect.

**Many ledgers.** A transaction has room for the labels of ``limits.LOG_SPLICE_LABELS_MAX`` ledgers. The
ledgers before these keep the label that says that they are staged. So that label does not say that a ledger
is in no list: only the list does. The last ledgers are the witnesses, because retention and truncation take
the first ones off the list first.

**Several producers.** A splice needs no leadership. If no ledger of the log is open, the transaction takes
effect at the version of the record that was read, and the epoch stays. So the batches of any number of
producers alternate, and each producer's mark keeps its own batches apart. A run gets LostLeadership only if
another run *of the same producer* has followed it. So if two drivers use one checkpoint, one of them fails.

**Beside a leader.** An open ledger belongs to a leader. Only the leader knows which offsets it has given to
records that are on their way. So the splice asks the leader, and the leader makes the same decisions with
this same core (``by_leader``) and puts the batch into the transaction that continues the log in a new ledger
(``log.core.chain``). Afterwards, everything is read again: the mark and the labels tell whether the batch is
in the log, as after a lost answer. If the leader does not answer, it is dead or stuck, or its version knows
no requests. Then the splice takes the log over, as a leader does: it recovers and counts the open ledgers and
raises the epoch. A batch without rows needs no place in the log: it moves the mark beside any leader.

**The traps.** All of these raise ``SpliceRefused``:

- The mark names another source (the producer's checkpoint). The producer has lost its checkpoint. Its batches
  begin at 0 again, so all of them would look like batches that are in the log already.
- A new run sends a batch below the mark. A driver writes down that a batch is done before it begins the next
  one, so a new run repeats the last batch and no older one. A run that sends an older batch has a checkpoint
  that was put back to an older state. Its batches reuse the numbers of batches in the log and may hold other
  rows.
- The batch has the mark's number and another count of records. So it is not the batch that is in the log.
- The batch skips numbers. The log lacks the skipped batches, because the log was deleted and created again,
  or because the metadata store was put back to an older state.
- The log ends before the mark. The metadata store was put back to an older state.

A mark that version 0.1 wrote has no count and no end, so only the batch number is compared. The next batch
completes the mark.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from ledgerlog.errors import (
    LedgerLogError,
    LogListFull,
    LogNotFound,
    LogSealed,
    LostLeadership,
    MetadataOutcomeUnknown,
)
from ledgerlog.limits import LOG_SEGMENTS_SPLICE_MAX, LOG_SPLICE_LABELS_MAX
from ledgerlog.log.core.chain import Counting, CountsOpenLedgers
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata

__all__ = ["Commit", "Splice", "SpliceNeed", "SpliceRefused", "Staged", "StagedLedger"]

_ANSWERS_MAX = 3
"""If the leader has removed a request this many times without splicing the batch, the splice takes over."""
_COUNT_MAX = 2**62
"""How many records and bytes a log may have after a splice. The other half is for what follows."""


class SpliceRefused(LedgerLogError):
    """The batch was not spliced, and trying again will not change that. The message says why."""


@attrs.frozen
class Staged:
    """A closed ledger that was written apart from its log."""

    ledger_id: int
    record_count: int
    byte_length: int
    last_entry: int
    """The entry at which it was closed."""


@attrs.frozen(kw_only=True)
class Commit:
    """One batch to splice."""

    producer: str | None
    """The producer that numbers the batches. None if the batches have no numbers: then only the labels of the
    staged ledgers tell whether the batch is in the log."""
    source: str
    """Identifies the producer's checkpoint. If the source changes, the checkpoint was lost."""
    run: str
    """Identifies one run of the producer: one start of its job."""
    batch: int
    """The number of the batch."""
    staged: tuple[Staged, ...]
    """The staged ledgers, in the order of their records in the log, without empty ones."""
    gaps: bool = False
    """Whether the producer may skip batch numbers."""

    @property
    def records(self) -> int:
        """How many records are staged."""
        return sum(each.record_count for each in self.staged)

    @property
    def placed(self) -> tuple[tuple[int, int, int], ...]:
        """The id, records and bytes of each staged ledger, for the log's list."""
        return tuple((each.ledger_id, each.record_count, each.byte_length) for each in self.staged)


@attrs.frozen
class StagedLedger:
    """The metadata of a staged ledger, as it was read."""

    metadata: LedgerMetadata
    version: int
    is_spliced: bool
    """Whether the ledger carries the log's labels, because it is or was part of the log. A ledger that is not
    a witness may be part of the log without them."""


class SpliceNeed(enum.Enum):
    """The next step of the shell. The module docstring explains each need."""

    READ = "read what there is"
    ASK = "ask the leader"
    RECOVER = "recover a ledger"
    WRITE = "write the transaction"
    DONE = "done"
    FAILED = "failed"


class Splice(CountsOpenLedgers):
    """One commit of a batch.

    Args:
        name: The name of the log.
        commit: The batch.
        new_token: Makes the random token of a write.
        by_leader: Whether the leader of the log decides about a request. Then WRITE means that the leader may
            write; ``on_led`` takes the record that it writes.
    """

    def __init__(
        self, name: str, commit: Commit, *, new_token: Callable[[], bytes], by_leader: bool = False
    ) -> None:
        self._name = name
        self._commit = commit
        self._new_token = new_token
        self._by_leader = by_leader
        self._answers = 0
        self._silent_epoch: int | None = None
        """The epoch whose leader is not asked again, because it does not answer."""
        self._now_ms = 0
        self._was_found = False
        self.was_tried = False
        """Whether an earlier attempt, or the leader, may have spliced the batch."""
        self.need = SpliceNeed.READ
        self.failure: LedgerLogError | None = None
        """Why the commit failed, once ``need`` is FAILED."""
        self.was_there = False
        """Whether the batch was in the log before this commit."""
        self.base: LogMetadata | None = None
        """The record of the log, as it was read at ``version``."""
        self.version = -1
        self.base_mark: SpliceMark | None = None
        """The mark as it was read at ``mark_version``; None if there is none yet."""
        self.mark_version = -1
        self.record: LogMetadata | None = None
        """The record to write."""
        self.mark: SpliceMark | None = None
        """The mark to write; None if the batch has no producer."""
        self.ledgers: Mapping[int, StagedLedger] = {}
        """The staged ledgers as they were read, by id."""
        self._listed: frozenset[int] = frozenset()
        """The staged ledgers that the log's list names."""

    @property
    def is_recovering(self) -> bool:
        return self.need is SpliceNeed.RECOVER

    @property
    def witnesses(self) -> tuple[Staged, ...]:
        """The staged ledgers whose labels the transaction changes: the last ones of the batch."""
        return self._commit.staged[-LOG_SPLICE_LABELS_MAX:]

    def garbage(self) -> list[StagedLedger]:
        """Return the staged ledgers that surely are in no log and never will be. Valid once the commit has
        ended.

        There are such ledgers only if another attempt has already put the batch into the log.
        """
        if not self._was_found or self._is_ours():
            # The ledgers are part of the log now, or a transaction that is on its way may still add them.
            return []
        return [
            ledger
            for ledger_id, ledger in self.ledgers.items()
            if not ledger.is_spliced and ledger_id not in self._listed
        ]

    # --- what the world says ------------------------------------------------------------------

    def on_read(
        self,
        metadata: LogMetadata | None,
        version: int,
        mark: SpliceMark | None,
        mark_version: int,
        ledgers: Sequence[StagedLedger | None],
        now_ms: int,
    ) -> None:
        """Take in the values that were read after a sync of the store, in this order: the mark, the log's
        record, the staged ledgers.

        So the record is at least as new as the mark.

        Args:
            metadata: The log's record; None if the log is gone.
            version: The version of the record.
            mark: The producer's mark; None if there is none.
            mark_version: The version of the mark.
            ledgers: The staged ledgers in the commit's order; None for a ledger that is gone.
            now_ms: The wall clock.
        """
        assert self.need is SpliceNeed.READ
        self._counting, self.record, self.mark = None, None, None
        self.base, self.version = metadata, version
        self.base_mark, self.mark_version = mark, mark_version
        self.ledgers = {ledger.metadata.ledger_id: ledger for ledger in ledgers if ledger is not None}
        self._now_ms = now_ms
        self._listed = frozenset(
            segment.ledger_id
            for segment in (() if metadata is None else metadata.segments)
            if segment.ledger_id in self.ledgers
        )
        if metadata is None:
            # A log's record is deleted first, then its marks and ledgers. Without the record they mean
            # nothing.
            self._fail(LogNotFound(self._name))
            return
        if self._is_there():
            is_ours = self._is_ours()
            doubt = None if is_ours else self._doubt(metadata)
            if doubt is not None:
                self._fail(doubt)
                return
            self._was_found = True
            self.was_there = not (is_ours and self.was_tried)
            self.need = SpliceNeed.DONE
            return
        refusal = self._refusal(metadata)
        if refusal is not None:
            self._fail(refusal)
            return
        if self._by_leader:
            self.need = SpliceNeed.WRITE
        elif metadata.open_segments and self._commit.staged:
            self._counting = Counting(metadata)
            if metadata.epoch == self._silent_epoch:
                self._go_on()
            else:
                self.need = SpliceNeed.ASK
        else:
            self._go_on()

    def on_asked(self) -> None:
        """The leader is about to be asked, so it may splice the batch from now on. Read everything again once
        the request is gone."""
        assert self.need is SpliceNeed.ASK
        self.was_tried = True
        self._answers += 1
        if self._answers >= _ANSWERS_MAX:
            self._fall_silent()
        self.need = SpliceNeed.READ

    def on_unanswered(self) -> None:
        """The leader did not answer the request, which is withdrawn."""
        assert self.need is SpliceNeed.READ
        self._fall_silent()

    def on_refused(self, why: str, *, is_full: bool) -> None:
        """The leader refused the batch, for a reason that reading does not show.

        Args:
            why: The reason, for the error.
            is_full: Whether the log's list is too long.
        """
        assert self.need is SpliceNeed.READ
        assert self.base is not None
        self._fail(LogListFull(self._name, len(self.base.segments)) if is_full else SpliceRefused(why))

    def _fall_silent(self) -> None:
        assert self.base is not None
        self._silent_epoch = self.base.epoch

    def on_led(self, record: LogMetadata) -> None:
        """The leader writes this record, which lists the staged ledgers. Take the mark that goes with it."""
        assert self._by_leader
        assert self.need is SpliceNeed.WRITE
        self._set_record(record)

    def on_changed(self) -> None:
        """The log's record does not list ``recovering`` as before: read everything again."""
        assert self.need is SpliceNeed.RECOVER
        self.need = SpliceNeed.READ

    def on_written(self) -> None:
        """The transaction took effect."""
        assert self.need is SpliceNeed.WRITE
        self.need = SpliceNeed.DONE

    def on_unsettled(self) -> None:
        """Something that the transaction checks has changed, or its answer was lost."""
        assert self.need is SpliceNeed.WRITE
        self.was_tried = True
        self.need = SpliceNeed.READ

    # --- deciding -----------------------------------------------------------------------------

    def _is_there(self) -> bool:
        commit, mark = self._commit, self.base_mark
        if commit.producer is None:
            return self._is_ours()
        if self.was_tried and self._is_ours():
            return True  # Our transaction has arrived since the mark was read.
        return mark is not None and mark.source == commit.source and commit.batch <= mark.batch

    def _is_ours(self) -> bool:
        """Whether these very ledgers became part of the log. If one of them did, all did, but only the labels
        of the witnesses show it. Retention or the archive may have removed some of them since."""
        return any(ledger.is_spliced for ledger in self.ledgers.values())

    def _is_surely_not_ours(self) -> bool:
        """Whether none of these ledgers ever became part of the log: all are there, without its labels."""
        staged = self._commit.staged
        return bool(staged) and len(self.ledgers) == len(staged) and not self._is_ours()

    def _doubt(self, metadata: LogMetadata) -> LedgerLogError | None:
        """Return why the batch in the log may be another batch with the same number; None if it is this
        batch."""
        commit, mark = self._commit, self.base_mark
        assert mark is not None, "without a producer these very ledgers are there"
        # Two runs may use two copies of one checkpoint. Then the other run's batch of this number may hold
        # other rows, and all batches of this run would look done. Do not check this if an attempt, or the
        # leader, may have put this very batch into the log before the other run began.
        may_be_ours = self.was_tried and not self._is_surely_not_ours()
        followed = None if may_be_ours else self._followed()
        if followed is not None:
            return followed
        if commit.batch < mark.batch and commit.run != mark.run and commit.run not in mark.former:
            return SpliceRefused(
                f"log {self._name!r}: a new run of producer {commit.producer!r} writes batch {commit.batch}, "
                f"but the log already has the batches up to {mark.batch}: a checkpoint was set back to an "
                f"older state, or the numbers of jobs go back. Its rows may differ from those that were "
                f"written under that number. Continue with the newer checkpoint, or with a number above "
                f"{mark.batch}. Or take another "
                "producerId (for a stream together with failOnDataLoss=false), and look for rows that are "
                "in the log twice"
            )
        if commit.batch == mark.batch and mark.records not in (None, commit.records):
            return SpliceRefused(
                f"log {self._name!r}: batch {commit.batch} of producer {commit.producer!r} has "
                f"{commit.records} records, but the batch of that number in the log has {mark.records} "
                f"(up to offset {mark.end_offset}): they are not the same batch. A checkpoint was set back "
                f"to an older state, or the query returns other rows when it runs again. Take another "
                "producerId (for a stream together with failOnDataLoss=false), and look for rows that are in "
                "the log twice"
            )
        return self._put_back(metadata)

    def _put_back(self, metadata: LogMetadata) -> LedgerLogError | None:
        """Return an error if the log's record is older than the mark, though one transaction writes both."""
        mark = self.base_mark
        if mark is None or mark.end_offset is None or mark.end_offset <= metadata.counted_end:
            return None
        return SpliceRefused(
            f"log {self._name!r}: batch {mark.batch} of producer {mark.producer!r} ended at offset "
            f"{mark.end_offset}, but the log's list of ledgers ends at {metadata.counted_end}: the log's "
            f"record was set back to an older state, and the ledgers that it listed since then are missing"
        )

    def _followed(self) -> LedgerLogError | None:
        commit, mark, metadata = self._commit, self.base_mark, self.base
        assert metadata is not None
        if mark is not None and commit.run in mark.former:
            return LostLeadership(
                self._name,
                metadata.epoch,
                f"another run of producer {commit.producer!r} has followed this one",
            )
        return None

    def _refusal(self, metadata: LogMetadata) -> LedgerLogError | None:
        commit, mark = self._commit, self.base_mark
        if metadata.sealed:
            return LogSealed(self._name)
        if metadata.dedupe_epoch is not None:
            return SpliceRefused(
                f"log {self._name!r} has deduplication (dedupe), and spliced ledgers do not say which "
                "producer appended their records; enter log.writer(dedupe=False) once to turn it off"
            )
        if mark is not None and mark.source != commit.source:
            return SpliceRefused(
                f"log {self._name!r}: producer {commit.producer!r} wrote batches up to {mark.batch} from "
                f"another checkpoint ({mark.source}, not {commit.source}). If its checkpoint was deleted, "
                "its batches begin at 0 again and would look like batches that are done: take another "
                "producerId, and look for rows that are in the log twice"
            )
        followed = self._followed()
        if followed is not None:
            return followed
        put_back = self._put_back(metadata)
        if put_back is not None:
            return put_back
        expected = 0 if mark is None else mark.batch + 1
        if commit.producer is not None and commit.batch > expected and not commit.gaps:
            there = "none" if mark is None else f"those up to {mark.batch}"
            return SpliceRefused(
                f"log {self._name!r}: batch {commit.batch} of producer {commit.producer!r} skips batches: "
                f"the log has {there}, and the batches between are missing, for example because the log was "
                f"deleted and created again. With failOnDataLoss=false the stream continues without them"
            )
        if commit.staged and len(metadata.segments) + len(commit.staged) > LOG_SEGMENTS_SPLICE_MAX:
            return LogListFull(self._name, len(metadata.segments))
        return self._size_refusal(metadata) or self._staged_refusal()

    def _size_refusal(self, metadata: LogMetadata) -> LedgerLogError | None:
        """Refuse a batch that no stage can have made. Another process gave its numbers."""
        staged = self._commit.staged
        end = metadata.counted_end + self._commit.records
        byte_count = metadata.counted_bytes + sum(each.byte_length for each in staged)
        if len({each.ledger_id for each in staged}) < len(staged):
            why = "names a ledger twice"
        elif any(each.record_count < 1 for each in staged):
            why = "names a ledger without records"
        elif max(end, byte_count) > _COUNT_MAX:
            why = f"has {self._commit.records} records and the log then {byte_count} bytes, more than can be"
        else:
            return None
        return SpliceRefused(f"log {self._name!r}: batch {self._commit.batch} {why}")

    def _staged_refusal(self) -> LedgerLogError | None:
        for staged in self._commit.staged:
            ledger = self.ledgers.get(staged.ledger_id)
            if ledger is None and self.was_tried:
                return MetadataOutcomeUnknown(
                    f"ledger {staged.ledger_id} was staged for log {self._name!r} and is gone: it was "
                    f"spliced and later truncated, or it was deleted before the splice"
                )
            if ledger is None:
                return SpliceRefused(
                    f"ledger {staged.ledger_id} was staged for log {self._name!r} and is gone: it was swept, "
                    "or deleted by hand"
                )
            if ledger.metadata.last_entry != staged.last_entry or staged.last_entry == NO_ENTRY:
                return SpliceRefused(
                    f"ledger {staged.ledger_id} was staged with entries up to {staged.last_entry} and ends "
                    f"with {ledger.metadata.last_entry}: another process closed it"
                )
            if ledger.is_spliced or staged.ledger_id in self._listed:
                return SpliceRefused(f"ledger {staged.ledger_id} is part of a log already")
        return None

    def _go_on(self) -> None:
        assert self.base is not None
        if self._counting is not None and self._counting.recovering is not None:
            self.need = SpliceNeed.RECOVER
            return
        self._set_record(
            self.base.spliced(
                self._commit.placed,
                self._now_ms,
                self._new_token(),
                counts=None if self._counting is None else self._counting.counts,
            )
        )
        self.need = SpliceNeed.WRITE

    def _set_record(self, record: LogMetadata) -> None:
        """Write this record, together with the mark that belongs to it."""
        commit = self._commit
        self.record = record
        if commit.producer is None:
            return
        if self.base_mark is None:
            self.mark = SpliceMark(
                producer=commit.producer,
                source=commit.source,
                batch=commit.batch,
                run=commit.run,
                former=(),
                epoch=record.epoch,
                token=record.token,
                records=commit.records,
                end_offset=record.counted_end,
            )
        else:
            self.mark = self.base_mark.moved(
                batch=commit.batch,
                run=commit.run,
                epoch=record.epoch,
                token=record.token,
                records=commit.records,
                end_offset=record.counted_end,
            )

    def _fail(self, failure: LedgerLogError) -> None:
        self.failure = failure
        self.need = SpliceNeed.FAILED
