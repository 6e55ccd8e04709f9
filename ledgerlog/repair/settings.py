"""The settings that one process of auto-recovery uses, even if the stored settings are damaged.

If the stored settings can be read, they apply. If they are damaged (the record does not decode, or a later
version of ledgerlog wrote it), repair must continue, because another bookie may be lost at any time. But
repair must also not surprise the operator. So the process uses the first of these that exists:

    the last settings that this process has read    rate, delays and pause stay as they were
    the settings that the auditor last read         the auditor notes them in its record
    the defaults, but paused                        an operator may have paused repair

An operator pauses repair before work on racks or networks and ends the pause afterwards. So if repair may be
paused, the process assumes that it is. Only workers pause: the auditor, for example, continues making tasks.
The damage is logged once, with the path of the node, and ``repair status`` shows it.
"""

from __future__ import annotations

import logging

from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.queue import RepairQueue

__all__ = ["SettingsInForce"]

logger = logging.getLogger(__name__)


class SettingsInForce:
    """Reads the settings of repair; see the module docstring.

    ``name`` is the process's name in log messages.
    """

    def __init__(self, queue: RepairQueue, *, name: str) -> None:
        self.damage: str | None = None
        """Why the last read of the stored settings failed; None if it succeeded."""
        self._queue = queue
        self._name = name
        self._last: RepairSettings | None = None

    async def read(self) -> RepairSettings:
        """Return the settings to use now.

        Raises:
            MetadataUnavailable: The metadata store could not be reached.
        """
        try:
            self._last = await self._queue.settings()
        except MetadataCorrupt as damage:
            is_news, self.damage = str(damage) != self.damage, str(damage)
            if self._last is None:
                self._last = await self._noted()
            if is_news:
                logger.error("%s: %s. It uses %s", self._name, damage, self._last)
        else:
            if self.damage is not None:
                logger.warning("%s: the settings of repair can be read again", self._name)
            self.damage = None
        return self._last

    async def _noted(self) -> RepairSettings:
        try:
            record = await self._queue.audit_record()
        except MetadataCorrupt:
            record = None
        if record is None or record.settings is None:
            return RepairSettings(paused=True)
        return record.settings
