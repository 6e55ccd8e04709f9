"""Being found: the ephemeral node that says where a serving bookie is.

A bookie is registered below ``bookies/writable``, or below ``bookies/read-only`` while it takes no ordinary
adds. The node belongs to the metadata session of this process, so it goes when the process is gone. This
module keeps it there while the bookie serves, and knows nothing else of the bookie.

**Level-triggered.** ``run`` looks at what is there, makes it what it should be, and waits until something may
have changed: the session, the two nodes (they are watched), or the wanted state. It looks again after
each, so a lost session, a node that an operator deleted, and a write whose answer was lost are one case
and not three.

**A node that is not ours** names another life of this bookie id. It may be the process before us, which was
killed and whose session is not over yet. Where it says so itself it is replaced at once, in one transaction
at the version that was read: it carries our *place*, the lock file that we hold and on this boot of this
machine, so whoever held that lock before us is dead. (The old session, when it ends, takes only its own
nodes along.) Without that proof a node is never replaced: the process before us ran before a reboot, or on
another machine, and ``register`` waits until the store has given its session up. Or it is another living
process that serves a *copy* of the directory. The copy has the same cookie and a lock of its own, so
neither can tell, and two bookies under one identity would answer "no such entry" for what only the other
one has. Whose session has not ended in the time in which dead ones do is taken to live, and ``register``
refuses. Hence it comes before the first client is served.

The same can be met later, where our session was lost for long enough for another process to come in. ``run``
then says so once, and looks again every few seconds; it does not take the place back, because two that
did would push each other out for ever. A node with our very value is ours if our session is a new one, or if
the answer of a write was lost; then it is replaced in one transaction: deleted at the version that was
read, and created again, so that it hangs on the session that we have now.

**Moving** between the two lists is one transaction as well, so nobody sees the bookie in both or, unless it
looks twice, in neither.

**Trouble.** While the store is unreachable the bookie goes on serving: its clients know it, and whether its
session survives is for the store to say. Attempts go on with growing pauses; one log line tells when
it begins and one when it is over.
"""

from __future__ import annotations

import logging

import trio

from ledgerlog import limits
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    CookieMismatch,
    LedgerLogError,
    MetadataUnavailable,
)
from ledgerlog.meta.settle import go_on
from ledgerlog.meta.store import (
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
from ledgerlog.model.ledger import MetadataCorrupt

logger = logging.getLogger(__name__)

_RACES_MAX = 8
"""Attempts in a row that may meet a change between the look and the write."""

_FORMER_LIFE_S = limits.SESSION_TIMEOUT_S + 5.0
"""By then the session of a process that is gone has ended, and its node with it: ZooKeeper counts in ticks,
of two seconds by default, and a new leader gives each session some of its time again."""

_BACK_OFF_S = 5.0
"""Between two looks at a place that somebody else has taken."""


class Registration:
    """One bookie's registration: ``register``, then ``run`` while it serves, then ``unregister``."""

    def __init__(self, store: MetadataStore, info: BookieInfo) -> None:
        self._store = store
        self._info = info
        self._value = info.encode()
        self._writable = layout.writable_path(info.bookie_id)
        self._read_only = layout.read_only_path(info.bookie_id)
        self._is_read_only = False
        self._session: MetadataSession | None = None
        """The session that our node belongs to."""
        self._node: tuple[str, int] | None = None
        """Path and version of our node, None where we have none for certain."""
        self._is_in_doubt = False
        """A write of ours may have made a node that ``_node`` does not name."""
        self._changed = trio.Event()

    @property
    def is_read_only(self) -> bool:
        """Which list the bookie wants to be in. Setting it moves the node soon."""
        return self._is_read_only

    @is_read_only.setter
    def is_read_only(self, value: bool) -> None:
        if value != self._is_read_only:
            self._is_read_only = value
            self._changed.set()

    @property
    def _path(self) -> str:
        return self._read_only if self._is_read_only else self._writable

    @property
    def _other_path(self) -> str:
        return self._writable if self._is_read_only else self._read_only

    async def register(self) -> None:
        """Make the node, before anything is served. What another life of this bookie id left is waited out.

        CookieMismatch: it is still there after the time in which dead sessions end, so another process serves
        under this identity. MetadataUnavailable and SessionExpired: the node may not be there."""
        deadline = trio.current_time() + _FORMER_LIFE_S
        is_told = False
        async with (
            self._store.watch(self._writable) as writable,
            self._store.watch(self._read_only) as read_only,
        ):
            while (stranger := await self._keep()) is not None:
                if trio.current_time() >= deadline:
                    raise CookieMismatch(
                        f"bookie {self._info.bookie_id} is registered at {self._address_of(stranger)} by "
                        f"another process, which lives: its session did not end within {_FORMER_LIFE_S:g} s. "
                        "Two bookies must not serve one identity: if that one serves a copy of this "
                        "directory (or this is the copy), keep the one that its clients wrote to, and start "
                        "the other under a new --id on an empty directory"
                    )
                if not is_told:
                    logger.info(
                        "bookie=%s: it is still registered at %s; waiting for that session to end",
                        self._info.bookie_id,
                        self._address_of(stranger),
                    )
                is_told = True
                self._changed = trio.Event()
                with trio.move_on_at(deadline):
                    await self._wait_for_a_change(self._store.session, writable, read_only)

    def _address_of(self, node: Versioned) -> str:
        try:
            return BookieInfo.decode_untrusted(node.value, self._info.bookie_id).address
        except MetadataCorrupt as damage:
            return f"an address that cannot be read ({damage})"

    def _is_stranger(self, path: str, node: Versioned, session: MetadataSession) -> bool:
        """Whether a node at one of our paths is not ours, of this session or another, nor of a life before
        this one that is surely over."""
        if self._is_former_life(node):
            return False
        if node.value != self._value:
            return True
        if session is self._session:
            return (path, node.version) != self._node and not self._is_in_doubt
        return self._session is None and not self._is_in_doubt

    def _is_former_life(self, node: Versioned) -> bool:
        """Whether it was written from the place that this process holds the lock of: by nobody who lives."""
        try:
            info = BookieInfo.decode_untrusted(node.value, self._info.bookie_id)
        except MetadataCorrupt:
            return False
        return info.place != "" and info.place == self._info.place

    async def _keep(self) -> Versioned | None:
        """Make the node what it should be, once; or the node of somebody else, and then nothing was changed.

        MetadataUnavailable and SessionExpired: the node may not be what it should be."""
        for _ in range(_RACES_MAX):
            session, path, other_path = self._store.session, self._path, self._other_path
            node, other = await self._store.get(path), await self._store.get(other_path)
            for place, found in ((path, node), (other_path, other)):
                if found is not None and self._is_stranger(place, found, session):
                    return found
            is_kept = node is not None and session is self._session and (path, node.version) == self._node
            operations: list[Operation] = []
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
                continue  # It changed between the look and the write: look again.
            self._is_in_doubt = False
            if not is_kept:
                self._session, self._node = session, (path, versions[-1])
                logger.info(
                    "bookie=%s: registered as %s at %s",
                    self._info.bookie_id,
                    "read-only" if path == self._read_only else "writable",
                    self._info.address,
                )
            return None
        raise MetadataUnavailable(
            f"the registration of bookie {self._info.bookie_id} changed {_RACES_MAX} times while it was "
            "written; is another process writing it?"
        )

    async def run(self) -> None:
        """Keep the node there, for ever."""
        backoff = Backoff(limits.RECONNECT_DELAY_MIN_S, limits.RECONNECT_DELAY_MAX_S)
        what = f"bookie={self._info.bookie_id}: its registration cannot be kept up"
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
                    logger.info("bookie=%s: its registration is kept up again", self._info.bookie_id)
                backoff.reset()
                if stranger is not None:
                    if not is_displaced:
                        logger.error(
                            "bookie=%s: another process has registered under this id, at %s; it is left "
                            "there. Stop the one that serves a copy of the other's directory",
                            self._info.bookie_id,
                            self._address_of(stranger),
                        )
                    is_displaced = True
                    await trio.sleep(_BACK_OFF_S)
                    continue
                if is_displaced:
                    logger.info("bookie=%s: it has its registration again", self._info.bookie_id)
                is_displaced = False
                await self._wait_for_a_change(session, writable, read_only)

    async def _wait_for_a_change(self, session: MetadataSession, *watches: Watch) -> None:
        changed = self._changed
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

    async def unregister(self) -> None:
        """Remove the node, wherever it is. Not while ``run`` goes on; the caller brings the deadline. Where
        the store cannot be reached this is logged only: the node goes with the session."""
        if self._node is None and not self._is_in_doubt:
            return
        try:
            for path in (self._writable, self._read_only):
                # An interrupted write may have made a node that we do not know of.
                node = await self._store.get(path)
                if node is not None and not self._is_stranger(path, node, self._store.session):
                    await self._store.delete(path, version=node.version)
            self._node, self._is_in_doubt = None, False
        except (NodeMissing, VersionConflict):
            return
        except LedgerLogError as trouble:
            logger.warning(
                "bookie=%s: its registration could not be removed and goes with the session: %s",
                self._info.bookie_id,
                trouble,
            )
