"""Sweeping: finding and deleting *orphans*, the ledgers that were made for a log and that no list names.

A process leaves an orphan if it crashes after it has made a ledger and before it has listed the ledger, or
after it has taken a ledger off the list and before it has deleted the ledger. Each ledger's metadata says for
which incarnation of which log it was made, and in which epoch (``registry.ledger_labels``). That is enough to
know that the ledger can never be listed again:

    the log was deleted                       a log that is created again has another incarnation
    the record has a later epoch              only the leader of the ledger's epoch could list it, by a
                                              compare-and-set on a record of that epoch or the one before
    the log is sealed                         its list never grows again
    it is staged, and a day old               no splice made it part of the log (``log.attach``). The delete
                                              also changes the version of the log's record, so a splice that
                                              has not seen the delete fails, and reads again
    it is closed with entries, same epoch     its leader has used it, so it was listed; truncation took it
                                              off, or a gathered ledger replaced it (``log.gather``) more than
                                              a day ago

If a ledger of the present epoch is open or empty, the sweep keeps it: the leader may have made the ledger for
its next roll. Either the leader lists the ledger, or a later epoch makes the ledger an orphan.

**Snapshots** of state machines lie in ledgers too, with labels and a list of their own (``model.snapshots``).
Replicas prune that list as they go. The sweep finds the rest:

    the log was deleted                       no replica can follow the log
    no list names it                          a replica stopped before it listed the snapshot, or between
                                              taking it off the list and deleting it. A replica lists,
                                              writes and closes a snapshot. A replica that lists it after
                                              the sweep cannot close it, and fails
    it is unfinished, and a day old           the replica that wrote it has stopped. The sweep takes it off
                                              the list first, so the replica, if it still runs, can
                                              no longer finish it

So the sweep never touches a snapshot that a replica may restore from: a finished one in the list of an
existing log.

**Nothing is deleted on a guess.** The sweep reads the ledger's metadata first, then syncs the store and reads
the record of the log. Both must decode. If there is no record, the log's name must be gone too or lead to
another incarnation, and this metadata store must have given out the number of the log's incarnation. Each of
the reasons above stays true once it is true. The sweep deletes the ledger only at the version of the metadata
that it has read. A splice does not change that version for every ledger, so a staged ledger is deleted
together with a change of the log's record. The ledger must also be old, by the wall clock. That is a margin
for cases that these rules overlook.

After a restore of the metadata, the lists come from a backup, and ``metadata check --bring-back`` may be
listing a ledger right now. So until an operator accepts the loss, the sweep keeps every ledger from before
the restore (``meta.deletion_floor``).

If the record of a log cannot be read, or is lost while the log's name still leads to it, nothing of that log
is swept, but other logs are. Once such a log is
deleted as damaged (``log.delete_log``), its record is gone and its ledgers are swept.
"""

from __future__ import annotations

import contextlib
import logging

import attrs

from ledgerlog.errors import (
    InvalidArgument,
    LedgerNotFound,
    LogListFull,
    LogNotFound,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    SessionExpired,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.repair_tasks import drop_task
from ledgerlog.limits import LOG_STAGED_SWEEP_AGE_S, LOG_SWEEP_AGE_S, REPLICA_SNAPSHOT_SWEEP_AGE_S
from ledgerlog.log.attach import delete_marks
from ledgerlog.log.cursors import delete_cursors
from ledgerlog.log.gather import delete_replaced, replaced_lately
from ledgerlog.log.registry import (
    EPOCH_LABEL,
    INCARNATION_LABEL,
    NAME_LABEL,
    STAGED_LABEL,
    LogRegistry,
)
from ledgerlog.log.snapshot_list import SnapshotList
from ledgerlog.meta.deletion_floor import deletion_floor
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Delete, Operation, Set, VersionConflict
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.layout import (
    CURSORS,
    LOG_COUNTER,
    SNAPSHOTS,
    SPLICES,
    incarnation_of,
    ledger_path,
    log_record_path,
)
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.snapshots import (
    SNAPSHOT_INCARNATION_LABEL,
    SNAPSHOT_LOG_LABEL,
    ListedSnapshot,
)

__all__ = ["Orphan", "sweep"]

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Orphan:
    """A ledger that no log can list."""

    ledger_id: int
    """The ledger."""
    log: str
    """The name of the log for which the ledger was made."""
    age_s: float
    """Seconds since the ledger was made, by the wall clock."""
    why: str
    """Why no log can list the ledger, in words."""
    is_deleted: bool
    """Whether this sweep deleted the ledger."""


async def sweep(
    client: LedgerClient, *, min_age_s: float = LOG_SWEEP_AGE_S, delete: bool = True
) -> list[Orphan]:
    """Find orphans and delete them.

    It also deletes the nodes that deleted logs have left in the metadata store: cursors, producers' marks and
    lists of snapshots.

    Args:
        client: The client of the cluster.
        min_age_s: Keep ledgers that are younger than this many seconds.
        delete: Delete the orphans. With False, the call only reports them.

    Returns:
        The orphans.

    Raises:
        InvalidArgument: ``min_age_s`` is negative or NaN.
        MetadataUnavailable: The metadata store went away; no ledger was deleted.
        SessionExpired: The metadata session ended; no ledger was deleted.
        MetadataOutcomeUnknown: The metadata store went away after some ledgers were, or may have been,
            deleted. Others were not looked at.
    """
    if not min_age_s >= 0:  # NaN is refused too: with it no ledger would be too young.
        raise InvalidArgument(f"min_age_s must not be negative, not {min_age_s!r}")
    orphans: list[Orphan] = []
    try:
        await _look_over(client, min_age_s, delete, orphans)
        if delete:
            await _sweep_nodes(client, LogRegistry(client.store, client.environment))
    except (MetadataUnavailable, SessionExpired) as away:
        deleted = sum(orphan.is_deleted for orphan in orphans)
        if not deleted:
            raise
        raise MetadataOutcomeUnknown(
            f"the sweep had deleted {deleted} ledgers when it was cut short: {away}"
        ) from away
    return orphans


async def _look_over(client: LedgerClient, min_age_s: float, delete: bool, orphans: list[Orphan]) -> None:
    logs = LogRegistry(client.store, client.environment)
    ledgers = LedgerRegistry(client.store, client.environment)
    listed: dict[int, set[int]] = {}
    """The ledgers that each log listed when its record was read, and those that readers may still read. If a
    ledger leaves a list meanwhile, the next sweep finds the ledger."""
    floor = await deletion_floor(client.store)
    unreadable: set[int] = set()
    """Logs whose record is damaged. It is unknown which ledgers such a record lists."""

    async def look(ledger_id: int) -> None:
        found = await ledgers.find(ledger_id)
        if found is None:
            return
        metadata, version = found
        age_s = (client.environment.now_ms() - metadata.created_ms) / 1000
        if age_s < min_age_s:
            return
        name = metadata.custom.get(NAME_LABEL)
        incarnation = _number(metadata.custom.get(INCARNATION_LABEL))
        is_snapshot = incarnation is None
        if is_snapshot:
            name = metadata.custom.get(SNAPSHOT_LOG_LABEL)
            incarnation = _number(metadata.custom.get(SNAPSHOT_INCARNATION_LABEL))
        if incarnation is None or ledger_id in listed.get(incarnation, ()):
            return
        if incarnation in unreadable:
            return
        try:
            record, _ = await logs.read(incarnation)
        except MetadataCorrupt as damage:
            unreadable.add(incarnation)
            logger.warning("nothing is swept of a log whose record cannot be read: %s", damage)
            return
        if record is None and not await _is_deleted(client, logs, name, incarnation):
            unreadable.add(incarnation)
            return
        if ledger_id < max(floor, await deletion_floor(client.store)):
            return
        if is_snapshot:
            why = await _why_lost_snapshot(client, ledger_id, incarnation, record, age_s, delete=delete)
        else:
            if record is not None:
                lately = await replaced_lately(client, incarnation)
                listed[incarnation] = lately | {segment.ledger_id for segment in record.segments}
            why = _why_orphan(metadata, record, age_s)
            if record is not None and ledger_id in lately:
                why = None
        if why is None:
            return
        is_deleted = False
        if delete:
            with contextlib.suppress(VersionConflict, LedgerNotFound, LogListFull):
                if STAGED_LABEL in metadata.custom and record is not None:
                    is_deleted = await _delete_staged(client, logs, ledger_id, version, record.incarnation)
                else:
                    await ledgers.delete(ledger_id, version=version)
                    is_deleted = True
            logger.info("ledger=%d no longer belongs to a log: %s; deleted=%s", ledger_id, why, is_deleted)
        orphans.append(
            Orphan(
                ledger_id=ledger_id,
                log=(name or b"").decode(errors="replace"),
                age_s=age_s,
                why=why,
                is_deleted=is_deleted,
            )
        )

    ledger_ids, strays = await ledgers.survey()
    for stray in strays:
        logger.warning("%s", stray)
    for ledger_id in ledger_ids:
        try:
            await look(ledger_id)
        except MetadataCorrupt as damage:
            logger.warning("ledger=%d is not swept: %s", ledger_id, damage)


async def _is_deleted(client: LedgerClient, logs: LogRegistry, name: bytes | None, incarnation: int) -> bool:
    """Whether a log without a record was deleted. ``name`` is the label of one of its ledgers."""
    if await client.store.highest_id(LOG_COUNTER) < incarnation:
        return False  # The number was never given out, so the ledger does not belong to this metadata store.
    try:
        why = await logs.why_missing((name or b"").decode(), incarnation)
    except (UnicodeDecodeError, InvalidArgument) as damage:
        logger.warning("nothing is swept of log %d, whose name cannot be read: %s", incarnation, damage)
        return False
    if not isinstance(why, LogNotFound):
        logger.warning("nothing is swept of a damaged log: %s", why)
        return False
    return True


def _number(label: bytes | None) -> int | None:
    return int(label) if label is not None and len(label) <= 19 and label.isdigit() else None


def _why_orphan(ledger: LedgerMetadata, record: LogMetadata | None, age_s: float) -> str | None:
    """Return why no list will ever name the ledger again; None if a list does or may."""
    epoch = _number(ledger.custom.get(EPOCH_LABEL))
    if STAGED_LABEL in ledger.custom and age_s < LOG_STAGED_SWEEP_AGE_S:
        return None
    if record is None:
        return "its log is gone"
    if record.index_of(ledger.ledger_id) is not None:
        return None
    if STAGED_LABEL in ledger.custom:
        return "it was staged and never became part of its log"
    if epoch is None:
        return None
    if epoch < record.epoch:
        return f"its leader of epoch {epoch} is gone, and the log is at epoch {record.epoch}"
    if record.sealed:
        return "its log is sealed without it"
    if epoch == record.epoch and ledger.last_entry not in (None, NO_ENTRY):
        return "it was taken off the list"
    return None


async def _delete_staged(
    client: LedgerClient, logs: LogRegistry, ledger_id: int, version: int, incarnation: int
) -> bool:
    """Delete a staged ledger at ``version``, unless its log lists it.

    The same transaction changes the version of the log's record, so that no splice lists the ledger
    afterwards.

    Returns:
        Whether this call deleted the ledger.
    """
    ledgers = LedgerRegistry(client.store, client.environment)

    async def write(is_unsure: bool) -> bool:
        record, record_version = await logs.read(incarnation, fresh=False)
        found = await ledgers.find(ledger_id)
        if found is None:
            return is_unsure
        if found[1] != version or (record is not None and record.index_of(ledger_id) is not None):
            return False
        operations: list[Operation] = [Delete(ledger_path(ledger_id), version)]
        if record is not None:
            touched = record.touched(client.environment.new_token())
            operations.append(Set(log_record_path(incarnation), touched.encode(), record_version))
        await client.store.transaction(operations)
        return True

    is_deleted = await settle(client.store, write, what=f"the deletion of ledger {ledger_id}")
    if is_deleted:
        await drop_task(client.store, ledger_id)
    return is_deleted


async def _why_lost_snapshot(
    client: LedgerClient,
    ledger_id: int,
    incarnation: int,
    record: LogMetadata | None,
    age_s: float,
    *,
    delete: bool,
) -> str | None:
    """Return why no replica will restore from a snapshot; None if a replica may.

    Call this after the ledger's own metadata was read. With ``delete``, this takes an old, unfinished
    snapshot off its list, so the snapshot stays unfinished.
    """
    if record is None:
        return "its log is gone"
    snapshots = SnapshotList(client.store, incarnation)
    found = _find(await snapshots.read(), ledger_id)
    if found is None:
        return "no list of snapshots names it"
    if found.is_finished or age_s < REPLICA_SNAPSHOT_SWEEP_AGE_S:
        return None
    if delete and _find(await snapshots.change(lambda listed: [s for s in listed if s != found]), ledger_id):
        return None  # It was finished meanwhile.
    return "it was begun long ago and never finished"


def _find(listed: list[ListedSnapshot], ledger_id: int) -> ListedSnapshot | None:
    return next((snapshot for snapshot in listed if snapshot.ledger_id == ledger_id), None)


async def _sweep_nodes(client: LedgerClient, logs: LogRegistry) -> None:
    components: set[str] = set()
    for directory in (CURSORS, SPLICES, SNAPSHOTS):
        components.update(await client.store.children(directory))
    gone: list[int] = []
    for component in sorted(components):
        try:
            incarnation = incarnation_of(component)
        except ValueError:
            continue
        try:
            record, _ = await logs.read(incarnation)
        except MetadataCorrupt:
            continue
        if record is not None:
            await delete_replaced(client, logs, incarnation)
        elif await client.store.highest_id(LOG_COUNTER) >= incarnation:
            gone.append(incarnation)
    if not gone:
        return
    damaged, is_whole = await logs.named()  # A name without a record is damage, so its nodes stay.
    for incarnation in gone if is_whole else ():
        if incarnation not in damaged:
            await delete_cursors(client, incarnation)
            await delete_replaced(client, logs, incarnation, is_deleted=True)
            await delete_marks(client, incarnation)
            await SnapshotList(client.store, incarnation).delete()
