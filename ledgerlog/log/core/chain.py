"""The chain of a log's ledgers: taking over, rolling, ending (protocol A.6, D22 to D26, C01 to C05).

Two machines share the rules. ``Takeover`` makes a leader; ``LeaderChain`` is the leader's list of ledgers.
Verbs in, state out: ``need`` says what the shell has to do next and stays so until it is answered.

**Taking over**

    READ      read the record with its version                            -> on_record
    RECOVER   recover ``recovering`` to CLOSED and look at its entries     -> on_recovered
    CREATE    make a ledger                                                -> on_created
    WRITE     compare-and-set ``record`` at ``version``                    -> on_written, else on_unsettled
    SETTLE    read the record again                                        -> on_record
    DONE      ``record`` at ``version`` is stored; appends to ``ledger_id`` may begin (C04)

Every ledger that is not counted is recovered before the write, which by the rule of rolling are the
last two at most (C01, D23): fencing alone would leave their ends open. A write that met a conflict
starts everything again, recovery included; the version alone is never read anew (C02).

**A write whose fate is not clear is settled by reading** (rule 14). The record carries the token of who
wrote it last. Our token: it is ours. The version we wrote at: it did not happen yet, and the same
value at the same version is written again, so that if the first arrives after all, it is one and the
same. Another version without our ledger: it never happened and never can, and the ledger that we made is
garbage. Another version *with* our ledger: we led and have been deposed.

**Leading**

    SPARE     make a ledger ahead of the next roll                         -> on_spare
    WRITE     compare-and-set ``record`` at ``version``                    -> on_written, else on_unsettled
    SETTLE    read the record again                                        -> on_record
    CLOSE     every append of ``closing`` is acknowledged: close it        -> on_closed

A roll writes the list with the spare at its end; from ``on_written`` on new appends go to it. It waits
until the ledger before the current one is closed and counted (C03), so no more than two are ever open.
The older ledger is closed once all that was sent to it is acknowledged, and what the new one confirms
earlier is acknowledged after that (C05, which the queue of appends sees to).

A conflict need not be a rival: truncation changes the record too. If epoch and current ledger are still
ours, the change is adopted and the write formed anew. A takeover raises the epoch, so it is never
mistaken for that. Who was deposed while his roll was unsettled may find his spare in the successor's list:
then it is not his any more, empty as it is, and is not given back to be deleted.

**A segment counts only if it continues the one before it.** During a roll both ledgers take entries. A
leader that dies then may leave the older one without some of its last entries and the newer one with
what followed them. Nothing of the newer one was acknowledged, as the older was not; counting it as
empty keeps the log what its writer submitted, in order, up to some point. Every entry carries its
offset, so the gap is seen (``count_segment``).

**Unless a loss was accepted.** ``ledger recover --accept-loss`` may end the older ledger before entries that
were acknowledged, and then those of the newer one were too, perhaps. So where the older one was ended in that
way nothing is counted as empty: the takeover stops (``LossUndecided``), and with ``accept_loss``, which is
the operator's word for this log, the newer one counts where its entries say that it begins, behind a gap.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from ledgerlog.errors import (
    EntryCorrupt,
    LedgerLogError,
    LogNotFound,
    LogSealed,
    LossUndecided,
    LostLeadership,
)
from ledgerlog.limits import LOG_SEGMENTS_ROLL_MAX
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import NOTHING, SegmentCounts

__all__ = [
    "ChainNeed",
    "Contents",
    "Counting",
    "LeaderChain",
    "Takeover",
    "TakeoverAim",
    "TakeoverNeed",
    "count_segment",
]


@attrs.frozen(kw_only=True)
class Contents:
    """What the first and the last entry of a closed ledger say."""

    first_offset: int
    end_offset: int
    bytes_before: int
    bytes_after: int
    first_ms: int
    last_ms: int


def count_segment(
    ledger_id: int,
    start_offset: int,
    contents: Contents | None,
    *,
    follows_open: bool,
    keep_behind_gap: bool = False,
) -> SegmentCounts:
    """What a closed ledger contributes to its log from ``start_offset`` on; ``contents`` is None where the
    ledger is empty. ``follows_open``: the ledger before it was open together with it. ``keep_behind_gap``: it
    counts also where it begins later than that one ended.

    EntryCorrupt where its entries can belong to no such log."""
    if contents is None:
        return NOTHING
    lost = 0
    if contents.first_offset > start_offset and follows_open:
        if not keep_behind_gap:
            return NOTHING
        lost = contents.first_offset - start_offset
        start_offset = contents.first_offset
    if contents.first_offset == contents.end_offset == start_offset:
        return SegmentCounts(0, 0, lost_before=lost)  # A checkpoint of the producers, and no record.
    if contents.first_offset != start_offset or contents.end_offset <= start_offset:
        raise EntryCorrupt(
            ledger_id,
            0,
            f"its records have the offsets {contents.first_offset} to {contents.end_offset - 1} "
            f"where the log goes on at {start_offset}",
        )
    return SegmentCounts(
        contents.end_offset - contents.first_offset,
        contents.bytes_after - contents.bytes_before,
        contents.first_ms,
        contents.last_ms,
        lost,
    )


class Counting:
    """The segments of ``base`` that are not counted, one after the other as their ledgers are recovered."""

    def __init__(self, base: LogMetadata, *, accept_loss: bool = False) -> None:
        self._base = base
        self._accept_loss = accept_loss
        self._short: int | None = None
        self._end = base.counted_end
        self.counts: list[SegmentCounts] = []
        """Those of the first open segments, in order."""

    @property
    def recovering(self) -> int | None:
        """The ledger to recover now; None once all are counted."""
        left = self._base.open_segments[len(self.counts) :]
        return left[0].ledger_id if left else None

    def on_recovered(self, contents: Contents | None, *, is_short: bool = False) -> None:
        """``recovering`` is CLOSED, and these are its first and last entry (None: it is empty). ``is_short``:
        it was ended by an accepted loss.

        EntryCorrupt as for ``count_segment``; LossUndecided where its entries would be dropped because the
        ledger before it is short."""
        ledger_id = self.recovering
        assert ledger_id is not None
        is_behind_loss = (
            self._short is not None and contents is not None and contents.first_offset > self._end
        )
        if is_behind_loss and not self._accept_loss:
            assert self._short is not None
            assert contents is not None
            raise LossUndecided(
                self._base.name,
                self._short,
                ledger_id,
                self._end,
                contents.first_offset,
                contents.end_offset,
            )
        counts = count_segment(
            ledger_id,
            self._end,
            contents,
            follows_open=bool(self.counts),
            keep_behind_gap=is_behind_loss,
        )
        self.counts.append(counts)
        self._end += counts.lost_before + counts.record_count
        if is_short:
            self._short = ledger_id


class TakeoverNeed(enum.Enum):
    READ = "read the record"
    RECOVER = "recover a ledger"
    CREATE = "create a ledger"
    WRITE = "write the record"
    SETTLE = "see what became of the write"
    DONE = "done"
    FAILED = "failed"


class TakeoverAim(enum.Enum):
    LEAD = "lead"
    SEAL = "end the log"
    RECOVER = "count what is open, for the next leader"


class Takeover:
    """Becoming the leader of a log, or ending it, or its leadership: the same without a new ledger.
    ``dedupe`` switches deduplication on or off; None leaves it as it is. ``accept_loss`` keeps what follows a
    loss behind a gap."""

    def __init__(
        self,
        name: str,
        *,
        new_token: Callable[[], bytes],
        aim: TakeoverAim = TakeoverAim.LEAD,
        dedupe: bool | None = None,
        accept_loss: bool = False,
    ) -> None:
        self._name = name
        self._new_token = new_token
        self._aim = aim
        self._dedupe = dedupe
        self._accept_loss = accept_loss
        self._counting: Counting | None = None
        self._garbage: list[int] = []
        self._was_unsettled = False  # A write that names a ledger of ours may still be on its way.
        self._is_surely_unwritten = False
        self.base: LogMetadata | None = None
        """The record as it was read: what ``record`` replaces."""
        self.need = TakeoverNeed.READ
        self.record: LogMetadata | None = None
        """The record to write, and in the end the one that is stored."""
        self.version = -1
        """The version that ``record`` replaces, and in the end the one that it has."""
        self.ledger_id: int | None = None
        """The ledger that was made for this leadership."""
        self.failure: LedgerLogError | None = None

    @property
    def recovering(self) -> int:
        """The ledger to recover now."""
        assert self.need is TakeoverNeed.RECOVER
        assert self._counting is not None
        ledger_id = self._counting.recovering
        assert ledger_id is not None
        return ledger_id

    def take_garbage(self) -> list[int]:
        """Ledgers that were made here and surely are in no list: delete them."""
        garbage, self._garbage = self._garbage, []
        return garbage

    def abandon(self) -> None:
        """The takeover is given up. What it made is garbage unless a write may have listed it."""
        is_unlisted = self.need is TakeoverNeed.WRITE and self._is_surely_unwritten
        if is_unlisted or self.need not in (TakeoverNeed.WRITE, TakeoverNeed.SETTLE, TakeoverNeed.DONE):
            self._discard_ledger()

    def on_record(self, metadata: LogMetadata | None, version: int) -> None:
        """The stored record; None where the log is gone."""
        assert self.need in (TakeoverNeed.READ, TakeoverNeed.SETTLE)
        if self.need is TakeoverNeed.SETTLE and self._is_settled_by(metadata, version):
            return
        self.record = None
        if metadata is None:
            self._fail(LogNotFound(self._name))
        elif metadata.sealed:
            self._fail(LogSealed(self._name))
        else:
            self.base, self.version = metadata, version
            self._counting = Counting(metadata, accept_loss=self._accept_loss)
            self._go_on()

    def on_recovered(self, contents: Contents | None, *, is_short: bool = False) -> None:
        """``recovering`` is CLOSED, and these are its first and last entry (None: it is empty). ``is_short``:
        it was ended by an accepted loss."""
        assert self.need is TakeoverNeed.RECOVER
        assert self._counting is not None
        try:
            self._counting.on_recovered(contents, is_short=is_short)
        except (EntryCorrupt, LossUndecided) as failure:
            self._fail(failure)
        else:
            self._go_on()

    def on_created(self, ledger_id: int) -> None:
        assert self.need is TakeoverNeed.CREATE
        self.ledger_id = ledger_id
        self._go_on()

    def on_written(self, version: int) -> None:
        """The write took effect."""
        assert self.need is TakeoverNeed.WRITE
        self.version = version
        self.need = TakeoverNeed.DONE

    def on_unsettled(self) -> None:
        """The write met a conflict or a missing record, or its answer was lost."""
        assert self.need is TakeoverNeed.WRITE
        self._was_unsettled = True
        self.need = TakeoverNeed.SETTLE

    def on_not_written(self) -> None:
        """The write surely did nothing: the store could not be reached, or the record has no room."""
        assert self.need is TakeoverNeed.WRITE
        # Not so if one before it was lost: that one may take effect even now.
        self._is_surely_unwritten = not self._was_unsettled

    def _go_on(self) -> None:
        assert self.base is not None
        assert self._counting is not None
        counts = self._counting.counts
        if self._counting.recovering is not None:
            self.need = TakeoverNeed.RECOVER
        elif self._aim is TakeoverAim.SEAL:
            self.record = self.base.sealed_now(counts, self._new_token())
            self.need = TakeoverNeed.WRITE
        elif self._aim is TakeoverAim.RECOVER and not counts:
            self.record = self.base
            self.need = TakeoverNeed.DONE
        elif self._aim is TakeoverAim.RECOVER:
            self.record = self.base.recovered(counts, self._new_token())
            self.need = TakeoverNeed.WRITE
        elif self.ledger_id is None:
            self.need = TakeoverNeed.CREATE
        else:
            self.record = self.base.taken_over(counts, self.ledger_id, self._new_token(), dedupe=self._dedupe)
            self.need = TakeoverNeed.WRITE

    def _is_settled_by(self, metadata: LogMetadata | None, version: int) -> bool:
        """What the record that was read back says of our write; False where it starts over."""
        assert self.record is not None
        if metadata is not None and metadata.token == self.record.token:
            self.record, self.version = metadata, version
            self.need = TakeoverNeed.DONE
            return True
        if metadata is not None and version == self.version:
            self.need = TakeoverNeed.WRITE
            return True
        if metadata is None or self.ledger_id is None or metadata.index_of(self.ledger_id) is None:
            self._discard_ledger()
        self.ledger_id = None
        return False

    def _discard_ledger(self) -> None:
        if self.ledger_id is not None:
            self._garbage.append(self.ledger_id)
            self.ledger_id = None

    def _fail(self, failure: LedgerLogError) -> None:
        self._discard_ledger()
        self.failure = failure
        self.need = TakeoverNeed.FAILED


class ChainNeed(enum.Enum):
    NOTHING = "nothing"
    SPARE = "create a ledger ahead"
    WRITE = "write the record"
    SETTLE = "see what became of the write"
    CLOSE = "close a drained ledger"


class LeaderChain:
    """The chain in the hands of its leader, from the takeover's write to the end.

    ``failure`` is set once, and then nothing is needed any more."""

    def __init__(
        self, metadata: LogMetadata, version: int, ledger_id: int, *, new_token: Callable[[], bytes]
    ) -> None:
        assert [segment.ledger_id for segment in metadata.open_segments] == [ledger_id]
        self._new_token = new_token
        self._settling = False
        self._roll_wanted = False
        self._spare_wanted = False
        self._finishing = False
        self._drained = False
        self._counts: SegmentCounts | None = None
        self._tried: LogMetadata | None = None
        """The value of a write that is under way or unsettled."""
        self.metadata = metadata
        """The newest record known to be stored, at ``version``."""
        self.version = version
        self.current = ledger_id
        """Where new appends go."""
        self.draining: int | None = None
        """The ledger before ``current``, until it is closed and counted."""
        self.spare: int | None = None
        """A ledger made ahead, in no list."""
        self.is_finished = False
        """Whether the last ledger is closed and counted."""
        self.failure: LedgerLogError | None = None

    @property
    def epoch(self) -> int:
        return self.metadata.segments[-1].epoch

    @property
    def closing(self) -> int | None:
        """The ledger that is closed next once it is drained."""
        if self.draining is not None:
            return self.draining
        return self.current if self._finishing and not self.is_finished else None

    @property
    def has_spare(self) -> bool:
        """Whether the next ledger is made, or is about to be."""
        return self.spare is not None or self._spare_wanted

    @property
    def is_rolling(self) -> bool:
        """From the wish to roll until the older ledger is counted."""
        return self._roll_wanted or self.draining is not None

    @property
    def may_roll_by_policy(self) -> bool:
        """Whether a roll may begin now, and the list is short enough for one that nobody asked for."""
        return (
            self.failure is None
            and not self._finishing
            and not self.is_rolling
            and len(self.metadata.segments) < LOG_SEGMENTS_ROLL_MAX
        )

    @property
    def need(self) -> ChainNeed:
        if self.failure is not None or self.is_finished:
            return ChainNeed.NOTHING
        if self._settling:
            return ChainNeed.SETTLE
        if self._tried is not None or self._counts is not None:
            return ChainNeed.WRITE
        if self.closing is not None and self._drained:
            return ChainNeed.CLOSE
        if self.spare is None and (self._spare_wanted or self._roll_wanted) and not self._finishing:
            return ChainNeed.SPARE
        if self._roll_wanted and self.draining is None and self.spare is not None:
            return ChainNeed.WRITE
        return ChainNeed.NOTHING

    @property
    def record(self) -> LogMetadata:
        """The record to write at ``version``. The same value until its write is settled."""
        assert self.need is ChainNeed.WRITE
        if self._tried is None:
            if self._counts is not None:
                assert self.closing is not None
                self._tried = self.metadata.counted(self.closing, self._counts, self._new_token())
            else:
                assert self.spare is not None
                assert self.draining is None, "a roll waits for the one before it (C03)"
                self._tried = self.metadata.rolled(self.spare, self._new_token())
        return self._tried

    # --- what the writer wants ----------------------------------------------------------------

    def want_spare(self) -> None:
        """The next roll is near."""
        self._spare_wanted = True

    def want_roll(self) -> None:
        """Go on in a new ledger, as soon as the roll before has ended."""
        assert not self._finishing
        self._spare_wanted = self._roll_wanted = True

    def finish(self) -> None:
        """No more appends: close what is open as it drains. A roll that has not been written is dropped,
        and the spare with it."""
        self._finishing = True
        if self._tried is None or self._counts is not None:
            self._roll_wanted = self._spare_wanted = False

    def take_spare(self) -> int | None:
        """A spare that surely will not be used: delete it. None while that is not sure."""
        if self._tried is not None or self._roll_wanted or not (self._finishing or self.failure):
            return None
        spare, self.spare = self.spare, None
        return spare

    # --- what the world did -------------------------------------------------------------------

    def on_spare(self, ledger_id: int) -> None:
        assert self.spare is None
        self.spare = ledger_id

    def on_drained(self, ledger_id: int) -> None:
        """Every append that was sent to ``closing`` is acknowledged, and none will follow."""
        assert ledger_id == self.closing
        self._drained = True

    def on_closed(self, counts: SegmentCounts) -> None:
        """``closing`` is CLOSED by us, at the last entry that we sent."""
        if self.failure is None:
            assert self.need is ChainNeed.CLOSE
            self._counts = counts

    def on_written(self, version: int) -> None:
        """The write took effect."""
        assert self._tried is not None
        self._settling = False
        self.version = version
        self.metadata, self._tried = self._tried, None
        if self._counts is not None:
            self._counts, self._drained = None, False
            if self.draining is not None:
                self.draining = None
            else:
                self.is_finished = True
        else:
            assert self.spare is not None
            self.draining, self.current, self.spare = self.current, self.spare, None
            self._roll_wanted = self._spare_wanted = False
            self._drained = False

    def on_unsettled(self) -> None:
        """The write met a conflict or a missing record, or its answer was lost."""
        assert self._tried is not None
        self._settling = True

    def on_record(self, metadata: LogMetadata | None, version: int) -> None:
        """The stored record, read to settle a write or because it may have changed."""
        if self.failure is not None or self.is_finished:
            return
        tried, self._settling = self._tried, False
        if metadata is None:
            self._lose(LostLeadership(self.metadata.name, None, "the log was deleted"))
        elif tried is not None and metadata.has_same_chain(tried):
            self.on_written(version)
            self.metadata = metadata
        elif not metadata.has_same_chain(self.metadata):
            self._tried = None
            if self.spare is not None and metadata.index_of(self.spare) is not None:
                self.spare = None  # The roll was written, and a successor found it.
            self._lose(_deposed_by(metadata))
        elif version != self.version:
            # Somebody truncated the log or the like. What was tried can no longer take effect.
            self.metadata, self.version = metadata, version
            self._tried = None
            if self._finishing:
                self._roll_wanted = False

    def on_lost(self, failure: LedgerLogError) -> None:
        """A ledger of ours failed, was fenced or was closed by somebody else."""
        self._lose(failure)

    def _lose(self, failure: LedgerLogError) -> None:
        if self.failure is None:
            self.failure = failure
            self._roll_wanted = False


def _deposed_by(metadata: LogMetadata) -> LedgerLogError:
    if metadata.sealed:
        return LogSealed(metadata.name)
    return LostLeadership(metadata.name, metadata.epoch)
