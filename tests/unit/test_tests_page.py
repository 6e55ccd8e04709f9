"""``tests/README.md`` is true: it names each folder of the tests, and everything that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text()


def test_the_map_names_each_folder_of_the_tests_and_no_other() -> None:
    folders = {path.name for path in TESTS.iterdir() if any(path.glob("*.py"))}
    assert set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.M)) == folders


def test_files_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|md))`", PAGE))
    assert named
    missing = {name for name in named if not any((base / name).exists() for base in (TESTS, TESTS.parent))}
    assert not missing


def test_fakes_that_the_page_names_are_there() -> None:
    named = re.findall(r"`(\w+)\.(open_cluster|Faulty\w+)`", PAGE)
    assert len(named) == 4
    for module, name in named:
        text = (TESTS.parent / "ledgerlog" / "testing" / f"{module}.py").read_text()
        assert re.search(rf"^(?:class|async def) {name}\b", text, re.M), f"{module}.{name}"
