"""The cluster that a metadata store belongs to, and the check that the store still belongs to it.

A cluster has a random id. It is stored at ``layout.CLUSTER`` and never changes. After you open a store, you
name its cluster (``MetadataStore.belong_to``): a bookie names the cluster of its cookie, and a client names
the cluster that it found first. From then on the store must show that id before anything is read from it,
written to it, or deleted because of its answers. Without this check, you would get answers without an error
from a store that was emptied, from a file that was replaced, or from other servers to which the name leads
now. A bookie would then believe that each of its ledgers was deleted.

This module compares the ids and makes the messages. Each kind of store decides *when* to compare:

* memory and SQLite look in every call, at the same instant or in the same transaction;
* ZooKeeper looks on every new connection, and binds later requests to that session (``zookeeper.store``).

**A restored store.** A restore from a backup (``meta.restore``) appends a mark to the id: ``ID:MARK``, with a
different mark for each restore. The cluster is still the same. But if the store was emptied before, versions
of nodes may begin at 0 again. A process from before the restore holds versions and records of the lost state,
and its compare-and-set could succeed by accident: a deposed leader would write its own list of ledgers. So
such a process is refused until it is restarted. Bookies only register and read, so they continue
(``through_restores``). Auto-recovery, in ``ledgerlog repair run`` or in a bookie, drops all that it knows and
connects again (``wait_restored``). Version 0.1 does not know marks and refuses every restored store. That is
right, because bookies of version 0.1 would delete all ledgers that the backup lacks.

**An older state** of the store is refused by every process that has seen a newer one, bookies too: a raw copy
of its file, or of a server's data, that was put back without a restore. Its counters would give ids out
again, and no record of a restore would protect the ledgers that were made after the copy. Within one mark, a
store has a number that grows with its writes: the revision of SQLite, the transaction of ZooKeeper. Between
two marks, the number in the mark grows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ledgerlog.errors import ClusterNotFound, InvalidArgument, LedgerLogError, WrongCluster
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Create, MetadataStore, Operation, Set
from ledgerlog.model.admission import OPEN, Admission
from ledgerlog.model.layout import ADMISSION, CLUSTER, PLACEMENT
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.placement import DEFAULT_PLACEMENT, PlacementPolicy

__all__ = [
    "RESTORING",
    "Belonging",
    "StoreRestored",
    "check_cluster",
    "find_cluster",
    "join_cluster",
    "make_cluster",
    "wait_restored",
]

logger = logging.getLogger(__name__)

RESTORING = b"restoring:"
"""While the store is restored from a backup, the cluster's id begins with this (``meta.restore``)."""

_RESTORED_LOOK_S = 5.0
"""How often ``wait_restored`` looks at the store."""

_ID_BYTES = 16
_ID_CHARACTERS_MAX = 128


def check_cluster(value: bytes) -> str:
    """Return the cluster's id, decoded from the value at ``layout.CLUSTER``.

    Raises:
        MetadataCorrupt: The value is not 1 to 128 ASCII letters and digits, with or without a mark.
        WrongCluster: The store is being restored from a backup.
    """
    if value.startswith(RESTORING):
        raise WrongCluster(
            "the metadata store is being restored from a backup, and the restore is not complete: run "
            "'ledgerlog metadata restore FILE' until it says that it is done"
        )
    try:
        cluster, colon, mark = value.decode("ascii").partition(":")
    except UnicodeDecodeError as cause:
        raise MetadataCorrupt(f"the cluster's id {value[:80]!r} is not ASCII text") from cause
    if colon and not (mark.isalnum() and len(mark) <= _ID_CHARACTERS_MAX):
        raise MetadataCorrupt(f"the cluster's id {value[:80]!r} has no proper mark of a restore")
    if not 0 < len(cluster) <= _ID_CHARACTERS_MAX or not cluster.isalnum():
        raise MetadataCorrupt(
            f"the cluster's id {cluster[:80]!r} is not 1 to {_ID_CHARACTERS_MAX} letters and digits"
        )
    return cluster


class StoreRestored(WrongCluster):
    """The store was restored from a backup after this process connected to it. It refuses the process for
    good, but not a new connection of the process."""


class Belonging:
    """The cluster of one store, and the check that the right store answers.

    Args:
        where: The store's address, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._cluster: str | None = None
        self._seen: bytes | None = None
        """The first value that the store showed: the id, with its mark if there was one."""
        self._goes_through_restores = False
        self._revision = 0
        """The newest revision that the store showed, with the mark of ``_seen``."""
        self._is_refused = False

    @property
    def cluster(self) -> str | None:
        """The id of the cluster. None before ``belong_to``: any store may answer then."""
        return self._cluster

    def belong_to(self, cluster: str, *, through_restores: bool = False) -> None:
        """Accept only this cluster's store from now on.

        Args:
            cluster: The id of the cluster.
            through_restores: Accept the store even if it is restored from a backup meanwhile.

        Raises:
            InvalidArgument: The store belongs to another cluster already.
        """
        if self._cluster not in (None, cluster):
            raise InvalidArgument(
                f"the metadata store at {self._where} belongs to cluster {self._cluster}, not to {cluster}"
            )
        self._cluster = cluster
        self._goes_through_restores = self._goes_through_restores or through_restores

    def judge(self, found: bytes | None, revision: int = 0) -> None:
        """Check that the store which answers belongs to the cluster.

        Args:
            found: The value at ``layout.CLUSTER`` now; None if that path has no node.
            revision: A number that grows with the writes of the store; 0 if it has none.

        Raises:
            WrongCluster: ``found`` is not the id of the cluster, or the store is in an older state than one
                that it showed before.
            StoreRestored: The store was restored from a backup. Only a new store object may use it.
        """
        if self._cluster is None:
            return
        if found is None:
            raise self.refuse("has no cluster in it: it was emptied, or it is another store")
        if found.startswith(RESTORING):
            raise self.refuse("is being restored from a backup, and the restore is not complete")
        if found.partition(b":")[0] != self._cluster.encode():
            raise self.refuse(f"belongs to cluster {found[:_ID_CHARACTERS_MAX].decode('ascii', 'replace')}")
        if found == self._seen:
            is_older = revision < self._revision
        else:
            is_older = self._seen is not None and _order_of_mark(found) < _order_of_mark(self._seen)
        if is_older:
            raise self.refuse_older()
        if found != self._seen and self._seen is not None and not self._goes_through_restores:
            raise self.refuse(
                "was restored from a backup after this process connected to it: restart the process",
                kind=StoreRestored,
            )
        self._seen, self._revision = found, revision
        if self._is_refused:
            self._is_refused = False
            logger.info("the metadata store at %s again belongs to cluster %s", self._where, self._cluster)

    def wrote(self, revision: int) -> None:
        """Note the revision of a write of this process that is durable now."""
        self._revision = revision

    def refuse_older(self) -> WrongCluster:
        """Return the exception for a store that is in an older state than one that it showed before."""
        return self.refuse(
            "has lost data that was read from it before: it was created again, or set back to an older "
            "state. If this is intended, restart the processes that use it"
        )

    def refuse(self, why: str, *, kind: type[WrongCluster] = WrongCluster) -> WrongCluster:
        """Return the exception for the caller to raise. The first refusal of a series is logged.

        Args:
            why: The fault. It continues "the metadata store at PATH ...".
            kind: The class of the exception.
        """
        whose = (
            "" if self._cluster is None else f" of cluster {self._cluster}, which this process belongs to,"
        )
        refusal = kind(
            f"the metadata store at {self._where} {why}. "
            f"Nothing is read, written or deleted until the store{whose} is back"
        )
        if not self._is_refused:
            self._is_refused = True
            logger.error("%s", refusal)
        return refusal


def _order_of_mark(value: bytes) -> tuple[int, bytes]:
    """Return something that is larger for the mark of a later restore, and least without a mark.

    A mark is a number in hexadecimal digits, without leading zeros (``meta.restore``).
    """
    mark = value.partition(b":")[2]
    return len(mark), mark


# --- opening ------------------------------------------------------------------------------------


async def find_cluster(store: MetadataStore) -> str | None:
    """Return the id of the cluster in this store; None if it holds no cluster.

    Raises:
        MetadataCorrupt: The id is damaged.
        WrongCluster: The store is being restored from a backup.
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


async def wait_restored(store: MetadataStore) -> None:
    """Return once the store was restored from a backup, so that it refuses all calls of this process.

    Args:
        store: The store. It belongs to its cluster, and does not go through restores.
    """
    while True:
        try:
            await store.get(CLUSTER)
        except StoreRestored:
            return
        except LedgerLogError:
            pass  # An outage, or damage that a restore mends. Everyone who uses the store tells of it.
        await trio.sleep(_RESTORED_LOOK_S)


async def make_cluster(
    store: MetadataStore,
    random_bytes: Callable[[int], bytes],
    *,
    admission: Admission = OPEN,
    placement: PlacementPolicy = DEFAULT_PLACEMENT,
) -> bool:
    """Make a cluster in the store unless it holds one, and belong to the cluster.

    Any number of processes may do this at the same time; one of them makes the cluster.

    Args:
        store: Where to make the cluster.
        random_bytes: Returns that many random bytes, as ``os.urandom`` does.
        admission: How the new cluster is closed. It is written together with the cluster's id, so a closed
            cluster is never open, not even at first.
        placement: The placement policy of the new cluster, which is written together with its id, too.

    Returns:
        Whether this call made the cluster.

    Raises:
        MetadataCorrupt: The store holds a cluster with a damaged id.
        MetadataOutcomeUnknown: The cluster may have been made, or may still be made; see ``settle``.
        MetadataUnavailable, SessionExpired: Nothing was written.
    """
    fresh = random_bytes(_ID_BYTES).hex()

    async def write(_: bool) -> str:
        there = await find_cluster(store)
        if there is None:
            await _create(store, fresh.encode(), admission, placement)
        return there or fresh

    cluster = await settle(store, write, what="the making of a cluster")
    store.belong_to(cluster)
    return cluster == fresh


async def _create(
    store: MetadataStore, cluster: bytes, admission: Admission, placement: PlacementPolicy
) -> None:
    settings = {}
    if admission != OPEN:
        settings[ADMISSION] = admission.encode()
    if placement != DEFAULT_PLACEMENT:
        settings[PLACEMENT] = placement.encode()
    writes: list[Operation] = []
    for path, value in settings.items():
        left = await store.get(path)  # It may be left from a cluster whose other nodes were removed.
        writes.append(Create(path, value) if left is None else Set(path, value, left.version))
    await store.transaction([*writes, Create(CLUSTER, cluster)])
