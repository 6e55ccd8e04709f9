"""Child processes under trio, none of which outlives its parent.

``open_children`` gives a ``Children`` for the body of an ``async with``; every process that it starts
is gone when the body is left, whichever way: they are asked to end (SIGCONT, then SIGTERM), and after a
grace period killed. That path is shielded and bounded in time. Should this process itself be
killed, so that no path of its own runs at all, the kernel kills the children (``exit_with_parent``).

**Signals of the terminal.** Each child is a process group of its own, so that Ctrl-C reaches this
process alone, which then ends its children in its own order.

**The thread that starts.** The kernel ties a child's life to the *thread* that started it, so children
are started by the thread of the event loop (one to two milliseconds each) and never by a worker thread,
whose end would kill them.

**Waiting** uses a pidfd: it cannot miss the end of a process, cannot mean a later process of the same
number, and no SIGCHLD handler is touched. One task a child waits and reaps; everybody else waits for
that task.

What a child says on its standard error goes to a file or is discarded, so that a child that says much is
never blocked by somebody who does not read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import LedgerLogError

__all__ = ["Child", "ChildFailed", "Children", "open_children", "python_command", "tail_of"]

GRACE_S = 8.0
"""How long a child that was asked to end may take. A bookie drains for limits.BOOKIE_DRAIN_S at most."""

KILL_S = 5.0
"""How long a killed child may take to be gone; only one that hangs inside the kernel takes longer."""

_SCRIPT = Path(__file__).with_name("exit_with_parent.py")


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours, and never a file of its name that lies in the working directory
    (``-P``)."""
    return [sys.executable, "-P", "-m", module, *arguments]


class ChildFailed(LedgerLogError):
    """A process that this one had started could not be started, or ended when it should not have."""


@attrs.define(eq=False)
class Child:
    """One process. Made by ``Children.start``."""

    name: str
    """What messages call it."""
    pid: int
    stdin: trio.lowlevel.FdStream | None
    """The end of a pipe to write into, where one was asked for."""
    stdout: trio.lowlevel.FdStream | None
    """The end of a pipe to read from, where one was asked for."""
    log_path: Path | None
    """Where its standard error goes."""
    _process: subprocess.Popen[bytes]
    _pidfd: int
    _ended: trio.Event = attrs.Factory(trio.Event)
    _reaper: trio.CancelScope = attrs.Factory(lambda: trio.CancelScope(shield=True))

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, as far as is known; a stopped process has not."""
        return not self._ended.is_set()

    @property
    def exit_status(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Return its exit status once it has ended. Any number of tasks may wait."""
        await self._ended.wait()
        status = self.exit_status
        assert status is not None
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal. A process that has ended is left alone, and so is another one of its number."""
        if self.is_running:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Ask it to end, wait, kill it after ``grace_s``, and return when it is gone. Idempotent.

        Cancelling stops the waiting; the asking has been done."""
        self._ask_to_end()
        with trio.move_on_after(grace_s):
            await self._ended.wait()
            return
        self.kill()
        await self._ended.wait()

    def _ask_to_end(self) -> None:
        self.send_signal(signal.SIGCONT)  # A stopped process would not see the other one.
        self.send_signal(signal.SIGTERM)

    async def _reap(self) -> None:
        with self._reaper:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._process.wait()
            self._ended.set()

    def _close(self) -> None:
        if self.exit_status is not None:
            os.close(self._pidfd)

    def how_it_ended(self) -> str:
        """Its end in words, with the last line that it wrote to its log."""
        status = self.exit_status
        if status is None:
            return f"{self.name} (process {self.pid}) is running"
        if status < 0:
            return f"{self.name} (process {self.pid}) was ended by {signal.Signals(-status).name}"
        last = tail_of(self.log_path)
        return f"{self.name} (process {self.pid}) ended with status {status}{': ' + last if last else ''}"


class Children:
    """Starts processes. Made by ``open_children``."""

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
        """Start a process; ``command[0]`` is the path of a program.

        ``pipe_in`` and ``pipe_out`` ask for pipes to its standard input and from its standard output;
        without, it reads nothing and what it says there goes where its standard error goes. That is
        appended to ``log_path``, or discarded where there is none. Returns once the program runs and is tied
        to this process. Raises ChildFailed where the operating system refuses. If cancelled, the process
        may run, until the ``Children`` end."""
        child, report_fd = _spawn(
            name, [os.fspath(part) for part in command], pipe_in, pipe_out, log_path, environment, cwd
        )
        self._children.append(child)
        self._nursery.start_soon(child._reap)
        async with trio.lowlevel.FdStream(report_fd) as report:
            refusal = await report.receive_some()  # b"" once the program has taken over.
        if refusal:
            raise ChildFailed(f"{name} could not be started: {refusal.decode(errors='replace')}")
        return child

    @property
    def running(self) -> list[Child]:
        """Those that have not ended, in the order of their start."""
        return [child for child in self._children if child.is_running]

    async def _end_all(self, grace_s: float) -> None:
        # Even when all is being cancelled. Each step is bounded.
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
async def open_children(*, grace_s: float = GRACE_S) -> AsyncIterator[Children]:
    """Processes for the body of the ``async with``; none is left after it.

    Leaving takes at most ``grace_s`` and some seconds more, even when it is cancelled."""
    children: Children | None = None
    try:
        async with open_nursery() as nursery:
            children = Children(nursery)
            try:
                yield children
            finally:
                await children._end_all(grace_s)
    finally:
        for child in children._children if children is not None else []:
            child._close()


def _spawn(
    name: str,
    command: Sequence[str],
    pipe_in: bool,
    pipe_out: bool,
    log_path: Path | None,
    environment: Mapping[str, str] | None,
    cwd: Path | None,
) -> tuple[Child, int]:
    """A process that is about to become ``command``, and the pipe that tells when it has."""
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


def tail_of(log_path: Path | None, *, bytes_max: int = 4096) -> str:
    """The last line of a log file that is not blank; "" where there is none."""
    if log_path is None:
        return ""
    try:
        with log_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - bytes_max))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
