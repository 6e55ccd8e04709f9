"""Deterministic runs: one seed decides the schedule, the time and every random choice.

``Simulation(seed).run(main)`` runs ``await main(simulation)`` under trio with simulated time. The same seed
gives the same run, step for step, in any process and with any ``PYTHONHASHSEED``. This needs:

* **The schedule.** trio has a flag for deterministic runs, made for the package hypothesis. With it, trio
  sorts each batch of runnable tasks by their number, and shuffles it with a generator of its own. This module
  sets the flag, and gives the thread of the run a generator that the seed decides. Loops in other threads
  keep trio's own.
* **The time.** A ``MockClock`` with rate zero. If no task can run, trio's loop asks the clock to jump. The
  clock jumps to the next timer or to the next deadline of a cancel scope, whichever is earlier. It calls all
  timers that are due then. No task drives the clock, and nothing waits in real time.
* **Random choices.** Each concern has its own generator, for example ``random("network")``. The name of the
  concern and the seed of the run seed it. So if one concern draws one more number, the choices of the other
  concerns stay the same.
* **The rest of the world.** Inside a run the clocks of ``time``, the functions of ``random``, ``os.urandom``,
  sockets, threads, subprocesses and loops of asyncio raise ``Nondeterminism``. So a leak is an error, and not
  a failure that you cannot repeat. Python cannot block everything: ``datetime.now()``, an unseeded
  ``random.Random()``, the iteration order of sets of text, and addresses of objects stay possible. If the
  hash of a run differs between two processes, the run used one of these.
* **Garbage.** The garbage collector is off during a run, because it would run finalisers at arbitrary times.
  It collects between runs.

**The trace** is a hash (blake2b) over the time, kind and arguments of every event that the simulated network,
the disks, the metadata and your own code report. Equal hashes mean equal runs. The last lines are also kept
as text. Arguments are numbers, text and bytes, never the text of an exception or of an object, because such
a text may contain an address. ``is_strict`` adds every step of every task to the hash.

**Deadlock** is detected without extra cost: if the loop wants to jump, and there is no timer and no deadline,
nothing can ever happen again. The run is cancelled, and ``Deadlock`` names the remaining tasks. A bound on
CPU time ends a run that never becomes idle. A bound on simulated time ends a run that loops forever in
simulated time, and ``SimulatedTimeExceeded`` names the tasks that wait in the user's own code. There is no
bound on wall time, because wall time depends more on the machine than on the run.

Only this module uses private names of trio. It looks them up when it is imported. If a version of trio lacks
one, the import fails and names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import logging
import math
import os
import random as random_module
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from hashlib import blake2b
from random import Random
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio
import trio.testing
from outcome import capture

__all__ = [
    "CpuTimeExceeded",
    "Deadlock",
    "Nondeterminism",
    "Outcome",
    "RunningProcess",
    "SimulatedTimeExceeded",
    "Simulation",
    "Timer",
    "Trace",
    "current_simulation",
    "is_users",
]

T = TypeVar("T")

_NOT_USERS = ("ledgerlog", "bookie", "trio", "contextlib")

TRACE_LINES = 2000
"""How many lines at the end of a trace are kept as text."""

CPU_S_MAX = 120.0
"""The CPU time that a run may take, in seconds, if you do not pass another bound."""

SIMULATED_S_MAX = 24 * 3600.0
"""The simulated time that a run may take, in seconds, if you do not pass another bound."""


_TURNS_PER_POLL = 64

_GRACE_CPU_S = 2.0
"""The CPU time, in seconds, that a run may take to end after it was cancelled for its CPU time."""


class Deadlock(Exception):
    """No task could ever run again: no timer and no deadline was left. The message names the tasks."""


class Nondeterminism(Exception):
    """Code inside a run used a real clock, real randomness, a thread, a socket, a subprocess or asyncio.

    The message names it and says what to do instead.
    """


class SimulatedTimeExceeded(Exception):
    """The run exceeded its bound on simulated time.

    The message names the tasks that wait in your own code.
    """


class CpuTimeExceeded(BaseException):
    """The run exceeded its bound on CPU time.

    It is not an ``Exception``, so that no handler treats it as a fault of the simulated world.
    """


# --- trio's private names -------------------------------------------------------------------------


def _trio_internals() -> Any:
    import trio._core._run as run

    wanted = {
        "_ALLOW_DETERMINISTIC_SCHEDULING": run,
        "_r": run,
        "GLOBAL_RUN_CONTEXT": run,
        "next_deadline": getattr(run, "Deadlines", None),
        "instruments": getattr(run, "Runner", None),
        "io_manager": getattr(run, "Runner", None),
        "_counter": getattr(run, "Task", None),
        "_autojump": trio.testing.MockClock,
    }
    missing = [name for name, owner in wanted.items() if not hasattr(owner, name)]
    clock = trio.testing.MockClock()
    missing += [name for name in ("_virtual_base", "_real_clock") if not hasattr(clock, name)]
    if missing:
        raise ImportError(
            f"ledgerlog.testing does not know trio {trio.__version__}: it has no {', '.join(missing)}. "
            "Simulation was built against trio 0.30 to 0.35; install one of those"
        )
    return run


_run_module = _trio_internals()


# --- the trace ------------------------------------------------------------------------------------


class Trace:
    """The events of a run, as a hash, and the last of them as text."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._lines: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=TRACE_LINES)
        self.events = 0

    def add(self, now: float, kind: str, args: tuple[object, ...]) -> None:
        """Add an event."""
        self.events += 1
        self._hash.update(f"{now:.9f} {kind} {args!r}\n".encode())
        self._lines.append((now, kind, args))

    def add_step(self, step: bytes) -> None:
        """Add a step of a task to the hash only."""
        self._hash.update(step)

    @property
    def digest(self) -> str:
        """The hash of all events so far, in hexadecimal."""
        return self._hash.hexdigest()

    def lines(self, count: int = TRACE_LINES) -> list[str]:
        """Return the last ``count`` events as text, at most ``TRACE_LINES``."""
        chosen = list(self._lines)[-count:] if count else []
        return [f"{now:12.6f} {kind} {' '.join(map(str, args))}".rstrip() for now, kind, args in chosen]


class _Steps(trio.abc.Instrument):
    """An instrument of trio that adds every step of every task to the trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._trace.add_step(task.name.encode())


# --- timers ---------------------------------------------------------------------------------------


class Timer:
    """A call planned for a later time."""

    __slots__ = ("args", "call")

    def __init__(self, call: Callable[..., None] | None, args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args

    def cancel(self) -> None:
        """Cancel the call. You may cancel it twice, or after it was made."""
        self.call = None
        self.args = ()


# --- runs -----------------------------------------------------------------------------------------


@attrs.frozen
class Outcome(Generic[T]):
    """The result of a run that ended without an error. ``simulate`` and ``Simulation.run`` return it."""

    value: T
    """The value that ``main`` returned."""
    trace_hash: str
    """The hash of all events. Two runs with equal hashes were equal."""
    events: int
    """How many events the hash covers."""
    simulated_s: float
    """The simulated time that the run took, in seconds."""
    cpu_s: float
    """The CPU time that the run took, in seconds."""


class RunningProcess(Protocol):
    """One life of a simulated process (``ledgerlog.testing.process.Incarnation``)."""

    async def delay(self, seconds: float) -> None: ...

    def enter_door(self) -> None: ...

    def leave_door(self) -> None: ...


running_process: ContextVar[RunningProcess | None] = ContextVar("running process", default=None)
"""The simulated process whose task runs. None: the task belongs to none."""

_running: list[Simulation] = []
"""The current simulation, if there is one. Simulations do not nest."""


def current_simulation() -> Simulation:
    """Return the simulation that the caller runs in.

    Raises:
        RuntimeError: The caller is not inside a simulated run.
    """
    if not _running:
        raise RuntimeError(
            "this only works inside a simulated run: use ledgerlog.testing.simulate(scenario, seed=...) "
            "instead of trio.run"
        )
    return _running[0]


class Simulation:
    """One run, with its seed.

        Simulation(seed=1).run(main)  # runs ``await main(simulation)``

    Args:
        seed: Decides the schedule and every random choice of the run.
        is_strict: Hash every step of every task into the trace, too.
    """

    def __init__(self, seed: int | str, *, is_strict: bool = False) -> None:
        self.seed = seed
        """The seed, as you passed it."""
        self.trace = Trace()
        """The events so far, as a hash and as text."""
        self.cpu_s = 0.0
        """The CPU time that the run took, in seconds. 0 until it has ended."""
        self.threads_are_steps = False
        """Whether the work of ``trio.to_thread.run_sync`` is done as a step of the calling task. If not, a
        thread is refused. The work may use the real world, for example for a name of a temporary file. Its
        result must not depend on it."""
        self.thread_s = 0.0
        """How long such work takes on average in a simulated process, in seconds. 0: no time."""
        self._is_strict = is_strict
        self._streams: dict[str, Random] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._clock = trio.testing.MockClock(autojump_threshold=0)
        self._scope = trio.CancelScope()
        self._failure: BaseException | None = None
        self._cleanup = contextlib.ExitStack()
        self._token: trio.lowlevel.TrioToken | None = None
        self._simulated_s_max = SIMULATED_S_MAX
        self._was_run = False

    # --- inside a run -------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Simulated seconds since the start of the run. ``trio.current_time()`` returns the same."""
        return self._clock._virtual_base

    def random(self, stream: str) -> Random:
        """Return the random generator of one concern.

        Args:
            stream: The name of the concern. The same name gives the same generator.
        """
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = Random(f"{stream}/{self.seed}")
        return found

    def event(self, kind: str, *args: object) -> None:
        """Add an event to the trace.

        Args:
            kind: The kind of the event.
            args: Numbers, text and bytes. Do not pass the text of an exception or of an object: it may
                contain an address, which differs between runs.
        """
        self.trace.add(self.now, kind, args)

    def at(self, when: float, call: Callable[..., None], *args: Any) -> Timer:
        """Plan a call at a certain time, outside of any task.

        Args:
            when: The simulated time. If it is past, the call comes at the current time.
            call: The function to call. It must not raise.
            args: Its arguments.

        Returns:
            The timer. Call its ``cancel`` to cancel the call.
        """
        timer = Timer(call, args)
        self._sequence += 1
        heapq.heappush(self._heap, (max(when, self.now), self._sequence, timer))
        return timer

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        """Plan a call after a delay, outside of any task.

        Args:
            delay_s: The simulated seconds from now.
            call: The function to call. It must not raise.
            args: Its arguments.

        Returns:
            The timer. Call its ``cancel`` to cancel the call.
        """
        return self.at(self.now + delay_s, call, *args)

    # --- the run ------------------------------------------------------------------------------

    def run(
        self,
        main: Callable[[Simulation], Awaitable[T]],
        *,
        cpu_s_max: float = CPU_S_MAX,
        simulated_s_max: float = SIMULATED_S_MAX,
    ) -> Outcome[T]:
        """Run ``await main(self)`` to its end. Call it once, and outside of any event loop.

        Args:
            main: An async function. It gets this simulation.
            cpu_s_max: The CPU time that the run may take, in seconds. Only the main thread checks it.
            simulated_s_max: The simulated time that the run may take, in seconds.

        Returns:
            The ``Outcome``: the result of ``main``, and the hash of the run.

        Raises:
            Deadlock: Nothing more could happen.
            SimulatedTimeExceeded: The run exceeded ``simulated_s_max``.
            CpuTimeExceeded: The run exceeded ``cpu_s_max``.
            Exception: ``main`` raised it.

        Every error has a note with the seed and the last events.
        """
        assert not self._was_run, "a simulation runs once"
        self._was_run = True
        self._simulated_s_max = simulated_s_max
        assert not _running, "simulations do not nest"
        started = time.process_time()
        try:
            with (
                _deterministic_trio(self.seed),
                _gc_resting(),
                contextlib.ExitStack() as self._cleanup,
                self._cpu_bound(cpu_s_max),
            ):
                clock: Any = self._clock
                clock._real_clock = lambda: 0.0
                clock.current_time = lambda: clock._virtual_base
                clock._autojump = self._jump
                instruments = [_Steps(self.trace)] if self._is_strict else []
                value = trio.run(self._main, main, clock=clock, instruments=instruments)
        except trio.TrioInternalError as error:
            cause = error.__cause__
            raise self._noted(cause if isinstance(cause, CpuTimeExceeded | Deadlock) else error) from None
        except BaseException as error:
            self._noted(error)
            raise
        finally:
            self.cpu_s = time.process_time() - started
        return Outcome(value, self.trace.digest, self.trace.events, self.now, self.cpu_s)

    def _noted(self, error: BaseException) -> BaseException:
        lines = "\n".join(f"  {line}" for line in self.trace.lines(20))
        error.add_note(
            f"seed {self.seed!r} at {self.now:.6f} simulated seconds, trace hash {self.trace.digest}; "
            f"last events:\n{lines}"
        )
        return error

    async def _main(self, main: Callable[[Simulation], Awaitable[T]]) -> T:
        # ``run`` undoes these, because a run that is killed does not return here.
        _running.append(self)
        self._cleanup.callback(_running.clear)
        self._cleanup.enter_context(_forbidden(self))
        self._token = trio.lowlevel.current_trio_token()
        self._cleanup.enter_context(_lean_loop(_run_module.GLOBAL_RUN_CONTEXT.runner))
        try:
            with self._scope:
                return await main(self)
        finally:
            self._cleanup.close()
        assert self._failure is not None
        raise self._failure

    def _jump(self) -> None:
        """Advance the time. trio's loop calls it when no task can run."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heapq.heappop(heap)
        deadline: float = _run_module.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        when = min(heap[0][0] if heap else math.inf, deadline)
        if when == math.inf:
            self._fail(Deadlock(f"nothing more can happen; tasks left: {', '.join(_task_names())}"))
            return
        if when > self._simulated_s_max and self._failure is None:
            waiting = "; ".join(_users_tasks()) or "no task in your own code"
            self._fail(
                SimulatedTimeExceeded(
                    f"the run continues beyond {self._simulated_s_max:g} s; still waiting: {waiting}"
                )
            )
            return
        clock: Any = self._clock
        clock._virtual_base = max(when, clock._virtual_base)
        while heap and heap[0][0] <= when:
            timer = heapq.heappop(heap)[2]
            if timer.call is not None:
                timer.call(*timer.args)

    @contextlib.contextmanager
    def _cpu_bound(self, seconds: float) -> Iterator[None]:
        """End the run if it uses more CPU time. First cancel it; if that does not help, raise in its code.

        Only the main thread gets signals. In another thread there is no bound.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        failure = CpuTimeExceeded(f"the run took more than {seconds:g} s of CPU time")

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._failure is not None or self._token is None:
                raise failure
            self._token.run_sync_soon(self._fail, failure)

        before = signal.signal(signal.SIGPROF, on_signal)
        signal.setitimer(signal.ITIMER_PROF, seconds, _GRACE_CPU_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _fail(self, failure: BaseException) -> None:
        """Cancel the run, so that it can clean up. If the run is cancelled already, raise at once."""
        if self._failure is not None:
            raise Deadlock(f"a cancelled run does not end; first: {self._failure}")
        self._failure = failure
        self._scope.cancel()


def _tasks() -> list[Any]:
    return sorted(_run_module.GLOBAL_RUN_CONTEXT.runner.tasks, key=lambda task: task._counter)


def _task_names() -> list[str]:
    return [task.name for task in _tasks()]


def is_users(frame: FrameType) -> bool:
    """Return whether a frame is of the user's own code. All other frames tell nothing about a scenario."""
    return frame.f_globals.get("__name__", "").split(".")[0] not in _NOT_USERS


def _users_tasks() -> list[str]:
    """Name the tasks that wait in the user's own code, each with its innermost line there.

    The tasks of bookies and those inside of clients run no such code.
    """
    found = []
    for task in _tasks():
        places = [
            f"{task.name} in {frame.f_code.co_name} ({frame.f_code.co_filename}:{line})"
            for frame, line in task.iter_await_frames()
            if is_users(frame)
        ]
        found += places[-1:]
    return found


class _ChanceOfThisThread:
    """trio's random generator during a run.

    All loops of a process share one generator. If a loop of another thread drew from the seeded one, it would
    change the run. So only the thread that makes this object draws from ``seeded``.
    """

    def __init__(self, seeded: Random, others: Random) -> None:
        self._seeded = seeded
        self._others = others
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seeded if threading.get_ident() == self._thread else self._others, name)

    def shuffle(self, batch: list[Any]) -> None:
        if len(batch) > 1:  # Most batches have one task.
            self.__getattr__("shuffle")(batch)


class _NoInstruments(dict[str, Any]):
    """trio's table of instruments while there are none. trio asks it four times in every turn of the loop."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self._runner = runner
        self._real = runner.instruments

    def __getattr__(self, name: str) -> Any:
        self._runner.instruments = self._real  # A caller adds an instrument.
        return getattr(self._real, name)


class _RareInput:
    """trio's input and output during a run. A run uses neither.

    Only signals arrive from outside, and they can wait for a few turns of the loop. So trio asks the kernel
    only once in ``_TURNS_PER_POLL`` turns.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self._turns_left = _TURNS_PER_POLL

    def get_events(self, timeout: float) -> Any:
        self._turns_left -= 1
        if self._turns_left:
            return ()
        self._turns_left = _TURNS_PER_POLL
        return self._real.get_events(timeout)

    def process_events(self, events: Any) -> None:
        if events:
            self._real.process_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextlib.contextmanager
def _lean_loop(runner: Any) -> Iterator[None]:
    """Remove the parts of trio's loop that serve only the real world. The schedule stays the same.

    Put the loop's input back before the loop ends, because the loop needs it then."""
    polling = runner.io_manager
    runner.io_manager = _RareInput(polling)
    if not runner.instruments["_all"]:
        runner.instruments = _NoInstruments(runner)
    try:
        yield
    finally:
        runner.io_manager = polling


@contextlib.contextmanager
def _deterministic_trio(seed: int | str) -> Iterator[None]:
    flag, chance = _run_module._ALLOW_DETERMINISTIC_SCHEDULING, _run_module._r
    _run_module._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run_module._r = _ChanceOfThisThread(Random(f"trio/{seed}"), chance)
    try:
        yield
    finally:
        _run_module._ALLOW_DETERMINISTIC_SCHEDULING = flag
        _run_module._r = chance


@contextlib.contextmanager
def _gc_resting() -> Iterator[None]:
    was_enabled = gc.isenabled()
    # Free the objects of the previous run. They are in the two youngest generations, because objects do not
    # age while the collector is off. Right after that run the objects are still in use, so a collection at
    # that moment would only age them.
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- the real world, which a run must not use -----------------------------------------------------

_TIME_ADVICE = "take time from trio.current_time(), and wait with trio.sleep()"
_CHANCE_ADVICE = "take chance from a seeded generator, for example cluster.simulation.random(...)"
_NETWORK_ADVICE = "a simulated process has no network but the one to its cluster, which its client uses"
_TRIO_ADVICE = (
    "only code that runs on trio can be simulated, without threads, other processes or asyncio; test the "
    "rest of the program against memory: or a real cluster"
)

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
_CHANCE = (
    "betavariate",
    "choice",
    "choices",
    "expovariate",
    "gauss",
    "getrandbits",
    "normalvariate",
    "randbytes",
    "randint",
    "random",
    "randrange",
    "sample",
    "seed",
    "shuffle",
    "triangular",
    "uniform",
)


@contextlib.contextmanager
def _forbidden(simulation: Simulation) -> Iterator[None]:
    """Make the real world raise Nondeterminism during the body. Log records get simulated time.

    Only this thread simulates. Threads that existed before the run, for example the threads of a JVM gateway,
    continue using the real world. The run itself cannot start a thread.
    """
    replaced: list[tuple[Any, str, Any]] = []
    simulating = threading.get_ident()

    def forbid(owner: Any, name: str, spelled: str, advice: str) -> None:
        original = getattr(owner, name)

        def refuse(*args: object, **kwargs: object) -> Any:
            if threading.get_ident() != simulating or is_thread:
                return original(*args, **kwargs)
            if sys._getframe(1).f_globals is vars(logging):
                if name == "time":
                    return simulation.now
                if name == "time_ns":  # Since Python 3.13.
                    return round(simulation.now * 1e9)
            raise Nondeterminism(f"{spelled} was called in a simulated run: {advice}")

        replace(owner, name, refuse)

    def replace(owner: Any, name: str, substitute: Callable[..., Any]) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, substitute)

    is_thread = False
    run_in_thread, start_thread = trio.to_thread.run_sync, trio.lowlevel.start_thread_soon

    async def run_as_step(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if threading.get_ident() != simulating:
            return await run_in_thread(work, *args, **options)
        nonlocal is_thread
        check_threads("trio.to_thread.run_sync")
        process = running_process.get()
        if process is None or not simulation.thread_s:
            await trio.lowlevel.checkpoint()
        else:
            await process.delay(simulation.random("threads").expovariate(1 / simulation.thread_s))
        if process is not None:
            process.enter_door()
        is_thread = True
        try:
            result = work(*args)
        finally:
            is_thread = False
        if process is not None:
            process.leave_door()
        return result

    def start_as_step(work: Callable[[], Any], deliver: Callable[..., object], *args: Any) -> None:
        if threading.get_ident() != simulating:
            start_thread(work, deliver, *args)
            return
        check_threads("trio.lowlevel.start_thread_soon")
        deliver(capture(work))

    def check_threads(spelled: str) -> None:
        if not simulation.threads_are_steps:
            raise Nondeterminism(f"{spelled} was called in a simulated run: {_TRIO_ADVICE}")

    try:
        for name in _CLOCKS:
            forbid(time, name, f"time.{name}", _TIME_ADVICE)
        for name in _CHANCE:
            forbid(random_module, name, f"random.{name}", _CHANCE_ADVICE)
        forbid(random_module, "_urandom", "random.SystemRandom", _CHANCE_ADVICE)
        forbid(os, "urandom", "os.urandom", _CHANCE_ADVICE)
        forbid(socket, "socket", "socket.socket", _NETWORK_ADVICE)
        forbid(threading.Thread, "start", "threading.Thread.start", _TRIO_ADVICE)
        forbid(subprocess.Popen, "__init__", "subprocess.Popen", _TRIO_ADVICE)
        for module in (asyncio, asyncio.events):  # asyncio.run takes it from the second.
            forbid(module, "new_event_loop", "asyncio.new_event_loop", _TRIO_ADVICE)
        replace(trio.to_thread, "run_sync", run_as_step)
        replace(trio.lowlevel, "start_thread_soon", start_as_step)
        yield
    finally:
        for owner, name, original in reversed(replaced):
            setattr(owner, name, original)
