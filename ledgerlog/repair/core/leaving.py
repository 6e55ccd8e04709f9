"""When a bookie that takes no ordinary adds may be restarted without anybody noticing.

A bookie is *in use* by each ledger that is not closed and names it in its last fragment: the writer sends it
every add, or a recovery reads it. ``Leaving`` is told what each look at the metadata found.

A look that finds no such ledger is not enough. A client whose view of the registrations is older than the
bookie's move to the read-only list may still choose it, for a new ledger or as a replacement. Views are up to
date and such choices are stored within a bounded time. So the bookie is free if a look finds nothing that
began when the bookie had been read-only for that time, without a break.

A ledger with damaged metadata may name the bookie, so it counts as one that does.
"""

from __future__ import annotations

from collections.abc import Collection

from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata

__all__ = ["Leaving", "is_in_use"]

_NAMED_MAX = 5


def is_in_use(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Return whether a writer or a recovery of the ledger uses the bookie."""
    return not metadata.is_closed and bookie_id in metadata.last_fragment.ensemble


class Leaving:
    """What the looks at the metadata have found, and whether the bookie is free."""

    def __init__(self, *, settled_s: float) -> None:
        """Create it.

        Args:
            settled_s: After this time, everything that was chosen by an older view of the registrations is
                stored.
        """
        self.is_free = False
        """Whether nobody uses the bookie any more."""
        self.waits_for = "nothing was looked at yet"
        """Why the bookie is not free, for a person; empty if it is."""
        self._settled_s = settled_s
        self._read_only_since: float | None = None

    def on_look(self, began: float, *, is_read_only: bool, used_by: Collection[int]) -> None:
        """Note a look.

        Args:
            began: When it began.
            is_read_only: Whether the bookie was registered as read-only then.
            used_by: The ledgers that use the bookie, or may use it.
        """
        if not is_read_only:
            self._read_only_since = None
        elif self._read_only_since is None:
            self._read_only_since = began
        since = self._read_only_since
        self.is_free = since is not None and not used_by and began >= since + self._settled_s
        if self.is_free:
            self.waits_for = ""
        elif since is None:
            self.waits_for = "it is not registered as read-only"
        elif used_by:
            named = ", ".join(map(str, sorted(used_by)[:_NAMED_MAX]))
            more = ", ..." if len(used_by) > _NAMED_MAX else ""
            self.waits_for = f"ledgers that are not closed use it: {len(used_by)} ({named}{more})"
        else:
            self.waits_for = "clients learn that it is read-only"
