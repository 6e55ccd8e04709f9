"""The bookies that a process cannot reach, so that it has no ack quorum."""

from __future__ import annotations

import attrs

from ledgerlog.model.ids import BookieId

__all__ = ["OutOfReach"]


@attrs.frozen
class OutOfReach:
    """A process reaches no ack quorum of bookies for a ledger, and not enough replacements.

    Another process that reaches ``needed`` of ``bookies`` may have an ack quorum."""

    bookies: tuple[BookieId, ...]
    """The bookies that the process cannot reach, sorted: members of the ledger's ensemble, and
    replacements."""
    needed: int
    """How many of ``bookies`` would complete an ack quorum, with the bookies that the process reaches. At
    least 1."""

    def __str__(self) -> str:
        return f"{self.needed} of {', '.join(self.bookies)}"
