"""Recorded runs of the cores of a log are behaviours of ``docs/tla/Log.tla``. Those of cores with a bug are
not.

``python -m tests.tla`` does much more."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from tests.tla.core_mutants import LOG_MUTANTS, runs_of
from tests.tla.sets import PLAIN_LOG, RECORDED_LOGS, STORMY_LOG
from tests.tla.steps import Step
from tests.tla.subjects import record
from tests.tla.tlc import MODULES
from tests.tla.traces import judge, refusals


@pytest.mark.processes
@pytest.mark.usefixtures("tlc")
def test_runs_of_the_cores_of_a_log_are_behaviours_of_the_module() -> None:
    runs = [record(configuration, seed) for configuration in RECORDED_LOGS for seed in range(2)]
    judgement = judge(STORMY_LOG, runs)  # It has every process of the others.
    assert not judgement.refused, [refusal.describe(runs) for refusal in judgement.refused]
    assert judgement.outcome.is_ok, judgement.outcome.text
    assert len(judgement.accepted) == len(runs)
    assert judgement.outcome.states > sum(map(len, runs)), "every step was followed"


@pytest.mark.processes
@pytest.mark.usefixtures("tlc")
def test_a_run_of_cores_of_a_log_that_lost_a_rule_is_refused() -> None:
    names, runs = [], []
    for mutant, configuration in LOG_MUTANTS:
        found = [run for _, run in runs_of(mutant, configuration, 2)]
        assert len(found) == 2, f"the bug does nothing: {mutant.__name__}"
        names += [mutant.__name__] * 2
        runs += found
    refused = {names[refusal.run] for refusal in refusals(STORMY_LOG, runs)}
    assert refused == set(names)


def _tampered(run: list[Step]) -> dict[str, list[Step]]:
    """The run with one thing changed, in several ways."""

    def at(event: str) -> int:
        return next(number for number, step in enumerate(run) if step.event == event)

    def changed(event: str, change: Callable[[Step], Step]) -> list[Step]:
        where = at(event)
        return [*run[:where], change(run[where]), *run[where + 1 :]]

    def without(event: str) -> list[Step]:
        return [*run[: at(event)], *run[at(event) + 1 :]]

    def told(step: Step, **arguments: object) -> Step:
        return attrs.evolve(step, arguments=step.arguments | arguments)

    def seen(step: Step, kind: str, **values: object) -> Step:
        wrong = [one | {"is": one["is"] | values} if one["kind"] == kind else one for one in step.seen]
        return attrs.evolve(step, seen=tuple(wrong))

    def other(step: Step) -> Step:
        return told(step, p={"A": "B", "B": "A"}[step.arguments["p"]])

    def acked(step: Step) -> Step:
        wrong = [
            one | {"is": [ledger | {"acked": ledger["acked"] + 1} for ledger in one["is"]]}
            if one["kind"] == "ledgers"
            else one
            for one in step.seen
        ]
        return attrs.evolve(step, seen=tuple(wrong))

    return {
        "a step is missing: the store applies a write": without("store applies"),
        "a step is missing: a ledger is recovered": without("recovers"),
        "a step is missing: a ledger is made": without("creates"),
        "a step comes twice": [*run[: at("creates")], run[at("creates")], *run[at("creates") :]],
        "a takeover recovers another ledger": changed("recovers", lambda step: told(step, l=2)),
        "a ledger ends beyond its entries": changed("recovers", lambda step: told(step, end=99)),
        "a process confirms for another": changed("confirms", other),
        "a write says nothing": changed("writes", lambda step: attrs.evolve(step, out=())),
        "a record is acknowledged early": changed("appends", acked),
        "the record is another one": changed("appends", lambda step: seen(step, "record", epoch=7)),
        "a leader is at another offset": changed("appends", lambda step: seen(step, "process", next=9)),
    }


@pytest.mark.processes
@pytest.mark.usefixtures("tlc")
def test_a_run_of_a_log_in_which_one_thing_is_changed_is_refused() -> None:
    run = record(PLAIN_LOG, 2)
    tampered = _tampered(run)
    judgement = judge(PLAIN_LOG, [run, *tampered.values()])
    assert judgement.accepted == (0,), [list(tampered)[number - 1] for number in judgement.accepted if number]


def test_recorded_runs_take_every_step_of_the_module_of_a_log() -> None:
    recorded = {
        step.event
        for configuration in RECORDED_LOGS
        for seed in range(20)
        for step in record(configuration, seed)
    }
    text = (MODULES / "LogTrace.tla").read_text()
    events = {line.split('"')[1] for line in text.splitlines() if "s.ev =" in line}
    assert recorded == events


def test_a_run_of_a_log_is_the_same_for_the_same_seed() -> None:
    assert record(STORMY_LOG, 1) == record(STORMY_LOG, 1)
    assert record(STORMY_LOG, 1) != record(STORMY_LOG, 2)
