"""A log, and the names of logs: what ``Cluster`` gives to people.

A ``Log`` is a name bound to one incarnation of it; it holds no connection and no state that can go
stale. Everything that changes the record of a log is a compare-and-set that starts from a fresh read:
taking over and sealing through ``log.takeover``, giving records up through ``log.retention``, cursors through
``log.cursors``, properties and policies here.

Order of effects: a ledger leaves the list before it is deleted, and a log's record is removed before its
ledgers are. A crash in between leaves ledgers that nobody lists and that say which log they were
made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal

import attrs

from ledgerlog.errors import InvalidArgument, LogExists, LogNotFound, LogSealed, PropertiesConflict
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import LOG_LINGER_S_MAX, RECORD_BYTES_MAX
from ledgerlog.log import retention
from ledgerlog.log.attach import delete_marks
from ledgerlog.log.core.retention import why_kept
from ledgerlog.log.cursors import Cursor, delete_cursors, read_cursors
from ledgerlog.log.leader import SendOptions
from ledgerlog.log.leadership import WriterOptions, lead
from ledgerlog.log.positions import find_tail
from ledgerlog.log.reader import LogReader, Start, check_start, open_reader
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.snapshot_list import delete_snapshots
from ledgerlog.log.takeover import delete_ledgers, left_to_a_sweep, recover, seal
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata, check_properties
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.producer import Dedupe, check_producer_id
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import moment
from ledgerlog.model.segments import Gap, Segment

__all__ = ["Log", "LogInfo", "create_log", "delete_log", "list_logs", "open_log"]


@attrs.frozen(kw_only=True)
class LogInfo:
    """A log as it was at one moment."""

    name: str
    epoch: int
    """The newest leadership; 0 where there has been none."""
    first_offset: int
    """The first record that is still readable."""
    next_offset: int
    """One more than the last record that is confirmed."""
    sealed: bool
    gaps: tuple[Gap, ...]
    """The offsets from ``first_offset`` on whose records were lost; nearly always none."""
    segments: tuple[Segment, ...]
    replication: Replication
    roll: RollPolicy
    retention: RetentionPolicy
    properties: dict[str, str]
    created: datetime
    deduplicates: bool
    """Whether it remembers producers."""


class Log:
    """One log. Made by ``Cluster.create_log`` and ``Cluster.open_log``.

    A log that is deleted and made again under its name is another log: this object then raises
    LogNotFound. Every method may raise MetadataUnavailable, which says that what was asked for did not
    happen; those that write may raise MetadataOutcomeUnknown: it may have happened."""

    def __init__(self, client: LedgerClient, name: str, incarnation: int) -> None:
        self._client = client
        self._registry = LogRegistry(client.store, client.environment)
        self._name = name
        self._incarnation = incarnation

    def __repr__(self) -> str:
        return f"<Log {self._name!r}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def incarnation(self) -> int:
        """The number of this log, never given to another."""
        return self._incarnation

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
    ) -> AbstractAsyncContextManager[LogWriter]:
        """Leadership of the log for the body of an ``async with``. Entering takes the log over: it fences
        whoever led before, finds out where his records end, and raises the epoch.

        ``window`` and ``window_bytes`` bound what is taken and not yet durable (default
        ``limits.LOG_WINDOW_RECORDS`` and ``limits.LOG_WINDOW_BYTES``). Records are packed into entries of
        about ``entry_bytes`` (default ``limits.LOG_ENTRY_BYTES_TARGET``). While few entries are on their way
        a record is sent at once; with ``linger_s`` it waits up to so many seconds for others to share its
        entry. ``compression`` packs the records of each entry where that makes it smaller; readers need not
        be told.

        ``dedupe`` switches deduplication on (True, or a ``Dedupe`` with its bounds) or off (False); by
        default it stays as the log has it, off in a new log, and naming a ``producer`` switches it on. It is
        a matter of the log: once on, every later leader keeps the table. ``producer`` is whose the sequences
        of ``append`` are unless it says otherwise.

        InvalidArgument at once. Entering raises LogNotFound; LogSealed; RecoveryFailed, NotEnoughBookies and
        EntryUnavailable (retryable: too few bookies answer); EntryCorrupt; EntryNotFound where bookies have
        lost what tells how far the log came; LossUndecided where a loss that was accepted for a ledger would
        drop records behind it, until ``recover`` says what becomes of them. Leaving sends what was taken,
        waits until it is durable and closes the ledger, for at most ``limits.LOG_CLOSE_TIMEOUT_S``; it raises
        AppendUnknown if records that nobody waited for could not be brought to an end. Leaving by a
        cancellation leaves the ledger open for the next leader to recover."""
        for bound, what in ((window, "window"), (window_bytes, "window_bytes"), (entry_bytes, "entry_bytes")):
            if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
                raise InvalidArgument(f"{what} must be at least one, not {bound!r}")
        if not isinstance(linger_s, int | float) or not 0 <= linger_s <= LOG_LINGER_S_MAX:
            raise InvalidArgument(f"linger_s must be 0 to {LOG_LINGER_S_MAX}, not {linger_s!r}")
        if compression not in (None, "zstd"):
            raise InvalidArgument(f"compression is None or 'zstd', not {compression!r}")
        if producer is not None and dedupe is False:
            raise InvalidArgument("a producer needs deduplication")
        if not (dedupe is None or isinstance(dedupe, bool | Dedupe)):
            raise InvalidArgument(f"dedupe is a bool or a Dedupe, not {dedupe!r}")
        bounds = {"window_records": window, "window_bytes": window_bytes, "entry_bytes": entry_bytes}
        options = WriterOptions(
            send=SendOptions(
                linger_s=linger_s,
                compress=compression is not None,
                **{name: bound for name, bound in bounds.items() if bound is not None},
            ),
            producer=None if producer is None else check_producer_id(producer),
            dedupe=dedupe,
        )
        if options.send.entry_bytes > RECORD_BYTES_MAX:
            raise InvalidArgument(f"entry_bytes is {entry_bytes}, over {RECORD_BYTES_MAX}")
        return lead(self._client, self._registry, self._name, self._incarnation, options=options)

    def read(
        self,
        start: Start = "earliest",
        *,
        until: int | None = None,
        follow: bool = False,
        dense: bool = False,
    ) -> AbstractAsyncContextManager[LogReader]:
        """The log's records from ``start`` on, as an async iterator in the body of an ``async with``.

        ``start`` is an offset, a ``Position``, a datetime (the first record written at that time or later;
        naive means UTC), "earliest" or "latest" (behind the last record that is confirmed now). An offset
        beyond the tail waits for it with ``follow`` and gives nothing without. ``until`` is the offset to
        stop before. Without ``follow`` reading ends at the tail that it finds; with it, only at ``until``
        or where the log is sealed. Never shows a record that could still be lost.

        Offsets grow by one from record to record, but where the archive of the log was compacted: there only
        the latest record of each key is left. With ``dense`` such a gap is Truncated, as if all up to the end
        of the compacted file had been truncated away. Where records were lost with bookies and an operator
        accepted that, everybody is told of the gap, by RecordsLost (see ``LogReader``).

        InvalidArgument at once. Entering raises Truncated(first_offset) where ``start`` is no longer there,
        LogNotFound, and what iterating raises; see ``LogReader``."""
        check_start(start, until)
        return open_reader(
            self._client,
            self._registry,
            self._name,
            self._incarnation,
            start=start,
            until=until,
            follow=follow,
            dense=dense,
        )

    async def info(self) -> LogInfo:
        """The log as it is now. LogNotFound; EntryUnavailable where no bookie of an open ledger answers."""
        metadata, _ = await self._read()
        tail = await find_tail(self._client.ledgers, metadata)
        return LogInfo(
            name=metadata.name,
            epoch=metadata.epoch,
            first_offset=metadata.first_offset,
            next_offset=tail.offset,
            sealed=metadata.sealed,
            gaps=metadata.gaps,
            segments=metadata.segments,
            replication=metadata.replication,
            roll=metadata.roll,
            retention=metadata.retention,
            properties=dict(metadata.properties),
            created=moment(metadata.created_ms),
            deduplicates=metadata.dedupe_epoch is not None,
        )

    async def properties(self) -> dict[str, str]:
        """The log's properties. LogNotFound."""
        metadata, _ = await self._read()
        return dict(metadata.properties)

    async def set_properties(
        self, properties: Mapping[str, str], *, expected: Mapping[str, str] | None = None
    ) -> None:
        """Replace the log's properties; with ``expected`` only if they are that now, else PropertiesConflict.

        LogNotFound, InvalidArgument. MetadataOutcomeUnknown also if, with ``expected``, the answer was lost
        and others have written the log's record since."""
        wanted = check_properties(dict(properties))

        async def replace(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
            if expected is not None and metadata.properties != dict(expected):
                raise PropertiesConflict(self._name)
            return metadata.with_properties(wanted, token)

        await self._registry.change(self._name, self._incarnation, replace, once=expected is not None)

    async def update_properties(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some of the log's properties, in one step, and remove those that are None; all of them after
        that. Others' changes of other properties are kept. LogNotFound, InvalidArgument."""
        updated: dict[str, str] = {}

        async def update(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
            nonlocal updated
            merged = {**metadata.properties, **changes}
            updated = check_properties({key: value for key, value in merged.items() if value is not None})
            return None if updated == metadata.properties else metadata.with_properties(updated, token)

        await self._registry.change(self._name, self._incarnation, update)
        return updated

    async def configure(
        self,
        *,
        roll: RollPolicy | Callable[[RollPolicy], RollPolicy] | None = None,
        retention: RetentionPolicy | Callable[[RetentionPolicy], RetentionPolicy] | None = None,
    ) -> None:
        """Give the log other policies; None leaves one as it is. A leader keeps to them as soon as he sees
        the record, which he watches. LogNotFound.

        To change one setting and keep what others set meanwhile, give a function of the policy that is there:
        ``configure(roll=lambda there: attrs.evolve(there, max_bytes=2**30))``. It may be called several
        times, and what it raises is raised here."""

        async def change(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
            changed = metadata.with_policies(
                roll(metadata.roll) if callable(roll) else roll,
                retention(metadata.retention) if callable(retention) else retention,
                token,
            )
            return None if changed.touched(metadata.token) == metadata else changed

        await self._registry.change(self._name, self._incarnation, change)

    # --- giving records up ----------------------------------------------------------------------

    async def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``; those from there on keep their offsets. Ledgers that
        held nothing else are deleted. Truncating again, or less, changes nothing.

        TruncationPinned where a cursor pins a record below, unless ``ignore_pins``. InvalidArgument where the
        offset is beyond the confirmed end. LogNotFound, EntryUnavailable. If cancelled, it may have happened,
        and ledgers may be left for a sweep, as they are if the store is away by then."""
        if not isinstance(before_offset, int) or isinstance(before_offset, bool) or before_offset < 0:
            raise InvalidArgument(f"{before_offset!r} is not an offset")
        metadata, _ = await self._read()
        end = metadata.counted_end
        if before_offset > end:
            end = (await find_tail(self._client.ledgers, metadata)).offset
            if before_offset > end:
                raise InvalidArgument(
                    f"log {self._name!r} ends at offset {end}: it cannot be truncated at {before_offset}"
                )
        await retention.truncate(
            self._client,
            self._registry,
            self._name,
            self._incarnation,
            before_offset,
            end,
            ignore_pins=ignore_pins,
        )

    async def apply_retention(self) -> int:
        """Drop what the log's retention lets go now, as its leader does from time to time; how many records.
        Ledgers that are not counted are taken to hold nothing, so nothing is dropped early. Errors as for
        ``truncate``, pins aside: they are kept to."""
        return await retention.apply_retention(self._client, self._registry, self._name, self._incarnation)

    async def why_kept(self) -> list[tuple[Segment, str]]:
        """Each ledger of the log, and why it is still there. LogNotFound."""
        metadata, _ = await self._read()
        cursors = await read_cursors(self._client, self._incarnation)
        whys = why_kept(metadata, cursors, self._client.environment.now_ms())
        return list(zip(metadata.segments, whys, strict=True))

    def cursor(self, name: str) -> Cursor:
        """The cursor of that name, there or not: a durable place in the log with some properties, moved by
        compare-and-set. InvalidArgument. Looks at nothing yet."""
        return Cursor(self._client, self._registry, self._name, self._incarnation, name)

    async def cursors(self) -> list[CursorState]:
        """All cursors of the log, by name. LogNotFound."""
        await self._read()
        return await read_cursors(self._client, self._incarnation)

    async def seal(self) -> None:
        """End the log for good: its leader, if there is one, is deposed, what he had in flight is brought to
        an end, and nothing is appended any more. Sealing a sealed log does nothing.

        LogNotFound; RecoveryFailed, NotEnoughBookies and EntryUnavailable (retryable); EntryCorrupt,
        EntryNotFound; LossUndecided, see ``recover``: it is not sealed."""
        try:
            await seal(self._client, self._registry, self._name, self._incarnation)
        except LogSealed:
            return

    async def recover(
        self, *, accept_loss: bool = False, accept_unreachable: bool = False
    ) -> tuple[Gap, ...]:
        """End the leadership that there is, without another: its ledgers are fenced, closed and counted, and
        the next writer goes on behind them. A leader that lives is deposed. Returns the gaps that this made,
        nearly always none; a log whose ledgers are all counted is not changed.

        ``accept_loss`` is for an operator who knows that bookies lost what they had. A ledger whose end
        nobody can know is ended before the first entry that nobody has (``Ledgers.recover_accepting_loss``,
        also for ``accept_unreachable``), and records behind such an end stay where they are, behind a gap:
        the offsets of the records that were lost are given to no others, and readers are told by RecordsLost.

        LogNotFound; LogSealed; LossUndecided without ``accept_loss``; RecoveryFailed, NotEnoughBookies and
        EntryUnavailable (retryable); EntryCorrupt, EntryNotFound. If cancelled it may have happened."""
        if accept_unreachable and not accept_loss:
            raise InvalidArgument("accept_unreachable says which loss is accepted: it goes with accept_loss")
        _, gaps = await recover(
            self._client,
            self._registry,
            self._name,
            self._incarnation,
            accept_loss=accept_loss,
            accept_unreachable=accept_unreachable,
        )
        return gaps

    async def _read(self) -> tuple[LogMetadata, int]:
        metadata, version = await self._registry.read(self._incarnation)
        if metadata is None:
            raise LogNotFound(self._name)
        return metadata, version


async def create_log(
    client: LedgerClient,
    name: str,
    *,
    replication: Replication | None = None,
    roll: RollPolicy | None = None,
    retention: RetentionPolicy | None = None,
    properties: dict[str, str] | None = None,
    exist_ok: bool = False,
) -> Log:
    """A new, empty log. With ``exist_ok`` the one that exists, as it is. LogExists; InvalidArgument."""
    registry = LogRegistry(client.store, client.environment)
    while True:
        incarnation = await registry.find(name) if exist_ok else None
        if incarnation is not None:
            return Log(client, name, incarnation)
        try:
            metadata = await registry.create(
                name,
                replication=replication or client.default_replication,
                roll=roll,
                retention=retention,
                properties=properties,
            )
        except LogExists:
            if not exist_ok:
                raise
        else:
            return Log(client, name, metadata.incarnation)


async def open_log(client: LedgerClient, name: str) -> Log:
    """The log of that name. LogNotFound; InvalidArgument."""
    incarnation = await LogRegistry(client.store, client.environment).find(name)
    if incarnation is None:
        raise LogNotFound(name)
    return Log(client, name, incarnation)


async def list_logs(client: LedgerClient, prefix: str = "") -> list[str]:
    """The names of all logs that start with ``prefix``, sorted; complete, or MetadataUnavailable."""
    return await LogRegistry(client.store, client.environment).list(prefix)


async def delete_log(client: LedgerClient, name: str, *, damaged: bool = False) -> None:
    """Delete a log, its ledgers, and the snapshots of a state machine on it that lie in ledgers. A leader
    that is still there ends as soon as it notices; what it acknowledged is gone with the rest. LogNotFound.
    If cancelled after the log's record was removed, or if the store is away then, ledgers may be left for a
    sweep. MetadataUnavailable: it was not deleted. MetadataOutcomeUnknown: it may be.

    MetadataCorrupt: its record, or the node of its name, cannot be read. With ``damaged`` these are
    removed all the same. Nobody knows then which ledgers the record listed: they are left for a sweep, which
    knows them by their own labels once the record is gone."""
    registry = LogRegistry(client.store, client.environment)
    incarnation = await (registry.find_damaged(name) if damaged else registry.find(name))
    if incarnation is None and not damaged:
        raise LogNotFound(name)
    metadata = await registry.delete(name, incarnation, damaged=damaged)
    if incarnation is None:
        return
    if metadata is not None:
        await delete_ledgers(client.ledgers, [segment.ledger_id for segment in metadata.segments])
    with left_to_a_sweep(f"what log {name!r} left"):
        await delete_cursors(client, incarnation)
        await delete_marks(client, incarnation)
        try:
            await delete_snapshots(client, incarnation)
        except MetadataCorrupt:
            if not damaged:
                raise  # Nobody knows which they are. A sweep does, as with the ledgers.
