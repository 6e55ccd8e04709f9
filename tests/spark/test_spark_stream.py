"""A stream over logs, without Spark: its position, the size of its batches, and its replays."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import partial

import pytest
import trio.testing

from ledgerlog.errors import (
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LogNotFound,
    MetadataCorrupt,
    MetadataUnavailable,
    TruncationPinned,
)
from ledgerlog.log.log import Log, create_log, delete_log
from ledgerlog.model.layout import log_name_path, log_record_path
from ledgerlog.model.quorum import Replication
from ledgerlog.spark.planning import DataLoss
from ledgerlog.spark.stream import LogStream, StreamOffset, decode_offsets, encode_offsets
from ledgerlog.testing.faulty_store import Call, GoOn
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster
from tests.spark.spark_logs import planned, read_options, rows, stream_options


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def append(log: Log, values: list[bytes]) -> None:
    async with log.writer() as writer:
        await writer.append_many(values)


async def batch(
    cluster: MemoryCluster,
    client: Client,
    stream: LogStream,
    start: Mapping[str, StreamOffset],
    end: Mapping[str, StreamOffset],
) -> list[bytes]:
    return [row[3] for row in await rows(cluster, client, await stream.parts(start, end))]


def through_a_checkpoint(offsets: Mapping[str, StreamOffset]) -> dict[str, StreamOffset]:
    return decode_offsets(json.loads(json.dumps(encode_offsets(offsets))))


def test_offsets_have_one_spelling() -> None:
    offsets = {"b": StreamOffset(7, 123), "a": StreamOffset(2, 0)}
    text = json.dumps(encode_offsets(offsets))
    assert text == '{"v": 1, "logs": {"a": {"id": "2", "offset": 0}, "b": {"id": "7", "offset": 123}}}'
    assert json.dumps(encode_offsets(decode_offsets(json.loads(text)))) == text


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"v": 2, "logs": {}}',
        '{"v": 1, "logs": {"a": 5}}',
        '{"v": 1, "logs": {"a": {"id": "1", "offset": -1}}}',
        '{"v": 1, "logs": {"a": {"id": 1, "offset": 1}}}',
        '{"v": 1, "logs": {"a": {"id": "1", "offset": true}}}',
        '{"v": 1, "logs": [], "x": 1}',
    ],
)
def test_offsets_of_another_source_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not an offset of this source"):
        decode_offsets(json.loads(text))


async def test_batches_adjoin_and_a_replay_reads_the_same(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        values = [b"%d" % at for at in range(100)]
        stream = LogStream(client.opened, stream_options())
        at = await stream.initial()
        assert at == {"log": StreamOffset(log.incarnation, 0)}
        read: list[bytes] = []
        for chunk in range(0, 100, 20):
            await append(log, values[chunk : chunk + 20])
            end = through_a_checkpoint(await stream.latest(at, max_records=17))
            assert end["log"].offset - at["log"].offset == 17
            got = await batch(cluster, client, stream, at, end)
            # Another process plans the same batch again after a failure.
            assert got == await batch(cluster, client, LogStream(client.opened, stream_options()), at, end)
            read += got
            at = end
        while (end := await stream.latest(at)) != at:
            read += await batch(cluster, client, stream, at, end)
            at = end
        assert read == values


async def test_a_new_query_begins_at_the_end_unless_told_otherwise(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"a", b"b", b"c"])
        latest = await LogStream(client.opened, stream_options(startingOffsets="latest")).initial()
        third = await LogStream(client.opened, stream_options(startingOffsets='{"log": 2}')).initial()
        assert (latest["log"].offset, third["log"].offset) == (3, 2)


async def test_available_now_ends_at_what_was_there_when_it_began(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "a1")
        await append(log, [b"x"] * 10)
        stream = LogStream(client.opened, stream_options(logPattern="a.*"))
        at = await stream.initial()
        await stream.pin()
        await append(log, [b"y"] * 10)
        later = await create_log(client.opened, "a2")
        await append(later, [b"z"])
        seen = []
        while (end := await stream.latest(at, max_records=4)) != at:
            seen += await batch(cluster, client, stream, at, end)
            at = end
        assert seen == [b"x"] * 10
        newest = await stream.newest()
        assert newest is not None
        assert newest["a1"].offset == 20
        # The next run has no pin. It reads the rest, and the later log from its start.
        stream = LogStream(client.opened, stream_options(logPattern="a.*"))
        assert at["a2"] == StreamOffset(later.incarnation, 0)
        end = await stream.latest(at)
        assert await batch(cluster, client, stream, at, end) == [b"y"] * 10 + [b"z"]


async def test_available_now_does_not_end_before_what_was_there_while_bookies_are_away(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2))
        async with log.writer() as writer:
            await writer.append(b"0")
            ledger_id = writer.statistics().ledger_id
            assert ledger_id is not None
            behind, *rest = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
            await eventually(lambda: cluster.bookies[behind].node.engine.lac(ledger_id)[0] == 0)
            cluster.network.stall(client.host, behind)
            await writer.append(b"1")

            def go_away() -> None:
                for bookie in rest:
                    cluster.network.cut(other.host, bookie)

            go_away()
            stream, pinned = (LogStream(other.opened, stream_options()) for _ in range(2))
            at = await stream.initial()
            assert at["log"].offset == 0, "it does not need the end"
            for starting in ("latest", '{"log": 2}'):
                with pytest.raises(EntryUnavailable):
                    await LogStream(other.opened, stream_options(startingOffsets=starting)).initial()
            assert (await stream.latest(at))["log"].offset == 1, "a later batch reads the rest"
            with pytest.raises(EntryUnavailable):
                await pinned.pin()
            cluster.network.heal(other.host)
            await pinned.pin()
            go_away()
            with pytest.raises(EntryUnavailable, match="up to offset 2"):
                await pinned.latest(at)
            cluster.network.heal(other.host)
            assert (await pinned.latest(at))["log"].offset == 2


async def test_available_now_leaves_out_a_log_that_is_deleted_while_it_waits(autojump_clock: object) -> None:
    async with (
        open_cluster() as cluster,
        cluster.client() as client,
        cluster.client() as other,
        trio.open_nursery() as nursery,
    ):
        log = await create_log(client.opened, "log", replication=Replication(3, 3, 2))
        kept = await create_log(client.opened, "log2")
        await append(kept, [b"x"])

        async def lead(task_status: trio.TaskStatus[int | None] = trio.TASK_STATUS_IGNORED) -> None:
            with contextlib.suppress(LedgerLogError):
                async with log.writer() as writer:
                    await writer.append(b"0")
                    await trio.sleep(1)
                    ledger_id = writer.statistics().ledger_id
                    assert ledger_id is not None
                    behind, *_ = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
                    cluster.network.stall(client.host, behind)
                    await writer.append(b"1")
                    task_status.started(ledger_id)
                    await trio.sleep_forever()

        ledger_id = await nursery.start(lead)
        options = stream_options(logPattern="log.*", failOnDataLoss="false")
        stream, strict = LogStream(other.opened, options), LogStream(other.opened, stream_options())
        at = await stream.initial()
        for each in (stream, strict):
            await each.pin()
        _, *rest = (await client.ledgers.metadata(ledger_id)).last_fragment.ensemble
        for bookie in rest:
            cluster.network.cut(other.host, bookie)

        async def delete_later() -> None:
            await trio.sleep(1)
            await delete_log(client.opened, "log")

        nursery.start_soon(delete_later)
        end = await stream.latest(at)
        assert end == {"log2": StreamOffset(kept.incarnation, 1)}
        with pytest.raises(DataLoss):
            await strict.latest({"log": at["log"]})
        nursery.cancel_scope.cancel()


async def test_a_log_that_comes_later_is_read_from_its_start(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        stream = LogStream(client.opened, stream_options(logPattern="a.*"))
        at = await stream.initial()
        assert at == {}
        log = await create_log(client.opened, "a1")
        await append(log, [b"x", b"y"])
        seen = await stream.latest(at)
        assert seen == {"a1": StreamOffset(log.incarnation, 0)}
        assert await batch(cluster, client, stream, at, seen) == []
        end = await stream.latest(seen)
        assert await batch(cluster, client, stream, seen, end) == [b"x", b"y"]
        assert await stream.latest(end) == end


async def test_what_is_truncated_of_a_log_that_came_later_is_lost_and_said_to_be(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        stream = LogStream(client.opened, stream_options(logPattern="a.*"))
        log = await create_log(client.opened, "a1")
        await append(log, [b"w", b"x", b"y", b"z"])
        await log.truncate(1)
        seen = await stream.latest({})
        assert seen == {"a1": StreamOffset(log.incarnation, 1)}
        end = await stream.latest(seen)
        assert await batch(cluster, client, stream, seen, end) == [b"x", b"y", b"z"]
        # The batch fails. Its first record is truncated before Spark runs it again.
        await log.truncate(2)
        assert await batch(cluster, client, stream, {}, seen) == []
        with pytest.raises(DataLoss, match="from offset 1 to 1"):
            await stream.parts(seen, end)


async def test_a_log_that_goes_while_the_pattern_is_looked_up_is_nobodys_loss(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        kept = await create_log(client.opened, "a1")

        async def delete_behind(call: Call, go_on: GoOn) -> object:
            found = await go_on()
            if call.verb == "get" and call.path == log_name_path("a2") and found is not None:
                await delete_log(other.opened, "a2")
            return found

        client.store.faults.append(delete_behind)

        async def going() -> StreamOffset:
            """Make the log again. It goes when somebody has found its name."""
            return StreamOffset((await create_log(other.opened, "a2")).incarnation, 0)

        by_pattern = LogStream(client.opened, stream_options(logPattern="a.*"))
        await going()
        assert await by_pattern.initial() == {"a1": StreamOffset(kept.incarnation, 0)}
        await going()
        assert await by_pattern.latest({}) == {"a1": StreamOffset(kept.incarnation, 0)}
        with pytest.raises(LogNotFound):
            await by_pattern.latest({"a2": await going()})
        by_name = LogStream(client.opened, stream_options("a2"))
        await going()
        with pytest.raises(LogNotFound):
            await by_name.latest({})
        await going()
        with pytest.raises(LogNotFound):
            await by_name.initial()
        await append(kept, [b"x"])
        await going()
        parts = await planned(client.opened, read_options(logPattern="a.*"))
        assert [row[3] for row in await rows(cluster, client, parts)] == [b"x"]


async def test_a_log_whose_record_is_lost_fails_a_stream_of_a_pattern(autojump_clock: object) -> None:
    """If the stream left the log out, nobody would miss its records."""
    async with open_cluster() as cluster, cluster.client() as client:
        await create_log(client.opened, "a1")
        lost = await create_log(client.opened, "a2")
        await client.store.delete(log_record_path(lost.incarnation))
        for options in (stream_options("a2"), stream_options(logPattern="a.*")):
            stream = LogStream(client.opened, options)
            for look in (stream.initial, partial(stream.latest, {})):
                with pytest.raises(MetadataCorrupt, match="lost the record of log 'a2'"):
                    await look()


async def test_a_log_that_was_deleted_or_made_anew_is_no_jump_back(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await append(await create_log(client.opened, "log"), [b"x"] * 5)
        strict = LogStream(client.opened, stream_options())
        lenient = LogStream(client.opened, stream_options(failOnDataLoss="false"))
        start = await strict.initial()
        at = await strict.latest(start)
        await delete_log(client.opened, "log")
        with pytest.raises(DataLoss, match="was deleted since"):
            await strict.latest(at)
        assert await lenient.latest(at) == {}
        anew = await create_log(client.opened, "log")
        await append(anew, [b"new"])
        with pytest.raises(DataLoss, match="deleted and made again"):
            await strict.latest(at)
        with pytest.raises(DataLoss):
            await strict.parts(start, at)
        assert await lenient.parts(start, at) == []
        seen = await lenient.latest(at)
        assert seen == {"log": StreamOffset(anew.incarnation, 0)}
        assert await batch(cluster, client, lenient, at, seen) == []
        end = await lenient.latest(seen)
        assert end == {"log": StreamOffset(anew.incarnation, 1)}
        assert await batch(cluster, client, lenient, seen, end) == [b"new"]
        with pytest.raises(LogNotFound):
            await LogStream(client.opened, stream_options("other")).initial()


async def test_truncation_before_the_stream_came_there_is_an_error(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"%d" % at for at in range(10)])
        strict = LogStream(client.opened, stream_options())
        lenient = LogStream(client.opened, stream_options(failOnDataLoss="false"))
        at = await strict.initial()
        await log.truncate(4)
        end = await strict.latest(at)
        with pytest.raises(DataLoss, match="from offset 0 to 3"):
            await strict.parts(at, end)
        assert await batch(cluster, client, lenient, at, end) == [b"%d" % at for at in range(4, 10)]
        assert (await strict.latest(at, max_records=1))["log"].offset == 5


async def test_the_cursor_keeps_what_the_stream_has_not_read(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"x"] * 10)
        stream = LogStream(client.opened, stream_options(cursorName="etl"))
        at = await stream.initial()
        with pytest.raises(TruncationPinned):
            await log.truncate(1)
        end = await stream.latest(at, max_records=6)
        await stream.commit(end)
        state = await log.cursor("etl").get()
        assert state is not None
        assert (state.offset, state.pins) == (6, True)
        await log.truncate(6)
        await stream.commit(at)
        again = await log.cursor("etl").get()
        assert again is not None
        assert again.offset == 6


@pytest.mark.parametrize("at", [0, 2])
async def test_a_cursor_that_is_there_and_pins_nothing_does_so_from_the_start_of_the_query_on(
    autojump_clock: object, at: int
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"x"] * 10)
        await log.cursor("etl").move(at, expected=None, properties={"owner": "me"})
        stream = LogStream(client.opened, stream_options(cursorName="etl"))
        await stream.initial()
        with pytest.raises(TruncationPinned):
            await log.truncate(at + 1)
        state = await log.cursor("etl").get()
        assert state is not None
        assert (state.offset, state.pins, state.properties) == (at, True, {"owner": "me"})


@pytest.mark.parametrize("lenient", [False, True])
async def test_a_cursor_is_not_put_where_records_are_gone(autojump_clock: object, lenient: bool) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"x"] * 10)
        options = stream_options(cursorName="etl", failOnDataLoss=str(not lenient))
        stream = LogStream(client.opened, options)
        end = {"log": StreamOffset(log.incarnation, 3)}
        await log.truncate(5)  # After the stream planned, and before it places its cursor.
        if not lenient:
            with pytest.raises(DataLoss, match="from offset 3 to 4"):
                await stream.commit(end)
            return
        await stream.commit(end)
        state = await log.cursor("etl").get()
        assert state is not None
        assert (state.offset, state.pins) == (5, True)


async def test_a_cursor_is_not_moved_where_spark_asks_again_where_a_query_begins(
    autojump_clock: object,
) -> None:
    """Spark asks when it plans the first batch, and again when it replans it. The log has grown by then."""
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"old"])
        options = stream_options(startingOffsets="latest", cursorName="etl")
        stream = LogStream(client.opened, options)
        first = through_a_checkpoint(await stream.latest(await stream.initial()))
        await append(log, [b"a", b"b"])
        for again in (stream, LogStream(client.opened, options)):
            assert await batch(cluster, client, again, await again.initial(), first) == []
            with pytest.raises(TruncationPinned):
                await log.truncate(2)
        end = await stream.latest(first)
        assert await batch(cluster, client, stream, first, end) == [b"a", b"b"]
        await stream.commit(end)
        state = await log.cursor("etl").get()
        assert state is not None
        assert (state.offset, state.pins) == (3, True)


async def test_a_query_does_not_end_because_its_lag_cannot_be_told(autojump_clock: object) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"x"])
        stream = LogStream(client.opened, stream_options())
        assert await stream.newest() == {"log": StreamOffset(log.incarnation, 1)}
        client.store.is_hanging = True
        assert await stream.newest() is None
        with pytest.raises(MetadataUnavailable):
            await stream.pin()


async def test_a_batch_waits_for_the_least_records_and_no_longer_than_the_delay(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        other = await create_log(client.opened, "other")
        options = stream_options(
            logs="log,other", minOffsetsPerTrigger="10", maxTriggerDelay="5m", maxOffsetsPerTrigger="12"
        )
        stream = LogStream(client.opened, options)
        at = await stream.initial()
        await append(log, [b"x"] * 6)
        assert await stream.latest(at, max_records=12) == at
        await append(other, [b"y"] * 4)
        end = await stream.latest(at, max_records=12)
        assert (end["log"].offset, end["other"].offset) == (6, 4), "both logs together have enough records"
        await append(log, [b"x"])
        assert await stream.latest(end, max_records=12) == end
        await trio.sleep(299)
        assert await stream.latest(end, max_records=12) == end
        await trio.sleep(1)
        late = await stream.latest(end, max_records=12)
        assert late["log"].offset == 7, "the delay is over"
        await append(log, [b"x"])
        assert await stream.latest(late, max_records=12) == late, "the delay begins anew with this batch"
        await trio.sleep(300)
        end = await stream.latest(late, max_records=12)
        assert end["log"].offset == 8
        for _ in range(2):
            await trio.sleep(200)
            assert await stream.latest(end, max_records=12) == end
        await append(log, [b"x"])
        assert (await stream.latest(end, max_records=12))["log"].offset == 9, "nothing is no batch"


async def test_a_run_up_to_the_present_end_does_not_wait_and_a_new_log_is_noted_at_once(
    autojump_clock: object,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await create_log(client.opened, "log")
        await append(log, [b"x"] * 3)
        options = stream_options(logPattern="log.*", minOffsetsPerTrigger="10")
        stream = LogStream(client.opened, options)
        at = await stream.initial()
        assert await stream.latest(at) == at
        await append(await create_log(client.opened, "log2"), [b"y"] * 2)
        found = await stream.latest(at)
        assert found["log2"].offset == 0, "the checkpoint gets its position"
        pinned = LogStream(client.opened, options)
        await pinned.pin()
        assert (await pinned.latest(at))["log"].offset == 3
