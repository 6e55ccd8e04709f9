"""A workload: a service as a user would write it. It is a state machine, and its commands are in a log.

Several processes offer counters. The leader replays the log and then answers commands. A command adds a
number to a named counter, and its answer is the sum. Each command has an id. Users retry a command at any
process until they get an answer, so the state machine applies each id only once. Now and then the leader
writes a snapshot, as a record of its own, and truncates the log before it.

At the end another process replays the log. The replay must give every answered command the answer that its
user got, and apply it once. The answers must be in the order of real time. Every applied command must come
from a user. A service makes these promises to its users.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError, LostLeadership
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.world import World, retry

__all__ = ["CounterState", "Counters", "UserCommand"]

NAMES = ("red", "green", "blue")


@attrs.define(eq=False)
class CounterState:
    """The state machine: counters, and the answer to each applied command."""

    counters: dict[str, int] = attrs.Factory(dict)
    answers: dict[int, int] = attrs.Factory(dict)
    next_offset: int = 0

    def apply(self, offset: int, data: bytes) -> None:
        """Apply the next record of the log."""
        assert offset >= self.next_offset, "records come in order"
        self.next_offset = offset + 1
        entry: dict[str, Any] = json.loads(data)
        if "snapshot" in entry:
            counters, answers = entry["snapshot"]
            self.counters = dict(counters)
            self.answers = {int(number): answer for number, answer in answers.items()}
        elif entry["id"] not in self.answers:
            self.execute(entry)

    def execute(self, entry: dict[str, Any]) -> int:
        """Execute a command, whether or not it was executed before. Return its answer."""
        name: str = entry["name"]
        answer: int = self.counters.get(name, 0) + entry["add"]
        self.counters[name] = self.answers[entry["id"]] = answer
        return answer

    def snapshot(self) -> bytes:
        """Return a record that replaces all records before it."""
        return json.dumps({"snapshot": [self.counters, self.answers]}).encode()


@attrs.define(eq=False)
class UserCommand:
    """The command of a user, and the answer that the user got."""

    number: int
    name: str
    add: int
    sent_at: int
    answer: int | None = None
    answered_at: int | None = None
    done: trio.Event = attrs.Factory(trio.Event)

    def encode(self) -> bytes:
        return json.dumps({"id": self.number, "name": self.name, "add": self.add}).encode()


class Counters:
    """The workload (``world.Workload``)."""

    LOG = "counters"
    """The name of its log, and of its random stream."""
    PROCESS = "service"
    """The prefix of the names of its processes."""
    MAKER = "counter-maker"
    """The process that creates the log."""

    def __init__(self, world: World) -> None:
        self.commands: list[UserCommand] = []
        self._world = world
        self._swarm = world.swarm
        self._cluster = world.cluster
        self._dice = world.simulation.random(self.LOG)
        self._services = [f"{self.PROCESS}-{number}" for number in range(1, self._swarm.clients + 1)]
        self._pace_s = self._swarm.pace_s
        self._roll = self._swarm.roll
        self._clock = 0
        self._is_over = False
        self._wanted = trio.Event()
        self._waiting: list[UserCommand] = []

    @property
    def clients(self) -> list[str]:
        return self._services

    @property
    def writers(self) -> list[str]:
        return self._services

    async def prepare(self) -> None:
        async with self._cluster.client(self.MAKER) as client:
            await client.create_log(self.LOG, roll=self._roll)
        for name in self._services:
            self._cluster.start(name, partial(self._serve, name))
        # Users are outside of the simulated world: no fault hits them, and they ask until the faults end.
        for user in range(1 + self._swarm.tasks):
            self._world.nursery.start_soon(self._use, name=f"user {user}")

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    # --- users --------------------------------------------------------------------------------

    async def _use(self) -> None:
        dice = self._dice
        while not self._is_over and len(self.commands) < self._swarm.records_max:
            await trio.sleep(dice.expovariate(1 / self._swarm.think_s))
            number = len(self.commands)
            command = UserCommand(number, dice.choice(NAMES), dice.randrange(1, 10), self._tick())
            self.commands.append(command)
            while command.answer is None and not self._is_over:
                self._waiting.append(command)
                self._wanted.set()
                self._wanted = trio.Event()
                with trio.move_on_after(dice.choice((0.05, 0.5, 2.0))):
                    await command.done.wait()

    def _answer(self, command: UserCommand, answer: int) -> None:
        if command.answer is None:
            command.answer, command.answered_at = answer, self._tick()
            command.done.set()
            self._world.counts["acked"] += 1
        elif command.answer != answer:
            raise Violation(f"command {command.number} was answered {command.answer} and then {answer}")

    # --- the service --------------------------------------------------------------------------

    async def _serve(self, name: str, client: Cluster) -> None:
        world, dice = self._world, self._dice
        while True:
            try:
                log = await client.open_log(self.LOG)
                async with log.writer() as writer:
                    world.counts["takeovers"] += 1
                    world.event("serves", writer.epoch, writer.next_offset)
                    with trio.move_on_after(dice.expovariate(1 / self._pace_s)):
                        await self._lead(log, writer)
            except LedgerLogError as error:
                world.event("service failed", type(error).__name__)
            await world.rest(dice.expovariate(4 / self._pace_s))

    async def _lead(self, log: Log, writer: LogWriter) -> None:
        state = await self._replay(log, writer)
        self._world.counts["followed"] += state.next_offset
        while True:
            while not self._waiting:
                await self._wanted.wait()
            batch, self._waiting = self._waiting, []
            wanted = list(dict.fromkeys(batch))
            fresh = [command for command in wanted if command.number not in state.answers]
            for command in wanted:
                if command.number in state.answers:
                    self._answer(command, state.answers[command.number])
            records = [command.encode() for command in fresh]
            snapshots = bool(records) and self._swarm.truncates and self._dice.random() < 0.1
            for ack, data in zip(await writer.append_many(records), records, strict=True):
                self._world.on_ack(ack, self.LOG)
                state.apply(ack.offset, data)
            for command in fresh:
                self._answer(command, state.answers[command.number])
            if snapshots:
                ack = await writer.append(state.snapshot())
                state.next_offset = ack.offset + 1
                self._world.counts["snapshots"] += 1
                await log.truncate(ack.offset)

    async def _replay(self, log: Log, writer: LogWriter) -> CounterState:
        """Replay the whole log, up to the beginning of this leadership."""
        state, end = CounterState(), writer.next_offset
        async with log.read(until=end) as records:
            async for record in records:
                state.apply(record.offset, record.data)
        if state.next_offset != end:
            info = await log.info()
            if info.epoch > writer.epoch and info.first_offset > state.next_offset:
                # A newer leader has written a snapshot and truncated the log before this one read it.
                raise LostLeadership(self.LOG, info.epoch)
            raise Violation(
                f"ReplayComplete: the leader of epoch {writer.epoch} begins at {end}, and the log can be "
                f"replayed up to {state.next_offset}"
            )
        return state

    # --- after it -----------------------------------------------------------------------------

    async def judge(self, client: Cluster) -> None:
        self._is_over = True
        log = await client.open_log(self.LOG)
        states: list[CounterState] = []

        async def lead() -> None:
            async with log.writer() as writer:
                states.append(await self._replay(log, writer))

        await retry(self._world, "leading the counters' log", lead)
        self._check(states[0])

    def _check(self, state: CounterState) -> None:
        per_name: dict[str, list[UserCommand]] = {}
        for number, answer in state.answers.items():
            if number >= len(self.commands):
                raise Violation(f"command {number} is in the log, but no user gave it")
            command = self.commands[number]
            if command.answer not in (None, answer):
                raise Violation(
                    f"command {number} was answered {command.answer}, and the log says {answer}: it is "
                    "lost, or another command was put in front of it"
                )
            per_name.setdefault(command.name, []).append(command)
        for command in self.commands:
            if command.answer is not None and command.number not in state.answers:
                raise Violation(f"command {command.number} was answered {command.answer}, and is lost")
        for name, commands in per_name.items():
            if sum(command.add for command in commands) != state.counters[name]:
                raise Violation(f"the counter {name} is {state.counters[name]}: a command counts twice")
            latest = 0
            for command in sorted(commands, key=lambda command: state.answers[command.number]):
                latest = max(latest, command.sent_at)
                if command.answered_at is not None and command.answered_at < latest:
                    raise Violation(
                        f"command {command.number} was answered before one that it counts was given"
                    )
        self._world.counts["commands judged"] += len(state.answers)
