"""How Spark's processes use a cluster: each opens its own connection, and waits for calls into it.

Spark's code is blocking, and the library runs under trio. So each process runs the event loop in a thread
(``ledgerlog.blocking.portal``) as long as it needs the cluster. The work may end with a result, by an error,
or because Spark closes a generator or interrupts the process. In each case the connection and the thread end
with it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from ledgerlog.blocking.portal import Portal
from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.model.credentials import Credentials
from ledgerlog.net.tls import network_of
from ledgerlog.proving import open_prover, with_secret_beside

__all__ = ["connected", "run_connected", "taken"]

T = TypeVar("T")


@asynccontextmanager
async def connected(uri: str, *, cluster: str | None = None) -> AsyncIterator[LedgerClient]:
    """Connect to a cluster with the credentials in the environment, for the body of the ``async with``.

    Args:
        uri: The URI of the cluster.
        cluster: The id that the cluster must have; None: any.

    Raises:
        WrongCluster: The cluster has another id.
        ClusterNotFound: There is no cluster at ``uri``.
        MetadataUnavailable: The metadata store did not answer.
    """
    parsed = parse_uri(uri)
    credentials = with_secret_beside(Credentials.completed(os.environ), parsed)
    async with (
        open_store(parsed, cluster=cluster, credentials=credentials) as store,
        open_prover(store, credentials) as prover,
        open_client(
            store, network_of(credentials, cluster=store.cluster), credentials=credentials, prover=prover
        ) as client,
    ):
        yield client


def run_connected(uri: str, work: Callable[[LedgerClient], Awaitable[T]], *, cluster: str | None = None) -> T:
    """Connect to a cluster, run ``work`` with the connection, and disconnect.

    If the caller is interrupted, ``work`` is cancelled.

    Args:
        uri: The URI of the cluster.
        work: The function to run.
        cluster: The id that the cluster must have; None: any.

    Returns:
        The result of ``work``.

    Raises:
        WrongCluster: The cluster has another id.
        ClusterNotFound: There is no cluster at ``uri``.
        MetadataUnavailable: The metadata store did not answer.

    An error of ``work`` is raised as it is.
    """

    async def run() -> T:
        async with connected(uri, cluster=cluster) as client:
            return await work(client)

    with Portal() as portal:
        return portal.run(run)


def taken(
    manager: AbstractAsyncContextManager[Callable[[], Awaitable[T | None]]],
    portal: Portal,
    broken: type[Exception],
) -> Iterator[T]:
    """Yield the results of a function of an async context, until it returns None.

    Args:
        manager: The context. Its value is the function.
        portal: Runs the context.
        broken: The function raises this if the context has ended by an error. Leaving the context raises that
            error.
    """
    take, held = portal.enter(manager)
    while True:
        try:
            items = portal.run(take)
        except broken:
            held.leave()  # Raises the reason.
            raise
        if items is None:
            return
        yield items
