"""A bookie of the model: the production ``BookieLedger`` with a journal of a few records.

What the engine does around the verdicts is done here in the smallest form: verdict and journal record are one
step; an acknowledgement leaves once the block that it waits for is durable; a fence and a recovery read are
answered once the fence is durable, with what is durable then; a crash takes what was not synced, and whoever
waited, with it.

Where crashes are not played, a request and its sync are one step: an answer that is late already stands for
a sync that is late.

Blocks are numbered anew after every sync (the last durable one is ``DURABLE``), so that two histories that
leave the same state also look the same.
"""

from __future__ import annotations

from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger, StoredLedger
from bookie.core.loss_marks import LossMarks
from ledgerlog.ledger.core.recovery import Negative
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.wire.frame import Status
from tests.cores import KEY, LEDGER
from tests.model.messages import (
    Add,
    AddAnswer,
    Answer,
    Fence,
    FenceAnswer,
    Get,
    GetAnswer,
    Read,
    ReadAnswer,
    Request,
)
from tests.model.structure import clone, picture

DURABLE = 1
"""The number of the journal's last durable block."""


class BookieNode:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger: BookieLedger | None = None
        self.entries: dict[int, tuple[bytes, int]] = {}
        """Payload and journal block of every entry accepted."""
        self.lacs: list[tuple[int, int, int]] = []
        """LAC, LAFR and block of the adds whose block is not durable."""
        self.durable_lac = NO_ENTRY
        self.durable_lafr = NO_ENTRY
        self.last_block = DURABLE
        self.waiting: list[tuple[int, AddAnswer | Fence | Read]] = []
        """Acknowledgements, and requests that are to be answered, with the blocks that they wait for."""
        self.in_limbo = False
        """Its previous run may have lost data, so it may have had the entries that it lacks (A.3)."""
        self.was_added_to = False
        """For the checks only: it had taken adds when its fence mark was written."""
        self.fence_was_told = False
        """For the checks only: it has sent an answer that implies the fence (FenceDurable)."""

    def copy(self) -> BookieNode:
        made = BookieNode(self.name)
        made.ledger = clone(self.ledger)
        made.entries = dict(self.entries)
        made.lacs = list(self.lacs)
        made.durable_lac, made.durable_lafr = self.durable_lac, self.durable_lafr
        made.last_block = self.last_block
        made.waiting = list(self.waiting)
        made.in_limbo, made.was_added_to = self.in_limbo, self.was_added_to
        made.fence_was_told = self.fence_was_told
        return made

    def key(self) -> object:
        return (
            self.name,
            picture(self.ledger),
            tuple(sorted(self.entries.items())),
            tuple(self.lacs),
            self.durable_lac,
            self.durable_lafr,
            self.last_block,
            tuple(sorted(self.waiting, key=repr)),
            self.in_limbo,
            self.was_added_to,
            self.fence_was_told,
        )

    # --- what the checks look at --------------------------------------------------------------

    @property
    def durable_entries(self) -> dict[int, bytes]:
        return {e: payload for e, (payload, block) in self.entries.items() if block <= DURABLE}

    def has_or_lost(self, entry_id: int) -> bool:
        """Whether it has an entry durably, or is in limbo and may have lost it."""
        return self.in_limbo or entry_id in self.durable_entries

    @property
    def is_fenced_durably(self) -> bool:
        ledger = self.ledger
        return (
            ledger is not None
            and ledger.is_fenced
            and (ledger.is_fence_durable or 0 < ledger.fence_sequence <= DURABLE)
        )

    @property
    def lac(self) -> int:
        return NO_ENTRY if self.ledger is None else self.ledger.lac

    @property
    def lafr(self) -> int:
        return NO_ENTRY if self.ledger is None else self.ledger.lafr

    # --- requests -----------------------------------------------------------------------------

    def handle(self, request: Request) -> list[Answer]:
        """Return the answers that leave now."""
        if isinstance(request, Get):
            return [self._give(request)]
        if self.ledger is None:
            self.ledger = BookieLedger(LEDGER, KEY)  # The first add or fence brings the key.
        if isinstance(request, Add):
            self._add(self.ledger, request)
        else:
            self._fence(self.ledger)
            is_settled = self.ledger.is_fence_settled(DURABLE)
            self.waiting.append((DURABLE if is_settled else self.ledger.fence_sequence, request))
        return self._release()

    def _give(self, request: Get) -> GetAnswer:
        held = self.durable_entries
        wanted = range(request.first, request.last + 1, request.stride)
        found = tuple((e, held[e]) for e in wanted if e in held)
        return GetAnswer(*request, found, Negative.UNKNOWN if self.in_limbo else Negative.ABSENT)

    def _next_block(self) -> int:
        self.last_block += 1
        return self.last_block

    def _add(self, ledger: BookieLedger, add: Add) -> None:
        answer = AddAnswer(add.client, self.name, add.tenure, add.first, add.last, Status.OK)
        refusal = ledger.add_refusal(KEY, add.is_recovery)
        if refusal is not None:
            self.waiting.append((DURABLE, answer._replace(status=refusal)))
            return
        ledger.tell(add.lac, add.lafr)
        assert all(self.entries.get(e, (payload, 0))[0] == payload for e, payload in add.entries), (
            "ContentAgree: an id has one payload (rule 6)"
        )
        fresh = [(e, payload) for e, payload in add.entries if e not in self.entries]
        # An entry that is there already is not stored twice. Its add waits for the sync like the first one
        # (rule 7).
        block = max((self.entries[e][1] for e, _ in add.entries if e in self.entries), default=DURABLE)
        if fresh:
            block = self._next_block()
            ledger.on_run(EntryRun(LEDGER, fresh[0][0], fresh[-1][0], len(fresh), 0, 0, 0, block))
            self.entries |= {e: (payload, block) for e, payload in fresh}
            self.lacs.append((add.lac, add.lafr, block))
        self.waiting.append((block, answer))

    def _fence(self, ledger: BookieLedger) -> None:
        assert ledger.fence_refusal(KEY) is None
        if not ledger.is_fenced:
            ledger.on_fence()
            ledger.fence_sequence = self._next_block()

    def _release(self) -> list[Answer]:
        ready = [waiter for block, waiter in self.waiting if block <= DURABLE]
        self.waiting = [(block, waiter) for block, waiter in self.waiting if block > DURABLE]
        return [waiter if isinstance(waiter, AddAnswer) else self._answer(waiter) for waiter in ready]

    def _answer(self, request: Fence | Read) -> Answer:
        assert self.ledger is not None
        self.fence_was_told = True
        if isinstance(request, Fence):
            return FenceAnswer(request.client, self.name, request.slot, self.ledger.lac, self.ledger.lafr)
        ask = request.ask
        held = self.durable_entries
        found = tuple((e, held[e]) for e in range(ask.first, ask.last + 1, ask.stride) if e in held)
        negative = Negative.UNKNOWN if self.in_limbo else Negative.ABSENT
        return ReadAnswer(request.client, self.name, ask, found, ask.last, negative)

    # --- the disk -----------------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        return self.last_block > DURABLE

    def sync(self) -> list[Answer]:
        """Make everything in the journal durable. Return the answers that leave."""
        ledger = self.ledger
        assert ledger is not None
        for lac, lafr, _ in self.lacs:
            self.durable_lac = max(self.durable_lac, lac)
            self.durable_lafr = max(self.durable_lafr, lafr)
        self.lacs = []
        self.entries = {e: (payload, DURABLE) for e, (payload, _) in self.entries.items()}
        ledger.runs = [run._replace(sequence=DURABLE) for run in ledger.runs]
        if ledger.fence_sequence:
            ledger.fence_sequence = DURABLE
        self.last_block = DURABLE
        self.waiting = [(DURABLE, waiter) for _, waiter in self.waiting]
        return self._release()

    def crash(self) -> None:
        """The process dies, and boots again from its durable state."""
        fenced = self.is_fenced_durably
        self.entries = {e: kept for e, kept in self.entries.items() if kept[1] <= DURABLE}
        self.lacs, self.waiting, self.last_block = [], [], DURABLE
        if not self.entries and not fenced and self.durable_lac == self.durable_lafr == NO_ENTRY:
            self.ledger = None
            return
        last = max(self.entries, default=NO_ENTRY)
        self.ledger = BookieLedger.restore(
            LEDGER,
            StoredLedger(
                key=KEY,
                is_fenced=fenced,
                lac=self.durable_lac,
                lafr=self.durable_lafr,
                last_entry=last,
                widest=0,
                straddle=0,
            ),
        )

    def lose_everything(self) -> None:
        """The disk is wiped. The next boot knows of the loss: it fences every ledger, and denies no entry
        (D27)."""
        self.boot_after_loss(True, LossMarks().after_loss(LEDGER))

    def boot_after_loss(self, is_lost: bool, marks: LossMarks, ledger_id: int = LEDGER) -> None:
        """Data may be lost, or this ledger's data is lost. The bookie answers nothing between that and the
        boot.

        Args:
            is_lost: Whether everything of this ledger is gone.
            marks: The marks that the boot wrote.
            ledger_id: Which ledger this is.
        """
        self.was_added_to |= bool(self.entries)
        if is_lost:
            self.entries, self.lacs, self.waiting, self.last_block = {}, [], [], DURABLE
            self.durable_lac = self.durable_lafr = NO_ENTRY
            self.ledger = None
        self.in_limbo = marks.denies_nothing(ledger_id)
        if marks.refuses_adds(ledger_id):
            # The mark refuses the same adds as a fence of the ledger itself, which changes nothing after it.
            self.ledger = self.ledger or BookieLedger(LEDGER, KEY)
            self.ledger.on_fence_found()

    def copy_back(self, entries: tuple[tuple[int, bytes], ...], lac: int, lafr: int) -> None:
        """It durably stores entries that it has read from other bookies (protocol A.3, phase two)."""
        assert self.ledger is not None
        self._add(
            self.ledger, Add(self.name, self.name, 0, entries[0][0], entries[-1][0], entries, lac, lafr, True)
        )
        self.sync()

    def leave_limbo(self) -> None:
        """Its marks no longer name this ledger."""
        self.in_limbo = False
