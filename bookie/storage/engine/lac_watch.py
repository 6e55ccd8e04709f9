"""Long polls: waking the waiters of a ledger when its LAC has grown.

Every kind of add brings a LAC. The adder puts the LAC into the ledger's state and wakes the waiters whose
entry it has reached. Waiters are kept by ledger, in the order of the entries that they wait for. So an add
costs one look into a dictionary, and one more if the ledger has waiters, no matter how many.
"""

from __future__ import annotations

from bookie.core.due_items import DueItems, Waiter
from bookie.core.ledger import BookieLedger


class LacWatch:
    """The waiters for LACs, by ledger."""

    def __init__(self) -> None:
        self._waiters: dict[int, DueItems[Waiter]] = {}

    def on_lac(self, state: BookieLedger) -> None:
        """Wake the waiters whose entry this ledger's LAC has reached."""
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
