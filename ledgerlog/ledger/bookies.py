"""Which bookies there are: a live view of the registrations in the metadata store.

A background task keeps the view by watching; readers of the view never wait for the store, so an
ensemble change costs one metadata write and nothing else. A registration outlives its bookie by up
to a session time-out, so a bookie that just failed somebody is *doubtful*, for a while: it is chosen
only where nobody else is left, and for a replacement only where the writer is stalled without one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence

import trio

from ledgerlog.errors import (
    BookieReadOnly,
    BookieUnavailable,
    LedgerLogError,
    MetadataUnavailable,
    NotEnoughBookies,
)
from ledgerlog.ledger.core.placement import choose_bookies
from ledgerlog.ledger.environment import Environment
from ledgerlog.limits import CONNECT_TIMEOUT_S, METADATA_TIMEOUT_S, SESSION_TIMEOUT_S
from ledgerlog.meta.settle import follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import BOOKIES, READ_ONLY_BOOKIES, WRITABLE_BOOKIES, read_only_path, writable_path
from ledgerlog.model.ledger import MetadataCorrupt

QUARANTINE_S = 2 * SESSION_TIMEOUT_S

_RETRY_S = 0.2

_LOOK_UP_S = CONNECT_TIMEOUT_S / 3

logger = logging.getLogger(__name__)


class BookieDirectory:
    """The registrations as last seen. ``run`` must be running for the view to move."""

    def __init__(self, store: MetadataStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment
        self._writable: dict[BookieId, BookieInfo] = {}
        self._read_only: dict[BookieId, BookieInfo] = {}
        self._known: dict[BookieId, BookieInfo] = {}  # seen at any time: where to knock if not registered
        self._quarantine: dict[BookieId, float] = {}
        self._changed = trio.Event()
        self._asked = 0  # how many times the registrations were asked for
        self._seen = 0  # which of those times the view is of

    # --- the view -----------------------------------------------------------------------------

    def writable(self) -> list[BookieInfo]:
        """Bookies that take new ledgers, by id."""
        return list(self._writable.values())

    def read_only(self) -> list[BookieInfo]:
        """Registered bookies that take no ordinary writes, by id."""
        return list(self._read_only.values())

    def is_read_only(self, bookie_id: BookieId) -> bool:
        """Whether it is registered as one that takes no ordinary writes."""
        return bookie_id in self._read_only and bookie_id not in self._writable

    def is_registered(self, bookie_id: BookieId) -> bool:
        """Whether it is registered, for whatever writes."""
        return bookie_id in self._writable or bookie_id in self._read_only

    def is_doubtful(self, bookie_id: BookieId) -> bool:
        """Whether it failed somebody a short while ago."""
        return self._quarantine.get(bookie_id, -math.inf) > trio.current_time()

    def choose(
        self,
        count: int,
        *,
        beside: Collection[BookieId] = (),
        exclude: Collection[BookieId] = (),
        even_doubtful: bool = True,
        adds_to: int | None = None,
    ) -> list[BookieId]:
        """``count`` writable bookies, kept apart by their labels, doubtful ones last or not at all. With
        ``adds_to``, the id of a ledger that is there, only those that take its ordinary adds; what recovery
        and repair write they all take.

        NotEnoughBookies where there are fewer; BookieReadOnly, which is one, where those that are read-only
        would make up for it."""
        candidates = [info for info in self.writable() if adds_to is None or info.fences_through < adds_to]
        self._environment.random.shuffle(candidates)
        if even_doubtful:
            candidates.sort(key=lambda info: self.is_doubtful(info.bookie_id))
        else:
            candidates = [info for info in candidates if not self.is_doubtful(info.bookie_id)]
        staying = [self._known.get(b) or BookieInfo(b, "", "") for b in beside]
        try:
            return choose_bookies(candidates, count, beside=staying, exclude=exclude)
        except NotEnoughBookies as few:
            taken = {*beside, *exclude}
            free = {info.bookie_id for info in candidates} - taken
            raise self._why_few(count - len(free), taken, str(few)) from None

    def _why_few(self, missing: int, taken: Collection[BookieId], few: str) -> NotEnoughBookies:
        """The error to raise where so many bookies are missing; those that are ``taken`` do not help."""
        read_only = sorted(self._read_only.keys() - self._writable.keys() - set(taken))
        if len(read_only) < missing:
            return NotEnoughBookies(few)
        return BookieReadOnly(f"{few}; read-only, nearly full or being emptied: {', '.join(read_only)}")

    def replacements(
        self,
        ensemble: Sequence[BookieId],
        failed: Sequence[int],
        *,
        even_doubtful: bool,
        unfit: Collection[BookieId] = (),
        adds_to: int | None = None,
    ) -> dict[int, BookieId]:
        """Bookies for failed slots of an ensemble, by slot: for all of them, or for as many as there are
        bookies. None that is ``unfit``; ``adds_to`` as for ``choose``."""
        staying = [bookie for slot, bookie in enumerate(ensemble) if slot not in failed]
        leaving = [*(ensemble[slot] for slot in failed), *unfit]
        for count in range(len(failed), 0, -1):
            try:
                chosen = self.choose(
                    count, beside=staying, exclude=leaving, even_doubtful=even_doubtful, adds_to=adds_to
                )
            except NotEnoughBookies:
                continue
            return dict(zip(failed, chosen, strict=False))
        return {}

    def quarantine(self, bookie_id: BookieId) -> None:
        """The bookie failed somebody: it is doubtful for a while."""
        self._quarantine[bookie_id] = trio.current_time() + QUARANTINE_S

    async def resolve(self, bookie_id: BookieId) -> BookieInfo:
        """Where a bookie serves. BookieUnavailable where it is not registered and never was seen."""
        info = self._writable.get(bookie_id) or self._read_only.get(bookie_id)
        if info is None:
            known = self._known.get(bookie_id)
            # A store that hangs must not take the time that there is to connect where the bookie was.
            with trio.move_on_after(math.inf if known is None else _LOOK_UP_S):
                info = await self._look_up(bookie_id)
            info = info or known
        if info is None:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered")
        return info

    async def _look_up(self, bookie_id: BookieId) -> BookieInfo | None:
        try:
            for path in (writable_path(bookie_id), read_only_path(bookie_id)):
                node = await self._store.get(path)
                if node is not None:
                    info = BookieInfo.decode_untrusted(node.value, bookie_id)
                    self._known[bookie_id] = info
                    return info
        except MetadataUnavailable:
            pass  # The address seen last is as good a guess as there is.
        return None

    async def wait_change(self) -> None:
        """Return when the view has changed since the call."""
        await self._changed.wait()

    async def wait_writable(self, count: int, *, timeout_s: float = METADATA_TIMEOUT_S) -> None:
        """Return once ``count`` bookies are writable. After ``timeout_s`` NotEnoughBookies or BookieReadOnly,
        as ``choose``."""
        with trio.move_on_after(timeout_s):
            while len(self._writable) < count:
                await self.wait_change()
            return
        raise self._why_few(
            count - len(self._writable),
            (),
            f"{count} writable bookies are needed, {len(self._writable)} registered within {timeout_s:g} s",
        )

    # --- keeping it ---------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the registrations once: the view is then of after the call. Raises MetadataUnavailable."""
        self._asked = asked = self._asked + 1
        writable = await self._read(WRITABLE_BOOKIES)
        read_only = await self._read(READ_ONLY_BOOKIES)
        if asked < self._seen:
            return  # Somebody who began to read later has been done sooner.
        self._seen = asked
        if (writable, read_only) != (self._writable, self._read_only):
            for bookie_id, info in writable.items():
                if self._writable.get(bookie_id) != info:
                    self._quarantine.pop(bookie_id, None)  # It came back, or is new.
            self._writable, self._read_only = writable, read_only
            self._known |= writable | read_only
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def _read(self, path: str) -> dict[BookieId, BookieInfo]:
        found: dict[BookieId, BookieInfo] = {}
        for bookie_id in await self._store.children(path):
            node = await self._store.get(f"{path}/{bookie_id}")
            if node is None:
                continue  # It left between the listing and now.
            try:
                found[bookie_id] = BookieInfo.decode_untrusted(node.value, bookie_id)
            except MetadataCorrupt as cause:
                logger.warning("bookie=%s is left out: %s", bookie_id, cause)
        return found

    async def run(self) -> None:
        """Follow the registrations until cancelled. The store's outages are waited out, and so is damage in
        it, which whoever asks for what is damaged is told; the view stays as it was meanwhile."""
        await follow(
            self._store,
            BOOKIES,
            self.refresh,
            what="the view of the bookies is not kept up",
            log=logger,
            pause_s=_RETRY_S,
            survives=(LedgerLogError,),
        )
