"""Access: whether a client of this bookie may make a request.

``bookie.core.access`` has the rules. This module reads the data for them from the metadata store and caches
it, so most requests need no question to the store:

    grants   the record of each principal that connects. The bookie reads the record at the principal's first
             request, and again if the records change (a watch) or if ``limits.ACCESS_REFRESH_S`` has passed
    facts    the log and the key of each ledger that a decision needed. The facts of a ledger never change, so
             they stay in the cache until facts of other ledgers need the room

Each connection has an ``Access``, which remembers the ledgers that the client may use, so the check of a
later frame is one look into a set. The set does not have the ledger's key. So a permission to add or to fence
is remembered only once the storage knows the ledger: from then on, the storage compares the key. If the
rights of a principal change, the bookie empties the sets of the principal's connections, ends the long polls
of these connections, and decides about their next frames again.

**Before a refusal**, the bookie looks again, because a replica of the store may have an old state. The bookie
syncs the store, and reads the grants or the ledger once more. So a refusal is final, and a refused client
need not ask other bookies. The bookie looks again at the grants of a principal at most once in
``_CONFIRM_EVERY_S``, so a client without rights costs the store little.

**If the store does not answer** within ``limits.ACCESS_LOOK_S``, the last known grants stay valid. If the
decision needs data that was never read, the bookie refuses the request with NOT_READY. The client then treats
the bookie as unreachable for now. For the next ``_AWAY_S`` the bookie refuses such requests at once, because
a waiting add holds up all later frames of its connection.

An outage of the store does not stop a writer with rights to everything, if the bookie knows the writer's
ledgers: such a decision needs nothing from the store. In an open cluster, every client has these rights, even
if it proved by a secret who it is.

**A client with many requests** delays only itself. A connection has at most one decision under way, and each
party and each principal has a bounded number of questions to the store (``fair``). So if a client sends a
flood of fences for ids that do not exist, other clients still reach the store.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import attrs
import trio

from bookie.core.access import LedgerFacts, judge, must_exist, needs_facts, right_for
from ledgerlog import limits
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import MetadataUnavailable, StorageError
from ledgerlog.meta.grants import read_grants
from ledgerlog.meta.settle import AWAY, follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.access import ALL_RIGHTS, NO_RIGHTS, Right, Rights, log_of_labels, rights_of
from ledgerlog.model.layout import GRANTS, ledger_path
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.principal import Principal
from ledgerlog.wire.frame import Header, Status

__all__ = ["Access", "AccessControl"]

logger = logging.getLogger(__name__)

_NO_ANSWER: tuple[type[Exception], ...] = (*AWAY, trio.TooSlowError)
_CONFIRM_EVERY_S = 1.0
_AWAY_S = 1.0
_LOOKS_AT_ONCE = 16

Looks = Callable[[], Iterable[trio.CapacityLimiter]]
"""Returns the limiters to hold during a question to the store, in the order in which to take them. Take each
before you ask for the next: what is chosen next may depend on the room that is left then."""


class _Away(Exception):
    """The store did not answer in time, or a record in it is damaged, and no earlier answer is known."""


@attrs.define(eq=False)
class _Known:
    """The cached grants of one principal."""

    principal: Principal
    rights: Rights | None = None
    """The rights of the principal. None: the principal's record was never read."""
    looked_at: float = -math.inf
    """When the record was last read after a sync."""
    is_stale: bool = True
    """Whether the record may have changed since ``looked_at``."""
    open: int = 0
    """How many connections the principal has."""


class AccessControl:
    """Decides for all connections of one bookie."""

    def __init__(self, store: MetadataStore, knows: Callable[[int], bool]) -> None:
        """Create it.

        Args:
            store: The cluster's metadata store.
            knows: Returns whether the bookie's storage knows a ledger, and so compares its key. It may raise
                StorageError.
        """
        self._store = store
        self._knows = knows
        self._principals: OrderedDict[Principal, _Known] = OrderedDict()
        self._facts: OrderedDict[int, LedgerFacts] = OrderedDict()
        self._accesses: dict[Access, None] = {}
        self._turn = trio.CancelScope()
        self._is_open = False
        self._refreshes = True
        """Whether ``run`` reads grants at intervals. It does so while a principal is connected."""
        self._is_away = False
        self._away_until = -math.inf

    def set_open(self, is_open: bool) -> None:
        """Set whether the cluster is open. If so, a client may do everything, even if it proved by a secret
        who it is. A principal that a certificate proved has only its rights: a bookie with a certificate
        takes no connection without one."""
        was_open, self._is_open = self._is_open, is_open
        if was_open and not is_open:
            for access in self._accesses:
                if access.is_by_secret:
                    access.forget()

    def open(
        self,
        principal: Principal | None,
        looks: Looks,
        on_change: Callable[[], object],
        *,
        is_by_secret: bool = False,
    ) -> Access:
        """Return the access of a new connection. Close the access when the connection ends.

        Args:
            principal: The principal of the client. None: the client proved nothing, and may do everything.
            looks: Returns the limiters that bound this client's questions to the store.
            on_change: Called when the rights of the principal have changed.
            is_by_secret: Whether a secret proved the principal, and not a certificate.
        """
        known = None
        if principal is not None:
            known = self._principals.get(principal)
            if known is None:
                known = self._principals[principal] = _Known(principal)
                self._forget_principals()
            self._principals.move_to_end(principal)
            known.open += 1
            if not self._refreshes:
                self._turn.cancel()
        access = Access(self, known, looks, on_change, is_by_secret=is_by_secret)
        self._accesses[access] = None
        return access

    def close(self, access: Access) -> None:
        """Forget the access of a connection that has ended."""
        if self._accesses.pop(access, access) is None and access.known is not None:
            access.known.open -= 1

    def _forget_principals(self) -> None:
        surplus = len(self._principals) - limits.ACCESS_PRINCIPALS
        for principal, known in list(self._principals.items()) if surplus > 0 else ():
            if surplus > 0 and not known.open:
                del self._principals[principal]
                surplus -= 1

    async def run(self) -> None:
        """Keep the grants of the connected principals up to date until you cancel this.

        While no principal is connected, this wakes up only for a change of the grants.
        """

        async def look() -> None:
            connected = [known for known in self._principals.values() if known.open]
            for known in self._principals.values():
                known.is_stale = known.is_stale or not known.open
            if not connected:
                if self._refreshes:
                    self._turn.cancel()
                return
            with trio.move_on_after(limits.ACCESS_REFRESH_S) as patience:
                await self._store.sync()
                await gather_each(connected, self._read_grants, at_once=_LOOKS_AT_ONCE)
            if patience.cancelled_caught:
                raise MetadataUnavailable("the metadata store does not answer")

        while True:
            # The scope is cancelled when the first principal comes, or the last one goes.
            with trio.CancelScope() as self._turn:
                self._refreshes = any(known.open for known in self._principals.values())
                await follow(
                    self._store,
                    GRANTS,
                    look,
                    what="the grants are not known to be up to date",
                    log=logger,
                    every_s=limits.ACCESS_REFRESH_S if self._refreshes else math.inf,
                    pause_s=limits.ACCESS_REFRESH_S / 4,
                )

    # --- decisions ------------------------------------------------------------------------------

    async def decide(self, access: Access, header: Header) -> Status | None:
        """Return the status that refuses a request; None if it is allowed."""
        known = self._bound(access)
        try:
            if known is not None and (known.rights is None or known.is_stale):
                await self._look_at_grants(known, access.looks)
            status = await self._judge(access, header)
            known = self._bound(access)  # The cluster may have been closed or opened meanwhile.
            if status is not Status.PERMISSION_DENIED or known is None:
                return status
            if trio.current_time() < known.looked_at + _CONFIRM_EVERY_S:
                return status
            await self._look_at_grants(known, access.looks)
            return await self._judge(access, header)
        except _Away:
            return Status.NOT_READY

    async def _judge(self, access: Access, header: Header) -> Status | None:
        right = right_for(header.kind, header.flags)
        rights = self._rights(access)
        if right is Right.OPERATE:
            return None if right in rights.everywhere else Status.PERMISSION_DENIED
        if not rights.allows_some(right):
            return Status.PERMISSION_DENIED
        if not needs_facts(rights, right, is_known=self._knows_ledger(header.ledger_id)):
            return None
        facts = await self._look_at_ledger(header.ledger_id, access.looks)
        return judge(self._rights(access), header, facts)

    def _bound(self, access: Access) -> _Known | None:
        """Return the principal whose rights the client has; None if it may do everything."""
        return None if self._is_open and access.is_by_secret else access.known

    def _rights(self, access: Access) -> Rights:
        known = self._bound(access)
        return ALL_RIGHTS if known is None else known.rights or NO_RIGHTS

    def _knows_ledger(self, ledger_id: int) -> bool:
        try:
            return self._knows(ledger_id)
        except StorageError:
            return False  # Perhaps the storage can read its index again when it gets the request.

    def may_remember(self, header: Header) -> bool:
        """Whether later requests of the same kind about the ledger need no look at its key here."""
        return not must_exist(right_for(header.kind, header.flags)) or self._knows_ledger(header.ledger_id)

    # --- the store ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _question(self, looks: Looks) -> AsyncIterator[None]:
        """Wait for a place to ask the store, and limit how long the body waits for the answer.

        Raises:
            _Away: The store does not answer in time, or a question of the last ``_AWAY_S`` got no answer.
        """
        self._check_away()
        async with AsyncExitStack() as places:
            for limiter in looks():
                await places.enter_async_context(limiter)
            self._check_away()
            with self._patience():
                yield

    def _check_away(self) -> None:
        if trio.current_time() < self._away_until:
            raise _Away

    @contextmanager
    def _patience(self) -> Iterator[None]:
        try:
            with trio.fail_after(limits.ACCESS_LOOK_S):
                yield
        except _NO_ANSWER as cause:
            if not self._is_away:
                logger.warning(
                    "the rights of clients cannot be read from the metadata store: %s",
                    str(cause) or "no answer",
                )
            self._is_away = True
            self._away_until = trio.current_time() + _AWAY_S
            raise _Away from cause
        if self._is_away:
            logger.info("the rights of clients can be read from the metadata store again")
        self._is_away = False

    async def _look_at_grants(self, known: _Known, looks: Looks) -> None:
        """Read the grants of a principal. If the store does not answer, the last known grants stay valid."""
        try:
            async with self._question(looks):
                await self._store.sync()
                await self._read_grants(known)
        except _Away:
            if known.rights is None:
                raise

    async def _read_grants(self, known: _Known) -> None:
        begun = trio.current_time()
        try:
            rights = rights_of(known.principal, await read_grants(self._store, known.principal))
        except MetadataCorrupt as damage:
            if known.rights != NO_RIGHTS:
                logger.error("%s has no rights here: %s", known.principal, damage)
            rights = NO_RIGHTS
        if begun < known.looked_at:
            return  # A read that began later was answered before this one, and may know a later change.
        known.looked_at, known.is_stale = begun, False
        if rights == known.rights:
            return
        is_first = known.rights is None
        known.rights = rights
        if not is_first:
            logger.info("the rights of %s have changed", known.principal)
            for access in self._accesses:
                if access.known is known:
                    access.forget()

    async def _look_at_ledger(self, ledger_id: int, looks: Looks) -> LedgerFacts | None:
        """Return the facts of a ledger; None if the store certainly has no such ledger."""
        facts = self._facts.get(ledger_id)
        if facts is None:
            async with self._question(looks):
                facts = self._facts.get(ledger_id)  # Another connection may have asked meanwhile.
                if facts is None:
                    facts = await self._read_facts(ledger_id)
        if facts is not None:
            self._facts[ledger_id] = facts
            self._facts.move_to_end(ledger_id)
            if len(self._facts) > limits.ACCESS_LEDGERS:
                self._facts.popitem(last=False)
        return facts

    async def _read_facts(self, ledger_id: int) -> LedgerFacts | None:
        path = ledger_path(ledger_id)
        node = await self._store.get(path)
        if node is None:
            await self._store.sync()
            node = await self._store.get(path)
            if node is None:
                return None
        try:
            metadata = LedgerMetadata.decode_untrusted(node.value, ledger_id)
        except MetadataCorrupt as damage:
            raise _Away from damage
        return LedgerFacts(metadata.key, log_of_labels(metadata.custom))


class Access:
    """Decides which requests one connection may send. ``AccessControl.open`` makes it."""

    __slots__ = ("_allowed", "_control", "_on_change", "_turn", "is_by_secret", "known", "looks", "writable")

    def __init__(
        self,
        control: AccessControl,
        known: _Known | None,
        looks: Looks,
        on_change: Callable[[], object],
        *,
        is_by_secret: bool,
    ) -> None:
        self.known = known
        self.is_by_secret = is_by_secret
        self.looks = looks
        """Returns the limiters that bound this client's questions to the store."""
        self.writable: set[int] = set()
        """The ledgers to which the client may make adds of every kind. The hot path looks here before it
        calls ``check``."""
        self._control = control
        self._allowed: set[tuple[Right, int]] = set()
        self._on_change = on_change
        self._turn = trio.Lock()
        """Held during a decision. Otherwise a connection that asks for many ledgers at once could take all
        places of its party."""

    @property
    def who(self) -> str:
        """The principal, for messages."""
        return "anybody" if self.known is None else str(self.known.principal)

    def forget(self) -> None:
        """Decide everything again, because the rights have changed."""
        self.writable.clear()
        self._allowed.clear()
        self._on_change()

    def is_allowed(self, header: Header) -> bool:
        """Whether the request is known to be allowed. If this returns False, ``check`` decides."""
        return (right_for(header.kind, header.flags), header.ledger_id) in self._allowed

    async def check(self, header: Header) -> Status | None:
        """Return the status that refuses a request; None if it is allowed.

        - PERMISSION_DENIED: the principal does not have the right.
        - UNAUTHORIZED: the request does not carry the ledger's key.
        - NO_SUCH_LEDGER: an add or a fence of a ledger that does not exist.
        - NOT_READY: the ledger does not exist, or the metadata store does not answer.
        """
        if self.is_allowed(header):
            return None
        async with self._turn:
            status = await self._control.decide(self, header)
        if status is None and self._control.may_remember(header):
            self._remember(header)
        return status

    def _remember(self, header: Header) -> None:
        right = right_for(header.kind, header.flags)
        if len(self._allowed) >= limits.ACCESS_CONNECTION_LEDGERS:
            self.writable.clear()
            self._allowed.clear()
        self._allowed.add((right, header.ledger_id))
        if right is Right.WRITE:
            self.writable.add(header.ledger_id)

    def close(self) -> None:
        """End the access, because the connection has ended."""
        self._control.close(self)
