"""A replica of a state machine on a log: tails, applies, elects, leads, takes snapshots, restores.

    async with Replica(log, machine, election=cluster.election("kv"), snapshots=LedgerSnapshots(cluster))
    as replica:
        result = await replica.propose(b"SET a 1")
        value = await replica.read(lambda machine: machine.get("a"), consistency="linear")

The log is the truth, and the machine is what the log makes of it. Each replica is at some place in the
log (``next_offset``) and applies what follows in order; none ever skips a record. Who leads appends; it
applies what it appended when that is durable. All others follow the log.

**From following to leading.** Once elected, the replica takes the log over, which fences whoever led
before and fixes where the log ends. It goes on following up to there; then following stops and leading
begins, with nothing in between, since nobody else can append. When the leadership ends, following starts
where applying ended.

**A gap.** A replica that comes back after the log was truncated beyond its place restores the newest
snapshot that reaches at least to where the log begins now. Where there is none it stops, says why, and
serves nothing any more: a state with a hole in it is worse than none.

**Trouble.** What passes (the store is away, too few bookies, a lost leadership) is waited out, with
growing pauses. What does not (a record that is no command, a deleted log, a machine that cannot go on)
stops the replica: ``ReplicaStopped`` from every call, with the reason."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Generic, Literal, TypeVar

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.nurseries import beside
from ledgerlog.concurrency.watermark import Watermark, fresh
from ledgerlog.election.election import Election
from ledgerlog.errors import (
    AppendUnknown,
    CommandFailed,
    EntryCorrupt,
    InvalidArgument,
    LedgerLogError,
    LogNotFound,
    LogSealed,
    LostLeadership,
    NotLeader,
    RecordTooLarge,
    ReplicaStopped,
    RequestExpired,
    Truncated,
    WireError,
)
from ledgerlog.limits import (
    LOG_CLOSE_TIMEOUT_S,
    RECONNECT_DELAY_MAX_S,
    RECONNECT_DELAY_MIN_S,
    RECORD_BYTES_MAX,
    REPLICA_SNAPSHOT_RECORDS,
)
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.machine.core.replica import ReplicaCore
from ledgerlog.machine.events import EventKind, Events, Listeners
from ledgerlog.machine.keeper import SnapshotKeeper
from ledgerlog.machine.leading import Leading, catch_up
from ledgerlog.machine.machine import StateMachine
from ledgerlog.machine.snapshots import SnapshotInfo, SnapshotStore
from ledgerlog.model.command import (
    REQUEST_ID_BYTES_MAX,
    Envelope,
    Outcome,
    check_request_id,
    new_request_id,
)
from ledgerlog.wire.commands import decode_envelope_untrusted

__all__ = ["Replica", "ReplicaStatistics"]

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")

_COMMAND_BYTES_MAX = RECORD_BYTES_MAX - REQUEST_ID_BYTES_MAX - 64
_LEADER_CACHE_S = 0.2
"""How long the name of the leader is told again without a look, to proposers that come in masses."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ReplicaStatistics:
    next_offset: int
    """The first record that is not applied."""
    is_leading: bool
    epoch: int | None
    """Of the log, while this replica leads it."""
    executed: int
    """Commands that the machine was given since the start; repeats and barriers are not among them."""
    requests: int
    """Outcomes that are remembered."""
    snapshots: int
    """Taken since the start."""
    snapshot_offset: int
    """Where the newest snapshot that this replica took or restored reaches; 0: none."""
    restores: int


class Replica(Generic[M]):
    """A state machine's replica in this process, for the body of an ``async with``. For any number of tasks.

    ``election`` decides who leads; without one this replica leads at once (there is no other, or the
    others have ``leads=False``). ``snapshots`` is where they are kept; without one the whole log is
    applied at each start. A snapshot is taken every ``snapshot_every`` records, ``snapshots_kept`` of
    them are kept, and the log is truncated behind the oldest of those where ``truncate`` says so (by
    default: where the store is shared).

    Entering restores the newest snapshot and starts to follow; it raises what keeps it from that
    (LogNotFound, MetadataUnavailable, ReplicaStopped). Leaving finishes what was proposed, for a bounded
    time, and gives the lead up."""

    def __init__(
        self,
        log: Log,
        machine: M,
        *,
        election: Election | None = None,
        snapshots: SnapshotStore | None = None,
        leads: bool = True,
        snapshot_every: int = REPLICA_SNAPSHOT_RECORDS,
        snapshots_kept: int = 2,
        truncate: bool | None = None,
    ) -> None:
        if snapshot_every < 1 or snapshots_kept < 1:
            raise InvalidArgument("snapshot_every and snapshots_kept are at least 1")
        if truncate and snapshots is None:
            raise InvalidArgument("a log is truncated behind snapshots: give a store for them")
        self._log = log
        self._machine = machine
        self._election = election
        self._leads = leads
        self._core = ReplicaCore(machine)
        self._environment = log._client.environment
        self._applied = Watermark()
        """The last offset that is applied. It fails when the replica stops."""
        self._listeners = Listeners()
        self._keeper = SnapshotKeeper(
            log=log,
            core=self._core,
            store=snapshots,
            listeners=self._listeners,
            every=snapshot_every,
            kept=snapshots_kept,
            truncates=(snapshots is not None and snapshots.is_shared) if truncate is None else truncate,
        )
        self._leading: Leading | None = None
        self._epoch: int | None = None
        self._failure: ReplicaStopped | None = None
        self._refusal: LedgerLogError | None = None
        """Why nothing is proposed here for good, though the replica goes on."""
        self._leaving = trio.Event()
        self._passed_on: LostLeadership | None = None
        """Who leads now does so for good: there is no election to lead again by."""
        self._stuck: LedgerLogError | None = None  # Why the log could not be followed when last tried.
        self._must_reach = -1  # The end of the log that it was elected for, and perhaps did not come to.
        self._turned = trio.Event()
        """Set, and made anew, when ``wait_leading`` has something to look at."""
        self._led = trio.Event()
        """This replica leads no more and never will."""
        self._over = trio.Event()
        self._may_follow = trio.Event()
        self._follow_scope = trio.CancelScope()
        self._parked = trio.Event()
        """Set while nothing is followed."""
        self._leader_seen: tuple[float, str | None] = (float("-inf"), None)
        self._context: AbstractAsyncContextManager[None] | None = None

    def __repr__(self) -> str:
        return f"<Replica of {self._log.name!r} at {self._core.next_offset}>"

    # --- what callers read --------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The first record of the log that is not applied here."""
        return self._core.next_offset

    @property
    def is_leading(self) -> bool:
        """Whether proposals are taken here now."""
        return self._leading is not None and not self._leading.is_over

    @property
    def failure(self) -> ReplicaStopped | None:
        """Why the replica has stopped, None while it has not."""
        return self._failure

    def statistics(self) -> ReplicaStatistics:
        """Where the replica stands. Cheap; not a checkpoint."""
        return ReplicaStatistics(
            next_offset=self._core.next_offset,
            is_leading=self.is_leading,
            epoch=self._epoch,
            executed=self._core.executed,
            requests=len(self._core.requests),
            snapshots=self._keeper.taken,
            snapshot_offset=self._keeper.reaches,
            restores=self._keeper.restores,
        )

    def events(self) -> Events:
        """What happens from now on, as an async iterator that ends with the replica."""
        return self._listeners.add()

    def digest(self) -> tuple[int, str]:
        """``next_offset``, and a digest of the whole state there: equal for all replicas that are at that
        place. Takes a snapshot to compute it, in one step."""
        return self._core.next_offset, self._core.digest()

    # --- commands and reads -------------------------------------------------------------------

    def new_request_id(self) -> str:
        """An id for one request, to be used again when that request is proposed again. It tells how far
        the log had come, so that a retry that comes too late to be recognised is refused and not
        executed twice."""
        return new_request_id(self._core.next_offset, self._environment.new_token())

    async def propose(self, command: bytes, *, request_id: str | None = None) -> bytes:
        """What the machine's ``apply`` returned for this command, once it is durable and applied here.

        ``request_id`` names the request: proposing again with the same id, here or at any other replica, by
        this process or its successor, executes nothing twice and gives the first outcome. An id of your own
        is remembered for ``limits.REPLICA_REQUESTS`` requests; one of ``new_request_id`` is refused
        (RequestExpired) once it may have been forgotten. Without one the command is a request of its own.

        NotLeader(leader): nothing was written; propose it to the leader. AppendUnknown: it may have been
        written; propose it again with the same id. CommandFailed: ``apply`` raised. RequestExpired.
        RecordTooLarge, InvalidArgument, LogSealed. ReplicaStopped. Cancelled, its outcome is unknown."""
        if not isinstance(command, bytes):
            raise InvalidArgument(f"a command is bytes, not {type(command).__name__}")
        if len(command) > _COMMAND_BYTES_MAX:
            raise RecordTooLarge(len(command), _COMMAND_BYTES_MAX, "command")
        if request_id is None:
            request_id = self.new_request_id()
        check_request_id(request_id)
        outcome = await (await self._leading_now()).propose(request_id, command)
        if outcome.is_expired:
            raise RequestExpired(request_id)
        if outcome.error is not None:
            raise CommandFailed(outcome.error, outcome.result.decode(errors="replace"))
        return outcome.result

    async def read(self, fn: Callable[[M], T], *, consistency: Literal["local", "linear"] = "local") -> T:
        """What ``fn(machine)`` returns. It must not change the machine, and not keep parts of it that change.

        ``local`` is the state as it is here: some moment's state, perhaps an old one. ``linear`` sees every
        command that was acknowledged before the call, by whichever leader; it is for the leader (NotLeader
        otherwise), and costs an append, shared by all reads that wait for one. Errors of that as for
        ``propose``; AppendUnknown just means to ask again. ReplicaStopped."""
        if consistency not in ("local", "linear"):
            raise InvalidArgument(f"consistency is 'local' or 'linear', not {consistency!r}")
        if consistency == "linear":
            await (await self._leading_now()).barrier()
        else:
            await trio.lowlevel.checkpoint()
            self._check()
        return fn(self._machine)

    async def wait_applied(self, offset: int) -> None:
        """Return once the record at this offset is applied here: read your writes on another replica.
        ReplicaStopped."""
        await self._applied.wait(offset)

    async def wait_leading(self) -> None:
        """Return once proposals are taken here.

        Raises where that will never be: ReplicaStopped; LogSealed; InvalidArgument with ``leads=False``;
        LostLeadership where another one has taken the log and there is no election to get it back by."""
        if not self._leads:
            raise InvalidArgument("this replica only follows (leads=False): it will never lead")
        while not self.is_leading:
            self._check()
            never = self._refusal or self._passed_on
            if never is not None:
                raise fresh(never)
            await self._turned.wait()
        await trio.lowlevel.checkpoint()

    async def leader(self) -> str | None:
        """What the leader calls itself; None where none is known, or where there is no election."""
        if self.is_leading and self._election is not None:
            return self._election.candidate
        if self._election is None:
            return None
        seen_at, name = self._leader_seen
        if trio.current_time() - seen_at < _LEADER_CACHE_S:
            return name
        try:
            with trio.move_on_after(1.0):
                leader = await self._election.leader()
                # Not we: we would know.
                known = leader is not None and leader.candidate != self._election.candidate
                name = leader.candidate if leader is not None and known else None
        except LedgerLogError as cause:
            logger.info("log=%s: its leader is not known: %s", self._log.name, cause)
            name = None
        self._leader_seen = (trio.current_time(), name)
        return name

    async def snapshot(self) -> SnapshotInfo:
        """Take a snapshot now; returns once it is durable. Another one that is being taken is waited for
        first. InvalidArgument without a store; what the store raises; ReplicaStopped."""
        self._check()
        return await self._keeper.take()

    async def _leading_now(self) -> Leading:
        self._check()
        if self._refusal is not None:
            raise fresh(self._refusal)
        leading = self._leading
        if leading is None or leading.is_over:
            leader = await self.leader()
            self._check()
            raise NotLeader(self._log.name, leader)
        return leading

    def _not_leading(self) -> LedgerLogError:
        name = None if self._election is None else self._leader_seen[1]
        return self._failure or NotLeader(self._log.name, name)

    def _check(self) -> None:
        if self._failure is not None:
            raise ReplicaStopped(self._log.name, self._failure.why) from self._failure.__cause__

    # --- the context --------------------------------------------------------------------------

    async def __aenter__(self) -> Replica[M]:
        if self._context is not None:
            raise InvalidArgument("a replica is entered once: make another one")
        self._context = self._serve()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        try:
            await self._restore()
        except BaseException:
            # Who was told of this replica before it was entered waits for something that will never be.
            self._end()
            raise
        async with beside(self._run, name=f"replica of {self._log.name}"):
            try:
                yield
            finally:
                self._leaving.set()
                with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                    await self._over.wait()

    async def _run(self) -> None:
        """Everything, until the replica is left and has finished, or stops."""
        try:
            async with trio.open_nursery() as nursery:
                self._keeper.nursery = nursery
                self._may_follow.set()
                nursery.start_soon(self._supervise, self._follow_always)
                if self._leads:
                    nursery.start_soon(self._supervise, self._lead_always)
                else:
                    self._led.set()
                await self._leaving.wait()
                if self._leading is not None:
                    # It finishes what was proposed, closes its ledger and resigns.
                    self._leading.leave()
                    await self._led.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._leading is not None:
                self._leading.abandon()
            self._end()

    def _end(self) -> None:
        """Nothing happens here any more."""
        if self._failure is None:
            self._failure = ReplicaStopped(self._log.name, "it was left")
        self._applied.fail(self._failure)
        self._listeners.end()
        self._turn()
        self._over.set()

    async def _supervise(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task; what it raises stops the replica and nothing else."""
        try:
            await task()
        except Exception as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        if self._failure is not None:
            return
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, LedgerLogError):
            why = error.why if isinstance(error, ReplicaStopped) else str(error)
        logger.error("log=%s: its replica stops at %d: %s", self._log.name, self._core.next_offset, why)
        self._failure = ReplicaStopped(self._log.name, why)
        self._failure.__cause__ = error
        self._listeners.tell(EventKind.STOPPED, self._core.next_offset, why)
        self._turn()
        self._leaving.set()
        if self._leading is not None:
            self._leading.abandon()

    # --- applying -----------------------------------------------------------------------------

    def _apply(self, offset: int, envelope: Envelope) -> Outcome | None:
        outcome = self._core.apply(offset, envelope)
        self._applied.advance(offset)
        self._keeper.on_applied()
        return outcome

    async def _restore(self, gap: Truncated | None = None) -> None:
        reached = await self._keeper.restore(gap)
        if reached is not None:
            self._applied.advance(reached - 1)

    async def _follow_always(self) -> None:
        """Follow the log, whenever this replica does not lead."""
        backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        gap: Truncated | None = None
        while True:
            if not self._may_follow.is_set():
                self._parked.set()
                await self._may_follow.wait()
            self._parked = trio.Event()
            before = self._core.next_offset
            try:
                if gap is not None:
                    await self._restore(gap)
                    gap = None
                with trio.CancelScope() as self._follow_scope:
                    await self._follow()
            except Truncated as found:
                gap = found
            except (LogNotFound, EntryCorrupt, WireError, ReplicaStopped):
                raise
            except LedgerLogError as cause:
                self._stuck = cause
                if self._core.next_offset > before:
                    backoff.reset()
                if not backoff.is_growing:
                    logger.warning("log=%s cannot be followed now: %s", self._log.name, cause)
                with trio.CancelScope() as self._follow_scope:
                    await trio.sleep(backoff.next_s())

    async def _follow(self) -> None:
        async with self._log.read(self._core.next_offset, follow=True, dense=True) as records:
            async for batch in records.batches():
                offset = batch.first_offset
                for payload in batch.payloads:
                    self._apply(offset, self._decode(offset, payload))
                    offset += 1
                self._stuck = None
        self._refuse(LogSealed(self._log.name))
        await trio.sleep_forever()

    def _refuse(self, why: LedgerLogError) -> None:
        """Nothing is proposed any more, for good; what is in the log is applied to its end."""
        if self._refusal is None:
            self._refusal = why
            self._listeners.tell(EventKind.SEALED, self._core.next_offset)
            self._turn()

    def _decode(self, offset: int, payload: bytes) -> Envelope:
        try:
            return decode_envelope_untrusted(payload)
        except WireError as error:
            raise WireError(f"record {offset} of log {self._log.name!r} is no command: {error}") from error

    # --- leading ------------------------------------------------------------------------------

    async def _lead_always(self) -> None:
        """Lead whenever it is our turn; returns, or raises, once that can never be again."""
        try:
            await self._lead_again()
        finally:
            self._led.set()

    async def _lead_again(self) -> None:
        backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        while True:
            began = trio.current_time()
            why: LedgerLogError | None = None
            try:
                if self._election is None:
                    await self._lead()
                else:
                    await self._applied.wait(self._must_reach)
                    async with self._election.leadership() as term:
                        await self._lead()
                    if term.why is not None:
                        why = LostLeadership(self._log.name, None, term.why)
            except LogSealed as sealed:
                self._refuse(sealed)
                return
            except LogNotFound:
                raise
            except LedgerLogError as error:
                why = error
            if self._leaving.is_set():
                return
            logger.info("log=%s: this replica follows: %s", self._log.name, why)
            if self._election is None and isinstance(why, LostLeadership) and why.epoch is not None:
                # Somebody else leads, and without an election it is not for us to take it back.
                self._passed_on = why
                self._turn()
                return
            if trio.current_time() - began > RECONNECT_DELAY_MAX_S:
                backoff.reset()
            delay_s = backoff.next_s()
            if not isinstance(why, LostLeadership | AppendUnknown) or self._election is None:
                await trio.sleep(delay_s)

    async def _lead(self) -> None:
        """One leadership; what ends it is raised. Returns when the replica is left."""
        async with self._log.writer() as writer:
            end = self._must_reach = writer.next_offset - 1
            await catch_up(self._applied, end, lambda: self._stuck if self._election is not None else None)
            try:
                await self._pause_following()
                await self._lead_with(writer)
            finally:
                self._may_follow.set()

    async def _lead_with(self, writer: LogWriter) -> None:
        """Lead; nothing is followed meanwhile."""
        if self._core.next_offset != writer.next_offset:
            # What follows our takeover is another leader's, whose records have come here already. The
            # writer is about to hear of him.
            with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                await writer.wait_over()
            raise fresh(writer.failure or LostLeadership(self._log.name, None, "another leader has appended"))
        leading = Leading(
            writer,
            self._core,
            now_ms=self._environment.now_ms,
            new_seed=self._new_seed,
            apply=self._apply,
            not_leading=self._not_leading,
        )
        self._leading, self._epoch = leading, writer.epoch
        self._keeper.on_leading(writer)
        self._listeners.tell(EventKind.LEADING, self._core.next_offset, f"epoch {writer.epoch}")
        self._turn()
        logger.info("log=%s: this replica leads in epoch %d", self._log.name, writer.epoch)
        try:
            if self._leaving.is_set():
                leading.leave()
            await self._serve_leading(leading, writer)
        finally:
            leading.abandon()
            self._leading = self._epoch = None
            self._keeper.on_following()
            failed = writer.failure
            self._listeners.tell(
                EventKind.FOLLOWING, self._core.next_offset, "" if failed is None else str(failed)
            )

    async def _serve_leading(self, leading: Leading, writer: LogWriter) -> None:
        """Until it is left, or lost; then what the log says of that is raised."""

        async def watch() -> None:
            # Nothing may be proposed for a long time, and another one lead meanwhile.
            await writer.wait_over()
            leading.wake()

        async with beside(watch, name=f"replica's writer of {self._log.name}"):
            try:
                await leading.run(lambda: writer.failure)
            except LedgerLogError as error:
                raise fresh(writer.failure or error) from error

    async def _pause_following(self) -> None:
        self._may_follow = trio.Event()
        self._follow_scope.cancel()
        await self._parked.wait()

    def _turn(self) -> None:
        self._turned.set()
        self._turned = trio.Event()

    def _new_seed(self) -> int:
        return int.from_bytes(self._environment.new_token()[:8], "little")
