"""Making whole ledgers part of a log, once: the decisions of one commit.

Somebody who writes in parallel, and may have to do it all again, writes to ledgers that are in no log (they
are *staged*), closes them, and then splices them: one transaction on the metadata store appends them to the
log's list, marks them as the log's, and moves the mark of their producer (``model.attach``). The batch is in
the log if and only if that transaction took effect. Whoever is late, or does the same twice, has only written
to ledgers that nothing names.

    READ      read the log's record, the producer's mark and the staged ledgers    -> on_read
    RECOVER   recover ``recovering`` to CLOSED and look at its entries             -> on_recovered
    WRITE     the transaction: ``record``, ``mark``, and the ledgers' labels       -> on_written, else
                                                                                      on_unsettled
    DONE      the batch is in the log; ``was_there`` if it was so before this commit
    FAILED    ``failure``; nothing was spliced, or surely not by this commit

**Once.** What was spliced already is known by the mark: the batch is the last one, and what is staged has as
many records, or it is an older one of the same run. A transaction whose answer was lost is settled in the
same way, by reading everything again, and one that may still arrive was made for versions that are gone by
then or is the very same; the labels of the ledgers tell of one that arrives after the mark was read.
Without a producer it is known by the ledgers alone: they carry the log's labels exactly if their transaction
took effect.

**Who leads.** The first commit of a run takes the log over as any leader does: what is open is recovered and
counted, and the epoch grows, so that a writer who was forgotten fails instead of going on beside it. Later
commits of the run find the epoch that the mark names, or somebody else has taken over meanwhile and this run
is told (LostLeadership). A run that another run of the same producer has followed is told as well: two
drivers on one checkpoint are one driver and one that fails.

**The traps.** A producer whose source is another one than the mark's has lost its checkpoint: its batches
begin at 0 again and would all pass for done. One whose checkpoint was put back begins again below the mark,
with batches that have the numbers of others and may hold other rows. A new run repeats the last batch and no
older one, for whoever numbers the batches writes down that one is done before the next one begins. A batch
with the mark's number and another count of records is another batch. One that is beyond the next means that
the log lacks what lies between, as does a log that ends before the mark: it was deleted and made anew, or the
store was put back. All of these are errors (``SpliceRefused``).

A mark that version 0.1 wrote has no count and no end. Of the batch that it names only the number is compared;
the next batch completes the mark."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from ledgerlog.errors import (
    EntryCorrupt,
    LedgerLogError,
    LogListFull,
    LogNotFound,
    LogSealed,
    LossUndecided,
    LostLeadership,
)
from ledgerlog.limits import LOG_SEGMENTS_SPLICE_MAX
from ledgerlog.log.core.chain import Contents, Counting
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata

__all__ = ["Commit", "Splice", "SpliceNeed", "SpliceRefused", "Staged", "StagedLedger"]


class SpliceRefused(LedgerLogError):
    """The batch was not spliced, and trying again will not change that. The message says why."""


@attrs.frozen
class Staged:
    """A ledger that was written apart."""

    ledger_id: int
    record_count: int
    byte_length: int
    last_entry: int


@attrs.frozen(kw_only=True)
class Commit:
    """One batch."""

    producer: str | None
    """None: nobody numbers it, and only these very ledgers are known again."""
    source: str
    run: str
    batch: int
    staged: tuple[Staged, ...]
    """In the order of their records in the log; ledgers without records are left out."""
    gaps: bool = False
    """Whether numbers may be passed over."""

    @property
    def records(self) -> int:
        """How many records are staged."""
        return sum(each.record_count for each in self.staged)


@attrs.frozen
class StagedLedger:
    """A staged ledger as it was read."""

    metadata: LedgerMetadata
    version: int
    is_spliced: bool
    """Whether it carries the labels of the log that it is part of, or was."""


class SpliceNeed(enum.Enum):
    READ = "read what there is"
    RECOVER = "recover a ledger"
    WRITE = "write the transaction"
    DONE = "done"
    FAILED = "failed"


class Splice:
    """One commit of a batch."""

    def __init__(self, name: str, commit: Commit, *, new_token: Callable[[], bytes]) -> None:
        self._name = name
        self._commit = commit
        self._new_token = new_token
        self._counting: Counting | None = None
        self._takes_over = False
        self._now_ms = 0
        self._was_found = False
        self._was_tried = False
        self.need = SpliceNeed.READ
        self.failure: LedgerLogError | None = None
        self.was_there = False
        self.base: LogMetadata | None = None
        """The record as it was read at ``version``."""
        self.version = -1
        self.base_mark: SpliceMark | None = None
        """The mark as it was read at ``mark_version``; None where there is none yet."""
        self.mark_version = -1
        self.record: LogMetadata | None = None
        """The record to write."""
        self.mark: SpliceMark | None = None
        """The mark to write; None where the batch has no producer."""
        self.ledgers: Mapping[int, StagedLedger] = {}
        """The staged ledgers as they were read, by id."""

    @property
    def recovering(self) -> int:
        """The ledger to recover now."""
        assert self.need is SpliceNeed.RECOVER
        assert self._counting is not None
        ledger_id = self._counting.recovering
        assert ledger_id is not None
        return ledger_id

    def garbage(self) -> list[StagedLedger]:
        """Once it has ended: the staged ledgers that are surely no part of the log and never will be. Those
        of a batch that was there already, by another attempt."""
        if not self._was_found:
            return []  # They are a part of it now, or may become one by a transaction that is on its way.
        return [ledger for ledger in self.ledgers.values() if not ledger.is_spliced]

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
        """Everything, read in this order after a sync of the store: the producer's mark, the log's record,
        which is therefore at least as new, the staged ledgers in theirs (None: it is gone)."""
        assert self.need is SpliceNeed.READ
        self._counting, self.record, self.mark = None, None, None
        self.base, self.version = metadata, version
        self.base_mark, self.mark_version = mark, mark_version
        self.ledgers = {ledger.metadata.ledger_id: ledger for ledger in ledgers if ledger is not None}
        self._now_ms = now_ms
        if metadata is None:
            # Its marks and its ledgers go after its record, and what they say is worth nothing any more.
            self._fail(LogNotFound(self._name))
            return
        if self._is_there():
            is_ours = self._is_ours()
            doubt = None if is_ours else self._doubt(metadata)
            if doubt is not None:
                self._fail(doubt)
                return
            self._was_found = True
            self.was_there = not (is_ours and self._was_tried)
            self.need = SpliceNeed.DONE
            return
        refusal = self._refusal(metadata)
        if refusal is not None:
            self._fail(refusal)
            return
        self._counting = Counting(metadata)
        self._takes_over = bool(metadata.open_segments) or mark is None or mark.run != self._commit.run
        self._go_on()

    def on_recovered(self, contents: Contents | None, *, is_short: bool = False) -> None:
        """``recovering`` is CLOSED, and these are its first and last entry (None: it is empty). ``is_short``:
        it was ended by an accepted loss."""
        assert self.need is SpliceNeed.RECOVER
        assert self._counting is not None
        try:
            self._counting.on_recovered(contents, is_short=is_short)
        except (EntryCorrupt, LossUndecided) as failure:
            self._fail(failure)
        else:
            self._go_on()

    def on_written(self) -> None:
        """The transaction took effect."""
        assert self.need is SpliceNeed.WRITE
        self.need = SpliceNeed.DONE

    def on_unsettled(self) -> None:
        """The transaction met something that has changed, or its answer was lost."""
        assert self.need is SpliceNeed.WRITE
        self._was_tried = True
        self.need = SpliceNeed.READ

    # --- deciding -----------------------------------------------------------------------------

    def _is_there(self) -> bool:
        commit, mark = self._commit, self.base_mark
        if commit.producer is None:
            return self._is_ours()
        if self._was_tried and self._is_ours():
            return True  # Our transaction has arrived since the mark was read.
        return mark is not None and mark.source == commit.source and commit.batch <= mark.batch

    def _is_ours(self) -> bool:
        """Whether these very ledgers became part of the log: all did if one did. Some may be gone since, by
        retention or because they lie in an archive."""
        return any(ledger.is_spliced for ledger in self.ledgers.values())

    def _doubt(self, metadata: LogMetadata) -> LedgerLogError | None:
        """Why the batch that is there with this number may be another one; None where it is this one."""
        commit, mark = self._commit, self.base_mark
        assert mark is not None, "without a producer these very ledgers are there"
        # Where each run has a checkpoint of its own (one was copied) the other run's batch of that number may
        # hold other rows, and this run would pass for done batch after batch. After an attempt whose answer
        # was lost, the run that followed may have found this batch.
        followed = None if self._was_tried else self._followed()
        if followed is not None:
            return followed
        if commit.batch < mark.batch and commit.run != mark.run and commit.run not in mark.former:
            return SpliceRefused(
                f"log {self._name!r}: a new run of producer {commit.producer!r} writes batch {commit.batch}, "
                f"and the log has those up to {mark.batch}: a checkpoint was put back to an older state, or "
                "the numbers of jobs go back. Its rows may be others than those that were written under that "
                f"number. Go on with the newer checkpoint, or with a number beyond {mark.batch}; or take "
                "another producerId (for a stream together with failOnDataLoss=false), and see what is there "
                "twice"
            )
        if commit.batch == mark.batch and mark.records not in (None, commit.records):
            return SpliceRefused(
                f"log {self._name!r}: batch {commit.batch} of producer {commit.producer!r} has "
                f"{commit.records} records, and the batch of that number in the log has {mark.records} "
                f"(up to offset {mark.end_offset}): they are not the same batch, as after a checkpoint was "
                "put back, or the query gives other rows when it is run again. Take another producerId (for "
                "a stream together with failOnDataLoss=false), and see what is there twice"
            )
        return self._put_back(metadata)

    def _put_back(self, metadata: LogMetadata) -> LedgerLogError | None:
        """What is wrong where the log's record is older than the mark, though one transaction writes both."""
        mark = self.base_mark
        if mark is None or mark.end_offset is None or mark.end_offset <= metadata.counted_end:
            return None
        return SpliceRefused(
            f"log {self._name!r}: batch {mark.batch} of producer {mark.producer!r} ended at offset "
            f"{mark.end_offset}, and the log's list of ledgers ends at {metadata.counted_end}: its record "
            "was put back to an older state, and what it listed since is missing"
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
                f"log {self._name!r} remembers who appended what (dedupe), which whole ledgers do not say; "
                "enter log.writer(dedupe=False) once to switch it off"
            )
        if mark is not None and mark.source != commit.source:
            return SpliceRefused(
                f"log {self._name!r}: producer {commit.producer!r} wrote batches up to {mark.batch} from "
                f"another checkpoint ({mark.source}, not {commit.source}). If its checkpoint was deleted, "
                "its batches begin at 0 again and would pass for done: take another producerId, and see what "
                "is there twice"
            )
        followed = self._followed()
        if followed is not None:
            return followed
        put_back = self._put_back(metadata)
        if put_back is not None:
            return put_back
        if mark is not None and commit.run == mark.run and metadata.epoch != mark.epoch:
            return LostLeadership(self._name, metadata.epoch)
        expected = 0 if mark is None else mark.batch + 1
        if commit.producer is not None and commit.batch > expected and not commit.gaps:
            there = "none" if mark is None else f"those up to {mark.batch}"
            return SpliceRefused(
                f"log {self._name!r}: batch {commit.batch} of producer {commit.producer!r} where the log has "
                f"{there}: the batches between are missing, as after a log was deleted and made again. "
                "failOnDataLoss=false goes on without them"
            )
        if len(metadata.segments) + len(commit.staged) > LOG_SEGMENTS_SPLICE_MAX:
            return LogListFull(self._name, len(metadata.segments))
        return self._staged_refusal()

    def _staged_refusal(self) -> LedgerLogError | None:
        for staged in self._commit.staged:
            ledger = self.ledgers.get(staged.ledger_id)
            if ledger is None:
                return SpliceRefused(
                    f"ledger {staged.ledger_id} was staged for log {self._name!r} and is gone: it was swept, "
                    "or deleted by hand"
                )
            if ledger.metadata.last_entry != staged.last_entry or staged.last_entry == NO_ENTRY:
                return SpliceRefused(
                    f"ledger {staged.ledger_id} was staged with entries up to {staged.last_entry} and ends "
                    f"with {ledger.metadata.last_entry}: somebody else closed it"
                )
            if ledger.is_spliced:
                return SpliceRefused(f"ledger {staged.ledger_id} is part of a log already")
        return None

    def _go_on(self) -> None:
        assert self.base is not None
        assert self._counting is not None
        commit = self._commit
        if self._takes_over and self._counting.recovering is not None:
            self.need = SpliceNeed.RECOVER
            return
        token = self._new_token()
        self.record = self.base.spliced(
            [(each.ledger_id, each.record_count, each.byte_length) for each in commit.staged],
            self._now_ms,
            token,
            counts=self._counting.counts if self._takes_over else None,
        )
        if commit.producer is not None:
            if self.base_mark is None:
                self.mark = SpliceMark(
                    producer=commit.producer,
                    source=commit.source,
                    batch=commit.batch,
                    run=commit.run,
                    former=(),
                    epoch=self.record.epoch,
                    token=token,
                    records=commit.records,
                    end_offset=self.record.counted_end,
                )
            else:
                self.mark = self.base_mark.moved(
                    batch=commit.batch,
                    run=commit.run,
                    epoch=self.record.epoch,
                    token=token,
                    records=commit.records,
                    end_offset=self.record.counted_end,
                )
        self.need = SpliceNeed.WRITE

    def _fail(self, failure: LedgerLogError) -> None:
        self.failure = failure
        self.need = SpliceNeed.FAILED
