"""The registration of a bookie: an ephemeral node that tells clients the address of the bookie while it
serves.

A bookie is registered below ``bookies/writable``, or below ``bookies/read-only`` while it takes no ordinary
adds. The node belongs to the metadata session of this process, so it disappears when the process ends. This
module keeps the node there while the bookie serves, and knows nothing else about the bookie.

**Level-triggered.** ``run`` reads the nodes, corrects them, and waits until something may have changed: the
session, one of the two nodes (both are watched), or the wanted state. Then it starts again. So the same code
handles a lost session, a node that an operator deleted, and a write whose answer was lost.

**A node of another process** under this bookie id may belong to one of these:

- *The previous process*, which was killed, and whose session has not ended yet. The node contains the
  bookie's *place*: the lock file, the machine and its present boot. If the place equals ours, the process
  that wrote the node is dead, because we hold the lock that it held. Then one transaction replaces the node
  at once, at the version that was read. (When the old session ends, the store deletes only the nodes of that
  session.) Without this proof, ``register`` never replaces a node. For example, if the previous process ran
  before a reboot or on another machine, ``register`` waits until the store has ended its session.
- *A living process that serves a copy of the directory.* The copy has the same cookie but its own lock file,
  so the two processes cannot notice each other. Two bookies under one identity would each answer "no such
  entry" for entries that only the other one has. If the other session lasts longer than the session of a dead
  process can, the other process counts as alive, and ``register`` refuses. So call ``register``, and wait for
  it, before you serve the first client.

``run`` can find a node of another process too, if our session was lost for so long that another process could
register. ``run`` logs this once and reads again every few seconds. It does not replace the node, because two
processes that did so would push each other out forever.

**Other data under this id.** While our session was lost, an operator may have decommissioned this bookie and
started another one under its id, on another directory. If that one has stopped, it has no node. We lack the
entries that it acknowledged, and our answer "no such entry" could end a ledger before them. So each
transaction that makes a node checks the bookie's cookie (``claim``), and if the cookie is not ours, the
bookie stops. (Unless the store was restored: then it may have an older cookie.)

If a node has exactly our value, it is our own node: it belongs to our earlier session, or the answer to a
write was lost. Then one transaction deletes the node at the version that was read and creates a new node,
which belongs to our present session.

**Moving** between the two lists is also one transaction, so at every moment the bookie is in exactly one
list. (If a client reads one list before the move and the other list after it, it may see the bookie in both
lists, or in none.)

**Trouble.** If the store cannot be reached, the bookie continues serving: its clients know its address, and
only the store decides whether its session survives. The bookie tries again, with growing pauses. It logs one
line when the trouble begins and one when the trouble ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ledgerlog import limits
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    CookieMismatch,
    LedgerLogError,
    MetadataUnavailable,
)
from ledgerlog.event_log import BOOKIE_DISPLACED, BOOKIE_REGISTERED, tell
from ledgerlog.meta.settle import go_on
from ledgerlog.meta.store import (
    Check,
    Create,
    Delete,
    MetadataSession,
    MetadataStore,
    NodeExists,
    NodeMissing,
    Operation,
    SessionState,
    VersionConflict,
    Versioned,
    Watch,
)
from ledgerlog.model import layout
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import MetadataCorrupt

logger = logging.getLogger(__name__)

_RACES_MAX = 8
"""How many attempts in a row may fail because a node changed between the read and the write."""

_FORMER_LIFE_S = limits.SESSION_TIMEOUT_S + 5.0
"""After this time, the session of a dead process has ended, and its node is gone. The time is longer than the
session timeout, because ZooKeeper counts in ticks (two seconds by default), and a new ZooKeeper leader gives
each session some more time."""

_BACK_OFF_S = 5.0
"""The pause between two reads while another process is registered under this id."""


async def wait_unregistered(store: MetadataStore, bookie_id: BookieId, place: str) -> None:
    """Wait until no other process is registered under the id. Call it before you change anything that another
    process reads at its next start.

    Args:
        store: The cluster's metadata store.
        bookie_id: The id.
        place: Our place (``BookieInfo.place``). A node with the same place belongs to a dead process.

    Raises:
        CookieMismatch: The node of another process is still there, although the session of a dead process
            would have ended. So the other process is alive and serves under this identity.
        MetadataUnavailable: The store cannot be reached.
        SessionExpired: The session ended.
    """

    async def find_other() -> Versioned | None:
        for path in (layout.writable_path(bookie_id), layout.read_only_path(bookie_id)):
            node = await store.get(path)
            if node is not None and not _is_former_life(node, bookie_id, place):
                return node
        return None

    await _wait_free(store, bookie_id, find_other)


async def _wait_free(
    store: MetadataStore, bookie_id: BookieId, find_other: Callable[[], Awaitable[Versioned | None]]
) -> None:
    deadline = trio.current_time() + _FORMER_LIFE_S
    is_told = False
    async with (
        store.watch(layout.writable_path(bookie_id)) as writable,
        store.watch(layout.read_only_path(bookie_id)) as read_only,
    ):
        while (other := await find_other()) is not None:
            address = _address_of(other, bookie_id)
            if trio.current_time() >= deadline:
                raise CookieMismatch(
                    f"bookie {bookie_id} is registered at {address} by another process, which is alive: its "
                    f"session did not end within {_FORMER_LIFE_S:g} s. Two bookies must not serve one "
                    f"identity: if one directory is a copy of the other, keep the one that clients wrote "
                    f"to, and start the other bookie with a new --id on an empty directory"
                )
            if not is_told:
                logger.info(
                    "bookie=%s: it is still registered at %s; waiting for that session to end",
                    bookie_id,
                    address,
                )
            is_told = True
            with trio.move_on_at(deadline):
                await _wait_for_a_change(trio.Event(), store.session, writable, read_only)


def _is_former_life(node: Versioned, bookie_id: BookieId, place: str) -> bool:
    """Whether the node's place is our own. If so, the process that wrote the node held the lock that we hold
    now, so that process is dead (or is this one)."""
    try:
        info = BookieInfo.decode_untrusted(node.value, bookie_id)
    except MetadataCorrupt:
        return False
    return info.place != "" and info.place == place


def _address_of(node: Versioned, bookie_id: BookieId) -> str:
    try:
        return BookieInfo.decode_untrusted(node.value, bookie_id).address
    except MetadataCorrupt as damage:
        return f"an address that cannot be read ({damage})"


async def _wait_for_a_change(changed: trio.Event, session: MetadataSession, *watches: Watch) -> None:
    """Wait until ``changed`` is set, the session is not connected, or one of the nodes has changed."""
    async with trio.open_nursery() as nursery:

        async def session_changes() -> None:
            await session.wait_not(SessionState.CONNECTED)
            changed.set()

        async def node_changes(watch: Watch) -> None:
            await watch.wait()
            changed.set()

        nursery.start_soon(session_changes)
        for watch in watches:
            nursery.start_soon(node_changes, watch)
        await changed.wait()
        nursery.cancel_scope.cancel()


class Registration:
    """One bookie's registration: ``register``, then ``run`` while it serves, then ``unregister``."""

    def __init__(
        self, store: MetadataStore, info: BookieInfo, claim: Callable[[], Awaitable[Check | None]]
    ) -> None:
        """Create the registration.

        Args:
            store: The cluster's metadata store.
            info: What the node says.
            claim: Called before each making of the node. It returns a check for the same transaction, and
                raises CookieMismatch if other data was served under the id since this process started.
        """
        self._store = store
        self._info = info
        self._claim = claim
        self._value = info.encode()
        self._writable = layout.writable_path(info.bookie_id)
        self._read_only = layout.read_only_path(info.bookie_id)
        self._is_read_only = False
        self._session: MetadataSession | None = None
        """The session that our node belongs to."""
        self._node: tuple[str, int] | None = None
        """Path and version of our node; None if no node of ours is known."""
        self._is_in_doubt = False
        """Whether one of our writes may have made a node that ``_node`` does not name."""
        self._changed = trio.Event()

    @property
    def is_read_only(self) -> bool:
        """Whether the bookie wants to be in the read-only list. If you change it, ``run`` moves the node
        soon."""
        return self._is_read_only

    @is_read_only.setter
    def is_read_only(self, value: bool) -> None:
        if value != self._is_read_only:
            self._is_read_only = value
            self._changed.set()

    @property
    def is_registered(self) -> bool:
        """Whether our node is in the store, as far as this process knows. It is, if the session that made the
        node is alive."""
        session = self._store.session
        return self._node is not None and session is self._session and session.state is SessionState.CONNECTED

    @property
    def _path(self) -> str:
        return self._read_only if self._is_read_only else self._writable

    @property
    def _other_path(self) -> str:
        return self._writable if self._is_read_only else self._read_only

    async def register(self) -> None:
        """Make the node, before the first client is served. If the node of an earlier process is still there,
        wait until the session of that process has ended.

        Raises:
            CookieMismatch: The node of another process is still there, although the session of a dead process
                would have ended. So the other process is alive and serves under this identity. Or as for
                ``claim``.
            MetadataUnavailable: The store cannot be reached, or other processes keep changing the node. Our
                node may exist or not.
            SessionExpired: The session ended. Our node may exist or not.
        """
        await _wait_free(self._store, self._info.bookie_id, self._keep)

    def _is_stranger(self, path: str, node: Versioned, session: MetadataSession) -> bool:
        """Whether a node at one of our paths belongs to another process that may be alive. False if this
        process wrote the node, in this session or an earlier one, or if the process that wrote it is
        certainly dead."""
        if _is_former_life(node, self._info.bookie_id, self._info.place):
            return False
        if node.value != self._value:
            return True
        if session is self._session:
            return (path, node.version) != self._node and not self._is_in_doubt
        return self._session is None and not self._is_in_doubt

    async def _keep(self) -> Versioned | None:
        """Correct the nodes once.

        Returns:
            The node of another process, if there is one. Then nothing was changed.

        Raises:
            CookieMismatch: As for ``claim``. Nothing was changed.
            MetadataUnavailable: The store cannot be reached, or other processes keep changing the nodes.
            SessionExpired: The session ended.

        After an error, the nodes may be corrected or not.
        """
        for _ in range(_RACES_MAX):
            session, path, other_path = self._store.session, self._path, self._other_path
            node, other = await self._store.get(path), await self._store.get(other_path)
            for place, found in ((path, node), (other_path, other)):
                if found is not None and self._is_stranger(place, found, session):
                    return found
            is_kept = node is not None and session is self._session and (path, node.version) == self._node
            operations: list[Operation] = []
            if not is_kept and (claimed := await self._claim()) is not None:
                operations.append(claimed)
            if other is not None:
                operations.append(Delete(other_path, other.version))
            if not is_kept:
                if node is not None:
                    operations.append(Delete(path, node.version))
                operations.append(Create(path, self._value, ephemeral=True))
            if not operations:
                return None
            was_in_doubt, self._is_in_doubt = self._is_in_doubt, True
            try:
                versions = await self._store.transaction(operations)
            except (NodeExists, NodeMissing, VersionConflict):
                self._is_in_doubt = was_in_doubt
                continue  # A node changed between the read and the write: read again.
            self._is_in_doubt = False
            if not is_kept:
                self._session, self._node = session, (path, versions[-1])
                tell(
                    logger,
                    BOOKIE_REGISTERED,
                    "bookie=%(bookie)s: registered as %(state)s at %(address)s",
                    bookie=self._info.bookie_id,
                    state="read-only" if path == self._read_only else "writable",
                    address=self._info.address,
                )
            return None
        raise MetadataUnavailable(
            f"the registration of bookie {self._info.bookie_id} changed {_RACES_MAX} times while it was "
            "written; is another process writing it?"
        )

    async def run(self) -> None:
        """Keep the node correct until you cancel this.

        Raises:
            CookieMismatch: As for ``claim``. The bookie must stop: it lacks what the other one acknowledged.
        """
        backoff = Backoff(limits.RECONNECT_DELAY_MIN_S, limits.RECONNECT_DELAY_MAX_S)
        what = f"bookie={self._info.bookie_id}: its registration cannot be renewed"
        stranger: Versioned | None = None
        is_displaced = False

        async def keep() -> None:
            nonlocal stranger
            stranger = await self._keep()

        async with (
            self._store.watch(self._writable) as writable,
            self._store.watch(self._read_only) as read_only,
        ):
            while True:
                self._changed = trio.Event()
                session = self._store.session
                if session.state is SessionState.SUSPENDED:
                    await session.wait_not(SessionState.SUSPENDED)
                    continue
                if not await go_on(keep, what=what, backoff=backoff, log=logger):
                    continue
                if backoff.is_growing:
                    logger.info("bookie=%s: its registration is renewed again", self._info.bookie_id)
                backoff.reset()
                if stranger is not None:
                    if not is_displaced:
                        tell(
                            logger,
                            BOOKIE_DISPLACED,
                            "bookie=%(bookie)s: another process has registered with this id, at "
                            "%(address)s; its registration stays. Stop the process that serves a copy of "
                            "the other's directory",
                            bookie=self._info.bookie_id,
                            address=_address_of(stranger, self._info.bookie_id),
                        )
                    is_displaced = True
                    await trio.sleep(_BACK_OFF_S)
                    continue
                if is_displaced:
                    logger.info("bookie=%s: it has its registration again", self._info.bookie_id)
                is_displaced = False
                await _wait_for_a_change(self._changed, session, writable, read_only)

    async def unregister(self) -> None:
        """Remove the node from the list that it is in. Call it only after ``run`` has ended, and under a
        deadline. If the store cannot be reached, this only logs the failure, because the node disappears with
        the session."""
        if self._node is None and not self._is_in_doubt:
            return
        try:
            for path in (self._writable, self._read_only):
                # An interrupted write may have made a node that ``_node`` does not name.
                node = await self._store.get(path)
                if node is not None and not self._is_stranger(path, node, self._store.session):
                    await self._store.delete(path, version=node.version)
            self._node, self._is_in_doubt = None, False
        except (NodeMissing, VersionConflict):
            return
        except LedgerLogError as trouble:
            logger.warning(
                "bookie=%s: its registration could not be removed and ends with the session: %s",
                self._info.bookie_id,
                trouble,
            )
