"""The processes of the chain's model: production cores inside the smallest shells that do what they ask for.

A process takes the log over, leads, and takes it over again. ``log.core.chain`` says what is to be done next,
``log.core.append_queue`` what may be acknowledged; the order of steps is that of ``log.takeover``,
``log.maintenance`` and ``log.leader``. What is due is done at once: that a real shell is slower is the same
as an answer that comes later. What a core cannot want by itself (an append, a roll, a crash) is an action of
the checker.

A ledger is what the ledger protocol promises of it (part A.1, searched by its own model): its owner pushes
entries; they are confirmed in order; whoever recovers it ends it somewhere between the last one that was
confirmed and the last one that was pushed; after that its end never changes, and what lies up to the end may
still be confirmed to its owner, by answers that were late.

Bookies may lose what they confirmed. Then an operator accepts the loss for a ledger, which ends it before
entries that were confirmed, and later for the log, which keeps what is behind."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ledgerlog.errors import EntryCorrupt, LossUndecided, LostLeadership
from ledgerlog.log.core.append_queue import AppendQueue, Batch, BatchState
from ledgerlog.log.core.chain import (
    ChainNeed,
    ChainSplice,
    LeaderChain,
    LedgerSpan,
    Takeover,
    TakeoverAim,
    TakeoverNeed,
)
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.segments import NOTHING, SegmentCounts
from tests.model.structure import Tokens, clone, picture

LOG = "log"
IDLE, TAKING, LEADING, RESOLVING = "idle", "taking", "leading", "resolving"
ASKED, WITHDRAWN, SPLICED = "asked", "withdrawn", "spliced"
REFUSED = "refused"
"""The answer to a transaction that met something that has changed."""


class Ledger(NamedTuple):
    """One ledger, and what callers were told of its entries. Each entry holds one record."""

    first: int | None = None
    """The offset of entry 0."""
    pushed: int = 0
    confirmed: int = 0
    """How many entries its owner knows to be confirmed."""
    end: int | None = None
    """The last entry, once it is closed."""
    is_deleted: bool = False
    acked: int = 0
    """For the checks only: how many entries were acknowledged to their callers."""
    denied: int | None = None
    """For the checks only: callers were told that entries from this one on are lost."""
    is_short: bool = False
    """Whether an accepted loss ended it."""
    request: str = ""
    """For a ledger that was written apart: ASKED, WITHDRAWN or SPLICED. Else empty."""
    maker: str = ""
    """The process of its writer. Only the joined world uses this."""

    @property
    def is_closed(self) -> bool:
        return self.end is not None

    @property
    def acked_and_kept(self) -> int:
        """How many acknowledged entries can still be read."""
        return min(self.acked, self.kept)

    @property
    def kept(self) -> int:
        """How many of the entries that were pushed can still be read."""
        assert self.end is not None or not self.is_short
        return self.end + 1 if self.is_short and self.end is not None else self.pushed

    @property
    def ends(self) -> range:
        """The entries at which recovery may end it."""
        if self.end is not None:
            return range(self.end, self.end + 1)
        return range(self.confirmed - 1, self.pushed)

    @property
    def may_confirm(self) -> bool:
        return self.confirmed < self.pushed and (self.end is None or self.confirmed <= self.end)


def counts_of(first: int | None, count: int) -> SegmentCounts:
    """Return the counts of records of one byte each, whose times are their offsets."""
    if not count:
        return NOTHING
    assert first is not None
    return SegmentCounts(count, count, first, first + count - 1)


def contents_of(ledger: Ledger, end: int) -> LedgerSpan | None:
    if end < 0:
        return None
    assert ledger.first is not None
    return LedgerSpan(
        first_offset=ledger.first,
        end_offset=ledger.first + end + 1,
        bytes_before=ledger.first,
        bytes_after=ledger.first + end + 1,
        first_ms=ledger.first,
        last_ms=ledger.first + end,
    )


class RecordWrite(NamedTuple):
    """A compare-and-set of the log's record, on its way to the store."""

    process: str
    attempt: int
    version: int
    record: LogMetadata
    staged: int | None = None
    """The ledger that the same transaction splices. Its request must still be there."""

    def key(self) -> object:
        return self.process, self.attempt, self.version, picture(self.record), self.staged


Event = tuple[Any, ...]
"""("acked" | "lost", ledger, entry, offset, epoch), ("delete", ledger), ("pushed", ledger, offset),
("corrupt", why), ("named", ledger, end offset)."""


class ProcessNode:
    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = IDLE
        self.tokens = Tokens(name)
        self.takeover: Takeover | None = None
        self.chain: LeaderChain | None = None
        self.queue: AppendQueue | None = None
        self.attempt = 0
        """The number of the newest write."""
        self.is_waiting = False
        """Whether the process waits for the answer to that write."""
        self.firsts: dict[int, int] = {}
        """The offset of the first record sent to each of the leadership's two newest ledgers."""
        self.sent: dict[int, int] = {}
        """How many records were sent to each."""
        self.admitted: int | None = None
        """The ledger that the leader splices."""
        self.to_end: list[int] = []
        """Ledgers of this process whose ends are not known yet after its leadership."""
        self.ends: dict[int, int] = {}
        self.short: set[int] = set()
        """The ledgers that an accepted loss ended."""
        self.events: list[Event] = []

    def copy(self) -> ProcessNode:
        made = ProcessNode(self.name)
        made.phase = self.phase
        # Copy them together, because the cores share the source of tokens.
        made.tokens, made.takeover, made.chain, made.queue = clone(
            [self.tokens, self.takeover, self.chain, self.queue]
        )
        made.attempt, made.is_waiting, made.admitted = self.attempt, self.is_waiting, self.admitted
        made.firsts, made.sent = dict(self.firsts), dict(self.sent)
        made.to_end, made.ends, made.short = list(self.to_end), dict(self.ends), set(self.short)
        return made

    def key(self) -> object:
        if self.phase == IDLE:
            return self.name, IDLE, self.tokens.count, self.attempt
        return (
            self.name,
            self.phase,
            picture([self.tokens, self.takeover, self.chain, self.queue]),
            self.attempt,
            self.is_waiting,
            self.admitted,
            picture([self.firsts, self.sent, self.to_end, self.ends, sorted(self.short)]),
        )

    @property
    def is_fresh(self) -> bool:
        """Whether it has left no trace."""
        return self.phase == IDLE and not self.tokens.count and not self.attempt

    # --- what is due --------------------------------------------------------------------------

    def pump(self) -> list[RecordWrite]:
        """Do everything that the cores want now and that needs no other part of the world."""
        if self.phase == TAKING:
            return self._pump_takeover()
        if self.phase == LEADING:
            return self._pump_leadership()
        if self.phase == RESOLVING and not self.to_end:
            self._answer_all(self.ends, self.short)
        return []

    def _pump_takeover(self) -> list[RecordWrite]:
        core = self.takeover
        assert core is not None
        if core.need is TakeoverNeed.WRITE and not self.is_waiting:
            assert core.record is not None
            return [self._write(core.version, core.record)]
        if core.need is TakeoverNeed.FAILED:
            if isinstance(core.failure, EntryCorrupt):
                self.events.append(("corrupt", str(core.failure)))
            elif isinstance(core.failure, LossUndecided):
                self.events.append(("named", core.failure.kept_ledger, core.failure.end_offset))
            self.give_up()
        elif core.need is TakeoverNeed.DONE:
            assert core.record is not None
            self.takeover = None
            if core.ledger_id is None:
                self.rest()
            else:
                self._lead(core.record, core.version, core.ledger_id)
        return []

    def _lead(self, record: LogMetadata, version: int, ledger_id: int) -> None:
        self.phase = LEADING
        self.chain = LeaderChain(record, version, ledger_id, new_token=self.tokens)
        self.queue = AppendQueue(LOG, epoch=record.epoch, next_offset=record.counted_end)

    def _pump_leadership(self) -> list[RecordWrite]:
        chain, queue = self.chain, self.queue
        assert chain is not None
        assert queue is not None
        if chain.failure is not None:
            self.phase = RESOLVING
            self.is_waiting = False
            if queue.entries_sent:
                # In this order, and without the ledgers that nothing was sent to, as they prove nothing.
                self.to_end = [one for one in (chain.draining, chain.current) if one is not None]
            return self.pump()
        if chain.is_finished:
            self._answer_all({})
            return []
        start = chain.metadata.segments[-1].first_offset
        if chain.draining is None and start is not None and start > queue.next_offset:
            queue.skip_to(start)  # Ledgers were spliced before the current one.
        if chain.closing is not None and self._is_drained(chain.closing):
            chain.on_drained(chain.closing)
        if chain.need is ChainNeed.WRITE and not self.is_waiting:
            return [self._write(chain.version, chain.record)]
        return []

    def _is_drained(self, ledger_id: int) -> bool:
        assert self.queue is not None
        assert self.chain is not None
        if ledger_id == self.chain.current:
            return not self.queue.entries_sent
        return self.queue.is_drained(ledger_id)

    def _write(self, version: int, record: LogMetadata) -> RecordWrite:
        self.attempt += 1
        self.is_waiting = True
        is_splice = self.chain is not None and self.chain.need is ChainNeed.WRITE and self.chain.is_splicing
        return RecordWrite(self.name, self.attempt, version, record, self.admitted if is_splice else None)

    def rest(self) -> None:
        """The process stops its present work."""
        self.phase = IDLE
        self.takeover = self.chain = self.queue = None
        self.is_waiting, self.admitted = False, None
        self.firsts, self.sent, self.to_end, self.ends, self.short = {}, {}, [], {}, set()

    # --- taking over --------------------------------------------------------------------------

    def take(self, aim: TakeoverAim) -> None:
        """Begin a takeover. An operator's takeover accepts every loss."""
        self.phase = TAKING
        self.takeover = Takeover(LOG, new_token=self.tokens, aim=aim, accept_loss=aim is TakeoverAim.RECOVER)

    def read(self, record: LogMetadata, version: int) -> None:
        """The stored record, read behind a sync."""
        if self.takeover is not None:
            self.takeover.on_record(record, version)
            self._delete(self.takeover.take_garbage())
        else:
            assert self.chain is not None
            self.chain.on_record(record, version)

    def give_up(self) -> None:
        """A takeover is cancelled, or failed."""
        assert self.takeover is not None
        self.takeover.abandon()
        self._delete(self.takeover.take_garbage())
        self.rest()

    def hear(self, version: int | str | None) -> None:
        """The answer to the newest write: its version, REFUSED, or None for no answer."""
        core = self.takeover or self.chain
        assert core is not None
        self.is_waiting = False
        if version == REFUSED and self.chain is not None and self.chain.is_splicing:
            self.chain.on_refused()
        elif not isinstance(version, int):
            core.on_unsettled()
        else:
            core.on_written(version)

    # --- leading ------------------------------------------------------------------------------

    def append(self) -> None:
        chain, queue = self.chain, self.queue
        assert chain is not None
        assert queue is not None
        queue.add(b"", 0)
        batch = queue.first_to_send(full_only=False)
        assert batch is not None
        ledger_id = chain.current
        entry_id = self.sent.get(ledger_id, 0)
        self.sent[ledger_id] = entry_id + 1
        self.firsts.setdefault(ledger_id, batch.first_offset)
        queue.on_sent(batch, ledger_id, entry_id)
        self.events.append(("pushed", ledger_id, batch.first_offset))

    def admit(self, ledger_id: int | None) -> None:
        """The leader finds this request, or none."""
        assert self.chain is not None
        self.admitted = ledger_id
        self.chain.on_admitted(None if ledger_id is None else ChainSplice(staged=((ledger_id, 1, 1),)))

    def confirm(self, ledger_id: int, last_confirmed: int) -> None:
        queue = self.queue
        assert queue is not None
        before = list(queue._sent)
        queue.on_confirmed(ledger_id, last_confirmed)
        self._tell(before)

    def close(self, ledger_id: int) -> None:
        """The writer of ``ledger_id`` closed it."""
        assert self.chain is not None
        self.chain.on_closed(counts_of(self.firsts.get(ledger_id), self.sent.get(ledger_id, 0)))

    def lose(self) -> None:
        """A ledger of this process failed, or another process closed or fenced it."""
        assert self.chain is not None
        self.chain.on_lost(LostLeadership(LOG))

    def leave(self) -> None:
        """The process gives up its leadership at any moment."""
        self._answer_all({})

    def end(self, ledger_id: int, end: int | None, is_short: bool) -> None:
        """The leadership is over, and one of its ledgers ended here. None: nobody knows where."""
        self.to_end.remove(ledger_id)
        if end is not None:
            self.ends[ledger_id] = end
            if is_short:
                self.short.add(ledger_id)

    def _answer_all(self, ends: dict[int, int], short: Collection[int] = ()) -> None:
        chain, queue = self.chain, self.queue
        assert chain is not None
        assert queue is not None
        before = list(queue._sent)
        queue.resolve(ends, short)
        self._tell(before)
        spare = chain.take_spare()
        self._delete([] if spare is None else [spare])
        self.rest()

    def _tell(self, batches: list[Batch]) -> None:
        told = {BatchState.DURABLE: "acked", BatchState.LOST: "lost"}
        for batch in batches:
            if batch.state in told:
                what = told[batch.state]
                self.events.append((what, batch.ledger_id, batch.entry_id, batch.first_offset, batch.epoch))

    def _delete(self, ledger_ids: list[int]) -> None:
        self.events += [("delete", ledger_id) for ledger_id in ledger_ids]
