"""Phase two after a loss: ledger by ledger out of limbo, while the bookie serves (D27, points 6, 8 and 9).

    for each ledger id that is in limbo
      no such ledger              it was deleted, or was never written: nothing is missing
      not closed, names us last   recover it: its end has to be known (its owner is refused here anyway)
      not closed otherwise        its owner or a recoverer ends it; until then it stays in limbo, since a
                                  private ensemble may have counted on us
      closed                      copy from other bookies what is ours and not here, entry by entry
    flush; only then, and durably, the ledgers that are CLOSED and whole leave limbo

Then again, with growing pauses, for what is left: bookies that were down come back, ledgers are closed. What
no bookie has any more stays in limbo for good, and the log says which entries: a reader is told that they are
unavailable, never that they do not exist. An operator who has given them up deletes the ledger, or, where its
end cannot be found, closes it (``ledgerlog ledger recover --accept-loss``).

While ledgers stay, the log says which, why, and whom each of them waits for: at once, again when that
changes, and in any case every ``LIMBO_TELL_S`` seconds, in one line that names ``_TOLD_LEDGERS`` of them at
most. There is never more than one such line in ``LIMBO_TELL_AGAIN_S`` seconds.

All copying together goes at ``limbo_bytes_per_s`` at most. That is a setting of the bookie's own and not the
one of auto-recovery, which moves copies that somebody else has too, and has time: a ledger in limbo can
neither be recovered nor read to its end by whoever needs this bookie's answer.

A crash at any point leaves marks that say too much and never too little; the next life goes on from them.
What was copied and not yet durable then is copied again.

The bookie knows no client: who opens it hands in ``OpenPeers``, and that is opened only while there is work.
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
from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.concurrency.pace import Pace
from ledgerlog.errors import (
    DiskFull,
    EntryCorrupt,
    EntryNotFound,
    LedgerLogError,
    StorageError,
)
from ledgerlog.limits import LIMBO_TELL_AGAIN_S, LIMBO_TELL_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.missing import Share, gaps, shares
from ledgerlog.wire.entries import Entries, cut_to_frames, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import Status, decode_frame_untrusted

logger = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 8
"""Ledgers looked at side by side: one whose bookies do not answer must not hold up the others."""

_CLEARED_TOGETHER = 256
"""So many ledgers leave limbo with one flush, and with one write of the marks, at least."""

_RANGES_PER_LEDGER = 16
"""The marks are written whole. Mostly they are one range that shrinks from below; ledgers that stay in limbo
between others that leave make them longer, sixteen bytes each. Of long ones more ledgers leave together, so
that all writes of a repair come to a few hundred bytes for each ledger, however many stay. A log of changes
would save that, and bring back the question in what order its parts were written, which one file does not
have."""

_TOLD_LEDGERS = 8
"""Ledgers that one line names."""

_LIST_PAIRS = 4096
_FETCH_ENTRIES = 4096
_PAUSE_MIN_S = 0.5
_PAUSE_MAX_S = 30.0


class Peers(Protocol):
    """The other bookies, and the ledgers of the cluster (``ledgerlog.repair.peers``)."""

    async def list_ledgers(self) -> list[int]:
        """All ids, growing; at least those of ledgers that existed before the call."""
        ...

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None: ...

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close it; its CLOSED metadata."""
        ...

    async def fetch(
        self, metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int
    ) -> tuple[dict[int, bytes], LedgerLogError | None]:
        """Some of the bookie's entries first..last, with digests that matched, ``first`` among them, or why
        it is not."""
        ...

    async def ask_for_repair(self, ledger_id: int, bookie_id: BookieId) -> None:
        """Have somebody else look after a copy of the bookie's that is damaged."""
        ...


OpenPeers = Callable[[], AbstractAsyncContextManager[Peers]]


class _Refused(LedgerLogError):
    """The bookie's own storage does not take a copy."""


class LimboRepair:
    """Takes the ledgers of one bookie out of limbo. ``run`` it while the bookie serves."""

    def __init__(
        self, bookie_id: BookieId, engine: Engine, open_peers: OpenPeers | None, *, bytes_per_s: int
    ) -> None:
        self.copied = 0
        """Entries copied from others since the start."""
        self.lost: dict[int, list[Range]] = {}
        """Ranges of entries that no bookie has, by ledger, as the last look at each found them."""
        self._bookie_id = bookie_id
        self._engine = engine
        self._marks = engine.marks
        self._open_peers = open_peers
        self._pace = Pace(bytes_per_s)
        self._is_done = trio.Event()
        self._why: dict[int, str] = {}
        """Why ledgers stay in limbo, as the present look found."""
        self._told: dict[int, str] = {}
        self._told_at = -math.inf

    async def wait_done(self) -> None:
        """Return once nothing is in limbo."""
        await self._is_done.wait()

    async def run(self) -> None:
        """Return once nothing is in limbo. StorageError where the bookie's own storage fails; a full disk is
        waited for."""
        if self._marks.now.limbo and self._open_peers is None:
            logger.warning(
                "bookie=%s: ledgers up to %d are in limbo, and nobody here can copy what is missing: they "
                "stay "
                "so until 'bookie run' serves this directory",
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
                if isinstance(trouble, StorageError) and not isinstance(trouble, DiskFull):
                    raise
                # A full disk is waited for: to end here would lose what clients have in memory.
                self._why = {NO_LEDGER: str(trouble)}
                self._tell_why()
                await trio.sleep(backoff.next_s())
        self._is_done.set()

    async def _look(self, peers: Peers) -> bool:
        """Look at every ledger that is in limbo, once; whether some are left."""
        marks = self._marks
        listed = [e for e in await peers.list_ledgers() if marks.now.denies_nothing(e)]
        # What has no metadata was deleted, or got its metadata after the boot: nothing of it can be missing.
        await marks.replace(marks.now.cleared(_complement(listed, marks.now.fenced_through)))
        start = 0
        self._why = {}
        while start < len(listed):
            count = max(_CLEARED_TOGETHER, len(marks.now.limbo) // _RANGES_PER_LEDGER)
            await self._repair_some(peers, listed[start : start + count])
            start += count
        self._tell_why()
        if not marks.now.limbo:
            logger.info("bookie=%s: nothing is in limbo any more; copied=%d", self._bookie_id, self.copied)
        return bool(marks.now.limbo)

    def _tell_why(self) -> None:
        """Say what keeps ledgers in limbo, if that is news or was said long ago."""
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
        logger.warning("bookie=%s: some ledgers stay in limbo: %s", self._bookie_id, "; ".join(lines))

    async def _repair_some(self, peers: Peers, ledger_ids: list[int]) -> None:
        whole: dict[int, LedgerMetadata | None] = {}

        async def work(ledger_id: int) -> None:
            try:
                metadata, is_whole = await self._repair(peers, ledger_id)
                if is_whole:
                    whole[ledger_id] = metadata
            except StorageError:
                raise
            except LedgerLogError as trouble:
                self._why[ledger_id] = str(trouble)

        await gather_each(ledger_ids, work, at_once=_LEDGERS_AT_ONCE)
        if whole:
            await self._engine.flush()
            # Somebody's repair may have named us meanwhile, for copies that we took before the loss (D27.6).
            same = [e for e, seen in sorted(whole.items()) if await peers.metadata(e) == seen]
            await self._marks.replace(self._marks.now.cleared((e, e) for e in same))

    async def _repair(self, peers: Peers, ledger_id: int) -> tuple[LedgerMetadata | None, bool]:
        """Recover the ledger where that is ours to do, and copy what is missing. By what metadata that was
        done, and whether the ledger may leave limbo once all that was copied is durable."""
        metadata = await peers.metadata(ledger_id)
        if metadata is None:
            return None, True
        if not metadata.is_closed and self._bookie_id in metadata.last_fragment.ensemble:
            metadata = await peers.recover(ledger_id)
        lost: list[Range] = []
        for share in shares(metadata, self._bookie_id):
            for low, high in await self._gaps(ledger_id, share):
                lost += await self._copy(peers, metadata, share, low, high)
        if lost and lost != self.lost.get(ledger_id):
            logger.error(
                "bookie=%s: ledger=%d: of these entries no intact copy is left anywhere: %s",
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
                "for its writer to close it, or for the next one to recover it "
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
                raise _Refused(f"what is stored of it cannot be read: {listed.status.name}")
            part = Share(first, listed.through, share.slot, share.replication)
            found += gaps(part, listed.pairs)
            first = listed.through + 1
        return found

    async def _copy(
        self, peers: Peers, metadata: LedgerMetadata, share: Share, low: int, high: int
    ) -> list[Range]:
        """Copy the share's entries low..high; those that nobody has."""
        lost: list[Range] = []
        at, stop = low, min(high, low + _FETCH_ENTRIES - 1)
        while True:
            found, failure = await peers.fetch(metadata, self._bookie_id, at, stop)
            await self._store(metadata, share, found)
            rest = share.ids(at, high)
            following = next((e for e in rest if e not in found), None)
            if following == at and stop > at:
                stop = at  # The failure may be about an entry of another write set: ask for this one alone.
                continue
            if following == at:
                assert failure is not None
                if not isinstance(failure, EntryNotFound | EntryCorrupt):
                    raise failure
                lost.append((at, at))
                following = next(rest, None)
            if following is None:
                break
            at, stop = following, min(high, following + _FETCH_ENTRIES - 1)
        return _joined(lost)

    async def _store(self, metadata: LedgerMetadata, share: Share, found: dict[int, bytes]) -> None:
        engine = self._engine
        # Of a closed ledger the end is confirmed; of an open one all before its last fragment (rule 23).
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


def _complement(ledger_ids: list[int], through: int) -> list[Range]:
    """The ranges of ids from 0 to ``through`` that are not among the growing ``ledger_ids``."""
    found: list[Range] = []
    at = 0
    for ledger_id in (*ledger_ids, through + 1):
        if at < ledger_id:
            found.append((at, ledger_id - 1))
        at = ledger_id + 1
    return found


def _joined(ranges: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for low, high in ranges:
        if joined and joined[-1][1] == low - 1:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined
