"""The exception tree: every operating fault that a caller can meet, under one base.

An exception here describes something that *can happen to correct code* (a machine died, a peer
fenced us, a file is damaged, an argument is out of range). A broken invariant of our own code is an
AssertionError and is not caught anywhere.

Two distinctions run through the tree and are never blurred:

* **definite or unknown.** ``AppendUnknown`` (and ``LedgerFenced`` for an entry that was outstanding) says
  that a record may or may not survive; ``MetadataOutcomeUnknown`` says that an operation on metadata may
  or may not have happened. Everything else says that what was asked for did not happen and will not.
  Neither kind is a subclass of the other: ``except MetadataUnavailable`` never catches an operation that
  happened, and ``except MetadataError`` catches both. Steps on the way may stay, and calling again takes
  them again: a number that was passed over, an empty ledger that no log lists, an older leader's ledger
  that was closed.
* **absent or unavailable.** ``EntryNotFound`` is a fact about the ledger; ``EntryUnavailable`` says
  that nobody who could know has answered; ``EntryCorrupt`` that an answer came and was damaged.

Foreign exceptions (OSError, sqlite3.Error, kazoo's, plyvel's) are translated once, in the module
that owns the capability, with the original as ``__cause__``.

Every exception can be pickled and copied: text, attributes and notes are the same afterwards. The base class
does that for all, whatever their constructors take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledgerlog.redact import redact

__all__ = [
    "LedgerLogError",
    "InvalidArgument",
    "NotLeader",
    "ReplicaStopped",
    "CommandFailed",
    "RequestExpired",
    "ConnectionClosed",
    "WrongProcess",
    "MetadataError",
    "MetadataUnavailable",
    "MetadataOutcomeUnknown",
    "MetadataCorrupt",
    "WrongCluster",
    "ClusterNotFound",
    "SessionExpired",
    "LedgerNotFound",
    "LedgerExists",
    "LedgerClosed",
    "LedgerFenced",
    "NotEnoughBookies",
    "WriteQuorumUnavailable",
    "EntryNotFound",
    "EntryUnavailable",
    "EntryCorrupt",
    "RecoveryFailed",
    "LogNotFound",
    "LogExists",
    "LogSealed",
    "LogListFull",
    "LostLeadership",
    "AppendUnknown",
    "Truncated",
    "RecordsLost",
    "LossUndecided",
    "OffsetMismatch",
    "OutOfSequence",
    "TooManyProducers",
    "RecordTooLarge",
    "CursorConflict",
    "PropertiesConflict",
    "TruncationPinned",
    "ArchiveUnavailable",
    "ArchiveCorrupt",
    "ArchiveSupportMissing",
    "BookieUnavailable",
    "BookieReadOnly",
    "Unauthorized",
    "WireError",
    "StorageError",
    "StorageLocked",
    "CookieMismatch",
    "StorageCorrupt",
    "DiskFull",
]


class LedgerLogError(Exception):
    """The base of every fault that ledgerlog and bookie report. Its text holds no password of a URI."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in args))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]:
        # BaseException's own calls the constructor with ``args``, which hold the text alone: Truncated(text)
        # lacks an argument, and what fails to unpickle breaks a whole process pool.
        return _remade, (type(self), self.args), vars(self) or None


def _remade(kind: type[LedgerLogError], args: tuple[Any, ...]) -> LedgerLogError:
    """An exception without its constructor; its attributes are set next, by who unpickles or copies."""
    return kind.__new__(kind, *args)


class InvalidArgument(LedgerLogError, ValueError):
    """An argument, option or configuration value is out of its documented range."""


class ConnectionClosed(LedgerLogError):
    """What was used is closed, or was left: connect, or enter, anew. Nothing was done."""


class WrongProcess(LedgerLogError):
    """A forked child used what its parent had connected; connections and threads do not survive a fork."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"this connection belongs to process {pid}, from which this one was forked: connect here anew"
        )
        self.pid = pid


# --- metadata ---------------------------------------------------------------------------------


class MetadataError(LedgerLogError):
    """The metadata store failed an operation: MetadataUnavailable (it did not happen) or
    MetadataOutcomeUnknown (it may have happened). Never raised itself."""


class MetadataUnavailable(MetadataError):
    """The metadata store could not be reached or did not answer; the operation did not happen."""


class MetadataOutcomeUnknown(MetadataError):
    """The answer to a metadata write was lost, and reading could not settle it: the operation may have
    happened or not, and may happen yet.

    Only a fresh read can tell (protocol A.2 rule 14). What can be settled by reading is settled before this
    is raised."""


class MetadataCorrupt(LedgerLogError):
    """A record in the metadata store does not decode; the message names the record and the field."""


class WrongCluster(MetadataUnavailable):
    """What answers as the metadata store is not that of the cluster that this process belongs to: it was
    emptied or exchanged, or its address leads elsewhere. The operation did not happen.

    Nothing is read, written or deleted until the right store is back; then calls succeed again, without a
    restart."""


class ClusterNotFound(LedgerLogError):
    """There is no cluster where the URI points to, and nobody asked to make one.

    A mistyped path or chroot looks so. ``connect(uri, create=True)`` and ``ledgerlog metadata init`` make a
    cluster."""


class SessionExpired(LedgerLogError):
    """The metadata session is over; everything ephemeral that it owned is gone."""


# --- ledgers ----------------------------------------------------------------------------------


class LedgerNotFound(LedgerLogError):
    """No ledger has this id."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} does not exist")
        self.ledger_id = ledger_id


class LedgerExists(LedgerLogError):
    """A ledger has this id already."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} exists already")
        self.ledger_id = ledger_id


class LedgerClosed(LedgerLogError):
    """The ledger is closed; ``last_entry`` is its last entry where that is known (-1: it is empty)."""

    def __init__(self, ledger_id: int, last_entry: int | None = None, why: str = "") -> None:
        end = "" if last_entry is None else f" at entry {last_entry}"
        super().__init__(f"ledger {ledger_id} is closed{end}{': ' + why if why else ''}")
        self.ledger_id = ledger_id
        self.last_entry = last_entry


class LedgerFenced(LedgerLogError):
    """Somebody fenced the ledger: this writer can never acknowledge again.

    An entry that was outstanding may or may not survive: recovery decides (treat as a time-out)."""

    def __init__(self, ledger_id: int, why: str = "") -> None:
        super().__init__(f"ledger {ledger_id} is fenced{': ' + why if why else ''}")
        self.ledger_id = ledger_id


class NotEnoughBookies(LedgerLogError):
    """Too few bookies are writable to form an ensemble or to reach the ack quorum in time."""


class WriteQuorumUnavailable(NotEnoughBookies):
    """A guaranteed-write-quorum ledger cannot bring every entry to its write quorum now.

    The ledger is left OPEN; recovery closes it once enough bookies are back."""


class EntryNotFound(LedgerLogError):
    """The entry does not exist in the ledger (a fact, not a failure to find out)."""

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        super().__init__(f"ledger {ledger_id} has no entry {entry_id}{': ' + why if why else ''}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryUnavailable(LedgerLogError):
    """Nobody who could know has answered for the entry; it may well exist. Retrying can help."""

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        super().__init__(
            f"entry {entry_id} of ledger {ledger_id} is unavailable now{': ' + why if why else ''}"
        )
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryCorrupt(LedgerLogError):
    """Every copy of the entry that answered fails its digest."""

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} is corrupt{': ' + why if why else ''}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class RecoveryFailed(LedgerLogError):
    """A ledger's end could not be established now; its metadata is unchanged but for IN_RECOVERY.

    Retryable: fencing was incomplete, a read verdict stayed unknown, or no bookie could take a
    write-back."""

    def __init__(self, ledger_id: int, why: str) -> None:
        super().__init__(f"ledger {ledger_id} could not be recovered: {why}")
        self.ledger_id = ledger_id


# --- logs -------------------------------------------------------------------------------------


class LogNotFound(LedgerLogError):
    """No log has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no log named {name!r}")
        self.name = name


class LogExists(LedgerLogError):
    """A log has this name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a log named {name!r} exists already")
        self.name = name


class LogSealed(LedgerLogError):
    """The log is sealed: it is complete and takes no more records."""

    def __init__(self, name: str) -> None:
        super().__init__(f"log {name!r} is sealed")
        self.name = name


class LogListFull(LedgerLogError):
    """The log's list of ledgers is as long as one metadata record can be; nothing was written.

    Truncate the log, or let retention drop what is old."""

    def __init__(self, name: str, segments: int) -> None:
        super().__init__(f"log {name!r}: its list of {segments} ledgers is full; truncate the log first")
        self.name = name


class LostLeadership(LedgerLogError):
    """Another writer took the log over; ``epoch`` is the newest epoch known (None: not known yet).

    Nothing more can be appended through this writer."""

    def __init__(self, name: str, epoch: int | None = None, why: str = "") -> None:
        newer = "" if epoch is None else f" (the log is at epoch {epoch})"
        super().__init__(f"log {name!r}: leadership lost{newer}{': ' + why if why else ''}")
        self.name = name
        self.epoch = epoch


class AppendUnknown(LedgerLogError):
    """The append was sent and its outcome cannot be known here: the record may or may not survive."""


class Truncated(LedgerLogError):
    """The asked offset has been truncated away; ``first_offset`` is the first that is readable."""

    def __init__(self, name: str, first_offset: int) -> None:
        super().__init__(f"log {name!r} is truncated: its first offset is {first_offset}")
        self.name = name
        self.first_offset = first_offset


class RecordsLost(Truncated):
    """Reading came to a gap: the records from ``lost_from`` to below ``first_offset`` were lost with bookies,
    and an operator accepted that (``Log.recover``). Raised once for each gap; the same reader goes on behind
    it, at ``first_offset``."""

    def __init__(self, name: str, lost_from: int, first_offset: int) -> None:
        LedgerLogError.__init__(
            self,
            f"log {name!r}: the records from offset {lost_from} to {first_offset - 1} were lost with "
            f"bookies; the log goes on at offset {first_offset}",
        )
        self.name = name
        self.lost_from = lost_from
        self.first_offset = first_offset


class LossUndecided(LedgerLogError):
    """Records of the log would be dropped because of a loss that was accepted for one ledger; nothing was
    changed.

    Ledger ``short_ledger`` was ended at offset ``lost_from`` by an accepted loss while ``kept_ledger`` was
    open behind it, which holds the records from ``first_offset`` to below ``end_offset``; they may have been
    acknowledged. ``Log.recover(accept_loss=True)``, or ``ledgerlog log recover NAME --accept-loss``, keeps
    them where they are, behind a gap."""

    def __init__(
        self,
        name: str,
        short_ledger: int,
        kept_ledger: int,
        lost_from: int,
        first_offset: int,
        end_offset: int,
    ) -> None:
        kept = (
            f"the {end_offset - first_offset} records from {first_offset} to {end_offset - 1} would be "
            "dropped with them. To keep these behind a gap"
            if end_offset > first_offset
            else "their offsets would be given out again. To keep them as a gap"
        )
        super().__init__(
            f"log {name!r}: ledger {short_ledger} was ended at offset {lost_from} by an accepted loss, and "
            f"ledger {kept_ledger} behind it goes on at offset {first_offset}: the records {lost_from} to "
            f"{first_offset - 1} are lost, and {kept} that readers are told of, run "
            f"'ledgerlog log recover {name} --accept-loss'"
        )
        self.name = name
        self.short_ledger = short_ledger
        self.kept_ledger = kept_ledger
        self.lost_from = lost_from
        self.first_offset = first_offset
        self.end_offset = end_offset


class OffsetMismatch(LedgerLogError):
    """``expected_offset`` was not the tail; ``actual`` is the offset the record would have had."""

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(
            f"log {name!r}: expected offset {expected}, the tail is {actual}; nothing was written"
        )
        self.name = name
        self.expected = expected
        self.actual = actual


class OutOfSequence(LedgerLogError):
    """A record's sequence does not continue its producer's; nothing was written by this call.

    ``last`` is the last sequence that was taken of this producer. Beyond ``last + 1``: records before this
    one have not arrived. At or below ``last``: it was left out, or came so long ago that its offset is
    forgotten and it is in the log already."""

    def __init__(self, name: str, producer: str, sequence: int, last: int, why: str) -> None:
        super().__init__(
            f"log {name!r}: sequence {sequence} of producer {producer!r} does not follow {last}: {why}"
        )
        self.name = name
        self.producer = producer
        self.sequence = sequence
        self.last = last


class TooManyProducers(LedgerLogError):
    """The log remembers as many producers as it may, all of them younger than it must; nothing was written.

    Use fewer ids, or enter the writer with a larger ``Dedupe.max_producers`` or a smaller ``keep_s``."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(f"log {name!r} remembers {limit} producers already, all of them in use of late")
        self.name = name
        self.limit = limit


class RecordTooLarge(InvalidArgument):
    """A record or entry is over its size bound; nothing was written for it."""

    def __init__(self, size: int, limit: int, what: str = "record") -> None:
        super().__init__(f"a {what} of {size} bytes is over the limit of {limit} bytes; nothing was written")
        self.size = size
        self.limit = limit


class CursorConflict(LedgerLogError):
    """Somebody else moved the cursor since it was read."""


class PropertiesConflict(LedgerLogError):
    """The log's properties are not what they were expected to be; nothing was changed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"log {name!r} has other properties than was expected; nothing was changed")
        self.name = name


class TruncationPinned(LedgerLogError):
    """Cursors pin records that were to be truncated; nothing was changed. ``offset`` is the first pinned
    one."""

    def __init__(self, name: str, cursor: str, offset: int) -> None:
        super().__init__(
            f"log {name!r}: cursor {cursor!r} pins the records from offset {offset} on; "
            "move it, or truncate in spite of it"
        )
        self.name = name
        self.cursor = cursor
        self.offset = offset


# --- archives ---------------------------------------------------------------------------------


class ArchiveUnavailable(LedgerLogError):
    """A file that holds records of a log could not be read: it is not there, or its file system fails or is
    too slow. The records exist; bring the file back, or try again."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"archive file {file}: {why}")
        self.file = redact(file)


class ArchiveCorrupt(LedgerLogError):
    """A file that holds records of a log is damaged, or is not the one that was archived. Restore it from a
    copy."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"archive file {file}: {why}")
        self.file = redact(file)


class ArchiveSupportMissing(LedgerLogError):
    """Records lie in an archive, and pyarrow, which reads its files, is not installed or cannot be imported;
    the message says how to install it."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"archive file {file}: {why}")
        self.file = redact(file)


# --- replicated state machines ----------------------------------------------------------------


class NotLeader(LedgerLogError):
    """This replica does not lead, and what was asked is for the leader; nothing was written.

    ``leader`` is what the leader calls itself, None where nobody is known to lead just now: ask again."""

    def __init__(self, name: str, leader: str | None) -> None:
        where = "nobody is known to lead now" if leader is None else f"{leader} leads"
        super().__init__(f"this replica of log {name!r} does not lead: {where}")
        self.name = name
        self.leader = leader


class ReplicaStopped(LedgerLogError):
    """This replica has stopped, for the reason that it names, and serves nothing any more."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the replica of log {name!r} has stopped: {why}")
        self.name = name
        self.why = why


class CommandFailed(LedgerLogError):
    """The state machine raised when it applied the command; that is its result, on every replica."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"the command raised {error}: {message}")
        self.error = error
        self.message = message


class RequestExpired(LedgerLogError):
    """The request came too late: it cannot be known any more whether it was executed, and it was not now."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is too old to know whether it was executed before")
        self.request_id = request_id


# --- bookies, wire, storage -------------------------------------------------------------------


class BookieUnavailable(LedgerLogError):
    """A bookie cannot be reached, closed the connection, or did not answer within its deadline."""


class BookieReadOnly(NotEnoughBookies):
    """Enough bookies serve for an ensemble, but too many of them take no ordinary writes now, because their
    disks are nearly full or they are being emptied; the message names them. The former are writable again by
    themselves once there is room.

    Where a bookie turns read-only under a writer, another takes its place; only where none is left is this
    raised, or NotEnoughBookies, which then tells what each bookie of the ledger said."""


class Unauthorized(LedgerLogError):
    """The ledger key (or the peer's identity) is wrong; nothing was changed."""


class WireError(LedgerLogError):
    """Bytes from a peer do not form a valid message. The connection that brought them is closed."""


class StorageError(LedgerLogError):
    """The bookie's disk failed an operation. A failed sync is never retried: the bookie stops."""


class StorageLocked(StorageError):
    """Another process owns the directory; ``pid`` is its process id where it could be read."""

    def __init__(self, path: str, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is in use by {holder}")
        self.path = path
        self.pid = pid


class CookieMismatch(StorageError):
    """A bookie's directory does not belong to the identity that the metadata store knows."""


class StorageCorrupt(StorageError):
    """A file holds something that was never written there: ``path`` and ``offset`` name the place."""

    def __init__(self, path: str, offset: int | None, why: str) -> None:
        where = path if offset is None else f"{path} at byte {offset}"
        super().__init__(f"{where}: {why}")
        self.path = path
        self.offset = offset


class DiskFull(StorageError):
    """The disk has no room for the operation."""
