"""The example of a user's service in the simulator does what it says, and would notice if it did not."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ledgerlog.log.writer import LogWriter
from ledgerlog.model.ids import Position
from ledgerlog.model.record import Ack

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated_service.py"


def test_the_example_is_short_and_survives_ten_seeds() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(EXAMPLE))["test_no_seat_is_given_away_twice_and_none_is_lost"]()


def test_the_example_notices_a_log_that_confirms_what_it_does_not_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = LogWriter.append
    calls = 0

    async def careless(self: LogWriter, data: bytes, **options: Any) -> Ack:
        nonlocal calls
        calls += 1
        if calls == 5:
            return Ack(4, Position(0, 4, 0), self.epoch)
        return await original(self, data, **options)

    monkeypatch.setattr(LogWriter, "append", careless)
    with pytest.raises(AssertionError):
        runpy.run_path(str(EXAMPLE))["test_no_seat_is_given_away_twice_and_none_is_lost"]()
