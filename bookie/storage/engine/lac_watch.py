"""Long polls: waking the callers that wait for a ledger's LAC to grow.

Every kind of add brings a LAC. The adder puts it into the ledger's state and wakes the callers of
``Engine.wait_lac``. They are kept by ledger. If a ledger has no waiting callers, an add to it costs one look
into a dictionary.
"""

from __future__ import annotations

import trio

from bookie.core.ledger import BookieLedger


class LacWatch:
    """The callers that wait for LACs, by ledger."""

    def __init__(self) -> None:
        self._waiters: dict[int, list[tuple[int, trio.Event]]] = {}

    def on_lac(self, state: BookieLedger) -> None:
        """Wake the callers whose entry this ledger's LAC has reached."""
        for entry_id, event in self._waiters.get(state.ledger_id, ()):
            if state.lac >= entry_id:
                event.set()

    async def wait(self, ledger_id: int, entry_id: int) -> None:
        """Wait until the ledger's LAC has reached ``entry_id``. The LAC must be below it now."""
        waiter = (entry_id, trio.Event())
        self._waiters.setdefault(ledger_id, []).append(waiter)
        try:
            await waiter[1].wait()
        finally:
            waiters = self._waiters[ledger_id]
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[ledger_id]
