"""The console in a terminal, through textual's pilot, over a cluster in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

import ledgerlog
from ledgerlog.console.core.words import CURSORS, line_text, takeover_text
from ledgerlog.console.terminal import Terminal
from ledgerlog.errors import ClusterNotFound
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.log import open_log
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


def test_a_text_of_another_process_is_shown_as_it_is() -> None:
    """A name in brackets is no markup."""

    async def use() -> None:
        app = Terminal(connect, now_s=time.time)
        async with app.run_test(size=(140, 40)) as pilot:
            await sees(pilot, lambda: table(app, "bookies"), "bookie-1")
            for text in ("web [/1]", "web[eu] 1"):
                columns = [(title, lambda row: row["text"]) for title, _ in CURSORS]
                app._fill("cursors", columns, {"row": {"text": text}})
                cell = app.query_one("#cursors", DataTable).get_row_at(0)[0]
                assert isinstance(cell, Text)
                assert cell.plain == text
                await pilot.pause()
            await pilot.press("q")
        assert app.failure is None

    asyncio.run(use())


def test_a_takeover_shows_with_its_steps_and_its_end() -> None:
    take_over = trio.Event()

    @asynccontextmanager
    async def led() -> AsyncIterator[LedgerClient]:
        async with connect() as client, trio.open_nursery() as nursery:

            async def next_leader() -> None:
                await take_over.wait()
                log = await open_log(client, "orders")
                async with log.writer() as writer:
                    await writer.append(b"y")
                    await trio.sleep_forever()

            nursery.start_soon(next_leader)
            yield client
            nursery.cancel_scope.cancel()

    async def use() -> None:
        app = Terminal(led, now_s=time.time)
        async with app.run_test(size=(140, 40)) as pilot:
            await pilot.press("2")
            await sees(pilot, lambda: table(app, "log-list"), "orders", str(RECORDS))
            app.query_one("#log-list", DataTable).focus()
            await pilot.press("enter")
            await sees(pilot, lambda: words(app, "log-words"), "Log: orders")
            assert words(app, "takeovers") == ""
            take_over.set()
            await sees(
                pilot, lambda: words(app, "takeovers"), "✓ fence epoch 1", "✓ lead on in epoch 2, ledger"
            )
            await pilot.press("q")
        assert app.failure is None

    asyncio.run(use())


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({}, "▲ fence epoch 1"),
        ({"fenced": [7]}, "▲ fence epoch 1 (7)  ▲ find the end"),
        (
            {"fenced": [7], "closed": [[7, 1041]], "is_closed": True},
            "✓ fence epoch 1 (7)  ✓ find the end (7 ends at 1,041)  ▲ lead on",
        ),
        ({"fenced": [6, 7], "closed": [[6, -1]]}, "✓ fence epoch 1 (6, 7)  ▲ find the end (6 ends empty)"),
        (
            {
                "fenced": [7],
                "closed": [[7, 3]],
                "is_closed": True,
                "is_over": True,
                "epoch": 2,
                "ledger": 9,
                "seconds": 0.031,
            },
            "✓ fence epoch 1 (7)  ✓ find the end (7 ends at 3)  ✓ lead on in epoch 2, ledger 9, after 0.03 s",
        ),
        (
            {"is_closed": True, "is_over": True, "epoch": 2},
            "✓ fence epoch 1  ✓ find the end  ✓ lead on in epoch 2",
        ),
    ],
)
def test_a_takeover_in_a_line_says_what_is_done_and_what_is_under_way(
    seen: dict[str, Any], text: str
) -> None:
    row = {"epoch_before": 1, "epoch": None, "ledger": None, "fenced": [], "closed": [], "seconds": None}
    assert takeover_text({**row, "is_closed": False, "is_over": False, **seen}) == text


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
