"""A service, and its test under faults (pytest examples/simulated_service.py).

Two processes give the same seats away. The log has the owner of each seat. The leader replays it and serves.
"""

import trio

from ledgerlog import Cluster, LedgerLogError
from ledgerlog.testing import DrawnFaults, History, ServiceCall, SimulatedCluster, simulate

SEATS = 10
Request = tuple[int, str]  # the seat, and the customer


async def serve(cluster: Cluster, name: str, waiting: list[ServiceCall[Request]]) -> None:
    """Lead while this process is elected. The leader gives seats away, and answers when that is durable."""
    log = await cluster.create_log("seats", exist_ok=True)
    async with log.lead(cluster.election("seats", candidate=name)) as campaign:
        while True:
            try:
                writer = await campaign.writer()  # waits until this process leads
                owners = dict[int, str]()
                async with log.read() as records:  # all seats that earlier leaders gave away
                    async for record in records:
                        owners[record.data[0]] = record.data[1:].decode()
                while True:
                    for call in list(waiting):
                        seat, customer = call.command
                        if seat not in owners:
                            await writer.append(bytes([seat]) + customer.encode())
                            owners[seat] = customer
                        if call in waiting:  # another leader may have answered meanwhile
                            waiting.remove(call)
                            call.answered(owners[seat])
                    await trio.sleep(0.1)
            except LedgerLogError:  # the leadership ended: the next leader replays what we wrote
                await trio.sleep(0.1)


def take(owner: str | None, request: Request) -> tuple[str, str]:
    """The rule of one seat: the first customer gets it, and every answer names this customer."""
    return owner or request[1], owner or request[1]


async def scenario(cluster: SimulatedCluster) -> None:
    waiting, history = list[ServiceCall[Request]](), History[Request]()
    for name in ("box-office-1", "box-office-2"):
        cluster.start(name, lambda client, name=name: serve(client, name, waiting))
    for number in range(4 * SEATS):
        waiting.append(history.begin((number % SEATS, f"customer-{number}")))
        await trio.sleep(0.5)
    await cluster.calm()
    await trio.sleep(30)
    assert not waiting
    history.check(take, initial=None, key=lambda request: request[0])


def test_no_seat_is_given_away_twice() -> None:
    for seed in range(30, 40):
        simulate(scenario, seed=seed, faults=DrawnFaults())
