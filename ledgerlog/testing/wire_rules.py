"""Rules for the messages between processes (part C of the protocol's rules), checked frame by frame.

``WireView`` reads the bytes on the wire. So it has the same facts as each process, and draws its own
conclusions. For example, if a recoverer concludes that an entry does not exist, ``WireView`` counts the
answers that the recoverer got, and checks that they prove the conclusion. ``WireView`` asks the ``GodView``
about the disks and the metadata.

For bookies:
    AckDurable          a bookie acknowledges an add only when its entries are durable there
    FenceBeforeReply    a bookie confirms a fence, or answers a recovery read, only after its fence is durable
    ServedIsDurable     a bookie gives out an entry only if it is durable there
    ServedIsIntact      a bookie gives an entry out only with the bytes that were written, and reports damage
    HeldIsNotDenied     a bookie never denies an entry (never says that it lacks the entry) if the entry was
                        durable there when the bookie was asked, damaged or not (rule 8)
    FencedReadComplete  a bookie's answer to a recovery read denies no entry that was durable there before the
                        fence (R-B1)
    LacIsCommitted      a bookie never tells a LAC that the ledger's owner never told
    LacWithinClosedLedger   a bookie never tells a LAC after the ledger's end

For owners:
    OneOwner            only a ledger's creator sends ordinary adds to it
    LacIsCommitted      if the owner tells a LAC, all entries up to it are durable on their ack quorum
    LafrTruth           if the owner tells a LAFR, all entries up to it are durable on their whole write
                        quorum
    AddsWithoutGap      from the fragment in which a bookie joined, the owner sends it all pending entries of
                        its write sets in order (queue rule 3); it may send any of them again

For recoverers:
    RecoveryAnnounced   a ledger is fenced only after the metadata says that it is in recovery
    FenceCoverage       reading begins when the confirmed fences cover the last ensemble (A.0, T26)
    RecoveryTargets     a recoverer asks for an entry only at bookies whose slots in the frozen ensemble hold
                        the entry, and asks for no entry before the frozen fragment
    FrozenLac           write-backs tell no LAC and no LAFR that the owner did not tell (T25, T31, T32). All
                        other recovery adds are copies by repair, of entries that can no longer change. These
                        tell no LAC after the last entry that is certainly committed, and no LAFR (rules 20
                        and 23)
    CloseProven         a recoverer closes a ledger at an entry only if a negative quorum of the next entry's
                        write set denied the next entry. Time-outs, bookies in limbo and bookies outside of
                        the write set do not count (T02, T03, T04, T10)

For all processes together:
    NegativeReadFinal   if a negative quorum denied an entry to any process, neither that entry nor a later
                        entry was or will be acknowledged
    ReadWithinLac       readers ask for no entry after the last entry that they can know to be confirmed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import attrs

from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.quorum import Replication
from ledgerlog.testing import quorums
from ledgerlog.testing.invariants import GodView
from ledgerlog.testing.loss_rules import LossRules
from ledgerlog.testing.process import Incarnation
from ledgerlog.testing.wiretap import TappedConnection
from ledgerlog.wire.entries import decode_entries_untrusted
from ledgerlog.wire.frame import RECOVERY, REPLY, Frame, Header, Kind, Status

__all__ = ["WireView"]

_ANSWERS = frozenset((Status.OK.value, Status.NO_SUCH_ENTRY.value, Status.NO_SUCH_LEDGER.value))
"""The statuses of a READ reply that deny every entry that is not in the reply."""


class _Talk:
    """The open requests of one connection."""

    __slots__ = ("adds", "adds_done", "adds_refused", "adds_sent", "asked", "contents", "held")

    def __init__(self) -> None:
        self.adds: dict[int, Header] = {}
        self.adds_sent = 0
        self.adds_done = 0
        self.adds_refused: dict[int, None] = {}
        self.asked: dict[int, Header] = {}
        self.contents: dict[int, list[tuple[int, int]]] = {}
        """For adds to bookies that do not sync them: the ids and digests of their entries."""
        self.held: dict[int, list[int]] = {}
        """For each read, the requested entries that the bookie held when it was asked."""


@attrs.frozen
class _Answer:
    """A bookie's answer to a recovery read."""

    bookie: str
    slot: int
    first: int
    through: int
    stride: int
    found: dict[int, None]

    def denies(self, entry_id: int, replication: Replication) -> bool:
        return (
            self.first <= entry_id <= self.through
            and not (entry_id - self.first) % self.stride
            and entry_id not in self.found
            and quorums.holds(replication, self.slot, entry_id)
        )


class _Recoverer:
    """The facts that one process knows about a ledger that it recovers."""

    __slots__ = ("answers", "fenced")

    def __init__(self) -> None:
        self.fenced: dict[str, None] = {}
        self.answers: list[_Answer] = []

    def absent(self, entry_id: int, replication: Replication) -> list[str]:
        """Return the bookies of the entry's write set that denied the entry to this process."""
        return list(
            dict.fromkeys(answer.bookie for answer in self.answers if answer.denies(entry_id, replication))
        )


class WireView:
    """Checks the rules of this module: an ``Observer`` for ``simulated_cluster``."""

    def __init__(self, god: GodView) -> None:
        self._god = god
        self._talks: defaultdict[int, _Talk] = defaultdict(_Talk)
        self._recoverers: defaultdict[tuple[Incarnation, int], _Recoverer] = defaultdict(_Recoverer)
        self._told: defaultdict[int, list[int]] = defaultdict(lambda: [NO_ENTRY, NO_ENTRY])
        """For each ledger, the highest LAC and LAFR that its owner ever told."""
        self._copied: dict[int, int] = {}
        """For each ledger, the highest LAC that repair told: a bookie may have learned it from repair."""
        self._pushed: dict[int, int] = {}
        """For each ledger, the highest entry that any process sent."""
        self._next_add: dict[tuple[int, str], tuple[tuple[int, int], int]] = {}
        """For each ledger and bookie, when it was last sent an add: how it had joined (``GodView.joined``),
        and the entry after the last one sent to it."""
        self._on_fence: dict[str, Callable[[], None]] = {}
        self.answers: dict[str, int] = {}
        """How many READ replies had each status."""
        self.loss = LossRules(god)
        god.prove_close = self.prove_close

    def call_at_next_fence(self, bookie: str, call: Callable[[], None]) -> None:
        """Call ``call`` once, right after the bookie next confirms a fence. The nemesis uses it."""
        self._on_fence[bookie] = call

    def forget_calls(self) -> None:
        """Forget every function of ``call_at_next_fence`` that was not called yet."""
        self._on_fence.clear()

    # --- frames -------------------------------------------------------------------------------

    def on_sent(self, conversation: TappedConnection, frame: Frame, *, is_reply: bool) -> None:
        header = frame.header
        if not is_reply:
            self._on_request(conversation, header)
            if header.kind == Kind.ADD and self.loss.may_lose(conversation.server.process):
                talk, entries = self._talks[conversation.number], decode_entries_untrusted(frame)
                talk.contents[talk.adds_sent] = list(zip(entries.ids, entries.digests, strict=True))
        elif header.kind == Kind.ADD | REPLY:
            self._on_adds_done(conversation, header.request)
        elif header.kind == Kind.REFUSED or header.kind == Kind.REFUSED | REPLY:
            self._talks[conversation.number].adds_refused[header.request] = None
        elif header.kind == Kind.FENCE | REPLY and header.status == Status.OK:
            self._require_fence(conversation, header.ledger_id, "confirms a fence")
            self._on_told(conversation, header)
            self._on_fence.pop(conversation.server.process, _nothing)()
        elif header.kind == Kind.READ | REPLY:
            self._on_read_answered(conversation, frame)
        elif header.kind == Kind.READ_LAC | REPLY:
            self._on_told(conversation, header)

    def on_received(self, conversation: TappedConnection, frame: Frame, *, is_reply: bool) -> None:
        header = frame.header
        if not is_reply:
            return
        if header.kind == Kind.FENCE | REPLY:
            self._talks[conversation.number].asked.pop(header.request, None)
            if header.status == Status.OK:
                recoverer = self._recoverers[conversation.client, header.ledger_id]
                recoverer.fenced[conversation.server.process] = None
        elif header.kind == Kind.READ | REPLY:
            asked = self._talks[conversation.number].asked.pop(header.request, None)
            if asked is not None and asked.flags & RECOVERY:
                self._on_recovery_answer(conversation, asked, frame)

    # --- requests -----------------------------------------------------------------------------

    def _on_request(self, conversation: TappedConnection, header: Header) -> None:
        if header.kind == Kind.ADD:
            talk = self._talks[conversation.number]
            talk.adds_sent += 1
            talk.adds[talk.adds_sent] = header
            self._on_add(conversation, header)
        elif header.kind == Kind.FENCE:
            self._talks[conversation.number].asked[header.request] = header
            self._on_announced(conversation, header.ledger_id)
        elif header.kind == Kind.READ:
            self._talks[conversation.number].asked[header.request] = header
            self._note_held(conversation, header)
            if header.flags & RECOVERY:
                self._on_recovery_read(conversation, header)
            else:
                self._on_ordinary_read(conversation, header)

    def _on_add(self, conversation: TappedConnection, header: Header) -> None:
        god, ledger_id = self._god, header.ledger_id
        told = self._told[ledger_id]
        who = conversation.client.process
        self._pushed[ledger_id] = max(self._pushed.get(ledger_id, NO_ENTRY), header.last)
        if header.flags & RECOVERY:
            god.checks["FrozenLac"] += 1
            frozen = god.frozen.get(ledger_id)
            floor = NO_ENTRY if frozen is None else frozen.first_entry - 1
            if header.lac > max(told[0], floor) or header.lafr > max(told[1], floor):
                if self._is_copy(header):
                    self._copied[ledger_id] = max(self._copied.get(ledger_id, NO_ENTRY), header.lac)
                    return
                god.violate(
                    "FrozenLac",
                    f"{who} writes entry {header.first} of ledger {ledger_id} back with LAC {header.lac} and "
                    f"LAFR {header.lafr}; the owner told {told}, and recovery starts behind {floor}",
                )
            return
        god.checks["OneOwner"] += 1
        if god.creators.get(ledger_id) is not conversation.client:
            god.violate("OneOwner", f"{who} adds to ledger {ledger_id}, which it did not create")
        if header.entry_count:
            self._require_no_gap(conversation.server.process, header)
        if header.lac > told[0] or header.lafr > told[1]:
            self._on_progress(header, told)

    def _require_no_gap(self, bookie: str, header: Header) -> None:
        """Require that an owner sends a bookie the next entries, or repeats earlier entries."""
        god, metadata = self._god, self._god.ledgers.get(header.ledger_id)
        if metadata is None or bookie not in metadata.last_fragment.ensemble:
            return  # The ledger is deleted. Or the bookie was replaced; adds under way do no harm.
        replication, slot = metadata.replication, metadata.last_fragment.ensemble.index(bookie)
        key = (header.ledger_id, bookie)
        # Repair may give the bookie a place in earlier fragments, too, and copies their entries, or take such
        # a place away (seed 300824 of the simulator). That changes nothing here.
        joined = god.joined[key]
        before, following = self._next_add.get(key, ((0, 0), 0))
        if joined != before:
            following = joined[1]
        god.checks["AddsWithoutGap"] += 1
        # If entries were settled while a bookie was away, the owner does not send them to it.
        enough = replication.write_quorum if replication.guaranteed else replication.ack_quorum
        left_out = [
            entry_id
            for entry_id in range(following, header.first)
            if quorums.holds(replication, slot, entry_id) and len(god.holders(metadata, entry_id)) < enough
        ]
        if left_out:
            god.violate(
                "AddsWithoutGap",
                f"{bookie} joined ledger {header.ledger_id} ({replication}) at entry {joined[1]} and is sent "
                f"entry {header.first}, and never was {left_out}",
            )
        self._next_add[key] = (joined, max(following, header.last + 1))

    def _is_copy(self, header: Header) -> bool:
        """Whether repair may make this recovery add: its entry belongs to a closed part of the ledger.

        The ledger is closed, or the entry is before the last fragment. The certainly committed part of a
        ledger only grows, so repair may act on older metadata.
        """
        metadata = self._god.ledgers.get(header.ledger_id)
        if metadata is None:
            return True  # The ledger was deleted during the copy.
        committed = self._committed(header.ledger_id, NO_ENTRY)
        return max(header.last, header.lac) <= committed and header.lafr == NO_ENTRY

    def _committed(self, ledger_id: int, deleted: int) -> int:
        """Return the last entry that is certainly committed by the metadata.

        If the ledger is deleted, return ``deleted``.
        """
        metadata = self._god.ledgers.get(ledger_id)
        if metadata is None:
            return deleted
        return metadata.surely_committed

    def _on_progress(self, header: Header, told: list[int]) -> None:
        god, metadata = self._god, self._god.ledgers.get(header.ledger_id)
        before, told[0], told[1] = list(told), max(told[0], header.lac), max(told[1], header.lafr)
        if metadata is None:
            return  # The ledger is deleted.
        replication = metadata.replication
        god.require_copies(
            "LacIsCommitted",
            metadata,
            range(before[0] + 1, told[0] + 1),
            replication.ack_quorum,
            f"has an owner that tells the LAC {header.lac}",
        )
        god.require_copies(
            "LafrTruth",
            metadata,
            range(before[1] + 1, told[1] + 1),
            replication.write_quorum,
            f"has an owner that tells the LAFR {header.lafr}",
        )

    def _on_announced(self, conversation: TappedConnection, ledger_id: int) -> None:
        self._god.checks["RecoveryAnnounced"] += 1
        metadata = self._god.ledgers.get(ledger_id)
        if metadata is not None and metadata.state is LedgerState.OPEN:
            self._god.violate(
                "RecoveryAnnounced", f"{conversation.client.process} fences ledger {ledger_id}, which is open"
            )

    def _on_recovery_read(self, conversation: TappedConnection, header: Header) -> None:
        god, ledger_id = self._god, header.ledger_id
        self._on_announced(conversation, ledger_id)
        shape = self._shape(ledger_id)
        if shape is None:
            return
        frozen, replication = shape
        who, bookie = conversation.client.process, conversation.server.process
        fenced = self._recoverers[conversation.client, ledger_id].fenced
        god.checks["FenceCoverage"] += 1
        if not quorums.covers(
            replication, [slot for slot, each in enumerate(frozen.ensemble) if each in fenced]
        ):
            god.violate(
                "FenceCoverage",
                f"{who} begins to read ledger {ledger_id} ({replication}, {frozen}) when {list(fenced)} have "
                "confirmed the fence",
            )
        god.checks["RecoveryTargets"] += 1
        last = min(header.last, header.first + replication.ensemble - 1)
        stride = header.entry_count
        is_member = bookie in frozen.ensemble
        if (
            not is_member
            or header.first < frozen.first_entry
            or any(
                not quorums.holds(replication, frozen.ensemble.index(bookie), entry_id)
                for entry_id in range(header.first, last + 1, stride)
            )
        ):
            god.violate(
                "RecoveryTargets",
                f"{who} asks {bookie} for entries {header.first}.. by {stride} of ledger {ledger_id} "
                f"({replication}, {frozen})",
            )

    def _note_held(self, conversation: TappedConnection, header: Header) -> None:
        bookie = conversation.server.process
        if self.loss.may_lack(bookie, header.ledger_id):
            return  # ``loss_rules`` checks such denials.
        last = min(header.last, self._pushed.get(header.ledger_id, NO_ENTRY))
        held = [
            entry_id
            for entry_id in range(header.first, last + 1, header.entry_count)
            if self._god.is_held(bookie, header.ledger_id, entry_id)
        ]
        if held:
            self._talks[conversation.number].held[header.request] = held

    def _require_not_denied(self, conversation: TappedConnection, asked: Header, frame: Frame) -> None:
        """Require that the answer has every requested entry that the bookie held when it was asked.

        The end of a closed ledger never changes. Entries after the end do not belong to the ledger, and a
        bookie may have forgotten them (``bookie.server.corruption``). No recovery depends on them.
        """
        god, header, bookie = self._god, frame.header, conversation.server.process
        held = self._talks[conversation.number].held.pop(asked.request, [])
        if header.status not in _ANSWERS or header.ledger_id not in god.ledgers:
            return
        if self.loss.may_lack(bookie, header.ledger_id):
            return
        found = dict.fromkeys(decode_entries_untrusted(frame).ids)
        through = min(asked.last, header.argument, self._pushed.get(header.ledger_id, NO_ENTRY))
        end = god.ledgers[header.ledger_id].last_entry
        if end is not None:
            through = min(through, end)
        god.checks["HeldIsNotDenied"] += len(held)
        for entry_id in held:
            if entry_id <= through and entry_id not in found:
                god.violate(
                    "HeldIsNotDenied",
                    f"{bookie} denies entry {entry_id} of ledger {header.ledger_id}, which was durable there",
                )
        if not asked.flags & RECOVERY:
            return
        for entry_id in range(asked.first, through + 1, asked.entry_count):
            god.checks["FencedReadComplete"] += 1
            if entry_id not in found and god.was_held_at_its_fence(bookie, header.ledger_id, entry_id):
                god.violate(
                    "FencedReadComplete",
                    f"{bookie} denies entry {entry_id} of ledger {header.ledger_id} to a recoverer, and it "
                    "was durable there before the fence",
                )

    def _on_ordinary_read(self, conversation: TappedConnection, header: Header) -> None:
        god, metadata = self._god, self._god.ledgers.get(header.ledger_id)
        if metadata is None:
            return
        god.checks["ReadWithinLac"] += 1
        last = metadata.last_entry
        known = max(self._told[header.ledger_id][0], metadata.last_fragment.first_entry - 1)
        if header.first > (known if last is None else last):
            god.violate(
                "ReadWithinLac",
                f"{conversation.client.process} reads entry {header.first} of ledger {header.ledger_id}; "
                f"its last entry is {last}, and {known} is the last that is told to be confirmed",
            )

    def _check_held(self, rule: str, what: str, bookie: str, ledger_id: int, entry_id: int) -> None:
        self._god.checks[rule] += 1
        if not self._god.is_held(bookie, ledger_id, entry_id):
            self._god.violate(
                rule, f"{what} entry {entry_id} of ledger {ledger_id}, which is not durable there"
            )

    # --- answers ------------------------------------------------------------------------------

    def _on_adds_done(self, conversation: TappedConnection, through: int) -> None:
        bookie = conversation.server.process
        talk = self._talks[conversation.number]
        for number in range(talk.adds_done + 1, through + 1):
            header, content = talk.adds.pop(number), talk.contents.pop(number, None)
            if number in talk.adds_refused or not header.entry_count:
                continue
            if content is not None:
                self.loss.on_acknowledged(bookie, header, content)
                continue
            # The entries between them are in the same record, so they are durable too.
            for entry_id in dict.fromkeys((header.first, header.last)):
                self._check_held("AckDurable", f"{bookie} acknowledges", bookie, header.ledger_id, entry_id)
        talk.adds_done = max(talk.adds_done, through)

    def _require_fence(self, conversation: TappedConnection, ledger_id: int, what: str) -> None:
        self._god.checks["FenceBeforeReply"] += 1
        bookie = conversation.server.process
        if not self._god.is_fenced(bookie, ledger_id):
            self._god.violate(
                "FenceBeforeReply", f"{bookie} {what} of ledger {ledger_id} with no durable fence there"
            )

    def _on_told(self, conversation: TappedConnection, header: Header) -> None:
        god, bookie = self._god, conversation.server.process
        god.checks["LacIsCommitted"] += 1
        metadata = god.ledgers.get(header.ledger_id)
        frozen = god.frozen.get(header.ledger_id)
        floor = NO_ENTRY if frozen is None else frozen.first_entry - 1
        told = max(self._told[header.ledger_id][0], self._copied.get(header.ledger_id, NO_ENTRY), floor)
        if self.loss.may_lose(bookie):
            # A bookie in limbo copies entries itself, so it learns a LAC that no process sends to it.
            told = max(told, self._committed(header.ledger_id, header.lac))
        if header.lac > told:
            god.violate(
                "LacIsCommitted",
                f"{bookie} tells the LAC {header.lac} of ledger {header.ledger_id}; {told} is the highest "
                "that it can have been told",
            )
        if metadata is not None and metadata.last_entry is not None:
            god.checks["LacWithinClosedLedger"] += 1
            if header.lac > metadata.last_entry:
                god.violate(
                    "LacWithinClosedLedger",
                    f"{bookie} tells the LAC {header.lac} of ledger {header.ledger_id}, which ends at "
                    f"{metadata.last_entry}",
                )

    def _on_read_answered(self, conversation: TappedConnection, frame: Frame) -> None:
        god, header, bookie = self._god, frame.header, conversation.server.process
        name = Status(header.status).name
        self.answers[name] = self.answers.get(name, 0) + 1
        asked = self._talks[conversation.number].asked.get(header.request)
        if asked is not None and asked.flags & RECOVERY and header.argument >= asked.first:
            self._require_fence(conversation, header.ledger_id, "answers a recovery read")
        self._on_told(conversation, header)
        if asked is not None:
            self._require_not_denied(conversation, asked, frame)
        may_lose = self.loss.may_lose(bookie)
        if may_lose and header.status == Status.UNKNOWN:
            god.checks["LimboNoNegative"] += 1
        if may_lose and asked is not None and header.status in _ANSWERS:
            through = min(asked.last, header.argument)
            self.loss.on_answer(
                bookie,
                header.ledger_id,
                range(asked.first, through + 1, asked.entry_count),
                dict.fromkeys(decode_entries_untrusted(frame).ids),
                self._pushed.get(header.ledger_id, NO_ENTRY),
            )
        if not header.entry_count:
            return
        entries = decode_entries_untrusted(frame)
        for entry_id, digest in zip(entries.ids, entries.digests, strict=True):
            if may_lose:
                god.on_held(bookie, header.ledger_id, entry_id, digest)
                continue
            self._check_held("ServedIsDurable", f"{bookie} gives out", bookie, header.ledger_id, entry_id)
            if god.digest_of(header.ledger_id, entry_id) != digest:
                god.violate(
                    "ServedIsIntact",
                    f"{bookie} gives out another entry {entry_id} of ledger {header.ledger_id} than was "
                    "written",
                )
        god.checks["ServedIsIntact"] += 1
        damaged = entries.first_damaged()
        if damaged is not None:
            god.violate(
                "ServedIsIntact",
                f"{bookie} gives out entry {damaged} of ledger {header.ledger_id} with bytes that do not "
                "match its digest",
            )

    # --- the facts that a recoverer has -------------------------------------------------------

    def _shape(self, ledger_id: int) -> tuple[Fragment, Replication] | None:
        """Return the last fragment as it was when recovery began, and the ledger's quorums.

        Return None if the ledger is deleted or was never in recovery.
        """
        metadata, frozen = self._god.ledgers.get(ledger_id), self._god.frozen.get(ledger_id)
        if metadata is None or frozen is None:
            return None
        return frozen, metadata.replication

    def _on_recovery_answer(self, conversation: TappedConnection, asked: Header, frame: Frame) -> None:
        header = frame.header
        shape = self._shape(header.ledger_id)
        if header.status not in _ANSWERS or shape is None:
            return
        frozen, replication = shape
        bookie = conversation.server.process
        if bookie not in frozen.ensemble:
            return
        recoverer = self._recoverers[conversation.client, header.ledger_id]
        found = dict.fromkeys(decode_entries_untrusted(frame).ids)
        through = min(asked.last, header.argument)
        slot = frozen.ensemble.index(bookie)
        recoverer.answers.append(_Answer(bookie, slot, asked.first, through, asked.entry_count, found))
        # After the last entry that was ever sent, one entry for each write set stands for all later entries.
        beyond = max(self._pushed.get(header.ledger_id, NO_ENTRY), asked.first) + asked.entry_count
        for entry_id in range(asked.first, min(through, beyond) + 1, asked.entry_count):
            if entry_id not in found:
                absent = recoverer.absent(entry_id, replication)
                if len(absent) >= quorums.negatives_needed(replication):
                    self._on_verdict(conversation, header.ledger_id, entry_id)
                    break

    def _on_verdict(self, conversation: TappedConnection, ledger_id: int, entry_id: int) -> None:
        god = self._god
        god.checks["NegativeReadFinal"] += 1
        known = god.acked_by_quorum.get(ledger_id, NO_ENTRY)
        if known >= entry_id:
            god.violate(
                "NegativeReadFinal",
                f"{conversation.client.process} has proof that entry {entry_id} of ledger {ledger_id} was "
                f"never acknowledged, and {known} is",
            )
        god.last_verdict[ledger_id] = min(entry_id, god.last_verdict.get(ledger_id, entry_id))

    def prove_close(self, closed: LedgerMetadata, who: Incarnation | None) -> None:
        """Require that a recoverer that closes a ledger has proof of its end."""
        god = self._god
        assert closed.last_entry is not None
        if who is None:
            return
        god.checks["CloseProven"] += 1
        absent = self._recoverers[who, closed.ledger_id].absent(closed.last_entry + 1, closed.replication)
        if len(absent) < quorums.negatives_needed(closed.replication):
            god.violate(
                "CloseProven",
                f"{who.process} closes ledger {closed.ledger_id} ({closed.replication}) at "
                f"{closed.last_entry}, and only {absent} told it that there is no entry "
                f"{closed.last_entry + 1}",
            )


def _nothing() -> None:
    pass
