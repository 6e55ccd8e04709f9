"""A session with ZooKeeper as its owner sees it (``store.MetadataSession``).

The session is CONNECTED only while its lease lasts (the time until which the server surely keeps it, see
``link``). A process that was stopped therefore sees SUSPENDED when it first reads ``state``, before any of
kazoo's threads has run. The store's task that watches the lease wakes the tasks that wait on the session.
"""

from __future__ import annotations

import logging

from ledgerlog.meta.bases import SessionBase
from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.clock import NS, boot_clock_ns
from ledgerlog.meta.zookeeper.link import KazooLink

logger = logging.getLogger(__name__)


class ZooKeeperSession(SessionBase):
    """One session. The store makes an object for each session that the ensemble gives it.

    Args:
        number: ZooKeeper's number of the session.
        link: The link that opened the session.
    """

    def __init__(self, number: int, link: KazooLink) -> None:
        super().__init__()
        self.number = number
        self._link = link

    def __repr__(self) -> str:
        return f"<ZooKeeperSession {self.session_id} {self.state.value}>"

    @property
    def session_id(self) -> str:
        """The session's number as ZooKeeper's own tools print it."""
        return f"0x{self.number & (2**64 - 1):x}"

    @property
    def lease_left_s(self) -> float:
        """How many seconds the ensemble will surely keep the session; may be negative."""
        return (self._link.lease_until_ns(self.number) - boot_clock_ns()) / NS

    @property
    def state(self) -> SessionState:
        """The present state. It is SUSPENDED as soon as the lease has run out."""
        if self._state is SessionState.CONNECTED and self.lease_left_s <= 0:
            return SessionState.SUSPENDED
        return self._state

    def become(self, state: SessionState) -> None:
        """Change the state. A session that is LOST stays LOST."""
        if self._state is SessionState.LOST:
            return
        if self._state is not state:
            logger.info("metadata session=%s state=%s", self.session_id, state.value)
        # Also if the state is the same: somebody may have begun to wait while the lease had run out.
        self._change(state)
