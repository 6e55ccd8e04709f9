"""The console without a browser: what it looks at, what that costs, who may look and who may change.

Times are mock times, so "within two seconds" is exact and says nothing about the machine.
"""

from __future__ import annotations

import gc
import logging
import socket
import time
from collections import Counter
from contextlib import closing
from functools import partial
from typing import Any

import attrs
import httpx
import pytest
import trio
from trio.testing import MockClock

from ledgerlog.admin.gate import RequestRefused
from ledgerlog.console.doors import Doors
from ledgerlog.console.observer import Subject
from ledgerlog.console.serving import serve_console
from ledgerlog.errors import InvalidArgument, MetadataOutcomeUnknown
from ledgerlog.limits import CONSOLE_ALIVE_S, CONSOLE_PAGE_ROWS, CONSOLE_REFRESH_S, CONSOLE_WATCHERS
from ledgerlog.log import log as logs
from ledgerlog.log.positions import ReadPosition, find_tail
from ledgerlog.log.registry import LogRegistry
from ledgerlog.meta.grants import change_grants
from ledgerlog.meta.store import Create
from ledgerlog.model.admission import Admission, ProvenBy
from ledgerlog.model.layout import COOKIES, ledger_path, log_record_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.model.secret import ADMIN
from ledgerlog.model.token import TokenScope
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.testing.faulty_store import Call, GoOn
from ledgerlog.testing.memory_cluster import eventually, open_cluster
from tests.console.stage import NOW_S, Stage, Stream, staged, token, watching

CLOSED = Admission(ProvenBy.SECRET)
OURS = {"origin": "http://localhost"}


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    return autojump_clock


def browser(stage: Stage, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=stage.app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


async def log_in(client: httpx.AsyncClient, **options: Any) -> dict[str, Any]:
    options.setdefault("expires_s", NOW_S + 3600)
    answer = await client.post("/log-in", json={"token": token(**options)}, headers=OURS)
    assert answer.status_code == 200, answer.text
    return answer.json()


def has_rows(stream: Stream, section: str, count: int) -> bool:
    return len(rows(stream, section)) == count


def rows(stream: Stream, section: str) -> dict[str, Any]:
    return dict(stream.picture.get(section, {}))


# --- what it shows ----------------------------------------------------------------------------------


async def test_a_killed_bookie_is_shown_within_two_seconds(clock: MockClock) -> None:
    async with staged() as stage, watching(stage.app, "kind=cluster") as stream:
        await eventually(lambda: len(rows(stream, "bookies")) == 3)
        assert {row["state"] for row in rows(stream, "bookies").values()} == {"writable"}
        await stage.cluster.bookies["b2"].kill()
        with trio.fail_after(2.0):
            await eventually(lambda: rows(stream, "bookies")["b2"]["state"] == "unavailable")
        assert rows(stream, "bookies")["b1"]["state"] == "writable"
        await stage.cluster.bookies["b2"].start()
        await eventually(lambda: rows(stream, "bookies")["b2"]["state"] == "writable")


async def test_a_bookie_that_hangs_is_shown_within_two_seconds(clock: MockClock) -> None:
    async with staged() as stage, watching(stage.app, "kind=cluster") as stream:
        await eventually(lambda: len(rows(stream, "bookies")) == 3)
        stage.cluster.network.cut("client-1", "b2")
        with trio.fail_after(2.0 + CONSOLE_REFRESH_S):
            await eventually(lambda: rows(stream, "bookies")["b2"]["state"] == "unavailable")


async def test_a_log_that_is_deleted_while_it_is_shown_is_said_to_be_and_its_successor_is_shown(
    clock: MockClock,
) -> None:
    async with staged() as stage, stage.cluster.client() as client:
        await logs.create_log(client.opened, "orders")
        async with watching(stage.app, "kind=log&name=orders") as stream:
            await eventually(lambda: rows(stream, "log").get("orders", {}).get("state") == "there")
            await logs.delete_log(client.opened, "orders")
            await eventually(lambda: rows(stream, "log")["orders"]["state"] == "deleted")
            log = await logs.create_log(client.opened, "orders")
            await eventually(lambda: rows(stream, "log")["orders"]["state"] == "there")
            async with log.writer() as writer:
                await writer.append(b"one")
                await eventually(lambda: rows(stream, "log")["orders"]["next_offset"] == 1)
                assert rows(stream, "log")["orders"]["lead"] == "led"


async def test_what_happens_to_a_log_is_told_once_however_many_pages_show_the_log(clock: MockClock) -> None:
    async with (
        staged() as stage,
        stage.cluster.client() as client,
        watching(stage.app, "kind=logs") as stream,
        watching(stage.app, "kind=log&name=orders") as other,
    ):
        for _ in range(2):
            log = await logs.create_log(client.opened, "orders")
            for _ in range(2):
                async with log.writer() as writer:
                    await writer.append(b"one")
                    await eventually(
                        lambda: rows(other, "log")["orders"].get("next_offset") == writer.next_offset
                    )
            await logs.delete_log(client.opened, "orders")
            await eventually(lambda: rows(stream, "logs")["orders"]["state"] == "deleted")
            await eventually(lambda: rows(other, "log")["orders"]["state"] == "deleted")
        await trio.sleep(10)
        lines = sorted(rows(stream, "happenings").items(), key=lambda line: int(line[0]))
        told = [row["text"] for _, row in lines if row["about"] == "log orders"]
        assert told == [
            "is led in epoch 2, in ledger 1",
            "was deleted",
            "is there again: another log of this name",
            "is led in epoch 2, in ledger 3",
            "was deleted",
        ]


async def test_an_answer_about_the_end_that_comes_after_the_log_was_sealed_is_not_shown(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = trio.Event()
    asked = 0

    async def late(held: Any, metadata: LogMetadata) -> ReadPosition:
        nonlocal asked
        asked += 1
        found = await find_tail(held, metadata)
        await goes_on.wait()
        return found

    monkeypatch.setattr("ledgerlog.console.logs.find_tail", late)
    async with staged() as stage, stage.cluster.client() as client:
        log = await logs.create_log(client.opened, "orders")
        async with log.writer() as writer, watching(stage.app, "kind=log&name=orders") as stream:
            await eventually(lambda: asked == 1)
            await writer.append_many([b"one", b"two"])
            await log.seal()
            await eventually(lambda: rows(stream, "log")["orders"].get("lead") == "sealed")
            goes_on.set()
            await trio.sleep(10)
            assert rows(stream, "log")["orders"]["next_offset"] == 2


async def test_a_log_that_is_not_there_yet_is_shown_once_it_is(clock: MockClock) -> None:
    async with (
        staged() as stage,
        stage.cluster.client() as client,
        watching(stage.app, "kind=log&name=orders") as stream,
    ):
        await eventually(lambda: rows(stream, "log").get("orders", {}).get("state") == "missing")
        await logs.create_log(client.opened, "orders")
        await eventually(lambda: rows(stream, "log")["orders"]["state"] == "there")


async def test_a_store_that_is_away_is_said_to_be_and_everything_is_up_to_date_afterwards(
    clock: MockClock,
) -> None:
    async with staged() as stage, stage.cluster.client() as client:
        await logs.create_log(client.opened, "orders")
        async with watching(stage.app, "kind=logs") as stream:
            await eventually(lambda: "orders" in rows(stream, "logs"))
            stage.watcher.store.inner.disconnect()
            await eventually(lambda: "the metadata store" in rows(stream, "troubles"))
            assert rows(stream, "bookies")["b1"]["state"] == "writable"
            await logs.create_log(client.opened, "bills")
            stage.watcher.store.inner.reconnect()
            await eventually(lambda: not rows(stream, "troubles") and "bills" in rows(stream, "logs"))


async def test_a_damaged_log_is_shown_as_such_and_the_others_go_on(clock: MockClock) -> None:
    async with staged() as stage, stage.cluster.client() as client:
        damaged = await logs.create_log(client.opened, "a")
        await logs.create_log(client.opened, "b")
        path = f"log/{damaged.incarnation:016x}"
        await client.store.set(path, b"nonsense", version=0)
        async with watching(stage.app, "kind=logs") as stream:
            await eventually(lambda: rows(stream, "logs").get("b", {}).get("state") == "there")
            await eventually(lambda: rows(stream, "logs")["a"]["state"] == "damaged")
            assert any(path in row["what"] for row in rows(stream, "troubles").values())


async def test_a_log_whose_record_is_lost_is_shown_as_damaged_and_costs_nothing(clock: MockClock) -> None:
    async with staged() as stage, stage.cluster.client() as client:
        log = await logs.create_log(client.opened, "a")
        await client.store.delete(log_record_path(log.incarnation), version=0)
        async with watching(stage.app, "kind=logs") as stream:
            await eventually(lambda: rows(stream, "logs").get("a", {}).get("state") == "damaged")
            counted = Counted()
            stage.watcher.store.faults.append(counted)
            await trio.sleep(60)
            assert counted.total == 0
            await logs.delete_log(client.opened, "a", damaged=True)
            await eventually(lambda: rows(stream, "logs")["a"]["state"] == "deleted")


# --- what it costs ----------------------------------------------------------------------------------


async def fill(stage: Stage, *, log_count: int, ledger_count: int) -> None:
    """Put many logs and ledgers into the store, without bookies."""
    async with stage.cluster.client() as client:
        registry = LogRegistry(client.store, client.opened.environment)
        for number in range(log_count):
            await registry.create(f"log-{number:04}", replication=Replication(3, 3, 2))
        made = [
            LedgerMetadata.create(
                ledger_id=ledger_id,
                replication=Replication(3, 3, 2),
                ensemble=["b1", "b2", "b3"],
                key=b"k" * 16,
                token=b"t" * 16,
                created_ms=1,
                custom={},
            )
            for ledger_id in range(ledger_count)
        ]
        for at in range(0, ledger_count, 100):
            await client.store.transaction(
                [Create(ledger_path(each.ledger_id), each.encode()) for each in made[at : at + 100]]
            )


@attrs.define(eq=False)
class Counted:
    """Not a fault: it counts the calls to the metadata store."""

    calls: Counter[str] = attrs.Factory(Counter)

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        self.calls[str(call)] += 1
        return await go_on()

    @property
    def total(self) -> int:
        return self.calls.total()


@pytest.mark.long
async def test_ten_thousand_ledgers_and_a_thousand_logs_cost_a_page_of_reads_and_then_nothing(
    clock: MockClock,
) -> None:
    async with staged() as stage:
        await fill(stage, log_count=1000, ledger_count=10_000)
        counted = Counted()
        stage.watcher.store.faults.append(counted)
        for query, section, opening in (
            # A name, a record and an election for each log of the page, and the names of all.
            ("kind=logs", "logs", 6 * CONSOLE_PAGE_ROWS),
            # A ledger for each row, and three lists of names.
            ("kind=ledgers", "ledgers", CONSOLE_PAGE_ROWS + 10),
            ("kind=ledger&number=7", "ledger", 5),
            ("kind=log&name=log-0500", "log", 15),
            ("kind=cluster", "bookies", 20),
            ("kind=repair", "bookies", 20),
        ):
            counted.calls.clear()
            async with watching(stage.app, query) as stream:
                wanted = {"logs": CONSOLE_PAGE_ROWS, "ledgers": CONSOLE_PAGE_ROWS, "bookies": 3}
                await eventually(partial(has_rows, stream, section, wanted.get(section, 1)))
                await trio.sleep(10)
                assert 0 < counted.total <= opening, (query, counted.calls)
                counted.calls.clear()
                await trio.sleep(600)
                # Bookies count their generations in their cookies now and then, which is a change.
                assert counted.calls.keys() <= {f"children {COOKIES}"}, (query, counted.calls)
                assert counted.total <= 3, (query, counted.calls)
        assert stage.observer.watchers == 0


async def test_a_page_that_nobody_looks_at_any_more_costs_nothing_not_even_bookies(clock: MockClock) -> None:
    async with staged() as stage, stage.cluster.client() as client:
        await logs.create_log(client.opened, "orders")
        async with watching(stage.app, "kind=logs") as stream:
            await eventually(lambda: "orders" in rows(stream, "logs"))
        asked = stage.cluster.bookies["b1"].node.server.figures()["connections"]
        counted = Counted()
        stage.watcher.store.faults.append(counted)
        await logs.create_log(client.opened, "bills")
        await trio.sleep(60)
        assert counted.total == 0
        assert stage.cluster.bookies["b1"].node.server.figures()["connections"] == asked


async def test_a_log_that_is_written_costs_the_store_nothing_between_its_rolls(clock: MockClock) -> None:
    async with staged() as stage, stage.cluster.client() as client:
        log = await logs.create_log(client.opened, "orders")
        async with log.writer() as writer, watching(stage.app, "kind=log&name=orders") as stream:
            await writer.append(b"x")
            await eventually(lambda: rows(stream, "log").get("orders", {}).get("next_offset") == 1)
            await trio.sleep(5)
            counted = Counted()
            stage.watcher.store.faults.append(counted)
            for number in range(60):
                await writer.append(b"x")
                await trio.sleep(1)
                if number % 20 == 0:
                    await eventually(lambda n=number: rows(stream, "log")["orders"]["next_offset"] >= n + 2)
            assert counted.total == 0, counted.calls
            assert rows(stream, "log")["orders"]["records_per_s"] == pytest.approx(1, rel=0.5)


async def test_watchers_of_one_page_share_its_looks_and_their_number_is_bounded(clock: MockClock) -> None:
    async with staged() as stage:
        counted = Counted()
        stage.watcher.store.faults.append(counted)
        async with watching(stage.app, "kind=repair") as first:
            await eventually(lambda: bool(rows(first, "repair")))
            await trio.sleep(5)
            counted.calls.clear()
            async with trio.open_nursery() as nursery:
                left = trio.Event()
                streams: list[Stream] = []

                async def watch() -> None:
                    async with watching(stage.app, "kind=repair") as stream:
                        streams.append(stream)
                        await left.wait()

                for _ in range(CONSOLE_WATCHERS + 1):
                    nursery.start_soon(watch)
                await eventually(lambda: len(streams) == CONSOLE_WATCHERS + 1)
                await eventually(lambda: all(stream.status for stream in streams))
                assert Counter(stream.status for stream in streams) == {200: CONSOLE_WATCHERS - 1, 503: 2}
                assert counted.total == 0
                left.set()


async def test_pages_go_on_behind_the_last_name_and_below_the_last_id(clock: MockClock) -> None:
    async with staged() as stage:
        await fill(stage, log_count=120, ledger_count=70_000 // 500)
        async with watching(stage.app, "kind=logs") as stream:
            await eventually(lambda: len(rows(stream, "logs")) == CONSOLE_PAGE_ROWS)
            assert rows(stream, "log_list")[""] == {"logs": 120, "matching": 120, "next": "log-0049"}
        async with watching(stage.app, "kind=logs&name=log-01&after=log-0109") as stream:
            await eventually(lambda: len(rows(stream, "logs")) == 10)
            assert rows(stream, "log_list")[""] == {"logs": 120, "matching": 20, "next": None}
        async with watching(stage.app, "kind=ledgers&number=40") as stream:
            await eventually(lambda: set(rows(stream, "ledgers")) == set(map(str, range(40))))
            assert rows(stream, "ledger_list")[""] == {"next": None}


# --- foreign pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8090", 200),
        ("console.example:8090", 200),
        ("127.0.0.1:8090", 200),
        ("[::1]:8090", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1", 421),
        ("localhost:80x", 421),
        ("", 421),
    ],
)
async def test_a_name_that_somebody_else_points_here_is_refused(
    clock: MockClock, host: str, status: int
) -> None:
    async with staged(1) as stage, browser(stage) as client:
        for path in ("/", "/session", "/static/console.js", "/watch"):
            if status == 200 and path == "/watch":
                continue
            assert (await client.get(path, headers={"host": host})).status_code == status, path


async def test_every_answer_keeps_the_browser_strict(clock: MockClock) -> None:
    async with staged(1) as stage, browser(stage) as client:
        for path in ("/", "/log/a/b", "/static/console.css", "/session", "/nowhere", "/static/x.js"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert not [name for name in headers if name.startswith("access-control")]
        page = (await client.get("/")).text
        assert "http://" not in page
        assert "https://" not in page
        assert "style=" not in page
        assert "onclick" not in page
        script = (await client.get("/static/console.js")).text
        assert "innerHTML" not in script
        assert "insertAdjacent" not in script


async def test_a_post_of_another_page_is_refused_even_with_the_cookie(clock: MockClock) -> None:
    async with staged(1) as stage, browser(stage) as client:
        mark = (await log_in(client))["mark"]
        body = {"what": "pause"}
        for headers in (
            {"x-console-mark": mark},
            {"x-console-mark": mark, "origin": "http://evil.example"},
            {"x-console-mark": mark, "origin": "null"},
            {"x-console-mark": mark, "origin": "http://localhost:81"},
            {"x-console-mark": mark, "origin": "https://console.example"},
            {"x-console-mark": mark, "origin": "ftp://localhost"},
            {**OURS},
            {**OURS, "x-console-mark": "0" * len(mark)},
        ):
            assert (await client.post("/change", json=body, headers=headers)).status_code == 403, headers
        form = await client.post("/change", data=body, headers={**OURS, "x-console-mark": mark})
        assert form.status_code == 415
        for path in ("/log-in", "/log-out"):
            refused = await client.post(path, json={"token": "x"}, headers={"origin": "http://evil.example"})
            assert refused.status_code == 403
        assert not (await RepairQueue(stage.watcher.opened).settings()).paused


# --- people -----------------------------------------------------------------------------------------


async def test_the_cookie_of_a_session_is_for_this_site_only_and_for_no_script(clock: MockClock) -> None:
    async with staged(1) as stage, browser(stage) as client:
        answer = await client.post("/log-in", json={"token": token(expires_s=NOW_S + 60)}, headers=OURS)
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert token(expires_s=NOW_S + 60) not in cookie


async def test_a_page_that_came_through_a_proxy_by_https_is_ours_and_its_cookie_stays_with_https(
    clock: MockClock,
) -> None:
    async with staged(1) as stage, browser(stage) as client:
        for origin, is_secure in (("http://localhost", False), ("https://localhost", True)):
            answer = await client.post(
                "/log-in", json={"token": token(expires_s=NOW_S + 60)}, headers={"origin": origin}
            )
            assert answer.status_code == 200
            assert ("Secure" in answer.headers["set-cookie"]) is is_secure


def test_a_console_that_serves_https_itself_has_no_page_by_http() -> None:
    doors = Doors(None, hosts=frozenset(), new_secret=bytes, now_s=lambda: NOW_S, is_https=True)
    assert doors.check_origin({"host": "c.example", "origin": "https://c.example"})
    with pytest.raises(RequestRefused):
        doors.check_origin({"host": "c.example", "origin": "http://c.example"})


async def test_nobody_changes_anything_without_logging_in(clock: MockClock) -> None:
    async with staged(1) as stage, browser(stage) as client:
        answer = await client.post("/change", json={"what": "pause"}, headers=OURS)
        assert (answer.status_code, "log in first" in answer.text) == (401, True)


async def test_an_admin_pauses_and_resumes_repair_and_has_a_bookie_emptied(clock: MockClock) -> None:
    async with staged(3) as stage, browser(stage) as client:
        queue = RepairQueue(stage.watcher.opened)
        headers = {**OURS, "x-console-mark": (await log_in(client))["mark"]}

        async def change(what: str, bookie: str = "") -> str:
            answer = await client.post("/change", json={"what": what, "bookie": bookie}, headers=headers)
            return answer.json().get("done") or answer.json()["error"]

        async with watching(stage.app, "kind=repair") as stream:
            assert await change("pause") == "repair is paused"
            await eventually(lambda: rows(stream, "repair").get("", {}).get("paused") is True)
            assert await change("resume") == "repair continues"
            await eventually(lambda: rows(stream, "repair")[""]["paused"] is False)
            assert "is being emptied" in await change("empty", "b2")
            await eventually(lambda: rows(stream, "bookies")["b2"]["is_draining"])
            assert list(await queue.draining()) == ["b2"]
            assert await change("keep", "b2") == "bookie b2 stays"
            assert not await queue.draining()
        for what in ("empty", "keep"):
            assert "no bookie b9" in await change(what, "b9")
        assert "there is no change" in await change("delete-everything")


async def test_a_change_that_fails_is_in_the_log_because_it_may_have_been_made(
    clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change(*_: object) -> str:
        raise MetadataOutcomeUnknown("the answer was lost")

    monkeypatch.setattr("ledgerlog.console.web.change", change)
    async with staged(1) as stage, browser(stage) as client:
        headers = {**OURS, "x-console-mark": (await log_in(client))["mark"]}
        body = {"what": "empty", "bookie": "b1 by admin/x\nconsole: pause"}
        assert (await client.post("/change", json=body, headers=headers)).status_code >= 400
        (said,) = [text for text in map(logging.LogRecord.getMessage, caplog.records) if "failed:" in text]
        assert "'empty' 'b1 by admin/x\\nconsole: pause' (failed: the answer was lost) by" in said


@pytest.mark.parametrize(
    ("who", "scope", "may_change"),
    [
        (ADMIN, TokenScope.CHANGE, True),
        (ADMIN, TokenScope.READ, False),
        (Principal("bookie", "b1"), TokenScope.CHANGE, False),
    ],
)
async def test_who_logs_in_may_change_what_the_administration_port_lets_them(
    clock: MockClock, who: Principal, scope: TokenScope, may_change: bool
) -> None:
    async with staged(1) as stage, browser(stage) as client:
        person = await log_in(client, who=who, scope=scope)
        assert (person["principal"], person["may_change"]) == (str(who), may_change)
        headers = {**OURS, "x-console-mark": person["mark"]}
        answer = await client.post("/change", json={"what": "pause"}, headers=headers)
        assert answer.status_code == (200 if may_change else 403)


async def test_a_client_and_a_stranger_cannot_log_in(clock: MockClock) -> None:
    async with staged(1) as stage, browser(stage) as client:
        for text, status in (
            (token(Principal("client", "billing"), expires_s=NOW_S + 60), 403),
            (token(expires_s=NOW_S + 60) + "0", 401),
            (token(expires_s=NOW_S - 1), 401),
            ("", 401),
        ):
            answer = await client.post("/log-in", json={"token": text}, headers=OURS)
            assert answer.status_code == status, answer.text
            assert "set-cookie" not in answer.headers


async def test_in_a_closed_cluster_nobody_looks_without_logging_in(clock: MockClock) -> None:
    async with staged(1, admission=CLOSED) as stage, browser(stage) as client:
        assert (await client.get("/watch?kind=cluster")).status_code == 401
        assert "token" in (await client.get("/session")).json()["refused"]
        await log_in(client, scope=TokenScope.READ)
        assert (await client.get("/session")).json()["refused"] is None
        cookie = f"ledgerlog-console={client.cookies['ledgerlog-console']}"
        async with watching(stage.app, "kind=cluster", cookie=cookie) as stream:
            await eventually(lambda: "b1" in rows(stream, "bookies"))
        await client.post("/log-out", json={}, headers=OURS)
        async with watching(stage.app, "kind=cluster", cookie=cookie) as stream:
            await eventually(lambda: stream.status == 401)


async def test_an_expired_token_and_a_revoked_role_end_a_session_and_its_open_pages(clock: MockClock) -> None:
    async with staged(1, admission=CLOSED) as stage, browser(stage) as client:
        await log_in(client, expires_s=NOW_S + 100)
        cookie = f"ledgerlog-console={client.cookies['ledgerlog-console']}"
        async with watching(stage.app, "kind=cluster", cookie=cookie) as stream:
            await trio.sleep(90)
            assert stream.refused is None
            await trio.sleep(20 + CONSOLE_ALIVE_S)
            assert stream.refused is not None
            await eventually(lambda: stream.is_over)
        assert (await client.get("/session")).json()["principal"] is None
        person = await log_in(client)
        await change_grants(stage.watcher.store, ADMIN, lambda grants: attrs.evolve(grants, is_revoked=True))
        headers = {**OURS, "x-console-mark": person["mark"]}
        assert (await client.post("/change", json={"what": "pause"}, headers=headers)).status_code == 403


# --- what is malformed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        {"kind": "secrets"},
        {"kind": "log"},
        {"kind": "log", "name": "a//b"},
        {"kind": "log", "name": "x" * 300},
        {"kind": "ledger"},
        {"kind": "ledger", "number": "-1"},
        {"kind": "ledger", "number": "9" * 19},
        {"kind": "ledger", "number": "\u0661"},
        {"kind": "logs", "name": "x" * 300},
    ],
)
def test_a_subject_that_is_none_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        Subject.parse_untrusted(query)


# httpx leaves the rest of a body that was refused too early to be read.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream")
async def test_a_malformed_request_gets_one_line_that_says_why(clock: MockClock) -> None:
    async with staged(1) as stage, browser(stage) as client:
        assert (await client.get("/watch?kind=nothing")).status_code == 400
        for body, status in (
            (b"{", 400),
            (b"[]", 400),
            (b"{}", 400),
            (b'{"token": 1}', 400),
            (b"[" * 3000, 400),
            (b" " * 9999, 413),
        ):
            answer = await client.post(
                "/log-in", content=body, headers={**OURS, "content-type": "application/json"}
            )
            assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert stage.observer.watchers == 0


# hypercorn does not close its socket if it cannot bind it.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
async def test_a_console_that_cannot_listen_says_so_with_a_bare_error() -> None:
    async def serving(url: str) -> None:
        pytest.fail(url)

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        async with open_cluster() as cluster, cluster.client() as client:
            with pytest.raises(OSError, match="in use"):
                await serve_console(
                    client.opened, listen, hosts=frozenset(), now_s=time.time, on_serving=serving
                )
            with pytest.raises(FileNotFoundError):
                await serve_console(
                    client.opened,
                    "127.0.0.1:0",
                    hosts=frozenset(),
                    now_s=time.time,
                    certificate="/missing/certificate.pem",
                    key="/missing/key.pem",
                    on_serving=serving,
                )
    gc.collect()
