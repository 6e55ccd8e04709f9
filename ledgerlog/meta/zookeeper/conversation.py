"""Requests to the ensemble, with deadlines, and with repetition where it is safe.

One ``Conversation`` covers all connections, sessions and links of one store. Its owner (the store) tells it
when there is a connection, and over which link. Other code only reads and writes.

**Reads** are sent again until they are answered. **A write** is sent again if it surely did nothing: the
write was not sent, or a server said that it did not do the write. If a write was sent and its answer was
lost, the call raises ``MetadataOutcomeUnknown`` at once, unless the caller says that repeating the write does
no harm.

**Deadlines.** Each call of the capability has ``limits.METADATA_TIMEOUT_S`` for all its requests. If the
deadline comes while a request waits to be sent, the request is taken back, and nothing has happened. If the
deadline comes after the request was sent, the outcome is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs
import trio

from ledgerlog import limits
from ledgerlog.concurrency.watermark import fresh
from ledgerlog.errors import LedgerLogError, MetadataOutcomeUnknown, MetadataUnavailable
from ledgerlog.meta.store import SessionState
from ledgerlog.meta.zookeeper.acl import OPEN, Acl, hides_digests
from ledgerlog.meta.zookeeper.calls import (
    AnswerLost,
    Denied,
    NotSent,
    Refused,
    Transaction,
    UnknownIdentity,
    WrongSession,
    ZookeeperCall,
)
from ledgerlog.meta.zookeeper.link import KazooLink
from ledgerlog.meta.zookeeper.login import NOBODY
from ledgerlog.meta.zookeeper.plan import CheckZnode, MakeZnode, ZnodeOperation
from ledgerlog.meta.zookeeper.refusals import ZooKeeperDenies, ZooKeeperKnowsNot
from ledgerlog.meta.zookeeper.session import ZooKeeperSession

_RETRY_S = 0.02
"""Pause before a request that surely did nothing is tried again."""

_PIPELINE = 256
"""How many requests of one call are under way at the same time."""

T = TypeVar("T")


@attrs.define(eq=False)
class Attempt:
    """One write of a caller, with all its repetitions until the deadline."""

    is_in_doubt: bool = False
    """Whether the deadline came after a request had been sent."""


class SessionOver(Exception):
    """The session that a write was bound to is over; nothing was written."""


class Conversation:
    """The requests of one store. The store sets ``link`` before the first request.

    Args:
        hosts: The servers, for messages: "h1:2181,h2:2181".
        on_doubt: Called if the server refuses the check that each write begins with. The node that holds the
            cluster's id has then changed or is gone.
    """

    def __init__(self, hosts: str, on_doubt: Callable[[], None]) -> None:
        self.hosts = hosts
        self.link: KazooLink
        self._on_doubt = on_doubt
        self._process = os.getpid()
        self._session_id: int | None = None
        """The session of the usable connection; None while there is none."""
        self._check: CheckZnode | None = None
        """The first step of each write in that session."""
        self._acl: Acl = OPEN
        """The access control list (``acl``) of each znode that is made in that session."""
        self.login = NOBODY
        """Who this process is, for messages."""
        self.trouble = ""
        """Why the last attempt to connect failed, for messages."""
        self._refusal: LedgerLogError | None = None
        self._doubts = 0
        self._is_closed = False
        self._changed = trio.Event()

    # --- for the owner ---------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a usable connection."""
        return self._session_id is not None

    @property
    def is_refused(self) -> bool:
        """Whether we refused the last store that answered, or it refused us."""
        return self._refusal is not None

    @property
    def session_id(self) -> int | None:
        """The session of the usable connection; None while there is none."""
        return self._session_id

    @property
    def acl(self) -> Acl:
        """The list of each znode that is made now."""
        return self._acl

    def use(self, session_id: int, check: CheckZnode | None, acl: Acl) -> None:
        """Say that there is a usable connection, for this session.

        Args:
            session_id: The session.
            check: The step that each write begins with; None for no such step.
            acl: The list of each znode that is made.
        """
        self._session_id, self._check, self._acl, self._refusal = session_id, check, acl, None
        self._tell()

    def rest(self) -> None:
        """Say that there is no usable connection."""
        self._session_id = None
        self._tell()

    def doubt(self) -> None:
        """Stop using the connection until it has shown again which store it leads to.

        If an answer came over the connection and was not returned yet, the request is sent again.
        """
        self._doubts += 1
        self.rest()

    def refuse(self, refusal: LedgerLogError) -> None:
        """Say that the wrong store answers, or that the store refuses us.

        Every call raises such an error until ``use`` is called.
        """
        self._refusal = refusal
        self.rest()

    def _tell(self) -> None:
        """Wake all tasks that wait for a change of the connection or the session."""
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def close(self) -> None:
        """Make every call raise MetadataUnavailable from now on, including the calls under way."""
        self._is_closed = True
        self.rest()

    async def wait_news(self) -> None:
        """Return when the connection or the session has changed.

        Raises:
            MetadataUnavailable: The conversation is closed.
        """
        await self._changed.wait()
        self.check_open()

    # --- asking ----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise MetadataUnavailable if the conversation is closed, or was opened before a fork."""
        if self._is_closed:
            raise MetadataUnavailable(f"the metadata store on {self.hosts} is closed")
        if os.getpid() != self._process:
            raise MetadataUnavailable(
                f"the metadata store on {self.hosts} was opened before a fork; open it again in the child"
            )

    async def checkpoint(self) -> None:
        """Pass a checkpoint, then ``check_open``."""
        await trio.lowlevel.checkpoint()
        self.check_open()

    async def within_deadline(self, work: Callable[[Attempt], Awaitable[T]]) -> T:
        """Return the result of ``work``, within ``limits.METADATA_TIMEOUT_S``.

        Args:
            work: Gets an Attempt, and passes it to ``write``.

        Raises:
            MetadataOutcomeUnknown: The deadline came after a write had been sent.
            MetadataUnavailable: The deadline came, and nothing happened.
        """
        await self.checkpoint()
        attempt = Attempt()
        with trio.move_on_after(limits.METADATA_TIMEOUT_S):
            return await work(attempt)
        trouble = self.silence()
        if attempt.is_in_doubt:
            raise MetadataOutcomeUnknown(f"{trouble}; the write may or may not have been applied")
        raise MetadataUnavailable(f"{trouble}; nothing happened")

    def silence(self) -> str:
        """Return a message: no server answered, and the reason if it is known."""
        why = f" ({self.trouble})" if self.trouble else ""
        return f"no ZooKeeper server of {self.hosts} answered within {limits.METADATA_TIMEOUT_S:g} s{why}"

    def denial(self, znode: str) -> LedgerLogError:
        """Return the error for a call that the access control list of a znode does not allow."""
        if not self.login.is_somebody:
            return ZooKeeperKnowsNot(
                f"ZooKeeper ({self.hosts}) does not let a client without credentials use {znode}: name a "
                f"credentials file with --zk-auth-file or LEDGERLOG_ZK_AUTH_FILE. Nothing was done"
            )
        return ZooKeeperDenies(
            f"ZooKeeper ({self.hosts}) does not let {self.login} do this to {znode}: the user or the "
            "password is wrong, or the znode's list lacks the right. 'ledgerlog metadata secure' sets the "
            "lists. Nothing was done"
        )

    def _answer_of(self, call: ZookeeperCall) -> Any:
        """Return the result of a call; a denial is raised as an error of the capability."""
        try:
            return call.result()
        except Denied as denied:
            raise self.denial(denied.znode) from denied.__cause__
        except UnknownIdentity as unknown:
            raise ZooKeeperKnowsNot(
                f"ZooKeeper ({self.hosts}) knows no identity of {self.login}, or does not know a scheme that "
                "the list names. Nothing was done"
            ) from unknown.__cause__

    async def _wait_connected(self) -> None:
        while self._session_id is None:
            if self._refusal is not None:
                raise fresh(self._refusal)
            await self.wait_news()

    async def _answers(self, calls: Sequence[ZookeeperCall]) -> None:
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

    async def read(self, make: Callable[[], ZookeeperCall]) -> Any:
        """Return the answer to a request that changes nothing, or ``Refused``.

        Args:
            make: Makes the request; it is called again for each attempt.
        """
        return (await self.read_all([make]))[0]

    async def read_all(self, makes: Sequence[Callable[[], ZookeeperCall]]) -> list[Any]:
        """Return the answers to requests that may be sent twice, in their order."""
        answers: list[Any] = []
        while len(answers) < len(makes):
            await self._wait_connected()
            doubts = self._doubts
            calls = [make() for make in makes[len(answers) : len(answers) + _PIPELINE]]
            await self._answers(calls)
            try:
                found = [self._answer_of(call) for call in calls]
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
        """Send a transaction and return the server's answer. Send it again if it surely did nothing.

        Args:
            operations: The transaction.
            attempt: Records whether the write is in doubt if the deadline comes.
            session: The session that it must be sent in; None for any.
            is_repeatable: Whether to send it again if its answer was lost.

        Raises:
            SessionOver: ``session`` is over. Nothing was written.
            MetadataOutcomeUnknown: The answer was lost, and ``is_repeatable`` is false.
            MetadataUnavailable: Nothing was written, unless ``is_repeatable``.
        """
        while True:
            if self._refusal is None and session is not None and session.state is SessionState.LOST:
                raise SessionOver
            await self._wait_connected()
            first = [] if self._check is None else [self._check]
            number = None if session is None else session.number
            call = Transaction([*first, *operations], session_id=number, acl=self._acl)
            for operation in operations:
                if isinstance(operation, MakeZnode) and hides_digests(self._acl):
                    raise self.denial(operation.znode)
            try:
                await self._answers([call])
            except trio.Cancelled:
                # The caller was cancelled, or its deadline has come. If the call was not sent yet, it never
                # will be.
                attempt.is_in_doubt = not call.revoke()
                raise
            try:
                result: list[int] | Refused = self._answer_of(call)
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
