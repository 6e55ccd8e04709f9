"""An archive is moved to another place by one record: the names of its files are relative to it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import attrs
import cbor2
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ledgerlog.archive.jobs.job import archive_log, open_archiver
from ledgerlog.archive.jobs.listing import list_archives
from ledgerlog.archive.jobs.moving import move_archive
from ledgerlog.archive.jobs.publishing import TableOptions
from ledgerlog.archive.jobs.rewrite import finish_group, merge_log, rewrite_group
from ledgerlog.archive.registry import DestinationRegistry
from ledgerlog.archive.table import CATALOG_FILE, CATALOG_NAME
from ledgerlog.errors import ArchiveUnavailable, InvalidArgument
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.log.log import Log
from ledgerlog.meta.backup import walk
from ledgerlog.model.archive import ArchiveDestination, ArchivedFile, ArchivedLedger
from ledgerlog.model.layout import ARCHIVES, DESTINATIONS, archive_path, destination_path
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import (
    Crash,
    archive,
    archived,
    crash_at,
    fill,
    name_place,
    new_log,
    path_of,
    records_of,
    remove,
)


async def given_up(client: Client, where: Path, *, name: str = "log") -> Log:
    log = await new_log(client, name)
    await fill(log, 5, 4, 3)
    assert await archive(client, where, log=name) == ["copied"] * 3 + ["given up"] * 2
    return log


async def moved(client: Client, source: Path, target: Path, *, accept: bool = False) -> list[str]:
    steps = await move_archive(client.opened, str(source), str(target), accept_destination=accept)
    return [step.what for step in steps]


async def stored(client: Client, *roots: str) -> dict[str, bytes]:
    return {path: node.value async for path, node in walk(client.opened.store, *roots)}


async def make_old(client: Client, log: Log, *, link: tuple[str, str] | None = None) -> None:
    """Replace the records by those that version 0.1 writes: whole URLs, and destinations without an id.

    With ``link``, a URL and another one for the same place, the records have the other one."""
    store = client.opened.store
    for record in await archived(client, log):
        path = archive_path(log.incarnation, record.ledger_id)
        found = await store.get(path)
        assert found is not None
        old_record = record.with_url()
        if link is not None:
            file = old_record.file.replace(*link)
            old_record = attrs.evolve(old_record, file=file)
        await store.set(path, old_record.encode(), version=found.version)
    for place in await DestinationRegistry(store).all():
        path = destination_path(place.where)
        found = await store.get(path)
        assert found is not None
        old = ArchiveDestination(where=place.where, marker=place.marker, made_ms=place.made_ms)
        await store.set(path, old.encode(), version=found.version)


async def test_an_archive_is_moved_by_the_record_of_its_destination_alone(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, one)
        other = await given_up(client, one, name="other")
        before, others = await records_of(log), await records_of(other)
        records = await stored(client, ARCHIVES)
        assert not any(str(tmp_path).encode() in value for value in records.values())
        one.rename(two)
        with pytest.raises(ArchiveUnavailable, match=f"{one}"):
            await records_of(log)
        assert await moved(client, one, two) == ["moved"] * 6
        assert await stored(client, ARCHIVES) == records, "no record of a file changes"
        assert await records_of(log) == before
        assert await records_of(other) == others
        await fill(log, 2)
        assert await archive(client, two) == ["given up", "copied"]
        (step,) = await merge_log(client.opened, "log", str(two))
        assert step.what == "merged"
        assert (await records_of(log))[:12] == before
        assert await moved(client, one, two) == ["moved"] * 5, "a second run changes nothing"


async def test_the_list_of_archives_counts_records_of_version_0_1_too(tmp_path: Path) -> None:
    where = tmp_path / "one"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, where)
        (new,) = await list_archives(client.opened)
        assert (new.url, new.logs, new.files, new.records) == (where.as_uri(), 1, 3, 12)
        await make_old(client, log)
        (old,) = await list_archives(client.opened)
        assert old == new


async def test_the_list_of_archives_shows_a_place_that_is_not_known_on_this_machine(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, tmp_path)
        await name_place(client, log, "file://otherhost/there")
        listed = {each.url: each.files for each in await list_archives(client.opened)}
        assert listed == {"file://otherhost/there": 1, tmp_path.as_uri(): 2}


async def test_a_job_that_is_told_the_old_place_refuses_although_a_copy_is_there(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, one)
        shutil.copytree(one, two)
        with pytest.raises(ArchiveUnavailable, match="archive move"):
            await archive(client, two)
        assert await moved(client, one, two) == ["moved"] * 3
        await fill(log, 2)
        with pytest.raises(ArchiveUnavailable, match=f"moved from here to .*{two}"):
            await archive(client, one)
        shutil.rmtree(one)
        assert await archive(client, two) == ["given up", "copied"]
        two.rename(one)
        assert await moved(client, two, one) == ["moved"] * 4, "and back"
        assert await archive(client, one) == []
        assert len(await records_of(log)) == 14


async def test_nothing_is_moved_if_a_file_or_the_marker_is_not_there(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, one)
        before, known = await records_of(log), await stored(client, ARCHIVES, DESTINATIONS)
        shutil.copytree(one, two)
        record = (await archived(client, log))[1]
        copy = two / path_of(record).relative_to(one)
        good = copy.read_bytes()
        other = path_of((await archived(client, log))[0]).read_bytes()
        for damaged in (good[:-1], other):
            copy.write_bytes(damaged)
            assert await moved(client, one, two) == ["failed"]
        remove(copy)
        assert await moved(client, one, two) == ["failed"]
        copy.write_bytes(good)
        (marker,) = two.glob("_ledgerlog-archive-*")
        marker.unlink()
        with pytest.raises(ArchiveUnavailable, match="--accept-destination"):
            await moved(client, one, two)
        assert await stored(client, ARCHIVES, DESTINATIONS) == known
        assert await records_of(log) == before
        assert await moved(client, one, two, accept=True) == ["moved"] * 3
        shutil.rmtree(one)
        assert await archive(client, two) == []
        assert await records_of(log) == before


async def test_records_of_version_0_1_are_read_and_get_an_id_by_a_move(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, one)
        before = await records_of(log)
        await make_old(client, log)
        assert await records_of(log) == before
        await fill(log, 2)
        assert await archive(client, one) == ["given up", "copied"]
        records = await archived(client, log)
        assert [bool(record.destination) for record in records] == [False] * 3 + [True]
        await make_old(client, log)
        one.rename(two)
        crash_at(client, 0, among=("moved",))
        with pytest.raises(Crash):
            await moved(client, one, two)
        client.opened.environment.mark = lambda _: None
        assert await moved(client, one, two) == ["moved"] * 4
        assert (await records_of(log))[:12] == before
        assert all(record.destination for record in await archived(client, log))
        assert await archive(client, two) == []


async def test_a_file_that_version_0_1_recorded_by_another_url_is_not_a_stray(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    link.symlink_to(there)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, there)
        before = await records_of(log)
        await make_old(client, log, link=(there.as_uri(), link.as_uri()))
        assert all(link.as_uri() in record.file for record in await archived(client, log))
        later_ms = round(1000 * (time.time() + 10 * ARCHIVE_STRAY_AGE_S))
        client.opened.environment.now_ms = lambda: later_ms
        assert await archive_log(client.opened, "log", str(there)) == []
        assert await records_of(log) == before


async def test_a_job_does_not_record_a_file_at_the_old_place_after_the_move(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await given_up(client, one)
        await fill(log, 2)
        job = await open_archiver(client.opened, "log", str(one))
        shutil.copytree(one, two)
        assert await moved(other, one, two) == ["moved"] * 3
        (segment,) = job.plan(await job.look()).copy
        with pytest.raises(ArchiveUnavailable, match="moved from here"):
            await job.copy(segment)
        assert len(await archived(client, log)) == 3
        assert await archive(client, two) == ["given up", "copied"]


@pytest.mark.parametrize("is_between", [False, True], ids=["before its look", "before its write"])
@pytest.mark.parametrize("what", ["copied", "merged"])
async def test_a_job_that_was_told_the_old_place_of_a_moved_archive_cannot_record_files(
    tmp_path: Path, what: str, is_between: bool
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await given_up(client, one)
        await fill(log, 2)
        job = await open_archiver(client.opened, "log", str(one))
        state = await job.look()
        group = tuple(record for record, _ in state.records[:2])
        made = await rewrite_group(job, group, keeps=None)
        before = await archived(client, log)

        async def move() -> None:
            shutil.copytree(one, two)
            assert await moved(other, one, two) == ["moved"] * 3

        if is_between:
            client.store.before_write = move
        else:
            await move()
        if what == "merged":
            assert (await finish_group(job, group, made)).what == "skipped"
        else:
            with pytest.raises(ArchiveUnavailable, match="moved from here"):
                await job.copy(job.plan(state).copy[0])
        assert [record.token for record in await archived(client, log)] == [each.token for each in before]
        shutil.rmtree(one)
        assert len(await records_of(log)) == 14


@pytest.mark.parametrize("is_brought", [True, False], ids=["brought over", "left behind"])
async def test_a_file_that_a_job_recorded_during_the_move_is_looked_for_too(
    tmp_path: Path, is_brought: bool
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await given_up(client, one)
        await fill(log, 2)
        shutil.copytree(one, two)

        async def record_another() -> None:
            assert await archive(other, one) == ["given up", "copied"]
            if is_brought:
                shutil.copytree(one, two, dirs_exist_ok=True)

        client.store.before_write = record_another
        assert await moved(client, one, two) == (["moved"] * 4 if is_brought else ["failed"])
        shutil.copytree(one, two, dirs_exist_ok=True)
        assert await moved(client, one, two) == ["moved"] * 4
        shutil.rmtree(one)
        assert len(await records_of(log)) == 14


def markers(where: Path) -> list[str]:
    return sorted(path.name for path in where.glob("_ledgerlog-archive-*"))


async def test_a_marker_is_made_only_where_the_files_are_and_the_old_one_counts_no_more(
    tmp_path: Path,
) -> None:
    one, two, empty = tmp_path / "one", tmp_path / "two", tmp_path / "not-mounted"
    async with open_cluster() as cluster, cluster.client() as client:
        await given_up(client, one)
        old = markers(one)
        assert await moved(client, one, empty, accept=True) == ["failed"] * 3
        assert markers(empty) == []
        shutil.copytree(one, two)
        (two / old[0]).unlink()
        assert await moved(client, one, two, accept=True) == ["moved"] * 3
        (made,) = markers(two)
        assert made not in old
        assert await moved(client, one, two) == ["moved"] * 3, "the second run knows the new marker"
        shutil.copy(one / old[0], two)
        (two / made).unlink()
        with pytest.raises(ArchiveUnavailable, match=made):
            await archive(client, two)
        (two / old[0]).write_bytes(b"something else")
        assert await moved(client, one, two, accept=True) == ["moved"] * 3
        assert await archive(client, two) == []


async def test_a_file_of_version_0_1_in_a_directory_of_the_destination_comes_to_the_destination(
    tmp_path: Path,
) -> None:
    outer, inner = tmp_path / "archive", tmp_path / "archive" / "inner"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, inner)
        before = await records_of(log)
        assert [step.what for step in await merge_log(client.opened, "log", str(inner))] == ["merged"]
        await make_old(client, log)
        await archive_log(client.opened, "log", str(outer), accept_destination=True)
        (step,) = await merge_log(client.opened, "log", str(outer))
        assert step.what == "merged"
        assert path_of((await archived(client, log))[0]).parents[1] == outer
        assert await records_of(log) == before


async def test_a_second_move_to_the_same_place_records_how_it_is_reached_now(tmp_path: Path) -> None:
    one, two, link = tmp_path / "one", tmp_path / "two", tmp_path / "link"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, one)
        one.rename(two)
        link.symlink_to(two)
        await moved(client, one, two)
        await moved(client, one, link)
        assert {path_of(record).parents[1] for record in await archived(client, log)} == {link}
        assert len(await records_of(log)) == 12


async def test_keys_of_a_later_version_stay_with_a_destination(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        await given_up(client, one)
        store = client.opened.store
        path = destination_path(one.as_uri())
        found = await store.get(path)
        assert found is not None
        value = cbor2.dumps({**cbor2.loads(found.value), "later": 7}, canonical=True)
        await store.set(path, value, version=found.version)
        remove(one / markers(one)[0])
        await archive_log(client.opened, "log", str(one), accept_destination=True)
        shutil.copytree(one, two)
        await moved(client, one, two)
        kept = await stored(client, DESTINATIONS)
        assert [cbor2.loads(each).get("later") for each in kept.values()] == [7, 7]


async def test_what_cannot_be_moved_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        await given_up(client, one)
        await given_up(client, two, name="other")
        with pytest.raises(InvalidArgument, match="another archive"):
            await moved(client, one, two)
        with pytest.raises(InvalidArgument, match=f"no archive.*{one}.*{two}|no archive.*{two}.*{one}"):
            await moved(client, tmp_path / "three", two)
        with pytest.raises(InvalidArgument, match="secret"):
            await move_archive(client.opened, str(one), "s3://KEY:word@bucket/archive")


async def test_a_file_of_a_destination_that_the_store_does_not_know_is_unavailable(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await given_up(client, tmp_path)
        (place,) = await DestinationRegistry(client.opened.store).all()
        found = await client.opened.store.get(destination_path(place.where))
        assert found is not None
        await client.opened.store.delete(destination_path(place.where), version=found.version)
        with pytest.raises(ArchiveUnavailable, match=f"destination://{place.id.hex()}.*does not say"):
            await records_of(log)


async def test_the_table_of_a_moved_archive_is_made_anew(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_cluster() as cluster, cluster.client() as client:
        await fill(await new_log(client), 5, 4)
        await archive_log(client.opened, "log", str(one), table=TableOptions())
        one.rename(two)
        assert await moved(client, one, two) == ["moved"] * 2
        anew = TableOptions(is_anew=True)
        (step,) = await archive_log(client.opened, "log", str(two), table=anew)
        assert step.what == "published"
        assert await archive_log(client.opened, "log", str(two), table=TableOptions()) == []
        catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{two / CATALOG_FILE}")
        shown = catalog.load_table("ledgerlog.log").scan().to_arrow().column("offset").to_pylist()
        catalog.close()
        assert sorted(shown) == list(range(9))


def test_a_record_names_its_file_relative_to_its_destination() -> None:
    record = ArchivedFile(
        log="log",
        incarnation=0,
        file="s3://bucket/archive/log-0/a.parquet?region=us",
        file_bytes=1,
        footer=bytes(32),
        ledgers=(ArchivedLedger(ledger_id=7, first_offset=0, end_offset=10, last_entry=2),),
        record_count=10,
        compacted=False,
        digest=bytes(32),
        archived_ms=1,
        token=b"t",
        destination=8 * b"\x01",
    )
    assert ArchivedFile.decode_untrusted(record.encode(), 0) == attrs.evolve(
        record, file="destination://0101010101010101/log-0/a.parquet"
    )
    assert b"bucket" not in record.encode()
    assert ArchivedFile.decode_untrusted(record.encode(), 0).below("s3://new/place?region=eu").file == (
        "s3://new/place/log-0/a.parquet?region=eu"
    )
    assert ArchivedFile.decode_untrusted(record.with_url().encode(), 0) == record.with_url()
