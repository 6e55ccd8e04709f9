"""A simulated cluster really does what its fault methods say, and the production code copes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
    MetadataUnavailable,
    RecordTooLarge,
    StorageError,
    WrongCluster,
)
from ledgerlog.limits import ENTRY_BYTES_MAX, KIB, RECORD_BYTES_MAX
from ledgerlog.log.attach import stage
from ledgerlog.log.log import Log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.layout import writable_path
from ledgerlog.model.policies import RollPolicy
from ledgerlog.testing import NodeCrashed, SimulatedCluster, simulate
from ledgerlog.testing.pytest_plugin import Simulated


async def contents(log: Log) -> list[bytes]:
    async with log.read() as records:
        return [record.data async for record in records]


async def all_kinds_of_trouble(cluster: SimulatedCluster) -> list[bytes]:
    """A writer appends under one fault after the other."""
    async with cluster.client("a") as client:
        log = await client.create_log("orders")
        async with log.writer() as writer:
            await writer.append(b"0")
            cluster.kill("bookie-1")
            await writer.append(b"1")
            await cluster.restart("bookie-1")
            cluster.kill("bookie-2", power_cut=True)
            await writer.append(b"2")
            await cluster.restart("bookie-2")
            cluster.pause("bookie-3")
            await writer.append(b"3")
            cluster.resume("bookie-3")
            cluster.partition("a", "bookie-4", one_way=True)
            await writer.append(b"4")
            cluster.heal()
            cluster.reset("a", "bookie-1", half=True)
            await writer.append(b"5")
            cluster.slow("a", "bookie-2", 50)
            cluster.clog("a", "bookie-3", 10_000)
            await writer.append(b"6")
            cluster.heal()
            cluster.expire_session("bookie-1")
            await writer.append(b"7")
        return await contents(log)


def test_a_writer_gets_through_all_kinds_of_trouble(simulated: Simulated) -> None:
    for found in simulated(all_kinds_of_trouble, seeds=range(6)):
        assert found == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("other", [None, "anothercluster"])
def test_nothing_is_lost_to_a_metadata_store_that_is_another_for_a_while(
    simulated: Simulated, other: str | None
) -> None:
    """Bookies collect, restart and lose sessions meanwhile. Who writes to the wrong store ends the run."""

    async def collect(cluster: SimulatedCluster) -> None:
        for name in cluster.bookies:
            node = cluster.process(name).node
            if node is not None:
                assert node.engine.collector is not None
                with contextlib.suppress(MetadataUnavailable):
                    assert await node.engine.collector.collect() == 0

    async def scenario(cluster: SimulatedCluster) -> list[bytes]:
        async with cluster.client("a") as client:
            log = await client.create_log("orders", roll=RollPolicy(max_records=2))
            async with log.writer() as writer:
                await writer.append_many([b"0", b"1", b"2"])
                for name in cluster.bookies:
                    node = cluster.process(name).node
                    assert node is not None
                    await node.engine.flush()
                await trio.sleep(1)  # Until the bookies know the log's next ledger, which is made ahead.
                cluster.exchange_metadata(cluster=other)
                await collect(cluster)
                cluster.expire_session("bookie-1")
                with pytest.raises(MetadataUnavailable):
                    await cluster.restart("bookie-2")
                await writer.append(b"3")
                with pytest.raises(WrongCluster):
                    await client.ledgers.list()
                await trio.sleep(30)
                cluster.bring_metadata_back()
                await cluster.restart("bookie-2")
                await writer.append_many([b"4", b"5", b"6"])
                await collect(cluster)
            await trio.sleep(10)
            assert len(client.bookies.writable()) == len(cluster.bookies)
            return await contents(log)

    for found in simulated(scenario, seeds=range(4)):
        assert found == [b"%d" % number for number in range(7)]


def test_the_times_of_records_do_not_go_back_if_a_leaders_clock_is_set_back(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> list[float]:
        async with cluster.client("a") as client:
            log = await client.create_log("orders")
            async with log.writer() as writer:
                for jump_s in (0, 3600, -7200, 30):
                    cluster.jump_clock("a", jump_s)
                    await writer.append(b"x")
                    await trio.sleep(1)
            async with log.read() as records:
                return [record.timestamp.timestamp() async for record in records]

    for times in simulated(scenario, seeds=range(2)):
        first, *later = times
        assert later[0] - first == pytest.approx(3600, abs=5)
        assert later == [later[0]] * 3, "time stands still until the clock has caught up"


def test_a_seed_is_one_history_and_another_seed_another() -> None:
    hashes = [simulate(all_kinds_of_trouble, seed=seed, is_strict=True).trace_hash for seed in (5, 5, 6)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.processes
def test_clusters_are_the_same_in_processes_with_other_hash_seeds() -> None:
    program = (
        "from test_simulated_cluster import *\n"
        "print([simulate(all_kinds_of_trouble, seed=n, is_strict=True).trace_hash for n in range(3)])"
    )
    found = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1]


def test_a_killed_client_can_do_nothing_any_more_and_its_next_life_takes_over(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        begun = trio.Event()
        cleaned_up = []
        lives = 0

        async def service(client: Cluster) -> None:
            nonlocal lives
            lives += 1
            log = await client.create_log("orders", exist_ok=True)
            async with log.writer() as writer:
                await writer.append(b"life %d" % lives)
                begun.set()
                if lives == 1:
                    try:
                        await trio.sleep_forever()
                    finally:
                        with pytest.raises(NodeCrashed), trio.CancelScope(shield=True):
                            await client.open_log("orders")
                        cleaned_up.append(True)

        cluster.start("service", service)
        await begun.wait()
        assert cluster.is_running("service")
        cluster.kill("service")
        assert not cluster.is_running("service")
        await cluster.restart("service")
        await trio.sleep(30)
        assert cleaned_up == [True]
        async with cluster.client("reader") as client:
            assert await contents(await client.open_log("orders")) == [b"life 1", b"life 2"]

    simulated(scenario, seeds=range(3))


def test_killing_a_client_ends_the_body_that_uses_it(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def use() -> None:
            async with cluster.client("a") as client:
                cluster.simulation.after(1, cluster.kill, "a")
                await client.create_log("orders")
                await trio.sleep_forever()

        with pytest.raises(NodeCrashed):
            await use()
        assert trio.current_time() < 2

    simulated(scenario, seeds=range(2))


def test_registrations_go_with_sessions_and_come_back_with_contact(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        path = writable_path("bookie-1")
        assert cluster.tree.value(path) is not None
        cluster.partition("bookie-1", "metadata")
        await trio.sleep(5)
        assert cluster.tree.value(path) is not None
        await trio.sleep(5)
        assert cluster.tree.value(path) is None
        cluster.heal()
        await trio.sleep(5)
        assert cluster.tree.value(path) is not None
        cluster.kill("bookie-1")
        await trio.sleep(10)
        assert cluster.tree.value(path) is None
        await cluster.restart("bookie-1")
        await cluster.stop("bookie-1")
        assert cluster.tree.value(path) is None
        await cluster.restart("bookie-1")
        cluster.expire_session("bookie-1")
        await trio.sleep(5)
        assert cluster.tree.value(path) is not None

    simulated(scenario, seeds=range(3))


def test_a_bookie_whose_sync_fails_stops_and_can_be_started_again(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async with cluster.client("a") as client:
            log = await client.create_log("orders")
            async with log.writer() as writer:
                for bookie in cluster.bookies[:2]:
                    cluster.disk(bookie).fail_syncs(1)
                for number in range(20):
                    await writer.append(b"%d" % number)
                    await trio.sleep(0.5)
            failed = [bookie for bookie in cluster.bookies if not cluster.is_running(bookie)]
            assert failed
            for bookie in failed:
                assert isinstance(cluster.process(bookie).failure, StorageError)
                await cluster.restart(bookie)
            assert len(await contents(log)) == 20

    simulated(scenario, seeds=range(3))


def test_a_crash_planned_at_an_effect_of_a_bookie_loses_nothing(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        dice = cluster.simulation.random("test")
        async with cluster.client("a") as client:
            log = await client.create_log("orders")
            async with log.writer() as writer:
                for number in range(6):
                    incarnation = cluster.process("bookie-1").incarnation
                    assert incarnation is not None
                    incarnation.crash_at_door(dice.randrange(1, 4), before=dice.random() < 0.5)
                    for part in range(4):
                        await writer.append(b"%d.%d" % (number, part))
                    await cluster.restart("bookie-1")
            assert len(await contents(log)) == 24

    simulated(scenario, seeds=range(3))


def test_a_bug_in_a_process_ends_the_run_with_its_seed(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def service(client: Cluster) -> None:
            raise ZeroDivisionError

        cluster.start("service", service)
        await trio.sleep(10)

    with pytest.raises(BaseExceptionGroup) as caught:
        simulated(scenario, seeds=[41])
    assert caught.group_contains(ZeroDivisionError)
    assert "seed 41" in caught.value.__notes__[0]


def test_a_fault_that_a_process_ends_of_is_kept(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def service(client: Cluster) -> None:
            await client.open_log("there-is-none")

        cluster.start("service", service)
        await trio.sleep(10)
        assert isinstance(cluster.process("service").failure, LedgerLogError)

    simulated(scenario, seeds=range(1))


def test_wrong_names_are_refused(simulated: Simulated) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        with pytest.raises(InvalidArgument, match="there is no process"):
            cluster.kill("bookie-9")
        async with cluster.client("a"):
            with pytest.raises(InvalidArgument, match="not a bookie"):
                cluster.disk("a")
            with pytest.raises(InvalidArgument, match="runs already"):
                async with cluster.client("a"):
                    pass
            with pytest.raises(InvalidArgument, match="not started by start"):
                await cluster.restart("a")

    simulated(scenario, seeds=range(1))


def test_a_log_rolls_by_age_at_the_very_moment_and_asks_once(simulated: Simulated) -> None:
    """The moment of a roll is a sum, and an age a difference: rounded apart, they once kept a leader busy for
    as long as the clock stood still, which here is for ever."""

    async def scenario(cluster: SimulatedCluster) -> int:
        async with cluster.client("a") as client:
            log = await client.create_log("orders", roll=RollPolicy(max_age_s=0.3))
            async with log.writer() as writer:
                for number in range(40):
                    await writer.append(b"%d" % number)
                    await trio.sleep(0.1)
            return len((await log.info()).segments)

    for segments in simulated(scenario, seeds=range(6)):
        assert segments >= 8


def test_a_record_over_what_simulated_bookies_take_is_refused_and_the_writer_continues(
    simulated: Simulated,
) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        most = cluster.record_bytes_max
        assert 500 * KIB < most < RECORD_BYTES_MAX
        async with cluster.client("a") as client:
            log = await client.create_log("orders")
            async with log.writer(entry_bytes=RECORD_BYTES_MAX) as writer:
                for data, key in ((bytes(most + 1), None), (bytes(most), b"k"), (bytes(2_000_000), None)):
                    with pytest.raises(RecordTooLarge):
                        await writer.append(data, key=key)
                    with pytest.raises(RecordTooLarge):
                        await writer.submit(data, key=key)
                    with pytest.raises(RecordTooLarge):
                        await writer.append_many([b"small", data], keys=[None, key])
                with pytest.raises(RecordTooLarge):
                    await writer.append_many([bytes(most)] * 2, atomic=True)
                await writer.append(bytes(most))
                await writer.append(bytes(most - 1), key=b"k")
                group = most + ENTRY_BYTES_MAX - RECORD_BYTES_MAX - 2 * KIB
                await writer.append_many([bytes(group // 2)] * 2, atomic=True)
                await writer.append_many([bytes(most // 3)] * 9)
            registry = LogRegistry(client.store, client.client.environment)
            async with stage(client.client, registry, log.name, log.incarnation) as staged:
                with pytest.raises(RecordTooLarge):
                    await staged.append_many([bytes(most + 1)])
                await staged.append_many([bytes(most), b"small", bytes(most)])
                await staged.close()

    simulated(scenario, seeds=[1])
