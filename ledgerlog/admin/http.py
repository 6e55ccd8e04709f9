"""HTTP/1.1 over our streams, by h11. Only this module knows the bytes of HTTP.

A request has a bounded header and a bounded body. Both must be complete within a deadline, and the answer has
a deadline too. At most ``limits.ADMIN_CONNECTIONS`` connections are open. If one more comes, the server
closes the oldest connection that waits for its next request. If no connection waits, the server closes the
new one. So silent connections keep no client out. If bytes do not form an HTTP request, the answer is 400,
and the connection ends.

No data from a peer can end the server. If ``answer`` raises an exception that is not a LedgerLogError, that
is a bug and ends the server.

``ask_http`` is the client side, for commands: it sends one request on its own connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

import attrs
import h11
import trio

from ledgerlog import limits
from ledgerlog.concurrency.complaints import Complaints
from ledgerlog.errors import LedgerLogError, Unauthenticated, WireError
from ledgerlog.model.principal import Principal
from ledgerlog.net.transport import ConnectionLost, Listener, Network, Stream

__all__ = ["Answer", "Asked", "ask_http", "serve_http"]

logger = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"
_READ_BYTES = 4096
_QUERY_FIELDS_MAX = 16


@attrs.frozen
class Asked:
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """The headers by their names in lower case. If a name comes twice, the last value counts."""
    peer: str
    principal: Principal | None
    """The principal that the peer's certificate proves. None: the peer proved nothing by a certificate."""


@attrs.frozen
class Answer:
    """The answer to a request."""

    status: int
    body: bytes = b""
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, status: int, *lines: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
        """Return an answer in plain text, for a person."""
        return cls(status, "".join(f"{line}\n" for line in lines).encode(), headers=headers)


async def serve_http(listener: Listener, answer: Callable[[Asked], Awaitable[Answer]]) -> None:
    """Serve requests until cancelled.

    Args:
        listener: The listener that clients connect to. The caller closes it.
        answer: Called with each request; returns the answer. If it raises a LedgerLogError, the client gets
            503. If it raises another Exception, the client gets 500, and the exception is logged.

    Raises:
        ConnectionLost: The listener broke.
    """
    idle: dict[Stream, None] = {}
    count = 0
    complaints = Complaints(logger)

    async def serve(stream: Stream) -> None:
        nonlocal count
        try:
            await _Connection(stream, answer, idle).run()
        except (ConnectionLost, trio.TooSlowError) as lost:
            logger.debug("client=%s: %s", stream.peer, lost)
        except Unauthenticated as refused:
            complaints.tell(f"client={stream.peer}: {refused}")
        except h11.LocalProtocolError:
            # A fault of this module must not end what it tells of, either.
            logger.exception("client=%s: no answer", stream.peer)
        finally:
            count -= 1
            idle.pop(stream, None)
            stream.close()

    async with trio.open_nursery() as nursery:
        while True:
            stream = await listener.accept()
            if count >= limits.ADMIN_CONNECTIONS:
                oldest = next(iter(idle), None)
                if oldest is None:
                    complaints.tell(f"client={stream.peer}: refused: {count} connections are already open")
                    stream.close()
                    continue
                del idle[oldest]
                oldest.close()
            count += 1
            nursery.start_soon(serve, stream)


async def ask_http(
    network: Network, address: str, method: str, target: str, *, token: str | None = None
) -> Answer:
    """Send a request without a body, and receive the answer.

    Args:
        network: The network to the server.
        address: The address of the server.
        method: The method.
        target: The path, with the query.
        token: A token that proves the identity of the caller. None: send no token; the network may have a
            certificate.

    Returns:
        The answer, with any status. Of its headers only the content type is kept.

    Raises:
        ConnectionLost: No server listens at the address, or the answer was not complete within
            ``limits.ADMIN_ANSWER_S``. The server may have carried out the request.
        InvalidArgument: The address is malformed.
        Unauthenticated: One end refused the other's certificate.
        WireError: The answer is not HTTP, or is too large.

    Cancelling: the server may or may not carry out the request.
    """
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.ADMIN_HEADER_BYTES_MAX)
    headers = [("host", address), ("connection", "close"), ("content-length", "0")]
    if token is not None:
        headers.append(("authorization", f"Bearer {token}"))
    asking = http.send(h11.Request(method=method, target=target, headers=headers))
    asking = (asking or b"") + (http.send(h11.EndOfMessage()) or b"")
    with trio.move_on_after(limits.ADMIN_ANSWER_S):
        stream = await network.connect(address)
        try:
            await stream.send_all([asking])
            return await _receive_answer(http, stream)
        except h11.RemoteProtocolError as wrong:
            raise WireError(f"{address} does not answer in HTTP: {wrong}") from None
        finally:
            stream.close()
    raise ConnectionLost(f"{address}: no answer within {limits.ADMIN_ANSWER_S:g} s")


async def _receive_answer(http: h11.Connection, stream: Stream) -> Answer:
    buffer = memoryview(bytearray(_READ_BYTES))
    status, content_type, body = 0, "", b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            count = await stream.receive_into(buffer)
            http.receive_data(bytes(buffer[:count]))
        elif isinstance(event, h11.Response):
            status = event.status_code
            content_type = dict(event.headers).get(b"content-type", b"").decode("latin-1")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > limits.ADMIN_ANSWER_BYTES_MAX:
                raise WireError(f"the answer has more than {limits.ADMIN_ANSWER_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, body, content_type)
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the connection ended before an answer")


class _Connection:
    def __init__(
        self, stream: Stream, answer: Callable[[Asked], Awaitable[Answer]], idle: dict[Stream, None]
    ) -> None:
        self._stream = stream
        self._answer = answer
        self._idle = idle
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.ADMIN_HEADER_BYTES_MAX)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._is_head = False
        """Whether the request that is answered next is a HEAD. Such an answer has no body."""

    async def run(self) -> None:
        http = self._http
        while True:
            self._idle[self._stream] = None
            try:
                with trio.fail_after(limits.ADMIN_REQUEST_S):
                    asked = await self._receive()
            except h11.RemoteProtocolError as wrong:
                with trio.fail_after(limits.ADMIN_ANSWER_S):
                    await self._send(Answer.text(wrong.error_status_hint, str(wrong)))
                return
            self._idle.pop(self._stream, None)
            if asked is None:
                return
            with trio.fail_after(limits.ADMIN_ANSWER_S):
                try:
                    answer = await self._answer(asked)
                except LedgerLogError as trouble:
                    answer = Answer.text(503, f"{type(trouble).__name__}: {trouble}")
                except Exception:
                    # A fault of a page must not end what it tells of, for example a bookie.
                    logger.exception("a request for %s failed", asked.path)
                    answer = Answer.text(500, "this request failed; the log of the process says why")
                await self._send(answer)
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()

    async def _receive(self) -> Asked | None:
        """Receive a request; return None if the peer has finished. May raise h11.RemoteProtocolError."""
        request: h11.Request | None = None
        body_bytes = 0
        self._is_head = False
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    raise h11.RemoteProtocolError("a request must not have a body", error_status_hint=417)
                count = await self._stream.receive_into(self._buffer)
                self._http.receive_data(bytes(self._buffer[:count]))
            elif isinstance(event, h11.Request):
                request = event
                self._is_head = event.method == b"HEAD"
            elif isinstance(event, h11.Data):
                body_bytes += len(event.data)
                if body_bytes > limits.ADMIN_BODY_BYTES_MAX:
                    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return self._asked(request)
            else:
                return None  # The peer has closed its side.

    def _asked(self, request: h11.Request) -> Asked:
        try:
            target = urlsplit(request.target.decode("ascii"))
            query = dict(
                parse_qsl(target.query, max_num_fields=_QUERY_FIELDS_MAX, strict_parsing=bool(target.query))
            )
        except ValueError as wrong:
            raise h11.RemoteProtocolError(
                f"the target is malformed: {wrong}", error_status_hint=400
            ) from None
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        return Asked(
            request.method.decode("ascii"),
            target.path,
            query,
            headers,
            self._stream.peer,
            self._stream.principal,
        )

    async def _send(self, answer: Answer) -> None:
        http = self._http
        if http.our_state is not h11.IDLE and http.our_state is not h11.SEND_RESPONSE:
            return
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            *answer.headers,
        ]
        parts = [http.send(h11.Response(status_code=answer.status, headers=headers))]
        if answer.body and not self._is_head:
            parts.append(http.send(h11.Data(data=answer.body)))
        parts.append(http.send(h11.EndOfMessage()))
        await self._stream.send_all([part for part in parts if part])
