"""The classes of ``ledgerlog.blocking``. Made by ``make faces``: do not edit.

Change the asynchronous classes, or ``tools/faces/plans.py``, and make the file anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ledgerlog.blocking.base import ConnectedFace, Entered, Face, HeldLedger
from ledgerlog.blocking.reading import EntriesFace, Fetched, RecordsFace, fetch
from ledgerlog.errors import LedgerLogError
from ledgerlog.ledger.ledgers import Ledgers as AsyncLedgers
from ledgerlog.ledger.verify import LedgerVerification
from ledgerlog.log.cursors import Cursor as AsyncCursor
from ledgerlog.log.log import Log as AsyncLog
from ledgerlog.log.log import LogInfo
from ledgerlog.log.reader import Start
from ledgerlog.log.writer import LogWriter as AsyncLogWriter
from ledgerlog.log.writer import Submission as AsyncSubmission
from ledgerlog.log.writer import WriterStatistics
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.producer import Dedupe
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import Ack
from ledgerlog.model.segments import Gap, Segment

__all__ = [
    "Cluster",
    "Cursor",
    "LedgerReader",
    "LedgerWriter",
    "Ledgers",
    "Log",
    "LogReader",
    "LogWriter",
    "Submission",
]


class Cluster(ConnectedFace):
    """A connected cluster. Made by ``connect``.

    Close it, or use it in a ``with``; what is still open then is left in order, and the thread ends.
    For any number of threads."""

    @property
    def uri(self) -> str:
        return self._inner.uri

    @property
    def ledgers(self) -> Ledgers:
        """The lower level: ledgers by their ids."""
        self._check()
        return Ledgers(self._portal, self._inner.ledgers)

    def create_log(
        self,
        name: str,
        *,
        replication: Replication | None = None,
        roll: RollPolicy | None = None,
        retention: RetentionPolicy | None = None,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> Log:
        """A new log; with ``exist_ok`` the one that has the name already, as it is.

        ``replication`` defaults to the cluster's (min(3, N) bookies for an embedded one). What
        ``retention`` lets go the log's leader drops while it leads, and ``Log.apply_retention`` on
        demand. Raises LogExists, InvalidArgument, MetadataUnavailable."""
        return Log(
            self._portal,
            self._run(
                lambda: self._inner.create_log(
                    name,
                    replication=replication,
                    roll=roll,
                    retention=retention,
                    properties=properties,
                    exist_ok=exist_ok,
                )
            ),
        )

    def open_log(self, name: str) -> Log:
        """The log of this name. LogNotFound, MetadataUnavailable."""
        return Log(self._portal, self._run(lambda: self._inner.open_log(name)))

    def logs(self, prefix: str = "") -> list[str]:
        """The names of all logs that begin with ``prefix``, sorted; complete, or an error."""
        return self._run(lambda: self._inner.logs(prefix))

    def delete_log(self, name: str, *, damaged: bool = False) -> None:
        """Delete a log and its ledgers. A writer that is still alive loses its leadership. LogNotFound,
        MetadataUnavailable; MetadataCorrupt where what the metadata store holds of it cannot be read.

        With ``damaged`` it is deleted in that case, too. Which ledgers it listed is not known then:
        they stay until `ledgerlog log sweep` finds that the log they were made for is gone. A log that
        can be read is deleted as without it."""
        self._run(lambda: self._inner.delete_log(name, damaged=damaged))


class Log(Face[AsyncLog]):
    """One log. Made by ``Cluster.create_log`` and ``Cluster.open_log``.

    A log that is deleted and made again under its name is another log: this object then raises
    LogNotFound. Every method may raise MetadataUnavailable, which says that what was asked for did not
    happen; those that write may raise MetadataOutcomeUnknown: it may have happened."""

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def incarnation(self) -> int:
        """The number of this log, never given to another."""
        return self._inner.incarnation

    def writer(
        self,
        *,
        producer: str | None = None,
        dedupe: Dedupe | bool | None = None,
        window: int | None = None,
        window_bytes: int | None = None,
        entry_bytes: int | None = None,
        linger_s: float = 0.0,
        compression: Literal["zstd"] | None = None,
    ) -> Entered[AsyncLogWriter, LogWriter]:
        """Leadership of the log for the body of a ``with``. Entering takes the log over: it fences whoever
        led before, finds out where his records end, and raises the epoch.

        ``window`` and ``window_bytes`` bound what is taken and not yet durable (default
        ``limits.LOG_WINDOW_RECORDS`` and ``limits.LOG_WINDOW_BYTES``). Records are packed into entries
        of about ``entry_bytes`` (default ``limits.LOG_ENTRY_BYTES_TARGET``). While few entries are on
        their way a record is sent at once; with ``linger_s`` it waits up to so many seconds for others
        to share its entry. ``compression`` packs the records of each entry where that makes it smaller;
        readers need not be told.

        ``dedupe`` switches deduplication on (True, or a ``Dedupe`` with its bounds) or off (False); by
        default it stays as the log has it, off in a new log, and naming a ``producer`` switches it on.
        It is a matter of the log: once on, every later leader keeps the table. ``producer`` is whose
        the sequences of ``append`` are unless it says otherwise.

        InvalidArgument at once. Entering raises LogNotFound; LogSealed; RecoveryFailed,
        NotEnoughBookies and EntryUnavailable (retryable: too few bookies answer); EntryCorrupt;
        EntryNotFound where bookies have lost what tells how far the log came; LossUndecided where a
        loss that was accepted for a ledger would drop records behind it, until ``recover`` says what
        becomes of them. Leaving sends what was taken, waits until it is durable and closes the ledger,
        for at most ``limits.LOG_CLOSE_TIMEOUT_S``; it raises AppendUnknown if records that nobody
        waited for could not be brought to an end. Leaving by an interruption leaves the ledger open for
        the next leader to recover.

        A body that raises leaves as one that does not: what was taken is made durable and the ledger
        closed. KeyboardInterrupt leaves at once, and the ledger to the next leader."""
        return Entered(
            self._portal,
            self._inner.writer(
                producer=producer,
                dedupe=dedupe,
                window=window,
                window_bytes=window_bytes,
                entry_bytes=entry_bytes,
                linger_s=linger_s,
                compression=compression,
            ),
            LogWriter,
        )

    def read(
        self,
        start: Start = "earliest",
        *,
        until: int | None = None,
        follow: bool = False,
        dense: bool = False,
    ) -> Entered[Fetched, LogReader]:
        """The log's records from ``start`` on, as an iterator in the body of a ``with``.

        ``start`` is an offset, a ``Position``, a datetime (the first record written at that time or
        later; naive means UTC), "earliest" or "latest" (behind the last record that is confirmed now).
        An offset beyond the tail waits for it with ``follow`` and gives nothing without. ``until`` is
        the offset to stop before. Without ``follow`` reading ends at the tail that it finds; with it,
        only at ``until`` or where the log is sealed. Never shows a record that could still be lost.

        Offsets grow by one from record to record, but where the archive of the log was compacted: there
        only the latest record of each key is left. With ``dense`` such a gap is Truncated, as if all up
        to the end of the compacted file had been truncated away. Where records were lost with bookies
        and an operator accepted that, everybody is told of the gap, by RecordsLost (see ``LogReader``).

        InvalidArgument at once. Entering raises Truncated(first_offset) where ``start`` is no longer
        there, LogNotFound, and what iterating raises; see ``LogReader``."""
        return Entered(
            self._portal, fetch(self._inner.read(start, until=until, follow=follow, dense=dense)), LogReader
        )

    def info(self) -> LogInfo:
        """The log as it is now. LogNotFound; EntryUnavailable where no bookie of an open ledger answers."""
        return self._run(self._inner.info)

    def properties(self) -> dict[str, str]:
        """The log's properties. LogNotFound."""
        return self._run(self._inner.properties)

    def set_properties(
        self, properties: Mapping[str, str], *, expected: Mapping[str, str] | None = None
    ) -> None:
        """Replace the log's properties; with ``expected`` only if they are that now, else
        PropertiesConflict.

        LogNotFound, InvalidArgument. MetadataOutcomeUnknown also if, with ``expected``, the answer was
        lost and others have written the log's record since."""
        self._run(lambda: self._inner.set_properties(properties, expected=expected))

    def update_properties(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some of the log's properties, in one step, and remove those that are None; all of them after
        that. Others' changes of other properties are kept. LogNotFound, InvalidArgument."""
        return self._run(lambda: self._inner.update_properties(changes))

    def configure(
        self,
        *,
        roll: RollPolicy | Callable[[RollPolicy], RollPolicy] | None = None,
        retention: RetentionPolicy | Callable[[RetentionPolicy], RetentionPolicy] | None = None,
    ) -> None:
        """Give the log other policies; None leaves one as it is. A leader keeps to them as soon as he sees
        the record, which he watches. LogNotFound.

        To change one setting and keep what others set meanwhile, give a function of the policy that is
        there: ``configure(roll=lambda there: attrs.evolve(there, max_bytes=2**30))``. It may be called
        several times, and what it raises is raised here."""
        self._run(lambda: self._inner.configure(roll=roll, retention=retention))

    def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``; those from there on keep their offsets. Ledgers
        that held nothing else are deleted. Truncating again, or less, changes nothing.

        TruncationPinned where a cursor pins a record below, unless ``ignore_pins``. InvalidArgument
        where the offset is beyond the confirmed end. LogNotFound, EntryUnavailable. If interrupted, it
        may have happened, and ledgers may be left for a sweep, as they are if the store is away by
        then."""
        self._run(lambda: self._inner.truncate(before_offset, ignore_pins=ignore_pins))

    def apply_retention(self) -> int:
        """Drop what the log's retention lets go now, as its leader does from time to time; how many
        records. Ledgers that are not counted are taken to hold nothing, so nothing is dropped early.
        Errors as for ``truncate``, pins aside: they are kept to."""
        return self._run(self._inner.apply_retention)

    def why_kept(self) -> list[tuple[Segment, str]]:
        """Each ledger of the log, and why it is still there. LogNotFound."""
        return self._run(self._inner.why_kept)

    def cursor(self, name: str) -> Cursor:
        """The cursor of that name, there or not: a durable place in the log with some properties, moved by
        compare-and-set. InvalidArgument. Looks at nothing yet."""
        self._check()
        return Cursor(self._portal, self._inner.cursor(name))

    def cursors(self) -> list[CursorState]:
        """All cursors of the log, by name. LogNotFound."""
        return self._run(self._inner.cursors)

    def seal(self) -> None:
        """End the log for good: its leader, if there is one, is deposed, what he had in flight is brought
        to an end, and nothing is appended any more. Sealing a sealed log does nothing.

        LogNotFound; RecoveryFailed, NotEnoughBookies and EntryUnavailable (retryable); EntryCorrupt,
        EntryNotFound; LossUndecided, see ``recover``: it is not sealed."""
        self._run(self._inner.seal)

    def recover(self, *, accept_loss: bool = False, accept_unreachable: bool = False) -> tuple[Gap, ...]:
        """End the leadership that there is, without another: its ledgers are fenced, closed and counted,
        and the next writer goes on behind them. A leader that lives is deposed. Returns the gaps that
        this made, nearly always none; a log whose ledgers are all counted is not changed.

        ``accept_loss`` is for an operator who knows that bookies lost what they had. A ledger whose end
        nobody can know is ended before the first entry that nobody has (`ledgerlog ledger recover
        --accept-loss`, also for ``accept_unreachable``), and records behind such an end stay where they
        are, behind a gap: the offsets of the records that were lost are given to no others, and readers
        are told by RecordsLost.

        LogNotFound; LogSealed; LossUndecided without ``accept_loss``; RecoveryFailed, NotEnoughBookies
        and EntryUnavailable (retryable); EntryCorrupt, EntryNotFound. If interrupted it may have
        happened."""
        return self._run(
            lambda: self._inner.recover(accept_loss=accept_loss, accept_unreachable=accept_unreachable)
        )


class Cursor(Face[AsyncCursor]):
    """One cursor of a log, there or not. From ``Log.cursor``; it holds no state and no connection.

    Every method may raise MetadataUnavailable; after MetadataOutcomeUnknown the cursor may have moved."""

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    @property
    def name(self) -> str:
        return self._inner.name

    def get(self) -> CursorState | None:
        """Where the cursor is now; None where there is none."""
        return self._run(self._inner.get)

    def move(
        self,
        offset: int,
        *,
        expected: CursorState | None,
        properties: Mapping[str, str] | None = None,
        pins: bool | None = None,
    ) -> CursorState:
        """Move the cursor from ``expected``, a state that was read or returned before (None: it does not
        exist yet, make it); its new state. ``properties`` and ``pins`` stay as they are unless given.

        CursorConflict: it is not at ``expected`` any more, and was not moved by this call, or was and
        has been moved again. Truncated: it begins to pin, or is moved back, where records are gone.
        LogNotFound, InvalidArgument."""
        return self._run(
            lambda: self._inner.move(offset, expected=expected, properties=properties, pins=pins)
        )

    def set(
        self, offset: int, *, properties: Mapping[str, str] | None = None, pins: bool | None = None
    ) -> CursorState:
        """Move the cursor wherever it is, or make it; its new state. Of several who do so at once, one is
        last. Errors as for ``move``, CursorConflict aside."""
        return self._run(lambda: self._inner.set(offset, properties=properties, pins=pins))

    def delete(self, *, expected: CursorState | None = None) -> None:
        """Delete the cursor, with what it pins. One that is not there is deleted already. CursorConflict
        where it is not at ``expected``, if that is given."""
        self._run(lambda: self._inner.delete(expected=expected))


class LogWriter(Face[AsyncLogWriter]):
    """The leader of a log, from ``with log.writer()``. Any number of threads may append at once; the
    records get their offsets in the order in which they were taken."""

    @property
    def epoch(self) -> int:
        """The number of this leadership: one more at each takeover of the log. A fencing token that
        callers may use elsewhere."""
        return self._inner.epoch

    @property
    def next_offset(self) -> int:
        """The offset of the next record, if all that is on its way arrives.

        As of a moment ago, if other threads append."""
        return self._inner.next_offset

    @property
    def failure(self) -> LedgerLogError | None:
        """Why nothing more can be appended, None while the leadership lasts."""
        return self._inner.failure

    def statistics(self) -> WriterStatistics:
        """Where the writer stands. Cheap."""
        return self._inner.statistics()

    def append(
        self,
        data: bytes,
        *,
        expected_offset: int | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Ack:
        """Append one record; its Ack once it is durable on an ack quorum and so is all before it.

        ``data`` is 0 to ``limits.RECORD_BYTES_MAX`` bytes. With ``expected_offset`` it is written at
        that offset or not at all. Waits for a place in the window first.

        With ``sequence``, the record's number among those of its ``producer`` (default: that of the
        writer), it is written once, however often it is appended: a repeat gives the first one's
        offset, with ``duplicate`` set, whoever led the log meanwhile. It needs a writer with
        deduplication (see ``Log.writer``), excludes ``expected_offset``, and is not taken back by an
        interruption: repeat it. OutOfSequence, TooManyProducers: it was not written.

        LostLeadership, LogSealed, NotEnoughBookies, OffsetMismatch, RecordTooLarge, InvalidArgument: it
        was not written. AppendUnknown: it may or may not be in the log. Interrupted before it was sent,
        it is not written; afterwards its outcome is unknown. The writer stays usable and in order
        either way."""
        return self._run(
            lambda: self._inner.append(
                data, expected_offset=expected_offset, sequence=sequence, producer=producer
            )
        )

    def append_many(
        self,
        datas: Sequence[bytes],
        *,
        atomic: bool = False,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> list[Ack]:
        """Append records in their order, pipelined through the window; one Ack for each once all are
        durable. Other threads' records may come in between. An empty sequence gives an empty list.

        ``atomic`` puts them into one entry: they are in the log all together or not at all, at
        consecutive offsets; RecordTooLarge where they are over about ``limits.ENTRY_BYTES_MAX``
        together.

        ``sequence`` is that of the first record, the others follow it; see ``append``. Those at the
        start that are there already are answered as duplicates, the others are written; of an atomic
        group all or none.

        Errors as for ``append``, RecordTooLarge and InvalidArgument before anything is taken. After
        another error, and after an interruption, a prefix of the records may be in the log; where that
        is so, or cannot be known, the error is AppendUnknown and says how many are surely there.

        This is the way to write much: it takes one hop for all of them."""
        return self._run(
            lambda: self._inner.append_many(datas, atomic=atomic, sequence=sequence, producer=producer)
        )

    def submit(self, data: bytes, *, sequence: int | None = None, producer: str | None = None) -> Submission:
        """Wait for a place in the window and take the record; ``submission.wait()`` gives its Ack.

        If interrupted before that, it is not written. ``sequence`` and errors as for ``append``, as far
        as they are known when it is taken."""
        return Submission(
            self._portal, self._run(lambda: self._inner.submit(data, sequence=sequence, producer=producer))
        )

    def flush(self) -> None:
        """Return once all that was taken before the call is durable. Errors as for ``append``, for any of
        it."""
        self._run(self._inner.flush)

    def roll(self) -> None:
        """Go on in a new ledger; returns once new records go there and the ledger before is closed. Does
        nothing while the current ledger is empty. Appends go on meanwhile. Interrupting abandons the
        wait, not the roll. LostLeadership and the like if the leadership ends first."""
        self._run(self._inner.roll)

    def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``, as their leader: ``Log.truncate`` with the promise
        that nothing is given up by one who was deposed, which matters to whoever truncates behind his
        own state.

        LostLeadership, and nothing was given up. InvalidArgument where the offset is beyond what is
        durable; TruncationPinned, LogNotFound, MetadataUnavailable as for ``Log.truncate``."""
        self._run(lambda: self._inner.truncate(before_offset, ignore_pins=ignore_pins))


class Submission(Face[AsyncSubmission]):
    """A record that is on its way. It goes there whether or not anybody waits."""

    def wait(self) -> Ack:
        """The record's Ack once it is durable. Errors as for ``LogWriter.append``. Interrupting abandons
        the wait and not the record; it may be waited for again, and by several threads."""
        return self._run(self._inner.wait)


class LogReader(RecordsFace):
    """The records of a log: an iterator, from ``with log.read()``. For one thread at a time.

    Iterating raises Truncated where records that were still to come have been truncated away;
    RecordsLost, which is one, where they were lost with bookies: once for each gap, and iterating again
    goes on behind it; LossUndecided where that is not decided yet and reading would end there;
    EntryUnavailable (retryable), EntryCorrupt, MetadataUnavailable (retryable); LogNotFound once the
    log was deleted; where records lie in an archive, ArchiveUnavailable (retryable), ArchiveCorrupt,
    ArchiveSupportMissing; ConnectionClosed once the ``with`` was left. What was fetched before an error
    is given out first. It waits whenever nothing is fetched ahead. Interrupting is harmless: no record
    is lost by it.

    Offsets grow by one from record to record, but for those that compaction of the archive has removed
    and those of a gap."""


class Ledgers(Face[AsyncLedgers]):
    """The ledgers of a cluster. Every method may raise MetadataUnavailable."""

    def create(
        self,
        replication: Replication | None = None,
        metadata: Mapping[str, bytes] | None = None,
        *,
        full_pinning: bool = False,
    ) -> LedgerWriter:
        """A new, empty ledger and its only writer. ``metadata``, bytes by text, are kept for its readers.

        ``full_pinning`` asks a guaranteed ledger for the published, stricter pinning rule. Raises
        NotEnoughBookies where fewer bookies than the ensemble are writable within a short wait, and
        InvalidArgument. If interrupted, an empty ledger that nobody writes may remain.

        The writer is a context manager as well."""
        return LedgerWriter(
            self._portal,
            *self._portal.enter(
                self._run(lambda: self._inner.create(replication, metadata, full_pinning=full_pinning))
            ),
        )

    def open(self, ledger_id: int, recover: bool = False) -> LedgerReader:
        """A reader. With ``recover`` the ledger is recovered first (its writer is fenced and its end
        fixed); without, nobody is disturbed and entries are readable up to the LAC.

        LedgerNotFound; with ``recover`` also what ``recover()`` raises."""
        return LedgerReader(self._portal, self._run(lambda: self._inner.open(ledger_id, recover)))

    def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence a ledger, find its end and close it; its CLOSED metadata. See ``recover_ledger``."""
        return self._run(lambda: self._inner.recover(ledger_id))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata as stored now. LedgerNotFound."""
        return self._run(lambda: self._inner.metadata(ledger_id))

    def list(self) -> list[int]:
        """The ids of all ledgers, growing."""
        return self._run(self._inner.list)

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger, closed or not. Its entries stay unreachable from now on and its bookies collect
        them later. A writer that is still alive notices at its next metadata write. LedgerNotFound."""
        self._run(lambda: self._inner.delete(ledger_id))

    def verify(self, ledger_id: int) -> LedgerVerification:
        """Read every copy of every entry; see ``LedgerVerification``. LedgerNotFound."""
        return self._run(lambda: self._inner.verify(ledger_id))


class LedgerWriter(HeldLedger):
    """The single writer of one ledger. Made by ``Ledgers.create``; usable as a context manager, which
    closes the ledger on a normal exit, or raises why it cannot be closed, and gives it up (leaves it
    OPEN) on an error and on interruption.

    Payloads are ``bytes`` of at most ``limits.ENTRY_BYTES_MAX``. Any number of threads may use a writer
    at once; entries are numbered in the order in which they were taken."""

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._inner.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry acknowledged (-1: none); it and all before it are synced on an ack quorum."""
        return self._inner.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """In guaranteed mode the last entry that, with all before it, is on its full write quorum; in the
        plain mode, where nobody counts that, -1."""
        return self._inner.last_add_fully_replicated

    def append(self, payload: bytes) -> int:
        """Append one entry; its id, once it is synced on an ack quorum and so are all before it.

        LedgerFenced, AppendUnknown: it may or may not survive. NotEnoughBookies, LedgerClosed: the
        ledger was closed without it. WriteQuorumUnavailable, RecordTooLarge, InvalidArgument: it was
        not written. Interrupted before it was sent, the entry was not written; afterwards its outcome
        is unknown. The writer stays usable and in order either way."""
        return self._run(lambda: self._inner.append(payload))

    def append_many(self, payloads: Sequence[bytes]) -> range:
        """Append entries with consecutive ids, pipelined; their ids, once all are acknowledged.

        Waits for room in the window once and then takes all of them, so that nobody else's entries come
        in between: a call may pass the window by its own size. Errors and interruption as for
        ``append``; where it was begun, some of the entries may be in the ledger, always a prefix."""
        return self._run(lambda: self._inner.append_many(payloads))

    def flush(self) -> None:
        """Return once everything appended so far is acknowledged."""
        self._run(self._inner.flush)


class LedgerReader(EntriesFace):
    """Reads one ledger; never fences it. Any number of threads may use it at once."""

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata seen."""
        return self._inner.metadata

    def last_add_confirmed(self) -> int:
        """The last entry that may be read now (-1: none). Whatever was acknowledged to the writer before
        this call is included as long as bookies that cover the last ensemble answer, and the writer is
        there to tell its LAC; where the latter is gone the last entries may show only after recovery.

        Raises EntryUnavailable if no bookie answers, LedgerNotFound, MetadataUnavailable."""
        return self._run(self._inner.last_add_confirmed)

    def read(self, first: int, last: int) -> list[bytes]:
        """The payloads of entries first..last. The caller bounds their number.

        InvalidArgument: not 0 <= first <= last. EntryNotFound: beyond the last entry that may be read
        now, or every bookie of its write set says that there is none. EntryUnavailable: nobody who
        could know has answered. EntryCorrupt: every copy that was found is damaged. LedgerNotFound,
        MetadataUnavailable. Interrupting is harmless."""
        return self._run(lambda: self._inner.read(first, last))
