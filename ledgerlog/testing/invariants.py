"""What must hold at every moment of a simulated cluster, seen from above (part C of the protocol's rules).

``GodView`` is told of every block that becomes durable on a bookie's disk, of every write of the metadata
store and of every acknowledgement, and raises ``Violation`` at the step that breaks a rule. It reads what the
bookies wrote from the bytes on their disks, so it does not share their idea of it.

On disks:
    ContentAgree        an entry has the same digest wherever it is stored
    FenceDurable        no ordinary add is stored behind a fence of its ledger, across restarts

On the metadata of ledgers:
    ConfigOK            what is stored decodes, which checks the rules within one version
    MetaTransitions     only the legal edges; FragmentsMonotone, FragmentsFrozenInRecovery, ClosedImmutable
    NoTruncation        no ledger ends below an acknowledged entry, nor is an entry acknowledged behind an end
    ClosedAtAckQuorum   every entry of a closed ledger is durable on its ack quorum (guaranteed mode:
                        GwqClosed, on all of its write quorum)

On the records of logs:
    ListCas             a write appends at most one ledger and removes only from the front; epochs never
    decrease OnlyLastTwoOpen     every ledger before the last two of a list is closed

At each acknowledgement:
    AckedAtAckQuorum    the entry is durable on an ack quorum of the write set that the metadata names
    LogAckedInList      its ledger is in the log's list
    AckOrder            (ledgers) a ledger's acknowledgements have no gap: all entries below are as durable

These hold as long as no disk loses what it synced. Runs with bit rot must leave the durability checks out.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

from bookie.core.block import BLOCK_HEADER_BYTES
from bookie.core.records import ADD, FENCE, decode_add, decode_fence, decode_records
from ledgerlog.model.layout import LEDGERS, ledger_id_of, ledger_path, log_record_path
from ledgerlog.model.ledger import LedgerMetadata, LedgerState
from ledgerlog.model.log import LogMetadata
from ledgerlog.wire.entries import decode_entries_untrusted
from ledgerlog.wire.frame import RECOVERY, Frame

__all__ = ["GodView", "Violation"]

_BLOCK = struct.Struct("<8sQQII")
_BLOCK_MAGIC = b"LLBLOCK1"
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
    """A rule of the protocol, or a promise to users, is broken."""


class GodView:
    """Pass ``on_durable`` and ``on_metadata`` to ``simulated_cluster``, and call ``on_ack``."""

    def __init__(self) -> None:
        self.checks: Counter[str] = Counter()
        """How often each rule was looked at."""
        self.edges: Counter[str] = Counter()
        """How often each edge of a ledger's life was taken."""
        self._value: Callable[[str], bytes | None] = lambda path: None
        self._holders: dict[tuple[int, int], dict[str, None]] = {}
        self._digests: dict[tuple[int, int], int] = {}
        self._fenced: dict[tuple[str, int], None] = {}
        self._blocks: dict[tuple[str, int, int], bytes] = {}
        self._acked: dict[int, int] = {}
        self._incarnations: dict[str, int] = {}

    def look_at(self, value: Callable[[str], bytes | None]) -> None:
        """Where the metadata store's values are read (``SimTree.value``)."""
        self._value = value

    # --- disks --------------------------------------------------------------------------------

    def on_durable(self, bookie: str, path: str, offset: int, data: bytes) -> None:
        """Bytes became durable on a bookie's disk."""
        if data[:8] != _BLOCK_MAGIC:
            return
        _, segment, sequence, _, content_bytes = _BLOCK.unpack_from(data)
        key = (bookie, segment, sequence)
        if self._blocks.get(key) == data:
            return  # Replay writes the last block again.
        self._blocks[key] = data
        image = memoryview(data)
        for record in decode_records(image, BLOCK_HEADER_BYTES, BLOCK_HEADER_BYTES + content_bytes, path):
            if record.kind == FENCE:
                self._fenced[bookie, decode_fence(record, path).ledger_id] = None
            elif record.kind == ADD:
                _, header = decode_add(record, segment=segment, sequence=sequence, path=path)
                self.checks["FenceDurable"] += 1
                if (bookie, header.ledger_id) in self._fenced and not header.flags & RECOVERY:
                    raise Violation(
                        f"FenceDurable: {bookie} stored entries {header.first}..{header.last} of ledger "
                        f"{header.ledger_id} behind its fence"
                    )
                entries = decode_entries_untrusted(Frame(header, record.body))
                for entry_id, digest in zip(entries.ids, entries.digests, strict=True):
                    self._on_entry(bookie, header.ledger_id, entry_id, digest)

    def _on_entry(self, bookie: str, ledger_id: int, entry_id: int, digest: int) -> None:
        key = (ledger_id, entry_id)
        self.checks["ContentAgree"] += 1
        if self._digests.setdefault(key, digest) != digest:
            raise Violation(f"ContentAgree: {bookie} stored another entry {entry_id} of ledger {ledger_id}")
        self._holders.setdefault(key, {})[bookie] = None

    def holders(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        """The bookies of the entry's write set on which it is durable."""
        held = self._holders.get((metadata.ledger_id, entry_id), {})
        return [bookie for bookie in metadata.bookies_of(entry_id) if bookie in held]

    # --- metadata -----------------------------------------------------------------------------

    def on_metadata(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """A node of the metadata store was written."""
        room, *components = path.split("/")
        if room == LEDGERS and after is not None:
            ledger_id = ledger_id_of(*components)
            new = LedgerMetadata.decode_untrusted(after, ledger_id)
            old = None if before is None else LedgerMetadata.decode_untrusted(before, ledger_id)
            self._on_ledger(old, new)
        elif room == _LOG_RECORDS and after is not None:
            incarnation = int(components[0], 16)
            record = LogMetadata.decode_untrusted(after, incarnation)
            self._incarnations[record.name] = incarnation
            if before is not None:
                self._on_log(LogMetadata.decode_untrusted(before, incarnation), record)

    def _on_ledger(self, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        ledger_id = new.ledger_id
        self.checks["MetaTransitions"] += 1

        def require(holds: bool, rule: str) -> None:
            if not holds:
                raise Violation(f"{rule}: ledger {ledger_id} went from {old} to {new}")

        if old is None:
            self.edges["none > OPEN"] += 1
            require(new.state is LedgerState.OPEN, "MetaTransitions")
            return
        self.edges[f"{old.state.value} > {new.state.value}"] += 1
        require((old.state, new.state) in _EDGES, "MetaTransitions")
        require(old.replication == new.replication and old.key == new.key, "MetaTransitions")
        if new.state is LedgerState.IN_RECOVERY:
            require(old.fragments == new.fragments, "FragmentsFrozenInRecovery")
        kept = len(old.fragments) - 1
        require(old.fragments[:kept] == new.fragments[:kept], "FragmentsMonotone")
        last = old.fragments[-1]
        require(
            new.fragments[kept].first_entry == last.first_entry or len(new.fragments) > kept + 1,
            "FragmentsMonotone",
        )
        require(new.fragments[kept].first_entry >= last.first_entry, "FragmentsMonotone")
        if new.last_entry is not None:
            require(new.last_entry >= self._acked.get(ledger_id, -1), "NoTruncation")
            replication = new.replication
            copies = replication.write_quorum if replication.guaranteed else replication.ack_quorum
            rule = "GwqClosed" if replication.guaranteed else "ClosedAtAckQuorum"
            for entry_id in range(new.last_entry + 1):
                self.checks[rule] += 1
                holders = self.holders(new, entry_id)
                if len(holders) < copies:
                    raise Violation(
                        f"{rule}: ledger {ledger_id} was closed at {new.last_entry}, and entry {entry_id} is "
                        f"durable on {holders} of {new.bookies_of(entry_id)}"
                    )

    def _on_log(self, old: LogMetadata, new: LogMetadata) -> None:
        self.checks["ListCas"] += 1
        before = [segment.ledger_id for segment in old.segments]
        after = [segment.ledger_id for segment in new.segments]
        kept = [ledger_id for ledger_id in before if ledger_id in after]
        added = after[len(kept) :]
        if after[: len(kept)] != kept or before[len(before) - len(kept) :] != kept or len(added) > 1:
            raise Violation(f"ListCas: the list of log {new.name} went from {before} to {after}")
        if new.epoch < old.epoch or new.epoch > old.epoch + 1:
            raise Violation(f"ListCas: the epoch of log {new.name} went from {old.epoch} to {new.epoch}")
        if added and added[0] in before:
            raise Violation(f"ListCas: log {new.name} lists ledger {added[0]} twice")
        for ledger_id in after[:-2]:
            self.checks["OnlyLastTwoOpen"] += 1
            value = self._value(ledger_path(ledger_id))
            if value is not None and not LedgerMetadata.decode_untrusted(value, ledger_id).is_closed:
                raise Violation(f"OnlyLastTwoOpen: log {new.name} lists {after}; {ledger_id} is open")

    # --- acknowledgements ---------------------------------------------------------------------

    def on_ack(self, ledger_id: int, entry_id: int, log: str | None = None) -> None:
        """Somebody was told that the entry is durable."""
        value = self._value(ledger_path(ledger_id))
        if value is None:
            raise Violation(f"entry {entry_id} was acknowledged; there is no ledger {ledger_id}")
        metadata = LedgerMetadata.decode_untrusted(value, ledger_id)
        if metadata.last_entry is not None and entry_id > metadata.last_entry:
            raise Violation(
                f"NoTruncation: entry {entry_id} of ledger {ledger_id} was acknowledged, and the ledger is "
                f"closed at {metadata.last_entry}"
            )
        known = self._acked.get(ledger_id, -1)
        for each in range(min(known + 1, entry_id), entry_id + 1):
            self.checks["AckedAtAckQuorum"] += 1
            holders = self.holders(metadata, each)
            if len(holders) < metadata.replication.ack_quorum:
                raise Violation(
                    f"AckedAtAckQuorum: entry {entry_id} of ledger {ledger_id} was acknowledged, and "
                    f"{each} is durable on {holders} of {metadata.bookies_of(each)}"
                )
        self._acked[ledger_id] = max(known, entry_id)
        if log is not None:
            self.checks["LogAckedInList"] += 1
            incarnation = self._incarnations[log]
            record = self._value(log_record_path(incarnation))
            assert record is not None
            listed = LogMetadata.decode_untrusted(record, incarnation)
            if listed.index_of(ledger_id) is None:
                raise Violation(f"LogAckedInList: a record was acknowledged in {ledger_id}, not listed")
