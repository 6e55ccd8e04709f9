"""Fixtures that all tests of shells share."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """A clock that jumps ahead when every task waits, so time-outs cost nothing. Do not use it in tests with
    threads or sockets: it does not wait for them."""
    return MockClock(autojump_threshold=0)
