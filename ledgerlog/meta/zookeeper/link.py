"""One kazoo client of a ZooKeeper ensemble, its threads, and the hand-over to the trio loop.

Only this module and ``calls`` know kazoo. A ``KazooLink`` owns one ``KazooClient`` with its three threads.
The loop gives it ``ZookeeperCall`` objects. kazoo's connection thread sends them, reads the answers, and
hands each over with one ``run_sync_soon``. Changes of the connection and watch events come in the same way,
in the order in which the thread saw them. If the server sent an event before an answer, the loop sees the
event first. When kazoo is about to write a call, the call checks the session and decides whether
it may be sent (``calls``).

**The lease.** The server gives a session up if it has not heard from the client for the negotiated timeout.
When the client gets an answer, it knows that the server received the request after it was sent. So
``lease_until_ns`` is the boot-clock time at which the last answered request or ping was sent, plus the
timeout. The owner treats its session as alive until then and no longer. The boot-time clock continues while
the process is stopped or the machine sleeps. "The server" here means the leader. But a follower that is cut
off from the leader still answers pings for some ticks, so nothing may depend on the lease alone
(docs/METADATA.md).

**Additions to kazoo** (2.11; these classes use its internals, hence the pin in pyproject):

* Persistent recursive watches (opcode 106, ZooKeeper 3.6) and their events. kazoo lacks them (its pull
  request 715). The watches belong to the connection, so the link's owner adds them again on each new
  connection.
* No zxid (transaction id) is sent on connecting. If it were sent, a server could refuse the connection
  because of it, and would only close the socket. Then it would be unknown whether the server lags behind or
  the ensemble was replaced. So the newest transaction of each session is kept here (``zxid_of``), and the
  store compares it after a sync.
* A connection attempt has a bound well below the session's timeout. kazoo would wait for one silent host for
  the session's whole life, and then the session would be over before it tries the next host.
* Pauses between attempts stay below half a second; kazoo's own pauses grow to an hour.
* TLS through our own context (``login``). kazoo only asks the socket whether there is something to read. So
  it would not read data that OpenSSL has already decrypted.
* A login that a server refuses is distinguished from a connection that broke during the login.
* ``cut`` shuts the socket, so that a stop does not wait for a silent server (kazoo issues 68 and 241: stop()
  that hangs).
* An answer out of order ends the connection, not kazoo's thread. The session goes on in the next connection.
  (A server can leave out an answer if two clients use one session.)

If kazoo meets an error that it cannot handle (an unknown error code), its thread ends for good, and the link
reports ``Ended``. The owner then starts a new link.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire
from kazoo.protocol.connection import AUTH_XID, PING_XID, ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from ledgerlog.meta.zookeeper.calls import ZookeeperCall
from ledgerlog.meta.zookeeper.clock import NS, boot_clock_ns
from ledgerlog.meta.zookeeper.login import NOBODY, Login, tls_context
from ledgerlog.model.credentials import TLS

logger = logging.getLogger(__name__)

_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
"""kazoo's log. Only its errors are shown, because kazoo warns of every failed attempt to connect. The store
logs once if an operator must act."""
_kazoo_logger.setLevel(logging.ERROR)

_SESSIONS_KEPT = 8
"""How many sessions ``zxid_of`` remembers."""

_CONNECT_TIMEOUT_MIN_S, _CONNECT_TIMEOUT_MAX_S = 0.2, 2.0

_TLS_FAILURES_PER_HOST = 2
"""We say that TLS is refused if this many handshakes for each host failed, and none succeeded."""

_LOGIN_BREAKS_MAX = 3
"""We say that a SASL login is refused if this many connections in a row broke during the login.

An old server does not say that the login failed: it ends the connection. A server that dies also ends the
connection.
"""

_NEEDS_SASL = -124
"""The error with which a server answers a client that must log in by SASL but has not done so."""


@attrs.frozen
class Connected:
    """There is a connection, in this session."""

    session_id: int


@attrs.frozen
class Suspended:
    """The connection is lost."""


@attrs.frozen
class Expired:
    """The server says that the session is over."""


@attrs.frozen
class Ended:
    """kazoo's thread has ended; this link makes no more connections."""

    why: str


@attrs.frozen
class LoginRefused:
    """The servers and this process did not identify each other."""

    why: str


@attrs.frozen
class Trouble:
    """An attempt to connect failed."""

    why: str


@attrs.frozen
class Changed:
    """A znode that a watch covers was made, set or deleted."""

    znode: str


Event = Connected | Suspended | Expired | Ended | LoginRefused | Trouble | Changed


class KazooLink:
    """One kazoo client.

    ``start`` and ``stop`` block. ``start`` blocks only for a moment; call ``stop`` in a worker thread.
    ``submit`` does not block.

    Args:
        hosts: The servers: "h1:2181,h2:2181".
        timeout_s: The session timeout to ask for, in seconds.
        login: The identity of this process.
        on_event: Called in the loop with each event.
    """

    def __init__(
        self,
        hosts: str,
        timeout_s: float,
        *,
        login: Login = NOBODY,
        on_event: Callable[[Event], None],
    ) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._on_event = on_event
        self._is_stopping = False
        self._is_refused = False
        self.session_id: int | None = None
        self._lease: tuple[int | None, int] = (None, 0)
        """A session, and the boot-clock time until which the server surely keeps it."""
        self.outstanding: set[ZookeeperCall] = set()
        """The submitted calls that kazoo has not answered and not given up."""
        self._zxids: dict[int, int] = {}
        """For each of the last sessions, the highest transaction id that came with an answer."""
        self.timeout_ns = 0
        """The session timeout that was negotiated."""
        host_count = hosts.count(",") + 1
        connect_s = min(max(timeout_s / 3 / host_count, _CONNECT_TIMEOUT_MIN_S), _CONNECT_TIMEOUT_MAX_S)
        handler = _Handler(connect_s, login.tls)
        retry = KazooRetry(
            max_tries=-1, delay=0.05, backoff=2, max_jitter=0.5, max_delay=0.4, sleep_func=handler.sleep_func
        )
        self._client = _Client(
            hosts=hosts,
            timeout=timeout_s,
            handler=handler,
            connection_retry=retry,
            auth_data=[] if login.auth is None else login.auth.auth_data,
            logger=_kazoo_logger,
        )
        self._client._connection = _Connection(
            self,
            self._client,
            retry.copy(),
            logger=_kazoo_logger,
            sasl_options=None if login.auth is None else login.auth.sasl_options,
            tls_failures_max=0 if login.tls is None else _TLS_FAILURES_PER_HOST * host_count,
        )
        self._client.add_listener(self._on_state)

    def zxid_of(self, session_id: int) -> int:
        """Return the highest transaction id that came with an answer in this session; 0 if none did.

        An answer shows the effects of all transactions up to its id.
        """
        return self._zxids.get(session_id, 0)

    @property
    def credentials(self) -> tuple[int, bytes] | None:
        """Session id and password while connected: with them, another client can join or end the session."""
        found: tuple[int, bytes] | None = self._client.client_id
        return found

    def lease_until_ns(self, session_id: int) -> int:
        """Return the boot-clock time until which the server surely keeps the session.

        The time is 0 if the session is not the present one. kazoo's thread may have the next session before
        the loop knows that the old one is over.
        """
        present, until_ns = self._lease
        return until_ns if present == session_id else 0

    def start(self) -> None:
        """Begin to connect, and keep trying until ``stop``. If that cannot begin, ``Ended`` says why."""
        try:
            self._client.start_async()
        except (OSError, RuntimeError) as error:  # Too many open files, or too many threads.
            with contextlib.suppress(Exception):  # kazoo has begun only some of its threads.
                self.stop()
            self.failed(str(error))
            self.post(self._on_event, Ended(f"it cannot begin: {error}"))

    def stop(self) -> None:
        """End the session, if a server can be told now, and end every thread. See also ``cut``."""
        self._is_stopping = True
        try:
            self._client.stop()
        finally:
            with contextlib.suppress(Exception):  # kazoo raises if its connection has not stopped.
                self._client.close()

    def cut(self) -> None:
        """End the connection to a server at once.

        A ``stop`` that waits for the server's answer then stops waiting.
        """
        current = self._client._connection._socket
        if current is not None:
            with contextlib.suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)

    def submit(self, call: ZookeeperCall) -> None:
        """Send a call as soon as there is a connection."""
        call.carrier = self
        self.outstanding.add(call)
        self._client._call(call, call)

    def give_up_unsent(self) -> None:
        """Fail every submitted call that was not sent.

        Call this when a session has expired. kazoo then drops its queue, and would never answer a call that
        was queued at that moment.
        """
        for call in list(self.outstanding):
            if call.revoke():
                call.set_exception(kazoo_errors.ConnectionLoss())

    # --- in kazoo's thread -----------------------------------------------------------------------

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``function`` in the loop, unless the loop has ended."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *args)

    def heard(self, sent_ns: int) -> None:
        """Extend the lease: the server has answered something that was sent at ``sent_ns``."""
        session_id, until_ns = self._lease
        self._lease = session_id, max(until_ns, sent_ns + self.timeout_ns)

    def saw(self, session_id: int, zxid: int) -> None:
        """Note that an answer in this session came with this transaction id."""
        before = self._zxids.pop(session_id, 0)
        self._zxids[session_id] = max(before, zxid)
        if len(self._zxids) > _SESSIONS_KEPT:
            del self._zxids[next(iter(self._zxids))]

    def changed(self, znode: str) -> None:
        """Report a watch event."""
        self.post(self._on_event, Changed(znode))

    def failed(self, why: str) -> None:
        """Report that an attempt to connect failed."""
        self.post(self._on_event, Trouble(why))

    def refused(self, why: str) -> None:
        """Report that the servers and this process do not identify each other."""
        self._is_refused = True
        self.post(self._on_event, LoginRefused(why))

    def thread_ended(self) -> None:
        """Report that kazoo's thread ends, unless it was asked to end or its end is reported already.

        kazoo itself says nothing of this while there is no connection.
        """
        if self._is_stopping or self._is_refused:
            return
        self.session_id = None
        # If a call's answer made the thread fail, that call is no longer in any of kazoo's queues.
        for call in list(self.outstanding):
            call.set_exception(kazoo_errors.ConnectionLoss())
        self.post(self._on_event, Ended("kazoo ended its connection"))

    def opened(self, session_id: int, timeout_ns: int, asked_ns: int) -> None:
        """Begin a lease: there is a connection.

        The server confirmed or made the session after ``asked_ns``.
        """
        self.timeout_ns = timeout_ns
        self._lease = session_id, asked_ns + timeout_ns

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.session_id = self._client._session_id
            self.post(self._on_event, Connected(self._client._session_id))
        elif state == KazooState.SUSPENDED:
            self.post(self._on_event, Suspended())
        elif self._client._state == KeeperState.EXPIRED_SESSION:
            self.session_id = None
            self.post(self._on_event, Expired())
        elif self._client._state == KeeperState.AUTH_FAILED:
            self.session_id = None  # ``_Connection`` has reported why.


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    def __init__(self, connect_timeout_s: float, tls: TLS | None) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls

    def create_connection(self, *args: Any, **options: Any) -> Any:
        options["timeout"] = self._connect_timeout_s
        connection = super().create_connection(*args, **options)
        if self._tls is None:
            return connection
        try:
            connection.settimeout(self._connect_timeout_s)
            return tls_context(self._tls).wrap_socket(connection, server_hostname=options["hostname"])
        except BaseException:
            connection.close()
            raise

    def select(self, readable: Any, *others: Any) -> Any:
        decrypted = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
        if decrypted:
            # The other sockets may be readable, too: look at them without waiting.
            ready, *rest = super().select(readable, *others[:-1], 0.0)
            return [*decrypted, *(one for one in ready if one not in decrypted)], *rest
        return super().select(readable, *others)


class _Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    @property
    def last_zxid(self) -> int:
        """The transaction id that is sent to a server on connecting; always 0."""
        return 0

    @last_zxid.setter
    def last_zxid(self, zxid: int) -> None:
        pass


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    def __init__(
        self,
        link: KazooLink,
        client: _Client,
        retry: KazooRetry,
        *,
        logger: logging.Logger,
        sasl_options: dict[str, str] | None,
        tls_failures_max: int,
    ) -> None:
        super().__init__(client, retry, logger=logger, sasl_options=sasl_options)
        self._link = link
        self._tls_failures_max = tls_failures_max
        self._tls_failures = 0
        self._login_breaks = 0
        self._proves_itself = False
        """Whether an answer to an ``Auth`` request is awaited. kazoo sends them only while it connects."""
        self._pings_sent_ns: deque[int] = deque()
        """When the unanswered pings of this connection were sent; answers come in order."""

    def zk_loop(self) -> None:
        """kazoo's thread."""
        try:
            super().zk_loop()
        finally:
            self._link.thread_ended()

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        asked_ns = boot_clock_ns()
        if isinstance(request, wire.Connect):
            self._pings_sent_ns.clear()
        self._proves_itself = isinstance(request, wire.Auth)
        try:
            result = super()._invoke(timeout, request, xid)
        finally:
            self._proves_itself = False
        if isinstance(request, wire.Connect) and result[0].time_out > 0:
            opened = result[0]
            self._link.opened(opened.session_id, opened.time_out * NS // 1000, asked_ns)
        return result

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        try:
            timeouts = super()._connect(host, hostip, port)
        except AuthFailedError as refused:
            self._refused(f"{host}:{port} refuses the login{_reason(refused)}")
            raise
        except Exception as failure:
            broken = _tls_error(failure)
            if broken is None:
                self._link.failed(f"{host}:{port}: {failure}")
                raise
            self._link.failed(f"TLS with {host}:{port} fails: {broken}")
            self._tls_failures += 1
            if self._tls_failures >= self._tls_failures_max:
                self._refused(f"TLS with {host}:{port} fails: {broken}")
                raise AuthFailedError from failure
            raise
        self._tls_failures = self._login_breaks = 0
        return timeouts

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except AuthFailedError as failure:
            if not isinstance(failure.__cause__, ConnectionDropped):
                raise
            self._login_breaks += 1
            if self._login_breaks >= _LOGIN_BREAKS_MAX:
                raise
            raise failure.__cause__ from None

    def _refused(self, why: str) -> None:
        self._link.refused(why)

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings_sent_ns.append(boot_clock_ns())
        super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        if header.err == _NEEDS_SASL:
            self._refused("the servers ask for a login, but this process has none that they accept")
            raise AuthFailedError
        if header.xid == AUTH_XID and not self._proves_itself:
            # kazoo would give it to the call that has waited longest.
            raise ConnectionDropped("an answer out of order: to a proof that was not sent")
        if header.xid == PING_XID and self._pings_sent_ns:
            self._link.heard(self._pings_sent_ns.popleft())
        if header.zxid > 0 and self.client._session_id is not None:
            self._link.saw(self.client._session_id, header.zxid)
        return header, buffer, offset

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        waiting = self.client._pending
        if not waiting or header.xid != waiting[0][2]:
            # The calls keep their places, so kazoo gives them up as it does when a connection breaks.
            raise ConnectionDropped(f"an answer out of order: to request {header.xid}")
        return super()._read_response(header, buffer, offset)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = wire.Watch.deserialize(buffer, offset)
        if event.path:
            self._link.changed(event.path)


def _tls_error(failure: BaseException) -> str | None:
    """Return the TLS error of a failed attempt to connect; None if the attempt failed for another reason."""
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is refused: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return (cause.reason or str(cause)).replace("_", " ").lower()
        cause = cause.__cause__ or cause.__context__
    return None


def _reason(refused: BaseException) -> str:
    cause = refused.__cause__
    return f" ({cause})" if cause is not None and str(cause) else ""
