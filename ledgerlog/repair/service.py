"""Auto-recovery in one process: an auditor, if it is elected, and a worker.

Any number of processes may run it, inside bookies (``bookie run --auto-recovery``) or by themselves
(``ledgerlog repair run``). They know of each other by the metadata store alone. It needs nothing but a
client: with another clock, network and store under that it runs in a simulation as it does here.
"""

from __future__ import annotations

import trio

from ledgerlog.ledger.client import LedgerClient
from ledgerlog.repair.auditor import Auditor
from ledgerlog.repair.worker import Worker

__all__ = ["AutoRecovery"]


class AutoRecovery:
    """See above. ``run`` is its task; it goes on until it is cancelled."""

    def __init__(self, client: LedgerClient, *, name: str | None = None) -> None:
        """``name`` is what people see of this process."""
        name = name or f"repair-{client.environment.new_token().hex()[:8]}"
        self.worker = Worker(client, name=name)
        self.auditor = Auditor(client, name=name)

    async def run(self) -> None:
        """Look after the cluster until cancelled. Outages of the store are waited out; bugs are raised."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.worker.run)
            nursery.start_soon(self.auditor.run)
