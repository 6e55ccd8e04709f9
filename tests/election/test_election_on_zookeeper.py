"""Elections over a real ZooKeeper: leaders that leave, and one whose session expires."""

from __future__ import annotations

import pytest
import trio

import ledgerlog
from ledgerlog.election.election import Election
from ledgerlog.meta.zookeeper.store import ZooKeeperStore
from tests.waiting import PATIENCE_S
from tests.zookeepers import expire_session, new_chroot

pytestmark = pytest.mark.processes


class Candidate:
    def __init__(self, election: Election) -> None:
        self.election = election
        self.terms: list[int] = []
        self.leads = trio.Event()
        self.leave = trio.Event()
        self.left = trio.Event()

    async def lead_once(self) -> None:
        async with self.election.leadership() as term:
            self.terms.append(int(term))
            self.leads.set()
            await self.leave.wait()
        self.left.set()


async def test_leaders_follow_one_another_and_an_expired_one_knows_it(zookeeper_hosts: str) -> None:
    uri = f"zk://{zookeeper_hosts}{new_chroot()}"
    async with ledgerlog.connect(uri, create=True) as first, ledgerlog.connect(uri) as second:
        one = Candidate(first.election("e", candidate="one"))
        two = Candidate(second.election("e", candidate="two"))
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.lead_once)
                await one.leads.wait()
                nursery.start_soon(two.lead_once)
                leader = await two.election.leader()
                assert leader is not None
                assert (leader.candidate, leader.term, leader.is_registered) == ("one", 1, True)
                one.leave.set()
                await two.leads.wait()
                await one.left.wait()
                three = Candidate(one.election)
                nursery.start_soon(three.lead_once)
                store = second.store
                assert isinstance(store, ZooKeeperStore)
                await expire_session(store, zookeeper_hosts)
                await two.left.wait()
                await three.leads.wait()
                three.leave.set()
    assert (one.terms, two.terms, three.terms) == ([1], [2], [3])
