"""kazoo's half: one client of a ZooKeeper ensemble, its threads, and the hand-over to the trio loop.

Only this module and ``calls`` know kazoo. A ``KazooLink`` owns one ``KazooClient`` with its three threads.
The loop gives it ``ZookeeperCall`` objects. kazoo's connection thread sends them, reads the answers, and
hands each over with one ``run_sync_soon``. Changes of the connection and watch events come in the same way,
in the order in which the thread saw them. If the server sent an event before an answer, the loop sees the
event first. Each call decides when it is written whether it is sent, depending on the session (``calls``).

**The lease.** The server gives a session up if it has not heard from the client for the negotiated timeout.
When the client gets an answer, it knows that the server heard from it no earlier than the moment of sending.
Hence ``lease_until_ns``: the boot-clock time at which the last answered request or ping was sent, plus the
timeout. The owner believes in its session no longer than that. The boot-time clock runs on while the process
is stopped or the machine sleeps. "The server" here means the leader. But a follower that is cut off from the
leader still answers pings for some ticks, so nothing may depend on the lease alone (docs/METADATA.md).

**Additions to kazoo** (2.11; these classes use its internals, hence the pin in pyproject):

* Persistent recursive watches (opcode 106, ZooKeeper 3.6) and their events. kazoo lacks them (its pull
  request 715). They belong to the connection, so the link's owner adds them again on each new connection.
* No zxid is sent on connecting. If it were, a server could refuse the connection because of it, and would
  only close the socket. You could not see whether the server lags behind or the ensemble was replaced. So
  the newest transaction of each session is kept here (``zxid_of``), and the store compares it after a sync.
* A connection attempt has a bound well below the session's timeout. kazoo would wait for one silent host for
  the session's whole life, and would reach a live host later in the list too late.
* Pauses between attempts stay below half a second; kazoo's own grow to an hour.
* ``cut`` shuts the socket, so that a stop does not wait for a silent server (kazoo issues 68 and 241: stop()
  that hangs).

If kazoo meets an error that it cannot handle (an unknown error code, an answer out of order), its thread ends
for good, and the link reports ``Ended``. The owner then starts a new link.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from ledgerlog.meta.zookeeper.calls import ZookeeperCall
from ledgerlog.meta.zookeeper.clock import NS, boot_clock_ns

logger = logging.getLogger(__name__)

_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
"""kazoo warns of every failed attempt to connect. The store logs once if an operator must act."""
_kazoo_logger.setLevel(logging.ERROR)

_SESSIONS_KEPT = 8
"""How many sessions ``zxid_of`` remembers."""

_CONNECT_TIMEOUT_MIN_S, _CONNECT_TIMEOUT_MAX_S = 0.2, 2.0


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
    """kazoo's thread has ended; this link connects no more."""

    why: str


@attrs.frozen
class Changed:
    """A znode that a watch covers was made, set or deleted."""

    znode: str


Event = Connected | Suspended | Expired | Ended | Changed


class KazooLink:
    """One kazoo client.

    ``start`` and ``stop`` block. ``start`` blocks only for a moment; call ``stop`` in a worker thread.
    ``submit`` does not block.

    Args:
        hosts: The servers: "h1:2181,h2:2181".
        timeout_s: The session timeout to ask for, in seconds.
        on_event: Called in the loop with each event.
    """

    def __init__(self, hosts: str, timeout_s: float, *, on_event: Callable[[Event], None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._on_event = on_event
        self._is_stopping = False
        self.session_id: int | None = None
        self._lease: tuple[int | None, int] = (None, 0)
        """A session, and the boot-clock time until which the server surely keeps it."""
        self.outstanding: set[ZookeeperCall] = set()
        """The calls that were submitted, and were neither answered nor given up by kazoo."""
        self._zxids: dict[int, int] = {}
        """For each of the last sessions, the highest transaction id that came with an answer."""
        self.timeout_ns = 0
        """The session timeout that was negotiated."""
        host_count = hosts.count(",") + 1
        connect_s = min(max(timeout_s / 3 / host_count, _CONNECT_TIMEOUT_MIN_S), _CONNECT_TIMEOUT_MAX_S)
        handler = _Handler(connect_s)
        retry = KazooRetry(
            max_tries=-1, delay=0.05, backoff=2, max_jitter=0.5, max_delay=0.4, sleep_func=handler.sleep_func
        )
        self._client = _Client(
            hosts=hosts,
            timeout=timeout_s,
            handler=handler,
            connection_retry=retry,
            logger=_kazoo_logger,
        )
        self._client._connection = _Connection(self, self._client, retry.copy(), logger=_kazoo_logger)
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

        It is 0 for a session that is not the present one. kazoo's thread may have the next session before the
        loop knows that this one is over.
        """
        present, until_ns = self._lease
        return until_ns if present == session_id else 0

    def start(self) -> None:
        """Begin to connect, and keep trying until ``stop``."""
        self._client.start_async()

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

        Call it when a session has expired. kazoo then drops its queue, and would never answer a call that was
        queued in the same moment.
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
        elif not self._is_stopping:
            self.session_id = None
            # If a call's answer made the thread fail, that call is in none of kazoo's queues any more.
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
    @property
    def last_zxid(self) -> int:
        """The transaction id that is sent to a server on connecting; always 0."""
        return 0

    @last_zxid.setter
    def last_zxid(self, zxid: int) -> None:
        pass


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    def __init__(
        self, link: KazooLink, client: _Client, retry: KazooRetry, *, logger: logging.Logger
    ) -> None:
        super().__init__(client, retry, logger=logger)
        self._link = link
        self._pings_sent_ns: deque[int] = deque()
        """When the unanswered pings of this connection were sent; answers come in order."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        asked_ns = boot_clock_ns()
        if isinstance(request, wire.Connect):
            self._pings_sent_ns.clear()
        result = super()._invoke(timeout, request, xid)
        if isinstance(request, wire.Connect) and result[0].time_out > 0:
            opened = result[0]
            self._link.opened(opened.session_id, opened.time_out * NS // 1000, asked_ns)
        return result

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings_sent_ns.append(boot_clock_ns())
        super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        if header.xid == PING_XID and self._pings_sent_ns:
            self._link.heard(self._pings_sent_ns.popleft())
        if header.zxid > 0 and self.client._session_id is not None:
            self._link.saw(self.client._session_id, header.zxid)
        return header, buffer, offset

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = wire.Watch.deserialize(buffer, offset)
        if event.path:
            self._link.changed(event.path)
