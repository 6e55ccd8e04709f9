"""Reading every copy of every entry of one ledger.

Each bookie of each fragment is asked for every entry that its slot holds, and each copy is held against its
digest; what an answer means ``ledger.core.comparison`` decides. That costs what reading the ledger costs,
once for each bookie of the write quorum; what an index names would be cheaper to ask for and says nothing
about the bytes. Payloads are dropped as they come, so memory is bounded by a reply for each bookie and by the
ids of what is missing.

Of a ledger that is not closed the last fragment is looked at too, up to the highest entry that one of its
bookies names. What is missing there may be on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import attrs

from ledgerlog.concurrency.gathering import gather
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.copies import ask_copies, carry_out, read_copies
from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk, FaultKind, Holdings
from ledgerlog.ledger.core.copies import CopyCheck, entries_of
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share
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
    """The ledger is not closed, and no bookie of its last fragment could tell where its entries end: they did
    not answer to the end, or are in limbo. Whether there are entries from this one on is not known, and they
    are in no list."""
    damaged: list[tuple[int, BookieId]] = attrs.field(factory=list)
    """Copies that do not match their digests, or that their bookie cannot read for that reason."""
    in_limbo: list[BookieId] = attrs.field(factory=list)
    """Bookies that may have lost copies, and do not know it yet. Those that they did not show count as not
    found, and may be there."""


async def verify_ledger(
    ledger_id: int, *, registry: LedgerRegistry, directory: BookieDirectory, pool: ConnectionPool
) -> LedgerVerification:
    """Read every copy. LedgerNotFound, MetadataUnavailable. Cancelling is harmless.

    Where bookies serve is looked up anew first: to say that copies are missing because their bookie was
    looked for where it served before it was started again would be a false alarm."""
    await directory.refresh()
    metadata, _ = await registry.read(ledger_id)
    return await _Verifying(metadata, directory, pool).run()


class _Verifying:
    """The verification of one ledger under way."""

    def __init__(self, metadata: LedgerMetadata, directory: BookieDirectory, pool: ConnectionPool) -> None:
        self._metadata = metadata
        self._directory = directory
        self._pool = pool
        self._silent_in: set[tuple[BookieId, int]] = set()
        """Who did not answer, and the first entry of the fragment: there it is not asked again."""
        self._silent: set[BookieId] = set()
        self._in_limbo: set[BookieId] = set()

    async def run(self) -> LedgerVerification:
        metadata, write_quorum = self._metadata, self._metadata.replication.write_quorum
        end, unknown_from = metadata.last_entry, None
        if end is None:
            end, is_known = await self._find_tail()
            unknown_from = None if is_known else end + 1
        faults = await carry_out(CopyCheck(metadata, scrub=False, tail=end), self._read)
        lacking: Counter[int] = Counter()
        damaged: list[tuple[int, BookieId]] = []
        for fault in faults:
            lacking.update(entries_of(metadata, fault))
            if fault.kind is FaultKind.CORRUPT:
                damaged += [(entry_id, fault.bookie) for entry_id in entries_of(metadata, fault)]
            elif fault.kind is FaultKind.UNREACHABLE:
                self._silent.add(fault.bookie)
            elif fault.kind is FaultKind.LIMBO:
                self._in_limbo.add(fault.bookie)
        named = dict.fromkeys(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
        return LedgerVerification(
            metadata.ledger_id,
            end + 1,
            under_replicated=sorted(lacking),
            unreadable=sorted(entry_id for entry_id, count in lacking.items() if count == write_quorum),
            unreachable=[bookie for bookie in named if bookie in self._silent],
            unknown_from=unknown_from,
            damaged=sorted(damaged),
            in_limbo=[bookie for bookie in named if bookie in self._in_limbo],
        )

    async def _find_tail(self) -> tuple[int, bool]:
        """The highest entry of the last fragment that any of its bookies names, and whether one of them can
        tell that there is none behind it."""
        fragment, holds = self._metadata.last_fragment, self._metadata.replication.holds
        highest, is_known = fragment.first_entry - 1, False

        async def look(slot: int, bookie: BookieId) -> None:
            nonlocal highest, is_known
            stock = Holdings(fragment.first_entry - 1)
            while stock.through < ENTRY_ID_MAX:
                ask = CopyAsk(bookie, stock.through + 1, ENTRY_ID_MAX)
                answer = await self._ask(
                    bookie, partial(ask_copies, self._pool.connection(bookie), self._metadata.ledger_id, ask)
                )
                if answer is None or not answer.is_about(ask.first):
                    self._silent.add(bookie)
                    return
                stock.on_answer(ask.first, answer)
                held = (e for low, high in reversed(stock.sound) for e in range(high, low - 1, -1))
                highest = max(highest, next((e for e in held if holds(slot, e)), highest))
                stock.sound.clear()
            if stock.in_limbo:
                self._in_limbo.add(bookie)
            else:
                is_known = True

        await gather(*(partial(look, slot, bookie) for slot, bookie in enumerate(fragment.ensemble)))
        return highest, is_known

    async def _read(self, ask: CopyAsk) -> CopyAnswer | None:
        metadata, fragment = self._metadata, self._metadata.fragment_of(ask.first)
        if (ask.bookie, fragment.first_entry) in self._silent_in:
            return None
        slot = fragment.ensemble.index(ask.bookie)
        share = Share(ask.first, ask.last, slot, metadata.replication)
        connection = self._pool.connection(ask.bookie)
        answer = await self._ask(ask.bookie, partial(read_copies, connection, metadata.ledger_id, share, ask))
        if answer is None:
            self._silent_in.add((ask.bookie, fragment.first_entry))
        return answer

    async def _ask(
        self, bookie: BookieId, ask: Callable[[], Awaitable[CopyAnswer | None]]
    ) -> CopyAnswer | None:
        """Ask a bookie, and once more if it is registered: the connection may just have broken, or been tried
        where the bookie served before."""
        answer = await ask()
        if answer is None and self._directory.is_registered(bookie):
            answer = await ask()
        return answer
