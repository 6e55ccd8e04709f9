"""Which synced writes are done in the event loop, and which go to the journal's thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bookie.storage.disk import real as real_disk
from bookie.storage.disk.real import (
    INLINE_BYTES_MAX,
    INLINE_PENALTY,
    INLINE_S,
    INLINE_SLOW_WRITES,
    RealDisk,
    RealFile,
    _Haste,
)


def test_small_writes_are_made_in_the_loop_while_the_disk_is_quick() -> None:
    haste = _Haste()
    for _ in range(10):
        assert haste.allows(4096)
        haste.on_written(INLINE_S / 2)
    assert not haste.allows(INLINE_BYTES_MAX + 4096)


def test_slow_writes_send_the_next_ones_to_the_thread_and_then_one_is_tried_again() -> None:
    haste = _Haste()
    for _ in range(INLINE_SLOW_WRITES):
        assert haste.allows(4096)
        haste.on_written(INLINE_S * 2)
    for _ in range(3):
        assert not any(haste.allows(4096) for _ in range(INLINE_PENALTY))
        assert haste.allows(4096)
        haste.on_written(INLINE_S * 2)  # Still slow: one is enough now.
    assert not any(haste.allows(4096) for _ in range(INLINE_PENALTY))
    assert haste.allows(4096)
    haste.on_written(INLINE_S / 2)
    assert haste.allows(4096)


def test_a_write_that_was_late_once_does_not_make_the_disk_slow() -> None:
    haste = _Haste()
    for _ in range(10):
        assert haste.allows(4096)
        haste.on_written(INLINE_S * 50)  # The process waited for a processor.
        assert haste.allows(4096)
        haste.on_written(INLINE_S / 2)


@pytest.mark.parametrize("waits_for_a_processor", [False, True])
async def test_time_that_the_process_waited_for_a_processor_does_not_make_the_disk_slow(
    waits_for_a_processor: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    asked = 0

    def waited_s() -> float:
        nonlocal asked
        asked += 1
        return trio.current_time() if waits_for_a_processor else 0.0

    def write(file: RealFile, offset: int, view: memoryview) -> None:
        mock_clock.jump(took_s)

    monkeypatch.setattr(real_disk, "_write_sync", write)
    monkeypatch.setattr(real_disk, "_waited_s", waited_s)
    disk = RealDisk()
    file, view = RealFile("file", -1), memoryview(bytes(4096))
    took_s = INLINE_S / 2
    for _ in range(10):
        assert disk.write_now(file, 0, view) == pytest.approx(took_s)
    assert not asked, "asking costs time, too"
    took_s = INLINE_S * 2
    for _ in range(INLINE_SLOW_WRITES):
        assert disk.may_write_now(4096)
        disk.write_now(file, 0, view)
    assert disk.may_write_now(4096) == waits_for_a_processor
    assert asked


def test_the_kernel_tells_how_long_this_thread_waited_for_a_processor() -> None:
    before = real_disk._waited_s()
    assert 0 <= before <= real_disk._waited_s()


async def test_either_way_the_bytes_are_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    write = real_disk._write_sync

    def watched(file: RealFile, offset: int, view: memoryview) -> None:
        threads.append(threading.current_thread())
        write(file, offset, view)

    monkeypatch.setattr(real_disk, "_write_sync", watched)
    disk = RealDisk()
    size = INLINE_BYTES_MAX + 4096
    file = await disk.create(str(tmp_path / "file"), 4096 + size)
    small, large = await disk.make_buffer(4096), await disk.make_buffer(size)
    small[:], large[:] = b"s" * 4096, b"l" * size
    await disk.write_sync(file, 0, small)
    await disk.write_sync(file, 4096, large)
    disk.close(file)
    await disk.aclose()
    assert (tmp_path / "file").read_bytes() == b"s" * 4096 + b"l" * size
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
