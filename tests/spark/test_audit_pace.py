"""An audit leaves room for others: a bookie that is busy, and so answers late, gets fewer requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from bookie.server.fair import Party
from bookie.storage.engine.engine import Engine
from ledgerlog.limits import AUDIT_SHARE, AUDIT_SHARE_MIN
from ledgerlog.model.quorum import Replication
from ledgerlog.spark.audit_task import open_audit
from ledgerlog.testing.memory_cluster import MemoryCluster, open_cluster
from tests.repairing import written
from tests.spark.test_audit_of_bookies import STAYS, parts_of

LEDGERS = 40


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@attrs.frozen
class Work:
    """A request that the bookie worked on."""

    begun: float
    ended: float


@contextmanager
def slow_bookies(monkeypatch: pytest.MonkeyPatch, *, takes_s: float) -> Iterator[list[Work]]:
    """Bookies whose disk is so busy that each list and each scrub takes ``takes_s``."""
    done: list[Work] = []
    with monkeypatch.context() as changes:
        for name in ("scrub", "list_entries"):
            changes.setattr(Engine, name, slowed(getattr(Engine, name), takes_s, done))
        yield done


def slowed(method: Any, takes_s: float, done: list[Work]) -> Any:
    async def slow(*arguments: Any, **named: Any) -> Any:
        begun = trio.current_time()
        await trio.sleep(takes_s)
        result = await method(*arguments, **named)
        done.append(Work(begun, trio.current_time()))
        return result

    return slow


async def fill(cluster: MemoryCluster, **options: str) -> list[Any]:
    async with cluster.client() as client:
        for _ in range(LEDGERS):
            await written(client, 3, Replication(1, 1, 1))
        return await parts_of(client, settleSeconds="0", **options)


async def audit_for(cluster: MemoryCluster, parts: list[Any], seconds: float) -> None:
    async with cluster.client() as client:
        with trio.move_on_after(seconds):
            for part in parts:
                async with open_audit(part, client.opened) as take:
                    while await take() is not None:
                        pass


@pytest.mark.parametrize("mode", ["index", "scrub"])
async def test_a_busy_bookie_gets_fewer_requests(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async with open_cluster(1, config=STAYS) as cluster:
        parts = await fill(cluster, mode=mode)
        counts = []
        for takes_s in (0.1, 1.0):
            with slow_bookies(monkeypatch, takes_s=takes_s) as done:
                await audit_for(cluster, parts, 6)
            counts.append(len(done))
            for before, after in itertools.pairwise(done):
                assert after.begun - before.ended >= takes_s * (1 / AUDIT_SHARE - 1) - 0.01
        assert 25 <= counts[0] <= 30
        assert 2 <= counts[1] <= 3


async def test_a_user_chooses_the_share_of_a_bookie(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(1, config=STAYS) as cluster:
        for share, most in (("1", 10), ("0.25", 3)):
            parts = await fill(cluster, mode="scrub", bookieShare=share)
            with slow_bookies(monkeypatch, takes_s=1.0) as done:
                await audit_for(cluster, parts, 10.5)
            assert most - 1 <= len(done) <= most, share


async def test_a_bookie_that_says_it_has_too_many_requests_gets_a_longer_pause(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(1, config=STAYS) as cluster:
        parts = await fill(cluster, mode="scrub")
        start = trio.current_time()
        asked: list[float] = []
        takes = Party.request_places

        def refusing(self: Party, **named: Any) -> Any:
            asked.append(trio.current_time() - start)
            return None if asked[-1] < 8 else takes(self, **named)

        monkeypatch.setattr(Party, "request_places", refusing)
        await audit_for(cluster, parts, 15)
        refused = [at for at in asked if at < 8]
        taken = [at for at in asked if at >= 8]
        assert len(refused) <= 40, "the pauses grow to half a second"
        assert len(taken) == 1, "after eight seconds without a place comes a pause of eight seconds"


async def test_a_bookie_that_does_not_answer_keeps_the_task_once_and_not_at_each_ledger(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(1, config=STAYS) as cluster:
        parts = await fill(cluster, mode="scrub", bookieShare=str(AUDIT_SHARE_MIN))
        with slow_bookies(monkeypatch, takes_s=10_000.0):
            begun = trio.current_time()
            await audit_for(cluster, parts, 1000)
        assert trio.current_time() - begun < 100, "two looks, a time limit each"
