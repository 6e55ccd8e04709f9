"""``connect``, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ledgerlog import cluster
from ledgerlog.aio.bridge import Bridge
from ledgerlog.aio.faces import Cluster
from ledgerlog.limits import APPEND_DEADLINE_S
from ledgerlog.loops import refuse_outside_of_asyncio
from ledgerlog.model.checks import check_kind
from ledgerlog.model.credentials import TLS, FilePath
from ledgerlog.model.quorum import Replication

__all__ = ["connect", "crossed"]


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
        default_replication: As for ``ledgerlog.connect``.
        append_deadline_s: As for ``ledgerlog.connect``.
        create: As for ``ledgerlog.connect``.
        tls: As for ``ledgerlog.connect``.
        secret_file: As for ``ledgerlog.connect``.
        zk_auth_file: As for ``ledgerlog.connect``.
        guest: Run trio in the asyncio loop's thread instead of its own. A lone append is then faster, because
            no other thread must wake up. But the two loops take turns: code that blocks one loop blocks both.

    Yields:
        The cluster. It belongs to the running asyncio loop.

    Raises:
        InvalidArgument: The URI or an option is not valid, or this is not a task of asyncio.
        LedgerLogError: All other errors of ``ledgerlog.connect``.

    Cancelling: as for ``ledgerlog.connect``. If you leave the body, open writers and readers end in order
    first. If the body is cancelled, they end at once, and the next leader recovers the ledgers.
    """
    refuse_outside_of_asyncio("ledgerlog.aio.connect")
    check_kind(guest, bool, "guest", "True or False")
    manager = cluster.connect(
        uri,
        default_replication=default_replication,
        append_deadline_s=append_deadline_s,
        create=create,
        tls=tls,
        secret_file=secret_file,
        zk_auth_file=zk_auth_file,
    )
    async with crossed(manager, guest=guest) as crossing:
        yield crossing


@asynccontextmanager
async def crossed(
    manager: AbstractAsyncContextManager[cluster.Cluster], *, guest: bool = False
) -> AsyncIterator[Cluster]:
    """Enter a connection of the library, and use it from asyncio for the body of an ``async with``."""
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
