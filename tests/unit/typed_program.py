"""A program of a user for a type checker, by each face. It is checked and never run.

Each line with ``# error`` has a planted mistake, and a checker has to report exactly these lines. See
``test_types_for_users.py``.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import ledgerlog
import ledgerlog.aio
import ledgerlog.blocking


async def of_the_library(uri: str) -> ledgerlog.LogInfo:
    async with ledgerlog.connect(uri, append_deadline_s=5.0) as cluster:
        log = await cluster.create_log("orders", replication=ledgerlog.Replication(3, 3, 2), exist_ok=True)
        async with log.writer(producer="shop", window=100) as writer:
            ack: ledgerlog.Ack = await writer.append(b"x", sequence=0)
            offsets: list[int] = [each.offset for each in await writer.append_many([b"a", b"b"])]
            counts: ledgerlog.WriterStatistics = writer.statistics()
            await writer.append("text")  # error: a record is bytes
            await writer.append(b"x", offset=7)  # error: there is no such argument
            print(ack.ofset)  # error: a mistyped name
            print(writer.statistics().epoch + "x")  # error: a number and a text
        async with log.read(datetime.now(UTC), follow=True) as records:
            async for record in records:
                data: bytes = record.data
                text: str = record.data  # error: it is bytes
                print(data, text)
            async for batch in records.batches():
                first: int = batch.first_offset
                print(first)
        async with log.read(start=1.5):  # error: a number with a fraction is no start
            pass
        print(cluster.open_log("orders").name)  # error: it is not awaited
        election = cluster.election("orders")
        async with election.leadership(strict=True) as term:
            number: int = term.number
        async with log.lead(election, window=10) as campaign:
            leader: str | None = await campaign.leader()
            print((await campaign.writer()).epoch + 1)
        async with log.lead(log):  # error: a log is no election
            pass
        print(ack, offsets, counts, number, leader)
        return await log.info()


async def of_asyncio(uri: str) -> AsyncIterator[ledgerlog.Record]:
    async with ledgerlog.aio.connect(uri, guest=True) as cluster:
        log: ledgerlog.aio.Log = await cluster.open_log("orders")
        async with log.writer() as writer:
            ack: ledgerlog.Ack = await writer.append(b"x")
            submission = await writer.submit(b"x")
            later: ledgerlog.Ack = await submission.wait()
            print(writer.append(b"x").offset)  # error: it is not awaited
            await writer.append_many(b"x", 3)  # error: too many arguments
        async with log.lead(cluster.election("orders"), dedupe=True) as campaign:
            writer = await campaign.writer()
            wrong: int = await campaign.leader()  # error: it may be no name at all
        async with cluster.election("jobs").leadership() as term:
            term.number.upper()  # error: it is a number
        state: ledgerlog.CursorState | None = await log.cursor("place").get()
        print(ack, later, wrong, state.offset)  # error: there may be no such cursor
        async with log.read("earliest") as records:
            async for record in records:
                yield record


def of_threads(uri: str) -> list[str]:
    with ledgerlog.blocking.connect(uri) as cluster:
        log = cluster.open_log("orders")
        with log.writer() as writer:
            ack: ledgerlog.Ack = writer.append(b"x")
            writer.append(data=3)  # error: a record is bytes
        with log.read("latest") as records:
            for record in records:
                print(record.offset.real, record.colour)  # error: a record has no such attribute
        cluster.election("orders").leadership()  # error: threads have no leadership
        print(ack.offset)
        return cluster.logs(prefix="o")
