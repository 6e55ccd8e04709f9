"""``python -m tools.release_check``: what a release needs and no change can wait for, one after the other.

    simulation   seeds of the whole system, for an hour on all cores
    long         clusters that live for hours: together 24 simulated days and more
    nemesis      real processes for half an hour, with what machines do to them
    people       real processes for half an hour, with what operators do to them
    crashes      a bookie starts from three million states that crashes of its machine can leave
    fuzz         ten minutes for each decoder
    mutants      every known bug is put back, and tests must notice it
    hostile      what each attack costs a neighbour, against one and three bookies (it only measures)

The steps run on the tree as it is. A long step is several parts, each with seeds or a decoder of its own. If
a part uses one core, as many run at once as there are cores. Each part writes its output to
``build/release-check/``. The report goes to ``docs/RELEASE_CHECK.md``, for you to commit. A part that fails
does not keep the others from running.

You need not run everything at once, or on one machine. What has ended is kept in ``docs/RELEASE_CHECK.json``,
beside the report: commit both. ``--resume`` goes on and does not run again what has passed. What ran on
another commit counts only if ``bookie/`` and ``ledgerlog/`` were the same, and if the part's command was. If
a part failed and then passed, the page says so. Without ``--resume`` everything begins again.

``--scale 0.01`` shortens every step that has a duration, so that you can try the command; the report then
says so.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import attrs
import click

from tools.release import ROOT, git

OUTPUT = ROOT / "build" / "release-check"
REPORT = ROOT / "docs" / "RELEASE_CHECK.md"
_LINES_KEPT = 12
_PRODUCT = ("HEAD:bookie", "HEAD:ledgerlog")
_UNCOMMITTED = " with changes that are in no commit"


@attrs.frozen
class Step:
    """One step of the check."""

    name: str
    proves: str
    command: Callable[[float, int], Sequence[str]]
    """By the scale and the number of the part, the arguments for Python."""
    parts: int = 1
    environment: Callable[[float, int], Mapping[str, str]] = lambda scale, part: {}
    """By the scale and the number of the part, the variables to set."""
    at_once: int = 1
    """How many parts run at once."""


_CORES = os.cpu_count() or 1
_DECODERS = sorted(target.name for target in import_module("tests.fuzz.corpus").all_targets())
STEPS = (
    Step(
        "simulation",
        "the whole system keeps its promises under seeded faults",
        lambda scale, part: (
            *("-m", "ledgerlog", "simulate"),
            *("--hours", f"{scale / 2:g}", "--seeds", f"{(10 + part) * 1_000_000}"),
        ),
        parts=2,
    ),
    Step(
        "long",
        "clusters that live for hours keep their promises, too",
        lambda scale, part: (
            *("-m", "ledgerlog", "simulate", "--long", "--hours", "24"),
            # One seed would be the first of an endless row.
            *("--seeds", f"20000000:{20_000_000 + max(2, round(60 * scale))}"),
        ),
    ),
    Step(
        "nemesis",
        "real processes lose nothing acknowledged to faults of machines",
        lambda scale, part: (
            *("-m", "tests.nemesis"),
            *("--minutes", f"{30 * scale:g}", "--seed", f"{10 + part}"),
        ),
    ),
    Step(
        "people",
        "real processes lose nothing acknowledged to what operators do",
        lambda scale, part: (
            *("-m", "tests.nemesis", "--people"),
            *("--minutes", f"{30 * scale:g}", "--seed", f"{10 + part}"),
        ),
    ),
    Step(
        "crashes",
        "a bookie starts from every state that a crash can leave, and has all that it acknowledged",
        lambda scale, part: (
            *("-m", "pytest", "-q", "-s", "-m", "soak"),
            "tests/storage/test_crash_soak.py",
        ),
        parts=24,
        environment=lambda scale, part: {
            "CRASH_SOAK_STATES": f"{max(1, round(125_000 * scale))}",
            "CRASH_SOAK_SEED": f"{(10 + part) * 1_000_000}",
        },
        at_once=_CORES,
    ),
    Step(
        "fuzz",
        "no bytes make a decoder fail in another way than its own",
        lambda scale, part: (
            *("-m", "tests.fuzz", _DECODERS[part]),
            *("--seconds", f"{max(1, round(600 * scale))}"),
        ),
        parts=len(_DECODERS),
        at_once=_CORES,
    ),
    Step("mutants", "the tests notice every known bug", lambda scale, part: ("-m", "tests.mutants")),
    Step(
        "hostile",
        "what each attack costs a neighbour",
        lambda scale, part: ("-m", "tests.bench.hostile", "--seconds", f"{max(2, round(30 * scale))}"),
    ),
)


@attrs.frozen
class Done:
    """A part of a step that has ended."""

    step: str
    part: int
    commit: str
    arguments: Sequence[str]
    status: int
    seconds: float
    said: Sequence[str]
    """Its last lines."""
    machine: str
    """The Python and the number of cores that it ran on."""
    variables: Mapping[str, str] = attrs.field(factory=dict)
    failed: int = 0
    """How often it failed before."""

    def is_again(self, other: Done) -> bool:
        """Whether this is another attempt at the same part."""
        return (self.step, self.part) == (other.step, other.part)


@attrs.frozen
class Checked:
    """The parts that have ended, of one check."""

    product: str
    """The hashes of the trees that were checked: ``bookie/`` and ``ledgerlog/``."""
    scale: float
    """The share of the full durations."""
    done: list[Done] = attrs.field(factory=list)

    @classmethod
    def read(cls, path: Path, product: str, scale: float) -> Checked:
        """Return what an earlier run wrote to ``path``. Nothing counts if the product or the scale differ.

        Raises:
            click.ClickException: The file is not one that this command wrote.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            read = cls(found["product"], found["scale"], [Done(**each) for each in found["done"]])
        except FileNotFoundError:
            return cls(product, scale)
        except (ValueError, TypeError, KeyError) as cause:
            raise click.ClickException(f"{path} is damaged: {cause}. Remove it to begin again") from cause
        if (read.product, read.scale) == (product, scale):
            return read
        click.echo(f"{path} is about another product or scale. All steps begin again.")
        return cls(product, scale)

    def write(self, path: Path) -> None:
        """Write it for ``read``."""
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(attrs.asdict(self), indent=1), encoding="utf-8")
        beside.replace(path)

    def has_passed(self, step: Step, part: int) -> bool:
        """Whether this part has passed."""
        return any(each.part == part and each.status == 0 for each in self.of(step))

    def add(self, done: Done) -> None:
        """Add a part that has ended. It replaces an earlier attempt, and counts it if it failed."""
        failed = sum(each.failed + (each.status != 0) for each in self.done if each.is_again(done))
        self.done[:] = [each for each in self.done if not each.is_again(done)]
        self.done.append(attrs.evolve(done, failed=failed))

    def of(self, step: Step) -> list[Done]:
        """The parts of a step that have ended, in their order. If a part ran another command, it is none."""
        found = [
            each
            for each in self.done
            if each.step == step.name
            and each.part < step.parts
            and list(each.arguments) == list(step.command(self.scale, each.part))
            and each.variables == step.environment(self.scale, each.part)
        ]
        return sorted(found, key=lambda each: each.part)


def run(step: Step, part: int, commit: str, scale: float, output: Path) -> Done:
    """Run a part of a step to its end.

    Args:
        step: The step.
        part: The number of the part.
        commit: The commit that is checked.
        scale: The share of the step's full duration.
        output: The directory for its output.

    Cancelling: a signal ends the step's process, too, if it comes from a terminal.
    """
    arguments, variables = tuple(step.command(scale, part)), step.environment(scale, part)
    path = output / (f"{step.name}.log" if step.parts == 1 else f"{step.name}-{part + 1}.log")
    began = time.monotonic()
    with path.open("wb") as file:
        status = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    seconds = time.monotonic() - began
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    said = lines[-_LINES_KEPT:]
    return Done(step.name, part, commit, arguments, status, seconds, said, machine, variables)


def _results(step: Step, parts: Sequence[int], commit: str, scale: float) -> Iterator[Done]:
    """Run parts of a step, ``step.at_once`` at a time, and return each when it has ended."""
    with ThreadPoolExecutor(step.at_once) as pool:
        running = [pool.submit(run, step, part, commit, scale, OUTPUT) for part in parts]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            for future in running:  # After a signal, none of the others begins.
                future.cancel()


def report(checked: Checked) -> str:
    """Return the page that says what was run and what came of it."""
    commits = sorted({each.commit for step in STEPS for each in checked.of(step)})
    machines = sorted({each.machine for step in STEPS for each in checked.of(step)})
    is_whole = all(len(checked.of(step)) == step.parts for step in STEPS)
    notes = [
        "" if checked.scale == 1 else f"The steps ran for {checked.scale:g} of their full time.",
        "" if is_whole else "Not every part has run.",
        "The tree had changes that are in no commit."
        if any(_UNCOMMITTED in each for each in commits)
        else "",
    ]
    parts = [
        "# The last check before a release",
        "`make release-check` wrote this page. It runs what takes too long for every change.",
        f"Commit {', '.join(commits)}, {datetime.now(UTC):%Y-%m-%d}; {'; '.join(machines)}."
        + (f" **{' '.join(filter(None, notes))} So this is no check.**" if any(notes) else ""),
        "| step | shows that | took | result |\n|---|---|---|---|\n"
        + "\n".join(_row(step, checked.of(step)) for step in STEPS),
    ]
    for step in STEPS:
        for each in checked.of(step):
            title = step.name if step.parts == 1 else f"{step.name}, part {each.part + 1} of {step.parts}"
            said = "\n".join(each.said) or "nothing"
            command = " ".join((*map("=".join, each.variables.items()), "python", *each.arguments))
            parts.append(f"## {title}\n\n`{command}`\n\n```text\n{said}\n```")
    return "\n\n".join(parts) + "\n"


def _row(step: Step, done: Sequence[Done]) -> str:
    failed = [each for each in done if each.status != 0]
    again = sum(each.failed for each in done)
    passed = f"{len(done) - len(failed)} of {step.parts} parts passed"
    if not done:
        result = "not run"
    elif failed:
        result = f"**failed** with {failed[0].status}" + (f", {passed}" if step.parts > 1 else "")
    else:
        result = "passed" if len(done) == step.parts else passed
        result = f"**failed** {again} times, then {result}" if again else result
    minutes = sum(each.seconds for each in done) / 60
    return f"| {step.name} | {step.proves} | {minutes:.0f} min | {result} |"


@click.command(help=__doc__ and __doc__.split("\n", 1)[0].partition(": ")[2])
@click.option(
    "--scale", type=click.FloatRange(0, min_open=True), default=1.0, help="The share of the full time."
)
@click.option("--only", help="The names of steps, separated by commas. Default: all.")
@click.option("--resume", is_flag=True, help="Do not run again what has passed on this product.")
@click.option(
    "--report", "report_path", type=click.Path(path_type=Path), default=REPORT, help="The page to write."
)
def main(scale: float, only: str | None, resume: bool, report_path: Path) -> None:
    """Run the steps and write the report. Exit 1 if a part failed."""
    names = [step.name for step in STEPS] if only is None else only.split(",")
    if unknown := sorted({*names} - {step.name for step in STEPS}):
        raise click.UsageError(f"there is no step {', '.join(unknown)}")
    commit, product = f"`{git('rev-parse', 'HEAD').strip()}`", git("rev-parse", *_PRODUCT).strip()
    changed = [line[3:] for line in git("status", "--porcelain").splitlines()]
    if {*changed} - {str(path.relative_to(ROOT)) for path in (REPORT, REPORT.with_suffix(".json"))}:
        commit += _UNCOMMITTED
    OUTPUT.mkdir(parents=True, exist_ok=True)
    kept = report_path.with_suffix(".json")
    checked = Checked.read(kept, product, scale) if resume else Checked(product, scale)
    for step in (step for step in STEPS if step.name in names):
        due = [part for part in range(step.parts) if not checked.has_passed(step, part)]
        click.echo(f"{step.name}: {step.proves}: {len(due)} of {step.parts} parts to run")
        for done in _results(step, due, commit, scale):
            outcome = "passed" if done.status == 0 else "FAILED"
            click.echo(f"  {step.name} {done.part + 1}: {outcome} after {done.seconds:.0f} s")
            checked.add(done)
            checked.write(kept)
            report_path.write_text(report(checked), encoding="utf-8")
    report_path.write_text(report(checked), encoding="utf-8")
    if any(each.status for step in STEPS for each in checked.of(step)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
