"""The file name in an archive record is data, not an order. Whatever the name says, a job deletes only files
of its own log and reads only the record's own file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest

from ledgerlog.archive.core.compaction import prefix_rule
from ledgerlog.archive.destinations import Destination, delete_file, open_input
from ledgerlog.archive.jobs.cleaning import clean
from ledgerlog.archive.jobs.job import archive_log, retire_gone
from ledgerlog.archive.jobs.rewrite import compact_log, merge_log
from ledgerlog.archive.reader import check_archive
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable, LedgerLogError
from ledgerlog.log.log import Log, delete_log
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.layout import archive_path
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import (
    DAY_S,
    archive,
    archived,
    archiver_of,
    fill,
    name_in,
    new_log,
    path_of,
    records_of,
)


@attrs.frozen
class Ground:
    """A destination, and the files beside it, which must stay."""

    there: Path
    outside: Path
    name: str
    """The name of the record's file below its destination."""
    other: str
    """The URL of another file of the same log."""


def beside(ground: Ground, way: str) -> str:
    """Return a URL of the outside file with the same name as the record's file."""
    return f"file://{ground.there}/{way}/{ground.outside.name}/{ground.name}"


def through_a_link(ground: Ground) -> str:
    """Replace the log's directory by a link to a directory outside."""
    directory = ground.there / ground.name.partition("/")[0]
    directory.rename(ground.there / "moved")
    directory.symlink_to(ground.outside / directory.name)
    return f"file://{ground.there}/{ground.name}"


def to_a_linked_file(ground: Ground) -> str:
    file = ground.there / ground.name
    file.rename(ground.there / "moved")
    file.symlink_to(ground.outside / ground.name)
    return f"file://{ground.there}/{ground.name}"


NASTY: dict[str, Callable[[Ground], str]] = {
    "path": lambda g: str(g.outside / "precious"),
    "url": lambda g: f"file://{g.outside}/precious",
    "one slash": lambda g: f"file:{g.outside}/precious",
    "host": lambda g: f"file://localhost{g.outside}/precious",
    "dots": lambda g: f"file://{g.there}/../{g.outside.name}/precious",
    "dots below the log": lambda g: (
        f"file://{g.there}/{g.name.split('/')[0]}/../../{g.outside.name}/precious"
    ),
    "dots in percent": lambda g: f"file://{g.there}/%2e%2e/{g.outside.name}/precious",
    "its name beside": lambda g: beside(g, ".."),
    "its name beside, in percent": lambda g: beside(g, "%2e%2e"),
    "its name in the parent": lambda g: f"file://{g.outside}/{g.name}",
    "its name behind a fragment": lambda g: f"file://{g.outside}/precious#/{g.name}",
    "its name behind a query": lambda g: f"file://{g.outside}/precious?/{g.name}",
    "its name behind a zero": lambda g: f"file://{g.outside}/precious%00/{g.name}",
    "its name in another scheme": lambda g: f"strange://there/{g.name}",
    "no scheme": lambda g: g.name,
    "nothing": lambda g: "",
    "slashes": lambda g: "///",
    "another file of the log": lambda g: g.other,
    "a nonce alone": lambda g: f"file://{g.there}/{g.name.split('/')[0]}/beef",
    "the marker": lambda g: f"file://{g.there}/{next(g.there.glob('_ledgerlog*')).name}",
    "a directory": lambda g: f"file://{g.there}/{g.name.split('/')[0]}",
    "a directory that is a link": through_a_link,
    "a file that is a link": to_a_linked_file,
}


async def read(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    return await records_of(log)


async def verify(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    return await check_archive(record)


async def give_up(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    return await archive_log(client.opened, "log", str(ground.there), keep_copies_s=0)


async def retire(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    await log.truncate(record.end_offset)
    return await archive_log(client.opened, "log", str(ground.there), keep_copies_s=DAY_S)


async def retire_of_a_log_that_is_gone(
    client: Client, log: Log, ground: Ground, record: ArchivedFile
) -> object:
    await delete_log(client.opened, "log")
    return await retire_gone(client.opened, str(ground.there))


async def clean_up(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    return await clean(await archiver_of(client, ground.there), min_age_s=0)


async def merge(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    return await merge_log(client.opened, "log", str(ground.there))


async def compact(client: Client, log: Log, ground: Ground, record: ArchivedFile) -> object:
    return await compact_log(client.opened, "log", str(ground.there), rule=prefix_rule(1))


Operation = Callable[[Client, Log, Ground, ArchivedFile], Awaitable[object]]
OPERATIONS: tuple[Operation, ...] = (
    read,
    verify,
    give_up,
    retire,
    retire_of_a_log_that_is_gone,
    clean_up,
    merge,
    compact,
)


def contents(where: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in where.rglob("*") if path.is_file()}


async def name_it(client: Client, record: ArchivedFile, url: str) -> ArchivedFile:
    path = archive_path(record.incarnation, record.ledger_id)
    found = await client.opened.store.get(path)
    assert found is not None
    forged = attrs.evolve(record, destination=b"", file=url)
    await client.opened.store.set(path, forged.encode(), version=found.version)
    return forged


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_no_name_leads_out_of_its_destination(tmp_path: Path, operation: Operation) -> None:
    for how, nasty in NASTY.items():
        base = tmp_path / how.replace(" ", "-").replace(",", "")
        there, outside = base / "there", base / "outside"
        outside.mkdir(parents=True)
        (outside / "precious").write_bytes(b"not an archive")
        async with open_cluster() as cluster, cluster.client() as client:
            log = await new_log(client)
            await fill(log, 4, 3, 5)
            before = await records_of(log)
            keep = DAY_S if operation is give_up else 0
            await archive(client, there, keep_copies_s=keep)
            record, following = (await archived(client, log))[:2]
            name = name_in(record)
            (outside / name).parent.mkdir()
            (outside / name).write_bytes(path_of(record).read_bytes())
            ground = Ground(there, outside, name, following.file)
            forged = await name_it(client, record, nasty(ground))
            kept = contents(outside)
            markers = {path for path in contents(there) if "_ledgerlog" in path}
            told = ""
            try:
                found = await operation(client, log, ground, forged)
            except LedgerLogError as failure:
                told = f"{failure}"
            else:
                if isinstance(found, list) and operation is not read:
                    told = " ".join(
                        step.why for step in found if step.what in ("failed", "skipped", "withdrawn")
                    )
                elif operation is read:
                    assert found == before, how
            assert contents(outside) == kept, f"{operation.__name__} changed a file outside: {how!r}"
            left = contents(there)
            assert left.keys() >= markers, how
            if operation in (read, verify, retire) and "link" not in how:
                assert str(path_of(following)) in left, how
            if operation in (retire, retire_of_a_log_that_is_gone):
                assert told, f"{how}: nothing is reported"
                assert forged in await archived(client, log), f"{how}: the record went, but its file stayed"
            elif operation in (give_up, merge, compact) and "its name" not in how:
                assert told, f"{how}: nothing is reported"
            elif operation is verify and "its name" not in how:
                assert told, f"{how}: a file other than the record's was read"


async def test_every_name_that_a_record_was_ever_given_is_read(tmp_path: Path) -> None:
    """Records have always had absolute URLs. They work for every log name and every destination."""
    for number, name in enumerate(("log", "a/b/c", "with.dots-and-dashes", "a" * 255)):
        where = tmp_path / f"with space and % {number}"
        async with open_cluster() as cluster, cluster.client() as client:
            log = await new_log(client, name)
            await fill(log, 4, 3)
            before = await records_of(log)
            assert await archive(client, where, log=name) == ["copied", "copied", "given up"]
            assert await records_of(log) == before
            await log.truncate(4)
            assert await archive(client, where, log=name) == ["retired"]


def test_no_name_of_a_destination_leads_out_of_it(tmp_path: Path) -> None:
    destination = Destination(str(tmp_path / "there"))
    (tmp_path / "there").mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "there" / "link").symlink_to(tmp_path)
    names = ("../precious", "link/precious", "a/../../precious", "/precious", "", ".", "..", "a//b", "x\0y")
    for name in names:
        with pytest.raises(ArchiveCorrupt):
            destination.delete(name)
        with pytest.raises(ArchiveCorrupt):
            destination.open(name)
        with pytest.raises(ArchiveCorrupt):
            destination.create(name)
        with pytest.raises(ArchiveCorrupt):
            destination.list(name)
    assert (tmp_path / "precious").read_bytes() == b"precious"


async def test_a_refused_record_says_what_it_should_name(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        (record,) = await archived(client, log)
        forged = attrs.evolve(record, destination=b"", file="file:///etc/passwd")
        for work in (open_input, delete_file):
            with pytest.raises(ArchiveCorrupt, match=r"/etc/passwd.*names no file that holds offsets 0 to 3"):
                work(forged)
        with pytest.raises(ArchiveUnavailable):
            open_input(attrs.evolve(record, file=f"file:///nowhere/{name_in(record)}"))
