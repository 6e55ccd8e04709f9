"""Save the content of a metadata store in a file, while the cluster works.

**Consistency.** A backup has the state of each log at one instant. If the saved record of a log lists a
ledger, the backup has the ledger too, unless the store had lost it. SQLite gives the state of the whole store
at one instant, by one read transaction. Other stores are read node by node: first the ledgers, then the
records of logs. If a record lists a ledger that was made in between, or was not closed yet when it was
saved, the ledger is read and saved again. (The record counts a closed ledger's records. If the backup had
that ledger as open, readers would stop before its end.) If the ledger is gone, the log was truncated
meanwhile, so the log's record is read again. The counters are read last, so a counter is never below an id in
the backup.

Nodes that end with a session (registrations, locks, candidates) are not saved. The record of an earlier
restore is not saved either.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator

from ledgerlog.errors import IncompatibleVersion, InvalidArgument, MetadataCorrupt, MetadataUnavailable
from ledgerlog.meta.backup_file import BackupWriter
from ledgerlog.meta.store import MetadataStore, Versioned
from ledgerlog.model.layout import (
    LASTING_ROOTS,
    LEDGER_COUNTER,
    LEDGERS,
    LOG_COUNTER,
    LOG_RECORDS,
    is_lasting,
    ledger_id_of,
    ledger_path,
    log_record_of,
)
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata

__all__ = ["COUNTERS", "save", "walk"]

COUNTERS = (LEDGER_COUNTER, LOG_COUNTER)

_READINGS_MAX = 1000
"""How often the record of a log is read at most, if it changes each time while its ledgers are read."""


async def walk(store: MetadataStore, *roots: str) -> AsyncGenerator[tuple[str, Versioned], None]:
    """Yield each lasting node at and below ``roots``, parents first."""
    left = list(reversed(roots))
    while left:
        path = left.pop()
        if not is_lasting(path):
            continue
        node = await store.get(path)
        if node is not None:
            yield path, node
        left.extend(f"{path}/{name}" for name in reversed(await store.children(path)))


async def save(store: MetadataStore, writer: BackupWriter, *, made_ms: int) -> None:
    """Write the content of a store that belongs to a cluster into a backup file.

    Args:
        store: The store.
        writer: The file.
        made_ms: Wall clock, in milliseconds since 1970.

    Raises:
        MetadataUnavailable: The store does not answer, or is no longer the store of the cluster.
    """
    if store.cluster is None:
        raise InvalidArgument("a backup is made of a store that belongs to a cluster")
    await store.sync()
    writer.begin(store.cluster, made_ms)
    closed = array("Q")
    """The ids of the ledgers that were closed when they were saved, in growing order."""
    async for path, node in walk(store, *LASTING_ROOTS):
        if path.startswith(LEDGERS + "/"):
            writer.node(path, node.value)
            with contextlib.suppress(ValueError):  # A node that is not a ledger is saved like any other.
                ledger_id = ledger_id_of(*path.split("/")[1:])
                if _is_closed(node.value, ledger_id):
                    closed.append(ledger_id)
        elif path.startswith(LOG_RECORDS + "/"):
            await _save_log(store, writer, path, node, closed)
        else:
            writer.node(path, node.value)
    counters = {counter: await store.highest_id(counter) for counter in COUNTERS}
    await store.sync()  # This raises if it is no longer the cluster's store.
    writer.end(counters)


async def _save_log(
    store: MetadataStore, writer: BackupWriter, path: str, record: Versioned, closed: array[int]
) -> None:
    """Save the record of a log, and the log's ledgers that were made or closed after the ledgers were saved.

    Args:
        closed: The ids of the ledgers that need not be saved again, in growing order.
    """
    found: Versioned | None = record
    for _ in range(_READINGS_MAX):
        if found is None:
            return  # The log was deleted.
        lost = False
        for ledger_id in _ledgers_of(path, found):
            if _is_in(closed, ledger_id):
                continue
            node = await store.get(ledger_path(ledger_id))
            lost = lost or node is None
            if node is not None:
                writer.node(ledger_path(ledger_id), node.value)
        if lost:
            await store.sync()
            again = await store.get(path)
            if again is not None and again.version != found.version:
                found = again
                continue
            found = again
            if found is None:
                return
        writer.node(path, found.value)
        return
    raise MetadataUnavailable(f"{path} changed {_READINGS_MAX} times while it was saved; try again")


def _ledgers_of(path: str, record: Versioned) -> list[int]:
    try:
        incarnation = log_record_of(path.rpartition("/")[2])
        metadata = LogMetadata.decode_untrusted(record.value, incarnation)
    except (ValueError, MetadataCorrupt, IncompatibleVersion):
        return []  # A damaged record is saved unchanged.
    return [segment.ledger_id for segment in metadata.segments]


def _is_closed(value: bytes, ledger_id: int) -> bool:
    try:
        return LedgerMetadata.decode_untrusted(value, ledger_id).is_closed
    except (MetadataCorrupt, IncompatibleVersion):
        return False


def _is_in(closed: array[int], ledger_id: int) -> bool:
    at = bisect_left(closed, ledger_id)
    return at < len(closed) and closed[at] == ledger_id
