"""Real processes over TLS: a local cluster, a rotation while it works, and who is refused at the start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from running_cluster import ledgerlog, ledgerlog_ok, running_cluster

import ledgerlog as library
from ledgerlog.cli.local_cluster import CLIENT, LocalCluster, certificates_path, local_cluster
from ledgerlog.cli.processes import open_children
from ledgerlog.cli.trial_certificates import make_certificates, tls_files
from ledgerlog.meta.grants import grant_at_first
from ledgerlog.model.access import Grant, Role
from ledgerlog.model.credentials import TLS
from ledgerlog.model.principal import Principal
from ledgerlog.wire.frame import Kind
from tests import certificates
from tests.commands import run_command
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes


def options(files: TLS) -> list[str]:
    return ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca]


async def test_a_local_cluster_with_tls_serves_those_who_have_a_certificate(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster"
    mine = options(tls_files(certificates_path(path), CLIENT))
    async with running_cluster(path, "--tls") as cluster:
        await ledgerlog_ok("log", "create", "orders", *mine, uri=cluster.uri)
        await ledgerlog_ok("log", "append", "orders", *mine, uri=cluster.uri, stdin=b"one\ntwo\n")
        assert await ledgerlog_ok("log", "read", "orders", "--raw", *mine, uri=cluster.uri) == b"one\ntwo\n"
        assert (await ledgerlog_ok("bookie", "list", *mine, uri=cluster.uri)).count(b"writable") == 3
        assert b"closed by certificates" in await ledgerlog_ok("access", "mode", *mine, uri=cluster.uri)
        for files, why in (
            ([], "this cluster is closed by certificates, but this process has none"),
            (options(stranger(path)), "it does not trust the authority of this process's certificate"),
        ):
            listed = await ledgerlog("bookie", "list", *files, uri=cluster.uri)
            assert b"writable" not in listed.stdout
            ran = await ledgerlog("log", "append", "orders", *files, uri=cluster.uri, stdin=b"three\n")
            assert ran.status == 1
            assert why in ran.stderr
        assert await ledgerlog_ok("log", "read", "orders", "--raw", *mine, uri=cluster.uri) == b"one\ntwo\n"
    # A cluster that has certificates is never run without them.
    async with running_cluster(path) as cluster:
        assert await ledgerlog_ok("log", "read", "orders", "--raw", *mine, uri=cluster.uri) == b"one\ntwo\n"
        ran = await ledgerlog("log", "append", "orders", uri=cluster.uri, stdin=b"three\n")
        assert ran.status == 1


def stranger(path: Path) -> TLS:
    files = certificates.files("client/client", authority="theirs")
    return TLS(cert=files.cert, key=files.key, ca=certificates_path(path) / "ca.pem")


# --- rotation -----------------------------------------------------------------------------------------


class Appending:
    """A writer that appends without a pause and counts."""

    def __init__(self) -> None:
        self.appended = 0
        self._one_more = trio.Event()

    async def run(self, writer: library.LogWriter) -> None:
        while True:
            await writer.append(b"%d" % self.appended)
            self.appended += 1
            self._one_more.set()
            self._one_more = trio.Event()

    async def go_on(self, count: int = 20) -> None:
        """Return once ``count`` more records are appended."""
        with trio.fail_after(PATIENCE_S):
            for _ in range(count):
                await self._one_more.wait()


async def check_serves(local: LocalCluster, files: TLS, *, expected: int) -> None:
    """Connect anew to every bookie, and read the first records."""
    async with library.connect(local.uri, tls=files) as cluster:
        with trio.fail_after(PATIENCE_S):
            for bookie_id in local.bookie_ids:
                await cluster.client.pool.connection(bookie_id).request(Kind.INFO, timeout_s=PATIENCE_S)
            log = await cluster.open_log("orders")
            seen = 0
            async with log.read("earliest") as reader:
                async for record in reader:
                    assert record.data == b"%d" % seen
                    seen += 1
                    if seen == expected:
                        return


async def test_a_start_that_is_refused_leaves_the_certificates_of_the_running_cluster_alone(
    tmp_path: Path,
) -> None:
    async with local_cluster(tmp_path, bookies=1, with_tls=True):
        content = {path: path.read_bytes() for path in certificates_path(tmp_path).rglob("*.*")}
        ran = await run_command("ledgerlog", "cluster", "run", str(tmp_path), "--tls")
        assert (ran.status, str(os.getpid()) in ran.stderr) == (1, True), ran.stderr
        assert {path: path.read_bytes() for path in certificates_path(tmp_path).rglob("*.*")} == content


async def test_certificates_and_their_authority_are_exchanged_while_a_writer_appends(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    directory = certificates_path(path)
    everybody = [Principal("bookie", f"bookie-{n}") for n in (1, 2, 3)]
    everybody += [Principal("admin", "admin"), CLIENT]
    async with local_cluster(path, bookies=3, with_tls=True) as local:
        mine = tls_files(directory, CLIENT)
        await grant_at_first(local.cluster.client.store, CLIENT, Grant(Role.WRITER))
        async with library.connect(local.uri, tls=mine) as cluster:
            log = await cluster.create_log("orders", replication=library.Replication(3, 3, 2))
            async with log.writer() as writer, trio.open_nursery() as nursery:
                appending = Appending()
                nursery.start_soon(appending.run, writer)
                await appending.go_on()

                async def settle() -> None:
                    """Tell the bookies, end one of them so that new connections are made, and check."""
                    for child in local.bookies.values():
                        child.send_signal(signal.SIGHUP)
                    victim = "bookie-2"
                    local.bookies[victim].send_signal(signal.SIGTERM)
                    await local.bookies[victim].wait()
                    await appending.go_on()
                    await local.start_serving(victim)
                    await appending.go_on()
                    await check_serves(local, mine, expected=appending.appended)

                # New certificates of the same authority.
                make_certificates(directory, everybody, again=True)
                await settle()

                # A new authority beside the old one, then certificates of it, then without the old one.
                new = tmp_path / "new"
                make_certificates(new, everybody)
                both = (directory / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes()
                (directory / "ca.pem").write_bytes(both)
                await settle()
                for who in everybody:
                    made, used = tls_files(new, who), tls_files(directory, who)
                    shutil.copy(made.key, used.key)
                    shutil.copy(made.cert, used.cert)
                await settle()
                (directory / "ca.pem").write_bytes((new / "ca.pem").read_bytes())
                await settle()
                nursery.cancel_scope.cancel()
    for child in local.bookies.values():
        assert "Traceback" not in local.log_path(child.name).read_text()


# --- refused at the start -----------------------------------------------------------------------------


async def bookie_command(tmp_path: Path, files: TLS, *more: str) -> list[str]:
    uri = f"sqlite:{tmp_path / 'metadata.sqlite'}"
    await ledgerlog("metadata", "init", uri=uri)
    run = [sys.executable, "-m", "bookie", "run", str(tmp_path / "b"), "--metadata", uri, "--json"]
    return [*run, *options(files), *more]


@pytest.mark.parametrize(
    ("principal", "more", "why"),
    [
        (
            "client/billing",
            [],
            "billing.pem names client/billing, but this bookie needs a certificate for bookie/",
        ),
        (
            "bookie/b1",
            ["--id", "b2"],
            "b1.pem names bookie/b1, but this bookie needs a certificate for bookie/",
        ),
    ],
)
async def test_a_bookie_does_not_start_with_the_certificate_of_somebody_else(
    principal: str, more: list[str], why: str, tmp_path: Path
) -> None:
    command = await bookie_command(tmp_path, certificates.files(principal), *more)
    ran = await run_command("bookie", *command[3:])
    assert ran.status == 1
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("bookie: Unauthenticated: ")
    assert why in line


def has_reloaded(log: Path, count: int) -> bool:
    return log.read_text().count("certificates loaded again") >= count


async def test_a_bookie_with_certificates_has_their_id_and_survives_a_hangup(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    async with open_children() as children:
        command = await bookie_command(tmp_path, certificates.files("bookie/b7"))
        child = await children.start("b7", command, pipe_out=True, log_path=log)
        assert child.stdout is not None
        with trio.fail_after(PATIENCE_S):
            assert json.loads(await child.stdout.receive_some())["id"] == "b7"
            for count in (1, 2):
                child.send_signal(signal.SIGHUP)
                await until(partial(has_reloaded, log, count))
            child.send_signal(signal.SIGTERM)
            assert await child.wait() == 0


# --- the command --------------------------------------------------------------------------------------


async def access_certificates(*words: str) -> tuple[int, list[str], str]:
    ran = await run_command("ledgerlog", "access", "certificates", *words)
    return ran.status, ran.stdout.decode().splitlines(), ran.stderr


async def test_the_command_makes_certificates_that_only_their_owner_reads_and_makes_them_once(
    tmp_path: Path,
) -> None:
    where = tmp_path / "certificates"
    status, lines, _ = await access_certificates(str(where), "client/billing", "bookie/b1", "--json")
    assert status == 0
    made = [json.loads(line) for line in lines]
    assert [(each["principal"], each["made"]) for each in made] == [
        ("client/billing", True),
        ("bookie/b1", True),
    ]
    keys = [where / "ca.key", *(Path(each["key"]) for each in made)]
    assert {os.stat(key).st_mode & 0o777 for key in keys} == {0o600}
    assert {os.stat(key.parent).st_mode & 0o777 for key in keys} == {0o700}
    content = {path: path.read_bytes() for path in where.rglob("*.*")}
    _, lines, _ = await access_certificates(str(where), "client/billing", "client/new")
    assert ["it was there" in line for line in lines] == [True, False]
    assert {path: path.read_bytes() for path in content} == content
    await access_certificates(str(where), "client/billing", "--renew")
    changed = {path.name for path, before in content.items() if path.read_bytes() != before}
    assert changed == {"billing.key", "billing.pem"}

    (where / "ca.key").unlink()
    status, _, complaint = await access_certificates(str(where), "client/more")
    assert status == 1
    assert "ca.pem exists but" in complaint
    assert (where / "ca.pem").read_bytes() == content[where / "ca.pem"]


def test_a_key_that_does_not_belong_to_its_certificate_is_replaced(tmp_path: Path) -> None:
    """A process was killed while it made new certificates."""
    principals = [Principal("client", name) for name in ("billing", "whole", "own")]
    broken, whole, own = made = make_certificates(tmp_path, principals)
    shutil.copy(whole.key, broken.key)
    Path(own.key).write_text("a key that only its owner can read")
    assert make_certificates(tmp_path, principals) == [broken]
    for files in made[:2]:
        ssl.create_default_context().load_cert_chain(files.cert, files.key)
    assert Path(own.key).read_text() == "a key that only its owner can read"
