"""Merging and compacting an archive: offsets stay, and only the requested records go, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq
import pytest
import trio

from ledgerlog.archive.core.compaction import KeyRule, json_rule, prefix_rule
from ledgerlog.archive.jobs.archiver import LATE
from ledgerlog.archive.jobs.job import archive_log, open_archiver
from ledgerlog.archive.jobs.rewrite import compact_log, groups_to_compact, merge_log
from ledgerlog.archive.reader import ArchiveReader, open_archive
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.errors import ArchiveUnavailable, InvalidArgument, MetadataOutcomeUnknown, Truncated
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.log import reader as log_reader
from ledgerlog.log.log import Log, open_log
from ledgerlog.log.sweep import sweep
from ledgerlog.meta.store import Operation
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.ids import Position
from ledgerlog.model.layout import archive_path
from ledgerlog.model.record import Record
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import (
    Crash,
    archive,
    archived,
    crash_at,
    files,
    fill,
    fill_with_keys,
    name_in,
    new_log,
    path_of,
    read,
    records_of,
    remove,
    write,
)
from tests.waiting import PATIENCE_S

BIG = 10**9


async def merge(client: Client, where: Path, bytes_max: int = BIG) -> list[str]:
    steps = await merge_log(client.opened, "log", str(where), bytes_max=bytes_max)
    return [step.what for step in steps]


async def compact(
    client: Client,
    where: Path,
    rule: KeyRule | None = None,
    *,
    after_s: float | None = None,
    bytes_max: int = BIG,
) -> list[str]:
    steps = await compact_log(
        client.opened,
        "log",
        str(where),
        rule=rule or prefix_rule(1),
        tombstones_after_s=after_s,
        bytes_max=bytes_max,
    )
    return [step.what for step in steps]


def latest(records: list[Record], end: int) -> list[Record]:
    """Return the records below ``end`` that compaction by the first byte keeps, and all from ``end`` on."""
    last = {record.data[:1]: record.offset for record in records if record.offset < end and record.data}
    return [
        record
        for record in records
        if record.offset >= end or not record.data or last[record.data[:1]] == record.offset
    ]


async def segments(client: Client, log: Log) -> list[int]:
    return [segment.ledger_id for segment in (await log.info()).segments]


async def test_merged_ledgers_are_one_file_and_one_segment_and_read_as_before(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3)
        async with log.writer():
            pass
        await fill(log, 5, 2, 6)
        before = await records_of(log)
        ids = await segments(client, log)
        assert await merge(client, tmp_path) == [], "bookies have all ledgers"
        await archive(client, tmp_path)
        assert await merge(client, tmp_path) == ["merged"]
        assert await segments(client, log) == [ids[0], ids[-1]]
        assert (await log.info()).segments[0].record_count == 14
        assert await records_of(log) == before
        for record in before:
            rest = before[record.offset :]
            assert await records_of(log, record.offset) == rest
            assert await records_of(log, record.position) == rest, "also if the list lacks the ledger"
        moment = before[9].timestamp
        assert await records_of(log, moment) == [each for each in before if each.timestamp >= moment]
        with pytest.raises(InvalidArgument):
            await records_of(log, Position(10**6, 0))
        assert await archive(client, tmp_path) == []
        assert await sweep(client.opened, min_age_s=0) == []
        assert set(ids[1:-1]).isdisjoint(await client.ledgers.list())
        await fill(log, 3, 1)
        before = await records_of(log)
        await archive(client, tmp_path)
        assert await merge(client, tmp_path, bytes_max=1) == []
        assert await merge(client, tmp_path) == ["merged"]
        assert await records_of(log) == before
        await log.truncate(15)
        assert await records_of(log) == before[15:]
        with pytest.raises(Truncated):
            await records_of(log, before[14].position)


async def test_keys_and_headers_are_archived_merged_and_compacted_by_key(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4)
        await fill_with_keys(log, 9)
        await fill_with_keys(log, 8, every=4)
        await fill(log, 2)
        before = await records_of(log)
        assert sum(record.key is not None for record in before) == 11
        await archive(client, tmp_path)
        assert await records_of(log) == before, "read through the archive"
        columns = [pq.read_schema(path_of(each)).names[7:] for each in await archived(client, log)]
        both = ["key", "headers"]
        assert columns == [[], both, both, []], "a file has no such column if no record needs it"
        assert await merge(client, tmp_path) == ["merged"]
        assert await records_of(log) == before
        steps = await compact_log(client.opened, "log", str(tmp_path))
        assert [step.what for step in steps] == ["compacted"]
        last = {record.key: record.offset for record in before}
        assert await records_of(log) == [
            record for record in before if record.key is None or last[record.key] == record.offset
        ]
        assert (await archived(client, log))[0].record_count == len(await records_of(log)) - 2


async def test_a_reader_goes_on_when_what_it_is_about_to_read_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        before = await records_of(log)
        await archive(client, tmp_path)
        second = (await archived(client, log))[1]
        merges: list[list[str]] = []

        @asynccontextmanager
        async def after_a_merge(record: ArchivedFile) -> AsyncIterator[ArchiveReader]:
            if record == second and not merges:
                merges.append(await merge(other, tmp_path))
                named = {path_of(each) for each in await archived(other, log)}
                for path in set(files(tmp_path)) - named:
                    remove(path)
            async with open_archive(record) as opened:
                yield opened

        monkeypatch.setattr(log_reader, "open_archive", after_a_merge)
        assert await records_of(log) == before
        assert merges == [["merged"]]


async def test_a_follower_at_the_end_of_a_ledger_that_is_merged_leaves_nothing_out(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4)
        found: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S

            async def follow() -> None:
                async with log.read(follow=True, until=13) as records:
                    async for record in records:
                        found.append(record.offset)

            nursery.start_soon(follow)
            while len(found) < 4:  # noqa: ASYNC110 (a list has no event)
                await trio.sleep(0.01)
            # The reader waits at the end of the first ledger and knows no other ledger.
            real_get = client.store.inner.get
            gate = trio.Event()

            async def get(path: str) -> object:
                if path.startswith("log/"):
                    await gate.wait()
                return await real_get(path)

            client.store.inner.get = get
            again = await other_view(other)
            await fill(again, 3, 4, 2)
            await archive(other, tmp_path)
            assert await merge(other, tmp_path) == ["merged"]
            gate.set()
        assert found == list(range(13))


async def other_view(client: Client) -> Log:
    return await open_log(client.opened, "log")


@pytest.mark.parametrize("step", range(5))
async def test_a_merge_that_crashes_at_any_step_is_finished_by_another(tmp_path: Path, step: int) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        before = await records_of(log)
        await archive(client, tmp_path)
        seen = crash_at(client, step)
        with pytest.raises(Crash):
            await merge(client, tmp_path)
        assert len(seen) == step + 1
        assert await records_of(log) == before
        assert await merge(other, tmp_path) == ([] if seen[-1] == "merged" else ["merged"])
        assert await records_of(log) == before
        assert len(await archived(other, log)) == 2


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_merge_whose_answer_was_lost_is_settled(tmp_path: Path, fault: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        before = await records_of(log)
        await archive(client, tmp_path)
        setattr(client.store, fault, 1)
        assert await merge(client, tmp_path) == ["merged"]
        assert await records_of(log) == before


async def test_a_reader_goes_on_behind_a_merge_with_what_bookies_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        before = await records_of(log)
        job = await open_archiver(client.opened, "log", str(tmp_path), keep_copies_s=0.0)
        for segment in job.plan(await job.look()).copy[:3]:
            await job.copy(segment)
        for each, ledger_id in job.plan(await job.look()).give_up:
            await job.give_up(each, ledger_id)
        second = (await archived(client, log))[1]
        merges: list[list[str]] = []

        @asynccontextmanager
        async def after_a_merge(record: ArchivedFile) -> AsyncIterator[ArchiveReader]:
            if record == second and not merges:
                merges.append(await merge(other, tmp_path))
                remove(path_of(second))
            async with open_archive(record) as opened:
                yield opened

        monkeypatch.setattr(log_reader, "open_archive", after_a_merge)
        assert await records_of(log) == before
        assert merges == [["merged"]]


async def test_a_merge_that_comes_late_keeps_its_file_though_half_of_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        before = await records_of(log)
        await archive(client, tmp_path)
        second = archive_path(log.incarnation, (await archived(client, log))[1].ledger_id)
        on_the_way: list[Sequence[Operation]] = []

        async def no_answer(operations: Sequence[Operation]) -> list[int]:
            on_the_way.append(operations)
            raise MetadataOutcomeUnknown("it is on its way")

        async def arrive(path: str) -> None:
            if on_the_way and path == second:
                client.store.before_get = None
                await client.store.inner.transaction(on_the_way.pop())

        client.store.before_get = arrive
        monkeypatch.setattr(client.store, "transaction", no_answer)
        assert await merge(client, tmp_path) == ["skipped"]
        assert len(await archived(client, log)) == 2, "the late merge was applied"
        assert await records_of(log) == before


@pytest.mark.parametrize("how", ["cleaned", "replaced"])
async def test_files_are_not_replaced_by_one_that_is_gone_or_another(tmp_path: Path, how: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        before = await records_of(log)
        await archive(client, tmp_path)
        named = set(files(tmp_path))

        def held_up(name: str) -> None:
            if name == "archive: verified":
                for path in set(files(tmp_path)) - named:
                    remove(path)
                    if how == "replaced":
                        write(path, read(min(named)))

        client.opened.environment.mark = held_up
        assert await merge(client, tmp_path) == ["failed"]
        assert await records_of(log) == before


async def test_files_are_not_replaced_by_one_that_a_cleaner_may_be_about_to_delete(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        before = await records_of(log)
        await archive(client, tmp_path)
        named = files(tmp_path)
        environment = client.opened.environment
        now = environment.now_ms

        def held_up(name: str) -> None:
            if name == "archive: verified":
                environment.now_ms = lambda: now() + round(1000 * ARCHIVE_STRAY_AGE_S) - 60_000

        environment.mark = held_up
        (step,) = await merge_log(client.opened, "log", str(tmp_path))
        assert (step.what, step.why) == ("skipped", LATE)
        assert files(tmp_path) == named
        assert await records_of(log) == before
        environment.mark = lambda name: None
        assert await merge(client, tmp_path) == ["merged"]


async def test_what_is_truncated_while_it_is_merged_stays_truncated(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        before = await records_of(log)
        await archive(client, tmp_path)

        async def truncate() -> None:
            await (await other_view(other)).truncate(5)

        client.store.before_write = truncate
        assert await merge(client, tmp_path) == ["skipped"]
        assert await records_of(log) == before[5:]
        assert await archive(client, tmp_path) == ["retired"]
        assert await merge(client, tmp_path) == ["merged"]
        assert await records_of(log) == before[5:]


async def put_elsewhere(client: Client, record: ArchivedFile) -> None:
    """Make a record name a destination of an unknown kind."""
    path = archive_path(record.incarnation, record.ledger_id)
    found = await client.opened.store.get(path)
    assert found is not None
    strange = attrs.evolve(record, destination=b"", file=f"strange://there/{name_in(record)}")
    await client.opened.store.set(path, strange.encode(), version=found.version)


async def test_a_file_at_a_place_that_is_not_known_here_fails_its_step_and_says_so(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        await archive(client, tmp_path)
        await put_elsewhere(client, (await archived(client, log))[1])
        for steps in (
            await merge_log(client.opened, "log", str(tmp_path)),
            await compact_log(client.opened, "log", str(tmp_path), rule=prefix_rule(1)),
        ):
            assert [step.what for step in steps] == ["failed"]
            assert "archive file strange://there/log-" in steps[0].why
        with pytest.raises(ArchiveUnavailable, match=r"strange://there.*use a machine that"):
            await records_of(log)


# --- compaction -------------------------------------------------------------------------------------


async def appended(log: Log, *ledgers: str) -> None:
    """Append a ledger for each string: records separated by spaces, two to an entry. ``.`` is empty."""
    async with log.writer() as writer:
        for number, words in enumerate(ledgers):
            if number:
                await writer.roll()
            values = [b"" if word == "." else word.encode() for word in words.split()]
            for at in range(0, len(values), 2):
                await writer.append_many(values[at : at + 2], atomic=True)


@pytest.mark.parametrize("bytes_max", [1, BIG])
async def test_the_latest_record_of_each_key_stays_under_its_offset(tmp_path: Path, bytes_max: int) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await appended(log, "a1 b1 a2 . c1", "b2 a3 a4", "d1 c2", "a5 e1")
        before = await records_of(log)
        await archive(client, tmp_path)
        end = 10
        left = latest(before, end)
        assert [record.offset for record in left] == [3, 5, 7, 8, 9, 10, 11]
        done = await compact(client, tmp_path, bytes_max=bytes_max)
        assert done == (["compacted"] if bytes_max == BIG else ["compacted", "compacted", "unchanged"])
        assert await records_of(log) == left
        for start in range(12):
            assert await records_of(log, start) == [record for record in left if record.offset >= start]
            assert await records_of(log, start, until=9) == [
                record for record in left if start <= record.offset < 9
            ]
            assert await records_of(log, before[start].position) == [
                record for record in left if record.offset >= start
            ]
        assert (await log.info()).next_offset == 12
        assert await compact(client, tmp_path, bytes_max=bytes_max) == ["unchanged"] * (
            1 if bytes_max == BIG else 3
        )
        await appended(log, "c3 d2", "z")
        await archive(client, tmp_path)
        before = await records_of(log)
        await compact(client, tmp_path, bytes_max=bytes_max)
        assert await records_of(log) == latest(before, 14)


async def test_compaction_names_each_file_that_it_cannot_read_and_changes_nothing(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await appended(log, "a1 b1", "a2", "b2 a3", "c1")
        before = await records_of(log)
        await archive(client, tmp_path)
        paths = [path_of(record) for record in await archived(client, log)]
        kept = read(paths[0])
        write(paths[0], kept[:50])
        paths[2].rename(tmp_path / "away")
        steps = await compact_log(client.opened, "log", str(tmp_path), rule=prefix_rule(1), bytes_max=1)
        assert [(step.what, paths[at].name in step.why) for at, step in zip((0, 2), steps, strict=True)] == [
            ("failed", True)
        ] * 2
        write(paths[0], kept)
        (tmp_path / "away").rename(paths[2])
        assert await records_of(log) == before


async def test_a_dense_reader_is_told_of_the_gap_as_of_a_truncation(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await appended(log, "a1 b1", "a2 c1", "a3")
        await archive(client, tmp_path)
        assert len(await records_of(log, dense=True)) == 5
        await compact(client, tmp_path)
        with pytest.raises(Truncated) as told:
            await records_of(log, dense=True)
        assert told.value.first_offset == 4
        assert [record.offset for record in await records_of(log, 4, dense=True)] == [4]


async def test_tombstones_stay_for_their_time_and_nothing_returns_when_they_go(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await appended(log, "a1 b1 c1", "a c2", "b3 c4", "z")
        rule = prefix_rule(1, tombstones=True)
        await archive(client, tmp_path)
        await compact(client, tmp_path, rule, after_s=1000.0, bytes_max=1)
        assert [record.data for record in await records_of(log)] == [b"a", b"b3", b"c4", b"z"]
        environment = client.opened.environment
        now = environment.now_ms()
        environment.now_ms = lambda: now + 2_000_000
        await compact(client, tmp_path, rule, after_s=1000.0, bytes_max=1)
        assert [record.data for record in await records_of(log)] == [b"b3", b"c4", b"z"]


@pytest.mark.parametrize("step", range(12))
async def test_a_compaction_that_crashes_anywhere_leaves_the_latest_of_each_key(
    tmp_path: Path, step: int
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await appended(log, "a1 b1 c1", "a c2", "b3 c4 c5", "z")
        before = await records_of(log)
        rule = prefix_rule(1, tombstones=True)
        await archive(client, tmp_path)
        crash_at(client, step)
        with pytest.raises(Crash):
            await compact(client, tmp_path, rule, after_s=-1000.0, bytes_max=1)
        left = await records_of(log)
        assert set(left) <= set(before)
        newest = {record.data[:1]: record for record in left}
        assert newest.get(b"a", before[3]).data == b"a", "a record that a tombstone deletes does not return"
        assert (newest[b"b"].data, newest[b"c"].data) == (b"b3", b"c5")
        await compact(other, tmp_path, rule, after_s=-1000.0, bytes_max=1)
        assert [record.data for record in await records_of(log)] == [b"b3", b"c5", b"z"]


async def test_a_file_of_which_nothing_is_left_stands_for_its_offsets_all_the_same(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await appended(log, "a1", "a2", "a3 b1", "z")
        await archive(client, tmp_path)
        await compact(client, tmp_path, bytes_max=1)
        assert [record.offset for record in await records_of(log)] == [2, 3, 4]
        assert [record.offset for record in await records_of(log, 1)] == [2, 3, 4]
        assert await merge(client, tmp_path) == ["compacted"]
        assert [record.offset for record in await records_of(log)] == [2, 3, 4]


async def test_what_bookies_have_copies_of_is_not_compacted(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await appended(log, "a1", "a2", "a3")
        before = await records_of(log)
        await archive(client, tmp_path, keep_copies_s=1000.0)
        assert await compact(client, tmp_path) == []
        job = await open_archiver(client.opened, "log", str(tmp_path))
        assert await groups_to_compact(job, bytes_max=BIG) == []
        assert await records_of(log) == before


async def test_keys_may_be_values_of_json(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        values = [b'{"id":{"n":1},"x":1}', b"no json", b'{"id":{"n":2}}', b'{"x":2,"id":{"n":1}}', b"{}"]
        async with log.writer() as writer:
            await writer.append_many(values)
            await writer.roll()
            await writer.append(b"end")
        await archive(client, tmp_path)
        await compact(client, tmp_path, json_rule("id.n"))
        assert [record.offset for record in await records_of(log)] == [1, 2, 3, 4, 5]
        assert len(await ArchiveRegistry(client.opened.store).of_log(log.incarnation)) == 2


@pytest.mark.parametrize("job", [merge_log, compact_log])
async def test_a_file_at_another_destination_comes_back_to_the_one_that_the_job_names(
    tmp_path: Path, job: Any
) -> None:
    right, wrong = tmp_path / "archive", tmp_path / "arhcive"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill_with_keys(log, 3)
        await archive(client, right)
        before = await records_of(log)
        await fill(log, 2)
        await archive(client, right)
        with trio.fail_after(PATIENCE_S):
            await archive_log(client.opened, "log", str(wrong), keep_copies_s=0, accept_destination=True)
            for where in (wrong, right):
                steps = await job(client.opened, "log", str(where))
                assert [step.what for step in steps] in (["merged"], ["compacted"])
                assert path_of((await archived(client, log))[0]).is_relative_to(where)
        assert (await records_of(log))[:3] == before
        (step,) = await job(client.opened, "log", str(right)) or [None]
        assert step is None or step.what == "unchanged"
