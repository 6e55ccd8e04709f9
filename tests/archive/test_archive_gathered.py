"""Archived ledgers are not gathered, and an archive that is made at the same time loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerlog.log.core import gather as core_gather
from ledgerlog.log.gather import gather_ledgers
from ledgerlog.log.log import Log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.layout import log_record_path
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import add_spliced, archive, archived, new_log, records_of


async def gather(client: Client, log: Log, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patched:
        patched.setattr(core_gather, "LOG_GATHER_LEDGERS_MIN", 4)
        registry = LogRegistry(client.opened.store, client.opened.environment)
        return await gather_ledgers(client.opened, registry, log.name, log.incarnation)


async def test_archived_ledgers_are_not_gathered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        for number in range(5):
            await add_spliced(client, log, [b"%d" % number])
        await archive(client, tmp_path, keep_copies_s=1e6)
        before = await records_of(log)
        assert await gather(client, log, monkeypatch) == 0
        for number in range(5, 10):
            await add_spliced(client, log, [b"%d" % number])
        assert await gather(client, log, monkeypatch) == 5
        assert [each.data for each in await records_of(log)] == [b"%d" % number for number in range(10)]
        assert (await records_of(log))[:5] == before
        await archive(client, tmp_path)
        assert [each.data for each in await records_of(log)] == [b"%d" % number for number in range(10)]


async def test_a_ledger_that_is_archived_while_it_is_gathered_is_in_the_log_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        for number in range(5):
            await add_spliced(client, log, [b"%d" % number])

        async def archive_now(path: str) -> None:
            if path == log_record_path(log.incarnation) and len(await client.ledgers.list()) > 5:
                other.store.before_get = None
                await archive(client, tmp_path, keep_copies_s=1e6)

        other.store.before_get = archive_now
        assert await gather(other, log, monkeypatch) == 5
        assert len(await archived(client, log)) == 5
        assert [each.data for each in await records_of(log)] == [b"%d" % number for number in range(5)]
        await archive(client, tmp_path)
        (file,) = await archived(client, log)
        assert (file.first_offset, file.end_offset) == (0, 5)
        assert [each.data for each in await records_of(log)] == [b"%d" % number for number in range(5)]
