"""Looking for every copy of every entry of one ledger.

Each bookie of each fragment is asked which entries its index names (runs, not entries), so verifying a
ledger costs a few requests whatever its length; entries that lack a copy are then read from the
bookies that should have them, to tell a missing copy from an unreachable one.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.core.ranges import RangeSet
from ledgerlog.errors import BookieUnavailable, WireError
from ledgerlog.limits import ENTRY_ID_MAX, REQUEST_TIMEOUT_S
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.frame import Kind, Status, decode_pairs_untrusted


@attrs.frozen
class LedgerVerification:
    """What was found. For an open ledger, entries up to the end of the last fragment but one, and those
    of the last fragment that any of its bookies holds."""

    ledger_id: int
    entries: int
    """How many entries were looked for."""
    under_replicated: list[int]
    """Entry ids whose copies found are fewer than the write quorum, those with none included."""
    unreadable: list[int]
    """Entry ids of which no copy was found."""
    unreachable: list[BookieId]
    """Bookies that did not answer; what only they hold counts as not found."""


async def verify_ledger(
    ledger_id: int, *, registry: LedgerRegistry, pool: ConnectionPool
) -> LedgerVerification:
    """Look for every copy. LedgerNotFound, MetadataUnavailable."""
    metadata, _ = await registry.read(ledger_id)
    held: dict[BookieId, RangeSet] = {}
    unreachable: list[BookieId] = []
    for bookie in dict.fromkeys(b for fragment in metadata.fragments for b in fragment.ensemble):
        try:
            held[bookie] = await _held_by(pool, bookie, ledger_id)
        except (BookieUnavailable, WireError):
            unreachable.append(bookie)
    last = _last_entry(metadata, held)
    under_replicated: list[int] = []
    unreadable: list[int] = []
    write_quorum = metadata.replication.write_quorum
    for index, fragment in enumerate(metadata.fragments):
        end = metadata.fragment_end(index)
        stop = last if end is None else end
        for entry_id in range(fragment.first_entry, stop + 1):
            bookies = [fragment.ensemble[slot] for slot in metadata.replication.write_set(entry_id)]
            copies = sum(bookie in held and entry_id in held[bookie] for bookie in bookies)
            if copies < write_quorum:
                under_replicated.append(entry_id)
            if not copies:
                unreadable.append(entry_id)
    return LedgerVerification(ledger_id, last + 1, under_replicated, unreadable, unreachable)


def _last_entry(metadata: LedgerMetadata, held: dict[BookieId, RangeSet]) -> int:
    if metadata.last_entry is not None:
        return metadata.last_entry
    ends = [
        high
        for bookie in metadata.last_fragment.ensemble
        if bookie in held
        for _, high in held[bookie].ranges()[-1:]
    ]
    return max([metadata.last_fragment.first_entry - 1, *ends], default=NO_ENTRY)


async def _held_by(pool: ConnectionPool, bookie: BookieId, ledger_id: int) -> RangeSet:
    held = RangeSet()
    first = 0
    while True:
        reply = await pool.connection(bookie).request(
            Kind.LIST, timeout_s=REQUEST_TIMEOUT_S, ledger_id=ledger_id, first=first
        )
        if reply.header.status == Status.NO_SUCH_LEDGER:
            return held
        if reply.header.status != Status.OK:
            raise BookieUnavailable(f"bookie {bookie} answers {Status(reply.header.status).name}")
        pairs: Sequence[tuple[int, int]] = decode_pairs_untrusted(reply.body)
        for low, high in pairs:
            held.add(low, high)
        if not pairs or reply.header.argument >= ENTRY_ID_MAX:
            return held  # The list is complete to the last id that there can be.
        first = reply.header.argument + 1
