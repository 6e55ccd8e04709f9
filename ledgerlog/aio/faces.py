"""The classes of ``ledgerlog.aio``. Made by ``make faces``: do not edit.

Change the asynchronous classes, or ``tools/faces/plans.py``, and make the file anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

from ledgerlog.aio.base import (
    AioCluster,
    AioEntered,
    AioFace,
    AioLedger,
    AioTerm,
    AioWriter,
    LeadershipEntered,
    inner_of,
)
from ledgerlog.aio.reading import AioEntries, AioRecords
from ledgerlog.aio.replicas import AioReplica, M
from ledgerlog.crossing.fetching import fetch
from ledgerlog.crossing.loop import making
from ledgerlog.election.election import Election as AsyncElection
from ledgerlog.election.election import Leader
from ledgerlog.errors import LedgerLogError, ReplicaStopped
from ledgerlog.ledger.ledgers import Ledgers as AsyncLedgers
from ledgerlog.ledger.verify import LedgerVerification
from ledgerlog.log.campaign import Campaign as AsyncCampaign
from ledgerlog.log.cursors import Cursor as AsyncCursor
from ledgerlog.log.log import Log as AsyncLog
from ledgerlog.log.log import LogInfo
from ledgerlog.log.reader import Start
from ledgerlog.log.writer import Submission as AsyncSubmission
from ledgerlog.log.writer import WriterStatistics
from ledgerlog.machine.replica import ReplicaStatistics
from ledgerlog.machine.snapshots import SnapshotInfo
from ledgerlog.metrics.families import MetricSample
from ledgerlog.model.attributes import HeadersLike
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.producer import Dedupe
from ledgerlog.model.quorum import Replication
from ledgerlog.model.record import Ack
from ledgerlog.model.segments import Gap, LogSegment

__all__ = [
    "Campaign",
    "Cluster",
    "Cursor",
    "Election",
    "LedgerReader",
    "LedgerWriter",
    "Ledgers",
    "Log",
    "LogReader",
    "LogWriter",
    "Replica",
    "Submission",
    "Term",
]


class Cluster(AioCluster):
    """A connected cluster: its logs, ledgers and elections. You get one from ``connect``.

    Every method that reads or writes metadata can also raise WrongCluster, a kind of
    MetadataUnavailable. This happens while the store at the URI is not the store that this process
    connected to.

    For any number of tasks of the loop that connected."""

    @property
    def uri(self) -> str:
        """The URI that was passed to ``connect``. It may hold a password."""
        return self._inner.uri

    @property
    def ledgers(self) -> Ledgers:
        """The lower level: create, open and delete ledgers by their ids."""
        self._check()
        return Ledgers(self._portal, self._inner.ledgers)

    async def create_log(
        self,
        name: str,
        *,
        replication: Replication | None = None,
        roll: RollPolicy | None = None,
        retention: RetentionPolicy | None = None,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> Log:
        """Create an empty log, or open the existing one if ``exist_ok`` is true.

        Args:
            name: 1 to 255 letters, digits and ``. _ - /``, for example ``"billing/orders"``. It starts
                with a letter, a digit or ``_`` and has no empty components.
            replication: The ensemble size and the quorums of the log's ledgers, for example
                ``Replication(3, 3, 2)``. The default is the default of the connection, see ``connect``.
            roll: When the log's leader continues in a new ledger. The default is ``RollPolicy()``.
            retention: Which old ledgers may be dropped. The log's leader drops them while it leads;
                ``Log.apply_retention`` drops them on demand. The default, ``RetentionPolicy()``, keeps
                everything.
            properties: Text of your own that the log carries, at most
                ``limits.LOG_PROPERTIES_BYTES_MAX`` (64 KiB) in all.
            exist_ok: Return the existing log of this name instead of raising LogExists. The existing
                log keeps its own settings; the other arguments are ignored.

        Returns:
            The log.

        Raises:
            LogExists: A log has this name already, and ``exist_ok`` is false.
            InvalidArgument: The name or another argument is out of its range. No log was created.
            MetadataUnavailable: The metadata store did not answer. No log was created.
            MetadataOutcomeUnknown: The store's answer was lost. The log may have been created; with
                ``exist_ok`` you can call again.
            MetadataCorrupt: The node of this name in the metadata store does not decode."""
        return Log(
            self._portal,
            await self._run(
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

    async def open_log(self, name: str) -> Log:
        """Open the log of this name.

        This only reads metadata. It fences no ledger and does not disturb the log's writer.

        Args:
            name: The name of the log.

        Returns:
            The log.

        Raises:
            LogNotFound: No log has this name.
            InvalidArgument: ``name`` is not well-formed as the name of a log.
            MetadataUnavailable: The metadata store did not answer.
            MetadataCorrupt: The node of this name in the metadata store does not decode."""
        return Log(self._portal, await self._run(lambda: self._inner.open_log(name)))

    async def logs(self, prefix: str = "") -> list[str]:
        """List the names of all logs that begin with ``prefix``.

        Args:
            prefix: The beginning of the names, for example ``"billing/"``. The default lists all logs.

        Returns:
            The names, sorted. The list is complete.

        Raises:
            MetadataUnavailable: The metadata store did not answer. You never get a part of the list."""
        return await self._run(lambda: self._inner.logs(prefix))

    async def delete_log(self, name: str, *, damaged: bool = False) -> None:
        """Delete a log, its ledgers, its cursors, and the snapshots of a state machine that lie in
        ledgers.

        If a writer still leads the log, it loses its leadership. The records that it acknowledged are
        deleted with the rest.

        If the metadata store goes away after the log's record was deleted, ledgers may stay until
        `ledgerlog log sweep` finds them.

        Args:
            name: The name of the log.
            damaged: Delete the log even if its metadata cannot be read. In that case it is unknown
                which ledgers it listed. They stay until `ledgerlog log sweep` finds that their log is
                gone. If the log can be read, ``damaged`` changes nothing.

        Raises:
            LogNotFound: No log has this name.
            MetadataUnavailable: The metadata store did not answer. The log was not deleted.
            MetadataOutcomeUnknown: The store's answer was lost. The log may be deleted.
            MetadataCorrupt: The log's metadata cannot be read, and ``damaged`` is false. The log was
                not deleted.

        Cancelling: the log may or may not be deleted, and ledgers may stay until `ledgerlog log sweep`
        finds them."""
        await self._run(lambda: self._inner.delete_log(name, damaged=damaged))

    def election(self, name: str, *, candidate: str | None = None, listen: str | None = None) -> Election:
        """Return this process's part in an election. Enter its ``leadership()`` to take part.

            election = cluster.election("scheduler", candidate="host-7:8080")
            async with election.leadership() as term:
                ...  # this process leads, until the body ends or is cancelled

        Args:
            name: The name of the election, by the rules for names of logs. An election and a log of the
                same name have nothing to do with each other.
            candidate: The name of this process for people, and for clients that look for the leader.
                For example, pass the address at which it serves clients. The default is a random name.
            listen: The address (``host:port``; port 0 picks a free one) at which this process listens
                for standbys and sends them heartbeats while it leads. The standbys must be able to
                reach it. With ZooKeeper, the default is the address from which this machine reaches the
                first ZooKeeper server. With ``sqlite:``, the default is 127.0.0.1.

        Returns:
            The election.

        Raises:
            InvalidArgument: ``name`` or ``candidate`` is not well-formed."""
        self._check()
        return Election(self._portal, self._inner.election(name, candidate=candidate, listen=listen))

    def metrics(self) -> list[MetricSample]:
        """Return the figures of this process about its work with the cluster: appends, takeovers,
        connections, sessions, and the logs that it leads.

        This reads counts that the library keeps anyway, and sends no request. ``docs/METRICS.md`` lists
        the names. To have Prometheus read them, put a ``ledgerlog.metrics.prometheus.ClusterCollector``
        into the registry of your program.

        Returns:
            The samples: name, labels and value of each number.

        Raises:
            ConnectionClosed: The connection is closed."""
        self._check_open()
        return self._inner.metrics()


class Log(AioFace[AsyncLog]):
    """A replicated log: append with ``writer``, read with ``read``.

    ``Cluster.create_log`` and ``Cluster.open_log`` return it. It holds no connection, so there is
    nothing to close, and any number of tasks may use it.

    If a log is deleted and created again under the same name, that is another log: this object then
    raises LogNotFound.

    Every method that reads or writes metadata may raise MetadataUnavailable: the metadata store could
    not be reached or did not answer, and the change that you asked for did not happen. Methods that
    write may also raise MetadataOutcomeUnknown: the change may or may not have happened, so read before
    you decide."""

    def __repr__(self) -> str:
        return f"<aio {self._inner!r}>"

    @property
    def name(self) -> str:
        """The name of the log."""
        return self._inner.name

    @property
    def incarnation(self) -> int:
        """The number of this log. No other log ever gets it, not even one that is created again under the
        same name."""
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
    ) -> AbstractAsyncContextManager[LogWriter]:
        """Take the log over and lead it for the body of an ``async with``.

        Entering fences the previous leader's ledgers, finds out where its records end, and raises the
        epoch. The previous leader can append nothing more after that.

        Leaving sends the records that the writer has taken, waits until they are durable, and closes
        the ledger. It does so for at most ``limits.LOG_CLOSE_TIMEOUT_S`` (15 s). If the body is
        cancelled, it leaves at once, and the next leader recovers the open ledger.

        Args:
            producer: The producer whose sequences you give to ``LogWriter.append``, unless that call
                names another one. 1 to ``limits.PRODUCER_ID_BYTES_MAX`` (64) bytes in UTF-8. Switches
                deduplication on.
            dedupe: True, or a ``Dedupe`` with its bounds, switches deduplication on. False switches it
                off and forgets the producers. None keeps the log's setting, which is off in a new log.
                This is a setting of the log: once it is on, every later leader keeps the table of
                producers.
            window: How many records may be taken and not yet durable, at least 1; appends wait beyond
                that. The default is ``limits.LOG_WINDOW_RECORDS``.
            window_bytes: How many bytes of records may be taken and not yet durable, at least 1. The
                default is ``limits.LOG_WINDOW_BYTES``.
            entry_bytes: Pack records into entries of about this size, from 1 to
                ``limits.RECORD_BYTES_MAX`` bytes. The default is ``limits.LOG_ENTRY_BYTES_TARGET``.
            linger_s: How long a record waits for others to share its entry, from 0 to
                ``limits.LOG_LINGER_S_MAX`` seconds. A full entry, ``LogWriter.flush`` and leaving do
                not wait. With 0, a record is sent at once while few entries are on their way.
            compression: ``zstd`` compresses the records of an entry if that makes the entry smaller.
                Readers need no setting.

        Returns:
            A context manager. Entering it gives you the ``LogWriter``.

        Raises:
            InvalidArgument: An argument is out of range, or you named a producer and switched
                deduplication off. Raised by the call itself.
            LogNotFound: Entering: the log no longer exists.
            LogSealed: Entering: the log is complete and takes no more records.
            LogListFull: Entering: the log's list of ledgers has no room for another one. Truncate the
                log first.
            RecoveryFailed: Entering: too few bookies answer to end the previous leader's ledgers. Try
                again.
            NotEnoughBookies: Entering: too few bookies are writable for a new ledger. Try again.
            EntryUnavailable: Entering: no bookie answers for an entry that tells where the log ends.
                Try again.
            EntryCorrupt: Entering: an entry that tells where the log ends is damaged or does not belong
                there.
            EntryNotFound: Entering: bookies have lost an entry that tells where the log ends.
            LossUndecided: Entering: one ledger may have lost its end, by an accepted loss or before a
                restore of the metadata, and the takeover would drop the records after it. The error
                says how to decide.
            AppendUnknown: Leaving: at least one record that was still on its way may or may not be in
                the log.
            LostLeadership: Leaving: the leadership ended early. Each record that was still on its way
                is durable or is not in the log, and at least one is not in the log. LogSealed,
                NotEnoughBookies and PermissionDenied say the same with another reason.

        If the body itself raises, you get the body's exception and no error about records that were on
        their way.

        Example:
            ```python
            async with log.writer() as writer:
                ack = await writer.append(b"order 17 was paid")
                print(ack.offset)
            ```

        A body that raises leaves as one that does not: what was taken is made durable and the ledger
        closed. A body that is cancelled leaves at once, and the ledger to the next leader."""
        return AioEntered(
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

    def lead(
        self,
        election: Election,
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

        The campaign stands for election, takes the log over and leads. If the leadership ends, or if
        the log cannot be taken over now, the campaign steps down, pauses, and stands again. The body
        runs all the time, whether this process leads or not.

        Leaving waits until the records that the campaign has taken are durable, closes the ledger as
        leaving ``writer`` does, and gives up the lead of the election.

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
            InvalidArgument: An argument is out of range, or ``election`` is not an election of this
                API. Raised by the call itself.
            AppendUnknown: Leaving: at least one record that was still on its way may or may not be in
                the log.
            LostLeadership: Leaving: records that were still on their way are not in the log.

        If standing for election or taking over fails for good, the campaign's calls raise that error.

        Example:
            ```python
            async with log.lead(cluster.election("orders", candidate=my_address)) as campaign:
                writer = await campaign.writer()  # waits until this process leads
                print(f"I lead in epoch {writer.epoch}")
                await campaign.append(b"order 17 was paid")  # NotLeader if another process leads now
            ```"""
        return AioEntered(
            self._portal,
            self._inner.lead(
                inner_of(election, "election"),
                producer=producer,
                dedupe=dedupe,
                window=window,
                window_bytes=window_bytes,
                entry_bytes=entry_bytes,
                linger_s=linger_s,
                compression=compression,
            ),
            Campaign,
        )

    def read(
        self,
        start: Start = "earliest",
        *,
        until: int | None = None,
        follow: bool = False,
        dense: bool = False,
    ) -> AbstractAsyncContextManager[LogReader]:
        """Read the log's records from ``start`` on, in the body of an ``async with``.

        The reader never shows a record that could still be lost. Without ``follow``, reading ends at
        the tail that the reader finds. With ``follow``, it ends only at ``until`` or at the end of a
        sealed log.

        Offsets grow by one from record to record, with two exceptions. If the archive of the log was
        compacted, only the latest record of each key is left there. If bookies lost records and an
        operator accepted the loss, the log has a gap, and every reader raises RecordsLost there (see
        ``LogReader``).

        Args:
            start: Where to begin: an offset, a ``Position``, a datetime, "earliest" or "latest". A
                datetime means the first record written at that time or later; a naive datetime is UTC.
                "latest" means after the last record that is confirmed now. If an offset lies beyond the
                tail, a reader with ``follow`` waits for that offset, and a reader without ``follow``
                ends at once.
            until: The offset to stop before. None: no such bound.
            follow: Wait at the tail for more records instead of ending there.
            dense: If compaction of the archive has removed records, raise Truncated, as if all records
                up to the end of the compacted file were truncated.

        Returns:
            A context manager. Entering it gives you the ``LogReader``.

        Raises:
            InvalidArgument: ``start`` or ``until`` is malformed: raised by the call itself. Entering:
                the log has no such position.
            EntryUnavailable: Entering: ``start`` is a position in a ledger that is still open, and more
                than one entry after the last one that you can read of it. You can try again. But if the
                writer is gone, you can read on only after another one has taken over; so bound your
                attempts. Or too few bookies answer.
            Truncated: Entering: the records at ``start`` are truncated; the error's ``first_offset`` is
                the first offset that you can read.
            LogNotFound: Entering: the log no longer exists.

        Entering may also raise any error that iterating raises; see ``LogReader``.

        Example:
            ```python
            async with log.read("earliest", follow=True) as records:
                async for record in records:
                    print(record.offset, record.data)
            ```"""
        return AioEntered(
            self._portal, fetch(self._inner.read(start, until=until, follow=follow, dense=dense)), LogReader
        )

    async def info(self) -> LogInfo:
        """Return the state of the log now: its offsets, ledgers, policies and properties.

        Raises:
            LogNotFound: The log no longer exists.
            EntryUnavailable: Too few bookies answer to know where an open ledger ends. Try again.
            EntryCorrupt: Every copy of the entry that tells where the log ends is damaged.
            EntryNotFound: Bookies have lost the entry that tells where the log ends."""
        return await self._run(self._inner.info)

    async def counted_info(self) -> LogInfo:
        """Return the state of the log as the metadata store knows it. This asks no bookie, so
        ``next_offset`` does not count the records of open ledgers.

        Raises:
            LogNotFound: The log no longer exists."""
        return await self._run(self._inner.counted_info)

    async def properties(self) -> dict[str, str]:
        """Return the log's properties.

        Raises:
            LogNotFound: The log no longer exists."""
        return await self._run(self._inner.properties)

    async def set_properties(
        self, properties: Mapping[str, str], *, expected: Mapping[str, str] | None = None
    ) -> None:
        """Replace all properties of the log.

        Args:
            properties: The new properties. Keys and values are text, together at most
                ``limits.LOG_PROPERTIES_BYTES_MAX`` bytes in UTF-8.
            expected: Replace only if the log has exactly these properties now. None: replace in any
                case.

        Raises:
            InvalidArgument: The properties are not text, or too large.
            PropertiesConflict: The properties are not the ``expected`` ones; nothing was changed.
            LogNotFound: The log no longer exists.
            MetadataOutcomeUnknown: The properties may or may not be replaced. With ``expected``, this
                error is also raised if the answer to the write was lost and others have written the
                log's record since."""
        await self._run(lambda: self._inner.set_properties(properties, expected=expected))

    async def update_properties(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set or remove some of the log's properties, in one step.

        If others change other properties at the same time, their changes are kept.

        Args:
            changes: The new value of each property to set; None removes the property.

        Returns:
            All properties after the change.

        Raises:
            InvalidArgument: The resulting properties are not text, or too large.
            LogNotFound: The log no longer exists."""
        return await self._run(lambda: self._inner.update_properties(changes))

    async def configure(
        self,
        *,
        roll: RollPolicy | Callable[[RollPolicy], RollPolicy] | None = None,
        retention: RetentionPolicy | Callable[[RetentionPolicy], RetentionPolicy] | None = None,
    ) -> None:
        """Change the log's policies.

        The leader watches the log's record and follows the new policies as soon as it sees them.

        To change one setting and keep the settings that others make meanwhile, give a function of the
        current policy: ``configure(roll=lambda there: attrs.evolve(there, max_bytes=2**30))``. The
        function may be called several times. If it raises an error, ``configure`` raises the same
        error.

        Args:
            roll: The new roll policy, or a function that takes the current one and returns the new one.
                None: keep the current one.
            retention: The new retention policy, or such a function. None: keep the current one.

        Raises:
            LogNotFound: The log no longer exists."""
        await self._run(lambda: self._inner.configure(roll=roll, retention=retention))

    async def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``.

        The other records keep their offsets. Ledgers that held only records below ``before_offset`` are
        deleted. If the log is truncated there already, or further, nothing changes.

        Args:
            before_offset: The first offset to keep, at most the offset after the last confirmed record.
            ignore_pins: Truncate even if a cursor pins records below ``before_offset``.

        Raises:
            InvalidArgument: ``before_offset`` is not an offset, or lies beyond the confirmed end.
                Nothing was given up.
            TruncationPinned: A cursor pins a record below ``before_offset``. Nothing was given up.
            LogNotFound: The log no longer exists.
            EntryUnavailable: Too few bookies answer to know where the log ends. Nothing was given up;
                try again.

        Cancelling: the records may or may not be given up. Some of their ledgers may then be left for a
        sweep. Ledgers are also left for a sweep if the metadata store goes away before they are
        deleted."""
        await self._run(lambda: self._inner.truncate(before_offset, ignore_pins=ignore_pins))

    async def apply_retention(self) -> int:
        """Drop the old ledgers that the log's retention lets go now.

        The leader does the same from time to time. Records that a cursor pins are kept.

        Returns:
            How many records were dropped.

        Raises:
            LogNotFound: The log no longer exists.
            EntryUnavailable: The retention has a bound in bytes, and too few bookies answer to know
                where the log ends. Nothing was dropped; try again.

        Cancelling: the ledgers may or may not be dropped, as for ``truncate``."""
        return await self._run(self._inner.apply_retention)

    async def why_kept(self) -> list[tuple[LogSegment, str]]:
        """Return each ledger of the log, oldest first, with the reasons why it is still there.

        Raises:
            LogNotFound: The log no longer exists.
            EntryUnavailable: The retention has a bound in bytes, and too few bookies answer to know
                where the log ends. Try again."""
        return await self._run(self._inner.why_kept)

    def cursor(self, name: str) -> Cursor:
        """Return the cursor of this name, whether or not it exists yet.

        A cursor is a named, durable offset in the log, with properties. It is moved by compare-and-set.
        This call reads nothing from the metadata store.

        Args:
            name: The name of the cursor, by the same rules as the name of a log.

        Raises:
            InvalidArgument: The name is malformed."""
        self._check()
        return Cursor(self._portal, self._inner.cursor(name))

    async def cursors(self) -> list[CursorState]:
        """Return the states of all cursors of the log, sorted by name.

        Raises:
            LogNotFound: The log no longer exists."""
        return await self._run(self._inner.cursors)

    async def seal(self) -> None:
        """End the log for good: nothing can be appended after this.

        If there is a leader, it is deposed. Sealing decides the appends that are on their way: each one
        is then in the sealed log or surely not. Sealing a sealed log does nothing.

        Raises:
            LogNotFound: The log no longer exists.
            RecoveryFailed: Too few bookies answer to end the leader's ledgers; the log is not sealed.
                Try again.
            EntryUnavailable: No bookie answers for an entry that tells where the log ends; the log is
                not sealed. Try again.
            NotEnoughBookies: Too few bookies are writable; the log is not sealed. Try again.
            EntryCorrupt: An entry that tells where the log ends is damaged; the log is not sealed.
            EntryNotFound: Bookies have lost an entry that tells where the log ends; the log is not
                sealed.
            LossUndecided: Sealing would drop records after a ledger that may have lost its end; the log
                is not sealed. See ``recover``."""
        await self._run(self._inner.seal)

    async def recover(
        self, *, accept_loss: bool = False, accept_unreachable: bool = False
    ) -> tuple[Gap, ...]:
        """End the current leadership without starting another one.

        The call fences and closes the leader's ledgers, and counts their records. The next writer
        continues after these records. A leader that is alive is deposed. If all ledgers of the log are
        counted already, nothing changes.

        Args:
            accept_loss: For an operator who knows that bookies lost data. If the end of a ledger is no
                longer known, end the ledger before the first entry that no bookie has (`ledgerlog
                ledger recover --accept-loss`). Records in later ledgers keep their offsets. So the log
                has a gap between that end and those records. No other record ever gets an offset in the
                gap. Readers raise RecordsLost at the gap.
            accept_unreachable: Treat bookies that do not answer as gone for good. Without this
                argument, RecoveryFailed names the bookies that do not answer and may hold the entry.
                Needs ``accept_loss``.

        Returns:
            The gaps that this call made; nearly always none.

        Raises:
            InvalidArgument: ``accept_unreachable`` without ``accept_loss``.
            LogNotFound: The log no longer exists.
            LogSealed: The log is sealed.
            LossUndecided: Records after a ledger that may have lost its end would be dropped. Call
                again with ``accept_loss`` to keep these records, with a gap before them.
            RecoveryFailed: Too few bookies answer to end the leader's ledgers. Try again.
            NotEnoughBookies: Too few bookies are writable. Try again.
            EntryUnavailable: No bookie answers for an entry that tells where the log ends. Try again.
            EntryCorrupt: An entry that tells where the log ends is damaged.
            EntryNotFound: Bookies have lost an entry that tells where the log ends.

        Cancelling: the leadership may or may not have ended."""
        return await self._run(
            lambda: self._inner.recover(accept_loss=accept_loss, accept_unreachable=accept_unreachable)
        )


class Campaign(AioFace[AsyncCampaign]):
    """A process that leads a log whenever its election allows it. Enter ``Log.lead`` to get one.

    The campaign stands for election, takes over the log, leads, and stands again after the leadership
    has ended, while the body of the ``async with`` runs. Any number of tasks may append through it.

    If bookies or the metadata store are away, or another process leads, the campaign continues. If no
    further try can succeed, it gives up: ``failure`` has the reason, and every call raises that error.
    Examples are PermissionDenied, LogSealed, LogNotFound and EntryCorrupt."""

    def __repr__(self) -> str:
        return f"<aio {self._inner!r}>"

    @property
    def is_leading(self) -> bool:
        """Whether this process leads the log now, as far as it knows."""
        return self._inner.is_leading

    @property
    def failure(self) -> LedgerLogError | None:
        """Why the campaign has given up; None while it continues."""
        return self._inner.failure

    async def writer(self) -> LogWriter:
        """Wait until this process leads the log, and return the writer of this leadership.

        The writer has members that a campaign lacks: ``submit``, ``epoch``, ``statistics``. It is good
        for this leadership only; it raises the errors of ``LogWriter``.

        Returns:
            The writer.

        Raises:
            LedgerLogError: The campaign has given up; this is its ``failure``.
            ConnectionClosed: The ``async with`` of the campaign has ended.

        Cancelling: abandons the wait. The campaign continues."""
        return LogWriter(self._portal, await self._run(self._inner.writer))

    async def append(
        self,
        data: bytes,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        expected_offset: int | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Ack:
        """Append one record if this process leads, and wait until the record is durable.

        This call does not wait for the lead; ``writer`` does. See ``LogWriter.append`` for more about
        the arguments.

        Args:
            data: The record.
            key: The key of the record.
            headers: The headers of the record: a mapping from names to bytes, or pairs of a name and
                bytes.
            expected_offset: Write the record at this offset or not at all.
            sequence: The number of the record among all records of its producer, so that the log holds
                it once even if you append it several times, here or at another process.
            producer: The producer of the record. None: the producer that you gave to ``Log.lead``.

        Returns:
            The record's ``Ack``.

        Raises:
            NotLeader: This process does not lead the log; the record is not in the log. ``leader``
                names the process to ask. If it is None, try again after a moment.
            AppendUnknown: The record was sent and the leadership ended; the record may or may not be in
                the log. If it has a ``sequence``, append it again, at the process that leads now.
            OffsetMismatch: The record would not get ``expected_offset``; it was not written.
            OutOfSequence: ``sequence`` does not continue the producer's sequences; the record was not
                written.
            TooManyProducers: The log remembers as many producers as it may; the record was not written.
            RecordTooLarge: The record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are
                over ``limits.RECORD_ATTRIBUTES_BYTES_MAX``; it was not written.
            InvalidArgument: An argument is malformed; the record was not written.
            LedgerLogError: The campaign has given up; this is its ``failure``. The record was not
                written.
            ConnectionClosed: The ``async with`` of the campaign has ended.

        Cancelling: as for ``LogWriter.append``.

        Example:
            ```python
            try:
                ack = await campaign.append(order, producer=client, sequence=number)
            except ledgerlog.NotLeader as elsewhere:
                return redirect_to(elsewhere.leader)
            except ledgerlog.AppendUnknown:
                return try_again()
            ```"""
        return await self._run(
            lambda: self._inner.append(
                data,
                key=key,
                headers=headers,
                expected_offset=expected_offset,
                sequence=sequence,
                producer=producer,
            )
        )

    async def append_many(
        self,
        datas: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        atomic: bool = False,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> list[Ack]:
        """Append records in their order if this process leads, and wait until all of them are durable.

        Args:
            datas: The records.
            keys: The key of each record, or None for a record without one. None: no record has a key.
            headers: The headers of each record, or None for a record without any. None: no record has
                any.
            atomic: Put the records into one entry, so that they are in the log all together or not at
                all.
            sequence: The sequence of the first record; the next ones count up from it.
            producer: The producer of the records, as for ``append``.

        Returns:
            One ``Ack`` for each record, in their order.

        Raises:
            NotLeader: This process does not lead the log; none of the new records is in the log.
            AppendUnknown: The leadership ended; a prefix of the records may be in the log.

        This call also raises the other errors of ``append``. Nothing was written then.

        Cancelling: a prefix of the records may be in the log."""
        return await self._run(
            lambda: self._inner.append_many(
                datas, keys=keys, headers=headers, atomic=atomic, sequence=sequence, producer=producer
            )
        )

    async def leader(self) -> str | None:
        """Return the name under which the leader stands for election, also if this process leads.

        The name is at most a fifth of a second old. The campaign asks the metadata store for it, for at
        most a second.

        Returns:
            The name. None if no leader is known now."""
        return await self._run(self._inner.leader)


class Cursor(AioFace[AsyncCursor]):
    """A named, durable place in a log. ``Log.cursor`` returns it, whether or not the cursor exists yet.

    Use it to remember how far you have processed a log. A cursor that pins holds back truncation and
    retention: the records from its offset on stay. The object holds no state and no connection.

    Every method may raise MetadataUnavailable: the cursor was not changed. Methods that write may also
    raise MetadataOutcomeUnknown: the cursor may or may not have changed.

    Example:
        ```python
        cursor = log.cursor("billing")
        state = await cursor.get()
        async with log.read(state.offset if state else 0) as records:
            async for record in records:
                handle(record)
                state = await cursor.move(record.offset + 1, expected=state)
        ```"""

    def __repr__(self) -> str:
        return f"<aio {self._inner!r}>"

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._inner.name

    async def get(self) -> CursorState | None:
        """Return the state of the cursor now; None if it does not exist."""
        return await self._run(self._inner.get)

    async def move(
        self,
        offset: int,
        *,
        expected: CursorState | None,
        properties: Mapping[str, str] | None = None,
        pins: bool | None = None,
    ) -> CursorState:
        """Move the cursor, if it is still at ``expected``.

        Args:
            offset: The new offset: the next record that you have not processed.
            expected: The state that ``get``, ``move`` or ``set`` returned last. None: the cursor does
                not exist yet, and the call creates it.
            properties: The new properties, together at most ``limits.CURSOR_PROPERTIES_BYTES_MAX``
                bytes in UTF-8. None: keep the properties of ``expected``.
            pins: Whether the cursor keeps the records from ``offset`` on. None: as in ``expected``; a
                new cursor does not pin.

        Returns:
            The new state. Pass it as ``expected`` to the next move.

        Raises:
            CursorConflict: The cursor is no longer at ``expected``. This call did not move it, or
                another client moved it after this call had done so.
            Truncated: The cursor would begin to pin, or move its pin back, at records that are
                truncated. It was not moved.
            LogNotFound: The log no longer exists.
            InvalidArgument: ``offset`` is not an offset, or the properties are malformed. The cursor
                was not moved.

        Cancelling: the cursor may or may not have moved."""
        return await self._run(
            lambda: self._inner.move(offset, expected=expected, properties=properties, pins=pins)
        )

    async def set(
        self, offset: int, *, properties: Mapping[str, str] | None = None, pins: bool | None = None
    ) -> CursorState:
        """Move the cursor, wherever it is now; create it if it does not exist.

        If several clients do this at the same time, the last one wins.

        Args:
            offset: The new offset.
            properties: The new properties. None: keep the current ones.
            pins: Whether the cursor keeps the records from ``offset`` on. None: keep the current
                setting.

        Returns:
            The new state.

        Raises:
            Truncated: The cursor would begin to pin, or move its pin back, at records that are
                truncated. It was not moved.
            LogNotFound: The log no longer exists.
            InvalidArgument: ``offset`` is not an offset, or the properties are malformed. The cursor
                was not moved.

        Cancelling: the cursor may or may not have moved."""
        return await self._run(lambda: self._inner.set(offset, properties=properties, pins=pins))

    async def delete(self, *, expected: CursorState | None = None) -> None:
        """Delete the cursor. It no longer pins records.

        If the cursor does not exist and you give no ``expected``, nothing happens.

        Args:
            expected: Delete the cursor only if it is still in this state. None: delete it in any case.

        Raises:
            CursorConflict: The cursor is not at ``expected``, or does not exist; this call did not
                delete it.
            MetadataOutcomeUnknown: The cursor may or may not have been deleted. If there is a cursor
                now, the answer was lost, and other clients have written the cursor since. There are two
                cases: one of them created it again after this call had deleted it, or they moved it at
                least twice and this call did nothing.

        Cancelling: the cursor may or may not be deleted."""
        await self._run(lambda: self._inner.delete(expected=expected))


class LogWriter(AioWriter):
    """The leader of a log: it appends records. Enter ``Log.writer`` to get one.

    Any number of tasks may append at the same time. Records get their offsets in the order in which the
    writer takes them.

    ``append`` writes one record and waits. ``append_many`` writes a list. ``submit`` takes a record and
    lets you wait for it later."""

    @property
    def epoch(self) -> int:
        """The number of this leadership. It grows by one with each takeover of the log.

        You may use it elsewhere as a fencing token: for example, a storage service can refuse requests
        with an older epoch."""
        return self._inner.epoch

    @property
    def next_offset(self) -> int:
        """The offset of the next record, if all records that are on their way arrive.

        As of a moment ago, if other tasks append."""
        return self._inner.next_offset

    @property
    def failure(self) -> LedgerLogError | None:
        """The reason why nothing more can be appended; None while the leadership lasts."""
        return self._inner.failure

    async def wait_over(self) -> None:
        """Wait until the leadership has ended and every append is answered. ``failure`` then says why."""
        await self._run(self._inner.wait_over)

    def statistics(self) -> WriterStatistics:
        """Return counts and the current state of the writer. Cheap; not a checkpoint."""
        self._check_open()
        return self._inner.statistics()

    async def append(
        self,
        data: bytes,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        expected_offset: int | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Ack:
        """Append one record and wait until it is durable.

        The record is durable once an ack quorum of bookies has synced it and every record before it. If
        the window is full, the call waits for a place first.

        Args:
            data: The record, 0 to ``limits.RECORD_BYTES_MAX`` bytes (4 MiB).
            key: The record's key, which readers get back as ``Record.key``. None: it has none. Together
                with the headers at most ``limits.RECORD_ATTRIBUTES_BYTES_MAX`` bytes (256 KiB), which
                count towards the size of the record.
            headers: The record's headers, which readers get back as ``Record.headers``: a mapping from
                names to bytes, or pairs of a name and bytes. At most ``limits.RECORD_HEADERS_MAX``
                (256). Their order is kept, and a name may occur more than once.
            expected_offset: Write the record at this offset or not at all. Excludes ``sequence``.
            sequence: The number of the record among all records of its producer, from 0. The log then
                holds the record once, even if you append it several times or the leader changes. Needs
                deduplication (see ``Log.writer``).
            producer: The producer of the record. None: the producer that you gave to ``Log.writer``.
                Needs ``sequence``.

        Returns:
            The record's ``Ack``. If the record was in the log already, ``duplicate`` is set, and ``offset``
            is the offset that the record got the first time.

        Raises:
            AppendUnknown: The record was sent and the leadership ended; the record may or may not be in
                the log.
            LostLeadership: The leadership ended, usually because another writer took the log over, or
                because this one was left; the record is not in the log.
            LogSealed: The log was sealed; the record is not in the log.
            NotEnoughBookies: The leadership ended because too few bookies were writable; the record is
                not in the log.
            PermissionDenied: The leadership ended because this principal may not write, or no longer
                may; the record is not in the log.
            OffsetMismatch: The record would not get ``expected_offset``; it was not written. The writer
                continues.
            OutOfSequence: ``sequence`` does not continue the producer's sequences; this call wrote
                nothing. The writer continues.
            TooManyProducers: The log remembers as many producers as it may; the record was not written.
                The writer continues.
            RecordTooLarge: The record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are
                over ``limits.RECORD_ATTRIBUTES_BYTES_MAX``; it was not written. The writer continues.
            InvalidArgument: An argument is malformed, or arguments exclude each other; the record was
                not written. The writer continues.

        Cancelling: if the record was not sent yet, it is not written. If it was sent, or if it has a
        sequence, it may or may not be in the log. If it has a sequence, append it again to find out.
        The writer stays usable in every case.

        Example:
            ```python
            async with log.writer(producer="billing") as writer:
                ack = await writer.append(b"invoice 7", sequence=7)
                again = await writer.append(b"invoice 7", sequence=7)
                assert again.duplicate and again.offset == ack.offset
            ```

        Appends of many tasks cross to trio together."""
        return await self._append(
            data,
            key=key,
            headers=headers,
            expected_offset=expected_offset,
            sequence=sequence,
            producer=producer,
        )

    async def append_many(
        self,
        datas: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        atomic: bool = False,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> list[Ack]:
        """Append records in their order and wait until all of them are durable.

        The records are pipelined through the window. Without ``atomic``, records of other tasks may
        come between them.

        Args:
            datas: The records, each 0 to ``limits.RECORD_BYTES_MAX`` bytes. An empty sequence does
                nothing.
            keys: The key of each record, or None for a record without one; as many as records. None: no
                record has a key. See ``append``.
            headers: The headers of each record, or None for a record without any; as many as records.
                None: no record has headers. See ``append``.
            atomic: Put the records into one entry. They are then in the log all together or not at all,
                at consecutive offsets.
            sequence: The sequence of the first record; the next records count up from there. If the
                first records are in the log already, they are answered as duplicates, and the others
                are written. With ``atomic``, all records must be new or all must be duplicates. See
                ``append``.
            producer: The producer of the records, as for ``append``.

        Returns:
            One ``Ack`` for each record, in their order.

        Raises:
            AppendUnknown: A prefix of the records may be in the log. The message says how many records
                are surely in the log, how many may be, and how many are not.
            LostLeadership: Another writer took the log over, or this one was left; none of the new
                records is in the log. LogSealed, NotEnoughBookies and PermissionDenied say the same
                with another reason.
            OutOfSequence: ``sequence`` does not continue the producer's sequences, or only a part of
                the atomic group is in the log already; this call wrote nothing. The writer continues.
            TooManyProducers: The log remembers as many producers as it may; nothing was written. The
                writer continues.
            RecordTooLarge: A record is over ``limits.RECORD_BYTES_MAX``, its key and headers are over
                ``limits.RECORD_ATTRIBUTES_BYTES_MAX``, or the atomic group is over about
                ``limits.ENTRY_BYTES_MAX``; nothing was written. The writer continues.
            InvalidArgument: An argument is malformed; nothing was written. The writer continues.

        Cancelling: a prefix of the records may be in the log.

        Example:
            ```python
            acks = await writer.append_many([b"debit", b"credit"], atomic=True)
            ```"""
        return await self._run(
            lambda: self._inner.append_many(
                datas, keys=keys, headers=headers, atomic=atomic, sequence=sequence, producer=producer
            )
        )

    async def submit(
        self,
        data: bytes,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        sequence: int | None = None,
        producer: str | None = None,
    ) -> Submission:
        """Take one record and return without waiting until it is durable.

        The call waits only for a place in the window, then takes the record. Always a checkpoint,
        before the record is taken: if you cancel it there, the record is not written. After that,
        ``await submission.wait()`` gives the record's ``Ack``.

        Args:
            data: The record, 0 to ``limits.RECORD_BYTES_MAX`` bytes.
            key: The key of the record, as for ``append``.
            headers: The headers of the record, as for ``append``.
            sequence: The sequence of the record, as for ``append``.
            producer: The producer of the record, as for ``append``.

        Returns:
            The ``Submission`` to wait for. You may drop it: the record goes into the log all the same.

        Raises:
            LostLeadership: The leadership has ended; the record was not taken. LogSealed,
                NotEnoughBookies and PermissionDenied say the same with another reason.
            OutOfSequence: ``sequence`` does not continue the producer's sequences; the record was not
                taken. The writer continues.
            TooManyProducers: The log remembers as many producers as it may; the record was not taken.
                The writer continues.
            RecordTooLarge: The record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are
                over ``limits.RECORD_ATTRIBUTES_BYTES_MAX``; it was not taken. The writer continues.
            InvalidArgument: An argument is malformed; the record was not taken. The writer continues."""
        return Submission(
            self._portal,
            await self._run(
                lambda: self._inner.submit(
                    data, key=key, headers=headers, sequence=sequence, producer=producer
                )
            ),
        )

    async def flush(self) -> None:
        """Wait until every record that was taken before the call is durable.

        Records that linger are sent at once. Always a checkpoint.

        Raises:
            AppendUnknown: The leadership ended, and some of the records may or may not be in the log;
                the message says how many.
            LostLeadership: The leadership ended, and some of the records are not in the log. LogSealed,
                NotEnoughBookies and PermissionDenied say the same with another reason."""
        await self._run(self._inner.flush)

    async def roll(self) -> None:
        """Continue in a new ledger.

        Returns once new records go to the new ledger and the ledger before it is closed. Appends
        continue meanwhile. If the current ledger is empty, nothing happens.

        Raises:
            LostLeadership: The leadership ended first. LogSealed, NotEnoughBookies and PermissionDenied
                say the same with another reason.

        Cancelling: abandons the wait. The roll still happens."""
        await self._run(self._inner.roll)

    async def truncate(self, before_offset: int, *, ignore_pins: bool = False) -> None:
        """Give up the records below ``before_offset``, but only while this writer leads.

        This is ``Log.truncate`` for a leader. A leader that was deposed gives up nothing. Use it to
        truncate records that are already part of your own state, for example of a snapshot.

        Args:
            before_offset: The first offset to keep, at most the offset after the last durable record.
            ignore_pins: Truncate even if a cursor pins records below ``before_offset``.

        Raises:
            LostLeadership: This writer no longer leads; nothing was given up. LogSealed,
                NotEnoughBookies and PermissionDenied say the same with another reason.
            InvalidArgument: ``before_offset`` is not an offset, or lies beyond the durable end; nothing
                was given up.
            TruncationPinned: A cursor pins a record below ``before_offset``; nothing was given up.
            LogNotFound: The log no longer exists.
            MetadataUnavailable: The metadata store could not be reached; nothing was given up.
            MetadataOutcomeUnknown: The records may or may not be given up.

        Cancelling: the records may or may not be given up, as for ``Log.truncate``."""
        await self._run(lambda: self._inner.truncate(before_offset, ignore_pins=ignore_pins))


class Submission(AioFace[AsyncSubmission]):
    """A record that ``LogWriter.submit`` has taken. It goes into the log whether or not you wait for it."""

    async def wait(self) -> Ack:
        """Wait until the record is durable.

        You may call it several times, and from several tasks.

        Returns:
            The record's ``Ack``, with its offset.

        Raises:
            AppendUnknown: The record was sent and the leadership ended; the record may or may not be in
                the log.
            LostLeadership: The leadership ended; the record is not in the log. LogSealed,
                NotEnoughBookies and PermissionDenied say the same with another reason.

        Cancelling: abandons the wait. The record still goes into the log."""
        return await self._run(self._inner.wait)


class LogReader(AioRecords):
    """The records of a log, as an async iterator. Enter ``Log.read`` to get one.

    One task at a time may use it. If another task calls it meanwhile, that call raises InvalidArgument
    and changes nothing. Iterating gives ``Record`` objects; ``batches`` gives the same records by the
    batch.

    Offsets grow by one from record to record, except where compaction of the archive has removed
    records, and at a gap of lost records.

    The reader fetches ahead. If it meets an error, you first get the records that it fetched before the
    error. If nothing is fetched ahead, iterating is a checkpoint. Cancelling loses no record.

    Iterating raises:

    - Truncated: records that you have not read yet have been truncated. The error's ``first_offset`` is
      the first offset that you can still read.
    - RecordsLost, a subclass of Truncated: the reader came to a gap of lost records. Raised once for
      each gap; iterate again to continue after the gap.
    - LossUndecided: an operator has not decided about a loss yet, and reading would end at that loss.
    - EntryUnavailable: no bookie answers for an entry. Or a reader without ``follow`` has read all that
      it knows, and too few bookies can say whether there is more. Retryable.
    - EntryNotFound: bookies have lost an entry.
    - LedgerNotFound: the metadata store has lost a ledger of the log.
    - EntryCorrupt: every copy of an entry is damaged, or the entry does not continue the log. The
      latter also if the log has lost records that this reader has read, and gives their offsets to
      other records.
    - PermissionDenied: this client has no right to read the log, or has lost it.
    - MetadataUnavailable: the metadata store cannot be reached. A reader that follows an open ledger
      goes on without it, unless there is no new record for ``limits.METADATA_TIMEOUT_S``. Retryable.
    - LogNotFound: the log was deleted.
    - ArchiveUnavailable: the archive file cannot be read now. Retryable.
    - ArchiveCorrupt: the archive file is damaged.
    - ArchiveSupportMissing: the records are in an archive, and the packages that read it are not
      installed.
    - ConnectionClosed: the ``async with`` was left.
    - InvalidArgument: another task waits for a record of this reader. The reader continues.

    After any error but RecordsLost and InvalidArgument the reader has ended, and iterating raises the
    same error again. Enter ``Log.read`` again: after Truncated from ``first_offset``, otherwise from
    ``next_offset``. After a loss of records that you have read, start at the offset that the error
    names."""


class Ledgers(AioFace[AsyncLedgers]):
    """The ledgers of a cluster. Every method may raise MetadataUnavailable."""

    async def create(
        self,
        replication: Replication | None = None,
        metadata: Mapping[str, bytes] | None = None,
        *,
        full_pinning: bool = False,
    ) -> LedgerWriter:
        """Create a new, empty ledger and return its only writer.

        Args:
            replication: The ledger's quorums; None for the client's default.
            metadata: Bytes by text key. They are stored with the ledger, and its readers can see them.
            full_pinning: If the ledger has a guaranteed write quorum, use the published, stricter
                pinning rule (see ``ledger.core.pending``).

        Returns:
            The writer.

        Raises:
            NotEnoughBookies: Even after a short wait, fewer bookies are writable than the ensemble
                needs.
            NotEnoughRacks: A kind of NotEnoughBookies: the placement policy is strict, and the writable
                bookies lie in too few racks.
            InvalidArgument: An argument is out of range.
            MetadataUnavailable: The metadata store cannot be reached.
            MetadataOutcomeUnknown: An empty ledger may exist.

        Cancelling: an empty ledger without a writer may remain.

        The writer is an async context manager as well."""
        return LedgerWriter(
            self._portal,
            *await self._portal.enter(
                making(lambda: self._inner.create(replication, metadata, full_pinning=full_pinning))
            ),
        )

    async def open(self, ledger_id: int, recover: bool = False) -> LedgerReader:
        """Open a ledger for reading.

        Args:
            ledger_id: The ledger.
            recover: Recover the ledger first: fence its writer and fix its end. If False, the writer
                continues, and you can read entries up to the LAC (the last add confirmed).

        Returns:
            The reader.

        Raises:
            LedgerNotFound: There is no such ledger.
            MetadataUnavailable: The metadata store cannot be reached.
            RecoveryFailed, MetadataOutcomeUnknown: Only with ``recover``. See the method ``recover``, which
                may raise more."""
        return LedgerReader(self._portal, await self._run(lambda: self._inner.open(ledger_id, recover)))

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence a ledger, find its end and close it.

        A closed ledger stays as it is. Any number of clients may recover a ledger at the same time; all
        of them get the same end.

        Args:
            ledger_id: The ledger.

        Returns:
            The ledger's CLOSED metadata.

        Raises:
            LedgerNotFound: There is no such ledger.
            RecoveryFailed: Fencing or a read stayed incomplete. You may try again.
            NotEnoughBookies: No bookie stored an entry again within the append deadline. You may try
                again.
            MetadataUnavailable: The metadata store cannot be reached.
            MetadataOutcomeUnknown: The ledger may or may not be closed. You may try again.

        Cancelling: the ledger stays IN_RECOVERY until another client recovers it."""
        return await self._run(lambda: self._inner.recover(ledger_id))

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Read the stored metadata of a ledger.

        Args:
            ledger_id: The ledger.

        Returns:
            The metadata.

        Raises:
            LedgerNotFound: There is no such ledger.
            MetadataUnavailable: The metadata store cannot be reached."""
        return await self._run(lambda: self._inner.metadata(ledger_id))

    async def list(self) -> list[int]:
        """List the ids of all ledgers, in ascending order.

        Raises:
            MetadataUnavailable: The metadata store cannot be reached."""
        return await self._run(self._inner.list)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, open or closed.

        Readers can no longer open the ledger, and the bookies free its space later. If the ledger's
        writer is still alive, it notices at its next metadata write.

        Args:
            ledger_id: The ledger.

        Raises:
            LedgerNotFound: There is no such ledger.
            MetadataUnavailable: The metadata store cannot be reached.
            MetadataOutcomeUnknown: The ledger may be deleted."""
        await self._run(lambda: self._inner.delete(ledger_id))

    async def verify(self, ledger_id: int) -> LedgerVerification:
        """Read every copy of every entry of a ledger. See ``LedgerVerification``.

        Args:
            ledger_id: The ledger.

        Returns:
            How many entries were checked, and which of them lack sound copies.

        Raises:
            LedgerNotFound: There is no such ledger."""
        return await self._run(lambda: self._inner.verify(ledger_id))


class LedgerWriter(AioLedger):
    """The single writer of one ledger, made by ``Ledgers.create``.

    You can use it as an async context manager. A normal exit closes the ledger, or raises the reason
    why the ledger cannot be closed. On an error or a cancellation, the writer gives the ledger up and
    leaves it OPEN.

    Payloads are ``bytes`` of at most ``limits.ENTRY_BYTES_MAX``. Any number of tasks may use a writer
    at the same time. Entries are numbered in the order in which the writer takes them."""

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._inner.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry acknowledged; -1 if there is none. An ack quorum has synced it and all earlier
        entries."""
        return self._inner.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """The last entry that is on its full write quorum together with all earlier entries.

        Only the guaranteed mode counts this. In the plain mode it stays at -1."""
        return self._inner.last_add_fully_replicated

    async def append(self, payload: bytes) -> int:
        """Append one entry, and wait until an ack quorum has synced it and all entries before it.

        Args:
            payload: ``bytes``, at most ``limits.ENTRY_BYTES_MAX``.

        Returns:
            The id of the entry.

        Raises:
            RecordTooLarge: The payload is too large. It was not written.
            InvalidArgument: The payload is not ``bytes``. It was not written.
            WriteQuorumUnavailable: Only in guaranteed mode: the window was full, and no entry in it got
                its full write quorum within the append deadline. The payload was not written.
            LedgerFenced: Another client took the ledger over. The entry may or may not be in the
                ledger.
            NotEnoughBookies: The ledger was closed without the entry, because too few bookies took it.
            PermissionDenied: The ledger was closed without the entry: this client may not add to it.
            LedgerClosed: The ledger is closed, or being closed. The entry is not in it.
            LedgerNotFound: The ledger was deleted.
            AppendUnknown: The outcome could not be determined. The entry may be in the ledger.

        Cancelling: before the entry is sent, it is not written; after that, the outcome is unknown. In
        both cases the writer stays usable, and its entries stay in order."""
        return await self._run(lambda: self._inner.append(payload))

    async def append_many(self, payloads: Sequence[bytes]) -> range:
        """Append entries with consecutive ids, and wait until all are acknowledged.

        The call waits for room in the window once and then takes all payloads, so entries of other
        tasks never come in between. So the payloads of this call may exceed the window.

        Args:
            payloads: ``bytes``, each at most ``limits.ENTRY_BYTES_MAX``.

        Returns:
            The ids of the entries.

        Raises:
            LedgerLogError: The same errors as ``append``. If an error comes after the entries were
                taken, some of them may be in the ledger, always a prefix.

        Cancelling: as for ``append``; a prefix of the entries may be in the ledger."""
        return await self._run(lambda: self._inner.append_many(payloads))

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged.

        Raises:
            LedgerLogError: The errors of ``append``, about the last entry appended.

        Cancelling: only abandons the wait."""
        await self._run(self._inner.flush)


class LedgerReader(AioEntries):
    """Reads one ledger and never fences it. Any number of tasks may use it at the same time."""

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata seen."""
        return self._inner.metadata

    async def last_add_confirmed(self) -> int:
        """Find the last entry that you can read now.

        The result includes every entry that was acknowledged to the writer before this call, if the
        writer can tell the bookies within 0.1 s that the entry is acknowledged. If the writer or its
        network is slow, you can read its last entries later. If the writer is gone, they may become
        readable only after recovery.

        Returns:
            The last readable entry; -1 if there is none.

        Raises:
            EntryUnavailable: Too few bookies of the last ensemble answered: an acknowledged entry may
                be on the others only.
            PermissionDenied: This client may not read the ledger.
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store cannot be reached."""
        return await self._run(self._inner.last_add_confirmed)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Read the payloads of entries first..last. All payloads are kept in memory: choose a range that
        fits.

        Args:
            first: The first entry, at least 0.
            last: The last entry, at least ``first``.

        Returns:
            The payloads, in order.

        Raises:
            InvalidArgument: Not 0 <= first <= last.
            EntryNotFound: An entry is after the last readable one, or every bookie of its write set
                says that there is no such entry.
            EntryUnavailable: A bookie that may have the entry did not answer, or is in limbo. Or an
                entry is after the last one that is known to be readable, and too few bookies answered
                to deny it.
            EntryCorrupt: Every copy that was found is damaged.
            PermissionDenied: This client has no right to read the ledger, or has lost it.
            LedgerNotFound: The ledger was deleted.
            MetadataUnavailable: The metadata store cannot be reached.

        Cancelling: harmless."""
        return await self._run(lambda: self._inner.read(first, last))


class Election(AioFace[AsyncElection]):
    """One process's part in an election. ``Cluster.election`` makes it.

    Any number of processes may take part in an election, and each may lead many times."""

    def __repr__(self) -> str:
        return f"<aio {self._inner!r}>"

    @property
    def name(self) -> str:
        """The name of the election."""
        return self._inner.name

    @property
    def candidate(self) -> str:
        """The name of this process in the election."""
        return self._inner.candidate

    def leadership(self, *, strict: bool = False) -> AbstractAsyncContextManager[Term]:
        """Wait until this process leads, then run the body of the ``async with`` while it leads.

        The body is cancelled as soon as the leadership ends: the metadata session is over, or the
        record names another leader. The ``async with`` then ends without an exception, as a cancel
        scope does. ``term.why`` has the reason. Call ``leadership()`` again to stand again. If the body
        ends first, the next leader is told at once.

        If the metadata store is away, the leadership continues: a restart of ZooKeeper costs no
        failover. If only this process cannot reach the store, the store ends its session after a while.
        Then another process leads, and this one may notice that later. This is safe if you write only
        to stores that refuse the older leader. A log does (its writer raises LostLeadership). If a
        store does not, pass ``strict=True``.

        A log writer that you enter in the body notices if it reaches no ack quorum of bookies for a
        second. The leadership then passes to another candidate that reaches enough bookies, if there is
        one. Without such a candidate the leadership continues. A strict leadership is never passed on
        like this.

            async with cluster.election("scheduler").leadership() as term:
                await schedule(term.number)  # cancelled if this process stops leading

        An exception of the body comes out as it was raised, not in a group. While the store is
        unreachable, entering the ``async with`` waits.

        Args:
            strict: Whether the leadership also ends as soon as the store is out of reach. As a rule,
                this process then stops before the store ends its session and another process leads. A
                ZooKeeper server that is itself cut off can delay that by some seconds
                (docs/METADATA.md).

        Returns:
            An async context manager. Entering it gives the ``Term``.

        Raises:
            InvalidArgument: Another ``leadership()`` of this object is open; make another ``Election``.
                Or the election's ``listen`` address is malformed.
            MetadataCorrupt: The election's record is damaged.

        Cancelling: while it waits, this process withdraws from the election.

        If the leadership ends, the task that entered it is cancelled, and the ``async with`` ends as if
        its body had returned. A cancellation from elsewhere goes on."""
        return LeadershipEntered(self._portal, self._inner.leadership(strict=strict), Term)

    async def leader(self) -> Leader | None:
        """Read from the metadata store which process leads.

        Returns:
            The leader. None if no process leads.

        Raises:
            MetadataUnavailable: The store did not answer.
            MetadataCorrupt: The election's record is damaged."""
        return await self._run(self._inner.leader)


class Term(AioTerm):
    """One leadership. ``async with election.leadership() as term`` gives you one."""

    def __repr__(self) -> str:
        return f"<aio {self._inner!r}>"

    @property
    def number(self) -> int:
        """The number of this leadership. It grows with each leadership and is never used twice.

        You can use it as a fencing token: a store that remembers the highest number it has seen can
        refuse a deposed leader, because the deposed leader's number is lower."""
        return self._inner.number

    @property
    def is_over(self) -> bool:
        """Whether the leadership is known to be over. The ``async with`` body is then being cancelled, or
        has ended."""
        return self._inner.is_over

    @property
    def why(self) -> str | None:
        """The reason that the leadership is over, in words.

        None while the leadership is not over, or if the body ended by itself."""
        return self._inner.why

    async def wait_over(self) -> None:
        """Wait until the leadership is over.

        Use it in tasks outside of the ``async with`` body. The body itself is cancelled anyway.

        Cancelling: abandons the wait."""
        await self._run(self._inner.wait_over)


class Replica(AioReplica[M]):
    """A replica of a state machine in this process.

    Enter it with ``async with``, once. Any number of tasks may use it. Entering restores the newest
    snapshot and starts to follow the log. If that fails, it raises LogNotFound, MetadataUnavailable or
    ReplicaStopped. Leaving finishes the proposals that were taken, within
    ``limits.LOG_CLOSE_TIMEOUT_S``, and gives the leadership up.

    Args:
        log: The log.
        machine: The state machine, in its initial state. Only the replica may change it.
        election: Decides which replica leads. None: this replica leads at once. Then it must be the
            only replica, or all others must have ``leads=False``.
        snapshots: The store that keeps snapshots. None: there are no snapshots, and each start applies
            the whole log.
        leads: Whether this replica may lead. If not, it only follows.
        snapshot_every: Take a snapshot after this many records, at least 1.
        snapshots_kept: How many snapshots to keep, at least 1.
        truncate: Whether to truncate the records that all kept snapshots have. None: do so if the store
            of snapshots is shared (``SnapshotStore.is_shared``).

    Raises:
        InvalidArgument: ``snapshot_every`` or ``snapshots_kept`` is below 1, ``truncate`` is set
            without ``snapshots``, or ``machine`` is no object with the methods of ``StateMachine``. Or
            another argument is no object of its class.

    Example:
        ```python
        replica = ledgerlog.aio.Replica(
            log,
            Counter(),
            election=cluster.election("counter", candidate="10.0.0.7:8080"),
            snapshots=ledgerlog.aio.LedgerSnapshots(cluster),
        )
        async with replica:
            await replica.wait_leading()
            await replica.propose(b"5")
        ```

    The machine runs in trio's loop: in another thread than yours, unless you connected with
    ``guest=True``. Touch it only through ``propose`` and ``read``."""

    def __repr__(self) -> str:
        return f"<aio {self._inner!r}>"

    @property
    def next_offset(self) -> int:
        """The offset of the first record that is not applied here."""
        return self._inner.next_offset

    @property
    def is_leading(self) -> bool:
        """Whether this replica takes proposals now."""
        return self._inner.is_leading

    @property
    def failure(self) -> ReplicaStopped | None:
        """Why the replica has stopped; None while it runs."""
        return self._inner.failure

    def statistics(self) -> ReplicaStatistics:
        """Return counts and the present place of the replica. Cheap; not a checkpoint."""
        self._check_open()
        return self._inner.statistics()

    def new_request_id(self) -> str:
        """Return a new id for one request. Use it again if you propose that request again.

        The id contains this replica's ``next_offset``. So if a retry comes too late to be recognised,
        it is refused (RequestExpired) and not executed twice. The first proposal is refused in the same
        way if more requests than the replicas remember are executed between this call and that
        proposal. So make the id just before you propose the request, and do not propose more than
        ``limits.REPLICA_REQUESTS`` requests or ``limits.REPLICA_RESULTS_BYTES`` of results at the same
        time."""
        self._check_open()
        return self._inner.new_request_id()

    async def propose(self, command: bytes, *, request_id: str | None = None) -> bytes:
        """Propose a command, and wait until it is durable and applied here.

        Only the leader takes proposals.

        Args:
            command: The command for ``StateMachine.apply``. It must fit into one record (almost 4 MiB).
            request_id: The id of the request, at most 128 bytes of text. If you propose the same id
                again, here or at any other replica, the command is not executed again, and you get the
                first outcome. An id of your own is remembered for ``limits.REPLICA_REQUESTS`` requests,
                or fewer if their results are large. An id from ``new_request_id`` is refused once its
                outcome may be forgotten. None: the command is a request of its own, which is never
                refused as too old.

        Returns:
            The result of ``StateMachine.apply``.

        Raises:
            NotLeader: This replica does not lead; the command was not written. Propose it to
                ``NotLeader.leader``.
            AppendUnknown: The command may or may not be in the log. Propose it again with the same id.
            CommandFailed: ``apply`` raised. The command is in the log, and this is its result.
            RequestExpired: The id is too old to know whether the request was executed before. This call
                did not execute it.
            LogSealed: The log is sealed; the command was not written.
            RecordTooLarge: The command is too large; it was not written.
            InvalidArgument: ``command`` or ``request_id`` is malformed; the command was not written.
            ReplicaStopped: The replica has stopped. The command was not written through this call.

        Cancelling: the command may or may not be in the log. Propose it again with the same id."""
        return await self._run(lambda: self._inner.propose(command, request_id=request_id))

    async def wait_applied(self, offset: int) -> None:
        """Wait until the record at an offset is applied here. You can then read your own writes here.

        Args:
            offset: The offset of the record.

        Raises:
            ReplicaStopped: The replica has stopped."""
        await self._run(lambda: self._inner.wait_applied(offset))

    async def wait_leading(self) -> None:
        """Wait until this replica takes proposals.

        Raises:
            ReplicaStopped: The replica has stopped.
            LogSealed: The log is sealed. No more commands can be proposed.
            InvalidArgument: The replica has ``leads=False``; it will never lead.
            LostLeadership: Another replica took the log over. Without an election, this replica stays a
                follower."""
        await self._run(self._inner.wait_leading)

    async def leader(self) -> str | None:
        """Return the candidate name of the leader; None if no leader is known or there is no election."""
        return await self._run(self._inner.leader)

    async def snapshot(self) -> SnapshotInfo:
        """Take a snapshot now, and wait until it is durable.

        If another snapshot is being taken, wait for that first.

        Returns:
            The snapshot.

        Raises:
            InvalidArgument: The replica has no store for snapshots.
            LedgerLogError: The store failed; the message says how. The snapshot is not listed.
            ReplicaStopped: The replica has stopped."""
        return await self._run(self._inner.snapshot)
