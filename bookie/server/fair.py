"""Fair shares between those who use a bookie: turns at its event loop, and places (``bookie.core.shares``).

A *party* is all connections of one principal from one address. A client that proved nothing has no
principal, so its party is all such connections from its address. A connection belongs to the party of its
address until it is greeted.

**Turns.** A bookie's event loop does one thing at a time. A client that sends much would keep it busy, with
the more connections the longer. So a connection asks for a turn before it handles frames. A round of the
shares is one pass of the event loop: in each pass, a party's connections together handle what one turn of one
connection is (``limits.TURN_BYTES``). Parties of one principal are a group and divide this. A round begins
when something waits; the task ``run`` begins them.

**Places.** Of what all share, one party has at most a part, and so has one principal at all its addresses.
The others find some:

                                     of a party                    of a principal
    requests under way               ``PARTY_REQUESTS``            ``PRINCIPAL_REQUESTS``
    bytes of replies                 ``PARTY_REPLY_BYTES``         ``PRINCIPAL_REPLY_BYTES``
    places for large frames          ``PARTY_LARGE_FRAMES``        ``PRINCIPAL_LARGE_FRAMES``
    questions to the metadata store  ``PARTY_LOOKS``               ``PRINCIPAL_LOOKS``
    requests that are worked on      ``PARTY_WORKING``             -
    connections                      -                             three quarters of the bookie's

Long polls do not count as worked on.

**The reserve.** If all places of the bookie are taken, some are left for what repairs a cluster: fences,
recovery reads, and everything that other bookies ask (``limits.RESERVE_...``). Within a party, fences and
recovery reads also have places of their own among the requests that are worked on. So a flood of reads never
keeps a new leader from taking over. Fences and recovery reads still count for their party.
"""

from __future__ import annotations

import attrs
import trio

from bookie.core.shares import Shares
from bookie.server.budget import ByteBudget
from ledgerlog import limits
from ledgerlog.model.principal import Principal, PrincipalKind

__all__ = ["FairShares", "Party", "Places", "address_of"]


def address_of(peer: str) -> str:
    """Return the address of ``host:port``, by which bookies tell those apart who do not say who they are."""
    return peer.rpartition(":")[0] or peer


@attrs.define(eq=False)
class Places:
    """What a party, a principal or the whole bookie may use at the same time."""

    requests_max: int
    reply_budget: ByteBudget
    large_frames: trio.CapacityLimiter
    looks: trio.CapacityLimiter
    requests: int = 0
    """Requests under way, other than adds."""
    connections: int = 0
    """Open connections. Of a connection that was not greeted yet, only its party counts it."""
    greeted: int = 0
    """How many of them were greeted."""

    @classmethod
    def of(cls, *, requests: int, reply_bytes: int, large_frames: int, looks: int) -> Places:
        return cls(
            requests,
            ByteBudget(reply_bytes),
            trio.CapacityLimiter(large_frames),
            trio.CapacityLimiter(looks),
        )

    def has_request(self, *, is_poll: bool) -> bool:
        """Whether one more request may be under way. A quarter of the places is closed to long polls."""
        return self.requests < self.requests_max - (self.requests_max // 4 if is_poll else 0)


def _of_party() -> Places:
    return Places.of(
        requests=limits.PARTY_REQUESTS,
        reply_bytes=limits.PARTY_REPLY_BYTES,
        large_frames=limits.PARTY_LARGE_FRAMES,
        looks=limits.PARTY_LOOKS,
    )


def _of_principal() -> Places:
    return Places.of(
        requests=limits.PRINCIPAL_REQUESTS,
        reply_bytes=limits.PRINCIPAL_REPLY_BYTES,
        large_frames=limits.PRINCIPAL_LARGE_FRAMES,
        looks=limits.PRINCIPAL_LOOKS,
    )


@attrs.define(eq=False)
class Party:
    """What the connections of one principal from one address use together. ``FairShares`` makes it."""

    principal: Principal | None
    address: str
    of_principal: Places
    """What all parties of the principal use together; that of the party alone if it has no principal."""
    everybody: Places
    """What all clients of the bookie use together."""
    reserve: Places
    """What is left for urgent requests when ``everybody`` has no place."""
    own: Places = attrs.Factory(_of_party)
    working: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(limits.PARTY_WORKING))
    urgent: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(limits.PARTY_URGENT))
    """Fences and recovery reads that are worked on."""

    name: str = attrs.field(init=False)
    """Different for any two parties, also for one that comes back later."""
    group: str | None = attrs.field(init=False)
    """Parties with the same one divide a share; None: it has a share of its own."""

    def __attrs_post_init__(self) -> None:
        self.group = None if self.principal is None else str(self.principal)
        self.name = f"{self.group or ''}@{self.address}"

    def shared_places(self) -> tuple[Places, ...]:
        """Return all places that a connection of the party counts for."""
        return self.own, self.of_principal, self.everybody

    @property
    def is_bookie(self) -> bool:
        """Whether all that it asks may use the reserve."""
        return self.principal is not None and self.principal.kind is PrincipalKind.BOOKIE

    def request_places(self, *, is_poll: bool, is_urgent: bool) -> tuple[Places, ...] | None:
        """Return where one more request counts; None if there is no place for it."""
        if not (self.own.has_request(is_poll=is_poll) and self.of_principal.has_request(is_poll=is_poll)):
            return None
        if self.everybody.has_request(is_poll=is_poll):
            return self.own, self.of_principal, self.everybody
        if (is_urgent or self.is_bookie) and self.reserve.has_request(is_poll=is_poll):
            return self.own, self.of_principal, self.reserve
        return None

    def reply_budgets(self, count: int, *, is_urgent: bool) -> tuple[ByteBudget, ...]:
        """Return from which budgets to take ``count`` bytes, in this order."""
        last = self.everybody.reply_budget
        if (is_urgent or self.is_bookie) and not last.has_room_for(count):
            last = self.reserve.reply_budget
        return self.own.reply_budget, self.of_principal.reply_budget, last

    def large_frame_limiters(self) -> tuple[trio.CapacityLimiter, ...]:
        """Return where one more large frame needs a place, in this order."""
        last = self.everybody.large_frames
        if self.is_bookie and not last.available_tokens:
            last = self.reserve.large_frames
        return self.own.large_frames, self.of_principal.large_frames, last

    def look_limiters(self) -> tuple[trio.CapacityLimiter, ...]:
        """Return where one more question to the metadata store needs a place, in this order."""
        last = self.everybody.looks
        if self.is_bookie and not last.available_tokens:
            last = self.reserve.looks
        return self.own.looks, self.of_principal.looks, last


class FairShares:
    """The parties of one bookie. ``run`` must run while anybody calls ``turn``."""

    def __init__(self, connections_max: int = limits.BOOKIE_CONNECTIONS_MAX) -> None:
        """Create it.

        Args:
            connections_max: How many connections the bookie takes.
        """
        self._shares: Shares[trio.Event] = Shares(limits.TURN_BYTES)
        self._parties: dict[tuple[Principal | None, str], Party] = {}
        self._principals: dict[Principal, Places] = {}
        self._wanted = trio.Event()
        self._most_of_one = connections_max - connections_max // 4
        self._most_of_clients = connections_max - connections_max // 16
        self.everybody = Places.of(
            requests=limits.BOOKIE_REQUESTS,
            reply_bytes=limits.BOOKIE_REPLY_BYTES,
            large_frames=limits.BOOKIE_LARGE_FRAMES,
            looks=limits.BOOKIE_LOOKS,
        )
        """What all clients use together."""
        self.reserve = Places.of(
            requests=limits.RESERVE_REQUESTS,
            reply_bytes=limits.RESERVE_REPLY_BYTES,
            large_frames=limits.RESERVE_LARGE_FRAMES,
            looks=limits.RESERVE_LOOKS,
        )
        """What is left for urgent requests and other bookies."""

    @property
    def requests(self) -> int:
        """How many requests other than adds are under way."""
        return self.everybody.requests + self.reserve.requests

    @property
    def reply_bytes(self) -> int:
        """How many bytes of replies are taken."""
        return self.everybody.reply_budget.used + self.reserve.reply_budget.used

    def enter(self, address: str, principal: Principal | None = None) -> Party:
        """Return the party of an address and a principal, for one more connection.

        Args:
            address: The client's address.
            principal: Who the client proved to be. None: it proved nothing.
        """
        party = self._parties.get((principal, address))
        if party is None:
            party = self._parties[principal, address] = self._new_party(principal, address)
        party.own.connections += 1
        if principal is not None:
            party.of_principal.connections += 1
        return party

    def _new_party(self, principal: Principal | None, address: str) -> Party:
        of_principal = _of_principal() if principal is None else self._principals.get(principal)
        if of_principal is None:
            assert principal is not None
            of_principal = self._principals[principal] = _of_principal()
        return Party(principal, address, of_principal, self.everybody, self.reserve)

    def greet(self, stranger: Party, principal: Principal | None) -> Party:
        """Return the party of a connection that is greeted now.

        Args:
            stranger: The party that it has belonged to.
            principal: Who the client proved to be. None: it proved nothing.
        """
        party = stranger
        if principal is not None:
            self.leave(stranger)
            party = self.enter(stranger.address, principal)
        for places in party.shared_places():
            places.greeted += 1
        return party

    def leave(self, party: Party, *, is_greeted: bool = False) -> None:
        """Say that a connection of the party has ended."""
        for places in party.shared_places() if is_greeted else ():
            places.greeted -= 1
        party.own.connections -= 1
        if not party.own.connections:
            del self._parties[party.principal, party.address]
        if party.principal is not None:
            party.of_principal.connections -= 1
            if not party.of_principal.connections:
                del self._principals[party.principal]

    def has_connection(self, address: str, principal: Principal | None) -> bool:
        """Whether one more client may be greeted.

        Connections that were not greeted do not count: the oldest of them makes place for a newcomer.

        Args:
            address: The client's address.
            principal: Who the client is or claims to be.
        """
        if principal is not None and principal.kind is PrincipalKind.BOOKIE:
            return True
        if self.everybody.greeted >= self._most_of_clients:
            return False
        if principal is not None:
            found = self._principals.get(principal)
        else:
            party = self._parties.get((None, address))
            found = None if party is None else party.own
        return found is None or found.greeted < self._most_of_one

    def take(self, party: Party, cost: int) -> bool:
        """Return whether ``cost`` bytes of work may be done now; if not, wait for ``turn``."""
        return self._shares.take(party.name, cost, trio.current_time(), group=party.group)

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
