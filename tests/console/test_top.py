"""The console in a terminal, through textual's pilot, over a cluster in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

import ledgerlog
from ledgerlog.console.core.words import line_text
from ledgerlog.console.terminal import Terminal
from ledgerlog.errors import ClusterNotFound
from ledgerlog.ledger.client import LedgerClient
from tests.waiting import PATIENCE_S

RECORDS = 30


@asynccontextmanager
async def connect() -> AsyncIterator[LedgerClient]:
    async with ledgerlog.connect("memory:?bookies=3") as cluster:
        log = await cluster.create_log("orders")
        async with log.writer() as writer:
            await writer.append_many([b"x"] * RECORDS)
        await log.cursor("billing").set(10)
        yield cluster.client


async def sees(pilot: Pilot[None], look: Callable[[], str], *texts: str) -> None:
    async with asyncio.timeout(PATIENCE_S / 4):
        while not all(text in look() for text in texts):
            await pilot.pause(0.02)


def table(app: Terminal, name: str) -> str:
    found = app.query_one(f"#{name}", DataTable)
    return "\n".join(" | ".join(map(str, found.get_row(key))) for key in found.rows)


def words(app: Terminal, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def test_it_shows_bookies_logs_and_cursors_and_is_used_by_keys() -> None:
    async def use() -> None:
        app = Terminal(connect, now_s=time.time)
        async with app.run_test(size=(140, 40)) as pilot:
            await sees(pilot, lambda: table(app, "bookies"), "bookie-1", "bookie-3", "● writable")
            await sees(pilot, lambda: words(app, "summary"), "3 of 3 bookies are writable", "0 ledgers wait")
            await pilot.press("2")
            await sees(pilot, lambda: table(app, "log-list"), "orders", "no leader", str(RECORDS), "█")
            app.query_one("#log-list", DataTable).focus()
            await pilot.press("enter")
            await sees(pilot, lambda: words(app, "log-words"), "Log: orders", f"Next offset: {RECORDS}")
            await sees(pilot, lambda: table(app, "cursors"), "billing | 10 | 20 | no")
            await pilot.press("4")
            await sees(pilot, lambda: words(app, "summary"), "0 workers")
            await pilot.press("q")
        assert app.failure is None

    asyncio.run(use())


def test_a_cluster_that_cannot_be_opened_ends_it_with_the_reason() -> None:
    @asynccontextmanager
    async def refuse() -> AsyncIterator[LedgerClient]:
        raise ClusterNotFound("there is no cluster")
        yield

    async def use() -> Terminal:
        app = Terminal(refuse, now_s=time.time)
        async with app.run_test() as pilot:
            async with asyncio.timeout(PATIENCE_S / 4):
                while app.failure is None:
                    await pilot.pause(0.02)
        return app

    assert isinstance(asyncio.run(use()).failure, ClusterNotFound)


@pytest.mark.parametrize("parts", [1, 5, 100])
def test_the_line_of_a_log_fits_and_ends_in_what_is_open(parts: int) -> None:
    line = [
        {"first_offset": at, "end_offset": at + 1, "lost_before": 0, "is_open": False, "is_fenced": False}
        for at in range(parts)
    ]
    line[-1]["is_open"] = True
    text = line_text(line, chars=20)
    assert parts <= len(text) <= 20 or parts > 20
    assert len(text) <= 20
    assert text.endswith("░")
