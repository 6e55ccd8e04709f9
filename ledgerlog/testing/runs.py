"""Begins runs on a simulated cluster (``ledgerlog.testing.cluster``), and clusters inside of your own run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from bookie.storage.engine.config import StorageConfig
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.model.quorum import Replication
from ledgerlog.testing.cluster import (
    SMALL_STORAGE,
    OnDurable,
    OnLoss,
    OnMetadata,
    ProverOf,
    SimulatedCluster,
)
from ledgerlog.testing.deterministic import Outcome, Simulation, current_simulation
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.wiretap import Observer

__all__ = ["simulate", "simulated_cluster"]

T = TypeVar("T")


@asynccontextmanager
async def simulated_cluster(
    *,
    bookies: int = 4,
    replication: Replication | None = None,
    storage: StorageConfig = SMALL_STORAGE,
    quality: LinkQuality | None = None,
    on_durable: OnDurable | None = None,
    on_metadata: OnMetadata | None = None,
    on_loss: OnLoss | None = None,
    observer: Observer | None = None,
    unsynced: int = 0,
    racks: int = 0,
    disk_bytes: int | None = None,
    prover_of: ProverOf = lambda _process, _random: None,
) -> AsyncIterator[SimulatedCluster]:
    """Run a cluster of bookies during the body, inside a run of ``simulate`` or ``Simulation``.

    The cluster takes its seed from the run.

    Args:
        bookies: How many bookies to start.
        replication: The default replication of the clients. None: up to three copies, acknowledged by a
            majority of them.
        storage: The storage configuration of the bookies.
        quality: How links behave without faults. None: the defaults of ``LinkQuality``.
        on_durable: Called as ``on_durable(bookie, path, offset, data)`` for everything that becomes durable.
        on_metadata: Called as ``on_metadata(path, before, after)`` for each metadata write.
        on_loss: Called as ``on_loss(bookie)`` if a bookie that served ends without a clean stop.
        observer: Told of every frame that processes exchange (``wiretap.Observer``).
        unsynced: The first ``unsynced`` bookies acknowledge entries before they sync them
            (``journal_write_data = false``), and come back from a crash through limbo. If nothing may be
            lost, use at most ``ack_quorum - 1``.
        racks: Over how many racks the bookies are spread. 0: their registrations name no rack.
        disk_bytes: The capacity of each bookie's disk. None: without bounds.
        prover_of: Called for each life of a process, with its name and a generator for nonces. It returns who
            the process is; None: nobody, in an open cluster.

    Returns:
        An async context manager. Entering it gives the ``SimulatedCluster`` with all its bookies serving.

    Raises:
        RuntimeError: The caller is not inside a simulated run.
    """
    simulation = current_simulation()
    copies = min(3, bookies)
    async with open_serving_nursery() as nursery:
        cluster = SimulatedCluster(
            simulation,
            nursery,
            storage=storage,
            quality=quality,
            replication=replication or Replication(copies, copies, copies // 2 + 1),
            on_durable=on_durable,
            on_metadata=on_metadata,
            on_loss=on_loss,
            observer=observer,
            unsynced=unsynced,
            racks=racks,
            disk_bytes=disk_bytes,
            prover_of=prover_of,
        )
        for _ in range(bookies):
            await cluster.add_bookie()
        yield cluster


def simulate(
    scenario: Callable[[SimulatedCluster], Awaitable[T]],
    *,
    seed: int = 0,
    bookies: int = 4,
    replication: Replication | None = None,
    storage: StorageConfig = SMALL_STORAGE,
    quality: LinkQuality | None = None,
    is_strict: bool = False,
) -> Outcome[T]:
    """Run ``await scenario(cluster)`` on a simulated cluster. The same seed gives the same run.

        async def scenario(cluster):
            async with cluster.client("a") as client:
                log = await client.create_log("orders")
                async with log.writer() as writer:
                    await writer.append(b"first")

        simulate(scenario, seed=1, bookies=4)

    Call it outside of any event loop.

    Args:
        scenario: An async function. It gets the ``SimulatedCluster``.
        seed: Decides the schedule and every random choice of the run.
        bookies: How many bookies to start.
        replication: The default replication of the clients. None: up to three copies, acknowledged by a
            majority of them.
        storage: The storage configuration of the bookies.
        quality: How links behave without faults. None: the defaults of ``LinkQuality``.
        is_strict: Hash every step of every task into the trace, too.

    Returns:
        The ``Outcome``: the result of ``scenario``, and the hash of the run.

    Raises:
        Deadlock: Nothing could happen any more.
        SimulatedTimeExceeded: The run took more than 24 simulated hours.
        CpuTimeExceeded: The run took more than 120 s of CPU time. Only the main thread checks this.
        Exception: ``scenario`` raised it. It has a note with the seed and the last events.
    """

    async def main(simulation: Simulation) -> T:
        async with simulated_cluster(
            bookies=bookies, replication=replication, storage=storage, quality=quality
        ) as cluster:
            return await scenario(cluster)

    return Simulation(seed, is_strict=is_strict).run(main)
