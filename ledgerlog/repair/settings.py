"""The settings that one process of auto-recovery goes by, whatever is stored.

What can be read holds. What is damaged (a record that does not decode, or that a later version wrote) must
not stop repair, for a second loss does not wait; and nobody may be surprised by what is done meanwhile:

    this process has read some    it goes by the last of them: rate, delays and pause stay as they were
    it has just begun             by those that the auditor has read last, which it notes in its record
    nobody has noted any          by the defaults, and paused: that nobody has paused repair is not known

A pause is an order of an operator, who gave it before work on racks or networks, and takes it back himself;
so where nobody can tell, it is taken to stand. What is not a worker's, as making tasks, goes on in any case.
What is damaged is told once, with its place, and in ``repair status``.
"""

from __future__ import annotations

import logging

from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.queue import Board

__all__ = ["SettingsInForce"]

logger = logging.getLogger(__name__)


class SettingsInForce:
    """See above. ``name`` is the process's, for its words."""

    def __init__(self, board: Board, *, name: str) -> None:
        self.damage: str | None = None
        """Why what is stored could not be read the last time; None where it could."""
        self._board = board
        self._name = name
        self._last: RepairSettings | None = None

    async def read(self) -> RepairSettings:
        """What holds now. MetadataUnavailable."""
        try:
            self._last = await self._board.settings()
        except MetadataCorrupt as damage:
            is_news, self.damage = str(damage) != self.damage, str(damage)
            if self._last is None:
                self._last = await self._noted()
            if is_news:
                logger.error("%s: %s. It goes by %s", self._name, damage, self._last)
        else:
            if self.damage is not None:
                logger.warning("%s: the settings of repair can be read again", self._name)
            self.damage = None
        return self._last

    async def _noted(self) -> RepairSettings:
        try:
            record = await self._board.audit_record()
        except MetadataCorrupt:
            record = None
        if record is None or record.settings is None:
            return RepairSettings(paused=True)
        return record.settings
