"""Run seeds in several processes at once, for ``ledgerlog simulate --jobs`` and ``--hours``.

Each process runs ``ledgerlog simulate --json`` with a few consecutive seeds. This process reads their lines
as they come, so a slow seed does not delay or lose the results of earlier seeds. The output of a process
about a failed seed goes to our standard error. The processes have their own sessions, so the terminal's
signals reach only this process, which ends the others.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import trio

from ledgerlog.cli.processes import python_command
from ledgerlog.concurrency.nurseries import open_nursery

__all__ = ["run_in_processes"]

_READ_BYTES = 1 << 16


async def run_in_processes(
    batches: Iterator[range], *, jobs: int, options: Sequence[str], on_seed: Callable[[dict[str, Any]], bool]
) -> None:
    """Run batches of seeds, ``jobs`` at a time, until no batch is left.

    If you cancel this, it ends the processes; the seeds that they were running do not count.

    Args:
        batches: The seeds of each process, one after the other.
        jobs: How many processes run at once.
        options: The options of each process, besides its seeds.
        on_seed: Called with the line of each seed, as ``--json`` prints it. If it returns False, no further
            batch begins, and the other processes are ended.

    Raises:
        ClickException: A process ended by itself before it was done.
    """
    async with open_nursery() as nursery:
        lanes = [trio.CancelScope() for _ in range(jobs)]

        async def lane(mine: trio.CancelScope) -> None:
            with mine:
                for seeds in batches:
                    if not await _run_batch(seeds, options, on_seed):
                        for other in lanes:
                            if other is not mine:
                                other.cancel()
                        return

        for scope in lanes:
            nursery.start_soon(lane, scope)


async def _run_batch(seeds: range, options: Sequence[str], on_seed: Callable[[dict[str, Any]], bool]) -> bool:
    """Run one batch. Return whether to continue."""
    command = python_command(
        "ledgerlog", "simulate", "--json", *options, "--seeds", f"{seeds.start}:{seeds.stop}"
    )
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    told: list[dict[str, Any]] = []
    goes_on = True

    def on_said(line: str) -> None:
        # Skip the last line, which is about the seeds of one process: our own last line is about all seeds.
        if not line.startswith("ledgerlog: "):
            click.echo(line, err=True)

    def on_line(line: str) -> None:
        nonlocal goes_on
        value = json.loads(line)
        if "seed" in value:
            told.append(value)
            goes_on = on_seed(value) and goes_on

    try:
        async with open_nursery() as nursery:
            nursery.start_soon(_read_lines, process.stderr, on_said)
            nursery.start_soon(_read_lines, process.stdout, on_line)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        await trio.aclose_forcefully(process.stdout)
        await trio.aclose_forcefully(process.stderr)
    if goes_on and len(told) < len(seeds):
        raise click.ClickException(
            f"the process with the seeds {seeds.start}:{seeds.stop} ended after {len(told)} of them, "
            f"with {process.returncode}"
        )
    return goes_on


async def _read_lines(stream: trio.abc.ReceiveStream, on_line: Callable[[str], None]) -> None:
    """Call ``on_line`` with each line of a stream, until its end."""
    rest = b""
    while data := await stream.receive_some(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))
    if rest:
        on_line(rest.decode(errors="replace"))
