"""Draws the medians: throughput and CPU of each system under each load, as bars. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.peers.systems import Figures, Load, System

__all__ = ["draw"]


def draw(
    systems: Sequence[System],
    loads: Sequence[Load],
    medians: Mapping[tuple[str, Load], Figures],
    path: Path,
) -> None:
    """Write the picture. The suffix of ``path`` gives its format."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"  # Equal figures give an equal file.
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(
        3, len(loads), figsize=(3.2 * len(loads), 8.0), sharey=True, layout="constrained"
    )
    places = list(range(len(systems)))[::-1]
    kinds = (
        ("records_per_s", "records a second"),
        ("p99_ms", "p99, ms"),
        ("cpu_us", "CPU a record, µs, all processes"),
    )
    for row, (name, label) in zip(rows, kinds, strict=True):
        for axes, load in zip(row, loads, strict=True):
            values = [getattr(medians[system.name, load], name) for system in systems]
            colors = ["tab:blue" if system.name == "ledgerlog" else "0.65" for system in systems]
            bars = axes.barh(places, values, color=colors)
            axes.bar_label(bars, [f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values])
            axes.set_xscale("log")
            axes.margins(x=0.35)
            axes.set_yticks(places, [system.title for system in systems])
            axes.set_xlabel(f"{label} (log scale)")
            axes.set_xticks([], minor=True)
            axes.set_xticks([])
    for axes, load in zip(rows[0], loads, strict=True):
        axes.set_title(load.title)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
