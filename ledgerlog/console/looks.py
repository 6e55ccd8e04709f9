"""The state that all looks at a cluster share: the client, the board of bookies, happenings and troubles."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import attrs
import trio

from ledgerlog.console.core.bookies import BookieBoard
from ledgerlog.console.core.picture import Happenings, Row
from ledgerlog.console.core.repairs import WaitingCount
from ledgerlog.errors import LedgerLogError, MetadataUnavailable
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import CONSOLE_GATHER_S
from ledgerlog.meta.settle import follow

__all__ = ["STORE", "Looking"]

STORE = "the metadata store"

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_READS_AT_ONCE = 8


@attrs.define(eq=False)
class Looking:
    """The state that all looks of one console share."""

    client: LedgerClient
    now_s: Callable[[], float]
    """The wall clock, in seconds since 1970."""
    happenings: Happenings = attrs.Factory(Happenings)
    bookies: BookieBoard = attrs.field(init=False)
    waiting: WaitingCount = attrs.field(init=False)
    limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(_READS_AT_ONCE))
    """The limit on looks at the metadata store that run at the same time."""
    _troubles: dict[str, tuple[str, str]] = attrs.Factory(dict)
    _changed: trio.Event = attrs.Factory(trio.Event)

    def __attrs_post_init__(self) -> None:
        self.bookies = BookieBoard(self.happenings)
        self.waiting = WaitingCount(self.happenings)

    # --- changes ----------------------------------------------------------------------------------

    def tell(self) -> None:
        """Wake all watchers: a board may have changed."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    @property
    def change(self) -> trio.Event:
        """The event that the next ``tell`` sets."""
        return self._changed

    def trouble(self, key: str, what: str, why: str | None) -> None:
        """Note why ``what`` cannot be looked at now. ``why`` is None: it can be looked at again."""
        if why is None:
            if self._troubles.pop(key, None) is not None:
                self.tell()
        elif self._troubles.get(key) != (what, why):
            self._troubles[key] = what, why
            self.tell()

    def forget(self, key: str) -> None:
        """Forget a trouble, because no watcher needs that look."""
        self.trouble(key, "", None)

    def trouble_rows(self) -> dict[str, Row]:
        """Return the present troubles, each one once."""
        return {what: {"what": what, "why": why} for what, why in self._troubles.values()}

    # --- looking ----------------------------------------------------------------------------------

    async def follow(
        self, path: str, look: Callable[[], Awaitable[object]], *, gather_s: float = CONSOLE_GATHER_S
    ) -> NoReturn:
        """Look now, and again after each change at or below a path of the metadata store, until cancelled.

        All changes within ``gather_s`` seconds after a look cost only one more look. If the store is out of
        reach or a record is damaged, the page shows that as a trouble.
        """

        async def look_and_tell() -> None:
            try:
                async with self.limiter:
                    await look()
            except LedgerLogError as why:
                what = STORE if isinstance(why, MetadataUnavailable) else path
                self.trouble(path, what, f"{type(why).__name__}: {why}")
                raise
            self.trouble(path, "", None)
            self.tell()
            await trio.sleep(gather_s)

        try:
            await follow(
                self.client.store,
                path,
                look_and_tell,
                what=f"the console cannot look at {path}",
                log=logger,
                pause_s=_RETRY_S,
            )
        finally:
            self.forget(path)
