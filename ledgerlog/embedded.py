"""Bookies inside the calling process: what ``memory:`` and ``file:`` clusters run on.

The bookies are the production ones, reached over ``net.local`` with the same bytes that TCP would carry.
A ``file:`` cluster has a SQLite file for its metadata and a real directory with a synced journal for each
bookie, and one process owns it at a time:

    PATH/lock               held by the process that has the cluster open, with its pid in it
    PATH/metadata.sqlite    the metadata store
    PATH/bookie-1 ...       the bookies' directories

A ``memory:`` cluster has the same without a disk; it ends with the ``async with`` that opened it.

A directory may be opened later with more bookies than before, never with fewer: what lies on a bookie
that is not started could not be read.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from bookie.server.node import open_bookie
from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.disk.real import RealDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.index.index import Indexes, MemoryIndexes
from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import MIB, SHARED_DISK
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import FileUri, MemoryUri, open_store
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.transport import Network

STORAGE = StorageConfig(segment_bytes=16 * MIB, arenas=3, **SHARED_DISK)
"""Smaller than a bookie of its own: it shares its process with a service, and its disk with the machine."""


@attrs.frozen
class Embedded:
    """What a client of an embedded cluster connects to."""

    store: MetadataStore
    network: Network


@asynccontextmanager
async def open_embedded(uri: MemoryUri | FileUri) -> AsyncIterator[Embedded]:
    """The cluster's bookies and metadata, for the body of the ``async with``.

    Raises StorageLocked (naming the pid) if another process has a ``file:`` directory open, InvalidArgument
    if it has more bookies than the URI asks for, and what opening a bookie raises (StorageCorrupt,
    CookieMismatch). A bookie's storage failure later ends the body and is raised from here."""
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
            await stack.enter_async_context(
                open_bookie(
                    uri.bookie_path(number) if isinstance(uri, FileUri) else name,
                    store,
                    bookie_id=name,
                    network=network,
                    listen=name,
                    random_bytes=os.urandom,
                    config=STORAGE,
                    disk=disk,
                    indexes=indexes,
                )
            )
        yield Embedded(store, network)


async def _own_directory(uri: FileUri, stack: AsyncExitStack) -> None:
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
            f"what the others hold could not be read; use bookies={max(numbers)}"
        )
