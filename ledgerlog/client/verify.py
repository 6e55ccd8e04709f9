"""Reading every copy of every entry of one ledger.

Each bookie of each fragment is asked for every entry that its slot holds, and each copy is held against its
digest. That costs what reading the ledger costs, once for each bookie of the write quorum; what an index
names would be cheaper to ask for and says nothing about the bytes. Payloads are dropped as they come, so
memory is bounded by a reply for each bookie and by the ids of what is missing.
"""

from __future__ import annotations

from functools import partial

import attrs

from ledgerlog.client.bookies import BookieDirectory
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.client.ranges import read_range
from ledgerlog.concurrency.gathering import gather
from ledgerlog.core.ranges import RangeSet
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import Fragment
from ledgerlog.model.quorum import Replication
from ledgerlog.net.pool import ConnectionPool


@attrs.frozen
class LedgerVerification:
    """What was found. For an open ledger, entries up to the end of the last fragment but one, and those
    of the last fragment up to the highest that any of its bookies holds."""

    ledger_id: int
    entries: int
    """How many entries were looked for."""
    under_replicated: list[int]
    """Entry ids whose intact copies are fewer than the write quorum, those with none included."""
    unreadable: list[int]
    """Entry ids of which no intact copy was found."""
    unreachable: list[BookieId]
    """Bookies that did not answer, or not to the end; what they did not show counts as not found. One that
    is registered was asked a second time."""
    unknown_from: int | None = None
    """The ledger is not closed, and no bookie of its last fragment answered to the end: whether there are
    entries from this one on is not known, and they are in no list."""
    damaged: list[tuple[int, BookieId]] = attrs.field(factory=list)
    """Copies that do not match their digests, or that their bookie cannot read for that reason."""


async def verify_ledger(
    ledger_id: int, *, registry: LedgerRegistry, directory: BookieDirectory, pool: ConnectionPool
) -> LedgerVerification:
    """Read every copy. LedgerNotFound, MetadataUnavailable. Cancelling is harmless.

    Where bookies serve is looked up anew first: to say that copies are missing because their bookie was
    looked for where it served before it was started again would be a false alarm."""
    await directory.refresh()
    metadata, _ = await registry.read(ledger_id)
    result = LedgerVerification(ledger_id, 0, [], [], [])
    unreachable: dict[BookieId, None] = {}
    entries, unknown_from = 0, None
    for index, fragment in enumerate(metadata.fragments):
        end = metadata.fragment_end(index)
        slots = [
            _Slot(pool, directory, ledger_id, metadata.replication, fragment, slot)
            for slot in range(metadata.replication.ensemble)
        ]
        await gather(*(partial(slot.read, ENTRY_ID_MAX if end is None else end) for slot in slots))
        if end is None:
            end = max(fragment.first_entry - 1, *(slot.highest for slot in slots))
            if not any(slot.is_complete for slot in slots):
                unknown_from = end + 1
        for slot in slots:
            result.damaged.extend((entry_id, slot.bookie) for entry_id in slot.damaged)
            if not slot.is_complete:
                unreachable[slot.bookie] = None
        for entry_id in range(fragment.first_entry, end + 1):
            copies = sum(slots[holder].has(entry_id) for holder in metadata.replication.write_set(entry_id))
            if copies < metadata.replication.write_quorum:
                result.under_replicated.append(entry_id)
            if not copies:
                result.unreadable.append(entry_id)
        entries = end + 1
    return attrs.evolve(
        result,
        entries=entries,
        unreachable=list(unreachable),
        unknown_from=unknown_from,
        damaged=sorted(result.damaged),
    )


class _Slot:
    """What the bookie in one slot of one fragment shows."""

    def __init__(
        self,
        pool: ConnectionPool,
        directory: BookieDirectory,
        ledger_id: int,
        replication: Replication,
        fragment: Fragment,
        slot: int,
    ) -> None:
        self.bookie = fragment.ensemble[slot]
        self.damaged: list[int] = []
        self.highest = fragment.first_entry - 1
        self.is_complete = True
        self._pool = pool
        self._may_ask_again = directory.is_registered(self.bookie)
        self._ledger_id = ledger_id
        self._stride = stride = replication.ensemble if replication.is_striped else 1
        first = fragment.first_entry
        self._starts = [e for e in range(first, first + stride) if replication.holds(slot, e)]
        # For each class of entries with one write set: their ids divided by the stride, so that they join.
        self._intact = [RangeSet() for _ in range(stride)]

    def has(self, entry_id: int) -> bool:
        return entry_id // self._stride in self._intact[entry_id % self._stride]

    async def read(self, last: int) -> None:
        for start in self._starts:
            if start <= last and not await self._read(start, last):
                self.is_complete = False
                return

    async def _read(self, entry_id: int, last: int) -> bool:
        """Read one class of entries; whether the bookie answered to the end."""
        stride = self._stride
        intact = self._intact[entry_id % stride]
        while entry_id <= last:
            answer = await read_range(
                self._pool.connection(self.bookie),
                self._ledger_id,
                first=entry_id,
                last=last,
                stride=stride,
            )
            if answer is None or (answer.damaged is None and answer.through < entry_id):
                # The connection may just have broken, or been tried where the bookie served before.
                if not self._may_ask_again:
                    return False
                self._may_ask_again = False
                continue
            for found in answer.found:
                intact.add(found // stride, found // stride)
                self.highest = max(self.highest, found)
            if answer.damaged is not None:
                self.damaged.append(answer.damaged)
                self.highest = max(self.highest, answer.damaged)
                entry_id = answer.damaged + stride
            else:
                entry_id += ((answer.through - entry_id) // stride + 1) * stride
        return True
