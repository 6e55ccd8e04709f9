"""Requests to the ensemble with the patience that they deserve: deadlines, and what is sent again.

A ``Conversation`` goes on over all connections, sessions and links of one store. Its owner says when there
is a connection and over which link; everybody else just reads and writes.

**Reads** are sent again until they are answered. **A write** is sent again as long as it surely did nothing:
it was not sent, or a server said that it had refused it. One that was sent and whose answer was lost is
``MetadataOutcomeUnknown`` at once, unless the caller says that to repeat it does no harm.

**Deadlines.** Each call of the capability has ``limits.METADATA_TIMEOUT_S`` for all of that. Where it ends
upon a request that waits to be sent, the request is taken back, and nothing has happened; where it ends
upon one that was sent, the outcome is unknown."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs
import trio

from ledgerlog import limits
from ledgerlog.errors import MetadataOutcomeUnknown, MetadataUnavailable, WrongCluster
from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.calls import AnswerLost, Call, NotSent, Refused, Transaction, WrongSession
from ledgerlog.meta.zookeeper.link import Link
from ledgerlog.meta.zookeeper.plan import CheckZnode, ZnodeOperation
from ledgerlog.meta.zookeeper.session import ZooKeeperSession

_RETRY_S = 0.02
"""Before what surely did nothing is tried again."""

_PIPELINE = 256
"""Requests of one call that are under way at once."""

T = TypeVar("T")


@attrs.define(eq=False)
class Attempt:
    """One write of a caller, for as long as its deadline lets it be tried."""

    is_in_doubt: bool = False
    """The deadline came upon a request that had been sent."""


class SessionOver(Exception):
    """The session that a write was to belong to is over; nothing was written."""


class Conversation:
    """Made by the store, which sets ``link`` before anything is asked. ``on_doubt`` is called where the
    server says that the node is gone by which the store was recognized."""

    def __init__(self, hosts: str, on_doubt: Callable[[], None]) -> None:
        self.hosts = hosts
        self.link: Link
        self._on_doubt = on_doubt
        self._process = os.getpid()
        self._session_id: int | None = None
        """Of the connection that may be used; None while there is none."""
        self._check: CheckZnode | None = None
        """The first step of each write in that session."""
        self._refusal: str | None = None
        self._doubts = 0
        self._is_closed = False
        self._changed = trio.Event()

    # --- what the owner says ---------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that may be used."""
        return self._session_id is not None

    @property
    def is_refused(self) -> bool:
        return self._refusal is not None

    @property
    def session_id(self) -> int | None:
        """The session of that connection."""
        return self._session_id

    def use(self, session_id: int, check: CheckZnode | None) -> None:
        """There is a connection, for this session, and it may be used. ``check`` is what each write begins
        with."""
        self._session_id, self._check, self._refusal = session_id, check, None
        self._tell()

    def rest(self) -> None:
        """There is no connection that may be used."""
        self._session_id = None
        self._tell()

    def doubt(self) -> None:
        """The connection must show anew whose store it is, and what was read on it and not given out is read
        again."""
        self._doubts += 1
        self.rest()

    def refuse(self, refusal: str) -> None:
        """What answers is not what it is to be: every call is WrongCluster until another session is used."""
        self._refusal = refusal
        self.rest()

    def _tell(self) -> None:
        """Wake whoever waits for news, of the session too."""
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """From now on every call is MetadataUnavailable, those under way included."""
        self._is_closed = True
        self.rest()

    async def wait_news(self) -> None:
        """Return when the connection or the session has changed. MetadataUnavailable once it is closed."""
        await self._changed.wait()
        self.check_open()

    # --- asking ----------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self._is_closed:
            raise MetadataUnavailable(f"the metadata store on {self.hosts} is closed")
        if os.getpid() != self._process:
            raise MetadataUnavailable(
                f"the metadata store on {self.hosts} was opened before a fork; open it again in the child"
            )

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()
        self.check_open()

    async def within_deadline(self, work: Callable[[Attempt], Awaitable[T]]) -> T:
        """What ``work`` gives, within ``limits.METADATA_TIMEOUT_S``."""
        await self.checkpoint()
        attempt = Attempt()
        with trio.move_on_after(limits.METADATA_TIMEOUT_S):
            return await work(attempt)
        trouble = f"no ZooKeeper server of {self.hosts} answered within {limits.METADATA_TIMEOUT_S:g} s"
        if attempt.is_in_doubt:
            raise MetadataOutcomeUnknown(f"{trouble}; what was sent may or may not have been applied")
        raise MetadataUnavailable(f"{trouble}; nothing happened")

    async def _wait_connected(self) -> None:
        while self._session_id is None:
            if self._refusal is not None:
                raise WrongCluster(self._refusal)
            await self.wait_news()

    async def _answers(self, calls: Sequence[Call]) -> None:
        """Send calls once there is a connection; return when all are answered or have failed."""
        await self._wait_connected()
        for call in calls:
            if call.session_id is None:
                call.session_id = self._session_id
        answered = [trio.Event() for _ in calls]
        for call, event in zip(calls, answered, strict=True):
            call.deliver = lambda _, event=event: event.set()
            self.link.submit(call)
        for event in answered:
            await event.wait()

    async def read(self, make: Callable[[], Call]) -> Any:
        """The answer to a request that changes nothing, or ``Refused``; asked for until it comes."""
        return (await self.read_all([make]))[0]

    async def read_all(self, makes: Sequence[Callable[[], Call]]) -> list[Any]:
        """The answers to requests that change nothing."""
        answers: list[Any] = []
        while len(answers) < len(makes):
            await self._wait_connected()
            doubts = self._doubts
            calls = [make() for make in makes[len(answers) : len(answers) + _PIPELINE]]
            await self._answers(calls)
            try:
                found = [call.result() for call in calls]
            except (NotSent, AnswerLost, WrongSession):
                self.check_open()
                await trio.sleep(_RETRY_S)
                continue
            if doubts == self._doubts:
                answers += found
        return answers

    async def write(
        self,
        operations: Sequence[ZnodeOperation],
        attempt: Attempt,
        *,
        session: ZooKeeperSession | None = None,
        is_repeatable: bool = False,
    ) -> list[int] | Refused:
        """What the server says to a transaction; sent until it is surely answered or surely may have been
        applied (MetadataOutcomeUnknown, unless it ``is_repeatable``). SessionOver for one of a session."""
        while True:
            if self._refusal is None and session is not None and session.state is SessionState.LOST:
                raise SessionOver
            await self._wait_connected()
            first = [] if self._check is None else [self._check]
            call = Transaction([*first, *operations], session_id=None if session is None else session.number)
            try:
                await self._answers([call])
            except trio.Cancelled:
                # The caller is gone, or its deadline has come: not sent means never sent.
                attempt.is_in_doubt = not call.revoke()
                raise
            try:
                result: list[int] | Refused = call.result()
                if not isinstance(result, Refused):
                    return result[len(first) :]
                if result.index >= len(first):
                    return Refused(result.index - len(first), result.refusal)
                self._on_doubt()
            except WrongSession:
                if session is not None:
                    raise SessionOver from None
            except NotSent:
                pass
            except AnswerLost as lost:
                if not is_repeatable:
                    raise MetadataOutcomeUnknown(
                        f"the connection to ZooKeeper ({self.hosts}) was lost while a write was under way; "
                        "it may or may not have been applied"
                    ) from lost.__cause__
            self.check_open()
            await trio.sleep(_RETRY_S)
