"""The ledger behaviour that logs rely on: production client and the fake that logs are tested with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from fakes.ledgers import open_world

import ledgerlog
from ledgerlog.errors import (
    EntryNotFound,
    LedgerClosed,
    LedgerFenced,
    LedgerLogError,
    LedgerNotFound,
)
from tests.waiting import PATIENCE_S, until


@pytest.fixture(params=["production", "fake"])
async def ledgers(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "fake":
        async with open_world() as world:
            yield world.client().ledgers
    else:
        async with ledgerlog.connect("memory:") as cluster:
            yield cluster.ledgers


async def test_what_is_pushed_becomes_the_next_entries_and_is_confirmed_in_order(ledgers: Any) -> None:
    writer = await ledgers.create()
    assert (writer.last_add_pushed, writer.last_add_confirmed, writer.failure) == (-1, -1, None)
    assert writer.push([b"a", b"b"]) == 0
    assert writer.push((b"c",)) == 2
    assert writer.last_add_pushed == 2
    await writer.wait_confirmed(2)
    assert writer.last_add_confirmed == 2
    assert writer.has_room
    assert await writer.close() == 2


async def test_progress_is_told_after_the_confirmation_and_may_push_more(ledgers: Any) -> None:
    writer = await ledgers.create()
    seen: list[int] = []

    def on_progress() -> None:
        seen.append(writer.last_add_confirmed)
        if writer.last_add_pushed < 5:
            writer.push([b"x"])

    writer.set_progress_callback(on_progress)
    writer.push([b"x"])
    await until(lambda: writer.last_add_confirmed == 5)
    await until(lambda: bool(seen) and seen[-1] == 5)
    assert seen == sorted(seen)
    assert writer.failure is None


async def test_a_closed_ledger_says_where_it_ends_and_takes_nothing_more(ledgers: Any) -> None:
    writer = await ledgers.create(metadata={"log-name": b"x"})
    writer.push([b"a"])
    assert await writer.close() == 0
    with pytest.raises(LedgerLogError):
        writer.push([b"b"])
    metadata = await ledgers.metadata(writer.ledger_id)
    assert (metadata.is_closed, metadata.last_entry, metadata.custom) == (True, 0, {"log-name": b"x"})
    recovered = await ledgers.recover(writer.ledger_id)
    assert recovered.last_entry == 0, "recovering a closed ledger just tells its end"
    reader = await ledgers.open(writer.ledger_id)
    assert reader.is_closed
    assert await reader.last_add_confirmed() == 0
    assert await reader.wait_beyond(0) == 0


async def test_an_empty_ledger_is_closed_before_its_first_entry(ledgers: Any) -> None:
    writer = await ledgers.create()
    assert await writer.close() == -1
    other = await ledgers.create()
    assert (await ledgers.recover(other.ledger_id)).last_entry == -1


async def test_recovery_fences_the_writer_and_keeps_what_was_confirmed(ledgers: Any) -> None:
    writer = await ledgers.create()
    told: list[bool] = []
    writer.set_progress_callback(lambda: told.append(writer.failure is not None))
    writer.push([b"a", b"b"])
    await writer.wait_confirmed(1)
    metadata = await ledgers.recover(writer.ledger_id)
    assert metadata.last_entry == 1
    try:
        entry = writer.push([b"c"])
    except LedgerFenced:
        pass  # The bookie has heard of the ledger already.
    else:
        with pytest.raises(LedgerFenced):
            await writer.wait_confirmed(entry)
    assert isinstance(writer.failure, LedgerFenced)
    await until(lambda: bool(told) and told[-1])
    with pytest.raises(LedgerFenced):
        writer.push([b"d"])
    with pytest.raises((LedgerFenced, LedgerClosed)):
        await writer.close()
    reader = await ledgers.open(writer.ledger_id)
    assert await reader.read(0, 1) == [b"a", b"b"]
    with pytest.raises(EntryNotFound):
        await reader.read(0, 2)


async def test_a_writer_that_is_given_up_leaves_its_ledger_to_recovery(ledgers: Any) -> None:
    writer = await ledgers.create()
    writer.push([b"a"])
    await writer.wait_confirmed(0)
    await writer.aclose()
    assert writer.failure is not None
    with pytest.raises(LedgerLogError):
        writer.push([b"b"])
    assert not (await ledgers.metadata(writer.ledger_id)).is_closed
    assert (await ledgers.recover(writer.ledger_id)).last_entry == 0
    await writer.aclose()


async def test_a_follower_is_told_of_entries_and_of_the_end(ledgers: Any) -> None:
    writer = await ledgers.create()
    reader = await ledgers.open(writer.ledger_id)
    assert not reader.is_closed
    with trio.fail_after(PATIENCE_S):
        for entry in range(3):
            async with trio.open_nursery() as nursery:

                async def follow(entry: int = entry) -> None:
                    last = -1
                    while last < entry:
                        last = await reader.wait_beyond(entry - 1)
                    assert last == entry

                nursery.start_soon(follow)
                await trio.lowlevel.checkpoint()
                writer.push([b"%d" % entry])
            assert await reader.read_batch(entry, entry, bytes_max=1) == [b"%d" % entry]
        async with trio.open_nursery() as nursery:

            async def wait_for_the_end() -> None:
                while not reader.is_closed:
                    assert await reader.wait_beyond(2) == 2

            nursery.start_soon(wait_for_the_end)
            await trio.lowlevel.checkpoint()
            await writer.close()
    assert reader.metadata.last_entry == 2


async def test_a_batch_is_at_least_one_entry_and_never_beyond_what_was_asked(ledgers: Any) -> None:
    writer = await ledgers.create()
    writer.push([b"x" * 1000] * 50)
    await writer.close()
    reader = await ledgers.open(writer.ledger_id)
    assert len(await reader.read_batch(0, 49, bytes_max=1)) >= 1
    assert 1 <= len(await reader.read_batch(10, 12, bytes_max=1_000_000)) <= 3
    got: list[bytes] = []
    while len(got) < 50:
        got += await reader.read_batch(len(got), 49, bytes_max=10_000)
    assert got == [b"x" * 1000] * 50


async def test_what_does_not_exist_is_not_found(ledgers: Any) -> None:
    writer = await ledgers.create()
    await writer.close()
    await ledgers.delete(writer.ledger_id)
    for call in (ledgers.open, ledgers.recover, ledgers.metadata, ledgers.delete):
        with pytest.raises(LedgerNotFound):
            await call(writer.ledger_id)
    assert writer.ledger_id not in await ledgers.list()
