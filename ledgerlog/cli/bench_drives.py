"""Ways to keep a ledger or a log busy and to time every acknowledgement.

A *drive* runs for a given time and fills ``Latencies``. The work of a drive counts as the writer's CPU, so a
drive does little. For example, it appends to a ledger in batches, from the progress callback, with two
timestamps per batch.

    LedgerWindow      a fixed number of entries in flight: each confirmation makes room for new ones
    LedgerPace        entries arrive at a fixed rate, whether or not earlier entries are confirmed (an open
                      loop). Each entry is timed from the moment when it was due, so a stall counts in full
    lone_ledger       one append after the other
    log_many          ``append_many``, two calls in flight
    log_tasks         as many tasks as the window; each awaits one ``append`` after the other
    lone_log          one append after the other

The drives of a log work under trio and asyncio: they get the function that runs tasks (``Together``).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import trio

from ledgerlog.cli.bench_figures import Latencies
from ledgerlog.cli.bench_pacing import ticks
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import WRITER_WINDOW_BYTES, WRITER_WINDOW_ENTRIES
from ledgerlog.model.record import Ack

__all__ = [
    "LedgerPace",
    "LedgerWindow",
    "RecordWriter",
    "Together",
    "Work",
    "in_nursery",
    "log_many",
    "log_tasks",
    "lone_ledger",
    "lone_log",
    "payloads_of",
]

_TICK_S = 0.0002
_CALLS_IN_FLIGHT = 2

Work = Callable[[], Coroutine[Any, Any, None]]
Together = Callable[[Sequence[Work]], Awaitable[None]]
"""Runs async functions at the same time, each in a task, until all have ended."""


class RecordWriter(Protocol):
    """The leader of a log, under trio or asyncio."""

    def append(self, data: bytes, /) -> Awaitable[Ack]: ...

    def append_many(self, datas: Sequence[bytes], /) -> Awaitable[list[Ack]]: ...


async def in_nursery(works: Sequence[Work]) -> None:
    """Run works in a nursery of trio."""
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)


def payloads_of(size: int, count: int) -> list[bytes]:
    """Return ``count`` payloads of random bytes. At most 64 of them differ; the rest repeat them."""
    different = [os.urandom(size) for _ in range(min(count, 64))]
    return [different[i % len(different)] for i in range(count)]


class LedgerWindow:
    """Keeps a fixed number of entries of a ledger in flight."""

    def __init__(self, writer: LedgerWriter, *, size: int, window: int) -> None:
        self._writer = writer
        self._window = max(1, min(window, WRITER_WINDOW_BYTES // size))
        self._payloads = payloads_of(size, self._window)
        self._sent: deque[tuple[int, int, int]] = deque()
        self._is_on = False
        self._over = trio.Event()
        self.latencies = Latencies()

    async def run(self, seconds: float) -> None:
        """Keep the window full for this time, then wait until all entries are confirmed.

        Raises the writer's ``failure`` if it fails.
        """
        self._is_on = True
        self._writer.set_progress_callback(self._on_progress)
        self._on_progress()
        with trio.move_on_after(seconds):
            await self._over.wait()
        self._is_on = False
        await self._writer.flush()
        self._writer.set_progress_callback(None)

    def _on_progress(self) -> None:
        now = time.perf_counter_ns()
        writer, sent = self._writer, self._sent
        if writer.failure is not None:
            self._over.set()
            return
        confirmed = writer.last_add_confirmed
        while sent and sent[0][0] <= confirmed:
            first, last, at = sent.popleft()
            if last > confirmed:
                sent.appendleft((confirmed + 1, last, at))
                last = confirmed
            self.latencies.add(now - at, last - first + 1)
        room = self._window - (writer.last_add_pushed - confirmed)
        if room > 0 and self._is_on:
            first = writer.last_add_pushed + 1
            sent.append((first, first + room - 1, now))
            writer.push(self._payloads[:room])


class LedgerPace:
    """Pushes entries to a ledger at a fixed rate (an open loop)."""

    def __init__(self, writer: LedgerWriter, *, size: int, rate: float) -> None:
        self._writer = writer
        self._rate = rate
        self._outstanding_max = max(1, min(WRITER_WINDOW_ENTRIES, WRITER_WINDOW_BYTES // size))
        self._payloads = payloads_of(size, self._outstanding_max)
        self._sent: deque[tuple[int, int, int, int]] = deque()
        self.latencies = Latencies()

    async def run(self, seconds: float) -> None:
        """Push entries for this time, as they become due, then wait until all are confirmed.

        If the writer cannot keep up, due entries wait, and the latency includes their waiting.
        """
        writer = self._writer
        writer.set_progress_callback(self._on_progress)
        began = time.perf_counter_ns()
        pushed = 0
        with ticks(_TICK_S) as clock:
            while (elapsed := time.perf_counter_ns() - began) < seconds * 1e9:
                due = int(elapsed * self._rate / 1e9) - pushed
                room = self._outstanding_max - (writer.last_add_pushed - writer.last_add_confirmed)
                count = min(due, room)
                if count > 0:
                    first = writer.last_add_pushed + 1
                    self._sent.append(
                        (
                            first,
                            first + count - 1,
                            began + self._due(pushed),
                            began + self._due(pushed + count - 1),
                        )
                    )
                    pushed += count
                    writer.push(self._payloads[:count])
                await clock.wait()
        await writer.flush()
        writer.set_progress_callback(None)

    def _due(self, number: int) -> int:
        """Return the time at which the record of this number was due, in nanoseconds since the start."""
        return int(number * 1e9 / self._rate)

    def _on_progress(self) -> None:
        now = time.perf_counter_ns()
        sent = self._sent
        confirmed = self._writer.last_add_confirmed
        while sent and sent[0][1] <= confirmed:
            first, last, first_due, last_due = sent.popleft()
            self.latencies.add_spread(now - first_due, now - last_due, last - first + 1)


async def lone_ledger(writer: LedgerWriter, latencies: Latencies, *, size: int, seconds: float) -> None:
    """Append entries to a ledger one after the other."""
    (payload,) = payloads_of(size, 1)
    end = time.perf_counter_ns() + int(seconds * 1e9)
    now = time.perf_counter_ns()
    while now < end:
        began = now
        await writer.append(payload)
        now = time.perf_counter_ns()
        latencies.add(now - began)


async def log_many(
    writer: RecordWriter,
    latencies: Latencies,
    *,
    size: int,
    window: int,
    seconds: float,
    together: Together,
) -> None:
    """Append records to a log by ``append_many``, two calls in flight."""
    records = payloads_of(size, max(1, window // _CALLS_IN_FLIGHT))
    end = time.perf_counter_ns() + int(seconds * 1e9)

    async def call() -> None:
        now = time.perf_counter_ns()
        while now < end:
            began = now
            await writer.append_many(records)
            now = time.perf_counter_ns()
            latencies.add(now - began, len(records))

    await together([call] * _CALLS_IN_FLIGHT)


async def log_tasks(
    writer: RecordWriter,
    latencies: Latencies,
    *,
    size: int,
    window: int,
    seconds: float,
    together: Together,
) -> None:
    """Append records to a log from as many tasks as the window."""
    await together([partial(lone_log, writer, latencies, size=size, seconds=seconds)] * window)


async def lone_log(writer: RecordWriter, latencies: Latencies, *, size: int, seconds: float) -> None:
    """Append records to a log one after the other."""
    (record,) = payloads_of(size, 1)
    now = time.perf_counter_ns()
    end = now + int(seconds * 1e9)
    while now < end:
        began = now
        await writer.append(record)
        now = time.perf_counter_ns()
        latencies.add(now - began)
