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
        simulate(scenario, seed=3, faults=DrawnFaults(kinds=["kill", "pause", "reset"]))
    said = notes(caught.value)
    assert "seed 3 at " in said
    before, _, needed = said.partition("Drawn faults before it:\n")[2].partition("\nIt takes these of ")
    assert before.count(": kill ") >= 2
    assert "drawn faults (run it with only=(" in needed
    assert needed.count(": kill ") == 2
    assert needed.count("\n") == 3, "the two kills and a pause, without which it fails in another way"
    assert runs < 60

    only = eval(needed.partition("only=")[2].partition("):")[0])
    with pytest.raises(AssertionError, match="killed twice") as again:
        simulate(scenario, seed=3, faults=DrawnFaults(kinds=["kill", "pause", "reset"]), only=only)
    before, _, needed = notes(again.value).partition("Drawn faults before it:\n")[2].partition("\nIt takes ")
    assert before.count("\n  #") == 2
    assert needed.startswith("these of 3 drawn faults")


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
    assert "Drawn faults before it:" in notes(caught.value)
    assert "It takes" not in notes(caught.value)


def test_a_scenario_that_depends_on_the_run_before_is_told_so() -> None:
    runs = 0

    async def scenario(cluster: SimulatedCluster) -> None:
        nonlocal runs
        runs += 1
        await cluster.calm()
        assert runs > 1, "only the first run fails"

    with pytest.raises(AssertionError, match="only the first") as caught:
        simulate(scenario, seed=2, faults=DrawnFaults())
    assert runs == 2
    assert "Make everything inside of the scenario" in notes(caught.value)


def test_a_repeated_run_that_ends_in_any_other_way_leaves_the_first_failure_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start("service", serve)
        await cluster.calm()
        print("this run is", "whole" if cluster.faults["kill"] > 1 else "smaller")
        if cluster.faults["kill"] < 2:
            pytest.fail("not an Exception, as pytest has it")
        raise AssertionError("killed twice")

    with pytest.raises(AssertionError, match="killed twice") as caught:
        simulate(scenario, seed=2, faults=DrawnFaults(kinds=["kill"]))
    assert notes(caught.value).count(": kill ") > 2
    assert capsys.readouterr().out == "this run is whole\n", "what repeated runs print is dropped"


def test_a_failure_that_is_no_exception_is_explained_too() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await trio.sleep(5)
        pytest.fail("always")

    with pytest.raises(BaseException, match="always") as caught:
        simulate(scenario, seed=2, faults=DrawnFaults())
    assert "It fails in the same way without any drawn fault." in notes(caught.value)


def test_a_check_that_fails_at_another_place_is_another_failure() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        def require(holds: bool) -> None:
            assert holds, "a helper of the test"

        cluster.start("service", serve)
        await cluster.calm()
        require(cluster.faults["pause"] > 0)
        require(cluster.faults["kill"] == 0)

    with pytest.raises(AssertionError) as caught:
        simulate(scenario, seed=2, faults=DrawnFaults(kinds=["kill", "pause"]))
    needed = notes(caught.value).partition("It takes these of ")[2]
    assert needed.count(": kill ") == 1
    assert needed.count(": pause ") == 1


def test_a_process_that_fails_after_it_is_calm_is_started_again() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def fails_late(client: Cluster) -> None:
            await trio.sleep(7)
            await client.open_log("no such log")

        cluster.start("service", fails_late)
        await cluster.calm()
        lives = cluster.process("service").lives
        await trio.sleep(60)
        assert cluster.process("service").lives > lives + 3

    simulate(scenario, seed=1, faults=DrawnFaults(seconds=2, kinds=["slow link"]))


def test_processes_may_be_added_while_the_scenario_waits_for_calm() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        async def come_and_go() -> None:
            for number in range(200):
                async with cluster.client(f"client-{number}"):
                    await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_and_go)
            await cluster.put_down("bookie-1")
            await cluster.calm()
            assert cluster.is_running("bookie-1")
            nursery.cancel_scope.cancel()

    simulate(scenario, seed=1)


def test_a_cluster_of_spared_bookies_is_left_alone() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start("service", serve)
        await cluster.calm()
        for bookie in cluster.bookies:
            assert cluster.process(bookie).lives == 1

    for kinds in (["full disk", "slow disk", "power cut"], ["kill", "reset", "partition", "slow link"]):
        with pytest.raises(ZeroDivisionError) as caught:
            simulate(ending_in_an_error(scenario), faults=DrawnFaults(kinds=kinds, spare=ALL_BOOKIES))
        before = notes(caught.value).partition("Drawn faults before it:")[2].partition("It ")[0]
        assert "bookie-" not in before


ALL_BOOKIES = [f"bookie-{number}" for number in range(1, 5)]


def ending_in_an_error(scenario: Any) -> Any:
    """The scenario, and then an error whose notes list the faults."""

    async def run(cluster: SimulatedCluster) -> None:
        await scenario(cluster)
        raise ZeroDivisionError

    return run


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
        ({"spare": "service"}, "'service' is one text: give a list of names"),
        ({"kinds": "kill"}, "'kill' is one text: give a list of names"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        DrawnFaults(**options)


def test_what_a_run_does_not_have_is_refused() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await trio.sleep(1)

    with pytest.raises(InvalidArgument, match="only chooses from drawn faults"):
        simulate(scenario, only=(0,))
    with pytest.raises(InvalidArgument, match=r"the seed draws the faults from 0 to \d+, and not 777"):
        simulate(scenario, faults=DrawnFaults(), only=(0, 777))
    with pytest.raises(InvalidArgument, match="there is no process 'servcie'"):
        simulate(scenario, faults=DrawnFaults(spare=["servcie"]))


def test_the_order_in_which_kinds_are_given_does_not_matter() -> None:
    assert DrawnFaults(kinds={"reset", "kill", "pause"}).kinds == ("kill", "pause", "reset")


def test_a_process_that_runs_is_not_started_again() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start("service", serve)
        with pytest.raises(InvalidArgument, match="service runs already"):
            cluster.start("service", serve)
        await trio.sleep(1)
        with pytest.raises(InvalidArgument, match="service runs already"):
            cluster.start("service", serve)
        assert cluster.process("service").lives == 1

    simulate(scenario)
