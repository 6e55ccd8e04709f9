"""The invariants of part C of the protocol, for the checker.

Each is stated over what the bookies have durably, what the register holds and what the owner has
acknowledged, never over what a core believes, except where the invariant is about that. Those of one
component are checked when it reacts, those of the register when it is written, and those of the whole in
every state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledgerlog.core.recovery import Phase
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import OwnerNode, RecovererNode, Replacements, payload_of
from tests.model.messages import OWNER, Add, Read

NEVER = 1 << 30


class Violation(AssertionError):
    """An invariant does not hold; ``name`` is the one of part C."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


_EDGES = {
    ("OPEN", "OPEN"),
    ("OPEN", "IN_RECOVERY"),
    ("OPEN", "CLOSED"),
    ("IN_RECOVERY", "CLOSED"),
}


def check_edge(old: LedgerMetadata, new: LedgerMetadata, client: str) -> None:
    """Every write of the register."""
    edge = old.state.value, new.state.value
    if edge not in _EDGES:
        raise Violation("ClosedImmutable" if old.is_closed else "MetaTransitions", f"{client} writes {edge}")
    if (new.last_entry is not None) != new.is_closed:
        raise Violation("ConfigOK", "last_entry is set exactly when CLOSED")
    for fragment in new.fragments:
        if len(set(fragment.ensemble)) != new.replication.ensemble:
            raise Violation("ConfigOK", f"ensemble {fragment.ensemble}")
    starts = [fragment.first_entry for fragment in new.fragments]
    if starts != sorted(set(starts)) or starts[0] != 0:
        raise Violation("FragmentsMonotone", f"{client} writes fragments that start at {starts}")
    if old.fragments[:-1] != new.fragments[: len(old.fragments) - 1]:
        raise Violation("FragmentsMonotone", f"{client} changes an older fragment")
    if starts[len(old.fragments) - 1] < old.last_fragment.first_entry:
        raise Violation("FragmentsMonotone", f"{client} writes a fragment that starts before the last")
    if new.state is LedgerState.IN_RECOVERY and new.fragments != old.fragments:
        raise Violation("FragmentsFrozenInRecovery", f"{client} writes fragments into a recovery")
    if edge == ("OPEN", "OPEN") and client != OWNER:
        raise Violation("MetaTransitions", f"{client} changes the fragments of an open ledger")
    if new.is_closed and client == OWNER and new.fragments != old.fragments:
        raise Violation("FragmentsMonotone", "W closes with other fragments than are stored")


def check_bookie_took(bookie: BookieNode, before: BookieNode, add: Add) -> None:
    """A bookie handled an add."""
    if before.fence_was_told and not add.is_recovery and len(bookie.entries) > len(before.entries):
        raise Violation("FenceDurable", f"{bookie.name} takes {add} after its fence was told")


def check_owner(owner: OwnerNode, before: OwnerNode) -> None:
    """The owner reacted."""
    core, old = owner.core, before.core
    if core.lac < old.lac or core.lafr < old.lafr:
        raise Violation("LacLocal", f"from LAC {old.lac}, LAFR {old.lafr} to {core.lac}, {core.lafr}")
    _check_queue(owner)


def check_recoverer(recoverer: RecovererNode, before: RecovererNode, reads: Sequence[Read]) -> None:
    """A recoverer reacted and sent ``reads``."""
    core = recoverer.core
    if core.phase in (Phase.READING, Phase.CLOSING) and before.core.phase is Phase.FENCING:
        for residue in range(core.replication.ensemble):
            outside = set(core.replication.write_set(residue)) - core.fenced
            if len(outside) >= core.replication.ack_quorum:
                raise Violation("FenceCoverage", f"{recoverer.name} reads; slots {outside} are not fenced")
    for read in reads:
        frozen = core.frozen
        for entry_id in range(read.ask.first, read.ask.last + 1, read.ask.stride):
            write_set = {frozen.ensemble[slot] for slot in core.replication.write_set(entry_id)}
            if read.bookie not in write_set or entry_id < frozen.first_entry:
                raise Violation("RecoveryTargets", f"{recoverer.name} asks {read.bookie} for e{entry_id}")
    _check_queue(recoverer)


def _check_queue(client: OwnerNode | RecovererNode) -> None:
    pending = client.core.pending if isinstance(client, OwnerNode) else client.pending
    if pending is not None:
        kept = [batch.first for batch in pending.batches]
        if kept != list(range(pending.settled + 1, pending.lap + 1)):
            raise Violation("QueueRule", f"{client.name} keeps {kept}, settled is {pending.settled}")


def check_pins(client: OwnerNode | RecovererNode, replacements: Replacements, full_pinning: bool) -> None:
    """A client is about to replace slots."""
    pending = client.core.pending
    replication = pending.replication
    if not replication.guaranteed:
        return
    leaving = {slot for slot, _ in replacements}
    for entry_id in range(pending.settled + 1, pending.lac + 1):
        confirmed = {
            slot.index
            for slot in pending.slots
            if entry_id in slot.confirmed and slot.index in replication.write_set(entry_id)
        }
        if full_pinning and isinstance(client, OwnerNode):
            holds = not confirmed & leaving
        else:
            holds = len(confirmed - leaving) >= replication.ack_quorum
        if not holds:
            raise Violation(
                "PinRespected", f"{client.name} replaces {leaving}, e{entry_id} is on {confirmed}"
            )


def check_acknowledged(
    replication: Replication, entry_id: int, members: Sequence[str], bookies: Mapping[str, BookieNode]
) -> None:
    """The owner acknowledges an entry; ``members`` sit in its ensemble and are not being replaced."""
    holders = [bookie for bookie in members if entry_id in bookies[bookie].durable_entries]
    if len(holders) < replication.ack_quorum:
        raise Violation("WriterAckCount", f"e{entry_id} is acked, of the ensemble only {holders} have it")


def check_whole(
    metadata: LedgerMetadata, owner: OwnerNode, bookies: Mapping[str, BookieNode], end: int
) -> None:
    """Every state. ``end`` is the lowest entry that a recoverer found missing for certain."""
    held = {name: node.durable_entries for name, node in bookies.items()}
    acked = owner.core.lac
    replication = metadata.replication
    promised = NO_ENTRY
    if replication.guaranteed:
        promised = max([owner.core.lafr, *(node.lafr for node in bookies.values())])
    last = NO_ENTRY if metadata.last_entry is None else metadata.last_entry
    through = max(acked, promised, last, metadata.last_fragment.first_entry - 1)
    copies = [
        sum(entry_id in held[bookie] for bookie in metadata.bookies_of(entry_id))
        for entry_id in range(through + 1)
    ]
    for name, entries in held.items():
        for entry_id, payload in entries.items():
            if payload != payload_of(entry_id):
                raise Violation("ContentAgree", f"{name} has {payload!r} as e{entry_id}")
    for entry_id in range(acked + 1):
        if copies[entry_id] < 1:
            raise Violation("AckedReadable", f"e{entry_id} is acked and on no bookie of its write set")
        if copies[entry_id] < replication.ack_quorum:
            raise Violation("AckedAtAckQuorum", f"e{entry_id} is acked, on {copies[entry_id]}")
    if acked >= end:
        raise Violation("NegativeReadFinal", f"e{end} was found missing, and e{acked} is acked")
    for name, node in bookies.items():
        if node.lac > acked:
            raise Violation("LacIsCommitted", f"{name} was told LAC {node.lac}, acked is {acked}")
    if metadata.is_closed:
        _check_closed(metadata, last, acked, copies, bookies)
    if replication.guaranteed:
        for entry_id in range(promised + 1):
            if copies[entry_id] < replication.write_quorum:
                raise Violation("LafrTruth", f"LAFR {promised} is told, e{entry_id} on {copies[entry_id]}")
        for entry_id in range(metadata.last_fragment.first_entry):
            if copies[entry_id] < replication.write_quorum:
                raise Violation("GwqTail", f"e{entry_id}, not in the last fragment, on {copies[entry_id]}")


def _check_closed(
    metadata: LedgerMetadata,
    last: int,
    acked: int,
    copies: Sequence[int],
    bookies: Mapping[str, BookieNode],
) -> None:
    replication = metadata.replication
    if acked > last:
        raise Violation("NoTruncation", f"e{acked} is acked, the ledger was closed at {last}")
    for name, node in bookies.items():
        if node.lac > last:
            raise Violation("LacWithinClosedLedger", f"{name} has LAC {node.lac}, the end is {last}")
    for entry_id in range(last + 1):
        if copies[entry_id] < replication.ack_quorum:
            raise Violation("ClosedAtAckQuorum", f"e{entry_id} is in the ledger, on {copies[entry_id]}")
    if replication.guaranteed:
        for entry_id in range(last + 1):
            if copies[entry_id] < replication.write_quorum:
                raise Violation("GwqClosed", f"e{entry_id} is in the ledger, on {copies[entry_id]}")
