"""Reading every copy of every entry of one ledger.

The verification asks each bookie of each fragment for every entry that its slot holds, and checks each copy
against its digest. ``ledger.core.comparison`` decides what an answer means. This costs as much as reading the
ledger once for each bookie of the write quorum. Lists of the bookies' indexes would be cheaper, but would say
nothing about the bytes. Payloads are dropped once they are checked, so the memory used is at most one reply
for each bookie and the ranges of entries with faults.

If the ledger is not closed, the verification also checks the last fragment, up to the highest entry that any
bookie of that fragment names. Entries that are missing there may still be on their way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs

from ledgerlog.concurrency.gathering import gather
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.copies import ask_copies, carry_out, read_copies
from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk, FaultKind, Holdings
from ledgerlog.ledger.core.copies import CopyCheck, count_lacking, entries_of
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import ENTRY_ID_MAX
from ledgerlog.model.id_ranges import IdSequence
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share
from ledgerlog.net.pool import ConnectionPool


@attrs.frozen
class LedgerVerification:
    """The result of a verification.

    For an open ledger, it covers all earlier fragments completely, and the last fragment up to the highest
    entry that any of its bookies holds."""

    ledger_id: int
    """The id of the ledger."""
    entries: int
    """How many entries were checked."""
    under_replicated: Sequence[int]
    """Ids of entries with fewer sound copies than the write quorum, including entries without any, ascending.

    If the metadata give the ledger an absurd end, there may be 2**62 of them: look at the length before you
    iterate. The sequence takes memory only for its ranges. It is equal to a list of the same ids."""
    unreadable: Sequence[int]
    """Ids of entries without any sound copy found: a sequence like ``under_replicated``."""
    unreachable: list[BookieId]
    """Bookies that did not answer every request. Copies that these bookies did not show count as not found. A
    request to a registered bookie was tried twice."""
    unknown_from: int | None = None
    """None if the ledger's end is known. Otherwise, the ledger may have entries from this one on, and they
    are in no list.

    This is set if the ledger is not closed and no bookie of its last fragment could say where its entries
    end: each of these bookies is in limbo, or did not answer every request."""
    damaged: list[tuple[int, BookieId]] = attrs.field(factory=list)
    """Copies that fail their digests, or that their bookie cannot read because they are damaged."""
    in_limbo: list[BookieId] = attrs.field(factory=list)
    """Bookies in limbo: they may have lost copies. Copies that these bookies did not show count as not found,
    but may be there."""


async def verify_ledger(
    ledger_id: int, *, registry: LedgerRegistry, directory: BookieDirectory, pool: ConnectionPool
) -> LedgerVerification:
    """Read every copy of a ledger's entries. See ``Ledgers.verify``.

    This looks up the bookies' addresses first. Otherwise, a bookie that was restarted elsewhere would seem
    unreachable, and its copies missing: a false alarm.

    Raises:
        LedgerNotFound: There is no such ledger.
        MetadataUnavailable: The metadata store cannot be reached.

    Cancelling: harmless.
    """
    await directory.refresh()
    metadata, _ = await registry.read(ledger_id)
    return await _Verifying(metadata, directory, pool).run()


class _Verifying:
    """The verification of one ledger."""

    def __init__(self, metadata: LedgerMetadata, directory: BookieDirectory, pool: ConnectionPool) -> None:
        self._metadata = metadata
        self._directory = directory
        self._pool = pool
        self._silent_in: set[tuple[BookieId, int]] = set()
        """Pairs of a bookie that did not answer and the first entry of a fragment: do not ask the bookie
        again about that fragment."""
        self._silent: set[BookieId] = set()
        self._in_limbo: set[BookieId] = set()

    async def run(self) -> LedgerVerification:
        metadata, write_quorum = self._metadata, self._metadata.replication.write_quorum
        end, unknown_from = metadata.last_entry, None
        if end is None:
            end, is_known = await self._find_tail()
            unknown_from = None if is_known else end + 1
        faults = await carry_out(CopyCheck(metadata, scrub=False, tail=end), self._read)
        damaged: list[tuple[int, BookieId]] = []
        for fault in faults:
            if fault.kind is FaultKind.CORRUPT:
                damaged += [(entry_id, fault.bookie) for entry_id in entries_of(metadata, fault)]
            elif fault.kind is FaultKind.UNREACHABLE:
                self._silent.add(fault.bookie)
            elif fault.kind is FaultKind.LIMBO:
                self._in_limbo.add(fault.bookie)
        lacking = list(count_lacking(metadata, faults))
        named = dict.fromkeys(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
        return LedgerVerification(
            metadata.ledger_id,
            end + 1,
            under_replicated=IdSequence((low, high) for low, high, _ in lacking),
            unreadable=IdSequence((low, high) for low, high, copies in lacking if copies == write_quorum),
            unreachable=[bookie for bookie in named if bookie in self._silent],
            unknown_from=unknown_from,
            damaged=sorted(damaged),
            in_limbo=[bookie for bookie in named if bookie in self._in_limbo],
        )

    async def _find_tail(self) -> tuple[int, bool]:
        """Find the highest entry of the last fragment that any bookie of that fragment names.

        Also returns whether some bookie could say for certain that it has no later entry."""
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
        """Ask a bookie, and ask once more if it is registered.

        The first try may have met a connection that just broke, or the address of an earlier run of the
        bookie."""
        answer = await ask()
        if answer is None and self._directory.is_registered(bookie):
            answer = await ask()
        return answer
