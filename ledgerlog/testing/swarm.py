"""The parameters of one simulated run, drawn from its seed: its cluster, its workloads and its faults.

If a run has every fault at full rate, nothing in it succeeds. Many runs find more if each has only a few
kinds of faults. So each seed draws a *swarm*: the shape of the cluster, the workloads, the kinds of faults,
their rate, and how many bookies may be down at once.

**Sizes.** ``full`` runs have 10 to 40 seconds of trouble and up to 600 records. ``small`` runs have 0.3 to 24
seconds and up to 30 records. A small run is about a tenth of the work. Most bugs need only a handful of
requests that meet at the wrong moment. ``long`` runs have 4 to 24 hours of trouble, with as many records and
faults as a full run. Faults last for up to four minutes. Most of the time a cluster is at rest there, and
only what comes by itself happens, such as heartbeats and passes over all ledgers.

**The budget for damage.** Every acknowledged entry must keep an intact copy, and the sound bookies must be
able to form ensembles. So bits rot on at most ``ack quorum - 1`` bookies, and on no more bookies than an
ensemble can do without. With more damage, a protocol can only refuse to serve. In other runs
``ack quorum - 1`` bookies acknowledge entries before they sync them, and lose some entries with each crash.
"""

from __future__ import annotations

import enum
from random import Random

import attrs

from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.injector import CLOCK_JUMP, EXCHANGE, FAULTS

__all__ = [
    "ALL_FAULTS",
    "COLLECT_S",
    "COLLECT_S_MAX",
    "DIRECTED",
    "LOSING",
    "SHAPES",
    "WORKLOAD_MIXES",
    "Size",
    "Swarm",
]

DIRECTED = ("depose", "late adds", "member lost", "reset at a fence", "power cut after a fence")
"""Kinds of faults that aim at situations known to break replicated logs. They are drawn more often than the
others."""

ALL_FAULTS = (*FAULTS, "bit rot", *DIRECTED)

WORKLOAD_MIXES = (
    ("leaders",),
    ("leaders",),
    ("recoverers",),
    ("recoverers",),
    ("service",),
    ("leaders", "recoverers"),
    ("drills",),
    ("drills",),
    ("producers",),
)
"""Names in ``workload.WORKLOADS``. One line is drawn for each run."""

LOSING = ("kill", "power cut", "power cut at a door")
"""Only these kinds of faults make a bookie that does not sync at once lose entries."""

LOSS_SHARE = 0.4
"""The share of runs with bookies that do not sync at once, if the budget allows it."""

EXCHANGE_SHARE = 0.15
"""The share of runs in which another metadata store answers now and then, and bookies collect often."""

CLOCK_JUMP_SHARE = 0.15
"""The share of runs in which wall clocks jump, by up to an hour."""

COLLECT_S = 0.2
"""The interval between two collections in full runs with an exchanged metadata store, in seconds."""

COLLECT_S_MAX = 10.0
"""The interval in long runs. It is far below the time within which everything must work again."""

SHAPES = (
    Replication(1, 1, 1),
    Replication(2, 2, 2),
    Replication(3, 3, 2),
    Replication(3, 3, 2),
    Replication(3, 2, 2),
    Replication(3, 3, 3),
    Replication(4, 3, 2),
    Replication(4, 2, 2),
    Replication(2, 2, 2, guaranteed=True),
    Replication(3, 3, 2, guaranteed=True),
    Replication(3, 3, 2, guaranteed=True),
    Replication(3, 2, 2, guaranteed=True),
    Replication(4, 3, 2, guaranteed=True),
)


class Size(enum.Enum):
    """How long a run is."""

    SMALL = "small"
    FULL = "full"
    LONG = "long"


TROUBLE_S = {
    Size.SMALL: (0.3, 0.6, 1.5, 3.0, 24.0),
    Size.FULL: (10.0, 20.0, 40.0),
    Size.LONG: (4 * 3600.0, 12 * 3600.0, 24 * 3600.0),
}
"""How long the trouble lasts, in seconds. One value is drawn for each run."""

FAULT_S_MAX = {Size.SMALL: 40.0, Size.FULL: 40.0, Size.LONG: 800.0}
"""The largest ``Swarm.fault_s``."""

DOWN_S_MAX = {Size.SMALL: 2.0, Size.FULL: 2.0, Size.LONG: 40.0}
"""The largest ``Swarm.down_s``."""


@attrs.frozen(kw_only=True)
class Swarm:
    """The parameters of one run."""

    size: Size
    bookies: int
    replication: Replication
    workloads: tuple[str, ...]
    clients: int
    """How many processes contend for a log or a ledger."""
    tasks: int
    records_max: int
    """How many records or entries are sent in one run. Another seed finds more than a longer run."""
    roll: RollPolicy
    trouble_s: float
    pace_s: float
    """How long a leadership, or the life of a ledger, lasts on average, in seconds."""
    think_s: float
    """The mean pause of a task between two appends, in seconds. It is chosen so that the appends last as long
    as the trouble."""
    faults: tuple[str, ...]
    gap_s: float
    """The mean time between two faults, in seconds."""
    down_max: int
    """How many bookies may be down at the same time."""
    rotten_max: int
    """How many bookies may have bit rot on their disks."""
    tail_share: float
    payload_max: int
    segment_records: int
    """A bookie begins a new journal segment after this many records."""
    truncates: bool
    seals: bool
    deletes: bool
    unsynced: int = 0
    """How many bookies acknowledge entries before they sync them: at most ``ack quorum - 1``."""

    @property
    def stretch(self) -> float:
        """How many times longer than in a full run the pauses between two actions are."""
        return _stretch(self.trouble_s)

    @property
    def fault_s(self) -> float:
        """Faults last up to a third of this, in seconds."""
        return min(self.trouble_s, FAULT_S_MAX[self.size])

    @property
    def down_s(self) -> float:
        """After about this time a process that is down is started again, in seconds."""
        return min(DOWN_S_MAX[self.size], self.trouble_s / 8)

    @classmethod
    def draw(cls, random: Random, size: Size = Size.FULL) -> Swarm:
        """Draw the parameters of a run."""
        is_small = size is Size.SMALL
        replication = random.choice(SHAPES)
        bookies = replication.ensemble + random.choice((0, 1, 1) if is_small else (0, 1, 1, 2))
        kinds = random.choice((2, 3, 5) if is_small else (2, 3, 5, 8))
        faults = list(dict.fromkeys(random.sample((*ALL_FAULTS, *DIRECTED, *DIRECTED), kinds)))
        rotten_max = min(replication.ack_quorum - 1, bookies - replication.ensemble)
        if not rotten_max and "bit rot" in faults:
            faults.remove("bit rot")
        trouble_s = random.choice(TROUBLE_S[size])
        clients = random.choice((1, 2) if is_small else (1, 2, 2, 3))
        tasks = random.choice((1, 2, 6) if is_small else (1, 2, 4, 8))
        records_max = 30 if is_small else 600
        return (
            cls(
                size=size,
                bookies=bookies,
                replication=replication,
                workloads=random.choice(WORKLOAD_MIXES),
                clients=clients,
                tasks=tasks,
                records_max=records_max,
                roll=random.choice(
                    (
                        RollPolicy(),
                        RollPolicy(max_records=5),
                        RollPolicy(max_records=20),
                        RollPolicy(max_bytes=2000),
                        RollPolicy(max_age_s=0.5 if is_small else 3.0 * _stretch(trouble_s)),
                    )
                ),
                trouble_s=trouble_s,
                pace_s=trouble_s / (3 if is_small else 8),
                think_s=min(0.3 * _stretch(trouble_s), 2 * trouble_s * clients * tasks / records_max),
                faults=tuple(sorted(faults)),
                gap_s=trouble_s / random.choice((4, 10) if is_small else (10, 20, 40)),
                down_max=random.choice((1, 1, 2, bookies)),
                rotten_max=rotten_max,
                tail_share=random.choice((0.0, 0.01, 0.2)),
                payload_max=random.choice((20, 200) if is_small else (20, 200, 20_000)),
                segment_records=random.choice((10, 30, 100) if is_small else (30, 100, 1000)),
                truncates=random.random() < 0.3,
                seals=random.random() < 0.15,
                deletes=random.random() < 0.3,
            )
            ._with_losses(random)
            ._with_exchanges(random)
            ._with_clock_jumps(random)
        )

    def _with_losses(self, random: Random) -> Swarm:
        """Perhaps add bookies that lose entries when they crash.

        This is drawn after the rest, so that the rest does not depend on it. Lost copies and rotten copies
        count in the same budget, so a run has only one of them.
        """
        unsynced = self.replication.ack_quorum - 1
        if random.random() >= LOSS_SHARE or not unsynced or "bit rot" in self.faults:
            return self
        return attrs.evolve(self, unsynced=unsynced, faults=tuple(sorted({*self.faults, *LOSING})))

    def _with_exchanges(self, random: Random) -> Swarm:
        """Perhaps let another metadata store answer for a while.

        This is drawn after the rest, so that the rest does not depend on it.
        """
        if random.random() >= EXCHANGE_SHARE:
            return self
        return attrs.evolve(self, faults=tuple(sorted({*self.faults, EXCHANGE})))

    def _with_clock_jumps(self, random: Random) -> Swarm:
        """Perhaps let wall clocks jump. This is drawn last, so that the rest does not depend on it."""
        if random.random() >= CLOCK_JUMP_SHARE:
            return self
        return attrs.evolve(self, faults=tuple(sorted({*self.faults, CLOCK_JUMP})))


def _stretch(trouble_s: float) -> float:
    return max(1.0, trouble_s / TROUBLE_S[Size.FULL][-1])
