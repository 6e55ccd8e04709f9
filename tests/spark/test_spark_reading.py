"""Tables of logs, without Spark: what tasks read is what the client reads, whatever happens to the log."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
import trio
import trio.testing
from pyspark.sql import types

from ledgerlog.errors import (
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LogNotFound,
)
from ledgerlog.log.log import Log, create_log, delete_log
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.quorum import Replication
from ledgerlog.spark.columns import arrow_schema, batches_of
from ledgerlog.spark.looking import DataLoss, look
from tests.clusters import Client, open_cluster
from tests.spark.spark_logs import client_rows, declared, fetched, planned, read_options, rows


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def filled(client: Client, name: str = "log", *, ledgers: int = 3, each: int = 40) -> Log:
    """A log of several ledgers with several entries each; the last one stays open for its writer's
    recovery."""
    log = await create_log(client.opened, name, replication=Replication(3, 2, 2))
    async with log.writer(entry_bytes=64) as writer:
        for ledger in range(ledgers):
            for at in range(each // 8):
                await writer.append_many([b"%d %d %d" % (ledger, at, k) for k in range(8)])
                await trio.sleep(1)
            if ledger + 1 < ledgers:
                await writer.roll()
    return log


async def test_a_table_is_what_the_client_reads(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client)
        expected = await client_rows(log)
        assert len(expected) == 120
        for more in (
            {},
            {"minPartitions": "7"},
            {"maxRecordsPerPartition": "1"},
            {"maxBytesPerPartition": "1"},
        ):
            parts = await planned(client.opened, read_options(**more))
            assert await rows(cluster, client, parts) == expected


async def test_a_table_ends_at_what_is_confirmed_and_its_writer_goes_on(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await create_log(client.opened, "log")
        async with log.writer() as writer:
            await writer.append_many([b"a", b"b"])
            parts = await planned(other.opened, read_options())
            await writer.append(b"c")
            assert [row[3] for row in await rows(cluster, other, parts)] == [b"a", b"b"]
            await writer.roll()
            await writer.append(b"d")
            parts = await planned(other.opened, read_options())
            assert [row[3] for row in await rows(cluster, other, parts)] == [b"a", b"b", b"c", b"d"]


async def test_an_empty_log_is_an_empty_table_and_a_missing_one_an_error(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        assert await planned(client.opened, read_options()) == []
        async with log.writer():
            assert await planned(client.opened, read_options()) == []
        with pytest.raises(LogNotFound):
            await planned(client.opened, read_options("other"))


async def test_bounds_by_offset_and_by_time_cut_inside_of_ledgers(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client)
        everything = await client_rows(log)
        for start, end in ((0, 1), (3, 39), (39, 41), (55, 119), (119, 120), (120, 120)):
            options = read_options(startingOffsets=str(start), endingOffsets=str(end))
            assert await rows(cluster, client, await planned(client.opened, options)) == everything[start:end]
        begin, end_at = everything[17][2], everything[90][2]
        options = read_options(startingTimestamp=begin.isoformat(), endingTimestamp=end_at.isoformat())
        assert await rows(cluster, client, await planned(client.opened, options)) == [
            row for row in everything if begin <= row[2] < end_at
        ]
        late = (everything[-1][2] + timedelta(days=1)).isoformat()
        assert await planned(client.opened, read_options(startingTimestamp=late)) == []
        with pytest.raises(InvalidArgument, match="ends at offset 120"):
            await planned(client.opened, read_options(endingOffsets="121"))
        with pytest.raises(InvalidArgument, match="is behind"):
            await planned(client.opened, read_options(startingOffsets="9", endingOffsets="8"))


async def test_truncated_records_are_an_error_or_left_out_as_asked(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client)
        everything = await client_rows(log)
        old = await planned(client.opened, read_options())
        lenient = await planned(client.opened, read_options(failOnDataLoss="false"))
        await log.truncate(50)
        assert await rows(cluster, client, await planned(client.opened, read_options())) == everything[50:]
        with pytest.raises(DataLoss, match="from offset 49 to 49"):
            await planned(client.opened, read_options(startingOffsets="49"))
        options = read_options(startingOffsets="3", failOnDataLoss="false")
        assert await rows(cluster, client, await planned(client.opened, options)) == everything[50:]
        # A plan that was made before: bookies that have collected the ledger say so, and the metadata why.
        await client.ledgers.metadata(old[0].pieces[1].stretch.ledger_id)
        for bookie in cluster.bookies.values():
            await bookie.stop()
        with pytest.raises(LedgerNotFound):
            await fetched(cluster, client, old[0])
        await cluster.start_all()
        assert (await rows(cluster, client, lenient))[-1] == everything[-1]


async def test_several_logs_make_one_table(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        logs = [await filled(client, name, ledgers=1, each=16) for name in ("a", "b", "other")]
        expected = await client_rows(logs[0]) + await client_rows(logs[1])
        for options in (read_options(logs="b,a"), read_options(logPattern="[ab]")):
            assert await rows(cluster, client, await planned(client.opened, options)) == expected


async def test_a_bookie_that_is_down_is_read_around_and_without_quorum_it_is_an_error(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client)
        expected = await client_rows(log)
        parts = await planned(client.opened, read_options())
        await cluster.bookies["b2"].kill()
        assert await rows(cluster, client, parts) == expected
        await cluster.bookies["b1"].kill()
        with pytest.raises(EntryUnavailable):
            await fetched(cluster, client, parts[0])


async def test_metadata_are_read_again_where_all_replicas_refuse(autojump_clock: object) -> None:
    async with open_cluster(bookies=2) as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log", replication=Replication(1, 1, 1))
        async with log.writer() as writer:
            await writer.append_many([b"x", b"y"])
        parts = await planned(client.opened, read_options())
        # The bookies' addresses in the plan are of a time when they served elsewhere.
        moved = {
            bookie_id: attrs.evolve(BookieInfo.decode_untrusted(value, bookie_id), address="gone").encode()
            for bookie_id, value in parts[0].bookies.items()
        }
        stale = attrs.evolve(parts[0], bookies=moved)
        assert await rows(cluster, client, [stale]) == await client_rows(log)


async def test_a_log_that_was_made_anew_is_not_the_old_one(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        first = await filled(client, ledgers=1)
        await delete_log(client.opened, "log")
        await filled(client, ledgers=2)
        with pytest.raises(DataLoss, match="deleted and made again"):
            await look(client.opened, "log", incarnation=first.incarnation)


async def test_only_the_columns_that_are_asked_for_are_made(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client, ledgers=1)
        (part,) = await planned(client.opened, read_options())
        got = await fetched(cluster, client, part)
        schema = arrow_schema(
            types.StructType(
                [
                    types.StructField("epoch", types.LongType()),
                    types.StructField("offset", types.LongType(), nullable=False),
                ]
            )
        )
        (batch,) = batches_of(got, schema)
        assert batch.schema.names == ["epoch", "offset"]
        assert [field.nullable for field in batch.schema] == [True, False]
        assert batch.column(1).to_pylist() == [row[1] for row in await client_rows(log)]
        (bare,) = batches_of(got, arrow_schema(types.StructType([])))
        assert (bare.num_rows, bare.num_columns) == (40, 0)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("key", types.BinaryType(), "no column 'key'"), ("value", types.StringType(), "value is binary")],
)
def test_a_column_that_there_is_not_is_an_error(name: str, kind: types.DataType, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        arrow_schema(types.StructType([types.StructField(name, kind)]))
    assert issubclass(DataLoss, LedgerLogError)
    assert arrow_schema(declared()).names[0] == "log"
