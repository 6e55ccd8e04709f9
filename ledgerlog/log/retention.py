"""Giving records up: truncation and retention, on demand and by the leader.

The order is always the same. The record of the log is changed first, by compare-and-set: the new first
offset, and a list without the ledgers that hold only older records. Then these are deleted. A crash in
between leaves ledgers that no list names (``log.sweep``). Who may not do it fails at the compare-and-set: a
leader who was deposed looks at the epoch in the record that he is about to replace.

Cursors are read after the record that is replaced. One that begins to pin meanwhile has written the record
anew (``log.cursors``), so that the compare-and-set fails and all is looked at again.
"""

from __future__ import annotations

from ledgerlog.errors import LostLeadership, TruncationPinned
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.core.retention import first_pin, let_go
from ledgerlog.log.cursors import read_cursors
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.takeover import delete_ledgers, left_to_a_sweep
from ledgerlog.model.log import LogMetadata

__all__ = ["apply_retention", "truncate"]


async def truncate(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    before_offset: int,
    end_offset: int,
    *,
    ignore_pins: bool = False,
    epoch: int | None = None,
) -> None:
    """Give up the records before an offset that is not beyond ``end_offset``, the confirmed end. LogNotFound,
    TruncationPinned; with ``epoch`` LostLeadership where that is not the log's any more."""
    dropped: set[int] = set()

    async def shorten(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
        if epoch is not None and metadata.epoch != epoch:
            raise LostLeadership(name, metadata.epoch)
        if before_offset <= metadata.first_offset:
            return None
        pin = None if ignore_pins else first_pin(await read_cursors(client, incarnation))
        if pin is not None and pin.offset < before_offset:
            raise TruncationPinned(name, pin.name, pin.offset)
        shortened, gone = metadata.truncated(before_offset, end_offset, token)
        dropped.update(gone)
        return shortened

    await registry.change(name, incarnation, shorten)
    await _delete_unlisted(client, registry, incarnation, dropped)


async def apply_retention(
    client: LedgerClient,
    registry: LogRegistry,
    name: str,
    incarnation: int,
    *,
    epoch: int | None = None,
    durable_bytes: int = 0,
) -> int:
    """Drop what the log's retention lets go and no cursor pins; how many records. With ``epoch`` only while
    that is the log's. ``durable_bytes``: of all records that were ever appended, as far as they are known to
    be durable; what is in the ledgers that are counted is known without. LogNotFound."""
    dropped: set[int] = set()
    gone_records = 0

    async def shorten(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
        nonlocal gone_records
        gone_records = 0
        if epoch is not None and metadata.epoch != epoch:
            return None
        open_bytes = max(0, durable_bytes - metadata.counted_bytes)
        now_ms = client.environment.now_ms()
        if not let_go(metadata, None, now_ms, open_bytes=open_bytes):
            return None  # Whatever cursors pin.
        pin = first_pin(await read_cursors(client, incarnation))
        count = let_go(metadata, pin, now_ms, open_bytes=open_bytes)
        if not count:
            return None
        end = metadata.segments[count - 1].end_offset
        assert end is not None, "what retention lets go is counted"
        # Whole ledgers go, and nothing of the next one.
        shortened, gone = metadata.truncated(max(end, metadata.first_offset), metadata.counted_end, token)
        assert len(gone) == count, "what the list loses is what retention lets go"
        gone_records = shortened.first_offset - metadata.first_offset
        dropped.update(gone)
        return shortened

    await registry.change(name, incarnation, shorten)
    await _delete_unlisted(client, registry, incarnation, dropped)
    return gone_records


async def _delete_unlisted(
    client: LedgerClient, registry: LogRegistry, incarnation: int, dropped: set[int]
) -> None:
    """Delete the ledgers that an attempt to shorten the list left out, and that surely are not in it."""
    if dropped:
        with left_to_a_sweep("what a shorter list left out"):
            metadata, _ = await registry.read(incarnation)
            listed = set() if metadata is None else {segment.ledger_id for segment in metadata.segments}
            await delete_ledgers(client.ledgers, sorted(dropped - listed))
