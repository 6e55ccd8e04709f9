"""docs/PROTOCOL.md names existing code, tests, invariants and schedules, and all that comments cite."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
ROOMS = (
    "model",
    "concurrency",
    "ledger",
    "log",
    "repair",
    "archive",
    "election",
    "machine",
    "net",
    "wire",
    "meta",
)


@cache
def existing_tests() -> frozenset[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # Tests stand at the top level of their modules. pytest does not run a function inside a function.
        found.update(
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
    return frozenset(found)


def resolve(name: str) -> object:
    """Return the object with that dotted name; ImportError or AttributeError if there is none."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def test_every_test_on_the_page_exists() -> None:
    named = [name for name in QUOTED if name.startswith("test_")]
    assert len(named) > 100
    assert [name for name in named if name != "test_..." and name not in existing_tests()] == []


def test_every_name_of_the_code_on_the_page_exists() -> None:
    named = [name for name in QUOTED if re.fullmatch(rf"({'|'.join(ROOMS)}|bookie)(\.\w+)+", name)]
    assert len(named) > 60
    for name in named:
        resolve(name if name.startswith("bookie.") else f"ledgerlog.{name}")


def test_every_file_and_target_on_the_page_exists() -> None:
    for name in QUOTED:
        if "/" in name:
            assert (ROOT / name).exists(), name
        elif name.startswith("make "):
            assert f"\n{name.removeprefix('make ')}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), name


def test_nothing_quoted_is_of_a_kind_that_nobody_checks() -> None:
    kinds = rf"test_\w+|test_\.\.\.|this type|make \w+|[\w./]+/[\w.]+|({'|'.join(ROOMS)}|bookie)(\.\w+)+"
    assert [name for name in QUOTED if not re.fullmatch(kinds, name)] == []


def test_the_twelve_rules_to_read_first_are_each_whole_in_a_file_that_the_architecture_names() -> None:
    section = PAGE.partition("## Twelve rules to read first")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 13))
    files = {int(number): re.findall(r"`([\w/]+\.py)`", where) for number, _, where, _ in rows}
    assert all(files.values())
    assert sum(len(each) == 1 for each in files.values()) >= 9
    assert all("`test_" in tests for *_, tests in rows)
    architecture = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = architecture.partition("## Where a rule is")[2].partition("\n## ")[0]
    assert [file for each in files.values() for file in each if f"`{file}`" not in found] == []


def test_every_invariant_of_the_model_checker_is_on_the_page_and_the_other_way_round() -> None:
    source = (ROOT / "tests" / "model" / "invariants.py").read_text(encoding="utf-8")
    checked = set(re.findall(r'Violation\(\s*"(\w+)"', source))
    rows = re.findall(r"^\| ([\w, ]+) \|.*\| model checker \|$", PAGE, re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} == checked


def test_every_invariant_of_the_chain_is_on_the_page_and_the_other_way_round() -> None:
    models = ROOT / "tests" / "model"
    source = "".join(
        (models / name).read_text(encoding="utf-8") for name in ("chain_invariants.py", "chain_world.py")
    )
    checked = set(re.findall(r'Violation\(\s*"(\w+)"', source)) - {"Assertion"}
    rows = re.findall(r"^\| ([\w, ]+) \|.*\| chain model \|$", PAGE, re.MULTILINE)
    # Invariants of the ledger that also hold for the log, in the same words.
    shared = {"NoTruncation", "FailedMeansAbsent"}
    assert {name for row in rows for name in row.split(", ")} == checked - shared


def test_every_schedule_that_is_played_is_on_the_page() -> None:
    source = (ROOT / "tests" / "scenarios" / "test_schedules.py").read_text(encoding="utf-8")
    played = set(re.findall(r'^        "(T\d\d)",$', source, re.MULTILINE))
    assert len(played) >= 22
    for name in played:
        (row,) = re.findall(rf"^\| {name} \|.*$", PAGE, re.MULTILINE)
        assert "Not built yet" not in row, name


def test_whatever_comments_and_mutants_cite_is_on_the_page() -> None:
    cited: set[str] = set()
    sources = [*(ROOT / "ledgerlog").rglob("*.py"), *(ROOT / "bookie").rglob("*.py")]
    for path in [*sources, *(ROOT / "tests").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        cited.update(re.findall(r"\b(?:T\d\d|C0\d|D\d{1,2}|R-B\d|A\.\d)\b", text))
        cited.update(f"rule {number}" for number in re.findall(r"\brule (\d{1,2})\b", text))
    defined = set(re.findall(r"^\| ((?:T|C|D)\d+) \|", PAGE, re.MULTILINE))
    defined |= {f"rule {number}" for number in re.findall(r"^\| (\d{1,2}) \|", PAGE, re.MULTILINE)}
    defined |= set(re.findall(r"^#+ ([AD][.\d]+\d)\b", PAGE, re.MULTILINE))
    defined |= set(re.findall(r"\*\*(R-B\d)\*\*", PAGE))
    assert len(cited) > 60
    assert sorted(cited - defined) == []
