"""Metadata stores that fail as remote ones do, for tests: every call passes the store's faults.

A *fault* is an async function with two arguments: a ``Call``, and ``go_on``. ``await go_on()`` makes the call
and returns its result. A fault may act before the call, wait, raise, drop the result, or not call ``go_on``:

    async def no_settings(call: Call, go_on: GoOn) -> Any:
        if call.verb == "get" and call.path == REPAIR_SETTINGS:
            raise MetadataUnavailable("no answer")
        return await go_on()

    store = FaultyStore(tree, no_settings)

You may add faults to ``store.faults`` and remove them at any time. The first fault is the outermost: it sees
the call first and the result last. The functions and classes below make the usual faults. Two stores take
faults: ``FaultyStore``, whose calls take no time, and the ``SimStore`` of each process of a simulated cluster
(``cluster.process(name).store``).

``FaultyStore`` also has counters and switches for common faults: ``lost_answers``, ``lost_writes``,
``is_hanging``, ``before_write`` and ``before_get``.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import attrs
import trio

from ledgerlog.errors import MetadataOutcomeUnknown, MetadataUnavailable
from ledgerlog.limits import METADATA_TIMEOUT_S
from ledgerlog.meta.memory import Content, MemorySession, MemoryStore, MemoryTree
from ledgerlog.meta.store import Create, Delete, Operation, Set, Versioned, Watch

__all__ = [
    "Call",
    "CalledStore",
    "CrossedWrites",
    "Fate",
    "Fault",
    "FaultyStore",
    "GoOn",
    "NotedWrites",
    "StaleReplica",
    "answer_lost_behind",
    "before",
    "fates",
    "latency",
    "uninterrupted",
    "unreachable_after",
]


@attrs.frozen
class Call:
    """One call of a ``MetadataStore``."""

    verb: str
    """The method's name: "get", "create", "set", "delete", "children", "transaction", "next_id",
    "highest_id", "skip_ids" or "sync"."""
    path: str = ""
    """The path, or the name of the counter. Empty for "transaction" and "sync"."""
    operations: tuple[Operation, ...] = ()
    """The writes of the call: one for "create", "set" and "delete", all of them for "transaction"."""

    @property
    def is_write(self) -> bool:
        """Whether the call may change the store."""
        return bool(self.operations) or self.verb in ("transaction", "next_id", "skip_ids")

    def __str__(self) -> str:
        if self.verb == "transaction":
            return f"write {' '.join(operation.path for operation in self.operations)}"
        return f"{self.verb.replace('_', ' ')} {self.path}".strip()


GoOn = Callable[[], Awaitable[Any]]
Fault = Callable[[Call, GoOn], Awaitable[Any]]


# --- faults ---------------------------------------------------------------------------------------


def before(act: Callable[[Call], Awaitable[None]]) -> Fault:
    """Return a fault that awaits ``act(call)`` before each call. If ``act`` raises, the call raises that."""

    async def fault(call: Call, go_on: GoOn) -> Any:
        await act(call)
        return await go_on()

    return fault


@attrs.define(eq=False)
class CrossedWrites:
    """A fault: before each of the next writes of a path, await and remove the first of ``acts[path]``.

    Use it to let another client write first.
    """

    acts: dict[str, list[Callable[[], Awaitable[None]]]] = attrs.Factory(dict)

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        for operation in call.operations:
            if isinstance(operation, Set) and self.acts.get(operation.path):
                await self.acts[operation.path].pop(0)()
        return await go_on()


@attrs.define(eq=False)
class NotedWrites:
    """Not a fault: it records in ``values`` each value that a call wants to set at ``path``."""

    path: str
    values: list[bytes] = attrs.Factory(list)

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        self.values += [
            each.value for each in call.operations if isinstance(each, Set) and each.path == self.path
        ]
        return await go_on()


def latency(seconds: float) -> Fault:
    """Return a fault: each call takes ``seconds`` to reach the store, unless it is cancelled before."""

    async def fault(_: Call, go_on: GoOn) -> Any:
        await trio.sleep(seconds)
        return await go_on()

    return fault


def unreachable_after(calls: int) -> Fault:
    """Return a fault that lets ``calls`` calls through. All later ones raise MetadataUnavailable."""

    async def fault(call: Call, go_on: GoOn) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise MetadataUnavailable("the store cannot be reached")
        return await go_on()

    return fault


class Fate(enum.Enum):
    """The outcome of a write."""

    DONE = "done"
    UNREACHABLE = "unreachable"
    """The write has no effect, and the caller knows it: MetadataUnavailable."""
    LOST = "lost"
    """The write has no effect, and the caller does not know it: MetadataOutcomeUnknown."""
    UNANSWERED = "unanswered"
    """The write takes effect, and the caller does not know it: MetadataOutcomeUnknown. If the store refuses
    the write, the caller gets the refusal."""


def fates(choose: Callable[[Call], Fate]) -> Fault:
    """Return a fault that asks ``choose`` for the outcome of each write."""

    async def fault(call: Call, go_on: GoOn) -> Any:
        fate = choose(call) if call.is_write else Fate.DONE
        if fate in (Fate.UNREACHABLE, Fate.LOST):
            await trio.lowlevel.checkpoint()
            if fate is Fate.UNREACHABLE:
                raise MetadataUnavailable("the store cannot be reached; nothing happened")
            raise MetadataOutcomeUnknown("the request was lost")
        result = await go_on()
        if fate is Fate.UNANSWERED:
            raise MetadataOutcomeUnknown("the answer was lost")
        return result

    return fault


class StaleReplica:
    """A fault: until ``sync``, reads below ``prefix`` see only the content ``seen``, as on a stale replica.

    Example: after ``store.faults.append(StaleReplica(tree.content))`` reads see the tree as it is now, even
    if others write afterwards. ``StaleReplica(Content())`` shows an empty tree.
    """

    def __init__(self, seen: Content, prefix: str = "") -> None:
        tree = MemoryTree()
        tree.exchange(seen)
        self._replica: MemoryStore | None = tree.open_store()
        self._prefix = prefix

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        if call.verb == "sync":
            self._replica = None
        if self._replica is None or call.is_write or not call.path.startswith(self._prefix):
            return await go_on()
        return await getattr(self._replica, call.verb)(call.path)


def answer_lost_behind(path: str, act: Callable[[], Awaitable[object]]) -> Fault:
    """Return a fault: the first write of ``path`` takes effect, ``act()`` runs, then the answer is lost."""
    is_done = False

    async def fault(call: Call, go_on: GoOn) -> Any:
        nonlocal is_done
        if is_done or all(operation.path != path for operation in call.operations):
            return await go_on()
        is_done = True
        await go_on()
        await act()
        raise MetadataOutcomeUnknown("the answer was lost")

    return fault


def uninterrupted(write_s: float) -> Fault:
    """Return a fault: each write takes ``write_s`` seconds, and completes even if its caller is cancelled.

    Stores that work in a thread behave like this.
    """

    async def fault(call: Call, go_on: GoOn) -> Any:
        if not call.is_write:
            return await go_on()
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            await trio.sleep(write_s)
            return await go_on()

    return fault


# --- stores ---------------------------------------------------------------------------------------


class CalledStore:
    """A client of a tree (``store.MetadataStore``). Its calls pass the faults, and then ``_carry``."""

    _client_of: type[MemoryStore] = MemoryStore

    def __init__(self, tree: MemoryTree, *faults: Fault) -> None:
        self.inner = self._client_of(tree)
        self.faults = list(faults)

    async def _call(self, call: Call, act: GoOn) -> Any:
        go_on: GoOn = partial(self._carry, call, act)
        for fault in reversed(self.faults):
            go_on = partial(fault, call, go_on)
        return await go_on()

    async def _carry(self, call: Call, act: GoOn) -> Any:
        """Carry the call to the tree, and the result back."""
        return await act()

    @property
    def session(self) -> MemorySession:
        return self.inner.session

    @property
    def cluster(self) -> str | None:
        return self.inner.cluster

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        self.inner.belong_to(cluster, through_restores=through_restores)

    async def get(self, path: str) -> Versioned | None:
        found: Versioned | None = await self._call(Call("get", path), lambda: self.inner.get(path))
        return found

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        call = Call("create", path, (Create(path, value, ephemeral),))
        version: int = await self._call(call, lambda: self.inner.create(path, value, ephemeral=ephemeral))
        return version

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        call = Call("set", path, (Set(path, value, version),))
        new_version: int = await self._call(call, lambda: self.inner.set(path, value, version=version))
        return new_version

    async def delete(self, path: str, *, version: int | None = None) -> None:
        call = Call("delete", path, (Delete(path, version),))
        await self._call(call, lambda: self.inner.delete(path, version=version))

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._call(Call("children", path), lambda: self.inner.children(path))
        return names

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        operations = tuple(operations)
        call = Call("transaction", operations=operations)
        versions: list[int] = await self._call(call, lambda: self.inner.transaction(operations))
        return versions

    async def next_id(self, counter: str) -> int:
        given: int = await self._call(Call("next_id", counter), lambda: self.inner.next_id(counter))
        return given

    async def highest_id(self, counter: str) -> int:
        highest: int = await self._call(Call("highest_id", counter), lambda: self.inner.highest_id(counter))
        return highest

    async def skip_ids(self, counter: str, through: int) -> None:
        await self._call(Call("skip_ids", counter), lambda: self.inner.skip_ids(counter, through))

    async def sync(self) -> None:
        await self._call(Call("sync"), self.inner.sync)

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        return self.inner.watch(path)


class FaultyStore(CalledStore):
    """A store whose calls take no time. After its ``faults``, calls meet the faults of these attributes.

    Args:
        tree: The tree that holds the metadata.
        faults: The faults that calls pass, outermost first. You may change ``faults`` at any time.
    """

    def __init__(self, tree: MemoryTree, *faults: Fault) -> None:
        super().__init__(tree, *faults)
        self.lost_answers = 0
        """This many of the next writes take effect, and their answers are lost."""
        self.lost_writes = 0
        """This many of the next writes are lost, and their callers get MetadataOutcomeUnknown."""
        self.is_hanging = False
        """Whether calls get no answer and end at their deadline."""
        self.before_write: Callable[[], Awaitable[None]] | None = None
        """If set: awaited once, before the next write."""
        self.before_get: Callable[[str], Awaitable[None]] | None = None
        """If set: awaited with the path before each read of a node."""
        self.writes = 0
        """How many writes were called."""

    def disconnect(self) -> None:
        """Lose contact with the tree until ``reconnect``."""
        self.inner.disconnect()

    def reconnect(self) -> None:
        """Regain contact with the tree."""
        self.inner.reconnect()

    async def _carry(self, call: Call, act: GoOn) -> Any:
        if call.is_write:
            return await self._write(act)
        if call.verb == "get" and self.before_get is not None:
            await self.before_get(call.path)
        if self.is_hanging:
            await trio.sleep(METADATA_TIMEOUT_S)
            raise MetadataUnavailable("the metadata store does not answer")
        return await act()

    async def _write(self, act: GoOn) -> Any:
        self.writes += 1
        hook, self.before_write = self.before_write, None
        if hook is not None:
            await hook()
        if self.is_hanging:
            await trio.sleep(METADATA_TIMEOUT_S)
            raise MetadataOutcomeUnknown("the metadata store does not answer")
        if self.lost_writes:
            self.lost_writes -= 1
            await trio.lowlevel.checkpoint()
            raise MetadataOutcomeUnknown("the request was lost")
        result = await act()
        if self.lost_answers:
            self.lost_answers -= 1
            raise MetadataOutcomeUnknown("the answer was lost")
        return result
