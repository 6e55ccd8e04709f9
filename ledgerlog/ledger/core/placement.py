"""Choosing bookies for an ensemble, or for some of its slots, so that the copies of each entry lie apart.

The slots of an ensemble form a ring, and an entry goes to ``write_quorum`` neighbouring slots, its *write
set*. What counts is where the bookies of one write set are, not where those of the whole ensemble are. For
example, with four slots, a write quorum of 2 and the racks a, a, b, c, the order a-a-b-c has a write set in
rack a alone. The order a-b-a-c has none: you can lose any one rack and keep a copy of every entry.

Bookies say where they are by the labels ``zone``, ``rack`` and ``host``. A rack belongs to its zone: rack
"r1" of zone "a" and rack "r1" of zone "b" are two racks. If a bookie has no ``host`` label, the host of its
address counts, so copies lie on different machines even in a cluster without labels. A bookie without a label
shares that kind of place with nobody.

An arrangement is better than another if fewer of its write sets lie on one host; then in one rack; then in
one zone. Among equals, fewer pairs of copies share a zone, then a rack, then a host. Only then the order
counts in which the caller prefers the candidates: shuffled, with recently failed bookies last. All this is a
preference and not a condition: a cluster on one host still works.

The search starts with the best candidate for each slot in turn. It then exchanges bookies, with unused
candidates or between slots, as long as that helps. If write sets still lie together, it tries what an
exchange that does not help leads to. A test compares what it finds with what is possible, for up to seven
slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId

KEEP_APART = ("zone", "rack", "host")

Cost = tuple[int, ...]
"""Write sets on one host, in one rack, in one zone; then pairs of copies that share a zone, a rack, a
host."""

_NO_COST: Cost = (0,) * 6


def choose_bookies(
    candidates: Sequence[BookieInfo],
    ensemble: Sequence[BookieInfo | None],
    *,
    write_quorum: int,
    exclude: Collection[BookieId] = (),
) -> dict[int, BookieId]:
    """Choose bookies for the free slots of an ensemble, so that the copies of each entry lie apart.

    Args:
        candidates: Writable bookies, the preferred ones first.
        ensemble: The bookies that stay, by slot; None for each slot that is free.
        write_quorum: How many neighbouring slots an entry goes to.
        exclude: Bookies that must not be chosen.

    Returns:
        The chosen bookie of each free slot. They are distinct, and none is in ``ensemble`` or ``exclude``.

    Raises:
        NotEnoughBookies: There are fewer candidates than free slots.
    """
    slots = [slot for slot, info in enumerate(ensemble) if info is None]
    barred = {info.bookie_id for info in ensemble if info is not None} | set(exclude)
    # The directory may list a bookie twice while the bookie moves between two of its lists.
    named: dict[BookieId, BookieInfo] = {}
    for info in candidates:
        named.setdefault(info.bookie_id, info)
    free = [info for bookie_id, info in named.items() if bookie_id not in barred]
    if len(free) < len(slots):
        raise NotEnoughBookies(
            f"{len(slots)} more writable bookies are needed, {len(free)} are there"
            + (f" (not counting {', '.join(sorted(barred))})" if barred else "")
        )
    search = _Search(ensemble, free, write_quorum)
    for slot in slots:
        search.take_best(slot)
    while search.improve(slots) or search.escape(slots):
        pass
    return {slot: search.infos[slot].bookie_id for slot in slots}


def write_sets_together(
    ensemble: Sequence[BookieInfo], *, write_quorum: int, label: str = "rack"
) -> list[tuple[int, ...]]:
    """Find the write sets that lie in one place: losing it loses every copy of their entries.

    Args:
        ensemble: The bookies by slot.
        write_quorum: How many neighbouring slots an entry goes to.
        label: The kind of place, one of ``KEEP_APART``.

    Returns:
        The slots of each such write set. None for a write quorum of 1, where nothing can be kept apart.
    """
    kind = KEEP_APART.index(label)
    places = [_places(info)[kind] for info in ensemble]
    return [
        slots
        for slots in _write_sets(len(ensemble), write_quorum)
        if len(slots) > 1 and _is_together([places[slot] for slot in slots])
    ]


class _Search:
    """An ensemble that is being filled, what it costs, and the candidates that are left."""

    def __init__(
        self, ensemble: Sequence[BookieInfo | None], free: list[BookieInfo], write_quorum: int
    ) -> None:
        self.infos: dict[int, BookieInfo] = {slot: i for slot, i in enumerate(ensemble) if i is not None}
        self._free = free
        self._write_quorum = write_quorum
        self._places = {info.bookie_id: _places(info) for info in (*free, *self.infos.values())}
        write_sets = _write_sets(len(ensemble), write_quorum)
        self._sets_of = {
            slot: [slots for slots in write_sets if slot in slots] for slot in range(len(ensemble))
        }

    def take_best(self, slot: int) -> None:
        """Fill a free slot with the candidate that costs least there."""
        costs: list[tuple[Cost, int]] = []
        for at in self._kinds_of_candidates():
            self.infos[slot] = self._free[at]
            costs.append((self._cost_at(slot), at))
        _, best = min(costs)
        self.infos[slot] = self._free.pop(best)

    def improve(self, slots: Sequence[int]) -> bool:
        """Exchange one bookie if that lowers the cost. Returns whether it did."""
        for slot in slots:
            if self._cost_at(slot) == _NO_COST:
                continue
            if self._replace(slot) or any(self._swap(slot, other) for other in slots if other != slot):
                return True
        return False

    def escape(self, slots: Sequence[int]) -> bool:
        """Find a better arrangement behind a worse one, if write sets lie together and no exchange helps."""
        before = self._cost_at(*slots)
        if len(slots) == 1 or not any(before[2 - kind] and self._could_be_apart(kind) for kind in range(3)):
            return False
        kept = dict(self.infos), list(self._free)
        for slot in slots:
            for at in list(self._kinds_of_candidates()):
                self.infos[slot], self._free[at] = self._free[at], self.infos[slot]
                while self.improve(slots):
                    pass
                if self._cost_at(*slots) < before:
                    return True
                self.infos, self._free = dict(kept[0]), list(kept[1])
        return False

    def _could_be_apart(self, kind: int) -> bool:
        """Whether there are enough places of a kind: of each group of ``write_quorum`` slots, one place takes
        all but one at most."""
        ensemble = len(self._sets_of)
        most = ensemble * (self._write_quorum - 1) // self._write_quorum
        everybody = (*self.infos.values(), *self._free)
        counts = Counter(self._places[info.bookie_id][kind] for info in everybody)
        unknown = counts.pop(None, 0)
        return unknown + sum(min(count, most) for count in counts.values()) >= ensemble

    def _replace(self, slot: int) -> bool:
        before, left = self._cost_at(slot), self.infos[slot]
        for at in self._kinds_of_candidates():
            self.infos[slot] = self._free[at]
            if self._cost_at(slot) < before:
                self._free[at] = left
                return True
        self.infos[slot] = left
        return False

    def _swap(self, slot: int, other: int) -> bool:
        infos = self.infos
        before = self._cost_at(slot, other)
        infos[slot], infos[other] = infos[other], infos[slot]
        if self._cost_at(slot, other) < before:
            return True
        infos[slot], infos[other] = infos[other], infos[slot]
        return False

    def _kinds_of_candidates(self) -> Iterator[int]:
        """The first candidate in each place: another one there costs the same."""
        used = {self._places[info.bookie_id][2] for info in self.infos.values()}
        seen = set()
        for at, info in enumerate(self._free):
            zone, rack, host = self._places[info.bookie_id]
            kind = (zone, rack, host if host in used else None)
            if kind not in seen:
                seen.add(kind)
                yield at

    def _cost_at(self, *slots: int) -> Cost:
        """The cost of the write sets that any of the slots belongs to. Slots that are still free cost
        nothing."""
        total = list(_NO_COST)
        infos, places_of = self.infos, self._places
        for write_set in {each for slot in slots for each in self._sets_of[slot]}:
            filled = [places_of[infos[slot].bookie_id] for slot in write_set if slot in infos]
            for kind in range(3):
                known = [places[kind] for places in filled if places[kind] is not None]
                distinct = len(set(known))
                if distinct < len(known):
                    counts = Counter(known).values()
                    total[3 + kind] += sum(count * (count - 1) // 2 for count in counts)
                    total[2 - kind] += distinct == 1 and len(known) == len(write_set)
        return tuple(total)


def _write_sets(ensemble: int, write_quorum: int) -> list[tuple[int, ...]]:
    """The slots of each write set. If all slots make one write set, there is one."""
    if write_quorum == ensemble:
        return [tuple(range(ensemble))]
    return [tuple((first + at) % ensemble for at in range(write_quorum)) for first in range(ensemble)]


def _is_together(places: Sequence[object]) -> bool:
    return places[0] is not None and len(set(places)) == 1


def _places(info: BookieInfo) -> tuple[object, ...]:
    """The zone, rack and host of a bookie; None for each that is unknown."""
    zone, rack, host = (info.labels.get(label) for label in KEEP_APART)
    return zone, None if rack is None else (zone, rack), host or _host_of(info.address)


def _host_of(address: str) -> str | None:
    """The host of ``host:port``; None for the name of a bookie inside this process, which has no host."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and host else None
