"""``make release-check`` runs every step, whatever became of the others, and its page says what was run."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fuzz.corpus import all_targets
from tools import release_check
from tools.release_check import STEPS, Step, main


def says(name: str, code: str, parts: int = 1, at_once: int = 1) -> Step:
    return Step(
        name,
        f"{name} is well",
        lambda scale, part: ("-c", code),
        parts,
        environment=lambda scale, part: {"PART": str(part)},
        at_once=at_once,
    )


def checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: tuple[Step, ...], *options: str, **answers: str
) -> tuple[int, str]:
    """Run the check. ``answers`` are those of git, by its commands."""
    monkeypatch.setattr(release_check, "STEPS", steps)
    monkeypatch.setattr(release_check, "OUTPUT", tmp_path / "output")
    monkeypatch.setattr(release_check, "git", lambda *arguments: answers.get(arguments[0], ""))
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
    assert "The steps ran for 0.5 of their full time. So this is no check" in page


def test_an_unknown_step_is_named_and_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, said = checked(monkeypatch, tmp_path, STEPS, "--only", "fuzz,nobody")
    assert status == 2
    assert "there is no step nobody" in said
    assert not (tmp_path / "output").exists()


def test_an_interrupted_check_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, flag = tmp_path / "log", tmp_path / "works"
    code = f"import os, pathlib; part = os.environ['PART']; open({str(log)!r}, 'a').write(part); "
    code += f"raise SystemExit(part == '1' and not pathlib.Path({str(flag)!r}).exists())"
    steps = says("one", code, 3), says("two", "")
    status, page = checked(monkeypatch, tmp_path, steps, "--only", "one")
    assert status == 1
    assert "**failed** with 1" in page
    assert "| two | two is well | 0 min | not run |" in page
    assert "Not every part has run. So this is no check" in page
    flag.touch()
    status, page = checked(monkeypatch, tmp_path, steps, "--resume")
    assert status == 0
    assert log.read_text() == "012" + "1"
    assert "| one | one is well | 0 min | **failed** 1 times, then passed |" in page
    assert "Not every part" not in page
    assert page.count("## one, part ") == 3
    assert "`PART=1 python -c import os" in page


def test_the_page_names_every_machine_on_which_a_part_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = says("one", "pass"), says("two", "pass")
    checked(monkeypatch, tmp_path, steps, "--only", "one")
    kept = tmp_path / "page.json"
    kept.write_text(kept.read_text().replace(f"{os.cpu_count()} cores", "99 cores"))
    _, page = checked(monkeypatch, tmp_path, steps, "--resume")
    assert page.count(f"; Python {platform.python_version()}, ") == 2
    assert "99 cores" in page
    assert f"{os.cpu_count()} cores" in page


def test_parts_run_at_once_if_they_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each part waits until the other one has begun."""
    begun = (
        "import os, pathlib, time\n"
        f"begun = [pathlib.Path({str(tmp_path)!r}, number) for number in '01']\n"
        "begun[int(os.environ['PART'])].touch()\n"
        "while not all(each.exists() for each in begun): time.sleep(0.001)"
    )
    status, page = checked(monkeypatch, tmp_path, (says("one", begun, parts=2, at_once=2),))
    assert status == 0
    assert "| one | one is well | 0 min | passed |" in page


def test_what_ran_on_another_product_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = (says("one", f"open({str(log)!r}, 'a').write('x')"),)
    checked(monkeypatch, tmp_path, steps)
    checked(monkeypatch, tmp_path, steps, "--resume")
    assert log.read_text() == "x"
    checked(monkeypatch, tmp_path, steps, "--resume", **{"rev-parse": "another"})
    assert log.read_text() == "xx"
    checked(monkeypatch, tmp_path, steps, "--resume", "--scale", "0.5")
    assert log.read_text() == "xxx"


def test_a_tree_with_changes_is_no_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = (says("one", ""),)
    _, page = checked(monkeypatch, tmp_path, steps, status=" M bookie/core/ledger.py\n")
    assert "The tree had changes that are in no commit. So this is no check" in page
    itself = " M docs/RELEASE_CHECK.md\n?? docs/RELEASE_CHECK.json\n"
    _, page = checked(monkeypatch, tmp_path, steps, status=itself)
    assert "no check" not in page


def test_a_part_that_ran_another_command_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked(monkeypatch, tmp_path, (says("one", "pass", 2),))
    status, page = checked(monkeypatch, tmp_path, (says("one", "print('new')"),), "--resume")
    assert status == 0
    assert "new" in page
    assert page.count("## one") == 1


def test_a_damaged_list_of_parts_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "page.json"
    for damage in ("{", "[]", '{"product": 1, "scale": 1, "done": [{}]}'):
        kept.write_text(damage)
        status, said = checked(monkeypatch, tmp_path, (says("one", ""),), "--resume")
        assert status == 1
        assert f"{kept} is damaged" in said


def test_every_decoder_is_fuzzed() -> None:
    (fuzz,) = (step for step in STEPS if step.name == "fuzz")
    commands = [fuzz.command(1.0, part) for part in range(fuzz.parts)]
    assert {command[2] for command in commands} == {target.name for target in all_targets()}


def test_each_step_takes_a_share_of_its_time() -> None:
    for step in STEPS:
        seen = {
            (*step.command(1.0, part), *step.environment(1.0, part).items()) for part in range(step.parts)
        }
        whole, tenth = step.command(1.0, 0), step.command(0.1, 0)
        assert whole[:2] == tenth[:2]
        assert (
            whole != tenth or step.name == "mutants" or step.environment(1.0, 0) != step.environment(0.1, 0)
        )
        assert len(seen) == step.parts, "each part has a seed or a decoder of its own"
