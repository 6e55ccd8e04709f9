"""Archiving a whole log: do all the work that is possible now. ``archive.jobs.archiver`` has the steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from ledgerlog.archive.jobs.archiver import Archiver, ArchiveStep, OnStep, Steps, done, guarded
from ledgerlog.archive.jobs.claiming import load_destination
from ledgerlog.archive.jobs.cleaning import clean
from ledgerlog.archive.jobs.publishing import TableOptions, drop_table, open_publisher
from ledgerlog.archive.reader import in_thread
from ledgerlog.archive.registry import ArchiveRegistry, DestinationRegistry
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    InvalidArgument,
    LogNotFound,
    MetadataCorrupt,
    NotEnoughBookies,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import ARCHIVE_KEEP_COPIES_S
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.belonging import check_cluster
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.layout import CLUSTER

__all__ = ["archive_log", "cluster_id", "open_archiver", "retire_gone"]

logger = logging.getLogger(__name__)


async def open_archiver(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    keep_copies_s: float = ARCHIVE_KEEP_COPIES_S,
    incarnation: int | None = None,
    accept_destination: bool = False,
) -> Archiver:
    """Open the archive of a log.

    Args:
        client: The cluster.
        name: The name of the log.
        destination: Where new files go: a directory, or a URL that ``pyarrow.fs`` knows.
        keep_copies_s: How long bookies keep their copies of an archived ledger, in seconds.
        incarnation: The incarnation that the log must have; None: any.
        accept_destination: Work even if the destination's marker is missing, or if the destination is new and
            the log has files elsewhere; make a new marker (``archive.jobs.claiming``).

    Raises:
        LogNotFound: There is no log of this name, or it has another incarnation.
        InvalidArgument: pyarrow cannot find files at ``destination``. Or it is new, the log has files
            elsewhere, and ``accept_destination`` is not set.
        ArchiveSupportMissing: pyarrow is not installed.
        ArchiveUnavailable: The destination failed, did not answer in time, or its marker is missing and
            ``accept_destination`` is not set.
        NotEnoughBookies: No bookie has ever served this cluster.
        MetadataUnavailable: The metadata store did not answer.
    """
    found = await LogRegistry(client.store, client.environment).find(name)
    if found is None or (incarnation is not None and found != incarnation):
        raise LogNotFound(name)
    archiver = Archiver(
        client,
        name,
        found,
        await load_destination(destination),
        cluster=await cluster_id(client),
        keep_copies_s=keep_copies_s,
    )
    await archiver.claim(accept=accept_destination)
    return archiver


async def cluster_id(client: LedgerClient) -> str:
    """Return the id of the cluster.

    Raises:
        NotEnoughBookies: No bookie has ever served it.
    """
    node = await client.store.get(CLUSTER)
    if node is None:
        raise NotEnoughBookies("no bookie has ever served this cluster: there is nothing to archive")
    return check_cluster(node.value)


async def archive_log(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    keep_copies_s: float = ARCHIVE_KEEP_COPIES_S,
    accept_destination: bool = False,
    table: TableOptions | None = None,
    on_step: OnStep | None = None,
) -> list[ArchiveStep]:
    """Do all archive work that is possible now for one log.

    Copy its closed ledgers to ``destination``. Give up bookies' copies of the ledgers that were archived
    ``keep_copies_s`` ago. Delete files that are no longer needed. If one ledger fails, its step is
    ``failed``, and the other ledgers are still archived. You can call this again at any time, also after a
    crash; it continues with the remaining work.

    Args:
        client: The cluster, for example ``cluster.client``.
        name: The name of the log.
        destination: Where new files go: a directory, or a URL that ``pyarrow.fs`` knows.
        keep_copies_s: How long bookies keep their copies of an archived ledger, in seconds. 0: give them up
            in this run.
        accept_destination: The destination is the right one although its marker is missing, or although the
            log has files elsewhere; make a new marker.
        table: Where the archive's Iceberg table is (``archive.jobs.publishing``). None: there is no table.
            Pass the same value to all jobs of a log.
        on_step: Called with each step when it is done.

    Returns:
        The steps, in order.

    Raises:
        LogNotFound: There is no log of this name.
        InvalidArgument: pyarrow cannot find files at ``destination``, or the table or its catalog is not
            there for this log (``archive.jobs.publishing.open_publisher``). Or the destination is new, the
            log has files elsewhere, and ``accept_destination`` is not set.
        ArchiveSupportMissing: pyarrow is not installed, or pyiceberg if there is a table.
        ArchiveCorrupt: The table is damaged, or another program changed it. Nothing was done.
        ArchiveUnavailable: The destination failed or did not answer in time. Or it has files of this cluster,
            its marker is missing, and ``accept_destination`` is not set: it may not be mounted. Or the
            catalog of the table did not answer.
        NotEnoughBookies: No bookie has ever served this cluster.
        MetadataUnavailable: The metadata store did not answer. The steps until then are done.

    Cancelling: harmless. The next run continues from there.

    Example:
        ```python
        async with ledgerlog.connect(uri) as cluster:
            steps = await archive_log(cluster.client, "orders", "/archive", keep_copies_s=7 * 86400)
        ```
    """
    archiver = await open_archiver(
        client, name, destination, keep_copies_s=keep_copies_s, accept_destination=accept_destination
    )
    steps = Steps(on_step)
    async with open_publisher(archiver, table) as publisher:
        plan = archiver.plan(await archiver.look())
        await publisher.retire(plan.retire, steps.tell)
        for record, ledger_id in plan.give_up:
            steps.tell(await guarded(archiver, archiver.give_up(record, ledger_id), ledger_id))
        if any(step.what == "withdrawn" for step in steps):
            plan = archiver.plan(await archiver.look())
        for segment in plan.copy:
            steps.tell(await guarded(archiver, archiver.copy(segment), segment.ledger_id))
        if keep_copies_s <= 0:
            for record, ledger_id in archiver.plan(await archiver.look()).give_up:
                steps.tell(await guarded(archiver, archiver.give_up(record, ledger_id), ledger_id))
        await publisher.clean_up(steps.tell)
    return steps


async def retire_gone(
    client: LedgerClient,
    destination: str,
    *,
    accept_destination: bool = False,
    table: TableOptions | None = None,
    on_step: OnStep | None = None,
) -> list[ArchiveStep]:
    """Delete the files, and then their records, of all logs that were deleted.

    If a record of a log is damaged or lost (``log.registry``), nobody knows whether the log was deleted. Then
    its files stay, and a warning is logged.

    Args:
        client: The cluster.
        destination: A directory, or a URL that ``pyarrow.fs`` knows. Files at other destinations whose marker
            is there are deleted too.
        accept_destination: The destination is the right one although its marker is missing; make a new
            marker.
        table: Where the tables of archives are, at each destination. The tables of these logs are dropped
            first. If a table is in another catalog, or is damaged, its log's files stay, and the steps are
            ``skipped``. None: no table is dropped.
        on_step: Called with each step when it is done.

    Returns:
        The steps, in order.

    Raises:
        InvalidArgument: pyarrow cannot find files at ``destination``.
        ArchiveSupportMissing: pyarrow is not installed.
        ArchiveUnavailable: The destination failed or did not answer in time, or its marker is missing and
            ``accept_destination`` is not set.
        MetadataUnavailable: The metadata store did not answer. The steps until then are done.
    """
    steps = Steps(on_step)
    archives, logs = ArchiveRegistry(client.store), LogRegistry(client.store, client.environment)
    await client.store.sync()
    for incarnation in await archives.incarnations():
        try:
            metadata, _ = await logs.read(incarnation)
            if metadata is not None:
                continue
            records = await archives.of_log(incarnation)
            if not records:
                continue
            why = await logs.why_missing(records[0][0].log, incarnation)
            if not isinstance(why, LogNotFound):
                raise why
        except MetadataCorrupt as damage:
            logger.warning("no archived file of a damaged log is deleted: %s", damage)
            continue
        # The log is gone for good, so no more records are added to these.
        archiver = await _archiver_of(client, records[0][0], destination)
        where = await in_thread(archiver.destination.where, file=archiver.destination.url)
        here, elsewhere = await _by_destination(
            archiver, where, [record for record, _ in records], steps.tell
        )
        if here or await DestinationRegistry(client.store).find(where) is not None:
            await archiver.claim(accept=accept_destination)
            await _retire_at(archiver, here, table, steps.tell)
        for url, its in elsewhere.items():
            try:
                await archiver.markers.expect(its[0].file)
                await _retire_at(await _archiver_of(client, its[0], url), its, table, steps.tell)
            except (ArchiveCorrupt, ArchiveUnavailable, InvalidArgument) as failure:
                logger.error("log=%s: %s", archiver.name, failure)
                told = {step.ledger_id for step in steps}
                for record in its:
                    if record.ledger_id not in told:
                        steps.tell(done("failed", record, why=str(failure)))
    return steps


async def _archiver_of(client: LedgerClient, record: ArchivedFile, where: str) -> Archiver:
    """Return the archive, at a destination, of the log that a record belongs to."""
    return Archiver(
        client,
        record.log,
        record.incarnation,
        await load_destination(where),
        cluster=await cluster_id(client),
        keep_copies_s=ARCHIVE_KEEP_COPIES_S,
    )


async def _by_destination(
    archiver: Archiver, where: str, records: Sequence[ArchivedFile], tell: OnStep
) -> tuple[list[ArchivedFile], dict[str, list[ArchivedFile]]]:
    """Return the records of the files at the destination ``where``, and those at others by their URLs.

    A record that names a file of another log is in neither; ``tell`` gets its ``failed`` step.
    """
    from ledgerlog.archive.destinations import destination_url, lies_at

    by_url: dict[str, list[ArchivedFile]] = {}
    for record in records:
        try:
            archiver.expect_own(record)
        except ArchiveCorrupt as failure:
            logger.error("ledger=%d: %s", record.ledger_id, failure)
            tell(done("failed", record, why=str(failure)))
        else:
            by_url.setdefault(destination_url(record.file), []).append(record)
    here: list[ArchivedFile] = []
    for url, its in list(by_url.items()):
        if await in_thread(partial(lies_at, its[0].file, where), file=url):
            here += by_url.pop(url)
    return here, by_url


async def _retire_at(
    archiver: Archiver, records: Sequence[ArchivedFile], table: TableOptions | None, tell: OnStep
) -> None:
    """Drop the table of a log that was deleted. Then delete its files at one destination, and their records.

    If the table may be in another catalog, the files stay, because a reader of the table needs them.
    """
    from ledgerlog.archive.destinations import TABLE_DIRECTORY

    if not await drop_table(archiver, table):
        destination = archiver.destination
        own_files = destination.url_of(f"{archiver.directory}/{TABLE_DIRECTORY}")
        why = (
            "a table names it, but this job does not find the table in its catalog, or cannot read it there. "
            f"Run `ledgerlog spark archive NAME --destination {destination.url} --catalog CATALOG "
            "--namespace NAMESPACE` with the table's catalog and namespace, for a log whose table is there, "
            "too; or call retire_gone with these TableOptions from Python. If no catalog has the table, or "
            f"it is damaged, delete {own_files} and run the job again"
        )
        for record in records:
            tell(done("skipped", record, why=why))
        return
    # Now delete the files that no record names, no matter how old they are. After the last record is deleted,
    # no job looks here again. If a job is about to make a record, it finds no log and deletes its file.
    for step in await clean(archiver, min_age_s=0):
        tell(step)
    for record in records:
        tell(await guarded(archiver, archiver.retire(record), record.ledger_id))
