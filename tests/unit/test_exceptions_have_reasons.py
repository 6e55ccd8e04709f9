"""A comment that tells a checker to look away must give a reason, next to it.

Tests must not use such comments for the type checker at all, because it does not check tests.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("ledgerlog", "bookie", "pyspark_ledgerlog", "pyspark_ledgeraudit", "examples")

NOQA = re.compile(r"#.*\bnoqa\b")
REASONED_NOQA = re.compile(r"# (ruff: )?noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)*( \(.+\)|  # .+)$")
IGNORE = re.compile(r"# type: ignore")
REASONED_IGNORE = re.compile(r"# type: ignore\[[a-z-]+(, ?[a-z-]+)*\]  # .+$")


def lines(folder: str) -> list[tuple[str, str]]:
    """Return every line, with its file and number."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path != Path(__file__):
            text = path.read_text(encoding="utf-8").splitlines()
            found += [(f"{path.relative_to(ROOT)}:{number}", line) for number, line in enumerate(text, 1)]
    return found


@pytest.mark.parametrize("folder", [*PRODUCT, "tests"])
def test_every_noqa_names_its_rule_and_its_reason(folder: str) -> None:
    assert [at for at, line in lines(folder) if NOQA.search(line) and not REASONED_NOQA.search(line)] == []


@pytest.mark.parametrize("folder", PRODUCT)
def test_every_type_that_is_ignored_has_a_reason(folder: str) -> None:
    assert [
        at for at, line in lines(folder) if IGNORE.search(line) and not REASONED_IGNORE.search(line)
    ] == []


def test_tests_do_not_talk_to_a_type_checker_that_does_not_look_at_them() -> None:
    assert [at for at, line in lines("tests") if IGNORE.search(line)] == []


def test_every_skip_says_why() -> None:
    assert [
        at for at, line in lines("tests") if re.search(r"pytest\.skip\(\s*\)|mark\.skip\b(?!if)", line)
    ] == []


def test_every_warning_that_is_let_through_has_a_comment_above_it() -> None:
    found = lines("tests")
    bare = [
        at
        for (_, above), (at, line) in itertools.pairwise(found)
        if "mark.filterwarnings" in line and not above.lstrip().startswith("#")
    ]
    assert bare == []
