"""Which cluster a metadata store belongs to, and the check that this stays so.

A cluster has a random id. It lies at ``layout.CLUSTER`` and never changes. After you open a store, you name
its cluster (``MetadataStore.belong_to``): a bookie names the cluster of its cookie, and a client names the
cluster that it found first. From then on the store must show that id before anything is read from it, written
to it, or deleted because of its answers. Without this check, a store that was emptied, a file that was
replaced, or a name that leads to other servers would answer without an error. A bookie would then believe
that each of its ledgers was deleted.

This module compares the ids and words the messages. The kind of store decides *when* to compare:

* memory and SQLite look in every call, at the same instant or in the same transaction;
* ZooKeeper looks on every new connection, and binds later requests to that session (``zookeeper.store``).

``WrongCluster`` is a ``MetadataUnavailable``: nothing has happened. A task that waits for an unavailable
store waits in the same way for the right store. The wrong cluster is logged once when it begins and once when
it ends.
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
    """Return the cluster's id, decoded from the value at ``layout.CLUSTER``.

    Raises:
        MetadataCorrupt: The value is not 1 to 128 ASCII letters and digits.
    """
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
    """The cluster of one store; it judges whether the right store answers.

    Args:
        where: The store's address, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._cluster: str | None = None
        self._is_refused = False

    @property
    def cluster(self) -> str | None:
        """The id of the cluster. None before ``belong_to``: any store may answer then."""
        return self._cluster

    def belong_to(self, cluster: str) -> None:
        """Accept only this cluster's store from now on.

        Raises:
            InvalidArgument: The store belongs to another cluster already.
        """
        if self._cluster not in (None, cluster):
            raise InvalidArgument(
                f"the metadata store at {self._where} belongs to cluster {self._cluster}, not to {cluster}"
            )
        self._cluster = cluster

    def judge(self, found: bytes | None) -> None:
        """Check that the store which answers belongs to the cluster.

        Args:
            found: The value at ``layout.CLUSTER`` now; None if that path has no node.

        Raises:
            WrongCluster: ``found`` is not the id of the cluster.
        """
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
        """Return the exception for the caller to raise. It is logged when refusals begin.

        Args:
            why: What is wrong. It continues "what answers as the metadata store at PATH ...".
        """
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
    """Return the id of the cluster in this store; None if it holds no cluster.

    Raises:
        MetadataCorrupt: The id is damaged.
    """
    await store.sync()
    node = await store.get(CLUSTER)
    return None if node is None else check_cluster(node.value)


async def join_cluster(store: MetadataStore) -> str:
    """Find the store's cluster, belong to it from now on, and return its id.

    Raises:
        ClusterNotFound: The store holds no cluster.
        MetadataCorrupt: The cluster's id is damaged.
    """
    cluster = await find_cluster(store)
    if cluster is None:
        raise ClusterNotFound("the metadata store has no cluster in it")
    store.belong_to(cluster)
    return cluster


async def make_cluster(store: MetadataStore, random_bytes: Callable[[int], bytes]) -> bool:
    """Make a cluster in the store unless it holds one, and belong to the cluster.

    Any number of processes may do this at the same time; one of them makes the cluster.

    Args:
        store: Where to make the cluster.
        random_bytes: Returns that many random bytes, as ``os.urandom`` does.

    Returns:
        Whether this call made the cluster.

    Raises:
        MetadataCorrupt: The store holds a cluster with a damaged id.
        MetadataOutcomeUnknown: The cluster may have been made, or may be made yet; see ``settle``.
        MetadataUnavailable, SessionExpired: Nothing was written.
    """
    fresh = random_bytes(_ID_BYTES).hex()

    async def write(_: bool) -> str:
        there = await find_cluster(store)
        if there is None:
            await store.create(CLUSTER, fresh.encode())
        return there or fresh

    cluster = await settle(store, write, what="the making of a cluster")
    store.belong_to(cluster)
    return cluster == fresh
