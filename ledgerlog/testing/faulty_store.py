"""Metadata stores that fail as remote ones do, for tests: every call passes one place, and that takes faults.

A *fault* is an async function of a ``Call`` and of ``go_on``, which makes the call and gives its result. It
may do something first, wait, refuse, lose what comes back, or never go on:

    async def no_settings(call: Call, go_on: GoOn) -> Any:
        if call.verb == "get" and call.path == REPAIR_SETTINGS:
            raise MetadataUnavailable("no answer")
        return await go_on()

    store = FaultyStore(tree, no_settings)

Put faults into ``store.faults`` and take them out at any time. The first one is the outermost: it sees the
call first and the result last. The functions and classes below make the usual ones. Every store here takes
faults: ``FaultyStore``, whose calls take no time, and the ``SimStore`` of each process of a simulated cluster
(``cluster.process(name).store``).

``FaultyStore`` also has counters and switches for the faults that most tests want: ``lost_answers``,
``lost_writes``, ``is_hanging``, ``before_write`` and ``before_get``.
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
    "before",
    "fates",
    "uninterrupted",
    "unreachable_after",
]


@attrs.frozen
class Call:
    """One call of a ``MetadataStore``."""

    verb: str
    """The method's name: "get", "create", "set", "delete", "children", "transaction", "next_id",
    "highest_id" or "sync"."""
    path: str = ""
    """The path, or the name of the counter. Empty for "transaction" and "sync"."""
    operations: tuple[Operation, ...] = ()
    """What the call writes: one for "create", "set" and "delete", all of them for "transaction"."""

    @property
    def is_write(self) -> bool:
        return bool(self.operations) or self.verb in ("transaction", "next_id")

    def __str__(self) -> str:
        if self.verb == "transaction":
            return f"write {' '.join(operation.path for operation in self.operations)}"
        return f"{self.verb.replace('_', ' ')} {self.path}".strip()


GoOn = Callable[[], Awaitable[Any]]
Fault = Callable[[Call, GoOn], Awaitable[Any]]


# --- faults ---------------------------------------------------------------------------------------


def before(act: Callable[[Call], Awaitable[None]]) -> Fault:
    """Await ``act(call)`` before each call. What it raises, the call raises."""

    async def fault(call: Call, go_on: GoOn) -> Any:
        await act(call)
        return await go_on()

    return fault


@attrs.define(eq=False)
class CrossedWrites:
    """A fault: before the next writes of a path, somebody does what ``acts[path]`` says, one act a write."""

    acts: dict[str, list[Callable[[], Awaitable[None]]]] = attrs.Factory(dict)

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        for operation in call.operations:
            if isinstance(operation, Set) and self.acts.get(operation.path):
                await self.acts[operation.path].pop(0)()
        return await go_on()


@attrs.define(eq=False)
class NotedWrites:
    """No fault: notes in ``values`` what is asked to be written at ``path``."""

    path: str
    values: list[bytes] = attrs.Factory(list)

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        self.values += [
            each.value for each in call.operations if isinstance(each, Set) and each.path == self.path
        ]
        return await go_on()


def unreachable_after(calls: int) -> Fault:
    """Let so many calls through. From then on the store cannot be reached: MetadataUnavailable."""

    async def fault(call: Call, go_on: GoOn) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise MetadataUnavailable("the store cannot be reached")
        return await go_on()

    return fault


class Fate(enum.Enum):
    """What becomes of a write."""

    DONE = "done"
    UNREACHABLE = "unreachable"
    """Nothing happens, and the caller knows: MetadataUnavailable."""
    LOST = "lost"
    """Nothing happens, and the caller does not know: MetadataOutcomeUnknown."""
    UNANSWERED = "unanswered"
    """It happens, and the caller does not know: MetadataOutcomeUnknown. A refusal reaches the caller."""


def fates(choose: Callable[[Call], Fate]) -> Fault:
    """Let ``choose`` decide what becomes of each write."""

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
    """A fault: reads below ``prefix`` come from a replica that holds ``seen`` and nothing newer, until
    ``sync``.

    Example: ``store.faults.append(StaleReplica(tree.content))`` shows what the tree holds now, whatever
    others write afterwards. ``StaleReplica(Content())`` shows an empty tree.
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


def uninterrupted(write_s: float) -> Fault:
    """Each write takes ``write_s`` seconds and comes to its end even if its caller is cancelled, as in a
    store that works in a thread."""

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
    """One client of a tree (``store.MetadataStore``). Every call passes the faults, then ``_carry``, and then
    reaches ``inner``."""

    def __init__(self, tree: MemoryTree, *faults: Fault) -> None:
        self.inner = MemoryStore(tree)
        self.faults = list(faults)

    async def _call(self, call: Call, act: GoOn) -> Any:
        go_on: GoOn = partial(self._carry, call, act)
        for fault in reversed(self.faults):
            go_on = partial(fault, call, go_on)
        return await go_on()

    async def _carry(self, call: Call, act: GoOn) -> Any:
        """Bring the call to the tree, and the result back."""
        return await act()

    @property
    def session(self) -> MemorySession:
        return self.inner.session

    @property
    def cluster(self) -> str | None:
        return self.inner.cluster

    def belong_to(self, cluster: str) -> None:
        self.inner.belong_to(cluster)

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

    async def sync(self) -> None:
        await self._call(Call("sync"), self.inner.sync)

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        return self.inner.watch(path)


class FaultyStore(CalledStore):
    """A store whose calls take no time. Behind its ``faults`` it has these, each set by an attribute."""

    def __init__(self, tree: MemoryTree, *faults: Fault) -> None:
        super().__init__(tree, *faults)
        self.lost_answers = 0
        """So many writes to come are applied, and their answer is lost."""
        self.lost_writes = 0
        """So many writes to come are not applied, which their caller does not learn."""
        self.is_hanging = False
        """Calls get no answer until their deadline."""
        self.before_write: Callable[[], Awaitable[None]] | None = None
        """Called once, before the next write."""
        self.before_get: Callable[[str], Awaitable[None]] | None = None
        """Called with the path, before each read of a node."""
        self.writes = 0
        """How many writes were asked for."""

    def disconnect(self) -> None:
        """Lose contact with the tree until ``reconnect``."""
        self.inner.disconnect()

    def reconnect(self) -> None:
        """Be in contact again."""
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
