"""A metadata store that is restored from an old backup, under live bookies: the cluster writes again at once,
and no bookie deletes what the backup does not know."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.server.limbo import LimboRepair, Peers
from ledgerlog.errors import (
    IncompatibleVersion,
    InvalidArgument,
    MetadataUnavailable,
    RecoveryFailed,
    StorageCorrupt,
    StorageError,
    WrongCluster,
)
from ledgerlog.ledger.bookies import STORED_PLACEMENT
from ledgerlog.meta.admission import STORED_ADMISSION
from ledgerlog.meta.backup_file import Backup, open_backup
from ledgerlog.meta.belonging import RESTORING, find_cluster, join_cluster, wait_restored
from ledgerlog.meta.grants import change_grants, read_grants
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.meta.restore import accept_loss, restore
from ledgerlog.meta.store import MetadataStore, Set, Versioned
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.admission import Admission, ProvenBy
from ledgerlog.model.codec import encode_record
from ledgerlog.model.election import ElectionState
from ledgerlog.model.layout import (
    ADMISSION,
    CLUSTER,
    LEDGER_COUNTER,
    RESTORED,
    election_path,
    grants_path,
    ledger_path,
    log_record_path,
    writable_path,
)
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.model.restoration import AS_IN_BACKUP_LABEL
from ledgerlog.testing.faulty_store import Call, Fate, FaultyStore, GoOn, before, fates, unreachable_after
from ledgerlog.testing.memory_cluster import CLUSTER as OURS
from ledgerlog.testing.memory_cluster import eventually, new_tree, open_cluster
from tests.scenarios.restores import NOW_MS, backed_up, collected, restored_under_bookies, written


async def test_after_a_restore_the_cluster_writes_at_once_under_ids_that_no_bookie_holds(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            before = await written(client, b"before")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            lost = [await written(client, b"lost") for _ in range(5)]
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            after = await written(client, b"after")
            assert after > max(lost)
            assert await client.contents(before) == [b"before"]
            assert await client.contents(after) == [b"after"]


async def test_a_restore_brings_the_placement_policy_back(clock: MockClock, tmp_path: Path) -> None:
    policy = PlacementPolicy(min_racks=3, strict=True)
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            await STORED_PLACEMENT.change(client.store, lambda _: policy)
            backup = await backed_up(cluster.tree, tmp_path / "backup")
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            assert await STORED_PLACEMENT.read(client.store) == policy
            assert client.opened.bookies.policy == policy


async def test_a_ledger_whose_ensemble_changed_after_the_backup_is_not_closed_short(
    clock: MockClock, tmp_path: Path
) -> None:
    """Two members of three are others than in the backup, so the ensemble of the backup denies the tail."""
    async with open_cluster(5) as cluster:
        async with cluster.client(replication=Replication(3, 3, 2)) as client:
            writer = await client.ledgers.create()
            await writer.append(b"before")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            former = cluster.bookies_of(
                (await client.ledgers.metadata(writer.ledger_id)).fragments[0].ensemble
            )
            for bookie in former[1:]:
                await bookie.stop()
                await writer.append(b"meanwhile")
            written = [b"before", b"meanwhile", b"meanwhile"]
            for number in range(5):
                await writer.append(b"%d" % number)
                written.append(b"%d" % number)
            stored = await client.ledgers.metadata(writer.ledger_id)
            assert len({*stored.last_fragment.ensemble} - {bookie.bookie_id for bookie in former}) == 2
            for bookie in former[1:]:
                await bookie.start()
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(5)
            closed = await client.ledgers.recover(writer.ledger_id)
            assert AS_IN_BACKUP_LABEL not in closed.custom
            assert await client.contents(writer.ledger_id) == written


async def test_a_recovery_after_a_restore_waits_for_as_many_bookies_as_an_acknowledgement_has(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(4) as cluster:
        async with cluster.client(replication=Replication(3, 3, 2)) as client:
            writer = await client.ledgers.create()
            await writer.append(b"x")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
        await restored_under_bookies(cluster, backup)
        first, second, *_ = cluster.bookies.values()
        await first.stop()
        await second.stop()
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(2)
            with pytest.raises(RecoveryFailed, match="come from a backup"):
                await client.ledgers.recover(writer.ledger_id)
            await second.start()
            await client.opened.bookies.wait_writable(3)
            await client.ledgers.recover(writer.ledger_id)
            assert await client.contents(writer.ledger_id) == [b"x"]


async def test_a_bookie_that_looks_at_another_store_is_not_fenced_and_counts_as_silent(
    clock: MockClock, tmp_path: Path
) -> None:
    """It says that there is no such ledger, and remembers nothing. Later it may still take an add of the
    ledger's writer."""
    async with open_cluster(5) as cluster:
        async with cluster.client(replication=Replication(3, 3, 2)) as client:
            writer = await client.ledgers.create()
            await writer.append(b"x")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
        await restored_under_bookies(cluster, backup)
        path = ledger_path(writer.ledger_id)

        async def hide(call: Call, go_on: GoOn) -> Any:
            found = await go_on()
            return None if call.verb == "get" and call.path == path else found

        others = [
            bookie
            for name, bookie in cluster.bookies.items()
            if name not in writer.metadata.last_fragment.ensemble
        ]
        for bookie in others:
            bookie.store.faults.append(hide)
        silent = ", ".join(sorted(bookie.bookie_id for bookie in others))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(5)
            with pytest.raises(RecoveryFailed, match=f"entries it holds, and {silent} did not answer"):
                await client.ledgers.recover(writer.ledger_id)
            for bookie in others:
                bookie.store.faults.clear()
            await client.ledgers.recover(writer.ledger_id)
            assert await client.contents(writer.ledger_id) == [b"x"]


async def test_a_bookie_in_limbo_is_a_holder_of_a_ledger_that_comes_from_a_backup(
    clock: MockClock, tmp_path: Path
) -> None:
    """It became a member after the backup, and has lost what it may have held since."""
    async with open_cluster(4) as cluster:
        async with cluster.client(replication=Replication(3, 3, 2)) as client:
            writer = await client.ledgers.create()
            await writer.append(b"x")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            named = writer.metadata.last_fragment.ensemble
            (joined,) = {*cluster.bookies} - {*named}
        await restored_under_bookies(cluster, backup)
        await cluster.bookies[joined].lose_disk()
        for other in named:
            cluster.network.cut(joined, other)
        await cluster.bookies[joined].start()
        assert cluster.bookies[joined].node.engine.loss_marks.now.denies_nothing(writer.ledger_id)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(4)
            with contextlib.suppress(RecoveryFailed):
                await client.ledgers.recover(writer.ledger_id)
            stored = await client.ledgers.metadata(writer.ledger_id)
            assert {*stored.fragments[0].ensemble} == {*named, joined}


async def test_what_a_restored_store_has_forgotten_stays_in_limbo_until_the_loss_is_accepted(
    clock: MockClock, tmp_path: Path
) -> None:
    """The bookie may have lost entries of a ledger. If the ledger is brought back, it must not deny them."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            kept = await written(client, b"before")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            forgotten = [await written(client, b"since") for _ in range(2)]
        await cluster.bookies["b1"].lose_disk()
        await restored_under_bookies(cluster, backup)
        await cluster.bookies["b1"].start()
        marks = cluster.bookies["b1"].node.engine.loss_marks
        async with cluster.client() as client:
            made_since = await written(client, b"new")
            await eventually(lambda: [low for low, _ in marks.now.limbo] == [kept + 1])
            await trio.sleep(60)
            assert all(map(marks.now.denies_nothing, forgotten))
            assert not marks.now.denies_nothing(made_since)
            assert await accept_loss(client.store)
            with trio.fail_after(60):
                await cluster.bookies["b1"].node.repair.wait_done()


async def test_what_a_store_that_is_restored_during_a_look_has_forgotten_stays_in_limbo(
    clock: MockClock, tmp_path: Path
) -> None:
    """The bookie has listed the ledger already, and copies entries of others."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            forgotten = await written(client, b"since")
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()
        repair = LimboRepair._repair

        async def restore_first(self: LimboRepair, peers: Peers, ledger_id: int) -> Any:
            if RESTORED not in cluster.tree.content.nodes:
                await restored_under_bookies(cluster, backup)
            return await repair(self, peers, ledger_id)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LimboRepair, "_repair", restore_first)
            await bookie.start()
            await trio.sleep(60)
        assert RESTORED in cluster.tree.content.nodes
        assert bookie.node.engine.loss_marks.now.denies_nothing(forgotten)


async def test_holders_are_looked_for_again_if_the_metadata_changed_meanwhile(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(4) as cluster:
        async with cluster.client(replication=Replication(3, 3, 2)) as client:
            writer = await client.ledgers.create()
            await writer.append(b"x")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
        await restored_under_bookies(cluster, backup)
        path = ledger_path(writer.ledger_id)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(4)

            async def change() -> None:
                node = await client.store.inner.get(path)
                assert node is not None
                await client.store.inner.set(path, node.value, version=node.version)

            client.store.before_write = change
            closed = await client.ledgers.recover(writer.ledger_id)
            assert client.store.before_write is None
            assert AS_IN_BACKUP_LABEL not in closed.custom
            assert await client.contents(writer.ledger_id) == [b"x"]


async def test_nothing_that_the_backup_lacks_is_deleted_until_the_loss_is_accepted(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            await written(client, b"before")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            for _ in range(5):
                await written(client, b"lost")
        await restored_under_bookies(cluster, backup)
        assert await collected(cluster) == 0
        async with cluster.client() as client:
            made_since = await written(client, b"since")
            await client.ledgers.delete(made_since)
            assert await collected(cluster) == 3, "what was made and deleted since is garbage"
            assert await accept_loss(client.store)
            assert await collected(cluster) == 15
            assert not await accept_loss(client.store)


async def test_a_restore_of_an_earlier_restore_goes_past_its_ids_too(tmp_path: Path) -> None:
    tree = new_tree()
    backup = await backed_up(tree, tmp_path / "backup")
    given = []
    for _ in range(3):
        async with tree.open_store() as store:
            await restore(store, backup, now_ms=0, random_bytes=os.urandom)
            given += [await store.next_id(LEDGER_COUNTER) for _ in range(3)]
    assert given == sorted(set(given))


@pytest.mark.parametrize("now_ms", [NOW_MS, NOW_MS - 60_000, 0])
async def test_two_restores_have_different_marks(tmp_path: Path, now_ms: int) -> None:
    """A process that has seen the first one would go on after the second one."""
    tree = new_tree()
    backup = await backed_up(tree, tmp_path / "backup")
    marks = []
    async with tree.open_store() as store:
        for each_ms in (NOW_MS, now_ms):
            await restore(store, backup, now_ms=each_ms, random_bytes=os.urandom)
            node = await store.get(CLUSTER)
            assert node is not None
            marks.append(node.value)
    assert marks[0] != marks[1]


async def test_a_backup_brings_back_what_was_there_and_takes_away_the_rest(tmp_path: Path) -> None:
    tree = new_tree()
    async with tree.open_store() as store:
        await store.create("cookies/b1", b"1")
        await store.create(ledger_path(7), b"seven")
        backup = await backed_up(tree, tmp_path / "backup")
        await store.set("cookies/b1", b"2", version=0)
        await store.create("logs/later", b"x")
        await store.create(ledger_path(8), b"eight")
        await store.delete(ledger_path(7))
        done = await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        content = {path: node.value for path, node in tree.content.nodes.items() if path != RESTORED}
        mark = f"{OURS}:{done.restoration.floor:x}".encode()
        assert content == {CLUSTER: mark, "cookies/b1": b"2", ledger_path(7): b"seven"}
        assert (done.lost_ledgers, done.lost_ledger_ids, done.lost_logs) == (1, [8], ["later"])


ALICE, STOLEN, NEW = map(Principal.parse, ("admin/alice", "client/stolen", "client/new"))


async def access_of(tree: MemoryTree) -> dict[str, object]:
    async with tree.open_store() as store:
        await join_cluster(store)
        found = {str(who): await read_grants(store, who) for who in (ALICE, STOLEN, NEW)}
        return {**found, "mode": await STORED_ADMISSION.read(store)}


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_restore_opens_no_cluster_and_gives_no_revoked_right_back(
    tmp_path: Path, is_empty: bool, is_interrupted: bool
) -> None:
    """Into an empty store, the rights come from the backup."""
    tree = new_tree()
    async with tree.open_store() as store:
        await store.create(ledger_path(7), b"seven")
        await change_grants(store, STOLEN, lambda now: now.granted(Grant(Role.WRITER)))
        at_backup = await access_of(tree)
        backup = await backed_up(tree, tmp_path / "backup")
        await STORED_ADMISSION.change(store, lambda _: Admission(ProvenBy.SECRET))
        await store.delete(grants_path(str(STOLEN)))
        await change_grants(store, ALICE, lambda now: now.revoked(None))
        await change_grants(store, NEW, lambda now: now.granted(Grant(Role.READER)))
    before = await access_of(tree)
    if is_empty:
        tree.exchange(Content())
    if is_interrupted:

        async def fail_at_the_end(call: Call, go_on: GoOn) -> Any:
            if any(
                isinstance(each, Set) and not each.value.startswith(RESTORING) for each in call.operations
            ):
                raise MetadataUnavailable("the power is out")
            return await go_on()

        with pytest.raises(MetadataUnavailable):
            await restore(FaultyStore(tree, fail_at_the_end), backup, now_ms=NOW_MS, random_bytes=os.urandom)
    async with tree.open_store() as store:
        done = await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
    assert done.was_empty is is_empty
    assert await access_of(tree) == (at_backup if is_empty else before)


async def test_a_restore_brings_back_what_the_store_has_lost_about_access(tmp_path: Path) -> None:
    """A cluster whose mode is lost would be open, and a damaged record of grants would stay damaged."""
    tree = new_tree()
    async with tree.open_store() as store:
        await STORED_ADMISSION.change(store, lambda _: Admission(ProvenBy.SECRET))
        for principal in (ALICE, NEW):
            await change_grants(store, principal, lambda now: now.granted(Grant(Role.READER)))
        at_backup = await access_of(tree)
        backup = await backed_up(tree, tmp_path / "backup")
        await store.delete(ADMISSION)
        node = await store.get(grants_path(str(NEW)))
        assert node is not None
        await store.set(grants_path(str(NEW)), b"rubbish", version=node.version)
    async with tree.open_store() as store:
        done = await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
    assert not done.was_empty
    assert await access_of(tree) == at_backup


async def test_a_restore_into_an_empty_store_takes_no_right_from_a_backup_that_was_begun_before(
    tmp_path: Path,
) -> None:
    tree = new_tree()
    async with tree.open_store() as store:
        await change_grants(store, STOLEN, lambda now: now.granted(Grant(Role.WRITER)))
        old = await backed_up(tree, tmp_path / "old")
        await store.delete(grants_path(str(STOLEN)))
        expected = await access_of(tree)
        new = await backed_up(tree, tmp_path / "new")
    tree.exchange(Content())

    async def fail_at_the_end(call: Call, go_on: GoOn) -> Any:
        if any(isinstance(each, Set) and not each.value.startswith(RESTORING) for each in call.operations):
            raise MetadataUnavailable("the power is out")
        return await go_on()

    with pytest.raises(MetadataUnavailable):
        await restore(FaultyStore(tree, fail_at_the_end), old, now_ms=NOW_MS, random_bytes=os.urandom)
    async with tree.open_store() as store:
        await restore(store, new, now_ms=NOW_MS, random_bytes=os.urandom)
    assert await access_of(tree) == expected


@pytest.mark.parametrize("calls", range(3, 40))
async def test_a_restore_that_breaks_off_leaves_a_store_that_refuses_all_but_another(
    tmp_path: Path, calls: int
) -> None:
    tree = new_tree()
    async with tree.open_store() as first:
        await first.create("cookies/b1", b"1")
        backup = await backed_up(tree, tmp_path / "backup")
        await first.create(ledger_path(8), b"eight")
    before = tree.content
    store = FaultyStore(tree, unreachable_after(calls))
    try:
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
    except Exception:
        node = tree.content.nodes[CLUSTER]
        if tree.content != before and node.value.startswith(RESTORING):
            async with tree.open_store() as other:
                with pytest.raises(WrongCluster, match="being restored"):
                    await find_cluster(other)
                other.belong_to(OURS)
                with pytest.raises(WrongCluster, match="being restored"):
                    await other.get("cookies/b1")
        else:
            assert tree.content == before or tree.content.nodes.keys() == {CLUSTER, RESTORED, "cookies/b1"}
    store.faults.clear()
    await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
    assert tree.content.nodes.keys() == {CLUSTER, RESTORED, "cookies/b1"}
    assert tree.content.nodes[CLUSTER].value.startswith(OURS.encode() + b":")


async def changed_since(path: Path) -> tuple[MemoryTree, Backup]:
    """A store and its backup. A restore makes a node, changes a log and deletes two nodes."""
    tree = new_tree()
    log = LogMetadata.create(
        name="x", incarnation=0, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )
    async with tree.open_store() as store:
        await store.create(log_record_path(0), log.encode())
        await store.create(ledger_path(7), b"seven")
        backup = await backed_up(tree, path)
        await store.set(log_record_path(0), attrs.evolve(log, epoch=4).encode(), version=0)
        await store.delete(ledger_path(7))
        await store.create(ledger_path(8), b"eight")
        await store.create(ledger_path(9), b"nine")
    return tree, backup


async def calls_of_a_restore(path: Path, stopped_at: int | None = None) -> int:
    """How many calls a restore makes. If it is stopped, it is refused, and changes nothing.

    Args:
        path: Where to put its backup.
        stopped_at: The number of the call before which it is stopped. Another one ends meanwhile, and the
            cluster is in use again.
    """
    tree, backup = await changed_since(path)
    calls, in_use = 0, Content()

    async def stop(_: Call) -> None:
        nonlocal calls, in_use
        calls += 1
        if calls == stopped_at:
            async with tree.open_store() as store:
                await restore(store, backup, now_ms=NOW_MS + 1, random_bytes=os.urandom)
                await accept_loss(store)
                await store.create(ledger_path(10**12), b"new")
            in_use = tree.content

    store = FaultyStore(tree, before(stop))
    if stopped_at is None:
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
    else:
        with pytest.raises(WrongCluster, match=r"nothing more was written|nothing was changed"):
            await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        assert tree.content == in_use
    return calls


async def test_a_restore_writes_nothing_more_once_another_has_begun(tmp_path: Path) -> None:
    """The first one lost its terminal, and goes on when the other one has ended."""
    calls = await calls_of_a_restore(tmp_path / "backup")
    for stopped_at in range(3, calls + 1):  # The first two calls are before its look at the cluster's id.
        await calls_of_a_restore(tmp_path / f"backup {stopped_at}", stopped_at)


async def test_a_restore_opens_no_store_that_another_is_restoring(tmp_path: Path) -> None:
    tree, backup = await changed_since(tmp_path / "backup")

    async def first_goes_on(call: Call) -> None:
        if any(each.path == RESTORED for each in call.operations):
            go_on.set()
            await is_refused.wait()

    async def stop(call: Call) -> None:
        if any(each.path == ledger_path(8) for each in call.operations):
            is_stopped.set()
            await go_on.wait()

    async def first() -> None:
        with pytest.raises(WrongCluster, match="another restore of the store has taken over"):
            await restore(FaultyStore(tree, before(stop)), backup, now_ms=NOW_MS, random_bytes=os.urandom)
        assert tree.content.nodes[CLUSTER].value.startswith(RESTORING)
        is_refused.set()

    is_stopped, go_on, is_refused = trio.Event(), trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await is_stopped.wait()
        done = await restore(
            FaultyStore(tree, before(first_goes_on)), backup, now_ms=NOW_MS, random_bytes=os.urandom
        )
    mark = f"{OURS}:{done.restoration.floor:x}".encode()
    assert tree.content.nodes[CLUSTER].value == mark
    assert tree.content.nodes.keys() == {CLUSTER, RESTORED, ledger_path(7), log_record_path(0)}


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED])
async def test_a_restore_is_complete_although_the_answer_to_a_write_is_lost(
    clock: MockClock, tmp_path: Path, fate: Fate
) -> None:
    """It does not take its own write for one of another restore."""
    writes = lost_at = 0

    def lose_one(_: Call) -> Fate:
        nonlocal writes
        writes += 1
        return fate if writes == lost_at else Fate.DONE

    results = []
    while lost_at <= writes:
        tree, backup = await changed_since(tmp_path / f"backup {lost_at}")
        lost_at, writes = lost_at + 1, 0
        done = await restore(
            FaultyStore(tree, fates(lose_one)), backup, now_ms=NOW_MS, random_bytes=os.urandom
        )
        mark = f"{OURS}:{done.restoration.floor:x}".encode()
        assert tree.content.nodes[CLUSTER].value == mark
        assert tree.content.nodes.keys() == {CLUSTER, RESTORED, ledger_path(7), log_record_path(0)}
        results.append((done.nodes, done.lost_ledger_ids, done.changed_logs))
    assert results == [(2, [8, 9], 1)] * len(results)
    assert len(results) > 6


def newer(value: bytes) -> bytes:
    head = value[:8] + (2).to_bytes(4, "little")
    return head + zlib.crc32(head).to_bytes(4, "little") + value[16:]


async def test_a_backup_of_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await backed_up(new_tree(), path)
    path.write_bytes(newer(path.read_bytes()))
    with pytest.raises(IncompatibleVersion, match="has format 2"):
        open_backup(str(path))


async def test_a_process_from_before_a_restore_is_refused_and_a_bookie_goes_on(tmp_path: Path) -> None:
    """Versions may begin at 0 again, so its compare-and-set might succeed by accident."""
    tree = new_tree()
    async with tree.open_store() as old, tree.open_store() as bookie, tree.open_store() as store:
        backup = await backed_up(tree, tmp_path / "backup")
        old.belong_to(OURS)
        version = await old.create("log/1", b"before")
        bookie.belong_to(OURS, through_restores=True)
        await bookie.sync()
        tree.exchange(Content())
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        assert await store.create("log/1", b"after") == version
        with pytest.raises(WrongCluster, match="restored from a backup after this process"):
            await old.set("log/1", b"of the lost state", version=version)
        assert await bookie.get("log/1") == Versioned(b"after", version)
        async with tree.open_store() as new:
            assert await join_cluster(new) == OURS
            await new.set("log/1", b"later", version=version)
        backup = await backed_up(tree, tmp_path / "again")
        assert backup.cluster == OURS


async def test_a_process_begins_anew_after_a_restore_and_not_after_an_older_state(
    clock: MockClock, tmp_path: Path
) -> None:
    tree = new_tree()
    async with tree.open_store() as old, tree.open_store() as store:
        backup = await backed_up(tree, tmp_path / "backup")
        older = Content(dict(tree.content.nodes), dict(tree.content.counters))
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        old.belong_to(OURS)
        await old.sync()
        newer = tree.content
        tree.exchange(older)
        with trio.move_on_after(60) as waited:
            await wait_restored(old)
        assert waited.cancelled_caught
        tree.exchange(newer)
        await restore(store, backup, now_ms=NOW_MS + 1, random_bytes=os.urandom)
        with trio.fail_after(60):
            await wait_restored(old)


async def test_epochs_and_terms_never_go_back(tmp_path: Path) -> None:
    """What the store knows now, and what was in use since the backup by the clock, is passed."""
    tree = new_tree()
    log = LogMetadata.create(
        name="x", incarnation=0, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )
    term = ElectionState(term=3, holder="h", candidate="c")
    async with tree.open_store() as store:
        await store.create(log_record_path(0), attrs.evolve(log, epoch=4).encode())
        await store.create(election_path("e"), term.encode())
        backup = await backed_up(tree, tmp_path / "backup")
        await store.set(log_record_path(0), attrs.evolve(log, epoch=10**12).encode(), version=0)
        await store.set(election_path("e"), attrs.evolve(term, term=10**12).encode(), version=0)

        async def numbers() -> tuple[int, int]:
            record, election = await store.get(log_record_path(0)), await store.get(election_path("e"))
            assert record is not None
            assert election is not None
            state = ElectionState.decode_untrusted(election.value, "e")
            assert state.holder is None
            return LogMetadata.decode_untrusted(record.value, 0).epoch, state.term

        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        assert min(await numbers()) > 10**12
    tree = new_tree()
    async with tree.open_store() as store:
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        early = await numbers()
    tree = new_tree()
    async with tree.open_store() as store:
        await restore(store, backup, now_ms=NOW_MS + 60_000, random_bytes=os.urandom)
        assert 4 + 1000 < min(early) <= max(early) < min(await numbers())


async def test_a_damaged_record_in_the_store_does_not_take_an_epoch_back(tmp_path: Path) -> None:
    tree = new_tree()
    log = LogMetadata.create(
        name="x", incarnation=0, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )
    async with tree.open_store() as store:
        await store.create(log_record_path(0), attrs.evolve(log, epoch=4).encode())
        await store.create(election_path("e"), ElectionState(term=3, holder="h", candidate="c").encode())
        backup = await backed_up(tree, tmp_path / "backup")
        await store.set(log_record_path(0), b"damaged", version=0)
        await store.set(election_path("e"), b"damaged", version=0)
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        record, election = await store.get(log_record_path(0)), await store.get(election_path("e"))
        assert record is not None
        assert election is not None
        assert LogMetadata.decode_untrusted(record.value, 0).epoch > 1000
        assert ElectionState.decode_untrusted(election.value, "e").term > 1000


async def test_a_backup_with_records_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """This version could not move their epochs past those that were in use."""
    tree = new_tree()
    async with tree.open_store() as store:
        await store.create(log_record_path(0), encode_record({"v": 99}))
        backup = await backed_up(tree, tmp_path / "backup")
        before = tree.content
        with pytest.raises(IncompatibleVersion):
            await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
        assert tree.content == before


async def refused(store: MetadataStore, tree: MemoryTree, backup: Backup, why: str) -> None:
    before = tree.content
    with pytest.raises((InvalidArgument, WrongCluster), match=why):
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)
    assert tree.content == before


async def test_a_live_cluster_is_not_restored(tmp_path: Path) -> None:
    tree = new_tree()
    backup = await backed_up(tree, tmp_path / "backup")
    async with tree.open_store() as bookie, tree.open_store() as store:
        await bookie.create(writable_path("b1"), b"", ephemeral=True)
        await refused(store, tree, backup, "live: bookies/writable/b1")


async def test_a_backup_of_another_cluster_is_refused(tmp_path: Path) -> None:
    backup = await backed_up(MemoryTree("another"), tmp_path / "backup", "another")
    tree = new_tree()
    async with tree.open_store() as store:
        await refused(store, tree, backup, "is a backup of cluster another")


async def test_a_store_that_holds_something_else_is_not_restored(tmp_path: Path) -> None:
    backup = await backed_up(new_tree(), tmp_path / "backup")
    tree = MemoryTree()
    async with tree.open_store() as store:
        await store.create("logs/x", b"")
        await refused(store, tree, backup, "no cluster in it")


async def test_every_cut_and_every_flipped_bit_of_a_backup_is_refused(tmp_path: Path) -> None:
    tree = new_tree()
    async with tree.open_store() as store:
        await store.create("cookies/b1", b"value")
    path = tmp_path / "backup"
    await backed_up(tree, path)
    sound = path.read_bytes()
    damaged = tmp_path / "damaged"
    for size in range(len(sound)):
        damaged.write_bytes(sound[:size])
        with pytest.raises(StorageCorrupt):
            open_backup(str(damaged))
    for at in range(len(sound)):
        damaged.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        with pytest.raises((StorageError, IncompatibleVersion)):
            open_backup(str(damaged))
    damaged.write_bytes(sound + b"\0")
    with pytest.raises(StorageCorrupt):
        open_backup(str(damaged))


async def test_a_backup_overwrites_nothing_and_leaves_nothing_if_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    await backed_up(new_tree(), path)
    sound = path.read_bytes()
    with pytest.raises(InvalidArgument, match="overwrites nothing"):
        await backed_up(new_tree(), path)
    with pytest.raises(WrongCluster):
        await backed_up(new_tree(), tmp_path / "other", "another")
    assert os.listdir(tmp_path) == ["backup"]
    assert path.read_bytes() == sound
