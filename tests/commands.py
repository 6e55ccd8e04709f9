"""Runs our commands to their end: each in a process of its own, forked from one that has the imports loaded.

A new interpreter takes longer for the imports than most commands take for their work, and the tests run
commands by the hundred. So the first test that runs one starts a process (``forking.py``) that imports both
commands and then forks once for each run. A run has its own arguments, environment, working directory,
standard streams (pipes) and exit code, and it ends as an interpreter ends.

What a test says of the start of an interpreter, of signals, or of a command that does not end by itself needs
a process with a number that the test knows: use ``trio.run_process`` or ``ChildProcesses``.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import attrs
import trio

from tests.zookeepers import SHARED_PROCESSES

logger = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("forking.py")


@attrs.frozen
class Ran:
    """How a command ended, and what it wrote."""

    status: int
    """Its exit code, or minus the number of the signal that ended it."""
    stdout: bytes
    stderr: str


async def run_command(command: str, *arguments: str, stdin: bytes = b"") -> Ran:
    """Run ``ledgerlog`` or ``bookie`` to its end.

    Cancelling: the process is killed.
    """
    ours: list[trio.lowlevel.FdStream] = []
    theirs: list[int] = []
    for is_read_by_us in (False, True, True, True):  # Standard input, output and error; how it ended.
        reading, writing = os.pipe2(os.O_CLOEXEC)
        ours.append(trio.lowlevel.FdStream(reading if is_read_by_us else writing))
        theirs.append(writing if is_read_by_us else reading)
    try:
        asked = json.dumps([command, arguments, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(forking_process(), [asked], theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    to_stdin, from_stdout, from_stderr, from_status = ours
    said = dict.fromkeys((from_stdout, from_stderr, from_status), b"")

    async def read(stream: trio.lowlevel.FdStream) -> None:
        async with stream:
            async for part in stream:
                said[stream] += part

    async def feed() -> None:
        async with to_stdin:
            with suppress(trio.BrokenResourceError):  # It need not read it.
                await to_stdin.send_all(stdin)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            for stream in said:
                nursery.start_soon(read, stream)
    finally:
        if not said[from_status]:
            logger.warning("it did not end: %s %s; it wrote %s", command, arguments, [*said.values()])
    assert said[from_status], "the process that forks the commands has died"
    return Ran(int(said[from_status]), said[from_stdout], said[from_stderr].decode())


@cache
def forking_process() -> socket.socket:
    """The end of the socket that takes orders. The process ends when this end is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno())],
        # Pipes, like those of the commands.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    SHARED_PROCESSES.add(process.pid)

    def end() -> None:
        ours.close()
        process.communicate()

    atexit.register(end)
    return ours
