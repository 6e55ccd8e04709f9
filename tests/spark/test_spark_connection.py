"""A process of Spark waits for its calls into a cluster, and leaves nothing behind, however they end."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from ledgerlog.blocking.portal import Portal
from ledgerlog.errors import WrongCluster
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.spark.connection import run_connected, taken
from tests.spark.conftest import SparkOnLogs


def loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "ledgerlog-blocking"}


class Broken(Exception):
    pass


@asynccontextmanager
async def counting(to: int | None) -> AsyncIterator[Callable[[], Awaitable[int | None]]]:
    """A function that counts to a number; None: it breaks, and the context ends by the reason."""
    count = 0

    async def take() -> int | None:
        nonlocal count
        if to is None:
            raise Broken
        count += 1
        return count if count <= to else None

    yield take
    if to is None:
        raise ValueError("the reason")


def test_items_are_taken_until_none_comes() -> None:
    with Portal() as portal:
        assert list(taken(counting(3), portal, Broken)) == [1, 2, 3]


def test_a_context_that_breaks_says_why() -> None:
    with Portal() as portal, pytest.raises(ValueError, match="the reason"):
        list(taken(counting(None), portal, Broken))


def test_a_portal_ends_with_its_block_and_leaves_what_is_held_when_the_block_fails() -> None:
    before = loops()
    left: list[str] = []

    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        yield
        left.append("held")

    def fail() -> None:
        with Portal() as portal:
            portal.enter(held())
            raise Broken

    with pytest.raises(Broken):
        fail()
    assert left == ["held"]
    assert loops() == before


@pytest.mark.processes
def test_work_on_a_cluster_ends_with_its_connection(on_spark: SparkOnLogs, log_name: str) -> None:
    on_spark.cluster.create_log(log_name)
    before = loops()

    async def cluster_of(client: LedgerClient) -> str | None:
        return client.store.cluster

    async def fail(client: LedgerClient) -> None:
        raise Broken

    cluster = run_connected(on_spark.uri, cluster_of)
    assert cluster is not None
    assert run_connected(on_spark.uri, cluster_of, cluster=cluster) == cluster
    with pytest.raises(Broken):
        run_connected(on_spark.uri, fail)
    with pytest.raises(WrongCluster):
        run_connected(on_spark.uri, cluster_of, cluster="another")
    assert loops() == before


@pytest.mark.processes
def test_work_is_cancelled_if_its_caller_is_interrupted(on_spark: SparkOnLogs, interruptible: None) -> None:
    before = loops()
    ended: list[str] = []

    async def work(client: LedgerClient) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        run_connected(on_spark.uri, work)
    assert ended == ["cancelled"]
    assert loops() == before
