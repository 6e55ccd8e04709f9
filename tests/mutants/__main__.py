"""``python -m tests.mutants [name ...] [-j 2] [--every]``: put known bugs back; tests must notice each.

Names choose mutants by the beginning of their names; without any, all are tried. Prints a line for each as
it is done, and at the end what was not as it should be. Exit 0: every mutant was caught, and no equivalent
one. Exit 1: some were not, or are stale, or the tests fail without any. Exit 2: wrong usage."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Stale
from tests.mutants.runner import RunFailed, Verdict, run_mutants

_CORES = min(os.cpu_count() or 1, 4)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="the beginnings of the names of those to try")
    parser.add_argument("-j", "--jobs", type=int, default=_CORES, help="how many to try side by side")
    parser.add_argument("--every", action="store_true", help="every test that a mutant names must notice it")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if not arguments.names or m.name.startswith(tuple(arguments.names))]
    if not chosen or arguments.jobs < 1:
        parser.error("no mutant has such a name" if not chosen else "there must be at least one job")
    width = max(len(m.name) for m in chosen)
    if arguments.list:
        for m in chosen:
            print(f"{m.name:{width}}  {m.rule}{'  (equivalent)' if m.equivalent else ''}")
        return 0

    def tell(verdict: Verdict) -> None:
        m = verdict.mutant
        print(
            f"{m.name:{width}}  {m.rule:16}  {verdict.seconds:5.1f} s  {verdict.outcome.value}"
            + (f": {verdict.by}" if verdict.by else ""),
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        try:
            verdicts = run_mutants(
                chosen, Path(directory), workers=arguments.jobs, every=arguments.every, on_verdict=tell
            )
        except (Stale, RunFailed) as failure:
            print(failure, file=sys.stderr)
            return 1
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    print(f"\n{len(verdicts)} mutants, {len(verdicts) - len(bad)} as they should be")
    for verdict in bad:
        print(f"  {verdict.mutant.name} ({verdict.mutant.rule}): {verdict.outcome.value} {verdict.by}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
