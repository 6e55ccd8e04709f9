"""The archive in a swarm: jobs that archive every log, give up the bookies' copies at once, and merge files.

Each process runs the production jobs (``ledgerlog.archive.jobs``) on all logs again and again. Writers,
readers, truncation and other archiving processes run at the same time. The process also retires the files of
deleted logs, compacts one log by keys (``keyed``), and sometimes moves the whole archive to another
destination. Before some moves its operator makes a mistake: a job runs at the copy before the cluster is told
of the move, or the move names a place without an archive. Neither may change anything. Before others the
marker of the archive is not copied, and the operator accepts the new place.

All destinations are in an object store of the run (``archive_store``). Requests take simulated time. So a
killed process may die between any two of them. The store has its own faults (``ARCHIVE_FAULTS``):

    archive out of reach        every request fails for a while
    archive requests fail       some of the requests fail, before, after or in the middle of their effect
    archive uploads damaged     some of the uploads have a flipped bit
    archive unmounted           for a while another, empty store answers, as if a disk was not mounted. This
                                happens at most once in a run, because a job does not notice two changes
                                between two of its checks. It does not happen while a job accepts the
                                destination, and not before the cluster knows of an archive and its marker:
                                nothing could tell the two stores apart
    archived file damaged       a file is lost, cut or damaged. This happens only while bookies have copies of
                                all its ledgers, and while no job runs

Readers find archived records in the files. At the end, the judges of the workloads read whole logs, so they
check the archive too. Before that, one more process deletes all files that no record names. A day has passed
on its clock. These rules are checked:

    ArchiveWhole    each archived file exists, and its content matches its record
    ArchiveClean    after a day, each file of the archive has a record
    ArchiveListed   the list of archives (``jobs.listing``) counts exactly the recorded files
    ArchiveMarked   no job runs at a place that the cluster does not know, and no archive is moved from one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from typing import TYPE_CHECKING

import trio

from ledgerlog.archive.jobs.archiver import ArchiveStep
from ledgerlog.archive.jobs.job import archive_log, retire_gone
from ledgerlog.archive.jobs.listing import list_archives
from ledgerlog.archive.jobs.moving import move_archive
from ledgerlog.archive.jobs.rewrite import compact_log, merge_log
from ledgerlog.archive.reader import check_archive, check_end, pyarrow_needed
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.cluster import Cluster
from ledgerlog.errors import ArchiveUnavailable, InvalidArgument, LedgerLogError
from ledgerlog.limits import ARCHIVE_STRAY_AGE_S
from ledgerlog.model.archive import ArchiveDestination, ArchivedFile
from ledgerlog.model.layout import ARCHIVES, DESTINATIONS, ledger_path
from ledgerlog.testing.cluster import EPOCH_MS
from ledgerlog.testing.deterministic import Simulation
from ledgerlog.testing.keyed import LOG, KeyedLog
from ledgerlog.testing.plan import Fault
from ledgerlog.testing.world import World, retry

if TYPE_CHECKING:
    from ledgerlog.testing.archive_store import ArchiveStore

__all__ = ["ARCHIVE_FAULTS", "Archivers", "open_store"]

SCHEME = "simulated://"  # As in ``archive_store``, which is imported only where pyarrow is installed.
PLACES = (f"{SCHEME}archive", f"{SCHEME}bucket/archive")
"""The destinations. A move goes from one to the other."""

ARCHIVE_FAULTS = (
    "archive out of reach",
    "archive requests fail",
    "archive uploads damaged",
    "archive unmounted",
    "archived file damaged",
)
"""The kinds of faults of the store."""

REQUEST_S = 0.003
"""How long the work of a thread takes on average, in simulated seconds."""

_KEEP_COPIES_S = (0.0, 0.5, 5.0)
"""How long bookies keep their copies of an archived ledger in a full run, in seconds."""

_DAMAGE_WITHIN_S = 2.0
"""How long a fault waits for a file that may be damaged, in seconds."""

_DAY_S = 25 * 3600.0
"""More than ``limits.ARCHIVE_STRAY_AGE_S`` and all differences between clocks."""

CLEANER = "archive-cleaner"


class Archivers:
    """The archiving processes of one run. Each is a *resident* (``workload``).

    Args:
        world: The run.
        count: How many processes there are. May be 0.
        store: The object store. None: there are no processes.
    """

    def __init__(self, world: World, count: int, store: ArchiveStore | None) -> None:
        self._world = world
        self._store = store
        self._random: Random = world.simulation.random("archivers")
        self._at_work = 0
        self._accepting = 0
        self._was_unmounted = False
        self._moves_begun = 0
        self._keyed = KeyedLog(world, world.simulation.random("keyed"))
        self.mains = {f"archiver-{number}": self._run for number in range(1, count + 1)}
        """The processes, by name."""
        if count:
            self.mains.update(self._keyed.mains)

    # --- jobs ---------------------------------------------------------------------------------

    async def _run(self, client: Cluster) -> None:
        random = self._random
        assert self._store is not None
        while True:
            await trio.sleep(random.expovariate(1 / self._world.gap_s(12)))
            accepts = False
            try:
                places = [each.url for each in await list_archives(client.client) if not each.moved_to]
                place = places[0] if places else PLACES[0]
                if places and random.random() < 0.1:
                    await self._move(client, place)
                    continue
                for name in await client.logs():
                    try:
                        await self._work(client, name, place, accepts=accepts)
                    except ArchiveUnavailable as error:
                        self._world.event("not archived", name, type(error).__name__)
                        # An operator checks the place, and accepts it as the right one.
                        accepts = random.random() < 0.3 and not self._store.is_unmounted
                if random.random() < 0.3:
                    with self._working():
                        self._count(await retire_gone(client.client, place))
            except LedgerLogError as error:
                self._world.event("not archived", type(error).__name__)

    async def _work(self, client: Cluster, name: str, place: str, *, accepts: bool) -> None:
        random = self._random
        what = random.choice(
            ("archive", "archive", "archive", "merge", "compact" if name == LOG else "merge")
        )
        with self._working(accepts=accepts):
            if what == "archive":
                keep_copies_s = random.choice(_KEEP_COPIES_S) * self._world.swarm.stretch
                steps = await archive_log(
                    client.client, name, place, keep_copies_s=keep_copies_s, accept_destination=accepts
                )
            elif what == "merge":
                steps = await merge_log(client.client, name, place)
            else:
                steps = await self._compact(client, name, place)
        self._count(steps)

    async def _compact(self, client: Cluster, name: str, place: str) -> list[ArchiveStep]:
        after_s = self._random.choice((None, 0.0, 0.5 * self._world.swarm.stretch))
        return await compact_log(
            client.client, name, place, rule=self._keyed.rule, tombstones_after_s=after_s
        )

    async def _move(self, client: Cluster, source: str) -> None:
        """Copy the whole archive to the other destination, and tell the cluster."""
        assert self._store is not None
        target = PLACES[1 - PLACES.index(source)]
        if self._random.random() < 0.3:
            await self._name_the_wrong_place(client, source, target)
        loses_marker = self._random.random() < 0.3
        self._moves_begun += 1
        for _ in range(3):
            self._store.copy(source, target, with_marker=not loses_marker)
            accepts = loses_marker and not self._store.is_unmounted
            with self._working(accepts=True) if accepts else nullcontext():
                steps = await move_archive(client.client, source, target, accept_destination=accepts)
            self._count(steps)
            if all(step.what == "moved" for step in steps):
                self._store.drop(source)
                self._world.counts["archives moved"] += 1
                return

    async def _name_the_wrong_place(self, client: Cluster, source: str, target: str) -> None:
        """Make a mistake before a move. Another process may move the archive at the same time, so the wrong
        place may be the right one by then. Only if it is not, the mistake must be refused."""
        assert self._store is not None
        known, begun = self._known_places(), self._moves_begun

        def is_wrong() -> bool:
            is_unmoved = begun == self._moves_begun and known <= self._known_places()
            return is_unmoved and source in known and target not in known

        try:
            if self._random.random() < 0.5:
                await move_archive(client.client, f"{target}/nothing", source)
                self._world.god.violate("ArchiveMarked", f"the archive was moved from {target}/nothing")
            elif not self._store.is_unmounted:
                self._store.copy(source, target)
                with self._working(accepts=True):  # On an empty disk it would begin another archive.
                    for name in await client.logs():
                        steps = await archive_log(client.client, name, target)
                        self._count(steps)
                        if steps and is_wrong():
                            self._world.god.violate(
                                "ArchiveMarked", f"a job ran at {target}, and the archive is at {source}"
                            )
        except (InvalidArgument, ArchiveUnavailable) as refusal:
            self._world.god.checks["ArchiveMarked"] += 1
            self._world.counts[f"archive: refused with {type(refusal).__name__}"] += 1

    def _known_places(self) -> set[str]:
        """Return the URLs at which there is an archive now, as the metadata have it."""
        tree = self._world.cluster.tree
        found = set()
        for path in tree.paths(f"{DESTINATIONS}/"):
            value = tree.value(path)
            assert value is not None
            place = ArchiveDestination.decode_untrusted(value, path)
            if not place.moved_to:
                found.add(place.where)
        return found

    @contextmanager
    def _working(self, *, accepts: bool = False) -> Iterator[None]:
        self._at_work += 1
        self._accepting += accepts
        try:
            yield
        finally:
            self._at_work -= 1
            self._accepting -= accepts

    def _count(self, steps: list[ArchiveStep]) -> None:
        for step in steps:
            self._world.counts[f"archive: {step.what}"] += 1

    # --- faults -------------------------------------------------------------------------------

    async def inject(self, fault: Fault, random: Random, lasting_s: float) -> None:
        """Inject a fault of the store. If it lasts for a time, return when it is over."""
        store = self._store
        assert store is not None
        match fault.kind:
            case "archive out of reach":
                store.is_out_of_reach = True
                await trio.sleep(lasting_s)
                store.is_out_of_reach = False
            case "archive requests fail":
                store.failing_share = random.choice((0.05, 0.3))
                await trio.sleep(lasting_s)
                store.failing_share = 0.0
            case "archive uploads damaged":
                store.flipping_share = random.choice((0.2, 1.0))
                await trio.sleep(lasting_s)
                store.flipping_share = 0.0
            case "archive unmounted":
                is_begun = bool(self._world.cluster.tree.paths(f"{DESTINATIONS}/"))
                if self._was_unmounted or self._accepting or not is_begun:
                    return
                self._was_unmounted = True
                store.unmount()
                await trio.sleep(lasting_s)
                store.mount()
            case "archived file damaged":
                for _ in range(100):
                    paths = [] if self._at_work else self._files_with_copies()
                    if paths:
                        what = store.damage(random.choice(paths))
                        self._world.event("archived file damaged", what)
                        break
                    await trio.sleep(_DAMAGE_WITHIN_S * self._world.swarm.stretch / 100)
                else:
                    return
            case _:
                raise AssertionError(f"there is no fault of the kind {fault.kind!r}")
        self._world.cluster.faults[fault.kind] += 1

    def _files_with_copies(self) -> list[str]:
        """Return the paths of the recorded files whose ledgers all have copies on bookies."""
        assert self._store is not None
        tree, found = self._world.cluster.tree, dict[str, None]()
        for path in tree.paths(f"{ARCHIVES}/"):
            _, incarnation, *rest = path.split("/")
            if not rest:
                continue
            value = tree.value(path)
            assert value is not None
            record = ArchivedFile.decode_untrusted(value, int(incarnation, 16))
            if all(tree.value(ledger_path(ledger.ledger_id)) for ledger in record.ledgers):
                found[record.name] = None
        return [path for path in sorted(self._store.objects) if path.split("/", 1)[-1] in found]

    # --- after it -----------------------------------------------------------------------------

    async def clean(self) -> None:
        """Let a day pass for an archiving process, and check that it leaves no file without a record.

        Call it after everything was healed, while no other process archives.

        Raises:
            Violation: A file is left.
        """
        if not self.mains:
            return
        from ledgerlog.archive.destinations import base_name, offsets_of_name

        assert self._store is not None
        cluster, store = self._world.cluster, self._store
        before = dict.fromkeys(store.objects)
        kept: dict[str, str] = {}

        async def clean() -> None:
            kept.clear()
            async with cluster.client(CLEANER) as client:
                archives = [each for each in await list_archives(client.client) if not each.moved_to]
                for archive in archives:
                    for name in await client.logs():
                        steps = await archive_log(
                            client.client, name, archive.url, keep_copies_s=0, accept_destination=True
                        )
                        self._count(steps)
                        kept.update({step.file: step.why for step in steps if step.what == "skipped"})
                        if name == LOG:
                            # If an earlier record of a key is lost, later ones hide it. After this, only the
                            # latest one is left.
                            self._count(await self._compact(client, name, archive.url))
                    self._count(await retire_gone(client.client, archive.url, accept_destination=True))

        async with cluster.client(CLEANER):
            pass  # Now the process exists and has a clock.
        cluster.jump_clock(CLEANER, _DAY_S)
        await retry(self._world, "cleaning the archive", clean)
        async with cluster.client(CLEANER) as client:
            records = await self._records(client)
            directories = [await self._directory(client, name) for name in await client.logs()]
            places = [each.url for each in await list_archives(client.client) if not each.moved_to]
            day_ago_ms = client.client.environment.now_ms() - 1000 * ARCHIVE_STRAY_AGE_S
        named = {record.file for record in records}
        fresh = [record for record in records if record.archived_ms > day_ago_ms]
        for path in before:
            url = f"{SCHEME}{path}"
            is_ours = any(url.startswith(f"{place}/{name}/") for place in places for name in directories)
            if path not in store.objects or not is_ours:
                continue
            first, end = offsets_of_name(base_name(url)) or (0, 0)
            directory = url.rpartition("/")[0]
            was_replaced = any(
                each.file.rpartition("/")[0] == directory
                and each.first_offset <= first
                and end <= each.end_offset
                for each in fresh
            )
            if url not in named and url not in kept and not was_replaced:
                self._world.god.violate("ArchiveClean", f"{url} is left, and no record names it")
            self._world.god.checks["ArchiveClean"] += 1

    async def _directory(self, client: Cluster, name: str) -> str:
        from ledgerlog.archive.destinations import log_directory

        log = await client.open_log(name)
        return log_directory(name, log.incarnation, self._world.cluster.cluster_id)

    async def _records(self, client: Cluster) -> list[ArchivedFile]:
        """Return the records of all archived files."""
        registry = ArchiveRegistry(client.store)
        return [
            record
            for incarnation in await registry.incarnations()
            for record, _ in await registry.of_log(incarnation)
        ]

    async def judge(self, client: Cluster) -> None:
        """Check every archived file, and the log that is compacted. Call it after everything was healed.

        Raises:
            Violation: A file cannot be read or is not the one that was recorded, or a record is wrong.
        """
        if not self.mains:
            return
        registry = ArchiveRegistry(client.store)

        async def check() -> None:
            for record in await self._records(client):
                try:
                    await check_end(record)
                    await check_archive(record)
                except LedgerLogError:
                    now = await registry.find(record.incarnation, record.ledger_id)
                    if now is not None and now[0] == record and not self._may_be_damaged(record):
                        raise
                    continue  # Since then, a job has merged, moved or retired the file.
                self._world.god.checks["ArchiveWhole"] += 1

        await retry(self._world, "reading every archived file (ArchiveWhole)", check)
        await retry(self._world, "listing the archives (ArchiveListed)", lambda: self._check_list(client))
        for name in self._keyed.mains:
            await self._world.cluster.put_down(name)
        await self._keyed.judge(client)

    def _may_be_damaged(self, record: ArchivedFile) -> bool:
        """Whether a fault has hit a file, and bookies still have copies of all its ledgers."""
        assert self._store is not None
        tree = self._world.cluster.tree
        is_hit = any(path.endswith(record.name) for path in self._store.damaged)
        return is_hit and all(tree.value(ledger_path(ledger.ledger_id)) for ledger in record.ledgers)

    async def _check_list(self, client: Cluster) -> None:
        """Compare the list of archives with the records, while no job changes them."""
        records = await self._records(client)
        listed = await list_archives(client.client)
        if await self._records(client) != records:
            raise ArchiveUnavailable("of the run", "jobs have changed the archive while it was listed")
        told = sum(each.files for each in listed), sum(each.records for each in listed)
        if told != (len(records), sum(record.record_count for record in records)):
            self._world.god.violate("ArchiveListed", f"{listed} of {len(records)} files")
        self._world.god.checks["ArchiveListed"] += 1


@contextmanager
def open_store(simulation: Simulation) -> Iterator[ArchiveStore]:
    """Import the modules that the jobs need, and make an object store for the body.

    Enter it before the run, because an import may ask for the time.

    Raises:
        ArchiveSupportMissing: pyarrow is not installed.
    """
    with pyarrow_needed("archives in a simulation"):
        import pyarrow

        from ledgerlog.archive import file_reader, file_writer, footer, marker
        from ledgerlog.testing.archive_store import ArchiveStore

    assert all((file_reader, file_writer, footer, marker)), "imported here, and not in the run"
    # With its first array, pyarrow imports pandas and numpy if they are installed.
    pyarrow.array([b""])
    store = ArchiveStore(lambda: EPOCH_MS + int(simulation.now * 1000), simulation.random("archive store"))
    with store.mounted():
        yield store
