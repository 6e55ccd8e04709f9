"""Log lines that an unknown client can cause: each has its reason, and no flood of them fills a disk.

If a connection sends nonsense, that is worth a line: it is a bug, a wrong port or an attack. But anybody who
can open connections can cause such lines, in any number. So they share a bound: ``LINES`` of them in
``PERIOD_S`` seconds. The next line that is logged says how many were left out.
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

        A text of more than 400 characters is cut, because parts of it may come from the client.
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
