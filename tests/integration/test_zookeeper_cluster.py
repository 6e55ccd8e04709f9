"""Clusters of real processes on a real ZooKeeper: the commands, bookies that die, outages, and what it costs.

What is measured is printed (``pytest -s``). The tests marked ``soak`` are long forms of those beside them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog import LedgerLogError, Replication, RollPolicy
from ledgerlog.cli import local_cluster as local_clusters
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.cli.zookeeper import ZookeeperServer, counters, wait_serving
from ledgerlog.errors import MetadataError
from ledgerlog.limits import SESSION_TIMEOUT_S
from ledgerlog.log.log import Log
from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.store import ZooKeeperStore
from ledgerlog.model.layout import writable_path
from tests.integration.running_cluster import ledgerlog_ok, start_cluster
from tests.waiting import PATIENCE_S, until
from tests.zookeepers import expire_session

pytestmark = pytest.mark.processes

SMALL = Replication(ensemble=3, write_quorum=3, ack_quorum=2)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three bookies and one ZooKeeper server."""
    async with local_cluster(tmp_path / "cluster", bookies=3, zookeepers=1) as local:
        yield local


@pytest.fixture
async def ensemble(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three bookies and an ensemble of three ZooKeeper servers."""
    async with local_cluster(tmp_path / "cluster", bookies=3, zookeepers=3) as local:
        yield local


def store_of(local: LocalCluster) -> ZooKeeperStore:
    store = local.cluster.store
    assert isinstance(store, ZooKeeperStore)
    return store


async def everything(log: Log) -> list[bytes]:
    with trio.fail_after(PATIENCE_S):
        async with log.read() as records:
            return [record.data async for record in records]


# --- the commands ---------------------------------------------------------------------------------


async def test_a_cluster_is_run_and_killed_and_run_again_with_all_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    lines = b"".join(b"line %d\n" % n for n in range(1000))
    async with open_children() as children:
        first = await start_cluster(children, path, "--metadata", "zookeeper")
        assert first.uri.startswith("zk://127.0.0.1:")
        await ledgerlog_ok("log", "create", "kept", uri=first.uri)
        await ledgerlog_ok("log", "append", "kept", uri=first.uri, stdin=lines)
        # Kill all processes at once, the runner last: it would start the others again.
        os.kill(first.child.pid, signal.SIGKILL)
        for pid in (*first.pids.values(), *first.zookeepers.values()):
            with suppress(ProcessLookupError):  # It may have gone with its parent.
                os.kill(pid, signal.SIGKILL)
        await first.child.wait()
        second = await start_cluster(children, path)  # The runner finds by itself where the metadata is.
        assert second.uri == first.uri
        assert await ledgerlog_ok("log", "read", "kept", "--raw", uri=second.uri) == lines
        os.kill(second.zookeepers["zookeeper-1"], signal.SIGKILL)
        await second.wait_for("zookeeper-1 (process")
        await ledgerlog_ok("log", "append", "kept", uri=second.uri, stdin=b"once more\n")
        second.child.send_signal(signal.SIGINT)
        with trio.fail_after(PATIENCE_S):
            assert await second.child.wait() == 0


async def test_every_command_works_on_it(local: LocalCluster) -> None:
    async def ok(*args: str, stdin: bytes | None = None) -> list[dict[str, object]]:
        out = await ledgerlog_ok(*args, "--json", uri=local.uri, stdin=stdin)
        return [json.loads(line) for line in out.splitlines()]

    await ok("log", "create", "a/b", "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2")
    (appended,) = await ok("log", "append", "a/b", stdin=b"one\ntwo\nthree\n")
    assert (appended["records"], appended["first_offset"], appended["last_offset"]) == (3, 0, 2)
    assert len(await ok("log", "read", "a/b")) == 3
    assert len(await ok("log", "list")) == 1
    (shown,) = await ok("log", "show", "a/b")
    ledgers = shown["ledgers"]
    assert isinstance(ledgers, list)
    ledger = str(ledgers[0]["id"])
    assert len(await ok("bookie", "list")) == 3
    assert len(await ok("ledger", "list")) == 1
    await ok("ledger", "show", ledger)
    assert await ok("ledger", "read", ledger)
    (verified,) = await ok("ledger", "verify", ledger)
    assert (verified["under_replicated"], verified["unreadable"]) == ([], [])
    await ok("ledger", "recover", ledger)
    await ok("log", "seal", "a/b")
    await ok("log", "truncate", "a/b", "--before", "2")
    await ok("log", "delete", "a/b")
    assert await ok("log", "list") == []
    assert await ok("ledger", "list") == []


# --- bookies --------------------------------------------------------------------------------------


async def test_a_killed_bookie_registers_again_at_once_over_its_former_registration(
    local: LocalCluster,
) -> None:
    path = writable_path("bookie-2")
    before = await store_of(local).get(path)
    assert before is not None
    local.bookies["bookie-2"].kill()
    await local.bookies["bookie-2"].wait()
    began = time.monotonic()
    child = await local.start_bookie("bookie-2")

    async def is_registered_anew() -> bool:
        node = await store_of(local).get(path)
        return node is not None and node.value != before.value

    await until(is_registered_anew)
    print(f"killed bookie registered again after {time.monotonic() - began:.2f} s")
    # The old session ends. The registration of the new process stays.
    await trio.sleep(SESSION_TIMEOUT_S + 2)
    node = await store_of(local).get(path)
    assert node is not None
    assert node.value != before.value
    assert child.is_running
    said = local.log_path("bookie-2").read_text()
    assert said.count("registered as writable") == 2
    assert "waiting for that session to end" not in said


async def test_a_bookie_that_lost_its_session_registers_again(local: LocalCluster) -> None:
    store, path = store_of(local), writable_path("bookie-3")
    child = local.bookies["bookie-3"]
    child.send_signal(signal.SIGSTOP)
    async with store.watch(path) as watch:
        with trio.fail_after(PATIENCE_S):
            while await store.get(path) is not None:
                await watch.wait()
        child.send_signal(signal.SIGCONT)
        with trio.fail_after(PATIENCE_S):
            while await store.get(path) is None:
                await watch.wait()
    assert child.is_running
    log = await local.cluster.create_log("after", replication=SMALL)
    async with log.writer() as writer:
        await writer.append(b"on all three")


# --- leaders and the metadata ---------------------------------------------------------------------


async def test_a_leader_whose_metadata_session_expires_goes_on_appending_and_rolling(
    local: LocalCluster,
) -> None:
    log = await local.cluster.create_log("led", replication=SMALL)
    session = store_of(local).session
    async with log.writer() as writer:
        written = [b"%d" % n for n in range(200)]
        for number, record in enumerate(written):
            if number == 50:
                await expire_session(store_of(local), local.uri.removeprefix("zk://"))
            if number in (100, 150):
                await writer.roll()
            with trio.fail_after(PATIENCE_S):
                await writer.append(record)
        assert session.state is SessionState.LOST
        assert writer.epoch == 1
    assert await everything(log) == written


async def _append_through(
    local: LocalCluster,
    log: Log,
    *,
    seconds: float,
    least: int,
    disturb: Callable[[], Awaitable[None]],
    after_s: float,
    rolls: int = 0,
) -> tuple[list[bytes], float]:
    """Append for ``seconds`` and at least ``least`` records, and until the log has rolled that often,
    disturbed ``after_s`` in.

    Returns what was acknowledged, and the longest stall."""
    acknowledged: list[bytes] = []
    longest_s = 0.0
    async with trio.open_nursery() as nursery, log.writer() as writer:
        started = last = trio.current_time()
        disturbed = False
        while (
            trio.current_time() - started < seconds
            or len(acknowledged) < least
            or (rolls and len((await log.info()).segments) <= rolls)
        ):
            if not disturbed and trio.current_time() - started > after_s:
                disturbed = True
                nursery.start_soon(disturb)
            record = b"%d" % len(acknowledged)
            await writer.append(record)
            acknowledged.append(record)
            now = trio.current_time()
            longest_s = max(longest_s, now - last)
            last = now
    return acknowledged, longest_s


async def _leading_server(local: LocalCluster) -> str:
    for name, server in local.servers.items():
        if await wait_serving(server) == "leader":
            return name
    raise AssertionError("an ensemble that serves has a leader")


@pytest.mark.parametrize("seconds", [5.0, pytest.param(30.0, marks=pytest.mark.soak)])
async def test_nothing_is_lost_when_the_leading_zookeeper_server_is_killed_under_appends(
    ensemble: LocalCluster, seconds: float
) -> None:
    roll = RollPolicy(max_records=500)
    log = await ensemble.cluster.create_log("led", replication=SMALL, roll=roll)
    name = await _leading_server(ensemble)

    async def kill_it() -> None:
        ensemble.zookeepers[name].kill()
        await ensemble.zookeepers[name].wait()

    acknowledged, longest_s = await _append_through(
        ensemble, log, seconds=seconds, least=1_100, disturb=kill_it, after_s=seconds / 3, rolls=2
    )
    info = await log.info()
    print(
        f"{len(acknowledged)} records in {len(info.segments)} ledgers over {seconds:g} s, "
        f"longest stall {longest_s * 1000:.0f} ms"
    )
    assert len(info.segments) > 2, "it rolled, so it needed the metadata"
    assert await everything(log) == acknowledged
    assert (await log.info()).epoch == 1, "nobody had to take over"


@pytest.mark.parametrize("outage_s", [3.0, pytest.param(20.0, marks=pytest.mark.soak)])
async def test_appends_go_on_while_all_of_zookeeper_is_down_and_the_rest_waits_or_fails_clearly(
    ensemble: LocalCluster, outage_s: float
) -> None:
    log = await ensemble.cluster.create_log("led", replication=SMALL)
    written: list[bytes] = []
    longest_s = 0.0
    failures: list[str] = []
    rolled = trio.Event()

    async def create_something() -> None:
        try:
            await ensemble.cluster.create_log("other")
        except MetadataError as error:
            failures.append(f"create_log after {trio.current_time() - down:.1f} s: {type(error).__name__}")
        else:
            failures.append(f"create_log succeeded after {trio.current_time() - down:.1f} s")

    async def append(seconds: float, least: int = 0) -> None:
        nonlocal longest_s
        end, enough = trio.current_time() + seconds, len(written) + least
        while trio.current_time() < end or len(written) < enough:
            began = trio.current_time()
            written.append(b"%d" % len(written))
            await writer.append(written[-1])
            longest_s = max(longest_s, trio.current_time() - began)
            await trio.sleep(0.005)

    async def roll() -> None:
        try:
            await writer.roll()
            failures.append(f"roll succeeded after {trio.current_time() - down:.1f} s")
        except LedgerLogError as error:
            failures.append(f"roll after {trio.current_time() - down:.1f} s: {type(error).__name__}: {error}")
        rolled.set()

    async with trio.open_nursery() as nursery, log.writer() as writer:
        await append(0.5)
        for child in ensemble.zookeepers.values():
            child.kill()
        for child in ensemble.zookeepers.values():
            await child.wait()
        down = trio.current_time()
        before = len(written)
        nursery.start_soon(create_something)
        nursery.start_soon(roll)
        await append(outage_s, least=30)  # An append needs no metadata.
        during = len(written) - before
        for name in ensemble.servers:
            await ensemble.start_zookeeper(name)
        with trio.fail_after(PATIENCE_S):
            for server in ensemble.servers.values():
                await wait_serving(server)
            up = trio.current_time() - down
            await rolled.wait()
        await append(1.0)
        with trio.fail_after(PATIENCE_S):
            await writer.roll()
        await append(0.5)
    print(
        f"{during} appends while ZooKeeper was down for {outage_s:g} s ({up:.1f} s until it served), "
        f"longest {longest_s * 1000:.0f} ms; {'; '.join(failures)}"
    )
    assert await everything(log) == written
    async with log.writer() as next_writer:
        await next_writer.append(b"after")


async def test_servers_whose_port_was_taken_just_before_they_started_get_other_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, taken = local_clusters._start_server, list[socket.socket]()

    async def start_late(children: ChildProcesses, server: ZookeeperServer) -> Child:
        if not taken:
            taken.append(socket.create_server(("127.0.0.1", server.client_port)))
        return await start(children, server)

    monkeypatch.setattr(local_clusters, "_start_server", start_late)
    with ExitStack() as stack:
        stack.callback(lambda: [each.close() for each in taken])
        async with local_cluster(tmp_path / "cluster", bookies=1, zookeepers=1) as local:
            (server,) = local.servers.values()
            assert server.client_port != taken[0].getsockname()[1]
            assert await local.cluster.logs() == []


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ledgers", "logs"), [(100, 20), pytest.param(1000, 200, marks=pytest.mark.soak)])
async def test_many_ledgers_and_logs_are_created_listed_and_deleted(
    local: LocalCluster, ledgers: int, logs: int
) -> None:
    cluster, took = local.cluster, {}

    async def timed(what: str, work: Callable[[], Awaitable[object]]) -> None:
        began = time.monotonic()
        with trio.fail_after(PATIENCE_S):
            await work()
        took[what] = time.monotonic() - began

    ids: list[int] = []
    names = [f"log-{n:04}" for n in range(logs)]

    async def create_ledgers() -> None:
        for _ in range(ledgers):
            writer = await cluster.ledgers.create(replication=SMALL)
            ids.append(writer.ledger_id)
            await writer.close()

    async def create_logs() -> None:
        for name in names:
            await cluster.create_log(name)

    async def delete_ledgers() -> None:
        for ledger_id in ids:
            await cluster.ledgers.delete(ledger_id)

    async def delete_logs() -> None:
        for name in names:
            await cluster.delete_log(name)

    await timed("create and close ledgers", create_ledgers)
    await timed("create logs", create_logs)
    await timed("list ledgers", cluster.ledgers.list)
    await timed("list logs", cluster.logs)
    assert sorted(await cluster.ledgers.list()) == sorted(ids)
    assert await cluster.logs() == names
    await timed("delete ledgers", delete_ledgers)
    await timed("delete logs", delete_logs)
    assert await cluster.ledgers.list() == []
    assert await cluster.logs() == []
    print(f"{ledgers} ledgers, {logs} logs: " + "; ".join(f"{what} {s:.2f} s" for what, s in took.items()))


async def test_a_steady_append_costs_zookeeper_nothing(local: LocalCluster) -> None:
    (server,) = local.servers.values()

    async def packets() -> int:
        return int((await counters(server.client_port))["zk_packets_received"])

    async def cost(work: Callable[[], Awaitable[int]]) -> str:
        """How many packets the server got for each operation. Some are pings of the sessions."""
        before = await packets()
        done = await work()
        return f"{(await packets() - before) / done:.2f}"

    log = await local.cluster.create_log("costs", replication=SMALL)
    async with log.writer() as writer:

        async def append(count: int = 2000) -> int:
            for _ in range(count):
                await writer.append(b"x" * 100)
            return count

        async def roll() -> int:
            for _ in range(20):
                await writer.append(b"x")
                await writer.roll()
            await writer.append(b"x")
            return 20

        await append(100)
        of_append = await cost(append)
        of_roll = await cost(roll)

    async def take_over() -> int:
        for _ in range(10):
            async with log.writer() as next_writer:
                await next_writer.append(b"x")
        return 10

    async def open_and_read() -> int:
        async with ledgerlog.connect(local.uri) as cluster:
            await everything(await cluster.open_log("costs"))
        return 1

    print(
        f"packets of an append {of_append}, of a roll {of_roll}, of a takeover, append and close "
        f"{await cost(take_over)}, to connect, open and read all segments {await cost(open_and_read)}"
    )
    assert float(of_append) < 0.2, "no packet for an append: these are the pings of the sessions"
