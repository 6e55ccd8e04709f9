"""If a store answers reads but no writes, a job does not wait for ever: its step ends as unknown, and a later
run goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.errors import MetadataOutcomeUnknown
from ledgerlog.meta import settle
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import DAY_S, archive, archived, files, fill, new_log, path_of, records_of
from tests.waiting import PATIENCE_S


async def claim(client: Client, where: Path) -> object:
    elsewhere = str(where / "elsewhere")
    return await archive_log(client.opened, "log", elsewhere, keep_copies_s=DAY_S, accept_destination=True)


async def record(client: Client, where: Path) -> object:
    return await archive(client, where, keep_copies_s=DAY_S)


async def give_up(client: Client, where: Path) -> object:
    return await archive(client, where)


async def merge(client: Client, where: Path) -> object:
    return await merge_log(client.opened, "log", str(where))


def markers(where: Path) -> int:
    return len(list(where.rglob("_ledgerlog-archive-*")))


@pytest.mark.parametrize("step", [claim, record, give_up, merge])
async def test_a_store_that_answers_no_write_does_not_hold_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[[Client, Path], Awaitable[object]]
) -> None:
    monkeypatch.setattr(settle, "METADATA_TIMEOUT_S", 0.3)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3)
        await archive(client, tmp_path)
        await fill(log, 2, 5)
        if step is not record and step is not claim:
            await archive(client, tmp_path, keep_copies_s=DAY_S if step is give_up else 0.0)
        before = await records_of(log)
        client.store.lost_writes = 10**9
        with trio.fail_after(PATIENCE_S), pytest.raises(MetadataOutcomeUnknown):
            await step(client, tmp_path)
        assert markers(tmp_path) == (2 if step is claim else 1)
        client.store.lost_writes = 0
        assert await records_of(log) == before
        assert {path_of(each) for each in await archived(client, log)} <= set(files(tmp_path))
        await step(client, tmp_path)
        assert await records_of(log) == before
