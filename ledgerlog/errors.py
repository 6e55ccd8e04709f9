"""The exception tree: every operating fault that a caller can meet, under one base class.

An exception here describes something that *can happen to correct code*: a machine died, another writer fenced
the ledger, a file is damaged, an argument is out of range. A broken invariant of our own code is an
AssertionError; nothing catches it.

The tree never blurs two distinctions:

* **definite or unknown.** ``AppendUnknown`` says that a record may or may not survive. ``LedgerFenced`` says
the same of an unacknowledged entry. ``MetadataOutcomeUnknown`` says that an operation on metadata may or may
not have happened. Every other error says that the operation did not happen and will not happen. No definite
error is a subclass of an unknown one, or the reverse: ``except MetadataUnavailable`` never catches an
operation that happened, and ``except MetadataError`` catches both kinds. An operation that did not happen may
still leave traces: a number that was skipped, an empty ledger that no log lists, a closed ledger of an older
leader. If you call again, the call may leave such traces again.
* **absent or unavailable.** ``EntryNotFound`` is a fact about the ledger: the entry does not exist.
``EntryUnavailable`` says that the entry may exist: no bookie returned it, but not all of its bookies deny it;
or a read should start there, and its ledger is not closed and not confirmed that far.
``EntryCorrupt`` says that an answer came and was damaged.

Foreign exceptions (OSError, sqlite3.Error, kazoo's, plyvel's) are translated once, in the module that owns
the capability. The original is the ``__cause__``.

Every exception can be pickled and copied: text, attributes and notes are the same afterwards. The base class
does that for all subclasses, even if their constructors take other arguments.
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
    "IncompatibleVersion",
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
    "NotEnoughRacks",
    "Unauthorized",
    "Unauthenticated",
    "PermissionDenied",
    "WireError",
    "StorageError",
    "StorageLocked",
    "CookieMismatch",
    "StorageCorrupt",
    "DiskFull",
]


class LedgerLogError(Exception):
    """The base class of every error that ledgerlog and bookie report.

    The text holds no password of a URI: the constructor passes each text argument through ``redact``.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in args))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]:
        # The default of BaseException calls the constructor with ``args``, which hold only the text. For
        # example, Truncated(text) would lack an argument. One error that cannot be unpickled breaks a whole
        # process pool.
        return _remade, (type(self), self.args), vars(self) or None


def _remade(kind: type[LedgerLogError], args: tuple[Any, ...]) -> LedgerLogError:
    """Make an exception without calling its constructor. Then pickle or copy sets its attributes."""
    return kind.__new__(kind, *args)


class InvalidArgument(LedgerLogError, ValueError):
    """An argument, an option or a configuration value is out of its documented range. Nothing was done."""


class ConnectionClosed(LedgerLogError):
    """The cluster, writer or other object is closed, or its ``async with`` has ended. Nothing was done.

    Connect again, or enter the object again.
    """


class WrongProcess(LedgerLogError):
    """A forked child used a connection of its parent. Nothing was done.

    Connections and threads do not survive a fork. Connect again in the child.

    Attributes:
        pid: The process that made the connection.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"this connection belongs to process {pid}, and this process was forked from it: connect again "
            f"here"
        )
        self.pid = pid


class IncompatibleVersion(LedgerLogError):
    """A newer version of ledgerlog wrote the data, or the peer speaks no common protocol. Nothing was
    changed.

    Use a newer version of ledgerlog, at least the one that wrote the data. Newer data is not damage, so
    repair never touches it.

    Attributes:
        what: The record, the file or the peer.
        theirs: The lowest and the highest version of the record, the file or the peer.
        ours: The lowest and the highest version that this process reads or speaks.
    """

    def __init__(
        self, what: str, theirs: tuple[int, int], ours: tuple[int, int], *, is_protocol: bool = False
    ) -> None:
        verbs = ("speaks protocol", "speaks") if is_protocol else ("has format", "reads")
        super().__init__(
            f"{what} {verbs[0]} {_span(theirs)}; this version of ledgerlog {verbs[1]} {_span(ours)}"
        )
        self.what = redact(what)
        self.theirs = theirs
        self.ours = ours


def _span(versions: tuple[int, int]) -> str:
    low, high = versions
    return str(low) if low == high else f"{low} to {high}"


# --- metadata ---------------------------------------------------------------------------------


class MetadataError(LedgerLogError):
    """The metadata store failed an operation. This base class itself is never raised.

    The subclass tells whether the operation happened: MetadataUnavailable says that it did not,
    MetadataOutcomeUnknown that it may have.
    """


class MetadataUnavailable(MetadataError):
    """The metadata store could not be reached or did not answer. The operation did not happen.

    You can call again.
    """


class MetadataOutcomeUnknown(MetadataError):
    """The answer to a metadata write was lost. The operation may or may not have happened.

    It may also still happen later. The library first tries to find out by reading, and raises this error only
    if it cannot find out. To find out yourself, read again (protocol A.2 rule 14).
    """


class MetadataCorrupt(LedgerLogError):
    """A record in the metadata store does not decode. The message names the record and the field."""


class WrongCluster(MetadataUnavailable):
    """The store at the URI belongs to another cluster. The operation did not happen.

    The store is not the one that this process connected to: it was emptied or exchanged, or its address leads
    to another store. Nothing is read, written or deleted until the right store is back. Then calls succeed
    again without a restart.
    """


class ClusterNotFound(LedgerLogError):
    """The URI points to no cluster, and ``create`` was not set. Or a ``sqlite:`` URI points to a directory.

    Check the URI first: a mistyped path or chroot gives this error. ``connect(uri, create=True)`` and
    ``ledgerlog metadata init`` make a cluster.
    """


class SessionExpired(LedgerLogError):
    """The metadata session is over. The store has deleted every ephemeral node of the session."""


# --- ledgers ----------------------------------------------------------------------------------


class LedgerNotFound(LedgerLogError):
    """No ledger has this id. It was never created, or it was deleted.

    Attributes:
        ledger_id: The id.
    """

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} does not exist")
        self.ledger_id = ledger_id


class LedgerExists(LedgerLogError):
    """Another ledger already has this id. Nothing was created.

    Attributes:
        ledger_id: The id.
    """

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} exists already")
        self.ledger_id = ledger_id


class LedgerClosed(LedgerLogError):
    """The ledger is closed and takes no more entries. Nothing was written.

    Attributes:
        ledger_id: The ledger.
        last_entry: Its last entry, -1 if it is empty, None if that is not known.
    """

    def __init__(self, ledger_id: int, last_entry: int | None = None, why: str = "") -> None:
        end = "" if last_entry is None else f" at entry {last_entry}"
        super().__init__(f"ledger {ledger_id} is closed{end}{': ' + why if why else ''}")
        self.ledger_id = ledger_id
        self.last_entry = last_entry


class LedgerFenced(LedgerLogError):
    """Another process fenced the ledger, so this writer can never acknowledge an entry again.

    An unacknowledged entry may or may not survive: recovery decides. Treat it like an entry whose append
    timed out.

    Attributes:
        ledger_id: The ledger.
    """

    def __init__(self, ledger_id: int, why: str = "") -> None:
        super().__init__(f"ledger {ledger_id} is fenced{': ' + why if why else ''}")
        self.ledger_id = ledger_id


class NotEnoughBookies(LedgerLogError):
    """Too few bookies are writable to form an ensemble, or to reach the ack quorum in time.

    If an append raises this, its record is not in the log. Enter the writer again once enough bookies are
    back. If authentication failed with every bookie (this process or the bookie did not prove who it is), the
    error is also an Unauthenticated.
    """


class WriteQuorumUnavailable(NotEnoughBookies):
    """A ledger with a guaranteed write quorum cannot bring every entry to its write quorum now.

    If an append raises this, nothing was appended. If a close raises it, the ledger stays OPEN, and recovery
    closes it once enough bookies are back.
    """


class EntryNotFound(LedgerLogError):
    """The entry does not exist in the ledger. This is a fact: retrying cannot help.

    Attributes:
        ledger_id: The ledger.
        entry_id: The entry.
    """

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        super().__init__(f"ledger {ledger_id} has no entry {entry_id}{': ' + why if why else ''}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryUnavailable(LedgerLogError):
    """The entry may well exist, but cannot be read now. Retrying can help.

    Either no bookie returned it, but not all of its bookies deny it. Or a read of a log should start there,
    and the ledger is not closed and not confirmed that far.

    Attributes:
        ledger_id: The ledger.
        entry_id: The entry.
    """

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        super().__init__(
            f"entry {entry_id} of ledger {ledger_id} is unavailable now{': ' + why if why else ''}"
        )
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryCorrupt(LedgerLogError):
    """Every copy of the entry that was read fails its digest.

    Attributes:
        ledger_id: The ledger.
        entry_id: The entry.
    """

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} is corrupt{': ' + why if why else ''}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class RecoveryFailed(LedgerLogError):
    """Recovery could not establish the ledger's end now. Retrying can help.

    Too few bookies were fenced, no bookie could say for certain whether an entry exists, or another process
    changed the metadata meanwhile. The ledger's metadata is unchanged, except that its state may be
    IN_RECOVERY. If no bookie can take a write-back, recovery raises NotEnoughBookies instead.

    Attributes:
        ledger_id: The ledger.
    """

    def __init__(self, ledger_id: int, why: str) -> None:
        super().__init__(f"ledger {ledger_id} could not be recovered: {why}")
        self.ledger_id = ledger_id


# --- logs -------------------------------------------------------------------------------------


class LogNotFound(LedgerLogError):
    """No log has this name.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no log named {name!r}")
        self.name = name


class LogExists(LedgerLogError):
    """A log already has this name. Nothing was created.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"a log named {name!r} exists already")
        self.name = name


class LogSealed(LedgerLogError):
    """The log is sealed: it is complete and takes no more records. Nothing was written.

    Attributes:
        name: The log.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"log {name!r} is sealed")
        self.name = name


class LogListFull(LedgerLogError):
    """The log's list of ledgers is as long as one metadata record can be. Nothing was written.

    Truncate the log, or let retention drop old ledgers.

    Attributes:
        name: The log.
    """

    def __init__(self, name: str, segments: int) -> None:
        super().__init__(f"log {name!r}: its list of {segments} ledgers is full; truncate the log first")
        self.name = name


class LostLeadership(LedgerLogError):
    """This leadership of the log is over, usually because another writer took the log over. Nothing of the
    failed call was written.

    You can append nothing more through this writer. If this process should lead, enter ``log.writer()``
    again.

    Attributes:
        name: The log.
        epoch: The newest known epoch of the log; None if it is not known yet.
    """

    def __init__(self, name: str, epoch: int | None = None, why: str = "") -> None:
        newer = "" if epoch is None else f" (the log is at epoch {epoch})"
        super().__init__(f"log {name!r}: leadership lost{newer}{': ' + why if why else ''}")
        self.name = name
        self.epoch = epoch


class AppendUnknown(LedgerLogError):
    """The append was sent, but its outcome is unknown. The record may or may not be in the log.

    To send it again without the risk of storing it twice, append it with a ``sequence`` (see ``Dedupe``).
    """


class Truncated(LedgerLogError):
    """The requested offset has been truncated away.

    Attributes:
        name: The log.
        first_offset: The first offset that you can read.
    """

    def __init__(self, name: str, first_offset: int) -> None:
        super().__init__(f"log {name!r} is truncated: its first offset is {first_offset}")
        self.name = name
        self.first_offset = first_offset


class RecordsLost(Truncated):
    """The reader came to a gap: bookies lost these records, and an operator accepted the loss.

    ``Log.recover`` accepts a loss. A reader raises this once for each gap. You can continue with the same
    reader: it continues at ``first_offset``, after the gap.

    Attributes:
        name: The log.
        lost_from: The first offset that is lost. The last one is ``first_offset - 1``.
        first_offset: The first offset after the gap.
    """

    def __init__(self, name: str, lost_from: int, first_offset: int) -> None:
        LedgerLogError.__init__(
            self,
            f"log {name!r}: the records from offset {lost_from} to {first_offset - 1} were lost with "
            f"bookies; the log continues at offset {first_offset}",
        )
        self.name = name
        self.lost_from = lost_from
        self.first_offset = first_offset


class LossUndecided(LedgerLogError):
    """An operator must decide about a loss first. Nothing was changed.

    An accepted loss, or a restore of the metadata, ended ledger ``short_ledger`` at offset ``lost_from``
    while the next ledger, ``kept_ledger``, was open. ``kept_ledger`` holds the records from ``first_offset``
    to ``end_offset - 1``, which may have been acknowledged. If the log just continued, these records would be
    dropped.
    ``Log.recover(accept_loss=True)``, or ``ledgerlog log recover NAME --accept-loss``, keeps them at their
    offsets, after a gap. After a restore run ``ledgerlog metadata check --bring-back --accept-gaps`` instead,
    because it leaves out what the next leader had cut off.

    Attributes:
        name: The log.
        short_ledger: The ledger that may have ended too early.
        kept_ledger: The next ledger of the log.
        lost_from: The first lost offset.
        first_offset: The first offset of ``kept_ledger``.
        end_offset: The offset after the last record of ``kept_ledger``.
    """

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
            else "their offsets would be used again. To keep them as a gap"
        )
        super().__init__(
            f"log {name!r}: ledger {short_ledger} was ended at offset {lost_from} by an accepted loss or "
            f"after a restore of the metadata, and ledger {kept_ledger} after it continues at offset "
            f"{first_offset}: the records {lost_from} to {first_offset - 1} are missing, and {kept}, run "
            f"'ledgerlog log recover {name} --accept-loss' (after a restore: 'ledgerlog metadata check "
            "--bring-back --accept-gaps')"
        )
        self.name = name
        self.short_ledger = short_ledger
        self.kept_ledger = kept_ledger
        self.lost_from = lost_from
        self.first_offset = first_offset
        self.end_offset = end_offset


class OffsetMismatch(LedgerLogError):
    """``expected_offset`` was not the next offset of the log. Nothing was written.

    Attributes:
        name: The log.
        expected: The offset that the caller expected.
        actual: The offset that the record would have had.
    """

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(
            f"log {name!r}: expected offset {expected}, the tail is {actual}; nothing was written"
        )
        self.name = name
        self.expected = expected
        self.actual = actual


class OutOfSequence(LedgerLogError):
    """The sequence number of a record does not continue its producer's sequence. This call wrote nothing.

    If ``sequence`` is above ``last + 1``, earlier records of the producer have not arrived. If it is at or
    below ``last``, there are two cases: the producer skipped this number earlier, or the record is in the log
    already but the log no longer remembers its offset.

    Attributes:
        name: The log.
        producer: The producer's id.
        sequence: The record's sequence number.
        last: The last sequence number of this producer that the log took.
    """

    def __init__(self, name: str, producer: str, sequence: int, last: int, why: str) -> None:
        super().__init__(
            f"log {name!r}: sequence {sequence} of producer {producer!r} does not follow {last}: {why}"
        )
        self.name = name
        self.producer = producer
        self.sequence = sequence
        self.last = last


class TooManyProducers(LedgerLogError):
    """The log cannot remember another producer now. Nothing was written.

    It remembers as many producers as its limit allows, and none of them is old enough to forget. Use fewer
    producer ids, or enter the writer with a larger ``Dedupe.max_producers`` or a smaller ``Dedupe.keep_s``.

    Attributes:
        name: The log.
        limit: The largest number of producers.
    """

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            f"log {name!r} already remembers {limit} producers, and all of them appended recently"
        )
        self.name = name
        self.limit = limit


class RecordTooLarge(InvalidArgument):
    """A record or an entry is over its size limit. Nothing of this call was written.

    Attributes:
        size: The size in bytes.
        limit: The limit in bytes.
    """

    def __init__(self, size: int, limit: int, what: str = "record") -> None:
        super().__init__(f"a {what} of {size} bytes is over the limit of {limit} bytes; nothing was written")
        self.size = size
        self.limit = limit


class CursorConflict(LedgerLogError):
    """Another process moved the cursor after you read it. Your change was not made."""


class PropertiesConflict(LedgerLogError):
    """The log's properties are not the expected ones. Nothing was changed.

    Attributes:
        name: The log.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"log {name!r} does not have the expected properties; nothing was changed")
        self.name = name


class TruncationPinned(LedgerLogError):
    """A cursor pins records that the truncation would drop. Nothing was changed.

    Attributes:
        name: The log.
        cursor: The name of the cursor.
        offset: The first pinned offset.
    """

    def __init__(self, name: str, cursor: str, offset: int) -> None:
        super().__init__(
            f"log {name!r}: cursor {cursor!r} pins the records from offset {offset} on; "
            "move the cursor, or truncate with ignore_pins"
        )
        self.name = name
        self.cursor = cursor
        self.offset = offset


# --- archives ---------------------------------------------------------------------------------


class ArchiveUnavailable(LedgerLogError):
    """An archive file, which holds records of a log, cannot be read now.

    The file is missing, or its file system fails or is too slow. The records exist: bring the file back, or
    try again.

    Attributes:
        file: The file, with secrets hidden.
    """

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"archive file {file}: {why}")
        self.file = redact(file)


class ArchiveCorrupt(LedgerLogError):
    """An archive file, which holds records of a log, is damaged, or is not the file that was archived.

    Restore it from a copy.

    Attributes:
        file: The file, with secrets hidden.
    """

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"archive file {file}: {why}")
        self.file = redact(file)


class ArchiveSupportMissing(LedgerLogError):
    """Records lie in an archive, and pyarrow, which reads archives, cannot be imported.

    The message says how to install it.

    Attributes:
        file: The file, with secrets hidden.
    """

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"archive file {file}: {why}")
        self.file = redact(file)


# --- leading, and replicated state machines ---------------------------------------------------


class NotLeader(LedgerLogError):
    """This process does not lead the log, and only the leader can do this. Nothing was written.

    Attributes:
        name: The log.
        leader: The leader's name for itself. None if no leader is known now: ask again later.
    """

    def __init__(self, name: str, leader: str | None) -> None:
        where = "no leader is known now" if leader is None else f"{leader} leads"
        super().__init__(f"this process does not lead log {name!r}: {where}")
        self.name = name
        self.leader = leader


class ReplicaStopped(LedgerLogError):
    """This replica has stopped and answers no more calls.

    Attributes:
        name: The log.
        why: The reason.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the replica of log {name!r} has stopped: {why}")
        self.name = name
        self.why = why


class CommandFailed(LedgerLogError):
    """The state machine raised an exception when it applied the command. Every replica has this same result.

    Attributes:
        error: The name of the exception class.
        message: The text of the exception.
    """

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"the command raised {error}: {message}")
        self.error = error
        self.message = message


class RequestExpired(LedgerLogError):
    """The request came too late. This call did not execute it.

    The replica no longer remembers whether the request was executed before.

    Attributes:
        request_id: The id of the request.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is too old to know whether it was executed before")
        self.request_id = request_id


# --- bookies, wire, storage -------------------------------------------------------------------


class BookieUnavailable(LedgerLogError):
    """A bookie cannot be reached, closed the connection, or did not answer within its deadline."""


class BookieReadOnly(NotEnoughBookies):
    """Enough bookies run for an ensemble, but too many of them are read-only. The message names them.

    A bookie is read-only if its disks are nearly full, or if it is being emptied. A bookie with a full disk
    becomes writable again by itself once it has room.

    If a bookie turns read-only while a writer uses it, another bookie takes its place. The writer fails only
    if no other bookie is left. Then it raises this error, or NotEnoughBookies with the answer of each bookie
    of the ledger.
    """


class NotEnoughRacks(NotEnoughBookies):
    """Enough bookies are writable for an ensemble, but they lie in too few racks for a strict placement.

    The message names the racks, and the bookies without the label ``rack``. Start bookies in other racks,
    give them the label, or relax the policy with ``ledgerlog metadata placement``.
    """


class Unauthorized(LedgerLogError):
    """The ledger key or the identity of the peer is wrong. Nothing was changed."""


class Unauthenticated(LedgerLogError):
    """This process or its peer did not prove who it is. Nothing was done.

    The message says which proof failed: a certificate of another authority, an expired certificate, a missing
    or wrong secret, and the like. Try again only after the files or the clock were corrected.
    """


class PermissionDenied(LedgerLogError):
    """This process proved who it is, but it may not do this. Nothing was done.

    The message names the principal and the refused request. ``ledgerlog metadata secure`` changes who may use
    a metadata store.
    """


class WireError(LedgerLogError):
    """Bytes from a peer do not form a valid message. The connection that brought them is closed."""


class StorageError(LedgerLogError):
    """The bookie's disk failed an operation. A failed sync is never retried: the bookie stops."""


class StorageLocked(StorageError):
    """Another process owns the directory.

    Attributes:
        path: The directory.
        pid: The id of that process; None if it could not be read.
    """

    def __init__(self, path: str, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is in use by {holder}")
        self.path = path
        self.pid = pid


class CookieMismatch(StorageError):
    """A bookie's directory does not belong to the bookie that the metadata store knows."""


class StorageCorrupt(StorageError):
    """A file is damaged: it holds bytes that were never written there.

    Attributes:
        path: The file.
        offset: The position of the damage in bytes; None if it is not known.
        advice: What a person can do, if it depends on the kind of file. "": it is a file of a bookie, or of a
            program of yours.
    """

    def __init__(self, path: str, offset: int | None, why: str, *, advice: str = "") -> None:
        where = path if offset is None else f"{path} at byte {offset}"
        super().__init__(f"{where}: {why}")
        self.path = path
        self.offset = offset
        self.advice = advice


class DiskFull(StorageError):
    """The disk has no room for the operation."""
