"""Asking bookies whether they have what metadata says they have (rule 24).

``check_ledger`` goes over every fragment of a ledger whose end is known and every bookie in it:

    ends   reads the first and the last entry of the bookie's share, whose digests are checked; cheap, and
           blind to holes in between
    all    compares the bookie's list of what it has with its share; it sees every hole, and no damage

What it finds is looked at once more, with the metadata as it is then, before it is called missing: repair may
have moved the share meanwhile, and an entry that was on its way may have come. A bookie that does not answer
is passed over, since whether it is lost is decided by its registration; so is one in limbo, which brings
itself what it lost.
"""

from __future__ import annotations

import attrs

from ledgerlog.autorecovery.copying import Copying
from ledgerlog.client.client import LedgerClient
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.client.ranges import read_range
from ledgerlog.concurrency.pace import Pace
from ledgerlog.core.audit import ends, shares_of
from ledgerlog.core.recovery import Negative
from ledgerlog.model.ids import BookieId
from ledgerlog.model.missing import Share

__all__ = ["LedgerFaults", "check_ledger"]


@attrs.frozen
class LedgerFaults:
    """What a check found; bookies in order."""

    incomplete: tuple[BookieId, ...] = ()
    damaged: tuple[BookieId, ...] = ()
    silent: tuple[BookieId, ...] = ()
    """Those that did not answer; nothing is known of what they have."""

    @property
    def is_clean(self) -> bool:
        return not self.incomplete and not self.damaged


async def check_ledger(
    client: LedgerClient, copying: Copying, ledger_id: int, *, check_all: bool, pace: Pace
) -> LedgerFaults:
    """What bookies lack of a ledger. Of one that does not exist, nothing. MetadataUnavailable,
    MetadataCorrupt."""
    first = await _look(client, copying, ledger_id, check_all, pace)
    return first if first.is_clean else await _look(client, copying, ledger_id, check_all, pace)


async def _look(
    client: LedgerClient, copying: Copying, ledger_id: int, check_all: bool, pace: Pace
) -> LedgerFaults:
    found = await LedgerRegistry(client.store, client.environment).find(ledger_id)
    if found is None:
        return LedgerFaults()
    incomplete: dict[BookieId, None] = {}
    damaged: dict[BookieId, None] = {}
    silent: dict[BookieId, None] = {}
    for bookie, shares in shares_of(found[0]).items():
        for share in shares:
            if check_all:
                await pace.pass_through(1)
                missing = await copying.find_gaps(ledger_id, bookie, share)
                if missing is None:
                    silent[bookie] = None
                    break
                if missing:
                    incomplete[bookie] = None
            elif not await _look_at_ends(client, ledger_id, bookie, share, incomplete, damaged, pace):
                silent[bookie] = None
                break
    return LedgerFaults(tuple(incomplete), tuple(damaged), tuple(silent))


async def _look_at_ends(
    client: LedgerClient,
    ledger_id: int,
    bookie: BookieId,
    share: Share,
    incomplete: dict[BookieId, None],
    damaged: dict[BookieId, None],
    pace: Pace,
) -> bool:
    """Whether the bookie answered."""
    for entry_id in ends(share):
        await pace.pass_through(1)
        answer = await read_range(
            client.pool.connection(bookie), ledger_id, first=entry_id, last=entry_id, bytes_max=1
        )
        if answer is None:
            return False
        if answer.damaged == entry_id:
            damaged[bookie] = None
        elif (
            entry_id not in answer.found and answer.through >= entry_id and answer.negative is Negative.ABSENT
        ):
            incomplete[bookie] = None
    return True
