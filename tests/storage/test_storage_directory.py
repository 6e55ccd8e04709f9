"""The directory: one owner at a time, one identity, and formatting that a crash cannot leave half done."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording_disk import CrashPoint, Recorder, RecordingDisk, RecordingIndexes
from storing import COOKIE, SMALL, add_durably, payloads, read_all

from bookie.storage.disk.disk import FileMissing
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import StorageCorrupt, StorageError, StorageLocked
from ledgerlog.model.bookie import Cookie


async def test_the_cookie_comes_back(tmp_path: Path) -> None:
    async with open_directory(str(tmp_path / "b")) as directory:
        assert await directory.read_cookie() is None
        assert not await directory.has_data()
        await directory.format(COOKIE)
        data = await directory.read_cookie()
        assert data is not None
        assert Cookie.decode_untrusted(data, "b1") == COOKIE
        assert await directory.has_data()
        assert await directory.read_instance() == COOKIE.instance


async def test_a_second_owner_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    async with open_directory(str(tmp_path / "b")):
        with pytest.raises(StorageLocked, match="process"):
            async with open_directory(str(tmp_path / "b")):
                pass
    async with open_directory(str(tmp_path / "b")):
        pass


async def test_a_formatted_directory_is_not_formatted_again(tmp_path: Path) -> None:
    async with open_directory(str(tmp_path / "b")) as directory:
        await directory.format(COOKIE)
        with pytest.raises(StorageError, match="already formatted"):
            await directory.format(COOKIE)


async def test_data_without_a_cookie_is_not_formatted_over(tmp_path: Path) -> None:
    async with open_directory(str(tmp_path / "b")) as directory:
        await directory.format(COOKIE)
        (tmp_path / "b" / "cookie").unlink()
        assert await directory.has_data()
        with pytest.raises(StorageError, match="has data but no cookie"):
            await directory.format(COOKIE)


async def test_entry_logs_alone_are_data_too(tmp_path: Path) -> None:
    """What a new bookie would make of another one's logs is a directory that never starts again."""
    (tmp_path / "b" / "entries").mkdir(parents=True)
    async with open_directory(str(tmp_path / "b")) as directory:
        assert await directory.has_data()
        with pytest.raises(StorageError, match="has data but no cookie"):
            await directory.format(COOKIE)


async def test_every_changed_byte_of_the_cookie_is_noticed() -> None:
    disk = MemoryDisk()
    async with open_directory("b", disk=disk, indexes=MemoryIndexes()) as directory:
        await directory.format(COOKIE)
        content = disk.files["b/cookie"]
        for at in range(len(content)):
            content[at] ^= 0x04
            with pytest.raises(StorageCorrupt):
                await directory.read_cookie()
            content[at] ^= 0x04
        for size in range(len(content)):
            disk.files["b/cookie"] = content[:size]
            with pytest.raises(StorageCorrupt):
                await directory.read_cookie()


async def test_a_crash_during_formatting_leaves_a_directory_that_can_be_formatted() -> None:
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)
    async with open_directory("b", disk=disk, indexes=indexes) as directory:
        await directory.format(COOKIE)
    formatted = 0
    for position in range(recorder.position + 1):
        for state in CrashPoint(recorder, position):
            second = Recorder()
            disk, indexes = RecordingDisk(second, state), RecordingIndexes(second, state)
            async with open_directory("b", disk=disk, indexes=indexes) as directory:
                if await directory.read_cookie() is None:
                    assert not await directory.has_data(), state.story
                    await directory.format(COOKIE)
                else:
                    formatted += 1
                async with open_engine(directory, SMALL) as engine:
                    await add_durably(engine, 1, range(3))
                    assert await read_all(engine, 1) == payloads(1, range(3))
    assert formatted


async def test_who_forgets_where_the_journal_lies_is_told_what_to_pass(tmp_path: Path) -> None:
    path, journal = str(tmp_path / "b"), str(tmp_path / "j")
    async with open_directory(path, journal_directory=journal) as directory:
        await directory.format(COOKIE)
    async with open_directory(path) as directory:
        with pytest.raises(FileMissing, match="--journal-dir"):
            async with open_engine(directory, SMALL):
                pass
