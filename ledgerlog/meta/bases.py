"""The common base classes of the sessions and the stores of all kinds (``meta.store``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import trio

from ledgerlog.meta.store import Create, Delete, Operation, SessionState, Set

__all__ = ["SessionBase", "SingleWrites"]


class SessionBase:
    """A session's state, and how to wait until the state changes, for all kinds of sessions."""

    def __init__(self) -> None:
        self._state = SessionState.CONNECTED
        self._changed = trio.Event()

    @property
    def state(self) -> SessionState:
        """The present state."""
        return self._state

    async def wait_not(self, state: SessionState) -> SessionState:
        """Wait until the state differs from ``state``, and return the new state. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while self.state is state:
            await self._changed.wait()
        return self.state

    def _change(self, state: SessionState) -> None:
        self._state = state
        self._changed.set()
        self._changed = trio.Event()


class SingleWrites(ABC):
    """The writes of one node, for a store: each is a transaction of one operation."""

    @abstractmethod
    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        """See ``MetadataStore``."""

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        """See ``MetadataStore``."""
        return (await self.transaction([Create(path, value, ephemeral)]))[0]

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        """See ``MetadataStore``."""
        return (await self.transaction([Set(path, value, version)]))[0]

    async def delete(self, path: str, *, version: int | None = None) -> None:
        """See ``MetadataStore``."""
        await self.transaction([Delete(path, version)])
