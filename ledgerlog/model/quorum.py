"""Quorum arithmetic (protocol A.0): which slots hold an entry, and which answers are enough.

    write_set(e) = slots (e + i) mod E for i in 0..WQ-1
    negative quorum for one entry        WQ - AQ + 1 answers of its write set
    ensemble coverage for a fragment     every write set has a negative quorum of confirming slots

Counting a negative quorum over the whole ensemble instead of per write set is wrong whenever
E > WQ (schedules T02 and T26).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ENSEMBLE_MAX


def _is_count(instance: Replication, attribute: attrs.Attribute[int], value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(f"{attribute.name} must be a positive integer, not {value!r}")


@attrs.frozen
class Replication:
    """How a ledger is replicated: ``ensemble >= write_quorum >= ack_quorum >= 1``.

    Each entry is written to ``write_quorum`` of the ``ensemble`` bookies (striped when the ensemble is
    larger) and acknowledged once ``ack_quorum`` of them have it synced. ``guaranteed`` asks that every
    entry of a closed ledger, and of every fragment but the last, is on its full write quorum.

    Raises InvalidArgument if the three numbers are not in that relation or the ensemble is over
    ``limits.ENSEMBLE_MAX``."""

    ensemble: int = attrs.field(default=3, validator=_is_count)
    write_quorum: int = attrs.field(default=3, validator=_is_count)
    ack_quorum: int = attrs.field(default=2, validator=_is_count)
    guaranteed: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.ensemble >= self.write_quorum >= self.ack_quorum:
            raise InvalidArgument(
                f"replication needs ensemble >= write quorum >= ack quorum, "
                f"not {self.ensemble}/{self.write_quorum}/{self.ack_quorum}"
            )
        if self.ensemble > ENSEMBLE_MAX:
            raise InvalidArgument(f"an ensemble has at most {ENSEMBLE_MAX} bookies, not {self.ensemble}")

    @property
    def negative_quorum(self) -> int:
        """How many explicit negatives of one write set prove that an entry was never acknowledged."""
        return self.write_quorum - self.ack_quorum + 1

    @property
    def is_striped(self) -> bool:
        return self.ensemble > self.write_quorum

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The slots that hold an entry, in order."""
        ensemble = self.ensemble
        return tuple((entry_id + i) % ensemble for i in range(self.write_quorum))

    def holds(self, slot: int, entry_id: int) -> bool:
        """Whether a slot is in the entry's write set."""
        return (slot - entry_id) % self.ensemble < self.write_quorum

    def covers(self, slots: Collection[int]) -> bool:
        """Ensemble coverage: no write set has an ack quorum outside ``slots`` (T26, D1)."""
        missing_max = self.ack_quorum - 1
        return all(
            sum(slot not in slots for slot in self.write_set(first)) <= missing_max
            for first in range(self.ensemble)
        )

    def __str__(self) -> str:
        mode = " guaranteed" if self.guaranteed else ""
        return f"{self.ensemble}/{self.write_quorum}/{self.ack_quorum}{mode}"


def has_duplicates(ensemble: Sequence[str]) -> bool:
    """Whether a bookie sits in two slots."""
    return len(set(ensemble)) != len(ensemble)
