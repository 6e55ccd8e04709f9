"""A backup of a cluster's metadata store, and its restore under live bookies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ledgerlog.meta.backup import save
from ledgerlog.meta.backup_file import Backup, open_backup, write_backup
from ledgerlog.meta.memory import Content, MemoryTree
from ledgerlog.meta.restore import restore
from ledgerlog.model.restoration import EPOCH_MS
from ledgerlog.testing.memory_cluster import CLUSTER as OURS
from ledgerlog.testing.memory_cluster import Client, MemoryCluster

NOW_MS = EPOCH_MS + 1_000_000


async def backed_up(tree: MemoryTree, path: Path, cluster: str = OURS) -> Backup:
    async with tree.open_store() as store:
        store.belong_to(cluster)
        with write_backup(str(path)) as writer:
            await save(store, writer, made_ms=NOW_MS)
    return open_backup(str(path))


async def written(client: Client, payload: bytes) -> int:
    """A closed ledger with one entry."""
    writer = await client.ledgers.create()
    assert await writer.append(payload) == 0
    await writer.close()
    return writer.ledger_id


async def restored_under_bookies(cluster: MemoryCluster, backup: Backup) -> None:
    """The store is lost, and made again from the backup while the bookies go on."""
    cluster.tree.exchange(Content())
    async with cluster.tree.open_store() as store:
        await restore(store, backup, now_ms=NOW_MS, random_bytes=os.urandom)


async def collected(cluster: MemoryCluster, on: Sequence[str] | None = None) -> int:
    """Two passes of the collection of some bookies, or of all: a mass deletion waits for the second pass."""
    deleted = 0
    for bookie in [
        cluster.bookies[bookie_id] for bookie_id in cluster.bookies if on is None or bookie_id in on
    ]:
        collector = bookie.node.engine.collector
        assert collector is not None
        await bookie.node.engine.flush()  # Collection looks at the index.
        for _ in range(2):
            deleted += await collector.collect()
    return deleted
