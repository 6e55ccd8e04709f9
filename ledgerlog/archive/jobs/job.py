"""Archiving a log as a whole: all that may be done for it now (``archive.jobs.archiver`` has the steps)."""

from __future__ import annotations

from ledgerlog.archive.jobs.archiver import Archiver, OnStep, Step, guarded
from ledgerlog.archive.jobs.claiming import load_destination
from ledgerlog.archive.jobs.cleaning import clean
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.errors import LogNotFound, NotEnoughBookies
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import ARCHIVE_KEEP_COPIES_S
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.layout import CLUSTER

__all__ = ["archive_log", "open_archiver", "retire_gone"]


async def open_archiver(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    keep_copies_s: float = ARCHIVE_KEEP_COPIES_S,
    incarnation: int | None = None,
    accept_destination: bool = False,
) -> Archiver:
    """The archive of the log of that name. LogNotFound, also where it is not that ``incarnation`` any more;
    InvalidArgument, ArchiveSupportMissing. ArchiveUnavailable where the destination's file system fails or
    does not answer, and where it has no marker and must have one (``archive.jobs.claiming``), unless
    ``accept_destination``."""
    found = await LogRegistry(client.store, client.environment).find(name)
    if found is None or (incarnation is not None and found != incarnation):
        raise LogNotFound(name)
    archiver = Archiver(
        client,
        name,
        found,
        await load_destination(destination),
        cluster=await _cluster_id(client),
        keep_copies_s=keep_copies_s,
    )
    await archiver.markers.claim(archiver.destination, accept=accept_destination)
    return archiver


async def _cluster_id(client: LedgerClient) -> str:
    node = await client.store.get(CLUSTER)
    if node is None:
        raise NotEnoughBookies("no bookie has ever served this cluster: there is nothing to archive")
    return node.value.decode("ascii", "replace")


async def archive_log(
    client: LedgerClient,
    name: str,
    destination: str,
    *,
    keep_copies_s: float = ARCHIVE_KEEP_COPIES_S,
    accept_destination: bool = False,
    on_step: OnStep | None = None,
) -> list[Step]:
    """Do all that may be done now for one log: copy its closed ledgers to ``destination`` (a directory, or a
    URL that ``pyarrow.fs`` knows), give up bookies' copies of those that were archived ``keep_copies_s`` ago,
    retire files that are not needed any more. What was done, in order; ``on_step`` hears of each as it is
    done.

    A ledger that fails does not keep the others from being archived: it is a step that ``failed``. Running it
    again, after a crash or not, goes on where it ended. LogNotFound, InvalidArgument, MetadataUnavailable,
    ArchiveSupportMissing; ArchiveUnavailable where files of the cluster lie at the destination and its marker
    is not there, so it may not be mounted. ``accept_destination`` says that it is the right one all the same,
    and makes the marker. Cancelling is harmless."""
    archiver = await open_archiver(
        client, name, destination, keep_copies_s=keep_copies_s, accept_destination=accept_destination
    )
    steps: list[Step] = []

    def tell(step: Step) -> None:
        steps.append(step)
        if on_step is not None:
            on_step(step)

    plan = archiver.plan(await archiver.look())
    for record in plan.retire:
        tell(await guarded(archiver.retire(record), record.ledger_id))
    for record, ledger_id in plan.give_up:
        tell(await guarded(archiver.give_up(record, ledger_id), ledger_id))
    if any(step.what == "withdrawn" for step in steps):
        plan = archiver.plan(await archiver.look())
    for segment in plan.copy:
        tell(await guarded(archiver.copy(segment), segment.ledger_id))
    if keep_copies_s <= 0:
        for record, ledger_id in archiver.plan(await archiver.look()).give_up:
            tell(await guarded(archiver.give_up(record, ledger_id), ledger_id))
    for step in await clean(archiver):
        tell(step)
    return steps


async def retire_gone(
    client: LedgerClient,
    destination: str,
    *,
    accept_destination: bool = False,
    on_step: OnStep | None = None,
) -> list[Step]:
    """Delete the files, and their records, of logs that were deleted. MetadataUnavailable, and
    ArchiveUnavailable as ``archive_log``."""
    steps: list[Step] = []

    def tell(step: Step) -> None:
        steps.append(step)
        if on_step is not None:
            on_step(step)

    archives = ArchiveRegistry(client.store)
    await client.store.sync()
    for incarnation in await archives.incarnations():
        metadata, _ = await LogRegistry(client.store, client.environment).read(incarnation)
        if metadata is not None:
            continue
        # Its log is gone for good, so no record is added to these any more.
        records = await archives.of_log(incarnation)
        if not records:
            continue
        archiver = Archiver(
            client,
            records[0][0].log,
            incarnation,
            await load_destination(destination),
            cluster=await _cluster_id(client),
            keep_copies_s=ARCHIVE_KEEP_COPIES_S,
        )
        await archiver.markers.claim(archiver.destination, accept=accept_destination)
        # First what no record names, of whatever age, for nobody comes here again after the last record: a
        # job that is about to make one finds no log to name its file in.
        for step in await clean(archiver, min_age_s=0):
            tell(step)
        for record, _ in records:
            tell(await guarded(archiver.retire(record), record.ledger_id))
    return steps
