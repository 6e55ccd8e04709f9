"""Every mutant can still be applied and names tests that exist; the runner tells caught ones from others.

``make mutants`` tries them all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Change, Mutant, Stale, forget_sources
from tests.mutants.runner import ROOT, Copy, Outcome, RunFailed, run_mutants

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.fixture(scope="module", autouse=True)
def sources_are_forgotten() -> Iterator[None]:
    yield
    forget_sources()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied_and_changes_the_code(mutant: Mutant) -> None:
    assert mutant.patched(ROOT)
    for change in mutant.changes:
        assert not change.is_idle, f"{mutant.name} changes nothing in {change.symbol}"


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_mutants_have_names_of_their_own_and_name_tests_that_exist() -> None:
    assert len(BY_NAME) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.tests
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), f"{mutant.name}: {file}"
            assert not name or name.partition("[")[0] in functions_of(file), f"{mutant.name}: {test}"


def test_there_are_enough_of_them_and_of_every_kind() -> None:
    assert len(MUTANTS) >= 45
    rules = " ".join(mutant.rule for mutant in MUTANTS)
    for wanted in ("T01", "T02", "T03", "T04", "T05", "T06", "T07", "T08", "T10", "T12", "T14", "T15", "T16"):
        assert wanted in rules
    for wanted in ("T17", "T18", "T19", "T20", "T21", "T22", "T23", "T24", "T25", "T26", "T27", "T28", "T31"):
        assert wanted in rules
    for wanted in ("T32", "C01", "C02", "C03", "C04", "C05"):
        assert wanted in rules


@pytest.mark.processes
def test_some_known_bugs_are_noticed_and_the_one_that_is_none_is_not(tmp_path: Path) -> None:
    caught = [
        "negative_quorum_one_too_small",
        "time_out_is_negative",
        "closed_at_the_last_add_pushed",
        "regular_add_on_a_fenced_ledger",
    ]
    harmless = attrs.evolve(
        BY_NAME["harmless_bookie_lac_is_the_latest_told"],
        tests=("tests/unit/test_bookie_ledger.py::test_recovery_adds_pass_the_fence",),
    )
    verdicts = run_mutants([*(quick(BY_NAME[name]) for name in caught), harmless], tmp_path)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.CAUGHT] * len(caught) + [Outcome.EQUIVALENT]
    assert all(verdict.by in verdict.mutant.tests for verdict in verdicts[:-1])


@pytest.mark.processes
def test_a_survivor_a_mistake_and_a_test_that_fails_anyway_are_told_apart(tmp_path: Path) -> None:
    blind = "tests/unit/test_bookie_ledger.py::test_recovery_adds_pass_the_fence"
    survivor = attrs.evolve(BY_NAME["regular_add_on_a_fenced_ledger"], tests=(blind,))
    (change,) = survivor.changes
    broken = attrs.evolve(
        survivor, name="broken", changes=(attrs.evolve(change, new="__import__('nobody')"),)
    )
    verdicts = run_mutants([survivor, broken], tmp_path / "first")
    assert [verdict.outcome for verdict in verdicts] == [Outcome.SURVIVED, Outcome.MISTAKE]
    assert not any(verdict.is_good for verdict in verdicts)
    with pytest.raises(RunFailed, match="fail without any mutant"):
        run_mutants([attrs.evolve(survivor, tests=(f"{blind}_that_is_not_there",))], tmp_path / "second")
    with pytest.raises(Stale, match="0 times"):
        attrs.evolve(survivor, changes=(attrs.evolve(change, old="no_such_name"),)).patched()
    with pytest.raises(Stale, match="does not define nobody"):
        attrs.evolve(survivor, changes=(attrs.evolve(change, new="nobody"),)).patched()


@pytest.mark.processes
def test_a_mutant_is_not_taken_for_the_one_before_it(tmp_path: Path) -> None:
    for file, code in {
        "ledgerlog/__init__.py": "",
        "ledgerlog/ship.py": "MASTS = 1\nSAILS = 1\n",
        "test_ship.py": "from ledgerlog.ship import SAILS\ndef test_sails(): assert SAILS == 1\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(code, encoding="utf-8")
    copy = Copy(tmp_path)
    assert copy.run_tests(["test_ship.py"]).status == 0
    outcomes = [
        copy.try_mutant(Mutant(symbol, "", (Change(f"ship.{symbol}", "1", "2"),), ("test_ship.py",))).outcome
        for symbol in ("MASTS", "SAILS", "MASTS")
    ]
    assert outcomes == [Outcome.SURVIVED, Outcome.CAUGHT, Outcome.SURVIVED]


@pytest.mark.processes
def test_a_wait_ends_sooner_with_a_mutant_than_without(tmp_path: Path) -> None:
    (tmp_path / "test_wait.py").write_text(
        "import os\ndef test_wait(): assert float(os.environ['LEDGERLOG_TEST_PATIENCE_S']) < 60\n",
        encoding="utf-8",
    )
    copy = Copy(tmp_path)
    assert copy.run_tests(["test_wait.py"]).status == 0
    assert copy.run_all_tests(["test_wait.py"], workers=1).status == 1


def quick(mutant: Mutant) -> Mutant:
    return attrs.evolve(mutant, tests=mutant.tests[:1])
