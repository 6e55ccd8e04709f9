"""Auto-recovery in one process: a candidate for auditor, and a worker.

Any number of processes may run auto-recovery, inside bookies (``bookie run --auto-recovery``) or alone
(``ledgerlog repair run``). The processes know of each other only through the metadata store. ``AutoRecovery``
needs only a client. If the client has a simulated clock, network and store, the same code runs in a
simulation.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ledgerlog.concurrency.nurseries import open_nursery
from ledgerlog.errors import LedgerLogError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.meta.belonging import wait_restored
from ledgerlog.repair.auditor import Auditor
from ledgerlog.repair.worker import Worker

__all__ = ["AutoRecovery", "begin_anew"]

logger = logging.getLogger(__name__)

_AGAIN_S = 5.0
"""How long ``begin_anew`` waits after a failure."""


class AutoRecovery:
    """Runs an auditor candidate and a worker. ``run`` is its task; it runs until cancelled."""

    def __init__(self, client: LedgerClient, *, name: str | None = None) -> None:
        """``name`` identifies this process in logs and in ``repair status``. None: a random name."""
        name = name or f"repair-{client.environment.new_token().hex()[:8]}"
        self._store = client.store
        self.worker = Worker(client, name=name)
        self.auditor = Auditor(client, name=name)

    async def run(self) -> None:
        """Look after the cluster until cancelled. During an outage of the store it waits; a bug is raised."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.worker.run)
            nursery.start_soon(self.auditor.run)

    async def run_until_restored(self) -> None:
        """Run until the metadata store is restored from a backup. Then drop this object and its connection.

        What they know of the store's former state must not get into the restored store: no task, no metadata
        and no version (``ledgerlog.meta.belonging``).
        """
        async with open_nursery() as nursery:
            nursery.start_soon(self.run)
            await wait_restored(self._store)
            logger.warning(
                "worker=%s: the metadata store was restored: everything begins anew", self.worker.name
            )
            nursery.cancel_scope.cancel()


async def begin_anew(serve: Callable[[], Awaitable[None]], name: str | None) -> None:
    """Call ``serve`` again and again, until cancelled. It connects, and runs auto-recovery until the store is
    restored.

    If ``serve`` fails, this waits a while: just after a restore, the store may be away or be restored again.
    """
    while True:
        try:
            await serve()
        except LedgerLogError as fault:
            logger.error("worker=%s: auto-recovery failed, and begins anew: %s", name, fault)
            await trio.sleep(_AGAIN_S)
