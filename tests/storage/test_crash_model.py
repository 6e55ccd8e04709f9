"""The models of a disk after a crash leave what a file system may leave, and lose nothing that was synced."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
from recorded_calls import SECTOR, Call, Files
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk

Work = Callable[[RecordingDisk], Awaitable[None]]


async def recorded(work: Work) -> Recorder:
    recorder = Recorder()
    disk = RecordingDisk(recorder)
    await disk.make_directory("b")
    await disk.sync_directory(".")
    await work(disk)
    return recorder


def contents(recorder: Recorder, position: int, path: str = "b/f") -> set[bytes | None]:
    """What a crash at the position may leave of a file; None: no file."""
    states = CrashPoint(recorder, position)
    return {bytes(state.files[path]) if path in state.files else None for state in states}


async def test_a_small_file_that_is_replaced_in_place_may_be_the_old_one() -> None:
    async def work(disk: RecordingDisk) -> None:
        await disk.write_file("b/f", b"old")
        await disk.sync_directory("b")
        await disk.write_file("b/f", b"news")

    recorder = await recorded(work)
    (first, second) = [e for e in recorder.effects if e.kind == "write_file"]
    assert contents(recorder, first.began + 1) == {None, b"", b"o", b"\0\0\0", b"old"}
    assert contents(recorder, second.began) == {b"old"}
    assert contents(recorder, second.began + 1) == {b"old", b"", b"ne", b"\0\0\0\0", b"news"}
    assert contents(recorder, recorder.position) == {b"news"}


async def test_a_truncation_may_be_lost_until_it_ends() -> None:
    async def work(disk: RecordingDisk) -> None:
        await disk.create("b/f", 2 * SECTOR)
        await disk.sync_directory("b")
        await disk.truncate("b/f", SECTOR)

    recorder = await recorded(work)
    cut = recorder.effects[-1]
    assert contents(recorder, cut.began + 1) == {bytes(SECTOR), bytes(2 * SECTOR)}
    assert contents(recorder, recorder.position) == {bytes(SECTOR)}


async def test_each_of_many_names_may_be_the_only_one_that_is_lost_or_the_only_one_there() -> None:
    names = [f"b/{number}" for number in range(12)]

    async def work(disk: RecordingDisk) -> None:
        for name in names:
            await disk.create(name, 0)

    recorder = await recorded(work)
    there = {frozenset(state.files) for state in CrashPoint(recorder, recorder.position)}
    assert there >= {frozenset(names) - {name} for name in names}
    assert there >= {frozenset({name}) for name in names}
    assert there >= {frozenset(), frozenset(names)}


async def test_a_sector_of_a_write_in_flight_may_be_there_alone_and_none_after_its_end() -> None:
    async def work(disk: RecordingDisk) -> None:
        file = await disk.create("b/f", 4 * SECTOR)
        await disk.sync_directory("b")
        await disk.write_sync(file, SECTOR, memoryview(b"x" * 3 * SECTOR))

    recorder = await recorded(work)
    write = recorder.effects[-1]
    torn = contents(recorder, write.began + 1)
    for sector in range(1, 4):
        parts = [b"x" * SECTOR if each == sector else bytes(SECTOR) for each in range(4)]
        assert b"".join(parts) in torn
    assert all(content is not None and len(content) == 4 * SECTOR for content in torn)
    assert contents(recorder, recorder.position) == {bytes(SECTOR) + b"x" * 3 * SECTOR}
    states = CrashPoint(recorder, write.began + 1)
    assert {state.is_torn for state in states} == {False, True}
    assert not any(state.is_torn for state in CrashPoint(recorder, recorder.position))


async def test_what_no_state_could_show_is_an_error_and_not_passed_over() -> None:
    async def work(disk: RecordingDisk) -> None:
        file = await disk.create("b/f", SECTOR)
        await disk.unlink("b/f")
        await disk.write_sync(file, 0, memoryview(bytes(SECTOR)))

    recorder = await recorded(work)
    with pytest.raises(AssertionError, match="write of b/f, which is not there"):
        list(CrashPoint(recorder, recorder.position))
    with pytest.raises(AssertionError, match="does not remove directories"):
        await recorder.disk.remove_directory("b")


async def test_a_second_crash_begins_with_what_the_first_one_left() -> None:
    recorder = Recorder()
    start = CrashState({"b/f": bytearray(b"kept")}, frozenset({"b"}), {}, "the first crash")
    disk = RecordingDisk(recorder, start)
    await disk.unlink("b/f")
    found = [dict(state.files) for state in CrashPoint(recorder, recorder.position, start)]
    assert found == [{"b/f": b"kept"}, {}]


# --- recorded system calls ------------------------------------------------------------------------


class Made:
    """Files after some calls."""

    def __init__(self) -> None:
        self.files = Files("/d", "/d/notes", "/d/index")

    def open(self, path: str, file: int = 5) -> None:
        self.files.take(Call("o", False, path, "", file, 1, b"", 0))

    def call(self, kind: str, offset: int = 0, data: bytes = b"", *, synced: bool = False) -> Call:
        return Call(kind, synced, "", "", 5, offset, data, len(data))

    def take(self, kind: str, offset: int = 0, data: bytes = b"", *, synced: bool = False) -> None:
        self.files.take(self.call(kind, offset, data, synced=synced))

    def sync_directory(self) -> None:
        self.files.take(Call("o", False, "/d", "", 6, 0, b"", 0))
        self.files.take(Call("s", False, "", "", 6, 0, b"", 0))

    def left(self, path: str, *, is_rough: bool) -> set[bytes | None]:
        return {
            self.files.after_power_cut(random.Random(seed), is_rough=is_rough).get(path)
            for seed in range(300)
        }


@pytest.mark.parametrize("is_rough", [False, True])
def test_what_was_synced_stays_although_earlier_bytes_of_the_place_were_not(is_rough: bool) -> None:
    made = Made()
    made.open("/d/f")
    made.sync_directory()
    made.take("w", 0, b"old" + bytes(20))
    made.take("w", 30, b"other")
    made.take("w", 0, b"new", synced=True)
    left = made.left("/d/f", is_rough=is_rough)
    assert len(left) > 3
    assert all(content is not None and content.startswith(b"new") for content in left)
    made.take("t", 0)
    made.take("w", 0, b"again", synced=True)
    assert all(
        content is not None and content.startswith(b"again")
        for content in made.left("/d/f", is_rough=is_rough)
    )


@pytest.mark.parametrize("is_rough", [False, True])
def test_a_synced_write_that_is_under_way_may_be_there_in_part(is_rough: bool) -> None:
    made = Made()
    made.open("/d/f")
    made.sync_directory()
    made.take("w", 0, bytes(2 * SECTOR), synced=True)
    write = made.call("w", 0, b"x" * 2 * SECTOR, synced=True)
    made.files.begin(write)
    none, full = bytes(SECTOR), b"x" * SECTOR
    assert made.left("/d/f", is_rough=is_rough) == {none * 2, full + none, none + full, full * 2}
    made.files.take(write)
    assert made.left("/d/f", is_rough=is_rough) == {full * 2}
