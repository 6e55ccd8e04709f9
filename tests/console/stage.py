"""A cluster with a console, for the tests of the console."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import attrs
import trio
from starlette.applications import Starlette

from ledgerlog.admin.gate import AdminGate
from ledgerlog.console.core.picture import Picture, patched
from ledgerlog.console.doors import Doors
from ledgerlog.console.observer import ClusterObserver
from ledgerlog.console.serving import serve_console
from ledgerlog.console.web import make_app
from ledgerlog.model.admission import OPEN, Admission
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import ADMIN, Secrets
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.net.prover import Prover
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster

T = TypeVar("T")

NOW_S = 1_767_225_600.0
SECRETS = Secrets(None, (b"s" * 32,))
CONSOLE = "client-1"
"""The client that is the console's: the first one."""


class Source:
    where = "here"

    def current(self) -> Secrets:
        return SECRETS


def token(who: Principal = ADMIN, *, scope: TokenScope = TokenScope.CHANGE, expires_s: float) -> str:
    return Token(who, scope, int(expires_s)).encode(SECRETS.of(who)[0])


@attrs.define
class Stage:
    cluster: MemoryCluster
    watcher: Client
    """The console's client."""
    observer: ClusterObserver
    app: Starlette
    gate_prover: Prover
    now_s: float = NOW_S


@asynccontextmanager
async def staged(bookies: int = 3, *, admission: Admission = OPEN) -> AsyncIterator[Stage]:
    """Run a cluster and a console over it, without a port. The bookies ask for no proof."""
    async with (
        open_cluster(bookies) as cluster,
        cluster.client() as watcher,
        trio.open_nursery() as nursery,
    ):
        prover = Prover(Source())
        prover.admit(admission)

        def now_s() -> float:
            return stage.now_s + trio.current_time()

        began = trio.current_time()
        observer = ClusterObserver(watcher.opened, now_s=now_s)
        doors = Doors(
            AdminGate(watcher.store, prover, now_s=now_s),
            hosts=frozenset({"localhost", "console.example"}),
            new_secret=watcher.opened.environment.new_key,
            now_s=now_s,
        )
        app = make_app(watcher.opened, observer, doors)
        stage = Stage(cluster, watcher, observer, app, prover, NOW_S - began)
        await nursery.start(observer.run)
        yield stage
        nursery.cancel_scope.cancel()


class Stream:
    """The answer of ``/watch``, as a browser takes it."""

    def __init__(self) -> None:
        self.status = 0
        self.text = ""
        self.picture: Picture = {}
        self.refused: str | None = None
        self.is_over = False

    def take(self, text: str) -> None:
        self.text += text
        while "\n\n" in self.text:
            block, _, self.text = self.text.partition("\n\n")
            lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "data" not in lines:
                continue
            match lines.get("event", "message"):
                case "begin":
                    self.picture = {}
                case "refused":
                    self.refused = json.loads(lines["data"])
                case _:
                    self.picture = patched(self.picture, json.loads(lines["data"]))


@asynccontextmanager
async def watching(app: Starlette, query: str, *, cookie: str = "") -> AsyncIterator[Stream]:
    """Open ``/watch`` for the body; httpx would wait for its end."""
    stream = Stream()
    headers = [(b"host", b"localhost"), *([(b"cookie", cookie.encode())] if cookie else [])]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/watch",
        "raw_path": b"/watch",
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("localhost", 80),
    }
    left = trio.Event()
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            stream.status = message["status"]
        else:
            stream.take(message.get("body", b"").decode())

    async def run() -> None:
        await app(scope, receive, send)
        stream.is_over = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield stream
        left.set()


class Theatre:
    """A cluster in real time in a thread of its own, with a console that browsers reach."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._act: Callable[[], Awaitable[None]] | None = None
        self.failure: BaseException | None = None
        self.cluster: MemoryCluster
        self.console: Client
        self.client: Client
        self.rival: Client
        self.nursery: trio.Nursery

    def run(self, act: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run something in the cluster's loop, and return its result."""
        return trio.from_thread.run(act, *args, trio_token=self._token)

    async def _main(self) -> None:
        def prover_of(name: str) -> Prover | None:
            return Prover(Source()) if name == CONSOLE else None

        async with (
            open_cluster(4, prover_of=prover_of) as self.cluster,
            self.cluster.client() as self.console,
            self.cluster.client() as self.client,
            self.cluster.client() as self.rival,
            trio.open_nursery() as self.nursery,
        ):
            self._token = trio.lowlevel.current_trio_token()

            async def serving(url: str) -> None:
                await trio.lowlevel.checkpoint()
                self.url = url
                self._ready.set()

            self.nursery.start_soon(
                partial(
                    serve_console,
                    self.console.opened,
                    "127.0.0.1:0",
                    hosts=frozenset({"localhost"}),
                    now_s=time.time,
                    on_serving=serving,
                )
            )
            await self._stop.wait()
            self.nursery.cancel_scope.cancel()

    def _thread(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as failure:
            self.failure = failure
        finally:
            self._ready.set()


@contextmanager
def open_theatre() -> Iterator[Theatre]:
    theatre = Theatre()
    thread = threading.Thread(target=theatre._thread, name="theatre", daemon=True)
    thread.start()
    theatre._ready.wait()
    try:
        if theatre.failure is not None:
            raise theatre.failure
        yield theatre
    finally:
        if theatre._token is not None and thread.is_alive():
            trio.from_thread.run_sync(theatre._stop.set, trio_token=theatre._token)
        thread.join()
        if theatre.failure is not None:
            raise theatre.failure
