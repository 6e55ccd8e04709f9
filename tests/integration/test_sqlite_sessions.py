"""Leases of the sessions of a SQLite metadata file: beside it, strict, and shared with version 0.1."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import attrs
import pytest

from ledgerlog.meta import sqlite_sessions
from ledgerlog.meta.sqlite import SqliteStore, open_sqlite_store
from ledgerlog.meta.sqlite_file import Busy
from ledgerlog.meta.sqlite_sessions import NS, Lease, boot_clock_ns


def opened(path: Path) -> AbstractAsyncContextManager[SqliteStore]:
    """A store whose sessions are not renewed, and end in no test by themselves."""
    return open_sqlite_store(path, session_timeout_s=3600)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


def lock_of(path: Path, lease: Lease) -> Path:
    return path.with_name("meta.db-sessions") / f"{lease.session_id}.lock"


async def test_a_renewed_lease_is_written_beside_the_metadata_file_and_not_into_it(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        lease, seen = store.session._lease, other._file.data_version()
        log = path.with_name("meta.db-wal").read_bytes()
        renewed = store._sessions.renew(lease)
        assert renewed is not None
        assert renewed.until_ns > lease.until_ns
        assert lock_of(path, lease).read_bytes() == renewed.until_ns.to_bytes(8, "little")
        assert other._file.data_version() == seen
        assert path.with_name("meta.db-wal").read_bytes() == log


async def test_a_lapsed_lease_is_not_renewed(path: Path) -> None:
    async with opened(path) as store:
        lapsed = attrs.evolve(store.session._lease, until_ns=boot_clock_ns() - 1)
        assert store._sessions.renew(lapsed) is None


async def test_a_lease_is_not_renewed_while_another_process_reads_it_to_end_the_session(path: Path) -> None:
    async with opened(path) as store:
        lease = store.session._lease
        with (
            lock_of(path, lease).open("rb") as file,
            sqlite_sessions._claimed(file.fileno(), fcntl.F_RDLCK),
            pytest.raises(Busy),
        ):
            store._sessions.renew(lease)
        assert store._sessions.renew(lease) is not None


async def test_a_session_is_not_ended_while_its_owner_renews_the_lease(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        await store.create("members/a", b"", ephemeral=True)
        lease = store.session._lease
        lease.lock.write_lease(boot_clock_ns() - 1)
        with lease.lock.claimed():
            assert other._sessions.reap(throttled=False) == []
        assert other._sessions.reap(throttled=False) == ["members/a"]


async def test_a_lease_that_was_renewed_in_time_ends_no_session(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        await store.create("members/a", b"", ephemeral=True)
        session_id = store.session.session_id
        assert other._sessions._remove_dead([session_id], {}) == []
        assert await other.children("members") == ["a"]


async def test_a_session_of_version_0_1_lives_by_the_lease_in_its_row(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        session_id = store.session.session_id
        await store.create("members/a", b"", ephemeral=True)
        lock_of(path, store.session._lease).write_bytes(b"")
        with sqlite3.connect(path) as connection:
            change = "UPDATE sessions SET lease_until_ns = ? WHERE session_id = ?"
            connection.execute(change, (boot_clock_ns() + 3600 * NS, session_id))
        assert other._sessions.reap(throttled=False) == []
        with connection:
            connection.execute(change, (boot_clock_ns(), session_id))
        connection.close()
        assert other._sessions.reap(throttled=False) == ["members/a"]


async def test_version_0_1_takes_a_lease_in_the_file_for_one_that_does_not_run_out(path: Path) -> None:
    async with opened(path) as store:
        query = "SELECT lease_until_ns FROM sessions WHERE session_id = ?"
        ((until_ns,),) = store._file.execute(query, (store.session.session_id,))
        assert boot_clock_ns() < until_ns < 1 << 63


def remove(lock: Path) -> None:
    lock.unlink()


def move(lock: Path) -> None:
    lock.rename(lock.with_name("elsewhere"))


def empty(lock: Path) -> None:
    lock.write_bytes(b"")


@pytest.mark.parametrize("harm", [remove, move, empty])
async def test_a_session_without_its_lock_file_ends_for_its_owner_before_it_ends_for_others(
    path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]
) -> None:
    async with opened(path) as store, opened(path) as other:
        await store.create("members/a", b"", ephemeral=True)
        lease, now_ns = store.session._lease, boot_clock_ns()
        harm(lock_of(path, lease))
        assert other._sessions.reap(throttled=False) == []
        assert store._sessions.renew(lease) is None
        monkeypatch.setattr(sqlite_sessions, "boot_clock_ns", lambda: now_ns + store._timeout_ns - 1)
        assert other._sessions.reap(throttled=False) == []
        monkeypatch.setattr(sqlite_sessions, "boot_clock_ns", lambda: boot_clock_ns() + store._timeout_ns)
        # The stores' own sessions have lapsed by this clock as well.
        assert "members/a" in other._sessions.reap(throttled=False)


async def test_a_lease_that_is_missing_for_a_second_time_is_waited_for_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as store, opened(path) as other:
        await store.create("members/a", b"", ephemeral=True)
        lock = lock_of(path, store.session._lease)
        content, now_ns = lock.read_bytes(), boot_clock_ns()
        lock.write_bytes(b"")
        assert other._sessions.reap(throttled=False) == []
        lock.write_bytes((1 << 61).to_bytes(8, "little"))
        assert other._sessions.reap(throttled=False) == []
        monkeypatch.setattr(sqlite_sessions, "boot_clock_ns", lambda: now_ns + 2 * store._timeout_ns)
        lock.write_bytes(b"")
        assert "members/a" not in other._sessions.reap(throttled=False)
        monkeypatch.undo()
        lock.write_bytes(content)


async def test_a_heartbeat_of_a_session_that_ended_with_its_replaced_file_does_nothing(path: Path) -> None:
    async with opened(path) as store:
        lease = store.session._lease
        lease.lock.release(unlink=False)
        assert store._sessions.renew(lease) is None


async def test_a_session_is_opened_where_somebody_removed_the_directory_of_the_locks(path: Path) -> None:
    async with opened(path) as store:
        ended = store.session
        shutil.rmtree(path.with_name("meta.db-sessions"))
        await store._replace_session(ended)
        assert store.session is not ended
        await store.create("members/a", b"", ephemeral=True)


async def test_a_session_ends_although_its_lock_file_cannot_be_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    async with opened(path) as store, opened(path) as other, opened(path) as leaving:
        ended = store.session
        await store.create("members/a", b"", ephemeral=True)
        await leaving.create("members/b", b"", ephemeral=True)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refuse)
            ended._lease.lock.write_lease(0)
            async with other.watch("members") as watch:
                assert await other.children("members") == ["b"]
                await watch.wait()  # Its own reads have removed the node, so it is told.
            await store._replace_session(ended)
            assert leaving._sessions.end(leaving.session._lease) == ["members/b"]
        assert lock_of(path, ended._lease).exists()
        other._sessions.sweep()
        assert not lock_of(path, ended._lease).exists()


NOBODY = 65534


@pytest.fixture
def directory_of_nobody() -> Iterator[Path]:
    """A directory of another user than root."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, NOBODY, NOBODY)
        yield Path(directory)


@pytest.fixture
async def path_of_nobody(directory_of_nobody: Path) -> Path:
    """The metadata file of that user, who has opened it once."""
    path = directory_of_nobody / "meta.db"
    with as_nobody():
        async with opened(path):
            pass
    return path


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_what_root_makes_beside_the_file_of_another_user_belongs_to_that_user(
    path_of_nobody: Path,
) -> None:
    path = path_of_nobody
    shutil.rmtree(path.with_name("meta.db-sessions"))
    async with opened(path) as store:
        await store.create("members/root", b"", ephemeral=True)
        for made in (path.with_name("meta.db-sessions"), lock_of(path, store.session._lease)):
            assert (made.stat().st_uid, made.stat().st_gid) == (path.stat().st_uid, path.stat().st_gid)
        with as_nobody():
            async with opened(path) as other:
                assert await other.children("members") == ["root"]
                store.session._lease.lock.release(unlink=False)
                assert other._sessions.reap(throttled=False) == ["members/root"]


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


async def test_root_that_may_give_nothing_away_opens_the_file_of_another_user(
    path_of_nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of_nobody
    for is_made in (False, True):
        if is_made:
            shutil.rmtree(path.with_name("meta.db-sessions"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "chown", refuse)
            patch.setattr(os, "fchown", refuse)
            async with opened(path) as store:
                await store.create(f"members/{is_made}", b"", ephemeral=True)
                assert await store.children("members") == [f"{is_made}"]


async def test_the_owner_sees_the_end_of_a_session_of_root_that_may_give_nothing_away(
    path_of_nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of_nobody
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", refuse)
        async with opened(path) as store:
            await store.create("members/root", b"", ephemeral=True)
            with as_nobody():
                async with opened(path) as other:
                    assert await other.children("members") == ["root"]
                    store.session._lease.lock.release(unlink=False)
                    assert other._sessions.reap(throttled=False) == ["members/root"]


async def test_root_opens_a_file_whose_directory_of_sessions_is_a_link(path_of_nobody: Path) -> None:
    path = path_of_nobody
    directory = path.with_name("meta.db-sessions")
    with as_nobody():
        directory.rename(path.with_name("elsewhere"))
        directory.symlink_to(path.with_name("elsewhere"))
        async with opened(path):
            pass
    async with opened(path) as store:
        await store.create("members/root", b"", ephemeral=True)


async def test_root_gives_a_directory_to_its_owner_that_another_root_process_has_left(
    path_of_nobody: Path,
) -> None:
    path = path_of_nobody
    directory = path.with_name("meta.db-sessions")
    directory.rmdir()
    directory.mkdir(mode=0o700)
    async with opened(path):
        pass
    assert directory.stat().st_uid == NOBODY
    with as_nobody():
        async with opened(path):
            pass


async def test_root_gives_no_other_directory_away(path_of_nobody: Path) -> None:
    path = path_of_nobody
    directory = path.with_name("meta.db-sessions")
    directory.rmdir()
    directory.mkdir()
    (directory / "of root").touch()
    async with opened(path):
        assert directory.stat().st_uid == 0


async def test_a_lock_file_that_a_process_may_not_open_is_of_a_live_session(path_of_nobody: Path) -> None:
    path = path_of_nobody
    async with opened(path) as store:
        await store.create("members/root", b"", ephemeral=True)
        os.chown(lock_of(path, store.session._lease), 0, 0)
        with as_nobody():
            async with opened(path) as other:
                assert other._sessions.reap(throttled=False) == []
                assert await other.children("members") == ["root"]
