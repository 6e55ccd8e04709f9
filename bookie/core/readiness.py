"""Whether a bookie can be used now, and if not, why."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["not_ready"]

_WHY_READ_ONLY = {
    "disk": "read-only: its disk is nearly full",
    "draining": "read-only: it is being emptied",
    "operator": "read-only: an operator wants it",
}


def not_ready(
    *, is_registered: bool, read_only_for: Collection[str], is_disk_full: bool, ledgers_in_limbo: int
) -> list[str]:
    """Return the reasons why clients cannot use a bookie fully; empty if they can.

    Args:
        is_registered: Whether clients find the bookie in the metadata store.
        read_only_for: Why ordinary adds are refused: "disk", "draining" or "operator".
        is_disk_full: Whether there is no room for another file.
        ledgers_in_limbo: How many ledgers may lack entries after a loss.
    """
    reasons = []
    if not is_registered:
        reasons.append("cut off from the metadata store, or not registered there yet")
    reasons += [_WHY_READ_ONLY[who] for who in sorted(read_only_for)]
    if is_disk_full:
        reasons.append("disk full: there is no room for another file of entries")
    if ledgers_in_limbo:
        reasons.append(f"limbo: {ledgers_in_limbo} ledgers may lack entries after a loss")
    return reasons
