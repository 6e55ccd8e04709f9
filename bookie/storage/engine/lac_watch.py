"""Long polls: who waits for the LAC of a ledger to grow, and who tells them that it has.

A LAC comes with an add of any kind, is told to the ledger's state, and from there to whoever waits for it
(``Engine.wait_lac``). What waits is known by ledger, so an add of one that nobody waits for costs one look
into a dictionary.
"""

from __future__ import annotations

import trio

from bookie.core.ledger import LedgerState


class LacWatch:
    def __init__(self) -> None:
        self._waiters: dict[int, list[tuple[int, trio.Event]]] = {}

    def on_lac(self, state: LedgerState) -> None:
        """The LAC of this ledger has grown."""
        for entry_id, event in self._waiters.get(state.ledger_id, ()):
            if state.lac >= entry_id:
                event.set()

    async def wait(self, ledger_id: int, entry_id: int) -> None:
        """Returns once the ledger's LAC, which is below that, has reached ``entry_id``."""
        waiter = (entry_id, trio.Event())
        self._waiters.setdefault(ledger_id, []).append(waiter)
        try:
            await waiter[1].wait()
        finally:
            waiters = self._waiters[ledger_id]
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[ledger_id]
