"""Damage: every byte of every file changed, one at a time. Never a wrong answer, never a silent loss.

A bookie whose files were damaged may refuse to start (StorageCorrupt or another StorageError) or answer
CORRUPT or IO_ERROR for what it cannot prove. It never says that an acknowledged entry does not exist, never
gives other bytes for it, never forgets a fence, and nothing else is ever raised. Both after a crash, when the
journal is replayed, and after a clean stop, when it is not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from storing import (
    COOKIE,
    KEY,
    SMALL,
    Crash,
    add_durably,
    add_frame,
    opened,
    payload_of,
    read,
    running,
)
from trio.testing import wait_all_tasks_blocked

from bookie.core.rows import ledger_key, run_key
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import open_directory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.journal.segments import SegmentFiles
from bookie.storage.upkeep.rebuild import rebuild_index
from bookie.storage.upkeep.salvage import salvage
from ledgerlog.errors import StorageCorrupt, StorageError
from ledgerlog.wire.frame import Status
from tests.index_kinds import KINDS_HERE

TINY = StorageConfig(segment_bytes=5 * 4096, arenas=2, frame_bytes_max=4000)
ACKED = {1: range(6), 2: range(3, 9)}
UNREADABLE = (Status.CORRUPT, Status.IO_ERROR)


async def fill(engine: Engine) -> None:
    for ledger, ids in ACKED.items():
        for first in ids[::3]:
            await add_durably(engine, ledger, range(first, first + 3))
    assert (await engine.fence(2, KEY)).status is Status.OK


async def check(engine: Engine) -> int:
    """Return how many acknowledged entries can be read. Each of the others must be reported as unreadable."""
    readable = 0
    for ledger, ids in ACKED.items():
        for entry_id in ids:
            result = await read(engine, ledger, entry_id, entry_id)
            if result.status is Status.OK:
                assert list(result.entries.ids) == [entry_id], f"entry {entry_id} of {ledger} was lost"
                assert result.entries.payloads() == [payload_of(ledger, entry_id)]
                readable += 1
            else:
                assert result.status in UNREADABLE, result.status
                assert result.through < entry_id
        listed = await engine.list_entries(ledger, first=0, pairs_max=10)
        if listed.status is Status.OK:
            assert listed.pairs == [(ids[0], ids[-1])]
        else:
            assert listed.status in UNREADABLE
    refusal = engine.add(*add_frame(2, [100]))
    assert refusal is Status.FENCED or refusal in UNREADABLE
    return readable


async def boots(
    path: str, disk: MemoryDisk | None = None, indexes: MemoryIndexes | None = None
) -> int | None:
    """Start and check; None if the bookie refuses to start. The index is of the kind that is there."""
    try:
        async with running(path, TINY, disk=disk, indexes=indexes) as engine:
            readable = await check(engine)
            raise Crash
    except StorageError:
        return None
    except Crash:
        return readable


def memory_copy(disk: MemoryDisk, indexes: MemoryIndexes) -> tuple[MemoryDisk, MemoryIndexes]:
    other, others = MemoryDisk(), MemoryIndexes()
    other.files = {path: bytearray(content) for path, content in disk.files.items()}
    other.directories = set(disk.directories)
    for path, index in indexes.indexes.items():
        from bookie.storage.index.index import MemoryIndex

        others.indexes[path] = MemoryIndex(path)
        others.indexes[path].apply(index.scan_now(b"", b"\xff", floor=b"", limit=10**6))
    return other, others


async def memory_image(*, is_clean: bool) -> tuple[MemoryDisk, MemoryIndexes]:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    try:
        async with running("b", TINY, disk=disk, indexes=indexes) as engine:
            await fill(engine)
            await wait_all_tasks_blocked()  # The mark is behind the segment that is full.
            if not is_clean:
                raise Crash
    except Crash:
        pass
    return disk, indexes


@pytest.mark.long
@pytest.mark.parametrize("is_clean", [False, True])
async def test_no_changed_byte_of_the_journal_or_the_cookie_leads_to_a_wrong_answer(
    request: pytest.FixtureRequest, is_clean: bool
) -> None:
    disk, indexes = await memory_image(is_clean=is_clean)
    total = sum(map(len, ACKED.values()))
    refused = unreadable = 0
    for path, content in disk.files.items():
        # Changing each byte of segments takes minutes and is left to the soak; the unit tests of blocks and
        # of segment headers change each single one.
        step = 1 if len(content) < 1000 or request.config.getoption("--hypothesis-profile") == "soak" else 97
        for at in range(0, len(content), step):
            damaged, rows = memory_copy(disk, indexes)
            damaged.files[path][at] ^= 0xFF
            readable = await boots("b", damaged, rows)
            refused += readable is None
            unreadable += readable is not None and readable < total
    assert refused > 20
    if is_clean:
        assert unreadable > 20, "after a clean stop, damage is found by the reader"


def garble(image: bytearray) -> None:
    image[4096:] = os.urandom(len(image) - 4096)


def garble_all(image: bytearray) -> None:
    image[:] = os.urandom(len(image))


def flip_header(image: bytearray) -> None:
    image[100] ^= 1


def cut(image: bytearray) -> None:
    image.clear()


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("is_all", [False, True], ids=["the last", "all"])
@pytest.mark.parametrize("damage", [garble, garble_all, flip_header, cut])
async def test_garbage_in_prepared_segments_that_were_never_written_stops_no_start(
    damage: Callable[[bytearray], None], is_all: bool, more: int, is_clean: bool
) -> None:
    disk, indexes = await memory_image(is_clean=is_clean)
    async with opened("b", disk, indexes) as directory:
        files = SegmentFiles(disk, directory.journal_path, await directory.read_instance())
        last = max(await files.numbers())
        for number in range(last + 1, last + 1 + more):
            segment = await files.create(
                number, memoryview(bytearray(TINY.segment_bytes)), bytes([number] * 16)
            )
            disk.close(segment.file)
    unwritten = [last] if is_clean or is_all else []
    for number in {last + more, *([last] if is_all else ())}:
        image = disk.files[files.path(number)]
        assert number not in unwritten or not any(image[4096:]), "it was never written"
        damage(image)
    if not is_clean and (is_all or not more):
        assert await boots("b", disk, indexes) is None, "the next block may have been there"
        return
    for _ in range(3):
        assert await boots("b", disk, indexes) == sum(map(len, ACKED.values()))


async def test_a_prepared_segment_without_a_header_that_may_have_been_written_stops_a_start() -> None:
    """The blocks of this segment cannot be verified, but they are there."""
    disk, indexes = await memory_image(is_clean=False)
    written = [path for path in sorted(disk.files) if path.endswith(".journal")]
    prepared = [path for path in written if not any(disk.files[path][4096:])]
    first = [path for path in written if path not in prepared][-1]
    # The file looks as if it was never written.
    disk.files[first][4096:] = bytes(len(disk.files[first]) - 4096)
    (following,) = prepared
    disk.files[following][4096 : 4096 + 8] = b"LLBLOCK1"
    flip_header(disk.files[following])
    assert await boots("b", disk, indexes) is None


@pytest.mark.parametrize("is_clean", [False, True])
async def test_no_missing_file_leads_to_a_wrong_answer(is_clean: bool) -> None:
    disk, indexes = await memory_image(is_clean=is_clean)
    written = [
        path
        for path in disk.files
        if path.endswith((".journal", ".entries")) and any(disk.files[path][4096:])
    ]
    assert len(written) >= 2
    for path in written:
        damaged, rows = memory_copy(disk, indexes)
        del damaged.files[path]
        assert await boots("b", damaged, rows) is None, path


@pytest.mark.parametrize("is_clean", [False, True])
async def test_no_truncated_segment_leads_to_a_wrong_answer(is_clean: bool) -> None:
    disk, indexes = await memory_image(is_clean=is_clean)
    for path, content in disk.files.items():
        for size in range(0, len(content), 1000):
            damaged, rows = memory_copy(disk, indexes)
            del damaged.files[path][size:]
            await boots("b", damaged, rows)


async def test_a_lost_index_is_noticed_and_the_message_names_the_remedy() -> None:
    disk, _ = await memory_image(is_clean=True)
    with pytest.raises(StorageCorrupt, match="rebuilds the index from the journal"):
        async with running("b", TINY, disk=disk, indexes=MemoryIndexes()):
            pass


async def test_an_emptied_journal_directory_is_noticed() -> None:
    for is_clean in (False, True):
        disk, indexes = await memory_image(is_clean=is_clean)
        for path in [path for path in disk.files if path.endswith(".journal")]:
            del disk.files[path]
        with pytest.raises(StorageCorrupt, match="missing"):
            async with running("b", TINY, disk=disk, indexes=indexes):
                pass


async def test_no_index_is_made_from_a_journal_that_is_gone() -> None:
    disk, indexes = await memory_image(is_clean=True)
    for path in [path for path in disk.files if path.endswith(".journal")]:
        del disk.files[path]
    indexes.indexes.clear()
    async with opened("b", disk, indexes) as directory:
        with pytest.raises(StorageCorrupt, match="no segment"):
            await rebuild_index(directory)
    assert not indexes.indexes


async def test_no_index_is_made_from_a_journal_whose_first_block_rotted() -> None:
    disk, indexes = MemoryDisk(), MemoryIndexes()
    with suppress(Crash):
        async with running("b", TINY, disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 1, [0])
            raise Crash
    async with opened("b", disk, indexes) as directory:
        image = disk.files[SegmentFiles(disk, directory.journal_path, "").path(1)]
        image[4096:] = os.urandom(len(image) - 4096)
        with pytest.raises(StorageCorrupt, match="damaged block"):
            await rebuild_index(directory)


async def test_the_index_of_another_bookie_is_refused() -> None:
    disk, _ = await memory_image(is_clean=True)
    other_disk, others = MemoryDisk(), MemoryIndexes()
    async with open_directory("b", disk=other_disk, indexes=others) as directory:
        from attrs import evolve

        await directory.format(evolve(COOKIE, instance="another"))
    with pytest.raises(StorageCorrupt, match="does not belong to bookie instance"):
        async with running("b", TINY, disk=disk, indexes=others):
            pass


# --- the files of a store ------------------------------------------------------------------------


FILES = {
    "leveldb": ("CURRENT", "MANIFEST-*", "*.log", "*.ldb"),
    "rocksdb": ("CURRENT", "MANIFEST-*", "*.log", "*.sst"),
}
"""The files that each store needs."""
MAY_BE_CUT = {"leveldb": ("*.log",), "rocksdb": ("*.log", "MANIFEST-*")}
"""The end of RocksDB's manifest names only the log that the last start began, and which holds nothing."""
NOT_NEEDED = ("LOG", "LOCK", "OPTIONS-", "IDENTITY", "rocksdict-config.json")
"""How the names of files begin that are empty, or that a store writes anew."""


def copy_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


async def stored_image(path: Path, kind: str, *, is_clean: bool) -> None:
    try:
        async with running(str(path), attrs.evolve(TINY, index=kind)) as engine:
            await fill(engine)
            if not is_clean:
                await engine.flush()
                raise Crash
    except Crash:
        pass


def names_in(image: Path) -> list[str]:
    return sorted(name for name in os.listdir(image / "index") if not name.startswith(NOT_NEEDED))


@pytest.mark.long
@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_no_changed_byte_of_the_index_leads_to_a_wrong_answer(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, is_clean: bool
) -> None:
    image, damaged = tmp_path / "image", tmp_path / "damaged"
    await stored_image(image, kind, is_clean=is_clean)
    names = names_in(image)
    assert {name.rpartition(".")[2] for name in names} >= {"log", "CURRENT"}
    refused = 0
    is_soak = request.config.getoption("--hypothesis-profile") == "soak"
    for name in names:
        content = (image / "index" / name).read_bytes()
        step = 1 if len(content) < 100 or is_soak else 37
        for at in range(0, len(content), step):
            copy_tree(image, damaged)
            changed = bytearray(content)
            changed[at] ^= 0xFF
            (damaged / "index" / name).write_bytes(changed)
            refused += await boots(str(damaged)) is None
    assert refused > 20


@pytest.mark.skipif("rocksdb" not in KINDS_HERE, reason="there is no rocksdict here")
@pytest.mark.parametrize("pattern", [f"{name}*" for name in NOT_NEEDED])
async def test_what_rocksdb_does_not_need_may_be_lost_or_damaged(tmp_path: Path, pattern: str) -> None:
    image, damaged = tmp_path / "image", tmp_path / "damaged"
    await stored_image(image, "rocksdb", is_clean=True)
    names = [file.name for file in (image / "index").glob(pattern)]
    assert names
    for change in (None, b"", b"damage"):
        copy_tree(image, damaged)
        for name in names:
            if change is None:
                (damaged / "index" / name).unlink()
            else:
                (damaged / "index" / name).write_bytes(change)
        assert await boots(str(damaged)) == sum(map(len, ACKED.values()))


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_no_cut_or_missing_or_rotten_file_of_a_store_is_passed_over_and_the_index_can_be_made_again(
    tmp_path: Path, kind: str
) -> None:
    """Its tables too, which an index has that was opened more than once."""
    image, damaged = tmp_path / "image", tmp_path / "damaged"
    await stored_image(image, kind, is_clean=True)
    for _ in range(2):
        assert await boots(str(image)) == sum(map(len, ACKED.values()))
    names = names_in(image)
    assert {FILES[kind][-1][2:], "log", "CURRENT"} <= {name.rpartition(".")[2] for name in names}
    told = 0
    for name in names:
        content = (image / "index" / name).read_bytes()
        size = len(content)
        cuts = [content[:at] for at in sorted({0, size // 2, size - 1})]
        flips = [
            content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] for at in (size // 2,) if at < size
        ]
        for changed in (None, *cuts, *flips):
            copy_tree(image, damaged)
            if changed is None:
                (damaged / "index" / name).unlink()
            else:
                (damaged / "index" / name).write_bytes(changed)
            why = ""
            try:
                async with running(str(damaged), TINY) as engine:
                    assert await check(engine) == sum(map(len, ACKED.values())), "nothing of it was needed"
            except StorageCorrupt as corrupt:
                why = str(corrupt)
            if not why:
                continue
            assert "bookie rebuild-index" in why, name
            told += 1
            async with opened(str(damaged)) as directory:
                await rebuild_index(directory)
                async with open_engine(directory, TINY) as engine:
                    assert await check(engine) == sum(map(len, ACKED.values()))
    assert told > 10


MOVES = attrs.evolve(TINY, merge_width=2, log_bytes_max=40_000, compact_bytes_per_s=2**40)


async def moved_image(path: Path, kind: str = "") -> set[int]:
    """A bookie most of whose segments went to entry logs, and entry logs to others; its entries."""
    ids = set[int]()
    for life in range(2):
        async with running(str(path), attrs.evolve(MOVES, index=kind)) as engine:
            for entry_id in range(20 * life, 20 * life + 20):
                await add_durably(engine, 1 + entry_id % 3, [entry_id], payloads=[b"x" * 3000])
                ids.add(entry_id)
            await engine.flush()
            await engine.compactor.compact(is_eventual=True)
    return ids


async def ids_of(engine: Engine) -> set[int]:
    return {entry_id for ledger_id in (1, 2, 3) for entry_id in (await read(engine, ledger_id)).entries.ids}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "pattern"), [(kind, pattern) for kind in KINDS_HERE for pattern in FILES[kind]]
)
async def test_whatever_is_damaged_in_an_index_is_named_with_the_command_that_makes_it_again(
    tmp_path: Path, kind: str, pattern: str
) -> None:
    image, damaged = tmp_path / "image", tmp_path / "damaged"
    ids = await moved_image(image, kind)
    names = [file.name for file in (image / "index").glob(pattern)]
    assert names
    for name in names:
        content = (image / "index" / name).read_bytes()
        for changed in (None, b"", content[: len(content) // 2], content[:-1]):
            if changed == content:
                continue  # RocksDB's log is empty after a clean stop.
            copy_tree(image, damaged)
            victim = damaged / "index" / name
            if changed is None:
                victim.unlink()
            else:
                victim.write_bytes(changed)
            said = ""
            try:
                async with running(str(damaged), MOVES) as engine:
                    # A cut log looks like a log after a power cut. Either the journal has the lost rows ...
                    assert pattern in MAY_BE_CUT[kind]
                    assert changed, "without a log"
                    assert await ids_of(engine) == ids
                    continue
            except StorageCorrupt as corrupt:  # ... or the journal does not go back so far.
                said = str(corrupt)
            named = f"{damaged}/index/*.log" if changed is None and pattern == "*.log" else str(victim)
            is_in_current = pattern == "CURRENT" and "CURRENT file" in said
            assert named in said or is_in_current, said
            assert f"{damaged}/index" in said
            assert f"`bookie rebuild-index {damaged}`" in said
            async with opened(str(damaged)) as directory:
                await rebuild_index(directory)
                async with open_engine(directory, MOVES) as engine:
                    assert await ids_of(engine) == ids, (name, changed and len(changed))


async def test_a_segment_that_is_lost_is_not_taken_for_a_fault_of_the_index(tmp_path: Path) -> None:
    await moved_image(tmp_path / "b")
    for segment in sorted((tmp_path / "b" / "journal").glob("*.journal"))[:1]:
        segment.unlink()
    with pytest.raises(StorageCorrupt, match="If it was not lost, the index has lost its last batches"):
        async with running(str(tmp_path / "b"), MOVES):
            pass
    async with opened(str(tmp_path / "b")) as directory:
        with pytest.raises(StorageCorrupt, match=f"{segment.name}: the segment is missing, and no entry log"):
            await rebuild_index(directory)


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_the_index_can_be_made_again_when_its_store_lost_it(tmp_path: Path, kind: str) -> None:
    await stored_image(tmp_path / "b", kind, is_clean=False)
    (tmp_path / "b" / "index" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    assert await boots(str(tmp_path / "b")) is None
    async with opened(str(tmp_path / "b")) as directory:
        assert await rebuild_index(directory) == 3, "two of four runs of one ledger were put together"
        async with open_engine(directory, TINY) as engine:
            assert await check(engine) == sum(map(len, ACKED.values()))
    assert await boots(str(tmp_path / "b")) == sum(map(len, ACKED.values()))


async def test_of_entries_that_stand_in_two_files_none_is_denied_once_the_index_was_made_again() -> None:
    """What was rotten is stored a second time, in runs of other lengths: the row of the shorter one would
    deny what the longer one has."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    config = attrs.evolve(TINY, small_run_bytes=0)
    for ids in (range(20), range(10)):
        async with running("b", config, disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 7, ids)
        # If an engine does not know a run, it takes the run's entries again.
        indexes.indexes["b/index"].apply([(run_key(7, 0), None), (ledger_key(7), None)])
    async with opened("b", disk, indexes) as directory:
        await rebuild_index(directory)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        assert list((await read(engine, 7)).entries.ids) == list(range(20))


async def test_of_entries_that_stand_in_two_files_and_do_not_fit_one_row_a_salvage_keeps_the_most() -> None:
    """The loss is marked, so nothing is denied, and other bookies have the rest."""
    disk, indexes = MemoryDisk(), MemoryIndexes()
    config = attrs.evolve(TINY, small_run_bytes=0)
    for ids in ((0, 2, 4, 6), (0, 1, 3)):
        async with running("b", config, disk=disk, indexes=indexes) as engine:
            await add_durably(engine, 7, ids)
        indexes.indexes["b/index"].apply([(run_key(7, 0), None), (ledger_key(7), None)])
    async with opened("b", disk, indexes) as directory:
        with pytest.raises(StorageCorrupt, match="hold only one run"):
            await rebuild_index(directory)
        await salvage(directory, lambda: bytes(16))
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        for entry_id in (0, 2, 4, 6):
            found = await read(engine, 7, entry_id, entry_id)
            assert found.entries.payloads() == [payload_of(7, entry_id)]


async def test_after_a_salvage_no_segment_has_a_number_that_an_entry_log_replaced() -> None:
    """The newest entry log is damaged, and the segment that it replaced is gone with the others.

    Otherwise the next rebuild of the index would leave out a new segment of this number.
    """
    disk, indexes = MemoryDisk(), MemoryIndexes()
    config = attrs.evolve(SMALL, scrub=False)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        for entry_id in range(120):
            await add_durably(engine, 1, [entry_id])
        await engine.flush()
    for path in [path for path in disk.files if path.endswith(".journal")]:
        del disk.files[path]
    disk.files[max(path for path in disk.files if path.endswith(".entries"))][-1] ^= 1
    async with opened("b", disk, indexes) as directory:
        assert (await salvage(directory, lambda: os.urandom(16))).set_aside
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        await add_durably(engine, 2, range(3))
    async with opened("b", disk, indexes) as directory:
        await rebuild_index(directory)
    async with running("b", config, disk=disk, indexes=indexes) as engine:
        found = await read(engine, 2)
        assert (found.status, list(found.entries.ids)) == (Status.OK, [0, 1, 2])
