"""Elect one leader among processes: ``Cluster.election(name)``.

``election.core.candidacy`` decides. This module has the tasks that carry out its decisions, and the cancel
scope that represents a leadership:

    drive      carries out the core's needs: look, register, claim. The only task that calls the store
    session    reports each change of the metadata session to the core at once
    nodes      watches the election's record, and reports to the core if it may have changed
    beats      serves heartbeats; see ``election.beats``
    hearing    listens to the leader's heartbeats, while another process leads
    reach      reports to the core whether the log writers in the body reach an ack quorum of bookies
    offers     while another process offers the lead, checks whether this process reaches the bookies that
               the other one cannot reach

**What a leadership guarantees.** Its scope is cancelled as soon as this process can know that the leadership
is over. A process that was suspended or has just been deposed learns this later than other processes. So a
leadership is a hint and never a proof. If a deposed leader must not be able to write some data, keep the data
in a store that fences or that compares the term. A log fences: entering its writer deposes the previous
writer.

**The end of a leadership never waits for the store.** If the session is lost, the session's local state ends
the leadership, without a call to the store. A process that leaves the election first tells its standbys over
their connections. Then it tells the store, with a deadline.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.nurseries import background
from ledgerlog.election.beats import BeatServer, Hearing
from ledgerlog.election.core.candidacy import Candidacy, ElectionNeed
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
)
from ledgerlog.event_log import ELECTION_OVER, ELECTION_WON, tell
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import (
    ELECTION_STEP_DOWN_S,
    REACH_LOST_S,
    RECONNECT_DELAY_MAX_S,
    RECONNECT_DELAY_MIN_S,
)
from ledgerlog.log.leader_reach import LeaderReach
from ledgerlog.meta.settle import AWAY, follow, go_on, on_lost_answer
from ledgerlog.meta.store import (
    Check,
    MetadataSession,
    NodeExists,
    NodeMissing,
    Operation,
    SessionState,
    Set,
    VersionConflict,
)
from ledgerlog.model.election import ElectionState, check_candidate
from ledgerlog.model.ids import check_log_name
from ledgerlog.model.layout import candidate_path, candidates_path, election_path
from ledgerlog.net.transport import ConnectionLost

__all__ = ["Election", "Leader", "Term"]

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Leader:
    """The leader that the metadata store names. ``Election.leader`` returns it."""

    candidate: str
    """The leader's name: the ``candidate`` that its process passed to ``Cluster.election``."""
    term: int
    """The number of the leadership; see ``Term.number``."""
    is_registered: bool
    """Whether the leader's session lives. A leader that died a moment ago may still be registered."""


class Term:
    """One leadership. ``async with election.leadership() as term`` gives you one."""

    def __init__(self, number: int, candidate: str) -> None:
        self._number = number
        self._candidate = candidate
        self._why: str | None = None
        self._over = trio.Event()

    def __repr__(self) -> str:
        return f"<Term {self._number} of {self._candidate}{'' if self._why is None else ', over'}>"

    def __int__(self) -> int:
        return self._number

    @property
    def number(self) -> int:
        """The number of this leadership. It grows with each leadership and is never used twice.

        You can use it as a fencing token: a store that remembers the highest number it has seen can refuse a
        deposed leader, because the deposed leader's number is lower.
        """
        return self._number

    @property
    def is_over(self) -> bool:
        """Whether the leadership is known to be over. The ``async with`` body is then being cancelled, or
        has ended."""
        return self._over.is_set()

    @property
    def why(self) -> str | None:
        """The reason that the leadership is over, in words.

        None while the leadership is not over, or if the body ended by itself.
        """
        return self._why

    async def wait_over(self) -> None:
        """Wait until the leadership is over.

        Use it in tasks outside of the ``async with`` body. The body itself is cancelled anyway.

        Cancelling: abandons the wait.
        """
        await self._over.wait()

    def _end(self, why: str | None) -> None:
        if not self._over.is_set():
            self._why = why
            self._over.set()


ListenAddress = str | Callable[[], Awaitable[str | None]]
"""The address to listen at for standbys, or a function that finds it; None: do not listen."""


class Election:
    """One process's part in an election. ``Cluster.election`` makes it.

    Any number of processes may take part in an election, and each may lead many times.
    """

    def __init__(
        self,
        client: LedgerClient,
        name: str,
        *,
        candidate: str | None = None,
        listen: ListenAddress | None = None,
    ) -> None:
        self._client = client
        self._name = check_log_name(name, "the name of an election")
        self._candidate = (
            f"candidate-{client.environment.new_token().hex()[:12]}"
            if candidate is None
            else check_candidate(candidate)
        )
        self._listen = listen
        self._core = Candidacy(candidate=self._candidate)
        self._is_standing = False

    def __repr__(self) -> str:
        return f"<Election {self._name!r} for {self._candidate!r}>"

    @property
    def name(self) -> str:
        """The name of the election."""
        return self._name

    @property
    def candidate(self) -> str:
        """The name of this process in the election."""
        return self._candidate

    @asynccontextmanager
    async def leadership(self, *, strict: bool = False) -> AsyncIterator[Term]:
        """Wait until this process leads, then run the body of the ``async with`` while it leads.

        The body is cancelled as soon as the leadership ends: the metadata session is over, or the record
        names another leader. The ``async with`` then ends without an exception, as a cancel scope does.
        ``term.why`` has the reason. Call ``leadership()`` again to stand again. If the body ends first, the
        next leader is told at once.

        If the metadata store is away, the leadership continues: a restart of ZooKeeper costs no failover. If
        only this process cannot reach the store, the store ends its session after a while. Then another
        process leads, and this one may notice that later. This is safe if you write only to stores that
        refuse the older leader. A log does (its writer raises LostLeadership). If a store does not, pass
        ``strict=True``.

        A log writer that you enter in the body notices if it reaches no ack quorum of bookies for a second.
        The leadership then passes to another candidate that reaches enough bookies, if there is one. Without
        such a candidate the leadership continues. A strict leadership is never passed on like this.

            async with cluster.election("scheduler").leadership() as term:
                await schedule(term.number)  # cancelled if this process stops leading

        An exception of the body comes out as it was raised, not in a group. While the store is unreachable,
        entering the ``async with`` waits.

        Args:
            strict: Whether the leadership also ends as soon as the store is out of reach. As a rule, this
                process then stops before the store ends its session and another process leads. A ZooKeeper
                server that is itself cut off can delay that by some seconds (docs/METADATA.md).

        Returns:
            An async context manager. Entering it gives the ``Term``.

        Raises:
            InvalidArgument: Another ``leadership()`` of this object is open; make another ``Election``. Or
                the election's ``listen`` address is malformed.
            MetadataCorrupt: The election's record is damaged.

        Cancelling: while it waits, this process withdraws from the election.
        """
        if self._is_standing:
            raise InvalidArgument(
                f"{self!r} is standing for election already; make another Election for another candidate"
            )
        self._is_standing = True
        self._core.is_strict = strict
        stand = _Stand(self._client, self._name, self._candidate, self._core, self._listen)
        try:
            await stand.listen()
            async with background(stand.run, name=f"election {self._name}"):
                try:
                    term = await stand.wait_leading()
                    with stand.scope, stand.reach.open():
                        yield term
                finally:
                    await stand.leave()
        finally:
            stand.close()
            self._is_standing = False

    async def leader(self) -> Leader | None:
        """Read from the metadata store which process leads.

        Returns:
            The leader. None if no process leads.

        Raises:
            MetadataUnavailable: The store did not answer.
            MetadataCorrupt: The election's record is damaged.
        """
        store = self._client.store
        await store.sync()
        node = await store.get(election_path(self._name))
        if node is None:
            return None
        record = ElectionState.decode_untrusted(node.value, self._name)
        if record.holder is None:
            return None
        candidates = await store.children(candidates_path(self._name))
        return Leader(
            candidate=record.candidate or record.holder,
            term=record.term,
            is_registered=record.holder in candidates,
        )


class _Stand:
    """One call of ``leadership()``: it stands, leads and leaves."""

    def __init__(
        self,
        client: LedgerClient,
        name: str,
        candidate: str,
        core: Candidacy,
        listen: ListenAddress | None,
    ) -> None:
        self._client = client
        self._name = name
        self._candidate = candidate
        self._core = core
        self._listen = listen
        self._wake = trio.Event()
        self._looked = trio.Event()
        """Set when the watched leader may have changed."""
        self._offer_looked = trio.Event()
        """Set when the offer of the lead may have changed."""
        self.reach = LeaderReach()
        self._led = trio.Event()
        self._term: Term | None = None
        self._led_as = ""
        """The id of our registration when the term began."""
        self._failure: LedgerLogError | None = None
        self._server: BeatServer | None = None
        self._is_left = False
        """Whether this call is over: it begins no more work, and ignores the results of requests under way.

        The core then belongs to the next call.
        """
        self.scope = trio.CancelScope()
        """Cancelled when the leadership is over."""

    async def listen(self) -> None:
        """Start to listen for standbys. If that fails, the standbys rely on the metadata session."""
        # Finding a default address uses the network, so do it now and not when the election is made.
        address = await self._listen() if callable(self._listen) else self._listen
        if address is None:
            return
        try:
            listener = await self._client.network.listen(address)
        except ConnectionLost as cause:
            logger.warning("election=%s: standbys cannot hear our heartbeat: %s", self._name, cause)
            return
        self._server = BeatServer(listener, self._core)
        self._core.address = self._server.address

    async def wait_leading(self) -> Term:
        """Wait until this process leads. If a failure ended the wait, raise it."""
        await self._led.wait()
        if self._failure is not None:
            raise self._failure
        assert self._term is not None
        return self._term

    async def run(self) -> None:
        """Carry out the core's needs, until cancelled or until the leadership is over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_session)
            nursery.start_soon(self._follow_nodes)
            nursery.start_soon(self._hear)
            nursery.start_soon(self._follow_reach)
            nursery.start_soon(self._answer_offers)
            if self._server is not None:
                nursery.start_soon(self._server.run)
            try:
                await self._drive()
            except LedgerLogError as failure:
                self._failure = failure
                self._end(str(failure))
                self._led.set()
            nursery.cancel_scope.cancel()

    # --- the store ----------------------------------------------------------------------------

    async def _drive(self) -> None:
        core = self._core
        backoff = Backoff(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        while core.lost is None and not self._is_left:
            self._wake = trio.Event()
            need = core.need(trio.current_time())
            if need is ElectionNeed.WAIT:
                backoff.reset()
                with trio.move_on_at(core.wake_at):
                    await self._wake.wait()
                continue
            what = f"election={self._name} cannot {need.value}"
            await go_on(partial(self._do, need), what=what, backoff=backoff, log=logger)
            self._tell()

    async def _do(self, need: ElectionNeed) -> None:
        core, store = self._core, self._client.store
        path = election_path(self._name)
        match need:
            case ElectionNeed.LOOK:
                await self._look()
            case ElectionNeed.CREATE:
                core.on_stale()
                with suppress(NodeExists):
                    await store.create(path, ElectionState().encode())
            case ElectionNeed.REGISTER:
                await self._register()
            case ElectionNeed.CLAIM:
                await self._claim()
            case ElectionNeed.OFFER:
                await self._offer()

    async def _look(self) -> None:
        core, store = self._core, self._client.store
        core.on_looking()
        try:
            node = await store.get(election_path(self._name))
            # Read the record first. A holder registers before the record names it, so a living holder is
            # always in a list that is read after the record.
            candidates = await store.children(candidates_path(self._name))
            record = None if node is None else ElectionState.decode_untrusted(node.value, self._name)
        except BaseException:
            core.on_stale()
            raise
        core.on_looked(record, -1 if node is None else node.version, candidates, trio.current_time())

    async def _register(self) -> None:
        store = self._client.store
        session = store.session
        me = self._client.environment.new_token().hex()
        # If the answer is lost, the node may exist or appear later, but we do not use it. So delete it.
        withdraw = partial(self._client.nursery.start_soon, self._withdraw, session, me, None)
        with on_lost_answer(withdraw, is_cancelled_too=True):
            version = await store.create(
                candidate_path(self._name, me), self._candidate.encode(), ephemeral=True
            )
        if self._is_left:
            self._client.nursery.start_soon(self._withdraw, session, me, version)
        else:
            self._core.on_registered(me, version, session.session_id)

    async def _claim(self) -> None:
        core = self._core
        assert core.me is not None
        claim = core.claim(trio.current_time())
        self._client.environment.mark("election: claiming")
        operations: tuple[Operation, ...] = (
            Check(candidate_path(self._name, core.me), core.node_version),
            Set(election_path(self._name), claim.encode(), core.version),
        )
        with self._looking_again():
            versions = await self._client.store.transaction(operations)
            # If the caller left meanwhile, the record names a registration that is being deleted. So the
            # term is free.
            if not self._is_left:
                core.on_claimed(versions[1])

    async def _offer(self) -> None:
        core = self._core
        record = core.offer_record()
        with self._looking_again():
            path = election_path(self._name)
            version = await self._client.store.set(path, record.encode(), version=core.version)
            if self._is_left:
                return
            core.on_offered(record, version)
            if record.offer is None:
                logger.warning("election=%s: %s keeps the lead", self._name, self._candidate)
            else:
                logger.warning(
                    "election=%s: %s offers the lead to a candidate that reaches %s",
                    *(self._name, self._candidate, record.offer),
                )

    @contextmanager
    def _looking_again(self) -> Iterator[None]:
        """Wrap a write of the record: after a conflict or a lost answer, the core looks again."""
        try:
            yield
        except (VersionConflict, NodeMissing):
            self._core.on_unsettled()
        except AWAY:
            self._core.on_unsettled()
            raise

    async def _follow_session(self) -> None:
        store, core = self._client.store, self._core
        while True:
            session = store.session
            state = session.state
            core.on_session(
                session.session_id,
                is_connected=state is SessionState.CONNECTED,
                is_lost=state is SessionState.LOST,
            )
            self._tell()
            if state is SessionState.LOST and store.session is session:
                await trio.sleep(RECONNECT_DELAY_MIN_S)  # The store has no new session yet.
            else:
                await session.wait_not(state)

    async def _follow_nodes(self) -> None:
        async def look() -> None:
            self._core.on_stale()
            self._wake.set()

        what = f"election={self._name} is not watched"
        await follow(self._client.store, election_path(self._name), look, what=what, log=logger)

    # --- heartbeats ---------------------------------------------------------------------------

    async def _hear(self) -> None:
        """Listen to the current leader's heartbeats while another process leads."""
        core = self._core
        while True:
            self._looked = trio.Event()
            watched = core.watched
            if watched is None:
                await self._looked.wait()
                continue
            hearing = Hearing(self._client.network, core, *watched)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hearing.run)
                nursery.start_soon(self._pass_on, hearing)
                while core.watched == watched:
                    self._looked = trio.Event()
                    await self._looked.wait()
                nursery.cancel_scope.cancel()

    async def _pass_on(self, hearing: Hearing) -> None:
        while True:
            await hearing.changed.wait()
            hearing.changed = trio.Event()
            self._wake.set()

    # --- bookies ------------------------------------------------------------------------------

    async def _follow_reach(self) -> None:
        """Tell the core which bookies the log writers in the body cannot reach."""
        while True:
            self._core.on_reach(self.reach.out_of_reach)
            self._wake.set()
            await self.reach.wait_change()

    async def _answer_offers(self) -> None:
        """While another process offers the lead, check whether this process reaches the bookies that the
        other one cannot reach."""
        core, pool = self._core, self._client.pool
        while True:
            self._offer_looked = trio.Event()
            offer = core.offer_to_answer
            if offer is None:
                await self._offer_looked.wait()
                continue
            term, missing = offer
            if await pool.reaches(missing.bookies, missing.needed):
                core.on_better(term, missing)
                self._wake.set()
            else:
                core.on_no_better()
            await trio.sleep(REACH_LOST_S)

    # --- the leadership -----------------------------------------------------------------------

    def _tell(self) -> None:
        """Wake the tasks that follow the core. Begin or end the leadership if the core says so."""
        core = self._core
        self._wake.set()
        self._looked.set()
        self._offer_looked.set()
        if core.leading is not None and self._term is None:
            assert core.me is not None
            self._led_as = core.me
            self._client.environment.mark("election: leading")
            self._term = Term(core.leading, self._candidate)
            tell(
                logger,
                ELECTION_WON,
                "election=%(election)s: %(candidate)s leads in term %(term)d",
                election=self._name,
                candidate=self._candidate,
                term=core.leading,
            )
            self._led.set()
        if core.lost is not None:
            self._end(core.lost)

    def _end(self, why: str) -> None:
        if self._term is not None and not self._term.is_over:
            tell(
                logger,
                ELECTION_OVER,
                "election=%(election)s: term %(term)d is over: %(why)s",
                election=self._name,
                term=self._term.number,
                why=why,
            )
            self._term._end(why)
        self.scope.cancel()

    async def leave(self) -> None:
        """Leave the election and tell the others. Call this when the body has ended or the wait was
        cancelled."""
        core, store = self._core, self._client.store
        self._is_left = True
        me, node_version, version = core.me, core.node_version, core.version
        vacated = core.leave()
        if self._term is not None:
            self._term._end(None)
            if self._server is not None:
                self._server.say_ended(self._term.number, self._led_as)
        core.me = None
        if me is None:
            return
        session = store.session
        if session.state is not SessionState.CONNECTED:
            self._client.nursery.start_soon(self._withdraw, session, me, node_version)
            return
        is_withdrawn = False
        with trio.move_on_after(ELECTION_STEP_DOWN_S, shield=True):
            try:
                if vacated is not None:
                    await store.set(election_path(self._name), vacated.encode(), version=version)
            except (VersionConflict, NodeMissing):
                pass  # Another candidate has the next term already, or the election was deleted.
            except LedgerLogError as cause:
                logger.info("election=%s: the record may still name us as the leader: %s", self._name, cause)
            try:
                await store.delete(candidate_path(self._name, me), version=node_version)
                is_withdrawn = True
            except LedgerLogError as cause:
                logger.info("election=%s: %s is still registered: %s", self._name, self._candidate, cause)
        if not is_withdrawn:
            self._client.nursery.start_soon(self._withdraw, session, me, node_version)

    async def _withdraw(self, session: MetadataSession, me: str, node_version: int | None) -> None:
        """Delete our node once the store is reachable again.

        If the session is lost, the store has deleted our node already. If the session continues, the node
        must be deleted. Otherwise we would look like a leader for as long as this process lives.
        """
        store = self._client.store
        while store.session is session:
            state = session.state
            if state is SessionState.CONNECTED:
                try:
                    await store.delete(candidate_path(self._name, me), version=node_version)
                except (NodeMissing, VersionConflict):
                    return
                except LedgerLogError:
                    await trio.sleep(RECONNECT_DELAY_MAX_S)
                else:
                    return
            elif state is SessionState.LOST:
                return
            else:
                await session.wait_not(state)

    def close(self) -> None:
        """Stop listening for standbys."""
        self._core.address = None
        if self._server is not None:
            self._server.close()
