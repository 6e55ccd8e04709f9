"""Rules that must hold at every moment of a simulated cluster (part C of the protocol's rules).

``GodView`` sees every block that becomes durable on a bookie's disk, every write to the metadata store and
every acknowledgement. It raises ``Violation`` at the step that breaks a rule. It decodes the bytes on the
bookies' disks itself, so it does not share a bookie's mistake. ``wire_rules`` builds on this view and checks
the messages between processes.

On disks:
    ContentAgree        an entry has the same digest on every bookie that stores it
    FenceDurable        after the fence of a ledger, no ordinary add of it is stored, not even after a restart
    DeletedIsGone       a bookie deletes a ledger only if the metadata store has deleted it (rule 25), and
                        stores no entry of it afterwards (rule 4)

On the metadata of ledgers:
    ConfigOK            every stored record decodes; decoding checks the rules within one version
    MetaTransitions     only legal transitions; FragmentsMonotone, FragmentsFrozenInRecovery, ClosedImmutable
    UnknownKept         a process that rewrites a record keeps the keys that only another version knows
    OneOwner            only the creator of an open ledger changes or closes it
    NoTruncation        no ledger is closed below an acknowledged entry, and no entry after the end of a
                        closed ledger is acknowledged
    ClosedAtAckQuorum   every entry of a closed ledger is durable on its ack quorum (guaranteed mode:
                        GwqClosed, on its whole write quorum)
    GwqTail             (guaranteed mode) if a fragment follows another one, every entry of the earlier one is
                        durable on its whole write quorum
    RepairFilled        if another bookie gets a place in a fragment whose end is known, it has all entries of
                        that place durably
    PinRespected        no ensemble change takes an acknowledged entry below its ack quorum

On the records of logs:
    ListCas             a write appends at most one ledger, and removes ledgers only from the front; epochs
                        never decrease. A ledger behind another one may be removed if it has no records, or if
                        the archived file of the other one has them
    OnlyLastTwoOpen     every ledger before the last two of a list is closed
    TakeoverPrefixStable  when the epoch is raised, every ledger listed before is closed. ClosedImmutable and
                        ContentAgree make sure that none of them changes afterwards
    ListedKept          no ledger that a log lists is deleted, unless the record of an archived file has it
    SpareKept           if a log may still list a ledger, only the ledger's maker deletes it. Such a ledger
                        was made in the log's present epoch or for the next one, and was never listed

At each acknowledgement:
    AckedAtAckQuorum    the entry is durable on an ack quorum of the write set that the metadata names
    AckOrder            all entries below it are durable on their ack quorums too
    LogAckedInList      the entry's ledger is in the log's list: no leader serves before the list is written
    LogOrder            an acknowledgement in a ledger never comes after an acknowledgement in a ledger that
                        is listed later

An entry counts as durable if it was synced once, or if a bookie that syncs later claims to hold it
(``loss_rules``). The nemesis may damage a copy afterwards, within a budget (``nemesis``). The checks of the
readers show that a damaged copy is reported as damaged, and that the entry is read from another bookie.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn

from bookie.core.block import BLOCK_HEADER_BYTES
from bookie.core.gone_ledgers import MAGIC as GONE_MAGIC
from bookie.core.gone_ledgers import GoneLedgers
from bookie.core.journal_items import ADD, DELETE, FENCE, decode_delete, decode_fence, decode_records
from ledgerlog.log.registry import EPOCH_LABEL, INCARNATION_LABEL
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.layout import LEDGERS, archive_path, ledger_id_of, log_record_path
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.log import LogMetadata
from ledgerlog.testing import quorums
from ledgerlog.testing.metadata import SimTree
from ledgerlog.testing.process import Incarnation
from ledgerlog.wire.entries import decode_entries_untrusted
from ledgerlog.wire.frame import HEADER, RECOVERY, Frame, Header

__all__ = ["BLOCK_MAGIC", "GodView", "Violation"]

_BLOCK = struct.Struct("<8sQQII")
BLOCK_MAGIC = b"LLBLOCK1"
"""A block of a bookie's journal begins with these bytes."""
_LOG_RECORDS = log_record_path(0).partition("/")[0]

_EDGES = frozenset(
    {
        (LedgerState.OPEN, LedgerState.OPEN),
        (LedgerState.OPEN, LedgerState.IN_RECOVERY),
        (LedgerState.OPEN, LedgerState.CLOSED),
        (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    }
)


class Violation(AssertionError):
    """A rule of the protocol, or a promise to users, is broken. If the rule has a name, the message begins
    with it."""


def _gone_ledgers(data: bytes, path: str) -> GoneLedgers:
    """Decode a file of gone ledgers. Take the instance of its bookie from the file itself."""
    return GoneLedgers.decode_untrusted(data, path=path, instance=data[16:80].rstrip(b"\0").decode())


class GodView:
    """Checks the rules of this module during a run.

    Pass ``on_durable`` and ``on_metadata`` to ``simulated_cluster``. Call ``look_at`` once, and ``on_ack``
    for each acknowledgement.
    """

    def __init__(self) -> None:
        self.checks: Counter[str] = Counter()
        """How often each rule was checked."""
        self.edges: Counter[str] = Counter()
        """How often each transition of a ledger's state was seen."""
        self.violation: Violation | None = None
        """The first violation. Any other failure of the run is a consequence of it."""
        self.ledgers: dict[int, LedgerMetadata] = {}
        """The metadata of every existing ledger, as the store has it."""
        self.joined: dict[tuple[int, str], tuple[int, int]] = {}
        """For each ledger and bookie: how often the bookie got a place in the last fragment, and the first
        entry of that fragment, the last time."""
        self.frozen: dict[int, Fragment] = {}
        """For each ledger that was ever in recovery: its last fragment when recovery began."""
        self.creators: dict[int, Incarnation | None] = {}
        self.acked: dict[int, int] = {}
        """The highest acknowledged entry of each ledger."""
        self.acked_by_quorum: dict[int, int] = {}
        """The highest entry of each ledger that was acknowledged before the ledger was closed."""
        self.last_verdict: dict[int, int] = {}
        """For each ledger, the lowest entry that was proven absent: it was never acknowledged and never will
        be. ``wire_rules`` maintains it."""
        self.prove_close: Callable[[LedgerMetadata, Incarnation | None], None] = lambda closed, who: None
        """Called when a recoverer closes a ledger, to check that it may. ``wire_rules`` sets it."""
        self._tree = SimTree()
        self._holders: dict[tuple[int, int], dict[str, int]] = {}
        """For each entry, the bookies that hold it, each with the number of its first journal record that has
        the entry."""
        self._digests: dict[tuple[int, int], int] = {}
        self._fenced: dict[tuple[str, int], int] = {}
        """For each bookie and ledger, the number of the journal record that fenced it."""
        self._deleted: set[tuple[str, int]] = set()
        """For each bookie, the ledgers that it deleted."""
        self._gone: dict[str, GoneLedgers] = {}
        """The ledgers that a bookie refuses forever, although it may have no record of them."""
        self._records = 0
        self._blocks: dict[tuple[str, int, int], bytes] = {}
        self._logs: dict[int, LogMetadata] = {}
        self._once_listed: dict[int, None] = {}
        self._incarnations: dict[str, int] = {}
        self._log_acks: dict[int, tuple[int, float]] = {}

    def look_at(self, tree: SimTree) -> None:
        """Set the tree that has the metadata. It knows which process writes."""
        self._tree = tree

    def violate(self, rule: str, what: str) -> NoReturn:
        """Report that a rule is broken: raise Violation."""
        violation = Violation(f"{rule}: {what}")
        if self.violation is None:
            self.violation = violation
        raise violation

    # --- disks --------------------------------------------------------------------------------

    def on_durable(self, bookie: str, path: str, offset: int, data: bytes) -> None:
        """Bytes became durable on a bookie's disk."""
        if data[:8] == GONE_MAGIC:
            self._gone[bookie] = _gone_ledgers(data, path)
        if data[:8] != BLOCK_MAGIC:
            return
        _, segment, sequence, _, content_bytes = _BLOCK.unpack_from(data)
        key = (bookie, segment, sequence)
        if self._blocks.get(key) == data:
            return  # Replay writes the last block again.
        self._blocks[key] = data
        image = memoryview(data)
        for record in decode_records(image, BLOCK_HEADER_BYTES, BLOCK_HEADER_BYTES + content_bytes, path):
            self._records += 1
            if record.kind == FENCE:
                self._fenced.setdefault((bookie, decode_fence(record, path).ledger_id), self._records)
            elif record.kind == DELETE:  # The record also fences the ledger that it deletes (rule 4).
                for ledger_id in decode_delete(record, path):
                    self.checks["DeletedIsGone"] += 1
                    if ledger_id in self.ledgers:
                        self.violate(
                            "DeletedIsGone", f"{bookie} deletes ledger {ledger_id}, which the metadata has"
                        )
                    self._fenced.setdefault((bookie, ledger_id), self._records)
                    self._deleted.add((bookie, ledger_id))
            elif record.kind == ADD:
                header = Header._make(HEADER.unpack_from(record.body))
                if (bookie, header.ledger_id) in self._deleted:
                    self.violate(
                        "DeletedIsGone",
                        f"{bookie} stored entries {header.first}..{header.last} of ledger {header.ledger_id} "
                        "after it deleted the ledger",
                    )
                self.checks["FenceDurable"] += 1
                if self.is_fenced(bookie, header.ledger_id) and not header.flags & RECOVERY:
                    self.violate(
                        "FenceDurable",
                        f"{bookie} stored entries {header.first}..{header.last} of ledger "
                        f"{header.ledger_id} behind its fence",
                    )
                entries = decode_entries_untrusted(Frame(header, record.body))
                for entry_id, digest in zip(entries.ids, entries.digests, strict=True):
                    self.on_held(bookie, header.ledger_id, entry_id, digest)

    def on_held(self, bookie: str, ledger_id: int, entry_id: int, digest: int) -> None:
        """A bookie has an entry with this digest.

        Either the entry is durable there, or the bookie acknowledges entries before it syncs them
        (``loss_rules``).
        """
        key = (ledger_id, entry_id)
        self.checks["ContentAgree"] += 1
        if self._digests.setdefault(key, digest) != digest:
            self.violate("ContentAgree", f"{bookie} stored another entry {entry_id} of ledger {ledger_id}")
        self._holders.setdefault(key, {}).setdefault(bookie, self._records)

    def is_fenced(self, bookie: str, ledger_id: int) -> bool:
        """Whether a fence of the ledger is durable on the bookie, or the bookie knows durably that the ledger
        is gone."""
        return (bookie, ledger_id) in self._fenced or ledger_id in self._gone.get(bookie, ())

    def is_held(self, bookie: str, ledger_id: int, entry_id: int) -> bool:
        """Whether an entry is durable on a bookie."""
        return bookie in self._holders.get((ledger_id, entry_id), {})

    def held_on(self, bookie: str) -> dict[int, list[int]]:
        """The entries of existing ledgers that are durable on a bookie, by ledger. Entries after the end of a
        closed ledger do not count, because a bookie may forget them."""
        found: dict[int, list[int]] = {}
        for (ledger_id, entry_id), holders in self._holders.items():
            metadata = self.ledgers.get(ledger_id)
            if metadata is None or bookie not in holders:
                continue
            if metadata.last_entry is None or entry_id <= metadata.last_entry:
                found.setdefault(ledger_id, []).append(entry_id)
        return found

    def fenced_on(self, bookie: str) -> list[int]:
        """The existing ledgers whose fence is durable on a bookie."""
        return [ledger_id for at, ledger_id in self._fenced if at == bookie and ledger_id in self.ledgers]

    def was_held_at_its_fence(self, bookie: str, ledger_id: int, entry_id: int) -> bool:
        """Whether an entry was durable on a bookie before the ledger's fence was."""
        since = self._holders.get((ledger_id, entry_id), {}).get(bookie)
        return since is not None and since < self._fenced.get((bookie, ledger_id), 0)

    def digest_of(self, ledger_id: int, entry_id: int) -> int | None:
        """The digest of an entry that is durable on a bookie. None: the entry is durable on no bookie."""
        return self._digests.get((ledger_id, entry_id))

    def holders(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        """The bookies of the entry's write set on which it is durable."""
        held = self._holders.get((metadata.ledger_id, entry_id), {})
        return [bookie for bookie in quorums.bookies_of(metadata, entry_id) if bookie in held]

    def require_copies(
        self, rule: str, metadata: LedgerMetadata, entries: Iterable[int], copies: int, what: str
    ) -> None:
        """Raise Violation unless each entry is durable on at least ``copies`` bookies of its write set.

        Args:
            rule: The name of the rule, for the message.
            metadata: The ledger's metadata.
            entries: The entries to check.
            copies: How many copies each must have.
            what: The event, for the message: "was closed at 7".
        """
        for entry_id in entries:
            self.checks[rule] += 1
            holders = self.holders(metadata, entry_id)
            if len(holders) < copies:
                self.violate(
                    rule,
                    f"ledger {metadata.ledger_id} ({metadata.replication}) {what}, and entry {entry_id} is "
                    f"durable on {holders} of {quorums.bookies_of(metadata, entry_id)}",
                )

    # --- metadata -----------------------------------------------------------------------------

    def on_metadata(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """A node of the metadata store was written."""
        room, *components = path.split("/")
        if room == LEDGERS:
            ledger_id = ledger_id_of(*components)
            old = self.ledgers.pop(ledger_id, None)
            if after is not None:
                new = self.ledgers[ledger_id] = LedgerMetadata.decode_untrusted(after, ledger_id)
                self._note_joining(old, new)
                self._on_ledger(old, new)
            elif old is not None:
                self._on_deleted(old)
        elif room == _LOG_RECORDS:
            incarnation = int(components[0], 16)
            known = self._logs.pop(incarnation, None)
            if after is not None:
                record = self._logs[incarnation] = LogMetadata.decode_untrusted(after, incarnation)
                self._incarnations[record.name] = incarnation
                self._once_listed |= dict.fromkeys(segment.ledger_id for segment in record.segments)
                if known is not None:
                    self._on_log(known, record)

    def _note_joining(self, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        """Note each bookie that has a place in the last fragment, but had another place or none before."""
        members = new.last_fragment.ensemble
        before = [None] * len(members) if old is None else old.last_fragment.ensemble
        for bookie, earlier in zip(members, before, strict=True):
            if bookie != earlier:
                times, _ = self.joined.get((new.ledger_id, bookie), (0, 0))
                self.joined[new.ledger_id, bookie] = times + 1, new.last_fragment.first_entry

    def _on_ledger(self, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        ledger_id = new.ledger_id
        self.checks["MetaTransitions"] += 1

        def require(holds: bool, rule: str) -> None:
            if not holds:
                self.violate(rule, f"ledger {ledger_id} went from {old} to {new}")

        if old is None:
            self.edges["none > OPEN"] += 1
            self.creators[ledger_id] = self._tree.writer
            require(new.state is LedgerState.OPEN, "MetaTransitions")
            return
        self.edges[f"{old.state.value} > {new.state.value}"] += 1
        self._on_places(old, new)
        if old.state is LedgerState.CLOSED:
            # Repair may replace bookies in the fragments of a closed ledger. Nothing else may change.
            require(new.state is LedgerState.CLOSED and new.last_entry == old.last_entry, "ClosedImmutable")
            require(
                [fragment.first_entry for fragment in old.fragments]
                == [fragment.first_entry for fragment in new.fragments],
                "ClosedImmutable",
            )
        else:
            # Repair may also write to a ledger in recovery. A recoverer that joins writes nothing (D9).
            is_repaired = old.state is new.state and old.fragments != new.fragments
            require(is_repaired or (old.state, new.state) in _EDGES, "MetaTransitions")
            self._on_fragments(old, new)
        require(old.replication == new.replication and old.key == new.key, "MetaTransitions")
        if old.unknown:
            self.checks["UnknownKept"] += 1
            require(new.unknown == old.unknown, "UnknownKept")
        if new.state is LedgerState.IN_RECOVERY:
            require(old.last_fragment == new.last_fragment, "FragmentsFrozenInRecovery")
            self.frozen.setdefault(ledger_id, new.last_fragment)
        elif old.state is LedgerState.OPEN:
            self.checks["OneOwner"] += 1
            is_repair = new.state is LedgerState.OPEN and old.last_fragment == new.last_fragment
            require(is_repair or self._tree.writer is self.creators.get(ledger_id), "OneOwner")
        if new.last_entry is not None and old.last_entry is None:
            self._on_close(old.state, new)

    def _on_places(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Check the bookies that got places in fragments whose end was known before."""
        starts = [fragment.first_entry for fragment in old.fragments[1:]]
        ends = starts if old.last_entry is None else [*starts, old.last_entry + 1]
        for end, was, now in zip(ends, old.fragments, new.fragments, strict=False):
            if was.first_entry != now.first_entry or was.ensemble == now.ensemble:
                continue
            came = set(now.ensemble) - set(was.ensemble)
            for entry_id in range(now.first_entry, end):
                self.checks["RepairFilled"] += 1
                wanted = came.intersection(quorums.bookies_of(new, entry_id))
                if lacking := wanted.difference(self.holders(new, entry_id)):
                    self.violate(
                        "RepairFilled",
                        f"{sorted(lacking)} got a place in ledger {new.ledger_id} without entry {entry_id}",
                    )

    def _on_deleted(self, ledger: LedgerMetadata) -> None:
        made_for = ledger.custom.get(INCARNATION_LABEL)
        record = None if made_for is None else self._logs.get(int(made_for))
        if record is None:
            return  # It belongs to no log, or its log is deleted.
        ledger_id = ledger.ledger_id
        self.checks["ListedKept"] += 1
        is_archived = self._tree.value(archive_path(record.incarnation, ledger_id)) is not None
        if record.index_of(ledger_id) is not None and not is_archived:
            self.violate("ListedKept", f"ledger {ledger_id} is deleted, and log {record.name} lists it")
        epoch = int(ledger.custom.get(EPOCH_LABEL, b"-1"))
        if ledger_id not in self._once_listed and epoch >= record.epoch and not record.sealed:
            self.checks["SpareKept"] += 1
            if self._tree.writer is not self.creators.get(ledger_id):
                self.violate(
                    "SpareKept",
                    f"ledger {ledger_id} of epoch {epoch} is deleted, but not by its maker, and log "
                    f"{record.name} of epoch {record.epoch} may still list it",
                )

    def _on_fragments(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        kept = len(old.fragments) - 1
        last, first_changed = old.last_fragment, new.fragments[kept].first_entry
        starts = [fragment.first_entry for fragment in new.fragments[: kept + 1]]
        if (
            starts[:kept] != [fragment.first_entry for fragment in old.fragments[:kept]]
            or first_changed < last.first_entry
            or (first_changed > last.first_entry and len(new.fragments) == kept + 1)
        ):
            self.violate("FragmentsMonotone", f"ledger {new.ledger_id} went from {old} to {new}")
        replication = new.replication
        if old.fragments != new.fragments:
            known = self.acked.get(new.ledger_id, -1)
            self.require_copies(
                "PinRespected",
                new,
                range(last.first_entry, known + 1),
                replication.ack_quorum,
                "got another ensemble",
            )
        if replication.guaranteed and len(new.fragments) > len(old.fragments):
            self.require_copies(
                "GwqTail",
                new,
                range(last.first_entry, new.last_fragment.first_entry),
                replication.write_quorum,
                f"got a fragment from {new.last_fragment.first_entry} on",
            )

    def _on_close(self, old_state: LedgerState, new: LedgerMetadata) -> None:
        assert new.last_entry is not None
        known = self.acked.get(new.ledger_id, -1)
        self.checks["NoTruncation"] += 1
        if new.last_entry < known:
            self.violate(
                "NoTruncation",
                f"ledger {new.ledger_id} was closed at {new.last_entry}, and {known} is acknowledged",
            )
        replication = new.replication
        self.require_copies(
            "GwqClosed" if replication.guaranteed else "ClosedAtAckQuorum",
            new,
            range(new.last_entry + 1),
            replication.write_quorum if replication.guaranteed else replication.ack_quorum,
            f"was closed at {new.last_entry}",
        )
        if old_state is LedgerState.IN_RECOVERY:
            self.prove_close(new, self._tree.writer)

    def _on_log(self, old: LogMetadata, new: LogMetadata) -> None:
        self.checks["ListCas"] += 1
        before = self._without_merged(old, new)
        after = [segment.ledger_id for segment in new.segments]
        kept = [ledger_id for ledger_id in before if ledger_id in after]
        added = after[len(kept) :]
        if after[: len(kept)] != kept or before[len(before) - len(kept) :] != kept or len(added) > 1:
            self.violate("ListCas", f"the list of log {new.name} went from {before} to {after}")
        if new.epoch < old.epoch or new.epoch > old.epoch + 1:
            self.violate("ListCas", f"the epoch of log {new.name} went from {old.epoch} to {new.epoch}")
        if added and added[0] in before:
            self.violate("ListCas", f"log {new.name} lists ledger {added[0]} twice")
        rule, settled = "OnlyLastTwoOpen", after[:-2]
        if new.epoch > old.epoch:
            rule, settled = "TakeoverPrefixStable", kept
        for ledger_id in settled:
            self.checks[rule] += 1
            ledger = self.ledgers.get(ledger_id)
            if ledger is not None and not ledger.is_closed:
                self.violate(
                    rule, f"log {new.name} lists {after} in epoch {new.epoch}; {ledger_id} is not closed"
                )

    def _without_merged(self, old: LogMetadata, new: LogMetadata) -> list[int]:
        """Return the ledgers of the old list, without ledgers that a merge of archived files may remove."""
        remaining: list[int] = []
        for segment in old.segments:
            ledger_id = segment.ledger_id
            if remaining and new.index_of(remaining[-1]) is not None and new.index_of(ledger_id) is None:
                value = self._tree.value(archive_path(old.incarnation, remaining[-1]))
                file = None if value is None else ArchivedFile.decode_untrusted(value, old.incarnation)
                held = [] if file is None else [each.ledger_id for each in file.ledgers]
                if file is not None and (ledger_id in held or segment.record_count == 0):
                    continue
            remaining.append(ledger_id)
        return remaining

    # --- acknowledgements ---------------------------------------------------------------------

    def on_ack(self, ledger_id: int, entry_id: int, log: str | None = None, *, now: float = 0.0) -> None:
        """An entry is acknowledged.

        Args:
            ledger_id: Its ledger.
            entry_id: Its id.
            log: The name of the log, if a record of a log is acknowledged.
            now: The time. Only the rules of logs use it.
        """
        known = self.acked.get(ledger_id, -1)
        verdict = self.last_verdict.get(ledger_id)
        metadata = self.ledgers.get(ledger_id)
        # Another recoverer may have kept the entry. Then the entry's owner may learn that the entry is there.
        is_adopted = metadata is not None and metadata.is_closed
        if not is_adopted:
            self.acked_by_quorum[ledger_id] = max(self.acked_by_quorum.get(ledger_id, -1), entry_id)
            if verdict is not None and entry_id >= verdict:
                self.violate(
                    "NegativeReadFinal",
                    f"entry {entry_id} of ledger {ledger_id} is acknowledged, and bookies proved to a "
                    f"recoverer that {verdict} never is",
                )
        if metadata is None:
            # The ledger is deleted. Its writer notices that at its next metadata write.
            if ledger_id not in self.creators:
                self.violate("AckedAtAckQuorum", f"entry {entry_id} is acknowledged in no ledger {ledger_id}")
        else:
            if metadata.last_entry is not None and entry_id > metadata.last_entry:
                self.violate(
                    "NoTruncation",
                    f"entry {entry_id} of ledger {ledger_id} is acknowledged, and the ledger is closed at "
                    f"{metadata.last_entry}",
                )
            self.require_copies(
                "AckedAtAckQuorum",
                metadata,
                range(min(known + 1, entry_id), entry_id + 1),
                metadata.replication.ack_quorum,
                f"acknowledged entry {entry_id}",
            )
        self.acked[ledger_id] = max(known, entry_id)
        if log is not None:
            self._on_log_ack(log, ledger_id, now)

    def _on_log_ack(self, log: str, ledger_id: int, now: float) -> None:
        self.checks["LogAckedInList"] += 1
        incarnation = self._incarnations[log]
        record = self._logs.get(incarnation)
        index = None if record is None else record.index_of(ledger_id)
        if record is None or index is None:
            if ledger_id in self.ledgers:
                self.violate("LogAckedInList", f"a record is acknowledged in ledger {ledger_id}, not listed")
            return  # The ledger was truncated or deleted since.
        latest, then = self._log_acks.get(incarnation, (ledger_id, now))
        latest_index = record.index_of(latest)
        # Acknowledgements at the same moment may come in any order.
        self.checks["LogOrder"] += 1
        if latest_index is not None and index < latest_index and now > then:
            self.violate(
                "LogOrder",
                f"a record of log {log} is acknowledged in ledger {ledger_id} at {now:.6f}, and one in "
                f"{latest}, which is listed behind it, was at {then:.6f}",
            )
        if latest_index is None or index > latest_index:
            self._log_acks[incarnation] = (ledger_id, now)
