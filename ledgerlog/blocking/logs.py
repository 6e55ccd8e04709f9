"""Logs without ``await``: the faces of ``Log``, ``LogWriter`` and ``LogReader`` for ordinary threads.

Each method does what its namesake does and raises what it raises. Any number of threads may append through
one writer; a reader is for one thread at a time.

Reading fetches in the loop's thread and hands over whatever has come, many batches at once, so that a replay
pays for a hop once in a while and not for each record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Generic, Literal, TypeVar

import trio

from ledgerlog.blocking.portal import Held, Portal
from ledgerlog.concurrency.nurseries import beside
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import ConnectionClosed, LedgerLogError, RecordsLost
from ledgerlog.limits import LOG_READ_AHEAD_BYTES
from ledgerlog.log import cursors
from ledgerlog.log import log as logs
from ledgerlog.log import reader as readers
from ledgerlog.log import writer as writers
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.producer import Dedupe
from ledgerlog.model.record import Ack, Record, RecordBatch
from ledgerlog.model.segments import Gap, Segment

__all__ = ["Cursor", "Entered", "Log", "LogReader", "LogWriter", "Submission"]

T = TypeVar("T")
A = TypeVar("A")

_RECORD_COST_BYTES = 48


class Entered(Generic[A, T]):
    """A context manager that enters an asynchronous one in the loop's thread. For one ``with``."""

    def __init__(
        self,
        portal: Portal,
        open_: Callable[[], AbstractAsyncContextManager[A]],
        face: Callable[[A, Held[A]], T],
    ) -> None:
        self._portal = portal
        self._open = open_
        self._face = face
        self._held: Held[A] | None = None

    def __enter__(self) -> T:
        entered, held = self._portal.enter(self._open())
        self._held = held
        return self._face(entered, held)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None
        self._held.leave(error)


class Log:
    """One log; see ``ledgerlog.Log``."""

    def __init__(self, portal: Portal, log: logs.Log) -> None:
        self._portal = portal
        self._log = log

    def __repr__(self) -> str:
        return f"<blocking {self._log!r}>"

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def incarnation(self) -> int:
        return self._log.incarnation

    def writer(
        self,
        *,
        producer: str | None = None,
        dedupe: Dedupe | bool | None = None,
        window: int | None = None,
        window_bytes: int | None = None,
        entry_bytes: int | None = None,
        linger_s: float = 0.0,
        compression: Literal["zstd"] | None = None,
    ) -> Entered[writers.LogWriter, LogWriter]:
        """Leadership of the log for the body of a ``with``; arguments and errors as of ``ledgerlog.Log``.

        A body that raises leaves as one that does not: what was taken is made durable and the ledger closed.
        KeyboardInterrupt leaves at once, and the ledger to the next leader."""
        manager = self._log.writer(
            producer=producer,
            dedupe=dedupe,
            window=window,
            window_bytes=window_bytes,
            entry_bytes=entry_bytes,
            linger_s=linger_s,
            compression=compression,
        )
        portal = self._portal
        return Entered(portal, lambda: manager, lambda writer, held: LogWriter(portal, writer, held))

    def read(
        self,
        start: readers.Start = "earliest",
        *,
        until: int | None = None,
        follow: bool = False,
        dense: bool = False,
    ) -> Entered[_Fetched, LogReader]:
        """The log's records as an iterator in the body of a ``with``; as ``ledgerlog.Log.read``."""
        manager = self._log.read(start, until=until, follow=follow, dense=dense)
        portal = self._portal
        return Entered(
            portal, lambda: _fetch(manager), lambda fetched, held: LogReader(portal, fetched, held)
        )

    def info(self) -> logs.LogInfo:
        """The log as it is now."""
        return self._portal.run(self._log.info)

    def properties(self) -> dict[str, str]:
        return self._portal.run(self._log.properties)

    def set_properties(
        self, properties: Mapping[str, str], *, expected: Mapping[str, str] | None = None
    ) -> None:
        self._portal.run(lambda: self._log.set_properties(properties, expected=expected))

    def update_properties(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        return self._portal.run(lambda: self._log.update_properties(changes))

    def configure(
        self,
        *,
        roll: RollPolicy | Callable[[RollPolicy], RollPolicy] | None = None,
        retention: RetentionPolicy | Callable[[RetentionPolicy], RetentionPolicy] | None = None,
    ) -> None:
        self._portal.run(lambda: self._log.configure(roll=roll, retention=retention))

    def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        self._portal.run(lambda: self._log.truncate(before_offset, ignore_pins=ignore_pins))

    def apply_retention(self) -> int:
        return self._portal.run(self._log.apply_retention)

    def why_kept(self) -> list[tuple[Segment, str]]:
        return self._portal.run(self._log.why_kept)

    def cursor(self, name: str) -> Cursor:
        """The cursor of that name, there or not."""
        return Cursor(self._portal, self._log.cursor(name))

    def cursors(self) -> list[CursorState]:
        return self._portal.run(self._log.cursors)

    def seal(self) -> None:
        self._portal.run(self._log.seal)

    def recover(self, *, accept_loss: bool = False, accept_unreachable: bool = False) -> tuple[Gap, ...]:
        return self._portal.run(
            lambda: self._log.recover(accept_loss=accept_loss, accept_unreachable=accept_unreachable)
        )


class Cursor:
    """One cursor of a log; see ``ledgerlog.Cursor``."""

    def __init__(self, portal: Portal, cursor: cursors.Cursor) -> None:
        self._portal = portal
        self._cursor = cursor

    @property
    def name(self) -> str:
        return self._cursor.name

    def get(self) -> CursorState | None:
        """Where the cursor is now; None where there is none."""
        return self._portal.run(self._cursor.get)

    def move(
        self,
        offset: int,
        *,
        expected: CursorState | None,
        properties: Mapping[str, str] | None = None,
        pins: bool | None = None,
    ) -> CursorState:
        """Move the cursor from ``expected``; its new state. CursorConflict if it is elsewhere."""
        return self._portal.run(
            lambda: self._cursor.move(offset, expected=expected, properties=properties, pins=pins)
        )

    def set(
        self, offset: int, *, properties: Mapping[str, str] | None = None, pins: bool | None = None
    ) -> CursorState:
        """Move the cursor wherever it is, or make it."""
        return self._portal.run(lambda: self._cursor.set(offset, properties=properties, pins=pins))

    def delete(self, *, expected: CursorState | None = None) -> None:
        self._portal.run(lambda: self._cursor.delete(expected=expected))


class Submission:
    """A record that is on its way; see ``ledgerlog.Submission``."""

    def __init__(self, portal: Portal, submission: writers.Submission) -> None:
        self._portal = portal
        self._submission = submission

    def wait(self) -> Ack:
        """The record's Ack once it is durable."""
        return self._portal.run(self._submission.wait)


class LogWriter:
    """The leader of a log, from ``with log.writer()``; see ``ledgerlog.LogWriter``. Threads may share it."""

    def __init__(self, portal: Portal, writer: writers.LogWriter, held: Held[writers.LogWriter]) -> None:
        self._portal = portal
        self._writer = writer
        self._held = held

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def next_offset(self) -> int:
        """As of a moment ago, where other threads append."""
        return self._writer.next_offset

    @property
    def failure(self) -> LedgerLogError | None:
        return self._writer.failure

    def statistics(self) -> writers.WriterStatistics:
        return self._writer.statistics()

    def append(
        self,
        data: bytes,
        *,
        expected_offset: int | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Ack:
        """Append one record; its Ack once it is durable. An interrupted append may be in the log."""
        return self._portal.run(
            lambda: self._writer.append(
                data, expected_offset=expected_offset, sequence=sequence, producer=producer
            )
        )

    def append_many(
        self,
        datas: Sequence[bytes],
        *,
        atomic: bool = False,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> list[Ack]:
        """Append records in their order, pipelined; one Ack for each once all are durable. This is the way to
        write much: it takes one hop for all of them."""
        return self._portal.run(
            lambda: self._writer.append_many(datas, atomic=atomic, sequence=sequence, producer=producer)
        )

    def submit(self, data: bytes, *, sequence: int | None = None, producer: str | None = None) -> Submission:
        """Wait for a place in the window and take the record; ``submission.wait()`` gives its Ack."""
        submitted = self._portal.run(lambda: self._writer.submit(data, sequence=sequence, producer=producer))
        return Submission(self._portal, submitted)

    def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """As ``Log.truncate``, and only while this writer leads."""
        self._portal.run(lambda: self._writer.truncate(before_offset, ignore_pins=ignore_pins))

    def flush(self) -> None:
        """Return once all that was taken before the call is durable."""
        self._portal.run(self._writer.flush)

    def roll(self) -> None:
        """Go on in a new ledger."""
        self._portal.run(self._writer.roll)


class _Fetched:
    """Batches that have come and were not handed over."""

    def __init__(self) -> None:
        self.batches: deque[RecordBatch | RecordsLost] = deque()
        self.bytes = 0
        self.is_complete = False
        self.failure: LedgerLogError | None = None
        self.next_offset = 0
        self.given: list[RecordBatch | RecordsLost] = []
        """What was handed over last, until it is known to have arrived."""
        self.given_count = 0
        self.changed = trio.Event()
        self.taken = trio.Event()

    async def run(self, reader: readers.LogReader) -> None:
        try:
            while True:
                try:
                    await self._copy(reader)
                except RecordsLost as gap:
                    self.batches.append(gap)
                    self.changed.set()
                else:
                    break
        except LedgerLogError as failure:
            self.failure = failure
        except trio.Cancelled:
            self.failure = ConnectionClosed("the reader was left")
            raise
        finally:
            self.is_complete = True
            self.changed.set()

    async def _copy(self, reader: readers.LogReader) -> None:
        async for batch in reader.batches():
            self.batches.append(batch)
            self.bytes += batch.byte_length + _RECORD_COST_BYTES * len(batch)
            self.changed.set()
            while self.bytes > LOG_READ_AHEAD_BYTES:
                self.taken = trio.Event()
                await self.taken.wait()

    async def take(
        self, received: int, timeout_s: float | None = None
    ) -> list[RecordBatch | RecordsLost] | None:
        """All that has come, at least one batch; none at the end, None once the time is up. ``received`` is
        how many such answers have arrived: one that was lost to an interruption is given again."""
        if received < self.given_count:
            return self.given
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
            while not self.batches and not self.is_complete:
                self.changed = trio.Event()
                await self.changed.wait()
        taken = list(self.batches)
        if not taken and self.is_complete and self.failure is not None:
            raise fresh(self.failure)
        if not taken and not self.is_complete:
            return None
        self.given = taken
        self.given_count += 1
        self.batches.clear()
        self.bytes = 0
        self.taken.set()
        return taken


@asynccontextmanager
async def _fetch(manager: AbstractAsyncContextManager[readers.LogReader]) -> AsyncIterator[_Fetched]:
    fetched = _Fetched()
    async with manager as reader:
        fetched.next_offset = reader.next_offset

        async def run() -> None:
            await fetched.run(reader)

        async with beside(run, name="blocking reader"):
            yield fetched


class LogReader:
    """The records of a log: an iterator, from ``with log.read()``; see ``ledgerlog.LogReader``."""

    def __init__(self, portal: Portal, fetched: _Fetched, held: Held[_Fetched]) -> None:
        self._portal = portal
        self._fetched = fetched
        self._held = held
        self._waiting: deque[RecordBatch | RecordsLost] = deque()
        self._received = 0
        self._records: Iterator[Record] = iter(())
        self._batch: RecordBatch | None = None
        self._next_offset = fetched.next_offset

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was given out, or where reading starts."""
        return self._next_offset

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record = self.next()
        if record is None:
            raise StopIteration
        return record

    def next(self, timeout_s: float | None = None) -> Record | None:
        """The next record; None at the end, or where ``timeout_s`` is given and none came in time."""
        for record in self._records:
            self._next_offset = record.offset + 1
            return record
        batch = self._take(timeout_s)
        if batch is None:
            return None
        self._batch, self._records = batch, iter(batch)
        return self.next()

    def batches(self) -> Iterator[RecordBatch]:
        """The same records by the batch, for replay. Both ways of iterating share one place in the log."""
        while True:
            begun, self._batch, self._records = self._batch, None, iter(())
            if begun is not None and self._next_offset < begun.end_offset:
                batch: RecordBatch | None = begun.between(self._next_offset)
            else:
                batch = self._take(None)
            if batch is None:
                return
            self._next_offset = batch.end_offset
            yield batch

    def _take(self, timeout_s: float | None) -> RecordBatch | None:
        if not self._waiting:
            taken = self._portal.run(lambda: self._fetched.take(self._received, timeout_s))
            if taken is not None:
                self._waiting.extend(taken)
                self._received += 1
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if isinstance(first, RecordsLost):
            self._next_offset = max(self._next_offset, first.first_offset)
            raise first
        return first
