"""The bridge between an asyncio loop and trio's loop. It carries calls and outcomes, in batches both ways.

Each connection has one ``Bridge``. Trio runs in its own thread, or as a guest of the asyncio loop.

**Batches.** A ``Mailbox`` in each direction collects what one loop gives the other. The first item in an
empty mailbox wakes the other loop. Items that arrive before the other loop reads need no wake-up. So many
tasks that append share one wake-up.

**Cancellation.** If an asyncio task is cancelled while it waits for a call, the bridge cancels the call in
trio. The task gets its CancelledError once the call has ended. A second cancellation does not wait for that.
If the call had ended just before the cancellation, it may have had its effect.

**Contexts.** A task of trio enters an async context and stays in it. If the manager cancels its body (for
example because a leadership is over), the bridge tells the caller, and trio waits until the caller has left.

**Another loop.** A connection belongs to the asyncio loop that made it. The bridge refuses calls from another
loop, from a thread without a loop, and from a forked child. If the loop is closed while a connection is open,
no task is left that could take the answers. When the first answer comes, the bridge then writes a log line.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from ledgerlog.crossing.loop import (
    CallOutcome,
    Context,
    LoopThread,
    OutsideCall,
    Servable,
    run_soon_or_refuse,
    serve_until,
    start_or_refuse,
)
from ledgerlog.errors import ConnectionClosed, InvalidArgument, WrongProcess

__all__ = ["Bridge", "HeldContext", "Mailbox"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STOP_S = 30.0
"""``close`` waits at most this long for the end of trio's thread."""

Act = Callable[[], object]


class Mailbox:
    """Acts (functions without arguments) that one loop gives another. They run in their order.

    Call ``put`` in the loop that gives. The acts run in the other loop; they must not raise. If the other
    loop cannot be woken, ``put`` raises the error of ``wake``, and the act does not run.

    Args:
        wake: Lets the other loop call a function soon.
    """

    __slots__ = ("_acts", "_is_awake", "_wake")

    def __init__(self, wake: Callable[[Act], object]) -> None:
        self._wake = wake
        self._acts: deque[Act] = deque()
        self._is_awake = False

    def put(self, act: Act) -> None:
        """Let the other loop call ``act``."""
        # The order of these two steps matters. ``_run`` clears the flag before it counts the acts. So either
        # ``_run`` counts this act, or the flag is clear here and the act wakes the loop again.
        self._acts.append(act)
        if not self._is_awake:
            self._is_awake = True
            try:
                self._wake(self._run)
            except BaseException:
                self._is_awake = False
                self._acts.pop()
                raise

    def _run(self) -> None:
        self._is_awake = False
        for _ in range(len(self._acts)):
            self._acts.popleft()()


class _Host(Protocol):
    """A way to run trio."""

    is_over: bool

    @property
    def nursery(self) -> trio.Nursery: ...

    def tell(self, act: Act) -> None: ...

    def start(self, served: Servable) -> None: ...

    def end(self) -> None: ...

    async def wait_ended(self) -> None: ...


class _ThreadHost(LoopThread):
    """Trio in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio = loop
        self._ended = loop.create_future()
        super().__init__("ledgerlog-aio", on_over=self._tell_ended)

    def _tell_ended(self) -> None:
        with suppress(RuntimeError):  # The asyncio loop is closed, so nobody waits.
            self._asyncio.call_soon_threadsafe(_settle, self._ended, None)

    async def wait_ended(self) -> None:
        await asyncio.wait([self._ended], timeout=_STOP_S)


class _GuestHost:
    """Trio as a guest of the asyncio loop: both take turns in one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended = loop.create_future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._closing = trio.Event()
        self._early: list[Act] = []
        """The acts that were given before the guest runs."""
        self.is_over = False
        trio.lowlevel.start_guest_run(
            serve_until,
            self._closing,
            self._begin,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=self._on_done,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _begin(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        for act in self._early:
            act()

    def _on_done(self, outcome: Any) -> None:
        self.is_over = True
        if not self._ended.done():
            self._ended.set_result(None)
        outcome.unwrap()

    def tell(self, act: Act) -> None:
        if self._token is None:
            self._early.append(act)
            return
        run_soon_or_refuse(self._token, act)

    @property
    def nursery(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

    def start(self, served: Servable) -> None:
        start_or_refuse(self.nursery, served)

    def end(self) -> None:
        if not self.is_over:
            self.tell(self._closing.set)

    async def wait_ended(self) -> None:
        await asyncio.wait([self._ended], timeout=_STOP_S)


class Bridge:
    """An asyncio loop's connection to trio's loop. Create it in the asyncio loop.

    Args:
        is_guest: Run trio in the asyncio loop's own thread.
    """

    def __init__(self, *, is_guest: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._held: dict[HeldContext[Any], None] = {}
        self._is_closed = False
        self._is_orphaned = False
        self._host: _Host = _GuestHost(self._loop) if is_guest else _ThreadHost(self._loop)
        self._to_trio = Mailbox(self._host.tell)
        self._to_asyncio = Mailbox(self._wake_asyncio)

    def check(self) -> None:
        """Refuse a call that cannot be carried out.

        Raises:
            WrongProcess: This is a forked child of the process that connected.
            InvalidArgument: The caller is not in the asyncio loop that connected.
            ConnectionClosed: The connection is closed.
        """
        self.check_open()
        if asyncio._get_running_loop() is not self._loop:
            raise InvalidArgument("a connection of ledgerlog.aio belongs to the asyncio loop that made it")

    def check_open(self) -> None:
        """Refuse a call that gets nothing any more, from whatever thread: as ``check``, but without
        InvalidArgument."""
        if os.getpid() != self._pid:
            raise WrongProcess(self._pid)
        if self._is_closed or self._host.is_over:
            raise ConnectionClosed("the connection is closed")

    # --- between the loops ------------------------------------------------------------------------

    def tell_trio(self, act: Act) -> None:
        """Let trio call ``act`` soon. Call this in the asyncio loop."""
        self._to_trio.put(act)

    def tell_asyncio(self, act: Act) -> None:
        """Let the asyncio loop call ``act`` soon. Call this in trio's loop."""
        self._to_asyncio.put(act)

    def _wake_asyncio(self, act: Act) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # The loop is closed, so no task waits for an answer.
            if not self._is_orphaned:
                self._is_orphaned = True
                logger.error("the asyncio loop ended while a connection was open: leave the connection first")

    # --- calls ------------------------------------------------------------------------------------

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` in trio and return its result. Raises the errors of ``work``."""
        self.check()
        future: asyncio.Future[CallOutcome[T]] = self._loop.create_future()
        call = OutsideCall(work, partial(self._answer, future))
        self._to_trio.put(partial(self._host.start, call))
        return (await self.wait(future, call.scope.cancel)).unwrap()

    def _answer(self, future: asyncio.Future[CallOutcome[T]], outcome: CallOutcome[T]) -> None:
        """Give a future its result. Call this in trio's loop."""
        self._to_asyncio.put(partial(_settle, future, outcome))

    async def wait(self, future: asyncio.Future[T], cancel: Act) -> T:
        """Wait for a future. If the task is cancelled, let trio call ``cancel``, and wait for the end."""
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            with suppress(ConnectionClosed):  # Trio's loop has ended. It has settled the future.
                self._to_trio.put(cancel)
            await asyncio.wait([future])
            raise
        return future.result()

    async def enter(
        self, manager: AbstractAsyncContextManager[T], on_lost: Act | None = None
    ) -> tuple[T, HeldContext[T]]:
        """Enter a context.

        Args:
            manager: The context manager.
            on_lost: Called in the asyncio loop if the manager cancels its body. Leave the context soon after.

        Returns:
            The value of the context, and the ``HeldContext`` with which you leave it.

        Raises:
            BaseException: The error of entering the context.
        """
        self.check()
        held = HeldContext(self, manager, on_lost)
        self._held[held] = None
        self._to_trio.put(partial(self._host.start, held.context))
        return await held.wait_entered(), held

    def forget(self, held: HeldContext[Any]) -> None:
        """Forget a context that has ended."""
        self._held.pop(held, None)

    @property
    def nursery(self) -> trio.Nursery:
        """A nursery of trio that lasts as long as the connection. Use it in trio's loop."""
        return self._host.nursery

    async def close(self) -> None:
        """Leave all contexts, newest first, and end trio's loop. Idempotent.

        Cancelling: this cancels the remaining contexts instead of waiting for their orderly end.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        failure: BaseException | None = None
        try:
            for held in reversed(list(self._held)):
                try:
                    await held.leave(None)
                except Exception as error:
                    failure = failure or error
        finally:
            self._is_closed = True
            self._host.end()
            await self._host.wait_ended()
        if failure is not None:
            raise failure


class HeldContext(Generic[T]):
    """An async context that a task of trio has entered."""

    def __init__(self, bridge: Bridge, manager: AbstractAsyncContextManager[T], on_lost: Act | None) -> None:
        self._bridge = bridge
        loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[CallOutcome[T]] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._is_leaving = False
        self.context = Context(
            manager,
            on_entered=partial(bridge._answer, self._entered),
            on_over=partial(bridge.tell_asyncio, self._on_over),
            on_lost=None if on_lost is None else partial(bridge.tell_asyncio, on_lost),
        )

    def _on_over(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
        self._bridge.forget(self)

    async def wait_entered(self) -> T:
        """Return the value of the context. Raises the errors of entering it."""
        try:
            outcome = await self._bridge.wait(self._entered, self.context.scope.cancel)
        except asyncio.CancelledError:
            # The context may have been entered just before, and no other task would leave it.
            self._tell_leave(is_failed=True, at_once=True)
            raise
        return outcome.unwrap()

    def check(self) -> None:
        """If the context ended by itself, raise the reason. If ``leave`` was called, raise
        ConnectionClosed."""
        self.context.check()

    async def leave(self, error: BaseException | None) -> None:
        """Leave the context, as a body that ended with ``error`` would. Idempotent.

        If ``error`` is not an ``Exception`` (CancelledError, KeyboardInterrupt), the context is cancelled. In
        a forked child this does nothing, because the context is the parent's.

        Cancelling: the context is cancelled, and the call waits for its end.
        """
        if os.getpid() != self._bridge._pid:
            return
        at_once = error is not None and not isinstance(error, Exception)
        if not self._is_leaving and not self._done.done():
            self._is_leaving = True
            self._tell_leave(is_failed=error is not None, at_once=at_once)
        await self._bridge.wait(self._done, partial(self.context.leave, is_failed=True, at_once=True))
        over = self.context.over
        if over is not None and over.error is not None and error is None:
            raise over.error

    def _tell_leave(self, *, is_failed: bool, at_once: bool) -> None:
        with suppress(ConnectionClosed):  # Trio's loop has ended, and the context with it.
            self._bridge.tell_trio(partial(self.context.leave, is_failed=is_failed, at_once=at_once))


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
