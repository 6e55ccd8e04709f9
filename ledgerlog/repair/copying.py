"""Copying entries between bookies: the shell around ``repair.core.repair`` and ``repair.core.backfill``.

Entries are read as any reader reads them, and checked against their writer's digests. They are sent on as
recovery adds, which a fenced ledger still takes. A copy is complete once the bookie has answered that the
copy is durable. All copying of one process goes through one ``Pacer``. So the rate holds, no matter how many
ledgers the process works on. A task that is faster than the rate waits with its copy in memory.
``repair.core.copy_queue`` bounds how much is read ahead.

There are two kinds of work:

    repair_fragment   other bookies get the entries of lost ones and replace them in the metadata
    fill              a live bookie gets the entries that it lacks; the metadata does not change

**Acknowledgements** come in the order of the adds on a connection (``net.adds``). Acknowledgements with
consecutive ids may be merged into one. So the copies that are on their way to one bookie form a queue, and an
acknowledgement takes copies from the front of that queue. If a bookie is lost or refuses a copy, all
unconfirmed copies to that bookie fail.

**The metadata may name a new bookie only while the bookie is registered as writable.** A new bookie may be
lost, or an operator may begin to empty it, after it got its last copy, while other new bookies still get
copies. If the metadata then named the bookie, nothing would repair the loss. There are three cases:

- The bookie comes back without the copies that it confirmed. It checked for lost entries before the metadata
  named it, so it did not look for these copies.
- The bookie never comes back. The auditor looked for its ledgers before any ledger named it.
- An operator has begun to empty the bookie, and has seen that no ledger names it.

So each new bookie's registration is read right before the write, and the write is a transaction that checks
that the registration is unchanged. A bookie that is lost or being emptied has no node at that path. Therefore
a process that looks for the ledgers of such a bookie sees all of them.

The registration must also be the same as before the first copy. A bookie may stop, lose copies that it had
not synced, and register again, while its connection still looks whole. The new node may have the version of
the old one, but its value is another one: each start of a bookie has another listing key.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import trio

from ledgerlog.concurrency.core.rate import TokenBucket
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import BookieUnavailable, LedgerLogError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.copies import ask_copies
from ledgerlog.ledger.core.comparison import CopyAsk
from ledgerlog.ledger.core.reader import RangeAsk
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.ranges import list_range, read_range, scrub_range
from ledgerlog.limits import ADD_TIMEOUT_S, CONNECT_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, SCRUB_BYTES
from ledgerlog.meta.store import Check, Versioned
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.layout import writable_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, shares
from ledgerlog.repair.core.backfill import Backfill
from ledgerlog.repair.core.copy_queue import Copy
from ledgerlog.repair.core.repair import FragmentRepair
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import Status

__all__ = ["Copying", "Missing", "Pacer"]

_ANSWER_S = CONNECT_TIMEOUT_S + HANDSHAKE_TIMEOUT_S + ADD_TIMEOUT_S
"""A bookie has failed if a copy waits this long for the connection, or for the bookie's confirmation."""

logger = logging.getLogger(__name__)

Missing = list[tuple[int, int]]
"""Ranges of entry ids, in ascending order."""

T = TypeVar("T")


class Pacer:
    """Limits the bytes that one process copies in a second. It can be paused."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bucket = TokenBucket(bytes_per_s, trio.current_time())
        self._resumed = trio.Event()
        self._resumed.set()
        self._changed = trio.Event()

    @property
    def is_paused(self) -> bool:
        """Whether copying is paused."""
        return not self._resumed.is_set()

    def set(self, *, bytes_per_s: int, paused: bool) -> None:
        """Set the rate and the pause from now on."""
        if bytes_per_s != self._bucket.rate:
            self._bucket.change_rate(bytes_per_s, trio.current_time())
            changed, self._changed = self._changed, trio.Event()
            changed.set()
        if paused and self._resumed.is_set():
            self._resumed = trio.Event()
        elif not paused:
            self._resumed.set()

    async def wait_resumed(self) -> None:
        """Wait until copying is not paused."""
        await self._resumed.wait()

    async def pass_through(self, byte_count: int) -> None:
        """Wait until these bytes may be sent, then count them."""
        while True:
            await self._resumed.wait()
            delay_s = self._bucket.delay(trio.current_time())
            if delay_s <= 0:
                self._bucket.spend(byte_count, trio.current_time())
                return
            # A new rate holds at once: stop waiting for the debt of the old rate.
            with trio.move_on_after(delay_s):
                await self._changed.wait()


class Target:
    """The bookie to which copies go, and the copies on their way to it (a ``net.adds.AddSink``)."""

    def __init__(self, client: LedgerClient, metadata: LedgerMetadata, bookie: BookieId) -> None:
        self.bookie = bookie
        self.failure: str | None = None
        self._ledger_id = metadata.ledger_id
        self._key = metadata.key
        self._connection = client.pool.connection(bookie)
        self._quarantine = partial(client.bookies.quarantine, bookie)
        self._waiting: deque[tuple[int, int]] = deque()
        self._changed = trio.Event()
        self._connection.attach(self)

    def close(self) -> None:
        """Stop listening to the bookie's connection."""
        self._connection.detach(self)

    async def store(self, entries: Mapping[int, bytes], *, lac: int) -> None:
        """Store entries, in ascending order, and wait until they are durable.

        Args:
            entries: The entries by id.
            lac: The LAC that the copies carry.

        Raises:
            BookieUnavailable: The bookie did not confirm them in time, refused them, or was lost.
        """
        ids = list(entries)
        first, last = ids[0], ids[-1]
        await self._wait(lambda: self._connection.is_connected)
        built = Entries.gather(self._ledger_id, entries)
        # Repair does not know the LAFR (rule 23).
        frame = encode_add(built, lac=lac, lafr=NO_ENTRY, key=self._key, recovery=True)
        item = (first, last)
        self._waiting.append(item)
        self._connection.send_add(frame, self, first, last)
        await self._wait(lambda: item not in self._waiting)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        with trio.move_on_after(_ANSWER_S):
            while self.failure is None and not condition():
                await self._changed.wait()
        if self.failure is None and not condition():
            self._fail(f"no answer within {_ANSWER_S:g} s")
        if self.failure is not None:
            raise BookieUnavailable(f"bookie {self.bookie}: {self.failure}")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self._quarantine()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # --- AddSink ------------------------------------------------------------------------------

    def on_add_ok(self, bookie_id: BookieId, first: int, last: int) -> None:
        """Take an acknowledgement, which may cover several copies."""
        while True:
            begin, end = self._waiting.popleft()
            assert begin == first, "acknowledgements come in the order of the adds"
            if end == last:
                break
            first = end + 1
        self._tell()

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status) -> None:
        """The bookie refuses a copy: fail."""
        # Later copies to this bookie fail too, even if the bookie still confirms them.
        self._waiting.remove((first, last))
        self._fail(f"it refuses copies of ledger {self._ledger_id}: {status.name}")

    def on_bookie_lost(self, bookie_id: BookieId, why: str) -> None:
        """The connection is lost: fail."""
        self._fail(why)

    def on_bookie_connected(self, bookie_id: BookieId) -> None:
        """The connection is made: wake the waiting tasks."""
        self._tell()

    def on_batch_end(self) -> None:
        pass


class Copying:
    """Copies entries for one process.

    ``entries`` and ``byte_count`` count what bookies have confirmed so far.
    """

    def __init__(self, client: LedgerClient, pacer: Pacer) -> None:
        self.entries = 0
        self.byte_count = 0
        self.pacer = pacer
        self._client = client
        self.registry = LedgerRegistry(client.store, client.environment)

    async def repair_fragment(self, core: FragmentRepair) -> None:
        """Carry out the repair of a fragment.

        Raises:
            RepairFailed: The fragment could not be repaired now. This repair did not change the metadata.
                Errors of reading (EntryCorrupt, EntryNotFound, EntryUnavailable) mean the same: some entry
                could not be read.
            PermissionDenied: This client may not read the ledger. This repair did not change the metadata.
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store could not be reached. The write may or may not have
                happened; the next survey shows it.
            MetadataOutcomeUnknown: The same: the write may or may not have happened.

        Cancelling: the metadata write may or may not have happened. New bookies may keep copies although no
        metadata names these bookies.
        """
        await _FragmentShell(self, core).run()

    async def fill(
        self, metadata: LedgerMetadata, bookie: BookieId, share: Share, missing: Missing
    ) -> Backfill:
        """Copy missing entries to a bookie, as far as other bookies have them.

        Args:
            metadata: The ledger's metadata.
            bookie: The bookie that lacks the entries.
            share: The bookie's share of one fragment.
            missing: The ranges of the share that the bookie lacks.

        Returns:
            The finished ``Backfill``. Its ``nowhere`` and ``unavailable`` are the entries that were not
            available.

        Raises:
            BookieUnavailable: The bookie does not take the copies.
            PermissionDenied: This client may not read the ledger.
        """
        core = Backfill(metadata, bookie, share, missing)
        await _FillShell(self, core, metadata).run()
        return core

    async def read(self, core: FragmentRepair | Backfill, ask: RangeAsk) -> None:
        """Read entries from a bookie, and hand the answer to the core that asks for them.

        Raises:
            PermissionDenied: This client may not read the ledger.
        """
        answer = await read_range(
            self._client.pool.connection(ask.bookie),
            core.ledger_id,
            first=ask.first,
            last=ask.last,
            stride=ask.stride,
        )
        if answer is None:
            core.on_failed(ask)
        else:
            core.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)

    async def store(self, target: Target, entries: Mapping[int, bytes], lac: int) -> None:
        """Store copies on a bookie at the permitted rate, and count them.

        Raises:
            BookieUnavailable: The bookie did not take the copies.
        """
        byte_count = sum(map(len, entries.values()))
        await self.pacer.pass_through(byte_count)
        await target.store(entries, lac=lac)
        self.entries += len(entries)
        self.byte_count += byte_count

    async def is_sound(self, metadata: LedgerMetadata, bookie: BookieId) -> bool:
        """Ask a bookie to read all entries that it has of the ledger. Return whether all are undamaged.

        Missing entries do not count here. If the bookie does not answer, the result is False. The bytes that
        the bookie reads count against the rate like copies, because its disk serves writers as well.
        """
        connection = self._client.pool.connection(bookie)
        for share in shares(metadata, bookie):
            first = share.first
            while first <= share.last:
                answer = await scrub_range(
                    connection, metadata.ledger_id, first=first, last=share.last, classes=1
                )
                if answer is None or answer.report.unsound or answer.through < first:
                    return False
                first = answer.through + 1
                if not answer.report.sound:
                    # A scrub covers only so many ids, even if the bookie has none of them. A list shows how
                    # long the hole is.
                    listed = await list_range(connection, metadata.ledger_id, first=first, last=share.last)
                    if listed is None:
                        return False
                    first = max(first, listed.pairs[0][0]) if listed.pairs else listed.through + 1
                if first <= share.last:
                    await self.pacer.pass_through(SCRUB_BYTES)  # A bookie reads at most this much a request.
        return True


class _Shell:
    """Carries out the reads and copies that a core asks for, each in a task of its own."""

    def __init__(self, copying: Copying) -> None:
        self._copying = copying
        self._client = copying._client
        self._failure: LedgerLogError | None = None
        """The first expected error of a task. It ends the work, and ``run`` raises it."""
        self._wake = trio.Event()

    def _start(self, nursery: trio.Nursery, work: Callable[[T], Awaitable[None]], item: T) -> None:
        """Start ``work(item)`` in a task. If it raises an expected error, ``_failure`` is that error."""
        nursery.start_soon(self._carry_out, partial(work, item))

    async def _carry_out(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LedgerLogError as failure:
            self._failure = self._failure or failure
        self._wake.set()


class _FragmentShell(_Shell):
    """Runs the repair of one fragment."""

    def __init__(self, copying: Copying, core: FragmentRepair) -> None:
        super().__init__(copying)
        self._core = core
        self._targets: dict[BookieId, Target] = {}
        self._registrations: dict[BookieId, Versioned] = {}
        """The registrations of the new bookies before they got copies."""

    async def run(self) -> None:
        """Run the repair to its end. Raises the core's ``failure``, or the error of a read."""
        core = self._core
        try:
            self._targets = {
                new: Target(self._client, core.metadata, new) for new in core.replacements.values()
            }
            async with open_serving_nursery() as nursery:
                await self._drive(nursery)
        finally:
            for target in self._targets.values():
                target.close()
        failure = self._failure or core.failure
        if failure is not None:
            raise failure

    async def _drive(self, nursery: trio.Nursery) -> None:
        core = self._core
        while self._failure is None and not core.is_over:
            self._wake = trio.Event()
            await self._look_at_targets()
            if core.intent is not None:
                core.on_metadata_read(*await self._write(core.intent))
                continue
            for ask in core.take_asks():
                self._start(nursery, self._read, ask)
            for copy in core.take_copies():
                self._start(nursery, self._store, copy)
            if core.intent is None and not core.is_over:
                await self._wake.wait()  # Reads and copies have their own deadlines.

    async def _look_at_targets(self) -> None:
        core = self._core
        for new, target in self._targets.items():
            if target.failure is not None:
                core.on_target_lost(new, target.failure)
        if core.intent is None and self._registrations:
            return
        await self._client.store.sync()
        for new in self._targets:
            registration = await self._client.store.get(writable_path(new))
            if registration is None:
                core.on_target_lost(new, "it is lost, or no longer takes ordinary writes")
            elif registration != self._registrations.setdefault(new, registration):
                core.on_target_lost(new, "it has started again, perhaps without its copies")

    async def _write(self, intent: MetadataIntent) -> tuple[LedgerMetadata | None, int]:
        """Write as ``LedgerRegistry.attempt`` does, but only if all new bookies' registrations are
        unchanged."""
        unchanged = [
            Check(writable_path(new), registration.version)
            for new, registration in self._registrations.items()
        ]
        return await self._copying.registry.attempt(intent, unchanged)

    async def _read(self, ask: RangeAsk) -> None:
        await self._copying.read(self._core, ask)

    async def _store(self, copy: Copy) -> None:
        try:
            await self._copying.store(self._targets[copy.bookie], copy.entries, self._core.lac)
        except BookieUnavailable as cause:
            self._core.on_copy_failed(copy, str(cause))
        else:
            self._core.on_copied(copy)


class _FillShell(_Shell):
    """Runs the filling of one bookie's share."""

    def __init__(self, copying: Copying, core: Backfill, metadata: LedgerMetadata) -> None:
        super().__init__(copying)
        self._core = core
        self._target = Target(self._client, metadata, core.bookie)

    async def run(self) -> None:
        """Run the filling to its end. Raises the error of a list, a read or a copy."""
        try:
            async with open_serving_nursery() as nursery:
                await self._drive(nursery)
        finally:
            self._target.close()
        if self._failure is not None:
            raise self._failure

    async def _drive(self, nursery: trio.Nursery) -> None:
        core = self._core
        while self._failure is None and not core.is_done:
            self._wake = trio.Event()
            await self._copying.pacer.wait_resumed()
            for listing in core.take_lists():
                self._start(nursery, self._list, listing)
            for ask in core.take_asks():
                self._start(nursery, self._read, ask)
            for copy in core.take_copies():
                self._start(nursery, self._store, copy)
            if not core.is_done:
                await self._wake.wait()  # Lists, reads and copies have their own deadlines.

    async def _list(self, ask: CopyAsk) -> None:
        core = self._core
        answer = await ask_copies(self._client.pool.connection(ask.bookie), core.ledger_id, ask)
        if answer is None:
            core.on_list_failed(ask)
        else:
            core.on_listed(ask, answer)

    async def _read(self, ask: RangeAsk) -> None:
        await self._copying.read(self._core, ask)

    async def _store(self, copy: Copy) -> None:
        await self._copying.store(self._target, copy.entries, self._core.lac)
        self._core.on_copied(copy)
