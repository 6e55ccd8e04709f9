"""``python -m tests.nemesis``: faults on a cluster of real processes for as long as you like.

    python -m tests.nemesis [--people] [--minutes N] [--seed S] [--pace SECONDS] [--auto-recovery]
                            [--zookeepers N] [--namespaces] [--patience SECONDS] [--keep DIRECTORY]

With ``--people``, the run does deeds of operators (``people``) instead of faults of machines (``driver``). Of
the other options it uses only ``--minutes``, ``--seed``, ``--patience`` and ``--keep``.

The run prints its report as JSON. If it fails, it says why, and keeps its directory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.nemesis.driver import PATIENCE_S, Report, run
from tests.nemesis.people import PeopleReport, run_people


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis")
    parser.add_argument("--people", action="store_true", help="what operators do, and not what machines do")
    parser.add_argument("--minutes", type=float, default=60.0, help="of trouble (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=2.0, help="seconds between faults (default: 2)")
    parser.add_argument("--auto-recovery", action="store_true", help="let every bookie repair, too")
    parser.add_argument(
        "--zookeepers", type=int, default=0, help="servers with the metadata (default: SQLite)"
    )
    parser.add_argument(
        "--namespaces", action="store_true", help="a network namespace for each process (root only)"
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds within which what is healed must work"
    )
    parser.add_argument("--keep", type=Path, help="a new directory to work in, which stays")
    options = parser.parse_args()
    path = options.keep or Path(tempfile.mkdtemp(prefix="ledgerlog-nemesis-"))
    try:
        report: Report | PeopleReport
        if options.people:
            report = trio.run(
                partial(
                    run_people,
                    path,
                    seed=options.seed,
                    trouble_s=60 * options.minutes,
                    patience_s=options.patience,
                )
            )
        else:
            report = trio.run(
                partial(
                    run,
                    path,
                    seed=options.seed,
                    trouble_s=60 * options.minutes,
                    pace_s=options.pace,
                    auto_recovery=options.auto_recovery,
                    zookeepers=options.zookeepers,
                    namespaces=options.namespaces,
                    patience_s=options.patience,
                )
            )
    except BaseException:
        print(f"seed {options.seed} failed; see {path}", file=sys.stderr)
        raise
    print(json.dumps(report.as_dict(), indent=2))
    if options.keep is None:
        shutil.rmtree(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
