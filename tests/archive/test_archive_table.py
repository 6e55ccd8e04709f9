"""The Iceberg table of an archive lists what the log has there, before, during and after each job."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from ledgerlog.archive.core.compaction import prefix_rule
from ledgerlog.archive.destinations import Destination
from ledgerlog.archive.jobs.archiver import ArchiveStep
from ledgerlog.archive.jobs.job import archive_log, open_archiver, retire_gone
from ledgerlog.archive.jobs.publishing import TableOptions, open_publisher
from ledgerlog.archive.jobs.rewrite import compact_log, merge_log
from ledgerlog.archive.reader import in_thread
from ledgerlog.archive.table import CATALOG_FILE, CATALOG_NAME, LoadedTable, LogTable, TableChanged
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, InvalidArgument
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.log.log import Log, delete_log
from ledgerlog.model.record import Record
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import (
    Crash,
    archived,
    crash_at,
    files,
    fill,
    fill_with_keys,
    new_log,
    path_of,
    records_of,
    remove,
)
from tests.waiting import PATIENCE_S

TABLE = TableOptions()
CHANGING = ("recorded", "copies given up", "merged", "table planned", "table published")
"""The steps that change the archive or its table."""
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

Row = tuple[int, int, bytes, bytes | None, tuple[tuple[str, bytes], ...]]


_opened: list[SqlCatalog] = []


@pytest.fixture(autouse=True)
def _closing_catalogs() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def catalog_of(where: Path) -> SqlCatalog:
    """Open the table's catalog as a program that knows only Iceberg. The test closes it at its end."""
    _opened.append(SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{where / CATALOG_FILE}"))
    return _opened[-1]


def table_of(where: Path, name: str = "log") -> Table:
    return catalog_of(where).load_table(("ledgerlog", name))


def shown(where: Path) -> list[Row]:
    """Read the table as a program that knows only Iceberg."""
    found = table_of(where).scan().to_arrow().sort_by("offset").to_pylist()
    return [
        (
            row["offset"],
            round(1000 * row["timestamp"].timestamp()),
            row["value"],
            row["key"],
            tuple((pair["name"], pair["value"]) for pair in row["headers"] or ()),
        )
        for row in found
    ]


def rows_of(records: Sequence[Record]) -> list[Row]:
    return [
        (
            record.offset,
            round(1000 * record.timestamp.timestamp()),
            record.data,
            record.key,
            tuple(record.headers),
        )
        for record in records
    ]


def parquet_in(where: Path) -> list[Path]:
    return [path for path in files(where) if path.suffix == ".parquet"]


def snapshots(where: Path) -> int:
    return len(table_of(where).snapshots())


async def run(job: Any, client: Client, where: Path, **options: Any) -> list[ArchiveStep]:
    with trio.fail_after(PATIENCE_S):
        steps: list[ArchiveStep] = await job(client.opened, "log", str(where), **{"table": TABLE, **options})
    assert not [step.why for step in steps if step.what == "failed"]
    return steps


async def archive(client: Client, where: Path, **options: Any) -> list[ArchiveStep]:
    return await run(archive_log, client, where, **{"keep_copies_s": 0.0, **options})


async def merge(client: Client, where: Path) -> list[ArchiveStep]:
    return await run(merge_log, client, where)


async def compact(client: Client, where: Path) -> list[ArchiveStep]:
    return await run(compact_log, client, where, rule=prefix_rule(1))


async def full_log(client: Client) -> Log:
    log = await new_log(client)
    await fill(log, 4, 3)
    await fill_with_keys(log, 9)
    await fill(log, 5, 2, 6)
    return log


async def test_the_table_shows_the_log_after_each_job_which_commits_one_snapshot(tmp_path: Path) -> None:
    where = tmp_path / "a place with spaces, 100%"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        steps = await archive(client, where)
        assert [step.what for step in steps].count("published") == 1
        assert shown(where) == rows_of(await records_of(log))
        assert snapshots(where) == 1
        assert await archive(client, where) == []
        assert snapshots(where) == 1, "nothing to do"
        assert [step.what for step in await merge(client, where)] == ["merged", "published"]
        assert shown(where) == rows_of(await records_of(log))
        assert snapshots(where) == 2
        before = await records_of(log)
        await compact(client, where)
        after = await records_of(log)
        assert len(after) < len(before)
        assert shown(where) == rows_of(after)
        assert snapshots(where) == 3
        await fill(log, 3, 2)
        await log.truncate((await log.info()).segments[1].first_offset)
        steps = await archive(client, where)
        assert [step.what for step in steps if step.what in ("published", "retired")] == [
            "published",
            "retired",
            "published",
        ]
        assert shown(where) == rows_of(await records_of(log))
        head = table_of(where).current_snapshot()
        assert head is not None
        assert head.summary is not None
        assert head.summary["ledgerlog.first-offset"] == f"{(await log.info()).first_offset}"
        assert head.summary["ledgerlog.end-offset"] == f"{(await records_of(log))[-1].offset + 1}"


async def test_duckdb_and_pandas_read_the_table_and_filters_leave_files_out(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        records = await records_of(log)
        table = table_of(tmp_path)
        found = (
            table.scan()
            .to_duckdb("records")
            .execute("SELECT count(*), count(key), sum(octet_length(value)), max(timestamp) FROM records")
            .fetchone()
        )
        assert found is not None
        assert found[:3] == (
            len(records),
            sum(record.key is not None for record in records),
            sum(len(record.data) for record in records),
        )
        assert found[3].timestamp() == records[-1].timestamp.timestamp()
        assert list(table.scan().to_pandas()["offset"].sort_values()) == [each.offset for each in records]
        last = [record for record in records if record.offset >= 23]
        late = table.scan(row_filter=f"offset >= {last[0].offset}")
        assert len(list(late.plan_files())) == 1
        assert late.to_arrow().num_rows == len(last)
        moment = records[12].timestamp
        since = table.scan(row_filter=f"timestamp >= '{moment.isoformat()}'")
        assert since.to_arrow().num_rows == sum(record.timestamp >= moment for record in records)
        keyed = table.scan(row_filter=EqualTo("key", b"1"))
        assert keyed.to_arrow().num_rows == sum(record.key == b"1" for record in records)


@pytest.mark.long
async def test_a_job_that_ends_at_any_step_leaves_a_table_of_one_moment_and_the_next_mends_it(
    tmp_path: Path,
) -> None:
    """The table has the log's rows from before the crash or from after it. Every file it names exists."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3)
        await archive(client, tmp_path)
        for number in itertools.count():
            earlier = shown(tmp_path)
            await fill(log, 2, 1)
            filled = rows_of(await records_of(log))
            seen = crash_at(other, number, among=CHANGING)
            try:
                for job in (archive, merge, compact):
                    await job(other, tmp_path)
                is_over = True
            except Crash:
                is_over = False
            assert shown(tmp_path) in (earlier, filled, rows_of(await records_of(log))), seen[-1]
            if is_over:
                break
            await archive(client, tmp_path)
            assert shown(tmp_path) == rows_of(await records_of(log)), seen[-1]
    assert number > 10
    assert seen.count("table published") == 3


async def open_table(client: Client, where: Path, **options: Any) -> LogTable:
    archiver = await open_archiver(client.opened, "log", str(where))
    return LogTable(
        archiver.destination,
        catalog=None,
        namespace="ledgerlog",
        directory=archiver.directory,
        log="log",
        incarnation=archiver.incarnation,
        cluster=archiver.markers.cluster,
        **options,
    )


def commit_nothing(table: LogTable) -> None:
    table.commit(table.load(), [], [], first_offset=0, end_offset=0, expire_before=LONG_AGO)


async def test_a_commit_after_that_of_another_job_is_planned_anew_with_newer_records(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        await fill(log, 3)
        table = await open_table(client, tmp_path)
        planned = 0

        def mark(step: str) -> None:
            nonlocal planned
            if step == "archive: table planned":
                planned += 1
                if planned < 3:
                    commit_nothing(table)

        client.opened.environment.mark = mark
        await archive(client, tmp_path)
        assert planned == 3
        assert shown(tmp_path) == rows_of(await records_of(log))
        table.close()


async def test_a_merge_between_the_reads_of_another_job_leaves_no_hole_in_the_table(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await full_log(client)
        await archive(client, tmp_path)
        job = await open_archiver(client.opened, "log", str(tmp_path))
        read, merged = job.archives.of_log, list[ArchiveStep]()

        async def read_and_merge(incarnation: int) -> Any:
            found = await read(incarnation)
            if not merged:
                merged.extend(await merge_log(other.opened, "log", str(tmp_path)))
            return found

        job.archives.of_log = read_and_merge
        async with open_publisher(job, TABLE) as publisher:
            assert await publisher.publish(lambda step: None)
        assert "merged" in [step.what for step in merged]
        assert shown(tmp_path) == rows_of(await records_of(log))


async def test_a_commit_that_a_job_no_longer_waited_for_does_not_add_the_same_files_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, is_over = threading.Event(), threading.Event()

    async def not_waiting_for_the_first_commit(work: Any, *, file: str) -> Any:
        if getattr(work, "func", None) != table.commit or goes_on.is_set():
            return await in_thread(work, file=file)

        def late() -> None:
            try:
                goes_on.wait(PATIENCE_S)
                work()
            finally:
                is_over.set()

        return await in_thread(late, file=file, timeout_s=0.01)

    def mark(step: str) -> None:
        if step == "archive: table planned" and steps:
            goes_on.set()
            assert is_over.wait(PATIENCE_S)

    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        await fill(log, 3)
        await archive(client, tmp_path, table=None)
        client.opened.environment.mark = mark
        steps: list[ArchiveStep] = []
        async with open_publisher(await open_archiver(client.opened, "log", str(tmp_path)), TABLE) as job:
            table: Any = job._table
            monkeypatch.setattr(
                "ledgerlog.archive.jobs.publishing.in_thread", not_waiting_for_the_first_commit
            )
            assert not await job.publish(steps.append)
            assert "did not answer" in steps[0].why
            assert await job.publish(steps.append)
        assert shown(tmp_path) == rows_of(await records_of(log))


async def test_of_two_jobs_that_make_a_table_at_once_neither_drops_that_of_the_other(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await full_log(client)
        await archive(client, tmp_path, table=None)
        one, other = [await open_table(client, tmp_path) for _ in range(2)]
        base = other.load()
        assert one.load() == base == LoadedTable()
        commit_nothing(one)
        with pytest.raises(TableChanged):
            other.commit(base, [], [], first_offset=0, end_offset=0, expire_before=LONG_AGO)
        anew, rival = [await open_table(client, tmp_path, is_anew=True) for _ in range(2)]
        base = rival.load()
        commit_nothing(anew)
        with pytest.raises(TableChanged):
            rival.commit(base, [], [], first_offset=0, end_offset=0, expire_before=LONG_AGO)
        assert snapshots(tmp_path) == 1
        for table in (one, other, anew, rival):
            table.close()


async def test_a_job_with_older_records_does_not_undo_a_commit_that_came_before_its_own(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await full_log(client)
        await archive(client, tmp_path)
        await log.truncate((await log.info()).segments[1].first_offset)
        archiver: Any = await open_archiver(client.opened, "log", str(tmp_path))
        read = archiver.logs.read
        steps: list[ArchiveStep] = []

        async def other_job_comes_first(incarnation: int) -> Any:
            archiver.logs.read = read
            await fill(log, 3, 2)
            await archive(other, tmp_path)
            return await read(incarnation)

        async with open_publisher(archiver, TABLE) as publisher:
            archiver.logs.read = other_job_comes_first
            assert await publisher.publish(steps.append)
        assert shown(tmp_path) == rows_of(await records_of(log)), [step.why for step in steps]


async def test_if_other_jobs_always_come_first_it_fails_and_deletes_no_file(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        (first, *_) = await archived(client, log)
        await log.truncate(first.end_offset)
        table = await open_table(client, tmp_path)

        def mark(step: str) -> None:
            if step == "archive: table planned":
                commit_nothing(table)

        client.opened.environment.mark = mark
        steps = await archive_log(client.opened, "log", str(tmp_path), keep_copies_s=0, table=TABLE)
        assert [step.what for step in steps] == ["failed", "failed"], (
            "once before it retires, once before it cleans up"
        )
        assert "other jobs" in steps[0].why
        assert path_of(first).exists(), "the table still names it"
        client.opened.environment.mark = lambda step: None
        assert "retired" in [step.what for step in await archive(client, tmp_path)]
        assert not path_of(first).exists()
        table.close()


async def test_a_table_that_another_program_changed_is_refused_until_it_is_made_anew(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        table = table_of(tmp_path)
        table.append(table.scan(limit=3).to_arrow())
        await fill(log, 2)
        before = parquet_in(tmp_path)
        for job, options in ((archive_log, {}), (merge_log, {}), (compact_log, {"rule": prefix_rule(1)})):
            with pytest.raises(ArchiveCorrupt, match=r"another program changed it: snapshot .*--new-table"):
                await job(client.opened, "log", str(tmp_path), table=TABLE, **options)
        assert parquet_in(tmp_path) == before
        await archive(client, tmp_path, table=TableOptions(is_anew=True))
        assert shown(tmp_path) == rows_of(await records_of(log))
        assert await archive(client, tmp_path) == []


async def test_a_snapshot_of_another_program_that_names_the_same_files_is_no_change(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        with table_of(tmp_path).transaction() as change, change.update_snapshot().merge_append():
            pass
        await fill(log, 2)
        await archive(client, tmp_path)
        assert shown(tmp_path) == rows_of(await records_of(log))


async def test_another_program_may_remove_every_snapshot_of_the_jobs_but_may_not_change_the_files(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        for again in range(2):
            await archive(client, tmp_path)
            table = table_of(tmp_path)
            ours = [snapshot.snapshot_id for snapshot in table.snapshots()]
            with table.transaction() as change, change.update_snapshot().merge_append():
                pass
            table.maintenance.expire_snapshots().by_ids(ours).commit()
            assert snapshots(tmp_path) == 1
            assert await archive(client, tmp_path) == [], again
            await fill(log, 2)
        await archive(client, tmp_path)
        assert shown(tmp_path) == rows_of(await records_of(log))
        table = table_of(tmp_path)
        ours = [snapshot.snapshot_id for snapshot in table.snapshots()]
        table.append(table.scan(limit=3).to_arrow())
        table.maintenance.expire_snapshots().by_ids(ours).commit()
        with pytest.raises(ArchiveCorrupt, match="another program changed it"):
            await archive(client, tmp_path)


async def test_a_snapshot_that_another_program_tagged_stays_and_does_not_stop_the_jobs(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        await merge(client, tmp_path)
        table = table_of(tmp_path)
        tagged, _ = [snapshot.snapshot_id for snapshot in table.snapshots()]
        table.manage_snapshots().create_tag(tagged, "mine").commit()
        tomorrow_ms = round(1000 * (time.time() + ARCHIVE_STRAY_AGE_S + 60))
        client.opened.environment.now_ms = lambda: tomorrow_ms
        for _ in range(2):
            await fill(log, 2)
            await archive(client, tmp_path)
            assert shown(tmp_path) == rows_of(await records_of(log))
        assert tagged in [snapshot.snapshot_id for snapshot in table_of(tmp_path).snapshots()]


async def test_a_snapshot_that_another_program_tags_or_expires_during_a_commit_does_not_stop_it(
    tmp_path: Path,
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    async with open_cluster() as cluster, cluster.client() as client:
        await full_log(client)
        await archive(client, tmp_path)
        await merge(client, tmp_path)
        table = await open_table(client, tmp_path)
        for _ in range(2):
            table.commit(table.load(), [], [], first_offset=0, end_offset=0, expire_before=LONG_AGO)
        base = table.load()
        expired, tagged, *_ = [snapshot.snapshot_id for snapshot in table_of(tmp_path).snapshots()]
        table_of(tmp_path).maintenance.expire_snapshots().by_id(expired).commit()
        table_of(tmp_path).manage_snapshots().create_tag(tagged, "mine").commit()
        table.commit(base, [], [], first_offset=0, end_offset=0, expire_before=tomorrow)
        after = table_of(tmp_path)
        assert "mine" in after.metadata.refs
        head = after.current_snapshot()
        assert head is not None
        kept = {tagged, head.snapshot_id, head.parent_snapshot_id}
        assert {snapshot.snapshot_id for snapshot in after.snapshots()} == kept


async def test_a_table_whose_metadata_are_damaged_or_gone_is_refused_until_it_is_made_anew(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        for damage, what in (
            (lambda path: path.write_bytes(b"{"), "metadata"),
            (remove, "metadata"),
            (remove, "list"),
        ):
            table = table_of(tmp_path)
            head = table.current_snapshot()
            assert head is not None
            url = table.metadata_location if what == "metadata" else head.manifest_list
            damage(Path(url.removeprefix("file://")))
            with pytest.raises(ArchiveCorrupt, match=r"of table ledgerlog\.log.*--new-table"):
                await archive(client, tmp_path)
            await archive(client, tmp_path, table=TableOptions(is_anew=True))
            assert shown(tmp_path) == rows_of(await records_of(log))


async def test_the_table_of_another_log_or_cluster_is_refused_and_stays(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await full_log(client)
        await archive(client, tmp_path)
        before = shown(tmp_path)
        for key, value in (("ledgerlog.cluster", "another"), ("ledgerlog.log", "a/b")):
            mine = table_of(tmp_path).properties[key]
            with table_of(tmp_path).transaction() as change:
                change.set_properties({key: value})
            for options in (TABLE, TableOptions(is_anew=True)):
                with pytest.raises(InvalidArgument, match=f"belongs to .*{value}.* another namespace"):
                    await archive(client, tmp_path, table=options)
            assert shown(tmp_path) == before
            with table_of(tmp_path).transaction() as change:
                change.set_properties({key: mine})
        await archive(client, tmp_path, table=TableOptions(namespace="mine"))
        assert len(catalog_of(tmp_path).load_table(("mine", "log")).scan().to_arrow()) == len(before)


async def test_the_table_of_a_deleted_log_is_dropped_and_a_new_log_of_its_name_gets_its_own(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await full_log(client)
        await archive(client, tmp_path)
        await delete_log(client.opened, "log")
        log = await new_log(client)
        await fill(log, 2, 2)
        await archive(client, tmp_path)
        assert shown(tmp_path) == rows_of(await records_of(log)), "before the old table is removed"
        await retire_gone(client.opened, str(tmp_path), table=TABLE)
        assert shown(tmp_path) == rows_of(await records_of(log)), "after the old table is removed"
        await delete_log(client.opened, "log")
        await retire_gone(client.opened, str(tmp_path), table=TABLE)
        assert catalog_of(tmp_path).list_tables("ledgerlog") == []
        assert files(tmp_path) == [tmp_path / CATALOG_FILE], "no file of either log is left"


async def test_a_job_elsewhere_drops_the_table_of_a_deleted_log_before_it_deletes_its_files(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        await full_log(client)
        await archive(client, one)
        await delete_log(client.opened, "log")
        crash_at(client, 0, among=("table dropped",))
        with pytest.raises(Crash):
            await retire_gone(client.opened, str(two), table=TABLE)
        assert catalog_of(one).list_tables("ledgerlog") == []
        assert len(parquet_in(one)) == 6
        client.opened.environment.mark = lambda _: None
        steps = await retire_gone(client.opened, str(two), table=TABLE)
        assert [step.what for step in steps] == ["retired"] * 6
        assert files(one) == [one / CATALOG_FILE]
        assert not two.exists(), "the destination of the job is not begun"


@pytest.mark.parametrize(
    "options", [None, TableOptions(namespace="another"), TableOptions(catalog="company")], ids=str
)
@pytest.mark.parametrize("destination", ["one", "two"])
async def test_the_files_of_a_deleted_log_stay_while_a_table_in_another_catalog_names_them(
    tmp_path: Path, options: TableOptions | None, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__COMPANY__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__COMPANY__URI", f"sqlite:///{tmp_path}/company.sqlite")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path / "one")
        before = shown(tmp_path / "one")
        await delete_log(client.opened, "log")
        steps = await retire_gone(client.opened, str(tmp_path / destination), table=options)
        assert [step.what for step in steps] == ["skipped"] * 6
        assert f"--destination {(tmp_path / 'one').as_uri()} --catalog" in steps[0].why
        assert shown(tmp_path / "one") == before
        assert len(await archived(client, log)) == 6
        steps = await retire_gone(client.opened, str(tmp_path / "one"), table=TABLE)
        assert [step.what for step in steps] == ["retired"] * 6


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"{"), remove], ids=["damaged", "gone"])
async def test_the_files_of_a_deleted_log_stay_while_its_table_cannot_be_read(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        damage(Path(table_of(tmp_path).metadata_location.removeprefix("file://")))
        await delete_log(client.opened, "log")
        before = files(tmp_path)
        steps = await retire_gone(client.opened, str(tmp_path), table=TABLE)
        assert [step.what for step in steps] == ["skipped"] * 6
        assert files(tmp_path) == before
        assert len(await archived(client, log)) == 6
        own = {path.parent for path in before if path.parent.name == "metadata"}
        assert f"delete {own.pop().as_uri()} and run the job again" in steps[0].why
        for path in before:
            if path.parent.name == "metadata":
                path.unlink(missing_ok=True)
        steps = await retire_gone(client.opened, str(tmp_path), table=TABLE)
        assert [step.what for step in steps] == ["retired"] * 6


@pytest.mark.parametrize("failure", [ValueError("of the catalog"), FileNotFoundError("of the catalog")])
async def test_a_table_that_the_catalog_does_not_drop_keeps_its_records_until_it_does(
    tmp_path: Path, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_table(*_: object) -> None:
        raise failure

    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        await delete_log(client.opened, "log")
        with monkeypatch.context() as patch:
            patch.setattr(SqlCatalog, "drop_table", drop_table)
            with pytest.raises(ArchiveUnavailable, match="of the catalog"):
                await retire_gone(client.opened, str(tmp_path), table=TABLE)
        assert len(await archived(client, log)) == 6
        steps = await retire_gone(client.opened, str(tmp_path), table=TABLE)
        assert [step.what for step in steps] == ["retired"] * 6
        assert catalog_of(tmp_path).list_tables("ledgerlog") == []
        assert files(tmp_path) == [tmp_path / CATALOG_FILE]


async def test_a_crash_while_a_table_is_dropped_leaves_no_file_for_ever(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await full_log(client)
        await archive(client, tmp_path)
        await delete_log(client.opened, "log")
        deleted = Destination.delete

        for crash in range(100):

            def delete(self: Destination, name: str, left: list[None] = [None] * crash) -> bool:
                if not left:
                    raise Crash
                left.pop()
                return deleted(self, name)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Destination, "delete", delete)
                try:
                    await retire_gone(client.opened, str(tmp_path), table=TABLE)
                except (Crash, ArchiveUnavailable):
                    continue
            break
        assert catalog_of(tmp_path).list_tables("ledgerlog") == []
        assert files(tmp_path) == [tmp_path / CATALOG_FILE]


async def test_a_truncation_inside_a_file_moves_the_first_offset_of_the_table(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        before = shown(tmp_path)
        await log.truncate(2)
        assert [step.what for step in await archive(client, tmp_path)] == ["published"]
        head = table_of(tmp_path).current_snapshot()
        assert head is not None
        assert head.summary is not None
        first = int(head.summary.additional_properties["ledgerlog.first-offset"])
        assert first == 2
        assert shown(tmp_path) == before, "a file is removed only as a whole"
        assert [row for row in before if row[0] >= first] == rows_of(await records_of(log))
        assert await archive(client, tmp_path) == []


async def test_a_day_later_old_snapshots_and_what_only_they_need_are_gone(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path)
        await merge(client, tmp_path)
        assert snapshots(tmp_path) == 2
        tomorrow_ms = round(1000 * (time.time() + ARCHIVE_STRAY_AGE_S + 60))  # Snapshots have real times.
        client.opened.environment.now_ms = lambda: tomorrow_ms
        await fill(log, 2, 2)
        await archive(client, tmp_path)
        table = table_of(tmp_path)
        assert len(table.snapshots()) == 2, "the new snapshot, and the one before it"
        assert {Path(path).name for path in own_files(table)} == {
            path.name for path in files(tmp_path) if path.parent.name == "metadata"
        }
        assert shown(tmp_path) == rows_of(await records_of(log))
        assert len(parquet_in(tmp_path)) == len(await archived(client, log))


def own_files(table: Table) -> list[str]:
    found = [table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)]
    for snapshot in table.snapshots():
        found += [snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))]
    return found


async def test_a_catalog_that_is_not_configured_or_does_not_answer_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configure(**properties: str) -> None:
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__COMPANY__{name}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())

    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    configure()
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        with pytest.raises(InvalidArgument, match="no catalog 'company'"):
            await archive(client, tmp_path, table=TableOptions(catalog="company"))
        configure(TYPE="sql", URI=f"sqlite:///{tmp_path}/missing/catalog.sqlite")
        with pytest.raises(ArchiveUnavailable, match=r"of table ledgerlog\.log.*check the catalog .* again"):
            await archive(client, tmp_path, table=TableOptions(catalog="company"))
        assert await archived(client, log) == []
        (tmp_path / "missing").mkdir()
        await archive(client, tmp_path, table=TableOptions(catalog="company"))
        _opened.append(company := SqlCatalog("company", uri=f"sqlite:///{tmp_path}/missing/catalog.sqlite"))
        assert len(company.load_table("ledgerlog.log").scan().to_arrow()) == len(await records_of(log))
        assert not (tmp_path / CATALOG_FILE).exists()


async def test_a_recorded_file_that_is_gone_keeps_the_table_at_its_last_state(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await full_log(client)
        await archive(client, tmp_path, table=None)
        (record, *_) = await archived(client, log)
        kept = path_of(record).read_bytes()
        remove(path_of(record))
        (failed,) = await archive_log(client.opened, "log", str(tmp_path), table=TABLE)
        assert failed.what == "failed"
        assert path_of(record).name in failed.why
        assert catalog_of(tmp_path).list_namespaces() == []
        path_of(record).write_bytes(kept)
        await archive(client, tmp_path)
        assert shown(tmp_path) == rows_of(await records_of(log)), "an archive without a table gets one"
