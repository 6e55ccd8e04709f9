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
from trio.testing import MockClock

from ledgerlog.errors import (
    BookieUnavailable,
    IncompatibleVersion,
    InvalidArgument,
    LedgerLogError,
    RecoveryFailed,
    StorageCorrupt,
    StorageError,
    WrongCluster,
)
from ledgerlog.ledger.bookies import STORED_PLACEMENT
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import Backup, open_backup, write_backup
from ledgerlog.meta.belonging import RESTORING, find_cluster, join_cluster
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.meta.restore import accept_loss, restore
from ledgerlog.meta.store import MetadataStore, Versioned
from ledgerlog.model.codec import encode_record
from ledgerlog.model.election import ElectionState
from ledgerlog.model.layout import (
    CLUSTER,
    LEDGER_COUNTER,
    RESTORED,
    election_path,
    ledger_path,
    log_record_path,
    writable_path,
)
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.log_key import INCARNATION_LABEL, is_key_of_log, key_for
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.model.restoration import AS_IN_BACKUP_LABEL, EPOCH_MS
from ledgerlog.model.segments import LogSegment
from ledgerlog.repair.bringing_back import bring_back
from ledgerlog.repair.metadata_check import look_at_metadata
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, unreachable_after
from ledgerlog.testing.memory_cluster import CLUSTER as OURS
from ledgerlog.testing.memory_cluster import Bookie, Client, MemoryCluster, new_tree, open_cluster
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import Status, decode_frame_untrusted
from ledgerlog.wire.records import encode_entry

NOW_MS = EPOCH_MS + 1_000_000


async def backed_up(tree: MemoryTree, path: Path, cluster: str = OURS) -> Backup:
    async with tree.open_store() as store:
        store.belong_to(cluster)
        with write_backup(str(path)) as writer:
            await save(store, writer, made_ms=NOW_MS)
    return open_backup(str(path))


async def written(client: Client, payload: bytes) -> int:
    """A closed ledger with one entry."""
    writer = await client.ledgers.create()
    assert await writer.append(payload) == 0
    await writer.close()
    return writer.ledger_id


async def restored_under_bookies(cluster: MemoryCluster, backup: Backup) -> None:
    """The store is lost, and made again from the backup while the bookies go on."""
    cluster.tree.exchange(Content())
    async with cluster.tree.open_store() as store:
        await restore(store, backup, now_ms=NOW_MS)


async def collected(cluster: MemoryCluster) -> int:
    """Two passes of each bookie's collection, for a mass deletion waits for the second."""
    deleted = 0
    for bookie in cluster.bookies.values():
        collector = bookie.node.engine.collector
        assert collector is not None
        await bookie.node.engine.flush()  # Collection looks at the index.
        for _ in range(2):
            deleted += await collector.collect()
    return deleted


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
            await restore(store, backup, now_ms=0)
            given += [await store.next_id(LEDGER_COUNTER) for _ in range(3)]
    assert given == sorted(set(given))


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
        done = await restore(store, backup, now_ms=NOW_MS)
        content = {path: node.value for path, node in tree.content.nodes.items() if path != RESTORED}
        mark = f"{OURS}:{done.restoration.floor:x}".encode()
        assert content == {CLUSTER: mark, "cookies/b1": b"2", ledger_path(7): b"seven"}
        assert (done.lost_ledgers, done.lost_ledger_ids, done.lost_logs) == (1, [8], ["later"])


@pytest.mark.parametrize("calls", range(3, 30))
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
        await restore(store, backup, now_ms=NOW_MS)
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
    await restore(store, backup, now_ms=NOW_MS)
    assert tree.content.nodes.keys() == {CLUSTER, RESTORED, "cookies/b1"}
    assert tree.content.nodes[CLUSTER].value.startswith(OURS.encode() + b":")


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
        await restore(store, backup, now_ms=NOW_MS)
        assert await store.create("log/1", b"after") == version
        with pytest.raises(WrongCluster, match="restored from a backup after this process"):
            await old.set("log/1", b"of the lost state", version=version)
        assert await bookie.get("log/1") == Versioned(b"after", version)
        async with tree.open_store() as new:
            assert await join_cluster(new) == OURS
            await new.set("log/1", b"later", version=version)
        backup = await backed_up(tree, tmp_path / "again")
        assert backup.cluster == OURS


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

        await restore(store, backup, now_ms=NOW_MS)
        assert min(await numbers()) > 10**12
    tree = new_tree()
    async with tree.open_store() as store:
        await restore(store, backup, now_ms=NOW_MS)
        early = await numbers()
    tree = new_tree()
    async with tree.open_store() as store:
        await restore(store, backup, now_ms=NOW_MS + 60_000)
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
        await restore(store, backup, now_ms=NOW_MS)
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
            await restore(store, backup, now_ms=NOW_MS)
        assert tree.content == before


async def refused(store: MetadataStore, tree: MemoryTree, backup: Backup, why: str) -> None:
    before = tree.content
    with pytest.raises((InvalidArgument, WrongCluster), match=why):
        await restore(store, backup, now_ms=NOW_MS)
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


# --- what bookies hold and the metadata lack --------------------------------------------------------


async def appended(client: Client, log: Log, records: range) -> None:
    """One leadership that appends ``records``, with a roll in the middle."""
    async with log.writer() as writer:
        for number in records:
            await writer.append(b"%d" % number)
            if number == records[len(records) // 2]:
                await writer.roll()


async def records_of(log: Log) -> list[bytes]:
    async with log.read(start=0) as reader:
        return [record.data async for record in reader]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("is_led", [False, True])
async def test_what_bookies_hold_of_a_log_is_brought_back_into_it(
    clock: MockClock, tmp_path: Path, is_led: bool
) -> None:
    """Rolls, new leaders and a leader that lives at the backup: every acknowledged record is read again."""
    async with open_cluster(4) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            other = await create_log(client.opened, "other")
            await appended(client, log, range(10))
            await appended(client, other, range(5))
            if is_led:
                async with log.writer() as writer:
                    await writer.append(b"10")
                    backup = await backed_up(cluster.tree, tmp_path / "backup")
                    await writer.append(b"11")
            else:
                backup = await backed_up(cluster.tree, tmp_path / "backup")
                await appended(client, log, range(10, 12))
            await appended(client, log, range(12, 20))
            await appended(client, other, range(5, 9))
            await appended(client, log, range(20, 30))
            bare = await written(client, b"of no log")
            new = await create_log(client.opened, "new")
            await appended(client, new, range(4))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(4)
            check = await look_at_metadata(client.opened)
            assert not check.is_sound
            assert {ledger.log for ledger in check.forgotten} == {"x", "other", None}
            assert len([ledger for ledger in check.forgotten if ledger.log is None]) == 3
            assert bare in {ledger.ledger_id for ledger in check.forgotten}
            back, left = await bring_back(client.opened, check)
            assert {ledger.log for ledger in back} == {"x", "other"}
            assert {ledger.log for ledger in left} == {None}
            log = await open_log(client.opened, "x")
            assert await records_of(log) == numbers(30)
            assert await records_of(await open_log(client.opened, "other")) == numbers(9)
            again = await look_at_metadata(client.opened)
            assert {ledger.ledger_id for ledger in again.forgotten} == {ledger.ledger_id for ledger in left}
            await appended(client, log, range(30, 40))
            assert await records_of(log) == numbers(40)
            assert await accept_loss(client.store)
        assert await collected(cluster) > 0
        async with cluster.client() as client:
            assert await records_of(await open_log(client.opened, "x")) == numbers(40)
            assert (await look_at_metadata(client.opened)).is_sound


async def test_what_does_not_continue_its_log_is_named_and_kept(clock: MockClock, tmp_path: Path) -> None:
    """A writer came first: the offsets are given out again, so the old records cannot have them."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            await appended(client, log, range(5, 9))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            log = await open_log(client.opened, "x")
            await appended(client, log, range(50, 52))
            back, left = await bring_back(client.opened, await look_at_metadata(client.opened))
            assert not back
            assert left
            assert all("begins at offset" in ledger.why for ledger in left)
            assert await records_of(log) == [*numbers(5), b"50", b"51"]
        assert await collected(cluster) == 0


async def test_nothing_is_brought_back_while_a_bookie_is_absent_unless_that_is_accepted(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            await appended(client, log, range(5, 9))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            await cluster.bookies["b2"].stop()
            check = await look_at_metadata(client.opened)
            with pytest.raises(BookieUnavailable, match="b2 did not list the ledgers that they hold"):
                await bring_back(client.opened, check)
            assert (await look_at_metadata(client.opened)).forgotten == check.forgotten
            back, _ = await bring_back(client.opened, check, accept_absent=True)
            assert {ledger.log for ledger in back} == {"x"}
            assert await records_of(await open_log(client.opened, "x")) == numbers(9)


async def test_a_leader_that_came_after_the_restore_keeps_the_lead(clock: MockClock, tmp_path: Path) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            await appended(client, log, range(5, 9))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client, cluster.client() as operator:
            await operator.opened.bookies.wait_writable(3)
            log = await open_log(client.opened, "x")
            async with log.writer() as writer:
                await writer.append(b"50")
                back, left = await bring_back(operator.opened, await look_at_metadata(operator.opened))
                assert not back
                assert left
                await writer.append(b"51")
            assert await records_of(log) == [*numbers(5), b"50", b"51"]


async def test_the_key_of_a_ledger_tells_its_log_and_no_other() -> None:
    random = bytes(range(16))
    key = key_for(random, {INCARNATION_LABEL: b"7"})
    assert [number for number in range(100) if is_key_of_log(key, number)] == [7]
    assert key[:8] == random[:8]
    assert key_for(random, {}) == random


async def test_an_interrupted_bringing_back_is_done_again(clock: MockClock, tmp_path: Path) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            await appended(client, log, range(5, 9))
        await restored_under_bookies(cluster, backup)
        is_done = False
        for calls in range(6, 300, 6):
            if is_done:
                break
            async with cluster.client() as client:
                await client.opened.bookies.wait_writable(3)
                check = await look_at_metadata(client.opened)
                client.store.faults.append(unreachable_after(calls))
                with contextlib.suppress(LedgerLogError):
                    _, left = await bring_back(client.opened, check)
                    is_done = not left
        assert is_done
        async with cluster.client() as client:
            assert await records_of(await open_log(client.opened, "x")) == numbers(9)
            assert not (await look_at_metadata(client.opened)).forgotten


async def test_without_a_restore_nothing_is_forgotten_and_deleted_ledgers_stay_deleted(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await written(client, b"x")
        assert (await look_at_metadata(client.opened)).is_sound
        await client.ledgers.delete(ledger_id)
        check = await look_at_metadata(client.opened)
        assert check.is_sound
        assert [ledger.ledger_id for ledger in check.deleted] == [ledger_id]
        with pytest.raises(InvalidArgument, match="no ledger is forgotten"):
            await bring_back(client.opened, check)


async def test_a_roll_while_the_metadata_are_read_is_no_difference(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client, cluster.client() as leader:
        log = await create_log(leader.opened, "x")
        async with log.writer() as writer:
            rolled = []

            async def roll_before_logs_are_read(call: Call, go_on: GoOn) -> Any:
                if call.path == log_record_path(log.incarnation) and not rolled:
                    rolled.append((await writer.append(b"0")).offset)
                    await writer.roll()
                    rolled.append((await writer.append(b"1")).offset)
                return await go_on()

            client.store.faults.append(roll_before_logs_are_read)
            check = await look_at_metadata(client.opened)
        assert rolled == [0, 1]
        assert check.is_sound


async def test_what_the_metadata_have_and_nobody_holds_is_named(clock: MockClock, tmp_path: Path) -> None:
    """A ledger that was deleted and collected after the backup, and a bookie that is down."""
    async with open_cluster(4) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            gone = await client.ledgers.list()
            for ledger_id in gone:
                await client.ledgers.delete(ledger_id)
        assert await collected(cluster) > 0
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(4)
            check = await look_at_metadata(client.opened)
            held = [ledger.ledger_id for ledger in check.not_held]
            assert held
            assert {*held} <= {*gone}
            await client.store.delete(ledger_path(held[0]))
            await cluster.bookies["b1"].stop()
            check = await look_at_metadata(client.opened)
            assert (check.missing, check.unregistered) == ({"x": (held[0],)}, ("b1",))


async def test_entries_that_the_next_leader_had_cut_off_stay_cut_off(
    clock: MockClock, tmp_path: Path
) -> None:
    """An entry reached one bookie only, and that bookie was away when the next leader took over.

    Another bookie is away at the restore. So fewer bookies deny the entry than a recovery needs to end before
    it, and the recovery keeps it.
    """
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            await appended(client, log, range(5))
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            async with log.writer() as writer:
                await writer.append(b"5")
                await writer.append(b"6")
                ledger_id = (await log.info()).segments[-1].ledger_id
            left_over = encode_entry(
                [b"never acknowledged"], epoch=2, first_offset=7, timestamp_ms=1, bytes_before=7
            )
            closed = await client.ledgers.metadata(ledger_id)
            assert closed.last_entry is not None
            await add_to(cluster.bookies["b1"], closed, closed.last_entry + 1, left_over)
            await appended(client, log, range(7, 10))
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await cluster.bookies["b3"].kill(session_s=0)
            await client.opened.bookies.wait_writable(2)
            _, left = await bring_back(
                client.opened, await look_at_metadata(client.opened), accept_absent=True
            )
            assert not left
            assert await records_of(await open_log(client.opened, "x")) == numbers(10)


async def add_to(bookie: Bookie, ledger: LedgerMetadata, entry_id: int, payload: bytes) -> None:
    """Store an entry on one bookie alone, as if its add had come late."""
    entries = Entries.build(ledger.ledger_id, entry_id, [payload])
    buffers = encode_add(entries, lac=entry_id - 1, lafr=-1, key=ledger.key, recovery=True)
    frame = decode_frame_untrusted(memoryview(b"".join(buffers)))
    assert not isinstance(bookie.node.engine.add(frame, entries), Status)
    await bookie.node.engine.flush()


async def test_a_backup_has_the_ledgers_that_a_log_lists_since_they_were_read(tmp_path: Path) -> None:
    tree = new_tree()
    log = LogMetadata.create(
        name="x", incarnation=0, created_ms=0, token=b"t", replication=Replication(3, 3, 2)
    )
    listed = attrs.evolve(log, epoch=1, segments=(LogSegment(5, 1, 0),))

    async def roll_before_logs_are_read(call: Call, go_on: GoOn) -> Any:
        if call.path == log_record_path(0) and ledger_path(5) not in tree.content.nodes:
            async with tree.open_store() as writer:
                await writer.create(ledger_path(5), b"five")
                await writer.set(log_record_path(0), listed.encode(), version=0)
        return await go_on()

    store = FaultyStore(tree, roll_before_logs_are_read)
    await store.create("cookies/b1", b"")
    store.faults.clear()
    await store.create(log_record_path(0), log.encode())
    store.faults.append(roll_before_logs_are_read)
    store.belong_to(OURS)
    with write_backup(str(tmp_path / "backup")) as writer:
        await save(store, writer, made_ms=NOW_MS)
    assert dict(open_backup(str(tmp_path / "backup")).read())[ledger_path(5)] == b"five"


async def test_a_ledger_that_was_open_when_the_backup_read_it_and_closed_in_its_log_is_read_whole(
    clock: MockClock, tmp_path: Path
) -> None:
    """A store that is read node by node: the log rolls between the reads of its ledger and of its list."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            async with log.writer() as writer:

                async def append(records: range) -> None:
                    for number in records:
                        await writer.append(b"%d" % number)

                async def roll_before_the_list_is_read(call: Call, go_on: GoOn) -> Any:
                    if call.path == log_record_path(0):
                        store.faults.clear()
                        for first in (5, 10):
                            await append(range(first, first + 5))
                            await writer.roll()
                        await append(range(15, 20))
                    return await go_on()

                await append(range(5))
                store = FaultyStore(cluster.tree, roll_before_the_list_is_read)
                store.belong_to(OURS)
                with write_backup(str(tmp_path / "backup")) as file:
                    await save(store, file, made_ms=NOW_MS)
                await append(range(20, 25))
                await writer.roll()
                await append(range(25, 30))
        await restored_under_bookies(cluster, open_backup(str(tmp_path / "backup")))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            _, left = await bring_back(client.opened, await look_at_metadata(client.opened))
            assert not left
            assert await records_of(await open_log(client.opened, "x")) == numbers(30)


@pytest.mark.parametrize("calls", [10, 22, 26, 30])
async def test_a_ledger_of_the_backup_that_its_leader_listed_later_is_brought_back_after_an_interruption(
    clock: MockClock, tmp_path: Path, calls: int
) -> None:
    """The leader had made it ahead. When it is recovered, nothing in its metadata shows that they are old."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")

            async def back_up_before_the_roll_is_written(call: Call, go_on: GoOn) -> Any:
                if call.verb == "set" and call.path == log_record_path(log.incarnation):
                    client.store.faults.clear()
                    await backed_up(cluster.tree, tmp_path / "backup")
                return await go_on()

            async with log.writer() as writer:
                await writer.append(b"0")
                client.store.faults.append(back_up_before_the_roll_is_written)
                await writer.roll()
                await writer.append(b"1")
        await restored_under_bookies(cluster, open_backup(str(tmp_path / "backup")))
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            check = await look_at_metadata(client.opened)
            client.store.faults.append(unreachable_after(calls))
            with contextlib.suppress(LedgerLogError):
                await bring_back(client.opened, check)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            await bring_back(client.opened, await look_at_metadata(client.opened))
            assert await records_of(await open_log(client.opened, "x")) == numbers(2)
            assert (await look_at_metadata(client.opened)).is_sound


async def test_a_ledger_that_was_staged_at_the_backup_and_spliced_later_is_named(
    clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            registry = LogRegistry(client.opened.store, client.opened.environment)
            async with stage(client.opened, registry, log.name, log.incarnation) as opened:
                await opened.append_many([b"0", b"1"])
                staged = await opened.close()
            assert staged is not None
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            commit = Commit(producer="p", source="s", run="r", batch=0, staged=(staged,))
            await splice(client.opened, registry, log.name, log.incarnation, commit)
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            _, (left,) = await bring_back(client.opened, await look_at_metadata(client.opened))
            assert (left.ledger_id, left.log) == (staged.ledger_id, "x")


@pytest.mark.parametrize("was_on", [False, True])
async def test_a_ledger_comes_back_with_the_deduplication_of_its_leader(
    clock: MockClock, tmp_path: Path, was_on: bool
) -> None:
    """That leader had switched it on or off. Otherwise the next leader could not read the table."""
    async with open_cluster(3) as cluster:
        async with cluster.client() as client:
            log = await create_log(client.opened, "x")
            async with log.writer(dedupe=was_on) as writer:
                await writer.append(b"0")
            backup = await backed_up(cluster.tree, tmp_path / "backup")
            producer, first, second = (None, None, None) if was_on else ("p", 0, 1)
            async with log.writer(dedupe=not was_on) as writer:
                await writer.append(b"1", producer=producer, sequence=first)
        await restored_under_bookies(cluster, backup)
        async with cluster.client() as client:
            await client.opened.bookies.wait_writable(3)
            await bring_back(client.opened, await look_at_metadata(client.opened))
            log = await open_log(client.opened, "x")
            async with log.writer() as writer:
                if not was_on:
                    assert (await writer.append(b"1", producer=producer, sequence=first)).offset == 1
                await writer.append(b"2", producer=producer, sequence=second)
            assert await records_of(log) == numbers(3)
