"""The repair queue in the metadata store: tasks, locks, workers, settings, and requests to empty bookies.

``model.repair`` defines the records of the queue; this module changes them. A write may never overwrite what
another process wrote in between (compare-and-set). If the answer to a write was lost, this module reads the
store to learn the outcome (``meta.settle``). This module does not decide what to repair.

**A task's life (rule 22).** A process that finds a fault in a ledger *posts* a task: it creates the task, or
adds its findings to the existing task. This changes the task's version, even if the task has the findings
already: the fault may be newer than a worker's look. A worker takes the ledger's lock and only then reads the
task. The worker repairs the ledger, and *removes* the task at the version that it read. If another process
posted a finding in the meantime, the task stays and is worked on again. The worker releases the lock after
the removal, never before, so no other worker starts on a finished task.

**Versions repeat** if a node is deleted and created again (``meta.store``), as tasks are. For example, worker
A is cut off, and its lock passes to worker B when A's session ends. B finishes the task. The auditor makes a
new task, which gets the same version. If A now removed "its" task, it would remove a task that no worker has
worked on. So the removal is a transaction that also checks the worker's own node. That node is ephemeral, and
its path is never used twice. So the node exists exactly as long as the worker's session, and so does the
lock. While both exist, no other worker can have removed the task. Every write of a worker to a task or a lock
has this check (``WorkerKey.check``).

**Damaged nodes** are logged once, with their path, and stop nothing else. A new task replaces a damaged one.
A worker's damaged progress is not shown. If a request to empty a bookie cannot be read, the bookie keeps its
entries and gets no new ones (``requests``). For damaged settings see ``repair.settings``.

**Locks** are ephemeral: the locks of a dead process disappear with its session. The value of a lock is the
token of the worker that has it. So if the answer to taking a lock was lost, the worker reads the lock to see
whether it has it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Unpack

import attrs

from ledgerlog.errors import IncompatibleVersion, InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.repair_tasks import post_task
from ledgerlog.meta.settings import StoredSettings
from ledgerlog.meta.settle import CONFLICTS, settle
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NodeMissing,
    Set,
    VersionConflict,
    Versioned,
)
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.layout import (
    COOKIES,
    READ_ONLY_BOOKIES,
    REPAIR_AUDIT,
    REPAIR_DRAINING,
    REPAIR_LOCKS,
    REPAIR_SETTINGS,
    REPAIR_TASKS,
    REPAIR_WORKERS,
    WRITABLE_BOOKIES,
    cookie_path,
    draining_path,
    ledger_id_of,
    read_only_path,
    repair_lock_path,
    repair_progress_path,
    repair_task_path,
    repair_worker_path,
    writable_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import (
    AuditState,
    Draining,
    FoundBookies,
    RepairSettings,
    RepairTask,
    WorkerProgress,
)

__all__ = ["RepairQueue", "WorkerKey"]

logger = logging.getLogger(__name__)

_SETTINGS = StoredSettings(
    REPAIR_SETTINGS,
    "the settings of repair",
    "'ledgerlog repair settings --reset' replaces them with the defaults",
    RepairSettings,
    RepairSettings.decode_untrusted,
)


@attrs.frozen
class WorkerKey:
    """The token and the version of a worker's own node. The node exists as long as the worker's session."""

    token: str
    version: int

    @property
    def check(self) -> Check:
        """The condition that the worker's session lives. A transaction with it fails once another worker may
        have the worker's locks."""
        return Check(repair_worker_path(self.token), self.version)


class RepairQueue:
    """One process's access to the repair queue.

    Every method may raise MetadataUnavailable. Methods that write may raise MetadataOutcomeUnknown
    (``meta.settle``). Methods that create an ephemeral node may raise SessionExpired.
    """

    def __init__(self, client: LedgerClient) -> None:
        self._store: MetadataStore = client.store
        self._environment = client.environment
        self._told: dict[str, str] = {}
        """Damage that was already logged, by path."""

    def _tell_damage(self, path: str, why: str) -> None:
        if self._told.get(path) != why:
            self._told[path] = why
            logger.error("%s is damaged: %s", path, why)

    # --- settings -----------------------------------------------------------------------------

    async def settings(self) -> RepairSettings:
        """Return the stored settings, or the defaults if none are stored.

        Raises:
            MetadataCorrupt: The stored settings are damaged. The message names the node.
        """
        return await _SETTINGS.read(self._store)

    async def change_settings(
        self, change: Callable[[RepairSettings], RepairSettings], *, reset: bool = False
    ) -> RepairSettings:
        """Replace the settings.

        Args:
            change: Gets the present settings and returns the new ones. It may be called several times.
            reset: Give ``change`` the defaults instead of the stored settings. This works even if the stored
                settings are damaged.

        Returns:
            The new settings.

        Raises:
            MetadataCorrupt: The stored settings are damaged, and ``reset`` is not set. The message names the
                node.
        """

        return await _SETTINGS.change(self._store, change, reset=reset)

    async def _put(self, path: str, node: Versioned | None, value: bytes) -> None:
        """Write a value in place of the node that was read, unless the node has this value already."""
        if node is None:
            await self._store.create(path, value)
        elif node.value != value:
            await self._store.set(path, value, version=node.version)

    # --- tasks --------------------------------------------------------------------------------

    async def tasks(self) -> list[int]:
        """Return the ledgers that have a task, in ascending order."""
        store, found = self._store, list[int]()
        for high in await store.children(REPAIR_TASKS):
            for middle in await store.children(f"{REPAIR_TASKS}/{high}"):
                for low in await store.children(f"{REPAIR_TASKS}/{high}/{middle}"):
                    try:
                        found.append(ledger_id_of(high, middle, low))
                    except ValueError:
                        logger.warning(
                            "%s is not the path of a task", f"{REPAIR_TASKS}/{high}/{middle}/{low}"
                        )
        return found

    async def task(self, ledger_id: int) -> tuple[RepairTask, int] | None:
        """Return a ledger's task and its version, or None if it has no task.

        Raises:
            MetadataCorrupt: The task's record is damaged.
        """
        node = await self._store.get(repair_task_path(ledger_id))
        if node is None:
            return None
        return RepairTask.decode_untrusted(node.value, ledger_id), node.version

    async def post(self, ledger_id: int, **found: Unpack[FoundBookies]) -> bool:
        """Make sure that the ledger has a task with all of these findings.

        See ``ledger.repair_tasks.post_task``.
        """
        return await post_task(self._store, self._environment, ledger_id, **found)

    async def note(self, task: RepairTask, version: int, wanted: RepairTask, worker: WorkerKey) -> int | None:
        """Write the state of a task that is not done, with the reason.

        Args:
            task: The task as it was read.
            version: The version at which it was read.
            wanted: The task as it stands now.
            worker: The worker that has the ledger's lock.

        Returns:
            The task's new version; None if another process changed the task in the meantime, or if the
            worker's session is over.
        """
        if wanted == task:
            return version
        write_it = Set(repair_task_path(task.ledger_id), wanted.encode(), version)
        try:
            _, written = await self._store.transaction((worker.check, write_it))
        except (NodeMissing, VersionConflict):
            return None
        return written

    async def remove(self, ledger_id: int, version: int, worker: WorkerKey) -> bool:
        """Remove a task at the version at which it was read (rule 22).

        Returns:
            Whether the task is gone. False: another process changed the task in the meantime, or the worker's
            session is over, and with it the worker's lock. False also if a task is there after the answer was
            lost: the old one is done again, which changes nothing.
        """
        path = repair_task_path(ledger_id)

        async def write(is_unsure: bool) -> bool:
            if is_unsure:
                # Do not delete again: versions may begin anew, so this may be a new task at the same version.
                return await self._store.get(path) is None
            try:
                await self._store.transaction((worker.check, Delete(path, version)))
            except (NodeMissing, VersionConflict):
                return False
            return True

        return await settle(self._store, write, what=f"the end of the repair task of ledger {ledger_id}")

    # --- locks and workers --------------------------------------------------------------------

    async def register_worker(self) -> WorkerKey:
        """Register as a worker for as long as the session lives."""
        token = self._environment.new_token().hex()
        # If the answer is lost, the node may exist without an owner. It disappears with the session.
        version = await self._store.create(repair_worker_path(token), b"", ephemeral=True)
        return WorkerKey(token, version)

    async def unregister_worker(self, worker: WorkerKey) -> None:
        """Stop being a worker. Release all locks before you call this."""
        for path in (repair_progress_path(worker.token), repair_worker_path(worker.token)):
            with contextlib.suppress(NodeMissing):
                await self._store.delete(path)

    async def say_progress(self, worker: WorkerKey, progress: WorkerProgress) -> None:
        """Publish the worker's progress, for people to read."""
        path = repair_progress_path(worker.token)
        node = await self._store.get(path)
        # No other process writes the node: a conflict here means that the session is just ending.
        with contextlib.suppress(NodeExists, NodeMissing, VersionConflict):
            if node is None:
                await self._store.create(path, progress.encode(), ephemeral=True)
            elif node.value != progress.encode():
                await self._store.set(path, progress.encode(), version=node.version)

    async def worker_count(self) -> int:
        """Return the number of live workers."""
        return len(await self._store.children(REPAIR_WORKERS))

    async def workers(self) -> dict[str, WorkerProgress]:
        """Return the progress that each live worker has published, by token."""
        found: dict[str, WorkerProgress] = {}
        for token in await self._store.children(REPAIR_WORKERS):
            node = await self._store.get(repair_progress_path(token))
            if node is None:
                continue
            try:
                found[token] = WorkerProgress.decode_untrusted(node.value)
            except MetadataCorrupt as damage:
                self._tell_damage(repair_progress_path(token), str(damage))
        return found

    async def lock(self, ledger_id: int, worker: WorkerKey) -> bool:
        """Take the lock of a ledger.

        The worker may have the lock already: the store was away, so the worker could not release the lock, or
        the answer to an earlier call was lost. Then this returns True as well. So the caller must make sure
        that it does not work on one ledger twice at the same time.

        Returns:
            Whether this worker has the lock. False: another worker has it, or this worker's session is over.
        """
        path = repair_lock_path(ledger_id)

        async def write(_: bool) -> bool:
            try:
                # The process may have another session by now. No worker could release a lock of that session
                # with this token.
                lock_it = Create(path, worker.token.encode(), ephemeral=True)
                await self._store.transaction((worker.check, lock_it))
            except (NodeMissing, VersionConflict):
                return False
            except NodeExists:
                await self._store.sync()
                node = await self._store.get(path)
                return node is not None and node.value == worker.token.encode()
            return True

        return await settle(self._store, write, what=f"the lock of ledger {ledger_id}")

    async def unlock(self, ledger_id: int, worker: WorkerKey) -> None:
        """Release the lock of a ledger, if this worker has it. Another worker's lock stays."""
        path = repair_lock_path(ledger_id)
        node = await self._store.get(path)
        if node is None or node.value != worker.token.encode():
            return
        # If our session ends now, another worker may take the lock, and its lock has the version of ours. So
        # the version is not enough.
        with contextlib.suppress(NodeMissing, VersionConflict):  # The session's end removed the lock.
            await self._store.transaction((worker.check, Delete(path, node.version)))

    async def locks(self) -> dict[int, str]:
        """Return the locked ledgers, each with the token of the worker that has the lock."""
        found: dict[int, str] = {}
        for name in await self._store.children(REPAIR_LOCKS):
            path = f"{REPAIR_LOCKS}/{name}"
            node = await self._store.get(path)
            if node is None:
                continue
            try:
                found[int(name, 16)] = node.value.decode(errors="replace")
            except ValueError:
                self._tell_damage(path, "not the path of a lock")
        return found

    # --- bookies ------------------------------------------------------------------------------

    async def registered(self) -> dict[BookieId, BookieInfo]:
        """Return every registered bookie.

        This syncs the store first, so a lagging replica of the store does no harm. A bookie may move between
        the read-only list and the writable list while this reads them. It is still found, because this reads
        the first list again at the end.
        """
        await self._store.sync()
        found: dict[BookieId, BookieInfo] = {}
        for path in (READ_ONLY_BOOKIES, WRITABLE_BOOKIES, READ_ONLY_BOOKIES):
            for bookie_id in await self._store.children(path):
                if bookie_id in found:
                    continue
                node = await self._store.get(f"{path}/{bookie_id}")
                if node is None:
                    continue
                try:
                    found[bookie_id] = BookieInfo.decode_untrusted(node.value, bookie_id)
                except MetadataCorrupt as cause:
                    # The record is damaged, but the node exists: repair must not conclude that the bookie is
                    # gone.
                    logger.warning("bookie=%s: %s", bookie_id, cause)
                    found[bookie_id] = BookieInfo(bookie_id, "", "")
        return found

    async def is_registered(self, bookie_id: BookieId) -> bool:
        """Return whether the bookie is registered in the store."""
        read_only, writable = read_only_path(bookie_id), writable_path(bookie_id)
        for path in (read_only, writable, read_only):  # The bookie may move between two reads.
            if await self._store.get(path) is not None:
                return True
        return False

    async def is_writable(self, bookie_id: BookieId) -> bool:
        """Return whether the bookie is registered as one that takes new ledgers."""
        return await self._store.get(writable_path(bookie_id)) is not None

    async def known(self) -> list[BookieId]:
        """Return every bookie that ever served the cluster and was not decommissioned."""
        return await self._store.children(COOKIES)

    async def cookie(self, bookie_id: BookieId) -> tuple[Cookie, int] | None:
        """Return a bookie's cookie and its version, or None if it has no cookie.

        Raises:
            MetadataCorrupt: The cookie is damaged.
        """
        node = await self._store.get(cookie_path(bookie_id))
        return None if node is None else (Cookie.decode_untrusted(node.value, bookie_id), node.version)

    async def is_forgotten(self, draining: Draining) -> bool:
        """Return whether the cookie of a bookie that is to be emptied is gone. The bookie's id may have the
        cookie of other data by now.

        Raises:
            MetadataCorrupt: The cookie is damaged.
        """
        cookie = await self.cookie(draining.bookie_id)
        return cookie is None or cookie[0].instance != draining.instance

    async def draining(self) -> dict[BookieId, Draining]:
        """Return the requests to empty bookies, by bookie.

        If a bookie's data was formatted again since the request, the request is left out: it was about other
        data. A damaged request is left out too.
        """
        return (await self.requests())[0]

    async def requests(self) -> tuple[dict[BookieId, Draining], dict[BookieId, str]]:
        """Return the requests to empty bookies, and the requests that cannot be judged.

        Returns:
            Two dictionaries by bookie. The first has the requests, as ``draining`` returns them. The second
            has the bookies for which it is unknown whether an operator wants them emptied, with the reason.
            Either the request is damaged, or the cookie is damaged. (The cookie tells whether the request is
            about the bookie's present data.) To be safe, such a bookie is not emptied, but it also gets
            nothing new.
        """
        asked: dict[BookieId, Draining] = {}
        unknown: dict[BookieId, str] = {}
        for bookie_id in await self._store.children(REPAIR_DRAINING):
            path = draining_path(bookie_id)
            node = await self._store.get(path)
            if node is None:
                continue
            try:
                cookie = await self.cookie(check_bookie_id(bookie_id))
                draining = Draining.decode_untrusted(node.value, bookie_id)
            except (InvalidArgument, MetadataCorrupt) as damage:
                unknown[bookie_id] = str(damage)
                self._tell_damage(path, f"{damage}; the bookie is not emptied, and gets no new ledgers")
                continue
            if cookie is None or cookie[0].instance == draining.instance:
                asked[bookie_id] = draining
        return asked, unknown

    async def drain(self, bookie_id: BookieId) -> Draining:
        """Request that a bookie be emptied. This replaces a damaged request.

        Returns:
            The stored request: the existing one if there is one about the bookie's present data.

        Raises:
            InvalidArgument: No bookie of this id ever served the cluster, or the bookie was decommissioned.
            MetadataCorrupt: The bookie's cookie is damaged.
        """
        cookie = await self.cookie(bookie_id)
        if cookie is None:
            raise _no_cookie(bookie_id)
        wanted = Draining(
            bookie_id=bookie_id, instance=cookie[0].instance, asked_at_ms=self._environment.now_ms()
        )
        path = draining_path(bookie_id)

        async def write(_: bool) -> Draining:
            node = await self._store.get(path)
            if node is not None:
                try:
                    there = Draining.decode_untrusted(node.value, bookie_id)
                except IncompatibleVersion:
                    raise
                except MetadataCorrupt as damage:
                    logger.error("%s; it is requested again", damage)
                else:
                    if there.instance == wanted.instance:
                        return there
            await self._put(path, node, wanted.encode())
            return wanted

        return await settle(self._store, write, what=f"the request to empty bookie {bookie_id}")

    async def keep(self, bookie_id: BookieId) -> bool:
        """Take back the request to empty a bookie.

        The request of a bookie without a cookie must stay. Without it, the bookie's process would take new
        ledgers, although no process may serve the bookie's directory again.

        Returns:
            Whether there was a request.

        Raises:
            InvalidArgument: The bookie has no cookie. Nothing was changed.
        """
        path = draining_path(bookie_id)
        tried: Versioned | None = None

        async def write(is_unsure: bool) -> bool:
            nonlocal tried
            if not is_unsure:
                await self._store.sync()
            node = await self._store.get(path)
            cookie = await self._store.get(cookie_path(bookie_id))
            if cookie is None and node is None:
                raise _no_cookie(bookie_id)
            if cookie is None:
                raise InvalidArgument(
                    f"bookie {bookie_id} cannot be kept: it is decommissioned already; stop its process"
                )
            if is_unsure and node != tried:
                return True  # The attempt with the lost answer deleted it.
            if node is None:
                return False
            tried = node
            has_cookie = Check(cookie_path(bookie_id), cookie.version)
            await self._store.transaction((has_cookie, Delete(path, node.version)))
            return True

        return await settle(self._store, write, what=f"keeping bookie {bookie_id}")

    async def end_request(self, done: Draining) -> None:
        """Remove a fulfilled request. If the stored request is a later one, about other data under the same
        bookie id, it stays."""
        path = draining_path(done.bookie_id)

        async def write(_: bool) -> None:
            node = await self._store.get(path)
            if node is None:
                return
            if Draining.decode_untrusted(node.value, done.bookie_id).instance == done.instance:
                await self._store.delete(path, version=node.version)

        await settle(self._store, write, what=f"the end of the request to empty bookie {done.bookie_id}")

    async def tidy(self, named: Collection[BookieId]) -> None:
        """Remove requests about bookies that are gone for good.

        A bookie is gone for good if it has no cookie, is not registered, and no metadata names it. If the
        data under a bookie's id was formatted again, the bookie of the request is gone for good too.

        Args:
            named: The bookies that metadata names.
        """
        for bookie_id in await self._store.children(REPAIR_DRAINING):
            node = await self._store.get(draining_path(bookie_id))
            cookie = await self._store.get(cookie_path(bookie_id))
            if node is None:
                continue
            if cookie is None and (bookie_id in named or await self.is_registered(bookie_id)):
                continue
            if cookie is not None:
                try:
                    asked = Draining.decode_untrusted(node.value, bookie_id)
                    if Cookie.decode_untrusted(cookie.value, bookie_id).instance == asked.instance:
                        continue
                except MetadataCorrupt:
                    continue
            with contextlib.suppress(NodeMissing, VersionConflict):
                await self._store.delete(draining_path(bookie_id), version=node.version)

    async def forget_cookie(self, draining: Draining) -> None:
        """Remove the cookie of a bookie that was emptied. After that, no process serves the bookie's
        directory.

        Raises:
            InvalidArgument: The request was taken back. The cookie is still there.
            MetadataCorrupt: The request or the cookie is damaged.
        """
        bookie_id, path = draining.bookie_id, draining_path(draining.bookie_id)

        async def write(_: bool) -> None:
            # Read the request first: another process that decommissions the bookie removes the cookie first.
            node = await self._store.get(path)
            cookie = await self.cookie(bookie_id)
            if cookie is None or cookie[0].instance != draining.instance:
                return
            if node is None or Draining.decode_untrusted(node.value, bookie_id).instance != draining.instance:
                raise InvalidArgument(f"bookie {bookie_id} will be kept: the request was withdrawn")
            is_asked = Check(path, node.version)
            await self._store.transaction((is_asked, Delete(cookie_path(bookie_id), cookie[1])))

        await settle(self._store, write, what=f"the removal of the cookie of bookie {draining.bookie_id}")

    # --- the auditor's record -----------------------------------------------------------------

    async def audit_record(self) -> AuditState | None:
        """Return the record that the auditor wrote last, or None if there is none.

        Raises:
            MetadataCorrupt: The record is damaged.
        """
        node = await self._store.get(REPAIR_AUDIT)
        return None if node is None else AuditState.decode_untrusted(node.value)

    async def say_audit(self, record: AuditState) -> None:
        """Write the auditor's record. If two auditors write at the same time, either record may remain."""
        node = await self._store.get(REPAIR_AUDIT)
        if node is not None and _is_newer_audit(node):
            return
        with contextlib.suppress(*CONFLICTS):
            await self._put(REPAIR_AUDIT, node, record.encode())


def _is_newer_audit(node: Versioned) -> bool:
    """Whether a newer version of ledgerlog wrote the auditor's record. If so, the record must not be
    replaced."""
    try:
        AuditState.decode_untrusted(node.value)
    except IncompatibleVersion as newer:
        logger.warning("%s; it is not changed", newer)
        return True
    except MetadataCorrupt:
        pass
    return False


def _no_cookie(bookie_id: BookieId) -> InvalidArgument:
    return InvalidArgument(
        f"no bookie {bookie_id} has ever served this cluster, or it was decommissioned, or the metadata "
        "store has lost its cookie"
    )
