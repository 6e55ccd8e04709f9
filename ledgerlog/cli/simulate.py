"""``ledgerlog simulate``: the whole system under seeded faults, seed after seed.

Each seed is a cluster of its own in simulated time (``ledgerlog.testing.workload``): leaders that contend for
a log while processes die, links break and disks fail, then the healing, then the judgement. A line per seed,
a summary at the end. A seed that fails prints what was violated and the last events; it fails again with
``--seeds N``, and has the same trace hash everywhere.

A batch of at least ``VACUITY_RUNS`` seeds in which too little happened (nothing acknowledged, nobody deposed,
nothing torn) proves nothing and fails as well.
"""

from __future__ import annotations

import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
import click

from ledgerlog.cli.options import json_option, parsed
from ledgerlog.cli.output import print_json, print_line, progress_bar
from ledgerlog.errors import InvalidArgument

if TYPE_CHECKING:
    from ledgerlog.testing.workload import Report

__all__ = ["parse_seeds", "simulate"]

VACUITY_RUNS = 50
"""A smaller batch may lack something by chance."""

TRACE_LINES = 30


def parse_seeds(text: str) -> range:
    """``A:B`` is the seeds from A up to and without B; ``N`` is that one. InvalidArgument."""
    first, colon, last = text.partition(":")
    if not (first.isascii() and first.isdigit()) or (colon and not (last.isascii() and last.isdigit())):
        raise InvalidArgument(f"{text!r} is not a range of seeds: A:B, or one number")
    seeds = range(int(first), int(last) if colon else int(first) + 1)
    if not seeds:
        raise InvalidArgument(f"{text!r} has no seeds: A:B goes from A up to and without B")
    return seeds


@click.command("simulate")
@click.option(
    "--seeds",
    required=True,
    callback=parsed(parse_seeds),
    help="A:B, from A up to and without B, or one seed.",
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first seed that fails.")
@json_option
def simulate(seeds: range, fail_fast: bool, as_json: bool) -> None:
    """Run the whole system under seeded faults, and check what it promised."""
    # Here, because every other command would wait for it to be loaded.
    from ledgerlog.testing.workload import run_seed

    reports: list[Report] = []
    with progress_bar("simulating", len(seeds)) as bar:
        for seed in seeds:
            report = run_seed(seed)
            reports.append(attrs.evolve(report, trace=[]))
            if as_json:
                print_json(line_of(report))
            elif not report.is_ok or not bar.is_shown:
                print_line(text_of(report))
            if not report.is_ok:
                _explain(report)
            bar.move_to(len(reports))
            if fail_fast and not report.is_ok:
                break
    summary = summary_of(reports)
    if as_json:
        print_json(summary)
    else:
        for line in summary_lines(summary):
            print_line(line)
    failed = summary["failed"]
    if failed:
        again = " ".join(map(str, failed[:10]))
        raise click.ClickException(f"{len(failed)} of {len(reports)} seeds failed: {again}")
    if summary["lacking"]:
        raise click.ClickException(f"the batch proves too little: {'; '.join(summary['lacking'])}")


def line_of(report: Report) -> dict[str, Any]:
    """A seed, for a program."""
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
        "checks": sum(report.checks.values()),
        "failure": None if report.failure is None else f"{type(report.failure).__name__}: {report.failure}",
    }


def text_of(report: Report) -> str:
    """A seed, for a person."""
    return (
        f"seed {report.seed}: {'ok' if report.is_ok else 'FAILED'}, trace {report.trace_hash}, "
        f"{report.events} events, {sum(report.faults.values())} faults, "
        f"{report.counts.get('acked', 0)} acknowledged, {report.counts.get('takeovers', 0)} takeovers, "
        f"{report.simulated_s:.1f} s in {report.cpu_s:.2f} s"
    )


def _explain(report: Report) -> None:
    """What failed, on standard error."""
    failure = report.failure
    assert failure is not None
    lines = [f"seed {report.seed} failed; run it again with: ledgerlog simulate --seeds {report.seed}"]
    lines += [f"  {report.swarm}"]
    lines += [line.rstrip() for line in traceback.format_exception_only(failure)[:1]]
    if not isinstance(failure, AssertionError):
        lines += [line.rstrip() for line in traceback.format_exception(failure)][-12:]
    lines += ["last events:", *(f"  {line}" for line in report.trace[-TRACE_LINES:])]
    click.echo("\n".join(lines), err=True)


def summary_of(reports: list[Report]) -> dict[str, Any]:
    """All seeds together."""
    from ledgerlog.testing.workload import vacuity

    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
        counts.update(report.counts)
        checks.update(report.checks)
    slowest = max((report.counts.get("ms until writable", 0) for report in reports), default=0)
    del counts["ms until writable"]
    return {
        "seeds": len(reports),
        "failed": [report.seed for report in reports if not report.is_ok],
        "lacking": vacuity(reports) if len(reports) >= VACUITY_RUNS else [],
        "events": sum(report.events for report in reports),
        "simulated_s": round(sum(report.simulated_s for report in reports), 1),
        "cpu_s": round(sum(report.cpu_s for report in reports), 1),
        "worst_ms_until_writable": slowest,
        "faults": dict(sorted(faults.items())),
        "counts": dict(sorted(counts.items())),
        "checks": dict(sorted(checks.items())),
    }


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The summary, for a person."""

    def spelled(numbers: dict[str, int]) -> str:
        return ", ".join(f"{what} {count:,}" for what, count in numbers.items())

    return [
        f"{summary['seeds']} seeds, {len(summary['failed'])} failed; {summary['events']:,} events; "
        f"{summary['simulated_s']:,.0f} simulated seconds in {summary['cpu_s']:,.0f} s of CPU time; "
        f"writable after at most {summary['worst_ms_until_writable']:,} ms",
        f"faults: {spelled(summary['faults'])}",
        f"counts: {spelled(summary['counts'])}",
        f"checks: {spelled(summary['checks'])}",
    ]
