"""Tables of logs, without Spark: tasks read the same rows as the client, whatever happens to the log."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from pyspark.sql import types

from ledgerlog.errors import (
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LogNotFound,
)
from ledgerlog.ledger.ranges import read_entries
from ledgerlog.ledger.reader import LedgerReader
from ledgerlog.limits import LOG_ENTRY_BYTES_TARGET, READ_REPLY_BYTES_TARGET
from ledgerlog.log.log import Log, create_log, delete_log
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import PackedBatch
from ledgerlog.spark.columns import BYTES_PER_BATCH, OffsetRange, arrow_schema, batches_of
from ledgerlog.spark.planning import DataLoss, look, range_of
from ledgerlog.spark.scanning import ScanBroken
from ledgerlog.spark.source import read_part
from ledgerlog.spark.stream import LogStream
from ledgerlog.testing.memory_cluster import Client, eventually, open_cluster
from tests.spark.spark_logs import (
    client_rows,
    declared,
    fetched,
    planned,
    read_options,
    rows,
    stream_options,
)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def filled(client: Client, name: str = "log", *, ledgers: int = 3, each: int = 40) -> Log:
    """Make a log of several ledgers with several entries each. The last ledger stays open for the recovery of
    its writer."""
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
        with pytest.raises(InvalidArgument, match="is after the end offset"):
            await planned(client.opened, read_options(startingOffsets="9", endingOffsets="8"))


@pytest.mark.parametrize("lost", [{4}, {0, 4}, {9}, {7, 8, 9}], ids=str)
async def test_a_task_reads_what_is_left_of_a_ledger_that_has_lost_entries(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        everything = await client_rows(await filled(client))

        async def read_what_is_left(metadata: LedgerMetadata, first: int, *args: Any, **options: Any) -> Any:
            if metadata.ledger_id == 0 and first in lost:
                raise EntryNotFound(0, first)
            return (await read_entries(metadata, first, *args, **options))[:1]

        monkeypatch.setattr("ledgerlog.spark.scanning.read_entries", read_what_is_left)
        for start in range(40):
            options = read_options(startingOffsets=str(start), endingOffsets=str(start + 1))
            parts = await planned(client.opened, options)
            # Of eight records, seven are in one entry, and the last one in the next.
            if start // 8 * 2 + start % 8 // 7 in lost:
                with pytest.raises(EntryNotFound):
                    await rows(cluster, client, parts)
            else:
                assert await rows(cluster, client, parts) == everything[start : start + 1]


async def test_bounds_by_time_are_found_in_an_open_ledger_that_has_lost_entries(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        async with log.writer() as writer:
            for number in range(9):
                await writer.append(b"%d" % number)
                await trio.sleep(1)
            times = [row[2] for row in await client_rows(log)]
            read = LedgerReader.read

            async def read_what_is_left(reader: LedgerReader, first: int, last: int) -> list[bytes]:
                if first <= 4 <= last:
                    raise EntryNotFound(reader.ledger_id, 4)
                return await read(reader, first, last)

            monkeypatch.setattr(LedgerReader, "read", read_what_is_left)
            for number in (0, 1, 2, 3, 6, 7, 8):
                options = read_options(startingTimestamp=times[number].isoformat())
                (part,) = await planned(client.opened, options)
                assert part.pieces[0].start == number


async def test_bounds_by_time_are_found_behind_a_ledger_that_cannot_be_closed_yet(
    autojump_clock: object,
) -> None:
    """If a bookie is away, a guaranteed log goes on in the next ledger while the one before it stays open."""
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2, guaranteed=True))
        async with log.writer() as writer, trio.open_nursery() as nursery:
            first = writer.statistics().ledger_id
            await writer.append_many([b"a", b"b"])
            await trio.sleep(1)
            cluster.network.stall(client.host, "b3")
            await writer.append(b"c")
            nursery.start_soon(writer.roll)
            while writer.statistics().ledger_id == first:
                await trio.testing.wait_all_tasks_blocked()
            for value in (b"d", b"e", b"f"):
                await trio.sleep(0.2)
                await writer.append(value)
            await trio.sleep(0.5)  # The next add tells bookies what is confirmed, or a message soon after.
            assert [segment.is_counted for segment in (await log.info()).segments] == [False, False]
            everything = await rows(cluster, other, await planned(other.opened, read_options()))
            assert [row[3] for row in everything] == [b"a", b"b", b"c", b"d", b"e", b"f"]
            times = sorted({row[2] for row in everything})
            for begin, end in itertools.combinations([*times, times[-1] + timedelta(days=1)], 2):
                options = read_options(startingTimestamp=begin.isoformat(), endingTimestamp=end.isoformat())
                assert await rows(cluster, other, await planned(other.opened, options)) == [
                    row for row in everything if begin <= row[2] < end
                ]
            options = attrs.evolve(stream_options(), starting_ms=round(times[-1].timestamp() * 1000))
            stream = LogStream(other.opened, options)
            assert (await stream.initial())["log"].offset == 5
            cluster.network.heal()


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
        assert await planned(client.opened, read_options(endingOffsets="50")) == []
        with pytest.raises(
            DataLoss, match="from offset 0 to 49"
        ):  # From the earliest, and all of it is gone.
            await planned(client.opened, read_options(endingOffsets="49"))
        options = read_options(endingOffsets="49", failOnDataLoss="false")
        assert await planned(client.opened, options) == []
        # A plan from before the truncation: bookies say that they collected the ledger, the metadata say why.
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


async def test_a_bookie_that_dies_while_it_is_read_costs_no_record(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client, ledgers=12, each=16)
        (part,) = await planned(client.opened, read_options())
        assert len(part.pieces) == 12
        got = await fetched(cluster, client, part, meanwhile=cluster.bookies["b2"].kill)
        read = [value for entries in got for _, batch in entries for value in values_of(batch)]
        assert read == [row[3] for row in await client_rows(log)]
        with pytest.raises(EntryUnavailable):  # Only these two bookies have some entries.
            await fetched(cluster, client, part, meanwhile=cluster.bookies["b1"].kill)


def values_of(batch: PackedBatch) -> list[bytes]:
    ends = list(itertools.accumulate(batch.lengths))
    return [bytes(batch.data[end - size : end]) for end, size in zip(ends, batch.lengths, strict=True)]


async def test_metadata_are_read_again_where_all_replicas_refuse(autojump_clock: object) -> None:
    async with open_cluster(bookies=2) as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log", replication=Replication(1, 1, 1))
        async with log.writer() as writer:
            await writer.append_many([b"x", b"y"])
        parts = await planned(client.opened, read_options())
        # The plan has the bookies' old addresses.
        moved = {
            bookie_id: attrs.evolve(BookieInfo.decode_untrusted(value, bookie_id), address="gone").encode()
            for bookie_id, value in parts[0].bookies.items()
        }
        stale = attrs.evolve(parts[0], bookies=moved)
        assert await rows(cluster, client, [stale]) == await client_rows(log)


async def test_a_log_that_was_made_anew_is_not_the_old_one(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        first = await filled(client, ledgers=1)
        strict = await planned(client.opened, read_options())
        lenient = await planned(client.opened, read_options(failOnDataLoss="false"))
        await delete_log(client.opened, "log")
        second = await filled(client, ledgers=2)
        with pytest.raises(DataLoss, match="deleted and made again"):
            await look(client.opened, "log", incarnation=first.incarnation)
        assert len(anew := await client_rows(second)) == 80
        assert await rows(cluster, client, await planned(client.opened, read_options())) == anew
        # An older plan reads nothing of the new log, whatever the offsets are.
        for bookie in cluster.bookies.values():
            await bookie.stop()
        with pytest.raises(LedgerNotFound):
            await fetched(cluster, client, strict[0])
        assert await fetched(cluster, client, lenient[0]) == []


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


async def test_a_query_for_offsets_alone_reads_no_record(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await filled(client)
        everything = await client_rows(log)
        options = read_options(startingOffsets="3", endingOffsets="101", minPartitions="4")
        parts = [
            await planned(client.opened, options, names) for names in (["offset"], ["log", "offset"], [])
        ]
        for bookie in cluster.bookies.values():
            await bookie.kill()
        expected = [(row[0], row[1]) for row in everything[3:101]]
        assert await rows(cluster, client, parts[0], ["offset"]) == [row[1:] for row in expected]
        assert await rows(cluster, client, parts[1], ["log", "offset"]) == expected
        bare = arrow_schema(types.StructType([]))
        batches = [await fetched(cluster, client, part, columns=()) for part in parts[2]]
        assert sum(batch.num_rows for got in batches for batch in batches_of(got, bare)) == 98


async def test_a_task_for_offsets_alone_gets_more_rows(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        async with log.writer() as writer:
            await writer.append_many([bytes(1000)] * 1000)
        options = read_options(maxBytesPerPartition="50000")
        assert len(await planned(client.opened, options, ["offset"])) == 1
        assert len(await planned(client.opened, options, ["offset", "epoch"])) > 20


def test_ranges_of_offsets_make_batches_of_a_bounded_size() -> None:
    schema = arrow_schema(declared(["log", "offset"]))
    found = list(
        batches_of([OffsetRange("log", 5, 1_000_000), OffsetRange("log", 1_000_000, 1_000_001)], schema)
    )
    assert [at for batch in found for at in batch.column(1).to_pylist()] == list(range(5, 1_000_001))
    assert max(batch.nbytes for batch in found) <= BYTES_PER_BATCH


async def test_what_is_held_at_once_is_bounded_however_well_records_are_packed(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        async with log.writer(compression="zstd") as writer:
            await writer.append_many([bytes(100_000)] * 60)
        (part,) = await planned(client.opened, read_options())
        got = await fetched(cluster, client, part)
        assert sum(len(batch) for entries in got for _, batch in entries) == 60
        sizes = [sum(batch.byte_length for _, batch in entries) for entries in got]
        assert max(sizes) <= READ_REPLY_BYTES_TARGET + LOG_ENTRY_BYTES_TARGET
        # The bound also holds if the query does not ask for the values.
        offsets = arrow_schema(types.StructType([types.StructField("offset", types.LongType())]))
        batches = list(batches_of(got, offsets))
        assert max(batch.num_rows for batch in batches) * 100_000 <= BYTES_PER_BATCH + max(sizes)


async def test_a_scan_that_breaks_off_is_not_one_that_has_ended(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await filled(client)
        (part,) = await planned(client.opened, read_options())
        broken = attrs.evolve(part, ledgers={})
        # An unexpected error is a bug, and a reader that waits for records does not take it for the end.
        with pytest.RaisesGroup(KeyError, ScanBroken, flatten_subgroups=True):
            await fetched(cluster, client, broken)
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        await trio.to_thread.run_sync(lambda: list(read_part(broken, arrow_schema(declared()))))


async def test_a_batch_needs_to_know_the_end_of_a_log_and_a_stream_reads_what_is_known(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await filled(client, ledgers=1)
        async with log.writer() as writer:
            await writer.append(b"last")
            (newest,) = [s.ledger_id for s in (await log.info()).segments if not s.is_counted]
            await trio.sleep(1)
            for bookie in (await client.ledgers.metadata(newest)).last_fragment.ensemble[1:]:
                cluster.network.cut(other.host, bookie)
            for more in ({}, {"endingTimestamp": "2200-01-01T00:00:00Z"}, {"endingOffsets": "42"}):
                with pytest.raises(EntryUnavailable):
                    await planned(other.opened, read_options(**more))
            needs_no_end = read_options(endingOffsets="41")
            assert await planned(other.opened, needs_no_end)
            view = await look(other.opened, "log")
            assert view.end == 41
            assert view.doubt is not None
            cluster.network.heal()
            assert (await look(other.opened, "log")).doubt is None


async def test_a_bound_by_time_needs_the_end_that_was_found_before(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2))
        async with log.writer() as writer:
            await writer.append(b"0")
            ledger_id = writer.statistics().ledger_id
            assert ledger_id is not None
            behind, *rest = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
            await eventually(lambda: cluster.bookies[behind].node.engine.lac(ledger_id)[0] == 0)
            cluster.network.stall(client.host, behind)
            for payload in (b"1", b"2"):
                await writer.append(payload)
            view = await look(other.opened, "log")
            options = read_options(endingTimestamp="2200-01-01T00:00:00Z")
            assert await range_of(other.opened, view, options) == (0, 3)
            for bookie in rest:
                cluster.network.cut(other.host, bookie)
            with pytest.raises(EntryUnavailable):
                await range_of(other.opened, view, options)
            cluster.network.heal()


async def test_a_ledger_that_leaves_the_list_while_it_is_looked_at_is_no_error(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await filled(client, ledgers=1)
        async with log.writer() as writer:
            await writer.append(b"last")
            (open_ledger,) = [
                segment.ledger_id for segment in (await log.info()).segments if not segment.is_counted
            ]

            async def truncate(path: str) -> None:
                if path == ledger_path(open_ledger):
                    other.store.before_get = None
                    await writer.roll()
                    await writer.append(b"new")
                    await log.truncate(41)
                    with contextlib.suppress(LedgerNotFound):
                        await client.ledgers.delete(open_ledger)

            other.store.before_get = truncate
            view = await look(other.opened, "log")
            assert (view.first, view.end) == (41, 42)
            await client.ledgers.delete(view.stretches[-1].ledger_id)
            with pytest.raises(LedgerNotFound):
                await look(other.opened, "log")


def test_a_clock_that_is_far_off_is_shown_as_the_last_year_that_there_is() -> None:
    batch = PackedBatch(
        ledger_id=1,
        entry_id=0,
        first_offset=0,
        epoch=1,
        timestamp_ms=2**63 - 1,
        lengths=array("I", [1]),
        data=memoryview(b"x"),
    )
    (made,) = batches_of([[("log", batch)]], arrow_schema(declared()))
    assert made.column(2).to_pylist()[0].year == 9999


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("topic", types.BinaryType(), "no column 'topic'"), ("value", types.StringType(), "value is binary")],
)
def test_a_column_that_there_is_not_is_an_error(name: str, kind: types.DataType, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        arrow_schema(types.StructType([types.StructField(name, kind)]))
    with pytest.raises(InvalidArgument, match="declare it nullable"):
        arrow_schema(types.StructType([types.StructField("key", types.BinaryType(), nullable=False)]))
    assert issubclass(DataLoss, LedgerLogError)
    assert arrow_schema(declared()).names[0] == "log"
