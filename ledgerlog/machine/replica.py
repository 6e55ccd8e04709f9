"""A replica of a state machine on a log: it follows the log, applies commands, leads, takes and restores
snapshots.

    async with Replica(log, machine, election=cluster.election("kv"), snapshots=LedgerSnapshots(cluster))
    as replica:
        result = await replica.propose(b"SET a 1")
        value = await replica.read(lambda machine: machine.get("a"), consistency="linear")

The log determines the state of the machine. Each replica has a place in the log (``next_offset``). It applies
the records from that place on in order, and never skips one. The leader appends records, and applies its own
records once they are durable. All other replicas follow the log: they read its records and apply them.

**From following to leading.** Once elected, the replica takes the log over. The takeover fences the previous
leader and fixes the end of the log. The replica follows up to that end. Then following stops and leading
begins. No record can come in between, because no other writer can append. When the leadership ends, the
replica follows again from the first record that is not applied.

**A gap.** While a replica is away, the log may be truncated beyond the replica's place. Then the replica
restores the newest snapshot that reaches at least the new beginning of the log. If there is no such snapshot,
the replica's state would lack commands. So the replica stops with the reason and no longer serves.

**A loss.** After an accepted loss at the end of a log, new records get the offsets of lost ones. A replica
or a snapshot may have the effect of the lost ones. So before a replica applies further records or leads, it
reads the last applied record again. No other record ever has the same offset and epoch. If the log now has
another record there, or ends before it, the replica stops. If that record is truncated, nothing has to be
checked: its offset is never used again.

**Trouble.** The replica waits out temporary trouble, with growing pauses: the store is away, there are too
few bookies, a leadership is lost. Permanent trouble stops the replica: a record is not a command, the log was
deleted, the machine cannot continue. The machine is in an unknown state after any exception of ``restore``,
and after an exception of ``apply`` that is no result, such as ``KeyboardInterrupt``. Each of them stops the
replica, too. Then proposals, reads, waits and ``snapshot`` raise ``ReplicaStopped`` with the reason."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Generic, Literal, TypeVar

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.nurseries import background
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
    MetadataCorrupt,
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
from ledgerlog.log.leader_name import LeaderName
from ledgerlog.log.log import Log
from ledgerlog.log.writer import LogWriter
from ledgerlog.machine.core.replica import ReplicaCore, text_of
from ledgerlog.machine.events import EventKind, Listeners, ReplicaEvent
from ledgerlog.machine.leading import Leading, catch_up
from ledgerlog.machine.machine import StateMachine
from ledgerlog.machine.snapshot_manager import SnapshotManager
from ledgerlog.machine.snapshots import SnapshotInfo, SnapshotStore
from ledgerlog.model.checks import check_kind
from ledgerlog.model.command import (
    REQUEST_ID_BYTES_MAX,
    CommandOutcome,
    Envelope,
    check_request_id,
    new_request_id,
)
from ledgerlog.wire.commands import decode_envelope_untrusted

__all__ = ["Replica", "ReplicaStatistics"]

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")

_COMMAND_BYTES_MAX = RECORD_BYTES_MAX - REQUEST_ID_BYTES_MAX - 64

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ReplicaStatistics:
    """Counts since the replica was entered, and its present place. ``Replica.statistics`` returns this."""

    next_offset: int
    """The offset of the first record that is not applied."""
    is_leading: bool
    """Whether the replica takes proposals now."""
    epoch: int | None
    """The epoch of the log while this replica leads it; None otherwise."""
    executed: int
    """How many commands the machine has executed. Repeated requests and barriers do not count."""
    requests: int
    """How many outcomes are remembered."""
    snapshots: int
    """How many snapshots this replica has taken."""
    snapshot_offset: int
    """How far the newest snapshot reaches that this replica took or restored; 0 if there is none."""
    restores: int
    """How often the replica was restored from a snapshot."""


class Replica(Generic[M]):
    """A replica of a state machine in this process.

    Enter it with ``async with``, once. Any number of tasks may use it. Entering restores the newest snapshot
    and starts to follow the log. If that fails, it raises LogNotFound, MetadataUnavailable or ReplicaStopped.
    Leaving finishes the proposals that were taken, within ``limits.LOG_CLOSE_TIMEOUT_S``, and gives the
    leadership up.

    Args:
        log: The log.
        machine: The state machine, in its initial state. Only the replica may change it.
        election: Decides which replica leads. None: this replica leads at once. Then it must be the only
            replica, or all others must have ``leads=False``.
        snapshots: The store that keeps snapshots. None: there are no snapshots, and each start applies the
            whole log.
        leads: Whether this replica may lead. If not, it only follows.
        snapshot_every: Take a snapshot after this many records, at least 1.
        snapshots_kept: How many snapshots to keep, at least 1.
        truncate: Whether to truncate the records that all kept snapshots have. None: do so if the store of
            snapshots is shared (``SnapshotStore.is_shared``).

    Raises:
        InvalidArgument: ``snapshot_every`` or ``snapshots_kept`` is below 1, ``truncate`` is set without
            ``snapshots``, or ``machine`` is no object with the methods of ``StateMachine``. Or another
            argument is no object of its class.

    Example:
        ```python
        replica = ledgerlog.Replica(
            log,
            Counter(),
            election=cluster.election("counter", candidate="10.0.0.7:8080"),
            snapshots=ledgerlog.LedgerSnapshots(cluster),
        )
        async with replica:
            await replica.wait_leading()
            await replica.propose(b"5")
        ```
    """

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
        check_kind(log, Log, "log", "a ledgerlog.Log")
        if election is not None:
            check_kind(election, Election, "election", "a ledgerlog.Election or None")
        if snapshots is not None and not isinstance(snapshots, SnapshotStore):
            raise InvalidArgument(
                f"snapshots must be a store such as ledgerlog.LedgerSnapshots(cluster), not {snapshots!r}"
            )
        if snapshot_every < 1 or snapshots_kept < 1:
            raise InvalidArgument("snapshot_every and snapshots_kept are at least 1")
        if truncate and snapshots is None:
            raise InvalidArgument(
                "a log is truncated only after its snapshots are stored: pass a store for snapshots"
            )
        self._log = log
        self._machine = machine
        self._election = election
        self._leads = leads
        self._core = ReplicaCore(machine)
        self._environment = log._client.environment
        self._applied = Watermark()
        """The offset of the last applied record. This watermark fails when the replica stops."""
        self._listeners = Listeners()
        self._snapshot_manager = SnapshotManager(
            log=log,
            core=self._core,
            store=snapshots,
            listeners=self._listeners,
            every=snapshot_every,
            kept=snapshots_kept,
            truncates=(snapshots is not None and snapshots.is_shared) if truncate is None else truncate,
            stop=self._stop,
            check=self._check,
        )
        self._leading: Leading | None = None
        self._epoch: int | None = None
        self._failure: ReplicaStopped | None = None
        self._refusal: LedgerLogError | None = None
        """The reason that proposals are refused although the replica continues: the log is sealed."""
        self._leaving = trio.Event()
        self._passed_on: LostLeadership | None = None
        """Why this replica will never lead again: another replica leads, and there is no election."""
        self._stuck: LedgerLogError | None = None  # Why the last try to follow the log failed.
        self._must_reach = -1  # The log's last offset at the latest takeover. It may not be applied yet.
        self._turned = trio.Event()
        """Set and replaced when the conditions of ``wait_leading`` may have changed."""
        self._led = trio.Event()
        """Set when this replica does not lead and never will again."""
        self._over = trio.Event()
        self._may_follow = trio.Event()
        self._follow_scope = trio.CancelScope()
        self._parked = trio.Event()
        """Set while the replica does not follow."""
        self._is_confirmed = False
        """Whether the log has the last applied record. Following has read it, or it cannot be read again."""
        self._leader_name = None if election is None else LeaderName(election, log.name)
        self._context: AbstractAsyncContextManager[None] | None = None

    def __repr__(self) -> str:
        return f"<Replica of {self._log.name!r} at {self._core.next_offset}>"

    # --- what callers read --------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset of the first record that is not applied here."""
        return self._core.next_offset

    @property
    def is_leading(self) -> bool:
        """Whether this replica takes proposals now."""
        return self._leading is not None and not self._leading.is_over

    @property
    def failure(self) -> ReplicaStopped | None:
        """Why the replica has stopped; None while it runs."""
        return self._failure

    def statistics(self) -> ReplicaStatistics:
        """Return counts and the present place of the replica. Cheap; not a checkpoint."""
        return ReplicaStatistics(
            next_offset=self._core.next_offset,
            is_leading=self.is_leading,
            epoch=self._epoch,
            executed=self._core.executed,
            requests=len(self._core.requests),
            snapshots=self._snapshot_manager.taken,
            snapshot_offset=self._snapshot_manager.reaches,
            restores=self._snapshot_manager.restores,
        )

    def events(self) -> AsyncIterator[ReplicaEvent]:
        """Return an async iterator over the events from now on. It ends with the replica."""
        return self._listeners.add()

    def digest(self) -> tuple[int, str]:
        """Return ``next_offset`` and a digest of the whole state there.

        All replicas at the same offset have the same digest. This takes a snapshot of the machine in one
        step, without a checkpoint.
        """
        return self._core.next_offset, self._core.digest()

    # --- commands and reads -------------------------------------------------------------------

    def new_request_id(self) -> str:
        """Return a new id for one request. Use it again if you propose that request again.

        The id contains this replica's ``next_offset``. So if a retry comes too late to be recognised, it is
        refused (RequestExpired) and not executed twice. The first proposal is refused in the same way if more
        requests than the replicas remember are executed between this call and that proposal. So make the id
        just before you propose the request, and do not propose more than ``limits.REPLICA_REQUESTS`` requests
        or ``limits.REPLICA_RESULTS_BYTES`` of results at the same time.
        """
        return new_request_id(self._core.next_offset, self._environment.new_token())

    async def propose(self, command: bytes, *, request_id: str | None = None) -> bytes:
        """Propose a command, and wait until it is durable and applied here.

        Only the leader takes proposals.

        Args:
            command: The command for ``StateMachine.apply``. It must fit into one record (almost 4 MiB).
            request_id: The id of the request, at most 128 bytes of text. If you propose the same id again,
                here or at any other replica, the command is not executed again, and you get the first
                outcome. An id of your own is remembered for ``limits.REPLICA_REQUESTS`` requests, or fewer if
                their results are large. An id from ``new_request_id`` is refused once its outcome may be
                forgotten. None: the command is a request of its own, which is never refused as too old.

        Returns:
            The result of ``StateMachine.apply``.

        Raises:
            NotLeader: This replica does not lead; the command was not written. Propose it to
                ``NotLeader.leader``.
            AppendUnknown: The command may or may not be in the log. Propose it again with the same id.
            CommandFailed: ``apply`` raised. The command is in the log, and this is its result.
            RequestExpired: The id is too old to know whether the request was executed before. This call did
                not execute it.
            LogSealed: The log is sealed; the command was not written.
            RecordTooLarge: The command is too large; it was not written.
            InvalidArgument: ``command`` or ``request_id`` is malformed; the command was not written.
            ReplicaStopped: The replica has stopped. The command was not written through this call.

        Cancelling: the command may or may not be in the log. Propose it again with the same id.
        """
        if not isinstance(command, bytes):
            raise InvalidArgument(f"a command is bytes, not {type(command).__name__}")
        if len(command) > _COMMAND_BYTES_MAX:
            raise RecordTooLarge(len(command), _COMMAND_BYTES_MAX, "command")
        if request_id is None:
            # Nobody can propose this request again, so its id needs no offset and never expires.
            request_id = self._environment.new_token().hex()
        check_request_id(request_id)
        outcome = await (await self._leading_now()).propose(request_id, command)
        if outcome.is_expired:
            raise RequestExpired(request_id)
        if outcome.error is not None:
            raise CommandFailed(outcome.error, outcome.result.decode(errors="replace"))
        return outcome.result

    async def read(self, fn: Callable[[M], T], *, consistency: Literal["local", "linear"] = "local") -> T:
        """Call a function with the machine, and return its result.

        Args:
            fn: The function. It gets the machine. It must not change the machine, and must not keep parts of
                the machine that commands change.
            consistency: ``local``: read the present state of this replica, which may be an old state of the
                log. ``linear``: read a state with every command that was acknowledged before the call, by any
                leader. Only the leader can do that. A linear read costs one append, which all waiting reads
                share.

        Returns:
            The result of ``fn``.

        Raises:
            NotLeader: The read is ``linear`` and this replica does not lead. Ask ``NotLeader.leader``.
            AppendUnknown: The read is ``linear`` and the leadership ended. Ask again.
            LogSealed: The read is ``linear`` and the log is sealed.
            InvalidArgument: ``consistency`` is not ``local`` or ``linear``.
            ReplicaStopped: The replica has stopped.
        """
        if consistency not in ("local", "linear"):
            raise InvalidArgument(f"consistency is 'local' or 'linear', not {consistency!r}")
        if consistency == "linear":
            await (await self._leading_now()).barrier()
        else:
            await trio.lowlevel.checkpoint()
        self._check()
        return fn(self._machine)

    async def wait_applied(self, offset: int) -> None:
        """Wait until the record at an offset is applied here. You can then read your own writes here.

        Args:
            offset: The offset of the record.

        Raises:
            ReplicaStopped: The replica has stopped.
        """
        await self._applied.wait(offset)

    async def wait_leading(self) -> None:
        """Wait until this replica takes proposals.

        Raises:
            ReplicaStopped: The replica has stopped.
            LogSealed: The log is sealed. No more commands can be proposed.
            InvalidArgument: The replica has ``leads=False``; it will never lead.
            LostLeadership: Another replica took the log over. Without an election, this replica stays a
                follower.
        """
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
        """Return the candidate name of the leader; None if no leader is known or there is no election."""
        if self.is_leading and self._election is not None:
            return self._election.candidate
        return None if self._leader_name is None else await self._leader_name.look()

    async def snapshot(self) -> SnapshotInfo:
        """Take a snapshot now, and wait until it is durable.

        If another snapshot is being taken, wait for that first.

        Returns:
            The snapshot.

        Raises:
            InvalidArgument: The replica has no store for snapshots.
            LedgerLogError: The store failed; the message says how. The snapshot is not listed.
            ReplicaStopped: The replica has stopped.
        """
        self._check()
        return await self._snapshot_manager.take()

    async def _leading_now(self) -> Leading:
        """Return the present leadership. Raise NotLeader, LogSealed or ReplicaStopped if there is none."""
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
        """Return the error for a command that was surely not written."""
        name = None if self._leader_name is None else self._leader_name.known
        return self._failure or NotLeader(self._log.name, name)

    def _check(self) -> None:
        """Raise ReplicaStopped if the replica has stopped."""
        if self._failure is not None:
            raise ReplicaStopped(self._log.name, self._failure.why) from self._failure.__cause__

    # --- the context --------------------------------------------------------------------------

    async def __aenter__(self) -> Replica[M]:
        if self._context is not None:
            raise InvalidArgument("a replica can only be entered once: make another one")
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
            # Some tasks may wait for this replica already. Wake them.
            self._end()
            raise
        async with background(self._run, name=f"replica of {self._log.name}"):
            try:
                yield
            finally:
                self._leaving.set()
                with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                    await self._over.wait()

    async def _run(self) -> None:
        """Follow and lead until the replica is left and has finished, or stops."""
        try:
            async with trio.open_nursery() as nursery:
                self._snapshot_manager.nursery = nursery
                self._may_follow.set()
                nursery.start_soon(self._supervise, self._follow_always)
                if self._leads:
                    nursery.start_soon(self._supervise, self._lead_always)
                else:
                    self._led.set()
                await self._leaving.wait()
                if self._leading is not None:
                    # The leading part finishes its proposals, closes its ledger and resigns.
                    self._leading.leave()
                    await self._led.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._leading is not None:
                self._leading.abandon()
            self._end()

    def _end(self) -> None:
        """Wake every task that waits for the replica: the replica is over."""
        if self._failure is None:
            self._failure = ReplicaStopped(self._log.name, "it was left")
        self._applied.fail(self._failure)
        self._listeners.end()
        self._turn()
        self._over.set()

    async def _supervise(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task. If it raises, only the replica stops."""
        try:
            await task()
        except Exception as error:
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """Stop the replica for good, and remember the reason."""
        if self._failure is not None:
            return
        # Stop first. Looking for words may fail, or be interrupted.
        self._fail(type(error).__name__, error)
        self._turn()
        self._leaving.set()
        if self._leading is not None:
            self._leading.abandon()
        why = f"{type(error).__name__}: {text_of(error)}"
        if isinstance(error, LedgerLogError):
            why = error.why if isinstance(error, ReplicaStopped) else str(error)
        logger.error("log=%s: its replica stops at %d: %s", self._log.name, self._core.next_offset, why)
        self._fail(why, error)
        self._listeners.tell(EventKind.STOPPED, self._core.next_offset, why)

    def _fail(self, why: str, error: BaseException) -> None:
        self._failure = ReplicaStopped(self._log.name, why)
        self._failure.__cause__ = error

    # --- applying -----------------------------------------------------------------------------

    def _apply(self, epoch: int, offset: int, envelope: Envelope) -> CommandOutcome | None:
        """Apply a record, wake the tasks that wait for it, and take a snapshot if one is due."""
        self._check()
        try:
            outcome = self._core.apply(offset, envelope)
            self._core.epoch = epoch
        except BaseException as error:
            # Stop now, before another task runs. The machine may have a part of the command: nobody may read
            # it, and it must not get the command again.
            self._stop(error)
            raise
        self._applied.advance(offset)
        self._snapshot_manager.on_applied()
        return outcome

    async def _restore(self, gap: Truncated | None = None) -> None:
        """Restore from the newest snapshot, if there is one."""
        try:
            reached = await self._snapshot_manager.restore(gap)
        except Exception:
            self._check()  # The machine's ``restore`` has raised this.
            raise
        if reached is not None:
            self._applied.advance(reached - 1)

    async def _follow_always(self) -> None:
        """Follow the log while this replica does not lead."""
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
                if found.first_offset > self._core.next_offset:
                    gap = found
                else:
                    self._core.epoch = None  # The last applied record is truncated.
            except (LogNotFound, MetadataCorrupt, EntryCorrupt, WireError, ReplicaStopped):
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
        """Follow the log. Return at its end; only a sealed log has one."""
        core = self._core
        self._is_confirmed = core.epoch is None
        start = core.next_offset - (not self._is_confirmed)
        async with self._log.read(start, follow=True, dense=True) as records:
            async for batch in records.batches():
                if not self._is_confirmed:
                    self._confirm(batch.epoch)
                    batch = batch.between(core.next_offset)
                offset = batch.first_offset
                for payload in batch.payloads:
                    self._apply(batch.epoch, offset, self._decode(offset, payload))
                    offset += 1
                self._stuck = None
        self._refuse(LogSealed(self._log.name))
        await trio.sleep_forever()

    def _confirm(self, epoch: int) -> None:
        """Note the epoch of the log's record before ``next_offset``. Raise ReplicaStopped if this is not the
        record that was applied."""
        if epoch != self._core.epoch:
            at = self._core.next_offset - 1
            raise self._is_ahead(f"record {at} is of epoch {epoch}, and was of epoch {self._core.epoch}")
        self._is_confirmed = True

    async def _look_back(self) -> None:
        """Read the record before ``next_offset`` from the log, unless following has read it."""
        end = self._core.next_offset
        if self._is_confirmed or self._core.epoch is None:
            return
        try:
            async with self._log.read(end - 1, until=end, dense=True) as records:
                async for record in records:
                    self._confirm(record.epoch)
        except Truncated:
            self._core.epoch = None

    def _is_ahead(self, what: str) -> ReplicaStopped:
        """Return the error of a replica that has applied records that the log has lost."""
        return ReplicaStopped(
            self._log.name,
            f"{what}: this replica has applied the records up to {self._core.next_offset - 1}, and the log "
            "has lost some of them. Delete the snapshots that reach beyond the loss, and start it again",
        )

    def _refuse(self, why: LedgerLogError) -> None:
        """Refuse all further proposals. The replica still applies the log's records up to its end."""
        if self._refusal is None:
            self._refusal = why
            self._listeners.tell(EventKind.SEALED, self._core.next_offset)
            self._turn()

    def _decode(self, offset: int, payload: bytes) -> Envelope:
        try:
            return decode_envelope_untrusted(payload)
        except WireError as error:
            raise WireError(f"record {offset} of log {self._log.name!r} is not a command: {error}") from error

    # --- leading ------------------------------------------------------------------------------

    async def _lead_always(self) -> None:
        """Lead each time the election allows it. Return or raise once this replica can never lead again."""
        try:
            await self._lead_again()
        finally:
            self._led.set()

    async def _lead_again(self) -> None:
        """Lead again and again, with growing pauses after failures."""
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
            except (LogNotFound, MetadataCorrupt, ReplicaStopped):
                raise
            except LedgerLogError as error:
                why = error
            if self._leaving.is_set():
                return
            logger.info("log=%s: this replica follows: %s", self._log.name, why)
            if self._election is None and isinstance(why, LostLeadership) and why.epoch is not None:
                # Another replica leads. Without an election, this one must not take the log back.
                self._passed_on = why
                self._turn()
                return
            if trio.current_time() - began > RECONNECT_DELAY_MAX_S:
                backoff.reset()
            delay_s = backoff.next_s()
            if not isinstance(why, LostLeadership | AppendUnknown) or self._election is None:
                await trio.sleep(delay_s)

    async def _lead(self) -> None:
        """Lead once. Raise the error that ends the leadership; return when the replica is left."""
        async with self._log.writer() as writer:
            end = self._must_reach = writer.next_offset - 1
            await catch_up(self._applied, end, lambda: self._stuck if self._election is not None else None)
            try:
                await self._pause_following()
                await self._lead_with(writer)
            finally:
                self._may_follow.set()

    async def _lead_with(self, writer: LogWriter) -> None:
        """Lead, while following pauses."""
        if self._core.next_offset != writer.next_offset:
            if (await self._log.counted_info()).epoch == writer.epoch:
                raise self._is_ahead(f"the log ends at offset {writer.next_offset}")
            # Another leader has taken over, and this replica has applied records of that leader already. Wait
            # until our writer notices.
            with trio.move_on_after(LOG_CLOSE_TIMEOUT_S):
                await writer.wait_over()
            raise fresh(writer.failure or LostLeadership(self._log.name, None, "another leader has appended"))
        await self._look_back()
        leading = Leading(
            writer,
            self._core,
            now_ms=self._environment.now_ms,
            new_seed=self._new_seed,
            apply=partial(self._apply, writer.epoch),
            not_leading=self._not_leading,
        )
        self._leading, self._epoch = leading, writer.epoch
        self._snapshot_manager.on_leading(writer)
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
            self._snapshot_manager.on_following()
            failed = writer.failure
            self._listeners.tell(
                EventKind.FOLLOWING, self._core.next_offset, "" if failed is None else str(failed)
            )

    async def _serve_leading(self, leading: Leading, writer: LogWriter) -> None:
        """Serve proposals until the replica is left. If the leadership is lost, raise the writer's reason."""

        async def watch() -> None:
            # If nothing is proposed for a long time, only this task notices that another replica leads.
            await writer.wait_over()
            leading.wake()

        async with background(watch, name=f"replica's writer of {self._log.name}"):
            try:
                await leading.run(lambda: writer.failure)
            except LedgerLogError as error:
                raise fresh(writer.failure or error) from error

    async def _pause_following(self) -> None:
        """Stop following, and wait until it has stopped."""
        self._may_follow = trio.Event()
        self._follow_scope.cancel()
        await self._parked.wait()

    def _turn(self) -> None:
        """Wake ``wait_leading``."""
        self._turned.set()
        self._turned = trio.Event()

    def _new_seed(self) -> int:
        return int.from_bytes(self._environment.new_token()[:8], "little")
