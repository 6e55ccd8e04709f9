"""One engine does many things at once, in an order that only the seed knows.

Tasks add, repair, read, list, scrub, fence and delete. Meanwhile the engine flushes, compacts and scrubs. For
a while reads fail or the disk is full. Stored bytes rot, clients give up, and the bookie stops, crashes or
fails a sync. Then it starts again on the same disk, now and then with a rebuilt index. The seed decides
everything: the same seed is the same life (``ledgerlog.testing.deterministic``).

Whatever happens:

- Nothing but a documented exception leaves the engine. Any other one ends a bookie.
- Nothing hangs.
- A read gives the bytes that were added and no others, and no answer tells of an entry that nobody brought.
- An entry that was acknowledged is never denied. If it rotted, or if its file cannot be read, it may be
  unreadable. In a *calm* life nothing rots and every read works, and then every entry is sound.
- A fenced ledger takes no ordinary add, and a deleted ledger never comes back.

In other lives the files themselves are damaged and salvaged. Only the first three hold then.

The soak lives as often as you want. Environment:

    ENGINE_SOAK_LIVES   how many lives of each kind (3000; about a quarter of a second each)
    ENGINE_SOAK_SEED    the first seed (1000). A failure names its seed
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from storing import KEY, SMALL, Crash, ToldOracle, add_frame, opened, payload_of, payloads
from test_scrub_request import Whole, sums_of

from bookie.core import rows
from bookie.core.block import NONCE_BYTES
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.opening import open_engine
from bookie.storage.index.index import MemoryIndexes
from bookie.storage.upkeep.rebuild import rebuild_index
from bookie.storage.upkeep.replacing import DamagedRun
from bookie.storage.upkeep.salvage import salvage
from ledgerlog.errors import DiskFull, LedgerLogError, StorageCorrupt, StorageError
from ledgerlog.testing.deterministic import Outcome, Simulation
from ledgerlog.testing.faulty_disk import DiskCall, DiskFault, Fails, FaultyDisk, GoOn
from ledgerlog.wire.checksum import entry_digest
from ledgerlog.wire.entries import Entries
from ledgerlog.wire.frame import Status, encode_pairs
from ledgerlog.wire.scrub import ScrubReport

SEEDS = (*range(64, 82), 109)
"""Some of these lives ended by bugs: 69, 73, 76 and 80 because compaction took the end of a flush's watch for
its own; 68, 71 and 74 because a failed fetch was followed by frames that are not the first ones; others
because frames did not come in the order of the runs."""
DAMAGED_SEEDS = range(7)

LEDGERS, ENTRIES = 4, 300
ROUNDS, WORKERS, STEPS = 4, 4, 25
"""How often the bookie starts, and how many tasks then do how many steps each."""
BUSY = attrs.evolve(
    SMALL,
    merge_width=2,
    log_bytes_max=40_000,
    compact_bytes_per_s=2**40,
    scrub_bytes_per_s=2**40,
    write_cache_age_s=0.01,
    scrub_interval_s=0.05,
    compact_interval_s=0.02,
    compact_eventual_interval_s=0.05,
    collect_interval_s=0.1,
)
PATIENCE_S = 60.0
"""Simulated seconds: hundreds of times as long as any fault lasts."""
SETTLED_S = 0.1
"""After that, no call that the full disk refused is under way."""
BLOCKS_AT = 4096
"""What a start needs of a file lies before."""

REFUSALS = (Status.FENCED, Status.TOO_MANY_REQUESTS, Status.DISK_FULL, Status.CORRUPT, Status.IO_ERROR)
ANSWERS = (Status.OK, Status.NO_SUCH_LEDGER, Status.CORRUPT, Status.IO_ERROR)

REQUESTS = {
    "add": 10,
    "add_again": 5,
    "contradict": 0.5,
    "flush": 2,
    "read": 6,
    "recovery_read": 0.3,
    "list": 4,
    "scrub": 6,
    "list_ledgers": 1,
    "fence": 0.5,
}
"""What clients ask for, and how often. They may give up at any time."""
UPKEEP = {"compact": 3, "scrub_all": 1, "restore": 3, "forget": 0.3, "delete": 0.5}
MAY_FIND_NO_ROOM = ("flush", "restore", "delete")
FAULTS = {"rot": 3, "fail_reads": 2, "fill": 0.7, "fail_syncs": 0.1, "crash": 0.15}
OUTCOMES = (
    *("CORRUPT", "IO_ERROR", "NO_SUCH_LEDGER", "add: CORRUPT", "add: DISK_FULL", "add: FENCED", "unsound"),
    *("given up", "no room", "crashed", "failed", "index rebuilt", "index kept", "refused", "set aside"),
    *("rotted", "rotten_runs", "files_damaged", "restored", "runs_restored", "forgotten", "ledgers_deleted"),
    *("compactions", "segments_flushed", "caches_flushed", "scrub_passes", "runs_read_from_cache"),
)
"""What has to happen in these lives, apart from the steps. Some of it is from ``Engine.statistics``."""


@attrs.define(eq=False)
class Ledger:
    """What is known of a ledger, without the bookie."""

    number: int
    sent: set[int] = attrs.Factory(set)
    """What adds brought, accepted or not."""
    stored: set[int] = attrs.Factory(set)
    """What was acknowledged."""
    lac: int = -1
    """The greatest LAC of the accepted adds since the last crash."""
    is_gone: bool = False
    """The metadata store does not have it any more."""
    is_deleted: bool = False
    """The bookie has said so."""
    adders: int = 0
    is_closed: bool = False
    """Nobody may add now."""

    def as_now(self) -> Ledger:
        return attrs.evolve(self, stored=set(self.stored))


class Life:
    """The lives of one bookie, one after the other.

    Args:
        simulation: The run. Its seed decides everything.
        is_damaged: The files will be damaged.
    """

    def __init__(self, simulation: Simulation, *, is_damaged: bool = False) -> None:
        dice = self._dice = simulation.random("life")
        self._nonces = simulation.random("nonces")
        self._event = simulation.event
        self.seen: Counter[str] = Counter()
        """What happened."""
        self.disk, self.indexes, self.oracle = FaultyDisk(), MemoryIndexes(), ToldOracle()
        self.disk.is_quick = dice.random() < 0.3
        self.config = attrs.evolve(
            BUSY,
            scrub=dice.random() < 0.5,
            small_run_bytes=dice.choice((0, 1000, 20_000)),
            ledgers_max=dice.choice((1, 3, 100)),
            journal_write_data=is_damaged or dice.random() < 0.7,
            arenas=dice.choice((2, 3)),
            read_cache_bytes=dice.choice((0, 100_000)),
            read_ahead_bytes=dice.choice((1, 3000, 256 * 1024)),
            segment_records_max=dice.choice((5, 10_000)),
            first_segment_bytes=dice.choice((0, 0, 4 * 4096)),
        )
        self.may_crash = self.config.journal_write_data
        """Without the journal a crash loses entries, and only a whole bookie can start then."""
        self.is_calm = not is_damaged and dice.random() < 0.25
        self.ledgers = {number: Ledger(number) for number in range(1, LEDGERS + 1)}
        self.fenced: set[int] = set()
        self._promises_nothing = False
        """Files were damaged, so entries may be missing."""
        self._is_failing = False
        """A sync fails in this round."""

    async def live(self) -> None:
        for number in range(ROUNDS):
            if number and self._dice.random() < 0.3:
                await self._rebuild()
            await self._round()
        self._begin()
        async with self._running() as engine:
            await self._look_at_everything(engine)

    async def live_with_damage(self) -> None:
        """Two rounds, then damage of all kinds, attempts to go on, and in the end a salvage."""
        for _ in range(2):
            await self._round()
        self._promises_nothing = True
        self._damage_files()
        for attempt in (self._round, self._rebuild, self._round, self._salvage, self._round, self._rebuild):
            if self._dice.random() < 0.5:
                try:
                    await attempt()
                except* LedgerLogError:
                    self.seen["refused"] += 1
        await self._salvage()
        await self._round()

    # --- starts and ends --------------------------------------------------------------------------

    async def _round(self) -> None:
        """Start, let all tasks work, and stop or crash."""
        self._begin()
        try:
            async with self._running() as engine:
                async with trio.open_nursery() as nursery:
                    for _ in range(WORKERS):
                        nursery.start_soon(self._work, engine, nursery)
                await trio.sleep(SETTLED_S)
                await self._look_at_everything(engine)
                for what, count in engine.statistics().items():
                    self.seen[what] += count
                if self.may_crash and self._dice.random() < 0.3:
                    raise Crash
        except* Crash:
            self.seen["crashed"] += 1
            self._forget_lacs()
        except* StorageError:
            assert self._is_failing or self._promises_nothing
            self.seen["failed"] += 1
            self._forget_lacs()
            if self._dice.random() < 0.5:
                self.disk.cut_power()
            if not self._is_failing:
                raise

    def _begin(self) -> None:
        self._is_failing = False
        self.disk.faults = [self._take_time]
        for ledger in self.ledgers.values():
            ledger.adders, ledger.is_closed = 0, False

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Engine]:
        async with (
            opened("b", self.disk, self.indexes) as directory,
            open_engine(directory, self.config, new_nonce=self._new_nonce, oracle=self.oracle) as engine,
        ):
            yield engine

    async def _rebuild(self) -> None:
        self.disk.faults = []
        async with opened("b", self.disk, self.indexes) as directory:
            try:
                await rebuild_index(directory)
            except StorageCorrupt:
                assert not self.is_calm
                self.seen["index kept"] += 1
            else:
                self.seen["index rebuilt"] += 1
                self._forget_lacs()

    async def _salvage(self) -> None:
        self.disk.faults = []
        async with opened("b", self.disk, self.indexes) as directory:
            self.seen["set aside"] += len((await salvage(directory, self._new_nonce)).set_aside)

    def _forget_lacs(self) -> None:
        """Those that came without an entry may be lost."""
        for ledger in self.ledgers.values():
            ledger.lac = -1

    def _new_nonce(self) -> bytes:
        return self._nonces.randbytes(NONCE_BYTES)

    async def _take_time(self, call: DiskCall, go_on: GoOn) -> Any:
        if self._dice.random() < 0.3:
            await trio.sleep(self._dice.choice((0.0002, 0.001, 0.004, 0.03)))
        return await go_on()

    # --- steps ------------------------------------------------------------------------------------

    async def _work(self, engine: Engine, nursery: trio.Nursery) -> None:
        for _ in range(STEPS):
            await self._step(engine, nursery)
            await trio.sleep(self._dice.choice((0, 0, 0, 0.001, 0.01)))

    async def _step(self, engine: Engine, nursery: trio.Nursery) -> None:
        dice = self._dice
        weights = REQUESTS | UPKEEP | FAULTS
        name = dice.choices(list(weights), list(weights.values()))[0]
        living = [ledger for ledger in self.ledgers.values() if not ledger.is_gone]
        ledger = dice.choice(living if living and dice.random() < 0.95 else list(self.ledgers.values()))
        self._event(name, ledger.number)
        self.seen[name] += 1
        if name in FAULTS:
            fault = getattr(self, f"_{name}")(engine, ledger)
            if fault is not None:
                nursery.start_soon(self._for_a_while, fault)
            return
        patience_s = dice.choice((0.0005, 0.002, PATIENCE_S, PATIENCE_S)) if name in REQUESTS else PATIENCE_S
        with trio.move_on_after(patience_s) as patience:
            try:
                await getattr(self, f"_{name}")(engine, ledger)
            except DiskFull:
                assert name in MAY_FIND_NO_ROOM
                self.seen["no room"] += 1
        if patience.cancelled_caught:
            assert patience_s < PATIENCE_S, f"{name} never ends"
            self.seen["given up"] += 1

    async def _pace(self, cost: int) -> None:
        if self._dice.random() < 0.3:
            await trio.lowlevel.checkpoint()

    # --- adds -------------------------------------------------------------------------------------

    async def _add(self, engine: Engine, ledger: Ledger) -> None:
        dice = self._dice
        first = dice.randrange(ENTRIES)
        count, step = dice.choice((1, 3, 8, 20, 60)), dice.choice((1, 1, 2, 3))
        await self._bring(engine, ledger, range(first, first + count, step))

    async def _add_again(self, engine: Engine, ledger: Ledger) -> None:
        if ledger.stored:
            first = self._dice.choice(sorted(ledger.stored))
            last = first + self._dice.choice((1, 2, 5, 30))
            await self._bring(engine, ledger, sorted(ledger.stored.intersection(range(first, last))))

    async def _contradict(self, engine: Engine, ledger: Ledger) -> None:
        """Bring other bytes under a stored id. Only a damaged entry might take them."""
        if self.is_calm and ledger.stored:
            entry_id = self._dice.choice(sorted(ledger.stored))
            verdict = engine.add(*add_frame(ledger.number, [entry_id], [b"other"], recovery=True))
            assert verdict is Status.CONFLICT or ledger.is_gone or self._is_failing

    async def _bring(self, engine: Engine, ledger: Ledger, ids: Sequence[int]) -> None:
        dice = self._dice
        with trio.move_on_after(0.05):
            await engine.wait_room()
        if ledger.is_closed:
            return
        is_recovery, lac = dice.random() < 0.7, dice.randrange(-1, ENTRIES)
        frame = add_frame(ledger.number, ids, recovery=is_recovery, lac=lac)
        ledger.sent.update(ids)
        if dice.random() < 0.3:
            engine.hold()
            position = engine.add(*frame)
            engine.release(at_once=dice.random() < 0.7)
        else:
            position = engine.add(*frame)
        if isinstance(position, Status):
            assert position in REFUSALS or (ledger.is_gone and position is Status.NO_SUCH_LEDGER)
            self.seen[f"add: {position.name}"] += 1
            return
        assert self._promises_nothing or not ledger.is_deleted
        assert self._promises_nothing or is_recovery or ledger.number not in self.fenced
        ledger.lac = max(ledger.lac, lac)
        ledger.adders += 1
        try:
            await engine.wait_durable(position)
            ledger.stored.update(ids)
        finally:
            ledger.adders -= 1

    # --- reads ------------------------------------------------------------------------------------

    async def _read(self, engine: Engine, ledger: Ledger, *, is_fencing: bool = False) -> None:
        dice = self._dice
        first = dice.randrange(ENTRIES + 50)
        last = first + dice.choice((0, 20, 1000))
        stride, bytes_max = dice.choice((1, 1, 2, 3)), dice.choice((1, 500, 10**6))
        await self._look(
            engine, ledger, first, last, stride=stride, bytes_max=bytes_max, is_fencing=is_fencing
        )

    async def _recovery_read(self, engine: Engine, ledger: Ledger) -> None:
        await self._read(engine, ledger, is_fencing=True)

    async def _look_at_everything(self, engine: Engine) -> None:
        for ledger in self.ledgers.values():
            first, last = 0, max(ledger.sent, default=0)
            while first <= last:
                first = await self._look(engine, ledger, first, last) + 1

    async def _look(
        self,
        engine: Engine,
        ledger: Ledger,
        first: int,
        last: int,
        *,
        stride: int = 1,
        bytes_max: int = 10**6,
        is_fencing: bool = False,
    ) -> int:
        """Read, and return the last entry that the answer has, denies or calls unreadable."""
        before = ledger.as_now()
        asked: dict[str, Any] = {"first": first, "last": last, "stride": stride, "bytes_max": bytes_max}
        if is_fencing:
            found = await engine.recovery_read(ledger.number, KEY, **asked, pace=self._pace)
            if found.status is Status.DISK_FULL:
                return first - 1
            if found.status in (Status.OK, Status.NO_SUCH_LEDGER):
                self.fenced.add(ledger.number)
        else:
            found = await engine.read(ledger.number, **asked, pace=self._pace)
        entries = dict(zip(found.entries.ids, found.entries.payloads(), strict=True))
        assert entries == payloads(ledger.number, list(entries))
        decided = range(first, min(last, found.through) + 1, stride)
        assert entries.keys() <= within(ledger.sent, decided)
        self._check(ledger, before, found.status, entries.keys(), decided)
        if found.status is Status.OK:
            assert found.through >= first
        assert ledger.is_gone or self._promises_nothing or found.lac >= before.lac
        self._event("read", found.status.name, found.through)
        is_unreadable = found.status in (Status.CORRUPT, Status.IO_ERROR)
        return found.through + is_unreadable

    def _check(
        self,
        ledger: Ledger,
        before: Ledger,
        status: Status,
        told: Collection[int],
        decided: range,
    ) -> None:
        """Check that an answer about the entries ``decided`` denies nothing.

        Args:
            ledger: The ledger now.
            before: The ledger when the request came.
            status: The status of the answer.
            told: The entries that the answer has.
            decided: The entries that the answer is about.
        """
        assert status in ANSWERS
        self.seen[status.name] += 1
        if before.is_deleted and not self._promises_nothing:
            assert status is Status.NO_SUCH_LEDGER
            assert not told
        promised = self._promised(ledger, before)
        denied = within(promised, decided).difference(told)
        assert not denied, f"{status.name} denies {sorted(denied)}"
        if promised and self.is_calm and not self._is_failing:
            assert status is Status.OK
        if ledger.stored and ledger.is_gone and status is Status.NO_SUCH_LEDGER:
            ledger.is_deleted = True

    def _promised(self, ledger: Ledger, before: Ledger) -> set[int]:
        """The entries that were acknowledged before a request, and are not dropped or deleted since."""
        return set() if ledger.is_gone or self._promises_nothing else before.stored & ledger.stored

    async def _list(self, engine: Engine, ledger: Ledger) -> None:
        dice = self._dice
        first = dice.randrange(ENTRIES + 50)
        last = first + dice.choice((0, 20, 2**62))
        before = ledger.as_now()
        pairs_max = dice.choice((1, 3, 100))
        found = await engine.list_entries(
            ledger.number, first=first, last=last, pairs_max=pairs_max, pace=self._pace
        )
        encode_pairs(found.pairs)
        assert len(found.pairs) <= pairs_max
        told = {entry_id for low, high in found.pairs for entry_id in range(low, high + 1)}
        decided = range(first, min(last, found.through) + 1)
        assert told <= within(ledger.sent, decided)
        self._check(ledger, before, found.status, told, decided)
        if found.status is Status.OK:
            assert found.through >= first if found.pairs else found.through == last

    async def _scrub(self, engine: Engine, ledger: Ledger) -> None:
        dice = self._dice
        first = dice.randrange(ENTRIES + 50)
        last = first + dice.choice((0, 20, 1000, 2**62))
        before = ledger.as_now()
        classes, bytes_max = dice.choice((1, 3, 4096)), dice.choice((1, 5000, 10**6))
        found = await engine.scrub(
            ledger.number, first=first, last=last, classes=classes, bytes_max=bytes_max, pace=self._pace
        )
        whole = Whole()
        if found.status is Status.OK:
            assert found.through >= first
            whole.take(found.report)
        else:
            assert found.report == ScrubReport((), (), ())
        decided = range(first, min(last, found.through) + 1)
        assert whole.sound <= within(ledger.sent, decided)
        number = ledger.number
        digests = {each: entry_digest(number, each, payload_of(number, each)) for each in whole.sound}
        assert whole.sums == sums_of(digests, classes)
        self._check(ledger, before, found.status, whole.sound | whole.unsound, decided)
        assert not (self.is_calm and whole.unsound)
        self.seen["unsound"] += len(whole.unsound)

    async def _list_ledgers(self, engine: Engine, ledger: Ledger) -> None:
        befores = [each.as_now() for each in self.ledgers.values()]
        first = self._dice.randrange(len(self.ledgers) + 2)
        found, through = await engine.list_ledgers(first, self._dice.choice((1, 3, 100)))
        last_entries = {each.ledger_id: each.last_entry for each in found}
        for before in befores:
            if first <= before.number <= through and not self._promises_nothing:
                promised = self._promised(self.ledgers[before.number], before)
                assert last_entries.get(before.number, -1) >= max(promised, default=-1)
                assert not (before.is_deleted and before.number in last_entries)

    # --- upkeep -----------------------------------------------------------------------------------

    async def _flush(self, engine: Engine, ledger: Ledger) -> None:
        await engine.flush()

    async def _compact(self, engine: Engine, ledger: Ledger) -> None:
        await engine.compactor.compact(is_eventual=self._dice.random() < 0.5)

    async def _scrub_all(self, engine: Engine, ledger: Ledger) -> None:
        rotten = await engine.scrubber.scrub()
        assert not (self.is_calm and rotten)

    async def _restore(self, engine: Engine, ledger: Ledger) -> None:
        for rotten in list(engine.scrubber.rotten.values())[:2]:
            parts = self._copies_of(rotten)
            self.seen["restored"] += await engine.scrubber.restore(rotten, parts, lac=-1, lafr=-1)

    def _copies_of(self, rotten: DamagedRun) -> list[Entries]:
        """All that the run may hold, in parts that fit a frame."""
        number, first, last = rotten.run.ledger_id, rotten.run.first, rotten.run.last
        ids = sorted(within(self.ledgers[number].sent, range(first, last + 1)))
        size = self._dice.choice((20, 60))
        parts = [ids[at : at + size] for at in range(0, len(ids), size)]
        return [Entries.gather(number, payloads(number, part)) for part in parts]

    async def _forget(self, engine: Engine, ledger: Ledger) -> None:
        """The ledger turns out to be closed, and to end before a rotten run."""
        for rotten in list(engine.scrubber.rotten.values())[:1]:
            run = rotten.run
            its = self.ledgers[run.ledger_id]
            if not its.adders and not its.is_closed:
                its.is_closed = True
                its.stored.difference_update(range(run.first, run.last + 1))
                self.seen["forgotten"] += await engine.scrubber.forget(rotten)
                its.is_closed = False

    async def _fence(self, engine: Engine, ledger: Ledger) -> None:
        """Fence a ledger, now and then one that the bookie does not know yet."""
        number = ledger.number + self._dice.choice((0, 0, 0, LEDGERS))
        found = await engine.fence(number, KEY)
        assert found.status in (Status.OK, Status.DISK_FULL, Status.IO_ERROR)
        if found.status is Status.OK:
            self.fenced.add(number)

    async def _delete(self, engine: Engine, ledger: Ledger) -> None:
        """The metadata store deletes the ledger, and has a new one."""
        if not ledger.is_gone:
            ledger.is_gone = True
            self.ledgers[len(self.ledgers) + 1] = Ledger(len(self.ledgers) + 1)
        self.oracle.gone.add(ledger.number)
        assert engine.collector is not None
        await engine.collector.collect()

    # --- faults -----------------------------------------------------------------------------------

    async def _for_a_while(self, fault: DiskFault) -> None:
        self.disk.faults.append(fault)
        await trio.sleep(self._dice.choice((0.002, 0.02, 0.2)))
        self.disk.faults.remove(fault)

    def _fill(self, engine: Engine, ledger: Ledger) -> DiskFault:
        part = self._dice.choice(("", "entries"))
        return Fails("create", error=DiskFull("no space left"), only=lambda path: part in path)

    def _fail_reads(self, engine: Engine, ledger: Ledger) -> DiskFault | None:
        paths = [path for path in self.disk.files if self._is_at_rest(engine, path)]
        if self.is_calm or not paths:
            return None
        bad = self._dice.choice(paths)
        return Fails("read", only=lambda path: path == bad)

    def _rot(self, engine: Engine, ledger: Ledger) -> None:
        """A bit of a frame flips."""
        if self.is_calm or not ledger.stored:
            return
        payload = payload_of(ledger.number, self._dice.choice(sorted(ledger.stored)))
        places = []
        for path, content in self.disk.files.items():
            at = content.find(payload) - self._dice.choice((0, 0, 0, 4, 40, 100))
            if at >= BLOCKS_AT and self._is_at_rest(engine, path):
                places.append((content, at))
        if places:
            content, at = self._dice.choice(places)
            content[at] ^= 1 << self._dice.randrange(8)
            self.seen["rotted"] += 1

    def _is_at_rest(self, engine: Engine, path: str) -> bool:
        """Whether the index knows the file, and the file is in memory no more."""
        name, _, kind = path.rpartition("/")[2].partition(".")
        if kind not in ("journal", "entries"):
            return False
        file = int(name, 16) if kind == "journal" else -int(name, 16)
        return file not in engine._journal.residents and engine.index.get_now(rows.file_key(file)) is not None

    def _fail_syncs(self, engine: Engine, ledger: Ledger) -> None:
        """The engine ends at the next sync."""
        if self.may_crash:
            self._is_failing = True
            self.disk.faults.append(Fails("write_sync", "write_now", happens=self._dice.random() < 0.5))

    def _crash(self, engine: Engine, ledger: Ledger) -> None:
        if self.may_crash:
            raise Crash

    # --- damage -----------------------------------------------------------------------------------

    def _damage_files(self) -> None:
        dice, files = self._dice, self.disk.files
        paths = [path for path in files if path.endswith((".journal", ".entries"))]
        for path in dice.choices(paths, k=dice.choice((1, 1, 2, 4))):
            content = files.get(path, bytearray())
            at = dice.randrange(len(content) + 1)
            kind = dice.choice(("flip", "zeros", "noise", "gap", "cut", "longer", "lost", "exchanged"))
            self._event(kind, path, at)
            self.seen[kind] += 1
            match kind:
                case "flip":
                    content[at : at + 1] = bytes(
                        byte ^ 1 << dice.randrange(8) for byte in content[at : at + 1]
                    )
                case "zeros":
                    content[at : at + 512] = bytes(len(content[at : at + 512]))
                case "noise":
                    content[at : at + 512] = dice.randbytes(len(content[at : at + 512]))
                case "gap":
                    del content[at : at + dice.choice((512, 4096))]
                case "cut":
                    del content[dice.choice((0, 100, 4096, 8192, at)) :]
                case "longer":
                    content += bytes(dice.choice((1, 4096)))
                case "lost":
                    files.pop(path, None)
                case "exchanged":
                    other = dice.choice(paths)
                    if path in files and other in files:
                        files[path], files[other] = files[other], files[path]
        if dice.random() < 0.3:
            self.indexes.indexes.clear()


def within(ids: Collection[int], decided: range) -> set[int]:
    return {entry_id for entry_id in ids if entry_id in decided}


def live(seed: int, *, is_damaged: bool = False) -> Outcome[Counter[str]]:
    """Live once, and return what happened."""

    async def main(simulation: Simulation) -> Counter[str]:
        life = Life(simulation, is_damaged=is_damaged)
        await (life.live_with_damage() if is_damaged else life.live())
        return life.seen

    return Simulation(seed).run(main, simulated_s_max=10 * PATIENCE_S)


live_once = functools.cache(live)


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """pytest keeps every line of the log until a test ends, and damage makes many."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_at_once_nothing_acknowledged_is_denied(seed: int) -> None:
    live_once(seed)


@pytest.mark.parametrize("seed", DAMAGED_SEEDS)
def test_whatever_is_damaged_nothing_wrong_is_told_and_a_salvaged_bookie_starts(seed: int) -> None:
    live_once(seed, is_damaged=True)


def test_these_lives_meet_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += live_once(seed).value
    for seed in DAMAGED_SEEDS:
        seen += live_once(seed, is_damaged=True).value
    assert not {*REQUESTS, *UPKEEP, *FAULTS, *OUTCOMES} - seen.keys()


def test_the_same_seed_is_the_same_life() -> None:
    one, other = SEEDS[:2]
    assert live(one).trace_hash == live_once(one).trace_hash != live_once(other).trace_hash


@pytest.mark.soak
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_any_number_of_lives(is_damaged: bool) -> None:
    first = int(os.environ.get("ENGINE_SOAK_SEED", "1000"))
    for seed in range(first, first + int(os.environ.get("ENGINE_SOAK_LIVES", "3000"))):
        live(seed, is_damaged=is_damaged)
