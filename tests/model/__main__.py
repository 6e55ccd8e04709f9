"""``python -m tests.model``: the wide set, a line for each configuration, and a schedule for each violation.

    python -m tests.model                 the small and the wide set, and the random walks
    python -m tests.model --states N      cut each exhaustive search at about N states
    python -m tests.model --steps N       random walks of N steps together (default ten million; 0: none)
    python -m tests.model --seed N        begin the walks at this seed
    python -m tests.model --only TEXT     the configurations whose line contains TEXT

Exits with 1 if an invariant was violated."""

from __future__ import annotations

import argparse
import sys

from tests.model import chain_sets, joined_sets, sets
from tests.model.checker import Result, explore, walk

SEARCHED = [
    *(*sets.SMALL, *chain_sets.SMALL, *joined_sets.SMALL),
    *(*sets.WIDE, *chain_sets.WIDE, *joined_sets.WIDE),
]
WALKED = [*sets.WALKED, *chain_sets.WALKED, *joined_sets.WALKED]
STEPS = 10_500_000
"""The steps of all random walks together, shared evenly among the configurations."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--states", type=int, default=sets.STATES_MAX)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    results = []
    for configuration in SEARCHED:
        if options.only in str(configuration):
            results.append(explore(configuration, states_max=options.states))
            _tell("searched", results[-1])
    for walked in WALKED:
        if options.only in str(walked) and options.steps:
            steps = -(-options.steps // len(WALKED))
            results.append(walk(walked, range(options.seed, 1 << 62), steps_total=steps))
            _tell("walked", results[-1])
    print(
        f"{sum(result.states for result in results):,} states, "
        f"{sum(result.transitions for result in results):,} transitions, "
        f"{sum(result.seconds for result in results):,.0f} CPU seconds"
    )
    return any(result.schedule is not None for result in results)


def _tell(how: str, result: Result) -> None:
    print(f"{how:<8} {result}", flush=True)
    if result.schedule is not None:
        print(result.schedule, flush=True)


if __name__ == "__main__":
    sys.exit(main())
