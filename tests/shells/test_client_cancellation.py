"""Every public call of the ledger client, cancelled at each of its checkpoints in turn.

``at_each_checkpoint`` makes the call again and again, each time in a scope that is cancelled when the call's
task, or a task that it started, yields for the k-th time, for k = 1, 2, ... until the call runs through.
After each attempt the handle must be usable or cleanly dead, and no other caller may have lost anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from ledgerlog.errors import AppendUnknown, LedgerClosed, LedgerNotFound
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import WRITER_WINDOW_ENTRIES
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster

R332 = Replication(3, 3, 2)

Call = Callable[[], Awaitable[object]]


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when a task, or one that descends from it, yields for the k-th time."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, k: int) -> None:
        self._task = task
        self._scope = scope
        self._left = k

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        ancestor: trio.lowlevel.Task | None = task
        while ancestor is not None and ancestor is not self._task:
            nursery = ancestor.parent_nursery
            ancestor = None if nursery is None else nursery.parent_task
        if ancestor is not None:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def cancelled_at(k: int, call: Call) -> bool:
    """Whether the cancellation came before the call was done."""
    scope = trio.CancelScope()

    async def run() -> None:
        instrument = CancelAt(trio.lowlevel.current_task(), scope, k)
        trio.lowlevel.add_instrument(instrument)
        try:
            with scope:
                await call()
        finally:
            trio.lowlevel.remove_instrument(instrument)

    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
    return scope.cancelled_caught


async def at_each_checkpoint(attempt: Callable[[Callable[[Call], Awaitable[bool]]], Awaitable[None]]) -> int:
    """Call ``attempt`` for k = 1, 2, ... with a function that cancels a call at its k-th checkpoint, until a
    call runs through. Return how many calls were made."""
    k = 0
    is_through = False
    while not is_through:
        k += 1
        was_cancelled: list[bool] = []

        async def cancelled(call: Call, k: int = k, found: list[bool] = was_cancelled) -> bool:
            found.append(await cancelled_at(k, call))
            return found[-1]

        await attempt(cancelled)
        is_through = not was_cancelled[0]
        assert k < 2_000
    return k


@asynccontextmanager
async def cluster_of(count: int = 3) -> AsyncIterator[tuple[MemoryCluster, Client, Client]]:
    async with open_cluster(count) as cluster, cluster.client() as client, cluster.client() as other:
        yield cluster, client, other


async def check_usable(writer: LedgerWriter, other: Client) -> None:
    """The writer goes on, in order, and its ledger is whole."""
    before = writer.last_add_pushed
    assert await writer.append(b"after") == before + 1
    assert await writer.append_many([b"and", b"on"]) == range(before + 2, before + 4)
    assert await writer.close() == before + 3
    assert (await other.contents(writer.ledger_id))[-3:] == [b"after", b"and", b"on"]


# --- the writer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["append", "append_many", "flush", "wait_confirmed", "wait_room"])
async def test_a_cancelled_call_leaves_the_writer_usable_and_in_order(name: str, clock: MockClock) -> None:
    async with cluster_of() as (_, client, other):

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            writer = await client.ledgers.create(replication=R332)
            await writer.append(b"before")
            writer.push([b"pushed"])
            calls: dict[str, Call] = {
                "append": lambda: writer.append(b"x"),
                "append_many": lambda: writer.append_many([b"x", b"y"]),
                "flush": writer.flush,
                "wait_confirmed": lambda: writer.wait_confirmed(1),
                "wait_room": writer.wait_room,
            }
            await cancelled(calls[name])
            await check_usable(writer, other)

        await at_each_checkpoint(attempt)


async def test_a_cancelled_append_that_waits_for_room_is_not_written(clock: MockClock) -> None:
    async with cluster_of() as (cluster, client, other):

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            writer = await client.ledgers.create(replication=R332)
            await writer.append(b"before")
            cluster.network.stall(client.host, "*")
            writer.push([b""] * WRITER_WINDOW_ENTRIES)

            async def append() -> None:
                await writer.append(b"waits")

            async with trio.open_nursery() as nursery:

                async def heal() -> None:
                    await trio.sleep(0.5)
                    cluster.network.heal()

                nursery.start_soon(heal)
                nursery.start_soon(append)
                was_cancelled = await cancelled(lambda: writer.append(b"cancelled"))
            contents_last = writer.last_add_pushed
            await writer.close()
            contents = await other.contents(writer.ledger_id)
            assert len(contents) == contents_last + 1
            assert contents.count(b"waits") == 1
            assert contents.count(b"cancelled") <= 1
            assert was_cancelled or contents.count(b"cancelled") == 1

        await at_each_checkpoint(attempt)


async def test_a_cancelled_close_leaves_the_writer_usable_or_the_ledger_closed(clock: MockClock) -> None:
    async with cluster_of() as (_, client, other):
        ends = set()

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            writer = await client.ledgers.create(replication=R332)
            await writer.append(b"before")
            writer.push([b"pushed"])
            await cancelled(writer.close)
            try:
                await writer.append(b"after")
                ends.add("usable")
            except LedgerClosed:
                ends.add("closed")
            last = await writer.close()
            assert last == (await other.ledgers.metadata(writer.ledger_id)).last_entry
            assert (await other.contents(writer.ledger_id))[:2] == [b"before", b"pushed"]

        await at_each_checkpoint(attempt)
        assert ends == {"usable", "closed"}


@pytest.mark.parametrize("how", ["aclose", "async with", "error"])
async def test_a_writer_that_is_left_under_cancellation_is_dead_and_its_ledger_can_be_recovered(
    how: str, clock: MockClock
) -> None:
    class Own(Exception):
        pass

    async with cluster_of() as (_, client, other):

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            writer = await client.ledgers.create(replication=R332)
            await writer.append(b"before")
            writer.push([b"pushed"])

            async def leave() -> None:
                if how == "aclose":
                    await writer.aclose()
                elif how == "async with":
                    async with writer:
                        pass
                else:
                    with pytest.raises(Own):
                        async with writer:
                            raise Own

            await cancelled(leave)
            with pytest.raises((AppendUnknown, LedgerClosed)):
                await writer.append(b"after")
            metadata = await other.ledgers.recover(writer.ledger_id)
            assert metadata.last_entry in (0, 1)
            assert (await other.contents(writer.ledger_id))[0] == b"before"

        await at_each_checkpoint(attempt)


async def test_cancelled_appends_under_load_take_nobodys_wake_up(clock: MockClock) -> None:
    async with cluster_of() as (_, client, other):
        writer = await client.ledgers.create(replication=R332)
        acknowledged: dict[int, bytes] = {}
        is_over = False

        async def load(task: int) -> None:
            number = 0
            while not is_over:
                payload = b"%d/%d" % (task, number)
                acknowledged[await writer.append(payload)] = payload
                number += 1
                await trio.sleep(0.0005)

        async with trio.open_nursery() as nursery:
            for task in range(5):
                nursery.start_soon(load, task)

            async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
                await cancelled(lambda: writer.append_many([b"x"] * 10))

            for _ in range(20):
                await at_each_checkpoint(attempt)
            is_over = True
        await writer.close()
        contents = await other.contents(writer.ledger_id)
        assert all(contents[entry_id] == payload for entry_id, payload in acknowledged.items())


# --- ledgers --------------------------------------------------------------------------------------


async def test_a_cancelled_creation_leaves_at_most_an_empty_ledger(clock: MockClock) -> None:
    async with cluster_of() as (_, client, other):

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            before = await other.ledgers.list()
            await cancelled(lambda: client.ledgers.create(replication=R332))
            left = [ledger_id for ledger_id in await other.ledgers.list() if ledger_id not in before]
            assert len(left) <= 1
            for ledger_id in left:
                assert (await other.ledgers.recover(ledger_id)).last_entry == -1
            writer = await client.ledgers.create(replication=R332)
            assert writer.ledger_id not in left
            assert await writer.append(b"x") == 0

        assert await at_each_checkpoint(attempt) >= 3


@pytest.mark.parametrize("name", ["recover", "open"])
async def test_a_cancelled_recovery_can_be_taken_up_by_anybody(name: str, clock: MockClock) -> None:
    async with cluster_of(4) as (cluster, client, other):

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            writer = await client.ledgers.create(replication=R332)
            await writer.append_many([b"a", b"b", b"c"])
            for bookie in writer.metadata.last_fragment.ensemble[1:]:
                cluster.network.stall(client.host, bookie)
            writer.push([b"d"])
            await trio.sleep(0.01)
            await writer.aclose()
            for bookie in writer.metadata.last_fragment.ensemble[1:]:
                cluster.network.reset(client.host, bookie)
            cluster.network.heal()
            if name == "recover":
                await cancelled(lambda: other.ledgers.recover(writer.ledger_id))
            else:
                await cancelled(lambda: other.ledgers.open(writer.ledger_id, recover=True))
            assert all(c.sinks == 0 for c in other.opened.pool.statistics().connections)
            first = await client.ledgers.recover(writer.ledger_id)
            assert await other.ledgers.recover(writer.ledger_id) == first
            assert (await other.contents(writer.ledger_id))[:3] == [b"a", b"b", b"c"]

        assert await at_each_checkpoint(attempt) >= 10


@pytest.mark.parametrize("name", ["open", "metadata", "list", "verify", "delete"])
async def test_a_cancelled_question_can_be_asked_again(name: str, clock: MockClock) -> None:
    async with cluster_of() as (_, client, other):

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            async with await client.ledgers.create(replication=R332) as writer:
                await writer.append_many([b"a", b"b"])
            ledgers, ledger_id = other.ledgers, writer.ledger_id
            calls: dict[str, Call] = {
                "open": lambda: ledgers.open(ledger_id),
                "metadata": lambda: ledgers.metadata(ledger_id),
                "list": ledgers.list,
                "verify": lambda: ledgers.verify(ledger_id),
                "delete": lambda: ledgers.delete(ledger_id),
            }
            await cancelled(calls[name])
            if name == "delete":
                try:
                    await ledgers.delete(ledger_id)
                except LedgerNotFound:
                    assert ledger_id not in await ledgers.list()
            else:
                await calls[name]()
                assert await other.contents(ledger_id) == [b"a", b"b"]

        await at_each_checkpoint(attempt)


# --- the reader -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["last_add_confirmed", "wait_beyond", "read", "read_batch", "refresh", "follow"]
)
@pytest.mark.parametrize("replication", [R332, Replication(4, 2, 2)], ids=str)
async def test_a_cancelled_call_leaves_the_reader_usable(
    name: str, replication: Replication, clock: MockClock
) -> None:
    async with cluster_of(4) as (_, client, other):
        writer = await client.ledgers.create(replication=replication)
        reader = await other.ledgers.open(writer.ledger_id)

        async def follow() -> None:
            async with aclosing(reader.follow(max(0, writer.last_add_pushed - 3))) as entries:
                async for entry_id, _ in entries:
                    if entry_id == writer.last_add_pushed:
                        return

        calls: dict[str, Call] = {
            "last_add_confirmed": reader.last_add_confirmed,
            "wait_beyond": lambda: reader.wait_beyond(writer.last_add_pushed - 1),
            "read": lambda: reader.read(0, writer.last_add_pushed),
            "read_batch": lambda: reader.read_batch(0, writer.last_add_pushed),
            "refresh": reader.refresh,
            "follow": follow,
        }

        async def attempt(cancelled: Callable[[Call], Awaitable[bool]]) -> None:
            entry_id = await writer.append(b"x")
            await cancelled(calls[name])
            assert await reader.last_add_confirmed() == entry_id
            assert await reader.wait_beyond(entry_id - 1) == entry_id
            assert await reader.read(0, entry_id) == [b"x"] * (entry_id + 1)

        await at_each_checkpoint(attempt)
        await eventually(lambda: writer.failure is None)
        await writer.close()
        assert await reader.wait_beyond(writer.last_add_pushed) == writer.last_add_pushed
