"""Giving a live bookie the entries that it should have and lacks (rule 24).

A ``Backfill`` works on one *share*: the entries of one fragment that the bookie's slot holds. The bookie
lacks ranges of the share: perhaps one entry that was on its way when a connection broke, perhaps millions.
The ``Backfill`` takes the ranges in ascending order. For each range it works in three steps:

    lists     each other bookie of the same write sets lists the entries that it has
                  take_lists -> on_listed, on_list_failed
    skip      if no list names any entry of a stretch, skip the stretch in one step, no matter how long it is
    rounds    read the entries that some list names, up to ``round_entries`` ids at a time. Entries with the
              same write set form a class, and each class reads one range from one bookie at a time. Check
              the digests, and send the entries to the bookie in pieces
                  take_asks -> on_reply, on_failed;   take_copies -> on_copied

**If an entry is not available, the others are still copied.** The entry is reported in one of two sets.
``nowhere``: every bookie that should have the entry answered, and none has an intact copy. ``unavailable``:
some bookie could not say whether it has the entry, so another try makes sense (rule 8: no answer, limbo and
trouble never mean "no such entry"). If a bookie fails to answer once, this ``Backfill`` does not ask it
again. The shell decides what to do if the filled bookie refuses copies.

**Bounds.** Reading stops while the ``CopyQueue`` is full. One round of ids and the lists of the other bookies
are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk, FaultKind, Holdings, absence
from ledgerlog.ledger.core.ranges import RangeSet
from ledgerlog.ledger.core.reader import RangeAsk
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share
from ledgerlog.repair.core.copy_queue import Copy, CopyQueue
from ledgerlog.repair.core.repair import ROUND_ENTRIES

__all__ = ["Backfill"]


@attrs.define(eq=False)
class _Stock(Holdings):
    """The entries that another bookie has, as far as it has listed them."""

    asked: CopyAsk | None = None


@attrs.define(eq=False)
class _Lane:
    """One class of the round: its entries with the same write set.

    ``entries`` has the entries that are not read yet, in ascending order, each with the bookies that have it.
    """

    entries: dict[int, list[BookieId]] = attrs.Factory(dict)
    asked: RangeAsk | None = None


class Backfill:
    """The backfill of one bookie's share of one fragment."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        bookie: BookieId,
        share: Share,
        missing: Sequence[tuple[int, int]],
        *,
        round_entries: int = ROUND_ENTRIES,
    ) -> None:
        """Start with the ranges of entries that the bookie lacks.

        Args:
            metadata: The ledger's metadata.
            bookie: The bookie to fill.
            share: Its share of one fragment.
            missing: Ranges of ids, in ascending order. Each range begins and ends with an entry of the share,
                and the bookie has no entry of its share within the range (``model.missing.gaps``).
            round_entries: How many ids one round covers at most.
        """
        self.bookie = bookie
        self.ledger_id = metadata.ledger_id
        self.nowhere = RangeSet()
        """Entries without any intact copy left."""
        self.unavailable = RangeSet()
        """Entries that are not available now, because some bookie did not say whether it has them."""
        self.lac = metadata.surely_committed
        """The LAC that every copy carries (rule 23)."""
        replication = metadata.replication
        ensemble = metadata.fragments[metadata.fragment_index(share.first)].ensemble
        self._share = share
        self._round_entries = round_entries
        self._stride = replication.ensemble if replication.is_striped else 1
        self._others = [
            [ensemble[slot] for slot in replication.write_set(entry_id) if slot != share.slot]
            for entry_id in range(replication.ensemble)
        ]
        """The other bookies that hold an entry, by the entry's id modulo the ensemble size."""
        peers = [
            peer
            for entry_id in range(replication.ensemble)
            if replication.holds(share.slot, entry_id)
            for peer in self._others[entry_id]
        ]
        self._stocks = {peer: _Stock(NO_ENTRY) for peer in peers}
        self._ranges = deque(missing)
        self._at = self._ranges[0][0] if self._ranges else 0
        """The first entry that is not planned yet. It is in the first of ``_ranges``."""
        self._lanes: dict[int, _Lane] = {}
        self._doubted: set[int] = set()
        """Entries of the round for which some bookie did not say whether it has them."""
        self._copies = CopyQueue()

    @property
    def is_done(self) -> bool:
        """Whether every missing entry is confirmed or reported as not available."""
        return not self._ranges and not self._lanes and not self._copies

    @property
    def silent(self) -> list[BookieId]:
        """The bookies that did not answer, or are in limbo: they may have lost entries and do not know yet
        which."""
        return sorted(bookie for bookie, stock in self._stocks.items() if stock.is_doubtful)

    # --- lists --------------------------------------------------------------------------------------

    def take_lists(self) -> list[CopyAsk]:
        """Return the lists to ask for now. Answer each with ``on_listed`` or ``on_list_failed``."""
        asks: list[CopyAsk] = []
        while self._ranges and not self._lanes and not asks:
            last = self._ranges[0][1]
            behind = [s for s in self._stocks.values() if not s.is_silent and s.through < self._at]
            for bookie, stock in self._stocks.items():
                if stock in behind and stock.asked is None:
                    stock.asked = CopyAsk(bookie, self._at, last)
                    asks.append(stock.asked)
            if behind:
                break
            self._plan(last)
        return asks

    def on_listed(self, ask: CopyAsk, answer: CopyAnswer) -> None:
        """Take a bookie's list."""
        stock = self._stocks[ask.bookie]
        stock.asked = None
        stock.forget_before(ask.first)
        stock.on_answer(ask.first, answer)
        if stock.is_silent:
            self._give_up_on(ask.bookie)

    def on_list_failed(self, ask: CopyAsk) -> None:
        """Note that a bookie did not answer, or could not list its entries."""
        self._stocks[ask.bookie].asked = None
        self._give_up_on(ask.bookie)

    def _plan(self, last: int) -> None:
        """Plan the next round, or skip the next stretch that no list names. Call this when all lists reach
        ``_at``."""
        told = [stock for stock in self._stocks.values() if not stock.is_silent]
        horizon = min((stock.through for stock in told), default=last)
        horizon = min(horizon, last)
        first = min((e for stock in told if (e := stock.next_named(self._at)) is not None), default=last + 1)
        if first > self._at:
            stop = min(first - 1, horizon)
            self._conclude(self._at, stop, any(stock.is_doubtful for stock in self._stocks.values()))
        else:
            stop = min(horizon, self._at + self._round_entries - 1)
            for entry_id in self._share.ids(self._at, stop):
                self._want(entry_id)
        following = next(self._share.ids(stop + 1, last), None)
        if following is None:
            self._ranges.popleft()
            following = self._ranges[0][0] if self._ranges else 0
        self._at = following

    def _want(self, entry_id: int) -> None:
        others = self._others[entry_id % len(self._others)]
        stocks = [(bookie, self._stocks[bookie]) for bookie in others]
        sources = [b for b, stock in stocks if not stock.is_silent and stock.next_named(entry_id) == entry_id]
        is_doubtful = any(stock.is_doubtful for _, stock in stocks)
        if not sources:
            self._conclude(entry_id, entry_id, is_doubtful)
            return
        if is_doubtful:
            self._doubted.add(entry_id)
        self._lanes.setdefault(entry_id % self._stride, _Lane()).entries[entry_id] = sources

    def _conclude(self, first: int, last: int, is_doubtful: bool) -> None:
        """Report a stretch as not available, up to its last entry that belongs to the share."""
        share = self._share
        last = next(e for e in range(last, first - 1, -1) if share.replication.holds(share.slot, e))
        (self.unavailable if is_doubtful else self.nowhere).add(first, last)

    # --- reading --------------------------------------------------------------------------------------

    def take_asks(self) -> list[RangeAsk]:
        """Return the reads to send now. Answer each with ``on_reply`` or ``on_failed``."""
        asks: list[RangeAsk] = []
        if self._copies.is_full:
            return asks
        for number, lane in self._lanes.items():
            if lane.asked is None:
                first, (bookie, *_) = next(iter(lane.entries.items()))
                last = first
                while bookie in lane.entries.get(last + self._stride, ()):
                    last += self._stride
                lane.asked = RangeAsk(bookie, first, last, self._stride, number)
                asks.append(lane.asked)
        return asks

    def on_reply(
        self,
        ask: RangeAsk,
        found: Mapping[int, bytes],
        through: int,
        negative: Negative,
        damaged: int | None = None,
    ) -> None:
        """Take a bookie's answer, complete up to ``through``. ``damaged`` is an entry whose digest failed."""
        lane = self._lanes[ask.lane]
        assert lane.asked is ask
        lane.asked = None
        read: dict[int, bytes] = {}
        for entry_id in range(ask.first, ask.last + 1, ask.stride):
            if entry_id in found:
                read[entry_id] = found[entry_id]
                del lane.entries[entry_id]
                self._doubted.discard(entry_id)
            elif entry_id == damaged or entry_id <= through:
                # The bookie listed the entry but did not send it. So the entry is damaged, or the bookie has
                # lost it since.
                kind = FaultKind.CORRUPT if entry_id == damaged else absence(negative)
                self._without(lane, entry_id, ask.bookie, kind)
            else:
                if entry_id == ask.first:
                    self._without(lane, entry_id, ask.bookie, FaultKind.UNREACHABLE)
                break
        self._copies.add(self.bookie, read)
        self._sweep()

    def on_failed(self, ask: RangeAsk) -> None:
        """Note that a bookie did not answer a read, or answered with an error."""
        lane = self._lanes[ask.lane]
        assert lane.asked is ask
        lane.asked = None
        self._give_up_on(ask.bookie)
        self._sweep()

    def _give_up_on(self, bookie: BookieId) -> None:
        self._stocks[bookie].on_silent()
        for lane in self._lanes.values():
            for entry_id in [e for e, sources in lane.entries.items() if bookie in sources]:
                if lane.asked is None or lane.asked.bookie != bookie:
                    self._without(lane, entry_id, bookie, FaultKind.UNREACHABLE)

    def _without(self, lane: _Lane, entry_id: int, bookie: BookieId, kind: FaultKind) -> None:
        """Note that this bookie did not send this entry."""
        if not kind.is_certain:
            self._doubted.add(entry_id)
        sources = lane.entries[entry_id]
        if bookie in sources:
            sources.remove(bookie)
        if not sources:
            del lane.entries[entry_id]
            self._conclude(entry_id, entry_id, entry_id in self._doubted)
            self._doubted.discard(entry_id)

    def _sweep(self) -> None:
        self._lanes = {number: lane for number, lane in self._lanes.items() if lane.entries}

    # --- copies ---------------------------------------------------------------------------------------

    def take_copies(self) -> list[Copy]:
        """Return the copies to store now. Answer each with ``on_copied``."""
        return self._copies.take()

    def on_copied(self, copy: Copy) -> None:
        """Note that the bookie has stored a copy durably."""
        self._copies.on_copied(copy)
