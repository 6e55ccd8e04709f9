"""Reading ledgers: where the end is, following it, and entries whose bookies are dead, slow or damaged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import (
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerNotFound,
    MetadataUnavailable,
    WrongCluster,
)
from ledgerlog.ledger.reader import LAC_CATCH_UP_S, METADATA_LOOK_S, POLLS_ABANDONED_MAX, LedgerReader
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import (
    CONNECT_TIMEOUT_S,
    LONG_POLL_S,
    METADATA_TIMEOUT_S,
    READ_REPLY_BYTES_TARGET,
    REQUEST_TIMEOUT_S,
)
from ledgerlog.log.log import create_log, open_log
from ledgerlog.meta.belonging import StoreRestored
from ledgerlog.meta.store import Versioned
from ledgerlog.model.layout import ledger_path, writable_path
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.checking import check_ledger
from ledgerlog.testing.memory_cluster import Bookie, Client, MemoryCluster, eventually, open_cluster
from ledgerlog.wire.entries import Entries, encode_add

R332 = Replication(3, 3, 2)
STRIPED = Replication(5, 3, 2)


def payloads(count: int) -> list[bytes]:
    return [b"<entry %d of this ledger>" % i for i in range(count)]


async def one_entry(client: Client, other: Client) -> tuple[LedgerWriter, LedgerReader]:
    """Write a ledger with one entry. Returns its writer, and the reader of another client."""
    writer = await client.ledgers.create(replication=R332)
    await writer.append(b"x")
    return writer, await other.ledgers.open(writer.ledger_id)


async def closed_ledger(client: Client, replication: Replication, count: int = 10) -> LedgerReader:
    async with await client.ledgers.create(replication=replication) as writer:
        await writer.append_many(payloads(count))
    await trio.sleep(0.1)
    return await client.ledgers.open(writer.ledger_id)


def bookies(cluster: MemoryCluster, reader: LedgerReader, entry_id: int = 0) -> list[Bookie]:
    """The bookies of an entry."""
    return cluster.bookies_of(reader.metadata.bookies_of(entry_id))


async def damage(bookie: Bookie, *needles: bytes) -> None:
    """Damage the bookie's copies: on the disk, and no longer in its memory. After a clean stop it reads no
    journal and finds the damage when it is asked for the entry."""
    await bookie.stop()
    for needle in needles:
        assert bookie.flip_byte(needle), "the bookie has no such entry"
    await bookie.start()


# --- the end of an open ledger --------------------------------------------------------------------


@pytest.mark.parametrize("replication", [R332, Replication(1, 1, 1), Replication(4, 2, 2), STRIPED], ids=str)
async def test_what_append_returned_can_be_read_at_once(replication: Replication, clock: MockClock) -> None:
    async with (
        open_cluster(replication.ensemble) as cluster,
        cluster.client() as client,
        cluster.client() as other,
    ):
        writer = await client.ledgers.create(replication=replication)
        reader = await other.ledgers.open(writer.ledger_id)
        assert await reader.last_add_confirmed() == -1
        for number in range(50):
            entry_id = await writer.append(b"%d" % number)
            begun = trio.current_time()
            assert await reader.last_add_confirmed() == entry_id
            assert trio.current_time() - begun < LAC_CATCH_UP_S
            assert await reader.read(entry_id, entry_id) == [b"%d" % number]


async def test_what_append_returned_can_be_read_though_a_bookie_is_behind(clock: MockClock) -> None:
    """One of the two answers may say that the entry is there, and the other that it is not."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        reader = await other.ledgers.open(writer.ledger_id)
        await writer.append(b"x")
        behind, *rest = writer.metadata.last_fragment.ensemble
        cluster.network.stall(client.host, behind)
        for number in range(1, 4):
            unasked = rest[number % 2]
            cluster.network.stall(other.host, unasked)
            assert await writer.append(b"y") == number
            assert await reader.last_add_confirmed() == number
            cluster.network.heal(other.host, unasked)


async def test_the_end_is_known_after_bookies_were_replaced_one_after_another(clock: MockClock) -> None:
    async with open_cluster(6) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        reader = await other.ledgers.open(writer.ledger_id)
        before = writer.metadata.last_fragment.ensemble
        await writer.append(b"x")
        for slot in range(3):
            cluster.network.cut(client.host, before[slot])
            await eventually(lambda slot=slot: writer.metadata.last_fragment.ensemble[slot] != before[slot])
        assert not set(before) & set(writer.metadata.last_fragment.ensemble)
        entry_id = await writer.append(b"y")
        assert await reader.last_add_confirmed() == entry_id
        assert await reader.read(0, entry_id) == [b"x", b"y"]


async def test_the_end_of_a_ledger_that_was_closed_meanwhile_is_its_last_entry(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        reader = await other.ledgers.open(writer.ledger_id)
        await writer.append(b"x")
        await writer.close()
        assert await reader.last_add_confirmed() == 0
        assert reader.is_closed


async def test_an_idle_writer_tells_its_lac(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(0.1)
        for bookie in cluster.bookies.values():
            assert bookie.node.engine.lac(writer.ledger_id)[0] == 0


async def test_a_bookie_that_was_away_is_told_the_lac_when_it_is_back(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(0.1)
        for bookie in cluster.bookies.values():
            await bookie.restart()  # A LAC that came without an entry was not synced.
        await eventually(
            lambda: all(b.node.engine.lac(writer.ledger_id)[0] == 0 for b in cluster.bookies.values())
        )
        reader = await other.ledgers.open(writer.ledger_id)
        assert await reader.last_add_confirmed() == 0


async def test_an_entry_that_will_never_be_confirmed_is_waited_for_once(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(0.1)
        for bookie in writer.metadata.last_fragment.ensemble[1:]:
            cluster.network.stall(client.host, bookie)
        writer.push([b"y"])
        await trio.sleep(0.1)
        await writer.aclose()
        reader = await other.ledgers.open(writer.ledger_id)
        waits = []
        for _ in range(3):
            begun = trio.current_time()
            assert await reader.last_add_confirmed() == 0
            waits.append(trio.current_time() - begun)
        assert waits[0] == pytest.approx(LAC_CATCH_UP_S, abs=0.05)
        assert max(waits[1:]) < 0.05


async def test_an_entry_that_was_acknowledged_is_found_though_a_later_one_is_under_way(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(0.1)
        await (await other.ledgers.open(writer.ledger_id)).last_add_confirmed()
        writer.push([b"y"])
        for bookie in writer.metadata.last_fragment.ensemble[1:]:
            cluster.network.stall(client.host, bookie, both=False)
        writer.push([b"z"])
        await writer.wait_confirmed(1)
        reader = await other.ledgers.open(writer.ledger_id)
        assert await reader.last_add_confirmed() == 1
        assert await reader.read(1, 1) == [b"y"]


@pytest.mark.parametrize("is_heard", [True, False], ids=["all answer", "one is silent"])
async def test_an_entry_that_was_waited_for_in_vain_is_found_once_it_is_acknowledged(
    is_heard: bool, clock: MockClock
) -> None:
    """The bookies that the reader asks may hold the same entries as before, and learn a little later that the
    entry is acknowledged."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(0.1)
        reader = await other.ledgers.open(writer.ledger_id)
        first, slow, slower = writer.metadata.last_fragment.ensemble
        for bookie in (slow, slower):
            cluster.network.stall(client.host, bookie)
        if not is_heard:
            cluster.network.stall(other.host, slow)
        writer.push([b"y"])
        await trio.sleep(0.05)
        assert await reader.last_add_confirmed() == 0
        cluster.network.stall(client.host, first)
        cluster.network.heal(client.host, slow)
        await writer.wait_confirmed(1)

        async def tell_later() -> None:
            await trio.sleep(LAC_CATCH_UP_S / 2)
            cluster.network.heal(client.host, first)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_later)
            assert await reader.last_add_confirmed() == 1
        assert await reader.read(1, 1) == [b"y"]


async def test_reading_does_not_disturb_the_writer(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        for number in range(20):
            await writer.append(b"x")
            reader = await other.ledgers.open(writer.ledger_id)
            assert await reader.last_add_confirmed() == number
            with pytest.raises(EntryNotFound):
                await reader.read(0, number + 1)
        assert not (await other.ledgers.metadata(writer.ledger_id)).is_closed
        assert await writer.close() == 19


async def test_the_end_is_unavailable_where_no_bookie_answers(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        _, reader = await one_entry(client, other)
        cluster.network.cut(other.host, "*")
        with pytest.raises(EntryUnavailable):
            await reader.last_add_confirmed()
        cluster.network.heal()
        cluster.network.stall(other.host, "*")
        begun = trio.current_time()
        with pytest.raises(EntryUnavailable):
            await reader.last_add_confirmed()
        assert trio.current_time() - begun <= REQUEST_TIMEOUT_S + 1


async def test_the_end_is_unavailable_if_too_few_bookies_answer(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        behind, *rest = writer.metadata.last_fragment.ensemble
        await eventually(lambda: cluster.bookies[behind].node.engine.lac(writer.ledger_id)[0] == 0)
        cluster.network.stall(client.host, behind)
        assert await writer.append(b"y") == 1
        for bookie in rest:
            cluster.network.cut(other.host, bookie)
        with pytest.raises(EntryUnavailable, match=f"too few bookies of its last ensemble .*{rest[0]}"):
            await reader.last_add_confirmed()
        assert await reader.find_readable() == 0
        assert await reader.is_readable(0)
        assert await reader.read(0, 0) == [b"x"]
        with pytest.raises(EntryUnavailable):
            await reader.is_readable(1)
        with pytest.raises(EntryUnavailable):
            await reader.read(0, 1)
        cluster.network.heal(other.host, rest[0])
        assert await reader.last_add_confirmed() == await reader.find_readable() == 1
        assert await reader.is_readable(1)
        assert not await reader.is_readable(2)
        cluster.network.cut(other.host, "*")
        with pytest.raises(EntryUnavailable, match="no bookie of its last ensemble"):
            await reader.find_readable()


async def test_the_end_is_not_before_the_last_fragment(clock: MockClock) -> None:
    """The bookies that answer cover the new ensemble, and none of them has heard of the last entry."""
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        behind, gone, far = writer.metadata.last_fragment.ensemble
        (spare,) = cluster.bookies.keys() - {behind, gone, far}
        await eventually(lambda: cluster.bookies[behind].node.engine.lac(writer.ledger_id)[0] == 0)
        cluster.network.stall(client.host, behind)
        assert await writer.append(b"y") == 1
        cluster.network.cut(client.host, gone)
        await eventually(lambda: spare in writer.metadata.last_fragment.ensemble)
        cluster.network.stall(client.host, spare)
        cluster.network.cut(other.host, far)
        assert await reader.last_add_confirmed() == 1
        assert reader.metadata.last_fragment.first_entry == 2


async def test_the_end_is_unavailable_if_bookies_go_away_before_it_is_known(clock: MockClock) -> None:
    """A later entry is under way, so the reader asks twice."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        await trio.sleep(0.1)
        *rest, behind = writer.metadata.last_fragment.ensemble
        cluster.network.stall(client.host, behind)
        writer.push([b"y"])
        cluster.network.stall(client.host, rest[1], both=False)
        writer.push([b"z"])
        await writer.wait_confirmed(1)
        reader = await other.ledgers.open(writer.ledger_id)

        async def go_away() -> None:
            await trio.sleep(LAC_CATCH_UP_S / 2)
            for bookie in rest:
                cluster.network.cut(other.host, bookie)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_away)
            with pytest.raises(EntryUnavailable, match="too few bookies"):
                await reader.last_add_confirmed()


async def test_an_older_answer_of_the_store_that_comes_late_does_not_open_a_ledger_again(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        read, late = reader._registry.read, [0.5]

        async def read_late(ledger_id: int) -> tuple[LedgerMetadata, int]:
            found = await read(ledger_id)
            await trio.sleep(late.pop() if late else 0)
            return found

        monkeypatch.setattr(reader._registry, "read", read_late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.refresh)
            await trio.sleep(0.1)
            await writer.close()
            await reader.refresh()
            assert reader.is_closed
        assert reader.is_closed
        assert reader.readable == 0


async def test_an_end_that_one_bookie_tells_in_time_is_known(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the last entry of all that covering bookies hold, so nothing can come after it."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        teller, *rest = writer.metadata.last_fragment.ensemble
        writer.push([b"y"])
        await eventually(lambda: cluster.bookies[teller].node.engine.last_durable(writer.ledger_id) == 1)
        cluster.network.stall(client.host, "*")

        async def wait_in_vain(_: int) -> None:
            for bookie in rest:
                cluster.network.cut(other.host, bookie)
            cluster.network.heal(client.host, "*")
            await writer.wait_confirmed(1)
            await trio.sleep(0.1)

        monkeypatch.setattr(reader, "_poll_any", wait_in_vain)
        assert await reader.last_add_confirmed() == 1


async def test_the_end_is_unavailable_in_time_where_every_bookie_hangs(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        _, reader = await one_entry(client, other)
        assert await reader.last_add_confirmed() == 0
        cluster.network.stall(other.host, "*")
        begun = trio.current_time()
        with pytest.raises(EntryUnavailable):
            await reader.last_add_confirmed()
        assert trio.current_time() - begun <= REQUEST_TIMEOUT_S + 1


async def test_a_dead_bookie_does_not_make_the_question_wait(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        cluster.network.stall(other.host, writer.metadata.last_fragment.ensemble[0])
        reader = await other.ledgers.open(writer.ledger_id)
        for _ in range(3):
            begun = trio.current_time()
            assert await reader.last_add_confirmed() == 0
            assert trio.current_time() - begun < 0.2


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_faults_of_the_metadata_are_raised_as_themselves(is_deleted: bool, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        assert await reader.last_add_confirmed() == 0
        wanted = LedgerNotFound if is_deleted else MetadataUnavailable

        async def fail_later() -> None:
            await trio.sleep(1)
            if is_deleted:
                await client.ledgers.delete(writer.ledger_id)
            else:
                other.store.disconnect()
                # The reader sees a change, and cannot read it.
                await client.store.set(ledger_path(writer.ledger_id), writer.metadata.encode(), version=0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_later)
            with pytest.raises(wanted):
                await forever(reader)
        for question in (reader.last_add_confirmed, reader.refresh):
            with pytest.raises(wanted):
                await question()
        with pytest.raises(wanted):
            await reader.wait_beyond(0)
        with pytest.raises(wanted):
            await reader.read(0, 1)


def away(silent_s: float) -> Callable[[str], Awaitable[None]]:
    """What a store does that is away: for ``silent_s`` it says nothing."""

    async def fail(path: str) -> None:
        await trio.sleep(silent_s)
        raise MetadataUnavailable("no answer")

    return fail


async def forever(reader: LedgerReader) -> None:
    while True:
        await reader.wait_beyond(0)


@pytest.mark.parametrize("silent_s", [0, METADATA_TIMEOUT_S], ids=["refuses", "is silent"])
@pytest.mark.parametrize(
    "trouble", [MetadataUnavailable("no answer"), WrongCluster("another store")], ids=["away", "wrong"]
)
async def test_a_follower_goes_on_without_the_metadata_store_while_new_records_come(
    trouble: MetadataUnavailable, silent_s: float, clock: MockClock
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await create_log(client.opened, "log")
        mine = await open_log(other.opened, "log")
        appended, seen, failed = 0, 0, trio.Event()

        async def follow() -> None:
            nonlocal seen
            try:
                async with mine.read(follow=True) as records:
                    async for _ in records:
                        seen += 1
            except MetadataUnavailable:
                failed.set()

        async def fail(path: str) -> None:
            with trio.move_on_after(silent_s):
                await eventually(lambda: other.store.before_get is None)
                return
            raise trouble

        async with log.writer() as writer, trio.open_nursery() as nursery:

            async def append() -> None:
                nonlocal appended
                await writer.append(b"x")
                appended += 1
                with trio.fail_after(1.1):
                    await eventually(lambda: seen == appended)

            nursery.start_soon(follow)
            await append()
            other.store.before_get = fail
            for pause_s in (7, 7, 0.01, 7, 7, 7, 7):
                await trio.sleep(pause_s)
                await append()
            other.store.before_get = None
            await trio.sleep(60)
            other.store.before_get = fail
            await trio.sleep(METADATA_TIMEOUT_S - LONG_POLL_S - 1)
            other.store.before_get = None
            await trio.sleep(60)
            await writer.roll()
            await append()
            # If nothing comes, it cannot know whether the log continues in another ledger.
            other.store.before_get = fail
            with trio.fail_after(METADATA_TIMEOUT_S + LONG_POLL_S + 3):
                await failed.wait()


async def test_waiting_for_an_entry_ends_though_every_poll_is_shorter_than_the_silence_of_the_store(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        _, reader = await one_entry(client, other)
        await reader.wait_beyond(-1)

        other.store.before_get = away(METADATA_TIMEOUT_S)
        begun = trio.current_time()
        with pytest.raises(MetadataUnavailable, match="no answer"), trio.fail_after(60):
            await forever(reader)
        assert METADATA_TIMEOUT_S <= trio.current_time() - begun <= METADATA_TIMEOUT_S + LONG_POLL_S + 1
        other.store.before_get = None
        assert await reader.wait_beyond(0) == 0


@pytest.mark.parametrize("silent_s", [0, METADATA_TIMEOUT_S], ids=["refuses", "is silent"])
async def test_followers_of_one_log_end_together_if_the_store_stays_away(
    silent_s: float, clock: MockClock
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await create_log(client.opened, "log")
        mine = await open_log(other.opened, "log")
        ended: list[float] = []
        failures: list[MetadataUnavailable] = []

        async def follow() -> None:
            async with mine.read(follow=True) as records:
                await anext(records)
                with pytest.raises(MetadataUnavailable) as caught:
                    await anext(records)
            ended.append(trio.current_time())
            failures.append(caught.value)

        async with log.writer() as writer:
            await writer.append(b"x")
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for _ in range(12):
                        nursery.start_soon(follow)
                    await trio.sleep(2)
                    other.store.before_get = away(silent_s)
        assert max(ended) - min(ended) <= METADATA_LOOK_S
        assert len(set(map(id, failures))) == 12, "tasks share an exception, and with it a traceback"


async def test_a_follower_with_a_slow_store_goes_on_when_its_bookies_come_back(clock: MockClock) -> None:
    async with (
        open_cluster() as cluster,
        cluster.client() as client,
        cluster.client(store_latency_s=0.3) as other,
    ):
        log = await create_log(client.opened, "log")
        mine = await open_log(other.opened, "log")
        async with log.writer() as writer, mine.read(follow=True) as records:
            await writer.append(b"a")
            assert (await anext(records)).data == b"a"
            for bookie in cluster.bookies:
                cluster.network.cut(other.host, bookie)
            await trio.sleep(METADATA_TIMEOUT_S + 2 * LONG_POLL_S)
            cluster.network.heal()
            await writer.append(b"b")
            with trio.fail_after(METADATA_TIMEOUT_S):
                assert (await anext(records)).data == b"b"


@pytest.mark.parametrize(("latency_s", "stalled"), [(2, 0), (0.01, 2)], ids=["slow store", "stalled bookies"])
async def test_a_follower_goes_on_in_the_next_ledger_however_long_it_takes_to_find_it(
    latency_s: float, stalled: int, clock: MockClock
) -> None:
    guaranteed = Replication(3, 3, 2, guaranteed=True)
    async with (
        open_cluster() as cluster,
        cluster.client(replication=guaranteed) as client,
        cluster.client(store_latency_s=latency_s) as other,
    ):
        log = await create_log(client.opened, "log")
        mine = await open_log(other.opened, "log")
        async with log.writer() as writer, trio.open_nursery() as nursery:
            await writer.append(b"a")
            async with mine.read(follow=True) as records:
                assert (await anext(records)).data == b"a"
                ledger_id = writer.statistics().ledger_id
                ensemble = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
                # The older ledger stays open, because it waits for all copies.
                cluster.network.cut(client.host, ensemble[0])
                for bookie in ensemble[:stalled]:
                    cluster.network.stall(other.host, bookie)
                await writer.append(b"b")
                nursery.start_soon(writer.roll)
                await eventually(lambda: writer.statistics().ledger_id != ledger_id)
                await writer.append(b"c")
                with trio.fail_after(60):
                    assert [(await anext(records)).data for _ in range(2)] == [b"b", b"c"]
                assert not (await client.ledgers.metadata(ledger_id)).is_closed
            cluster.network.heal()


async def test_waiting_for_an_entry_ends_at_once_if_the_store_was_restored(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        _, reader = await one_entry(client, other)
        await reader.wait_beyond(-1)

        async def refuse(path: str) -> None:
            raise StoreRestored("restored from a backup")

        other.store.before_get = refuse
        begun = trio.current_time()
        with pytest.raises(StoreRestored):
            await reader.wait_beyond(0)
        assert trio.current_time() - begun <= METADATA_LOOK_S


# --- following ------------------------------------------------------------------------------------


async def test_waiting_ends_when_an_entry_is_appended_within_the_poll(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        reader = await other.ledgers.open(writer.ledger_id)
        begun = trio.current_time()
        assert await reader.wait_beyond(-1) == -1
        assert trio.current_time() - begun == pytest.approx(LONG_POLL_S, abs=0.2)
        waited: list[float] = []

        async def wait() -> None:
            assert await reader.wait_beyond(-1) == 0
            waited.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(2)
            await writer.append(b"x")
            appended = trio.current_time()
        assert waited[0] - appended < 0.05
        assert await reader.wait_beyond(-1) == 0


@pytest.mark.parametrize("who", ["its writer", "somebody else"])
async def test_waiting_ends_when_the_ledger_is_closed(who: str, clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        reader = await client.ledgers.open(writer.ledger_id)
        assert await reader.wait_beyond(-1) == 0

        async def close() -> None:
            await trio.sleep(1)
            await (writer.close() if who == "its writer" else other.ledgers.recover(writer.ledger_id))

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            assert await reader.wait_beyond(0) == 0
        assert reader.is_closed
        assert trio.current_time() - begun < 1.2


async def test_a_close_just_before_the_watch_ends_the_waiting(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        reader = await client.ledgers.open(writer.ledger_id)
        assert await reader.wait_beyond(-1) == 0
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.close)
            assert await reader.wait_beyond(0) == 0
        assert reader.is_closed
        assert trio.current_time() - begun < METADATA_LOOK_S + 0.2


async def test_following_gives_an_entry_that_was_confirmed_with_the_close(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"0")
        reader = await client.ledgers.open(writer.ledger_id)
        async with aclosing(reader.follow()) as entries:
            assert await anext(entries) == (0, b"0")
            await writer.append(b"1")
            await writer.close()
            await reader.refresh()
            assert [entry async for entry in entries] == [(1, b"1")]


async def test_following_gives_every_entry_once_and_ends_with_the_ledger(clock: MockClock) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        reader = await other.ledgers.open(writer.ledger_id)
        seen: list[tuple[int, bytes]] = []

        async def follow() -> None:
            async with aclosing(reader.follow()) as entries:
                async for entry in entries:
                    assert entry[0] <= writer.last_add_confirmed
                    seen.append(entry)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for number, payload in enumerate(payloads(60)):
                await writer.append(payload)
                await trio.sleep(0.01 * (number % 7))
                if number in (15, 35):
                    await cluster.bookies[writer.metadata.last_fragment.ensemble[number % 3]].kill()
            await writer.close()
        assert seen == list(enumerate(payloads(60)))
        async with aclosing(reader.follow(58)) as entries:
            assert [entry_id async for entry_id, _ in entries] == [58, 59]


async def test_who_follows_a_busy_writer_leaves_the_metadata_store_alone(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        looks: list[float] = []
        get = other.store.inner.get

        async def counted(path: str) -> Versioned | None:
            looks.append(trio.current_time())
            return await get(path)

        monkeypatch.setattr(other.store.inner, "get", counted)
        begun = trio.current_time()
        for number in range(1, 300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"x")
                assert await reader.wait_beyond(number - 1) == number
        await writer.close()
        while not reader.is_closed:
            await reader.wait_beyond(299)
        waited = trio.current_time() - begun
        assert len(looks) <= 2 + waited / METADATA_LOOK_S
        assert len(looks) < 60


async def test_following_goes_on_while_one_bookie_hears_nothing_of_the_writer(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        cluster.network.stall(client.host, writer.metadata.last_fragment.ensemble[0])
        for number in range(1, 100):
            await writer.append(b"x")
            assert await reader.wait_beyond(number - 1) >= number
        await writer.close()


async def test_a_follower_leaves_few_polls_behind_at_a_bookie_that_hears_nothing_of_the_writer(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        writer, reader = await one_entry(client, other)
        deaf = writer.metadata.last_fragment.ensemble[0]
        cluster.network.stall(client.host, deaf)
        begun = trio.current_time()
        for number in range(1, 1500):
            await writer.append(b"x")
            assert await reader.wait_beyond(number - 1) >= number
        assert trio.current_time() - begun < LONG_POLL_S, "all of them would still be waited for"
        connection = other.opened.pool.connection(deaf)
        assert connection.statistics().losses == 0
        assert connection.abandoned_requests <= 2 * POLLS_ABANDONED_MAX
        await writer.close()


# --- entries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("replication", [R332, Replication(4, 2, 2), STRIPED], ids=str)
async def test_ranges_and_batches_are_the_entries_in_order(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, replication, 300)
        expected = payloads(300)
        assert await reader.read(0, 299) == expected
        assert await reader.read(17, 17) == expected[17:18]
        assert await reader.read(123, 250) == expected[123:251]
        at = 0
        while at < 300:
            batch = await reader.read_batch(at, 299, bytes_max=1000)
            assert 1 <= len(batch) <= 60
            assert batch == expected[at : at + len(batch)]
            at += len(batch)
        assert len(await reader.read_batch(0, 299, bytes_max=1)) >= 1


async def test_entries_larger_than_a_reply_are_read_one_by_one(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        sizes = [600_000, 10, 600_000, 600_000, 0, 5]
        assert sum(sizes) > READ_REPLY_BYTES_TARGET
        async with await client.ledgers.create(replication=R332) as writer:
            for size in sizes:
                await writer.append(bytes(size))
        reader = await client.ledgers.open(writer.ledger_id)
        assert [len(payload) for payload in await reader.read(0, 5)] == sizes


async def test_what_is_no_range_is_refused(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        reader = await closed_ledger(client, R332)
        for first, last in ((-1, 3), (4, 3)):
            with pytest.raises(InvalidArgument):
                await reader.read(first, last)
        with pytest.raises(InvalidArgument):
            await reader.read_batch(0, 3, bytes_max=0)
        with pytest.raises(EntryNotFound):
            await reader.read(0, 10)
        with pytest.raises(LedgerNotFound):
            await client.ledgers.open(12345)


@pytest.mark.parametrize("how", ["dead", "hung", "damaged"])
@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
async def test_one_copy_is_enough(replication: Replication, how: str, clock: MockClock) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, replication, 20)
        for bookie in bookies(cluster, reader)[1:]:
            if how == "dead":
                await bookie.kill()
            elif how == "hung":
                cluster.network.stall(client.host, bookie.bookie_id)
            else:
                await damage(bookie, b"<entry 0 ", b"<entry 5 ")
        begun = trio.current_time()
        assert await reader.read(0, 0) == payloads(1)
        assert trio.current_time() - begun <= 2 * REQUEST_TIMEOUT_S + 1
        begun = trio.current_time()
        for _ in range(3):
            assert await reader.read(0, 0) == payloads(1)
        assert trio.current_time() - begun < 0.1, "who failed once is asked last"
        assert await reader.read(5, 5) == payloads(6)[5:]


@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
async def test_absent_unavailable_and_corrupt_are_three_answers(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, replication, 20)
        holders = bookies(cluster, reader, 7)
        for bookie in holders:
            await damage(bookie, b"<entry 7 ")
        with pytest.raises(EntryCorrupt):
            await reader.read(7, 7)
        with pytest.raises(EntryCorrupt):
            await reader.read(0, 19)
        assert await reader.read(8, 19) == payloads(20)[8:]
        await holders[1].kill()
        with pytest.raises(EntryUnavailable):
            await reader.read(7, 7)
        for bookie in holders:
            if bookie.is_running:
                await bookie.kill()
        with pytest.raises(EntryUnavailable):
            await reader.read(7, 7)


async def test_an_entry_that_every_bookie_denies_does_not_exist(clock: MockClock) -> None:
    async with open_cluster(6) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, R332)
        strangers = cluster.spares(reader.metadata.last_fragment.ensemble)
        moved = attrs.evolve(
            reader.metadata, fragments=(Fragment(0, tuple(bookie.bookie_id for bookie in strangers)),)
        )
        path = ledger_path(reader.ledger_id)
        node = await client.store.get(path)
        assert node is not None
        await client.store.set(path, moved.encode(), version=node.version)
        lied_to = await client.ledgers.open(reader.ledger_id)
        with pytest.raises(EntryNotFound):
            await lied_to.read(3, 3)
        await strangers[0].kill()
        with pytest.raises(EntryUnavailable):
            await lied_to.read(3, 3)


async def test_entries_that_repair_moved_are_found_by_an_open_reader(clock: MockClock) -> None:
    """Repair copied the entries to another bookie and changed the metadata, and the old copies are gone."""
    async with open_cluster(6) as cluster, cluster.client() as client:
        old = await closed_ledger(client, R332)
        new = await closed_ledger(client, R332)
        # The same entries under another id stand in for the copies that repair made: the reader that is open
        # on the old ledger must look at the metadata again when its bookies are gone.
        for bookie in bookies(cluster, old):
            if bookie not in bookies(cluster, new):
                await bookie.kill()
        spares = [bookie for bookie in cluster.bookies.values() if bookie.is_running]
        assert len(spares) >= 3
        async with cluster.client() as repairer:
            await copy(cluster, repairer, old, spares[:3])
        for bookie in cluster.bookies.values():
            if bookie not in spares[:3] and bookie.is_running:
                await bookie.kill()
        assert await old.read(0, 9) == payloads(10)


async def test_entries_that_repair_moved_are_found_though_another_task_has_just_read_the_metadata(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(6) as cluster, cluster.client() as client:
        old = await closed_ledger(client, R332)
        spares = [each for each in cluster.bookies.values() if each not in bookies(cluster, old)]
        async with cluster.client() as repairer:
            await copy(cluster, repairer, await repairer.ledgers.open(old.ledger_id), spares)
        for bookie in bookies(cluster, old):
            await bookie.kill()
        read_once = old._read_once

        async def read_beside_another_task(first: int, last: int, bytes_max: int) -> list[bytes]:
            try:
                return await read_once(first, last, bytes_max)
            except EntryUnavailable:
                await old.refresh()
                raise

        monkeypatch.setattr(old, "_read_once", read_beside_another_task)
        assert await old.read(0, 9) == payloads(10)


async def copy(cluster: MemoryCluster, client: Client, reader: LedgerReader, targets: list[Bookie]) -> None:
    """Do what repair does: read the entries, write them to the targets, name the targets in the metadata."""
    entries = await reader.read(0, 9)
    frame = encode_add(
        Entries.build(reader.ledger_id, 0, entries), lac=9, lafr=-1, key=reader.metadata.key, recovery=True
    )
    for target in targets:
        sink = _Sink()
        connection = client.opened.pool.connection(target.bookie_id)
        connection.attach(sink)
        await eventually(lambda connection=connection: connection.is_connected)
        connection.send_add(frame, sink, 0, 9)
        await eventually(lambda sink=sink: sink.is_done)
        connection.detach(sink)
    path = ledger_path(reader.ledger_id)
    node = await client.store.get(path)
    assert node is not None
    moved = attrs.evolve(
        reader.metadata, fragments=(Fragment(0, tuple(target.bookie_id for target in targets)),)
    )
    await client.store.set(path, moved.encode(), version=node.version)


class _Sink:
    is_done = False

    def on_add_ok(self, *args: object) -> None:
        self.is_done = True

    def on_add_refused(self, *args: object) -> None:
        raise AssertionError(args)

    def on_bookie_lost(self, *args: object) -> None: ...

    def on_bookie_connected(self, *args: object) -> None: ...

    def on_batch_end(self) -> None: ...


async def test_many_tasks_may_read_at_once(clock: MockClock) -> None:
    async with open_cluster(5) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, STRIPED, 100)
        await bookies(cluster, reader)[0].kill()
        expected = payloads(100)

        async def read(first: int) -> None:
            assert await reader.read(first, 99) == expected[first:]

        async with trio.open_nursery() as nursery:
            for first in range(0, 100, 5):
                nursery.start_soon(read, first)


# --- verification ---------------------------------------------------------------------------------


@pytest.mark.parametrize("replication", [R332, Replication(4, 2, 2), STRIPED], ids=str)
async def test_verification_of_a_healthy_ledger_finds_nothing_missing(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, replication, 2 * replication.ensemble + 1)
        found = await client.ledgers.verify(reader.ledger_id)
        assert found.entries == 2 * replication.ensemble + 1
        assert (found.under_replicated, found.unreadable, found.unreachable) == ([], [], [])
        empty = await closed_ledger(client, replication, 0)
        assert (await client.ledgers.verify(empty.ledger_id)).entries == 0


@pytest.mark.parametrize("replication", [R332, STRIPED], ids=str)
async def test_verification_tells_missing_unreadable_and_damaged_entries(
    replication: Replication, clock: MockClock
) -> None:
    async with open_cluster(replication.ensemble) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, replication, 20)
        one, *others = bookies(cluster, reader, 6)
        await damage(one, b"<entry 6 ")
        found = await client.ledgers.verify(reader.ledger_id)
        assert (found.under_replicated, found.unreadable) == ([6], [])
        assert found.damaged == [(6, one.bookie_id)]
        for other in others:
            await damage(other, b"<entry 6 ")
        found = await client.ledgers.verify(reader.ledger_id)
        assert (found.under_replicated, found.unreadable) == ([6], [6])
        await one.kill()
        found = await client.ledgers.verify(reader.ledger_id)
        assert found.unreachable == [one.bookie_id]
        mine = [e for e in range(20) if one.bookie_id in reader.metadata.bookies_of(e)]
        assert found.under_replicated == sorted({*mine, 6})


async def test_verification_of_an_open_ledger_looks_at_what_its_bookies_hold(clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many(payloads(5))
        await trio.sleep(0.1)
        found = await other.ledgers.verify(writer.ledger_id)
        assert (found.entries, found.under_replicated) == (5, [])
        await cluster.bookies[writer.metadata.last_fragment.ensemble[0]].kill()
        await writer.append_many(payloads(5))
        await trio.sleep(0.1)
        found = await other.ledgers.verify(writer.ledger_id)
        assert (found.entries, found.unreadable) == (10, [])
        with pytest.raises(LedgerNotFound):
            await other.ledgers.verify(4711)


async def test_verification_of_an_open_ledger_sees_what_is_below_the_write_quorum(clock: MockClock) -> None:
    """The third copies are on their way, and verification says so: nobody else calls them missing."""
    async with open_cluster(3) as cluster, cluster.client() as client, cluster.client() as other:
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many(payloads(3))
        await trio.sleep(0.1)
        cluster.network.stall(client.host, writer.metadata.last_fragment.ensemble[1])
        await writer.append_many(payloads(4))
        found = await other.ledgers.verify(writer.ledger_id)
        assert (found.entries, found.under_replicated, found.unreadable) == (7, [3, 4, 5, 6], [])
        assert (found.unreachable, found.unknown_from) == ([], None)
        pace = Pace(1000)
        for check_all in (False, True):
            faults = await check_ledger(other.opened, writer.ledger_id, check_all=check_all, pace=pace)
            assert faults.doubtful == ()
        cluster.network.heal()


async def test_verification_asks_a_bookie_where_it_serves_now_and_not_where_it_served_before(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, R332)
        one, *_ = bookies(cluster, reader, 0)
        news, go_on = trio.Event(), trio.Event()

        async def news_are_slow(path: str) -> None:
            if not news.is_set():
                news.set()
                await go_on.wait()

        client.store.before_get = news_are_slow
        one.address = f"{one.bookie_id}-elsewhere"
        await one.restart()
        await news.wait()
        found = await client.ledgers.verify(reader.ledger_id)
        assert (found.under_replicated, found.unreachable) == ([], [])
        go_on.set()


async def test_verification_asks_a_bookie_whose_connection_breaks_a_second_time(clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        reader = await closed_ledger(client, R332)
        one, *_ = bookies(cluster, reader, 0)
        cluster.network.stall(client.host, one.bookie_id)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def verify() -> None:
                found = await client.ledgers.verify(reader.ledger_id)
                assert (found.under_replicated, found.unreachable) == ([], [])

            await wait_all_tasks_blocked()
            cluster.network.reset(client.host, one.bookie_id)
            cluster.network.heal()


async def test_a_look_at_the_registrations_that_began_earlier_does_not_undo_a_later_one(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        directory = client.opened.bookies
        begun, go_on = trio.Event(), trio.Event()

        async def the_first_is_slow(path: str) -> None:
            if path == writable_path("b3") and not begun.is_set():
                begun.set()
                await go_on.wait()

        client.store.before_get = the_first_is_slow
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.refresh)
            await begun.wait()  # The reader remembers the address where b1 served before.
            one = cluster.bookies["b1"]
            one.address = "b1-elsewhere"
            await one.restart()
            await eventually(lambda: directory.writable()[0].address == "b1-elsewhere")
            go_on.set()
        assert directory.writable()[0].address == "b1-elsewhere"


async def test_a_bookie_that_is_not_registered_is_looked_for_where_it_was_while_the_store_hangs(
    clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster, cluster.client() as client:
        directory = client.opened.bookies
        one = directory.writable()[0]
        await cluster.bookies[one.bookie_id].stop()
        await eventually(lambda: not directory.is_registered(one.bookie_id))
        client.store.is_hanging = True
        with trio.fail_after(CONNECT_TIMEOUT_S / 2):
            assert await directory.resolve(one.bookie_id) == one
