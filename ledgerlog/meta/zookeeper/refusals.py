"""The errors that say that ZooKeeper does not let this process do something.

Each is also a ``MetadataUnavailable``, as ``WrongCluster`` is: the operation did not happen, and a task that
continues forever, such as a bookie's registration, waits until an operator has corrected the list or the
credentials. No call is repeated because of them.
"""

from __future__ import annotations

from ledgerlog.errors import MetadataUnavailable, PermissionDenied, Unauthenticated

__all__ = ["ZooKeeperDenies", "ZooKeeperKnowsNot"]


class ZooKeeperDenies(PermissionDenied, MetadataUnavailable):
    """The lists of the znodes do not give this principal the right. Nothing was done."""


class ZooKeeperKnowsNot(Unauthenticated, MetadataUnavailable):
    """The servers and this process did not identify each other, or this process gave no credentials."""
