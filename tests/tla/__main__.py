"""``python -m tests.tla``: TLC judges recorded runs of the cores, runs of cores with bugs, and the modules.

    python -m tests.tla                   everything; some minutes
    python -m tests.tla --traces N        N runs of ledgers and N of logs (default 200), from each
                                          configuration equally many
    python -m tests.tla --seed N          begin at this seed
    python -m tests.tla --only PART       one part: runs, mutants, module, published, or of logs:
                                          log-runs, log-mutants, log-module

Exit 0: all is as it should be. Exit 1: a run was refused, a bug was not noticed, or a search of a module
found something else than it should. Exit 2: wrong usage. Exit 3: there is no Java, or no tla2tools.jar."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence

from tests.model.checker import AnyConfiguration
from tests.scenarios.mutants import Mutant
from tests.tla.core_mutants import LOG_MUTANTS, MUTANTS, runs_of
from tests.tla.modules import LOG_SEARCHES, PUBLISHED, SEARCHES, LogSearch, Search
from tests.tla.sets import RECORDED, RECORDED_LOGS
from tests.tla.subjects import record
from tests.tla.tlc import NoTlc, find_tlc
from tests.tla.traces import judge, refusals

NO_TLC = 3
_AT_ONCE = 16
"""How many runs one process of TLC judges."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tla")
    parser.add_argument("--traces", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(_PARTS))
    options = parser.parse_args()
    try:
        find_tlc()
    except NoTlc as missing:
        print(missing, file=sys.stderr)
        return NO_TLC
    parts = [options.only] if options.only else list(_PARTS)
    results = [_PARTS[part](options) for part in parts]
    return int(not all(results))


def _runs(options: argparse.Namespace, configurations: Sequence[AnyConfiguration]) -> bool:
    """Runs of the cores as they are: all must be accepted."""
    begin = time.monotonic()
    each = -(-options.traces // len(configurations))
    steps = states = accepted = count = 0
    for configuration in configurations:
        seeds = iter(range(options.seed, options.seed + each))
        while batch := list(itertools.islice(seeds, _AT_ONCE)):
            runs = [record(configuration, seed) for seed in batch]
            judgement = judge(configuration, runs)
            count += len(runs)
            steps += sum(map(len, runs))
            states += judgement.outcome.states
            accepted += len(judgement.accepted)
            for refusal in judgement.refused:
                print(f"REFUSED  {configuration}, seed {batch[refusal.run]}: {refusal.describe(runs)}")
            if not judgement.outcome.is_ok:
                print(f"BROKEN   {configuration}: {judgement.outcome.violated}\n{judgement.outcome.text}")
                accepted -= len(judgement.accepted)
        print(
            f"{time.monotonic() - begin:6.1f} s  {accepted} of {count} runs accepted  {configuration}",
            flush=True,
        )
    print(f"runs: {accepted} of {count} accepted, {steps:,} steps, {states:,} states")
    return accepted == count


def _mutants(mutants: Sequence[tuple[Mutant, AnyConfiguration]]) -> bool:
    """Runs of cores with a bug: one of each must be refused."""
    missed = 0
    for mutant, configuration in mutants:
        begin = time.monotonic()
        found = list(runs_of(mutant, configuration, 3))
        runs = [run for _, run in found]
        refused = refusals(configuration, runs) if runs else []
        missed += not refused
        word = f"{len(refused)} of {len(runs)} refused"
        print(
            f"{time.monotonic() - begin:6.1f} s  {'MISSED  ' * (not refused)}{word}  {mutant.__name__}",
            flush=True,
        )
        for refusal in refused[:1]:
            print(f"          {refusal.describe(runs)[:200]}")
    print(f"mutants: {len(mutants) - missed} of {len(mutants)} noticed")
    return not missed


def _searches(name: str, searches: Sequence[Search | LogSearch]) -> bool:
    wrong = 0
    for search in searches:
        begin = time.monotonic()
        outcome = search.run()
        is_right = search.is_as_expected(outcome)
        wrong += not is_right
        print(
            f"{time.monotonic() - begin:6.1f} s  {'' if is_right else 'WRONG  '}{outcome.states:,} states, "
            f"violated: {outcome.violated or 'nothing'}  {search}",
            flush=True,
        )
        if not is_right:
            print(outcome.text[-6000:])
    print(f"{name}: {len(searches) - wrong} of {len(searches)} as expected")
    return not wrong


_PARTS = {
    "runs": lambda options: _runs(options, RECORDED),
    "mutants": lambda options: _mutants(MUTANTS),
    "module": lambda options: _searches("module", SEARCHES),
    "published": lambda options: _searches("published", PUBLISHED),
    "log-runs": lambda options: _runs(options, RECORDED_LOGS),
    "log-mutants": lambda options: _mutants(LOG_MUTANTS),
    "log-module": lambda options: _searches("log-module", LOG_SEARCHES),
}


if __name__ == "__main__":
    sys.exit(main())
