"""Leading a log whenever an election allows it: ``Log.lead``.

One task campaigns beside the caller's body, again and again:

    1. It stands for election, and waits until this process leads.
    2. It takes the log over.
    3. It waits until the leadership ends: the election ends it, the writer ends, or the body is left.
    4. It steps down, pauses, and starts again.

``log.core.campaign`` decides what a failure means. A failure of this task reaches callers only through their
own calls: an append raises NotLeader while another process leads, and the permanent error after the campaign
has given up.

This module knows an election only as the protocol ``LeadElection``, because ``ledgerlog.election`` imports
this package, and not the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar, runtime_checkable

import trio

from ledgerlog.concurrency.nurseries import background, is_cancelled
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import ConnectionClosed, LedgerLogError, LostLeadership
from ledgerlog.log.core.campaign import CampaignCore, is_retryable, verdict_of_append
from ledgerlog.log.leader_name import LeaderName, NamesLeader
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.attributes import HeadersLike
from ledgerlog.model.record import Ack

__all__ = ["Campaign", "LeadElection", "campaign"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LeadTerm(Protocol):
    """One leadership that an election gives."""

    @property
    def why(self) -> str | None: ...


@runtime_checkable
class LeadElection(NamesLeader, Protocol):
    """An election, as ``Cluster.election`` returns it."""

    def leadership(self) -> AbstractAsyncContextManager[LeadTerm]: ...


class Campaign:
    """A process that leads a log whenever its election allows it. Enter ``Log.lead`` to get one.

    The campaign stands for election, takes over the log, leads, and stands again after the leadership has
    ended, while the body of the ``async with`` runs. Any number of tasks may append through it.

    If bookies or the metadata store are away, or another process leads, the campaign continues. If no further
    try can succeed, it gives up: ``failure`` has the reason, and every call raises that error. Examples are
    PermissionDenied, LogSealed, LogNotFound and EntryCorrupt.
    """

    def __init__(
        self,
        name: str,
        election: LeadElection,
        enter: Callable[[], AbstractAsyncContextManager[LogWriter]],
    ) -> None:
        self._name = name
        self._election = election
        self._enter = enter
        self._core = CampaignCore()
        self._leader_name = LeaderName(election, name)
        self._writer: LogWriter | None = None
        self._turned = trio.Event()
        """Set, and then replaced, whenever ``writer`` may have something to return or to raise."""
        self._is_left = False
        self._trying = trio.CancelScope()
        """Around the tries. Cancelled if the campaign is left while it does not lead."""
        self._serving = trio.CancelScope()
        """Around the wait for the end of the present leadership."""
        self._is_logged = False
        self._left_with: LedgerLogError | None = None
        """The error of records that were still on their way when the last writer was left."""

    def __repr__(self) -> str:
        return f"<Campaign for {self._name!r}{', leading' if self.is_leading else ''}>"

    @property
    def is_leading(self) -> bool:
        """Whether this process leads the log now, as far as it knows."""
        return self._writer is not None and self._writer.failure is None

    @property
    def failure(self) -> LedgerLogError | None:
        """Why the campaign has given up; None while it continues."""
        return self._core.failure

    async def writer(self) -> LogWriter:
        """Wait until this process leads the log, and return the writer of this leadership.

        The writer has members that a campaign lacks: ``submit``, ``epoch``, ``statistics``. It is good for
        this leadership only; it raises the errors of ``LogWriter``.

        Returns:
            The writer.

        Raises:
            LedgerLogError: The campaign has given up; this is its ``failure``.
            ConnectionClosed: The ``async with`` of the campaign has ended.

        Cancelling: abandons the wait. The campaign continues.
        """
        while True:
            await trio.lowlevel.checkpoint()
            self._check()
            if self.is_leading:
                assert self._writer is not None
                return self._writer
            await self._turned.wait()

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

        This call does not wait for the lead; ``writer`` does. See ``LogWriter.append`` for more about the
        arguments.

        Args:
            data: The record.
            key: The key of the record.
            headers: The headers of the record: a mapping from names to bytes, or pairs of a name and bytes.
            expected_offset: Write the record at this offset or not at all.
            sequence: The number of the record among all records of its producer, so that the log holds it
                once even if you append it several times, here or at another process.
            producer: The producer of the record. None: the producer that you gave to ``Log.lead``.

        Returns:
            The record's ``Ack``.

        Raises:
            NotLeader: This process does not lead the log; the record is not in the log. ``leader`` names the
                process to ask. If it is None, try again after a moment.
            AppendUnknown: The record was sent and the leadership ended; the record may or may not be in the
                log. If it has a ``sequence``, append it again, at the process that leads now.
            OffsetMismatch: The record would not get ``expected_offset``; it was not written.
            OutOfSequence: ``sequence`` does not continue the producer's sequences; the record was not
                written.
            TooManyProducers: The log remembers as many producers as it may; the record was not written.
            RecordTooLarge: The record is over ``limits.RECORD_BYTES_MAX``, or its key and headers are over
                ``limits.RECORD_ATTRIBUTES_BYTES_MAX``; it was not written.
            InvalidArgument: An argument is malformed; the record was not written.
            LedgerLogError: The campaign has given up; this is its ``failure``. The record was not written.
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
            ```
        """
        return await self._write(
            lambda writer: writer.append(
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
            headers: The headers of each record, or None for a record without any. None: no record has any.
            atomic: Put the records into one entry, so that they are in the log all together or not at all.
            sequence: The sequence of the first record; the next ones count up from it.
            producer: The producer of the records, as for ``append``.

        Returns:
            One ``Ack`` for each record, in their order.

        Raises:
            NotLeader: This process does not lead the log; none of the new records is in the log.
            AppendUnknown: The leadership ended; a prefix of the records may be in the log.

        This call also raises the other errors of ``append``. Nothing was written then.

        Cancelling: a prefix of the records may be in the log.
        """
        return await self._write(
            lambda writer: writer.append_many(
                datas, keys=keys, headers=headers, atomic=atomic, sequence=sequence, producer=producer
            )
        )

    async def leader(self) -> str | None:
        """Return the name under which the leader stands for election, also if this process leads.

        The name is at most a fifth of a second old. The campaign asks the metadata store for it, for at most
        a second.

        Returns:
            The name. None if no leader is known now.
        """
        if self.is_leading:
            await trio.lowlevel.checkpoint()
            return self._election.candidate
        return await self._leader_name.look()

    async def _write(self, write: Callable[[LogWriter], Awaitable[T]]) -> T:
        self._check()
        writer = self._writer
        if writer is None:
            leader = await self.leader()
            self._check()
            raise verdict_of_append(LostLeadership(self._name), self._name, leader)
        try:
            return await write(writer)
        except LedgerLogError as error:
            verdict = verdict_of_append(error, self._name, self._leader_name.known)
            if verdict is error:
                raise
            raise verdict from error

    def _check(self) -> None:
        if self._is_left:
            raise ConnectionClosed(f"the campaign for log {self._name!r} was left")
        if self._core.failure is not None:
            raise fresh(self._core.failure)

    # --- the task that campaigns --------------------------------------------------------------

    async def _run(self) -> None:
        """Try again and again, until the campaign is left or gives up."""
        with self._trying:
            while self._core.failure is None:
                why = await self._try()
                if self._is_left:
                    return
                self._left_with = None  # A campaign that continues leaves it to the records' callers.
                why = why or LostLeadership(self._name, None, "the election ended the leadership")
                self._core.on_ended(why, trio.current_time())
                self._turn()
                self._log(why)
                if self._core.failure is None:
                    await trio.sleep(self._core.pause_s)

    async def _try(self) -> LedgerLogError | None:
        """Stand, lead once, and step down. Return the error that ended it, if there was one."""
        try:
            async with self._election.leadership() as term:
                await self._lead()
        except LedgerLogError as error:
            return error
        return None if term.why is None else LostLeadership(self._name, None, term.why)

    async def _lead(self) -> None:
        """Take the log over and lead it. Return when the campaign is left; raise what ended the
        leadership."""
        writer: LogWriter | None = None
        try:
            async with self._enter() as writer:
                self._core.on_leading(trio.current_time())
                self._writer, self._is_logged = writer, False
                self._turn()
                logger.info("log=%s: this process leads in epoch %d", self._name, writer.epoch)
                try:
                    with trio.CancelScope() as self._serving:
                        if not self._is_left:
                            await writer.wait_over()
                finally:
                    self._writer = None
                    self._turn()
                # If the campaign was left, the writer raises by itself, and only if not all records are
                # durable.
                if writer.failure is not None and not self._is_left:
                    raise fresh(writer.failure)
        finally:
            # The end of the leadership cancels the exit of the writer, and then nothing raises this error.
            self._left_with = None if writer is None else writer._left_with

    async def _leave(self) -> None:
        """End the campaign. If it leads, the writer makes its records durable and closes the ledger."""
        self._is_left = True
        if self._core.is_leading and not await is_cancelled():
            self._serving.cancel()
        else:
            self._trying.cancel()
        self._turn()

    def _turn(self) -> None:
        self._turned.set()
        self._turned = trio.Event()

    def _log(self, why: LedgerLogError) -> None:
        """Log each series of failures once."""
        if not is_retryable(why):
            logger.error("log=%s: this process no longer stands for its lead: %s", self._name, why)
        elif not self._is_logged:
            self._is_logged = True
            logger.warning("log=%s: this process does not lead now: %s", self._name, why)


@asynccontextmanager
async def campaign(
    name: str, election: LeadElection, enter: Callable[[], AbstractAsyncContextManager[LogWriter]]
) -> AsyncIterator[Campaign]:
    """Campaign for the lead of a log during the body; see ``Log.lead``.

    Args:
        name: The name of the log.
        election: Decides which process leads.
        enter: Returns a new context. Entering it takes the log over.
    """
    campaigning = Campaign(name, election, enter)
    over = trio.Event()

    async def run() -> None:
        try:
            await campaigning._run()
        finally:
            over.set()

    async with background(run, name=f"campaign for {name}"):
        try:
            yield campaigning
        finally:
            await campaigning._leave()
            await over.wait()
    if campaigning._left_with is not None:
        raise campaigning._left_with
