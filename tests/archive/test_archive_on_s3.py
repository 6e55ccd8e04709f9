"""Archives on S3: everything works as on a disk, and a server that is dead, stuck or wiped loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from ledgerlog.archive import destinations
from ledgerlog.archive.core.compaction import own_rule
from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.archive.jobs.moving import move_archive
from ledgerlog.archive.jobs.publishing import TableOptions
from ledgerlog.archive.jobs.rewrite import compact_log, merge_log
from ledgerlog.archive.reader import check_archive
from ledgerlog.errors import ArchiveUnavailable, InvalidArgument
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.log.log import Log
from ledgerlog.meta.backup import walk
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import archived, fill, fill_with_keys, new_log, records_of
from tests.archive.s3_server import KEY_ID, REGION, SECRET, S3Server, s3_server
from tests.waiting import until
from tests.zookeepers import SHARED_PROCESSES

pytestmark = pytest.mark.processes

TABLE = TableOptions(catalog="company")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        SHARED_PROCESSES.add(server.process.pid)
        yield server


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server, with its credentials in the environment. Requests have short deadlines, and one attempt."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(destinations, "ARCHIVE_REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(destinations, "ARCHIVE_REQUEST_ATTEMPTS", 1)
    yield server
    server.gate.open()


@pytest.fixture
def where(s3: S3Server) -> str:
    return f"s3://{s3.new_bucket()}/archive"


async def done(client: Client, where: str, *, table: TableOptions | None = None) -> list[str]:
    steps = await archive_log(client.opened, "log", where, keep_copies_s=0, table=table)
    return [step.what for step in steps]


def at(client: Client, name: str, work: Callable[[], None]) -> None:
    """Do ``work`` once, when a job reaches a step."""
    pending = [work]

    def mark(reached: str) -> None:
        if reached == f"archive: {name}" and pending:
            pending.pop()()

    client.opened.environment.mark = mark


async def test_a_log_is_archived_read_merged_compacted_and_truncated_on_s3(s3: S3Server, where: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill_with_keys(log, 5)
        await fill_with_keys(log, 4)
        await fill(log, 3)
        before = await records_of(log)
        assert await done(client, where) == ["copied"] * 3 + ["given up"] * 2
        assert await records_of(log) == before
        assert await records_of(log, 7) == before[7:]
        (step,) = await merge_log(client.opened, "log", where)
        assert step.what == "merged"
        assert await records_of(log) == before
        (step,) = await compact_log(client.opened, "log", where, rule=own_rule())
        assert step.what == "compacted"
        latest = {record.key: record for record in before[:9]}
        assert (
            await records_of(log)
            == [record for record in before[:9] if latest[record.key] == record] + before[9:]
        )
        for record in await archived(client, log):
            await check_archive(record)
        await log.truncate(9)
        environment = client.opened.environment
        environment.now_ms = lambda: round(10 * 1000 * (ARCHIVE_STRAY_AGE_S + time.time()))
        assert await done(client, where) == ["retired"] + ["cleaned"] * 3
        assert await records_of(log, "earliest") == before[9:]
        (record,) = await archived(client, log)
        left = [key for key in s3.keys(where) if "_ledgerlog-archive-" not in key]
        assert left == [record.file.removeprefix("s3://")]


@pytest.fixture
def catalog(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of pyiceberg's configuration. The credentials of its tables are in the environment."""
    config = f"""
catalog:
  company:
    type: sql
    uri: sqlite:///{tmp_path / "catalog.sqlite"}
"""
    (tmp_path / ".pyiceberg.yaml").write_text(config)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    from pyiceberg.utils.config import Config

    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


@contextmanager
def table_of_log() -> Iterator[Table]:
    found = load_catalog("company", **{"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": REGION})
    try:
        yield found.load_table("ledgerlog.log")
    finally:
        found.close()


def offsets_shown() -> list[int]:
    with table_of_log() as table:
        return sorted(table.scan(selected_fields=("offset",)).to_arrow().column("offset").to_pylist())


@pytest.mark.usefixtures("catalog")
async def test_the_table_of_an_archive_on_s3_shows_the_log(s3: S3Server, where: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        assert await done(client, where, table=TABLE) == ["copied"] * 3 + ["given up"] * 2 + ["published"]
        assert offsets_shown() == list(range(12))
        steps = await merge_log(client.opened, "log", where, table=TABLE)
        assert [step.what for step in steps] == ["merged", "published"]
        assert offsets_shown() == list(range(12))
        with table_of_log() as table:
            assert len(list(table.scan().plan_files())) == 2
        await fill(log, 2)
        at(client, "table planned", s3.gate.shut)
        assert (await done(client, where, table=TABLE))[-1] == "failed"
        s3.gate.open()
        assert await done(client, where, table=TABLE) == ["published"]
        assert offsets_shown() == list(range(14))


async def test_an_archive_is_moved_to_another_bucket_and_other_options(s3: S3Server, where: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await half_done(client, where)
        before = await records_of(log)
        target = f"s3://{s3.new_bucket()}/there"
        for key in s3.keys(where):
            name = key.removeprefix(where.removeprefix("s3://"))
            s3.files().copy_file(key, f"{target.removeprefix('s3://')}{name}")
        s3.files().delete_dir_contents(where.removeprefix("s3://"))
        steps = await move_archive(client.opened, where, target)
        assert [step.what for step in steps] == ["moved"] * 2
        assert await records_of(log) == before
        with_options = f"{target}?region=us-east-1"
        with pytest.raises(ArchiveUnavailable, match="archive move"):
            await done(client, with_options)
        await move_archive(client.opened, target, with_options)
        assert "failed" not in await done(client, with_options)
        assert await records_of(log) == before
        assert {record.destination for record in await archived(client, log)} == {
            (await archived(client, log))[0].destination
        }


# --- a server that does not answer --------------------------------------------------------------------


async def half_done(client: Client, where: str) -> Log:
    """Make a log of which only the oldest ledgers are archived, and given up."""
    log = await new_log(client)
    await fill(log, 5, 4)
    await done(client, where)
    await fill(log, 3, 4, 2)
    return log


@pytest.mark.parametrize(
    ("step", "fault"),
    [("file begun", "shut"), ("file named", "shut"), ("recorded", "shut"), ("file named", "stick")],
)
async def test_a_server_that_dies_under_a_job_ends_it_and_a_second_run_mends(
    s3: S3Server, where: str, step: str, fault: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await half_done(client, where)
        before = await records_of(log)
        at(client, step, getattr(s3.gate, fault))
        with pytest.raises(ArchiveUnavailable, match=f"{where}.*"):
            await done(client, where)
        s3.gate.open()
        assert await records_of(log) == before
        assert "failed" not in await done(client, where)
        assert await records_of(log) == before
        for record in await archived(client, log):
            await check_archive(record)


async def test_a_job_asks_a_dead_server_for_one_file_and_not_for_all(s3: S3Server, where: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, *range(1, 9))
        begun: list[str] = []

        def mark(step: str) -> None:
            if step == "archive: file begun":
                begun.append(step)
                if len(begun) == 2:
                    s3.gate.shut()

        client.opened.environment.mark = mark
        told: list[str] = []
        with pytest.raises(ArchiveUnavailable, match="Failed to connect"):
            await archive_log(client.opened, "log", where, on_step=lambda step: told.append(step.what))
        assert told == ["copied"]
        assert len(begun) == 2


async def test_readers_of_a_server_that_is_stuck_get_an_error_in_time_and_go_on_later(
    s3: S3Server, where: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await half_done(client, where)
        before = await records_of(log)
        s3.gate.stick()
        with pytest.raises(ArchiveUnavailable, match=f"{where}.*"):
            await records_of(log)
        assert await records_of(log, 9) == before[9:], "bookies have these"
        s3.gate.open()
        assert await records_of(log) == before


async def test_a_server_that_lost_everything_is_refused_and_what_bookies_have_is_copied_again(
    s3: S3Server, where: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4)
        before = await records_of(log)
        await archive_log(client.opened, "log", where)
        s3.files().delete_dir_contents(where.removeprefix("s3://"))
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await done(client, where)
        steps = await archive_log(client.opened, "log", where, keep_copies_s=0, accept_destination=True)
        assert [step.what for step in steps] == ["withdrawn", "copied", "given up"]
        assert await records_of(log) == before


async def test_a_bucket_that_is_not_there_is_an_error(s3: S3Server, where: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await fill(await new_log(client), 5)
        with pytest.raises(ArchiveUnavailable, match="s3://no-such-bucket/archive"):
            await done(client, "s3://no-such-bucket/archive")
        assert await done(client, where) == ["copied"]


_JOB = """
import sys, threading
from ledgerlog.archive import destinations
destinations.ARCHIVE_REQUEST_TIMEOUT_S, destinations.ARCHIVE_REQUEST_ATTEMPTS = 1.0, 1
destination = destinations.Destination(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=destination.expect_answer, daemon=True).start()
sys.stdin.readline()
"""


def test_a_process_ends_although_a_server_does_not_answer_it(s3: S3Server, where: str) -> None:
    def asked() -> list[str]:
        return [line for line in s3.gate.requests if f"{where[5:]}/_ledgerlog-nothing " in line]

    command = [sys.executable, "-c", _JOB, f"{where}?region=us-east-1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        s3.gate.stick()
        process.stdin.write("ask\n")
        process.stdin.flush()
        trio.run(until, asked)
        process.communicate("end\n")
    assert process.returncode == 0
    assert len(asked()) == 1, "it waits for one attempt, as long as one request may take"


# --- credentials --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        f"s3://{KEY_ID}:{SECRET}@bucket/archive",
        f"s3://bucket/archive?secret_key={SECRET}",
        f"abfs://container:{SECRET}@account.dfs.core.windows.net/archive",
        f"abfs://container@account.dfs.core.windows.net/archive?client_secret={SECRET}",
    ],
)
async def test_a_destination_with_a_secret_is_refused_and_the_secret_is_neither_stored_nor_shown(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await fill(await new_log(client), 5)
        with pytest.raises(InvalidArgument, match="AWS_SECRET_ACCESS_KEY") as refused:
            await done(client, given)
        assert SECRET not in f"{refused.value!r} {refused.value} {caplog.text}"
        async for _, node in walk(client.opened.store):
            assert SECRET.encode() not in node.value


async def test_credentials_of_the_environment_are_neither_stored_nor_shown(
    s3: S3Server, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await half_done(client, where)
        s3.gate.shut()
        with pytest.raises(ArchiveUnavailable) as failed:
            await records_of(log)
        said = [f"{failed.value!r} {failed.value} {caplog.text}".encode()]
        async for _, node in walk(client.opened.store):
            said.append(node.value)
        for secret in (KEY_ID, SECRET):
            assert not [each for each in said if secret.encode() in each]
