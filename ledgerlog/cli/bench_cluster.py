"""The cluster that a benchmark runs on: a throw-away cluster, or the cluster in ``--uri``.

The bookies of a throw-away cluster are processes that this process started, so their CPU time is known. The
bookies of another cluster may be anywhere; then only their counts are known.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from ledgerlog.cli.bench_baseline import Baseline, measure_baseline
from ledgerlog.cli.bench_figures import BookieCounts, CpuClock, bookie_counts
from ledgerlog.cli.demo import throw_away_directory
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster, write_config
from ledgerlog.cli.options import connect
from ledgerlog.cluster import Cluster
from ledgerlog.credential_options import refuse_given

__all__ = ["BenchCluster", "Spent", "open_bench_cluster"]


@attrs.frozen
class Spent:
    """The cost of a stretch of a benchmark."""

    here_ns: int
    """CPU time of this process, the client."""
    bookies_ns: dict[str, int] | None
    """CPU time of each bookie's process; None if we did not start the bookies."""
    counts: dict[str, BookieCounts]
    """The counts of each bookie in the stretch."""

    @property
    def syncs(self) -> int:
        """Syncs of all bookies together."""
        return sum(counts.syncs for counts in self.counts.values())

    @property
    def journal_bytes(self) -> int:
        """Bytes that all bookies together wrote to their journals."""
        return sum(counts.journal_bytes for counts in self.counts.values())

    def cpu_us(self, count: int) -> dict[str, object]:
        """Return the microseconds of CPU for each of ``count`` records: client, each bookie, and the sum."""
        here = self.here_ns / 1000 / count
        if self.bookies_ns is None:
            return {"client": here, "bookies": None, "sum": None}
        bookies = {name: ns / 1000 / count for name, ns in self.bookies_ns.items()}
        return {"client": here, "bookies": bookies, "sum": here + sum(bookies.values())}


@attrs.define(eq=False)
class Meter:
    """Measures the cost of a stretch of a benchmark, starting when it is made."""

    _cluster: Cluster
    _clock: CpuClock
    _counts: dict[str, BookieCounts]
    _has_bookies: bool

    async def spent(self) -> Spent:
        """Return the cost since the meter was made."""
        here_ns, bookies_ns = self._clock.spent_ns()
        now = await bookie_counts(self._cluster)
        counts = {name: count - self._counts[name] for name, count in now.items() if name in self._counts}
        return Spent(here_ns, bookies_ns if self._has_bookies else None, counts)


@attrs.frozen
class BenchCluster:
    """A cluster to measure. ``local`` is None if it was not started by this process."""

    uri: str
    cluster: Cluster
    local: LocalCluster | None
    has_tls: bool

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment for a child process that connects to the cluster."""
        return self.cluster.client.credentials.environment_of_child(os.environ)

    async def meter(self) -> Meter:
        """Start to measure.

        First collects garbage, then freezes the remaining objects, so later collections skip them.
        """
        gc.collect()
        gc.freeze()
        processes = {} if self.local is None else {n: child.pid for n, child in self.local.bookies.items()}
        counts = await bookie_counts(self.cluster)
        return Meter(self.cluster, CpuClock(processes), counts, self.local is not None)

    async def baseline(self) -> Baseline | None:
        """Measure the machine's own figures; None if the bookies' disks are not on this machine."""
        if self.local is None:
            return None
        return await measure_baseline(self.local.path, self.local.children)


@asynccontextmanager
async def open_bench_cluster(
    uri: str | None, *, bookies: int, zookeepers: int = 0, with_tls: bool = False
) -> AsyncIterator[BenchCluster]:
    """Open the cluster at ``uri``, or start a throw-away one with this many bookie processes.

    With ``zookeepers``, the throw-away cluster keeps its metadata in this many ZooKeeper servers, otherwise
    in SQLite. With ``with_tls``, it has certificates."""
    if uri is not None:
        async with connect(uri) as cluster:
            yield BenchCluster(uri, cluster, None, cluster.client.credentials.tls is not None)
        return
    refuse_given("without --uri the benchmark runs on its own cluster")
    with throw_away_directory("bench") as directory:
        config = directory / "bookie.toml"
        write_config(config)  # No configuration file: the benchmark measures the bookies' defaults.
        async with local_cluster(
            directory, bookies=bookies, config=config, zookeepers=zookeepers, with_tls=with_tls
        ) as local:
            yield BenchCluster(local.uri, local.cluster, local, with_tls)
