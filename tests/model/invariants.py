"""The invariants of part C of the protocol, for the checker.

Each is stated over what the bookies have durably, what the register holds and what the owner has
acknowledged, never over what a core believes, except where the invariant is about that. Those of one
component are checked when it reacts, those of the register when it is written, and those of the whole in
every state.

Two are added to part C. *FailedMeansAbsent*: an add that was sent and failed with an error other than one of
unknown outcome (A.7) is not in the ledger, then or ever. *MarksEndNobody*: a replacement that never took an
add, and refuses them for its fence mark, does not end the writer.

Where bookies lose their data, an entry counts as being on each of them: what is asked for is that nobody but
the loss takes copies. Where an operator accepted a loss, the ledger may end before entries that were
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ledgerlog.ledger.core.recovery import LOST_FROM, Phase
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from tests.model.bookie_node import BookieNode
from tests.model.client_nodes import OwnerNode, RecovererNode, Replacements, payload_of
from tests.model.messages import OWNER, REPAIR, Add, AddAnswer, Answer, Fence, Get, GetAnswer, Read

NEVER = 1 << 30


class Violation(AssertionError):
    """An invariant does not hold; ``name`` is the one of part C."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


def is_short(metadata: LedgerMetadata) -> bool:
    """Whether an accepted loss ended the ledger."""
    return LOST_FROM in metadata.custom


_EDGES = {("OPEN", "OPEN"), ("OPEN", "IN_RECOVERY"), ("OPEN", "CLOSED"), ("IN_RECOVERY", "CLOSED")}


def check_edge(old: LedgerMetadata, new: LedgerMetadata, client: str) -> Iterator[Violation]:
    """Every write of the register."""
    if client == REPAIR:
        yield from _check_repair(old, new)
        return
    edge = old.state.value, new.state.value
    if old.is_closed:
        yield Violation("ClosedImmutable", f"{client} writes {edge[1]} last={new.last_entry}")
    if old.state is LedgerState.IN_RECOVERY and not new.is_closed:
        yield Violation("FragmentsFrozenInRecovery", f"{client} writes while the ledger is in recovery")
    elif not old.is_closed and edge not in _EDGES:
        yield Violation("MetaTransitions", f"{client} writes {edge}")
    if (new.last_entry is not None) != new.is_closed:
        yield Violation("ConfigOK", "last_entry is set exactly when CLOSED")
    for fragment in new.fragments:
        if len(set(fragment.ensemble)) != new.replication.ensemble:
            yield Violation("ConfigOK", f"ensemble {fragment.ensemble}")
    starts = [fragment.first_entry for fragment in new.fragments]
    if starts != sorted(set(starts)) or starts[0] != 0:
        yield Violation("FragmentsMonotone", f"{client} writes fragments that start at {starts}")
    if old.fragments[:-1] != new.fragments[: len(old.fragments) - 1]:
        yield Violation("FragmentsMonotone", f"{client} changes an older fragment")
    elif starts[len(old.fragments) - 1] < old.last_fragment.first_entry:
        yield Violation("FragmentsMonotone", f"{client} writes a fragment that starts before the last")
    if new.state is LedgerState.IN_RECOVERY and new.fragments != old.fragments:
        yield Violation("FragmentsFrozenInRecovery", f"{client} writes other fragments into a recovery")
    if edge == ("OPEN", "OPEN") and client != OWNER:
        yield Violation("MetaTransitions", f"{client} changes the fragments of an open ledger")
    if new.is_closed and client == OWNER and new.fragments != old.fragments:
        yield Violation("FragmentsMonotone", "W closes with other fragments than are stored")


def _check_repair(old: LedgerMetadata, new: LedgerMetadata) -> Iterator[Violation]:
    """A write of repair replaces bookies in one fragment that takes no more entries, and changes nothing
    else."""
    if (old.state, old.last_entry) != (new.state, new.last_entry):
        yield Violation("MetaTransitions", f"repair writes {new.state.value} last={new.last_entry}")
    if [one.first_entry for one in old.fragments] != [one.first_entry for one in new.fragments]:
        yield Violation("FragmentsMonotone", "repair moves a fragment")
    pairs = list(zip(old.fragments, new.fragments, strict=False))
    changed = [index for index, (was, now) in enumerate(pairs) if was != now]
    if len(changed) > 1:
        yield Violation("RepairTouches", f"repair changes the fragments {changed}")
    if not old.is_closed and len(old.fragments) - 1 in changed:
        yield Violation("RepairTouches", "repair changes the last fragment of a ledger that is not closed")
    for fragment in new.fragments:
        if len(set(fragment.ensemble)) != new.replication.ensemble:
            yield Violation("ConfigOK", f"ensemble {fragment.ensemble}")


def check_bookie(
    bookie: BookieNode,
    before: BookieNode,
    request: Add | Fence | Read | Get | None,
    answers: Sequence[Answer],
) -> Iterator[Violation]:
    """A bookie handled a request, or synced."""
    is_ordinary = isinstance(request, Add) and not request.is_recovery
    if is_ordinary and before.fence_was_told and len(bookie.entries) > len(before.entries):
        yield Violation("FenceDurable", f"{bookie.name} takes {request} after its fence was told")
    if not bookie.is_fenced_durably and any(
        not isinstance(answer, AddAnswer | GetAnswer) for answer in answers
    ):
        yield Violation("FenceBeforeReply", f"{bookie.name} answers {request} and is not fenced durably")


def check_owner(owner: OwnerNode, before: OwnerNode) -> Iterator[Violation]:
    """The owner reacted."""
    core, old = owner.core, before.core
    if core.is_closed and not old.is_closed and core.close_at != core.metadata.last_entry:
        yield Violation("CloseAgree", f"W closed at {core.close_at}, not at {core.metadata.last_entry}")
    if core.lac < old.lac or core.lafr < old.lafr:
        yield Violation("LacLocal", f"from LAC {old.lac}, LAFR {old.lafr} to {core.lac}, {core.lafr}")
    yield from _check_queue(owner)


def check_ending(bookie: BookieNode) -> Iterator[Violation]:
    """The refusal of a replacement ended the owner, and nobody has begun to recover the ledger."""
    if not bookie.was_added_to:
        yield Violation("MarksEndNobody", f"{bookie.name}, which never took an add, ended the owner")


def check_loss(entry_id: int, write_set: Sequence[BookieNode]) -> Iterator[Violation]:
    """A ledger is going to end before an entry by an accepted loss."""
    for bookie in write_set:
        if entry_id in bookie.durable_entries:
            yield Violation("LossIsLost", f"e{entry_id} is given up, and {bookie.name} has it")


def check_recoverer(
    recoverer: RecovererNode, before: RecovererNode, reads: Sequence[Read]
) -> Iterator[Violation]:
    """A recoverer reacted and sent ``reads``."""
    core = recoverer.core
    if core.phase in (Phase.READING, Phase.CLOSING) and before.core.phase is Phase.FENCING:
        for residue in range(core.replication.ensemble):
            outside = set(core.replication.write_set(residue)) - core.fenced
            if len(outside) >= core.replication.ack_quorum:
                yield Violation("FenceCoverage", f"{recoverer.name} reads; slots {outside} are not fenced")
    for read in reads:
        frozen = core.frozen
        for entry_id in range(read.ask.first, read.ask.last + 1, read.ask.stride):
            write_set = {frozen.ensemble[slot] for slot in core.replication.write_set(entry_id)}
            if read.bookie not in write_set or entry_id < frozen.first_entry:
                yield Violation("RecoveryTargets", f"{recoverer.name} asks {read.bookie} for e{entry_id}")
    yield from _check_queue(recoverer)


def _check_queue(client: OwnerNode | RecovererNode) -> Iterator[Violation]:
    pending = client.core.pending if isinstance(client, OwnerNode) else client.pending
    if pending is not None:
        kept = [e for batch in pending.batches for e in range(batch.first, batch.last + 1)]
        first = pending.batches[0].first if kept else pending.lap + 1
        is_exact = kept == list(range(first, pending.lap + 1)) and first <= pending.settled + 1
        # A settled batch is kept only if a replacement must get it.
        is_lean = pending._carried or all(batch.last > pending.settled for batch in pending.batches)
        if not is_exact or not is_lean:
            yield Violation("QueueRule", f"{client.name} keeps {kept}, settled is {pending.settled}")


def check_pins(
    client: OwnerNode | RecovererNode, replacements: Replacements, full_pinning: bool
) -> Iterator[Violation]:
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
            yield Violation(
                "PinRespected", f"{client.name} replaces {leaving}, e{entry_id} is on {confirmed}"
            )


def check_acknowledged(
    replication: Replication, entry_id: int, members: Sequence[str], bookies: Mapping[str, BookieNode]
) -> Iterator[Violation]:
    """The owner acknowledges an entry; ``members`` sit in its ensemble and are not being replaced."""
    holders = [bookie for bookie in members if bookies[bookie].has_or_lost(entry_id)]
    if len(holders) < replication.ack_quorum:
        yield Violation("WriterAckCount", f"e{entry_id} is acked, of the ensemble only {holders} have it")


def check_whole(
    metadata: LedgerMetadata,
    owner: OwnerNode,
    bookies: Mapping[str, BookieNode],
    end: int,
    *,
    is_repaired: bool = False,
) -> Iterator[Violation]:
    """Every state. ``end`` is the lowest entry that a recoverer found missing for certain. Where
    ``is_repaired``, bookies may have been told the end of the ledger (rule 23)."""
    held = {name: node.durable_entries for name, node in bookies.items()}
    acked = owner.core.lac
    replication = metadata.replication
    promised = NO_ENTRY
    if replication.guaranteed:
        promised = max([owner.core.lafr, *(node.lafr for node in bookies.values())])
    last = NO_ENTRY if metadata.last_entry is None else metadata.last_entry
    through = max(acked, promised, last, metadata.last_fragment.first_entry - 1)
    copies = [
        sum(bookies[bookie].has_or_lost(entry_id) for bookie in metadata.bookies_of(entry_id))
        for entry_id in range(through + 1)
    ]
    kept = min(acked, last) if is_short(metadata) else acked
    for name, entries in held.items():
        for entry_id, payload in entries.items():
            if payload != payload_of(entry_id):
                yield Violation("ContentAgree", f"{name} has {payload!r} as e{entry_id}")
    losers = sum(node.in_limbo for node in bookies.values())
    for entry_id in range(kept + 1):
        if losers < replication.ack_quorum and not any(
            entry_id in held[bookie] for bookie in metadata.bookies_of(entry_id)
        ):
            yield Violation("AckedReadable", f"e{entry_id} is acked and on no bookie of its write set")
        if copies[entry_id] < replication.ack_quorum:
            yield Violation("AckedAtAckQuorum", f"e{entry_id} is acked, on {copies[entry_id]}")
    if acked >= end:
        yield Violation("NegativeReadFinal", f"e{end} was found missing, and e{acked} is acked")
    committed = max(acked, last) if is_repaired else acked
    for name, node in bookies.items():
        if node.lac > committed:
            yield Violation("LacIsCommitted", f"{name} was told LAC {node.lac}, acked is {acked}")
    if owner.denies and not (metadata.is_closed and last <= acked):
        yield Violation("FailedMeansAbsent", f"W failed adds above e{acked} for certain, the end is {last}")
    if metadata.is_closed:
        yield from _check_closed(metadata, last, acked, copies, bookies)
    if replication.guaranteed:
        for entry_id in range(promised + 1):
            if copies[entry_id] < replication.write_quorum:
                yield Violation("LafrTruth", f"LAFR {promised} is told, e{entry_id} on {copies[entry_id]}")
        for entry_id in range(metadata.last_fragment.first_entry):
            if copies[entry_id] < replication.write_quorum:
                yield Violation("GwqTail", f"e{entry_id}, not in the last fragment, on {copies[entry_id]}")


def _check_closed(
    metadata: LedgerMetadata,
    last: int,
    acked: int,
    copies: Sequence[int],
    bookies: Mapping[str, BookieNode],
) -> Iterator[Violation]:
    replication = metadata.replication
    if acked > last and not is_short(metadata):
        yield Violation("NoTruncation", f"e{acked} is acked, the ledger was closed at {last}")
    for name, node in bookies.items():
        if node.lac > last and not is_short(metadata):
            yield Violation("LacWithinClosedLedger", f"{name} has LAC {node.lac}, the end is {last}")
    for entry_id in range(last + 1):
        if copies[entry_id] < replication.ack_quorum:
            yield Violation("ClosedAtAckQuorum", f"e{entry_id} is in the ledger, on {copies[entry_id]}")
    if replication.guaranteed:
        for entry_id in range(last + 1):
            if copies[entry_id] < replication.write_quorum:
                yield Violation("GwqClosed", f"e{entry_id} is in the ledger, on {copies[entry_id]}")
