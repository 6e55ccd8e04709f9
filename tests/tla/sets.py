"""The configurations in which runs are recorded: with all that may go wrong in one ledger, and in one log."""

from __future__ import annotations

import attrs

from tests.model import chain_sets, sets
from tests.model.chain_world import ChainConfiguration
from tests.model.configuration import Configuration
from tests.model.core_mutants import CRASHING, GIVING_UP, GUARANTEED, PLAIN

__all__ = [
    "CRASHING",
    "CRASHING_LOG",
    "LATE_LOG",
    "FRAMES",
    "FULL_PINNING",
    "GIVING_UP",
    "GUARANTEED",
    "GUARANTEED_FRAMES",
    "LOSING",
    "LOSSY_LOG",
    "PLAIN",
    "PLAIN_LOG",
    "RECORDED",
    "RECORDED_LOGS",
    "REPAIRING",
    "SHORT_LOG",
    "SPLICING_LOG",
    "STORMY_LOG",
    "STRIPED_FRAMES",
    "Late",
    "Losing",
]


class Losing(Configuration):
    """Bookies that crash lose everything, and boot into limbo (protocol A.3)."""

    def __str__(self) -> str:
        return f"losing bookies, {super().__str__()}"


class Late(ChainConfiguration):
    """A leader that gave up waiting for the answer to its write reads the record only after it was
    deposed."""

    def __str__(self) -> str:
        return f"late reads, {super().__str__()}"


_LOSSES = {"fail": 2, "change": 2, "fence": 1, "read": 2, "lost": 1, "crash": 1}

RECORDED: list[Configuration] = [
    *sets.WALKED,
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
"""The configurations of the model's random walks, and some for frames and for losses."""

FULL_PINNING = RECORDED[6]
FRAMES, STRIPED_FRAMES, GUARANTEED_FRAMES = RECORDED[-5:-2]
LOSING = RECORDED[-2]
REPAIRING = next(one for one in RECORDED if one.repair)

PLAIN_LOG = ChainConfiguration(takeovers=4, records=8, rolls=3)
LOSSY_LOG = ChainConfiguration(takeovers=4, records=4, rolls=4, lost=6)
LATE_LOG = Late(takeovers=4, records=2, rolls=4, lost=4)
CRASHING_LOG = ChainConfiguration(takeovers=6, records=6, rolls=2, crash=4, fail=2)
SHORT_LOG = ChainConfiguration(takeovers=4, records=8, rolls=3, losses=3, accepts=2)
SPLICING_LOG = ChainConfiguration(takeovers=2, records=6, rolls=1, leaves=1, splices=3, withdrawals=2)

RECORDED_LOGS: list[ChainConfiguration] = [
    *chain_sets.WALKED,
    *(PLAIN_LOG, LOSSY_LOG, LATE_LOG, CRASHING_LOG, SHORT_LOG, SPLICING_LOG),
]
"""The configurations of the chain's random walks, and some in which fewer things happen more often."""

STORMY_LOG = RECORDED_LOGS[1]
