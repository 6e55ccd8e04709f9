"""The example of a user's service in the simulator does what it says, and would notice if it did not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ledgerlog.testing import NotLinearizable

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated_service.py"
TEST = "test_no_seat_is_given_away_twice"


def test_the_example_is_short_and_survives_ten_seeds() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
    runpy.run_path(str(EXAMPLE))[TEST]()


def test_an_answer_before_the_record_is_durable_is_found_with_the_faults_that_it_takes(
    tmp_path: Path,
) -> None:
    """The bug that docs/SIMULATION.md shows."""
    right = EXAMPLE.read_text(encoding="utf-8")
    wrong = right.replace("await writer.append(", "await writer.submit(")
    assert wrong != right
    planted = tmp_path / "planted.py"
    planted.write_text(wrong, encoding="utf-8")
    with pytest.raises(NotLinearizable) as caught:
        runpy.run_path(str(planted))[TEST]()
    said = "\n".join(caught.value.__notes__)
    assert "Drawn faults before it:" in said
    assert "drawn faults (run it with only=" in said
