"""The model's repair: the production core of one fragment's repair in the smallest shell.

Any bookie of a fragment that may be repaired is replaced as if it were lost; that it goes on answering is one
more thing that may happen. Copies go to one bookie and are confirmed once: a new bookie that fails, and a
repair that is given up, are the same as one that does not go on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledgerlog.ledger.core.reader import RangeAsk
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.repair.core.copy_queue import Copy
from ledgerlog.repair.core.repair import FragmentRepair, Work, survey
from ledgerlog.wire.frame import Status
from tests.model.client_nodes import IDLE, SENT
from tests.model.messages import REPAIR, Add, AddAnswer, Answer, Fence, Get, GetAnswer, Message, Read, Write
from tests.model.structure import clone, picture

Task = tuple[int, str, str]
"""A fragment, one of its bookies, and the bookie that replaces it."""


def tasks(metadata: LedgerMetadata, bookies: tuple[str, ...]) -> Iterator[Task]:
    """Return every repair that is allowed now."""
    for finding in survey(metadata, bookies):
        if finding.work is not Work.RECOVER:
            ensemble = metadata.fragments[finding.fragment_index].ensemble
            for old in ensemble:
                yield from ((finding.fragment_index, old, new) for new in bookies if new not in ensemble)


class RepairNode:
    def __init__(self, core: FragmentRepair) -> None:
        self.name = REPAIR
        self.core = core
        self.write = IDLE
        self.asks: list[RangeAsk] = []
        """Reads without an answer yet. The core knows its asks by identity, so these are copied with it."""
        self.copies: list[Copy] = []

    def copy(self) -> RepairNode:
        core, asks, copies = clone([self.core, self.asks, self.copies])
        assert isinstance(core, FragmentRepair)
        made = RepairNode(core)
        made.write = self.write
        made.asks, made.copies = asks, copies
        return made

    @property
    def is_over(self) -> bool:
        return self.core.is_over

    def key(self) -> object:
        if self.is_over:
            return self.name, "over"
        return self.name, picture([self.core, self.asks, self.copies]), self.write

    def pump(self) -> list[Message]:
        core = self.core
        out: list[Message] = []
        asks = core.take_asks()
        self.asks += asks
        out += [Get(self.name, ask.bookie, ask.first, ask.last, ask.stride) for ask in asks]
        copies = core.take_copies()
        self.copies += copies
        for copy in copies:
            entries = tuple(copy.entries.items())
            first, last = entries[0][0], entries[-1][0]
            out.append(Add(self.name, copy.bookie, 0, first, last, entries, core.lac, core.lafr, True))
        if core.intent is not None and self.write == IDLE:
            self.write = SENT
            out.append(Write(self.name, core.intent.version, core.intent))
        return out

    def _ask_of(self, message: Get | GetAnswer) -> RangeAsk | None:
        for ask in self.asks:
            if (ask.bookie, ask.first, ask.last) == (message.bookie, message.first, message.last):
                return ask
        return None

    def _copy_of(self, message: Add | AddAnswer) -> Copy | None:
        for copy in self.copies:
            if (copy.bookie, next(iter(copy.entries))) == (message.bookie, message.first):
                return copy
        return None

    def awaits(self, request: Add | Fence | Read | Get) -> bool:
        """Whether it would hear an answer to a request."""
        if self.is_over:
            return False
        if isinstance(request, Add):
            return self._copy_of(request) is not None
        return isinstance(request, Get) and self._ask_of(request) is not None

    def listens_to(self, answer: Answer) -> bool:
        if self.is_over:
            return False
        if isinstance(answer, AddAnswer):
            return self._copy_of(answer) is not None
        return isinstance(answer, GetAnswer) and self._ask_of(answer) is not None

    def receive(self, answer: Answer) -> None:
        if isinstance(answer, AddAnswer):
            assert answer.status is Status.OK, "copies pass the fence (rule 5)"
            copy = self._copy_of(answer)
            assert copy is not None
            self.copies.remove(copy)
            self.core.on_copied(copy)
        else:
            assert isinstance(answer, GetAnswer)
            ask = self._ask_of(answer)
            assert ask is not None
            self.asks.remove(ask)
            self.core.on_reply(ask, dict(answer.found), ask.last, answer.negative)

    def fail_read(self, place: int) -> None:
        """One of the reads times out."""
        self.core.on_failed(self.asks.pop(place))

    def lose_target(self, bookie: str) -> None:
        """A new bookie booted, so it has another registration."""
        self.write = IDLE
        self.core.on_target_lost(bookie, "it booted")

    def read_stored(self, stored: LedgerMetadata, version: int) -> None:
        self.write = IDLE
        self.core.on_metadata_read(stored, version)
