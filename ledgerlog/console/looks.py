"""What all looks at a cluster share: the client, the board of bookies, what happened, and what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import attrs
import trio

from ledgerlog.console.core.bookies import BookieBoard
from ledgerlog.console.core.picture import Happenings, Row
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
    """What the looks of one console share."""

    client: LedgerClient
    now_s: Callable[[], float]
    """The wall clock, in seconds since 1970."""
    happenings: Happenings = attrs.Factory(Happenings)
    bookies: BookieBoard = attrs.field(init=False)
    limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(_READS_AT_ONCE))
    """How many looks at the metadata store run at once."""
    _troubles: dict[str, tuple[str, str]] = attrs.Factory(dict)
    _changed: trio.Event = attrs.Factory(trio.Event)

    def __attrs_post_init__(self) -> None:
        self.bookies = BookieBoard(self.happenings)

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
        """Note that something cannot be looked at now, and why; None: it can."""
        if why is None:
            if self._troubles.pop(key, None) is not None:
                self.tell()
        elif self._troubles.get(key) != (what, why):
            self._troubles[key] = what, why
            self.tell()

    def forget(self, key: str) -> None:
        """Forget a trouble: nobody looks there any more."""
        self.trouble(key, "", None)

    def trouble_rows(self) -> dict[str, Row]:
        """Return what is wrong now, each thing once."""
        return {what: {"what": what, "why": why} for what, why in self._troubles.values()}

    # --- looking ----------------------------------------------------------------------------------

    async def follow(
        self, path: str, look: Callable[[], Awaitable[object]], *, gather_s: float = CONSOLE_GATHER_S
    ) -> NoReturn:
        """For ever, look once, and again after changes at or below a path of the metadata store.

        Changes within ``gather_s`` seconds after a look cost one more look together. While the store is away
        or a record is damaged, that is shown as a trouble.
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
                survives=(LedgerLogError,),
            )
        finally:
            self.forget(path)
