"""If an entry has rotted on every bookie, the client and Spark read it from its file, each record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgerlog.errors import EntryCorrupt
from ledgerlog.log import reader
from ledgerlog.log.log import Log
from ledgerlog.log.positions import find_offset
from ledgerlog.spark import scanning
from ledgerlog.testing.memory_cluster import MemoryCluster, open_cluster
from ledgerlog.wire.records import decode_packed
from tests.archive.archived_logs import DAY_S, archive, fill, new_log, records_of
from tests.spark.spark_logs import client_rows, planned, read_options, rows

COUNT = 12


def payload(number: int) -> bytes:
    return b"<record %d>" % number


async def append(log: Log) -> None:
    """Append two closed ledgers. In the first, each record has its own entry."""
    async with log.writer() as writer:
        for number in range(COUNT):
            await writer.append(payload(number))
        await writer.roll()
        await writer.append(payload(COUNT))


async def rot_everywhere(cluster: MemoryCluster, number: int) -> None:
    """Damage a record on all bookies while they are stopped, so that none has it in memory."""
    for bookie in cluster.bookies.values():
        await bookie.stop()
        assert bookie.flip_byte(payload(number))
        await bookie.start()


@pytest.mark.parametrize("rotten", [0, 5, COUNT - 1])
async def test_the_client_reads_what_has_rotted_on_every_bookie_from_its_file(
    tmp_path: Path, rotten: int
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await append(log)
        before = await records_of(log)
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == ["copied", "copied"]
        await rot_everywhere(cluster, rotten)
        assert await records_of(log) == before
        for start in range(COUNT):
            assert await records_of(log, start) == before[start:], "from an offset"
            assert await records_of(log, before[start].position) == before[start:], "from a position"
        moment = before[rotten].timestamp
        assert await records_of(log, moment) == [each for each in before if each.timestamp >= moment]


async def test_what_has_rotted_and_is_in_no_file_is_told_as_damaged(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await append(log)
        await rot_everywhere(cluster, 5)
        with pytest.raises(EntryCorrupt):
            await records_of(log)
        (part,) = await planned(client.opened, read_options())
        with pytest.raises(EntryCorrupt):
            await rows(cluster, client, [part])


@pytest.mark.parametrize("rotten", [0, 5, COUNT - 1])
async def test_a_task_reads_what_has_rotted_on_every_bookie_from_its_file(
    tmp_path: Path, rotten: int
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await append(log)
        before = await client_rows(log)
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == ["copied", "copied"]
        await rot_everywhere(cluster, rotten)
        for size in ("100", "5"):
            parts = await planned(client.opened, read_options(maxRecordsPerPartition=size))
            assert await rows(cluster, client, parts) == before


async def test_a_task_that_finds_damage_within_a_reply_gives_no_record_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode_up_to_the_fifth(data: Any, *, entry_id: int, **options: Any) -> Any:
        if entry_id == 5:
            raise EntryCorrupt(options["ledger_id"], entry_id, "it is damaged")
        return decode_packed(data, entry_id=entry_id, **options)

    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await append(log)
        before = await client_rows(log)
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == ["copied", "copied"]
        monkeypatch.setattr(scanning, "decode_packed", decode_up_to_the_fifth)
        for fetched_bytes in (1, 3 * len(payload(0)), scanning._FETCHED_BYTES):
            monkeypatch.setattr(scanning, "_FETCHED_BYTES", fetched_bytes)
            parts = await planned(client.opened, read_options())
            assert await rows(cluster, client, parts) == before


async def test_a_log_that_begins_within_an_entry_goes_on_in_its_file_when_bookies_fall_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 9, 3)
        before = await records_of(log)
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == ["copied", "copied"]
        await log.truncate(4)

        async def find_and_lose_bookies(*arguments: Any) -> Any:
            place = await find_offset(*arguments)
            assert place.offset == 3, "the entry begins before the log"
            for bookie in cluster.bookies.values():
                await bookie.kill()
            return place

        monkeypatch.setattr(reader, "find_offset", find_and_lose_bookies)
        assert await records_of(log) == before[4:]
