"""A workload: producers repeat everything, leaders count each record once, consumers share a cursor.

Several processes contend for a log whose leaders deduplicate. Producers number their records, and send each
record to the current leader until it is acknowledged. If the answer takes long, they send the record again,
although the first attempt may still be under way, at this leader or at a deposed leader. Now and then they
also repeat an acknowledged record. A request is not withdrawn, so an old request may reach a later leader.

Two processes consume the log under one cursor that pins the log. Their state (how many records of each
producer they have seen) is in the cursor's properties, so the state moves together with the cursor's offset.
If another consumer has moved the cursor, or if a consumer is interrupted, the consumer starts again from the
cursor. The log keeps no more than it has to (``RetentionPolicy(max_bytes=1)``), so everything that the cursor
does not pin vanishes. A sweeper deletes ledgers that crashes have left, even very young ledgers.

At every moment each (producer, sequence) has one offset, and each offset has one (producer, sequence). This
must hold for every source: a first acknowledgement, a repeated acknowledgement, or a reader. A consumer finds
each record of a producer once, in order and without holes. Nothing that the cursor pins is ever dropped. If a
log may still list a ledger, only the ledger's maker deletes it (``invariants`` checks this). At the end all
records whose outcome was ever in doubt are sent again. They must get the same offsets, and the log must hold
exactly as many records as the producers have numbered.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import CursorConflict, LedgerLogError, OutOfSequence, Truncated
from ledgerlog.log.cursors import Cursor
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.policies import RetentionPolicy
from ledgerlog.model.record import Ack
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.world import World, retry

__all__ = ["RepeatingProducers"]

LOG = "numbered"
CURSOR = "consumer"

BACK_MAX = 3
BATCH_MAX = 5
"""A producer repeats at most this many of its last records, so that a leader surely remembers the records
(``limits.LOG_PRODUCER_RUNS_MAX``)."""


@attrs.define(eq=False)
class _Producer:
    """A producer. It is outside of the simulated world: no fault hits it."""

    name: str
    acked: int = 0
    """How many of the producer's records are acknowledged, from the first record on."""
    sent: int = 0
    """How many of the producer's records were ever sent."""
    answered: trio.Event = attrs.Factory(trio.Event)

    def record(self, sequence: int, pad: int = 0) -> bytes:
        """Return the record's bytes. Apart from the padding, a sequence always has the same bytes."""
        return b"%s %d " % (self.name.encode(), sequence) + b"x" * pad


@attrs.frozen(eq=False)
class _Request:
    """Records of one producer, from sequence ``first`` on."""

    producer: _Producer
    first: int
    datas: list[bytes]


class RepeatingProducers:
    """The workload (``world.Workload``)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._swarm = world.swarm
        self._cluster = world.cluster
        self._counts = world.counts
        self._dice = world.simulation.random("producers")
        self._leaders = [f"counting-{number}" for number in range(1, self._swarm.clients + 1)]
        self._consumers = ["consumer-1", "consumer-2"]
        self._producers = {name: _Producer(name) for name in "abcd"[: 1 + self._swarm.tasks]}
        self._pace_s = self._swarm.pace_s
        self._mail: list[_Request] = []
        self._mailed = trio.Event()
        self._is_over = False
        self._latest_epoch = -1
        self._offsets: dict[tuple[str, int], int] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self._moved_to = 0
        """The highest offset that a consumer asked the cursor to move to. Nothing from it on may be
        dropped."""

    @property
    def clients(self) -> list[str]:
        return [*self._leaders, *self._consumers, "sweeper"]

    @property
    def writers(self) -> list[str]:
        return self._leaders

    async def prepare(self) -> None:
        async with self._cluster.client("numbered-maker") as client:
            log = await client.create_log(LOG, roll=self._swarm.roll, retention=RetentionPolicy(max_bytes=1))
            await log.cursor(CURSOR).set(0, pins=True)
        for name in self._leaders:
            self._cluster.start(name, self._lead_again_and_again)
        for name in self._consumers:
            self._cluster.start(name, self._consume_again_and_again)
        self._cluster.start("sweeper", self._sweep)
        for producer in self._producers.values():
            self._world.nursery.start_soon(self._produce, producer, name=f"producer {producer.name}")

    # --- reports of the processes about the log -----------------------------------------------

    def _on_place(self, who: str, producer: str, sequence: int, offset: int) -> None:
        """A process learned the offset of a record."""
        known = self._offsets.setdefault((producer, sequence), offset)
        if known != offset:
            raise Violation(
                f"ExactlyOnce: {who} was told that record {sequence} of producer {producer} is at offset "
                f"{offset}; it was at {known}"
            )
        owner = self._owners.setdefault(offset, (producer, sequence))
        if owner != (producer, sequence):
            raise Violation(
                f"ExactlyOnce: {who} was told that record {sequence} of producer {producer} is at offset "
                f"{offset}; there is {owner}"
            )

    def _on_acks(self, request: _Request, acks: Sequence[Ack]) -> None:
        producer, datas = request.producer, request.datas
        if len(acks) != len(datas):
            raise Violation(f"{len(acks)} acknowledgements for {len(datas)} records")
        for sequence, ack in enumerate(acks, request.first):
            self._on_place("a producer", producer.name, sequence, ack.offset)
            if ack.duplicate:
                # The record was acknowledged before, or by a takeover. Its ledger may be deleted by now.
                self._counts["duplicates"] += 1
                continue
            position = ack.position
            assert position is not None, "only a duplicate may have none"
            # A record that the consumer has passed may be dropped before a slow leader learns that it is
            # durable.
            log = LOG if ack.offset >= self._moved_to else None
            self._world.god.on_ack(position.ledger_id, position.entry_id, log, now=self._world.simulation.now)
            self._counts["acked"] += 1
        producer.acked = max(producer.acked, request.first + len(datas))
        producer.answered.set()
        producer.answered = trio.Event()

    # --- producers ----------------------------------------------------------------------------

    async def _produce(self, producer: _Producer) -> None:
        dice, swarm = self._dice, self._swarm
        records_max = swarm.records_max // len(self._producers)
        while producer.sent < records_max:
            await trio.sleep(dice.expovariate(1 / swarm.think_s))
            if self._is_over:
                return
            first = max(0, producer.acked - dice.choice((0, 0, 0, BACK_MAX)))
            count = dice.randrange(1, BATCH_MAX + 1)
            pad = dice.randrange(swarm.payload_max)
            datas = [producer.record(first + number, pad) for number in range(count)]
            request = _Request(producer, first, datas)
            producer.sent = max(producer.sent, first + count)
            while producer.acked < first + count and not self._is_over:
                self._post(request)
                with trio.move_on_after(dice.choice((0.01, 0.1, 1.0))):
                    await producer.answered.wait()
            if dice.random() < 0.1:
                self._post(request)

    def _post(self, request: _Request) -> None:
        if sum(waiting.producer is request.producer for waiting in self._mail) < 3:
            self._mail.append(request)
            self._mailed.set()
            self._mailed = trio.Event()

    # --- leaders ------------------------------------------------------------------------------

    async def _lead_again_and_again(self, client: Cluster) -> None:
        dice, world = self._dice, self._world
        while True:
            try:
                log = await client.open_log(LOG)
                async with log.writer(dedupe=True, window=dice.choice((2, 20, None))) as writer:
                    self._counts["takeovers"] += 1
                    world.event("counts", writer.epoch, writer.next_offset)
                    self._latest_epoch = max(self._latest_epoch, writer.epoch)
                    with trio.move_on_after(dice.expovariate(1 / self._pace_s)):
                        await self._lead(writer)
            except LedgerLogError as error:
                world.event("counting failed", type(error).__name__)
            await world.rest(dice.expovariate(4 / self._pace_s))

    async def _lead(self, writer: LogWriter) -> None:
        async with trio.open_nursery() as nursery:
            while writer.failure is None:
                if self._mail:
                    nursery.start_soon(self._append, writer, self._mail.pop(0))
                    continue
                with trio.move_on_after(self._pace_s / 4):
                    await self._mailed.wait()

    async def _append(self, writer: LogWriter, request: _Request) -> None:
        try:
            acks = await writer.append_many(
                request.datas, sequence=request.first, producer=request.producer.name
            )
        except OutOfSequence as error:
            self._require_late(writer, request, error)
        except LedgerLogError as error:
            self._world.event("not counted", type(error).__name__)
            self._counts["to be repeated"] += 1
        else:
            self._on_acks(request, acks)

    def _require_late(self, writer: LogWriter, request: _Request, error: OutOfSequence) -> None:
        """Check that OutOfSequence has a reason.

        Either the leader was deposed, so it may not know the records before the request. Or the request was
        answered so long ago that its records may be forgotten.
        """
        is_forgotten = request.first + len(request.datas) + BACK_MAX + BATCH_MAX <= request.producer.acked
        if writer.epoch == self._latest_epoch and not is_forgotten:
            raise Violation(
                f"ExactlyOnce: the leader of epoch {writer.epoch} does not know the records before sequence "
                f"{request.first} of producer {request.producer.name}"
            ) from error
        self._counts["out of sequence"] += 1

    # --- consumers ----------------------------------------------------------------------------

    async def _consume_again_and_again(self, client: Cluster) -> None:
        dice = self._dice
        while True:
            try:
                log = await client.open_log(LOG)
                cursor = log.cursor(CURSOR)
                state = self._require_state(await cursor.get())
                with trio.move_on_after(dice.expovariate(2 / self._pace_s)):
                    await self._consume(log, cursor, state)
            except CursorConflict:
                self._counts["cursor conflicts"] += 1
            except Truncated as error:
                self._require_passed(error.first_offset)
            except LedgerLogError as error:
                self._world.event("consumer failed", type(error).__name__)
            await trio.sleep(dice.expovariate(8 / self._pace_s))

    async def _consume(self, log: Log, cursor: Cursor, state: CursorState) -> None:
        counts = self._counts_of(state)
        async with log.read(state.offset, follow=True) as records:
            async for batch in records.batches():
                for offset, data in enumerate(batch.payloads, batch.first_offset):
                    self._fold("a consumer", counts, offset, data)
                    self._counts["followed"] += 1
                self._moved_to = max(self._moved_to, batch.end_offset)
                state = await cursor.move(
                    batch.end_offset,
                    expected=state,
                    properties={name: str(count) for name, count in counts.items()},
                    pins=True,
                )
                self._counts["cursor moves"] += 1

    def _counts_of(self, state: CursorState) -> dict[str, int]:
        counts = dict.fromkeys(self._producers, 0)
        counts |= {name: int(count) for name, count in state.properties.items()}
        if sum(counts.values()) != state.offset:
            raise Violation(f"ExactlyOnce: the cursor at {state.offset} has counted {counts}")
        return counts

    def _fold(self, who: str, counts: dict[str, int], offset: int, data: bytes) -> None:
        name, number, _ = data.decode().split(" ")
        sequence = int(number)
        if counts[name] != sequence:
            raise Violation(
                f"ExactlyOnce: {who} has seen {counts[name]} records of producer {name}, and the next, at "
                f"offset {offset}, is number {sequence}"
            )
        counts[name] += 1
        self._on_place(who, name, sequence, offset)

    def _require_state(self, state: CursorState | None) -> CursorState:
        if state is None or not state.pins:
            raise Violation(f"the cursor pinned the log, and is {state}")
        return state

    def _require_passed(self, first_offset: int) -> None:
        if first_offset > self._moved_to:
            raise Violation(
                f"CursorPins: the log begins at {first_offset}, and its pinned cursor never went beyond "
                f"{self._moved_to}"
            )
        self._counts["overtaken by retention"] += 1

    # --- sweeping -----------------------------------------------------------------------------

    async def _sweep(self, client: Cluster) -> None:
        while True:
            await trio.sleep(self._dice.expovariate(3 / self._pace_s))
            try:
                orphans = await client.sweep(min_age_s=0)
            except LedgerLogError as error:
                self._world.event("not swept", type(error).__name__)
            else:
                self._counts["swept"] += sum(orphan.is_deleted for orphan in orphans)

    # --- after it -----------------------------------------------------------------------------

    async def judge(self, client: Cluster) -> None:
        self._is_over = True
        log = await client.open_log(LOG)

        async def lead() -> None:
            async with log.writer(dedupe=True) as writer:
                for producer in self._producers.values():
                    await self._repeat(writer, producer)

        await retry(self._world, "repeating all records in doubt", lead)

        async def read() -> None:
            await self._judge_rest(log)

        await retry(self._world, "consuming the rest", read)

    async def _repeat(self, writer: LogWriter, producer: _Producer) -> None:
        """Send the last acknowledged records again, and all records with an unknown outcome."""
        first = max(0, producer.acked - BACK_MAX)
        datas = [producer.record(sequence) for sequence in range(first, producer.sent)]
        if not datas:
            return
        request = _Request(producer, first, datas)
        acks = await writer.append_many(datas, sequence=first, producer=producer.name)
        acked = producer.acked
        self._on_acks(request, acks)
        for sequence, ack in enumerate(acks, first):
            if sequence < acked and not ack.duplicate:
                raise Violation(
                    f"ExactlyOnce: record {sequence} of producer {producer.name} was acknowledged, and is "
                    f"written again at offset {ack.offset}"
                )

    async def _judge_rest(self, log: Log) -> None:
        state = self._require_state(await log.cursor(CURSOR).get())
        counts = self._counts_of(state)
        info = await log.info()
        if info.first_offset > state.offset:
            raise Violation(f"CursorPins: the log begins at {info.first_offset}, its cursor is at {state}")
        async with log.read(state.offset) as records:
            async for record in records:
                self._fold("the judge", counts, record.offset, record.data)
        sent = {name: producer.sent for name, producer in self._producers.items()}
        if counts != sent:
            raise Violation(f"ExactlyOnce: the producers have sent {sent} records, and the log has {counts}")
        if info.next_offset != sum(counts.values()):
            raise Violation(f"ExactlyOnce: the log ends at {info.next_offset}, with {counts}")
        self._counts["numbered records judged"] += info.next_offset
        self._counts["numbered records dropped"] += info.first_offset
