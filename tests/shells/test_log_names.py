"""Logs by name: making, finding, listing, deleting, truncating, and answers that were lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from fakes.ledgers import Client, World, open_world

from ledgerlog.errors import (
    InvalidArgument,
    LogExists,
    LogNotFound,
    MetadataUnavailable,
)
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit
from ledgerlog.log.gather import gather_ledgers
from ledgerlog.log.log import Log, create_log, delete_log, list_logs, open_log
from ledgerlog.log.registry import EPOCH_LABEL, INCARNATION_LABEL, NAME_LABEL, LogRegistry
from ledgerlog.log.sweep import sweep
from ledgerlog.model.layout import cursors_path, log_name_path, log_record_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.faulty_store import Call, Fate, FaultyStore, StaleReplica, answer_lost_behind, fates

EMPTY = Commit(producer=None, source="", run="run", batch=0, staged=())


def lose(client: Client, *planned: Fate) -> list[Fate]:
    """Set the fates of the client's next writes of nodes. Return the fates that are left."""
    left = list(planned)

    def next_fate(call: Call) -> Fate:
        return left.pop(0) if left and call.operations else Fate.DONE

    client.store.faults = [fates(next_fate)]
    return left


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.store = FaultyStore(world.tree)
    return client


async def make(client: Client, name: str = "log", **options: object) -> Log:
    return await create_log(client, name, **options)


async def open_and_leave(opened: AbstractAsyncContextManager[object]) -> None:
    async with opened:
        pass


async def stored(log: Log) -> LogMetadata:
    metadata, _ = await log._read()
    return metadata


async def fill(log: Log, *segments: int) -> None:
    async with log.writer() as writer:
        for number, records in enumerate(segments):
            if number:
                await writer.roll()
            await writer.append_many([b"x"] * records)


async def test_a_log_is_made_found_and_described(client: Client) -> None:
    log = await make(
        client,
        "orders/eu",
        replication=Replication(3, 2, 2),
        roll=RollPolicy(max_records=5),
        retention=RetentionPolicy(max_age_s=60),
        properties={"owner": "me"},
    )
    assert log.name == "orders/eu"
    found = await open_log(client, "orders/eu")
    assert found.incarnation == log.incarnation
    info = await found.info()
    assert (info.name, info.epoch, info.first_offset, info.next_offset) == ("orders/eu", 0, 0, 0)
    assert (info.replication, info.roll.max_records, info.retention.max_age_s) == (
        Replication(3, 2, 2),
        5,
        60,
    )
    assert await found.properties() == {"owner": "me"}
    await found.set_properties({"owner": "you"})
    assert (await log.info()).properties == {"owner": "you"}


async def test_a_name_is_given_once(client: Client) -> None:
    log = await make(client)
    with pytest.raises(LogExists):
        await make(client)
    assert (await make(client, exist_ok=True)).incarnation == log.incarnation
    with pytest.raises(LogNotFound):
        await open_log(client, "other")
    for bad in ("", "/a", "a//b", "a/", "ä", "x" * 300):
        with pytest.raises(InvalidArgument):
            await make(client, bad)


async def test_many_who_make_one_log_at_once_make_one(world: World) -> None:
    made: list[int] = []
    refused: list[str] = []

    async def one(exist_ok: bool) -> None:
        try:
            made.append((await make(world.client(), exist_ok=exist_ok)).incarnation)
        except LogExists as failure:
            refused.append(failure.name)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(one, number % 2 == 0)
    assert len(set(made)) == 1
    assert len(made) + len(refused) == 10


async def test_logs_are_listed_by_prefix(client: Client) -> None:
    for name in ("b", "a/1", "a/2", "ab"):
        await make(client, name)
    assert await list_logs(client) == ["a/1", "a/2", "ab", "b"]
    assert await list_logs(client, "a/") == ["a/1", "a/2"]


async def test_deleting_a_log_deletes_its_ledgers_and_its_name_may_be_given_again(
    world: World, client: Client
) -> None:
    log = await make(client)
    await fill(log, 1, 1)
    assert len(world.ledgers) == 2
    await delete_log(client, "log")
    assert world.ledgers == {}
    with pytest.raises(LogNotFound):
        await delete_log(client, "log")
    again = await make(client)
    assert again.incarnation != log.incarnation
    for call in (log.info(), log.seal(), log.truncate(0), log.properties(), log.set_properties({})):
        with pytest.raises(LogNotFound):
            await call
    assert (await again.info()).epoch == 0


async def damage(client: Client, path: str) -> None:
    node = await client.store.get(path)
    assert node is not None
    await client.store.set(path, node.value[:-1], version=node.version)


async def test_a_log_whose_record_is_damaged_is_deleted_only_where_that_is_said(
    world: World, client: Client
) -> None:
    log, other = await make(client), await make(client, "other")
    await fill(log, 1, 1)
    await fill(other, 1)
    await log.cursor("reader").set(1)
    await damage(client, log_record_path(log.incarnation))
    with pytest.raises(MetadataCorrupt, match="log incarnation"):
        await delete_log(client, "log")
    assert await list_logs(client) == ["log", "other"]
    lose(client, Fate.UNANSWERED)
    await delete_log(client, "log", damaged=True)
    assert await list_logs(client) == ["other"]
    assert await client.store.get(log_record_path(log.incarnation)) is None
    assert await client.store.children(cursors_path(log.incarnation)) == []
    assert len(world.ledgers) == 3, "which of them are its own, nobody knows by its list any more"
    assert (await other.info()).next_offset == 1
    with pytest.raises(LogNotFound):
        await delete_log(client, "log", damaged=True)
    assert (await make(client)).incarnation != log.incarnation


async def test_a_log_whose_name_is_damaged_is_found_by_its_record(world: World, client: Client) -> None:
    log, other = await make(client), await make(client, "other")
    await fill(log, 1, 1)
    await fill(other, 1)
    await damage(client, log_name_path("log"))
    with pytest.raises(MetadataCorrupt, match="name of log log"):
        await delete_log(client, "log")
    lose(client, Fate.LOST, Fate.UNANSWERED)
    await delete_log(client, "log", damaged=True)
    assert (await list_logs(client), len(world.ledgers)) == (["other"], 1)
    assert await client.store.get(log_record_path(log.incarnation)) is None


async def test_a_name_that_leads_nowhere_is_removed(world: World, client: Client) -> None:
    log = await make(client)
    for path in (log_name_path("log"), log_record_path(log.incarnation)):
        await damage(client, path)
    await delete_log(client, "log", damaged=True)
    assert await list_logs(client) == []
    half = await make(client, "half")
    await client.store.delete(log_record_path(half.incarnation))
    with pytest.raises(MetadataCorrupt, match="lost the record of log 'half'"):
        await delete_log(client, "half")
    await delete_log(client, "half", damaged=True)
    assert await list_logs(client) == []


async def test_a_name_without_a_record_is_a_damaged_log_and_no_deleted_one(
    world: World, client: Client
) -> None:
    log = await make(client)
    await log.cursor("reader").set(0)
    await client.store.delete(log_record_path(log.incarnation))
    registry = LogRegistry(client.store, client.environment)
    for attempt in (
        log.info,
        lambda: open_and_leave(log.read()),
        lambda: open_and_leave(log.writer()),
        lambda: open_and_leave(stage(client, registry, "log", log.incarnation)),
        lambda: splice(client, registry, "log", log.incarnation, EMPTY),
        lambda: log.truncate(1),
        lambda: log.cursor("another").set(0),
        lambda: gather_ledgers(client, registry, "log", log.incarnation),
    ):
        with pytest.raises(MetadataCorrupt, match="lost the record of log 'log'"):
            await attempt()
    await sweep(client, min_age_s=0)
    assert await client.store.children(cursors_path(log.incarnation)) == ["reader"]
    await delete_log(client, "log", damaged=True)
    with pytest.raises(LogNotFound):
        await log.info()
    assert await client.store.children(cursors_path(log.incarnation)) == []


async def test_as_long_as_a_name_cannot_be_read_a_sweep_keeps_every_cursor(
    world: World, client: Client
) -> None:
    """The name may lead to the log that the cursor belongs to."""
    log, other = await make(client), await make(client, "other")
    await log.cursor("reader").set(0)
    await client.store.delete(log_record_path(log.incarnation))
    await damage(client, log_name_path("log"))
    await sweep(client, min_age_s=0)
    assert await client.store.children(cursors_path(log.incarnation)) == ["reader"]
    await client.store.create("logs/.no-name", b"")
    await sweep(client, min_age_s=0)
    await client.store.delete("logs/.no-name")
    await delete_log(client, "log", damaged=True)
    await sweep(client, min_age_s=0)
    assert await client.store.children(cursors_path(log.incarnation)) == []
    assert await list_logs(client) == [other.name]


async def test_a_log_that_can_be_read_is_deleted_as_damaged_like_any_other(
    world: World, client: Client
) -> None:
    await fill(await make(client), 1, 1)
    await delete_log(client, "log", damaged=True)
    assert world.ledgers == {}
    for name in ("log", "never"):
        with pytest.raises(LogNotFound):
            await delete_log(client, name, damaged=True)


async def test_the_ledgers_of_a_log_say_which_log_they_were_made_for(world: World, client: Client) -> None:
    log = await make(client)
    await fill(log, 1, 1)
    for ledger in world.ledgers.values():
        assert ledger.metadata.custom == {
            NAME_LABEL: b"log",
            INCARNATION_LABEL: str(log.incarnation).encode(),
            EPOCH_LABEL: b"1",
        }


async def test_truncation_drops_whole_ledgers_and_keeps_offsets(world: World, client: Client) -> None:
    log = await make(client)
    await fill(log, 5, 5, 5)
    await log.truncate(7)
    info = await log.info()
    assert (info.first_offset, info.next_offset, [s.ledger_id for s in info.segments]) == (7, 15, [1, 2])
    assert sorted(world.ledgers) == [1, 2]
    await log.truncate(3)
    assert (await log.info()).first_offset == 7, "it never goes back"
    await log.truncate(15)
    assert (await log.info()).next_offset == 15
    assert world.ledgers == {}
    for bad in (16, 100):
        with pytest.raises(InvalidArgument, match="ends at offset 15"):
            await log.truncate(bad)
    for bad_ in (-1, True, 1.5):
        with pytest.raises(InvalidArgument):
            await log.truncate(bad_)
    await fill(log, 1)
    assert (await log.info()).next_offset == 16


async def test_a_log_is_truncated_within_the_ledger_that_is_written_but_not_beyond_what_is_confirmed(
    world: World, client: Client
) -> None:
    log = await make(client)
    async with log.writer() as writer:
        await writer.append_many([b"x"] * 5)
        world.hold_all = True
        await writer.submit(b"y")
        with pytest.raises(InvalidArgument):
            await log.truncate(6)
        await log.truncate(4)
        world.release()
    assert (await log.info()).first_offset == 4
    assert sorted(world.ledgers) == [0]


async def test_sealing_twice_is_sealing_once(client: Client) -> None:
    log = await make(client)
    await fill(log, 3)
    await log.seal()
    await log.seal()
    info = await log.info()
    assert (info.sealed, info.next_offset, info.epoch) == (True, 3, 2)
    await log.truncate(2)
    assert (await log.info()).first_offset == 2, "a sealed log may be truncated"


@pytest.mark.parametrize(
    "planned", [[Fate.LOST], [Fate.UNANSWERED], [Fate.LOST, Fate.LOST], [Fate.LOST, Fate.UNANSWERED]]
)
async def test_a_lost_answer_changes_nothing_about_what_is_done(
    world: World, client: Client, planned: list[Fate]
) -> None:
    lose(client, *planned)
    log = await make(client)
    lose(client, *planned)
    async with log.writer() as writer:
        assert writer.epoch == 1
        await writer.append(b"a")
        lose(client, *planned)
        await writer.roll()
        await writer.append(b"b")
        lose(client, *planned)
    metadata = await stored(log)
    assert [(s.epoch, s.record_count) for s in metadata.segments] == [(1, 1), (1, 1)]
    lose(client, *planned)
    await log.set_properties({"a": "b"})
    assert await log.properties() == {"a": "b"}
    lose(client, *planned)
    await log.truncate(1)
    assert sorted(world.ledgers) == [1]
    lose(client, *planned)
    await log.seal()
    assert (await stored(log)).epoch == 2
    lose(client, *planned)
    await delete_log(client, "log")
    assert await list_logs(client) == []
    assert world.ledgers == {}


async def test_a_takeover_whose_write_did_not_reach_the_store_leaves_no_ledger(
    world: World, client: Client
) -> None:
    log = await make(client)
    left = lose(client, Fate.UNREACHABLE)
    with pytest.raises(MetadataUnavailable):
        async with log.writer():
            raise AssertionError("it leads")
    assert not left
    assert world.ledgers == {}


async def test_a_store_out_of_reach_is_told(client: Client) -> None:
    log = await make(client)
    client.store.disconnect()
    for call in (log.info(), log.seal(), log.truncate(0), make(client, "b"), list_logs(client)):
        with pytest.raises(MetadataUnavailable):
            await call


async def test_a_log_that_was_made_used_and_deleted_is_not_made_again_as_the_same_one(
    world: World, client: Client
) -> None:
    """The answer to the creation is lost, and others are faster than the next attempt."""
    others = world.client()
    used: list[int] = []

    async def use_and_delete() -> None:
        log = await open_log(others, "log")
        used.append(log.incarnation)
        await fill(log, 1)
        await delete_log(others, "log")

    client.store = FaultyStore(world.tree, answer_lost_behind(log_name_path("log"), use_and_delete))
    log = await make(client)
    assert used
    assert log.incarnation not in used
    assert (await open_log(others, "log")).incarnation == log.incarnation


async def test_a_log_that_was_just_made_is_found_and_listed_on_every_replica(
    world: World, client: Client
) -> None:
    behind = world.tree.content
    await create_log(world.client(), "log")
    client.store.faults = [StaleReplica(behind)]
    assert (await open_log(client, "log")).name == "log"
    client.store.faults = [StaleReplica(behind)]
    assert await list_logs(client) == ["log"]
