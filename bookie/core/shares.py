"""Fair shares of a bookie's work: which items of work may start now, and which wait for a turn.

A *party* is a set of connections that share one allowance. If several parties want to work, each gets the
same share, no matter how many connections it has and how much it sends. Parties may form a *group*. The whole
group gets the share of one party, and its parties divide this share.

**Rounds.** In each round a party may spend ``quantum`` bytes. The caller decides the cost of an item: a tiny
item may cost more than its bytes. Items that the party cannot pay for wait. At the end of a round each party
gets a new quantum, and its waiting items start until it is spent.

**Lanes.** A lane is a queue of waiting items. A party may have several, for example one for each connection.
The lanes of a party take turns: each lane starts its oldest item, and then the next lane starts one. So a
lane with a hundred items delays the first item of another lane by one item only.

An item starts if the party has any bytes left, so an item may cost more than is left. The party pays the
difference in the next rounds (deficit round robin). For example, with a quantum of 100 bytes an item of 250
may start at once. The party then has -150 bytes, and its next item starts after two more rounds. Unspent
bytes are not saved: a party never has more than one quantum. If the cost becomes known only after the start,
the caller corrects it (``pay``).

**Groups.** If a group has n parties, each of them gets an n-th of the quantum. So a client gains nothing if
it appears as many parties of one group.

**Alone.** If no other party has asked for anything for ``ALONE_S`` seconds, a party may spend
``ALONE_QUANTA`` quanta in a round. So a bookie hardly ever makes its only client wait. The round is still
short: a second party waits for about these quanta, and not for everything that the first party has sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["ACCOUNTS_MAX", "ALONE_QUANTA", "ALONE_S", "Shares"]

ALONE_S = 0.25
ALONE_QUANTA = 8

ACCOUNTS_MAX = 4096
"""While nothing waits, at most so many parties are remembered. Otherwise, clients that come from ever new
addresses would fill the memory."""

_LONG_AGO = float("-inf")

T = TypeVar("T")


class _Account(Generic[T]):
    __slots__ = ("group", "lanes", "left")

    def __init__(self, left: int, group: Hashable) -> None:
        self.left = left
        self.group = group
        self.lanes: dict[Hashable, deque[tuple[int, T]]] = {}
        """The lanes with waiting items. The first lane has the next turn. No lane is empty."""

    def take_next(self) -> tuple[int, T]:
        """Remove the next item. Return its cost and the item."""
        lane = next(iter(self.lanes))
        items = self.lanes.pop(lane)
        item = items.popleft()
        if items:
            self.lanes[lane] = items  # at the end
        return item


class Shares(Generic[T]):
    """The shares of the parties of one bookie. ``T`` is the caller's type of an item.

    Args:
        quantum: The bytes that a party may spend in a round.
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
        """The party that asked last."""
        self._last_at = _LONG_AGO
        self._other_at = _LONG_AGO
        """When any other party asked last."""

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return self._waiting

    def is_alone(self, now: float) -> bool:
        """Return whether only one party has asked for anything lately."""
        return now - self._other_at > ALONE_S

    def take(self, party: Hashable, cost: int, now: float, *, group: Hashable = None) -> bool:
        """Let an item start now, and count its cost. Return False if it has to wait.

        Args:
            party: The party of the item.
            cost: The cost of the item, in bytes.
            now: The time, in seconds.
            group: The group of the party. Pass the same group each time. None: the party is its own group.
        """
        if party != self._last:
            self._last, self._other_at = party, self._last_at
        self._last_at = now
        account = self._account(party, group)
        if account.lanes or (account.left <= 0 and account.left <= self._floor(self.is_alone(now))):
            return False
        account.left -= cost
        return True

    def _account(self, party: Hashable, group: Hashable) -> _Account[T]:
        account = self._accounts.get(party)
        if account is None:
            if len(self._accounts) >= ACCOUNTS_MAX and not self._waiting:
                # Nobody had to wait, so what the parties have spent does not matter.
                self._accounts.clear()
                self._members.clear()
            group = party if group is None else group
            self._members[group] += 1
            account = self._accounts[party] = _Account(self._share(group), group)
        return account

    def _share(self, group: Hashable) -> int:
        return max(1, self._quantum // self._members[group])

    def pay(self, party: Hashable, cost: int, *, group: Hashable = None) -> None:
        """Count the cost of work that has started already.

        If you counted too much before, pass a negative ``cost``.

        Args:
            party: The party that did the work.
            cost: How many bytes to add to the costs of the party.
            group: The group of the party, as in ``take``.
        """
        self._account(party, group).left -= cost

    def wait(self, party: Hashable, cost: int, who: T, *, lane: Hashable = None) -> None:
        """Queue an item for which ``take`` returned False. ``renew`` returns it when it may start.

        Args:
            party: The party of the item.
            cost: The cost of the item, in bytes.
            who: The item.
            lane: The lane of the item within its party.
        """
        self._accounts[party].lanes.setdefault(lane, deque()).append((cost, who))
        self._waiting += 1

    def leave(self, party: Hashable, who: T) -> None:
        """Remove a waiting item. If the item no longer waits, do nothing."""
        account = self._accounts.get(party)
        if account is None:
            return
        for lane, items in account.lanes.items():
            for item in items:
                if item[1] is who:
                    items.remove(item)
                    self._waiting -= 1
                    if not items:
                        del account.lanes[lane]
                    return

    def _floor(self, is_alone: bool) -> int:
        return -(ALONE_QUANTA - 1) * self._quantum if is_alone else 0

    def renew(self, now: float) -> list[T]:
        """End the round. Return the items that may start now. The items of one lane keep their order."""
        going: list[T] = []
        is_alone = self.is_alone(now)
        floor = self._floor(is_alone)
        for party, account in list(self._accounts.items()):
            share = self._share(account.group)
            account.left = min(share, account.left + (share * ALONE_QUANTA if is_alone else share))
            while account.lanes and account.left > floor:
                cost, who = account.take_next()
                account.left -= cost
                self._waiting -= 1
                going.append(who)
            if not account.lanes and account.left == share:
                del self._accounts[party]
                self._members[account.group] -= 1
                if not self._members[account.group]:
                    del self._members[account.group]
        return going
