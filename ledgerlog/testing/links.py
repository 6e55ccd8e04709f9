"""What simulated links between hosts are like, and what is wrong with one of them now."""

from __future__ import annotations

import attrs

__all__ = ["Link", "LinkQuality"]


@attrs.frozen(kw_only=True)
class LinkQuality:
    """What links are like when nothing is wrong."""

    latency_s: tuple[float, float] = (0.0001, 0.001)
    tail_share: float = 0.01
    """So many of the pieces take longer:"""
    tail_s: float = 0.02
    """by up to this."""
    cut_share: float = 0.1
    """So many of the sends are cut into pieces that travel by themselves."""
    short_read_share: float = 0.05
    """So many of the receives get less than there is."""


@attrs.define(eq=False)
class Link:
    """One direction between two hosts."""

    source: str
    target: str
    is_blocked: bool = False
    slow: float = 1.0
    """Latencies are this much longer."""
    bytes_per_s: float | None = None
    """None: as many as one likes."""
