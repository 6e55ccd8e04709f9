"""The chain of a log's ledgers: taking over, rolling, ending (protocol A.6, D22 to D26, C01 to C05).

Two state machines share the rules. ``Takeover`` makes a leader; ``LeaderChain`` is the leader's list of
ledgers. In both, ``need`` is the next step of the shell (the caller that does the I/O). It stays the same
until the shell has answered.

**Taking over**

    READ      read the record with its version                            -> on_record
    RECOVER   recover ``recovering`` to CLOSED and look at its entries     -> on_recovered
    CREATE    make a ledger                                                -> on_created
    WRITE     compare-and-set ``record`` at ``version``                    -> on_written, else on_unsettled
    SETTLE    read the record again                                        -> on_record
    DONE      ``record`` at ``version`` is stored; appends to ``ledger_id`` may begin (C04)

A ledger is *counted* once the log's record says how many records the ledger holds. A counted ledger is
CLOSED. Before the write, the takeover recovers every ledger that is not counted, the older one first. A roll
waits for the roll before it, so at most the last two ledgers are not counted (C01, D23). Fencing alone would
not be enough, because it leaves the ends of the ledgers open. If the write meets a conflict, everything
starts again, recovery included. Reading only the version again would miss a ledger that a rival has added
(C02).

**If the outcome of a write is unclear, reading settles it** (rule 14). The record carries the token of its
last writer. There are four cases:

- The record has our token: the write took effect.
- The record has the version that our write replaces: the write has not happened yet. The same value is
  written again at the same version. If the first attempt arrives after all, only one of the two
  writes takes effect, and both store the same value.
- The record has another version and does not list our ledger: the write never happened and never can. Our
  ledger is garbage.
- The record has another version and lists our ledger: we led and have been deposed.

**Leading**

    SPARE     make a ledger ahead of the next roll                         -> on_spare
    WRITE     compare-and-set ``record`` at ``version``                    -> on_written, else on_unsettled
    SETTLE    read the record again                                        -> on_record
    CLOSE     every append of ``closing`` is acknowledged: close it        -> on_closed
    ADMIT     a process asks for a splice: find out what to splice         -> on_admitted

A roll writes the list with the spare at its end. From ``on_written`` on, new appends go to the spare. The
next roll waits until the ledger before the current one is closed and counted (C03), so no more than two are
ever open. The older ledger is closed once everything sent to it is acknowledged. If the new ledger confirms
entries before that, their acknowledgement waits (C05). ``log.core.append_queue`` ensures this.

A conflict need not come from a rival: truncation changes the record too. If the epoch and the current ledger
are still ours, the leader adopts the change and prepares its write again from the changed record. A takeover
raises the epoch, so the leader never mistakes a takeover for such a change. If a leader is deposed while its
roll is unsettled, the successor's list may contain the leader's spare. The spare then belongs to the log,
though it is empty, and the leader does not hand it out for deletion.

**Splices.** Another process may ask the leader to put ledgers that were written apart into the list
(``log.core.attach``). Such ledgers must be behind all records that were sent, and before all that follow. So
the leader holds its appends back (``is_holding``), and closes the current ledger once it is drained. Then one
write counts that ledger, lists the spliced ones, and lists the spare as the current ledger. From
``on_written`` on, appends continue, at offsets after the spliced records. The shell puts the other nodes of
the splice into the same transaction. If the transaction is refused, for example because the request was
withdrawn, ADMIT comes again (``on_refused``). ADMIT also comes again if the log's record has changed since:
the list may name the ledgers by now. If there is nothing to splice any more, the write only counts the closed
ledger and lists the spare.

A refused transaction has changed nothing. If the answer to an earlier attempt at the same transaction was
lost, that attempt cannot take effect later either, because a node that it checks has changed for good. If
only the answer was lost, the leader repeats the same transaction, and splices nothing else until it knows the
outcome.

**A segment counts only if it continues the one before it.** During a roll both ledgers take entries. If the
leader dies then, the older ledger may lack some of its last entries while the newer one has the entries that
followed them. For example, the older ledger ends at offset 90 and the newer one begins at 100. Nothing in the
newer ledger was acknowledged, because offsets 90 to 99 were not. So the newer ledger counts as empty, and the
log holds an unbroken prefix of the records that its writer submitted. The gap is visible, because every entry
carries its offset (``count_segment``).

**Unless a loss was accepted.** ``ledger recover --accept-loss`` may end the older ledger before entries that
were acknowledged. Then entries of the newer ledger may have been acknowledged too. So if an accepted loss
ended the older ledger, the newer one does not count as empty: the takeover stops with ``LossUndecided``. If
the operator accepts the loss for this log (``accept_loss``), the newer ledger counts from the offset that its
entries carry. The log has a gap before that offset. The same holds if the older ledger was ended after a
restore of the metadata: the log may have been truncated after the backup, and then bookies no longer hold the
older ledger.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable

import attrs

from ledgerlog.errors import (
    EntryCorrupt,
    LedgerLogError,
    LogNotFound,
    LogSealed,
    LossUndecided,
    LostLeadership,
    MetadataCorrupt,
)
from ledgerlog.limits import LOG_SEGMENTS_ROLL_MAX
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import NOTHING, Gap, SegmentCounts

__all__ = [
    "ChainNeed",
    "LedgerSpan",
    "Counting",
    "CountsOpenLedgers",
    "LeaderChain",
    "Takeover",
    "TakeoverAim",
    "TakeoverNeed",
    "count_segment",
    "deposed_by",
]


@attrs.frozen(kw_only=True)
class LedgerSpan:
    """The contents of a closed ledger, according to its first and last entry."""

    first_offset: int
    """The offset of the first record."""
    end_offset: int
    """The offset after the last record."""
    bytes_before: int
    """Bytes of all records of the log before the first entry."""
    bytes_after: int
    """Bytes of all records of the log up to and including the last entry."""
    first_ms: int
    """The time of the first entry."""
    last_ms: int
    """The time of the last entry."""


def count_segment(
    ledger_id: int,
    start_offset: int,
    contents: LedgerSpan | None,
    *,
    follows_open: bool,
    keep_behind_gap: bool = False,
) -> SegmentCounts:
    """Return the counts that a closed ledger adds to its log.

    Args:
        ledger_id: The ledger, for errors.
        start_offset: The offset at which the log continues.
        contents: The facts from the ledger's entries; None if the ledger is empty.
        follows_open: Whether the previous ledger of the list was open at the same time. Only then may this
            ledger begin after ``start_offset``.
        keep_behind_gap: Count the ledger even if it begins after ``start_offset``. The log then has a gap
            before it.

    Raises:
        EntryCorrupt: The ledger's entries cannot belong to this log.
    """
    if contents is None:
        return NOTHING
    lost = 0
    if contents.first_offset > start_offset and follows_open:
        if not keep_behind_gap:
            return NOTHING
        lost = contents.first_offset - start_offset
        start_offset = contents.first_offset
    if contents.first_offset == contents.end_offset == start_offset:
        # The ledger has a checkpoint of the producers and no record.
        return SegmentCounts(0, 0, lost_before=lost)
    if contents.first_offset != start_offset or contents.end_offset <= start_offset:
        raise EntryCorrupt(
            ledger_id,
            0,
            f"its records have the offsets {contents.first_offset} to {contents.end_offset - 1} "
            f"but the log continues at {start_offset}",
        )
    if contents.bytes_after < contents.bytes_before:
        raise EntryCorrupt(
            ledger_id,
            0,
            f"it says that the log has {contents.bytes_before} bytes before it and "
            f"{contents.bytes_after} after it",
        )
    return SegmentCounts(
        contents.end_offset - contents.first_offset,
        contents.bytes_after - contents.bytes_before,
        contents.first_ms,
        contents.last_ms,
        lost,
    )


class Counting:
    """Counts the open segments of ``base``, one after the other as their ledgers are recovered.

    Args:
        base: The record of the log.
        accept_loss: Keep the records after an accepted loss, with a gap before them.
    """

    def __init__(self, base: LogMetadata, *, accept_loss: bool = False) -> None:
        self._base = base
        self._accept_loss = accept_loss
        self._short: int | None = None
        self._end = base.counted_end
        self.counts: list[SegmentCounts] = []
        """The counts of the segments that are done, in order."""

    @property
    def recovering(self) -> int | None:
        """The ledger to recover now; None once all are counted."""
        left = self._base.open_segments[len(self.counts) :]
        return left[0].ledger_id if left else None

    def on_recovered(self, contents: LedgerSpan | None, *, is_short: bool = False) -> None:
        """Take in that the ledger ``recovering`` is CLOSED.

        Args:
            contents: The facts from the ledger's first and last entry; None if the ledger is empty.
            is_short: Whether the ledger may end before entries that were acknowledged (``may_be_short``).

        Raises:
            EntryCorrupt: The ledger's entries cannot belong to this log.
            LossUndecided: The ledger's entries would be dropped, because an older ledger may be short.
        """
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


class CountsOpenLedgers(ABC):
    """The step RECOVER, which a takeover and a splice share: count the open ledgers, one after the other."""

    base: LogMetadata | None
    """The log's record, as it was read."""
    _counting: Counting | None = None

    @property
    @abstractmethod
    def is_recovering(self) -> bool:
        """Whether RECOVER is the step to do now."""

    @property
    def recovering(self) -> int:
        """The ledger to recover now."""
        assert self.is_recovering
        assert self._counting is not None
        ledger_id = self._counting.recovering
        assert ledger_id is not None
        return ledger_id

    def on_recovered(self, contents: LedgerSpan | None, *, is_short: bool = False) -> None:
        """Take in that the ledger ``recovering`` is CLOSED.

        Args:
            contents: The facts from the ledger's first and last entry; None if the ledger is empty.
            is_short: Whether the ledger may end before entries that were acknowledged (``may_be_short``).
        """
        assert self.is_recovering
        assert self._counting is not None
        try:
            self._counting.on_recovered(contents, is_short=is_short)
        except (EntryCorrupt, LossUndecided) as failure:
            self._fail(failure)
        else:
            self._go_on()

    @abstractmethod
    def on_changed(self) -> None:
        """The log's record does not list ``recovering`` as before: start again."""

    @abstractmethod
    def _go_on(self) -> None:
        """A ledger is counted, or the record was read: decide the next step."""

    @abstractmethod
    def _fail(self, failure: LedgerLogError) -> None:
        """End with a failure."""


class TakeoverNeed(enum.Enum):
    """The next step of the shell in a takeover. The module docstring explains each need."""

    READ = "read the record"
    RECOVER = "recover a ledger"
    CREATE = "create a ledger"
    WRITE = "write the record"
    SETTLE = "find out whether the write took effect"
    DONE = "done"
    FAILED = "failed"


class TakeoverAim(enum.Enum):
    """The purpose of a takeover."""

    LEAD = "lead"
    SEAL = "end the log"
    RECOVER = "count what is open, for the next leader"


class Takeover(CountsOpenLedgers):
    """Become the leader of a log, seal the log, or end its leadership.

    Only a takeover that becomes the leader makes a ledger.

    Args:
        name: The name of the log, for errors.
        new_token: Makes the random token of a write.
        aim: The purpose of the takeover.
        dedupe: Switch deduplication on or off; None keeps the log's setting.
        accept_loss: Keep the records after an accepted loss, with a gap before them.
    """

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
        self._garbage: list[int] = []
        self._was_unsettled = False  # A write that lists our ledger may still arrive.
        self._is_surely_unwritten = False
        self._tried_gaps: set[Gap] = set()
        self.base: LogMetadata | None = None
        """The record that was read, which ``record`` replaces."""
        self.need = TakeoverNeed.READ
        """The next step of the shell."""
        self.record: LogMetadata | None = None
        """The record to write. At the end, the stored one."""
        self.version = -1
        """The version that ``record`` replaces. At the end, the version of ``record``."""
        self.ledger_id: int | None = None
        """The ledger that was made for this leadership."""
        self.failure: LedgerLogError | None = None
        """Why the takeover failed, once ``need`` is FAILED."""

    @property
    def is_recovering(self) -> bool:
        return self.need is TakeoverNeed.RECOVER

    @property
    def gaps_made(self) -> tuple[Gap, ...]:
        """At the end, the gaps that this takeover made, including the gaps of a write whose answer was
        lost."""
        assert self.need is TakeoverNeed.DONE
        assert self.record is not None
        made = self._tried_gaps | set(self._new_gaps())
        return tuple(gap for gap in self.record.gaps if gap in made)

    def _new_gaps(self) -> list[Gap]:
        """The gaps in ``record`` that ``base`` does not have."""
        assert self.base is not None
        assert self.record is not None
        return [gap for gap in self.record.gaps if gap not in self.base.gaps]

    def take_garbage(self) -> list[int]:
        """Return the ledgers that this takeover made and that surely no list names. The caller deletes
        them."""
        garbage, self._garbage = self._garbage, []
        return garbage

    def abandon(self) -> None:
        """Give the takeover up. The ledger that it made is garbage unless a write may have listed that
        ledger."""
        is_unlisted = self.need is TakeoverNeed.WRITE and self._is_surely_unwritten
        if is_unlisted or self.need not in (TakeoverNeed.WRITE, TakeoverNeed.SETTLE, TakeoverNeed.DONE):
            self._discard_ledger()

    def on_record(self, metadata: LogMetadata | None, version: int) -> None:
        """The record was read. ``metadata`` is None if the log is gone."""
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

    def on_changed(self) -> None:
        """The record does not list ``recovering`` as before: start again."""
        assert self.need is TakeoverNeed.RECOVER
        self.need = TakeoverNeed.READ

    def on_created(self, ledger_id: int) -> None:
        """The ledger is made."""
        assert self.need is TakeoverNeed.CREATE
        self.ledger_id = ledger_id
        self._go_on()

    def on_written(self, version: int) -> None:
        """The write took effect."""
        assert self.need is TakeoverNeed.WRITE
        self.version = version
        self.need = TakeoverNeed.DONE

    def on_unsettled(self) -> None:
        """The write found a conflict or a missing record, or its answer was lost."""
        assert self.need is TakeoverNeed.WRITE
        self._tried_gaps.update(self._new_gaps())
        self._was_unsettled = True
        self.need = TakeoverNeed.SETTLE

    def on_not_written(self) -> None:
        """The write surely did nothing: the store could not be reached, or the record has no room."""
        assert self.need is TakeoverNeed.WRITE
        # If the answer to an earlier write was lost, that write may take effect even now.
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
        """Decide, from the record that was read back, whether our write took effect. False if the takeover
        starts again."""
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
    """The next step of the shell for the leader's chain. The module docstring explains each need."""

    NOTHING = "nothing"
    SPARE = "create a ledger ahead"
    WRITE = "write the record"
    SETTLE = "find out whether the write took effect"
    CLOSE = "close a drained ledger"
    ADMIT = "find out what to splice"


@attrs.frozen(kw_only=True)
class ChainSplice:
    """The ledgers that the leader splices. Without ledgers, it only continues in a new ledger."""

    staged: tuple[tuple[int, int, int], ...] = ()
    """The ledgers in their order in the log: id, records and bytes of each."""
    now_ms: int = 0
    """The leader's wall clock."""


class LeaderChain:
    """The leader's chain of ledgers, from the takeover's write to the end.

    ``failure`` is set once. After that the chain needs nothing more.

    Args:
        metadata: The record that the takeover wrote.
        version: The version of that record.
        ledger_id: The ledger that the takeover made, the only open one.
        new_token: Makes the random token of a write.
    """

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
        self._is_asked = False
        """Whether a process asks for a splice that has not begun."""
        self._splice: ChainSplice | None = None
        """The splice that is under way."""
        self._is_splice_refused = False
        """Whether the splice must be admitted again before it is written."""
        self._counts: SegmentCounts | None = None
        self._tried: LogMetadata | None = None
        """The value of a write that is under way or unsettled."""
        self._is_in_doubt = False
        """Whether an earlier attempt at that write may still take effect."""
        self._is_refused = False
        """Whether the store refused that write, so that no attempt at it will take effect later."""
        self.metadata = metadata
        """The newest record known to be stored, at ``version``."""
        self.version = version
        self.current = ledger_id
        """The ledger that new appends go to."""
        self.draining: int | None = None
        """The ledger before ``current``, until it is closed and counted."""
        self.spare: int | None = None
        """A ledger that was made ahead. No list names it."""
        self.is_finished = False
        """Whether the last ledger is closed and counted."""
        self.failure: LedgerLogError | None = None
        """Why the chain is lost; None if it is not lost."""

    @property
    def epoch(self) -> int:
        """The epoch of this leadership."""
        return self.metadata.segments[-1].epoch

    @property
    def closing(self) -> int | None:
        """The ledger that is closed next, once it is drained."""
        if self.draining is not None:
            return self.draining
        is_ending = self._finishing and not self.is_finished
        return self.current if is_ending or self.is_holding else None

    @property
    def is_holding(self) -> bool:
        """Whether nothing may be sent to ``current`` now, because it is closed for a splice."""
        return (
            self._splice is not None
            and self.spare is not None
            and self.draining is None
            and (self._tried is None or self._counts is not None)
        )

    @property
    def is_splicing(self) -> bool:
        """Whether the next write lists spliced ledgers."""
        return self.is_holding and self._splice is not None and bool(self._splice.staged)

    @property
    def has_spare(self) -> bool:
        """Whether the next ledger exists already, or was asked for."""
        return self.spare is not None or self._spare_wanted

    @property
    def is_rolling(self) -> bool:
        """Whether a roll or a splice is under way: from the request until the older ledger is counted."""
        return self._roll_wanted or self.draining is not None or self._splice is not None

    @property
    def may_roll_by_policy(self) -> bool:
        """Whether a roll by policy may begin now. If the list of ledgers is long, it may not, but the user
        may still ask for a roll (``want_roll``)."""
        return (
            self.failure is None
            and not self._finishing
            and not self.is_rolling
            and len(self.metadata.segments) < LOG_SEGMENTS_ROLL_MAX
        )

    @property
    def need(self) -> ChainNeed:
        """The next step of the shell."""
        if self.failure is not None or self.is_finished:
            return ChainNeed.NOTHING
        if self._settling:
            return ChainNeed.SETTLE
        if self._is_splice_refused:
            return ChainNeed.ADMIT
        if self._tried is not None or self._counts is not None:
            return ChainNeed.WRITE
        if self.closing is not None and self._drained:
            return ChainNeed.CLOSE
        if self._is_asked and not self.is_rolling and not self._finishing:
            return ChainNeed.ADMIT
        if self.spare is None and (self._spare_wanted or self._roll_wanted) and not self._finishing:
            return ChainNeed.SPARE
        if self._roll_wanted and self._splice is None and self.draining is None and self.spare is not None:
            return ChainNeed.WRITE
        return ChainNeed.NOTHING

    @property
    def record(self) -> LogMetadata:
        """The record to write at ``version``. It stays the same until its write is settled."""
        assert self.need is ChainNeed.WRITE
        if self._tried is None:
            if self.is_holding:
                assert self._splice is not None
                assert self._counts is not None
                assert self.spare is not None
                self._tried = self.metadata.continued(
                    self._counts,
                    self._splice.staged,
                    self._splice.now_ms,
                    self._new_token(),
                    ledger_id=self.spare,
                )
            elif self._counts is not None:
                assert self.closing is not None
                self._tried = self.metadata.counted(self.closing, self._counts, self._new_token())
            else:
                assert self.spare is not None
                assert self.draining is None, "a roll waits for the one before it (C03)"
                self._tried = self.metadata.rolled(self.spare, self._new_token())
            self._is_in_doubt = False
        return self._tried

    # --- what the writer wants ----------------------------------------------------------------

    def want_spare(self) -> None:
        """Ask for the next ledger, because a roll is near."""
        self._spare_wanted = True

    def want_roll(self) -> None:
        """Ask to continue in a new ledger, as soon as the roll before it has ended."""
        assert not self._finishing
        self._spare_wanted = self._roll_wanted = True

    def want_splice(self) -> None:
        """Note that a process asks for a splice."""
        self._is_asked = True

    def finish(self) -> None:
        """No more appends: close the open ledgers once they are drained. Drop a roll whose write has not
        begun, and a splice if ``current`` is not closed for it yet; ``take_spare`` then returns its spare."""
        self._finishing = True
        if not (self.is_holding and self._drained) and self._counts is None:
            self._splice, self._is_splice_refused = None, False
        if self._tried is None or self._counts is not None:
            self._roll_wanted = self._spare_wanted = False

    def take_spare(self) -> int | None:
        """Return the spare if it certainly will not be used; the caller deletes it. Otherwise return None."""
        is_used = self._tried is not None or self._roll_wanted or (self._splice and not self.failure)
        if is_used or not (self._finishing or self.failure):
            return None
        spare, self.spare = self.spare, None
        return spare

    # --- what the world did -------------------------------------------------------------------

    def on_spare(self, ledger_id: int) -> None:
        """The spare is made."""
        assert self.spare is None
        self.spare = ledger_id

    def on_drained(self, ledger_id: int) -> None:
        """Every append that was sent to ``closing`` is acknowledged, and none will follow."""
        assert ledger_id == self.closing
        self._drained = True

    def on_closed(self, counts: SegmentCounts) -> None:
        """We have closed ``closing``, at the last entry that we sent."""
        if self.failure is None:
            assert self.need is ChainNeed.CLOSE
            self._counts = counts

    def on_written(self, version: int) -> None:
        """The write took effect."""
        assert self._tried is not None
        self._settling = False
        self.version = version
        is_splice = self.is_holding
        self.metadata, self._tried = self._tried, None
        if is_splice:
            assert self.spare is not None
            self._counts, self._drained, self._splice = None, False, None
            self.current, self.spare = self.spare, None
            self._roll_wanted = self._spare_wanted = False
        elif self._counts is not None:
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
        """The write found a conflict or a missing record, or its answer was lost."""
        assert self._tried is not None
        self._settling = self._is_in_doubt = True

    def on_refused(self) -> None:
        """The transaction of a splice was refused: something that it replaces has changed. It did nothing."""
        assert self._tried is not None
        self._settling = self._is_refused = True

    def on_too_large(self) -> None:
        """The transaction of a splice is too large. It did nothing."""
        assert self._tried is not None
        self._tried, self._is_splice_refused = None, True

    def on_admitted(self, splice: ChainSplice | None) -> None:
        """The shell has found out what to splice; None if nothing is to be spliced now."""
        if self._is_splice_refused:
            self._is_splice_refused = False
            self._splice = splice or ChainSplice()
        elif self.need is ChainNeed.ADMIT:
            self._splice, self._is_asked = splice, False
            self._spare_wanted = self._spare_wanted or splice is not None

    def on_not_written(self) -> None:
        """The write surely did nothing: the store could not be reached, or the record has no room."""
        if not self._is_in_doubt:
            self._tried = None
            if self._finishing and self._counts is None:
                self._roll_wanted = self._spare_wanted = False

    def on_record(
        self, metadata: LogMetadata | None, version: int, why_gone: LedgerLogError | None = None
    ) -> None:
        """The record was read, to settle a write or because it may have changed. If it is gone, ``why_gone``
        may say why."""
        if self.failure is not None or self.is_finished:
            return
        tried, self._settling = self._tried, False
        is_refused, self._is_refused = self._is_refused, False
        if metadata is None:
            self._lose(deposed_by(self.metadata.name, None, why_gone))
        elif tried is not None and metadata.has_same_chain(tried):
            self.on_written(version)
            self.metadata = metadata
        elif not metadata.has_same_chain(self.metadata):
            self._tried = None
            if self.spare is not None and metadata.index_of(self.spare) is not None:
                self.spare = None  # The roll was written, and a successor adopted it.
            self._lose(deposed_by(metadata.name, metadata))
        elif version != self.version or is_refused:
            # The record changed without a takeover, for example by truncation, or the store refused our
            # write. The write that was tried can no longer take effect, and the list may name the ledgers
            # that are to be spliced.
            self._is_splice_refused = self._splice is not None
            self.metadata, self.version = metadata, version
            self._tried = None
            if self._finishing:
                self._roll_wanted = False

    def on_lost(self, failure: LedgerLogError) -> None:
        """One of our ledgers failed, was fenced, or was closed by another process."""
        self._lose(failure)

    def _lose(self, failure: LedgerLogError) -> None:
        if self.failure is None:
            self.failure = failure
            self._roll_wanted = False


def deposed_by(
    name: str, record: LogMetadata | None, why_gone: LedgerLogError | None = None
) -> LostLeadership | LogSealed:
    """Return the error of a leader whose log has this record now, or none. ``why_gone`` as for
    ``LeaderChain.on_record``."""
    if record is None:
        is_damage = isinstance(why_gone, MetadataCorrupt)
        return LostLeadership(name, None, str(why_gone) if is_damage else "the log was deleted")
    if record.sealed:
        return LogSealed(name)
    return LostLeadership(name, record.epoch)
