"""What a task of an audit does: check every copy of some ledgers, and report what stands up to a second look.

``core.copies`` says what to ask and what the answers come to. Here the metadata are read, bookies are asked,
several ledgers at a time, and false alarms are kept out:

1. A ledger without a fault is done.
2. The others are looked at again, from their metadata on, when all have been looked at once and ``settle_s``
   has gone by. An entry is committed by an ack quorum, and may be on its way to one bookie more: by then it
   has arrived, or that bookie has failed.
3. What the second look finds is reported if the metadata, read once more behind a sync, still ask it of that
   bookie. Repair may have moved a share meanwhile, and what was deleted is missed by nobody: collection
   begins after the metadata are gone, so if they are there the entries should have been.

A bookie that did not answer is not asked again for a while, or one that hangs would cost its time limit for
each ledger. Of what it has nothing is known, and that is what is reported.

Nothing is written, fenced or repaired.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ledgerlog.client.client import LedgerClient
from ledgerlog.client.metadata import LedgerRegistry
from ledgerlog.client.ranges import list_range, scrub_range
from ledgerlog.client.together import together
from ledgerlog.core.copies import CopyAnswer, CopyAsk, CopyCheck, CopyFault, is_due
from ledgerlog.errors import LedgerLogError
from ledgerlog.limits import SCRUB_TIMEOUT_S
from ledgerlog.log.beside import beside
from ledgerlog.model.ids import BookieId
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.spark.audit_plan import AuditPart, ListedLedger

__all__ = ["CHECKED", "METADATA", "AuditBroken", "AuditRow", "open_audit"]

logger = logging.getLogger(__name__)

_LEDGERS_AT_ONCE = 8
_AHEAD = 4
_SILENT_S = 60.0
"""A bookie that did not answer counts as silent for so long before it is asked again."""
_ROWS_AT_ONCE = 8192

CHECKED = "checked"
"""The kind of a row that says how many copies of a ledger were checked on a bookie."""
METADATA = "metadata"
"""The kind of a row about a ledger whose metadata cannot be read: nothing of it can be checked."""


@attrs.frozen(kw_only=True)
class AuditRow:
    """A row of the table; docs/SPARK.md has the columns."""

    log: str | None
    ledger_id: int
    bookie: str | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    copies: int = 0
    copies_left: int | None = None
    write_quorum: int | None = None
    kind: str


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

        async def first(ledger: ListedLedger) -> None:
            if not await self._is_clean(ledger):
                doubtful.append(ledger)

        await self._for_each(self._part.ledgers, first)
        if doubtful:
            await trio.sleep(self._part.settle_s)
            self._silent_until.clear()
            await self._for_each(sorted(doubtful, key=lambda ledger: ledger.ledger_id), self._report)

    async def _for_each(
        self, ledgers: Iterable[ListedLedger], work: Callable[[ListedLedger], Awaitable[None]]
    ) -> None:
        waiting = iter(ledgers)

        async def some() -> None:
            for ledger in waiting:
                await work(ledger)

        await together(*[some] * _LEDGERS_AT_ONCE)

    # --- a ledger ---------------------------------------------------------------------------------

    async def _is_clean(self, ledger: ListedLedger) -> bool:
        """Whether there is nothing to report of a ledger; what was checked is told then."""
        try:
            look = await self._look(ledger.ledger_id)
        except MetadataCorrupt:
            return False
        if look is None:
            return True  # It was deleted.
        if look.faults:
            return False
        await self._tell(ledger, look, [])
        return True

    async def _report(self, ledger: ListedLedger) -> None:
        """Look a second time, and tell what stands."""
        try:
            look = await self._look(ledger.ledger_id)
            if look is None:
                return
            await self._client.store.sync()
            now = await self._registry.find(ledger.ledger_id)
        except MetadataCorrupt as damage:
            logger.error("ledger=%d cannot be checked: %s", ledger.ledger_id, damage)
            await self._send.send([AuditRow(log=ledger.logs, ledger_id=ledger.ledger_id, kind=METADATA)])
            return
        if now is not None:
            await self._tell(ledger, look, [fault for fault in look.faults if is_due(now[0], fault)])

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
        faults: list[CopyFault] = []
        while not check.is_done:
            await together(*(partial(self._ask, check, ask) for ask in check.take_asks()))
            faults += check.take_faults()
        return _Look(found[0], faults + check.take_faults(), dict(check.checked))

    async def _ask(self, check: CopyCheck, ask: CopyAsk) -> None:
        answer = None
        if trio.current_time() >= self._silent_until.get(ask.bookie, 0.0):
            answer = await self._answer(check.metadata.ledger_id, ask)
            if answer is None:
                self._silent_until[ask.bookie] = trio.current_time() + _SILENT_S
        if answer is None:
            check.on_silent(ask)
        else:
            check.on_answer(ask, answer)

    async def _answer(self, ledger_id: int, ask: CopyAsk) -> CopyAnswer | None:
        connection = self._client.pool.connection(ask.bookie)
        if not ask.classes:
            # As far as one reply goes, beyond what is asked for now. Nobody waits for an audit: a scrub's
            # patience.
            listed = await list_range(connection, ledger_id, first=ask.first, timeout_s=SCRUB_TIMEOUT_S)
            if listed is None:
                return None
            return CopyAnswer(through=listed.through, negative=listed.negative, sound=listed.pairs)
        scrubbed = await scrub_range(
            connection, ledger_id, first=ask.first, last=ask.last, classes=ask.classes
        )
        if scrubbed is None:
            return None
        report = scrubbed.report
        return CopyAnswer(
            through=scrubbed.through,
            negative=scrubbed.negative,
            sound=report.sound,
            unsound=report.unsound,
            sums=report.sums,
        )


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
