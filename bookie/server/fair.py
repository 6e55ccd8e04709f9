"""Fair shares between those who use a bookie: turns at its event loop, and places (``bookie.core.shares``).

A bookie's event loop does one thing at a time. A client that sends much would keep it busy, with the more
connections the longer. So a connection asks for a turn before it handles frames. A round of the shares is one
pass of the event loop: in each pass, a party's connections together handle what one turn of one connection is
(``limits.TURN_BYTES``). A round begins when something waits; the task ``run`` begins them.

**Places.** Of what all share, one party has at most a part, so that the others find some:

    requests under way               ``limits.PARTY_REQUESTS``
    requests that are worked on      ``limits.PARTY_WORKING``; long polls do not count
    bytes of replies                 ``limits.PARTY_REPLY_BYTES``
    places for large frames          ``limits.PARTY_LARGE_FRAMES``
    questions to the metadata store  ``limits.PARTY_LOOKS``
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs
import trio

from bookie.core.shares import Shares
from bookie.server.budget import ByteBudget
from ledgerlog import limits

__all__ = ["FairShares", "Party", "address_of"]


def address_of(peer: str) -> str:
    """Return the address of ``host:port``, by which bookies tell those apart who do not say who they are."""
    return peer.rpartition(":")[0] or peer


@attrs.define(eq=False)
class Party:
    """What the connections from one address use together."""

    name: Hashable
    reply_budget: ByteBudget = attrs.Factory(lambda: ByteBudget(limits.PARTY_REPLY_BYTES))
    large_frames: trio.CapacityLimiter = attrs.Factory(
        lambda: trio.CapacityLimiter(limits.PARTY_LARGE_FRAMES)
    )
    looks: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(limits.PARTY_LOOKS))
    working: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(limits.PARTY_WORKING))
    requests: int = 0
    """Its requests under way, other than adds."""
    connections: int = 0


class FairShares:
    """The parties of one bookie. ``run`` must run while anybody calls ``turn``."""

    def __init__(self) -> None:
        self._shares: Shares[trio.Event] = Shares(limits.TURN_BYTES)
        self._parties: dict[Hashable, Party] = {}
        self._wanted = trio.Event()

    def enter(self, name: Hashable) -> Party:
        """Return the party of this name, for one more connection."""
        party = self._parties.get(name)
        if party is None:
            party = self._parties[name] = Party(name)
        party.connections += 1
        return party

    def leave(self, party: Party) -> None:
        """Say that a connection of the party has ended."""
        party.connections -= 1
        if not party.connections:
            del self._parties[party.name]

    def take(self, party: Party, cost: int) -> bool:
        """Return whether ``cost`` bytes of work may be done now; if not, wait for ``turn``."""
        return self._shares.take(party.name, cost, trio.current_time())

    @property
    def is_alone(self) -> bool:
        """Whether only one party has asked for anything lately."""
        return self._shares.is_alone(trio.current_time())

    async def turn(self, party: Party, cost: int) -> None:
        """Return once ``cost`` bytes of work may be done. Call it after ``take`` has returned False."""
        going = trio.Event()
        self._shares.wait(party.name, cost, going)
        self._wanted.set()
        try:
            await going.wait()
        finally:
            if not going.is_set():
                self._shares.leave(party.name, going)

    async def run(self) -> None:
        """Begin the rounds. Never returns."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._shares.waiting:
                await trio.lowlevel.checkpoint()
                for going in self._shares.renew(trio.current_time()):
                    going.set()
