"""Pending adds: the entries that were sent to an ensemble, their confirmations, and the watermarks.

A writer and a recoverer share this part (protocol A.1 "LAC", "Pending-add-op queue rules" and "Ensemble
change"; A.4 for guaranteed write quorum). It owns the slots of the current ensemble, the batches of entries
that are not settled, and two watermarks. E, WQ and AQ are the ensemble size, the write quorum and the ack
quorum of the ledger:

    LAC   last add confirmed: the largest x such that every entry in base+1..x is confirmed by AQ slots of
          the entry's write set
    LAFR  last add fully replicated: the same with all WQ slots

Both count contiguously from the base. The base is -1 for a ledger's owner, and the start of recovery for a
recoverer (D16). ``settled`` is the LAFR in guaranteed mode (with guaranteed write quorum), and the LAC in the
plain mode. A batch retires when its last entry is settled, and the next fragment starts at settled + 1. The
LAP is the last add pushed. In guaranteed mode, lafr <= lac <= lap always holds; otherwise lac <= lap. Every
method that moves a watermark asserts this.

**Confirmations by range.** A frame carries the entries of first..last that its slot holds. A slot's
confirmations are a ``RangeSet`` over *all* ids; only the ids that the slot holds mean anything. The *reach*
of a slot is the last entry up to which the slot has confirmed everything. If E = WQ, the LAC is the AQ-th
highest reach of the slots. If E > WQ, the ledger is *striped*: its write sets differ. Then the entries with
one write set (the same id mod E) form a class with a reach of its own, and the class with the lowest reach
decides. The cost depends on the number of acknowledgements, not on the number of entries.

**Sending** depends on state, not on events. A slot remembers the last entry that was handed out for its
bookie's present connection; ``take_sends`` hands out all later ones. If the connection is lost, the slot is
*failed*. When the bookie reconnects, it gets again everything that it has not confirmed (a bookie treats a
repeated add as the same add, rule 6). A replacement starts with nothing confirmed and nothing sent, so it
receives all pending entries (queue rule 3).

**Carried entries.** While the metadata write of an ensemble change is under way, the slots that are not
replaced continue confirming. So an entry of the new fragment may settle before the fragment is in force. The
entry then has its quorum, but the fragment would name a bookie that lacks the entry (Apache BookKeeper
#4651). Therefore the batches that were not settled when the change began are *carried*: kept until they are
handed to the replacement. If the settled ones among them exceed ``CARRIED_BYTES_MAX``, they are dropped, so
carried batches never hold up a writer.

**Pinning.** In guaranteed mode, an ensemble change takes the entries in (settled, LAC] into the new fragment.
They are acknowledged already, so each must keep an ack quorum. A failed bookie is *pinned*, and not replaced
now, if one of these entries needs the bookie's copy for the ack quorum. The bookie is free again once the
LAFR has passed these entries, or once they have an ack quorum without the bookie. ``replaceable`` checks this
anew at each call. For example, with WQ = 3 and AQ = 2, b1 and b2 have confirmed entry 5, and b3 has not. If
b1 fails, it is pinned until b3 confirms entry 5 (A.4 rule 3, D13, D17).

**Confirmations that do not count.** A confirmation does not count if its bookie is outside the ensemble or if
its slot is being replaced, even if it comes before the metadata write is sent (T14, T15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from ledgerlog.ledger.core.ranges import RangeSet
from ledgerlog.limits import FRAME_BYTES_TARGET
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import Fragment, change_fragments
from ledgerlog.model.quorum import Replication, has_duplicates
from ledgerlog.model.record import tuple_new

CARRIED_BYTES_MAX = 16 * FRAME_BYTES_TARGET
"""Payload bytes of settled batches that are kept for replacements."""


class AddBatch:
    """Consecutive entries that travel together.

    ``encoded`` belongs to the shell. The shell may drop ``payloads`` once it holds their encoding."""

    __slots__ = ("byte_count", "encoded", "first", "last", "payloads")

    def __init__(self, first: int, payloads: Sequence[bytes], byte_count: int) -> None:
        assert payloads
        self.first = first
        self.last = first + len(payloads) - 1
        self.payloads: Sequence[bytes] = payloads
        self.byte_count = byte_count
        self.encoded: Any = None

    def __repr__(self) -> str:
        return f"AddBatch({self.first}..{self.last})"


class Send(NamedTuple):
    """Entries to send to a bookie: the entries first..last of a batch, as far as the bookie's slot holds
    them."""

    batch: AddBatch
    first: int
    last: int


class Slot:
    """A place in the ensemble, and the progress of its present bookie."""

    __slots__ = ("bookie", "confirmed", "failed", "index", "replacing", "sent")

    def __init__(self, index: int, bookie: BookieId, base: int) -> None:
        self.index = index
        self.bookie = bookie
        self.confirmed = RangeSet()
        self.sent = base
        """Every pending entry up to this one was handed out for this bookie's present connection."""
        self.failed = False
        """The bookie cannot be reached, or refused an add. The slot waits for a replacement or for the bookie
        to return."""
        self.replacing = False
        """A change of this slot is under way: its confirmations do not count."""

    def __repr__(self) -> str:
        marks = ("!" if self.failed else "") + ("~" if self.replacing else "")
        return f"<{self.index}:{self.bookie}{marks} {self.confirmed.ranges()}>"


class PendingAdds:
    """The pending entries of one ledger and their progress towards the quorums.

    The attributes change only within this object's methods."""

    def __init__(
        self,
        replication: Replication,
        fragments: tuple[Fragment, ...],
        *,
        base: int = NO_ENTRY,
    ) -> None:
        self.replication = replication
        self.fragments = fragments
        """The fragments as this client knows them. A recoverer's fragments may be newer than the stored ones
        (T12)."""
        self.lap = base
        self.lac = base
        self.lafr = base
        self.settled = base
        """The last entry that the writer is done with: the LAFR in guaranteed mode, otherwise the LAC."""
        self.batches: deque[AddBatch] = deque()
        """Batches with an entry above ``settled``, after the carried ones, in order."""
        self.byte_count = 0
        """Payload bytes of ``batches``."""
        self.slots = [Slot(i, bookie, base) for i, bookie in enumerate(fragments[-1].ensemble)]
        self._by_bookie = {slot.bookie: slot for slot in self.slots}
        self._carried: dict[int, int] = {}  # by slot: keep batches above this entry for its replacement
        self._is_striped = replication.is_striped
        if self._is_striped:
            self._classes = [
                [self.slots[i] for i in replication.write_set(residue)]
                for residue in range(replication.ensemble)
            ]
        else:
            self._classes = [self.slots]

    # --- questions ----------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """Whether every entry pushed is settled."""
        return self.settled == self.lap

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies of the slots, in order."""
        return tuple(slot.bookie for slot in self.slots)

    def slot_of(self, bookie: BookieId) -> Slot | None:
        """The slot of a bookie; None if the bookie is not in the ensemble."""
        return self._by_bookie.get(bookie)

    def unconfirmed_batches(self) -> int:
        """How many batches have an entry above the LAC."""
        lac = self.lac
        count = 0
        for batch in reversed(self.batches):
            if batch.last <= lac:
                break
            count += 1
        return count

    # --- adding and sending -------------------------------------------------------------------

    def push(self, payloads: Sequence[bytes], byte_count: int) -> AddBatch:
        """Add the next entries, from ``lap`` + 1 on, as one batch."""
        batch = AddBatch(self.lap + 1, payloads, byte_count)
        self.batches.append(batch)
        self.byte_count += byte_count
        self.lap = batch.last
        return batch

    @property
    def has_sends(self) -> bool:
        """Whether ``take_sends`` may have something for any bookie."""
        lap = self.lap
        for slot in self.slots:
            if slot.failed or slot.replacing:
                continue
            if slot.sent < lap:
                return True
        return False

    def take_sends(self, bookie: BookieId) -> list[Send]:
        """Take the entries to send to a bookie: all that were not handed out since it connected.

        Empty if the bookie has failed, is being replaced or is not in the ensemble."""
        slot = self._by_bookie.get(bookie)
        if slot is None or slot.failed or slot.replacing or slot.sent >= self.lap:
            return []
        sends: list[Send] = []
        for batch in reversed(self.batches):
            if batch.last <= slot.sent:
                break
            first = batch.first if batch.first > slot.sent else slot.sent + 1
            if not self._is_striped or self._holds_any(slot.index, first, batch.last):
                sends.append(tuple_new(Send, (batch, first, batch.last)))
            else:
                slot.confirmed.add(first, batch.last)  # The slot holds none of these entries.
        sends.reverse()
        slot.sent = self.lap
        if self._carried:
            self._stop_carrying(slot)
        return sends

    def _holds_any(self, slot: int, first: int, last: int) -> bool:
        replication = self.replication
        if last - first + 1 >= replication.ensemble:
            return True
        return any(replication.holds(slot, entry_id) for entry_id in range(first, last + 1))

    # --- events from bookies ------------------------------------------------------------------

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> bool:
        """A bookie has durably stored the entries of first..last that its slot holds.

        Returns:
            Whether a watermark moved.
        """
        slot = self._by_bookie.get(bookie)
        if slot is None or slot.replacing:
            return False
        assert last <= self.lap, f"{bookie} confirmed entry {last}, the last add pushed is {self.lap}"
        settled = self.settled
        if last <= settled:
            return False
        slot.confirmed.add(first if first > settled else settled + 1, last)
        return self._advance()

    def on_bookie_failed(self, bookie: BookieId) -> bool:
        """A bookie was lost or refused an add.

        Returns:
            False if the bookie's slot had failed already.
        """
        slot = self._by_bookie.get(bookie)
        if slot is None or slot.failed:
            return False
        slot.failed = True
        if not slot.replacing:
            self._stop_carrying(slot)
        return True

    def on_bookie_connected(self, bookie: BookieId) -> None:
        """A bookie has a new connection: send it again everything that it has not confirmed."""
        slot = self._by_bookie.get(bookie)
        if slot is not None:
            slot.failed = False
            slot.sent = slot.confirmed.reach(self._carried.get(slot.index, self.settled) + 1)

    # --- watermarks ---------------------------------------------------------------------------

    def _advance(self) -> bool:
        settled = lac = self._quorum_reach(self.lac, self.replication.ack_quorum)
        if self.replication.guaranteed:
            settled = self.lafr = self._quorum_reach(self.lafr, self.replication.write_quorum)
        moved = lac > self.lac or settled > self.settled
        self.lac, self.settled = lac, settled
        if moved:
            self._retire()
            self.check()
        return moved

    def _quorum_reach(self, base: int, quorum: int, without: Collection[int] = ()) -> int:
        """The largest x such that each entry in base+1..x is confirmed by ``quorum`` slots of its write set.

        Slots in ``without``, and slots that are being replaced, do not count."""
        ensemble = self.replication.ensemble
        lap = self.lap
        while base < lap:
            start = base + 1
            reach = lap
            for residue, members in enumerate(self._classes):
                reaches = [
                    start - 1 if slot.replacing or slot.index in without else slot.confirmed.reach(start)
                    for slot in members
                ]
                reaches.sort(reverse=True)
                through = reaches[quorum - 1]
                if self._is_striped:
                    # Continue with the entry before the first one of this class that lacks the quorum.
                    through += (residue - through - 1) % ensemble
                if through < reach:
                    reach = through
            if reach <= base:
                break
            base = reach
        return base

    def _retire(self) -> None:
        settled = retiring = self.settled
        batches = self.batches
        if self._carried:
            retiring = min(settled, *self._carried.values())
            if self._settled_bytes() > CARRIED_BYTES_MAX:
                self._carried.clear()
                retiring = settled
        while batches and batches[0].last <= retiring:
            self.byte_count -= batches.popleft().byte_count
        for slot in self.slots:
            slot.confirmed.discard_through(settled)

    def _settled_bytes(self) -> int:
        settled = self.settled
        return sum(batch.byte_count for batch in takewhile(lambda b: b.last <= settled, self.batches))

    def _stop_carrying(self, slot: Slot) -> None:
        if self._carried.pop(slot.index, None) is not None:
            self._retire()

    # --- ensemble change ----------------------------------------------------------------------

    def replaceable(self, *, full_pinning: bool = False) -> list[int]:
        """Find the failed slots that may be replaced together now, in order (A.4 rule 3, D13, D17).

        In the plain mode these are all failed slots. In guaranteed mode the new fragment takes over the
        entries in (settled, lac], which are acknowledged already. Each of them must keep an ack quorum among
        the remaining slots (relaxed pinning).

        Args:
            full_pinning: Use the published, stricter rule: do not replace a slot that confirmed one of those
                acknowledged entries. That rule can block forever (T29).
        """
        chosen: list[int] = []
        for slot in self.slots:
            if not slot.failed or slot.replacing:
                continue
            if full_pinning:
                if not self._is_pinned(slot):
                    chosen.append(slot.index)
            elif self._keeps_committed([*chosen, slot.index]):
                chosen.append(slot.index)
        return chosen

    def _is_pinned(self, slot: Slot) -> bool:
        entry_id = slot.confirmed.next_from(self.settled + 1)
        while entry_id is not None and entry_id <= self.lac:
            if self.replication.holds(slot.index, entry_id):
                return True
            entry_id = slot.confirmed.next_from(entry_id + 1)
        return False

    def _keeps_committed(self, leaving: Collection[int]) -> bool:
        reach = self._quorum_reach(self.settled, self.replication.ack_quorum, without=leaving)
        return reach >= self.lac

    def strip(self, slots: Collection[int], *, carry: bool = False) -> None:
        """Begin a change of these slots.

        Their confirmations above ``settled`` no longer count (T14, T15). The LAC never goes back. In
        guaranteed mode, ``replaceable`` has made sure that every entry up to the LAC keeps an ack quorum.

        Args:
            slots: The slots to be replaced.
            carry: Whether to keep, for the replacements, the entries that settle from now on.
        """
        for index in slots:
            if carry:
                self._carried[index] = self.settled
            self.slots[index].replacing = True
            self.slots[index].confirmed.clear()

    def changed_fragments(
        self, replacements: Mapping[int, BookieId], fragments: tuple[Fragment, ...]
    ) -> tuple[Fragment, ...]:
        """Return ``fragments``, changed so that the replacements are in force from ``settled`` + 1 on."""
        for bookie in replacements.values():
            # A bookie that leaves in this change is barred too: answers to its old slot would look like
            # answers to its new one.
            assert bookie not in self._by_bookie, f"replacement {bookie} is in the ensemble already"
        ensemble = tuple(replacements.get(slot.index, slot.bookie) for slot in self.slots)
        assert not has_duplicates(ensemble), "a bookie sits in one slot"
        return change_fragments(fragments, self.settled + 1, ensemble)

    def install(self, replacements: Mapping[int, BookieId], fragments: tuple[Fragment, ...]) -> None:
        """Put the new bookies into their slots: the change is in force.

        All pending entries become due at the new bookies."""
        for index, bookie in replacements.items():
            slot = self.slots[index]
            assert slot.replacing, "a change is announced by strip() before it is written"
            del self._by_bookie[slot.bookie]
            self._by_bookie[bookie] = slot
            slot.bookie = bookie
            slot.confirmed.clear()
            slot.sent = fragments[-1].first_entry - 1
            slot.failed = False
            slot.replacing = False
        self.fragments = fragments
        # A slot that was not replaced may have confirmed the last copy that an entry lacked (rule 11).
        self._advance()

    def check(self) -> None:
        """Assert the relations between the watermarks."""
        assert self.lac <= self.lap
        assert not self.replication.guaranteed or self.lafr <= self.lac
        assert self.settled == (self.lafr if self.replication.guaranteed else self.lac)
