"""The table of what seeds run (``tests.simulation.covered``)."""

from __future__ import annotations

import pytest

from tests.simulation.covered import ROOMS, files_of, lines_in_functions


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_files_that_exist(room: str) -> None:
    assert files_of(room)


def test_only_lines_in_functions_count() -> None:
    source = "import os\n\n\ndef first(\n    a: int,\n) -> int:\n    if a:\n        return 1\n    return 2\n"
    assert lines_in_functions(source) == {7, 8, 9}
