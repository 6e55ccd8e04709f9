"""A cluster on a ZooKeeper that identifies its clients, with the installed commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from ledgerlog.cli.processes import open_children
from ledgerlog.meta.uri import make_cluster_at, parse_uri
from ledgerlog.model.credentials import Credentials
from tests.commands import run_command
from tests.integration.running_cluster import ledgerlog as run_ledgerlog
from tests.integration.running_cluster import ledgerlog_ok
from tests.waiting import until
from tests.zookeepers import SecuredServer, new_chroot

pytestmark = pytest.mark.processes

REPLICATION = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")


def credentials(directory: Path, name: str, password: str = "") -> Path:
    path = directory / f"{name}.toml"
    path.write_text(f'scheme = "digest"\nuser = "{name}"\npassword = "{password or name + "-hush"}"\n')
    path.chmod(0o600)
    return path


async def said(*args: str, uri: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await ledgerlog_ok(*args, "--json", uri=uri))
    return found


async def test_a_cluster_behind_lists_of_rights(tmp_path: Path, secured_zookeeper: SecuredServer) -> None:
    owner, reader = credentials(tmp_path, "owner"), credentials(tmp_path, "reader")
    wrong = credentials(tmp_path, "wrong").rename(tmp_path / "w.toml")
    wrong.write_text('scheme = "digest"\nuser = "owner"\npassword = "not-hush"\n')
    uri = f"zk://{secured_zookeeper.hosts}{new_chroot()}/cluster"

    async def refused(*args: str, by: Path | None) -> str:
        ran = await run_ledgerlog(*args, *([] if by is None else ["--zk-auth-file", str(by)]), uri=uri)
        assert ran.status == 1, ran.stdout
        assert "hush" not in ran.stderr
        (line,) = ran.stderr.splitlines()
        return line

    made = await said(
        "metadata", "init", "--open", "--zk-auth-file", str(owner), "--zk-read", f"@{reader}", uri=uri
    )
    assert made["made"]
    as_owner, as_reader = ("--zk-auth-file", str(owner)), ("--zk-auth-file", str(reader))
    async with open_children() as children:
        bookie = [sys.executable, "-m", "bookie", "run", str(tmp_path / "b1"), "--metadata", uri]
        await children.start("b1", [*bookie, "--id", "b1", *as_owner], log_path=tmp_path / "b1.log")

        async def is_there() -> bool:
            ran = await run_ledgerlog("bookie", "list", *as_reader, uri=uri)
            return b"b1" in ran.stdout

        await until(is_there)
        await said("log", "create", "orders", *REPLICATION, *as_owner, uri=uri)
        await ledgerlog_ok("log", "append", "orders", *as_owner, uri=uri, stdin=b"one\ntwo\n")
        assert await ledgerlog_ok("log", "read", "orders", "--raw", *as_reader, uri=uri) == b"one\ntwo\n"
        assert "does not let digest user reader" in await refused(
            "log", "create", "mine", *REPLICATION, by=reader
        )
        assert "without credentials" in await refused("log", "list", by=None)
        assert "the password" in await refused("log", "list", by=wrong)

        # A second owner, while the cluster works.
        second = credentials(tmp_path, "second")
        told = await said(
            "metadata", "secure", "--zk-all", f"@{second}", "--zk-read", f"@{reader}", *as_owner, uri=uri
        )
        assert told["changed"] == told["znodes"] > 10
        as_second = ("--zk-auth-file", str(second))
        await ledgerlog_ok("log", "append", "orders", *as_second, uri=uri, stdin=b"three\n")
        found = await said("metadata", "check", *as_second, uri=uri)
        assert (found["sound"], found["other_lists"]) == (True, 0)

        # Rights survive a backup into another chroot.
        other = uri.replace("/cluster", "/restored")
        await said("metadata", "backup", str(tmp_path / "b"), *as_owner, uri=uri)
        await said("metadata", "restore", str(tmp_path / "b"), *as_owner, uri=other)
        ran = await run_ledgerlog("log", "list", *as_second, uri=other)
        assert ran.status == 1
        assert b"orders" in await ledgerlog_ok("log", "list", *as_owner, uri=other)


async def test_init_says_that_an_earlier_one_was_killed_before_it_set_the_list_of_the_chroot(
    tmp_path: Path, secured_zookeeper: SecuredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, chroot = credentials(tmp_path, "owner"), new_chroot()
    uri = f"zk://{secured_zookeeper.hosts}{chroot}"
    as_owner = ("--zk-auth-file", str(file))
    client = KazooClient(secured_zookeeper.hosts)
    await trio.to_thread.run_sync(client.start)
    try:
        await trio.to_thread.run_sync(client.create, chroot)
    finally:
        client.stop()
        client.close()

    async def be_killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ledgerlog.meta.uri.secure_at", be_killed)
    with pytest.raises(KeyboardInterrupt):
        await make_cluster_at(parse_uri(uri), credentials=Credentials(zk_auth_file=file))
    told = await ledgerlog_ok("metadata", "init", "--open", *as_owner, uri=uri)
    assert b"is there already; nothing was changed\n" in told
    assert b"znodes whose list of rights is not the cluster's: 1; 'ledgerlog metadata secure' sets it" in told
    await said("metadata", "secure", *as_owner, uri=uri)
    assert (await said("metadata", "init", "--open", *as_owner, uri=uri))["other_lists"] == 0
    assert b"znodes" not in await ledgerlog_ok("metadata", "init", "--open", *as_owner, uri=uri)


async def test_a_cluster_over_tls(tmp_path: Path, secured_zookeeper: SecuredServer) -> None:
    uri = f"zks://{secured_zookeeper.tls_hosts}{new_chroot()}"
    tls = secured_zookeeper.tls
    files = ("--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca)
    assert (await said("metadata", "init", *files, uri=uri))["made"]
    rights = (await said("metadata", "secure", *files, uri=uri))["rights"]
    assert [right.partition(":")[0] for right in rights] == ["x509"]
    saved = await said("metadata", "backup", str(tmp_path / "b"), *files, uri=uri)
    assert saved["nodes"] == 2, "its id, and how it is closed"
    plain = f"zk://{secured_zookeeper.hosts}/{uri.rpartition('/')[2]}"
    ran = await run_ledgerlog("metadata", "backup", str(tmp_path / "c"), uri=plain)
    assert (ran.status, "without credentials" in ran.stderr) == (1, True)


async def test_one_certificate_is_for_zookeeper_and_for_bookies(
    tmp_path: Path, secured_zookeeper: SecuredServer
) -> None:
    uri = f"zks://{secured_zookeeper.tls_hosts}{new_chroot()}"

    def options(principal: str) -> list[str]:
        tls = secured_zookeeper.tls_of(principal)
        return ["--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca]

    subjects = ["x509:CN=bookie/b1", "x509:CN=client/client"]
    everybody = [word for subject in subjects for word in ("--zk-all", subject)]
    everybody += ["--zk-read", "world:anyone"]
    await said("metadata", "init", *everybody, *options("admin/ann"), uri=uri)
    await said("access", "grant", "client/client", "writer", *options("admin/ann"), uri=uri)
    mine = options("client/client")
    async with open_children() as children:
        bookie = [sys.executable, "-m", "bookie", "run", str(tmp_path / "b1"), "--metadata", uri]
        await children.start("b1", [*bookie, *options("bookie/b1")], log_path=tmp_path / "b1.log")

        async def is_there() -> bool:
            return b"b1" in (await run_ledgerlog("bookie", "list", *mine, uri=uri)).stdout

        await until(is_there)
        await said("log", "create", "orders", *REPLICATION, *mine, uri=uri)
        await ledgerlog_ok("log", "append", "orders", *mine, uri=uri, stdin=b"one\ntwo\n")
        assert await ledgerlog_ok("log", "read", "orders", "--raw", *mine, uri=uri) == b"one\ntwo\n"

        # A certificate that is good for ZooKeeper and names nobody is no reason to speak plainly to bookies.
        nobody = secured_zookeeper.tls
        files = ["--tls-cert", nobody.cert, "--tls-key", nobody.key, "--tls-ca", nobody.ca]
        ran = await run_ledgerlog("log", "read", "orders", *files, uri=uri)
        assert ran.status == 1
        assert "names no principal" in ran.stderr


async def test_the_principal_of_a_file_is_printed_and_its_password_is_not(tmp_path: Path) -> None:
    path = credentials(tmp_path, "super", "test")
    ran = await run_command("ledgerlog", "metadata", "principal", str(path))
    assert ran.stdout == b"digest:super:D/InIHSb7yEEbrWz8b9l71RjZJU=\n"
