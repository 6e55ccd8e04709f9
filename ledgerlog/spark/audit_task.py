"""The work of one task of an audit: it checks every copy of some ledgers, and reports confirmed faults.

``ledger.core.copies`` decides what to ask and what the answers mean. This module reads the metadata and asks
the bookies, for several ledgers at a time. It avoids false alarms:

1. A ledger without a fault is done.
2. The task looks at each ledger once, waits ``settle_s`` seconds, and looks a second time at the ledgers with
   faults, with fresh metadata. An entry is committed once an ack quorum of bookies has it, and may then still
   be on its way to another bookie. By the second look the entry has arrived, or that bookie has failed.
3. The task syncs the store and reads the metadata once more. It reports a fault of the second look only if
   the bookie should still have the copy: repair may have moved the copy to another bookie, or the ledger may
   have been deleted. A bookie deletes entries only after the metadata are gone. So if the metadata are still
   there, the entries should have been there at the second look.

If a bookie did not answer, the task does not ask this bookie again for a while. Otherwise the task would wait
for a hanging bookie at each ledger, until the time limit. The copies on the bookie are reported as
unreachable: their state is unknown.

**A ledger without metadata.** If a log lists the ledger, the ledger is archived or *lost*. A job that deletes
a ledger first takes it off the list. A job that archives a ledger first makes a record of the ledger's file.
So the task reads the metadata, then the archive's records, and then the list. It syncs the store before it
reads the list. If the ledger has no metadata and no record of a file, and the list still names the ledger,
the ledger is lost.

**A file** is checked against its record in the metadata store: size, end of the file, and digest of the end.
The offsets in the file, in its record and in the log's list must be the same. A scrub reads the whole file. A
job deletes a file after the log's list has dropped the file's ledgers. So if the task finds a fault, it reads
the list afterwards, and reports no fault if the list has dropped the ledger.

**Unreadable records.** If a record does not decode, if a node among the records is not a record, or if the
audit may not read a ledger, the task reports a row and continues.

**A busy bookie** is asked less often. A task sends a bookie one request at a time, and then pauses. The pause
grows with the time that the answer took (``concurrency.pace.TimeShare``). If the bookie says
TOO_MANY_REQUESTS, the connection asks again after a pause, and the time until the answer counts.

The audit writes nothing, fences nothing and repairs nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from ledgerlog.archive.core.lifecycle import covers_its_segment
from ledgerlog.archive.reader import check_archive, check_end
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.concurrency.nurseries import background
from ledgerlog.concurrency.pace import TimeShare
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveSupportMissing,
    ArchiveUnavailable,
    InvalidArgument,
    LedgerLogError,
    LogNotFound,
    PermissionDenied,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.copies import ask_copies, carry_out
from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk
from ledgerlog.ledger.core.copies import CopyCheck, CopyFault, is_due
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import SCRUB_TIMEOUT_S
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.archive import ArchivedFile
from ledgerlog.model.ids import BookieId
from ledgerlog.model.layout import ARCHIVES, LEDGERS, LOG_RECORDS, log_name_path, log_record_path
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.redact import redact
from ledgerlog.spark.audit_plan import AuditPart, ListedFile, ListedLedger, ListedLog
from ledgerlog.spark.channel import take_from

__all__ = [
    "ARCHIVE",
    "CHECKED",
    "CHECKED_FILE",
    "CHECKED_LOG",
    "DENIED",
    "FILE_CORRUPT",
    "FILE_MISSING",
    "FILE_UNREACHABLE",
    "LOG",
    "LOST",
    "METADATA",
    "SOUND",
    "AuditBroken",
    "AuditRow",
    "open_audit",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LEDGERS_AT_ONCE = 8
_AHEAD = 4
"""How many batches of rows may wait for the thread that takes them."""
_SILENT_S = 60.0
"""If a bookie did not answer, do not ask it again for this many seconds, or until the second look begins."""
_ROWS_AT_ONCE = 8192
"""The most rows that a batch has."""

CHECKED = "checked"
"""The kind of a row that says how many copies of a ledger on a bookie were checked."""
METADATA = "metadata"
"""The kind of a row about a ledger with unreadable metadata, or about a node below ``ledgers`` that does not
belong to a ledger. No copies of it can be checked."""
DENIED = "denied"
"""The kind of a row about a ledger that this client may not read; no copies of it were checked. Also about
the record of a log or an archived file that this client may not read."""
LOST = "lost"
"""The kind of a row about a ledger that a log lists, but that has no metadata and no file."""
LOG = "log"
"""The kind of a row about a log with an unreadable name or record, or a record without a name. The ledgers
that it lists are not known."""
ARCHIVE = "archive"
"""The kind of a row about an unreadable record of an archived file."""
FILE_MISSING = "file_missing"
"""The kind of a row about an archived file that is not there."""
FILE_CORRUPT = "file_corrupt"
"""The kind of a row about an archived file that is damaged, or differs from its record or the log's list."""
FILE_UNREACHABLE = "file_unreachable"
"""The kind of a row about an archived file that cannot be read now."""
CHECKED_LOG = "checked_log"
"""The kind of a row about a sound log, with ``summary``."""
CHECKED_FILE = "checked_file"
"""The kind of a row about a sound archived file, with ``summary``."""
SOUND = frozenset((CHECKED, CHECKED_LOG, CHECKED_FILE))
"""The kinds of rows that report no fault."""

_KIND_OF_STRAYS = {LEDGERS: METADATA, LOG_RECORDS: LOG, ARCHIVES: ARCHIVE}


@attrs.frozen(kw_only=True)
class AuditRow:
    """A row of the table; docs/SPARK.md describes the columns."""

    log: str | None
    """The logs that list the ledger, separated by commas; None if no log lists it."""
    ledger_id: int | None
    """The ledger; None in a row about a log, or about a node that is not a record."""
    bookie: str | None = None
    """The bookie that has the copies, or should have them."""
    first_entry: int | None = None
    """The first entry that the row is about."""
    last_entry: int | None = None
    """The last entry that the row is about."""
    copies: int = 0
    """How many entries from ``first_entry`` to ``last_entry`` the bookie has, or should have."""
    copies_left: int | None = None
    """How many sound copies other bookies have of each of these entries; the lowest number if the entries
    differ."""
    write_quorum: int | None = None
    """How many copies of each entry there should be."""
    kind: str
    """A value of ``FaultKind``, or one of the constants above."""
    file: str | None = attrs.field(default=None, converter=attrs.converters.optional(redact))
    """The URL of the archived file, without a password. For people."""
    why: str | None = attrs.field(default=None, converter=attrs.converters.optional(redact))
    """The reason, for people."""


class AuditBroken(LedgerLogError):
    """An audit ended before it had checked everything.

    Leave the ``async with`` of ``open_audit``; it raises the reason.
    """


@asynccontextmanager
async def open_audit(
    part: AuditPart, client: LedgerClient
) -> AsyncIterator[Callable[[], Awaitable[list[AuditRow] | None]]]:
    """Start one task of an audit, for the body of the ``async with``.

    Args:
        part: The ledgers, logs and files to check.
        client: The cluster.

    Yields:
        An async function. Each call returns the next rows. After the last rows, one call returns None.

    The function raises MetadataUnavailable (the metadata store did not answer) and AuditBroken (a bug ended
    the audit; leave the ``async with``, which raises the bug).
    """
    send, receive = trio.open_memory_channel[list[AuditRow] | LedgerLogError | None](_AHEAD)
    audit = _Audit(part, client, send)

    broken = AuditBroken("the audit ended before it had checked everything")
    async with background(audit.run, name="audit"):
        yield partial(take_from, receive, broken)


@attrs.frozen
class _Look:
    """The result of one look at a ledger."""

    metadata: LedgerMetadata
    """The metadata at the time of the look."""
    faults: list[CopyFault]
    """The copies that are missing or at fault."""
    checked: dict[BookieId, int]
    """How many copies were checked, by bookie."""


class _Audit:
    """The checks of one task, and the rows that they send."""

    def __init__(
        self,
        part: AuditPart,
        client: LedgerClient,
        send: trio.MemorySendChannel[list[AuditRow] | LedgerLogError | None],
    ) -> None:
        self._part = part
        self._client = client
        self._send = send
        self._registry = LedgerRegistry(client.store, client.environment)
        self._logs = LogRegistry(client.store, client.environment)
        self._archives = ArchiveRegistry(client.store)
        self._silent_until: dict[BookieId, float] = {}
        self._shares: dict[BookieId, TimeShare] = defaultdict(partial(TimeShare, part.bookie_share))

    async def run(self) -> None:
        """Check everything. Send rows, and at the end None or the error."""
        with self._send:
            try:
                await self._check_all()
            except LedgerLogError as failure:
                await self._send.send(failure)
            else:
                await self._send.send(None)

    async def _check_all(self) -> None:
        # Sync first: this replica of the store may not know a new ledger yet. The ledger would look deleted.
        await self._client.store.sync()
        doubtful: list[ListedLedger] = []
        doubtful_files: list[ListedFile] = []

        async def first(ledger: ListedLedger) -> None:
            if not await self._is_clean(ledger):
                doubtful.append(ledger)

        async def first_of_file(file: ListedFile) -> None:
            if not await self._is_clean_file(file):
                doubtful_files.append(file)

        for stray in self._part.strays:
            kind = DENIED if stray.is_denied else _KIND_OF_STRAYS[stray.root]
            await self._send.send([AuditRow(log=None, ledger_id=None, kind=kind, why=stray.why)])
        await self._for_each(self._part.log_records, self._report_log_record)
        await self._for_each(self._part.logs, self._report_log)
        await self._for_each(self._part.ledgers, first)
        await self._for_each(self._part.files, first_of_file)
        if doubtful or doubtful_files:
            await trio.sleep(self._part.settle_s)
            self._silent_until.clear()
            await self._for_each(sorted(doubtful, key=lambda ledger: ledger.ledger_id), self._report)
            await self._for_each(doubtful_files, self._report_file)

    async def _for_each(self, items: Collection[T], work: Callable[[T], Awaitable[None]]) -> None:
        await gather_each(items, work, at_once=_LEDGERS_AT_ONCE)

    # --- a ledger ---------------------------------------------------------------------------------

    async def _is_clean(self, ledger: ListedLedger) -> bool:
        """Look at a ledger; return whether there is nothing to report. If so, send its summary."""
        try:
            look = await self._look(ledger.ledger_id)
        except (MetadataCorrupt, PermissionDenied):
            return False
        if look is None:
            # If no log lists it, it was deleted.
            return not ledger.incarnations or await self._is_archived(ledger)
        if look.faults:
            return False
        await self._tell(ledger, look, [])
        return True

    async def _report(self, ledger: ListedLedger) -> None:
        """Look at a ledger a second time, and report the faults that are still there."""
        try:
            look = await self._look(ledger.ledger_id)
            if look is None:
                await self._report_lost(ledger)
                return
            await self._client.store.sync()
            now = await self._registry.find(ledger.ledger_id)
        except (MetadataCorrupt, PermissionDenied) as failure:
            logger.error("ledger=%d cannot be checked: %s", ledger.ledger_id, failure)
            kind = _kind_of(failure, METADATA)
            row = AuditRow(log=ledger.logs, ledger_id=ledger.ledger_id, kind=kind, why=str(failure))
            await self._send.send([row])
            return
        if now is not None:
            await self._tell(ledger, look, [fault for fault in look.faults if is_due(now[0], fault)])

    async def _report_lost(self, ledger: ListedLedger) -> None:
        """Report a ledger without metadata if it is not archived and a log still lists it."""
        if await self._is_archived(ledger):
            return
        for incarnation in ledger.incarnations:
            metadata, _ = await self._read_log(incarnation)
            if metadata is not None and metadata.index_of(ledger.ledger_id) is not None:
                why = f"log {metadata.name!r} lists it, but it has no metadata and no archived file"
                logger.error("ledger=%d is lost: %s", ledger.ledger_id, why)
                row = AuditRow(log=ledger.logs, ledger_id=ledger.ledger_id, kind=LOST, why=why)
                await self._send.send([row])
                return

    async def _is_archived(self, ledger: ListedLedger) -> bool:
        """Whether there is a record of the ledger's file, in the archive of a log that lists the ledger. True
        also if the record does not decode."""
        for incarnation in ledger.incarnations:
            try:
                if await self._archives.find(incarnation, ledger.ledger_id) is not None:
                    return True
            except (MetadataCorrupt, PermissionDenied):
                return True  # The check of the file reports the record.
        return False

    # --- a log ------------------------------------------------------------------------------------

    async def _report_log(self, log: ListedLog) -> None:
        """Report a log whose record cannot be read; otherwise send its summary."""
        try:
            incarnation = await self._logs.find(log.name)
            if incarnation is None:
                return  # It was deleted.
            if (await self._logs.read(incarnation))[0] is None:
                why = await self._logs.why_missing(log.name, incarnation)
                if not isinstance(why, LogNotFound):
                    raise why
                return
        except (MetadataCorrupt, InvalidArgument, PermissionDenied) as damage:
            await self._report_damaged_log(log.name, damage)
            return
        if self._part.summary:
            await self._send.send([AuditRow(log=log.name, ledger_id=None, kind=CHECKED_LOG)])

    async def _report_log_record(self, incarnation: int) -> None:
        """Report a record of a log to which no name leads."""
        try:
            metadata, _ = await self._logs.read(incarnation, fresh=False)
        except (MetadataCorrupt, PermissionDenied) as damage:
            await self._report_damaged_log(None, damage)
            return
        if metadata is None:
            return  # The log was deleted.
        try:
            named = await self._logs.find(metadata.name)
        except (MetadataCorrupt, PermissionDenied):
            return  # The check of the name reports it.
        if named != incarnation:
            why = f"{log_name_path(metadata.name)} should name {log_record_path(incarnation)}, and does not"
            await self._report_damaged_log(metadata.name, why)

    async def _report_damaged_log(self, name: str | None, damage: object) -> None:
        logger.error("log=%s cannot be checked: %s", name, damage)
        kind = _kind_of(damage, LOG)
        await self._send.send([AuditRow(log=name, ledger_id=None, kind=kind, why=str(damage))])

    async def _read_log(self, incarnation: int) -> tuple[LogMetadata | None, bool]:
        """Return the current record of a log, and whether it can be read.

        The record is None if it is gone or cannot be read.
        """
        try:
            return (await self._logs.read(incarnation))[0], True
        except (MetadataCorrupt, PermissionDenied):
            return None, False

    # --- a file -----------------------------------------------------------------------------------

    async def _is_clean_file(self, file: ListedFile) -> bool:
        """Look at a file; return whether there is nothing to report. If so, send its summary."""
        record, row = await self._look_at_file(file)
        if row is None and record is not None and self._part.summary:
            name = record.log if file.log is None else file.log
            row = AuditRow(log=name, ledger_id=file.ledger_id, kind=CHECKED_FILE, file=record.file)
            await self._send.send([row])
            return True
        return row is None

    async def _report_file(self, file: ListedFile) -> None:
        """Look at a file a second time, and report a fault that is still there."""
        record, row = await self._look_at_file(file)
        if row is None:
            return
        if record is not None:
            metadata, is_readable = await self._read_log(file.incarnation)
            if is_readable and (metadata is None or metadata.index_of(file.ledger_id) is None):
                return  # A job is retiring it.
            try:
                now = await self._archives.find(file.incarnation, file.ledger_id)
            except (MetadataCorrupt, PermissionDenied):
                return  # The record was damaged just now. The next audit reports it.
            if now is None or now[0] != record:
                return  # The record was withdrawn or replaced. The next audit checks the new one.
        logger.error("ledger=%d log=%s file=%s: %s", file.ledger_id, file.log, row.file, row.why)
        await self._send.send([row])

    async def _look_at_file(self, file: ListedFile) -> tuple[ArchivedFile | None, AuditRow | None]:
        """Check a file. Return the file's record (None if it cannot be read), and a row about a fault of the
        record or of the file (None if there is no fault)."""

        def wrong(kind: str, why: object, url: str | None = None) -> AuditRow:
            return AuditRow(log=file.log, ledger_id=file.ledger_id, kind=kind, file=url, why=str(why))

        try:
            found = await self._archives.find(file.incarnation, file.ledger_id)
        except (MetadataCorrupt, PermissionDenied) as failure:
            return None, wrong(_kind_of(failure, ARCHIVE), failure)
        if found is None:
            return None, None
        record = found[0]
        try:
            await check_end(record)
            if self._part.scrub:
                await check_archive(record)
        except ArchiveCorrupt as failure:
            return record, wrong(FILE_CORRUPT, failure, record.file)
        except ArchiveUnavailable as failure:
            is_gone = isinstance(failure.__cause__, FileNotFoundError)
            return record, wrong(FILE_MISSING if is_gone else FILE_UNREACHABLE, failure, record.file)
        except ArchiveSupportMissing as failure:
            return record, wrong(FILE_UNREACHABLE, failure, record.file)
        metadata, _ = await self._read_log(file.incarnation)
        at = None if metadata is None else metadata.index_of(file.ledger_id)
        if metadata is not None and at is not None:
            segment = metadata.segments[at]
            if not covers_its_segment(metadata, record):
                why = (
                    f"its record says offsets {record.first_offset} to {record.end_offset}, but the log's "
                    f"list says {segment.first_offset} to {segment.end_offset}"
                )
                return record, wrong(FILE_CORRUPT, why, record.file)
        return record, None

    # --- answers ----------------------------------------------------------------------------------

    async def _tell(self, ledger: ListedLedger, look: _Look, faults: list[CopyFault]) -> None:
        """Send the rows of a ledger: faults, and its summary."""
        rows = [_row(ledger, fault) for fault in faults]
        if self._part.summary:
            rows += _summary(ledger, look)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            await self._send.send(rows[start : start + _ROWS_AT_ONCE])

    async def _look(self, ledger_id: int) -> _Look | None:
        """Look at a ledger once; None if it does not exist.

        Raises:
            MetadataCorrupt: Its metadata do not decode.
            PermissionDenied: This client may not read it.
        """
        found = await self._registry.find(ledger_id)
        if found is None:
            return None
        check = CopyCheck(found[0], scrub=self._part.scrub)
        faults = await carry_out(check, partial(self._answer, ledger_id))
        return _Look(found[0], faults, dict(check.checked))

    async def _answer(self, ledger_id: int, ask: CopyAsk) -> CopyAnswer | None:
        """Ask a bookie. None if it does not answer, or if it failed to answer less than a minute ago."""
        share = self._shares[ask.bookie]
        async with share.turn():
            if trio.current_time() < self._silent_until.get(ask.bookie, 0.0):
                return None
            await share.rest()
            begun = trio.current_time()
            connection = self._client.pool.connection(ask.bookie)
            # Audits are not urgent, so use the long time limit of a scrub.
            answer = await ask_copies(connection, ledger_id, ask, timeout_s=SCRUB_TIMEOUT_S)
            now = trio.current_time()
            if answer is None:
                self._silent_until[ask.bookie] = now + _SILENT_S
            else:
                share.on_worked(now - begun, now)
            return answer


def _kind_of(failure: object, kind: str) -> str:
    """Return the kind of the row about a record that cannot be read: ``kind``, if it is damaged."""
    return DENIED if isinstance(failure, PermissionDenied) else kind


def _row(ledger: ListedLedger, fault: CopyFault) -> AuditRow:
    return AuditRow(
        log=ledger.logs,
        ledger_id=fault.ledger_id,
        bookie=fault.bookie,
        first_entry=fault.first_entry,
        last_entry=fault.last_entry,
        copies=fault.copies,
        copies_left=fault.copies_left,
        write_quorum=fault.write_quorum,
        kind=fault.kind.value,
    )


def _summary(ledger: ListedLedger, look: _Look) -> Iterator[AuditRow]:
    for bookie, copies in sorted(look.checked.items()):
        yield AuditRow(
            log=ledger.logs,
            ledger_id=ledger.ledger_id,
            bookie=bookie,
            copies=copies,
            write_quorum=look.metadata.replication.write_quorum,
            kind=CHECKED,
        )
