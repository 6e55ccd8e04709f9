"""What a bookie needs of a client when it lost something: the other bookies, and somebody to turn to.

A storage node knows no client; its entry point hands this in (``open_peers``). It is opened only while
something is in limbo or rotten, so that a bookie in good health has no connections to others.

What a bookie cannot copy again by itself it asks auto-recovery to look at: the task says that its copy is
damaged, workers ask it whether that is still so, and people see in ``repair status`` why it is not mended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgerlog.ledger.client import LedgerClient, open_client
from ledgerlog.ledger.environment import Environment
from ledgerlog.ledger.peers import LedgerPeers
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.ids import BookieId
from ledgerlog.net.transport import Network
from ledgerlog.repair.queue import Board

__all__ = ["BookiePeers", "open_peers"]


class BookiePeers(LedgerPeers):
    """``Peers`` of ``bookie.server.limbo``."""

    def __init__(self, client: LedgerClient) -> None:
        super().__init__(client)
        self._board = Board(client)

    async def ask_for_repair(self, ledger_id: int, bookie_id: BookieId) -> None:
        """See to it that there is a task about the bookie's damaged copy of a ledger. MetadataUnavailable."""
        await self._board.post(ledger_id, damaged=[bookie_id])


@asynccontextmanager
async def open_peers(
    store: MetadataStore, network: Network, *, environment: Environment | None = None
) -> AsyncIterator[BookiePeers]:
    """A ``BookiePeers`` for the body of the ``async with``. MetadataUnavailable at the start."""
    async with open_client(store, network, environment=environment) as client:
        yield BookiePeers(client)
