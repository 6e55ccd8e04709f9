"""Every public operation that writes metadata tells the truth in its exception, even if answers are lost.

One fault is put at the first call of the store that the operation makes, then at the second, and so on until
the operation ends without meeting it. No matter which answer is lost, and how:

    an operation that returns has happened
    one that raises an error of known outcome has not happened, and does not happen later
    a single lost answer is settled by reading: the operation returns
"""

from __future__ import annotations

import enum
import os
from contextlib import suppress
from typing import Any, ClassVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.server.identity import establish_identity
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.directory import open_directory
from bookie.storage.index.index import MemoryIndexes
from ledgerlog.election.election import Election
from ledgerlog.errors import (
    AppendUnknown,
    LedgerLogError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
)
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.attach import Commit, Staged
from ledgerlog.log.log import Log, create_log, delete_log, list_logs, open_log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.log.sweep import sweep
from ledgerlog.machine.snapshots import LedgerSnapshots
from ledgerlog.meta.belonging import find_cluster, make_cluster
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import cookie_path, draining_path
from ledgerlog.model.ledger import LedgerState
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.snapshots import ListedSnapshot
from ledgerlog.repair.decommission import decommission
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster

UNKNOWN = (MetadataOutcomeUnknown, AppendUnknown)
"""What says of an operation that it may have happened."""

_PATIENCE_S = 120.0


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


# --- faults ---------------------------------------------------------------------------------------


class Fault(enum.Enum):
    APPLIED = "a write is applied, and its answer is lost"
    DROPPED = "a write is lost on the way, and nobody says so"
    LATE = "a write is lost on the way, and arrives just before the next one"
    ALWAYS_APPLIED = "from one write on all are applied, and no answer comes"
    ALWAYS_DROPPED = "from one write on all are lost, and no answer comes"
    APPLIED_AWAY = "a write is applied, its answer is lost, and the store is away from then on"
    DROPPED_AWAY = "a write is lost, and the store is away from then on"
    AWAY = "the store is away from one call on"


_OF_CALLS = (Fault.AWAY,)
_ONCE = (Fault.APPLIED, Fault.DROPPED, Fault.LATE)


@attrs.define(eq=False)
class Plan:
    """The fault, at the n-th write of the store (or, of ``_OF_CALLS``, at the n-th call). A fault of a
    ``FaultyStore``."""

    fault: Fault
    left: int
    is_armed: bool = False
    is_met: bool = False
    is_away: bool = False
    late: GoOn | None = None

    def _is_due(self) -> bool:
        if self.left:
            self.left -= 1
            return False
        self.is_met = True
        return True

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        if not self.is_armed:
            return await go_on()
        if self.fault in _OF_CALLS and self._is_due():
            self.is_away = True
        if self.is_away:
            await trio.sleep(1)
            raise MetadataUnavailable("the store is away; nothing happened")
        if not call.is_write:
            return await go_on()
        if self.late is not None:
            late, self.late = self.late, None
            with suppress(LedgerLogError):
                await late()
        if self.fault in _OF_CALLS or (self.fault in _ONCE and self.is_met) or not self._is_due():
            return await go_on()
        await trio.sleep(0.1)
        if self.fault in (Fault.APPLIED, Fault.ALWAYS_APPLIED, Fault.APPLIED_AWAY):
            await go_on()  # If the store refuses the call, its answer is not lost.
        elif self.fault is Fault.LATE:
            self.late = go_on
        self.is_away = self.fault in (Fault.APPLIED_AWAY, Fault.DROPPED_AWAY)
        raise MetadataOutcomeUnknown("the answer was lost")


# --- operations -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Operation:
    """One public operation. ``happened`` is asked through a store without faults."""

    cluster: MemoryCluster
    client: Client
    plan: Plan
    may_wait: ClassVar[bool] = False
    """Whether the operation waits for a store that is away, instead of failing."""

    async def prepare(self) -> None: ...

    async def act(self) -> object:
        raise NotImplementedError

    async def happened(self, peek: Client) -> bool:
        raise NotImplementedError

    async def log(self, *, ledgers: int = 1, records: int = 5) -> Log:
        log = await create_log(self.client.opened, "log")
        async with log.writer() as writer:
            for number in range(ledgers):
                if number:
                    await writer.roll()
                await writer.append_many([b"x"] * records)
        return log

    async def peek_log(self, peek: Client) -> Log:
        return await open_log(peek.opened, "log")


class CreateLog(Operation):
    async def act(self) -> object:
        return await create_log(self.client.opened, "log")

    async def happened(self, peek: Client) -> bool:
        return await list_logs(peek.opened) == ["log"]


class CreateLogExistOk(CreateLog):
    async def act(self) -> object:
        return await create_log(self.client.opened, "log", exist_ok=True)


class DeleteLog(Operation):
    async def prepare(self) -> None:
        log = await self.log(ledgers=2)
        await log.cursor("c").move(1, expected=None)
        await SnapshotList(self.client.store, log.incarnation).change(lambda _: [ListedSnapshot(77, 1, 1)])

    async def act(self) -> object:
        return await delete_log(self.client.opened, "log")

    async def happened(self, peek: Client) -> bool:
        return await list_logs(peek.opened) == []


class OnLog(Operation):
    opened: Log

    async def prepare(self) -> None:
        self.opened = await self.log(ledgers=3)


class Truncate(OnLog):
    async def act(self) -> object:
        return await self.opened.truncate(11)

    async def happened(self, peek: Client) -> bool:
        return (await (await self.peek_log(peek)).info()).first_offset == 11


class ApplyRetention(OnLog):
    async def prepare(self) -> None:
        await super().prepare()
        await self.opened.configure(retention=RetentionPolicy(max_bytes=1))

    async def act(self) -> object:
        return await self.opened.apply_retention()

    async def happened(self, peek: Client) -> bool:
        return (await (await self.peek_log(peek)).info()).first_offset > 0


class Seal(OnLog):
    async def act(self) -> object:
        return await self.opened.seal()

    async def happened(self, peek: Client) -> bool:
        return (await (await self.peek_log(peek)).info()).sealed


class Configure(OnLog):
    async def act(self) -> object:
        return await self.opened.configure(roll=RollPolicy(max_bytes=12345))

    async def happened(self, peek: Client) -> bool:
        return (await (await self.peek_log(peek)).info()).roll.max_bytes == 12345


class SetProperties(OnLog):
    async def act(self) -> object:
        return await self.opened.set_properties({"a": "b"})

    async def happened(self, peek: Client) -> bool:
        return await (await self.peek_log(peek)).properties() == {"a": "b"}


class SetPropertiesExpected(SetProperties):
    async def act(self) -> object:
        return await self.opened.set_properties({"a": "b"}, expected={})


class UpdateProperties(SetProperties):
    async def act(self) -> object:
        return await self.opened.update_properties({"a": "b"})


class MakeCursor(OnLog):
    async def act(self) -> object:
        return await self.opened.cursor("c").move(3, expected=None, pins=True)

    async def happened(self, peek: Client) -> bool:
        found = await (await self.peek_log(peek)).cursor("c").get()
        return found is not None and found.offset == 3


class MoveCursor(MakeCursor):
    async def prepare(self) -> None:
        await super().prepare()
        self.state = await self.opened.cursor("c").move(1, expected=None)

    async def act(self) -> object:
        return await self.opened.cursor("c").move(3, expected=self.state)


class SetCursor(MakeCursor):
    async def act(self) -> object:
        return await self.opened.cursor("c").set(3)


class DeleteCursor(OnLog):
    async def prepare(self) -> None:
        await super().prepare()
        await self.opened.cursor("c").move(1, expected=None)

    async def act(self) -> object:
        return await self.opened.cursor("c").delete()

    async def happened(self, peek: Client) -> bool:
        return await (await self.peek_log(peek)).cursor("c").get() is None


class TakeOver(OnLog):
    async def act(self) -> object:
        async with self.opened.writer() as writer:
            self.plan.is_armed = False  # Leaving it is another operation.
            return writer.epoch

    async def happened(self, peek: Client) -> bool:
        return (await (await self.peek_log(peek)).info()).epoch == 2


class Roll(OnLog):
    may_wait = True

    async def prepare(self) -> None:
        await super().prepare()
        self.before = len((await self.opened.info()).segments)

    async def act(self) -> object:
        plan = self.plan
        plan.is_armed = False
        async with self.opened.writer() as writer:
            await writer.append(b"x")
            try:
                plan.is_armed = True
                await writer.roll()
            finally:
                plan.is_armed = plan.is_away = False
        return None

    async def happened(self, peek: Client) -> bool:
        return len((await (await self.peek_log(peek)).info()).segments) > self.before


class Splice(OnLog):
    staged: Staged

    async def prepare(self) -> None:
        await super().prepare()
        client = self.client.opened
        registry = LogRegistry(client.store, client.environment)
        async with stage(client, registry, "log", self.opened.incarnation) as staging:
            await staging.append_many([b"y"])
            staged = await staging.close()
        assert staged is not None
        self.staged = staged

    async def act(self) -> object:
        client = self.client.opened
        registry = LogRegistry(client.store, client.environment)
        made = Commit(producer="etl", source="q", run="r", batch=0, staged=(self.staged,))
        return await splice(client, registry, "log", self.opened.incarnation, made)

    async def happened(self, peek: Client) -> bool:
        segments = (await (await self.peek_log(peek)).info()).segments
        return self.staged.ledger_id in {segment.ledger_id for segment in segments}


class CreateLedger(Operation):
    async def act(self) -> object:
        return await self.client.ledgers.create()

    async def happened(self, peek: Client) -> bool:
        return bool(await peek.ledgers.list())


class OnLedger(Operation):
    ledger_id: int

    async def prepare(self) -> None:
        async with await self.client.ledgers.create() as writer:
            await writer.append(b"x")
        self.ledger_id = writer.ledger_id


class DeleteLedger(OnLedger):
    async def act(self) -> object:
        return await self.client.ledgers.delete(self.ledger_id)

    async def happened(self, peek: Client) -> bool:
        return await peek.ledgers.list() == []


class RecoverLedger(OnLedger):
    async def prepare(self) -> None:
        writer = await self.client.ledgers.create()
        await writer.append(b"x")
        await writer.aclose()
        self.ledger_id = writer.ledger_id

    async def act(self) -> object:
        return await self.client.ledgers.recover(self.ledger_id)

    async def happened(self, peek: Client) -> bool:
        return (await peek.ledgers.metadata(self.ledger_id)).state is LedgerState.CLOSED


class RecoverLedgerAcceptingLoss(RecoverLedger):
    async def act(self) -> object:
        return await self.client.ledgers.recover_accepting_loss(self.ledger_id)


class CloseLedger(RecoverLedger):
    may_wait = True

    async def prepare(self) -> None:
        self.writer = await self.client.ledgers.create()
        await self.writer.append(b"x")
        self.ledger_id = self.writer.ledger_id

    async def act(self) -> object:
        return await self.writer.close()


class Sweep(OnLog):
    """It has happened if the ledger that a crash left is gone."""

    left: int

    async def prepare(self) -> None:
        await super().prepare()
        registry = LogRegistry(self.client.store, self.client.opened.environment)
        metadata, version = await registry.read(self.opened.incarnation)
        assert metadata is not None
        shorter, (self.left, *_) = metadata.truncated(5, 15, b"0" * 16)
        await registry.write(shorter, version)

    async def act(self) -> object:
        return await sweep(self.client.opened, min_age_s=0)

    async def happened(self, peek: Client) -> bool:
        return self.left not in await peek.ledgers.list()


class ChangeSettings(Operation):
    async def act(self) -> object:
        return await RepairQueue(self.client.opened).change_settings(
            lambda old: attrs.evolve(old, paused=True)
        )

    async def happened(self, peek: Client) -> bool:
        return (await RepairQueue(peek.opened).settings()).paused


class PostTask(OnLedger):
    async def act(self) -> object:
        return await RepairQueue(self.client.opened).post(self.ledger_id, lost=["b1"])

    async def happened(self, peek: Client) -> bool:
        return await RepairQueue(peek.opened).tasks() == [self.ledger_id]


class Drain(Operation):
    async def act(self) -> object:
        return await RepairQueue(self.client.opened).drain("b4")

    async def happened(self, peek: Client) -> bool:
        return await peek.store.get(draining_path("b4")) is not None


class Keep(Operation):
    async def prepare(self) -> None:
        await RepairQueue(self.client.opened).drain("b4")

    async def act(self) -> object:
        return await RepairQueue(self.client.opened).keep("b4")

    async def happened(self, peek: Client) -> bool:
        return await peek.store.get(draining_path("b4")) is None


class Decommission(Operation):
    async def prepare(self) -> None:
        await self.cluster.bookies["b4"].stop()

    async def act(self) -> object:
        return await decommission(self.client.opened, "b4", say=lambda _: None)

    async def happened(self, peek: Client) -> bool:
        return await peek.store.get(cookie_path("b4")) is None


class SaveSnapshot(OnLog):
    async def act(self) -> object:
        return await LedgerSnapshots(_HasClient(self.client)).save(
            "log", self.opened.incarnation, 3, [b"s" * 10]
        )

    async def happened(self, peek: Client) -> bool:
        return bool(await LedgerSnapshots(_HasClient(peek)).find(self.opened.incarnation))


@attrs.frozen
class _HasClient:
    of: Client

    @property
    def client(self) -> Any:
        return self.of.opened


class Lead(Operation):
    """It stands until it leads, through a store that is away."""

    may_wait = True

    async def act(self) -> object:
        async with Election(self.client.opened, "e", candidate="me").leadership() as term:
            self.plan.is_armed = False
            self.term = int(term)
            leader = await Election(self.client.opened, "e").leader()
            assert leader is not None
            self.was_leader = leader.candidate == "me"
        return self.term

    async def happened(self, peek: Client) -> bool:
        return getattr(self, "was_leader", False)


class MakeCluster(Operation):
    async def prepare(self) -> None:
        self.tree = MemoryTree()

    async def act(self) -> object:
        assert await make_cluster(FaultyStore(self.tree, self.plan), os.urandom), "nobody else makes one"
        return None

    async def happened(self, peek: Client) -> bool:
        return await find_cluster(self.tree.open_store()) is not None


class FormatBookie(Operation):
    async def prepare(self) -> None:
        self.tree = MemoryTree("ours")
        self.disk, self.indexes = MemoryDisk(), MemoryIndexes()

    async def establish(self, store: MetadataStore, *, fix_cookie: bool = False) -> None:
        async with open_directory("/new", disk=self.disk, indexes=self.indexes) as directory:
            await establish_identity(
                store, directory, bookie_id="b9", random_bytes=os.urandom, fix_cookie=fix_cookie
            )

    async def act(self) -> object:
        return await self.establish(FaultyStore(self.tree, self.plan))

    async def happened(self, peek: Client) -> bool:
        async with open_directory("/new", disk=self.disk, indexes=self.indexes) as directory:
            here = await directory.read_cookie()
        there = await self.tree.open_store().get(cookie_path("b9"))
        return there is not None and there.value == here


class FixCookie(FormatBookie):
    async def prepare(self) -> None:
        await super().prepare()
        await self.establish(self.tree.open_store())
        self.disk, self.indexes = MemoryDisk(), MemoryIndexes()

    async def act(self) -> object:
        return await self.establish(FaultyStore(self.tree, self.plan), fix_cookie=True)


OPERATIONS = [
    MakeCluster, FormatBookie, FixCookie, CreateLog, CreateLogExistOk, DeleteLog, Truncate, ApplyRetention,
    Seal, Configure, SetProperties, SetPropertiesExpected, UpdateProperties, MakeCursor, MoveCursor,
    SetCursor, DeleteCursor, TakeOver, Roll, Splice, CreateLedger, DeleteLedger, RecoverLedger,
    RecoverLedgerAcceptingLoss, CloseLedger, Sweep, ChangeSettings, PostTask, Drain, Keep, Decommission,
    SaveSnapshot, Lead,
]  # fmt: skip  # Otherwise each name would take a line.


def test_an_unknown_outcome_is_no_kind_of_a_definite_failure() -> None:
    assert not issubclass(MetadataOutcomeUnknown, MetadataUnavailable)
    assert not issubclass(MetadataUnavailable, MetadataOutcomeUnknown)


@pytest.mark.long
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("kind", OPERATIONS)
async def test_what_an_operation_says_of_itself_is_true(
    autojump_clock: MockClock, kind: type[Operation], fault: Fault
) -> None:
    for at in range(100):
        plan = Plan(fault, at)
        async with (
            open_cluster(4) as cluster,
            cluster.client(faults=[plan]) as client,
            cluster.client() as peek,
        ):
            operation = kind(cluster, client, plan)
            await operation.prepare()
            await trio.testing.wait_all_tasks_blocked(0.01)
            failure: LedgerLogError | None = None
            plan.is_armed = True
            with trio.move_on_after(_PATIENCE_S) as scope:
                try:
                    await operation.act()
                except LedgerLogError as error:
                    failure = error
            plan.is_armed = False
            where = f"{kind.__name__}, {fault.value}, at number {at}: {failure!r}"
            if plan.late is not None:
                with suppress(LedgerLogError):
                    await plan.late()
            happened = await operation.happened(peek)
            if scope.cancelled_caught:
                assert kind.may_wait, f"{where}: it waits for ever"
            elif failure is None:
                assert happened, f"{where}: it returned and has not happened"
            elif not isinstance(failure, UNKNOWN):
                assert not happened, f"{where}: it has happened"
            if fault in (*_ONCE, Fault.ALWAYS_APPLIED) and not kind.may_wait:
                # Of a number nobody can tell whether it was given: it is passed over, but not for ever.
                is_numberless = fault is Fault.ALWAYS_APPLIED and "no new number" in str(failure)
                assert failure is None or is_numberless, f"{where}: reading settles it"
            if not plan.is_met:
                return
    raise AssertionError("the operation calls the store without end")
