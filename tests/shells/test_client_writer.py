"""A ledger's writer on a healthy cluster: order, numbers, the window, the end."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledgerlog.errors import AppendUnknown, InvalidArgument, LedgerClosed, RecordTooLarge
from ledgerlog.limits import ENTRY_BYTES_MAX, WRITER_WINDOW_BYTES, WRITER_WINDOW_ENTRIES
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import eventually, open_cluster

R332 = Replication(3, 3, 2)


async def test_entries_are_numbered_from_zero_and_read_back_as_they_were(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        assert (writer.last_add_pushed, writer.last_add_confirmed) == (-1, -1)
        assert [await writer.append(payload) for payload in (b"a", b"", b"c" * 10_000)] == [0, 1, 2]
        assert (writer.last_add_pushed, writer.last_add_confirmed) == (2, 2)
        assert await writer.close() == 2
        assert await client.contents(writer.ledger_id) == [b"a", b"", b"c" * 10_000]


async def test_append_many_gives_consecutive_ids_whoever_appends_meanwhile(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        ids: dict[int, range] = {}

        async def append(number: int) -> None:
            # Together far more than the window.
            ids[number] = await writer.append_many([b"%d/%d" % (number, i) for i in range(9_000)])

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(append, number)
        assert await writer.append_many([]) == range(36_000, 36_000)
        await writer.close()
        contents = await client.contents(writer.ledger_id)
        assert len(contents) == 36_000
        for number, taken in ids.items():
            assert len(taken) == 9_000
            assert contents[taken.start : taken.stop] == [b"%d/%d" % (number, i) for i in range(9_000)]


async def test_the_latency_of_appends_does_not_count_the_time_since_a_call_without_entries(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append_many([])
        await trio.sleep(10)
        await writer.append(b"x")
        assert writer._counts.append_s.sum_s < 10
        assert writer._counts.append_s.count == 1


async def test_what_is_pushed_is_confirmed_by_flush(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        assert writer.push([b"a", b"b"]) == 0
        assert writer.push([]) == 2
        assert writer.push([b"c"]) == 2
        assert writer.last_add_confirmed == -1
        await writer.flush()
        assert writer.last_add_confirmed == 2
        await writer.wait_confirmed(1)


async def test_appends_return_in_the_order_of_their_entries(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        returned: list[int] = []

        async def append(size: int) -> None:
            returned.append(await writer.append(b"x" * size))
            assert writer.last_add_confirmed >= returned[-1]

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(append, 1 + (number * 7919) % 5000)
        assert sorted(returned) == list(range(300))
        assert max(abs(at - entry_id) for at, entry_id in enumerate(returned)) < 300
        await writer.close()


async def test_an_entry_that_is_too_large_is_refused_and_nothing_of_its_call_is_written(
    clock: MockClock,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        with pytest.raises(RecordTooLarge):
            await writer.append(bytes(ENTRY_BYTES_MAX + 1))
        with pytest.raises(RecordTooLarge):
            await writer.append_many([b"fits", bytes(ENTRY_BYTES_MAX + 1)])
        assert writer.last_add_pushed == 0
        assert await writer.append(b"second") == 1


async def test_what_is_not_bytes_is_refused_before_it_can_stand_in_the_way(clock: MockClock) -> None:
    class Tagged(bytes):
        pass

    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        for wrong in ("text", bytearray(b"may change"), memoryview(b"m"), None, [1]):
            with pytest.raises(InvalidArgument):
                await writer.append_many([b"x", wrong])
        assert await writer.append(Tagged(b"fine")) == 0
        await writer.close()
        assert await client.contents(writer.ledger_id) == [b"fine"]


# --- the window -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "count"),
    [(b"", WRITER_WINDOW_ENTRIES), (bytes(512 * 1024), WRITER_WINDOW_BYTES // (512 * 1024))],
)
async def test_appends_wait_while_the_window_is_full_and_go_on_when_it_has_room(
    payload: bytes, count: int, clock: MockClock
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        cluster.network.stall(client.host, "*")
        for _ in range(count):
            assert writer.has_room
            writer.push([payload])
        assert not writer.has_room
        done: list[int] = []

        async def append() -> None:
            done.append(await writer.append(b"waits"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(append)
            await trio.sleep(1)
            assert writer.last_add_pushed == count
            cluster.network.heal()
        assert sorted(done) == [count + 1 + i for i in range(5)]


async def test_who_waits_for_room_looks_again_when_others_have_taken_it(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        writer._window_entries = 2
        cluster.network.stall(client.host, "*")
        most = 0

        async def append() -> None:
            nonlocal most
            await writer.wait_room()
            entry_id = writer.push([b"x"])
            most = max(most, entry_id - writer.last_add_confirmed)
            await writer.wait_confirmed(entry_id)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(append)
            await trio.sleep(0.1)
            cluster.network.heal()
        assert most == 2


async def test_what_was_confirmed_just_before_the_end_is_acknowledged(clock: MockClock) -> None:
    """An ack quorum confirms the entry, and a bookie refuses another add in the same burst of answers."""
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        cluster.network.stall(client.host, "*")
        entry_id = writer.push([b"x"])
        core = writer._core
        for bookie in core.pending.ensemble[:2]:
            core.on_add_ok(bookie, entry_id, entry_id)
        core.on_fenced(core.pending.ensemble[2])
        writer._act()
        await writer.wait_confirmed(entry_id)


async def test_who_waits_for_room_and_is_cancelled_takes_nobodys_wake_up(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        cluster.network.stall(client.host, "*")
        writer.push([b""] * WRITER_WINDOW_ENTRIES)
        done: list[int] = []

        async def append(scope: trio.CancelScope) -> None:
            with scope:
                done.append(await writer.append(b"waits"))

        scopes = [trio.CancelScope() for _ in range(20)]
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(append, scope)
            await trio.testing.wait_all_tasks_blocked()
            for scope in scopes[::2]:
                scope.cancel()
            cluster.network.heal()
        assert len(done) == 10
        assert writer.last_add_pushed == WRITER_WINDOW_ENTRIES + 10


async def test_a_cancelled_append_that_was_sent_does_not_disturb_the_others(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        with trio.move_on_after(0) as scope:
            await writer.append(b"given up")
        assert scope.cancelled_caught
        assert await writer.append(b"next") == 1
        await writer.close()
        assert await client.contents(writer.ledger_id) == [b"given up", b"next"]


# --- the end --------------------------------------------------------------------------------------


async def test_close_waits_for_what_was_appended(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        writer.push([b"x"] * 20_000)
        assert await writer.close() == 19_999
        assert await writer.close() == 19_999
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert metadata.is_closed
        assert metadata.last_entry == 19_999


async def test_an_empty_ledger_closes_before_its_first_entry(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        assert await writer.close() == -1
        assert await client.contents(writer.ledger_id) == []


async def test_nothing_can_be_appended_once_close_was_called(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        cluster.network.stall(client.host, "*")
        writer.push([b"in time"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.close)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(LedgerClosed):
                await writer.append(b"late")
            with pytest.raises(LedgerClosed):
                await writer.wait_room()
            cluster.network.heal()
        with pytest.raises(LedgerClosed) as refused:
            writer.push([b"later"])
        assert refused.value.last_entry == 1
        assert await client.contents(writer.ledger_id) == [b"first", b"in time"]


async def test_who_waits_for_room_when_the_ledger_is_closed_is_told_so(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        cluster.network.stall(client.host, "*")
        writer.push([b""] * WRITER_WINDOW_ENTRIES)
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                with pytest.raises(LedgerClosed):
                    await writer.append(b"waits")

            nursery.start_soon(append)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(writer.close)
            await trio.testing.wait_all_tasks_blocked()
            cluster.network.heal()
        assert writer.last_add_pushed == WRITER_WINDOW_ENTRIES


async def test_a_cancelled_close_that_still_waits_leaves_the_writer_usable(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        cluster.network.stall(client.host, "*")
        writer.push([b"second"])
        with trio.move_on_after(1):
            await writer.close()
        cluster.network.heal()
        assert await writer.append(b"third") == 2
        assert await writer.close() == 2


async def test_close_with_a_time_limit_fails_what_is_not_confirmed_by_then(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"first")
        for bookie in cluster.bookies:
            cluster.network.stall(client.host, bookie)
        writer.push([b"lost", b"lost"])
        begun = trio.current_time()
        assert await writer.close(timeout_s=2) == 0
        assert trio.current_time() - begun < 3
        with pytest.raises(LedgerClosed):
            await writer.wait_confirmed(1)
        cluster.network.heal()
        assert await client.contents(writer.ledger_id) == [b"first"]


async def test_a_writer_that_is_left_normally_closes_its_ledger(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        async with await client.ledgers.create(replication=R332) as writer:
            await writer.append(b"x")
            writer.push([b"y"])
        assert (await client.ledgers.metadata(writer.ledger_id)).last_entry == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_writer_that_is_left_by_an_error_leaves_its_ledger_open(
    is_cancelled: bool, clock: MockClock
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        with trio.CancelScope() as scope:
            try:
                async with await client.ledgers.create(replication=R332) as writer:
                    await writer.append(b"x")
                    if is_cancelled:
                        scope.cancel()
                        await trio.sleep_forever()
                    raise KeyError("the caller's own")
            except KeyError:
                assert not is_cancelled
        with pytest.raises(AppendUnknown):
            await writer.append(b"y")
        metadata = await client.ledgers.metadata(writer.ledger_id)
        assert not metadata.is_closed
        assert (await client.ledgers.recover(writer.ledger_id)).last_entry == 0


async def test_a_writer_that_is_given_up_fails_what_is_pending(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        await writer.append(b"x")
        cluster.network.stall(client.host, "*")
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                with pytest.raises(AppendUnknown):
                    await writer.append(b"y")

            nursery.start_soon(append)
            await trio.testing.wait_all_tasks_blocked()
            await writer.aclose()
        await writer.aclose()
        for ended in (writer.close, writer.wait_room):
            with pytest.raises(AppendUnknown):
                await ended()


async def test_leaving_the_client_ends_its_writers(clock: MockClock) -> None:
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        failures: list[Exception] = []
        async with cluster.client() as client:
            writer = await client.ledgers.create(replication=R332)
            await writer.append(b"x")
            cluster.network.stall(client.host, "*")

            async def append() -> None:
                try:
                    await writer.append(b"y")
                except AppendUnknown as failure:
                    failures.append(failure)

            nursery.start_soon(append)
            await trio.testing.wait_all_tasks_blocked()
        await eventually(lambda: bool(failures))
        with pytest.raises(AppendUnknown):
            writer.push([b"z"])
        with pytest.raises(AppendUnknown):
            await writer.close()


async def test_progress_is_told_once_for_each_batch_and_at_the_end(clock: MockClock) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        writer = await client.ledgers.create(replication=R332)
        seen: list[tuple[int, bool]] = []
        writer.set_progress_callback(
            lambda: seen.append((writer.last_add_confirmed, writer.failure is not None))
        )
        await writer.append_many([b"x"] * 1000)
        told = len(seen)
        assert 1 <= told < 20
        assert seen[-1] == (999, False)
        await writer.aclose()
        assert seen[told:] == [(999, True)]


async def test_what_the_body_of_a_client_raises_comes_out_as_it_is(clock: MockClock) -> None:
    class Own(Exception):
        pass

    async with open_cluster() as cluster:
        for error in (Own(), LedgerClosed(1), KeyboardInterrupt()):
            with pytest.raises(type(error)) as caught:
                async with cluster.client():
                    raise error
            assert caught.value is error
