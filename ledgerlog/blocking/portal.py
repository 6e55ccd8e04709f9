"""One thread that runs the event loop, and how other threads have it do things.

The library is asynchronous and runs under trio. A ``Portal`` runs trio in a thread of its own and lets any
other thread hand it work and wait for the outcome. What is raised there is raised here: the same exception,
of the same class.

**Calls.** ``run`` starts an async function in the loop and waits for its end. The hop costs some tens of
microseconds, so what is called should do the work of a batch.

**Interruption.** Ctrl-C reaches the main thread while it waits. The call is then cancelled in the loop, as
trio would have done it, and KeyboardInterrupt goes on once it has ended; a second Ctrl-C does not wait for
that. A call that had ended just before may have had its effect: an interrupted append is as unknown as a
cancelled one.

**Contexts.** ``enter`` enters an async context manager in a task of its own, which stays in it until
``Held.leave``, so that what it opened (nurseries, cancel scopes) lives where it must. Should its body end by
itself, because what serves it has failed, the next use raises why. Contexts are left in the reverse of the
order in which they were entered; closing the portal leaves those that are still held.

**Fork.** A child process has the memory of its parent, and not its threads: the loop is not there, and the
connections belong to two. Every call there raises WrongProcess, and closing does nothing.

**From within a loop** a blocking call would stop that loop for as long as it takes, so it is refused: in trio
always, and in asyncio for ``ledgerlog.blocking``. Spark's own calls block the thread that makes them, in a
notebook as well, so what is called by them does too."""

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
"""Closing waits for so long for what was left open to end; every path in there is bounded by itself."""


@attrs.frozen
class _Outcome(Generic[T]):
    value: T | None
    error: BaseException | None

    def unwrap(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None is a T where there is no error.


class _Outcomes(Generic[T]):
    """Where one outcome is waited for.

    It is told twice. An interruption may come when the waiting thread has taken the outcome and not looked at
    it yet, and who goes on to wait for the end of what was interrupted has to find it all the same."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Outcome[T]] = queue.SimpleQueue()

    def tell(self, outcome: _Outcome[T]) -> None:
        self._queue.put(outcome)
        self._queue.put(outcome)

    def get(self) -> _Outcome[T]:
        return self._queue.get()


class _Call(Generic[T]):
    """One piece of work, on its way through the loop."""

    __slots__ = ("outcomes", "scope", "work")

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.work = work
        self.scope = trio.CancelScope()
        self.outcomes = _Outcomes[T]()

    async def serve(self) -> None:
        """Do it; its outcome is told, whatever happens, and nothing comes out of here."""
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
        """The loop has ended before this began."""
        self.outcomes.tell(_Outcome(None, _closed()))


class Held(Generic[T]):
    """An async context that a task of the loop is in."""

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
        """Be in the context until told to leave. Nothing comes out of here but cancellation."""
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
        """The loop has ended before this was entered."""
        self._over = _Outcome(None, _closed())
        self._entered.tell(_Outcome(None, _closed()))
        self.done.set()
        self._portal.forget(self)

    def wait_entered(self) -> T:
        """What the context gives; what entering it raises."""
        return self._portal.wait(self._entered, self._scope).unwrap()

    def check(self) -> None:
        """Raise why the context ended by itself, where it has; ConnectionClosed once it was left."""
        over = self._over
        if over is not None:
            raise over.error if over.error is not None else ConnectionClosed("it was left already")

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the context as the body that ended with ``error`` would. Idempotent.

        An exception that is no Exception (KeyboardInterrupt, SystemExit) leaves as a cancellation does."""
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
    """A thread with an event loop. ``close`` ends it. With ``refuses_asyncio`` a call is InvalidArgument in a
    thread in which an asyncio loop runs, as it always is inside of trio."""

    def __init__(self, *, refuses_asyncio: bool = False) -> None:
        self._refuses_asyncio = refuses_asyncio
        self._pid = os.getpid()
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._closing: trio.Event | None = None
        self._held: dict[Held[Any], None] = {}
        self._is_closed = False
        # A daemon, so that a program that forgets to close ends all the same; atexit closes it then.
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
        """WrongProcess in a forked child; ConnectionClosed once closed; InvalidArgument inside a loop."""
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
        """Have the loop do something soon, without waiting for it."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(act)
        except trio.RunFinishedError:
            raise ConnectionClosed("the connection is closed") from None

    def wait(self, outcomes: _Outcomes[T], scope: trio.CancelScope) -> _Outcome[T]:
        """Wait for an outcome; if interrupted, cancel, wait for the end, and go on with the interruption."""
        try:
            return outcomes.get()
        except BaseException:
            self.tell(scope.cancel)
            outcomes.get()
            raise

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` returns or raises."""
        self.check()
        call = _Call(work)
        self.tell(lambda: self._start(call))
        return self.wait(call.outcomes, call.scope).unwrap()

    def enter(self, manager: AbstractAsyncContextManager[T]) -> tuple[T, Held[T]]:
        """What the context gives, and the hold on it. What entering it raises."""
        self.check()
        held = Held(self, manager)
        self._held[held] = None
        self.tell(lambda: self._start(held))
        return held.wait_entered(), held

    def forget(self, held: Held[Any]) -> None:
        """The context is over."""
        self._held.pop(held, None)

    def _start(self, served: _Call[T] | Held[T]) -> None:
        assert self._nursery is not None
        try:
            self._nursery.start_soon(served.serve)
        except RuntimeError:
            # Closed to new arrivals: another thread has closed the connection in this very moment.
            served.refuse()

    def close(self) -> None:
        """Leave what is still held, newest first, and end the thread. Idempotent; in a forked child nothing.

        Called from several threads, the first does it. If interrupted, what is left is cancelled.
        InvalidArgument inside a loop, and nothing is closed."""
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
