"""The bookie directory: a live view of the registrations in the metadata store.

A background task watches the store and keeps the view up to date. Readers of the view never wait for the
store, so an ensemble change costs only its metadata write. A bookie may be dead and still registered, for up
to a session time-out. So a bookie that just failed a client is *doubtful* for a while. The directory chooses
a doubtful bookie only if no other bookie is left. It chooses one as a replacement only if, in addition, the
writer is stalled.

The directory also follows the placement policy (``model.placement``). If the policy is strict, the directory
refuses to break it for a new ledger or for a writer's replacement. Recovery and repair get any bookie: a copy
in the wrong rack is better than none, and auto-recovery moves the copy later. If the stored policy is
damaged, the last policy that could be read stays in force. If no policy was ever read, the stored one may be
strict, so new ledgers and writers' replacements are refused.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import trio

from ledgerlog.errors import (
    BookieReadOnly,
    BookieUnavailable,
    IncompatibleVersion,
    MetadataUnavailable,
    NotEnoughBookies,
    NotEnoughRacks,
)
from ledgerlog.ledger.core.placement import choose_bookies, narrow_write_sets, rack_of, spread
from ledgerlog.ledger.environment import Environment
from ledgerlog.limits import CONNECT_TIMEOUT_S, METADATA_TIMEOUT_S, SESSION_TIMEOUT_S
from ledgerlog.meta.settings import StoredSettings
from ledgerlog.meta.settle import follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import (
    BOOKIES,
    PLACEMENT,
    READ_ONLY_BOOKIES,
    WRITABLE_BOOKIES,
    read_only_path,
    writable_path,
)
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.placement import DEFAULT_PLACEMENT, PlacementPolicy
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.versions import SPOKEN

QUARANTINE_S = 2 * SESSION_TIMEOUT_S

_RETRY_S = 0.2

_LOOK_UP_S = CONNECT_TIMEOUT_S / 3

logger = logging.getLogger(__name__)

STORED_PLACEMENT = StoredSettings(
    PLACEMENT,
    "the placement policy",
    "'ledgerlog metadata placement --reset' replaces it with a new one",
    PlacementPolicy,
    PlacementPolicy.decode_untrusted,
)
"""Where the placement policy is stored."""


def understands(info: BookieInfo, speaks: ProtocolSupport = SPOKEN) -> bool:
    """Return whether a client that speaks ``speaks`` and the bookie have a version of the protocol in
    common."""
    return speaks.common(info.speaks) is not None


def check_understood(info: BookieInfo, speaks: ProtocolSupport = SPOKEN) -> None:
    """Raise IncompatibleVersion if the client and the bookie have no version of the protocol in common."""
    if not understands(info, speaks):
        raise IncompatibleVersion(
            f"bookie {info.bookie_id}", info.speaks.range, speaks.range, is_protocol=True
        )


class BookieDirectory:
    """The registrations as last seen. The view is updated only while the task ``run`` runs."""

    def __init__(self, store: MetadataStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment
        self._speaks = environment.version.speaks
        self._writable: dict[BookieId, BookieInfo] = {}
        self._read_only: dict[BookieId, BookieInfo] = {}
        self._known: dict[BookieId, BookieInfo] = {}  # every bookie ever seen, for its last address
        self._policy: PlacementPolicy | MetadataCorrupt = DEFAULT_PLACEMENT
        """The policy in force; if it was never read, the error that says why."""
        self._damage = ""
        """The damage of the stored policy that was logged last."""
        self._quarantine: dict[BookieId, float] = {}
        self._callbacks: set[Callable[[], None]] = set()
        self._changed = trio.Event()
        self._asked = 0  # the number of refreshes begun
        self._seen = 0  # the number of the refresh that made the present view

    # --- the view -----------------------------------------------------------------------------

    def writable(self) -> list[BookieInfo]:
        """Bookies that take new ledgers and have a version of the protocol in common with this process."""
        return [info for info in self._writable.values() if understands(info, self._speaks)]

    def read_only(self) -> list[BookieInfo]:
        """Registered bookies that take no ordinary writes."""
        return list(self._read_only.values())

    def registered(self) -> list[BookieInfo]:
        """All registered bookies, also bookies that this process cannot talk to."""
        return list({**self._read_only, **self._writable}.values())

    def is_read_only(self, bookie_id: BookieId) -> bool:
        """Whether the bookie is registered as read-only, so that it takes no ordinary writes."""
        return bookie_id in self._read_only and bookie_id not in self._writable

    def is_registered(self, bookie_id: BookieId) -> bool:
        """Whether the bookie is registered, as writable or as read-only."""
        return bookie_id in self._writable or bookie_id in self._read_only

    def is_doubtful(self, bookie_id: BookieId) -> bool:
        """Whether the bookie failed a client a short while ago."""
        return self._quarantine.get(bookie_id, -math.inf) > trio.current_time()

    def choose(self, ensemble: int, *, write_quorum: int) -> list[BookieId]:
        """Choose writable bookies for the ensemble of a new ledger, so that the copies of each entry lie
        apart.

        Doubtful bookies are chosen as a last resort.

        Raises:
            NotEnoughBookies: There are too few bookies.
            BookieReadOnly: A kind of NotEnoughBookies: with the read-only bookies there would be enough.
            NotEnoughRacks: A kind of NotEnoughBookies: the placement policy is strict, and the writable
                bookies lie in too few racks.
        """
        chosen = self._choose([None] * ensemble, write_quorum=write_quorum, obeys=True)
        return [chosen[slot] for slot in range(ensemble)]

    async def wait_and_choose(
        self, ensemble: int, *, write_quorum: int, timeout_s: float = METADATA_TIMEOUT_S
    ) -> list[BookieId]:
        """Choose bookies for a new ledger as ``choose`` does. If there are too few bookies or racks, wait for
        more.

        Raises:
            NotEnoughBookies: There are still too few bookies or racks after ``timeout_s``. See ``choose``.
        """
        await self.wait_writable(ensemble, timeout_s=timeout_s)
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    return self.choose(ensemble, write_quorum=write_quorum)
                except NotEnoughRacks:
                    await self.wait_change()
        return self.choose(ensemble, write_quorum=write_quorum)

    @property
    def policy(self) -> PlacementPolicy:
        """The placement policy as last seen; the defaults if it could never be read."""
        return DEFAULT_PLACEMENT if isinstance(self._policy, MetadataCorrupt) else self._policy

    def _choose(
        self,
        ensemble: Sequence[BookieId | None],
        *,
        write_quorum: int,
        obeys: bool,
        exclude: Collection[BookieId] = (),
        even_doubtful: bool = True,
        adds_to: int | None = None,
    ) -> dict[int, BookieId]:
        """Choose bookies for the free slots. If ``obeys`` is True, a strict policy is a condition."""
        policy = self.policy
        is_strict = obeys and policy.strict and write_quorum > 1
        if obeys and isinstance(self._policy, MetadataCorrupt):
            raise NotEnoughBookies(f"the allowed bookies are unknown: {self._policy}")
        candidates = [info for info in self.writable() if adds_to is None or info.fences_through < adds_to]
        self._environment.random.shuffle(candidates)
        if even_doubtful:
            candidates.sort(key=lambda info: self.is_doubtful(info.bookie_id))
        else:
            candidates = [info for info in candidates if not self.is_doubtful(info.bookie_id)]
        staying = [b if b is None else self._known.get(b) or BookieInfo(b, "", "") for b in ensemble]
        taken = {*filter(None, ensemble), *exclude}
        try:
            chosen = choose_bookies(
                [info for info in candidates if not is_strict or rack_of(info) is not None],
                staying,
                write_quorum=write_quorum,
                exclude=exclude,
                min_racks=policy.min_racks,
            )
        except NotEnoughBookies as few:
            free = {info.bookie_id for info in candidates} - taken
            missing = ensemble.count(None) - len(free)
            if missing <= 0:
                raise self._why_few_racks(ensemble, write_quorum, candidates) from None
            raise self._why_few(missing, taken, str(few)) from None
        if is_strict:
            named = {info.bookie_id: info for info in candidates}
            filled = [named[chosen[slot]] if info is None else info for slot, info in enumerate(staying)]
            narrow = narrow_write_sets(filled, write_quorum=write_quorum, at_least=policy.min_racks)
            if any(slot in chosen for slots in narrow for slot in slots):
                raise self._why_few_racks(ensemble, write_quorum, candidates)
        return chosen

    def _why_few_racks(
        self, ensemble: Sequence[BookieId | None], write_quorum: int, candidates: Sequence[BookieInfo]
    ) -> NotEnoughRacks:
        counts = Counter(rack for info in candidates if (rack := rack_of(info)) is not None)
        racks = ", ".join(f"{rack} ({count})" for rack, count in sorted(counts.items()))
        unknown = sorted(info.bookie_id for info in candidates if rack_of(info) is None)
        return NotEnoughRacks(
            f"the placement policy is strict: {min(self.policy.min_racks, write_quorum)} racks or more "
            f"for each write set of {write_quorum}; the writable bookies allow no such ensemble of "
            f"{len(ensemble)}. "
            f"Racks: {racks or 'none'}" + (f"; without a rack label: {', '.join(unknown)}" if unknown else "")
        )

    def why_no_replacement(self, taken: Collection[BookieId]) -> NotEnoughBookies:
        """Return the error to raise if ``replacements`` finds no bookie. Bookies in ``taken`` cannot be
        chosen."""
        return self._why_few(
            1,
            taken,
            f"1 more writable bookies are needed, 0 are there (not counting {', '.join(sorted(taken))})",
        )

    def _why_few(self, missing: int, taken: Collection[BookieId], few: str) -> NotEnoughBookies:
        """Return the error to raise if ``missing`` bookies are missing. Bookies in ``taken`` cannot fill the
        gap."""
        others = sorted(
            f"{info.bookie_id} ({info.speaks})"
            for info in self._writable.values()
            if info.bookie_id not in taken and not understands(info, self._speaks)
        )
        if others:
            few += f"; left out, because this client speaks protocol {self._speaks}: {', '.join(others)}"
        read_only = sorted(
            info.bookie_id
            for info in self._read_only.values()
            if info.bookie_id not in {*self._writable, *taken} and understands(info, self._speaks)
        )
        if len(read_only) < missing:
            return NotEnoughBookies(few)
        return BookieReadOnly(f"{few}; read-only, nearly full or being emptied: {', '.join(read_only)}")

    def replacements(
        self,
        ensemble: Sequence[BookieId],
        failed: Sequence[int],
        *,
        write_quorum: int,
        even_doubtful: bool,
        unfit: Collection[BookieId] = (),
        adds_to: int | None = None,
    ) -> dict[int, BookieId]:
        """Choose bookies for failed slots of an ensemble: for all of them, or for as many as possible.

        They are chosen so that the copies of each entry lie apart, as far as the remaining bookies of the
        ensemble allow it. If the placement policy is strict, a writer gets no bookie that breaks the policy.

        Args:
            ensemble: The bookies of the ensemble, by slot.
            failed: The slots that need a bookie.
            write_quorum: How many neighbouring slots an entry goes to.
            even_doubtful: Choose doubtful bookies too, as a last resort.
            unfit: Bookies that must not be chosen.
            adds_to: The id of the writer's ledger: choose only bookies that take ordinary adds to this
                ledger. None for recovery and repair: every writable bookie takes their writes.

        Returns:
            The chosen bookies by slot; empty if there are none.
        """
        leaving = [*(ensemble[slot] for slot in failed), *unfit]
        for count in range(len(failed), 0, -1):
            free = failed[:count]
            try:
                return self._choose(
                    [None if slot in free else bookie for slot, bookie in enumerate(ensemble)],
                    write_quorum=write_quorum,
                    obeys=adds_to is not None,
                    exclude=leaving,
                    even_doubtful=even_doubtful,
                    adds_to=adds_to,
                )
            except NotEnoughBookies:
                continue
        return {}

    def spread(
        self, ensemble: Sequence[BookieId], *, write_quorum: int, unfit: Collection[BookieId] = ()
    ) -> dict[int, BookieId]:
        """Find bookies to exchange, so that more entries have their copies in enough racks (see
        ``ledger.core.placement.spread``).

        Args:
            ensemble: The bookies of a fragment that takes no more entries.
            write_quorum: How many neighbouring slots an entry goes to.
            unfit: Bookies that must not be chosen.

        Returns:
            A new bookie for each slot that changes; empty if no exchange helps. Bookies that are not
            registered keep their slots: they may be lost, and then they are replaced anyway.
        """
        candidates = [
            info
            for info in self.writable()
            if info.bookie_id not in unfit and not self.is_doubtful(info.bookie_id)
        ]
        self._environment.random.shuffle(candidates)
        return spread(
            candidates,
            [self._known.get(bookie) or BookieInfo(bookie, "", "") for bookie in ensemble],
            write_quorum=write_quorum,
            fixed=[slot for slot, bookie in enumerate(ensemble) if not self.is_registered(bookie)],
            min_racks=self.policy.min_racks,
        )

    def quarantine(self, bookie_id: BookieId) -> None:
        """Make a bookie that failed a client doubtful for ``QUARANTINE_S``."""
        self._quarantine[bookie_id] = trio.current_time() + QUARANTINE_S

    async def resolve(self, bookie_id: BookieId) -> BookieInfo:
        """Find the address of a bookie.

        Raises:
            BookieUnavailable: The bookie is not registered, and this process never saw it registered.
            IncompatibleVersion: The bookie is registered, and has no version of the protocol in common with
                this process.
        """
        info = self._writable.get(bookie_id) or self._read_only.get(bookie_id)
        if info is None or not understands(
            info, self._speaks
        ):  # It may have been upgraded, and the view may be late.
            known = info or self._known.get(bookie_id)
            # A store that hangs must not use up the time for connecting to the last known address.
            with trio.move_on_after(math.inf if known is None else _LOOK_UP_S):
                info = await self._look_up(bookie_id)
                if info is not None:
                    check_understood(info, self._speaks)
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
            pass  # The last known address is the best guess.
        return None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever the view changes. It must not raise."""
        self._callbacks.add(callback)

    def remove_on_change(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``."""
        self._callbacks.discard(callback)

    async def wait_change(self) -> None:
        """Wait until the view changes."""
        await self._changed.wait()

    async def wait_writable(self, count: int, *, timeout_s: float = METADATA_TIMEOUT_S) -> None:
        """Wait until ``count`` bookies are writable.

        Raises:
            NotEnoughBookies: There are too few after ``timeout_s``.
            BookieReadOnly: A kind of NotEnoughBookies: with the read-only bookies there would be enough.
        """
        with trio.move_on_after(timeout_s):
            while len(self.writable()) < count:
                await self.wait_change()
            return
        raise self._why_few(
            count - len(self.writable()),
            (),
            f"{count} writable bookies are needed, {len(self.writable())} registered within {timeout_s:g} s",
        )

    # --- keeping it ---------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the registrations once. When this returns, the view is at least as new as the call.

        Raises:
            MetadataUnavailable: The metadata store cannot be reached.
        """
        self._asked = asked = self._asked + 1
        writable = await self._read(WRITABLE_BOOKIES)
        read_only = await self._read(READ_ONLY_BOOKIES)
        policy = await self._read_policy()
        if asked < self._seen:
            return  # A refresh that began later finished sooner.
        self._seen = asked
        seen = writable, read_only, policy
        if seen != (self._writable, self._read_only, self._policy):
            for bookie_id, info in writable.items():
                if self._writable.get(bookie_id) != info:
                    self._quarantine.pop(bookie_id, None)  # The bookie came back, or is new.
            self._writable, self._read_only, self._policy = seen
            self._known |= writable | read_only
            changed, self._changed = self._changed, trio.Event()
            changed.set()
            for callback in tuple(self._callbacks):
                callback()

    async def _read_policy(self) -> PlacementPolicy | MetadataCorrupt:
        try:
            return await STORED_PLACEMENT.read(self._store)
        except MetadataCorrupt as damage:
            if str(damage) != self._damage:
                self._damage = str(damage)
                logger.error("%s", damage)
            return self._policy if self._seen else damage

    async def _read(self, path: str) -> dict[BookieId, BookieInfo]:
        found: dict[BookieId, BookieInfo] = {}
        for bookie_id in await self._store.children(path):
            node = await self._store.get(f"{path}/{bookie_id}")
            if node is None:
                continue  # The bookie left after the listing.
            try:
                found[bookie_id] = BookieInfo.decode_untrusted(node.value, bookie_id)
            except MetadataCorrupt as cause:
                logger.warning("bookie=%s is left out: %s", bookie_id, cause)
        return found

    async def run(self) -> None:
        """Follow the registrations until cancelled.

        Outages of the store and damaged records do not end this; the view stays as it is meanwhile. A caller
        that asks for a damaged record gets the error itself."""
        await follow(
            self._store,
            BOOKIES,
            self.refresh,
            what="the view of the bookies is not kept up",
            log=logger,
            pause_s=_RETRY_S,
        )
