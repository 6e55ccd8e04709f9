"""``ledgerlog metadata backup`` and ``restore`` as commands, on clusters of processes."""

from __future__ import annotations

import json
import signal
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

import ledgerlog
from ledgerlog.cli.local_cluster import local_cluster
from ledgerlog.cli.processes import open_children
from ledgerlog.errors import WrongCluster
from ledgerlog.meta.belonging import RESTORING
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.meta.sqlite_file import read_snapshot
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import back_up, make_cluster_at, parse_uri
from ledgerlog.model.layout import CLUSTER
from ledgerlog.model.policies import RollPolicy
from tests.commands import Ran
from tests.integration.running_cluster import LEDGERLOG, RunningCluster, ledgerlog_ok, start_cluster
from tests.integration.running_cluster import ledgerlog as run_ledgerlog
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[RunningCluster]:
    """A cluster of processes. It must have stopped by itself when the body is left."""
    async with open_children() as children:
        running = await start_cluster(children, path)
        yield running
        running.child.send_signal(signal.SIGINT)
        with trio.fail_after(PATIENCE_S):
            assert await running.child.wait() == 0


async def said(*args: str, uri: str, stdin: bytes | None = None) -> dict[str, Any]:
    """The object that a command prints."""
    found: dict[str, Any] = json.loads(await ledgerlog_ok(*args, "--json", uri=uri, stdin=stdin))
    return found


async def refused(*args: str, uri: str) -> str:
    """The one line with which a command refuses."""
    ran = await run_ledgerlog(*args, uri=uri)
    assert ran.status == 1
    assert ran.stdout == b""
    (line,) = ran.stderr.splitlines()
    return line


def nodes(uri: str) -> list[tuple[str, bytes] | tuple[str, int]]:
    """The values in the metadata file."""
    return list(read_snapshot(uri.removeprefix("sqlite:")))


async def test_a_cluster_is_restored_and_writes_at_once(tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    async with served(tmp_path / "cluster") as running:
        uri = running.uri
        await ledgerlog_ok("log", "create", "x", uri=uri)
        await ledgerlog_ok("log", "append", "x", uri=uri, stdin=b"one\ntwo\n")
        made = await said("metadata", "backup", backup, uri=uri)
        assert made["file"] == backup
        assert "already exists" in await refused("metadata", "backup", backup, uri=uri)
        await ledgerlog_ok("log", "append", "x", uri=uri, stdin=b"three\n")
        await ledgerlog_ok("log", "create", "later", uri=uri)
        await ledgerlog_ok("log", "append", "later", uri=uri, stdin=b"lost\n")
        lost = {ledger["id"] for ledger in await _lines("ledger", "list", uri=uri)}
        assert "the cluster is live" in await refused("metadata", "restore", backup, uri=uri)
        assert await ledgerlog_ok("log", "read", "later", "--raw", uri=uri) == b"lost\n"
    restored = await said("metadata", "restore", backup, uri=uri)
    assert restored["compared"]
    assert restored["lost_logs"] == ["later"]
    assert restored["lost_ledgers"] == len(restored["lost_ledger_ids"]) > 0
    assert {*restored["lost_ledger_ids"]} < lost
    assert restored["first_new_ledger"] > max(lost)
    async with served(tmp_path / "cluster") as running:
        for option in ("--accept-gaps", "--accept-absent"):
            ran = await run_ledgerlog("metadata", "check", option, uri=uri)
            assert (ran.status, f"{option} needs --bring-back" in ran.stderr) == (2, True)
        ran = await run_ledgerlog("metadata", "check", "--bring-back", "--accept-gaps", "--json", uri=uri)
        assert ran.status == 1, "what the log 'later' had is named and stays"
        checked = json.loads(ran.stdout)
        assert [(ledger["log"], ledger["records"]) for ledger in checked["brought_back"]] == [("x", 1)]
        assert {ledger["log"] for ledger in checked["left_out"]} == {None}
        assert [x["id"] for x in checked["forgotten"]] == [x["ledger_id"] for x in checked["left_out"]]
        appended = await said("log", "append", "x", uri=uri, stdin=b"four\n")
        assert appended["first_offset"] == 3
        assert await ledgerlog_ok("log", "read", "x", "--raw", uri=uri) == b"one\ntwo\nthree\nfour\n"
        ids = [ledger["id"] for ledger in await _lines("ledger", "list", uri=uri)]
        assert max(ids) >= restored["first_new_ledger"]
        assert await said("metadata", "restore", "--accept-loss", uri=uri) == {"accepted": True}
        checked = await said("metadata", "check", uri=uri)
        assert checked["sound"]


@asynccontextmanager
async def load(uri: str, acknowledged: list[int], name: str = "x") -> AsyncIterator[ledgerlog.Log]:
    """Append the records 0, 1, 2 and so on while the body runs, with many rolls. Note each one when it is
    acknowledged."""
    async with ledgerlog.connect(uri) as cluster:
        log = await cluster.create_log(name, roll=RollPolicy(max_records=20))
        async with log.writer() as writer, trio.open_nursery() as nursery:

            async def append() -> None:
                while True:
                    await writer.append(b"%d" % len(acknowledged))
                    acknowledged.append(len(acknowledged))

            nursery.start_soon(append)
            yield log
            nursery.cancel_scope.cancel()


async def rolled(log: ledgerlog.Log, more: int) -> None:
    """Return once the log has that many more ledgers."""
    before = len((await log.info()).segments)

    async def has_rolled() -> bool:
        return len((await log.info()).segments) >= before + more

    await until(has_rolled)


async def records(uri: str, name: str = "x") -> list[int]:
    return [int(line) for line in (await ledgerlog_ok("log", "read", name, "--raw", uri=uri)).split()]


async def brought_back(uri: str, at_least: int) -> list[int]:
    """Bring the ledgers of the log back, until it has so many records; return them.

    A bookie that does not answer in time keeps ledgers out, and those behind them. The command says so, and
    an operator runs it again.
    """
    logs: set[str | None] = set()
    checks: list[Ran] = []

    async def has_all() -> list[int] | None:
        ran = await run_ledgerlog("metadata", "check", "--bring-back", "--json", uri=uri)
        checks.append(ran)
        said = json.loads(ran.stdout or "{}")
        logs.update(ledger["log"] for ledger in said.get("brought_back", ()))
        found = await records(uri)
        assert found == list(range(len(found))), ran.stderr
        return found if len(found) >= at_least else None

    found = await until(has_all, tell=lambda: f"{len(checks)} checks, the last ones: {checks[-2:]}")
    assert found is not None
    assert logs == {"x"}
    return found


async def test_a_backup_that_was_made_under_load_brings_every_record_back(tmp_path: Path) -> None:
    """The log rolls while the backup is read and after it. What the backup lacks is on the bookies."""
    backup = str(tmp_path / "backup")
    acknowledged: list[int] = []
    async with served(tmp_path / "cluster") as running:
        uri = running.uri
        async with load(uri, acknowledged) as log:
            await rolled(log, 4)
            await ledgerlog_ok("metadata", "backup", backup, uri=uri)
            await rolled(log, 5)
    restored = await said("metadata", "restore", backup, uri=uri)
    assert restored["lost_ledgers"] >= 5
    async with served(tmp_path / "cluster"):
        found = await brought_back(uri, len(acknowledged))
        await ledgerlog_ok("log", "append", "x", uri=uri, stdin=b"%d\n" % len(found))
        assert await records(uri) == list(range(len(found) + 1))
        await said("metadata", "restore", "--accept-loss", uri=uri)
        assert (await said("metadata", "check", uri=uri))["sound"]


async def test_a_zookeeper_that_was_saved_under_load_brings_every_record_back(tmp_path: Path) -> None:
    """ZooKeeper is read node by node while the log rolls. The backup lacks no ledger that its log lists."""
    backup = str(tmp_path / "backup")
    acknowledged: list[int] = []
    async with local_cluster(tmp_path / "cluster", bookies=3, zookeepers=1) as local:
        uri = local.uri
        async with load(uri, acknowledged) as log:
            await rolled(log, 4)
            await ledgerlog_ok("metadata", "backup", backup, uri=uri)
            await rolled(log, 5)
        assert (await said("metadata", "check", uri=uri))["sound"]
        await trio.to_thread.run_sync(_empty, uri.removeprefix("zk://"))
        await said("metadata", "restore", backup, uri=uri)
        await until(lambda: _are_compared(uri), every_s=0.1)
        await brought_back(uri, len(acknowledged))


async def _are_compared(uri: str) -> bool:
    """Whether all three bookies are registered again and say what they hold."""
    ran = await run_ledgerlog("metadata", "check", "--json", uri=uri)
    return bool(json.loads(ran.stdout)["bookies"] == 3)


async def _lines(*args: str, uri: str) -> list[dict[str, Any]]:
    out = await ledgerlog_ok(*args, "--json", uri=uri)
    return [json.loads(line) for line in out.splitlines()]


async def _all_serve(uri: str) -> bool:
    return len(await _lines("bookie", "list", uri=uri)) == 3


async def test_a_restore_says_that_it_does_not_count_what_an_earlier_one_has_deleted(
    tmp_path: Path,
) -> None:
    backup, file = str(tmp_path / "backup"), str(tmp_path / "metadata")
    uri = f"sqlite:{file}"
    await make_cluster_at(parse_uri(uri))
    cluster, _ = await back_up(parse_uri(uri), backup, made_ms=1)

    async def interrupt() -> None:
        async with open_sqlite_store(file, create=False) as store:
            node = await store.get(CLUSTER)
            assert node is not None
            await store.set(CLUSTER, RESTORING + cluster.encode(), version=node.version)

    line = b"what it deleted or took back is not counted here"
    for follows_another in (interrupt, None):  # None: only the answer to its last write was lost.
        await ledgerlog_ok("metadata", "restore", "--accept-loss", uri=uri)
        assert (await said("metadata", "restore", backup, uri=uri))["compared"]
        for _ in range(2):
            if follows_another is not None:
                await follows_another()
            assert not (await said("metadata", "restore", backup, uri=uri))["compared"]
        assert line in await ledgerlog_ok("metadata", "restore", backup, uri=uri)
    await ledgerlog_ok("metadata", "restore", "--accept-loss", uri=uri)
    assert line not in await ledgerlog_ok("metadata", "restore", backup, uri=uri)


async def test_what_is_no_backup_of_this_cluster_is_refused_in_one_line_and_changes_nothing(
    tmp_path: Path,
) -> None:
    uri = f"sqlite:{tmp_path / 'metadata'}"
    for name in ("metadata", "other"):
        where = parse_uri(f"sqlite:{tmp_path / name}")
        await make_cluster_at(where)
        await back_up(where, str(tmp_path / f"{name}.backup"), made_ms=1)
    sound = (tmp_path / "metadata.backup").read_bytes()
    head = sound[:8] + (2).to_bytes(4, "little")
    flipped = bytearray(sound)
    flipped[len(sound) // 2] ^= 1
    bad = {
        "cut": (sound[: len(sound) // 2], "cut short"),
        "flipped": (bytes(flipped), "checksum"),
        "text": (b"hello, this is no backup\n", "not a backup"),
        "newer": (head + zlib.crc32(head).to_bytes(4, "little") + sound[16:], "has format 2"),
        "of another cluster": ((tmp_path / "other.backup").read_bytes(), "a backup of cluster"),
    }
    before = nodes(uri)
    for name, (content, why) in bad.items():
        file = tmp_path / name
        file.write_bytes(content)
        line = await refused("metadata", "restore", str(file), uri=uri)
        assert why in line
        assert str(file) in line
        assert nodes(uri) == before
    assert "cannot be read" in await refused("metadata", "restore", str(tmp_path / "typo"), uri=uri)
    assert nodes(uri) == before
    none = f"sqlite:{tmp_path / 'none'}"
    assert "not a backup" in await refused("metadata", "restore", str(tmp_path / "text"), uri=none)
    assert not (tmp_path / "none").exists()
    assert "there is no cluster" in await refused("metadata", "backup", str(tmp_path / "new"), uri=none)
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "new").exists()


async def test_a_zookeeper_that_was_emptied_is_restored_under_live_bookies(tmp_path: Path) -> None:
    """After a restore, versions of znodes begin at 0 again. A client from before the restore must not write
    by accident."""
    backup = str(tmp_path / "backup")
    async with local_cluster(tmp_path / "cluster", bookies=3, zookeepers=1) as local:
        uri = local.uri
        await ledgerlog_ok("log", "create", "x", uri=uri)
        await ledgerlog_ok("log", "append", "x", uri=uri, stdin=b"one\n")
        await ledgerlog_ok("metadata", "backup", backup, uri=uri)
        last = max(ledger["id"] for ledger in await _lines("ledger", "list", uri=uri))
        await ledgerlog_ok("log", "create", "later", uri=uri)
        await ledgerlog_ok("log", "append", "later", uri=uri, stdin=b"lost\n")
        assert "the cluster is live" in await refused("metadata", "restore", backup, uri=uri)
        await trio.to_thread.run_sync(_empty, uri.removeprefix("zk://"))
        restored = await said("metadata", "restore", backup, uri=uri)
        assert not restored["compared"]
        assert restored["first_new_ledger"] > last

        with trio.fail_after(PATIENCE_S):
            while not await _all_serve(uri):  # noqa: ASYNC110 (other processes register)
                await trio.sleep(0.1)
        with trio.fail_after(PATIENCE_S):
            # At first it may still be refused because the store was empty when it looked last.
            while "restored from a backup after this process" not in await _refusal(local.cluster.store):  # noqa: ASYNC110 (it is the store that changes)
                await trio.sleep(0.1)
        appended = await said("log", "append", "x", uri=uri, stdin=b"two\n")
        assert appended["first_offset"] == 1
        assert await ledgerlog_ok("log", "read", "x", "--raw", uri=uri) == b"one\ntwo\n"
        async with ledgerlog.connect(uri) as cluster:
            assert min((await cluster.ledgers.list())[1:]) >= restored["first_new_ledger"]


@pytest.mark.parametrize("place", ["alone", "bookie"])
async def test_repair_begins_anew_when_its_store_was_emptied_and_restored(tmp_path: Path, place: str) -> None:
    """What it knows from before must not get into the restored store. That holds inside a bookie, too, whose
    own store goes through restores."""
    path, backup = tmp_path / "metadata.sqlite", str(tmp_path / "backup")
    uri = f"sqlite:{path}"
    await ledgerlog_ok("metadata", "init", uri=uri)
    log = tmp_path / "repair.log"

    async def is_at_work() -> bool:
        return [worker["name"] for worker in (await said("repair", "status", uri=uri))["workers"]] == ["r1"]

    async def has_begun_anew() -> bool:
        return "was restored: everything begins anew" in log.read_text() and await is_at_work()

    async with open_children() as children:
        command = [*LEDGERLOG, "repair", "run", "--name", "r1", "--uri", uri]
        if place == "bookie":
            command = [
                sys.executable,
                "-m",
                "bookie",
                "run",
                str(tmp_path / "r1"),
                "--id",
                "r1",
                "--metadata",
                uri,
            ]
            command += ["--listen", "127.0.0.1:0", "--auto-recovery"]
        child = await children.start("repair", command, log_path=log)
        await until(is_at_work)
        await ledgerlog_ok("metadata", "backup", backup, uri=uri)
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"metadata.sqlite{suffix}").unlink(missing_ok=True)
        await ledgerlog_ok("metadata", "restore", backup, uri=uri)
        await until(has_begun_anew)
        await child.stop()


async def _refusal(store: MetadataStore) -> str:
    with pytest.raises(WrongCluster) as refused:
        await store.create("cursors", b"")
    return str(refused.value)


def _empty(hosts: str) -> None:
    client = KazooClient(hosts)
    client.start()
    try:
        for name in client.get_children("/"):
            if name != "zookeeper":
                with suppress(NotEmptyError):  # A bookie has just registered again; it is refused next.
                    client.delete(f"/{name}", recursive=True)
    finally:
        client.stop()
        client.close()
