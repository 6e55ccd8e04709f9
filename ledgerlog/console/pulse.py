"""The pulse: ask each bookie for its figures every second, while there are watchers.

The pulse asks the metadata store nothing every second: the client keeps a view of the registrations by a
watch, and the pulse follows the cookies by another watch.
"""

from __future__ import annotations

import trio

from ledgerlog.console.core.bookies import Registered
from ledgerlog.console.looks import STORE, Looking
from ledgerlog.errors import BookieUnavailable, LedgerLogError, PermissionDenied, WireError
from ledgerlog.ledger.core.placement import rack_of
from ledgerlog.ledger.figures import INCOMPATIBLE, ask_figures, bookie_state
from ledgerlog.limits import CONSOLE_ANSWER_S, CONSOLE_REFRESH_S
from ledgerlog.meta.store import SessionState
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import COOKIES

__all__ = ["Pulse"]


class Pulse:
    """Keeps the board of bookies. ``run`` runs until cancelled."""

    def __init__(self, looking: Looking) -> None:
        self._looking = looking
        self._known: list[BookieId] | None = None
        self._is_denied = False

    async def run(self) -> None:
        looking = self._looking
        async with trio.open_nursery() as nursery:
            nursery.start_soon(looking.follow, COOKIES, self._look_at_cookies)
            while True:
                self._look_at_session()
                self._look_at_registrations()
                await self._ask_all()
                looking.tell()
                with trio.move_on_after(CONSOLE_REFRESH_S):
                    await looking.client.bookies.wait_change()

    async def _look_at_cookies(self) -> None:
        self._known = await self._looking.client.store.children(COOKIES)
        self._look_at_registrations()

    def _look_at_session(self) -> None:
        state = self._looking.client.sessions.state
        why = (
            None
            if state is SessionState.CONNECTED
            else f"its session is {state.value}; the following data is old"
        )
        self._looking.trouble("session", STORE, why)

    def _look_at_registrations(self) -> None:
        looking, directory = self._looking, self._looking.client.bookies
        registered = {}
        for info in directory.registered():
            state = bookie_state(info, is_read_only=directory.is_read_only(info.bookie_id))
            registered[info.bookie_id] = Registered(
                info.address,
                state,
                is_asked=state != INCOMPATIBLE,
                is_synced=info.journal_write_data,
                rack=rack_of(info),
            )
        looking.bookies.on_registrations(registered, self._known, looking.now_s())

    async def _ask_all(self) -> None:
        directory = self._looking.client.bookies
        self._is_denied = False
        async with trio.open_nursery() as nursery:
            for info in directory.registered():
                if bookie_state(info, is_read_only=False) != INCOMPATIBLE:
                    nursery.start_soon(self._ask, info.bookie_id)
        why = "bookies show them only to bookies and admins: start this command with such a proof"
        self._looking.trouble("figures", "the figures of the bookies", why if self._is_denied else None)

    async def _ask(self, bookie_id: BookieId) -> None:
        looking = self._looking
        began = trio.current_time()
        try:
            figures = await ask_figures(looking.client.pool, bookie_id, timeout_s=CONSOLE_ANSWER_S)
        except PermissionDenied:
            figures = {}  # The bookie answers, but does not tell its figures to this client.
            self._is_denied = True
        except (BookieUnavailable, WireError) as why:
            looking.bookies.on_silence(bookie_id, str(why), looking.now_s())
            return
        except LedgerLogError as why:  # For example, the bookie asks for another identity.
            looking.bookies.on_silence(bookie_id, f"{type(why).__name__}: {why}", looking.now_s())
            return
        looking.bookies.on_figures(bookie_id, figures, (trio.current_time() - began) * 1000, looking.now_s())
