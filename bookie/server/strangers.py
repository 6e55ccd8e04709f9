"""Strangers: connections that the bookie has not greeted yet. If there are too many, one of them is closed.

The bookie greets a client once it has accepted the client's HELLO, and the client's proof of identity if
proofs are exchanged (``connection``). Until then the client gets little: a small buffer, for at most
``limits.HANDSHAKE_TIMEOUT_S``. Each address has ``limits.BOOKIE_UNIDENTIFIED_PER_ADDRESS`` places for
strangers. If one more connects, the oldest stranger of the same address is closed. An honest client says
HELLO in its first packet, so it does not stay the oldest for long. If the bookie refused the newcomer
instead, an attacker could hold all places, say nothing, and shut honest clients out.

For the same reason, a bookie at its limit of connections closes a stranger to make room for a newcomer.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from bookie.server.fair import address_of
from ledgerlog import limits

T = TypeVar("T")


class Strangers(Generic[T]):
    """The strangers of one bookie, in the order in which they came."""

    __slots__ = ("_addresses", "_by_address")

    def __init__(self) -> None:
        self._addresses: dict[T, str] = {}
        self._by_address: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, who: T, peer: str) -> T | None:
        """Add ``who``, which connected from ``peer`` (host:port). Return the stranger to close for it, or
        None."""
        host = address_of(peer)
        others = self._by_address.setdefault(host, {})
        surplus = next(iter(others)) if len(others) >= limits.BOOKIE_UNIDENTIFIED_PER_ADDRESS else None
        others[who] = None
        self._addresses[who] = host
        if surplus is not None:
            self.leave(surplus)
        return surplus

    def leave(self, who: T) -> None:
        """Remove ``who``, because it was greeted or has ended. Idempotent."""
        host = self._addresses.pop(who, None)
        if host is not None:
            others = self._by_address[host]
            del others[who]
            if not others:
                del self._by_address[host]

    def take_oldest(self) -> T | None:
        """Remove the oldest stranger and return it; None if there is none."""
        who = next(iter(self._addresses), None)
        if who is not None:
            self.leave(who)
        return who
