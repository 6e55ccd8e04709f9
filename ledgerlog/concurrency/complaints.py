"""A limit on the log lines that unknown clients cause, so that a flood of them does not fill the disk.

If a connection sends nonsense, log a line about it: the cause is a bug, a wrong port or an attack. But
any peer that can open connections can cause any number of these lines. So all these lines share a limit:
``LINES`` lines in ``PERIOD_S`` seconds. Further lines are left out. The next logged line says how many.
"""

from __future__ import annotations

import logging

import trio

LINES = 20
PERIOD_S = 10.0
_TEXT_CHARS_MAX = 400


class Complaints:
    """Logs to one logger, with a bound on the number of lines."""

    __slots__ = ("_left", "_logger", "_period_end", "_silenced", "count")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._period_end = -float("inf")
        self._left = 0
        self._silenced = 0
        self.count = 0
        """How many complaints there were, logged or left out."""

    def tell(self, text: str) -> None:
        """Log ``text`` as a warning, unless there were too many lines recently.

        A text of more than 400 characters is cut, because the client may have chosen parts of the text.
        """
        self.count += 1
        now = trio.current_time()
        if now >= self._period_end:
            self._period_end = now + PERIOD_S
            self._left = LINES
        if not self._left:
            self._silenced += 1
            return
        self._left -= 1
        if len(text) > _TEXT_CHARS_MAX:
            text = text[:_TEXT_CHARS_MAX] + "..."
        if self._silenced:
            text = f"{text} (and {self._silenced} more such lines were left out)"
            self._silenced = 0
        self._logger.warning("%s", text)
