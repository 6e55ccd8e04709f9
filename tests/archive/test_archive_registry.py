"""Finding the file that holds an offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.errors import EntryUnavailable
from ledgerlog.log.log import delete_log
from ledgerlog.model.layout import ARCHIVES, log_record_path
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import archive, archived, archiver_of, fill, new_log, records_of


def read_by(client: Client) -> list[str]:
    """Return a list of the nodes that the client reads from now on."""
    paths: list[str] = []

    async def note(path: str) -> None:
        paths.append(path)

    client.store.before_get = note
    return paths


async def test_a_ledger_that_is_not_archived_is_known_without_the_records_of_the_others(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, *[2] * 12)
        job = await archiver_of(client, tmp_path)
        *most, last = job.plan(await job.look()).copy
        for segment in most:
            await job.copy(segment)
        assert last.first_offset is not None
        registry = ArchiveRegistry(client.opened.store)
        paths = read_by(client)
        assert await registry.holding(log.incarnation, last.ledger_id, last.first_offset) is None
        assert len([path for path in paths if path.startswith(ARCHIVES)]) == 1
        for bookie in cluster.bookies.values():
            await bookie.kill()
        paths.clear()
        with pytest.raises(EntryUnavailable):
            await records_of(log, last.first_offset)
        assert len([path for path in paths if path.startswith(ARCHIVES)]) < 5


async def test_each_offset_is_found_by_every_ledger_that_it_was_seen_in(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3)
        async with log.writer():
            pass
        await fill(log, 5, 2, 6)
        segments = [segment for segment in (await log.info()).segments if segment.record_count]
        await archive(client, tmp_path)
        await log.truncate(2)
        registry = ArchiveRegistry(client.opened.store)
        before = {
            offset: await registry.holding(log.incarnation, segment.ledger_id, offset)
            for segment in segments
            for offset in range(segment.first_offset or 0, segment.end_offset or 0)
        }
        assert [record.holds(offset) for offset, record in before.items() if record] == [True] * 20
        (step,) = await merge_log(client.opened, "log", str(tmp_path))
        assert step.what == "merged"
        merged, last = await archived(client, log)
        for segment in segments:
            for offset in range(20):
                found = await registry.holding(log.incarnation, segment.ledger_id, offset)
                assert found == (merged if offset < 14 else last)
            assert await registry.holding(log.incarnation, segment.ledger_id, 20) is None
        await delete_log(client.opened, "log")
        assert await registry.holding(log.incarnation, segments[1].ledger_id, 5) is None


@pytest.mark.parametrize("ledger", [0, 1, 2])
async def test_a_file_that_is_merged_while_it_is_looked_for_is_found(tmp_path: Path, ledger: int) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        await archive(client, tmp_path)
        segment = (await log.info()).segments[ledger]
        assert segment.first_offset is not None
        read: list[str] = []

        async def merge_behind_the_list(path: str) -> None:
            if read and read[-1] == log_record_path(log.incarnation):
                client.store.before_get = None
                (step,) = await merge_log(other.opened, "log", str(tmp_path))
                assert step.what == "merged"
            read.append(path)

        client.store.before_get = merge_behind_the_list
        # The log has no ledger of this id, so the registry must look at the list.
        found = await ArchiveRegistry(client.opened.store).holding(
            log.incarnation, 10**6, segment.first_offset
        )
        assert found == (await archived(client, log))[0]
        assert len(found.ledgers) == 3


async def test_a_ledger_that_others_are_merged_into_just_then_is_looked_at_again(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        await archive(client, tmp_path)
        first = (await archived(client, log))[0]

        async def merge_before_the_list(path: str) -> None:
            if path == log_record_path(log.incarnation):
                client.store.before_get = None
                await merge_log(other.opened, "log", str(tmp_path))

        client.store.before_get = merge_before_the_list
        found = await ArchiveRegistry(client.opened.store).holding(log.incarnation, first.ledger_id, 5)
        assert found == (await archived(client, log))[0]
        assert found.ledger_id == first.ledger_id


async def test_a_listing_during_a_merge_leaves_no_ledger_out(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        await archive(client, tmp_path)
        read: list[str] = []

        async def merge_after_the_first(path: str) -> None:
            if path.startswith(ARCHIVES) and read:
                client.store.before_get = None
                await merge_log(other.opened, "log", str(tmp_path))
            read.append(path)

        client.store.before_get = merge_after_the_first
        found = await ArchiveRegistry(client.opened.store).of_log(log.incarnation)
        assert client.store.before_get is None
        assert [record for record, _ in found] == await archived(client, log)
        assert sum(len(record.ledgers) for record, _ in found) == 4
