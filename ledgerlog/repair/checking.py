"""Checking that bookies have the entries that the metadata assigns to them (rule 24).

``check_ledger`` goes over every fragment of a ledger whose end is known, and over every bookie in it:

    ends   reads the first and the last entry of the bookie's share (the entries that it should have) and
           checks their digests. This is cheap, but it does not see holes between the two entries
    all    compares the bookie's list of its entries with its share. This finds every hole, but no damage

``ledger.core.comparison`` decides what an answer means. If the check finds missing or damaged entries, it
checks the ledger once more with the metadata as it is then: repair may have moved the share meanwhile, and an
entry that was on its way may have arrived.

A bookie that does not answer is not work for repair: its registration decides whether it is lost. A bookie in
limbo (it may have lost entries and does not know yet which) is not work for repair either: it copies back its
lost entries itself. The check reports both kinds of bookies, because it is unknown which entries they have.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import attrs

from ledgerlog.concurrency.pace import Pace
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.copies import compare_lists, read_copies
from ledgerlog.ledger.core.comparison import CopyAsk, FaultKind, Holdings
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.model.ids import BookieId
from ledgerlog.model.missing import Share
from ledgerlog.repair.core.audit import ends, shares_of

__all__ = ["LedgerFaults", "check_ledger"]


@attrs.frozen
class LedgerFaults:
    """The bookies at which a check found a fault, by the kind of the fault. Each tuple is sorted."""

    incomplete: tuple[BookieId, ...] = ()
    damaged: tuple[BookieId, ...] = ()
    silent: tuple[BookieId, ...] = ()
    """Bookies that did not answer. Nothing is known about their copies."""
    in_limbo: tuple[BookieId, ...] = ()
    """Bookies that may have lost entries and do not know yet which."""

    @classmethod
    def of(cls, found: Iterable[tuple[BookieId, FaultKind]]) -> LedgerFaults:
        """Group faults by their kind. They may be in any order, and may repeat."""
        kinds = set(found)

        def those(kind: FaultKind) -> tuple[BookieId, ...]:
            return tuple(sorted(bookie for bookie, its_kind in kinds if its_kind is kind))

        return cls(
            incomplete=those(FaultKind.MISSING),
            damaged=those(FaultKind.CORRUPT),
            silent=those(FaultKind.UNREACHABLE),
            in_limbo=those(FaultKind.LIMBO),
        )

    @property
    def is_clean(self) -> bool:
        """Whether the check found no work for repair."""
        return not self.incomplete and not self.damaged

    @property
    def doubtful(self) -> tuple[BookieId, ...]:
        """All bookies whose copies are faulty or unknown. A bookie with several kinds of faults repeats."""
        return (*self.incomplete, *self.damaged, *self.silent, *self.in_limbo)


async def check_ledger(client: LedgerClient, ledger_id: int, *, check_all: bool, pace: Pace) -> LedgerFaults:
    """Check which bookies lack entries of a ledger or have damaged copies.

    Args:
        client: The client to ask the bookies with.
        ledger_id: The ledger. If it does not exist, no faults are found.
        check_all: Whether to compare all entries by the bookies' lists. If not, only the first and the last
            entry of each share are read.
        pace: Limits the number of requests a second.

    Raises:
        MetadataUnavailable: The metadata store could not be reached.
        MetadataCorrupt: The ledger's metadata is damaged.
    """
    first = await _look(client, ledger_id, check_all, pace)
    return first if first.is_clean else await _look(client, ledger_id, check_all, pace)


async def _look(client: LedgerClient, ledger_id: int, check_all: bool, pace: Pace) -> LedgerFaults:
    found = await LedgerRegistry(client.store, client.environment).find(ledger_id)
    if found is None:
        return LedgerFaults()
    metadata, _ = found
    if check_all:
        faults = await compare_lists(client.pool, metadata, turn=partial(pace.pass_through, 1))
        return LedgerFaults.of((fault.bookie, fault.kind) for fault in faults)
    kinds: set[tuple[BookieId, FaultKind]] = set()
    for bookie, shares in shares_of(metadata).items():
        for share in shares:
            kinds.update(
                (bookie, kind) for kind in await _look_at_ends(client, ledger_id, bookie, share, pace)
            )
            if (bookie, FaultKind.UNREACHABLE) in kinds:
                break
    return LedgerFaults.of(kinds)


async def _look_at_ends(
    client: LedgerClient, ledger_id: int, bookie: BookieId, share: Share, pace: Pace
) -> set[FaultKind]:
    kinds: set[FaultKind] = set()
    for entry_id in ends(share):
        if FaultKind.UNREACHABLE in kinds:
            break
        await pace.pass_through(1)
        holdings = Holdings(entry_id - 1)
        ask = CopyAsk(bookie, entry_id, entry_id)
        answer = await read_copies(client.pool.connection(bookie), ledger_id, share, ask, bytes_max=1)
        if answer is not None:
            holdings.on_answer(entry_id, answer)
        end = attrs.evolve(share, first=entry_id, last=entry_id)
        kinds.update(kind for _, _, kind in holdings.faults(end))
    return kinds
