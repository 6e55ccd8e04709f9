"""Serve the pages and the requests of their script, with Starlette.

    GET  /, /logs, /log/NAME, /ledgers, /ledger/ID, /repair    the page; its script shows the path's subject
    GET  /static/FILE     its script and its style
    GET  /session         the principal of the browser, and its rights
    GET  /watch?kind=...  differences of pictures (``core.picture``) as server-sent events, forever
    POST /log-in          a token, as JSON: the answer has the cookie of a session
    POST /log-out
    POST /change          what to change, as JSON (``changes``)

All data of the cluster goes to the page as JSON, and the page's script inserts the data as text. The pages
load nothing from other servers, and no other page can show them in a frame: see ``_HEADERS``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib.resources import files
from typing import Any

import attrs
import trio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ledgerlog.admin.gate import RequestRefused, telling_of_change
from ledgerlog.concurrency.complaints import Complaints
from ledgerlog.console.changes import change
from ledgerlog.console.core.picture import Picture, difference
from ledgerlog.console.doors import Doors, PersonSession
from ledgerlog.console.observer import ClusterObserver, Subject
from ledgerlog.errors import InvalidArgument, LedgerLogError
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.limits import CONSOLE_ALIVE_S, CONSOLE_BODY_BYTES_MAX, CONSOLE_BODY_S, CONSOLE_WATCHERS

__all__ = ["make_app"]

logger = logging.getLogger(__name__)

_COOKIE = "ledgerlog-console"
_STATIC = {
    "console.js": "text/javascript; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "console.svg": "image/svg+xml",
}
_PAGES = ("/", "/logs", "/log/{name:path}", "/ledgers", "/ledger/{number}", "/repair")
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def make_app(client: LedgerClient, observer: ClusterObserver, doors: Doors) -> Starlette:
    """Return the application.

    Args:
        client: The client of the cluster.
        observer: The observer of the cluster. Its ``run`` is running.
        doors: Decides about the requests.
    """
    console = _Console(client, observer, doors, Complaints(logger))
    return Starlette(
        routes=[
            *(Route(path, console.page, methods=["GET"]) for path in _PAGES),
            Route("/static/{name}", console.static, methods=["GET"]),
            Route("/session", console.session, methods=["GET"]),
            Route("/watch", console.watch, methods=["GET"]),
            Route("/log-in", console.log_in, methods=["POST"]),
            Route("/log-out", console.log_out, methods=["POST"]),
            Route("/change", console.change, methods=["POST"]),
        ],
        middleware=[Middleware(_Guard, doors=doors)],
        exception_handlers={RequestRefused: _refused, LedgerLogError: _failed, ClientDisconnect: _gone},
    )


class _Places:
    """The number of open streams."""

    taken = 0


class _Stream(StreamingResponse):
    """A stream of server-sent events, if there is a place for one more."""

    def __init__(self, events: AsyncGenerator[str, None], places: _Places) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            if self._places.taken >= CONSOLE_WATCHERS:
                why = f"{CONSOLE_WATCHERS} pages are open at this console: close some"
                await _json(503, {"error": why})(scope, receive, send)
                return
            self._places.taken += 1
            try:
                await super().__call__(scope, receive, send)
            finally:
                self._places.taken -= 1


class _Guard:
    """Refuses requests to foreign host names, and adds the headers that make a browser strict."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        try:
            self._doors.check_host(hosts[0].decode("latin-1") if len(hosts) == 1 else "")
        except RequestRefused as refused:
            await _json(refused.status, {"error": str(refused)})(scope, receive, send_strictly)
            return
        await self._app(scope, receive, send_strictly)


@attrs.frozen(eq=False)
class _Console:
    client: LedgerClient
    observer: ClusterObserver
    doors: Doors
    complaints: Complaints
    places: _Places = attrs.Factory(_Places)

    async def page(self, request: Request) -> Response:
        return Response(_file("console.html"), media_type="text/html; charset=utf-8")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise RequestRefused(404, "there is nothing here")
        return Response(_file(name), media_type=_STATIC[name])

    async def session(self, request: Request) -> Response:
        session = self._session(request)
        why = None
        try:
            await self.doors.check_read(session, _peer(request))
        except RequestRefused as refused:
            why = str(refused)
        return _json(200, {"cluster": self.client.store.cluster, "refused": why, **_person(session)})

    async def watch(self, request: Request) -> Response:
        session = self._session(request)
        await self.doors.check_read(session, _peer(request))
        subject = Subject.parse_untrusted(request.query_params)
        return _Stream(self._differences(subject, session, _peer(request)), self.places)

    async def _differences(
        self, subject: Subject, session: PersonSession | None, peer: str
    ) -> AsyncGenerator[str, None]:
        told: Picture = {}
        async with self.observer.watch(subject) as view, aclosing(view.pictures(CONSOLE_ALIVE_S)) as pictures:
            checked_s = self.observer.now_s()
            yield "event: begin\ndata: {}\n\n"
            async for picture in pictures:
                if abs(self.observer.now_s() - checked_s) >= CONSOLE_ALIVE_S:
                    checked_s = self.observer.now_s()
                    try:
                        current = None if session is None else self.doors.session(session.name)
                        await self.doors.check_read(current, peer)
                    except RequestRefused as refused:
                        if refused.status in (401, 403):
                            yield f"event: refused\ndata: {json.dumps(str(refused))}\n\n"
                            return
                        # The store is out of reach. A person who was allowed to look continues looking, and
                        # sees that.
                found = difference(told, picture)
                told = picture
                yield ": alive\n\n" if found is None else f"data: {json.dumps(found)}\n\n"

    async def log_in(self, request: Request) -> Response:
        is_https = self.doors.check_origin(request.headers)
        fields = await _fields(request)
        try:
            session = await self.doors.log_in(_text(fields, "token"), _peer(request))
        except RequestRefused as refused:
            self.complaints.tell(f"console: client={_peer(request)}: a log-in is refused: {refused}")
            raise
        logger.info("console: client=%s: %s logged in", _peer(request), session.principal)
        answer = _json(200, _person(session))
        answer.set_cookie(_COOKIE, session.name, httponly=True, samesite="strict", secure=is_https, path="/")
        return answer

    async def log_out(self, request: Request) -> Response:
        is_https = self.doors.check_origin(request.headers)
        session = self._session(request)
        if session is not None:
            self.doors.log_out(session)
        answer = _json(200, _person(None))
        answer.delete_cookie(_COOKIE, httponly=True, samesite="strict", secure=is_https, path="/")
        return answer

    async def change(self, request: Request) -> Response:
        fields = await _fields(request)
        what, bookie_id = _text(fields, "what"), _text(fields, "bookie", "")
        try:
            principal = await self.doors.check_change(self._session(request), request.headers, _peer(request))
        except RequestRefused as refused:
            self.complaints.tell(f"console: client={_peer(request)}: {what[:32]!r} is refused: {refused}")
            raise
        asked_for = f"{what[:32]!r} {bookie_id[:64]!r}" if bookie_id else repr(what[:32])
        with telling_of_change("console", asked_for, by=principal, client=_peer(request)):
            done = await change(self.client, what, bookie_id)
        return _json(200, {"done": done})

    def _session(self, request: Request) -> PersonSession | None:
        return self.doors.session(request.cookies.get(_COOKIE))


def _person(session: PersonSession | None) -> dict[str, Any]:
    return {
        "principal": None if session is None else str(session.principal),
        "may_change": session is not None and session.may_change,
        "mark": None if session is None else session.mark,
    }


def _peer(request: Request) -> str:
    return "unknown" if request.client is None else f"{request.client.host}:{request.client.port}"


def _file(name: str) -> bytes:
    return files("ledgerlog.console").joinpath("static", name).read_bytes()


def _json(status: int, value: Mapping[str, Any]) -> JSONResponse:
    return JSONResponse(value, status_code=status)


async def _fields(request: Request) -> Mapping[str, Any]:
    """Read a small JSON object. Raise RequestRefused if the body is not one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused(415, "the body has to be JSON")
    body = b""
    with trio.move_on_after(CONSOLE_BODY_S) as waiting:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > CONSOLE_BODY_BYTES_MAX:
                    raise RequestRefused(413, f"the body has more than {CONSOLE_BODY_BYTES_MAX} bytes")
    if waiting.cancelled_caught:
        raise RequestRefused(408, f"the body did not arrive within {CONSOLE_BODY_S:.0f} s")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise RequestRefused(400, "the body is not a JSON object")
    return fields


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise RequestRefused(400, f"{name} has to be text")
    return value.strip()


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, RequestRefused)
    return _json(refused.status, {"error": str(refused)})


async def _failed(request: Request, failure: Exception) -> Response:
    status = 400 if isinstance(failure, InvalidArgument) else 503
    return _json(status, {"error": f"{type(failure).__name__}: {failure}"})


async def _gone(request: Request, gone: Exception) -> Response:
    return Response(status_code=400)
