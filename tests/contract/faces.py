"""The faces of the library, each as the tests of ``test_faces_contract`` use it.

A test of the contract is one async function. ``Face.run`` runs it under the face's own loop:

    trio        the library itself
    aio         asyncio, with trio in a thread, as a guest, and under uvloop
    blocking    no loop. The objects of the face are wrapped (``_Waiting``), so that a call that the library
                awaits can be awaited here, too. It is done when the ``await`` begins, so the coroutine of a
                test never has to wait; the tasks of a test are threads.

``_Waiting`` decides by the library's own classes what is awaited, entered or iterated. So a face whose method
has another shape than that of the library fails.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any, Protocol

import trio
import uvloop

import ledgerlog
import ledgerlog.aio
import ledgerlog.blocking
from tests.waiting import PATIENCE_S

__all__ = ["ELECTING", "EVERY", "Face"]

Work = Callable[[], Coroutine[Any, Any, Any]]


class Face(Protocol):
    """One way to use the library."""

    name: str
    api: ModuleType
    """The module of the face."""

    def connect(self, uri: str) -> AbstractAsyncContextManager[Any]:
        """Connect by this face."""
        ...

    def run(self, main: Work) -> None:
        """Run a test."""
        ...

    async def together(self, *works: Work) -> list[Any]:
        """Run tasks at the same time, and return what they returned. Raise the first error, bare."""
        ...


class TrioFace:
    name = "trio"
    api = ledgerlog

    def connect(self, uri: str) -> AbstractAsyncContextManager[Any]:
        return ledgerlog.connect(uri)

    def run(self, main: Work) -> None:
        async def bounded() -> None:
            with trio.fail_after(PATIENCE_S):
                await main()

        trio.run(bounded)

    async def together(self, *works: Work) -> list[Any]:
        results: list[Any] = [None] * len(works)

        async def one(index: int) -> None:
            results[index] = await works[index]()

        async with trio.open_nursery() as nursery:
            for index in range(len(works)):
                nursery.start_soon(one, index)
        return results


class AioFace:
    api = ledgerlog.aio

    def __init__(self, name: str, *, guest: bool = False, is_uvloop: bool = False) -> None:
        self.name = name
        self._guest = guest
        self._is_uvloop = is_uvloop

    def connect(self, uri: str) -> AbstractAsyncContextManager[Any]:
        return ledgerlog.aio.connect(uri, guest=self._guest)

    def run(self, main: Work) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await main()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop if self._is_uvloop else None) as runner:
            runner.run(bounded())

    async def together(self, *works: Work) -> list[Any]:
        return list(await asyncio.gather(*(work() for work in works)))


class BlockingFace:
    name = "blocking"
    api = ledgerlog.blocking

    @asynccontextmanager
    async def connect(self, uri: str) -> AsyncIterator[Any]:
        with ledgerlog.blocking.connect(uri) as cluster:
            yield _wrapped(cluster)

    def run(self, main: Work) -> None:
        _finish(main())

    async def together(self, *works: Work) -> list[Any]:
        results: list[Any] = [None] * len(works)
        errors: list[BaseException] = []

        def one(index: int) -> None:
            try:
                results[index] = _finish(works[index]())
            except BaseException as error:
                errors.append(error)

        # No test waits for a thread that hangs, and neither does the end of the process.
        threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(works))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if errors:
            raise errors[0]
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError(f"a task did not end within {PATIENCE_S:g} s")
        return results


def _finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something that is not of the blocking face")


_FACES = {name for name in ledgerlog.blocking.__all__ if name[0].isupper()}


def _wrapped(value: Any) -> Any:
    """Wrap an object of the face; return other values as they are."""
    if type(value).__name__ in _FACES and type(value).__module__.startswith("ledgerlog.blocking"):
        return _Waiting(value)
    return value


class _Waiting:
    """An object of the blocking face that is used like one of the library."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._original = getattr(ledgerlog, type(inner).__name__)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        original = inspect.getattr_static(self._original, name, None)
        value = getattr(self._inner, name)
        if not inspect.isfunction(original):
            return _wrapped(value)

        def call(*arguments: Any, **options: Any) -> Any:
            def act() -> Any:
                return value(
                    *(each._inner if isinstance(each, _Waiting) else each for each in arguments), **options
                )

            if inspect.iscoroutinefunction(original):
                return _soon(act)
            found = act()
            if isinstance(found, Iterator):
                return _Each(found)
            returns = str(inspect.signature(original).return_annotation)
            return _entered(found) if returns.startswith("AbstractAsyncContextManager") else _wrapped(found)

        return call

    def __aiter__(self) -> AsyncIterator[Any]:
        return _Each(iter(self._inner))

    async def __anext__(self) -> Any:
        for value in self._inner:
            return _wrapped(value)
        raise StopAsyncIteration

    async def __aenter__(self) -> Any:
        self._inner.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)


async def _soon(act: Callable[[], Any]) -> Any:
    return _wrapped(act())


class _Each:
    """An iterator that is used like an async one, by several threads at once if the test does so."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __aiter__(self) -> _Each:
        return self

    async def __anext__(self) -> Any:
        for value in self._values:
            return _wrapped(value)
        raise StopAsyncIteration


@asynccontextmanager
async def _entered(manager: Any) -> AsyncIterator[Any]:
    with manager as value:
        yield _wrapped(value)


ELECTING: tuple[Face, ...] = (
    TrioFace(),
    AioFace("aio"),
    AioFace("aio-guest", guest=True),
    AioFace("aio-uvloop", is_uvloop=True),
)
"""The faces that have ``Election.leadership``."""

EVERY: tuple[Face, ...] = (*ELECTING, BlockingFace())
