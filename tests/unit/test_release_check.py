"""``make release-check`` runs every step, whatever became of the others, and its page says what was run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import release_check
from tools.release_check import STEPS, Step, main


def says(name: str, code: str) -> Step:
    return Step(name, f"{name} is well", lambda scale: ("-c", code))


def checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: tuple[Step, ...], *options: str
) -> tuple[int, str]:
    monkeypatch.setattr(release_check, "STEPS", steps)
    monkeypatch.setattr(release_check, "OUTPUT", tmp_path / "output")
    page = tmp_path / "page.md"
    ran = CliRunner().invoke(main, ["--report", str(page), *options])
    return ran.exit_code, page.read_text() if page.exists() else ran.output


def test_a_step_that_fails_is_on_the_page_and_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = says("one", "print('broken'); raise SystemExit(3)"), says("two", "print('whole')")
    status, page = checked(monkeypatch, tmp_path, steps)
    assert status == 1
    assert "| one | one is well | 0 min | **failed** with 3 |" in page
    assert "| two | two is well | 0 min | passed |" in page
    assert "broken" in page
    assert "whole" in page
    assert (tmp_path / "output" / "one.log").read_text() == "broken\n"


def test_a_shortened_check_says_that_it_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step = says("one", "")
    assert "this is no check" not in checked(monkeypatch, tmp_path, (step,))[1]
    status, page = checked(monkeypatch, tmp_path, (step,), "--scale", "0.5")
    assert status == 0
    assert "The steps ran for 0.5 of their full time, so this is no check" in page


def test_an_unknown_step_is_named_and_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, said = checked(monkeypatch, tmp_path, STEPS, "--only", "fuzz,nobody")
    assert status == 2
    assert "there is no step nobody" in said
    assert not (tmp_path / "output").exists()


def test_each_step_takes_a_share_of_its_time() -> None:
    for step in STEPS:
        whole, tenth = step.command(1.0), step.command(0.1)
        assert whole[:2] == tenth[:2]
        assert whole != tenth or step.name == "mutants"
