"""Phase two after a loss: the bookie takes its ledgers out of limbo while it serves (D27, points 6, 8 and 9).

If a bookie may have lost entries of a ledger, the ledger is *in limbo* there: the bookie gives the entries
that it has, and never answers that an entry does not exist (``bookie.core.loss_marks``). Phase one
(``phase_one``) puts ledgers into limbo before the bookie serves.

    for each ledger id that is in limbo
      no such ledger              it was deleted or never written: nothing is missing. But a store that was
                                  restored from a backup may have forgotten it. Then it stays in limbo until
                                  it is brought back, or an operator accepts the loss
      not closed, this bookie     recover the ledger: the repair needs to know the ledger's last entry. (This
        is in the last ensemble   bookie refuses the adds of the ledger's owner anyway)
      not closed otherwise        wait until its owner or a recoverer closes it. Until then the ledger stays
                                  in limbo, because an owner may count on this bookie in an ensemble that the
                                  metadata does not show
      closed                      copy from other bookies each entry that belongs here but is missing
    flush; only then take the ledgers that are CLOSED and whole out of limbo, durably

A ledger is *whole* if no entry that belongs here is missing. Whole ledgers do not wait for the others: about
once a second, all ledgers that are whole leave limbo.

The repair then looks again at the remaining ledgers, after growing pauses, because bookies that were down
come back and ledgers get closed. If no bookie has an entry, its ledger stays in limbo, and the log lists the
lost entries. The bookie tells readers that such an entry is unavailable, never that the entry does not exist.
To give the entries up, an operator deletes the ledger, and accepts the loss of the last restore if the ledger
is from before it. If the end of a ledger cannot be found, an operator closes the ledger with ``ledgerlog
ledger recover --accept-loss``.

While ledgers stay in limbo, a log line names them, with the reason and the bookies that each one waits for.
The bookie writes the line at once, again if the text changes, and in any case every ``LIMBO_TELL_S`` seconds.
A line names at most ``_TOLD_LEDGERS`` ledgers. Two such lines are at least ``LIMBO_TELL_AGAIN_S`` seconds
apart.

The bookie copies at most ``limbo_bytes_per_s``, a setting of the bookie, for all ledgers together. The limit
of auto-recovery does not apply. Auto-recovery copies entries that other bookies have too, so it can wait. A
ledger in limbo is more urgent: a client that needs this bookie's answer cannot recover the ledger or read it
to its end.

After a crash at any point, the loss marks may name too many ledgers in limbo, never too few. The next start
continues from these marks. If entries were copied but not durable, they are copied again.

The bookie imports no client. The code that opens the bookie passes ``OpenPeers``, and the repair calls it
only while there is work.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from bookie.core.loss_marks import NO_LEDGER, Range
from bookie.storage.engine.engine import Engine
from bookie.storage.index.index import NOT_NOW
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.gathering import gather, gather_each
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import (
    EntryCorrupt,
    EntryNotFound,
    LedgerLogError,
    StorageError,
)
from ledgerlog.event_log import LIMBO_OVER, LIMBO_WAITS, tell
from ledgerlog.limits import LEDGER_ID_MAX, LIMBO_TELL_AGAIN_S, LIMBO_TELL_S
from ledgerlog.model.id_ranges import joined, ranges_of, without
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, gaps, shares
from ledgerlog.wire.entries import Entries, cut_to_frames, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import Status, decode_frame_untrusted

logger = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 8
"""Repair this many ledgers at the same time, so that one ledger whose bookies are silent does not hold up the
others."""

_CLEAR_EVERY_S = 1.0
"""While others are being repaired, whole ledgers leave limbo at most this often. Each time costs a flush and
a write of the whole file of marks. Usually the marks have one range of ledgers in limbo, and the range
shrinks from its low end. If some ledgers stay in limbo and others between them leave, there are more ranges,
of 16 bytes each. A log of changes would be smaller, but a start would have to read the changes in the right
order. A single file avoids that problem."""

_TOLD_LEDGERS = 8
"""One log line names at most this many ledgers."""

_LIST_PAIRS = 4096
_FETCH_ENTRIES = 4096
_PAUSE_MIN_S = 0.5
_PAUSE_MAX_S = 30.0


class Peers(Protocol):
    """Access to the other bookies and to the cluster's ledgers (``ledgerlog.repair.peers`` implements it)."""

    async def list_ledgers(self) -> list[int]:
        """Return all ledger ids in ascending order; at least all that existed before the call."""
        ...

    async def deletion_floor(self) -> int:
        """Return the lowest id of a ledger that counts as deleted if the store does not have it. Call this
        before ``list_ledgers`` or ``metadata`` and after them, and use the greater answer."""
        ...

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None: ...

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close the ledger and return its CLOSED metadata."""
        ...

    async def fetch(
        self, metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int
    ) -> tuple[dict[int, bytes], LedgerLogError | None]:
        """Read copies of entries from other bookies.

        Args:
            metadata: The metadata of the ledger.
            bookie_id: The bookie that needs the entries. The metadata need not assign them to it.
            first: The first entry to read.
            last: The last entry to read.

        Returns:
            The entries, whose digests matched, and a failure. Some of the entries first..last may be missing.
            If entry ``first`` is missing, the failure is the reason.
        """
        ...

    async def first_held(self, metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int) -> int:
        """Return the first of the entries first..last that another bookie than this one may have, or
        ``last + 1`` if there is none."""
        ...

    async def ask_for_repair(self, ledger_id: int, bookie_id: BookieId) -> None:
        """Ask auto-recovery to repair the bookie's damaged copy of a ledger."""
        ...


OpenPeers = Callable[[], AbstractAsyncContextManager[Peers]]


class _Refused(LedgerLogError):
    """The bookie's own storage refuses a copy."""


class LimboRepair:
    """Takes the ledgers of one bookie out of limbo. Run ``run`` while the bookie serves."""

    def __init__(
        self, bookie_id: BookieId, engine: Engine, open_peers: OpenPeers | None, *, bytes_per_s: int
    ) -> None:
        self.copied = 0
        """How many entries were copied from other bookies after the start."""
        self.lost: dict[int, list[Range]] = {}
        """By ledger id, the ranges of entries that no bookie had at the last look at the ledger."""
        self._bookie_id = bookie_id
        self._engine = engine
        self._marks = engine.loss_marks
        self._open_peers = open_peers
        self._pace = Pace(bytes_per_s)
        self._is_done = trio.Event()
        self._why: dict[int, str] = {}
        """By ledger id, the reason why the ledger stays in limbo, as the current look found it."""
        self._floor = 0
        """The deletion floor, as the current look found it."""
        self._told: dict[int, str] = {}
        self._told_at = -math.inf

    async def wait_done(self) -> None:
        """Wait until no ledger is in limbo."""
        await self._is_done.wait()

    async def run(self) -> None:
        """Repair until no ledger is in limbo.

        The repair waits while the disk is full. Without ``open_peers`` this returns at once, and the ledgers
        stay in limbo.

        Raises:
            StorageError: The bookie's own storage failed.
        """
        if self._marks.now.limbo and self._open_peers is None:
            logger.warning(
                "bookie=%s: ledgers up to %d are in limbo, and this process cannot copy the missing "
                "entries: they stay in limbo until 'bookie run' serves this directory",
                self._bookie_id,
                self._marks.now.limbo[-1][1],
            )
            return
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S)
        while self._marks.now.limbo:
            before = self._marks.now.limbo_count, self.copied
            try:
                assert self._open_peers is not None
                async with self._open_peers() as peers:
                    while await self._look(peers):
                        if (self._marks.now.limbo_count, self.copied) != before:
                            backoff.reset()
                        before = self._marks.now.limbo_count, self.copied
                        await trio.sleep(backoff.next_s())
            except LedgerLogError as trouble:
                if isinstance(trouble, StorageError) and not isinstance(trouble, NOT_NOW):
                    raise
                # Wait for room and for descriptors. An error would stop the bookie and lose the entries that
                # clients have in memory.
                self._why = {NO_LEDGER: str(trouble)}
                self._tell_why()
                await trio.sleep(backoff.next_s())
        self._is_done.set()

    async def _look(self, peers: Peers) -> bool:
        """Look once at every ledger that is in limbo. Return whether some are left."""
        marks = self._marks
        self._floor = await peers.deletion_floor()
        listed = [e for e in await peers.list_ledgers() if marks.now.denies_nothing(e)]
        # If a ledger has no metadata, it was deleted, or gets its metadata after this boot. No entry of such
        # a ledger can be missing here. Below the floor, the store may have forgotten it (protocol A.8).
        floor = self._floor = max(self._floor, await peers.deletion_floor())
        known = ranges_of(listed)
        deleted = without([(floor, marks.now.fenced_through)], known)
        await marks.change(lambda now: now.cleared(deleted))
        self._why = {}
        if without(marks.now.limbo, [*known, (floor, LEDGER_ID_MAX)]):
            self._why[NO_LEDGER] = (
                "those from before the restore that the metadata lack: bring them back, then accept the loss "
                "of the others ('ledgerlog metadata check --bring-back', 'metadata restore --accept-loss')"
            )
        await self._repair_all(peers, listed)
        self._tell_why()
        if not marks.now.limbo:
            tell(
                logger,
                LIMBO_OVER,
                "bookie=%(bookie)s: nothing is in limbo now; copied=%(copied)d",
                bookie=self._bookie_id,
                copied=self.copied,
            )
        return bool(marks.now.limbo)

    def _tell_why(self) -> None:
        """Log why ledgers stay in limbo, if the reasons are new or were last logged long ago."""
        why, now = self._why, trio.current_time()
        pause_s = LIMBO_TELL_S if why == self._told else LIMBO_TELL_AGAIN_S
        if not why or now - self._told_at < pause_s:
            return
        self._told, self._told_at = why, now
        lines = [
            reason if ledger_id == NO_LEDGER else f"ledger={ledger_id} {reason}"
            for ledger_id, reason in sorted(why.items())[:_TOLD_LEDGERS]
        ]
        if len(why) > _TOLD_LEDGERS:
            lines.append(f"and {len(why) - _TOLD_LEDGERS} more ledgers")
        tell(
            logger,
            LIMBO_WAITS,
            "bookie=%(bookie)s: some ledgers stay in limbo: %(why)s",
            bookie=self._bookie_id,
            why="; ".join(lines),
        )

    async def _repair_all(self, peers: Peers, ledger_ids: list[int]) -> None:
        """Repair the ledgers. Whole ledgers leave limbo while the others are still being repaired."""
        whole: dict[int, LedgerMetadata | None] = {}
        is_any_whole, is_over = trio.Event(), trio.Event()

        async def work(ledger_id: int) -> None:
            try:
                metadata, is_whole = await self._repair(peers, ledger_id)
                if is_whole:
                    whole[ledger_id] = metadata
                    is_any_whole.set()
            except StorageError:
                raise
            except LedgerLogError as trouble:
                self._why[ledger_id] = str(trouble)

        async def repair() -> None:
            await gather_each(ledger_ids, work, at_once=_LEDGERS_AT_ONCE)
            is_over.set()
            is_any_whole.set()

        async def clear() -> None:
            nonlocal is_any_whole
            while True:
                await is_any_whole.wait()
                if not whole:
                    return
                if not is_over.is_set():
                    is_any_whole = trio.Event()
                taken = dict(whole)
                whole.clear()
                await self._clear(peers, taken)
                with trio.move_on_after(_CLEAR_EVERY_S):
                    await is_over.wait()

        if ledger_ids:
            await gather(repair, clear)

    async def _clear(self, peers: Peers, whole: dict[int, LedgerMetadata | None]) -> None:
        """Take whole ledgers out of limbo. ``whole`` has the metadata with which each ledger was repaired."""
        await self._engine.flush()
        # In the meantime, a repair may have added this bookie to a ledger's metadata, for copies that the
        # bookie took before the loss (D27.6). So if a ledger's metadata changed, the ledger stays in limbo
        # until the next look.
        same = [e for e, seen in sorted(whole.items()) if await peers.metadata(e) == seen]
        await self._marks.change(lambda now: now.cleared((e, e) for e in same))

    async def _repair(self, peers: Peers, ledger_id: int) -> tuple[LedgerMetadata | None, bool]:
        """Recover the ledger if this bookie is in its last ensemble, and copy the missing entries.

        Returns:
            The metadata that this work used (None: the ledger is deleted), and whether the ledger may leave
            limbo once all copies are durable.
        """
        metadata = await peers.metadata(ledger_id)
        if metadata is None:
            # Look at the floor again: the store may have been restored since the ledger was listed.
            return None, ledger_id >= max(self._floor, await peers.deletion_floor())
        if not metadata.is_closed and self._bookie_id in metadata.last_fragment.ensemble:
            metadata = await peers.recover(ledger_id)
        lost: list[Range] = []
        for share in shares(metadata, self._bookie_id):
            for low, high in await self._gaps(ledger_id, share):
                lost += await self._copy(peers, metadata, share, low, high)
        if lost and lost != self.lost.get(ledger_id):
            logger.error(
                "bookie=%s: ledger=%d: no intact copy is left of these entries: %s",
                self._bookie_id,
                ledger_id,
                ", ".join(f"{low}..{high}" for low, high in lost),
            )
        if lost:
            self.lost[ledger_id] = lost
            self._why[ledger_id] = "has entries of which no intact copy is left: delete it to give them up"
        else:
            self.lost.pop(ledger_id, None)
        if not metadata.is_closed:
            self._why[ledger_id] = (
                f"is {metadata.state.name} on bookies {' '.join(metadata.last_fragment.ensemble)}: it waits "
                f"until its writer closes it, or the next writer recovers it "
                f"('ledgerlog ledger recover {ledger_id}' does, and stops its writer)"
            )
        return metadata, metadata.is_closed and not lost

    async def _gaps(self, ledger_id: int, share: Share) -> list[Range]:
        found: list[Range] = []
        first = share.first
        while first <= share.last:
            listed = await self._engine.list_entries(
                ledger_id, first=first, last=share.last, pairs_max=_LIST_PAIRS
            )
            if listed.status not in (Status.OK, Status.UNKNOWN):
                raise _Refused(f"its stored entries cannot be read: {listed.status.name}")
            part = Share(first, listed.through, share.slot, share.replication)
            found += gaps(part, listed.pairs)
            first = listed.through + 1
        return found

    async def _copy(
        self, peers: Peers, metadata: LedgerMetadata, share: Share, low: int, high: int
    ) -> list[Range]:
        """Copy the share's entries low..high. Return the ranges of entries that no bookie has."""
        lost: list[Range] = []
        at, stop = low, min(high, low + _FETCH_ENTRIES - 1)
        while True:
            found, failure = await peers.fetch(metadata, self._bookie_id, at, stop)
            await self._store(metadata, share, found)
            following = next((e for e in share.ids(at, high) if e not in found), None)
            if following == at and stop > at:
                stop = (
                    at  # The failure may be about an entry of another write set. Ask for entry ``at`` alone.
                )
                continue
            if following == at:
                assert failure is not None
                if not isinstance(failure, EntryNotFound | EntryCorrupt):
                    raise failure
                # If no other bookie names an entry of a stretch, skip the stretch, even if it is very long.
                held = await peers.first_held(metadata, self._bookie_id, at + 1, high)
                lost.append((at, held - 1))
                following = next(share.ids(held, high), None)
            if following is None:
                break
            at, stop = following, min(high, following + _FETCH_ENTRIES - 1)
        return joined(lost)

    async def _store(self, metadata: LedgerMetadata, share: Share, found: dict[int, bytes]) -> None:
        engine = self._engine
        # In a closed ledger, all entries are confirmed. In an open ledger, the entries before the last
        # fragment are confirmed (rule 23).
        lac = share.last if metadata.last_entry is None else metadata.last_entry
        lafr = lac if metadata.replication.guaranteed else -1
        for part in cut_to_frames(found):
            entries = Entries.gather(metadata.ledger_id, part)
            raw = b"".join(encode_add(entries, lac=lac, lafr=lafr, key=metadata.key, recovery=True))
            await self._pace.pass_through(len(raw))
            frame = decode_frame_untrusted(memoryview(raw))
            await engine.wait_room()
            verdict = engine.add(frame, decode_entries_untrusted(frame))
            if isinstance(verdict, Status):
                raise _Refused(
                    f"a copy of entries {entries.first}..{entries.last} is refused: {verdict.name}"
                )
            self.copied += len(part)
