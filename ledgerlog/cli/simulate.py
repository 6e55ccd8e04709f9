"""``ledgerlog simulate``: the whole system under seeded faults, seed after seed.

Each seed is a separate cluster in simulated time (``ledgerlog.testing.workload``). Logs, ledgers and services
work while processes die, links break and disks fail. Then the faults heal, and the promises are checked. The
command prints a line for each seed and a summary at the end. If a seed fails, it prints the violation, the
faults that happened and the last events. With ``--seeds N`` the seed fails again, with the same trace hash on
every machine. ``--shrink`` runs it with fewer and fewer faults and prints the smallest run that still fails
in the same way; ``--only`` runs that one again.

``--small`` and ``--long`` select how long a run is (``ledgerlog.testing.swarm``).

``--jobs`` runs seeds in several processes at once (``simulate_workers``). ``--hours`` does so on all cores,
seed after seed, until the time is over or a signal comes, and then prints the summary. After a signal the
exit code is 128 and the signal's number, because not everything has run that you asked for. If a seed failed,
it is 1 in any case.

A batch of at least ``VACUITY_RUNS`` seeds also fails if too little happened in it: for example, if nothing
was acknowledged, no leader was deposed, or no write was torn. Such a batch would pass even if the system were
wrong.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from ledgerlog.cli.options import json_option, parsed
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import Interrupted, interruptible, run
from ledgerlog.errors import InvalidArgument
from ledgerlog.progress_bar import progress_bar

if TYPE_CHECKING:
    from ledgerlog.testing.swarm import Size
    from ledgerlog.testing.workload import Report

__all__ = ["parse_seeds", "simulate"]

VACUITY_RUNS = 50
"""In a smaller batch, some events may be missing by chance."""

BATCH_SEEDS = {"small": 40, "full": 10, "long": 1}
"""By the size of runs, how many seeds each of several processes runs: enough to make the cost of its start
small."""

TRACE_LINES = 30


def parse_seeds(text: str) -> range:
    """Parse ``A:B`` (the seeds from A on, before B) or ``N`` (one seed). Otherwise raise InvalidArgument."""
    first, colon, last = text.partition(":")
    if not (first.isascii() and first.isdigit()) or (colon and not (last.isascii() and last.isdigit())):
        raise InvalidArgument(f"{text!r} is not a range of seeds: A:B, or one number")
    seeds = range(int(first), int(last) if colon else int(first) + 1)
    if not seeds:
        raise InvalidArgument(f"{text!r} has no seeds: A:B goes from A to B - 1")
    return seeds


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse numbers of faults, such as ``3,17``. InvalidArgument: the text has another form."""
    numbers = text.split(",") if text else []
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidArgument(f"{text!r} is not a list of faults: numbers with commas between them")
    return tuple(map(int, numbers))


@click.command("simulate")
@click.option(
    "--seeds",
    default=None,
    callback=parsed(parse_seeds),
    help="The seeds A:B, from A up to but not including B, or one seed. With --hours: the first seed.",
)
@click.option("--small", is_flag=True, help="Short runs: a few seconds and a few dozen records each.")
@click.option(
    "--long",
    "is_long",
    is_flag=True,
    help="Long runs: 4 to 24 simulated hours each. Faults last for up to four minutes.",
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first seed that fails.")
@click.option(
    "--shrink", "shrinks", is_flag=True, help="If a seed fails, find a smaller set of faults that also fails."
)
@click.option(
    "--only",
    default=None,
    callback=parsed(parse_numbers),
    help="Inject only the faults of the seed with these numbers, for example 3,17.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    default=None,
    help="How many processes run seeds at once. Default: 1, or with --hours one per core.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    default=None,
    help="Run seeds for this many hours, or until a signal arrives. Then print the summary.",
)
@json_option
def simulate(
    seeds: range | None,
    small: bool,
    is_long: bool,
    fail_fast: bool,
    shrinks: bool,
    only: tuple[int, ...] | None,
    jobs: int | None,
    hours: float | None,
    as_json: bool,
) -> None:
    """Run the whole system under seeded faults, and check that it keeps its promises."""
    if small and is_long:
        raise click.UsageError("give --small or --long, not both")
    size_name = "small" if small else "long" if is_long else "full"
    if seeds is None:
        if hours is None:
            raise click.UsageError("give --seeds or --hours")
        seeds = range(1)
    if hours is not None or (jobs is not None and jobs > 1):
        if only is not None:
            raise click.UsageError("--only repeats one run of one seed: leave out --jobs and --hours")
        total = Total(size_name)
        began = time.monotonic()
        interrupted: Interrupted | None = None
        try:
            _run_many(seeds, total, jobs, hours, size_name, fail_fast, shrinks, as_json)
        except Interrupted as signal:
            interrupted = signal
        _conclude(total, time.monotonic() - began, is_whole=interrupted is None, as_json=as_json)
        if interrupted is not None:
            raise interrupted
        return
    # Imported here, so that other commands do not wait for it.
    from ledgerlog.testing.swarm import Size
    from ledgerlog.testing.workload import run_seed

    if only is not None and len(seeds) != 1:
        raise click.UsageError("--only selects faults of one seed")
    size = Size(size_name)
    total = Total(size_name)
    began = time.monotonic()
    with interruptible() as check, progress_bar("simulating", len(seeds)) as bar:
        for seed in seeds:
            report = run_seed(seed, size=size, only=only)
            check()
            line = line_of(report)
            total.add(line)
            if as_json:
                print_json(line)
            elif not report.is_ok or not bar.is_shown:
                print_line(text_of(line))
            if not report.is_ok:
                _explain(report, only)
                if shrinks:
                    _shrink(report, size, check)
            bar.move_to(total.seeds)
            if fail_fast and not report.is_ok:
                break
    _conclude(total, time.monotonic() - began, is_whole=only is None, as_json=as_json)


def _run_many(
    seeds: range,
    total: Total,
    jobs: int | None,
    hours: float | None,
    size_name: str,
    fail_fast: bool,
    shrinks: bool,
    as_json: bool,
) -> None:
    """Run the seeds in several processes, until they are done or the hours are over.

    Raises:
        Interrupted: A signal came first.
    """
    import trio

    from ledgerlog.cli.simulate_workers import run_in_processes

    options = (("--fail-fast", fail_fast), ("--shrink", shrinks))
    chosen = [*_size_options(size_name), *(name for name, is_given in options if is_given)]
    jobs = jobs or len(os.sched_getaffinity(0))
    is_endless = hours is not None and len(seeds) == 1
    batch_seeds = BATCH_SEEDS[size_name]
    if not is_endless:
        batch_seeds = min(batch_seeds, -(-len(seeds) // jobs))

    def batches() -> Iterator[range]:
        for first in count(seeds.start, batch_seeds):
            if not is_endless and first >= seeds.stop:
                return
            yield range(first, first + batch_seeds if is_endless else min(first + batch_seeds, seeds.stop))

    with progress_bar("simulating", None if is_endless else len(seeds)) as bar:

        def on_seed(line: dict[str, Any]) -> bool:
            total.add(line)
            if as_json:
                print_json(line)
            elif not line["ok"] or not bar.is_shown:
                print_line(text_of(line))
            bar.move_to(total.seeds)
            return bool(line["ok"]) or not fail_fast

        async def body() -> None:
            with trio.move_on_after(float("inf") if hours is None else hours * 3600):
                await run_in_processes(batches(), jobs=jobs, options=chosen, on_seed=on_seed)

        run(body)


def _conclude(total: Total, wall_s: float, *, is_whole: bool, as_json: bool) -> None:
    """Print the summary. Raise ClickException if a seed failed, or if too little happened."""
    summary = total.summary(wall_s, is_whole=is_whole)
    if as_json:
        print_json(summary)
    else:
        for line in summary_lines(summary):
            print_line(line)
    failed = summary["failed"]
    if failed:
        again = " ".join(map(str, failed[:10]))
        raise click.ClickException(f"{len(failed)} of {total.seeds} seeds failed: {again}")
    if summary["lacking"]:
        raise click.ClickException(f"the batch is too small to prove much: {'; '.join(summary['lacking'])}")


def line_of(report: Report) -> dict[str, Any]:
    """Return a seed's report as a JSON object."""
    return {
        "seed": report.seed,
        "trace_hash": report.trace_hash,
        "events": report.events,
        "faults": sum(report.faults.values()),
        "ok": report.is_ok,
        "simulated_s": round(report.simulated_s, 3),
        "cpu_s": round(report.cpu_s, 3),
        "acknowledged": report.counts.get("acked", 0),
        "takeovers": report.counts.get("takeovers", 0),
        "faults_by_kind": report.faults,
        "counts": report.counts,
        "checks": sum(report.checks.values()),
        "checks_by_rule": report.checks,
        "failure": None if report.failure is None else f"{type(report.failure).__name__}: {report.failure}",
    }


def text_of(line: dict[str, Any]) -> str:
    """Return the line of a seed, as ``line_of`` makes it, for a person."""
    return (
        f"seed {line['seed']}: {'ok' if line['ok'] else 'FAILED'}, trace {line['trace_hash']}, "
        f"{line['events']} events, {line['faults']} faults, "
        f"{line['acknowledged']} acknowledged, {line['takeovers']} takeovers, "
        f"{line['simulated_s']:.1f} s in {line['cpu_s']:.2f} s"
    )


def _size_options(size_name: str) -> list[str]:
    """Return the options that select a size."""
    return [] if size_name == "full" else [f"--{size_name}"]


def _command_of(report: Report, only: tuple[int, ...] | None) -> str:
    size_options = _size_options(report.swarm.size.value)
    command = " ".join(("ledgerlog simulate --seeds", str(report.seed), *size_options))
    if only is not None:
        command += f" --only {','.join(map(str, only)) or repr('')}"
    return command


def _explain(report: Report, only: tuple[int, ...] | None) -> None:
    """Print on standard error what failed."""
    failure = report.failure
    assert failure is not None
    lines = [f"seed {report.seed} failed; run it again with: {_command_of(report, only)}"]
    lines += [f"  {report.swarm}"]
    lines += [line.rstrip() for line in traceback.format_exception_only(failure)[:1]]
    if not (isinstance(failure, AssertionError) and str(failure)):  # A broken rule says all itself.
        lines += [line.rstrip() for line in traceback.format_exception(failure)][-12:]
    lines += ["faults:", *(f"  {line}" for line in report.told)]
    lines += ["last events:", *(f"  {line}" for line in report.trace[-TRACE_LINES:])]
    click.echo("\n".join(lines), err=True)


def _shrink(report: Report, size: Size, check: Callable[[], None]) -> None:
    """Print on standard error the faults that the failure needs. Raise the errors of ``check`` after a
    run."""
    from ledgerlog.testing.shrink import shrink
    from ledgerlog.testing.workload import run_seed

    def run(numbers: tuple[int, ...]) -> Report:
        again = run_seed(report.seed, size=size, only=numbers)
        check()
        return again

    def tell(attempts: int, left: int) -> None:
        click.echo(f"  {left} of {len(report.plan)} faults are left after {attempts} runs", err=True)

    click.echo(f"shrinking seed {report.seed}:", err=True)
    shrunk = shrink(report, size=size, on_attempt=tell, run=run)
    how = "each of them is needed" if shrunk.is_minimal else "more might be left out"
    click.echo(f"it takes {len(shrunk.numbers)} faults; {how}", err=True)
    _explain(shrunk.result, shrunk.numbers)


class Total:
    """The sums over all seeds. It keeps only numbers of each run, so a long soak needs little memory.

    Args:
        size_name: The size of the runs.
    """

    def __init__(self, size_name: str) -> None:
        self._size_name = size_name
        self.seeds = 0
        self.failed: list[int] = []
        self._events = 0
        self._simulated_s = 0.0
        self._cpu_s = 0.0
        self._slowest_ms = 0
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._checks: Counter[str] = Counter()

    def add(self, line: dict[str, Any]) -> None:
        """Add the line of a seed, as ``line_of`` makes it."""
        self.seeds += 1
        if not line["ok"]:
            self.failed.append(line["seed"])
        self._events += line["events"]
        self._simulated_s += line["simulated_s"]
        self._cpu_s += line["cpu_s"]
        counts = dict(line["counts"])
        self._slowest_ms = max(self._slowest_ms, counts.pop("worst ms to converge", 0))
        self._counts.update(counts)
        self._faults.update(line["faults_by_kind"])
        self._checks.update(line["checks_by_rule"])

    def summary(self, wall_s: float, *, is_whole: bool) -> dict[str, Any]:
        """Return the numbers. With ``is_whole``, also name the events that are missing for a proof."""
        from ledgerlog.testing.swarm import Size
        from ledgerlog.testing.workload import lacking

        size, is_enough = Size(self._size_name), is_whole and self.seeds >= VACUITY_RUNS
        numbers = self._counts + self._faults + self._checks
        return {
            "seeds": self.seeds,
            "failed": self.failed,
            "lacking": lacking(numbers, self.seeds, size) if is_enough else [],
            "events": self._events,
            "simulated_s": round(self._simulated_s, 1),
            "cpu_s": round(self._cpu_s, 1),
            "wall_s": round(wall_s, 1),
            "simulated_s_per_cpu_s": round(self._simulated_s / self._cpu_s, 1) if self._cpu_s else None,
            "simulated_hours_per_wall_hour": round(self._simulated_s / wall_s, 1) if wall_s else None,
            "worst_ms_to_converge": self._slowest_ms,
            "faults": dict(sorted(self._faults.items())),
            "counts": dict(sorted(self._counts.items())),
            "checks": dict(sorted(self._checks.items())),
        }


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return the summary as lines for a person."""

    def spelled(numbers: dict[str, int]) -> str:
        return ", ".join(f"{what} {count:,}" for what, count in numbers.items())

    return [
        f"{summary['seeds']} seeds, {len(summary['failed'])} failed; {summary['events']:,} events; "
        f"{summary['simulated_s']:,.0f} simulated seconds in {summary['cpu_s']:,.0f} s of CPU time "
        f"({summary['simulated_s_per_cpu_s'] or 0:,.1f} a second) and {summary['wall_s']:,.0f} s; whole "
        f"again after at most {summary['worst_ms_to_converge']:,} ms",
        f"faults: {spelled(summary['faults'])}",
        f"counts: {spelled(summary['counts'])}",
        f"checks: {spelled(summary['checks'])}",
    ]
