"""A log with keys in a swarm. Its archive is compacted by keys, and a reader begins at any of its records.

One process appends records with keys; some of them are tombstones, which delete their key. The seed draws
how a record shows its key (``archive.core.compaction.parse_key_rule``). The processes of ``archivers``
archive the log, merge its files, and compact them by this rule. The writer truncates the log now and then. A
reader begins at the offset, the position and the time of an acknowledged record, and checks the records that
it gets.

These rules must hold during the run and at its end:

    KeyedLatest     the latest record of each key is in the log, unless it is a tombstone. A record is missing
                    only if it is truncated, if it is a tombstone, or if a later record has its key
    KeyedGone       if a tombstone is dropped, no earlier record of its key is left
    KeyedAsSent     each record is the one that was acknowledged at its offset, with its key and headers. The
                    log has no refused record, and no record twice
    KeyedEntry      if a read should begin with a record, and the record still exists, the read begins with
                    it. If the record's writer is gone and its ledger is not closed yet, the read may also
                    find nothing: some records can be read only after recovery
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio

from ledgerlog.archive.core.compaction import KeyRule, parse_key_rule
from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, InvalidArgument, LedgerLogError
from ledgerlog.log.log import Log
from ledgerlog.log.reader import Start
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.record import Ack, Record
from ledgerlog.testing.world import World, retry

__all__ = ["KeyedLog"]

LOG = "keyed"
RECORDS_MAX = 40
"""How many records are sent in a small run; a full one has ten times as many."""

RULES = (("key", "empty"), ("prefix:2", "empty"), ("until:=", "empty"), ("json:k.n", "json:gone"))
"""The rules for keys, and those for tombstones."""

_KEYS = (b"k1", b"k2", b"k3")
_JSON_KEYS = ("a", 7, 1.5, {"x": 0.1}, None)


@attrs.define(eq=False)
class _Sent:
    """A record that was sent."""

    data: bytes
    own_key: bytes | None
    key: bytes | None
    """Its key by the rule of the run."""
    is_tombstone: bool
    writer: int = 0
    """The number of its writer."""
    ack: Ack | None = None
    is_refused: bool = False


class KeyedLog:
    """The log of one run.

    Args:
        world: The run.
        random: The generator for all choices.
    """

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        text, tombstones = random.choice(RULES)
        self._form = text.partition(":")[0]
        self.rule: KeyRule = parse_key_rule(text, tombstones if random.random() < 0.7 else None)
        """The rule for keys. All jobs that compact the log use it."""
        self._sent: list[_Sent] = []
        self._writers = 0
        self._writer: int | None = None
        """The number of the writer that lives."""
        self._truncation_asked = 0
        self._records_max = RECORDS_MAX * (1 if world.swarm.records_max <= 30 else 10)
        self.mains = {"keyed-writer": self._write, "keyed-reader": self._read}
        """The processes, by name."""

    # --- the writer ---------------------------------------------------------------------------

    async def _write(self, client: Cluster) -> None:
        random, world = self._random, self._world
        think_s = world.swarm.trouble_s / (2 * self._records_max)
        while True:
            try:
                roll = RollPolicy(max_records=random.choice((2, 4)))
                log = await client.create_log(LOG, roll=roll, exist_ok=True)
                async with log.writer() as writer, self._alive():
                    while len(self._sent) < self._records_max:
                        await trio.sleep(random.expovariate(1 / think_s))
                        records = [self._draw() for _ in range(random.choice((1, 1, 3)))]
                        numbers = range(len(self._sent), len(self._sent) + len(records))
                        self._sent += records
                        try:
                            acks = await writer.append_many(
                                [record.data for record in records],
                                keys=[record.own_key for record in records],
                                headers=[(("n", b"%d" % number),) for number in numbers],
                            )
                        except AppendUnknown:
                            raise
                        except LedgerLogError:
                            for record in records:
                                record.is_refused = True
                            raise
                        for record, record.ack in zip(records, acks, strict=True):
                            world.on_ack(record.ack, LOG)
                        world.counts["keyed records"] += len(acks)
                        if random.random() < 0.03:
                            before = random.randrange(acks[-1].offset // 2 + 1)
                            self._truncation_asked = max(self._truncation_asked, before)
                            await log.truncate(before)
                await trio.sleep_forever()
            except LedgerLogError as error:
                world.event("keyed log not written", type(error).__name__)
            await trio.sleep(random.expovariate(1 / (20 * think_s)))

    def _draw(self) -> _Sent:
        random = self._random
        value = b"%d" % len(self._sent) if random.random() < 0.8 else b""
        own_key, data = None, value
        match self._form:
            case "key":
                own_key = random.choice((*_KEYS, None))
            case "prefix":
                data = random.choice(_KEYS) + value
            case "until":
                data = random.choice((*(key + b"=" for key in _KEYS), b"")) + value
            case "json":
                what = {"k": {"n": random.choice(_JSON_KEYS)}, "gone": not value, "v": len(self._sent)}
                data = json.dumps(what).encode()
        key = own_key if self.rule.is_own else self.rule.key(data)
        return _Sent(data, own_key, key, key is not None and self.rule.is_tombstone(data), self._writers)

    @asynccontextmanager
    async def _alive(self) -> AsyncIterator[None]:
        self._writers += 1
        self._writer = self._writers
        try:
            yield
        finally:
            self._writer = None

    # --- the reader ---------------------------------------------------------------------------

    async def _read(self, client: Cluster) -> None:
        random, world = self._random, self._world
        while True:
            await trio.sleep(random.expovariate(1 / world.gap_s(6)))
            known = [record for record in self._sent if record.ack is not None]
            if not known:
                continue
            try:
                await self._enter(client, random.choice(known))
            except InvalidArgument as error:
                world.god.violate("KeyedEntry", f"the log cannot find the start: {error}")
            except LedgerLogError as error:
                world.event("keyed log not read", type(error).__name__)

    async def _enter(self, client: Cluster, wanted: _Sent) -> None:
        """Read from a record on: from its offset, from its position, and from the time of the first record
        found."""
        random, ack = self._random, wanted.ack
        assert ack is not None
        assert ack.position is not None
        log = await client.open_log(LOG)
        starts: list[Start] = [ack.offset, ack.position]
        for start in starts:
            ledger = self._world.god.ledgers.get(ack.position.ledger_id)
            was_closed = ledger is None or ledger.is_closed
            found = await self._some(log, start, dense=random.random() < 0.2)
            if found and found[0].offset < ack.offset:
                self._world.god.violate("KeyedEntry", f"a read from {start} begins with {found[0]}")
            if found or was_closed or wanted.writer == self._writer:
                self._check_begin(wanted, ack.offset, found)
            if not found:
                return
        first = found[0]
        found = await self._some(log, first.timestamp)
        if any(record.timestamp < first.timestamp for record in found):
            self._world.god.violate("KeyedEntry", f"{found} has records from before {first.timestamp}")
        self._check_begin(self._sent[_number_of(first)], first.offset, found)

    async def _some(self, log: Log, start: Start, *, dense: bool = False) -> list[Record]:
        """Read a few records."""
        found: list[Record] = []
        async with log.read(start, dense=dense) as records:
            async for record in records:
                found.append(record)
                if len(found) == 3:
                    break
        self._check_sent(found)
        return found

    def _check_begin(self, sent: _Sent, offset: int, found: list[Record]) -> None:
        """Check that a read begins with a record or an earlier one, unless the record may be gone."""
        if not (found and found[0].offset <= offset) and not self._may_be_gone(sent, offset):
            self._world.god.violate("KeyedEntry", f"a read from {sent} begins with {found[:1]}")
        self._world.god.checks["KeyedEntry"] += 1

    def _may_be_gone(self, sent: _Sent, offset: int) -> bool:
        """Whether a record may already be missing."""
        if offset < self._truncation_asked or sent.is_tombstone:
            return True
        later = self._sent[self._sent.index(sent) + 1 :]
        return sent.key is not None and any(each.key == sent.key and not each.is_refused for each in later)

    # --- what must hold -----------------------------------------------------------------------

    def _check_sent(self, found: list[Record]) -> None:
        """Check that records are as they were sent."""
        god = self._world.god
        for before, record in itertools.pairwise(found):
            if record.offset <= before.offset:
                god.violate("KeyedAsSent", f"{record} comes after {before}")
        for record in found:
            sent = self._sent[_number_of(record)]
            if (record.data, record.key) != (sent.data, sent.own_key) or sent.is_refused:
                god.violate("KeyedAsSent", f"{record} was sent as {sent}")
            if sent.ack is not None and (record.offset, record.position) != (
                sent.ack.offset,
                sent.ack.position,
            ):
                god.violate("KeyedAsSent", f"{record} was acknowledged as {sent.ack}")
            god.checks["KeyedAsSent"] += 1

    async def judge(self, client: Cluster) -> None:
        """Check the whole log. Call it after everything was healed.

        Raises:
            Violation: A rule is broken.
        """
        if not any(record.ack for record in self._sent):
            return
        reads: list[list[Record]] = []

        async def read() -> None:
            log = await client.open_log(LOG)
            async with log.writer():
                pass  # A takeover recovers acknowledged records that readers do not see yet.
            async with log.read() as records:
                reads.append([record async for record in records])

        await retry(self._world, "reading the keyed log", read)
        log = await client.open_log(LOG)
        self._check_whole(reads[-1], (await log.info()).first_offset)

    def _check_whole(self, found: list[Record], base: int) -> None:
        god = self._world.god
        self._check_sent(found)
        offsets = {_number_of(record): record.offset for record in found}
        if len(offsets) < len(found):
            god.violate("KeyedAsSent", "a record is there twice")
        if base > self._truncation_asked:
            god.violate("KeyedLatest", f"the log begins at {base}, above {self._truncation_asked}")
        for number, sent in enumerate(self._sent):
            if sent.ack is None or sent.ack.offset < base or number in offsets:
                continue
            later = [
                other
                for other in range(number + 1, len(self._sent))
                if self._sent[other].key == sent.key and not self._sent[other].is_refused
            ]
            is_there = any(other in offsets for other in later)
            is_deleted = sent.is_tombstone or any(self._sent[other].is_tombstone for other in later)
            if sent.key is None or not (is_there or is_deleted):
                god.violate("KeyedLatest", f"{sent} is lost")
            god.checks["KeyedLatest"] += 1
            self._world.counts["records compacted away"] += 1
            if sent.is_tombstone and not is_there:
                left = [other for other in offsets if other < number and self._sent[other].key == sent.key]
                if left:
                    god.violate("KeyedGone", f"{sent} is dropped, and {self._sent[left[0]]} is left")
                god.checks["KeyedGone"] += 1


def _number_of(record: Record) -> int:
    """Return the number of a record among all that were sent."""
    return int(record.headers[0][1])
