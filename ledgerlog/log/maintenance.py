"""Chain maintenance: carries out what ``log.core.chain.LeaderChain`` needs, one step at a time.

The maintenance writes the list of ledgers, closes a *drained* ledger (one in which every append is
acknowledged), and reads the log's record again when it may have changed. A second task makes the next ledger
ahead of time, because that may take long and no other step may wait for it. Appends never wait for a roll.
They go to the old ledger until a roll is written, and to the new ledger after that.

If other processes ask for splices, the maintenance carries them out too (``log.splice_desk``). Only then do
appends wait, until the log continues behind the spliced ledgers.

The maintenance acts on the core of the leadership (``log.core.leadership``), and has no callbacks. The caller
that runs the steps looks at the core, and at ``current``, after each step. Call ``look`` if something may
have changed; it carries no data. If a step fails because the metadata store or bookies are away, it is tried
again with growing pauses, for as long as the leadership lasts. A late roll makes a segment longer and does no
other harm.
"""

from __future__ import annotations

import logging
import math
from typing import NoReturn

import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LedgerClosed,
    LedgerLogError,
    LogListFull,
    LostLeadership,
    MetadataError,
    MetadataUnavailable,
    NotEnoughBookies,
    PermissionDenied,
    RecoveryFailed,
    SessionExpired,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import LOG_SPLICE_HOLD_S, RECONNECT_DELAY_MAX_S, RECONNECT_DELAY_MIN_S
from ledgerlog.log.core.chain import ChainNeed
from ledgerlog.log.core.leadership import Leadership
from ledgerlog.log.registry import LogRegistry, ledger_labels
from ledgerlog.log.splice_desk import SpliceDesk
from ledgerlog.meta.settle import follow, on_lost_answer, on_refusal, on_unsettled, settle
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import log_record_path

logger = logging.getLogger(__name__)

_TRY_AGAIN = (MetadataError, SessionExpired, NotEnoughBookies, RecoveryFailed, LogListFull)
"""The errors of a step that may succeed later."""


class ChainMaintenance:
    """Maintains the chain of one leadership.

    Args:
        leadership: The core to act on.
        current: The writer of the ledger that the takeover made.
        client: The client of the cluster.
        registry: The records of the logs.
    """

    def __init__(
        self,
        leadership: Leadership,
        current: LedgerWriter,
        *,
        client: LedgerClient,
        registry: LogRegistry,
    ) -> None:
        self._leadership = leadership
        self._chain = leadership.chain
        self._client = client
        self._registry = registry
        self.current = current
        """The writer of the ledger that new appends go to."""
        self.draining: LedgerWriter | None = None
        """The writer of the ledger before the current one, until that ledger is closed and counted."""
        self._spare: LedgerWriter | None = None
        self._spare_wanted = trio.Event()
        self._wake = trio.Event()
        self._reread = False
        self._is_list_full = False
        """Whether the last write had no room in the record."""
        self.desk = SpliceDesk(
            client, leadership.name, self._chain.metadata.incarnation, on_request=self._on_request
        )
        """The requests of other processes to splice ledgers."""
        self._held_since: float | None = None
        """The time since which appends are held back for a splice."""
        self._refused: ChainNeed | None = None
        """The need that could not be met at the last try. It is tried again at ``_retry_at``."""
        self._backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        self._retry_at = math.inf

    def look(self) -> None:
        """Note a possible change of something that the chain depends on."""
        self._wake.set()

    async def wait(self, until: float) -> None:
        """Return once another step is worth trying.

        That is after a call of ``look`` since the last step began, after a pause, or at the time ``until`` of
        trio's clock.
        """
        with trio.move_on_at(min(self._retry_at, until)):
            await self._wake.wait()

    async def step(self) -> bool:
        """Do one thing that the chain needs. Return False if the chain needs nothing, or if the step could
        not be done now."""
        self._wake = trio.Event()
        chain = self._chain
        need = chain.need
        if not chain.is_holding:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = trio.current_time()
        # A write finds out by itself that the record has changed. But if the list is too long to be written,
        # read the record first: the next write must be prepared from the record that is there now.
        if self._reread and (need is not ChainNeed.WRITE or self._is_list_full):
            need = ChainNeed.SETTLE
        if need is not self._refused:
            self._refused, self._retry_at = None, math.inf
        elif trio.current_time() < self._retry_at:
            return False
        try:
            match need:
                case ChainNeed.SETTLE:
                    await self._read()
                case ChainNeed.WRITE:
                    await self._write()
                case ChainNeed.CLOSE:
                    await self._close()
                case ChainNeed.ADMIT:
                    await self._admit()
                case ChainNeed.SPARE:
                    self._spare_wanted.set()  # ``make_spares`` makes it.
                    return False
                case _:
                    return False
        except _TRY_AGAIN as cause:
            self._reread = self._reread or need is ChainNeed.SETTLE
            self._is_list_full = isinstance(cause, LogListFull)
            self._pause(need, cause)
            return chain.failure is not None
        except LedgerLogError as cause:
            # The ledger was fenced, closed or deleted by another process, or is damaged. It is no longer
            # ours.
            is_denied = isinstance(cause, PermissionDenied)
            chain.on_lost(cause if is_denied else LostLeadership(chain.metadata.name, None, str(cause)))
        self._backoff.reset()
        self._is_list_full = False
        return True

    async def make_spares(self) -> NoReturn:
        """Make the ledgers that the chain wants ahead, forever.

        Making a ledger is not one of the steps, because it may take long if bookies are missing. Meanwhile
        the chain may be lost or finished.
        """
        chain = self._chain
        backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        while True:
            await self._spare_wanted.wait()
            self._spare_wanted = trio.Event()
            if chain.need is not ChainNeed.SPARE:
                continue  # The spare is made already, or something else comes first.
            try:
                self._spare = await self._client.ledgers.create(
                    replication=chain.metadata.replication,
                    metadata=ledger_labels(chain.metadata, chain.epoch),
                )
                chain.on_spare(self._spare.ledger_id)
            except _TRY_AGAIN as cause:
                if not backoff.is_growing:
                    self._warn(ChainNeed.SPARE, cause)
                await trio.sleep(backoff.next_s())
            except LedgerLogError as cause:
                chain.on_lost(LostLeadership(chain.metadata.name, None, str(cause)))
            else:
                backoff.reset()
            self.look()

    async def _read(self) -> None:
        chain = self._chain
        self._reread = False
        ours = chain.metadata
        record, version = await self._registry.read(ours.incarnation, known=(ours, chain.version))
        why_gone = await self._registry.why_missing(ours.name, ours.incarnation) if record is None else None
        chain.on_record(record, version, why_gone)
        self._follow()

    async def _write(self) -> None:
        chain = self._chain

        async def attempt(_: bool) -> None:
            if chain.need is ChainNeed.SETTLE:
                await self._read()
            if chain.need is ChainNeed.WRITE:
                try:
                    if chain.is_splicing:
                        await self._write_splice()
                    else:
                        with on_unsettled(chain.on_unsettled):
                            chain.on_written(await self._registry.write(chain.record, chain.version))
                except (MetadataUnavailable, LogListFull):
                    chain.on_not_written()
                    raise
                self._follow()

        await settle(self._client.store, attempt, what=f"a change of log {chain.metadata.name!r}")

    async def _write_splice(self) -> None:
        chain = self._chain
        try:
            with on_lost_answer(chain.on_unsettled), on_refusal(chain.on_refused):
                chain.on_written(await self.desk.write(chain.record, chain.version))
        except (LogListFull, InvalidArgument) as too_large:
            chain.on_too_large()
            await self.desk.refuse(too_large)

    async def _admit(self) -> None:
        chain = self._chain
        now_ms = max(self._leadership.last_ms, self._client.environment.now_ms())
        chain.on_admitted(await self.desk.admit(chain.metadata, now_ms))
        self._on_request()

    def _on_request(self) -> None:
        if self.desk.has_requests:
            self._chain.want_splice()
            self.look()

    async def _close(self) -> None:
        chain = self._chain
        ledger_id = chain.closing
        assert ledger_id is not None
        writer = self.draining if self.draining is not None else self.current
        assert writer.ledger_id == ledger_id
        # This method handles the ledger's end. The progress callback must not report that end as a failure.
        writer.set_progress_callback(None)
        last: int | None
        try:
            last = await writer.close()
        except AppendUnknown:
            # The answer to the close was lost. Every entry of the ledger is acknowledged, so the ledger can
            # end only after the last entry, and any recovery finds that end.
            last = (await self._client.ledgers.recover(ledger_id)).last_entry
        if last != writer.last_add_pushed:
            # Every entry was acknowledged, so no ordinary recovery ends the ledger earlier. An operator did.
            raise LedgerClosed(
                ledger_id,
                last,
                f"an accepted loss ended it, and it had entries up to {writer.last_add_pushed}",
            )
        self._leadership.on_closed()

    def _follow(self) -> None:
        """Bring the writers in line with the chain, without an await after the change of the chain."""
        chain = self._chain
        if chain.current != self.current.ledger_id:
            assert self._spare is not None
            assert self._spare.ledger_id == chain.current
            self.draining, self.current, self._spare = self.current, self._spare, None
            logger.info(
                "log=%s epoch=%d continues in ledger=%d after ledger=%d",
                chain.metadata.name,
                chain.epoch,
                self.current.ledger_id,
                self.draining.ledger_id,
            )
            if chain.draining is None:
                self.desk.on_written()
                self._on_request()
        if self.draining is not None and chain.draining is None:
            self.draining = None

    def _pause(self, need: ChainNeed, cause: LedgerLogError) -> None:
        now, chain = trio.current_time(), self._chain
        if self._held_since is not None and now - self._held_since > LOG_SPLICE_HOLD_S:
            why = f"a splice held appends back for {LOG_SPLICE_HOLD_S:g} s and cannot be completed: {cause}"
            chain.on_lost(LostLeadership(chain.metadata.name, None, why))
            return
        if self._refused is None:
            self._warn(need, cause)
        self._refused = need
        self._retry_at = now + self._backoff.next_s()

    def _warn(self, need: ChainNeed, cause: LedgerLogError) -> None:
        logger.warning(
            "log=%s epoch=%d cannot %s now: %s",
            self._chain.metadata.name,
            self._chain.epoch,
            need.value,
            cause,
        )

    # --- called beside the steps -----------------------------------------------------------------

    async def watch(self, store: MetadataStore) -> None:
        """Read the record again whenever it may have changed.

        So a leader learns of its successor even if it has nothing to append.
        """

        async def look() -> None:
            # The first call comes at once: a successor may have taken over before the watch was set.
            self._reread = True
            self.look()

        path = log_record_path(self._chain.metadata.incarnation)
        await follow(store, path, look, what=f"log={self._chain.metadata.name} is not watched", log=logger)

    async def give_up_ledgers(self) -> list[int]:
        """End the ledger writers that are left, without closing their ledgers.

        Returns:
            The spare, if it certainly is in no list. The caller deletes it.
        """
        unused = self._chain.take_spare()
        for writer in (self.draining, self.current, self._spare):
            if writer is not None:
                await writer.aclose()
        return [] if unused is None else [unused]
