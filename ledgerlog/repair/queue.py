"""The board in the metadata store that auto-recovery works by: tasks, locks, settings, drained bookies.

``model.repair`` has the records and where they lie; here is how they change. Every write is a compare-and-set
and is settled by reading, and nothing here decides what is to be repaired.

**A task's life (rule 22).** Whoever finds something wrong with a ledger *posts* it: a new task, or what he
found added to the one that is there, which changes its version. A worker takes the lock, and only then reads
the task. It works, and *removes* the task at the version that it read: what was added meanwhile stays, to be
looked at next. It lets go of the lock after that, and never before, so nobody starts on a task that is done.

**Versions come back** where a node is deleted and made again (``meta.store``), and tasks are. A worker that
was cut off while it worked, and whose lock went to another one with its session, could then remove a task
that was made after the other one's work and that nobody has looked at. So removal is a transaction that also
checks the worker's own node. That is ephemeral and at a path that is never used twice: it is there exactly
as long as the worker's session is, and so is the lock. While both are there nobody else can have removed the
task.

**What is damaged** is told once, with its path, and holds up nothing else: a task is made anew; a worker's
progress is not shown; a bookie whose request to be emptied cannot be read is left what it has, and is given
nothing (``requests``). Of settings see ``repair.settings``.

**Locks** are ephemeral: those of a process that died go with its session. The value is the worker's token, by
which a lost answer to a lock is settled.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.meta.settle import CONFLICTS, remove, settle
from ledgerlog.meta.store import (
    Check,
    Delete,
    MetadataStore,
    NodeExists,
    NodeMissing,
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
from ledgerlog.model.repair import AuditRecord, Draining, RepairSettings, RepairTask, WorkerProgress

__all__ = ["Board", "WorkerKey"]

logger = logging.getLogger(__name__)


@attrs.frozen
class WorkerKey:
    """A worker's own node: there as long as its session."""

    token: str
    version: int


class Board:
    """One process's view of the board. Every method may raise MetadataUnavailable, those that write
    MetadataOutcomeUnknown (``meta.settle``), and SessionExpired those that make an ephemeral node."""

    def __init__(self, client: LedgerClient) -> None:
        self._store: MetadataStore = client.store
        self._environment = client.environment
        self._told: dict[str, str] = {}
        """What was said of damaged nodes, by path."""

    def _tell_damage(self, path: str, why: str) -> None:
        if self._told.get(path) != why:
            self._told[path] = why
            logger.error("%s is damaged: %s", path, why)

    # --- settings -----------------------------------------------------------------------------

    async def settings(self) -> RepairSettings:
        """What is stored, or the defaults where nothing is. MetadataCorrupt names the node."""
        node = await self._store.get(REPAIR_SETTINGS)
        return _settings(node)

    async def change_settings(
        self, change: Callable[[RepairSettings], RepairSettings], *, reset: bool = False
    ) -> RepairSettings:
        """Replace the settings by ``change`` of them, which may be called several times; the new ones. With
        ``reset`` what is stored does not count, be it damaged, and ``change`` is given the defaults.
        MetadataCorrupt names the node, unless with ``reset``."""

        async def write(is_unsure: bool) -> RepairSettings:
            if not is_unsure:
                await self._store.sync()
            node = await self._store.get(REPAIR_SETTINGS)
            wanted = change(RepairSettings() if reset else _settings(node))
            await self._put(REPAIR_SETTINGS, node, wanted.encode())
            return wanted

        return await settle(self._store, write, what="a change of the settings of repair")

    async def _put(self, path: str, node: Versioned | None, value: bytes) -> None:
        """Write a value in place of what was read, unless it is that."""
        if node is None:
            await self._store.create(path, value)
        elif node.value != value:
            await self._store.set(path, value, version=node.version)

    # --- tasks --------------------------------------------------------------------------------

    async def tasks(self) -> list[int]:
        """The ledgers that have a task, growing."""
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
        """A ledger's task and its version, None where it has none. MetadataCorrupt."""
        node = await self._store.get(repair_task_path(ledger_id))
        if node is None:
            return None
        return RepairTask.decode_untrusted(node.value, ledger_id), node.version

    async def post(
        self,
        ledger_id: int,
        *,
        lost: Collection[BookieId] = (),
        damaged: Collection[BookieId] = (),
        incomplete: Collection[BookieId] = (),
    ) -> bool:
        """See to it that the ledger has a task that names all of these; whether anything was written. A task
        whose record is damaged is made anew: it was a hint, and this is one, too."""
        path = repair_task_path(ledger_id)
        fresh = RepairTask(ledger_id=ledger_id, made_at_ms=self._environment.now_ms())

        async def write(_: bool) -> bool:
            node = await self._store.get(path)
            there: RepairTask | None = None
            if node is not None:
                try:
                    there = RepairTask.decode_untrusted(node.value, ledger_id)
                except MetadataCorrupt as damage:
                    logger.error("%s; it is made anew", damage)
            wanted = (there or fresh).merged(lost=lost, damaged=damaged, incomplete=incomplete)
            if there is not None and wanted == there:
                return False
            await self._put(path, node, wanted.encode())
            return True

        return await settle(self._store, write, what=f"the repair task of ledger {ledger_id}")

    async def note(self, task: RepairTask, version: int, wanted: RepairTask) -> int | None:
        """Write down how a task stands, and what keeps it from being done; its new version, None if it was
        changed meanwhile."""
        if wanted == task:
            return version
        try:
            return await self._store.set(repair_task_path(task.ledger_id), wanted.encode(), version=version)
        except (NodeMissing, VersionConflict):
            return None

    async def remove(self, ledger_id: int, version: int, worker: WorkerKey) -> bool:
        """Remove a task at the version that was read; whether it is gone.

        False: it was changed meanwhile, or the worker's session is over and its lock with it."""
        path = repair_task_path(ledger_id)

        async def write(is_unsure: bool) -> bool:
            try:
                await self._store.transaction(
                    (Check(repair_worker_path(worker.token), worker.version), Delete(path, version))
                )
            except (NodeMissing, VersionConflict):
                return is_unsure and await self._store.get(path) is None
            return True

        return await settle(self._store, write, what=f"the end of the repair task of ledger {ledger_id}")

    # --- locks and workers --------------------------------------------------------------------

    async def register_worker(self) -> WorkerKey:
        """Be a worker for as long as the session lives."""
        token = self._environment.new_token().hex()
        # Where the answer is lost the node, if it was made, is nobody's, and goes with the session.
        version = await self._store.create(repair_worker_path(token), b"", ephemeral=True)
        return WorkerKey(token, version)

    async def unregister_worker(self, worker: WorkerKey) -> None:
        """Be none any more; locks should have been let go of."""
        for path in (repair_progress_path(worker.token), repair_worker_path(worker.token)):
            with contextlib.suppress(NodeMissing):
                await self._store.delete(path)

    async def say_progress(self, worker: WorkerKey, progress: WorkerProgress) -> None:
        """Let people see what a worker does."""
        path = repair_progress_path(worker.token)
        node = await self._store.get(path)
        with contextlib.suppress(NodeExists, NodeMissing, VersionConflict):  # Nobody else writes it: a race
            if node is None:  # with the end of the session.
                await self._store.create(path, progress.encode(), ephemeral=True)
            elif node.value != progress.encode():
                await self._store.set(path, progress.encode(), version=node.version)

    async def worker_count(self) -> int:
        """How many workers live."""
        return len(await self._store.children(REPAIR_WORKERS))

    async def workers(self) -> dict[str, WorkerProgress]:
        """What the workers that live say of themselves, by token."""
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
        """Take a ledger into one's hands; False where somebody else has it.

        A lock of one's own is one that could not be let go of, or of which one was not told: the store was
        away. The caller sees to it that it works on a ledger once at a time."""
        path = repair_lock_path(ledger_id)

        async def write(_: bool) -> bool:
            try:
                await self._store.create(path, worker.token.encode(), ephemeral=True)
            except NodeExists:
                await self._store.sync()
                node = await self._store.get(path)
                return node is not None and node.value == worker.token.encode()
            return True

        return await settle(self._store, write, what=f"the lock of ledger {ledger_id}")

    async def unlock(self, ledger_id: int, worker: WorkerKey) -> None:
        """Let go of it. What is not the worker's lock is left alone."""
        path = repair_lock_path(ledger_id)
        node = await self._store.get(path)
        if node is None or node.value != worker.token.encode():
            return
        with contextlib.suppress(NodeMissing, VersionConflict):  # It went with its session.
            await self._store.delete(path, version=node.version)

    async def locks(self) -> dict[int, str]:
        """Which ledgers are in whose hands: tokens of workers."""
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
        """Every bookie that is registered, as of now and not of a replica that is behind. One that moves
        between the two lists while they are read is seen: the first is read again."""
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
                    # Damaged, and there: it is not for repair to conclude that its bookie is gone.
                    logger.warning("bookie=%s: %s", bookie_id, cause)
                    found[bookie_id] = BookieInfo(bookie_id, "", "")
        return found

    async def is_registered(self, bookie_id: BookieId) -> bool:
        """Whether it serves, by the store."""
        read_only, writable = read_only_path(bookie_id), writable_path(bookie_id)
        for path in (read_only, writable, read_only):  # It may move between two looks.
            if await self._store.get(path) is not None:
                return True
        return False

    async def is_writable(self, bookie_id: BookieId) -> bool:
        """Whether it is registered as one that takes new ledgers."""
        return await self._store.get(writable_path(bookie_id)) is not None

    async def known(self) -> list[BookieId]:
        """Every bookie that ever served the cluster and was not decommissioned."""
        return await self._store.children(COOKIES)

    async def cookie(self, bookie_id: BookieId) -> tuple[Cookie, int] | None:
        """A bookie's cookie and its version. MetadataCorrupt."""
        node = await self._store.get(cookie_path(bookie_id))
        return None if node is None else (Cookie.decode_untrusted(node.value, bookie_id), node.version)

    async def draining(self) -> dict[BookieId, Draining]:
        """The bookies that are to hold nothing any more. One whose data was formatted anew since then is
        another bookie and not among them; nor is one whose request is damaged."""
        return (await self.requests())[0]

    async def requests(self) -> tuple[dict[BookieId, Draining], dict[BookieId, str]]:
        """The same, and the bookies of which nobody can tell, with the reason: the request is damaged, or the
        cookie that says whether it is about the data that is there. These are not emptied, since that may not
        be meant; and nothing is given to them, since that may be."""
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
                self._tell_damage(path, f"{damage}; the bookie is neither emptied nor given anything")
                continue
            if cookie is None or cookie[0].instance == draining.instance:
                asked[bookie_id] = draining
        return asked, unknown

    async def drain(self, bookie_id: BookieId) -> Draining:
        """Ask for a bookie to be emptied; a request that is damaged is made anew. InvalidArgument where
        nobody knows it; MetadataCorrupt where its cookie is damaged."""
        cookie = await self.cookie(bookie_id)
        if cookie is None:
            raise InvalidArgument(f"no bookie {bookie_id} ever served this cluster, or it was decommissioned")
        wanted = Draining(
            bookie_id=bookie_id, instance=cookie[0].instance, asked_at_ms=self._environment.now_ms()
        )
        path = draining_path(bookie_id)

        async def write(_: bool) -> Draining:
            node = await self._store.get(path)
            if node is not None:
                try:
                    there = Draining.decode_untrusted(node.value, bookie_id)
                except MetadataCorrupt as damage:
                    logger.error("%s; it is asked for anew", damage)
                else:
                    if there.instance == wanted.instance:
                        return there
            await self._put(path, node, wanted.encode())
            return wanted

        return await settle(self._store, write, what=f"the request to empty bookie {bookie_id}")

    async def keep(self, bookie_id: BookieId) -> bool:
        """Take back that a bookie is to be emptied; whether it was."""
        return await remove(self._store, draining_path(bookie_id))

    async def end_request(self, done: Draining) -> None:
        """Take a request away that is fulfilled. One that somebody made since, about other data of a bookie
        of that id, stays."""
        path = draining_path(done.bookie_id)

        async def write(_: bool) -> None:
            node = await self._store.get(path)
            if node is None:
                return
            if Draining.decode_untrusted(node.value, done.bookie_id).instance == done.instance:
                await self._store.delete(path, version=node.version)

        await settle(self._store, write, what=f"the end of the request to empty bookie {done.bookie_id}")

    async def tidy(self, named: Collection[BookieId]) -> None:
        """Take away requests about bookies that are gone for good, given whom metadata names: those without a
        cookie and a registration, and those whose data was formatted anew."""
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
        """Remove the cookie of a bookie that was emptied: its directory is not served any more."""

        async def write(_: bool) -> None:
            cookie = await self.cookie(draining.bookie_id)
            if cookie is None or cookie[0].instance != draining.instance:
                return
            await self._store.delete(cookie_path(draining.bookie_id), version=cookie[1])

        await settle(self._store, write, what=f"the removal of the cookie of bookie {draining.bookie_id}")

    # --- the auditor's word -------------------------------------------------------------------

    async def audit_record(self) -> AuditRecord | None:
        """What the auditor saw last, None before the first. MetadataCorrupt."""
        node = await self._store.get(REPAIR_AUDIT)
        return None if node is None else AuditRecord.decode_untrusted(node.value)

    async def say_audit(self, record: AuditRecord) -> None:
        """Write it. A record that another auditor writes at the same time may win."""
        node = await self._store.get(REPAIR_AUDIT)
        with contextlib.suppress(*CONFLICTS):
            await self._put(REPAIR_AUDIT, node, record.encode())


def _settings(node: Versioned | None) -> RepairSettings:
    if node is None:
        return RepairSettings()
    try:
        return RepairSettings.decode_untrusted(node.value)
    except MetadataCorrupt as damage:
        raise MetadataCorrupt(
            f"{damage} (stored at {REPAIR_SETTINGS}; 'ledgerlog repair settings --reset' makes them anew)"
        ) from damage
