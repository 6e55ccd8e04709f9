"""Faults of people, by seed: each fault happens, and each judge notices the fault that it looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import attrs
import pytest
import trio

from bookie.core.loss_marks import LossMarks
from bookie.server import identity, repairing
from bookie.server.deletion_oracle import MetadataDeletionOracle
from bookie.server.disk_watch import DiskWatch
from bookie.storage.engine.directory import StorageDirectory
from ledgerlog.cluster import Cluster
from ledgerlog.errors import CookieMismatch, NotEnoughBookies
from ledgerlog.ledger.bookies import STORED_PLACEMENT
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.meta import backup
from ledgerlog.meta.belonging import Belonging
from ledgerlog.meta.store import Check, MetadataStore
from ledgerlog.model.bookie import Age, Cookie
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.repair import bringing_back
from ledgerlog.repair.core.metadata_check import MetadataCheck
from ledgerlog.testing import people, restores, simulate, simulated_cluster
from ledgerlog.testing.cluster import SimulatedCluster
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.disk import EMPTY_IMAGE
from ledgerlog.testing.injector import EXCHANGE
from ledgerlog.testing.people import (
    DAMAGED,
    FILLED,
    FIRST_NUMBER,
    KINDS,
    RACK,
    RESTORED,
    ROLLED_BACK,
    STALE,
    VERSION,
    People,
)
from ledgerlog.testing.swarm import Size, Swarm
from ledgerlog.testing.workload import Report, run_seed
from ledgerlog.wire.records import EntryHeader
from tests.simulation.violations import first_violation

SEEDS = range(4)
"""How many seeds of each kind ``make test`` runs. Each takes about half a second of CPU time."""

KEPT_SEEDS = {DAMAGED: (4, 9, 10)}
"""Further seeds of a kind. Each finds a bookie that does not mark what a damaged directory may have lost."""

HAPPENED = {
    EXCHANGE: ("metadata exchanged", "DeletedIsGone"),
    STALE: ("stale reads", "DeletedIsGone"),
    ROLLED_BACK: ("directory rolled back", "BootMarks", "LimboNoNegative"),
    DAMAGED: ("damaged and repaired", "repaired", "BootMarks"),
    VERSION: ("version changed", "UnknownKept"),
    RACK: ("rack lost",),
    FILLED: ("disk filled up", "turned read-only"),
    RESTORED: ("store restored", "brought back", "restores refused", "records judged"),
}
"""For each kind of fault: what is counted if it happened, and if its judge had something to look at."""


def only(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let people do only this, several times in a run."""

    def draw(random: Random, swarm: Swarm, *, wanted: bool | None = None) -> People:
        careless = swarm.replication.ack_quorum - 1 if "bit rot" not in swarm.faults else 0
        is_possible = wanted is not False and (careless or kind not in people.COSTLY)
        return People(
            kinds=(kind,) if is_possible else (),
            gap_s=swarm.trouble_s / 5,
            careless=careless if kind in people.COSTLY else 0,
            racks=2 if kind == RACK else 0,
        )

    monkeypatch.setattr(People, "draw", draw)


def numbers_of(reports: list[Report]) -> Counter[str]:
    numbers = Counter[str]()
    for report in reports:
        for each in (report.counts, report.faults, report.checks):
            numbers.update(each)
    return numbers


@pytest.mark.long
@pytest.mark.parametrize("kind", HAPPENED)
def test_nothing_is_lost_and_every_refusal_says_why(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    only(monkeypatch, kind)
    reports = [run_seed(seed, size=Size.SMALL, features=()) for seed in (*SEEDS, *KEPT_SEEDS.get(kind, ()))]
    if kind not in (RESTORED, RACK):
        reports.append(run_seed(1, features=()))  # Longer than a session.
    for report in reports:
        if report.failure is not None:
            raise report.failure
    numbers = numbers_of(reports)
    assert numbers["acked"] >= len(reports)
    assert [what for what in HAPPENED[kind] if not numbers[what]] == []


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = Counter[str]()
    for seed in range(300):
        swarm = Swarm.draw(Random(f"swarm/{seed}"), Size.SMALL)
        drawn.update(People.draw(Random(f"people/{seed}"), swarm).kinds)
    assert drawn.keys() == {*KINDS, RESTORED}
    assert all(count > 5 for count in drawn.values())


def test_without_people_a_seed_keeps_its_course() -> None:
    for seed in range(40):
        drawn = run_seed(seed, size=Size.SMALL, features=(), only=[])
        if drawn.people.kinds and not drawn.people.restores:
            break
    without = run_seed(seed, size=Size.SMALL, features=(), people=False)
    beside = run_seed(seed, size=Size.SMALL, features=(), people=True)
    assert not without.people.kinds
    assert without.swarm == beside.swarm
    ordinary = tuple(fault for fault in beside.plan if fault.number < FIRST_NUMBER)
    assert ordinary == without.plan
    assert len(beside.plan) >= len(ordinary)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(20_000, 25_000, 250))
def test_five_thousand_seeds(start: int) -> None:
    reports = [
        run_seed(seed, size=Size.SMALL, features=(), people=True) for seed in range(start, start + 250)
    ]
    assert not [(report.seed, report.failure) for report in reports if not report.is_ok]
    numbers = numbers_of(reports)
    assert [what for needed in HAPPENED.values() for what in needed if not numbers[what]] == []


# --- planted bugs -----------------------------------------------------------------------------------


def violation_of_some_seed(*rules: str, size: Size = Size.SMALL, seeds: Iterable[int] = range(60)) -> str:
    return first_violation((run_seed(seed, size=size, features=()) for seed in seeds), *rules)


def test_a_bookie_that_believes_any_store_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, EXCHANGE)
    monkeypatch.setattr(Belonging, "judge", lambda self, found: None)
    found = violation_of_some_seed()
    assert found.startswith("DeletedIsGone") or "not the cluster's" in found


@pytest.mark.long
def test_a_bookie_that_collects_by_a_stale_replica_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, STALE)
    original = MetadataDeletionOracle.surely_gone

    async def surely_gone(self: MetadataDeletionOracle, ledger_ids: list[int]) -> list[int]:
        store = self._store
        sync = type(store).sync

        async def no_sync(self: MetadataStore) -> None:
            return None

        monkeypatch.setattr(type(store), "sync", no_sync)
        try:
            return await original(self, ledger_ids)
        finally:
            monkeypatch.setattr(type(store), "sync", sync)

    monkeypatch.setattr(MetadataDeletionOracle, "surely_gone", surely_gone)
    assert violation_of_some_seed(size=Size.FULL).startswith("DeletedIsGone")


def test_a_bookie_that_believes_an_old_directory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, ROLLED_BACK)

    async def believe(directory: StorageDirectory, here: Cookie, there: Cookie) -> Age:
        return Age.CURRENT

    monkeypatch.setattr(identity, "compare_generations", believe)
    assert violation_of_some_seed().startswith(("LimboNoNegative", "LimboClear", "BootMarks", "NoTrunc"))


def test_a_repair_that_does_not_mark_the_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, DAMAGED)

    async def forget(store: MetadataStore, known: LossMarks | None) -> LossMarks:
        return known or LossMarks()

    monkeypatch.setattr(repairing, "marks_after_loss", forget)
    assert violation_of_some_seed().startswith(("LimboNoNegative", "LimboClear", "BootMarks", "NoTrunc"))


def test_a_client_that_drops_the_keys_of_another_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, VERSION)
    original = LedgerRegistry.attempt

    async def forgetful(
        self: LedgerRegistry, intent: MetadataIntent, checks: Sequence[Check] = ()
    ) -> tuple[LedgerMetadata | None, int]:
        known = attrs.evolve(intent.metadata, unknown=b"")
        return await original(self, attrs.evolve(intent, metadata=known), checks)

    monkeypatch.setattr(LedgerRegistry, "attempt", forgetful)
    assert violation_of_some_seed().startswith("UnknownKept")


def test_a_bookie_that_stays_read_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, FILLED)
    original = DiskWatch.look

    async def once_and_for_all(self: DiskWatch) -> bool:
        set_read_only = self._set_read_only
        self._set_read_only = lambda value: set_read_only(True) if value else None
        return await original(self)

    monkeypatch.setattr(DiskWatch, "look", once_and_for_all)
    assert "(Serves)" in violation_of_some_seed()


def test_a_restore_that_gives_out_old_ids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, RESTORED)
    monkeypatch.setattr("ledgerlog.meta.restore.first_new_id", lambda highest, now_ms: highest + 1)
    # Often bookies still have a ledger with such an id and refuse the new one. Then no leader can write
    # (WritesAgain), and each such run takes long.
    assert violation_of_some_seed("IdsAreNew", "NothingDeleted", seeds=range(10, 60))


def test_a_backup_with_ledgers_that_are_older_than_their_logs_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, RESTORED)
    monkeypatch.setattr(backup, "_is_closed", lambda value, ledger_id: True)
    assert "is lost" in violation_of_some_seed(seeds=(280,))  # In few runs, both happen at one time.


def test_a_ledger_that_ends_short_after_a_restore_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator keeps what follows it, behind a gap. But records in the gap were acknowledged."""
    only(monkeypatch, RESTORED)
    original = bringing_back._Log._end_open

    async def end_short(self: bringing_back._Log, record: LogMetadata, first: Sequence[EntryHeader]) -> None:
        def without_last(now: LedgerMetadata, token: bytes) -> LedgerMetadata:
            assert now.last_entry is not None
            last = max(now.last_entry - 1, now.last_fragment.first_entry)
            return attrs.evolve(now, last_entry=last, token=token)

        open_segments = record.open_segments
        if len(open_segments) == 2:
            await self._client.ledgers.recover(open_segments[0].ledger_id)
            await self._change_ledger(open_segments[0].ledger_id, without_last)
        await original(self, record, first)

    monkeypatch.setattr(bringing_back._Log, "_end_open", end_short)
    assert "before a gap" in violation_of_some_seed("KeptOrNamed", seeds=(0, 1, 7, 8))


def test_a_check_that_forgets_ledgers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, RESTORED)
    original = restores.look_at_metadata

    async def forgetful(client: LedgerClient) -> MetadataCheck:
        check = await original(client)
        return attrs.evolve(check, forgotten=check.forgotten[:-1])

    monkeypatch.setattr(restores, "look_at_metadata", forgetful)
    assert "is lost" in violation_of_some_seed()


# --- directed scenarios -----------------------------------------------------------------------------

R332 = Replication(3, 3, 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_started_beside_its_original_is_refused_and_does_no_harm(seed: int) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        random = cluster.simulation.random("scenario")
        async with cluster.client("a") as client:
            writer = await client.ledgers.create(replication=R332)
            await writer.append_many([b"before"] * random.randrange(1, 20))
            image = cluster.disk("bookie-1").take_image()
            await writer.append_many([b"after"] * random.randrange(1, 20))
            original = cluster.process("bookie-1").node
            with pytest.raises(CookieMismatch, match="bookie-1"):
                async with cluster.copy_of("bookie-1", image):
                    raise AssertionError("the copy serves beside its original")
            assert cluster.process("bookie-1").node is original
            last = await writer.append(b"last")
            await writer.close()
            reader = await client.ledgers.open(writer.ledger_id)
            assert len(await reader.read(0, last)) == last + 1

    simulate(scenario, seed=seed, bookies=3)


@pytest.mark.parametrize("seed", range(3))
def test_an_old_copy_that_is_started_instead_of_its_original_denies_nothing(seed: int) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        random = cluster.simulation.random("scenario")
        async with cluster.client("a") as client:
            image = cluster.disk("bookie-1").take_image()
            await cluster.restart("bookie-1")  # It counts a generation, so it can notice the old image.
            writer = await client.ledgers.create(replication=R332)
            entries = [b"%d" % number for number in range(random.randrange(1, 40))]
            await writer.append_many(entries)
            await cluster.put_down("bookie-1", power_cut=random.random() < 0.5)
            cluster.put_disk_back("bookie-1", image)
            await cluster.restart("bookie-1")
            await writer.close()
            node = cluster.process("bookie-1").node
            assert node is not None
            with trio.fail_after(60):
                await node.repair.wait_done()
            for other in ("bookie-2", "bookie-3"):
                await cluster.put_down(other)
            reader = await client.ledgers.open(writer.ledger_id)
            assert await reader.read(0, len(entries) - 1) == entries, "its peers have given everything back"

    simulate(scenario, seed=seed, bookies=3)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_rack_that_is_lost_for_good_and_replaced_costs_no_entry(seed: int, strict: bool) -> None:
    async def main(simulation: Simulation) -> None:
        random = simulation.random("scenario")
        replication = random.choice((R332, Replication(4, 3, 2), Replication(3, 2, 2), Replication(2, 2, 2)))
        racks = random.choice((2, 3))
        async with simulated_cluster(bookies=6, racks=racks, replication=replication) as cluster:
            async with cluster.client("admin") as client:
                policy = PlacementPolicy(strict=strict)
                await STORED_PLACEMENT.change(client.client.store, lambda _: policy)
            async with cluster.client("a") as client:
                ledgers = {}
                for _ in range(8):
                    writer = await client.ledgers.create()
                    ledgers[writer.ledger_id] = [b"%d" % number for number in range(random.randrange(1, 20))]
                    await writer.append_many(ledgers[writer.ledger_id])
                    await writer.close()
                await trio.sleep(5)  # All copies arrive, not only those of the ack quorum.
                rack = cluster.rack_of(random.choice(cluster.bookies))
                lost = [bookie for bookie in cluster.bookies if cluster.rack_of(bookie) == rack]
                for bookie in lost:
                    await cluster.put_down(bookie, power_cut=True)
                    cluster.put_disk_back(bookie, EMPTY_IMAGE)
                await check(client, ledgers)
                for bookie in lost:
                    await cluster.restart(bookie)
                    node = cluster.process(bookie).node
                    assert node is not None
                    with trio.fail_after(60):
                        await node.repair.wait_done()
                for ledger_id in ledgers:
                    verified = await client.ledgers.verify(ledger_id)
                    assert verified.unreadable == verified.damaged == verified.unreachable == []

    Simulation(seed).run(main)


async def check(client: Cluster, ledgers: dict[int, list[bytes]]) -> None:
    for ledger_id, entries in ledgers.items():
        reader = await client.ledgers.open(ledger_id)
        assert await reader.read(0, len(entries) - 1) == entries


@pytest.mark.parametrize("seed", range(2))
def test_a_strict_placement_refuses_to_write_into_one_rack(seed: int) -> None:
    async def main(simulation: Simulation) -> None:
        async with simulated_cluster(bookies=4, racks=2, replication=Replication(2, 2, 2)) as cluster:
            async with cluster.client("a") as client:
                await STORED_PLACEMENT.change(client.client.store, lambda _: PlacementPolicy(strict=True))
            for bookie in ("bookie-2", "bookie-4"):
                await cluster.stop(bookie)
            async with cluster.client("b") as client:
                with pytest.raises(NotEnoughBookies, match="rack"):
                    await client.ledgers.create()

    Simulation(seed).run(main)
