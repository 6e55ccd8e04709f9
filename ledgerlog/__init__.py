"""A replicated, durable log for Python services, built on ledgers and on trio.

    async with ledgerlog.connect("file:./data") as cluster:
        log = await cluster.create_log("orders", exist_ok=True)
        async with log.writer() as writer:
            await writer.append(b"first")
        async with log.read(start=0) as records:
            async for record in records:
                print(record.offset, record.data)

The names in ``__all__`` are public. Everything else may change without notice.

A name is imported when you first use it. So a bookie does not load the client, and a command loads only the
modules that it needs. Importing all of them takes longer than most commands need for their work.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ledgerlog.errors import (
    AppendUnknown,
    ArchiveCorrupt,
    ArchiveSupportMissing,
    ArchiveUnavailable,
    BookieReadOnly,
    BookieUnavailable,
    ClusterNotFound,
    CommandFailed,
    ConnectionClosed,
    CookieMismatch,
    CursorConflict,
    DiskFull,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    IncompatibleVersion,
    InvalidArgument,
    LedgerClosed,
    LedgerExists,
    LedgerFenced,
    LedgerLogError,
    LedgerNotFound,
    LogExists,
    LogListFull,
    LogNotFound,
    LogSealed,
    LossUndecided,
    LostLeadership,
    MetadataCorrupt,
    MetadataError,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NotEnoughBookies,
    NotEnoughRacks,
    NotLeader,
    OffsetMismatch,
    OutOfSequence,
    PermissionDenied,
    PropertiesConflict,
    RecordsLost,
    RecordTooLarge,
    RecoveryFailed,
    ReplicaStopped,
    RequestExpired,
    SessionExpired,
    StorageCorrupt,
    StorageError,
    StorageLocked,
    TooManyProducers,
    Truncated,
    TruncationPinned,
    Unauthenticated,
    Unauthorized,
    WireError,
    WriteQuorumUnavailable,
    WrongCluster,
    WrongProcess,
)

if TYPE_CHECKING:
    from ledgerlog.cluster import Cluster, connect
    from ledgerlog.election.election import Election, Leader, Term
    from ledgerlog.ledger.accepted_loss import AcceptedLoss
    from ledgerlog.ledger.ledgers import Ledgers
    from ledgerlog.ledger.reader import LedgerReader
    from ledgerlog.ledger.verify import LedgerVerification
    from ledgerlog.ledger.writer import LedgerWriter
    from ledgerlog.log.campaign import Campaign
    from ledgerlog.log.cursors import Cursor
    from ledgerlog.log.log import Log, LogInfo
    from ledgerlog.log.reader import LogReader
    from ledgerlog.log.sweep import Orphan
    from ledgerlog.log.writer import LogWriter, Submission, WriterStatistics
    from ledgerlog.machine.directory import DirectorySnapshots
    from ledgerlog.machine.events import EventKind, ReplicaEvent
    from ledgerlog.machine.machine import StateMachine
    from ledgerlog.machine.replica import Replica, ReplicaStatistics
    from ledgerlog.machine.snapshots import LedgerSnapshots, SnapshotInfo, SnapshotStore
    from ledgerlog.metrics.families import MetricSample
    from ledgerlog.model.command import Command
    from ledgerlog.model.credentials import TLS
    from ledgerlog.model.cursor import CursorState
    from ledgerlog.model.ids import Position
    from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
    from ledgerlog.model.policies import RetentionPolicy, RollPolicy
    from ledgerlog.model.producer import Dedupe
    from ledgerlog.model.quorum import Replication
    from ledgerlog.model.record import Ack, Record, RecordBatch
    from ledgerlog.model.segments import Gap, LogSegment

__version__ = "0.2.0.dev0"

__all__ = [
    # connecting
    "Cluster",
    "MetricSample",
    "TLS",
    "connect",
    # elections
    "Election",
    "Leader",
    "Term",
    # logs
    "Ack",
    "Campaign",
    "Cursor",
    "CursorState",
    "Dedupe",
    "Gap",
    "Log",
    "LogInfo",
    "LogReader",
    "LogSegment",
    "LogWriter",
    "Orphan",
    "Position",
    "Record",
    "RecordBatch",
    "Replication",
    "RetentionPolicy",
    "RollPolicy",
    "Submission",
    "WriterStatistics",
    # state machines
    "Command",
    "DirectorySnapshots",
    "EventKind",
    "LedgerSnapshots",
    "Replica",
    "ReplicaEvent",
    "ReplicaStatistics",
    "SnapshotInfo",
    "SnapshotStore",
    "StateMachine",
    # ledgers
    "AcceptedLoss",
    "Fragment",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerVerification",
    "LedgerWriter",
    "Ledgers",
    # errors
    "AppendUnknown",
    "BookieReadOnly",
    "BookieUnavailable",
    "ClusterNotFound",
    "CommandFailed",
    "ConnectionClosed",
    "CookieMismatch",
    "CursorConflict",
    "DiskFull",
    "EntryCorrupt",
    "EntryNotFound",
    "EntryUnavailable",
    "IncompatibleVersion",
    "InvalidArgument",
    "LedgerClosed",
    "LedgerExists",
    "LedgerFenced",
    "LedgerLogError",
    "LedgerNotFound",
    "LogExists",
    "LogListFull",
    "LogNotFound",
    "LogSealed",
    "LossUndecided",
    "LostLeadership",
    "MetadataCorrupt",
    "MetadataError",
    "MetadataOutcomeUnknown",
    "MetadataUnavailable",
    "NotEnoughBookies",
    "NotEnoughRacks",
    "NotLeader",
    "OffsetMismatch",
    "OutOfSequence",
    "PermissionDenied",
    "PropertiesConflict",
    "RecordTooLarge",
    "RecordsLost",
    "RecoveryFailed",
    "ReplicaStopped",
    "RequestExpired",
    "SessionExpired",
    "StorageCorrupt",
    "StorageError",
    "StorageLocked",
    "TooManyProducers",
    "Truncated",
    "TruncationPinned",
    "ArchiveUnavailable",
    "ArchiveCorrupt",
    "ArchiveSupportMissing",
    "Unauthenticated",
    "Unauthorized",
    "WireError",
    "WriteQuorumUnavailable",
    "WrongCluster",
    "WrongProcess",
]

_HOMES = {
    "ledgerlog.cluster": ("Cluster", "connect"),
    "ledgerlog.election.election": ("Election", "Leader", "Term"),
    "ledgerlog.ledger.accepted_loss": ("AcceptedLoss",),
    "ledgerlog.ledger.ledgers": ("Ledgers",),
    "ledgerlog.ledger.reader": ("LedgerReader",),
    "ledgerlog.ledger.verify": ("LedgerVerification",),
    "ledgerlog.ledger.writer": ("LedgerWriter",),
    "ledgerlog.log.campaign": ("Campaign",),
    "ledgerlog.log.cursors": ("Cursor",),
    "ledgerlog.log.log": ("Log", "LogInfo"),
    "ledgerlog.log.reader": ("LogReader",),
    "ledgerlog.log.sweep": ("Orphan",),
    "ledgerlog.log.writer": ("LogWriter", "Submission", "WriterStatistics"),
    "ledgerlog.machine.directory": ("DirectorySnapshots",),
    "ledgerlog.machine.events": ("EventKind", "ReplicaEvent"),
    "ledgerlog.machine.machine": ("StateMachine",),
    "ledgerlog.machine.replica": ("Replica", "ReplicaStatistics"),
    "ledgerlog.machine.snapshots": ("LedgerSnapshots", "SnapshotInfo", "SnapshotStore"),
    "ledgerlog.metrics.families": ("MetricSample",),
    "ledgerlog.model.command": ("Command",),
    "ledgerlog.model.credentials": ("TLS",),
    "ledgerlog.model.cursor": ("CursorState",),
    "ledgerlog.model.ids": ("Position",),
    "ledgerlog.model.ledger": ("Fragment", "LedgerMetadata", "LedgerState"),
    "ledgerlog.model.policies": ("RetentionPolicy", "RollPolicy"),
    "ledgerlog.model.producer": ("Dedupe",),
    "ledgerlog.model.quorum": ("Replication",),
    "ledgerlog.model.record": ("Ack", "Record", "RecordBatch"),
    "ledgerlog.model.segments": ("Gap", "LogSegment"),
}
"""The module of each name that is imported at its first use. A test compares it with the imports above."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
