"""A writer's watch over its *members*, the bookies of its ensemble: it tries failed members again or replaces
them.

The writer passes on the reports of the connections, and calls ``look`` a few times a second. The watch acts
on the core, the connections and the bookie directory. It never calls the writer: its methods return what the
writer must know. The watch reacts like this if a member

    refuses an add         (full, or overloaded) replace it; if there is no other bookie, try it again
    loses its connection   replace it; if there is no other bookie, the connection object reconnects
    is read-only           replace it while the writer is idle, if other bookies are available
    is silent              break off its connection if the ledger is stalled (``ledger.core.reach``)

**Doubtful replacements.** A bookie that just failed a client is doubtful (``ledger.bookies``). While
entries are being confirmed, the writer can afford to wait for a reliable bookie. If the writer is stalled, it
also tries doubtful bookies, with at most one such change every ``LOOK_S``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import trio

from ledgerlog.counts import ClientCounts
from ledgerlog.event_log import LEDGER_BOOKIE_FAILED, OUT_OF_REACH, tell
from ledgerlog.ledger.bookies import BookieDirectory
from ledgerlog.ledger.core.reach import Reach
from ledgerlog.ledger.core.writer import WriterCore
from ledgerlog.ledger.slots import Refusals, SlotSinks
from ledgerlog.limits import REACH_ASK_S
from ledgerlog.model.ids import BookieId
from ledgerlog.model.reach import OutOfReach
from ledgerlog.wire.frame import Status

__all__ = ["LOOK_S", "MemberWatch"]

LOOK_S = 0.5
"""Seconds between looks while nothing is stalled."""

logger = logging.getLogger(__name__)


class MemberWatch:
    """The watch of one writer over its members. See the module docstring."""

    def __init__(
        self, core: WriterCore, slots: SlotSinks, directory: BookieDirectory, counts: ClientCounts
    ) -> None:
        self._core = core
        self._slots = slots
        self._directory = directory
        self._counts = counts
        self._reach = Reach(core.replication)
        self._reach_callback: Callable[[], None] | None = None
        self._refusals = Refusals(slots)
        self._failed_because: dict[BookieId, str] = {}
        """Why each bookie failed last, for error messages."""
        self._doubtful_at = -math.inf  # when a doubtful bookie was last made a replacement
        self.is_stalled = False
        """Whether the ledger has made no progress for ``limits.REACH_ASK_S``, so that the watch looks for
        silent bookies."""

    @property
    def out_of_reach(self) -> OutOfReach | None:
        """See ``LedgerWriter.out_of_reach``."""
        return self._reach.out_of_reach

    def set_reach_callback(self, callback: Callable[[], None] | None) -> None:
        """See ``LedgerWriter.set_reach_callback``."""
        self._reach_callback = callback

    @property
    def are_well(self) -> bool:
        """True if no member has refused an add or has failed."""
        return not self._refusals and not any(slot.failed for slot in self._core.pending.slots)

    def failed(self) -> list[str]:
        """Return the members that have failed, each with its reason if there is one."""
        failed = [slot.bookie for slot in self._core.pending.slots if slot.failed]
        because = self._failed_because
        return [f"{bookie} ({because[bookie]})" if bookie in because else bookie for bookie in failed]

    # --- reports of the connections ----------------------------------------------------------------

    def on_refused(self, bookie: BookieId, status: Status) -> bool:
        """A member refused an add, because it is full or overloaded. Return True if it had not failed
        already."""
        self._refusals.add(bookie)
        self._failed_because[bookie] = status.name
        return self._fail(bookie, f"it refuses adds: {status.name}")

    def on_unfit(self, bookie: BookieId) -> None:
        """A bookie that just became a member refuses adds to ledgers as old as this one."""
        self._failed_because[bookie] = Status.FENCED.name
        logger.warning(
            "ledger=%d bookie=%s cannot be a replacement: it refuses adds to ledgers as old as this one",
            self._core.ledger_id,
            bookie,
        )

    def on_lost(self, bookie: BookieId, why: str) -> bool:
        """A member's connection was lost. Return True if the member had not failed already."""
        self._refusals.forget(bookie)
        self._failed_because[bookie] = why
        return self._fail(bookie, why)

    def on_connected(self, bookie: BookieId) -> None:
        """A member has a new connection: send again the adds that it did not confirm."""
        self._refusals.forget(bookie)
        self._failed_because.pop(bookie, None)
        self._core.on_bookie_connected(bookie)

    def _fail(self, bookie: BookieId, why: str) -> bool:
        if not self._core.on_bookie_failed(bookie):
            return False
        self._counts.bookies_failed += 1
        tell(
            logger,
            LEDGER_BOOKIE_FAILED,
            "ledger=%(ledger)d bookie=%(bookie)s failed: %(why)s",
            ledger=self._core.ledger_id,
            bookie=bookie,
            why=why,
        )
        self._directory.quarantine(bookie)
        return True

    # --- looks -------------------------------------------------------------------------------------

    def on_progress(self) -> None:
        """An append was acknowledged, or the writer ended: if the ledger was stalled, the stall is over."""
        if not self.is_stalled:
            return
        self.is_stalled = False
        was_out_of_reach = self._reach.out_of_reach is not None
        self._reach.on_progress()
        if was_out_of_reach:
            self._tell_reach()

    def look(self, progress_at: float) -> bool:
        """Look at all members.

        Args:
            progress_at: When the LAC last moved, or when something became pending.

        Returns:
            Whether a member is being tried again. The writer must then send the LAC again.
        """
        self._look_at_reach(progress_at)
        self._leave_read_only()
        return not self._replace(progress_at) and self._retry_refused()

    def _look_at_reach(self, progress_at: float) -> None:
        """If the ledger is stalled, find the bookies that are out of reach (not only slow), and break off
        their connections."""
        core, reach = self._core, self._reach
        if core.lac == core.last_add_pushed or trio.current_time() < progress_at + REACH_ASK_S:
            return
        self.is_stalled = True
        before = reach.out_of_reach
        taken = {*core.pending.ensemble, *core.unfit}
        spares = [
            info.bookie_id
            for info in self._directory.writable()
            if info.bookie_id not in taken and info.fences_through < core.ledger_id
        ]
        self._slots.look_for_signs(reach, spares, self._directory.quarantine)
        if reach.out_of_reach != before:
            if reach.out_of_reach is not None:
                tell(
                    logger,
                    OUT_OF_REACH,
                    "ledger=%(ledger)d no ack quorum is in reach: it needs %(bookies)s",
                    ledger=core.ledger_id,
                    bookies=str(reach.out_of_reach),
                )
            self._tell_reach()

    def _tell_reach(self) -> None:
        if self._reach_callback is not None:
            self._reach_callback()

    def _leave_read_only(self) -> None:
        """Replace bookies that no longer take ordinary adds, if others are available.

        Such a bookie is full, or an operator empties it. A busy writer notices this when the bookie refuses
        an add. An idle writer would keep the bookie in the metadata until the writer's next add, and the
        process that empties the bookie would have to fence the ledger."""
        core, directory = self._core, self._directory
        if not core.is_drained or core.intent is not None:
            return
        leaving = {
            slot: sink.bookie
            for slot, sink in enumerate(self._slots.sinks)
            if directory.is_read_only(sink.bookie) and sink.bookie not in self._refusals
        }
        if leaving and len(self._replacements(list(leaving), even_doubtful=False)) == len(leaving):
            for bookie in leaving.values():
                self._refusals.add(bookie)
                self._fail(bookie, "it no longer takes adds")

    def _replace(self, progress_at: float) -> bool:
        """Replace members that have failed, if there are other bookies. Return whether an ensemble change
        began."""
        core = self._core
        failed = core.replaceable()
        if not failed:
            return False
        now = trio.current_time()
        is_stalled = not core.is_drained and now - progress_at >= LOOK_S
        may_doubt = is_stalled and now - self._doubtful_at >= LOOK_S
        chosen = self._replacements(failed, even_doubtful=may_doubt)
        if not chosen:
            return False
        if any(map(self._directory.is_doubtful, chosen.values())):
            self._doubtful_at = now
        core.change_ensemble(chosen)
        return True

    def _replacements(self, failed: Sequence[int], *, even_doubtful: bool) -> dict[int, BookieId]:
        core = self._core
        return self._directory.replacements(
            core.pending.ensemble,
            failed,
            write_quorum=core.replication.write_quorum,
            even_doubtful=even_doubtful,
            unfit=core.unfit,
            adds_to=core.ledger_id,
        )

    def _retry_refused(self) -> bool:
        """Try again the members that refused an add some time ago. Return whether there are any.

        Their present connections are used. A lost connection is not retried here: the connection object does
        that."""
        due = self._refusals.take_due()
        for sink in due:
            self._core.on_bookie_connected(sink.bookie)
            sink.send_due()
        return bool(due)
