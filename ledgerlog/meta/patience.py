"""Trying a write again whose outcome is unknown, for as long as that makes sense.

Whoever writes by compare-and-set settles a lost answer by reading and, where nothing was written, writes
again. A store that can be read and answers no write, one in a file on a full disk for example, would be asked
like that for ever, and as fast as it can be read.
"""

from __future__ import annotations

import trio

from ledgerlog.errors import MetadataOutcomeUnknown
from ledgerlog.limits import METADATA_TIMEOUT_S

_PAUSE_S = 0.2


class Patience:
    """Of one caller with one change."""

    def __init__(self) -> None:
        self._since: float | None = None

    async def pause(self, unknown: MetadataOutcomeUnknown) -> None:
        """Before the write is settled and tried again: returns at once for the first that was not answered,
        and after a little while for those behind it. Raises ``unknown`` once none has been answered for
        ``limits.METADATA_TIMEOUT_S``."""
        now = trio.current_time()
        if self._since is None:
            self._since = now
            await trio.lowlevel.checkpoint()
            return
        if now - self._since >= METADATA_TIMEOUT_S:
            raise unknown
        await trio.sleep(_PAUSE_S)

    def renew(self) -> None:
        """A write was answered: it was refused, and may be tried again for as long once more."""
        self._since = None
