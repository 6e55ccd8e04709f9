"""Every kind of reader is told once of a gap in a log, and goes on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledgerlog import blocking, connect
from ledgerlog.errors import RecordsLost
from ledgerlog.model.record import moment
from ledgerlog.spark.options import parse_read_options
from ledgerlog.spark.planning import DataLoss, plan_table
from ledgerlog.spark.stream import LogStream
from tests.gaps import make_gap
from tests.integration.test_cli_commands import Commands

KEPT, LOST, BEHIND = 5, 49, 3
RESUMED = KEPT + LOST
END = RESUMED + BEHIND
BELOW = [b"%d" % offset for offset in range(KEPT)]
ABOVE = [b"%d" % offset for offset in range(RESUMED, END)]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A cluster with the log "orders": 5 records, 49 that are lost, 3 more."""
    uri = f"file:{tmp_path}/cluster"

    async def make() -> None:
        async with connect(uri) as cluster:
            log = await cluster.create_log("orders")
            async with log.writer() as writer:
                await writer.append_many(BELOW)
            await make_gap(cluster.client, log.incarnation)
            async with log.writer() as writer:
                acks = await writer.append_many(ABOVE)
                assert acks[0].offset == RESUMED

    trio.run(make)
    return uri


def test_log_read_says_so_on_standard_error_goes_on_and_exits_1(uri: str) -> None:
    commands = Commands(uri)
    result = commands.run("log", "read", "orders", "--raw")
    assert result.exit_code == 1
    assert result.stdout_bytes.split() == [*BELOW, *ABOVE]
    assert result.stderr == (
        "ledgerlog: log 'orders': the records from offset 5 to 53 were lost with bookies; the log continues "
        "at offset 54\n"
    )
    assert commands.ok("log", "read", "orders", "--raw", "--start", "54").split() == ABOVE
    assert commands.ok("log", "read", "orders", "--raw", "--until", "5").split() == BELOW
    assert commands.json("log", "show", "orders")["gaps"] == [[KEPT, RESUMED]]
    assert b"lost: offsets 5 to 53\n" in commands.ok("log", "show", "orders")


def test_log_recover_says_what_it_made(uri: str) -> None:
    commands = Commands(uri)
    assert commands.json("log", "recover", "orders", "--accept-loss")["gaps_made"] == []
    assert b"complete up to offset 57" in commands.ok("log", "recover", "orders")
    assert "extends --accept-loss" in commands.misused("log", "recover", "orders", "--accept-unreachable")


def test_a_reader_without_await_is_told_in_its_place(uri: str) -> None:
    with blocking.connect(uri) as cluster:
        log = cluster.open_log("orders")
        assert log.recover() == ()
        with log.read() as reader:
            found: list[bytes | tuple[int, int]] = []
            while True:
                try:
                    found += (each.data for each in reader)
                except RecordsLost as gap:
                    found.append((gap.lost_from, gap.first_offset))
                else:
                    break
            assert found == [*BELOW, (KEPT, RESUMED), *ABOVE]
        with log.read() as reader:
            before = reader.batches()
            assert next(before).end_offset == KEPT
            with pytest.raises(RecordsLost):
                next(before)
            assert reader.next_offset == RESUMED
            assert [payload for batch in reader.batches() for payload in batch.payloads] == ABOVE


def test_a_table_takes_a_gap_for_data_loss(uri: str) -> None:
    async def plan(**options: str) -> list[tuple[int, int]]:
        async with connect(uri) as cluster:
            given = parse_read_options(
                {"uri": "sqlite:elsewhere", "log": "orders", **options}, is_stream=False
            )
            parts = await plan_table(cluster.client, given)
            return [(piece.start, piece.end) for part in parts for piece in part.pieces]

    with pytest.raises(DataLoss, match="offset 5 to 53 were lost"):
        trio.run(plan)
    assert trio.run(lambda: plan(failOnDataLoss="false")) == [(0, KEPT), (RESUMED, END)]
    assert trio.run(lambda: plan(startingOffsets=str(RESUMED))) == [(RESUMED, END)]


@pytest.fixture
def ending_uri(tmp_path: Path) -> str:
    """A cluster with the log "orders": 5 records, and 49 that are lost at its end."""
    uri = f"file:{tmp_path}/ending"

    async def make() -> None:
        async with connect(uri) as cluster:
            log = await cluster.create_log("orders")
            async with log.writer() as writer:
                await writer.append_many(BELOW)
            await make_gap(cluster.client, log.incarnation)

    trio.run(make)
    return uri


@pytest.mark.parametrize("bound", [{}, {"maxRecordsPerTrigger": "3"}, {"maxBytesPerTrigger": "10"}])
def test_a_log_that_ends_with_a_gap_is_planned_up_to_its_end(ending_uri: str, bound: dict[str, str]) -> None:
    async def follow() -> list[tuple[int, int]]:
        async with connect(ending_uri) as cluster:
            given = {"uri": "sqlite:elsewhere", "log": "orders", "failOnDataLoss": "false"}
            parts = await plan_table(cluster.client, parse_read_options(given, is_stream=False))
            assert [(piece.start, piece.end) for part in parts for piece in part.pieces] == [(0, KEPT)]
            options = parse_read_options({**given, "startingOffsets": "earliest"}, is_stream=True)
            stream = LogStream(cluster.client, options)
            at = await stream.initial()
            found = []
            for _ in range(END):
                end = await stream.latest(
                    at,
                    max_records=int(bound.get("maxRecordsPerTrigger", 0)) or None,
                    max_bytes=int(bound.get("maxBytesPerTrigger", 0)) or None,
                )
                parts = await stream.parts(at, end)
                found += [(piece.start, piece.end) for part in parts for piece in part.pieces]
                at = end
            assert at["orders"].offset == RESUMED
            return found

    pieces = trio.run(follow)
    assert [offset for start, end in pieces for offset in range(start, end)] == list(range(KEPT))


def test_whoever_starts_at_a_moment_is_told_of_what_was_lost_since(uri: str) -> None:
    async def read_from(lag_ms: int) -> list[bytes | tuple[int, int]]:
        found: list[bytes | tuple[int, int]] = []
        async with connect(uri) as cluster:
            log = await cluster.open_log("orders")
            first, *_, last = (await log.info()).segments
            assert first.last_ms is not None
            assert last.first_ms is not None
            when = moment(first.last_ms + 1) if lag_ms < 0 else moment(last.first_ms + lag_ms)
            async with log.read(when) as reader:
                while True:
                    try:
                        found += [each.data async for each in reader]
                    except RecordsLost as gap:
                        found.append((gap.lost_from, gap.first_offset))
                    else:
                        return found

    assert trio.run(read_from, -1) == [(KEPT, RESUMED), *ABOVE]
    assert trio.run(read_from, 1) == []


def test_a_moment_before_a_gap_is_found_while_what_follows_is_written(ending_uri: str) -> None:
    async def follow() -> list[bytes | tuple[int, int]]:
        found: list[bytes | tuple[int, int]] = []
        async with connect(ending_uri) as cluster:
            log = await cluster.open_log("orders")
            first, *_ = (await log.info()).segments
            assert first.last_ms is not None
            async with log.writer() as writer:
                await writer.append_many(ABOVE)
                async with log.read(moment(first.last_ms + 1), until=END, follow=True) as reader:
                    with pytest.raises(RecordsLost) as caught:
                        await anext(reader)
                    found.append((caught.value.lost_from, caught.value.first_offset))
                    found += [each.data async for each in reader]
        return found

    assert trio.run(follow) == [(KEPT, RESUMED), *ABOVE]
