"""Bookies that acknowledge before they sync, crashed again and again: nothing acknowledged is lost, and what
a bookie that comes back may not say is noticed where it says it."""

from __future__ import annotations

from collections import Counter

import pytest

from bookie.core.loss_marks import LossMarks, Range
from bookie.server.limbo import LimboRepair
from ledgerlog.net.session import handshake
from ledgerlog.testing import people, swarm
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.invariants import GodView, Violation
from ledgerlog.testing.runs import simulated_cluster
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.wire_rules import WireView
from ledgerlog.testing.workload import run_seed
from ledgerlog.wire.entries import Entries, encode_add
from ledgerlog.wire.hello import Hello
from tests.simulation.violations import first_violation

SMALL = range(36)
FULL = range(3)


@pytest.fixture(autouse=True)
def losses_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "LOSS_SHARE", 1.0)
    monkeypatch.setattr(people, "PEOPLE_SHARE", 0.0)


@pytest.mark.long
def test_nothing_acknowledged_is_lost_where_fewer_than_an_ack_quorum_do_not_sync() -> None:
    counts = Counter[str]()
    for size, seeds in ((Size.SMALL, SMALL), (Size.FULL, FULL)):
        for seed in seeds:
            report = run_seed(seed, size=size, features=())
            if report.failure is not None:
                raise report.failure
            counts.update(report.counts)
            counts.update(report.checks)
    assert counts["unsynced losses"] > 20
    assert counts["told as unknown"] > 10
    assert counts["copied out of limbo"] > 20
    for rule in ("BootMarks", "LimboNoNegative", "LimboClear"):
        assert counts[rule] > 10


def violation_of_some_seed() -> str:
    """Of the first that fails: of many small ones, then of full ones."""
    return first_violation(
        run_seed(seed, size=size, features=()) for size in (Size.SMALL, Size.FULL) for seed in range(60)
    )


def test_a_bookie_that_denies_what_it_may_have_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossMarks, "denies_nothing", lambda self, ledger_id: False)
    assert violation_of_some_seed().startswith(("LimboNoNegative", "LimboClear"))


def late_adds_that_are_acknowledged(seed: int) -> int:
    """A recoverer does not reach one of three bookies, and closes the ledger of a writer that still lives.
    That bookie acknowledges before it syncs, and its power fails. Then a late add of the writer reaches it.

    Returns:
        How many adds the bookie acknowledged after the power cut.
    """
    god = GodView()
    wire = WireView(god)

    async def main(simulation: Simulation) -> int:
        async with simulated_cluster(
            bookies=3,
            unsynced=1,
            on_durable=god.on_durable,
            on_metadata=god.on_metadata,
            on_loss=wire.loss.on_loss,
            observer=wire,
        ) as cluster:
            loser = cluster.bookies[0]
            wire.loss.on_unsynced(loser)
            god.look_at(cluster.tree)
            async with cluster.client("old") as old, cluster.client("new") as new:
                writer = await old.ledgers.create()
                cluster.partition("new", loser)
                await new.ledgers.recover(writer.ledger_id)
                cluster.kill(loser, power_cut=True)
                await cluster.restart(loser)
                checked = god.checks["BootMarks"]
                stream = await old.client.network.connect(loser)
                try:
                    await handshake(stream, Hello(loser, None), old.client.prover)
                    late = Entries.build(writer.ledger_id, 0, [b"late"])
                    await stream.send_all(
                        encode_add(late, lac=-1, lafr=-1, key=writer.metadata.key, recovery=False)
                    )
                    assert await stream.receive_into(memoryview(bytearray(4096)))
                finally:
                    stream.close()
                return god.checks["BootMarks"] - checked

    try:
        return Simulation(seed).run(main).value
    except BaseException:
        if god.violation is not None:
            raise god.violation from None
        raise


def test_a_bookie_that_may_have_lost_a_fence_refuses_ordinary_adds() -> None:
    for seed in range(3):
        assert late_adds_that_are_acknowledged(seed) == 0


def test_a_bookie_that_forgets_that_it_may_have_lost_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossMarks, "refuses_adds", lambda self, ledger_id: False)
    for seed in range(3):
        with pytest.raises(Violation, match="BootMarks: bookie-1 acknowledges"):
            late_adds_that_are_acknowledged(seed)


def test_a_bookie_that_leaves_limbo_without_what_it_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(self: LimboRepair, *share: object) -> list[Range]:
        return []  # A bookie that says that it lost nothing, and copies nothing.

    monkeypatch.setattr(LimboRepair, "_copy", idle)
    assert violation_of_some_seed().startswith("LimboClear")
