"""The features of a run: parts of the system that a seed draws in addition to its swarm. Some runs have them.

    auto-recovery   one or two processes audit and repair (``repairers``)
    replicas        replicas of a state machine elect leaders, take snapshots in ledgers or files and restore
                    them (``replicated``). Mostly they replace the swarm's workloads
    campaigns       the processes of the workload ``leaders`` campaign for the lead (``campaigners``). If the
                    swarm has no leaders, they replace its workloads
    rot at rest     bits rot in the files of at most ack quorum - 1 bookies, while upkeep looks for them, and
                    the indexes of these bookies are lost
    upkeep          bookies compact, scrub and collect often, in small files, with small caches
    archive         one or two processes archive all logs (``archivers``)
    greedy          greedy peers (``greedy``)
    bits flipped on the way     links damage data
    bookie lost for good        a bookie goes and never comes back, so auto-recovery has to replace it
    keys            records of the workload ``leaders`` have keys and headers

They are drawn from a random stream of their own. So the swarm of a seed is the same with and without them. If
a seed draws none of them, its whole run is the same, too. The feature ``keys`` came later, and has a stream
of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any

import attrs

from bookie.storage.engine.config import StorageConfig
from ledgerlog.limits import KIB
from ledgerlog.model.repair import RepairSettings
from ledgerlog.testing.archivers import ARCHIVE_FAULTS
from ledgerlog.testing.injector import DAMAGED_LINK, INDEX_LOST, LOST_FOR_GOOD, ROT_AT_REST
from ledgerlog.testing.people import People
from ledgerlog.testing.plan import Fault, draw_faults
from ledgerlog.testing.swarm import Size, Swarm

__all__ = ["ARCHIVE", "FIRST_NUMBER", "GREEDY", "KEYS", "NAMES", "REPAIR", "REPLICAS", "UPKEEP", "Features"]

REPAIR = "auto-recovery"
REPLICAS = "replicas"
UPKEEP = "upkeep"
ARCHIVE = "archive"
GREEDY = "greedy"
CAMPAIGNS = "campaigns"
KEYS = "keys"
_DRAWN_TOGETHER = (
    REPAIR,
    REPLICAS,
    CAMPAIGNS,
    UPKEEP,
    ROT_AT_REST,
    ARCHIVE,
    GREEDY,
    DAMAGED_LINK,
    LOST_FOR_GOOD,
)
NAMES = (*_DRAWN_TOGETHER, KEYS)

FIRST_NUMBER = 2000
"""The number of the first fault of the features in a plan."""

SHARE = 0.3
"""The share of runs that have each of the features. Rot at rest has another, and may bring auto-recovery. For
long runs see ``BEATING_SHARE_LONG``."""

ROT_SHARE = 0.5
"""The share of runs in which bits are to rot. Half of them have no copy to spare, so nothing rots there."""

ROT_FAULTS = 8
"""How many faults there are on average in a run whose bits rot: bits that rot, and indexes that are lost."""

REPAIR_OF_ROT_SHARE = 0.7
"""The share of runs with rot that are given auto-recovery, too. It reads entries and copies damaged ones
again, so bookies replace what they have stored."""

RARE_SCRUB_S = 20.0
"""How often bookies scrub if others are to find the damage first, in seconds. It is below ``CONVERGE_S``."""

UPKEEP_S_MAX = 600.0
"""In long runs, upkeep comes at least this often, in seconds."""

BEATING_SHARE_LONG = 0.1
"""The share of long runs that have replicas, and the share that have campaigns. Heartbeats come ten times a
second, so such a run takes several times as long as another."""

ALONE_SHARE = 0.7
"""The share of runs with a workload of these features that have no other workload."""


@attrs.frozen(kw_only=True)
class Features:
    """The features of one run."""

    repairers: int = 0
    """How many processes of auto-recovery there are."""
    repair: RepairSettings = attrs.field(factory=RepairSettings)
    """The settings of these processes."""
    workloads: tuple[str, ...] = ()
    """Workloads in addition to the workloads of the swarm: names in ``workload.WORKLOADS``."""
    is_alone: bool = False
    """These workloads replace the workloads of the swarm."""
    snapshot_files: bool = False
    """Replicas keep their snapshots in files, and not in ledgers."""
    campaigns: bool = False
    """The processes that contend for a log campaign for its lead."""
    rot: bool = False
    """Bits rot, if the budget of the run allows it."""
    loses_bookie: bool = False
    """A bookie is lost for good, if there is auto-recovery and the budget of the run allows it."""
    upkeep: dict[str, Any] = attrs.field(factory=dict)
    """Fields of ``StorageConfig`` to replace. Empty: the bookies' files are left alone."""
    faults: tuple[str, ...] = ()
    """Kinds of faults in addition to the faults of the swarm (``injector``)."""
    faults_wanted: int = 0
    """How many of these faults there are, on average."""
    archivers: int = 0
    """How many processes archive logs."""
    greedy: int = 0
    """How many greedy peers there are."""
    keys: bool = False
    """Records have keys and headers (``World.random_keys``)."""

    @classmethod
    def draw(
        cls,
        random: Random,
        of_keys: Random,
        *,
        size: Size = Size.FULL,
        wanted: Collection[str] | None = None,
    ) -> Features:
        """Draw the features.

        Args:
            random: The generator to draw from.
            of_keys: The generator that says whether records have keys.
            size: How long the run is.
            wanted: The names of the features to have (``NAMES``). None: these are drawn, too.
        """
        shares = dict.fromkeys(_DRAWN_TOGETHER, SHARE) | {ROT_AT_REST: ROT_SHARE}
        if size is Size.LONG:
            shares |= dict.fromkeys((REPLICAS, CAMPAIGNS), BEATING_SHARE_LONG)
        drawn = [name for name in _DRAWN_TOGETHER if random.random() < shares[name]]
        drawn += [KEYS] if of_keys.random() < SHARE else []
        names = drawn if wanted is None else wanted
        is_alone, has_files = random.random() < ALONE_SHARE, random.random() < 0.5
        repairers, repair, upkeep = random.choice((1, 2, 2)), _draw_repair(random), _draw_upkeep(random)
        archivers, greedy, faults_wanted = (random.choice(each) for each in ((1, 2), (1, 2), (3, 10)))
        if wanted is None and ROT_AT_REST in names and random.random() < REPAIR_OF_ROT_SHARE:
            names = [*names, REPAIR]
        if ROT_AT_REST in names:
            # Rot at rest needs entries that are at rest: in files, and no longer in memory.
            upkeep["segment_records_max"] = min(upkeep["segment_records_max"], 3)
            if REPAIR in names and not repair.check_all:
                # The auditors read entries, and copy damaged ones again. Let them come before the scrubbers.
                upkeep["scrub_interval_s"] = RARE_SCRUB_S
        return cls(
            repairers=repairers if REPAIR in names else 0,
            repair=repair,
            workloads=(REPLICAS,) if REPLICAS in names else (),
            snapshot_files=REPLICAS in names and has_files,
            campaigns=CAMPAIGNS in names,
            rot=ROT_AT_REST in names,
            loses_bookie=LOST_FOR_GOOD in names,
            is_alone=is_alone,
            upkeep=upkeep if UPKEEP in names or ROT_AT_REST in names else {},
            faults=(
                *((DAMAGED_LINK,) if DAMAGED_LINK in names else ()),
                *(ARCHIVE_FAULTS if ARCHIVE in names else ()),
            ),
            faults_wanted=faults_wanted,
            archivers=archivers if ARCHIVE in names else 0,
            greedy=greedy if GREEDY in names else 0,
            keys=KEYS in names,
        )

    def careless(self, swarm: Swarm) -> int:
        """How many of the first bookies may rot, and lose entries when their files are repaired.

        ``fit`` has made room for them in the budget.
        """
        return swarm.rotten_max if self.rot else 0

    @property
    def names(self) -> list[str]:
        """The names of the features that the run has."""
        found = {
            REPAIR: self.repairers,
            UPKEEP: self.upkeep,
            ARCHIVE: self.archivers,
            GREEDY: self.greedy,
            CAMPAIGNS: self.campaigns,
            ROT_AT_REST: self.rot,
            LOST_FOR_GOOD: self.loses_bookie,
            KEYS: self.keys,
            DAMAGED_LINK: DAMAGED_LINK in self.faults,
        }
        return [*(name for name, has_it in found.items() if has_it), *self.workloads]

    def workloads_of(self, swarm: Swarm) -> tuple[str, ...]:
        """Return the names of all workloads of the run."""
        own = swarm.workloads
        if self.campaigns:
            own = tuple(CAMPAIGNS if name == "leaders" else name for name in own)
            own = own if CAMPAIGNS in own else (CAMPAIGNS,)
        return self.workloads if self.workloads and self.is_alone else (*own, *self.workloads)

    def fit(self, swarm: Swarm, people: People) -> tuple[Features, Swarm]:
        """Return the features and the swarm of a run in which both meet.

        Rotten copies and lost copies count in one budget. So a run loses copies in at most one way. There are
        enough sound bookies to form ensembles.
        """
        most = swarm.replication.ack_quorum - 1
        is_spent = not most or swarm.unsynced or people.careless
        rot = self.rot and not is_spent
        loses = (
            self.loses_bookie
            and self.repairers
            and not is_spent
            and not rot
            and "bit rot" not in swarm.faults
        )
        fitted = attrs.evolve(self, rot=rot, loses_bookie=bool(loses))
        if not rot and not loses:
            return fitted, swarm
        costly = most if rot else 1
        bookies = max(swarm.bookies, swarm.replication.ensemble + costly)
        return fitted, attrs.evolve(swarm, bookies=bookies, rotten_max=costly)

    def draw_plan(self, random: Random, trouble_s: float) -> tuple[Fault, ...]:
        """Draw the faults of the features."""
        gap_s = trouble_s / max(1, self.faults_wanted)
        faults = draw_faults(random, self.faults, gap_s=gap_s, until_s=trouble_s, first_number=FIRST_NUMBER)
        if self.rot:
            gap_s, first = trouble_s / ROT_FAULTS, FIRST_NUMBER + len(faults)
            faults += draw_faults(
                random,
                # A start makes a lost index again only if the files are sound. So some runs have no rot.
                random.choice(((ROT_AT_REST,), (ROT_AT_REST, ROT_AT_REST, INDEX_LOST), (INDEX_LOST,))),
                gap_s=gap_s,
                until_s=trouble_s,
                first_number=first,
            )
        if self.loses_bookie:
            faults += (Fault(FIRST_NUMBER + len(faults), random.uniform(0.0, trouble_s), LOST_FOR_GOOD),)
        return faults

    def storage(self, config: StorageConfig, stretch: float) -> StorageConfig:
        """Return the storage of the run's bookies, from their storage without the features.

        Args:
            config: The storage without the features.
            stretch: How many times rarer the upkeep is than in a full run (``Swarm.stretch``).
        """
        return attrs.evolve(
            config,
            **{
                name: min(value * stretch, UPKEEP_S_MAX) if name.endswith("_interval_s") else value
                for name, value in self.upkeep.items()
            },
        )


def _draw_repair(random: Random) -> RepairSettings:
    return RepairSettings(
        lost_after_ms=random.choice((100, 200, 1000)),
        grace_ms=random.choice((0, 300, 2000)),
        bookie_check_ms=random.choice((500, 2000)),
        entry_check_ms=random.choice((1000, 3000)),
        check_all=random.random() < 0.7,
        checks_per_s=1000,
    )


def _draw_upkeep(random: Random) -> dict[str, Any]:
    return {
        "segment_records_max": random.choice((3, 10)),
        "compact_interval_s": random.choice((0.05, 0.3)),
        "compact_eventual_interval_s": random.choice((0.1, 1.0)),
        "compact_soon_ratio": random.choice((0.2, 0.8)),
        "compact_eventual_ratio": random.choice((0.8, 1.0)),
        "merge_width": random.choice((2, 4)),
        "small_run_bytes": random.choice((0, 200, 8 * KIB)),
        "log_bytes_max": random.choice((2 * KIB, 64 * KIB)),
        "log_runs_max": random.choice((3, 100)),
        "scrub_interval_s": random.choice((0.2, 1.0)),
        "collect_interval_s": random.choice((0.2, 1.0)),
        "read_cache_bytes": random.choice((0, 4 * KIB)),
        "ledgers_max": random.choice((1, 3, 1000)),
    }
