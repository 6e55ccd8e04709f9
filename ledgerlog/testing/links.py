"""The properties of simulated links between hosts, and the current faults of one link."""

from __future__ import annotations

import attrs

__all__ = ["Link", "LinkQuality"]


@attrs.frozen(kw_only=True)
class LinkQuality:
    """How links behave while no fault is injected. Pass a ``LinkQuality`` as ``quality`` to ``simulate``.

    A share is a fraction from 0 to 1. Every choice is drawn from the run's seed.
    """

    latency_s: tuple[float, float] = (0.0001, 0.001)
    """The shortest and the longest latency of a piece of data, in seconds."""
    tail_share: float = 0.01
    """The share of pieces that arrive late."""
    tail_s: float = 0.02
    """The longest additional latency of a late piece, in seconds."""
    cut_share: float = 0.1
    """The share of sends that are cut into several pieces. Each piece has its own latency."""
    short_read_share: float = 0.05
    """The share of receives that return fewer bytes than have arrived."""


@attrs.define(eq=False)
class Link:
    """One direction between two hosts."""

    source: str
    target: str
    is_blocked: bool = False
    slow: float = 1.0
    """The factor for all latencies."""
    bytes_per_s: float | None = None
    """The bandwidth. None: unlimited."""
    damaged_share: float = 0.0
    """The share of sends in which one bit is flipped on the way, from 0 to 1."""
