"""A picture of ``bench write``: throughput and latencies of each run, as bars. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledgerlog.cli.bench_write import WriteRun
from ledgerlog.errors import InvalidArgument
from ledgerlog.optional_packages import how_to_install, is_installed

__all__ = ["check_can_plot", "plot_writes"]


def check_can_plot() -> None:
    """Raise InvalidArgument unless matplotlib is installed. Call it before the runs."""
    if not is_installed("matplotlib"):
        raise InvalidArgument(
            f"--plot needs matplotlib, which is not installed: {how_to_install('matplotlib')}"
        )


def plot_writes(runs: Sequence[WriteRun], path: Path) -> None:
    """Write the picture. The suffix of ``path`` gives its format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [f"{run.mode}\n{run.size} B" for run in runs]
    places = range(len(runs))
    figure, (speed, delay) = pyplot.subplots(2, 1, figsize=(max(6.0, 1.3 * len(runs)), 8.0), sharex=True)
    speed.bar(places, [run.records_per_s for run in runs], color="tab:blue")
    speed.set_yscale("log")
    speed.set_ylabel("records/s")
    speed.set_title(f"ledgerlog, {runs[0].api} API, {runs[0].replication}")
    for shift, (name, color) in enumerate((("p50_ms", "0.7"), ("p99_ms", "0.45"), ("p999_ms", "0.2"))):
        delay.bar(
            [place + 0.27 * (shift - 1) for place in places],
            [getattr(run, name) for run in runs],
            width=0.25,
            color=color,
            label=name.removesuffix("_ms"),
        )
    delay.set_yscale("log")
    delay.set_ylabel("ms to the acknowledgement")
    delay.set_xticks(list(places), labels)
    delay.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
