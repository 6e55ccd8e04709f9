"""``ledgerlog repair run``: it outlives a restore of the metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.cli import repair
from ledgerlog.errors import ClusterNotFound, LedgerLogError, MetadataUnavailable, WrongCluster
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.repair import service
from ledgerlog.testing.memory_cluster import open_cluster


@attrs.frozen
class _Connected:
    """The part of a cluster that ``repair run`` uses."""

    client: LedgerClient


async def test_repair_run_connects_until_the_restored_store_answers(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[LedgerLogError | None] = [
        None,
        MetadataUnavailable("it is away"),
        WrongCluster("it is being restored once more"),
        ClusterNotFound("it was emptied"),
        None,
    ]
    restored = trio.Event()
    bodies: list[Callable[[], Awaitable[None]]] = []

    async with open_cluster() as cluster, cluster.client() as client:

        @asynccontextmanager
        async def connect(_: str) -> AsyncIterator[_Connected]:
            await trio.lowlevel.checkpoint()
            fault = faults.pop(0)
            if fault is not None:
                raise fault
            yield _Connected(client.opened)

        async def wait_restored(_: object) -> None:
            if faults:
                await trio.lowlevel.checkpoint()
                return
            restored.set()
            await trio.sleep_forever()

        monkeypatch.setattr(repair, "connect", connect)
        monkeypatch.setattr(service, "wait_restored", wait_restored)
        monkeypatch.setattr(repair, "keep_a_log", lambda: None)
        monkeypatch.setattr(repair, "run_until_interrupted", bodies.append)
        run: Any = repair.repair_run.callback
        run(name="r1", admin=None, admin_reads=None, uri="memory:", as_json=False)
        begun = trio.current_time()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bodies[0])
                await restored.wait()
                assert trio.current_time() - begun >= 3 * service._AGAIN_S, "it does not try again at once"
                nursery.cancel_scope.cancel()
