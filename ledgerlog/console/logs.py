"""Look at logs: at one log, or at a page of the list.

The console follows a log by watches: of the log's record, of its ledgers that are not closed, and of the
election that has the log's name. The log's own page also needs a watch of the log's cursors. Only the bookies
know where the log's last record is. The console asks them every ``_TAIL_S`` seconds (``_TAIL_IN_LIST_S`` for
a list), and uses the metadata that the watches keep up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import trio

from ledgerlog.console.core.logs import LogBoard
from ledgerlog.console.core.picture import Picture, Row
from ledgerlog.console.looks import Looking
from ledgerlog.election.election import Election
from ledgerlog.errors import LedgerLogError, LedgerNotFound, MetadataUnavailable
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.reader import WatchedReader
from ledgerlog.limits import CONSOLE_GATHER_S, CONSOLE_PAGE_ROWS
from ledgerlog.log.cursors import read_cursors
from ledgerlog.log.positions import find_tail
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.layout import (
    LOG_NAMES,
    cursors_path,
    election_path,
    ledger_path,
    log_name_of,
    log_name_path,
    log_record_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.segments import LogSegment

__all__ = ["LogFollower", "LogListFollower"]

_TAIL_S = 1.0
_TAIL_IN_LIST_S = 4.0
_STEP_S = CONSOLE_GATHER_S / 4
"""The pause between two looks at the metadata that a takeover changes: short enough to see its steps."""
_DELETED_SHOWN = 10


class LogFollower:
    """Follows one log. ``run`` runs until cancelled."""

    def __init__(self, looking: Looking, name: str, *, is_alone: bool, segments_from: int = 0) -> None:
        """Create it.

        Args:
            looking: The console.
            name: The name of the log.
            is_alone: Whether the page is about this log. If so, follow its cursors too.
            segments_from: How many of the newest segments the table leaves out.
        """
        self.board = LogBoard(name, looking.happenings, segments_from=segments_from)
        self._looking = looking
        self._name = name
        self._is_alone = is_alone
        self._registry = LogRegistry(looking.client.store, looking.client.environment)
        self._held = _HeldReaders(looking)
        self._ledger_scopes: dict[int, trio.CancelScope] = {}
        self._version = -1

    def picture(self) -> Picture:
        """Return the page of the log."""
        return self.board.sections()

    async def run(self) -> None:
        """Follow the log, even if it is deleted and made again."""
        lost: int | None = None
        while True:
            lost = await self._wait_for_it(lost)
            await self._follow(lost)

    async def _wait_for_it(self, lost: int | None) -> int:
        """Wait until there is a log of this name, and return its incarnation.

        The record of the incarnation ``lost`` was just not found. If the name still leads to it, the log is
        damaged: wait until the name changes.
        """
        found: list[int] = []
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                incarnation = await self._registry.find(self._name)
                if incarnation is None:
                    self.board.on_missing(self._looking.now_s())
                elif incarnation == lost:
                    damage = await self._registry.why_missing(self._name, incarnation)
                    self.board.on_damage(str(damage))
                else:
                    found.append(incarnation)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(self._looking.follow, log_name_path(self._name), look)
        return found[0]

    async def _follow(self, incarnation: int) -> None:
        """Follow one incarnation until its record is gone."""
        looking, board = self._looking, self.board
        async with trio.open_nursery() as nursery:

            async def look_at_record() -> None:
                known = None if board.metadata is None else (board.metadata, self._version)
                try:
                    metadata, self._version = await self._registry.read(incarnation, fresh=False, known=known)
                except MetadataCorrupt as damage:
                    board.on_damage(str(damage))
                    raise
                if metadata is None:
                    board.on_missing(looking.now_s())
                    looking.tell()
                    nursery.cancel_scope.cancel()
                    return
                board.on_record(metadata, looking.now_s())
                wanted = {segment.ledger_id for segment in metadata.open_segments}
                for ledger_id in self._ledger_scopes.keys() - wanted:
                    self._ledger_scopes.pop(ledger_id).cancel()
                    self._held.drop(ledger_id)
                for ledger_id in wanted - self._ledger_scopes.keys():
                    scope = self._ledger_scopes[ledger_id] = trio.CancelScope()
                    nursery.start_soon(self._follow_ledger, ledger_id, scope)

            self._version = -1
            board.metadata = None
            record = partial(looking.follow, log_record_path(incarnation), look_at_record, gather_s=_STEP_S)
            nursery.start_soon(record)
            nursery.start_soon(self._follow_leader)
            nursery.start_soon(self._follow_tail)
            if self._is_alone:
                nursery.start_soon(self._follow_cursors, incarnation)
        self._ledger_scopes.clear()
        self._held = _HeldReaders(looking)

    async def _follow_ledger(self, ledger_id: int, scope: trio.CancelScope) -> None:
        async def look() -> None:
            found = await self._held.look(ledger_id)
            self.board.on_ledger(ledger_id, None if found is None else found.metadata, self._looking.now_s())

        with scope:
            await self._looking.follow(ledger_path(ledger_id), look, gather_s=_STEP_S)

    async def _follow_leader(self) -> None:
        election = Election(self._looking.client, self._name)

        async def look() -> None:
            leader = await election.leader()
            found = None if leader is None else (leader.candidate, leader.term, leader.is_registered)
            self.board.on_leader(found, self._looking.now_s())

        await self._looking.follow(election_path(self._name), look)

    async def _follow_cursors(self, incarnation: int) -> None:
        async def look() -> None:
            found = await read_cursors(self._looking.client, incarnation)
            self.board.on_cursors({cursor.name: cursor for cursor in found})

        await self._looking.follow(cursors_path(incarnation), look)

    async def _follow_tail(self) -> None:
        while True:
            metadata = self.board.metadata
            if metadata is not None and metadata.open_segments and self._held.has_all(metadata.open_segments):
                try:
                    tail = await find_tail(self._held, metadata)
                except MetadataUnavailable:
                    pass  # The other looks show that.
                except LedgerLogError as why:
                    if self.board.metadata is metadata:
                        self.board.on_tail_unknown(f"its end is not known now: {why}")
                else:
                    # The record may have changed meanwhile. The log's end is then another one.
                    if self.board.metadata is metadata:
                        self.board.on_tail(tail.offset, self._looking.now_s())
                self._looking.tell()
                await trio.sleep(_TAIL_S if self._is_alone else _TAIL_IN_LIST_S)
            else:
                await trio.sleep(_TAIL_S)


class _HeldReaders:
    """Readers of ledgers whose metadata are followed (``log.positions.OpensLedgers``)."""

    def __init__(self, looking: Looking) -> None:
        self._client = looking.client
        self._registry = LedgerRegistry(looking.client.store, looking.client.environment)
        self._readers: dict[int, WatchedReader] = {}

    def has_all(self, segments: Sequence[LogSegment]) -> bool:
        """Whether each of these segments has a reader."""
        return all(segment.ledger_id in self._readers for segment in segments)

    async def look(self, ledger_id: int) -> WatchedReader | None:
        """Read the metadata of a ledger into its reader, and return the reader. None: the ledger is gone."""
        found = await self._registry.find(ledger_id)
        if found is None:
            self.drop(ledger_id)
            return None
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = self._readers[ledger_id] = WatchedReader(
                found[0], registry=self._registry, pool=self._client.pool, store=self._client.store
            )
        reader.metadata = found[0]
        return reader

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger."""
        self._readers.pop(ledger_id, None)

    async def open(self, ledger_id: int) -> WatchedReader:
        """Return the reader of a ledger that is followed."""
        await trio.lowlevel.checkpoint()
        reader = self._readers.get(ledger_id)
        if reader is None:
            raise LedgerNotFound(ledger_id)
        return reader


class LogListFollower:
    """Follows a page of the list of logs. ``run`` runs until cancelled."""

    def __init__(self, looking: Looking, *, prefix: str, after: str) -> None:
        """Create it.

        Args:
            looking: The console.
            prefix: The names begin with this.
            after: The names come after this one.
        """
        self._looking = looking
        self._prefix = prefix
        self._after = after
        self._followers: dict[str, tuple[LogFollower, trio.CancelScope]] = {}
        self._summary: Row = {"logs": None, "matching": None, "next": None}

    def picture(self) -> Picture:
        """Return the page."""
        rows: Mapping[str, Row] = {name: each.board.row() for name, (each, _) in self._followers.items()}
        return {"logs": rows, "log_list": {"": self._summary}}

    async def run(self) -> None:
        """Follow the names, and the logs of the page."""
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                components = await self._looking.client.store.children(LOG_NAMES)
                names = sorted(map(log_name_of, components))
                matching = [name for name in names if name.startswith(self._prefix)]
                rest = [name for name in matching if name > self._after]
                page = rest[:CONSOLE_PAGE_ROWS]
                self._summary = {
                    "logs": len(names),
                    "matching": len(matching),
                    "next": page[-1] if len(rest) > len(page) else None,
                }
                there = {*rest}
                deleted = [name for name in self._followers if name not in there]
                for name in [*deleted[:-_DELETED_SHOWN], *self._followers.keys() & there - {*page}]:
                    self._followers.pop(name)[1].cancel()
                for name in page:
                    if name not in self._followers:
                        scope = trio.CancelScope()
                        follower = LogFollower(self._looking, name, is_alone=False)
                        self._followers[name] = follower, scope
                        nursery.start_soon(self._run, follower, scope)

            await self._looking.follow(LOG_NAMES, look)

    @staticmethod
    async def _run(follower: LogFollower, scope: trio.CancelScope) -> None:
        with scope:
            await follower.run()
