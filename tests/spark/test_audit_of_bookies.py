"""Audit real storage, without Spark. Tests make holes through the storage's own interface. The audit finds
them, marks them and gets them mended. It reports no false fault, whatever goes on meanwhile."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from pyspark.sql.types import StructType

from ledgerlog import connect
from ledgerlog.errors import LedgerLogError, LedgerNotFound, LogNotFound
from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.core.comparison import FaultKind
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.grants import change_grants
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.layout import LEDGERS, ledger_path
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.spark.audit import audit_schema, read_audit
from ledgerlog.spark.audit_plan import AuditPart, pack_ledgers, plan_audit
from ledgerlog.spark.audit_repairs import Ailments, post_tasks
from ledgerlog.spark.audit_task import (
    CHECKED,
    CHECKED_LOG,
    DENIED,
    METADATA,
    AuditRow,
    open_audit,
)
from ledgerlog.spark.options import parse_audit_options
from ledgerlog.testing.faulty_store import FaultyStore, StaleReplica
from ledgerlog.testing.memory_cluster import SMALL, Client, MemoryCluster, SeededEnvironment, open_cluster
from tests.repairing import copy_payload, quiet, set_up, start_repair, stored, written

R332 = Replication(3, 3, 2)
R522 = Replication(5, 2, 2)
STAYS = attrs.evolve(SMALL, small_run_bytes=0, scrub=False)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def parts_of(client: Client, **options: str) -> list[AuditPart]:
    given = parse_audit_options({"uri": "zk://localhost/unused", **options})
    parts = await plan_audit(client.opened, given)
    sent: list[AuditPart] = pickle.loads(pickle.dumps(parts))
    return sent


async def audited(cluster: MemoryCluster, parts: Sequence[AuditPart]) -> list[AuditRow]:
    """Return the rows that tasks report, on a host of their own."""
    rows: list[AuditRow] = []
    async with cluster.client() as client:
        for part in parts:
            async with open_audit(part, client.opened) as take:
                while (found := await take()) is not None:
                    rows += found
    return rows


async def audit(cluster: MemoryCluster, client: Client, **options: str) -> list[AuditRow]:
    return await audited(cluster, await parts_of(client, **options))


def brief(rows: Sequence[AuditRow]) -> list[tuple[str | None, int | None, int | None, int | None, str]]:
    return sorted((row.bookie, row.first_entry, row.last_entry, row.copies_left, row.kind) for row in rows)


HOLES = {("b1", 3), ("b1", 4), ("b1", 5), ("b2", 5), ("b2", 17), ("b3", 39)}


@pytest.mark.parametrize("mode", ["index", "scrub"])
async def test_the_holes_that_were_made_are_found_marked_and_mended(
    autojump_clock: object, mode: str
) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        ledger_id = await stored(cluster, client, 40, holes=HOLES)
        whole = await stored(cluster, client, 40)
        rows = await audit(cluster, client, mode=mode)
        assert brief(rows) == [
            ("b1", 3, 4, 2, "missing"),
            ("b1", 5, 5, 1, "missing"),
            ("b2", 5, 5, 1, "missing"),
            ("b2", 17, 17, 2, "missing"),
            ("b3", 39, 39, 2, "missing"),
        ]
        assert {(row.ledger_id, row.write_quorum, row.log) for row in rows} == {(ledger_id, 3, None)}
        ailments = Ailments()
        for row in rows:
            ailments.add(row.ledger_id, row.bookie, row.kind)
        marked = await post_tasks(client.opened, ailments)
        assert (marked.ledgers, marked.changed, marked.undecided) == (1, 1, 0)
        assert (await post_tasks(client.opened, ailments)).changed == 0
        queue = await set_up(client)
        assert await queue.tasks() == [ledger_id]
        await start_repair(cluster)
        await quiet(queue)
        assert await audit(cluster, client, mode=mode) == []
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []
        assert whole != ledger_id


async def test_what_rotted_and_what_differs_is_found_by_a_scrub_alone_and_is_mended(
    autojump_clock: object,
) -> None:
    async with open_cluster(4, config=STAYS) as cluster, cluster.client() as client:
        versions = {("b2", 30): 1, ("b1", 7): 1, ("b2", 7): 2}
        ledger_id = await stored(cluster, client, 40, holes={("b3", 12)}, versions=versions)
        for bookie, entry_id in (("b1", 21), ("b3", 33)):
            machine = cluster.bookies[bookie]
            await machine.stop()
            assert machine.flip_byte(copy_payload(entry_id)[:-200])
            await machine.start()
        missing = [("b3", 12, 12, 2, "missing")]
        assert brief(await audit(cluster, client)) == missing
        rows = await audit(cluster, client, mode="scrub")
        assert brief(rows) == [
            ("b1", 7, 7, 0, "diverging"),
            ("b1", 21, 21, 2, "corrupt"),
            ("b2", 7, 7, 0, "diverging"),
            ("b2", 30, 30, 2, "diverging"),
            ("b3", 7, 7, 0, "diverging"),
            *missing,
            ("b3", 33, 33, 2, "corrupt"),
        ]
        queue = await set_up(client)
        ailments = Ailments()
        for row in rows:
            if row.first_entry == 21:
                ailments.add(row.ledger_id, row.bookie, row.kind)
        await post_tasks(client.opened, ailments)
        await start_repair(cluster)
        await quiet(queue)
        metadata = await client.ledgers.metadata(ledger_id)
        assert metadata.fragments[0].ensemble == ("b4", "b2", "b3"), "the bookie that rotted is replaced"
        left = await audit(cluster, client, mode="scrub")
        assert not [row for row in left if row.first_entry == 21]


async def test_copies_that_differ_are_told_and_left_to_a_person(autojump_clock: object) -> None:
    async with open_cluster(4, config=STAYS) as cluster, cluster.client() as client:
        ledger_id = await stored(cluster, client, 10, versions={("b1", 7): 1})
        ailments = Ailments()
        for row in await audit(cluster, client, mode="scrub"):
            ailments.add(row.ledger_id, row.bookie, row.kind)
        marked = await post_tasks(client.opened, ailments)
        assert (marked.ledgers, marked.undecided) == (0, 1)
        assert await (await set_up(client)).tasks() == []
        assert ailments.undecided == {ledger_id}


async def test_a_striped_ledger_has_the_holes_that_were_made_and_no_others(autojump_clock: object) -> None:
    async with open_cluster(5, config=STAYS) as cluster, cluster.client() as client:
        holes = {("b3", e) for e in range(100)} | {("b4", 2)}
        await stored(cluster, client, 100, R522, holes=holes)
        for mode in ("index", "scrub"):
            rows = await audit(cluster, client, mode=mode)
            assert {(row.bookie, row.kind) for row in rows} == {("b3", "missing"), ("b4", "missing")}
            assert sum(row.copies for row in rows) == 41
            assert [row for row in rows if row.copies_left == 0]


async def test_a_bookie_that_is_down_and_one_in_limbo_are_not_called_empty(autojump_clock: object) -> None:
    async with open_cluster(4, config=STAYS) as cluster, cluster.client() as client:
        await stored(cluster, client, 20)
        await cluster.bookies["b2"].kill()
        await cluster.bookies["b3"].lose_disk()
        for other in ("b1", "b2", "b4"):
            cluster.network.cut("b3", other)
        await cluster.bookies["b3"].start()
        rows = await audit(cluster, client, summary="true")
        assert brief([row for row in rows if row.kind != CHECKED]) == [
            ("b2", 0, 19, 1, "unreachable"),
            ("b3", 0, 19, 1, "limbo"),
        ]
        assert sorted((row.bookie, row.copies) for row in rows if row.kind == CHECKED) == [
            ("b1", 20),
            ("b3", 20),
        ]
        ailments = Ailments()
        for row in rows:
            ailments.add(row.ledger_id, row.bookie, row.kind)
        assert ailments.ledgers == []
        cluster.network.heal()
        await cluster.bookies["b2"].start()
        marks = cluster.bookies["b3"].node.engine.loss_marks
        while marks.now.limbo_count:  # noqa: ASYNC110 (mock time)
            await trio.sleep(1)
        assert await audit(cluster, client) == []


async def test_what_is_deleted_or_repaired_between_two_looks_is_no_row(autojump_clock: object) -> None:
    async with open_cluster(4, config=STAYS) as cluster, cluster.client() as client:
        everything = {("b1", e) for e in range(20)}
        deleted = await stored(cluster, client, 20, holes=everything)
        mended = await stored(cluster, client, 20, holes=everything)
        stays = await stored(cluster, client, 20, holes={("b1", 4)})
        parts = await parts_of(client)

        async def meanwhile() -> None:
            await trio.sleep(3)  # The audit has looked at each ledger once.
            await client.ledgers.delete(deleted)
            queue = await set_up(client)
            ailments = Ailments()
            ailments.add(mended, "b1", FaultKind.MISSING.value)
            await post_tasks(client.opened, ailments)
            await start_repair(cluster)
            await quiet(queue)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(meanwhile)
            rows = await audited(cluster, parts)
        assert [(row.ledger_id, row.first_entry) for row in rows] == [(stays, 4)]
        assert (await client.ledgers.verify(mended)).under_replicated == []
        with pytest.raises(LedgerNotFound):
            await parts_of(client, ledgers=str(deleted))


@pytest.mark.parametrize("change", ["deleted", "moved"])
async def test_metadata_are_read_again_after_the_second_look(autojump_clock: object, change: str) -> None:
    """The change comes after the bookies answer and before the report."""
    async with open_cluster(4, config=STAYS) as cluster, cluster.client() as client, cluster.client() as task:
        ledger_id = await stored(cluster, client, 10, holes={("b1", e) for e in range(10)})
        (part,) = await parts_of(client)
        registry = LedgerRegistry(client.store, client.opened.environment)
        syncs = 0
        sync = task.store.sync

        async def changing_sync() -> None:
            nonlocal syncs
            syncs += 1
            metadata, version = await registry.read(ledger_id)
            if syncs == 1:
                pass  # A task syncs once before its first look.
            elif change == "deleted":
                await client.ledgers.delete(ledger_id)
            else:
                changed = metadata.with_replacement(0, "b1", "b4", b"n" * 16)
                await client.store.set(ledger_path(ledger_id), changed.encode(), version=version)
            await sync()

        task.store.sync = changing_sync
        async with open_audit(part, task.opened) as take:
            assert await take() is None
        assert syncs == 2


async def test_a_copy_on_its_way_is_no_hole(autojump_clock: object) -> None:
    """In plain mode an ack quorum is enough: the third copy arrives when the network heals."""
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        cluster.network.stall(client.host, "b3")
        for number in range(10):
            await writer.append(b"%d" % number)

        async def heal() -> None:
            await trio.sleep_until(2)
            cluster.network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            await writer.close()
            assert trio.current_time() < 2, "an ack quorum is enough to close it"
            assert await audit(cluster, client) == []
            assert await audit(cluster, client, settleSeconds="0") == []


async def test_rows_name_the_logs_and_options_choose_ledgers(autojump_clock: object) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        from ledgerlog.log.log import create_log

        alone = await written(client, 5)
        for name in ("orders", "bills"):
            log = await create_log(client.opened, name, replication=R332)
            async with log.writer() as writer:
                await writer.append_many([b"a", b"b"])
                await writer.roll()
                await writer.append_many([b"c"])
        registry = LogRegistry(client.store, client.opened.environment)
        incarnation = await registry.find("orders")
        assert incarnation is not None
        metadata, _ = await registry.read(incarnation)
        assert metadata is not None
        orders = [segment.ledger_id for segment in metadata.segments]
        (part,) = await parts_of(client, logs="orders")
        assert [(ledger.ledger_id, ledger.logs) for ledger in part.ledgers] == [(e, "orders") for e in orders]
        (part,) = await parts_of(client)
        assert dict.fromkeys(orders, "orders").items() <= {(e.ledger_id, e.logs) for e in part.ledgers}
        assert (alone, None) in {(e.ledger_id, e.logs) for e in part.ledgers}
        (part,) = await parts_of(client, ledgers=f"{alone}")
        assert len(part.ledgers) == 1
        with pytest.raises(LogNotFound):
            await parts_of(client, logs="orders,nobody")
        rows = await audit(cluster, client, summary="true")
        assert {row.kind for row in rows} == {CHECKED, CHECKED_LOG}
        assert sum(row.copies for row in rows if row.log == "orders") >= 6
        assert len(await parts_of(client, replicasPerPartition="1")) == len(part.ledgers) + 4


async def test_a_ledger_whose_metadata_are_damaged_is_a_row(autojump_clock: object) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        broken, whole = await written(client, 5), await written(client, 5)
        node = await client.store.get(ledger_path(broken))
        assert node is not None
        await client.store.set(ledger_path(broken), b"rubbish", version=node.version)
        rows = await audit(cluster, client)
        assert [(row.ledger_id, row.kind, row.bookie) for row in rows] == [(broken, METADATA, None)]
        assert whole != broken


@pytest.mark.parametrize("mode", ["index", "scrub"])
async def test_a_ledger_that_the_audit_may_not_read_is_a_row_and_the_rest_has_a_verdict(
    autojump_clock: object, mode: str
) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        ledgers = {}
        for log in ("a/1", "b/1"):
            writer = await client.ledgers.create(replication=R332, metadata={"log-name": log.encode()})
            await writer.append_many([b"x"] * 5)
            await writer.close()
            ledgers[log] = writer.ledger_id
        auditor = Principal("client", "auditor")
        cluster.network.principals["client-2"] = auditor
        async with cluster.tree.open_store() as store:
            await change_grants(store, auditor, lambda now: now.granted(Grant(Role.READER, "a/")))
        await trio.testing.wait_all_tasks_blocked()
        rows = await audit(cluster, client, mode=mode, summary="true")
        assert {(row.ledger_id, row.kind) for row in rows} == {
            (ledgers["a/1"], CHECKED),
            (ledgers["b/1"], DENIED),
        }
        (why,) = [row.why for row in rows if row.kind == DENIED]
        assert why is not None
        assert "this client may not read it" in why


@pytest.mark.parametrize("mode", ["index", "scrub"])
async def test_an_audit_ends_whatever_the_metadata_say_of_the_end(autojump_clock: object, mode: str) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        absurd, sound = await written(client, 5), await written(client, 5)
        registry = LedgerRegistry(client.store, SeededEnvironment("test"))
        metadata, version = await registry.read(absurd)
        record = attrs.evolve(metadata, last_entry=2**62).encode()
        await client.store.set(ledger_path(absurd), record, version=version)
        rows = await audit(cluster, client, mode=mode, summary="true")
        assert {row.kind for row in rows if row.ledger_id == sound} == {CHECKED}
        assert brief([row for row in rows if row.ledger_id == absurd and row.kind != CHECKED]) == [
            (bookie, 5, 2**62, 0, "missing") for bookie in ("b1", "b2", "b3")
        ]


async def test_a_store_that_is_away_fails_the_task(autojump_clock: object) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client, cluster.client() as task:
        await written(client, 5)
        (part,) = await parts_of(client)
        task.store.is_hanging = True
        with pytest.raises(LedgerLogError):
            async with open_audit(part, task.opened) as take:
                await take()


def test_ledgers_are_packed_by_weight_and_never_split() -> None:
    weighed = [(n, weight) for n, weight in enumerate([5, 5, 20, 1, 1, 1, 8])]
    assert pack_ledgers(weighed, weight_max=10) == [(0, 1), (2,), (3, 4, 5), (6,)]
    assert pack_ledgers(weighed, weight_max=10**6) == [tuple(range(7))]
    assert pack_ledgers([], weight_max=1, min_parts=3) == []
    for min_parts in range(1, 12):
        parts = pack_ledgers(weighed, weight_max=10**6, min_parts=min_parts)
        assert [ledger for part in parts for ledger in part] == list(range(7))
        assert len(parts) >= min(min_parts, 7)


# --- a cluster that lives -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guaranteed", "turns"),
    [
        (True, 4),
        (False, 4),
        pytest.param(True, 40, marks=pytest.mark.soak),
        pytest.param(False, 40, marks=pytest.mark.soak),
    ],
)
async def test_a_cluster_that_changes_ensembles_meanwhile_gives_no_false_alarm(
    autojump_clock: object, guaranteed: bool, turns: int
) -> None:
    """A copy reported missing is still missing at the end. With a guaranteed write quorum, none is."""
    replication = Replication(3, 3, 2, guaranteed)
    async with open_cluster(5, config=SMALL) as cluster, cluster.client() as client:
        ledgers: list[int] = []
        is_over = trio.Event()

        async def write() -> None:
            while not is_over.is_set():
                writer = await client.ledgers.create(replication=replication)
                ledgers.append(writer.ledger_id)
                try:
                    for number in range(60):
                        await writer.append(b"%d" % number)
                        await trio.sleep(0.1)
                    await writer.close()
                except LedgerLogError:
                    await writer.aclose()
                    with trio.move_on_after(60):
                        await client.ledgers.recover(writer.ledger_id)

        async def disturb() -> None:
            for turn in range(turns):
                bookie = cluster.bookies[f"b{turn % 5 + 1}"]
                await bookie.kill(session_s=1)
                await trio.sleep(4)
                await bookie.start()
                await trio.sleep(3)
            is_over.set()

        rows: list[AuditRow] = []
        audits = changes = 0

        async def look() -> None:
            nonlocal audits
            while not is_over.is_set():
                rows.extend(await audit(cluster, client, mode=("index", "scrub")[audits % 2]))
                audits += 1
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(write)
            nursery.start_soon(disturb)
            await look()
        await cluster.start_all()
        for ledger_id in ledgers:
            changes += len((await client.ledgers.metadata(ledger_id)).fragments) - 1
        assert changes >= turns // 2
        assert audits >= turns // 2
        assert {row.kind for row in rows} <= {"missing", "unreachable"}
        missing = [row for row in rows if row.kind == "missing"]
        if guaranteed:
            assert missing == []
        for row in missing:
            assert row.bookie is not None
            assert row.first_entry is not None
            assert row.last_entry is not None
            engine = cluster.bookies[row.bookie].node.engine
            listed = await engine.list_entries(row.ledger_id, first=row.first_entry, pairs_max=10_000)
            there = {e for low, high in listed.pairs for e in range(low, min(high, row.last_entry) + 1)}
            assert there.isdisjoint(range(row.first_entry, row.last_entry + 1)), "a false alarm"


async def made_cluster(uri: str) -> str | None:
    """Make a cluster at ``uri``, in a thread with the real clock; return the id of the cluster."""

    async def make() -> str | None:
        async with connect(uri, create=True) as cluster:
            return cluster.client.store.cluster

    return await trio.to_thread.run_sync(trio.run, make)


async def test_an_audit_that_breaks_off_is_not_one_that_has_ended(
    autojump_clock: object, tmp_path: Path
) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        await stored(cluster, client, 4)
        (part,) = await parts_of(client, uri=f"sqlite:{tmp_path}/metadata.sqlite")
    ledgers: Any = (*part.ledgers, None)
    broken = attrs.evolve(part, ledgers=ledgers, cluster=await made_cluster(part.uri))
    # An unexpected error is a bug; the task ends with exactly this error.
    with pytest.RaisesGroup(AttributeError, flatten_subgroups=True):
        await trio.to_thread.run_sync(lambda: list(read_audit(broken, audit_schema(StructType([])))))


async def test_a_ledger_that_a_replica_of_the_store_has_not_heard_of_is_not_taken_for_deleted(
    autojump_clock: object,
) -> None:
    async with open_cluster(3, config=STAYS) as cluster, cluster.client() as client:
        before_it = cluster.tree.content
        await stored(cluster, client, 20, holes={("b1", 4)})
        (part,) = await parts_of(client)
        store = FaultyStore(cluster.tree)
        network = cluster.network.at("task")
        async with open_client(store, network, environment=SeededEnvironment("task")) as task:
            store.faults.append(StaleReplica(before_it, LEDGERS))
            rows: list[AuditRow] = []
            async with open_audit(part, task) as take:
                while (found := await take()) is not None:
                    rows += found
        store.inner.close()
        assert brief(rows) == [("b1", 4, 4, 2, "missing")]
