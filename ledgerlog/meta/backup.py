"""Save the content of a metadata store in a file, while the cluster works.

**Consistency.** A backup has each log as of one instant: its name, its record, its cursors, the marks of its
producers, the records of its archived files, and the list of its snapshots. One transaction often changes
several of them. For example, a splice writes the record and a mark. If the backup had the mark and an older
record, the producer's batch would seem to be in the log. SQLite gives the state of the whole store at one
instant, by one read transaction. Other stores are read node by node: first the ledgers, then the logs. The
record of a log is read before and after its other nodes, and all of them are read again if it has changed.

**Ledgers.** If the saved record of a log lists a ledger, the backup has the ledger too, unless the store had
lost it. The same holds for the list of its snapshots. If such a ledger was made after the ledgers were read,
or was not closed yet when it was saved, it is saved again. (The record counts a closed ledger's records. If
the backup had that ledger as open, readers would stop before its end.) The cookies are read after all
ledgers, so the backup has the cookie of each bookie that a ledger names. The counters are read last, so a
counter is never below an id in the backup.

Nodes that end with a session (registrations, locks, candidates) are not saved. The record of an earlier
restore is not saved either.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Collection

from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import IncompatibleVersion, InvalidArgument, MetadataCorrupt, MetadataUnavailable
from ledgerlog.meta.backup_file import BackupWriter
from ledgerlog.meta.store import MetadataStore, Versioned
from ledgerlog.model.layout import (
    ARCHIVES,
    CURSORS,
    LASTING_ROOTS,
    LEDGER_COUNTER,
    LEDGERS,
    LOG_COUNTER,
    LOG_NAMES,
    LOG_RECORDS,
    SNAPSHOTS,
    SPLICES,
    is_lasting,
    ledger_id_of,
    ledger_path,
    log_name_path,
    log_record_of,
)
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.snapshots import decode_snapshot_list_untrusted

__all__ = ["COUNTERS", "save", "walk"]

COUNTERS = (LEDGER_COUNTER, LOG_COUNTER)

_READINGS_MAX = 1000
"""How often a log is read at most, if its record changes each time meanwhile."""

_ASKED_AT_ONCE = 64
"""How many nodes of a log are read at the same time. The record then changes less often meanwhile."""

_PARTS = (CURSORS, SPLICES, ARCHIVES, SNAPSHOTS)
"""The parents of the other nodes of logs. Read these nodes after the ledgers, which archive jobs delete."""


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
    logs = _Logs(store, writer)
    async with contextlib.aclosing(walk(store, *LASTING_ROOTS)) as there:
        async for path, node in there:
            if path.startswith(LEDGERS + "/"):
                writer.node(path, node.value)
                logs.on_ledger(path, node.value)
            elif path.startswith(LOG_RECORDS + "/"):
                await logs.save(path)
            elif path.startswith(LOG_NAMES + "/"):
                await logs.save_name(path, node)
            elif not await logs.has_or_leaves_out(path):
                writer.node(path, node.value)
    counters = {counter: await store.highest_id(counter) for counter in COUNTERS}
    await store.sync()  # This raises if it is no longer the cluster's store.
    writer.end(counters)


class _Logs:
    """Saves logs, each as of one instant, with the ledgers that they need."""

    def __init__(self, store: MetadataStore, writer: BackupWriter) -> None:
        self._store = store
        self._writer = writer
        self._closed = array("Q")
        """The ids of the ledgers that were closed when they were saved first, in growing order."""
        self._saved: set[str] = set()
        """The names of the saved records: incarnations."""
        self._names: set[str] = set()
        """The paths of the saved names of logs."""

    def on_ledger(self, path: str, value: bytes) -> None:
        """A ledger was saved. The ids grow from call to call."""
        with contextlib.suppress(ValueError):  # A node that is not a ledger is saved like any other.
            ledger_id = ledger_id_of(*path.split("/")[1:])
            if _is_closed(value, ledger_id):
                self._closed.append(ledger_id)

    async def has_or_leaves_out(self, path: str) -> bool:
        """Return whether the node belongs to a log that is saved already, or that the backup leaves out
        because it was made since."""
        root, *rest = path.split("/")
        if root not in _PARTS or not rest:
            return False
        # After a restore, a part without its log would count as what is left of a deleted log.
        return rest[0] in self._saved or await self._store.get(f"{LOG_RECORDS}/{rest[0]}") is not None

    async def save_name(self, path: str, name: Versioned) -> None:
        """Save the name of a log. If the log was made since the records were read, save the log, too."""
        if path not in self._names:
            for component in await self._store.children(LOG_RECORDS):
                if component not in self._saved:
                    await self.save(f"{LOG_RECORDS}/{component}")
        if path not in self._names and await self._store.get(path) == name:
            self._writer.node(path, name.value)  # The store has lost its record.

    async def save(self, path: str) -> None:
        """Save a log with its record at ``path``, unless the log was deleted."""
        component = path.rpartition("/")[2]
        snapshots = f"{SNAPSHOTS}/{component}"
        for _ in range(_READINGS_MAX):
            record = await self._store.get(path)
            if record is None:
                return
            metadata = _decode_log(component, record.value)
            names = [] if metadata is None else [log_name_path(metadata.name)]
            ledgers = await self._read_ledgers(
                [] if metadata is None else [segment.ledger_id for segment in metadata.segments]
            )
            parts = await self._read_parts(component, *names)
            listed = parts.get(snapshots)
            if listed is not None:
                ledgers |= await self._read_ledgers(_finished_snapshots(listed.value))
            again = await self._read([path, snapshots])
            if (again.get(path), again.get(snapshots)) == (record, listed):
                break
        else:
            raise MetadataUnavailable(f"{path} changed {_READINGS_MAX} times while it was saved; try again")
        for each, node in {**ledgers, path: record, **parts}.items():
            self._writer.node(each, node.value)
        self._saved.add(component)
        self._names.update(each for each in names if each in parts)

    async def _read_parts(self, component: str, *more: str) -> dict[str, Versioned]:
        """Read ``more``, and all nodes of a log except its record."""
        parents = [f"{root}/{component}" for root in _PARTS]
        paths = [*more, *parents]

        async def list_one(parent: str) -> None:
            paths.extend(f"{parent}/{name}" for name in await self._store.children(parent))

        await gather_each(parents, list_one, at_once=_ASKED_AT_ONCE)
        return await self._read(paths)

    async def _read_ledgers(self, ledger_ids: Collection[int]) -> dict[str, Versioned]:
        """Read ledgers that were not closed when they were saved, or were not saved."""
        return await self._read(
            [ledger_path(ledger_id) for ledger_id in ledger_ids if not _is_in(self._closed, ledger_id)]
        )

    async def _read(self, paths: Collection[str]) -> dict[str, Versioned]:
        found: dict[str, Versioned] = {}

        async def read(path: str) -> None:
            node = await self._store.get(path)
            if node is not None:
                found[path] = node

        await gather_each(paths, read, at_once=_ASKED_AT_ONCE)
        return found


def _decode_log(component: str, value: bytes) -> LogMetadata | None:
    try:
        return LogMetadata.decode_untrusted(value, log_record_of(component))
    except (ValueError, MetadataCorrupt, IncompatibleVersion):
        return None  # A damaged record is saved unchanged.


def _finished_snapshots(value: bytes) -> list[int]:
    try:
        listed = decode_snapshot_list_untrusted(value, 0)
    except (MetadataCorrupt, IncompatibleVersion):
        return []  # A damaged list is saved unchanged.
    return [snapshot.ledger_id for snapshot in listed if snapshot.is_finished]


def _is_closed(value: bytes, ledger_id: int) -> bool:
    try:
        return LedgerMetadata.decode_untrusted(value, ledger_id).is_closed
    except (MetadataCorrupt, IncompatibleVersion):
        return False


def _is_in(closed: array[int], ledger_id: int) -> bool:
    at = bisect_left(closed, ledger_id)
    return at < len(closed) and closed[at] == ledger_id
