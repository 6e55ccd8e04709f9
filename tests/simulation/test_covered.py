"""The table of what seeds run (``tests.simulation.covered``)."""

from __future__ import annotations

import pytest

from tests.simulation.covered import EXCLUDED, ROOMS, ROOT, files_of, lines_in_functions


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_files_that_exist(room: str) -> None:
    assert files_of(room)


def test_only_lines_in_functions_count() -> None:
    source = "import os\n\n\ndef first(\n    a: int,\n) -> int:\n    if a:\n        return 1\n    return 2\n"
    assert lines_in_functions(source) == {7, 8, 9}


def test_an_excluded_function_does_not_count() -> None:
    source = "class A:\n    def first(self):\n        return 1\n\n    def second(self):\n        return 2\n"
    assert lines_in_functions(source, ["A.first"]) == {6}
    assert lines_in_functions(source, ["*"]) == set()
    with pytest.raises(AssertionError, match="no function"):
        lines_in_functions(source, ["A.third"])


@pytest.mark.parametrize("path", EXCLUDED)
def test_what_is_excluded_is_in_a_room_and_has_a_reason(path: str) -> None:
    assert any(ROOT / path in files_of(room) for room in ROOMS)
    assert all(EXCLUDED[path].values())
    lines_in_functions((ROOT / path).read_text(), EXCLUDED[path])
