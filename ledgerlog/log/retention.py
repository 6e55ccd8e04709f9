"""Giving records up: truncation and retention, on demand and by the leader.

The order is always the same. First a compare-and-set changes the log's record: it writes the new first
offset, and a list without the ledgers that hold only older records. Then these ledgers are deleted. A crash
in between leaves ledgers that no list names (``log.sweep``). A deposed leader must not give up records. So
each leader compares its own epoch with the epoch in the record that it is about to replace.

The cursors are read after the record that is replaced. If a cursor begins to pin meanwhile, that write also
changes the log's record (``log.cursors``). The compare-and-set then fails, and everything is read again.
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
    """Give up the records below an offset.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        before_offset: The first offset to keep, at most ``end_offset``.
        end_offset: The confirmed end of the log.
        ignore_pins: Truncate even if a cursor pins records below ``before_offset``.
        epoch: Truncate only while this is the log's epoch. None: truncate in any case.

    Raises:
        LogNotFound: The log no longer exists.
        TruncationPinned: A cursor pins a record below ``before_offset``. Nothing was given up.
        LostLeadership: The log has another epoch than ``epoch``. Nothing was given up.
        MetadataOutcomeUnknown: The records may or may not be given up.
    """
    dropped: set[int] = set()

    async def shorten(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
        if before_offset <= metadata.first_offset:
            return None
        if epoch is not None and metadata.epoch != epoch:
            raise LostLeadership(name, metadata.epoch)
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
    durable_bytes: int,
) -> int:
    """Drop the ledgers that the log's retention lets go and that no cursor pins.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.
        epoch: Drop ledgers only while this is the log's epoch. None: drop them in any case.
        durable_bytes: Bytes of all records ever appended that are known to be durable.

    Returns:
        How many records were dropped.

    Raises:
        LogNotFound: The log no longer exists.
    """
    dropped: set[int] = set()
    gone_records = 0

    async def shorten(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
        nonlocal gone_records
        gone_records = 0
        if epoch is not None and metadata.epoch != epoch:
            return None
        now_ms = client.environment.now_ms()
        if not let_go(metadata, None, now_ms, durable_bytes=durable_bytes):
            return None  # Even without pins, retention would drop nothing.
        pin = first_pin(await read_cursors(client, incarnation))
        count = let_go(metadata, pin, now_ms, durable_bytes=durable_bytes)
        if not count:
            return None
        end = metadata.segments[count - 1].end_offset
        assert end is not None, "what retention lets go is counted"
        # Only whole ledgers go, and no record of the next one.
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
    """Delete the ledgers that an attempt to shorten the list left out, if they surely are not in the list."""
    if dropped:
        with left_to_a_sweep("a ledger that its log no longer lists"):
            metadata, _ = await registry.read(incarnation)
            if metadata is not None:  # If it was deleted, a sweep finds the ledgers.
                listed = {segment.ledger_id for segment in metadata.segments}
                await delete_ledgers(client.ledgers, sorted(dropped - listed))
