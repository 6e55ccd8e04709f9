"""Who is alive among the processes that share a metadata file: leases, locks and the reaping.

A session is a row in ``sessions`` and a file ``<db>-sessions/<session id>.lock``. Two things keep it
alive, and losing either ends it:

* **The lease**: ``lease_until_ns`` on the machine's boot-time clock, together with the boot id. That
  clock is the same for all processes, runs on while the machine sleeps, and is set by nobody, so it
  cannot jump. The owner renews at a third of the timeout. A process that was stopped for longer than
  its lease is dead to the others, and a reboot ends every session.
* **The lock**: the owner holds ``flock`` on the file for as long as it lives. The kernel drops it when
  the process dies, however it dies, so anybody who gets the lock knows at once.

**Expiry is strict.** A lease that has lapsed is never renewed, even where nobody has reaped it yet:
whether an owner that overslept has lost its session must not depend on who looked first. The owner,
for its part, believes in its session only up to the end of the last lease that it knows to be
written. So at every instant at most one side believes: if somebody reaped, the owner's belief had
ended already.

**Reaping** is one ordinary transaction: the session's nodes and its row go together, and the changes
are seen by watchers everywhere. It looks at the row again inside the transaction, since the owner may
have renewed in between, and holds the dead session's lock until it has committed.

**Lock files and races.** The owner makes and locks its file before it inserts its row, so a row
without a held lock always means death. Files without a row (of a process that died in between, or of
a reaper that died before unlinking) are swept when a store is opened. A sweeper can grab a file
between its creation and its locking; the owner then finds it locked, or finds that the name no longer
leads to what it has locked, and starts again under another name. A row whose file somebody has
removed by hand is judged by its lease alone.

**Fork.** ``flock`` belongs to the open file, which a forked child shares: it would keep a dead
parent's lock. Descriptors are close-on-exec, and a child of a plain fork closes them first thing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import attrs

from ledgerlog.errors import MetadataError, MetadataUnavailable, SessionExpired, StorageCorrupt
from ledgerlog.meta.sqlite_file import Busy, MetadataFile

logger = logging.getLogger(__name__)

NS = 1_000_000_000

REAP_INTERVAL_NS = NS // 10
"""Between two looks at the other sessions' locks by one store."""

REAP_PAUSE_NS = 5 * NS
"""After the dead could not be taken away, besides."""


def boot_clock_ns() -> int:
    """Nanoseconds since the machine's boot, sleep included: one clock for all processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class SessionLock:
    """A held lock file. Unlinked and released by ``release``, released by the kernel at death."""

    _held: ClassVar[weakref.WeakSet[SessionLock]] = weakref.WeakSet()

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        SessionLock._held.add(self)

    def release(self, *, unlink: bool = True) -> None:
        """Unlink first, release second: a name that can be locked never names a live session."""
        if self._descriptor == -1:
            return
        if unlink:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    @classmethod
    def _drop_all_after_fork(cls) -> None:
        for lock in list(cls._held):
            # The lock itself stays with the parent, whose descriptor is still open.
            lock.release(unlink=False)


os.register_at_fork(after_in_child=SessionLock._drop_all_after_fork)


def _try_lock(path: Path, *, create: bool) -> SessionLock | None:
    """The lock, or None where somebody holds it or the file is not (or no longer) there."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        if create:
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours, named = os.fstat(descriptor), os.stat(path)
        if (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino):
            return SessionLock(path, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


@attrs.frozen
class Lease:
    """What its owner knows of a session: it is alive until ``until_ns`` on the boot-time clock."""

    session_id: str
    until_ns: int
    lock: SessionLock


class Sessions:
    """The sessions of one metadata file, as one process sees them. Blocking, one thread at a time."""

    def __init__(self, file: MetadataFile, *, timeout_ns: int) -> None:
        self._file = file
        self._timeout_ns = timeout_ns
        self._directory = Path(file.path + "-sessions")
        self._boot_id = read_boot_id()
        self._reaped_at_ns = 0
        with _os_translated(self._directory):
            self._directory.mkdir(mode=0o700, exist_ok=True)

    # --- the owner -------------------------------------------------------------------------------

    def open(self) -> Lease:
        """A new session. ``Busy``, ``MetadataUnavailable``: there is none."""
        lock = None
        while lock is None:
            session_id = secrets.token_hex(8)
            with _os_translated(self._directory):
                lock = _try_lock(self._directory / f"{session_id}.lock", create=True)
        try:
            until_ns = boot_clock_ns() + self._timeout_ns
            with self._file.writing():
                self._file.execute(
                    "INSERT INTO sessions (session_id, pid, boot_id, lease_until_ns) VALUES (?, ?, ?, ?)",
                    (session_id, os.getpid(), self._boot_id, until_ns),
                )
        except BaseException:
            lock.release()
            raise
        return Lease(session_id, until_ns, lock)

    def renew(self, lease: Lease) -> Lease | None:
        """The lease with a later end, or None: the session is over."""
        with self._file.writing():
            if not self._is_alive(lease.session_id):
                return None
            until_ns = boot_clock_ns() + self._timeout_ns
            self._file.execute(
                "UPDATE sessions SET lease_until_ns = ? WHERE session_id = ?", (until_ns, lease.session_id)
            )
        return attrs.evolve(lease, until_ns=until_ns)

    def require(self, session_id: str) -> None:
        """``SessionExpired`` unless the session is alive; inside a transaction of the caller."""
        if not self._is_alive(session_id):
            raise SessionExpired(f"metadata session {session_id} is over; its ephemeral nodes are gone")

    def end(self, lease: Lease) -> list[str]:
        """End a session of ours, alive or not; the paths of the nodes that went with it."""
        with self._file.writing():
            gone = self._remove(lease.session_id)
        lease.lock.release()
        return gone

    # --- everybody -------------------------------------------------------------------------------

    def reap(self, *, throttled: bool = True) -> list[str]:
        """End the sessions of the dead; the paths of the nodes that went with them.

        Throttled, it looks at most once in ``REAP_INTERVAL_NS``. Where another process is writing
        just now, or nothing can be written at all, it leaves the dead for a later look: what else
        there is can be read. After a commit that failed their nodes may be gone, and are named."""
        now = boot_clock_ns()
        if throttled and now - self._reaped_at_ns < REAP_INTERVAL_NS:
            return []
        self._reaped_at_ns = now
        with self._file.reading():
            rows = self._file.execute("SELECT session_id, boot_id, lease_until_ns FROM sessions").fetchall()
        locks: dict[str, SessionLock] = {}
        suspects = []
        try:
            for session_id, boot_id, until_ns in rows:
                with _os_translated(self._directory):
                    lock = _try_lock(self._directory / f"{session_id}.lock", create=False)
                if lock is not None:
                    locks[session_id] = lock
                if lock is not None or not self._is_current(boot_id, until_ns, now):
                    suspects.append(session_id)
            return self._remove_dead(suspects, locks) if suspects else []
        except Busy:
            return []
        finally:
            for lock in locks.values():
                # No more than closed where the row may still be there: the next look takes it up.
                lock.release(unlink=False)

    def _remove_dead(self, suspects: list[str], locks: dict[str, SessionLock]) -> list[str]:
        gone: list[str] = []
        over = []
        try:
            with self._file.writing():
                for session_id in suspects:
                    if session_id in locks or not self._is_alive(session_id):
                        gone += self._remove(session_id)
                        over.append(session_id)
        except MetadataError as failure:
            logger.warning("metadata sessions that are over stay for now: %s", failure)
            self._reaped_at_ns = boot_clock_ns() + REAP_PAUSE_NS
            return gone
        for session_id in over:
            with _os_translated(self._directory), contextlib.suppress(FileNotFoundError):
                (self._directory / f"{session_id}.lock").unlink()
        return gone

    def sweep(self) -> None:
        """Unlink lock files that belong to no session."""
        with self._file.reading():
            rows = self._file.execute("SELECT session_id FROM sessions").fetchall()
        known = {f"{session_id}.lock" for (session_id,) in rows}
        with _os_translated(self._directory):
            for path in sorted(self._directory.glob("*.lock")):
                if path.name not in known:
                    lock = _try_lock(path, create=False)
                    if lock is not None:
                        lock.release()

    def _is_alive(self, session_id: str) -> bool:
        row = self._file.execute(
            "SELECT boot_id, lease_until_ns FROM sessions WHERE session_id = ?", (session_id,)
        ).fetchone()
        return row is not None and self._is_current(row[0], row[1], boot_clock_ns())

    def _is_current(self, boot_id: str, until_ns: int, now_ns: int) -> bool:
        if not isinstance(until_ns, int):
            raise StorageCorrupt(self._file.path, None, "a session's lease is not a number")
        return boot_id == self._boot_id and until_ns > now_ns

    def _remove(self, session_id: str) -> list[str]:
        rows = self._file.execute(
            "SELECT path FROM nodes WHERE session_id = ? ORDER BY path", (session_id,)
        ).fetchall()
        for (path,) in rows:
            self._file.remove(path)
        self._file.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
        self._file.trim_changes()
        return [path for (path,) in rows]


@contextlib.contextmanager
def _os_translated(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MetadataUnavailable(f"cannot keep session locks in {directory}: {error}") from error
