"""The next step to try, for each fault that a person at a terminal can meet.

The exception says what happened; this table has half a line of advice for it. The first class that matches
wins, so subclasses come before their bases. docs/OPERATIONS.md says more about each fault.
"""

from __future__ import annotations

import re

from ledgerlog import errors
from ledgerlog.cli.processes import ChildFailed
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["complaint", "os_complaint"]

_NEXT_STEPS: tuple[tuple[type[errors.LedgerLogError], str], ...] = (
    (errors.RecordTooLarge, "split the record, or store the data elsewhere and append a reference to it"),
    (errors.InvalidArgument, "see the command's --help"),
    (
        errors.MetadataOutcomeUnknown,
        "check whether it was done ('log show', 'ledger show') before you try again",
    ),
    (errors.WrongCluster, "check which store the URI leads to now, and put the right one back"),
    (
        errors.MetadataUnavailable,
        "check that the cluster URI is right and that the metadata store is running",
    ),
    (errors.ClusterNotFound, "'ledgerlog cluster run PATH' starts a whole new cluster on this machine"),
    (errors.SessionExpired, "try again"),
    (errors.LedgerNotFound, "'ledgerlog ledger list' shows those that exist"),
    (errors.LedgerFenced, "another writer owns it now; read from it, or write to a new ledger"),
    (
        errors.WriteQuorumUnavailable,
        "bring the missing bookies back ('ledgerlog bookie list'), then recover it",
    ),
    (
        errors.BookieReadOnly,
        "'ledgerlog bookie list' shows them; make room on their disks, or start more bookies",
    ),
    (errors.Unauthenticated, "correct what the message names, then try again"),
    (
        errors.NotEnoughBookies,
        "'ledgerlog bookie list' shows which bookies serve; start more bookies, then try again",
    ),
    (errors.EntryNotFound, "'ledgerlog ledger show ID' shows the last entry"),
    (
        errors.EntryUnavailable,
        "try again; if its bookies are away ('ledgerlog ledger show ID' names them), bring them back",
    ),
    (errors.EntryCorrupt, "'ledgerlog ledger verify ID' looks for intact copies"),
    (errors.RecoveryFailed, "bring more of its bookies back ('ledgerlog bookie list'), then try again"),
    (
        errors.LogNotFound,
        "'ledgerlog log list' shows those that exist, 'ledgerlog log create NAME' makes one",
    ),
    (errors.LogExists, "append to it, or choose another name"),
    (errors.LogSealed, "it is complete; append to another log"),
    (
        errors.LostLeadership,
        "another writer took over; run the command again only if you want it to take over from that writer",
    ),
    (errors.AppendUnknown, "read the end of the log to see whether the record is there"),
    (errors.RecordsLost, "start reading after the lost records"),
    (errors.Truncated, "start reading at the first offset that is left, or at 'earliest'"),
    # ArchiveUnavailable is not here: what to do depends on the cause, so its message says it.
    (
        errors.ArchiveCorrupt,
        "if a file is damaged, restore it from a copy; 'ledgerlog ledger verify ID' reads it again",
    ),
    (errors.CursorConflict, "read the cursor again"),
    (errors.BookieUnavailable, "'ledgerlog bookie list' shows which bookies serve"),
    (errors.Unauthorized, "it is not this client's ledger"),
    (errors.StorageLocked, "stop that process, or use a cluster that processes share (sqlite:PATH)"),
    (errors.CookieMismatch, "see 'bookie cookie --help' before you delete anything"),
    (errors.StorageCorrupt, "keep the files; 'bookie repair' salvages a bookie's directory"),
    (errors.DiskFull, "free space on the disk"),
    (
        errors.IncompatibleVersion,
        "use a newer ledgerlog, at least the one that wrote it; nothing was changed",
    ),
    (
        MetadataCorrupt,
        "the metadata store holds a record that this program cannot read: 'ledgerlog metadata restore' "
        "restores the store from a backup",
    ),
    (ChildFailed, "if it wrote a log file, look there"),
)


def complaint(error: BaseException) -> str:
    """Return one line: what happened, and what to try."""
    what = re.sub(r"\s+", " ", str(error)).strip().rstrip(".") or type(error).__name__
    if isinstance(error, errors.StorageCorrupt) and error.advice:
        return f"{what} ({error.advice})"
    for kind, next_step in _NEXT_STEPS:
        if isinstance(error, kind):
            return f"{what} ({next_step})"
    return what


def os_complaint(error: OSError) -> str:
    """Return one line: the file, if it is known, and the operating system's reason."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
