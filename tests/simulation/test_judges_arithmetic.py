"""The judges count quorums by their own code, and get the same results as the product."""

from __future__ import annotations

import itertools

import pytest

from ledgerlog.model.quorum import Replication
from ledgerlog.testing import quorums

SHAPES = [
    Replication(ensemble, write_quorum, ack_quorum)
    for ensemble in range(1, 6)
    for write_quorum in range(1, ensemble + 1)
    for ack_quorum in range(1, write_quorum + 1)
]


@pytest.mark.parametrize("replication", SHAPES, ids=str)
def test_both_arithmetics_agree(replication: Replication) -> None:
    slots = range(replication.ensemble)
    assert quorums.negatives_needed(replication) == replication.negative_quorum
    for slot, entry_id in itertools.product(slots, range(12)):
        assert quorums.holds(replication, slot, entry_id) == replication.holds(slot, entry_id)
    for count in range(replication.ensemble + 1):
        for fenced in itertools.combinations(slots, count):
            assert quorums.covers(replication, fenced) == replication.covers(fenced)
