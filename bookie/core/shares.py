"""Fair shares of a bookie's work: who may go on now, and who waits for a turn.

A *party* is all connections that count as one. If several parties want something, each gets the same, however
many connections it has and however much it sends. Parties may form a *group*: those of one group divide the
share of one party.

**Rounds.** In each round a party may spend ``quantum`` bytes, where a small item counts as a larger one. What
does not fit waits, first come, first served within the party. At the end of a round each party gets a
quantum again, and as many of its waiting items go on as it pays for. An item goes on as soon as anything is
left, so it may cost more than is left. The party then owes the difference, which the next rounds take from it
(deficit round robin). A party that spends nothing saves nothing: it never has more than one quantum.

**Groups.** With n parties of a group, each of them has an n-th of the quantum. So nobody gets more by coming
as many parties of one group.

**Alone.** A party may spend ``ALONE_QUANTA`` quanta in a round if no other party has asked for anything for
``ALONE_S``. So a bookie with one client hardly ever makes it wait. Yet the round stays short: if another
party comes, it does not wait for all that a thousand connections have to say.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["ALONE_QUANTA", "ALONE_S", "Shares"]

ALONE_S = 0.25
ALONE_QUANTA = 8

_LONG_AGO = float("-inf")

T = TypeVar("T")


class _Account(Generic[T]):
    __slots__ = ("group", "left", "waiting")

    def __init__(self, left: int, group: Hashable) -> None:
        self.left = left
        self.group = group
        self.waiting: deque[tuple[int, T]] = deque()


class Shares(Generic[T]):
    """The shares of the parties of one bookie. ``T`` is what waits: the caller's own.

    Args:
        quantum: What a party may spend in a round.
    """

    __slots__ = ("_accounts", "_last", "_last_at", "_members", "_other_at", "_quantum", "_waiting")

    def __init__(self, quantum: int) -> None:
        assert quantum > 0
        self._quantum = quantum
        self._accounts: dict[Hashable, _Account[T]] = {}
        self._members: Counter[Hashable] = Counter()
        """How many accounts each group has."""
        self._waiting = 0
        self._last: Hashable = None
        """Who asked last."""
        self._last_at = _LONG_AGO
        self._other_at = _LONG_AGO
        """When anybody else asked last."""

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return self._waiting

    def is_alone(self, now: float) -> bool:
        """Return whether only one party has asked for anything lately."""
        return now - self._other_at > ALONE_S

    def take(self, party: Hashable, cost: int, now: float, *, group: Hashable = None) -> bool:
        """Let an item go on now, and count its cost. Return False if it has to wait.

        Args:
            party: Whose item it is.
            cost: What it costs.
            now: The time, in seconds.
            group: The group of the party, always the same one. None: it is a group of its own.
        """
        if party != self._last:
            self._last, self._other_at = party, self._last_at
        self._last_at = now
        account = self._accounts.get(party)
        if account is None:
            group = party if group is None else group
            self._members[group] += 1
            account = self._accounts[party] = _Account(self._share(group), group)
        if account.waiting or account.left <= self._floor(self.is_alone(now)):
            return False
        account.left -= cost
        return True

    def _share(self, group: Hashable) -> int:
        return max(1, self._quantum // self._members[group])

    def wait(self, party: Hashable, cost: int, who: T) -> None:
        """Queue an item that ``take`` did not let go on. ``renew`` returns it when it may."""
        self._accounts[party].waiting.append((cost, who))
        self._waiting += 1

    def leave(self, party: Hashable, who: T) -> None:
        """Forget an item that waits. Does nothing if it does not wait any more."""
        account = self._accounts.get(party)
        if account is None:
            return
        kept = deque(item for item in account.waiting if item[1] is not who)
        self._waiting -= len(account.waiting) - len(kept)
        account.waiting = kept

    def _floor(self, is_alone: bool) -> int:
        return -(ALONE_QUANTA - 1) * self._quantum if is_alone else 0

    def renew(self, now: float) -> list[T]:
        """End the round. Return the items that may go on now, those of one party in their order."""
        going: list[T] = []
        is_alone = self.is_alone(now)
        floor = self._floor(is_alone)
        for party, account in list(self._accounts.items()):
            share = self._share(account.group)
            account.left = min(share, account.left + (share * ALONE_QUANTA if is_alone else share))
            while account.waiting and account.left > floor:
                cost, who = account.waiting.popleft()
                account.left -= cost
                self._waiting -= 1
                going.append(who)
            if not account.waiting and account.left == share:
                del self._accounts[party]
                self._members[account.group] -= 1
                if not self._members[account.group]:
                    del self._members[account.group]
        return going
