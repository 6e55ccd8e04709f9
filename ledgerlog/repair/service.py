"""Auto-recovery in one process: a candidate for auditor, and a worker.

Any number of processes may run auto-recovery, inside bookies (``bookie run --auto-recovery``) or alone
(``ledgerlog repair run``). The processes know of each other only through the metadata store. ``AutoRecovery``
needs only a client. If the client has a simulated clock, network and store, the same code runs in a
simulation.
"""

from __future__ import annotations

import trio

from ledgerlog.ledger.client import LedgerClient
from ledgerlog.repair.auditor import Auditor
from ledgerlog.repair.worker import Worker

__all__ = ["AutoRecovery"]


class AutoRecovery:
    """Runs an auditor candidate and a worker. ``run`` is its task; it runs until cancelled."""

    def __init__(self, client: LedgerClient, *, name: str | None = None) -> None:
        """``name`` identifies this process in logs and in ``repair status``. None: a random name."""
        name = name or f"repair-{client.environment.new_token().hex()[:8]}"
        self.worker = Worker(client, name=name)
        self.auditor = Auditor(client, name=name)

    async def run(self) -> None:
        """Look after the cluster until cancelled. During an outage of the store it waits; a bug is raised."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.worker.run)
            nursery.start_soon(self.auditor.run)
