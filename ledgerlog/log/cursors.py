"""Cursors in the metadata store: named places in a log, moved by compare-and-set.

Each cursor has its own node below its log's incarnation. So a move writes a few hundred bytes and does not
touch the log's record.

**Pins.** A cursor that *pins* keeps the records from its offset on. For a pin, a write of the cursor alone
is not enough. Truncation reads the cursors and then writes the log's record. If a cursor began to pin in
between, truncation would remove the pinned records. So a write that lowers the pinned offset also writes the
log's record again, unchanged except for its token, in one transaction with the cursor. Such a write creates a
cursor with ``pins``, switches a pin on, or moves a pinned cursor back. If a truncation runs at the same time,
one of the two finds that the record's version has changed, and starts again. Cursors usually move forward,
and a forward move needs none of this: if a truncation has read the older offset, it only keeps more records.

If the answer to a write was lost, the token in the cursor shows whether the write took effect.

**Deletion.** Deleting a cursor leaves an empty node until its log is deleted. Otherwise the node of a new
cursor could have a version that the old node had before. Then a client that remembers the old cursor could
move the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import attrs

from ledgerlog.errors import CursorConflict, MetadataOutcomeUnknown, Truncated
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.settle import CONFLICTS, remove, settle
from ledgerlog.meta.store import Create, Operation, Set
from ledgerlog.model.cursor import CursorState, check_cursor_name, check_cursor_properties
from ledgerlog.model.ids import check_offset
from ledgerlog.model.layout import cursor_name_of, cursor_path, cursors_path, log_record_path

__all__ = ["Cursor", "delete_cursors", "read_cursors"]

_DELETED = b""


class Cursor:
    """A named, durable place in a log. ``Log.cursor`` returns it, whether or not the cursor exists yet.

    Use it to remember how far you have processed a log. A cursor that pins holds back truncation and
    retention: the records from its offset on stay. The object holds no state and no connection.

    Every method may raise MetadataUnavailable: the cursor was not changed. Methods that write may also raise
    MetadataOutcomeUnknown: the cursor may or may not have changed.

    Example:
        ```python
        cursor = log.cursor("billing")
        state = await cursor.get()
        async with log.read(state.offset if state else 0) as records:
            async for record in records:
                handle(record)
                state = await cursor.move(record.offset + 1, expected=state)
        ```
    """

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
        """The name of the cursor."""
        return self._name

    async def get(self) -> CursorState | None:
        """Return the state of the cursor now; None if it does not exist."""
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
        """Move the cursor, if it is still at ``expected``.

        Args:
            offset: The new offset: the next record that you have not processed.
            expected: The state that ``get``, ``move`` or ``set`` returned last. None: the cursor does not
                exist yet, and the call creates it.
            properties: The new properties, together at most ``limits.CURSOR_PROPERTIES_BYTES_MAX`` bytes in
                UTF-8. None: keep the properties of ``expected``.
            pins: Whether the cursor keeps the records from ``offset`` on. None: as in ``expected``; a new
                cursor does not pin.

        Returns:
            The new state. Pass it as ``expected`` to the next move.

        Raises:
            CursorConflict: The cursor is no longer at ``expected``. This call did not move it, or another
                client moved it after this call had done so.
            Truncated: The cursor would begin to pin, or move its pin back, at records that are truncated. It
                was not moved.
            LogNotFound: The log no longer exists.
            InvalidArgument: ``offset`` is not an offset, or the properties are malformed. The cursor was not
                moved.

        Cancelling: the cursor may or may not have moved.
        """
        check_offset(offset)
        state = CursorState(
            name=self._name,
            offset=offset,
            pins=pins if pins is not None else (expected is not None and expected.pins),
            properties=check_cursor_properties(
                properties if properties is not None else expected.properties if expected is not None else {}
            ),
            updated_ms=self._client.environment.now_ms(),
            token=self._client.environment.new_token(),
            unknown=expected.unknown if expected is not None else b"",
        )
        is_refused = False
        tried_at: int | None = None  # The last attempt would replace this version of the node.

        async def write(is_unsure: bool) -> CursorState:
            nonlocal is_refused, tried_at
            if is_unsure or is_refused:
                found, version = await self._read()
                if found is not None and found.token == state.token:
                    return found
                if _version(found) != _version(expected) or (is_unsure and version != tried_at):
                    raise await self._conflict_or_gone()
            try:
                operations = await self._operations(state, expected)
                last = operations[-1]
                tried_at = last.version if isinstance(last, Set) else -1
                *_, version = await self._client.store.transaction(operations)
            except CONFLICTS:
                is_refused = True  # Perhaps only the log's record has changed.
                raise
            return attrs.evolve(state, version=version)

        moved = await settle(self._client.store, write, what=f"a move of {self._words}")
        self._client.counts.on_cursor(self._log_name, self._name, moved.offset)
        return moved

    async def set(
        self, offset: int, *, properties: Mapping[str, str] | None = None, pins: bool | None = None
    ) -> CursorState:
        """Move the cursor, wherever it is now; create it if it does not exist.

        If several clients do this at the same time, the last one wins.

        Args:
            offset: The new offset.
            properties: The new properties. None: keep the current ones.
            pins: Whether the cursor keeps the records from ``offset`` on. None: keep the current setting.

        Returns:
            The new state.

        Raises:
            Truncated: The cursor would begin to pin, or move its pin back, at records that are truncated. It
                was not moved.
            LogNotFound: The log no longer exists.
            InvalidArgument: ``offset`` is not an offset, or the properties are malformed. The cursor was not
                moved.

        Cancelling: the cursor may or may not have moved.
        """
        while True:
            with contextlib.suppress(CursorConflict):
                return await self.move(offset, expected=await self.get(), properties=properties, pins=pins)

    async def delete(self, *, expected: CursorState | None = None) -> None:
        """Delete the cursor. It no longer pins records.

        If the cursor does not exist and you give no ``expected``, nothing happens.

        Args:
            expected: Delete the cursor only if it is still in this state. None: delete it in any case.

        Raises:
            CursorConflict: The cursor is not at ``expected``, or does not exist; this call did not delete it.
            MetadataOutcomeUnknown: The cursor may or may not have been deleted. If there is a cursor now, the
                answer was lost, and other clients have written the cursor since. There are two cases: one of
                them created it again after this call had deleted it, or they moved it at least twice and this
                call did nothing.

        Cancelling: the cursor may or may not be deleted.
        """

        tried_at = -1

        async def write(is_unsure: bool) -> bool:
            nonlocal tried_at
            if not is_unsure:
                await self._client.store.sync()
            found, version = await self._read()
            if found is None and (expected is None or is_unsure):
                return True
            if is_unsure and version > tried_at + 1:
                return False
            if expected is not None and _version(found) != expected.version:
                raise self._conflict()
            tried_at = version
            await self._client.store.set(self._path, _DELETED, version=version)
            return True

        if not await settle(self._client.store, write, what=f"the deletion of {self._words}"):
            raise MetadataOutcomeUnknown(
                f"{self._words} may have been deleted or not: the answer was lost, and another process has "
                f"written the cursor since"
            )
        self._client.counts.forget_cursor(self._log_name, self._name)

    @property
    def _words(self) -> str:
        return f"cursor {self._name!r} of log {self._log_name!r}"

    def _conflict(self) -> CursorConflict:
        return CursorConflict(f"{self._words} is not at the expected offset")

    async def _conflict_or_gone(self) -> CursorConflict:
        """Return the conflict of a cursor whose log exists; raise an error as ``existing`` if it does not."""
        await self._registry.existing(self._log_name, self._incarnation)
        return self._conflict()

    async def _read(self) -> tuple[CursorState | None, int]:
        """Return the cursor and the version of its node. None if there is no cursor; -1 if there is no
        node."""
        node = await self._client.store.get(self._path)
        if node is None or node.value == _DELETED:
            return None, -1 if node is None else node.version
        return CursorState.decode_untrusted(node.value, self._name, node.version), node.version

    async def _operations(self, state: CursorState, expected: CursorState | None) -> list[Operation]:
        lowers = state.pins and (expected is None or not expected.pins or state.offset < expected.offset)
        if expected is not None and not lowers:
            return [Set(self._path, state.encode(), expected.version)]
        metadata, version = await self._registry.existing(self._log_name, self._incarnation)
        cursor: Operation
        if expected is not None:
            cursor = Set(self._path, state.encode(), expected.version)
        else:
            found, node_version = await self._read()
            # If the cursor exists, the creation fails, as it should.
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
    """Return all cursors of a log, by name. They are at least as new as any record of the log that you read
    before this call."""
    found = []
    for component in await client.store.children(cursors_path(incarnation)):
        name = cursor_name_of(component)
        node = await client.store.get(cursor_path(incarnation, name))
        if node is not None and node.value != _DELETED:
            found.append(CursorState.decode_untrusted(node.value, name, node.version))
    return found


async def delete_cursors(client: LedgerClient, incarnation: int) -> int:
    """Delete the cursors of a log that is gone; return how many."""
    names = await client.store.children(cursors_path(incarnation))
    for name in names:
        await remove(client.store, cursor_path(incarnation, cursor_name_of(name)))
    return len(names)
