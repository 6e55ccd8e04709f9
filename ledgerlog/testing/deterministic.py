"""Deterministic runs: one seed decides which task runs next, what time it is, and every choice of the world.

``Simulation(seed).run(main)`` runs ``await main(simulation)`` under trio with simulated time. The same seed
gives the same run, step for step, in any process and under any ``PYTHONHASHSEED``. What that takes:

* **The schedule.** trio sorts each batch of runnable tasks by their number and shuffles it with a generator
  of its own, if a flag says so (it exists for hypothesis). Here the flag is set and the generator seeded.
* **The time.** A ``MockClock`` whose rate is zero. When no task can run, the loop asks the clock to jump; it
  jumps to the next timer or the next deadline of a cancel scope, whichever is earlier, and the timers that
  are due are called right there. There is no pump task, and no real waiting.
* **Chance.** One generator for each concern, ``random("network")``, seeded by text, so that one more draw in
  one place does not shift the choices of another.
* **The rest of the world.** Inside a run the clocks of ``time``, the functions of ``random``, ``os.urandom``,
  sockets and threads raise ``Nondeterminism``, so that a leak is an error and not a seed that fails once.
  Python cannot keep out everything: ``datetime.now()``, an unseeded ``random.Random()``, the iteration order
  of sets of text, addresses of objects. A run whose hash differs between two processes has met one of those.
* **Garbage.** The collector rests during a run, because finalisers run when it pleases; it collects
  between runs.

**The trace** is a hash (blake2b) over the time, kind and arguments of every event that the simulated network,
disks, metadata and the user's own code report. Equal hashes mean equal runs. The last lines are kept as text.
Arguments are numbers, text and bytes; never the text of an exception or of an object, which may hold an
address. ``is_strict`` adds every step of every task to the hash.

**Deadlock** comes for free: when the loop wants to jump and there is neither a timer nor a deadline, nothing
can ever happen again. The run is cancelled and ``Deadlock`` names the tasks that were left. A run that never
becomes idle, or loops for ever in simulated time, meets a bound on its CPU time (not on wall time, which says
more about the machine than about the run) or on its simulated time.

The private names of trio that this takes stay in this module, are looked up when it is imported, and a
version of trio without them is refused by name.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import logging
import math
import os
import random as random_module
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b
from random import Random
from types import FrameType
from typing import Any, Generic, TypeVar

import attrs
import trio
import trio.testing

__all__ = [
    "CpuTimeExceeded",
    "Deadlock",
    "Nondeterminism",
    "Outcome",
    "SimulatedTimeExceeded",
    "Simulation",
    "Timer",
    "Trace",
    "current_simulation",
]

T = TypeVar("T")

TRACE_LINES = 2000
"""So many lines at the end of a trace are kept as text."""

CPU_S_MAX = 120.0
"""A run may take this much CPU time, unless told otherwise."""

SIMULATED_S_MAX = 24 * 3600.0
"""A run may take this much simulated time, unless told otherwise."""


_GRACE_CPU_S = 2.0
"""A run that is cancelled for its CPU time may take so much to end."""


class Deadlock(Exception):
    """No task could ever run again: there was no timer and no deadline left."""


class Nondeterminism(Exception):
    """Code inside a run reached for a real clock, for real randomness, or for a thread or socket."""


class SimulatedTimeExceeded(Exception):
    """The run passed its bound on simulated time."""


class CpuTimeExceeded(BaseException):
    """The run passed its bound on CPU time. Not an ``Exception``, so that no handler mistakes it for a fault
    of the simulated world."""


# --- trio's private names -------------------------------------------------------------------------


def _trio_internals() -> Any:
    import trio._core._run as run

    wanted = {
        "_ALLOW_DETERMINISTIC_SCHEDULING": run,
        "_r": run,
        "GLOBAL_RUN_CONTEXT": run,
        "next_deadline": getattr(run, "Deadlines", None),
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
    """What happened, as a hash, and the end of it as text."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._lines: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=TRACE_LINES)
        self.events = 0

    def add(self, now: float, kind: str, args: tuple[object, ...]) -> None:
        self.events += 1
        self._hash.update(f"{now:.9f} {kind} {args!r}\n".encode())
        self._lines.append((now, kind, args))

    def add_step(self, step: bytes) -> None:
        self._hash.update(step)

    @property
    def digest(self) -> str:
        """The hash of everything so far, in hexadecimal."""
        return self._hash.hexdigest()

    def lines(self, count: int = TRACE_LINES) -> list[str]:
        """The last ``count`` events."""
        chosen = list(self._lines)[-count:] if count else []
        return [f"{now:12.6f} {kind} {' '.join(map(str, args))}".rstrip() for now, kind, args in chosen]


class _Steps(trio.abc.Instrument):
    """Every step of every task, into the trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._trace.add_step(task.name.encode())


# --- timers ---------------------------------------------------------------------------------------


class Timer:
    """A call that is to come. ``cancel`` is idempotent."""

    __slots__ = ("args", "call")

    def __init__(self, call: Callable[..., None] | None, args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args

    def cancel(self) -> None:
        self.call = None
        self.args = ()


# --- runs -----------------------------------------------------------------------------------------


@attrs.frozen
class Outcome(Generic[T]):
    """A run that ended without an error."""

    value: T
    """What ``main`` returned."""
    trace_hash: str
    events: int
    simulated_s: float
    cpu_s: float


_running: list[Simulation] = []
"""The one that runs, if one does: they do not nest."""


def current_simulation() -> Simulation:
    """The simulation that the caller runs in. RuntimeError where it does not run in one."""
    if not _running:
        raise RuntimeError(
            "this only works inside a simulated run: use ledgerlog.testing.simulate(scenario, seed=...) "
            "instead of trio.run"
        )
    return _running[0]


class Simulation:
    """One seed, for one run."""

    def __init__(self, seed: int | str, *, is_strict: bool = False) -> None:
        self.seed = seed
        self.trace = Trace()
        self.cpu_s = 0.0
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

    # --- for the simulated world --------------------------------------------------------------

    @property
    def now(self) -> float:
        """Simulated seconds since the start; ``trio.current_time()`` as well."""
        return self._clock._virtual_base

    def random(self, stream: str) -> Random:
        """The generator of one concern, always the same one for a name."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = Random(f"{stream}/{self.seed}")
        return found

    def event(self, kind: str, *args: object) -> None:
        """Put something that happened into the trace. ``args`` are numbers, text and bytes."""
        self.trace.add(self.now, kind, args)

    def at(self, when: float, call: Callable[..., None], *args: Any) -> Timer:
        """Call something at a time that is not past, outside of any task. It must not raise."""
        timer = Timer(call, args)
        self._sequence += 1
        heapq.heappush(self._heap, (max(when, self.now), self._sequence, timer))
        return timer

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        """As ``at``, counted from now."""
        return self.at(self.now + delay_s, call, *args)

    # --- the run ------------------------------------------------------------------------------

    def run(
        self,
        main: Callable[[Simulation], Awaitable[T]],
        *,
        cpu_s_max: float = CPU_S_MAX,
        simulated_s_max: float = SIMULATED_S_MAX,
    ) -> Outcome[T]:
        """Run ``await main(self)`` to its end. Not inside another event loop, and once for each object.

        What ``main`` raises comes out, with a note that names the seed and the last events. Deadlock,
        SimulatedTimeExceeded and CpuTimeExceeded (in the main thread only) where the run has no end."""
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
        # Undone by ``run``, because a run that is stopped hard does not come back here.
        _running.append(self)
        self._cleanup.callback(_running.clear)
        self._cleanup.enter_context(_forbidden(self))
        self._token = trio.lowlevel.current_trio_token()
        try:
            with self._scope:
                return await main(self)
        finally:
            self._cleanup.close()
        assert self._failure is not None
        raise self._failure

    def _jump(self) -> None:
        """Called by trio's loop when no task can run."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heapq.heappop(heap)
        deadline: float = _run_module.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        when = min(heap[0][0] if heap else math.inf, deadline)
        if when == math.inf:
            self._fail(Deadlock(f"nothing can happen any more; tasks left: {', '.join(_task_names())}"))
            return
        if when > self._simulated_s_max and self._failure is None:
            self._fail(SimulatedTimeExceeded(f"the run goes on beyond {self._simulated_s_max:g} s"))
            return
        clock: Any = self._clock
        clock._virtual_base = max(when, clock._virtual_base)
        while heap and heap[0][0] <= when:
            timer = heapq.heappop(heap)[2]
            if timer.call is not None:
                timer.call(*timer.args)

    @contextlib.contextmanager
    def _cpu_bound(self, seconds: float) -> Iterator[None]:
        """Fail once this process has used so much CPU time: by a cancellation, and hard if that is no help.
        Only the main thread gets signals; elsewhere there is no bound."""
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
        """End the run: by a cancellation, so that what is open is closed; at once if that does not end it."""
        if self._failure is not None:
            raise Deadlock(f"a cancelled run does not end; first: {self._failure}")
        self._failure = failure
        self._scope.cancel()


def _task_names() -> list[str]:
    tasks = _run_module.GLOBAL_RUN_CONTEXT.runner.tasks
    return [task.name for task in sorted(tasks, key=lambda task: task._counter)]


@contextlib.contextmanager
def _deterministic_trio(seed: int | str) -> Iterator[None]:
    flag, state = _run_module._ALLOW_DETERMINISTIC_SCHEDULING, _run_module._r.getstate()
    _run_module._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run_module._r.seed(f"trio/{seed}")
    try:
        yield
    finally:
        _run_module._ALLOW_DETERMINISTIC_SCHEDULING = flag
        _run_module._r.setstate(state)


@contextlib.contextmanager
def _gc_resting() -> Iterator[None]:
    was_enabled = gc.isenabled()
    # What the run before this one has made. It is in the youngest two generations, because while the
    # collector rests nothing grows old; collected at once it would be in use still, and grow old by that.
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- the forbidden --------------------------------------------------------------------------------

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
    """Make the outside world raise, for as long as the body lasts. Log records get simulated time."""
    replaced: list[tuple[Any, str, Any]] = []

    def forbid(owner: Any, name: str, spelled: str) -> None:
        original = getattr(owner, name)

        def refuse(*args: object, **kwargs: object) -> Any:
            if name == "time" and sys._getframe(1).f_globals is vars(logging):
                return simulation.now
            raise Nondeterminism(
                f"{spelled} was called in a simulated run: take time from trio.current_time() and chance "
                "from a seeded generator"
            )

        replaced.append((owner, name, original))
        setattr(owner, name, refuse)

    try:
        for name in _CLOCKS:
            forbid(time, name, f"time.{name}")
        for name in _CHANCE:
            forbid(random_module, name, f"random.{name}")
        forbid(random_module, "_urandom", "random.SystemRandom")
        forbid(os, "urandom", "os.urandom")
        forbid(threading.Thread, "start", "threading.Thread.start")
        forbid(trio.to_thread, "run_sync", "trio.to_thread.run_sync")
        forbid(socket, "socket", "socket.socket")
        yield
    finally:
        for owner, name, original in reversed(replaced):
            setattr(owner, name, original)
