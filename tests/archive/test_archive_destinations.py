"""Destinations of archived files. Every directory down from the root is durable, every log name works, and a
file that is no archive causes nothing but a clear error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, get_ident
from typing import Any, NoReturn

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from ledgerlog.archive import destinations, reader
from ledgerlog.archive.destinations import Destination, lies_at
from ledgerlog.archive.file_reader import ArchiveFile
from ledgerlog.archive.file_writer import ArchiveWriter
from ledgerlog.archive.footer import end_of
from ledgerlog.archive.jobs import archiver
from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.archive.parquet import SCHEMA
from ledgerlog.archive.reader import check_archive, in_thread, open_archive
from ledgerlog.errors import ArchiveCorrupt, ArchiveUnavailable
from ledgerlog.limits import ARCHIVE_READ_TIMEOUT_S, ARCHIVE_STRAY_AGE_S
from ledgerlog.testing.memory_cluster import open_cluster
from tests.archive.archived_logs import DAY_S, archive, archived, fill, new_log, path_of, records_of
from tests.waiting import PATIENCE_S, until


def test_a_published_file_is_durable_with_every_directory_on_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(destinations, "_sync", synced.append)
    destination = Destination(str(tmp_path / "new" / "archive"))
    with destination.create("log/.one.tmp") as stream:
        stream.write(b"records")
    destination.publish("log/.one.tmp", "log/one.parquet")
    base = tmp_path / "new" / "archive"
    assert synced[0] == str(base / "log" / ".one.tmp")
    assert set(synced[1:]) >= {str(base / "log"), str(base), str(base.parent), str(tmp_path)}


def test_a_file_lies_two_levels_below_its_destination_whatever_options_its_url_has(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    (tmp_path / "link").symlink_to(place)
    for file in (f"{place.as_uri()}/log/one.parquet", f"file://{tmp_path}/link/log/one.parquet"):
        assert lies_at(file, place.as_uri())
        assert not lies_at(file, tmp_path.as_uri())
        assert not lies_at(file, f"{place.as_uri()}/log")
    assert lies_at("s3://bucket/archive/log/one.parquet?region=here", "s3://bucket/archive")
    assert not lies_at("s3://bucket/other/log/one.parquet?region=here", "s3://bucket/archive")
    assert not lies_at("file://host/archive/log/one.parquet", "file:///archive"), "on another machine"


@pytest.mark.parametrize("failure", [PermissionError("not allowed"), pa.ArrowInvalid("not allowed")])
def test_an_error_of_a_file_system_comes_with_the_next_step(
    tmp_path: Path, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __getattr__(self, name: str) -> NoReturn:
            raise failure

    destination = Destination(str(tmp_path))
    monkeypatch.setattr(destination, "_filesystem", Failing())
    for use in (destination.open, destination.create, destination.delete, destination.list):
        with pytest.raises(ArchiveUnavailable, match="not allowed; mend the cause, then try again"):
            use("log")


async def test_a_log_with_the_longest_name_is_archived(tmp_path: Path) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        name = "a/" + 253 * "b"
        log = await new_log(client, name)
        await fill(log, 4, 3)
        before = await records_of(log)
        assert await archive(client, tmp_path, log=name) == ["copied", "copied", "given up"]
        assert await records_of(log) == before


@pytest.mark.parametrize("way", ["{0}/link", "{0}/there/../there", "file:{0}/there", "file://{0}/there/"])
async def test_files_are_not_strays_where_their_place_is_given_in_other_words(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3)
        before = await records_of(log)
        assert await archive(client, tmp_path / "there") == ["copied", "copied", "given up"]
        environment = client.opened.environment
        environment.now_ms = lambda: round(1000 * (time.time() + 10 * ARCHIVE_STRAY_AGE_S))
        steps = await archive_log(client.opened, "log", way.format(tmp_path))
        assert [step.what for step in steps] == []
        assert await records_of(log) == before


async def test_a_file_system_that_hangs_leaves_threads_to_everything_else() -> None:
    released = Event()
    refused: list[ArchiveUnavailable] = []

    async def hang() -> None:
        try:
            await in_thread(released.wait, file="file:///hanging", timeout_s=0.1)
        except ArchiveUnavailable as failure:
            refused.append(failure)

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(hang)
        assert len(refused) == 50
        with trio.fail_after(PATIENCE_S):
            assert await trio.to_thread.run_sync(lambda: "done") == "done"
    finally:
        released.set()


async def test_a_destination_that_does_not_answer_is_an_error_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = Event()

    def hang(url: str) -> NoReturn:
        released.wait(30)
        raise AssertionError("nobody hears of it")

    monkeypatch.setattr(destinations, "_resolve", hang)
    monkeypatch.setattr(reader, "ARCHIVE_READ_TIMEOUT_S", 0.1)
    try:
        async with open_cluster() as cluster, cluster.client() as client:
            await fill(await new_log(client), 4)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 0)
                with pytest.raises(ArchiveUnavailable, match=f"{tmp_path}.*did not answer"):
                    await archive(client, tmp_path)
            assert not released.is_set()
    finally:
        released.set()


async def test_a_file_has_the_longer_for_its_end_and_its_name_the_larger_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: dict[str, float] = {}
    publish, close = ArchiveWriter.publish, ArchiveWriter.close

    async def note(work: Callable[[], Any], *, file: str, timeout_s: float = 0.0) -> Any:
        doing.clear()
        result = await in_thread(work, file=file)
        patience.update(dict.fromkeys(doing, timeout_s))
        return result

    doing: list[str] = []
    monkeypatch.setattr(archiver, "in_thread", note)
    monkeypatch.setattr(ArchiveWriter, "publish", lambda *args: [doing.append("publish"), publish(*args)][1])
    monkeypatch.setattr(ArchiveWriter, "close", lambda *args: [doing.append("close"), close(*args)][1])
    monkeypatch.setattr(archiver, "_BYTES_PER_S_MIN", 1)
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        (record,) = await archived(client, log)
    # The whole group is written before the end of the file. In so small a file the end is the smaller part.
    assert ARCHIVE_READ_TIMEOUT_S <= patience["close"] < patience["publish"]
    assert patience["publish"] <= ARCHIVE_READ_TIMEOUT_S + record.file_bytes


@pytest.mark.parametrize("ledgers", ["[]", '[["a", "b", "c", "d"]]', "{}", "7", "[[1]]"])
async def test_a_footer_that_says_nonsense_is_a_damaged_file(tmp_path: Path, ledgers: str) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4)
        await archive(client, tmp_path, keep_copies_s=DAY_S)
        (record,) = await archived(client, log)
        said = {
            "format": "1",
            "log": "log",
            "incarnation": str(record.incarnation),
            "ledgers": ledgers,
            "count": "4",
            "compacted": "false",
            "digest": record.digest.hex(),
        }
        with pq.ParquetWriter(path_of(record), SCHEMA) as writer:
            writer.add_key_value_metadata({f"ledgerlog.{key}": value for key, value in said.items()})
        record = attrs.evolve(record, footer=end_of(record.file)[1])
        with pytest.raises(ArchiveCorrupt):
            await check_archive(record)
        with pytest.raises(ArchiveCorrupt):
            async with open_archive(record):
                pass


async def test_a_file_is_closed_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = ArchiveFile.close
    loop = get_ident()
    closed: list[int] = []

    def note(self: ArchiveFile) -> None:
        closed.append(get_ident())
        close(self)
        raise OSError("what a file system says when a file is closed that was only read is nobody's error")

    async with open_cluster() as cluster, cluster.client() as client:
        log = await new_log(client)
        await fill(log, 4, 3)
        before = await records_of(log)
        monkeypatch.setattr(ArchiveFile, "close", note)
        assert await archive(client, tmp_path) == ["copied", "copied", "given up"]
        assert await records_of(log) == before
        await until(lambda: len(closed) == 4)  # Two files were checked, one of them twice; one was read.
    assert loop not in closed
