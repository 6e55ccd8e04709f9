"""The ledger client of a process: everything that ``Ledgers`` needs, opened together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.counts import ClientCounts
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.ledgers import Ledgers
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.tail import LedgerTails
from ledgerlog.limits import APPEND_DEADLINE_S
from ledgerlog.meta.session_counts import SessionCounts
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.credentials import NO_CREDENTIALS, Credentials
from ledgerlog.model.quorum import Replication
from ledgerlog.net.pool import ConnectionPool, open_pool
from ledgerlog.net.prover import Prover
from ledgerlog.net.tls import TlsNetwork
from ledgerlog.net.transport import Network


@attrs.frozen
class LedgerClient:
    """An open client. Most callers need only ``ledgers``."""

    store: MetadataStore
    ledgers: Ledgers
    bookies: BookieDirectory
    pool: ConnectionPool
    environment: Environment
    default_replication: Replication
    network: Network
    """The network of the pool's connections."""
    credentials: Credentials
    """The files with which this process proves who it is."""
    prover: Prover
    """Proves to bookies and to other candidates who this process is."""
    nursery: trio.Nursery
    """For tasks that end with the client. An exception in such a task is a bug and ends the client."""
    counts: ClientCounts
    """The counts of this client."""
    sessions: SessionCounts
    """The sessions with the metadata store."""
    tails: LedgerTails = attrs.field(factory=LedgerTails)
    """The ends of ledgers that several readers follow."""


@asynccontextmanager
async def open_client(
    store: MetadataStore,
    network: Network,
    *,
    environment: Environment | None = None,
    default_replication: Replication | None = None,
    append_deadline_s: float = APPEND_DEADLINE_S,
    credentials: Credentials = NO_CREDENTIALS,
    prover: Prover | None = None,
) -> AsyncIterator[LedgerClient]:
    """Open a client over a metadata store and a network, for the body of the ``async with``.

    On exit, every ledger writer that is still open ends without closing its ledger. Its unacknowledged
    entries fail with AppendUnknown.

    Args:
        store: The metadata store.
        network: The network to the bookies.
        environment: Clock, random choices and keys; None for the real ones.
        default_replication: The quorums of a ledger whose creator names none; None for ``Replication()``.
        append_deadline_s: Seconds without progress after which a writer gives up.
        credentials: The files with which this process proves who it is. The network already has the
            certificate, and ``prover`` already has the secrets.
        prover: Proves who this process is (``ledgerlog.proving``). None in an open cluster, if the process
            proves nothing.

    Raises:
        MetadataUnavailable: The store does not answer at the start.
    """
    environment = environment or Environment()
    replication = default_replication or Replication()
    registry = LedgerRegistry(store, environment)
    directory = BookieDirectory(store, environment)
    prover = prover or Prover()
    if isinstance(network, TlsNetwork):
        prover.be_certified(network.certificates.principal)
    counts, sessions = ClientCounts(), SessionCounts()
    await directory.refresh()
    async with (
        open_pool(
            network,
            directory.resolve,
            rng=environment.random,
            speaks=environment.version.speaks,
            prover=prover,
        ) as pool,
        open_serving_nursery() as nursery,
    ):
        nursery.start_soon(directory.run)
        nursery.start_soon(sessions.follow, store)
        ledgers = Ledgers(
            store, registry, directory, pool, environment, nursery, replication, append_deadline_s, counts
        )
        yield LedgerClient(
            store,
            ledgers,
            directory,
            pool,
            environment,
            replication,
            network,
            credentials,
            prover,
            nursery,
            counts,
            sessions,
        )
