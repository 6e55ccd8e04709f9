"""Replicas of a state machine follow, lead, fail over and restore, on a failing cluster in mock time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.election.election import Election
from ledgerlog.errors import (
    AppendUnknown,
    ArchiveUnavailable,
    CommandFailed,
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LogSealed,
    LostLeadership,
    MetadataUnavailable,
    NotLeader,
    ReplicaStopped,
    RequestExpired,
    StorageError,
)
from ledgerlog.limits import SESSION_TIMEOUT_S
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.writer import LogWriter
from ledgerlog.machine import snapshots
from ledgerlog.machine.core.replica import RequestTable
from ledgerlog.machine.events import EventKind
from ledgerlog.machine.replica import Replica
from ledgerlog.machine.snapshots import LedgerSnapshots, SnapshotInfo
from ledgerlog.model.command import new_request_id
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster
from ledgerlog.testing.minimize import the_one
from tests.machine.machines import Keys


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def command(*parts: Any) -> bytes:
    return json.dumps(parts).encode()


@attrs.frozen
class _Wrapped:
    """The part of a cluster that ``LedgerSnapshots`` uses."""

    client: Any


class InMemory:
    """A shared store of snapshots that does not lose them with bookies."""

    is_shared = True

    def __init__(self) -> None:
        self._streams: dict[int, bytes] = {}

    async def find(self, incarnation: int) -> list[SnapshotInfo]:
        await trio.lowlevel.checkpoint()
        return [
            SnapshotInfo(next_offset=offset, size=len(self._streams[offset]), place=str(offset))
            for offset in sorted(self._streams, reverse=True)
        ]

    async def save(
        self, name: str, incarnation: int, next_offset: int, stream: Iterable[bytes]
    ) -> SnapshotInfo:
        await trio.lowlevel.checkpoint()
        self._streams[next_offset] = b"".join(stream)
        return (await self.find(incarnation))[0]

    async def load(self, info: SnapshotInfo) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._streams[info.next_offset]

    async def prune(self, incarnation: int, keep: int) -> None:
        for info in (await self.find(incarnation))[keep:]:
            del self._streams[info.next_offset]


@attrs.define(eq=False)
class Node:
    """A process with one replica, until it is killed or leaves."""

    stage: Stage
    election: bool
    options: dict[str, Any]
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    made: trio.Event = attrs.Factory(trio.Event)
    entered: trio.Event = attrs.Factory(trio.Event)
    leaving: trio.Event = attrs.Factory(trio.Event)
    ended: trio.Event = attrs.Factory(trio.Event)
    error: BaseException | None = None
    client: Client = attrs.field(init=False)
    replica: Replica[Keys] = attrs.field(init=False)

    @property
    def name(self) -> str:
        return self.client.host

    async def run(self) -> None:
        try:
            with self.scope:
                async with self.stage.cluster.client() as self.client:
                    opened = self.client.opened
                    options = dict(self.options)
                    if options.get("snapshots") is True:
                        options["snapshots"] = LedgerSnapshots(_Wrapped(opened))
                    if self.election:
                        options["election"] = Election(opened, "log", candidate=self.name, listen=self.name)
                    self.replica = Replica(await open_log(opened, "log"), Keys(), **options)
                    self.made.set()
                    async with self.replica:
                        self.entered.set()
                        await self.leaving.wait()
        except LedgerLogError as error:
            self.error = error
        finally:
            self.entered.set()
            self.ended.set()

    async def kill(self) -> None:
        """Kill the process: its connections break at once, its session lives until it times out."""
        self.client.store.disconnect()
        self.scope.cancel()
        await self.ended.wait()

    async def leave(self) -> None:
        self.leaving.set()
        await self.ended.wait()


@attrs.define(eq=False)
class Stage:
    cluster: MemoryCluster
    nursery: trio.Nursery
    client: Client
    """A client without a replica."""
    nodes: list[Node] = attrs.field(factory=list)

    async def join(self, *, wait: bool = True, election: bool = True, **options: Any) -> Node:
        node = Node(self, election, options)
        self.nursery.start_soon(node.run)
        await node.made.wait()
        if wait:
            await node.entered.wait()
        self.nodes.append(node)
        return node

    async def leader(self, *others_than: Node) -> Node:
        def found() -> list[Node]:
            return [
                n
                for n in self.nodes
                if n.replica.is_leading and not n.ended.is_set() and n not in others_than
            ]

        await eventually(lambda: len(found()) == 1)
        return found()[0]

    async def same_state(self) -> None:
        """Wait until all live replicas have the same state."""
        living = [n.replica for n in self.nodes if not n.ended.is_set() and n.replica.failure is None]
        await eventually(lambda: len({replica.digest() for replica in living}) == 1)


@asynccontextmanager
async def stage(
    nodes: int = 0, *, replication: Replication | None = None, **options: Any
) -> AsyncIterator[Stage]:
    async with open_cluster() as cluster, cluster.client() as client, trio.open_nursery() as nursery:
        await create_log(client.opened, "log", replication=replication)
        made = Stage(cluster, nursery, client)
        for _ in range(nodes):
            await made.join(**options)
        yield made
        nursery.cancel_scope.cancel()


async def test_what_is_proposed_to_the_leader_is_applied_by_all(clock: MockClock) -> None:
    async with stage(3) as s:
        leader = await s.leader()
        assert await leader.replica.propose(command("add", "x", 2)) == b"2"
        assert await leader.replica.propose(command("add", "x", 3)) == b"5"
        for node in s.nodes:
            await node.replica.wait_applied(1)
            assert await node.replica.read(lambda machine: machine.values["x"]) == 5
        assert await leader.replica.read(lambda machine: machine.values["x"], consistency="linear") == 5
        await s.same_state()
        assert leader.replica.statistics().executed == 2


async def test_who_does_not_lead_names_the_leader(clock: MockClock) -> None:
    async with stage(2) as s:
        leader = await s.leader()
        (follower,) = [node for node in s.nodes if node is not leader]
        with pytest.raises(NotLeader) as refused:
            await follower.replica.propose(command("set", "x", 1))
        assert refused.value.leader == leader.name
        with pytest.raises(NotLeader):
            await follower.replica.read(lambda machine: 1, consistency="linear")
        assert await follower.replica.leader() == leader.name
        assert await leader.replica.leader() == leader.name
        assert leader.replica.next_offset == 0


async def test_a_request_that_is_proposed_again_is_not_executed_again(clock: MockClock) -> None:
    async with stage(2) as s:
        leader = await s.leader()
        request = leader.replica.new_request_id()
        results: list[bytes] = []

        async def propose() -> None:
            results.append(await leader.replica.propose(command("add", "x", 1), request_id=request))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(propose)
        await propose()
        assert results == [b"1"] * 6
        assert leader.replica.next_offset == 1, "all proposals share one record"
        await leader.kill()
        second = await s.leader()
        assert await second.replica.propose(command("add", "x", 1), request_id=request) == b"1"
        assert await second.replica.propose(command("add", "x", 1), request_id="my own") == b"2"
        assert await second.replica.propose(command("add", "x", 1), request_id="my own") == b"2"


async def test_what_apply_raises_is_the_result_for_every_proposer(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        for _ in range(2):
            with pytest.raises(CommandFailed, match="ValueError: x is None") as failed:
                await leader.replica.propose(command("cas", "x", 1, 2), request_id="r")
            assert failed.value.error == "ValueError"
        with pytest.raises(CommandFailed, match="JSONDecodeError"):
            await leader.replica.propose(b"?")
        assert await leader.replica.propose(command("add", "x", 1)) == b"1", "the replica goes on"
        with pytest.raises(InvalidArgument):
            await leader.replica.propose("text")
        with pytest.raises(InvalidArgument):
            await leader.replica.propose(b"", request_id="")
        with pytest.raises(InvalidArgument):
            await leader.replica.read(lambda machine: 1, consistency="strong")


async def test_a_retry_from_before_the_table_reaches_is_refused(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        await leader.replica.propose(command("add", "x", 1))
        leader.replica._core.requests.forgotten_through = 0
        with pytest.raises(RequestExpired):
            await leader.replica.propose(command("add", "x", 1), request_id=new_request_id(0, bytes(16)))
        assert await leader.replica.propose(command("add", "x", 1)) == b"2"


async def test_a_command_without_a_request_id_is_executed_however_many_are_under_way(
    clock: MockClock,
) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        leader.replica._core.requests = RequestTable(entries_max=3)
        results: list[bytes] = []

        async def propose() -> None:
            results.append(await leader.replica.propose(command("add", "x", 1)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(propose)
        assert sorted(map(int, results)) == list(range(1, 21))
        assert leader.replica.statistics().requests == 3


async def test_clients_that_retry_everything_lose_and_double_nothing_while_leaders_die(
    clock: MockClock,
) -> None:
    async with stage(3, snapshots=True, snapshot_every=40) as s:
        done: dict[str, int] = {}

        async def client(number: int) -> None:
            for at in range(40):
                request = f"{number}-{at}"
                while True:
                    living = [node for node in s.nodes if not node.ended.is_set()]
                    node = living[(number + at) % len(living)]
                    named = [n for n in living if n.name == await node.replica.leader()]
                    try:
                        with trio.fail_after(5):
                            result = await (named or [node])[0].replica.propose(
                                command("add", "sum", 1), request_id=request
                            )
                    except (LedgerLogError, trio.TooSlowError):
                        await trio.sleep(0.05)
                        continue
                    done[request] = int(result)
                    break
                await trio.sleep(0.05)

        async def killer() -> None:
            for _ in range(4):
                await trio.sleep(0.7)
                victim = await s.leader()
                await victim.kill()
                await s.join(snapshots=True, snapshot_every=40)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(client, number)
            nursery.start_soon(killer)
        assert sorted(done.values()) == list(range(1, 161)), "each command was executed once"
        await s.same_state()
        leader = await s.leader()
        assert await leader.replica.read(lambda m: m.values["sum"], consistency="linear") == 160


async def test_a_deposed_leader_answers_no_linear_read_and_acknowledges_nothing(clock: MockClock) -> None:
    async with stage(2) as s:
        first = await s.leader()
        await first.replica.propose(command("set", "x", 1))
        s.cluster.network.stall(first.name, "*")  # It is isolated, and still believes that it leads.
        first.client.store.is_hanging = True
        second = await s.leader(first)
        await second.replica.propose(command("set", "x", 2))
        assert first.replica.is_leading
        with trio.move_on_after(1) as waiting:
            await first.replica.read(lambda machine: machine.values["x"], consistency="linear")
        assert waiting.cancelled_caught, "the read waits instead of returning an old value"
        assert await first.replica.read(lambda machine: machine.values["x"]) == 1, "a local read may be old"
        answers: list[object] = []

        async def propose() -> None:
            try:
                answers.append(await first.replica.propose(command("set", "x", 3)))
            except (NotLeader, AppendUnknown) as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(propose)
            await trio.sleep(0.1)
            first.client.store.is_hanging = False
            s.cluster.network.heal()
        assert isinstance(answers[0], NotLeader | AppendUnknown)
        await s.same_state()
        assert await second.replica.read(lambda m: m.values["x"], consistency="linear") == 2
        await eventually(lambda: not first.replica.is_leading)


async def test_reads_share_a_barrier(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        found: list[object] = []

        async def read() -> None:
            found.append(await leader.replica.read(lambda m: m.values.get("x"), consistency="linear"))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(read)
        assert found == [None] * 100
        assert leader.replica.next_offset <= 2
        await leader.replica.propose(command("set", "x", 1))
        await read()
        assert found[-1] == 1


async def test_snapshots_are_taken_and_the_log_truncated_behind_them(clock: MockClock) -> None:
    async with stage(2, snapshots=True, snapshot_every=10) as s:
        leader = await s.leader()
        events = leader.replica.events()
        for _ in range(45):
            await leader.replica.propose(command("add", "x", 1))
        log = await open_log(leader.client.opened, "log")
        await eventually(lambda: leader.replica.statistics().snapshots >= 4)
        kinds = [(event.kind, event.offset) async for event in _first(events, 6)]
        assert (EventKind.SNAPSHOT, 10) in kinds
        assert (EventKind.TRUNCATED, 10) in kinds
        assert kinds.index((EventKind.TRUNCATED, 10)) > kinds.index((EventKind.SNAPSHOT, 20)), "two are kept"
        with trio.fail_after(10):
            while (await log.info()).first_offset < 30:  # noqa: ASYNC110  # Another node moves it.
                await trio.sleep(0.01)
        late = await s.join(snapshots=True)
        assert late.replica.statistics().restores == 1
        await s.same_state()
        assert late.replica.statistics().executed <= 15, "the snapshot holds the rest"
        store = LedgerSnapshots(_Wrapped(late.client.opened))
        assert [info.next_offset for info in await store.find(log.incarnation)] == [40, 30]
        labelled = [
            ledger
            for ledger in await late.client.ledgers.list()
            if "snapshot-log" in (await late.client.ledgers.metadata(ledger)).custom
        ]
        assert len(labelled) == 2, "older snapshots are deleted"


async def test_snapshots_that_are_asked_for_at_once_are_taken_one_after_the_other(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = LedgerSnapshots.save
    under_way = most = 0

    async def noted(store: LedgerSnapshots, *args: Any) -> SnapshotInfo:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await save(store, *args)
        finally:
            under_way -= 1

    monkeypatch.setattr(LedgerSnapshots, "save", noted)
    async with stage(1, snapshots=True) as s:
        leader = await s.leader()
        await leader.replica.propose(command("add", "x", 1))
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(leader.replica.snapshot)
        assert leader.replica.statistics().snapshots == 4
    assert most == 1


async def test_a_replica_that_stopped_takes_no_snapshot_that_was_asked_for_before(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, may_save = LedgerSnapshots.save, trio.Event()

    async def late(store: LedgerSnapshots, *args: Any) -> SnapshotInfo:
        await may_save.wait()
        return await save(store, *args)

    monkeypatch.setattr(LedgerSnapshots, "save", late)
    async with stage(1, snapshots=True) as s:
        leader = await s.leader()
        await leader.replica.propose(command("add", "x", 1))
        refused: list[ReplicaStopped] = []

        async def ask() -> None:
            try:
                await leader.replica.snapshot()
            except ReplicaStopped as stopped:
                refused.append(stopped)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await trio.sleep(1)
            leader.replica._stop(MemoryError("no room"))
            may_save.set()
        assert len(refused) == 1
        assert leader.replica.statistics().snapshots == 1


async def test_a_linear_read_does_not_see_a_machine_that_stopped_half_way(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        barrier = leader.replica._leading.barrier

        async def stop_after() -> None:
            await barrier()
            leader.replica._stop(MemoryError("no room"))

        leader.replica._leading.barrier = stop_after
        with pytest.raises(ReplicaStopped, match="no room"):
            await leader.replica.read(lambda machine: machine.values, consistency="linear")


async def _first(events: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await events.__anext__()


async def test_a_replica_that_slept_through_a_truncation_restores(clock: MockClock) -> None:
    async with stage(2, snapshots=True, snapshot_every=10) as s:
        leader = await s.leader()
        (other,) = [node for node in s.nodes if node is not leader]
        events = other.replica.events()
        await leader.replica.propose(command("add", "x", 1))
        await other.replica.wait_applied(0)
        s.cluster.network.stall(other.name, "*")
        log = await open_log(leader.client.opened, "log")
        for _ in range(45):
            await leader.replica.propose(command("add", "x", 1))
        await (await _writer_roll(leader))
        for _ in range(45):
            await leader.replica.propose(command("add", "x", 1))
        with trio.fail_after(10):
            while (await log.info()).first_offset < 70:  # noqa: ASYNC110  # As above.
                await trio.sleep(0.01)
        s.cluster.network.heal()
        await other.replica.wait_applied(90)
        await s.same_state()
        assert other.replica.statistics().restores == 1
        seen = [event.kind async for event in _first(events, 1)]
        assert seen == [EventKind.RESTORED]
        # The gap is behind it: a later outage takes it back to no snapshot.
        s.cluster.network.stall(other.name, "*")
        await leader.replica.propose(command("add", "x", 1))
        await trio.sleep(60)
        s.cluster.network.heal()
        await other.replica.wait_applied(91)
        await s.same_state()
        assert other.replica.statistics().restores == 1


async def test_a_snapshot_that_ends_where_a_gap_ends_covers_it(clock: MockClock) -> None:
    async with stage(2, snapshots=True, snapshot_every=10, snapshots_kept=1) as s:
        leader = await s.leader()
        (other,) = [node for node in s.nodes if node is not leader]
        await leader.replica.propose(command("add", "x", 1))
        await other.replica.wait_applied(0)
        s.cluster.network.stall(other.name, "*")
        log = await open_log(leader.client.opened, "log")
        for number in range(29):
            await leader.replica.propose(command("add", "x", 1))
            if number == 20:
                await (await _writer_roll(leader))
        with trio.fail_after(10):
            while (await log.info()).first_offset < 30:  # noqa: ASYNC110  # As above.
                await trio.sleep(0.01)
        s.cluster.network.heal()
        await other.replica.wait_applied(29)
        await s.same_state()
        assert other.replica.statistics().restores == 1


@pytest.mark.parametrize("trouble", ["store", "bookies", "dropped"])
async def test_a_snapshot_that_cannot_be_read_now_is_not_none(
    clock: MockClock, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(1, snapshots=True, snapshot_every=10, snapshots_kept=1) as s:
        leader = await s.leader()
        other = await s.join(leads=False, snapshots=True)
        s.cluster.network.stall(other.name, "*")
        for _ in range(45):
            await leader.replica.propose(command("add", "x", 1))
        log = await open_log(leader.client.opened, "log")
        await (await _writer_roll(leader))
        for _ in range(45):
            await leader.replica.propose(command("add", "x", 1))
        await eventually(lambda: leader.replica.statistics().snapshot_offset == 90)
        load, failed = LedgerSnapshots.load, list[int]()

        async def fail_once(store: LedgerSnapshots, info: SnapshotInfo) -> bytes:
            if not failed:
                failed.append(info.next_offset)
                match trouble:
                    case "store":
                        raise MetadataUnavailable("it is away")
                    case "bookies":
                        raise EntryUnavailable(1, 0, "nobody answers")
                for _ in range(10):
                    await leader.replica.propose(command("add", "x", 1))
                await eventually(lambda: leader.replica.statistics().snapshot_offset == 100)
                await trio.sleep(1)
            return await load(store, info)

        monkeypatch.setattr(LedgerSnapshots, "load", fail_once)
        with trio.fail_after(10):
            while (await log.info()).first_offset < 90:  # noqa: ASYNC110  # As above.
                await trio.sleep(0.01)
        s.cluster.network.heal()
        await other.replica.wait_applied(89)
        assert failed == [90]
        await s.same_state()


async def _writer_roll(node: Node) -> Any:
    leading = node.replica._leading
    assert leading is not None
    return leading._writer.roll()


async def test_a_gap_that_no_snapshot_covers_stops_the_replica_and_it_says_so(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        for _ in range(5):
            await leader.replica.propose(command("add", "x", 1))
        log = await open_log(leader.client.opened, "log")
        await log.truncate(3)
        late = await s.join(leads=False)
        await eventually(lambda: late.replica.failure is not None)
        with pytest.raises(ReplicaStopped, match="records 0 to 2 are truncated"):
            await late.replica.propose(b"")
        with pytest.raises(ReplicaStopped):
            await late.replica.read(lambda machine: 1)
        with pytest.raises(ReplicaStopped):
            await late.replica.wait_applied(4)
        assert late.replica.next_offset == 0
        assert leader.replica.failure is None


async def test_a_follower_of_a_log_whose_record_is_lost_stops(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        follower = await s.join(leads=False)
        log = await open_log(leader.client.opened, "log")
        await leader.client.store.delete(log_record_path(log.incarnation))
        await eventually(lambda: follower.replica.failure is not None)
        assert "lost the record of log 'log'" in str(follower.replica.failure)


async def test_a_gap_is_not_crossed_by_a_snapshot_that_is_too_short(clock: MockClock) -> None:
    async with stage(1, snapshots=True, snapshot_every=10, truncate=False) as s:
        leader = await s.leader()
        for _ in range(15):
            await leader.replica.propose(command("add", "x", 1))
        await eventually(lambda: leader.replica.statistics().snapshots == 1)
        log = await open_log(leader.client.opened, "log")
        await log.truncate(12)
        late = await s.join(snapshots=True, leads=False)
        assert late.replica.next_offset == 10
        await eventually(lambda: late.replica.failure is not None)
        assert late.replica.next_offset == 10
        with pytest.raises(ReplicaStopped, match="records 10 to 11 are truncated"):
            await late.replica.wait_applied(14)


async def commands_lost(s: Stage, *others: Node) -> InMemory:
    """Propose 100 commands at a leader that then dies. The log loses those from 51 on.

    ``others`` have applied all of them. Return a store with a snapshot of all of them.
    """
    store = InMemory()
    leader = await s.join(election=False, snapshots=store, truncate=False)
    await leader.replica.wait_leading()
    leading = leader.replica._leading
    assert leading is not None
    bookies = leading._writer._leader._writer.metadata.last_fragment.ensemble
    for number in range(100):
        if number == 51:
            await trio.sleep(1)  # The third bookie has the first 51 commands now, and gets no more.
            s.cluster.network.stall(leader.client.host, bookies[2])
        await leader.replica.propose(command("add", "x", 1))
    assert (await leader.replica.snapshot()).next_offset == 100
    for other in others:
        await other.replica.wait_applied(99)
    await leader.kill()
    for bookie in bookies[:2]:
        await s.cluster.bookies[bookie].lose_disk()
        await s.cluster.bookies[bookie].start()
    log = await open_log(s.client.opened, "log")
    await log.recover(accept_loss=True)
    assert (await log.info()).next_offset == 51
    return store


@pytest.mark.parametrize("election", [False, True])
async def test_a_replica_that_is_ahead_of_its_log_stops_when_it_would_lead(
    clock: MockClock, election: bool
) -> None:
    async with stage(replication=Replication(3, 3, 2)) as s:
        store = await commands_lost(s)
        late = await s.join(election=election, snapshots=store)
        with trio.fail_after(60), pytest.raises(ReplicaStopped, match=r"ends at offset 51: .* up to 99"):
            await late.replica.wait_leading()
        log = await open_log(s.client.opened, "log")
        assert len((await log.info()).segments) <= 2, "it takes the log over once, and not again and again"


async def test_a_replica_that_has_applied_lost_commands_applies_none_with_the_same_offsets(
    clock: MockClock,
) -> None:
    async with stage(replication=Replication(3, 3, 2)) as s:
        follower = await s.join(leads=False)
        away = await s.join(leads=False)
        store = await commands_lost(s, follower, away)
        away.client.store.disconnect()
        restored = await s.join(leads=False, snapshots=store)
        assert restored.replica.next_offset == 100
        heir = await s.join(election=False)
        await heir.replica.wait_leading()
        for _ in range(70):
            await heir.replica.propose(command("add", "y", 1))
        away.client.store.reconnect()
        for node in (follower, away, restored):
            await eventually(lambda: node.replica.failure is not None)  # noqa: B023  # It is awaited here.
            assert node.replica.next_offset == 100
            assert "y" not in node.replica._machine.values
        late = await s.join(snapshots=store, election=False)
        with pytest.raises(ReplicaStopped, match="record 99 is of epoch 3, and was of epoch 1"):
            await late.replica.wait_leading()
        assert heir.replica.failure is None


async def test_a_replica_that_has_not_followed_yet_reads_its_last_record_again_before_it_leads(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(replication=Replication(3, 3, 2)) as s:
        store = await commands_lost(s)
        heir = await s.join(election=False)
        await heir.replica.wait_leading()
        for _ in range(49):
            await heir.replica.propose(command("add", "y", 1))
        assert heir.replica.next_offset == 100
        await heir.leave()

        async def never(_: Replica[Any]) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(Replica, "_follow", never)
        late = await s.join(election=False, snapshots=store)
        with pytest.raises(ReplicaStopped, match="record 99 is of epoch 3, and was of epoch 1"):
            await late.replica.wait_leading()


async def test_a_replica_goes_on_if_the_last_record_that_it_applied_is_truncated(clock: MockClock) -> None:
    async with stage() as s:
        leader = await s.join(election=False, snapshots=True, snapshots_kept=1)
        await leader.replica.wait_leading()
        for _ in range(5):
            await leader.replica.propose(command("add", "x", 1))
        await leader.replica.snapshot()
        log = await open_log(s.client.opened, "log")
        assert (await log.info()).first_offset == 5
        follower = await s.join(leads=False, snapshots=True)
        await leader.replica.propose(command("add", "x", 1))
        await follower.replica.wait_applied(5)
        await leader.leave()
        heir = await s.join(election=False, snapshots=True)
        await heir.replica.wait_leading()
        assert await heir.replica.propose(command("add", "x", 1)) == b"7"
        await follower.replica.wait_applied(6)


async def test_a_damaged_snapshot_is_told_and_an_older_one_used(clock: MockClock) -> None:
    async with stage(1, snapshots=True, snapshot_every=10) as s:
        leader = await s.leader()
        for _ in range(25):
            await leader.replica.propose(command("add", "x", 1))
        await eventually(lambda: leader.replica.statistics().snapshots == 2)
        log = await open_log(leader.client.opened, "log")
        store = LedgerSnapshots(_Wrapped(leader.client.opened))
        newest = (await store.find(log.incarnation))[0]
        damaged = bytearray(await store.load(newest))
        damaged[-20] ^= 1
        await store.save("log", log.incarnation, newest.next_offset, [bytes(damaged)])
        for ledger in [int(newest.place.split()[1])]:
            await store._drop(log.incarnation, {ledger})
        late = await s.join(snapshots=True, wait=False)
        events = late.replica.events()
        await late.entered.wait()
        kinds = [event.kind async for event in _first(events, 2)]
        assert kinds == [EventKind.SNAPSHOT_FAILED, EventKind.RESTORED]
        await s.same_state()
        assert late.replica.statistics().snapshot_offset == 10


async def test_a_record_that_is_no_command_stops_the_replica(clock: MockClock) -> None:
    async with stage() as s:
        log = await open_log(s.client.opened, "log")
        async with log.writer() as writer:
            await writer.append(b"something else")
        node = await s.join()
        events = node.replica.events()
        await eventually(lambda: node.replica.failure is not None)
        with pytest.raises(ReplicaStopped, match="record 0 of log 'log' is not a command"):
            await node.replica.wait_leading()
        assert [event.kind async for event in events][-1] is EventKind.STOPPED


async def test_a_machine_that_has_no_memory_stops_its_replica_only(clock: MockClock) -> None:
    async with stage(2) as s:
        leader = await s.leader()

        def fail(_: object) -> bytes:
            raise MemoryError("no room")

        leader.replica._machine.apply = fail
        with pytest.raises((ReplicaStopped, AppendUnknown, NotLeader)):
            await leader.replica.propose(command("add", "x", 1), request_id="r")
        second = await s.leader(leader)
        assert await second.replica.propose(command("add", "x", 1), request_id="r") == b"1"
        with pytest.raises(ReplicaStopped, match="MemoryError: no room"):
            await leader.replica.read(lambda machine: 1)


def fail_at_first(machine: Any, error: BaseException) -> list[object]:
    """Let the machine's first command raise ``error``. Returns the commands that the machine gets."""
    tries: list[object] = []

    def apply(command: object) -> bytes:
        tries.append(command)
        if len(tries) == 1:
            raise error
        return b""

    machine.apply = apply
    return tries


async def test_a_machine_that_had_no_memory_does_not_get_the_command_again(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        tries = fail_at_first(leader.replica._machine, MemoryError("no room"))
        with pytest.raises(AppendUnknown):
            await leader.replica.propose(command("add", "x", 1))
        assert leader.replica.failure is not None, "it has stopped before its proposer learns of it"
        await trio.sleep(10)
        assert len(tries) == 1
        assert leader.replica.next_offset == 0


async def test_a_machine_that_was_interrupted_does_not_get_the_command_again(clock: MockClock) -> None:
    async with stage() as s:
        machine = Keys()
        tries = fail_at_first(machine, KeyboardInterrupt("ctrl-c"))
        replica = Replica(await open_log(s.client.opened, "log"), machine)

        async def propose() -> None:
            async with replica:
                await replica.wait_leading()
                with pytest.raises(AppendUnknown):
                    await replica.propose(command("add", "x", 1))
                await trio.sleep(10)

        with pytest.raises(BaseExceptionGroup) as ended:
            await propose()
        assert isinstance(the_one(ended.value), KeyboardInterrupt)
        assert len(tries) == 1
        assert replica.next_offset == 0
        with pytest.raises(ReplicaStopped, match="KeyboardInterrupt: ctrl-c") as caught:
            await replica.read(lambda machine: 1)
        assert isinstance(caught.value.__cause__, KeyboardInterrupt)


async def test_a_replica_stops_though_it_cannot_say_why(clock: MockClock) -> None:
    class Nasty(KeyboardInterrupt):
        def __str__(self) -> str:
            raise MemoryError

    async with stage() as s:
        machine = Keys()
        fail_at_first(machine, Nasty())
        replica = Replica(await open_log(s.client.opened, "log"), machine)

        async with replica:
            await replica.wait_leading()
            with pytest.raises(AppendUnknown):
                await replica.propose(command("add", "x", 1))
            with pytest.raises(ReplicaStopped, match="Nasty") as caught:
                await replica.read(lambda machine: 1)
            assert isinstance(caught.value.__cause__, Nasty)
            with trio.fail_after(5), pytest.raises(ReplicaStopped):
                await replica.wait_applied(0)


@pytest.mark.parametrize("error", [ValueError("odd"), MetadataUnavailable("odd"), KeyboardInterrupt("odd")])
async def test_a_machine_whose_restore_raises_at_the_start_stops_its_replica(
    clock: MockClock, error: BaseException
) -> None:
    async with stage(1, snapshots=True, snapshot_every=10) as s:
        leader = await s.leader()
        for _ in range(10):
            await leader.replica.propose(command("add", "x", 1))
        await eventually(lambda: leader.replica.statistics().snapshots == 1)

        def fail(_: object) -> None:
            raise error

        machine: Any = Keys()
        machine.restore = fail
        replica = Replica(
            await open_log(s.client.opened, "log"),
            machine,
            leads=False,
            snapshots=LedgerSnapshots(_Wrapped(s.client.opened)),
        )
        with pytest.raises(ReplicaStopped if isinstance(error, Exception) else KeyboardInterrupt):
            await replica.__aenter__()
        with pytest.raises(ReplicaStopped, match="odd") as caught:
            await replica.read(lambda machine: 1)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [ValueError("odd"), MetadataUnavailable("odd")])
async def test_a_machine_whose_restore_raises_at_a_gap_stops_its_replica_and_restores_nothing_more(
    clock: MockClock, error: Exception
) -> None:
    async with stage(2, snapshots=True, snapshot_every=10, snapshots_kept=1) as s:
        leader = await s.leader()
        (other,) = [node for node in s.nodes if node is not leader]
        tries: list[object] = []

        def fail(chunks: object) -> None:
            tries.append(chunks)
            raise error

        other.replica._machine.restore = fail
        s.cluster.network.stall(other.name, "*")
        log = await open_log(leader.client.opened, "log")
        for number in range(29):
            await leader.replica.propose(command("add", "x", 1))
            if number == 20:
                await (await _writer_roll(leader))
        await leader.replica.propose(command("add", "x", 1))
        with trio.fail_after(10):
            while (await log.info()).first_offset < 30:  # noqa: ASYNC110  # As above.
                await trio.sleep(0.01)
        s.cluster.network.heal()
        await eventually(lambda: other.replica.failure is not None)
        with pytest.raises(ReplicaStopped, match="odd") as caught:
            await other.replica.read(lambda machine: 1)
        assert caught.value.__cause__ is error
        await trio.sleep(60)
        assert len(tries) == 1


async def test_a_wrong_return_value_stops_each_replica_and_a_corrected_one_executes_the_command(
    clock: MockClock,
) -> None:
    async with stage(2) as s:
        leader = await s.leader()
        given: list[Node] = []

        def wrong_at_first(node: Node) -> Any:
            given.append(node)
            return 1 if given.count(node) == 1 else b""

        for node in s.nodes:
            node.replica._machine.apply = partial(lambda node, _: wrong_at_first(node), node)
        with pytest.raises(AppendUnknown):
            await leader.replica.propose(command("add", "x", 1), request_id="r")
        for node in s.nodes:
            await eventually(lambda node=node: node.replica.failure is not None)
            with pytest.raises(ReplicaStopped, match="TypeError: apply returned int, not bytes or None"):
                await node.replica.read(lambda machine: 1)
        await trio.sleep(10)
        assert len(given) == 2, "no machine gets the command again"
        corrected = await s.join()
        await corrected.replica.wait_leading()
        assert await corrected.replica.propose(command("add", "x", 1), request_id="r") == b"1"
        assert corrected.replica.statistics().executed == 1


async def test_a_sealed_log_takes_nothing_more_and_is_followed_to_its_end(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        await leader.replica.propose(command("add", "x", 1))
        log = await open_log(leader.client.opened, "log")
        await log.seal()
        with pytest.raises((LogSealed, NotLeader, AppendUnknown)):
            await leader.replica.propose(command("add", "x", 1))
        late = await s.join()
        await late.replica.wait_applied(0)
        with pytest.raises(LogSealed):
            await late.replica.wait_leading()
        with pytest.raises(LogSealed):
            await late.replica.propose(command("add", "x", 1))


async def test_who_leaves_finishes_what_was_proposed_and_the_next_one_leads_at_once(clock: MockClock) -> None:
    async with stage(2) as s:
        leader = await s.leader()
        results: list[bytes] = []

        async def propose() -> None:
            results.append(await leader.replica.propose(command("add", "x", 1)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(propose)
            await trio.testing.wait_all_tasks_blocked(0.0)
            began = trio.current_time()
            await leader.leave()
        assert sorted(map(int, results)) == list(range(1, 21))
        assert leader.error is None
        await s.leader(leader)
        assert trio.current_time() - began < 1
        with pytest.raises(ReplicaStopped, match="it was left"):
            await leader.replica.propose(b"")


async def test_without_an_election_a_replica_leads_at_once_and_gives_way_to_another(clock: MockClock) -> None:
    async with stage() as s:
        first = await s.join(election=False)
        await first.replica.wait_leading()
        await first.replica.propose(command("add", "x", 1))
        second = await s.join(election=False)
        await second.replica.wait_leading()
        assert await second.replica.propose(command("add", "x", 1)) == b"2"
        await eventually(lambda: not first.replica.is_leading)
        await trio.sleep(10)
        assert second.replica.is_leading, "the first does not take the lead back"
        with pytest.raises(NotLeader) as refused:
            await first.replica.propose(command("add", "x", 1))
        assert refused.value.leader is None
        await s.same_state()


async def test_who_is_overtaken_before_he_leads_follows_on(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        pause, serve = Replica._pause_following, Replica._serve_leading
        overtaken: list[Replica[Any]] = []
        led: list[Replica[Any]] = []

        async def noted(replica: Replica[Any], *args: Any) -> None:
            led.append(replica)
            await serve(replica, *args)

        async def overtake(replica: Replica[Any]) -> None:
            # This replica has taken the log over. Now another one does, and this one follows its records.
            if not overtaken:
                overtaken.append(replica)
                other = await s.join(election=False)
                await other.replica.wait_leading()
                await other.replica.propose(command("add", "x", 1))
                await replica.wait_applied(0)
            await pause(replica)

        monkeypatch.setattr(Replica, "_pause_following", overtake)
        monkeypatch.setattr(Replica, "_serve_leading", noted)
        first = await s.join(election=False)
        await eventually(lambda: len(s.nodes) == 2)
        (other,) = [node for node in s.nodes if node is not first]
        await trio.sleep(10)
        assert first.replica.failure is None
        assert first.replica not in led
        assert other.replica.is_leading, "the overtaken replica does not take the lead back"
        assert await other.replica.propose(command("add", "x", 1)) == b"2"
        await first.replica.wait_applied(1)


async def test_who_cannot_come_to_the_end_of_the_log_lets_another_one_lead(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(1) as s:
        first = await s.leader()
        await first.replica.propose(command("add", "x", 1))
        read = Log.read

        def cannot_read(log: Log, *args: Any, **options: Any) -> Any:
            raise ArchiveUnavailable("a.parquet", "it is not mounted here")

        monkeypatch.setattr(Log, "read", cannot_read)
        blind = await s.join()
        await trio.sleep(1)
        monkeypatch.setattr(
            Log,
            "read",
            lambda log, *a, **o: (cannot_read if log is blind.replica._log else read)(log, *a, **o),
        )
        await first.kill()
        election = Election(s.client.opened, "log", listen="nowhere")
        elected = ""
        while elected != blind.name:
            await trio.sleep(0.1)
            leader = await election.leader()
            elected = "" if leader is None else leader.candidate
        other = await s.join()
        await eventually(lambda: other.replica.is_leading, timeout_s=40)
        assert await other.replica.propose(command("add", "x", 1)) == b"2"
        await trio.sleep(60)
        assert other.replica.is_leading
        assert not blind.ended.is_set(), "the blind replica keeps trying"


async def test_a_leadership_that_ends_while_following_stops_lets_it_go_on(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        pause = Replica._pause_following
        paused: list[Replica[Any]] = []

        async def end(replica: Replica[Any]) -> None:
            await pause(replica)
            if not paused:
                paused.append(replica)
                await trio.sleep_forever()  # The end of the leadership cancels this.

        monkeypatch.setattr(Replica, "_pause_following", end)
        first = await s.join()
        await eventually(lambda: bool(paused))
        other = await s.join(election=False)
        await other.replica.wait_leading()
        await other.replica.propose(command("add", "x", 1))
        await other.leave()
        first.client.store.inner.expire_session()
        with trio.fail_after(30):
            await first.replica.wait_applied(0)
        await s.leader()
        assert await first.replica.propose(command("add", "x", 1)) == b"2"


async def test_a_store_that_is_away_for_a_while_is_waited_out(clock: MockClock) -> None:
    async with stage(2) as s:
        leader = await s.leader()
        await leader.replica.propose(command("add", "x", 1))
        for node in s.nodes:
            node.client.store.disconnect()
        await trio.sleep(SESSION_TIMEOUT_S)
        for node in s.nodes:
            node.client.store.reconnect()
        leader = await s.leader()
        assert await leader.replica.propose(command("add", "x", 1)) == b"2"
        await s.same_state()


async def test_a_replica_is_made_with_sense(clock: MockClock) -> None:
    async with stage() as s:
        log = await open_log(s.client.opened, "log")
        for wrong in ({"snapshot_every": 0}, {"snapshots_kept": 0}, {"truncate": True}):
            with pytest.raises(InvalidArgument):
                Replica(log, Keys(), **wrong)
        replica = Replica(log, Keys())
        async with replica:
            with pytest.raises(InvalidArgument, match="no store"):
                await replica.snapshot()
        with pytest.raises(InvalidArgument, match="entered once"):
            async with replica:
                pass


# --- joining, waiting, snapshots -----------------------------------------------------------------------


async def test_who_joined_a_barrier_whose_maker_was_cancelled_gets_one_of_his_own(clock: MockClock) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        await leader.replica.propose(command("set", "x", 1))
        found: list[object] = []
        made = trio.CancelScope()

        async def read(scope: trio.CancelScope) -> None:
            with scope:
                found.append(await leader.replica.read(lambda m: m.values["x"], consistency="linear"))

        async with trio.open_nursery() as nursery:
            s.cluster.network.stall(leader.name, "*")
            nursery.start_soon(read, trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked(0.0)
            nursery.start_soon(read, made)  # The next barrier, which waits for the first.
            await trio.testing.wait_all_tasks_blocked(0.0)
            for _ in range(3):
                nursery.start_soon(read, trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked(0.0)
            made.cancel()
            await trio.testing.wait_all_tasks_blocked(0.0)
            assert found == [], "nothing was appended since the reads began"
            s.cluster.network.heal()
        assert found == [1] * 4


async def test_who_joined_a_proposal_whose_proposer_was_cancelled_proposes_himself(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(1) as s:
        leader = await s.leader()
        submit, held = LogWriter.submit, trio.Event()

        async def slow(writer: LogWriter, *args: Any, **options: Any) -> Any:
            if not held.is_set():
                held.set()
                await trio.sleep_forever()  # The window is full.
            return await submit(writer, *args, **options)

        monkeypatch.setattr(LogWriter, "submit", slow)
        results: list[bytes] = []
        first = trio.CancelScope()

        async def propose(scope: trio.CancelScope) -> None:
            with scope:
                results.append(await leader.replica.propose(command("add", "x", 1), request_id="r"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(propose, first)
            await held.wait()
            for _ in range(3):
                nursery.start_soon(propose, trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked(0.0)
            first.cancel()
        assert results == [b"1"] * 3
        assert leader.replica.next_offset == 1


async def test_a_command_that_the_writer_takes_while_the_lead_is_lost_is_not_told_as_unwritten(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits for a place in the window. Its leadership ends, yet the writer still takes it."""
    async with stage(1) as s:
        leader = await s.leader()
        submit, held, go_on = LogWriter.submit, trio.Event(), trio.Event()
        errors: list[LedgerLogError] = []

        async def slow(writer: LogWriter, *args: Any, **options: Any) -> Any:
            held.set()
            await go_on.wait()
            return await submit(writer, *args, **options)

        async def propose() -> None:
            try:
                await leader.replica.propose(command("set", "x", 1))
            except LedgerLogError as error:
                errors.append(error)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                with monkeypatch.context() as patch:
                    patch.setattr(LogWriter, "submit", slow)
                    nursery.start_soon(propose)
                    await held.wait()
                leading = leader.replica._leading
                assert leading is not None
                leading.abandon()
                await trio.testing.wait_all_tasks_blocked(0.0)
                assert errors == [], "the outcome is not known yet"
                go_on.set()
        assert [type(error) for error in errors] == [AppendUnknown]


async def test_waiting_to_lead_ends_where_that_will_never_be(clock: MockClock) -> None:
    async with stage() as s:
        follower = await s.join(leads=False)
        with pytest.raises(InvalidArgument, match="leads=False"):
            await follower.replica.wait_leading()
        first = await s.join(election=False)
        await first.replica.wait_leading()
        second = await s.join(election=False)
        await second.replica.wait_leading()
        await eventually(lambda: not first.replica.is_leading)
        with trio.fail_after(10), pytest.raises(LostLeadership) as lost:
            await first.replica.wait_leading()
        assert lost.value.epoch is not None
        waited: list[LedgerLogError] = []

        async def wait(replica: Replica[Any]) -> None:
            try:
                await replica.wait_leading()
            except LedgerLogError as error:
                waited.append(error)

        third = await s.join()
        await s.leader(first, second, follower)
        fourth = await s.join()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, fourth.replica)
            await trio.testing.wait_all_tasks_blocked(0.0)
            await (await open_log(third.client.opened, "log")).seal()
        assert [type(error) for error in waited] == [LogSealed]


async def test_a_new_leader_takes_the_next_snapshot_when_it_is_due_and_not_at_once(clock: MockClock) -> None:
    async with stage(2, snapshots=True, snapshot_every=20) as s:
        leader = await s.leader()
        (other,) = [node for node in s.nodes if node is not leader]
        for _ in range(45):
            await leader.replica.propose(command("add", "x", 1))
        await eventually(lambda: leader.replica.statistics().snapshots == 2)
        await other.replica.wait_applied(44)
        await leader.leave()
        assert await s.leader(leader) is other
        for _ in range(10):
            await other.replica.propose(command("add", "x", 1))
        await trio.sleep(5)
        assert other.replica.statistics().snapshots == 0, "the newest snapshot reaches up to 40"
        for _ in range(10):
            await other.replica.propose(command("add", "x", 1))
        await eventually(lambda: other.replica.statistics().snapshot_offset == 60)


async def test_a_machine_whose_snapshot_fails_goes_on_without_and_it_is_told(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(1, snapshots=True, snapshot_every=5) as s:
        leader = await s.leader()
        events = leader.replica.events()
        with monkeypatch.context() as patch:

            def fail(_: Keys) -> Any:
                raise KeyError("no such thing")

            patch.setattr(Keys, "snapshot", fail)
            for number in range(7):
                assert await leader.replica.propose(command("add", "x", 1)) == b"%d" % (number + 1)
            with pytest.raises(KeyError):
                await leader.replica.snapshot()
        (told,) = [event async for event in _first(events, 1)]
        assert (told.kind, told.detail) == (EventKind.SNAPSHOT_FAILED, "KeyError: 'no such thing'")
        for _ in range(5):
            await leader.replica.propose(command("add", "x", 1))
        await eventually(lambda: leader.replica.statistics().snapshots == 1)
        assert leader.replica.failure is None


async def test_a_snapshot_that_fails_with_an_error_that_cannot_say_its_text_is_told_without_text(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    def fail(_: Keys) -> Any:
        raise Mute

    monkeypatch.setattr(Keys, "snapshot", fail)
    async with stage(1, snapshots=True, snapshot_every=5) as s:
        leader = await s.leader()
        events = leader.replica.events()
        for _ in range(5):
            await leader.replica.propose(command("add", "x", 1))
        (told,) = [event async for event in _first(events, 1)]
        assert (told.kind, told.detail) == (EventKind.SNAPSHOT_FAILED, "Mute: ")
        assert leader.replica.failure is None


async def test_a_state_that_is_too_large_for_a_snapshot_costs_no_older_snapshot_and_no_record(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "REPLICA_SNAPSHOT_BYTES_MAX", 10_000)
    async with stage(1, snapshots=True, snapshot_every=5, snapshots_kept=1) as s:
        leader = await s.leader()
        for number in range(5):
            await leader.replica.propose(command("set", str(number), 1))
        await eventually(lambda: leader.replica.statistics().snapshots == 1)
        events = leader.replica.events()
        for number in range(20):
            await leader.replica.propose(command("set", str(number), "x" * 4000))
        assert EventKind.SNAPSHOT_FAILED in [event.kind async for event in _first(events, 2)]
        with pytest.raises(StorageError):
            await leader.replica.snapshot()
        log = await open_log(leader.client.opened, "log")
        assert (await log.info()).first_offset == 5
        await leader.leave()
        late = await s.join(snapshots=True)
        await s.leader(leader)
        assert late.replica.statistics().restores == 1
        assert late.replica.digest() == leader.replica.digest()


async def test_a_state_that_stays_too_large_for_a_snapshot_is_tried_ever_more_rarely(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "REPLICA_SNAPSHOT_BYTES_MAX", 10_000)
    async with stage(1, snapshots=True, snapshot_every=5) as s:
        leader = await s.leader()
        events = leader.replica.events()
        await leader.replica.propose(command("set", "large", "x" * 20_000))
        for number in range(5 * 2**4):
            await leader.replica.propose(command("set", "small", number))
        failed = [event async for event in _first(events, 4)]
        assert [event.kind for event in failed] == [EventKind.SNAPSHOT_FAILED] * 4
        offsets = [event.offset for event in failed]
        assert all(b - a >= least for (a, b), least in zip(pairwise(offsets), (10, 20, 40), strict=True))
        await leader.replica.propose(command("set", "large", ""))
        while (taken := leader.replica.statistics().snapshots) == 0:
            await leader.replica.propose(command("set", "small", 0))
        for number in range(10):
            await leader.replica.propose(command("set", "small", number))
        await eventually(lambda: leader.replica.statistics().snapshots > taken)


async def test_who_waits_for_a_replica_that_cannot_be_entered_is_told(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        replica = Replica(
            await open_log(s.client.opened, "log"),
            Keys(),
            snapshots=LedgerSnapshots(_Wrapped(s.client.opened)),
        )
        events = replica.events()
        ended: list[type[Exception]] = []

        async def wait(call: Any, *args: Any) -> None:
            try:
                await call(*args)
            except ReplicaStopped as stopped:
                ended.append(type(stopped))

        async def away(*_: object) -> Any:
            raise MetadataUnavailable("it is away")

        monkeypatch.setattr(LedgerSnapshots, "find", away)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, replica.wait_leading)
                nursery.start_soon(wait, replica.wait_applied, 0)
                await trio.testing.wait_all_tasks_blocked(0.0)
                with pytest.raises(MetadataUnavailable):
                    await replica.__aenter__()
            assert [event async for event in events] == []
        assert ended == [ReplicaStopped] * 2
