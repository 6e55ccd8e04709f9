"""Which processes that share a metadata file are alive: leases, lock files and reaping.

A session is a row in ``sessions`` and a file ``<db>-sessions/<session id>.lock``. Two things keep a session
alive. The session ends if it loses either of them:

* **The lease**: a time on the machine's boot-time clock, together with the boot id. All processes see the
  same clock. It continues while the machine sleeps, and it cannot be set, so it never jumps. The owner renews
  the lease at a third of the timeout. If a process was stopped for longer than its lease, the others treat it
  as dead. A reboot ends every session.
* **The lock**: the owner holds ``flock`` on the file for as long as it lives. The kernel drops the lock when
  the process dies for any reason. So if another process gets the lock, it knows at once that the owner is
  dead.

**The lease lies in the lock file**: eight bytes, little-endian. A renewal is one small write there. It syncs
nothing, takes no lock of the metadata file, and wakes no process that waits for changes. The row says with
``_IN_THE_FILE`` that the lease lies there, and how long it is. Version 0.1 kept the lease in the row, and
both versions may share a file: this one accepts a lease in a row. To version 0.1, the value in our rows is a
lease that does not run out; it still notices by the lock that the owner is dead.

**Expiry is strict.** A lease that has lapsed is never renewed, even if it is not reaped yet. Otherwise chance
would decide whether an owner that overslept has lost its session. The owner treats its session as alive only
until the end of the last lease that it knows to be written. Only after that can another process reap the
session because of its lease.

**Claims.** The owner looks at the clock and writes the new lease under a claim, a second lock on the lock
file. A process that ends the session because of its lease reads the lease under a claim too. So it never ends
a session whose owner has looked at the clock and is about to write. An owner that comes later finds that its
lease has lapsed, because all processes see the same clock.

**Reaping** is one ordinary transaction. It removes the session's nodes together with its row, and watchers
everywhere see the changes. The reaper checks the session again inside the transaction, because the owner may
have renewed the lease meanwhile. If the session is dead by its lock, the reaper holds that lock until it has
committed.

**Lock files and races.** The owner makes and locks its file before it inserts its row. So a row whose lock is
not held always means a dead owner. A file without a row is left over if a process died between these two
steps, or if a reaper died before it removed the file. Such files are swept when a store is opened. A sweeping
process may lock a new file before the file's owner does. The owner then finds the file locked, or finds that
the name no longer leads to the locked file. Then it starts again under another name. If the file of a live
session is removed, moved or emptied, the owner notices at the next renewal and opens a new session. If the
owner does not run, the other processes wait for the length of a lease, because the owner may treat the
session as alive for so long.

**Root and the owner of the file.** Root may open a store on another user's file, for example to look at it.
Then root's lock file, and the directory if root has made it, go to the owner of the metadata file, as SQLite
does with its log. Otherwise the owner's processes could not see whether root's session is alive. A lock file
that a process may not open counts as the file of a live session. Root in a container may not give files away:
then they stay root's, and others may read the lock file. The next root process that may do it gives a
directory of root's to the owner.

**Fork.** ``flock`` belongs to the open file, which a forked child shares: the child would keep the lock of a
dead parent. The descriptors are close-on-exec, and after a plain fork the child first closes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import struct
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import attrs

from ledgerlog.errors import MetadataError, MetadataUnavailable, SessionExpired
from ledgerlog.meta.sqlite_file import Busy, MetadataFile, damaged_file

logger = logging.getLogger(__name__)

NS = 1_000_000_000

REAP_INTERVAL_NS = NS // 10
"""A store checks the locks of the other sessions at most once in this time."""

REAP_PAUSE_NS = 5 * NS
"""An additional pause before the next try if dead sessions could not be removed."""

_IN_THE_FILE = 1 << 62
"""If ``lease_until_ns`` in a row is at least this, the lease lies in the lock file, and the rest is its
length. No clock shows so much: it is 146 years."""

_LEASE = struct.Struct("<q")
_FLOCK = struct.Struct("@hhqqi4x")
"""The kernel's ``struct flock`` on 64-bit Linux: type, whence, start, length, pid."""


def boot_clock_ns() -> int:
    """Return nanoseconds since the machine's boot, sleep included. All processes see the same clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_boot_id() -> str:
    """Return the id that the kernel made at this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class SessionLock:
    """A held lock file. ``release`` unlinks and releases it; if the process dies, the kernel releases it."""

    _held: ClassVar[weakref.WeakSet[SessionLock]] = weakref.WeakSet()

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        SessionLock._held.add(self)

    def release(self, *, unlink: bool = True) -> None:
        """Release the lock.

        The file is unlinked first and released second, so a lock file that can be locked never belongs to a
        live session.

        Args:
            unlink: Whether to remove the file. If that fails, the file stays until a store is opened.
        """
        if self._descriptor == -1:
            return
        if unlink:
            _unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = -1

    def write_lease(self, until_ns: int) -> None:
        """Write the end of the lease into the file. Call it under a claim."""
        lease = _LEASE.pack(until_ns)
        if os.pwrite(self._descriptor, lease, 0) != len(lease):
            raise OSError(errno.EIO, "a lease was written in part", os.fspath(self._path))

    def give_to_owner(self, of: str) -> None:
        """If this process is root, give the lock file to the owner of another file.

        If it may not do that, let others read the lock file. That is enough to see whether the session is
        alive.
        """
        if not _give_to_owner(self._descriptor, of):
            os.fchmod(self._descriptor, 0o644)

    def claimed(self) -> contextlib.AbstractContextManager[None]:
        """Claim the lease for the owner. Raises ``Busy`` while another process reads it under a claim."""
        return _claimed(self._descriptor, fcntl.F_WRLCK)

    @property
    def is_held(self) -> bool:
        """Whether ``release`` was not called yet."""
        return self._descriptor != -1

    @property
    def has_lease_in_place(self) -> bool:
        """Whether the name leads to the file, and the file holds a lease."""
        try:
            return _same_file(self._descriptor, self._path) and _read_lease(self._descriptor) is not None
        except FileNotFoundError:
            return False

    @classmethod
    def _drop_all_after_fork(cls) -> None:
        for lock in list(cls._held):
            # This closes only the child's descriptor. The parent keeps the lock, because its descriptor is
            # still open.
            lock.release(unlink=False)


os.register_at_fork(after_in_child=SessionLock._drop_all_after_fork)


def _try_lock(path: Path, *, create: bool) -> SessionLock | None:
    """Return the lock; None if the file does not exist, or if another process holds it or may hold it."""
    # Only the owner opens its file for writing. So a process that only tries a lock does not look like an
    # owner that dies (``sqlite_changes``).
    access = os.O_RDWR | os.O_CREAT | os.O_EXCL if create else os.O_RDONLY
    flags = access | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except (FileNotFoundError, PermissionError):
        if create:
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _same_file(descriptor, path):
            return SessionLock(path, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _unlink(path: Path) -> None:
    """Remove the lock file of a session that is over. If that fails, ``Sessions.sweep`` removes it later.

    Do not raise, because the caller must still report which nodes are gone.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("the lock file of an ended session stays: %s", error)


def _give_to_owner(descriptor: int, of: str) -> bool:
    """If this process is root, give an open file that root has made to the owner of the file ``of``.

    Do not raise if it may not do that (``CAP_CHOWN``), because then the file still serves this process.

    Returns:
        False if the file stays root's, although ``of`` has another owner.
    """
    if os.geteuid() != 0:
        return True
    owner, made = os.stat(of), os.fstat(descriptor)
    if made.st_uid != 0 or owner.st_uid == 0:
        return True
    try:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    except OSError as error:
        logger.warning(
            "what root makes for %s stays root's, because this process may not give files away: %s. If it "
            "leaves files of root behind, the owner cannot open the store until root, with CAP_CHOWN, has "
            "opened it once",
            of,
            error,
        )
        return False
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    ours, named = os.fstat(descriptor), os.stat(path, follow_symlinks=False)
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


@contextlib.contextmanager
def _claimed(descriptor: int, kind: int) -> Iterator[None]:
    """Hold a claim on a lease for the body: ``F_WRLCK`` by the owner, ``F_RDLCK`` by all others.

    The lock belongs to the open file, so it works between two stores of one process too. ``flock`` does not
    see it.

    Raises:
        Busy: Another process holds a claim.
        OSError: The file system has no such locks.
    """

    def lock(kind: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, _LEASE.size, 0))

    try:
        lock(kind)
    except BlockingIOError as held:
        raise Busy from held
    try:
        yield
    finally:
        lock(fcntl.F_UNLCK)


def _read_lease(descriptor: int) -> int | None:
    """Return the end of the lease; None if the file holds none."""
    content = os.pread(descriptor, _LEASE.size, 0)
    return _LEASE.unpack(content)[0] if len(content) == _LEASE.size else None


@attrs.frozen
class Lease:
    """A lease that is known to be written: the session lives until ``until_ns`` on the boot-time clock."""

    session_id: str
    until_ns: int
    lock: SessionLock


class Sessions:
    """The sessions of one metadata file, as one process sees them.

    The methods block. Use the object from one thread at a time.

    Args:
        file: The metadata file.
        timeout_ns: The length of a lease.
    """

    def __init__(self, file: MetadataFile, *, timeout_ns: int) -> None:
        self._file = file
        self._timeout_ns = timeout_ns
        self._directory = Path(file.path + "-sessions")
        self._boot_id = read_boot_id()
        self._reaped_at_ns = 0
        self._missed_since_ns: dict[str, int] = {}
        """For each live session whose lock file has no lease or is missing, the time when this was
        noticed."""
        with _os_translated(self._directory):
            self._make_directory()

    @property
    def directory(self) -> Path:
        """The directory of the lock files."""
        return self._directory

    # --- the owner -------------------------------------------------------------------------------

    def open(self) -> Lease:
        """Open a new session.

        Raises:
            Busy, MetadataUnavailable: No session was opened.
        """
        lock = None
        while lock is None:
            session_id = secrets.token_hex(8)
            with _os_translated(self._directory):
                self._make_directory()
                lock = _try_lock(self._path_of(session_id), create=True)
        try:
            with _os_translated(self._directory), lock.claimed():
                lock.give_to_owner(self._file.path)
                until_ns = boot_clock_ns() + self._timeout_ns
                lock.write_lease(until_ns)
            with self._file.writing():
                self._file.execute(
                    "INSERT INTO sessions (session_id, pid, boot_id, lease_until_ns) VALUES (?, ?, ?, ?)",
                    (session_id, os.getpid(), self._boot_id, _IN_THE_FILE + self._timeout_ns),
                )
        except BaseException:
            lock.release()
            raise
        return Lease(session_id, until_ns, lock)

    def renew(self, lease: Lease) -> Lease | None:
        """Return the lease with a later end; None if the session is over.

        Raises:
            Busy: Another process reads the lease, or holds the metadata file.
        """
        # If another file has replaced the file of the session, the session has ended.
        if not lease.lock.is_held:
            return None
        with _os_translated(self._directory), lease.lock.claimed():
            with self._file.reading():
                is_listed = self._is_alive(lease.session_id)
            now_ns = boot_clock_ns()
            if not is_listed or lease.until_ns <= now_ns or not lease.lock.has_lease_in_place:
                return None
            until_ns = now_ns + self._timeout_ns
            lease.lock.write_lease(until_ns)
        return attrs.evolve(lease, until_ns=until_ns)

    def require(self, session_id: str) -> None:
        """Raise ``SessionExpired`` unless the session is alive. Call it inside a transaction."""
        if not self._is_alive(session_id):
            raise SessionExpired(f"metadata session {session_id} is over; its ephemeral nodes are gone")

    def end(self, lease: Lease) -> list[str]:
        """End a session of ours, alive or not, and return the paths of the removed nodes."""
        with self._file.writing():
            gone = self._remove(lease.session_id)
        lease.lock.release()
        return gone

    # --- every process ---------------------------------------------------------------------------

    def reap(self, *, throttled: bool = True) -> list[str]:
        """End the sessions of dead processes.

        If another process is writing now, or if no write is possible, the dead sessions stay until a later
        call. All nodes can still be read.

        Args:
            throttled: Whether to do nothing if the last check is less than ``REAP_INTERVAL_NS`` ago.

        Returns:
            The paths of the nodes that were removed. If the commit failed, the nodes may be gone, so they are
            listed too.
        """
        now = boot_clock_ns()
        if throttled and now - self._reaped_at_ns < REAP_INTERVAL_NS:
            return []
        self._reaped_at_ns = now
        with self._file.reading():
            rows = self._file.execute("SELECT session_id, boot_id, lease_until_ns FROM sessions").fetchall()
        listed = {session_id for session_id, _, _ in rows}
        self._missed_since_ns = {
            session_id: since for session_id, since in self._missed_since_ns.items() if session_id in listed
        }
        locks: dict[str, SessionLock] = {}
        suspects = []
        try:
            for session_id, boot_id, until_ns in rows:
                with _os_translated(self._directory):
                    lock = _try_lock(self._path_of(session_id), create=False)
                if lock is not None:
                    locks[session_id] = lock
                if lock is not None or not self._is_current(session_id, boot_id, until_ns):
                    suspects.append(session_id)
            return self._remove_dead(suspects, locks) if suspects else []
        except Busy:
            return []
        finally:
            for lock in locks.values():
                # Close the file, but leave it in place, because its row may still exist. A later call finds
                # it again.
                lock.release(unlink=False)

    def _remove_dead(self, suspects: list[str], locks: dict[str, SessionLock]) -> list[str]:
        gone: list[str] = []
        over = []
        try:
            with self._file.writing():
                for session_id in suspects:
                    if session_id in locks or self._is_over(session_id):
                        gone += self._remove(session_id)
                        over.append(session_id)
        except MetadataError as failure:
            logger.warning("metadata sessions that are over cannot be removed now: %s", failure)
            self._reaped_at_ns = boot_clock_ns() + REAP_PAUSE_NS
            return gone
        for session_id in over:
            _unlink(self._path_of(session_id))
        return gone

    def _is_over(self, session_id: str) -> bool:
        try:
            return not self._is_alive(session_id, is_claimed=True)
        except Busy:
            return False  # Its owner is renewing the lease.

    def sweep(self) -> None:
        """Remove lock files that belong to no session."""
        with self._file.reading():
            rows = self._file.execute("SELECT session_id FROM sessions").fetchall()
        known = {f"{session_id}.lock" for (session_id,) in rows}
        with _os_translated(self._directory):
            for path in sorted(self._directory.glob("*.lock")):
                if path.name not in known:
                    lock = _try_lock(path, create=False)
                    if lock is not None:
                        lock.release()

    def _make_directory(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        if os.geteuid() != 0:
            return
        # A root process may have died after it made the directory. Give away no other directory of root's
        # that somebody has moved here.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._directory, flags)
        except NotADirectoryError:
            return  # It is a link to a directory.
        try:
            if all(name.endswith(".lock") for name in os.listdir(descriptor)):
                _give_to_owner(descriptor, self._file.path)
        finally:
            os.close(descriptor)

    def _path_of(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.lock"

    def _is_alive(self, session_id: str, *, is_claimed: bool = False) -> bool:
        row = self._file.execute(
            "SELECT boot_id, lease_until_ns FROM sessions WHERE session_id = ?", (session_id,)
        ).fetchone()
        return row is not None and self._is_current(session_id, *row, is_claimed=is_claimed)

    def _is_current(self, session_id: str, boot_id: str, until_ns: int, *, is_claimed: bool = False) -> bool:
        if not isinstance(until_ns, int):
            raise damaged_file(self._file.path, None, "a session's lease is not a number")
        if boot_id != self._boot_id:
            return False
        if until_ns < _IN_THE_FILE:  # As version 0.1 writes it.
            return until_ns > boot_clock_ns()
        in_the_file = self._lease_in_file(session_id, is_claimed=is_claimed)
        now_ns = boot_clock_ns()
        if in_the_file is None:
            return now_ns < self._missed_since_ns.setdefault(session_id, now_ns) + until_ns - _IN_THE_FILE
        self._missed_since_ns.pop(session_id, None)
        return in_the_file > now_ns

    def _lease_in_file(self, session_id: str, *, is_claimed: bool) -> int | None:
        """Return the end of the lease in the session's lock file; None if the file is gone or holds none.

        If this process may not open the file, return an end that no clock reaches.
        """
        with _os_translated(self._directory), contextlib.ExitStack() as opened:
            try:
                descriptor = os.open(self._path_of(session_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            except PermissionError:
                return _IN_THE_FILE
            opened.callback(os.close, descriptor)
            if is_claimed:
                opened.enter_context(_claimed(descriptor, fcntl.F_RDLCK))
            return _read_lease(descriptor)

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
