"""An engine with marks: what it refuses and does not deny, and that none opens without them after a loss."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from storing import KEY, SMALL, add_durably, add_frame, opened, payload_of, read, running

from bookie.core.loss_marks import LossMarks
from bookie.core.rows import Row
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks, write_marks
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.errors import StorageCorrupt, StorageError
from ledgerlog.wire.frame import Status

PATH = "/data/b1"


class Machine:
    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.indexes = MemoryIndexes()

    @asynccontextmanager
    async def running(self, marks: LossMarks | None = None) -> AsyncIterator[Engine]:
        async with opened(PATH, self.disk, self.indexes) as directory:
            kept = None
            if marks is not None:
                await write_marks(self.disk, PATH, marks)
                kept = LossMarkStore(self.disk, PATH, marks)
            async with open_engine(directory, SMALL, marks=kept) as engine:
                yield engine


async def test_a_fence_mark_refuses_ordinary_adds_of_old_ledgers_alone() -> None:
    async with Machine().running(LossMarks().after_loss(7)) as engine:
        assert engine.add(*add_frame(7, [0])) is Status.FENCED
        assert not isinstance(engine.add(*add_frame(7, [0], recovery=True)), Status)
        assert not isinstance(engine.add(*add_frame(8, [0])), Status)


async def test_in_limbo_nothing_is_denied_whether_the_ledger_is_known_or_not() -> None:
    async with Machine().running(LossMarks().after_loss(7)) as engine:
        await add_durably(engine, 3, [0, 1], recovery=True)
        known = await read(engine, 3)
        assert known.status is Status.UNKNOWN
        assert list(known.entries.ids) == [0, 1], "what is there is given"
        assert (await read(engine, 4)).status is Status.UNKNOWN
        assert (await read(engine, 8)).status is Status.NO_SUCH_LEDGER
        recovery = await engine.recovery_read(5, KEY, first=0, last=0, stride=1, bytes_max=100)
        assert recovery.status is Status.UNKNOWN
        for ledger_id, status in ((3, Status.UNKNOWN), (4, Status.UNKNOWN), (8, Status.NO_SUCH_LEDGER)):
            assert (await engine.list_entries(ledger_id, first=0, pairs_max=9)).status is status


async def test_in_limbo_what_is_missing_before_an_entry_that_cannot_be_read_is_not_denied() -> None:
    machine = Machine()
    async with machine.running() as engine:
        await add_durably(engine, 3, [0], recovery=True)
        await add_durably(engine, 3, [4], recovery=True)
    async with machine.running(LossMarks().after_loss(7)) as engine:
        payload = payload_of(3, 4)
        (image,) = (image for image in machine.disk.files.values() if payload in bytes(image))
        image[bytes(image).index(payload)] ^= 1
        asked = partial(engine.recovery_read, 3, KEY, last=9, stride=1, bytes_max=1000)
        for found in (await engine.read(3, first=0, last=9, stride=1, bytes_max=1000), await asked(first=0)):
            assert (found.status, list(found.entries.ids), found.through) == (Status.UNKNOWN, [0], 3)
        assert (await asked(first=2)).status is Status.UNKNOWN
        rotten = await asked(first=4)
        assert (rotten.status, rotten.through) == (Status.CORRUPT, 3), "it says nothing of entries before"


async def test_a_fence_in_limbo_is_answered_as_ever() -> None:
    async with Machine().running(LossMarks().after_loss(7)) as engine:
        fenced = await engine.fence(3, KEY)
        assert (fenced.status, fenced.lac, fenced.lafr) == (Status.OK, -1, -1)


async def test_a_look_that_began_in_limbo_denies_nothing_though_limbo_ended_meanwhile() -> None:
    machine = Machine()
    async with machine.running() as engine:
        await add_durably(engine, 3, [0])
    marks = LossMarks().after_loss(7)
    async with machine.running(marks) as engine:
        begun, go_on = trio.Event(), trio.Event()
        (index,) = machine.indexes.indexes.values()
        original = index.scan

        async def scan(start: bytes, stop: bytes, *, floor: bytes, limit: int) -> list[Row]:
            begun.set()
            await go_on.wait()
            return await original(start, stop, floor=floor, limit=limit)

        index.scan = scan
        for look in (
            partial(read, engine, 3),
            partial(engine.list_entries, 3, first=0, pairs_max=9),
        ):
            begun, go_on = trio.Event(), trio.Event()
            engine.loss_marks.now = marks
            found: list[Status] = []

            async def begin(look: Callable[[], Awaitable[Any]], found: list[Status]) -> None:
                found.append((await look()).status)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(begin, look, found)
                await begun.wait()
                engine.loss_marks.now = marks.cleared([(3, 3)])
                go_on.set()
            assert found == [Status.UNKNOWN]
            assert (await look()).status is Status.OK


async def test_no_engine_opens_on_a_directory_that_may_have_lost_data_and_was_not_marked() -> None:
    machine = Machine()
    async with machine.running():
        pass
    await write_marks(machine.disk, PATH, LossMarks(is_unclean=True))
    with pytest.raises(StorageError, match="may have lost acknowledged entries"):
        async with machine.running():
            pass
    del machine.disk.files[f"{PATH}/marks"]
    with pytest.raises(StorageError, match="its loss marks are gone"):
        async with machine.running():
            pass
    machine.disk.files[f"{PATH}/marks"] = bytearray(b"LLMARKS1 and something else that is long enough")
    with pytest.raises(StorageCorrupt, match="marks"):
        async with machine.running():
            pass


async def test_limbo_and_fence_marks_outlive_clean_stops() -> None:
    machine = Machine()
    async with machine.running(LossMarks().after_loss(7)):
        pass
    assert await read_marks(machine.disk, PATH) == LossMarks(fenced_through=7, limbo=((0, 7),))
    async with machine.running() as engine:
        assert engine.add(*add_frame(7, [0])) is Status.FENCED


async def test_marks_that_could_not_be_written_are_not_in_force() -> None:
    machine = Machine()
    async with running(PATH, disk=machine.disk, indexes=machine.indexes) as engine:
        original = machine.disk.rename

        async def rename(source: str, target: str) -> None:
            raise StorageError("the disk failed")

        machine.disk.rename = rename
        with pytest.raises(StorageError):
            await engine.loss_marks.change(lambda now: now.after_loss(3))
        assert engine.loss_marks.now == LossMarks()
        machine.disk.rename = original
