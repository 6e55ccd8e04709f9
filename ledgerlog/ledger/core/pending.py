"""Pending adds: what was sent to an ensemble, who confirmed it, and how far that carries.

This is the part that a writer and a recoverer share (protocol A.1 "LAC", "Pending-add-op queue rules"
and "Ensemble change"; A.4 for guaranteed write quorum). It owns the current ensemble as slots, the
batches of entries that are not settled, and the two watermarks

    LAC   = the largest x such that every entry in base+1..x is confirmed by AQ slots of its write set
    LAFR  = the same with all WQ slots

each counted contiguously from the base: -1 for a ledger's owner, the start of recovery for a
recoverer (D16). ``settled`` is the LAFR in guaranteed mode and the LAC otherwise: a batch retires when
its last entry is settled, and the next fragment starts at settled + 1. Always
lafr <= lac <= lap (in guaranteed mode), asserted after every verb.

**Confirmations by range.** A frame carries all entries of first..last that its slot holds, so a slot's
confirmations are a ``RangeSet`` over *all* ids, of which only those the slot holds mean anything. With
E = WQ the LAC is then simply the AQ-th highest reach of the slots; with striping each class of
entries with one write set (id mod E) has its own, and the lowest class decides. The cost is per
acknowledgement, whatever number of entries it covers.

**Sending** is level-triggered. A slot remembers through which entry it has been handed batches on its
present connection; ``take_sends`` hands out the rest. When a connection is lost the slot is *failed*
and its place in the batches falls back to what it confirmed; when it comes back everything
unconfirmed is sent again (bookies take a repeated add as the same add, rule 6). A replacement starts
with nothing confirmed and nothing sent, and so receives all that is pending (queue rule 3).

**Carried entries.** While the metadata write of a change is on its way the slots that stay go on confirming,
so entries may settle that belong to the new fragment by the time it is in force. They have their quorum,
but the fragment would name a bookie that lacks them (Apache BookKeeper #4651). So the batches that were not
settled when the change began are kept until the replacement was handed them, as far as
``CARRIED_BYTES_MAX`` goes: a writer is never held up for it.

**Confirmations that do not count**: those of a bookie that is not in the ensemble, and those of slots
that are being replaced, from before the metadata write is sent (T14, T15).
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

CARRIED_BYTES_MAX = 16 * FRAME_BYTES_TARGET
"""Payload bytes of settled batches that are kept for replacements."""


class AddBatch:
    """Consecutive entries that travel together. ``encoded`` belongs to the shell, which may also drop
    ``payloads`` once it holds their encoding."""

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
    """The entries first..last of a batch, as far as the slot holds them, are due at a bookie."""

    batch: AddBatch
    first: int
    last: int


class Slot:
    """A place in the ensemble and what its present bookie did."""

    __slots__ = ("bookie", "confirmed", "failed", "index", "replacing", "sent")

    def __init__(self, index: int, bookie: BookieId, base: int) -> None:
        self.index = index
        self.bookie = bookie
        self.confirmed = RangeSet()
        self.sent = base
        """Every pending entry up to here was handed out for this bookie's present connection."""
        self.failed = False
        """The bookie cannot be reached, or refused an add; it waits for a replacement or for its return."""
        self.replacing = False
        """A change of this slot is under way: its confirmations no longer count."""

    def __repr__(self) -> str:
        marks = ("!" if self.failed else "") + ("~" if self.replacing else "")
        return f"<{self.index}:{self.bookie}{marks} {self.confirmed.ranges()}>"


class PendingAdds:
    """The pending entries of one ledger and their progress towards the quorums."""

    def __init__(
        self,
        replication: Replication,
        fragments: tuple[Fragment, ...],
        *,
        base: int = NO_ENTRY,
    ) -> None:
        self.replication = replication
        self.fragments = fragments
        """The fragments as this client knows them; a recoverer's run ahead of the store (T12)."""
        self.lap = base
        self.lac = base
        self.lafr = base
        self.batches: deque[AddBatch] = deque()
        """Batches with an entry above ``settled``, and before them the carried ones, in order."""
        self.byte_count = 0
        """Payload bytes of ``batches``."""
        self.slots = [Slot(i, bookie, base) for i, bookie in enumerate(fragments[-1].ensemble)]
        self._by_bookie = {slot.bookie: slot for slot in self.slots}
        self._carried: dict[int, int] = {}  # slot -> batches above this entry are kept for it
        if replication.is_striped:
            self._classes = [
                [self.slots[i] for i in replication.write_set(residue)]
                for residue in range(replication.ensemble)
            ]
        else:
            self._classes = [self.slots]

    # --- questions ----------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """Through which entry nothing of the protocol is left to do for the writer."""
        return self.lafr if self.replication.guaranteed else self.lac

    @property
    def is_drained(self) -> bool:
        """Whether every entry pushed is settled."""
        return self.settled == self.lap

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return tuple(slot.bookie for slot in self.slots)

    def slot_of(self, bookie: BookieId) -> Slot | None:
        """The slot that a bookie sits in, None if it is not in the ensemble."""
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
        """The next entries; they follow ``lap``."""
        batch = AddBatch(self.lap + 1, payloads, byte_count)
        self.batches.append(batch)
        self.byte_count += byte_count
        self.lap = batch.last
        return batch

    @property
    def has_sends(self) -> bool:
        """Whether ``take_sends`` may have something for any bookie."""
        lap = self.lap
        return any(slot.sent < lap and not slot.failed and not slot.replacing for slot in self.slots)

    def take_sends(self, bookie: BookieId) -> list[Send]:
        """What is due at a bookie and was not handed out since it connected. Empty while it is failed, and
        for a bookie that is not (or, in the eyes of who asks, no longer) in the ensemble."""
        slot = self._by_bookie.get(bookie)
        if slot is None or slot.failed or slot.replacing or slot.sent >= self.lap:
            return []
        sends: list[Send] = []
        for batch in reversed(self.batches):
            if batch.last <= slot.sent:
                break
            first = max(batch.first, slot.sent + 1)
            if self._holds_any(slot.index, first, batch.last):
                sends.append(Send(batch, first, batch.last))
            else:
                slot.confirmed.add(first, batch.last)  # Nothing of it is this slot's to confirm.
        sends.reverse()
        slot.sent = self.lap
        self._stop_carrying(slot)
        return sends

    def _holds_any(self, slot: int, first: int, last: int) -> bool:
        replication = self.replication
        if not replication.is_striped or last - first + 1 >= replication.ensemble:
            return True
        return any(replication.holds(slot, entry_id) for entry_id in range(first, last + 1))

    # --- what the world did -------------------------------------------------------------------

    def on_add_ok(self, bookie: BookieId, first: int, last: int) -> bool:
        """A bookie has all entries of first..last that it holds, durably. Whether a watermark moved."""
        slot = self._by_bookie.get(bookie)
        if slot is None or slot.replacing:
            return False
        assert last <= self.lap, f"{bookie} confirmed entry {last}, the last add pushed is {self.lap}"
        settled = self.settled
        if last <= settled:
            return False
        slot.confirmed.add(max(first, settled + 1), last)
        return self._advance()

    def on_bookie_failed(self, bookie: BookieId) -> bool:
        """A bookie was lost or refused an add. Whether this is news."""
        slot = self._by_bookie.get(bookie)
        if slot is None or slot.failed:
            return False
        slot.failed = True
        if not slot.replacing:
            self._stop_carrying(slot)
        return True

    def on_bookie_connected(self, bookie: BookieId) -> None:
        """A bookie can be sent to, on a new connection: all that it has not confirmed is due again."""
        slot = self._by_bookie.get(bookie)
        if slot is not None:
            slot.failed = False
            slot.sent = slot.confirmed.reach(self._carried.get(slot.index, self.settled) + 1)

    # --- watermarks ---------------------------------------------------------------------------

    def _advance(self) -> bool:
        lac = self._quorum_reach(self.lac, self.replication.ack_quorum)
        moved = lac > self.lac
        self.lac = lac
        if self.replication.guaranteed:
            lafr = self._quorum_reach(self.lafr, self.replication.write_quorum)
            moved = moved or lafr > self.lafr
            self.lafr = lafr
        if moved:
            self._retire()
        self.check()
        return moved

    def _quorum_reach(self, base: int, quorum: int, without: Collection[int] = ()) -> int:
        """The largest x such that each entry in base+1..x is confirmed by ``quorum`` slots of its write
        set, not counting the slots in ``without`` nor those that are being replaced."""
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
                if len(self._classes) > 1:
                    # The first entry of this class that lacks the quorum, less one.
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
        """The failed slots that may be replaced together now, in order (A.4 rule 3, D13, D17).

        In the plain mode all of them. In guaranteed mode a change carries the entries in (settled, lac]
        with it, which are acknowledged already: each must keep an ack quorum among the slots that stay
        (relaxed pinning). ``full_pinning`` is the published, stricter rule: no slot that confirmed one
        of those entries may go; it can block for ever (T29)."""
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
        """A change of these slots begins: from now on nothing that their bookies confirmed counts for an
        entry above ``settled`` (T14, T15). The LAC itself never goes back: in guaranteed mode
        ``replaceable`` has made sure that every entry up to it keeps an ack quorum. With ``carry`` what
        settles from now on is kept for the replacements."""
        for index in slots:
            if carry:
                self._carried[index] = self.settled
            self.slots[index].replacing = True
            self.slots[index].confirmed.clear()

    def changed_fragments(
        self, replacements: Mapping[int, BookieId], fragments: tuple[Fragment, ...]
    ) -> tuple[Fragment, ...]:
        """``fragments`` with the replacements in force from ``settled`` + 1 on."""
        for bookie in replacements.values():
            # Also not one that leaves in the same change: its old tenure's answers could not be told apart.
            assert bookie not in self._by_bookie, f"replacement {bookie} is in the ensemble already"
        ensemble = tuple(replacements.get(slot.index, slot.bookie) for slot in self.slots)
        assert not has_duplicates(ensemble), "a bookie sits in one slot"
        return change_fragments(fragments, self.settled + 1, ensemble)

    def install(self, replacements: Mapping[int, BookieId], fragments: tuple[Fragment, ...]) -> None:
        """The change is in force: the new bookies sit in their slots and are due everything pending."""
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
        # A slot that stays may have been all that an entry still lacked (rule 11).
        self._advance()

    def check(self) -> None:
        """The relations between the watermarks."""
        assert self.lac <= self.lap
        assert not self.replication.guaranteed or self.lafr <= self.lac
