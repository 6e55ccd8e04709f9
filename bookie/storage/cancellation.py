"""Which exceptions may be carried around a nursery.

An exception that the body of a nursery raises comes out of it in a group. Whoever opens a nursery that
its caller does not see takes the body's exception out and raises it again behind the nursery. A cancellation
must not go that way: its scope may be the nursery's own, and beyond that nobody would catch it.
"""

from __future__ import annotations

import trio


def holds_cancellation(error: BaseException) -> bool:
    """Whether it is a cancellation, or a group with one in it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)
