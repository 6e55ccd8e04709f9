"""The leading part of a replica: proposals into the log, and their outcomes out of it.

A proposal is stamped, submitted to the log's writer, and put into a line. One task waits for the
submissions in the order of the line, which is the order of their offsets, and applies each once it is
durable: so the leader applies what it has just written without reading it back, and never before it is
certain.

Requests that are in the line already are joined, not appended again; those that were executed before
have their outcome in the table.

**The end.** When the leadership is lost, each proposal in line is told what its own submission says: it
is in the log after all (and is applied), it surely is not (``NotLeader``), or nobody knows
(``AppendUnknown``: propose it again, with the same request id, to whoever leads). One that is not in the
line yet is answered by the task that submits it, and by nothing else, since only that knows whether the
writer took it in the end. Nothing waits for ever: a writer that has ended refuses.

**Barriers.** A linear read has to see everything that was acknowledged before it began, by whichever
leader. An empty record that is appended after the read began and acknowledged proves that: had another
leader come in between, it would have been refused. Reads that come while a barrier is on its way share
the next one.

**Who joins** a proposal or a barrier that somebody else has begun is not bound to him. Where he is
cancelled before it is on its way, the others look again, and the first of them begins his own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.errors import AppendUnknown, LedgerLogError, LogSealed
from ledgerlog.log.writer import LogWriter, Submission
from ledgerlog.machine.core.replica import ReplicaCore
from ledgerlog.model.command import Envelope, Outcome
from ledgerlog.wire.commands import encode_envelope

__all__ = ["Leading", "catch_up"]

_CATCH_UP_S = 15.0
"""Who is elected and cannot follow the log to its end gives the lead up when he has come no further for so
long."""

_ABANDONED = "the replica was left before the outcome was known"


@attrs.define(eq=False)
class _Proposal:
    envelope: Envelope
    submission: Submission | None = None
    outcome: Outcome | None = None
    failure: LedgerLogError | None = None
    is_given_up: bool = False
    """Whoever began it was cancelled before it was on its way: it is nobody's."""
    done: trio.Event = attrs.Factory(trio.Event)

    async def wait(self) -> Outcome | None:
        """Its outcome, None of a barrier; not of one that was given up."""
        await self.done.wait()
        if self.failure is not None:
            raise fresh(self.failure)
        return self.outcome

    def end_unsent(self, error: BaseException) -> None:
        """Whoever began it could not send it: others are told the same, or that it is given up."""
        if isinstance(error, LedgerLogError):
            self.failure = error
        else:
            self.is_given_up = True
        self.done.set()


class Leading:
    """One leadership of a replica."""

    def __init__(
        self,
        writer: LogWriter,
        core: ReplicaCore,
        *,
        now_ms: Callable[[], int],
        new_seed: Callable[[], int],
        apply: Callable[[int, Envelope], Outcome | None],
        not_leading: Callable[[], LedgerLogError],
    ) -> None:
        self._writer = writer
        self._core = core
        self._now_ms = now_ms
        self._new_seed = new_seed
        self._apply = apply
        self._not_leading = not_leading
        """What to tell whose command surely was not written."""
        self._stamped_ms = core.timestamp_ms
        self._line: deque[_Proposal] = deque()
        self._by_request: dict[str, _Proposal] = {}
        self._arrived = trio.Event()
        self._is_over = False
        self._is_leaving = False
        self._is_abandoned = False
        """Nobody applies any more."""
        self._forming: _Proposal | None = None
        """A barrier that is not on its way yet: reads may still join it."""
        self._barrier: _Proposal | None = None

    @property
    def is_over(self) -> bool:
        return self._is_over or self._is_leaving

    # --- callers ------------------------------------------------------------------------------

    async def propose(self, request_id: str, command: bytes) -> Outcome:
        """The command's outcome once it is applied. Errors as the module says. Cancelling abandons the
        wait."""
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
        """Return once everything that was acknowledged before the call is applied here, and we led then."""
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
        self._stamped_ms = max(self._stamped_ms, self._now_ms())
        return Envelope(
            timestamp_ms=self._stamped_ms, seed=self._new_seed(), request_id=request_id, data=command
        )

    async def _submit(self, proposal: _Proposal) -> None:
        if self.is_over:
            await trio.lowlevel.checkpoint()
            raise self._not_leading()
        try:
            # The record is taken at the very end of this call, so the line has the order of the offsets.
            proposal.submission = await self._writer.submit(encode_envelope(proposal.envelope))
        except LedgerLogError as error:
            raise self._definite(error) from error
        if self._is_abandoned:
            raise AppendUnknown(_ABANDONED)
        self._line.append(proposal)
        self._arrived.set()

    def _definite(self, error: LedgerLogError) -> LedgerLogError:
        """What to tell of a record that surely was not written."""
        return error if isinstance(error, LogSealed | ValueError) else self._not_leading()

    # --- the task that applies ----------------------------------------------------------------

    async def run(self, lost: Callable[[], LedgerLogError | None]) -> None:
        """Apply what becomes durable, until ``leave`` and all is done, or until the leadership is lost, as
        ``lost`` says when asked, which is then raised. Cancelling leaves the line as it is: ``abandon``
        answers it."""
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
        proposal = self._line.popleft()
        self._by_request.pop(proposal.envelope.request_id, None)
        if proposal is self._barrier:
            self._barrier = None
        if failure is not None:
            proposal.failure = failure
        proposal.done.set()

    def wake(self) -> None:
        """Look whether the leadership still lasts."""
        self._arrived.set()

    def leave(self) -> None:
        """Take nothing more; ``run`` ends once what was taken is applied."""
        self._is_leaving = True
        self._arrived.set()

    def abandon(self) -> None:
        """Answer everything that is on its way, at the end of everything."""
        self._is_over = self._is_abandoned = True
        while self._line:
            self._answer(AppendUnknown(_ABANDONED))


async def catch_up(applied: Watermark, end: int, trouble: Callable[[], LedgerLogError | None]) -> None:
    """Return once ``end`` is applied. Raises what keeps the replica from following, ``trouble``, once it has
    come no further for a while: a replica that has all records may wait for the lead."""
    while applied.value < end:
        before = applied.value
        with trio.move_on_after(_CATCH_UP_S):
            await applied.wait(end)
        cause = trouble()
        if cause is not None and applied.value == before:
            raise fresh(cause)
