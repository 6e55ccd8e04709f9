"""A start on a directory that a newer version wrote is refused by name, and leaves every file as it is."""

from __future__ import annotations

import struct

import pytest
import trio
from storing import running
from test_damage import TINY, memory_image

from bookie.core.entry_log import LogHeader
from bookie.core.loss_marks import LossMarks
from bookie.core.segment import SegmentHeader
from bookie.server.identity import establish_identity
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.directory import open_directory
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import IncompatibleVersion
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import open_cluster
from ledgerlog.wire.checksum import checksum

PAGE = 4096


def with_format(disk: MemoryDisk, path: str, version: int) -> None:
    """Change the format in the first page of a file, and its checksum with it."""
    page = bytearray(disk.files[path][:PAGE])
    page[8:12] = struct.pack("<I", version)
    page[-4:] = struct.pack("<I", checksum(bytes(page[:-4])))
    disk.files[path][:PAGE] = page


def contents(disk: MemoryDisk, indexes: MemoryIndexes) -> tuple[dict[str, bytes], dict[str, object]]:
    rows = {
        path: list(index.scan_now(b"", b"\xff", floor=b"", limit=10**6))
        for path, index in indexes.indexes.items()
    }
    return {path: bytes(content) for path, content in disk.files.items()}, dict(rows)


@pytest.mark.parametrize("is_clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_a_journal_segment_of_a_newer_format_is_refused_and_nothing_is_written(is_clean: bool) -> None:
    probe, _ = await memory_image(is_clean=is_clean)
    paths = [path for path in probe.files if path.endswith(".journal")]
    assert len(paths) >= 2
    for path in paths:
        disk, indexes = await memory_image(is_clean=is_clean)
        with_format(disk, path, 2)
        before = contents(disk, indexes)
        error = await refusal(disk, indexes)
        assert error is not None, path
        assert (error.what, error.theirs, error.ours) == (path, (2, 2), (1, 1))
        assert contents(disk, indexes) == before, path


async def refusal(disk: MemoryDisk, indexes: MemoryIndexes) -> IncompatibleVersion | None:
    try:
        async with running("b", TINY, disk=disk, indexes=indexes):
            return None
    except IncompatibleVersion as error:
        return error


@pytest.mark.parametrize("header", [SegmentHeader, LogHeader])
def test_both_kinds_of_files_have_their_format_where_this_test_changes_it(header: type) -> None:
    page = header(1, 4 * PAGE, bytes(16), "i", *([0] if header is LogHeader else [])).encode()
    assert struct.unpack_from("<I", page, 8) == (1,)


def newer_entry_log(disk: MemoryDisk, directory: str) -> str:
    """Put an entry log of a newer format into a bookie's directory."""
    path = f"{directory}/entries/{1:016x}.entries"
    disk.files[path] = bytearray(LogHeader(1, 4 * PAGE, bytes(16), "i", 0).encode() + bytes(3 * PAGE))
    with_format(disk, path, 2)
    return path


@pytest.mark.parametrize("is_clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_an_entry_log_of_a_newer_format_is_refused_and_nothing_is_written(is_clean: bool) -> None:
    disk, indexes = await memory_image(is_clean=is_clean)
    disk.files = {name: data for name, data in disk.files.items() if not name.endswith(".entries")}
    path = newer_entry_log(disk, "b")
    before = contents(disk, indexes)
    error = await refusal(disk, indexes)
    assert error is not None
    assert (error.what, error.theirs) == (path, (2, 2))
    assert contents(disk, indexes) == before


@pytest.mark.parametrize("is_clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_loss_marks_of_a_newer_format_are_refused_and_nothing_is_written(is_clean: bool) -> None:
    disk, indexes = await memory_image(is_clean=is_clean)
    page = LossMarks(is_unclean=True).encode()
    body = page[:8] + struct.pack("<I", 3) + page[12:-4]
    disk.files["b/marks"] = bytearray(body + struct.pack("<I", checksum(body)))
    before = contents(disk, indexes)
    error = await refusal(disk, indexes)
    assert error is not None
    assert (error.what, error.theirs) == ("b/marks", (3, 3))
    assert contents(disk, indexes) == before


@pytest.mark.parametrize("is_unclean", [False, True], ids=["clean marks", "unclean marks"])
async def test_a_bookies_start_on_a_newer_entry_log_writes_nothing(is_unclean: bool) -> None:
    async with open_cluster(1) as cluster, cluster.client() as client:
        bookie = cluster.bookies["b1"]
        writer = await client.ledgers.create(Replication(1, 1, 1))
        await writer.append(b"one")
        await writer.close()  # A start after a loss would fence this ledger, durably.
        await bookie.stop()
        bookie.disk.files["/b1/marks"] = bytearray(LossMarks(is_unclean=is_unclean).encode())
        path = newer_entry_log(bookie.disk, "/b1")
        before = contents(bookie.disk, bookie.indexes)
        refused = pytest.RaisesExc(IncompatibleVersion)
        with pytest.RaisesGroup(refused, flatten_subgroups=True, allow_unwrapped=True):
            await bookie._run(trio.TASK_STATUS_IGNORED)
        assert path in before[0]
        assert contents(bookie.disk, bookie.indexes) == before


@pytest.mark.parametrize("fix_cookie", [False, True])
async def test_no_cookie_is_written_beside_a_newer_entry_log(fix_cookie: bool) -> None:
    """The commands that fix a cookie or repair a directory begin with it, too."""
    async with open_cluster(1) as cluster, cluster.client() as client:
        bookie = cluster.bookies["b1"]
        await bookie.stop()
        newer_entry_log(bookie.disk, "/b1")
        before = contents(bookie.disk, bookie.indexes), dict(cluster.tree.content.nodes)
        async with open_directory("/b1", disk=bookie.disk, indexes=bookie.indexes) as directory:
            with pytest.raises(IncompatibleVersion):
                await establish_identity(
                    client.store, directory, bookie_id="b1", random_bytes=random_bytes, fix_cookie=fix_cookie
                )
        assert (contents(bookie.disk, bookie.indexes), dict(cluster.tree.content.nodes)) == before


def random_bytes(count: int) -> bytes:
    return bytes(count)
