"""Finding the bookies of an open ledger whose metadata come from a backup.

For example, a backup names the ensemble ``{a, b, c}`` for an open ledger, but later the ledger's writer
continued with ``{a, d, e}``. A recovery that asks only a, b and c hears from b and c that an entry does not
exist. It then closes the ledger before that entry, although a, d and e have stored the entry and it was
acknowledged. So a restore marks each open ledger (``model.restoration.AS_IN_BACKUP_LABEL``), and a recovery
of a marked ledger begins here:

1. Fence the ledger on every bookie of the cluster, and ask each bookie which entries of the ledger it holds.
2. Write metadata with one fragment. Its ensemble has the bookies that the backup names, every bookie that
   holds an entry or may have lost one (limbo), and every bookie that did not answer. Each entry's write set
   is the whole ensemble. The label changes to ``ENDED_AFTER_RESTORE_LABEL``.

The ordinary rules of recovery then hold. An acknowledged entry is on an ack quorum of the new ensemble, so no
negative quorum can deny it. At most ``ack_quorum - 1`` bookies may stay silent, as in any recovery. This has
a price: repair later copies each entry of this ledger to the whole new ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import BookieUnavailable, RecoveryFailed
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.permission import check_permitted
from ledgerlog.ledger.ranges import list_range
from ledgerlog.limits import ENSEMBLE_MAX, REQUEST_TIMEOUT_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.restoration import AS_IN_BACKUP_LABEL, ENDED_AFTER_RESTORE_LABEL
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.frame import Kind, Status

__all__ = ["needs_holders", "with_holders", "write_holders"]

_ASKED_AT_ONCE = 32


def needs_holders(metadata: LedgerMetadata) -> bool:
    """Return whether this is an open ledger from a backup whose holders are still to be found."""
    return AS_IN_BACKUP_LABEL in metadata.custom and not metadata.is_closed


def with_holders(
    metadata: LedgerMetadata,
    *,
    known: Sequence[BookieId],
    holders: Sequence[BookieId],
    silent: Sequence[BookieId],
    token: bytes,
) -> LedgerMetadata:
    """Return metadata whose ensemble has all bookies that hold entries of the ledger, or may hold some.

    Args:
        metadata: The metadata of the backup.
        known: All bookies that have a cookie or are registered.
        holders: The bookies that hold entries of the ledger, or do not know whether they do.
        silent: The bookies that do not answer.
        token: A random value of the caller.

    Raises:
            RecoveryFailed: So many bookies are silent that an acknowledged entry may be only on them, or the
                ensemble would be too large.
    """
    replication = metadata.replication
    if len(silent) >= replication.ack_quorum:
        raise RecoveryFailed(
            metadata.ledger_id,
            "its metadata come from a backup, so every bookie is asked which entries it holds, and "
            f"{', '.join(silent)} did not answer. Start them, or decommission those that will never return",
        )
    named = metadata.last_fragment.ensemble
    present = [bookie for bookie in named if bookie in known]
    ensemble = list(dict.fromkeys([*present, *holders, *silent]))
    gone = [bookie for bookie in named if bookie not in ensemble]
    ensemble += gone[: max(0, replication.ack_quorum - len(ensemble))]  # An ensemble has an ack quorum.
    if len(ensemble) > ENSEMBLE_MAX:
        raise RecoveryFailed(
            metadata.ledger_id, f"{len(ensemble)} bookies hold parts of it, more than {ENSEMBLE_MAX}"
        )
    size = len(ensemble)
    return attrs.evolve(
        metadata,
        replication=Replication(size, size, replication.ack_quorum),
        fragments=(Fragment(0, tuple(ensemble)),),
        custom={
            ENDED_AFTER_RESTORE_LABEL if label == AS_IN_BACKUP_LABEL else label: value
            for label, value in metadata.custom.items()
        },
        token=token,
    )


async def write_holders(
    metadata: LedgerMetadata,
    version: int,
    *,
    registry: LedgerRegistry,
    pool: ConnectionPool,
    environment: Environment,
    accept_unreachable: bool = False,
) -> tuple[LedgerMetadata | None, int]:
    """Ask every bookie for its entries of a ledger, and write metadata with the bookies that may hold some.

    Args:
        metadata: The ledger's metadata, for which ``needs_holders`` is true.
        version: The version of the metadata.
        registry: Reads and writes metadata.
        pool: Connections to bookies.
        environment: Makes tokens.
        accept_unreachable: Treat bookies that do not answer as gone for good.

    Returns:
        The stored metadata and their version afterwards; ``(None, 0)`` if the ledger is gone.

    Raises:
        RecoveryFailed: As for ``with_holders``. You may try again.
        PermissionDenied: This client may not recover the ledger.
        MetadataUnavailable: The metadata store cannot be reached.
    """
    known = await registry.bookies()
    holders: list[BookieId] = []
    silent: list[BookieId] = []

    async def ask(bookie: BookieId) -> None:
        connection = pool.connection(bookie)
        try:
            reply = await connection.request(
                Kind.FENCE, timeout_s=REQUEST_TIMEOUT_S, ledger_id=metadata.ledger_id, key=metadata.key
            )
        except BookieUnavailable:
            silent.append(bookie)
            return
        status = reply.header.status
        check_permitted(status, connection, metadata.ledger_id, "recover it")
        if status == Status.UNAUTHORIZED:
            return  # The bookie holds another ledger with this id, so it never takes an entry of this one.
        listing = await list_range(connection, metadata.ledger_id, first=0) if status == Status.OK else None
        if listing is None:
            silent.append(bookie)
        elif listing.pairs or listing.negative is Negative.UNKNOWN:
            holders.append(bookie)

    await gather_each(known, ask, at_once=_ASKED_AT_ONCE)
    wanted = with_holders(
        metadata,
        known=known,
        holders=sorted(holders),
        silent=[] if accept_unreachable else sorted(silent),
        token=environment.new_token(),
    )
    return await registry.attempt(MetadataIntent(wanted, version))
