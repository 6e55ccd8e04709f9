"""``Log.lead``: a process that leads a log whenever its election allows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.election.election import Election
from ledgerlog.errors import (
    AppendUnknown,
    ConnectionClosed,
    InvalidArgument,
    LedgerLogError,
    LogSealed,
    NotLeader,
    OffsetMismatch,
)
from ledgerlog.limits import SESSION_TIMEOUT_S
from ledgerlog.log.campaign import Campaign
from ledgerlog.log.log import Log, create_log, open_log
from ledgerlog.log.writer import Submission
from ledgerlog.model.layout import election_path
from ledgerlog.model.ledger import LedgerState
from ledgerlog.testing.faulty_store import Call, before
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, eventually, open_cluster


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@attrs.frozen
class Process:
    """A client with a campaign of its own."""

    client: Client
    log: Log
    campaign: Campaign


@attrs.frozen
class Stage:
    cluster: MemoryCluster
    stack: AsyncExitStack

    async def client(self) -> tuple[Client, Log]:
        client = await self.stack.enter_async_context(self.cluster.client())
        return client, await open_log(client.opened, "log")

    def election(self, client: Client) -> Election:
        return Election(client.opened, "log", candidate=client.host, listen=client.host)

    async def process(self) -> Process:
        client, log = await self.client()
        campaign = await self.stack.enter_async_context(log.lead(self.election(client)))
        return Process(client, log, campaign)

    async def records(self) -> list[bytes]:
        _, log = await self.client()
        async with log.writer(), log.read() as records:
            return [record.data async for record in records]


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with open_cluster() as cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.client())
        await create_log(client.opened, "log")
        yield Stage(cluster, stack)


async def test_one_of_two_leads_and_the_other_one_when_it_leaves(clock: MockClock) -> None:
    async with stage() as s:
        client, log = await s.client()
        leave, left = trio.Event(), trio.Event()

        async def lead_first(task_status: trio.TaskStatus[Campaign]) -> None:
            async with log.lead(s.election(client)) as campaign:
                assert (await (await campaign.writer()).append(b"a")).epoch == 1
                task_status.started(campaign)
                await leave.wait()
            left.set()

        nursery = await s.stack.enter_async_context(trio.open_nursery())
        first = await nursery.start(lead_first)
        second = await s.process()
        assert (await first.append(b"b")).offset == 1
        assert not second.campaign.is_leading
        leave.set()
        await left.wait()
        left_at = trio.current_time()
        assert (await second.campaign.writer()).epoch == 2
        assert trio.current_time() - left_at < 0.5, "the lead was given up"
        assert (await second.campaign.append(b"c")).offset == 2
        assert await s.records() == [b"a", b"b", b"c"]


async def test_a_process_that_does_not_lead_says_who_does(clock: MockClock) -> None:
    async with stage() as s:
        first = await s.process()
        await first.campaign.writer()
        second = await s.process()
        with pytest.raises(NotLeader) as caught:
            await second.campaign.append(b"x")
        assert caught.value.leader == first.client.host
        with pytest.raises(NotLeader):
            await second.campaign.append_many([b"x", b"y"])
        assert await first.campaign.leader() == await second.campaign.leader() == first.client.host
        assert await s.records() == []


async def test_a_leader_that_is_cut_off_from_the_store_is_followed_and_stands_again(clock: MockClock) -> None:
    async with stage() as s:
        first = await s.process()
        await first.campaign.writer()
        second = await s.process()
        first.client.store.disconnect()
        first.client.store.inner.expire_session()
        with trio.fail_after(SESSION_TIMEOUT_S):
            await (await second.campaign.writer()).append(b"x")
        first.client.store.reconnect()
        with pytest.raises((NotLeader, AppendUnknown)):
            await first.campaign.append(b"never")
        await eventually(lambda: not first.campaign.is_leading)
        second.client.store.disconnect()
        second.client.store.inner.expire_session()
        with trio.fail_after(SESSION_TIMEOUT_S):
            await (await first.campaign.writer()).append(b"y")
        assert await s.records() == [b"x", b"y"]


async def test_whoever_takes_the_log_without_the_election_is_deposed_again(clock: MockClock) -> None:
    async with stage() as s:
        process = await s.process()
        assert (await process.campaign.writer()).epoch == 1
        _, log = await s.client()
        async with log.writer() as intruder:
            await intruder.append(b"x")
            with trio.fail_after(5):
                await intruder.wait_over()
        writer = await process.campaign.writer()
        assert writer.epoch == 3
        assert (await process.campaign.append(b"y")).offset == 1
        assert process.campaign.failure is None


async def test_a_body_that_only_waits_notices_that_another_writer_leads(clock: MockClock) -> None:
    async with stage() as s:
        process = await s.process()
        first = await process.campaign.writer()
        _, log = await s.client()
        async with log.writer():
            with trio.fail_after(5):
                await first.wait_over()
        with trio.fail_after(5):
            assert await process.campaign.writer() is not first


async def test_a_campaign_goes_on_while_too_few_bookies_are_there(clock: MockClock) -> None:
    async with stage() as s:
        for bookie in s.cluster.bookies.values():
            await bookie.stop()
        process = await s.process()
        await trio.sleep(60)
        assert not process.campaign.is_leading
        assert process.campaign.failure is None
        for bookie in s.cluster.bookies.values():
            await bookie.start()
        with trio.fail_after(10):
            await process.campaign.writer()
        assert (await process.campaign.append(b"x")).offset == 0


async def test_a_process_that_cannot_take_the_log_over_leaves_the_lead_to_one_that_can(
    clock: MockClock,
) -> None:
    async with stage() as s:
        first = await s.process()
        await first.campaign.writer()
        for bookie in s.cluster.bookies:
            s.cluster.network.cut(first.client.host, bookie)
        _, log = await s.client()
        async with log.writer():  # The first one has lost the log, and cannot take it back.
            await eventually(lambda: not first.campaign.is_leading)
        second = await s.process()
        with trio.fail_after(60):
            await (await second.campaign.writer()).append(b"x")
        await trio.sleep(60)
        assert second.campaign.is_leading


async def test_a_sealed_log_ends_the_campaign_and_not_the_body(clock: MockClock) -> None:
    async with stage() as s:
        process = await s.process()
        await process.campaign.writer()
        assert [ack.offset for ack in await process.campaign.append_many([b"a", b"b"])] == [0, 1]
        _, log = await s.client()
        await log.seal()
        await eventually(lambda: process.campaign.failure is not None)
        assert isinstance(process.campaign.failure, LogSealed)
        with pytest.raises(LogSealed):
            await process.campaign.append(b"y")
        with pytest.raises(LogSealed):
            await process.campaign.writer()
        successor = await s.process()
        await eventually(lambda: successor.campaign.failure is not None)


async def test_what_is_wrong_with_a_call_is_said_and_the_lead_is_kept(clock: MockClock) -> None:
    async with stage() as s:
        process = await s.process()
        writer = await process.campaign.writer()
        with pytest.raises(OffsetMismatch):
            await process.campaign.append(b"x", expected_offset=7)
        with pytest.raises(InvalidArgument):
            await process.campaign.append(b"x", sequence=0)
        assert await process.campaign.writer() is writer
        with pytest.raises(InvalidArgument, match="window"):
            process.log.lead(s.election(process.client), window=0)


async def test_a_numbered_record_is_in_the_log_once_whoever_leads(clock: MockClock) -> None:
    async with stage() as s:
        client, log = await s.client()
        async with log.lead(s.election(client), dedupe=True) as first:
            await first.writer()
            assert not (await first.append(b"order", sequence=0, producer="shop")).duplicate
        async with log.lead(s.election(client)) as second:
            await second.writer()
            assert (await second.append(b"order", sequence=0, producer="shop")).duplicate
        assert await s.records() == [b"order"]


async def test_leaving_makes_durable_what_was_taken_and_closes_the_ledger(clock: MockClock) -> None:
    async with stage() as s:
        client, log = await s.client()
        async with log.lead(s.election(client), linger_s=1.0) as campaign:
            submission = await (await campaign.writer()).submit(b"taken")
        assert (await submission.wait()).offset == 0
        (segment,) = (await log.info()).segments
        assert (await client.ledgers.metadata(segment.ledger_id)).state is LedgerState.CLOSED
        with pytest.raises(ConnectionClosed):
            await campaign.append(b"late")
        with pytest.raises(ConnectionClosed):
            await campaign.writer()


async def test_a_campaign_that_does_not_lead_is_left_at_once(clock: MockClock) -> None:
    async with stage() as s:
        first = await s.process()
        await first.campaign.writer()
        client, log = await s.client()
        began = trio.current_time()
        async with log.lead(s.election(client)):
            await trio.sleep(1)
        assert trio.current_time() - began < 1.1
        for bookie in s.cluster.bookies.values():
            await bookie.stop()
        async with log.lead(Election(client.opened, "other", listen=client.host)):
            await trio.sleep(30)  # It pauses between its tries.
            began = trio.current_time()
        assert trio.current_time() - began < 0.5


async def test_a_try_that_fails_while_the_campaign_is_left_concerns_nobody(clock: MockClock) -> None:
    async with stage() as s:
        client, log = await s.client()
        await log.seal()
        for steps in range(0, 120, 2):
            async with log.lead(s.election(client)) as campaign:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
        assert isinstance(campaign.failure, LogSealed), "the last ones were left after it had failed"


async def test_a_cancelled_body_leaves_at_once(clock: MockClock) -> None:
    async with stage() as s:
        client, log = await s.client()
        with trio.CancelScope() as scope:
            async with log.lead(s.election(client)) as campaign:
                await campaign.writer()
                for bookie in s.cluster.bookies:
                    s.cluster.network.stall(client.host, bookie)
                began = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert trio.current_time() - began < 1.5


async def test_each_append_through_a_change_of_leaders_has_its_true_answer(clock: MockClock) -> None:
    async with stage() as s:
        processes = [await s.process() for _ in range(2)]
        outcomes: dict[bytes, int | LedgerLogError] = {}

        async def append(process: Process, number: int) -> None:
            data = f"{process.client.host} {number}".encode()
            try:
                outcomes[data] = (await process.campaign.append(data)).offset
            except (NotLeader, AppendUnknown) as error:
                outcomes[data] = error

        async with trio.open_nursery() as nursery:
            for number in range(300):
                for process in processes:
                    nursery.start_soon(partial(append, process, number))
                await trio.sleep(0.01)
                if number % 100 == 50:
                    leaders = [process for process in processes if process.campaign.is_leading]
                    for leader in leaders:
                        leader.client.store.inner.expire_session()
        found = await s.records()
        for data, outcome in outcomes.items():
            if isinstance(outcome, int):
                assert found[outcome] == data
            elif isinstance(outcome, NotLeader):
                assert data not in found
        assert len(set(found)) == len(found)
        assert {data.split()[0] for data in found} == {p.client.host.encode() for p in processes}


async def test_records_on_their_way_when_the_campaign_is_left_are_not_lost_without_a_word(
    clock: MockClock,
) -> None:
    async with stage() as s:
        client, log = await s.client()

        async def leave_with_a_record_on_its_way() -> None:
            async with log.lead(s.election(client)) as campaign:
                writer = await campaign.writer()
                for bookie in s.cluster.bookies:
                    s.cluster.network.stall(client.host, bookie)
                await writer.submit(b"sent")

        with pytest.raises(AppendUnknown):
            await leave_with_a_record_on_its_way()


async def test_records_whose_leadership_ends_while_the_campaign_is_left_may_be_in_the_log(
    clock: MockClock,
) -> None:
    async with stage() as s:
        client, log = await s.client()
        sent: list[Submission] = []

        async def expire() -> None:
            await trio.sleep(0.5)
            client.store.inner.expire_session()

        async def leave_with_a_record_on_its_way(nursery: trio.Nursery) -> None:
            async with log.lead(s.election(client)) as campaign:
                writer = await campaign.writer()
                await writer.append(b"durable")
                for bookie in s.cluster.bookies:  # They store the record, but nobody hears of it.
                    s.cluster.network.stall(bookie, client.host, both=False)
                sent.append(await writer.submit(b"sent"))
                nursery.start_soon(expire)

        async with trio.open_nursery() as nursery:
            with pytest.raises(AppendUnknown, match="1 records may or may not be in the log, 0 are not"):
                await leave_with_a_record_on_its_way(nursery)
        with pytest.raises(AppendUnknown):
            await sent[0].wait()
        assert await s.records() == [b"durable", b"sent"]


async def test_a_campaign_that_is_left_while_it_steps_down_has_no_error_for_records_that_are_durable(
    clock: MockClock,
) -> None:
    async with stage() as s:
        client, log = await s.client()
        _, rivals = await s.client()
        steps_down = trio.Event()

        async def take_long(call: Call) -> None:
            if call.is_write and call.path == election_path("log"):
                steps_down.set()
                await trio.sleep(0.5)

        async with log.lead(s.election(client)) as campaign:
            await campaign.writer()
            assert (await campaign.append(b"durable")).offset == 0
            client.store.faults.append(before(take_long))
            async with rivals.writer():
                with trio.fail_after(60):
                    await steps_down.wait()
        assert await s.records() == [b"durable"]
