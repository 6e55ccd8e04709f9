"""A workload: the counters of ``counters``, as replicas of a state machine (``ledgerlog.machine``).

Several processes run a replica each. An election decides which replica leads; the others follow. The leader
takes snapshots into ledgers and truncates the log behind them. Processes come and go, so replicas restore
snapshots, apply the rest of the log, and take the lead over from each other.

Users give commands as in ``counters``. Each command has an id of its own as its request id. The machine does
not look for repetitions: the replicas must execute each request once. Some users lose patience and ask again
at once, and some commands are of a kind that the machine refuses.

In half of the runs one more replica only follows. It is cut off again and again, for so long that the log is
truncated meanwhile. Now and then a process dies while it writes a snapshot into a file, or the file system
fails. One snapshot of a run may be damaged; the leader keeps two of them.

What must hold:

    ReplicasAgree   at the same offset, all replicas that ever ran have the same digest of their state
    OneLeader       each epoch of the log has one leader, in one life of its process
    LinearRead      a linear read sees every command that was answered before it
    Refused         a command that the machine refuses fails with the machine's error, each time that it is
                    proposed. It is executed once
    SnapshotCovers  no replica has to stop because no snapshot covers a gap of the log
    ReplayComplete  in the end a new replica leads. Its state gives each answered command the answer that its
                    user got, once, in the order of real time. A second replica, which only follows, agrees
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import TypeVar

import trio

from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import CommandFailed, LedgerLogError, NotLeader, ReplicaStopped
from ledgerlog.machine.directory import DirectorySnapshots
from ledgerlog.machine.machine import StateMachine
from ledgerlog.machine.replica import Replica
from ledgerlog.machine.snapshots import LedgerSnapshots, SnapshotStore
from ledgerlog.model.command import Command
from ledgerlog.model.policies import RollPolicy
from ledgerlog.testing.counters import Counters, CounterState, UserCommand
from ledgerlog.testing.network import EVERYBODY
from ledgerlog.testing.world import World, retry

__all__ = ["CounterMachine", "ReplicatedCounters"]

T = TypeVar("T")


REFUSED = b"no command"
"""A command that the machine refuses."""


class FailingSnapshots(DirectorySnapshots):
    """Snapshots in a directory whose file system fails now and then.

    Args:
        path: The directory.
        random: The generator of the failures.
        shared: As for ``DirectorySnapshots``.
    """

    def __init__(self, path: str, random: Random, *, shared: bool) -> None:
        super().__init__(path, shared=shared)
        self._random = random

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def fail() -> T:
            raise OSError(self._random.choice((errno.EIO, errno.ENOSPC)), "the file system fails")

        return await super()._in_thread(fail if self._random.random() < 0.02 else work)


class CounterMachine(StateMachine):
    """Counters, and the answer to each command. It executes every command that it gets.

    It also counts how often it has refused each request. So it changes its state although it raises.
    """

    def __init__(self) -> None:
        self.state = CounterState()
        self.refusals: dict[str, int] = {}

    def apply(self, command: Command) -> bytes:
        if command.data == REFUSED:
            self.refusals[command.request_id] = self.refusals.get(command.request_id, 0) + 1
            raise ValueError("refused")
        return b"%d" % self.state.execute(json.loads(command.data))

    def snapshot(self) -> Iterable[bytes]:
        counters, answers = sorted(self.state.counters.items()), sorted(self.state.answers.items())
        yield json.dumps([counters, sorted(self.refusals.items())]).encode()
        for answer in answers:
            yield json.dumps(answer).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        (counters, refusals), *answers = map(json.loads, chunks)
        self.state, self.refusals = CounterState(dict(counters), dict(answers)), dict(refusals)


class ReplicatedCounters(Counters):
    """The workload (``world.Workload``)."""

    LOG = "replicated-counters"
    PROCESS = "replica"
    MAKER = "replica-maker"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._services.append(f"{self.PROCESS}-{len(self._services) + 1}")  # So that one can always follow.
        self._snapshot_every = self._dice.choice((2, 5, 20))
        self._is_shared = self._dice.random() < 0.5
        # A log is truncated by whole ledgers. So a replica that lags finds a gap only if ledgers are short.
        self._roll = self._dice.choice((self._swarm.roll, RollPolicy(max_records=3)))
        self._may_damage_snapshot = True
        self._laggard = "lagging-replica" if self._dice.random() < 0.5 else None
        self._refused: list[str] = []
        self._digests: dict[int, str] = {}
        self._leaders: dict[int, str] = {}

    @property
    def clients(self) -> list[str]:
        return [*self._services, *filter(None, [self._laggard])]

    async def prepare(self) -> None:
        await super().prepare()
        if self._laggard is not None:
            self._cluster.start(self._laggard, self._follow)
            self._world.nursery.start_soon(self._cut_off, self._laggard)

    async def _cut_off(self, name: str) -> None:
        """Cut off a process again and again, for a while each time."""
        network, dice = self._cluster.network, self._dice
        while not self._is_over:
            await trio.sleep(dice.expovariate(4 / self._pace_s))
            network.block(name, EVERYBODY)
            await trio.sleep(dice.expovariate(1 / self._pace_s))
            network.heal(name, EVERYBODY)

    async def _follow(self, client: Cluster) -> None:
        """Only follow, and compare the state with the others now and then."""
        dice, world, name = self._dice, self._world, str(self._laggard)
        while True:
            try:
                async with await self._replica(client, name, leads=False) as replica:
                    restores = replica.statistics().restores
                    with trio.move_on_after(dice.expovariate(1 / (4 * self._pace_s))):
                        while True:
                            await trio.sleep(self._pace_s / 8)
                            self._compare(replica, name)
                            await replica.read(lambda machine: len(machine.state.answers))
                            restores, before = replica.statistics().restores, restores
                            world.counts["restored behind a gap"] += restores - before
            except LedgerLogError as error:
                self._require_snapshot(error)
                world.event("follower failed", type(error).__name__)
            await world.rest(dice.expovariate(4 / self._pace_s))

    async def _serve(self, name: str, client: Cluster) -> None:
        dice, world = self._dice, self._world
        life = f"{name} in its life {self._cluster.process(name).lives}"
        while True:
            try:
                async with await self._replica(client, name) as replica:
                    with trio.move_on_after(dice.expovariate(1 / (4 * self._pace_s))):
                        await self._take_part(replica, life)
                    world.counts["snapshots restored"] += replica.statistics().restores
            except LedgerLogError as error:
                self._require_snapshot(error)
                world.event("replica failed", type(error).__name__)
            await world.rest(dice.expovariate(4 / self._pace_s))

    def _require_snapshot(self, error: LedgerLogError) -> None:
        if isinstance(error, ReplicaStopped) and "no snapshot" in error.why:
            self._world.god.violate("SnapshotCovers", str(error))

    async def _replica(self, client: Cluster, name: str, *, leads: bool = True) -> Replica[CounterMachine]:
        return Replica(
            await client.open_log(self.LOG),
            CounterMachine(),
            election=client.election(self.LOG, candidate=name) if leads else None,
            snapshots=self._snapshots(client, name),
            leads=leads,
            snapshot_every=self._snapshot_every,
        )

    def _snapshots(self, client: Cluster, name: str) -> SnapshotStore:
        """Return where a replica keeps its snapshots: in ledgers, in files that all share, or in files of its
        own."""
        directory = self._world.directory
        if directory is None:
            return LedgerSnapshots(client)
        where = directory if self._is_shared else f"{directory}/{name}"
        if not self._is_over and self._dice.random() < 0.2:
            # Here a process was killed while it wrote a snapshot.
            Path(where).mkdir(exist_ok=True)
            Path(where, f"snapshot-{0:016x}-{1:016x}.{0:016x}.new").write_bytes(b"unfinished")
        if self._is_over:
            return DirectorySnapshots(where, shared=self._is_shared)
        return FailingSnapshots(where, self._dice, shared=self._is_shared)

    def _damage_snapshot(self, name: str) -> None:
        """Damage the newest snapshot in a directory, once in a run."""
        directory = self._world.directory
        if directory is None or not self._may_damage_snapshot:
            return
        where = directory if self._is_shared else f"{directory}/{name}"
        found = sorted(Path(where).glob("snapshot-" + "?" * 16 + "-" + "?" * 16))
        if len(found) < 2:
            return
        self._may_damage_snapshot = False
        data = found[-1].read_bytes()
        found[-1].write_bytes(data[: self._dice.randrange(len(data))])
        self._world.counts["snapshots damaged"] += 1

    async def _listen(self, replica: Replica[CounterMachine]) -> None:
        async for event in replica.events():
            self._world.counts[f"replica: {event.kind.value}"] += 1

    # --- while there is trouble ---------------------------------------------------------------

    async def _take_part(self, replica: Replica[CounterMachine], life: str) -> None:
        """Compare the state of a replica with the others now and then, and propose commands while it leads.

        Raises:
            ReplicaStopped: It has stopped.
        """
        async with open_nursery() as nursery:
            nursery.start_soon(self._listen, replica)
            for _ in range(2):
                nursery.start_soon(self._read_again_and_again, replica)
            nursery.start_soon(self._work_by_hand, replica, life.partition(" ")[0])
            while True:
                with trio.move_on_after(self._pace_s / 4):
                    await replica.wait_leading()
                self._compare(replica, life)
                if not replica.is_leading:
                    continue
                self._note_leader(replica, life)
                with trio.move_on_after(self._pace_s / 4):
                    while not self._waiting:
                        await self._wanted.wait()
                batch, self._waiting = self._waiting, []
                for command in dict.fromkeys(batch):
                    nursery.start_soon(self._propose, replica, command)

    async def _propose(self, replica: Replica[CounterMachine], command: UserCommand) -> None:
        request_id = f"request {command.number}"
        try:
            if self._dice.random() < 0.1:
                with trio.move_on_after(self._dice.choice((0.0, 0.001, 0.005))):
                    await replica.propose(command.encode(), request_id=request_id)
            answer = await replica.propose(command.encode(), request_id=request_id)
        except LedgerLogError as error:
            self._world.event("not proposed", type(error).__name__)
        else:
            self._answer(command, int(answer))
            if self._dice.random() < 0.2:
                self._waiting.append(command)  # The replica that leads then must give the same answer again.

    async def _work_by_hand(self, replica: Replica[CounterMachine], name: str) -> None:
        """Propose what the machine refuses, take snapshots, and damage one."""
        dice, world = self._dice, self._world
        while True:
            await trio.sleep(dice.expovariate(4 / self._pace_s))
            try:
                if dice.random() < 0.3:
                    await replica.snapshot()
                    world.counts["snapshots taken by hand"] += 1
                    if dice.random() < 0.5:
                        self._damage_snapshot(name)
                    continue
                if not self._refused or dice.random() < 0.5:
                    self._refused.append(replica.new_request_id())
                await replica.propose(REFUSED, request_id=self._refused[-1])
            except CommandFailed as error:
                if (error.error, error.message) != ("ValueError", "refused"):
                    world.god.violate("Refused", f"a refused command failed with {error}")
                world.god.checks["Refused"] += 1
            except NotLeader as error:
                world.counts["told who leads"] += error.leader is not None
            except LedgerLogError as error:
                world.event("not done by hand", type(error).__name__)
            else:
                world.god.violate("Refused", "a command that the machine refuses has a result")

    async def _read_again_and_again(self, replica: Replica[CounterMachine]) -> None:
        while True:
            await trio.sleep(self._dice.expovariate(4 / self._pace_s))
            if replica.is_leading:
                await self._read(replica)

    async def _read(self, replica: Replica[CounterMachine]) -> None:
        answered = [command.number for command in self.commands if command.answer is not None]
        try:
            seen = await replica.read(lambda machine: set(machine.state.answers), consistency="linear")
        except LedgerLogError as error:
            self._world.event("not read", type(error).__name__)
            return
        self._world.counts["linear reads"] += 1
        missing = [number for number in answered if number not in seen]
        if missing:
            self._world.god.violate("LinearRead", f"it does not see the answered commands {missing}")
        self._world.god.checks["LinearRead"] += 1

    def _note_leader(self, replica: Replica[CounterMachine], life: str) -> None:
        epoch = replica.statistics().epoch
        if epoch is None:
            return
        if epoch not in self._leaders:
            self._world.counts["takeovers"] += 1
            self._world.event("leads", epoch, life)
        known = self._leaders.setdefault(epoch, life)
        if known != life:
            self._world.god.violate("OneLeader", f"{known} and {life} lead in epoch {epoch}")
        self._world.god.checks["OneLeader"] += 1

    def _compare(self, replica: Replica[CounterMachine], life: str) -> None:
        offset, digest = replica.digest()
        self._world.counts["followed"] += offset not in self._digests
        if self._digests.setdefault(offset, digest) != digest:
            self._world.god.violate("ReplicasAgree", f"{life} has another state at offset {offset}")
        self._world.god.checks["ReplicasAgree"] += 1

    # --- after it -----------------------------------------------------------------------------

    async def judge(self, client: Cluster) -> None:
        self._is_over = True
        states: list[CounterState] = []

        async def lead_and_follow() -> None:
            async with await self._replica(client, "judge") as leader:
                await leader.wait_leading()
                self._note_leader(leader, "the judge")
                self._compare(leader, "the judge")
                async with await self._replica(client, "judge", leads=False) as follower:
                    await follower.wait_applied(leader.next_offset - 1)
                    self._compare(follower, "the judge's follower")
                states.append(await leader.read(lambda machine: machine.state))
                for request_id, count in (await leader.read(lambda machine: machine.refusals)).items():
                    if count > 1:
                        self._world.god.violate("Refused", f"{request_id} was executed {count} times")

        await retry(self._world, "leading a replica of the counters", lead_and_follow)
        self._check(states[-1])
