"""Choosing bookies for an ensemble, or for some of its slots, so that the copies of each entry lie apart.

The slots of an ensemble form a ring, and an entry goes to ``write_quorum`` neighbouring slots, its *write
set*. So the bookies of each write set must lie apart. It is not enough that the bookies of the ensemble as a
whole lie in several places. For example, take four slots, a write quorum of 2 and the racks a, a, b, c. In
the order a-a-b-c, one write set lies in rack a alone. In the order a-b-a-c, each write set lies in two racks:
you can lose any one rack and keep a copy of every entry.

The labels ``zone``, ``rack`` and ``host`` of a bookie say where it is. A rack belongs to its zone: rack "r1"
of zone "a" and rack "r1" of zone "b" are two racks. If a bookie has no ``host`` label, the host in its
address counts, so copies lie on different machines even in a cluster without labels. If a bookie's zone, rack
or host is unknown, the bookie counts as sharing it with no other bookie.

Two arrangements are compared by these numbers, in this order. The lower number is better: the write sets on a
single host; the racks that write sets lack (see below); the write sets in a single zone; the pairs of copies
that share a zone, a rack, a host. If all are equal, the caller's order of the candidates decides: shuffled,
with recently failed bookies last. All this is a preference: a cluster on one host still works. A strict
policy (``model.placement``) makes the racks a condition: the caller then refuses an arrangement if
``narrow_write_sets`` finds a write set in it.

A write set is *narrow* if it lies in fewer racks than the policy wants (two by default); it *lacks* the
others. For example, three slots in the racks a, a, b lie in two racks. ``spread`` finds bookies to exchange,
so that the write sets of an ensemble lack fewer racks. Auto-recovery then moves the copies.

The search fills one slot after the other with the best candidate. It then exchanges bookies, with unused
candidates or between slots, as long as that makes the arrangement better. If write sets still lie in one
place, it makes one exchange that does not help, and continues from there. If write sets are still narrow, it
tries all ways to assign racks to the slots, up to a bound. A test compares the result with the best possible
one, for up to seven slots.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId

KEEP_APART = ("zone", "rack", "host")

MIN_RACKS = 2
"""In how many racks a write set must lie to survive the loss of any one of them."""

_RACK = KEEP_APART.index("rack")

Cost = tuple[int, ...]
"""The numbers by which arrangements are compared: write sets on one host, racks that write sets lack, write
sets in one zone; then pairs of copies that share a zone, a rack, a host."""

_NO_COST: Cost = (0,) * 6

_RACK_STEPS = 2_000
"""How many bookies ``search_racks`` tries at most."""


def choose_bookies(
    candidates: Sequence[BookieInfo],
    ensemble: Sequence[BookieInfo | None],
    *,
    write_quorum: int,
    exclude: Collection[BookieId] = (),
    min_racks: int = MIN_RACKS,
) -> dict[int, BookieId]:
    """Choose bookies for the free slots of an ensemble, so that the copies of each entry lie apart.

    Args:
        candidates: Writable bookies, the preferred ones first.
        ensemble: The bookies that stay, by slot; None for each slot that is free.
        write_quorum: How many neighbouring slots an entry goes to.
        exclude: Bookies that must not be chosen.
        min_racks: In how many racks each write set should lie.

    Returns:
        The chosen bookie of each free slot. The bookies are distinct, and none is in ``ensemble`` or
        ``exclude``.

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
    search = _Search(ensemble, free, write_quorum, min_racks)
    for slot in slots:
        search.take_best(slot)
    while search.improve(slots) or search.escape(slots) or search.search_racks(slots):
        pass
    return {slot: search.infos[slot].bookie_id for slot in slots}


def narrow_write_sets(
    ensemble: Sequence[BookieInfo],
    *,
    write_quorum: int,
    label: str = "rack",
    at_least: int = MIN_RACKS,
) -> list[tuple[int, ...]]:
    """Find the write sets that lie in too few places.

    A bookie without the label counts as sharing its place with no other bookie.

    Args:
        ensemble: The bookies by slot.
        write_quorum: How many neighbouring slots an entry goes to.
        label: The kind of place, one of ``KEEP_APART``.
        at_least: In how many places a write set must lie. A write set with fewer slots than that must lie in
            as many places as it has slots.

    Returns:
        The slots of each such write set. An entry of the slot that is named first goes to all of them.
    """
    kind = KEEP_APART.index(label)
    places = [_places(info)[kind] for info in ensemble]
    return [
        slots
        for slots in _write_sets(len(ensemble), write_quorum)
        if _lacks([places[slot] for slot in slots], at_least)
    ]


def spread(
    candidates: Sequence[BookieInfo],
    ensemble: Sequence[BookieInfo],
    *,
    write_quorum: int,
    fixed: Collection[int] = (),
    min_racks: int = MIN_RACKS,
) -> dict[int, BookieId]:
    """Find bookies to exchange, so that the write sets of an ensemble lack fewer racks.

    This exchanges one bookie at a time as long as that helps, and two at a time if one does not help. Each
    exchange lowers the number of racks that write sets lack. So if you repeat the call with the new ensemble,
    it finds nothing more to exchange at some point, whatever the candidates are.

    Args:
        candidates: Writable bookies, the preferred ones first.
        ensemble: The bookies by slot.
        write_quorum: How many neighbouring slots an entry goes to.
        fixed: Slots that keep their bookie.
        min_racks: In how many racks each write set should lie.

    Returns:
        A new bookie for each slot that changes; empty if no exchange helps. None of them is in ``ensemble``.
    """
    arranged = list(ensemble)
    infos = {info.bookie_id: info for info in candidates}
    names = {info.bookie_id for info in ensemble}
    free = [info for info in candidates if info.bookie_id not in names]

    def lacking(of: Sequence[BookieInfo]) -> int:
        places = [_places(info)[_RACK] for info in of]
        write_sets = _write_sets(len(of), write_quorum)
        return sum(_lacks([places[slot] for slot in slots], min_racks) for slots in write_sets)

    def exchange(slots: tuple[int, ...]) -> list[BookieInfo]:
        left = [None if slot in slots else info for slot, info in enumerate(arranged)]
        unused = [info for info in free if info not in arranged]
        if len(slots) > len(unused):
            return arranged
        chosen = choose_bookies(unused, left, write_quorum=write_quorum, min_racks=min_racks)
        return [infos[chosen[slot]] if slot in chosen else info for slot, info in enumerate(arranged)]

    while before := lacking(arranged):
        narrow = narrow_write_sets(arranged, write_quorum=write_quorum, at_least=min_racks)
        near = sorted({slot for slots in narrow for slot in slots}.difference(fixed))
        tries = itertools.chain(itertools.combinations(near, 1), itertools.combinations(near, 2))
        better = next((found for slots in tries if lacking(found := exchange(slots)) < before), None)
        if better is None:
            break
        arranged = better
    return {
        slot: info.bookie_id
        for slot, info in enumerate(arranged)
        if info.bookie_id != ensemble[slot].bookie_id
    }


def rack_of(info: BookieInfo) -> str | None:
    """Return the name of a bookie's rack, as ``zone/rack`` if the bookie has a zone; None if the rack is
    unknown."""
    rack = info.labels.get("rack")
    zone = info.labels.get("zone")
    return rack if rack is None or zone is None else f"{zone}/{rack}"


class _Search:
    """The search for bookies: the ensemble as filled so far, and the unused candidates."""

    def __init__(
        self,
        ensemble: Sequence[BookieInfo | None],
        free: list[BookieInfo],
        write_quorum: int,
        min_racks: int,
    ) -> None:
        self.infos: dict[int, BookieInfo] = {slot: i for slot, i in enumerate(ensemble) if i is not None}
        self._free = free
        self._order = list(free)
        self._steps = 0
        self._write_quorum = write_quorum
        self._at_least = tuple(min_racks if kind == _RACK else 2 for kind in range(len(KEEP_APART)))
        self._places = {info.bookie_id: _places(info) for info in (*free, *self.infos.values())}
        write_sets = _write_sets(len(ensemble), write_quorum)
        self._sets_of = {
            slot: [slots for slots in write_sets if slot in slots] for slot in range(len(ensemble))
        }

    def take_best(self, slot: int) -> None:
        """Fill a free slot with the candidate that costs least in this slot."""
        costs: list[tuple[Cost, int]] = []
        for at in self._kinds_of_candidates():
            self.infos[slot] = self._free[at]
            costs.append((self._cost_at(slot), at))
        _, best = min(costs)
        self.infos[slot] = self._free.pop(best)

    def improve(self, slots: Sequence[int]) -> bool:
        """Exchange one bookie if that lowers the cost. Return whether an exchange was made."""
        for slot in slots:
            if self._cost_at(slot) == _NO_COST:
                continue
            if self._replace(slot) or any(self._swap(slot, other) for other in slots if other != slot):
                return True
        return False

    def escape(self, slots: Sequence[int]) -> bool:
        """Make one exchange that does not help, and then exchanges that do, to find a better arrangement.

        This is tried only if a write set lies in too few hosts, racks or zones and there may be enough of
        them. Returns whether a better arrangement was found."""
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

    def search_racks(self, slots: Sequence[int]) -> bool:
        """Try ways to assign racks to the slots until no write set with one of these slots is narrow.

        Returns whether it found such a way. If so, the slots are filled accordingly, with the bookies that
        the caller prefers.
        """
        is_whole = len(slots) == len(self._sets_of)
        if not self._cost_at(*slots)[2 - _RACK] or (is_whole and not self._could_be_apart(_RACK)):
            return False
        kept = dict(self.infos), list(self._free)
        self._free = sorted((*self._free, *(self.infos.pop(slot) for slot in slots)), key=self._order.index)
        self._steps = _RACK_STEPS
        if self._lay(slots):
            return True
        self.infos, self._free = kept
        return False

    def _lay(self, slots: Sequence[int]) -> bool:
        if not slots:
            return True
        slot, seen = slots[0], set[object]()
        for at, info in enumerate(self._free):
            rack = self._places[info.bookie_id][_RACK]
            if self._steps and (rack is None or rack not in seen):
                self._steps -= 1
                seen.add(rack)
                self.infos[slot] = self._free.pop(at)
                if not self._cost_at(slot)[2 - _RACK] and self._lay(slots[1:]):
                    return True
                self._free.insert(at, self.infos.pop(slot))
        return False

    def _could_be_apart(self, kind: int) -> bool:
        """Whether there may be enough places of a kind. For example, if each write set must lie in two
        places, one place can fill at most ``write_quorum`` - 1 of every ``write_quorum`` neighbouring
        slots."""
        ensemble, write_quorum = len(self._sets_of), self._write_quorum
        others = min(self._at_least[kind], write_quorum) - 1
        most = ensemble * (write_quorum - others) // write_quorum
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
        """Yield the index of the first candidate of each place. Another candidate there would cost the
        same."""
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
                if len(set(known)) < len(known):
                    counts = Counter(known).values()
                    total[3 + kind] += sum(count * (count - 1) // 2 for count in counts)
                    if len(filled) == len(write_set):
                        total[2 - kind] += _lacks([places[kind] for places in filled], self._at_least[kind])
        return tuple(total)


def _write_sets(ensemble: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the slots of each write set. If one write set has all slots, there is only that one."""
    if write_quorum == ensemble:
        return [tuple(range(ensemble))]
    return [tuple((first + at) % ensemble for at in range(write_quorum)) for first in range(ensemble)]


def _lacks(places: Sequence[object], at_least: int) -> int:
    """Return how many more places a write set must lie in. Each slot with an unknown place counts as a place
    of its own."""
    known = [place for place in places if place is not None]
    return max(0, min(at_least, len(places)) - len(set(known)) - (len(places) - len(known)))


def _places(info: BookieInfo) -> tuple[object, ...]:
    """The zone, rack and host of a bookie; None for each that is unknown."""
    zone, rack, host = (info.labels.get(label) for label in KEEP_APART)
    return zone, None if rack is None else (zone, rack), host or _host_of(info.address)


def _host_of(address: str) -> str | None:
    """The host of ``host:port``; None for the name of a bookie inside this process, which has no host."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and host else None
