"""Those who read a log with a gap are told of it once, each in its own way, and go on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledgerlog import blocking, connect
from ledgerlog.errors import RecordsLost
from ledgerlog.spark.looking import DataLoss, plan_table
from ledgerlog.spark.options import parse_read_options
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
        "ledgerlog: log 'orders': the records from offset 5 to 53 were lost with bookies; the log goes on at "
        "offset 54\n"
    )
    assert commands.ok("log", "read", "orders", "--raw", "--start", "54").split() == ABOVE
    assert commands.ok("log", "read", "orders", "--raw", "--until", "5").split() == BELOW
    assert commands.json("log", "show", "orders")["gaps"] == [[KEPT, RESUMED]]
    assert b"lost: offsets 5 to 53\n" in commands.ok("log", "show", "orders")


def test_log_recover_says_what_it_made(uri: str) -> None:
    commands = Commands(uri)
    assert commands.json("log", "recover", "orders", "--accept-loss")["gaps_made"] == []
    assert b"complete up to offset 57" in commands.ok("log", "recover", "orders")
    assert "goes with --accept-loss" in commands.misused("log", "recover", "orders", "--accept-unreachable")


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
