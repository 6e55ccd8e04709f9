"""The protocol of a ledger's writer, its *owner*: append, acknowledge in order, change the ensemble, close
(protocol A.1, A.4).

The shell (``ledger.writer``) calls methods and reads its work from the state. Nothing here waits:

    take_sends(bookie)     frames due at a bookie                  -> on_add_ok, on_bookie_failed, on_fenced
    replaceable()          failed slots that want replacements     -> change_ensemble
    intent                 a metadata write to be attempted        -> on_metadata_read
    lac, lafr, failure     the outcome of appends, for waiting callers

**One metadata write at a time, settled by reading.** ``intent`` is the value to write and the version that it
must replace. After each attempt (done, conflict or no answer), the shell reads the stored value and passes it
to ``on_metadata_read``. If the stored value has the intended last fragment (only the owner writes one) or the
intended end, the write took effect. Otherwise the writer decides again by the stored value (rules 13 and 14,
T22). After each reading, the writer forms the intent afresh. So a new fragment starts after the newest
``settled`` entry of that time (see ``ledger.core.pending``; Apache BookKeeper #4651), and the write keeps the
changes that repair made to older fragments in the meantime. While the store does not answer, the shell
attempts the same intent again. That is safe: if an entry settles meanwhile, the replacement gets it as during
one attempt, and if the stored value has changed meanwhile, the write fails.

**An end is final.** Once ``failure`` is set, no confirmation counts and nothing more is acknowledged (T06).
If the owner may still close the ledger (``close`` has begun, or the writer gave up in the plain mode, without
guaranteed write quorum), an intent to write the end remains: the closing write. The outcome of the closing
write decides what happens to the pending adds:

    the closing write took effect       pending adds are not in the ledger; ``failure`` stays as it is
    another client recovers the ledger  pending adds may survive or not; ``failure`` becomes LedgerFenced

So pending adds fail with ``failure`` only once ``is_over`` is true (A.7, rule 15).

**Closing.** The ledger ends at the LAC (the last add confirmed; ``close_at``), never at the LAP (the last add
pushed). For example, entries 0 to 9 were pushed and 0 to 6 are confirmed: the ledger ends at 6, and entries 7
to 9 fail. In guaranteed mode ``close`` is refused until every entry is on its full write quorum. If the write
of an ensemble change is under way, the closing write waits until the outcome of the change is known: if the
change took effect, the closing write must keep the new fragment (``_begin_close``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from ledgerlog.errors import (
    AppendUnknown,
    LedgerClosed,
    LedgerFenced,
    LedgerLogError,
    LedgerNotFound,
    WriteQuorumUnavailable,
)
from ledgerlog.ledger.core.pending import AddBatch, PendingAdds, Send
from ledgerlog.limits import FRAME_BYTES_TARGET, FRAME_ENTRIES_MAX, WRITER_FRAMES_OUTSTANDING
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState


@attrs.frozen
class MetadataIntent:
    """A compare-and-set to attempt: replace the metadata at ``version`` by ``metadata``."""

    metadata: LedgerMetadata
    version: int


class _Closing(enum.Enum):
    NO = 0
    WANTED = 1
    """The end is fixed at ``close_at``; the closing write is not known to have taken effect yet."""
    DONE = 2


class WriterCore:
    """The protocol of the single writer of one ledger."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        new_token: Callable[[], bytes],
        full_pinning: bool = False,
        frames_outstanding: int = WRITER_FRAMES_OUTSTANDING,
        frame_bytes: int = FRAME_BYTES_TARGET,
        frame_entries: int = FRAME_ENTRIES_MAX,
    ) -> None:
        assert metadata.state is LedgerState.OPEN
        self.ledger_id = metadata.ledger_id
        self.replication = metadata.replication
        self.metadata = metadata
        """The newest metadata known to be stored, at ``version``."""
        self.version = version
        self.pending = PendingAdds(metadata.replication, metadata.fragments)
        self.failure: LedgerLogError | None = None
        """Why this writer cannot acknowledge anything more. The reason may still change until ``is_over``."""
        self.denial: LedgerLogError | None = None
        """Set once a bookie has refused an add because this client does not have the right."""
        self.intent: MetadataIntent | None = None
        self.close_at: int | None = None
        """The last entry of the ledger, once a close has fixed it (T05: the LAC, not the LAP)."""
        self._new_token = new_token
        self._full_pinning = full_pinning
        self._frames_outstanding = frames_outstanding
        self._frame_bytes = frame_bytes
        self._frame_entries = frame_entries
        self.last_add_pushed = NO_ENTRY
        """The last entry appended, in a batch or still queued; -1 if there is none."""
        self._queue: list[bytes] = []  # appended, and not in a batch yet
        self._queue_bytes = 0
        self._replacements: dict[int, BookieId] = {}  # the change under way
        self._attempts: list[Fragment] = []  # the last fragments in the writes that this change attempted
        self._untried: set[BookieId] = set()  # replacements that have confirmed nothing yet
        self.unfit: set[BookieId] = set()
        """Bookies that refuse this ledger's adds for good. Do not choose them as replacements."""
        self._closing = _Closing.NO

    # --- state for callers --------------------------------------------------------------------

    @property
    def lac(self) -> int:
        """The last add confirmed; see ``ledger.core.pending``."""
        return self.pending.lac

    @property
    def lafr(self) -> int:
        """The last add fully replicated; see ``ledger.core.pending``."""
        return self.pending.lafr

    @property
    def unsettled_bytes(self) -> int:
        """The payload bytes of unsettled entries. The window bounds this number."""
        return self.pending.byte_count + self._queue_bytes

    @property
    def unsettled_entries(self) -> int:
        """The number of unsettled entries. The window bounds it."""
        return self.last_add_pushed - self.pending.settled

    @property
    def is_drained(self) -> bool:
        """Whether everything appended is settled."""
        return self.last_add_pushed == self.pending.settled

    @property
    def is_closed(self) -> bool:
        """Whether this writer closed the ledger."""
        return self._closing is _Closing.DONE

    @property
    def written_end(self) -> int | None:
        """The last entry, if this writer closed the ledger or may have closed it; otherwise None."""
        return None if self._closing is _Closing.NO else self.close_at

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: the ledger is closed, or the writer failed and has no closing write
        to attempt."""
        return self.failure is not None and self._closing is not _Closing.WANTED

    # --- appending ----------------------------------------------------------------------------

    def append(self, payloads: Sequence[bytes]) -> int:
        """Queue the next entries.

        Returns:
            The id of the first of them.

        Raises:
            LedgerLogError: ``failure``, if it is set; LedgerClosed once a close has begun.
        """
        if self.failure is not None:
            raise self.failure
        first = self.last_add_pushed + 1
        self._queue.extend(payloads)
        self.last_add_pushed += len(payloads)
        self._queue_bytes += sum(map(len, payloads))
        return first

    def form_batches(self) -> list[AddBatch]:
        """Turn queued entries into batches while few batches are outstanding (adaptive batching).

        A lone append leaves at once. Appends that arrive while frames are on their way travel together."""
        formed: list[AddBatch] = []
        if self.failure is not None:
            return formed
        while self._queue and self.pending.unconfirmed_batches() < self._frames_outstanding:
            payloads, byte_count = self._cut()
            formed.append(self.pending.push(payloads, byte_count))
        return formed

    def _cut(self) -> tuple[list[bytes], int]:
        queue = self._queue
        if self._queue_bytes <= self._frame_bytes and len(queue) <= self._frame_entries:
            taken, byte_count = queue, self._queue_bytes
            self._queue, self._queue_bytes = [], 0
            return taken, byte_count
        count = byte_count = 0
        for payload in queue[: self._frame_entries]:
            if count and byte_count + len(payload) > self._frame_bytes:
                break
            count += 1
            byte_count += len(payload)
        taken = queue[:count]
        del queue[:count]
        self._queue_bytes -= byte_count
        return taken, byte_count

    def take_sends(self, bookie: BookieId) -> list[Send]:
        """Take the entries to send to a bookie of the ensemble; empty once ``failure`` is set."""
        if self.failure is not None:
            return []
        return self.pending.take_sends(bookie)

    # --- events from bookies ------------------------------------------------------------------

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> bool:
        """A bookie has durably stored the entries of first..last that its slot holds.

        Nothing counts after the end (T06). The answer to a frame that only carried the LAC does not count
        either: it has no entry (``first`` is ``last`` + 1).

        Returns:
            Whether the LAC or LAFR moved.
        """
        if self.failure is not None or first > last:
            return False
        if self._untried:
            self._untried.discard(bookie)
        return self.pending.on_add_ok(bookie, first, last)

    def on_bookie_failed(self, bookie: BookieId) -> bool:
        """A bookie was lost, timed out, or refused an add for another reason than a fence.

        The failure triggers an ensemble change even if all entries of the bookie have their ack quorum (rule
        12).

        Returns:
            False if the bookie's slot had failed already.
        """
        return self.pending.on_bookie_failed(bookie)

    def on_bookie_connected(self, bookie: BookieId) -> None:
        """A bookie has a new connection; adds can be sent to it."""
        self.pending.on_bookie_connected(bookie)

    def on_fenced(self, bookie: BookieId) -> bool:
        """A bookie refused an add because the ledger is fenced.

        If the bookie is in the ensemble, the refusal ends the writer; it never triggers an ensemble change
        (D12). The refusal of a former member does not count. Once a close has begun, no refusal counts: a
        fence does not prove that the metadata changed (D26), and the closing write will find out.

        One exception: the bookie is a replacement that has not confirmed anything yet. A bookie that had an
        unclean boot fences every ledger older than the boot. Such a replacement is ``unfit`` for this ledger,
        and its slot fails like any other. But perhaps a client is recovering the ledger after all. Then the
        metadata write that replaces the bookie conflicts with the recovery and ends the writer. Until then,
        the other bookies' confirmations count, as if the refusal had not arrived yet.

        Returns:
            True if the bookie is such a replacement and this call made its slot fail.
        """
        if self.failure is not None or self.pending.slot_of(bookie) is None:
            return False
        if bookie in self._untried:
            self.unfit.add(bookie)
            return self.on_bookie_failed(bookie)
        self._fail(LedgerFenced(self.ledger_id, f"bookie {bookie} refuses adds"))
        return False

    # --- ensemble change ----------------------------------------------------------------------

    def replaceable(self) -> list[int]:
        """The failed slots that need replacements now; empty while a change or a close is under way."""
        if self.failure is not None or self._replacements or self._closing is not _Closing.NO:
            return []
        return self.pending.replaceable(full_pinning=self._full_pinning)

    def change_ensemble(self, replacements: Mapping[int, BookieId]) -> None:
        """Begin to replace slots, each by a bookie that is not in the ensemble.

        The slots' confirmations do not count from now on, even before the write is sent.

        Args:
            replacements: The new bookies by slot; the slots are a subset of ``replaceable()``.
        """
        assert replacements
        allowed = self.replaceable()
        assert all(index in allowed for index in replacements)
        self._replacements = dict(replacements)
        self.pending.strip(self._replacements, carry=True)
        self._form_intent()

    def _form_intent(self) -> None:
        """Form the metadata write that is needed now, from the newest metadata known."""
        self.intent = None
        if self._closing is _Closing.WANTED:
            assert self.close_at is not None
            wanted = self.metadata.closed(self.close_at, self._new_token())
        elif self._replacements and self.failure is None:
            fragments = self.pending.changed_fragments(self._replacements, self.metadata.fragments)
            last = fragments[-1]
            self._attempts.append(last)
            wanted = self.metadata.with_ensemble(last.first_entry, last.ensemble, self._new_token())
        else:
            return
        self.intent = MetadataIntent(wanted, self.version)

    # --- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Fix the end of the ledger at the LAC, and form the intent that writes the end. A second call does
        nothing.

        Adds above the LAC fail with LedgerClosed.

        Raises:
            WriteQuorumUnavailable: In guaranteed mode, not everything is drained (D18, T18). The writer
                stays usable.
            LedgerLogError: ``failure`` is set; this raises it.
        """
        if self._closing is not _Closing.NO:
            return
        if self.failure is not None:
            raise self.failure
        if self.replication.guaranteed and not self.is_drained:
            raise WriteQuorumUnavailable(
                f"ledger {self.ledger_id}: entries {self.lafr + 1}..{self.last_add_pushed} are not on their "
                f"full write quorum; the ledger stays open for recovery"
            )
        self._begin_close(LedgerClosed(self.ledger_id, self.lac, "closed by its writer"))

    def give_up(self, reason: LedgerLogError) -> None:
        """End the ledger because no ack quorum can be reached.

        The plain mode closes the ledger at its LAC. Pending adds are then certainly not in the ledger, and
        fail with ``reason``. The guaranteed mode leaves the ledger OPEN for recovery. Recovery may keep
        pending adds, so they fail with AppendUnknown (D18)."""
        if self.failure is not None:
            return
        if self.replication.guaranteed:
            self._fail(AppendUnknown(f"{reason}; ledger {self.ledger_id} is left open for recovery"))
        else:
            self._begin_close(reason)

    def deny(self, denial: LedgerLogError) -> None:
        """End the ledger because this client has no right to add to it, or has lost it.

        The ledger ends as in ``give_up``: in the plain mode the pending adds are certainly not in it."""
        if self.failure is None:
            self.denial = denial
            self.give_up(denial)

    def abandon(self) -> None:
        """Stop without closing: the ledger stays OPEN. Recovery decides which pending adds survive."""
        if self.failure is None:
            self._fail(AppendUnknown(f"ledger {self.ledger_id} was given up by its writer, and left open"))

    def _begin_close(self, failure: LedgerLogError) -> None:
        self.close_at = self.lac
        self._closing = _Closing.WANTED
        self.failure = failure  # From now on no confirmation counts (T06).
        self._drop_queue()
        if self.intent is None:
            self._form_intent()  # If a change is being written, read its outcome first.

    def _fail(self, failure: LedgerLogError) -> None:
        if self.failure is None or self._closing is _Closing.WANTED:
            self.failure = failure
            self._closing = _Closing.NO
            self.intent = None
            self._drop_queue()

    def _drop_queue(self) -> None:
        self._queue, self._queue_bytes = [], 0
        self.last_add_pushed = self.pending.lap

    # --- metadata -----------------------------------------------------------------------------

    def on_metadata_read(self, stored: LedgerMetadata | None, version: int) -> None:
        """Take in the stored metadata after an attempted write, whatever its outcome. ``stored`` is None if
        the ledger is gone."""
        self.intent = None
        if stored is None:
            self._fail(LedgerNotFound(self.ledger_id))
            return
        self.metadata, self.version = stored, version
        if stored.state is LedgerState.IN_RECOVERY:
            self._fail(LedgerFenced(self.ledger_id, "it is being recovered"))
        elif stored.state is LedgerState.CLOSED:
            if self._closing is _Closing.WANTED and stored.last_entry == self.close_at:
                self._closing = _Closing.DONE
            else:
                self._fail(self._closed_elsewhere(stored.last_entry))
        elif stored.last_fragment in self._attempts:
            self.pending.install(self._replacements, stored.fragments)
            self._untried.update(self._replacements.values())
            self._replacements = {}
            self._attempts = []
            self._form_intent()
        elif stored.last_fragment != self.pending.fragments[-1]:
            self._fail(LedgerFenced(self.ledger_id, "another process changed its last fragment"))
        else:
            self._form_intent()

    def _closed_elsewhere(self, last_entry: int | None) -> LedgerLogError:
        """The error to raise if recovery closed the ledger.

        If recovery kept an entry that was pending here, no pending add may be reported as certainly lost."""
        assert last_entry is not None
        if last_entry > self.lac:
            return LedgerFenced(self.ledger_id, f"it was recovered and closed at entry {last_entry}")
        return LedgerClosed(self.ledger_id, last_entry, "closed by another process")

    def check(self) -> None:
        """Assert the writer's invariants, for model checks."""
        self.pending.check()
        assert self.close_at is None or NO_ENTRY <= self.close_at <= self.lac
        assert self.last_add_pushed == self.pending.lap + len(self._queue)
        assert self.failure is not None or self._closing is _Closing.NO, "an end has a reason"
