"""Shared fixtures of the scenarios on whole clusters."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """trio's clock that jumps when every task waits, so time-outs cost nothing."""
    return MockClock(autojump_threshold=0)
