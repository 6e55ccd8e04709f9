"""Rules for all tests: nothing that a test starts outlives it, and how many examples hypothesis draws.

**Nothing outlives a test.** After each test no new thread may be left that would keep the interpreter alive,
that is, no thread other than daemons. After a test that is marked ``processes`` no new process may be left
either. The fixture puts a token into the environment, and children inherit it. So the fixture finds
grandchildren too, even if their parent was killed and init adopted them. It finds children that were given
another environment by their parent. Threads and processes first get some time to end by themselves. If one is
still there, the fixture ends it, so that it does not disturb the next tests, and the test fails with its
command line. Processes of fixtures with a wider scope do not count: they were there before the test, or
``SHARED_PROCESSES`` names them.

The search for processes reads ``/proc``. If there is no ``/proc``, nothing is searched.

**Several workers.** ``make test`` runs tests in several processes (pytest-xdist). ``-n auto`` means one
worker more than there are cores, because many tests wait for processes. Every test has its own directory and
its own ports, and each worker has its own token, so no test sees the processes of another. A worker takes one
file at a time, and the whole folder ``tests/spark`` at once, because a Spark session takes long to start.
``tests/spark`` is the largest piece, so it goes first. Each worker starts its own ZooKeeper server and its
own Spark session, and only if one of its tests asks for it. Without ``-n`` pytest runs everything in its own
process.

**A limit.** A test that hangs fails, with all stacks: see ``tests/hanging.py``.

**Signals.** ``nohup`` and some shells start a run with signals ignored, and children would inherit that. The
process of the tests goes on ignoring these signals, but by a handler of its own. So the programs that tests
start get them.

**Compiled once.** Tests start hundreds of our processes. Without compiled modules, a process spends half of
its start on compiling them. So the run keeps compiled files even if ``PYTHONDONTWRITEBYTECODE`` is set.

**Garbage.** The tests that were collected live until the end of the run. So the garbage collector does not
run while they are collected, and afterwards they are put out of its sight. It also runs less often than
usual. A test makes thousands of objects that live as long as the test; looking through them every few hundred
objects took a sixth of the time of the tests that run in one process. But a cluster inside a test keeps its
buffers until the collector finds them. So the collector runs once a few hundred megabytes have come together.

**Hypothesis.** ``quick`` is the default: it draws few examples, and the same ones in every run.
``--hypothesis-profile=soak`` draws many new ones. Neither has a deadline, because the time of an example says
more about the machine than about the code.
"""

from __future__ import annotations

import gc
import itertools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
import xdist
from xdist.scheduler import LoadFileScheduling

from tests.started import TOKEN_VARIABLE, processes_of
from tests.zookeepers import SHARED_PROCESSES, SecuredServer, one_server, secured_server

pytest_plugins = ["tests.hanging"]

GRACE_S = 60.0
"""How long what a test started may take to end by itself: many times what it takes."""
TAKEN_WHOLE = ("tests/spark/",)
"""What one worker runs alone, because it shares what is dear."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_GROWTH_BYTES = 256 * 1024 * 1024
_NEW_OBJECTS = 50_000
"""How many new objects make the garbage collector look at them; Python's own default is 700."""

_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""In itself; what ``subprocess`` and trio start gets them."""

_PROC = Path("/proc")
_numbers = itertools.count()

hypothesis.settings.register_profile(
    "quick",
    max_examples=40,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "soak",
    max_examples=5_000,
    stateful_step_count=200,
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("quick")


def pytest_sessionstart(session: pytest.Session) -> None:
    if xdist.is_xdist_controller(session):
        return  # It runs no tests. Its workers do, and have to see what was ignored.
    for number in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)
    gc.disable()  # Until the tests are collected.


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal as SIG_IGN does, but let programs that this process starts begin with the default."""


class FilesAndFolders(LoadFileScheduling):
    """Which tests go to one worker together: those of a file, or of a folder that is taken whole."""

    def _split_scope(self, nodeid: str) -> str:
        whole = [folder for folder in TAKEN_WHOLE if nodeid.startswith(folder)]
        return whole[0] if whole else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndFolders | None:
    return FilesAndFolders(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_xdist_auto_num_workers() -> int:
    given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(given) if given else len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If several workers share the tests, those that one worker takes whole come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(TAKEN_WHOLE))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


@pytest.fixture(autouse=True)
def memory_comes_back() -> Iterator[None]:
    """Looks for garbage where the process has grown much since it was last looked for."""
    yield
    if _resident_bytes() > _Memory.left_bytes + _GROWTH_BYTES:
        gc.collect()
        _Memory.left_bytes = _resident_bytes()


class _Memory:
    left_bytes = 0
    """What was resident after the last look."""


def _resident_bytes() -> int:
    """What of the memory of this process lies in memory; 0 where there is no /proc."""
    try:
        pages = int((_PROC / "self" / "statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def nothing_outlives_the_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fails the test that leaves a thread (and, where it is marked ``processes``, a process) behind."""
    threads_before = set(threading.enumerate())
    watch_processes = request.node.get_closest_marker("processes") is not None and _PROC.is_dir()
    token = ""
    children_before: set[int] = set()
    if watch_processes:
        token = f"{os.getpid()}-{next(_numbers)}"
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        children_before = processes_of(token)
    yield
    left = []
    if watch_processes:
        left += _end_processes(processes_of(token) - children_before - SHARED_PROCESSES)
    left += _wait_for_threads(set(threading.enumerate()) - threads_before)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def pyiceberg_ends_its_threads() -> Iterator[None]:
    """Ends the threads that pyiceberg keeps for the next table."""
    yield
    executors = sys.modules.get("pyiceberg.utils.concurrent")
    if executors is not None and (left := executors.ExecutorFactory._instance) is not None:
        executors.ExecutorFactory._instance = None
        left.shutdown()


@pytest.fixture(scope="session")
def zookeeper_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a ZooKeeper server for all tests of the run; each takes a chroot of its own."""
    with one_server(tmp_path_factory.mktemp("zookeeper")) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def secured_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """A ZooKeeper server that identifies its clients, for all tests of the run."""
    with secured_server(tmp_path_factory.mktemp("secured-zookeeper")) as server:
        yield server


def _wait_for_threads(started: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + GRACE_S
    left = []
    for thread in started:
        if thread.daemon:
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            left.append(f"thread {thread.name!r}")
    return left


def _end_processes(pids: set[int]) -> list[str]:
    """Waits for the processes to end by themselves; kills the rest and describes them."""
    deadline = time.monotonic() + GRACE_S
    left = []
    for pid in sorted(pids):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            command = (
                (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            # A pidfd becomes readable when its process ends; select measures in seconds.
            ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], GRACE_S)
                left.append(f"process {pid} ({command.strip()})")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended between two looks.
        finally:
            os.close(descriptor)
    return left
