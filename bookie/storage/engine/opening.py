"""Opening a bookie's storage: replay the journal, start a segment, build the parts and run their tasks.

``open_engine`` replays the part of the journal that the index does not have yet and continues in a new
segment. It runs the tasks: the journal writer, the supply of segments, checkpoints and the background work.
If the body of ``open_engine`` ends without an exception, the engine stops cleanly. A clean stop brings
everything into the index and notes the journal's end there. The next start then does not read the journal. If
the journal is damaged, the bookie notices that only when it reads the damaged entry.

**The order of a start**, each step durable before the next:

    0  sync the names of all files: a bookie that was killed may have left them only in a cache
    1  take over entry logs that the index does not know; replay the journal (``startup_cleanup``, ``replay``)
    2  write a START block into the new segment. It says where the journal ended, so a later start never
       mistakes the remains of a torn write there for records
    3  move the replay mark in the index (where replay begins) to the new segment
    4  remove files that neither the index nor the journal still needs; trim the segments before the new
       one (cut their files after the last block)
    5  set the unclean bit if adds will be acknowledged before they are synced (D27.10)

The bookie serves clients only after that. If it crashes in between, the next start repeats all steps.

**Failures.** If the disk or the index fails in any task, the engine refuses everything from then on and the
body is cancelled. ``open_engine`` raises the first StorageError, because later ones are its consequences. If
the body raises an exception, that exception comes out unchanged.

``open_engine`` refuses a directory that may have lost data but has no loss marks that say so.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from bookie.core.block import NONCE_BYTES, PAGE_BYTES
from bookie.core.boot import IndexBehind, ReplayStart
from bookie.core.entry_log import LogHeader
from bookie.core.journal import GroupCommit
from bookie.core.journal_items import START, encode_start
from bookie.core.loss_marks import LossMarks
from bookie.core.rows import encode_mark
from bookie.core.segment import SegmentHeader
from bookie.storage.disk.disk import Disk, FileMissing
from bookie.storage.disk.gone_ledgers import GoneLedgerStore, read_gone
from bookie.storage.disk.loss_marks import LossMarkStore, read_marks
from bookie.storage.engine.config import StorageConfig
from bookie.storage.engine.directory import StorageDirectory
from bookie.storage.engine.engine import Engine
from bookie.storage.engine.forgetting import Forgetter
from bookie.storage.engine.ledgers import LedgerTable
from bookie.storage.engine.reader import Reader, Resident
from bookie.storage.engine.write_cache import WriteCache
from bookie.storage.entrylog.contents import FileContents
from bookie.storage.entrylog.entry_files import EntryFiles
from bookie.storage.entrylog.entry_logs import EntryLogFiles
from bookie.storage.entrylog.file_pool import FilePool
from bookie.storage.entrylog.read_cache import ReadCache
from bookie.storage.entrylog.rewriting import Rewriter
from bookie.storage.index.catalogue import Catalogue
from bookie.storage.index.patient import PatientIndex
from bookie.storage.journal.arenas import Arenas
from bookie.storage.journal.checkpoint import Checkpointer
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.recycling import Recycler
from bookie.storage.journal.replay import Replayed, replay
from bookie.storage.journal.segments import JournalSegment, SegmentFiles
from bookie.storage.upkeep.collector import Collector, DeletionOracle
from bookie.storage.upkeep.compaction import Compactor
from bookie.storage.upkeep.read_repair import ReadRepair
from bookie.storage.upkeep.replacing import Replacer
from bookie.storage.upkeep.scrub import Scrubber
from bookie.storage.upkeep.startup_cleanup import remove_replaced, take_over_logs
from ledgerlog.concurrency.nurseries import holds_cancellation
from ledgerlog.errors import DiskFull, StorageCorrupt, StorageError
from ledgerlog.limits import KIB
from ledgerlog.wire.frame import Status

logger = logging.getLogger(__name__)

_FIRST_SEGMENT_BYTES_MIN = 128 * KIB
"""The first segment on a full disk. It has room for about thirty syncs of fences and small recovery adds."""


def random_nonce() -> bytes:
    """Return a nonce for a segment. Clients must not learn it."""
    return os.urandom(NONCE_BYTES)


_FEW_FILES = 16
"""If a bookie that starts small has fewer files of entries than this, its index counts as small too."""


@asynccontextmanager
async def open_engine(
    directory: StorageDirectory,
    config: StorageConfig | None = None,
    *,
    new_nonce: Callable[[], bytes] = random_nonce,
    marks: LossMarkStore | None = None,
    oracle: DeletionOracle | None = None,
    scrubs_at_once: bool = False,
) -> AsyncIterator[Engine]:
    """Open the storage in a formatted directory that this process has locked (``open_directory``).

    If the body ends normally, the storage stops cleanly. If it ends by an exception or by cancellation, no
    durable data is lost. If the disk or the index fails, the body is cancelled and the StorageError is raised
    here.

    Args:
        directory: The bookie's directory.
        config: The settings. None: the defaults.
        new_nonce: Makes nonces for segments. Clients must not be able to guess them.
        marks: The loss marks from phase one of the boot (``bookie.server.identity``). None: they are read,
            and the directory must not have lost data.
        oracle: The deletion oracle: it asks the metadata store which ledgers are gone. None: the bookie
            deletes nothing.
        scrubs_at_once: The directory was damaged, so begin the first scrubbing pass now and not in an hour.

    Raises:
        StorageCorrupt: A file is damaged or missing. The message names the file and the offset.
        StorageError: The directory is not formatted, or ``marks`` is None and it may have lost data, or the
            disk or the index failed.
    """
    config = config or StorageConfig()
    instance = await directory.read_instance()
    for ballast in directory.ballasts:
        ballast.size = min(ballast.size, config.ballast_bytes)
    if marks is None:
        marks = await _sound_marks(directory)
    await refuse_newer(directory)
    now = await read_gone(directory.disk, directory.path, instance, marks.now)
    gone = GoneLedgerStore(directory.disk, directory.path, instance, now, marks)
    async with _open_ground(directory, instance, new_nonce, config) as ground:
        arenas = Arenas(ground.disk, count=config.arenas, size=config.segment_bytes)
        journal = await _begin(ground, arenas, config)
        try:
            files = [*await ground.catalogue.segments(), *await ground.catalogue.logs()]
            if config.starts_small and len(files) < _FEW_FILES:
                for ballast in directory.ballasts:
                    ballast.begin_small(config.first_segment_bytes)
            # Make the bit durable before the first request, so that the next start knows whether a crash may
            # have lost entries.
            is_unsynced = not config.journal_write_data
            await marks.change(lambda now: now.serving(acknowledges_unsynced=is_unsynced))
            engine, tasks = await _assemble(
                ground, journal, arenas, config, marks, gone, oracle, scrubs_at_once=scrubs_at_once
            )
            async with _running(engine, tasks, ground):
                yield engine
        finally:
            journal.close_files()
            ground.pool.close()


async def refuse_newer(directory: StorageDirectory) -> None:
    """Raise IncompatibleVersion if a journal segment, an entry log or the gone ledgers have a newer format.

    Call this before anything is written, even before phase one of a boot. It does not look for damage or for
    files of another bookie: the code that reads the files later does."""
    disk = directory.disk
    with contextlib.suppress(StorageCorrupt):
        await read_gone(disk, directory.path, "", LossMarks())
    headers = (
        (directory.journal_path, ".journal", SegmentHeader),
        (directory.entries_path, ".entries", LogHeader),
    )
    for place, suffix, header in headers:
        with contextlib.suppress(FileMissing):
            for name in await disk.list_directory(place):
                number = name.removesuffix(suffix)
                if name.endswith(suffix) and len(number) == 16:
                    path = f"{place}/{name}"
                    with contextlib.suppress(StorageError, ValueError):
                        page = await disk.read_file(path, PAGE_BYTES)
                        header.decode(page, path=path, number=int(number, 16), instance="")


@attrs.frozen
class _Ground:
    """The files and the index that all parts of the storage use."""

    directory: StorageDirectory
    recycler: Recycler
    files: EntryFiles
    pool: FilePool
    index: PatientIndex
    catalogue: Catalogue
    new_nonce: Callable[[], bytes]

    @property
    def disk(self) -> Disk:
        return self.directory.disk


@asynccontextmanager
async def _open_ground(
    directory: StorageDirectory, instance: str, new_nonce: Callable[[], bytes], config: StorageConfig
) -> AsyncIterator[_Ground]:
    disk = directory.disk
    recycler = Recycler(disk, directory.journal_path, size=config.segment_bytes, count=config.spare_segments)
    segments = SegmentFiles(
        disk, directory.journal_path, instance, ballast=directory.journal_ballast, recycler=recycler
    )
    logs = EntryLogFiles(disk, directory.entries_path, instance, new_nonce, ballast=directory.ballast)
    files = EntryFiles(segments, logs)
    pool = FilePool(disk, files.path)
    try:
        found = await directory.indexes.open(directory.index_path)
    except FileMissing as cause:
        raise StorageCorrupt(directory.index_path, None, f"the index is missing: {cause}") from cause
    index = PatientIndex(found, directory.ballast, retry_s=config.disk_full_retry_s)
    try:
        catalogue = Catalogue(index)
        if catalogue.instance_now() != instance:
            raise StorageCorrupt(index.path, None, f"the index does not belong to bookie instance {instance}")
        yield _Ground(directory, recycler, files, pool, index, catalogue, new_nonce)
    finally:
        with trio.CancelScope(shield=True):
            await index.aclose()


async def _begin(ground: _Ground, arenas: Arenas, config: StorageConfig) -> Journal:
    """Do steps 1 to 4 of a start. Returns the journal, which continues where it ended."""
    segments, catalogue = ground.files.segments, ground.catalogue
    try:
        replaced, changes = await take_over_logs(ground.files.logs, catalogue)
        replayed = await replay(ground.directory, segments, catalogue, replaced, changes)
    except IndexBehind as missing:
        why = f"{missing.why}. If it was not lost, {ground.index.if_behind}"
        raise StorageCorrupt(missing.path, missing.offset, why) from missing
    size = config.first_segment_bytes or config.segment_bytes
    active = await _next_segment(segments, arenas, replayed, ground.new_nonce, size)
    try:
        commit = GroupCommit(
            durable=replayed.end.sequence, image=active.image, group_bytes_max=config.group_bytes_max
        )
        journal = Journal(
            disk=ground.disk,
            files=segments,
            arenas=arenas,
            config=config,
            active=active,
            commit=commit,
            new_nonce=ground.new_nonce,
        )
        # First make the START block durable, then move the mark to this segment, then serve clients.
        journal.append(START, encode_start(replayed.end))
        await journal.write_block()
        mark = ReplayStart(active.number, commit.durable, is_optional=False, end=replayed.end)
        await catalogue.write([encode_mark(mark)])
        await remove_replaced(ground.files, catalogue, first_segment=active.number)
        # Trim the segments that were just replayed. An earlier process may have moved the mark past other
        # segments without trimming them. Trim those too.
        for row in await catalogue.segments():
            if row.file < active.number and await segments.size(row.file) > row.end:
                await segments.trim(row.file, row.end)
    except BaseException:
        ground.disk.close(active.file)
        raise
    return journal


Task = Callable[[], Awaitable[None]]


async def _assemble(
    ground: _Ground,
    journal: Journal,
    arenas: Arenas,
    config: StorageConfig,
    marks: LossMarkStore,
    gone: GoneLedgerStore,
    oracle: DeletionOracle | None,
    *,
    scrubs_at_once: bool,
) -> tuple[Engine, list[Task]]:
    """Build the engine, and the tasks that run while it is used. Each part gets only parts that were made
    before it. So if you read from top to bottom, you see what each part can reach."""
    disk, files, catalogue, pool = ground.disk, ground.files, ground.catalogue, ground.pool
    policy = config.space_policy(is_journal_apart=ground.directory.is_journal_apart)
    ledgers = LedgerTable(
        catalogue,
        maximum=config.ledgers_max,
        durable=lambda: journal.commit.durable,
        gone=gone,
        on_crowded=journal.progress.unpark_all,
    )
    forgetter = Forgetter(ledgers, pool)
    rewriter = Rewriter(files=files, pool=pool, catalogue=catalogue, ledgers=ledgers)
    residents: Mapping[int, Resident] = journal.residents
    write_cache = None
    if not config.journal_write_data:
        write_cache = WriteCache(
            arenas=Arenas(disk, count=config.arenas, size=config.segment_bytes),
            journal=journal,
            rewriter=rewriter,
            forgetter=forgetter,
            records_max=config.segment_records_max,
            frame_bytes_max=config.frame_bytes_max,
            age_s=config.write_cache_age_s,
            disk_full_retry_s=config.disk_full_retry_s,
        )
        await write_cache.prepare()
        residents = _Residents(journal.residents, write_cache.residents)
    contents = FileContents(files, catalogue)
    compactor = Compactor(
        journal=journal,
        residents=residents,
        contents=contents,
        pool=pool,
        catalogue=catalogue,
        rewriter=rewriter,
        ballast=ground.directory.ballast,
        policy=policy,
        bytes_per_s=config.compact_bytes_per_s,
    )
    replacer = Replacer(journal, catalogue, compactor)
    scrubber = Scrubber(
        journal=journal,
        residents=residents,
        pool=pool,
        index=ground.index,
        catalogue=catalogue,
        ledgers=ledgers,
        contents=contents,
        compactor=compactor,
        replacer=replacer,
        bytes_per_s=config.scrub_bytes_per_s,
    )
    collector = None
    if oracle is not None:
        collector = Collector(
            journal=journal,
            catalogue=catalogue,
            ledgers=ledgers,
            gone=gone,
            rewriter=rewriter,
            oracle=oracle,
        )
    checkpointer = Checkpointer(
        journal=journal,
        files=files.segments,
        ledgers=ledgers,
        catalogue=catalogue,
        rewriter=rewriter,
        policy=policy,
    )
    reader = Reader(
        journal=journal,
        residents=residents,
        pool=pool,
        catalogue=catalogue,
        forgetter=forgetter,
        cache=ReadCache(config.read_cache_bytes),
        read_ahead_bytes=config.read_ahead_bytes,
    )
    engine = Engine(
        journal=journal,
        ledgers=ledgers,
        reader=reader,
        checkpointer=checkpointer,
        compactor=compactor,
        collector=collector,
        scrubber=scrubber,
        replacer=replacer,
        index=ground.index,
        mender=ReadRepair(
            journal=journal,
            residents=residents,
            pool=pool,
            catalogue=catalogue,
            compactor=compactor,
            replacer=replacer,
            frame_bytes_max=config.frame_bytes_max,
        ),
        arenas=arenas,
        marks=marks,
        write_cache=write_cache,
        frame_bytes_max=config.frame_bytes_max,
    )
    ground.index.on_stuck = journal.on_index_stuck
    tasks: list[Task] = [
        journal.run_writer,
        partial(journal.run_supply, forgetter),
        checkpointer.run,
        engine.flusher.run,
        ground.recycler.run,
        engine.reclaimer.run,
        *(
            partial(ballast.run, lambda: journal.files_changed, interval_s=config.disk_watch_interval_s)
            for ballast in ground.directory.ballasts
        ),
        partial(
            compactor.run,
            interval_s=config.compact_interval_s,
            eventual_interval_s=config.compact_eventual_interval_s,
        ),
    ]
    if write_cache is not None:
        tasks += [write_cache.run_supply, write_cache.run_flushes]
    if config.scrub:
        tasks.append(partial(scrubber.run, interval_s=config.scrub_interval_s, at_once=scrubs_at_once))
    if collector is not None:
        tasks.append(partial(collector.run, interval_s=config.collect_interval_s))
    return engine, tasks


class _Residents(ChainMap[int, Any]):
    """The segments and the arenas that are in memory, by number. The two kinds never share a number."""


async def _sound_marks(directory: StorageDirectory) -> LossMarkStore:
    """Read the marks of a directory that lost nothing. Raises StorageError if it may have lost data."""
    now = await read_marks(directory.disk, directory.path)
    if now is None or now.is_unclean:
        raise StorageError(
            f"{directory.path} may have lost acknowledged entries: its bookie did not stop cleanly and did "
            f"not write entries to the journal first, or its loss marks are gone. Only 'bookie run' may "
            f"open it, because it can ask the metadata store"
        )
    return LossMarkStore(directory.disk, directory.path, now)


async def _next_segment(
    files: SegmentFiles, arenas: Arenas, replayed: Replayed, new_nonce: Callable[[], bytes], size: int
) -> JournalSegment:
    """Return the segment to continue in: a prepared one that was never written to, or a new one of ``size``
    bytes. On a full disk a new segment is smaller, because a bookie that cannot start cannot serve reads or
    free space."""
    number = replayed.next_segment
    if replayed.pristine:
        header, *more = replayed.pristine
        assert header.number == number
        for surplus in reversed(more):  # A crash in between must leave no gap.
            await files.remove(surplus.number)
        return await files.reopen(header, await arenas.take(header.size))
    while True:
        view = await arenas.take(size)
        is_last_resort = size <= _FIRST_SEGMENT_BYTES_MIN
        try:
            return await files.create(number, view, new_nonce(), is_last_resort=is_last_resort)
        except DiskFull as full:
            arenas.give_back(view)
            if is_last_resort:
                raise DiskFull(
                    f"{files.directory}: a start needs {size} bytes to continue the journal, and the bookie "
                    f"has nothing left to delete; free some space on that disk ({full})"
                ) from full
            size = max(_FIRST_SEGMENT_BYTES_MIN, size // 8 // PAGE_BYTES * PAGE_BYTES)
            logger.warning("continuing in a segment of %d bytes: %s", size, full)


@asynccontextmanager
async def _running(engine: Engine, tasks: Sequence[Task], ground: _Ground) -> AsyncIterator[None]:
    """Run the tasks of an engine around the body."""
    failure: StorageError | None = None
    body_error: BaseException | None = None

    async with trio.open_nursery() as nursery:

        async def guard(task: Task) -> None:
            nonlocal failure
            try:
                await task()
            except StorageError as error:
                failure = failure or error
                engine.stop(Status.IO_ERROR)
                nursery.cancel_scope.cancel()

        for task in tasks:
            nursery.start_soon(guard, task, name=task)
        ground.index.is_patient = True
        try:
            yield
            ground.index.is_patient = False  # A disk that stays full must not keep the bookie from stopping.
            for ballast in ground.directory.ballasts:
                await ballast.make_way_for_good()
            await engine.close()
        except BaseException as error:
            if holds_cancellation(error):
                raise
            # This is raised below, outside the nursery: the nursery would wrap the caller's exception in a
            # group.
            body_error = error
        engine.stop(Status.NOT_READY)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if body_error is not None:
        raise body_error
