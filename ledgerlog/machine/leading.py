"""The leading part of a replica: it puts proposals into the log and gets their outcomes.

A *proposal* is a command, or a barrier (see below), that is on its way into the log. It is stamped, submitted
to the log's writer, and put into a queue, the *line*. One task waits for the submissions in the order of the
line, which is also the order of their offsets. The task applies each proposal once the proposal is durable.
So the leader applies its own records without reading them back, and never before they are durable.

If a request is in the line already, a second proposal of the same request joins the first. The request is not
appended again. If a request was executed before, the table of requests has its outcome.

**The end.** If the leadership is lost, each proposal in the line gets the answer of its own submission. Three
answers are possible:

- The record is in the log after all. The replica applies it.
- The record is surely not in the log: ``NotLeader``.
- The record may be in the log: ``AppendUnknown``. Propose it to the new leader with the same request id.

Before a proposal is in the line, only the task that submits it may answer it, because only that task learns
whether the writer took the record. No proposal waits forever: a writer that has ended refuses every record.

**Barriers.** A linear read must see every command that was acknowledged before the read began, by any leader.
So the leader appends a *barrier*, an empty record, after the read has begun. If the barrier is acknowledged,
no other leader came in between, because then the append would have been refused. Reads that arrive while a
barrier is on its way share the next barrier.

**Joining.** A caller may join a proposal that another caller has begun. If that other caller is cancelled
before the record is on its way, the first of the joined callers begins a new proposal, and the others join
that one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.errors import AppendUnknown, LedgerLogError, LogSealed
from ledgerlog.log.writer import LogWriter, Submission
from ledgerlog.machine.core.replica import ReplicaCore
from ledgerlog.model.command import CommandOutcome, Envelope
from ledgerlog.wire.commands import encode_envelope

__all__ = ["Leading", "catch_up"]

_CATCH_UP_S = 15.0
"""If an elected replica makes no progress towards the end of the log for this many seconds, and cannot follow
the log, it gives up the leadership."""

_ABANDONED = "the replica was left before the outcome was known"


@attrs.define(eq=False)
class _Proposal:
    """A command or a barrier on its way."""

    envelope: Envelope
    submission: Submission | None = None
    outcome: CommandOutcome | None = None
    failure: LedgerLogError | None = None
    is_given_up: bool = False
    """Whether the caller that began it was cancelled before the record was on its way. Callers that joined
    begin again."""
    done: trio.Event = attrs.Factory(trio.Event)

    async def wait(self) -> CommandOutcome | None:
        """Wait for the outcome; None for a barrier and for a proposal that was given up.

        Raises:
            LedgerLogError: The proposal failed. See "The end" in the module docstring.
        """
        await self.done.wait()
        if self.failure is not None:
            raise fresh(self.failure)
        return self.outcome

    def end_unsent(self, error: BaseException) -> None:
        """End a proposal that the caller who began it could not submit.

        Callers that joined get the same error. If the caller that began it was cancelled, the joined callers
        learn that the proposal is given up.
        """
        if isinstance(error, LedgerLogError):
            self.failure = error
        else:
            self.is_given_up = True
        self.done.set()


class Leading:
    """One leadership of a replica.

    Args:
        writer: The writer of the log.
        core: The replica's machine and its place in the log.
        now_ms: Returns the wall clock, in milliseconds.
        new_seed: Returns the random seed of a command.
        apply: Applies a record at an offset; returns its outcome.
        not_leading: Returns the error for a command that was surely not written.
    """

    def __init__(
        self,
        writer: LogWriter,
        core: ReplicaCore,
        *,
        now_ms: Callable[[], int],
        new_seed: Callable[[], int],
        apply: Callable[[int, Envelope], CommandOutcome | None],
        not_leading: Callable[[], LedgerLogError],
    ) -> None:
        self._writer = writer
        self._core = core
        self._now_ms = now_ms
        self._new_seed = new_seed
        self._apply = apply
        self._not_leading = not_leading
        self._stamped_ms = core.timestamp_ms
        self._line: deque[_Proposal] = deque()
        self._by_request: dict[str, _Proposal] = {}
        self._arrived = trio.Event()
        self._is_over = False
        self._is_leaving = False
        self._is_abandoned = False
        """Whether the replica has stopped: no task applies records."""
        self._forming: _Proposal | None = None
        """A barrier that is not on its way yet. Reads may still join it."""
        self._barrier: _Proposal | None = None
        """The barrier that is on its way."""

    @property
    def is_over(self) -> bool:
        """Whether proposals are refused."""
        return self._is_over or self._is_leaving

    # --- callers ------------------------------------------------------------------------------

    async def propose(self, request_id: str, command: bytes) -> CommandOutcome:
        """Propose a command and wait until it is applied.

        Args:
            request_id: The id of the request. A request is executed once.
            command: The command.

        Returns:
            The outcome. If the request was executed before, this is the first outcome.

        Raises:
            NotLeader: This replica does not lead; the command was not written. ``not_leading`` may return
                another error.
            AppendUnknown: The command may or may not be in the log. Propose it again with the same id.
            LogSealed: The log is sealed; the command was not written.

        Cancelling: abandons the wait. The command may or may not be in the log.
        """
        while True:
            outcome = self._core.requests.find(request_id)
            if outcome is not None:
                await trio.lowlevel.checkpoint()
                return outcome
            proposal = self._by_request.get(request_id)
            if proposal is None:
                proposal = self._by_request[request_id] = _Proposal(self._stamp(request_id, command))
                try:
                    await self._submit(proposal)
                except BaseException as error:
                    del self._by_request[request_id]
                    proposal.end_unsent(error)
                    raise
            applied = await proposal.wait()
            if not proposal.is_given_up:
                assert applied is not None
                return applied

    async def barrier(self) -> None:
        """Wait until every command that was acknowledged before the call is applied here.

        Raises:
            NotLeader: This replica no longer leads. ``not_leading`` may return another error.
            AppendUnknown: It is unknown whether this replica still led. Ask again.
            LogSealed: The log is sealed.
        """
        while self._forming is not None:
            forming = self._forming
            await forming.wait()
            if not forming.is_given_up:
                return
        forming = self._forming = _Proposal(self._stamp("", b""))
        try:
            while self._barrier is not None:
                await self._barrier.done.wait()
            self._forming, self._barrier = None, forming
            await self._submit(forming)
        except BaseException as error:
            if self._forming is forming:
                self._forming = None
            if self._barrier is forming:
                self._barrier = None
            forming.end_unsent(error)
            raise
        await forming.wait()

    def _stamp(self, request_id: str, command: bytes) -> Envelope:
        """Give a command its timestamp and its seed. Timestamps never decrease."""
        self._stamped_ms = max(self._stamped_ms, self._now_ms())
        return Envelope(
            timestamp_ms=self._stamped_ms, seed=self._new_seed(), request_id=request_id, data=command
        )

    async def _submit(self, proposal: _Proposal) -> None:
        """Submit a proposal and put it into the line."""
        if self.is_over:
            await trio.lowlevel.checkpoint()
            raise self._not_leading()
        try:
            # ``submit`` has no checkpoint after it has taken the record. So the line has the order of the
            # offsets.
            proposal.submission = await self._writer.submit(encode_envelope(proposal.envelope))
        except LedgerLogError as error:
            raise self._definite(error) from error
        if self._is_abandoned:
            raise AppendUnknown(_ABANDONED)
        self._line.append(proposal)
        self._arrived.set()

    def _definite(self, error: LedgerLogError) -> LedgerLogError:
        """Return the error for a record that was surely not written."""
        return error if isinstance(error, LogSealed | ValueError) else self._not_leading()

    # --- the task that applies ----------------------------------------------------------------

    async def run(self, lost: Callable[[], LedgerLogError | None]) -> None:
        """Apply the records that become durable.

        After ``leave`` was called, return once all submitted records are applied.

        Args:
            lost: Returns why the leadership is lost; None while it lasts.

        Raises:
            LedgerLogError: The leadership is lost. Each proposal in the line has its answer.

        Cancelling: leaves the line as it is. Call ``abandon`` to answer the proposals in it.
        """
        failure: LedgerLogError | None = None
        while True:
            while not self._line:
                failure = failure or lost()
                if self._is_leaving or failure is not None:
                    self._is_over = True
                    if failure is not None:
                        raise failure
                    return
                self._arrived = trio.Event()
                await self._arrived.wait()
            proposal = self._line[0]
            assert proposal.submission is not None
            try:
                ack = await proposal.submission.wait()
            except AppendUnknown as error:
                self._is_over, failure = True, failure or error
                self._answer(error)
            except LedgerLogError as error:
                self._is_over, failure = True, failure or error
                self._answer(self._definite(error))
            else:
                proposal.outcome = self._apply(ack.offset, proposal.envelope)
                self._answer(None)

    def _answer(self, failure: LedgerLogError | None) -> None:
        """Answer the first proposal of the line."""
        proposal = self._line.popleft()
        self._by_request.pop(proposal.envelope.request_id, None)
        if proposal is self._barrier:
            self._barrier = None
        if failure is not None:
            proposal.failure = failure
        proposal.done.set()

    def wake(self) -> None:
        """Make ``run`` check whether the leadership still lasts."""
        self._arrived.set()

    def leave(self) -> None:
        """Refuse new proposals. ``run`` ends once the proposals in the line are applied."""
        self._is_leaving = True
        self._arrived.set()

    def abandon(self) -> None:
        """Refuse new proposals, and answer all proposals in the line with AppendUnknown. Call this after
        ``run`` has ended."""
        self._is_over = self._is_abandoned = True
        while self._line:
            self._answer(AppendUnknown(_ABANDONED))


async def catch_up(applied: Watermark, end: int, trouble: Callable[[], LedgerLogError | None]) -> None:
    """Wait until the record at offset ``end`` is applied.

    A replica may only lead once it has applied all records.

    Args:
        applied: The offset of the last applied record.
        end: The offset to reach.
        trouble: Returns why the replica cannot follow the log now; None if it can.

    Raises:
        LedgerLogError: The replica made no progress for a while, and ``trouble`` says why.
    """
    while applied.value < end:
        before = applied.value
        with trio.move_on_after(_CATCH_UP_S):
            await applied.wait(end)
        cause = trouble()
        if cause is not None and applied.value == before:
            raise fresh(cause)
