"""Real processes on one metadata file: killed, stopped and racing."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

from ledgerlog.meta import sqlite
from ledgerlog.meta.sqlite import SqliteStore, open_sqlite_store
from ledgerlog.meta.sqlite_changes import Hint, open_hints
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

LONG_LEASE_S = str(10 * PATIENCE_S)
"""So long that it runs out in no test. If a session ends earlier, its lock showed that its process is
gone."""

CHILD = Path(__file__).with_name("metadata_child.py")


class Child:
    """A running child and the lines that it says."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def line(self) -> str | None:
        """The next line, or None at the end."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            data = await self.process.stdout.receive_some()
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    async def rest(self) -> list[str]:
        """Every whole line until the end."""
        lines = []
        while (line := await self.line()) is not None:
            lines.append(line)
        return lines


@asynccontextmanager
async def child(*words: str) -> AsyncIterator[Child]:
    process = await trio.lowlevel.open_process([sys.executable, str(CHILD), *words], stdout=PIPE)
    try:
        yield Child(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def _wait_until_the_follower_waits(store: SqliteStore) -> None:
    """Return once the store's follower waits for a hint, so that it sees nothing by a look of its own."""
    assert store._hints is not None
    while not store._hints._is_waited_for:
        await trio.lowlevel.checkpoint()


async def test_a_commit_of_another_process_wakes_a_watch_without_a_look_at_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK_INTERVAL_S", math.inf)
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store, store.watch("log") as watch:
        await _wait_until_the_follower_waits(store)
        async with child("move", str(path)):
            with trio.fail_after(PATIENCE_S):
                await watch.wait()
        assert await store.get(f"log/{1:08}") is not None


async def test_the_death_of_a_process_wakes_a_watch_without_a_look_at_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK_INTERVAL_S", math.inf)
    path = tmp_path / "meta.db"
    async with (
        child("own", str(path), "node", LONG_LEASE_S) as owner,
        open_sqlite_store(path, session_timeout_s=float(LONG_LEASE_S)) as store,
    ):
        with trio.fail_after(PATIENCE_S):
            assert "owns" in str(await owner.line())
        async with store.watch("node") as watch:
            await _wait_until_the_follower_waits(store)
            owner.process.kill()
            with trio.fail_after(PATIENCE_S):
                while await store.get("node") is not None:
                    await watch.wait()


async def test_whoever_tries_a_lock_gives_no_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise two processes that look after each other's sessions would wake each other for ever.
    monkeypatch.setattr(sqlite, "LOOK_INTERVAL_S", math.inf)
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store, store.watch("log"), open_sqlite_store(path) as other:
        await _wait_until_the_follower_waits(store)
        hints = store._hints
        assert hints is not None
        hints._take()
        other._sessions.reap(throttled=False)
        assert hints._take() is Hint.NONE


def _add_a_byte(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


async def test_what_others_do_beside_the_file_is_no_reason_to_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK_INTERVAL_S", math.inf)
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store, store.watch("log"):
        await _wait_until_the_follower_waits(store)
        hints = store._hints
        assert hints is not None
        # No checkpoint comes between a write and the look at the hints, so the follower does not take them.
        hints._take()
        _add_a_byte(tmp_path / "a-log-file")
        assert hints._take() is Hint.NONE
        _add_a_byte(Path(f"{path}-wal"))
        assert hints._take() is Hint.FILE


async def test_hints_that_are_closed_as_they_become_readable_end_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta.db"
    hints = open_hints(path, tmp_path)
    assert hints is not None
    wait_readable = trio.lowlevel.wait_readable

    async def closed_before_the_next_step(fd: int) -> None:
        await wait_readable(fd)
        hints.close()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", closed_before_the_next_step)
    _add_a_byte(path)
    assert await hints.wait(math.inf) is Hint.FILE


async def test_a_process_killed_in_the_midst_of_transactions_leaves_all_or_nothing_and_loses_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "meta.db"
    acknowledged = 0
    for round_number in range(6):
        async with child("move", str(path)) as mover:
            # The number of transactions differs each time, so the kill comes at different moments.
            for _ in range(3 + 7 * round_number):
                with trio.fail_after(PATIENCE_S):
                    line = await mover.line()
                assert line is not None
                acknowledged = int(line)
            mover.process.kill()
            for line in await mover.rest():
                acknowledged = int(line)
        async with open_sqlite_store(path) as store:
            left, right = await store.get("pair/left"), await store.get("pair/right")
            assert left is not None
            assert right is not None
            assert left.value == right.value
            reached = int(left.value)
            # The child may have committed one more than it printed when the kill came.
            assert acknowledged <= reached <= acknowledged + 1
            assert await store.children("log") == [f"{n:08}" for n in range(1, reached + 1)]
            last = await store.get(f"log/{reached:08}")
            assert last is not None
            assert last.value == left.value * 300


async def test_a_watcher_sees_the_nodes_of_a_killed_process_vanish_at_once(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store, child("own", str(path), "members/a", LONG_LEASE_S) as owner:
        with trio.fail_after(PATIENCE_S):
            assert (await owner.line() or "").startswith("owns")
        async with store.watch("members") as watch:
            assert await store.children("members") == ["a"]
            owner.process.kill()
            await owner.process.wait()
            with trio.fail_after(PATIENCE_S):
                await watch.wait()
                while await store.get("members/a") is not None:
                    await watch.wait()
    assert list(tmp_path.joinpath("meta.db-sessions").iterdir()) == []


async def test_a_reader_without_a_watch_does_not_see_the_nodes_of_a_killed_process_for_long(
    tmp_path: Path,
) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        for read in ("get", "children", "create"):
            async with child("own", str(path), f"members/{read}", LONG_LEASE_S) as owner:
                with trio.fail_after(PATIENCE_S):
                    assert (await owner.line() or "").startswith("owns")
                assert await store.get(f"members/{read}") is not None
                owner.process.kill()
                await owner.process.wait()
            # Longer than the store leaves between two looks at the locks.
            await trio.sleep(0.15)
            match read:
                case "get":
                    assert await store.get("members/get") is None
                case "children":
                    assert await store.children("members") == []
                case "create":
                    await store.create("members/create", b"", ephemeral=True)


async def stop_between_writes(store: SqliteStore, owner: Child) -> None:
    """Stop the child, but not while it holds the write lock: no process could take the lock from it."""
    with trio.fail_after(PATIENCE_S):
        while True:
            owner.process.send_signal(signal.SIGSTOP)
            with trio.move_on_after(0.2):
                await store.next_id("probe")
                return
            owner.process.send_signal(signal.SIGCONT)
            await trio.lowlevel.checkpoint()


async def test_a_process_stopped_past_its_lease_finds_its_session_lost_and_goes_on_in_a_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store, child("own", str(path), "members/a", "5") as owner:
        with trio.fail_after(PATIENCE_S):
            first = (await owner.line() or "").split()
        assert first[0] == "owns"
        async with store.watch("members") as watch:
            await stop_between_writes(store, owner)
            with trio.fail_after(PATIENCE_S):
                while await store.get("members/a") is not None:
                    await watch.wait()
            owner.process.send_signal(signal.SIGCONT)
            with trio.fail_after(PATIENCE_S):
                assert (await owner.line() or "").split() == ["lost", first[1]]
                second = (await owner.line() or "").split()
                while (node := await store.get("members/a")) is None:
                    await watch.wait()
        assert second[0] == "owns"
        assert second[1] != first[1]
        assert node.value == b"second"


async def test_a_process_stopped_past_its_lease_loses_its_session_even_where_nobody_looked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "meta.db"
    async with child("own", str(path), "members/a", "4") as owner:
        with trio.fail_after(PATIENCE_S):
            first = (await owner.line() or "").split()
            owner.process.send_signal(signal.SIGSTOP)
            await trio.sleep(4.5)
            owner.process.send_signal(signal.SIGCONT)
            assert (await owner.line() or "").split() == ["lost", first[1]]


async def test_processes_that_increment_by_compare_and_set_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        await store.create("sum", b"0")
        async with child("increment", str(path), "150") as one, child("increment", str(path), "150") as two:
            with trio.fail_after(PATIENCE_S):
                for process in (one, two):
                    assert (await process.line() or "").startswith("done")
        node = await store.get("sum")
        assert node is not None
        assert node.value == b"300"


async def test_a_commit_that_fails_has_an_unknown_outcome_and_the_store_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with child("fill", str(path)) as filler:
        with trio.fail_after(PATIENCE_S):
            lines = await filler.rest()
    assert lines == ["MetadataOutcomeUnknown", "absent", "after"]
    async with open_sqlite_store(path) as store:
        assert await store.get("before") is not None
        assert await store.get("during") is None
        assert await store.get("after") is not None
