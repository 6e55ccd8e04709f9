"""Closing a ledger that has lost too much, by decision of an operator, and saying what that cost.

Recovery never guesses: while one bookie might hold an entry that all others lost, or might have held it, the
ledger stays as it is (protocol A.0, D27.9). That is right as long as somebody may come back. When nobody
will, a person decides, and has to be told what the decision cost. So every copy of every entry is looked for
first, then the ledger is recovered accepting the loss, and the two are compared.

What a bookie has lost it says itself (it is in limbo). One that merely does not answer has lost nothing as
far as anybody knows, and a decision that it made unnecessary would be one for a loss that there was none. So
that is a second decision, ``accept_unreachable``: this bookie is gone for good, with all that it had.
"""

from __future__ import annotations

import attrs

from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.core.recovery import LOST_FROM
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.recovery import recover_ledger
from ledgerlog.ledger.verify import verify_ledger
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.net.pool import ConnectionPool


@attrs.frozen
class AcceptedLoss:
    """What a recovery that accepts a loss came to."""

    metadata: LedgerMetadata
    """The CLOSED ledger."""
    lost_from: int | None
    """The entry before which the ledger was ended because nobody can say whether it existed. None: its end
    was found as usual."""
    cut: list[int]
    """Entries behind the end that were found somewhere and are in the ledger no more."""
    unreadable: list[int]
    """Entries of the ledger of which no intact copy was found."""
    unreachable: list[BookieId]
    """Bookies that did not answer when copies were looked for. What they hold may be more."""


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
    """See ``Ledgers.recover_accepting_loss``. LedgerNotFound, RecoveryFailed, NotEnoughBookies,
    MetadataUnavailable. Cancelled, the ledger may be closed or stay in recovery."""
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
    absent = frozenset(seen.unreadable)
    return AcceptedLoss(
        metadata=metadata,
        lost_from=None if lost_from is None else int(lost_from),
        cut=[entry_id for entry_id in range(end + 1, seen.entries) if entry_id not in absent],
        unreadable=[entry_id for entry_id in seen.unreadable if entry_id <= end],
        unreachable=seen.unreachable,
    )
