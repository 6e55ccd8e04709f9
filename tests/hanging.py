"""A limit for every test: one that hangs fails, with the stacks of all threads and of all trio tasks.

A pytest plugin. Each phase of a test (setup, call, teardown) may take ``LIMIT_S``; a test that is marked
``processes`` or ``soak`` may take longer, and one marked ``limit_s(seconds)`` as long as that says. The
limits are many times what tests take on a slow and busy machine: they find what hangs, and say nothing
about speed.

A thread watches. When a phase is over its limit, the thread takes the stacks and ends the phase by the first
of these that helps, ``grace_s`` apart:

1. It cancels every trio run, through shields too, so that the test closes its files and processes.
2. It raises ``Expired`` in the main thread. Step 1 does so, too, if no trio run is there.
3. It repeats step 2, because a ``finally`` that step 2 reached may hang as well.
4. It prints the stacks and ends the process, and the processes that the test started. That is for a main
   thread that never comes back to the interpreter. pytest-xdist replaces the worker, and the run goes on.

If the phase ends after 1, 2 or 3, its report is a failure that shows the stacks.

Code in C that keeps the interpreter's lock stops the watching thread as well. Therefore the thread sets the
timer of ``faulthandler`` again at each tick; that one needs no lock, prints the stacks and ends the process.

Time counts in ticks of the thread, so that a stopped machine takes nothing from a test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

import pytest
import trio

from tests.started import TOKEN_VARIABLE, processes_of

LIMIT_S = 900.0
LONGER_S = {"soak": 6 * 3600.0, "processes": 1800.0}
"""The limit of tests with these marks; the first that a test has counts."""

_GRACE_S = 60.0
_TICK_S = 1.0
_STUCK_GRACES = 10
"""After that many graces without a tick the interpreter's lock is taken to be kept for ever."""
_RUNS_TESTS = re.compile(r"<frozen runpy>|/(_pytest|pluggy|xdist|trio/_core)/")
"""Code that lies in every stack and says nothing about a test."""
_SIGNAL = signal.SIGALRM


class Expired(BaseException):
    """The test took longer than its limit. No Exception: nothing may take it for a failure it expected."""


class Watch:
    """Looks at one phase of a test after the other, from a thread of its own."""

    def __init__(self, grace_s: float, errors: int) -> None:
        self._grace_s = grace_s
        self._errors = errors
        self._lock = threading.Lock()
        self._closed = threading.Lock()
        self._closed.acquire()
        self._thread = threading.Thread(target=self._watch, name="limit of the test", daemon=True)
        self._name = ""
        self._limit_s = 0.0
        self._left_s = 0.0
        self._step = 0
        self._said = ""
        self._running = False

    def open(self) -> None:
        signal.signal(_SIGNAL, self._expire)
        self._expect_a_tick()
        self._thread.start()

    def close(self) -> None:
        self._closed.release()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        os.close(self._errors)

    def begin(self, name: str, limit_s: float) -> None:
        """Another phase begins."""
        with self._lock:
            self._name, self._limit_s, self._left_s = name, limit_s, limit_s
            self._step, self._said, self._running = 0, "", True

    def end(self) -> str:
        """The phase is over. What it hung in, if it was over its limit."""
        self._running = False  # First, because the signal may arrive while this waits for the lock.
        with self._lock:
            return self._said

    def _watch(self) -> None:
        tick_s = min(_TICK_S, self._grace_s / 4)
        # A lock waits by itself, whatever a test put in the place of time.sleep and its like.
        while not self._closed.acquire(timeout=tick_s):
            self._expect_a_tick()
            with self._lock:
                if not self._running:
                    continue
                self._left_s -= tick_s
                if self._left_s <= 0:
                    self._left_s = self._grace_s
                    self._end_phase()

    def _expect_a_tick(self) -> None:
        faulthandler.dump_traceback_later(_STUCK_GRACES * self._grace_s, exit=True, file=self._errors)

    def _end_phase(self) -> None:
        stacks = f"{self._name} took longer than {self._limit_s:g} s\n\n{all_stacks()}"
        self._said = self._said or stacks
        self._step += 1
        if self._step == 1 and _cancel_everything():
            return
        if self._step <= 3:
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            return
        with contextlib.suppress(OSError):
            os.write(self._errors, f"\n{self._said}\nIt cannot be ended. Now:\n\n{stacks}\n".encode())
        _kill_processes()
        os._exit(1)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        if self._running:
            raise Expired(f"{self._name} took longer than {self._limit_s:g} s")


def all_stacks() -> str:
    """The stacks of all threads but this one, each with the tree of the tasks that it runs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            lines.append(f"Thread {names.get(ident, ident)!r}, innermost call last:\n")
            lines += _format(traceback.extract_stack(frame))
            lines += [line for runner in _runners(frame) for line in _tree(runner.init_task, 1)]
            lines.append("\n")
    return "".join(lines)


def _tree(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    margin = "    " * depth
    yield f"{margin}Task {task.name}:\n"
    try:
        frames = traceback.StackSummary.extract(iter(list(task.iter_await_frames())))
    except Exception as error:  # It goes on while we look, or waits for what tells nothing about itself.
        yield f"{margin}  (no stack: {error!r})\n"
    else:
        for text in _format(frames):
            yield "".join(f"{margin}{line}\n" for line in text.splitlines())
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            yield from _tree(child, depth + 1)


def _format(stack: traceback.StackSummary) -> list[str]:
    told = [line for line in stack if not _RUNS_TESTS.search(line.filename)]
    return traceback.StackSummary.from_list(told).format()


def _runners(frame: FrameType | None) -> Iterator[Any]:
    """The trio run that a thread with this stack is in, if it is: nobody else tells it to another thread."""
    while frame is not None:
        if frame.f_code is trio.run.__code__:
            yield frame.f_locals["runner"]
        frame = frame.f_back


def _cancel_everything() -> bool:
    """Cancels the trio run of each thread; whether there was one."""
    found = False
    for frame in sys._current_frames().values():
        for runner in _runners(frame):
            found = True
            with contextlib.suppress(trio.RunFinishedError):
                runner.entry_queue.run_sync_soon(_cancel_run, runner)
    return found


def _cancel_run(runner: Any) -> None:
    for task in list(runner.tasks):
        status = task._cancel_status
        while status is not None:
            status._scope.shield = False
            status = status._parent
    if runner.main_task is not None and runner.main_task.parent_nursery is not None:
        runner.main_task.parent_nursery.cancel_scope.cancel()


def _kill_processes() -> None:
    for pid in processes_of(os.environ.get(TOKEN_VARIABLE, "")):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def limit_s(item: pytest.Item) -> float:
    """How long each phase of this test may take."""
    if mark := item.get_closest_marker("limit_s"):
        return float(mark.args[0])
    return next((longer_s for mark, longer_s in LONGER_S.items() if item.get_closest_marker(mark)), LIMIT_S)


_WATCH = pytest.StashKey[Watch]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "hang_grace_s", "how long a test over its limit gets to end, at each step", default=str(_GRACE_S)
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit_s(seconds): fails if its setup, call or teardown takes longer")


def pytest_sessionstart(session: pytest.Session) -> None:
    # Nothing is captured now, and so this is where errors of the run itself go.
    watch = Watch(float(session.config.getini("hang_grace_s")), os.dup(2))
    watch.open()
    session.config.stash[_WATCH] = watch


def pytest_unconfigure(config: pytest.Config) -> None:
    if watch := config.stash.get(_WATCH, None):
        watch.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    watch = item.config.stash[_WATCH]
    watch.begin(item.nodeid, limit_s(item))
    try:
        return (yield)
    finally:
        watch.end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    watch = item.config.stash[_WATCH]
    said = watch.end()
    report = yield
    if said:
        report.outcome = "failed"
        report.longrepr = f"{said}{report.longreprtext}"
    watch.begin(item.nodeid, limit_s(item))
    return report
