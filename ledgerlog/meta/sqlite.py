"""Metadata in a SQLite file that the processes of one machine share: the trio half.

``sqlite_file`` owns the file itself, and ``sqlite_sessions`` knows which processes are alive. This module
owns the waiting: one hop into a worker thread for each operation, deadlines, the background tasks, watches,
and the session as its owner sees it.

**Hops.** Only ``_Worker.run`` uses the connection, in one thread at a time. A hop that has started always
runs to its end, even if its caller is cancelled. So a write is applied or not, never half of it, and its
changes are always announced to the watches. If another process holds the write lock, the hop gives up after a
tenth of a second and the task tries again. Between two attempts you can cancel the task, and other operations
of this process get their turn. At the deadline the operation raises ``MetadataUnavailable``. No deadline can
interrupt a disk that hangs inside a sync.

**Background tasks** run in a nursery of the context manager. Ordinary faults do not end them:

* *keeping the session*: renew it at a third of the timeout, reap dead sessions, and open a new session if the
  old one is over;
* *watching the lease*: wake the tasks that wait on a session if its lease has run out without renewal;
* *following*: while a watch is open, look whether another process has committed or died, when the kernel
  hints at it (``sqlite_changes``), and every ``LOOK_INTERVAL_S`` without a hint.

**Watches.** Our own writes mark watches directly. For writes of other processes, the follower compares
``PRAGMA data_version``, and asks the file which paths changed after the last revision that it saw. The
follower reads that revision when the store is opened, and moves it only when it announces the changes. So a
watch wakes after every change since its opening. If the follower cannot read, it marks every watch: the
waiting task reads again, and gets the error from its own call.

**A replaced file.** Later the name may lead to another file than the open one. If the new file belongs to the
same cluster, and is not an older state of it, it is opened in place of the old file (``_adopt``); otherwise
it is refused (``belonging``). The old file stays open until a new file is accepted. So if the old file is
moved back, the store simply uses it again. If the old file's write-ahead log still lies beside the new file,
the new file is not opened: SQLite would read the log into the new file.

**The session's state** is computed from the clock whenever it is read. A process that was stopped therefore
sees SUSPENDED at once, before any of its tasks has run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from ledgerlog import limits
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import (
    ClusterNotFound,
    InvalidArgument,
    LedgerLogError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
    StorageError,
    WrongCluster,
)
from ledgerlog.meta.arguments import check_operations, check_path
from ledgerlog.meta.backup import COUNTERS
from ledgerlog.meta.backup_file import BackupWriter
from ledgerlog.meta.bases import SessionBase, SingleWrites
from ledgerlog.meta.belonging import Belonging, check_cluster
from ledgerlog.meta.settle import on_lost_answer
from ledgerlog.meta.sqlite_changes import Hint, Hints, open_hints
from ledgerlog.meta.sqlite_file import Busy, Displaced, MetadataFile, open_metadata_file, read_snapshot
from ledgerlog.meta.sqlite_sessions import NS, Lease, Sessions, boot_clock_ns
from ledgerlog.meta.store import Create, Operation, SessionState, Versioned, Watch
from ledgerlog.meta.watches import WatchSet
from ledgerlog.model.layout import CLUSTER, is_lasting

__all__ = ["SqliteSession", "SqliteStore", "open_sqlite_store", "save_sqlite"]

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""The longest pause between two looks for changes of other processes, while a watch is open."""

FIRST_PAUSE_S = 0.002
"""The pause between a hint and the look, because a commit can be seen only a moment after its write."""

PAUSE_FACTOR = 4
"""After a hint, the delay of each look is this many times the delay of the look before, up to
``LOOK_INTERVAL_S``. So if a change can be seen t seconds after its hint, the store sees it after at most this
many times t seconds."""

POLL_INTERVAL_S = 0.02
"""The pause between two looks if the kernel gives no hints."""

RETRY_S = 0.005
"""Pause between two attempts at a lock that another process holds. Each attempt also waits inside SQLite."""

REFUSED_PAUSE_S = 1.0
"""If another file lies in place of ours and was refused, the pause before it is opened again."""

FAULT_PAUSE_S = 0.2
"""Pause of a background task after a fault, before it tries again."""

T = TypeVar("T")
E = TypeVar("E", bound=LedgerLogError)


def open_sqlite_store(
    path: str | os.PathLike[str],
    *,
    session_timeout_s: float = limits.SESSION_TIMEOUT_S,
    create: bool = True,
) -> AbstractAsyncContextManager[SqliteStore]:
    """Open a store on the SQLite file at ``path`` for the body of the ``async with``.

    All processes that share the file must be on one machine, and the file must be on a local file system.
    Leaving the body ends the session and removes its ephemeral nodes.

    Args:
        path: The file.
        session_timeout_s: How many seconds a process may be stopped before the others give its session up;
            above 0, at most ``limits.SESSION_TIMEOUT_MAX_S``. A process that dies is noticed at once.
        create: Whether to make the file (mode 0600) and its directory (mode 0700) if they do not exist.

    Raises:
        InvalidArgument: ``session_timeout_s`` is out of range.
        ClusterNotFound: There is no file, and ``create`` is false.
        StorageCorrupt: The file is damaged, or is not a metadata file.
        IncompatibleVersion: A newer version of the program has written the file.
        MetadataUnavailable: The file system refuses, or another process holds the lock of the file for longer
            than ``limits.METADATA_TIMEOUT_S``.
    """
    longest = limits.SESSION_TIMEOUT_MAX_S
    if not 0 < session_timeout_s <= longest:
        raise InvalidArgument(
            f"session_timeout_s must be above 0 and at most {longest:g}, not {session_timeout_s}"
        )
    return _open(os.path.realpath(path), int(session_timeout_s * NS), create)


@asynccontextmanager
async def _open(path: str, timeout_ns: int, create: bool) -> AsyncIterator[SqliteStore]:
    worker, belonging = _Worker(path), Belonging(path)
    opened = await worker.run(partial(_open_file, path, belonging, timeout_ns, create=create))
    store = SqliteStore(worker, belonging, timeout_ns, opened)
    try:
        async with open_serving_nursery() as nursery:
            nursery.start_soon(store._keep_session, timeout_ns / NS / 3)
            nursery.start_soon(store._watch_lease, timeout_ns / NS / 3)
            nursery.start_soon(store._follow)
            yield store
    finally:
        await store._close()


@attrs.frozen
class _Opened:
    """An open file, with a session of ours."""

    file: MetadataFile
    sessions: Sessions
    lease: Lease
    data_version: int
    seen_revision: int
    hints: Hints | None
    """None if the kernel gives no hints."""


def _open_file(path: str, belonging: Belonging, timeout_ns: int, *, create: bool) -> _Opened:
    """Open the file and a session on it. Runs in the worker thread."""
    file = open_metadata_file(path, belonging, create=create)
    hints = None
    try:
        file.refresh()
        sessions = Sessions(file, timeout_ns=timeout_ns)
        # Begin with the hints: if a change is not in the data that is read now, there will be a hint of it.
        hints = open_hints(path, sessions.directory)
        # Keep this order. If another process commits between the two reads, the follower reads one time too
        # many. In the other order, it would miss the commit.
        data_version = file.data_version()
        seen = file.newest_revision()
        sessions.sweep()
        lease = sessions.open()
        file.remember_log()
        return _Opened(file, sessions, lease, data_version, seen, hints)
    except BaseException:
        if hints is not None:
            hints.close()
        file.close()
        raise


def save_sqlite(path: str, writer: BackupWriter, *, made_ms: int) -> None:
    """Write the state of a metadata file at one instant into a backup file. Call it in a thread.

    Args:
        path: The metadata file.
        writer: The backup.
        made_ms: Wall clock, in milliseconds since 1970.

    Raises:
        ClusterNotFound: There is no file, or no cluster in it.
        WrongCluster: The store is being restored.
        StorageCorrupt, MetadataUnavailable: As for ``open_sqlite_store``.
    """
    if not os.path.exists(path):
        raise ClusterNotFound(f"there is no file {path}")
    counters = dict.fromkeys(COUNTERS, -1)
    is_begun = False
    # The head of the backup names the cluster, but the nodes come by path. So find "cluster" in a first pass.
    for wanted in (True, False):
        for name, content in read_snapshot(path):
            if isinstance(content, int):
                counters[name] = content
            elif wanted and name == CLUSTER:
                writer.begin(check_cluster(content), made_ms)
                is_begun = True
                break
            elif not wanted and is_lasting(name):
                writer.node(name, content)
        if not is_begun:
            raise ClusterNotFound("the metadata store has no cluster in it")
    writer.end(counters)


class _Worker:
    """The worker thread, with retries and the deadline."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._limiter = trio.CapacityLimiter(1)
        self._process = os.getpid()

    async def run(self, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run ``work`` in the thread, again and again while it raises ``Busy``.

        Cancelling: it takes effect only between attempts.
        """
        if os.getpid() != self._process:
            raise MetadataUnavailable(f"{self.path} was opened before a fork; open it again in the child")
        if timeout_s is None:
            timeout_s = limits.METADATA_TIMEOUT_S
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    return await trio.to_thread.run_sync(work, limiter=self._limiter)
                except Busy:
                    await trio.sleep(RETRY_S)
        raise MetadataUnavailable(
            f"{self.path}: another process has held the lock for {timeout_s:g} s; nothing happened"
        )


class SqliteSession(SessionBase):
    """A session with the file (``store.MetadataSession``)."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def __repr__(self) -> str:
        return f"<SqliteSession {self.session_id} {self.state.value}>"

    @property
    def session_id(self) -> str:
        """The session's name; its lock file is named after it."""
        return self._lease.session_id

    @property
    def state(self) -> SessionState:
        """The present state: CONNECTED exactly while the last lease that is known to be written has not run
        out."""
        if self._state is SessionState.CONNECTED and boot_clock_ns() >= self._lease.until_ns:
            return SessionState.SUSPENDED
        return self._state

    def _become(self, state: SessionState) -> None:
        assert self._state is not SessionState.LOST or state is SessionState.LOST
        if state is not self._state:
            logger.info("metadata session=%s state=%s", self.session_id, state.value)
        self._change(state)

    def _renewed(self, lease: Lease) -> None:
        before = self.state
        self._lease = lease
        if before is SessionState.SUSPENDED:
            self._become(SessionState.CONNECTED)

    def _lease_left_s(self) -> float:
        return (self._lease.until_ns - boot_clock_ns()) / NS


class SqliteStore(SingleWrites):
    """The metadata capability (``store.MetadataStore``) on a SQLite file; see ``open_sqlite_store``.

    Versions are revisions of the whole file. No two writes ever have the same version, even if a node is
    deleted and created again.

    Cancelling: a call that waits has changed nothing. A call that has reached the thread finishes and
    returns; the cancellation comes at the caller's next checkpoint.
    """

    def __init__(
        self,
        worker: _Worker,
        belonging: Belonging,
        timeout_ns: int,
        opened: _Opened,
    ) -> None:
        self._worker = worker
        self._belonging = belonging
        self._timeout_ns = timeout_ns
        self._replacing = trio.Lock()
        self._adopting = trio.Lock()
        self._refusal: LedgerLogError | None = None
        """Why another file in place of ours could not be opened."""
        self._refused_until = 0.0
        """It is not opened again before this time."""
        self._was_refused = False
        """Whether a call was refused since the watches were last marked."""
        self._watches = WatchSet()
        self._use(opened)
        self._closed = False

    def _use(self, opened: _Opened) -> None:
        self._file = opened.file
        self._sessions = opened.sessions
        self._session = SqliteSession(opened.lease)
        self._data_version = opened.data_version
        self._seen_revision = opened.seen_revision
        self._hints = opened.hints

    # --- the capability --------------------------------------------------------------------------

    @property
    def session(self) -> SqliteSession:
        """The current session. It is LOST only until a new one can be opened."""
        return self._session

    @property
    def cluster(self) -> str | None:
        return self._belonging.cluster

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        self._belonging.belong_to(cluster, through_restores=through_restores)

    async def get(self, path: str) -> Versioned | None:
        check_path(path)

        def work(changed: list[str]) -> Versioned | None:
            found, owner = self._file.get(path)
            if owner is not None:
                changed += self._sessions.reap()
                if path in changed:
                    found, _ = self._file.get(path)
            return found

        return await self._run(work)

    async def children(self, path: str) -> list[str]:
        check_path(path)

        def work(changed: list[str]) -> list[str]:
            changed += self._sessions.reap()
            return self._file.children(path)

        return await self._run(work)

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        operations = list(operations)
        check_operations(operations)
        # Take the session that the store had when it was called. If that session ends meanwhile, the new
        # session must not own the ephemeral node: the caller knows only the old one.
        session = self._session
        ephemeral = any(isinstance(operation, Create) and operation.ephemeral for operation in operations)

        def work(changed: list[str]) -> list[int]:
            if ephemeral:
                # Reap first. A restarted process then finds that the registration of its predecessor is gone.
                changed += self._sessions.reap()
            with self._file.writing():
                versions = self._file.apply(operations, session.session_id, self._sessions.require)
            changed += [operation.path for operation in operations]
            return versions

        try:
            return await self._run(work)
        except SessionExpired:
            await self._replace_session(session)
            raise

    async def next_id(self, counter: str) -> int:
        check_path(counter)

        def work(changed: list[str]) -> int:
            with self._file.writing():
                return self._file.next_id(counter)

        return await self._run(work)

    async def highest_id(self, counter: str) -> int:
        check_path(counter)
        return await self._run(lambda changed: self._file.highest_id(counter))

    async def skip_ids(self, counter: str, through: int) -> None:
        check_path(counter)

        def work(changed: list[str]) -> None:
            with self._file.writing():
                self._file.skip_ids(counter, through)

        await self._run(work)

    async def sync(self) -> None:
        # Every read begins a new snapshot, which holds all finished commits. So this only has to check
        # whether the file itself was replaced or overwritten.
        await self._run(lambda changed: self._file.refresh())

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        return self._watches.open(path)

    # --- the thread ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataUnavailable(f"the metadata store on {self._worker.path} is closed")

    async def _run(self, work: Callable[[list[str]], T], *, timeout_s: float | None = None) -> T:
        """Run ``work`` in the thread, on the file that the path leads to, if that file is ours.

        ``work`` gets a list, and appends the paths whose changes it has committed. These paths are announced
        to the watches even if ``work`` raises.
        """
        changed: list[str] = []

        def work_in_place() -> T:
            self._file.require_in_place()
            return work(changed)

        try:
            with on_lost_answer(self._watches.changed_somewhere):
                while True:
                    self._check_open()
                    file = self._file  # If it is displaced, another call may adopt a new one meanwhile.
                    try:
                        return await self._worker.run(work_in_place, timeout_s=timeout_s)
                    except Displaced as displaced:
                        await self._adopt(file, displaced)
        except WrongCluster:
            self._was_refused = True
            raise
        finally:
            if changed:
                self._watches.changed(changed)

    async def _adopt(self, displaced: MetadataFile, why: Displaced) -> None:
        """Open the file that replaced a displaced one, and continue with it in a new session.

        Raises:
            MetadataUnavailable: The file cannot be opened now; nothing was done. A later call tries again.
            WrongCluster: The file belongs to another cluster; a kind of MetadataUnavailable.
        """

        def open_again() -> _Opened:
            if displaced.owns_log():
                raise Displaced(f"{why.why}, and the former file's {displaced.path}-wal is still there")
            return _open_file(displaced.path, self._belonging, self._timeout_ns, create=False)

        async with self._adopting:
            if self._file is not displaced or self._closed:
                return
            if self.cluster is None:
                raise self._belonging.refuse(why.why)
            if self._refusal is not None and trio.current_time() < self._refused_until:
                raise fresh(self._refusal)
            try:
                opened = await self._worker.run(open_again)
            except Displaced as mixed:
                raise self._belonging.refuse(mixed.why) from None
            except ClusterNotFound:
                raise self._belonging.refuse(why.why) from None
            except StorageError as damage:
                # For example, the file is just being copied to this place, and its end is still missing.
                refusal = self._belonging.refuse(f"{why.why}; it cannot be opened: {damage}")
                raise self._put_off(refusal) from damage
            except LedgerLogError as failure:
                if isinstance(failure, MetadataOutcomeUnknown):  # Only the new session is in doubt.
                    unavailable = MetadataUnavailable(f"{displaced.path} cannot be opened now: {failure}")
                    raise self._put_off(unavailable) from failure
                self._put_off(failure)
                raise
            ended = self._session
            self._close_hints()
            self._use(opened)
            ended._become(SessionState.LOST)
            self._watches.changed_somewhere()
            logger.warning(
                "metadata session=%s follows session=%s: file=%s was replaced by another of cluster=%s",
                self._session.session_id,
                ended.session_id,
                displaced.path,
                self.cluster,
            )

            def close() -> None:
                ended._lease.lock.release()
                displaced.close()

            with trio.CancelScope(shield=True):
                await self._worker.run(close)

    def _put_off(self, failure: E) -> E:
        """Return ``failure``. For a while every call raises it: the call that tries to open the file must not
        be the only one that learns of a restore."""
        self._refusal, self._refused_until = failure, trio.current_time() + REFUSED_PAUSE_S
        return failure

    async def _close(self) -> None:
        """End the session, if that is possible within the deadline, and close the file.

        This is shielded from cancellation. If the end of the session cannot be written now, the other
        processes notice it by the lock.
        """
        self._closed = True

        def close() -> None:
            try:
                self._sessions.end(self._session._lease)
            except (Busy, LedgerLogError) as error:
                logger.warning(
                    "metadata session=%s was not ended, and will be reaped: %s",
                    self._session.session_id,
                    error,
                )
            finally:
                self._session._lease.lock.release(unlink=False)
                self._file.close()

        # If a session or a file is being opened now, wait for the lock. Then the new one is closed too.
        with trio.CancelScope(shield=True):
            async with self._replacing, self._adopting:
                self._close_hints()
                # Make one attempt, of bounded length, and never skip it: the descriptors must be closed.
                await trio.to_thread.run_sync(close, limiter=self._worker._limiter)
        self._session._become(SessionState.LOST)

    # --- background ------------------------------------------------------------------------------

    async def _replace_session(self, ended: SqliteSession) -> None:
        """Mark ``ended`` as LOST and open a new session.

        If this is not possible now, the task that keeps the session opens one later.
        """
        ended._become(SessionState.LOST)
        async with self._replacing:
            if self._session is not ended:
                return

            sessions = self._sessions

            def work(changed: list[str]) -> Lease:
                if self._sessions is not sessions:
                    raise MetadataUnavailable("the file was replaced, and with it the session")
                changed += sessions.end(ended._lease)
                return sessions.open()

            try:
                lease = await self._run(work)
            except LedgerLogError as error:
                if not isinstance(error, WrongCluster):
                    logger.warning("no new metadata session yet: %s", error)
                return
            self._session = SqliteSession(lease)
            logger.info("metadata session=%s follows session=%s", lease.session_id, ended.session_id)

    async def _keep_session(self, period_s: float) -> None:
        while True:
            await trio.sleep(period_s)
            session = self._session
            if session.state is SessionState.LOST:
                await self._replace_session(session)
                continue
            try:
                lease = await self._run(partial(self._renew, session), timeout_s=period_s)
                if lease is None:
                    await self._replace_session(session)
                else:
                    session._renewed(lease)
                await self._run(self._reap, timeout_s=period_s)
            except LedgerLogError as error:
                if not isinstance(error, WrongCluster):  # WrongCluster is logged already.
                    logger.warning("metadata session=%s not kept: %s", session.session_id, error)
                await trio.sleep(min(period_s, FAULT_PAUSE_S))

    def _renew(self, session: SqliteSession, changed: list[str]) -> Lease | None:
        return self._sessions.renew(session._lease)

    def _reap(self, changed: list[str]) -> None:
        changed += self._sessions.reap(throttled=False)

    async def _watch_lease(self, period_s: float) -> None:
        while True:
            session = self._session
            left_s = session._lease_left_s()
            if left_s > 0:
                await trio.sleep(left_s)
                continue
            if session._state is SessionState.CONNECTED:
                session._become(SessionState.SUSPENDED)
            await trio.sleep(period_s)

    def _close_hints(self) -> None:
        if self._hints is not None:
            self._hints.close()

    async def _wait_for_change(self, pause_s: float) -> tuple[float, Hint]:
        """Wait until it is time to look for changes. Return the pause after this look, and what was hinted
        at.

        Args:
            pause_s: The pause before this look, if there is no hint.
        """
        if self._hints is None:
            await trio.sleep(POLL_INTERVAL_S)
            return pause_s, Hint.NONE
        hint = await self._hints.wait(pause_s)
        if hint:
            await trio.sleep(FIRST_PAUSE_S)
            return FIRST_PAUSE_S * PAUSE_FACTOR, hint
        return min(pause_s * PAUSE_FACTOR, LOOK_INTERVAL_S), hint

    async def _follow(self) -> None:
        failing = False
        pause_s = LOOK_INTERVAL_S
        while True:
            await self._watches.wait_any()
            pause_s, hint = await self._wait_for_change(pause_s)
            try:
                paths = await self._run(partial(self._look, hint))
            except LedgerLogError as error:
                if not failing and not isinstance(error, WrongCluster):
                    logger.warning("cannot follow the changes of %s: %s", self._worker.path, error)
                self._watches.changed_somewhere()
                failing = True
                await trio.sleep(FAULT_PAUSE_S)
                continue
            # Mark all watches after a fault as well: a task that was woken meanwhile may have met the same
            # fault.
            if paths is None or failing or self._was_refused:
                failing = self._was_refused = False
                self._watches.changed_somewhere()
            elif paths:
                self._watches.changed(paths)

    def _look(self, hint: Hint, changed: list[str]) -> list[str] | None:
        """Return the paths that others have written; None if there are too many to list.

        Runs in the worker thread.
        """
        changed += self._sessions.reap(throttled=Hint.SESSION not in hint)
        data_version = self._file.data_version()
        if data_version == self._data_version:
            return []
        newest, paths = self._file.changes_since(self._seen_revision)
        self._data_version, self._seen_revision = data_version, newest
        return paths
