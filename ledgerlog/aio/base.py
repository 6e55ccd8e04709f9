"""The base classes of ``ledgerlog.aio.faces``.

Each face holds an asynchronous object of the library, its *inner* object, and has trio's loop call it. The
faces' methods are generated from the asynchronous classes (see ``tools/faces``). This module is written by
hand: it passes calls to trio, and it opens and closes things.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from ledgerlog import cluster
from ledgerlog.aio.bridge import Bridge, HeldContext
from ledgerlog.election import election
from ledgerlog.errors import ConnectionClosed, LedgerLogError, RecordTooLarge
from ledgerlog.ledger import writer
from ledgerlog.limits import RECORD_BYTES_MAX
from ledgerlog.log import writer as log_writer
from ledgerlog.log.lane import AppendLane, OutsideAppend
from ledgerlog.model.attributes import Attributes, HeadersLike, attributes_of
from ledgerlog.model.checks import check_kind
from ledgerlog.model.record import Ack
from ledgerlog.redact import redact

__all__ = [
    "AioCluster",
    "AioEntered",
    "AioFace",
    "AioLedger",
    "AioTerm",
    "AioWriter",
    "LeadershipEntered",
    "inner_of",
]

A = TypeVar("A")
F = TypeVar("F")
T = TypeVar("T")


class AioFace(Generic[A]):
    """An asynchronous object of the library, for tasks of an asyncio loop."""

    def __init__(self, portal: Bridge, inner: A) -> None:
        self._portal = portal
        self._inner = inner

    def _check(self) -> None:
        """If no call is possible, raise the reason. Most inner objects raise it themselves."""

    def _check_open(self) -> None:
        """The same for a call that any thread may make, because it does not wait."""

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        self._check()
        return await self._portal.run(work)


def inner_of(face: AioFace[A], what: str) -> A:
    """Return the inner object of an argument. Raise InvalidArgument if it is no object of this API."""
    check_kind(face, AioFace, what, "an object of ledgerlog.aio", api="ledgerlog.aio")
    return face._inner


class AioEntered(Generic[A, F]):
    """A context manager that enters an asynchronous context in trio's loop. Use it for one ``async with``."""

    def __init__(
        self, portal: Bridge, manager: AbstractAsyncContextManager[A], face: Callable[[Bridge, A], F]
    ) -> None:
        self._portal = portal
        self._manager = manager
        self._face = face
        self._held: HeldContext[A] | None = None

    async def __aenter__(self) -> F:
        inner, self._held = await self._portal.enter(self._manager)
        return self._face(self._portal, inner)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None
        await self._held.leave(error)


class LeadershipEntered(Generic[A, F]):
    """A leadership. When it ends, it cancels the asyncio task of its body; see ``Election.leadership``."""

    def __init__(
        self,
        portal: Bridge,
        manager: AbstractAsyncContextManager[A],
        face: Callable[[Bridge, A], F],
    ) -> None:
        self._portal = portal
        self._manager = manager
        self._face = face
        self._held: HeldContext[A] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._is_left = False
        self._is_cancelled = False
        """Whether the task was cancelled because the leadership is over."""

    async def __aenter__(self) -> F:
        task = asyncio.current_task()
        assert task is not None, "an asyncio task enters it"
        inner, self._held = await self._portal.enter(self._manager, self._on_lost)
        self._cancelling = task.cancelling()
        self._task = task
        if self._is_cancelled:  # The leadership ended before the task was told of it.
            task.cancel("the leadership is over")
        return self._face(self._portal, inner)

    def _on_lost(self) -> None:
        if not self._is_left:
            self._is_cancelled = True
            if self._task is not None:
                self._task.cancel("the leadership is over")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._held is not None
        assert self._task is not None
        self._is_left = True
        # As in ``asyncio.timeout``: stop our own cancellation here, and pass on the cancellations by others.
        ends_here = self._is_cancelled and self._task.uncancel() <= self._cancelling
        is_ours = ends_here and isinstance(error, asyncio.CancelledError)
        try:
            await self._held.leave(None if is_ours else error)
        except asyncio.CancelledError:
            # The body ended before its cancellation reached it, so the cancellation comes here.
            if not ends_here or self._task.cancelling() > self._cancelling:
                raise
        return is_ours


class AioCluster(AioFace[cluster.Cluster]):
    """A cluster and its connection."""

    def __init__(self, portal: Bridge, inner: cluster.Cluster, held: HeldContext[cluster.Cluster]) -> None:
        super().__init__(portal, inner)
        self._held = held

    def __repr__(self) -> str:
        return f"<aio cluster {redact(self._inner.uri)!r}>"

    def _check(self) -> None:
        self._portal.check()
        self._held.check()

    def _check_open(self) -> None:
        self._portal.check_open()
        self._held.check()


class AioTerm(AioFace[election.Term]):
    """One leadership."""

    def __int__(self) -> int:
        return int(self._inner)


class AioLedger(AioFace[writer.LedgerWriter]):
    """A ledger's writer. It is entered as soon as the ledger is created."""

    def __init__(
        self, portal: Bridge, inner: writer.LedgerWriter, held: HeldContext[writer.LedgerWriter]
    ) -> None:
        super().__init__(portal, inner)
        self._held = held

    async def close(self, *, timeout_s: float | None = None) -> int:
        """Wait until all entries are acknowledged, then close the ledger.

        See ``ledgerlog.LedgerWriter.close`` for its errors.

        Args:
            timeout_s: Seconds to wait for the entries; None for the append deadline.

        Returns:
            The last entry of the ledger; -1 if it is empty.
        """
        last = await self._run(lambda: self._inner.close(timeout_s=timeout_s))
        await self._held.leave(None)
        return last

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._held.leave(error)


class AioWriter(AioFace[log_writer.LogWriter]):
    """The writer of a log. The appends of many tasks cross to trio together, and so do their answers."""

    def __init__(self, portal: Bridge, inner: log_writer.LogWriter) -> None:
        super().__init__(portal, inner)
        self._lane: AppendLane[_Append] | None = None

    async def _append(
        self,
        data: bytes,
        key: bytes | None,
        headers: HeadersLike | None,
        expected_offset: int | None,
        sequence: int | None,
        producer: str | None,
    ) -> Ack:
        if (
            type(data) is not bytes
            or expected_offset is not None
            or sequence is not None
            or producer is not None
        ):
            return await self._run(
                lambda: self._inner.append(
                    data,
                    key=key,
                    headers=headers,
                    expected_offset=expected_offset,
                    sequence=sequence,
                    producer=producer,
                )
            )
        if len(data) > RECORD_BYTES_MAX:
            raise RecordTooLarge(len(data), RECORD_BYTES_MAX)
        attributes = None
        if key is not None or headers is not None:
            attributes = attributes_of(len(data), key, headers)
        self._portal.check()
        append = _Append(data, attributes, asyncio.get_running_loop().create_future())
        self._portal.tell_trio(partial(self._take, append))
        try:
            await append.future
        except asyncio.CancelledError:
            with suppress(ConnectionClosed):  # Trio's loop has ended, and with it the append.
                self._portal.tell_trio(partial(self._withdraw, append))
            raise
        outcome = append.outcome
        if isinstance(outcome, LedgerLogError):
            raise outcome
        assert outcome is not None
        return outcome

    # --- in trio's loop ---

    def _take(self, append: _Append) -> None:
        if self._lane is None:
            self._lane = AppendLane(self._inner, self._portal.nursery, self._told)
        self._lane.take((append,))

    def _withdraw(self, append: _Append) -> None:
        assert self._lane is not None, "it was taken before"
        self._lane.withdraw(append)

    def _told(self, appends: list[_Append]) -> None:
        self._portal.tell_asyncio(partial(_wake, appends))


class _Append(OutsideAppend):
    """A record, and the future that its caller waits for."""

    __slots__ = ("future",)

    def __init__(self, data: bytes, attributes: Attributes | None, future: asyncio.Future[None]) -> None:
        super().__init__(data, attributes)
        self.future = future


def _wake(appends: list[_Append]) -> None:
    for append in appends:
        if not append.future.done():
            append.future.set_result(None)
