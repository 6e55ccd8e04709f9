"""Gathering: one new ledger takes the place of many small neighbours in the list of a log.

``log.core.gather`` chooses these neighbours. A splice gathers after its batch is in the log
(``gather_after_splice``). Gathering is optional: if it fails, the batch is still in the log, and the next
splice tries again.

    1  Write a new ledger with the records of the old ones, and close it. Each record keeps its offset, epoch,
       time, key and headers. No list names the ledger yet; its labels say that it is staged.
    2  In one transaction: put the new ledger in the place of the old ones, if the log's record is at the
       version that was read and still lists exactly these; and make a node that names the old ledgers.
    3  After ``limits.LOG_GATHERED_KEEP_S``: delete the old ledgers, then the node. The next splices do that,
       or a sweep.

The entries of the new ledger look like the entries of a leader: each entry carries its offset, epoch and
time. So any version can read them.

**Crashes.** After a crash before 2, the new ledger is staged but in no list, and a sweep deletes it. After 2,
the node says which ledgers to delete. If the answer to 2 is lost, the list says whether the new ledger is in
it. If two processes gather the same ledgers, one of them changes the list. The other one deletes its own new
ledger.

**Readers.** A reader that has read the older list has a day to read the old ledgers. After that, it finds
that its ledger is gone, reads the list, and continues at its offset in the new ledger (``log.reader``).

**Other changes at the same time.** Truncation and retention may take some of the old ledgers off the list.
Then 2 does nothing. An archive job may archive an old ledger after this module has read the archive's records
and before 2. Then the list no longer names the ledger of this file, and the next job retires the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import attrs
import trio

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.errors import EntryCorrupt, LedgerLogError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import (
    LOG_ENTRY_BYTES_TARGET,
    LOG_GATHER_TIMEOUT_S,
    LOG_GATHERED_KEEP_S,
    METADATA_TIMEOUT_S,
    MIB,
)
from ledgerlog.log.core.append_queue import Batch
from ledgerlog.log.core.gather import plan_gather
from ledgerlog.log.positions import NOT_ON_BOOKIES
from ledgerlog.log.registry import INCARNATION_LABEL, NAME_LABEL, STAGED_LABEL, LogRegistry
from ledgerlog.log.takeover import delete_ledgers
from ledgerlog.meta.settle import remove, settle
from ledgerlog.meta.store import Create, Set
from ledgerlog.model.attributes import attributes_column
from ledgerlog.model.gathered import ReplacedLedgers
from ledgerlog.model.layout import gathered_path, is_gathered, log_record_path, splices_path
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.record import RecordBatch
from ledgerlog.model.segments import LogSegment
from ledgerlog.wire.records import decode_entry, encode_entry

__all__ = ["delete_replaced", "gather_after_splice", "gather_ledgers", "replaced_lately"]

logger = logging.getLogger(__name__)

_GROUP_BYTES = 32 * MIB
_READS_AT_ONCE = 16
"""Ledgers are read in groups of about this many bytes, and this many ledgers of a group at the same time."""


async def gather_after_splice(client: LedgerClient, registry: LogRegistry, metadata: LogMetadata) -> None:
    """Gather ledgers of a log while there are many small neighbours, for a limited time.

    Errors are logged, not raised.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        metadata: A recent record of the log.
    """
    if not plan_gather(metadata, ()):
        return
    try:
        with trio.move_on_after(LOG_GATHER_TIMEOUT_S):
            await delete_replaced(client, registry, metadata.incarnation)
            while await gather_ledgers(client, registry, metadata.name, metadata.incarnation):
                pass
    except LedgerLogError as cause:
        logger.warning("log=%s has many small ledgers, and they were not gathered: %s", metadata.name, cause)


async def gather_ledgers(client: LedgerClient, registry: LogRegistry, name: str, incarnation: int) -> int:
    """Gather one run of small neighbours into one ledger. Ledgers that cannot be read stay.

    Args:
        client: The client of the cluster.
        registry: The records of the logs.
        name: The name of the log.
        incarnation: The incarnation of the log.

    Returns:
        How many ledgers were replaced by one; 0 if there was nothing to gather, or the list has changed.

    Raises:
        LogNotFound: The log no longer exists.
        LedgerLogError: The new ledger could not be written.
        MetadataOutcomeUnknown: The list may or may not be changed. All records are in it either way.

    Cancelling: the list may or may not be changed.
    """
    metadata, _ = await registry.existing(name, incarnation)
    if not plan_gather(metadata, ()):
        return 0
    # The list names an archived file by the ledger under which its record is stored.
    stays = set(await ArchiveRegistry(client.store).ledgers(incarnation))
    while parts := plan_gather(metadata, stays):
        unreadable: set[int] = set()
        try:
            ledger_id = await _copy(client, metadata, parts, unreadable)
        except NOT_ON_BOOKIES as cause:
            if not unreadable:
                raise
            logger.warning("log=%s: a small ledger cannot be read, and stays: %s", name, cause)
            stays |= unreadable
            continue
        if await _replace(client, registry, metadata, parts, ledger_id):
            logger.info("log=%s ledger=%d holds the records of %d ledgers now", name, ledger_id, len(parts))
            return len(parts)
        await delete_ledgers(client.ledgers, [ledger_id])
        return 0
    return 0


async def _copy(
    client: LedgerClient, metadata: LogMetadata, parts: tuple[LogSegment, ...], unreadable: set[int]
) -> int:
    """Write the records of the parts to a new ledger, close it, and return its id.

    If a part cannot be read, its ledger is put into ``unreadable``, and the error is raised.
    """
    start = metadata.segments.index(parts[0])
    bytes_before = metadata.before[1] + sum(each.byte_length or 0 for each in metadata.segments[:start])
    writer = await client.ledgers.create(
        replication=metadata.replication,
        metadata={
            NAME_LABEL: metadata.name.encode(),
            INCARNATION_LABEL: str(metadata.incarnation).encode(),
            STAGED_LABEL: b"1",
        },
    )
    try:
        packer = _Packer(writer, bytes_before)
        for group in _groups(parts):
            found: dict[int, list[_Entry]] = {}

            async def read(part: LogSegment, found: dict[int, list[_Entry]] = found) -> None:
                try:
                    found[part.ledger_id] = await _read(client, part)
                except NOT_ON_BOOKIES:
                    unreadable.add(part.ledger_id)
                    raise

            await gather_each(group, read, at_once=_READS_AT_ONCE)
            for part in group:
                for entry in found[part.ledger_id]:
                    await packer.add(entry)
        await packer.flush()
        await writer.flush()
        await writer.close()
        await writer.aclose()
    except BaseException:
        with trio.move_on_after(METADATA_TIMEOUT_S, shield=True):
            await writer.aclose()
            await delete_ledgers(client.ledgers, [writer.ledger_id])
        raise
    return writer.ledger_id


@attrs.frozen
class _Entry:
    """An entry of a ledger that is gathered."""

    batch: RecordBatch
    """Its records."""
    size: int
    """Bytes of the records, keys and headers included."""
    is_packed: bool
    """Whether it is compressed."""


def _groups(parts: Sequence[LogSegment]) -> Iterator[list[LogSegment]]:
    """Yield the parts in groups of about ``_GROUP_BYTES``, at least one part each."""
    group: list[LogSegment] = []
    size = 0
    for part in parts:
        if group and size + (part.byte_length or 0) > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.byte_length or 0
    yield group


async def _read(client: LedgerClient, part: LogSegment) -> list[_Entry]:
    """Read a ledger.

    Raises:
        EntryCorrupt: The ledger does not hold exactly the records that the list says.
    """
    entries: list[_Entry] = []
    if not part.record_count:
        return entries
    reader = await client.ledgers.open(part.ledger_id)
    last = await reader.last_add_confirmed()
    offset, size, entry_id = part.first_offset, 0, 0
    while entry_id <= last:
        for payload in await reader.read_batch(entry_id, last):
            header, batch = decode_entry(
                payload, ledger_id=part.ledger_id, entry_id=entry_id, spliced=part.spliced
            )
            if header.first_offset != offset:
                raise EntryCorrupt(
                    part.ledger_id, entry_id, f"its first offset is {header.first_offset}, not {offset}"
                )
            offset, size = header.end_offset, size + header.byte_length
            entry_id += 1
            if not header.is_checkpoint:
                entries.append(_Entry(batch, header.byte_length, len(payload) < header.byte_length))
    if (offset, size) != (part.end_offset, part.byte_length):
        raise EntryCorrupt(
            part.ledger_id,
            last,
            f"the ledger ends at offset {offset} after {size} bytes, but the list says {part.end_offset} and "
            f"{part.byte_length}",
        )
    return entries


class _Packer:
    """Writes records to a ledger, as entries that a leader would write.

    Records share an entry only if they have the same epoch and time.
    """

    def __init__(self, writer: LedgerWriter, bytes_before: int) -> None:
        self._writer = writer
        self._bytes_before = bytes_before
        self._first: RecordBatch | None = None
        """The first batch of the next entry."""
        self._batch = Batch(0, 0)
        self._compress = False

    async def add(self, entry: _Entry) -> None:
        """Write the records of an entry, perhaps together with those before it."""
        batch = entry.batch
        sizes = list(map(len, batch.payloads))
        attributes = attributes_column(sizes, batch.keys, batch.headers)
        first = self._first
        if first is not None and (
            (first.epoch, first.timestamp_ms) != (batch.epoch, batch.timestamp_ms)
            or self._compress != entry.is_packed
            or (self._batch.attributes is None) != (attributes is None)
            or not self._batch.has_room(
                entry.size, len(batch), LOG_ENTRY_BYTES_TARGET, for_attributes=attributes is not None
            )
        ):
            await self.flush()
        if self._first is None:
            self._first, self._compress = batch, entry.is_packed
            self._batch = Batch(0, batch.epoch, has_attributes=attributes is not None)
        self._batch.extend(batch.payloads, entry.size, attributes)

    async def flush(self) -> None:
        """Write the entry that is begun."""
        first, batch = self._first, self._batch
        if first is None:
            return
        self._first = None
        payload = encode_entry(
            batch.records,
            epoch=first.epoch,
            first_offset=first.first_offset,
            timestamp_ms=first.timestamp_ms,
            bytes_before=self._bytes_before,
            compress=self._compress,
            attributes=batch.live_attributes(),
        )
        self._bytes_before += batch.size
        if not self._writer.has_room:
            await self._writer.wait_room()
        self._writer.push([payload])


async def _replace(
    client: LedgerClient,
    registry: LogRegistry,
    planned: LogMetadata,
    parts: tuple[LogSegment, ...],
    ledger_id: int,
) -> bool:
    """Change the list; False if it has changed so that this is no longer possible."""
    incarnation = planned.incarnation
    replaced = ReplacedLedgers(
        ledger_id=ledger_id,
        ledgers=tuple(part.ledger_id for part in parts),
        at_ms=client.environment.now_ms(),
    )
    ledgers = LedgerRegistry(client.store, client.environment)

    async def write(is_unsure: bool) -> bool:
        metadata, version = await registry.existing(planned.name, incarnation, fresh=False)
        if is_unsure and metadata.index_of(ledger_id) is not None:
            return True
        # Read after the record: if a sweep deletes the ledger, it changes the record.
        if await ledgers.find(ledger_id) is None:
            return False
        changed = metadata.gathered(parts, ledger_id, client.environment.new_token())
        if changed is None:
            return False
        await client.store.transaction(
            [
                Create(gathered_path(incarnation, ledger_id), replaced.encode()),
                Set(log_record_path(incarnation), changed.encode(), version),
            ]
        )
        return True

    return await settle(client.store, write, what=f"gathering ledgers of log {planned.name!r}")


# --- the old ledgers ------------------------------------------------------------------------------


async def _replaced(client: LedgerClient, incarnation: int) -> list[ReplacedLedgers]:
    found: list[ReplacedLedgers] = []
    for component in await client.store.children(splices_path(incarnation)):
        if is_gathered(component):
            node = await client.store.get(f"{splices_path(incarnation)}/{component}")
            try:
                found += [] if node is None else [ReplacedLedgers.decode_untrusted(node.value)]
            except MetadataCorrupt as damage:
                logger.warning("ledgers that were gathered are not deleted: %s: %s", component, damage)
    return found


def _is_due(replaced: ReplacedLedgers, now_ms: int) -> bool:
    return now_ms - replaced.at_ms >= LOG_GATHERED_KEEP_S * 1000


async def replaced_lately(client: LedgerClient, incarnation: int) -> set[int]:
    """Return the ledgers of a log that a gathered ledger replaced, and that readers may still read."""
    now_ms = client.environment.now_ms()
    found = await _replaced(client, incarnation)
    return {ledger_id for each in found if not _is_due(each, now_ms) for ledger_id in each.ledgers}


async def delete_replaced(
    client: LedgerClient, registry: LogRegistry, incarnation: int, *, is_deleted: bool = False
) -> None:
    """Delete the ledgers that gathered ledgers replaced ``limits.LOG_GATHERED_KEEP_S`` ago.

    Args:
        client: The client of the cluster.
        registry: The logs.
        incarnation: The incarnation of the log.
        is_deleted: The log was deleted, so delete all that were replaced.
    """
    now_ms = client.environment.now_ms()
    replaced = await _replaced(client, incarnation)
    if not replaced:
        return
    metadata, _ = await registry.read(incarnation)
    if metadata is None and not is_deleted:
        return  # It may be damaged. If it was deleted, a sweep finds the ledgers.
    listed = set() if metadata is None else {segment.ledger_id for segment in metadata.segments}
    for each in replaced:
        if is_deleted or _is_due(each, now_ms):
            await delete_ledgers(client.ledgers, [one for one in each.ledgers if one not in listed])
            await remove(client.store, gathered_path(incarnation, each.ledger_id))
