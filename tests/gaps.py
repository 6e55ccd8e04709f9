"""A log with a gap, without the loss that makes one: for those who only read it."""

from __future__ import annotations

import attrs

from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.segments import LogSegment

LOST = 49


async def make_gap(client: LedgerClient, incarnation: int) -> None:
    """Behind all records of a log that nobody writes, 49 are lost. The next writer goes on behind them."""
    registry = LogRegistry(client.store, client.environment)
    record, version = await registry.read(incarnation)
    assert record is not None
    assert not record.open_segments, "nobody writes it"
    async with await client.ledgers.create(replication=record.replication) as empty:
        pass
    behind = LogSegment(
        empty.ledger_id, record.epoch, record.counted_end + LOST, 0, 0, None, None, lost_before=LOST
    )
    changed = attrs.evolve(record, segments=(*record.segments, behind), token=client.environment.new_token())
    await registry.write(changed, version)
