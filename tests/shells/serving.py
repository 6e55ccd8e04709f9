"""A whole bookie for a test: its machine, its metadata, its network, and clients of it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
from raw_client import KEY, RawClient

from bookie.server.node import BookieNode, open_bookie
from bookie.storage.disk.disk import Disk
from bookie.storage.disk.memory import MemoryDisk
from bookie.storage.engine.config import StorageConfig
from bookie.storage.index.index import Indexes, MemoryIndexes
from ledgerlog.limits import MIB, SHARED_DISK
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.model.layout import LEDGER_COUNTER, ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.net.local import LocalNetwork
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import Network
from ledgerlog.testing.faulty_store import FaultyStore
from ledgerlog.testing.memory_cluster import new_tree
from ledgerlog.wire.frame import Status

_numbers = itertools.count(1)

SMALL = StorageConfig(segment_bytes=8 * MIB, arenas=2, **SHARED_DISK)


def random_bytes(count: int) -> bytes:
    return next(_numbers).to_bytes(count, "big")


def ledger(ledger_id: int, *, key: bytes = KEY, labels: dict[str, bytes] | None = None) -> LedgerMetadata:
    """The metadata of a ledger."""
    return LedgerMetadata.create(
        ledger_id=ledger_id,
        replication=Replication(1, 1, 1),
        ensemble=["b1"],
        key=key,
        token=bytes(8),
        created_ms=0,
        custom=labels,
    )


@attrs.define
class Machine:
    """What outlives a bookie: its files, its metadata store and its network. The files are in memory unless
    ``path`` is given, so no thread is involved and a mock clock may jump."""

    disk: Disk | None = attrs.Factory(MemoryDisk)
    indexes: Indexes | None = attrs.Factory(MemoryIndexes)
    path: str = "/data/b1"
    tree: MemoryTree = attrs.Factory(new_tree)
    network: Network = attrs.Factory(LocalNetwork)
    listen: str = "bookie"
    config: StorageConfig = SMALL
    labels: dict[str, str] = attrs.Factory(dict)
    ledgers: dict[int, LedgerMetadata] = attrs.Factory(lambda: {e: ledger(e) for e in range(200)})
    """The ledgers that exist in the metadata store as soon as the bookie serves."""
    repair_damage: bool = False
    prover: Prover | None = None
    """Who the bookie is, and whom it serves. None: nobody, in an open cluster."""

    @classmethod
    def real(cls, path: Path, **fields: object) -> Machine:
        return cls(disk=None, indexes=None, path=str(path), **fields)

    @asynccontextmanager
    async def bookie(self, bookie_id: str = "b1") -> AsyncIterator[Bookie]:
        store = FaultyStore(self.tree)
        async with (
            store.inner,
            open_bookie(
                self.path,
                store,
                bookie_id=bookie_id,
                network=self.network,
                listen=self.listen,
                random_bytes=random_bytes,
                config=self.config,
                labels=self.labels,
                disk=self.disk,
                indexes=self.indexes,
                prover=self.prover,
                repair_damage=self.repair_damage,
            ) as node,
        ):
            for number, metadata in self.ledgers.items():
                if await store.get(ledger_path(number)) is None:
                    await store.create(ledger_path(number), metadata.encode())
            if self.ledgers:
                await store.skip_ids(LEDGER_COUNTER, max(self.ledgers))
            yield Bookie(node, self.network, store)


@attrs.define
class Bookie:
    node: BookieNode
    network: Network
    store: FaultyStore
    """The bookie's own client of the metadata store."""

    async def connect(self) -> RawClient:
        """A new connection, before HELLO."""
        return RawClient(await self.network.connect(self.node.address))

    async def client(self) -> RawClient:
        """A connection after HELLO."""
        client = await self.connect()
        status, _ = await client.hello()
        assert status is Status.OK
        return client
