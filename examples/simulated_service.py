"""A service, and its test in a simulated cluster with faults (pytest examples/simulated_service.py).

Two processes give the same seats away. The process that leads the log replays it and then serves. The log
holds the owner of each seat.
"""

import trio

from ledgerlog import Cluster, LedgerLogError
from ledgerlog.testing import DrawnFaults, History, ServiceCall, SimulatedCluster, simulate

SEATS = 10
Request = tuple[int, str]  # the seat, and the person who wants it


async def serve(cluster: Cluster, name: str, waiting: list[ServiceCall[Request]]) -> None:
    """Lead whenever the election allows it. The leader gives seats away, and answers after its record is
    durable."""
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
            except LedgerLogError:  # the leadership ended; the next leader replays our records
                await trio.sleep(0.1)


def take(owner: str | None, request: Request) -> tuple[str, str]:
    """The rule of one seat: the first person who asks for it gets it, and all people get this person as the
    answer."""
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
