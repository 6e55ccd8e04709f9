"""The clock that measures ZooKeeper sessions.

This is the boot-time clock. It continues while the process is stopped or the machine sleeps, because a server
continues to count then. So a process that sleeps longer than its session finds the session over when it
wakes.
"""

from __future__ import annotations

import time

NS = 1_000_000_000


def boot_clock_ns() -> int:
    """Return nanoseconds since the machine's boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
