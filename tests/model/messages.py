"""The messages between the nodes of the model, and the words for them.

Messages lie in one pool without order: any of them may be delivered next, late, or never. Clients are named
W (the owner), R0 and R1 (recoverers), X (a repair), bookies b0, b1, ...
"""

from __future__ import annotations

from typing import NamedTuple

from ledgerlog.ledger.core.recovery import LOST_FROM, Negative, ReadAsk
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.model.ledger import LedgerState
from ledgerlog.wire.frame import Status

OWNER = "W"
REPAIR = "X"


class Add(NamedTuple):
    client: str
    bookie: str
    tenure: int
    """The tenure of the slot by the bookie, a number of the sender's: an answer is for that tenure alone."""
    first: int
    last: int
    entries: tuple[tuple[int, bytes], ...]
    """The entries of first..last that the slot holds."""
    lac: int
    lafr: int
    is_recovery: bool

    def __str__(self) -> str:
        told = ",".join(f"e{entry_id}" for entry_id, _ in self.entries) or "a frame without entries"
        return f"{told} for {self.client} (LAC {self.lac})"


class AddAnswer(NamedTuple):
    client: str
    bookie: str
    tenure: int
    first: int
    last: int
    status: Status

    def __str__(self) -> str:
        if self.first > self.last:
            return "a frame without entries"
        return f"e{self.first}" if self.first == self.last else f"e{self.first}..e{self.last}"


class Fence(NamedTuple):
    client: str
    bookie: str
    slot: int


class FenceAnswer(NamedTuple):
    client: str
    bookie: str
    slot: int
    lac: int
    lafr: int


class Read(NamedTuple):
    client: str
    bookie: str
    ask: ReadAsk


class ReadAnswer(NamedTuple):
    client: str
    bookie: str
    ask: ReadAsk
    found: tuple[tuple[int, bytes], ...]
    through: int
    """The answer says nothing about later entries."""
    negative: Negative

    def cut_after(self, through: int) -> ReadAnswer:
        """The answer of a bookie that gave fewer entries than it was asked for."""
        return self._replace(found=tuple(one for one in self.found if one[0] <= through), through=through)


class Get(NamedTuple):
    """An ordinary read of entries first, first + stride, ... up to last."""

    client: str
    bookie: str
    first: int
    last: int
    stride: int


class GetAnswer(NamedTuple):
    client: str
    bookie: str
    first: int
    last: int
    stride: int
    found: tuple[tuple[int, bytes], ...]
    negative: Negative


class Write(NamedTuple):
    """A compare-and-set on its way to the metadata store."""

    client: str
    version: int
    intent: MetadataIntent

    def __hash__(self) -> int:
        return hash((self.client, self.version, self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Write) and (self.client, self.version, self.key) == (
            other.client,
            other.version,
            other.key,
        )

    @property
    def key(self) -> tuple[object, ...]:
        metadata = self.intent.metadata
        return metadata.state, metadata.fragments, metadata.last_entry, metadata.custom.get(LOST_FROM)


Request = Add | Fence | Read | Get
Answer = AddAnswer | FenceAnswer | ReadAnswer | GetAnswer
Message = Request | Answer | Write


def describe_handling(message: Message, answers: tuple[Message, ...]) -> str:
    """In the words of part E: a bookie or the store handles a request."""
    match message:
        case Add():
            refused = any(isinstance(a, AddAnswer) and a.status is Status.FENCED for a in answers)
            return f"{message.bookie} {'refuses' if refused else 'stores'} {message}"
        case Fence():
            return f"{message.client} fences {message.bookie}"
        case Read():
            return f"{message.bookie} serves {message.client} read {_range(message.ask)}"
        case Get():
            return f"{message.bookie} serves {message.client} e{message.first}..e{message.last}"
        case Write():
            return f"the store sees {message.client}'s write {describe_write(message)}"
    raise AssertionError(message)


def describe_receipt(message: Answer) -> str:
    """In the words of part E: a client takes an answer."""
    match message:
        case AddAnswer():
            said = "refused" if message.status is Status.FENCED else "acks"
            return f"{message.bookie} {said} {message} to {message.client}"
        case FenceAnswer():
            return f"{message.client} hears that {message.bookie} is fenced (LAC {message.lac})"
        case GetAnswer():
            told = ", ".join(f"e{entry_id}" for entry_id, _ in message.found) or "nothing"
            return f"{message.bookie} gives {told} to {message.client}"
        case ReadAnswer():
            words = dict.fromkeys(
                range(message.ask.first, message.ask.last + 1, message.ask.stride),
                "NoSuchEntry" if message.negative is Negative.ABSENT else "Unknown",
            )
            words |= {entry_id: "OK" for entry_id, _ in message.found}
            words = {entry_id: word for entry_id, word in words.items() if entry_id <= message.through}
            told = ", ".join(f"e{entry_id}: {word}" for entry_id, word in words.items())
            return f"{message.bookie} answers {message.client} read {told}"


def describe_write(message: Write) -> str:
    metadata = message.intent.metadata
    if message.client == REPAIR:
        told = ", ".join(f"{one.first_entry}: {','.join(one.ensemble)}" for one in metadata.fragments)
        return f"({told}) at version {message.version}"
    if metadata.state is LedgerState.CLOSED:
        return f"CLOSED last={metadata.last_entry} at version {message.version}"
    if metadata.state is LedgerState.IN_RECOVERY:
        return f"IN_RECOVERY at version {message.version}"
    last = metadata.last_fragment
    return f"({last.first_entry}: {','.join(last.ensemble)}) at version {message.version}"


def _range(ask: ReadAsk) -> str:
    return ",".join(f"e{entry_id}" for entry_id in range(ask.first, ask.last + 1, ask.stride))
