"""Spark's tasks read the same records of an archived log as the client, even if a job archives the log under
them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerlog.archive.core.compaction import prefix_rule
from ledgerlog.archive.file_reader import ArchiveFile
from ledgerlog.archive.jobs.job import retire_gone
from ledgerlog.archive.jobs.rewrite import compact_log
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, LedgerNotFound
from ledgerlog.log.log import delete_log
from ledgerlog.spark.columns import BYTES_PER_BATCH, ROWS_PER_BATCH, ArchivedRows
from ledgerlog.spark.planning import look, offset_of
from ledgerlog.testing.memory_cluster import open_cluster
from tests.archive.archived_logs import (
    add_spliced,
    archive,
    archived,
    fill,
    fill_with_keys,
    new_log,
    path_of,
    records_of,
    remove,
)
from tests.spark.spark_logs import ALL_COLUMNS, client_rows, planned, read_options, rows


async def test_a_batch_reads_through_the_archive_what_the_client_reads(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 20, 3)
        await add_spliced(client, log, [b"x", b"", b"yy"])
        await fill(log, 7, 4)
        before = await client_rows(log)
        await archive(client, tmp_path)
        parts = await planned(client.opened, read_options(maxRecordsPerPartition="5"))
        assert len(parts) > 6
        assert await rows(cluster, client, parts) == before
        for start in (0, 1, 19, 20, 25, 33):
            parts = await planned(client.opened, read_options(startingOffsets=f"{start}", endingOffsets="35"))
            assert await rows(cluster, client, parts) == before[start:35]
        view = await look(client.opened, "log")
        moment_ms = round(before[21][2].timestamp() * 1000)
        found = await offset_of(client.opened, view, "earliest", moment_ms)
        assert found == next(row[1] for row in before if row[2] >= before[21][2])


async def test_a_moment_is_found_although_its_ledger_was_truncated_after_the_look_at_the_log() -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        before = await client_rows(log)
        view = await look(client.opened, "log")
        await log.truncate(4)
        assert await offset_of(client.opened, view, "earliest", round(before[1][2].timestamp() * 1000)) == 4


async def test_a_plan_holds_when_copies_are_given_up_before_it_is_carried_out(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 20, 3, 5)
        before = await client_rows(log)
        parts = await planned(client.opened, read_options())
        await archive(client, tmp_path)
        for bookie in cluster.bookies.values():
            await bookie.node.engine.flush()
            await bookie.node.engine.collector.collect()
        assert await rows(cluster, client, parts) == before


async def test_a_missing_file_fails_a_task_and_a_truncated_one_is_data_loss(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 20, 3, 5)
        before = await client_rows(log)
        await archive(client, tmp_path)
        strict = await planned(client.opened, read_options())
        lenient = await planned(client.opened, read_options(failOnDataLoss="false"))
        path = path_of((await archived(client, log))[0])
        remove(path)
        for parts in (strict, lenient):
            with pytest.raises(ArchiveUnavailable, match=path.name):
                await rows(cluster, client, parts)
        await log.truncate(20)
        for is_retired in (False, True):
            if is_retired:
                assert await archive(client, tmp_path) == ["retired"]
            with pytest.raises(LedgerNotFound):
                await rows(cluster, client, strict)
            assert await rows(cluster, client, lenient) == before[20:]
        fresh = await planned(client.opened, read_options())
        assert await rows(cluster, client, fresh) == before[20:]
        await delete_log(client.opened, "log")
        await retire_gone(client.opened, str(tmp_path))
        with pytest.raises(LedgerNotFound):
            await rows(cluster, client, fresh)
        assert await rows(cluster, client, lenient) == before[23:], "bookies still have it"


async def test_keys_and_headers_come_from_the_archive_as_from_bookies(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5)
        await fill_with_keys(log, 40, every=3)
        await fill(log, 3)  # Bookies keep the newest ledger.
        columns = [*ALL_COLUMNS, "headers"]
        on_bookies = await rows(cluster, client, await planned(client.opened, read_options()), columns)
        assert [] not in [row[-1] for row in on_bookies]
        await archive(client, tmp_path)
        options = read_options(maxRecordsPerPartition="7")
        parts = await planned(client.opened, options)
        assert all(part.archives for part in parts[:6])
        assert await rows(cluster, client, parts, columns) == on_bookies
        await log.truncate(7)  # A part may begin within a file, and within a list of headers.
        for start in (7, 11, 12):
            parts = await planned(client.opened, read_options(startingOffsets=f"{start}"))
            assert await rows(cluster, client, parts, columns) == on_bookies[start:]


async def test_a_compacted_archive_gives_the_rows_that_are_left(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 300, 20)
        await archive(client, tmp_path)
        await compact_log(client.opened, "log", str(tmp_path), rule=prefix_rule(1))
        left = await records_of(log)
        assert 20 < len(left) < 100
        for columns in (["offset"], ["value", "offset"]):
            parts = await planned(client.opened, read_options(minPartitions="3"))
            found = await rows(cluster, client, parts, columns)
            assert [row[-1] for row in found] == [record.offset for record in left]


async def test_only_the_columns_that_are_asked_for_are_read_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    inner = ArchiveFile.read_columns

    def read_columns(self: ArchiveFile, group: int, columns: Collection[str], *more: Any) -> Any:
        table = inner(self, group, columns, *more)
        seen.update(table.column_names)
        return table

    monkeypatch.setattr(ArchiveFile, "read_columns", read_columns)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 20, 5)
        before = await client_rows(log)
        await archive(client, tmp_path)
        parts = await planned(client.opened, read_options(endingOffsets="20"))
        assert await rows(cluster, client, parts, ["epoch", "log"]) == [
            (row[6], row[0]) for row in before[:20]
        ]
        assert seen == {"offset", "epoch"}


def test_rows_of_an_archive_are_divided_into_batches_by_rows_and_by_bytes() -> None:
    def sizes(rows: int, size: int) -> list[int]:
        table = pa.table({"offset": range(rows), "value": [bytes(size)] * rows})
        return [each.table.num_rows for each in ArchivedRows("log", table).slices()]

    assert sizes(0, 1) == []
    assert sizes(1, 2 * BYTES_PER_BATCH) == [1]
    assert sizes(ROWS_PER_BATCH, 0) == [ROWS_PER_BATCH]
    assert max(sizes(5 * ROWS_PER_BATCH // 2, 0)) <= ROWS_PER_BATCH
    assert max(sizes(100, 100_000)) * 100_000 <= BYTES_PER_BATCH


async def test_a_file_says_which_keys_it_does_not_have(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5)
        await fill_with_keys(log, 40, every=3)
        await archive(client, tmp_path)
        without, with_keys = await archived(client, log)
        group = pq.read_metadata(path_of(with_keys)).row_group(0)
        chunks = [group.column(at) for at in range(group.num_columns)]
        assert [each.path_in_schema for each in chunks if each.bloom_filter_length] == ["key"]
        assert "key" not in pq.read_schema(path_of(without)).names


@pytest.mark.parametrize("left", [[0, 2, 1, 3, 4], [0, 1, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3], []])
async def test_columns_whose_offsets_are_not_those_of_the_footer_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: list[int]
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        await archive(client, tmp_path)
        parts = await planned(client.opened, read_options())
        inner = ArchiveFile._read
        monkeypatch.setattr(ArchiveFile, "_read", lambda *call: inner(*call).take(pa.array(left, pa.int64())))
        with pytest.raises(ArchiveCorrupt, match="does not hold the offsets"):
            await rows(cluster, client, parts)
