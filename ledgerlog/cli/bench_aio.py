"""Driving a log through ``ledgerlog.aio``.

The benchmark itself runs under trio. The asyncio loop runs in its own thread and has its own connection. The
trio loop of this connection runs in another thread, as in a program that uses ``ledgerlog.aio``. The CPU time
of the client is the CPU time of all these threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from ledgerlog.aio.connecting import crossed
from ledgerlog.cli.bench_cluster import BenchCluster
from ledgerlog.cli.bench_drives import RecordWriter, Work
from ledgerlog.cli.bench_figures import Latencies
from ledgerlog.cluster import open_cluster
from ledgerlog.concurrency.nurseries import open_nursery

__all__ = ["driven_in_asyncio", "in_task_group"]


async def in_task_group(works: Sequence[Work]) -> None:
    """Run works in tasks of asyncio."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work())


@asynccontextmanager
async def driven_in_asyncio(
    bench: BenchCluster, name: str, drive: Callable[[RecordWriter, float], Awaitable[Latencies]]
) -> AsyncIterator[Callable[[float], Awaitable[Latencies]]]:
    """Lead a log under asyncio for the body of an ``async with``.

    Args:
        bench: The cluster.
        name: The log.
        drive: Called under asyncio with the writer, and with the seconds for which to drive the writer.

    Yields:
        A function that calls ``drive`` for some seconds, and returns the result of ``drive``.

    Errors of ``ledgerlog.aio`` pass through. Cancelling: the tasks of asyncio are cancelled, too.
    """
    is_leading = trio.Event()
    orders: asyncio.Queue[float | None] = asyncio.Queue()
    tell, told = trio.open_memory_channel[Latencies](1)
    token = trio.lowlevel.current_trio_token()

    async def lead() -> None:
        async with crossed(open_cluster(bench.uri, bench.cluster.client.credentials)) as cluster:
            log = await cluster.open_log(name)
            async with log.writer() as writer:
                token.run_sync_soon(is_leading.set)
                while (seconds := await orders.get()) is not None:
                    token.run_sync_soon(tell.send_nowait, await drive(writer, seconds))

    async def drive_for(seconds: float) -> Latencies:
        loop.call_soon_threadsafe(orders.put_nowait, seconds)
        return await told.receive()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        leading = loop.create_task(lead())

        def run_loop() -> None:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(leading)

        async with open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, run_loop)
            try:
                await is_leading.wait()
                yield drive_for
            except BaseException:
                loop.call_soon_threadsafe(leading.cancel)
                raise
            loop.call_soon_threadsafe(orders.put_nowait, None)
