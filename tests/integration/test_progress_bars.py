"""Long work shows its progress on a terminal, and nothing of that where nobody looks.

Each command runs with a pseudo-terminal as its standard error. Its results go to standard output, where
programs read them.
"""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest
import trio
from running_cluster import ledgerlog_ok, running_cluster

ESCAPE = b"\x1b"
ERASE_LINE = b"\x1b[2K"


async def run_on_terminal(*command: str, program: str = "ledgerlog") -> tuple[bytes, bytes]:
    """Run a command that must succeed. Return its standard output, and what its terminal got."""
    ours, theirs = pty.openpty()
    shown = bytearray()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}

    async def look() -> None:
        async with trio.lowlevel.FdStream(ours) as terminal:
            try:
                async for part in terminal:
                    shown.extend(part)
            except trio.BrokenResourceError:
                pass  # All processes have closed the other end.

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        try:
            ran = await trio.run_process(
                [sys.executable, "-m", program, *command],
                capture_stdout=True,
                stderr=theirs,
                env=environment,
                check=False,
            )
        finally:
            os.close(theirs)
    assert ran.returncode == 0, bytes(shown)
    return ran.stdout, bytes(shown)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("simulate", "--small", "--seeds", "0:2"), b"simulating"),
        (("bench", "write", "--size", "100", "--window", "10", "--seconds", "0.2"), b"measuring"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
async def test_a_command_shows_its_progress_on_a_terminal(command: tuple[str, ...], text: bytes) -> None:
    result, shown = await run_on_terminal(*command)
    assert text in shown
    assert ESCAPE in shown
    assert ERASE_LINE in shown[-20:], "the bar goes away at the end"
    assert result
    assert ESCAPE not in result


async def test_an_append_of_a_file_shows_how_far_it_is(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.write_bytes(b"".join(b"record %d\n" % number for number in range(20_000)))
    async with running_cluster(tmp_path / "cluster") as cluster:
        await ledgerlog_ok("log", "create", "orders", uri=cluster.uri)
        result, shown = await run_on_terminal(
            "--uri", cluster.uri, "log", "append", "orders", "--input", str(records)
        )
        assert b"appending to orders" in shown
        assert b"100%" in shown
        assert ESCAPE not in result
        quiet = await ledgerlog_ok("log", "append", "orders", "--input", str(records), uri=cluster.uri)
        assert b"appending to" not in quiet


async def test_checks_and_backups_of_a_cluster_show_that_they_are_at_work(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster") as cluster:
        await ledgerlog_ok("log", "create", "orders", uri=cluster.uri)
        await ledgerlog_ok("log", "append", "orders", uri=cluster.uri, stdin=b"one\ntwo\n")
        for command, text in (
            (("repair", "audit", "--entries", "all"), b"checking entries of ledgers"),
            (("metadata", "backup", str(tmp_path / "backup")), b"saving all metadata"),
            (("metadata", "check"), b"comparing metadata with bookies"),
            (("ledger", "verify", "0"), b"looking for copies of ledger 0"),
        ):
            result, shown = await run_on_terminal("--uri", cluster.uri, *command)
            assert text in shown, command
            assert result
            assert ESCAPE not in result


async def test_work_on_a_bookies_files_shows_how_far_it_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster") as cluster:
        await ledgerlog_ok("log", "create", "orders", uri=cluster.uri)
        await ledgerlog_ok("log", "append", "orders", uri=cluster.uri, stdin=b"one\ntwo\n")
    directory = str(tmp_path / "cluster" / "bookie-1")
    for command, text in (
        (("rebuild-index", directory), b"reading files"),
        (("repair", directory, "--metadata", cluster.uri), b"reading and salvaging files"),
    ):
        result, shown = await run_on_terminal(*command, program="bookie")
        assert text in shown, command
        assert ERASE_LINE in shown[-20:], "the bar goes away at the end"
        assert result
        assert ESCAPE not in result
