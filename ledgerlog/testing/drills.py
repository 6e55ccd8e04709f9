"""A workload: ledgers that live for a tenth of a second, each under faults that aim at it alone.

A mistake in a quorum protocol usually shows only if a handful of messages meet at the wrong moment. For
example, one bookie was not reached, another is lost while its answer is on the way, and a recoverer asks the
wrong two of three. Random faults in a busy cluster rarely cause that. A *drill* is the life of one ledger,
with a shape of its own. It is a sequence of the steps below, with almost no time between them. The steps are
drawn at random. Some drills begin with one of the ``PLAYS``, which are known to find mistakes in wrong
builds:

    push               push some entries; the next step does not wait for them
    hold               hold back the owner's messages to some members
    mute               hold back the answers of some members to the owner
    lose               break a member's connection and keep it out of reach: the ensemble must change
    wait               wait as long as messages and writes take
    metadata           the owner's metadata writes are slow, or are lost, or lose their answers
    release            end some of these faults
    recover            one or two recoverers take the ledger over; they may fail to reach some members
    lose for recovery  a recoverer loses a member during its work
    restart            a member is killed, loses power, or is stopped, and comes back
    close              the owner closes the ledger while entries are on their way. It waits for them for a
                       short time or not at all

The faults of a drill end with it. The nemesis adds its own. A task that waits for an entry continues waiting
while the ledger is closed, recovered or given up. So the task also notices a late acknowledgement.
``recoverers`` checks the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.testing.metadata import METADATA
from ledgerlog.testing.recoverers import Book, RacingRecoverers, hear_outcomes
from ledgerlog.testing.restarts import try_restart
from ledgerlog.testing.swarm import SHAPES
from ledgerlog.testing.world import World

__all__ = ["LedgerDrills"]

RECORDS_FACTOR = 4
"""A run pushes this many times more entries than other workloads, because it does not wait for them."""

PAUSES_S = (0.0, 0.0, 0.001, 0.004, 0.02)
"""The pauses between two steps, in seconds. A message takes about a millisecond, and so does a write."""

PLAYS = (
    ("hold", "push", "wait", "lose", "wait"),
    ("hold", "push", "wait", "push", "recover"),
    ("metadata", "push", "lose", "wait", "lose", "wait"),
    ("metadata", "push", "wait", "close"),
    ("push", "mute", "push", "wait", "recover", "wait", "release"),
    ("mute", "push", "wait", "close", "release"),
    ("hold", "push", "close", "release", "wait"),
    ("recover", "wait", "restart", "push", "wait"),
    ("push", "lose", "hold", "wait", "recover"),
    ("hold", "push", "push", "wait", "recover", "lose for recovery", "recover"),
    ("hold", "push", "push", "wait", "recover", "wait", "recover"),
)
"""The known beginnings of drills. The details of each step are drawn."""

OUTCOME_S = (0.01, 0.03, 0.1)
"""How long, in seconds, an owner waits at the end for the outcome of its entries."""


@attrs.define(eq=False)
class _Drill:
    """One ledger, its owner, and the faults on their links."""

    owner: str
    writer: LedgerWriter
    book: Book
    nursery: trio.Nursery
    touched: dict[tuple[str, str], None] = attrs.Factory(dict)
    """The links with faults."""

    @property
    def members(self) -> list[str]:
        return list(self.writer.metadata.last_fragment.ensemble)


class LedgerDrills(RacingRecoverers):
    """The workload (``world.Workload``)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._orders = {name: trio.open_memory_channel[Book](math.inf) for name in self._recoverers}
        self._steps: dict[str, tuple[Callable[[_Drill], Awaitable[None]], float]] = {
            "push": (self._push, 4),
            "hold": (self._hold, 2),
            "mute": (self._mute, 1.5),
            "lose": (self._lose, 2),
            "wait": (self._wait, 1),
            "metadata": (self._metadata, 1),
            "release": (self._release, 1),
            "recover": (self._order_recovery, 2),
            "lose for recovery": (self._lose_for_recovery, 1),
            "restart": (self._restart, 0.7),
            "close": (self._start_to_close, 0.8),
        }
        # The shapes, too, stay within the budget for damage of ``swarm``.
        swarm, lossy = self._swarm, max(self._swarm.unsynced, self._swarm.rotten_max, self._world.careless)
        self._shapes = [
            shape
            for shape in SHAPES
            if shape.ensemble + swarm.rotten_max <= swarm.bookies and shape.ack_quorum > lossy
        ]

    async def prepare(self) -> None:
        for name in self._owners:
            self._cluster.start(name, partial(self._drill_again_and_again, name))
        for name in self._recoverers:
            self._cluster.start(name, self._recover_for(name))
        self._cluster.start("ledger-reader", self._read)

    async def _drill_again_and_again(self, name: str, client: Cluster) -> None:
        while True:
            if self._entries < RECORDS_FACTOR * self._swarm.records_max:
                try:
                    await self._drill(client, name)
                except LedgerLogError as error:
                    self._world.event("drill failed", type(error).__name__)
            await self._world.rest(self._dice.expovariate(20 / self._pace_s))

    async def _drill(self, client: Cluster, owner: str) -> None:
        dice = self._dice
        shape = dice.choice((self._swarm.replication, dice.choice(self._shapes)))
        writer = await client.ledgers.create(replication=shape, full_pinning=dice.random() < 0.4)
        book = Book(writer.ledger_id)
        self.books.append(book)
        self._counts["ledgers"] += 1
        self._counts["drills"] += 1
        weights = [weight for _, weight in self._steps.values()]
        steps = dice.choices(list(self._steps), weights, k=dice.randrange(1, 8))
        if dice.random() < 0.6:
            steps = [*dice.choice(PLAYS), *steps[: len(steps) // 2]]
        elif dice.random() < 0.8:
            steps.insert(0, "push")
        drill: _Drill | None = None
        try:
            async with trio.open_nursery() as nursery:
                drill = _Drill(owner, writer, book, nursery)
                for step in steps:
                    await trio.sleep(dice.choice(PAUSES_S))
                    self._world.event("drill", book.ledger_id, step)
                    await self._steps[step][0](drill)
                if dice.random() < 0.5:
                    self._end_faults(drill)
                nursery.cancel_scope.deadline = trio.current_time() + dice.choice(OUTCOME_S)
        finally:
            if drill is not None:
                self._end_faults(drill)
            with trio.CancelScope(shield=True):
                await writer.aclose()

    # --- owners -------------------------------------------------------------------------------

    async def _push(self, drill: _Drill) -> None:
        dice, book = self._dice, drill.book
        payloads = []
        for _ in range(dice.choice((1, 1, 2, 4, 12))):
            self._entries += 1
            name = b"%d.%d " % (book.ledger_id, self._entries)
            size = dice.randrange(len(name), len(name) + self._swarm.payload_max)
            payloads.append(name.ljust(size, b"x"))
        try:
            first = drill.writer.push(payloads)
        except LedgerLogError:
            return  # The owner has lost the ledger, or is closing it.
        assert first == len(book.sent), "entries are numbered in the order in which they are pushed"
        book.sent += payloads
        drill.nursery.start_soon(hear_outcomes, self._world, drill.writer, book, first, len(payloads))

    async def _start_to_close(self, drill: _Drill) -> None:
        drill.nursery.start_soon(self._close, drill)

    async def _close(self, drill: _Drill) -> None:
        try:
            end = await drill.writer.close(timeout_s=self._dice.choice((0.0, 0.0, 0.005, 0.05)))
        except LedgerLogError as error:
            self._world.event("not closed", drill.book.ledger_id, type(error).__name__)
        else:
            drill.book.on_end("its owner", end)
            self._counts["closed by the owner"] += 1

    # --- faults -------------------------------------------------------------------------------

    def _some(self, drill: _Drill) -> list[str]:
        """Draw some members; often exactly as many as an acknowledgement can do without."""
        members, shape, dice = drill.members, drill.writer.replication, self._dice
        spare = max(1, shape.write_quorum - shape.ack_quorum)
        return dice.sample(members, dice.choice((spare, spare, dice.randrange(1, len(members) + 1))))

    def _block(self, drill: _Drill, a: str, b: str, *, one_way: bool = False) -> None:
        drill.touched[a, b] = None
        self._cluster.network.block(a, b, one_way=one_way)

    def _end_faults(self, drill: _Drill) -> None:
        for a, b in drill.touched:
            self._cluster.network.heal(a, b)
        drill.touched.clear()
        self._cluster.lose_metadata_writes(drill.owner, 0.0)

    async def _hold(self, drill: _Drill) -> None:
        for bookie in self._some(drill):
            self._block(drill, drill.owner, bookie, one_way=True)

    async def _mute(self, drill: _Drill) -> None:
        for bookie in self._some(drill):
            self._block(drill, bookie, drill.owner, one_way=True)

    async def _lose(self, drill: _Drill) -> None:
        reached = [bookie for bookie in drill.members if (drill.owner, bookie) not in drill.touched]
        bookie = self._dice.choice(reached or drill.members)
        self._cluster.reset(drill.owner, bookie)
        self._block(drill, drill.owner, bookie)

    async def _wait(self, drill: _Drill) -> None:
        await trio.sleep(self._dice.choice((0.003, 0.01)))

    async def _metadata(self, drill: _Drill) -> None:
        if self._dice.random() < 0.5:
            drill.touched[drill.owner, METADATA] = None
            self._cluster.slow(drill.owner, METADATA, self._dice.choice((20, 100)))
        else:
            self._cluster.lose_metadata_writes(drill.owner, 0.5)

    async def _release(self, drill: _Drill) -> None:
        for a, b in self._dice.sample(list(drill.touched), len(drill.touched) // 2):
            self._cluster.network.heal(a, b)
            del drill.touched[a, b]

    async def _order_recovery(self, drill: _Drill) -> None:
        for name in self._dice.sample(self._recoverers, self._dice.choice((1, 1, 2))):
            if self._dice.random() < 0.6:
                for bookie in self._some(drill)[:-1]:
                    self._block(drill, name, bookie, one_way=self._dice.random() < 0.5)
            self._orders[name][0].send_nowait(drill.book)

    async def _lose_for_recovery(self, drill: _Drill) -> None:
        name, bookie = self._dice.choice(self._recoverers), self._dice.choice(drill.members)
        self._cluster.reset(name, bookie)
        self._block(drill, name, bookie)

    async def _restart(self, drill: _Drill) -> None:
        cluster, bookie, dice = self._cluster, self._dice.choice(drill.members), self._dice
        down = sum(not cluster.is_running(each) for each in cluster.bookies)
        if down >= self._swarm.down_max or not cluster.is_running(bookie):
            return
        if dice.random() < 0.3:
            with trio.move_on_after(1.0):
                await cluster.stop(bookie)
        else:
            cluster.kill(bookie, power_cut=dice.random() < 0.5)
        await try_restart(self._world, bookie)

    # --- recoverers ---------------------------------------------------------------------------

    def _recover_for(self, name: str) -> Callable[[Cluster], Awaitable[None]]:
        async def recover(client: Cluster) -> None:
            async for book in self._orders[name][1]:
                await self._recover_once(client, name, book)

        return recover
