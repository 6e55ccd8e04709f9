"""The console in a headless Chromium: what a person sees of a cluster that works, loses a bookie and repairs.

All tests share one cluster and one browser, and come in order: a bookie that one has killed stays dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs
import pytest
import trio
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from ledgerlog.election.election import Election
from ledgerlog.log import log as logs
from ledgerlog.model.layout import log_record_path
from ledgerlog.model.policies import RollPolicy
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.repair.service import AutoRecovery
from ledgerlog.testing.faulty_store import Call, GoOn
from tests.console.chromium import WHY_NOT, open_chromium, thrown
from tests.console.stage import Theatre, open_theatre, token
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.limit_s(PATIENCE_S),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]

T = TypeVar("T")

HOSTILE = "<img src=x onerror=throw(1)>\"'&"
RECORDS = 120
VICTIM = "b4"


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    with open_theatre() as opened:
        opened.run(prepare, opened)
        yield opened


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


async def prepare(theatre: Theatre) -> None:
    """Write some ledgers, and have somebody of a hostile name lead the log "orders"."""
    client = theatre.client.opened
    log = await logs.create_log(client, "orders", roll=RollPolicy(max_records=10))
    await logs.create_log(client, "billing/eu")
    async with log.writer() as writer:
        for _ in range(RECORDS):
            await writer.append(b"x" * 100)
        await log.cursor("billing").set(RECORDS // 2)
    leads = trio.Event()

    async def lead() -> None:
        async with Election(client, "orders", candidate=HOSTILE).leadership(), log.writer() as writer:
            await writer.append(b"first of the second epoch")
            leads.set()
            await trio.sleep_forever()

    theatre.nursery.start_soon(lead)
    await leads.wait()


class Page:
    """What a person does with the page, and sees on it."""

    def __init__(self, browser: Chrome, theatre: Theatre) -> None:
        self.browser = browser
        self.theatre = theatre

    def open(self, path: str) -> None:
        self.browser.get(self.theatre.url + path)
        self.wait(lambda: self.script("return document.body.dataset.drawn") == "yes")

    def script(self, text: str, *arguments: Any) -> Any:
        return self.browser.execute_script(text, *arguments)

    def wait(self, look: Callable[[], T]) -> T:
        patient = WebDriverWait(
            self.browser,
            PATIENCE_S / 4,
            poll_frequency=0.05,
            ignored_exceptions=[StaleElementReferenceException],
        )
        return patient.until(lambda _: look())

    def text(self, selector: str) -> str:
        return " ".join(each.text for each in self.browser.find_elements(By.CSS_SELECTOR, selector))

    def sees(self, selector: str, *texts: str) -> None:
        """Wait until the page shows all of these there."""
        try:
            self.wait(lambda: all(text in self.text(selector) for text in texts))
        except Exception as failure:
            raise AssertionError(f"{texts} not in {selector}: {self.text('body')}") from failure

    def row(self, table: str, key: str) -> str:
        return f"[data-part={table}] tr[data-key='{key}']"

    def press(self, selector: str) -> None:
        """Press a button by the keyboard."""
        self.wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, selector))
        self.browser.find_element(By.CSS_SELECTOR, selector).send_keys(Keys.ENTER)


@pytest.fixture
def page(browser: Chrome, theatre: Theatre) -> Iterator[Page]:
    yield Page(browser, theatre)
    assert thrown(browser) == []


def test_each_page_loads_and_shows_the_cluster(page: Page) -> None:
    page.open("/")
    for bookie in ("b1", "b2", "b3", "b4"):
        page.sees(page.row("bookies", bookie), "writable", "ms")
    page.open("/logs")
    page.sees(page.row("logs", "billing/eu"), "no leader")
    page.sees(page.row("logs", "orders"), "led", str(RECORDS + 1))
    page.open("/log/orders")
    page.sees("[data-part=tiles]", str(RECORDS + 1))
    page.sees(page.row("cursors", "billing"), str(RECORDS // 2 + 1))
    parts = page.script("return document.querySelectorAll('[data-part=card] svg .part').length")
    assert parts == page.theatre.run(segment_count, page.theatre)
    page.open("/ledgers")
    page.sees(page.row("ledgers", "0"), "closed", "orders", "3 of 3")
    page.open("/ledger/0")
    page.sees("[data-part=fragments]", "3 of 3")
    page.open("/repair")
    page.sees("[data-part=tasks]", "Nothing waits")


async def segment_count(theatre: Theatre) -> int:
    return len((await (await logs.open_log(theatre.client.opened, "orders")).info()).segments)


def test_what_the_cluster_says_is_text_and_never_markup(page: Page) -> None:
    for path in ("/logs", "/log/orders"):
        page.open(path)
        page.sees("main", HOSTILE)
        assert page.script("return document.querySelectorAll('img').length") == 0


def test_a_page_can_be_used_without_a_mouse(page: Page) -> None:
    page.open("/logs")
    page.sees(page.row("logs", "orders"), "led")
    seen = []
    for _ in range(9):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = page.browser.switch_to.active_element
        outline = page.script("return getComputedStyle(arguments[0]).outlineStyle", focused)
        assert outline != "none", focused.get_attribute("outerHTML")
        seen.append(focused.text or focused.get_attribute("id"))
    assert seen[:7] == ["Skip to the content", "Cluster", "Logs", "Ledgers", "Repair", "Log in", "prefix"]
    roles = page.script("return [...document.querySelectorAll('svg[role=img]')].map((s) => s.ariaLabel)")
    assert any("offsets 0 to" in role for role in roles)
    page.browser.find_element(By.LINK_TEXT, "orders").send_keys(Keys.ENTER)
    page.sees("h1", "orders")


CONTRASTS = """
const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((part) => {
  const share = part / 255;
  return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const colour = getComputedStyle(each).backgroundColor;
    if (!colour.endsWith(", 0)")) return colour;
  }
};
return [...document.querySelectorAll("h1, th, td, dt, dd, a, button, .state, #contact")].map((each) => {
  const [a, b] = [light(getComputedStyle(each).color), light(ground(each))];
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.outerHTML.slice(0, 80)];
}).filter(([contrast]) => contrast < 4.5);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_in_light_and_in_dark(page: Page, scheme: str) -> None:
    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    page.open("/")
    page.sees(page.row("bookies", "b1"), "writable")
    ground = page.script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 3 * 128) == (scheme == "light")
    assert page.script(CONTRASTS) == []


@attrs.define(eq=False)
class HeldRecord:
    """A fault: writes of the record of a log wait until they are let go."""

    path: str
    go: trio.Event = attrs.Factory(trio.Event)

    async def __call__(self, call: Call, go_on: GoOn) -> Any:
        if any(operation.path == self.path for operation in call.operations):
            await self.go.wait()
        return await go_on()


def test_a_takeover_is_drawn_as_it_happens(page: Page) -> None:
    page.open("/log/orders")
    page.sees("[data-part=state]", "led")
    held = page.theatre.run(begin_takeover, page.theatre)
    page.sees("[data-part=takeovers] .steps", "Fence the last leader", "epoch 2", "ends at entry 0")
    page.sees("[data-part=takeovers]", "under way")
    page.sees("[data-part=state]", "taken over")
    page.theatre.run(let_go, held)
    page.sees("[data-part=takeovers] .steps", "epoch 3, in ledger")
    page.sees("[data-part=state]", "led")
    page.sees("#happenings", "is led in epoch 3")


async def begin_takeover(theatre: Theatre) -> HeldRecord:
    log = await logs.open_log(theatre.rival.opened, "orders")
    held = HeldRecord(log_record_path(log.incarnation))
    theatre.rival.store.faults.append(held)

    async def lead() -> None:
        async with log.writer():
            await trio.sleep_forever()

    theatre.nursery.start_soon(lead)
    return held


async def let_go(held: HeldRecord) -> None:
    await trio.lowlevel.checkpoint()
    held.go.set()


def test_a_killed_bookie_shows_and_repair_shrinks_after_an_admin_resumes_it(page: Page) -> None:
    page.theatre.run(begin_repair, page.theatre)
    page.open("/repair")
    page.sees("[data-part=tools]", "not paused")
    assert page.text("[data-part=tools] button") == ""
    log_in(page)
    page.press("[data-part=tools] button")
    page.press("#sure-dialog [value=yes]")
    page.sees("[data-part=tools]", "paused", "Resume")

    page.open("/")
    page.sees(page.row("bookies", VICTIM), "writable")
    page.theatre.run(kill, page.theatre)
    page.sees(page.row("bookies", VICTIM), "unavailable")
    page.sees("#happenings", f"bookie {VICTIM} is unavailable")
    page.open("/ledger/0")
    page.sees("[data-part=fragments]", "of 3")

    page.open("/repair")
    page.wait(lambda: page.script(WAITING) > 1)
    most = page.script(WAITING)
    page.press("[data-part=tools] button")
    page.press("#sure-dialog [value=yes]")
    page.sees("[data-part=tasks]", "Nothing waits")
    history = page.script("return only('repair').history.map(([, number]) => number)")
    assert max(history) >= most
    assert history[-1] == 0
    page.sees("#happenings", "repair is done")
    page.press("#log-out")
    page.wait(lambda: page.browser.find_element(By.ID, "log-in").is_displayed())
    page.sees("[data-part=tools]", "not paused")
    assert page.text("[data-part=tools] button") == ""


WAITING = "return (only('repair') || {}).waiting || 0"


async def begin_repair(theatre: Theatre) -> None:
    client = theatre.rival.opened

    def soon(settings: RepairSettings) -> RepairSettings:
        return attrs.evolve(settings, lost_after_ms=0, grace_ms=0)

    await RepairQueue(client).change_settings(soon)
    theatre.nursery.start_soon(AutoRecovery(client, name="repair-1").run)


async def kill(theatre: Theatre) -> None:
    await theatre.cluster.bookies[VICTIM].kill(session_s=1.0)


def log_in(page: Page) -> None:
    page.press("#log-in")
    field = page.wait(lambda: page.browser.find_element(By.ID, "token"))
    field.send_keys(token(expires_s=time.time() + 3600) + "0")
    field.send_keys(Keys.ENTER)
    page.sees("#log-in-error", "not made with the secret")
    # The browser's console tells each refused request; that one was wanted.
    assert all("/log-in" in line for line in thrown(page.browser))
    field.send_keys(token(expires_s=time.time() + 3600), Keys.ENTER)
    page.sees("#person", "admin/cluster")


def test_a_log_that_is_deleted_while_it_is_shown_is_said_to_be_deleted(page: Page) -> None:
    page.open("/log/billing/eu")
    page.sees("[data-part=state]", "no leader")
    page.theatre.run(logs.delete_log, page.theatre.client.opened, "billing/eu")
    page.sees("[data-part=state]", "deleted")
    page.theatre.run(logs.create_log, page.theatre.client.opened, "billing/eu")
    page.sees("[data-part=state]", "no leader")


def test_a_store_that_is_away_is_said_to_be_away_and_the_page_goes_on(page: Page) -> None:
    page.open("/")
    page.sees(page.row("bookies", "b1"), "writable")
    page.theatre.run(cut_off, page.theatre)
    page.sees("#troubles", "the metadata store")
    page.sees(page.row("bookies", "b1"), "writable")
    page.theatre.run(connect_again, page.theatre)
    page.wait(lambda: page.text("#troubles") == "")


async def cut_off(theatre: Theatre) -> None:
    await trio.lowlevel.checkpoint()
    theatre.console.store.inner.disconnect()


async def connect_again(theatre: Theatre) -> None:
    await trio.lowlevel.checkpoint()
    theatre.console.store.inner.reconnect()
