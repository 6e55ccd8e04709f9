"""Copies and canonical pictures of the protocol objects, with all their attributes.

The checker needs two things of a production object: a copy to go on with, and a hashable value that is
equal for two objects exactly if they behave the same from here on. Both walk over *all* attributes of the
classes named below, so that an attribute that is added to production code takes part by itself. A class
that is not named, and is not a plain value, is refused: nothing mutable is shared by oversight.
"""

from __future__ import annotations

import enum
from collections import deque
from functools import cache
from types import FunctionType, MethodType
from typing import Any, TypeVar

from bookie.core.journal_items import EntryRun
from bookie.core.ledger import BookieLedger
from ledgerlog.ledger.core.pending import AddBatch, PendingAdds, Slot
from ledgerlog.ledger.core.ranges import RangeSet
from ledgerlog.ledger.core.reader import RangeAsk, RangeRead, _Lane
from ledgerlog.ledger.core.recovery import LOST_FROM, LedgerRecovery, ReadAsk, _Answer
from ledgerlog.ledger.core.writer import MetadataIntent, WriterCore
from ledgerlog.log.core.append_queue import AppendQueue, Batch
from ledgerlog.log.core.chain import ChainSplice, Counting, LeaderChain, Takeover
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.segments import Gap, LogSegment, SegmentCounts
from ledgerlog.repair.core.copy_queue import Copy, CopyQueue
from ledgerlog.repair.core.repair import FragmentRepair

T = TypeVar("T")


class Tokens:
    """A source of tokens, each of them new, that is copied with whoever draws from it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return f"{self.owner}-{self.count}".encode()


OBJECTS = (
    *(RangeSet, Slot, PendingAdds, AddBatch, WriterCore, LedgerRecovery, _Answer, BookieLedger),
    *(
        Takeover,
        Counting,
        LeaderChain,
        AppendQueue,
        Batch,
        Tokens,
        FragmentRepair,
        CopyQueue,
        RangeRead,
        _Lane,
    ),
)
"""Classes of objects that have identity and change."""

VALUES = (
    *(Fragment, LedgerMetadata, Replication, MetadataIntent, ReadAsk, EntryRun),
    *(LogMetadata, LogSegment, SegmentCounts, ChainSplice, Gap, RangeAsk, Copy),
)
"""Classes of values that never change."""

_SHARED = frozenset({int, str, bytes, bool, type(None), FunctionType, MethodType, *VALUES})
_OBJECTS = frozenset(OBJECTS)


@cache
def _attributes(cls: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return tuple(sorted(name for name in names if name not in ("__dict__", "__weakref__")))


def _names(thing: object) -> tuple[str, ...]:
    own = getattr(thing, "__dict__", None)
    return _attributes(type(thing)) if not own else (*_attributes(type(thing)), *sorted(own))


def clone(thing: T) -> T:
    """A copy that shares nothing that can change."""
    return _clone(thing, {})


def _clone(thing: Any, known: dict[int, Any]) -> Any:
    cls = type(thing)
    if cls in _SHARED:
        return thing
    made = known.get(id(thing))
    if made is not None:
        return made
    if cls in _OBJECTS:
        made = known[id(thing)] = cls.__new__(cls)
        for name in _names(thing):
            if hasattr(thing, name):
                setattr(made, name, _clone(getattr(thing, name), known))
        return made
    if cls is list:
        made = known[id(thing)] = [_clone(item, known) for item in thing]
        return made
    if cls is dict:
        return {_clone(key, known): _clone(value, known) for key, value in thing.items()}
    if cls is tuple:
        return tuple(_clone(item, known) for item in thing)
    if cls is set:
        return {_clone(item, known) for item in thing}
    if cls is deque:
        return deque(_clone(item, known) for item in thing)
    if isinstance(thing, enum.Enum | BaseException):
        return thing
    raise TypeError(f"nobody said whether a {cls.__name__} may be shared between states")


def picture(thing: Any, *, without: frozenset[str] = frozenset()) -> Any:
    """A hashable value that is equal for things that behave alike. Attributes ``without`` which ``thing``
    behaves the same are left out."""
    if without:
        return tuple(
            _picture(getattr(thing, name, None), {}) for name in _names(thing) if name not in without
        )
    return _picture(thing, {})


def _picture(thing: Any, known: dict[int, int]) -> Any:
    cls = type(thing)
    if cls in (int, str, bytes, bool, type(None)):
        return thing
    if cls is LedgerMetadata:
        return thing.state.value, thing.fragments, thing.last_entry, thing.custom.get(LOST_FROM)
    if cls is LogMetadata:
        return thing.epoch, thing.segments, thing.first_offset, thing.before, thing.sealed, thing.token
    if cls is Copy:
        return thing.bookie, tuple(sorted(thing.entries.items()))
    if cls is MetadataIntent:
        return thing.version, _picture(thing.metadata, known)
    if cls in (FunctionType, MethodType, Replication):
        return None
    if cls in VALUES:
        return thing
    if cls in _OBJECTS:
        number = known.get(id(thing))
        if number is not None:
            return "the same as", number
        known[id(thing)] = len(known)
        return tuple(_picture(getattr(thing, name, None), known) for name in _names(thing))
    if cls in (list, tuple, deque):
        return tuple([_picture(item, known) for item in thing])
    if cls is dict:
        # Not in the order of insertion: two histories that mean the same may have filled it differently.
        return tuple((_picture(key, known), _picture(thing[key], known)) for key in sorted(thing, key=repr))
    if cls is set:
        return tuple(sorted(thing))
    if isinstance(thing, enum.Enum):
        return thing.name
    if isinstance(thing, BaseException):
        return type(thing).__name__
    raise TypeError(f"nobody said how a {cls.__name__} looks")
