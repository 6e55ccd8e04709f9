"""Which right each request needs, and what a bookie decides about one ledger (``ledgerlog.model.access``).

    request                                   right      the ledger must exist
    ADD                                       WRITE      yes
    ADD with the recovery flag, FENCE,        RECOVER    yes
    READ with the recovery flag
    READ, READ_LAC, LIST, SCRUB               READ       no: a ledger that is not here has no entries here
    INFO, LEDGERS                             OPERATE    -

**A ledger must exist** in the metadata store before a bookie remembers anything of it. So nobody can claim an
id that was not given out yet, or fill the disk with ledgers that no collection would find. A ledger that the
bookie knows already was there when the bookie first saw it. Ids are never used twice.

**The log of a ledger** decides about grants on logs. It is in the ledger's metadata, and so is the key that
its adds and fences must carry. Neither ever changes, so a bookie remembers them.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import NamedTuple

from ledgerlog.model.access import Right, Rights
from ledgerlog.wire.frame import RECOVERY, Header, Kind, Status

__all__ = ["LedgerFacts", "judge", "must_exist", "needs_facts", "right_for"]

_RIGHTS = {
    Kind.ADD.value: Right.WRITE,
    Kind.FENCE.value: Right.RECOVER,
    Kind.READ.value: Right.READ,
    Kind.READ_LAC.value: Right.READ,
    Kind.LIST.value: Right.READ,
    Kind.SCRUB.value: Right.READ,
    Kind.INFO.value: Right.OPERATE,
    Kind.LEDGERS.value: Right.OPERATE,
}


class LedgerFacts(NamedTuple):
    """The part of a ledger's metadata that decides about access to it, and never changes."""

    key: bytes
    log: str
    """The name of its log; "" if it belongs to none."""


def right_for(kind: int, flags: int) -> Right:
    """Return the right that a request needs. ``kind`` is a request that a bookie serves after HELLO."""
    return Right.RECOVER if flags & RECOVERY else _RIGHTS[kind]


def must_exist(right: Right) -> bool:
    """Whether a request that needs this right may make a bookie remember its ledger."""
    return right in (Right.WRITE, Right.RECOVER)


def needs_facts(rights: Rights, right: Right, *, is_known: bool) -> bool:
    """Whether the metadata of the ledger are needed for the decision. Call it only for rights on ledgers.

    Args:
        rights: What the principal may do.
        right: What the request needs.
        is_known: Whether the bookie knows the ledger. Then its storage compares the key.
    """
    if right in rights.everywhere:
        return must_exist(right) and not is_known
    return rights.allows_some(right)


def judge(rights: Rights, header: Header, facts: LedgerFacts | None) -> Status | None:
    """Return the status that refuses a request about a ledger; None if it is allowed.

    Args:
        rights: What the principal may do.
        header: The request.
        facts: The ledger's facts; None if the store surely has no such ledger. Pass them whenever
            ``needs_facts``.
    """
    right = right_for(header.kind, header.flags)
    if facts is None:
        # A reply that denies the ledger would say that its entries do not exist. Only a bookie that looked
        # may say so, and a recovery read fences first (rule 8, R-B1). So all but adds and fences get a status
        # that says nothing about any entry.
        return Status.NO_SUCH_LEDGER if header.kind in (Kind.ADD, Kind.FENCE) else Status.NOT_READY
    if not rights.allows(right, facts.log):
        return Status.PERMISSION_DENIED
    if must_exist(right) and not compare_digest(header.key, facts.key):
        return Status.UNAUTHORIZED
    return None
