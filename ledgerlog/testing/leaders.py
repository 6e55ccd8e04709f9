"""A workload: leaders contend for one log, which rolls, is truncated, is sealed, and is followed by a reader.

Several processes take the log over again and again. They append unique records from several tasks, roll, and
are deposed. A follower reads the log meanwhile. If the swarm enables it, an administrator truncates the log
at confirmed offsets and seals it near the end. The administrator also creates and deletes another log again
and again. A ``LogHistory`` records all answers, and ``log_history.judge`` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, LedgerLogError, LogNotFound, LogSealed, Truncated
from ledgerlog.log.log import Log
from ledgerlog.model.attributes import Headers
from ledgerlog.model.record import Ack, Record
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.log_history import LogHistory, judge
from ledgerlog.testing.world import World, retry

__all__ = ["ContendingLeaders"]

LOG = "log"


class Leads(Protocol):
    """The object with which the tasks of a leader append, for example a ``LogWriter``."""

    @property
    def epoch(self) -> int: ...

    async def roll(self) -> None: ...

    async def append_many(
        self,
        datas: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> list[Ack]: ...


class ContendingLeaders:
    """The workload (``world.Workload``)."""

    def __init__(self, world: World) -> None:
        self.history = LogHistory()
        self._world = world
        self._swarm = world.swarm
        self._cluster = world.cluster
        self._counts = world.counts
        self._dice = world.simulation.random("leaders")
        self._records = 0
        self._others = 0
        self._leaders = [f"leader-{number}" for number in range(1, self._swarm.clients + 1)]
        self._pace_s = self._swarm.pace_s

    @property
    def clients(self) -> list[str]:
        admin = ["log-admin"] if self._has_admin else []
        return [*self._leaders, "follower", *admin]

    @property
    def writers(self) -> list[str]:
        return self._leaders

    @property
    def _has_admin(self) -> bool:
        return self._swarm.truncates or self._swarm.seals or self._swarm.deletes

    async def prepare(self) -> None:
        async with self._cluster.client("log-maker") as client:
            await client.create_log(LOG, roll=self._swarm.roll)
        for name in self._leaders:
            self._cluster.start(name, self._lead_again_and_again)
        self._cluster.start("follower", self._follow)
        if self._has_admin:
            self._cluster.start("log-admin", self._administrate)

    # --- leaders ------------------------------------------------------------------------------

    async def _lead_again_and_again(self, client: Cluster) -> None:
        dice, world = self._dice, self._world
        log: Log | None = None
        while True:
            try:
                log = log or await client.open_log(LOG)
                async with log.writer() as writer:
                    self._counts["takeovers"] += 1
                    world.event("leads", writer.epoch, writer.next_offset)
                    self.history.on_leader(writer.epoch, writer.next_offset)
                    with trio.move_on_after(dice.expovariate(1 / self._pace_s)):
                        await self._append_from_all_sides(writer)
            except LogSealed as error:
                self._require_seal(error)
                return
            except LedgerLogError as error:
                self._counts["terms that failed"] += 1
                world.event("term failed", type(error).__name__)
            is_done = self._records >= self._swarm.records_max
            await world.rest(dice.expovariate((1 if is_done else 4) / self._pace_s))

    def _require_seal(self, error: LogSealed) -> None:
        if not self.history.seal_asked:
            raise Violation("a log is sealed, but no user sealed it") from error

    async def _append_from_all_sides(self, writer: Leads) -> None:
        async with trio.open_nursery() as nursery:
            for task in range(self._swarm.tasks):
                nursery.start_soon(self._append, writer, task)

    async def _append(self, writer: Leads, task: int) -> None:
        dice, history = self._dice, self.history
        while self._records < self._swarm.records_max:
            await trio.sleep(dice.expovariate(1 / self._swarm.think_s))
            if dice.random() < 0.02:
                try:
                    await writer.roll()
                except LedgerLogError:
                    return
                self._counts["rolls"] += 1
            names = []
            for _ in range(dice.choice((1, 1, 1, 2, 5))):
                self._records += 1
                name = b"%d.%d.%d " % (writer.epoch, task, self._records)
                names.append(name.ljust(dice.randrange(len(name), len(name) + self._swarm.payload_max), b"x"))
            keys, headers = self._draw_marks(names)
            call = history.on_send(names)
            try:
                acks = await writer.append_many(names, keys=keys, headers=headers)
            except AppendUnknown:
                self._counts["unknown"] += len(names)
                continue
            except LedgerLogError:
                history.on_refused(call)
                self._counts["refused"] += len(names)
                return
            for ack in acks:
                self._world.on_ack(ack, LOG)
            history.on_acks(call, acks)
            self._world.event("ack", acks[0].epoch, acks[0].offset, len(acks))
            self._counts["acked"] += len(acks)

    def _draw_marks(
        self, names: Sequence[bytes]
    ) -> tuple[Sequence[bytes | None] | None, Sequence[Headers] | None]:
        """Draw keys and headers for some of the records of a call, if the run has them."""
        dice = self._world.random_keys
        if dice is None:
            return None, None
        keys = [dice.choice((None, b"", b"a", b"b", dice.randbytes(40))) for _ in names]
        headers = [
            tuple((dice.choice("xyz"), dice.randbytes(dice.randrange(4))) for _ in range(count))
            for count in dice.choices((0, 1, 3), k=len(names))
        ]
        for name, key, pairs in zip(names, keys, headers, strict=True):
            if key is not None or pairs:
                self.history.marks[name] = key, pairs
                self._counts["records with keys"] += 1
        return keys, headers

    # --- a reader -----------------------------------------------------------------------------

    async def _follow(self, client: Cluster) -> None:
        start = 0
        while True:
            seen: list[Record] = []
            self.history.reads.append(seen)
            try:
                log = await client.open_log(LOG)
                async with log.read(start, follow=True) as records:
                    async for record in records:
                        seen.append(record)
                        start = record.offset + 1
                        self._counts["followed"] += 1
            except Truncated as error:
                if error.first_offset > self.history.truncation_asked:
                    raise Violation(f"offset {start} is truncated, but no user asked for that") from error
                start = max(start, error.first_offset)
            except LedgerLogError as error:
                self._world.event("follower failed", type(error).__name__)
            await trio.sleep(self._pace_s / 8)

    # --- an administrator ---------------------------------------------------------------------

    async def _administrate(self, client: Cluster) -> None:
        dice, swarm = self._dice, self._swarm
        while True:
            await trio.sleep(dice.expovariate(2 / self._pace_s))
            try:
                if swarm.truncates:
                    await self._truncate(client)
                if swarm.deletes:
                    await self._make_and_delete(client)
                if swarm.seals and self._world.simulation.now > 0.7 * swarm.trouble_s:
                    await self._seal(client)
            except LedgerLogError as error:
                self._world.event("administration failed", type(error).__name__)

    async def _truncate(self, client: Cluster) -> None:
        before = self._dice.randrange(self.history.confirmed_end + 1)
        log = await client.open_log(LOG)
        self.history.truncation_asked = max(self.history.truncation_asked, before)
        await log.truncate(before)
        self.history.on_truncated(before)
        self._counts["truncations"] += 1

    async def _seal(self, client: Cluster) -> None:
        log = await client.open_log(LOG)
        self.history.seal_asked = True
        await log.seal()
        self.history.on_sealed()
        self._counts["seals"] += 1

    async def _make_and_delete(self, client: Cluster) -> None:
        """Create, write, read and delete another log, which no other process uses."""
        self._others += 1
        name = f"other-{self._others}"
        log = await client.create_log(name, roll=self._swarm.roll)
        sent = [b"%s %d" % (name.encode(), number) for number in range(self._dice.randrange(8))]
        async with log.writer() as writer:
            acks = await writer.append_many(sent)
            for ack in acks:
                self._world.on_ack(ack, name)
        found = [record.data for record in await _read_all(log)]
        if found != sent and found == sent[: len(found)]:
            # Auto-recovery may fence the ledger before its writer can close it. A reader then finds only the
            # records that it knows to be acknowledged. A takeover finds the rest.
            assert acks[-1].position is not None
            if not (await client.ledgers.metadata(acks[-1].position.ledger_id)).is_closed:
                self._counts["read before a takeover"] += 1
                async with log.writer():
                    pass
                found = [record.data for record in await _read_all(log)]
        if found != sent:
            raise Violation(f"log {name} was written {sent}, and has {found}")
        await client.delete_log(name)
        try:
            await client.open_log(name)
        except LogNotFound:
            self._counts["logs deleted"] += 1
        else:
            raise Violation(f"log {name} was deleted, and can be opened")

    # --- after it -----------------------------------------------------------------------------

    async def judge(self, client: Cluster) -> None:
        log = await client.open_log(LOG)
        await retry(self._world, "an append to the log", lambda: self._append_the_last(log))
        self._counts["open ends"] += self.history.open_ends
        final: list[list[Record]] = []

        async def read() -> None:
            final.append(await _read_all(log))

        await retry(self._world, "reading the log", read)
        await retry(self._world, "reading the log again", read)
        # If the log was truncated to its end and sealed, it has no record that shows where it begins.
        judge(self.history, *final, first_offset=(await log.info()).first_offset)
        self._counts["records"] += len(final[0])

    async def _append_the_last(self, log: Log) -> None:
        try:
            async with log.writer() as writer:
                self.history.on_leader(writer.epoch, writer.next_offset)
                call = self.history.on_send([b"the last, of epoch %d" % writer.epoch])
                self.history.on_acks(call, [await writer.append(call.names[0])])
        except LogSealed as error:
            self._require_seal(error)
        else:
            if self.history.sealed_at is not None:
                raise Violation("the log was sealed, and takes another leader")


async def _read_all(log: Log) -> list[Record]:
    async with log.read() as records:
        return [record async for record in records]
