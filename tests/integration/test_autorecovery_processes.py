"""Auto-recovery with real bookies that are killed for good: everything is back at its write quorum by itself.

``repair_round`` is the whole story at any size: ledgers that are closed, ledgers that were left open, and
writers at work; one bookie is killed and stays dead; then every ledger must come back whole without a hand.
What it measures it returns, and the large run (``soak``) prints it: how long it took, what was copied against
what was lost, and what writers felt of it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import ChildProcesses, open_children
from ledgerlog.cli.zookeeper import wait_serving
from ledgerlog.cluster import Cluster
from ledgerlog.election.election import Election
from ledgerlog.model.layout import REPAIR_SETTINGS
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.auditor import AUDITOR_ELECTION
from ledgerlog.repair.queue import RepairQueue
from tests.integration.running_cluster import LEDGERLOG, ledgerlog, ledgerlog_ok
from tests.integration.test_guaranteed_processes import (
    BATCH,
    CLOSE_S,
    ENTRIES,
    GUARANTEED,
    check_content,
    kill,
    write,
)
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes

R332 = Replication(3, 3, 2)
STRIPED = Replication(4, 3, 2)
REPAIRED_S = 900.0


async def set_up(cluster: Cluster, **changes: int | bool) -> RepairQueue:
    queue = RepairQueue(cluster.client)
    wanted = {"lost_after_ms": 1_500, "grace_ms": 1_500, **changes}
    await queue.change_settings(lambda now: attrs.evolve(now, **wanted))
    return queue


async def wait_repaired(
    cluster: Cluster, queue: RepairQueue, dead: set[str], *, within_s: float = REPAIRED_S
) -> None:
    """Return once no ledger names a dead bookie and nothing is left to do."""
    with trio.fail_after(within_s):
        while True:
            ledgers = await cluster.ledgers.list()
            naming = [e for e in ledgers if dead & await named(cluster, e)]
            if not naming and not await queue.tasks():
                return
            await trio.sleep(0.2)


async def named(cluster: Cluster, ledger_id: int) -> set[str]:
    metadata = await cluster.ledgers.metadata(ledger_id)
    return {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}


async def is_whole(cluster: Cluster, ledger_id: int) -> bool:
    return not (await cluster.ledgers.verify(ledger_id)).under_replicated


async def verify_all(cluster: Cluster) -> None:
    for ledger_id in await cluster.ledgers.list():
        verification = await cluster.ledgers.verify(ledger_id)
        assert verification.under_replicated == [], ledger_id
        assert verification.unreadable == []
        assert verification.unreachable == []
        assert verification.damaged == []


async def leading_bookie(cluster: Cluster) -> str:
    """The bookie whose process is the auditor."""
    election = Election(cluster.client, AUDITOR_ELECTION)
    with trio.fail_after(PATIENCE_S):
        while True:
            leader = await election.leader()
            if leader is not None and leader.is_registered:
                return leader.candidate
            await trio.sleep(0.05)


async def copied_bytes(queue: RepairQueue, at_least: int) -> int:
    """Return the bytes that all workers have copied, once they are done. A worker publishes its progress
    every few seconds, so the first value may be old. This waits until the workers have told of ``at_least``
    bytes."""
    with trio.fail_after(PATIENCE_S):
        while True:
            workers = (await queue.workers()).values()
            copied = sum(worker.copied_bytes for worker in workers)
            if copied >= at_least and not any(worker.work or worker.bytes_per_s for worker in workers):
                return copied
            await trio.sleep(0.2)


@attrs.frozen(kw_only=True)
class Round:
    ledgers: int
    lost_bytes: int
    """Payload bytes of the dead bookie's entries."""
    certain_bytes: int
    """The part of ``lost_bytes`` that repair must copy. Recovery itself writes the ends of open ledgers."""
    due_bytes: int
    """What there was to copy at most, to all who were given a place: the dead one's, and that of whoever else
    lost its registration meanwhile, as happens on a machine with much else to do."""
    copied_bytes: int
    seconds: float
    """Seconds from the kill to the end of the last task."""
    p99_before_ms: float
    p99_during_ms: float
    appends_during: int

    def __str__(self) -> str:
        return (
            f"{self.ledgers} ledgers, lost {self.lost_bytes / 1e6:.1f} MB, "
            f"copied {self.copied_bytes / 1e6:.1f} MB in {self.seconds:.1f} s; "
            f"p99 of {self.appends_during} appends {self.p99_during_ms:.1f} ms during, "
            f"{self.p99_before_ms:.1f} ms before"
        )


async def repair_round(
    local: LocalCluster,
    *,
    closed: int,
    abandoned: int,
    writers: int,
    entries: int,
    size: int,
    steady_appends: int = 50,
    within_s: float = REPAIRED_S,
    lost_after_ms: int = 1_500,
) -> Round:
    """Kill the bookie that hosts the auditor, for good, beside writers at work, each of which has made
    ``steady_appends`` before; what was seen."""
    cluster = local.cluster
    ledgers = cluster.ledgers
    queue = await set_up(cluster, lost_after_ms=lost_after_ms)
    body = [b"%06d" % n + b"." * (size - 6) for n in range(entries)]
    for number in range(closed + abandoned):
        writer = await ledgers.create(replication=STRIPED if number % 4 == 3 else R332)
        await writer.append_many(body)
        if number < closed:
            await writer.close()
        else:
            await writer.aclose()
    at_work = [await ledgers.create(replication=R332) for _ in range(writers)]
    latencies: list[float] = []

    async def append(writer_number: int) -> None:
        writer = at_work[writer_number]
        while True:
            began = trio.current_time()
            await writer.append(b"x" * 1024)
            latencies.append(1000 * (trio.current_time() - began))
            await trio.sleep(0.05)

    made = (await ledgers.list())[: closed + abandoned]
    for ledger_id in made[:closed]:
        # A ledger closes at its ack quorum, so repair may also copy entries that were never on the third
        # bookie. The test could not tell these copies from those of lost entries.
        await until(partial(is_whole, cluster, ledger_id), every_s=0.2)
    dead = await leading_bookie(cluster)
    async with trio.open_nursery() as nursery:
        for number in range(writers):
            nursery.start_soon(append, number)
        await until(lambda: all(w.last_add_confirmed >= steady_appends for w in at_work))
        before, latencies[:] = list(latencies), []
        lost_bytes = certain_bytes = 0
        named_before = {ledger_id: await ledgers.metadata(ledger_id) for ledger_id in made}
        for number, metadata in enumerate(named_before.values()):
            held = sum(size for e in range(entries) if dead in metadata.bookies_of(e))
            lost_bytes += held
            certain_bytes += held if number < closed else 0
        began = trio.current_time()
        local.bookies[dead].kill()
        # By then the kill itself no longer disturbs writers, and the disturbance by repair begins.
        await until(queue.locks)
        latencies.clear()
        with trio.fail_after(within_s):
            while await queue.tasks():  # noqa: ASYNC110 (the store tells no one; bounded by what the round may take)
                # A more frequent look would slow down the writers, which run in this process.
                await trio.sleep(0.5)
        seconds = trio.current_time() - began
        await until(lambda: len(latencies) >= 2)
        nursery.cancel_scope.cancel()
    copied = await copied_bytes(queue, certain_bytes)
    due_bytes = 0
    for number, (ledger_id, metadata) in enumerate(named_before.items()):
        now = await ledgers.metadata(ledger_id)
        if number >= closed:
            # Recovery closes at the ack quorum, so repair may have to make one more copy.
            due_bytes += size * entries
        due_bytes += sum(
            size * len(set(metadata.bookies_of(e)) - set(now.bookies_of(e))) for e in range(entries)
        )
    for writer in at_work:
        # The entries that the writer wrote before each of its ensemble changes, for each bookie that left.
        for fragment, after in pairwise(writer.metadata.fragments):
            due_bytes += 1024 * (after.first_entry - fragment.first_entry) * R332.write_quorum
    for writer in at_work:
        await writer.flush()
        await writer.close()
    # A ledger that closed at its ack quorum a moment ago may have entries on their way to the third bookie.
    await ledgerlog_ok("repair", "audit", "--entries", "all", uri=local.uri)
    await wait_repaired(cluster, queue, {dead}, within_s=within_s)
    await verify_all(cluster)
    return Round(
        ledgers=closed + abandoned + writers,
        lost_bytes=lost_bytes,
        certain_bytes=certain_bytes,
        due_bytes=due_bytes,
        copied_bytes=copied,
        seconds=seconds,
        p99_before_ms=statistics.quantiles(before, n=100)[98],
        p99_during_ms=statistics.quantiles(latencies, n=100)[98],
        appends_during=len(latencies),
    )


async def test_a_bookie_is_killed_for_good_and_everything_is_back_at_its_write_quorum(
    tmp_path: Path,
) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=6, auto_recovery=True) as local:
        seen = await repair_round(local, closed=8, abandoned=2, writers=2, entries=50, size=1000)
    assert seen.copied_bytes <= seen.due_bytes, "nothing is copied twice"


@pytest.mark.soak
async def test_two_hundred_ledgers_come_back_beside_writers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=6, auto_recovery=True) as local:
        seen = await repair_round(local, closed=170, abandoned=20, writers=10, entries=100, size=16_000)
    with capsys.disabled():
        print(f"\n{seen}")
    assert seen.copied_bytes <= 1.2 * seen.lost_bytes


@pytest.mark.soak
async def test_two_gigabytes_come_back_beside_writers(capsys: pytest.CaptureFixture[str]) -> None:
    """Two gigabytes on the bookies' disks, at the rate that nobody has changed. It takes minutes."""
    with tempfile.TemporaryDirectory(prefix="ledgerlog-repair-") as directory:
        async with local_cluster(Path(directory) / "cluster", bookies=6, auto_recovery=True) as local:
            seen = await repair_round(
                local,
                closed=170,
                abandoned=20,
                writers=10,
                entries=220,
                size=16_000,
                steady_appends=350,
                within_s=900.0,
                lost_after_ms=10_000,
            )
    with capsys.disabled():
        print(f"\n{seen}")
    assert seen.lost_bytes > 300_000_000
    assert seen.copied_bytes <= 1.2 * seen.lost_bytes
    assert seen.p99_during_ms <= 3 * seen.p99_before_ms


async def test_a_second_bookie_is_killed_during_the_repair(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=6, auto_recovery=True) as local:
        cluster = local.cluster
        queue = await set_up(cluster, bytes_per_s=100_000)
        for _ in range(12):
            writer = await cluster.ledgers.create(replication=R332)
            await writer.append_many([b"%04d" % n * 500 for n in range(50)])
            await writer.close()
        first, second = sorted(await named(cluster, (await cluster.ledgers.list())[0]))[:2]
        local.bookies[first].kill()
        await until(queue.locks)
        local.bookies[second].kill()
        await set_up(cluster, bytes_per_s=50_000_000)
        await wait_repaired(cluster, queue, {first, second})
        await verify_all(cluster)


@pytest.mark.parametrize(
    "at_once",
    [pytest.param(True, marks=pytest.mark.soak, id="at-once"), pytest.param(False, id="one-after-the-other")],
)
async def test_a_guaranteed_ledger_whose_writer_lost_two_of_five_bookies_ends_whole_without_them(
    tmp_path: Path, at_once: bool
) -> None:
    """How the writer comes through both ways of losing two is shown in ``test_guaranteed_processes``. To
    repair, the two ways differ only in where the fragments begin."""
    async with local_cluster(tmp_path / "cluster", bookies=5, auto_recovery=True) as local:
        cluster = local.cluster
        queue = await set_up(cluster)
        writer = await cluster.ledgers.create(replication=GUARANTEED)
        await write(writer, 6_000)
        dead = await kill(local, writer, [0, 1] if at_once else [0])
        if not at_once:
            await write(writer, 14_000)
            dead += await kill(local, writer, [1])
        await write(writer, ENTRIES)
        with trio.fail_after(CLOSE_S):
            assert await writer.close() == ENTRIES - 1
        await wait_repaired(cluster, queue, set(dead))
        said = json.loads(
            await ledgerlog_ok("ledger", "verify", str(writer.ledger_id), "--json", uri=local.uri)
        )
        assert said["entries"] == ENTRIES
        assert said["under_replicated"] == []
        assert said["unreadable"] == []
        metadata = await cluster.ledgers.metadata(writer.ledger_id)
        assert all(set(dead).isdisjoint(fragment.ensemble) for fragment in metadata.fragments)
        await check_content(local, writer.ledger_id, ENTRIES)
    assert ENTRIES % BATCH == 0


@asynccontextmanager
async def repair_processes(local: LocalCluster, path: Path, count: int) -> AsyncIterator[ChildProcesses]:
    async with open_children() as children:
        for number in range(1, count + 1):
            await children.start(
                f"repair-{number}",
                [*LEDGERLOG, "repair", "run", "--name", f"repair-{number}", "--uri", local.uri],
                log_path=path / f"repair-{number}.log",
            )
        yield children


async def test_a_process_of_its_own_dies_with_a_lock_and_another_finishes_its_work(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=4) as local:
        cluster = local.cluster
        queue = await set_up(cluster, bytes_per_s=20_000)
        writer = await cluster.ledgers.create(replication=R332)
        # More than a worker copies before its rate slows it down, so the test can see its lock.
        await writer.append_many([b"%04d" % n * 5000 for n in range(400)])
        await writer.close()
        async with repair_processes(local, tmp_path, 2) as processes:
            await leading_bookie(cluster)
            dead = sorted(await named(cluster, writer.ledger_id))[0]
            local.bookies[dead].kill()
            (token,) = (await until(queue.locks)).values()

            async def holder_says() -> str | None:
                said = (await queue.workers()).get(token)
                return None if said is None else said.name

            holder = await until(holder_says)
            (process,) = [child for child in processes.running if child.name == holder]
            process.kill()
            await set_up(cluster, bytes_per_s=50_000_000)
            await wait_repaired(cluster, queue, {dead})
            await verify_all(cluster)


async def test_the_commands_of_repair_steer_it_and_say_how_it_is(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=4, auto_recovery=True) as local:
        cluster, uri = local.cluster, local.uri
        writer = await cluster.ledgers.create(replication=R332)
        await writer.append_many([b"%d" % n for n in range(20)])
        await writer.close()
        ledger_id = writer.ledger_id
        await leading_bookie(cluster)

        async def said(*args: str) -> dict[str, Any]:
            answer: dict[str, Any] = json.loads(await ledgerlog_ok(*args, "--json", uri=uri))
            return answer

        changed = await said("repair", "settings", "--lost-after", "1", "--grace", "1")
        assert (changed["lost_after_s"], changed["paused"]) == (1.0, False)
        assert (await said("repair", "pause"))["paused"] is True
        dead = sorted(await named(cluster, ledger_id))[0]
        local.bookies[dead].kill()

        async def one_to_repair() -> dict[str, Any] | None:
            status = await said("repair", "status")
            return status if status["under_replicated"] == status["waiting"] == 1 else None

        status = await until(one_to_repair, every_s=0.2)
        assert status is not None
        assert status["paused"] is True
        assert list(status["absent"]) == [dead]
        (task,) = status["tasks"]
        assert (task["ledger"], task["lost"], task["worker"]) == (ledger_id, [dead], None)
        assert len(status["workers"]) >= 3
        audited = await said("repair", "audit", "--entries", "ends")
        lost = {"ledger": ledger_id, "bookies": [dead], "why": "not registered"}
        assert audited == {"under_replicated": 1, "misplaced": 0, "found": [lost]}
        plain = await ledgerlog_ok("repair", "status", uri=uri)
        assert b"under-replicated now: 1 of " in plain
        assert b"1 ledger to repair, and repair is paused" in plain
        assert (await said("repair", "resume"))["paused"] is False
        await wait_repaired(cluster, RepairQueue(cluster.client), {dead})
        await verify_all(cluster)
        assert (await said("repair", "status"))["under_replicated"] == 0
        nothing = await ledgerlog_ok("repair", "audit", "--entries", "all", uri=uri)
        assert b"nothing is under-replicated" in nothing
        assert await said("repair", "audit") == {"under_replicated": 0, "misplaced": 0, "found": []}
        ran = await ledgerlog("bookie", "decommission", "nobody", uri=uri)
        assert ran.status == 1
        assert "no bookie nobody has ever served this cluster" in ran.stderr
        # The error names the damaged settings. An operator can make them anew.
        stored = await cluster.store.get(REPAIR_SETTINGS)
        assert stored is not None
        await cluster.store.set(REPAIR_SETTINGS, b"damaged", version=stored.version)
        assert [damage["path"] for damage in (await said("repair", "status"))["damaged"]] == [REPAIR_SETTINGS]
        for command in ("settings", "pause", "resume"):
            ran = await ledgerlog("repair", command, uri=uri)
            assert ran.status == 1
            assert "'ledgerlog repair settings --reset' replaces them with the defaults" in ran.stderr
        reset = await said("repair", "pause", "--reset")
        assert (reset["paused"], reset["lost_after_s"]) == (True, 60.0)
        shared = await said("repair", "settings", "--reset", "--cluster-bytes-per-second", "9000000")
        assert (shared["paused"], shared["cluster_bytes_per_s"]) == (False, 9_000_000)
        assert (await said("repair", "status"))["damaged"] == []


async def test_a_bookie_is_decommissioned_under_load(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=5, auto_recovery=True) as local:
        cluster = local.cluster
        await set_up(cluster)
        for _ in range(10):
            closed = await cluster.ledgers.create(replication=R332)
            await closed.append_many([b"%04d" % n * 100 for n in range(50)])
            await closed.close()
        writer = await cluster.ledgers.create(replication=R332)
        leaving = writer.metadata.last_fragment.ensemble[0]
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                while True:
                    await writer.append(b"x" * 500)
                    await trio.sleep(0.01)

            nursery.start_soon(append)
            with trio.fail_after(REPAIRED_S):
                said = json.loads(
                    await ledgerlog_ok("bookie", "decommission", leaving, "--json", uri=local.uri)
                )
            assert writer.failure is None
            nursery.cancel_scope.cancel()
        assert said == {"id": leaving, "state": "decommissioned", "is_running": True}
        await writer.flush()
        await writer.close()
        for ledger_id in await cluster.ledgers.list():
            assert leaving not in await named(cluster, ledger_id)
        await local.bookies[leaving].stop()
        await verify_all(cluster)
        listed = await ledgerlog_ok("bookie", "list", uri=local.uri)
        assert leaving.encode() not in listed


async def test_a_bookie_that_cannot_be_emptied_is_told_with_the_reason(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=3, auto_recovery=True) as local:
        await set_up(local.cluster)
        closed = await local.cluster.ledgers.create(replication=R332)
        await closed.append(b"x")
        await closed.close()
        command = [*LEDGERLOG, "bookie", "decommission", "bookie-1", "--uri", local.uri]
        log_path = tmp_path / "decommission.stderr"
        child = await local.children.start("decommission", command, log_path=log_path)
        await until(lambda: "ledger 0 still refers to bookie-1: " in log_path.read_text(encoding="utf-8"))
        await child.stop()


async def test_a_bookie_back_with_its_data_before_the_delay_costs_no_copy(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=4, auto_recovery=True) as local:
        cluster = local.cluster
        queue = await set_up(cluster, lost_after_ms=3_600_000)
        writer = await cluster.ledgers.create(replication=R332)
        await writer.append_many([b"%d" % n for n in range(100)])
        await writer.close()
        # Two bookies certainly had the entry, and the third one had not.
        await until(lambda: is_whole(cluster, writer.ledger_id))
        before = await cluster.ledgers.metadata(writer.ledger_id)
        away = before.last_fragment.ensemble[0]
        local.bookies[away].kill()
        await local.bookies[away].wait()

        async def is_absent(expected: bool) -> bool:
            record = await queue.audit_record()
            return record is not None and (away in record.absent) == expected

        await until(lambda: is_absent(True))
        await local.start_serving(away)
        await until(lambda: is_absent(False))
        assert await queue.tasks() == []
        assert sum(worker.copied_bytes for worker in (await queue.workers()).values()) == 0
        assert await cluster.ledgers.metadata(writer.ledger_id) == before
        await verify_all(cluster)


@pytest.mark.soak
async def test_zookeepers_leader_is_killed_during_a_repair(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=5, zookeepers=3, auto_recovery=True) as local:
        cluster = local.cluster
        queue = await set_up(cluster, bytes_per_s=200_000)
        for _ in range(20):
            writer = await cluster.ledgers.create(replication=R332)
            await writer.append_many([b"%04d" % n * 500 for n in range(50)])
            await writer.close()
        dead = sorted(await named(cluster, (await cluster.ledgers.list())[0]))[0]
        local.bookies[dead].kill()
        await until(queue.locks)
        (leader,) = [name for name, server in local.servers.items() if await wait_serving(server) == "leader"]
        local.zookeepers[leader].kill()
        await set_up(cluster, bytes_per_s=50_000_000)
        await wait_repaired(cluster, queue, {dead})
        await verify_all(cluster)
