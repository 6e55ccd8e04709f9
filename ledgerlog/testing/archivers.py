"""The archive in a swarm: jobs that archive every log, give up the bookies' copies at once, and merge files.

Each process runs the production jobs (``ledgerlog.archive.jobs``) on all logs again and again, beside
writers, readers, truncation and other archiving processes. The files are real ones in a temporary directory
that the processes share. All processes know it by the same URL in every run, as an object store: ``URL``. No
fault hits it, but processes die between any two steps of a job. The threads of the jobs are steps of the run.

Readers find archived records in the files. So the judges of the workloads, which read whole logs, judge the
archive too. And in the end:

    ArchiveWhole    each archived file is there, and its content matches its record
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import trio

from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.archive.jobs.rewrite import merge_log
from ledgerlog.archive.reader import check_archive, pyarrow_needed
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.testing.world import World, retry

__all__ = ["Archivers", "open_store"]

URL = "simulated://archive"
"""The destination of all jobs."""

_KEEP_COPIES_S = (0.0, 0.0, 0.5)
"""How long bookies keep their copies of an archived ledger, in seconds."""


class Archivers:
    """The archiving processes of one run. Each is a *resident* (``workload``).

    Args:
        world: The run.
        count: How many processes there are. May be 0.
    """

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._random: Random = world.simulation.random("archivers")
        self._gap_s = min(1.0, world.swarm.trouble_s / 6)
        self.mains = {f"archiver-{number}": self._run for number in range(1, count + 1)}
        """The processes, by name."""

    async def _run(self, client: Cluster) -> None:
        random = self._random
        while True:
            await trio.sleep(random.expovariate(1 / self._gap_s))
            try:
                for name in await client.logs():
                    await self._work(client, name)
            except LedgerLogError as error:
                self._world.event("not archived", type(error).__name__)

    async def _work(self, client: Cluster, name: str) -> None:
        counts, random = self._world.counts, self._random
        if random.random() < 0.7:
            keep_copies_s = random.choice(_KEEP_COPIES_S)
            steps = await archive_log(client.client, name, URL, keep_copies_s=keep_copies_s)
        else:
            steps = await merge_log(client.client, name, URL)
        for step in steps:
            counts[f"archive: {step.what}"] += 1

    async def judge(self, client: Cluster) -> None:
        """Check every archived file. Call it after everything was healed.

        Raises:
            Violation: A file cannot be read, or is not the one that was recorded.
        """
        if not self.mains:
            return
        registry = ArchiveRegistry(client.store)

        async def check() -> None:
            for incarnation in await registry.incarnations():
                for record, _ in await registry.of_log(incarnation):
                    try:
                        await check_archive(record)
                    except LedgerLogError:
                        now = await registry.find(incarnation, record.ledger_id)
                        if now is not None and now[0] == record:
                            raise
                        continue  # A job has merged or retired the file meanwhile.
                    self._world.god.checks["ArchiveWhole"] += 1

        await retry(self._world, "reading every archived file (ArchiveWhole)", check)


@contextmanager
def open_store(directory: str) -> Iterator[None]:
    """Import the modules that the jobs need, and make ``URL`` a store with its files in ``directory`` during
    the body.

    Enter it before the run, because an import may ask for the time.

    Raises:
        ArchiveSupportMissing: pyarrow is not installed.
    """
    with pyarrow_needed("archives in a simulation"):
        import pyarrow
        from pyarrow import fs

        from ledgerlog.archive import destinations, footer, marker, parquet

    assert footer and marker and parquet  # noqa: PT018  # They are imported here, and not in the run.
    # With its first array, pyarrow imports pandas and numpy if they are installed.
    pyarrow.array([b""])
    resolve = destinations._resolve

    def resolve_simulated(url: str) -> tuple[Any, str]:
        if not url.startswith(URL):
            return resolve(url)
        return fs.SubTreeFileSystem(directory, fs.LocalFileSystem()), url.removeprefix("simulated://")

    destinations._resolve = resolve_simulated
    try:
        yield
    finally:
        destinations._resolve = resolve
