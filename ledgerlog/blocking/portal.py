"""One thread that runs the event loop, and the calls of other threads into it.

The library is asynchronous and runs under trio. A ``Portal`` runs trio in its own thread. Any other thread
can give it work and wait for the outcome. An exception of the work is raised in the waiting thread: the same
exception, of the same class.

**Calls.** ``run`` starts an async function in the loop and waits for its end. The hop costs some tens of
microseconds, so let one call do the work of a batch.

**Interruption.** Ctrl-C reaches the main thread while it waits. The call is then cancelled in the loop, as
trio would do it. When the call has ended, KeyboardInterrupt is raised; a second Ctrl-C does not wait for that
end. If the call had ended just before, it may have had its effect: an interrupted append is as unknown as a
cancelled one.

**Contexts.** ``enter`` enters an async context manager in a separate task. The task stays in it until
``Held.leave``, so the context's nurseries and cancel scopes stay in one task. The context's body may end by
itself because the service behind it failed; the next use then raises the reason. Contexts are left in the
reverse order of entering; closing the portal leaves those that are still held.

**Fork.** A child process has its parent's memory, but not its threads: the loop does not run there, and the
connections belong to two processes. In the child every call raises WrongProcess, and closing does nothing.

**From within a loop.** A blocking call would stop the caller's loop until the call ends. So it is refused: in
trio always, and in asyncio for ``ledgerlog.blocking``. Spark's own calls block their thread anyway, also in a
notebook, so portals that Spark calls allow asyncio."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import attrs
import trio

from ledgerlog.errors import ConnectionClosed, InvalidArgument, WrongProcess
from ledgerlog.loops import refuse_asyncio

__all__ = ["Held", "Portal"]

T = TypeVar("T")

_STOP_S = 30.0
"""Closing waits this long for open contexts to end; each of them also bounds its own time."""


@attrs.frozen
class _Outcome(Generic[T]):
    value: T | None
    error: BaseException | None

    def unwrap(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None is a T where there is no error.


class _Outcomes(Generic[T]):
    """A queue for one outcome.

    ``tell`` puts the outcome in twice. An interruption may come after the waiting thread has taken the
    outcome, but before it has looked at it. The thread then waits for the end of the interrupted call and
    must still find an outcome."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Outcome[T]] = queue.SimpleQueue()

    def tell(self, outcome: _Outcome[T]) -> None:
        self._queue.put(outcome)
        self._queue.put(outcome)

    def get(self) -> _Outcome[T]:
        return self._queue.get()


class _Call(Generic[T]):
    """One piece of work for the loop."""

    __slots__ = ("outcomes", "scope", "work")

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.work = work
        self.scope = trio.CancelScope()
        self.outcomes = _Outcomes[T]()

    async def serve(self) -> None:
        """Do the work. It always tells its outcome, and raises nothing except a cancellation."""
        outcome: _Outcome[T] = _Outcome(None, ConnectionClosed("the connection was closed during the call"))
        try:
            with self.scope:
                outcome = _Outcome(await self.work(), None)
            if self.scope.cancelled_caught:
                outcome = _Outcome(None, ConnectionClosed("the call was interrupted"))
        except trio.Cancelled:
            raise
        except Exception as error:
            outcome = _Outcome(None, error)
        finally:
            self.outcomes.tell(outcome)

    def refuse(self) -> None:
        """The loop ended before this work began."""
        self.outcomes.tell(_Outcome(None, _closed()))


class Held(Generic[T]):
    """An async context that a task of the loop has entered."""

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._manager = manager
        self._entered = _Outcomes[T]()
        self._left = trio.Event()
        self._scope = trio.CancelScope()
        self._is_failed = False
        self._is_leaving = False
        self._over: _Outcome[None] | None = None
        self.done = threading.Event()

    async def serve(self) -> None:
        """Stay in the context until ``leave``. This raises nothing except a cancellation."""
        entered = False
        outcome: _Outcome[Any] = _Outcome(None, ConnectionClosed("the connection was closed"))
        try:
            with self._scope:
                async with self._manager as value:
                    entered = True
                    self._entered.tell(_Outcome(value, None))
                    await self._left.wait()
                    if self._is_failed:
                        raise _BodyFailed
                outcome = _Outcome(None, None)
            if self._scope.cancelled_caught:
                outcome = _Outcome(None, None)
        except trio.Cancelled:
            raise
        except _BodyFailed:
            outcome = _Outcome(None, None)
        except Exception as error:
            outcome = _Outcome(None, error)
        finally:
            self._over = outcome
            if not entered:
                self._entered.tell(outcome if outcome.error else _Outcome(None, _not_entered()))
            self.done.set()
            self._portal.forget(self)

    def refuse(self) -> None:
        """The loop ended before this context was entered."""
        self._over = _Outcome(None, _closed())
        self._entered.tell(_Outcome(None, _closed()))
        self.done.set()
        self._portal.forget(self)

    def wait_entered(self) -> T:
        """Return the value of the context. Raises the errors of entering it."""
        return self._portal.wait(self._entered, self._scope).unwrap()

    def check(self) -> None:
        """If the context ended by itself, raise the reason. If it was left, raise ConnectionClosed."""
        over = self._over
        if over is not None:
            raise over.error if over.error is not None else ConnectionClosed("it was left already")

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the context, as a body that ended with ``error`` would. Idempotent.

        If ``error`` is not an ``Exception`` (KeyboardInterrupt, SystemExit), the context is cancelled."""
        if not self.done.is_set():
            self._portal.check()
        if not self._is_leaving and not self.done.is_set():
            self._is_leaving = True
            self._is_failed = error is not None
            hurried = error is not None and not isinstance(error, Exception)
            self._portal.tell(self._scope.cancel if hurried else self._left.set)
        self.done.wait()
        over = self._over
        if over is not None and over.error is not None and error is None:
            raise over.error


class _BodyFailed(Exception):
    """Tells an async context that its body raised."""


def _closed() -> BaseException:
    return ConnectionClosed("the connection is closed")


def _not_entered() -> BaseException:
    return ConnectionClosed("it was interrupted before it was entered")


class Portal:
    """A thread with an event loop. ``close`` ends it.

    A call inside trio raises InvalidArgument. With ``refuses_asyncio``, so does a call in a thread that runs
    an asyncio loop."""

    def __init__(self, *, refuses_asyncio: bool = False) -> None:
        self._refuses_asyncio = refuses_asyncio
        self._pid = os.getpid()
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._closing: trio.Event | None = None
        self._held: dict[Held[Any], None] = {}
        self._is_closed = False
        # A daemon thread: a program that forgets to close ends anyway. Then atexit closes it.
        self._thread = threading.Thread(target=self._work, name="ledgerlog-blocking", daemon=True)
        self._thread.start()
        failure = self._ready.get()
        if failure is not None:
            raise failure
        atexit.register(self.close)

    def _work(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._ready.put(error)
            raise
        finally:
            self._is_closed = True

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            self._closing = trio.Event()
            self._ready.put(None)
            await self._closing.wait()
            nursery.cancel_scope.cancel()

    # --- from other threads -------------------------------------------------------------------

    def check(self) -> None:
        """Raise WrongProcess in a forked child, ConnectionClosed once closed, InvalidArgument inside a
        loop."""
        if os.getpid() != self._pid:
            raise WrongProcess(self._pid)
        if self._is_closed:
            raise ConnectionClosed("the connection is closed")
        self._refuse_loops()

    def _refuse_loops(self) -> None:
        if trio.lowlevel.in_trio_task():
            raise InvalidArgument(
                "a blocking call inside of trio would stop its loop: use ledgerlog.connect there"
            )
        if self._refuses_asyncio:
            refuse_asyncio()

    def tell(self, act: Callable[[], object]) -> None:
        """Let the loop call ``act`` soon, without waiting for it."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(act)
        except trio.RunFinishedError:
            raise ConnectionClosed("the connection is closed") from None

    def wait(self, outcomes: _Outcomes[T], scope: trio.CancelScope) -> _Outcome[T]:
        """Wait for an outcome. On an interruption, cancel the call, wait for its end, and re-raise."""
        try:
            return outcomes.get()
        except BaseException:
            self.tell(scope.cancel)
            outcomes.get()
            raise

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``. Raises the errors of ``work``."""
        self.check()
        call = _Call(work)
        self.tell(lambda: self._start(call))
        return self.wait(call.outcomes, call.scope).unwrap()

    def enter(self, manager: AbstractAsyncContextManager[T]) -> tuple[T, Held[T]]:
        """Return the value of the context, and the hold on it. Raises the errors of entering it."""
        self.check()
        held = Held(self, manager)
        self._held[held] = None
        self.tell(lambda: self._start(held))
        return held.wait_entered(), held

    def forget(self, held: Held[Any]) -> None:
        """Forget a context that has ended."""
        self._held.pop(held, None)

    def _start(self, served: _Call[T] | Held[T]) -> None:
        assert self._nursery is not None
        try:
            self._nursery.start_soon(served.serve)
        except RuntimeError:
            # The nursery is closed: another thread closed the connection at this moment.
            served.refuse()

    def close(self) -> None:
        """Leave all held contexts, newest first, and end the thread. Idempotent.

        In a forked child it does nothing. If several threads call this, the first one closes. If interrupted,
        the remaining contexts are cancelled. Inside a loop it raises InvalidArgument and closes nothing."""
        if os.getpid() != self._pid or self._is_closed:
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
            assert self._closing is not None
            assert self._token is not None
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._closing.set)
            self._thread.join(_STOP_S)
        if failure is not None:
            raise failure
