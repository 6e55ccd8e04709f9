"""Crashes while a generation is counted: no state that they leave counts as rolled back (D27.13)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from recording_disk import CrashPoint, CrashState, Recorder, RecordingDisk, RecordingIndexes

from bookie.core.loss_marks import LossMarks
from bookie.server.identity import establish_identity
from bookie.storage.disk.disk import Disk
from bookie.storage.disk.loss_marks import read_marks
from bookie.storage.engine.directory import open_directory
from bookie.storage.index.index import Indexes
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model import layout
from ledgerlog.model.bookie import Cookie
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn
from ledgerlog.testing.memory_cluster import new_tree

PATH, JOURNAL = "/data/b1", "/journal/b1"
COOKIE = layout.cookie_path("b1")
STARTS = 3

_numbers = itertools.count(1)


def random_bytes(count: int) -> bytes:
    return next(_numbers).to_bytes(count, "big")


async def start(store: MetadataStore, disk: Disk, indexes: Indexes, *, journal: str | None) -> None:
    async with open_directory(PATH, disk=disk, indexes=indexes, journal_directory=journal) as directory:
        await establish_identity(store, directory, bookie_id="b1", random_bytes=random_bytes)


async def run_of_starts(tree: MemoryTree, journal: str | None) -> Recorder:
    """A scenario of several starts. Notes say from which point on the store has which cookie."""
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder), RecordingIndexes(recorder)

    async def note(call: Call, go_on: GoOn) -> Any:
        found = await go_on()
        if call.is_write:
            node = await store.get(COOKIE)
            recorder.note(None if node is None else node.value)
        return found

    store = tree.open_store()
    noting = FaultyStore(tree, note)
    for number in range(STARTS):
        await start(noting, disk, indexes, journal=journal)
        if number == 0:
            # The bookie's first run does this. It is the only effect outside of a start.
            await disk.write_file(f"{journal or PATH}/journal/{1:016x}.journal", b"entries")
            await disk.sync_directory(f"{journal or PATH}/journal")
            recorder.note("served")
    return recorder


def cookies_at(recorder: Recorder, position: int) -> set[bytes]:
    """The cookies that the store may have: its writes happen between two effects of the disk."""
    before = [value for at, value in recorder.notes if at < position and isinstance(value, bytes)]
    now = [value for at, value in recorder.notes if at == position and isinstance(value, bytes)]
    return {*before[-1:], *now}


async def start_again(state: CrashState, cookie: bytes, journal: str | None) -> None:
    tree = new_tree()
    store = tree.open_store()
    for _ in range(5):
        await store.next_id(layout.LEDGER_COUNTER)
    cluster = await store.get(layout.CLUSTER)
    assert cluster is not None
    mine = Cookie.decode_untrusted(cookie, "b1")
    await store.set(layout.CLUSTER, mine.cluster.encode(), version=cluster.version)
    await store.create(COOKIE, cookie)
    recorder = Recorder()
    disk, indexes = RecordingDisk(recorder, state), RecordingIndexes(recorder, state)
    for _ in range(2):
        await start(store, disk, indexes, journal=journal)
    assert await read_marks(disk, PATH) == LossMarks(), state.story
    node = await store.get(COOKIE)
    assert node is not None
    assert Cookie.decode_untrusted(node.value, "b1").generation >= mine.generation + 2, state.story


@pytest.mark.parametrize("journal", [None, JOURNAL])
async def test_no_crash_while_a_generation_is_counted_sends_a_sound_directory_into_limbo(
    journal: str | None,
) -> None:
    recorder = await run_of_starts(new_tree(), journal)
    (served,) = [at for at, what in recorder.notes if what == "served"]
    looked = 0
    for position in range(served, recorder.position + 1):
        for state in CrashPoint(recorder, position):
            for cookie in cookies_at(recorder, position):
                await start_again(state, cookie, journal)
                looked += 1
    assert looked > 20
