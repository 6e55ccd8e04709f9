"""What a seed draws beside its swarm: auto-recovery, replicas, upkeep, archives, greedy peers, bad links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import attrs
import pytest
import trio

from bookie.core import rows
from bookie.core.rows import Change
from bookie.server.budget import ByteBudget
from bookie.server.corruption import CorruptionRepair
from bookie.server.limbo import Peers
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.upkeep import rebuild
from bookie.storage.upkeep.doubles import AllRuns
from bookie.storage.upkeep.replacing import DamagedRun
from ledgerlog.errors import NotEnoughBookies, Truncated
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.machine.core.replica import ReplicaCore, RequestTable
from ledgerlog.machine.snapshot_manager import SnapshotManager
from ledgerlog.machine.snapshots import SnapshotStore
from ledgerlog.model.command import CommandOutcome
from ledgerlog.model.record import PackedColumn
from ledgerlog.testing import features
from ledgerlog.testing.cluster import SMALL_STORAGE
from ledgerlog.testing.features import (
    ARCHIVE,
    CAMPAIGNS,
    GREEDY,
    KEYS,
    NAMES,
    REPAIR,
    REPLICAS,
    UPKEEP,
    UPKEEP_S_MAX,
    Features,
)
from ledgerlog.testing.injector import DAMAGED_LINK, INDEX_LOST, LOST_FOR_GOOD, ROT_AT_REST
from ledgerlog.testing.replicated import CounterMachine
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import Report, run_seed
from ledgerlog.wire import records
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.records import EntryHeader
from tests.simulation.violations import first_violation

SEEDS = (1, 2, 7, 9, 13, 16, 21, 23, 28)
"""In 23 repair gives a bookie a place in an earlier fragment, too, while the owner adds. A rule of the
simulator then wanted the owner to send all entries from that fragment on."""

TOGETHER = tuple(name for name in NAMES if name != LOST_FOR_GOOD)
"""The features that one run can have: bits rot at rest, or a bookie is lost for good."""

HAPPENED = {
    REPAIR: ("repair processes", "ledgers repaired", "entries repaired", "WriteQuorum"),
    REPLICAS: ("linear reads", "snapshots restored", "LinearRead", "OneLeader", "ReplicasAgree"),
    CAMPAIGNS: ("campaigns won", "led by another"),
    UPKEEP: ("compactions", "scrub passes"),
    ROT_AT_REST: (ROT_AT_REST, INDEX_LOST, "bits rotten"),
    ARCHIVE: (
        *("archive: copied", "archive: given up", "archive: merged", "archive requests failed"),
        *("ArchiveWhole", "ArchiveClean", "ArchiveListed", "ArchiveMarked", "KeyedAsSent", "KeyedEntry"),
    ),
    GREEDY: ("greedy: crowd", "greedy: announces", "greedy: deaf", "greedy: floods", "GivenBack"),
    DAMAGED_LINK: (DAMAGED_LINK, "bits flipped"),
    KEYS: ("records with keys",),
}
"""What must happen in runs that have a feature, as counts, faults or checks."""


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return [run_seed(seed, size=Size.SMALL, features=TOGETHER, people=False) for seed in SEEDS]


@pytest.mark.long
def test_the_system_keeps_its_promises_with_all_features(reports: list[Report]) -> None:
    for report in reports:
        if report.failure is not None:
            raise report.failure


def test_repair_gives_a_place_only_to_who_has_its_entries() -> None:
    for seed in (6, 15, 23):
        report = run_seed(seed, size=Size.SMALL, features=(REPAIR,))
        if report.failure is not None:
            raise report.failure
        assert report.checks["RepairFilled"]


def test_repair_replaces_a_bookie_that_is_lost_for_good() -> None:
    for seed in (4, 8, 11):
        report = run_seed(seed, size=Size.SMALL, features=(REPAIR, LOST_FOR_GOOD), people=False)
        if report.failure is not None:
            raise report.failure
        assert report.faults[LOST_FOR_GOOD] == 1
        assert report.counts["ledgers repaired"]
        assert report.checks["WriteQuorum"]


def test_records_have_the_keys_and_headers_that_they_were_sent_with() -> None:
    report = run_seed(0, size=Size.SMALL, features=(KEYS,), people=False)
    if report.failure is not None:
        raise report.failure
    assert report.counts["records with keys"]


def test_a_flipped_bit_does_not_condemn_the_only_copy() -> None:
    """Here a reader once took a reply that was damaged on the way for a damaged copy, and stopped."""
    report = run_seed(46, size=Size.SMALL, features=(REPLICAS, UPKEEP, DAMAGED_LINK))
    if report.failure is not None:
        raise report.failure
    assert report.counts["bits flipped"]


@pytest.mark.parametrize("name", TOGETHER)
def test_a_feature_does_something(reports: list[Report], name: str) -> None:
    numbers = Counter[str]()
    for report in reports:
        assert name in report.features.names or name in (ROT_AT_REST, DAMAGED_LINK)
        for each in (report.counts, report.faults, report.checks):
            numbers.update(each)
    assert [what for what in HAPPENED[name] if not numbers[what]] == []


def test_with_all_features_the_same_seed_is_the_same_run(reports: list[Report]) -> None:
    again = run_seed(SEEDS[0], size=Size.SMALL, features=TOGETHER, people=False)
    assert (again.trace_hash, again.events) == (reports[0].trace_hash, reports[0].events)


def test_features_change_nothing_of_what_a_seed_draws_without_them(reports: list[Report]) -> None:
    without = run_seed(SEEDS[0], size=Size.SMALL, features=(), people=False)
    report = reports[0]
    beside = attrs.evolve(report.swarm, bookies=without.swarm.bookies, rotten_max=without.swarm.rotten_max)
    assert without.swarm == beside
    assert without.hostility == report.hostility
    ordinary = tuple(fault for fault in report.plan if fault.number < features.FIRST_NUMBER)
    assert without.plan == ordinary
    assert len(report.plan) > len(ordinary)


def test_every_feature_is_drawn_and_some_runs_have_none() -> None:
    drawn = [Features.draw(Random(f"features/{seed}"), Random(f"keys/{seed}")) for seed in range(300)]
    counts = Counter(name for each in drawn for name in each.names)
    assert counts.keys() == set(NAMES)
    assert all(50 < count < 200 for count in counts.values())
    assert any(not each.names for each in drawn)


def test_in_a_long_run_upkeep_is_rare() -> None:
    rots = Features.draw(Random(0), Random(0), wanted=(ROT_AT_REST,))
    storage = rots.storage(SMALL_STORAGE, 2000.0)
    assert storage.scrub_interval_s == min(2000.0 * rots.upkeep["scrub_interval_s"], UPKEEP_S_MAX)
    assert storage.compact_interval_s == min(2000.0 * rots.upkeep["compact_interval_s"], UPKEEP_S_MAX)
    assert rots.storage(SMALL_STORAGE, 1.0) == attrs.evolve(SMALL_STORAGE, **rots.upkeep)


def test_what_is_wanted_is_all_that_a_run_has() -> None:
    for name in NAMES:
        assert Features.draw(Random(0), Random(0), wanted=(name,)).names in ([name], [UPKEEP, name])


# --- planted bugs -----------------------------------------------------------------------------------


def violation_of_some_seed(*names: str, seeds: Iterable[int] = range(40), rules: Sequence[str] = ()) -> str:
    """What the first seed that breaks one of the rules says, among runs with these features."""
    return first_violation(
        (run_seed(seed, size=Size.SMALL, features=names, people=False, hostile=False) for seed in seeds),
        *rules,
    )


def test_a_replica_that_restores_too_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CounterMachine.restore

    def forgetful(self: CounterMachine, chunks: Iterable[bytes]) -> None:
        original(self, [*chunks][:-1])

    monkeypatch.setattr(CounterMachine, "restore", forgetful)
    assert violation_of_some_seed(REPLICAS).startswith("ReplicasAgree")


def test_a_replica_that_jumps_over_a_gap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SnapshotManager.restore

    async def jump(self: SnapshotManager, gap: Truncated | None = None) -> int | None:
        if gap is None:
            return await original(self)
        self.core.next_offset = gap.first_offset
        return gap.first_offset

    monkeypatch.setattr(SnapshotManager, "restore", jump)
    assert violation_of_some_seed(REPLICAS, rules=("ReplicasAgree",))


def test_a_replica_that_forgets_refusals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RequestTable.add

    def add(self: RequestTable, request_id: str, outcome: CommandOutcome) -> None:
        if outcome.error is None:
            original(self, request_id, outcome)

    monkeypatch.setattr(RequestTable, "add", add)
    assert violation_of_some_seed(REPLICAS, rules=("Refused",))


def test_a_snapshot_without_the_table_of_requests_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ReplicaCore.restore

    def restore(self: ReplicaCore, next_offset: int, timestamp_ms: int, *rest: Any) -> None:
        original(self, next_offset, timestamp_ms, RequestTable(), rest[1])

    monkeypatch.setattr(ReplicaCore, "restore", restore)
    assert violation_of_some_seed(REPLICAS, rules=("ReplicasAgree",))


@pytest.mark.long
def test_a_log_that_is_truncated_up_to_the_newest_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: SnapshotManager, store: SnapshotStore) -> None:
        await store.prune(self.log.incarnation, self.kept)
        kept = await store.find(self.log.incarnation)
        if self.truncates and self.leader is not None and kept:
            await self.leader.truncate(kept[0].next_offset)

    monkeypatch.setattr(SnapshotManager, "_forget_old", forget)
    assert violation_of_some_seed(REPLICAS, seeds=range(100), rules=("SnapshotCovers",))


def test_a_rebuild_that_passes_over_a_segment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = rebuild._stretches

    def stretches(numbers: Sequence[int]) -> list[list[int]]:
        return [stretch[1:] if len(stretch) > 2 else stretch for stretch in original(numbers)]

    monkeypatch.setattr(rebuild, "_stretches", stretches)
    assert violation_of_some_seed(ROT_AT_REST, rules=("RebuildWhole",))


def test_a_rebuild_that_forgets_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Catalogue.write

    async def write(self: Catalogue, batch: Sequence[Change]) -> None:
        await original(
            self,
            [unfenced(key, value) if isinstance(self, AllRuns) else (key, value) for key, value in batch],
        )

    def unfenced(key: bytes, value: bytes | None) -> Change:
        if value is None or not key.startswith(b"L"):
            return key, value
        ledger = rows.decode_ledger(key, value, "")
        return rows.encode_ledger(rows.ledger_of_key(key), attrs.evolve(ledger, is_fenced=False))

    monkeypatch.setattr(Catalogue, "write", write)
    assert violation_of_some_seed(ROT_AT_REST, rules=("RebuildWhole",))


def test_a_bookie_that_restores_no_damaged_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def restore(self: CorruptionRepair, peers: Peers, rotten: DamagedRun) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(CorruptionRepair, "_restore", restore)
    # Few small runs have entries at rest so early. The runs before seed 24 do not notice it.
    assert violation_of_some_seed(ROT_AT_REST, seeds=range(24, 80), rules=("RotFound",))


@pytest.mark.long
def test_a_checksum_that_nobody_looks_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entries, "first_damaged", lambda self: None)
    assert violation_of_some_seed(DAMAGED_LINK, seeds=(151, 424))


def test_a_bookie_that_keeps_what_it_held_for_a_reply_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteBudget, "give", lambda self, count: None)
    assert violation_of_some_seed(GREEDY).startswith(("GivenBack", "Convergence"))


def test_a_greedy_peer_whose_add_fails_is_counted_and_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: LedgerWriter, payload: bytes) -> int:
        raise NotEnoughBookies("planted")

    monkeypatch.setattr(LedgerWriter, "append", fail)
    report = run_seed(1, size=Size.SMALL, features=(GREEDY,), people=False)
    assert report.failure is None or "planted" not in str(report.failure)
    assert report.counts["greedy: floods"]
    assert report.counts["greedy connections cut off"]


@pytest.mark.parametrize("lost", ["keys", "headers"])
def test_keys_or_headers_that_are_lost_are_found(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    original = records._split_attributes

    def forgetful(header: EntryHeader, *rest: Any) -> tuple[PackedColumn, PackedColumn]:
        keys, headers = original(header, *rest)
        if lost == "keys":
            return PackedColumn.of([None] * header.record_count), headers
        return keys, PackedColumn.of([b""] * header.record_count)

    monkeypatch.setattr(records, "_split_attributes", forgetful)
    assert "was sent with" in violation_of_some_seed(KEYS)
