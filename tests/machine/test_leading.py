"""One leadership of a replica: what its proposals are told. The log and the machine are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledgerlog.errors import AppendUnknown, LedgerLogError, NotLeader
from ledgerlog.machine.leading import Leading


class Submission:
    """A record that the writer took. The test decides what becomes of it."""

    def __init__(self) -> None:
        self.failure: LedgerLogError | None = None
        self.decided = trio.Event()

    async def wait(self) -> Any:
        await self.decided.wait()
        assert self.failure is not None
        raise self.failure

    def fail(self, failure: LedgerLogError) -> None:
        self.failure = failure
        self.decided.set()


class Writer:
    def __init__(self) -> None:
        self.taken: list[Submission] = []

    async def submit(self, data: bytes) -> Submission:
        self.taken.append(Submission())
        await trio.lowlevel.checkpoint()
        return self.taken[-1]


def leading_with(writer: Any) -> Leading:
    core: Any = SimpleNamespace(timestamp_ms=0, requests=SimpleNamespace(find=lambda _: None))
    return Leading(
        writer,
        core,
        now_ms=lambda: 0,
        new_seed=lambda: 0,
        apply=lambda offset, envelope: None,
        not_leading=lambda: NotLeader("log", None),
    )


async def test_an_outcome_that_is_unknown_is_told_as_unknown_and_nothing_more_is_proposed() -> None:
    writer = Writer()
    leading = leading_with(writer)
    told: dict[str, type[LedgerLogError]] = {}

    async def propose(name: str) -> None:
        try:
            await leading.propose(name, b"")
        except LedgerLogError as error:
            told[name] = type(error)

    async def run() -> None:
        with pytest.raises(AppendUnknown):
            await leading.run(lambda: None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for name in ("first", "second"):
            nursery.start_soon(propose, name)
            await wait_all_tasks_blocked()
        writer.taken[0].fail(AppendUnknown("the ledger was fenced"))
        await wait_all_tasks_blocked()
        nursery.start_soon(propose, "third")
        await wait_all_tasks_blocked()
        assert told == {"first": AppendUnknown, "third": NotLeader}
        assert len(writer.taken) == 2
        writer.taken[1].fail(NotLeader("log", None))
    assert told["second"] is NotLeader
