"""The process that forks once for each command that ``tests/commands.py`` runs.

    python -P forking.py SOCKET

An order on the socket is one packet: a JSON list of the command, its arguments, the working directory and
the environment, with four descriptors: standard input, standard output, standard error, and a pipe. The exit
status of the command goes into the pipe. If nobody reads the pipe any more, the command is killed. The end of
the socket ends this process.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

IMPORTED = (
    "bookie.server.main",
    "ledgerlog.cli.access",
    "ledgerlog.cli.bookie",
    "ledgerlog.cli.ledger",
    "ledgerlog.cli.log",
    "ledgerlog.cli.metadata",
    "ledgerlog.cli.repair",
    "ledgerlog.meta.zookeeper.store",
)


class Running(NamedTuple):
    """A command that has not ended."""

    pid: int
    pidfd: int
    told: int
    """The pipe that its exit status goes into."""


def main() -> None:
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        # Out here, so that it ends as the process of a command does.
        runpy.run_module(command, run_name="__main__", alter_sys=True)


def _serve(orders: socket.socket) -> str | None:
    """Fork for each order. Return None at the last, and in the forked process the name of its command."""
    running: dict[int, Running] = {}
    """By its two descriptors."""
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is orders:
                    order, descriptors, _, _ = socket.recv_fds(orders, 1 << 20, 4)
                    if not order:
                        return None
                    *standard, told = descriptors
                    pid = os.fork()
                    if pid == 0:
                        for descriptor in (orders.detach(), told, *running):
                            os.close(descriptor)
                        return _become(order, standard)
                    for descriptor in standard:
                        os.close(descriptor)
                    command = Running(pid, os.pidfd_open(pid), told)
                    for descriptor in (command.pidfd, command.told):
                        running[descriptor] = command
                        # Of the end of a pipe that is written, only that nobody reads it any more.
                        selector.register(descriptor, selectors.EVENT_READ)
                elif (found := running.get(key.fd)) is None:
                    pass  # It ended in this round.
                elif key.fd == found.told:
                    signal.pidfd_send_signal(found.pidfd, signal.SIGKILL)
                    selector.unregister(found.told)
                else:
                    _, status = os.waitpid(found.pid, 0)
                    with suppress(BrokenPipeError):
                        os.write(found.told, b"%d" % os.waitstatus_to_exitcode(status))
                    for descriptor in (found.pidfd, found.told):
                        del running[descriptor]
                        with suppress(KeyError):
                            selector.unregister(descriptor)
                        os.close(descriptor)


def _become(order: bytes, standard: list[int]) -> str:
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    command, arguments, directory, environment = json.loads(order)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [command, *arguments]
    assert isinstance(command, str)
    return command


if __name__ == "__main__":
    main()
