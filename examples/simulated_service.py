"""A service, and its test in a world that falls apart (pytest examples/simulated_service.py).

Two processes give the same seats away. Whoever leads the log replays it and serves; it says who has which.
"""

import trio

from ledgerlog import Cluster, LedgerLogError
from ledgerlog.testing import SimulatedCluster, simulate

SEATS = 20


async def serve(cluster: Cluster, wanted: list[tuple[int, str]], confirmed: dict[int, str]) -> None:
    """Lead again and again. The leader gives seats away, and confirms each once it is durable."""
    log = await cluster.create_log("seats", exist_ok=True)
    while True:
        try:
            async with log.writer() as writer:
                async with log.read() as records:  # all that leaders before us gave away
                    taken = {int(record.data.split()[0]) async for record in records}
                while True:
                    while wanted:
                        seat, who = wanted[0]
                        if seat not in taken:
                            await writer.append(b"%d %s" % (seat, who.encode()))
                            taken.add(seat)
                            confirmed[seat] = who
                        wanted.remove((seat, who))
                    await trio.sleep(0.1)
        except LedgerLogError:  # deposed, or too few bookies: the next leader replays what we wrote
            await trio.sleep(0.5)


async def disaster(cluster: SimulatedCluster) -> None:
    wanted, confirmed = [(n % SEATS, f"customer-{n}") for n in range(2 * SEATS)], dict[int, str]()
    for name in ("box-office-1", "box-office-2"):
        cluster.start(name, lambda client: serve(client, wanted, confirmed))
    random = cluster.simulation.random("disaster")
    for _ in range(10):
        victim = random.choice([*cluster.bookies[:2], "box-office-1", "box-office-2"])
        await trio.sleep(random.uniform(0.0, 0.3))
        cluster.kill(victim, power_cut=random.random() < 0.5)
        cluster.partition("box-office-1", random.choice(cluster.bookies), one_way=True)
        await trio.sleep(random.uniform(0.0, 3.0))
        cluster.heal()
        await cluster.restart(victim)
    await trio.sleep(30)
    async with cluster.client("reader") as client, (await client.open_log("seats")).read() as records:
        written = [record.data.decode().split() async for record in records]
    assert len(written) == SEATS, "each seat is given away, and once"
    assert all([str(seat), who] in written for seat, who in confirmed.items()), "what was confirmed stands"


def test_no_seat_is_given_away_twice_and_none_is_lost() -> None:
    for seed in range(10):
        simulate(disaster, seed=seed)
