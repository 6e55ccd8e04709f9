"""Choosing bookies for an ensemble, or replacements for some of its slots.

Candidates come in an order of preference that the caller made (shuffled, with recently failed ones
last). Copies are kept apart by label where the bookies carry labels: a candidate is preferred if no
bookie already chosen shares its ``zone``, then its ``rack``, then its ``host``. Keeping apart is a
preference and not a condition: a cluster on one host still works.
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
    """For each label, widest first: how many bookies already taken share it."""
    return tuple(
        sum(label in candidate.labels and info.labels.get(label) == candidate.labels[label] for info in taken)
        for label in KEEP_APART
    )
