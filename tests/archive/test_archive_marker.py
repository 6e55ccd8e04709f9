"""If a destination is not mounted, its files are not gone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import attrs
import pytest

from ledgerlog.archive import destinations
from ledgerlog.archive.jobs import archiver
from ledgerlog.archive.jobs.claiming import Markers, load_destination
from ledgerlog.archive.jobs.job import archive_log, open_archiver, retire_gone
from ledgerlog.archive.jobs.rewrite import compact_log, merge_log
from ledgerlog.archive.reader import check_archive
from ledgerlog.archive.registry import DestinationRegistry
from ledgerlog.errors import ArchiveUnavailable, InvalidArgument
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.log.log import Log, delete_log
from ledgerlog.model.archive import DESTINATION_ID_BYTES, MARKER_BYTES, ArchiveDestination, ArchivedFile
from ledgerlog.model.layout import ARCHIVES
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.testing.memory_cluster import Client, open_cluster
from tests.archive.archived_logs import (
    DAY_S,
    Crash,
    archive,
    archived,
    archiver_of,
    crash_at,
    files,
    fill,
    name_place,
    new_log,
    path_of,
    records_of,
    remove,
    steps_of,
    write,
)


def unmount(where: Path) -> Path:
    """Leave an empty directory in place of the destination; return the path to which its files move."""
    away = where.with_name(f"{where.name}-away")
    where.rename(away)
    where.mkdir()
    return away


def mount(where: Path, away: Path) -> None:
    assert list(where.iterdir()) == [], "something was written below the mount point"
    where.rmdir()
    away.rename(where)


def marker_in(where: Path) -> Path:
    (found,) = where.glob("_ledgerlog-archive-*")
    return found


def markers_in(where: Path) -> list[bytes]:
    return [bytes.fromhex(path.name.rpartition("-")[2]) for path in where.glob("_ledgerlog-archive-*")]


def marker_bytes(where: Path) -> bytes:
    (found,) = markers_in(where)
    return found


async def two_archived(client: Client, where: Path) -> Log:
    log = await new_log(client)
    await fill(log, 5, 4, 3)
    assert await archive(client, where, keep_copies_s=DAY_S) == ["copied"] * 3
    return log


@pytest.mark.parametrize("way", ["there", "link"])
async def test_a_destination_that_is_not_mounted_is_refused_and_nothing_is_withdrawn(
    tmp_path: Path, way: str
) -> None:
    where = tmp_path / "there"
    (tmp_path / "link").symlink_to(where)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, where)
        before = await archived(client, log)
        away = unmount(where)
        for _ in range(2):
            with pytest.raises(ArchiveUnavailable, match=f"{tmp_path}/{way}.*[Mm]ount it"):
                await archive(client, tmp_path / way)
            with pytest.raises(ArchiveUnavailable, match="--accept-destination"):
                await merge_log(client.opened, "log", str(tmp_path / way))
        assert await archived(client, log) == before
        mount(where, away)
        assert await archive(client, where) == ["given up"] * 2


async def test_a_log_with_files_elsewhere_does_not_begin_a_new_destination_unless_it_is_accepted(
    tmp_path: Path,
) -> None:
    where, new = tmp_path / "archive", tmp_path / "arhcive"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, where)
        other = await new_log(client, "other")
        await fill(other, 2)
        for job in (archive_log, merge_log, compact_log):
            with pytest.raises(InvalidArgument, match=f"{where}\\..*NAME --destination WHERE --accept-dest"):
                await job(client.opened, "log", str(new))
        assert not new.exists()
        assert [place.url for place in await DestinationRegistry(client.store).all()] == [where.as_uri()]
        assert await archive_log(client.opened, "log", str(new), accept_destination=True) == []
        await fill(log, 2)
        assert await archive(client, new) == ["given up"] * 3 + ["copied"]
        assert len(list(new.rglob("*.parquet"))) == 1
        assert await archive(client, tmp_path / "others", log="other") == ["copied"]


async def test_another_log_does_not_begin_below_a_mount_point(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await two_archived(client, tmp_path / "there")
        other = await new_log(client, "other")
        await fill(other, 2, 2)
        away = unmount(tmp_path / "there")
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await archive(client, tmp_path / "there", log="other")
        mount(tmp_path / "there", away)
        assert await archive(client, tmp_path / "there", log="other") == ["copied", "copied", "given up"]


async def test_a_neighbour_who_began_while_nothing_was_mounted_does_not_vouch_for_the_place(
    tmp_path: Path,
) -> None:
    where = tmp_path / "there"
    async with open_cluster() as cluster, cluster.client() as client:
        await two_archived(client, where)
        unmount(where)
        write(where / "_ledgerlog-archive-0123456789abcdef", b"{}")
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await archive(client, where)


async def test_a_destination_that_goes_away_under_a_job_gets_no_record_and_withdraws_none(
    tmp_path: Path,
) -> None:
    where = tmp_path / "there"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3)
        job = await archiver_of(client, where)
        first, second, _ = job.plan(await job.look()).copy
        assert (await job.copy(first)).what == "copied"
        (record,) = await archived(client, log)
        unmount(where)
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await job.give_up(record, record.ledger_id)
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await job.copy(second)
        assert await archived(client, log) == [record]


async def test_a_file_below_the_mount_point_is_not_taken_for_the_one_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "there"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, where)
        before = await records_of(log)
        job = await archiver_of(client, where)
        (record, ledger_id), *_ = job.plan(await job.look()).give_up
        file = path_of(record)
        kept = file.read_bytes()
        remove(file)
        away = unmount(where)
        file.parent.mkdir()
        write(file, kept)

        async def check_and_mount(record: ArchivedFile) -> None:
            await check_archive(record)
            where.rename(tmp_path / "below")
            away.rename(where)

        monkeypatch.setattr(archiver, "check_archive", check_and_mount)
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await job.give_up(record, ledger_id)
        assert await records_of(log) == before


async def test_a_destination_that_goes_away_while_its_file_is_looked_at_has_nothing_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "there"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, where)
        before = await archived(client, log)
        job = await archiver_of(client, where)
        (record, ledger_id), *_ = job.plan(await job.look()).give_up

        async def unmount_and_check(record: ArchivedFile) -> None:
            unmount(where)
            await check_archive(record)

        monkeypatch.setattr(archiver, "check_archive", unmount_and_check)
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await job.give_up(record, ledger_id)
        assert await archived(client, log) == before


async def test_a_file_that_is_gone_from_a_place_that_is_there_is_withdrawn(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, tmp_path)
        remove(path_of((await archived(client, log))[0]))
        assert await archive(client, tmp_path) == ["withdrawn", "given up", "copied", "given up"]


async def test_the_marker_of_the_place_where_the_file_lies_counts_and_not_that_of_the_job(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, tmp_path / "old")
        before = await archived(client, log)
        away = unmount(tmp_path / "old")
        steps = await archive_log(
            client.opened, "log", str(tmp_path / "new"), keep_copies_s=0, accept_destination=True
        )
        assert {step.what for step in steps} == {"failed"}
        assert await archived(client, log) == before
        mount(tmp_path / "old", away)
        assert await archive(client, tmp_path / "new") == ["given up"] * 2


async def test_a_place_without_its_marker_can_be_accepted_and_reading_never_asks(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, tmp_path)
        before = await records_of(log)
        kept = json.loads(marker_in(tmp_path).read_bytes())
        assert kept["format"] == 1
        assert await archive(client, tmp_path) == ["given up"] * 2
        remove(marker_in(tmp_path))
        assert await records_of(log) == before
        with pytest.raises(ArchiveUnavailable, match="accept"):
            await archive(client, tmp_path)
        assert await archive_log(client.opened, "log", str(tmp_path), accept_destination=True) == []
        made = json.loads(marker_in(tmp_path).read_bytes())
        assert made.pop("id") != kept.pop("id")
        assert made == kept
        assert await archive(client, tmp_path) == []
        write(marker_in(tmp_path), b"something else")
        with pytest.raises(ArchiveUnavailable, match=r"it is not the marker.*--accept-destination"):
            await archive(client, tmp_path)
        assert await archive_log(client.opened, "log", str(tmp_path), accept_destination=True) == []
        assert await archive(client, tmp_path) == []


async def test_records_of_truncated_and_deleted_logs_wait_for_the_place_of_their_files(
    tmp_path: Path,
) -> None:
    where = tmp_path / "there"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, where)
        job = await archiver_of(client, where)
        await log.truncate(5)
        (record,) = job.plan(await job.look()).retire
        away = unmount(where)
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await job.retire(record)
        await delete_log(client.opened, "log")
        with pytest.raises(ArchiveUnavailable, match="marker"):
            await retire_gone(client.opened, str(where))
        assert len(await archived(client, log)) == 3
        mount(where, away)
        assert [step.what for step in await retire_gone(client.opened, str(where))] == ["retired"] * 3
        assert files(where) == []


async def test_a_job_that_sees_the_first_records_of_another_looks_for_its_marker_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        log = await new_log(client)
        await fill(log, 5, 4)
        children = client.store.children
        begun: list[list[str]] = []

        async def after_another_began(path: str) -> list[str]:
            if path == ARCHIVES and not begun:
                begun.append([])
                begun.append(await archive(other, tmp_path, keep_copies_s=DAY_S))
            return await children(path)

        monkeypatch.setattr(client.store, "children", after_another_began)
        await open_archiver(client.opened, "log", str(tmp_path))
        assert begun == [[], ["copied", "copied"]]


# --- which marker it is -----------------------------------------------------------------------------


async def test_a_marker_below_the_mount_point_vouches_no_more_once_the_disk_has_its_own(
    tmp_path: Path,
) -> None:
    where, disk = tmp_path / "there", tmp_path / "disk"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, where)  # No disk was mounted, and nobody noticed.
        disk.mkdir()
        below = where.rename(tmp_path / "below")
        disk.rename(where)
        with pytest.raises(ArchiveUnavailable, match="Mount it"):
            await archive(client, where)
        steps = await archive_log(
            client.opened, "log", str(where), keep_copies_s=0.0, accept_destination=True
        )
        assert {step.what for step in steps} == {"withdrawn", "copied", "given up"}
        before = await archived(client, log)
        where.rename(disk)
        below.rename(where)
        assert marker_bytes(where) != marker_bytes(disk)
        with pytest.raises(ArchiveUnavailable, match="Mount it"):
            await archive(client, where)
        assert await archived(client, log) == before


async def test_a_destination_that_is_known_is_refused_without_its_marker_before_it_has_a_file(
    tmp_path: Path,
) -> None:
    where = tmp_path / "there"
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4)
        await archiver_of(client, where)
        marker = marker_bytes(where)
        away = unmount(where)
        with pytest.raises(ArchiveUnavailable, match=marker.hex()):
            await archive(client, where)
        mount(where, away)
        assert await archive(client, where) == ["copied", "copied", "given up"]


async def test_a_link_that_leads_elsewhere_now_is_no_new_destination(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, link)
        before = await archived(client, log)
        link.unlink()
        link.symlink_to(tmp_path / "two")
        with pytest.raises(ArchiveUnavailable, match="no marker"):
            await archive(client, link)
        assert markers_in(tmp_path / "two") == []
        assert await archived(client, log) == before


async def test_an_archive_of_another_destination_does_not_vouch_for_one_that_is_known(
    tmp_path: Path,
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await two_archived(client, tmp_path / "one")
        await fill(await new_log(client, "other"), 2, 2)
        await archive(client, tmp_path / "two", log="other")
        (tmp_path / "one").rename(tmp_path / "away")
        (tmp_path / "two").rename(tmp_path / "one")
        with pytest.raises(ArchiveUnavailable, match="its marker"):
            await archive(client, tmp_path / "one")


async def test_an_archive_that_is_mounted_elsewhere_is_known_by_its_marker(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, tmp_path / "one")
        before = await archived(client, log)
        (tmp_path / "one").rename(tmp_path / "two")
        with pytest.raises(ArchiveUnavailable, match=r"marker of the archive at .*/one.*archive move"):
            await steps_of(client, tmp_path / "two")
        assert await archived(client, log) == before


@pytest.mark.parametrize("fault", ["lost_answers", "lost_writes"])
async def test_a_destination_is_claimed_though_the_answer_is_lost(tmp_path: Path, fault: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await fill(await new_log(client), 5, 4)
        setattr(client.store, fault, 1)
        job = await archiver_of(client, tmp_path)
        assert getattr(client.store, fault) == 0
        (place,) = await DestinationRegistry(client.opened.store).all()
        assert place.marker in markers_in(tmp_path)
        assert job.destination.where() == place.where == tmp_path.as_uri()
        assert await archive(client, tmp_path) == ["copied", "copied", "given up"]


@pytest.mark.parametrize("accept", [False, True])
async def test_of_two_jobs_that_begin_at_once_both_work_and_one_marker_is_left(
    tmp_path: Path, accept: bool
) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        await fill(await new_log(client), 5, 4)
        if accept:
            await archiver_of(client, tmp_path)
            remove(marker_in(tmp_path))

        async def begin() -> None:
            await open_archiver(other.opened, "log", str(tmp_path), accept_destination=accept)

        client.store.before_write = begin
        await open_archiver(client.opened, "log", str(tmp_path), accept_destination=accept)
        (place,) = await DestinationRegistry(client.opened.store).all()
        assert marker_bytes(tmp_path) == place.marker


async def test_a_job_that_dies_when_it_has_made_the_marker_keeps_nobody_out(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as other:
        await fill(await new_log(client), 5, 4)
        crash_at(client, 0)
        with pytest.raises(Crash):
            await archive(client, tmp_path)
        assert await archive(other, tmp_path) == ["copied", "copied", "given up"]


def test_what_is_known_of_a_destination_is_read_as_it_was_written() -> None:
    place = ArchiveDestination(where="file:///archive", marker=bytes(range(8)), made_ms=1_700_000_000_000)
    assert ArchiveDestination.decode_untrusted(place.encode(), "node") == place
    short = place.encode().replace(b"\x48" + place.marker, b"\x45short")
    assert short != place.encode()
    for data in (place.encode()[:-1], b"", short):
        with pytest.raises(MetadataCorrupt, match="node"):
            ArchiveDestination.decode_untrusted(data, "node")


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("s3://key:secret@bucket/archive/?region=eu", "s3://key@bucket/archive"),
        ("s3://bucket", "s3://bucket"),
        ("file:///archive/./here", "file:///archive/here"),
    ],
)
def test_a_place_is_told_from_others_without_options_and_passwords(
    given: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = destinations._resolve
    monkeypatch.setattr(
        destinations, "_resolve", lambda url: resolve(url) if url.startswith("file") else (None, url)
    )
    assert destinations.Destination(given).where() == where


# --- strays, and records of other places --------------------------------------------------------------


async def test_a_stray_is_kept_while_the_file_that_replaced_it_is_not_there(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 5, 4, 3, 2)
        await archive(client, tmp_path)
        (step,) = await merge_log(client.opened, "log", str(tmp_path))
        assert step.what == "merged"
        merged = path_of((await archived(client, log))[0])
        kept = merged.read_bytes()
        remove(merged)
        environment = client.opened.environment
        environment.now_ms = lambda: round(10 * 1000 * (ARCHIVE_STRAY_AGE_S + time.time()))
        steps = await archive_log(client.opened, "log", str(tmp_path))
        assert [step.what for step in steps] == ["skipped"] * 3
        assert all(merged.name in step.why for step in steps)
        write(merged, kept)
        assert await archive(client, tmp_path) == ["cleaned"] * 3


async def test_a_record_of_a_place_that_is_not_known_here_stops_no_other_step(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await two_archived(client, tmp_path)
        await name_place(client, log, "strange://there")
        assert await archive(client, tmp_path) == ["failed", "given up", "failed"]
        await log.truncate(5)
        assert await archive(client, tmp_path) == ["failed"]


async def test_a_destination_that_another_job_gave_its_id_just_before_keeps_it(tmp_path: Path) -> None:
    async with open_cluster(1) as cluster, cluster.client() as client:
        destination = await load_destination(str(tmp_path))
        places = DestinationRegistry(client.opened.store)
        known = ArchiveDestination(where=destination.where(), marker=bytes(MARKER_BYTES), made_ms=1)
        given = attrs.evolve(known, id=b"x" * DESTINATION_ID_BYTES, url=destination.url)
        await places.write(given, None)
        assert await Markers(client.opened, "cluster")._addressed(destination, known) is None
        found = await places.find(known.where)
        assert found is not None
        assert found[0] == given
