"""Show the console in a terminal, with textual.

textual runs on asyncio, and ledgerlog on trio. Here both run in one thread, with trio as the guest. So trio's
tasks hand a picture (``core.picture``) to textual by a plain call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import ClassVar

import trio
from outcome import Error, Outcome
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Header, Static, TabbedContent, TabPane

from ledgerlog.console.core.picture import Picture, Row
from ledgerlog.console.core.words import BOOKIES, CURSORS, LOGS, TASKS, Column, summary, takeover_text
from ledgerlog.console.observer import ClusterObserver, Subject, View
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import CONSOLE_ALIVE_S

__all__ = ["Terminal"]

_LINES = 8
"""How many of the last happenings are shown."""
_TAKEOVERS = 3
"""How many of the last takeovers of a log are shown."""


class Terminal(App[None]):
    """The console in a terminal.

    Args:
        connect: Opens the client of the cluster.
        now_s: The wall clock, in seconds since 1970.
        stop_signals: The signals that end the console, as the key q does.
    """

    TITLE = "ledgerlog"
    # The tables share the part of the screen that the lines above and below them leave free.
    CSS = """
    TabbedContent, ContentSwitcher, TabPane, DataTable { height: 1fr; }
    #summary, #happenings, #log-words, #takeovers { height: auto; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "show('cluster')", "Cluster"),
        Binding("2", "show('logs')", "Logs"),
        Binding("3", "show('log')", "One log"),
        Binding("4", "show('repair')", "Repair"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[LedgerClient]],
        *,
        now_s: Callable[[], float],
        stop_signals: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._stop_signals = stop_signals
        self._connect = connect
        self._now_s = now_s
        self._subject = Subject("cluster")
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._over: asyncio.Future[Outcome[None]] | None = None
        self.failure: BaseException | None = None
        """Why it ended early; None: its user or a signal ended it."""
        self.stopped_by: int | None = None
        """The signal that ended it."""

    def compose(self) -> ComposeResult:
        """Make the screen."""
        yield Header()
        yield Static("connecting", id="summary", markup=False)
        with TabbedContent(initial="cluster"):
            with TabPane("Cluster", id="cluster"):
                yield DataTable(id="bookies", cursor_type="row")
            with TabPane("Logs", id="logs"):
                yield DataTable(id="log-list", cursor_type="row")
            with TabPane("One log", id="log"):
                yield Static("choose one on the page of logs", id="log-words", markup=False)
                yield Static("", id="takeovers", markup=False)
                yield DataTable(id="cursors", cursor_type="row")
            with TabPane("Repair", id="repair"):
                yield DataTable(id="tasks", cursor_type="row")
        yield Static("", id="happenings", markup=False)
        yield Footer()

    async def on_mount(self) -> None:
        """Start trio as the guest of textual's loop."""
        for name, columns in (
            ("bookies", BOOKIES),
            ("log-list", LOGS),
            ("cursors", CURSORS),
            ("tasks", TASKS),
        ):
            table = self.query_one(f"#{name}", DataTable)
            for title, _ in columns:
                table.add_column(title, key=title)
        loop = asyncio.get_running_loop()
        for number in self._stop_signals:
            loop.add_signal_handler(number, self._stop, number)
        self._over = loop.create_future()

        def done(outcome: Outcome[None]) -> None:
            assert self._over is not None
            self._over.set_result(outcome)
            if isinstance(outcome, Error):
                self.failure = outcome.error
                self.exit()

        trio.lowlevel.start_guest_run(
            self._look,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _stop(self, number: int) -> None:
        if self.stopped_by is None:
            self.stopped_by = number
            self.exit()

    async def on_unmount(self) -> None:
        """End trio's run before textual's loop ends."""
        self._scope.cancel()
        if self._over is not None:
            await self._over

    # --- looking, in trio ---------------------------------------------------------------------------

    async def _look(self) -> None:
        with self._scope:
            async with self._connect() as client, trio.open_nursery() as nursery:
                observer = ClusterObserver(client, now_s=self._now_s)
                await nursery.start(observer.run)
                while True:
                    changed, subject = self._changed, self._subject
                    async with observer.watch(subject) as view, trio.open_nursery() as watching:
                        watching.start_soon(self._show, view, subject)
                        await changed.wait()
                        watching.cancel_scope.cancel()

    async def _show(self, view: View, subject: Subject) -> None:
        async with aclosing(view.pictures(CONSOLE_ALIVE_S)) as pictures:
            async for picture in pictures:
                self._draw(subject, picture)

    def _watch(self, subject: Subject) -> None:
        if subject != self._subject:
            self._subject = subject
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    # --- the screen -----------------------------------------------------------------------------------

    def action_show(self, page: str) -> None:
        """Show a page."""
        self.query_one(TabbedContent).active = page

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Watch the subject of the page, and let the keys move in the page's table."""
        event.pane.query_one(DataTable).focus()
        page = event.pane.id or "cluster"
        if page != "log":
            self._watch(Subject(page))
        elif self._subject.kind != "log":
            self.query_one("#log-words", Static).update("choose one on the page of logs")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the log that was chosen."""
        if event.data_table.id == "log-list" and event.row_key.value is not None:
            self._watch(Subject("log", event.row_key.value))
            self.action_show("log")

    def _draw(self, subject: Subject, picture: Picture) -> None:
        if not self.is_running or subject != self._subject:
            return

        def rows(section: str) -> Mapping[str, Row]:
            return picture.get(section, {})

        repair = rows("repair").get("")
        words = summary(list(rows("bookies").values()), repair, list(rows("troubles").values()))
        self.query_one("#summary", Static).update(words)
        lines = sorted(rows("happenings").items(), key=lambda line: -int(line[0]))[:_LINES]
        self.query_one("#happenings", Static).update(
            "\n".join(f"{row['about']} {row['text']}" for _, row in lines)
        )
        self._fill("bookies", BOOKIES, rows("bookies"))
        match subject.kind:
            case "logs":
                self._fill("log-list", LOGS, rows("logs"))
            case "log":
                row = rows("log").get(subject.name)
                if row is not None:
                    text = "\n".join(f"{title}: {show(row)}" for title, show in LOGS)
                    self.query_one("#log-words", Static).update(text)
                takeovers = sorted(rows("takeovers").items(), key=lambda item: -int(item[0]))
                self.query_one("#takeovers", Static).update(
                    "\n".join(f"Takeover: {takeover_text(row)}" for _, row in takeovers[:_TAKEOVERS])
                )
                self._fill("cursors", CURSORS, rows("cursors"))
            case "repair":
                self._fill("tasks", TASKS, rows("tasks"))

    def _fill(self, name: str, columns: Sequence[Column], rows: Mapping[str, Row]) -> None:
        table = self.query_one(f"#{name}", DataTable)
        for key in [key.value for key in table.rows if key.value not in rows]:
            table.remove_row(key or "")
        held = {key.value for key in table.rows}
        for key, row in rows.items():
            # As Text, because a DataTable takes a str for markup: "[eu]" would vanish.
            cells = [Text(show(row)) for _, show in columns]
            if key not in held:
                table.add_row(*cells, key=key)
                continue
            for (title, _), cell in zip(columns, cells, strict=True):
                if table.get_cell(key, title) != cell:
                    table.update_cell(key, title, cell, update_width=True)
