"""When you may restart a read-only bookie (one that takes no ordinary adds) without disturbing any client.

A ledger *uses* a bookie if the ledger is not closed and its last fragment names the bookie: the writer sends
the bookie adds, or a recovery reads from it. A process looks at all metadata again and again, and tells
``Leaving`` the result of each look.

One look that finds no such ledger is not enough. A client's view of the registrations may be older than the
bookie's move to the read-only list. Such a client may still choose the bookie, for a new ledger or as a
replacement. But within a bounded time (``settled_s``), all views are up to date and all such choices are
stored. So the bookie is free if two things hold: the bookie was read-only for that time without a break, and
a look that began after that time finds no ledger that uses it.

A ledger with damaged metadata may name the bookie, so it counts as a ledger that uses the bookie.
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
    """Decides from the looks at the metadata whether the bookie is free."""

    def __init__(self, *, settled_s: float) -> None:
        """Begin without a look.

        Args:
            settled_s: After this many seconds, every choice that a client based on an older view of the
                registrations is stored.
        """
        self.is_free = False
        """Whether no process still uses the bookie."""
        self.waits_for = "nothing was checked yet"
        """Why the bookie is not free, for a person; empty if it is free."""
        self._settled_s = settled_s
        self._read_only_since: float | None = None

    def on_look(self, began: float, *, is_read_only: bool, used_by: Collection[int]) -> None:
        """Note the result of a look.

        Args:
            began: When the look began.
            is_read_only: Whether the bookie was registered as read-only at that time.
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
            self.waits_for = "clients are learning that it is read-only"
