"""Work that other threads and other event loops give to trio's loop.

The library runs under trio. A *face* offers the library to other callers: ``ledgerlog.blocking`` to threads,
``ledgerlog.aio`` to asyncio. This module is the half that all faces share: the half that runs under trio. The
other half makes a caller wait for an outcome. Each face has its own.

* ``LoopThread`` runs trio in a thread, with a nursery for the work that callers give to it.
* ``OutsideCall`` is one call from outside: trio runs it and reports its outcome.
* ``Context`` is an async context manager for a caller outside. One task of trio enters it, stays in it and
  leaves it. So the nurseries and cancel scopes of the context stay in one task.

An ``OutsideCall`` and a ``Context`` always report their outcome, exactly once, even if the loop ends first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

from ledgerlog.errors import ConnectionClosed

__all__ = [
    "OutsideCall",
    "Context",
    "LoopThread",
    "CallOutcome",
    "Servable",
    "making",
    "serve_until",
    "run_soon_or_refuse",
    "start_or_refuse",
]

T = TypeVar("T")


@attrs.frozen
class CallOutcome(Generic[T]):
    """How a call ended."""

    value: T | None
    error: BaseException | None = None

    def unwrap(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None is a T where there is no error.


class Servable(Protocol):
    """Work that a task of the loop runs."""

    async def serve(self) -> None: ...

    def refuse(self) -> None:
        """Report that the loop ended before ``serve`` began."""
        ...


class OutsideCall(Generic[T]):
    """One call. To cancel it, cancel ``scope``.

    Args:
        work: The function to call.
        tell: Called with the outcome, in trio's thread.
    """

    __slots__ = ("_tell", "_work", "scope")

    def __init__(self, work: Callable[[], Awaitable[T]], tell: Callable[[CallOutcome[T]], object]) -> None:
        self._work = work
        self._tell = tell
        self.scope = trio.CancelScope()

    async def serve(self) -> None:
        """Do the work and report its outcome. This raises nothing except a cancellation."""
        outcome: CallOutcome[T] = CallOutcome(
            None, ConnectionClosed("the connection was closed during the call")
        )
        try:
            with self.scope:
                outcome = CallOutcome(await self._work())
            if self.scope.cancelled_caught:
                outcome = CallOutcome(None, ConnectionClosed("the call was interrupted"))
        except trio.Cancelled:
            raise
        except Exception as error:
            outcome = CallOutcome(None, error)
        finally:
            self._tell(outcome)

    def refuse(self) -> None:
        self._tell(CallOutcome(None, _closed()))


class Context(Generic[T]):
    """An async context that a task of the loop enters.

    When the context has ended, ``over`` is the outcome of leaving it. A context may also end by itself, for
    example because its connection failed. The three functions are called in trio's thread.

    Args:
        manager: The context manager.
        on_entered: Called with the value of the context, or with the error of entering it.
        on_over: Called when the context has ended.
        on_lost: Called if the manager cancels its body. The context then stays open until ``leave`` is
            called, so the body has all the time that it needs. None: a cancellation ends the context.
    """

    def __init__(
        self,
        manager: AbstractAsyncContextManager[T],
        *,
        on_entered: Callable[[CallOutcome[T]], object],
        on_over: Callable[[], object],
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        self._manager = manager
        self._on_entered = on_entered
        self._on_over = on_over
        self._on_lost = on_lost
        self._left = trio.Event()
        self._is_failed = False
        self.scope = trio.CancelScope()
        self.over: CallOutcome[None] | None = None

    async def serve(self) -> None:
        """Enter the context and stay in it until ``leave``. This raises nothing except a cancellation."""
        is_entered = False
        outcome: CallOutcome[Any] = CallOutcome(None, ConnectionClosed("the connection was closed"))
        try:
            with self.scope:
                async with self._manager as value:
                    is_entered = True
                    self._on_entered(CallOutcome(value))
                    await self._stay()
                    if self._is_failed:
                        raise _BodyFailed
                outcome = CallOutcome(None)
            if self.scope.cancelled_caught:
                outcome = CallOutcome(None)
        except trio.Cancelled:
            raise
        except _BodyFailed:
            outcome = CallOutcome(None)
        except Exception as error:
            outcome = CallOutcome(None, error)
        finally:
            if not is_entered:
                never = ConnectionClosed("it was interrupted before it was entered")
                self._on_entered(outcome if outcome.error else CallOutcome(None, never))
                # ``on_entered`` reported the error already; there is nothing to leave.
                outcome = CallOutcome(None)
            self.over = outcome
            self._on_over()

    async def _stay(self) -> None:
        try:
            await self._left.wait()
        except trio.Cancelled:
            if self._on_lost is not None and not self.scope.cancel_called:
                self._on_lost()
                with trio.CancelScope(shield=True):
                    await self._left.wait()
            raise

    def refuse(self) -> None:
        self.over = CallOutcome(None)
        self._on_entered(CallOutcome(None, _closed()))
        self._on_over()

    def leave(self, *, is_failed: bool, at_once: bool) -> None:
        """Leave the context. Call this in trio's thread.

        Args:
            is_failed: Whether the body ended with an exception.
            at_once: Cancel the context instead of waiting for its orderly end.
        """
        self._is_failed = is_failed
        if at_once:
            self.scope.cancel()
        self._left.set()

    def check(self) -> None:
        """If the context ended by itself, raise the reason. If ``leave`` was called, raise
        ConnectionClosed."""
        over = self.over
        if over is not None:
            raise over.error if over.error is not None else ConnectionClosed("it was left already")


@asynccontextmanager
async def making(make: Callable[[], Awaitable[AbstractAsyncContextManager[T]]]) -> AsyncIterator[T]:
    """The context manager that ``make`` makes, as part of its own context.

    Somebody who is cancelled while it is made leaves it, too. If a call made it, nobody would leave it.
    """
    async with await make() as value:
        yield value


class _BodyFailed(Exception):
    """Tells an async context that its body raised."""


def _closed() -> BaseException:
    return ConnectionClosed("the connection is closed")


async def serve_until(closing: trio.Event, on_ready: Callable[[trio.Nursery], object]) -> None:
    """Run the work that callers give to the loop until ``closing`` is set. Then cancel the rest."""
    async with trio.open_nursery() as nursery:
        on_ready(nursery)
        await closing.wait()
        nursery.cancel_scope.cancel()


class LoopThread:
    """A thread that runs trio. The constructor returns once the loop runs.

    It is a daemon thread: if a program forgets to call ``end``, the program still exits.

    Args:
        name: The name of the thread.
        on_over: Called in the thread when the loop has ended.
    """

    def __init__(self, name: str, *, on_over: Callable[[], object] = lambda: None) -> None:
        self._on_over = on_over
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._closing: trio.Event | None = None
        self.is_over = False
        """Whether the loop has ended."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        failure = self._ready.get()
        if failure is not None:
            raise failure

    def _work(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._ready.put(error)
            raise
        finally:
            self.is_over = True
            self._on_over()

    async def _main(self) -> None:
        self._closing = trio.Event()
        await serve_until(self._closing, self._begin)

    def _begin(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._ready.put(None)

    def tell(self, act: Callable[[], object]) -> None:
        """Let the loop call ``act`` soon, without waiting for it. You may call this in any thread.

        Raises:
            ConnectionClosed: The loop has ended.
        """
        assert self._token is not None
        run_soon_or_refuse(self._token, act)

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery in which the loop runs the work of callers. Use it in trio's thread."""
        assert self._nursery is not None
        return self._nursery

    def start(self, served: Servable) -> None:
        """Start a task for ``served``. Call this in trio's thread."""
        start_or_refuse(self.nursery, served)

    def end(self) -> None:
        """Let the loop cancel its work and end. You may call this in any thread. Idempotent."""
        assert self._closing is not None
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._closing.set)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, at most ``timeout_s`` seconds."""
        self._thread.join(timeout_s)


def run_soon_or_refuse(token: trio.lowlevel.TrioToken, act: Callable[[], object]) -> None:
    """Have trio call ``act`` soon. Raise ConnectionClosed if trio's loop has ended."""
    try:
        token.run_sync_soon(act)
    except trio.RunFinishedError:
        raise ConnectionClosed("the connection is closed") from None


def start_or_refuse(nursery: trio.Nursery, served: Servable) -> None:
    """Start a task for ``served``, or refuse it if the nursery is closed."""
    try:
        nursery.start_soon(served.serve)
    except RuntimeError:
        served.refuse()
