"""``python -m tests.simulation.covered [--seeds 0:20] [--full] [--all] [--missing]``: what the seeds of the
simulator run of the product, room by room.

No seed can find a fault in code that no seed runs. This command runs seeds under coverage.py. For each room,
it prints how many of its lines ran. Only lines in functions count, because an import alone runs the others.
Functions that no simulation can run do not count either: ``EXCLUDED`` names them, with the reasons.
With ``--all`` each seed has all features (``ledgerlog.testing.features``), not only those that it
draws. With ``--missing`` it also prints, for each file, the lines that did not run. It needs the package
``coverage``, and takes two or three times as long as the seeds do without it.

    .venv/bin/python -m tests.simulation.covered --seeds 0:200
"""

from __future__ import annotations

import argparse
import ast
import logging
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import attrs
from coverage import Coverage

from ledgerlog.cli.simulate import parse_seeds
from ledgerlog.testing.features import NAMES
from ledgerlog.testing.swarm import Size
from ledgerlog.testing.workload import run_seed

ROOT = Path(__file__).resolve().parents[2]

WANTED_SHARE = 0.8

_UPKEEP, _SERVER = "bookie/storage/upkeep", "bookie/server"
ROOMS: dict[str, tuple[str, ...]] = {
    "compaction": (
        f"{_UPKEEP}/compaction.py",
        f"{_UPKEEP}/reclaiming.py",
        f"{_UPKEEP}/replacing.py",
        "bookie/storage/entrylog/rewriting.py",
    ),
    "collection": (f"{_UPKEEP}/collector.py", f"{_SERVER}/deletion_oracle.py"),
    "scrub": (f"{_UPKEEP}/scrub.py",),
    "rot and its repair": (
        f"{_UPKEEP}/read_repair.py",
        f"{_UPKEEP}/doubles.py",
        f"{_UPKEEP}/salvage.py",
        "bookie/core/salvage.py",
        f"{_SERVER}/corruption.py",
        f"{_SERVER}/repairing.py",
    ),
    "rebuild": (f"{_UPKEEP}/rebuild.py",),
    "start paths": (
        f"{_SERVER}/node.py",
        f"{_SERVER}/identity.py",
        f"{_SERVER}/limbo.py",
        f"{_SERVER}/phase_one.py",
        "bookie/storage/engine/opening.py",
        "bookie/storage/engine/directory.py",
        "bookie/storage/journal/replay.py",
        f"{_UPKEEP}/startup_cleanup.py",
    ),
    "election": ("ledgerlog/election/**/*.py", "ledgerlog/log/campaign.py", "ledgerlog/log/leadership.py"),
    "replicas": ("ledgerlog/machine/**/*.py",),
    "auto-recovery": (
        "ledgerlog/repair/core/*.py",
        *(
            f"ledgerlog/repair/{name}.py"
            for name in ("auditor", "checking", "copying", "ledger", "peers", "queue", "service", "worker")
        ),
    ),
    "archive": ("ledgerlog/archive/**/*.py",),
}
"""The rooms, and the patterns of their files."""

_ARCHIVE = "ledgerlog/archive"
_TABLES = "pyiceberg asks for the time and for random names, so no run has a table"
_REAL = "only for file systems of the real world"
_SPARK = "only Spark reads in this way"
EXCLUDED: dict[str, dict[str, str]] = {
    f"{_ARCHIVE}/table.py": {"*": _TABLES},
    f"{_ARCHIVE}/jobs/publishing.py": {
        "Publisher._publish": _TABLES,
        "has_default_catalog": "only commands ask it",
    },
    f"{_ARCHIVE}/core/prefix.py": {"*": _SPARK},
    f"{_ARCHIVE}/reader.py": {"ArchiveReader.tables": _SPARK},
    f"{_ARCHIVE}/file_reader.py": {"ArchiveFile.read_columns": _SPARK},
    f"{_ARCHIVE}/destinations.py": {
        "_resolve": "the simulator replaces it",
        "_with_deadlines": _REAL,
        "Destination.local_path": _REAL,
        "Destination.table_url": _TABLES,
        "Destination.table_properties": _TABLES,
        "_sync_directories": _REAL,
        "_sync": _REAL,
    },
}
"""The functions that no simulation can run, for each file, with the reasons. They count in no room. ``*`` is
the whole file."""


@attrs.frozen
class Covered:
    """The lines of a file that count, and those of them that did not run."""

    path: Path
    lines: int
    missing: tuple[int, ...]


def files_of(room: str) -> list[Path]:
    """Return the files of a room. AssertionError: a pattern matches no file, because a file was renamed."""
    found: dict[Path, None] = {}
    for pattern in ROOMS[room]:
        paths = sorted(ROOT.glob(pattern))
        assert paths, f"{pattern} of the room {room!r} names no file"
        found.update(dict.fromkeys(path for path in paths if path.name != "__init__.py"))
    return list(found)


def lines_in_functions(source: str, excluded: Collection[str] = ()) -> set[int]:
    """Return the numbers of the lines in bodies of functions.

    Args:
        source: The source of a module.
        excluded: The names of functions that do not count, after the names of their classes. ``*``: none
            counts.

    Raises:
        AssertionError: The module has no such function, because it was renamed.
    """
    lines: set[int] = set()
    left = set(excluded) - {"*"}

    def look(node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                look(child, within)
                continue
            name = f"{within}{child.name}"
            if name in left:
                left.discard(name)
                continue
            if not isinstance(child, ast.ClassDef):
                for statement in child.body:
                    lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
            look(child, f"{name}.")

    look(ast.parse(source), "")
    assert not left, f"there is no function {sorted(left)}"
    return set() if "*" in excluded else lines


def covered(coverage: Coverage, path: Path) -> Covered:
    """Return which lines of a file ran."""
    _, statements, _, missing, _ = coverage.analysis2(str(path))
    excluded = EXCLUDED.get(str(path.relative_to(ROOT)), {})
    counting = lines_in_functions(path.read_text(), excluded).intersection(statements)
    return Covered(path, len(counting), tuple(sorted(counting.intersection(missing))))


def table(coverage: Coverage) -> Iterator[tuple[str, list[Covered]]]:
    """Return which lines of each room ran."""
    for room in ROOMS:
        yield room, [covered(coverage, path) for path in files_of(room)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=parse_seeds, default=range(20), help="A:B, or one seed")
    parser.add_argument("--full", action="store_true", help="full seeds in place of small ones")
    parser.add_argument("--all", action="store_true", help="all features in each seed")
    parser.add_argument("--missing", action="store_true", help="print the lines that did not run")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    paths = [path for room in ROOMS for path in files_of(room)]
    coverage = Coverage(data_file=None, include=list(map(str, paths)))
    failed = []
    with coverage.collect():
        for seed in options.seeds:
            size = Size.FULL if options.full else Size.SMALL
            if not run_seed(seed, size=size, features=NAMES if options.all else None).is_ok:
                failed.append(seed)
    for room, files in table(coverage):
        lines, missing = sum(each.lines for each in files), sum(len(each.missing) for each in files)
        share = 1 - missing / lines
        print(f"{room:20} {share:6.0%} of {lines:5} lines{'' if share >= WANTED_SHARE else '  too few'}")
        if options.missing:
            for each in files:
                share = 1 - len(each.missing) / max(1, each.lines)
                print(f"    {share:6.0%} {each.path.relative_to(ROOT)}: {' '.join(map(str, each.missing))}")
    if failed:
        print(f"seeds that failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
