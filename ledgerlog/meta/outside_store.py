"""The metadata store of a process that has a storage of its own.

A store on a file (SQLite) raises ``StorageCorrupt`` if that file is damaged. But a bookie that meets a
``StorageError`` takes it for damage of its own files: it ends, or repairs its directory. So a bookie, and the
client that it opens, use the store only through ``OutsideStore``. For them a damaged store is away, until an
operator has put a sound file in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

from ledgerlog.errors import MetadataUnavailable, StorageError
from ledgerlog.meta.store import MetadataSession, MetadataStore, Operation, Versioned, Watch

__all__ = ["OutsideStore"]


@contextmanager
def _away_if_damaged() -> Iterator[None]:
    try:
        yield
    except StorageError as damage:
        raise MetadataUnavailable(str(damage)) from damage


class OutsideStore:
    """A store (``store.MetadataStore``) whose damage is ``MetadataUnavailable``, and never a
    ``StorageError``.

    Args:
        store: The store. It stays yours.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @property
    def session(self) -> MetadataSession:
        """See ``MetadataStore``."""
        return self._store.session

    @property
    def cluster(self) -> str | None:
        """See ``MetadataStore``."""
        return self._store.cluster

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        """See ``MetadataStore``."""
        self._store.belong_to(cluster, through_restores=through_restores)

    async def get(self, path: str) -> Versioned | None:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.get(path)

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> int:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.create(path, value, ephemeral=ephemeral)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.set(path, value, version=version)

    async def delete(self, path: str, *, version: int | None = None) -> None:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            await self._store.delete(path, version=version)

    async def children(self, path: str) -> list[str]:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.children(path)

    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.transaction(operations)

    async def next_id(self, counter: str) -> int:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.next_id(counter)

    async def highest_id(self, counter: str) -> int:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            return await self._store.highest_id(counter)

    async def skip_ids(self, counter: str, through: int) -> None:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            await self._store.skip_ids(counter, through)

    async def sync(self) -> None:
        """See ``MetadataStore``."""
        with _away_if_damaged():
            await self._store.sync()

    def watch(self, path: str) -> AbstractAsyncContextManager[Watch]:
        """See ``MetadataStore``."""
        return self._store.watch(path)
