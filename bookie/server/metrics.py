"""Reads the metrics of a bookie: the figures of its INFO reply, and figures that INFO does not have."""

from __future__ import annotations

from collections.abc import Iterator

from bookie.server.node import BookieNode
from bookie.server.shared import REFUSED
from ledgerlog.metrics import families as f
from ledgerlog.metrics.families import BOOKIE_FIGURES, INFO_SUMS, Measurement

__all__ = ["bookie_measurements"]


def bookie_measurements(node: BookieNode) -> Iterator[Measurement]:
    """Yield the measurements of a bookie."""
    yield Measurement(f.BOOKIE_INFO, 1, (node.bookie_id, node.cookie.cluster))
    yield Measurement(f.BOOKIE_REGISTERED, int(node.is_registered))
    yield Measurement(f.BOOKIE_SYNC_SECONDS, node.engine.sync_s)
    for path, space in node.disk_watch.spaces.items():
        yield Measurement(f.BOOKIE_DISK_BYTES, space.total, (path,))
        yield Measurement(f.BOOKIE_DISK_FREE_BYTES, space.free, (path,))
    for name, value in node.server.figures().items():
        if name.startswith(REFUSED):
            yield Measurement(f.BOOKIE_REFUSED, value, (name.removeprefix(REFUSED),))
        elif name not in INFO_SUMS:
            yield Measurement(BOOKIE_FIGURES[name], value)
