"""Auto-recovery inside in-process clusters, for tests: processes that can be killed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import attrs
import trio

from ledgerlog.ledger.client import open_client
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import LEDGER_KEY_BYTES, SESSION_TIMEOUT_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.quorum import Replication
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing.faulty_store import FaultyStore
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, SeededEnvironment
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import Status, decode_frame_untrusted

R332 = Replication(3, 3, 2)

Place = tuple[BookieId, int]
"""A copy: a bookie and an entry."""


@attrs.define(eq=False)
class RepairProcess:
    """One process that runs auto-recovery."""

    name: str
    store: FaultyStore
    service: AutoRecovery
    _cluster: MemoryCluster
    _scope: trio.CancelScope
    _ended: trio.Event

    @property
    def copied(self) -> int:
        return self.service.worker.copying.entries

    @property
    def copied_bytes(self) -> int:
        return self.service.worker.copying.byte_count

    @property
    def leads(self) -> bool:
        return self.service.auditor.is_leading

    async def kill(self, *, session_s: float = SESSION_TIMEOUT_S) -> None:
        """End it at once; the store gives its session up after ``session_s``."""
        self.store.disconnect()
        self._scope.cancel()
        await self._ended.wait()

        async def expire() -> None:
            await trio.sleep(session_s)
            self.store.inner.expire_session()

        self._cluster.nursery.start_soon(expire)


async def start_repair(
    cluster: MemoryCluster, name: str = "repair-1", *, store: FaultyStore | None = None
) -> RepairProcess:
    """A process that runs auto-recovery until the cluster ends, or it is killed."""
    store = store or FaultyStore(cluster.tree)
    ended = trio.Event()

    async def run(task_status: trio.TaskStatus[RepairProcess]) -> None:
        try:
            with trio.CancelScope() as scope:
                async with open_client(
                    store, cluster.network.at(name), environment=SeededEnvironment(name)
                ) as client:
                    service = AutoRecovery(client, name=name)
                    task_status.started(RepairProcess(name, store, service, cluster, scope, ended))
                    await service.run()
        finally:
            ended.set()

    process = await cluster.nursery.start(run)
    assert isinstance(process, RepairProcess)
    return process


async def set_up(client: Client, **changes: object) -> RepairQueue:
    """The queue, with settings: everything at once unless told otherwise."""
    queue = RepairQueue(client.opened)
    wanted = {"lost_after_ms": 2_000, "grace_ms": 2_000, **changes}
    await queue.change_settings(lambda now: attrs.evolve(now, **wanted))
    return queue


async def written(
    client: Client,
    count: int,
    replication: Replication = R332,
    *,
    close: bool = True,
    size: int = 0,
) -> int:
    """A ledger with entries ``entry 0`` and so on, padded to ``size``."""
    writer = await client.ledgers.create(replication=replication)
    if count:
        await writer.append_many([payload(number, size) for number in range(count)])
    if close:
        await writer.close()
    else:
        await writer.aclose()
    return writer.ledger_id


def payload(number: int, size: int = 0) -> bytes:
    return (b"entry %d" % number).ljust(size, b".")


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 600.0) -> None:
    """Wait, in mock time, until it holds."""
    with trio.fail_after(timeout_s):
        while not await condition():  # noqa: ASYNC110 (any condition)
            await trio.sleep(0.05)


async def names(client: Client, ledger_id: int) -> set[str]:
    """Every bookie that any fragment of the ledger names."""
    metadata = await client.ledgers.metadata(ledger_id)
    return {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}


async def quiet(queue: RepairQueue) -> None:
    """Wait until no task is left."""

    async def is_quiet() -> bool:
        return not await queue.tasks()

    await until(is_quiet)


async def repaired(client: Client, queue: RepairQueue, ledger_id: int, without: set[str]) -> None:
    """Wait until the ledger names none of these and no task is left."""

    async def is_repaired() -> bool:
        return not without & await names(client, ledger_id)

    await until(is_repaired)
    await quiet(queue)


async def assert_whole(client: Client, ledger_id: int, entries: int) -> None:
    """Every entry is on its full write quorum, with the bytes that were written."""
    verification = await client.ledgers.verify(ledger_id)
    assert verification.entries == entries
    assert verification.under_replicated == []
    assert verification.unreachable == []
    assert verification.damaged == []


def board_has_tasks(queue: RepairQueue) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return bool(await queue.tasks())

    return condition


def lock_is_taken(queue: RepairQueue) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return bool(await queue.locks())

    return condition


def copy_payload(entry_id: int, version: int = 0) -> bytes:
    return b"<entry %d version %d>" % (entry_id, version) + bytes(200)


async def stored(
    cluster: MemoryCluster,
    client: Client,
    count: int,
    replication: Replication = R332,
    *,
    holes: Collection[Place] = (),
    versions: Mapping[Place, int] | None = None,
) -> int:
    """A closed ledger whose copies were put on bookies one by one, all but the holes."""
    registry = LedgerRegistry(client.store, client.opened.environment)
    ensemble = sorted(cluster.bookies)[: replication.ensemble]
    metadata, version = await registry.create(replication, ensemble, {})
    assert len(metadata.key) == LEDGER_KEY_BYTES
    for slot, bookie in enumerate(ensemble):
        engine = cluster.bookies[bookie].node.engine
        for first in range(0, count, 4):
            found = {
                e: copy_payload(e, (versions or {}).get((bookie, e), 0))
                for e in range(first, min(first + 4, count))
                if replication.holds(slot, e) and (bookie, e) not in holes
            }
            if found:
                entries = Entries.gather(metadata.ledger_id, found)
                raw = b"".join(encode_add(entries, lac=-1, lafr=-1, key=metadata.key, recovery=False))
                position = engine.add(decode_frame_untrusted(memoryview(raw)), entries)
                assert not isinstance(position, Status)
                await engine.wait_durable(position)
    stored_now, _ = await registry.attempt(MetadataIntent(metadata.closed(count - 1, b"t" * 16), version))
    assert stored_now is not None
    return metadata.ledger_id
