"""Close a ledger that has lost too much for a normal recovery: an operator decides this, and learns the cost.

Recovery never guesses. If one bookie may hold, or may have held, an entry that all others lack, recovery
leaves the ledger as it is (protocol A.0, D27.9). That is right if the bookie's data may come back. If the
data never comes back, an operator decides, and must know the cost of the decision. So this module first looks
for every copy of every entry. It then recovers the ledger and accepts the loss. Finally it compares the
copies that were found with the entries that are left.

A bookie in limbo reports by itself that it may have lost entries. A bookie that does not answer may have lost
nothing: if it comes back, the loss was accepted needlessly. So the operator must make a second decision,
``accept_unreachable``, to continue without such a bookie. With it, the operator says that the bookie is gone
for good, with all its data.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.core.recovery import LOST_FROM
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.recovery import recover_ledger
from ledgerlog.ledger.verify import verify_ledger
from ledgerlog.model.id_ranges import IdSequence, without
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool


@attrs.frozen
class AcceptedLoss:
    """The result of a recovery that accepts a loss."""

    metadata: LedgerMetadata
    """The metadata of the ledger, which is CLOSED."""
    lost_from: int | None
    """The ledger was ended before this entry, because it is unknown whether the entry existed. None if
    recovery found the end as usual."""
    cut: Sequence[int]
    """Entries after the new end that were found on a bookie. They are no longer in the ledger. The sequence
    takes memory only for its ranges, and is equal to a list of the same ids."""
    unreadable: Sequence[int]
    """Entries of the ledger without any sound copy found: a sequence like ``cut``."""
    unreachable: list[BookieId]
    """Bookies that did not answer the search for copies. They may hold further entries."""


async def recover_accepting_loss(
    ledger_id: int,
    *,
    registry: LedgerRegistry,
    directory: BookieDirectory,
    pool: ConnectionPool,
    environment: Environment,
    deadline_s: float,
    accept_unreachable: bool = False,
) -> AcceptedLoss:
    """Recover a ledger, giving up its tail if necessary. See ``Ledgers.recover_accepting_loss``.

    Raises:
        LedgerNotFound: There is no such ledger.
        RecoveryFailed: Fencing stayed incomplete, or bookies that may hold the entry do not answer and
            ``accept_unreachable`` is not set.
        NotEnoughBookies: No bookie took a write-back in time. You may try again.
        MetadataUnavailable: The metadata store cannot be reached.

    Cancelling: the ledger may be closed, or stay IN_RECOVERY.
    """
    seen = await verify_ledger(ledger_id, registry=registry, directory=directory, pool=pool)
    metadata = await recover_ledger(
        ledger_id,
        registry=registry,
        directory=directory,
        pool=pool,
        environment=environment,
        deadline_s=deadline_s,
        accept_loss=True,
        accept_unreachable=accept_unreachable,
    )
    end = metadata.last_entry
    assert end is not None
    lost_from = metadata.custom.get(LOST_FROM)
    absent = IdSequence.of(seen.unreadable).ranges
    return AcceptedLoss(
        metadata=metadata,
        lost_from=int(lost_from) if lost_from is not None and lost_from.isdigit() else None,
        cut=IdSequence(without([(end + 1, seen.entries - 1)] if seen.entries > end + 1 else [], absent)),
        unreadable=IdSequence((low, min(high, end)) for low, high in absent if low <= end),
        unreachable=seen.unreachable,
    )
