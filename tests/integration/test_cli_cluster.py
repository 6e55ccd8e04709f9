"""``ledgerlog cluster run``, and the commands against real bookie processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from running_cluster import LEDGERLOG, RunningCluster, ledgerlog, ledgerlog_ok, running_cluster, start_cluster

from bookie.server.options import read_config
from bookie.storage.index.kinds import ROCKSDB, kind_of
from ledgerlog.cli import local_cluster as local_clusters
from ledgerlog.cli.local_cluster import local_cluster
from ledgerlog.cli.processes import Child, ChildFailed, open_children
from ledgerlog.cluster import connect
from ledgerlog.errors import StorageLocked
from ledgerlog.model.quorum import Replication
from ledgerlog.net.tcp import parse_address
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

MB = 1_000_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RunningCluster]:
    async with running_cluster(tmp_path / "cluster") as running:
        yield running


async def read_line(child: Child) -> bytes:
    assert child.stdout is not None
    line = b""
    with trio.fail_after(PATIENCE_S):
        while not line.endswith(b"\n"):
            line += await child.stdout.receive_some(1)
    return line


def text_of(megabytes: int) -> bytes:
    """Lines of every kind: short, empty, of a megabyte, no text at all; without a newline at the end."""
    lines = [b"", b"a line", bytes(range(10)) + bytes(range(11, 256)), b"x" * 99, b"\r", b""]
    ordinary = (b"\n".join(lines) + b"\n") * 1000
    text = b"".join([b"y" * MB, b"\n\n\n", ordinary, b"z" * MB, b"\n"])
    return (text * (megabytes * MB // len(text) + 1))[: megabytes * MB] + b"\nend"


async def test_a_cluster_serves_is_listed_and_stops_gracefully_on_a_signal(cluster: RunningCluster) -> None:
    listed = await ledgerlog_ok("bookie", "list", "--json", uri=cluster.uri)
    bookies = [json.loads(line) for line in listed.splitlines()]
    assert [bookie["id"] for bookie in bookies] == ["bookie-1", "bookie-2", "bookie-3"]
    assert {bookie["state"] for bookie in bookies} == {"writable"}
    os.kill(cluster.pids["bookie-3"], signal.SIGSTOP)  # A stopped bookie delays nothing for long.
    cluster.child.send_signal(signal.SIGTERM)
    assert await cluster.child.wait() == 0
    assert cluster.says() == ""


async def test_a_bookie_that_dies_is_told_and_started_again(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "2") as cluster:
        os.kill(cluster.pids["bookie-2"], signal.SIGKILL)
        await cluster.wait_for("bookie-2 serves again")
        assert "was ended by SIGKILL; starting it again" in cluster.says()
        listed = await ledgerlog_ok("bookie", "list", "--json", uri=cluster.uri)
        assert [json.loads(line)["state"] for line in listed.splitlines()] == ["writable", "writable"]


async def test_a_directory_has_one_cluster_at_a_time(shared: RunningCluster) -> None:
    caught = None
    try:
        async with local_cluster(Path(shared.uri.removeprefix("sqlite:")).parent, bookies=1):
            pass
    except StorageLocked as error:
        caught = error
    assert caught is not None
    assert caught.pid == shared.child.pid


async def make_with_damage(path: Path, bookies: int, damaged: int) -> None:
    """Make a cluster, and damage the directory of one bookie."""
    async with local_cluster(path, bookies=bookies):
        pass
    (path / f"bookie-{damaged}" / "cookie").write_bytes(b"not a cookie")


async def test_a_bookie_that_never_comes_to_serve_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_clusters, "START_ATTEMPTS", 2)
    await make_with_damage(tmp_path, bookies=2, damaged=2)
    caught = None
    try:
        async with local_cluster(tmp_path, bookies=2):
            pass
    except ChildFailed as error:
        caught = error
    assert caught is not None
    assert "bookie-2" in str(caught)
    assert "cookie" in str(caught), "its last words say why"
    assert "given up after 2 starts" in str(caught)


async def test_a_bookie_that_does_not_start_is_told_and_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_clusters, "START_ATTEMPTS", 2)
    await make_with_damage(tmp_path, bookies=3, damaged=2)
    said: list[str] = []
    async with local_cluster(tmp_path, bookies=3, report=said.append) as local:
        assert local.down == ["bookie-2"]
        assert (said[0].count("cookie") > 0, "bookie-2 stays down" in said[0]) == (True, True)
        assert sorted(info.bookie_id for info in local.cluster.bookies.writable()) == ["bookie-1", "bookie-3"]
    for number in (1, 3):
        (tmp_path / f"bookie-{number}" / "cookie").write_bytes(b"not a cookie")
    with pytest.raises(ChildFailed):
        async with local_cluster(tmp_path, bookies=3, report=said.append):
            pass


async def test_a_cluster_that_a_program_made_for_itself_is_open_and_cluster_run_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster"
    async with connect(f"file:{path}"):
        pass
    async with running_cluster(path) as running:
        await running.wait_for("this cluster is open")
    async with running_cluster(tmp_path / "other") as running:
        assert "open" not in running.says()


async def test_the_options_of_a_cluster_are_written_once_and_then_its_owners(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, bookies=1):
        pass
    config = tmp_path / "bookie.toml"
    assert read_config(str(config)).disk_read_only_ratio == 1.0
    config.write_text("segment_bytes = 8388608\n")
    async with local_cluster(tmp_path, bookies=1):
        pass
    assert config.read_text() == "segment_bytes = 8388608\n"


async def test_bookies_are_not_started_again_with_a_configuration_that_they_refuse(tmp_path: Path) -> None:
    (tmp_path / "bookie.toml").write_text("segment_byts = 1\n")
    caught = None
    try:
        async with local_cluster(tmp_path / "cluster", bookies=1, config=tmp_path / "bookie.toml"):
            pass
    except ChildFailed as error:
        caught = error
    assert caught is not None
    assert "bookie-1" in str(caught)
    assert "there is no option 'segment_byts'" in str(caught)
    said = (tmp_path / "cluster" / "bookie-1.log").read_text(encoding="utf-8")
    assert said.count("segment_byts") == 1, "it was started once"


async def test_a_cluster_gives_its_bookies_the_index_that_is_asked_for(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "1", "--index", "rocksdb"):
        kind = kind_of(str(tmp_path / "cluster" / "bookie-1" / "index"))
    assert kind is ROCKSDB


async def test_all_bookies_that_a_directory_has_run_whatever_is_asked_for(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "cluster", bookies=2):
        pass
    async with running_cluster(tmp_path / "cluster", "--bookies", "1") as running:
        assert sorted(running.pids) == ["bookie-1", "bookie-2"]
        assert "holds the data of 2 bookies" in running.says()


async def test_twenty_five_megabytes_come_back_byte_for_byte(shared: RunningCluster, tmp_path: Path) -> None:
    text = text_of(25)
    (tmp_path / "text").write_bytes(text)
    await ledgerlog_ok("log", "create", "text", uri=shared.uri)
    with trio.fail_after(PATIENCE_S):
        appended = json.loads(
            await ledgerlog_ok(
                "log", "append", "text", "--input", str(tmp_path / "text"), "--json", uri=shared.uri
            )
        )
        assert appended["records"] == text.count(b"\n") + 1
        assert appended["last_offset"] == appended["records"] - 1
        assert await ledgerlog_ok("log", "read", "text", "--raw", uri=shared.uri) == text
    # Append through a pipe to the records that are there.
    piped = json.loads(
        await ledgerlog_ok("log", "append", "text", "--json", uri=shared.uri, stdin=text[: 3 * MB] + b"\n")
    )
    assert (piped["first_offset"], piped["epoch"]) == (appended["records"], 2)
    rest = await ledgerlog_ok(
        "log", "read", "text", "--raw", "--start", str(piped["first_offset"]), uri=shared.uri
    )
    assert rest == text[: 3 * MB] + b"\n"


async def test_a_follower_shows_records_as_they_come_and_ends_well_when_interrupted(
    shared: RunningCluster,
) -> None:
    await ledgerlog_ok("log", "create", "live", uri=shared.uri)
    async with open_children() as children:
        follower = await children.start(
            "follower",
            [*LEDGERLOG, "log", "read", "live", "--follow", "--raw", "--uri", shared.uri],
            pipe_out=True,
        )
        writer = await children.start(
            "writer", [*LEDGERLOG, "log", "append", "live", "--uri", shared.uri], pipe_in=True, pipe_out=True
        )
        assert writer.stdin is not None
        for line in (b"one\n", b"two\n"):
            await writer.stdin.send_all(line)
            assert await read_line(follower) == line
        follower.send_signal(signal.SIGINT)
        assert await follower.wait() == 0
        await writer.stdin.send_all(b"three, whose line is not finished")
        await writer.stdin.aclose()
        assert b"3 records" in await read_line(writer)
        assert await writer.wait() == 0


@asynccontextmanager
async def appending(text: bytes, log: str, uri: str, log_path: Path) -> AsyncIterator[Child]:
    """A ``log append`` that has appended the whole lines of ``text``, and waits for more."""
    async with open_children() as children:
        command = [*LEDGERLOG, "log", "append", log, "--uri", uri]
        writer = await children.start("writer", command, pipe_in=True, log_path=log_path)
        assert writer.stdin is not None
        await writer.stdin.send_all(text)
        lines = text[: text.rindex(b"\n") + 1]
        with trio.fail_after(PATIENCE_S):
            while await ledgerlog_ok("log", "read", log, "--raw", uri=uri) != lines:
                pass
        yield writer


async def test_an_interrupted_append_says_how_far_it_came(shared: RunningCluster, tmp_path: Path) -> None:
    await ledgerlog_ok("log", "create", "cut", uri=shared.uri)
    async with appending(b"one\ntwo\nhalf a line", "cut", shared.uri, tmp_path / "stderr") as writer:
        writer.send_signal(signal.SIGINT)
        assert await writer.wait() == 128 + signal.SIGINT
    said = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert said == ("ledgerlog: interrupted by SIGINT; 2 records are in the log, at offsets 0 to 1\n")


async def test_a_reader_of_the_output_that_goes_away_is_no_complaint(
    shared: RunningCluster, tmp_path: Path
) -> None:
    await ledgerlog_ok("log", "create", "long", uri=shared.uri)
    await ledgerlog_ok("log", "append", "long", uri=shared.uri, stdin=b"a line\n" * 200_000)
    async with open_children() as children:
        reader = await children.start(
            "reader",
            [*LEDGERLOG, "log", "read", "long", "--uri", shared.uri],
            pipe_out=True,
            log_path=tmp_path / "stderr",
        )
        assert b"a line" in await read_line(reader)
        assert reader.stdout is not None
        await reader.stdout.aclose()
        assert await reader.wait() == 128 + signal.SIGPIPE
    assert (tmp_path / "stderr").read_bytes() == b""


async def test_killing_the_runner_kills_the_bookies_and_the_next_one_starts_at_once(tmp_path: Path) -> None:
    async with open_children() as children:
        first = await start_cluster(children, tmp_path / "cluster")
        await ledgerlog_ok("log", "create", "kept", uri=first.uri)
        await ledgerlog_ok("log", "append", "kept", uri=first.uri, stdin=b"kept\n")
        first.child.kill()
        second = await start_cluster(children, tmp_path / "cluster")
        assert set(second.pids.values()).isdisjoint(first.pids.values())
        assert await ledgerlog_ok("log", "read", "kept", "--raw", uri=second.uri) == b"kept\n"


async def test_a_log_that_needs_more_bookies_than_there_are_says_so(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "1") as running:
        await ledgerlog_ok("log", "create", "wide", uri=running.uri)
        ran = await ledgerlog("log", "append", "wide", uri=running.uri, stdin=b"x\n")
        assert ran.status == 1
        assert ran.stdout == b""
        assert ran.stderr.count("\n") == 1
        assert "3 writable bookies are needed, 1 registered" in ran.stderr
        assert "bookie list" in ran.stderr


async def test_a_ledger_whose_end_is_not_known_is_printed_as_far_as_it_is_and_the_command_fails(
    tmp_path: Path,
) -> None:
    async with (
        running_cluster(tmp_path / "cluster", "--bookies", "3") as running,
        connect(running.uri) as opened,
    ):
        writer = await opened.ledgers.create(replication=Replication(3, 3, 2))
        for payload in (b"one", b"two"):
            await writer.append(payload)
        await writer.flush()
        ledger_id = str(writer.ledger_id)
        for pid in list(running.pids.values())[1:]:
            os.kill(pid, signal.SIGSTOP)
        try:
            ran = await ledgerlog("ledger", "read", ledger_id, uri=running.uri)
            assert (ran.status, ran.stdout.count(b"\n")) == (1, 2), ran.stderr
            assert "too few bookies of its last ensemble report" in ran.stderr
            assert (
                await ledgerlog_ok("ledger", "read", ledger_id, "--last", "0", "--raw", uri=running.uri)
                == b"one"
            )
        finally:
            for pid in list(running.pids.values())[1:]:
                os.kill(pid, signal.SIGCONT)
        assert (await ledgerlog_ok("ledger", "read", ledger_id, "--raw", uri=running.uri)) == b"onetwo"


async def test_a_log_is_shown_although_its_bookies_are_away(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "3") as running:
        await ledgerlog_ok("log", "create", "orders", "--retain-bytes", "1g", uri=running.uri)
        async with appending(b"one\n", "orders", running.uri, tmp_path / "stderr") as writer:
            for pid in running.pids.values():
                os.kill(pid, signal.SIGSTOP)
            try:
                shown = json.loads(await ledgerlog_ok("log", "show", "orders", "--json", uri=running.uri))
                text = await ledgerlog_ok("log", "show", "orders", uri=running.uri)
                await ledgerlog_ok("log", "configure", "orders", "--roll-records", "9", uri=running.uri)
            finally:
                for pid in running.pids.values():
                    os.kill(pid, signal.SIGCONT)
            writer.kill()
    assert (shown["first_offset"], shown["next_offset"]) == (0, None)
    assert "no bookie of its last ensemble reports" in shown["end_unknown"]
    assert [ledger["kept_because"] for ledger in shown["ledgers"]] == [None]
    assert b"offsets: from 0; the end is not known now: " in text


async def test_an_embedded_cluster_that_a_service_has_open_is_refused_with_the_service_s_pid(
    tmp_path: Path,
) -> None:
    uri = f"file:{tmp_path}/data"
    async with connect(uri):
        ran = await ledgerlog("log", "list", uri=uri)
    assert ran.status == 1
    assert ran.stderr.count("\n") == 1
    assert f"in use by process {os.getpid()}" in ran.stderr
    assert await ledgerlog_ok("log", "list", uri=uri) == b""


async def test_bookies_with_an_administration_port_can_be_drained_and_keep_it_when_they_are_started_again(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path / "cluster", "--bookies", "2", "--admin") as cluster:
        assert list(cluster.admin) == ["bookie-1", "bookie-2"]

        async def is_alive(bookie_id: str) -> bool:
            try:
                async with await trio.open_tcp_stream(*parse_address(cluster.admin[bookie_id])) as stream:
                    await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
                    return b"200" in b"".join([piece async for piece in stream])
            except (OSError, trio.BrokenResourceError):
                return False

        assert await is_alive("bookie-1")
        drain = ("bookie", "drain", "bookie-1", "--admin")
        door = cluster.admin["bookie-1"]
        drained = await ledgerlog_ok(*drain, door, "--json", uri=cluster.uri)
        assert json.loads(drained) == {"id": "bookie-1", "drained": True, "waits_for": ""}
        listed = await ledgerlog_ok("bookie", "list", "--json", uri=cluster.uri)
        assert [json.loads(line)["state"] for line in listed.splitlines()] == ["read-only", "writable"]
        assert await ledgerlog_ok(*drain, door, "--undo", uri=cluster.uri) == b"bookie-1: writable\n"
        wrong = await ledgerlog(*drain, cluster.admin["bookie-2"], uri=cluster.uri)
        assert (wrong.status, "of 'bookie-2', not of bookie-1" in wrong.stderr) == (1, True), wrong.stderr
        late = await ledgerlog(*drain, door, "--within", "1", uri=cluster.uri)
        assert (late.status, "not drained after 1 s" in late.stderr) == (1, True), late.stderr
        os.kill(cluster.pids["bookie-2"], signal.SIGKILL)
        await cluster.wait_for("bookie-2 serves again")
        assert await is_alive("bookie-2")
