from __future__ import annotations

from ledgerlog.testing.pytest_plugin import simulated

__all__ = ["simulated"]
