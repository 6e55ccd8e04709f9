"""A workload: ledgers without a log, their owners, and recoverers that race with them and with each other.

Owners create ledgers and append to them until they close them, give them up, are fenced, or die. Recoverers
pick ledgers, mostly the newest, and recover them even if an owner still writes to them. Often two recoverers
meet. Readers read the confirmed entries and follow the ledger. If the swarm enables it, ledgers are deleted,
open or closed.

At the end, these rules must hold for each ledger that is not deleted:

* All processes that learned the ledger's end learned the same end.
* The ledger can be recovered and read. Under each entry id it holds the sent bytes and nothing else.
* The ledger holds every acknowledged entry, and no entry whose append failed definitely.
* Readers saw only entries that the ledger holds.
* A copy may be damaged only on a disk on which bits have rotted, and no entry is unreadable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import EntryNotFound, LedgerClosed, LedgerLogError, LedgerNotFound, NotEnoughBookies
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.world import World, retry

__all__ = ["Book", "RacingRecoverers", "hear_outcomes"]

NEWEST = 3
"""Recoverers and readers mostly choose one of this many newest ledgers, so that they meet."""


@attrs.define(eq=False)
class Book:
    """The facts about one ledger that are known from outside."""

    ledger_id: int
    sent: list[bytes] = attrs.Factory(list)
    acked: int = NO_ENTRY
    absent_from: int | None = None
    """The lowest entry whose append failed definitely."""
    ends: dict[str, int] = attrs.Factory(dict)
    """For each process that learned the ledger's end: the last entry that the process was told."""
    seen: dict[int, bytes] = attrs.Factory(dict)
    """The entries that readers got."""
    is_deleted: bool = False

    def on_end(self, who: str, last_entry: int | None) -> None:
        """A process learned the ledger's end. Raise Violation if another process learned another end."""
        if last_entry is None:
            raise Violation(f"CloseAgree: {who} recovered ledger {self.ledger_id}, but it has no end")
        for other, told in self.ends.items():
            if told != last_entry:
                raise Violation(
                    f"CloseAgree: {who} was told that ledger {self.ledger_id} ends at {last_entry}, and "
                    f"{other} was told {told}"
                )
        self.ends[who] = last_entry

    def on_read(self, first: int, payloads: list[bytes]) -> None:
        """A reader got these entries. Raise Violation if they are not the entries that were sent."""
        for entry_id, payload in enumerate(payloads, first):
            if entry_id >= len(self.sent) or payload != self.sent[entry_id]:
                raise Violation(f"ReadStable: entry {entry_id} of ledger {self.ledger_id} is {payload!r}")
            self.seen[entry_id] = payload

    def judge(self, payloads: list[bytes], last_entry: int) -> None:
        """Check the whole content of the ledger, read at the end."""
        self.on_end("the judge", last_entry)
        self.on_read(0, payloads)
        if len(payloads) != last_entry + 1:
            raise Violation(f"ledger {self.ledger_id} ends at {last_entry} and has {len(payloads)} entries")
        if self.acked > last_entry:
            raise Violation(f"entry {self.acked} of ledger {self.ledger_id} was acknowledged, but is lost")
        if self.absent_from is not None and self.absent_from <= last_entry:
            raise Violation(
                f"the append of entry {self.absent_from} of ledger {self.ledger_id} failed definitely, and "
                f"it is there: the ledger ends at {last_entry}"
            )
        if self.seen and max(self.seen) > last_entry:
            raise Violation(
                f"a reader saw entry {max(self.seen)} of ledger {self.ledger_id}, which ends at {last_entry}"
            )


async def hear_outcomes(world: World, writer: LedgerWriter, book: Book, first: int, count: int) -> bool:
    """Record the outcomes of ``count`` appends from ``first`` on, until one fails.

    If an append fails definitely, its entry and all later entries are not in the ledger. If it fails in
    another way, the entry may be in the ledger.

    Returns:
        False if an append failed.
    """
    for entry_id in range(first, first + count):
        try:
            await writer.wait_confirmed(entry_id)
        except (LedgerClosed, NotEnoughBookies):
            if book.absent_from is None or entry_id < book.absent_from:
                book.absent_from = entry_id
            world.counts["refused"] += 1
            return False
        except LedgerLogError as error:
            world.counts["unknown"] += 1
            world.event("unknown", book.ledger_id, entry_id, type(error).__name__)
            return False
        world.god.on_ack(book.ledger_id, entry_id)
        book.acked = max(book.acked, entry_id)
        world.counts["acked"] += 1
    return True


class RacingRecoverers:
    """The workload (``world.Workload``)."""

    def __init__(self, world: World) -> None:
        self.books: list[Book] = []
        self._world = world
        self._swarm = world.swarm
        self._cluster = world.cluster
        self._counts = world.counts
        self._dice = world.simulation.random("recoverers")
        self._entries = 0
        self._owners = [f"owner-{number}" for number in range(1, self._swarm.clients + 1)]
        self._recoverers = [f"recoverer-{number}" for number in (1, 2)]
        self._pace_s = self._swarm.pace_s

    @property
    def clients(self) -> list[str]:
        return [*self._owners, *self._recoverers, "ledger-reader"]

    @property
    def writers(self) -> list[str]:
        return self._owners

    async def prepare(self) -> None:
        for name in self._owners:
            self._cluster.start(name, self._own)
        for name in self._recoverers:
            self._cluster.start(name, self._recover_for(name))
        self._cluster.start("ledger-reader", self._read)

    # --- owners -------------------------------------------------------------------------------

    async def _own(self, client: Cluster) -> None:
        dice = self._dice
        while True:
            if self._entries < self._swarm.records_max:
                try:
                    writer = await client.ledgers.create(full_pinning=dice.random() < 0.2)
                    book = Book(writer.ledger_id)
                    self.books.append(book)
                    await self._write(client, writer, book)
                except LedgerLogError as error:
                    self._world.event("owner failed", type(error).__name__)
            await self._world.rest(dice.expovariate(4 / self._pace_s))

    async def _write(self, client: Cluster, writer: LedgerWriter, book: Book) -> None:
        dice = self._dice
        self._counts["ledgers"] += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.cancel_scope.deadline = trio.current_time() + dice.expovariate(1 / self._pace_s)
                for task in range(self._swarm.tasks):
                    nursery.start_soon(self._append, writer, book, task)
            if dice.random() < 0.6:
                book.on_end("its owner", await writer.close(timeout_s=dice.choice((0.0, 0.02, self._pace_s))))
                self._counts["closed by the owner"] += 1
            if self._swarm.deletes and dice.random() < 0.3:
                book.is_deleted = True
                await client.ledgers.delete(book.ledger_id)
                self._counts["ledgers deleted"] += 1
        finally:
            with trio.CancelScope(shield=True):
                await writer.aclose()

    async def _append(self, writer: LedgerWriter, book: Book, task: int) -> None:
        dice = self._dice
        while self._entries < self._swarm.records_max:
            payloads = []
            for _ in range(dice.choice((1, 1, 1, 2, 6))):
                self._entries += 1
                name = b"%d.%d.%d " % (book.ledger_id, task, self._entries)
                size = dice.randrange(len(name), len(name) + self._swarm.payload_max)
                payloads.append(name.ljust(size, b"x"))
            try:
                await writer.wait_room()
                first = writer.push(payloads)
            except LedgerLogError:
                return
            assert first == len(book.sent), "entries are numbered in the order in which they are pushed"
            book.sent += payloads
            if not await hear_outcomes(self._world, writer, book, first, len(payloads)):
                return
            await trio.sleep(dice.expovariate(1 / self._swarm.think_s))

    # --- recoverers ---------------------------------------------------------------------------

    def _choose(self) -> Book | None:
        if not self.books:
            return None
        return self._dice.choice(self.books[-NEWEST:] if self._dice.random() < 0.8 else self.books)

    def _recover_for(self, name: str) -> Callable[[Cluster], Awaitable[None]]:
        async def recover(client: Cluster) -> None:
            while True:
                await self._world.rest(self._dice.expovariate(2 / self._pace_s))
                book = self._choose()
                if book is None:
                    continue
                await self._recover_once(client, name, book)

        return recover

    async def _recover_once(self, client: Cluster, name: str, book: Book) -> None:
        try:
            closed = await client.ledgers.recover(book.ledger_id)
        except LedgerLogError as error:
            self._world.event("recovery failed", book.ledger_id, type(error).__name__)
            return
        self._counts["recoveries"] += 1
        book.on_end(name, closed.last_entry)

    # --- readers ------------------------------------------------------------------------------

    async def _read(self, client: Cluster) -> None:
        dice = self._dice
        while True:
            await trio.sleep(dice.expovariate(3 / self._pace_s))
            book = self._choose()
            if book is None:
                continue
            try:
                reader = await client.ledgers.open(book.ledger_id)
                last = await reader.last_add_confirmed()
                for _ in range(3):
                    if last == NO_ENTRY:
                        break
                    first = dice.randrange(last + 1)
                    book.on_read(first, await reader.read(first, last))
                    self._counts["followed"] += last + 1 - first
                    again = await reader.wait_beyond(last)
                    if again < last:
                        raise Violation(f"the LAC of ledger {book.ledger_id} went from {last} to {again}")
                    last = again
            except EntryNotFound as error:
                if not book.is_deleted:
                    raise Violation(f"a confirmed entry is denied to a reader: {error}") from error
            except LedgerLogError as error:
                self._world.event("reader failed", type(error).__name__)

    # --- after it -----------------------------------------------------------------------------

    async def judge(self, client: Cluster) -> None:
        for book in self.books:
            what = f"recovering and reading ledger {book.ledger_id}"
            await retry(self._world, what, partial(self._judge, client, book))

    async def _judge(self, client: Cluster, book: Book) -> None:
        try:
            closed = await client.ledgers.recover(book.ledger_id)
            assert closed.last_entry is not None
            reader = await client.ledgers.open(book.ledger_id)
            payloads = await reader.read(0, closed.last_entry) if closed.last_entry >= 0 else []
            book.judge(payloads, closed.last_entry)
            found = await client.ledgers.verify(book.ledger_id)
        except LedgerNotFound:
            if not book.is_deleted:
                raise Violation(f"ledger {book.ledger_id} is gone, but no user deleted it") from None
            return
        self._counts["ledgers judged"] += 1
        self._counts["copies found damaged"] += len(found.damaged)
        if found.unreadable:
            raise Violation(f"no intact copy is left of entries {found.unreadable} of {book.ledger_id}")
        for entry_id, bookie in found.damaged:
            if bookie not in self._world.rotten and bookie not in self._world.damaged:
                raise Violation(f"the copy of entry {entry_id} of {book.ledger_id} on {bookie} is damaged")
