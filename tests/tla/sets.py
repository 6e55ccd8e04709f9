"""The configurations in which runs are recorded, with all that may go wrong in one ledger."""

from __future__ import annotations

import attrs

from tests.model import sets
from tests.model.configuration import Configuration
from tests.model.core_mutants import CRASHING, GIVING_UP, GUARANTEED, PLAIN

__all__ = [
    "CRASHING",
    "FRAMES",
    "FULL_PINNING",
    "GIVING_UP",
    "GUARANTEED",
    "GUARANTEED_FRAMES",
    "LOSING",
    "PLAIN",
    "RECORDED",
    "STRIPED_FRAMES",
    "Losing",
]


class Losing(Configuration):
    """Bookies that crash lose everything, and boot into limbo (protocol A.3)."""

    def __str__(self) -> str:
        return f"losing bookies, {super().__str__()}"


_LOSSES = {"fail": 2, "change": 2, "fence": 1, "read": 2, "lost": 1, "crash": 1}

RECORDED: list[Configuration] = [
    *(one for one in sets.WALKED if not one.repair),
    # Frames of several entries, answers that are cut short, frames that tell a LAC alone.
    *(
        attrs.evolve(
            one, entries=9, frames_outstanding=1, frame_entries=3, round_entries=3, short=3, publish=2
        )
        for one in (sets.WALKED[0], sets.WALKED[3], sets.WALKED[5])
    ),
    Losing((3, 3, 2), entries=3, bookies=5, recoverers=2, **_LOSSES),
    Losing((4, 3, 2), entries=4, bookies=6, recoverers=2, guaranteed=True, **_LOSSES),
]
"""The configurations of the model's random walks, without repair, which is no part of the module."""

FULL_PINNING = RECORDED[6]
FRAMES, STRIPED_FRAMES, GUARANTEED_FRAMES = RECORDED[-5:-2]
LOSING = RECORDED[-2]
