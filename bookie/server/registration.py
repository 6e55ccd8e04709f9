"""Being found: the ephemeral node that says where a serving bookie is.

A bookie is registered below ``bookies/writable``, or below ``bookies/read-only`` while it takes no ordinary
adds. The node belongs to the metadata session of this process, so it goes when the process is gone. This
module keeps it there while the bookie serves, and knows nothing else of the bookie.

**Level-triggered.** ``run`` looks at what is there, makes it what it should be, and waits until something may
have changed: the session, the two nodes (they are watched), or the wanted state. It looks again after
each, so a lost session, a node that an operator deleted, and a write whose answer was lost are one case
and not three.

**A node of an earlier process.** After a crash the registration of the process before us may still be there,
and would vanish with *its* session, minutes after we started to count on it. It is replaced in one
transaction: deleted at the version that was read, and created as ours. It cannot be that of another living
process with this id, because that one would own the directory's lock and the cookie names one
directory for an id.

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
from ledgerlog.errors import LedgerLogError, MetadataUnavailable, SessionExpired
from ledgerlog.meta.store import (
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NodeMissing,
    Operation,
    Session,
    SessionState,
    VersionConflict,
    Watch,
)
from ledgerlog.model import layout
from ledgerlog.model.bookie import BookieInfo

logger = logging.getLogger(__name__)

_RACES_MAX = 8
"""Attempts in a row that may meet a change between the look and the write."""


class Registration:
    """One bookie's registration: ``register``, then ``run`` while it serves, then ``unregister``."""

    def __init__(self, store: MetadataStore, info: BookieInfo) -> None:
        self._store = store
        self._info = info
        self._value = info.encode()
        self._writable = layout.writable_path(info.bookie_id)
        self._read_only = layout.read_only_path(info.bookie_id)
        self._is_read_only = False
        self._session: Session | None = None
        """The session that our node belongs to."""
        self._node: tuple[str, int] | None = None
        """Path and version of our node, None where we have none for certain."""
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
        """Make the node what it should be, once. MetadataUnavailable and SessionExpired: it may not be.

        Where a node is there that is not known to be ours it is replaced; see the module."""
        for _ in range(_RACES_MAX):
            session, path, other_path = self._store.session, self._path, self._other_path
            node, other = await self._store.get(path), await self._store.get(other_path)
            is_ours = (
                node is not None
                and session is self._session
                and (path, node.version) == self._node
                and node.value == self._value
            )
            operations: list[Operation] = []
            if other is not None:
                operations.append(Delete(other_path, other.version))
            if not is_ours:
                if node is not None:
                    operations.append(Delete(path, node.version))
                operations.append(Create(path, self._value, ephemeral=True))
            if not operations:
                return
            if not is_ours:
                self._node = None
            try:
                versions = await self._store.transaction(operations)
            except (NodeExists, NodeMissing, VersionConflict):
                continue  # It changed between the look and the write: look again.
            if not is_ours:
                self._session, self._node = session, (path, versions[-1])
                logger.info(
                    "bookie=%s: registered as %s at %s",
                    self._info.bookie_id,
                    "read-only" if path == self._read_only else "writable",
                    self._info.address,
                )
            return
        raise MetadataUnavailable(
            f"the registration of bookie {self._info.bookie_id} changed {_RACES_MAX} times while it was "
            "written; is another process writing it?"
        )

    async def run(self) -> None:
        """Keep the node there, for ever."""
        delay_s = limits.RECONNECT_DELAY_MIN_S
        is_troubled = False
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
                try:
                    await self.register()
                except (MetadataUnavailable, SessionExpired) as trouble:
                    if not is_troubled:
                        logger.warning(
                            "bookie=%s: its registration cannot be kept up for now: %s",
                            self._info.bookie_id,
                            trouble,
                        )
                    is_troubled = True
                    await trio.sleep(delay_s)
                    delay_s = min(2 * delay_s, limits.RECONNECT_DELAY_MAX_S)
                    continue
                if is_troubled:
                    logger.info("bookie=%s: its registration is kept up again", self._info.bookie_id)
                is_troubled, delay_s = False, limits.RECONNECT_DELAY_MIN_S
                await self._wait_for_a_change(session, writable, read_only)

    async def _wait_for_a_change(self, session: Session, *watches: Watch) -> None:
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
        self._node = None
        try:
            for path in (self._writable, self._read_only):
                # An interrupted write may have made a node that we do not know of; nobody else makes one
                # with our instance while we hold the directory.
                node = await self._store.get(path)
                if node is not None and node.value == self._value:
                    await self._store.delete(path, version=node.version)
        except (NodeMissing, VersionConflict):
            return
        except LedgerLogError as trouble:
            logger.warning(
                "bookie=%s: its registration could not be removed and goes with the session: %s",
                self._info.bookie_id,
                trouble,
            )
