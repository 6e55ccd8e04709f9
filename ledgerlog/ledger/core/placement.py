"""Choosing bookies for an ensemble, or replacements for some of its slots.

The caller passes the candidates in its order of preference: shuffled, with recently failed bookies last.
``choose_bookies`` keeps the copies apart. It prefers a candidate whose ``zone`` no chosen bookie shares, then
one whose ``rack``, then one whose ``host`` no chosen bookie shares. Bookies carry these as labels. A rack
belongs to its zone: rack "r1" of zone "a" and rack "r1" of zone "b" are two racks. If a bookie has no
``host`` label, the host of its address counts, so copies lie on different machines even in a cluster without
labels. Keeping apart is a preference and not a condition: a cluster on one host still works.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ledgerlog.errors import NotEnoughBookies
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId

KEEP_APART = ("zone", "rack", "host")


def choose_bookies(
    candidates: Sequence[BookieInfo],
    count: int,
    *,
    beside: Collection[BookieInfo] = (),
    exclude: Collection[BookieId] = (),
) -> list[BookieId]:
    """Choose ``count`` distinct bookies, keeping the copies apart.

    Args:
        candidates: Writable bookies, the preferred ones first.
        count: How many bookies to choose.
        beside: Bookies that stay in the ensemble. The chosen ones are kept apart from them.
        exclude: Bookies that must not be chosen.

    Returns:
        The ids of the chosen bookies. None is in ``beside`` or ``exclude``.

    Raises:
        NotEnoughBookies: Fewer than ``count`` candidates are left after ``beside`` and ``exclude``.
    """
    taken = list(beside)
    barred = {info.bookie_id for info in taken} | set(exclude)
    # The directory may list a bookie twice while the bookie moves between two of its lists.
    named: dict[BookieId, BookieInfo] = {}
    for info in candidates:
        named.setdefault(info.bookie_id, info)
    free = [info for bookie_id, info in named.items() if bookie_id not in barred]
    if len(free) < count:
        raise NotEnoughBookies(
            f"{count} more writable bookies are needed, {len(free)} are there"
            + (f" (not counting {', '.join(sorted(barred))})" if barred else "")
        )
    chosen: list[BookieId] = []
    while len(chosen) < count:
        best = min(range(len(free)), key=lambda i: (_clashes(free[i], taken), i))
        info = free.pop(best)
        taken.append(info)
        chosen.append(info.bookie_id)
    return chosen


def _clashes(candidate: BookieInfo, taken: Sequence[BookieInfo]) -> tuple[int, ...]:
    """Count the taken bookies that share the candidate's zone, rack and host, in this order."""
    mine = _places(candidate)
    theirs = [_places(info) for info in taken]
    return tuple(
        sum(place is not None and places[kind] == place for places in theirs)
        for kind, place in enumerate(mine)
    )


def _places(info: BookieInfo) -> tuple[object, ...]:
    """The zone, rack and host of a bookie; None for each that is unknown."""
    zone, rack, host = (info.labels.get(label) for label in KEEP_APART)
    return zone, None if rack is None else (zone, rack), host or _host_of(info.address)


def _host_of(address: str) -> str | None:
    """The host of ``host:port``; None for the name of a bookie inside this process, which has no host."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and host else None
