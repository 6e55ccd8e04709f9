"""An audit gives a verdict on every log, ledger and archived file. If one cannot be read, the others still
get theirs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.log.log import delete_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.layout import archive_path, ledger_path, log_name_path, log_record_path
from ledgerlog.spark.audit_plan import AuditPart, plan_audit
from ledgerlog.spark.audit_task import (
    ARCHIVE,
    CHECKED_FILE,
    CHECKED_LOG,
    FILE_CORRUPT,
    FILE_MISSING,
    FILE_UNREACHABLE,
    LOG,
    LOST,
    SOUND,
    AuditRow,
    open_audit,
)
from ledgerlog.spark.options import parse_audit_options
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import (
    DAY_S,
    archive,
    archived,
    files,
    fill,
    name_in,
    new_log,
    path_of,
    read,
    remove,
    write,
)

Verdicts = set[tuple[str, str | None, int | None]]


async def parts_of(client: Client, **options: str) -> list[AuditPart]:
    given = {"uri": "zk://localhost/unused", "settleSeconds": "0", "summary": "true", **options}
    return await plan_audit(client.opened, parse_audit_options(given))


async def rows_of(client: Client, parts: list[AuditPart]) -> list[AuditRow]:
    rows: list[AuditRow] = []
    for part in parts:
        async with open_audit(part, client.opened) as take:
            while (found := await take()) is not None:
                rows += found
    return rows


async def audit(client: Client, **options: str) -> list[AuditRow]:
    return await rows_of(client, await parts_of(client, **options))


def faults(rows: list[AuditRow]) -> Verdicts:
    return {(row.kind, row.log, row.ledger_id) for row in rows if row.kind not in SOUND}


def named(rows: list[AuditRow], kind: str) -> list[str | None]:
    return sorted(row.log or "" for row in rows if row.kind == kind)


async def spoil(client: Client, path: str) -> None:
    node = await client.store.get(path)
    assert node is not None
    await client.store.set(path, b"rubbish", version=node.version)


async def drop(client: Client, path: str) -> None:
    node = await client.store.get(path)
    assert node is not None
    await client.store.delete(path, version=node.version)


@pytest.mark.parametrize("which", ["record", "name", "no record"])
async def test_a_log_that_cannot_be_read_is_a_row_and_the_others_are_audited(which: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        logs = [await new_log(client, name) for name in ("a", "b", "c")]
        for log in logs:
            await fill(log, 4, 3)
        record, name = log_record_path(logs[1].incarnation), log_name_path("b")
        if which == "no record":
            await drop(client, record)
        else:
            await spoil(client, record if which == "record" else name)
        rows = await audit(client)
        assert faults(rows) == {(LOG, "b", None)}
        (row,) = [row for row in rows if row.kind == LOG]
        assert row.why
        assert named(rows, CHECKED_LOG) == ["a", "c"]
        assert {row.ledger_id for row in rows if row.kind == "checked"} >= set(range(4))
        assert faults(await audit(client, logs="b")) == {(LOG, "b", None)}
        assert faults(await audit(client, logs="a,c")) == set()


@pytest.mark.parametrize("options", [{}, {"logs": "log"}, {"ledgers": "1"}])
async def test_a_listed_ledger_without_metadata_is_lost(options: dict[str, str]) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        await drop(client, ledger_path(1))
        assert faults(await audit(client, **options)) == {(LOST, "log", 1)}


async def test_what_retention_takes_meanwhile_is_not_lost() -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log, gone = await new_log(client), await new_log(client, "gone")
        await fill(log, 4, 3, 5)
        await fill(gone, 2)
        parts = await parts_of(client)
        await log.truncate(7)
        await delete_log(client.opened, "gone")
        assert faults(await rows_of(client, parts)) == set()


async def test_what_is_archived_retired_or_merged_meanwhile_is_no_fault(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5, 2)
        early = await parts_of(client)
        await archive(client, tmp_path)
        assert faults(await rows_of(client, early)) == set()
        rows = await audit(client, mode="scrub")
        assert faults(rows) == set()
        assert len(named(rows, CHECKED_FILE)) == 4
        later = await parts_of(client)
        await merge_log(client.opened, "log", str(tmp_path))
        assert faults(await rows_of(client, later)) == set()
        assert faults(await audit(client)) == set()
        later = await parts_of(client)
        await log.truncate(12)
        for path in files(tmp_path):  # As if a job ended after the first step of retiring.
            remove(path)
        assert not {kind for kind, _, ledger_id in faults(await rows_of(client, later)) if ledger_id == 0}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: path.unlink(), FILE_MISSING),
    "empty": (lambda path: path.write_bytes(b"") and None, FILE_CORRUPT),
    "cut": (cut, FILE_CORRUPT),
    "longer": (lambda path: path.write_bytes(b"x" + path.read_bytes()) and None, FILE_CORRUPT),
    "footer": (lambda path: flip(path, -20), FILE_CORRUPT),
}


@pytest.mark.parametrize("how", SPOILED)
async def test_a_file_that_is_not_what_was_recorded_is_told_and_the_others_are_looked_at(
    tmp_path: Path, how: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        await archive(client, tmp_path)
        record = (await archived(client, log))[1]
        spoiling, kind = SPOILED[how]
        spoiling(path_of(record))
        for options in ({}, {"mode": "scrub"}, {"logs": "log"}, {"ledgers": str(record.ledger_id)}):
            rows = await audit(client, **options)
            assert faults(rows) == {(kind, "log", record.ledger_id)}, options
            (row,) = [row for row in rows if row.kind == kind]
            assert row.file == record.file
            assert row.why
        assert named(await audit(client), CHECKED_FILE) == ["log", "log"]


async def test_a_record_that_rotted_inside_a_file_is_found_by_a_scrub(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3)
        await archive(client, tmp_path)
        record = (await archived(client, log))[0]
        data = read(path_of(record))
        write(path_of(record), data[:4] + bytes(96) + data[100:])
        assert faults(await audit(client)) == set()
        assert faults(await audit(client, mode="scrub")) == {(FILE_CORRUPT, "log", record.ledger_id)}


async def first_ledger(client: Client, incarnation: int) -> int:
    metadata, _ = await LogRegistry(client.opened.store, client.opened.environment).read(incarnation)
    assert metadata is not None
    return metadata.segments[0].ledger_id


async def record_as(client: Client, record: ArchivedFile, **changes: object) -> None:
    path = archive_path(record.incarnation, record.ledger_id)
    node = await client.store.get(path)
    assert node is not None
    await client.store.set(path, attrs.evolve(record, **changes).encode(), version=node.version)


async def test_what_a_record_says_is_held_against_the_file_and_the_list(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3, 5)
        await archive(client, tmp_path)
        record, second, third = await archived(client, log)
        at = (("log", each.ledger_id) for each in (record, second, third))
        first_at, second_at, third_at = at
        # Without the id of a destination, a record has a whole URL, as version 0.1 writes it.
        await record_as(client, record, file="file:///etc/passwd", destination=b"")
        await record_as(client, second, file=f"strange://there/{name_in(second)}", destination=b"")
        await spoil(client, archive_path(third.incarnation, third.ledger_id))
        assert faults(await audit(client)) == {
            (FILE_CORRUPT, *first_at),
            (FILE_UNREACHABLE, *second_at),
            (ARCHIVE, *third_at),
        }
        (ledger,) = record.ledgers
        longer = attrs.evolve(ledger, end_offset=ledger.end_offset + 1)
        await record_as(client, record, ledgers=(longer,), record_count=record.record_count + 1)
        assert (FILE_CORRUPT, *first_at) in faults(await audit(client))


async def test_whatever_is_spoiled_everything_has_a_verdict(tmp_path: Path) -> None:
    """Make any mixture of damage. Each damage is a row, and the audit reports everything else as sound."""
    for seed in range(6):
        dice = random.Random(seed)
        async with open_cluster() as cluster, cluster.client() as client:
            expected: Verdicts = set()
            sound_logs, sound_files = 0, 0
            for name in ("a", "b", "c"):
                log = await new_log(client, name)
                await fill(log, 2, 3, 4)
                records: list[ArchivedFile] = []
                if dice.random() < 0.7:
                    keep = dice.choice((0, DAY_S))
                    where = str(tmp_path / str(seed))
                    await archive_log(client.opened, name, where, keep_copies_s=keep)
                    records = await archived(client, log)
                is_unreadable = dice.random() < 0.3
                for record in records:
                    if dice.random() < 0.4:
                        path_of(record).unlink()
                        expected.add((FILE_MISSING, name, record.ledger_id))
                    else:
                        sound_files += 1
                if not records and not is_unreadable and dice.random() < 0.5:
                    listed = await first_ledger(client, log.incarnation)
                    await drop(client, ledger_path(listed))
                    expected.add((LOST, name, listed))
                if is_unreadable:
                    await spoil(client, log_record_path(log.incarnation))
                    expected.add((LOG, name, None))
                else:
                    sound_logs += 1
            for mode in ("index", "scrub"):
                rows = await audit(client, mode=mode)
                assert faults(rows) == expected, seed
                assert len(named(rows, CHECKED_LOG)) == sound_logs
                assert len(named(rows, CHECKED_FILE)) == sound_files
