"""Helpers: make logs in a cluster in memory, archive them, and read the results."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgerlog.archive.jobs.archiver import Archiver, ArchiveStep
from ledgerlog.archive.jobs.job import archive_log, open_archiver
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit
from ledgerlog.log.log import Log, create_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.layout import archive_path
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import Record
from ledgerlog.testing.memory_cluster import Client
from tests.waiting import PATIENCE_S

DAY_S = 24 * 3600.0


class Crash(Exception):
    """The job ends here, as a killed process does."""


async def new_log(client: Client, name: str = "log") -> Log:
    return await create_log(client.opened, name, replication=Replication(3, 3, 2))


async def fill(log: Log, *ledgers: int) -> None:
    """Append a ledger for each count, several records to an entry. One leader writes and closes them all."""
    async with log.writer() as writer:
        for number, count in enumerate(ledgers):
            if number:
                await writer.roll()
            while count:
                some = min(count, 3)
                start = writer.next_offset
                values = [b"%d" % at if at % 7 else b"" for at in range(start, start + some)]
                await writer.append_many(values, atomic=True)
                count -= some


async def fill_with_keys(log: Log, count: int, *, every: int = 1) -> None:
    """Append records in one more ledger. Each ``every``-th has one of three keys; the even ones of these have
    headers too."""
    async with log.writer() as writer:
        for at in range(count):
            marked = at % every == 0
            headers = [("n", b"%d" % at), ("n", b"")] if marked and at % 2 else None
            await writer.append(b"%d" % at, key=b"%d" % (at % 3) if marked else None, headers=headers)


async def add_spliced(client: Client, log: Log, values: Sequence[bytes]) -> None:
    registry = LogRegistry(client.opened.store, client.opened.environment)
    async with stage(client.opened, registry, log.name, log.incarnation) as staging:
        await staging.append_many(values)
        staged = await staging.close()
    assert staged is not None
    commit = Commit(producer=None, source="", run=f"{staged.ledger_id}", batch=0, staged=(staged,))
    await splice(client.opened, registry, log.name, log.incarnation, commit)


async def records_of(log: Log, start: Any = "earliest", **options: Any) -> list[Record]:
    with trio.fail_after(PATIENCE_S):
        async with log.read(start, **options) as records:
            return [record async for record in records]


async def archive(client: Client, where: Path, *, keep_copies_s: float = 0.0, log: str = "log") -> list[str]:
    """Archive the log; return what each step did."""
    return [step.what for step in await steps_of(client, where, keep_copies_s=keep_copies_s, log=log)]


async def steps_of(
    client: Client, where: Path, *, keep_copies_s: float = 0.0, log: str = "log"
) -> list[ArchiveStep]:
    with trio.fail_after(PATIENCE_S):
        return await archive_log(client.opened, log, str(where), keep_copies_s=keep_copies_s)


async def archiver_of(client: Client, where: Path, *, keep_copies_s: float = 0.0) -> Archiver:
    return await open_archiver(client.opened, "log", str(where), keep_copies_s=keep_copies_s)


async def archived(client: Client, log: Log) -> list[ArchivedFile]:
    found = await ArchiveRegistry(client.opened.store).of_log(log.incarnation)
    return [record for record, _ in found]


async def name_place(client: Client, log: Log, url: str) -> None:
    """Let the first record of the log name a file at another place, as a record of version 0.1 may do."""
    store, record = client.opened.store, (await archived(client, log))[0]
    strange = attrs.evolve(record, destination=b"", file=f"{url}/{name_in(record)}")
    path = archive_path(log.incarnation, record.ledger_id)
    found = await store.get(path)
    assert found is not None
    await store.set(path, strange.encode(), version=found.version)


def files(where: Path) -> list[Path]:
    """List all files except the marker."""
    found = (path for path in where.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.name.startswith("_ledgerlog-archive-"))


def crash_at(client: Client, step: int, *, among: Container[str] | None = None) -> list[str]:
    """Crash the job of ``client`` at step number ``step``; return the list of steps that the job reaches.

    ``among``: count only the steps with these names."""
    seen: list[str] = []

    def mark(name: str) -> None:
        what = name.removeprefix("archive: ")
        if what != name and (among is None or what in among):
            seen.append(what)
            if len(seen) - 1 == step:
                raise Crash(name)

    client.opened.environment.mark = mark
    return seen


def path_of(record: ArchivedFile) -> Path:
    return Path(record.file.removeprefix("file://"))


def name_in(record: ArchivedFile) -> str:
    """Return the file's name below its destination."""
    return "/".join(record.file.rsplit("/", 2)[1:])


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()
