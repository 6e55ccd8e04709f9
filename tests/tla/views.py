"""Production cores and their messages as ``docs/tla/Ledger.tla`` names them.

Slots count from 1 there. What a view leaves out is not observed; see ``LedgerTrace.tla``."""

from __future__ import annotations

from ledgerlog.errors import LedgerClosed, NotEnoughBookies
from ledgerlog.ledger.core.pending import PendingAdds
from ledgerlog.ledger.core.recovery import Negative, Phase
from ledgerlog.ledger.core.writer import WriterCore, _Closing
from ledgerlog.model.ledger import Fragment, LedgerMetadata
from ledgerlog.wire.frame import Status
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import OwnerNode, RecovererNode, Replacements, payload_of
from tests.model.messages import (
    REPAIR,
    Add,
    AddAnswer,
    Fence,
    FenceAnswer,
    Message,
    Read,
    ReadAnswer,
    Write,
)
from tests.tla.values import Function, View

NONE = -2


def fragments_view(fragments: tuple[Fragment, ...]) -> list[View]:
    return [{"first": one.first_entry, "ens": tuple(one.ensemble)} for one in fragments]


def metadata_view(metadata: LedgerMetadata, version: int) -> View:
    return {
        "state": metadata.state.value,
        "frags": fragments_view(metadata.fragments),
        "last": NONE if metadata.last_entry is None else metadata.last_entry,
        "version": version,
    }


def replacements_view(replacements: Replacements) -> Function:
    return Function(tuple((slot + 1, bookie) for slot, bookie in replacements))


def pending_view(pending: PendingAdds) -> View:
    replication = pending.replication
    above = range(pending.settled + 1, pending.lap + 1)
    return {
        "ens": pending.ensemble,
        "conf": [
            {e for e in above if e in slot.confirmed and replication.holds(slot.index, e)}
            for slot in pending.slots
        ],
        "lap": pending.lap,
        "lac": pending.lac,
        "lafr": pending.lafr,
        "failed": {slot.index + 1 for slot in pending.slots if slot.failed},
        "replacing": {slot.index + 1 for slot in pending.slots if slot.replacing},
        "frags": fragments_view(pending.fragments),
    }


def owner_view(owner: OwnerNode) -> View:
    core = owner.core
    return {
        "mode": _mode(core),
        "end": NONE if core.close_at is None else core.close_at,
        "fate": _fate(core),
        "writing": core.intent is not None,
        "p": pending_view(core.pending),
    }


def _mode(core: WriterCore) -> str:
    if core.failure is None:
        return "open"
    return {_Closing.NO: "dead", _Closing.WANTED: "closing", _Closing.DONE: "closed"}[core._closing]


def _fate(core: WriterCore) -> str:
    if not core.is_over:
        return "none"
    return "absent" if isinstance(core.failure, LedgerClosed | NotEnoughBookies) else "unknown"


def recoverer_view(recoverer: RecovererNode) -> View:
    core = recoverer.core
    phase = core.phase
    is_at_work = phase in (Phase.FENCING, Phase.READING, Phase.CLOSING)
    if phase is Phase.CLOSING:
        end = core.last_recoverable
    else:
        end = core.metadata.last_entry if phase is Phase.DONE else None
    return {
        "phase": phase.value,
        "writing": core.intent is not None,
        "fenced": {slot + 1 for slot in core.fenced} if phase is Phase.FENCING else frozenset(),
        "start": core.start if is_at_work else NONE,
        "lac": core.frozen_lac if is_at_work else NONE,
        "next": core._next if phase is Phase.READING else NONE,
        "end": NONE if end is None else end,
        "p": [] if recoverer.pending is None else [pending_view(recoverer.pending)],
    }


def bookie_view(bookie: BookieNode) -> View:
    return {
        "entries": set(bookie.entries),
        "durable": set(bookie.durable_entries),
        "fenced": bookie.ledger is not None and bookie.ledger.is_fenced,
        "fencedDurable": bookie.is_fenced_durably,
        "lac": bookie.lac,
        "lafr": bookie.lafr,
        "limbo": bookie.in_limbo,
    }


def booted(message: Add | Write) -> View:
    """How often the new bookie of a repair had booted. Where there are repairs, no bookie loses anything."""
    return {"boots": 0} if message.client == REPAIR else {}


def message_view(message: Message) -> View:
    match message:
        case Add():
            assert all(payload == payload_of(entry_id) for entry_id, payload in message.entries)
            return booted(message) | {
                "type": "add",
                "from": message.client,
                "to": message.bookie,
                "tenure": message.tenure,
                "first": message.first,
                "last": message.last,
                "entries": {entry_id for entry_id, _ in message.entries},
                "lac": message.lac,
                "lafr": message.lafr,
                "recovery": message.is_recovery,
            }
        case AddAnswer():
            return {
                "type": "added",
                "to": message.client,
                "bookie": message.bookie,
                "tenure": message.tenure,
                "first": message.first,
                "last": message.last,
                "status": "ok" if message.status is Status.OK else "refused",
            }
        case Fence():
            return {
                "type": "fence",
                "from": message.client,
                "to": message.bookie,
                "slot": message.slot + 1,
            }
        case FenceAnswer():
            return {
                "type": "fenced",
                "to": message.client,
                "bookie": message.bookie,
                "slot": message.slot + 1,
                "lac": message.lac,
                "lafr": message.lafr,
            }
        case Read():
            ask = message.ask
            return {
                "type": "readask",
                "from": message.client,
                "to": message.bookie,
                "slot": ask.slot + 1,
                "first": ask.first,
                "last": ask.last,
                "stride": ask.stride,
                "round": ask.round,
            }
        case ReadAnswer():
            ask = message.ask
            return {
                "type": "read",
                "to": message.client,
                "bookie": message.bookie,
                "slot": ask.slot + 1,
                "first": ask.first,
                "last": ask.last,
                "round": ask.round,
                "through": message.through,
                "found": {entry_id for entry_id, _ in message.found},
                "unknown": message.negative is Negative.UNKNOWN,
            }
        case Write():
            stored = metadata_view(message.intent.metadata, 0)
            return booted(message) | {
                "type": "write",
                "from": message.client,
                "version": message.version,
                "state": stored["state"],
                "frags": stored["frags"],
                "last": stored["last"],
            }
    raise AssertionError(message)
