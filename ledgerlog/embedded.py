"""Bookies inside the calling process, for ``memory:`` and ``file:`` clusters.

The code of these bookies is the same as in production. The client reaches them over ``net.local``, with the
same bytes that TCP would carry. A ``file:`` cluster keeps its metadata in a SQLite file. Each of its bookies
has a real directory with a synced journal. One process owns the cluster at a time:

    PATH/lock               held by the process that has the cluster open; it holds that process's pid
    PATH/metadata.sqlite    the metadata store
    PATH/bookie-1 ...       the bookies' directories

If a bookie finds that its index is damaged, it makes the index again from its files, as ``bookie run`` does.

A ``memory:`` cluster has the same parts without a disk. It ends with the ``async with`` that opened it.

You may open a directory later with more bookies than before, but never with fewer: you could not read the
entries on a bookie that is not started.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import attrs

from bookie.server.healing import healing_bookie
from bookie.server.node import BookieNode, open_bookie
from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.disk.real import RealDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.index.index import Indexes, MemoryIndexes
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import KIB, MIB, SHARED_DISK
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import FileUri, MemoryUri, open_store
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.transport import Network

STORAGE = StorageConfig(segment_bytes=16 * MIB, first_segment_bytes=256 * KIB, arenas=3, **SHARED_DISK)
"""The storage of an embedded bookie. It is smaller than the storage of a separate bookie, because an embedded
bookie shares its process with a service, and its disk with the rest of the machine."""


@attrs.frozen
class Embedded:
    """The metadata store and the network of an embedded cluster, for the client that connects to it."""

    store: MetadataStore
    network: Network


@asynccontextmanager
async def open_embedded(uri: MemoryUri | FileUri) -> AsyncIterator[Embedded]:
    """Start the cluster's bookies and its metadata store for the body of the ``async with``.

    If the storage of a bookie fails later, the body is cancelled, and the ``async with`` raises the failure.

    Args:
        uri: The cluster. ``uri.bookies`` is the number of bookies to start.

    Yields:
        The metadata store, and the network that reaches the bookies.

    Raises:
        StorageLocked: Another process has the ``file:`` directory open; the error names its pid.
        InvalidArgument: The directory has more bookies than the URI asks for.
        StorageCorrupt: A file of a bookie is damaged.
        CookieMismatch: A bookie's directory belongs to another bookie or another cluster.
    """
    network = LocalNetwork()
    async with AsyncExitStack() as stack:
        disk: Disk | None = None
        indexes: Indexes | None = None
        if isinstance(uri, FileUri):
            await _own_directory(uri, stack)
        else:
            disk, indexes = MemoryDisk(), MemoryIndexes()
        store = await stack.enter_async_context(open_store(uri, create=True))
        for number in range(1, uri.bookies + 1):
            name = f"bookie-{number}"
            path = uri.bookie_path(number) if isinstance(uri, FileUri) else name

            def open_node(
                *, again_at: str | None, name: str = name, path: str = path
            ) -> AbstractAsyncContextManager[BookieNode]:
                return open_bookie(
                    path,
                    store,
                    bookie_id=name,
                    network=network,
                    listen=name,
                    random_bytes=os.urandom,
                    config=STORAGE,
                    disk=disk,
                    indexes=indexes,
                    heals_index=again_at is not None,
                )

            await stack.enter_async_context(healing_bookie(open_node))
        yield Embedded(store, network)


async def _own_directory(uri: FileUri, stack: AsyncExitStack) -> None:
    """Make and lock the directory. Raise InvalidArgument if it has more bookies than the URI asks for."""
    disk = RealDisk()
    stack.push_async_callback(disk.aclose)
    await disk.make_directory(uri.path)
    lock = await disk.lock_directory(uri.path)
    stack.callback(lock.release)
    try:
        names = await disk.list_directory(uri.path)
    except FileMissing:
        names = []
    numbers = [int(name[7:]) for name in names if name.startswith("bookie-") and name[7:].isdigit()]
    if max(numbers, default=0) > uri.bookies:
        raise InvalidArgument(
            f"{uri.path} has {max(numbers)} bookies, the URI asks for {uri.bookies}: "
            f"entries on the others could not be read; use bookies={max(numbers)}"
        )
