"""The bench of the peers: its protocol with a client, its table, and its message about a missing program."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from ledgerlog.cli.processes import Child, ChildFailed, open_children
from tests.bench.peers import __main__ as bench
from tests.bench.peers import systems
from tests.bench.peers.programs import NotHere, program
from tests.bench.peers.systems import Figures, Load, Open, Peer, System, Times

TIMES = Times(warm_up=0, measured=0)
LOAD = Load(100, 1000)
SAYS = """
import sys
print("begin", flush=True)
print('end {"records": 500, "seconds": 0.25, "p50_ms": 1.5, "p99_ms": 2.5}', flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def peer(directory: Path, *, client: str) -> AsyncIterator[Open]:
    """A peer with one server; both programs are Python."""
    async with open_children() as children:
        child = await children.start(
            "server", [sys.executable, "-c", "input()"], pipe_in=True, log_path=directory / "server.log"
        )
        yield Peer(children, [child], lambda load, times: [sys.executable, "-c", client], directory)


async def test_a_client_says_when_it_begins_and_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        def __init__(self, processes: dict[str, int]) -> None:
            assert set(processes) == {"server", "client"}

        def spent_ns(self) -> tuple[int, dict[str, int]]:
            return 7, {"server": 1_000_000, "client": 500_000}

    monkeypatch.setattr(systems, "CpuClock", Clock)
    async with peer(tmp_path, client=SAYS) as system:
        (found,) = await system.run([LOAD], TIMES)
    assert found == Figures(records_per_s=2000, p50_ms=1.5, p99_ms=2.5, cpu_us=3)


@pytest.mark.parametrize("is_read_late", [False, True])
async def test_a_client_that_ends_early_fails_the_run_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_late: bool
) -> None:
    words_of = systems._words

    async def words_after_the_end(client: Child) -> AsyncGenerator[tuple[str, str], None]:
        await client.wait()
        async with aclosing(words_of(client)) as words:
            async for word in words:
                yield word

    if is_read_late:
        monkeypatch.setattr(systems, "_words", words_after_the_end)
    async with peer(tmp_path, client="print('begin', flush=True); raise SystemExit('no leader')") as system:
        with pytest.raises(ChildFailed, match="no leader"):
            await system.run([LOAD], TIMES)


async def test_a_server_that_has_ended_fails_the_run_with_its_last_line(tmp_path: Path) -> None:
    async with open_children() as children:
        log = tmp_path / "server.log"
        server = await children.start(
            "server", [sys.executable, "-c", "raise SystemExit('the disk is full')"], log_path=log
        )
        await server.wait()
        system = Peer(children, [server], lambda load, times: [sys.executable, "-c", SAYS], tmp_path)
        with pytest.raises(ChildFailed, match="the disk is full"):
            await system.run([LOAD], TIMES)


def test_a_missing_program_is_named_with_its_package() -> None:
    with pytest.raises(NotHere, match=r"no-such-program is not installed .*some-package"):
        program("no-such-program", "some-package")


def test_a_peer_that_cannot_be_had_is_left_out_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing(_: Path) -> bench.Opener:
        raise NotHere("the program x is not installed")

    here_and_gone = (
        System("here", "Here", lambda _: lambda directory: peer(directory, client=SAYS)),
        System("gone", "Gone", missing),
    )
    monkeypatch.setattr(bench, "SYSTEMS", here_and_gone)
    monkeypatch.setattr(sys, "argv", ["peers", "--rounds", "1", "--json", str(tmp_path / "figures.json")])
    assert bench.main() == 0
    out, err = capsys.readouterr()
    assert "gone is left out: the program x is not installed" in err
    assert "Here" in out
    assert "Gone" not in out
    assert (tmp_path / "figures.json").read_text().count('"system": "here"') == len(bench.LOADS)


def test_the_table_has_a_row_for_each_system_and_a_cell_for_each_load() -> None:
    both = [System(name, name.upper(), lambda _: peer) for name in ("a", "b")]
    figures = Figures(records_per_s=1234.5, p50_ms=1.0, p99_ms=2.345, cpu_us=1160.4)
    medians = {(system.name, load): figures for system in both for load in bench.LOADS}
    *_, row_a, row_b = bench.table(both, medians).splitlines()
    assert row_a.startswith("| A | 1,234/s, 1.00, 2.35, 1,160 |")
    assert row_a.count("|") == row_b.count("|") == len(bench.LOADS) + 2
