"""The message for a ledger that bookies no longer have because it is archived."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError, LedgerNotFound

__all__ = ["LedgerArchived", "telling_archives"]


class LedgerArchived(LedgerLogError):
    """No bookie has the ledger; its log reads the records from an archive file."""


@asynccontextmanager
async def telling_archives(cluster: Cluster, ledger_id: int) -> AsyncIterator[None]:
    """In the body, raise LedgerArchived instead of LedgerNotFound if the ledger is archived."""
    try:
        yield
    except LedgerNotFound as missing:
        record = await ArchiveRegistry(cluster.store).of_ledger(ledger_id)
        if record is None:
            raise
        raise LedgerArchived(
            f"ledger {ledger_id} is archived: bookies no longer have it, and log {record.log!r} reads its "
            f"records from {record.file}"
        ) from missing
