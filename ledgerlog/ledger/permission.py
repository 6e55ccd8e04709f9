"""A bookie refuses because a client lacks a right: this means PermissionDenied, for the whole ledger.

A bookie looks at the newest grants before it refuses. So the refusal is final, and the other bookies of the
ledger would only refuse too.
"""

from __future__ import annotations

from ledgerlog.errors import PermissionDenied
from ledgerlog.net.connection import BookieConnection
from ledgerlog.wire.frame import Status

__all__ = ["check_permitted", "denied"]


def denied(connection: BookieConnection, ledger_id: int, what: str) -> PermissionDenied:
    """Return the error for a refused request.

    Args:
        connection: The connection to the bookie that refused.
        ledger_id: The ledger.
        what: The action of the request, for the message: "read it".
    """
    return PermissionDenied(
        f"ledger {ledger_id}: {connection.whoami} may not {what}, according to bookie "
        f"{connection.bookie_id}. 'ledgerlog access list' shows the grants, and 'ledgerlog ledger show' the "
        "log of the ledger"
    )


def check_permitted(status: int, connection: BookieConnection, ledger_id: int, what: str) -> None:
    """Raise PermissionDenied if the status of a reply is PERMISSION_DENIED."""
    if status == Status.PERMISSION_DENIED:
        raise denied(connection, ledger_id, what)
