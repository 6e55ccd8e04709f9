"""``python -m tools.release_check``: what a release needs and no change can wait for, one after the other.

    simulation   seeds of the whole system, for twelve hours; its summary says how much time was simulated
    nemesis      real processes for an hour, with what machines do to them
    people       real processes for an hour, with what operators do to them
    fuzz         ten minutes for each decoder
    mutants      every known bug is put back, and tests must notice it
    hostile      what each attack costs a neighbour, against one and three bookies (it only measures)

The steps run on the tree as it is. Each writes its output to ``build/release-check/``. The
report goes to ``docs/RELEASE_CHECK.md``, for you to commit. A step that fails does not keep the others from
running. ``--scale 0.01`` shortens every step that has a duration, so that you can try the command; the report
then says so.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import click

from tools.release import ROOT, git

OUTPUT = ROOT / "build" / "release-check"
REPORT = ROOT / "docs" / "RELEASE_CHECK.md"
_LINES_KEPT = 12


@attrs.frozen
class Step:
    """One step of the check."""

    name: str
    proves: str
    command: Callable[[float], Sequence[str]]
    """By the scale, the arguments for Python."""


STEPS = (
    Step(
        "simulation",
        "the whole system keeps its promises under seeded faults",
        lambda scale: ("-m", "ledgerlog", "simulate", "--hours", f"{12 * scale:g}"),
    ),
    Step(
        "nemesis",
        "real processes lose nothing acknowledged to faults of machines",
        lambda scale: ("-m", "tests.nemesis", "--minutes", f"{60 * scale:g}"),
    ),
    Step(
        "people",
        "real processes lose nothing acknowledged to what operators do",
        lambda scale: ("-m", "tests.nemesis", "--people", "--minutes", f"{60 * scale:g}"),
    ),
    Step(
        "fuzz",
        "no bytes make a decoder fail in another way than its own",
        lambda scale: ("-m", "tests.fuzz", "--seconds", f"{max(1, round(600 * scale))}"),
    ),
    Step("mutants", "the tests notice every known bug", lambda _: ("-m", "tests.mutants")),
    Step(
        "hostile",
        "what each attack costs a neighbour",
        lambda scale: ("-m", "tests.bench.hostile", "--seconds", f"{max(2, round(30 * scale))}"),
    ),
)


@attrs.frozen
class Done:
    """A step that has ended."""

    step: Step
    arguments: Sequence[str]
    status: int
    seconds: float
    said: Sequence[str]
    """Its last lines."""


def run(step: Step, scale: float, output: Path) -> Done:
    """Run a step to its end.

    Args:
        step: The step.
        scale: The share of its full duration.
        output: The directory for its output.

    Cancelling: a signal ends the step's process, too, if it comes from a terminal.
    """
    arguments = tuple(step.command(scale))
    path = output / f"{step.name}.log"
    began = time.monotonic()
    with path.open("wb") as file:
        status = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return Done(step, arguments, status, time.monotonic() - began, lines[-_LINES_KEPT:])


def report(commit: str, scale: float, done: Sequence[Done]) -> str:
    """Return the page that says what was run and what came of it.

    Args:
        commit: The commit that was checked.
        scale: The share of the full durations.
        done: The steps, in their order.
    """
    parts = [
        "# The last check before a release",
        "`make release-check` wrote this page. It runs what takes too long for every change.",
        f"Commit {commit}, {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores."
        + (
            "" if scale == 1 else f" **The steps ran for {scale:g} of their full time, so this is no check.**"
        ),
        "| step | shows that | took | result |\n|---|---|---|---|\n"
        + "\n".join(
            f"| {each.step.name} | {each.step.proves} | {each.seconds / 60:.0f} min | "
            f"{'passed' if each.status == 0 else f'**failed** with {each.status}'} |"
            for each in done
        ),
    ]
    for each in done:
        said = "\n".join(each.said) or "nothing"
        parts.append(f"## {each.step.name}\n\n`python {' '.join(each.arguments)}`\n\n```text\n{said}\n```")
    return "\n\n".join(parts) + "\n"


@click.command(help=__doc__ and __doc__.split("\n", 1)[0].partition(": ")[2])
@click.option(
    "--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="The share of the full time."
)
@click.option("--only", help="The names of steps, separated by commas. Default: all.")
@click.option(
    "--report", "report_path", type=click.Path(path_type=Path), default=REPORT, help="The page to write."
)
def main(scale: float, only: str | None, report_path: Path) -> None:
    """Run the steps and write the report. Exit 1 if a step failed."""
    names = [step.name for step in STEPS] if only is None else only.split(",")
    if unknown := sorted({*names} - {step.name for step in STEPS}):
        raise click.UsageError(f"there is no step {', '.join(unknown)}")
    commit = f"`{git('rev-parse', 'HEAD').strip()}`"
    if git("status", "--porcelain"):
        commit += " with changes that are in no commit"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    done = []
    for step in STEPS:
        if step.name in names:
            click.echo(f"{step.name}: {step.proves}")
            done.append(run(step, scale, OUTPUT))
            click.echo(f"  {'passed' if done[-1].status == 0 else 'FAILED'} after {done[-1].seconds:.0f} s")
            report_path.write_text(report(commit, scale, done), encoding="utf-8")
    if any(each.status for each in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
