"""Electing one leader among processes: ``Cluster.election(name)``.

``election.core.candidacy`` decides; here are the tasks that carry it out, and the cancel scope that a
leadership is.

    drive      does what the core needs: look, register, claim. The one task that talks to the store
    session    tells the core what becomes of the metadata session, at once
    nodes      tells it that the election's nodes may have changed (a watch)
    beats      a server of heartbeats; see ``election.beats``
    hearing    while somebody else leads: listens to his

**What a leadership is worth.** Its scope is cancelled as soon as this process can know that it is over. A
process that was stopped, or that another one deposed a moment ago, knows later than others do. So
leadership is a hint, and never a proof: what must not be written by a deposed leader has to be written to
something that fences, as a log does (entering its writer deposes whoever wrote before), or that compares
the term.

**Nothing here waits for a store that is away.** Losing the session ends the leadership by the session's own
state, without a call; leaving tells the standbys over their connections first, and the store within a bound.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import trio

from ledgerlog.concurrency.core.backoff import Backoff
from ledgerlog.concurrency.nurseries import beside
from ledgerlog.election.beats import BeatServer, Hearing
from ledgerlog.election.core.candidacy import Candidacy, ElectionNeed
from ledgerlog.errors import (
    InvalidArgument,
    LedgerLogError,
)
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import ELECTION_STEP_DOWN_S, RECONNECT_DELAY_MAX_S, RECONNECT_DELAY_MIN_S
from ledgerlog.meta.settle import AWAY, follow, go_on, on_lost_answer
from ledgerlog.meta.store import (
    Check,
    NodeExists,
    NodeMissing,
    Operation,
    Session,
    SessionState,
    Set,
    VersionConflict,
)
from ledgerlog.model.election import ElectionRecord, check_candidate
from ledgerlog.model.ids import check_log_name
from ledgerlog.model.layout import candidate_path, candidates_path, election_path
from ledgerlog.net.transport import ConnectionLost

__all__ = ["Election", "Leader", "Term"]

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Leader:
    """Who leads, as the metadata store has it."""

    candidate: str
    """What the leader calls itself."""
    term: int
    is_registered: bool
    """Whether its session lives. A leader that died a moment ago is still registered."""


class Term:
    """One leadership, from ``async with election.leadership() as term``."""

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
        """The number of this leadership: it grows with each and is never given twice. A fencing token."""
        return self._number

    @property
    def is_over(self) -> bool:
        """Whether the leadership is known to be over; its body is being cancelled, or has ended."""
        return self._over.is_set()

    @property
    def why(self) -> str | None:
        """Why it is over, in words; None while it is not, or if its body was simply left."""
        return self._why

    async def wait_over(self) -> None:
        """Return once it is over. For tasks outside of the body, which is cancelled anyhow."""
        await self._over.wait()

    def _end(self, why: str | None) -> None:
        if not self._over.is_set():
            self._why = why
            self._over.set()


class Election:
    """One process's part in an election. Made by ``Cluster.election``. Any number of processes may take part
    in the election of one name, and each may lead many times."""

    def __init__(
        self, client: LedgerClient, name: str, *, candidate: str | None = None, listen: str | None = None
    ) -> None:
        self._client = client
        self._name = check_log_name(name)
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
        return self._name

    @property
    def candidate(self) -> str:
        """What this process is called in the election."""
        return self._candidate

    @asynccontextmanager
    async def leadership(self) -> AsyncIterator[Term]:
        """Wait until this process leads; then run the body of the ``async with`` while it does.

        The body is cancelled when the leadership ends: as soon as the metadata session is suspended or lost,
        or the record names another leader. The ``async with`` is then left as a cancel scope is, without an
        exception; ``term.why`` says what happened, and another ``leadership()`` stands again. What the
        body raises comes out as it was raised. When the body ends, the next leader is told at once.

        One at a time for an ``Election``: InvalidArgument. Entering waits through an unreachable store;
        cancelling it takes the candidate out. Raises MetadataCorrupt if the record is damaged."""
        if self._is_standing:
            raise InvalidArgument(f"{self!r} stands already; make another Election for another candidate")
        self._is_standing = True
        stand = _Stand(self._client, self._name, self._candidate, self._core, self._listen)
        try:
            await stand.listen()
            async with beside(stand.run, name=f"election {self._name}"):
                try:
                    term = await stand.wait_leading()
                    with stand.scope:
                        yield term
                finally:
                    await stand.leave()
        finally:
            stand.close()
            self._is_standing = False

    async def leader(self) -> Leader | None:
        """Who leads, None where nobody does. MetadataUnavailable, MetadataCorrupt."""
        store = self._client.store
        await store.sync()
        node = await store.get(election_path(self._name))
        if node is None:
            return None
        record = ElectionRecord.decode_untrusted(node.value, self._name)
        if record.holder is None:
            return None
        candidates = await store.children(candidates_path(self._name))
        return Leader(
            candidate=record.candidate or record.holder,
            term=record.term,
            is_registered=record.holder in candidates,
        )


class _Stand:
    """One ``leadership()``: standing, leading and leaving."""

    def __init__(
        self, client: LedgerClient, name: str, candidate: str, core: Candidacy, listen: str | None
    ) -> None:
        self._client = client
        self._name = name
        self._candidate = candidate
        self._core = core
        self._listen = listen
        self._wake = trio.Event()
        self._looked = trio.Event()
        """Whether somebody else leads may have changed."""
        self._led = trio.Event()
        self._term: Term | None = None
        self._led_as = ""
        """The candidacy that had the term."""
        self._failure: LedgerLogError | None = None
        self._server: BeatServer | None = None
        self._is_left = False
        """Nothing of this stand is begun any more, and what was under way counts for nothing: the core, which
        lives on for the next one, has been told that it is over."""
        self.scope = trio.CancelScope()
        """Cancelled when the leadership is over."""

    async def listen(self) -> None:
        """Open the line for standbys; without one they rely on the session."""
        if self._listen is None:
            return
        try:
            listener = await self._client.network.listen(self._listen)
        except ConnectionLost as cause:
            logger.warning("election=%s: no standby will hear our heartbeat: %s", self._name, cause)
            return
        self._server = BeatServer(listener, self._core)
        self._core.address = self._server.address

    async def wait_leading(self) -> Term:
        """Return once we lead."""
        await self._led.wait()
        if self._failure is not None:
            raise self._failure
        assert self._term is not None
        return self._term

    async def run(self) -> None:
        """Carry out what the core needs, until cancelled or the leadership is over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_session)
            nursery.start_soon(self._follow_nodes)
            nursery.start_soon(self._hear)
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
                node = await store.get(path)
                # In this order: a holder that is in the record had registered before.
                candidates = await store.children(candidates_path(self._name))
                record = None if node is None else ElectionRecord.decode_untrusted(node.value, self._name)
                version = -1 if node is None else node.version
                core.on_looked(record, version, candidates, trio.current_time())
            case ElectionNeed.CREATE:
                core.on_stale()
                with suppress(NodeExists):
                    await store.create(path, ElectionRecord().encode())
            case ElectionNeed.REGISTER:
                await self._register()
            case ElectionNeed.CLAIM:
                await self._claim()

    async def _register(self) -> None:
        store = self._client.store
        session = store.session
        me = self._client.environment.new_token().hex()
        # A node whose answer is lost may be there, or come yet, and nobody stands for it.
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
        try:
            versions = await self._client.store.transaction(operations)
        except (VersionConflict, NodeMissing):
            core.on_unsettled()
        except AWAY:
            core.on_unsettled()
            raise
        else:
            # One that is left names a candidacy that is being withdrawn: the term is free for anybody.
            if not self._is_left:
                core.on_claimed(versions[1])

    async def _follow_session(self) -> None:
        store, core = self._client.store, self._core
        while True:
            session = store.session
            state = session.state
            core.on_session(session.session_id, is_connected=state is SessionState.CONNECTED)
            self._tell()
            if state is SessionState.LOST and store.session is session:
                await trio.sleep(RECONNECT_DELAY_MIN_S)  # The store has no other one, yet.
            else:
                await session.wait_not(state)

    async def _follow_nodes(self) -> None:
        async def look() -> None:
            self._core.on_stale()
            self._wake.set()

        what = f"election={self._name} is not watched"
        await follow(self._client.store, election_path(self._name), look, what=what, log=logger)

    # --- the direct line ----------------------------------------------------------------------

    async def _hear(self) -> None:
        """Listen to whoever leads, for as long as it is somebody else."""
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

    # --- the leadership -----------------------------------------------------------------------

    def _tell(self) -> None:
        """The core may have changed: bring the leadership in line with it."""
        core = self._core
        self._wake.set()
        self._looked.set()
        if core.leading is not None and self._term is None:
            assert core.me is not None
            self._led_as = core.me
            self._client.environment.mark("election: leading")
            self._term = Term(core.leading, self._candidate)
            logger.info("election=%s: %s leads in term %d", self._name, self._candidate, core.leading)
            self._led.set()
        if core.lost is not None:
            self._end(core.lost)

    def _end(self, why: str) -> None:
        if self._term is not None and not self._term.is_over:
            logger.info("election=%s: term %d is over: %s", self._name, self._term.number, why)
            self._term._end(why)
        self.scope.cancel()

    async def leave(self) -> None:
        """The body has ended, or nobody waits for it any more: let others know."""
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
        with trio.move_on_after(ELECTION_STEP_DOWN_S, shield=True):
            try:
                if vacated is not None:
                    await store.set(election_path(self._name), vacated.encode(), version=version)
            except (VersionConflict, NodeMissing):
                pass  # Somebody has the next term already.
            except LedgerLogError as cause:
                logger.info("election=%s: it was left without a word: %s", self._name, cause)
            try:
                await store.delete(candidate_path(self._name, me), version=node_version)
            except LedgerLogError as cause:
                logger.info("election=%s: %s is still registered: %s", self._name, self._candidate, cause)
                self._client.nursery.start_soon(self._withdraw, session, me, node_version)

    async def _withdraw(self, session: Session, me: str, node_version: int | None) -> None:
        """Take our node away once the store is back. A session that is over has done that; one that goes on
        would keep up the appearance of a leader for as long as this process lives."""
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
        """Let go of the line."""
        self._core.address = None
        if self._server is not None:
            self._server.close()
