"""Faults that a user's scenario draws: whom they hit, how they end, and what a failure says about them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.testing import DRAWN_FAULTS, DrawnFaults, SimulatedCluster, simulate
from ledgerlog.testing.trouble import RunningFaults


async def serve(client: Cluster) -> None:
    """Append for ever, as a service does."""
    log = await client.create_log("orders", exist_ok=True)
    while True:
        try:
            async with log.writer() as writer:
                while True:
                    await writer.append(b"order")
                    await trio.sleep(0.5)
        except LedgerLogError:
            await trio.sleep(0.5)


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


@pytest.mark.parametrize("kind", DRAWN_FAULTS)
def test_each_kind_comes_and_is_over_when_it_is_calm(kind: str) -> None:
    async def scenario(cluster: SimulatedCluster) -> int:
        cluster.start("service", serve)
        await cluster.calm()
        assert cluster.down == []
        assert all(cluster.is_running(name) for name in (*cluster.bookies, "service"))
        async with cluster.client("reader") as client:
            log = await client.open_log("orders")
            before = (await log.info()).next_offset
            await trio.sleep(15)
            assert (await log.info()).next_offset > before, "the service goes on"
        return sum(cluster.faults.values())

    injected = [
        simulate(scenario, seed=seed, faults=DrawnFaults(seconds=5, kinds=[kind])).value for seed in range(2)
    ]
    assert any(injected), f"no {kind} in two seeds"


def test_a_run_repeats_with_its_faults() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start("service", serve)
        await cluster.calm()

    once = simulate(scenario, seed=3, faults=DrawnFaults())
    assert simulate(scenario, seed=3, faults=DrawnFaults()).trace_hash == once.trace_hash
    assert simulate(scenario, seed=3, faults=DrawnFaults(), only=()).trace_hash != once.trace_hash


def test_nothing_happens_to_whom_you_spare_and_nothing_to_the_scenario_itself() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start("service", serve)
        cluster.start("spared", serve)
        async with cluster.client("mine"):
            await cluster.calm()
        for name in ("spared", "mine", "bookie-1"):
            assert cluster.process(name).lives == 1

    for seed in range(3):
        spared = DrawnFaults(kinds=["kill", "power cut", "crash at a door"], spare=["spared", "bookie-1"])
        simulate(scenario, seed=seed, faults=spared)


def test_a_process_that_has_returned_is_not_started_again() -> None:
    async def once(client: Cluster) -> None:
        await client.create_log("orders", exist_ok=True)

    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start("once", once)
        await cluster.calm()
        assert cluster.process("once").lives == 1

    simulate(scenario, seed=1, faults=DrawnFaults(kinds=["slow link"]))


def test_a_process_that_failed_or_was_killed_is_started_again() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def fails_at_first(client: Cluster) -> None:
            if cluster.process("service").lives < 3:
                await client.open_log("no such log")
            await trio.sleep_forever()

        cluster.start("service", fails_at_first)
        await trio.sleep(1)
        cluster.kill("bookie-1", power_cut=True)
        assert cluster.down == ["bookie-1", "service"]
        await cluster.calm()
        await trio.sleep(1)
        await cluster.calm()
        await trio.sleep(1)
        assert cluster.down == []
        assert cluster.is_running("bookie-1")
        assert cluster.is_running("service")

    simulate(scenario, seed=1)


def test_a_failure_lists_the_faults_before_it_and_those_that_it_takes() -> None:
    runs = 0

    async def scenario(cluster: SimulatedCluster) -> None:
        nonlocal runs
        runs += 1
        cluster.start("service", serve)
        await cluster.calm()
        assert cluster.faults["pause"], "never paused"
        assert cluster.faults["kill"] < 2, "killed twice"

    with pytest.raises(AssertionError, match="killed twice") as caught:
        simulate(scenario, seed=2, faults=DrawnFaults(kinds=["kill", "pause", "reset"]))
    said = notes(caught.value)
    assert "seed 2 at " in said
    before, _, needed = said.partition("drawn faults came before it:\n")[2].partition("\nOf ")
    assert before.count(": kill ") >= 2
    assert "it takes (run it with only=(" in needed
    assert needed.count(": kill ") == 2
    assert needed.count("\n") == 3, "the two kills and a pause, without which it fails in another way"
    assert runs < 60

    only = eval(needed.partition("only=")[2].partition("):")[0])
    with pytest.raises(AssertionError, match="killed twice") as again:
        simulate(scenario, seed=2, faults=DrawnFaults(kinds=["kill", "pause", "reset"]), only=only)
    assert "3 drawn faults came before it" in notes(again.value)


def test_a_failure_that_takes_no_fault_says_so() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await trio.sleep(3)
        raise AssertionError("always")

    with pytest.raises(AssertionError) as caught:
        simulate(scenario, seed=2, faults=DrawnFaults())
    assert "It fails in the same way without any drawn fault." in notes(caught.value)


def test_a_failure_is_not_repeated_if_you_do_not_want_it() -> None:
    runs = 0

    async def scenario(cluster: SimulatedCluster) -> None:
        nonlocal runs
        runs += 1
        await cluster.calm()
        raise AssertionError("always")

    with pytest.raises(AssertionError) as caught:
        simulate(scenario, seed=2, faults=DrawnFaults(), shrinks=False)
    assert runs == 1
    assert "drawn faults came before it" in notes(caught.value)


def test_seeds_draw_different_kinds_and_rates() -> None:
    async def scenario(cluster: SimulatedCluster) -> tuple[frozenset[str], int]:
        plan = RunningFaults(cluster, DrawnFaults()).plan
        return frozenset(fault.kind for fault in plan), len(plan)

    drawn = [simulate(scenario, seed=seed).value for seed in range(30)]
    assert {kind for kinds, _ in drawn for kind in kinds} == set(DRAWN_FAULTS)
    assert all(len(kinds) <= 8 for kinds, _ in drawn)
    assert max(length for _, length in drawn) > 4 * min(length for _, length in drawn)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kinds": ["earthquake"]}, "no such faults: earthquake; there are kill, "),
        ({"kinds": []}, "no such faults: none given"),
        ({"seconds": 0.0}, "seconds is 0.0; it must be a positive number"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        DrawnFaults(**options)
