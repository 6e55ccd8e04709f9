"""A workload: the counters of ``counters``, as replicas of a state machine (``ledgerlog.machine``).

Several processes run a replica each. An election decides which replica leads; the others follow. The leader
takes snapshots into ledgers and truncates the log behind them. Processes come and go, so replicas restore
snapshots, apply the rest of the log, and take the lead over from each other.

Users give commands as in ``counters``. Each command has an id of its own as its request id. The machine does
not look for repetitions: the replicas must execute each request once.

What must hold:

    ReplicasAgree   at the same offset, all replicas that ever ran have the same digest of their state
    OneLeader       each epoch of the log has one leader, in one life of its process
    LinearRead      a linear read sees every command that was answered before it
    ReplayComplete  in the end a new replica leads. Its state gives each answered command the answer that its
                    user got, once, in the order of real time. A second replica, which only follows, agrees
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import trio

from ledgerlog.cluster import Cluster
from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import LedgerLogError
from ledgerlog.machine.directory import DirectorySnapshots
from ledgerlog.machine.machine import StateMachine
from ledgerlog.machine.replica import Replica
from ledgerlog.machine.snapshots import LedgerSnapshots, SnapshotStore
from ledgerlog.model.command import Command
from ledgerlog.testing.counters import Counters, CounterState, UserCommand
from ledgerlog.testing.world import World, retry

__all__ = ["CounterMachine", "ReplicatedCounters"]


class CounterMachine(StateMachine):
    """Counters, and the answer to each command. It executes every command that it gets."""

    def __init__(self) -> None:
        self.state = CounterState()

    def apply(self, command: Command) -> bytes:
        return b"%d" % self.state.execute(json.loads(command.data))

    def snapshot(self) -> Iterable[bytes]:
        counters, answers = sorted(self.state.counters.items()), sorted(self.state.answers.items())
        yield json.dumps(counters).encode()
        for answer in answers:
            yield json.dumps(answer).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        counters, *answers = map(json.loads, chunks)
        self.state = CounterState(dict(counters), dict(answers))


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
        self._digests: dict[int, str] = {}
        self._leaders: dict[int, str] = {}

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
                world.event("replica failed", type(error).__name__)
            await world.rest(dice.expovariate(4 / self._pace_s))

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
        return DirectorySnapshots(where, shared=self._is_shared)

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
            nursery.start_soon(self._read_again_and_again, replica)
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
        try:
            answer = await replica.propose(command.encode(), request_id=f"request {command.number}")
        except LedgerLogError as error:
            self._world.event("not proposed", type(error).__name__)
        else:
            self._answer(command, int(answer))
            if self._dice.random() < 0.2:
                self._waiting.append(command)  # The replica that leads then must give the same answer again.

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

        await retry(self._world, "leading a replica of the counters", lead_and_follow)
        self._check(states[-1])
