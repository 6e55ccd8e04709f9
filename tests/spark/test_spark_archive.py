"""Archive and compact a log on real bookies, with Spark and with the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ledgerlog.archive.jobs.archiver import Archiver, ArchiveStep
from ledgerlog.archive.jobs.publishing import TableOptions
from ledgerlog.archive.jobs.rewrite import Group, finish_group
from ledgerlog.archive.table import CATALOG_FILE, CATALOG_NAME
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.record import Record
from ledgerlog.spark.archive import archive_on_spark, compact_on_spark
from tests.spark.conftest import SparkOnLogs
from tests.waiting import PATIENCE_S

TABLE = TableOptions()

pytestmark = pytest.mark.processes


def fill(on_spark: SparkOnLogs, name: str, *, ledgers: int = 4, each: int = 200) -> None:
    with on_spark.cluster.create_log(name).writer(entry_bytes=2048) as writer:
        for ledger in range(ledgers):
            if ledger:
                writer.roll()
            writer.append_many([b"%02d value %d of %d" % (at % 40, at, ledger) for at in range(each)])


def records_of(on_spark: SparkOnLogs, name: str) -> list[Record]:
    with on_spark.cluster.open_log(name).read() as reader:
        return list(reader)


def rows_of(on_spark: SparkOnLogs, name: str) -> list[tuple[int, bytes]]:
    rows = on_spark.read(maxRecordsPerPartition=150).load(name).orderBy("offset").collect()
    return [(row.offset, bytes(row.value)) for row in rows]


def command(on_spark: SparkOnLogs, *words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "ledgerlog", *words, "--uri", on_spark.uri, "--json"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of_table(where: Path, log: str) -> list[tuple[int, bytes]]:
    """Read the table as a program that knows only Iceberg."""
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{where / CATALOG_FILE}")
    found = catalog.load_table(("ledgerlog", log)).scan().to_arrow().sort_by("offset")
    catalog.close()
    return list(zip(found["offset"].to_pylist(), found["value"].to_pylist(), strict=True))


def test_a_log_is_archived_and_compacted_on_spark_and_read_back(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Tasks are elsewhere: they run in older processes.
    fill(on_spark, log_name)
    before = records_of(on_spark, log_name)
    told: list[tuple[int, int]] = []
    steps = archive_on_spark(
        on_spark.spark,
        on_spark.uri,
        log_name,
        "archive",
        keep_copies_s=0,
        table=TABLE,
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert sorted(step.what for step in steps) == ["copied"] * 4 + ["given up"] * 3 + ["published"]
    assert sum(step.records for step in steps if step.what == "copied") == 800
    assert told
    assert records_of(on_spark, log_name) == before
    assert rows_of(on_spark, log_name) == [(record.offset, record.data) for record in before]
    assert rows_of_table(tmp_path / "archive", log_name) == [
        (record.offset, record.data) for record in before
    ]
    files = sorted((tmp_path / "archive").glob("*/*.parquet"))
    for file in files[:2]:
        file.rename(file.with_suffix(".away"))
    steps = compact_on_spark(on_spark.spark, on_spark.uri, log_name, "archive", key="prefix:2")
    assert [step.what for step in steps] == ["failed"] * 2, "the job names each file, and goes on"
    assert all(file.name in step.why for file, step in zip(files, steps, strict=False))
    for file in files[:2]:
        file.with_suffix(".away").rename(file)
    assert records_of(on_spark, log_name) == before
    steps = compact_on_spark(on_spark.spark, on_spark.uri, log_name, "archive", key="prefix:2", table=TABLE)
    assert [step.what for step in steps] == ["compacted", "published"]
    left = [record for record in before if record.offset >= 560]
    assert records_of(on_spark, log_name) == left, "the archive's last forty, one a key, and the tail"
    assert rows_of(on_spark, log_name) == [(record.offset, record.data) for record in left]
    assert [
        step.what
        for step in compact_on_spark(
            on_spark.spark, on_spark.uri, log_name, "archive", key="prefix:2", bytes_max=1
        )
    ] == ["unchanged"]
    again = archive_on_spark(on_spark.spark, on_spark.uri, log_name, "archive", keep_copies_s=0, table=TABLE)
    assert again == []
    assert rows_of_table(tmp_path / "archive", log_name) == [(record.offset, record.data) for record in left]


def test_a_new_file_that_is_gone_ends_a_compaction_and_the_steps_until_then_are_told_and_published(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(on_spark, log_name, each=60)
    archive_on_spark(on_spark.spark, on_spark.uri, log_name, str(tmp_path), keep_copies_s=0, table=TABLE)
    finished: list[ArchivedFile] = []

    async def second_is_gone(archiver: Archiver, group: Group, made: ArchivedFile) -> ArchiveStep:
        finished.append(made)
        if len(finished) == 2:
            await archiver.delete_file(made)
        return await finish_group(archiver, group, made)

    monkeypatch.setattr("ledgerlog.spark.archive.finish_group", second_is_gone)
    steps = compact_on_spark(
        on_spark.spark, on_spark.uri, log_name, str(tmp_path), key="prefix:2", bytes_max=1, table=TABLE
    )
    assert [step.what for step in steps] == ["compacted", "failed", "published"]
    assert finished[1].file in steps[1].why
    left = records_of(on_spark, log_name)
    assert rows_of_table(tmp_path, log_name) == [(record.offset, record.data) for record in left]


@pytest.mark.soak
def test_compaction_on_spark_leaves_what_it_leaves_in_one_process(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    fill(on_spark, log_name, each=60)
    archive_on_spark(on_spark.spark, on_spark.uri, log_name, str(tmp_path), keep_copies_s=0)
    before = records_of(on_spark, log_name)
    steps = compact_on_spark(
        on_spark.spark,
        on_spark.uri,
        log_name,
        str(tmp_path),
        key="until: ",
        tombstones="empty",
        tombstones_after_s=0,
        bytes_max=1,
    )
    assert [step.what for step in steps] == ["compacted"] * 3
    last = {record.data[:2]: record.offset for record in before if record.offset < 180}
    assert records_of(on_spark, log_name) == [
        record for record in before if record.offset >= 180 or last[record.data[:2]] == record.offset
    ]


def test_the_commands_archive_merge_and_compact_and_others_tell_of_it(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path
) -> None:
    fill(on_spark, log_name)
    before = records_of(on_spark, log_name)
    where = ("--to", str(tmp_path), "--master", "none")
    *steps, summary = command(on_spark, "spark", "archive", log_name, *where)
    assert summary == {"log": log_name, "steps": {"copied": 4, "published": 1}}
    assert [step["records"] for step in steps] == [200] * 4 + [800]
    shown = command(on_spark, "log", "show", log_name)[0]["ledgers"]
    assert [ledger["state"] for ledger in shown] == ["CLOSED"] * 4
    assert all(ledger["archive"]["file"].startswith("file:///") for ledger in shown)
    summary = command(on_spark, "spark", "archive", log_name, *where, "--keep-copies", "0", "--merge")[-1]
    assert summary == {"log": log_name, "steps": {"given up": 3, "merged": 1, "published": 1}}
    merged, last = command(on_spark, "log", "show", log_name)[0]["ledgers"]
    assert (merged["state"], last["state"]) == ("ARCHIVED", "CLOSED")
    assert merged["records"] == 600
    assert merged["archive"]["ledgers"] == [ledger["id"] for ledger in shown[:3]]
    for ledger in shown[:3]:
        (verified,) = command(on_spark, "ledger", "verify", str(ledger["id"]))
        assert (verified["unreadable"], verified["archive"]) == ([], merged["archive"]["file"])
    told = subprocess.run(
        [sys.executable, "-m", "ledgerlog", "ledger", "show", str(shown[1]["id"]), "--uri", on_spark.uri],
        capture_output=True,
        check=False,
    )
    assert told.returncode == 1
    assert merged["archive"]["file"] in told.stderr.decode()
    assert records_of(on_spark, log_name) == before
    *_, summary = command(on_spark, "spark", "compact", log_name, *where, "--key", "prefix:2")
    assert summary["steps"] == {"compacted": 1, "published": 1}
    assert [record.offset for record in records_of(on_spark, log_name)] == list(range(560, 800))
