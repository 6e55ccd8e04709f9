"""The clients of the model: the production cores inside the smallest shells that carry out what they ask for.

A shell here does at once whatever its core wants: everything that is due is sent, an intent is written. That
a real shell is slower is the same as a message that is delivered later. What a core cannot want by itself (an
append, a failed connection, a replacement that was found, giving up) is an action of the checker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ledgerlog.errors import LedgerClosed, NotEnoughBookies
from ledgerlog.ledger.core.pending import PendingAdds, Send
from ledgerlog.ledger.core.recovery import LedgerRecovery, Phase, ReadAsk
from ledgerlog.ledger.core.writer import WriterCore
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.wire.frame import Status
from tests.model.messages import (
    OWNER,
    Add,
    AddAnswer,
    Answer,
    Fence,
    FenceAnswer,
    Message,
    Read,
    Write,
)
from tests.model.structure import clone, picture

IDLE, SENT, TO_BE_READ = 0, 1, 2
"""The state of a client's metadata write; after it was seen by the store, what is stored is read."""

Replacements = tuple[tuple[int, str], ...]


def payload_of(entry_id: int) -> bytes:
    return b"%d" % entry_id


def choices(slots: list[int], ensemble: tuple[str, ...], bookies: tuple[str, ...]) -> Iterator[Replacements]:
    """Every way to replace as many of the slots as there are bookies for, all of them if possible (D13)."""
    spares = [bookie for bookie in bookies if bookie not in ensemble]
    count = min(len(slots), len(spares))
    if count:
        for chosen in itertools.permutations(spares, count):
            yield tuple(zip(slots, chosen, strict=False))


class ClientNode:
    """The part that both kinds of clients share."""

    name: str
    core: WriterCore | LedgerRecovery

    def __init__(self) -> None:
        self.tenures: list[int] = []
        """For each slot a number that no other tenure of any slot has: an answer is for one tenure, also
        where its bookie sits in another slot by now."""
        self.ensemble: tuple[str, ...] = ()
        self.write = IDLE

    def _copy_shell(self, made: ClientNode) -> None:
        made.name = self.name
        made.tenures = list(self.tenures)
        made.ensemble = self.ensemble
        made.write = self.write

    def _follow(self, ensemble: tuple[str, ...]) -> None:
        if not self.ensemble:
            self.tenures = list(range(len(ensemble)))
        for slot, (old, new) in enumerate(zip(self.ensemble, ensemble, strict=False)):
            if old != new:
                self.tenures[slot] += len(ensemble)
        self.ensemble = ensemble

    def _is_current(self, message: Add | AddAnswer) -> bool:
        if message.bookie not in self.ensemble:
            return False
        return self.tenures[self.ensemble.index(message.bookie)] == message.tenure

    def _adds(self, sends: list[Send], slot: int, lac: int, lafr: int, is_recovery: bool) -> Iterator[Add]:
        for send in sends:
            held = [e for e in range(send.first, send.last + 1) if self.core.replication.holds(slot, e)]
            assert held, "a send holds something of its slot"
            yield Add(
                self.name,
                self.ensemble[slot],
                self.tenures[slot],
                send.first,
                send.last,
                tuple((e, bytes(send.batch.payloads[e - send.batch.first])) for e in held),
                lac,
                lafr,
                is_recovery,
            )


class OwnerNode(ClientNode):
    def __init__(self, core: WriterCore, entries: int) -> None:
        super().__init__()
        self.name = OWNER
        self.core: WriterCore = core
        self.entries_left = entries

    @property
    def is_over(self) -> bool:
        return self.core.is_over

    def copy(self) -> OwnerNode:
        made = OwnerNode(clone(self.core), self.entries_left)
        self._copy_shell(made)
        return made

    def key(self) -> object:
        core = self.core
        if core.is_over:
            end = core.close_at if core.is_closed else None
            return self.name, "over", core.lac, core.lafr, end, self.denies
        return self.name, picture(core), self.entries_left, tuple(self.tenures), self.write

    @property
    def denies(self) -> bool:
        """Whether adds that were sent have failed for certain: their callers were told that they are not in
        the ledger."""
        core = self.core
        is_certain = isinstance(core.failure, LedgerClosed | NotEnoughBookies)
        return core.is_over and is_certain and core.pending.lap > core.lac

    def pump(self) -> list[Message]:
        """Do everything that the core wants now."""
        core = self.core
        self._follow(core.pending.ensemble)
        core.form_batches()
        out: list[Message] = []
        for slot, bookie in enumerate(self.ensemble):
            out += self._adds(core.take_sends(bookie), slot, core.lac, core.lafr, False)
        if core.intent is not None and self.write == IDLE:
            self.write = SENT
            out.append(Write(self.name, core.intent.version, core.intent))
        core.check()
        return out

    def listens_to(self, answer: Answer) -> bool:
        return isinstance(answer, AddAnswer) and not self.core.is_over and self._is_current(answer)

    def awaits(self, request: Add | Fence | Read) -> bool:
        """Whether this client would take an answer to a request."""
        return isinstance(request, Add) and not self.core.is_over and self._is_current(request)

    def receive(self, answer: Answer) -> None:
        assert isinstance(answer, AddAnswer)
        if answer.status is Status.OK:
            self.core.on_add_ok(answer.bookie, answer.first, answer.last)
        else:
            assert answer.status is Status.FENCED
            self.core.on_fenced(answer.bookie)

    # --- actions ------------------------------------------------------------------------------

    def append(self) -> None:
        self.core.append([payload_of(self.core.last_add_pushed + 1)])
        self.entries_left -= 1

    def give_up(self) -> None:
        self.core.give_up(NotEnoughBookies("the model gives up"))

    def publish(self) -> list[Message]:
        """Tell every bookie the LAC, in frames without entries."""
        core = self.core
        return [
            Add(self.name, slot.bookie, tenure, core.lac + 1, core.lac, (), core.lac, core.lafr, False)
            for slot, tenure in zip(core.pending.slots, self.tenures, strict=True)
            if not slot.failed
        ]

    def change(self, replacements: Replacements) -> None:
        self.core.change_ensemble(dict(replacements))


_FENCING_ALONE = frozenset({"fenced", "_unfenced", "_to_fence"})
_PAST = {
    Phase.READING: _FENCING_ALONE,
    Phase.CLOSING: _FENCING_ALONE | {"_answers", "_asks", "_next", "_round", "_round_last"},
}


class RecovererNode(ClientNode):
    def __init__(self, name: str, core: LedgerRecovery) -> None:
        super().__init__()
        self.name = name
        self.core: LedgerRecovery = core
        self.asks: frozenset[ReadAsk] = frozenset()
        """Reads without an answer yet."""
        self.fences: frozenset[int] = frozenset()
        self.is_again = False
        """For the checks only: its process tried to recover this ledger before, and failed."""

    def copy(self) -> RecovererNode:
        made = RecovererNode(self.name, clone(self.core))
        made.is_again = self.is_again
        self._copy_shell(made)
        made.asks, made.fences = self.asks, self.fences
        return made

    @property
    def is_over(self) -> bool:
        return self.core.phase in (Phase.DONE, Phase.FAILED)

    def key(self) -> object:
        core = self.core
        if self.is_over:
            end = core.metadata.last_entry if core.phase is Phase.DONE else None
            return self.name, "over", core.phase, end
        # What is looked at in an earlier phase alone is no part of the state any more.
        past = _PAST.get(core.phase, frozenset())
        return (
            self.name,
            picture(core, without=past),
            self.asks,
            self.fences,
            tuple(self.tenures),
            self.write,
            self.is_again,
        )

    @property
    def pending(self) -> PendingAdds | None:
        return self.core.pending if self.core.phase in (Phase.READING, Phase.CLOSING) else None

    def pump(self) -> list[Message]:
        core = self.core
        out: list[Message] = []
        fences = core.take_fences()
        self.fences |= {slot for slot, _ in fences}
        out += [Fence(self.name, bookie, slot) for slot, bookie in fences]
        asks = core.take_reads()
        self.asks |= set(asks)
        out += [Read(self.name, ask.bookie, ask) for ask in asks]
        # Answers of earlier rounds are ignored.
        self.asks = frozenset(
            ask for ask in self.asks if core.phase is Phase.READING and ask.round == core._round
        )
        if core.phase is not Phase.FENCING:
            self.fences = frozenset()
        if (pending := self.pending) is not None:
            self._follow(pending.ensemble)
            for slot, bookie in enumerate(self.ensemble):
                sends = core.take_sends(bookie)
                out += self._adds(sends, slot, core.frozen_lac, core.frozen_lafr, True)
            pending.check()
        if core.intent is not None and self.write == IDLE:
            self.write = SENT
            out.append(Write(self.name, core.intent.version, core.intent))
        return out

    def listens_to(self, answer: Answer) -> bool:
        if isinstance(answer, AddAnswer):
            return self.pending is not None and self._is_current(answer)
        if isinstance(answer, FenceAnswer):
            return answer.slot in self.fences
        return answer.ask in self.asks

    def awaits(self, request: Add | Fence | Read) -> bool:
        """Whether this client would take an answer to a request."""
        if isinstance(request, Add):
            return self.pending is not None and self._is_current(request)
        if isinstance(request, Fence):
            return request.slot in self.fences
        return request.ask in self.asks

    def receive(self, answer: Answer) -> None:
        core = self.core
        if isinstance(answer, AddAnswer):
            assert answer.status is Status.OK, "recovery adds pass the fence (rule 5)"
            core.on_add_ok(answer.bookie, answer.first, answer.last)
        elif isinstance(answer, FenceAnswer):
            self.fences -= {answer.slot}
            core.on_fence_ok(answer.slot, answer.lac, answer.lafr)
        else:
            self.asks -= {answer.ask}
            core.on_read(answer.ask, dict(answer.found), answer.through, answer.negative)

    # --- actions ------------------------------------------------------------------------------

    def fail_fence(self, slot: int) -> None:
        self.fences -= {slot}
        self.core.on_fence_failed(slot)

    def fail_read(self, ask: ReadAsk) -> None:
        self.asks -= {ask}
        self.core.on_read_failed(ask)

    def give_up(self) -> None:
        self.core.give_up("the model gives up")

    def change(self, replacements: Replacements) -> None:
        self.core.change_ensemble(dict(replacements))


def read_stored(node: OwnerNode | RecovererNode, stored: LedgerMetadata, version: int) -> None:
    """The client reads what the store holds, after a write of its own was seen there."""
    node.write = IDLE
    node.core.on_metadata_read(stored, version)
