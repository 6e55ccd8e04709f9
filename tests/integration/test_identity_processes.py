"""Clusters that are closed by a secret, as real processes and files."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from running_cluster import ledgerlog, ledgerlog_ok, running_cluster

import ledgerlog as library
from ledgerlog.cli.local_cluster import local_cluster
from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.errors import BookieUnavailable, Unauthenticated
from ledgerlog.meta.admission import STORED_ADMISSION
from ledgerlog.meta.belonging import join_cluster
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.model.admission import Admission
from ledgerlog.model.codec import encode_record
from ledgerlog.wire.frame import Kind
from tests.commands import run_command
from tests.waiting import until

pytestmark = pytest.mark.processes

LONE = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")


async def said(*args: str, uri: str) -> Any:
    return json.loads(await ledgerlog_ok(*args, "--json", uri=uri))


async def access(*args: str) -> str:
    """Return the output of a command of ``ledgerlog access`` that needs no cluster."""
    ran = await run_command("ledgerlog", "access", *args)
    assert ran.status == 0, ran.stderr
    return ran.stdout.decode()


async def start_bookie(
    children: ChildProcesses, root: Path, uri: str, *options: str, name: str = "b1"
) -> Child:
    command = [sys.executable, "-m", "bookie", "run", str(root / name), "--metadata", uri, "--id", name]
    return await children.start(name, [*command, *options], log_path=root / f"{name}.log")


@asynccontextmanager
async def lone_bookie(root: Path, uri: str, *options: str) -> AsyncIterator[Child]:
    async with open_children() as children:
        bookie = await start_bookie(children, root, uri, *options)

        async def is_there() -> bool:
            return b"b1" in (await ledgerlog("bookie", "list", *options, uri=uri)).stdout

        await until(is_there)
        yield bookie


async def test_a_new_cluster_is_closed_and_its_secret_lies_beside_it(tmp_path: Path) -> None:
    metadata = tmp_path / "m.sqlite"
    uri, secret = f"sqlite:{metadata}", tmp_path / "m.sqlite.secret"
    made = await said("metadata", "init", uri=uri)
    assert (made["mode"], made["secret_file"]) == ("closed", str(secret))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert await said("access", "mode", uri=uri) == {"mode": "closed", "by": "secret"}
    async with lone_bookie(tmp_path, uri) as bookie:
        await ledgerlog_ok("log", "create", "orders", *LONE, uri=uri)
        await ledgerlog_ok("log", "append", "orders", uri=uri, stdin=b"one\n")
        bookie.send_signal(signal.SIGHUP)
        await until(lambda: "the secret file was read again" in (tmp_path / "b1.log").read_text())
        await ledgerlog_ok("log", "create", "more", *LONE, uri=uri)
        kept = tmp_path / "elsewhere"
        os.rename(secret, kept)
        refused = await ledgerlog("log", "append", "orders", uri=uri, stdin=b"two\n")
        assert refused.status == 1
        assert "this cluster is closed by a secret, but this process has none: give --secret-file" in (
            refused.stderr
        )
        await ledgerlog_ok("log", "append", "orders", "--secret-file", str(kept), uri=uri, stdin=b"two\n")
        kept.chmod(0o644)
        refused = await ledgerlog("log", "read", "orders", "--secret-file", str(kept), uri=uri)
        assert "other users can access the secret file" in refused.stderr
        strange = tmp_path / "strange"
        await access("new-secret", str(strange))
        refused = await ledgerlog(
            "log", "append", "more", "--secret-file", str(strange), uri=uri, stdin=b"three\n"
        )
        assert refused.status == 1
        assert "does not accept the secret of admin/cluster" in refused.stderr
    log = (tmp_path / "b1.log").read_text()
    assert "with a secret that is not this cluster's" in log
    assert "this cluster is open" not in log


async def test_commands_that_ask_bookies_say_why_one_does_not_answer(tmp_path: Path) -> None:
    uri, strange = f"sqlite:{tmp_path / 'm.sqlite'}", tmp_path / "strange"
    await ledgerlog_ok("metadata", "init", uri=uri)
    await access("new-secret", str(strange))
    others = ("--secret-file", str(strange))
    why = "does not accept the secret of admin/cluster"
    async with lone_bookie(tmp_path, uri):
        await ledgerlog_ok("log", "create", "orders", *LONE, uri=uri)
        await ledgerlog_ok("log", "append", "orders", uri=uri, stdin=b"one\n")
        assert (await said("bookie", "list", uri=uri))["why"] is None
        listed = await said("bookie", "list", *others, uri=uri)
        assert listed["state"] == "unavailable"
        assert why in listed["why"]
        (ledger,) = (await said("log", "show", "orders", uri=uri))["ledgers"]
        commands = [
            ("bookie", "list"),
            ("ledger", "verify", str(ledger["id"])),
            ("metadata", "check"),
            ("repair", "audit", "--entries", "all", "--dry-run"),
        ]
        for command in commands:
            assert why.encode() not in (await ledgerlog(*command, uri=uri)).stdout
            for form in ((), ("--json",)):
                ran = await ledgerlog(*command, *others, *form, uri=uri)
                assert why.encode() in ran.stdout, command
                assert ran.status == (0 if command[1] == "list" else 1)
    assert "it is not registered" in (await said("bookie", "list", uri=uri))["why"]


async def test_an_open_cluster_says_so_and_asks_nobody(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path / 'm.sqlite'}"
    assert (await said("metadata", "init", "--open", uri=uri))["mode"] == "open"
    async with lone_bookie(tmp_path, uri):
        await ledgerlog_ok("log", "create", "orders", *LONE, uri=uri)
    assert (tmp_path / "b1.log").read_text().count("this cluster is open") == 1
    assert not (tmp_path / "m.sqlite.secret").exists()


async def test_a_change_of_the_mode_keeps_the_place_of_the_secret_and_the_keys_of_a_later_version(
    tmp_path: Path,
) -> None:
    uri = f"sqlite:{tmp_path / 'm.sqlite'}"
    await said("metadata", "init", uri=uri)
    later = encode_record({"later": [1, 2]})

    async def stored(change: Callable[[Admission], Admission] = lambda now: now) -> Admission:
        async with open_sqlite_store(tmp_path / "m.sqlite") as store:
            await join_cluster(store)
            return await STORED_ADMISSION.change(store, change)

    await stored(lambda now: attrs.evolve(now, file="/the.secret", unknown=later))
    for mode in ("open", "closing", "closed"):
        assert (await said("access", "mode", mode, uri=uri))["mode"] == mode
        now = await stored()
        assert (now.name, now.file, now.unknown) == (mode, "/the.secret", later)


async def test_a_principal_proves_itself_with_a_file_of_its_own(tmp_path: Path) -> None:
    uri, secret = f"sqlite:{tmp_path / 'm.sqlite'}", tmp_path / "m.sqlite.secret"
    await said("metadata", "init", uri=uri)
    mine = tmp_path / "billing.secret"
    made = await access("secret", "client/billing", str(mine), "--secret-file", str(secret))
    assert "the secret of client/billing" in made
    assert mine.read_text().split(":")[1].strip() not in made
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    await ledgerlog_ok("access", "grant", "client/billing", "writer", uri=uri)
    async with lone_bookie(tmp_path, uri), library.connect(uri, secret_file=mine) as cluster:
        ledger = await cluster.ledgers.create(replication=library.Replication(1, 1, 1))
        assert await ledger.append(b"x") == 0
    async with open_children() as children:
        await start_bookie(children, tmp_path, uri, "--secret-file", str(mine), name="b2")
        await until(lambda: "a bookie needs the cluster's" in (tmp_path / "b2.log").read_text())


async def answers(cluster: library.Cluster, bookie_id: str) -> bool:
    try:
        await cluster.client.pool.connection(bookie_id).request(Kind.INFO, timeout_s=2.0)
    except BookieUnavailable:
        return False
    return True


async def test_a_live_cluster_is_closed_and_its_secret_exchanged_and_no_append_fails(
    tmp_path: Path,
) -> None:
    """Do the steps of the page on processes, while a writer appends all the time."""
    secret = tmp_path / "s"
    async with local_cluster(tmp_path / "cluster", bookies=3, is_closed=False) as local:
        beside = Path(f"{local.uri.removeprefix('sqlite:')}.secret")
        appended = 0

        async def restart_all() -> None:
            for name in local.bookie_ids:
                await local.bookies[name].stop()
                await local.start_bookie(name)
                # Do not use the runner's URI: it has no secret.
                async with library.connect(local.uri) as now:
                    await until(lambda: answers(now, name))  # noqa: B023 (called before the loop goes on)

        async def keep_appending(uri: str, *, task_status: trio.TaskStatus[None]) -> None:
            nonlocal appended
            async with library.connect(uri) as cluster:
                ledger = await cluster.ledgers.create(replication=library.Replication(3, 3, 2))
                await ledger.append(b"first")
                task_status.started()
                while True:
                    await ledger.append(b"x")
                    appended += 1
                    await trio.sleep(0.01)

        async def some_more() -> None:
            wanted = appended + 20
            await until(lambda: appended >= wanted)

        await access("new-secret", str(beside))
        refused = await ledgerlog("access", "mode", "closed", uri=local.uri)
        assert refused.status == 1
        assert "3 of 3 bookies would be lost" in refused.stderr
        assert await said("access", "mode", "closing", uri=local.uri) == {"mode": "closing", "by": "secret"}
        async with trio.open_nursery() as nursery:
            await nursery.start(keep_appending, local.uri)
            await restart_all()
            assert (await said("access", "mode", "closed", uri=local.uri))["mode"] == "closed"
            await some_more()
            os.rename(beside, secret)
            with pytest.raises(Unauthenticated, match="--secret-file FILE"):
                async with library.connect(local.uri):
                    pass
            os.rename(secret, beside)
            await access("rotate", str(beside))
            await restart_all()
            await some_more()
            await access("rotate", str(beside), "--settle")
            await some_more()
            nursery.cancel_scope.cancel()


async def test_cluster_run_is_closed_to_who_lacks_its_secret(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster") as cluster:
        await ledgerlog_ok("log", "create", "orders", uri=cluster.uri)
        beside = Path(f"{cluster.uri.removeprefix('sqlite:')}.secret")
        os.rename(beside, tmp_path / "kept")
        assert "closed by a secret" in (await ledgerlog("log", "list", uri=cluster.uri)).stderr
