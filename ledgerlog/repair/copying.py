"""Moving entries from bookies that have them to one that should: the shell around ``repair.core.repair`` and
``repair.core.backfill``.

Entries are read as any reader reads them, checked against their writer's digests, and sent on as recovery
adds, which pass the fence. A copy counts when the bookie has answered that it is durable. All copying of one
process goes through one ``Pacer``, so its rate holds however many ledgers are in work; who copies faster than
it waits with the copy in his hand, and no more is read meanwhile than ``repair.core.repair.COPY_BYTES``.

Two kinds of work:

    repair_fragment   another bookie gets what lost ones held, and is named instead
    fill              a bookie that lives gets what it should have had: nothing is renamed

**Acknowledgements** come in the order of the adds on a connection (``net.adds``), several merged into one
where their ids follow each other. So the copies that are on their way to one bookie are a queue, and an
answer takes from its front. A bookie that is lost, or refuses, fails all that it has not confirmed.

**Whoever is named is there, and is to stay.** One may have been lost after its last copy, while others were
still being given theirs. It may come back without what it confirmed, and nobody would look for copies that
metadata did not ask of it; or never, and then the auditor has drawn its conclusion about it before any ledger
named it. Or an operator may have begun to empty it, and seen that nothing names it. So each new bookie is
looked at again right before the write, and the write is a transaction that checks that it still is registered
as one that takes ordinary writes: one that is lost, or is to be emptied, is not, and stands at that path no
more. Whoever then looks which ledgers name it sees all of them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import trio

from ledgerlog.concurrency.core.rate import TokenBucket
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import BookieUnavailable
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.copies import ask_copies
from ledgerlog.ledger.core.comparison import CopyAsk
from ledgerlog.ledger.core.reader import RangeAsk
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.ranges import RangeAnswer, read_range, scrub_range
from ledgerlog.limits import ADD_TIMEOUT_S, CONNECT_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, SCRUB_BYTES
from ledgerlog.meta.store import Check
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.layout import writable_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, shares
from ledgerlog.repair.core.backfill import Filling
from ledgerlog.repair.core.repair import Copy, FragmentRepair
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.frame import Status

__all__ = ["Copying", "Missing", "Pacer"]

_ANSWER_S = CONNECT_TIMEOUT_S + HANDSHAKE_TIMEOUT_S + ADD_TIMEOUT_S
"""A bookie that confirms nothing for so long while copies wait for it has failed."""

logger = logging.getLogger(__name__)

Missing = list[tuple[int, int]]
"""Ranges of entry ids, growing."""


class Pacer:
    """One process's bound on the bytes that it copies in a second, and the switch that holds it."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bucket = TokenBucket(bytes_per_s, trio.current_time())
        self._resumed = trio.Event()
        self._resumed.set()
        self._changed = trio.Event()

    @property
    def is_paused(self) -> bool:
        return not self._resumed.is_set()

    def set(self, *, bytes_per_s: int, paused: bool) -> None:
        """What holds from now on."""
        if bytes_per_s != self._bucket.rate:
            self._bucket.change_rate(bytes_per_s, trio.current_time())
            changed, self._changed = self._changed, trio.Event()
            changed.set()
        if paused and self._resumed.is_set():
            self._resumed = trio.Event()
        elif not paused:
            self._resumed.set()

    async def wait_resumed(self) -> None:
        """Return while it is not paused."""
        await self._resumed.wait()

    async def pass_through(self, byte_count: int) -> None:
        """Return when so many bytes may go out."""
        while True:
            await self._resumed.wait()
            delay_s = self._bucket.delay(trio.current_time())
            if delay_s <= 0:
                self._bucket.spend(byte_count, trio.current_time())
                return
            # Who raises the rate does not mean: once what was begun at the old one is through.
            with trio.move_on_after(delay_s):
                await self._changed.wait()


class Target:
    """The copies that are on their way to one bookie (``net.adds.AddSink``)."""

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
        self._connection.detach(self)

    async def store(self, entries: Mapping[int, bytes], *, lac: int) -> None:
        """Have entries, in growing order, stored durably. BookieUnavailable."""
        ids = list(entries)
        first, last = ids[0], ids[-1]
        await self._wait(lambda: self._connection.is_connected)
        built = Entries.gather(self._ledger_id, entries)
        # The LAFR is not known here (rule 23).
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
        while True:
            begin, end = self._waiting.popleft()
            assert begin == first, "acknowledgements come in the order of the adds"
            if end == last:
                break
            first = end + 1
        self._tell()

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status) -> None:
        # What follows it is not confirmed either, as far as anybody here goes by it.
        self._waiting.remove((first, last))
        self._fail(f"it refuses copies of ledger {self._ledger_id}: {status.name}")

    def on_bookie_lost(self, bookie_id: BookieId, why: str) -> None:
        self._fail(why)

    def on_bookie_connected(self, bookie_id: BookieId) -> None:
        self._tell()

    def on_batch_end(self) -> None:
        pass


class Copying:
    """Copies entries for one process. ``entries`` and ``byte_count`` are what it has copied so far, counted
    as they are confirmed."""

    def __init__(self, client: LedgerClient, pacer: Pacer) -> None:
        self.entries = 0
        self.byte_count = 0
        self.pacer = pacer
        self._client = client
        self.registry = LedgerRegistry(client.store, client.environment)

    async def repair_fragment(self, core: FragmentRepair) -> None:
        """Carry a fragment's repair out.

        Raises what it fails with (RepairFailed, or why an entry could not be read), and MetadataUnavailable:
        then a write may have happened, which the next survey sees. Cancelled it has changed nothing, or all;
        copies may lie where nobody will look for them."""
        await _FragmentShell(self, core).run()

    async def fill(
        self, metadata: LedgerMetadata, bookie: BookieId, share: Share, missing: Missing
    ) -> Filling:
        """Give a bookie those of its share's ``missing`` entries that others have; the core, which says what
        could not be had. Raises BookieUnavailable: it does not take them."""
        core = Filling(metadata, bookie, share, missing)
        await _FillShell(self, core, metadata).run()
        return core

    async def read(self, ledger_id: int, ask: RangeAsk) -> RangeAnswer | None:
        """What a bookie answers; see ``ledger.ranges.read_range``."""
        return await read_range(
            self._client.pool.connection(ask.bookie),
            ledger_id,
            first=ask.first,
            last=ask.last,
            stride=ask.stride,
        )

    async def store(self, target: Target, entries: Mapping[int, bytes], lac: int) -> None:
        byte_count = sum(map(len, entries.values()))
        await self.pacer.pass_through(byte_count)
        await target.store(entries, lac=lac)
        self.entries += len(entries)
        self.byte_count += byte_count

    async def is_sound(self, metadata: LedgerMetadata, bookie: BookieId) -> bool:
        """Whether a bookie has read all that it has of its shares of the ledger, and found no damage. What it
        lacks is another matter; who does not answer says nothing of the kind. What it reads counts against
        the rate as copies do: its disk serves writers, too."""
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
                if first <= share.last:
                    await self.pacer.pass_through(SCRUB_BYTES)  # So much one request has it read, at most.
        return True


class _FragmentShell:
    """One fragment's repair under way."""

    def __init__(self, copying: Copying, core: FragmentRepair) -> None:
        self._copying = copying
        self._core = core
        self._client = copying._client
        self._targets: dict[BookieId, Target] = {}
        self._registrations: dict[BookieId, Check] = {}
        self._wake = trio.Event()

    async def run(self) -> None:
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
        if core.failure is not None:
            raise core.failure

    async def _drive(self, nursery: trio.Nursery) -> None:
        core = self._core
        while not core.is_over:
            self._wake = trio.Event()
            await self._look_at_targets()
            if core.intent is not None:
                core.on_metadata_read(*await self._write(core.intent))
                continue
            for ask in core.take_asks():
                nursery.start_soon(self._read, ask)
            for copy in core.take_copies():
                nursery.start_soon(self._store, copy)
            if core.intent is None and not core.is_over:
                await self._wake.wait()  # Reads and copies have deadlines of their own.

    async def _look_at_targets(self) -> None:
        core = self._core
        for new, target in self._targets.items():
            if target.failure is not None:
                core.on_target_lost(new, target.failure)
        if core.intent is None:
            return
        for new in self._targets:
            registration = await self._client.store.get(writable_path(new))
            if registration is None:
                core.on_target_lost(new, "it is lost, or takes no ordinary writes any more")
            else:
                self._registrations[new] = Check(writable_path(new), registration.version)

    async def _write(self, intent: MetadataIntent) -> tuple[LedgerMetadata | None, int]:
        """As ``LedgerRegistry.attempt``, but only while all new bookies are registered as they were."""
        return await self._copying.registry.attempt(intent, tuple(self._registrations.values()))

    async def _read(self, ask: RangeAsk) -> None:
        answer = await self._copying.read(self._core.ledger_id, ask)
        if answer is None:
            self._core.on_failed(ask)
        else:
            self._core.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)
        self._wake.set()

    async def _store(self, copy: Copy) -> None:
        try:
            await self._copying.store(self._targets[copy.bookie], copy.entries, self._core.lac)
        except BookieUnavailable as cause:
            self._core.on_copy_failed(copy, str(cause))
        else:
            self._core.on_copied(copy)
        self._wake.set()


class _FillShell:
    """The filling of one bookie's share under way."""

    def __init__(self, copying: Copying, core: Filling, metadata: LedgerMetadata) -> None:
        self._copying = copying
        self._core = core
        self._client = copying._client
        self._target = Target(copying._client, metadata, core.bookie)
        self._failure: BookieUnavailable | None = None
        self._wake = trio.Event()

    async def run(self) -> None:
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
                nursery.start_soon(self._list, listing)
            for ask in core.take_asks():
                nursery.start_soon(self._read, ask)
            for copy in core.take_copies():
                nursery.start_soon(self._store, copy)
            if not core.is_done:
                await self._wake.wait()  # Lists, reads and copies have deadlines of their own.

    async def _list(self, ask: CopyAsk) -> None:
        core = self._core
        answer = await ask_copies(self._client.pool.connection(ask.bookie), core.ledger_id, ask)
        if answer is None:
            core.on_list_failed(ask)
        else:
            core.on_listed(ask, answer)
        self._wake.set()

    async def _read(self, ask: RangeAsk) -> None:
        answer = await self._copying.read(self._core.ledger_id, ask)
        if answer is None:
            self._core.on_failed(ask)
        else:
            self._core.on_reply(ask, answer.found, answer.through, answer.negative, answer.damaged)
        self._wake.set()

    async def _store(self, copy: Copy) -> None:
        try:
            await self._copying.store(self._target, copy.entries, self._core.lac)
        except BookieUnavailable as cause:
            self._failure = self._failure or cause
        else:
            self._core.on_copied(copy)
        self._wake.set()
