"""Exactly once under faults: producers that repeat, consumers with a pinned cursor, a sweeper that is in a
hurry; and what each of them notices when it is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import attrs
import pytest

from ledgerlog.log import retention
from ledgerlog.log import sweep as sweeping
from ledgerlog.log.core.producers import Known, Producers
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.policies import RollPolicy
from ledgerlog.testing import people, swarm
from ledgerlog.testing.swarm import Size, Swarm
from ledgerlog.testing.workload import run_seed
from tests.simulation.violations import first_violation

SMALL = range(19)
RARE = range(19, 400)
"""Try seeds until a leader has died and left a ledger that only the sweeper finds."""
FULL = range(2)


@pytest.fixture(autouse=True)
def producers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "WORKLOAD_MIXES", (("producers",),))
    monkeypatch.setattr(people, "PEOPLE_SHARE", 0.0)


@pytest.mark.long
def test_each_record_counts_once_whatever_is_repeated_and_nothing_pinned_or_listed_vanishes() -> None:
    counts = Counter[str]()

    def run(seed: int, size: Size) -> None:
        report = run_seed(seed, size=size, features=())
        if report.failure is not None:
            raise report.failure
        counts.update(report.counts)
        counts.update(report.checks)

    for size, seeds in ((Size.SMALL, SMALL), (Size.FULL, FULL)):
        for seed in seeds:
            run(seed, size)
    for seed in RARE:
        if counts["swept"]:
            break
        run(seed, Size.SMALL)
    assert counts["numbered records judged"] > 500
    assert counts["numbered records dropped"] > 200
    assert counts["duplicates"] > 100
    assert counts["takeovers"] > 30
    assert counts["cursor conflicts"] > 10
    assert counts["swept"] > 0
    assert counts["ListedKept"] > 50
    assert counts["SpareKept"] > 0


def violation_of_some_seed(most: int = 600) -> str:
    """Return what the first seed says that finds something.

    Each change of the system gives every seed another course. So many seeds may be needed, even if the bug is
    usually found soon.
    """
    return first_violation(run_seed(seed, size=Size.SMALL, features=()) for seed in range(most))


def test_a_leader_that_writes_a_repetition_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Producers.admit

    def forgetful(
        self: Producers, producer_id: str, first_sequence: int, count: int, now_ms: int
    ) -> list[Known]:
        original(self, producer_id, first_sequence, count, now_ms)
        return []

    monkeypatch.setattr(Producers, "admit", forgetful)
    assert violation_of_some_seed().startswith("ExactlyOnce")


def test_retention_that_does_not_ask_what_is_pinned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pin(cursors: Iterable[CursorState]) -> None:
        return None

    draw = Swarm.draw

    def roll_after_each_record(random: Random, size: Size) -> Swarm:
        """Without this, consumers are seldom so late that they miss something: one seed in hundreds."""
        return attrs.evolve(draw(random, size), roll=RollPolicy(max_records=1))

    monkeypatch.setattr(Swarm, "draw", roll_after_each_record)
    monkeypatch.setattr(retention, "first_pin", no_pin)
    assert violation_of_some_seed().startswith("CursorPins")


def test_a_sweeper_that_takes_a_leaders_spare_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sweeping._why_orphan

    def hasty(ledger: LedgerMetadata, record: LogMetadata | None, age_s: float) -> str | None:
        why = original(ledger, record, age_s)
        is_listed = record is not None and record.index_of(ledger.ledger_id) is not None
        return why or (None if is_listed else "nobody lists it")

    monkeypatch.setattr(sweeping, "_why_orphan", hasty)
    assert violation_of_some_seed().startswith("SpareKept")


def test_a_sweeper_that_takes_what_is_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_why_orphan", lambda ledger, record, age_s: "a whim")
    assert violation_of_some_seed().startswith(("ListedKept", "SpareKept"))
