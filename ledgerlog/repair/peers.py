"""How a bookie that lost entries reaches other bookies and auto-recovery.

The code of a bookie imports no client; the bookie's entry point passes ``open_peers`` to it. The bookie calls
``open_peers`` only while some ledger is in limbo (the bookie may have lost entries of it) or some copy is
damaged. So a healthy bookie has no connections to other bookies.

If a bookie cannot copy an entry back by itself, it posts a task to the repair queue. The task says that the
bookie's copy is damaged. Workers ask the bookie whether its copy is still damaged, and ``repair status``
shows why the copy is not repaired.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.peers import LedgerPeers
from ledgerlog.meta.outside_store import OutsideStore
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.credentials import NO_CREDENTIALS, Credentials
from ledgerlog.model.ids import BookieId
from ledgerlog.net.prover import Prover
from ledgerlog.net.transport import Network
from ledgerlog.repair.queue import RepairQueue

__all__ = ["BookiePeers", "open_peers"]


class BookiePeers(LedgerPeers):
    """Implements ``Peers`` of ``bookie.server.limbo``."""

    def __init__(self, client: LedgerClient) -> None:
        super().__init__(client)
        self._queue = RepairQueue(client)

    async def ask_for_repair(self, ledger_id: int, bookie_id: BookieId) -> None:
        """Make sure that the repair queue has a task about the bookie's damaged copy of a ledger.

        Raises:
            MetadataUnavailable: The metadata store could not be reached.
            MetadataOutcomeUnknown: The task may or may not be posted.
        """
        await self._queue.post(ledger_id, damaged=[bookie_id])


@asynccontextmanager
async def open_peers(
    store: MetadataStore,
    network: Network,
    *,
    environment: Environment | None = None,
    credentials: Credentials = NO_CREDENTIALS,
    prover: Prover | None = None,
) -> AsyncIterator[BookiePeers]:
    """Open a client and yield a ``BookiePeers`` for the body of the ``async with``.

    Raises:
        MetadataUnavailable: The metadata store could not be reached at the start.
    """
    opening = open_client(
        OutsideStore(store), network, environment=environment, credentials=credentials, prover=prover
    )
    async with opening as client:
        yield BookiePeers(client)
