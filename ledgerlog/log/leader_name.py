"""The name of the process that leads, for processes that do not: many callers may ask at once."""

from __future__ import annotations

import logging
from typing import Protocol

import trio

from ledgerlog.errors import LedgerLogError

__all__ = ["LeaderName", "NamesLeader"]

logger = logging.getLogger(__name__)

_CACHE_S = 0.2
"""For this many seconds, ``look`` returns the last name again."""
_PATIENCE_S = 1.0


class _Candidate(Protocol):
    @property
    def candidate(self) -> str: ...


class NamesLeader(_Candidate, Protocol):
    """An election: ``candidate`` is the name of this process in it."""

    async def leader(self) -> _Candidate | None: ...


class LeaderName:
    """The leader's name, as it was in the metadata store a moment ago.

    Args:
        election: The election.
        log: The name of the log that the leader leads, for the log line.
    """

    def __init__(self, election: NamesLeader, log: str) -> None:
        self._election = election
        self._log = log
        self._looked_at = float("-inf")
        self.known: str | None = None
        """The name at the last look; None if none was known."""

    async def look(self) -> str | None:
        """Return the name of another process that leads; None if none is known. For callers that do not lead.

        The call waits for the metadata store for at most a second.
        """
        if trio.current_time() - self._looked_at < _CACHE_S:
            await trio.lowlevel.checkpoint()
            return self.known
        name: str | None = None
        try:
            with trio.move_on_after(_PATIENCE_S):
                leader = await self._election.leader()
                # This process does not lead. If the election names it, the answer is stale.
                if leader is not None and leader.candidate != self._election.candidate:
                    name = leader.candidate
        except LedgerLogError as cause:
            logger.info("log=%s: its leader is not known: %s", self._log, cause)
        self._looked_at, self.known = trio.current_time(), name
        return name
