"""What the scenarios on whole clusters share."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """trio's clock, which jumps when everybody waits: time-outs cost nothing."""
    return MockClock(autojump_threshold=0)
