"""What keeps a process from an ack quorum of bookies."""

from __future__ import annotations

import attrs

from ledgerlog.model.ids import BookieId

__all__ = ["OutOfReach"]


@attrs.frozen
class OutOfReach:
    """A process reaches no ack quorum of bookies for a ledger, nor bookies that could replace the missing
    ones.

    A process that reaches ``needed`` of ``bookies`` may do better."""

    bookies: tuple[BookieId, ...]
    """The bookies that it cannot reach, sorted: members of the ledger's ensemble, and replacements."""
    needed: int
    """How many of them would make an ack quorum, together with those that it does reach. At least 1."""

    def __str__(self) -> str:
        return f"{self.needed} of {', '.join(self.bookies)}"
