"""kazoo's half: one client of a ZooKeeper ensemble, its threads, and the hand-over to the trio loop.

Nothing outside this module knows kazoo. A ``Link`` owns one ``KazooClient`` with its three threads. The loop
gives it ``Call`` objects; kazoo's connection thread sends them, reads the answers, and hands each over
with one ``run_sync_soon``. Changes of the connection and watch events come the same way, in the order in
which the thread saw them, so an event that the server sent before an answer is seen before it.

**What is sent, and when.** A call is written to the socket in ``Call.serialize``, which kazoo calls in the
connection thread at that moment, and which decides there, under a lock:

* a call that was *revoked* (its caller has given up) is not sent. kazoo keeps what is submitted while
  there is no connection and would send it minutes later, when its caller has long been told that
  nothing happened;
* a call that is *bound* to a session is sent in that session or not at all. After an expiry kazoo opens
  a new session silently, and whatever was queued would go out in it.

Since the request's place in kazoo's queue cannot be taken back, what goes out instead is a
transaction of one check that fails on every server.

So of a call that failed it is always known whether it was sent (``NotSent``: nothing happened) or not
answered (``AnswerLost``: the outcome is unknown).

**The lease.** The server gives a session up when it has not heard from the client for the negotiated
timeout. It heard at the earliest when something was sent that it has answered, hence
``lease_until_ns``: the boot-clock time of the sending of the last thing answered (request or ping), plus the
timeout. The owner believes in its session no longer than that. The boot-time clock runs on while the
process is stopped or the machine sleeps.

**Additions to kazoo** (2.11, whose internals these classes use; hence the pin in pyproject):

* Persistent recursive watches (opcode 106, ZooKeeper 3.6) and their events, which kazoo lacks (its pull
  request 715). They belong to the connection: who owns the link adds them again on each new one.
* The highest zxid ever seen is shown to each server on connecting, also for a new session, where kazoo
  begins again at 0: a server that lags behind what was read before refuses the connection, so what a client
  reads never goes back.
* A connection attempt has a bound well below the session's timeout. kazoo waits for one silent host for
  as long as the session lives, so that a live host behind it in the list is reached too late.
* Pauses between attempts stay below half a second; kazoo's own grow to an hour.
* ``cut`` shuts the socket, so that a stop does not wait for a server that says nothing (kazoo issues 68
  and 241: stop() that hangs).

kazoo reports that its thread has ended for good (``Ended``) after an error that it does not know how to live
with: an unknown error code, an answer out of turn. The owner starts a new link then.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs
import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from ledgerlog.errors import MetadataUnavailable
from ledgerlog.meta.zookeeper.plan import (
    NO_VERSION,
    CheckZnode,
    DeleteZnode,
    MakeZnode,
    Refusal,
    SetZnode,
    ZnodeOperation,
)

logger = logging.getLogger(__name__)

_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
"""kazoo warns of every failed attempt to connect. What an operator needs to know the store says, once."""
_kazoo_logger.setLevel(logging.ERROR)

NS = 1_000_000_000
_EPHEMERAL = 1
_CONNECT_TIMEOUT_MIN_S, _CONNECT_TIMEOUT_MAX_S = 0.2, 2.0


def boot_clock_ns() -> int:
    """Nanoseconds since the machine's boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


# --- what comes back ------------------------------------------------------------------------------


@attrs.frozen
class Stat:
    """What the server says of a znode besides its value."""

    version: int
    child_count: int
    is_ephemeral: bool


@attrs.frozen
class Refused:
    """A transaction that did nothing: its step ``index`` was the first one that the server refused."""

    index: int
    refusal: Refusal


class NotSent(Exception):
    """The call was not sent and never will be: nothing happened."""


class WrongSession(Exception):
    """The session that the call was bound to is over: nothing happened."""


class AnswerLost(Exception):
    """The call was sent and its answer did not come: for a write, the outcome is unknown."""


class Unsupported(Exception):
    """The server does not know the request."""


_REFUSALS: dict[type[Exception], Refusal] = {
    kazoo_errors.NoNodeError: Refusal.NO_NODE,
    kazoo_errors.NodeExistsError: Refusal.NODE_EXISTS,
    kazoo_errors.BadVersionError: Refusal.BAD_VERSION,
    kazoo_errors.NotEmptyError: Refusal.NOT_EMPTY,
    kazoo_errors.NoChildrenForEphemeralsError: Refusal.PARENT_IS_EPHEMERAL,
}

_NEVER_DONE = (
    kazoo_errors.SessionMovedError,
    kazoo_errors.ThrottledOpError,
    kazoo_errors.SessionExpiredError,
)
"""Answers of a server that has not done what it was asked for, and may do it when asked again."""

_UNCERTAIN = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.ConnectionClosedError,  # Which kazoo derives from SessionExpiredError, and says by itself.
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.SystemZookeeperError,
    kazoo_errors.RuntimeInconsistency,
    kazoo_errors.DataInconsistency,
)


# --- requests -------------------------------------------------------------------------------------


class Call:
    """One request, and its answer. Made in the loop; sent and answered in kazoo's thread, once."""

    type: ClassVar[int]
    session_id: int | None = None
    """The session that it is bound to, None for any."""

    def __init__(self) -> None:
        self.deliver: Callable[[Call], None] | None = None
        """Runs in the loop with this call once it is answered or has failed; ``result`` says how."""
        self._lock = threading.Lock()
        self._is_revoked = False
        self._is_sent = False
        self._is_finished = False
        self._met_wrong_session = False
        self._link: Link | None = None
        self._sent_ns = 0
        self._answer: Any = None
        self._error: BaseException | None = None

    def revoke(self) -> bool:
        """Give it up; whether it was not sent, and so never will be."""
        with self._lock:
            self._is_revoked = True
            return not self._is_sent

    def result(self) -> Any:
        """The answer of a call that was delivered.

        NotSent and WrongSession: nothing happened. AnswerLost: it is not known. Unsupported. And
        MetadataUnavailable where the server refuses for a reason that asking again does not change."""
        error = self._error
        if self._met_wrong_session:
            raise WrongSession from error
        if error is None:
            if not isinstance(self._answer, Exception):
                return self._answer
            error = self._answer
        if not self._is_sent:
            raise NotSent from error
        if isinstance(error, _UNCERTAIN) or not isinstance(error, kazoo_errors.ZookeeperError):
            raise AnswerLost from error
        if isinstance(error, _NEVER_DONE):
            raise NotSent from error
        if isinstance(error, kazoo_errors.UnimplementedError):
            raise Unsupported from error
        refusal = _REFUSALS.get(type(error))
        if refusal is not None:
            return Refused(0, refusal)
        raise MetadataUnavailable(
            f"the ZooKeeper server refused ({type(error).__name__}: {type(error).__doc__}); nothing happened"
        ) from error

    # --- in kazoo's thread: what kazoo asks of a request -----------------------------------------

    def _body(self) -> bytes:
        raise NotImplementedError

    def _withheld_body(self) -> bytes:
        return self._body()

    def _read(self, buffer: bytes, offset: int) -> Any:
        raise NotImplementedError

    def serialize(self) -> bytes:
        link = self._link
        assert link is not None
        with self._lock:
            self._met_wrong_session = self.session_id not in (None, link.session_id)
            if self._is_revoked or self._met_wrong_session:
                return self._withheld_body()
            self._is_sent = True
        self._sent_ns = boot_clock_ns()
        return self._body()

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        return self._read(buffer, offset)

    # --- in kazoo's thread: what kazoo asks of a result ------------------------------------------

    def set(self, answer: Any) -> None:
        self._finish(answer, None, answered=True)

    def set_exception(self, error: BaseException) -> None:
        # What the server refused it has heard; what kazoo gave up it may not have.
        answered = isinstance(error, kazoo_errors.ZookeeperError) and not isinstance(
            error, kazoo_errors.ConnectionLoss | kazoo_errors.SessionExpiredError
        )
        self._finish(None, error, answered=answered)

    def _finish(self, answer: Any, error: BaseException | None, *, answered: bool) -> None:
        link = self._link
        assert link is not None
        with self._lock:
            # kazoo may give up a second time what was given up when its thread ended.
            if self._is_finished:
                return
            self._is_finished = True
            self._answer, self._error = answer, error
            if error is not None and not self._is_sent:
                # kazoo may say so and yet keep it in its queue; what has failed unsent is never sent.
                self._is_revoked = True
        link.outstanding.discard(self)
        if answered and self._is_sent:
            link.heard(self._sent_ns)
        if self.deliver is not None:
            link.post(self.deliver, self)


class Get(Call):
    """Answer: the value and its Stat."""

    type = wire.GetData.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self._request = wire.GetData(znode, None)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> tuple[bytes, Stat]:
        value, stat = wire.GetData.deserialize(buffer, offset)
        return bytes(value or b""), _stat(stat)


class Exists(Call):
    """Answer: the Stat, or None where there is no such znode."""

    type = wire.Exists.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self._request = wire.Exists(znode, None)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> Stat | None:
        stat = wire.Exists.deserialize(buffer, offset)
        return None if stat is None else _stat(stat)


class Children(Call):
    """Answer: the names of the znodes directly below, in no order."""

    type = wire.GetChildren.type

    def __init__(self, znode: str) -> None:
        super().__init__()
        self._request = wire.GetChildren(znode, None)

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _read(self, buffer: bytes, offset: int) -> list[str]:
        names: list[str] = wire.GetChildren.deserialize(buffer, offset)
        return names


class Transaction(Call):
    """Answer: the new version for each operation (0 where it has none), or ``Refused``."""

    type = wire.Transaction.type

    def __init__(self, operations: Sequence[ZnodeOperation], *, session_id: int | None = None) -> None:
        super().__init__()
        self.session_id = session_id
        self._request = wire.Transaction([_of_kazoo(operation) for operation in operations])

    def _body(self) -> bytes:
        return bytes(self._request.serialize())

    def _withheld_body(self) -> bytes:
        return bytes(wire.Transaction([wire.CheckVersion("/", NO_VERSION)]).serialize())

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        # kazoo walks over what a transaction gives, to take its chroot off it.
        return [self._read(buffer, offset)]

    def set(self, answer: Any) -> None:
        super().set(answer[0])

    def _read(self, buffer: bytes, offset: int) -> list[int] | Refused | Exception:
        versions = []
        for index, result in enumerate(wire.Transaction.deserialize(buffer, offset)):
            # Steps before the refused one say that they were rolled back, those after it that they were not
            # tried.
            if isinstance(result, kazoo_errors.RolledBackError):
                continue
            if isinstance(result, Exception):
                refusal = _REFUSALS.get(type(result))
                return result if refusal is None else Refused(index, refusal)
            versions.append(getattr(result, "version", 0))
        return versions


class AddWatch(Call):
    """A persistent recursive watch on a znode, there or not, until the connection ends. Answer: None."""

    type = 106
    _RECURSIVE = 1

    def __init__(self, znode: str) -> None:
        super().__init__()
        self._znode = znode

    def _body(self) -> bytes:
        return bytes(wire.write_string(self._znode) + wire.int_struct.pack(self._RECURSIVE))

    def _read(self, buffer: bytes, offset: int) -> None:
        return None


class RemoveWatches(Call):
    """The end of the watches of this connection on a znode. Answer: None."""

    type = 18
    _ANY = 3

    def __init__(self, znode: str) -> None:
        super().__init__()
        self._znode = znode

    def _body(self) -> bytes:
        return bytes(wire.write_string(self._znode) + wire.int_struct.pack(self._ANY))

    def _read(self, buffer: bytes, offset: int) -> None:
        return None


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.numChildren, stat.ephemeralOwner != 0)


def _of_kazoo(operation: ZnodeOperation) -> Any:
    match operation:
        case MakeZnode(znode=znode, value=value, is_ephemeral=is_ephemeral):
            return wire.Create(znode, value, OPEN_ACL_UNSAFE, _EPHEMERAL if is_ephemeral else 0)
        case SetZnode(znode=znode, value=value, version=version):
            return wire.SetData(znode, value, version)
        case DeleteZnode(znode=znode, version=version):
            return wire.Delete(znode, version)
        case CheckZnode(znode=znode, version=version):
            return wire.CheckVersion(znode, version)


# --- the link -------------------------------------------------------------------------------------


@attrs.frozen
class Connected:
    session_id: int


@attrs.frozen
class Suspended:
    pass


@attrs.frozen
class Expired:
    pass


@attrs.frozen
class Ended:
    """kazoo's thread has ended; this link connects no more."""

    why: str


@attrs.frozen
class Changed:
    """Something was made, set or deleted at this znode, which a watch covers."""

    znode: str


Event = Connected | Suspended | Expired | Ended | Changed


class Link:
    """One kazoo client. ``start`` and ``stop`` block (``stop`` for a moment only, but in a worker thread);
    ``submit`` does not. ``on_event`` runs in the loop."""

    def __init__(
        self, hosts: str, timeout_s: float, *, on_event: Callable[[Event], None], zxid_floor: int
    ) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._on_event = on_event
        self._is_stopping = False
        self.session_id: int | None = None
        self.lease_until_ns = 0
        """Until then the server surely keeps the session, on the boot-time clock."""
        self.outstanding: set[Call] = set()
        """Submitted, and neither answered nor given up by kazoo."""
        self.timeout_ns = 0
        """The session timeout that was negotiated."""
        host_count = hosts.count(",") + 1
        connect_s = min(max(timeout_s / 3 / host_count, _CONNECT_TIMEOUT_MIN_S), _CONNECT_TIMEOUT_MAX_S)
        handler = _Handler(connect_s)
        retry = KazooRetry(
            max_tries=-1, delay=0.05, backoff=2, max_jitter=0.5, max_delay=0.4, sleep_func=handler.sleep_func
        )
        self._client = _Client(
            zxid_floor,
            hosts=hosts,
            timeout=timeout_s,
            handler=handler,
            connection_retry=retry,
            logger=_kazoo_logger,
        )
        self._client._connection = _Connection(self, self._client, retry.copy(), logger=_kazoo_logger)
        self._client.add_listener(self._on_state)

    @property
    def zxid(self) -> int:
        """The highest transaction that an answer has shown the effects of."""
        zxid: int = self._client.last_zxid
        return zxid

    @property
    def credentials(self) -> tuple[int, bytes] | None:
        """Session id and password, while connected: who has them can join or end the session."""
        found: tuple[int, bytes] | None = self._client.client_id
        return found

    def start(self) -> None:
        """Begin to connect, and keep at it until ``stop``."""
        self._client.start_async()

    def stop(self) -> None:
        """End the session, if a server can be told now, and every thread. See also ``cut``."""
        self._is_stopping = True
        try:
            self._client.stop()
        finally:
            with contextlib.suppress(Exception):  # "Cannot close connection until it is stopped": it is not.
                self._client.close()

    def cut(self) -> None:
        """End a conversation with a server at once: a stop that waits for its answer waits no longer."""
        current = self._client._connection._socket
        if current is not None:
            with contextlib.suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)

    def submit(self, call: Call) -> None:
        """Send a call as soon as there is a connection."""
        call._link = self
        self.outstanding.add(call)
        self._client._call(call, call)

    def give_up_unsent(self) -> None:
        """What was submitted and not sent ends as not sent. Called when a session has expired: kazoo drops
        its queue then, and what was put there in the same moment would be answered by nobody."""
        for call in list(self.outstanding):
            if call.revoke():
                call.set_exception(kazoo_errors.ConnectionLoss())

    # --- in kazoo's thread -----------------------------------------------------------------------

    def post(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *args)

    def heard(self, sent_ns: int) -> None:
        """The server has answered what was sent at that time."""
        self.lease_until_ns = max(self.lease_until_ns, sent_ns + self.timeout_ns)

    def changed(self, znode: str) -> None:
        self.post(self._on_event, Changed(znode))

    def opened(self, timeout_ns: int, asked_ns: int) -> None:
        """A connection is there, for a session that the server knew or made later than ``asked_ns``."""
        self.timeout_ns = timeout_ns
        self.lease_until_ns = asked_ns + timeout_ns

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.session_id = self._client._session_id
            self.post(self._on_event, Connected(self._client._session_id))
        elif state == KazooState.SUSPENDED:
            self.post(self._on_event, Suspended())
        elif self._client._state == KeeperState.EXPIRED_SESSION:
            self.session_id = None
            self.post(self._on_event, Expired())
        elif not self._is_stopping:
            self.session_id = None
            # The call upon whose answer the thread failed is in none of kazoo's queues any more.
            for call in list(self.outstanding):
                call.set_exception(kazoo_errors.ConnectionLoss())
            self.post(self._on_event, Ended(f"kazoo ended its connection ({self._client._state})"))


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **options: Any) -> Any:
        options["timeout"] = self._connect_timeout_s
        return super().create_connection(*args, **options)


class _Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    def __init__(self, zxid_floor: int, **options: Any) -> None:
        self._zxid = zxid_floor
        super().__init__(**options)

    @property
    def last_zxid(self) -> int:
        return self._zxid

    @last_zxid.setter
    def last_zxid(self, zxid: int) -> None:
        # kazoo begins again at 0 with each session; what was read does not become unread by that.
        self._zxid = max(self._zxid, zxid)


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    def __init__(self, link: Link, client: _Client, retry: KazooRetry, *, logger: logging.Logger) -> None:
        super().__init__(client, retry, logger=logger)
        self._link = link
        self._pings_sent_ns: deque[int] = deque()
        """Of the pings of this connection that are not answered; answers come in order."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        asked_ns = boot_clock_ns()
        if isinstance(request, wire.Connect):
            self._pings_sent_ns.clear()
        result = super()._invoke(timeout, request, xid)
        if isinstance(request, wire.Connect) and result[0].time_out > 0:
            self._link.opened(result[0].time_out * NS // 1000, asked_ns)
        return result

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings_sent_ns.append(boot_clock_ns())
        super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        if header.xid == PING_XID and self._pings_sent_ns:
            self._link.heard(self._pings_sent_ns.popleft())
        return header, buffer, offset

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = wire.Watch.deserialize(buffer, offset)
        if event.path:
            self._link.changed(event.path)
