"""``python -m tests.model``: the wide set, one line a configuration; a schedule for what breaks.

    python -m tests.model                 the wide set and the random walks
    python -m tests.model --states N      cut each exhaustive search at about N states
    python -m tests.model --walks N       N random walks a configuration (default 2000)
    python -m tests.model --seed N        begin the walks at this seed
    python -m tests.model --only TEXT     the configurations whose line contains TEXT

Exits with 1 if an invariant was violated."""

from __future__ import annotations

import argparse
import sys

from tests.model.checker import Result, explore, walk
from tests.model.sets import SMALL, STATES_MAX, WALKED, WIDE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--states", type=int, default=STATES_MAX)
    parser.add_argument("--walks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    results = []
    for configuration in [*SMALL, *WIDE]:
        if options.only in str(configuration):
            results.append(explore(configuration, states_max=options.states))
            _tell("searched", results[-1])
    for configuration in WALKED:
        if options.only in str(configuration):
            results.append(walk(configuration, range(options.seed, options.seed + options.walks)))
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
