"""What a task of an audit does: check every copy of some ledgers, and report what stands up to a second look.

``ledger.core.copies`` says what to ask and what the answers come to. Here the metadata are read, bookies are
asked, several ledgers at a time, and false alarms are kept out:

1. A ledger without a fault is done.
2. The others are looked at again, from their metadata on, when all have been looked at once and ``settle_s``
   has gone by. An entry is committed by an ack quorum, and may be on its way to one bookie more: by then it
   has arrived, or that bookie has failed.
3. What the second look finds is reported if the metadata, read once more behind a sync, still ask it of that
   bookie. Repair may have moved a share meanwhile, and what was deleted is missed by nobody: collection
   begins after the metadata are gone, so if they are there the entries should have been.

A bookie that did not answer is not asked again for a while, or one that hangs would cost its time limit for
each ledger. Of what it has nothing is known, and that is what is reported.

**A ledger without metadata** that a log lists is in an archive, or it is *lost*. Whoever deletes a ledger
takes it off the list first, and who archives it makes the record first. So these are asked in the order
metadata, archive, list, the last behind a sync: it is lost if the first two have nothing and the list still
names it.

**A file** is held against its record: size, end, the digest there, and the offsets that it, its record and
the log's list say; in a scrub it is read whole. A file is retired after its log's list named it no more, so
that is asked behind a look that found something.

Nothing is written, fenced or repaired.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from ledgerlog.archive.reader import check_archive, check_end
from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.concurrency.nurseries import beside
from ledgerlog.errors import ArchiveCorrupt, ArchiveSupportMissing, ArchiveUnavailable, LedgerLogError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.copies import ask_copies, carry_out
from ledgerlog.ledger.core.comparison import CopyAnswer, CopyAsk
from ledgerlog.ledger.core.copies import CopyCheck, CopyFault, is_due
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.limits import SCRUB_TIMEOUT_S
from ledgerlog.log.registry import LogRegistry
from ledgerlog.model.archive import ArchiveRecord
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.redact import redact
from ledgerlog.spark.audit_plan import AuditPart, ListedFile, ListedLedger, ListedLog

__all__ = [
    "ARCHIVE",
    "CHECKED",
    "CHECKED_FILE",
    "CHECKED_LOG",
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
_SILENT_S = 60.0
"""A bookie that did not answer counts as silent for so long before it is asked again."""
_ROWS_AT_ONCE = 8192

CHECKED = "checked"
"""The kind of a row that says how many copies of a ledger were checked on a bookie."""
METADATA = "metadata"
"""The kind of a row about a ledger whose metadata cannot be read: nothing of it can be checked."""
LOST = "lost"
"""... about a ledger that a log lists, and that has neither metadata nor a file."""
LOG = "log"
"""... about a log whose record cannot be read: which ledgers it lists is not known."""
ARCHIVE = "archive"
"""... about a record of an archived file that cannot be read."""
FILE_MISSING = "file_missing"
FILE_CORRUPT = "file_corrupt"
"""... about a file that is damaged, or is not the one that its record or its log's list say."""
FILE_UNREACHABLE = "file_unreachable"
CHECKED_LOG = "checked_log"
CHECKED_FILE = "checked_file"
"""The kinds of rows about what is sound, with ``summary``."""
SOUND = frozenset((CHECKED, CHECKED_LOG, CHECKED_FILE))


@attrs.frozen(kw_only=True)
class AuditRow:
    """A row of the table; docs/SPARK.md has the columns."""

    log: str | None
    ledger_id: int | None
    """None in a row about a log."""
    bookie: str | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    copies: int = 0
    copies_left: int | None = None
    write_quorum: int | None = None
    kind: str
    file: str | None = attrs.field(default=None, converter=attrs.converters.optional(redact))
    """Its URL, for people: without a password."""
    why: str | None = attrs.field(default=None, converter=attrs.converters.optional(redact))


class AuditBroken(LedgerLogError):
    """An audit has ended before its end. Why, the context that it was opened with raises when it is left."""


@asynccontextmanager
async def open_audit(
    part: AuditPart, client: LedgerClient
) -> AsyncIterator[Callable[[], Awaitable[list[AuditRow] | None]]]:
    """For the body of the ``async with``, an async function that gives rows as they are found, and None at
    the end, once. It raises MetadataUnavailable; AuditBroken where a bug has ended the audit."""
    send, receive = trio.open_memory_channel[list[AuditRow] | LedgerLogError | None](_AHEAD)
    audit = _Audit(part, client, send)

    async def take() -> list[AuditRow] | None:
        try:
            got = await receive.receive()
        except trio.EndOfChannel:
            raise AuditBroken("the audit ended before its end") from None
        if isinstance(got, LedgerLogError):
            raise got
        return got

    async with beside(audit.run, name="audit"):
        yield take


@attrs.frozen
class _Look:
    """What one look at a ledger found."""

    metadata: LedgerMetadata
    faults: list[CopyFault]
    checked: dict[BookieId, int]


class _Audit:
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

    async def run(self) -> None:
        """Check all; the last thing that is sent is None, or what it failed with."""
        with self._send:
            try:
                await self._check_all()
            except LedgerLogError as failure:
                await self._send.send(failure)
            else:
                await self._send.send(None)

    async def _check_all(self) -> None:
        # A ledger that a replica of the store has not heard of yet would pass for deleted.
        await self._client.store.sync()
        doubtful: list[ListedLedger] = []
        doubtful_files: list[ListedFile] = []

        async def first(ledger: ListedLedger) -> None:
            if not await self._is_clean(ledger):
                doubtful.append(ledger)

        async def first_of_file(file: ListedFile) -> None:
            if not await self._is_clean_file(file):
                doubtful_files.append(file)

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
        """Whether there is nothing to report of a ledger; what was checked is told then."""
        try:
            look = await self._look(ledger.ledger_id)
        except MetadataCorrupt:
            return False
        if look is None:
            # It was deleted, unless a log lists it still.
            return not ledger.incarnations or await self._is_archived(ledger)
        if look.faults:
            return False
        await self._tell(ledger, look, [])
        return True

    async def _report(self, ledger: ListedLedger) -> None:
        """Look a second time, and tell what stands."""
        try:
            look = await self._look(ledger.ledger_id)
            if look is None:
                await self._report_lost(ledger)
                return
            await self._client.store.sync()
            now = await self._registry.find(ledger.ledger_id)
        except MetadataCorrupt as damage:
            logger.error("ledger=%d cannot be checked: %s", ledger.ledger_id, damage)
            row = AuditRow(log=ledger.logs, ledger_id=ledger.ledger_id, kind=METADATA, why=str(damage))
            await self._send.send([row])
            return
        if now is not None:
            await self._tell(ledger, look, [fault for fault in look.faults if is_due(now[0], fault)])

    async def _report_lost(self, ledger: ListedLedger) -> None:
        """Tell of a ledger without metadata if nobody has it, and a log lists it."""
        if await self._is_archived(ledger):
            return
        for incarnation in ledger.incarnations:
            metadata, _ = await self._read_log(incarnation)
            if metadata is not None and metadata.index_of(ledger.ledger_id) is not None:
                why = f"log {metadata.name!r} lists it, and it has neither metadata nor an archived file"
                logger.error("ledger=%d is lost: %s", ledger.ledger_id, why)
                row = AuditRow(log=ledger.logs, ledger_id=ledger.ledger_id, kind=LOST, why=why)
                await self._send.send([row])
                return

    async def _is_archived(self, ledger: ListedLedger) -> bool:
        """Whether one of the logs that list it has a record of its file, be it readable or not."""
        for incarnation in ledger.incarnations:
            try:
                if await self._archives.find(incarnation, ledger.ledger_id) is not None:
                    return True
            except MetadataCorrupt:
                return True  # Whoever looks at the file says so.
        return False

    # --- a log ------------------------------------------------------------------------------------

    async def _report_log(self, log: ListedLog) -> None:
        try:
            incarnation = await self._logs.find(log.name)
            if incarnation is None or (await self._logs.read(incarnation, fresh=False))[0] is None:
                return  # It was deleted.
        except MetadataCorrupt as damage:
            logger.error("log=%s cannot be checked: %s", log.name, damage)
            await self._send.send([AuditRow(log=log.name, ledger_id=None, kind=LOG, why=str(damage))])
            return
        if self._part.summary:
            await self._send.send([AuditRow(log=log.name, ledger_id=None, kind=CHECKED_LOG)])

    async def _read_log(self, incarnation: int) -> tuple[LogMetadata | None, bool]:
        """A log's record as it is now, None where there is none or it cannot be read; whether it can."""
        try:
            return (await self._logs.read(incarnation))[0], True
        except MetadataCorrupt:
            return None, False

    # --- a file -----------------------------------------------------------------------------------

    async def _is_clean_file(self, file: ListedFile) -> bool:
        """Whether there is nothing to report of a file; that it was checked is told then."""
        record, row = await self._look_at_file(file)
        if row is None and record is not None and self._part.summary:
            name = record.log if file.log is None else file.log
            row = AuditRow(log=name, ledger_id=file.ledger_id, kind=CHECKED_FILE, file=record.file)
            await self._send.send([row])
            return True
        return row is None

    async def _report_file(self, file: ListedFile) -> None:
        """Look a second time, and tell what stands."""
        record, row = await self._look_at_file(file)
        if row is None:
            return
        if record is not None:
            metadata, is_readable = await self._read_log(file.incarnation)
            if is_readable and (metadata is None or metadata.index_of(file.ledger_id) is None):
                return  # It is being retired.
            try:
                now = await self._archives.find(file.incarnation, file.ledger_id)
            except MetadataCorrupt:
                return  # As of just now; the next audit sees it.
            if now is None or now[0] != record:
                return  # It was withdrawn or written again; the next audit sees what it is now.
        logger.error("ledger=%d log=%s file=%s: %s", file.ledger_id, file.log, row.file, row.why)
        await self._send.send([row])

    async def _look_at_file(self, file: ListedFile) -> tuple[ArchiveRecord | None, AuditRow | None]:
        """A file's record, if there is one that can be read, and what is wrong with either."""

        def wrong(kind: str, why: object, url: str | None = None) -> AuditRow:
            return AuditRow(log=file.log, ledger_id=file.ledger_id, kind=kind, file=url, why=str(why))

        try:
            found = await self._archives.find(file.incarnation, file.ledger_id)
        except MetadataCorrupt as damage:
            return None, wrong(ARCHIVE, damage)
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
            if (segment.first_offset, segment.end_offset) != (record.first_offset, record.end_offset):
                why = (
                    f"its record says offsets {record.first_offset} to {record.end_offset}, and the list of "
                    f"the log {segment.first_offset} to {segment.end_offset}"
                )
                return record, wrong(FILE_CORRUPT, why, record.file)
        return record, None

    # --- answers ----------------------------------------------------------------------------------

    async def _tell(self, ledger: ListedLedger, look: _Look, faults: list[CopyFault]) -> None:
        rows = [_row(ledger, fault) for fault in faults]
        if self._part.summary:
            rows += _summary(ledger, look)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            await self._send.send(rows[start : start + _ROWS_AT_ONCE])

    async def _look(self, ledger_id: int) -> _Look | None:
        """One look at a ledger; None where there is no such ledger. MetadataCorrupt."""
        found = await self._registry.find(ledger_id)
        if found is None:
            return None
        check = CopyCheck(found[0], scrub=self._part.scrub)
        faults = await carry_out(check, partial(self._answer, ledger_id))
        return _Look(found[0], faults, dict(check.checked))

    async def _answer(self, ledger_id: int, ask: CopyAsk) -> CopyAnswer | None:
        if trio.current_time() < self._silent_until.get(ask.bookie, 0.0):
            return None
        connection = self._client.pool.connection(ask.bookie)
        # Nobody waits for an audit: a scrub's patience.
        answer = await ask_copies(connection, ledger_id, ask, timeout_s=SCRUB_TIMEOUT_S)
        if answer is None:
            self._silent_until[ask.bookie] = trio.current_time() + _SILENT_S
        return answer


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
