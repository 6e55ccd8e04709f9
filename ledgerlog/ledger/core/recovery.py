"""Recovering a ledger: fence the ledger, find its true end, close it (protocol A.1 "Recovery", A.4).

    announce   metadata OPEN -> IN_RECOVERY; joining an IN_RECOVERY ledger writes nothing (D9)
    fencing    ask every bookie of the last ensemble to fence, until the answers cover the ensemble (A.0)
    reading    read entries in order, each from its write set, until one certainly does not exist. The first
               is the one after ``start``: the highest LAC reported while fencing (the last add confirmed; in
               guaranteed mode the LAFR, the last add fully replicated)
    closing    write every entry that was read to its quorum again; then IN_RECOVERY -> CLOSED

Rules that are easy to get wrong:

* Recovery reads only from the ensemble that was in the metadata *when recovery began*. If a bookie fails on a
  write-back, it is replaced in private fragments, which only the closing write publishes (T12).
* Reading starts no lower than the last fragment's first entry (T21, R-B3).
* An answer counts for an entry only if its bookie is in that entry's write set (T02). Only a certain "no such
  entry" is a negative: a time-out or an unknown never is (T04). One copy proves that the entry exists (T27,
  D2).
* The verdict on an entry is final. No entry after the first one that does not exist is written back.
* Write-backs carry the LAC and LAFR at which recovery started, never the progress of recovery (T25, T31,
  T32).
* If two recoverers race to close, the loser adopts the winner's end (T20).

**Accepting a loss.** If so many bookies lost their data that it is unknown whether an entry exists, recovery
gives up, and each later try does too (D27.9). An operator may then decide to end the ledger before that entry
(``accept_loss``). Everything else stays the same: fencing must be complete, and recovery still reaches every
verdict that it can. The closing write records the first entry that the ledger may have lost (``LOST_FROM``).
Only a bookie in limbo counts as a loss: it may have had entries that it does not have now. A bookie that does
not answer, or cannot read its data, may have lost nothing, and may hold just this entry. If the verdict
depends on such a bookie, recovery still gives up and names it, unless the operator says that it is gone for
good (``accept_unreachable``).

**Reading by ranges.** A *round* asks every slot for one range of entries. The answers are judged entry by
entry, in order, as they come. A round ends when its range is judged. It also ends when no answer is
outstanding and the next entry cannot be judged yet, because replies were cut short by their size. The next
round then starts at that entry, and answers of earlier rounds are ignored. In a striped ledger (the ensemble
is larger than the write quorum), the entries with the same write set form a class. Each round asks for each
class by itself, so it asks no bookie for an entry that the bookie cannot hold.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from ledgerlog.errors import LedgerLogError, LedgerNotFound, NotEnoughBookies, RecoveryFailed
from ledgerlog.ledger.core.pending import PendingAdds, Send
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.limits import ENTRY_ID_MAX, FRAME_BYTES_TARGET, FRAME_ENTRIES_MAX
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.restoration import ENDED_AFTER_RESTORE_LABEL

ROUND_ENTRIES = 4096
"""How many entries one round asks for."""

WRITE_BACK_BYTES = 16 * FRAME_BYTES_TARGET
"""Reading pauses while this many bytes are being written back."""

LOST_FROM = "ledgerlog.lost_from"
"""The key in ``LedgerMetadata.custom`` that records an accepted loss. Its value is the entry, in decimal."""


def may_be_short(metadata: LedgerMetadata) -> bool:
    """Return whether a closed ledger may end before entries that were acknowledged: an accepted loss ended
    it, or a recovery after a restore of the metadata."""
    return LOST_FROM in metadata.custom or ENDED_AFTER_RESTORE_LABEL in metadata.custom


class Phase(enum.Enum):
    """The step that a recovery has reached; see the module docstring."""

    ANNOUNCING = "announcing"
    FENCING = "fencing"
    READING = "reading"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class Negative(enum.Enum):
    """The meaning of a complete answer that does not contain an entry."""

    ABSENT = "absent"
    UNKNOWN = "unknown"
    """The bookie is in *limbo*: it may have lost entries that it had, this one included (A.3)."""


@attrs.frozen
class ReadAsk:
    """Ask a bookie for entries first, first + stride, ... up to last. The read also fences the ledger."""

    bookie: BookieId
    slot: int
    first: int
    last: int
    stride: int
    round: int


class _Answer:
    """The answer of one slot about one class of entries in the present round."""

    __slots__ = ("failed", "found", "negative", "pending", "through")

    def __init__(self, first: int) -> None:
        self.found: dict[int, bytes] = {}
        self.through = first - 1
        self.negative = Negative.ABSENT
        self.failed = False
        self.pending = True


class LedgerRecovery:
    """The protocol of one client's recovery of one ledger."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        new_token: Callable[[], bytes],
        full_pinning: bool = False,
        round_entries: int = ROUND_ENTRIES,
        accept_loss: bool = False,
        accept_unreachable: bool = False,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self.replication = metadata.replication
        self.phase = Phase.ANNOUNCING
        self.failure: LedgerLogError | None = None
        self.intent: MetadataIntent | None = None
        self.metadata = metadata
        self.version = version
        self.start = NO_ENTRY
        """The entry before the first one to read. It does not change after fencing is complete."""
        self.frozen_lac = NO_ENTRY
        """The LAC and (guaranteed mode) LAFR that every write-back carries."""
        self.last_recoverable: int | None = None
        """The last entry of the ledger, once recovery has found its end."""
        self.lost_from: int | None = None
        """An accepted loss ended the ledger before this entry, because it is unknown whether the entry
        exists. Otherwise None."""
        self.fenced: set[int] = set()
        """Slots of the frozen ensemble whose bookies confirmed the fence."""
        self.frozen: Fragment
        """The last fragment when recovery began. Recovery fences and reads its ensemble."""
        self.pending: PendingAdds
        """The write-backs, and the private fragments."""
        self._new_token = new_token
        self._full_pinning = full_pinning
        self._accept_loss = accept_loss
        self._accept_unreachable = accept_unreachable
        self._round_entries = round_entries
        self._frozen_count = 0
        self._unfenced: set[int] = set()  # slots whose fence failed
        self._why_unfenced: dict[int, str] = {}  # for the message, as far as it is known
        self._to_fence: list[int] = []
        self._round = 0
        self._round_last = NO_ENTRY
        self._next = 0  # the entry whose verdict is due
        self._answers: dict[tuple[int, int], _Answer] = {}  # (slot, class) -> answer
        self._asks: list[ReadAsk] = []
        self._replacements: dict[int, BookieId] = {}
        self._begin(metadata, version)

    # --- announcing ---------------------------------------------------------------------------

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        self.metadata, self.version = metadata, version
        if metadata.state is LedgerState.CLOSED:
            self._finish(metadata)
        elif metadata.state is LedgerState.OPEN:
            self.intent = MetadataIntent(metadata.in_recovery(self._new_token()), version)
        else:
            self._begin_fencing()

    def _begin_fencing(self) -> None:
        self.phase = Phase.FENCING
        self.frozen = self.metadata.last_fragment
        self._frozen_count = len(self.metadata.fragments)
        self.start = self.frozen_lac = self.frozen.first_entry - 1  # The floor (R-B3).
        self._to_fence = list(range(self.replication.ensemble))

    # --- fencing ------------------------------------------------------------------------------

    def take_fences(self) -> list[tuple[int, BookieId]]:
        """Take the slots to which a fence must be sent, with their bookies."""
        slots, self._to_fence = self._to_fence, []
        return [(slot, self.frozen.ensemble[slot]) for slot in slots]

    def on_fence_ok(self, slot: int, lac: int, lafr: int) -> None:
        """A bookie has fenced the ledger durably, and reports the highest LAC and LAFR that it has seen."""
        if self.phase is not Phase.FENCING:
            return  # Reading has a fixed start; a late answer changes nothing.
        self.fenced.add(slot)
        self._unfenced.discard(slot)
        self.frozen_lac = max(self.frozen_lac, lac)
        self.start = max(self.start, lafr if self.replication.guaranteed else lac)
        if self.replication.covers(self.fenced):
            self._begin_reading()

    def on_fence_failed(self, slot: int, why: str = "") -> None:
        """A bookie did not confirm the fence in time, or cannot.

        Args:
            slot: The slot of the bookie.
            why: The name of the bookie and the reason, for the message of a failure. "": nothing is known.
        """
        if self.phase is not Phase.FENCING or slot in self.fenced:
            return
        self._unfenced.add(slot)
        if why:
            self._why_unfenced[slot] = why
        possible = [i for i in range(self.replication.ensemble) if i not in self._unfenced]
        if not self.replication.covers(possible):
            bookies = ", ".join(self.frozen.ensemble[i] for i in sorted(self._unfenced))
            reasons = "".join(
                f"; {self._why_unfenced[i]}" for i in sorted({*self._why_unfenced} & self._unfenced)
            )
            self._fail(RecoveryFailed(self.ledger_id, f"fencing is incomplete without {bookies}{reasons}"))

    # --- reading ------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        assert self.replication.covers(self.fenced), "FenceCoverage (T26)"
        self.phase = Phase.READING
        self.pending = PendingAdds(self.replication, self.metadata.fragments, base=self.start)
        self._next = self.start + 1
        self._ask_round()

    def _ask_round(self) -> None:
        replication = self.replication
        stride = replication.ensemble if replication.is_striped else 1
        self._round += 1
        first = self._next
        self._round_last = last = first + max(self._round_entries, stride) - 1
        if last > ENTRY_ID_MAX:
            self._fail(RecoveryFailed(self.ledger_id, f"a bookie claims that it has {first} entries"))
            return
        self._answers = {}
        self._asks = []
        for start in range(first, first + stride):
            for slot in replication.write_set(start):
                self._answers[slot, start % stride] = _Answer(start)
                bookie = self.frozen.ensemble[slot]
                self._asks.append(ReadAsk(bookie, slot, start, last, stride, self._round))

    def take_reads(self) -> list[ReadAsk]:
        """Take the reads to send. The shell answers each by ``on_read`` or ``on_read_failed``."""
        asks, self._asks = self._asks, []
        return asks

    def on_read(self, ask: ReadAsk, found: Mapping[int, bytes], through: int, negative: Negative) -> None:
        """A bookie answered a read.

        Args:
            ask: The read.
            found: Payloads by entry id.
            through: The answer is complete up to this entry. It says nothing about later entries.
            negative: Whether entries missing from ``found`` are absent or unknown.
        """
        if through < ask.first:
            self.on_read_failed(ask)  # The answer says nothing. Asking again might never end.
            return
        answer = self._answer_to(ask)
        if answer is not None:
            answer.found = dict(found)
            answer.through = min(through, ask.last)
            answer.negative = negative
            answer.pending = False
            self._judge()

    def on_read_failed(self, ask: ReadAsk) -> None:
        """A read timed out, or the bookie could not answer it.

        Every entry asked for counts as unknown (T04)."""
        answer = self._answer_to(ask)
        if answer is not None:
            answer.failed = True
            answer.pending = False
            self._judge()

    def _answer_to(self, ask: ReadAsk) -> _Answer | None:
        if self.phase is not Phase.READING or ask.round != self._round:
            return None
        return self._answers[ask.slot, ask.first % ask.stride]

    def _judge(self) -> None:
        """Judge entries in order, as far as the answers go."""
        replication = self.replication
        stride = replication.ensemble if replication.is_striped else 1
        recovered: list[bytes] = []
        while self._next <= self._round_last:
            entry_id = self._next
            negatives = unknowns = outstanding = 0
            silent: list[BookieId] = []
            payload: bytes | None = None
            for slot in replication.write_set(entry_id):
                answer = self._answers[slot, entry_id % stride]
                payload = answer.found.get(entry_id)
                if payload is not None:
                    break
                if answer.pending:
                    outstanding += 1
                elif answer.failed:
                    unknowns += 1
                    silent.append(self.frozen.ensemble[slot])
                elif entry_id > answer.through:
                    pass  # The reply was cut short before this entry: the next round asks again.
                elif answer.negative is Negative.ABSENT:
                    negatives += 1
                else:
                    unknowns += 1
            if payload is not None:
                recovered.append(payload)
                self._next = entry_id + 1
            elif negatives >= replication.negative_quorum:
                self._end_at(entry_id - 1, recovered)
                return
            elif negatives + unknowns == replication.write_quorum:
                if self._accept_loss and (self._accept_unreachable or not silent):
                    self.lost_from = entry_id
                    self._end_at(entry_id - 1, recovered)
                    return
                self._write_back(recovered)
                why = (
                    f"no bookie can say whether entry {entry_id} exists ({negatives} absent, {unknowns} "
                    f"unknown)"
                )
                if silent:
                    why += f"; no answer from {', '.join(silent)}, which may hold the entry"
                self._fail(RecoveryFailed(self.ledger_id, why))
                return
            else:
                self._write_back(recovered)
                if not outstanding:
                    self._ask_more()
                return
        self._write_back(recovered)
        self._ask_more()

    def _end_at(self, last_entry: int, recovered: list[bytes]) -> None:
        self._write_back(recovered)
        self.last_recoverable = last_entry
        self.phase = Phase.CLOSING
        self._maybe_close()

    def _write_back(self, payloads: list[bytes]) -> None:
        begin = 0
        byte_count = 0
        for i, payload in enumerate(payloads):
            full = byte_count + len(payload) > FRAME_BYTES_TARGET or i - begin >= FRAME_ENTRIES_MAX
            if i > begin and full:
                self.pending.push(payloads[begin:i], byte_count)
                begin, byte_count = i, 0
            byte_count += len(payload)
        if payloads:
            self.pending.push(payloads[begin:], byte_count)

    def _ask_more(self) -> None:
        """Begin the next round, unless too many bytes are still being written back."""
        if self.pending.byte_count < WRITE_BACK_BYTES:
            self._ask_round()
        else:
            self._round += 1  # Ignore late answers. ``on_add_ok`` begins the next round.
            self._answers = {}

    # --- writing back -------------------------------------------------------------------------

    @property
    def frozen_lafr(self) -> int:
        """The LAFR that every write-back carries."""
        return self.start if self.replication.guaranteed else NO_ENTRY

    def take_sends(self, bookie: BookieId) -> list[Send]:
        """Take the write-backs due at a bookie of the private ensemble."""
        if self.phase not in (Phase.READING, Phase.CLOSING):
            return []
        return self.pending.take_sends(bookie)

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> None:
        """A bookie has durably stored those write-backs of first..last that its slot holds."""
        if self.phase not in (Phase.READING, Phase.CLOSING):
            return
        self.pending.on_add_ok(bookie, first, last)
        if self.phase is Phase.READING and not self._answers:
            self._ask_more()
        self._maybe_close()

    def on_bookie_failed(self, bookie: BookieId) -> None:
        """A bookie cannot take write-backs."""
        if self.phase in (Phase.READING, Phase.CLOSING):
            self.pending.on_bookie_failed(bookie)

    def on_bookie_connected(self, bookie: BookieId) -> None:
        """A bookie has a new connection; write-backs can be sent to it."""
        if self.phase in (Phase.READING, Phase.CLOSING):
            self.pending.on_bookie_connected(bookie)

    def replaceable(self) -> list[int]:
        """Find the failed slots that need replacements; none while nothing is being written back."""
        if self.phase not in (Phase.READING, Phase.CLOSING) or self.pending.is_drained:
            return []
        return self.pending.replaceable(full_pinning=self._full_pinning)

    def change_ensemble(self, replacements: Mapping[int, BookieId]) -> None:
        """Replace slots (a subset of ``replaceable()``), only in the private fragments (T12)."""
        assert replacements
        allowed = self.replaceable()
        assert all(index in allowed for index in replacements)
        self.pending.strip(replacements)
        fragments = self.pending.changed_fragments(replacements, self.pending.fragments)
        self.pending.install(replacements, fragments)
        self._maybe_close()

    def give_up(self, why: str) -> None:
        """Fail because no bookie took a write-back within the deadline. The ledger stays IN_RECOVERY."""
        self._fail(NotEnoughBookies(f"ledger {self.ledger_id} stays in recovery: {why}"))

    def deny(self, denial: LedgerLogError) -> None:
        """Fail because this client may not recover the ledger. The ledger stays as it is."""
        self._fail(denial)

    # --- closing ------------------------------------------------------------------------------

    def _maybe_close(self) -> None:
        if self.phase is Phase.CLOSING and self.pending.is_drained and self.intent is None:
            self._form_closing_intent()

    def _form_closing_intent(self) -> None:
        assert self.last_recoverable is not None
        assert self.pending.settled >= self.last_recoverable, (
            "the ledger is closed only after all entries were written back (T19)"
        )
        # Repair may have replaced bookies in older fragments in the meantime: keep those fragments as stored.
        # The fragment that was the last when recovery began, and all later ones, are ours.
        fragments = (
            *self.metadata.fragments[: self._frozen_count - 1],
            *self.pending.fragments[self._frozen_count - 1 :],
        )
        closed = self.metadata.closed(self.last_recoverable, self._new_token(), fragments)
        if self.lost_from is not None:
            closed = attrs.evolve(
                closed, custom={**closed.custom, LOST_FROM: str(self.lost_from).encode("ascii")}
            )
        self.intent = MetadataIntent(closed, self.version)

    def on_metadata_read(self, stored: LedgerMetadata | None, version: int) -> None:
        """Take in the stored metadata after an attempted write, whatever its outcome. ``stored`` is None if
        the ledger is gone."""
        if self.phase in (Phase.DONE, Phase.FAILED):
            return
        self.intent = None
        if stored is None:
            self._fail(LedgerNotFound(self.ledger_id))
        elif stored.state is LedgerState.CLOSED:
            self._finish(stored)  # We closed it, or the recoverer that won the race did (T20).
        elif self.phase is Phase.ANNOUNCING:
            self._begin(
                stored, version
            )  # We or another client set IN_RECOVERY: continue without a write (D9).
        elif stored.state is LedgerState.IN_RECOVERY and stored.last_fragment == self.frozen:
            self.metadata, self.version = stored, version
            self._maybe_close()
        else:
            self._fail(RecoveryFailed(self.ledger_id, "its metadata changed under recovery"))

    def _finish(self, metadata: LedgerMetadata) -> None:
        self.phase = Phase.DONE
        self.metadata = metadata
        self.intent = None

    def _fail(self, failure: LedgerLogError) -> None:
        if self.phase not in (Phase.DONE, Phase.FAILED):
            self.phase = Phase.FAILED
            self.failure = failure
            self.intent = None

    @property
    def private_ensemble(self) -> Sequence[BookieId]:
        """The bookies that receive write-backs now, by slot."""
        return self.pending.ensemble
