"""Counts the calls that many records cost above their ledger: a batch stays a batch from end to end."""

from __future__ import annotations

import sys
from types import FrameType

from fakes.ledgers import open_world

from ledgerlog.log.log import Log, create_log
from ledgerlog.log.writer import LogWriter


class Calls:
    """Counts calls of Python functions, in whatever task, while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event == "call"

    def __enter__(self) -> Calls:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


async def calls_of(writer: LogWriter, records: int) -> int:
    payloads = [b"x" * 100] * records
    counts = []
    for _ in range(5):
        with Calls() as calls:
            acks = await writer.append_many(payloads)
        assert len(acks) == records
        counts.append(calls.count)
    return min(counts)


async def test_records_that_come_together_cost_no_python_call_each() -> None:
    async with open_world() as world:
        log: Log = await create_log(world.client(), "log")
        async with log.writer() as writer:
            few, many = await calls_of(writer, 10), await calls_of(writer, 2000)
    # A search for how many fit into an entry asks some dozen times, whatever their number.
    assert many - few < 40, f"{few} calls for 10 records, {many} for 2,000"
