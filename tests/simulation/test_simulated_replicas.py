"""Elections and replicas in the simulator: processes and bookies die, the network and the store misbehave."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import AppendUnknown, MetadataError, NotLeader
from ledgerlog.machine.replica import Replica
from ledgerlog.machine.snapshots import LedgerSnapshots
from ledgerlog.testing import SimulatedCluster, simulate
from tests.machine.machines import Keys

NAMES = ("anna", "bert", "cleo")
REQUESTS = 200


class World:
    """The view of an observer of all processes."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.digests: dict[str, tuple[int, str]] = {}
        self.settled = trio.Event()
        self.leaders: set[tuple[str, int]] = set()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # Simulated time, and any condition.
        await trio.sleep(0.2)


def replica_of(name: str, world: World, requests: list[str]) -> Callable[[Cluster], Awaitable[None]]:
    """A process: a replica, and a proposer that wants every request done, by whichever leader."""

    async def live(cluster: Cluster) -> None:
        log = await cluster.create_log("log", exist_ok=True)
        election = cluster.election("log", candidate=name)
        snapshots = LedgerSnapshots(cluster)
        async with Replica(log, Keys(), election=election, snapshots=snapshots, snapshot_every=15) as replica:
            while not world.settled.is_set():
                await trio.sleep(0.05)
                for request in [each for each in requests if each not in world.done][:2]:
                    epoch = replica.statistics().epoch
                    if epoch is None:
                        break
                    world.leaders.add((name, epoch))
                    try:
                        with trio.move_on_after(3):
                            answer = await replica.propose(b'["add", "sum", 1]', request_id=request)
                            assert world.done.setdefault(request, int(answer)) == int(answer)
                    except (NotLeader, AppendUnknown):
                        await trio.sleep(0.05)
            while True:
                world.digests[name] = replica.digest()
                await trio.sleep(0.2)

    async def main(cluster: Cluster) -> None:
        while True:
            try:
                await live(cluster)
            except MetadataError:
                await trio.sleep(0.1)  # An answer of the store was lost at the start.

    return main


async def restart(cluster: SimulatedCluster, name: str) -> None:
    """Start it again if an answer of the store was lost, as an operator would."""
    while True:
        try:
            return await cluster.restart(name)
        except MetadataError:
            await trio.sleep(0.1)


@pytest.mark.parametrize("seed", range(4))
def test_replicas_execute_each_request_once_whatever_dies(seed: int) -> None:
    world = World()
    requests = [f"request-{number}" for number in range(REQUESTS)]

    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.metadata_lost_share = 0.02
        for name in NAMES:
            cluster.start(name, replica_of(name, world, requests))
        rng = cluster.simulation.random("faults")
        with trio.fail_after(600):
            for _ in range(8):
                await trio.sleep(rng.uniform(0.3, 3.0))
                victim = rng.choice([*NAMES, *NAMES, "bookie-1", "bookie-2"])
                cluster.kill(victim, power_cut=rng.random() < 0.3)
                await trio.sleep(rng.uniform(0.1, 2.0))
                await restart(cluster, victim)
            await until(lambda: len(world.done) == REQUESTS)
            world.settled.set()
            await until(lambda: len(world.digests) == len(NAMES) and len(set(world.digests.values())) == 1)

    simulate(scenario, seed=seed, bookies=4)
    assert sorted(world.done.values()) == list(range(1, REQUESTS + 1)), "each once, in some order"
    epochs = [epoch for _, epoch in world.leaders]
    assert len(epochs) == len(set(epochs)), "one leader for each epoch"


def test_a_run_is_the_same_for_the_same_seed() -> None:
    def run() -> str:
        world = World()
        requests = [f"request-{number}" for number in range(10)]

        async def scenario(cluster: SimulatedCluster) -> str:
            for name in NAMES:
                cluster.start(name, replica_of(name, world, requests))
            with trio.fail_after(300):
                await until(lambda: len(world.done) >= 5)
                cluster.kill(NAMES[0])
                await until(lambda: len(world.done) == 10)
            return json.dumps([sorted(world.done.items()), sorted(world.leaders), trio.current_time()])

        return simulate(scenario, seed=11, bookies=4).value

    assert run() == run()
