"""Which cluster a metadata store is of, and that it stays so.

A cluster has a random id, which lies at ``layout.CLUSTER`` and never changes. Whoever opens a store names its
cluster (``MetadataStore.belong_to``): a bookie names that of its cookie, a client the one that it found
first. From then on what answers must show that id, before anything is read from it, written to it, or deleted
because of what it says. A store that was emptied, a file that was replaced, a name that leads to other
servers: all of these answer readily, and to a bookie each of its ledgers would look deleted.

This module compares the ids and words the messages. *When* to compare depends on the kind of store:

* memory and SQLite look in every call, in the same instant or the same transaction;
* ZooKeeper looks on every new connection, and binds what follows to that session (``zookeeper.store``).

``WrongCluster`` is a ``MetadataUnavailable``: nothing has happened, and whoever waits for a store that is
away waits for the right one to come back in the same way. It is logged once when it begins and once when it
ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ledgerlog.errors import ClusterNotFound, InvalidArgument, WrongCluster
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import CLUSTER
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["Belonging", "check_cluster", "find_cluster", "join_cluster", "make_cluster"]

logger = logging.getLogger(__name__)

_ID_BYTES = 16
_ID_CHARACTERS_MAX = 128


def check_cluster(value: bytes) -> str:
    """The id of a cluster as it lies at ``layout.CLUSTER``. MetadataCorrupt."""
    try:
        cluster = value.decode("ascii")
    except UnicodeDecodeError as cause:
        raise MetadataCorrupt(f"the cluster's id {value[:80]!r} is not ASCII text") from cause
    if not 0 < len(cluster) <= _ID_CHARACTERS_MAX or not cluster.isalnum():
        raise MetadataCorrupt(
            f"the cluster's id {cluster[:80]!r} is not 1 to {_ID_CHARACTERS_MAX} letters and digits"
        )
    return cluster


class Belonging:
    """Which cluster one store belongs to. It judges what answers in the store's place."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._cluster: str | None = None
        self._is_refused = False

    @property
    def cluster(self) -> str | None:
        """The id of the cluster. None before ``belong_to``: any store may answer then."""
        return self._cluster

    def belong_to(self, cluster: str) -> None:
        """From now on only that cluster's store may answer. InvalidArgument: it is another's."""
        if self._cluster not in (None, cluster):
            raise InvalidArgument(
                f"the metadata store at {self._where} belongs to cluster {self._cluster}, not to {cluster}"
            )
        self._cluster = cluster

    def judge(self, found: bytes | None) -> None:
        """WrongCluster unless ``found``, which lies at ``layout.CLUSTER`` now, is the id of the cluster.
        None: nothing lies there."""
        if self._cluster is None:
            return
        if found is None:
            raise self.refuse("has no cluster in it: it was emptied, or is another one")
        if found != self._cluster.encode():
            raise self.refuse(f"is that of cluster {found[:_ID_CHARACTERS_MAX].decode('ascii', 'replace')}")
        if self._is_refused:
            self._is_refused = False
            logger.info("the metadata store at %s is that of cluster %s again", self._where, self._cluster)

    def refuse(self, why: str) -> WrongCluster:
        """The exception for the caller to raise. It is logged when refusals begin."""
        whose = (
            "" if self._cluster is None else f" of cluster {self._cluster}, which this process belongs to,"
        )
        refusal = WrongCluster(
            f"what answers as the metadata store at {self._where} {why}. "
            f"Nothing is read, written or deleted until the store{whose} is back"
        )
        if not self._is_refused:
            self._is_refused = True
            logger.error("%s", refusal)
        return refusal


# --- opening ------------------------------------------------------------------------------------


async def find_cluster(store: MetadataStore) -> str | None:
    """The id of the cluster whose store it is, None where there is none. MetadataCorrupt."""
    await store.sync()
    node = await store.get(CLUSTER)
    return None if node is None else check_cluster(node.value)


async def join_cluster(store: MetadataStore) -> str:
    """The id of the cluster whose store it is, and stays from now on. ClusterNotFound, MetadataCorrupt."""
    cluster = await find_cluster(store)
    if cluster is None:
        raise ClusterNotFound("the metadata store has no cluster in it")
    store.belong_to(cluster)
    return cluster


async def make_cluster(store: MetadataStore, random_bytes: Callable[[int], bytes]) -> bool:
    """Make a cluster in the store unless there is one, and belong to it; whether it was made now.

    Any number may do this at once: one of them makes it. Errors as for ``settle``; MetadataCorrupt."""
    fresh = random_bytes(_ID_BYTES).hex()

    async def write(_: bool) -> str:
        there = await find_cluster(store)
        if there is None:
            await store.create(CLUSTER, fresh.encode())
        return there or fresh

    cluster = await settle(store, write, what="the making of a cluster")
    store.belong_to(cluster)
    return cluster == fresh
