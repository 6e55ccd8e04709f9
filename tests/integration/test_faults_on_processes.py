"""The promises under faults, with real bookie processes that are killed, stopped, or too few.

``LEDGERLOG_KILL_ROUNDS`` says how often the whole cluster is killed in the middle of writing (default 3).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from running_cluster import start_cluster

import ledgerlog
from ledgerlog.cli.demo_contender import LEAD, RECORDS, encode_frame
from ledgerlog.cli.demo_driver import stop_without_lock
from ledgerlog.cli.local_cluster import LocalCluster, local_cluster
from ledgerlog.cli.processes import Child, open_children
from ledgerlog.errors import AppendUnknown, LedgerLogError, NotEnoughBookies
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

DEADLINE_S = 10.0
"""How long appends may lack their quorum in these tests."""

KILL_ROUNDS = int(os.environ.get("LEDGERLOG_KILL_ROUNDS", "3"))


async def read_all(log: Log) -> list[bytes]:
    """The log's records from its first one; asserts that their offsets are dense."""
    records: list[bytes] = []
    async with log.read(0) as reader:
        async for record in reader:
            assert record.offset == len(records)
            records.append(record.data)
    return records


class Appender:
    """Appends numbered records in two ways at once. ``acknowledged`` has each acknowledged record by its
    offset."""

    def __init__(self, writer: LogWriter, first: int, acknowledged: dict[int, bytes]) -> None:
        self._writer = writer
        self._acknowledged = acknowledged
        self._progress = trio.Event()
        self.next_number = first

    def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._one_by_one)
        nursery.start_soon(self._many)

    async def wait(self, count: int) -> None:
        """Return once ``count`` records are acknowledged."""
        while len(self._acknowledged) < count:
            await self._progress.wait()
            self._progress = trio.Event()

    def _take(self, count: int) -> list[bytes]:
        first = self.next_number
        self.next_number += count
        return [b"record %d" % number for number in range(first, first + count)]

    async def _one_by_one(self) -> None:
        while True:
            (record,) = self._take(1)
            ack = await self._writer.append(record)
            self._acknowledged[ack.offset] = record
            self._progress.set()

    async def _many(self) -> None:
        while True:
            records = self._take(50)
            for ack, record in zip(await self._writer.append_many(records), records, strict=True):
                self._acknowledged[ack.offset] = record
            self._progress.set()


async def test_killing_the_whole_cluster_in_the_middle_of_writing_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    chance = random.Random("kill rounds")
    acknowledged: dict[int, bytes] = {}
    numbers = 0
    end = 0
    async with open_children() as children:
        running = await start_cluster(children, tmp_path / "cluster")
        for round_number in range(KILL_ROUNDS):
            # Cancel it once all bookies are dead: a graceful end would wait for them.
            with trio.fail_after(PATIENCE_S), trio.CancelScope() as writing:
                async with ledgerlog.connect(running.uri) as cluster:
                    log = await cluster.create_log("written", exist_ok=True)
                    async with log.writer() as writer, trio.open_nursery() as nursery:
                        assert writer.epoch == 2 * round_number + 1
                        assert writer.next_offset == end, "the next offset continues"
                        appender = Appender(writer, numbers, acknowledged)
                        appender.start(nursery)
                        await appender.wait(len(acknowledged) + chance.randrange(1, 3000))
                        running.child.kill()
                        await running.child.wait()
                        writing.cancel()
            numbers = appender.next_number
            running = await start_cluster(children, tmp_path / "cluster")
            async with ledgerlog.connect(running.uri) as cluster:
                log = await cluster.open_log("written")
                async with log.writer() as writer:
                    end = writer.next_offset
                records = await read_all(log)
                assert len(records) == end
                assert len(set(records)) == end, "nothing is there twice"
                for offset, record in acknowledged.items():
                    assert records[offset] == record


async def contender(local: LocalCluster, log: Log, name: str) -> Child:
    """A process that leads the log when it is told to."""
    child = await local.children.start(
        name,
        [sys.executable, "-m", "ledgerlog.cli.demo_contender", local.uri, log.name],
        pipe_in=True,
        pipe_out=True,
    )
    assert (await event_of(child))["event"] == "ready"
    return child


async def event_of(child: Child) -> dict[str, Any]:
    """The next thing that a contender says."""
    assert child.stdout is not None
    line = b""
    with trio.fail_after(PATIENCE_S):
        while not line.endswith(b"\n"):
            more = await child.stdout.receive_some(1)
            assert more, "it ended"
            line += more
    event: dict[str, Any] = json.loads(line)
    return event


async def tell(child: Child, kind: int, number: int = 0, records: Sequence[bytes] = ()) -> None:
    assert child.stdin is not None
    await child.stdin.send_all(encode_frame(kind, number, records))


async def test_a_leader_that_was_stopped_while_another_took_over_acknowledges_nothing_more(
    tmp_path: Path,
) -> None:
    async with local_cluster(tmp_path, bookies=3) as local:
        log = await local.cluster.create_log("led")
        old = await contender(local, log, "old")
        await tell(old, LEAD)
        assert (await event_of(old))["epoch"] == 1
        await tell(old, RECORDS, 1, [b"of the old leader"])
        assert (await event_of(old))["first_offset"] == 0
        await stop_without_lock(old, local.cluster.store)
        for number in range(2, 6):
            await tell(old, RECORDS, number, [b"sent while it was stopped %d" % number])
        with trio.fail_after(PATIENCE_S):
            async with log.writer() as new:
                assert (new.epoch, new.next_offset) == (2, 1)
                assert (await new.append(b"of the new leader")).offset == 1
                old.send_signal(signal.SIGCONT)
                await tell(old, RECORDS, 6, [b"sent when it was awake again"])
                for number in range(2, 7):
                    refused = await event_of(old)
                    assert (refused["event"], refused["batch"]) == ("refused", number)
                    assert refused["error"] == "LostLeadership"
                    assert refused["epoch"] == 2, "it is told who leads now"
                assert (await new.append(b"of the new leader again")).offset == 2
        assert await read_all(log) == [b"of the old leader", b"of the new leader", b"of the new leader again"]


async def test_one_bookie_of_three_dead_and_no_spare_keeps_acknowledging_and_two_fail_in_time(
    tmp_path: Path,
) -> None:
    async with local_cluster(tmp_path, bookies=3) as local:
        async with ledgerlog.connect(local.uri, append_deadline_s=DEADLINE_S) as cluster:
            log = await cluster.create_log("kept")
            written = [b"record %d" % number for number in range(100)]
            failure: LedgerLogError | None = None
            try:
                async with log.writer() as writer:
                    for record in written[:50]:
                        await writer.append(record)
                    local.bookies["bookie-1"].kill()
                    for record in written[50:]:
                        await writer.append(record)
                    local.bookies["bookie-2"].kill()
                    await local.bookies["bookie-2"].wait()
                    began = trio.current_time()
                    try:
                        with trio.fail_after(PATIENCE_S):
                            await writer.append(b"that no quorum can hold")
                    except LedgerLogError as error:
                        failure = error
                    waited_s = trio.current_time() - began
            except LedgerLogError as error:
                failure = failure or error
            assert waited_s >= DEADLINE_S / 2, "it waits for a quorum first"
            assert isinstance(failure, AppendUnknown | NotEnoughBookies)
            why = failure if isinstance(failure, NotEnoughBookies) else failure.__cause__
            assert isinstance(why, NotEnoughBookies)
            assert "no ack quorum of 2" in str(why)
        await local.start_serving("bookie-1")
        await local.start_serving("bookie-2")
        async with log_of(local) as again:
            async with again.writer():
                pass
            records = await read_all(again)
        assert records[:100] == written
        assert records[100:] in ([], [b"that no quorum can hold"]), "an unknown outcome is one of the two"


@asynccontextmanager
async def log_of(local: LocalCluster) -> AsyncIterator[Log]:
    async with ledgerlog.connect(local.uri) as cluster:
        yield await cluster.open_log("kept")
