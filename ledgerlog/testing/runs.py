"""Begin runs on a simulated cluster (``ledgerlog.testing.cluster``), or a cluster inside your own run."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from typing import TypeVar

from bookie.storage.engine.config import StorageConfig
from ledgerlog.concurrency.nurseries import open_serving_nursery
from ledgerlog.errors import InvalidArgument
from ledgerlog.model.checks import check_kind
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
from ledgerlog.testing.minimize import minimize, way_of
from ledgerlog.testing.trouble import DrawnFaults, RunningFaults, open_trouble
from ledgerlog.testing.wiretap import Observer

__all__ = ["simulate", "simulated_cluster"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

SHRINK_RUNS_MAX = 100
"""How often a failing run is repeated at most, to find the faults that it needs to fail."""

SHRINK_CPU_S = 60.0
"""How much CPU time these runs take at most, in seconds. The last one may go beyond it."""


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
        racks: The number of racks over which the bookies are spread. 0: their registrations name no rack.
        disk_bytes: The capacity of each bookie's disk. None: unlimited.
        prover_of: Called for each life of a process, with the name of the process and a generator for nonces.
            It returns the prover of the process's identity. None: the cluster is open, and no process proves
            its identity.

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
    faults: DrawnFaults | None = None,
    only: Collection[int] | None = None,
    shrinks: bool = True,
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
        scenario: An async function. It gets the ``SimulatedCluster``. It must make everything that it uses,
            because a run that fails is repeated.
        seed: Decides the schedule and every random choice of the run.
        bookies: How many bookies to start.
        replication: The default replication of the clients. None: up to three copies, acknowledged by a
            majority of them.
        storage: The storage configuration of the bookies.
        quality: How links behave without faults. None: the defaults of ``LinkQuality``.
        is_strict: Hash every step of every task into the trace, too.
        faults: Faults for the seed to draw. They come while the scenario runs; ``await cluster.calm()`` waits
            for their end. None: the run has only the faults of the scenario.
        only: The numbers of the drawn faults to inject, as the notes of a failure name them. None: all.
        shrinks: If the run fails, repeat it with fewer of the drawn faults, up to 100 times and for a minute
            of CPU time. Name the faults that the run needs to fail in the same way.

    Returns:
        The ``Outcome``: the result of ``scenario``, and the hash of the run.

    Raises:
        Deadlock: Nothing more could happen.
        SimulatedTimeExceeded: The run took more than 24 simulated hours. The message names the tasks that
            wait in your own code.
        CpuTimeExceeded: The run took more than 120 s of CPU time. Only the main thread checks this.
        InvalidArgument: The seed draws no faults with the numbers ``only``, or ``faults.spare`` names a
            process that never existed. Or ``faults`` are no DrawnFaults.
        Exception: ``scenario`` raised it. Its notes name the seed, the last events, the drawn faults that
            came before the failure, in order, and the faults that the run needs to fail.
    """
    if faults is not None:
        check_kind(faults, DrawnFaults, "faults", "a ledgerlog.testing.DrawnFaults or None")
    trouble: RunningFaults | None = None

    async def main(simulation: Simulation, only: Collection[int] | None) -> T:
        nonlocal trouble
        trouble = None
        async with simulated_cluster(
            bookies=bookies, replication=replication, storage=storage, quality=quality
        ) as cluster:
            if faults is None:
                return await scenario(cluster)
            async with open_trouble(cluster, faults, only) as trouble:
                return await scenario(cluster)

    def run(only: Collection[int] | None) -> Outcome[T]:
        return Simulation(seed, is_strict=is_strict).run(partial(main, only=only))

    def fails(only: Collection[int], way: str) -> RunningFaults | None:
        try:
            run(only)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return trouble if way_of(error) == way else None
        return None

    if faults is None and only is not None:
        raise InvalidArgument("only chooses from drawn faults: it needs faults=DrawnFaults()")
    try:
        return run(only)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        failed = trouble
        if failed is not None:
            error.add_note(_listed("Drawn faults before it", failed.told))
            if shrinks and failed.plan:
                way = way_of(error)
                with _silence():
                    note = _shrunk(failed, lambda only: fails(only, way))
                error.add_note(note)
        raise


@contextmanager
def _silence() -> Iterator[None]:
    """Drop logs and printed text during the body: the user already has the logs and the text of the first
    failing run."""
    logger.info("the run failed: looking for the faults that it needs to fail")
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(disabled)


def _listed(title: str, told: list[str]) -> str:
    return "\n".join((f"{title}:", *(f"  {line}" for line in told))) if told else f"{title}: none."


def _shrunk(failed: RunningFaults, run: Callable[[tuple[int, ...]], RunningFaults | None]) -> str:
    """Find the faults that a failing run needs to fail. Return a text that names them."""
    began = time.process_time()

    def may_try(attempts: int) -> bool:
        return attempts < SHRINK_RUNS_MAX and time.process_time() - began < SHRINK_CPU_S

    numbers = tuple(fault.number for fault in failed.plan)
    again = run(numbers)
    if again is None or again.trace_hash != failed.trace_hash:
        return (
            "The same run ended in another way when it was repeated, so nothing is known about its faults. "
            "Make everything inside of the scenario: it must not depend on earlier runs."
        )
    # Faults that were planned for later, or found no process to hit, are mostly not needed.
    injected = tuple(failed.injected)
    fewer = run(injected) if len(injected) < len(numbers) else None
    start, numbers = (failed, numbers) if fewer is None else (fewer, injected)
    found = minimize(start, numbers, run, may_try=may_try)
    if not found.numbers:
        return "It fails in the same way without any drawn fault."
    sure = "It takes these" if found.is_minimal else "These are enough, and there may be fewer"
    return _listed(
        f"{sure} of {len(failed.plan)} drawn faults (run it with only={found.numbers!r})", found.result.told
    )
