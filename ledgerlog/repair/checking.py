"""Asking bookies whether they have what metadata says they have (rule 24).

``check_ledger`` goes over every fragment of a ledger whose end is known and every bookie in it:

    ends   reads the first and the last entry of the bookie's share, whose digests are checked; cheap, and
           blind to holes in between
    all    compares the bookie's list of what it has with its share; it sees every hole, and no damage

What an answer means ``ledger.core.comparison`` decides. What is found is looked at once more, with the
metadata as it is then, before it is called missing: repair may have moved the share meanwhile, and an entry
that was on its way may have come. A bookie that does not answer is no work for repair, since whether it is
lost is decided by its registration; nor is one in limbo, which brings itself what it lost. Both are told,
since what they have is not known.
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
    """What a check found; bookies in order."""

    incomplete: tuple[BookieId, ...] = ()
    damaged: tuple[BookieId, ...] = ()
    silent: tuple[BookieId, ...] = ()
    """Those that did not answer; nothing is known of what they have."""
    in_limbo: tuple[BookieId, ...] = ()
    """Those that may have lost entries, and do not know it yet."""

    @classmethod
    def of(cls, found: Iterable[tuple[BookieId, FaultKind]]) -> LedgerFaults:
        """What was found on each bookie, in any order."""
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
        """Whether there is nothing for anybody to repair."""
        return not self.incomplete and not self.damaged

    @property
    def doubtful(self) -> tuple[BookieId, ...]:
        """All bookies whose copies are at fault or not known."""
        return (*self.incomplete, *self.damaged, *self.silent, *self.in_limbo)


async def check_ledger(client: LedgerClient, ledger_id: int, *, check_all: bool, pace: Pace) -> LedgerFaults:
    """What bookies lack of a ledger. Of one that does not exist, nothing. MetadataUnavailable,
    MetadataCorrupt."""
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
