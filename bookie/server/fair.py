"""Fair shares for the clients of a bookie: turns at its event loop (``bookie.core.shares``), and places,
which limit the resources that a client may hold at once.

A *party* is all connections of one principal from one address. A client that did not prove an identity has no
principal. All connections of such clients from one address form one party. A connection also belongs to that
party of its address until the bookie has greeted it (accepted its HELLO).

**Turns.** A bookie's event loop does one thing at a time. A client that sends a lot could keep it busy, and
with more connections even longer. So a connection asks for a turn before it handles frames. One round (see
``bookie.core.shares``) is one pass of the event loop. In each pass, all connections of a party together
handle as much as one turn (``limits.TURN_BYTES``). The parties of one principal are a group and divide this
amount. The task ``run`` begins a round when a connection waits. Within a party, work waits in *lanes*
(queues), and the lanes take turns: each connection has one lane for its frames, one for its requests and one
for its sending.

**Costs.** A client pays for everything that it makes the bookie do: parsing its frames, its adds, each piece
of work on a request (``requests``), and sending replies that had to wait for the client. If some work needed
no turn, a client could use it to delay the others without limit.

**The journal.** All adds go into one queue, and leave it in the order in which they came. So while several
parties use the bookie, a party adds no more while ``limits.PARTY_UNSYNCED_BYTES`` of its bytes wait for their
sync. So the add of another party waits for at most these bytes of a fast client, and not for everything that
the client can send. The bytes of a connection that ends count until their sync, and until then the connection
counts for its party. So a client gains nothing if it ends its connections.

**Places.** A party may use only a part of the bookie's places. The same holds for a principal at all its
addresses together. So some places are always left for the other clients. The limits (in ``limits``):

                                     of a party                    of a principal
    requests under way               ``PARTY_REQUESTS``            ``PRINCIPAL_REQUESTS``
    bytes of replies                 ``PARTY_REPLY_BYTES``         ``PRINCIPAL_REPLY_BYTES``
    places for large frames          ``PARTY_LARGE_FRAMES``        ``PRINCIPAL_LARGE_FRAMES``
    questions to the metadata store  ``PARTY_LOOKS``               ``PRINCIPAL_LOOKS``
    requests that are worked on      ``PARTY_WORKING``             -
    connections                      -                             three quarters of the connections

A request is "under way" until it has its answer. It is "worked on" while the bookie reads or computes for it.
A long poll is only "under way", because it mostly waits.

**The reserve.** The bookie keeps some places for requests that repair a cluster: fences, recovery reads, and
all requests of other bookies (``limits.RESERVE_...``). Such a request uses the reserve if all other places
are taken. A party also has separate places for fences and recovery reads that are worked on. So a flood of
reads never keeps a new leader from taking over. Fences and recovery reads still count for their party.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

import attrs
import trio

from bookie.core.request_queue import Line
from bookie.core.shares import Shares
from bookie.server.budget import ByteBudget
from ledgerlog import limits
from ledgerlog.model.principal import Principal, PrincipalKind

__all__ = ["FairShares", "Party", "Places", "address_of"]


def address_of(peer: str) -> str:
    """Return the host of ``host:port``. The bookie distinguishes clients without a principal by their
    host."""
    return peer.rpartition(":")[0] or peer


@attrs.define(eq=False)
class Places:
    """The places that a party, a principal or the whole bookie has at the same time."""

    requests_max: int
    reply_budget: ByteBudget
    large_frames: trio.CapacityLimiter
    looks: trio.CapacityLimiter
    requests: int = 0
    """Requests under way, other than adds."""
    connections: int = 0
    """Open connections, and ended ones whose adds are not synced yet. A connection that is not greeted yet
    counts only for its own party."""
    greeted: int = 0
    """How many open connections are greeted."""

    @classmethod
    def of(cls, *, requests: int, reply_bytes: int, large_frames: int, looks: int) -> Places:
        return cls(
            requests,
            ByteBudget(reply_bytes),
            trio.CapacityLimiter(large_frames),
            trio.CapacityLimiter(looks),
        )

    def has_request(self, *, is_poll: bool) -> bool:
        """Whether there is a place for one more request. Long polls may use three quarters of the places."""
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


def _of_lines() -> dict[Line, trio.CapacityLimiter]:
    most = dict.fromkeys(Line, limits.PARTY_WORKING) | {Line.URGENT: limits.PARTY_URGENT}
    return {line: trio.CapacityLimiter(each) for line, each in most.items()}


@attrs.define(eq=False)
class Party:
    """The places of all connections of one principal from one address. ``FairShares`` makes it."""

    principal: Principal | None
    address: str
    of_principal: Places
    """The places of all parties of the principal together. If the party has no principal, these are for the
    party alone."""
    everybody: Places
    """The places of all clients of the bookie together."""
    reserve: Places
    """The places for urgent requests, and for other bookies, when the shared places (``everybody``) are all
    taken."""
    own: Places = attrs.Factory(_of_party)
    working: Mapping[Line, trio.CapacityLimiter] = attrs.Factory(_of_lines)
    """The places for requests that are worked on."""
    unsynced_bytes: int = 0
    """The bytes of the party's adds that are in the journal and not synced yet."""
    synced: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)
    """Where connections wait until fewer bytes are unsynced."""
    scrubbing: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    """The place for a scrub. A bookie serves one scrub request at a time, so each party may have only one in
    that queue."""

    name: str = attrs.field(init=False)
    """The name of the party in ``bookie.core.shares``. If a client leaves and comes back, its party has the
    same name, so the client still pays its debt."""
    group: str | None = attrs.field(init=False)
    """Parties with the same group divide one share. None: the party has its own share."""

    def __attrs_post_init__(self) -> None:
        self.group = None if self.principal is None else str(self.principal)
        self.name = f"{self.group or ''}@{self.address}"

    def on_synced(self, count: int) -> None:
        """Note that ``count`` bytes of the party's adds are synced."""
        self.unsynced_bytes -= count
        if self.synced:
            self.synced.unpark_all()

    def shared_places(self) -> tuple[Places, ...]:
        """Return the ``Places`` in which a connection of this party is counted."""
        return self.own, self.of_principal, self.everybody

    @property
    def is_bookie(self) -> bool:
        """Whether the client is another bookie. If so, all its requests may use the reserve."""
        return self.principal is not None and self.principal.kind is PrincipalKind.BOOKIE

    def request_places(self, *, is_poll: bool, is_urgent: bool) -> tuple[Places, ...] | None:
        """Return the ``Places`` in which one more request counts; None if one of them has no place left."""
        if not (self.own.has_request(is_poll=is_poll) and self.of_principal.has_request(is_poll=is_poll)):
            return None
        if self.everybody.has_request(is_poll=is_poll):
            return self.own, self.of_principal, self.everybody
        if (is_urgent or self.is_bookie) and self.reserve.has_request(is_poll=is_poll):
            return self.own, self.of_principal, self.reserve
        return None

    def reply_budgets(self, count: int, *, is_urgent: bool) -> Iterator[ByteBudget]:
        """Yield the budgets from which to take ``count`` bytes, in this order. Take the bytes from each
        before you ask for the next: the last is chosen by the room that is left then."""
        yield self.own.reply_budget
        yield self.of_principal.reply_budget
        last = self.everybody.reply_budget
        if (is_urgent or self.is_bookie) and not last.has_room_for(count):
            last = self.reserve.reply_budget
        yield last

    def large_frame_limiters(self) -> Iterator[trio.CapacityLimiter]:
        """Yield the limiters that one more large frame must hold, in this order. Acquire each before you ask
        for the next, as in ``reply_budgets``."""
        return self._limiters(lambda places: places.large_frames)

    def look_limiters(self) -> Iterator[trio.CapacityLimiter]:
        """Yield the limiters that one more question to the metadata store must hold, in this order. Acquire
        each before you ask for the next, as in ``reply_budgets``."""
        return self._limiters(lambda places: places.looks)

    def _limiters(self, of: Callable[[Places], trio.CapacityLimiter]) -> Iterator[trio.CapacityLimiter]:
        yield of(self.own)
        yield of(self.of_principal)
        last = of(self.everybody)
        if self.is_bookie and not last.available_tokens:
            last = of(self.reserve)
        yield last


class FairShares:
    """The parties of one bookie. ``run`` must run while tasks call ``turn``."""

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
        """The places of all clients together."""
        self.reserve = Places.of(
            requests=limits.RESERVE_REQUESTS,
            reply_bytes=limits.RESERVE_REPLY_BYTES,
            large_frames=limits.RESERVE_LARGE_FRAMES,
            looks=limits.RESERVE_LOOKS,
        )
        """The places that are kept for urgent requests and for other bookies."""

    @property
    def requests(self) -> int:
        """How many requests other than adds are under way."""
        return self.everybody.requests + self.reserve.requests

    @property
    def reply_bytes(self) -> int:
        """How many bytes replies hold now."""
        return self.everybody.reply_budget.used + self.reserve.reply_budget.used

    def enter(self, address: str, principal: Principal | None = None) -> Party:
        """Count one more connection of an address and a principal, and return its party.

        Args:
            address: The client's address.
            principal: The client's principal. None: it did not prove an identity.
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
        """Count a connection as greeted, and return the party that it belongs to from now on.

        Args:
            stranger: The party that the connection has belonged to.
            principal: The client's principal. None: it did not prove an identity.
        """
        party = stranger
        if principal is not None:
            self.leave(stranger)
            party = self.enter(stranger.address, principal)
        for places in party.shared_places():
            places.greeted += 1
        return party

    def end(self, party: Party) -> None:
        """Give back the place of a greeted connection that has ended. Call ``leave`` when its adds are
        synced."""
        for places in party.shared_places():
            places.greeted -= 1

    def leave(self, party: Party) -> None:
        """Stop counting a connection of the party. With its last one, the party is forgotten."""
        party.own.connections -= 1
        if not party.own.connections:
            del self._parties[party.principal, party.address]
        if party.principal is not None:
            party.of_principal.connections -= 1
            if not party.of_principal.connections:
                del self._principals[party.principal]

    def has_connection(self, address: str, principal: Principal | None) -> bool:
        """Whether one more client may be greeted.

        Connections that are not greeted yet do not count: if a newcomer needs room, the oldest of them is
        closed.

        Args:
            address: The client's address.
            principal: The client's principal. None: it did not prove an identity.
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
        """Return whether the party may do ``cost`` bytes of work now. If not, wait for ``turn``."""
        return self._shares.take(party.name, cost, trio.current_time(), group=party.group)

    @property
    def is_alone(self) -> bool:
        """Whether only one party has asked for anything recently."""
        return self._shares.is_alone(trio.current_time())

    def pay(self, party: Party, cost: int) -> None:
        """Count work that turned out to cost ``cost`` bytes more than ``take`` or ``turn`` was told."""
        self._shares.pay(party.name, cost, group=party.group)

    def may_add(self, party: Party) -> bool:
        """Whether the party may add to the journal now. If not, park in ``party.synced``, and ask again."""
        return party.unsynced_bytes < limits.PARTY_UNSYNCED_BYTES or self.is_alone

    async def turn(self, party: Party, cost: int, lane: Hashable) -> None:
        """Wait until the party may do ``cost`` bytes of work. Call this after ``take`` has returned False.

        Args:
            party: The party.
            cost: The cost of the work.
            lane: The lane in which to wait. The lanes of a party take turns.
        """
        going = trio.Event()
        self._shares.wait(party.name, cost, going, lane=lane)
        self._wanted.set()
        try:
            await going.wait()
        finally:
            if not going.is_set():
                self._shares.leave(party.name, going)

    async def run(self) -> None:
        """Begin a round each time a task waits for a turn. This never returns."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._shares.waiting:
                await trio.lowlevel.checkpoint()
                for going in self._shares.renew(trio.current_time()):
                    going.set()
