"""Look at ledgers: at one ledger, or at a page of the list, newest first."""

from __future__ import annotations

import trio

from ledgerlog.console.core.ledgers import fragment_rows, ledger_row
from ledgerlog.console.core.picture import Picture, Row
from ledgerlog.console.looks import Looking
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import CONSOLE_LISTING_S, CONSOLE_PAGE_ROWS
from ledgerlog.model.layout import LEDGERS, ledger_path
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt

__all__ = ["LedgerFollower", "LedgerListFollower"]


class LedgerFollower:
    """Follows the metadata of one ledger. ``run`` runs until cancelled."""

    def __init__(self, looking: Looking, ledger_id: int) -> None:
        self._looking = looking
        self._ledger_id = ledger_id
        self._registry = LedgerRegistry(looking.client.store, looking.client.environment)
        self._ledger: LedgerMetadata | None = None
        self._why: str | None = None
        self._was_there = False

    def row(self) -> Row:
        """Return the row of the ledger in a list."""
        return ledger_row(self._ledger_id, self._ledger, self._why, self._looking.bookies.is_there)

    def picture(self) -> Picture:
        """Return the page of the ledger."""
        fragments = (
            {} if self._ledger is None else fragment_rows(self._ledger, self._looking.bookies.state_of)
        )
        return {"ledger": {str(self._ledger_id): self.row()}, "fragments": fragments}

    async def run(self) -> None:
        """Follow the ledger."""
        await self._looking.follow(ledger_path(self._ledger_id), self._look)

    async def _look(self) -> None:
        try:
            found = await self._registry.find(self._ledger_id)
        except MetadataCorrupt as damage:
            self._ledger, self._why = None, str(damage)
            raise
        if found is None:
            self._ledger = None
            self._why = "it was deleted" if self._was_there else "there is no such ledger"
        else:
            self._was_there = True
            self._ledger, self._why = found[0], None


class LedgerListFollower:
    """Follows a page of the list of ledgers. ``run`` runs until cancelled."""

    def __init__(self, looking: Looking, *, below: int | None) -> None:
        """``below``: the page has ledgers below this id. None: the page has the newest ledgers."""
        self._looking = looking
        self._below = below
        self._registry = LedgerRegistry(looking.client.store, looking.client.environment)
        self._followers: dict[int, tuple[LedgerFollower, trio.CancelScope]] = {}
        self._next: int | None = None

    def picture(self) -> Picture:
        """Return the page."""
        rows = {str(ledger_id): each.row() for ledger_id, (each, _) in self._followers.items()}
        return {"ledgers": rows, "ledger_list": {"": {"next": self._next}}}

    async def run(self) -> None:
        """Follow the ids, and the ledgers of the page."""
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                found = await self._registry.newest(CONSOLE_PAGE_ROWS + 1, below=self._below)
                page = found[:CONSOLE_PAGE_ROWS]
                self._next = page[-1] if len(found) > len(page) else None
                for ledger_id in self._followers.keys() - {*page}:
                    self._followers.pop(ledger_id)[1].cancel()
                for ledger_id in page:
                    if ledger_id not in self._followers:
                        scope = trio.CancelScope()
                        follower = LedgerFollower(self._looking, ledger_id)
                        self._followers[ledger_id] = follower, scope
                        nursery.start_soon(self._run, follower, scope)

            await self._looking.follow(LEDGERS, look, gather_s=CONSOLE_LISTING_S)

    @staticmethod
    async def _run(follower: LedgerFollower, scope: trio.CancelScope) -> None:
        with scope:
            await follower.run()
