"""Connections that have not said HELLO, and which of them makes place for another.

Nobody knows yet who they are, so they hold little: a small buffer each, for ``limits.HANDSHAKE_TIMEOUT_S``
at most, and ``limits.BOOKIE_UNIDENTIFIED_PER_ADDRESS`` places for each address. Where one more comes the
oldest of its address goes. An honest client says HELLO in its first packet, so it is never the oldest for
long; to refuse the newcomer instead would shut it out behind whoever holds all places and says nothing.

For the same reason a stranger makes place where the bookie has as many connections as it may have.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ledgerlog import limits

T = TypeVar("T")


class Strangers(Generic[T]):
    """Those of one bookie, in the order in which they came."""

    __slots__ = ("_addresses", "_by_address")

    def __init__(self) -> None:
        self._addresses: dict[T, str] = {}
        self._by_address: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, who: T, peer: str) -> T | None:
        """``who`` has connected from ``peer``, an address with its port. Who must go for it; None: nobody."""
        host = peer.rpartition(":")[0] or peer
        others = self._by_address.setdefault(host, {})
        surplus = next(iter(others)) if len(others) >= limits.BOOKIE_UNIDENTIFIED_PER_ADDRESS else None
        others[who] = None
        self._addresses[who] = host
        if surplus is not None:
            self.leave(surplus)
        return surplus

    def leave(self, who: T) -> None:
        """``who`` has said HELLO, or is gone. Idempotent."""
        host = self._addresses.pop(who, None)
        if host is not None:
            others = self._by_address[host]
            del others[who]
            if not others:
                del self._by_address[host]

    def take_oldest(self) -> T | None:
        """The one that came first, which leaves; None where there is none."""
        who = next(iter(self._addresses), None)
        if who is not None:
            self.leave(who)
        return who
