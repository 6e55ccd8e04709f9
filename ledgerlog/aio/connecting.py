"""``connect``, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgerlog import cluster
from ledgerlog.aio.bridge import Bridge
from ledgerlog.aio.faces import Cluster
from ledgerlog.limits import APPEND_DEADLINE_S
from ledgerlog.loops import refuse_outside_of_asyncio
from ledgerlog.model.credentials import TLS, FilePath
from ledgerlog.model.quorum import Replication

__all__ = ["connect"]


@asynccontextmanager
async def connect(
    uri: str,
    *,
    default_replication: Replication | None = None,
    append_deadline_s: float = APPEND_DEADLINE_S,
    create: bool = False,
    tls: TLS | None = None,
    secret_file: FilePath | None = None,
    zk_auth_file: FilePath | None = None,
    guest: bool = False,
) -> AsyncIterator[Cluster]:
    """Connect to a cluster for the body of an ``async with``.

    A ``memory:`` or ``file:`` cluster lives in this connection and ends with it.

    Args:
        uri: The cluster URI, as for ``ledgerlog.connect``.
        default_replication: As for ``ledgerlog.connect``; so are the arguments up to ``zk_auth_file``.
        append_deadline_s: See above.
        create: See above.
        tls: See above.
        secret_file: See above.
        zk_auth_file: See above.
        guest: Run trio in the asyncio loop's own thread instead of a thread of its own. A lone append is then
            faster, because no thread has to be woken. But the two loops take turns: whatever blocks one of
            them blocks both.

    Yields:
        The cluster. It belongs to the running asyncio loop.

    Raises:
        InvalidArgument: The URI or an option is not valid, or this is not a task of asyncio.
        LedgerLogError: All other errors of ``ledgerlog.connect``.

    Cancelling: as for ``ledgerlog.connect``. Leaving waits for the orderly end of what is open; a
    cancellation ends it at once, and the next leader recovers the ledgers.
    """
    refuse_outside_of_asyncio("ledgerlog.aio.connect")
    manager = cluster.connect(
        uri,
        default_replication=default_replication,
        append_deadline_s=append_deadline_s,
        create=create,
        tls=tls,
        secret_file=secret_file,
        zk_auth_file=zk_auth_file,
    )
    bridge = Bridge(is_guest=guest)
    failure: BaseException | None = None
    try:
        inner, held = await bridge.enter(manager)
        yield Cluster(bridge, inner, held)
    except BaseException as error:
        failure = error
        raise
    finally:
        try:
            await bridge.close()
        except (Exception, asyncio.CancelledError):
            if failure is None:
                raise
