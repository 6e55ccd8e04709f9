"""The SQLite file as a file: its modes, its damage, its format's versions, its locks."""

# ruff: noqa: ASYNC220, ASYNC240 (these tests look at files and processes; nobody waits beside them)
from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledgerlog import limits
from ledgerlog.errors import (
    IncompatibleVersion,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    StorageCorrupt,
    StorageError,
    WrongCluster,
)
from ledgerlog.meta import sqlite, sqlite_file
from ledgerlog.meta.backup_file import write_backup
from ledgerlog.meta.belonging import Belonging, make_cluster
from ledgerlog.meta.sqlite import SqliteSession, SqliteStore, open_sqlite_store, save_sqlite
from ledgerlog.meta.sqlite_file import Busy, Displaced, open_metadata_file, read_snapshot
from ledgerlog.meta.sqlite_sessions import NS, Lease, SessionLock, Sessions, boot_clock_ns
from ledgerlog.meta.store import Create, SessionState
from tests.waiting import PATIENCE_S


@pytest.fixture
async def written(tmp_path: Path) -> Path:
    """A closed file with sixty nodes, a counter, and nothing else beside it but the lock directory."""
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        await store.transaction([Create(f"ledgers/{n:04}", b"value %d " % n * 20) for n in range(60)])
        for _ in range(5):
            await store.next_id("ledger")
    assert not path.with_name("meta.db-wal").exists()
    return path


async def test_a_store_makes_its_directory_and_files_for_the_owner_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        path = tmp_path / "one" / "two" / "meta.db"
        async with open_sqlite_store(path) as store:
            await store.create("a", b"")
            names = sorted(found.name for found in path.parent.iterdir())
            assert names == ["meta.db", "meta.db-sessions", "meta.db-shm", "meta.db-wal"]
            (lock,) = (path.parent / "meta.db-sessions").iterdir()
            for file in (path, path.with_name("meta.db-wal"), path.with_name("meta.db-shm"), lock):
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
            for directory in (tmp_path / "one", path.parent, lock.parent):
                assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    finally:
        os.umask(umask)
    assert not lock.exists()


async def test_stores_that_are_opened_at_once_on_a_new_path_share_one_file(tmp_path: Path) -> None:
    ids = []

    async def use() -> None:
        async with open_sqlite_store(tmp_path / "meta.db") as store:
            ids.append(await store.next_id("ledger"))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(use)
    assert sorted(ids) == [0, 1, 2, 3, 4, 5]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["meta.db", "meta.db-sessions"]


async def test_a_symbolic_link_leads_to_the_same_store(written: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(written)
    async with open_sqlite_store(link) as store, open_sqlite_store(written) as other:
        await store.create("e", b"", ephemeral=True)
        assert await other.get("e") is not None
    assert [found.name for found in link.parent.iterdir()] == ["link.db"]


async def test_a_relative_path_leads_to_the_same_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written.parent)
    for path in (written.name, f"./{written.name}"):
        assert list(read_snapshot(path)) == list(read_snapshot(str(written)))


@pytest.mark.long
async def test_no_flipped_byte_ever_changes_what_is_read(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    expected = {f"{n:04}": b"value %d " % n * 20 for n in range(60)}
    victim = tmp_path / "victim.db"
    noticed = []
    # The file header byte for byte, then a stride that shares no factor with the page size.
    for position in [*range(100), *range(100, len(whole), 397)]:
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        victim.write_bytes(damaged)
        try:
            async with open_sqlite_store(victim) as store:
                assert await store.highest_id("ledger") == 4
                assert await store.children("ledgers") == sorted(expected)
                for name, value in expected.items():
                    node = await store.get(f"ledgers/{name}")
                    assert node is not None
                    assert node.value == value
        except (StorageError, IncompatibleVersion) as error:
            # Where the damage hit the schema's version number, the file claims to be newer.
            noticed.append(str(error))
        for beside in ("-wal", "-shm", "-journal"):
            victim.with_name(victim.name + beside).unlink(missing_ok=True)
    assert len(noticed) > 40
    assert all(str(victim) in message for message in noticed)


@pytest.mark.parametrize("keep", [0, 1, 100, 4096, 4097, 0.5, 0.9])
async def test_a_truncated_file_is_corrupt(written: Path, keep: float) -> None:
    size = written.stat().st_size
    os.truncate(written, int(keep * size) if isinstance(keep, float) else keep)
    with pytest.raises(StorageCorrupt) as caught:
        async with open_sqlite_store(written):
            pass
    assert caught.value.path == str(written)


async def test_a_file_that_is_something_else_is_corrupt_and_left_as_it_was(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_bytes(b"this is no database, however long it goes on. " * 200)
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE nodes (path TEXT)")
    connection.commit()
    connection.close()
    for path in (text, foreign):
        before = path.read_bytes()
        with pytest.raises(StorageCorrupt) as caught:
            async with open_sqlite_store(path):
                pass
        assert caught.value.path == str(path)
        assert path.read_bytes() == before
        assert not path.with_name(path.name + "-sessions").exists()


async def test_a_log_whose_file_is_gone_is_corrupt(written: Path) -> None:
    async with open_sqlite_store(written) as store:
        await store.create("a", b"")
        shutil.copy(f"{written}-wal", f"{written}-kept")
    written.unlink()
    os.rename(f"{written}-kept", f"{written}-wal")
    with pytest.raises(StorageCorrupt, match="write-ahead log"):
        async with open_sqlite_store(written):
            pass


async def test_a_file_of_a_newer_schema_says_so(written: Path) -> None:
    connection = sqlite3.connect(written)
    connection.execute(f"PRAGMA user_version = {sqlite_file.SCHEMA_VERSION + 1}")
    connection.close()
    before = written.read_bytes()
    with pytest.raises(IncompatibleVersion, match=r"has format 2; this version .* reads 1") as caught:
        async with open_sqlite_store(written):
            pass
    assert not isinstance(caught.value, StorageCorrupt)
    assert written.read_bytes() == before


async def test_damage_that_comes_while_the_store_is_open_is_corrupt_in_the_reading_call(
    written: Path,
) -> None:
    async with open_sqlite_store(written) as store:
        connection = sqlite3.connect(written)
        with connection:
            connection.execute("UPDATE nodes SET value = x'00' WHERE path = 'ledgers/0007'")
            connection.execute("UPDATE counters SET last = 1")
        connection.close()
        node = await store.get("ledgers/0006")
        assert node is not None
        with pytest.raises(StorageCorrupt, match="ledgers/0007"):
            await store.get("ledgers/0007")
        with pytest.raises(StorageCorrupt, match="ledgers/0007"):
            await store.set("ledgers/0007", b"", version=1)
        with pytest.raises(StorageCorrupt, match="ledger"):
            await store.next_id("ledger")


async def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataUnavailable, match="file"):
        async with open_sqlite_store(tmp_path / "file" / "meta.db"):
            pass


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e6])
def test_a_session_timeout_out_of_range_is_refused(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="at most 86400"):
        open_sqlite_store(tmp_path / "meta.db", session_timeout_s=timeout)


async def test_a_writer_waits_for_a_lock_and_gives_up_at_its_deadline(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_sqlite_store(written) as store:
        connection = sqlite3.connect(written, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.3)
        with pytest.raises(MetadataUnavailable, match="lock"):
            await store.create("a", b"")
        monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", PATIENCE_S)
        assert await store.get("a") is None, "readers go on"
        with trio.move_on_after(0.3) as scope:
            await store.create("a", b"")
        assert scope.cancelled_caught, "the wait for a lock can be cancelled"
        connection.execute("ROLLBACK")
        connection.close()
        await store.create("a", b"")


async def test_the_body_of_a_store_raises_its_own_exception_and_no_group(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_sqlite_store(tmp_path / "meta.db"):
            raise KeyError("mine")
    with trio.CancelScope() as scope:
        async with open_sqlite_store(tmp_path / "meta.db"):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_session_whose_lease_has_run_out_is_suspended_at_the_first_look(tmp_path: Path) -> None:
    lock = SessionLock(tmp_path / "lock", os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR))
    session = SqliteSession(Lease("s", boot_clock_ns() - 1, lock))
    assert session.state is SessionState.SUSPENDED
    lock.release()


async def test_who_waits_while_the_lease_has_run_out_hears_of_a_late_renewal(tmp_path: Path) -> None:
    """The store had not noticed the end of the lease, so the state was CONNECTED before and after."""
    lock = SessionLock(tmp_path / "lock", os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR))
    session = SqliteSession(Lease("s", boot_clock_ns() - 1, lock))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.wait_not, SessionState.SUSPENDED)
            await wait_all_tasks_blocked()
            session._renewed(Lease("s", boot_clock_ns() + 60 * NS, lock))
    lock.release()


async def test_a_session_of_another_boot_is_over(written: Path) -> None:
    async with open_sqlite_store(written) as store, open_sqlite_store(written) as other:
        await store.create("m/a", b"", ephemeral=True)
        connection = sqlite3.connect(written)
        with connection:
            connection.execute(
                "UPDATE sessions SET boot_id = 'before' WHERE session_id = ?", (store.session.session_id,)
            )
        connection.close()
        async with other.watch("m") as watch:
            with trio.fail_after(PATIENCE_S):
                while await other.children("m"):
                    await watch.wait()


async def test_a_stale_lock_file_is_swept_and_a_held_one_is_not(written: Path) -> None:
    directory = written.with_name("meta.db-sessions")
    async with open_sqlite_store(written) as store:
        (directory / "dead.lock").write_bytes(b"")
        async with open_sqlite_store(written) as other:
            names = {f"{one.session.session_id}.lock" for one in (store, other)}
            assert {found.name for found in directory.iterdir()} == names


async def test_watches_survive_more_changes_than_the_file_remembers(written: Path) -> None:
    async with open_sqlite_store(written) as store, open_sqlite_store(written) as other:
        async with store.watch("w") as watch:
            await other.create("w", b"")
            for first in range(0, 2 * sqlite_file.CHANGES_KEPT, 1024):
                await other.transaction([Create(f"x/{first + n}", b"") for n in range(1024)])
            with trio.fail_after(PATIENCE_S):
                await watch.wait()
        connection = sqlite3.connect(written)
        (kept,) = connection.execute("SELECT count(*) FROM changes").fetchone()
        connection.close()
        assert kept == sqlite_file.CHANGES_KEPT


@pytest.mark.processes
async def test_a_forked_child_does_not_keep_its_dead_parents_lock(tmp_path: Path) -> None:
    program = """
import os, sys, trio
from ledgerlog.meta.sqlite import open_sqlite_store

async def main():
    # A lease so long that only the lock can tell that this process is dead.
    async with open_sqlite_store(sys.argv[1], session_timeout_s=3600) as store:
        await store.create("m/a", b"", ephemeral=True)
        # In this thread and before any other: what multiprocessing's plain fork does.
        if os.fork() == 0:
            print("forked", flush=True)
            sys.stdin.read()
            os._exit(0)
        await trio.sleep_forever()

trio.run(main)
"""
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        parent = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert parent.stdout is not None
            assert (await trio.to_thread.run_sync(parent.stdout.readline)) == b"forked\n"
            async with store.watch("m") as watch:
                assert await store.children("m") == ["a"]
                parent.kill()
                with trio.fail_after(PATIENCE_S):
                    while await store.children("m"):
                        await watch.wait()
        finally:
            parent.kill()
            assert parent.stdin is not None
            parent.stdin.close()
            parent.stdout.close()
            parent.wait()


async def test_a_watch_sleeps_through_what_another_process_writes_elsewhere(written: Path) -> None:
    async with (
        open_sqlite_store(written) as store,
        open_sqlite_store(written) as other,
        store.watch("here") as here,
        store.watch("there") as there,
    ):
        await other.transaction([Create("there/a", b""), Create("her", b""), Create("here-not", b"")])
        with trio.fail_after(PATIENCE_S):
            await there.wait()
        # One announcement marks all watches that it concerns. So it would have marked this watch by now.
        with trio.move_on_after(0.05) as scope:
            await here.wait()
        assert scope.cancelled_caught


async def test_the_file_is_what_the_format_page_says(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        assert await store.create("a", b"v") == 2
        for _ in range(5):
            await store.next_id("ledger")
    connection = sqlite3.connect(path)
    node = connection.execute("SELECT path, value, version, session_id, checksum FROM nodes").fetchall()
    counter = connection.execute("SELECT name, last, checksum FROM counters").fetchall()
    connection.close()
    assert node == [("a", b"v", 2, None, 2435750271)]
    assert counter == [("ledger", 4, 4188446836)]
    assert path.read_bytes()[68:72] == b"LLMD"


async def test_a_commit_whose_rollback_fails_as_well_has_an_unknown_outcome_and_the_file_goes_on(
    written: Path,
) -> None:
    file = open_metadata_file(str(written), Belonging(str(written)), create=False)
    try:
        execute = file.execute

        def failing(statement: str, *values: object) -> sqlite3.Cursor:
            if statement in ("COMMIT", "ROLLBACK"):
                raise sqlite3.OperationalError("disk I/O error")
            return execute(statement, *values)

        file.execute = failing
        with pytest.raises(MetadataOutcomeUnknown), file.writing():
            file.next_id("ledger")
        file.execute = execute
        assert file.highest_id("ledger") == 4, "what was not committed is not shown"
        with file.writing():
            assert file.next_id("ledger") == 5
        with file.reading():
            assert file.highest_id("ledger") == 5
    finally:
        file.close()


@pytest.mark.parametrize("failing_at", ["COMMIT", "DELETE FROM nodes WHERE path = ?"])
async def test_what_can_be_read_is_read_where_the_dead_cannot_be_reaped(
    written: Path, failing_at: str
) -> None:
    """As on a disk that is full."""
    async with open_sqlite_store(written) as store, open_sqlite_store(written) as other:
        await other.create("members/a", b"", ephemeral=True)
        file, sessions = store._file, store._sessions
        execute = file.execute

        def failing(statement: str, *values: object) -> sqlite3.Cursor:
            if statement == failing_at:
                raise sqlite3.OperationalError("database or disk is full")
            return execute(statement, *values)

        end = "UPDATE sessions SET lease_until_ns = 0 WHERE session_id = ?"
        execute(end, (other.session.session_id,))
        async with store.watch("members") as watch:
            file.execute = failing
            for _ in range(3):
                sessions._reaped_at_ns = 0
                assert await store.children("members") == ["a"]
                sessions._reaped_at_ns = 0
                assert await store.get("members/a") is not None
            file.execute = execute
            sessions._reaped_at_ns = 0
            assert await store.children("members") == []
            await watch.wait()


# --- replaced under a live store ------------------------------------------------------------------


def put_copy_in_place(path: Path) -> None:
    """Replace the file, which a store has open, by a copy of itself."""
    copy = path.with_name("copy")
    with sqlite3.connect(path) as connection, sqlite3.connect(copy) as target:
        connection.backup(target)
    connection.close()
    target.close()
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    os.replace(copy, path)


async def test_a_file_in_whose_place_another_was_put_beside_its_log_is_not_mixed_with_it(
    tmp_path: Path,
) -> None:
    """SQLite would replay the log that lies there into any file of this name."""
    path, aside, copy = tmp_path / "meta.db", tmp_path / "aside", tmp_path / "copy"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        with sqlite3.connect(path) as connection, sqlite3.connect(copy) as target:
            connection.backup(target)
        connection.close()
        target.close()
        before = copy.read_bytes()
        await store.create("only/in/the/log", b"x")
        os.link(path, aside)
        os.replace(copy, path)
        with pytest.raises(WrongCluster, match=r"was replaced .*-wal is still there"):
            await store.get("only/in/the/log")
        assert path.read_bytes() == before, "it was not touched"
        os.replace(aside, path)
        assert await store.get("only/in/the/log") is not None
        await store.create("after", b"")


@pytest.mark.parametrize("harm", ["removed", "emptied"])
async def test_a_file_that_is_removed_or_emptied_under_a_live_store_is_refused_and_not_made_anew(
    tmp_path: Path, harm: str
) -> None:
    path, aside = tmp_path / "meta.db", tmp_path / "aside"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        os.link(path, aside)
        path.unlink()
        if harm == "emptied":
            path.touch()
        for _ in range(2):
            with pytest.raises(WrongCluster):
                await store.next_id("counter")
        assert path.exists() == (harm == "emptied")
        os.replace(aside, path)
        assert await store.next_id("counter") == 0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_a_store_waits_while_its_file_is_being_copied_back(tmp_path: Path, share: float) -> None:
    """A process that looks meanwhile finds a part of a file. That must not end it: otherwise a bookie would
    end."""
    path, copy = tmp_path / "meta.db", tmp_path / "copy"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        await store.transaction([Create(f"ledgers/{n:04}", b"value %d " % n * 20) for n in range(60)])
        with sqlite3.connect(path) as connection, sqlite3.connect(copy) as target:
            connection.backup(target)
        connection.close()
        target.close()
        whole = copy.read_bytes()
        for name in ("meta.db", "meta.db-wal", "meta.db-shm"):
            (tmp_path / name).unlink()
        # The whole length with a hole in it is what some tools make first.
        part = whole[: int(len(whole) * share)] if share < 1 else bytes(len(whole))
        path.write_bytes(part)
        for _ in range(2):
            with pytest.raises(WrongCluster):
                await store.sync()
            with pytest.raises(WrongCluster):
                await store.create("wrong", b"")
        assert path.read_bytes() == part, "it was not touched"
        with path.open("r+b") as file:
            file.write(whole)
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await store.create("after", b"")
                    break
                except MetadataUnavailable:
                    await trio.sleep(0.05)
        assert len(await store.children("ledgers")) == 60


async def test_a_file_that_goes_while_it_is_looked_at_is_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        find = os.stat

        def find_and_remove(name: object, **options: object) -> os.stat_result:
            found = find(name, **options)
            if name == str(path) and path.exists():
                path.unlink()
            return found

        monkeypatch.setattr(os, "stat", find_and_remove)
        await store.get("a")
        with pytest.raises(WrongCluster):
            await store.get("a")


async def test_a_file_that_is_replaced_while_it_is_opened_is_opened_anew_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process must not go on with a file that has no name any more: writes to it are lost."""
    path, other = tmp_path / "meta.db", tmp_path / "other.db"
    for made in (path, other):
        async with open_sqlite_store(made) as store:
            await make_cluster(store, os.urandom)
    check = sqlite_file._check_structure

    def check_slowly(name: str, connection: sqlite3.Connection) -> None:
        check(name, connection)
        if other.exists():
            os.replace(other, path)

    monkeypatch.setattr(sqlite_file, "_check_structure", check_slowly)
    with pytest.raises(MetadataUnavailable, match="replaced"):
        async with open_sqlite_store(path):
            pass


async def test_a_file_that_cannot_be_adopted_now_did_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a commit of our own session fails, the caller's operation may still succeed."""
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        put_copy_in_place(path)

        def lose(sessions: Sessions) -> Lease:
            raise MetadataOutcomeUnknown("the commit failed")

        with monkeypatch.context() as patched:
            patched.setattr(Sessions, "open", lose)
            with pytest.raises(MetadataUnavailable, match="the commit failed"):
                await store.get("a")
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await store.create("after", b"")
                    break
                except MetadataUnavailable:
                    await trio.sleep(0.05)


async def test_a_call_that_learns_late_of_a_replaced_file_goes_on_with_the_file_that_was_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        await store.create("a", b"")
        put_copy_in_place(path)
        run = store._worker.run

        async def tell_late(work: Callable[[], object], **options: float | None) -> object:
            try:
                return await run(work, **options)
            except Displaced:
                monkeypatch.undo()
                assert await store.get("a") is not None
                raise

        monkeypatch.setattr(store._worker, "run", tell_late)
        assert await store.get("a") is not None


async def test_a_call_on_a_displaced_file_ends_when_the_store_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, is_closed = tmp_path / "meta.db", trio.Event()

    async def find_displaced(work: Callable[[], object], **options: float | None) -> object:
        assert not is_closed.is_set(), "it asks a store that is closed"
        await is_closed.wait()
        raise Displaced("is gone: there is no such file")

    async def get(store: SqliteStore) -> None:
        with pytest.raises(MetadataUnavailable, match="is closed"):
            await store.get("a")

    async with trio.open_nursery() as nursery:
        async with open_sqlite_store(path) as store:
            await make_cluster(store, os.urandom)
            monkeypatch.setattr(store._worker, "run", find_displaced)
            nursery.start_soon(get, store)
            await wait_all_tasks_blocked()
        is_closed.set()


async def test_a_file_that_is_adopted_while_the_store_closes_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, adopts, goes_on = tmp_path / "meta.db", trio.Event(), threading.Event()
    open_file = sqlite._open_file

    def open_later(*args: Any, **options: bool) -> object:
        trio.from_thread.run_sync(adopts.set)
        if not goes_on.is_set():
            raise Busy
        return open_file(*args, **options)

    async def get(store: SqliteStore) -> None:
        with pytest.raises(MetadataUnavailable, match="is closed"):
            await store.get("a")

    async def go_on() -> None:
        await adopts.wait()
        await trio.sleep(0.2)  # The store is closing now.
        goes_on.set()

    async with trio.open_nursery() as nursery, open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
        put_copy_in_place(path)
        monkeypatch.setattr(sqlite, "_open_file", open_later)
        nursery.start_soon(get, store)
        nursery.start_soon(go_on)
        await adopts.wait()
    assert list(path.with_name("meta.db-sessions").iterdir()) == [], "no session is left"
    assert store._hints is not None
    assert store._hints._inotify.closed


# --- a backup --------------------------------------------------------------------------------------


async def test_a_backup_that_does_not_get_the_lock_of_the_file_did_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, another process recovers the write-ahead log."""
    path = tmp_path / "meta.db"
    async with open_sqlite_store(path) as store:
        await make_cluster(store, os.urandom)
    monkeypatch.setattr(limits, "METADATA_TIMEOUT_S", 0.2)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with (
        pytest.raises(MetadataUnavailable, match=r"locked by another process, for 0\.2 s already"),
        write_backup(str(tmp_path / "backup")) as writer,
    ):
        save_sqlite(str(path), writer, made_ms=1)
    holder.close()
    assert not (tmp_path / "backup").exists()
