"""Trying mutants: in a copy of the tree, one at a time, against the tests that each names.

    copy the tree (once for each worker)
    run every named test on the copy as it is      they must pass, or what follows means nothing
    for each mutant: patch, run its tests until one fails, restore

A mutant is noticed if a test *fails*. A mutant that cannot be imported, a test run that crashes or hangs, or
a NameError are mistakes of the mutant or of the run, and the runner says so.

The copy is imported, and not the tree that it was made from: the copy's root comes first on the path of every
test run, which is checked. Python takes a compiled file for that of a source with the same time in seconds
and size. So each patched file gets a time that no other had, and the old one when it is restored: the next
mutant of the file may have the same size.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue

import attrs

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("ledgerlog", "bookie", "tests", "docs", "hatch_build.py", "pyproject.toml")
_TIMEOUT_S = 300.0
_PATIENCE_S = 120.0
"""The bound of one wait in a test that runs without a mutant, below the time-out of the whole run."""
_PATIENCE_WITH_MUTANT_S = 30.0
"""The same with a mutant. It is shorter because a wait that ends may be how a test notices the mutant, and
every such mutant costs the run all of it. Most waits last less than a second."""
_PYTEST = (sys.executable, "-m", "pytest", "-q", "--tb=line", "--no-header", "-p", "no:cacheprovider")
_LATER_S = count(10)
_FAILED = re.compile(r"^FAILED (.+?)(?: - (.*))?$", re.MULTILINE)
_MISTAKES = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


class RunFailed(Exception):
    """The tests could not be run."""


class Outcome(enum.Enum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    """No test noticed it, and none had to."""
    NOT_EQUIVALENT = "caught, though it is listed as equivalent"
    MISTAKE = "mistake"
    """The mutant or the run is broken."""


@attrs.frozen
class Verdict:
    mutant: Mutant
    outcome: Outcome
    seconds: float
    by: str = ""
    """The test that noticed, or the mistake."""

    @property
    def is_good(self) -> bool:
        return self.outcome in (Outcome.CAUGHT, Outcome.EQUIVALENT)


@attrs.frozen
class _Ran:
    status: int
    output: str

    def failed(self) -> list[tuple[str, str]]:
        """The tests that failed, and why."""
        return _FAILED.findall(self.output)


@attrs.frozen
class Copy:
    """A copy of the tree that may be patched."""

    root: Path

    @classmethod
    def make(cls, source: Path, target: Path, *, with_compiled: bool = False) -> Copy:
        ignored = shutil.ignore_patterns(*(() if with_compiled else ("__pycache__",)))
        for name in _COPIED:
            path = source / name
            if path.is_dir():
                shutil.copytree(path, target / name, ignore=ignored)
            elif path.exists():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target / name)
        return cls(target)

    def _run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float | None = _TIMEOUT_S,
        patience_s: float = _PATIENCE_S,
    ) -> _Ran:
        environment = os.environ | {
            "PYTHONPATH": str(self.root),
            "COLUMNS": "250",
            "LEDGERLOG_TEST_PATIENCE_S": str(patience_s),
        }
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            output = f"the tests did not end within {timeout_s:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return _Ran(process.returncode, output)

    def check_path(self) -> None:
        """RunFailed if tests that run here would import the product from somewhere else."""
        ran = self._run([sys.executable, "-c", "import ledgerlog; print(ledgerlog.__file__)"])
        if not Path(ran.output.strip()).is_relative_to(self.root):
            raise RunFailed(f"tests in {self.root} would import {ran.output.strip()}")

    def run_tests(self, tests: Iterable[str], *, until_failure: bool = True) -> _Ran:
        """Run a mutant's tests, within ``_TIMEOUT_S``."""
        command = [*_PYTEST, *(["-x"] * until_failure), *tests]
        return self._run(command, patience_s=_PATIENCE_WITH_MUTANT_S)

    def run_all_tests(self, tests: Iterable[str], *, workers: int) -> _Ran:
        """Run many tests. The run has no limit, because each test has its own."""
        spread = ("-n", str(workers), "--dist", "loadfile") if workers > 1 else ()
        return self._run([*_PYTEST, "-x", *spread, *tests], timeout_s=None)

    def try_mutant(self, mutant: Mutant, *, every: bool = False) -> Verdict:
        """Ask the mutant's tests: until one notices, or ``every`` one. Raises Stale."""
        begin = time.monotonic()
        patched = mutant.patched(self.root)
        before = {file: (self.root / file).read_bytes() for file in patched}
        times = {file: (self.root / file).stat() for file in patched}
        try:
            for file, text in patched.items():
                (self.root / file).write_text(text, encoding="utf-8")
                moment = times[file].st_mtime_ns + next(_LATER_S) * 10**9
                os.utime(self.root / file, ns=(moment, moment))
            ran = self.run_tests(mutant.tests, until_failure=not every)
        finally:
            for file, data in before.items():
                (self.root / file).write_bytes(data)
                os.utime(self.root / file, ns=(times[file].st_atime_ns, times[file].st_mtime_ns))
        outcome, by = _judge(mutant, ran, every=every)
        return Verdict(mutant, outcome, time.monotonic() - begin, by)


def _judge(mutant: Mutant, ran: _Ran, *, every: bool) -> tuple[Outcome, str]:
    failed = ran.failed()
    if ran.status == 0 and not failed:
        return (Outcome.SURVIVED, "") if mutant.equivalent is None else (Outcome.EQUIVALENT, "")
    if ran.status != 1 or not failed:
        lines = [line for line in ran.output.splitlines() if line.strip()]
        return Outcome.MISTAKE, f"exit {ran.status}: {' / '.join(lines[-3:])}"
    for test, why in failed:
        if why.startswith(_MISTAKES):
            return Outcome.MISTAKE, f"{test}: {why}"
    if mutant.equivalent is not None:
        return Outcome.NOT_EQUIVALENT, ": ".join(failed[0])
    blind = [asked for asked in mutant.tests if not any(test.startswith(asked) for test, _ in failed)]
    if every and blind:
        return Outcome.SURVIVED, f"not noticed by {', '.join(blind)}"
    return Outcome.CAUGHT, failed[0][0]


def run_mutants(
    mutants: Sequence[Mutant],
    directory: Path,
    *,
    workers: int = 1,
    every: bool = False,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Try the mutants in copies below ``directory``; the verdicts in the order of ``mutants``.

    One test that notices is enough, or with ``every`` each that a mutant names must.

    Raises Stale if one cannot be applied, and RunFailed if the tests fail without any mutant."""
    for each in mutants:
        each.patched(ROOT)
    first = Copy.make(ROOT, directory / "0")
    first.check_path()
    tests = dict.fromkeys(test for each in mutants for test in each.tests)
    baseline = first.run_all_tests(tests, workers=workers)
    if baseline.status != 0:
        raise RunFailed(f"the tests fail without any mutant:\n{baseline.output}")
    copies = [first]
    for number in range(1, min(workers, len(mutants))):
        copies.append(Copy.make(first.root, directory / str(number), with_compiled=True))

    waiting: SimpleQueue[Mutant] = SimpleQueue()
    for each in mutants:
        waiting.put(each)
    verdicts: dict[str, Verdict] = {}
    failures: list[BaseException] = []
    lock = threading.Lock()

    def work(copy: Copy) -> None:
        try:
            while not failures:
                verdict = copy.try_mutant(waiting.get_nowait(), every=every)
                with lock:
                    verdicts[verdict.mutant.name] = verdict
                    on_verdict(verdict)
        except Empty:
            return
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [verdicts[each.name] for each in mutants]
