"""Quorum arithmetic (protocol A.0): which slots hold an entry, and which answers are enough.

    write_set(e) = slots (e + i) mod E for i in 0..WQ-1
    negative quorum for one entry        WQ - AQ + 1 answers of its write set
    ensemble coverage for a fragment     every write set has a negative quorum of confirming slots

For example, with E=3 and WQ=2, entry 5 goes to the slots 2 and 0.

A negative quorum must be counted for each write set. Counting it over the whole ensemble is wrong if E > WQ
(schedules T02 and T26).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.model.codec import Fields


def _is_count(instance: Replication, attribute: attrs.Attribute[int], value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(f"{attribute.name} must be a positive integer, not {value!r}")


@attrs.frozen
class Replication:
    """How a ledger is replicated: ``ensemble >= write_quorum >= ack_quorum >= 1``.

    Each entry goes to ``write_quorum`` of the ``ensemble`` bookies. It is acknowledged once ``ack_quorum`` of
    them have synced it. You can lose up to ``ack_quorum - 1`` disks at the same time without losing an
    acknowledged entry.

        Replication(ensemble=3, write_quorum=3, ack_quorum=2)  # the default: three copies, two synced
        Replication(ensemble=5, write_quorum=3, ack_quorum=2)  # the same, striped over five bookies

    The constructor raises InvalidArgument if the numbers are not in that relation, or if ``ensemble`` is
    above ``limits.ENSEMBLE_MAX`` (64).
    """

    ensemble: int = attrs.field(default=3, validator=_is_count)
    """How many bookies the entries of a ledger are striped over, 1 to 64."""
    write_quorum: int = attrs.field(default=3, validator=_is_count)
    """How many bookies of the ensemble store each entry."""
    ack_quorum: int = attrs.field(default=2, validator=_is_count)
    """How many bookies must have synced an entry before it is acknowledged."""
    guaranteed: bool = False
    """Close a ledger only if all bookies of each entry's write set have the entry. In an open ledger this
    also holds for every fragment except the last. A writer that cannot reach this fails with
    WriteQuorumUnavailable."""

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
        """How many bookies of one write set must deny an entry to prove that it was never acknowledged.

        For example, with WQ=3 and AQ=2 two denials prove that: at most one bookie is left, which is below the
        ack quorum.
        """
        return self.write_quorum - self.ack_quorum + 1

    @property
    def is_striped(self) -> bool:
        """Whether the ensemble is larger than the write quorum: each bookie stores only some entries."""
        return self.ensemble > self.write_quorum

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the slots that hold an entry, in order.

        Args:
            entry_id: The entry.

        Returns:
            ``write_quorum`` slots. For example, with E=3 and WQ=2 the slots of entry 5 are ``(2, 0)``.
        """
        ensemble = self.ensemble
        return tuple((entry_id + i) % ensemble for i in range(self.write_quorum))

    def holds(self, slot: int, entry_id: int) -> bool:
        """Return whether a slot is in the write set of an entry.

        Args:
            slot: The slot in the ensemble, from 0.
            entry_id: The entry.
        """
        return (slot - entry_id) % self.ensemble < self.write_quorum

    def covers(self, slots: Collection[int]) -> bool:
        """Return whether ``slots`` cover the ensemble (T26, D1).

        They do if no write set has an ack quorum outside of ``slots``. For example, with E=3, WQ=3 and AQ=2
        any two slots cover the ensemble: only one bookie is left, which is below the ack quorum.

        Args:
            slots: Slots of the ensemble, each from 0 to ``ensemble - 1``.
        """
        missing_max = self.ack_quorum - 1
        return all(
            sum(slot not in slots for slot in self.write_set(first)) <= missing_max
            for first in range(self.ensemble)
        )

    def __str__(self) -> str:
        mode = " guaranteed" if self.guaranteed else ""
        return f"{self.ensemble}/{self.write_quorum}/{self.ack_quorum}{mode}"


def has_duplicates(ensemble: Sequence[str]) -> bool:
    """Return whether a bookie has two slots of the ensemble."""
    return len(set(ensemble)) != len(ensemble)


def replication_fields(replication: Replication) -> dict[str, int | bool]:
    """Return the fields of a replication in the record of a ledger or a log."""
    return {
        "ensemble": replication.ensemble,
        "write_quorum": replication.write_quorum,
        "ack_quorum": replication.ack_quorum,
        "guaranteed": replication.guaranteed,
    }


def read_replication(fields: Fields) -> Replication:
    """Read the fields that ``replication_fields`` gave."""
    return Replication(
        ensemble=fields.integer("ensemble"),
        write_quorum=fields.integer("write_quorum"),
        ack_quorum=fields.integer("ack_quorum"),
        guaranteed=fields.get("guaranteed", bool),
    )
