"""A bookie that lost its disk comes back. It starts only if an operator allows it, and it marks its loss
before it answers. It denies nothing, and is whole again once it has copied all its entries."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.core.loss_marks import LossMarks
from bookie.server.phase_one import marks_after_loss
from bookie.storage.disk.memory import MemoryFile
from ledgerlog.cli.ledger import loss_lines
from ledgerlog.errors import (
    CookieMismatch,
    DiskFull,
    EntryUnavailable,
    LedgerFenced,
    MetadataUnavailable,
    RecoveryFailed,
    StorageCorrupt,
    StorageError,
)
from ledgerlog.ledger.core.recovery import LOST_FROM
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import LIMBO_TELL_AGAIN_S, LIMBO_TELL_S
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.store import Versioned
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.layout import cookie_path, ledger_path, writable_path
from ledgerlog.model.quorum import Replication
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.testing.faulty_disk import Fails
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn, StaleReplica
from ledgerlog.testing.memory_cluster import (
    SMALL,
    Client,
    MemoryCluster,
    SeededEnvironment,
    eventually,
    open_cluster,
)
from ledgerlog.wire.frame import Kind, Status

R332 = Replication(3, 3, 2)


def marks(cluster: MemoryCluster, bookie_id: str) -> LossMarks:
    return cluster.bookies[bookie_id].node.engine.loss_marks.now


async def written(client: Client, count: int, replication: Replication = R332, *, close: bool = True) -> int:
    writer = await client.ledgers.create(replication=replication)
    for number in range(count):
        await writer.append(b"entry %d" % number)
    if close:
        await writer.close()
    return writer.ledger_id


async def whole_again(cluster: MemoryCluster, bookie_id: str) -> None:
    with trio.fail_after(300):
        await cluster.bookies[bookie_id].node.repair.wait_done()


async def test_an_empty_disk_is_refused_until_an_operator_says_so(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        ledger_id = await written(client, 5)
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()
        bookie.fix_cookie = False
        with pytest.raises(CookieMismatch, match="bookie cookie fix"):
            await bookie.start()
        bookie.fix_cookie = True
        await bookie.start()
        await whole_again(cluster, "b1")
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []


async def test_a_fixed_cookie_names_a_new_instance_everywhere(clock: MockClock) -> None:
    async with open_cluster() as cluster:
        bookie = cluster.bookies["b1"]
        before = bookie.node.cookie
        await bookie.lose_disk()
        await bookie.start()
        after = bookie.node.cookie
        assert (after.bookie_id, after.cluster) == (before.bookie_id, before.cluster)
        assert after.instance != before.instance
        node = await bookie.store.get(cookie_path("b1"))
        registered = await bookie.store.get(writable_path("b1"))
        assert node is not None
        assert node.value == after.encode()
        assert registered is not None
        assert BookieInfo.decode_untrusted(registered.value, "b1").instance == after.instance
        # The next start needs no permission.
        await bookie.stop()
        bookie.fix_cookie = False
        await bookie.start()


async def test_every_ledger_that_existed_is_fenced_and_in_limbo_and_later_ones_are_not(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        open_one = await client.ledgers.create(replication=R332)
        await open_one.append(b"x")
        closed = await written(client, 3)
        await cluster.bookies["b1"].lose_disk()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await cluster.bookies["b1"].start()
        now = marks(cluster, "b1")
        for ledger_id in (open_one.ledger_id, closed):
            assert now.refuses_adds(ledger_id)
            assert now.denies_nothing(ledger_id)
        later = await client.ledgers.create(replication=R332)
        assert not now.refuses_adds(later.ledger_id)
        assert not now.denies_nothing(later.ledger_id)
        for number in range(3):
            await later.append(b"%d" % number)
        await later.close()
        assert await client.contents(later.ledger_id) == [b"0", b"1", b"2"]


async def test_a_loss_is_marked_for_ledgers_that_a_replica_that_is_behind_has_not_seen() -> None:
    tree = MemoryTree()
    registry = LedgerRegistry(FaultyStore(tree), SeededEnvironment("marks after a loss"))
    metadata, _ = await registry.create(R332, ("b1", "b2", "b3"), {})
    has_seen_nothing = StaleReplica(MemoryTree().content)
    now = await marks_after_loss(FaultyStore(tree, has_seen_nothing), None)
    assert now.refuses_adds(metadata.ledger_id)
    assert now.denies_nothing(metadata.ledger_id)


async def test_a_bookie_in_limbo_gives_what_it_has_and_says_of_the_rest_that_it_does_not_know(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        ledger_id = await written(client, 4)
        await cluster.bookies["b1"].lose_disk()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await cluster.bookies["b1"].start()
        pool: ConnectionPool = client.opened.pool
        reply = await pool.connection("b1").request(
            Kind.READ, timeout_s=5, ledger_id=ledger_id, first=0, last=9, count=1, argument=10**6
        )
        assert Status(reply.header.status) is Status.UNKNOWN
        reply = await pool.connection("b1").request(
            Kind.READ_LAC, timeout_s=5, ledger_id=ledger_id, first=-1, last=-1
        )
        assert Status(reply.header.status) is Status.UNKNOWN
        reply = await pool.connection("b1").request(Kind.LIST, timeout_s=5, ledger_id=ledger_id, first=0)
        assert Status(reply.header.status) is Status.UNKNOWN
        # The others are gone, so no bookie that could know has answered.
        for other in ("b2", "b3"):
            cluster.network.cut(client.host, other)
        reader = await client.ledgers.open(ledger_id)
        with pytest.raises(EntryUnavailable):
            await reader.read(0, 3)


async def test_an_open_ledger_is_recovered_and_its_owner_is_fenced(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        for number in range(10):
            await writer.append(b"entry %d" % number)
        await cluster.bookies["b1"].lose_disk()
        await cluster.bookies["b1"].start()
        await whole_again(cluster, "b1")
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert metadata.is_closed
        assert metadata.last_entry == 9
        with pytest.raises(LedgerFenced):
            await writer.append(b"late")
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []
        assert cluster.bookies["b1"].node.repair.copied >= 9, "recovery itself writes the last one back"


@pytest.mark.parametrize("shape", [(5, 3, 2), (4, 2, 2), (5, 2, 1)])
async def test_of_a_striped_ledger_the_bookie_copies_exactly_what_its_slot_holds(
    clock: MockClock, shape: tuple[int, int, int]
) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        ledger_id = await written(client, 53, Replication(*shape))
        metadata = await client.ledgers.metadata(ledger_id)
        (fragment,) = metadata.fragments
        lost = fragment.ensemble[1]
        await cluster.bookies[lost].lose_disk()
        await cluster.bookies[lost].start()
        await whole_again(cluster, lost)
        due = [e for e in range(53) if metadata.replication.holds(1, e)]
        assert cluster.bookies[lost].node.repair.copied == len(due)
        listed = await cluster.bookies[lost].node.engine.list_entries(ledger_id, first=0, pairs_max=1000)
        assert [e for low, high in listed.pairs for e in range(low, high + 1)] == due
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []


async def test_limbo_outlives_restarts_of_both_kinds_until_the_copies_are_there(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        ledger_id = await written(client, 4)
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await bookie.start()
        await bookie.restart()
        assert marks(cluster, "b1").denies_nothing(ledger_id)
        await bookie.stop()
        await bookie.start()
        assert marks(cluster, "b1").denies_nothing(ledger_id)
        cluster.network.heal()
        await whole_again(cluster, "b1")
        assert not marks(cluster, "b1").denies_nothing(ledger_id)
        assert marks(cluster, "b1").refuses_adds(ledger_id), "the fence is for ever"
        await bookie.restart()
        assert not marks(cluster, "b1").limbo


async def test_a_second_loss_in_the_middle_of_the_copying_starts_over(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        ledgers = [await written(client, 20) for _ in range(5)]
        bookie = cluster.bookies["b1"]
        for _ in range(3):
            await bookie.lose_disk()
            await bookie.start()
            await eventually(lambda: bookie.node.repair.copied > 0)
        await whole_again(cluster, "b1")
        for ledger_id in ledgers:
            assert (await client.ledgers.verify(ledger_id)).under_replicated == []


async def test_without_the_metadata_store_a_bookie_that_lost_data_does_not_serve(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await written(client, 2)
        bookie = cluster.bookies["b1"]
        await bookie.kill(session_s=0)
        del bookie.disk.files["/b1/marks"]
        bookie.has_metadata = False
        with pytest.raises(MetadataUnavailable):
            await bookie.start()
        bookie.has_metadata = True
        await bookie.start()
        assert marks(cluster, "b1").fenced_through == 0, "whose marks are gone may have lost anything"


async def test_an_open_ledger_that_does_not_name_the_bookie_last_stays_in_limbo_until_it_is_closed(
    clock: MockClock,
) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        for number in range(4):
            await writer.append(b"%d" % number)
        lost = writer.metadata.last_fragment.ensemble[0]
        await cluster.bookies[lost].lose_disk()
        for number in range(4, 8):
            await writer.append(b"%d" % number)
        assert lost not in writer.metadata.last_fragment.ensemble, "its owner replaced it"
        await cluster.bookies[lost].start()
        repair = cluster.bookies[lost].node.repair
        await eventually(lambda: repair.copied > 0)
        await trio.sleep(120)
        # A recoverer's private ensemble may name it again, or have done so before the loss.
        assert marks(cluster, lost).denies_nothing(writer.ledger_id)
        assert await writer.append(b"8") == 8, "and its owner is not disturbed"
        await writer.close()
        await whole_again(cluster, lost)
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


async def test_what_keeps_ledgers_in_limbo_is_said_at_a_bounded_rate(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which ledgers are in limbo, why, and which bookies they wait for."""

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if "stay in limbo" in each.getMessage()]

    async with open_cluster(4) as cluster, cluster.client() as client:
        writers = [await client.ledgers.create(replication=R332) for _ in range(10)]
        for writer in writers:
            await writer.append(b"x")
        # Of each ledger the first bookie is replaced: it is in no last fragment any more.
        before = {writer.ledger_id: writer.metadata.last_fragment.ensemble for writer in writers}
        await cluster.bookies["b1"].lose_disk()
        for writer in writers:
            await writer.append(b"y")
        await eventually(lambda: all("b1" not in w.metadata.last_fragment.ensemble for w in writers))
        await cluster.bookies["b1"].start()
        waiting = [w.ledger_id for w in writers if "b1" in before[w.ledger_id]]
        assert waiting
        await eventually(lambda: bool(told()))
        (line,) = told()
        for ledger_id in waiting[:8]:
            assert f"ledger={ledger_id} is OPEN on bookies b" in line
            assert f"'ledgerlog ledger recover {ledger_id}'" in line
        await trio.sleep(LIMBO_TELL_S / 2)
        assert len(told()) == 1, "nothing has changed"
        await trio.sleep(LIMBO_TELL_S)
        assert len(told()) == 2, "and it is still so"
        await trio.sleep(LIMBO_TELL_AGAIN_S)
        await writers[0].close()
        await trio.sleep(2 * LIMBO_TELL_AGAIN_S)
        assert len(told()) <= 3
        for writer in writers[1:]:
            await writer.close()
        await whole_again(cluster, "b1")
        assert len(told()) <= 4


async def test_a_damaged_row_of_the_metadata_keeps_one_ledger_in_limbo_and_ends_no_bookie(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = FaultyStore.get
    async with open_cluster(3) as cluster, cluster.client(replication=R332) as client:
        damaged, sound = [await written(client, 3) for _ in range(2)]
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()

        async def get_undamaged(store: FaultyStore, path: str) -> Versioned | None:
            if path == ledger_path(damaged):
                raise StorageCorrupt("metadata.sqlite", None, "a row fails its checksum")
            return await get(store, path)

        monkeypatch.setattr(FaultyStore, "get", get_undamaged)
        await bookie.start()
        await eventually(lambda: not marks(cluster, "b1").denies_nothing(sound))
        await trio.sleep(60)
        assert marks(cluster, "b1").denies_nothing(damaged)
        monkeypatch.undo()
        await whole_again(cluster, "b1")


async def test_the_end_of_an_open_ledger_is_not_taken_from_a_bookie_in_limbo(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        first, second, third = writer.metadata.last_fragment.ensemble
        cluster.network.cut(client.host, third)
        for number in range(4):
            await writer.append(b"%d" % number)
        cluster.network.heal()
        for host in (second, third):
            cluster.network.cut(first, host)
        await cluster.bookies[first].lose_disk()
        await cluster.bookies[first].start()
        # The answers do not cover the ensemble, because the bookie in limbo does not count.
        cluster.network.cut(other.host, second)
        cluster.network.cut(other.host, third)
        reader = await other.ledgers.open(writer.ledger_id)
        with pytest.raises(EntryUnavailable, match="no bookie of its last ensemble reports"):
            await reader.last_add_confirmed()


async def test_deleted_ledgers_leave_limbo_and_stay_fenced(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        ledger_id = await written(client, 3)
        await client.ledgers.delete(ledger_id)
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()
        await bookie.start()
        await whole_again(cluster, "b1")
        assert marks(cluster, "b1").refuses_adds(ledger_id)
        assert bookie.node.repair.copied == 0


async def test_entries_that_nobody_has_any_more_keep_their_ledger_in_limbo_and_are_named(
    clock: MockClock,
) -> None:
    async with open_cluster(2) as cluster, cluster.client() as client:
        ledger_id = await written(client, 6, Replication(2, 2, 1))
        for bookie in cluster.bookies.values():
            await bookie.lose_disk()
        for bookie in cluster.bookies.values():
            await bookie.start()
        lost = cluster.bookies["b1"].node.repair.lost
        await trio.sleep(300)
        # Each may have been the one that had them, so neither may say that they are gone.
        assert lost == {}
        reader = await client.ledgers.open(ledger_id)
        with pytest.raises(EntryUnavailable):
            await reader.read(0, 5)


async def test_entries_that_all_others_deny_are_named_as_lost_and_still_not_denied(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(2) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(2, 2, 1))
        cluster.network.cut(client.host, "b2")
        for number in range(6):
            await writer.append(b"%d" % number)
        await writer.close()
        await cluster.bookies["b1"].lose_disk()
        await cluster.bookies["b1"].start()
        repair = cluster.bookies["b1"].node.repair
        await eventually(lambda: writer.ledger_id in repair.lost)
        assert repair.lost == {writer.ledger_id: [(0, 5)]}
        assert "no intact copy is left of these entries: 0..5" in caplog.text
        assert marks(cluster, "b1").denies_nothing(writer.ledger_id)
        cluster.network.heal()
        reader = await client.ledgers.open(writer.ledger_id)
        with pytest.raises(EntryUnavailable):
            await reader.read(0, 5)


async def test_a_label_of_a_user_is_not_taken_for_the_first_lost_entry(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332, metadata={LOST_FROM: b"yes"})
        await writer.append(b"0")
        await writer.aclose()
        assert (await client.ledgers.recover_accepting_loss(writer.ledger_id)).lost_from is None


async def test_an_operator_closes_a_ledger_that_lost_too_much_and_is_told_what_it_cost(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        first, second, third = writer.metadata.last_fragment.ensemble
        cluster.network.cut(client.host, third)
        for number in range(4):
            await writer.append(b"%d" % number)
        cluster.network.heal(client.host, third)
        await writer.aclose()
        # Two disks at once are more than an ack quorum of two can bear.
        for bookie_id in (first, second):
            await cluster.bookies[bookie_id].lose_disk()
        for bookie_id in (first, second):
            await cluster.bookies[bookie_id].start()
        with pytest.raises(RecoveryFailed, match="no bookie can say whether entry"):
            await client.ledgers.recover(writer.ledger_id)
        found = await client.ledgers.recover_accepting_loss(writer.ledger_id)
        end = found.metadata.last_entry
        assert found.metadata.is_closed
        assert end is not None
        assert found.lost_from == end + 1
        assert (await client.ledgers.metadata(writer.ledger_id)).custom[LOST_FROM] == b"%d" % (end + 1)
        assert any(
            line.startswith(f"lost: entry {end + 1} and all entries after it") for line in loss_lines(found)
        )
        again = await client.ledgers.recover_accepting_loss(writer.ledger_id)
        assert again.lost_from == found.lost_from, "it stays on record"


async def test_copying_goes_no_faster_than_it_should(clock: MockClock) -> None:
    slow = attrs.evolve(SMALL, limbo_bytes_per_s=1000)
    async with open_cluster(config=slow) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 2))
        for _ in range(20):
            await writer.append(bytes(500))
        await writer.close()
        victim = cluster.bookies[writer.metadata.last_fragment.ensemble[0]]
        await victim.lose_disk()
        await victim.start()
        began = trio.current_time()
        with trio.fail_after(300):
            await victim.node.repair.wait_done()
        assert victim.node.repair.copied == 20
        assert trio.current_time() - began >= 20 * 500 / 1000 - 1, "a second's worth may be saved up"


async def test_a_loss_is_not_accepted_while_a_bookie_that_may_know_better_is_merely_away(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=Replication(3, 3, 2))
        first, second, third = writer.metadata.last_fragment.ensemble
        cluster.network.cut(client.host, third)
        for number in range(4):
            await writer.append(b"%d" % number)
        cluster.network.heal(client.host, third)
        await writer.aclose()
        await cluster.bookies[first].lose_disk()
        await cluster.bookies[first].start()
        await cluster.bookies[second].kill()
        with pytest.raises(RecoveryFailed, match=f"no answer from {second}, which may hold the entry"):
            await client.ledgers.recover_accepting_loss(writer.ledger_id)
        assert not (await client.ledgers.metadata(writer.ledger_id)).is_closed
        await cluster.bookies[second].start()
        with trio.fail_after(300):
            while True:
                try:
                    found = await client.ledgers.recover_accepting_loss(writer.ledger_id)
                    break
                except RecoveryFailed:
                    await trio.sleep(1)  # The bookie has just come back, and not all clients know it yet.
        assert (found.metadata.last_entry, found.lost_from) == (3, None), "it held all of them"


async def test_an_operator_who_accepts_a_loss_that_there_is_not_loses_nothing(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        ledger_id = await written(client, 5, close=False)
        found = await client.ledgers.recover_accepting_loss(ledger_id)
        assert (found.metadata.last_entry, found.lost_from, found.cut, found.unreadable) == (4, None, [], [])
        assert loss_lines(found) == ["nothing is lost"]


async def test_limbo_ends_only_when_every_copy_is_durable(clock: MockClock) -> None:
    unsynced = attrs.evolve(SMALL, journal_write_data=False)
    async with open_cluster(config=unsynced) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        for number in range(30):  # More than one frame: the first of a ledger goes to the journal.
            await writer.append(b"entry %d" % number + bytes(60_000))
        await writer.close()
        ledger_id = writer.ledger_id
        for host in ("b2", "b3"):
            cluster.network.cut("b1", host)
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()
        await bookie.start()
        engine = bookie.node.engine
        original = engine.loss_marks.change
        pending: list[int] = []

        async def change(change: Callable[[LossMarks], LossMarks]) -> None:
            now = engine.loss_marks.now
            if now.denies_nothing(ledger_id) and not change(now).denies_nothing(ledger_id):
                pending.append(engine.pending_bytes + engine.statistics()["unflushed_bytes"])
            await original(change)

        engine.loss_marks.change = change
        cluster.network.heal()
        await whole_again(cluster, "b1")
        assert bookie.node.repair.copied == 30
        assert pending == [0]


async def test_whole_ledgers_leave_limbo_while_a_slow_one_is_still_being_repaired(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        slow, *others = [await written(client, 3) for _ in range(20)]
        bookie = cluster.bookies["b1"]
        for host in ("b2", "b3"):
            cluster.network.cut("b1", host)
        await bookie.lose_disk()
        await bookie.start()
        go_on_slow = trio.Event()

        async def slowly(call: Call, go_on: GoOn) -> object:
            if call.path == ledger_path(slow):
                await go_on_slow.wait()
            return await go_on()

        bookie.store.faults.append(slowly)
        cluster.network.heal()
        await eventually(lambda: not any(marks(cluster, "b1").denies_nothing(e) for e in others))
        assert marks(cluster, "b1").denies_nothing(slow)
        go_on_slow.set()
        await whole_again(cluster, "b1")
        for ledger_id in (slow, *others):
            assert (await client.ledgers.verify(ledger_id)).under_replicated == []


async def test_a_full_disk_stops_the_copying_and_not_the_bookie(clock: MockClock) -> None:
    """Without the journal's copy, a process that ends would lose entries that are only in memory (D27.8)."""
    unsynced = attrs.evolve(SMALL, journal_write_data=False)
    async with open_cluster(config=unsynced) as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        for number in range(30):  # More than one frame: the first of a ledger goes to the journal.
            await writer.append(b"entry %d" % number + bytes(60_000))
        await writer.close()
        bookie = cluster.bookies["b1"]
        await bookie.lose_disk()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await bookie.start()
        create = bookie.disk.create

        async def create_no_log(path: str, size: int) -> MemoryFile:
            if "/entries/" in path:
                raise DiskFull(f"cannot create {path}: No space left on device")
            return await create(path, size)

        bookie.disk.create = create_no_log
        cluster.network.heal()
        await eventually(lambda: bookie.node.repair.copied == 30)
        await trio.sleep(60)
        assert bookie.is_running
        assert marks(cluster, "b1").denies_nothing(writer.ledger_id), "no copy is durable yet"
        bookie.disk.create = create
        await whole_again(cluster, "b1")
        assert (await client.ledgers.verify(writer.ledger_id)).under_replicated == []


async def test_a_ledger_that_names_the_bookie_only_since_it_was_looked_at_stays_in_limbo(
    clock: MockClock,
) -> None:
    """A repair may have counted on copies that were lost, and have them named only now (D27.6). A flush
    lies between the look at a ledger and its leaving."""
    async with open_cluster(4) as cluster, cluster.client() as client:
        ledger_id = await written(client, 5)
        registry = LedgerRegistry(client.store, client.opened.environment)
        metadata, version = await registry.read(ledger_id)
        (spare,) = cluster.spares(metadata.last_fragment.ensemble)
        await spare.lose_disk()
        others = [other for other in cluster.bookies if other != spare.bookie_id]
        for other in others:
            cluster.network.cut(spare.bookie_id, other)
        await spare.start()
        engine = spare.node.engine
        flush, looked, go_on = engine.flush, trio.Event(), trio.Event()

        async def flush_slowly() -> None:
            looked.set()
            await go_on.wait()
            await flush()

        engine.flush = flush_slowly
        await looked.wait()
        replaced = metadata.last_fragment.ensemble[0]
        changed = metadata.with_replacement(0, replaced, spare.bookie_id, b"another repair")
        await client.store.set(ledger_path(ledger_id), changed.encode(), version=version)
        go_on.set()
        await trio.sleep(60)
        assert marks(cluster, spare.bookie_id).denies_nothing(ledger_id), "what is its own now is not here"
        cluster.network.heal()
        await whole_again(cluster, spare.bookie_id)
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []


async def test_what_a_silent_bookie_may_have_is_not_named_as_lost(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await written(client, 6)
        await cluster.bookies["b1"].lose_disk()
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await cluster.bookies["b1"].start()
        await trio.sleep(300)
        assert cluster.bookies["b1"].node.repair.lost == {}
        assert "no intact copy is left" not in caplog.text
        cluster.network.heal()
        await whole_again(cluster, "b1")
        assert (await client.ledgers.verify(ledger_id)).under_replicated == []


async def test_a_crash_after_a_lost_list_of_gone_ledgers_is_marked_by_the_next_start(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        deleted, kept = await written(client, 1), await written(client, 1)
        await client.ledgers.delete(deleted)
        bookie = cluster.bookies["b1"]
        collector = bookie.node.engine.collector
        assert collector is not None
        await bookie.node.engine.flush()
        for _ in range(3):
            await collector.collect()
        await bookie.stop()
        (path,) = (path for path in bookie.disk.files if path.endswith("/gone"))
        bookie.disk.files[path][-6] ^= 1
        bookie.disk.faults = [Fails("rename", only=lambda path: "/marks" in path)]
        with pytest.raises(StorageError):
            await bookie.start()
        bookie.disk.faults = []
        cluster.network.cut("b1", "b2")
        cluster.network.cut("b1", "b3")
        await bookie.start()
        assert marks(cluster, "b1").refuses_adds(kept)
        assert marks(cluster, "b1").denies_nothing(kept)
