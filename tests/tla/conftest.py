"""What the tests of this folder share."""

from __future__ import annotations

import pytest

from tests.tla.tlc import NoTlc, find_tlc


@pytest.fixture(scope="session")
def tlc() -> None:
    """Skip where there is no TLC."""
    try:
        find_tlc()
    except NoTlc as missing:
        pytest.skip(str(missing))
