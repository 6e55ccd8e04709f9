"""Cursors in the store: named places in a log, moved by compare-and-set.

A cursor is a node of its own below its log's incarnation, so moving one writes some hundred bytes and
disturbs nobody. The one thing that needs more is a pin. Truncation reads the cursors and then writes the
log's record, and a cursor that began to pin in between would find its records gone. So whatever lowers what
is pinned (a cursor made with ``pins``, or moved back) writes the record again, unchanged but for its token,
in one transaction with the cursor: of two that meet, one sees its version changed and looks again. Moving
forward, which is what cursors do, needs none of it: a truncation that saw the older place only keeps more.

A write whose answer was lost is settled by its token.

A cursor that is deleted leaves an empty node, until its log is deleted. A node that is made anew may show a
version that it had before, and whoever still remembers the old cursor would move the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import attrs

from ledgerlog.errors import CursorConflict, InvalidArgument, LogNotFound, Truncated
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.settle import CONFLICTS, remove, settle
from ledgerlog.meta.store import Create, Operation, Set
from ledgerlog.model.cursor import CursorState, check_cursor_name, check_cursor_properties
from ledgerlog.model.layout import cursor_name_of, cursor_path, cursors_path, log_record_path

__all__ = ["Cursor", "delete_cursors", "read_cursors"]

_DELETED = b""


class Cursor:
    """One cursor of a log, there or not. From ``Log.cursor``; it holds no state and no connection.

    Every method may raise MetadataUnavailable; after MetadataOutcomeUnknown the cursor may have moved."""

    def __init__(
        self, client: LedgerClient, registry: LogRegistry, log_name: str, incarnation: int, name: str
    ) -> None:
        self._client = client
        self._registry = registry
        self._log_name = log_name
        self._incarnation = incarnation
        self._name = check_cursor_name(name)
        self._path = cursor_path(incarnation, name)

    def __repr__(self) -> str:
        return f"<Cursor {self._name!r} of log {self._log_name!r}>"

    @property
    def name(self) -> str:
        return self._name

    async def get(self) -> CursorState | None:
        """Where the cursor is now; None where there is none."""
        await self._client.store.sync()
        state, _ = await self._read()
        return state

    async def move(
        self,
        offset: int,
        *,
        expected: CursorState | None,
        properties: Mapping[str, str] | None = None,
        pins: bool | None = None,
    ) -> CursorState:
        """Move the cursor from ``expected``, a state that was read or returned before (None: it does not
        exist yet, make it); its new state. ``properties`` and ``pins`` stay as they are unless given.

        CursorConflict: it is not at ``expected`` any more, and was not moved by this call, or was and has
        been moved again. Truncated: it begins to pin, or is moved back, where records are gone. LogNotFound,
        InvalidArgument."""
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= LEDGER_ID_MAX:
            raise InvalidArgument(f"{offset!r} is not an offset")
        state = CursorState(
            name=self._name,
            offset=offset,
            pins=pins if pins is not None else (expected is not None and expected.pins),
            properties=check_cursor_properties(
                properties if properties is not None else expected.properties if expected is not None else {}
            ),
            updated_ms=self._client.environment.now_ms(),
            token=self._client.environment.new_token(),
        )
        is_refused = False

        async def write(is_unsure: bool) -> CursorState:
            nonlocal is_refused
            if is_unsure or is_refused:
                found, _ = await self._read()
                if found is not None and found.token == state.token:
                    return found
                if _version(found) != _version(expected):
                    raise self._conflict()
            try:
                *_, version = await self._client.store.transaction(await self._operations(state, expected))
            except CONFLICTS:
                is_refused = True  # Perhaps it is the log's record only that has changed.
                raise
            return attrs.evolve(state, version=version)

        return await settle(self._client.store, write, what=f"a move of {self._words}")

    async def set(
        self, offset: int, *, properties: Mapping[str, str] | None = None, pins: bool | None = None
    ) -> CursorState:
        """Move the cursor wherever it is, or make it; its new state. Of several who do so at once, one is
        last. Errors as for ``move``, CursorConflict aside."""
        while True:
            with contextlib.suppress(CursorConflict):
                return await self.move(offset, expected=await self.get(), properties=properties, pins=pins)

    async def delete(self, *, expected: CursorState | None = None) -> None:
        """Delete the cursor, with what it pins. One that is not there is deleted already. CursorConflict
        where it is not at ``expected``, if that is given."""

        async def write(is_unsure: bool) -> None:
            if not is_unsure:
                await self._client.store.sync()
            found, version = await self._read()
            if found is None and (expected is None or is_unsure):
                return
            if expected is not None and _version(found) != expected.version:
                raise self._conflict()
            await self._client.store.set(self._path, _DELETED, version=version)

        await settle(self._client.store, write, what=f"the deletion of {self._words}")

    @property
    def _words(self) -> str:
        return f"cursor {self._name!r} of log {self._log_name!r}"

    def _conflict(self) -> CursorConflict:
        return CursorConflict(f"{self._words} is not where it was expected to be")

    async def _read(self) -> tuple[CursorState | None, int]:
        """The cursor, None where there is none, and the version of its node, -1 where there is none."""
        node = await self._client.store.get(self._path)
        if node is None or node.value == _DELETED:
            return None, -1 if node is None else node.version
        return CursorState.decode_untrusted(node.value, self._name, node.version), node.version

    async def _operations(self, state: CursorState, expected: CursorState | None) -> list[Operation]:
        lowers = state.pins and (expected is None or not expected.pins or state.offset < expected.offset)
        if expected is not None and not lowers:
            return [Set(self._path, state.encode(), expected.version)]
        metadata, version = await self._registry.read(self._incarnation)
        if metadata is None:
            raise LogNotFound(self._log_name)
        cursor: Operation
        if expected is not None:
            cursor = Set(self._path, state.encode(), expected.version)
        else:
            found, node_version = await self._read()
            # One that is there makes the creation fail, as it should.
            if found is not None or node_version < 0:
                cursor = Create(self._path, state.encode())
            else:
                cursor = Set(self._path, state.encode(), node_version)
        if not lowers:
            return [cursor]
        if state.offset < metadata.first_offset:
            raise Truncated(self._log_name, metadata.first_offset)
        touched = metadata.touched(self._client.environment.new_token())
        return [Set(log_record_path(self._incarnation), touched.encode(), version), cursor]


def _version(state: CursorState | None) -> int | None:
    return None if state is None else state.version


async def read_cursors(client: LedgerClient, incarnation: int) -> list[CursorState]:
    """All cursors of a log, by name. At least as new as what was read of the log before."""
    found = []
    for component in await client.store.children(cursors_path(incarnation)):
        name = cursor_name_of(component)
        node = await client.store.get(cursor_path(incarnation, name))
        if node is not None and node.value != _DELETED:
            found.append(CursorState.decode_untrusted(node.value, name, node.version))
    return found


async def delete_cursors(client: LedgerClient, incarnation: int) -> int:
    """Delete the cursors of a log that is gone; how many."""
    names = await client.store.children(cursors_path(incarnation))
    for name in names:
        await remove(client.store, cursor_path(incarnation, cursor_name_of(name)))
    return len(names)
