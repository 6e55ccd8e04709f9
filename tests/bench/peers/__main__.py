"""``python -m tests.bench.peers [NAME ...]``: the same load on ledgerlog and on its peers, in one run.

Each system has three servers on this machine. In each round, the command starts every system, runs all loads
and stops the system. So all systems meet the same conditions of the machine. The table has the medians of the
rounds. CPU is the CPU time of the client and all servers. If the command cannot get the programs of a peer,
it prints the reason and leaves the peer out. Compare only figures of one run.

Exit 0: all other systems were measured. Exit 1: one of them failed. Exit 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import trio

from ledgerlog.cli.processes import ChildFailed
from tests.bench.peers.picture import draw
from tests.bench.peers.programs import NotHere
from tests.bench.peers.systems import SYSTEMS, Figures, Load, Open, System, Times

LOADS = (Load(100, 1000), Load(1024, 1000), Load(16384, 1000), Load(100, 1))
_PROGRAMS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ledgerlog-peers"

Opener = Callable[[Path], AbstractAsyncContextManager[Open]]
Measured = dict[tuple[str, Load], list[Figures]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(s.name for s in SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each load that are measured")
    parser.add_argument(
        "--warm-up", type=float, default=30.0, help="seconds of each load before that, for the peers"
    )
    parser.add_argument("--directory", type=Path, help="where the servers write; default: a temporary one")
    parser.add_argument("--programs", type=Path, default=_PROGRAMS, help="where the programs are built")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the medians (.svg or .png)")
    arguments = parser.parse_args()
    known = {system.name: system for system in SYSTEMS}
    if strangers := set(arguments.names) - set(known):
        parser.error(f"not a system: {', '.join(sorted(strangers))}")
    if arguments.rounds < 1 or arguments.seconds <= 0 or arguments.warm_up < 0:
        parser.error("--rounds, --seconds and --warm-up must be positive")
    openers: dict[str, Opener] = {}
    for name in arguments.names or known:
        try:
            openers[name] = known[name].get(arguments.programs)
        except NotHere as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
    times = Times(arguments.warm_up, arguments.seconds)
    measured: Measured = {}
    failed = False
    for round_number in range(arguments.rounds):
        for name, opener in openers.items():
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=arguments.directory) as directory:
                try:
                    found = trio.run(_measure, opener, Path(directory), times)
                except (ChildFailed, trio.TooSlowError) as failure:
                    print(f"{name}, round {round_number + 1}: {failure!r}", file=sys.stderr)
                    failed = True
                    continue
            for load, figures in zip(LOADS, found, strict=True):
                measured.setdefault((name, load), []).append(figures)
                print(
                    f"{name}, round {round_number + 1}, {load.title}: {figures.records_per_s:,.0f}/s, "
                    f"p50 {figures.p50_ms:.2f} ms, p99 {figures.p99_ms:.2f} ms, {figures.cpu_us:.1f} us",
                    file=sys.stderr,
                )
    medians = {key: _median(runs) for key, runs in measured.items()}
    systems = [known[name] for name in openers if any(key[0] == name for key in medians)]
    print(table(systems, medians))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_all_rounds(measured), indent=1) + "\n")
    if arguments.plot is not None:
        draw(systems, LOADS, medians, arguments.plot)
    return 1 if failed else 0


async def _measure(opener: Opener, directory: Path, times: Times) -> list[Figures]:
    async with opener(directory) as system:
        return await system.run(LOADS, times)


def _median(runs: Sequence[Figures]) -> Figures:
    names = [field.name for field in attrs.fields(Figures)]
    return Figures(**{name: statistics.median(getattr(run, name) for run in runs) for name in names})


def _all_rounds(measured: Measured) -> list[dict[str, object]]:
    return [
        {"system": name, "size": load.size, "window": load.window, "round": at + 1, **attrs.asdict(figures)}
        for (name, load), runs in measured.items()
        for at, figures in enumerate(runs)
    ]


def table(systems: Sequence[System], medians: Mapping[tuple[str, Load], Figures]) -> str:
    """Return the medians as a table in Markdown: records/s, p50 and p99 in ms, CPU in us a record."""
    lines = [
        "| system | " + " | ".join(load.title for load in LOADS) + " |",
        "|---" * (len(LOADS) + 1) + "|",
    ]
    for system in systems:
        cells = [
            f"{found.records_per_s:,.0f}/s, {found.p50_ms:.2f}, {found.p99_ms:.2f}, {_brief(found.cpu_us)}"
            for load in LOADS
            if (found := medians.get((system.name, load))) is not None
        ]
        lines.append(f"| {system.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _brief(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
