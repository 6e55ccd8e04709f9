"""Which right each request needs, and whether a bookie allows a request about one ledger.

``ledgerlog.model.access`` says which rights a principal has.

    request                                   right      the ledger must exist
    ADD                                       WRITE      yes
    ADD with the recovery flag, FENCE,        RECOVER    yes
    READ with the recovery flag
    READ, READ_LAC, LIST, SCRUB               READ       no: a ledger that is not here has no entries here
    INFO, LEDGERS                             OPERATE    -

Only ADD and READ have a recovery flag. On any other request it means nothing.

**A ledger must exist** in the metadata store before a bookie stores anything about it. So no client can claim
an id that was not given out yet, or fill the disk with ledgers that garbage collection would never find. The
bookie checks this once for each ledger: if it already knows the ledger, the ledger existed when its first
request came. Ids are never used twice, so no other ledger can have the same id later.

**The log of a ledger** decides which grants apply. For example, the grant "writer orders" allows an add to a
ledger if the name of the ledger's log begins with "orders". The ledger's metadata name the log, and hold the
key that adds and fences of the ledger must carry. Log and key never change, so a bookie remembers both.
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
_RIGHTS_WITH_RECOVERY_FLAG = _RIGHTS | dict.fromkeys((Kind.ADD.value, Kind.READ.value), Right.RECOVER)


class LedgerFacts(NamedTuple):
    """The part of a ledger's metadata on which access depends. This part never changes."""

    key: bytes
    log: str
    """The name of the ledger's log; "" if it belongs to no log."""


def right_for(kind: int, flags: int) -> Right:
    """Return the right that a request needs. ``kind`` is a request that a bookie serves after HELLO."""
    return (_RIGHTS_WITH_RECOVERY_FLAG if flags & RECOVERY else _RIGHTS)[kind]


def must_exist(right: Right) -> bool:
    """Whether the ledger must exist for a request that needs this right.

    It must if the request may make the bookie store something about the ledger.
    """
    return right in (Right.WRITE, Right.RECOVER)


def needs_facts(rights: Rights, right: Right, *, is_known: bool) -> bool:
    """Whether ``judge`` needs the metadata of the ledger. Call this only for rights on ledgers.

    Args:
        rights: The rights of the principal.
        right: The right that the request needs.
        is_known: Whether the bookie knows the ledger. If so, the bookie's storage compares the key.
    """
    if right in rights.everywhere:
        return must_exist(right) and not is_known
    return rights.allows_some(right)


def judge(rights: Rights, header: Header, facts: LedgerFacts | None) -> Status | None:
    """Return the status that refuses a request about a ledger; None if it is allowed.

    Args:
        rights: The rights of the principal.
        header: The request.
        facts: The ledger's facts; None if the store surely has no such ledger. So look the ledger up first.
            If ``needs_facts`` returned False, you do not need the facts or this function.
    """
    right = right_for(header.kind, header.flags)
    if facts is None:
        # NO_SUCH_LEDGER would tell a reader that the entries do not exist. Only a bookie that looked for them
        # may say so, and a recovery read must fence first (rule 8, R-B1). So only adds and fences get that
        # status. Any other request gets a status that says nothing about an entry.
        return Status.NO_SUCH_LEDGER if header.kind in (Kind.ADD, Kind.FENCE) else Status.NOT_READY
    if not rights.allows(right, facts.log):
        return Status.PERMISSION_DENIED
    if must_exist(right) and not compare_digest(header.key, facts.key):
        return Status.UNAUTHORIZED
    return None
