"""Ledgers in memory, under the contract of ``ledgerlog.ledger``: a world that logs can be tested in.

One ``World`` stands for the bookies and the metadata store; each ``client()`` for a process. What
is pushed is confirmed by the world's own task, a few steps later, in order. The world decides what a
real one would: when something is confirmed (``hold``), and where recovery ends a ledger: anywhere from
the last confirmed to the last pushed entry (``ends``). Fencing is atomic here and recovery takes some
steps; all that the log layer relies on in between is kept.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.counts import ClientCounts
from ledgerlog.errors import (
    AppendUnknown,
    EntryNotFound,
    EntryUnavailable,
    LedgerClosed,
    LedgerFenced,
    LedgerLogError,
    LedgerNotFound,
    MetadataUnavailable,
    RecoveryFailed,
)
from ledgerlog.ledger.tail import LedgerTails
from ledgerlog.limits import LONG_POLL_S, RECORD_BYTES_MAX, WRITER_WINDOW_BYTES, WRITER_WINDOW_ENTRIES
from ledgerlog.meta.memory import MemoryStore, MemoryTree
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication


class Environment:
    """A wall clock that stands still unless it is moved, and tokens in order."""

    record_bytes_max = RECORD_BYTES_MAX

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._tokens = 0
        self.random = random.Random(number)

    def now_ms(self) -> int:
        return self._world.now_ms

    def new_token(self) -> bytes:
        self._tokens += 1
        return f"{self._number}.{self._tokens}".encode()


@attrs.define(eq=False)
class Client:
    """What ``ledgerlog.ledger.client.LedgerClient`` is."""

    store: MemoryStore
    ledgers: Ledgers
    environment: Environment
    default_replication: Replication
    tails: LedgerTails = attrs.Factory(LedgerTails)
    counts: ClientCounts = attrs.Factory(ClientCounts)


@attrs.define(eq=False)
class Ledger:
    metadata: LedgerMetadata
    entries: list[bytes] = attrs.field(factory=list)
    lac: int = -1
    fenced: bool = False
    fenced_known: bool = False
    changed: trio.Event = attrs.field(factory=trio.Event)
    writer: LedgerWriter | None = None

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    @property
    def readable(self) -> int:
        last = self.metadata.last_entry
        return self.lac if last is None else last


class World:
    def __init__(self, seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.tree = MemoryTree()
        self.now_ms = 1_700_000_000_000
        self.ledgers: dict[int, Ledger] = {}
        self.created: list[int] = []
        self.held: set[int] = set()
        """Ledgers whose entries are not confirmed for now."""
        self.hold_all = False
        self.held_open: set[int] = set()
        """Ledgers whose owner cannot close them for now."""
        self.known: dict[int, int] = {}
        """Ledgers of which too few bookies answer, and the last entry that is known to be confirmed."""
        self.recovery_fails: set[int] = set()
        self.ends: Callable[[Ledger], int] | None = None
        """Where recovery ends a ledger; by default it keeps all that was stored."""
        self.recovery_steps = 2
        self.confirm_steps: Callable[[], int] = lambda: 1
        self._wake = trio.Event()
        self._clients = 0

    def client(self) -> Client:
        self._clients += 1
        environment = Environment(self, self._clients)
        return Client(self.tree.open_store(), Ledgers(self), environment, Replication(1, 1, 1))

    def release(self) -> None:
        self.held.clear()
        self.hold_all = False
        self.held_open.clear()
        self.known.clear()
        for ledger in self.ledgers.values():
            ledger.tell()
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Confirm what was pushed, a few steps after it was."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            for _ in range(self.confirm_steps()):
                await trio.lowlevel.checkpoint()
            for ledger in list(self.ledgers.values()):
                writer = ledger.writer
                if writer is None or writer.failure is not None:
                    continue
                if ledger.fenced:
                    if writer.last_add_pushed > writer.last_add_confirmed:
                        writer.end(LedgerFenced(writer.ledger_id))
                    continue
                if self.hold_all or writer.ledger_id in self.held:
                    continue
                if writer.last_add_pushed > writer.last_add_confirmed:
                    ledger.lac = writer.last_add_pushed
                    writer.confirm(ledger.lac)
                    ledger.tell()

    def fence(self, ledger_id: int) -> None:
        ledger = self.ledgers[ledger_id]
        ledger.fenced = True
        self.wake()


@asynccontextmanager
async def open_world(seed: int = 0) -> AsyncIterator[World]:
    world = World(seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        yield world
        nursery.cancel_scope.cancel()


class LedgerWriter:
    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self.ledger_id = ledger.metadata.ledger_id
        self.replication = ledger.metadata.replication
        self.last_add_pushed = -1
        self.last_add_confirmed = -1
        self.last_add_fully_replicated = -1
        self.failure: LedgerLogError | None = None
        self.denial: LedgerLogError | None = None
        self._confirmed = Watermark()
        self._callback: Callable[[], None] | None = None
        self._unconfirmed_bytes: list[int] = []
        self._room = trio.Event()
        self.window_entries = WRITER_WINDOW_ENTRIES
        self.window_bytes = WRITER_WINDOW_BYTES

    def set_progress_callback(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback

    def set_reach_callback(self, callback: Callable[[], None] | None) -> None:
        """Its bookies can always be reached."""

    @property
    def out_of_reach(self) -> None:
        return None

    def _tell(self) -> None:
        self._room.set()
        self._room = trio.Event()
        if self._callback is not None:
            self._callback()

    @property
    def frames_outstanding(self) -> int:
        return min(3, self.last_add_pushed - self.last_add_confirmed)

    @property
    def has_room(self) -> bool:
        return (
            len(self._unconfirmed_bytes) < self.window_entries
            and sum(self._unconfirmed_bytes) < self.window_bytes
        )

    async def wait_room(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.has_room and self.failure is None:
            await self._room.wait()
        if self.failure is not None:
            raise fresh(self.failure)

    def push(self, payloads: Sequence[bytes]) -> int:
        if self.failure is not None:
            raise fresh(self.failure)
        first = self.last_add_pushed + 1
        self.last_add_pushed += len(payloads)
        self._unconfirmed_bytes += map(len, payloads)
        if not self._ledger.fenced:
            self._ledger.entries += payloads
        self._world.wake()
        return first

    def confirm(self, entry_id: int) -> None:
        del self._unconfirmed_bytes[: entry_id - self.last_add_confirmed]
        self.last_add_confirmed = entry_id
        self._confirmed.advance(entry_id)
        self._tell()

    def end(self, failure: LedgerLogError) -> None:
        if self.failure is None:
            self.failure = failure
            self._confirmed.fail(failure)
            self._tell()

    async def wait_confirmed(self, entry_id: int) -> None:
        await self._confirmed.wait(entry_id)

    async def close(self, *, timeout_s: float = math.inf) -> int:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout_s):
            while self.failure is None and self.last_add_confirmed < self.last_add_pushed:
                await self._room.wait()
        await trio.lowlevel.checkpoint()
        ledger = self._ledger
        while self.ledger_id in self._world.held_open:
            await ledger.changed.wait()
        if ledger.metadata.is_closed:
            self.end(LedgerClosed(self.ledger_id, ledger.metadata.last_entry))
        elif ledger.fenced or self.ledger_id not in self._world.ledgers:
            self.end(LedgerFenced(self.ledger_id))
        if self.failure is not None:
            raise fresh(self.failure)
        ledger.metadata = ledger.metadata.closed(self.last_add_confirmed, b"closed")
        ledger.fenced = True
        ledger.tell()
        self.end(LedgerClosed(self.ledger_id, self.last_add_confirmed, "by its owner"))
        return self.last_add_confirmed

    async def aclose(self) -> None:
        self.end(AppendUnknown(f"ledger {self.ledger_id} was given up"))
        await trio.lowlevel.checkpoint()


class LedgerReader:
    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self.ledger_id = ledger.metadata.ledger_id
        self.metadata = ledger.metadata

    @property
    def is_closed(self) -> bool:
        return self.metadata.is_closed

    @property
    def readable(self) -> int:
        readable = self._ledger.readable
        return readable if self.is_closed else min(readable, self._world.known.get(self.ledger_id, readable))

    def _check(self) -> None:
        if self.ledger_id not in self._world.ledgers:
            raise LedgerNotFound(self.ledger_id)

    async def read(self, first: int, last: int) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        self._check()
        if not await self.is_readable(last):
            raise EntryNotFound(self.ledger_id, last)
        return self._ledger.entries[first : last + 1]

    async def read_batch(self, first: int, last: int, *, bytes_max: int = 2**20) -> list[bytes]:
        payloads = await self.read(first, last)
        for count in range(1, len(payloads)):
            if sum(map(len, payloads[: count + 1])) > bytes_max:
                return payloads[:count]
        return payloads

    async def last_add_confirmed(self) -> int:
        readable = await self.find_readable()
        self._check_known()
        return readable

    async def known_end(self) -> tuple[int, EntryUnavailable | None]:
        try:
            return await self.last_add_confirmed(), None
        except EntryUnavailable as doubt:
            return self.readable, doubt

    async def find_readable(self) -> int:
        await trio.lowlevel.checkpoint()
        self._check()
        return self.readable

    async def is_readable(self, entry_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        if entry_id > self.readable:
            self._check_known()
        return entry_id <= self.readable

    def _check_known(self) -> None:
        if self.ledger_id in self._world.known and not self.is_closed:
            raise EntryUnavailable(self.ledger_id, self.readable + 1, "too few bookies")

    async def wait_beyond(self, entry_id: int) -> int:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(LONG_POLL_S):
            while not self._ledger.metadata.is_closed and self.readable <= entry_id:
                self._check()
                await self._ledger.changed.wait()
        self._check()
        self.metadata = self._ledger.metadata
        return self.readable


class Ledgers:
    """What ``ledgerlog.ledger.ledgers.Ledgers`` is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.unavailable = False

    async def create(
        self, *, replication: Replication | None = None, metadata: Mapping[str, bytes] | None = None
    ) -> LedgerWriter:
        await trio.lowlevel.checkpoint()
        if self.unavailable:
            raise MetadataUnavailable("no ledger can be made")
        ledger_id = len(self._world.created)
        self._world.created.append(ledger_id)
        replication = replication or Replication(1, 1, 1)
        stored = LedgerMetadata.create(
            ledger_id=ledger_id,
            replication=replication,
            ensemble=[f"b{i}" for i in range(replication.ensemble)],
            key=bytes(16),
            token=b"created",
            created_ms=self._world.now_ms,
            custom=dict(metadata or {}),
        )
        ledger = Ledger(stored)
        self._world.ledgers[ledger_id] = ledger
        ledger.writer = LedgerWriter(self._world, ledger)
        return ledger.writer

    def _ledger(self, ledger_id: int) -> Ledger:
        if ledger_id not in self._world.ledgers:
            raise LedgerNotFound(ledger_id)
        return self._world.ledgers[ledger_id]

    async def open(self, ledger_id: int, *, recover: bool = False) -> LedgerReader:
        await trio.lowlevel.checkpoint()
        if recover:
            await self.recover(ledger_id)
        return LedgerReader(self._world, self._ledger(ledger_id))

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        await trio.lowlevel.checkpoint()
        ledger = self._ledger(ledger_id)
        if ledger_id in self._world.recovery_fails:
            raise RecoveryFailed(ledger_id, "the test says so")
        if ledger.metadata.is_closed:
            return ledger.metadata
        self._world.fence(ledger_id)
        if ledger.metadata.state is LedgerState.OPEN:
            ledger.metadata = ledger.metadata.in_recovery(b"recovering")
        for _ in range(self._world.recovery_steps):
            await trio.lowlevel.checkpoint()
        if not ledger.metadata.is_closed:
            end = len(ledger.entries) - 1 if self._world.ends is None else self._world.ends(ledger)
            assert ledger.lac <= end < len(ledger.entries)
            del ledger.entries[end + 1 :]
            ledger.metadata = ledger.metadata.closed(end, b"recovered")
            ledger.tell()
        return ledger.metadata

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        await trio.lowlevel.checkpoint()
        return self._ledger(ledger_id).metadata

    async def list(self) -> list[int]:
        await trio.lowlevel.checkpoint()
        return sorted(self._world.ledgers)

    async def delete(self, ledger_id: int) -> None:
        await trio.lowlevel.checkpoint()
        ledger = self._ledger(ledger_id)
        del self._world.ledgers[ledger_id]
        ledger.tell()
