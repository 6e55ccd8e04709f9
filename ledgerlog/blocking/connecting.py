"""``connect``, for ordinary threads."""

from __future__ import annotations

from typing import Any

from ledgerlog import cluster
from ledgerlog.blocking.faces import Cluster
from ledgerlog.blocking.portal import Portal

__all__ = ["connect"]


def connect(uri: str, **options: Any) -> Cluster:
    """Connect to a cluster; options and errors as for ``ledgerlog.connect``. A ``memory:`` or ``file:``
    cluster lives in the thread of this connection, and ends with it.

    InvalidArgument inside of trio, and where an asyncio loop runs in the calling thread: in an asyncio
    program, and in a notebook. Call it from another thread there: ``await asyncio.to_thread(connect, uri)``.

    The program may end without closing: what is open is left in order by then."""
    manager = cluster.connect(uri, **options)
    portal = Portal(refuses_asyncio=True)
    try:
        inner, held = portal.enter(manager)
    except BaseException:
        portal.close()
        raise
    return Cluster(portal, inner, held)
