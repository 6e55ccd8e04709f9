"""Chain maintenance: carries out what ``log.core.chain.LeaderChain`` needs, one step at a time.

It creates the next ledger ahead, writes the list, closes the ledger that is drained, and rereads the
record when it may have changed. All of it happens beside the appends, which never wait for it: until
a roll is written they go on in the old ledger, from then on in the new one.

It acts on the core of the leadership and calls nobody back: whoever runs the steps looks at the core, and at
``current``, after each. ``look`` says that something may have changed, and carries no data.
What fails for want of metadata or bookies is tried again, with a growing pause, for as long as the
leadership lasts; a roll that is late makes a segment longer and nothing else.
"""

from __future__ import annotations

import logging
import math

import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.errors import (
    AppendUnknown,
    LedgerClosed,
    LedgerLogError,
    LogListFull,
    LostLeadership,
    MetadataError,
    MetadataOutcomeUnknown,
    NotEnoughBookies,
    RecoveryFailed,
    SessionExpired,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.writer import LedgerWriter
from ledgerlog.limits import RECONNECT_DELAY_MAX_S, RECONNECT_DELAY_MIN_S
from ledgerlog.log.core.chain import ChainNeed
from ledgerlog.log.core.leadership import Leadership
from ledgerlog.log.registry import LogRegistry, ledger_labels
from ledgerlog.meta.settle import UNSETTLED, follow
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.layout import log_record_path

logger = logging.getLogger(__name__)


class ChainMaintenance:
    """Maintains the chain of one leadership."""

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
        self._spare: LedgerWriter | None = None
        self._wake = trio.Event()
        self._reread = False
        self._is_list_full = False
        """The write that was tried last had no room in the record."""
        self._is_unanswered = False
        """The answer to the write that was tried last was lost."""
        self._refused: ChainNeed | None = None
        """What could not be done when it was tried last; it is tried again at ``_retry_at``."""
        self._backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        self._retry_at = math.inf

    def look(self) -> None:
        """Something that the chain depends on may have changed."""
        self._wake.set()

    async def wait(self, until: float) -> None:
        """Return once another step is worth trying: after a ``look`` since the last step began, after a
        pause, or at ``until`` of trio's clock."""
        with trio.move_on_at(min(self._retry_at, until)):
            await self._wake.wait()

    async def step(self) -> bool:
        """Do one thing that is needed; False if nothing is, or if it could not be done now."""
        self._wake = trio.Event()
        chain = self._chain
        need = chain.need
        # A write that can be made finds out by itself that the record has changed. One that cannot, because
        # the list is too long for it, is formed anew on what is there now.
        if self._reread and (need is not ChainNeed.WRITE or self._is_list_full):
            need = ChainNeed.SETTLE
        if need is not self._refused:
            self._refused, self._retry_at = None, math.inf
        elif trio.current_time() < self._retry_at:
            return False
        try:
            match need:
                case ChainNeed.SETTLE:
                    self._reread = False
                    known = (chain.metadata, chain.version)
                    chain.on_record(*await self._registry.read(chain.metadata.incarnation, known=known))
                    self._follow()
                case ChainNeed.WRITE:
                    await self._write()
                case ChainNeed.CLOSE:
                    await self._close()
                case ChainNeed.SPARE:
                    spare = await self._client.ledgers.create(
                        replication=chain.metadata.replication,
                        metadata=ledger_labels(chain.metadata, chain.epoch),
                    )
                    self._spare = spare
                    chain.on_spare(spare.ledger_id)
                case _:
                    return False
        except (
            MetadataError,
            SessionExpired,
            NotEnoughBookies,
            RecoveryFailed,
            LogListFull,
        ) as cause:
            self._reread = self._reread or need is ChainNeed.SETTLE
            self._is_list_full = isinstance(cause, LogListFull)
            self._pause(need, cause)
            return False
        except LedgerLogError as cause:
            # Fenced or closed by somebody else, deleted, or not what it should be: not ours any more.
            chain.on_lost(LostLeadership(chain.metadata.name, None, str(cause)))
        self._backoff.reset()
        self._is_list_full = False
        return True

    async def _write(self) -> None:
        was_unanswered, self._is_unanswered = self._is_unanswered, False
        try:
            self._chain.on_written(await self._registry.write(self._chain.record, self._chain.version))
        except UNSETTLED as cause:
            self._chain.on_unsettled()
            self._is_unanswered = isinstance(cause, MetadataOutcomeUnknown)
            if was_unanswered and self._is_unanswered:
                # A store that is read and answers no write would be asked as fast as it can be read.
                await trio.sleep(RECONNECT_DELAY_MIN_S)
        self._follow()

    async def _close(self) -> None:
        chain = self._chain
        ledger_id = chain.closing
        assert ledger_id is not None
        writer = self.draining if self.draining is not None else self.current
        assert writer.ledger_id == ledger_id
        # Its end is ours to see from here on, and not a failure that progress has to tell.
        writer.set_progress_callback(None)
        last: int | None
        try:
            last = await writer.close()
        except AppendUnknown:
            # The store did not say whether it took the end. Everything in the ledger is acknowledged, so
            # there is but one place where it can end, and whoever recovers it finds that.
            last = (await self._client.ledgers.recover(ledger_id)).last_entry
        if last != writer.last_add_pushed:
            # All of it was acknowledged, so this is no recovery's doing but an operator's.
            raise LedgerClosed(
                ledger_id,
                last,
                f"an accepted loss ended it, and it had entries up to {writer.last_add_pushed}",
            )
        self._leadership.on_closed()

    def _follow(self) -> None:
        """Bring the writers in line with the chain, in one step with what changed it."""
        chain = self._chain
        if chain.current != self.current.ledger_id:
            assert self._spare is not None
            assert self._spare.ledger_id == chain.current
            self.draining, self.current, self._spare = self.current, self._spare, None
            logger.info(
                "log=%s epoch=%d goes on in ledger=%d after ledger=%d",
                chain.metadata.name,
                chain.epoch,
                self.current.ledger_id,
                self.draining.ledger_id,
            )
        if self.draining is not None and chain.draining is None:
            self.draining = None

    def _pause(self, need: ChainNeed, cause: LedgerLogError) -> None:
        if self._refused is None:
            logger.warning(
                "log=%s epoch=%d cannot %s now: %s",
                self._chain.metadata.name,
                self._chain.epoch,
                need.value,
                cause,
            )
        self._refused = need
        self._retry_at = trio.current_time() + self._backoff.next_s()

    # --- beside it ----------------------------------------------------------------------------

    async def watch(self, store: MetadataStore) -> None:
        """Have the record reread whenever it may have changed, so that a leader that has nothing to append
        learns of its successor as well."""

        async def look() -> None:
            # At once as well: a successor may have come before the watch was there.
            self._reread = True
            self.look()

        path = log_record_path(self._chain.metadata.incarnation)
        await follow(store, path, look, what=f"log={self._chain.metadata.name} is not watched", log=logger)

    async def give_up_ledgers(self) -> list[int]:
        """End the ledger writers that are left, without closing their ledgers; the spare if nobody can have
        listed it, to be deleted."""
        unused = self._chain.take_spare()
        for writer in (self.draining, self.current, self._spare):
            if writer is not None:
                await writer.aclose()
        return [] if unused is None else [unused]
