"""Archiving a log: you read the same records before and after, whatever happens in between."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import ledgerlog.archive
from ledgerlog.archive import file_reader
from ledgerlog.archive.destinations import Destination
from ledgerlog.archive.file_reader import ArchiveFile, FileCheck
from ledgerlog.archive.jobs.archiver import LATE, Archiver
from ledgerlog.archive.jobs.cleaning import clean
from ledgerlog.archive.jobs.job import retire_gone
from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.archive.reader import ArchiveReader, check_archive, open_archive
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveSupportMissing,
    ArchiveUnavailable,
    EntryUnavailable,
    InvalidArgument,
    LogNotFound,
    MetadataCorrupt,
    Truncated,
)
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.log import positions
from ledgerlog.log.log import Log, delete_log, open_log
from ledgerlog.log.positions import ReadPosition
from ledgerlog.log.sweep import sweep
from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import open_backup, write_backup
from ledgerlog.meta.memory import Content
from ledgerlog.meta.restore import accept_loss, restore
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.ids import Position
from ledgerlog.model.layout import ledger_path, log_record_path
from ledgerlog.model.restoration import EPOCH_MS
from ledgerlog.testing.memory_cluster import CLUSTER, Client, MemoryCluster, open_cluster
from tests.archive.archived_logs import (
    DAY_S,
    Crash,
    add_spliced,
    archive,
    archived,
    archiver_of,
    crash_at,
    files,
    fill,
    new_log,
    path_of,
    read,
    records_of,
    remove,
    steps_of,
    write,
)


async def ledgers_there(client: Client, log: Log) -> list[int]:
    """List the log's ledgers that have metadata."""
    there = set(await client.ledgers.list())
    return [segment.ledger_id for segment in (await log.info()).segments if segment.ledger_id in there]


async def collect(cluster: MemoryCluster) -> None:
    """Make the bookies collect all deleted ledgers."""
    for bookie in cluster.bookies.values():
        await bookie.node.engine.flush()
        await bookie.node.engine.collector.collect()


async def test_a_log_reads_the_same_through_its_archive_from_every_start(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 7, 1, 11)
        await add_spliced(client, log, [b"x", b"", b"yy"])
        await fill(log, 4, 6)
        before = await records_of(log)
        segments = (await log.info()).segments
        done = await archive(client, tmp_path)
        assert done == ["copied"] * 6 + ["given up"] * 5, "the newest ledger with records stays"
        assert await ledgers_there(client, log) == [segments[-1].ledger_id]
        assert await records_of(log) == before
        for record in before:
            rest = before[record.offset :]
            assert await records_of(log, record.offset) == rest
            assert await records_of(log, record.position) == rest
            assert await records_of(log, record.offset, until=record.offset + 3) == rest[:3]
            moment = [other for other in before if other.timestamp >= record.timestamp]
            assert await records_of(log, record.timestamp) == moment
            late = [other for other in before if other.timestamp > record.timestamp]
            assert await records_of(log, record.timestamp + timedelta(microseconds=1)) == late
        behind = Position(segments[0].ledger_id, before[6].position.entry_id + 1)
        assert await records_of(log, behind) == before[7:], "after the last entry of an archived ledger"
        with pytest.raises(InvalidArgument):
            await records_of(log, Position(segments[0].ledger_id, 1000))
        assert await records_of(log, "latest") == []


async def test_a_follower_crosses_from_the_archive_to_the_live_tail(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        await archive(client, tmp_path)
        async with log.writer() as writer, log.read(2, follow=True, until=14) as records:
            found = []
            async for record in records:
                found.append(record.offset)
                if record.offset == 9:
                    for at in range(4):
                        await writer.append(b"%d" % at)
            assert found == list(range(2, 14))


async def test_a_reader_on_its_way_goes_on_when_copies_are_given_up_under_it(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 5, 5)
        before = await records_of(log)
        job = await archiver_of(other, tmp_path)
        async with log.read(until=15) as records:
            first = await anext(records)
            await archive(other, tmp_path)
            for bookie in cluster.bookies.values():
                await bookie.node.engine.flush()
                assert await bookie.node.engine.collector.collect() == 2
            assert [first, *[record async for record in records]] == before
        assert job.plan(await job.look()).copy == ()


async def test_copies_are_given_up_after_the_delay_and_bookies_collect_them(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        before = await records_of(log)
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == ["copied", "copied"]
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == []
        assert len(await ledgers_there(client, log)) == 2
        environment = client.opened.environment
        now = environment.now_ms()
        environment.now_ms = lambda: now + round(DAY_S * 1000) - 5000
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == []
        environment.now_ms = lambda: now + round(DAY_S * 1000) + 5000
        assert await archive(client, tmp_path, keep_copies_s=DAY_S) == ["given up"]
        given_up = (await log.info()).segments[0].ledger_id
        for bookie in cluster.bookies.values():
            await bookie.node.engine.flush()
            assert await bookie.node.engine.collector.collect() == 1
        assert given_up not in await ledgers_there(client, log)
        assert await records_of(log) == before
        assert await sweep(client.opened, min_age_s=0) == []


async def test_a_sealed_log_is_given_up_whole(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4)
        before = await records_of(log)
        assert await archive(client, tmp_path) == ["copied", "copied", "given up"]
        await log.seal()
        assert await archive(client, tmp_path) == ["given up"]
        assert await ledgers_there(client, log) == []
        assert await records_of(log) == before
        assert await records_of(log, 3, follow=True) == before[3:]
        assert (await log.info()).next_offset == 9
        assert await records_of(log, "latest") == []


async def test_an_archive_serves_while_no_bookie_does(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        before = await records_of(log)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        for bookie in cluster.bookies.values():
            await bookie.kill()
        assert await records_of(log) == before


async def test_a_place_that_was_found_in_a_file_is_read_from_bookies_that_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        before = await records_of(log)
        await archive(client, tmp_path, keep_copies_s=DAY_S)

        async def no_answer(*args: Any) -> ReadPosition:
            raise EntryUnavailable(0, 0, "no bookie answers")

        monkeypatch.setattr(positions, "find_offset_in_ledger", no_answer)
        for start in (1, 4, 7):
            assert await records_of(log, start) == before[start:]


async def test_a_ledger_that_is_not_fully_replicated_is_left_to_repair(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        (bookie, *_) = cluster.bookies.values()
        await bookie.kill()
        steps = await steps_of(client, tmp_path)
        assert [step.what for step in steps] == ["skipped", "skipped"]
        assert bookie.bookie_id in steps[0].why
        assert "`ledgerlog repair audit --entries all`" in steps[0].why
        assert files(tmp_path) == []


async def test_a_ledger_whose_metadata_are_damaged_fails_its_step_and_the_others_are_archived(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        _, damaged, _ = await ledgers_there(client, log)
        store = client.opened.store
        node = await store.get(ledger_path(damaged))
        assert node is not None
        await store.set(ledger_path(damaged), b"damaged", version=node.version)
        steps = await steps_of(client, tmp_path)
        assert [step.what for step in steps] == ["copied", "failed", "copied", "given up"]
        assert (steps[1].ledger_id, f"{damaged}" in steps[1].why) == (damaged, True)


async def test_a_stray_file_that_cannot_be_deleted_is_told_and_the_others_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        await archive(client, tmp_path)
        await merge_log(client.opened, "log", str(tmp_path))
        for path in files(tmp_path):
            os.utime(path, (0, 0))
        archiver = await archiver_of(client, tmp_path)
        delete, refused = archiver.destination.delete, []

        def refuse_first(name: str) -> bool:
            if not refused:
                refused.append(name)
                raise ArchiveUnavailable(name, "Operation not permitted")
            return delete(name)

        monkeypatch.setattr(archiver.destination, "delete", refuse_first)
        steps = await clean(archiver, min_age_s=0)
        assert [step.what for step in steps] == ["failed", "cleaned"]
        assert "not permitted" in steps[0].why


async def test_an_empty_log_and_one_with_empty_ledgers_have_nothing_to_archive(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        assert await archive(client, tmp_path) == []
        for _ in range(3):
            async with log.writer():
                pass
        assert await archive(client, tmp_path) == []
        await fill(log, 2)
        async with log.writer():
            pass
        await fill(log, 3)
        before = await records_of(log)
        assert await archive(client, tmp_path) == ["copied", "copied", "given up"]
        assert await records_of(log) == before
        with pytest.raises(LogNotFound):
            await archive(client, tmp_path, log="another")


async def test_a_log_that_remembers_producers_is_taken_over_after_it_was_archived(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        async with log.writer(producer="p") as writer:
            for sequence in range(4):
                await writer.append(b"%d" % sequence, sequence=sequence)
                await writer.roll()
        before = await records_of(log)
        assert await archive(client, tmp_path) == ["copied"] * 4 + ["given up"] * 3
        async with log.writer(producer="p") as writer:
            assert (await writer.append(b"3", sequence=3)).duplicate
            assert (await writer.append(b"4", sequence=4)).offset == 4
        assert (await records_of(log))[:4] == before


# --- a crash at every step --------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(15))
async def test_a_run_after_a_crash_at_any_step_finishes_and_nothing_is_ever_missing(
    tmp_path: Path, step: int
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        before = await records_of(log)
        seen = crash_at(client, step)
        try:
            await archive(client, tmp_path)
        except Crash:
            assert len(seen) == step + 1
        else:
            pytest.fail(f"the job has only the steps {seen}")
        assert await records_of(log) == before
        await collect(cluster)
        assert await records_of(log) == before
        await archive(other, tmp_path)
        assert await archive(other, tmp_path) == [], "nothing is left to do"
        assert len(await archived(other, log)) == 3
        assert await ledgers_there(other, log) == [(await log.info()).segments[-1].ledger_id]
        await collect(cluster)
        assert await records_of(log) == before
        named = {record.file for record in await archived(other, log)}
        strays = [path for path in files(tmp_path) if path.as_uri() not in named]
        assert len(strays) == (
            1 if seen[-1] in ("file begun", "file written", "file named", "verified") else 0
        )
        for path in strays:
            os.utime(path, (0, 0))
        environment = other.opened.environment
        environment.now_ms = lambda: round(10 * ARCHIVE_STRAY_AGE_S * 1000)
        assert await archive(other, tmp_path) == ["cleaned"] * len(strays)
        assert {path.as_uri() for path in files(tmp_path)} == named


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
@pytest.mark.parametrize("step", ["verified", "checked again"])
async def test_a_lost_answer_of_the_store_is_settled(tmp_path: Path, fault: str, step: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4)
        before = await records_of(log)
        struck = []

        def mark(name: str) -> None:
            if name == f"archive: {step}":
                struck.append(name)
                setattr(client.store, fault, 1)

        client.opened.environment.mark = mark
        assert await archive(client, tmp_path) == ["copied", "copied", "given up"]
        assert struck
        assert await records_of(log) == before
        assert len(files(tmp_path)) == 2


# --- strays -----------------------------------------------------------------------------------------


def clock_of(client: Client) -> list[float]:
    """Return the client's wall clock in seconds, as a list of one item. Set the item to move the clock."""
    clock = [10 * DAY_S]
    client.opened.environment.now_ms = lambda: round(1000 * clock[0])
    return clock


async def test_files_that_were_merged_stay_for_a_day_from_then_on(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        clock = clock_of(client)
        log = await new_log(client)
        await fill(log, 5, 4, 3, 2)
        await archive(client, tmp_path)
        for path in files(tmp_path):
            os.utime(path, (0, 0))
        (step,) = await merge_log(client.opened, "log", str(tmp_path))
        assert step.what == "merged"
        os.utime(path_of((await archived(client, log))[0]), (0, 0))
        for hours in (0, 12, 23.9):
            clock[0] = 10 * DAY_S + 3600 * hours
            assert await archive(client, tmp_path) == []
        clock[0] = 11 * DAY_S + 1
        assert await archive(client, tmp_path) == ["cleaned"] * 3
        assert len(files(tmp_path)) == 2


async def test_files_go_in_their_time_though_others_take_their_places_again_and_again(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        clock = clock_of(client)
        log = await new_log(client)
        await fill(log, 5, 4, 3, 2)
        await archive(client, tmp_path)
        for path in files(tmp_path):
            os.utime(path, (0, 0))
        await merge_log(client.opened, "log", str(tmp_path))
        merged = path_of((await archived(client, log))[0])
        os.utime(merged, (clock[0], clock[0]))
        clock[0] = 10.5 * DAY_S
        await fill(log, 6, 1)
        await archive(client, tmp_path)
        (step,) = await merge_log(client.opened, "log", str(tmp_path))
        assert step.what == "merged"
        clock[0] = 11 * DAY_S + 1
        assert await archive(client, tmp_path) == ["cleaned"] * 3
        assert merged in files(tmp_path)
        clock[0] = 11.5 * DAY_S + 1
        assert "cleaned" in await archive(client, tmp_path)
        assert merged not in files(tmp_path)


async def test_a_file_that_was_withdrawn_stays_until_its_ledger_is_archived_again(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        clock = clock_of(client)
        log = await new_log(client)
        await fill(log, 5, 4)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        job = await archiver_of(client, tmp_path)
        first = (await archived(client, log))[0]
        path = path_of(first)
        write(path, read(path)[:-1] + b"?")
        os.utime(path, (0, 0))
        assert (await job.give_up(first, first.ledger_id)).what == "withdrawn"
        clock[0] = 20 * DAY_S
        (step,) = await clean(job)
        assert (step.what, step.file) == ("skipped", path.as_uri())
        assert f"ledger {first.ledger_id}, which is not archived" in step.why
        assert (await job.copy(job.plan(await job.look()).copy[0])).what == "copied"
        assert await clean(job) == []
        clock[0] = 22 * DAY_S
        assert [step.file for step in await clean(job)] == [path.as_uri()]


async def test_files_that_a_restored_backup_does_not_know_stay_until_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    """Bookies gave their copies up after the backup, so these files have the only copies."""
    where, backup = tmp_path / "archive", f"{tmp_path}/backup"
    async with open_cluster() as cluster:
        async with cluster.client() as client:
            log = await new_log(client)
            await fill(log, 5, 4)
            await archive(client, where)
            known = {path_of(record) for record in await archived(client, log)}
            async with cluster.tree.open_store() as store:
                store.belong_to(CLUSTER)
                with write_backup(backup) as writer:
                    await save(store, writer, made_ms=0)
            await fill(log, 3, 2, 1)
            assert "given up" in await archive(client, where)
        cluster.tree.exchange(Content())
        async with cluster.tree.open_store() as store:
            await restore(store, open_backup(backup), now_ms=EPOCH_MS, random_bytes=os.urandom)
        async with cluster.client() as client:
            clock_of(client)
            unknown = {*files(where)} - known
            for path in files(where):
                os.utime(path, (0, 0))
            job = await archiver_of(client, where)
            steps = await clean(job)
            assert {(step.what, step.file) for step in steps} == {
                ("skipped", path.as_uri()) for path in unknown
            }
            assert all("come from a backup" in step.why for step in steps)
            await accept_loss(client.opened.store)
            assert {step.what for step in await clean(job)} == {"cleaned"}
            assert {*files(where)} == known


# --- rivals -----------------------------------------------------------------------------------------


async def test_two_jobs_at_once_leave_one_archive(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        before = await records_of(log)
        done: list[list[str]] = []

        async def run(who: Client) -> None:
            done.append(await archive(who, tmp_path))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, client)
            nursery.start_soon(run, other)
        await archive(client, tmp_path)
        assert await records_of(log) == before
        assert {path.as_uri() for path in files(tmp_path)} == {
            record.file for record in await archived(client, log)
        }


@pytest.mark.parametrize("step", ["file begun", "verified"])
async def test_records_that_are_truncated_while_they_are_copied_get_no_archive(
    tmp_path: Path, step: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4)
        job = await archiver_of(client, tmp_path)
        (segment, _) = job.plan(await job.look()).copy

        async def truncate() -> None:
            await (await new_view(other)).truncate(5)

        await interrupted(client, step, truncate)
        assert (await job.copy(segment)).what == "skipped"
        assert await archived(client, log) == []
        assert files(tmp_path) == []


async def new_view(client: Client) -> Log:
    return await open_log(client.opened, "log")


async def interrupted(client: Client, step: str, what: object) -> None:
    """Run ``what``, the work of another client, before the next write or read that follows the step."""
    is_due = [False]

    def mark(name: str) -> None:
        is_due[0] = is_due[0] or name == f"archive: {step}"

    async def before_get(path: str) -> None:
        if is_due[0]:
            client.store.before_get = None
            await what()

    client.opened.environment.mark = mark
    client.store.before_get = before_get


async def test_a_ledger_that_is_archived_and_merged_while_it_is_copied_is_skipped(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4, 2)
        before = await records_of(log)
        job = await archiver_of(client, tmp_path)
        segment = job.plan(await job.look()).copy[0]

        async def archive_and_merge() -> None:
            await archive(other, tmp_path)
            (step,) = await merge_log(other.opened, "log", str(tmp_path))
            assert step.what == "merged"

        await interrupted(client, "verified", archive_and_merge)
        there = len(files(tmp_path)) + 4  # Three copies, and the merged file.
        step = await job.copy(segment)
        assert (step.what, step.why) == ("skipped", "another job has archived it")
        assert len(files(tmp_path)) == there, "the job deletes its own file"
        assert await records_of(log) == before


async def test_a_copy_that_was_held_up_for_a_day_is_not_recorded(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4)
        environment = client.opened.environment
        now = environment.now_ms

        def held_up(name: str) -> None:
            if name == "archive: verified":
                environment.now_ms = lambda: now() + round(1000 * ARCHIVE_STRAY_AGE_S) - 60_000

        job = await archiver_of(client, tmp_path)
        segment = job.plan(await job.look()).copy[0]
        environment.mark = held_up
        step = await job.copy(segment)
        assert (step.what, step.why) == ("skipped", LATE)
        assert files(tmp_path) == []
        assert await archived(client, log) == []


async def with_copies_to_give_up(client: Client, where: Path) -> tuple[Log, Archiver, ArchivedFile, int]:
    """A log with two archived ledgers, and the first one whose copies a job would let bookies delete."""
    log = await new_log(client)
    await fill(log, 5, 4)
    await archive(client, where, keep_copies_s=DAY_S)
    job = await archiver_of(client, where)
    (record, ledger_id), *_ = job.plan(await job.look()).give_up
    return log, job, record, ledger_id


async def test_a_ledger_that_is_archived_anew_waits_anew_though_its_record_has_the_version_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log, job, record, ledger_id = await with_copies_to_give_up(client, tmp_path)

        async def withdraw_and_copy() -> None:
            remove(path_of(record))
            rival = await archiver_of(other, tmp_path)
            assert (await rival.give_up(record, ledger_id)).what == "withdrawn"
            assert (await rival.copy(rival.plan(await rival.look()).copy[0])).what == "copied"

        await interrupted(client, "checked again", withdraw_and_copy)
        assert (await job.give_up(record, ledger_id)).what == "skipped"
        assert ledger_id in await ledgers_there(client, log)


async def test_a_record_that_is_made_anew_is_not_withdrawn_though_it_has_the_version_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log, job, record, ledger_id = await with_copies_to_give_up(client, tmp_path)
        remove(path_of(record))

        async def withdraw_and_copy(path: str) -> None:
            if path == log_record_path(log.incarnation):
                client.store.before_get = None
                rival = await archiver_of(other, tmp_path)
                assert (await rival.give_up(record, ledger_id)).what == "withdrawn"
                assert (await rival.copy(rival.plan(await rival.look()).copy[0])).what == "copied"

        client.store.before_get = withdraw_and_copy
        assert (await job.give_up(record, ledger_id)).what == "skipped"
        assert (await archived(client, log))[0].ledger_id == ledger_id


async def test_a_log_that_is_deleted_and_made_again_is_another_log(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4, 2)
        await archive(client, tmp_path)
        assert len(files(tmp_path)) == 3
        await delete_log(other.opened, "log")
        again = await new_log(other)
        await fill(again, 3, 2)
        assert len(await records_of(again)) == 5
        await archive(client, tmp_path)
        assert len(await records_of(again)) == 5
        assert len(files(tmp_path)) == 5
        write(files(tmp_path)[0].parent / ".stray.tmp", b"of a job that was killed")
        steps = await retire_gone(client.opened, str(tmp_path))
        assert [step.what for step in steps] == ["cleaned"] + ["retired"] * 3
        assert len(files(tmp_path)) == 2
        assert len(await records_of(again)) == 5
        assert await retire_gone(client.opened, str(tmp_path)) == []


async def test_a_log_whose_record_is_damaged_does_not_keep_others_from_being_retired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        for name in ("log", "other"):
            log = await new_log(client, name)
            await fill(log, 5, 4, 2)
            await archive(client, tmp_path, log=name)
            if name == "log":
                path = log_record_path(log.incarnation)
                node = await client.store.get(path)
                assert node is not None
                await client.store.set(path, b"damaged", version=node.version)
        await delete_log(client.opened, "other")
        assert [step.what for step in await retire_gone(client.opened, str(tmp_path))] == ["retired"] * 3
        assert len(files(tmp_path)) == 3
    assert "no archived file of a damaged log is deleted" in caplog.text


async def test_the_files_of_a_log_whose_record_is_lost_stay(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 2)
        await archive(client, tmp_path)
        job = await archiver_of(client, tmp_path)
        record = (await job.look()).records[0][0]
        await client.store.delete(log_record_path(log.incarnation))
        assert await retire_gone(client.opened, str(tmp_path)) == []
        with pytest.raises(MetadataCorrupt, match="lost the record"):
            await archive(client, tmp_path)
        with pytest.raises(MetadataCorrupt, match="lost the record"):
            await job.retire(record)
        with pytest.raises(MetadataCorrupt, match="lost the record"):
            await clean(job, min_age_s=0)
        assert len(files(tmp_path)) == 3
        await delete_log(client.opened, "log", damaged=True)
        assert [step.what for step in await retire_gone(client.opened, str(tmp_path))] == ["retired"] * 3


async def test_a_log_that_is_deleted_while_a_ledger_is_copied_gets_no_archive(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4)
        job = await archiver_of(client, tmp_path)
        (segment, _) = job.plan(await job.look()).copy

        async def delete() -> None:
            await delete_log(other.opened, "log")
            await fill(await new_log(other), 5, 4)

        await interrupted(client, "verified", delete)
        assert (await job.copy(segment)).what == "skipped"
        assert await archived(client, log) == []


async def test_a_takeover_under_the_job_changes_nothing(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4)
        job = await archiver_of(client, tmp_path)
        (segment, _) = job.plan(await job.look()).copy

        async def take_over() -> None:
            await fill(await new_view(other), 2)

        await interrupted(client, "verified", take_over)
        assert (await job.copy(segment)).what == "copied"
        assert [record.offset for record in await records_of(log)] == list(range(11))


async def test_a_reader_whose_file_goes_because_of_a_truncation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        await archive(client, tmp_path)

        @asynccontextmanager
        async def too_late(record: ArchivedFile) -> AsyncIterator[ArchiveReader]:
            await log.truncate(7)
            assert await archive(client, tmp_path) == ["retired"]
            async with open_archive(record) as file:
                yield file

        monkeypatch.setattr("ledgerlog.log.reader.open_archive", too_late)
        with pytest.raises(Truncated) as told:
            await records_of(log)
        assert told.value.first_offset == 7


async def test_the_files_of_truncated_records_go_and_no_others(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        before = await records_of(log)
        await archive(client, tmp_path)
        await log.truncate(7)
        assert await records_of(log) == before[7:]
        with pytest.raises(Truncated):
            await records_of(log, 6)
        with pytest.raises(Truncated):
            await records_of(log, before[6].position)
        with pytest.raises(Truncated):
            await records_of(log, before[0].position)
        assert await archive(client, tmp_path) == ["retired"]
        assert await records_of(log) == before[7:]
        assert len(files(tmp_path)) == 2


# --- files that are gone, or damaged ------------------------------------------------------------------


async def test_a_missing_file_is_an_error_that_names_it_and_no_record_is_left_out(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        before = await records_of(log)
        await archive(client, tmp_path)
        path = path_of((await archived(client, log))[1])
        kept = read(path)
        remove(path)
        async with log.read() as records:
            found = [await anext(records) for _ in range(5)]
            with pytest.raises(ArchiveUnavailable, match=path.name):
                await anext(records)
        assert found == before[:5]
        for start in (6, before[6].position, before[6].timestamp):
            with pytest.raises(ArchiveUnavailable, match=path.name):
                await records_of(log, start)
        write(path, kept)
        assert await records_of(log) == before


async def test_a_damaged_file_is_told_and_copies_are_not_given_up_for_it(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 500, 4, 3)
        before = await records_of(log)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        first = (await archived(client, log))[0]
        path = path_of(first)
        damaged = bytearray(read(path))
        damaged[len(damaged) // 3] ^= 1
        write(path, damaged)
        assert await archive(client, tmp_path) == ["withdrawn", "given up", "copied", "given up"]
        assert (await archived(client, log))[0].file != first.file
        assert await records_of(log) == before
        path = path_of((await archived(client, log))[0])
        damaged = bytearray(read(path))
        damaged[len(damaged) // 3] ^= 1
        write(path, damaged)
        with pytest.raises(ArchiveCorrupt, match=path.name):
            await records_of(log)
        assert await records_of(log, 500) == before[500:]


async def test_an_upload_with_a_damaged_end_is_told_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Destination.publish

    def damage_and_publish(self: Destination, temporary: str, name: str) -> None:
        if name.endswith(".parquet"):
            path = Path(self.url_of(temporary).removeprefix("file://"))
            damaged = bytearray(read(path))
            damaged[-20] ^= 1
            write(path, damaged)
        publish(self, temporary, name)

    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5)
        before = await records_of(log)
        decoded: list[object] = []
        with monkeypatch.context() as patched:
            patched.setattr(Destination, "publish", damage_and_publish)
            patched.setattr(file_reader.pq, "read_metadata", decoded.append)
            assert await archive(client, tmp_path) == ["failed"]
        assert decoded == []
        assert await archived(client, log) == []
        assert await archive(client, tmp_path) == ["copied"]
        assert await records_of(log) == before


@pytest.mark.long
@pytest.mark.parametrize("harm", ["damaged", "gone"])
async def test_a_file_that_is_damaged_keeps_its_record_while_bookies_do_not_give_the_records(
    tmp_path: Path, harm: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 500, 4)
        before = await records_of(log)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        first = (await archived(client, log))[0]
        path = path_of(first)
        good = read(path)
        remove(path)
        if harm == "damaged":
            write(path, good[: len(good) // 3] + b"?" + good[len(good) // 3 + 1 :])
        for bookie in cluster.bookies.values():
            await bookie.kill()
        job = await archiver_of(client, tmp_path)
        with pytest.raises(ArchiveCorrupt, match="it cannot be read from bookies"):
            await job.give_up(first, first.ledger_id)
        assert (await archived(client, log))[0] == first
        write(path, good)
        assert await records_of(log) == before, "the file is back"
        remove(path)
        for bookie in cluster.bookies.values():
            await bookie.start()
        assert (await job.give_up(first, first.ledger_id)).what == "withdrawn"
        assert await records_of(log) == before


async def test_a_ledger_that_is_truncated_away_while_its_file_is_looked_at_is_left_to_be_retired(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        first = (await archived(client, log))[0]
        job = await archiver_of(client, tmp_path)
        remove(path_of(first))
        stored = await job.ledgers.find(first.ledger_id)
        assert stored is not None
        await log.truncate(5)
        metadata = stored[0]
        await client.opened.store.create(ledger_path(first.ledger_id), metadata.encode())  # Not deleted yet.
        assert (await job.give_up(first, first.ledger_id)).what == "skipped"
        assert (await archived(client, log))[0] == first


async def test_another_file_under_the_name_is_told(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5, 3)
        await archive(client, tmp_path)
        one, two, _ = (path_of(each) for each in await archived(client, log))
        write(one, read(two))
        with pytest.raises(ArchiveCorrupt, match="not the file that was archived"):
            await records_of(log)


async def test_a_file_that_says_something_else_than_its_record_is_told(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        await archive(client, tmp_path)
        record = (await archived(client, log))[0]
        ArchiveFile(record).close()
        (ledger,) = record.ledgers
        longer = attrs.evolve(ledger, last_entry=(ledger.last_entry or 0) + 1)
        with pytest.raises(ArchiveCorrupt, match="not the file that was archived"):
            ArchiveFile(attrs.evolve(record, ledgers=(longer,)))


async def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 5)
        before = await records_of(log)
        await archive(client, tmp_path)
        for name in ("file_reader", "file_writer"):
            monkeypatch.setitem(sys.modules, f"ledgerlog.archive.{name}", None)
            monkeypatch.delattr(ledgerlog.archive, name)
        with pytest.raises(ArchiveSupportMissing, match=r"ledgerlog\[archive\]"):
            await records_of(log)
        assert await records_of(log, 5) == before[5:], "records on bookies need no pyarrow"
        with pytest.raises(ArchiveSupportMissing):
            await archive(client, tmp_path)


async def test_any_flipped_byte_of_a_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 60, 1)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        record = (await archived(client, log))[0]
        path = path_of(record)
        good = read(path)
        noticed = 0
        for at in range(0, len(good), 37):
            damaged = bytearray(good)
            damaged[at] ^= 0x10
            write(path, damaged)
            try:
                await check_archive(record)
            except ArchiveCorrupt:
                noticed += 1
        write(path, good)
        assert noticed > len(good) // 37 // 2
        check = FileCheck(record)
        while check.step():
            pass
        assert check.end().digest == record.digest
        check.close()
