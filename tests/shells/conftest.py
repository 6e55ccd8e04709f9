"""What the tests of shells share."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """trio's clock for a test that asks for it: it jumps when everybody waits, so that time-outs cost
    nothing. Not for tests with threads or sockets, which it does not wait for."""
    return MockClock(autojump_threshold=0)
