"""Child processes under trio, none of which outlives its parent.

``open_children`` gives a ``ChildProcesses`` for the body of an ``async with``. After the body has ended in
any way, every process that it started is gone: each is asked to end (SIGCONT, then SIGTERM), and killed after
a grace period. This cleanup is shielded and bounded in time. If this process itself is killed, there is no
cleanup; then the kernel kills the children (``exit_with_parent``).

**Signals of the terminal.** Each child has its own process group. So Ctrl-C reaches only this process, which
then ends its children in its own order.

**The thread that starts children.** The kernel ties a child's life to the *thread* that started it. So the
thread of the event loop starts the children (one to two milliseconds each), never a worker thread: when a
worker thread ends, its children are killed.

**Waiting** uses a pidfd. It cannot miss the end of a process, cannot mean a later process with the same
number, and needs no SIGCHLD handler. For each child, one task waits and reaps; all others wait for that task.

A child's standard error goes to a file or is discarded. So a child that prints a lot never blocks on a full
pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import LedgerLogError

__all__ = ["Child", "ChildFailed", "ChildProcesses", "end_of_log", "open_children", "python_command"]

GRACE_S = 8.0
"""How long a child may take to end after it was asked to.

A bookie drains for at most limits.BOOKIE_DRAIN_S.
"""

KILL_S = 5.0
"""How long a killed child may take to disappear. Only a child that hangs inside the kernel takes longer."""

_SCRIPT = Path(__file__).with_name("exit_with_parent.py")

_JAVA_FRAME = ("\tat ", "\t... ")
"""The beginnings of the lines that a Java program writes below the cause of an exception."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours.

    ``-P`` keeps Python from running a file with the module's name in the working directory.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class ChildFailed(LedgerLogError):
    """A child process could not be started, or ended when it should not have."""


@attrs.define(eq=False)
class Child:
    """One child process. ``ChildProcesses.start`` makes it."""

    name: str
    """The name that messages use."""
    pid: int
    stdin: trio.lowlevel.FdStream | None
    """The end of a pipe to write into, if the start asked for one."""
    stdout: trio.lowlevel.FdStream | None
    """The end of a pipe to read from, if the start asked for one."""
    log_path: Path | None
    """The file that its standard error goes to, if any."""
    _process: subprocess.Popen[bytes]
    _pidfd: int
    _ended: trio.Event = attrs.Factory(trio.Event)
    _reaper: trio.CancelScope = attrs.Factory(lambda: trio.CancelScope(shield=True))

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, according to the last information. A stopped process counts as
        running."""
        return not self._ended.is_set()

    @property
    def exit_status(self) -> int | None:
        """The exit code, or minus the number of the signal that ended the process. None: it still runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended and return its exit status. Any number of tasks may wait."""
        await self._ended.wait()
        status = self.exit_status
        assert status is not None
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal.

        If the process has ended, nothing happens, even if another process has its number now.
        """
        if self.is_running:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Ask the process to end, kill it after ``grace_s``, and return when it is gone.

        You may call it several times.

        Cancelling: abandons the wait. The process was asked to end.
        """
        self._ask_to_end()
        with trio.move_on_after(grace_s):
            await self._ended.wait()
            return
        self.kill()
        await self._ended.wait()

    def _ask_to_end(self) -> None:
        self.send_signal(signal.SIGCONT)  # A stopped process would not react to SIGTERM.
        self.send_signal(signal.SIGTERM)

    async def _reap(self) -> None:
        with self._reaper:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._process.wait()
            os.close(self._pidfd)
            self._ended.set()

    def how_it_ended(self) -> str:
        """Say how the process ended, and why, according to its log (``end_of_log``)."""
        status = self.exit_status
        if status is None:
            return f"{self.name} (process {self.pid}) is running"
        if status < 0:
            known = {each.value: each.name for each in signal.Signals}
            by = known.get(-status, f"signal {-status}")  # Most real-time signals have no name.
            return f"{self.name} (process {self.pid}) was ended by {by}"
        last = end_of_log(self.log_path)
        return f"{self.name} (process {self.pid}) ended with status {status}{': ' + last if last else ''}"


class ChildProcesses:
    """Starts child processes. ``open_children`` makes it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._children: list[Child] = []

    async def start(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        *,
        pipe_in: bool = False,
        pipe_out: bool = False,
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Child:
        """Start a process and wait until its program runs and its life is tied to this process.

        Args:
            name: The name for messages.
            command: The command. ``command[0]`` is the path of a program.
            pipe_in: Give the child a pipe as standard input. Otherwise it reads nothing.
            pipe_out: Give the child a pipe as standard output. Otherwise its standard output goes to the same
                place as its standard error.
            log_path: The file to which standard error is appended. None: it is discarded.
            environment: The child's environment. None: this process's.
            cwd: The child's working directory. None: this process's.

        Returns:
            The ``Child``.

        Raises:
            ChildFailed: The operating system refuses to start it.

        Cancelling: the process may run until the ``ChildProcesses`` end.
        """
        child, report_fd = _spawn(
            name, [os.fspath(part) for part in command], pipe_in, pipe_out, log_path, environment, cwd
        )
        self._children.append(child)
        self._nursery.start_soon(self._reap, child)
        async with trio.lowlevel.FdStream(report_fd) as report:
            refusal = await report.receive_some()  # b"" once the program runs.
        if refusal:
            raise ChildFailed(f"{name} could not be started: {refusal.decode(errors='replace')}")
        return child

    @property
    def running(self) -> list[Child]:
        """Return the children that have not ended, in the order of their start."""
        return [child for child in self._children if child.is_running]

    async def _reap(self, child: Child) -> None:
        await child._reap()
        if not child.is_running and child.stdin is child.stdout is None:
            self._children.remove(child)  # So starting a process again and again collects nothing.

    async def _end_all(self, grace_s: float) -> None:
        # Run this even while everything is being cancelled. Each step is bounded in time.
        with trio.CancelScope(shield=True):
            for child in self.running:
                child._ask_to_end()
            await self._wait_none_running(grace_s)
            for child in self.running:
                child.kill()
            await self._wait_none_running(KILL_S)
        for child in self._children:
            child._reaper.cancel()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()

    async def _wait_none_running(self, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            for child in self.running:
                await child.wait()


@asynccontextmanager
async def open_children(*, grace_s: float = GRACE_S) -> AsyncIterator[ChildProcesses]:
    """Give a ``ChildProcesses`` for the body of the ``async with``. No child is left afterwards.

    The end of the body takes at most ``grace_s`` and some seconds, even if it is cancelled.
    """
    async with open_nursery() as nursery:
        children = ChildProcesses(nursery)
        try:
            yield children
        finally:
            await children._end_all(grace_s)


def _spawn(
    name: str,
    command: Sequence[str],
    pipe_in: bool,
    pipe_out: bool,
    log_path: Path | None,
    environment: Mapping[str, str] | None,
    cwd: Path | None,
) -> tuple[Child, int]:
    """Start a process that will become ``command``. Return it with the pipe that reports when it has."""
    ours: list[int] = []
    theirs: list[int] = []

    def pipe(ends: tuple[list[int], list[int]]) -> tuple[int, int]:
        pair = os.pipe2(os.O_CLOEXEC)
        for descriptor, owner in zip(pair, ends, strict=True):
            owner.append(descriptor)
        return pair

    try:
        stdin, stdin_ours = pipe((theirs, ours)) if pipe_in else (subprocess.DEVNULL, -1)
        stdout_ours, stdout = pipe((ours, theirs)) if pipe_out else (-1, -1)
        report_ours, report = pipe((ours, theirs))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        log = os.open(os.devnull if log_path is None else log_path, flags, 0o600)
        theirs.append(log)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), str(report), *command],
            stdin=stdin,
            stdout=stdout if pipe_out else log,
            stderr=log,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            process_group=0,
            pass_fds=(report,),
        )
        pidfd = _open_pidfd(process)
    except OSError as cause:
        for descriptor in ours:
            os.close(descriptor)
        raise ChildFailed(f"{name} could not be started: {cause}") from cause
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    child = Child(
        name=name,
        pid=process.pid,
        stdin=trio.lowlevel.FdStream(stdin_ours) if pipe_in else None,
        stdout=trio.lowlevel.FdStream(stdout_ours) if pipe_out else None,
        log_path=log_path,
        process=process,
        pidfd=pidfd,
    )
    return child, report_ours


def _open_pidfd(process: subprocess.Popen[bytes]) -> int:
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def end_of_log(log_path: Path | None, *, bytes_max: int = 16 * 1024) -> str:
    """Return the last line of a log file that is not blank; "" if there is none.

    A Java program writes the stack frames below the cause, and often more lines after them. If the end of the
    file has such frames, the result is the line above the last ones, and then the last line:

        java.net.BindException: Address already in use ... ERROR Exiting JVM with code 1
    """
    if log_path is None:
        return ""
    try:
        with log_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - bytes_max))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    lines = [line for line in lines if line.strip()]
    last = "" if not lines or lines[-1].startswith(_JAVA_FRAME) else lines[-1].strip()
    for cause, frame in reversed(list(pairwise(lines))):
        if frame.startswith(_JAVA_FRAME) and not cause.startswith(_JAVA_FRAME):
            return f"{cause.strip()} ... {last}" if last else cause.strip()
    return last
