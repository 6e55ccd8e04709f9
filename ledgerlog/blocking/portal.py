"""One thread that runs the event loop, and the calls of other threads into it.

The library is asynchronous and runs under trio. A ``Portal`` runs trio in its own thread. Any other thread
can give it work and wait for the outcome. An exception of the work is raised in the waiting thread: the same
exception, of the same class.

**Calls.** ``run`` starts an async function in the loop and waits for its end. The hop costs some tens of
microseconds, so let one call do the work of a batch.

**Interruption.** Ctrl-C reaches the main thread while it waits. The call is then cancelled in the loop, as
trio would do it. When the call has ended, KeyboardInterrupt is raised; a second Ctrl-C does not wait for that
end. The call may have ended just before the interruption, so it may have taken effect. The outcome of an
interrupted append is as unknown as the outcome of a cancelled append.

**Contexts.** ``enter`` enters an async context manager in a separate task. The task stays in it until
``Held.leave``, so the context's nurseries and cancel scopes stay in one task. The context's body may end by
itself because the service behind it failed; the next use then raises the reason. Contexts are left in the
reverse order of entering; closing the portal leaves the contexts that are still held.

**Fork.** A child process has its parent's memory, but not its threads: the loop does not run there, and the
connections belong to two processes. In the child every call raises WrongProcess, and leaving and closing do
nothing.

**From within a loop.** A blocking call would stop the caller's loop until the call ends. So it is refused: in
trio always, and in asyncio for ``ledgerlog.blocking``. Spark is an exception: its own calls block their
thread anyway, even in a notebook, where the thread runs an asyncio loop. So a portal that Spark uses may be
called in such a thread."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from ledgerlog.crossing.loop import CallOutcome, Context, LoopThread, OutsideCall
from ledgerlog.errors import ConnectionClosed, InvalidArgument, WrongProcess
from ledgerlog.loops import refuse_asyncio

__all__ = ["Held", "Portal"]

T = TypeVar("T")

_STOP_S = 30.0
"""After all contexts were left, closing waits this long for the loop's thread to end. Each context bounds
the time that leaving it takes."""


class _Outcomes(Generic[T]):
    """A queue for one outcome.

    ``tell`` puts the outcome in twice. An interruption may come after the waiting thread has taken the
    outcome, but before it has looked at it. The thread then waits for the end of the interrupted call and
    must still find an outcome."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CallOutcome[T]] = queue.SimpleQueue()

    def tell(self, outcome: CallOutcome[T]) -> None:
        self._queue.put(outcome)
        self._queue.put(outcome)

    def get(self) -> CallOutcome[T]:
        return self._queue.get()


class Held(Generic[T]):
    """An async context that a task of the loop has entered."""

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._entered = _Outcomes[T]()
        self._is_leaving = False
        self.done = threading.Event()
        self.context = Context(manager, on_entered=self._entered.tell, on_over=self._on_over)

    def _on_over(self) -> None:
        self.done.set()
        self._portal.forget(self)

    def wait_entered(self) -> T:
        """Return the value of the context. Raises the errors of entering it."""
        return self._portal.wait(self._entered, self.context.scope).unwrap()

    def check(self) -> None:
        """If the context ended by itself, raise the reason. If it was left, raise ConnectionClosed."""
        self.context.check()

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the context, as a body that ended with ``error`` would. Idempotent.

        If ``error`` is not an ``Exception`` (KeyboardInterrupt, SystemExit), the context is cancelled. In a
        forked child this does nothing: the context is the parent's, and the child ends as it would without.
        """
        if os.getpid() != self._portal._pid:
            return
        if not self.done.is_set():
            self._portal.check()
        if not self._is_leaving and not self.done.is_set():
            self._is_leaving = True
            hurried = error is not None and not isinstance(error, Exception)
            self._portal.tell(partial(self.context.leave, is_failed=error is not None, at_once=hurried))
        self.done.wait()
        over = self.context.over
        if over is not None and over.error is not None and error is None:
            raise over.error


class Portal:
    """A thread with an event loop. ``close`` ends it, and so does the end of a ``with`` block.

    A call inside trio raises InvalidArgument. With ``refuses_asyncio``, so does a call in a thread that runs
    an asyncio loop."""

    def __init__(self, *, refuses_asyncio: bool = False) -> None:
        self._refuses_asyncio = refuses_asyncio
        self._pid = os.getpid()
        self._held: dict[Held[Any], None] = {}
        self._is_closed = False
        self._loop = LoopThread("ledgerlog-blocking")
        atexit.register(self.close)

    def __enter__(self) -> Portal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- from other threads -------------------------------------------------------------------

    def check(self) -> None:
        """Raise WrongProcess in a forked child, ConnectionClosed once closed, InvalidArgument inside a
        loop."""
        self.check_open()
        self._refuse_loops()

    def check_open(self) -> None:
        """Raise WrongProcess in a forked child, and ConnectionClosed once closed."""
        if os.getpid() != self._pid:
            raise WrongProcess(self._pid)
        if self._is_closed or self._loop.is_over:
            raise ConnectionClosed("the connection is closed")

    def _refuse_loops(self) -> None:
        if trio.lowlevel.in_trio_task():
            raise InvalidArgument(
                "a blocking call inside of trio would stop its loop: use ledgerlog.connect there"
            )
        if self._refuses_asyncio:
            refuse_asyncio()

    def tell(self, act: Callable[[], object]) -> None:
        """Let the loop call ``act`` soon, without waiting for it."""
        self._loop.tell(act)

    def wait(self, outcomes: _Outcomes[T], scope: trio.CancelScope) -> CallOutcome[T]:
        """Wait for an outcome. On an interruption, cancel the call, wait for its end, and re-raise."""
        try:
            return outcomes.get()
        except BaseException:
            with suppress(ConnectionClosed):  # The loop has ended. Every call has its outcome.
                self.tell(scope.cancel)
            outcomes.get()
            raise

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``. Raises the errors of ``work``."""
        self.check()
        outcomes = _Outcomes[T]()
        call = OutsideCall(work, outcomes.tell)
        self.tell(lambda: self._loop.start(call))
        return self.wait(outcomes, call.scope).unwrap()

    def enter(self, manager: AbstractAsyncContextManager[T]) -> tuple[T, Held[T]]:
        """Return the value of the context, and the hold on it. Raises the errors of entering it."""
        self.check()
        held = Held(self, manager)
        self._held[held] = None
        self.tell(lambda: self._loop.start(held.context))
        return held.wait_entered(), held

    def forget(self, held: Held[Any]) -> None:
        """Forget a context that has ended."""
        self._held.pop(held, None)

    def close(self) -> None:
        """Leave all held contexts, newest first, and end the thread. Idempotent.

        In a forked child it does nothing. If several threads call this, the first one closes. If this call is
        interrupted, the contexts that are still held are cancelled. If contexts are held and the caller is
        inside a loop, it raises InvalidArgument and closes nothing."""
        if os.getpid() != self._pid or self._is_closed or self._loop.is_over:
            return
        if self._held:
            self._refuse_loops()
        atexit.unregister(self.close)
        failure: BaseException | None = None
        try:
            for held in reversed(list(self._held)):
                try:
                    held.leave()
                except Exception as error:
                    failure = failure or error
        finally:
            self._is_closed = True
            self._loop.end()
            self._loop.join(_STOP_S)
        if failure is not None:
            raise failure
