"""Every walk over a ledger's entries ends, even if the metadata say that a ledger of ten entries ends at
entry 2**62; and one ledger or node that cannot be read does not stop the work on the others."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.cli.ledger import _ids, ledger_fields, verification_fault, verification_lines
from ledgerlog.cli.repair import audit, status_fields
from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import EntryNotFound, MetadataCorrupt
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.peers import LedgerPeers
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.log.log import create_log, delete_log
from ledgerlog.log.sweep import sweep
from ledgerlog.meta.grants import change_grants
from ledgerlog.meta.zookeeper.refusals import ZooKeeperDenies
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.id_ranges import IdSequence
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import LEDGERS, LOG_COUNTER, ledger_path, log_record_path
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.model.repair import RepairTask
from ledgerlog.repair.auditor import check_entries, pass_over_metadata
from ledgerlog.repair.checking import LedgerFaults, check_ledger
from ledgerlog.repair.copying import Copying, Pacer
from ledgerlog.repair.decommission import Emptying, decommission
from ledgerlog.repair.ledger import LedgerRepair
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, SeededEnvironment, open_cluster
from tests.repairing import R332, set_up, start_repair, stored, until, written

STRIPED = Replication(5, 3, 2)
END = 2**62


async def absurd(client: Client, replication: Replication = R332, *, end: int = END) -> int:
    """A ledger of ten entries whose metadata give it another end."""
    ledger_id = await written(client, 10, replication)
    registry = LedgerRegistry(client.store, SeededEnvironment("absurd"))
    metadata, version = await registry.read(ledger_id)
    record = attrs.evolve(metadata, last_entry=end).encode()
    await client.store.set(ledger_path(ledger_id), record, version=version)
    return ledger_id


@pytest.mark.parametrize("end", [END, ENTRY_ID_MAX])
@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
async def test_verification_names_what_is_missing_as_a_range(
    replication: Replication, end: int, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        ledger_id = await absurd(client, replication, end=end)
        found = await client.ledgers.verify(ledger_id)
        assert found.entries == end + 1
        for ids in (found.unreadable, found.under_replicated):
            assert (len(ids), ids[0], ids[-1]) == (end - 9, 10, end)
        assert verification_fault(found, strict=True)
        assert f"unreadable: {end - 9} entries (entries 10-{end})" in verification_lines(found, {})


def test_json_lists_some_entries_and_all_ranges() -> None:
    shown = _ids("unreadable", IdSequence([(0, 0), (5, END)]))
    assert shown["unreadable_ranges"] == [[0, 0], [5, END]]
    assert shown["unreadable"][:3] == [0, 5, 6]
    assert 1000 < len(shown["unreadable"]) < 10_000_000
    assert _ids("cut_off", ()) == {"cut_off": [], "cut_off_ranges": []}


async def test_verification_with_a_silent_bookie_tells_both(clock: MockClock) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        ledger_id = await absurd(client, STRIPED)
        metadata = await client.ledgers.metadata(ledger_id)
        await cluster.bookies["b1"].kill()
        found = await client.ledgers.verify(ledger_id)
        mine = [e for e in range(10) if "b1" in metadata.bookies_of(e)]
        assert [*found.under_replicated[: len(mine)]] == mine
        assert len(found.under_replicated) == len(mine) + END - 9
        assert len(found.unreadable) == END - 9
        assert found.unreachable == ["b1"]


async def test_a_reader_is_told_which_entry_is_missing(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        reader = await client.ledgers.open(await absurd(client))
        assert len(await reader.read_batch(0, END)) == 10
        with pytest.raises(EntryNotFound, match=r"entry 10\b"):
            await reader.read_batch(10, END)


@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
@pytest.mark.parametrize("check_all", [False, True])
async def test_the_auditors_check_ends(replication: Replication, check_all: bool, clock: MockClock) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        ledger_id = await absurd(client, replication)
        faults = await check_ledger(client.opened, ledger_id, check_all=check_all, pace=Pace(1000))
        assert faults == LedgerFaults(incomplete=tuple(sorted(cluster.bookies)))


@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
@pytest.mark.parametrize("what", ["lost", "damaged", "incomplete"])
async def test_repair_ends_and_says_what_is_missing(
    what: str, replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble + 1) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await absurd(client, replication)
        bookie = (await client.ledgers.metadata(ledger_id)).fragments[0].ensemble[0]
        if what == "lost":
            await cluster.bookies[bookie].kill()
            await until(lambda: is_away(client, bookie))
        repair = LedgerRepair(client.opened, queue, Copying(client.opened, Pacer(1_000_000)))
        task = attrs.evolve(RepairTask(ledger_id=ledger_id), **{what: (bookie,)})
        with trio.fail_after(600):
            verdict = await repair.run(task, grace_s=0.0, say=lambda _: None)
        assert verdict.trouble is not None
        assert f"10..{END}" in verdict.trouble or (what == "lost" and "entry 1" in verdict.trouble)


async def is_away(client: Client, bookie: BookieId) -> bool:
    return not client.opened.bookies.is_registered(bookie)


async def test_a_bookie_that_checks_its_copies_skips_holes_and_no_copy(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        await set_up(client)
        ledger_id = await absurd(client)
        metadata = await client.ledgers.metadata(ledger_id)
        copying = Copying(client.opened, Pacer(10_000_000))
        with trio.fail_after(600):
            assert await copying.is_sound(metadata, "b1")
        bookie = cluster.bookies["b1"]
        await bookie.stop()
        assert bookie.flip_byte(b"entry 7")
        await bookie.start()
        assert not await copying.is_sound(metadata, "b1")


@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
async def test_a_bookie_in_limbo_names_what_nobody_has_as_a_range(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        ledger_id, sound = await absurd(client, replication), await written(client, 5, replication)
        await cluster.bookies["b1"].lose_disk()
        await cluster.bookies["b1"].start()
        repair = cluster.bookies["b1"].node.repair
        await until(lambda: has_lost(cluster, ledger_id))
        ((low, high),) = repair.lost[ledger_id]
        metadata = await client.ledgers.metadata(ledger_id)
        assert low == next(e for e in range(10, 20) if "b1" in metadata.bookies_of(e))
        assert high >= END - replication.ensemble
        assert sound not in repair.lost
        whole = await client.ledgers.verify(ledger_id)
        assert whole.under_replicated[0] == 10


async def test_a_bookie_in_limbo_copies_what_is_behind_a_hole(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        await set_up(client)
        everywhere = {(bookie, e) for bookie in cluster.bookies for e in (3, 4, 7)}
        ledger_id = await stored(cluster, client, 10, R332, holes=everywhere)
        await cluster.bookies["b1"].lose_disk()
        await cluster.bookies["b1"].start()
        await until(lambda: has_lost(cluster, ledger_id))
        assert cluster.bookies["b1"].node.repair.lost[ledger_id] == [(3, 4), (7, 7)]
        found = await client.ledgers.verify(ledger_id)
        assert found.unreadable == found.under_replicated == [3, 4, 7]


async def test_only_what_all_other_bookies_deny_is_skipped(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        metadata = await client.ledgers.metadata(await absurd(client))
        peers = LedgerPeers(client.opened)
        assert await peers.first_held(metadata, "b1", 4, END) == 4
        assert await peers.first_held(metadata, "b1", 10, END) == END + 1
        assert await peers.first_held(metadata, "b1", END + 1, END) == END + 1
        await cluster.bookies["b3"].kill()
        assert await peers.first_held(metadata, "b1", 10, END) == 10
        assert await peers.first_held(metadata, "b3", 10, END) == END + 1


async def has_lost(cluster: MemoryCluster, ledger_id: int) -> bool:
    return ledger_id in cluster.bookies["b1"].node.repair.lost


async def test_an_operator_who_accepts_the_loss_is_told_the_range(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        found = await client.ledgers.recover_accepting_loss(await absurd(client))
        assert (found.cut, len(found.unreadable), found.unreadable[0]) == ([], END - 9, 10)
        assert ledger_fields(found.metadata)["last_entry"] == END


# --- what cannot be read does not stop the rest ---------------------------------------------------

STRAY = f"{LEDGERS}/00000000/0000/no-ledger"


async def test_a_node_that_is_no_ledgers_does_not_keep_the_auditor_from_the_ledgers(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        queue = await set_up(client)
        ledger_id = await written(client, 5)
        await client.store.create(STRAY, b"")
        found = await pass_over_metadata(client.opened, lambda _: False)
        assert (found.ledgers, len(found.strays)) == (1, 1)
        assert found.strays[0].startswith(STRAY)
        shown = await status_fields(Cluster("memory:", client.opened))
        assert [damage["path"] for damage in shown["damaged"]] == [STRAY]
        said = await audit(Cluster("memory:", client.opened), entries="all", per_s=1000, make_tasks=True)
        assert [(item["ledger"], item["why"].partition(": ")[0]) for item in said] == [(None, STRAY)]
        bookie = (await client.ledgers.metadata(ledger_id)).fragments[0].ensemble[0]
        await start_repair(cluster)
        await cluster.bookies[bookie].kill()

        async def is_replaced() -> bool:
            metadata = await client.ledgers.metadata(ledger_id)
            return bookie not in metadata.fragments[0].ensemble and not await queue.tasks()

        await until(is_replaced)


async def test_a_node_that_is_no_ledgers_may_name_a_bookie_that_is_to_be_removed(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        await set_up(client)
        await client.store.create(STRAY, b"")
        with pytest.raises(MetadataCorrupt, match="no-ledger"):
            await decommission(client.opened, "b4", say=lambda _: None)


async def test_the_check_of_entries_goes_on_after_a_ledger_that_it_may_not_read(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, cluster.client() as auditor:
        ledgers = {}
        for log in ("a/1", "b/1"):
            async with await client.ledgers.create(
                replication=R332, metadata={"log-name": log.encode()}
            ) as writer:
                await writer.append_many([b"x"] * 5)
            ledgers[log] = writer.ledger_id
        lonely = await absurd(client)
        who = Principal("client", "auditor")
        cluster.network.principals[auditor.host] = who
        async with cluster.tree.open_store() as store:
            await change_grants(store, who, lambda now: now.granted(Grant(Role.READER, "a/")))
        await trio.testing.wait_all_tasks_blocked()
        faulty: list[int] = []

        async def on_fault(ledger_id: int, faults: LedgerFaults) -> None:
            faulty.append(ledger_id)

        denied: dict[int, str] = {}
        checked = await check_entries(
            auditor.opened,
            check_all=True,
            per_s=1000,
            on_fault=on_fault,
            is_gone=lambda _: False,
            on_unchecked=denied.__setitem__,
        )
        assert checked == 3
        assert sorted(denied) == [ledgers["b/1"], lonely]
        handle = Cluster("memory:", auditor.opened)
        said = await audit(handle, entries="all", per_s=1000, make_tasks=False)
        assert [(item["ledger"], item["bookies"]) for item in said] == [(e, []) for e in sorted(denied)]
        assert all("this client may not read it" in item["why"] for item in said)


async def test_the_auditor_goes_on_after_a_record_that_zookeeper_does_not_show(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as auditor:
        await set_up(client)
        ledgers = [await written(client, 5) for _ in range(3)]
        hidden = ledgers[1]

        async def deny(path: str) -> None:
            if path == ledger_path(hidden):
                raise ZooKeeperDenies(f"{path}: not for you")

        auditor.store.before_get = deny
        found = await pass_over_metadata(auditor.opened, lambda _: True)
        assert list(found.affected) == [ledgers[0], ledgers[2]]
        assert list(found.unreadable) == [hidden]
        handle = Cluster("memory:", auditor.opened)
        shown = await status_fields(handle)
        assert [damage["path"] for damage in shown["damaged"]] == [ledger_path(hidden)]
        assert "not for you" in shown["damaged"][0]["why"]
        for entries in ("none", "ends"):
            (item,) = await audit(handle, entries=entries, per_s=1000, make_tasks=False)
            assert (item["ledger"], item["bookies"]) == (hidden, [])
            assert "not for you" in item["why"]
        looks: list[Emptying] = []
        with trio.move_on_after(60) as scope:
            await decommission(auditor.opened, "b4", say=looks.append)
        assert scope.cancelled_caught
        assert hidden in looks[-1].troubles


async def test_a_sweep_goes_on_after_what_it_cannot_read(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        labels = {"log-name": b"gone", "log-incarnation": b"0", "log-epoch": b"1"}
        ledgers = []
        for _ in range(3):
            async with await client.ledgers.create(replication=R332, metadata=labels) as writer:
                ledgers.append(writer.ledger_id)
        await client.store.next_id(LOG_COUNTER)  # The log had this incarnation.
        broken = ledger_path(ledgers[0])
        node = await client.store.get(broken)
        assert node is not None
        await client.store.set(broken, b"damaged", version=node.version)
        await client.store.create(STRAY, b"")
        found = await sweep(client.opened, min_age_s=0)
        assert [(orphan.ledger_id, orphan.is_deleted) for orphan in found] == [(e, True) for e in ledgers[1:]]
        assert await client.store.get(broken) is not None


async def test_a_sweep_deletes_no_ledger_of_a_log_whose_record_is_lost(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log", replication=R332)
        async with log.writer() as writer:
            await writer.append(b"x")
        ledgers = await client.ledgers.list()
        await client.store.delete(log_record_path(log.incarnation))
        assert await sweep(client.opened, min_age_s=0) == []
        assert await client.ledgers.list() == ledgers
        await delete_log(client.opened, "log", damaged=True)
        found = await sweep(client.opened, min_age_s=0)
        assert [(orphan.ledger_id, orphan.is_deleted) for orphan in found] == [(e, True) for e in ledgers]
