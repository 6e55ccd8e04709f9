"""Asking bookies for their copies."""

from __future__ import annotations

from collections import Counter

import pytest
from trio.testing import MockClock

from ledgerlog.ledger import copies
from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk, FaultKind
from ledgerlog.ledger.core.copies import entries_of
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ledger import Fragment, LedgerState
from ledgerlog.net.connection import BookieConnection
from ledgerlog.testing.memory_cluster import open_cluster
from tests.cores import new_metadata


async def test_a_comparison_of_lists_asks_who_is_silent_once(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie that hangs would cost its time limit for each fragment."""
    fragments = (Fragment(0, ("b1", "b2", "b3")), Fragment(4, ("b2", "b3", "b1")))
    metadata = new_metadata((3, 3, 2), state=LedgerState.CLOSED, fragments=fragments, last_entry=9)
    asked: Counter[str] = Counter()

    async def ask_copies(connection: BookieConnection, ledger_id: int, ask: CopyAsk) -> CopyAnswer | None:
        asked[ask.bookie] += 1
        if ask.bookie == "b1":
            return None
        return CopyAnswer(through=ask.last, negative=Negative.ABSENT, sound=[(ask.first, ask.last)])

    monkeypatch.setattr(copies, "ask_copies", ask_copies)
    async with open_cluster(3) as cluster, cluster.client() as client:
        faults = await copies.compare_lists(client.opened.pool, metadata)
    assert asked == {"b1": 1, "b2": 2, "b3": 2}
    assert [(f.bookie, f.kind, *entries_of(metadata, f)) for f in faults] == [
        ("b1", FaultKind.UNREACHABLE, 0, 1, 2, 3),
        ("b1", FaultKind.UNREACHABLE, 4, 5, 6, 7, 8, 9),
    ]
