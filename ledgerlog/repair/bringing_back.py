"""Bringing forgotten ledgers back into the logs that they continue.

A ledger is *forgotten* if bookies hold it but a restored metadata store does not know it
(``repair.core.metadata_check``). For each log, this module goes through the log's forgotten ledgers in the
order in which they were written:

1. Read the first entry of each ledger. Its header has the ledger's epoch, the first offset, and the number of
   bytes before it.
2. End the ledgers that were open in the backup. A ledger ends where a leader of a later epoch began: no entry
   beyond that point was acknowledged.
3. Bring a forgotten ledger back if it begins where the log ends, and if its epoch is not earlier than the
   epoch of the log's last ledger. Make its metadata again, with the label of ledgers from a backup, so that
   its recovery asks all bookies (``ledger.holders``).
4. Add the ledger to the log's list by a compare-and-set. Only then is the ledger part of the log.

**Gaps.** Bookies may no longer hold the ledgers before a forgotten ledger. For example, the log was truncated
after the backup, and its older ledgers were collected. Then the ledger begins behind the end of the log. With
``accept_gaps`` it comes back behind a gap, as after an accepted loss (``log.core.chain``). The same holds if
two ledgers were open in the backup and the newer one does not continue the older one.

A crash before step 4 leaves metadata that no list names, so the ledger still counts as forgotten. The next
run continues there. If a ledger does not continue its log, this module leaves the ledger out and reports it:
the ledger's offsets may belong to other records.

**A failure.** If a ledger fails for a reason that may pass, the later ledgers of its log stay forgotten too.
Behind a gap they would take its place for ever, and without its first entry nobody knows which entries of the
ledgers before it were acknowledged. Only a ledger that is proven to be lost, or that no run can bring back,
does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ledgerlog.errors import (
    BookieUnavailable,
    EntryCorrupt,
    EntryNotFound,
    EntryUnavailable,
    InvalidArgument,
    LedgerLogError,
    LedgerNotFound,
    LogListFull,
    LogNotFound,
    LossUndecided,
    MetadataCorrupt,
    NotEnoughBookies,
    PermissionDenied,
    RecoveryFailed,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.ledger.core.writer import MetadataIntent
from ledgerlog.ledger.metadata import LedgerRegistry
from ledgerlog.ledger.ranges import read_entries
from ledgerlog.limits import ENSEMBLE_MAX
from ledgerlog.log.core.chain import count_segment
from ledgerlog.log.registry import LogRegistry, ledger_labels
from ledgerlog.log.takeover import read_contents, recover
from ledgerlog.meta.settle import settle
from ledgerlog.meta.store import Create
from ledgerlog.model.ids import NO_ENTRY, BookieId
from ledgerlog.model.layout import ledger_path
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.model.restoration import AS_IN_BACKUP_LABEL
from ledgerlog.repair.core.metadata_check import HeldOnly, MetadataCheck
from ledgerlog.wire.records import EntryHeader, decode_header

__all__ = ["BroughtBack", "LeftOut", "bring_back"]

_LASTING = (EntryCorrupt, EntryNotFound, InvalidArgument)
"""The errors after which a ledger never comes back. The log continues without it.

InvalidArgument: more bookies hold the ledger than an ensemble can have.
"""

_FAILURES = (
    *_LASTING,
    EntryUnavailable,
    LedgerNotFound,
    LogListFull,
    LossUndecided,
    MetadataCorrupt,
    NotEnoughBookies,
    PermissionDenied,
    RecoveryFailed,
)
"""The errors that keep a ledger from coming back. The other logs continue."""

_HOW_TO_ACCEPT = (
    "If the records before it were truncated, or cannot come back, run "
    "'ledgerlog metadata check --bring-back --accept-gaps'"
)


@attrs.frozen
class BroughtBack:
    """A ledger that is part of its log again."""

    ledger_id: int
    log: str
    first_offset: int
    records: int


@attrs.frozen
class LeftOut:
    """A forgotten ledger that was not brought back."""

    ledger_id: int
    log: str | None
    why: str


class _NotNext(Exception):
    """The ledger does not continue the log. The message says why."""


async def bring_back(
    client: LedgerClient, check: MetadataCheck, *, accept_absent: bool = False, accept_gaps: bool = False
) -> tuple[list[BroughtBack], list[LeftOut]]:
    """Bring back the ledgers that continue a log. Call this before any writer starts.

    Args:
        client: The client of the cluster.
        check: The result of ``look_at_metadata``.
        accept_absent: Continue although some bookies are not registered or did not list their ledgers. A
            ledger that only such bookies hold does not come back, and the next writer uses its offsets again.
        accept_gaps: Also bring back a ledger that begins behind the end of its log. The offsets in between
            are a gap. Their records were truncated or are lost, or were never acknowledged.

    Returns:
        The ledgers that came back, and the ledgers that did not. A ledger on the log's list whose records do
        not continue the log counts as one that did not.

    Raises:
        InvalidArgument: There is no restore with a loss that you must still accept, so nothing is forgotten.
        BookieUnavailable: Bookies are absent, and ``accept_absent`` is not set. Nothing was changed.
        MetadataUnavailable: The metadata store went away. Call this again.
    """
    if check.restoration is None:
        raise InvalidArgument(
            "no ledger is forgotten: there is no restore with a loss that still has to be accepted"
        )
    absent = sorted({*check.unregistered, *check.silent})
    if absent and not accept_absent:
        raise BookieUnavailable(
            f"nothing is brought back: {' '.join(absent)} did not list the ledgers that they hold, and a "
            f"later writer would reuse the offsets of ledgers that only they have. Start them and wait "
            f"until 'ledgerlog bookie list' shows them, or accept this loss (--accept-absent)"
        )
    back: list[BroughtBack] = []
    left: list[LeftOut] = []
    of_logs: dict[int, list[HeldOnly]] = {}
    for ledger in check.forgotten:
        if ledger.incarnation is None:
            left.append(LeftOut(ledger.ledger_id, None, "it was not made for a log in the metadata"))
        else:
            of_logs.setdefault(ledger.incarnation, []).append(ledger)
    incarnations, _ = await LogRegistry(client.store, client.environment).records()
    for incarnation in incarnations:
        log = _Log(client, incarnation, check.restoration.floor, back, left, accept_gaps=accept_gaps)
        forgotten = of_logs.pop(incarnation, [])
        if forgotten or await log.ends_in_doubt():
            try:
                await log.bring_back(forgotten)
            except LogNotFound:  # It was deleted meanwhile.
                named = {ledger.ledger_id for ledger in back} | {ledger.ledger_id for ledger in left}
                of_logs[incarnation] = [each for each in forgotten if each.ledger_id not in named]
    for forgotten in of_logs.values():
        left += [LeftOut(ledger.ledger_id, ledger.log, "its log is gone") for ledger in forgotten]
    return back, left


class _Log:
    def __init__(
        self,
        client: LedgerClient,
        incarnation: int,
        floor: int,
        back: list[BroughtBack],
        left: list[LeftOut],
        *,
        accept_gaps: bool,
    ) -> None:
        self._client = client
        self._accept_gaps = accept_gaps
        self._floor = floor
        self._incarnation = incarnation
        self._logs = LogRegistry(client.store, client.environment)
        self._ledgers = LedgerRegistry(client.store, client.environment)
        self._back = back
        self._left = left

    async def ends_in_doubt(self) -> bool:
        """Whether two ledgers of the log were open in the backup, so that the newer one may have to be left
        out."""
        try:
            record = await self._read()
        except (LogNotFound, MetadataCorrupt):
            return False
        return len(record.open_segments) == 2

    async def bring_back(self, forgotten: Sequence[HeldOnly]) -> None:
        first: list[tuple[EntryHeader, HeldOnly]] = []
        for at, ledger in enumerate(forgotten):
            try:
                first.append((await self._first_header(ledger), ledger))
            except _FAILURES as failure:
                self._leave(ledger, f"its first entry cannot be read: {failure}")
                if not isinstance(failure, _LASTING):
                    others = [other for _, other in first] + [*forgotten[at + 1 :]]
                    self._leave_behind(others, ledger, failure)
                    return
        first.sort(key=lambda one: (one[0].epoch, one[0].first_offset, one[1].ledger_id))
        try:
            record = await self._read()
            await self._end_open(record, [header for header, _ in first])
        except _FAILURES as failure:
            why = str(failure)
            if isinstance(failure, LossUndecided):
                self._left.append(LeftOut(failure.kept_ledger, failure.name, why))
            elif isinstance(failure, EntryNotFound):
                why = f"{failure}. {_HOW_TO_ACCEPT}"
                self._left += [
                    LeftOut(segment.ledger_id, record.name, why) for segment in record.open_segments[1:]
                ]
            for _, ledger in first:
                self._leave(ledger, f"the ledger before it cannot be ended: {why}")
            return
        for at, (header, ledger) in enumerate(first):
            later = first[at + 1 :]
            try:
                await self._bring_one(ledger, header, [other for other, _ in later])
            except (*_FAILURES, _NotNext) as failure:
                self._leave(ledger, str(failure))
                if isinstance(failure, LedgerLogError) and not isinstance(failure, _LASTING):
                    self._leave_behind([other for _, other in later], ledger, failure)
                    return

    def _leave(self, ledger: HeldOnly, why: str) -> None:
        self._left.append(LeftOut(ledger.ledger_id, ledger.log, why))

    def _leave_behind(self, ledgers: Sequence[HeldOnly], failed: HeldOnly, failure: LedgerLogError) -> None:
        """Leave out the ledgers that come after one that failed, or may come after it."""
        for ledger in ledgers:
            self._leave(
                ledger, f"ledger {failed.ledger_id}, which may come before it, did not come back: {failure}"
            )

    async def _read(self) -> LogMetadata:
        record, _ = await self._logs.read(self._incarnation)
        if record is None:
            raise LogNotFound(str(self._incarnation))
        return record

    async def _first_header(self, ledger: HeldOnly) -> EntryHeader:
        """Return the header of a ledger's first entry. Errors as for ``read_entries``."""
        bookies = ledger.bookies[:ENSEMBLE_MAX]
        (payload,) = await read_entries(
            self._metadata_of(ledger, bookies, ack_quorum=1, custom={}),
            0,
            0,
            bytes_max=1,
            connection=self._client.pool.connection,
            failed={},
            prefer=0,
        )
        return decode_header(payload, ledger_id=ledger.ledger_id, entry_id=0)

    async def _end_open(self, record: LogMetadata, first: Sequence[EntryHeader]) -> None:
        if any(segment.ledger_id >= self._floor for segment in record.open_segments):
            return  # A leader has begun to write since the restore. Do not end its ledger.
        for segment in record.open_segments:
            closed = await self._client.ledgers.recover(segment.ledger_id)
            await self._cut(closed, [h for h in first if h.epoch > segment.epoch])
        if record.open_segments:
            await recover(
                self._client,
                self._logs,
                record.name,
                self._incarnation,
                accept_loss=self._accept_gaps,
                accept_unreachable=False,
            )

    async def _bring_one(self, ledger: HeldOnly, header: EntryHeader, later: Sequence[EntryHeader]) -> None:
        record = await self._read()
        self._check_place(record, header)
        await self._make_metadata(ledger, header, record)
        closed = await self._client.ledgers.recover(ledger.ledger_id)
        closed = await self._cut(closed, [other for other in later if other.epoch > header.epoch])
        contents = await read_contents(self._client.ledgers, closed)
        counts = count_segment(
            ledger.ledger_id,
            record.counted_end,
            contents,
            follows_open=self._accept_gaps,
            keep_behind_gap=self._accept_gaps,
        )
        if counts.record_count == 0:
            raise _NotNext("it has no records")

        async def change(now: LogMetadata, token: bytes) -> LogMetadata | None:
            if now.index_of(ledger.ledger_id) is not None:
                return None
            self._check_place(now, header)
            return now.brought_back(
                ledger.ledger_id, header.epoch, counts, token, names_producers=header.has_numbering
            )

        await self._logs.change(record.name, self._incarnation, change)
        self._back.append(
            BroughtBack(ledger.ledger_id, record.name, header.first_offset, counts.record_count)
        )

    def _check_place(self, record: LogMetadata, header: EntryHeader) -> None:
        """Raise _NotNext unless a ledger with this first header continues the log."""
        if record.sealed:
            raise _NotNext("its log is sealed")
        if record.open_segments:
            raise _NotNext(f"it begins at offset {header.first_offset}, but the log already has a leader")
        last_epoch = record.segments[-1].epoch if record.segments else 0
        is_behind_gap = header.first_offset > record.counted_end
        # The bytes in a gap are not counted.
        is_counted = self._accept_gaps or header.bytes_before == record.counted_bytes
        is_next = header.first_offset == record.counted_end and is_counted
        is_epoch_next = last_epoch <= header.epoch <= record.epoch
        if not (is_next or (is_behind_gap and self._accept_gaps)) or not is_epoch_next:
            raise _NotNext(
                f"it begins at offset {header.first_offset} in epoch {header.epoch}, but the log ends at "
                f"{record.counted_end} in epoch {last_epoch}"
                + (f". {_HOW_TO_ACCEPT}" if is_behind_gap and is_epoch_next else "")
            )

    async def _make_metadata(self, ledger: HeldOnly, header: EntryHeader, record: LogMetadata) -> None:
        metadata = self._metadata_of(
            ledger,
            ledger.bookies,
            ack_quorum=min(len(ledger.bookies), record.replication.ack_quorum),
            custom={**ledger_labels(record, header.epoch), AS_IN_BACKUP_LABEL: b""},
        )

        async def write(_: bool) -> None:
            if await self._ledgers.find(ledger.ledger_id) is None:
                await self._client.store.transaction(
                    [Create(ledger_path(ledger.ledger_id), metadata.encode())]
                )

        await settle(self._client.store, write, what=f"the return of ledger {ledger.ledger_id}")

    def _metadata_of(
        self, ledger: HeldOnly, bookies: tuple[BookieId, ...], *, ack_quorum: int, custom: dict[str, bytes]
    ) -> LedgerMetadata:
        return LedgerMetadata.create(
            ledger_id=ledger.ledger_id,
            replication=Replication(len(bookies), len(bookies), ack_quorum),
            ensemble=bookies,
            key=ledger.key,
            token=self._client.environment.new_token(),
            created_ms=self._client.environment.now_ms(),
            custom=custom,
        )

    async def _cut(self, closed: LedgerMetadata, later: Sequence[EntryHeader]) -> LedgerMetadata:
        """End a ledger before the entries that the leader of a later epoch did not find."""
        boundary = min((header.first_offset for header in later), default=None)
        last = closed.last_entry
        assert last is not None
        if boundary is None or last == NO_ENTRY:
            return closed
        reader = await self._client.ledgers.open(closed.ledger_id)
        while last >= 0:
            (payload,) = await reader.read(last, last)
            header = decode_header(payload, ledger_id=closed.ledger_id, entry_id=last)
            if header.end_offset <= boundary:
                break
            last -= 1
        if last == closed.last_entry:
            return closed

        def shorter(now: LedgerMetadata, token: bytes) -> LedgerMetadata:
            fragments = tuple(f for f in now.fragments if f.first_entry <= last + 1)
            return attrs.evolve(now, last_entry=last, fragments=fragments, token=token)

        return await self._change_ledger(closed.ledger_id, shorter)

    async def _change_ledger(
        self, ledger_id: int, change: Callable[[LedgerMetadata, bytes], LedgerMetadata]
    ) -> LedgerMetadata:
        while True:
            now, version = await self._ledgers.read(ledger_id)
            wanted = change(now, self._client.environment.new_token())
            stored, _ = await self._ledgers.attempt(MetadataIntent(wanted, version))
            if stored is None:
                raise LedgerNotFound(ledger_id)
            if stored.token == wanted.token:
                return stored
