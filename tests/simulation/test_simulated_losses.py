"""Bookies that acknowledge before they sync, crashed again and again: nothing acknowledged is lost, and what
a bookie that comes back may not say is noticed where it says it."""

from __future__ import annotations

from collections import Counter

import pytest

from bookie.core.loss_marks import LossMarks, Range
from bookie.server.limbo import LimboRepair
from ledgerlog.testing import people, swarm
from ledgerlog.testing.invariants import Violation
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import run_seed

SMALL = range(24)
FULL = range(3)


@pytest.fixture(autouse=True)
def losses_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "LOSS_SHARE", 1.0)
    monkeypatch.setattr(people, "PEOPLE_SHARE", 0.0)


def test_nothing_acknowledged_is_lost_where_fewer_than_an_ack_quorum_do_not_sync() -> None:
    counts = Counter[str]()
    for size, seeds in ((Size.SMALL, SMALL), (Size.FULL, FULL)):
        for seed in seeds:
            report = run_seed(seed, size=size)
            if report.failure is not None:
                raise report.failure
            counts.update(report.counts)
            counts.update(report.checks)
    assert counts["unsynced losses"] > 20
    assert counts["told as unknown"] > 10
    assert counts["copied out of limbo"] > 20
    for rule in ("BootMarks", "LimboNoNegative", "LimboClear"):
        assert counts[rule] > 10


def violation_of_some_seed(*full: int) -> str:
    """Of the first that fails: of the full ones that found it last, of many small ones, of more full ones."""
    for size, seeds in ((Size.FULL, full), (Size.SMALL, range(60)), (Size.FULL, range(60))):
        for seed in seeds:
            failure = run_seed(seed, size=size).failure
            if isinstance(failure, Violation):
                return str(failure)
            assert failure is None or isinstance(failure, Exception), failure
    raise AssertionError("not found")


def test_a_bookie_that_denies_what_it_may_have_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossMarks, "denies_nothing", lambda self, ledger_id: False)
    assert violation_of_some_seed().startswith(("LimboNoNegative", "LimboClear"))


def test_a_bookie_that_forgets_that_it_may_have_lost_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossMarks, "refuses_adds", lambda self, ledger_id: False)
    assert violation_of_some_seed(137).startswith("BootMarks")


def test_a_bookie_that_leaves_limbo_without_what_it_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(self: LimboRepair, *share: object) -> list[Range]:
        return []  # A bookie that says that it lost nothing, and copies nothing.

    monkeypatch.setattr(LimboRepair, "_copy", idle)
    assert violation_of_some_seed().startswith("LimboClear")
