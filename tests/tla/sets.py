"""The configurations in which runs are recorded, with all that may go wrong in one ledger."""

from __future__ import annotations

import attrs

from tests.model import sets
from tests.model.configuration import Configuration

RECORDED: list[Configuration] = [
    *(one for one in sets.WALKED if not one.repair),
    # Frames of several entries, answers that are cut short, frames that tell a LAC alone.
    *(
        attrs.evolve(
            one, entries=9, frames_outstanding=1, frame_entries=3, round_entries=3, short=3, publish=2
        )
        for one in (sets.WALKED[0], sets.WALKED[3], sets.WALKED[5])
    ),
]
"""The configurations of the model's random walks, without repair, which is no part of the module."""

PLAIN, CRASHING, STRIPED, GUARANTEED, FULL_PINNING = (RECORDED[number] for number in (0, 1, 2, 5, 6))
FRAMES, STRIPED_FRAMES, GUARANTEED_FRAMES = RECORDED[-3:]
GIVING_UP = attrs.evolve(GUARANTEED, give_up=1)
