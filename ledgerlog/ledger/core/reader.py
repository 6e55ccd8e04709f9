"""Reading a range of entries from the bookies that hold them (protocol A.0 "Regular read").

One copy with a matching digest proves the entry. The entry does not exist only if *every* bookie of the write
set says that it has no such entry. If one of the answers is a time-out, a refusal or from a bookie in limbo
(it may have lost entries), the entry is unavailable. A copy that fails its digest does not show whether the
entry exists (rule 8).

A range read is split by fragments, and in each fragment into *lanes*: one lane for all entries that have the
same write set. A fragment has a single lane, unless the ledger is striped (its ensemble is larger than its
write quorum). A lane asks one bookie for all entries that the lane still lacks, and takes the entries that
come. From the first missing entry on, it asks the next bookie of the write set. Bookies that failed once are
asked last. A busy bookie (with too many requests under way) has said nothing about the entry. If only busy
bookies are left, the lane asks them again, until the shell gives up on them (``is_waiting``,
``give_up_busy``).

**Reading for a bookie that lost entries.** Such a bookie (the ``holder``) reads the entries of its own slot
from the other bookies of each entry's write set. Even if all the other bookies deny an entry, the entry may
have existed: perhaps only the holder had it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.errors import EntryCorrupt, EntryNotFound, EntryUnavailable, LedgerLogError
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata


@attrs.frozen
class RangeAsk:
    """Ask a bookie for entries first, first + stride, ... up to last."""

    bookie: BookieId
    first: int
    last: int
    stride: int
    lane: int


class _Said(enum.Enum):
    ABSENT = "no such entry"
    UNKNOWN = "unknown"
    DAMAGED = "damaged"
    BUSY = "busy"


class _Lane:
    __slots__ = ("asked", "bookies", "last", "next", "said", "stride", "why")

    def __init__(self, first: int, last: int, stride: int, bookies: Sequence[BookieId]) -> None:
        self.next = first
        self.last = last
        self.stride = stride
        self.bookies = bookies
        self.said: dict[BookieId, _Said] = {}  # answers about the entry ``next``
        self.why: dict[BookieId, str] = {}  # why bookies did not answer, for the message
        self.asked: RangeAsk | None = None  # the outstanding ask; answers to other asks are ignored


class RangeRead:
    """One read of entries first..last of a ledger. ``found`` fills up; a ``failure`` ends the read.

    Only the first answer to an ask counts: an answer after a time-out is ignored."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        avoid: Sequence[BookieId] = (),
        prefer: int = 0,
        holder: BookieId | None = None,
        even_holder: bool = False,
    ) -> None:
        """Begin a read.

        Args:
            metadata: The ledger.
            first: The first entry to read.
            last: The last entry to read.
            avoid: Bookies to ask last.
            prefer: Which bookie of each write set to ask first: any number, taken modulo the write quorum.
            holder: Read only entries that this bookie should hold, and ask only the other bookies.
            even_holder: Ask the holder too, after all others.
        """
        assert 0 <= first <= last
        self.ledger_id = metadata.ledger_id
        self.first = first
        self.last = last
        self.found: dict[int, bytes] = {}
        self.failure: LedgerLogError | None = None
        self._avoid = dict.fromkeys(avoid)
        self._lanes: list[_Lane] = []
        self._open = 0
        replication = metadata.replication
        index = metadata.fragment_index(first)
        while first <= last:
            end = metadata.fragment_end(index)
            stop = last if end is None else min(last, end)
            if index + 1 == len(metadata.fragments):
                stop = last
            ensemble = metadata.fragments[index].ensemble
            stride = replication.ensemble if replication.is_striped else 1
            for start in range(first, min(first + stride, stop + 1)):
                slots = replication.write_set(start)
                turn = prefer % len(slots)
                bookies = [ensemble[slot] for slot in (*slots[turn:], *slots[:turn])]
                if holder is not None:
                    if holder not in bookies:
                        continue
                    bookies.remove(holder)
                    if even_holder:
                        bookies.append(holder)
                self._lanes.append(_Lane(start, stop, stride, bookies))
            first = stop + 1
            index += 1
        self._open = len(self._lanes)
        self._waits_for_busy = True

    @property
    def is_waiting(self) -> bool:
        """Whether only busy bookies are left to ask, and no ask is outstanding."""
        return not self.is_done and all(
            lane.asked is None and self._is_waiting(lane) for lane in self._lanes if lane.next <= lane.last
        )

    def _is_waiting(self, lane: _Lane) -> bool:
        return self._waits_for_busy and _Said.BUSY in lane.said.values() and self._next_bookie(lane) is None

    def ask_busy_again(self) -> None:
        """Allow asking the busy bookies again."""
        for lane in self._lanes:
            lane.said = {bookie: said for bookie, said in lane.said.items() if said is not _Said.BUSY}

    def give_up_busy(self) -> None:
        """From now on, treat a busy bookie like a bookie that did not answer."""
        self._waits_for_busy = False

    @property
    def is_done(self) -> bool:
        """Whether every entry was found, or the read has failed."""
        return self._open == 0 or self.failure is not None

    def take_asks(self) -> list[RangeAsk]:
        """Take the reads to send now.

        The shell answers each by ``on_reply``, ``on_busy`` or ``on_failed``."""
        asks: list[RangeAsk] = []
        if self.failure is not None:
            return asks
        for number, lane in enumerate(self._lanes):
            if lane.asked is not None or lane.next > lane.last:
                continue
            bookie = self._next_bookie(lane)
            if bookie is None:
                if self._is_waiting(lane):
                    continue
                self._conclude(lane)
                return []
            lane.asked = RangeAsk(bookie, lane.next, lane.last, lane.stride, number)
            asks.append(lane.asked)
        return asks

    def _next_bookie(self, lane: _Lane) -> BookieId | None:
        fresh = [bookie for bookie in lane.bookies if bookie not in lane.said]
        good = [bookie for bookie in fresh if bookie not in self._avoid]
        return good[0] if good else fresh[0] if fresh else None

    def _conclude(self, lane: _Lane) -> None:
        said = lane.said
        words = ", ".join(lane.why.get(bookie) or f"{bookie}: {what.value}" for bookie, what in said.items())
        words = words or "no other bookie has it"
        if said and all(what is _Said.ABSENT for what in said.values()):
            self.failure = EntryNotFound(self.ledger_id, lane.next, words)
        elif _Said.DAMAGED in said.values() and not {_Said.UNKNOWN, _Said.BUSY} & {*said.values()}:
            self.failure = EntryCorrupt(self.ledger_id, lane.next, words)
        else:
            self.failure = EntryUnavailable(self.ledger_id, lane.next, words)

    def on_reply(
        self,
        ask: RangeAsk,
        found: Mapping[int, bytes],
        through: int,
        negative: Negative,
        damaged: int | None = None,
    ) -> None:
        """A bookie answered.

        Args:
            ask: The read.
            found: Payloads by entry id.
            through: The answer is complete up to this entry.
            negative: Whether entries missing from ``found`` are absent or unknown.
            damaged: An entry whose copy fails its digest; None if there is none.
        """
        lane = self._lanes[ask.lane]
        if lane.asked is not ask:
            return
        lane.asked = None
        entry_id = lane.next
        while entry_id <= lane.last and entry_id in found:
            self.found[entry_id] = found[entry_id]
            entry_id += lane.stride
        if entry_id != lane.next:
            lane.said, lane.why = {}, {}
            lane.next = entry_id
        if entry_id > lane.last:
            self._open -= 1
        elif entry_id == damaged:
            lane.said[ask.bookie] = _Said.DAMAGED
        elif entry_id <= through:
            lane.said[ask.bookie] = _Said.ABSENT if negative is Negative.ABSENT else _Said.UNKNOWN
        elif entry_id == ask.first:
            lane.said[ask.bookie] = _Said.UNKNOWN  # The answer says nothing; asking again might never end.

    def on_busy(self, ask: RangeAsk) -> None:
        """The bookie had too many requests under way to look."""
        lane = self._lanes[ask.lane]
        if lane.asked is ask:
            lane.asked = None
            lane.said[ask.bookie] = _Said.BUSY

    def on_failed(self, ask: RangeAsk, why: str = "") -> None:
        """The bookie did not answer, or answered with an error.

        Args:
            ask: The read.
            why: The name of the bookie and the reason, for the message of a failure. "": nothing is known.
        """
        lane = self._lanes[ask.lane]
        if lane.asked is not ask:
            return
        lane.asked = None
        lane.said[ask.bookie] = _Said.UNKNOWN
        lane.why[ask.bookie] = why
        self._avoid[ask.bookie] = None

    def on_denied(self, denial: LedgerLogError) -> None:
        """A bookie refused because this client may not read the ledger. The others would refuse too."""
        self.failure = denial

    def payloads(self) -> list[bytes]:
        """Return the payloads of consecutive entries from ``first`` on, up to the first one not found yet."""
        found = self.found
        payloads: list[bytes] = []
        for entry_id in range(self.first, self.last + 1):
            payload = found.get(entry_id)
            if payload is None:
                break
            payloads.append(payload)
        return payloads
