"""Two queries that splice and a service that appends write one log under faults. Each record counts once.

Each query numbers its batches. Its checkpoint names the last batch that is surely done, as Spark's does. A
query that was killed or has failed starts again as a new run, at the batch after its checkpoint. One query
has two drivers, so one of them is always a zombie of the other. The service appends, without numbers, for as
long as it leads. Processes die between any two effects, links and the metadata store fail, answers get lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError
from ledgerlog.log import attach
from ledgerlog.log.attach import splice, stage
from ledgerlog.log.core.append_queue import AppendQueue
from ledgerlog.log.core.attach import Commit
from ledgerlog.log.log import Log
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.store import Operation
from ledgerlog.testing import DrawnFaults, SimulatedCluster, simulate

SEEDS = range(8)


class Story:
    """What the processes of one run did, by their own account."""

    def __init__(self) -> None:
        self.done = {"a": -1, "b": -1}
        """The checkpoints: the last batch of each query that is done."""
        self.acked: list[bytes] = []
        """The records of the service that were acknowledged, in order."""
        self.lives = 0
        self.counts = Counter[str]()

    async def serve(self, client: Cluster) -> None:
        """Lead the log and append, again and again."""
        log = await client.create_log("log", exist_ok=True)
        while True:
            self.lives += 1
            life, number = self.lives, 0
            try:
                async with log.writer() as writer:
                    while True:
                        data = b"s %d.%d" % (life, number)
                        await writer.append(data)
                        self.acked.append(data)
                        number += 1
                        await trio.sleep(0.2)
            except LedgerLogError as error:
                self.counts[f"service: {type(error).__name__}"] += 1
                await trio.sleep(0.5)

    def query(self, name: str) -> Callable[[Cluster], Any]:
        """Return a driver of a query: run after run."""

        async def run(client: Cluster) -> None:
            while True:
                try:
                    log = await client.create_log("log", exist_ok=True)
                    await self._run(client, log, name)
                except LedgerLogError as error:
                    self.counts[f"query: {type(error).__name__}"] += 1
                    await trio.sleep(1)

        return run

    async def _run(self, client: Cluster, log: Log, name: str) -> None:
        run = client.client.environment.new_token().hex()
        registry = LogRegistry(client.store, client.client.environment)
        batch = self.done[name] + 1
        while True:
            staged = []
            for ledger in range(batch % 3):
                async with stage(client.client, registry, log.name, log.incarnation) as opened:
                    await opened.append_many(rows(name, batch, ledger))
                    made = await opened.close()
                    assert made is not None
                    staged.append(made)
            commit = Commit(
                producer=name, source=f"checkpoint of {name}", run=run, batch=batch, staged=tuple(staged)
            )
            done = await splice(client.client, registry, log.name, log.incarnation, commit)
            self.counts["found there" if done.was_there else "spliced"] += 1
            self.done[name] = max(batch, self.done[name])
            batch += 1
            await trio.sleep(0.8)

    async def judge(self, client: Cluster) -> None:
        log = await client.open_log("log")
        done, acked = dict(self.done), list(self.acked)  # The processes go on while this one reads.
        async with log.read() as records:
            found = [record async for record in records]
        assert [record.offset for record in found] == list(range(len(found)))
        epochs = [record.epoch for record in found]
        assert epochs == sorted(epochs)
        data = [record.data for record in found]
        assert len(set(data)) == len(data), f"twice: {Counter(data).most_common(1)}"
        for name in done:
            mine = [each for each in data if each.startswith(name.encode())]
            last = max([done[name], *(int(each[2:].split(b".")[0]) for each in mine)])
            assert mine == [
                row
                for batch in range(last + 1)
                for ledger in range(batch % 3)
                for row in rows(name, batch, ledger)
            ]
        service = [each for each in data if each.startswith(b"s")]
        assert [each for each in service if each in set(acked)] == acked
        self.counts["records of the service"] += len(service)
        self.counts["batches"] += sum(done.values()) + 2
        self.counts["epochs"] += max(epochs)
        self.counts["lives"] += self.lives


def rows(name: str, batch: int, ledger: int) -> list[bytes]:
    return [b"%s %d.%d.%d" % (name.encode(), batch, ledger, row) for row in range(3)]


def run_seed(seed: int, *, seconds: float = 10) -> Counter[str]:
    async def scenario(cluster: SimulatedCluster) -> Counter[str]:
        story = Story()
        cluster.start("service", story.serve)
        cluster.start("a", story.query("a"))
        cluster.start("b-1", story.query("b"))
        if seconds:
            cluster.start("b-2", story.query("b"))
            await cluster.calm()
        await trio.sleep(15)
        async with cluster.client("reader") as client:
            await story.judge(client)
        return story.counts

    faults = DrawnFaults(seconds=seconds) if seconds else None
    return simulate(scenario, seed=seed, faults=faults).value


@pytest.mark.long
def test_each_record_of_two_queries_and_a_service_is_in_the_log_once_whatever_fails() -> None:
    counts = Counter[str]()
    for seed in SEEDS:
        counts.update(run_seed(seed))
    assert counts["batches"] > 200
    assert counts["records of the service"] > 500
    assert counts["found there"] > 5
    assert counts["query: LostLeadership"] > 5, "one of two drivers is told"


def test_without_faults_nobody_is_deposed() -> None:
    counts = run_seed(0, seconds=0)
    assert counts["epochs"] <= 2, "a splice without records may come first, because it needs no bookie"
    assert counts["lives"] == 1
    assert counts["batches"] > 20
    assert counts["records of the service"] > 50
    assert not [name for name in counts if "LostLeadership" in name]


def violation_of_some_seed(most: int = 60) -> str:
    for seed in range(most):
        try:
            run_seed(seed)
        except (AssertionError, LedgerLogError) as found:
            return repr(found)
    raise AssertionError(f"not found in {most} seeds")


def test_a_leader_that_does_not_move_the_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attach.splice_operations

    def without_mark(*arguments: Any) -> list[Operation]:
        return [each for each in original(*arguments) if not each.path.startswith("splices/")]

    monkeypatch.setattr("ledgerlog.log.splice_desk.splice_operations", without_mark)
    assert violation_of_some_seed()


def test_a_leader_that_gives_the_offsets_of_spliced_records_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AppendQueue, "skip_to", lambda *_: None)
    assert violation_of_some_seed()
