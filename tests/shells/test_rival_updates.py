"""Changes that read, decide and write, with a rival's change between the read and the write: both changes
survive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

import ledgerlog
from ledgerlog.cli.main import cli
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import MIB
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.meta.sqlite import SqliteStore
from ledgerlog.model.layout import draining_path
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.snapshots import ListedSnapshot
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import StaleReplica
from ledgerlog.testing.memory_cluster import open_cluster

Act = Callable[[LedgerClient, Log], Awaitable[object]]


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def roll(**changes: float) -> Act:
    return lambda _, log: log.configure(roll=lambda there: attrs.evolve(there, **changes))


def retain(**changes: float) -> Act:
    return lambda _, log: log.configure(retention=lambda there: attrs.evolve(there, **changes))


def properties(**changes: str) -> Act:
    return lambda _, log: log.update_properties(changes)


def settings(**changes: int) -> Act:
    return lambda client, _: RepairQueue(client).change_settings(lambda there: attrs.evolve(there, **changes))


def task(**named: list[str]) -> Act:
    return lambda client, _: RepairQueue(client).post(7, **named)


def listed(number: int) -> Act:
    snapshot = ListedSnapshot(number, 1, 1)
    return lambda client, log: SnapshotList(client.store, log.incarnation).change(
        lambda there: there if snapshot in there else [*there, snapshot]
    )


def cursor(offset: int, *, pins: bool | None = None) -> Act:
    return lambda _, log: log.cursor("c").set(offset, pins=pins)


def drain() -> Act:
    return lambda client, _: RepairQueue(client).drain("b1")


async def policies(client: LedgerClient, log: Log) -> object:
    info = await log.info()
    return info.roll, info.retention, info.properties


async def repair(client: LedgerClient, log: Log) -> object:
    queue = RepairQueue(client)
    found = await queue.task(7)
    return (
        await queue.settings(),
        found and attrs.evolve(found[0], made_at_ms=0),
        sorted(await queue.draining()),
    )


async def snapshots(client: LedgerClient, log: Log) -> object:
    return sorted(each.ledger_id for each in await SnapshotList(client.store, log.incarnation).read())


async def cursors(client: LedgerClient, log: Log) -> object:
    return [(each.offset, each.pins) for each in await log.cursors()]


async def nothing(client: LedgerClient, log: Log) -> object:
    return None


@pytest.mark.parametrize(
    ("ours", "rival", "look"),
    [
        pytest.param(roll(max_bytes=5 * MIB), roll(max_age_s=77.0), policies, id="two bounds of a roll"),
        pytest.param(retain(max_bytes=MIB), retain(max_age_s=77.0), policies, id="two bounds of retention"),
        pytest.param(roll(max_bytes=5 * MIB), retain(max_bytes=MIB), policies, id="a roll and retention"),
        pytest.param(properties(a="1"), properties(b="2"), policies, id="two properties"),
        pytest.param(roll(max_bytes=5 * MIB), properties(b="2"), policies, id="a roll and a property"),
        pytest.param(settings(grace_ms=77), settings(checks_per_s=3), repair, id="two settings of repair"),
        pytest.param(task(lost=["b1"]), task(damaged=["b2"]), repair, id="two faults of one ledger"),
        pytest.param(drain(), drain(), repair, id="one bookie is emptied twice"),
        pytest.param(listed(1), listed(2), snapshots, id="two snapshots"),
        pytest.param(cursor(1, pins=True), cursor(0), cursors, id="a cursor is made twice"),
    ],
)
async def test_both_changes_survive(
    autojump_clock: MockClock, ours: Act, rival: Act, look: Callable[[LedgerClient, Log], Awaitable[object]]
) -> None:
    """As if the one had come after the other."""
    seen = []
    for between in (False, True):
        async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
            log = await create_log(client.opened, "log")

            async def act_as_rival(others: LedgerClient = other.opened) -> None:
                await rival(others, await open_log(others, "log"))

            if between:
                client.store.before_write = act_as_rival
            else:
                await act_as_rival()
            with trio.fail_after(60):
                await ours(client.opened, log)
            assert client.store.before_write is None
            seen.append(await look(client.opened, log))
    assert seen[0] == seen[1]


async def test_a_request_that_is_fulfilled_takes_no_later_one_with_it(autojump_clock: MockClock) -> None:
    """A bookie was emptied and forgotten; one with its id came on an empty disk, and is to be emptied as
    well."""
    async with open_cluster() as cluster, cluster.client() as client:
        queue = RepairQueue(client.opened)
        first = await queue.drain("b1")
        await queue.end_request(attrs.evolve(first, instance="another"))
        assert await queue.draining() == {"b1": first}

        async def change_it() -> None:
            node = await client.store.inner.get(draining_path("b1"))
            assert node is not None
            other = attrs.evolve(first, instance="another")
            await client.store.inner.set(draining_path("b1"), other.encode(), version=node.version)

        client.store.before_write = change_it
        await queue.end_request(first)
        assert await client.store.get(draining_path("b1")) is not None


async def test_a_change_that_takes_a_rivals_back_is_made_though_a_replica_is_behind(
    autojump_clock: MockClock,
) -> None:
    """The replica shows the value that is wanted, as it was before the rival's change."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as rival:
        queue, other = RepairQueue(client.opened), RepairQueue(rival.opened)
        await queue.change_settings(lambda there: attrs.evolve(there, paused=False))
        client.store.faults.append(StaleReplica(cluster.tree.content))
        await other.change_settings(lambda there: attrs.evolve(there, paused=True))
        await queue.change_settings(lambda there: attrs.evolve(there, paused=False))
        assert not (await other.settings()).paused


_CONFIGURE = ["log", "configure", "log", "--roll-bytes", "5m"]
COMMANDS = {
    "log configure": (_CONFIGURE, {"retention": RetentionPolicy(max_bytes=77)}),
    "log configure, one policy": (_CONFIGURE, {"roll": RollPolicy(max_age_s=77)}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_keeps_what_a_rival_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arguments, policy = COMMANDS[name]
    uri = f"sqlite:{tmp_path}/meta"

    async def create() -> None:
        async with ledgerlog.connect(uri, create=True) as cluster:
            await cluster.create_log("log")

    trio.run(create)
    write = SqliteStore.set
    met = []

    async def meet(store: SqliteStore, path: str, value: bytes, *, version: int) -> int:
        if not met:
            met.append(path)
            async with ledgerlog.connect(uri, create=True) as cluster:
                await (await cluster.open_log("log")).configure(**policy)
        return await write(store, path, value, version=version)

    monkeypatch.setattr(SqliteStore, "set", meet)
    done = CliRunner().invoke(cli, [*arguments, "--uri", uri])
    assert done.exit_code == 0, done.output
    assert met

    async def look() -> tuple[RollPolicy, RetentionPolicy]:
        async with ledgerlog.connect(uri, create=True) as cluster:
            info = await (await cluster.open_log("log")).info()
            return info.roll, info.retention

    rolls, retains = trio.run(look)
    assert rolls.max_bytes == 5 * MIB
    assert retains.max_bytes == 77 or rolls.max_age_s == 77
