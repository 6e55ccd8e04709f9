"""Cursors, properties and policies: compare-and-set with rivals, lost answers and truncation in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledgerlog.errors import (
    CursorConflict,
    InvalidArgument,
    LogNotFound,
    MetadataOutcomeUnknown,
    PropertiesConflict,
    Truncated,
    TruncationPinned,
)
from ledgerlog.log.log import Log, create_log, delete_log, open_log
from ledgerlog.model.layout import CURSORS, cursor_path
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.testing.faulty_store import Call, GoOn, StaleReplica, answer_lost_behind
from ledgerlog.testing.memory_cluster import Client, open_cluster


@pytest.fixture
async def clients() -> AsyncIterator[tuple[Client, Client]]:
    async with open_cluster(3) as cluster, cluster.client() as one, cluster.client() as other:
        yield one, other


@pytest.fixture
async def log(clients: tuple[Client, Client]) -> Log:
    """A log with three ledgers of ten records."""
    log = await create_log(clients[0].opened, "log")
    async with log.writer() as writer:
        for _ in range(3):
            await writer.append_many([b"x"] * 10)
            await writer.roll()
    return log


async def test_a_cursor_is_made_moved_and_deleted(log: Log) -> None:
    cursor = log.cursor("billing")
    assert await cursor.get() is None
    first = await cursor.move(3, expected=None, properties={"by": "a"})
    assert (first.offset, first.pins, first.properties) == (3, False, {"by": "a"})
    assert await cursor.get() == first
    second = await cursor.move(5, expected=first)
    assert (second.offset, second.properties) == (5, {"by": "a"})
    assert await log.cursors() == [second]
    with pytest.raises(CursorConflict):
        await cursor.move(4, expected=first)
    with pytest.raises(CursorConflict):
        await cursor.move(4, expected=None)
    with pytest.raises(CursorConflict):
        await cursor.delete(expected=first)
    await cursor.delete(expected=second)
    await cursor.delete()
    assert await log.cursors() == []
    with pytest.raises(CursorConflict):
        await cursor.move(6, expected=second)


async def test_one_who_remembers_a_deleted_cursor_does_not_move_its_namesake(log: Log) -> None:
    cursor = log.cursor("c")
    for _ in range(3):
        old = await cursor.move(1, expected=None)
        await cursor.delete()
        assert await cursor.get() is None
        assert await log.cursors() == []
        new = await cursor.move(2, expected=None, pins=True)
        with pytest.raises(CursorConflict):
            await cursor.move(9, expected=old)
        with pytest.raises(CursorConflict):
            await cursor.delete(expected=old)
        assert await cursor.get() == new
        await cursor.delete(expected=new)


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_deletion_whose_answer_was_lost_is_settled(
    log: Log, clients: tuple[Client, Client], is_applied: bool
) -> None:
    cursor = log.cursor("c")
    state = await cursor.set(1)
    if is_applied:
        clients[0].store.lost_answers = 1
    else:
        clients[0].store.lost_writes = 1
    await cursor.delete(expected=state)
    assert await cursor.get() is None


async def test_a_deletion_that_took_effect_leaves_the_cursor_that_a_rival_made_since(
    log: Log, clients: tuple[Client, Client]
) -> None:
    await log.cursor("c").set(1)
    rival = (await open_log(clients[1].opened, "log")).cursor("c")

    async def make() -> None:
        await rival.move(7, expected=None)

    clients[0].store.faults.append(answer_lost_behind(cursor_path(log.incarnation, "c"), make))
    with pytest.raises(MetadataOutcomeUnknown):
        await log.cursor("c").delete()
    state = await rival.get()
    assert state is not None
    assert state.offset == 7


@pytest.mark.parametrize("moves", [1, 2])
@pytest.mark.parametrize("is_expected", [False, True])
async def test_a_deletion_that_was_lost_before_a_rivals_moves_is_not_told_as_done(
    log: Log, clients: tuple[Client, Client], moves: int, is_expected: bool
) -> None:
    state = await log.cursor("c").set(1)
    rival = (await open_log(clients[1].opened, "log")).cursor("c")

    async def lost_before_the_moves(call: Call, go_on: GoOn) -> Any:
        if not call.is_write:
            return await go_on()
        clients[0].store.faults.remove(lost_before_the_moves)
        for offset in range(moves):
            await rival.set(offset)
        raise MetadataOutcomeUnknown("the answer was lost")

    clients[0].store.faults.append(lost_before_the_moves)
    if moves == 1 and not is_expected:
        await log.cursor("c").delete()  # Only the rival's move can have happened.
        assert await rival.get() is None
    else:
        with pytest.raises(CursorConflict if moves == 1 else MetadataOutcomeUnknown):
            await log.cursor("c").delete(expected=state if is_expected else None)
        assert await rival.get() is not None


@pytest.mark.parametrize("was_there", [False, True])
async def test_a_cursor_that_was_made_and_deleted_is_not_made_again_by_the_next_attempt(
    log: Log, clients: tuple[Client, Client], was_there: bool
) -> None:
    rival = (await open_log(clients[1].opened, "log")).cursor("c")
    if was_there:
        await rival.set(3)
        await rival.delete()
    clients[0].store.faults.append(answer_lost_behind(cursor_path(log.incarnation, "c"), rival.delete))
    with pytest.raises(CursorConflict):
        await log.cursor("c").move(1, expected=None, pins=True)
    assert await rival.get() is None


async def test_a_cursor_of_a_deleted_log_does_not_move(log: Log, clients: tuple[Client, Client]) -> None:
    cursor = log.cursor("c")
    state = await cursor.set(1)
    await delete_log(clients[1].opened, "log")
    with pytest.raises(LogNotFound):
        await cursor.move(2, expected=state)


async def test_of_two_that_move_a_cursor_at_once_one_is_told(
    log: Log, clients: tuple[Client, Client]
) -> None:
    cursor = log.cursor("c")
    seen = await cursor.move(1, expected=None)
    rival = (await open_log(clients[1].opened, "log")).cursor("c")

    async def meanwhile() -> None:
        await rival.move(7, expected=seen)

    clients[0].store.before_write = meanwhile
    with pytest.raises(CursorConflict):
        await cursor.move(2, expected=seen)
    assert (await cursor.set(3)).offset == 3


@pytest.mark.parametrize("pins", [False, True])
async def test_a_move_whose_answer_was_lost_is_settled(
    log: Log, clients: tuple[Client, Client], pins: bool
) -> None:
    cursor = log.cursor("c")
    store = clients[0].store
    store.lost_answers = 1
    first = await cursor.move(1, expected=None, pins=pins)
    store.lost_writes = 1
    second = await cursor.move(2, expected=first)
    store.lost_answers = 1
    assert (await cursor.move(0, expected=second)).offset == 0


async def test_a_cursor_is_read_as_it_was_last_moved(log: Log, clients: tuple[Client, Client]) -> None:
    behind = StaleReplica(clients[0].store.inner._tree.content)
    moved = await (await open_log(clients[1].opened, "log")).cursor("c").move(5, expected=None)
    clients[0].store.faults.append(behind)
    assert await log.cursor("c").get() == moved


async def test_a_pin_holds_against_truncation_and_retention(log: Log) -> None:
    cursor = log.cursor("c")
    state = await cursor.move(15, expected=None, pins=True)
    with pytest.raises(TruncationPinned) as caught:
        await log.truncate(20)
    assert (caught.value.cursor, caught.value.offset) == ("c", 15)
    await log.configure(retention=RetentionPolicy(max_bytes=1))
    assert await log.apply_retention() == 10, "the ledger before the pin"
    assert (await log.info()).first_offset == 10
    await log.truncate(15)
    assert (await log.why_kept())[0][1].startswith("cursor 'c' pins")
    state = await cursor.move(20, expected=state)
    assert await log.apply_retention() == 5
    await log.truncate(25, ignore_pins=True)
    assert (await log.info()).first_offset == 25
    state = await cursor.move(24, expected=state)
    with pytest.raises(Truncated):
        await cursor.move(23, expected=state)
    with pytest.raises(Truncated):
        await log.cursor("d").move(0, expected=None, pins=True)
    await log.cursor("d").move(0, expected=None)
    await log.cursor("e").move(25, expected=None, pins=True)


async def test_a_pin_that_comes_while_a_truncation_is_written_is_not_passed_over(
    log: Log, clients: tuple[Client, Client]
) -> None:
    rival = await open_log(clients[1].opened, "log")

    async def meanwhile() -> None:
        await rival.cursor("c").move(5, expected=None, pins=True)

    clients[0].store.before_write = meanwhile
    with pytest.raises(TruncationPinned):
        await log.truncate(20)
    assert (await log.info()).first_offset == 0


async def test_a_truncation_that_comes_while_a_pin_is_written_is_not_passed_over(
    log: Log, clients: tuple[Client, Client]
) -> None:
    rival = await open_log(clients[1].opened, "log")

    async def meanwhile() -> None:
        await rival.truncate(20)

    clients[0].store.before_write = meanwhile
    with pytest.raises(Truncated):
        await log.cursor("c").move(5, expected=None, pins=True)
    assert await log.cursors() == []


async def test_a_leader_leads_on_while_cursors_pin(log: Log) -> None:
    async with log.writer() as writer:
        for offset in range(30, 20, -1):
            await log.cursor("c").set(offset, pins=True)
            await writer.append(b"y")
            await writer.roll()
        assert writer.failure is None


async def test_cursors_go_with_their_log(log: Log, clients: tuple[Client, Client]) -> None:
    await log.cursor("a/b").set(3)
    await log.cursor("c").set(3)
    await delete_log(clients[1].opened, "log")
    for component in await clients[0].store.children(CURSORS):
        assert await clients[0].store.children(f"{CURSORS}/{component}") == []
    with pytest.raises(LogNotFound):
        await log.cursor("d").set(1)
    with pytest.raises(LogNotFound):
        await log.cursors()


async def test_arguments_of_cursors_are_checked(log: Log) -> None:
    for name in ("", "/", "x" * 256):
        with pytest.raises(InvalidArgument, match="cursor"):
            log.cursor(name)
    for offset in (-1, True, 1.5, 2**63):
        with pytest.raises(InvalidArgument):
            await log.cursor("c").set(offset)
    for properties in ({"a": 1}, {"a": "x" * 20_000}):
        with pytest.raises(InvalidArgument):
            await log.cursor("c").set(1, properties=properties)


# --- properties and policies ----------------------------------------------------------------------


async def test_properties_are_updated_in_one_step(log: Log, clients: tuple[Client, Client]) -> None:
    rival = await open_log(clients[1].opened, "log")
    await log.set_properties({"a": "1", "b": "2"})

    async def meanwhile() -> None:
        await rival.update_properties({"c": "3"})

    clients[0].store.before_write = meanwhile
    assert await log.update_properties({"a": None, "b": "4"}) == {"b": "4", "c": "3"}
    assert await rival.properties() == {"b": "4", "c": "3"}


async def test_properties_are_compared_and_set(log: Log, clients: tuple[Client, Client]) -> None:
    rival = await open_log(clients[1].opened, "log")
    await log.set_properties({"owner": "a"}, expected={})
    with pytest.raises(PropertiesConflict):
        await rival.set_properties({"owner": "b"}, expected={})
    clients[1].store.lost_answers = 1
    await rival.set_properties({"owner": "b"}, expected={"owner": "a"})
    clients[1].store.lost_writes = 1
    await rival.set_properties({"owner": "c"}, expected={"owner": "b"})
    assert await log.properties() == {"owner": "c"}


async def test_a_compare_and_set_of_properties_that_nobody_can_settle_says_so(
    log: Log, clients: tuple[Client, Client]
) -> None:
    rival = await open_log(clients[1].opened, "log")
    store = clients[0].store
    store.lost_answers = 1
    read = log._registry.read

    async def read_late(incarnation: int, **options: bool) -> object:
        if store.writes and (await rival.properties()).get("owner") == "a":
            await rival.update_properties({"owner": None})
        return await read(incarnation, **options)

    log._registry.read = read_late
    with pytest.raises(MetadataOutcomeUnknown):
        await log.set_properties({"owner": "a"}, expected={})


async def test_policies_can_be_changed_under_a_leader(log: Log) -> None:
    async with log.writer() as writer:
        await log.configure(roll=RollPolicy(max_records=7), retention=RetentionPolicy(max_age_s=9))
        await writer.append(b"x")
        await writer.roll()
        info = await log.info()
        assert (info.roll.max_records, info.retention.max_age_s, info.epoch) == (7, 9, writer.epoch)
        await log.configure()
