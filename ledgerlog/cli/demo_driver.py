"""The demo's plot: records go through a log while a bookie dies and a leader is deposed.

    start                      contender A leads. Records go to it in batches; the number of unanswered
                               batches is bounded
    a third acknowledged       a bookie that holds the current ledger gets SIGKILL
    two thirds acknowledged    A gets SIGSTOP, with batches on their way. B takes the log over. Reading the
                               log shows which records of these batches are in it. B gets all records from the
                               first missing one on
    B acknowledged             A gets SIGCONT. It reads the batches that it had not read yet, and one more
                               batch made for it alone. It still believes that it leads, and appends them

A's answers are then checked: each must be a refusal, or an acknowledgement of exactly the records found. An
acknowledgement of anything else is a ``Contradiction``, or the audit finds it.

**Why the count is exact.** If the leader of a batch is lost, the batch's outcome is unknown. If the driver
sent the batch again without a check, the log could have it twice. If it did not send it again, the batch
could be lost. So the driver first reads the log, from the offset after the last acknowledgement to the offset
at which B begins. This part can no longer change, because B has fenced it.

One task decides (``Driver.run``). Each contender has two tasks: one writes the contender's queued frames and
blocks while the contender is stopped; the other reads its events.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs
import trio

import ledgerlog
from ledgerlog.cli.demo_account import Account, DemoAudit, DemoBatch
from ledgerlog.cli.demo_contender import LEAD, RECORDS, digest_of, encode_frame
from ledgerlog.cli.demo_text import record_of
from ledgerlog.cli.local_cluster import LocalCluster
from ledgerlog.cli.processes import Child, python_command
from ledgerlog.errors import LedgerLogError
from ledgerlog.meta.store import MetadataStore
from ledgerlog.progress_bar import Bar

__all__ = ["DemoFailed", "Driver", "DemoOutcome", "stop_without_lock"]

_BATCHES_UNANSWERED = 16
_BATCH_RECORDS_MAX = 500
_BATCH_BYTES = 256 * 1024
_LOCK_S = 1.0
"""A metadata write that takes longer than this probably waits for the file's lock."""

_SILENCE_S = 60.0
"""Longer than every deadline of a log's writer. A contender that is silent for this long is stuck."""


class DemoFailed(LedgerLogError):
    """The demo could not run to its end."""


@attrs.frozen(kw_only=True)
class DemoOutcome:
    """The figures of the demo. Times are from this machine's monotonic clock."""

    records: int
    acknowledged: int
    lost: int
    duplicated: int
    out_of_order: int
    foreign: int
    """Records in the log that were appended without the right to append."""
    bookies_killed: int
    leaders_killed: int
    takeover_ms: float
    """The new leader's takeover, from its decision to lead until it can append."""
    failover_ms: float
    """From the stop of the old leader until a record of the new leader was acknowledged."""
    settled_by_reading: int
    """Records of the lost leader that had no answer and were found in the log."""
    refused_batches: int
    """Batches of the deposed leader that were refused after it was woken."""
    refusal: str
    """The refusal of the batch that only the deposed leader got."""
    records_per_s: float
    """Acknowledged records a second, from the first batch to the last acknowledgement, including the
    faults."""

    @property
    def is_clean(self) -> bool:
        """Whether every check of the demo passed."""
        return (
            not (self.lost or self.duplicated or self.out_of_order or self.foreign)
            and self.acknowledged == self.records
        )


@attrs.define(eq=False)
class _Contender:
    name: str
    child: Child
    queue: trio.MemorySendChannel[bytes]
    unanswered: dict[int, DemoBatch] = attrs.field(factory=dict)

    def send(self, kind: int, batch: DemoBatch | None = None) -> None:
        """Queue a frame. The bound on unanswered batches also bounds the queue."""
        if batch is None:
            self.queue.send_nowait(encode_frame(kind))
        else:
            self.unanswered[batch.number] = batch
            self.queue.send_nowait(encode_frame(kind, batch.number, batch.records))


class Driver:
    """Runs the demo on a cluster with at least one bookie more than the log's ensemble."""

    def __init__(self, local: LocalCluster, log: ledgerlog.Log, bar: Bar, *, records: int) -> None:
        self._local = local
        self._log = log
        self._bar = bar
        self._total = records
        self._batch_records = max(1, min(_BATCH_RECORDS_MAX, records // 64))
        self._account = Account()
        self._contenders: list[_Contender] = []
        self._numbers = itertools.count()
        self._again: deque[DemoBatch] = deque()
        self._end_offset = 0
        """The offset after the last record that is known to be in the log."""
        self._bookies_killed = 0
        self._takeover_ms = 0.0
        self._failover_ms = 0.0
        self._settled = 0
        self._refused = 0
        self._refusal = ""
        self._stopped_at = 0.0
        self._challenge: int | None = None
        """The batch that only the deposed leader got; None before it is sent and after it is answered."""

    async def run(self, records: Iterator[bytes]) -> DemoOutcome:
        """Deliver ``records``, inject the faults, and read everything back."""
        async with trio.open_nursery() as nursery:
            send_event, events = trio.open_memory_channel[tuple[_Contender, dict[str, Any]]](1000)
            first = await self._start("contender-1", nursery, send_event)
            second = await self._start("contender-2", nursery, send_event)
            self._events = events
            silent = [first, second]
            while silent:
                contender, _ = await self._next_event()  # Before LEAD, contenders say only "ready".
                silent.remove(contender)
            first.send(LEAD)
            leading = await self._expect(first, "leading")
            self._bar.say(f"{first.name} leads, at epoch {leading['epoch']}")
            began = trio.current_time()
            await self._deliver(records, first, second)
            took_s = trio.current_time() - began
            for contender in (first, second):
                contender.queue.close()
            for contender in (first, second):
                await contender.child.wait()
            nursery.cancel_scope.cancel()
        self._bar.describe("reading back")
        audit = await self._read_back()
        return DemoOutcome(
            records=self._total,
            acknowledged=self._account.acknowledged,
            lost=audit.lost,
            duplicated=audit.duplicated,
            out_of_order=audit.out_of_order,
            foreign=audit.foreign,
            bookies_killed=self._bookies_killed,
            leaders_killed=1,
            takeover_ms=self._takeover_ms,
            failover_ms=self._failover_ms,
            settled_by_reading=self._settled,
            refused_batches=self._refused,
            refusal=self._refusal,
            records_per_s=self._account.acknowledged / took_s,
        )

    # --- the contenders -----------------------------------------------------------------------

    async def _start(
        self,
        name: str,
        nursery: trio.Nursery,
        events: trio.MemorySendChannel[tuple[_Contender, dict[str, Any]]],
    ) -> _Contender:
        child = await self._local.children.start(
            name,
            python_command("ledgerlog.cli.demo_contender", self._local.uri, self._log.name),
            pipe_in=True,
            pipe_out=True,
            log_path=self._local.path / f"{name}.log",
            environment=self._local.client_environment,
        )
        send, receive = trio.open_memory_channel[bytes](10 * _BATCHES_UNANSWERED)
        contender = _Contender(name, child, send)
        self._contenders.append(contender)
        nursery.start_soon(_write, contender, receive)
        nursery.start_soon(_listen, contender, events)
        return contender

    async def _next_event(self) -> tuple[_Contender, dict[str, Any]]:
        with trio.move_on_after(_SILENCE_S):
            contender, event = await self._events.receive()
            if event["event"] == "ended":
                await contender.child.wait()
                raise DemoFailed(contender.child.how_it_ended())
            return contender, event
        unanswered = ", ".join(f"{c.name} {sorted(c.unanswered)}" for c in self._contenders)
        raise DemoFailed(
            f"no contender said anything for {_SILENCE_S:g} s, {self._account.acknowledged} of {self._total} "
            f"records acknowledged; batches without an answer: {unanswered}"
        )

    async def _expect(self, contender: _Contender, kind: str) -> dict[str, Any]:
        """Wait for the next event of this kind from a contender.

        In the meantime, handle the other contender's acknowledgements.
        """
        while True:
            who, event = await self._next_event()
            if who is contender:
                if event["event"] != kind:
                    raise DemoFailed(f"{who.name} was refused: {event.get('message', event)}")
                return event
            if event["event"] == "appended":
                self._on_appended(who, event)

    # --- delivery -----------------------------------------------------------------------------

    async def _deliver(self, records: Iterator[bytes], first: _Contender, second: _Contender) -> None:
        leader = first
        total = self._total
        # The first leader does not get the last record, so that the second leader gets at least one, even if
        # there are few records. Each fault waits until all earlier records are acknowledged.
        kill_at, stop_at = total // 3, min(2 * total // 3, total - 1)
        while self._account.acknowledged < total or self._challenge is not None:
            self._feed(leader, records, total if leader is second else total - 1)
            if not self._bookies_killed and self._account.acknowledged >= kill_at:
                await self._kill_bookie()
            if leader is first and self._account.acknowledged >= stop_at:
                await self._fail_over(first, second)
                leader = second
                continue
            who, event = await self._next_event()
            if event["event"] == "appended":
                self._on_appended(who, event)
                if who is second and not self._failover_ms:
                    self._failover_ms = (trio.current_time() - self._stopped_at) * 1000
                    self._wake(first)
            elif who is leader:
                raise DemoFailed(f"{who.name} leads and was refused: {event['message']}")
            else:
                self._on_refused(who, event)

    def _feed(self, leader: _Contender, records: Iterator[bytes], until: int) -> None:
        while len(leader.unanswered) < _BATCHES_UNANSWERED:
            batch = self._again.popleft() if self._again else self._cut(records, until)
            if batch is None:
                return
            leader.send(RECORDS, batch)

    def _cut(self, records: Iterator[bytes], until: int) -> DemoBatch | None:
        taken: list[bytes] = []
        size = 0
        for record in itertools.islice(records, min(self._batch_records, until - len(self._account))):
            taken.append(record)
            size += len(record)
            if size >= _BATCH_BYTES:
                break
        return self._batch(self._account.take(taken), taken) if taken else None

    def _batch(self, first: int, records: list[bytes]) -> DemoBatch:
        return DemoBatch(next(self._numbers), first, records, digest_of(records))

    def _on_appended(self, who: _Contender, event: dict[str, Any]) -> None:
        batch = who.unanswered.pop(event["batch"])
        if batch.number == self._challenge:
            raise DemoFailed(
                f"{who.name} was deposed and could append all the same, at {event['first_offset']}"
            )
        if event["digest"] != batch.digest or event["count"] != len(batch.records):
            raise DemoFailed(f"{who.name} acknowledged other bytes than the bytes of batch {batch.number}")
        self._acknowledge(batch.first, len(batch.records), event["first_offset"])

    def _acknowledge(self, first: int, count: int, first_offset: int) -> None:
        self._account.acknowledge(first, count, first_offset)
        self._end_offset = max(self._end_offset, first_offset + count)
        self._bar.move_to(self._account.acknowledged)

    # --- the faults ---------------------------------------------------------------------------

    async def _kill_bookie(self) -> None:
        """Kill one of the bookies that hold the current ledger (SIGKILL)."""
        info = await self._log.info()
        metadata = await self._local.cluster.ledgers.metadata(info.segments[-1].ledger_id)
        bookie_id = metadata.last_fragment.ensemble[0]
        self._local.bookies[bookie_id].kill()
        self._bookies_killed += 1
        self._bar.say(
            f"{bookie_id} killed (SIGKILL) after {self._account.acknowledged:,} acknowledged records"
        )

    async def _fail_over(self, old: _Contender, new: _Contender) -> None:
        await stop_without_lock(old.child, self._local.cluster.store)
        self._stopped_at = trio.current_time()
        self._bar.say(
            f"{old.name} stopped (SIGSTOP) after {self._account.acknowledged:,} acknowledged records, "
            f"{sum(len(b.records) for b in old.unanswered.values()):,} on their way"
        )
        new.send(LEAD)
        leading = await self._expect(new, "leading")
        self._takeover_ms = leading["takeover_ms"]
        self._bar.say(
            f"{new.name} leads, at epoch {leading['epoch']} and offset {leading['next_offset']}; "
            f"takeover in {self._takeover_ms:.0f} ms"
        )
        await self._settle(leading["next_offset"])
        for batch in old.unanswered.values():
            left = [
                (batch.first + i, record)
                for i, record in enumerate(batch.records)
                if not self._account.is_acknowledged(batch.first + i)
            ]
            if left:
                self._again.append(self._batch(left[0][0], [record for _, record in left]))

    async def _settle(self, end_offset: int) -> None:
        """Read the part of the log that is now fixed, to find the lost leader's records in it."""
        audit = DemoAudit(self._account)
        if self._end_offset < end_offset:
            async with self._log.read(self._end_offset, until=end_offset) as records:
                async for batch in records.batches():
                    for number, offset in audit.feed(batch.first_offset, batch.payloads):
                        self._acknowledge(number, 1, offset)
                        self._settled += 1
        self._bar.say(
            f"{self._settled:,} records without an acknowledgement are in the log; the others are sent again"
        )

    def _wake(self, old: _Contender) -> None:
        """Wake the deposed leader, with a batch that no other process has."""
        old.child.send_signal(signal.SIGCONT)
        line = record_of(self._total, b"a record of a leader that was deposed")
        batch = DemoBatch(next(self._numbers), self._total, [line], digest_of([line]))
        self._challenge = batch.number
        old.send(RECORDS, batch)
        self._bar.say(f"{old.name} woken (SIGCONT); it continues appending")

    def _on_refused(self, who: _Contender, event: dict[str, Any]) -> None:
        batch = who.unanswered.pop(event["batch"])
        self._refused += 1
        if batch.number == self._challenge:
            self._challenge = None
            self._refusal = f"{event['error']}: {event['message']}"
            self._bar.say(f"{who.name} was refused: {self._refusal}")

    # --- the proof ----------------------------------------------------------------------------

    async def _read_back(self) -> DemoAudit:
        # While a log is led, readers see it up to the LAC that its bookies know. Sealing fixes the end.
        await self._log.seal()
        audit = DemoAudit(self._account)
        async with self._log.read(0) as records:
            async for batch in records.batches():
                audit.feed(batch.first_offset, batch.payloads)
        return audit


async def stop_without_lock(child: Child, store: MetadataStore) -> None:
    """Stop a process with SIGSTOP while it does not hold the lock of the metadata file.

    The processes of this machine share the file. If a process is stopped in the middle of a write, it blocks
    the writes of all others until it continues. Only a metadata file behaves like this. Other stores do not.
    The demo is about a stopped leader, not about a locked file.
    """
    while True:
        child.send_signal(signal.SIGSTOP)
        with trio.move_on_after(_LOCK_S):
            await store.next_id("probe")
            return
        child.send_signal(signal.SIGCONT)
        await store.next_id("probe")  # When this returns, the lock was free.


async def _write(contender: _Contender, queue: trio.MemoryReceiveChannel[bytes]) -> None:
    stdin = contender.child.stdin
    assert stdin is not None
    try:
        async with stdin:
            async for frame in queue:
                await stdin.send_all(frame)
    except trio.BrokenResourceError:
        pass  # The process has ended. Its listener reports that.


async def _listen(
    contender: _Contender, events: trio.MemorySendChannel[tuple[_Contender, dict[str, Any]]]
) -> None:
    stdout = contender.child.stdout
    assert stdout is not None
    rest = b""
    async for data in stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            await events.send((contender, json.loads(line)))
    await events.send((contender, {"event": "ended"}))
