"""The public ``Log``, and creating, opening, listing and deleting logs by name.

A ``Log`` is a name bound to one incarnation of the log. It holds no connection and no state that can go
stale. Every change of a log's record is a compare-and-set that starts from a fresh read. Takeovers and seals
are in ``log.takeover``, truncation and retention in ``log.retention``, cursors in ``log.cursors``. Properties
and policies are changed here.

Order of effects: a ledger leaves the list before it is deleted. A log's record is removed before the log's
ledgers are deleted. A crash in between leaves ledgers that no list names. Each such ledger has a label that
names its log, so a sweep finds the ledger (``log.sweep``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

import attrs

from ledgerlog.errors import (
    InvalidArgument,
    LogExists,
    LogNotFound,
    LogSealed,
    LostLeadership,
    PropertiesConflict,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import LOG_LINGER_S_MAX, RECORD_BYTES_MAX
from ledgerlog.log import retention
from ledgerlog.log.attach import delete_marks
from ledgerlog.log.campaign import Campaign, LeadElection, campaign
from ledgerlog.log.core.retention import why_kept
from ledgerlog.log.cursors import Cursor, delete_cursors, read_cursors
from ledgerlog.log.gather import delete_replaced
from ledgerlog.log.leader import SendOptions
from ledgerlog.log.leadership import WriterOptions, lead
from ledgerlog.log.positions import LogTail, find_tail
from ledgerlog.log.reader import LogReader, Start, check_start, open_reader
from ledgerlog.log.registry import LogRegistry
from ledgerlog.log.snapshot_list import delete_snapshots
from ledgerlog.log.takeover import delete_ledgers, left_to_a_sweep, recover, seal
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.checks import check_kind
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ids import check_offset
from ledgerlog.model.log import LogMetadata, check_properties
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.producer import Dedupe, check_producer_id
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import moment
from ledgerlog.model.segments import Gap, LogSegment

__all__ = ["Log", "LogInfo", "create_log", "delete_log", "list_logs", "open_log"]

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class LogInfo:
    """The state of a log at one moment. ``Log.info`` returns it."""

    name: str
    """The name of the log."""
    epoch: int
    """The epoch of the newest leadership; 0 if the log has had none."""
    first_offset: int
    """The offset of the first record that you can still read."""
    next_offset: int
    """The offset after the last confirmed record."""
    sealed: bool
    """Whether the log is complete and takes no more records."""
    gaps: tuple[Gap, ...]
    """The ranges of lost records, at or after ``first_offset``. Nearly always empty."""
    segments: tuple[LogSegment, ...]
    """The ledgers of the log, oldest first."""
    replication: Replication
    """How each new ledger of the log is replicated."""
    roll: RollPolicy
    """When the log continues in a new ledger."""
    retention: RetentionPolicy
    """Which old ledgers of the log may go."""
    properties: dict[str, str]
    """The properties that users have set."""
    created: datetime
    """When the log was created, by the wall clock of its creator, in UTC."""
    deduplicates: bool
    """Whether the log remembers producers, so that a record with a producer's sequence number is appended
    only once."""


def info_of(metadata: LogMetadata, next_offset: int) -> LogInfo:
    """Return the state that the record of a log says, with this end."""
    return LogInfo(
        name=metadata.name,
        epoch=metadata.epoch,
        first_offset=metadata.first_offset,
        next_offset=next_offset,
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


class Log:
    """A replicated log: append with ``writer``, read with ``read``.

    ``Cluster.create_log`` and ``Cluster.open_log`` return it. It holds no connection, so there is nothing to
    close, and any number of tasks may use it.

    If a log is deleted and created again under the same name, that is another log: this object then raises
    LogNotFound.

    Every method that reads or writes metadata may raise MetadataUnavailable: the metadata store could not be
    reached or did not answer, and the change that you asked for did not happen. Methods that write may also
    raise MetadataOutcomeUnknown: the change may or may not have happened, so read before you decide.
    """

    def __init__(self, client: LedgerClient, name: str, incarnation: int) -> None:
        self._client = client
        self._registry = LogRegistry(client.store, client.environment)
        self._name = name
        self._incarnation = incarnation

    def __repr__(self) -> str:
        return f"<Log {self._name!r}>"

    @property
    def name(self) -> str:
        """The name of the log."""
        return self._name

    @property
    def incarnation(self) -> int:
        """The number of this log. No other log ever gets it, not even one that is created again under the
        same name."""
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
        """Take the log over and lead it for the body of an ``async with``.

        Entering fences the previous leader's ledgers, finds out where its records end, and raises the epoch.
        The previous leader can append nothing more after that.

        Leaving sends the records that the writer has taken, waits until they are durable, and closes the
        ledger. It does so for at most ``limits.LOG_CLOSE_TIMEOUT_S`` (15 s). If the body is cancelled, it
        leaves at once, and the next leader recovers the open ledger.

        Args:
            producer: The producer whose sequences you give to ``LogWriter.append``, unless that call names
                another one. 1 to ``limits.PRODUCER_ID_BYTES_MAX`` (64) bytes in UTF-8. Switches deduplication
                on.
            dedupe: True, or a ``Dedupe`` with its bounds, switches deduplication on. False switches it off
                and forgets the producers. None keeps the log's setting, which is off in a new log. This is a
                setting of the log: once it is on, every later leader keeps the table of producers.
            window: How many records may be taken and not yet durable, at least 1; appends wait beyond that.
                The default is ``limits.LOG_WINDOW_RECORDS``.
            window_bytes: How many bytes of records may be taken and not yet durable, at least 1. The default
                is ``limits.LOG_WINDOW_BYTES``.
            entry_bytes: Pack records into entries of about this size, from 1 to ``limits.RECORD_BYTES_MAX``
                bytes. The default is ``limits.LOG_ENTRY_BYTES_TARGET``.
            linger_s: How long a record waits for others to share its entry, from 0 to
                ``limits.LOG_LINGER_S_MAX`` seconds. A full entry, ``LogWriter.flush`` and leaving do not
                wait. With 0, a record is sent at once while few entries are on their way.
            compression: ``zstd`` compresses the records of an entry if that makes the entry smaller. Readers
                need no setting.

        Returns:
            A context manager. Entering it gives you the ``LogWriter``.

        Raises:
            InvalidArgument: An argument is out of range, or you named a producer and switched deduplication
                off. Raised by the call itself.
            LogNotFound: Entering: the log no longer exists.
            LogSealed: Entering: the log is complete and takes no more records.
            LogListFull: Entering: the log's list of ledgers has no room for another one. Truncate the log
                first.
            RecoveryFailed: Entering: too few bookies answer to end the previous leader's ledgers. Try again.
            NotEnoughBookies: Entering: too few bookies are writable for a new ledger. Try again.
            EntryUnavailable: Entering: no bookie answers for an entry that tells where the log ends. Try
                again.
            EntryCorrupt: Entering: an entry that tells where the log ends is damaged or does not belong
                there.
            EntryNotFound: Entering: bookies have lost an entry that tells where the log ends.
            LossUndecided: Entering: one ledger may have lost its end, by an accepted loss or before a restore
                of the metadata, and the takeover would drop the records after it. The error says how to
                decide.
            AppendUnknown: Leaving: at least one record that was still on its way may or may not be in the
                log.
            LostLeadership: Leaving: the leadership ended early. Each record that was still on its way is
                durable or is not in the log, and at least one is not in the log. LogSealed, NotEnoughBookies
                and PermissionDenied say the same with another reason.

        If the body itself raises, you get the body's exception and no error about records that were on their
        way.

        Example:
            ```python
            async with log.writer() as writer:
                ack = await writer.append(b"order 17 was paid")
                print(ack.offset)
            ```
        """
        options = _writer_options(
            producer=producer,
            dedupe=dedupe,
            window=window,
            window_bytes=window_bytes,
            entry_bytes=entry_bytes,
            linger_s=linger_s,
            compression=compression,
        )
        return lead(self._client, self._registry, self._name, self._incarnation, options=options)

    def lead(
        self,
        election: LeadElection,
        *,
        producer: str | None = None,
        dedupe: Dedupe | bool | None = None,
        window: int | None = None,
        window_bytes: int | None = None,
        entry_bytes: int | None = None,
        linger_s: float = 0.0,
        compression: Literal["zstd"] | None = None,
    ) -> AbstractAsyncContextManager[Campaign]:
        """Lead the log whenever an election allows it, for the body of an ``async with``.

        The campaign stands for election, takes the log over and leads. If the leadership ends, or if the log
        cannot be taken over now, the campaign steps down, pauses, and stands again. The body runs all the
        time, whether this process leads or not.

        Leaving waits until the records that the campaign has taken are durable, closes the ledger as leaving
        ``writer`` does, and gives up the lead of the election.

        Args:
            election: Decides which process leads, for example ``cluster.election("orders",
                candidate="10.0.0.7:8080")``. The campaign uses it alone.
            producer: See ``writer``.
            dedupe: See ``writer``.
            window: See ``writer``.
            window_bytes: See ``writer``.
            entry_bytes: See ``writer``.
            linger_s: See ``writer``.
            compression: See ``writer``.

        Returns:
            A context manager. Entering it gives you the ``Campaign``, at once: it does not wait for the lead.

        Raises:
            InvalidArgument: An argument is out of range, or ``election`` is not an election of this API.
                Raised by the call itself.
            AppendUnknown: Leaving: at least one record that was still on its way may or may not be in the
                log.
            LostLeadership: Leaving: records that were still on their way are not in the log.

        If standing for election or taking over fails for good, the campaign's calls raise that error.

        Example:
            ```python
            async with log.lead(cluster.election("orders", candidate=my_address)) as campaign:
                writer = await campaign.writer()  # waits until this process leads
                print(f"I lead in epoch {writer.epoch}")
                await campaign.append(b"order 17 was paid")  # NotLeader if another process leads now
            ```
        """
        check_kind(election, LeadElection, "election", "a ledgerlog.Election")
        options = _writer_options(
            producer=producer,
            dedupe=dedupe,
            window=window,
            window_bytes=window_bytes,
            entry_bytes=entry_bytes,
            linger_s=linger_s,
            compression=compression,
        )

        def enter() -> AbstractAsyncContextManager[LogWriter]:
            return lead(self._client, self._registry, self._name, self._incarnation, options=options)

        return campaign(self._name, election, enter)

    def read(
        self,
        start: Start = "earliest",
        *,
        until: int | None = None,
        follow: bool = False,
        dense: bool = False,
    ) -> AbstractAsyncContextManager[LogReader]:
        """Read the log's records from ``start`` on, in the body of an ``async with``.

        The reader never shows a record that could still be lost. Without ``follow``, reading ends at the tail
        that the reader finds. With ``follow``, it ends only at ``until`` or at the end of a sealed log.

        Offsets grow by one from record to record, with two exceptions. If the archive of the log was
        compacted, only the latest record of each key is left there. If bookies lost records and an operator
        accepted the loss, the log has a gap, and every reader raises RecordsLost there (see ``LogReader``).

        Args:
            start: Where to begin: an offset, a ``Position``, a datetime, "earliest" or "latest". A datetime
                means the first record written at that time or later; a naive datetime is UTC. "latest" means
                after the last record that is confirmed now. If an offset lies beyond the tail, a reader with
                ``follow`` waits for that offset, and a reader without ``follow`` ends at once.
            until: The offset to stop before. None: no such bound.
            follow: Wait at the tail for more records instead of ending there.
            dense: If compaction of the archive has removed records, raise Truncated, as if all records up to
                the end of the compacted file were truncated.

        Returns:
            A context manager. Entering it gives you the ``LogReader``.

        Raises:
            InvalidArgument: ``start`` or ``until`` is malformed: raised by the call itself. Entering: the log
                has no such position.
            EntryUnavailable: Entering: ``start`` is a position in a ledger that is still open, and more than
                one entry after the last one that you can read of it. You can try again. But if the writer is
                gone, you can read on only after another one has taken over; so bound your attempts. Or too
                few bookies answer.
            Truncated: Entering: the records at ``start`` are truncated; the error's ``first_offset`` is the
                first offset that you can read.
            LogNotFound: Entering: the log no longer exists.

        Entering may also raise any error that iterating raises; see ``LogReader``.

        Example:
            ```python
            async with log.read("earliest", follow=True) as records:
                async for record in records:
                    print(record.offset, record.data)
            ```
        """
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
        """Return the state of the log now: its offsets, ledgers, policies and properties.

        Raises:
            LogNotFound: The log no longer exists.
            EntryUnavailable: Too few bookies answer to know where an open ledger ends. Try again.
            EntryCorrupt: Every copy of the entry that tells where the log ends is damaged.
            EntryNotFound: Bookies have lost the entry that tells where the log ends.
        """
        metadata, tail = await self._look(self._with_tail)
        return info_of(metadata, tail.offset)

    async def counted_info(self) -> LogInfo:
        """Return the state of the log as the metadata store knows it. This asks no bookie, so ``next_offset``
        does not count the records of open ledgers.

        Raises:
            LogNotFound: The log no longer exists.
        """
        metadata, _ = await self._read()
        return info_of(metadata, metadata.counted_end)

    async def properties(self) -> dict[str, str]:
        """Return the log's properties.

        Raises:
            LogNotFound: The log no longer exists.
        """
        metadata, _ = await self._read()
        return dict(metadata.properties)

    async def set_properties(
        self, properties: Mapping[str, str], *, expected: Mapping[str, str] | None = None
    ) -> None:
        """Replace all properties of the log.

        Args:
            properties: The new properties. Keys and values are text, together at most
                ``limits.LOG_PROPERTIES_BYTES_MAX`` bytes in UTF-8.
            expected: Replace only if the log has exactly these properties now. None: replace in any case.

        Raises:
            InvalidArgument: The properties are not text, or too large.
            PropertiesConflict: The properties are not the ``expected`` ones; nothing was changed.
            LogNotFound: The log no longer exists.
            MetadataOutcomeUnknown: The properties may or may not be replaced. With ``expected``, this error
                is also raised if the answer to the write was lost and others have written the log's record
                since.
        """
        wanted = check_properties(dict(properties))

        async def replace(metadata: LogMetadata, token: bytes) -> LogMetadata | None:
            if expected is not None and metadata.properties != dict(expected):
                raise PropertiesConflict(self._name)
            return metadata.with_properties(wanted, token)

        await self._registry.change(self._name, self._incarnation, replace, once=expected is not None)

    async def update_properties(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set or remove some of the log's properties, in one step.

        If others change other properties at the same time, their changes are kept.

        Args:
            changes: The new value of each property to set; None removes the property.

        Returns:
            All properties after the change.

        Raises:
            InvalidArgument: The resulting properties are not text, or too large.
            LogNotFound: The log no longer exists.
        """
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
        """Change the log's policies.

        The leader watches the log's record and follows the new policies as soon as it sees them.

        To change one setting and keep the settings that others make meanwhile, give a function of the current
        policy:
        ``configure(roll=lambda there: attrs.evolve(there, max_bytes=2**30))``. The function may be called
        several times. If it raises an error, ``configure`` raises the same error.

        Args:
            roll: The new roll policy, or a function that takes the current one and returns the new one. None:
                keep the current one.
            retention: The new retention policy, or such a function. None: keep the current one.

        Raises:
            LogNotFound: The log no longer exists.
        """

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
        """Give up the records below ``before_offset``.

        The other records keep their offsets. Ledgers that held only records below ``before_offset`` are
        deleted. If the log is truncated there already, or further, nothing changes.

        Args:
            before_offset: The first offset to keep, at most the offset after the last confirmed record.
            ignore_pins: Truncate even if a cursor pins records below ``before_offset``.

        Raises:
            InvalidArgument: ``before_offset`` is not an offset, or lies beyond the confirmed end. Nothing was
                given up.
            TruncationPinned: A cursor pins a record below ``before_offset``. Nothing was given up.
            LogNotFound: The log no longer exists.
            EntryUnavailable: Too few bookies answer to know where the log ends. Nothing was given up; try
                again.

        Cancelling: the records may or may not be given up. Some of their ledgers may then be left for a
        sweep. Ledgers are also left for a sweep if the metadata store goes away before they are deleted.
        """
        check_offset(before_offset)
        truncate = partial(
            retention.truncate,
            self._client,
            self._registry,
            self._name,
            self._incarnation,
            before_offset,
            ignore_pins=ignore_pins,
        )
        metadata, _ = await self._read()
        if before_offset <= metadata.counted_end:
            await truncate(metadata.counted_end)
            return
        while True:
            metadata, tail = await self._look(self._with_tail)
            if before_offset > tail.offset:
                raise InvalidArgument(
                    f"log {self._name!r} ends at offset {tail.offset}: it cannot be truncated at "
                    f"{before_offset}"
                )
            try:
                await truncate(tail.offset, epoch=metadata.epoch)
            except LostLeadership:
                continue  # After an accepted loss, the new leader's records begin before the end found here.
            return

    async def apply_retention(self) -> int:
        """Drop the old ledgers that the log's retention lets go now.

        The leader does the same from time to time. Records that a cursor pins are kept.

        Returns:
            How many records were dropped.

        Raises:
            LogNotFound: The log no longer exists.
            EntryUnavailable: The retention has a bound in bytes, and too few bookies answer to know where the
                log ends. Nothing was dropped; try again.

        Cancelling: the ledgers may or may not be dropped, as for ``truncate``.
        """
        _, durable_bytes = await self._look(self._with_durable_bytes)
        return await retention.apply_retention(
            self._client, self._registry, self._name, self._incarnation, durable_bytes=durable_bytes
        )

    async def why_kept(self) -> list[tuple[LogSegment, str]]:
        """Return each ledger of the log, oldest first, with the reasons why it is still there.

        Raises:
            LogNotFound: The log no longer exists.
            EntryUnavailable: The retention has a bound in bytes, and too few bookies answer to know where the
                log ends. Try again.
        """
        metadata, durable_bytes = await self._look(self._with_durable_bytes)
        cursors = await read_cursors(self._client, self._incarnation)
        now_ms = self._client.environment.now_ms()
        whys = why_kept(metadata, cursors, now_ms, durable_bytes=durable_bytes)
        return list(zip(metadata.segments, whys, strict=True))

    async def _with_durable_bytes(self, metadata: LogMetadata, _: int) -> tuple[LogMetadata, int]:
        """Return the record, and the bytes of all records ever appended, for retention. This asks the bookies
        only if the retention policy has a bound in bytes."""
        if metadata.retention.max_bytes is None:
            return metadata, metadata.counted_bytes
        return metadata, (await find_tail(self._client.ledgers, metadata)).bytes_before

    def cursor(self, name: str) -> Cursor:
        """Return the cursor of this name, whether or not it exists yet.

        A cursor is a named, durable offset in the log, with properties. It is moved by compare-and-set. This
        call reads nothing from the metadata store.

        Args:
            name: The name of the cursor, by the same rules as the name of a log.

        Raises:
            InvalidArgument: The name is malformed.
        """
        return Cursor(self._client, self._registry, self._name, self._incarnation, name)

    async def cursors(self) -> list[CursorState]:
        """Return the states of all cursors of the log, sorted by name.

        Raises:
            LogNotFound: The log no longer exists.
        """
        await self._read()
        return await read_cursors(self._client, self._incarnation)

    async def seal(self) -> None:
        """End the log for good: nothing can be appended after this.

        If there is a leader, it is deposed. Sealing decides the appends that are on their way: each one is
        then in the sealed log or surely not. Sealing a sealed log does nothing.

        Raises:
            LogNotFound: The log no longer exists.
            RecoveryFailed: Too few bookies answer to end the leader's ledgers; the log is not sealed. Try
                again.
            EntryUnavailable: No bookie answers for an entry that tells where the log ends; the log is not
                sealed. Try again.
            NotEnoughBookies: Too few bookies are writable; the log is not sealed. Try again.
            EntryCorrupt: An entry that tells where the log ends is damaged; the log is not sealed.
            EntryNotFound: Bookies have lost an entry that tells where the log ends; the log is not sealed.
            LossUndecided: Sealing would drop records after a ledger that may have lost its end; the log is
                not sealed. See ``recover``.
        """
        try:
            await seal(self._client, self._registry, self._name, self._incarnation)
        except LogSealed:
            return

    async def recover(
        self, *, accept_loss: bool = False, accept_unreachable: bool = False
    ) -> tuple[Gap, ...]:
        """End the current leadership without starting another one.

        The call fences and closes the leader's ledgers, and counts their records. The next writer continues
        after these records. A leader that is alive is deposed. If all ledgers of the log are counted already,
        nothing changes.

        Args:
            accept_loss: For an operator who knows that bookies lost data. If the end of a ledger is no longer
                known, end the ledger before the first entry that no bookie has
                (``Ledgers.recover_accepting_loss``). Records in later ledgers keep their offsets. So the log
                has a gap between that end and those records. No other record ever gets an offset in the gap.
                Readers raise RecordsLost at the gap.
            accept_unreachable: Treat bookies that do not answer as gone for good. Without this argument,
                RecoveryFailed names the bookies that do not answer and may hold the entry. Needs
                ``accept_loss``.

        Returns:
            The gaps that this call made; nearly always none.

        Raises:
            InvalidArgument: ``accept_unreachable`` without ``accept_loss``.
            LogNotFound: The log no longer exists.
            LogSealed: The log is sealed.
            LossUndecided: Records after a ledger that may have lost its end would be dropped. Call again with
                ``accept_loss`` to keep these records, with a gap before them.
            RecoveryFailed: Too few bookies answer to end the leader's ledgers. Try again.
            NotEnoughBookies: Too few bookies are writable. Try again.
            EntryUnavailable: No bookie answers for an entry that tells where the log ends. Try again.
            EntryCorrupt: An entry that tells where the log ends is damaged.
            EntryNotFound: Bookies have lost an entry that tells where the log ends.

        Cancelling: the leadership may or may not have ended.
        """
        if accept_unreachable and not accept_loss:
            raise InvalidArgument("accept_unreachable extends accept_loss: pass both")
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
        return await self._registry.existing(self._name, self._incarnation)

    async def _look(self, look: Callable[[LogMetadata, int], Awaitable[T]]) -> T:
        return await self._registry.look(self._name, self._incarnation, look)

    async def _with_tail(self, metadata: LogMetadata, _: int) -> tuple[LogMetadata, LogTail]:
        return metadata, await find_tail(self._client.ledgers, metadata)


def _writer_options(
    *,
    producer: str | None,
    dedupe: Dedupe | bool | None,
    window: int | None,
    window_bytes: int | None,
    entry_bytes: int | None,
    linger_s: float,
    compression: str | None,
) -> WriterOptions:
    """Check the arguments of ``Log.writer``."""
    for bound, what in ((window, "window"), (window_bytes, "window_bytes"), (entry_bytes, "entry_bytes")):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
            raise InvalidArgument(f"{what} must be at least one, not {bound!r}")
    is_number = isinstance(linger_s, int | float) and not isinstance(linger_s, bool)
    if not is_number or not 0 <= linger_s <= LOG_LINGER_S_MAX:
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
    return options


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
    """Create an empty log. ``Cluster.create_log`` calls this.

    Args:
        client: The client of the cluster.
        name: The name of the log.
        replication: How the log's ledgers are replicated. None: the cluster's default.
        roll: When the log continues in a new ledger. None: the default policy.
        retention: Which old ledgers may go. None: no ledger may go.
        properties: The log's properties. None: no properties.
        exist_ok: If the log exists already, return it as it is.

    Raises:
        LogExists: A log has this name already. Not raised with ``exist_ok``.
        InvalidArgument: The name or the properties are malformed.
    """
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
    """Return the log of this name.

    Raises:
        LogNotFound: No log has this name.
        InvalidArgument: The name is malformed.
    """
    incarnation = await LogRegistry(client.store, client.environment).find(name)
    if incarnation is None:
        raise LogNotFound(name)
    return Log(client, name, incarnation)


async def list_logs(client: LedgerClient, prefix: str = "") -> list[str]:
    """Return the names of all logs that start with ``prefix``, sorted. The list is complete, or the call
    raises MetadataUnavailable."""
    return await LogRegistry(client.store, client.environment).list(prefix)


async def delete_log(client: LedgerClient, name: str, *, damaged: bool = False) -> None:
    """Delete a log with its ledgers and its cursors, and also the snapshots of state machines that are stored
    in ledgers.

    A leader that is still alive ends as soon as it notices. The records that it acknowledged are gone with
    the rest.

    Args:
        client: The client of the cluster.
        name: The name of the log.
        damaged: Also delete the log if its record, or the node of its name, cannot be read. Then it is not
            known which ledgers the record listed. These ledgers are left for a sweep, which finds them by
            their labels once the record is gone.

    Raises:
        LogNotFound: No log has this name.
        MetadataCorrupt: The log's record or the node of its name cannot be read, and ``damaged`` is not set.
        MetadataUnavailable: The log was not deleted.
        MetadataOutcomeUnknown: The log may or may not be deleted.

    If the call is cancelled after the log's record was removed, or if the metadata store goes away after
    that, ledgers may be left for a sweep. The same holds for the snapshots if their list is damaged.
    """
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
        await delete_replaced(client, registry, incarnation, is_deleted=True)
        await delete_marks(client, incarnation)
        await delete_snapshots(client, incarnation)
