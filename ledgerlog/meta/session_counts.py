"""Counts of the sessions of a process with its metadata store, for monitoring."""

from __future__ import annotations

import attrs
import trio

from ledgerlog.meta.store import MetadataStore, SessionState

_LOOK_S = 0.2

__all__ = ["SessionCounts"]


@attrs.define(eq=False)
class SessionCounts:
    """Counts of the sessions' events since ``follow`` began."""

    state: SessionState = SessionState.CONNECTED
    """The state of the present session."""
    lost: int = 0
    """Sessions that ended. Their registrations and locks ended with them."""
    suspensions: int = 0
    """How often contact was lost for a while, or for good."""

    is_over: bool = False
    """Whether ``follow`` has ended, because the client was left."""

    async def follow(self, store: MetadataStore) -> None:
        """Count until cancelled."""
        session = store.session
        try:
            while True:
                self._on_state(session.state)
                if self.state is not SessionState.LOST:
                    self._on_state(await session.wait_not(self.state))
                elif store.session is session:
                    await trio.sleep(_LOOK_S)  # The store is about to begin another session.
                else:
                    session = store.session
        finally:
            self.is_over = True

    def _on_state(self, state: SessionState) -> None:
        if state is self.state:
            return
        self.suspensions += self.state is SessionState.CONNECTED
        self.lost += state is SessionState.LOST
        self.state = state
