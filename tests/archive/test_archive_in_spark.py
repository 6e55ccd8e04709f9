"""Spark's tasks read the same records of an archived log as the client, even if a job archives the log under
them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerlog.errors import ArchiveUnavailable, LedgerNotFound
from ledgerlog.spark.planning import look, offset_of
from ledgerlog.testing.memory_cluster import open_cluster
from tests.archive.archived_logs import add_spliced, archive, archived, fill, new_log, path_of, remove
from tests.spark.spark_logs import client_rows, planned, read_options, rows


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
        assert await archive(client, tmp_path) == ["retired"]
        for parts in (strict, lenient):
            with pytest.raises((ArchiveUnavailable, LedgerNotFound)):
                await rows(cluster, client, parts)
        fresh = await planned(client.opened, read_options())
        assert await rows(cluster, client, fresh) == before[20:]
