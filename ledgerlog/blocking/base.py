"""The base classes of ``ledgerlog.blocking.faces``.

Each face holds an asynchronous object, its *inner* object, and has the loop's thread call it. The faces'
methods are generated from the asynchronous classes (see ``tools/faces``). This module has the part that is
written by hand: how a call crosses to the loop, and how a thread opens and closes an object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

from ledgerlog import cluster
from ledgerlog.blocking.portal import Held, Portal
from ledgerlog.ledger import writer
from ledgerlog.model.checks import check_kind
from ledgerlog.redact import redact

__all__ = ["ConnectedFace", "Entered", "Face", "HeldLedger", "inner_of"]

A = TypeVar("A")
F = TypeVar("F")
T = TypeVar("T")


class Face(Generic[A]):
    """An asynchronous object for use from threads."""

    def __init__(self, portal: Portal, inner: A) -> None:
        self._portal = portal
        self._inner = inner

    def _check(self) -> None:
        """Raise the reason if no call is possible. Most inner objects raise it themselves."""

    def _check_open(self) -> None:
        """The same for a call that any thread may make, because it does not wait."""

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        self._check()
        return self._portal.run(work)


def inner_of(face: Face[A], what: str) -> A:
    """Return the inner object of an argument. Raise InvalidArgument if it is no object of this API."""
    check_kind(face, Face, what, "an object of ledgerlog.blocking", api="ledgerlog.blocking")
    return face._inner


class Entered(Generic[A, F]):
    """A context manager that enters an asynchronous context in the loop's thread. For one ``with``."""

    def __init__(
        self, portal: Portal, manager: AbstractAsyncContextManager[A], face: Callable[[Portal, A], F]
    ) -> None:
        self._portal = portal
        self._manager = manager
        self._face = face
        self._held: Held[A] | None = None

    def __enter__(self) -> F:
        inner, self._held = self._portal.enter(self._manager)
        return self._face(self._portal, inner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None
        self._held.leave(error)


class ConnectedFace(Face[cluster.Cluster]):
    """A cluster and its connection."""

    def __init__(self, portal: Portal, inner: cluster.Cluster, held: Held[cluster.Cluster]) -> None:
        super().__init__(portal, inner)
        self._held = held

    def __repr__(self) -> str:
        return f"<blocking cluster {redact(self._inner.uri)!r}>"

    def close(self) -> None:
        """Leave all open contexts, disconnect, and end the thread. Idempotent. Raises the errors of
        leaving."""
        self._portal.close()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._portal.close()
        except Exception:
            if error is None:
                raise

    def _check(self) -> None:
        self._portal.check()
        self._held.check()

    def _check_open(self) -> None:
        self._portal.check_open()
        self._held.check()


class HeldLedger(Face[writer.LedgerWriter]):
    """A ledger's writer. It is entered when the ledger is created."""

    def __init__(self, portal: Portal, inner: writer.LedgerWriter, held: Held[writer.LedgerWriter]) -> None:
        super().__init__(portal, inner)
        self._held = held

    def close(self, *, timeout_s: float | None = None) -> int:
        """Wait until all entries are acknowledged, then close the ledger.

        See ``ledgerlog.LedgerWriter.close`` for its errors.

        Args:
            timeout_s: Seconds to wait for the entries; None for the append deadline.

        Returns:
            The last entry of the ledger; -1 if it is empty.
        """
        last = self._run(lambda: self._inner.close(timeout_s=timeout_s))
        self._held.leave()
        return last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.leave(error)
