"""Long polls: waking those that wait for a ledger's LAC when it has grown.

Every kind of add brings a LAC. The adder puts it into the ledger's state and wakes those who wait for it.
They are kept by ledger, in the order of their entries. So an add costs one look into a dictionary, and one
more if somebody waits for the ledger's LAC, however many wait.
"""

from __future__ import annotations

from bookie.core.due_items import DueItems, Waiter
from bookie.core.ledger import BookieLedger


class LacWatch:
    """Those who wait for LACs, by ledger."""

    def __init__(self) -> None:
        self._waiters: dict[int, DueItems[Waiter]] = {}

    def on_lac(self, state: BookieLedger) -> None:
        """Wake those whose entry this ledger's LAC has reached."""
        waiters = self._waiters.get(state.ledger_id)
        if waiters is None:
            return
        for waiter in waiters.take_all(state.lac):
            waiter.wake()
        self._forget_empty(state.ledger_id, waiters)

    def add(self, ledger_id: int, entry_id: int, waiter: Waiter) -> None:
        """Wake ``waiter``, once, when the ledger's LAC has reached ``entry_id``. The LAC must be below it."""
        self._waiters.setdefault(ledger_id, DueItems()).add(waiter, entry_id)

    def remove(self, ledger_id: int, waiter: Waiter) -> None:
        """Forget ``waiter``. If it was woken already, do nothing."""
        waiters = self._waiters.get(ledger_id)
        if waiters is not None:
            waiters.remove(waiter)
            self._forget_empty(ledger_id, waiters)

    def _forget_empty(self, ledger_id: int, waiters: DueItems[Waiter]) -> None:
        if not waiters:
            self._waiters.pop(ledger_id, None)
