"""A disk in memory that fails, for tests that run without a simulated cluster.

``FaultyDisk`` is a ``MemoryDisk`` whose calls pass its ``faults``. A fault is an async function with two
arguments: a ``DiskCall``, and ``go_on``. ``await go_on()`` makes the call and returns its result. A fault may
wait, raise, or not call ``go_on``:

    disk = FaultyDisk()
    disk.faults.append(Fails("write_sync"))                                   # until you remove it
    disk.faults = [Fails("create", error=DiskFull("no room"), only=lambda path: "entries" in path)]
    gate = Gate("write_sync")
    disk.faults = [gate]
    gate.let_one_through()
    gate.open()

The first fault is the outermost. These calls pass the faults: ``create``, ``rename``, ``truncate``, ``read``,
``write_sync`` and ``write_now``. ``write_behind`` counts as ``write_sync``, because it calls it.
``write_now`` is not async, so of the faults only ``Fails`` without ``happens`` works for it. ``disk.calls``
counts the calls.

A ``write_sync`` that fails can leave its bytes visible to reads (``Fails(..., happens=True)``), as a page
cache does. ``cut_power`` removes these bytes, except bytes that a later write has made durable.

Simulated clusters have other disks (``ledgerlog.testing.disk``), which take time and tear writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from bookie.storage.disk.disk import File
from bookie.storage.disk.memory import MemoryDisk, MemoryFile
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import StorageError

__all__ = ["DiskCall", "DiskFault", "Fails", "FaultyDisk", "Gate", "skips"]


@attrs.frozen
class DiskCall:
    """One call of a ``Disk``."""

    verb: str
    """The name of the method."""
    path: str
    """The file."""
    size: int = 0
    """How many bytes the call creates, reads or writes."""


GoOn = Callable[[], Awaitable[Any]]
DiskFault = Callable[[DiskCall, GoOn], Awaitable[Any]]


class Fails:
    """A fault: calls of these methods fail.

    Args:
        verbs: The names of the methods, for example "write_sync".
        error: The error that the calls raise. None: StorageError.
        only: Called with the path. The call fails only if it returns true.
        happens: The calls have their effect before they fail.
    """

    def __init__(
        self,
        *verbs: str,
        error: StorageError | None = None,
        only: Callable[[str], bool] = lambda path: True,
        happens: bool = False,
    ) -> None:
        self.verbs = verbs
        self.error = error or StorageError("Input/output error")
        self.only = only
        self.happens = happens
        self.count = 0
        """How many calls have failed."""

    def check(self, call: DiskCall) -> None:
        """Raise the error if this call has to fail."""
        if self._concerns(call):
            self.count += 1
            raise fresh(self.error)

    def _concerns(self, call: DiskCall) -> bool:
        return call.verb in self.verbs and self.only(call.path)

    async def __call__(self, call: DiskCall, go_on: GoOn) -> Any:
        if self._concerns(call):
            if self.happens:
                await go_on()
            else:
                await trio.lowlevel.checkpoint()
            self.check(call)
        return await go_on()


class Gate:
    """A fault: calls of these methods wait at a gate, which is shut at first."""

    def __init__(self, *verbs: str) -> None:
        self.verbs = verbs
        self._is_open = False
        self._permits = 0
        self._changed = trio.Event()

    def shut(self) -> None:
        """Let no more calls through. Waiting calls continue waiting."""
        self._is_open = False
        self._permits = 0

    def open(self) -> None:
        """Let all calls through until ``shut``."""
        self._is_open = True
        self._tell()

    def let_one_through(self) -> None:
        """Let one call through: a waiting call if there is one, otherwise the next call."""
        self._permits += 1
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def __call__(self, call: DiskCall, go_on: GoOn) -> Any:
        if call.verb in self.verbs:
            while not self._is_open and not self._permits:
                await self._changed.wait()
            if not self._is_open:
                self._permits -= 1
        return await go_on()


def skips(*verbs: str) -> DiskFault:
    """Return a fault: calls of these methods do nothing and report success, as if a crash had undone them."""

    async def fault(call: DiskCall, go_on: GoOn) -> Any:
        if call.verb not in verbs:
            return await go_on()
        await trio.lowlevel.checkpoint()
        return None

    return fault


@attrs.frozen
class _Undone:
    """The content that a failed write has replaced. ``cut_power`` restores this content."""

    content: bytearray
    offset: int
    before: bytearray


class FaultyDisk(MemoryDisk):
    """A disk in memory that fails. See the module's docstring.

    Args:
        faults: The faults that its calls pass, outermost first. You may change ``faults`` at any time.
    """

    def __init__(self, *faults: DiskFault) -> None:
        super().__init__()
        self.faults = list(faults)
        self.calls: Counter[str] = Counter()
        """How often each method that passes the faults was called."""
        self.is_quick = False
        """The answer of ``may_write_now``: whether callers may use ``write_now``, which does not wait."""
        self._unsynced: list[_Undone] = []

    async def _call(self, call: DiskCall, act: GoOn) -> Any:
        self.calls[call.verb] += 1
        for fault in reversed(self.faults):
            act = partial(fault, call, act)
        return await act()

    def cut_power(self) -> None:
        """Remove all bytes that failed writes have left. No other task may use the disk meanwhile."""
        for undone in reversed(self._unsynced):
            undone.content[undone.offset : undone.offset + len(undone.before)] = undone.before
        self._unsynced.clear()

    async def rename(self, source: str, target: str) -> None:
        act = partial(super().rename, source, target)
        await self._call(DiskCall("rename", source), act)

    async def truncate(self, path: str, size: int) -> None:
        act = partial(super().truncate, path, size)
        await self._call(DiskCall("truncate", path), act)

    async def create(self, path: str, size: int) -> MemoryFile:
        act = partial(super().create, path, size)
        file: MemoryFile = await self._call(DiskCall("create", path, size), act)
        return file

    async def write_sync(self, file: File, offset: int, view: memoryview) -> None:
        assert isinstance(file, MemoryFile)
        act = partial(super().write_sync, file, offset, view)
        before = file.content[offset : offset + len(view)]
        try:
            await self._call(DiskCall("write_sync", file.path, len(view)), act)
        except StorageError:
            self._unsynced.append(_Undone(file.content, offset, before))
            raise
        self._make_durable(file.content, offset, view)

    def _make_durable(self, content: bytearray, offset: int, view: memoryview) -> None:
        for undone in self._unsynced:
            low = max(offset, undone.offset)
            high = min(offset + len(view), undone.offset + len(undone.before))
            if undone.content is content and low < high:
                undone.before[low - undone.offset : high - undone.offset] = view[low - offset : high - offset]

    def may_write_now(self, size: int) -> bool:
        return self.is_quick

    def write_now(self, file: File, offset: int, view: memoryview) -> float:
        assert isinstance(file, MemoryFile)
        call = DiskCall("write_now", file.path, len(view))
        self.calls[call.verb] += 1
        for fault in self.faults:
            if isinstance(fault, Fails):
                fault.check(call)
        file.content[offset : offset + len(view)] = view
        return 0.0

    async def read(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        act = partial(super().read, file, ranges)
        call = DiskCall("read", file.path, sum(length for _, length in ranges))
        found: list[bytes] = await self._call(call, act)
        return found
