"""Choosing bookies for an ensemble, or replacements for some of its slots.

Candidates come in an order of preference that the caller made (shuffled, with recently failed ones
last). Copies are kept apart: a candidate is preferred if no bookie already chosen shares its ``zone``, then
its ``rack``, then its ``host``. These are labels that bookies carry. A rack belongs to its zone: racks of
one name in two zones are two racks. A bookie without a ``host`` label is on the host of its address, so
that copies lie on different machines where nobody has labelled anything. Keeping apart is a preference
and not a condition: a cluster on one host still works.
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
    """``count`` distinct bookies, none in ``exclude`` or ``beside``. NotEnoughBookies where there are fewer.

    ``beside`` are bookies that stay in the ensemble; the chosen ones are kept apart from them."""
    taken = list(beside)
    barred = {info.bookie_id for info in taken} | set(exclude)
    # A bookie that is moving between two lists of the directory may be listed twice.
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
    """For each kind of place, widest first: how many bookies already taken share the candidate's."""
    mine = _places(candidate)
    theirs = [_places(info) for info in taken]
    return tuple(
        sum(place is not None and places[kind] == place for places in theirs)
        for kind, place in enumerate(mine)
    )


def _places(info: BookieInfo) -> tuple[object, ...]:
    """Where a bookie is, in the kinds of ``KEEP_APART``; None where nobody says so."""
    zone, rack, host = (info.labels.get(label) for label in KEEP_APART)
    return zone, None if rack is None else (zone, rack), host or _host_of(info.address)


def _host_of(address: str) -> str | None:
    """The host of ``host:port``; None for the name of a bookie inside this process, which says nothing."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and host else None
