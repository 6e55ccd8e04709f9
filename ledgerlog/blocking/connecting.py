"""``connect``, for ordinary threads."""

from __future__ import annotations

from typing import Any

from ledgerlog import cluster
from ledgerlog.blocking.faces import Cluster
from ledgerlog.blocking.portal import Portal

__all__ = ["connect"]


def connect(uri: str, **options: Any) -> Cluster:
    """Connect to a cluster. The cluster starts a thread that runs the event loop until ``close``.

    A ``memory:`` or ``file:`` cluster lives in this thread and ends with it. If the program ends without
    closing the cluster, writers and bookies are still stopped in order.
    Args:
        uri: The cluster URI, as for ``ledgerlog.connect``.
        options: The other arguments of ``ledgerlog.connect``, for example ``create=True``.

    Returns:
        The cluster. Close it, or use it in a ``with``.

    Raises:
        InvalidArgument: The URI or an option is not valid. Or you called this inside trio, or in a thread
            that runs an asyncio loop (an asyncio program or a notebook). There, call it from another thread:
            ``await asyncio.to_thread(connect, uri)``.
        LedgerLogError: All other errors of ``ledgerlog.connect``.
    """
    manager = cluster.connect(uri, **options)
    portal = Portal(refuses_asyncio=True)
    try:
        inner, held = portal.enter(manager)
    except BaseException:
        portal.close()
        raise
    return Cluster(portal, inner, held)
