"""The report of a bookie about itself: its state, and the figures of its INFO reply."""

from __future__ import annotations

import re

from ledgerlog.errors import PermissionDenied, WireError
from ledgerlog.ledger.bookies import understands
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.model.ids import BookieId
from ledgerlog.net.pool import ConnectionPool
from ledgerlog.wire.frame import Kind, Status

__all__ = ["INCOMPATIBLE", "READ_ONLY", "UNAVAILABLE", "WRITABLE", "ask_figures", "bookie_state"]

WRITABLE = "writable"
READ_ONLY = "read-only"
UNAVAILABLE = "unavailable"
"""The bookie is not registered, or is registered but does not answer."""
INCOMPATIBLE = "incompatible"
"""The bookie has no version of the protocol in common with this process."""

_FIGURE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


def bookie_state(info: BookieInfo, *, is_read_only: bool) -> str:
    """Return the state of a registered bookie that answers."""
    if not understands(info):
        return INCOMPATIBLE
    return READ_ONLY if is_read_only else WRITABLE


async def ask_figures(pool: ConnectionPool, bookie_id: BookieId, *, timeout_s: float) -> dict[str, int]:
    """Ask a bookie for its figures.

    Args:
        pool: The connections to the bookies.
        bookie_id: The bookie.
        timeout_s: How long to wait for the answer, in seconds.

    Returns:
        The figures by their names (``metrics.families.BOOKIE_FIGURES`` and ``INFO_SUMS``). A newer bookie may
        have more, an older one fewer.

    Raises:
        BookieUnavailable: The bookie does not answer.
        PermissionDenied: The bookie does not tell its figures to this client.
        WireError: The answer is malformed.
    """
    connection = pool.connection(bookie_id)
    reply = await connection.request(Kind.INFO, timeout_s=timeout_s)
    if reply.header.status == Status.PERMISSION_DENIED:
        raise PermissionDenied(
            f"bookie {bookie_id} tells its figures only to bookies and admins, and not to {connection.whoami}"
        )
    fields = decode_record_untrusted(bytes(reply.body), f"figures of bookie {bookie_id}", WireError)
    if strange := [name for name in fields.names() if not _FIGURE.match(name)]:
        fields.fail(f"{strange[0]!r} does not name a figure")
    return {name: fields.integer(name, low=-1) for name in sorted(fields.names())}
